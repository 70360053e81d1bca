//! How far a function's value may be from the exact one, computed in single precision from operands that are themselves
//! off. Kernels on a device are checked by it too.

use graphene_ir::function::near::{Near, SINGLE, moves};
use graphene_ir::function::{Function, Node, Step};
use graphene_ir::kernel::{Binary, Unary};

/// Who computes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(dead_code)] // Each of those who use this file is one of them.
pub(crate) enum By {
    /// The simulator: every step's exact value is rounded once.
    Simulator,
    /// A GPU: functions are off by what their text promises ([`Unary::units`]).
    Device,
}

/// Each output of a function of such values.
///
/// A step's error is how far the exact function moves between the ends of its operands' ranges, where it is taken as
/// monotone in each, plus its own: of the simulator 2⁻²⁴ of its value. Sums of products count twice, as a compiler may
/// fuse them or not. A rounding to a type moves by 2⁻¹¹ or 2⁻⁸ of the value.
pub(crate) fn propagate(function: &Function, inputs: &[Near], by: By) -> Vec<Near> {
    let mut values: Vec<Near> = Vec::new();
    for step in function.steps() {
        let of: Vec<Near> = step.operands().map(|value| values[value.index()]).collect();
        let exact = |x: &[f64]| match step {
            Step::Input(input) => inputs[*input].0,
            Step::Round(..) => x[0],
            _ => step.value(&[], x),
        };
        let (value, error) = moves(&of, exact);
        let rounded = |units: f64| 2.0 * units * SINGLE * (value.abs() + error);
        let own = match (step, by) {
            (Step::Input(input), _) => inputs[*input].1,
            (Step::Constant(_), _) => SINGLE * value.abs(),
            (Step::Round(scalar, _), _) => {
                (scalar.round(value) - value).abs() + scalar.unit() * value.abs()
            }
            (Step::Unary(op, _), By::Device) => rounded(op.units(of[0].0)) + least(*op),
            (Step::Binary(Binary::Pow, ..), By::Device) => rounded(8.0),
            (Step::Unary(..) | Step::Binary(..) | Step::Select(..), _) => rounded(0.5),
        };
        values.push((value, error + own));
    }
    function.outputs().iter().map(|output| values[output.index()]).collect()
}

/// What a function's text may be off by where its value is small: what is smaller than a normal number may be flushed to 0,
/// and a fast form may be exact only down to what fp16 can tell from it.
fn least(op: Unary) -> f64 {
    if op == Unary::GeluHalf { 2f64.powi(-25) } else { f64::from(f32::MIN_POSITIVE) }
}
