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
            (Step::Unary(op, _), By::Device) => rounded(op.units(of[0].0)) + op.least(),
            (Step::Binary(op, ..), By::Device) => rounded(op.units()),
            (Step::Unary(..) | Step::Binary(..) | Step::Select(..), _) => rounded(0.5),
        };
        values.push((value, error + own));
    }
    function.outputs().iter().map(|output| values[output.index()]).collect()
}

/// What is exact of such values, and how far it moves between the ends of their ranges.
pub(crate) fn moves(of: &[Near], exact: impl Fn(&[f64]) -> f64) -> Near {
    // No step has more operands than three.
    let mut at = [0.0; 3];
    let at = &mut at[..of.len()];
    let mut moved = |shift: &dyn Fn(usize) -> f64| {
        at.iter_mut().zip(of).enumerate().for_each(|(i, (at, near))| *at = near.0 + shift(i));
        exact(at)
    };
    let value = moved(&|_| -0.0);
    // Of -0, what is exact may still be on either side.
    let still = of.iter().all(|near| near.1 == 0.0 && near.0.to_bits() != (-0.0_f64).to_bits());
    let corners = if still { 0 } else { 1_usize << of.len() };
    let error = (0..corners).fold(0.0_f64, |error, corner| {
        let end = |i: usize| if corner >> i & 1 == 0 { of[i].1 } else { -of[i].1 };
        error.max((moved(&end) - value).abs())
    });
    (value, error)
}

impl Unary {
    /// What the function's text may be off by where its value is small: what is smaller than a normal number may be flushed
    /// to 0, and a fast form may be exact only down to what fp16 can tell from it.
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
