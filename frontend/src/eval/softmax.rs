//! Softmax in 16-bit types, which is rounded after each of its steps.
//!
//! ONNX defines Softmax by a function body in the type of its operand: ReduceMax, Sub, Exp, ReduceSum, Div. In `f32`
//! and `f64` the order of rounding does not show within any sensible tolerance, so all is computed at once there. In
//! 16 bits it does: what rounds only at the end differs by units in the last place from what a chain of operators gives.

use crate::dtype::DType;
use half::{bf16, f16};
use std::sync::LazyLock;

/// The terms of a sum in `bf16` that are added one after the other.
const RUN: usize = 8;

/// The bits of a value but for its sign.
const MAGNITUDE: u16 = 0x7fff;

/// e^-|x| of all values of `f16` by their magnitude, rounded: fewer than the elements of most operands.
static EXP_F16: LazyLock<Vec<f32>> = LazyLock::new(|| {
    let exp = |x: u16| f16::from_f64(libm::exp(-f16::from_bits(x).to_f64())).to_f32();
    (0..=MAGNITUDE).map(exp).collect()
});

/// The same of `bf16`.
static EXP_BF16: LazyLock<Vec<f32>> = LazyLock::new(|| {
    let exp = |x: u16| bf16::from_f64(libm::exp(-bf16::from_bits(x).to_f64())).to_f32();
    (0..=MAGNITUDE).map(exp).collect()
});

/// A real type of 16 bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HalfType {
    /// `f16`
    F16,
    /// `bf16`
    Bf16,
}

impl HalfType {
    /// The type of these elements, if they are real and of 16 bits.
    pub fn of(dtype: DType) -> Option<Self> {
        [(DType::F16, Self::F16), (DType::BF16, Self::Bf16)]
            .into_iter()
            .find_map(|(of, half)| (of == dtype).then_some(half))
    }
}

/// The softmax of a row in place. All elements are values of the type, before and after, and the result of each step
/// of ONNX's function body is rounded to it. A row of -∞ becomes NaN.
///
/// The sum, as where ONNX's expected values are from: in `f16` it is added up in `f32` and rounded once; past the
/// largest `f16` it is infinite, as ReduceSum is. In `bf16` every addition is rounded; so that a long row does not
/// stall, where a term is less than half a unit of what is there, the sum is pairwise: runs of at most eight terms in
/// order, and sums of half precision above.
pub fn softmax_by_steps(half: HalfType, row: &mut [f32]) {
    // What is given to Exp is at most zero, or NaN: its sign says nothing.
    let largest = row.iter().fold(f32::NEG_INFINITY, |a, &b| a.max(b));
    match half {
        HalfType::F16 => {
            let exp: &[f32] = &EXP_F16;
            for x in row.iter_mut() {
                *x = exp[usize::from(f16::from_f32(*x - largest).to_bits() & MAGNITUDE)];
            }
            let sum = f16::from_f32(pairwise_sum(row, |sum| sum)).to_f32();
            row.iter_mut().for_each(|x| *x = f16::from_f32(*x / sum).to_f32());
        }
        HalfType::Bf16 => {
            let exp: &[f32] = &EXP_BF16;
            for x in row.iter_mut() {
                *x = exp[usize::from(bf16::from_f32(*x - largest).to_bits() & MAGNITUDE)];
            }
            let sum = pairwise_sum(row, |sum| bf16::from_f32(sum).to_f32());
            row.iter_mut().for_each(|x| *x = bf16::from_f32(*x / sum).to_f32());
        }
    }
}

fn pairwise_sum(terms: &[f32], round: impl Fn(f32) -> f32 + Copy) -> f32 {
    if terms.len() <= RUN {
        return terms.iter().fold(0.0, |sum, term| round(sum + term));
    }
    let (a, b) = terms.split_at(terms.len() / 2);
    round(pairwise_sum(a, round) + pairwise_sum(b, round))
}
