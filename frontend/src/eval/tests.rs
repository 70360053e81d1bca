//! Operations on small tensors against values known beforehand.

mod graphs;
mod layers;
mod matmuls;
mod movement;
mod pointwise;
mod reduce;
mod refusals;

use super::{EvalError, evaluate_op};
use crate::dim::Bindings;
use crate::dtype::DType;
use crate::op::Op;
use crate::tensor::{Element, Tensor};

fn tensor<T: Element>(shape: &[usize], values: &[T]) -> Tensor {
    Tensor::from_vec(shape.to_vec(), values.to_vec()).unwrap()
}

fn bools(shape: &[usize], values: &[u8]) -> Tensor {
    Tensor::from_bools(shape.to_vec(), values.iter().map(|&v| v != 0).collect()).unwrap()
}

/// Multiples of a quarter between -2 and 2 in no order.
fn pattern(shape: &[usize], seed: usize) -> Tensor {
    let count: usize = shape.iter().product();
    let values: Vec<f32> =
        (0..count).map(|i| ((i * 7 + seed * 5 + 3) % 17) as f32 / 4.0 - 2.0).collect();
    tensor(shape, &values)
}

fn run(op: &Op, inputs: &[&Tensor]) -> Result<Vec<Tensor>, EvalError> {
    let inputs: Vec<_> = inputs.iter().map(|&input| Some(input)).collect();
    evaluate_op(op, &inputs, &Bindings::new())
}

/// The outputs are these, bit by bit.
fn check_exact(op: &Op, inputs: &[&Tensor], expected: &[Tensor]) {
    let outputs = run(op, inputs).unwrap_or_else(|error| panic!("{}: {error}", op.name()));
    assert_eq!(outputs.len(), expected.len(), "{op:?}");
    for (output, expected) in outputs.iter().zip(expected) {
        assert_eq!(output.dtype(), expected.dtype(), "{op:?}");
        assert_eq!(output.shape(), expected.shape(), "{op:?}");
        assert_eq!(output.bytes(), expected.bytes(), "{op:?} {:?}", numbers(output));
    }
}

/// The first output has this shape and, to five digits, these values.
fn check_close(op: &Op, inputs: &[Option<&Tensor>], shape: &[usize], expected: &[f64]) {
    let outputs = evaluate_op(op, inputs, &Bindings::new());
    let outputs = outputs.unwrap_or_else(|error| panic!("{}: {error}", op.name()));
    assert_close(&outputs[0], shape, expected, op.name());
}

fn assert_close(output: &Tensor, shape: &[usize], expected: &[f64], what: &str) {
    assert_eq!(output.shape(), shape, "{what}");
    let actual = numbers(output);
    assert_eq!(actual.len(), expected.len(), "{what}");
    for (a, b) in actual.iter().zip(expected) {
        let close = (a - b).abs() <= 1e-5 * (1.0 + b.abs()) || a == b || (a.is_nan() && b.is_nan());
        assert!(close, "{what}: {actual:?} instead of {expected:?}");
    }
}

fn numbers(tensor: &Tensor) -> Vec<f64> {
    super::number::reals(tensor).unwrap()
}

fn as_type(dtype: DType, shape: &[usize], values: &[f64]) -> Tensor {
    super::number::from_reals(dtype, shape.to_vec(), values, true).unwrap()
}
