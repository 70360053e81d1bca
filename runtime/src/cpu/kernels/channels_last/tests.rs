//! Convolutions of images in both orders beside sums in double precision, on every vector unit that the machine has.

use super::depthwise::{self, Channels};
use super::{Images, Moves, Windows, matmul};
use crate::cpu::kernels::matmul::{Matrix, Strides};
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
];

fn strides(row: isize, column: isize) -> Strides<'static> {
    Strides { offset: 0, batch: &[], row, column }
}

fn check_unit<S: Simd, const FMA: bool>(simd: S) {
    for (row, last, by_channel) in ROWS.iter().flat_map(|row| {
        [(row, true, false), (row, false, false), (row, true, true), (row, false, true)]
    }) {
        let &([n, c, m], [h, w], kernel, strides, dilations, before, after) = row;
        let outer: [usize; 2] = std::array::from_fn(|i| {
            let all = [h, w][i] as i64 + before[i] + after[i];
            (all as usize - (kernel[i] - 1) * dilations[i] - 1) / strides[i] + 1
        });
        let moves = Moves { outer, kernel, strides, dilations, before };
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
        let mut tile = TileMut::new(&mut y, m);
        if by_channel {
            let x = Channels::new(x, &moves).unwrap();
            let tile = depthwise::Tile::new(&x, &packed, &bias, [0, 0], &mut tile);
            simd.vectorize(Run::<_, S, FMA>(tile, simd));
        } else {
            let x = Windows::new(x, &moves).unwrap();
            let tile = matmul::Tile::new(&x, &packed, &bias, [0, 0], &mut tile);
            simd.vectorize(Run::<_, S, FMA>(tile, simd));
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
            let off = (f64::from(got) - want).abs();
            assert!(off <= 1e-7 * (depth as f64 + 2.0) * size, "{row:?} at {place}: {got} {want}");
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
