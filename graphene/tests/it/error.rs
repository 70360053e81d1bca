//! How far a function's value may be from the exact one, computed in single precision from operands
//! that are themselves off.

use graphene_ir::function::{Function, Step};

/// Half a unit in the last place of single precision, relative.
pub(crate) const SINGLE: f64 = 1.0 / 16_777_216.0;

/// A value, and the most that what a kernel has for it is off.
pub(crate) type Near = (f64, f64);

/// Each output of a function of such values.
///
/// A step's error is how far the exact function moves between the ends of its operands' ranges,
/// where it is taken as monotone in each, plus the rounding of its own value: 2⁻²⁴ of it. Sums of
/// products count twice, as a compiler may fuse them or not. A rounding to a type moves by 2⁻¹¹ or
/// 2⁻⁸ of the value.
pub(crate) fn propagate(function: &Function, inputs: &[Near]) -> Vec<Near> {
    let mut values: Vec<Near> = Vec::new();
    for step in function.steps() {
        let of: Vec<Near> = step.operands().map(|value| values[value.index()]).collect();
        let exact = |x: &[f64]| match step {
            Step::Input(input) => inputs[*input].0,
            Step::Constant(number) => number.0,
            Step::Unary(op, _) => op.value(x[0]),
            Step::Binary(op, ..) => op.value(x[0], x[1]),
            Step::Select(..) => {
                if x[0] == 0.0 {
                    x[2]
                } else {
                    x[1]
                }
            }
            Step::Round(..) => x[0],
        };
        let middle: Vec<f64> = of.iter().map(|near| near.0).collect();
        let value = exact(&middle);
        let mut error: f64 = 0.0;
        for corner in 0..1_usize << of.len() {
            let at: Vec<f64> = of
                .iter()
                .enumerate()
                .map(|(i, near)| near.0 + if corner >> i & 1 == 0 { near.1 } else { -near.1 })
                .collect();
            error = error.max((exact(&at) - value).abs());
        }
        let own = match step {
            Step::Input(input) => inputs[*input].1,
            Step::Constant(_) => SINGLE * value.abs(),
            Step::Round(scalar, _) => {
                (scalar.round(value) - value).abs() + unit(*scalar) * value.abs()
            }
            Step::Unary(..) | Step::Binary(..) | Step::Select(..) => SINGLE * (value.abs() + error),
        };
        values.push((value, error + own));
    }
    function.outputs().iter().map(|output| values[output.index()]).collect()
}

/// Half a unit in the last place of a type, relative.
pub(crate) fn unit(scalar: graphene_ir::tensor::Scalar) -> f64 {
    use graphene_ir::tensor::Scalar;
    match scalar {
        Scalar::F16 => 2f64.powi(-11),
        Scalar::Bf16 => 2f64.powi(-8),
        _ => SINGLE,
    }
}
