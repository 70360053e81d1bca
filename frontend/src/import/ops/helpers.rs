//! Short forms that several families of rows share.

use crate::dim::Dim;
use crate::dtype::DType;
use crate::graph::ValueId;
use crate::import::{Context, OpError};
use crate::infer::InferError;
use crate::op::{Binary, Op, ReduceOp, SliceAxis, Unary};

/// What a row gives.
pub(super) type Outputs = Result<Vec<ValueId>, OpError>;

impl Context<'_, '_> {
    /// One output of a unary function of the first input.
    pub(super) fn map(&mut self, unary: Unary) -> Outputs {
        let x = self.input(0)?;
        Ok(vec![self.unary(unary, x)?])
    }

    /// a + b
    pub(super) fn plus(&mut self, a: ValueId, b: ValueId) -> Result<ValueId, OpError> {
        self.binary(Binary::Add, a, b)
    }

    /// a - b
    pub(super) fn minus(&mut self, a: ValueId, b: ValueId) -> Result<ValueId, OpError> {
        self.binary(Binary::Sub, a, b)
    }

    /// a · b
    pub(super) fn times(&mut self, a: ValueId, b: ValueId) -> Result<ValueId, OpError> {
        self.binary(Binary::Mul, a, b)
    }

    /// a / b
    pub(super) fn over(&mut self, a: ValueId, b: ValueId) -> Result<ValueId, OpError> {
        self.binary(Binary::Div, a, b)
    }

    /// x · factor, or x itself for a factor of one.
    pub(super) fn scaled(&mut self, x: ValueId, factor: f64) -> Result<ValueId, OpError> {
        if factor == 1.0 {
            return Ok(x);
        }
        let factor = self.scalar_like(x, factor)?;
        self.times(x, factor)
    }

    /// x + offset, or x itself for zero.
    pub(super) fn shifted(&mut self, x: ValueId, offset: f64) -> Result<ValueId, OpError> {
        if offset == 0.0 {
            return Ok(x);
        }
        let offset = self.scalar_like(x, offset)?;
        self.plus(x, offset)
    }

    /// a where the condition holds, else b.
    pub(super) fn select(
        &mut self,
        condition: ValueId,
        a: ValueId,
        b: ValueId,
    ) -> Result<ValueId, OpError> {
        self.add(Op::Select, &[condition, a, b])
    }

    /// A reduction that keeps the reduced axes as ones, or drops them.
    pub(super) fn reduce(
        &mut self,
        op: ReduceOp,
        x: ValueId,
        axes: Vec<usize>,
        keep: bool,
    ) -> Result<ValueId, OpError> {
        self.add(Op::Reduce { op, axes, keep }, &[x])
    }

    /// The value with dims of one inserted where the axes stand in the result.
    pub(super) fn unsqueeze(&mut self, v: ValueId, axes: &[usize]) -> Result<ValueId, OpError> {
        let mut shape = self.shape(v);
        for &axis in axes {
            shape.insert(axis.min(shape.len()), Dim::from(1));
        }
        self.reshape(v, shape)
    }

    /// The value without an axis, which has one element.
    pub(super) fn squeeze(&mut self, v: ValueId, axis: usize) -> Result<ValueId, OpError> {
        let mut shape = self.shape(v);
        if axis < shape.len() {
            shape.remove(axis);
        }
        self.reshape(v, shape)
    }

    /// `len` elements of an axis from `start` on.
    pub(super) fn narrow(
        &mut self,
        v: ValueId,
        axis: usize,
        start: Dim,
        len: Dim,
    ) -> Result<ValueId, OpError> {
        if start == 0 && self.ty(v).shape.get(axis) == Some(&len) {
            return Ok(v);
        }
        self.add(Op::Slice(vec![SliceAxis { axis, start, len, step: 1 }]), &[v])
    }

    /// Values joined along an axis.
    pub(super) fn concat(&mut self, axis: usize, parts: &[ValueId]) -> Result<ValueId, OpError> {
        self.add(Op::Concat { axis }, parts)
    }

    /// 0, 1, …, n-1 along the given axis of `rank` dims, the others being ones.
    pub(super) fn iota(&mut self, n: Dim, axis: usize, rank: usize) -> Result<ValueId, OpError> {
        let iota = self.add(Op::Iota(n.clone()), &[])?;
        if rank == 1 {
            return Ok(iota);
        }
        let mut shape = vec![Dim::from(1); rank];
        shape[axis] = n;
        self.reshape(iota, shape)
    }

    /// The value in f32 if its own type is narrower, else itself.
    pub(super) fn widen(&mut self, v: ValueId) -> Result<ValueId, OpError> {
        match self.dtype(v) {
            DType::F32 | DType::F64 => Ok(v),
            _ => self.cast(v, DType::F32),
        }
    }

    /// The value with elements of this type; itself if they are.
    pub(super) fn cast_to(&mut self, v: ValueId, dtype: DType) -> Result<ValueId, OpError> {
        if self.dtype(v) == dtype { Ok(v) } else { self.cast(v, dtype) }
    }

    /// A vector along axis 1 of a tensor of `rank` dims: `[c] → [c, 1, …, 1]`.
    pub(super) fn channels(&mut self, v: ValueId, rank: usize) -> Result<ValueId, OpError> {
        let mut shape = self.shape(v);
        shape.resize(shape.len() + rank.saturating_sub(2), Dim::from(1));
        self.reshape(v, shape)
    }

    /// The size of an axis, which must be known.
    pub(super) fn known_size(&self, v: ValueId, axis: usize) -> Result<i64, OpError> {
        let dim = self.ty(v).shape.get(axis).cloned();
        let dim = dim.ok_or_else(|| self.invalid("an input has too few dims"))?;
        dim.known().ok_or_else(|| self.unknown_dim(&dim))
    }

    /// `dim / by`, where that leaves no remainder; else why not, if that does not hang on the sizes of symbols.
    pub(super) fn quotient(&self, dim: &Dim, by: &Dim, why: &'static str) -> Result<Dim, OpError> {
        match dim.exact_div(by) {
            Some(quotient) => Ok(quotient),
            None if by.known().is_none() => Err(self.unknown_dim(by)),
            None if dim.known().is_none() => Err(self.unknown_dim(dim)),
            None => Err(self.invalid(why)),
        }
    }

    /// The error for a size that must be known.
    pub(super) fn unknown_dim(&self, dim: &Dim) -> OpError {
        OpError::Infer(InferError::Unresolved { a: dim.clone(), b: Dim::from(0) })
    }
}
