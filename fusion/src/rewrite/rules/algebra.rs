//! Algebra: neutral elements, powers, and constants that scale.

use crate::rewrite::rule::Given::{Computed, Float, Is, Scalar};
use crate::rewrite::rule::{Rule, Site, digits, rule};
use egg::Id;
use graphene_frontend::{Binary, DType, Op, Unary};

#[rustfmt::skip]
pub(super) const RULES: &[Rule] = &[
    rule("add-zero",            "(Add ?x ?c)",   &[Is("c", 0.0)],              |s| Some(s.var("x"))),
    rule("subtract-zero",       "(Sub ?x ?c)",   &[Is("c", 0.0)],              |s| Some(s.var("x"))),
    rule("multiply-by-one",     "(Mul ?x ?c)",   &[Is("c", 1.0)],              |s| Some(s.var("x"))),
    rule("divide-by-one",       "(Div ?x ?c)",   &[Is("c", 1.0)],              |s| Some(s.var("x"))),
    rule("and-true",            "(And ?x ?c)",   &[Is("c", 1.0)],              |s| Some(s.var("x"))),
    rule("or-false",            "(Or ?x ?c)",    &[Is("c", 0.0)],              |s| Some(s.var("x"))),
    rule("negate-twice",        "(Neg (Neg ?x))", &[],                         |s| Some(s.var("x"))),
    rule("not-twice",           "(Not (Not ?x))", &[],                         |s| Some(s.var("x"))),
    rule("square",              "(Pow ?x ?c)",   &[Is("c", 2.0), Float("x")],  square),
    rule("cube",                "(Pow ?x ?c)",   &[Is("c", 3.0), Float("x")],  cube),
    rule("root",                "(Pow ?x ?c)",   &[Is("c", 0.5), Float("x")],  |s| s.unary(Unary::Sqrt, s.var("x"))),
    rule("inverse-root",        "(Pow ?x ?c)",   &[Is("c", -0.5), Float("x")], inverse_root),
    rule("inverse",             "(Div ?c ?x)",   &[Is("c", 1.0), Float("x")],  |s| s.unary(Unary::Reciprocal, s.var("x"))),
    rule("times-inverse",       "(Mul~ ?a (Reciprocal ?b))", &[],              |s| s.binary(Binary::Div, s.var("a"), s.var("b"))),
    rule("divide-by-constant",  "(Div ?x ?c)",   &[Scalar("c"), Float("x")],   scale_by_inverse),
    rule("scale-twice",         "(Mul (Mul ?x ?a) ?b)", &[Scalar("a"), Scalar("b"), Float("x")], scale_twice),
    rule("scale-last",          "(Mul~ (Mul ?x ?c) ?y)", &[Scalar("c"), Computed("y"), Float("x")], scale_last),
    rule("scale-of-matmul-a",  "(MatMul (Mul ?x ?c) ?y)", &[Scalar("c"), Float("x")], scaled_matmul),
    rule("scale-of-matmul-b",  "(MatMul ?x (Mul ?y ?c))", &[Scalar("c"), Float("x")], scaled_matmul),
    rule("scale-of-transpose",  "(Transpose ?p (Mul ?x ?c))", &[Scalar("c"), Float("x")], scaled_view),
    rule("scale-of-reshape",    "(Reshape ?p (Mul ?x ?c))", &[Scalar("c"), Float("x")], scaled_view),
];

fn square(s: &mut Site<'_>) -> Option<Id> {
    s.binary(Binary::Mul, s.var("x"), s.var("x"))
}

fn cube(s: &mut Site<'_>) -> Option<Id> {
    let square = square(s)?;
    s.binary(Binary::Mul, square, s.var("x"))
}

fn inverse_root(s: &mut Site<'_>) -> Option<Id> {
    let root = s.unary(Unary::Sqrt, s.var("x"))?;
    s.unary(Unary::Reciprocal, root)
}

/// `x` times a number; itself where that rounds to one. Scales that undo each other would otherwise give ever new
/// numbers.
pub(super) fn scaled(s: &mut Site<'_>, x: Id, by: f64) -> Option<Id> {
    let dtype = s.dtype(x)?;
    // Half a unit in the last place of one.
    if (by - 1.0).abs() <= 0.5_f64.powi(digits(dtype)?) {
        return Some(x);
    }
    let by = s.scalar(x, moderate(dtype, by)?)?;
    s.binary(Binary::Mul, x, by)
}

/// The number, if what is scaled by it, or by its inverse, keeps its digits: what is far from one overflows in one
/// order and not in the other, fills of masks among it, and zero forgets what it scales.
fn moderate(dtype: DType, number: f64) -> Option<f64> {
    let most = match dtype {
        DType::F64 => 1e60,
        DType::F16 => 256.0,
        DType::F32 | DType::BF16 => 1e8,
        _ => return None,
    };
    (1.0 / most..=most).contains(&number.abs()).then_some(number)
}

/// The number that a variable is, if it is a moderate one.
fn scale(s: &Site<'_>, name: &str) -> Option<f64> {
    moderate(s.dtype(s.var(name))?, s.number(s.var(name))?)
}

/// A scale that a matmul may be multiplied by after it is made. Not in `f16`, where matmuls of what was to be scaled
/// down soon overflow.
fn outer_scale(s: &Site<'_>, name: &str) -> Option<f64> {
    scale(s, name).filter(|_| s.dtype(s.root) != Some(DType::F16))
}

fn scale_by_inverse(s: &mut Site<'_>) -> Option<Id> {
    let by = 1.0 / scale(s, "c")?;
    scaled(s, s.var("x"), by)
}

fn scale_twice(s: &mut Site<'_>) -> Option<Id> {
    // One number is enough: where rounding gives a second one, their quotient would give ever more.
    let x = s.terms.find(s.var("x"));
    let multiplied = s.operands(s.root, "Mul");
    let known = multiplied.into_iter().any(|[a, b]| s.terms.find(a) == x && s.number(b).is_some());
    if known || s.terms.find(s.root) == x {
        return None;
    }
    let by = scale(s, "a")? * scale(s, "b")?;
    scaled(s, s.var("x"), by)
}

fn scale_last(s: &mut Site<'_>) -> Option<Id> {
    let by = outer_scale(s, "c")?;
    let y = s.binary(Binary::Mul, s.var("x"), s.var("y"))?;
    scaled(s, y, by)
}

fn scaled_matmul(s: &mut Site<'_>) -> Option<Id> {
    let by = outer_scale(s, "c")?;
    let matmul = s.add(Op::MatMul, &[s.var("x"), s.var("y")])?;
    scaled(s, matmul, by)
}

fn scaled_view(s: &mut Site<'_>) -> Option<Id> {
    let by = scale(s, "c")?;
    let view = s.add(s.attributes("p")?, &[s.var("x")])?;
    scaled(s, view, by)
}
