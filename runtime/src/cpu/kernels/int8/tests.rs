//! Matmuls of bytes beside sums modulo 2³², on every vector unit that the machine has.

use super::chain::KernelStep;
use super::images::multiply_windows_with;
use super::units::Unit;
use super::{
    Elements, Finish, Images, Left, Line, MatMul, Operand, PackedIntegers, QUOTIENT_LIMIT, Results,
    Step, To, is_divisor, multiply_with,
};
use crate::cpu::kernels::conv::{Conv, Geometry};
use crate::cpu::kernels::matrix::{Matrix, Strides};
use crate::cpu::kernels::table::Table;
use crate::cpu::kernels::tile::TileMut;
use crate::error::Error;
use bytemuck::Zeroable;

/// Integers from `low` to `high`.
fn numbers(len: usize, seed: usize, [low, high]: [i32; 2]) -> Vec<i32> {
    let width = (i64::from(high) - i64::from(low) + 1) as usize;
    (0..len).map(|i| low.wrapping_add(((i + seed) * 7919 % 104_729 % width) as i32)).collect()
}

fn strides(offset: usize, row: isize, column: isize) -> Strides<'static> {
    Strides { offset, batch: &[], row, column }
}

fn element(x: &[i32], at: Strides<'_>, i: usize, j: usize) -> i32 {
    x[(at.offset as isize + i as isize * at.row + j as isize * at.column) as usize]
}

/// Ranges of elements of A and B, and whether the elements of B fit into bytes.
const RANGES: [([i32; 2], [i32; 2], bool); 10] = [
    ([0, 255], [-64, 64], true),
    ([0, 255], [-128, 127], true),
    ([0, 255], [-127, 127], true),
    ([-128, 127], [-128, 127], true),
    ([-255, 0], [0, 255], true),
    ([-3, 200], [-255, -100], true),
    ([i32::MAX - 255, i32::MAX], [i32::MIN, i32::MIN + 255], true),
    ([0, 256], [-128, 127], true),
    ([0, 255], [-128, 128], false),
    ([i32::MIN, i32::MAX], [i32::MIN, i32::MAX], false),
];

fn check(unit: Unit, [m, n, k]: [usize; 3], a_at: Strides<'_>, b_at: Strides<'_>) {
    for (of_a, of_b, fits) in RANGES {
        let a = numbers(9 + (k + 2) * m, 3, of_a);
        let b = numbers(9 + (k + 1) * (n + 3), 5, of_b);
        let packed = PackedIntegers::new(Matrix { data: &b, at: b_at }, k, n).unwrap();
        let narrow = matches!(packed.elements, Elements::Bytes { .. });
        assert!(narrow || !fits, "{of_b:?} are bytes");
        assert!(packed.held_bytes() <= PackedIntegers::bytes(k, n).unwrap() as u64);
        let mut c = vec![7; m * n];
        multiply_with(unit, k, Matrix { data: &a, at: a_at }, &packed, &mut c).unwrap();
        for (place, &got) in c.iter().enumerate() {
            let terms = (0..k).map(|p| {
                element(&a, a_at, place / n, p).wrapping_mul(element(&b, b_at, p, place % n))
            });
            let want = terms.fold(0, i32::wrapping_add);
            assert_eq!(got, want, "{unit:?} {m}x{n}x{k} at {place} of {of_a:?} and {of_b:?}");
        }
    }
}

/// Rows and columns in every order, at every remainder of lines, panels and blocks of rows.
#[test]
fn matmuls_are_exact_at_every_remainder() {
    for unit in Unit::all() {
        for (m, k) in
            [(1, 1), (1, 300), (2, 7), (3, 64), (5, 9), (11, 33), (97, 3), (6, 0), (2, 1031)]
        {
            for n in [1, 15, 17, 32, 47, 49, 130] {
                let (rows, cols, depth) = (m as isize, n as isize, k as isize);
                check(unit, [m, n, k], strides(3, depth + 2, 1), strides(0, cols, 1));
                check(unit, [m, n, k], strides(1, 1, rows), strides(5, 1, depth + 1));
                let last = (k.max(1) - 1) * n + n - 1;
                check(unit, [m, n, k], strides(2, 0, 1), strides(last, -cols, -1));
            }
        }
    }
}

/// Terms as large as they can be, of either sign: sums of two do not fit into 16 bits where -128 is among them.
#[test]
fn the_largest_terms_are_exact() {
    for (unit, least) in Unit::all().flat_map(|unit| [-127, -128].map(|least| (unit, least))) {
        let (m, n, k) = (9, 5, 70);
        let a: Vec<i32> = (0..m * k).map(|i| [0, 255, 128, 127][i / k % 4]).collect();
        let b: Vec<i32> = (0..k * n).map(|i| [least, 127, 0][i % n % 3]).collect();
        let at = |row: usize| strides(0, row as isize, 1);
        let packed = PackedIntegers::new(Matrix { data: &b, at: at(n) }, k, n).unwrap();
        let mut c = vec![7; m * n];
        multiply_with(unit, k, Matrix { data: &a, at: at(k) }, &packed, &mut c).unwrap();
        for (place, &got) in c.iter().enumerate() {
            let want = a[place / n * k] * b[place % n] * k as i32;
            assert_eq!(got, want, "{unit:?} at {place}, {least}");
        }
    }
}

/// The largest pairs of neighbours whose sums of two products 16 bits hold, and the least that do not fit, are exact alike.
#[test]
fn pairs_are_exact_up_to_the_largest_that_fit_and_beyond() {
    let pairs = [[127, 1], [64, 64], [-128, 0], [-127, -1], [-128, 127], [127, 2], [-128, -1]];
    for (unit, pair) in Unit::all().flat_map(|unit| pairs.map(|pair| (unit, pair))) {
        let (m, n, k) = (3, 16, 8);
        let (a, b) = (vec![255; m * k], (0..k * n).map(|i| pair[i / n % 2]).collect::<Vec<i32>>());
        let at = |row: usize| strides(0, row as isize, 1);
        let packed = PackedIntegers::new(Matrix { data: &b, at: at(n) }, k, n).unwrap();
        let fits = matches!(packed.elements, Elements::Bytes { fits: true, .. });
        assert_eq!(fits, ![[127, 2], [-128, -1]].contains(&pair), "{pair:?}");
        let mut c = vec![7; m * n];
        multiply_with(unit, k, Matrix { data: &a, at: at(k) }, &packed, &mut c).unwrap();
        let want = 255 * (pair[0] + pair[1]) * k as i32 / 2;
        assert_eq!(c, vec![want; m * n], "{unit:?} {pair:?}");
    }
}

/// Convolutions whose channels are not innermost, with a border, channels that are no whole words, and filters with -128, without
/// it, and moved.
#[test]
fn windows_are_multiplied_exactly() {
    const SIZES: [usize; 2] = [6, 9];
    let (channels, filters, plane) = (5, 19, SIZES[0] * SIZES[1]);
    let geometry = Geometry {
        inner: &SIZES,
        outer: &SIZES,
        kernel: &[3, 3],
        strides: &[1, 1],
        dilations: &[1, 1],
        before: &[1, 1],
    };
    let conv = Conv { images: 1, groups: 1, channels, filters, geometry };
    let x: Vec<u8> = numbers(channels * plane, 3, [0, 255]).into_iter().map(|x| x as u8).collect();
    let bias = numbers(filters, 7, [-500, 500]);
    let zeros = [(0, false), (128, false), (255, false), (-128, true), (3, true)];
    let of_filters = [[-64, 64], [-127, 127], [-128, 127], [0, 254], [0, 255]];
    for (unit, range, (zero, signed)) in Unit::all().flat_map(|unit| {
        of_filters
            .into_iter()
            .flat_map(move |range| zeros.into_iter().map(move |zero| (unit, range, zero)))
    }) {
        let mut w = numbers(filters * channels * 9, 5, range);
        (w[0], w[1]) = (range[0], range[1]);
        let packed =
            PackedIntegers::of_filters(&w, (0, channels as isize * 9), [filters, channels, 9]);
        let packed = packed.unwrap();
        let images = Images::new(&x, &conv, zero, signed).unwrap().unwrap();
        let mut lines = vec![Line::zeroed(); images.lines()];
        let mut sums = vec![7; filters * plane];
        let all = (0..filters, 0..SIZES[0]);
        multiply_windows_with(unit, (&images, 0), &packed, all, Some(&bias), &mut lines, &mut sums)
            .unwrap();
        for (place, &got) in sums.iter().enumerate() {
            let (filter, [row, column]) =
                (place / plane, [place % plane / SIZES[1], place % SIZES[1]]);
            let mut want = bias[filter];
            for (term, w) in w[filter * channels * 9..][..channels * 9].iter().enumerate() {
                let [row, column] = [row + term % 9 / 3, column + term % 3];
                if (1..=SIZES[0]).contains(&row) && (1..=SIZES[1]).contains(&column) {
                    let x = x[term / 9 * plane + (row - 1) * SIZES[1] + column - 1];
                    let x = if signed { i32::from(x as i8) } else { i32::from(x) };
                    want += (x - zero) * w;
                }
            }
            assert_eq!(got, want, "{unit:?} at {place} of {range:?} less {zero}");
        }
    }
}

#[test]
fn large_matmuls_are_spread_and_exact() {
    let unit = Unit::best();
    check(unit, [70, 400, 200], strides(0, 200, 1), strides(0, 400, 1));
}

#[test]
fn what_does_not_fit_is_refused() {
    let data = [1; 12];
    let matrix = |row, column| Matrix { data: &data[..], at: strides(0, row, column) };
    let packed = PackedIntegers::new(matrix(4, 1), 3, 4).unwrap();
    let mut c = [0; 8];
    let result = multiply_with(Unit::Any, 2, matrix(3, 1), &packed, &mut c);
    assert!(matches!(result, Err(Error::Mismatch { .. })));
    let result = multiply_with(Unit::Any, 3, matrix(10, 1), &packed, &mut c);
    assert!(matches!(result, Err(Error::OutOfBounds { .. })));
    let result = multiply_with(Unit::Any, 3, matrix(3, 1), &packed, &mut c[..7]);
    assert!(matches!(result, Err(Error::Mismatch { .. })));
    assert!(matches!(PackedIntegers::new(matrix(5, 1), 3, 4), Err(Error::OutOfBounds { .. })));
}

/// A step on a number, and what is aside; `y` reads an operand.
fn step(
    step: &KernelStep<'_>,
    (x, aside): (f32, f32),
    y: impl Fn(Operand<'_>) -> f32,
) -> (f32, f32) {
    match *step {
        Step::Add(b) => (x + y(b), aside),
        Step::Sub(b) => (x - y(b), aside),
        Step::Mul(b) => (x * y(b), aside),
        Step::Div(b) => (x / y(b), aside),
        Step::Clamp { low, .. } if x < low => (low, aside),
        Step::Clamp { high, .. } if x > high => (high, aside),
        Step::Clamp { .. } => (x, aside),
        Step::Within { low, high } => (x.max(low).min(high), aside),
        Step::Round => (x.round_ties_even(), aside),
        Step::Quotient(by) => ((x / by).round_ties_even(), aside),
        Step::Number => (if x.is_nan() { 0.0 } else { x }, aside),
        Step::Lookup(table) => (table.reals()[usize::from(x as i32 as u8)], aside),
        Step::Aside(b) => (y(b), x),
        Step::AddAside => (aside + x, aside),
        Step::SubAside => (aside - x, aside),
        Step::MulAside => (aside * x, aside),
    }
}

/// Finishes sums by every step with every operand, on a part of the columns, and compares with those steps one by one.
fn check_finished(unit: Unit, [m, n, k]: [usize; 3], first: usize, [least, most]: [i32; 2]) {
    let (a, mut b) = (numbers(m * k, 3, [-9, 240]), numbers(k * n, 5, [-most, most]));
    b[k * n / 2] = least;
    let packed =
        PackedIntegers::new(Matrix { data: &b, at: strides(0, n as isize, 1) }, k, n).unwrap();
    let left = Matrix { data: &a, at: strides(0, k as isize, 1) };
    let left = Left::new(k, left, m).unwrap().unwrap();
    let bias = numbers(n, 7, [-5000, 5000]);
    let reals = |len, seed, by: f32| -> Vec<f32> {
        numbers(len, seed, [-500, 500]).into_iter().map(|x| x as f32 * by).collect()
    };
    let (mut scales, addends, factors) =
        (reals(n, 1, 1e-5), reals(n, 2, 0.1), reals(m * n, 3, 0.01));
    scales[n / 2] = f32::NAN;
    let bytes: Vec<u8> = numbers(m * n, 11, [0, 255]).into_iter().map(|x| x as u8).collect();
    // Real numbers, bytes with a sign, and bytes without one.
    let reals = Table::new(std::array::from_fn(|at| (at as f32 - 99.0) * 0.7));
    let [signed, unsigned] = [-128.0, 0.0]
        .map(|least| Table::new(std::array::from_fn(|at| (at * 157 % 256) as f32 + least)));
    assert!(!reals.is_of_bytes() && signed.is_of_bytes() && unsigned.is_of_bytes());
    let steps = [
        Step::Mul(Operand::Columns(&scales)),
        Step::Number,
        Step::Clamp { low: -40.0, high: f32::INFINITY },
        Step::Div(Operand::Same(0.37)),
        Step::Round,
        Step::Aside(Operand::Bytes(&bytes)),
        Step::Sub(Operand::Same(11.0)),
        Step::AddAside,
        Step::Mul(Operand::Columns(&scales)),
        Step::Within { low: -3.0, high: 9.5 },
        Step::Aside(Operand::SignedBytes(&bytes)),
        Step::Mul(Operand::Same(0.75)),
        Step::SubAside,
        Step::Add(Operand::Columns(&addends)),
        Step::Aside(Operand::Reals(&factors)),
        Step::MulAside,
        Step::Round,
        Step::Clamp { low: -128.0, high: 127.0 },
        Step::Lookup(&reals),
        Step::Round,
        Step::Clamp { low: 0.0, high: 255.0 },
        Step::Lookup(&signed),
        Step::Lookup(&unsigned),
    ];
    let width = n - first;
    let (mut whole, mut single) = (vec![7_u8; m * width], vec![7.0_f32; m * width]);
    let (of_bytes, of_reals) = (TileMut::new(&mut whole, width), TileMut::new(&mut single, width));
    for to in [Results::Bytes(of_bytes), Results::Reals(of_reals)] {
        let (first, columns) = ([0, first], n);
        let to = To::Finished(Finish { bias: Some(&bias), steps: &steps, first, columns, to });
        let (left, right, column) = (left.rows(), packed.right().unwrap(), first[1]);
        packed.unit(unit).run(MatMul { left, right, row: 0, column, columns: n, to });
    }
    for (place, (&byte, &real)) in whole.iter().zip(&single).enumerate() {
        let (row, column) = (place / width, first + place % width);
        let terms = (0..k).map(|p| a[row * k + p] * b[p * n + column]);
        let sum = terms.sum::<i32>() + bias[column];
        let at = row * n + column;
        let y = |y: Operand<'_>| match y {
            Operand::Same(y) => y,
            Operand::Columns(y) => y[column],
            Operand::Reals(y) => y[at],
            Operand::Bytes(y) => y[at].into(),
            Operand::SignedBytes(y) => (y[at] as i8).into(),
        };
        let (want, _) = steps.iter().fold((sum as f32, 0.0), |x, own| step(own, x, y));
        assert_eq!(real.to_bits(), want.to_bits(), "{unit:?} {m}x{n}x{k} at {place}");
        assert_eq!(byte, want as i32 as u8, "{unit:?} {m}x{n}x{k} at {place}");
    }
}

#[test]
fn sums_are_finished_as_step_by_step() {
    let ranges = [[-127, 127], [-128, 127], [-64, 63]];
    for (unit, range) in Unit::all().flat_map(|unit| ranges.map(|range| (unit, range))) {
        for sizes in [[1, 1, 3], [7, 50, 40], [13, 33, 8], [35, 112, 65], [64, 16, 4]] {
            check_finished(unit, sizes, 0, range);
        }
        check_finished(unit, [19, 100, 20], 48, range);
    }
}

/// A byte times a small number times one scale, divided by another: many quotients lie in the middle between whole numbers.
#[test]
fn quotients_are_rounded_as_those_of_divisions() {
    const ROWS: usize = 256;
    const COLUMNS: usize = 64;
    let a: Vec<i32> = (0..ROWS as i32).collect();
    let b: Vec<i32> = (-32..32).collect();
    let packed = PackedIntegers::new(Matrix { data: &b, at: strides(0, 64, 1) }, 1, COLUMNS);
    let packed = packed.unwrap();
    let left = Left::new(1, Matrix { data: &a, at: strides(0, 1, 1) }, ROWS).unwrap().unwrap();
    let random = numbers(200, 3, [1, 100_000]);
    let random = random.chunks(2).map(|pair| (pair[0] as f32 * 1e-3, pair[1] as f32 * 1e-3));
    // By a divisor beside twice the scale, quotients of odd numbers lie next to the middle.
    let random = random.flat_map(|(scale, by)| {
        let twice = 2.0 * scale;
        [by, twice.next_down(), twice.next_up()].map(|by| (scale, by))
    });
    let random = random.filter(|(scale, by)| 8160.0 * scale / by < QUOTIENT_LIMIT);
    let middles = [(1.0, 2.0), (0.5, 1.0), (0.3, 0.6), (0.7, -1.4), (1e-6, 2e-6), (3e9, 2e9)];
    for (unit, (scale, by)) in Unit::all()
        .flat_map(|unit| middles.into_iter().chain(random.clone()).map(move |of| (unit, of)))
    {
        let steps = [Step::Mul(Operand::Same(scale)), Step::Quotient(by)];
        let mut quotients = vec![7.0_f32; ROWS * COLUMNS];
        let to = Results::Reals(TileMut::new(&mut quotients, COLUMNS));
        let to =
            To::Finished(Finish { bias: None, steps: &steps, first: [0; 2], columns: COLUMNS, to });
        let (left, right) = (left.rows(), packed.right().unwrap());
        let unit = packed.unit(unit);
        unit.run(MatMul { left, right, row: 0, column: 0, columns: COLUMNS, to });
        for (place, quotient) in quotients.into_iter().enumerate() {
            let product = (a[place / COLUMNS] * b[place % COLUMNS]) as f32;
            let want = (product * scale / by).round_ties_even();
            assert!(
                want.abs() < QUOTIENT_LIMIT && is_divisor(by),
                "{scale} {by} are within the bounds"
            );
            assert_eq!(quotient, want, "{unit:?}: {product} * {scale} / {by}");
        }
    }
}
