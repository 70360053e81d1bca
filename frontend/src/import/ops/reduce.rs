//! Reductions, running sums, and what picks along an axis.

use super::helpers::Outputs;
use super::{Row, row};
use crate::dim::Dim;
use crate::graph::ValueId;
use crate::import::{Context, OpError};
use crate::op::{Binary, CumulativeOp, Op, ReduceOp, Unary};

/// A row for a reduction.
macro_rules! reduce {
    ($name:literal, $op:ident) => {
        row($name, 1, |c| reduce(c, ReduceOp::$op))
    };
}

/// The operators of this family.
pub(super) const ROWS: &[Row] = &[
    reduce!("ReduceSum", Sum),
    reduce!("ReduceMean", Mean),
    reduce!("ReduceProd", Prod),
    reduce!("ReduceMax", Max),
    reduce!("ReduceMin", Min),
    reduce!("ReduceL1", L1),
    reduce!("ReduceL2", L2),
    reduce!("ReduceSumSquare", SumSquare),
    reduce!("ReduceLogSum", LogSum),
    reduce!("ReduceLogSumExp", LogSumExp),
    row("ArgMax", 1, |c| arg_reduce(c, true)),
    row("ArgMin", 1, |c| arg_reduce(c, false)),
    row("CumSum", 11, |c| cumulative(c, CumulativeOp::Sum)),
    row("CumProd", 1, |c| cumulative(c, CumulativeOp::Prod)),
    row("Softmax", 1, |c| softmax(c, false)),
    row("LogSoftmax", 1, |c| softmax(c, true)),
    row("Hardmax", 1, hardmax),
];

/// The axes as input or attribute; none given means all, or none at all with `noop_with_empty_axes`.
fn reduce(c: &mut Context<'_, '_>, op: ReduceOp) -> Outputs {
    let x = c.input(0)?;
    let rank = c.rank(x);
    let given = match c.optional(1) {
        Some(axes) => c.known_ints(axes)?,
        None => c.ints("axes").map(<[i64]>::to_vec).unwrap_or_default(),
    };
    let mut axes = Vec::with_capacity(given.len());
    for axis in given {
        axes.push(c.axis(rank, axis)?);
    }
    axes.sort_unstable();
    axes.dedup();
    if axes.is_empty() {
        if c.int_or("noop_with_empty_axes", 0) != 0 {
            return elementwise(c, op, x);
        }
        axes = (0..rank).collect();
    }
    let keep = c.int_or("keepdims", 1) != 0;
    Ok(vec![c.reduce(op, x, axes, keep)?])
}

/// What a reduction over no axes does to each element.
fn elementwise(c: &mut Context<'_, '_>, op: ReduceOp, x: ValueId) -> Outputs {
    let y = match op {
        ReduceOp::Sum
        | ReduceOp::Mean
        | ReduceOp::Prod
        | ReduceOp::Max
        | ReduceOp::Min
        | ReduceOp::LogSumExp => x,
        ReduceOp::L1 | ReduceOp::L2 => c.unary(Unary::Abs, x)?,
        ReduceOp::SumSquare => c.times(x, x)?,
        ReduceOp::LogSum => c.unary(Unary::Log, x)?,
    };
    Ok(vec![y])
}

fn arg_reduce(c: &mut Context<'_, '_>, largest: bool) -> Outputs {
    let x = c.input(0)?;
    let axis = c.axis(c.rank(x), c.int_or("axis", 0))?;
    let keep = c.int_or("keepdims", 1) != 0;
    let last = c.int_or("select_last_index", 0) != 0;
    Ok(vec![c.add(Op::ArgReduce { largest, axis, keep, last }, &[x])?])
}

fn cumulative(c: &mut Context<'_, '_>, op: CumulativeOp) -> Outputs {
    let (x, axis) = (c.input(0)?, c.input(1)?);
    let axis = match c.known_ints(axis)?.as_slice() {
        &[axis] => c.axis(c.rank(x), axis)?,
        _ => return Err(c.invalid("`axis` must be one number")),
    };
    let exclusive = c.int_or("exclusive", 0) != 0;
    let reverse = c.int_or("reverse", 0) != 0;
    Ok(vec![c.add(Op::Cumulative { op, axis, exclusive, reverse }, &[x])?])
}

fn softmax(c: &mut Context<'_, '_>, log: bool) -> Outputs {
    along(c, |c, x, axis| c.add(Op::Softmax { axis, log }, &[x]))
}

fn hardmax(c: &mut Context<'_, '_>) -> Outputs {
    along(c, |c, x, axis| {
        let place = c.add(Op::ArgReduce { largest: true, axis, keep: true, last: false }, &[x])?;
        let size = c.shape(x)[axis].clone();
        let rank = c.rank(x);
        let iota = c.iota(size, axis, rank)?;
        let hit = c.binary(Binary::Equal, place, iota)?;
        let dtype = c.dtype(x);
        c.cast(hit, dtype)
    })
}

/// An operation along one axis; before opset 13, over all axes from `axis` on as if they were one.
fn along(
    c: &mut Context<'_, '_>,
    run: impl FnOnce(&mut Context<'_, '_>, ValueId, usize) -> Result<ValueId, OpError>,
) -> Outputs {
    let x = c.input(0)?;
    let rank = c.rank(x);
    if c.opset() >= 13 {
        let axis = c.axis(rank, c.int_or("axis", -1))?;
        return Ok(vec![run(c, x, axis)?]);
    }
    let axis = match c.int_or("axis", 1) {
        axis if usize::try_from(axis) == Ok(rank) => rank,
        axis => c.axis(rank, axis)?,
    };
    if axis + 1 == rank {
        return Ok(vec![run(c, x, axis)?]);
    }
    let shape = c.shape(x);
    let mut flat = shape[..axis].to_vec();
    flat.push(shape[axis..].iter().product::<Dim>());
    let x = c.reshape(x, flat)?;
    let y = run(c, x, axis)?;
    Ok(vec![c.reshape(y, shape)?])
}
