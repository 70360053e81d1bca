//! Normalisations from means, squares and roots. The bare norm is recognised first; scale and bias join it.

use crate::base::view::inverse;
use crate::rewrite::rule::Given::{Computed, Constant, Float, Scalar, Single, Wide};
use crate::rewrite::rule::{Rule, Site, rule};
use egg::Id;
use graphene_frontend::{Binary, DType, Dim, Op, ReduceOp};

#[rustfmt::skip]
pub(super) const RULES: &[Rule] = &[
    rule("layer-norm",         "(Div (Sub ?x (ReduceMean ?a ?x)) (Sqrt (Add (ReduceMean ?a (Mul (Sub ?x (ReduceMean ?a ?x)) (Sub ?x (ReduceMean ?a ?x)))) ?e)))",
         &[Scalar("e"), Single("x")], |s| layer_norm(s, epsilon(s)?)),
    rule("layer-norm-moments", "(Div (Sub ?x (ReduceMean ?a ?x)) (Sqrt (Add (Sub (ReduceMean ?a (Mul ?x ?x)) (Mul (ReduceMean ?a ?x) (ReduceMean ?a ?x))) ?e)))",
         &[Scalar("e"), Single("x"), Wide("x")], |s| layer_norm(s, epsilon(s)?)),
    rule("layer-norm-bare",    "(Div (Sub ?x (ReduceMean ?a ?x)) (Sqrt (ReduceMean ?a (Mul (Sub ?x (ReduceMean ?a ?x)) (Sub ?x (ReduceMean ?a ?x))))))",
         &[Single("x")], |s| layer_norm(s, 0.0)),
    rule("layer-norm-scale",   "(Mul~ (out0 (LayerNorm ?a ?x absent absent)) ?g)", &[Constant("g")], |s| affine(s, &["g"])),
    rule("layer-norm-bias",    "(Add~ (out0 (LayerNorm ?a ?x ?g absent)) ?b)", &[Constant("b")], |s| affine(s, &["g", "b"])),
    rule("rms-norm",           "(Div ?x (Sqrt (Add (ReduceMean ?a (Mul ?x ?x)) ?e)))", &[Scalar("e"), Single("x")], |s| rms_norm(s, epsilon(s)?)),
    rule("rms-norm-bare",      "(Div ?x (Sqrt (ReduceMean ?a (Mul ?x ?x))))", &[Single("x")], |s| rms_norm(s, 0.0)),
    rule("rms-norm-scale",     "(Mul~ (RmsNorm ?a ?x absent) ?g)", &[Constant("g")], |s| affine(s, &["g"])),
    rule("rms-norm-narrowed",  "(Cast ?n (RmsNorm ?a (Cast ?w ?x) absent))", &[], norm_narrowed),
    rule("layer-norm-narrowed", "(Cast ?n (out0 (LayerNorm ?a (Cast ?w ?x) absent absent)))", &[], norm_narrowed),
    rule("weight-of-quotient", "(Div (Mul ?x ?g) ?r)", &[Constant("g"), Computed("x"), Computed("r"), Float("x")], weight_last),
    rule("weight-over-root",   "(Mul~ ?x (Div ?g ?r))", &[Constant("g"), Computed("x"), Computed("r"), Float("x")], weight_last),
    rule("scaled-difference",  "(Add~ (Mul~ ?x ?i) (Sub ?b (Mul~ ?m ?i)))", &[Constant("b"), Computed("i"), Wide("x")], scaled_difference),
    rule("mean-of-squares",    "(Mul (ReduceSumSquare ?a ?x) ?c)", &[Scalar("c"), Float("x")], mean),
    rule("mean-of-sum",        "(Mul (ReduceSum ?a ?x) ?c)", &[Scalar("c"), Float("x")], mean),
];

/// The axes that a mean is over, and whether they are all from the first of them on; `None` if it drops them.
fn normalised(s: &Site<'_>) -> Option<(Vec<usize>, bool)> {
    let mean = s.attributes("a")?;
    let Op::Reduce { op: ReduceOp::Mean, axes, keep: true } = mean else { return None };
    let rank = s.ty(s.var("x"))?.rank();
    let trailing = axes.iter().copied().eq(*axes.first()?..rank);
    Some((axes, trailing))
}

fn epsilon(s: &Site<'_>) -> Option<f32> {
    s.attribute(s.var("x"), s.number(s.var("e"))?)
}

/// A norm over an axis that is not the last one, of channels perhaps, is the norm with that axis moved last.
fn layer_norm(s: &mut Site<'_>, epsilon: f32) -> Option<Id> {
    let (axes, trailing) = normalised(s)?;
    if trailing {
        return s.add(Op::LayerNorm { axis: axes[0], epsilon }, &[s.var("x")]);
    }
    let (&[inside], rank) = (&axes[..], s.ty(s.var("x"))?.rank()) else { return None };
    let perm: Vec<usize> = (0..rank).filter(|&axis| axis != inside).chain([inside]).collect();
    let back = inverse(&perm);
    let x = s.transpose(s.var("x"), perm)?;
    let y = s.add(Op::LayerNorm { axis: rank - 1, epsilon }, &[x])?;
    s.transpose(y, back)
}

fn rms_norm(s: &mut Site<'_>, epsilon: f32) -> Option<Id> {
    let (axes, trailing) = normalised(s)?;
    if trailing { s.add(Op::RmsNorm { axis: axes[0], epsilon }, &[s.var("x")]) } else { None }
}

/// The norm with these constants, each of the shape that is normalised.
fn affine(s: &mut Site<'_>, constants: &[&str]) -> Option<Id> {
    let op = s.attributes("a")?;
    let (Op::LayerNorm { axis, .. } | Op::RmsNorm { axis, .. }) = op else { return None };
    let shape = s.shape(s.var("x"))?;
    let mut inputs = vec![s.var("x")];
    for name in constants {
        inputs.push(whole(s, s.var(name), &shape[axis..])?);
    }
    s.add(op, &inputs)
}

/// The constant under the normalised shape, if it has that many elements in that order.
fn whole(s: &mut Site<'_>, constant: Id, normalised: &[Dim]) -> Option<Id> {
    let own = s.shape(constant)?;
    let lead = own.iter().take_while(|dim| **dim == 1).count();
    let fits = own.ends_with(normalised) && lead + normalised.len() >= own.len();
    if fits { s.reshape(constant, normalised.to_vec()) } else { None }
}

/// A norm of a widened value, narrowed again: that is how the norm computes anyway.
fn norm_narrowed(s: &mut Site<'_>) -> Option<Id> {
    let x = s.var("x");
    let Op::Cast { to: DType::F32, .. } = s.attributes("w")? else { return None };
    let Op::Cast { to, .. } = s.attributes("n")? else { return None };
    let narrow = matches!(to, DType::F16 | DType::BF16) && s.dtype(x) == Some(to);
    if narrow { s.add(s.attributes("a")?, &[x]) } else { None }
}

/// A weight is multiplied last, where the norm takes it. In `f16` a quotient that was to be scaled down overflows,
/// unless it is one by a root, as in norms.
fn weight_last(s: &mut Site<'_>) -> Option<Id> {
    if s.dtype(s.root)? == DType::F16 && s.operations(s.var("r"), "Sqrt").is_empty() {
        return None;
    }
    let quotient = s.binary(Binary::Div, s.var("x"), s.var("r"))?;
    s.binary(Binary::Mul, quotient, s.var("g"))
}

/// TensorFlow's norm: `x·i + (b - m·i)` is `(x - m)·i + b`. In 16-bit types the products round apart.
fn scaled_difference(s: &mut Site<'_>) -> Option<Id> {
    let difference = s.binary(Binary::Sub, s.var("x"), s.var("m"))?;
    let product = s.binary(Binary::Mul, difference, s.var("i"))?;
    s.binary(Binary::Add, product, s.var("b"))
}

/// A sum, of squares perhaps, times the inverse of how many elements it takes together.
fn mean(s: &mut Site<'_>) -> Option<Id> {
    let Op::Reduce { op, axes, keep } = s.attributes("a")? else { return None };
    let (mut x, shape) = (s.var("x"), s.shape(s.var("x"))?);
    let count: f64 =
        axes.iter().map(|&axis| shape[axis].known().map(|n| n as f64)).product::<Option<_>>()?;
    if !s.is(s.var("c"), 1.0 / count) {
        return None;
    }
    if op == ReduceOp::SumSquare {
        x = s.binary(Binary::Mul, x, x)?;
    }
    s.add(Op::Reduce { op: ReduceOp::Mean, axes, keep }, &[x])
}
