//! Activations from the operations that exporters spell them with.

use crate::rewrite::rule::Given::{About, Float, Is, Scalar};
use crate::rewrite::rule::{Given, Rule, Site, rule};
use egg::Id;
use graphene_frontend::op::Unary;
use std::f64::consts::FRAC_1_SQRT_2;

/// √(2/π), of the tanh form of GELU.
const ROOT: f64 = 0.797_884_560_802_865_4;

/// The weight of the cube in the tanh form of GELU.
const CUBE: f64 = 0.044_715;

const ERF: &[Given] = &[About("r", FRAC_1_SQRT_2), Is("one", 1.0), Is("half", 0.5)];

const TANH: &[Given] = &[About("c", CUBE), About("r", ROOT), Is("one", 1.0), Is("half", 0.5)];

const FACTORED: &[Given] =
    &[About("c", CUBE), About("r", ROOT), Is("one", 1.0), Is("other", 1.0), Is("half", 0.5)];

#[rustfmt::skip]
pub(super) const RULES: &[Rule] = &[
    rule("relu",        "(Max ?x ?c)", &[Is("c", 0.0), Float("x")], |s| s.unary(Unary::Relu, s.var("x"))),
    rule("sigmoid",     "(Reciprocal (Add (Exp (Neg ?x)) ?c))", &[Is("c", 1.0)], |s| s.unary(Unary::Sigmoid, s.var("x"))),
    rule("silu",        "(Mul~ ?x (Sigmoid ?x))", &[Float("x")], |s| s.unary(Unary::Swish { alpha: 1.0 }, s.var("x"))),
    rule("swish",       "(Mul~ ?x (Sigmoid (Mul ?x ?c)))", &[Scalar("c"), Float("x")], swish),
    rule("gelu",        "(Mul (Mul~ ?x (Add (Erf (Mul ?x ?r)) ?one)) ?half)", ERF, |s| s.unary(Unary::Gelu, s.var("x"))),
    rule("gelu-half-first", "(Mul~ (Mul ?x ?half) (Add (Erf (Mul ?x ?r)) ?one))", ERF, |s| s.unary(Unary::Gelu, s.var("x"))),
    rule("gelu-half-inside", "(Mul~ ?x (Mul (Add (Erf (Mul ?x ?r)) ?one) ?half))", ERF, |s| s.unary(Unary::Gelu, s.var("x"))),
    rule("gelu-of-half", "(Mul~ ?x (Add (Mul (Erf (Mul ?x ?r)) ?half) ?other))",
         &[About("r", FRAC_1_SQRT_2), Is("half", 0.5), Is("other", 0.5)], |s| s.unary(Unary::Gelu, s.var("x"))),
    rule("gelu-tanh",   "(Mul (Mul~ ?x (Add (Tanh (Mul (Add~ ?x (Mul (Mul~ ?x (Mul ?x ?x)) ?c)) ?r)) ?one)) ?half)",
         TANH, |s| s.unary(Unary::GeluTanh, s.var("x"))),
    rule("gelu-tanh-half-first", "(Mul~ (Mul ?x ?half) (Add (Tanh (Mul (Add~ ?x (Mul (Mul~ ?x (Mul ?x ?x)) ?c)) ?r)) ?one))",
         TANH, |s| s.unary(Unary::GeluTanh, s.var("x"))),
    rule("gelu-tanh-half-inside", "(Mul~ ?x (Mul (Add (Tanh (Mul (Add~ ?x (Mul (Mul~ ?x (Mul ?x ?x)) ?c)) ?r)) ?one) ?half))",
         TANH, |s| s.unary(Unary::GeluTanh, s.var("x"))),
    rule("gelu-tanh-stepwise", "(Mul~ (Mul ?x ?half) (Add (Tanh (Mul~ (Mul ?x ?r) (Add (Mul~ ?x (Mul ?x ?c)) ?one))) ?other))",
         FACTORED, |s| s.unary(Unary::GeluTanh, s.var("x"))),
    rule("gelu-tanh-factored", "(Mul (Mul~ ?x (Add (Tanh (Mul (Mul~ ?x (Add (Mul (Mul ?x ?x) ?c) ?one)) ?r)) ?other)) ?half)",
         FACTORED, |s| s.unary(Unary::GeluTanh, s.var("x"))),
    rule("mish",        "(Mul~ ?x (Tanh (Softplus ?x)))", &[Float("x")], |s| s.unary(Unary::Mish, s.var("x"))),
];

fn swish(s: &mut Site<'_>) -> Option<Id> {
    let alpha = s.attribute(s.var("x"), s.number(s.var("c"))?)?;
    s.unary(Unary::Swish { alpha }, s.var("x"))
}
