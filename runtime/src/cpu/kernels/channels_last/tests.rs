//! Convolutions of images in both orders beside sums in double precision, on every vector unit that the machine has.

use super::depthwise::{self, Channels};
use super::planes::{self, Planes};
use super::winograd::{self, Lines, PATCH, Part, Patches};
use super::{Form, Images, Moves, Windows, convolve, matmul};
use crate::cpu::kernels::finish::{Activation, Finish};
use crate::cpu::kernels::matrix::{Matrix, Strides};
use crate::cpu::kernels::packed::Packed;
use crate::cpu::kernels::simd::Kernel;
use crate::cpu::kernels::tile::TileMut;
use pulp::{Scalar, Simd};

fn numbers(len: usize, seed: usize) -> Vec<f32> {
    (0..len).map(|i| (((i + seed) * 7919) % 1013) as f32 * 2e-3 - 1.0).collect()
}

/// Images, channels and filters; rows and columns; kernel, strides, dilations, and pads before and after.
type Row = ([usize; 3], [usize; 2], [usize; 2], [usize; 2], [usize; 2], [i64; 2], [i64; 2]);

const ROWS: &[Row] = &[
    ([1, 3, 16], [17, 19], [7, 7], [2, 2], [1, 1], [3, 3], [3, 3]),
    ([2, 16, 70], [9, 11], [3, 3], [1, 1], [1, 1], [1, 1], [1, 1]),
    ([1, 40, 17], [9, 11], [1, 1], [2, 3], [1, 1], [0, 0], [0, 0]),
    ([3, 1, 1], [5, 6], [3, 2], [2, 1], [2, 3], [3, 0], [1, 4]),
    ([1, 20, 50], [2, 2], [3, 3], [1, 1], [1, 1], [4, 4], [4, 4]),
    ([1, 7, 33], [9, 11], [3, 3], [2, 2], [1, 1], [-2, 1], [1, -3]),
    ([1, 1600, 5], [1, 3], [1, 1], [1, 1], [1, 1], [0, 0], [0, 0]),
    ([2, 72, 72], [14, 13], [5, 5], [1, 2], [1, 1], [2, 2], [2, 2]),
    ([1, 40, 24], [7, 7], [5, 5], [1, 1], [1, 1], [2, 2], [2, 2]),
    ([1, 18, 9], [3, 2], [3, 3], [1, 1], [1, 1], [1, 1], [1, 1]),
    ([2, 2, 20], [6, 40], [2, 5], [3, 4], [1, 2], [1, 2], [0, 1]),
    ([1, 3, 64], [5, 12], [3, 3], [1, 1], [1, 1], [-1, -1], [1, 2]),
    ([1, 16, 64], [1, 11], [1, 1], [1, 1], [1, 1], [0, 0], [0, 0]),
];

/// What is checked: all channels together, by channel, and planes as they are.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Kind {
    Windows,
    Depthwise,
    Planes,
}

fn strides(row: isize, column: isize) -> Strides<'static> {
    Strides { offset: 0, batch: &[], row, column }
}

/// With the images' channels innermost or not, with sums as they are and finished.
fn check_unit<S: Simd, const FMA: bool>(simd: S) {
    let kinds = [Kind::Windows, Kind::Depthwise, Kind::Planes];
    let cases = kinds.into_iter().flat_map(|kind| [(kind, true), (kind, false)]);
    let cases = cases.flat_map(|(kind, last)| [true, false].map(|ends| (kind, last, ends)));
    let cases = ROWS.iter().flat_map(|row| cases.clone().map(move |case| (row, case)));
    for (row, (kind, last, ends)) in cases {
        let by_channel = kind == Kind::Depthwise;
        let &([n, c, m], [h, w], kernel, strides, dilations, before, after) = row;
        let outer: [usize; 2] = std::array::from_fn(|i| {
            let all = [h, w][i] as i64 + before[i] + after[i];
            (all as usize - (kernel[i] - 1) * dilations[i] - 1) / strides[i] + 1
        });
        let moves = Moves { outer, kernel, strides, dilations, before };
        if kind == Kind::Planes && (last || outer[1] < 8 || !matches!(strides[1], 1 | 2 | 4)) {
            continue;
        }
        let data = numbers(n * c * h * w, 1);
        let [of_c, of_h, of_w] = if last { [1, w * c, c] } else { [h * w, w, 1] };
        let apart = [c * h * w, of_c, of_h, of_w].map(|stride| stride as isize);
        let x = Images { data: &data, offset: 0, shape: [n, c, h, w], strides: apart };
        let (taps, m) = (kernel[0] * kernel[1], if by_channel { c } else { m });
        let depth = if by_channel { taps } else { taps * c };
        let filters = numbers(depth * m, 3);
        let bias = numbers(m.next_multiple_of(Packed::COLUMNS), 9);
        let right = Matrix { data: &filters[..], at: self::strides(m as isize, 1) };
        let packed = Packed::with_lanes(right, depth, m, S::F32_LANES).unwrap();
        let mut y = vec![f32::NAN; n * outer[0] * outer[1] * m];
        let added = numbers(y.len(), 5);
        let finish = match ends {
            true => Finish { residual: Some(&added), activation: Activation::Relu },
            false => Finish::NONE,
        };
        let (mut tile, start) = (TileMut::new(&mut y, m), (&bias[..], finish));
        match kind {
            Kind::Windows => {
                let x = Windows::new(x, &moves).unwrap();
                let tile = matmul::Tile::new(&x, &packed, start, [0, 0], &mut tile);
                simd.vectorize(Run::<_, S, FMA>(tile, simd));
            }
            Kind::Depthwise => {
                let x = Channels::new(x, &moves).unwrap();
                let tile = depthwise::Tile::new(&x, &packed, start, [0, 0], &mut tile);
                simd.vectorize(Run::<_, S, FMA>(tile, simd));
            }
            Kind::Planes => {
                let x = Planes::new(x, &moves).unwrap();
                let tile = planes::Tile::new(&x, &packed, start, 0, &mut tile);
                simd.vectorize(Run::<_, S, FMA>(tile, simd));
            }
        }
        for (place, &got) in y.iter().enumerate() {
            let (window, filter) = (place / m, place % m);
            let (image, line) = (window / outer[1] / outer[0], window / outer[1] % outer[0]);
            let (mut want, mut size) = (f64::from(bias[filter]), f64::from(bias[filter]).abs());
            for tap in 0..taps {
                let step = [tap / kernel[1], tap % kernel[1]];
                let at: [i64; 2] = std::array::from_fn(|i| {
                    let first = [line, window % outer[1]][i] * strides[i];
                    (first + step[i] * dilations[i]) as i64 - before[i]
                });
                if !(0..h as i64).contains(&at[0]) || !(0..w as i64).contains(&at[1]) {
                    continue;
                }
                for channel in if by_channel { filter..filter + 1 } else { 0..c } {
                    let row = if by_channel { tap } else { tap * c + channel };
                    let from = image * c * h * w + channel * of_c;
                    let from = from + at[0] as usize * of_h + at[1] as usize * of_w;
                    let term = f64::from(data[from]) * f64::from(filters[row * m + filter]);
                    (want, size) = (want + term, size + term.abs());
                }
            }
            if ends {
                let added = f64::from(added[place]);
                (want, size) = ((want + added).max(0.0), size + added.abs());
            }
            let off = (f64::from(got) - want).abs();
            let bound = 1e-7 * (depth as f64 + 2.0) * size;
            assert!(off <= bound, "{kind:?} {row:?} at {place}: {got} {want}");
        }
    }
}

/// A tile within a unit's instructions.
struct Run<K, S, const FMA: bool>(K, S);

impl<K: Kernel<Output = ()>, S: Simd, const FMA: bool> pulp::NullaryFnOnce for Run<K, S, FMA> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        self.0.run::<S, FMA>(self.1);
    }
}

#[test]
fn every_vector_unit_convolves() {
    check_unit::<_, false>(Scalar::new());
    #[cfg(target_arch = "x86_64")]
    {
        if let Some(simd) = pulp::x86::V3::try_new() {
            check_unit::<_, true>(simd);
        }
        if let Some(simd) = pulp::x86::V4::try_new() {
            check_unit::<_, true>(simd);
        }
    }
}

/// Images, channels and filters; rows and columns; pads before and after.
type Transformed = ([usize; 3], [usize; 2], [i64; 2], [i64; 2]);

const TRANSFORMED: &[Transformed] = &[
    ([1, 32, 33], [12, 12], [1, 1], [1, 1]),
    ([2, 48, 100], [7, 9], [1, 1], [1, 1]),
    ([1, 64, 64], [30, 31], [1, 1], [1, 1]),
    ([3, 16, 16], [5, 4], [2, 0], [0, 3]),
    ([1, 800, 49], [3, 3], [0, 0], [0, 0]),
    ([2, 16, 16], [8, 140], [1, -1], [1, 2]),
];

/// Sums of magnitudes: what a patch's elements, a filter's and the sums of their multiplications are made of.
fn magnitude(d: &[[f64; 4]; 4], g: &[f64; 9], window: [usize; 2]) -> f64 {
    const B: [[f64; 4]; 4] =
        [[1., 0., 1., 0.], [0., 1., 1., 0.], [0., 1., 1., 0.], [0., 1., 0., 1.]];
    const G: [[f64; 3]; 4] = [[1., 0., 0.], [0.5, 0.5, 0.5], [0.5, 0.5, 0.5], [0., 0., 1.]];
    const A: [[f64; 4]; 2] = [[1., 1., 1., 0.], [0., 1., 1., 1.]];
    let mut sum = 0.0;
    for (i, j) in (0..4).flat_map(|i| (0..4).map(move |j| (i, j))) {
        let patch = (0..16).map(|k| B[i][k / 4] * d[k / 4][k % 4].abs() * B[j][k % 4]);
        let filter = (0..9).map(|k| G[i][k / 3] * g[k].abs() * G[j][k % 3]);
        sum += A[window[0]][i] * A[window[1]][j] * patch.sum::<f64>() * filter.sum::<f64>();
    }
    sum
}

/// Each number is rounded once for the filter, twice for the patch, once for each channel, and at most eight times for sums
/// of blocks of the depth, of the windows and of the bias.
#[test]
fn transformed_windows_are_within_the_bound() {
    for (row, last) in TRANSFORMED.iter().flat_map(|row| [(row, true), (row, false)]) {
        // Those in another order are finished with a residual and a function, which round once more.
        let &([n, c, m], [h, w], before, after) = row;
        let outer: [usize; 2] =
            std::array::from_fn(|i| ([h, w][i] as i64 + before[i] + after[i]) as usize - 2);
        let moves = Moves { outer, kernel: [3; 2], strides: [1; 2], dilations: [1; 2], before };
        let (data, filters, bias) =
            (numbers(n * c * h * w, 1), numbers(m * c * 9, 3), numbers(m, 9));
        let [of_c, of_h, of_w] = if last { [1, w * c, c] } else { [h * w, w, 1] };
        let apart = [c * h * w, of_c, of_h, of_w].map(|stride| stride as isize);
        let x = Images { data: &data, offset: 0, shape: [n, c, h, w], strides: apart };
        let packed = winograd::pack(&filters, [m, c]).unwrap();
        let mut y = vec![f32::NAN; n * outer[0] * outer[1] * m];
        let bytes = bytemuck::cast_slice_mut(&mut y);
        let added = numbers(n * outer[0] * outer[1] * m, 5);
        let finish = match last {
            true => Finish::NONE,
            false => Finish { residual: Some(&added), activation: Activation::Relu },
        };
        let start = (Some(&bias[..]), finish);
        convolve(bytes, x, &packed, start, (&moves, Form::Winograd), |_, _| {}).unwrap();
        for (place, &got) in y.iter().enumerate() {
            let (window, filter) = (place / m, place % m);
            let (image, line) = (window / outer[1] / outer[0], window / outer[1] % outer[0]);
            let (mut want, mut size) = (f64::from(bias[filter]), f64::from(bias[filter]).abs());
            let at = [line, window % outer[1]];
            for channel in 0..c {
                let first = [0, 1].map(|i| (at[i] / 2 * 2) as i64 - before[i]);
                let patch: [[f64; 4]; 4] = std::array::from_fn(|i| {
                    std::array::from_fn(|j| {
                        let (row, column) = (first[0] + i as i64, first[1] + j as i64);
                        if !(0..h as i64).contains(&row) || !(0..w as i64).contains(&column) {
                            return 0.0;
                        }
                        let from = image * c * h * w + channel * of_c;
                        f64::from(data[from + row as usize * of_h + column as usize * of_w])
                    })
                });
                let g = &filters[(filter * c + channel) * 9..][..9];
                let g: [f64; 9] = std::array::from_fn(|i| f64::from(g[i]));
                let own = at.map(|place| place % 2);
                want += (0..9).map(|k| patch[own[0] + k / 3][own[1] + k % 3] * g[k]).sum::<f64>();
                size += magnitude(&patch, &g, own);
            }
            if !last {
                let added = f64::from(added[place]);
                (want, size) = ((want + added).max(0.0), size + added.abs());
            }
            let roundings = (c + 11 + usize::from(!last)) as f64 * f64::from(f32::EPSILON) / 2.0;
            let off = (f64::from(got) - want).abs();
            let bound = size * roundings / (1.0 - roundings);
            assert!(off <= bound, "{row:?} at {place}: {got} {want}, {off} of {bound}");
        }
    }
}

/// Patches are transformed exactly where numbers are small integers, on every vector unit alike.
fn check_patches<S: Simd, const FMA: bool>(simd: S) {
    let data: Vec<f32> = (0..6 * 7 * 16).map(|i| (i * 37 % 101) as f32).collect();
    let x = Images { data: &data, offset: 0, shape: [1, 16, 6, 7], strides: [672, 1, 112, 16] };
    let moves =
        Moves { outer: [6, 7], kernel: [3; 2], strides: [1; 2], dilations: [1; 2], before: [1; 2] };
    let x = Channels::new(x, &moves).unwrap();
    let packed = Packed::with_lanes(
        Matrix { data: &[0.0; 16 * PATCH][..], at: strides(1, 1) },
        16 * PATCH,
        1,
        S::F32_LANES,
    );
    let packed = packed.unwrap();
    let part = Part {
        x: &x,
        b: packed.panels(),
        bias: &[],
        finish: Finish::NONE,
        before: 0,
        image: 0,
        column: 0,
    };
    let pitch = PATCH * 16 + 16;
    let mut to = vec![f32::NAN; 12 * pitch];
    let lines = Lines { from: 0, first: 0, count: 3 };
    simd.vectorize(Run::<_, S, FMA>(Patches { part: &part, lines, to: &mut to }, simd));
    const B: [[f32; 4]; 4] =
        [[1., 0., -1., 0.], [0., 1., 1., 0.], [0., -1., 1., 0.], [0., 1., 0., -1.]];
    for (patch, element, channel) in
        (0..12).flat_map(|p| (0..PATCH).flat_map(move |e| (0..16).map(move |c| (p, e, c))))
    {
        let d = |place: usize| {
            let (row, column) = (patch / 4 * 2 + place / 4, patch % 4 * 2 + place % 4);
            let inside = (1..7).contains(&row) && (1..8).contains(&column);
            if inside { data[((row - 1) * 7 + column - 1) * 16 + channel] } else { 0.0 }
        };
        let terms = (0..16).map(|k| B[element / 4][k / 4] * d(k) * B[element % 4][k % 4]);
        assert_eq!(to[patch * pitch + element * 16 + channel], terms.sum::<f32>());
    }
}

#[test]
fn every_vector_unit_transforms_patches() {
    check_patches::<_, false>(Scalar::new());
    #[cfg(target_arch = "x86_64")]
    {
        if let Some(simd) = pulp::x86::V3::try_new() {
            check_patches::<_, true>(simd);
        }
        if let Some(simd) = pulp::x86::V4::try_new() {
            check_patches::<_, true>(simd);
        }
    }
}
