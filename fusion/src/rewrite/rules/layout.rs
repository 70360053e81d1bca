//! Layouts: changes of view that merge, vanish, or move to where they vanish.

use crate::base::view::inverse;
use crate::rewrite::rule::Given::Constant;
use crate::rewrite::rule::{Rule, Site, law, rule};
use egg::Id;
use graphene_frontend::{Binary, Dim, Op};
use std::ops::Range;

#[rustfmt::skip]
pub(super) const RULES: &[Rule] = &[
    rule("reshape-twice",        "(Reshape ?s (Reshape ?t ?x))", &[], |s| s.add(s.attributes("s")?, &[s.var("x")])),
    rule("reshape-to-itself",    "(Reshape ?s ?x)", &[], same_shape),
    rule("expand-twice",         "(Expand ?s (Expand ?t ?x))", &[], |s| s.add(s.attributes("s")?, &[s.var("x")])),
    rule("expand-to-itself",     "(Expand ?s ?x)", &[], same_shape),
    rule("transpose-twice",      "(Transpose ?p (Transpose ?q ?x))", &[], transpose_twice),
    rule("transpose-nothing",    "(Transpose ?p ?x)", &[], transpose_nothing),
    rule("transpose-of-ones",    "(Transpose ?p ?x)", &[], transpose_of_ones),
    rule("reshape-of-transpose", "(Reshape ?s (Transpose ?p ?x))", &[], reshape_of_transpose),
    rule("transpose-of-batches", "(Reshape ?s (Transpose ?p (Reshape ?t ?x)))", &[], transpose_of_batches),
    rule("split-of-transpose",   "(Reshape ?s (Transpose ?p ?x))", &[], split_of_transpose),
    rule("transpose-of-merge",   "(Transpose ?p (Reshape ?m ?x))", &[], transpose_of_merge),
    rule("reshape-of-matmul",   "(Reshape ?s (MatMul ?x ?w))", &[Constant("w")], reshape_of_matmul),
    rule("reshape-of-bias",      "(Reshape ?s (Add ?x ?b))", &[Constant("b")], reshape_of_bias),
    rule("matmul-of-reshape",   "(MatMul (Reshape ?s ?x) ?w)", &[Constant("w")], matmul_of_reshape),
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
    if let Some(Op::Transpose(perm)) = op { Some(perm) } else { None }
}

fn transpose_twice(s: &mut Site<'_>) -> Option<Id> {
    let (outer, inner) = (perm(s.attributes("p"))?, perm(s.attributes("q"))?);
    let both = outer.iter().map(|&axis| inner[axis]).collect();
    s.transpose(s.var("x"), both)
}

fn transpose_nothing(s: &mut Site<'_>) -> Option<Id> {
    perm(s.attributes("p"))?.is_sorted().then(|| s.var("x"))
}

/// A transpose that moves dims of size one only is a reshape.
fn transpose_of_ones(s: &mut Site<'_>) -> Option<Id> {
    let perm = perm(s.attributes("p"))?;
    let shape = s.shape(s.var("x"))?;
    let moved: Vec<usize> = perm.into_iter().filter(|&axis| shape[axis] != 1).collect();
    if moved.is_sorted() { s.reshape(s.var("x"), s.shape(s.root)?) } else { None }
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
    let mut next = order.iter().copied();
    let place = |dim: &Dim| if *dim == 1 { None } else { next.next() };
    let places: Vec<Option<usize>> = to.iter().map(place).collect();
    let mut sorted: Vec<usize> = (0..to.len()).collect();
    sorted.sort_by_key(|&place| (places[place].map_or(0, |axis| axis + 1), place));
    let before: Vec<Dim> = sorted.iter().map(|&place| to[place].clone()).collect();
    let x = s.reshape(s.var("x"), before)?;
    s.transpose(x, inverse(&sorted))
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

/// Dims that are split after a transpose can be split before it.
fn split_of_transpose(s: &mut Site<'_>) -> Option<Id> {
    let perm = perm(s.attributes("p"))?;
    let (from, to) = (s.shape(s.var("x"))?, s.shape(s.root)?);
    let turned: Vec<Dim> = perm.iter().map(|&axis| from[axis].clone()).collect();
    let runs = runs(&turned, &to)?;
    if to.len() == from.len() {
        return None;
    }
    // The parts of each axis of `x`, in the order of `x`.
    let parts = inverse(&perm).into_iter().flat_map(|place| runs[place].clone());
    let parts: Vec<usize> = parts.collect();
    let x = s.reshape(s.var("x"), parts.iter().map(|&part| to[part].clone()).collect())?;
    s.transpose(x, inverse(&parts))
}

/// Dims that are merged before a transpose can be merged after it.
fn transpose_of_merge(s: &mut Site<'_>) -> Option<Id> {
    let perm = perm(s.attributes("p"))?;
    let Op::Reshape(merged) = s.attributes("m")? else { return None };
    let from = s.shape(s.var("x"))?;
    let runs = runs(&merged, &from)?;
    if from.len() == merged.len() {
        return None;
    }
    let parts = perm.iter().flat_map(|&axis| runs[axis].clone()).collect();
    let x = s.transpose(s.var("x"), parts)?;
    s.reshape(x, s.shape(s.root)?)
}

/// For each dim the neighbouring parts whose product it is; `None` if they are no such parts.
pub(super) fn runs(whole: &[Dim], parts: &[Dim]) -> Option<Vec<Range<usize>>> {
    let mut runs: Vec<Range<usize>> = Vec::with_capacity(whole.len());
    let mut next = 0;
    for dim in whole {
        let start = next;
        let mut size = Dim::from(1);
        if parts.get(next).is_some_and(|part| *part == 1) {
            next += 1;
        }
        while size != *dim {
            size = &size * parts.get(next)?;
            next += 1;
        }
        runs.push(start..next);
    }
    if parts[next..].iter().any(|dim| *dim != 1) {
        return None;
    }
    runs.last_mut()?.end = parts.len();
    Some(runs)
}

/// A matmul whose rows are regrouped is the matmul of the regrouped rows.
fn reshape_of_matmul(s: &mut Site<'_>) -> Option<Id> {
    let (x, w) = (s.var("x"), s.var("w"));
    let (weight, to) = (s.shape(w)?, s.shape(s.root)?);
    let (width, lead) = to.split_last()?;
    if weight.len() != 2 || *width != weight[1] || lead.is_empty() {
        return None;
    }
    let rows = s.reshape(x, [lead, &weight[..1]].concat())?;
    s.add(Op::MatMul, &[rows, w])
}

/// Rows with a bias, regrouped, are the regrouped rows with the bias.
fn reshape_of_bias(s: &mut Site<'_>) -> Option<Id> {
    let (x, bias, to) = (s.var("x"), s.var("b"), s.shape(s.root)?);
    if s.shape(bias)?[..] != to[to.len().checked_sub(1)?..] || s.shape(x)?.last() != to.last() {
        return None;
    }
    let rows = s.reshape(x, to)?;
    s.binary(Binary::Add, rows, bias)
}

/// A matmul of rows that were merged is the merged matmul of the rows.
fn matmul_of_reshape(s: &mut Site<'_>) -> Option<Id> {
    let (x, w) = (s.var("x"), s.var("w"));
    let (inner, weight) = (s.shape(x)?, s.shape(w)?);
    if weight.len() != 2 || inner.last()? != &weight[0] || inner.len() < 2 {
        return None;
    }
    let matmul = s.add(Op::MatMul, &[x, w])?;
    s.reshape(matmul, s.shape(s.root)?)
}

fn is_pointwise(op: &Op) -> bool {
    matches!(op, Op::Unary(_) | Op::Binary(_) | Op::Select | Op::Cast { .. })
}

/// A pointwise operation and its operands before the change of view that they go through: each is what `source` says
/// of it, single numbers pass. All that are of the view must have one shape, the last that is returned.
fn before(
    s: &mut Site<'_>,
    source: impl Fn(&mut Site<'_>, Id) -> Option<Source>,
) -> Option<(Op, Vec<Id>, Option<Vec<Dim>>)> {
    let op = s.op.clone().filter(is_pointwise)?;
    let mut operands = Vec::with_capacity(s.inputs.len());
    let mut from: Option<Vec<Dim>> = None;
    for input in s.inputs.clone() {
        let input = input?;
        let operand = match source(s, input) {
            Some(Source::Viewed(x)) => {
                let shape = s.shape(x)?;
                if from.get_or_insert_with(|| shape.clone()) != &shape {
                    return None;
                }
                x
            }
            Some(Source::Passes(x)) => x,
            None if is_single(s, input) => input,
            None => return None,
        };
        // A single number goes with values of any rank.
        operands.push(if is_single(s, operand) {
            s.reshape(operand, Vec::new())?
        } else {
            operand
        });
    }
    Some((op, operands, from))
}

enum Source {
    /// What was changed.
    Viewed(Id),
    /// What stands beside that.
    Passes(Id),
}

fn is_single(s: &Site<'_>, id: Id) -> bool {
    s.ty(id).is_some_and(|ty| ty.elements() == 1)
}

/// What a class is this change of view of.
fn under(s: &Site<'_>, id: Id, view: &Op) -> Option<Id> {
    let views = s.operations(id, view.name()).into_iter();
    views.filter(|(op, _)| op == view).find_map(|(_, x)| x[0])
}

/// A function of broadcast values is the broadcast function of the values.
fn pointwise_of_expands(s: &mut Site<'_>) -> Option<Id> {
    let wide = s.inputs.iter().flatten().filter(|id| !is_single(s, **id));
    let view = wide.flat_map(|&id| s.operations(id, "Expand")).next()?.0;
    let expanded = |s: &mut Site<'_>, id| {
        let x = if is_single(s, id) { None } else { under(s, id, &view) };
        x.map(Source::Viewed)
    };
    let (op, operands, _) = before(s, expanded)?;
    let inner = s.add(op, &operands)?;
    s.add(view, &[inner])
}

/// Operands broadcast by themselves.
fn pointwise_broadcasts(s: &mut Site<'_>) -> Option<Id> {
    let op = s.op.clone().filter(|op| is_pointwise(op) && s.inputs.len() > 1)?;
    let mut inputs = Vec::with_capacity(s.inputs.len());
    let mut changed = false;
    for input in s.inputs.clone() {
        let input = input?;
        let source = s.operands(input, "Expand").first().map(|&[source]| source);
        changed |= source.is_some();
        inputs.push(source.unwrap_or(input));
    }
    if changed { s.add(op, &inputs) } else { None }
}

/// A function of reshaped values is the reshaped function of the values; what broadcasts along the last dim
/// alone goes through where that dim stays.
fn pointwise_of_reshapes(s: &mut Site<'_>) -> Option<Id> {
    let to = s.shape(s.root)?;
    let reshaped = |s: &mut Site<'_>, id| {
        let shape = s.shape(id)?;
        if shape.len() == 1 && shape.last() == to.last() && to.len() > 1 {
            return Some(Source::Passes(id));
        }
        let x = s.operands(id, "Reshape").first().map(|&[x]| x);
        x.filter(|_| shape == to).map(Source::Viewed)
    };
    let (op, operands, from) = before(s, reshaped)?;
    let from = from?;
    let rows = s.inputs.iter().flatten().any(|&id| s.ty(id).is_some_and(|ty| ty.rank() == 1));
    if rows && from.last() != to.last() {
        return None;
    }
    let inner = s.add(op, &operands)?;
    s.reshape(inner, to)
}

/// A function of values transposed alike is the transposed function of the values; constants are transposed the
/// other way.
fn pointwise_of_transposes(s: &mut Site<'_>) -> Option<Id> {
    let computed = s.inputs.iter().flatten().filter(|id| !s.is_constant(**id));
    let view = computed.flat_map(|&id| s.operations(id, "Transpose")).next()?.0;
    let back = inverse(&perm(Some(view.clone()))?);
    let transposed = |s: &mut Site<'_>, id| {
        if is_single(s, id) {
            return None;
        }
        if let Some(x) = under(s, id, &view) {
            return Some(Source::Passes(x));
        }
        let shape = s.shape(id).filter(|own| s.is_constant(id) && own.len() <= back.len())?;
        let ones = vec![Dim::from(1); back.len() - shape.len()];
        let whole = s.reshape(id, [ones, shape].concat())?;
        s.transpose(whole, back.clone()).map(Source::Passes)
    };
    let (op, operands, _) = before(s, transposed)?;
    let inner = s.add(op, &operands)?;
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
