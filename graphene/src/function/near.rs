//! How far a function's value may be from the exact one, computed in single precision from operands that are themselves
//! off.

use super::{Function, Node, Step};
use crate::kernel::{Binary, Unary};

/// Half a unit in the last place of single precision, relative.
pub const SINGLE: f64 = 1.0 / 16_777_216.0;

/// A value, and the most that what a kernel has for it is off.
pub type Near = (f64, f64);

/// Who computes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum By {
    /// The simulator: every step's exact value is rounded once.
    Simulator,
    /// A GPU: functions are off by what their text promises ([`Unary::units`], [`Binary::units`]).
    Device,
}

/// Each output of a function of such values.
///
/// A step's error is how far the exact function moves between the ends of its operands' ranges, where it is taken as
/// monotone in each, plus its own: of the simulator 2⁻²⁴ of its value. Sums of products count twice, as a compiler may
/// fuse them or not. A rounding to a type moves by 2⁻¹¹ or 2⁻⁸ of the value.
pub fn propagate(function: &Function, inputs: &[Near], by: By) -> Vec<Near> {
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
            let end = |(i, near): (usize, &Near)| {
                near.0 + if corner >> i & 1 == 0 { near.1 } else { -near.1 }
            };
            let at: Vec<f64> = of.iter().enumerate().map(end).collect();
            error = error.max((exact(&at) - value).abs());
        }
        let rounded = |units: f64| 2.0 * units * SINGLE * (value.abs() + error);
        let own = match (step, by) {
            (Step::Input(input), _) => inputs[*input].1,
            (Step::Constant(_), _) => SINGLE * value.abs(),
            (Step::Round(scalar, _), _) => {
                (scalar.round(value) - value).abs() + scalar.unit() * value.abs()
            }
            (Step::Unary(op, _), By::Device) => rounded(op.units(middle[0])) + op.least(),
            (Step::Binary(op, ..), By::Device) => rounded(op.units()),
            (Step::Unary(..) | Step::Binary(..) | Step::Select(..), _) => rounded(0.5),
        };
        values.push((value, error + own));
    }
    function.outputs().iter().map(|output| values[output.index()]).collect()
}

impl Unary {
    /// The most that the function's text is off at `x`, in units in the last place of its value in single precision.
    ///
    /// Of CUDA's library: what the CUDA programming guide says of that name. Of fast forms: e⁻ˣ is off by 2 + 1.16·|x|
    /// units, which hardly matters to 1 + e⁻ˣ for x > 0, and a quotient by 2.
    pub fn units(self, x: f64) -> f64 {
        match self {
            Unary::Neg
            | Unary::Abs
            | Unary::Sign
            | Unary::Rcp
            | Unary::Sqrt
            | Unary::Floor
            | Unary::Ceil
            | Unary::Round
            | Unary::Relu
            | Unary::IsNan
            | Unary::Tf32 => 0.5,
            Unary::Exp | Unary::Log | Unary::Log1p | Unary::Expm1 => 1.0,
            Unary::Exp2 | Unary::Rsqrt | Unary::Sin | Unary::Cos | Unary::Tanh | Unary::Erf => 2.0,
            Unary::Tan
            | Unary::Asin
            | Unary::Acos
            | Unary::Atan
            | Unary::Sinh
            | Unary::Cosh
            | Unary::Asinh
            | Unary::Acosh
            | Unary::Atanh => 4.0,
            Unary::Sigmoid | Unary::Silu if x > 0.0 => 5.0,
            Unary::Sigmoid | Unary::Silu => 5.0 + 1.16 * x.abs(),
            Unary::Gelu => f64::max(8.0, 2.0 * x.min(0.0).powi(2)),
            // 2⁻¹³·⁷, where it is not small.
            Unary::GeluHalf => 1280.0,
        }
    }

    /// What the function's text may be off by where its value is small: what is smaller than a normal number may be flushed
    /// to 0, and a fast form may be exact only down to what halves can tell from it.
    fn least(self) -> f64 {
        if self == Unary::GeluHalf { 2f64.powi(-25) } else { f64::from(f32::MIN_POSITIVE) }
    }
}

impl Binary {
    /// The most that the function's text is off, in units in the last place of its value in single precision.
    pub fn units(self) -> f64 {
        if self == Binary::Pow { 8.0 } else { 0.5 }
    }
}

#[cfg(test)]
mod tests {
    use super::{By, propagate};
    use crate::function::Function;
    use crate::kernel::Unary;

    #[test]
    fn errors_grow_where_values_cancel() {
        let [x, y] = [0, 1].map(Function::input);
        let (value, error) = propagate(&(x - y), &[(1.0, 1e-3), (0.999, 1e-3)], By::Simulator)[0];
        assert!((value - 0.001).abs() < 1e-12 && (2e-3..2.1e-3).contains(&error), "{error}");
    }

    #[test]
    fn a_device_is_off_by_more_than_a_simulator() {
        let function = Function::identity().unary(Unary::Gelu);
        let of = |by| propagate(&function, &[(0.5, 0.0)], by)[0];
        let (simulated, there) = (of(By::Simulator), of(By::Device));
        assert_eq!(simulated.0, there.0);
        assert!((15.9..16.1).contains(&(there.1 / simulated.1)), "{there:?} {simulated:?}");
    }
}
