//! Resizing as PIL does it, which image processors are trained and recorded with: separable filters that grow with the
//! reduction, coefficients of 22 bits, and a rounding to bytes after each of the two passes. The `image` crate rounds
//! otherwise, by up to one of 255 levels.

use std::f64::consts::PI;

/// Pixels in rows from the top, channels of a pixel side by side.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Pixels {
    pub(super) height: usize,
    pub(super) width: usize,
    pub(super) channels: usize,
    pub(super) bytes: Vec<u8>,
}

/// A filter: PIL's number for it, its name, how far it reaches, and its weight at a distance.
#[derive(Clone, Copy, Debug)]
pub(super) struct Filter {
    number: u8,
    pub(super) name: &'static str,
    reach: f64,
    weight: fn(f64) -> f64,
}

/// What is taken where nothing says another.
pub(super) const BILINEAR: Filter =
    Filter { number: 2, name: "bilinear", reach: 1.0, weight: |x| (1.0 - x.abs()).max(0.0) };

#[rustfmt::skip]
const FILTERS: [Filter; 6] = [
    BILINEAR,
    Filter { number: 3, name: "bicubic", reach: 2.0, weight: cubic },
    Filter { number: 1, name: "Lanczos", reach: 3.0, weight: |x| if x.abs() < 3.0 { sinc(x) * sinc(x / 3.0) } else { 0.0 } },
    Filter { number: 4, name: "box", reach: 0.5, weight: |x| f64::from(x > -0.5 && x <= 0.5) },
    Filter { number: 5, name: "Hamming", reach: 1.0, weight: |x| if x.abs() < 1.0 { sinc(x) * (0.54 + 0.46 * (PI * x).cos()) } else { 0.0 } },
    Filter { number: 0, name: "nearest", reach: 0.0, weight: |_| 1.0 },
];

/// Bits of a coefficient behind the point.
const BITS: u32 = 22;

impl Filter {
    /// The filter that PIL has this number for.
    pub(super) fn of(number: u8) -> Option<Self> {
        FILTERS.into_iter().find(|filter| filter.number == number)
    }
}

fn cubic(x: f64) -> f64 {
    /// PIL's choice.
    const A: f64 = -0.5;
    match x.abs() {
        x if x < 1.0 => ((A + 2.0) * x - (A + 3.0)) * x * x + 1.0,
        x if x < 2.0 => (((x - 5.0) * x + 8.0) * x - 4.0) * A,
        _ => 0.0,
    }
}

fn sinc(x: f64) -> f64 {
    if x == 0.0 { 1.0 } else { (x * PI).sin() / (x * PI) }
}

/// Where an output pixel's inputs begin along an axis, and their coefficients.
struct Taps {
    start: usize,
    coefficients: Vec<i64>,
}

impl Pixels {
    /// The pixels at another size, by a filter.
    pub(super) fn resized(&self, height: usize, width: usize, filter: Filter) -> Self {
        let mut pixels = self.clone();
        if width != self.width {
            pixels = pixels.wide(&taps(self.width, width, filter));
        }
        if height != self.height {
            pixels = pixels.high(&taps(self.height, height, filter));
        }
        pixels
    }

    /// The pass along rows.
    fn wide(&self, taps: &[Taps]) -> Self {
        let row = self.width * self.channels;
        let mut bytes = Vec::with_capacity(self.height * taps.len() * self.channels);
        for row in self.bytes.chunks_exact(row) {
            for taps in taps {
                let start = taps.start * self.channels;
                bytes
                    .extend((0..self.channels).map(|c| taps.sum(&row[start + c..], self.channels)));
            }
        }
        Self { width: taps.len(), bytes, ..*self }
    }

    /// The pass along columns.
    fn high(&self, taps: &[Taps]) -> Self {
        let row = self.width * self.channels;
        let mut bytes = Vec::with_capacity(taps.len() * row);
        for taps in taps {
            let start = taps.start * row;
            bytes.extend((0..row).map(|place| taps.sum(&self.bytes[start + place..], row)));
        }
        Self { height: taps.len(), bytes, ..*self }
    }

    /// The middle of the pixels; black where there are none.
    pub(super) fn cropped(&self, height: usize, width: usize) -> Self {
        let (down, right) = (middle(self.height, height), middle(self.width, width));
        let mut bytes = Vec::with_capacity(height * width * self.channels);
        for y in 0..height {
            for x in 0..width {
                let inside = y.checked_add_signed(down).zip(x.checked_add_signed(right));
                let inside = inside.filter(|&(y, x)| y < self.height && x < self.width);
                let place = inside.map(|(y, x)| (y * self.width + x) * self.channels);
                let byte = |c: usize| place.map_or(0, |place| self.bytes[place + c]);
                bytes.extend((0..self.channels).map(byte));
            }
        }
        Self { height, width, bytes, ..*self }
    }
}

/// Where the middle part of a size begins: before the beginning if it is larger.
fn middle(size: usize, part: usize) -> isize {
    (size as isize - part as isize).div_euclid(2)
}

impl Taps {
    /// The weighted sum of bytes that lie `stride` apart.
    fn sum(&self, bytes: &[u8], stride: usize) -> u8 {
        let terms = self.coefficients.iter().zip(bytes.iter().step_by(stride));
        let sum: i64 = terms.map(|(coefficient, &byte)| coefficient * i64::from(byte)).sum();
        ((sum + (1 << (BITS - 1))) >> BITS).clamp(0, 255) as u8
    }
}

/// What each of `to` outputs takes of `from` inputs.
fn taps(from: usize, to: usize, filter: Filter) -> Vec<Taps> {
    let scale = from as f64 / to as f64;
    if filter.reach == 0.0 {
        let nearest = |place: usize| (((place as f64 + 0.5) * scale) as usize).min(from - 1);
        let one = |place| Taps { start: nearest(place), coefficients: vec![1 << BITS] };
        return (0..to).map(one).collect();
    }
    let grown = scale.max(1.0);
    let reach = filter.reach * grown;
    let taps = |place: usize| {
        let centre = (place as f64 + 0.5) * scale;
        let start = (centre - reach + 0.5).max(0.0) as usize;
        let end = ((centre + reach + 0.5).max(0.0) as usize).min(from);
        let weight = |place: usize| (filter.weight)((place as f64 - centre + 0.5) * (1.0 / grown));
        let weights: Vec<f64> = (start..end).map(weight).collect();
        let sum: f64 = weights.iter().sum();
        let sum = if sum == 0.0 { 1.0 } else { sum };
        let whole = |weight: f64| (weight / sum * f64::from(1 << BITS)).round() as i64;
        Taps { start, coefficients: weights.into_iter().map(whole).collect() }
    };
    (0..to).map(taps).collect()
}
