//! Normalisations, attention, recurrent layers and resizing; the numbers are onnxruntime's, those of
//! attention and RMS normalisation NumPy's.

use super::{assert_close, bools, check_close, numbers, pattern, run, tensor};
use crate::dim::{Bindings, Dim};
use crate::dtype::DType;
use crate::eval::evaluate_op;
use crate::eval::number::from_reals;
use crate::op::{
    AttentionAttrs, Binary, CoordinateTransform, NearestMode, Op, ResizeAttrs, ResizeMode,
    RnnAttrs, RnnCell, RnnDirection, Unary,
};
use crate::tensor::Tensor;

#[test]
fn softmax_along_an_axis() {
    let x = pattern(&[2, 3], 1);
    let expected = [0.2689414, 0.9626731, 0.2689414, 0.7310586, 0.03732688, 0.7310586];
    check_close(&Op::Softmax { axis: 0, log: false }, &[Some(&x)], &[2, 3], &expected);
    let expected = [-1.97782, -0.2278198, -2.72782, -0.4411228, -2.941123, -1.191123];
    check_close(&Op::Softmax { axis: 1, log: true }, &[Some(&x)], &[2, 3], &expected);
    let large = tensor(&[2], &[1e30_f32, 0.0]);
    check_close(&Op::Softmax { axis: 0, log: false }, &[Some(&large)], &[2], &[1.0, 0.0]);
}

/// Rows of equal scores, in and past the runs of a sum: weights are within a unit in the last place of the quotient.
#[test]
fn softmax_of_long_rows_in_16_bits() {
    for (dtype, unit) in [(DType::BF16, 1.0 / 128.0), (DType::F16, 1.0 / 1024.0)] {
        for size in [1, 6, 8, 9, 100, 512, 1000, 4096] {
            let x = from_reals(dtype, vec![size], &vec![3.0; size], true).unwrap();
            let y = run(&Op::Softmax { axis: 0, log: false }, &[&x]).unwrap();
            let expected = 1.0 / size as f64;
            for weight in numbers(&y[0]) {
                assert!((weight - expected).abs() <= unit * expected, "{dtype} {size}: {weight}");
            }
        }
    }
}

/// The numbers are those of NumPy, with ml_dtypes' `bfloat16`, step by step. Rounded once they would differ: the first
/// in `bf16` would be 0.6640625, in `f16` 0.6650390625.
#[test]
fn softmax_in_16_bits_rounds_its_steps() {
    let rows: [(DType, [f64; 3]); 2] = [
        (DType::BF16, [0.66796875, 0.2451171875, 0.09033203125]),
        (DType::F16, [0.66552734375, 0.2447509765625, 0.090087890625]),
    ];
    for (dtype, expected) in rows {
        let x = from_reals(dtype, vec![3], &[2.0, 1.0, 0.0], true).unwrap();
        let y = run(&Op::Softmax { axis: 0, log: false }, &[&x]).unwrap();
        assert_eq!(numbers(&y[0]), expected, "{dtype}");
        let nowhere = from_reals(dtype, vec![2], &[f64::NEG_INFINITY; 2], true).unwrap();
        let y = run(&Op::Softmax { axis: 0, log: false }, &[&nowhere]).unwrap();
        assert!(numbers(&y[0]).iter().all(|x| x.is_nan()), "{dtype}");
    }
}

#[test]
fn normalisations() {
    let (x, scale, bias) = (pattern(&[2, 3], 1), pattern(&[3], 2), pattern(&[3], 3));
    let op = Op::LayerNorm { axis: 1, epsilon: 0.1 };
    let operands = [Some(&x), Some(&scale), Some(&bias)];
    let outputs = evaluate_op(&op, &operands, &Bindings::new()).unwrap();
    let y = [-2.130804, -1.618417, 1.254955, -0.5123873, 1.618416, 1.902322];
    assert_close(&outputs[0], &[2, 3], &y, "y");
    assert_close(&outputs[1], &[2, 1], &[0.3333333, -0.08333333], "mean");
    assert_close(&outputs[2], &[2, 1], &[0.9139293, 0.9139293], "inverse deviation");
    let op = Op::RmsNorm { axis: 1, epsilon: 0.1 };
    let y = [0.0, -1.912445, -0.3278477, 1.139113, 1.708669, 0.1139113];
    check_close(&op, &[Some(&x), Some(&scale)], &[2, 3], &y);
}

#[test]
fn attention() {
    let (q, k, v) =
        (pattern(&[1, 2, 2, 2], 1), pattern(&[1, 1, 3, 2], 2), pattern(&[1, 1, 3, 2], 3));
    let biases = pattern(&[2, 3], 4);
    let allowed = bools(&[3], &[1, 0, 1]);
    let rows: [(Option<&Tensor>, bool, f32, [f64; 8]); 4] = [
        (
            None,
            false,
            0.0,
            [
                0.8127912, -1.350204, 0.7664772, -1.253399, 0.7764983, -1.111268, -0.3809102,
                -0.3541258,
            ],
        ),
        (
            Some(&biases),
            false,
            0.0,
            [0.9446169, -1.094682, 0.3812161, -1.142583, 1.338584, -0.8144121, -1.46863, -0.104181],
        ),
        (
            Some(&allowed),
            false,
            0.0,
            [
                0.7725823, -1.375954, 0.6537124, -1.311116, 0.4853851, -1.219301, -1.472584,
                -0.1513179,
            ],
        ),
        (None, true, 2.0, [-1.75, 0.0, -0.06019874, -0.3621003, -1.75, 0.0, -0.330761, -0.3041226]),
    ];
    for (mask, causal, softcap, expected) in rows {
        let op = Op::Attention(AttentionAttrs {
            scale: 0.5,
            causal,
            softcap,
            guarded: false,
            fill: f32::NEG_INFINITY,
        });
        check_close(&op, &[Some(&q), Some(&k), Some(&v), mask], &[1, 2, 2, 2], &expected);
    }
    let nobody = bools(&[3], &[0, 0, 0]);
    let op = Op::Attention(AttentionAttrs {
        scale: 0.5,
        causal: false,
        softcap: 0.0,
        guarded: false,
        fill: f32::NEG_INFINITY,
    });
    check_close(&op, &[Some(&q), Some(&k), Some(&v), Some(&nobody)], &[1, 2, 2, 2], &[f64::NAN; 8]);
    let op = Op::Attention(AttentionAttrs {
        scale: 0.5,
        causal: false,
        softcap: 0.0,
        guarded: true,
        fill: f32::NEG_INFINITY,
    });
    check_close(&op, &[Some(&q), Some(&k), Some(&v), Some(&nobody)], &[1, 2, 2, 2], &[0.0; 8]);
    // Where all scores are filled with one number, all keys have one weight; where one is, it has its own.
    let filled = |fill| {
        let attrs =
            AttentionAttrs { scale: 0.5, causal: false, softcap: 0.0, guarded: false, fill };
        Op::Attention(attrs)
    };
    let rows = numbers(&v);
    let mean = [0, 1].map(|e| (rows[e] + rows[2 + e] + rows[4 + e]) / 3.0);
    let inputs = [Some(&q), Some(&k), Some(&v), Some(&nobody)];
    check_close(&filled(-1e9), &inputs, &[1, 2, 2, 2], &mean.repeat(4));
    let inputs = [Some(&q), Some(&k), Some(&v), Some(&allowed)];
    let y = numbers(&super::run(&filled(f32::NEG_INFINITY), &[&q, &k, &v, &allowed]).unwrap()[0]);
    check_close(&filled(-1e9), &inputs, &[1, 2, 2, 2], &y);
    // A forbidden score of zero among others has the weight of zero.
    let scores = Op::Attention(AttentionAttrs {
        scale: 0.0,
        causal: false,
        softcap: 0.0,
        guarded: false,
        fill: 0.0,
    });
    check_close(&scores, &inputs, &[1, 2, 2, 2], &mean.repeat(4));
}

/// Half of the pattern.
fn half(shape: &[usize], seed: usize) -> Tensor {
    let x = pattern(shape, seed);
    let half = tensor(&[], &[0.5_f32]);
    super::run(&Op::Binary(Binary::Mul), &[&x, &half]).unwrap().remove(0)
}

/// Runs a layer of two units over three steps of a batch of two, of lengths three and two.
fn run_layer(cell: RnnCell, gates: usize, direction: RnnDirection) -> Vec<Tensor> {
    let activations = match cell {
        RnnCell::Lstm { .. } => vec![Unary::Sigmoid, Unary::Tanh, Unary::Tanh],
        RnnCell::Gru { .. } => vec![Unary::Sigmoid, Unary::Tanh],
        RnnCell::Plain => vec![Unary::Tanh],
    };
    let d = if direction == RnnDirection::Bidirectional { 2 } else { 1 };
    let attrs =
        RnnAttrs { cell, direction, hidden: 2, activations: activations.repeat(d), clip: None };
    let (x, lengths) = (half(&[3, 2, 2], 1), tensor(&[2], &[3_i32, 2]));
    let (w, r) = (half(&[d, gates * 2, 2], 2), half(&[d, gates * 2, 2], 3));
    let (bias, h0) = (half(&[d, gates * 4], 4), half(&[d, 2, 2], 5));
    let (c0, peepholes) = (half(&[d, 2, 2], 6), half(&[d, 6], 7));
    let lstm = matches!(cell, RnnCell::Lstm { .. });
    let plain = matches!(cell, RnnCell::Gru { linear_before_reset: true });
    let operands = [
        Some(&x),
        Some(&w),
        Some(&r),
        Some(&bias),
        Some(&lengths).filter(|_| !plain),
        Some(&h0).filter(|_| !plain),
        Some(&c0).filter(|_| lstm),
        Some(&peepholes).filter(|_| lstm),
    ];
    evaluate_op(&Op::Rnn(attrs), &operands, &Bindings::new()).unwrap()
}

#[test]
fn long_short_term_memories() {
    let cell = RnnCell::Lstm { input_forget: false };
    let outputs = run_layer(cell, 4, RnnDirection::Bidirectional);
    let y = [
        0.05540148,
        0.1279406,
        0.03539279,
        -0.3698905,
        0.2753906,
        0.05039668,
        0.1415171,
        0.05602408,
        -0.06331233,
        -0.04532934,
        0.1073209,
        -0.2508999,
        0.2497682,
        0.07804669,
        -0.07306299,
        -0.01587384,
        0.07665435,
        -0.2884601,
        0.0,
        0.0,
        -0.01791973,
        -0.0754931,
        0.0,
        0.0,
    ];
    assert_close(&outputs[0], &[3, 2, 2, 2], &y, "y");
    let h = [
        0.07665435, -0.2884601, 0.1073209, -0.2508999, 0.2753906, 0.05039668, 0.1415171, 0.05602408,
    ];
    assert_close(&outputs[1], &[2, 2, 2], &h, "h");
    let c =
        [0.4931675, -0.4961963, 0.4286391, -0.5017211, 0.7809864, 0.19603, 0.2741746, 0.1972003];
    assert_close(&outputs[2], &[2, 2, 2], &c, "c");
}

#[test]
fn gated_recurrent_units() {
    let cell = RnnCell::Gru { linear_before_reset: false };
    let outputs = run_layer(cell, 3, RnnDirection::Bidirectional);
    let y = [
        -0.3425699,
        -0.3207165,
        -0.1563715,
        0.5199914,
        0.5600818,
        0.1609524,
        0.03814772,
        0.3482178,
        -0.3488411,
        -0.05764744,
        -0.3095992,
        0.701758,
        0.3982087,
        0.2537441,
        -0.6347731,
        0.6754543,
        -0.4442436,
        0.2837756,
        0.0,
        0.0,
        -0.2154201,
        0.7866777,
        0.0,
        0.0,
    ];
    assert_close(&outputs[0], &[3, 2, 2, 2], &y, "y");
    let cell = RnnCell::Gru { linear_before_reset: true };
    let outputs = run_layer(cell, 3, RnnDirection::Forward);
    let y = [
        -0.3897204,
        -0.05428183,
        -0.2999744,
        -0.1549919,
        -0.3537006,
        -0.2356761,
        -0.4152089,
        0.2154597,
        -0.4489296,
        0.07541916,
        -0.4814967,
        0.3595573,
    ];
    assert_close(&outputs[0], &[3, 1, 2, 2], &y, "y");
    assert_eq!(outputs.len(), 2);
}

#[test]
fn plain_recurrent_layers() {
    let outputs = run_layer(RnnCell::Plain, 1, RnnDirection::Bidirectional);
    let y = [
        -0.9413756,
        0.5758624,
        -0.8899894,
        -0.04684067,
        0.7326943,
        -0.7745963,
        0.385941,
        -0.8263775,
        -0.5357471,
        -0.4439598,
        0.5947543,
        0.5468137,
        -0.03850412,
        -0.7300295,
        -0.7744092,
        -0.8298019,
        0.3583825,
        0.8749838,
        0.0,
        0.0,
        -0.876248,
        -0.6161344,
        0.0,
        0.0,
    ];
    assert_close(&outputs[0], &[3, 2, 2, 2], &y, "y");
}

/// Rows: kind of interpolation, transform, antialias, sizes, values.
#[test]
fn resizing() {
    use CoordinateTransform::{AlignCorners, Asymmetric, HalfPixel};
    let cubic = |a, exclude_outside| ResizeMode::Cubic { a, exclude_outside };
    let floor = ResizeMode::Nearest(NearestMode::Floor);
    type Row = (ResizeMode, CoordinateTransform, bool, [usize; 2], &'static [f64]);
    let rows: [Row; 6] = [
        (
            floor,
            Asymmetric,
            false,
            [5, 2],
            &[0.0, -0.75, 0.0, -0.75, -1.5, 2.0, -1.5, 2.0, 1.25, 0.5],
        ),
        (
            ResizeMode::Linear,
            HalfPixel,
            false,
            [2, 6],
            &[
                -0.375, 0.5, 1.135417, 0.1770835, 0.28125, 0.625, 0.5625, -0.15625, -0.5833334,
                0.5833333, -0.375, -1.625,
            ],
        ),
        (
            ResizeMode::Linear,
            AlignCorners,
            false,
            [5, 3],
            &[
                0.0, 0.5, 1.0, -0.75, 0.8125, 0.25, -1.5, 1.125, -0.5, -0.125, 0.375, -1.25, 1.25,
                -0.375, -2.0,
            ],
        ),
        (
            cubic(-0.75, false),
            HalfPixel,
            false,
            [3, 6],
            &[
                -0.1519098, 1.109375, 1.512732, -0.5127313, -0.109375, 1.151909, -1.65191,
                -0.7890625, 0.6964697, 1.996238, 0.9140625, -0.7170134, 1.467015, -0.1640625,
                -1.172455, 0.4224532, -0.5859375, -2.217014,
            ],
        ),
        (
            cubic(-0.5, true),
            HalfPixel,
            false,
            [3, 6],
            &[
                -0.1151311,
                0.9705883,
                1.530092,
                -0.5300925,
                0.02941179,
                1.115132,
                -1.615131,
                -0.7794118,
                0.5908561,
                1.954283,
                0.7794118,
                -0.6644737,
                1.414473,
                -0.02941176,
                -1.155092,
                0.4050924,
                -0.7205883,
                -2.164474,
            ],
        ),
        (ResizeMode::Linear, HalfPixel, true, [2, 2], &[0.2395833, 0.46875, 0.01041666, -0.46875]),
    ];
    for (mode, transform, antialias, [height, width], expected) in rows {
        let op = Op::Resize(Box::new(ResizeAttrs {
            sizes: [1, 1, height, width].map(Dim::from).to_vec(),
            scales: vec![None; 4],
            mode,
            transform,
            roi: Vec::new(),
            extrapolation: 0.0,
            antialias,
        }));
        let x = pattern(&[1, 1, 3, 4], 1);
        check_close(&op, &[Some(&x)], &[1, 1, height, width], expected);
    }
}
