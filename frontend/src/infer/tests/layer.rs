//! Normalisations, attention, recurrent layers and interpolation.

use super::{check, dims};
use crate::op::{
    AttentionAttrs, CoordinateTransform, Op, ResizeAttrs, ResizeMode, RnnAttrs, RnnCell,
    RnnDirection, Unary,
};

#[test]
fn normalisations() {
    let softmax = |axis| Op::Softmax { axis, log: false };
    let layer = |axis| Op::LayerNorm { axis, epsilon: 1e-5 };
    let rms = |axis| Op::RmsNorm { axis, epsilon: 1e-5 };
    let rows = [
        (softmax(1), "f16[b, s]", "f16[b, s]"),
        (softmax(2), "f16[b, s]", "!Axis"),
        (softmax(0), "i32[4]", "!DType"),
        (layer(2), "f16[b, s, 8]; f16[8]; f16[8]", "f16[b, s, 8]; f32[b, s, 1]; f32[b, s, 1]"),
        (layer(1), "f64[2, 3, 8]; -; f64[1]", "f64[2, 3, 8]; f64[2, 1, 1]; f64[2, 1, 1]"),
        (layer(0), "f32[4]", "f32[4]; f32[1]; f32[1]"),
        (layer(2), "f32[b, s, 8]; f32[s, 8]", "!Broadcast"),
        (layer(2), "f32[b, s, 8]; f32[7]", "!Broadcast"),
        (layer(2), "f16[b, s, 8]; f32[8]", "!DType"),
        (layer(3), "f32[b, s, 8]", "!Axis"),
        (rms(1), "f32[b, 8]; f32[8]", "f32[b, 8]"),
        (rms(1), "f32[b, 8]; f32[8]; f32[8]", "!Arity"),
    ];
    for (op, inputs, expected) in rows {
        check(&op, inputs, expected);
    }
}

#[test]
fn attention() {
    let rows = [
        ("f16[b, 12, s, 64]; f16[b, 12, t, 64]; f16[b, 12, t, 32]", "f16[b, 12, s, 32]"),
        (
            "f16[b, 12, s, 64]; f16[b, 4, t, 64]; f16[b, 4, t, 64]; bool[b, 1, 1, t]",
            "f16[b, 12, s, 64]",
        ),
        ("f16[b, 12, s, 64]; f16[b, 4, s, 64]; f16[b, 4, s, 64]; f32[s, s]", "f16[b, 12, s, 64]"),
        ("f16[b, 2*g, s, 64]; f16[b, g, t, 64]; f16[b, g, t, 64]", "f16[b, 2*g, s, 64]"),
        ("f16[b, h, s, 64]; f16[b, g, t, 64]; f16[b, g, t, 64]", "!Unresolved"),
        ("f16[b, 12, s, 64]; f16[b, 5, t, 64]; f16[b, 5, t, 64]", "!Dims"),
        ("f16[b, 12, s, 64]; f16[b, 0, t, 64]; f16[b, 0, t, 64]", "!Dims"),
        ("f16[b, h, s, 64]; f16[b, 0, t, 64]; f16[b, 0, t, 64]", "!Dims"),
        ("f16[b, h, s, 64]; f16[b, 4, t, 64]; f16[b, 4, t, 64]", "!Unresolved"),
        ("f16[b, 4*h, s, 64]; f16[b, 4, t, 64]; f16[b, 4, t, 64]", "f16[b, 4*h, s, 64]"),
        ("f16[b, 12, s, 64]; f16[b, 12, t, 32]; f16[b, 12, t, 64]", "!Dims"),
        ("f16[b, 12, s, 64]; f16[b, 12, t, 64]; f16[b, 12, u, 64]", "!Unresolved"),
        ("f16[b, 12, s, 64]; f16[b, 12, t, 64]; f16[b, 12, t, 64]; bool[3, 1, 1]", "!Broadcast"),
        ("f16[b, 12, s, 64]; f16[b, 12, t, 64]; f16[b, 12, t, 64]; i64[1]", "!DType"),
        ("f16[b, 12, s]; f16[b, 12, t]; f16[b, 12, t]", "!Rank"),
        ("f16[b, 12, s, 64]; f16[b, 12, t, 64]", "!Arity"),
    ];
    for (inputs, expected) in rows {
        let attrs = AttentionAttrs {
            scale: 0.125,
            causal: false,
            softcap: 0.0,
            guarded: false,
            fill: f32::NEG_INFINITY,
        };
        check(&Op::Attention(attrs), inputs, expected);
    }
}

#[test]
fn recurrent() {
    let rnn = |cell, direction, functions| {
        let activations = vec![Unary::Tanh; functions];
        Op::Rnn(RnnAttrs { cell, direction, hidden: 4, activations, clip: None })
    };
    let lstm = || rnn(RnnCell::Lstm { input_forget: false }, RnnDirection::Forward, 3);
    let gru = || rnn(RnnCell::Gru { linear_before_reset: true }, RnnDirection::Bidirectional, 4);
    let plain = || rnn(RnnCell::Plain, RnnDirection::Reverse, 1);
    let rows = [
        (
            lstm(),
            "f32[s, b, 3]; f32[1, 16, 3]; f32[1, 16, 4]; f32[1, 32]; i32[b]; -; f32[1, b, 4]; f32[1, 12]",
            "f32[s, 1, b, 4]; f32[1, b, 4]; f32[1, b, 4]",
        ),
        (lstm(), "f32[s, b, 3]; f32[1, 16, 3]; f32[1, 16, 5]", "!Dims"),
        (lstm(), "f32[s, b, 3]; f32[1, 16, 3]; f32[1, 16, 4]; f32[1, 16]", "!Dims"),
        (lstm(), "f32[s, b, 3]; f32[1, 16, 3]; f32[1, 16, 4]; -; i64[b]", "!DType"),
        (lstm(), "f32[s, b, 3]; f32[1, 16, 3]; f32[1, 16, 4]; -; -; f32[b, 4]", "!Rank"),
        (
            gru(),
            "f16[s, b, 3]; f16[2, 12, 3]; f16[2, 12, 4]; f16[2, 24]; i32[b]; f16[2, b, 4]",
            "f16[s, 2, b, 4]; f16[2, b, 4]",
        ),
        (gru(), "f16[s, b, 3]; f16[2, 12, 3]; f16[2, 12, 4]; -; -; -; f16[2, b, 4]", "!Arity"),
        (plain(), "f32[s, b, 3]; f32[1, 4, 3]; f32[1, 4, 4]", "f32[s, 1, b, 4]; f32[1, b, 4]"),
        (plain(), "f32[s, b, 3]; f32[2, 4, 3]; f32[1, 4, 4]", "!Dims"),
        (
            rnn(RnnCell::Plain, RnnDirection::Bidirectional, 1),
            "f32[s, b, 3]; f32[2, 4, 3]; f32[2, 4, 4]",
            "!Attribute",
        ),
    ];
    for (op, inputs, expected) in rows {
        check(&op, inputs, expected);
    }
}

#[test]
fn resize() {
    let resize = |sizes, roi: usize, transform| {
        Op::Resize(Box::new(ResizeAttrs {
            scales: vec![None; dims(sizes).len()],
            sizes: dims(sizes),
            mode: ResizeMode::Linear,
            transform,
            roi: vec![(0.0, 1.0); roi],
            extrapolation: 0.0,
            antialias: false,
        }))
    };
    let rows = [
        (resize("n, 3, 2*h", 0, CoordinateTransform::HalfPixel), "f32[n, 3, h]", "f32[n, 3, 2*h]"),
        (resize("n, 3", 0, CoordinateTransform::HalfPixel), "f32[n, 3, h]", "!Attribute"),
        (resize("4", 0, CoordinateTransform::CropAndResize), "f32[2]", "!Attribute"),
        (resize("4", 1, CoordinateTransform::CropAndResize), "f32[2]", "f32[4]"),
        (resize("4", 0, CoordinateTransform::HalfPixel), "f32[0]", "!Empty"),
        (resize("4", 0, CoordinateTransform::HalfPixel), "bool[2]", "!DType"),
    ];
    for (op, inputs, expected) in rows {
        check(&op, inputs, expected);
    }
}
