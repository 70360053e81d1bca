//! Softmax and attention.
//!
//! Attention is found from its last matmul inwards: `weights · v`, the weights a softmax (perhaps guarded
//! against NaN) of scores (perhaps masked, scaled), the scores `q · kᵀ`: [`super::scores`] reads them. Scales reach the
//! scores by the rules of [`super::algebra`] or attention by its own, changes of view leave the operands by those of
//! [`super::layout`].

use super::layout::runs;
use super::scores::{Mask, Scores, lead, mask_under, weights};
use crate::rewrite::rule::Given::Single;
use crate::rewrite::rule::{Rule, Site, law, rule};
use egg::Id;
use graphene_frontend::dim::Dim;
use graphene_frontend::op::{AttentionAttrs, Op, ReduceOp};

#[rustfmt::skip]
pub(super) const RULES: &[Rule] = &[
    rule("softmax",           "(Div (Exp (Sub ?x (ReduceMax ?m ?x))) (ReduceSum ?a (Exp (Sub ?x (ReduceMax ?m ?x)))))", &[Single("x")], |s| softmax(s, &[("m", ReduceOp::Max), ("a", ReduceOp::Sum)])),
    rule("softmax-unshifted", "(Div (Exp ?x) (ReduceSum ?a (Exp ?x)))", &[Single("x")], |s| softmax(s, &[("a", ReduceOp::Sum)])),
    rule("attention",         "(MatMul ?w ?v)", &[Single("v")], attention),
    law("attention-scale",    attention_scale),
    law("attention-mask",     attention_mask),
    law("attention-groups",   attention_groups),
    law("attention-heads",    attention_heads),
];

/// A softmax along the axis of all these reductions.
fn softmax(s: &mut Site<'_>, reductions: &[(&str, ReduceOp)]) -> Option<Id> {
    let along = |&(name, expected): &(&str, ReduceOp)| match s.attributes(name)? {
        Op::Reduce { op, axes, keep: true } if op == expected && axes.len() == 1 => Some(axes[0]),
        _ => None,
    };
    let axes = reductions.iter().map(along).collect::<Option<Vec<_>>>()?;
    let axis = *axes.first()?;
    let same = axes.iter().all(|own| *own == axis);
    if same { s.add(Op::Softmax { axis, log: false }, &[s.var("x")]) } else { None }
}

fn attention(s: &mut Site<'_>) -> Option<Id> {
    let (w, v) = (s.var("w"), s.var("v"));
    let (rank, dtype) = (s.ty(w)?.rank(), s.dtype(v)?);
    if rank < 3 || s.ty(v)?.rank() != rank {
        return None;
    }
    let weights = weights(s, w, dtype)?;
    let scores = weights.scores;
    let (matmul, whole, shape) = (s.shape(scores.matmul)?, s.shape(w)?, s.shape(s.root)?);
    let lead = heads(&scores, &matmul, &whole)?;
    let rank = s.ty(scores.k)?.rank();
    let mut swap: Vec<usize> = (0..rank).collect();
    swap.swap(rank - 2, rank - 1);
    let k = s.transpose(scores.k, swap)?;
    let mut operands = vec![
        under_heads(s, scores.q, &matmul, &lead, false)?,
        under_heads(s, k, &matmul, &lead, true)?,
        under_heads(s, v, &whole, &lead, true)?,
    ];
    let mut fill = f32::NEG_INFINITY;
    match scores.mask {
        Mask::Nothing => {}
        Mask::Allowed(mask, of, number) => {
            fill = s.attribute(v, number)?;
            operands.push(mask_under(s, mask, &of, &lead)?);
        }
        Mask::Added(mask, of) if s.dtype(mask)? == dtype => {
            operands.push(mask_under(s, mask, &of, &lead)?);
        }
        Mask::Added(..) => return None,
    }
    let (scale, softcap, guarded) = (scores.scale as f32, scores.softcap as f32, weights.guarded);
    let attrs = AttentionAttrs { scale, causal: false, softcap, guarded, fill };
    let y = s.add(Op::Attention(attrs), &operands)?;
    let y = s.reshape(y, shape.clone())?;
    let Some((allowed, of)) = weights.allowed else { return Some(y) };
    zero_elsewhere(s, y, allowed, &of)
}

/// Rows of an attention's result with zeros in those where nothing of scores of a shape is allowed. Not a guarded
/// attention: that gives zeros also where a score is NaN.
fn zero_elsewhere(s: &mut Site<'_>, y: Id, allowed: Id, of: &[Dim]) -> Option<Id> {
    let allowed = mask_under(s, allowed, of, lead(&s.shape(y)?))?;
    let keys = s.ty(allowed)?.rank().checked_sub(1)?;
    let any = s.add(Op::Reduce { op: ReduceOp::Max, axes: vec![keys], keep: true }, &[allowed])?;
    let zero = s.scalar(y, 0.0)?;
    s.add(Op::Select, &[any, y, zero])
}

/// Batch and heads: those that the mask, the scores or the weights name, one head where none does.
fn heads(scores: &Scores, matmul: &[Dim], whole: &[Dim]) -> Option<Vec<Dim>> {
    let masked = match &scores.mask {
        Mask::Nothing => None,
        Mask::Allowed(_, of, _) | Mask::Added(_, of) => Some(of.as_slice()),
    };
    let candidates = masked.into_iter().chain([matmul, whole]).map(lead);
    let mut named = candidates.filter(|lead| lead.len() == 2);
    match (named.next(), lead(matmul)) {
        (Some(named), _) => Some(named.to_vec()),
        (None, [batch]) => Some(vec![batch.clone(), Dim::from(1)]),
        (None, [batch, groups, of]) => Some(vec![batch.clone(), groups * of]),
        _ => None,
    }
}

/// An operand of a matmul of this shape as `[batch, heads, rows, columns]`.
fn under_heads(s: &mut Site<'_>, x: Id, matmul: &[Dim], heads: &[Dim], shared: bool) -> Option<Id> {
    let own = s.shape(x)?;
    if lead(matmul) == heads {
        return Some(x);
    }
    let mut shape = match lead(&own) {
        // Keys and values that all queries of a group read.
        [batch, group, one]
            if shared && *one == 1 && lead(matmul)[..2] == [batch.clone(), group.clone()] =>
        {
            vec![batch.clone(), group.clone()]
        }
        own if own == lead(matmul) => heads.to_vec(),
        _ => return None,
    };
    shape.extend_from_slice(&own[own.len() - 2..]);
    s.reshape(x, shape)
}

/// Attention of scaled queries or keys is attention with that scale.
fn attention_scale(s: &mut Site<'_>) -> Option<Id> {
    let Some(Op::Attention(attrs)) = s.op.clone() else { return None };
    let mut inputs = s.inputs.clone();
    let queries = inputs[0]?;
    let mut scale = f64::from(attrs.scale);
    for input in inputs.iter_mut().take(2) {
        for [x, by] in s.operands((*input)?, "Mul") {
            if let Some(by) = s.number(by).filter(|_| s.ty(x) == (*input).and_then(|id| s.ty(id))) {
                (*input, scale) = (Some(x), scale * by);
                break;
            }
        }
    }
    if scale == f64::from(attrs.scale) {
        return None;
    }
    let scale = s.attribute(queries, scale)?;
    s.add_optional(Op::Attention(AttentionAttrs { scale, ..attrs }), &inputs)
}

/// A mask broadcasts by itself: one that holds for all queries stays one row of keys.
fn attention_mask(s: &mut Site<'_>) -> Option<Id> {
    let Some(Op::Attention(attrs)) = s.op.clone() else { return None };
    let mask = s.inputs.get(3).copied().flatten()?;
    let [source] = *s.operands(mask, "Expand").first()?;
    let mut inputs = s.inputs.clone();
    inputs[3] = Some(source);
    s.add_optional(Op::Attention(attrs), &inputs)
}

/// Heads of keys and values that are repeated for a group of queries are read in place.
fn attention_groups(s: &mut Site<'_>) -> Option<Id> {
    let Some(Op::Attention(attrs)) = s.op.clone() else { return None };
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
    for [flat] in s.operands(x, "Reshape") {
        for [wide] in s.operands(flat, "Expand") {
            let (expanded, shape) = (s.shape(flat)?, s.shape(wide)?);
            let repeats = shape.len() == 5
                && shape[2] == 1
                && expanded[..2] == shape[..2]
                && expanded[3..] == shape[3..]
                && expanded[3..] == whole[2..]
                && expanded[0] == whole[0];
            if repeats {
                return s.reshape(wide, [&shape[..2], &shape[3..]].concat());
            }
        }
    }
    None
}

/// Attention over batch and heads as one dim is attention over both, where queries show what they are: then nothing
/// has to lie as if they were one.
fn attention_heads(s: &mut Site<'_>) -> Option<Id> {
    let Some(Op::Attention(attrs)) = s.op.clone() else { return None };
    let queries = s.inputs[0]?;
    let whole = s.shape(queries)?[0].clone();
    let lead = parts(s, queries, 0, PARTS)?;
    let mut inputs = s.inputs.clone();
    for (slot, input) in inputs.iter_mut().enumerate() {
        let Some(x) = *input else { continue };
        let own = s.shape(x)?;
        if slot == 3 && (own.len() < 4 || own[..2].iter().all(|dim| *dim == 1)) {
            continue;
        }
        if own.len() != 4 || own[0] != whole || own[1] != 1 {
            return None;
        }
        *input = Some(s.reshape(x, [&lead[..], &own[2..]].concat())?);
    }
    let y = s.add_optional(Op::Attention(attrs), &inputs)?;
    s.reshape(y, s.shape(s.root)?)
}

/// Changes of view that are looked through for the parts of a dim.
const PARTS: usize = 4;

/// The two dims that an axis of a value is made of, where a change of view before it shows them.
fn parts(s: &Site<'_>, x: Id, axis: usize, depth: usize) -> Option<[Dim; 2]> {
    let own = s.shape(x)?;
    let depth = depth.checked_sub(1)?;
    let transposed = |(op, inputs): (Op, Vec<Option<Id>>)| match op {
        Op::Transpose(perm) => parts(s, inputs[0]?, perm[axis], depth),
        _ => None,
    };
    let reshaped = |[before]: [Id; 1]| {
        let from = s.shape(before)?;
        if let Some(runs) = runs(&own, &from) {
            let run = runs[axis].clone();
            let named: Vec<usize> = run.filter(|&part| from[part] != 1).collect();
            return match named[..] {
                [a, b] => Some([from[a].clone(), from[b].clone()]),
                [one] => parts(s, before, one, depth),
                _ => None,
            };
        }
        // Batch and heads times their columns, made batch times heads and columns.
        let elements = |dims: &[Dim]| dims.iter().product::<Dim>();
        let start = elements(&own[..axis]);
        let mut places = 0..from.len();
        let batch = places.find(|&at| elements(&from[..at]) == start && from[at] != 1)?;
        let heads = own[axis].exact_div(&from[batch]).filter(|heads| *heads != 1)?;
        Some([from[batch].clone(), heads])
    };
    let found = s.operations(x, "Transpose").into_iter().find_map(transposed);
    found.or_else(|| s.operands(x, "Reshape").into_iter().find_map(reshaped))
}
