//! Matrix products.

use super::error::EvalError;
use super::number::{Number, filled, with_number};
use super::pointwise::cast;
use super::walk::{broadcast, broadcast_strides, walk};
use crate::dtype::DType;
use crate::tensor::Tensor;

/// [`crate::op::Op::MatMul`]: accumulated in `f64`, or modulo the integers' width.
pub(super) fn matmul(a: &Tensor, b: &Tensor) -> Result<Tensor, EvalError> {
    let dtype = a.dtype();
    if dtype != b.dtype() {
        return Err(EvalError::Mismatch { expected: dtype, actual: b.dtype() });
    }
    if dtype == DType::Bool {
        return Err(EvalError::Unsupported(dtype));
    }
    let refuse = || EvalError::shape("matrices do not fit", &[a.shape(), b.shape()]);
    let (lead_a, [m, k]) = a.shape().split_last_chunk().ok_or_else(refuse)?;
    let (lead_b, [depth, n]) = b.shape().split_last_chunk().ok_or_else(refuse)?;
    let lead = broadcast(&[lead_a, lead_b]).filter(|_| k == depth).ok_or_else(refuse)?;
    let (m, k, n) = (*m, *k, *n);
    let from_a = broadcast_strides(lead_a, &lead).ok_or_else(refuse)?;
    let from_b = broadcast_strides(lead_b, &lead).ok_or_else(refuse)?;
    let mut shape = lead.clone();
    shape.extend([m, n]);
    with_number!(dtype, N => {
        let (x, y) = (N::decode(a)?, N::decode(b)?);
        let mut values = filled(&shape, N::ZERO)?;
        if !values.is_empty() && k > 0 {
            let mut blocks = values.chunks_exact_mut(m * n);
            walk(&lead, [&from_a, &from_b], [0, 0], |[i, j]| {
                if let Some(block) = blocks.next() {
                    accumulate(block, &x[i * m * k..][..m * k], &y[j * k * n..][..k * n], k, n);
                }
            });
        }
        N::encode(dtype, shape, values)
    })
}

/// [`crate::op::Op::WideMatMul`].
pub(super) fn wide(a: &Tensor, b: &Tensor) -> Result<Tensor, EvalError> {
    matmul(&cast(a, DType::F32, true)?, &cast(b, DType::F32, true)?)
}

/// `c[m,n] += a[m,k] · b[k,n]`.
pub(super) fn accumulate<N: Number>(c: &mut [N], a: &[N], b: &[N], k: usize, n: usize) {
    for (row, factors) in c.chunks_exact_mut(n).zip(a.chunks_exact(k)) {
        for (&factor, line) in factors.iter().zip(b.chunks_exact(n)) {
            for (sum, &x) in row.iter_mut().zip(line) {
                *sum = sum.plus(factor.times(x));
            }
        }
    }
}
