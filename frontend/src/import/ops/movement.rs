//! Elements moved: transposed, sliced, split, joined, repeated, padded.

use super::{Outputs, Row, row};
use crate::dim::Dim;
use crate::dtype::DType;
use crate::graph::ValueId;
use crate::import::{Context, OpError, Reason};
use crate::infer::InferError;
use crate::op::{Binary, Op, PadMode, SliceAxis};

/// The operators of this family.
pub(super) const ROWS: &[Row] = &[
    row("Transpose", 1, transpose),
    row("Slice", 1, slice),
    row("Split", 2, split),
    row("Concat", 1, concat),
    row("Tile", 6, tile),
    row("Pad", 1, pad),
    row("Trilu", 14, trilu),
    row("DepthToSpace", 1, depth_to_space),
    row("SpaceToDepth", 1, space_to_depth),
    row("ReverseSequence", 10, reverse_sequence),
];

/// Ends from here on mean "to the end" in files.
const OPEN_END: i64 = i32::MAX as i64;

fn transpose(cx: &mut Context<'_, '_>) -> Outputs {
    let x = cx.input(0)?;
    let rank = cx.rank(x);
    let perm = match cx.ints("perm") {
        Some(perm) => perm.iter().map(|&axis| cx.axis(rank, axis)).collect::<Result<_, _>>()?,
        None => (0..rank).rev().collect(),
    };
    Ok(vec![cx.transpose(x, perm)?])
}

fn slice(cx: &mut Context<'_, '_>) -> Outputs {
    let x = cx.input(0)?;
    let shape = cx.shape(x);
    let from_ints = |ints: &[i64]| ints.iter().copied().map(Dim::from).collect::<Vec<_>>();
    let (starts, ends, axes, steps);
    if cx.opset() < 10 {
        let required = |name: &str| {
            cx.ints(name).ok_or_else(|| OpError::from(Reason::MissingAttribute(name.into())))
        };
        starts = from_ints(required("starts")?);
        ends = from_ints(required("ends")?);
        axes = cx.ints("axes").map(<[i64]>::to_vec);
        steps = None;
    } else {
        let (start, end) = (cx.input(1)?, cx.input(2)?);
        starts = cx.dims(start)?;
        ends = cx.dims(end)?;
        axes = cx.optional(3).map(|axes| cx.known_ints(axes)).transpose()?;
        steps = cx.optional(4).map(|steps| cx.known_ints(steps)).transpose()?;
    }
    let axes = axes.unwrap_or_else(|| (0..starts.len() as i64).collect());
    let steps = steps.unwrap_or_else(|| vec![1; starts.len()]);
    let count = starts.len();
    if [ends.len(), axes.len(), steps.len()].iter().any(|&n| n != count) {
        return Err(cx.invalid("starts, ends, axes and steps differ in number"));
    }
    cx.axes(shape.len(), &axes)?;
    let mut ranges = Vec::new();
    for i in 0..count {
        let axis = cx.axis(shape.len(), axes[i])?;
        let range = match steps[i] {
            0 => return Err(cx.invalid("a step of zero")),
            step if step > 0 => forward(&starts[i], &ends[i], step, &shape[axis])?,
            step => backward(&starts[i], &ends[i], step, &shape[axis])?,
        };
        let (start, len) = range;
        let start = if len == 0 { Dim::from(0) } else { start };
        ranges.push(SliceAxis { axis, start, len, step: steps[i] });
    }
    Ok(vec![cx.add(Op::Slice(ranges), &[x])?])
}

/// A place counted from the front of an axis.
///
/// A place `size - n` on an axis of known size, the last n rows of a table, is taken to lie within, as [`at_most`]
/// has it.
fn from_front(at: &Dim, size: &Dim) -> Result<Dim, OpError> {
    if at.upper_bound().is_some_and(|high| high < 0) {
        return Ok(at + size);
    }
    let rows = (size - at).lower_bound();
    let table = size.known().is_some() && rows.is_some_and(|rows| (0..=1).contains(&rows));
    if table || at.lower_bound().is_some_and(|low| low >= 0) {
        return Ok(at.clone());
    }
    Err(InferError::Unresolved { a: at.clone(), b: Dim::from(0) }.into())
}

/// The place, or the axis' end if it lies behind it.
///
/// A symbolic place on an axis of known size is taken to lie within: a slice of a table by a sequence's length.
/// Whoever binds the symbols finds out if it does not.
fn at_most(at: &Dim, size: &Dim) -> Dim {
    match (at.known(), size.known()) {
        (Some(at), None) if at >= OPEN_END => size.clone(),
        (None, Some(_)) => at.clone(),
        _ => at.minimum(size),
    }
}

/// The length of a range; its ends are known to lie in order if they are the axis' own.
fn length(low: &Dim, high: &Dim, step: i64) -> Result<Dim, OpError> {
    let len = (high - low).ceil_div(&Dim::from(step))?;
    Ok(len.maximum(&Dim::from(0)))
}

fn forward(start: &Dim, end: &Dim, step: i64, size: &Dim) -> Result<(Dim, Dim), OpError> {
    let zero = Dim::from(0);
    let within = |at: &Dim| match (from_front(at, size)?, size.known()) {
        (at, Some(_)) if at.known().is_none() => Ok::<_, OpError>(at),
        (at, _) => Ok(at_most(&at, size).maximum(&zero)),
    };
    let (low, high) = (within(start)?, within(end)?);
    // The last few are min(few, size) elements, as the first few are; else the length would be size - max(…).
    let last = high == *size && size.known().is_none();
    let len = match start.upper_bound() {
        Some(bound) if bound < 0 && last => length(&zero, &(-start).minimum(size), step)?,
        _ => length(&low, &high, step)?,
    };
    Ok((low, len))
}

fn backward(start: &Dim, end: &Dim, step: i64, size: &Dim) -> Result<(Dim, Dim), OpError> {
    let last = size - &Dim::from(1);
    let start = at_most(&from_front(start, size)?, &last).maximum(&Dim::from(0));
    let end = match end.known() {
        Some(end) if end <= -OPEN_END => Dim::from(-1),
        _ => at_most(&from_front(end, size)?, &last).maximum(&Dim::from(-1)),
    };
    let len = length(&end, &start, step.saturating_neg())?;
    Ok((start, len))
}

fn split(cx: &mut Context<'_, '_>) -> Outputs {
    let x = cx.input(0)?;
    let shape = cx.shape(x);
    let axis = cx.axis(shape.len(), cx.int_or("axis", 0))?;
    let given = match cx.optional(1) {
        Some(sizes) if cx.opset() >= 13 => Some(cx.dims(sizes)?),
        _ => cx.ints("split").map(|sizes| sizes.iter().copied().map(Dim::from).collect()),
    };
    let sizes = match given {
        Some(sizes) => sizes,
        None => {
            let count = cx.int_or("num_outputs", cx.output_count() as i64);
            if count < 1 || count > cx.output_count().max(1) as i64 {
                return Err(cx.invalid("as many parts as outputs are expected"));
            }
            let part = shape[axis].ceil_div(&Dim::from(count))?;
            let before_last = &part * &Dim::from(count - 1);
            let mut sizes = vec![part; count as usize - 1];
            sizes.push(&shape[axis] - &before_last);
            sizes
        }
    };
    parts(cx, x, axis, sizes)
}

/// Pieces of an axis, of these sizes, which must be all of it.
pub(super) fn parts(cx: &mut Context<'_, '_>, x: ValueId, axis: usize, sizes: Vec<Dim>) -> Outputs {
    let whole = cx.shape(x)[axis].clone();
    let mut start = Dim::from(0);
    let mut parts = Vec::with_capacity(sizes.len());
    for len in sizes {
        let next = &start + &len;
        parts.push(cx.narrow(x, axis, start, len)?);
        start = next;
    }
    if start != whole {
        let (a, b) = (start, whole);
        let resolved = a.known().is_some() && b.known().is_some();
        let error =
            if resolved { InferError::Dims { a, b } } else { InferError::Unresolved { a, b } };
        return Err(error.into());
    }
    Ok(parts)
}

fn concat(cx: &mut Context<'_, '_>) -> Outputs {
    let inputs: Vec<_> = (0..cx.input_count()).map(|i| cx.input(i)).collect::<Result<_, _>>()?;
    let Some(first) = inputs.first() else { return Err(Reason::MissingInput(0).into()) };
    let default = if cx.opset() < 4 { Some(1) } else { None };
    let Some(axis) = cx.int("axis").or(default) else {
        return Err(Reason::MissingAttribute("axis".into()).into());
    };
    let axis = cx.axis(cx.rank(*first), axis)?;
    Ok(vec![cx.add(Op::Concat { axis }, &inputs)?])
}

fn tile(cx: &mut Context<'_, '_>) -> Outputs {
    let (x, repeats) = (cx.input(0)?, cx.input(1)?);
    let repeats = cx.dims(repeats)?;
    let dims = cx.shape(x);
    if repeats.len() != dims.len() {
        return Err(cx.invalid("as many repeats as dims are expected"));
    }
    // Each repeated axis gets one before it that is broadcast.
    let (mut apart, mut wide, mut tiled) = (Vec::new(), Vec::new(), Vec::new());
    for (dim, repeat) in dims.iter().zip(&repeats) {
        if *repeat != 1 && *dim != 1 {
            apart.push(Dim::from(1));
            wide.push(repeat.clone());
        }
        apart.push(dim.clone());
        wide.push(if *dim == 1 { repeat.clone() } else { dim.clone() });
        tiled.push(dim * repeat);
    }
    let apart = cx.reshape(x, apart)?;
    let wide = cx.expand(apart, wide)?;
    Ok(vec![cx.reshape(wide, tiled)?])
}

fn pad(cx: &mut Context<'_, '_>) -> Outputs {
    let x = cx.input(0)?;
    let rank = cx.rank(x);
    let mode = match cx.string("mode").unwrap_or("constant") {
        "constant" => PadMode::Constant,
        "reflect" => PadMode::Reflect,
        "edge" => PadMode::Edge,
        "wrap" => PadMode::Wrap,
        other => return Err(cx.invalid(format!("mode `{other}`"))),
    };
    let (mut pads, mut value, mut axes): (Vec<Dim>, _, Vec<usize>) =
        (Vec::new(), None, (0..rank).collect());
    if cx.opset() < 11 {
        let given = cx.ints("pads").or(cx.ints("paddings")).unwrap_or_default();
        pads.extend(given.iter().copied().map(Dim::from));
        value = Some(cx.scalar_like(x, f64::from(cx.float_or("value", 0.0)))?);
    } else {
        let given = cx.input(1)?;
        pads.extend(cx.dims(given)?);
        if let Some(given) = cx.optional(2) {
            value = Some(cx.reshape(given, Vec::new())?);
        }
        if let Some(given) = cx.optional(3) {
            let given = cx.known_ints(given)?;
            cx.axes(rank, &given)?;
            axes = given.iter().map(|&axis| cx.axis(rank, axis)).collect::<Result<_, _>>()?;
        }
    }
    if pads.len() != 2 * axes.len() {
        return Err(cx.invalid("two pads an axis are expected"));
    }
    let (mut before, mut after) = (vec![Dim::from(0); rank], vec![Dim::from(0); rank]);
    for (i, &axis) in axes.iter().enumerate() {
        before[axis] = pads[i].clone();
        after[axis] = pads[i + axes.len()].clone();
    }
    if before.iter().chain(&after).all(|pad| *pad == 0) {
        return Ok(vec![x]);
    }
    let inputs: Vec<ValueId> = match value {
        Some(value) if mode == PadMode::Constant => vec![x, value],
        _ => vec![x],
    };
    Ok(vec![cx.add(Op::Pad { mode, before, after }, &inputs)?])
}

fn trilu(cx: &mut Context<'_, '_>) -> Outputs {
    let x = cx.input(0)?;
    let dims = cx.shape(x);
    let [.., rows, columns] = dims.as_slice() else {
        return Err(cx.invalid("takes matrices"));
    };
    let k = match cx.optional(1) {
        Some(k) => cx.reshape(k, Vec::new())?,
        None => cx.size(Dim::from(0))?,
    };
    let row = cx.counted(DType::I64, rows.clone(), Dim::from(1), Dim::from(0))?;
    let row = cx.reshape(row, vec![rows.clone(), Dim::from(1)])?;
    let column = cx.counted(DType::I64, columns.clone(), Dim::from(1), Dim::from(0))?;
    let right_of_diagonal = cx.binary(Binary::Sub, column, row)?;
    let upper = cx.int_or("upper", 1) != 0;
    let side = if upper { Binary::GreaterOrEqual } else { Binary::LessOrEqual };
    let kept = cx.binary(side, right_of_diagonal, k)?;
    let zero = cx.scalar_like(x, 0.0)?;
    Ok(vec![cx.add(Op::Select, &[kept, x, zero])?])
}

/// The block size and the dims `n, c, h, w`.
fn image(cx: &Context<'_, '_>, x: ValueId) -> Result<(Dim, [Dim; 4]), OpError> {
    let block = cx.int("blocksize").filter(|&block| block >= 1);
    let block = block.ok_or_else(|| cx.invalid("a positive block size is expected"))?;
    match <[Dim; 4]>::try_from(cx.shape(x)) {
        Ok(dims) => Ok((Dim::from(block), dims)),
        Err(_) => Err(cx.invalid("takes images")),
    }
}

fn depth_to_space(cx: &mut Context<'_, '_>) -> Outputs {
    let x = cx.input(0)?;
    let (block, [n, c, h, w]) = image(cx, x)?;
    let depth = c.floor_div(&(&block * &block))?;
    let (apart, perm) = match cx.string("mode").unwrap_or("DCR") {
        "DCR" => ([&n, &block, &block, &depth, &h, &w], vec![0, 3, 4, 1, 5, 2]),
        "CRD" => ([&n, &depth, &block, &block, &h, &w], vec![0, 1, 4, 2, 5, 3]),
        other => return Err(cx.invalid(format!("mode `{other}`"))),
    };
    let apart = cx.reshape(x, apart.into_iter().cloned().collect())?;
    let moved = cx.transpose(apart, perm)?;
    Ok(vec![cx.reshape(moved, vec![n, depth, h * &block, w * &block])?])
}

fn space_to_depth(cx: &mut Context<'_, '_>) -> Outputs {
    let x = cx.input(0)?;
    let (block, [n, c, h, w]) = image(cx, x)?;
    let (rows, columns) = (h.floor_div(&block)?, w.floor_div(&block)?);
    let apart = [&n, &c, &rows, &block, &columns, &block].into_iter().cloned().collect();
    let apart = cx.reshape(x, apart)?;
    let perm = match cx.string("mode").unwrap_or("DCR") {
        "DCR" => vec![0, 3, 5, 1, 2, 4],
        "CRD" => vec![0, 1, 3, 5, 2, 4],
        other => return Err(cx.invalid(format!("mode `{other}`"))),
    };
    let moved = cx.transpose(apart, perm)?;
    let depth = c * &block * &block;
    Ok(vec![cx.reshape(moved, vec![n, depth, rows, columns])?])
}

fn reverse_sequence(cx: &mut Context<'_, '_>) -> Outputs {
    let (x, lengths) = (cx.input(0)?, cx.input(1)?);
    let rank = cx.rank(x);
    let batch = cx.axis(rank, cx.int_or("batch_axis", 1))?;
    let time = cx.axis(rank, cx.int_or("time_axis", 0))?;
    if batch == time {
        return Err(cx.invalid("batch and time are one axis"));
    }
    Ok(vec![reversed(cx, x, lengths, batch, time)?])
}

/// x with the first elements along one axis in reverse: as many as the lengths say for each index of the other.
pub(super) fn reversed(
    cx: &mut Context<'_, '_>,
    x: ValueId,
    lengths: ValueId,
    batch: usize,
    time: usize,
) -> Result<ValueId, OpError> {
    let dims = cx.shape(x);
    // Batch and time first; the elements then come from places computed from the lengths.
    let mut perm = vec![batch, time];
    perm.extend((0..dims.len()).filter(|axis| *axis != batch && *axis != time));
    let mut back = vec![0; perm.len()];
    for (i, &axis) in perm.iter().enumerate() {
        back[axis] = i;
    }
    let moved = cx.transpose(x, perm)?;
    let lengths = cx.cast(lengths, DType::I64)?;
    let lengths = cx.reshape(lengths, vec![dims[batch].clone(), Dim::from(1)])?;
    let place = cx.counted(DType::I64, dims[time].clone(), Dim::from(1), Dim::from(0))?;
    let inside = cx.binary(Binary::Less, place, lengths)?;
    let reversed = cx.binary(Binary::Sub, lengths, place)?;
    let one = cx.size(Dim::from(1))?;
    let reversed = cx.binary(Binary::Sub, reversed, one)?;
    let places = cx.add(Op::Select, &[inside, reversed, place])?;
    let tuples = vec![dims[batch].clone(), dims[time].clone(), Dim::from(1)];
    let places = cx.reshape(places, tuples)?;
    let gathered = cx.add(Op::GatherNd { batch_dims: 1 }, &[moved, places])?;
    cx.transpose(gathered, back)
}
