//! Index expressions: integers computed from loop counters, coordinates of threads and blocks, and a kernel's parameters.
//!
//! An expression is a polynomial kept in one canonical form, so that equal sums compare equal and print alike. What is not
//! polynomial (division, remainder, minimum, maximum) is a factor of it. Constructors simplify by the variables' ranges
//! (Graphene, section 5.5): with `@t < 32`, `(16*@m + @t) / 16` stays, and `(32*@m + @t) / 32` is `@m`.

mod simplify;

use std::{cmp::Ordering, fmt, sync::Arc};

use smallvec::SmallVec;

use crate::{convert::display, named::named};

/// A variable. Two of one name are one variable; all values are at least 0.
#[derive(Clone)]
pub struct Var {
    name: Arc<str>,
    max: Option<i64>,
}

/// A sum of products of factors, each with a coefficient that is not 0. Copies share their terms.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Expr(Terms);

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Terms {
    /// A number alone.
    Constant(i64),
    /// Any other sum, in the order of the terms' factors.
    Sum(Arc<Vec<Term>>),
}

/// Factors in their order, and their coefficient.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Term {
    product: Factors,
    coefficient: i64,
}

type Factors = SmallVec<[Factor; 1]>;

/// Those of a constant.
static NO_FACTORS: Factors = SmallVec::new_const();

/// What a term of an [`Expr`] is made of.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Factor {
    /// A variable.
    Var(Var),
    /// What no polynomial says of two expressions.
    Of(Op, Expr, Expr),
}

/// A function of two integers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Op {
    /// The quotient, rounded down; operands are not negative.
    Div,
    /// The remainder of that quotient.
    Mod,
    /// The smaller one.
    Min,
    /// The larger one.
    Max,
}

/// A comparison of two expressions: `left relation right`.
#[allow(missing_docs)]
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Cond {
    pub left: Expr,
    pub relation: Relation,
    pub right: Expr,
}

named! {
    /// How two sides compare.
    pub enum Relation {
        Less = "<",
        AtLeast = ">=",
        Equal = "==",
        Unequal = "!=",
    }
}

impl Var {
    /// A variable with values `0..=max`, or without an upper bound.
    pub fn new(name: &str, max: Option<i64>) -> Var {
        Var { name: name.into(), max }
    }

    /// The name, without its sigil.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The largest value, if there is one.
    pub fn max(&self) -> Option<i64> {
        self.max
    }
}

impl Expr {
    /// The constant's value, if this is one.
    pub fn constant(&self) -> Option<i64> {
        match self.0 {
            Terms::Constant(value) => Some(value),
            Terms::Sum(_) => None,
        }
    }

    /// Whether this is the constant `value`.
    pub fn is(&self, value: i64) -> bool {
        self.constant() == Some(value)
    }

    /// The terms: their factors, and their coefficients.
    pub fn terms(&self) -> impl Iterator<Item = (&[Factor], i64)> {
        self.in_order().map(|(product, coefficient)| (&product[..], coefficient))
    }

    fn in_order(&self) -> impl Iterator<Item = (&Factors, i64)> {
        let (constant, sum) = match &self.0 {
            Terms::Constant(0) => (None, &[][..]),
            Terms::Constant(value) => (Some((&NO_FACTORS, *value)), &[][..]),
            Terms::Sum(sum) => (None, &sum[..]),
        };
        constant.into_iter().chain(sum.iter().map(|term| (&term.product, term.coefficient)))
    }

    /// The value, given one for every variable. `None` where one is missing, a divisor is not positive, or it overflows.
    pub fn value(&self, of: &dyn Fn(&Var) -> Option<i64>) -> Option<i64> {
        self.terms().try_fold(0_i64, |sum, (product, coefficient)| {
            let mut factors = product.iter();
            let product = factors.try_fold(coefficient, |all, by| all.checked_mul(by.value(of)?));
            sum.checked_add(product?)
        })
    }

    /// The expression with `with` in place of `var`.
    pub fn substitute(&self, var: &Var, with: &Expr) -> Expr {
        let terms = self.terms().map(|(product, coefficient)| {
            let factors = product.iter().map(|factor| factor.substitute(var, with));
            Expr::of_factors(factors) * coefficient
        });
        terms.sum()
    }

    /// Calls `visit` on every variable, some more than once.
    pub fn each_var(&self, visit: &mut dyn FnMut(&Var)) {
        for factor in self.terms().flat_map(|(product, _)| product) {
            match factor {
                Factor::Var(var) => visit(var),
                Factor::Of(_, a, b) => [a, b].into_iter().for_each(|of| of.each_var(visit)),
            }
        }
    }

    /// Its variables, some more than once.
    pub(crate) fn vars(&self) -> Vec<Var> {
        let mut all = Vec::new();
        self.each_var(&mut |var| all.push(var.clone()));
        all
    }

    /// Whether something in it is divided by what is never positive.
    pub fn divides_by_nothing(&self) -> bool {
        let never = |divisor: &Expr| divisor.range().1.is_some_and(|most| most < 1);
        self.terms().flat_map(|(product, _)| product).any(|factor| match factor {
            Factor::Var(_) => false,
            Factor::Of(Op::Div | Op::Mod, _, b) if never(b) => true,
            Factor::Of(_, a, b) => a.divides_by_nothing() || b.divides_by_nothing(),
        })
    }

    /// Whether `var` occurs.
    pub fn mentions(&self, var: &Var) -> bool {
        let mut found = false;
        self.each_var(&mut |other| found |= other == var);
        found
    }

    /// The expression in C's notation, the variables named by `name`; `min` and `max` are calls.
    /// Negative terms come last, and constants after what they are added to.
    pub fn render(&self, name: &dyn Fn(&Var) -> String) -> String {
        let mut terms: Vec<(&[Factor], i64)> = self.terms().collect();
        terms.sort_by_key(|(product, coefficient)| (*coefficient < 0, product.is_empty()));
        let mut text = String::new();
        for (product, coefficient) in terms {
            let sign = match (text.is_empty(), coefficient < 0) {
                (true, false) => "",
                (true, true) => "-",
                (false, false) => " + ",
                (false, true) => " - ",
            };
            text.push_str(sign);
            // The sign of a first term binds to the factor behind it.
            let alone = product.len() == 1 && coefficient.unsigned_abs() == 1 && sign != "-";
            text.push_str(&render_term(product, coefficient.unsigned_abs(), alone, name));
        }
        if text.is_empty() { "0".to_owned() } else { text }
    }

    /// Whether this prints as a number, a name or a call, which bind tighter than operators.
    pub(crate) fn is_primary(&self) -> bool {
        match self.constant() {
            Some(value) => value >= 0,
            None => {
                let divides = |factor: &Factor| matches!(factor, Factor::Of(Op::Div | Op::Mod, ..));
                matches!(self.only_factor(), Some((factor, 1)) if !divides(factor))
            }
        }
    }
}

impl Factor {
    fn value(&self, of: &dyn Fn(&Var) -> Option<i64>) -> Option<i64> {
        match self {
            Factor::Var(var) => of(var),
            Factor::Of(op, a, b) => op.value(a.value(of)?, b.value(of)?),
        }
    }

    fn substitute(&self, var: &Var, with: &Expr) -> Expr {
        let inside = |expr: &Expr| expr.substitute(var, with);
        match self {
            Factor::Var(this) if this == var => with.clone(),
            Factor::Var(this) => Expr::from(this),
            Factor::Of(op, a, b) => op.of(inside(a), inside(b)),
        }
    }

    fn render(&self, name: &dyn Fn(&Var) -> String) -> String {
        let operand = |expr: &Expr| {
            let text = expr.render(name);
            if expr.is_primary() { text } else { format!("({text})") }
        };
        match self {
            Factor::Var(var) => name(var),
            Factor::Of(Op::Div, a, b) => format!("{}/{}", operand(a), operand(b)),
            Factor::Of(Op::Mod, a, b) => format!("{}%{}", operand(a), operand(b)),
            Factor::Of(Op::Min, a, b) => format!("min({}, {})", a.render(name), b.render(name)),
            Factor::Of(Op::Max, a, b) => format!("max({}, {})", a.render(name), b.render(name)),
        }
    }
}

/// `*`, `/` and `%` bind alike, from the left: a quotient stands in parentheses unless alone.
fn render_term(
    product: &[Factor],
    coefficient: u64,
    alone: bool,
    name: &dyn Fn(&Var) -> String,
) -> String {
    let number = (coefficient != 1 || product.is_empty()).then(|| coefficient.to_string());
    let factors = product.iter().map(|factor| match factor {
        Factor::Of(Op::Div | Op::Mod, ..) if !alone => format!("({})", factor.render(name)),
        _ => factor.render(name),
    });
    number.into_iter().chain(factors).collect::<Vec<_>>().join("*")
}

impl Op {
    /// The value; none where a divisor is not positive.
    pub(crate) fn value(self, a: i64, b: i64) -> Option<i64> {
        match self {
            Op::Div => (b > 0).then(|| a.div_euclid(b)),
            Op::Mod => (b > 0).then(|| a.rem_euclid(b)),
            Op::Min => Some(a.min(b)),
            Op::Max => Some(a.max(b)),
        }
    }

    /// The function of these, simplified.
    pub(crate) fn of(self, a: Expr, b: Expr) -> Expr {
        match self {
            Op::Div => a.div(&b),
            Op::Mod => a.rem(&b),
            Op::Min => a.min(b),
            Op::Max => a.max(b),
        }
    }
}

impl Cond {
    /// A comparison.
    pub fn new(left: impl Into<Expr>, relation: Relation, right: impl Into<Expr>) -> Cond {
        Cond { left: left.into(), relation, right: right.into() }
    }

    /// `left < right`.
    pub fn less(left: impl Into<Expr>, right: impl Into<Expr>) -> Cond {
        Cond::new(left, Relation::Less, right)
    }

    /// `left == right`.
    pub fn equal(left: impl Into<Expr>, right: impl Into<Expr>) -> Cond {
        Cond::new(left, Relation::Equal, right)
    }
}

impl Relation {
    /// Whether two values compare so.
    pub fn compare(self, left: i64, right: i64) -> bool {
        match self {
            Relation::Less => left < right,
            Relation::AtLeast => left >= right,
            Relation::Equal => left == right,
            Relation::Unequal => left != right,
        }
    }
}

impl Default for Expr {
    fn default() -> Expr {
        Expr(Terms::Constant(0))
    }
}

impl PartialOrd for Expr {
    fn partial_cmp(&self, other: &Expr) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// As of the lists of terms, of which a constant has one, and 0 none.
impl Ord for Expr {
    fn cmp(&self, other: &Expr) -> Ordering {
        self.in_order().cmp(other.in_order())
    }
}

impl PartialEq for Var {
    fn eq(&self, other: &Var) -> bool {
        self.name == other.name
    }
}

impl Eq for Var {}

impl PartialOrd for Var {
    fn partial_cmp(&self, other: &Var) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Var {
    fn cmp(&self, other: &Var) -> Ordering {
        self.name.cmp(&other.name)
    }
}

impl std::hash::Hash for Var {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.name.hash(state);
    }
}

impl fmt::Debug for Var {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "@{}", self.name)
    }
}

display! {
    Var: |var, f| write!(f, "@{}", var.name);
    Expr: |expr, f| f.write_str(&expr.render(&|var| var.to_string()));
    Cond: |cond, f| write!(f, "{} {} {}", cond.left, cond.relation, cond.right);
}
