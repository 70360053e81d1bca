//! Elements of integer and bool tensors in symbols.

use super::build::Builder;
use crate::dim::Dim;
use crate::dtype::DType;
use crate::graph::ValueId;
use crate::op::Op;
use crate::tensor::Tensor;

/// The elements of a tensor.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) enum Abstract {
    /// Each element of a small tensor, row-major.
    Elements { shape: Vec<usize>, items: Vec<Dim> },
    /// The element at coordinates c is offset + Σ strides·c.
    Affine { dims: Vec<Dim>, strides: Vec<Dim>, offset: Dim },
}

impl Abstract {
    pub(super) fn of_tensor(_tensor: &Tensor) -> Option<Self> {
        None
    }
    pub(super) fn items(&self) -> Option<Vec<Dim>> {
        match self {
            Self::Elements { items, .. } => Some(items.clone()),
            Self::Affine { .. } => None,
        }
    }
}

pub(super) fn evaluate(
    _builder: &mut Builder,
    _op: &Op,
    _inputs: &[Option<ValueId>],
) -> Option<(DType, Abstract)> {
    None
}
