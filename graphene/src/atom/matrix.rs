//! Matrices of 8×8 elements of 16 bits between registers and shared memory, and matmuls by one warp.

use super::asm::{asm, group, mma};
use super::moves::same;
use super::{A, Atom, B, Code, D, Fits, Progress, Site, Step, Tried, Warp, When, given};
use crate::fragment::{
    Fragment, MATRIX_8X8, MATRIX_8X8_TRANS, MMA_8X8_B, MMA_8X8_B_TF32, MMA_16X8_A_TF32, MMA_16X8_B,
    MMA_16X8_C, MMA_16X16_A,
};
use crate::{Feature, Scalar};

#[rustfmt::skip]
pub(super) const ATOMS: &[Atom] = &[
    load("ldmatrix.x4", "[2,2].[2:1].fp16|bf16.RF <- Move<<<[32]>>>([8:1].fp16|bf16.SH)", rows),
    load("ldmatrix.x2", "[2].[2:1].fp16|bf16.RF <- Move<<<[32]>>>([8:1].fp16|bf16.SH)", rows),
    load("ldmatrix.x1", "[2:1].fp16|bf16.RF <- Move<<<[32]>>>([8:1].fp16|bf16.SH)", rows),
    load("ldmatrix.x4.trans", "[2,2].[2:1].fp16|bf16.RF <- Move<<<[32]>>>([8:1].fp16|bf16.SH)", columns),
    Atom::new("stmatrix.x4", "[8:1].fp16|bf16.SH <- Move<<<[32]>>>([2,2].[2:1].fp16|bf16.RF)", stmatrix, |_, code| {
        let mut ins = vec![("r", code.address(D, &[0]))];
        ins.extend(FOUR.iter().map(|&[m, n]| ("r", code.word(A, &[m, n, 0]))));
        let text = "stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0],";
        asm(&format!("{text} {};", group(1, 4)), &[], &ins)
    })
    .needs(&[Feature::Stmatrix]).align(&[16, 4]).when(same),
    matmul("mma.m16n8k16", &[Feature::MmaK16],
        "[2].[2].fp32.RF <- MatMul+=<<<[32]>>>([2,2].[2:1].fp16.RF, [2].[2:1].fp16.RF)"),
    matmul("mma.m16n8k16.bf16", &[Feature::MmaBf16],
        "[2].[2].fp32.RF <- MatMul+=<<<[32]>>>([2,2].[2:1].bf16.RF, [2].[2:1].bf16.RF)"),
    matmul("mma.m16n8k8", &[Feature::MmaK8],
        "[2].[2].fp32.RF <- MatMul+=<<<[32]>>>([2].[2:1].fp16.RF, [2:1].fp16.RF)"),
    matmul("mma.m16n8k8.tf32", &[Feature::MmaTf32],
        "[2].[2].fp32.RF <- MatMul+=<<<[32]>>>([2,2].fp32.RF, [2].fp32.RF)"),
];

/// The four matrices of `[2,2]`, in the order in which lanes give their rows' addresses.
const FOUR: [[i64; 2]; 4] = [[0, 0], [0, 1], [1, 0], [1, 1]];

const fn load(name: &'static str, pattern: &'static str, when: When) -> Atom {
    let text = |site: &Site<'_>, code: &Code<'_>| {
        let matrices = matrices(site);
        let count = matrices.len();
        let word = |matrix: &Vec<i64>| code.word(D, &[matrix.as_slice(), &[0]].concat());
        let outs: Vec<_> = matrices.iter().map(|matrix| ("=r", word(matrix))).collect();
        let trans = if pairs_of_columns(site) { ".trans" } else { "" };
        let text = format!(
            "ldmatrix.sync.aligned.m8n8.x{count}{trans}.shared.b16 {}, [%{count}];",
            group(0, count)
        );
        asm(&text, &outs, &[("r", code.address(A, &[0]))])
    };
    let atom = Atom::new(name, pattern, ldmatrix, text).needs(&[Feature::Ldmatrix]);
    atom.align(&[4, 16]).when(when)
}

/// A matmul by one warp; the pattern says how deep it is.
const fn matmul(name: &'static str, needs: &'static [Feature], pattern: &'static str) -> Atom {
    let text = |site: &Site<'_>, code: &Code<'_>| {
        let (scalar, eights) = (site.operand(A).scalar, eights(site));
        // The registers of A run down its rows first.
        let (a, b): (&[&[i64]], &[&[i64]]) = match (scalar, eights) {
            (Scalar::F32, _) => (&[&[0, 0], &[1, 0], &[0, 1], &[1, 1]], &[&[0], &[1]]),
            (_, 1) => (&[&[0, 0], &[1, 0]], &[&[0]]),
            _ => (&[&[0, 0, 0], &[1, 0, 0], &[0, 1, 0], &[1, 1, 0]], &[&[0, 0], &[1, 0]]),
        };
        let words = |of, at: &[&[i64]]| at.iter().map(|at| code.word(of, at)).collect();
        let t = mma_name(scalar);
        let name = format!("m16n8k{}.row.col.f32.{t}.{t}.f32", 8 * eights);
        let sums = FOUR.map(|at| code.element(D, &at)).to_vec();
        mma(&name, sums, words(A, a), words(B, b))
    };
    Atom::new(name, pattern, meaning, text).needs(needs).align(&[4, 4, 4])
}

/// The name of an operand's type in matmuls of a warp, or of a warpgroup.
pub(super) fn mma_name(scalar: Scalar) -> &'static str {
    match scalar {
        Scalar::F16 => "f16",
        Scalar::F32 => "tf32",
        _ => "bf16",
    }
}

/// How many eights a matmul is deep: a depth of one has no dimension in the pattern.
fn eights(site: &Site<'_>) -> usize {
    site.dims(B).len()
}

/// A lane's two values of a matrix are neighbours in a row: `[…].[1,2]`.
fn rows(site: &Site<'_>) -> Fits {
    given(!pairs_of_columns(site), "a lane's pairs are columns").and(same(site))
}

/// A lane's two values of a matrix are neighbours in a column: `[…].[2,1]`.
fn columns(site: &Site<'_>) -> Fits {
    given(pairs_of_columns(site), "a lane's pairs are rows").and(same(site))
}

fn pairs_of_columns(site: &Site<'_>) -> bool {
    let level = site.operand(D).view.levels().last();
    level.is_some_and(|level| level.rank() == 2 && level.modes()[1].size().is(1))
}

fn matrices(site: &Site<'_>) -> Vec<Vec<i64>> {
    match site.dims(D).len() {
        1 => vec![vec![]],
        2 => vec![vec![0], vec![1]],
        _ => FOUR.iter().map(|matrix| matrix.to_vec()).collect(),
    }
}

/// The matrices in the order of the elements of `[2,2]`, the first dimension fastest.
const BY_ELEMENT: [usize; 4] = [0, 2, 1, 3];

/// Row r of matrix i lies where lane 8i + r points.
fn ldmatrix(site: &Site<'_>, warp: &mut dyn Warp) -> Step {
    let of = if pairs_of_columns(site) { &MATRIX_8X8_TRANS } else { &MATRIX_8X8 };
    let count = matrices(site).len();
    let order = if count == 4 { &BY_ELEMENT[..] } else { &[0, 1][..count] };
    let (mut rows, mut values) = (Vec::with_capacity(8 * count), Vec::new());
    for lane in 0..8 * count {
        warp.read_all(lane, A, &mut values)?;
        rows.push(<[f64; 8]>::try_from(&values[..]).expect("the pattern has rows of eight"));
    }
    for lane in 0..32 {
        values.clear();
        for &[row, column] in of.places(lane) {
            values.extend(order.iter().map(|matrix| rows[8 * matrix + row][column]));
        }
        warp.write_all(lane, D, &values)?;
    }
    Ok(Progress::Done)
}

/// The reverse of `ldmatrix`.
fn stmatrix(_: &Site<'_>, warp: &mut dyn Warp) -> Step {
    let (mut rows, mut values) = ([[0.0; 8]; 32], Vec::new());
    for lane in 0..32 {
        warp.read_all(lane, A, &mut values)?;
        for (&[row, column], values) in MATRIX_8X8.places(lane).iter().zip(values.chunks(4)) {
            for (matrix, &value) in BY_ELEMENT.iter().zip(values) {
                rows[8 * matrix + row][column] = value;
            }
        }
    }
    rows.iter().enumerate().try_for_each(|(lane, row)| warp.write_all(lane, D, row))?;
    Ok(Progress::Done)
}

fn meaning(site: &Site<'_>, warp: &mut dyn Warp) -> Step {
    let (a, b) = match (site.operand(A).scalar, eights(site)) {
        (Scalar::F32, _) => (&MMA_16X8_A_TF32, &MMA_8X8_B_TF32),
        (_, 1) => (&MMA_16X8_C, &MMA_8X8_B),
        _ => (&MMA_16X16_A, &MMA_16X8_B),
    };
    let (lanes, seen) = ((0..32).map(|lane| (lane, lane)).collect::<Vec<_>>(), seen(site));
    let (a, b) = (gather(warp, A, &lanes, a, seen)?, gather(warp, B, &lanes, b, seen)?);
    accumulate(warp, &lanes, &MMA_16X8_C, [&a, &b], false)
}

/// What matmuls see of an operand's elements.
pub(super) fn seen(site: &Site<'_>) -> fn(f64) -> f64 {
    if site.operand(B).scalar == Scalar::F32 { cut_to_tf32 } else { |x| x }
}

/// The bits of single precision that TF32 has: what its instructions see of an operand (PTX, `mma` and `wgmma`).
pub fn cut_to_tf32(x: f64) -> f64 {
    f64::from(f32::from_bits((x as f32).to_bits() & !0x1fff))
}

/// An operand of a matmul. What a sum runs over, a row of A or a column of B, is contiguous.
pub(super) struct Matrix {
    strides: [usize; 2],
    values: Vec<f64>,
}

impl Matrix {
    pub(super) fn zeros(operand: usize, sizes: [usize; 2]) -> Matrix {
        Matrix::of(operand, sizes, vec![0.0; sizes[0] * sizes[1]])
    }

    /// A matrix whose values stand in the order in which it keeps them.
    pub(super) fn of(operand: usize, [rows, columns]: [usize; 2], values: Vec<f64>) -> Matrix {
        let strides = if operand == A { [columns, 1] } else { [1, rows] };
        Matrix { strides, values }
    }

    pub(super) fn set(&mut self, [row, column]: [usize; 2], value: f64) {
        self.values[row * self.strides[0] + column * self.strides[1]] = value;
    }
}

/// The matrix that lanes hold as these threads of a fragment, as it is seen. The rest is 0.
pub(super) fn gather(
    warp: &mut dyn Warp,
    operand: usize,
    lanes: &[(usize, usize)],
    of: &Fragment,
    seen: fn(f64) -> f64,
) -> Tried<Matrix> {
    let (mut matrix, mut values) = (Matrix::zeros(operand, of.shape()), Vec::new());
    for &(lane, thread) in lanes {
        warp.read_all(lane, operand, &mut values)?;
        for (&place, &value) in of.places(thread).iter().zip(&values) {
            matrix.set(place, seen(value));
        }
    }
    Ok(matrix)
}

/// Adds A·B to what lanes hold as threads of a fragment, or `sets` it.
pub(super) fn accumulate(
    warp: &mut dyn Warp,
    lanes: &[(usize, usize)],
    of: &Fragment,
    [a, b]: [&Matrix; 2],
    sets: bool,
) -> Step {
    let depth = a.strides[0];
    let mut values = Vec::new();
    for &(lane, thread) in lanes {
        let places = of.places(thread);
        if sets {
            values = vec![0.0; places.len()];
        } else {
            warp.read_all(lane, D, &mut values)?;
        }
        for (&[row, column], value) in places.iter().zip(&mut values) {
            let a = &a.values[row * depth..][..depth];
            let b = &b.values[column * depth..][..depth];
            *value += a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
        }
        warp.write_all(lane, D, &values)?;
    }
    Ok(Progress::Done)
}
