//! Recurrent layers: right within the bound that their arithmetic implies, step by step, clean in any
//! order of all blocks' warps, for every parameter.

use graphene_ir::arch::Arch;
use graphene_ir::emit::emit;
use graphene_ir::function::{Function, Step};
use graphene_ir::kernel::{Kernel, Unary};
use graphene_ir::simulate::{Inputs, Outcome};
use graphene_ir::template::matmul::Edges;
use graphene_ir::template::recurrent::{Cell, Direction, Own, Recurrent};
use graphene_ir::tensor::Scalar;

use crate::support::{OLDER, check_clean, check_features, check_text, data, inputs, orders, run};

/// Steps, rows of the batch, parts, and in how many random orders.
pub(crate) type Sizes = (usize, usize, i64, u64);

pub(crate) fn small() -> Recurrent {
    Recurrent {
        inputs: 24,
        hidden: 16,
        rows: 16,
        depth: 32,
        warps: [1, 1],
        slices: 1,
        stages: 2,
        ..Recurrent::default()
    }
}

fn single() -> Recurrent {
    Recurrent { scalar: Scalar::F32, rows: 8, depth: 16, ..small() }
}

fn of(op: Unary) -> Function {
    Function::identity().unary(op)
}

fn gru() -> Cell {
    Cell::gru(&of(Unary::Sigmoid), &of(Unary::Tanh))
}

pub(crate) fn gru_reset_first() -> Cell {
    Cell::gru_reset_first(&of(Unary::Sigmoid), &of(Unary::Tanh))
}

pub(crate) fn rows() -> Vec<(Recurrent, Sizes)> {
    let plain = Cell::plain(&of(Unary::Tanh));
    let relu = Cell::plain(&of(Unary::Relu));
    let coupled = Cell::lstm(&of(Unary::Sigmoid), &of(Unary::Tanh), &of(Unary::Tanh), true);
    let streamed = Recurrent { resident: [false; 2], ..small() };
    let odd = Recurrent { edges: Edges::Moves, inputs: 7, hidden: 11, ..small() };
    let sliced = Recurrent { slices: 2, warps: [2, 1], rows: 32, stages: 3, ..small() };
    let without =
        Recurrent { results: [false, true, true], initial: [true, true], bias: false, ..small() };
    let bare = |layer: Recurrent| Recurrent { results: [true, true, false], ..layer };
    let mut all = vec![
        (small(), (3, 5, 1, 4)),
        (small(), (1, 1, 1, 1)),
        (small(), (2, 33, 2, 2)),
        (small(), (2, 33, 1, 1)),
        (Recurrent { scalar: Scalar::Bf16, inputs: 40, hidden: 40, ..small() }, (3, 17, 2, 1)),
        (Recurrent { units: 16, warps: [1, 2], hidden: 32, ..small() }, (3, 4, 1, 1)),
        (Recurrent { units: 16, ..small() }, (3, 4, 1, 1)),
        (Recurrent { initial: [true, false], ..small() }, (3, 4, 1, 2)),
        (Recurrent { initial: [false, true], ..small() }, (2, 4, 1, 1)),
        (Recurrent { direction: Direction::Reverse, ..small() }, (3, 4, 1, 1)),
        (Recurrent { direction: Direction::Both, ..without.clone() }, (4, 18, 2, 2)),
        (Recurrent { direction: Direction::Both, initial: [true; 2], ..small() }, (3, 3, 1, 2)),
        (without, (4, 5, 1, 2)),
        (streamed.clone(), (3, 5, 1, 1)),
        (Recurrent { resident: [false, true], ..sliced.clone() }, (3, 5, 1, 1)),
        (Recurrent { hidden: 72, inputs: 104, ..sliced.clone() }, (2, 35, 1, 2)),
        (odd.clone(), (3, 5, 1, 1)),
        // A single piece of a row, and single elements.
        (Recurrent { inputs: 8, hidden: 8, ..small() }, (3, 5, 1, 1)),
        (Recurrent { inputs: 8, hidden: 8, resident: [false; 2], ..small() }, (3, 5, 1, 0)),
        (Recurrent { inputs: 1, hidden: 1, ..odd.clone() }, (3, 5, 1, 1)),
        (
            Recurrent { inputs: 1, hidden: 9, direction: Direction::Both, ..odd.clone() },
            (3, 1, 1, 1),
        ),
        (Recurrent { scalar: Scalar::F32, inputs: 9, hidden: 1, ..odd.clone() }, (1, 5, 1, 1)),
        (Recurrent { direction: Direction::Both, ..odd.clone() }, (3, 5, 1, 1)),
        (Recurrent { arch: Arch::Sm90a, ..small() }, (2, 3, 1, 0)),
        (Recurrent { cell: coupled, ..small() }, (3, 4, 1, 0)),
        (single(), (3, 9, 2, 2)),
        (Recurrent { units: 16, rows: 16, slices: 2, depth: 32, ..single() }, (3, 5, 1, 2)),
        (
            Recurrent { scalar: Scalar::F32, direction: Direction::Both, ..odd.clone() },
            (3, 5, 1, 1),
        ),
        (Recurrent { resident: [false; 2], initial: [true; 2], ..single() }, (2, 9, 1, 1)),
    ];
    let peeps = |coupled: bool| {
        let [f, g] = [of(Unary::Sigmoid), of(Unary::Tanh)];
        Cell::lstm_with_peepholes(&f, &g, &g, coupled)
    };
    all.extend([
        (Recurrent { cell: peeps(false), ..small() }, (3, 5, 1, 1)),
        (Recurrent { cell: peeps(true), direction: Direction::Both, ..odd.clone() }, (3, 5, 1, 1)),
        (Recurrent { cell: peeps(false), ragged: true, ..single() }, (3, 9, 1, 1)),
    ]);
    // Sequences of several lengths.
    let ragged = |layer: Recurrent| Recurrent { ragged: true, ..layer };
    all.extend([
        (ragged(small()), (3, 5, 1, 3)),
        (ragged(small()), (1, 33, 2, 1)),
        (
            ragged(Recurrent { direction: Direction::Reverse, initial: [true; 2], ..small() }),
            (4, 5, 1, 2),
        ),
        (
            ragged(Recurrent {
                direction: Direction::Both,
                initial: [true; 2],
                results: [false, true, true],
                hidden: 40,
                ..small()
            }),
            (4, 18, 2, 2),
        ),
        (ragged(Recurrent { hidden: 72, ..sliced.clone() }), (3, 35, 1, 1)),
        (ragged(Recurrent { results: [true, false, false], ..odd.clone() }), (3, 5, 1, 1)),
        (ragged(Recurrent { direction: Direction::Both, ..single() }), (3, 9, 1, 1)),
        (
            ragged(Recurrent {
                cell: Cell::plain(&of(Unary::Tanh)),
                units: 16,
                hidden: 40,
                initial: [true, false],
                direction: Direction::Reverse,
                ..bare(small())
            }),
            (4, 5, 1, 1),
        ),
    ]);
    for scalar in [Scalar::F16, Scalar::F32] {
        let layer = bare(if scalar == Scalar::F16 { small() } else { single() });
        let wide = Recurrent { units: 16, hidden: 40, ..layer.clone() };
        all.extend([
            (Recurrent { cell: gru(), ..layer.clone() }, (3, 5, 1, 1)),
            (Recurrent { cell: gru_reset_first(), ..layer.clone() }, (3, 5, 1, 2)),
            (
                Recurrent {
                    cell: gru_reset_first(),
                    direction: Direction::Both,
                    initial: [true, false],
                    results: [false, true, false],
                    slices: 2,
                    depth: 32,
                    ..layer.clone()
                },
                (3, 18, 2, 2),
            ),
            (Recurrent { cell: gru_reset_first(), units: 16, ..layer.clone() }, (2, 5, 1, 1)),
            (Recurrent { cell: gru(), initial: [true, false], ..layer.clone() }, (3, 5, 1, 1)),
            (
                ragged(Recurrent { cell: gru(), initial: [true, false], ..layer.clone() }),
                (4, 5, 1, 2),
            ),
            (
                ragged(Recurrent {
                    cell: gru_reset_first(),
                    direction: Direction::Both,
                    initial: [true, false],
                    ..layer.clone()
                }),
                (4, 18, 1, 2),
            ),
            (
                ragged(Recurrent {
                    cell: gru_reset_first(),
                    direction: Direction::Reverse,
                    ..layer.clone()
                }),
                (3, 5, 1, 1),
            ),
            (
                Recurrent {
                    cell: gru(),
                    direction: Direction::Both,
                    resident: [false; 2],
                    ..layer
                },
                (2, 5, 1, 1),
            ),
            (Recurrent { cell: plain.clone(), ..wide.clone() }, (3, 5, 1, 1)),
            (Recurrent { cell: relu.clone(), bias: false, ..wide }, (2, 5, 1, 0)),
        ]);
    }
    all
}

/// A number and how far off it may be.
#[derive(Clone, Copy, Default)]
struct Near {
    value: f64,
    error: f64,
}

/// The error of one rounding to single precision.
const SINGLE: f64 = 1.0 / (1 << 24) as f64;

impl Near {
    /// Of a function whose slope is at most `slope`.
    fn of(self, function: impl Fn(f64) -> f64, slope: f64) -> Near {
        let value = function(self.value);
        Near { value, error: slope * self.error + SINGLE * value.abs() }.rounded()
    }

    fn rounded(self) -> Near {
        Near { error: self.error * (1.0 + SINGLE) + 1e-40, ..self }
    }

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

fn sigmoid(x: Near) -> Near {
    x.of(|x| 1.0 / (1.0 + (-x).exp()), 0.25)
}

fn tanh(x: Near) -> Near {
    x.of(f64::tanh, 1.0)
}

/// A cell's equations, as ONNX has them: h and the unit's own state of its sums.
/// With peepholes, `constants` are those of the unit.
fn advance(layer: &Recurrent, sums: &[Near], own: Near, constants: &[f64]) -> (Near, Near) {
    let one = Near { value: 1.0, error: 0.0 };
    let less = |x: Near| one.plus(Near { value: -x.value, ..x });
    match layer.cell.own {
        Own::Cell => {
            let gate = |gate: usize, c: Near| match constants.get(gate) {
                Some(&value) => sigmoid(sums[gate].plus(Near { value, error: 0.0 }.times(c))),
                None => sigmoid(sums[gate]),
            };
            let i = gate(0, own);
            let forgets = layer.cell.function.steps().contains(&Step::Input(2));
            let f = if forgets { gate(2, own) } else { less(i) };
            let c = f.times(own).plus(i.times(tanh(sums[3])));
            (gate(1, c).times(tanh(c)), c)
        }
        Own::Hidden => {
            let [z, r] = [0, 1].map(|gate| sigmoid(sums[gate]));
            let state = if layer.cell.reset.is_some() { sums[3] } else { r.times(sums[3]) };
            let candidate = tanh(sums[2].plus(state));
            let h = less(z).times(candidate).plus(z.times(own));
            (h, h)
        }
        Own::Nothing => {
            let relu = layer.cell == Cell::plain(&of(Unary::Relu));
            let h = if relu { sums[0].of(|x| x.max(0.0), 1.0) } else { tanh(sums[0]) };
            (h, Near::default())
        }
    }
}

/// A few bits, so that every type holds them.
fn element(name: &str, i: usize) -> f64 {
    let seed = name.bytes().map(usize::from).sum::<usize>();
    let mixed = (i * 7919 + seed * 104_729) % 61;
    let number = (mixed as f64 - 30.0) / 32.0;
    match name {
        "counter" => 0.0,
        // So many that few states are alike: values tell which unit a register is of.
        "h0" | "c0" => ((i * 7919 + seed) % 251) as f64 / 128.0 - 1.0,
        "W" | "R" => number / 2.0,
        _ => number,
    }
}

pub(crate) fn given(layer: &Recurrent, kernel: &Kernel, (steps, batch, parts, _): Sizes) -> Inputs {
    let symbols = [("steps", steps as i64), ("batch", batch as i64), ("parts", parts)];
    let symbols: Vec<(&str, i64)> = symbols
        .into_iter()
        .filter(|(name, _)| kernel.symbols.iter().any(|symbol| symbol.name() == *name))
        .collect();
    assert_eq!(symbols.len(), 3, "{layer:?}");
    inputs(kernel, &symbols, |n, i| match kernel.tensor_name(kernel.params[n]) {
        "lengths" => length(steps, i) as f64,
        name => element(name, i),
    })
}

/// A sequence's length: all steps, some, or none.
fn length(steps: usize, row: usize) -> usize {
    (3 * row + 1) % (steps + 1)
}

/// Compares each step with what it makes of the kernel's own h of the step before.
///
/// A sum of k products and two biases in single precision errs by at most 4(k + 2)·2⁻²⁴ of the sum of
/// their absolute values; through the cell, errors go as [`Near`] says: by slopes of the functions, and
/// one rounding for each operation. A unit's own state errs by what all steps before left. A result is
/// rounded to its type.
fn check(layer: &Recurrent, (steps, batch, ..): Sizes, given: &Inputs, outcome: &Outcome) {
    let (inputs, hidden) = (layer.inputs as usize, layer.hidden as usize);
    let directions = layer.directions() as usize;
    let has = |name: &str| outcome.buffers.get(name);
    let numbers = |name: &str| -> Option<Vec<f64>> {
        let all = has(name)?.iter();
        Some(all.map(|x| x.unwrap_or_else(|| panic!("%{name} has holes: {layer:?}"))).collect())
    };
    let initial = |name: &str, wanted: bool, at: usize| {
        if wanted { data(given, name)[at] } else { 0.0 }
    };
    let epsilon = match layer.scalar {
        Scalar::F16 => 2f64.powi(-11),
        Scalar::Bf16 => 2f64.powi(-8),
        _ => SINGLE,
    };
    let near = |what: &str, found: f64, near: Near| {
        let bound = epsilon * near.value.abs() + (1.0 + epsilon) * near.error + 2f64.powi(-25);
        let error = (found - near.value).abs();
        assert!(error <= bound, "{what}: {found}, not {} within {bound}: {layer:?}", near.value);
    };
    let [x, w, r] = ["X", "W", "R"].map(|name| data(given, name));
    let y = numbers("Y").filter(|_| layer.results[0]);
    let gates = layer.cell.gates as usize;
    for d in 0..directions {
        let backwards = layer.direction == Direction::Reverse || d == 1;
        for b in 0..batch {
            let at = |u: usize| (d * batch + b) * hidden + u;
            let mut h: Vec<f64> =
                (0..hidden).map(|u| initial("h0", layer.initial[0], at(u))).collect();
            let mut own: Vec<Near> = (0..hidden)
                .map(|u| match layer.cell.own {
                    Own::Cell => initial("c0", layer.initial[1], at(u)),
                    Own::Hidden | Own::Nothing => h[u],
                })
                .map(|value| Near { value, error: 0.0 })
                .collect();
            // Where h of the steps is no result, its error is carried on.
            let mut error = vec![0.0; hidden];
            let length = if layer.ragged { length(steps, b) } else { steps };
            for t in length..steps {
                for u in 0..hidden {
                    let at = ((t * directions + d) * batch + b) * hidden + u;
                    assert_eq!(
                        y.as_ref().map_or(0.0, |y| y[at]),
                        0.0,
                        "Y[{t},{d},{b},{u}]: {layer:?}"
                    );
                }
            }
            if length == 0 {
                for (name, first, given) in
                    [("Y_h", "h0", layer.initial[0]), ("Y_c", "c0", layer.initial[1])]
                {
                    let last = numbers(name).map(|last| last[at(0)..][..hidden].to_vec());
                    let first = (0..hidden).map(|u| initial(first, given, at(u))).collect();
                    assert_eq!(last.unwrap_or(Vec::clone(&first)), first, "{name}: {layer:?}");
                }
            }
            for step in 0..length {
                let t = if backwards { length - 1 - step } else { step };
                let mut next = vec![Near::default(); hidden];
                let sum = |u: usize, parts: &[Option<i64>; 2], h: &[f64], error: &[f64]| {
                    let (mut sum, mut size, mut carried) = (0.0, 0.0, 0.0);
                    let mut add = |term: f64| {
                        sum += term;
                        size += term.abs();
                    };
                    if let Some(gate) = parts[0] {
                        let row = (d * gates + gate as usize) * hidden + u;
                        (0..inputs).for_each(|i| {
                            add(x[(t * batch + b) * inputs + i] * w[row * inputs + i]);
                        });
                    }
                    if let Some(gate) = parts[1] {
                        let row = (d * gates + gate as usize) * hidden + u;
                        for i in 0..hidden {
                            add(h[i] * r[row * hidden + i]);
                            carried += error[i] * r[row * hidden + i].abs();
                        }
                    }
                    for (part, gate) in parts.iter().enumerate() {
                        if let (Some(gate), true) = (gate, layer.bias) {
                            let row = (d * 2 + part) * gates + *gate as usize;
                            add(data(given, "bias")[row * hidden + u]);
                        }
                    }
                    let k = (inputs + hidden + 2) as f64;
                    Near { value: sum, error: 4.0 * k * SINGLE * (size + carried) + carried }
                };
                let sums = |u: usize| -> Vec<Near> {
                    layer.cell.sums.iter().map(|parts| sum(u, parts, &h, &error)).collect()
                };
                let mut sums: Vec<Vec<Near>> = (0..hidden).map(sums).collect();
                if layer.cell.reset.is_some() {
                    // What is read in place of h is rounded as results are.
                    let read = (0..hidden).map(|u| sigmoid(sums[u][1]).times(own[u]));
                    let (read, off): (Vec<f64>, Vec<f64>) = read
                        .map(|read| {
                            (read.value, read.error + epsilon * (read.value.abs() + read.error))
                        })
                        .unzip();
                    for (u, sums) in sums.iter_mut().enumerate() {
                        sums[3] = sum(u, &layer.cell.sums[3], &read, &off);
                    }
                }
                for u in 0..hidden {
                    let count = layer.cell.constants;
                    let constant = |n: usize| data(given, "P")[(d * count + n) * hidden + u];
                    let constants: Vec<f64> = (0..count).map(constant).collect();
                    (next[u], own[u]) = advance(layer, &sums[u], own[u], &constants);
                }
                for u in 0..hidden {
                    match &y {
                        Some(y) => {
                            let found = y[((t * directions + d) * batch + b) * hidden + u];
                            near(&format!("Y[{t},{d},{b},{u}]"), found, next[u]);
                            h[u] = found;
                        }
                        None => {
                            h[u] = next[u].value;
                            error[u] = next[u].error + epsilon * (h[u].abs() + next[u].error);
                        }
                    }
                }
                if step + 1 == length {
                    for u in 0..hidden {
                        if let Some(last) = numbers("Y_h") {
                            near(&format!("Y_h[{d},{b},{u}]"), last[at(u)], next[u]);
                        }
                        if let Some(last) = numbers("Y_c") {
                            near(&format!("Y_c[{d},{b},{u}]"), last[at(u)], own[u]);
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn recurrent_kernels_verify_read_back_and_become_cuda() {
    for (layer, _) in rows() {
        let kernel = layer.kernel().unwrap_or_else(|error| panic!("{error}"));
        check_text(&format!("{layer:?}"), &kernel);
        let emitted = emit(&kernel).unwrap();
        let alone = layer.hidden <= layer.units;
        assert_eq!(emitted.launch.cooperative, !alone, "{layer:?}");
        assert!(i64::from(emitted.launch.shared_bytes) <= layer.shared_bytes(), "{layer:?}");
    }
}

#[test]
fn recurrent_layers_of_older_architectures_are_right() {
    let known = rows().into_iter().filter(|row| row.0.scalar != Scalar::Bf16);
    for (layer, sizes) in known.step_by(4) {
        for arch in OLDER {
            let layer = Recurrent { arch, ..layer.clone() };
            let (name, kernel) = (format!("{layer:?} {sizes:?}"), layer.kernel().unwrap());
            check_features(&name, &kernel, layer.scalar == Scalar::F16);
            let given = given(&layer, &kernel, sizes);
            let outcome = run(&kernel, &given, None);
            check_clean(&name, &outcome);
            check(&layer, sizes, &given, &outcome);
        }
    }
}

#[test]
fn recurrent_layers_are_right_in_any_order_and_free_of_bank_conflicts() {
    for (layer, sizes) in rows() {
        let kernel = layer.kernel().unwrap();
        let given = given(&layer, &kernel, sizes);
        for seed in orders(sizes.3) {
            let outcome = run(&kernel, &given, seed);
            check_clean(&format!("{layer:?} {sizes:?} {seed:?}"), &outcome);
            check(&layer, sizes, &given, &outcome);
            if let Some(counter) = outcome.buffers.get("counter") {
                assert!(counter.iter().all(|count| *count == Some(0.0)), "{layer:?}: {counter:?}");
            }
            if layer.edges == Edges::Bulk {
                assert_eq!(outcome.costs.total().conflicts, 0, "{layer:?} {sizes:?}");
            }
        }
    }
}

#[test]
fn recurrent_parameters_that_no_kernel_has_are_refused() {
    for layer in [
        Recurrent { units: 12, ..small() },
        Recurrent { units: 0, ..small() },
        Recurrent { hidden: 0, ..small() },
        Recurrent { hidden: 12, ..small() },
        Recurrent { rows: 24, ..small() },
        Recurrent { warps: [2, 1], ..small() },
        Recurrent { warps: [0, 1], ..small() },
        Recurrent { slices: 4, ..small() },
        Recurrent { slices: 0, ..small() },
        Recurrent { stages: 1, ..small() },
        Recurrent { depth: 24, ..small() },
        Recurrent { arch: Arch::Sm75, scalar: Scalar::Bf16, ..small() },
        Recurrent { scalar: Scalar::I32, ..small() },
        Recurrent { results: [false; 3], ..small() },
        Recurrent { cell: gru(), ..small() },
        Recurrent { cell: gru(), initial: [true; 2], results: [true; 3], ..small() },
        Recurrent { cell: Cell::plain(&of(Unary::Tanh)), results: [true, true, false], ..small() },
        Recurrent { cell: Cell { gates: 3, ..Cell::default() }, ..small() },
        Recurrent { cell: Cell { function: Function::sum(), ..Cell::default() }, ..small() },
    ] {
        assert!(layer.kernel().is_err(), "{layer:?}");
    }
}
