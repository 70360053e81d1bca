//! What a model takes and gives.

use graphene_frontend::dim::Dim;
use graphene_frontend::dtype::DType;
use graphene_frontend::types::TensorType;
use std::fmt;

/// An input or an output of a model.
#[derive(Clone, PartialEq, Debug)]
pub struct Port {
    name: String,
    ty: TensorType,
}

impl Port {
    pub(super) fn of(ports: &[(String, TensorType)]) -> Vec<Self> {
        ports.iter().map(|(name, ty)| Self { name: name.clone(), ty: ty.clone() }).collect()
    }

    /// Its name in the model.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The type of its elements.
    pub fn dtype(&self) -> DType {
        self.ty.dtype
    }

    /// Its dims: known sizes, symbols, and expressions of symbols, such as `2*sequence`.
    pub fn dims(&self) -> &[Dim] {
        &self.ty.shape
    }

    /// Type and dims.
    pub(crate) fn ty(&self) -> &TensorType {
        &self.ty
    }
}

impl fmt::Display for Port {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.name, self.ty)
    }
}
