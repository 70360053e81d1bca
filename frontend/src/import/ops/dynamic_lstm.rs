//! onnxruntime's LSTM with weights of integers, whose inputs and states are quantised while it runs.

use super::helpers::Outputs;
use super::movement::reversed;
use super::quant::{centered, dynamically_quantized};
use super::rnn::{activations, direction};
use super::{Row, microsoft};
use crate::dim::Dim;
use crate::dtype::DType;
use crate::graph::ValueId;
use crate::import::{Context, OpError};
use crate::op::{Binary, Op, ReduceOp, RnnCell, RnnDirection, ScanAttrs, Unary};
use crate::types::TensorType;

/// The operators of this family.
pub(super) const ROWS: &[Row] = &[microsoft("DynamicQuantizeLSTM", 1, dynamic_quantize_lstm)];

/// What steps share.
struct Layer {
    /// Elements of the hidden state.
    hidden: Dim,
    /// Functions f, g, h of every direction.
    activations: Vec<Unary>,
    /// Gate inputs are clamped to ±clip.
    clip: Option<f32>,
    /// The forget gate is 1 - the input gate.
    input_forget: bool,
}

/// What gates of one direction add to their matmuls: a bias `[1, 4·h]`, and the cell's state times weights `[1, 3·h]`.
struct Gates {
    bias: Option<ValueId>,
    peepholes: Option<ValueId>,
}

/// Sequences, `[s,b,i]`, are quantised as a whole up to the longest one's end, states `[b,h]` at every step; matmuls are
/// exact. onnxruntime splits a batch over threads and quantises each part's states alone: with one thread it gives the
/// same.
fn dynamic_quantize_lstm(c: &mut Context<'_, '_>) -> Outputs {
    let direction = direction(c)?;
    let (x, r) = (c.input(0)?, c.input(2)?);
    if c.rank(x) != 3 || c.rank(r) != 3 || c.rank(c.input(1)?) != 3 {
        return Err(c.invalid("the input and the weights must have 3 dims"));
    }
    let input_forget = c.int_or("input_forget", 0) != 0;
    let hidden = c.known_size(r, 1)?;
    if c.int("hidden_size").is_some_and(|given| given != hidden) {
        return Err(c.invalid("`hidden_size` is not that of the recurrence weights"));
    }
    let layer = Layer {
        hidden: Dim::from(hidden),
        activations: activations(c, RnnCell::Lstm { input_forget }, direction)?,
        clip: c.float("clip").filter(|&clip| clip > 0.0),
        input_forget,
    };
    let lengths = match c.optional(4) {
        Some(lengths) => Some(c.cast_to(lengths, DType::I64)?),
        None => None,
    };
    let x = match lengths {
        Some(lengths) => without_padding(c, x, lengths)?,
        None => x,
    };
    let [q, scale, zero_point] = dynamically_quantized(c, x)?;
    let q = centered(c, q, Some(zero_point), 1)?;
    let runs: &[bool] = match direction {
        RnnDirection::Forward => &[false],
        RnnDirection::Reverse => &[true],
        RnnDirection::Bidirectional => &[false, true],
    };
    let mut outputs = [const { Vec::new() }; 3];
    for (d, &backwards) in runs.iter().enumerate() {
        let results = run(c, &layer, d, backwards, (q, scale), lengths)?;
        for (all, (result, axis)) in outputs.iter_mut().zip(results.into_iter().zip([1, 0, 0])) {
            all.push(c.unsqueeze(result, &[axis])?);
        }
    }
    let [y, last, cell] = outputs;
    Ok(vec![c.concat(1, &y)?, c.concat(0, &last)?, c.concat(0, &cell)?])
}

/// x with zeros from the end of the longest sequence on.
fn without_padding(
    c: &mut Context<'_, '_>,
    x: ValueId,
    lengths: ValueId,
) -> Result<ValueId, OpError> {
    let longest = c.reduce(ReduceOp::Max, lengths, vec![0], false)?;
    let step = c.iota(c.shape(x)[0].clone(), 0, 3)?;
    let inside = c.binary(Binary::Less, step, longest)?;
    let zero = c.scalar_like(x, 0.0)?;
    c.select(inside, x, zero)
}

/// The part of an optional input that belongs to a direction, as `[1, …]`.
fn part(c: &mut Context<'_, '_>, i: usize, d: usize) -> Result<Option<ValueId>, OpError> {
    let Some(all) = c.optional(i) else { return Ok(None) };
    c.narrow(all, 0, Dim::from(d), Dim::from(1)).map(Some)
}

/// The integers of weights `[k, 4·h]` about their zero points, and their scales, which broadcast to that.
fn weights(
    c: &mut Context<'_, '_>,
    [w, scale, zero_point]: [usize; 3],
    d: usize,
) -> Result<(ValueId, ValueId), OpError> {
    let required = |c: &mut Context<'_, '_>, i: usize| {
        c.input(i)?;
        part(c, i, d)?.ok_or_else(|| c.invalid("weights need a scale and a zero point"))
    };
    let (w, scale, zero_point) = (required(c, w)?, required(c, scale)?, required(c, zero_point)?);
    let w = c.squeeze(w, 0)?;
    Ok((centered(c, w, Some(zero_point), 1)?, scale))
}

/// One direction: `y[s,b,h]`, the last state `[b,h]` and the last cell `[b,h]`.
fn run(
    c: &mut Context<'_, '_>,
    layer: &Layer,
    d: usize,
    backwards: bool,
    (x, x_scale): (ValueId, ValueId),
    lengths: Option<ValueId>,
) -> Result<[ValueId; 3], OpError> {
    let (w, w_scale) = weights(c, [1, 8, 9], d)?;
    let (r, r_scale) = weights(c, [2, 10, 11], d)?;
    let matmul = c.mat_mul(x, w)?;
    let matmul = c.cast(matmul, DType::F32)?;
    let scale = c.times(w_scale, x_scale)?;
    let mut gates = c.times(matmul, scale)?;
    let (steps, batch) = (c.shape(x)[0].clone(), c.shape(x)[1].clone());
    let state = vec![batch.clone(), layer.hidden.clone()];
    let zero = c.scalar(DType::F32, 0.0)?;
    let zeros = c.expand(zero, state.clone())?;
    let first = |c: &mut Context<'_, '_>, i: usize| match part(c, i, d)? {
        Some(given) => c.reshape(given, state.clone()),
        None => Ok(zeros),
    };
    let (h, cell) = (first(c, 5)?, first(c, 6)?);
    // Carried: the state, the cell, and with lengths the state at each sequence's own end.
    let mut carried = vec![h, cell];
    let mut scanned = Vec::new();
    let reverse_each = lengths.filter(|_| backwards);
    if let Some(lengths) = lengths {
        carried.push(zeros);
        if backwards {
            gates = reversed(c, gates, lengths, 1, 0)?;
        }
        let step = c.iota(steps, 0, 3)?;
        let ends = c.reshape(lengths, vec![Dim::from(1), batch.clone(), Dim::from(1)])?;
        scanned.push(c.binary(Binary::Less, step, ends)?);
    }
    scanned.insert(0, gates);
    let bias = match part(c, 3, d)? {
        Some(both) => {
            let width = Dim::from(4) * &layer.hidden;
            let of_input = c.narrow(both, 1, Dim::from(0), width.clone())?;
            let of_state = c.narrow(both, 1, width.clone(), width)?;
            Some(c.plus(of_input, of_state)?)
        }
        None => None,
    };
    let gate_inputs = Gates { bias, peepholes: part(c, 7, d)? };
    let outputs = scan(c, layer, d, carried, scanned, (r, r_scale), &gate_inputs, backwards)?;
    let y = *outputs.last().ok_or_else(|| c.invalid("a layer without steps"))?;
    let Some(lengths) = lengths else { return Ok([y, outputs[0], outputs[1]]) };
    let y = match reverse_each {
        Some(lengths) => reversed(c, y, lengths, 1, 0)?,
        None => y,
    };
    // What a sequence without elements leaves is zero, whatever it began with.
    let any = c.reshape(lengths, vec![batch, Dim::from(1)])?;
    let none = c.scalar(DType::I64, 0.0)?;
    let any = c.binary(Binary::Greater, any, none)?;
    let cell = c.select(any, outputs[1], zero)?;
    Ok([y, outputs[2], cell])
}

/// The steps in turn; carried values, then all states.
#[allow(clippy::too_many_arguments)] // What a step reads.
fn scan(
    c: &mut Context<'_, '_>,
    layer: &Layer,
    d: usize,
    carried: Vec<ValueId>,
    scanned: Vec<ValueId>,
    (r, r_scale): (ValueId, ValueId),
    gates: &Gates,
    backwards: bool,
) -> Result<Vec<ValueId>, OpError> {
    let captured: Vec<ValueId> =
        [Some(r), Some(r_scale), gates.bias, gates.peepholes].into_iter().flatten().collect();
    let mut formal: Vec<TensorType> = carried.iter().map(|&v| c.ty(v)).collect();
    formal.extend(scanned.iter().map(|&v| {
        let mut ty = c.ty(v);
        ty.shape.remove(0);
        ty
    }));
    formal.extend(captured.iter().map(|&v| c.ty(v)));
    let (has_bias, has_peepholes) = (gates.bias.is_some(), gates.peepholes.is_some());
    let (count, walks) = (carried.len(), scanned.len());
    let body = c.body(&formal, |c, inputs| {
        let (states, rest) = inputs.split_at(count);
        let (slices, rest) = rest.split_at(walks);
        let (of_state, mut rest) = ((rest[0], rest[1]), rest[2..].iter().copied());
        let bias = if has_bias { rest.next() } else { None };
        let peepholes = if has_peepholes { rest.next() } else { None };
        step(c, layer, d, states, slices, of_state, &Gates { bias, peepholes })
    })?;
    // Sequences with lengths are reversed beforehand, each up to its own end.
    let backwards = backwards && walks == 1;
    let attrs = ScanAttrs {
        body,
        carried: count,
        inputs: vec![(0, backwards); walks],
        outputs: vec![(0, backwards)],
    };
    let inputs: Vec<_> = carried.into_iter().chain(scanned).chain(captured).map(Some).collect();
    c.add_optional(Op::Scan(Box::new(attrs)), &inputs)
}

/// One step: the carried values, then `y[b,h]`.
fn step(
    c: &mut Context<'_, '_>,
    layer: &Layer,
    d: usize,
    states: &[ValueId],
    slices: &[ValueId],
    (r, r_scale): (ValueId, ValueId),
    added: &Gates,
) -> Result<Vec<ValueId>, OpError> {
    let (h, cell) = (states[0], states[1]);
    let [q, scale, zero_point] = dynamically_quantized(c, h)?;
    let q = centered(c, q, Some(zero_point), 1)?;
    let matmul = c.mat_mul(q, r)?;
    let matmul = c.cast(matmul, DType::F32)?;
    let scale = c.times(r_scale, scale)?;
    let matmul = c.times(matmul, scale)?;
    let gates = c.plus(slices[0], matmul)?;
    let [f, g, last] = *layer.activations.get(3 * d..3 * d + 3).unwrap_or_default() else {
        return Err(c.invalid("a direction needs three activations"));
    };
    let (input, output, forget, candidate) = (0, 1, 2, 3);
    let gate = |c: &mut Context<'_, '_>, i: i64, function: Unary, state: Option<ValueId>| {
        let part = |c: &mut Context<'_, '_>, v: ValueId| {
            c.narrow(v, 1, Dim::from(i) * &layer.hidden, layer.hidden.clone())
        };
        let mut x = part(c, gates)?;
        if let (Some(peepholes), Some(state)) = (added.peepholes, state) {
            let weights = part(c, peepholes)?;
            let seen = c.times(weights, state)?;
            x = c.plus(x, seen)?;
        }
        if let Some(bias) = added.bias {
            let bias = part(c, bias)?;
            x = c.plus(x, bias)?;
        }
        if let Some(clip) = layer.clip {
            let (low, high) =
                (c.scalar_like(x, f64::from(-clip))?, c.scalar_like(x, f64::from(clip))?);
            x = c.binary(Binary::Min, x, high)?;
            x = c.binary(Binary::Max, x, low)?;
        }
        c.unary(function, x)
    };
    let taken = gate(c, input, f, Some(cell))?;
    let kept = if layer.input_forget {
        let one = c.scalar_like(taken, 1.0)?;
        c.minus(one, taken)?
    } else {
        gate(c, forget, f, Some(cell))?
    };
    let new = gate(c, candidate, g, None)?;
    let (kept, new) = (c.times(kept, cell)?, c.times(taken, new)?);
    let next_cell = c.plus(kept, new)?;
    let shown = gate(c, output, f, Some(next_cell))?;
    let bounded = c.unary(last, next_cell)?;
    let y = c.times(shown, bounded)?;
    let (Some(&inside), Some(&end)) = (slices.get(1), states.get(2)) else {
        return Ok(vec![y, next_cell, y]);
    };
    let zero = c.scalar_like(y, 0.0)?;
    let next_cell = c.select(inside, next_cell, cell)?;
    let end = c.select(inside, y, end)?;
    let y = c.select(inside, y, zero)?;
    Ok(vec![y, next_cell, end, y])
}
