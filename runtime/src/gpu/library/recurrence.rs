//! Which recurrent layers cuDNN computes.

use super::{alone, scalar};
use crate::device::cudnn::{Cell, Layer};
use graphene_frontend::dim::Dim;
use graphene_frontend::op::{Op, RnnAttrs, RnnCell, RnnDirection, Unary};
use graphene_fusion::program::{Program, Step};
use graphene_ir::tensor::Scalar;

/// A recurrent layer, and which of the step's operands are its.
#[derive(Clone, PartialEq, Debug)]
pub struct Recurrence {
    pub(super) layer: Layer,
    pub(super) steps: Dim,
    pub(super) batch: Dim,
    /// The input, and the weights of inputs, of states, and the biases.
    pub(super) x: usize,
    pub(super) weights: [Option<usize>; 3],
    /// h and c before the first step.
    pub(super) initial: [Option<usize>; 2],
    /// All h, and h and c after the last step.
    pub(super) results: [Option<usize>; 3],
}

/// Places of a layer's inputs, as [`Op::Rnn`] has them.
const WEIGHTS: [usize; 3] = [1, 2, 3];
const LENGTHS: usize = 4;
const INITIAL: [usize; 2] = [5, 6];
const PEEPHOLES: usize = 7;

/// The layer that a step is, if it is one of cuDNN's.
pub(super) fn recurrent(program: &Program, step: &Step) -> Option<Recurrence> {
    let node = alone(step)?;
    let Op::Rnn(attrs) = node.op() else { return None };
    let body = &step.body;
    let value = |place: usize| node.inputs().get(place).copied().flatten();
    let input = |place: usize| {
        let value = value(place)?;
        body.inputs().iter().position(|id| id.value() == value)
    };
    if attrs.clip.is_some() || value(LENGTHS).is_some() || value(PEEPHOLES).is_some() {
        return None;
    }
    let ty = body.ty(value(0)?);
    let [steps, batch, inputs] = &ty.shape[..] else { return None };
    // The library has no layer of no steps, sequences, inputs or units.
    if ty.shape.iter().any(|size| *size == 0) || attrs.hidden == 0 {
        return None;
    }
    // And none that runs from the last step only.
    let directions = match attrs.direction {
        RnnDirection::Forward => 1,
        RnnDirection::Bidirectional => 2,
        RnnDirection::Reverse => return None,
    };
    let weights = WEIGHTS.map(input);
    let is_weight = |number: usize| {
        let buffer = program.buffer(step.inputs[number].buffer);
        buffer.is_weight()
    };
    let known = weights.iter().flatten().all(|&number| is_weight(number));
    let places = WEIGHTS.into_iter().chain(INITIAL);
    let made_inside = |place: usize| value(place).is_some() && input(place).is_none();
    if places.into_iter().any(made_inside) || !known || weights[..2].contains(&None) {
        return None;
    }
    let layer = Layer {
        cell: cell(attrs, directions)?,
        scalar: scalar(ty.dtype).filter(|scalar| *scalar != Scalar::Bf16)?,
        directions,
        inputs: usize::try_from(inputs.known()?).ok()?,
        hidden: attrs.hidden,
        bias: weights[2].is_some(),
    };
    let result = |number: u32| body.outputs().iter().position(|(_, value)| value.output == number);
    Some(Recurrence {
        layer,
        steps: steps.clone(),
        batch: batch.clone(),
        x: input(0)?,
        weights,
        initial: INITIAL.map(input),
        results: [0, 1, 2].map(result),
    })
}

/// The library's cell, which has ONNX's default functions and no others.
fn cell(attrs: &RnnAttrs, directions: usize) -> Option<Cell> {
    use Unary::{Relu, Sigmoid, Tanh};
    let rows: &[(RnnCell, &[Unary], Cell)] = &[
        (RnnCell::Lstm { input_forget: false }, &[Sigmoid, Tanh, Tanh], Cell::Lstm),
        (RnnCell::Gru { linear_before_reset: true }, &[Sigmoid, Tanh], Cell::Gru),
        (RnnCell::Plain, &[Tanh], Cell::Tanh),
        (RnnCell::Plain, &[Relu], Cell::Relu),
    ];
    let is = |row: &&(RnnCell, &[Unary], Cell)| {
        row.0 == attrs.cell && attrs.activations == row.1.repeat(directions)
    };
    rows.iter().find(is).map(|row| row.2)
}
