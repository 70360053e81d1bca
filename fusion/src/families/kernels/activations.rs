//! Activations that are made of simpler functions.

use graphene_ir::function::Function;
use graphene_ir::kernel::{Binary, Unary};

/// x·sigmoid(alpha·x); SiLU for 1.
pub(super) fn swish(alpha: f64) -> Function {
    let x = Function::identity();
    x.clone() * (x * alpha).unary(Unary::Sigmoid)
}

/// ln(1 + eˣ), as max(x, 0) + ln(1 + e⁻ˡˣˡ), which overflows nowhere.
pub(super) fn softplus() -> Function {
    let x = Function::identity();
    let small = (-x.clone().unary(Unary::Abs)).unary(Unary::Exp).unary(Unary::Log1p);
    x.unary(Unary::Relu) + small
}

/// x·tanh(ln(1 + eˣ))
pub(super) fn mish() -> Function {
    Function::identity() * softplus().unary(Unary::Tanh)
}

/// x/(1 + |x|)
pub(super) fn softsign() -> Function {
    let x = Function::identity();
    x.clone() / (x.unary(Unary::Abs) + 1.0)
}

/// max(0, min(1, alpha·x + beta)); NaN stays.
pub(super) fn hard_sigmoid(alpha: f64, beta: f64) -> Function {
    let line = Function::identity() * alpha + beta;
    line.binary(Binary::MaxNan, 0.0).binary(Binary::MinNan, 1.0)
}

/// x·max(0, min(1, x/6 + 1/2))
pub(super) fn hard_swish() -> Function {
    Function::identity() * hard_sigmoid(1.0 / 6.0, 0.5)
}

/// x where x ≥ 0, else alpha·x.
pub(super) fn leaky_relu(alpha: f64) -> Function {
    let x = Function::identity();
    x.clone().binary(Binary::Less, 0.0).select(x.clone() * alpha, x)
}
