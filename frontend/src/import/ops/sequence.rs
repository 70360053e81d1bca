//! Sequences of tensors, and optional values. Positions are known at import, so every element is a value of its own and
//! nothing of a sequence is left in the graph; so is whether an optional value is there.

use super::control::stacked;
use super::movement::parts;
use super::{Row, values};
use crate::dim::Dim;
use crate::graph::ValueId;
use crate::import::{Context, OpError, Sequence, Value};
use crate::tensor::Tensor;

/// The operators of this family.
pub(super) const ROWS: &[Row] = &[
    values("SequenceEmpty", 11, |cx| given(cx, Vec::new())),
    values("SequenceConstruct", 11, |cx| {
        let elements: Vec<_> =
            (0..cx.input_count()).map(|i| cx.input(i)).collect::<Result<_, _>>()?;
        given(cx, elements)
    }),
    values("SequenceInsert", 11, insert),
    values("SequenceErase", 11, erase),
    values("SequenceAt", 11, at),
    values("SequenceLength", 11, length),
    values("ConcatFromSequence", 11, join),
    values("SplitToSequence", 11, split),
    values("Optional", 15, |cx| match cx.input_count() {
        0 => Err(cx.unsupported("an optional value that is empty")),
        _ => Ok(vec![cx.value(0)?]),
    }),
    values("OptionalGetElement", 15, |cx| Ok(vec![cx.value(0)?])),
    values("OptionalHasElement", 15, |cx| {
        let there = Tensor::from_bools(Vec::new(), vec![cx.value(0).is_ok()])?;
        Ok(vec![cx.constant(there).into()])
    }),
];

/// More elements than a sequence of any real model has.
const MAX_ELEMENTS: i64 = 1 << 14;

/// The sequence as the only output. The memory that it takes is counted: a small file can copy a long one often.
fn given(cx: &mut Context<'_, '_>, elements: Vec<ValueId>) -> Result<Vec<Value>, OpError> {
    cx.take_bytes(elements.len() * size_of::<ValueId>())?;
    Ok(vec![Value::Sequence(elements.into())])
}

/// A position among `places` in a sequence of `count` elements, from which negative ones are counted back; the last
/// place where there is no such input.
fn position(
    cx: &Context<'_, '_>,
    input: usize,
    count: usize,
    places: usize,
) -> Result<usize, OpError> {
    let outside = |position: i64| {
        cx.invalid(format!("position {position} is outside of a sequence of {count} elements"))
    };
    let Some(value) = cx.optional(input) else {
        return places.checked_sub(1).ok_or_else(|| outside(-1));
    };
    let [position] = cx.known_ints(value)?[..] else {
        return Err(cx.invalid("a position is a single number"));
    };
    let from_front = if position < 0 { position.saturating_add(count as i64) } else { position };
    let place = usize::try_from(from_front).ok().filter(|&place| place < places);
    place.ok_or_else(|| outside(position))
}

fn insert(cx: &mut Context<'_, '_>) -> Result<Vec<Value>, OpError> {
    let (sequence, element) = (cx.sequence(0)?, cx.input(1)?);
    let place = position(cx, 2, sequence.len(), sequence.len() + 1)?;
    let mut elements = sequence.to_vec();
    elements.insert(place, element);
    given(cx, elements)
}

fn erase(cx: &mut Context<'_, '_>) -> Result<Vec<Value>, OpError> {
    let sequence = cx.sequence(0)?;
    let place = position(cx, 1, sequence.len(), sequence.len())?;
    let mut elements = sequence.to_vec();
    elements.remove(place);
    given(cx, elements)
}

fn at(cx: &mut Context<'_, '_>) -> Result<Vec<Value>, OpError> {
    let sequence = cx.sequence(0)?;
    cx.input(1)?;
    let place = position(cx, 1, sequence.len(), sequence.len())?;
    Ok(vec![sequence[place].into()])
}

fn length(cx: &mut Context<'_, '_>) -> Result<Vec<Value>, OpError> {
    let length = cx.sequence(0)?.len() as i64;
    Ok(vec![cx.constant(Tensor::scalar(length)).into()])
}

/// The elements joined along an axis, which is a new one if asked for.
fn join(cx: &mut Context<'_, '_>) -> Result<Vec<Value>, OpError> {
    let sequence: Sequence = cx.sequence(0)?;
    let Some(&first) = sequence.first() else {
        return Err(cx.invalid("the sequence is empty: there is nothing to join"));
    };
    let axis = cx.int("axis").ok_or_else(|| cx.invalid("attribute `axis` is required"))?;
    let rank = cx.rank(first);
    let joined = if cx.int_or("new_axis", 0) != 0 {
        let axis = cx.axis(rank + 1, axis)?;
        stacked(cx, &sequence, axis)?
    } else {
        let axis = cx.axis(rank, axis)?;
        cx.concat(axis, &sequence)?
    };
    Ok(vec![joined.into()])
}

/// Pieces of an axis: of one element each, of a given size, or of given sizes.
fn split(cx: &mut Context<'_, '_>) -> Result<Vec<Value>, OpError> {
    let x = cx.input(0)?;
    let axis = cx.axis(cx.rank(x), cx.int_or("axis", 0))?;
    let sizes = match cx.optional(1) {
        Some(sizes) if cx.rank(sizes) > 0 => cx.dims(sizes)?,
        Some(size) => {
            let size = cx.known_ints(size)?.first().copied().unwrap_or(0);
            pieces(cx, x, axis, size)?
        }
        None => pieces(cx, x, axis, 1)?,
    };
    let mut elements = parts(cx, x, axis, sizes)?;
    if cx.optional(1).is_none() && cx.int_or("keepdims", 1) == 0 {
        for element in &mut elements {
            *element = cx.squeeze(*element, axis)?;
        }
    }
    given(cx, elements)
}

/// The sizes of the pieces of an axis, all but the last of `size` elements.
fn pieces(cx: &Context<'_, '_>, x: ValueId, axis: usize, size: i64) -> Result<Vec<Dim>, OpError> {
    let whole = cx.known_size(x, axis)?;
    if size < 1 {
        return Err(cx.invalid(format!("pieces of {size} elements")));
    }
    let count = whole / size + i64::from(whole % size != 0);
    if count > MAX_ELEMENTS {
        return Err(cx.unsupported(format!("a sequence of {count} elements")));
    }
    Ok((0..count).map(|i| Dim::from(size.min(whole - i * size))).collect())
}
