//! What is done with one row: in f32, and rounded once, but for softmax in 16 bits.

use crate::cpu::kernels::norm::{Affine, Norm, norm_row};
use crate::cpu::kernels::reduce::{Reduce, reduce_row};
use crate::cpu::kernels::softmax::{Softmax, softmax_row};
use graphene_frontend::dtype::DType;
use graphene_frontend::eval::{HalfType, softmax_by_steps};
use graphene_frontend::op::ReduceOp;

/// What is done with a row.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) enum Fold {
    /// To a row.
    Softmax { log: bool },
    /// To a row, its mean and the inverse of its deviation. Scale and bias are inputs of the body.
    Norm { rms: bool, epsilon: f32, scale: Option<usize>, bias: Option<usize> },
    /// To one number.
    Reduce(ReduceOp),
}

/// Softmax in place, of a row of this type.
pub(super) fn soften(log: bool, dtype: DType, row: &mut [f32]) {
    match (log, HalfType::of(dtype)) {
        (false, Some(half)) => softmax_by_steps(half, row),
        (false, None) => softmax_row(Softmax::Plain, row),
        (true, _) => softmax_row(Softmax::Log, row),
    }
}

/// Normalises in place; the mean and the inverse of the deviation.
pub(super) fn normalise(rms: bool, row: &mut [f32], affine: Affine<'_>) -> [f32; 2] {
    let (mean, inverse) = norm_row(if rms { Norm::Rms } else { Norm::Layer }, row, affine);
    [mean, inverse]
}

/// The row as one number.
pub(super) fn reduced(op: ReduceOp, row: &[f32]) -> f32 {
    let fast = |op| reduce_row(op, row);
    match op {
        ReduceOp::Sum => fast(Reduce::Sum),
        ReduceOp::Mean => fast(Reduce::Mean),
        ReduceOp::Prod => fast(Reduce::Prod),
        ReduceOp::Max => fast(Reduce::Max),
        ReduceOp::Min => fast(Reduce::Min),
        ReduceOp::L1 => fast(Reduce::L1),
        ReduceOp::SumSquare => fast(Reduce::SumSquare),
        // Squares of numbers in f32 do not overflow in f64.
        ReduceOp::L2 => {
            let squares = row.iter().map(|&x| f64::from(x) * f64::from(x));
            squares.sum::<f64>().sqrt() as f32
        }
        ReduceOp::LogSum => libm::log(row.iter().map(|&x| f64::from(x)).sum()) as f32,
        ReduceOp::LogSumExp => {
            let top = f64::from(fast(Reduce::Max));
            let about = if top.is_finite() { top } else { 0.0 };
            let terms = row.iter().map(|&x| libm::exp(f64::from(x) - about));
            (libm::log(terms.sum()) + about) as f32
        }
    }
}
