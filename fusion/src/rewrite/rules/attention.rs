//! Softmax and attention.
//!
//! Attention is found from its last product inwards: `weights · v`, the weights a softmax (perhaps guarded
//! against NaN) of scores (perhaps masked, scaled), the scores `q · kᵀ`. Scales reach the scores by the rules of
//! [`super::algebra`], changes of view leave the operands by those of [`super::layout`].

use crate::rewrite::rule::Given::Float;
use crate::rewrite::rule::{Rule, Site, law, rule};
use egg::Id;
use graphene_frontend::dim::Dim;
use graphene_frontend::dtype::DType;
use graphene_frontend::op::{AttentionAttrs, Op, ReduceOp, Unary};

#[rustfmt::skip]
pub(super) const RULES: &[Rule] = &[
    rule("softmax",           "(Div (Exp (Sub ?x (ReduceMax ?m ?x))) (ReduceSum ?a (Exp (Sub ?x (ReduceMax ?m ?x)))))", &[Float("x")], softmax),
    rule("softmax-unshifted", "(Div (Exp ?x) (ReduceSum ?a (Exp ?x)))", &[Float("x")], softmax_unshifted),
    rule("attention",         "(MatMul ?w ?v)", &[Float("v")], attention),
    law("attention-scale",    attention_scale),
    law("attention-mask",     attention_mask),
    law("attention-groups",   attention_groups),
];

/// Scores vanish in the rounding of numbers of this size, whatever the type: the lowest of `f16` is none of them,
/// for attention computes in `f32`.
const SWALLOWS: f64 = -1e30;

fn along(op: Option<Op>, expected: ReduceOp) -> Option<usize> {
    match op? {
        Op::Reduce { op, axes, keep: true } if op == expected && axes.len() == 1 => Some(axes[0]),
        _ => None,
    }
}

fn softmax(s: &mut Site<'_>) -> Option<Id> {
    let axis = along(s.attributes("m"), ReduceOp::Max)?;
    let same = along(s.attributes("a"), ReduceOp::Sum)? == axis;
    if same { s.add(Op::Softmax { axis, log: false }, &[s.var("x")]) } else { None }
}

fn softmax_unshifted(s: &mut Site<'_>) -> Option<Id> {
    let axis = along(s.attributes("a"), ReduceOp::Sum)?;
    s.add(Op::Softmax { axis, log: false }, &[s.var("x")])
}

/// What stands between the two products.
struct Weights {
    scores: Id,
    mask: Option<Id>,
    guarded: bool,
}

fn attention(s: &mut Site<'_>) -> Option<Id> {
    let (w, v) = (s.var("w"), s.var("v"));
    let rank = s.ty(w)?.rank();
    let narrow = matches!(s.dtype(v)?, DType::F16 | DType::BF16);
    if narrow && s.terms.analysis.rounds_steps {
        return None;
    }
    if !matches!(rank, 3 | 4) || s.ty(v)?.rank() != rank {
        return None;
    }
    let weights = weights(s, w, rank)?;
    let (q, k, scale) = scores(s, weights.scores)?;
    let attrs = AttentionAttrs { scale, causal: false, softcap: 0.0, guarded: weights.guarded };
    let shape = s.shape(s.root)?;
    let keys = if rank == 4 { vec![0, 1, 3, 2] } else { vec![0, 2, 1] };
    let k = s.transpose(k, keys)?;
    let mut operands = Vec::with_capacity(4);
    for x in [q, k, v] {
        operands.push(four(s, x)?);
    }
    if let Some(mask) = weights.mask {
        operands.push(if rank == 3 { masks_of_three(s, mask)? } else { mask });
    }
    let y = s.add(Op::Attention(attrs), &operands)?;
    s.reshape(y, shape)
}

/// A batch of matrices as one head each.
fn four(s: &mut Site<'_>, x: Id) -> Option<Id> {
    let mut shape = s.shape(x)?;
    if shape.len() == 3 {
        shape.insert(1, Dim::from(1));
    }
    s.reshape(x, shape)
}

/// A mask of `[batch, queries, keys]` or less as one of `[batch, 1, queries, keys]`.
fn masks_of_three(s: &mut Site<'_>, mask: Id) -> Option<Id> {
    if s.ty(mask)?.rank() == 3 { four(s, mask) } else { Some(mask) }
}

/// The softmax over the last axis in a class, and what is done to the scores before it and to the weights after.
fn weights(s: &mut Site<'_>, w: Id, rank: usize) -> Option<Weights> {
    let mut guarded = false;
    let mut inner = recast(s, w);
    for (_, inputs) in s.operations(inner, "Select") {
        let [Some(nan), Some(zero), Some(weights)] = *inputs.as_slice() else { continue };
        let guards = s.operations(nan, "IsNan").iter().any(|(_, x)| x[0] == Some(weights));
        if guards && s.is(zero, 0.0) {
            (inner, guarded) = (weights, true);
        }
    }
    let softmaxes = s.operations(inner, "Softmax");
    let over_keys = |(op, _): &&(Op, Vec<Option<Id>>)| matches!(op, Op::Softmax { axis, log: false } if *axis + 1 == rank);
    let masked = softmaxes.iter().find(over_keys)?.1[0]?;
    let masked = recast(s, masked);
    let (scores, mask) = unmasked(s, masked)?;
    Some(Weights { scores, mask, guarded })
}

/// What a class converts between floats, if it does: attention computes in `f32` whatever its types.
fn recast(s: &Site<'_>, id: Id) -> Id {
    let casts = s.operations(id, "Cast").into_iter();
    let floats = |x: &Id| s.dtype(*x).is_some_and(DType::is_float);
    casts.filter_map(|(_, x)| x[0].filter(floats)).next().unwrap_or(id)
}

/// The scores and what is added to them.
fn unmasked(s: &mut Site<'_>, masked: Id) -> Option<(Id, Option<Id>)> {
    if scores(s, masked).is_some() {
        return Some((masked, None));
    }
    for (_, inputs) in s.operations(masked, "Add") {
        for (a, b) in [(0, 1), (1, 0)] {
            let (scored, mask) = (inputs[a]?, inputs[b]?);
            if scores(s, scored).is_some() && s.ty(scored)? == s.ty(masked)? {
                return Some((scored, Some(mask)));
            }
        }
    }
    // Scores that are replaced where nothing may be attended: infinity is a mask of truth values, a number
    // near the lowest swallows whatever it is added to.
    for (_, inputs) in s.operations(masked, "Select") {
        let [Some(condition), Some(a), Some(b)] = *inputs.as_slice() else { continue };
        let (scored, fill, allowed) = if scores(s, a).is_some() {
            (a, b, condition)
        } else if scores(s, b).is_some() {
            (b, a, s.unary(Unary::Not, condition)?)
        } else {
            continue;
        };
        if s.ty(scored)? != s.ty(masked)? {
            continue;
        }
        let number = s.number(fill)?;
        if number == f64::NEG_INFINITY {
            return Some((scored, Some(allowed)));
        }
        if number <= SWALLOWS {
            let (zero, fill) = (s.scalar(scored, 0.0)?, s.scalar(scored, number)?);
            let mask = s.add(Op::Select, &[allowed, zero, fill])?;
            return Some((scored, Some(mask)));
        }
    }
    None
}

/// Queries, transposed keys and the scale of scores.
fn scores(s: &Site<'_>, id: Id) -> Option<(Id, Id, f32)> {
    let product = |id: Id| {
        let (_, inputs) = s.operations(id, "MatMul").into_iter().next()?;
        let (q, k) = (inputs[0]?, inputs[1]?);
        (s.ty(q)?.rank() == s.ty(k)?.rank()).then_some((q, k))
    };
    for (_, inputs) in s.operations(id, "Mul") {
        let (scored, by) = (inputs[0]?, inputs[1]?);
        if let (Some((q, k)), Some(scale)) = (product(scored), s.number(by)) {
            return Some((q, k, scale as f32));
        }
    }
    let (q, k) = product(id)?;
    Some((q, k, 1.0))
}

fn attrs(s: &Site<'_>) -> Option<AttentionAttrs> {
    match &s.op {
        Some(Op::Attention(attrs)) => Some(attrs.clone()),
        _ => None,
    }
}

/// Attention of scaled queries or keys is attention with that scale.
fn attention_scale(s: &mut Site<'_>) -> Option<Id> {
    let attrs = attrs(s)?;
    let mut inputs = s.inputs.clone();
    let mut scale = f64::from(attrs.scale);
    for input in inputs.iter_mut().take(2) {
        for (_, own) in s.operations((*input)?, "Mul") {
            let (x, by) = (own[0]?, own[1]?);
            if let Some(by) = s.number(by).filter(|_| s.ty(x) == (*input).and_then(|id| s.ty(id))) {
                (*input, scale) = (Some(x), scale * by);
                break;
            }
        }
    }
    if scale == f64::from(attrs.scale) {
        return None;
    }
    s.add_optional(Op::Attention(AttentionAttrs { scale: scale as f32, ..attrs }), &inputs)
}

/// A mask broadcasts by itself: one that holds for all queries stays one row of keys.
fn attention_mask(s: &mut Site<'_>) -> Option<Id> {
    let attrs = attrs(s)?;
    let mask = s.inputs.get(3).copied().flatten()?;
    let source = s.operations(mask, "Expand").into_iter().find_map(|(_, x)| x[0])?;
    let mut inputs = s.inputs.clone();
    inputs[3] = Some(source);
    s.add_optional(Op::Attention(attrs), &inputs)
}

/// Heads of keys and values that are repeated for a group of queries are read in place.
fn attention_groups(s: &mut Site<'_>) -> Option<Id> {
    let attrs = attrs(s)?;
    let (k, v) = (unrepeated(s, s.inputs[1]?)?, unrepeated(s, s.inputs[2]?)?);
    if s.shape(k)?[1] != s.shape(v)?[1] {
        return None;
    }
    let mut inputs = s.inputs.clone();
    (inputs[1], inputs[2]) = (Some(k), Some(v));
    s.add_optional(Op::Attention(attrs), &inputs)
}

/// `[b, g, t, d]` behind `[b, g·r, t, d]` with each head repeated r times in a row.
fn unrepeated(s: &mut Site<'_>, x: Id) -> Option<Id> {
    let whole = s.shape(x)?;
    for (_, flat) in s.operations(x, "Reshape") {
        for (_, wide) in s.operations(flat[0]?, "Expand") {
            let (wide, expanded) = (wide[0]?, s.shape(flat[0]?)?);
            let shape = s.shape(wide)?;
            let repeats = shape.len() == 5
                && shape[2] == 1
                && expanded[..2] == shape[..2]
                && expanded[3..] == shape[3..]
                && expanded[3..] == whole[2..]
                && expanded[0] == whole[0];
            if repeats {
                let heads =
                    vec![shape[0].clone(), shape[1].clone(), shape[3].clone(), shape[4].clone()];
                return s.reshape(wide, heads);
            }
        }
    }
    None
}
