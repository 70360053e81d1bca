//! Matmuls by weights of bf16 beside a model of their roundings, with each of the machine's instructions and without.

use super::{Line, PackedBf16, Unit, memory_of, multiply_by};
use crate::cpu::kernels::matrix::{Matrix, Strides};
use crate::cpu::kernels::packed::Packed;
use crate::cpu::kernels::packed::tests::{numbers, orders, strides};
use crate::cpu::kernels::tile::TileMut;
use crate::error::{Error, Result};
use bytemuck::Zeroable;
use half::bf16;

/// The largest relative change by which a number becomes one of single precision.
const UNIT: f64 = 1.0 / (1 << 24) as f64;

/// With the instructions that the machine has, and without.
fn units() -> impl Iterator<Item = Option<Unit>> {
    Unit::all().map(Some).chain([None])
}

fn element(x: &[f32], at: Strides<'_>, i: usize, j: usize) -> f32 {
    x[(at.offset as isize + i as isize * at.row + j as isize * at.column) as usize]
}

fn run(
    unit: Option<Unit>,
    k: usize,
    a: Matrix<'_, f32>,
    b: &PackedBf16,
    column: usize,
    c: &mut TileMut<'_, f32>,
) -> Result<()> {
    let mut memory = vec![Line::zeroed(); memory_of(unit, c.sizes().0, k)];
    multiply_by(unit, k, a, b, column, c, &mut memory)
}

/// What a unit's instruction makes of a column of `k` numbers, in its order and with its roundings. Blocks of the depth are
/// added up by themselves.
fn model(unit: Unit, k: usize, a: impl Fn(usize) -> f32, b: impl Fn(usize) -> f32) -> f32 {
    let groups = super::groups(k);
    let deep = super::deep(k);
    let product = |sum: f32, at: usize| match at < k {
        true => bf16::from_f32(a(at)).to_f32().mul_add(b(at), sum),
        false => sum,
    };
    let of_block = |first: usize| {
        let mut own = first..groups.min(first + deep);
        if unit.step() == 1 {
            return own.fold(0.0, |sum, group| product(product(sum, 2 * group + 1), 2 * group));
        }
        let mut sum = 0.0_f32;
        while !own.is_empty() {
            let tile = own.start..own.start + unit.step();
            let [even, odd] =
                [0, 1].map(|half| tile.clone().map(|group| 2 * group + half).fold(0.0, product));
            sum += even + odd;
            own.start = tile.end;
        }
        sum
    };
    let blocks = (0..groups).step_by(deep).map(of_block);
    blocks.reduce(|sum, block| sum + block).unwrap_or(0.0)
}

/// Rows and columns of A and B in every order, at every remainder of words, lines, panels and blocks of rows: with the
/// instruction exactly what it is said to make, without it as far off as sums in single precision may be.
#[test]
fn matmuls_are_rounded_as_the_model_says() {
    for (m, k) in [
        (1, 1),
        (1, 300),
        (2, 7),
        (3, 64),
        (4, 5),
        (5, 1601),
        (8, 33),
        (97, 3),
        (130, 20),
        (3, 0),
        (17, 70),
        (33, 100),
        (40, 1601),
    ] {
        for n in [1, 15, 17, 32, 47, 49, 130] {
            for (a_at, b_at) in orders(m, n, k) {
                let a = numbers(8 + (k + 2) * m, 1);
                let b = numbers(8 + (k + 1) * (n + 3), 77);
                let packed = PackedBf16::new(Matrix { data: &b, at: b_at }, k, n).unwrap();
                assert_eq!(packed.held_bytes(), PackedBf16::bytes(k, n).unwrap() as u64);
                let rounded: Vec<f32> = b.iter().map(|&x| bf16::from_f32(x).to_f32()).collect();
                for unit in units() {
                    let mut c = vec![f32::NAN; m * n];
                    let left = Matrix { data: &a[..], at: a_at };
                    run(unit, k, left, &packed, 0, &mut TileMut::new(&mut c, n)).unwrap();
                    for (place, &got) in c.iter().enumerate() {
                        let of_a = |k| element(&a, a_at, place / n, k);
                        let of_b = |k| element(&rounded, b_at, k, place % n);
                        if let Some(unit) = unit {
                            let want = model(unit, k, of_a, of_b);
                            assert_eq!(got, want, "{m}x{n}x{k} at {place}");
                            continue;
                        }
                        let terms = (0..k).map(|k| f64::from(of_a(k)) * f64::from(of_b(k)));
                        let (want, size) =
                            terms.fold((0.0, 0.0), |(sum, size), x: f64| (sum + x, size + x.abs()));
                        let off = (f64::from(got) - want).abs();
                        // A multiplication and its addition may round each.
                        let bound = UNIT * (2 * k) as f64 * 1.001 * size;
                        assert!(off <= bound, "{m}x{n}x{k} at {place}: {got} {want}");
                    }
                }
            }
        }
    }
}

/// Against sums of what neither side has rounded, as far as roundings of operands to bf16 carry them.
#[test]
fn matmuls_are_within_the_roundings_of_their_operands() {
    const BF16: f64 = 1.0 / 256.0;
    let (m, k, n) = (11, 517, 70);
    let (a, b) = (numbers(m * k, 3), numbers(k * n, 4));
    let (a_at, b_at) = (strides(0, k as isize, 1), strides(0, n as isize, 1));
    let packed = PackedBf16::new(Matrix { data: &b, at: b_at }, k, n).unwrap();
    for unit in units() {
        let mut c = vec![f32::NAN; m * n];
        let left = Matrix { data: &a[..], at: a_at };
        run(unit, k, left, &packed, 0, &mut TileMut::new(&mut c, n)).unwrap();
        // Those of B alone, and of A where it is rounded.
        let operands = if unit.is_some() { (1.0 + BF16).powi(2) - 1.0 } else { BF16 };
        let mut largest = 0.0_f64;
        for (place, &got) in c.iter().enumerate() {
            let terms = (0..k).map(|p| {
                f64::from(element(&a, a_at, place / n, p))
                    * f64::from(element(&b, b_at, p, place % n))
            });
            let (want, size) =
                terms.fold((0.0, 0.0), |(sum, size), x: f64| (sum + x, size + x.abs()));
            let off = (f64::from(got) - want).abs();
            let sums = UNIT * (2 * k) as f64 * 1.01;
            assert!(off <= (operands + sums) * size, "{unit:?} at {place}: {got} {want}");
            largest = largest.max(off / size);
        }
        assert!(largest > UNIT * k as f64, "{unit:?}: nothing was rounded to bf16");
    }
}

#[test]
fn tiles_of_columns_make_the_whole() {
    let (m, k, n) = (19, 41, 5 * Packed::COLUMNS + 7);
    let (a, b) = (numbers(m * k, 3), numbers(k * n, 4));
    let left = Matrix { data: &a[..], at: strides(0, k as isize, 1) };
    let right = Matrix { data: &b[..], at: strides(0, n as isize, 1) };
    let packed = PackedBf16::new(right, k, n).unwrap();
    for unit in units() {
        let mut whole = vec![0.0; m * n];
        run(unit, k, left, &packed, 0, &mut TileMut::new(&mut whole, n)).unwrap();
        let mut parts = vec![0.0; m * n];
        let cut = 2 * Packed::COLUMNS;
        let [mut first, mut last] = TileMut::new(&mut parts, n).split_columns(cut);
        run(unit, k, left, &packed, 0, &mut first).unwrap();
        run(unit, k, left, &packed, cut, &mut last).unwrap();
        assert_eq!(parts, whole);
    }
}

/// Infinities and what is no number come out as such, and numbers are rounded to even.
#[test]
fn numbers_are_rounded_to_the_nearest() {
    let of = |bits: u32| f32::from_bits(bits);
    let rows = [
        (of(0x3f80_8000), of(0x3f80_0000)),
        (of(0x3f81_8000), of(0x3f82_0000)),
        (of(0x3f80_8001), of(0x3f81_0000)),
        (f32::NEG_INFINITY, f32::NEG_INFINITY),
        (f32::NAN, f32::NAN),
    ];
    for (number, want) in rows {
        for (a, b) in [(number, 1.0), (1.0, number)] {
            let packed =
                PackedBf16::new(Matrix { data: &[b], at: strides(0, 1, 1) }, 1, 1).unwrap();
            let left = Matrix { data: &[a][..], at: strides(0, 1, 1) };
            for unit in units().filter(|unit| unit.is_some() || a == 1.0) {
                let mut c = [7.0];
                run(unit, 1, left, &packed, 0, &mut TileMut::new(&mut c, 1)).unwrap();
                assert!(c[0] == want || c[0].is_nan() && want.is_nan(), "{a} {b}: {c:?}");
            }
        }
    }
}

#[test]
fn what_does_not_fit_is_refused() {
    let data = numbers(6000, 0);
    let matrix = |row: isize| Matrix { data: &data[..], at: strides(0, row, 1) };
    assert!(matches!(PackedBf16::new(matrix(100), 61, 100), Err(Error::OutOfBounds { .. })));
    assert!(matches!(PackedBf16::new(matrix(100), usize::MAX, 2), Err(Error::OutOfBounds { .. })));
    let packed = PackedBf16::new(matrix(100), 60, 100).unwrap();
    for unit in units() {
        let run = |k: usize, column: usize, n: usize| {
            let mut c = vec![0.0; 3 * n];
            run(unit, k, matrix(60), &packed, column, &mut TileMut::new(&mut c, n))
        };
        assert_eq!(run(60, 48, 52), Ok(()));
        assert!(matches!(run(59, 0, 100), Err(Error::Mismatch { .. })));
        assert!(matches!(run(60, 47, 53), Err(Error::Mismatch { .. })));
        let mut c = vec![0.0; 300];
        let c = &mut TileMut::new(&mut c, 100);
        let without = multiply_by(unit, 60, matrix(60), &packed, 0, c, &mut []);
        assert!(matches!(without, Err(Error::Mismatch { .. })));
    }
}
