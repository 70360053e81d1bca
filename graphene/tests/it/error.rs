//! How far a simulated function's value may be from the exact one.

use graphene_ir::function::Function;
pub(crate) use graphene_ir::function::near::{Near, SINGLE};
use graphene_ir::tensor::Scalar;

use crate::near::{self, By};

/// Each output of a function of such values.
pub(crate) fn propagate(function: &Function, inputs: &[Near]) -> Vec<Near> {
    near::propagate(function, inputs, By::Simulator)
}

/// Half a unit in the last place of a type, relative.
pub(crate) fn unit(scalar: Scalar) -> f64 {
    scalar.unit()
}
