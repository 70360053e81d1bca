//! Planes under windows of one channel, as depthwise convolutions have them.
//!
//! A plane is brought beside its place with a border of zeros, and apart by its remainders modulo the strides: then
//! every element of the windows is a constant distance from each window, and a vector of windows is summed over all
//! of them in registers, however short a row is.

use super::simd::{Kernel, dispatch};
use super::window::Geometry;
use pulp::Simd;
use smallvec::SmallVec;

/// Vectors of windows that are summed at a time.
const VECTORS: usize = 4;

/// Elements that they have at most, which are read beyond the last window.
const BEYOND: usize = 16 * VECTORS;

/// Elements of a plane beside its place, at most: it stays in the second-level cache.
const MOST: usize = 1 << 17;

/// Windows on planes of two axes.
pub(super) struct Windows {
    inner: [usize; 2],
    outer: [usize; 2],
    strides: [usize; 2],
    before: [usize; 2],
    /// Rows and columns of a remainder's part of the plane.
    part: [usize; 2],
    /// The distance of each element of a window.
    taps: SmallVec<[usize; 64]>,
}

impl Windows {
    /// `None` if there are other axes than two, no windows, or planes too large.
    pub(super) fn new(geometry: Geometry<'_>) -> Option<Self> {
        let two = |sizes: &[usize]| <[usize; 2]>::try_from(sizes).ok();
        let (inner, outer, kernel) =
            (two(geometry.inner)?, two(geometry.outer)?, two(geometry.kernel)?);
        let (strides, dilations) = (two(geometry.strides)?, two(geometry.dilations)?);
        let &[top, left] = geometry.before else { return None };
        let before = [usize::try_from(top).ok()?, usize::try_from(left).ok()?];
        if outer.contains(&0) || strides.contains(&0) || kernel.contains(&0) {
            return None;
        }
        let part = |axis: usize| {
            let reach = (outer[axis] - 1).checked_mul(strides[axis])?;
            let reach = reach.checked_add((kernel[axis] - 1).checked_mul(dilations[axis])?)?;
            Some(reach / strides[axis] + 1)
        };
        let part = [part(0)?, part(1)?];
        let all = part[0].checked_mul(part[1])?.checked_mul(strides[0])?.checked_mul(strides[1])?;
        if all > MOST {
            return None;
        }
        let tap = |(row, column): (usize, usize)| {
            let at = [row * dilations[0], column * dilations[1]];
            let remainder = at[0] % strides[0] * strides[1] + at[1] % strides[1];
            (remainder * part[0] + at[0] / strides[0]) * part[1] + at[1] / strides[1]
        };
        let places = (0..kernel[0]).flat_map(|row| (0..kernel[1]).map(move |column| (row, column)));
        let taps = places.map(tap).collect();
        Some(Self { inner, outer, strides, before, part, taps })
    }

    /// Elements of memory that [`sum`](Self::sum) works in. They must be zero at first.
    pub(super) fn len(&self) -> usize {
        self.planes() + self.sums() + 2 * BEYOND
    }

    fn planes(&self) -> usize {
        self.part.iter().chain(&self.strides).product()
    }

    /// Windows as they are summed: as far from row to row as a part is wide.
    fn sums(&self) -> usize {
        (self.outer[0] - 1) * self.part[1] + self.outer[1]
    }

    /// The sums over a plane, of which the memory has only seen others under the same windows.
    pub(super) fn sum(&self, y: &mut [f32], x: &[f32], w: &[f32], bias: f32, memory: &mut [f32]) {
        let (planes, sums) = memory.split_at_mut(self.planes() + BEYOND);
        self.bring(x, planes);
        dispatch(Sum { planes, w, taps: &self.taps, bias, sums, len: self.sums() });
        let rows = y.chunks_exact_mut(self.outer[1]);
        for (row, sums) in rows.zip(sums.chunks(self.part[1])) {
            row.copy_from_slice(&sums[..row.len()]);
        }
    }

    /// The plane apart by remainders; what windows do not reach is left out.
    fn bring(&self, x: &[f32], planes: &mut [f32]) {
        let ([top, left], [down, across], [rows, columns]) = (self.before, self.strides, self.part);
        for (number, line) in x.chunks_exact(self.inner[1].max(1)).enumerate() {
            let row = number + top;
            if row / down >= rows {
                break;
            }
            for remainder in 0..across {
                let plane = row % down * across + remainder;
                let to = &mut planes[(plane * rows + row / down) * columns..][..columns];
                // The first column of the border and the line that has this remainder.
                let skipped = (remainder + across - left % across) % across;
                let to = &mut to[((skipped + left) / across).min(columns)..];
                let from = line.get(skipped..).unwrap_or_default();
                match across {
                    1 => {
                        let len = to.len().min(from.len());
                        to[..len].copy_from_slice(&from[..len]);
                    }
                    2 => {
                        let pairs = from.chunks(2).map(|pair| pair[0]);
                        to.iter_mut().zip(pairs).for_each(|(to, x)| *to = x);
                    }
                    _ => {
                        let from = from.iter().step_by(across);
                        to.iter_mut().zip(from).for_each(|(to, &x)| *to = x);
                    }
                }
            }
        }
    }
}

struct Sum<'a> {
    planes: &'a [f32],
    w: &'a [f32],
    taps: &'a [usize],
    bias: f32,
    sums: &'a mut [f32],
    len: usize,
}

impl Kernel for Sum<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd, const FMA: bool>(self, simd: S) {
        let Self { planes, w, taps, bias, sums, len } = self;
        let width = VECTORS * S::F32_LANES;
        const { assert!(VECTORS * S::F32_LANES <= BEYOND) }
        for at in (0..len).step_by(width) {
            let mut sum = [simd.splat_f32s(bias); VECTORS];
            for (&tap, &w) in taps.iter().zip(w) {
                let (x, _) = S::as_simd_f32s(&planes[tap + at..][..width]);
                let w = simd.splat_f32s(w);
                for (sum, &x) in sum.iter_mut().zip(x) {
                    *sum = simd.mul_add_e_f32s(w, x, *sum);
                }
            }
            S::as_mut_simd_f32s(&mut sums[at..at + width]).0.copy_from_slice(&sum);
        }
    }
}
