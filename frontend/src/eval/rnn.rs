//! Recurrent layers, by ONNX's equations.

use super::error::EvalError;
use super::number::{filled, from_reals, integers, reals};
use crate::dtype::DType;
use crate::op::{Portable, RealFunction, RnnAttrs, RnnCell, RnnDirection};
use crate::tensor::Tensor;

/// Operands in the order of [`crate::op::Op::Rnn`]; x, w and r are there.
pub(super) struct Operands<'a> {
    pub(super) x: &'a Tensor,
    pub(super) w: &'a Tensor,
    pub(super) r: &'a Tensor,
    pub(super) bias: Option<&'a Tensor>,
    pub(super) lengths: Option<&'a Tensor>,
    pub(super) h0: Option<&'a Tensor>,
    pub(super) c0: Option<&'a Tensor>,
    pub(super) peepholes: Option<&'a Tensor>,
}

/// [`crate::op::Op::Rnn`].
pub(super) fn rnn(operands: &Operands<'_>, attrs: &RnnAttrs) -> Result<Vec<Tensor>, EvalError> {
    let layer = Layer::new(operands, attrs)?;
    let Layer { steps, batch, hidden, directions, .. } = layer;
    let dtype = operands.x.dtype();
    let (y_shape, state_shape) =
        (vec![steps, directions, batch, hidden], vec![directions, batch, hidden]);
    let mut y = filled(&y_shape, 0.0)?;
    let mut h = initial(operands.h0, &state_shape)?;
    let mut c = initial(operands.c0, &state_shape)?;
    for d in 0..directions {
        let cell = Cell::new(&layer, attrs, d)?;
        let backwards = match attrs.direction {
            RnnDirection::Forward => false,
            RnnDirection::Reverse => true,
            RnnDirection::Bidirectional => d == 1,
        };
        for b in 0..batch {
            let state = (d * batch + b) * hidden;
            let (h, c) = (&mut h[state..][..hidden], &mut c[state..][..hidden]);
            let length = layer.lengths[b];
            for step in 0..length {
                let step = if backwards { length - 1 - step } else { step };
                let x = &layer.x[(step * batch + b) * layer.inputs..][..layer.inputs];
                cell.advance(x, h, c);
                if dtype != DType::F64 {
                    // Stored as executors store it, so that what overflows is infinite in the next step too.
                    h.iter_mut().chain(&mut *c).for_each(|state| *state = f64::from(*state as f32));
                }
                y[((step * directions + d) * batch + b) * hidden..][..hidden].copy_from_slice(h);
            }
        }
    }
    let mut outputs = vec![
        from_reals(dtype, y_shape, &y, true)?,
        from_reals(dtype, state_shape.clone(), &h, true)?,
    ];
    if let RnnCell::Lstm { .. } = attrs.cell {
        outputs.push(from_reals(dtype, state_shape, &c, true)?);
    }
    Ok(outputs)
}

fn initial(state: Option<&Tensor>, shape: &[usize]) -> Result<Vec<f64>, EvalError> {
    match state {
        None => filled(shape, 0.0),
        Some(state) if state.shape() == shape => reals(state),
        Some(state) => {
            Err(EvalError::shape("a state has an element a unit", &[shape, state.shape()]))
        }
    }
}

/// Sizes and decoded operands.
struct Layer {
    steps: usize,
    batch: usize,
    inputs: usize,
    hidden: usize,
    directions: usize,
    gates: usize,
    x: Vec<f64>,
    w: Vec<f64>,
    r: Vec<f64>,
    bias: Option<Vec<f64>>,
    peepholes: Option<Vec<f64>>,
    lengths: Vec<usize>,
}

impl Layer {
    fn new(operands: &Operands<'_>, attrs: &RnnAttrs) -> Result<Self, EvalError> {
        let gates = match attrs.cell {
            RnnCell::Lstm { .. } => 4,
            RnnCell::Gru { .. } => 3,
            RnnCell::Plain => 1,
        };
        let directions = match attrs.direction {
            RnnDirection::Forward | RnnDirection::Reverse => 1,
            RnnDirection::Bidirectional => 2,
        };
        let hidden = attrs.hidden;
        let [steps, batch, inputs] = *operands.x.shape() else {
            return Err(EvalError::shape("a sequence has three dims", &[operands.x.shape()]));
        };
        if !operands.x.dtype().is_float() {
            return Err(EvalError::Unsupported(operands.x.dtype()));
        }
        let rows = gates * hidden.min(1 << 40);
        let decoded = |tensor: &Tensor, shape: &[usize]| {
            if tensor.shape() != shape {
                return Err(EvalError::shape("an operand does not fit", &[shape, tensor.shape()]));
            }
            reals(tensor)
        };
        let optional = |tensor: Option<&Tensor>, shape: &[usize]| {
            tensor.map(|tensor| decoded(tensor, shape)).transpose()
        };
        let lengths = match operands.lengths {
            None => filled(&[batch], steps)?,
            Some(lengths) => {
                let known = integers(lengths)?;
                let fits = |&n: &i128| (0..=steps as i128).contains(&n);
                if lengths.shape() != [batch] || !known.iter().all(fits) {
                    let what = "a sequence's length is at most the number of steps";
                    return Err(EvalError::shape(what, &[operands.x.shape(), lengths.shape()]));
                }
                known.iter().map(|&n| n as usize).collect()
            }
        };
        Ok(Self {
            steps,
            batch,
            inputs,
            hidden,
            directions,
            gates,
            x: reals(operands.x)?,
            w: decoded(operands.w, &[directions, rows, inputs])?,
            r: decoded(operands.r, &[directions, rows, hidden])?,
            bias: optional(operands.bias, &[directions, 2 * rows])?,
            peepholes: optional(operands.peepholes, &[directions, 3 * hidden.min(1 << 40)])?,
            lengths,
        })
    }
}

/// The weights and functions of one direction.
struct Cell<'a> {
    kind: RnnCell,
    inputs: usize,
    hidden: usize,
    gates: usize,
    w: &'a [f64],
    r: &'a [f64],
    bias: Option<&'a [f64]>,
    peepholes: Option<&'a [f64]>,
    activations: Vec<RealFunction>,
    clip: f64,
}

impl<'a> Cell<'a> {
    fn new(layer: &'a Layer, attrs: &RnnAttrs, d: usize) -> Result<Self, EvalError> {
        let each = match attrs.cell {
            RnnCell::Lstm { .. } => 3,
            RnnCell::Gru { .. } => 2,
            RnnCell::Plain => 1,
        };
        let refuse = EvalError::Attribute("a recurrent layer lacks an activation");
        let own = attrs.activations.get(d * each..(d + 1) * each).ok_or(refuse.clone())?;
        let mut activations = Vec::new();
        for &activation in own {
            activations.push(activation.meaning::<Portable>().ok_or(refuse.clone())?);
        }
        let (inputs, hidden, gates) = (layer.inputs, layer.hidden, layer.gates);
        let part = |values: &'a [f64], size: usize| &values[d * size..][..size];
        Ok(Self {
            kind: attrs.cell,
            inputs,
            hidden,
            gates,
            w: part(&layer.w, gates * hidden * inputs),
            r: part(&layer.r, gates * hidden * hidden),
            bias: layer.bias.as_ref().map(|bias| part(bias, 2 * gates * hidden)),
            peepholes: layer.peepholes.as_ref().map(|p| part(p, 3 * hidden)),
            activations,
            clip: attrs.clip.map_or(f64::INFINITY, f64::from),
        })
    }

    /// One step: the states `h` and `c` (LSTM only) become the next ones.
    fn advance(&self, x: &[f64], h: &mut [f64], c: &mut [f64]) {
        match self.kind {
            RnnCell::Lstm { input_forget } => self.advance_lstm(x, h, c, input_forget),
            RnnCell::Gru { linear_before_reset } => self.advance_gru(x, h, linear_before_reset),
            RnnCell::Plain => {
                let next: Vec<_> = (0..self.hidden)
                    .map(|j| self.activate(0, self.input_part(0, j, x) + self.state_part(0, j, h)))
                    .collect();
                h.copy_from_slice(&next);
            }
        }
    }

    fn advance_lstm(&self, x: &[f64], h: &mut [f64], c: &mut [f64], input_forget: bool) {
        let old = h.to_vec();
        // Without peepholes a state that is infinite adds nothing either.
        let peephole = |gate: usize, j: usize, c: f64| {
            self.peepholes.map_or(0.0, |p| p[gate * self.hidden + j] * c)
        };
        for j in 0..self.hidden {
            let gate = |gate: usize| self.input_part(gate, j, x) + self.state_part(gate, j, &old);
            let input = self.activate(0, gate(0) + peephole(0, j, c[j]));
            let forget = match input_forget {
                true => 1.0 - input,
                false => self.activate(0, gate(2) + peephole(2, j, c[j])),
            };
            c[j] = forget * c[j] + input * self.activate(1, gate(3));
            let output = self.activate(0, gate(1) + peephole(1, j, c[j]));
            h[j] = output * (self.activations[2])(c[j]);
        }
    }

    fn advance_gru(&self, x: &[f64], h: &mut [f64], linear_before_reset: bool) {
        let gate = |gate: usize, j: usize| {
            self.activate(0, self.input_part(gate, j, x) + self.state_part(gate, j, h))
        };
        let update: Vec<_> = (0..self.hidden).map(|j| gate(0, j)).collect();
        let reset: Vec<_> = (0..self.hidden).map(|j| gate(1, j)).collect();
        let scaled: Vec<_> = h.iter().zip(&reset).map(|(h, reset)| h * reset).collect();
        let next: Vec<_> = (0..self.hidden)
            .map(|j| {
                let state = match linear_before_reset {
                    true => reset[j] * self.state_part(2, j, h),
                    false => self.state_part(2, j, &scaled),
                };
                let candidate = self.activate(1, self.input_part(2, j, x) + state);
                (1.0 - update[j]) * candidate + update[j] * h[j]
            })
            .collect();
        h.copy_from_slice(&next);
    }

    fn activate(&self, which: usize, x: f64) -> f64 {
        // Not `clamp`: that panics where the clip is negative.
        let clipped = match x {
            x if x > self.clip => self.clip,
            x if x < -self.clip => -self.clip,
            x => x,
        };
        (self.activations[which])(clipped)
    }

    fn input_part(&self, gate: usize, j: usize, x: &[f64]) -> f64 {
        let row = gate * self.hidden + j;
        dot(&self.w[row * self.inputs..], x) + self.bias.map_or(0.0, |bias| bias[row])
    }

    fn state_part(&self, gate: usize, j: usize, h: &[f64]) -> f64 {
        let row = gate * self.hidden + j;
        let bias = self.bias.map_or(0.0, |bias| bias[self.gates * self.hidden + row]);
        dot(&self.r[row * self.hidden..], h) + bias
    }
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}
