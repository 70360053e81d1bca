//! Recurrent layers: within their bound step by step, and how fast they are.

use graphene_ir::arch::Arch;
use graphene_ir::emit::emit;
use graphene_ir::function::Function;
use graphene_ir::kernel::Unary;
use graphene_ir::template::matmul::Edges;
use graphene_ir::template::recurrent::{Cell, Direction, Own, Recurrent};
use graphene_ir::tensor::Scalar;
use graphene_runtime::Error;
use graphene_runtime::device::{Bound, Buffer, Stream};

use crate::data::{Random, decode, encode};
use crate::matmuls::{kernel_error, median};
use crate::templates::image;

/// The anchors: steps, rows of the batch, inputs and units; all of a layer's units are checked at
/// these samples.
const ANCHORS: [[usize; 4]; 2] = [[64, 32, 512, 512], [64, 128, 1024, 1024]];

/// Units of a row of the batch that are checked.
const SAMPLES: usize = 200;

/// Random layers that are checked.
const RANDOM: usize = 24;

/// The error of one rounding to single precision.
const SINGLE: f64 = 1.0 / (1 << 24) as f64;

/// A layer on the device: its operands on both sides, by name.
struct Case {
    layer: Recurrent,
    steps: usize,
    batch: usize,
    parts: i64,
    ins: Vec<(&'static str, Vec<f64>)>,
    buffers: Vec<(&'static str, Buffer)>,
}

/// A number and how far off it may be.
#[derive(Clone, Copy, Default)]
struct Near {
    value: f64,
    error: f64,
}

impl Near {
    fn plus(self, other: Near) -> Near {
        let value = self.value + other.value;
        let error = self.error + other.error;
        Near { value, error: error + SINGLE * (value.abs() + error) }
    }

    fn times(self, other: Near) -> Near {
        let value = self.value * other.value;
        let error = self.value.abs() * other.error
            + other.value.abs() * self.error
            + self.error * other.error;
        Near { value, error: error + SINGLE * (value.abs() + error) }
    }
}

fn activation(op: Unary) -> Function {
    Function::identity().unary(op)
}

/// By CUDA's guide the approximate exponential of x errs by 2 + 1.173·|x| units in the last place, the
/// approximate quotient by 2; the slope is at most 1/4.
fn sigmoid(x: Near) -> Near {
    let value = 1.0 / (1.0 + (-x.value).exp());
    let units = 4.5 + 1.2 * (x.value.abs() + x.error);
    Near { value, error: 0.25 * x.error + 2.0 * SINGLE * units * value }
}

/// It errs by 2 units in the last place; the slope is at most 1.
fn tanh(x: Near) -> Near {
    let value = x.value.tanh();
    Near { value, error: x.error + 4.0 * SINGLE * value.abs() }
}

/// A cell's equations, as ONNX has them, with the usual activations.
fn advance(own_is: Own, sums: &[Near], own: Near) -> (Near, Near) {
    match own_is {
        Own::Cell => {
            let [i, o, f] = [0, 1, 2].map(|gate| sigmoid(sums[gate]));
            let c = f.times(own).plus(i.times(tanh(sums[3])));
            (o.times(tanh(c)), c)
        }
        Own::Hidden => {
            let [z, r] = [0, 1].map(|gate| sigmoid(sums[gate]));
            let candidate = tanh(sums[2].plus(r.times(sums[3])));
            let rest = Near { value: 1.0, error: 0.0 }.plus(Near { value: -z.value, ..z });
            let h = rest.times(candidate).plus(z.times(own));
            (h, h)
        }
        Own::Nothing => (tanh(sums[0]), Near::default()),
    }
}

impl Case {
    fn new(
        stream: &Stream,
        layer: Recurrent,
        [steps, batch]: [usize; 2],
        random: &mut Random,
    ) -> Result<Case, Error> {
        let (scalar, directions) = (layer.scalar, layer.directions() as usize);
        let [inputs, hidden, gates] =
            [layer.inputs, layer.hidden, layer.cell.gates].map(|size| size as usize);
        let state = directions * batch * hidden;
        let mut ins = Vec::new();
        let mut input = |name: &'static str, len: usize, scale: f64| {
            let values = random.normal(len, scalar, name == "X");
            let bytes = encode(&values.iter().map(|x| x * scale).collect::<Vec<_>>(), scalar);
            ins.push((name, decode(&bytes, scalar)));
        };
        input("X", steps * batch * inputs, 1.0);
        input("W", directions * gates * hidden * inputs, (inputs as f64).powf(-0.5));
        input("R", directions * gates * hidden * hidden, (hidden as f64).powf(-0.5));
        if layer.bias {
            input("bias", directions * 2 * gates * hidden, 0.2);
        }
        let states = ["h0", "c0"].into_iter().zip(layer.initial);
        for (name, _) in states.filter(|(_, wanted)| *wanted) {
            input(name, state, 0.5);
        }
        let mut buffers = Vec::new();
        for (name, values) in &ins {
            buffers.push((*name, stream.upload(&encode(values, scalar))?));
        }
        let tiles = batch.div_ceil(layer.rows as usize);
        buffers.push(("counter", stream.alloc(4 * directions * tiles)?));
        let buffer = |len: usize| stream.upload(&vec![0xff; len * scalar.bytes() as usize]);
        buffers.push(("Y", buffer(steps * state)?));
        buffers.push(("Y_h", buffer(state)?));
        buffers.push(("Y_c", buffer(state)?));
        let cores = i64::from(stream.device().properties().multiprocessors);
        let parts = (cores / layer.blocks()).clamp(1, tiles as i64);
        Ok(Case { layer, steps, batch, parts, ins, buffers })
    }

    fn bind(&self, stream: &Stream) -> Result<Bound, Error> {
        let kernel = self.layer.kernel().map_err(kernel_error)?;
        let emitted = emit(&kernel).map_err(kernel_error)?;
        let cubin = image(&kernel, &emitted.source)?;
        let buffers: Vec<(&str, &Buffer)> =
            self.buffers.iter().map(|(name, buffer)| (*name, buffer)).collect();
        let symbols =
            [("steps", self.steps as i64), ("batch", self.batch as i64), ("parts", self.parts)];
        stream.device().load(&cubin, &emitted.launch)?.bind(stream, &buffers, &symbols)
    }

    fn given(&self, name: &str) -> Option<&[f64]> {
        self.ins.iter().find(|row| row.0 == name).map(|row| &row.1[..])
    }

    fn found(&self, name: &str) -> Result<Vec<u8>, Error> {
        let buffer = self.buffers.iter().find(|row| row.0 == name).map(|row| &row.1);
        buffer.ok_or(Error::Unsupported { what: "a buffer that there is not" })?.download()
    }

    /// The largest error as a fraction of its bound, over samples of units: of each step's h, given the
    /// kernel's own h of the step before, and of the last c.
    ///
    /// A sum of k products and two biases in single precision errs by at most 4(k + 2)·2⁻²⁴ of the sum
    /// of their absolute values; through the cell errors go as [`Near`] says, and a unit's own state
    /// errs by what all steps before left. A result is rounded to its type.
    fn error(&self, random: &mut Random) -> Result<f64, Error> {
        let Case { layer, steps, batch, .. } = self;
        let [inputs, hidden, gates] =
            [layer.inputs, layer.hidden, layer.cell.gates].map(|size| size as usize);
        let directions = layer.directions() as usize;
        let results = ["Y", "Y_h", "Y_c"].map(|name| self.found(name));
        let [y, last_h, last_c] = results;
        let decoded = |bytes: Result<Vec<u8>, Error>| bytes.map(|b| decode(&b, layer.scalar));
        let (y, last_h, last_c) = (decoded(y)?, decoded(last_h)?, decoded(last_c)?);
        let of = |name: &str| self.given(name).unwrap_or_default();
        let (x, w, r, bias) = (of("X"), of("W"), of("R"), of("bias"));
        let half = layer.scalar.unit();
        let mut worst = 0f64;
        let mut note = |found: f64, near: Near| {
            let bound = half * near.value.abs() + (1.0 + half) * near.error + 2f64.powi(-25);
            let share = (found - near.value).abs() / bound;
            worst = if share.is_nan() { f64::INFINITY } else { worst.max(share) };
        };
        for _ in 0..SAMPLES {
            let [d, b, u] = [directions, *batch, hidden].map(|size| random.within(0, size - 1));
            let backwards = layer.direction == Direction::Reverse || d == 1;
            let at = (d * batch + b) * hidden;
            let first = |name: &str| self.given(name).map(|all| &all[at..at + hidden]);
            let mut h = first("h0").map_or(vec![0.0; hidden], <[f64]>::to_vec);
            let own = match layer.cell.own {
                Own::Cell => first("c0").map_or(0.0, |c| c[u]),
                Own::Hidden | Own::Nothing => h[u],
            };
            let mut own = Near { value: own, error: 0.0 };
            for step in 0..*steps {
                let t = if backwards { steps - 1 - step } else { step };
                let sum = |parts: &[Option<i64>; 2]| {
                    let (mut sum, mut size) = (0.0, 0.0);
                    let mut add = |term: f64| {
                        sum += term;
                        size += term.abs();
                    };
                    let row = |gate: i64| (d * gates + gate as usize) * hidden + u;
                    if let Some(gate) = parts[0] {
                        let (x, w) = (&x[(t * batch + b) * inputs..], &w[row(gate) * inputs..]);
                        x[..inputs].iter().zip(w).for_each(|(x, w)| add(x * w));
                    }
                    if let Some(gate) = parts[1] {
                        h.iter().zip(&r[row(gate) * hidden..]).for_each(|(h, r)| add(h * r));
                    }
                    for (part, gate) in parts.iter().enumerate() {
                        if let (Some(gate), true) = (gate, layer.bias) {
                            add(bias[((d * 2 + part) * gates + *gate as usize) * hidden + u]);
                        }
                    }
                    let k = (inputs + hidden + 2) as f64;
                    Near { value: sum, error: 4.0 * k * SINGLE * size }
                };
                let sums: Vec<Near> = layer.cell.sums.iter().map(sum).collect();
                let (next, after) = advance(layer.cell.own, &sums, own);
                let row = ((t * directions + d) * batch + b) * hidden;
                note(y[row + u], next);
                h.copy_from_slice(&y[row..row + hidden]);
                own = after;
                if step + 1 == *steps {
                    note(last_h[at + u], next);
                    if layer.results[2] {
                        note(last_c[at + u], own);
                    }
                }
            }
        }
        Ok(worst)
    }

    /// Runs it twice, as the counters must be what they were, and says whether its error is beyond
    /// the bound.
    fn run(&self, stream: &Stream, bound: &Bound, random: &mut Random) -> Result<usize, Error> {
        for _ in 0..2 {
            bound.launch()?;
        }
        stream.synchronize()?;
        let error = self.error(random)?;
        let Case { layer, steps, batch, parts, .. } = self;
        let counted = self.found("counter")?.iter().any(|byte| *byte != 0);
        println!(
            "{{\"row\":\"recurrent\",\"steps\":{steps},\"batch\":{batch},\"inputs\":{},\
             \"hidden\":{},\"parts\":{parts},\"error_of_bound\":{error:.4},\"kernel\":\"{layer:?}\"}}",
            layer.inputs, layer.hidden
        );
        let wrong = error > 1.0 || counted;
        if wrong {
            eprintln!("{steps}x{batch} by {layer:?}: {error} of its bound, counted {counted}");
        }
        Ok(usize::from(wrong))
    }
}

/// Random layers of every cell and type, then the anchors, with a few ways to share them.
pub(crate) fn check(stream: &Stream) -> Result<usize, Error> {
    let mut random = Random(17);
    let mut wrong = 0;
    let cores = i64::from(stream.device().properties().multiprocessors);
    let shared = Arch::Sm90a.shared_memory();
    let [f, g] = [Unary::Sigmoid, Unary::Tanh].map(activation);
    let cells = [Cell::lstm(&f, &g, &g, false), Cell::gru(&f, &g), Cell::plain(&g)];
    for i in 0..if crate::quick() { 9 } else { RANDOM } {
        let cell = cells[i % 3].clone();
        let moves = i % 4 == 3;
        let lstm = cell.own == Own::Cell;
        let size = |random: &mut Random, most: usize| {
            let size = random.within(1, most);
            (if moves { size } else { size.next_multiple_of(8) }) as i64
        };
        let single = i / 3 % 3 == 2;
        let layer = Recurrent {
            scalar: [Scalar::F16, Scalar::Bf16, Scalar::F32][i / 3 % 3],
            edges: if moves { Edges::Moves } else { Edges::Bulk },
            cell,
            direction: [Direction::Forward, Direction::Reverse, Direction::Both][i / 2 % 3],
            inputs: size(&mut random, 300),
            hidden: size(&mut random, 400),
            bias: i % 5 != 0,
            initial: [i % 2 == 0, lstm && i % 4 < 2],
            results: [true, true, lstm],
            rows: if single { 16 } else { [16, 32][i % 2] },
            depth: if single { 32 } else { 64 },
            ..Recurrent::default()
        };
        let Some(layer) = layer.fitting(cores, shared) else {
            return Err(Error::Unsupported { what: "a layer that no blocks take" });
        };
        let sizes = [random.within(1, 40), random.within(1, 150)];
        let case = Case::new(stream, layer, sizes, &mut random)?;
        let bound = case.bind(stream)?;
        wrong += case.run(stream, &bound, &mut random)?;
    }
    for [steps, batch, inputs, hidden] in ANCHORS.into_iter().filter(|_| !crate::quick()) {
        let (inputs, hidden) = (inputs as i64, hidden as i64);
        let layer = Recurrent { inputs, hidden, ..Recurrent::default() };
        let stages = [(64, 4), (64, 9), (128, 3), (128, 5)];
        let layers = [16, 32, 64, 128].into_iter().flat_map(|rows| {
            let layer = &layer;
            stages.map(|(depth, stages)| Recurrent { rows, depth, stages, ..layer.clone() })
        });
        for layer in layers
            .filter_map(|layer| Recurrent { arch: Arch::Sm90a, ..layer }.fitting(cores, shared))
        {
            let case = Case::new(stream, layer.clone(), [steps, batch], &mut random)?;
            let bound = case.bind(stream)?;
            wrong += case.run(stream, &bound, &mut random)?;
            let time = median(stream, || bound.launch())?;
            let Recurrent { rows, depth, stages, units, warps, slices, resident, .. } = layer;
            println!(
                "{{\"row\":\"recurrent\",\"steps\":{steps},\"batch\":{batch},\"inputs\":{inputs},\
                 \"hidden\":{hidden},\"rows\":{rows},\"depth\":{depth},\"stages\":{stages},\"units\":{units},\
                 \"warps\":{warps:?},\"slices\":{slices},\"resident\":{resident:?},\
                 \"parts\":{},\"us\":{time:.1}}}",
                case.parts
            );
        }
    }
    Ok(wrong)
}
