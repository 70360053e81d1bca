//! Matrix products.

use super::helpers::Outputs;
use super::{Row, microsoft, row};
use crate::dim::Dim;
use crate::graph::ValueId;
use crate::import::{Context, OpError};
use crate::op::Op;

/// The operators of this family.
pub(super) const ROWS: &[Row] = &[
    row("MatMul", 1, |c| {
        let (a, b) = (c.input(0)?, c.input(1)?);
        Ok(vec![c.mat_mul(a, b)?])
    }),
    row("Gemm", 1, gemm),
    microsoft("FusedMatMul", 1, fused_mat_mul),
    microsoft("FusedGemm", 1, fused_gemm),
];

impl Context<'_, '_> {
    /// NumPy's `matmul`: operands of one dim are a row, a column, and lose that dim again.
    pub(super) fn mat_mul(&mut self, a: ValueId, b: ValueId) -> Result<ValueId, OpError> {
        let (a_shape, b_shape) = (self.shape(a), self.shape(b));
        if a_shape.is_empty() || b_shape.is_empty() {
            return Err(self.invalid("a matmul needs operands with dims"));
        }
        let one = Dim::from(1);
        let a = match a_shape.as_slice() {
            [k] => self.reshape(a, vec![one.clone(), k.clone()])?,
            _ => a,
        };
        let b = match b_shape.as_slice() {
            [k] => self.reshape(b, vec![k.clone(), one])?,
            _ => b,
        };
        let y = self.add(Op::MatMul, &[a, b])?;
        let mut shape = self.shape(y);
        let columns = shape.pop();
        let rows = shape.pop();
        shape.extend(rows.filter(|_| a_shape.len() > 1));
        shape.extend(columns.filter(|_| b_shape.len() > 1));
        if a_shape.len() == 1 || b_shape.len() == 1 {
            return self.reshape(y, shape);
        }
        Ok(y)
    }

    /// The value with its last two dims exchanged.
    pub(super) fn transposed(&mut self, v: ValueId) -> Result<ValueId, OpError> {
        let rank = self.rank(v);
        if rank < 2 {
            return Ok(v);
        }
        let mut perm: Vec<usize> = (0..rank).collect();
        perm.swap(rank - 2, rank - 1);
        self.transpose(v, perm)
    }
}

fn gemm(c: &mut Context<'_, '_>) -> Outputs {
    let (mut a, mut b) = (c.input(0)?, c.input(1)?);
    let alpha = f64::from(c.float_or("alpha", 1.0));
    let beta = f64::from(c.float_or("beta", 1.0));
    if !c.dtype(a).is_float() && (alpha.fract() != 0.0 || beta.fract() != 0.0) {
        return Err(c.unsupported("a fraction as factor of integers"));
    }
    if c.int_or("transA", 0) != 0 {
        a = c.transposed(a)?;
    }
    if c.int_or("transB", 0) != 0 {
        b = c.transposed(b)?;
    }
    let matmul = c.mat_mul(a, b)?;
    let mut y = c.scaled(matmul, alpha)?;
    if let Some(bias) = c.optional(2).filter(|_| beta != 0.0) {
        let bias = c.scaled(bias, beta)?;
        y = c.plus(y, bias)?;
    }
    Ok(vec![y])
}

fn fused_gemm(c: &mut Context<'_, '_>) -> Outputs {
    let y = gemm(c)?[0];
    let alpha = c.float_or("activation_alpha", 0.01);
    let Some(name) = c.string("activation").map(str::to_owned) else { return Ok(vec![y]) };
    let unary = match name.as_str() {
        "Relu" => crate::op::Unary::Relu,
        "Tanh" => crate::op::Unary::Tanh,
        "Sigmoid" => crate::op::Unary::Sigmoid,
        "LeakyRelu" => crate::op::Unary::LeakyRelu { alpha },
        _ => return Err(c.unsupported("this activation")),
    };
    Ok(vec![c.unary(unary, y)?])
}

/// `transBatchA`: the batch dims stand after the rows, `[m, batch…, k]`; likewise for B.
fn fused_mat_mul(c: &mut Context<'_, '_>) -> Outputs {
    let mut operands = [c.input(0)?, c.input(1)?];
    for (operand, [trans, batch]) in
        operands.iter_mut().zip([["transA", "transBatchA"], ["transB", "transBatchB"]])
    {
        let rank = c.rank(*operand);
        if c.int_or(batch, 0) != 0 && rank > 2 {
            let perm = (1..rank - 1).chain([0, rank - 1]).collect();
            *operand = c.transpose(*operand, perm)?;
        }
        if c.int_or(trans, 0) != 0 {
            *operand = c.transposed(*operand)?;
        }
    }
    let matmul = c.mat_mul(operands[0], operands[1])?;
    Ok(vec![c.scaled(matmul, f64::from(c.float_or("alpha", 1.0)))?])
}
