//! Recurrent layers: cells, directions, optional operands.

use crate::check::{Random, check_op};
use graphene_frontend::dtype::DType;
use graphene_frontend::op::{Op, RnnAttrs, RnnCell, RnnDirection, Unary};
use graphene_frontend::tensor::Tensor;
use graphene_runtime::Threads;

const CELLS: [RnnCell; 5] = [
    RnnCell::Lstm { input_forget: false },
    RnnCell::Lstm { input_forget: true },
    RnnCell::Gru { linear_before_reset: false },
    RnnCell::Gru { linear_before_reset: true },
    RnnCell::Plain,
];

const DIRECTIONS: [RnnDirection; 3] =
    [RnnDirection::Forward, RnnDirection::Reverse, RnnDirection::Bidirectional];

fn attrs(cell: RnnCell, direction: RnnDirection, hidden: usize) -> RnnAttrs {
    let own: &[Unary] = match cell {
        RnnCell::Lstm { .. } => &[Unary::Sigmoid, Unary::Tanh, Unary::Tanh],
        RnnCell::Gru { .. } => &[Unary::Sigmoid, Unary::Tanh],
        RnnCell::Plain => &[Unary::Tanh],
    };
    let directions = if direction == RnnDirection::Bidirectional { 2 } else { 1 };
    RnnAttrs { cell, direction, hidden, activations: own.repeat(directions), clip: None }
}

/// Steps, batch, inputs.
type Sizes = [usize; 3];

/// All operands: bias, lengths, both states, and peepholes for LSTM.
fn operands(attrs: &RnnAttrs, [s, b, i]: Sizes, dtype: DType) -> Vec<Option<Tensor>> {
    let (gates, lstm) = match attrs.cell {
        RnnCell::Lstm { .. } => (4, true),
        RnnCell::Gru { .. } => (3, false),
        RnnCell::Plain => (1, false),
    };
    let (d, h) = (if attrs.direction == RnnDirection::Bidirectional { 2 } else { 1 }, attrs.hidden);
    let mut random = Random(11);
    let mut tensor = |shape: &[usize]| Some(random.tensor(dtype, shape.to_vec()));
    let lengths = (0..b).map(|b| ((b * 5 + 2) % (s + 1)) as i32).collect();
    let mut operands = vec![
        tensor(&[s, b, i]),
        tensor(&[d, gates * h, i]),
        tensor(&[d, gates * h, h]),
        tensor(&[d, 2 * gates * h]),
        Some(Tensor::from_vec(vec![b], lengths).unwrap()),
        tensor(&[d, b, h]),
    ];
    if lstm {
        operands.extend([tensor(&[d, b, h]), tensor(&[d, 3 * h])]);
    }
    operands
}

fn outputs(attrs: &RnnAttrs) -> &'static [u32] {
    if matches!(attrs.cell, RnnCell::Lstm { .. }) { &[0, 1, 2] } else { &[0, 1] }
}

#[test]
fn cells_and_directions() {
    for cell in CELLS {
        for direction in DIRECTIONS {
            let attrs = attrs(cell, direction, 19);
            let all = operands(&attrs, [6, 5, 7], DType::F32);
            let op = || Op::Rnn(attrs.clone());
            check_op(op(), &all, outputs(&attrs), "rnn", 1e-4);
            check_op(op(), &all[..3], outputs(&attrs), "rnn", 1e-4);
            for given in 3..all.len() {
                let mut some = all[..3].to_vec();
                some.resize(given, None);
                some.push(all[given].clone());
                check_op(op(), &some, outputs(&attrs), "rnn", 1e-4);
            }
        }
    }
}

#[test]
fn each_output_alone() {
    for cell in CELLS {
        let attrs = attrs(cell, RnnDirection::Bidirectional, 8);
        let all = operands(&attrs, [4, 3, 5], DType::F32);
        for output in outputs(&attrs) {
            check_op(Op::Rnn(attrs.clone()), &all, &[*output], "rnn", 1e-4);
        }
    }
}

#[test]
fn sizes() {
    for (cell, sizes, hidden) in [
        (CELLS[0], [1, 1, 1], 1),
        (CELLS[0], [3, 70, 33], 65),
        (CELLS[2], [3, 70, 33], 65),
        (CELLS[3], [3, 70, 33], 65),
        (CELLS[0], [0, 2, 3], 4),
        (CELLS[0], [2, 0, 3], 4),
        (CELLS[0], [2, 3, 0], 4),
        // Inputs are projected in several parts.
        (CELLS[0], [1030, 8, 2], 128),
        // Each thread projects those of its sequences in several parts.
        (CELLS[0], [21, 70, 5], 128),
        (CELLS[1], [21, 70, 5], 128),
        (CELLS[2], [20, 70, 5], 128),
        (CELLS[3], [20, 70, 5], 128),
        (CELLS[4], [20, 70, 5], 512),
        (CELLS[0], [60, 70, 0], 128),
    ] {
        let attrs = attrs(cell, RnnDirection::Bidirectional, hidden);
        let mut all = operands(&attrs, sizes, DType::F32);
        // Small weights of the states, so that no layer is chaotic over many steps.
        let weights: Vec<f32> =
            all[2].as_ref().unwrap().as_slice::<f32>().unwrap().iter().map(|w| w * 0.05).collect();
        let shape = all[2].as_ref().unwrap().shape().to_vec();
        all[2] = Some(Tensor::from_vec(shape, weights).unwrap());
        // Three threads take 24, 24 and 22 of 70 sequences.
        let check = || check_op(Op::Rnn(attrs.clone()), &all, outputs(&attrs), "rnn", 1e-4);
        check();
        Threads::new(3).unwrap().run(check);
    }
}

#[test]
fn clips_and_other_activations() {
    for cell in CELLS {
        let mut attrs = attrs(cell, RnnDirection::Forward, 10);
        attrs.clip = Some(0.75);
        let all = operands(&attrs, [4, 3, 5], DType::F32);
        check_op(Op::Rnn(attrs.clone()), &all, outputs(&attrs), "rnn", 1e-4);
        let others = [
            Unary::HardSigmoid { alpha: 0.3, beta: 0.4 },
            Unary::Softsign,
            Unary::LeakyRelu { alpha: 0.1 },
        ];
        attrs.activations = others[..attrs.activations.len()].to_vec();
        check_op(Op::Rnn(attrs.clone()), &all, outputs(&attrs), "rnn", 1e-4);
    }
}

#[test]
fn narrow_floats() {
    for cell in CELLS {
        let attrs = attrs(cell, RnnDirection::Forward, 10);
        let all = operands(&attrs, [4, 3, 5], DType::F16);
        check_op(Op::Rnn(attrs.clone()), &all, outputs(&attrs), "rnn", 2e-3);
    }
}
