//! Layouts: changes of view that merge, vanish, or move to where they vanish.

use crate::rewrite::language::Known;
use crate::rewrite::rule::Given::Constant;
use crate::rewrite::rule::{Rule, Site, law, rule};
use egg::Id;
use graphene_frontend::dim::Dim;
use graphene_frontend::op::Op;

#[rustfmt::skip]
pub(super) const RULES: &[Rule] = &[
    rule("reshape-twice",        "(Reshape ?s (Reshape ?t ?x))", &[], |s| { let op = s.attributes("s")?; s.add(op, &[s.var("x")]) }),
    rule("reshape-to-itself",    "(Reshape ?s ?x)", &[], same_shape),
    rule("expand-twice",         "(Expand ?s (Expand ?t ?x))", &[], |s| { let op = s.attributes("s")?; s.add(op, &[s.var("x")]) }),
    rule("expand-to-itself",     "(Expand ?s ?x)", &[], same_shape),
    rule("transpose-twice",      "(Transpose ?p (Transpose ?q ?x))", &[], transpose_twice),
    rule("transpose-nothing",    "(Transpose ?p ?x)", &[], transpose_nothing),
    rule("transpose-of-ones",    "(Transpose ?p ?x)", &[], transpose_of_ones),
    rule("reshape-of-transpose", "(Reshape ?s (Transpose ?p ?x))", &[], reshape_of_transpose),
    rule("transpose-of-batches", "(Reshape ?s (Transpose ?p (Reshape ?t ?x)))", &[], transpose_of_batches),
    rule("product-of-reshape",   "(MatMul (Reshape ?s ?x) ?w)", &[Constant("w")], product_of_reshape),
    law("reduction-kept",        reduction_kept),
    law("pointwise-of-expands",  pointwise_of_expands),
    law("pointwise-broadcasts",  pointwise_broadcasts),
    law("pointwise-of-reshapes", pointwise_of_reshapes),
    law("pointwise-of-transposes", pointwise_of_transposes),
];

fn same_shape(s: &mut Site<'_>) -> Option<Id> {
    (s.ty(s.var("x"))? == s.ty(s.root)?).then(|| s.var("x"))
}

fn perm(op: Option<Op>) -> Option<Vec<usize>> {
    match op {
        Some(Op::Transpose(perm)) => Some(perm),
        _ => None,
    }
}

fn transpose_twice(s: &mut Site<'_>) -> Option<Id> {
    let (outer, inner) = (perm(s.attributes("p"))?, perm(s.attributes("q"))?);
    let both = outer.iter().map(|&axis| inner[axis]).collect();
    s.transpose(s.var("x"), both)
}

fn transpose_nothing(s: &mut Site<'_>) -> Option<Id> {
    let perm = perm(s.attributes("p"))?;
    perm.iter().enumerate().all(|(i, &axis)| i == axis).then(|| s.var("x"))
}

/// A transpose that moves dims of size one only is a reshape.
fn transpose_of_ones(s: &mut Site<'_>) -> Option<Id> {
    let perm = perm(s.attributes("p"))?;
    let shape = s.shape(s.var("x"))?;
    let moved: Vec<usize> = perm.into_iter().filter(|&axis| shape[axis] != 1).collect();
    let ascending = moved.windows(2).all(|pair| pair[0] < pair[1]);
    let to = s.shape(s.root)?;
    if ascending { s.reshape(s.var("x"), to) } else { None }
}

/// Dims of size one may come and go before a transpose as well as after it.
fn reshape_of_transpose(s: &mut Site<'_>) -> Option<Id> {
    let perm = perm(s.attributes("p"))?;
    let from = s.shape(s.var("x"))?;
    let to = s.shape(s.root)?;
    let kept = |shape: &[Dim]| shape.iter().filter(|dim| **dim != 1).cloned().collect::<Vec<_>>();
    let order: Vec<usize> = perm.iter().copied().filter(|&axis| from[axis] != 1).collect();
    let transposed: Vec<Dim> = order.iter().map(|&axis| from[axis].clone()).collect();
    if kept(&to) != transposed || to.len() == from.len() || order.is_empty() {
        return None;
    }
    // The dims in the order of `x`, with the ones of the result in front of the dims that they precede.
    let mut places: Vec<Option<usize>> = Vec::with_capacity(to.len());
    let mut next = 0;
    for dim in &to {
        let one = *dim == 1;
        places.push((!one).then(|| order[next]));
        next += usize::from(!one);
    }
    let mut sorted: Vec<usize> = (0..to.len()).collect();
    sorted.sort_by_key(|&place| (places[place].map_or(0, |axis| axis + 1), place));
    let before: Vec<Dim> = sorted.iter().map(|&place| to[place].clone()).collect();
    let mut perm = vec![0; to.len()];
    for (i, &place) in sorted.iter().enumerate() {
        perm[place] = i;
    }
    let x = s.reshape(s.var("x"), before)?;
    s.transpose(x, perm)
}

/// Leading dims that are merged for a transpose of the last two, and split again, are dims that it leaves alone.
fn transpose_of_batches(s: &mut Site<'_>) -> Option<Id> {
    let x = s.var("x");
    let (from, to) = (s.shape(x)?, s.shape(s.root)?);
    let Op::Reshape(merged) = s.attributes("t")? else { return None };
    let (rank, last) = (from.len(), merged.len().checked_sub(2)?);
    let turned = perm(s.attributes("p"))? == [(0..last).collect(), vec![last + 1, last]].concat();
    let matrices = rank.checked_sub(2)?;
    let same = merged[last..] == from[matrices..]
        && to.len() == rank
        && to[..matrices] == from[..matrices]
        && to[matrices] == from[rank - 1]
        && to[rank - 1] == from[matrices];
    if !turned || !same {
        return None;
    }
    s.transpose(x, [(0..matrices).collect(), vec![rank - 1, rank - 2]].concat())
}

/// A product of rows that were merged is the merged product of the rows.
fn product_of_reshape(s: &mut Site<'_>) -> Option<Id> {
    let (x, w) = (s.var("x"), s.var("w"));
    let (inner, weight) = (s.shape(x)?, s.shape(w)?);
    if weight.len() != 2 || inner.last()? != &weight[0] || inner.len() < 2 {
        return None;
    }
    let product = s.add(Op::MatMul, &[x, w])?;
    let to = s.shape(s.root)?;
    s.reshape(product, to)
}

/// Whether the operation takes each element by itself.
fn is_pointwise(op: &Op) -> bool {
    matches!(op, Op::Unary(_) | Op::Binary(_) | Op::Select | Op::Cast { .. })
}

/// The operands before a change of view that all of them go through; single numbers go through any.
fn before<'a>(s: &Site<'_>, name: &str, fits: impl Fn(&Op) -> bool + 'a) -> Option<(Vec<Id>, Op)> {
    let op = s.op.as_ref().filter(|op| is_pointwise(op))?;
    let _ = op;
    let mut sources = Vec::with_capacity(s.inputs.len());
    let mut view = None;
    let mut from: Option<Vec<Dim>> = None;
    for input in &s.inputs {
        let input = (*input)?;
        if s.ty(input)?.elements() == 1 {
            sources.push(input);
            continue;
        }
        let alike =
            |(own, _): &(Op, Vec<Option<Id>>)| fits(own) && view.as_ref().is_none_or(|v| v == own);
        let (own, x) = s.operations(input, name).into_iter().find(alike)?;
        let x = x.first().copied().flatten()?;
        if from.as_ref().is_some_and(|from| Some(from) != s.shape(x).as_ref()) {
            return None;
        }
        from = s.shape(x);
        view = Some(own);
        sources.push(x);
    }
    Some((sources, view?))
}

/// A single number as an operand of a value of any rank.
fn numbers_as_scalars(s: &mut Site<'_>, sources: Vec<Id>) -> Option<Vec<Id>> {
    let scalar = |id: Id, s: &mut Site<'_>| {
        let single = s.ty(id)?.elements() == 1;
        if single { s.reshape(id, Vec::new()) } else { Some(id) }
    };
    sources.into_iter().map(|id| scalar(id, s)).collect()
}

/// A function of broadcast values is the broadcast function of the values.
fn pointwise_of_expands(s: &mut Site<'_>) -> Option<Id> {
    let (sources, view) = before(s, "Expand", |_| true)?;
    let sources = numbers_as_scalars(s, sources)?;
    let inner = s.add(s.op.clone()?, &sources)?;
    s.add(view, &[inner])
}

/// Operands broadcast by themselves.
fn pointwise_broadcasts(s: &mut Site<'_>) -> Option<Id> {
    let op = s.op.clone().filter(|op| is_pointwise(op) && s.inputs.len() > 1)?;
    let mut inputs = Vec::with_capacity(s.inputs.len());
    let mut changed = false;
    for input in s.inputs.clone() {
        let input = input?;
        let source = s.operations(input, "Expand").into_iter().next();
        changed |= source.is_some();
        inputs.push(source.and_then(|(_, x)| x[0]).unwrap_or(input));
    }
    if changed { s.add(op, &inputs) } else { None }
}

/// A function of reshaped values is the reshaped function of the values; what broadcasts along the last dim
/// alone goes through where that dim stays.
fn pointwise_of_reshapes(s: &mut Site<'_>) -> Option<Id> {
    let op = s.op.clone().filter(is_pointwise)?;
    let to = s.shape(s.root)?;
    let mut sources = Vec::with_capacity(s.inputs.len());
    let mut from: Option<Vec<Dim>> = None;
    for input in s.inputs.clone() {
        let input = input?;
        let shape = s.shape(input)?;
        let single = s.ty(input)?.elements() == 1;
        let row = shape.len() == 1 && shape.last() == to.last() && to.len() > 1;
        let source = s.operations(input, "Reshape").into_iter().find_map(|(_, x)| x[0]);
        match source {
            Some(x) if shape == to && !row => {
                let own = s.shape(x)?;
                if from.as_ref().is_some_and(|from| *from != own) {
                    return None;
                }
                from = Some(own);
                sources.push(x);
            }
            _ if single || row => sources.push(input),
            _ => return None,
        }
    }
    let from = from?;
    let rows =
        s.inputs.iter().flatten().any(|&id| s.shape(id).is_some_and(|shape| shape.len() == 1));
    if rows && from.last() != to.last() {
        return None;
    }
    let sources = numbers_as_scalars(s, sources)?;
    let inner = s.add(op, &sources)?;
    s.reshape(inner, to)
}

/// A function of values transposed alike is the transposed function of the values; constants are transposed the
/// other way.
fn pointwise_of_transposes(s: &mut Site<'_>) -> Option<Id> {
    let op = s.op.clone().filter(is_pointwise)?;
    let transposed = |id: Id| s.operations(id, "Transpose").into_iter().map(|(op, x)| (op, x[0]));
    let computed = s.inputs.iter().flatten().filter(|id| !s.terms.is_constant(**id));
    let view = computed.flat_map(|&id| transposed(id)).next()?.0;
    let order = perm(Some(view.clone()))?;
    let mut back = vec![0; order.len()];
    for (place, &axis) in order.iter().enumerate() {
        back[axis] = place;
    }
    let mut sources = Vec::with_capacity(s.inputs.len());
    for input in s.inputs.clone() {
        let input = input?;
        let alike = |(op, _): &(Op, Vec<Option<Id>>)| *op == view;
        let source = s.operations(input, "Transpose").into_iter().find(alike);
        let shape = s.shape(input)?;
        sources.push(if s.ty(input)?.elements() == 1 {
            input
        } else if let Some((_, x)) = source {
            x[0]?
        } else if s.terms.is_constant(input) && shape.len() <= order.len() {
            let ones = vec![Dim::from(1); order.len() - shape.len()];
            let whole = s.reshape(input, [ones, shape].concat())?;
            s.transpose(whole, back.clone())?
        } else {
            return None;
        });
    }
    let sources = numbers_as_scalars(s, sources)?;
    let inner = s.add(op, &sources)?;
    s.add(view, &[inner])
}

/// A reduction that drops its dims, and a reshape that puts them back, is one that keeps them.
fn reduction_kept(s: &mut Site<'_>) -> Option<Id> {
    let Some(Op::Reshape(to)) = s.op.clone() else { return None };
    for name in ["ReduceMean", "ReduceSum", "ReduceMax"] {
        for (op, inputs) in s.operations(s.inputs[0]?, name) {
            let Op::Reduce { op, axes, keep: false } = op else { continue };
            let x = inputs[0]?;
            let mut kept = s.shape(x)?;
            axes.iter().for_each(|&axis| kept[axis] = Dim::from(1));
            if kept == to {
                return s.add(Op::Reduce { op, axes, keep: true }, &[x]);
            }
        }
    }
    None
}
