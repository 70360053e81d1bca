//! Index expressions, compiled: symbols are numbers, other variables are slots.

use std::collections::{BTreeMap, HashMap};

use crate::index::{Factor, Op};
use crate::{Cond, Error, Expr, Relation, Result, Var};

/// Where a variable's value lies among a warp's; a varying one has a value for each lane.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Slot {
    pub(super) at: usize,
    pub(super) varying: bool,
}

/// A compiled expression.
#[derive(Debug, Clone, Default)]
pub(super) struct Formula {
    constant: i64,
    linear: Vec<(i64, Slot)>,
    nonlinear: Vec<(i64, Vec<Term>)>,
    /// Whether the lanes of a warp may have different values.
    pub(super) varying: bool,
}

#[derive(Debug, Clone)]
enum Term {
    Slot(Slot),
    Of(Op, Formula, Formula),
}

/// A compiled comparison.
#[derive(Debug, Clone)]
pub(super) struct Check {
    pub(super) left: Formula,
    pub(super) relation: Relation,
    pub(super) right: Formula,
}

/// What expressions may mention.
#[derive(Debug)]
pub(super) struct Scope {
    symbols: HashMap<Var, i64>,
    slots: BTreeMap<Var, Slot>,
    thread: Var,
    threads: i64,
    /// The number of values that a warp has.
    pub(super) size: usize,
}

/// The value; the quotient by a divisor that is not positive, which no kernel should have, is 0.
fn value(op: Op, a: i64, b: i64) -> i64 {
    op.value(a, b).unwrap_or(if op == Op::Mod { a } else { 0 })
}

impl Slot {
    pub(super) fn of(self, lane: usize) -> usize {
        if self.varying { self.at + lane } else { self.at }
    }
}

impl Formula {
    pub(super) fn value(&self, slots: &[i64], lane: usize) -> i64 {
        let mut sum = self.constant;
        for (coefficient, slot) in &self.linear {
            sum = sum.wrapping_add(coefficient.wrapping_mul(slots[slot.of(lane)]));
        }
        for (coefficient, terms) in &self.nonlinear {
            let mut value = *coefficient;
            for term in terms {
                value = value.wrapping_mul(term.value(slots, lane));
            }
            sum = sum.wrapping_add(value);
        }
        sum
    }
}

impl Term {
    fn value(&self, slots: &[i64], lane: usize) -> i64 {
        match self {
            Term::Slot(slot) => slots[slot.of(lane)],
            Term::Of(op, a, b) => value(*op, a.value(slots, lane), b.value(slots, lane)),
        }
    }
}

impl Check {
    pub(super) fn holds(&self, slots: &[i64], lane: usize) -> bool {
        self.relation.compare(self.left.value(slots, lane), self.right.value(slots, lane))
    }
}

impl Scope {
    pub(super) fn new(symbols: HashMap<Var, i64>, thread: Var, threads: i64) -> Scope {
        Scope { symbols, slots: BTreeMap::new(), thread, threads, size: 0 }
    }

    /// Notes that a variable is assigned, with values that differ among lanes or not. Says whether that is news.
    pub(super) fn assign(&mut self, var: &Var, varying: bool) -> bool {
        let varying = varying || self.slot(var).is_some_and(|known| known.varying);
        let slot = Slot { at: 0, varying };
        self.slots.insert(var.clone(), slot) != Some(slot)
    }

    /// Gives the variables their places, once it is known which vary.
    pub(super) fn place(&mut self) {
        for slot in self.slots.values_mut() {
            slot.at = self.size;
            self.size += if slot.varying { 32 } else { 1 };
        }
    }

    pub(super) fn slot(&self, var: &Var) -> Option<Slot> {
        self.slots.get(var).copied()
    }

    pub(super) fn lookup(&self, var: &Var, slots: &[i64], lane: usize) -> Option<i64> {
        let symbol = self.symbols.get(var).copied();
        symbol.or_else(|| self.slot(var).map(|slot| slots[slot.of(lane)]))
    }

    /// Whether all lanes of a warp have the same value, as far as can be seen.
    pub(super) fn uniform(&self, expr: &Expr) -> bool {
        expr.terms().all(|(product, _)| product.iter().all(|factor| self.uniform_factor(factor)))
    }

    fn uniform_factor(&self, factor: &Factor) -> bool {
        let whole = Expr::from(factor.clone());
        let vars = whole.vars();
        if !vars.iter().any(|var| self.slot(var).is_some_and(|slot| slot.varying)) {
            return true;
        }
        if vars.iter().all(|var| *var == self.thread || self.symbols.contains_key(var)) {
            let own = |var: &Var, thread| (*var == self.thread).then_some(thread);
            let of = |var: &Var, thread| own(var, thread).or(self.symbols.get(var).copied());
            let value = |thread: i64| whole.value(&|var| of(var, thread));
            return (0..self.threads).all(|thread| value(thread) == value(thread / 32 * 32));
        }
        match factor {
            Factor::Var(_) => false,
            Factor::Of(_, a, b) => self.uniform(a) && self.uniform(b),
        }
    }

    /// The value of an expression that mentions symbols only. Fails with [`Error::Shape`] if it mentions anything else.
    pub(super) fn fixed(&self, expr: &Expr) -> Result<i64> {
        let value = expr.value(&|var| self.symbols.get(var).copied());
        value.ok_or_else(|| Error::Shape(format!("{expr} is not fixed at launch")))
    }

    /// Compiles a comparison. Fails as [`compile`](Scope::compile) does.
    pub(super) fn check(&self, cond: &Cond) -> Result<Check> {
        let (left, right) = (self.compile(&cond.left)?, self.compile(&cond.right)?);
        Ok(Check { left, relation: cond.relation, right })
    }

    /// Compiles an expression. Fails with [`Error::Shape`] for variables that nothing assigns, and divisors that are not fixed at
    /// launch or not positive.
    pub(super) fn compile(&self, expr: &Expr) -> Result<Formula> {
        let mut formula = Formula::default();
        let constant =
            |of: &Formula| (of.linear.is_empty() && of.nonlinear.is_empty()).then_some(of.constant);
        for (product, mut coefficient) in expr.terms() {
            let mut terms = Vec::new();
            for factor in product {
                match factor {
                    Factor::Var(var) => match (self.symbols.get(var), self.slot(var)) {
                        (Some(&number), _) => coefficient = coefficient.wrapping_mul(number),
                        (None, Some(slot)) => terms.push(Term::Slot(slot)),
                        (None, None) => return Err(Error::Shape(format!("{var} has no value"))),
                    },
                    Factor::Of(op, a, b) => {
                        let (a, b) = (self.compile(a)?, self.compile(b)?);
                        match constant(&a).zip(constant(&b)) {
                            Some((a, b)) => {
                                coefficient = coefficient.wrapping_mul(value(*op, a, b))
                            }
                            None => terms.push(Term::Of(*op, a, b)),
                        }
                    }
                }
            }
            match (coefficient, &terms[..]) {
                (0, _) => {}
                (_, []) => formula.constant = formula.constant.wrapping_add(coefficient),
                (_, [Term::Slot(slot)]) => formula.linear.push((coefficient, *slot)),
                (_, _) => formula.nonlinear.push((coefficient, terms)),
            }
        }
        let varying = |term: &Term| match term {
            Term::Slot(slot) => slot.varying,
            Term::Of(_, a, b) => a.varying || b.varying,
        };
        formula.varying = formula.linear.iter().any(|term| term.1.varying)
            || formula.nonlinear.iter().flat_map(|term| &term.1).any(varying);
        // What looks varying may be the same in each warp: a warp's number, for instance.
        formula.varying &= !self.uniform(expr);
        Ok(formula)
    }
}
