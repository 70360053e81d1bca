//! Arithmetic on expressions, simplified by the ranges of their variables.

use std::cmp::Ordering;
use std::iter::Sum;
use std::ops::{Add, Mul, Sub};
use std::sync::Arc;

use smallvec::smallvec;

use super::{Expr, Factor, Factors, Op, Term, Terms, Var};
use crate::convert::from;

/// The least and greatest value that are known; `None` where there is no bound.
type Range = (Option<i64>, Option<i64>);

from! {
    i64 => Expr: |value| Expr(Terms::Constant(value));
    &Var => Expr: |var| if var.max == Some(0) { 0.into() } else { Factor::Var(var.clone()).into() };
    Var => Expr: |var| Expr::from(&var);
    &Expr => Expr: |expr| expr.clone();
    Factor => Expr: |factor| Expr::of(vec![Term { product: smallvec![factor], coefficient: 1 }]);
    &Factor => Expr: |factor| factor.clone().into();
}

impl<T: Into<Expr>> Add<T> for Expr {
    type Output = Expr;
    fn add(self, other: T) -> Expr {
        let other = other.into();
        match (self.constant(), other.constant()) {
            (Some(a), Some(b)) => a.saturating_add(b).into(),
            (_, Some(0)) => self,
            (Some(0), _) => other,
            _ => self.merged(&other),
        }
    }
}

impl<T: Into<Expr>> Sub<T> for Expr {
    type Output = Expr;
    fn sub(self, other: T) -> Expr {
        self + other.into() * -1
    }
}

impl<T: Into<Expr>> Mul<T> for Expr {
    type Output = Expr;
    fn mul(self, other: T) -> Expr {
        let other = other.into();
        match (self.constant(), other.constant()) {
            (Some(a), Some(b)) => a.saturating_mul(b).into(),
            (_, Some(by)) => self.scaled(by),
            (Some(by), _) => other.scaled(by),
            _ => self.multiplied(&other),
        }
    }
}

impl<T: Into<Expr>> Sum<T> for Expr {
    fn sum<I: Iterator<Item = T>>(all: I) -> Expr {
        all.fold(Expr::default(), Expr::add)
    }
}

impl Expr {
    pub(crate) fn of_factors(factors: impl IntoIterator<Item = impl Into<Expr>>) -> Expr {
        factors.into_iter().fold(Expr::from(1), Expr::mul)
    }

    /// The sum of terms of different factors, in their order, no coefficient of which is 0.
    fn of(terms: Vec<Term>) -> Expr {
        Expr(match &terms[..] {
            [] => Terms::Constant(0),
            [one] if one.product.is_empty() => Terms::Constant(one.coefficient),
            _ => Terms::Sum(Arc::new(terms)),
        })
    }

    /// The sum of both.
    fn merged(&self, other: &Expr) -> Expr {
        let (mut left, mut right) = (self.in_order().peekable(), other.in_order().peekable());
        let mut terms = Vec::with_capacity(left.size_hint().0 + right.size_hint().0);
        loop {
            let order = match (left.peek(), right.peek()) {
                (Some((a, _)), Some((b, _))) => a.cmp(b),
                (Some(_), None) => Ordering::Less,
                (None, Some(_)) => Ordering::Greater,
                (None, None) => return Expr::of(terms),
            };
            let left = left.next_if(|_| order.is_le());
            let right = right.next_if(|_| order.is_ge());
            let both = || left.into_iter().chain(right);
            let coefficient = both().fold(0, |sum: i64, (_, own)| sum.saturating_add(own));
            if coefficient != 0 {
                let factors = both().map(|(product, _)| product.clone());
                terms.extend(factors.take(1).map(|product| Term { product, coefficient }));
            }
        }
    }

    /// Multiplied by a number.
    fn scaled(self, by: i64) -> Expr {
        if by == 1 {
            return self;
        }
        self.each_coefficient(|_, own| own.saturating_mul(by))
    }

    /// Multiplied term by term.
    fn multiplied(&self, other: &Expr) -> Expr {
        let each = |(left, a): (&Factors, i64), (right, b): (&Factors, i64)| {
            let mut product: Factors = left.iter().chain(right).cloned().collect();
            product.sort();
            Term { product, coefficient: a.saturating_mul(b) }
        };
        let pairs = self.in_order().flat_map(|own| other.in_order().map(move |by| each(own, by)));
        let mut terms: Vec<Term> = pairs.collect();
        terms.sort_by(|a, b| a.product.cmp(&b.product));
        terms.dedup_by(|next, kept| {
            let same = next.product == kept.product;
            if same {
                kept.coefficient = kept.coefficient.saturating_add(next.coefficient);
            }
            same
        });
        terms.retain(|term| term.coefficient != 0);
        Expr::of(terms)
    }

    /// The sum with other coefficients, without what becomes 0.
    fn each_coefficient(&self, of: impl Fn(&Factors, i64) -> i64) -> Expr {
        let terms = self.in_order().filter_map(|(product, own)| match of(product, own) {
            0 => None,
            coefficient => Some(Term { product: product.clone(), coefficient }),
        });
        Expr::of(terms.collect())
    }

    /// The quotient, rounded down. Both operands must not be negative where it is evaluated.
    pub fn div(&self, divisor: impl Into<Expr>) -> Expr {
        let divisor = &divisor.into();
        if divisor.is(1) || self.is(0) {
            return self.clone();
        }
        if self == divisor {
            return Expr::from(1);
        }
        let Some(by) = divisor.constant().filter(|&by| by > 0) else {
            return Factor::Of(Op::Div, self.clone(), divisor.clone()).into();
        };
        let (whole, rest) = self.split(by);
        if let Some(quotient) = rest.one_quotient(by) {
            return whole + quotient;
        }
        // What is divided out must leave something that is not negative.
        if rest.range().0 >= Some(0) && whole.range().0 >= Some(0) {
            return whole + rest.div_rest(by);
        }
        self.div_rest(by)
    }

    /// The quotient of what no simplification splits: nested quotients join.
    fn div_rest(&self, by: i64) -> Expr {
        if let Some((Factor::Of(Op::Div, inner, first), 1)) = self.only_factor()
            && let Some(first) = first.constant()
        {
            return inner.div(first.saturating_mul(by));
        }
        // (x % (a·b)) / a is a digit of x; dividing x first shows more of it.
        if let Some((Factor::Of(Op::Mod, inner, modulus), 1)) = self.only_factor()
            && let Some(modulus) = modulus.constant()
            && modulus % by == 0
        {
            return inner.div(by).rem(modulus / by);
        }
        Factor::Of(Op::Div, self.clone(), Expr::from(by)).into()
    }

    /// The remainder of [`div`](Expr::div).
    pub fn rem(&self, divisor: impl Into<Expr>) -> Expr {
        let divisor = &divisor.into();
        if divisor.is(1) || self == divisor || self.is(0) {
            return Expr::from(0);
        }
        let Some(by) = divisor.constant().filter(|&by| by > 0) else {
            if self.range().0 >= Some(0) && divisor.exceeds(self) {
                return self.clone();
            }
            return Factor::Of(Op::Mod, self.clone(), divisor.clone()).into();
        };
        let (_, rest) = self.split(by);
        if let Some(quotient) = rest.one_quotient(by) {
            return rest - quotient.saturating_mul(by);
        }
        let rest = self.residue(by);
        match rest.only_factor() {
            Some((Factor::Of(Op::Mod, inner, modulus), 1))
                if modulus.constant().is_some_and(|modulus| modulus % by == 0) =>
            {
                return inner.rem(divisor);
            }
            // (x / a) % b is a digit of x, which is one of x % (a·b) too.
            Some((Factor::Of(Op::Div, inner, first), 1)) => {
                let all = first.constant().and_then(|first| first.checked_mul(by));
                let reduced = all.filter(|&all| all > 0).map(|all| inner.residue(all));
                if let Some(reduced) = reduced.filter(|reduced| reduced != inner) {
                    return reduced.div(first).rem(divisor);
                }
            }
            _ => {}
        }
        Factor::Of(Op::Mod, rest, Expr::from(by)).into()
    }

    /// The quotient, if it is the same over all of the range.
    fn one_quotient(&self, by: i64) -> Option<i64> {
        let (low, high) = self.range();
        let [low, high] = [low?, high?].map(|bound| bound.div_euclid(by));
        (low == high).then_some(low)
    }

    /// Something that has the same remainder by `by`, with multiples of it left out. C rounds
    /// quotients of negative numbers up, so that what is left must not be negative.
    fn residue(&self, by: i64) -> Expr {
        let (_, rest) = self.split(by);
        match rest.range().0 {
            Some(low) if low >= 0 => rest,
            Some(low) => rest - low.div_euclid(by).saturating_mul(by),
            None => self.clone(),
        }
    }

    /// The quotient, rounded up.
    pub fn ceil_div(&self, divisor: impl Into<Expr>) -> Expr {
        let divisor = divisor.into();
        (self.clone() + &divisor - 1).div(divisor)
    }

    /// The smaller one.
    pub fn min<E: Into<Expr>>(self, other: E) -> Expr {
        self.either(other.into(), |a, b| b.reaches(a), Op::Min)
    }

    /// The larger one.
    pub fn max<E: Into<Expr>>(self, other: E) -> Expr {
        self.either(other.into(), |a, b| a.reaches(b), Op::Max)
    }

    fn either(self, other: Expr, is: fn(&Expr, &Expr) -> bool, op: Op) -> Expr {
        if self == other || is(&self, &other) {
            self
        } else if is(&other, &self) {
            other
        } else {
            let (a, b) = if self <= other { (self, other) } else { (other, self) };
            Factor::Of(op, a, b).into()
        }
    }

    /// Whether this is known to be larger than `other` wherever it is evaluated.
    pub fn exceeds(&self, other: &Expr) -> bool {
        (self.clone() - other).range().0 >= Some(1)
    }

    /// Whether this is known to be at least `other`.
    pub fn reaches(&self, other: &Expr) -> bool {
        (self.clone() - other).range().0 >= Some(0)
    }

    /// The whole part by `by`, and what is left, so that `self = whole * by + rest`; the constant of the rest lies in `0..by`.
    fn split(&self, by: i64) -> (Expr, Expr) {
        let parts = |product: &Factors, coefficient: i64| {
            if product.is_empty() {
                (coefficient.div_euclid(by), coefficient.rem_euclid(by))
            } else if coefficient % by == 0 {
                (coefficient / by, 0)
            } else {
                (0, coefficient)
            }
        };
        let whole = self.each_coefficient(|product, own| parts(product, own).0);
        (whole, self.each_coefficient(|product, own| parts(product, own).1))
    }

    pub(super) fn only_factor(&self) -> Option<(&Factor, i64)> {
        let Terms::Sum(sum) = &self.0 else { return None };
        let [Term { product, coefficient }] = &sum[..] else { return None };
        match &product[..] {
            [factor] => Some((factor, *coefficient)),
            _ => None,
        }
    }

    /// Bounds of the value, from the variables' ranges.
    pub fn range(&self) -> (Option<i64>, Option<i64>) {
        self.terms().fold((Some(0), Some(0)), |sum, (product, coefficient)| {
            let product = product
                .iter()
                .fold((Some(1), Some(1)), |range, factor| multiply(range, factor.range()));
            let scaled = if coefficient >= 0 { product } else { (product.1, product.0) };
            let scale = |bound: Option<i64>| bound.and_then(|bound| bound.checked_mul(coefficient));
            (add(sum.0, scale(scaled.0)), add(sum.1, scale(scaled.1)))
        })
    }
}

fn add(a: Option<i64>, b: Option<i64>) -> Option<i64> {
    a?.checked_add(b?)
}

fn multiply(a: Range, b: Range) -> Range {
    match (a.0, b.0) {
        (Some(a_low @ 0..), Some(b_low @ 0..)) => {
            (a_low.checked_mul(b_low), a.1.zip(b.1).and_then(|(a, b)| a.checked_mul(b)))
        }
        _ => (None, None),
    }
}

impl Factor {
    fn range(&self) -> Range {
        let (op, (a_low, a_high), (b_low, b_high)) = match self {
            Factor::Var(var) => return (Some(0), var.max),
            Factor::Of(op, a, b) => (op, a.range(), b.range()),
        };
        match op {
            // Divisors are at least 1 where this is evaluated.
            Op::Div => match a_low {
                Some(a_low @ 0..) => {
                    let low = b_high.map_or(0, |most| a_low / most.max(1));
                    let least = b_low.map_or(1, |low| low.max(1));
                    (Some(low), a_high.map(|high| high / least))
                }
                _ => (None, None),
            },
            Op::Mod => {
                let below = b_high.map(|high| high.saturating_sub(1).max(0));
                let same = a_high.filter(|_| a_low >= Some(0));
                (Some(0), same.into_iter().chain(below).min())
            }
            Op::Min => {
                (a_low.zip(b_low).map(|(a, b)| a.min(b)), a_high.into_iter().chain(b_high).min())
            }
            Op::Max => {
                (a_low.into_iter().chain(b_low).max(), a_high.zip(b_high).map(|(a, b)| a.max(b)))
            }
        }
    }
}
