//! Functions of numbers: their names, their values, and how exact their text in single precision is.
//!
//! Where the text is a function of CUDA's library, its error is what the CUDA programming guide says
//! of that name. Sums, quotients, roots, what is multiplied and what is exact anyway are rounded once.

use crate::named::named;

/// Functions of so many numbers, a row each: the name, the value, and what the last of the methods says. Their text in CUDA C++ is
/// in `atom/function.rs`.
macro_rules! functions {
    (
        $doc:literal $type:ident($($x:ident),*), $said:literal $last:ident($($at:ident)?) -> $result:ty;
        $($op:ident $name:literal $value:expr, $says:expr, $of:literal;)*
    ) => {
        named! {
            #[doc = $doc]
            pub enum $type { $(#[doc = $of] $op = $name,)* }
        }

        impl $type {
            /// The function's value.
            pub fn value(self, $($x: f64),*) -> f64 {
                match self { $($type::$op => $value,)* }
            }

            #[doc = $said]
            pub fn $last(self, $($at: f64)?) -> $result {
                match self { $($type::$op => $says,)* }
            }
        }
    };
}

functions! {
    "Functions of one number." Unary(x),
    "The most that the function's text is off at `x`, in units in the last place of its value in single precision." units(x) -> f64;
    Neg      "neg"       -x,                         0.5, "-x";
    Abs      "abs"       x.abs(),                    0.5, "|x|";
    Sign     "sign"      if x == 0.0 || x.is_nan() { x } else { x.signum() }, 0.5, "-1, 0 or 1; x itself where it is 0 or NaN";
    Exp      "exp"       x.exp(),                    1.0, "eˣ";
    Exp2     "exp2"      x.exp2(),                   2.0, "2ˣ";
    Log      "log"       x.ln(),                     1.0, "ln x";
    Rcp      "rcp"       1.0 / x,                    0.5, "1/x";
    Rsqrt    "rsqrt"     1.0 / x.sqrt(),             2.0, "1/√x";
    Sqrt     "sqrt"      x.sqrt(),                   0.5, "√x";
    Floor    "floor"     x.floor(),                  0.5, "⌊x⌋";
    Ceil     "ceil"      x.ceil(),                   0.5, "⌈x⌉";
    Round    "round"     x.round_ties_even(),        0.5, "To the nearest integer, ties to even.";
    Sin      "sin"       x.sin(),                    2.0, "sin x";
    Cos      "cos"       x.cos(),                    2.0, "cos x";
    Tan      "tan"       x.tan(),                    4.0, "tan x";
    Asin     "asin"      x.asin(),                   4.0, "The inverse sine.";
    Acos     "acos"      x.acos(),                   4.0, "The inverse cosine.";
    Atan     "atan"      x.atan(),                   4.0, "The inverse tangent.";
    Sinh     "sinh"      x.sinh(),                   4.0, "sinh x";
    Cosh     "cosh"      x.cosh(),                   4.0, "cosh x";
    Tanh     "tanh"      x.tanh(),                   2.0, "tanh x";
    Asinh    "asinh"     x.asinh(),                  4.0, "The inverse hyperbolic sine.";
    Acosh    "acosh"     x.acosh(),                  4.0, "The inverse hyperbolic cosine.";
    Atanh    "atanh"     x.atanh(),                  4.0, "The inverse hyperbolic tangent.";
    Erf      "erf"       libm::erf(x),               2.0, "The error function.";
    // By fast forms: e⁻ˣ in 2 + 1.16·|x| units in the last place, which hardly matters to 1 + e⁻ˣ for x > 0, the quotient
    // in 2. Where e⁻ˣ exceeds 2¹²⁶, the value is 0.
    Sigmoid  "sigmoid"   1.0 / (1.0 + (-x).exp()),   fast(x), "1/(1 + e⁻ˣ)";
    Log1p    "log1p"     x.ln_1p(),                  1.0, "ln(1 + x)";
    Expm1    "expm1"     x.exp_m1(),                 1.0, "eˣ - 1";
    Relu     "relu"      if x < 0.0 { 0.0 } else { x }, 0.5, "max(x, 0); NaN of NaN";
    // As it says where it is defined.
    Gelu     "gelu"      gelu(x),                    f64::max(8.0, 2.0 * x.min(0.0).powi(2)), "x·Φ(x), with the error function; at -∞ its limit, 0.";
    // Within 2⁻¹³·⁷ of it, relative to it, down to 2⁻²⁵.
    GeluHalf "gelu_half" gelu(x),                    1280.0, "The same, as exact as results of `f16` can tell, of which the smallest is 2⁻²⁴.";
    Silu     "silu"      x / (1.0 + (-x).exp()),     fast(x), "x/(1 + e⁻ˣ)";
    IsNan    "isnan"     truth(x.is_nan()),          0.5, "1 where x is no number, else 0.";
    Tf32     "tf32"      tf32(x),                    0.5, "x with the 11 significant bits of TF32, ties away from 0.";
}

functions! {
    "Functions of two numbers." Binary(x, y),
    "The number that changes nothing: a fold begins with it." neutral() -> Option<f64>;
    Add     "+"       x + y,                                    Some(0.0),               "x + y";
    Sub     "-"       x - y,                                    None,                    "x - y";
    Mul     "*"       x * y,                                    Some(1.0),               "x·y";
    Div     "/"       x / y,                                    None,                    "x/y";
    Max     "max"     x.max(y),                                 Some(f64::NEG_INFINITY), "The larger one; of a NaN and a number, the number.";
    Min     "min"     x.min(y),                                 Some(f64::INFINITY),     "The smaller one; of a NaN and a number, the number.";
    MaxNan  "maxnan"  if x > y || x.is_nan() { x } else { y },  Some(f64::NEG_INFINITY), "The larger one; NaN if either is.";
    MinNan  "minnan"  if x < y || x.is_nan() { x } else { y },  Some(f64::INFINITY),     "The smaller one; NaN if either is.";
    Pow     "pow"     x.powf(y),                                None,                    "xʸ";
    Rem     "rem"     x % y,                                    None,                    "The remainder of x/y with the sign of x (C's `fmod`).";
    CopySign "copysign" x.copysign(y),                          None,                    "x with the sign of y";
    Less    "less"    truth(x < y),                             None,                    "1 where x < y, else 0.";
    AtMost  "atmost"  truth(x <= y),                            None,                    "1 where x ≤ y, else 0.";
    Equal   "equal"   truth(x == y),                            None,                    "1 where x = y, else 0.";
    Unequal "unequal" truth(x != y),                            None,                    "1 where x ≠ y, else 0; NaN differs from everything.";
}

/// x·Φ(x); the tail keeps its digits where it is small.
fn gelu(x: f64) -> f64 {
    let tail = libm::erfc(-x * std::f64::consts::FRAC_1_SQRT_2);
    if tail == 0.0 { 0.0 } else { 0.5 * x * tail }
}

/// The units of a quotient by 1 + e⁻ˣ.
fn fast(x: f64) -> f64 {
    if x > 0.0 { 5.0 } else { 5.0 + 1.16 * x.abs() }
}

fn truth(holds: bool) -> f64 {
    f64::from(u8::from(holds))
}

/// To the nearest of those numbers in single precision whose lowest 13 bits are 0, ties away from 0.
fn tf32(x: f64) -> f64 {
    let single = x as f32;
    if !single.is_finite() {
        return f64::from(single);
    }
    f64::from(f32::from_bits((single.to_bits() + 0x1000) & !0x1fff))
}
