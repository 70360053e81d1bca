//! What sizes and strides are made of.

use std::fmt::{Debug, Display};
use std::hash::Hash;

use crate::{Error, Expr, Result};

/// A constant, `i64`, or an expression of a kernel's symbols and variables, [`Expr`].
pub trait Int: Clone + Eq + Hash + Debug + Display + From<i64> + Into<Expr> {
    /// The value, if it is known.
    fn constant(&self) -> Option<i64>;

    /// The sum. Fails where it overflows.
    fn plus(&self, other: &Self) -> Result<Self>;

    /// The product. Fails where it overflows.
    fn times(&self, other: &Self) -> Result<Self>;

    /// The quotient by something positive. Constants round towards 0; expressions are not negative.
    fn over(&self, by: &Self) -> Self;

    /// The remainder of [`over`](Int::over).
    fn modulo(&self, by: &Self) -> Self;

    /// The quotient of something positive by something positive, rounded up.
    fn over_up(&self, by: i64) -> Self;

    /// Whether this is the constant `value`.
    fn equals(&self, value: i64) -> bool {
        self.constant() == Some(value)
    }
}

impl Int for i64 {
    fn constant(&self) -> Option<i64> {
        Some(*self)
    }

    fn plus(&self, other: &i64) -> Result<i64> {
        self.checked_add(*other).ok_or(Error::Overflow)
    }

    fn times(&self, other: &i64) -> Result<i64> {
        self.checked_mul(*other).ok_or(Error::Overflow)
    }

    fn over(&self, by: &i64) -> i64 {
        self / by
    }

    fn modulo(&self, by: &i64) -> i64 {
        self % by
    }

    fn over_up(&self, by: i64) -> i64 {
        (self - 1) / by + 1
    }
}

impl Int for Expr {
    fn constant(&self) -> Option<i64> {
        Expr::constant(self)
    }

    fn plus(&self, other: &Expr) -> Result<Expr> {
        Ok(self.clone() + other)
    }

    fn times(&self, other: &Expr) -> Result<Expr> {
        Ok(self.clone() * other)
    }

    fn over(&self, by: &Expr) -> Expr {
        self.div(by)
    }

    fn modulo(&self, by: &Expr) -> Expr {
        self.rem(by)
    }

    fn over_up(&self, by: i64) -> Expr {
        self.ceil_div(by)
    }
}
