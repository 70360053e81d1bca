//! Swizzled offsets, with as little inside of the swizzle as can be.

use crate::error::Result;
use crate::index::Expr;
use crate::layout::Swizzle;

/// An offset after a swizzle: `outside + swizzle(inside)`.
#[derive(Debug)]
pub(super) struct Swizzled {
    pub(super) outside: Expr,
    /// What the swizzle may change.
    pub(super) inside: Option<Expr>,
}

impl Swizzled {
    /// Parts an offset. A swizzle reads and changes only bits below its period, without a carry, so
    /// that multiples of the period stand outside; as does all, if no bit that is read can be set.
    pub(super) fn of(swizzle: Swizzle, offset: &Expr) -> Result<Swizzled> {
        let distance = swizzle.shift().unsigned_abs();
        let period = 1 << (swizzle.bits() + swizzle.base() + distance);
        let (mut outside, mut inside) = (Expr::from(0), Expr::from(0));
        for (product, coefficient) in offset.terms() {
            let term = product.iter().fold(Expr::from(1), |term, factor| term * factor.clone());
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
mod tests {
    use super::{Expr, Swizzle, Swizzled};
    use crate::index::Var;

    #[test]
    fn parts_add_up() -> crate::Result<()> {
        let (i, j) = (Var::new("i", Some(7)), Var::new("j", Some(5)));
        let (mut whole, mut parted) = (0, 0);
        for swizzle in [(3, 4, 3), (2, 4, 3), (1, 4, 3), (3, 3, 3), (2, 3, -4)] {
            let swizzle = Swizzle::new(swizzle.0, swizzle.1, swizzle.2)?;
            for steps in [(8, 64), (16, 4096), (2, 1024), (128, 16), (1024, 8192), (96, 8)] {
                for start in [0, 8, 1500] {
                    let offset = Expr::from(&i) * steps.0 + Expr::from(&j) * steps.1 + start;
                    let Swizzled { outside, inside } = Swizzled::of(swizzle, &offset)?;
                    *if inside.is_some() { &mut parted } else { &mut whole } += 1;
                    for at in 0..48 {
                        let value = |expr: &Expr| {
                            expr.value(&|var| Some(if *var == i { at % 8 } else { at / 8 }))
                        };
                        let within = match inside.as_ref().map(value) {
                            Some(within) => swizzle.at(within.ok_or(crate::Error::Overflow)?)?,
                            None => 0,
                        };
                        let expected = value(&offset).map(|offset| swizzle.at(offset));
                        assert_eq!(
                            value(&outside).map(|outside| Ok(outside + within)),
                            expected,
                            "{swizzle:?} of {offset}: {outside} and {inside:?}"
                        );
                    }
                }
            }
        }
        assert!(whole > 10 && parted > 10, "{whole} and {parted}: both ways are tried");
        Ok(())
    }
}
