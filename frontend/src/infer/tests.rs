//! Rows: an operation, its input types, and its output types or the name of the error.
//!
//! Types are separated by `;`, `-` is an optional input left out, `!Name` an error.

use super::infer;
use crate::dtype::DType;
use crate::op::Op;
use crate::types::TensorType;

mod control;
mod layer;
mod matmul;
mod movement;
mod pointwise;
mod reduce;

/// Infers and compares, whatever the row says.
pub(super) fn check(op: &Op, inputs: &str, expected: &str) {
    let types: Vec<Option<TensorType>> = inputs
        .split(';')
        .map(str::trim)
        .filter(|text| !text.is_empty())
        .map(|text| (text != "-").then(|| text.parse().unwrap()))
        .collect();
    let types: Vec<_> = types.iter().map(Option::as_ref).collect();
    let actual = match infer(op, &types) {
        Ok(outputs) => outputs.iter().map(TensorType::to_string).collect::<Vec<_>>().join("; "),
        Err(error) => {
            assert!(!error.to_string().is_empty());
            let debug = format!("!{error:?}");
            debug.split([' ', '(']).next().unwrap().to_owned()
        }
    };
    assert_eq!(actual, expected, "{} of {inputs}", op.name());
}

pub(super) fn dims(text: &str) -> Vec<crate::dim::Dim> {
    format!("f32[{text}]").parse::<TensorType>().unwrap().shape
}

#[test]
fn sources() {
    let rows = [
        (Op::Input, "", "!Input"),
        (Op::Iota("batch + 1".parse().unwrap()), "", "i64[batch + 1]"),
        (Op::Iota("-1".parse().unwrap()), "", "!Negative"),
        (Op::Iota("4".parse().unwrap()), "f32[]", "!Arity"),
        (Op::Size("batch".parse().unwrap()), "", "i64[]"),
        (
            Op::Constant(crate::tensor::Tensor::zeros(DType::F16, vec![2, 0]).unwrap()),
            "",
            "f16[2, 0]",
        ),
    ];
    for (op, inputs, expected) in rows {
        check(&op, inputs, expected);
    }
}
