//! Recurrent layers.

use super::helpers::Outputs;
use super::{Row, row};
use crate::import::{Context, OpError};
use crate::op::{Op, Parameter, RnnAttrs, RnnCell, RnnDirection, Unary};

/// The functions that a gate may have, by ONNX's names.
const ACTIVATIONS: [&str; 11] = [
    "Affine",
    "Elu",
    "HardSigmoid",
    "LeakyRelu",
    "Relu",
    "ScaledTanh",
    "Sigmoid",
    "Softplus",
    "Softsign",
    "Tanh",
    "ThresholdedRelu",
];

/// The operators of this family.
pub(super) const ROWS: &[Row] = &[
    row("LSTM", 1, |c| {
        let input_forget = c.int_or("input_forget", 0) != 0;
        recurrent(c, RnnCell::Lstm { input_forget })
    }),
    row("GRU", 1, |c| {
        let linear_before_reset = c.int_or("linear_before_reset", 0) != 0;
        recurrent(c, RnnCell::Gru { linear_before_reset })
    }),
    row("RNN", 1, |c| recurrent(c, RnnCell::Plain)),
];

fn recurrent(c: &mut Context<'_, '_>, cell: RnnCell) -> Outputs {
    let batch_first = c.int_or("layout", 0) != 0;
    let (x, w, r) = (c.input(0)?, c.input(1)?, c.input(2)?);
    let direction = direction(c)?;
    let hidden = match c.int("hidden_size") {
        Some(hidden) => hidden,
        None => c.known_size(r, 2)?,
    };
    let hidden = usize::try_from(hidden).map_err(|_| c.invalid("`hidden_size` is negative"))?;
    let activations = activations(c, cell, direction)?;
    let attrs = RnnAttrs { cell, direction, hidden, activations, clip: c.float("clip") };
    // bias, lengths, the first states, peepholes; the states' batch stands first in the other layout.
    let mut inputs = vec![Some(x), Some(w), Some(r)];
    let optional = if matches!(cell, RnnCell::Lstm { .. }) { 3..8 } else { 3..6 };
    for i in optional {
        let mut input = c.optional(i);
        if let (true, 5 | 6, Some(state)) = (batch_first, i, input) {
            input = Some(c.transpose(state, vec![1, 0, 2])?);
        }
        inputs.push(input);
    }
    if batch_first {
        inputs[0] = Some(c.transpose(x, vec![1, 0, 2])?);
    }
    let mut outputs = c.add_optional(Op::Rnn(attrs), &inputs)?;
    if batch_first {
        for (i, output) in outputs.iter_mut().enumerate() {
            if c.wants_output(i) {
                let perm = if i == 0 { vec![2, 0, 1, 3] } else { vec![1, 0, 2] };
                *output = c.transpose(*output, perm)?;
            }
        }
    }
    Ok(outputs)
}

/// Which way the layer runs.
pub(super) fn direction(c: &Context<'_, '_>) -> Result<RnnDirection, OpError> {
    match c.string("direction") {
        None | Some("forward") => Ok(RnnDirection::Forward),
        Some("reverse") => Ok(RnnDirection::Reverse),
        Some("bidirectional") => Ok(RnnDirection::Bidirectional),
        Some(_) => Err(c.invalid("`direction` is none of the known ones")),
    }
}

/// The functions of all gates of all directions; parameters are taken in turn by those that have them.
pub(super) fn activations(
    c: &Context<'_, '_>,
    cell: RnnCell,
    direction: RnnDirection,
) -> Result<Vec<Unary>, OpError> {
    let default: &[Unary] = match cell {
        RnnCell::Lstm { .. } => &[Unary::Sigmoid, Unary::Tanh, Unary::Tanh],
        RnnCell::Gru { .. } => &[Unary::Sigmoid, Unary::Tanh],
        RnnCell::Plain => &[Unary::Tanh],
    };
    let directions = match direction {
        RnnDirection::Forward | RnnDirection::Reverse => 1,
        RnnDirection::Bidirectional => 2,
    };
    let names = match c.strings("activations") {
        Some(names) if !names.is_empty() => names,
        _ => return Ok(default.repeat(directions)),
    };
    let mut alphas = c.floats("activation_alpha").unwrap_or(&[]).iter().copied();
    let mut betas = c.floats("activation_beta").unwrap_or(&[]).iter().copied();
    let mut functions = Vec::with_capacity(names.len());
    for name in names {
        let Some(name) = ACTIVATIONS.iter().find(|known| known.eq_ignore_ascii_case(name)) else {
            return Err(c.invalid("`activations` names no known function"));
        };
        let function = Unary::ALL.iter().find(|function| function.info().name == *name);
        let mut function =
            *function.ok_or_else(|| c.unsupported(format!("the activation {name}")))?;
        for (name, _, parameter) in function.parameters() {
            if let Parameter::Number(number) = parameter {
                let given = if name == "alpha" { alphas.next() } else { betas.next() };
                *number = given.unwrap_or(*number);
            }
        }
        functions.push(function);
    }
    if functions.len() != default.len() * directions {
        return Err(c.invalid("`activations` has not one function for each gate"));
    }
    Ok(functions)
}
