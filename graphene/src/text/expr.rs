//! Expressions, comparisons, and trees of expressions.

use super::cursor::Parser;
use crate::{Builder, Cond, Expr, IntTuple, Relation, Result};

/// How many terms a multiplication may give before they are simplified.
const MAX_TERMS: usize = 1024;

impl Parser<'_> {
    pub(super) fn expr(&mut self, k: &Builder) -> Result<Expr> {
        let mut sum = self.term(k)?;
        loop {
            if self.eat("+") {
                sum = sum + self.term(k)?;
            } else if self.eat("-") {
                sum = sum - self.term(k)?;
            } else {
                return Ok(sum);
            }
        }
    }

    fn term(&mut self, k: &Builder) -> Result<Expr> {
        let mut value = self.factor(k)?;
        loop {
            let at = self.next();
            if self.eat("*") {
                let other = self.factor(k)?;
                if value.terms().count() * other.terms().count() > MAX_TERMS {
                    return self.fail(at, "too many terms to multiply".to_owned());
                }
                value = value * other;
            } else if self.eat("/") {
                value = value.div(&self.factor(k)?);
            } else if self.eat_remainder() {
                value = value.rem(&self.factor(k)?);
            } else {
                return Ok(value);
            }
        }
    }

    fn factor(&mut self, k: &Builder) -> Result<Expr> {
        if self.sees_digit() {
            return self.natural().map(Expr::from);
        }
        let at = self.next();
        if let Some(name) = self.name('@') {
            return match k.find_var(name) {
                Some(var) => Ok(Expr::from(var)),
                None => self.fail(at, format!("no @{name} is known here")),
            };
        }
        self.nested(|p| {
            if p.eat("-") {
                return Ok(p.factor(k)? * -1);
            }
            let call = match () {
                () if p.eat_word("min") => Some(Expr::min::<Expr> as fn(Expr, Expr) -> Expr),
                () if p.eat_word("max") => Some(Expr::max::<Expr> as fn(Expr, Expr) -> Expr),
                () => None,
            };
            if call.is_none() && !p.sees("(") {
                return p.expected("an expression");
            }
            p.within(["(", ")"], |p| {
                let value = p.expr(k)?;
                let Some(call) = call else { return Ok(value) };
                p.expect(",")?;
                Ok(call(value, p.expr(k)?))
            })
        })
    }

    pub(super) fn cond(&mut self, k: &Builder) -> Result<Cond> {
        let left = self.expr(k)?;
        let Some((relation, _)) = Relation::ALL.into_iter().find(|row| self.eat(row.1)) else {
            return self.expected("a comparison: `<`, `>=`, `==` or `!=`");
        };
        Ok(Cond { left, relation, right: self.expr(k)? })
    }

    /// `a, (b, c)`
    pub(super) fn trees(&mut self, k: &Builder) -> Result<Vec<IntTuple<Expr>>> {
        self.list(|p| p.tree(k))
    }

    fn tree(&mut self, k: &Builder) -> Result<IntTuple<Expr>> {
        if !self.opens_tuple() {
            return self.expr(k).map(IntTuple::Int);
        }
        self.nested(|p| p.within(["(", ")"], |p| p.trees(k)).map(IntTuple::Tuple))
    }

    /// `[a, (b, c)]`
    pub(super) fn coords(&mut self, k: &Builder) -> Result<Vec<IntTuple<Expr>>> {
        self.within(["[", "]"], |p| p.trees(k))
    }
}
