//! Long reductions of few results, each as two: the first reduces parts side by side, the second their results. A GPU's
//! cores then read what one block would read alone.

use crate::base::cost::read_time;
use crate::base::rebuild::{InPlace, Rebuilt, Replaced, rebuilt};
use crate::base::sizes::{ceil, planning_sizes};
use graphene_frontend::op::Class;
use graphene_frontend::{Bindings, DType, Dim, Graph, Node, Op, ReduceOp, ValueId};
use graphene_ir::target::Target;

/// Bytes that are worth a block of their own.
const PART: i64 = 16 << 10;

/// Bytes of a row that is worth a result of its own.
const LEAST_ROW: i64 = 512;

/// Columns of a block, where the last axis is not reduced.
const COLUMNS: i64 = 128;

/// How a reduction is made two.
#[derive(Clone, Copy)]
enum Split {
    /// An axis is cut into so many parts.
    Parts {
        axis: usize,
        /// The size of each part along the axis.
        size: i64,
        parts: i64,
    },
    /// The first reduces rows, the axes from this one on, where the sizes of others are symbols.
    Rows(usize),
}

/// The graph with such reductions as two, where that is faster on the target, a GPU: by the cost of reading, or, where sizes are
/// symbols, where one block would read much. Partial results of half precision are held in single precision. Arithmetic
/// with a reduction's one number keeps the reduction's axes ([`on_kept_axes`]).
pub(crate) fn split_reductions(graph: &Graph, target: &Target, hints: &Bindings) -> Rebuilt<Graph> {
    let planned = planning_sizes(graph, hints);
    rebuilt(graph, |at, _, inputs| match split(graph, at.node, target, &planned) {
        Some(split) => in_two(at, inputs[0], split).map(Some),
        None => on_kept_axes(at, inputs),
    })
}

/// Arithmetic with single numbers, such as a reduction's result, on the axes that are kept, and without them only at its end: it can
/// share the reduction's launch, as no change of view stands between.
fn on_kept_axes(mut at: InPlace<'_>, inputs: &[Option<ValueId>]) -> Replaced {
    let is_made = |op: &Op| matches!(op.info().class, Class::Reduction | Class::Pointwise);
    let out = &at.node.outputs()[0];
    if at.node.op().info().class != Class::Pointwise || out.rank() > 0 {
        return Ok(None);
    }
    let kept = |value: ValueId| match at.graph.operation(value) {
        (Op::Reshape(_), &[Some(x)]) if is_made(at.graph.node(x.node).op()) => x,
        _ => value,
    };
    let of: Vec<_> = inputs.iter().map(|value| value.map(kept)).collect();
    if of == inputs {
        return Ok(None);
    }
    let x = at.add_optional(at.node.op().clone(), &of)?;
    at.add(Op::Reshape(Vec::new()), &[x]).map(Some)
}

/// What reduces the results of parts, if something does.
fn of_parts(op: ReduceOp) -> Option<ReduceOp> {
    match op {
        ReduceOp::SumSquare => Some(ReduceOp::Sum),
        ReduceOp::LogSum => None,
        ReduceOp::Sum | ReduceOp::Mean | ReduceOp::Prod | ReduceOp::Max | ReduceOp::Min => Some(op),
        ReduceOp::L1 | ReduceOp::L2 | ReduceOp::LogSumExp => Some(op),
    }
}

fn split(graph: &Graph, node: &Node, target: &Target, planned: &Bindings) -> Option<Split> {
    let Op::Reduce { axes, op, .. } = node.op() else { return None };
    of_parts(*op)?;
    let ty = graph.ty(node.inputs()[0]?);
    let last = *axes.last()?;
    if !matches!(ty.dtype, DType::F32 | DType::F16 | DType::BF16) {
        return None;
    }
    let known = |dims: &[Dim]| dims.iter().all(|dim| dim.known().is_some());
    let sizes = ty.shape.iter().map(|dim| dim.eval(planned).ok());
    let sizes: Vec<i64> = sizes.collect::<Option<_>>()?;
    let elements = sizes.iter().try_fold(1_i64, |all, &size| all.checked_mul(size))?;
    let results = elements / axes.iter().map(|&axis| sizes[axis].max(1)).product::<i64>();
    let blocks = if last + 1 == sizes.len() { results } else { ceil(results, COLUMNS) };
    let cores = i64::from(target.cores);
    if elements == 0 || blocks >= cores {
        return None;
    }
    let size = ty.dtype.size() as i64;
    let bytes = elements.checked_mul(size)?;
    let most = (2 * cores / blocks).min(bytes / blocks / PART);
    if !known(&ty.shape) {
        let rows =
            axes.iter().rev().zip((0..sizes.len()).rev()).take_while(|(own, axis)| *own == axis);
        let first = rows.map(|row| row.1).take_while(|axis| known(&ty.shape[*axis..])).last()?;
        let before = axes.iter().filter(|axis| **axis < first);
        let parts: i64 = before.map(|&axis| sizes[axis]).product();
        let row = sizes[first..].iter().product::<i64>() * size;
        let pays = parts > 1 && row >= LEAST_ROW && bytes / blocks >= PART;
        return pays.then_some(Split::Rows(first));
    }
    let parts = |axis: usize| (2..=most).rev().find(|parts| sizes[axis] % parts == 0);
    let (parts, axis) = axes.iter().filter_map(|&axis| Some((parts(axis)?, axis))).max()?;
    let read = |blocks: i64| read_time(target, bytes as f64, blocks as f64);
    let (whole, parted) = (read(blocks), read(blocks * parts) + target.launch_cost);
    (parted < whole).then(|| Split::Parts { axis, size: sizes[axis] / parts, parts })
}

fn in_two(mut at: InPlace<'_>, x: Option<ValueId>, split: Split) -> Rebuilt<ValueId> {
    let (Op::Reduce { op, axes, .. }, Some(x)) = (at.node.op(), x) else {
        unreachable!("only reductions are split");
    };
    let joined = of_parts(*op).expect("only reductions of which there is one are split");
    let out = &at.node.outputs()[0];
    let rounds = out.dtype != DType::F32 && !matches!(op, ReduceOp::Max | ReduceOp::Min);
    let (x, within, keep, left) = match split {
        Split::Parts { axis, size, parts } => {
            let mut shape = at.graph.ty(x).shape.clone();
            shape.splice(axis..=axis, [Dim::from(parts), Dim::from(size)]);
            let within = axes.iter().map(|&own| if own < axis { own } else { own + 1 }).collect();
            let place = axis - axes.iter().filter(|&&own| own < axis).count();
            (at.add(Op::Reshape(shape), &[x])?, within, false, vec![place])
        }
        Split::Rows(first) => (x, (first..at.graph.ty(x).rank()).collect(), true, axes.clone()),
    };
    let x = if rounds { at.cast(DType::F32, x)? } else { x };
    let x = at.add(Op::Reduce { op: *op, axes: within, keep }, &[x])?;
    // Kept axes let a launch round its own results.
    let x = at.add(Op::Reduce { op: joined, axes: left, keep: true }, &[x])?;
    let x = if rounds { at.cast(out.dtype, x)? } else { x };
    at.add(Op::Reshape(out.shape.clone()), &[x])
}
