//! Recurrent layers of cuDNN's, with weights as ONNX has them.

use super::{Context, holds, time};
use crate::device::sys::capture::Used;
use crate::device::sys::cudnn::Handle;
use crate::device::sys::cudnn::rnn::{Algorithm, Place, Pointers, Rnn, Sequences, part_directions};
use crate::device::sys::recording::{Outside, keep};
use crate::device::{Buffer, Stream};
use crate::error::{Error, Result};
use graphene_ir::tensor::Scalar;
use std::sync::{Arc, PoisonError};

/// What a unit of a recurrent layer computes, as ONNX defines it with its default functions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Cell {
    /// Four gates, and a state beside the output.
    Lstm,
    /// Three gates; the reset gate is applied after the matmul with the state.
    Gru,
    /// A hyperbolic tangent of a sum.
    Tanh,
    /// The positive part of a sum.
    Relu,
}

/// A recurrent layer, of one direction from the first step or of both.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Layer {
    /// What a unit computes.
    pub cell: Cell,
    /// The type of all operands: f16 or f32.
    pub scalar: Scalar,
    /// One or two.
    pub directions: usize,
    /// Elements of an input.
    pub inputs: usize,
    /// Units.
    pub hidden: usize,
    /// Whether there are biases, two for each gate.
    pub bias: bool,
}

/// How much a layer is given.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Sizes {
    /// Steps of each sequence.
    pub steps: usize,
    /// Sequences.
    pub batch: usize,
}

/// Which part of ONNX's weights is one of the library's: a matrix of a direction's, and its bias.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Part {
    direction: usize,
    /// The library's number: gates of the inputs' weights, then those of the states'.
    number: usize,
    /// Whether it is of the states' weights.
    recurrent: bool,
    /// ONNX's number of the gate.
    gate: usize,
}

impl Layer {
    /// For each of the library's gates, in its order, ONNX's number.
    fn gates(&self) -> &'static [usize] {
        match self.cell {
            // i, f, c, o of ONNX's i, o, f, c.
            Cell::Lstm => &[0, 2, 3, 1],
            // r, z, h of ONNX's z, r, h.
            Cell::Gru => &[1, 0, 2],
            Cell::Tanh | Cell::Relu => &[0],
        }
    }

    /// Elements of ONNX's weights of the inputs, of the states, and of the biases.
    fn weights(&self) -> [usize; 3] {
        let rows = self.directions * self.gates().len() * self.hidden;
        [rows * self.inputs, rows * self.hidden, if self.bias { 2 * rows } else { 0 }]
    }

    fn parts(&self) -> impl Iterator<Item = Part> {
        let gates = self.gates();
        let of = move |direction, recurrent: bool| {
            let first = if recurrent { gates.len() } else { 0 };
            gates.iter().enumerate().map(move |(place, &gate)| Part {
                direction,
                number: first + place,
                recurrent,
                gate,
            })
        };
        (0..self.directions)
            .flat_map(move |direction| of(direction, false).chain(of(direction, true)))
    }

    /// The elements of a part's matrix in ONNX's weights, `w[d,g·h,i]` or `r[d,g·h,h]`, and of its bias in `b[d,2·g·h]`:
    /// the first, and how many.
    fn ranges(&self, part: &Part) -> [(usize, usize); 2] {
        let (gates, columns) =
            (self.gates().len(), if part.recurrent { self.hidden } else { self.inputs });
        let gate = part.direction * gates + part.gate;
        let first = part.direction * 2 * gates + if part.recurrent { gates } else { 0 };
        [
            (gate * self.hidden * columns, self.hidden * columns),
            ((first + part.gate) * self.hidden, self.hidden),
        ]
    }
}

/// Puts ONNX's weights where the library wants them; `place` says where each part is.
fn pack(
    layer: &Layer,
    weights: [&[u8]; 3],
    bytes: usize,
    mut place: impl FnMut(&Part) -> Result<[Option<Place>; 2]>,
) -> Result<Vec<u8>> {
    let size = layer.scalar.bytes() as usize;
    for (given, elements) in weights.iter().zip(layer.weights()) {
        if given.len() != elements * size {
            let (expected, found) = (elements * size, given.len());
            return Err(Error::Mismatch { what: "bytes of a layer's weights", expected, found });
        }
    }
    let mut packed = vec![0; bytes];
    for part in layer.parts() {
        let [matrix, bias] = place(&part)?;
        let [of_matrix, of_bias] = layer.ranges(&part);
        let from = if part.recurrent { weights[1] } else { weights[0] };
        let both = [(matrix, of_matrix, from), (bias, of_bias, weights[2])];
        for (place, (first, elements), from) in &both[..1 + usize::from(layer.bias)] {
            let place =
                place.ok_or(Error::Unsupported { what: "a layer without a gate's weights" })?;
            let (found, expected) = (place.elements, *elements);
            if found != expected {
                return Err(Error::Mismatch { what: "a gate's weights", expected, found });
            }
            let to = packed.get_mut(place.first..place.first + expected * size);
            let to = to.ok_or(Error::Unsupported { what: "weights outside of their space" })?;
            to.copy_from_slice(&from[first * size..(first + expected) * size]);
        }
    }
    Ok(packed)
}

impl Context {
    /// Brings a layer's weights to the device, as ONNX has them: of the inputs, of the states, and the biases.
    ///
    /// # Errors
    ///
    /// [`Error::Mismatch`] for another number of weights; [`Error::DeviceMemory`]; [`Error::Device`], also for a layer that the
    /// library does not take.
    pub fn load(&self, stream: &Stream, layer: Layer, weights: [&[u8]; 3]) -> Result<Weights> {
        let handle = stream.shared().cudnn()?;
        let one = |algorithm| -> Result<Loaded> {
            let rnn = Rnn::new(&handle, &layer, algorithm)?;
            let space = stream.alloc(rnn.weight_bytes());
            let space = space.map_err(|error| error.wanted_for("weights as cuDNN has them"))?;
            let place =
                |part: &Part| rnn.places(&handle, space.pointer(), part.direction, part.number);
            space.write(&pack(&layer, weights, rnn.weight_bytes(), place)?)?;
            let space = space.into_read_only()?;
            Ok(Loaded { algorithm, rnn: Arc::new(rnn), space })
        };
        let standard = one(Algorithm::Standard)?;
        // Not every layer and GPU has the other.
        let loaded = std::iter::once(standard).chain(one(Algorithm::Persistent).ok()).collect();
        Ok(Weights { layer, loaded })
    }

    /// Binds a layer to its operands, and runs it. Unless equal sizes were bound before, the library's algorithms are timed.
    ///
    /// # Errors
    ///
    /// [`Error::Short`] if a buffer does not hold its operand, [`Error::Foreign`] if it is of another stream;
    /// [`Error::TooLarge`] beyond what the library counts; [`Error::DeviceMemory`]; [`Error::Device`].
    pub fn recurrent(
        &self,
        stream: &Stream,
        weights: &Weights,
        sizes: Sizes,
        states: States,
    ) -> Result<Recurrent> {
        states.check(stream, &weights.layer, sizes)?;
        let key = (weights.layer, sizes);
        let lock = || self.chosen.lock().unwrap_or_else(PoisonError::into_inner);
        let known = lock().get(&key).copied();
        let mut best: Option<(f64, Recurrent)> = None;
        let mut error = Error::Unsupported { what: "a layer that cuDNN has no algorithm for" };
        let wanted = |loaded: &&Loaded| known.is_none_or(|known| known == loaded.algorithm);
        for loaded in weights.loaded.iter().filter(wanted) {
            let found =
                self.bound(stream, weights.layer, loaded, sizes, &states).and_then(|bound| {
                    bound.launch()?;
                    let time = if known.is_some() { 0.0 } else { time(stream, || bound.launch())? };
                    Ok((time, bound))
                });
            match found {
                Ok((time, _)) if best.as_ref().is_some_and(|best| best.0 <= time) => {}
                Ok(found) => best = Some(found),
                Err(refused) => error = refused,
            }
        }
        let (_, recurrent) = best.ok_or(error)?;
        let first = *lock().entry(key).or_insert(recurrent.0.algorithm);
        // Of two threads that timed it at once, both take the algorithm that came first.
        match first == recurrent.0.algorithm {
            true => Ok(recurrent),
            false => self.recurrent(stream, weights, sizes, states),
        }
    }

    fn bound(
        &self,
        stream: &Stream,
        layer: Layer,
        Loaded { algorithm, rnn, space }: &Loaded,
        sizes: Sizes,
        states: &States,
    ) -> Result<Recurrent> {
        let handle = stream.shared().cudnn()?;
        let (sequences, workspace) = rnn.bind(&handle, &layer, sizes)?;
        let length = i32::try_from(sizes.steps)
            .map_err(|_| Error::TooLarge { what: "a sequence for cuDNN" })?;
        let lengths: Vec<u8> = length.to_ne_bytes().repeat(sizes.batch);
        let workspace = stream.alloc(workspace);
        let workspace =
            workspace.map_err(|error| error.wanted_for("cuDNN's workspace for the layer"))?;
        // One direction, or one sequence, leaves nothing to part.
        let parts = layer.directions == 2 && sizes.batch > 1;
        let beside = match (&states.y, parts) {
            (Some(_), false) => None,
            _ => {
                let all = stream.alloc(layer.sequence_bytes(sizes)?);
                Some(all.map_err(|error| error.wanted_for("all states of the layer"))?)
            }
        };
        let launched = Launched {
            handle,
            rnn: rnn.clone(),
            algorithm: *algorithm,
            layer,
            sizes,
            sequences,
            lengths: stream.upload(&lengths)?,
            workspace,
            weights: space.clone(),
            beside,
            states: states.clone(),
        };
        Ok(Recurrent(Arc::new(Used::new(stream.shared(), launched))))
    }
}

impl Layer {
    /// Bytes of all outputs.
    fn sequence_bytes(&self, Sizes { steps, batch }: Sizes) -> Result<usize> {
        let row = self.directions * self.hidden * self.scalar.bytes() as usize;
        let bytes = steps.checked_mul(batch).and_then(|rows| rows.checked_mul(row));
        bytes.ok_or(Error::TooLarge { what: "a layer's outputs" })
    }
}

/// A layer whose weights are on a device.
pub struct Weights {
    layer: Layer,
    /// By each algorithm.
    loaded: Vec<Loaded>,
}

/// The weights as an algorithm has them.
struct Loaded {
    algorithm: Algorithm,
    rnn: Arc<Rnn>,
    space: Buffer,
}

/// What a layer reads and writes: all states as ONNX has them.
#[derive(Clone)]
pub struct States {
    /// `[steps, batch, inputs]`
    pub x: Buffer,
    /// `[directions, batch, hidden]`: h and c before the first step; zeros where they are not there.
    pub initial: [Option<Buffer>; 2],
    /// `[steps, directions, batch, hidden]`, if it is wanted.
    pub y: Option<Buffer>,
    /// `[directions, batch, hidden]`: h and c after the last step, if they are wanted.
    pub last: [Option<Buffer>; 2],
}

impl States {
    fn check(&self, stream: &Stream, layer: &Layer, Sizes { steps, batch }: Sizes) -> Result<()> {
        if steps == 0 || batch == 0 {
            return Err(Error::Unsupported { what: "a layer of nothing by cuDNN" });
        }
        let state = layer.directions as i128 * batch as i128 * layer.hidden as i128;
        let all = steps as i128 * state;
        let x = steps as i128 * batch as i128 * layer.inputs as i128;
        let [h, c] = &self.initial;
        let [last_h, last_c] = &self.last;
        let operands = [
            ("x", Some(&self.x), x),
            ("y", self.y.as_ref(), all),
            ("the first h", h.as_ref(), state),
            ("the first c", c.as_ref(), state),
            ("the last h", last_h.as_ref(), state),
            ("the last c", last_c.as_ref(), state),
        ];
        let written = [&self.y, last_h, last_c];
        written.into_iter().flatten().try_for_each(Buffer::check_writable)?;
        for (name, buffer, elements) in operands {
            if let Some(buffer) = buffer {
                holds(stream, name, buffer, elements, layer.scalar)?;
            }
        }
        Ok(())
    }
}

/// A recurrent layer bound to its buffers.
pub struct Recurrent(Arc<Used<Launched>>);

struct Launched {
    handle: Arc<Outside<Handle>>,
    rnn: Arc<Rnn>,
    algorithm: Algorithm,
    layer: Layer,
    sizes: Sizes,
    sequences: Sequences,
    /// As many times the number of steps as there are sequences.
    lengths: Buffer,
    workspace: Buffer,
    weights: Buffer,
    /// Outputs as the library writes them, where they are not wanted so, or not at all.
    beside: Option<Buffer>,
    states: States,
}

impl Recurrent {
    /// Runs the layer, behind all work of the stream.
    ///
    /// # Errors
    ///
    /// [`Error::Device`].
    pub fn launch(&self) -> Result<()> {
        let (launched, stream) = (&**self.0, self.0.stream());
        keep(&self.0);
        let States { x, initial, y, last } = &launched.states;
        let pointers = |states: &[Option<Buffer>; 2]| {
            states.each_ref().map(|state| state.as_ref().map(Buffer::pointer))
        };
        let written = launched.beside.as_ref().or(y.as_ref());
        let written = written.ok_or(Error::Unsupported { what: "a layer without outputs" })?;
        let at = Pointers {
            lengths: launched.lengths.pointer(),
            x: x.pointer(),
            y: written.pointer(),
            initial: pointers(initial),
            last: pointers(last),
            weights: launched.weights.pointer(),
            workspace: (launched.workspace.pointer(), launched.workspace.len()),
        };
        launched.rnn.run((&launched.handle, stream), &launched.sequences, &at)?;
        match (&launched.beside, y) {
            (Some(from), Some(to)) => {
                let row = launched.layer.hidden * launched.layer.scalar.bytes() as usize;
                part_directions(stream, from.pointer(), to.pointer(), launched.sizes, row)
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Cell, Layer, Place, pack};
    use crate::error::Error;
    use graphene_ir::tensor::Scalar;

    /// Weights of a layer whose bytes say where they are from: `w`, `r` or `b`, direction and gate.
    fn packed(cell: Cell, directions: usize, bias: bool) -> String {
        let layer = Layer { cell, scalar: Scalar::F16, directions, inputs: 3, hidden: 2, bias };
        let gates = layer.gates().len();
        let of = |first: u8, columns: usize, gates: usize| -> Vec<u8> {
            let all = (0..directions * gates).map(|gate| first + gate as u8);
            all.flat_map(|gate| vec![gate; 2 * columns * 2]).collect()
        };
        let (w, r) = (of(b'a', 3, gates), of(b'A', 2, gates));
        let b = if bias { of(b'0', 1, 2 * gates) } else { Vec::new() };
        let mut next = 0;
        let place = |part: &super::Part| {
            let mut take = |elements: usize| {
                let first = next;
                next += elements * 2;
                Some(Place { first, elements })
            };
            let matrix = take(if part.recurrent { 4 } else { 6 });
            Ok([matrix, if bias { take(2) } else { None }])
        };
        let bytes = w.len() + r.len() + b.len();
        let mut packed = pack(&layer, [&w, &r, &b], bytes, place).expect("all parts have a place");
        packed.dedup();
        String::from_utf8(packed).expect("letters")
    }

    #[test]
    fn gates_go_where_the_library_has_them() {
        // ONNX: i, o, f, c as a, b, c, d; biases of the inputs' gates as 0 to 3, of the states' as 4 to 7.
        assert_eq!(packed(Cell::Lstm, 1, true), "a0c2d3b1A4C6D7B5");
        assert_eq!(packed(Cell::Lstm, 2, false), "acdbACDBeghfEGHF");
        assert_eq!(packed(Cell::Gru, 1, true), "b1a0c2B4A3C5");
        assert_eq!(packed(Cell::Tanh, 2, true), "a0A1b2B3");
    }

    #[test]
    fn weights_that_are_no_layers_are_refused() {
        let (cell, scalar) = (Cell::Gru, Scalar::F32);
        let layer = Layer { cell, scalar, directions: 1, inputs: 2, hidden: 2, bias: false };
        let nowhere = |_: &super::Part| Ok([None, None]);
        let short = pack(&layer, [&[0; 48], &[0; 44], &[]], 96, nowhere);
        assert!(matches!(short, Err(Error::Mismatch { expected: 48, found: 44, .. })));
        let lost = pack(&layer, [&[0; 48], &[0; 48], &[]], 96, nowhere);
        assert!(matches!(lost, Err(Error::Unsupported { .. })));
        let outside =
            |part: &super::Part| Ok([Some(Place { first: 96 * part.number, elements: 4 }), None]);
        let outside = pack(&layer, [&[0; 48], &[0; 48], &[]], 96, outside);
        assert!(matches!(outside, Err(Error::Unsupported { .. })));
    }
}
