//! The small models: MLP, LSTM, LSTM cell, LayerNorm and attention alone.

use crate::attention::transpose;
use crate::blocks::{Entry, Module, activate, gemm, layer_norm, linear, matrix, shape_of, size};
use crate::builder::{Attr, Builder, Dim, FLOAT};
use crate::error::ZooError;
use crate::options::Activation;
use crate::weights::Init;

const BATCH: Dim = Dim::Named("batch");
const SEQUENCE: Dim = Dim::Named("sequence");
/// LayerNorm's epsilon in torch.
const EPSILON: f32 = 1e-5;

/// `depth` linear layers of `width`, each followed by the activation: `x` to `y`, `[batch, width]`.
pub(crate) fn mlp(
    b: &mut Builder,
    depth: usize,
    width: usize,
    activation: Activation,
) -> Result<(), ZooError> {
    b.input("x", FLOAT, &[BATCH, Dim::Size(width)]);
    // With this variance a deep stack neither fades nor grows (He et al., 2015).
    let init = Init { mean: 0.0, std: (2.0 / width as f32).sqrt() };
    let net = Module::root().child("net");
    let mut x = "x".to_owned();
    for layer in 0..depth {
        // torch numbers a Sequential's modules, activations included.
        let linear = net.child(&format!("net.{}", 2 * layer));
        let linear = Module { path: format!("net.{}", 2 * layer), ..linear };
        x = gemm(b, &linear, &x, (width, width), init)?;
        x = activate(b, &format!("/net/net.{}", 2 * layer + 1), &x, activation);
    }
    b.output(&x, "y", &[BATCH, Dim::Size(width)]);
    Ok(())
}

/// An LSTM over `x`, `[time, batch, input]`, from zero states, and a linear layer on its outputs:
/// `y` `[time, batch, output]`, and the last states `hidden` and `cell`, `[1, batch, hidden]`.
pub(crate) fn lstm(
    b: &mut Builder,
    input: usize,
    hidden: usize,
    output: usize,
) -> Result<(), ZooError> {
    const TIME: Dim = Dim::Named("time");
    b.input("x", FLOAT, &[TIME, BATCH, Dim::Size(input)]);
    let scope = "/lstm";
    let batch = size(b, scope, "x", 1);
    let shape = [Entry::Known(1), Entry::Scalar(&batch), Entry::Known(hidden as i64)];
    let shape = shape_of(b, scope, &shape);
    let zeros = Attr::FloatTensor("value", &[1], 0.0);
    let zeros = b.op(scope, "ConstantOfShape", &[&shape], &[zeros]);
    // The standard deviation of torch's uniform initialisation, 1/√(3·hidden).
    let init = Init { mean: 0.0, std: (3.0 * hidden as f32).sqrt().recip() };
    // ONNX's gate order differs from torch's, so the exporter folds all three weights.
    let w = b.folded_weight("lstm.weight_ih_l0", "LSTM_W", &[1, 4 * hidden, input], init)?;
    let r = b.folded_weight("lstm.weight_hh_l0", "LSTM_R", &[1, 4 * hidden, hidden], init)?;
    let bias = b.folded_weight("lstm.bias_l0", "LSTM_B", &[1, 8 * hidden], init)?;
    let inputs = ["x", w.as_str(), &r, &bias, "", &zeros, &zeros];
    let size = Attr::Int("hidden_size", hidden as i64);
    let [states, last, cell] = b.op_with(scope, "LSTM", &inputs, &[size]);
    let states = b.squeeze(scope, &states, 1);
    let y = linear(b, &Module::root().child("projection"), &states, (hidden, output))?;
    b.output(&y, "y", &[TIME, BATCH, Dim::Size(output)]);
    b.output(&last, "hidden", &[Dim::Size(1), BATCH, Dim::Size(hidden)]);
    b.output(&cell, "cell", &[Dim::Size(1), BATCH, Dim::Size(hidden)]);
    Ok(())
}

/// `relu(x·W + h·U + b)` on `x` and `h`, `[batch, width]`, as `y`.
pub(crate) fn lstm_cell(b: &mut Builder, width: usize) -> Result<(), ZooError> {
    let dims = [BATCH, Dim::Size(width)];
    b.input("x", FLOAT, &dims);
    b.input("h", FLOAT, &dims);
    let from_x = gemm(b, &Module::root().child("w"), "x", (width, width), matrix(width))?;
    let u = b.matmul_weight("u.weight", [width, width], matrix(width))?;
    let from_h = b.op("/u", "MatMul", &["h", &u], &[]);
    let sum = b.op("", "Add", &[&from_x, &from_h], &[]);
    let y = b.op("", "Relu", &[&sum], &[]);
    b.output(&y, "y", &dims);
    Ok(())
}

/// LayerNorm of `x`, `[batch, sequence, width]`, as `y`.
pub(crate) fn layer_norm_alone(b: &mut Builder, width: usize) -> Result<(), ZooError> {
    let dims = [BATCH, SEQUENCE, Dim::Size(width)];
    b.input("x", FLOAT, &dims);
    let y = layer_norm(b, &Module::root(), "x", width, EPSILON)?;
    b.output(&y, "y", &dims);
    Ok(())
}

/// `softmax(q·kᵀ/√head + mask)·v` on `[batch, heads, sequence, head]` as `y`, the mask
/// `[batch, 1, 1, sequence]`.
pub(crate) fn attention(b: &mut Builder, heads: usize, head: usize) {
    let dims = [BATCH, Dim::Size(heads), SEQUENCE, Dim::Size(head)];
    for name in ["q", "k", "v"] {
        b.input(name, FLOAT, &dims);
    }
    b.input("mask", FLOAT, &[BATCH, Dim::Size(1), Dim::Size(1), SEQUENCE]);
    let scope = "";
    let key = transpose(b, scope, "k", &[0, 1, 3, 2]);
    let scores = b.op(scope, "MatMul", &["q", &key], &[]);
    let root = b.float(scope, (head as f32).sqrt());
    let scaled = b.op(scope, "Div", &[&scores, &root], &[]);
    let masked = b.op(scope, "Add", &[&scaled, "mask"], &[]);
    let weights = b.softmax(scope, &masked, 4);
    let y = b.op(scope, "MatMul", &[&weights, "v"], &[]);
    b.output(&y, "y", &dims);
}
