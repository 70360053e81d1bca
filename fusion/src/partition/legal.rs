//! Legality: which sets of operations one launch can compute.
//!
//! An operation alone always is a group. Several are one if a row of [`TEMPLATES`] is made of their kinds and its
//! check agrees. What every template asks: a value made in the group is read in it as it is, never through a change
//! of view. Dims count as equal where they are equal as expressions, so what is legal is so at all sizes, with one
//! exception: whether a row fits into a core's memory is asked under the planning hints where its length is a symbol.
//! A longer one is read in passes, which is slower but not wrong.
//!
//! Executors compile what is legal here, on every target: what one of them cannot compute, a check refuses. An
//! operation that no template takes alone shares no launch (`executor`), so checks ask no more about its elements.

use crate::base::elements::{is_real, operand_type};
use crate::base::groups::{Family, Reason};
use crate::families::kernels::scalar;
use crate::families::kernels::sums::sum_of;
use crate::partition::fusion_graph::{FusionGraph, Read, Role, Row, ShapeId};
use crate::partition::set::{OpId, Set};
use crate::rewrite::integers::multiplied_bytes;
use graphene_frontend::{Binary, DType, Op};
use graphene_ir::Feature;
use graphene_ir::target::Kind;
use graphene_ir::template::mlp::{Mlp, Warpgroups};
use std::ops::RangeFrom;

/// The rows of a tile of layers that run as one launch.
pub(crate) const TILE_ROWS: u64 = 64;

/// Kinds of operations as bits: what [`Role`] says without its details.
const POINT: u8 = 1;
const MATMUL: u8 = 2;
const ROW: u8 = 4;
const LOOKUP: u8 = 8;
const CONVOLUTION: u8 = 16;
const INTEGERS: u8 = 32;

/// The family of a group that a template computes, or why it computes none.
type Template = fn(&FusionGraph<'_>, Set) -> Result<Family, Reason>;

/// The kinds of operations that a launch of several is made of, and what else must hold: it says the family of the group. The
/// first row that is made of the kinds at hand decides.
const TEMPLATES: &[(u8, Template)] = &[
    (POINT, loops),
    (POINT | MATMUL, matmuls),
    (POINT | ROW, rows),
    (POINT | ROW | LOOKUP, embeddings),
    (POINT | CONVOLUTION, convolutions),
    (POINT | INTEGERS, integers),
];

/// The family of the launch that computes these operations, or why there is none.
///
/// # Errors
/// The first reason found against it.
pub(crate) fn family(net: &FusionGraph<'_>, set: Set) -> Result<Family, Reason> {
    if set.len() == 1 {
        return Ok(net[set.first()].family);
    }
    let mut kinds = 0;
    for op in set.iter() {
        kinds |= kind(net[op].role).ok_or_else(|| alone(net, op))?;
    }
    let template = TEMPLATES.iter().find(|(made_of, _)| kinds & !made_of == 0);
    let (_, check) = template.ok_or_else(|| mixed(net, set))?;
    let mut inner =
        set.iter().flat_map(|op| &net[op].reads).filter(|read| is_inner(set, read.from));
    ensure(inner.all(|read| read.direct), Reason::View)?;
    check(net, set)
}

pub(crate) fn is_fusible(net: &FusionGraph<'_>, op: OpId) -> bool {
    kind(net[op].role).is_some()
}

/// Why an operation that is a launch of its own shares none.
pub(crate) fn alone(net: &FusionGraph<'_>, op: OpId) -> Reason {
    Reason::Alone(net.node(op).op().name())
}

fn kind(role: Role) -> Option<u8> {
    match role {
        Role::Point { .. } => Some(POINT),
        Role::MatMul => Some(MATMUL),
        Role::Row(_) => Some(ROW),
        Role::Lookup => Some(LOOKUP),
        Role::Convolution => Some(CONVOLUTION),
        Role::Integers => Some(INTEGERS),
        Role::Alone => None,
    }
}

/// No template has operations of both families that come first.
fn mixed(net: &FusionGraph<'_>, set: Set) -> Reason {
    let mut families = set.iter().map(|op| net[op].family).filter(|&f| f != Family::Pointwise);
    let first = families.next().unwrap_or(Family::Pointwise);
    let second = families.find(|&family| family != first).unwrap_or(first);
    Reason::Mixed(first, second)
}

fn is_inner(set: Set, from: Option<OpId>) -> bool {
    from.is_some_and(|from| set.contains(from))
}

/// Whether an operation reads what members make in one of these places.
fn reads_inner(net: &FusionGraph<'_>, set: Set, op: OpId, slots: RangeFrom<usize>) -> bool {
    net[op].reads.iter().any(|read| slots.contains(&read.slot) && is_inner(set, read.from))
}

fn loops(net: &FusionGraph<'_>, set: Set) -> Result<Family, Reason> {
    let shape = net[set.first()].shape;
    refuse_if(set.iter().any(|op| net[op].shape != shape), Reason::Shape)?;
    let numbers = || set.iter().filter_map(|op| net[op].role.numbers());
    let alike = numbers().all(|own| own.single) || numbers().all(|own| own.whole);
    ensure(alike, Reason::Numbers)?;
    Ok(Family::Pointwise)
}

/// Matmuls of one shape with expressions of that shape after them; or layers.
fn matmuls(net: &FusionGraph<'_>, set: Set) -> Result<Family, Reason> {
    let is_matmul = |op: &OpId| net[*op].role == Role::MatMul;
    if net.matmuls(set).any(|op| reads_inner(net, set, op, 0..)) {
        return layers(net, set);
    }
    let first = net.matmuls(set).next().expect("the template is chosen for its matmuls");
    points_have_shape(net, set, &[net[first].shape])?;
    refuse_if(net.matmuls(set).any(|op| net[op].shape != net[first].shape), Reason::Shape)?;
    let types = |op: OpId| (operand_type(net.graph, net[op].node), net[op].dtype);
    refuse_if(net.matmuls(set).any(|op| types(op) != types(first)), Reason::Type)?;
    ensure(stores_what_waits(net, set, is_matmul), Reason::Prologue(Family::MatMul))?;
    if net.target.kind == Kind::Cpu {
        return Ok(Family::MatMul);
    }
    let outer = set.iter().filter(|op| !is_matmul(op)).flat_map(|op| &net[op].reads);
    let mut outer = outer.filter(|read| !is_inner(set, read.from));
    ensure(outer.all(|read| is_met(net, read, first)), Reason::Packed(Family::MatMul))?;
    if are_added(net, set) || are_gated(net, set) { Ok(Family::MatMul) } else { Err(Reason::Sum) }
}

/// Whether all that is stored waits for a root: other members are computed where a root's result needs them.
fn stores_what_waits(net: &FusionGraph<'_>, set: Set, is_root: impl Fn(&OpId) -> bool) -> bool {
    let bit = |op: OpId| set.offset(op).map_or(0, |place| 1_u128 << place);
    let mut waiting = 0;
    for op in set.iter() {
        let from = net[op].producers.iter().fold(0, |from, &producer| from | bit(producer));
        if is_root(&op) || from & waiting != 0 {
            waiting |= bit(op);
        } else if net[op].writes[0].is_stored(set) {
            return false;
        }
    }
    true
}

/// Whether what is read is one number, and not one that stands in a body: convolutions for GPUs have no such operand.
fn is_number(net: &FusionGraph<'_>, read: &Read) -> bool {
    let single = net.known(read.shape).iter().all(|size| *size == Some(1));
    single && !(read.direct && net.graph.constant(read.root).is_some())
}

/// Whether templates for GPUs meet what is read where a matmul's results are: a number, a row, or a column, or a matrix
/// without gaps.
fn is_met(net: &FusionGraph<'_>, read: &Read, matmul: OpId) -> bool {
    let (own, all) = (net.known(read.shape), net.known(net[matmul].shape));
    let Some((last, outer)) = own.split_last() else { return true };
    if outer.iter().all(|size| *size == Some(1)) {
        return true;
    }
    let whole = read.shape == net[matmul].shape;
    let rows = |(own, all): (&Option<i64>, &Option<i64>)| *own != Some(1) || *all == Some(1);
    let column = *last == Some(1) && own.len() == all.len() && outer.iter().zip(all).all(rows);
    read.row_major && (whole || column)
}

/// Whether several matmuls become one sum, of them and of values that are made of none.
pub(crate) fn are_added(net: &FusionGraph<'_>, set: Set) -> bool {
    let matmuls: Vec<OpId> = net.matmuls(set).collect();
    let &[first, _, ..] = &matmuls[..] else { return true };
    // A batch of matmuls with a weight each, and one with a shared weight, cannot be terms of one sum.
    let ranks = |op: OpId| net.known(net[op].reads[1].shape).len();
    let is_sum = |op: OpId| matches!(net.node(op).op(), Op::Binary(Binary::Add));
    let added_in = |op: OpId| {
        let written = &net[op].writes[0];
        let &[reader] = &written.readers[..] else { return None };
        let times = net[reader].reads.iter().filter(|read| read.from == Some(op)).count();
        let once = !written.given && times == 1 && set.contains(reader) && is_sum(reader);
        once.then_some(reader)
    };
    let within = |op: &OpId| set.contains(*op);
    let operands = |op: OpId| net[op].producers.iter().copied().filter(within).collect();
    matmuls.iter().all(|&op| ranks(op) == ranks(first))
        && sum_of(&matmuls, is_sum, added_in, operands).is_some()
}

/// Whether two matmuls of one value, each by a matrix of its own, meet: a function of both may follow.
fn are_gated(net: &FusionGraph<'_>, set: Set) -> bool {
    let matmuls: Vec<OpId> = net.matmuls(set).collect();
    let &[gate, value] = &matmuls[..] else { return false };
    let own = |op: OpId| (net.node(op).inputs()[0], net[op].reads[1].shape);
    // Of each member, which of the two it is made of.
    let mut made_of: Vec<(OpId, u8)> = vec![(gate, 1), (value, 2)];
    for op in set.iter().filter(|&op| op != gate && op != value) {
        let of = made_of.iter().filter(|(own, _)| net[op].producers.contains(own));
        let of = of.fold(0, |all, (_, of)| all | of);
        made_of.push((op, of));
    }
    own(gate) == own(value) && made_of.iter().any(|(_, of)| *of == 3)
}

/// A chain: matmul by weights, expressions of its shape, matmul by weights, …; what lies between stays on chip.
fn layers(net: &FusionGraph<'_>, set: Set) -> Result<Family, Reason> {
    // For each member the layer that it belongs to; members stand in order.
    let mut members: Vec<(OpId, usize)> = Vec::with_capacity(set.len());
    let mut shapes: Vec<ShapeId> = Vec::new();
    // What each layer's matmul reads.
    let mut inputs: Vec<Option<OpId>> = Vec::new();
    let mut widths = Vec::new();
    let mut turned = [false; 2];
    let mut dtype = None;
    let mut rounded = false;
    for op in set.iter() {
        if rounds_rows(net, set, op) {
            rounded = true;
            continue;
        }
        let member = |from: OpId| members.iter().find(|&&(own, _)| own == from);
        let layer_of = |from: OpId| member(from).map(|&(_, layer)| layer);
        let latest = net[op].reads.iter().filter_map(|read| layer_of(read.from?)).max();
        let own = if net[op].role == Role::MatMul {
            let (a, b) = (&net[op].reads[0], &net[op].reads[1]);
            refuse_if(is_inner(set, b.from) || net.known(b.shape).len() != 2, Reason::Weights)?;
            refuse_if(latest != shapes.len().checked_sub(1), Reason::Chain)?;
            let own = net[op].dtype;
            let read = operand_type(net.graph, net[op].node);
            let same = *dtype.get_or_insert(own) == own && read == Some(own);
            ensure(same && is_real(own), Reason::Type)?;
            let depth = net.known(a.shape).last().copied().flatten().ok_or(Reason::Width)?;
            widths.push(depth);
            turned[usize::from(b.row_major)] = true;
            inputs.push(a.from);
            shapes.push(net[op].shape);
            shapes.len() - 1
        } else {
            let layer = latest.ok_or(Reason::Prologue(Family::MatMul))?;
            let plain = matches!(net[op].role, Role::Point { plain: true, .. });
            ensure(plain && net[op].shape == shapes[layer], Reason::Shape)?;
            // What is kept for a later layer is kept as matmuls read it, and expressions do not broadcast it; a GPU has
            // only the layer's input.
            let kept = net[op].reads.iter().filter_map(|read| read.from);
            for from in kept.filter(|&from| layer_of(from).is_some_and(|own| own < layer)) {
                let broadcast = net[from].shape != net[op].shape;
                if net.target.kind == Kind::Cpu {
                    refuse_if(Some(net[from].dtype) != dtype, Reason::Type)?;
                    refuse_if(broadcast, Reason::Shape)?;
                } else {
                    refuse_if(inputs[layer] != Some(from) || broadcast, Reason::Chain)?;
                }
            }
            layer
        };
        members.push((op, own));
    }
    let last = shapes.last().expect("layers are chained matmuls");
    widths.push(net.known(*last).last().copied().flatten().ok_or(Reason::Width)?);
    let by_warpgroups = shapes.len() > 1 && Warpgroups::are_for(&widths);
    refuse_if(rounded && !by_warpgroups, Reason::Prologue(Family::MatMul))?;
    layers_fit(net, dtype.expect("layers are matmuls"), &widths, turned)?;
    Ok(Family::Mlp)
}

/// Whether the operation rounds single precision from outside for a matmul alone, which warpgroups do as they read it.
fn rounds_rows(net: &FusionGraph<'_>, set: Set, op: OpId) -> bool {
    let own = &net[op];
    let of_half = matches!(own.dtype, DType::F16 | DType::BF16);
    if !of_half || !matches!(net.node(op).op(), Op::Cast { .. }) {
        return false;
    }
    let (read, written) = (&own.reads[0], &own.writes[0]);
    let single = net.graph.ty(read.root).dtype == DType::F32;
    let is_matmul = |op: OpId| set.contains(op) && net[op].role == Role::MatMul;
    let only = matches!(written.readers[..], [reader] if is_matmul(reader)) && !written.given;
    let as_it_lies = read.direct && read.row_major && !is_inner(set, read.from);
    net.target.has(Feature::Wgmma) && single && only && as_it_lies
}

/// Whether layers of these widths run as one launch: on a CPU what two of them keep is a tile's; on a GPU the template
/// says what a block has to have.
fn layers_fit(
    net: &FusionGraph<'_>,
    dtype: DType,
    widths: &[i64],
    turned: [bool; 2],
) -> Result<(), Reason> {
    if net.target.kind == Kind::Cpu {
        let mut widths = widths.to_vec();
        widths.sort_unstable();
        let widest = widths.iter().rev().take(2).map(|&width| width as u64);
        return fits(net, TILE_ROWS * widest.sum::<u64>() * dtype.size() as u64);
    }
    let scalar = scalar(dtype).map_err(|_| Reason::Type)?;
    let [bytes, sums, limit] = Mlp::least(scalar, widths, turned).map(|bytes| bytes as u64);
    refuse_if(sums > limit, Reason::Memory { bytes: sums, limit })?;
    fits(net, bytes)
}

/// Functions of the rows of one shape, with expressions of that shape or of a value a row before and after them.
fn rows(net: &FusionGraph<'_>, set: Set) -> Result<Family, Reason> {
    let row = rows_agree(net, set)?;
    points_have_shape(net, set, &[row.full, row.reduced])?;
    let norm = set.iter().any(|op| net[op].family == Family::Normalization);
    let family = if norm { Family::Normalization } else { Family::Reduction };
    // On a CPU, pixels whose channels are innermost are added as vectors, but one by one if anything precedes the sum: that is
    // left to the convolution, which applies it in registers.
    let image = net.sizes(row.full).len() == 4 && row.first == 2 && row.full != row.reduced;
    let is_conv = |op: OpId| net[op].family == Family::Convolution;
    let follows = |op: OpId| net[op].producers.iter().any(|&producer| is_conv(producer));
    let before = |op: OpId| net[op].role.row().is_none() && net[op].shape == row.full;
    let is_late = family == Family::Reduction && set.iter().any(|op| before(op) && follows(op));
    refuse_if(net.target.kind == Kind::Cpu && image && is_late, Reason::Prologue(family))?;
    Ok(family)
}

/// The rows that all functions of rows in the set have, if they can share a launch.
fn rows_agree(net: &FusionGraph<'_>, set: Set) -> Result<Row, Reason> {
    let mut found: Option<Row> = None;
    for op in set.iter() {
        let Some(row) = net[op].role.row() else { continue };
        let first = *found.get_or_insert(row);
        let rows = |of: Row| (of.first, of.full, of.reduced);
        refuse_if(rows(row) != rows(first), Reason::Shape)?;
        // Scale and bias are read as they are stored.
        refuse_if(reads_inner(net, set, op, 1..), Reason::Prologue(net[op].family))?;
        let is_read = net[op].writes[0].readers.iter().any(|&reader| set.contains(reader));
        refuse_if(is_read && !row.inner, Reason::Shape)?;
        // Statistics are for the outside.
        let statistics = net[op].writes.iter().skip(1).flat_map(|written| &written.readers);
        refuse_if(statistics.into_iter().any(|&reader| set.contains(reader)), Reason::Shape)?;
    }
    let row = found.expect("the template is chosen for its rows");
    let length: f64 = net.sizes(row.full)[row.first..].iter().product();
    fits(net, (length * 4.0) as u64)?;
    Ok(row)
}

/// Rows of tables, summed or scaled, and functions of those rows.
fn embeddings(net: &FusionGraph<'_>, set: Set) -> Result<Family, Reason> {
    let lookups = || set.iter().filter(|&op| net[op].role == Role::Lookup);
    let first = lookups().next().expect("the template is chosen for its lookups");
    let shape = net[first].shape;
    let row = |op: OpId| {
        let table = net.node(op).inputs()[0].expect("a lookup has its table");
        &net.graph.ty(table).shape[1..]
    };
    for op in lookups() {
        refuse_if(net[op].shape != shape || row(op) != row(first), Reason::Shape)?;
        refuse_if(reads_inner(net, set, op, 0..), Reason::Prologue(Family::Gather))?;
    }
    if !set.iter().any(|op| matches!(net[op].role, Role::Row(_))) {
        points_have_shape(net, set, &[shape])?;
        let written = set.iter().flat_map(|op| &net[op].writes);
        let results = written.filter(|written| written.is_stored(set)).count();
        refuse_if(net.target.kind != Kind::Cpu && results > 1, Reason::Results)?;
        return Ok(Family::Gather);
    }
    let of_rows = rows_agree(net, set)?;
    let reduces = set.iter().any(|op| net[op].family == Family::Reduction);
    let mixed = Reason::Mixed(Family::Gather, Family::Reduction);
    refuse_if(net.target.kind != Kind::Cpu && reduces, mixed)?;
    let whole = of_rows.first + row(first).len() == net.sizes(shape).len();
    ensure(of_rows.full == shape && whole, Reason::Shape)?;
    points_have_shape(net, set, &[shape, of_rows.reduced])?;
    Ok(Family::Gather)
}

/// The one operation with this role, for which the template was chosen.
fn only(net: &FusionGraph<'_>, set: Set, role: Role) -> Result<OpId, Reason> {
    let mut all = set.iter().filter(|&op| net[op].role == role);
    let first = all.next().expect("the template is chosen for it");
    refuse_if(all.next().is_some(), Reason::Mixed(net[first].family, net[first].family))?;
    Ok(first)
}

/// One convolution with expressions of its result's shape after it.
fn convolutions(net: &FusionGraph<'_>, set: Set) -> Result<Family, Reason> {
    let conv = only(net, set, Role::Convolution)?;
    refuse_if(reads_inner(net, set, conv, 0..), Reason::Prologue(Family::Convolution))?;
    points_have_shape(net, set, &[net[conv].shape])?;
    let mut outer = set.iter().filter(|&op| op != conv).flat_map(|op| &net[op].reads);
    let number = |read: &Read| !is_inner(set, read.from) && is_number(net, read);
    let unmet = net.target.kind != Kind::Cpu && outer.any(number);
    refuse_if(unmet, Reason::Packed(Family::Convolution))?;
    Ok(Family::Convolution)
}

/// One matmul or convolution of integers with what widens the bytes that it reads and takes their zero point away, and
/// expressions of its result's shape after it.
fn integers(net: &FusionGraph<'_>, set: Set) -> Result<Family, Reason> {
    let root = only(net, set, Role::Integers)?;
    let family = net[root].family;
    let widening = widening(net, set, root).ok_or(Reason::Prologue(family))?;
    for op in set.iter().filter(|op| !widening.contains(op)) {
        let Role::Point { plain, .. } = net[op].role else { continue };
        let reads_widened = net[op].producers.iter().any(|from| widening.contains(from));
        ensure(plain, Reason::Type)?;
        refuse_if(net[op].shape != net[root].shape || reads_widened, Reason::Shape)?;
    }
    // Weights and bias are read as they are stored.
    refuse_if(reads_inner(net, set, root, 1..), Reason::Prologue(family))?;
    let stays = |op: &OpId| *op == root || widening.contains(op);
    ensure(stores_what_waits(net, set, stays), Reason::Prologue(family))?;
    Ok(family)
}

/// The operations that widen the bytes that this one reads, all in the set and read by nothing else.
fn widening(net: &FusionGraph<'_>, set: Set, root: OpId) -> Option<Vec<OpId>> {
    let (_, zero) = multiplied_bytes(net.graph, net.node(root))?;
    let mut found = Vec::new();
    let mut at = net.read(root, 0)?;
    for _ in 0..1 + usize::from(zero.is_some()) {
        let op = at.from.filter(|&from| at.direct && set.contains(from))?;
        let written = &net[op].writes[0];
        if written.given || written.readers.len() > 1 {
            return None;
        }
        found.push(op);
        at = net.read(op, 0)?;
    }
    (!is_inner(set, at.from)).then_some(found)
}

/// All expressions have one of these shapes, and element types that every template computes with.
fn points_have_shape(net: &FusionGraph<'_>, set: Set, shapes: &[ShapeId]) -> Result<(), Reason> {
    for op in set.iter() {
        let Role::Point { plain, .. } = net[op].role else { continue };
        ensure(plain, Reason::Type)?;
        ensure(shapes.contains(&net[op].shape), Reason::Shape)?;
    }
    Ok(())
}

fn fits(net: &FusionGraph<'_>, bytes: u64) -> Result<(), Reason> {
    let limit = net.target.shared_memory_per_block;
    refuse_if(bytes > limit, Reason::Memory { bytes, limit })
}

/// What is against a set, if that holds.
fn refuse_if(holds: bool, reason: Reason) -> Result<(), Reason> {
    if holds { Err(reason) } else { Ok(()) }
}

/// What is against a set, unless that holds.
fn ensure(holds: bool, reason: Reason) -> Result<(), Reason> {
    refuse_if(!holds, reason)
}
