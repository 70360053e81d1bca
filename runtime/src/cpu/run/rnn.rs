//! Recurrent layers.

use super::wide::Wide;
use super::{input_number, required_input};
use crate::cpu::kernels::packed::Packed;
use crate::cpu::kernels::rnn::{Activation, Cell, Layer, rnn};
use crate::cpu::loops::apply_unary;
use crate::cpu::memory::Io;
use crate::cpu::scratch::Few;
use crate::cpu::weight_matrix::{cell, directions, pack};
use crate::error::{Error, Result};
use graphene_frontend::op::{RnnAttrs, RnnDirection, Unary};
use graphene_fusion::program::Step;
use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;

/// Runs a recurrent layer; weights that were not prepacked are packed now.
pub(crate) fn run_rnn(
    step: &Step,
    mut io: Io<'_>,
    attrs: &RnnAttrs,
    prepacked: &[Vec<Arc<Packed>>],
) -> Result<()> {
    let optional = |place| match input_number(step, place)? {
        Some(number) => Ok::<_, Error>(Some(io.reals(number)?.0)),
        None => Ok(None),
    };
    let (x, shape) = io.reals(required_input(step, 0)?)?;
    let [steps, batch, inputs] = *shape else {
        return Err(Error::Mismatch {
            what: "rank of a sequence",
            expected: 3,
            found: shape.len(),
        });
    };
    let cell = cell(attrs.cell);
    let weights = |place, parts: &[Range<usize>]| {
        let number = required_input(step, place)?;
        match &prepacked[number][..] {
            [] => {
                let (bytes, operand, dtype) = io.input(number)?;
                let matrices = directions(operand, parts, attrs)
                    .ok_or(Error::Unsupported { what: "weights of another shape" })?;
                let prepacked =
                    matrices.iter().map(|matrix| pack(matrix, bytes, dtype).map(Arc::new));
                prepacked.collect::<Result<Vec<_>>>().map(Cow::Owned)
            }
            prepacked => Ok(Cow::Borrowed(prepacked)),
        }
    };
    #[allow(clippy::single_range_in_vec_init)] // Groups of gates, of which there may be one.
    let (w, r) = (weights(1, &[0..cell.gates()])?, weights(2, cell.parts())?);
    let (bias, peepholes) = (optional(3)?, optional(7)?);
    let (h0, c0) = (optional(5)?, optional(6)?);
    let lengths = match input_number(step, 4)? {
        Some(number) => Some(io.dense::<i32>(number)?.0),
        None => None,
    };
    let functions: Few<_> = attrs.activations.iter().map(|&unary| activation(unary)).collect();
    let activations: Few<Activation<'_>> = functions.iter().map(|f| f as Activation<'_>).collect();
    let layer = Layer {
        cell,
        reverse: match attrs.direction {
            RnnDirection::Forward => &[false],
            RnnDirection::Reverse => &[true],
            RnnDirection::Bidirectional => &[false, true],
        },
        steps,
        batch,
        inputs,
        hidden: attrs.hidden,
        x: &x,
        w: &w,
        r: &r,
        bias: bias.as_deref(),
        peepholes: peepholes.as_deref(),
        lengths,
        activations: &activations,
        clip: attrs.clip,
    };
    let states = elements(&[layer.reverse.len(), batch, attrs.hidden])?;
    let cells = if matches!(cell, Cell::Lstm { .. }) { states } else { 0 };
    let all = elements(&[states, steps])?;
    let mut outputs = Wide::all(step, &mut io.outputs, [all, states, cells])?;
    let [y, h, c] = &mut outputs;
    let (h, c) = (h.elements(), c.elements());
    begin(h, h0.as_deref())?;
    begin(c, c0.as_deref().filter(|_| cells > 0))?;
    rnn(&layer, y.elements(), h, c)?;
    outputs.into_iter().for_each(Wide::finish);
    Ok(())
}

fn activation(unary: Unary) -> impl Fn(&mut [f32]) + Sync {
    move |x| {
        if !apply_unary(unary, x) {
            x.fill(f32::NAN);
        }
    }
}

fn begin(state: &mut [f32], initial: Option<&[f32]>) -> Result<()> {
    match initial {
        None => state.fill(0.0),
        Some(initial) if initial.len() == state.len() => state.copy_from_slice(initial),
        Some(initial) => {
            let (expected, found) = (state.len(), initial.len());
            return Err(Error::Mismatch { what: "length of a state", expected, found });
        }
    }
    Ok(())
}

fn elements(shape: &[usize]) -> Result<usize> {
    let elements = shape.iter().try_fold(1_usize, |elements, &size| elements.checked_mul(size));
    elements.ok_or(Error::TooLarge { what: "a recurrent layer" })
}
