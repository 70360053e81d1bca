//! The blocks that a GPU's kernel of a group will have under planning hints, as far as they depend on sizes alone: where layouts
//! count as well, operands are taken to lie row-major.

use crate::base::elements::{is_by_threads, operand_type};
use crate::base::groups::Family;
use crate::base::sizes::ceil;
use crate::families::grids::{
    COLUMNS, MANY, halved, of_columns, of_folds, of_loop, parts_of_softmax, widest,
};
use crate::families::kernels::recurrent;
use crate::families::tiles::{MatMuls, blocks_of_channels, blocks_of_pixels};
use crate::partition::fusion_graph::{FusionGraph, Read, Role, ShapeId};
use crate::partition::legal::are_added;
use crate::partition::set::{OpId, Set};
use graphene_frontend::{DType, Op};
use graphene_ir::target::Target;
use graphene_ir::template::conv::Sliding;
use graphene_ir::template::rows::Rows;
use graphene_ir::tensor::Scalar;

/// The blocks of a loop over so many vectors, which the kernel knows or not.
pub(crate) fn of_items((items, known): (i64, bool), target: &Target) -> i64 {
    let [threads, blocks] = of_loop(known.then_some(items), target);
    ceil(items, threads).min(blocks).max(1)
}

/// Elements of so many bytes that a thread moves at once, of rows of so many.
pub(crate) fn vector_of(row: i64, bytes: i64) -> i64 {
    halved(widest(bytes), |vector| row % vector == 0)
}

/// The blocks of a group of this family: of a loop, if nothing else is known.
pub(crate) fn blocks(net: &FusionGraph<'_>, set: Set, family: Family) -> i64 {
    let blocks = match family {
        Family::MatMul => of_matmuls(net, set),
        Family::Normalization | Family::Reduction | Family::Gather => of_rows(net, set, family),
        Family::Recurrent => of_layer(net, set.first()),
        Family::Convolution => of_windows(net, set),
        Family::Copy => Some(of_moves(net, set)),
        Family::View | Family::Pointwise | Family::Mlp | Family::Fmha | Family::Control => None,
    };
    blocks.unwrap_or_else(|| of_elements(net, set)).max(1)
}

/// The elements of a shape's axes under the hints, [`MANY`] at most, and whether they are known without.
fn count(
    net: &FusionGraph<'_>,
    shape: ShapeId,
    axes: impl Iterator<Item = usize> + Clone,
) -> (i64, bool) {
    let (sizes, known) = (net.sizes(shape), net.known(shape));
    let all = axes.clone().map(|axis| sizes[axis]).product::<f64>();
    (all.min(MANY as f64) as i64, axes.into_iter().all(|axis| known[axis].is_some()))
}

/// Bytes of the elements of what a group reads and stores, without indices.
fn bytes(net: &FusionGraph<'_>, set: Set) -> impl Iterator<Item = i64> {
    set.iter().flat_map(move |op| {
        let node = net.node(op);
        let is_read = |read: &&Read| {
            let indices = net[op].role == Role::Lookup && read.slot == 1;
            !indices && !read.from.is_some_and(|from| set.contains(from))
        };
        let reads = net[op].reads.iter().filter(is_read);
        let reads = reads.filter_map(|read| node.inputs()[read.slot]);
        let reads = reads.map(|value| net.graph.ty(value).dtype);
        let writes = node.outputs().iter().zip(&net[op].writes);
        let writes = writes.filter(|(_, written)| written.is_stored(set));
        let writes = writes.map(|(ty, _)| ty.dtype);
        reads.chain(writes).map(|dtype| dtype.size() as i64).collect::<Vec<_>>()
    })
}

/// The elements of a vector that divides the known part of a row of these axes.
fn vector(
    net: &FusionGraph<'_>,
    bytes: i64,
    shape: ShapeId,
    axes: impl Iterator<Item = usize>,
) -> i64 {
    let known = net.known(shape);
    vector_of(axes.filter_map(|axis| known[axis]).fold(1, i64::saturating_mul), bytes)
}

/// Of a loop over the elements of the first operation's result.
fn of_elements(net: &FusionGraph<'_>, set: Set) -> i64 {
    let shape = net[set.first()].shape;
    let axes = 0..net.known(shape).len();
    let narrowest = bytes(net, set).min().unwrap_or(4);
    let vector = vector(net, narrowest, shape, axes.clone());
    let (elements, known) = count(net, shape, axes);
    of_items((ceil(elements, vector), known), net.target)
}

/// Of joins and the like, which move as much at once as begins and ends in all operands where an instruction may.
fn of_moves(net: &FusionGraph<'_>, set: Set) -> i64 {
    let op = set.first();
    let (shape, bytes) = (net[op].shape, net[op].dtype.size() as i64);
    let last = |shape: ShapeId| net.known(shape).len().saturating_sub(1)..net.known(shape).len();
    let shapes = net[op].reads.iter().map(|read| read.shape).chain([shape]);
    let vectors = shapes.map(|shape| vector(net, bytes, shape, last(shape)));
    let (elements, known) = count(net, shape, 0..net.known(shape).len());
    of_items((ceil(elements, vectors.min().unwrap_or(1)), known), net.target)
}

/// Of poolings, which take a thread for each result, and of convolutions without groups, by tiles of their pixels.
fn of_windows(net: &FusionGraph<'_>, set: Set) -> Option<i64> {
    let is = |op: &OpId| matches!(net.node(*op).op(), Op::Pool(_) | Op::Conv(_) | Op::WideConv(_));
    let op = set.iter().find(is)?;
    let shape = net[op].shape;
    let rank = net.known(shape).len();
    match net.node(op).op() {
        Op::Conv(attrs) | Op::WideConv(attrs) if attrs.group == 1 => {
            let (pixels, _) = count(net, shape, (0..rank).filter(|&axis| axis != 1));
            let (made, _) = count(net, shape, 1..2);
            let multiplied = operand_type(net.graph, net[op].node);
            let by_threads = multiplied.is_some_and(|of| is_by_threads(net.target, of));
            let blocks = if by_threads { blocks_of_channels } else { blocks_of_pixels };
            Some(blocks(net.target, pixels, made))
        }
        Op::Conv(_) | Op::WideConv(_) => None,
        _ => Some(ceil(count(net, shape, 0..rank).0, Sliding::default().threads)),
    }
}

/// Of functions of rows, of rows of tables, and of running sums.
fn of_rows(net: &FusionGraph<'_>, set: Set, family: Family) -> Option<i64> {
    let row = set.iter().find_map(|op| net[op].role.row()).map(|row| (row.full, row.first));
    let looked_up = || {
        let op = set.iter().find(|&op| net[op].role == Role::Lookup)?;
        let (shape, table) = (net[op].shape, net.known(net.read(op, 0)?.shape).len());
        Some((shape, (net.known(shape).len() + 1).checked_sub(table)?))
    };
    let Some((shape, first)) = row.or_else(looked_up) else { return along(net, set.first()) };
    let rank = net.known(shape).len();
    let ((rows, _), (length, known)) =
        (count(net, shape, 0..first), count(net, shape, first..rank));
    let folds = family == Family::Reduction;
    let bytes = if folds { bytes(net, set).min() } else { bytes(net, set).max() };
    let vector = vector(net, bytes.unwrap_or(4), shape, first..rank);
    let vectors = known.then(|| ceil(length, vector));
    let teams = match (folds, vectors) {
        (true, vectors) => of_folds(vectors)[1],
        (false, Some(vectors)) => Rows::teams(vectors)[1],
        (false, None) => 1,
    };
    Some(ceil(rows, teams).saturating_mul(parts_of_row(net, set, (length, known))))
}

/// The blocks that share a row of so many columns: of a softmax in single precision of what the group reads.
fn parts_of_row(net: &FusionGraph<'_>, set: Set, (columns, known): (i64, bool)) -> i64 {
    let is_softmax = |op: &OpId| matches!(net.node(*op).op(), Op::Softmax { .. });
    let of_read = |op: OpId| {
        let read = net.read(op, 0)?;
        let dtype = net.graph.ty(net.node(op).inputs()[0]?).dtype;
        let given = !read.from.is_some_and(|from| set.contains(from));
        (known && given && dtype == DType::F32).then(|| parts_of_softmax(columns, net.target))
    };
    set.iter().find(is_softmax).and_then(of_read).unwrap_or(1)
}

/// Of an operation along axes that are not the last ones.
fn along(net: &FusionGraph<'_>, op: OpId) -> Option<i64> {
    let node = net.node(op);
    let shape = net.read(op, 0)?.shape;
    let rank = net.known(shape).len();
    let axes = match node.op() {
        Op::Reduce { axes, .. } => axes.clone(),
        Op::Softmax { axis, .. } => vec![*axis],
        Op::Cumulative { axis, .. } => {
            return Some(count(net, shape, (0..rank).filter(|other| other != axis)).0);
        }
        _ => return None,
    };
    let read = net.graph.ty(node.inputs()[0]?).dtype;
    let [read, made] = [read, net[op].dtype].map(|dtype| dtype.size() as i64);
    let (first, last) = (*axes.first()?, *axes.last()?);
    let after = last + 1..rank;
    if matches!(node.op(), Op::Reduce { .. }) && last - first + 1 == axes.len() {
        let ((outer, of), (inner, known)) =
            (count(net, shape, 0..first), count(net, shape, after.clone()));
        if inner > 1 {
            let most = vector(net, read.min(made), shape, after);
            let sizes = [of.then_some(outer), known.then_some(inner)];
            let vector = of_columns(sizes, (most, read.max(made)), net.target);
            return Some(outer.saturating_mul(ceil(inner, COLUMNS * vector)));
        }
    }
    let (rows, _) = count(net, shape, (0..rank).filter(|axis| !axes.contains(axis)));
    let (length, known) = count(net, shape, axes.iter().copied());
    Some(ceil(rows, of_folds(known.then_some(length))[1]))
}

/// Of matmuls over one shape; several share tiles.
fn of_matmuls(net: &FusionGraph<'_>, set: Set) -> Option<i64> {
    let matmuls: Vec<OpId> = net.matmuls(set).collect();
    let &first = matmuls.first()?;
    let shape = net[first].shape;
    let outer = net.known(shape).len().checked_sub(2)?;
    // Several that are no sum gate each other.
    let gated = !are_added(net, set);
    let follows = set.iter().map(|op| net.node(op).op().info().work).sum();
    let alone = matmuls.len() == 1;
    let matmuls = MatMuls::new(net.target, net.graph, net[first].node, [alone, gated], follows)?;
    let (matrices, rows) = (count(net, shape, 0..outer).0, count(net, shape, outer..outer + 1).0);
    let columns = count(net, shape, outer + 1..outer + 2).0;
    let sizes = if matmuls.shared {
        [1, matrices.saturating_mul(rows), columns]
    } else {
        [matrices, rows, columns]
    };
    Some(matmuls.blocks(net.target, sizes))
}

/// Of a recurrent layer, whose steps wait for each other.
fn of_layer(net: &FusionGraph<'_>, op: OpId) -> Option<i64> {
    let Op::Rnn(attrs) = net.node(op).op() else { return None };
    let batch = count(net, net.read(op, 0)?.shape, 1..2);
    let scalar = if net[op].dtype == DType::F32 { Scalar::F32 } else { Scalar::F16 };
    recurrent::blocks(attrs, scalar, batch, i64::from(net.target.cores))
}
