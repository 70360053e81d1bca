//! Indices that count: what takes, by them, all that there is takes nothing, and a range that begins at a number is a part
//! of a longer one. Exporters write masks of attention so: the mask of each sequence's keys, taken at every sequence and
//! every key, and positions behind those of a cache.

use crate::base::rebuild::{Rebuilt, rebuilt};
use graphene_frontend::{Binary, Dim, Graph, Node, Op, SliceAxis, Tensor, ValueId};

/// The graph with parts of what is looked up, and of ranges, in place of such lookups and sums.
pub(crate) fn without_ranges(graph: &Graph) -> Rebuilt<Graph> {
    rebuilt(graph, |mut at, _, inputs| {
        let Some(Part { of, shift, axes, shape }) = part(graph, at.node) else { return Ok(None) };
        let by = (shift != 0).then(|| at.constant(Tensor::scalar(shift)));
        let read = if let Op::Iota(_) = of { &[][..] } else { &inputs[..1] };
        let whole = at.add_optional(of, read)?;
        let mut placed = vec![Dim::from(1); shape.len()];
        axes.iter().for_each(|(place, range)| placed[*place] = range.len.clone());
        let slices = axes.into_iter().map(|(_, range)| range).collect();
        let to = at.node.outputs()[0].shape.clone();
        let views = [Op::Slice(slices), Op::Reshape(placed), Op::Expand(shape), Op::Reshape(to)];
        let part = views.into_iter().try_fold(whole, |value, op| at.add(op, &[value]))?;
        at.with(Binary::Add, part, by).map(Some)
    })
}

/// A part of what an operation gives: a range, or the node's first input as a matrix. Each axis of it has a place in a shape
/// through which it broadcasts. Each element is larger than that by a number.
struct Part {
    of: Op,
    shift: i64,
    axes: Vec<(usize, SliceAxis)>,
    shape: Vec<Dim>,
}

fn part(graph: &Graph, node: &Node) -> Option<Part> {
    let shape_of = |value: ValueId| graph.ty(value).shape.clone();
    match node.op() {
        Op::Binary(Binary::Add) => {
            let shape = node.outputs()[0].shape.clone();
            let (range, start) = either(node.input(0)?, node.input(1)?, |a, b| {
                Some((range(graph, a, shape.len())?, number(graph, b)?))
            })?;
            // Numbers below zero are none of a range's.
            let shift = start.lower_bound()?.min(0);
            let start = &start - &Dim::from(shift);
            let of = Op::Iota(&start + &range.len);
            let part = SliceAxis { axis: 0, start, len: range.len, step: 1 };
            (range.step == 1).then_some(Part { of, shift, axes: vec![(range.axis, part)], shape })
        }
        // Elements of a flat matrix, by `row·width + column`.
        Op::Gather { axis: 0 } => {
            let (table, shape) = (shape_of(node.input(0)?), shape_of(node.input(1)?));
            let [a, b] = graph.operands(node.input(1)?, &Op::Binary(Binary::Add))?;
            let flat = table[1..].iter().all(|dim| *dim == 1);
            either(a, b, |a, b| {
                let (rows, columns) =
                    (range(graph, a, shape.len())?, range(graph, b, shape.len())?);
                // More columns than a row has would be beyond the last row.
                let sizes = [rows.len.clone(), rows.step.clone()];
                let all = flat && columns.step == 1 && table[0] == &sizes[0] * &sizes[1];
                all.then(|| of_matrix(sizes, [rows, columns], &shape)).flatten()
            })
        }
        // Elements of a matrix, by pairs.
        Op::GatherNd { batch_dims: 0 } => {
            let sizes: [Dim; 2] = shape_of(node.input(0)?).try_into().ok()?;
            let shape = &node.outputs()[0].shape;
            let pairs = graph.operands(node.input(1)?, &Op::Concat { axis: shape.len() })?;
            let [rows, columns] = pairs.map(|value| range(graph, value, shape.len() + 1));
            let (rows, columns) = (rows?, columns?);
            let all = rows.step == 1 && columns.step == 1;
            all.then(|| of_matrix(sizes, [rows, columns], shape)).flatten()
        }
        _ => None,
    }
}

/// What is found of two operands in one order or the other.
pub(crate) fn either<T>(
    a: ValueId,
    b: ValueId,
    found: impl Fn(ValueId, ValueId) -> Option<T>,
) -> Option<T> {
    found(a, b).or_else(|| found(b, a))
}

/// What two values are one half each of, along an axis and in this order; the axis, and their size along it.
pub(crate) fn both_of(graph: &Graph, [low, high]: [ValueId; 2]) -> Option<(ValueId, usize, Dim)> {
    let ((whole, first), (same, second)) = (graph.range_of(low)?, graph.range_of(high)?);
    let (axis, half) = (first.axis, &first.len);
    let split = first.start == 0 && second.start == *half && second.len == *half;
    let all = whole == same && second.axis == axis && graph.ty(whole).shape[axis] == half + half;
    (split && all).then(|| (whole, axis, half.clone()))
}

/// The first rows and columns of a matrix, along these axes of a shape.
fn of_matrix(sizes: [Dim; 2], ranges: [Range; 2], shape: &[Dim]) -> Option<Part> {
    let within = |(range, size): (&Range, &Dim)| {
        let fits = range.len.known().zip(size.known()).is_none_or(|(len, size)| len <= size);
        fits && shape.get(range.axis) == Some(&range.len)
    };
    let fits = ranges[0].axis < ranges[1].axis && ranges.iter().zip(&sizes).all(within);
    let first = |(axis, range): (usize, Range)| {
        (range.axis, SliceAxis { axis, start: Dim::from(0), len: range.len, step: 1 })
    };
    let axes = ranges.into_iter().enumerate().map(first).collect();
    fits.then(|| Part { of: Op::Reshape(sizes.into()), shift: 0, axes, shape: shape.to_vec() })
}

/// `0, step, 2·step, …` along one axis; along the others it repeats.
struct Range {
    axis: usize,
    len: Dim,
    step: Dim,
}

/// The range that a value is, with its axis in a shape of this rank that it broadcasts to.
fn range(graph: &Graph, value: ValueId, rank: usize) -> Option<Range> {
    let found = own_range(graph, value)?;
    Some(Range { axis: found.axis + rank.checked_sub(graph.ty(value).rank())?, ..found })
}

fn own_range(graph: &Graph, value: ValueId) -> Option<Range> {
    let (node, to) = (graph.node(value.node), &graph.ty(value).shape);
    match node.op() {
        Op::Iota(len) => Some(Range { axis: 0, len: len.clone(), step: Dim::from(1) }),
        Op::Expand(_) => range(graph, node.input(0)?, to.len()),
        Op::Reshape(_) => {
            let of = node.input(0)?;
            let (found, from) = (own_range(graph, of)?, &graph.ty(of).shape);
            let before = |shape: &[Dim], axis: usize| shape[..axis].iter().product::<Dim>();
            let start = before(from, found.axis);
            let axis =
                (0..to.len()).find(|&axis| to[axis] == found.len && before(to, axis) == start)?;
            Some(Range { axis, ..found })
        }
        Op::Binary(Binary::Mul) => either(node.input(0)?, node.input(1)?, |a, b| {
            let (found, by) = (range(graph, a, to.len())?, number(graph, b)?);
            Some(Range { step: &found.step * &by, ..found })
        }),
        _ => None,
    }
}

/// The size that a single number is.
fn number(graph: &Graph, value: ValueId) -> Option<Dim> {
    let node = graph.node(value.node);
    match node.op() {
        Op::Size(size) => Some(size.clone()),
        Op::Reshape(_) if graph.ty(value).elements() == 1 => number(graph, node.inputs()[0]?),
        _ => None,
    }
}
