//! Functions of numbers: their values, and their text in single precision.
//!
//! Where the text is a function of CUDA's library, its error is what the CUDA programming guide says
//! of that name, in units in the last place: 1 for `expf`, `logf`, `log1pf` and `expm1f`, 2 for `erff`,
//! `tanhf`, `sinf`, `cosf`, `rsqrtf` and the approximate 2ˣ, 4 for the other trigonometric and hyperbolic ones,
//! 8 for `powf`; [`Unary::units`] has it as numbers. Sums, products, quotients, roots and what is exact anyway are rounded once.

use crate::kernel::{Binary, Unary};

impl Unary {
    /// The function's value.
    pub fn value(self, x: f64) -> f64 {
        match self {
            Unary::Neg => -x,
            Unary::Abs => x.abs(),
            Unary::Sign if x == 0.0 || x.is_nan() => x,
            Unary::Sign => x.signum(),
            Unary::Exp => x.exp(),
            Unary::Exp2 => x.exp2(),
            Unary::Log => x.ln(),
            Unary::Rcp => 1.0 / x,
            Unary::Rsqrt => 1.0 / x.sqrt(),
            Unary::Sqrt => x.sqrt(),
            Unary::Floor => x.floor(),
            Unary::Ceil => x.ceil(),
            Unary::Round => x.round_ties_even(),
            Unary::Sin => x.sin(),
            Unary::Cos => x.cos(),
            Unary::Tan => x.tan(),
            Unary::Asin => x.asin(),
            Unary::Acos => x.acos(),
            Unary::Atan => x.atan(),
            Unary::Sinh => x.sinh(),
            Unary::Cosh => x.cosh(),
            Unary::Tanh => x.tanh(),
            Unary::Asinh => x.asinh(),
            Unary::Acosh => x.acosh(),
            Unary::Atanh => x.atanh(),
            Unary::Erf => libm::erf(x),
            Unary::Sigmoid => 1.0 / (1.0 + (-x).exp()),
            Unary::Log1p => x.ln_1p(),
            Unary::Expm1 => x.exp_m1(),
            Unary::Relu if x < 0.0 => 0.0,
            Unary::Relu => x,
            Unary::Gelu | Unary::GeluHalf => {
                let tail = libm::erfc(-x * std::f64::consts::FRAC_1_SQRT_2);
                if tail == 0.0 { 0.0 } else { 0.5 * x * tail }
            }
            Unary::Silu => x / (1.0 + (-x).exp()),
            Unary::IsNan => f64::from(u8::from(x.is_nan())),
            Unary::Tf32 => tf32(x),
        }
    }
}

impl Binary {
    /// The function's value.
    pub fn value(self, x: f64, y: f64) -> f64 {
        let truth = |holds: bool| f64::from(u8::from(holds));
        match self {
            Binary::Add => x + y,
            Binary::Sub => x - y,
            Binary::Mul => x * y,
            Binary::Div => x / y,
            Binary::Max => x.max(y),
            Binary::Min => x.min(y),
            Binary::MaxNan | Binary::MinNan if x.is_nan() => x,
            Binary::MaxNan => {
                if x > y {
                    x
                } else {
                    y
                }
            }
            Binary::MinNan => {
                if x < y {
                    x
                } else {
                    y
                }
            }
            Binary::Pow => x.powf(y),
            Binary::Rem => x % y,
            Binary::Less => truth(x < y),
            Binary::AtMost => truth(x <= y),
            Binary::Equal => truth(x == y),
            Binary::Unequal => truth(x != y),
        }
    }

    /// The number that changes nothing: a fold begins with it.
    pub fn neutral(self) -> Option<f64> {
        match self {
            Binary::Add => Some(0.0),
            Binary::Mul => Some(1.0),
            Binary::Max | Binary::MaxNan => Some(f64::NEG_INFINITY),
            Binary::Min | Binary::MinNan => Some(f64::INFINITY),
            Binary::Sub
            | Binary::Div
            | Binary::Pow
            | Binary::Rem
            | Binary::Less
            | Binary::AtMost
            | Binary::Equal
            | Binary::Unequal => None,
        }
    }
}

/// To the nearest of those numbers in single precision whose lowest 13 bits are 0, ties away from 0.
fn tf32(x: f64) -> f64 {
    let single = x as f32;
    if !single.is_finite() {
        return f64::from(single);
    }
    f64::from(f32::from_bits((single.to_bits() + 0x1000) & !0x1fff))
}

/// The value in CUDA C++; `x` is the name of a register.
pub(super) fn unary_text(op: Unary, x: &str) -> String {
    match op {
        Unary::Neg => format!("-{x}"),
        Unary::Abs => format!("fabsf({x})"),
        Unary::Sign => format!("{x} > 0.0f ? 1.0f : {x} < 0.0f ? -1.0f : {x}"),
        Unary::Exp => format!("expf({x})"),
        Unary::Exp2 => format!("exp2_approx({x})"),
        Unary::Log => format!("logf({x})"),
        Unary::Rcp => format!("__frcp_rn({x})"),
        Unary::Rsqrt => format!("rsqrtf({x})"),
        Unary::Sqrt => format!("__fsqrt_rn({x})"),
        Unary::Floor => format!("floorf({x})"),
        Unary::Ceil => format!("ceilf({x})"),
        Unary::Round => format!("rintf({x})"),
        Unary::Sin => format!("sinf({x})"),
        Unary::Cos => format!("cosf({x})"),
        Unary::Tan => format!("tanf({x})"),
        Unary::Asin => format!("asinf({x})"),
        Unary::Acos => format!("acosf({x})"),
        Unary::Atan => format!("atanf({x})"),
        Unary::Sinh => format!("sinhf({x})"),
        Unary::Cosh => format!("coshf({x})"),
        Unary::Tanh => format!("tanhf({x})"),
        Unary::Asinh => format!("asinhf({x})"),
        Unary::Acosh => format!("acoshf({x})"),
        Unary::Atanh => format!("atanhf({x})"),
        Unary::Erf => format!("erff({x})"),
        // By fast forms: e⁻ˣ in 2 + 1.16·|x| units in the last place, the quotient in 2. So the error
        // is 3 units for x > 0, which e⁻ˣ hardly matters to, and 5 + 1.16·|x| below; where e⁻ˣ exceeds
        // 2¹²⁶, the value is 0.
        Unary::Sigmoid => format!("__fdividef(1.0f, 1.0f + __expf(-{x}))"),
        Unary::Log1p => format!("log1pf({x})"),
        Unary::Expm1 => format!("expm1f({x})"),
        Unary::Relu => format!("{x} < 0.0f ? 0.0f : {x}"),
        // As it says where it is defined: 8 units in the last place for x > -3, and 2x² below.
        Unary::Gelu => format!("gelu({x})"),
        // Within 2⁻¹³·⁷ of it, relative to it, down to 2⁻²⁵.
        Unary::GeluHalf => format!("gelu_half({x})"),
        // As the sigmoid, by fast forms.
        Unary::Silu => format!("__fdividef({x}, 1.0f + __expf(-{x}))"),
        Unary::IsNan => format!("{x} != {x} ? 1.0f : 0.0f"),
        Unary::Tf32 => format!("to_tf32({x})"),
    }
}

/// The value in CUDA C++; `x` and `y` are names of registers.
pub(super) fn binary_text(op: Binary, x: &str, y: &str) -> String {
    let truth = |relation: &str| format!("{x} {relation} {y} ? 1.0f : 0.0f");
    match op {
        Binary::Add => format!("{x} + {y}"),
        Binary::Sub => format!("{x} - {y}"),
        Binary::Mul => format!("{x} * {y}"),
        Binary::Div => format!("__fdiv_rn({x}, {y})"),
        Binary::Max => format!("fmaxf({x}, {y})"),
        Binary::Min => format!("fminf({x}, {y})"),
        Binary::MaxNan => format!("{x} > {y} || {x} != {x} ? {x} : {y}"),
        Binary::MinNan => format!("{x} < {y} || {x} != {x} ? {x} : {y}"),
        Binary::Pow => format!("powf({x}, {y})"),
        Binary::Rem => format!("fmodf({x}, {y})"),
        Binary::Less => truth("<"),
        Binary::AtMost => truth("<="),
        Binary::Equal => truth("=="),
        Binary::Unequal => truth("!="),
    }
}

/// The value of integers of 64 bits in CUDA C++, which wraps; `None` if there is no such function.
pub(super) fn whole_unary_text(op: Unary, x: &str) -> Option<String> {
    match op {
        Unary::Neg => Some(format!("(long long)(0ull - (unsigned long long){x})")),
        Unary::Abs => Some(format!("{x} < 0 ? (long long)(0ull - (unsigned long long){x}) : {x}")),
        Unary::Sign => Some(format!("({x} > 0) - ({x} < 0)")),
        Unary::Relu => Some(format!("{x} < 0 ? 0 : {x}")),
        _ => None,
    }
}

/// Likewise of two integers.
pub(super) fn whole_binary_text(op: Binary, x: &str, y: &str) -> Option<String> {
    let wrapping =
        |sign: &str| format!("(long long)((unsigned long long){x} {sign} (unsigned long long){y})");
    let truth = |relation: &str| format!("{x} {relation} {y} ? 1 : 0");
    Some(match op {
        Binary::Add => wrapping("+"),
        Binary::Sub => wrapping("-"),
        Binary::Mul => wrapping("*"),
        Binary::Div => format!("{x} / {y}"),
        Binary::Rem => format!("{x} % {y}"),
        Binary::Max | Binary::MaxNan => format!("{x} > {y} ? {x} : {y}"),
        Binary::Min | Binary::MinNan => format!("{x} < {y} ? {x} : {y}"),
        Binary::Less => truth("<"),
        Binary::AtMost => truth("<="),
        Binary::Equal => truth("=="),
        Binary::Unequal => truth("!="),
        Binary::Pow => return None,
    })
}

/// A number in CUDA C++.
pub(super) fn float_text(value: f64) -> String {
    if value == f64::INFINITY {
        "__int_as_float(0x7f800000)".to_owned()
    } else if value == f64::NEG_INFINITY {
        "__int_as_float(0xff800000)".to_owned()
    } else {
        format!("{value:?}f")
    }
}
