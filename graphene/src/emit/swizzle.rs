//! Swizzled offsets, with as little inside of the swizzle as can be.

use crate::{Expr, Result, Swizzle};

/// An offset after a swizzle: `outside + swizzle(inside)`.
pub(super) struct Swizzled {
    pub(super) outside: Expr,
    /// What the swizzle may change.
    pub(super) inside: Option<Expr>,
}

impl Swizzled {
    /// Parts an offset. A swizzle reads and changes only bits below its period, without a carry, so
    /// that multiples of the period stand outside; as does all, if no bit that is read can be set.
    pub(super) fn of(swizzle: Swizzle, offset: &Expr) -> Result<Swizzled> {
        let distance = swizzle.shift().abs();
        let period = 1 << (swizzle.bits() + swizzle.base() + distance);
        let (mut outside, mut inside) = (Expr::from(0), Expr::from(0));
        for (product, coefficient) in offset.terms() {
            let term = Expr::of_factors(product);
            let multiple = coefficient.div_euclid(period) * period;
            // A constant may be parted; other terms move out as a whole, or they would stand twice.
            let out = if product.is_empty() || multiple == coefficient { multiple } else { 0 };
            outside = outside + term.clone() * out;
            inside = inside + term * (coefficient - out);
        }
        if let Some(inside) = inside.constant() {
            return Ok(Swizzled { outside: outside + swizzle.at(inside)?, inside: None });
        }
        let lowest_read = swizzle.base() + if swizzle.shift() > 0 { distance } else { 0 };
        let (low, high) = inside.range();
        if low >= Some(0) && high.is_some_and(|high| high < 1 << lowest_read) {
            return Ok(Swizzled { outside: outside + inside, inside: None });
        }
        Ok(Swizzled { outside, inside: Some(inside) })
    }
}

#[cfg(test)]
#[path = "../../tests/units/swizzle.rs"]
mod tests;
