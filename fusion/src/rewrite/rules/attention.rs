//! Softmax and attention.
//!
//! Attention is found from its last product inwards: `weights · v`, the weights a softmax (perhaps guarded
//! against NaN) of scores (perhaps masked, scaled), the scores `q · kᵀ`. Scales reach the scores by the rules of
//! [`super::algebra`], changes of view leave the operands by those of [`super::layout`].

use super::algebra::scaled;
use crate::rewrite::rule::Given::Float;
use crate::rewrite::rule::{Rule, Site, law, rule};
use egg::Id;
use graphene_frontend::dim::Dim;
use graphene_frontend::dtype::DType;
use graphene_frontend::op::{AttentionAttrs, Binary, Op, ReduceOp, Unary};

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

fn attention(s: &mut Site<'_>) -> Option<Id> {
    let (w, v) = (s.var("w"), s.var("v"));
    let (rank, dtype) = (s.ty(w)?.rank(), s.dtype(v)?);
    if rank < 3 || s.ty(v)?.rank() != rank {
        return None;
    }
    let weights = weights(s, w)?;
    let scores = weights.scores;
    let (product, whole, shape) = (s.shape(scores.product)?, s.shape(w)?, s.shape(s.root)?);
    let lead = heads(&scores, &product, &whole)?;
    let rank = s.ty(scores.k)?.rank();
    let mut swap: Vec<usize> = (0..rank).collect();
    swap.swap(rank - 2, rank - 1);
    let k = s.transpose(scores.k, swap)?;
    let mut operands = vec![
        under_heads(s, scores.q, &product, &lead, false)?,
        under_heads(s, k, &product, &lead, true)?,
        under_heads(s, v, &whole, &lead, true)?,
    ];
    match scores.mask {
        Mask::Nothing => {}
        Mask::Allowed(mask, of) => operands.push(mask_under(s, mask, &of, &lead)?),
        Mask::Added(mask, of) if s.dtype(mask)? == dtype => {
            operands.push(mask_under(s, mask, &of, &lead)?);
        }
        Mask::Added(..) => return None,
    }
    let (scale, softcap, guarded) = (scores.scale as f32, scores.softcap as f32, weights.guarded);
    let attrs = AttentionAttrs { scale, causal: false, softcap, guarded };
    let y = s.add(Op::Attention(attrs), &operands)?;
    s.reshape(y, shape)
}

/// What is in front of the rows and columns of scores.
fn lead(shape: &[Dim]) -> &[Dim] {
    &shape[..shape.len() - 2]
}

/// Batch and heads: those that the mask, the scores or the weights name, one head where none does.
fn heads(scores: &Scores, product: &[Dim], whole: &[Dim]) -> Option<Vec<Dim>> {
    let masked = match &scores.mask {
        Mask::Nothing => None,
        Mask::Allowed(_, of) | Mask::Added(_, of) => Some(of.as_slice()),
    };
    let candidates = masked.into_iter().chain([product, whole]).map(lead);
    let mut named = candidates.filter(|lead| lead.len() == 2);
    match (named.next(), lead(product)) {
        (Some(named), _) => Some(named.to_vec()),
        (None, [batch]) => Some(vec![batch.clone(), Dim::from(1)]),
        (None, [batch, groups, of]) => Some(vec![batch.clone(), groups * of]),
        _ => None,
    }
}

/// An operand of a product of this shape as `[batch, heads, rows, columns]`.
fn under_heads(
    s: &mut Site<'_>,
    x: Id,
    product: &[Dim],
    heads: &[Dim],
    shared: bool,
) -> Option<Id> {
    let own = s.shape(x)?;
    if lead(product) == heads {
        return Some(x);
    }
    let mut shape = match lead(&own) {
        // Keys and values that all queries of a group read.
        [batch, group, one]
            if shared && *one == 1 && lead(product)[..2] == [batch.clone(), group.clone()] =>
        {
            vec![batch.clone(), group.clone()]
        }
        own if own == lead(product) => heads.to_vec(),
        _ => return None,
    };
    shape.extend_from_slice(&own[own.len() - 2..]);
    s.reshape(x, shape)
}

/// A mask of scores of a shape as one of scores with these leading dims.
fn mask_under(s: &mut Site<'_>, mask: Id, of: &[Dim], to: &[Dim]) -> Option<Id> {
    let from = lead(of);
    let mut own = s.shape(mask)?;
    if from == to || own.len() <= 2 {
        return Some(mask);
    }
    while own.len() < of.len() {
        own.insert(0, Dim::from(1));
    }
    let same = from.iter().rev().zip(to.iter().rev()).take_while(|(a, b)| a == b).count();
    let (split, joined) = (from.len() - same, to.len() - same);
    let mut mask = s.reshape(mask, own.clone())?;
    let shape = if own[..split].iter().all(|dim| *dim == 1) {
        [&vec![Dim::from(1); joined][..], &own[split..]].concat()
    } else {
        let wide = [&from[..split], &own[split..]].concat();
        if wide != own {
            mask = s.add(Op::Expand(wide), &[mask])?;
        }
        [&to[..joined], &own[split..]].concat()
    };
    s.reshape(mask, shape)
}

/// What stands between the two products.
struct Weights {
    scores: Scores,
    guarded: bool,
}

/// The softmax over the last axis behind a class, and what is done to the weights after it.
fn weights(s: &mut Site<'_>, w: Id) -> Option<Weights> {
    let (mut inner, mut guarded, mut kept) = (w, false, None);
    for _ in 0..DEPTH {
        let rank = s.ty(inner)?.rank();
        let softmaxes = s.operations(inner, "Softmax");
        let over_keys = |(op, _): &&(Op, Vec<Option<Id>>)| matches!(op, Op::Softmax { axis, log: false } if *axis + 1 == rank);
        if let Some(masked) = softmaxes.iter().find(over_keys).and_then(|(_, x)| x[0]) {
            let scores = match kept {
                None => scores(s, masked, &mut VISITS.clone())?,
                Some(kept) => kept_scores(s, masked, kept)?,
            };
            return Some(Weights { scores, guarded });
        }
        inner = if let Some(weights) = nan_guarded(s, inner) {
            guarded = true;
            weights
        } else if let Some((weights, condition)) = zeroed(s, inner) {
            (guarded, kept) = (true, Some(condition));
            weights
        } else {
            viewed(s, inner)?
        };
    }
    None
}

/// Changes of view, casts and guards around a softmax.
const DEPTH: usize = 5;

/// Classes that are looked at for one set of scores.
const VISITS: usize = 64;

/// The weights that are zero where they are NaN.
fn nan_guarded(s: &Site<'_>, id: Id) -> Option<Id> {
    s.operations(id, "Select").into_iter().find_map(|(_, inputs)| {
        let (nan, zero, weights) = (inputs[0]?, inputs[1]?, inputs[2]?);
        let guards = s.operations(nan, "IsNan").iter().any(|(_, x)| x[0] == Some(weights));
        (guards && s.is(zero, 0.0)).then_some(weights)
    })
}

/// A condition, and whether it allows (or forbids).
type Condition = (Id, bool);

/// The weights that are zero where a condition forbids.
fn zeroed(s: &Site<'_>, id: Id) -> Option<(Id, Condition)> {
    s.operations(id, "Select").into_iter().find_map(|(_, inputs)| {
        let (condition, a, b) = (inputs[0]?, inputs[1]?, inputs[2]?);
        match (s.is(a, 0.0), s.is(b, 0.0)) {
            (false, true) => Some((a, (condition, true))),
            (true, false) => Some((b, (condition, false))),
            _ => None,
        }
    })
}

/// What a class is a cast of, or another view of with the same last two dims.
fn viewed(s: &Site<'_>, id: Id) -> Option<Id> {
    // Attention computes in `f32` whatever its types.
    let floats = |x: &Id| s.dtype(*x).is_some_and(DType::is_float);
    let casts = s.operations(id, "Cast").into_iter().filter_map(|(_, x)| x[0].filter(floats));
    let to = s.shape(id)?;
    let rows = |x: &Id| {
        s.shape(*x).is_some_and(|own| {
            own.len() > 2 && to.len() > 2 && own[own.len() - 2..] == to[to.len() - 2..]
        })
    };
    let views = s.operations(id, "Reshape").into_iter().filter_map(|(_, x)| x[0].filter(rows));
    casts.chain(views).next()
}

/// What is done to scores before the softmax; masks with the shape of the scores that they are for.
enum Mask {
    Nothing,
    /// Truth values: may be attended.
    Allowed(Id, Vec<Dim>),
    /// Numbers, added.
    Added(Id, Vec<Dim>),
}

/// `mask(softcap·tanh(scale · q · k / softcap))`.
struct Scores {
    q: Id,
    /// Keys, transposed.
    k: Id,
    product: Id,
    scale: f64,
    softcap: f64,
    mask: Mask,
}

/// Scores by the first way of reading a class that ends at a product.
fn scores(s: &mut Site<'_>, id: Id, visits: &mut usize) -> Option<Scores> {
    *visits = visits.checked_sub(1)?;
    let own = s.ty(id)?.clone();
    for (_, inputs) in s.operations(id, "Mul") {
        let (inner, by) = (inputs[0]?, inputs[1]?);
        let Some(by) = s.number(by).filter(|by| *by > 0.0 && s.ty(inner) == Some(&own)) else {
            continue;
        };
        if let Some(scaled) = times(s, inner, by, visits) {
            return Some(scaled);
        }
    }
    for (_, inputs) in s.operations(id, "MatMul") {
        let (q, k) = (inputs[0]?, inputs[1]?);
        if s.ty(q)?.rank() == s.ty(k)?.rank() && own.rank() > 2 {
            return Some(Scores {
                q,
                k,
                product: id,
                scale: 1.0,
                softcap: 0.0,
                mask: Mask::Nothing,
            });
        }
    }
    if let Some(found) = viewed(s, id).and_then(|inner| scores(s, inner, visits)) {
        return Some(found);
    }
    for (_, inputs) in s.operations(id, "Add") {
        for (a, b) in [(0, 1), (1, 0)] {
            let (scored, mask) = (inputs[a]?, inputs[b]?);
            if s.ty(scored) != Some(&own) {
                continue;
            }
            if let Some(found) = scores(s, scored, visits) {
                return with_added(s, found, mask, &own.shape);
            }
        }
    }
    for (_, inputs) in s.operations(id, "Select") {
        let (condition, a, b) = (inputs[0]?, inputs[1]?, inputs[2]?);
        for (scored, fill, allows) in [(a, b, true), (b, a, false)] {
            let Some(fill) = s.number(fill).filter(|_| s.ty(scored) == Some(&own)) else {
                continue;
            };
            if fill > SWALLOWS {
                continue;
            }
            if let Some(found) = scores(s, scored, visits) {
                return with_fill(s, found, (condition, allows), fill, &own.shape);
            }
        }
    }
    None
}

/// Scores times a number, that of a softcap perhaps.
fn times(s: &mut Site<'_>, inner: Id, by: f64, visits: &mut usize) -> Option<Scores> {
    for (_, inputs) in s.operations(inner, "Tanh") {
        let found = scores(s, inputs[0]?, visits);
        if let Some(found) =
            found.filter(|found| matches!(found.mask, Mask::Nothing) && found.softcap == 0.0)
        {
            return Some(Scores { scale: found.scale * by, softcap: by, ..found });
        }
    }
    let found = scores(s, inner, visits).filter(|found| found.softcap == 0.0)?;
    let mask = match found.mask {
        Mask::Added(mask, of) => Mask::Added(scaled(s, mask, by)?, of),
        mask => mask,
    };
    Some(Scores { scale: found.scale * by, mask, ..found })
}

/// Scores of this shape, with something added.
fn with_added(s: &mut Site<'_>, found: Scores, addend: Id, shape: &[Dim]) -> Option<Scores> {
    let known = match found.mask {
        Mask::Nothing => None,
        Mask::Added(mask, of) => Some(mask_under(s, mask, &of, lead(shape))?),
        Mask::Allowed(mask, of) => {
            let mask = mask_under(s, mask, &of, lead(shape))?;
            let (zero, fill) = (s.scalar(addend, 0.0)?, s.scalar(addend, f64::NEG_INFINITY)?);
            Some(s.add(Op::Select, &[mask, zero, fill])?)
        }
    };
    let sum = match known {
        None => addend,
        Some(known) => s.binary(Binary::Add, known, addend)?,
    };
    Some(Scores { mask: Mask::Added(sum, shape.to_vec()), ..found })
}

/// Scores of this shape, replaced where a condition forbids: infinity is a mask of truth values, a number near the
/// lowest swallows whatever it is added to.
fn with_fill(
    s: &mut Site<'_>,
    found: Scores,
    by: Condition,
    fill: f64,
    shape: &[Dim],
) -> Option<Scores> {
    let (condition, allows) = by;
    let allowed = if allows { condition } else { s.unary(Unary::Not, condition)? };
    let infinite = fill == f64::NEG_INFINITY;
    let mask = match found.mask {
        Mask::Nothing if infinite => Mask::Allowed(allowed, shape.to_vec()),
        Mask::Allowed(mask, of) if infinite => {
            let mask = mask_under(s, mask, &of, lead(shape))?;
            Mask::Allowed(s.binary(Binary::And, mask, allowed)?, shape.to_vec())
        }
        known => {
            let like = s.scalar(found.q, 0.0)?;
            let kept = match known {
                Mask::Nothing => like,
                Mask::Added(mask, of) => mask_under(s, mask, &of, lead(shape))?,
                Mask::Allowed(mask, of) => {
                    let mask = mask_under(s, mask, &of, lead(shape))?;
                    let lowest = s.scalar(like, f64::NEG_INFINITY)?;
                    s.add(Op::Select, &[mask, like, lowest])?
                }
            };
            let fill = s.scalar(kept, fill)?;
            Mask::Added(s.add(Op::Select, &[allowed, kept, fill])?, shape.to_vec())
        }
    };
    Some(Scores { mask, ..found })
}

/// Scores that are replaced where the weights become zero: what is forbidden has no weight, and a row that may
/// attend nowhere is zero.
fn kept_scores(s: &mut Site<'_>, masked: Id, kept: Condition) -> Option<Scores> {
    for (_, inputs) in s.operations(masked, "Select") {
        let (scored, fill) =
            if kept.1 { (inputs[1]?, inputs[2]?) } else { (inputs[2]?, inputs[1]?) };
        let swallows = s.number(fill).is_some_and(|fill| fill <= SWALLOWS);
        if inputs[0] != Some(kept.0) || !swallows || s.ty(scored) != s.ty(masked) {
            continue;
        }
        let shape = s.shape(masked)?;
        let found = scores(s, scored, &mut VISITS.clone())?;
        return with_fill(s, found, kept, f64::NEG_INFINITY, &shape);
    }
    None
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
