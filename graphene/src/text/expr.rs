//! Expressions, comparisons, and trees of expressions.

use super::cursor::Parser;
use crate::{Builder, Cond, Expr, IntTuple, Relation, Result, index::Op};

/// How many terms a multiplication may give before they are simplified.
const MAX_TERMS: usize = 1024;

pub(super) fn expr(p: &mut Parser<'_>, k: &Builder) -> Result<Expr> {
    let mut sum = term(p, k)?;
    loop {
        if p.eat("+") {
            sum = sum + term(p, k)?;
        } else if p.eat("-") {
            sum = sum - term(p, k)?;
        } else {
            return Ok(sum);
        }
    }
}

fn term(p: &mut Parser<'_>, k: &Builder) -> Result<Expr> {
    let mut value = factor(p, k)?;
    loop {
        let at = p.next();
        if p.eat("*") {
            let other = factor(p, k)?;
            if value.terms().count() * other.terms().count() > MAX_TERMS {
                return Err(p.fail(at, "too many terms to multiply"));
            }
            value = value * other;
        } else if p.eat("/") {
            value = value.div(&factor(p, k)?);
        } else if p.eat_remainder() {
            value = value.rem(&factor(p, k)?);
        } else {
            return Ok(value);
        }
    }
}

fn factor(p: &mut Parser<'_>, k: &Builder) -> Result<Expr> {
    if p.sees_digit() {
        return p.natural().map(Expr::from);
    }
    let at = p.next();
    if let Some(name) = p.name('@') {
        let var = k.find_var(name).map(Expr::from);
        return var.ok_or_else(|| p.fail(at, format!("no @{name} is known here")));
    }
    p.nested(|p| {
        if p.eat("-") {
            return Ok(factor(p, k)? * -1);
        }
        let call = [("min", Op::Min), ("max", Op::Max)].into_iter().find(|row| p.eat_word(row.0));
        if call.is_none() && !p.sees("(") {
            return Err(p.expected("an expression"));
        }
        p.within(["(", ")"], |p| {
            let value = expr(p, k)?;
            let Some((_, op)) = call else { return Ok(value) };
            Ok(op.of(value, p.after_comma(|p| expr(p, k))?))
        })
    })
}

pub(super) fn cond(p: &mut Parser<'_>, k: &Builder) -> Result<Cond> {
    let left = expr(p, k)?;
    let relation = Relation::ALL.into_iter().find(|row| p.eat(row.1)).map(|row| row.0);
    let relation = relation.ok_or_else(|| p.expected("a comparison: `<`, `>=`, `==` or `!=`"))?;
    Ok(Cond { left, relation, right: expr(p, k)? })
}

/// `a, (b, c)`
pub(super) fn trees(p: &mut Parser<'_>, k: &Builder) -> Result<Vec<IntTuple<Expr>>> {
    p.list(|p| tree(p, k))
}

fn tree(p: &mut Parser<'_>, k: &Builder) -> Result<IntTuple<Expr>> {
    if !p.opens_tuple() {
        return expr(p, k).map(IntTuple::Int);
    }
    p.nested(|p| p.within(["(", ")"], |p| trees(p, k)).map(IntTuple::Tuple))
}

/// `[a, (b, c)]`
pub(super) fn coords(p: &mut Parser<'_>, k: &Builder) -> Result<Vec<IntTuple<Expr>>> {
    p.within(["[", "]"], |p| trees(p, k))
}
