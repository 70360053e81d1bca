//! Elementary functions, from which the meanings of others are made.

/// An implementation of elementary functions of doubles.
pub trait Elementary: 'static {
    /// aᵇ
    fn pow(a: f64, b: f64) -> f64;
    /// eˣ
    fn exp(x: f64) -> f64;
    /// eˣ - 1, exact for small x too
    fn expm1(x: f64) -> f64;
    /// ln x
    fn log(x: f64) -> f64;
    /// ln(1 + x), exact for small x too
    fn log1p(x: f64) -> f64;
    /// sine
    fn sin(x: f64) -> f64;
    /// cosine
    fn cos(x: f64) -> f64;
    /// tangent
    fn tan(x: f64) -> f64;
    /// inverse sine
    fn asin(x: f64) -> f64;
    /// inverse cosine
    fn acos(x: f64) -> f64;
    /// inverse tangent
    fn atan(x: f64) -> f64;
    /// hyperbolic sine
    fn sinh(x: f64) -> f64;
    /// hyperbolic cosine
    fn cosh(x: f64) -> f64;
    /// hyperbolic tangent
    fn tanh(x: f64) -> f64;
}

/// The same on every machine.
pub enum Portable {}

/// The machine's own, which may be several times as fast.
pub enum Native {}

macro_rules! elementary {
    ($($name:ident: $native:ident),*) => {
        impl Elementary for Portable {
            fn pow(a: f64, b: f64) -> f64 {
                libm::pow(a, b)
            }
            $(fn $name(x: f64) -> f64 {
                libm::$name(x)
            })*
        }

        impl Elementary for Native {
            fn pow(a: f64, b: f64) -> f64 {
                a.powf(b)
            }
            $(fn $name(x: f64) -> f64 {
                x.$native()
            })*
        }
    };
}

elementary! {
    exp: exp, expm1: exp_m1, log: ln, log1p: ln_1p, sin: sin, cos: cos, tan: tan, asin: asin,
    acos: acos, atan: atan, sinh: sinh, cosh: cosh, tanh: tanh
}
