//! The table of functions of elements: a row a function, with all that this crate knows of it.
//!
//! Printing and parsing, shape inference, import of ONNX's operator of that name, evaluation, the planner's costs and the
//! CPU's portable path read these rows. A new function is a row here and an expression in the planner's kernels; a vectorised
//! loop of the CPU may come beside them. The columns of a row, after its parameters with their defaults (and ONNX's name of
//! one, where that differs):
//!
//! - the element types that it takes and gives: [`FunctionClass`];
//! - what it makes of finite numbers: [`Range`];
//! - whether it rounds nothing: `exact`, or `rounds`;
//! - operations of a vector unit that an element takes;
//! - the operator of ONNX that is this function, where there is one, and its first version whose meaning this is;
//! - its meaning in real numbers, where it has one, by elementary functions `M`; truth values are 0 and 1. Integers, modulo
//!   their width, and truth values have theirs in the evaluator.

use super::elementary::Elementary;
use super::info::{FunctionClass, FunctionInfo, Onnx, Range};
use std::f64::consts::{FRAC_1_PI, FRAC_1_SQRT_2};

/// A function of a real number.
pub type RealFunction = Box<dyn Fn(f64) -> f64>;

/// A parameter of a function.
pub enum Parameter<'a> {
    /// A number.
    Number(&'a mut f32),
    /// Whether something holds.
    Flag(&'a mut bool),
}

impl<'a> From<&'a mut f32> for Parameter<'a> {
    fn from(number: &'a mut f32) -> Self {
        Self::Number(number)
    }
}

impl<'a> From<&'a mut bool> for Parameter<'a> {
    fn from(flag: &'a mut bool) -> Self {
        Self::Flag(flag)
    }
}

/// The row of a function.
macro_rules! info {
    ($name:ident [$($parameter:ident)*], $class:ident, $range:ident, $exact:ident, $work:literal
        $(, onnx $since:literal $($onnx:literal)?)?) => {
        FunctionInfo {
            name: stringify!($name),
            parameters: { const NAMES: &[&str] = &[$(stringify!($parameter),)*]; NAMES.len() },
            class: FunctionClass::$class,
            range: Range::$range,
            exact: info!($exact),
            work: $work,
            onnx: [$(Onnx { name: [$($onnx,)? stringify!($name)][0], since: $since },)?]
                .first()
                .copied(),
        }
    };
    (exact) => { true };
    (rounds) => { false };
}

macro_rules! unaries {
    ($(
        $(#[$doc:meta])*
        $name:ident
        $({ $($(#[$of:meta])* $parameter:ident $(($spelled:literal))?: $ty:ty = $default:expr,)* })?:
        $class:ident, $range:ident, $exact:ident, $work:literal
        $(, onnx $since:literal $($onnx:literal)?)? $(, |$x:ident| $meaning:expr)?;
    )*) => {
        /// A pointwise function of one argument.
        #[derive(Clone, Copy, PartialEq, Debug)]
        pub enum Unary {
            $($(#[$doc])* $name $({ $($(#[$of])* $parameter: $ty,)* })?,)*
        }

        impl Unary {
            /// All functions, with the parameters that ONNX's operators have where none are given.
            pub const ALL: &[Self] = &[$(Self::$name $({ $($parameter: $default,)* })?,)*];

            /// The function's row.
            pub fn info(self) -> FunctionInfo {
                match self {
                    $(Self::$name $({ $($parameter: _,)* })? => {
                        info!($name [$($($parameter)*)?], $class, $range, $exact, $work
                            $(, onnx $since $($onnx)?)?)
                    })*
                }
            }

            /// The parameters: each with its name here, and that of ONNX's attribute.
            pub fn parameters(&mut self) -> Vec<(&'static str, &'static str, Parameter<'_>)> {
                match self {
                    $(Self::$name $({ $($parameter,)* })? => vec![$($((
                        stringify!($parameter),
                        [$($spelled,)? stringify!($parameter)][0],
                        Parameter::from($parameter),
                    ),)*)?],)*
                }
            }

            /// Its meaning in real numbers, truth values being 0 and 1; `None` for those on truth values and bits alone.
            pub fn meaning<M: Elementary>(self) -> Option<RealFunction> {
                match self {
                    $(Self::$name $({ $($parameter,)* })? => {
                        $($(let $parameter = f64::from($parameter);)*)?
                        let row: [RealFunction; _] = [$(Box::new(move |$x: f64| $meaning))?];
                        row.into_iter().next()
                    })*
                }
            }
        }
    };
}

macro_rules! binaries {
    ($(
        $(#[$doc:meta])*
        $name:ident: $class:ident, $range:ident, $exact:ident, $order:ident, $work:literal
        $(, onnx $since:literal $($onnx:literal)?)? $(, |$a:ident, $b:ident| $meaning:expr)?;
    )*) => {
        /// A pointwise function of two arguments of one type.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        pub enum Binary {
            $($(#[$doc])* $name,)*
        }

        impl Binary {
            /// All functions.
            pub const ALL: &[Self] = &[$(Self::$name,)*];

            /// The function's row.
            pub fn info(self) -> FunctionInfo {
                match self {
                    $(Self::$name => {
                        info!($name [], $class, $range, $exact, $work $(, onnx $since $($onnx)?)?)
                    })*
                }
            }

            /// Whether the arguments may change places.
            pub fn commutes(self) -> bool {
                match self {
                    $(Self::$name => binaries!($order),)*
                }
            }

            /// Its meaning in real numbers; `None` for comparisons, and for those on truth values and bits alone.
            pub fn meaning<M: Elementary>(self) -> Option<fn(f64, f64) -> f64> {
                match self {
                    $(Self::$name => {
                        let row: &[fn(f64, f64) -> f64] = &[$(|$a, $b| $meaning)?];
                        row.first().copied()
                    })*
                }
            }
        }
    };
    (commutes) => { true };
    (ordered) => { false };
}

unaries! {
    /// |x|
    Abs: Number, Finite, exact, 1.0, onnx 1, |x| x.abs();
    /// -x
    Neg: Number, Finite, exact, 1.0, onnx 1, |x| -x;
    /// -1, 0 or 1
    Sign: Number, Unit, exact, 1.0, onnx 1, |x| if x == 0.0 || x.is_nan() { x } else { x.signum() };
    /// 1 / x
    Reciprocal: Real, Any, rounds, 4.0, onnx 1, |x| 1.0 / x;
    /// √x
    Sqrt: Real, Any, rounds, 4.0, onnx 1, |x| x.sqrt();
    /// eˣ
    Exp: Real, Any, rounds, 16.0, onnx 1, |x| M::exp(x);
    /// ln x
    Log: Real, Any, rounds, 16.0, onnx 1, |x| M::log(x);
    /// ⌊x⌋
    Floor: Real, Finite, exact, 1.0, onnx 1, |x| x.floor();
    /// ⌈x⌉
    Ceil: Real, Finite, exact, 1.0, onnx 1, |x| x.ceil();
    /// to the nearest integer, ties to even
    Round: Real, Finite, exact, 1.0, onnx 1, |x| x.round_ties_even();
    /// sine
    Sin: Real, Unit, rounds, 16.0, onnx 1, |x| M::sin(x);
    /// cosine
    Cos: Real, Unit, rounds, 16.0, onnx 1, |x| M::cos(x);
    /// tangent
    Tan: Real, Any, rounds, 16.0, onnx 1, |x| M::tan(x);
    /// inverse sine
    Asin: Real, Any, rounds, 16.0, onnx 1, |x| M::asin(x);
    /// inverse cosine
    Acos: Real, Any, rounds, 16.0, onnx 1, |x| M::acos(x);
    /// inverse tangent
    Atan: Real, Finite, rounds, 16.0, onnx 1, |x| M::atan(x);
    /// hyperbolic sine
    Sinh: Real, Any, rounds, 16.0, onnx 1, |x| M::sinh(x);
    /// hyperbolic cosine
    Cosh: Real, Any, rounds, 16.0, onnx 1, |x| M::cosh(x);
    /// hyperbolic tangent
    Tanh: Real, Unit, rounds, 16.0, onnx 1, |x| M::tanh(x);
    /// alpha·tanh(beta·x)
    ScaledTanh {
        /// scale of the result
        alpha: f32 = 1.0,
        /// scale of the argument
        beta: f32 = 1.0,
    }: Real, Finite, rounds, 16.0, onnx 1, |x| alpha * M::tanh(beta * x);
    /// inverse hyperbolic sine
    Asinh: Real, Finite, rounds, 16.0, onnx 1, |x| libm::asinh(x);
    /// inverse hyperbolic cosine (libm gives numbers for some below 1)
    Acosh: Real, Any, rounds, 16.0, onnx 1, |x| if x < 1.0 { f64::NAN } else { libm::acosh(x) };
    /// inverse hyperbolic tangent
    Atanh: Real, Any, rounds, 16.0, onnx 1, |x| libm::atanh(x);
    /// error function
    Erf: Real, Unit, rounds, 16.0, onnx 1, |x| libm::erf(x);
    /// 1 / (1 + e⁻ˣ)
    Sigmoid: Real, Unit, rounds, 16.0, onnx 1, |x| sigmoid::<M>(x);
    /// max(x, 0)
    Relu: Number, Finite, exact, 1.0, onnx 1, |x| if x < 0.0 { 0.0 } else { x };
    /// x·Φ(x) by the error function; at -∞ its limit, 0
    Gelu: Real, Finite, rounds, 16.0, |x| {
        let tail = libm::erfc(-x * FRAC_1_SQRT_2);
        if tail == 0.0 { 0.0 } else { x * 0.5 * tail }
    };
    /// x·Φ(x) by its tanh approximation: x/2·(1 + tanh(√(2/π)·(x + 0.044715·x³)))
    GeluTanh: Real, Finite, rounds, 16.0, |x| {
        let slope = (2.0 * FRAC_1_PI).sqrt();
        0.5 * x * (1.0 + M::tanh(slope * (x + 0.044715 * x * x * x)))
    };
    /// x·sigmoid(alpha·x)
    Swish {
        /// 1 for SiLU.
        alpha: f32 = 1.0,
    }: Real, Finite, rounds, 16.0, onnx 24, |x| x * sigmoid::<M>(alpha * x);
    /// ln(1 + eˣ)
    Softplus: Real, Finite, rounds, 16.0, onnx 1, |x| softplus::<M>(x);
    /// x / (1 + |x|)
    Softsign: Real, Finite, rounds, 4.0, onnx 1, |x| x / (1.0 + x.abs());
    /// x·tanh(ln(1 + eˣ))
    Mish: Real, Finite, rounds, 16.0, onnx 1, |x| x * M::tanh(softplus::<M>(x));
    /// x·max(0, min(1, x/6 + 1/2))
    HardSwish: Real, Finite, rounds, 2.0, onnx 1, |x| x * (x / 6.0 + 0.5).clamp(0.0, 1.0);
    /// max(0, min(1, alpha·x + beta))
    HardSigmoid {
        /// slope
        alpha: f32 = 0.2,
        /// offset
        beta: f32 = 0.5,
    }: Real, Finite, rounds, 2.0, onnx 1, |x| (alpha * x + beta).clamp(0.0, 1.0);
    /// x where x ≥ 0, else alpha·x
    LeakyRelu {
        /// slope below zero
        alpha: f32 = 0.01,
    }: Real, Finite, rounds, 2.0, onnx 1, |x| if x < 0.0 { alpha * x } else { x };
    /// x where x ≥ 0, else alpha·(eˣ - 1)
    Elu {
        /// scale below zero
        alpha: f32 = 1.0,
    }: Real, Finite, rounds, 16.0, onnx 1, |x| if x < 0.0 { alpha * M::expm1(x) } else { x };
    /// max(0, x) + min(0, alpha·(e^(x/alpha) - 1))
    Celu {
        /// scale below zero
        alpha: f32 = 1.0,
    }: Real, Finite, rounds, 16.0, onnx 12, |x| {
        if x < 0.0 { (alpha * M::expm1(x / alpha)).min(0.0) } else { x }
    };
    /// gamma·x where x > 0, else gamma·alpha·(eˣ - 1)
    Selu {
        /// scale below zero
        alpha: f32 = 1.673_263_2,
        /// scale everywhere
        gamma: f32 = 1.050_701,
    }: Real, Finite, rounds, 16.0, |x| {
        if x > 0.0 { gamma * x } else { gamma * alpha * M::expm1(x) }
    };
    /// x where x > alpha, else 0
    ThresholdedRelu {
        /// threshold
        alpha: f32 = 1.0,
    }: Real, Finite, exact, 2.0, onnx 10, |x| if x > alpha { x } else { 0.0 };
    /// x + bias where x < -lambda, x - bias where x > lambda, NaN stays, else 0
    Shrink {
        /// moved towards zero by this
        bias: f32 = 0.0,
        /// threshold
        lambda("lambd"): f32 = 0.5,
    }: Number, Finite, rounds, 2.0, onnx 9, |x| {
        if x < -lambda { x + bias } else if x > lambda { x - bias } else if x.is_nan() { x } else { 0.0 }
    };
    /// logical not, `bool`
    Not: Logical, Unit, exact, 1.0, onnx 1;
    /// bitwise not, integers
    BitNot: Bits, Finite, exact, 1.0, onnx 1 "BitwiseNot";
    /// `x → bool`: is it NaN
    IsNan: Test, Unit, exact, 1.0, onnx 1 "IsNaN", |x| truth(x.is_nan());
    /// `x → bool`: is it an infinity of a listed sign
    IsInf {
        /// +∞ counts
        positive("detect_positive"): bool = true,
        /// -∞ counts
        negative("detect_negative"): bool = true,
    }: Test, Unit, exact, 1.0, onnx 10, |x| {
        truth(x.is_infinite() && (if x > 0.0 { positive } else { negative }) != 0.0)
    };
}

binaries! {
    /// a + b, integers modulo their width
    Add: Number, Grows, rounds, commutes, 1.0, onnx 1, |a, b| a + b;
    /// a - b, integers modulo their width
    Sub: Number, Grows, rounds, ordered, 1.0, onnx 1, |a, b| a - b;
    /// a · b, integers modulo their width
    Mul: Number, Grows, rounds, commutes, 1.0, onnx 1, |a, b| a * b;
    /// a / b; integers truncate, division by zero gives 0
    Div: Number, Any, rounds, ordered, 4.0, onnx 1, |a, b| a / b;
    /// remainder with the sign of b (Python's `%`); integers by zero give 0
    Mod: Number, Any, rounds, ordered, 4.0, |a, b| match a % b {
        0.0 => 0.0_f64.copysign(b),
        rest if (rest < 0.0) != (b < 0.0) => rest + b,
        rest => rest,
    };
    /// remainder with the sign of a (C's `fmod`); integers by zero give 0
    Rem: Number, Any, exact, ordered, 4.0, |a, b| a % b;
    /// aᵇ; b may be of another type
    Pow: Number, Any, rounds, ordered, 16.0, onnx 1, |a, b| M::pow(a, b);
    /// the smaller; NaN if either is
    Min: Number, Finite, exact, commutes, 1.0, |a, b| if a < b || a.is_nan() { a } else { b };
    /// the larger; NaN if either is
    Max: Number, Finite, exact, commutes, 1.0, |a, b| if a > b || a.is_nan() { a } else { b };
    /// logical and, `bool`
    And: Logical, Unit, exact, commutes, 1.0, onnx 1;
    /// logical or, `bool`
    Or: Logical, Unit, exact, commutes, 1.0, onnx 1;
    /// logical exclusive or, `bool`
    Xor: Logical, Unit, exact, commutes, 1.0, onnx 1;
    /// bitwise and, integers
    BitAnd: Bits, Finite, exact, commutes, 1.0, onnx 1 "BitwiseAnd";
    /// bitwise or, integers
    BitOr: Bits, Finite, exact, commutes, 1.0, onnx 1 "BitwiseOr";
    /// bitwise exclusive or, integers
    BitXor: Bits, Finite, exact, commutes, 1.0, onnx 1 "BitwiseXor";
    /// a · 2ᵇ, integers modulo their width; zero where b is negative or at least the width
    ShiftLeft: Bits, Finite, exact, ordered, 1.0;
    /// ⌊a / 2ᵇ⌋, integers; the sign alone (0 or -1) where b is negative or at least the width
    ShiftRight: Bits, Finite, exact, ordered, 1.0;
    /// a = b → `bool`
    Equal: Same, Unit, exact, commutes, 1.0, onnx 1;
    /// a < b → `bool`
    Less: Order, Unit, exact, ordered, 1.0, onnx 1;
    /// a ≤ b → `bool`
    LessOrEqual: Order, Unit, exact, ordered, 1.0, onnx 1;
    /// a > b → `bool`
    Greater: Order, Unit, exact, ordered, 1.0, onnx 1;
    /// a ≥ b → `bool`
    GreaterOrEqual: Order, Unit, exact, ordered, 1.0, onnx 1;
}

impl Binary {
    /// The comparison of ordered elements that it is; `None` for other functions.
    pub fn comparison<T: PartialOrd>(self) -> Option<fn(&T, &T) -> bool> {
        match self {
            Self::Equal => Some(T::eq),
            Self::Less => Some(T::lt),
            Self::LessOrEqual => Some(T::le),
            Self::Greater => Some(T::gt),
            Self::GreaterOrEqual => Some(T::ge),
            _ => None,
        }
    }
}

fn truth(holds: bool) -> f64 {
    f64::from(u8::from(holds))
}

fn sigmoid<M: Elementary>(x: f64) -> f64 {
    1.0 / (1.0 + M::exp(-x))
}

/// Exact for large |x| too.
fn softplus<M: Elementary>(x: f64) -> f64 {
    if x.is_nan() { x } else { x.max(0.0) + M::log1p(M::exp(-x.abs())) }
}
