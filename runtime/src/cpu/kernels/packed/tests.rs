//! Matmuls by packed matrices beside sums in double precision, on every vector unit that the machine has.

use super::{
    Epilogue, MatMul, Packed, Panels, in_rows, lanes, multiply, multiply_all, tile, width,
};
use crate::cpu::kernels::matrix::{Matrix, Strides};
use crate::cpu::kernels::pointwise::Unary;
use crate::cpu::kernels::simd::within;
use crate::cpu::kernels::tile::TileMut;
use crate::error::Error;
use pulp::{Scalar, Simd};

pub(in crate::cpu::kernels) fn numbers(len: usize, seed: usize) -> Vec<f32> {
    (0..len).map(|i| (((i + seed) * 7919) % 1013) as f32 * 2e-3 - 1.0).collect()
}

pub(in crate::cpu::kernels) fn strides(
    offset: usize,
    row: isize,
    column: isize,
) -> Strides<'static> {
    Strides { offset, batch: &[], row, column }
}

/// A and B of these rows, columns and depth: in rows, in columns, backwards, and one row over and over or rows apart.
pub(in crate::cpu::kernels) fn orders(
    m: usize,
    n: usize,
    k: usize,
) -> [(Strides<'static>, Strides<'static>); 4] {
    let (rows, cols, depth) = (m as isize, n as isize, k as isize);
    [
        (strides(3, depth + 2, 1), strides(0, cols, 1)),
        (strides(1, 1, rows), strides(5, 1, depth + 1)),
        (strides((m - 1) * k, -depth, 1), strides((k.max(1) - 1) * n + n - 1, -cols, -1)),
        (strides(2, 0, 1), strides(2, cols + 3, 1)),
    ]
}

fn element(x: &[f32], at: Strides<'_>, i: usize, j: usize) -> f64 {
    x[(at.offset as isize + i as isize * at.row + j as isize * at.column) as usize].into()
}

/// Element (i, j) of A·B, and of |A|·|B|.
fn wanted(a: (&[f32], Strides<'_>), b: (&[f32], Strides<'_>), [i, j, k]: [usize; 3]) -> (f64, f64) {
    let terms = (0..k).map(|k| element(a.0, a.1, i, k) * element(b.0, b.1, k, j));
    terms.fold((0.0, 0.0), |(sum, size), term| (sum + term, size + term.abs()))
}

/// Rows and columns of A and B in every order, at every remainder of vectors, panels and blocks of rows.
#[test]
fn matmuls_are_right_at_every_remainder() {
    let width = width(lanes());
    let columns =
        [1, lanes() - 1, lanes() + 1, 2 * lanes(), width - 1, width + 1, 2 * width, 64, 128, 130];
    for (m, k) in
        [(1, 1), (1, 300), (2, 7), (3, 64), (4, 5), (5, 769), (8, 33), (97, 3), (130, 20), (3, 0)]
    {
        for n in columns.into_iter().filter(|&n| n > 0) {
            for (a_at, b_at) in orders(m, n, k) {
                let a = numbers(8 + (k + 2) * m, 1);
                let b = numbers(8 + (k + 1) * (n + 3), 77);
                let packed = Packed::new(Matrix { data: &b, at: b_at }, k, n).unwrap();
                let mut c = vec![f32::NAN; m * n];
                let left = Matrix { data: &a[..], at: a_at };
                multiply(k, left, &packed, 0, &mut TileMut::new(&mut c, n), Epilogue::NONE)
                    .unwrap();
                let mut memory = vec![f32::NAN; Panels::len(k, n)];
                let near = Panels::near(Matrix { data: &b, at: b_at }, [k, n], &mut memory);
                let mut by_near = vec![f32::NAN; m * n];
                let mut tile = TileMut::new(&mut by_near, n);
                in_rows(k, m, left, |a| near.multiply(a, &mut tile)).unwrap();
                for (place, got) in c.iter().zip(&by_near).enumerate() {
                    let at = [place / n, place % n, k];
                    let (want, size) = wanted((&a, a_at), (&b, b_at), at);
                    let bound = 1e-7 * (k as f64 + 1.0) * size;
                    for got in [*got.0, *got.1] {
                        let off = (f64::from(got) - want).abs();
                        assert!(off <= bound, "{m}x{n}x{k} at {place}: {got} {want}");
                    }
                }
            }
        }
    }
}

/// What follows a matmul: whether a bias, whether a residual, and a function.
type Following = (bool, bool, Option<Unary>);

/// An epilogue of these parts: a bias of the columns, a residual of rows that are one element longer.
fn epilogue((bias, residual, function): Following, n: usize, beside: &[f32]) -> Epilogue<'_> {
    let bias = bias.then(|| &beside[1..]);
    Epilogue { bias, residual: residual.then(|| (&beside[2..], n + 1)), function }
}

/// A sum in double precision and its bound, with what follows: no function here is steeper than 1.13.
fn followed(
    (mut want, mut size): (f64, f64),
    (bias, residual, function): Following,
    beside: [f32; 2],
) -> (f64, f64) {
    for (_, x) in [bias, residual].into_iter().zip(beside).filter(|(has, _)| *has) {
        (want, size) = (want + f64::from(x), size + f64::from(x).abs());
    }
    match function {
        Some(Unary::Relu) => (want.max(0.0), size),
        Some(Unary::Gelu) => {
            (0.5 * want * (1.0 + libm::erf(want * std::f64::consts::FRAC_1_SQRT_2)), 1.2 * size)
        }
        _ => (want, size),
    }
}

/// Matmuls of few rows and of many by this vector unit's instructions, beside [`wanted`].
fn check_unit<S: Simd>(simd: S) {
    check_rows::<S, true>(simd, &[(1, 5, 1), (1, 30, 200), (2, 800, 257), (2, 2, 96), (1, 0, 50)]);
    check_rows::<S, false>(simd, &[(1, 5, 1), (7, 30, 61), (13, 800, 50), (4, 2, 96), (3, 0, 50)]);
    check_rows::<S, false>(simd, &[(5, 30, 61), (8, 9, 40), (11, 33, 96)]);
}

fn check_rows<S: Simd, const FEW: bool>(simd: S, sizes: &[(usize, usize, usize)]) {
    for &(m, k, n) in sizes {
        let (a, b_of) = (numbers(m * k, 3), numbers(k * n, 4));
        let (a_at, b_at) = (strides(0, k as isize, 1), strides(0, n as isize, 1));
        let right = Matrix { data: &b_of[..], at: b_at };
        let packed = Packed::with_lanes(right, k, n, S::F32_LANES).unwrap();
        let beside = numbers(m * (n + 1) + 2, 5);
        for following in [
            (false, false, None),
            (true, false, None),
            (false, true, Some(Unary::Relu)),
            (true, true, Some(Unary::Gelu)),
        ] {
            let mut c = vec![f32::NAN; m * n];
            let (tile, b) = (&mut TileMut::new(&mut c, n), packed.panels());
            let epilogue = epilogue(following, n, &beside);
            let deep = 0..k;
            let matmul = MatMul::<FEW> { a: &a, at: a_at, b, deep, column: 0, c: tile, epilogue };
            within(simd, matmul);
            for (place, &got) in c.iter().enumerate() {
                let [row, column] = [place / n, place % n];
                let sum = wanted((&a, a_at), (&b_of, b_at), [row, column, k]);
                let terms = [beside[1 + column], beside[2 + row * (n + 1) + column]];
                let (want, size) = followed(sum, following, terms);
                let bound = 1e-7 * (k as f64 + 5.0) * size;
                let off = (f64::from(got) - want).abs();
                assert!(off <= bound, "{m}x{n}x{k}, {following:?} at {place}: {got} {want}");
            }
        }
    }
}

#[test]
fn every_vector_unit_multiplies() {
    check_unit(Scalar::new());
    #[cfg(target_arch = "x86_64")]
    {
        if let Some(simd) = pulp::x86::V3::try_new() {
            check_unit(simd);
        }
        if let Some(simd) = pulp::x86::V4::try_new() {
            check_unit(simd);
        }
    }
}

#[test]
fn tiles_of_columns_make_the_whole() {
    let (m, k, n) = (19, 40, 5 * Packed::COLUMNS + 7);
    let (a, b) = (numbers(m * k, 3), numbers(k * n, 4));
    let left = Matrix { data: &a[..], at: strides(0, k as isize, 1) };
    let right = Matrix { data: &b[..], at: strides(0, n as isize, 1) };
    let packed = Packed::new(right, k, n).unwrap();
    let mut whole = vec![0.0; m * n];
    multiply(k, left, &packed, 0, &mut TileMut::new(&mut whole, n), Epilogue::NONE).unwrap();
    let mut parts = vec![0.0; m * n];
    let cut = 2 * Packed::COLUMNS;
    let [mut first, mut last] = TileMut::new(&mut parts, n).split_columns(cut);
    multiply(k, left, &packed, 0, &mut first, Epilogue::NONE).unwrap();
    multiply(k, left, &packed, cut, &mut last, Epilogue::NONE).unwrap();
    assert_eq!(parts, whole);
}

#[test]
fn what_does_not_fit_is_refused() {
    let data = numbers(6000, 0);
    let matrix = |row: isize| Matrix { data: &data[..], at: strides(0, row, 1) };
    assert!(matches!(Packed::new(matrix(100), 61, 100), Err(Error::OutOfBounds { .. })));
    assert!(matches!(Packed::new(matrix(100), usize::MAX, 2), Err(Error::OutOfBounds { .. })));
    let batch = Matrix { data: &data[..], at: Strides { batch: &[1], ..strides(0, 100, 1) } };
    assert!(matches!(Packed::new(batch, 2, 2), Err(Error::Mismatch { .. })));
    let packed = Packed::new(matrix(100), 60, 100).unwrap();
    let run = |k: usize, row: isize, column: usize, n: usize| {
        let mut c = vec![0.0; 3 * n];
        let c = &mut TileMut::new(&mut c, n);
        multiply(k, matrix(row), &packed, column, c, Epilogue::NONE)
    };
    assert_eq!(run(60, 60, 0, 100), Ok(()));
    assert_eq!(run(60, 60, 48, 52), Ok(()));
    assert!(matches!(run(59, 60, 0, 100), Err(Error::Mismatch { .. })));
    assert!(matches!(run(60, 60, 0, 101), Err(Error::OutOfBounds { .. })));
    assert!(matches!(run(60, 60, 47, 53), Err(Error::Mismatch { .. })));
    assert!(matches!(run(60, 60, 0, 47), Err(Error::Mismatch { .. })));
    assert!(matches!(run(60, 2990, 0, 100), Err(Error::OutOfBounds { .. })));
}

#[test]
fn threads_share_what_one_computes() {
    for (m, k, n) in [(200, 64, 100), (1, 2000, 700), (97, 300, 49)] {
        let (a, b) = (numbers(m * k, 3), numbers(k * n, 4));
        let left = Matrix { data: &a[..], at: strides(0, k as isize, 1) };
        let right = Matrix { data: &b[..], at: strides(0, n as isize, 1) };
        let packed = Packed::new(right, k, n).unwrap();
        let (mut alone, mut shared) = (vec![0.0; m * n], vec![1.0; m * n]);
        multiply(k, left, &packed, 0, &mut TileMut::new(&mut alone, n), Epilogue::NONE).unwrap();
        multiply_all(k, left, &packed, TileMut::new(&mut shared, n)).unwrap();
        assert_eq!(shared, alone);
    }
}

/// A tile that is stored is finished as sums are while they are stored.
#[test]
fn epilogues_of_stored_tiles_are_the_same() {
    let (m, k, n) = (5, 33, 70);
    let (a, b, beside) = (numbers(m * k, 3), numbers(k * n, 4), numbers(m * (n + 1) + 2, 5));
    let left = Matrix { data: &a[..], at: strides(0, k as isize, 1) };
    let right = Matrix { data: &b[..], at: strides(0, n as isize, 1) };
    let packed = Packed::new(right, k, n).unwrap();
    for following in
        [(true, false, Some(Unary::Gelu)), (true, false, None), (false, false, Some(Unary::Relu))]
    {
        let epilogue = epilogue(following, n, &beside);
        let (mut at_once, mut after) = (vec![0.0; m * n], vec![0.0; m * n]);
        multiply(k, left, &packed, 0, &mut TileMut::new(&mut at_once, n), epilogue).unwrap();
        let tile = &mut TileMut::new(&mut after, n);
        multiply(k, left, &packed, 0, tile, Epilogue::NONE).unwrap();
        epilogue.apply(tile);
        assert_eq!(at_once, after, "{following:?}");
    }
}

/// As many tiles as are wanted where there is work for them, of whole panels but for the last.
#[test]
fn tiles_are_as_many_as_are_wanted() {
    for (size, wanted, expected) in [
        ([1, 768], 1, (1, 768)),
        ([1, 768], 8, (1, 96)),
        ([128, 768], 8, (64, 192)),
        ([1024, 768], 8, (128, 768)),
        ([4096, 3072], 8, (128, 768)),
        ([96, 64], 64, (8, 64)),
        ([96, 3072], 256, (8, 192)),
        ([17, 50], 2, (16, 50)),
        ([0, 0], 4, (1, 1)),
    ] {
        assert_eq!(tile(size, wanted), expected, "{size:?} for {wanted}");
    }
}
