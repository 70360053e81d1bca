//! Recurrent layers: the inputs of some steps are projected by one matmul, then each of the steps is one
//! matmul of the states and a pass over the gates.
//!
//! Sequences do not depend on each other. Where there are enough of them, each thread takes its own through all steps
//! and waits for no other; where there are fewer, the threads share the matmuls and the gates of every step.

use super::matrix::{Matrix, Strides};
use super::packed::{Packed, multiply_all};
use super::simd::{Kernel, dispatch};
use super::tile::{Cut, Grid, TileMut};
use super::view::{check_size, elements};
use crate::cpu::scratch::{self, Buffer};
use crate::error::{Error, Result};
use crate::threads::{self, chunks, chunks_mut, so_many_mut};
use pulp::Simd;
use std::ops::Range;
use std::sync::Arc;

/// Elements of projected inputs that are held at a time for each thread, and of its own inputs: they stay in its second-level cache.
const PROJECTED: usize = 1 << 16;

/// Sequences that a thread takes through all steps by itself, at least: it reads all weights in every step then, and
/// multiplies so many sequences about as fast as weights come from the third-level cache. Fewer threads with as many were not
/// measured.
const SEQUENCES: usize = 8;

/// Elements of a cache line.
const LINE: usize = 16;

/// Gate elements that a thread takes at least.
const PARALLEL: usize = 1 << 13;

/// A recurrent cell, with the equations and the order of gates of ONNX.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cell {
    /// Gates i, o, f, c.
    Lstm {
        /// The forget gate is 1 - the input gate.
        input_forget: bool,
    },
    /// Gates z, r, h.
    Gru {
        /// The reset gate is applied after the matmul with the state.
        linear_before_reset: bool,
    },
    /// One gate.
    Plain,
}

impl Cell {
    /// Gates of the cell.
    pub(crate) fn gates(self) -> usize {
        match self {
            Self::Lstm { .. } => 4,
            Self::Gru { .. } => 3,
            Self::Plain => 1,
        }
    }

    /// The gates whose states' part is one matmul: one more waits for the reset gate where a GRU applies that first.
    #[allow(clippy::single_range_in_vec_init)] // Groups of gates, of which there may be one.
    pub(crate) fn parts(self) -> &'static [Range<usize>] {
        match self {
            Self::Lstm { .. } => &[0..4],
            Self::Gru { linear_before_reset: true } => &[0..3],
            Self::Gru { linear_before_reset: false } => &[0..2, 2..3],
            Self::Plain => &[0..1],
        }
    }

    /// Activation functions of the cell.
    pub(crate) fn functions(self) -> usize {
        match self {
            Self::Lstm { .. } => 3,
            Self::Gru { .. } => 2,
            Self::Plain => 1,
        }
    }
}

/// A function applied to elements in place.
pub(crate) type Activation<'a> = &'a (dyn Fn(&mut [f32]) + Sync);

/// A layer of one or two directions d, and its contiguous operands.
pub(crate) struct Layer<'a> {
    /// The cell.
    pub(crate) cell: Cell,
    /// For each direction, whether it runs from the last step.
    pub(crate) reverse: &'a [bool],
    /// s.
    pub(crate) steps: usize,
    /// b.
    pub(crate) batch: usize,
    /// i.
    pub(crate) inputs: usize,
    /// h.
    pub(crate) hidden: usize,
    /// `[s, b, i]`.
    pub(crate) x: &'a [f32],
    /// Of each direction `[i, gates·h]`.
    pub(crate) w: &'a [Arc<Packed>],
    /// Of each direction `[h, columns]` for each of [`Cell::parts`].
    pub(crate) r: &'a [Arc<Packed>],
    /// `[d, 2·gates·h]`: of the inputs, then of the states.
    pub(crate) bias: Option<&'a [f32]>,
    /// `[d, 3·h]` of gates i, o, f.
    pub(crate) peepholes: Option<&'a [f32]>,
    /// Steps of each sequence, at most s.
    pub(crate) lengths: Option<&'a [i32]>,
    /// Of each direction in turn: LSTM f, g, h; GRU f, g; plain f.
    pub(crate) activations: &'a [Activation<'a>],
    /// Gate inputs are clamped to ±clip.
    pub(crate) clip: Option<f32>,
}

impl Layer<'_> {
    fn check(&self, y: usize, h: usize, c: usize) -> Result<()> {
        let &Self { cell, steps, batch, inputs, hidden, .. } = self;
        let (d, rows) = (self.reverse.len(), elements("gates", &[cell.gates(), hidden])?);
        let check = |what, shape: &[usize], found| check_size(what, elements(what, shape)?, found);
        check("length of a sequence", &[steps, batch, inputs], self.x.len())?;
        check_size("directions of the inputs' weights", d, self.w.len())?;
        check_size("matmuls of the states", d * cell.parts().len(), self.r.len())?;
        for w in self.w {
            check_size("rows of the inputs' weights", inputs, w.sizes().0)?;
            check_size("columns of the inputs' weights", rows, w.sizes().1)?;
        }
        for (r, gates) in self.r.iter().zip(cell.parts().iter().cycle()) {
            check_size("rows of the states' weights", hidden, r.sizes().0)?;
            check_size("columns of the states' weights", gates.len() * hidden, r.sizes().1)?;
        }
        if let Some(bias) = self.bias {
            check("length of a layer's bias", &[d, 2, rows], bias.len())?;
        }
        if let Some(peepholes) = self.peepholes {
            check("length of the peepholes", &[d, 3, hidden], peepholes.len())?;
        }
        if let Some(lengths) = self.lengths {
            check_size("number of sequences", batch, lengths.len())?;
            let beyond = |&&length: &&i32| usize::try_from(length).map_or(true, |n| n > steps);
            if let Some(&length) = lengths.iter().find(beyond) {
                return Err(Error::Index { index: length.into(), size: steps + 1 });
            }
        }
        check_size("number of activations", d * cell.functions(), self.activations.len())?;
        check("length of a layer's output", &[steps, d, batch, hidden], y)?;
        check("length of the states", &[d, batch, hidden], h)?;
        let cells = if matches!(cell, Cell::Lstm { .. }) { d } else { 0 };
        check("length of the cells", &[cells, batch, hidden], c)
    }
}

/// Runs the layer: `y[s,d,b,h]` receives the states of all steps (0 beyond a sequence's length), the
/// states `h[d,b,h]` and, for LSTM, `c[d,b,h]` (else empty) go from the first to the last.
///
/// # Errors
/// [`Error::Mismatch`] if a slice is not as long as its shape; [`Error::Index`] for a length outside
/// `0..=s`; [`Error::TooLarge`].
pub(crate) fn rnn(layer: &Layer<'_>, y: &mut [f32], h: &mut [f32], c: &mut [f32]) -> Result<()> {
    layer.check(y.len(), h.len(), c.len())?;
    let size = layer.batch * layer.hidden;
    if y.is_empty() {
        return Ok(());
    }
    for (d, h) in h.chunks_exact_mut(size).enumerate() {
        let c = if c.is_empty() { &mut [] } else { &mut c[d * size..][..size] };
        Direction::new(layer, d)?.run(y, h, c)?;
    }
    Ok(())
}

/// One direction of a layer.
struct Direction<'a> {
    layer: &'a Layer<'a>,
    d: usize,
    reverse: bool,
    /// Rows of the weights.
    rows: usize,
    w: &'a Packed,
    /// The states' weights for each of the cell's parts.
    r: &'a [Arc<Packed>],
    /// Added to the gates' inputs.
    bias: Buffer<f32>,
    /// Added to the states' part of gate h of a GRU whose reset comes last, if there is one.
    state_bias: &'a [f32],
    peepholes: Option<[&'a [f32]; 3]>,
    functions: &'a [Activation<'a>],
}

/// Some sequences of the batch, n of them, and what changes as they go from step to step.
struct Sequences<'a> {
    /// The first one's number in the batch.
    first: usize,
    /// n.
    count: usize,
    /// `[n, h]`.
    h: &'a mut [f32],
    /// `[n, h]` of an LSTM.
    c: &'a mut [f32],
    /// `[n, rows]`.
    gates: &'a mut [f32],
    /// `[n, h]` of a GRU whose reset comes first: the states with the reset applied.
    reset: &'a mut [f32],
}

fn rows_of(data: &[f32], row: usize) -> Matrix<'_, f32> {
    Matrix { data, at: Strides { offset: 0, batch: &[], row: row as isize, column: 1 } }
}

impl<'a> Direction<'a> {
    fn new(layer: &'a Layer<'a>, d: usize) -> Result<Self> {
        let (gates, hidden) = (layer.cell.gates(), layer.hidden);
        let rows = gates * hidden;
        let mut bias = scratch::zeros::<f32>(rows)?;
        let mut state_bias: &[f32] = &[];
        if let Some(both) = layer.bias {
            let (of_inputs, of_states) = both[d * 2 * rows..][..2 * rows].split_at(rows);
            bias.copy_from_slice(of_inputs);
            let joined = if layer.cell == (Cell::Gru { linear_before_reset: true }) {
                state_bias = &of_states[2 * hidden..];
                2 * hidden
            } else {
                rows
            };
            bias[..joined].iter_mut().zip(of_states).for_each(|(b, &s)| *b += s);
        }
        let peepholes = layer.peepholes.map(|p| {
            let p = &p[d * 3 * hidden..][..3 * hidden];
            [0, 1, 2].map(|gate| &p[gate * hidden..][..hidden])
        });
        let (each, parts) = (layer.cell.functions(), layer.cell.parts().len());
        Ok(Self {
            layer,
            d,
            reverse: layer.reverse[d],
            rows,
            w: &layer.w[d],
            r: &layer.r[d * parts..][..parts],
            bias,
            state_bias,
            peepholes,
            functions: &layer.activations[d * each..][..each],
        })
    }

    /// Runs all steps: `y[s,d,b,h]` is of all directions, `h[b,h]` and `c[b,h]` are of this one.
    fn run(&self, y: &mut [f32], h: &mut [f32], c: &mut [f32]) -> Result<()> {
        let &Layer { cell, steps, batch, inputs, hidden, .. } = self.layer;
        let share = batch.div_ceil(threads::count());
        let share = if share >= SEQUENCES { share } else { batch };
        let parts = batch.div_ceil(share);
        let gathers = if share < batch { share * inputs } else { 0 };
        let at_once = PROJECTED * threads::count() / (batch * self.rows);
        let at_once = at_once.min(PROJECTED / gathers.max(1)).clamp(1, steps);
        // Parts of threads lie on lines of their own.
        let lines = |elements: usize| elements.next_multiple_of(LINE);
        let (gathered, gates) = (lines(at_once * gathers), lines(share * self.rows));
        let projected = lines(at_once * share * self.rows);
        let resets_first = cell == Cell::Gru { linear_before_reset: false };
        let len =
            gathered + projected + gates + if resets_first { lines(share * hidden) } else { 0 };
        let mut memory = scratch::take::<f32>(parts * len)?;
        let states = batch * hidden;
        let y = TileMut::new(y, self.layer.reverse.len() * states);
        let [y, _] = y.split_columns((self.d + 1) * states);
        let [_, y] = y.split_columns(self.d * states);
        let grid = Grid { matrices: 1, rows: steps, tall: steps, wide: Some([batch, share]) };
        let y = Cut::new(grid, [(y, hidden)]).expect("a row has the states of a step");
        let h = so_many_mut(h, share * hidden, parts);
        let c = so_many_mut(c, share * hidden, parts);
        let memory = so_many_mut(&mut memory, len, parts);
        threads::try_each(1, (y, h, c, memory), |_, ((block, mut y), h, c, memory)| {
            let (gathered, memory) = memory.split_at_mut(gathered);
            let (projected, memory) = memory.split_at_mut(projected);
            let (gates, reset) = memory.split_at_mut(gates);
            let (first, sequences) = (block.column, h.len() / hidden);
            let gates = &mut gates[..sequences * self.rows];
            let mut own = Sequences { first, count: sequences, h, c, gates, reset };
            for done in (0..steps).step_by(at_once) {
                let from = if self.reverse { steps - steps.min(done + at_once) } else { done };
                let count = at_once.min(steps - done);
                self.project(from..from + count, &own, gathered, projected)?;
                for i in 0..count {
                    let i = if self.reverse { count - 1 - i } else { i };
                    let projected = &projected[i * own.gates.len()..][..own.gates.len()];
                    self.step(from + i, projected, y[0].row(from + i), &mut own)?;
                }
            }
            Ok(())
        })
    }

    /// Projects the inputs of some steps: `projected[t,n,rows]`. Those of all sequences are read where they lie; those of some
    /// are gathered.
    fn project(
        &self,
        steps: Range<usize>,
        own: &Sequences<'_>,
        gathered: &mut [f32],
        projected: &mut [f32],
    ) -> Result<()> {
        let &Layer { batch, inputs, x, .. } = self.layer;
        let x = &x[steps.start * batch * inputs..steps.end * batch * inputs];
        let rows = steps.len() * own.count;
        let to = TileMut::new(&mut projected[..rows * self.rows], self.rows);
        if gathered.is_empty() {
            return multiply_all(inputs, rows_of(x, inputs), self.w, to);
        }
        let lines = gathered.chunks_exact_mut(own.count * inputs);
        for (to, x) in lines.zip(x.chunks_exact(batch * inputs)) {
            to.copy_from_slice(&x[own.first * inputs..][..to.len()]);
        }
        multiply_all(inputs, rows_of(gathered, inputs), self.w, to)
    }

    /// The states' matmul for the gates of one of the cell's parts.
    fn matmul(&self, gates: &mut [f32], states: &[f32], part: usize) -> Result<()> {
        let &Layer { cell, hidden, .. } = self.layer;
        let Range { start, end } = cell.parts()[part];
        let [to, _] = TileMut::new(gates, self.rows).split_columns(end * hidden);
        let [_, to] = to.split_columns(start * hidden);
        multiply_all(hidden, rows_of(states, hidden), &self.r[part], to)
    }

    /// Step t: `y[n,h]` receives the states that `projected[n,rows]` inputs make of n sequences' states.
    fn step(
        &self,
        t: usize,
        projected: &[f32],
        y: &mut [f32],
        own: &mut Sequences<'_>,
    ) -> Result<()> {
        let hidden = self.layer.hidden;
        let Sequences { h, gates, reset, .. } = own;
        self.matmul(gates, h, 0)?;
        match self.layer.cell {
            Cell::Lstm { input_forget } => {
                self.each_row(t, projected, y, own, |gates, h, c| {
                    self.lstm(gates, h, c, input_forget)
                });
            }
            Cell::Plain => self.each_row(t, projected, y, own, |gates, h, _| {
                self.activate(0, gates);
                h.copy_from_slice(gates);
            }),
            Cell::Gru { linear_before_reset: true } => {
                self.each_row(t, projected, y, own, |gates, h, _| self.gru(gates, h));
            }
            Cell::Gru { linear_before_reset: false } => {
                // The last gate's matmul waits for the reset gate.
                let states = reset.chunks_exact_mut(hidden).zip(h.chunks_exact(hidden));
                let lines =
                    gates.chunks_exact_mut(self.rows).zip(projected.chunks_exact(self.rows));
                for ((to, h), (gates, projected)) in states.zip(lines) {
                    let both = &mut gates[..2 * hidden];
                    each(both, [projected, &self.bias], |x, [p, b]| x + (p + b));
                    self.activate(0, both);
                    each(to, [h, &both[hidden..]], |_, [h, r]| h * r);
                }
                self.matmul(gates, reset, 1)?;
                self.each_row(t, projected, y, own, |gates, h, _| {
                    let (update, last) = gates.split_at_mut(2 * hidden);
                    self.activate(1, last);
                    each(h, [update, last], |h, [z, n]| (1.0 - z) * n + z * h);
                });
            }
        }
        Ok(())
    }

    /// Adds projected inputs and bias to each row of gates, except to those that have had them, and
    /// lets `advance` make the next states of them where the sequence has not ended.
    fn each_row(
        &self,
        t: usize,
        projected: &[f32],
        y: &mut [f32],
        own: &mut Sequences<'_>,
        advance: impl Fn(&mut [f32], &mut [f32], &mut [f32]) + Sync,
    ) {
        let hidden = self.layer.hidden;
        let &mut Sequences { first, count, ref mut h, ref mut c, ref mut gates, .. } = own;
        let ended =
            |b: usize| self.layer.lengths.is_some_and(|lengths| t >= lengths[first + b] as usize);
        let (add_from, add_to) = match self.layer.cell {
            Cell::Gru { linear_before_reset: false } => (2 * hidden, self.rows),
            Cell::Gru { linear_before_reset: true } => (0, 2 * hidden),
            Cell::Lstm { .. } | Cell::Plain => (0, self.rows),
        };
        let last_alone = self.layer.cell == Cell::Gru { linear_before_reset: true };
        let c = so_many_mut(c, hidden, count);
        let (y, h) = (chunks_mut(y, hidden), chunks_mut(h, hidden));
        let (gates, projected) = (chunks_mut(gates, self.rows), chunks(projected, self.rows));
        let least = (PARALLEL / self.rows).max(1);
        threads::each(least, (gates, projected, y, h, c), |b, (gates, projected, y, h, c)| {
            if ended(b) {
                y.fill(0.0);
                return;
            }
            let range = add_from..add_to;
            let summands = [&projected[range.clone()], &self.bias[range.clone()]];
            each(&mut gates[range], summands, |x, [p, b]| x + (p + b));
            if last_alone {
                self.reset_last(gates, projected);
            }
            advance(gates, h, c);
            y.copy_from_slice(h);
        });
    }

    /// The first two gates of a GRU, and its last one's input with the reset applied after its matmul.
    fn reset_last(&self, gates: &mut [f32], projected: &[f32]) {
        let hidden = self.layer.hidden;
        let (both, last) = gates.split_at_mut(2 * hidden);
        self.activate(0, both);
        if !self.state_bias.is_empty() {
            each(last, [self.state_bias], |x, [b]| x + b);
        }
        let others = [&both[hidden..], &projected[2 * hidden..], &self.bias[2 * hidden..]];
        each(last, others, |x, [r, p, b]| r * x + (p + b));
    }

    fn gru(&self, gates: &mut [f32], h: &mut [f32]) {
        let (both, last) = gates.split_at_mut(2 * self.layer.hidden);
        self.activate(1, last);
        each(h, [both, last], |h, [z, n]| (1.0 - z) * n + z * h);
    }

    fn lstm(&self, gates: &mut [f32], h: &mut [f32], c: &mut [f32], input_forget: bool) {
        let hidden = self.layer.hidden;
        let (input, rest) = gates.split_at_mut(hidden);
        let (output, rest) = rest.split_at_mut(hidden);
        let (forget, cell) = rest.split_at_mut(hidden);
        if let Some([of_input, _, of_forget]) = self.peepholes {
            each(input, [of_input, c], |x, [p, c]| x + p * c);
            each(forget, [of_forget, c], |x, [p, c]| x + p * c);
        }
        self.activate(0, input);
        self.activate(1, cell);
        if input_forget {
            each(forget, [input], |_, [i]| 1.0 - i);
        } else {
            self.activate(0, forget);
        }
        each(c, [forget, input, cell], |c, [f, i, g]| f * c + i * g);
        if let Some([_, of_output, _]) = self.peepholes {
            each(output, [of_output, c], |x, [p, c]| x + p * c);
        }
        self.activate(0, output);
        cell.copy_from_slice(c);
        (self.functions[2])(cell);
        each(h, [output, cell], |_, [o, c]| o * c);
    }

    fn activate(&self, function: usize, x: &mut [f32]) {
        if let Some(clip) = self.layer.clip {
            // Not `clamp`: that panics where the clip is negative.
            let below = move |x: f32| {
                if x > clip {
                    clip
                } else if x < -clip {
                    -clip
                } else {
                    x
                }
            };
            each(x, [], |x, []| below(x));
        }
        (self.functions[function])(x);
    }
}

/// `y[i] = f(y[i], [x[i] of each x])`.
struct Each<'a, const N: usize, F>(&'a mut [f32], [&'a [f32]; N], F);

impl<const N: usize, F: Fn(f32, [f32; N]) -> f32> Kernel for Each<'_, N, F> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd, const FMA: bool>(self, _: S) {
        let Each(y, xs, f) = self;
        let xs = xs.map(|x| &x[..y.len()]);
        for (i, y) in y.iter_mut().enumerate() {
            *y = f(*y, xs.map(|x| x[i]));
        }
    }
}

fn each<const N: usize>(y: &mut [f32], xs: [&[f32]; N], f: impl Fn(f32, [f32; N]) -> f32) {
    dispatch(Each(y, xs, f));
}

#[cfg(test)]
mod tests {
    use super::{Activation, Cell, Layer, Packed, rnn, rows_of};
    use crate::threads::Threads;
    use std::sync::Arc;

    /// Beyond a sequence's length all states are 0, whatever was there.
    #[test]
    fn states_beyond_a_sequence_are_zero() {
        let (steps, inputs, hidden) = (5, 3, 4);
        let packed = |depth: usize| {
            let numbers: Vec<f32> = (0..depth * 4 * hidden).map(|i| (i % 7) as f32 * 0.1).collect();
            Arc::new(Packed::new(rows_of(&numbers, 4 * hidden), depth, 4 * hidden).unwrap())
        };
        let (w, r) = (packed(inputs), packed(hidden));
        let halved = |x: &mut [f32]| x.iter_mut().for_each(|x| *x *= 0.5);
        for (batch, count) in [(3, 1), (3, 2), (70, 3)] {
            let lengths: Vec<i32> = (0..batch).map(|b| [0, 1, 5][b % 3]).collect();
            let layer = Layer {
                cell: Cell::Lstm { input_forget: false },
                reverse: &[false, true],
                steps,
                batch,
                inputs,
                hidden,
                x: &vec![0.5; steps * batch * inputs],
                w: &[w.clone(), w.clone()],
                r: &[r.clone(), r.clone()],
                bias: None,
                peepholes: None,
                lengths: Some(&lengths),
                activations: &[&halved as Activation<'_>; 6],
                clip: None,
            };
            let mut y = vec![f32::NAN; steps * 2 * batch * hidden];
            let [mut h, mut c] = [0, 1].map(|_| vec![0.0; 2 * batch * hidden]);
            let threads = Threads::new(count).unwrap();
            threads.run(|| rnn(&layer, &mut y, &mut h, &mut c)).unwrap();
            for (row, states) in y.chunks(hidden).enumerate() {
                let (t, b) = (row / batch / 2, row % batch);
                let ended = t >= lengths[b] as usize;
                assert!(states.iter().all(|&x| (x == 0.0) == ended), "{t} {b} {states:?}");
            }
        }
    }
}
