//! Index expressions: what the constructors simplify has the value that was written.
//!
//! Trees of operators are drawn at random and computed twice, naively and through [`Expr`].

use std::collections::BTreeMap;

use graphene_ir::index::{Cond, Expr, Factor, Op, Relation, Var};

use crate::support::holds;

/// A generator of pseudo-random numbers (xorshift64*), so that failures repeat.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Random {
        Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// A number in `0..end`.
    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) % end
    }

    pub(crate) fn within(&mut self, low: i64, high: i64) -> i64 {
        low + i64::try_from(self.below(u64::try_from(high - low + 1).unwrap())).unwrap()
    }

    fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[usize::try_from(self.below(from.len() as u64)).unwrap()]
    }
}

/// An expression as it is written.
#[derive(Debug)]
enum Tree {
    Number(i64),
    Var(Var),
    Node(&'static str, Box<(Tree, Tree)>),
}

/// `@s` and `@t` have no upper bound, as the symbols of a kernel.
pub(crate) fn variables() -> Vec<Var> {
    let maxima = [("a", 0), ("b", 1), ("c", 3), ("d", 7), ("e", 31), ("f", 127), ("g", 5)];
    let bounded = maxima.map(|(name, max)| Var::new(name, Some(max)));
    [&bounded[..], &[Var::new("s", None), Var::new("t", None)]].concat()
}

fn tree(random: &mut Random, vars: &[Var], depth: u32) -> Tree {
    let numbers = [0, 1, 1, 2, 2, 3, 4, 4, 5, 8, 8, 12, 16, 32, 64, 128, -1, -2, -8];
    if depth == 0 || random.below(8) == 0 {
        return match random.below(3) {
            0 => Tree::Number(*random.pick(&numbers)),
            _ => Tree::Var(random.pick(vars).clone()),
        };
    }
    let op = *random.pick(&["+", "+", "-", "*", "*", "/", "/", "%", "%", "min", "max", "ceil"]);
    let left = tree(random, vars, depth - 1);
    // Divisors are constants for the most part, as they are in kernels.
    let divides = ["/", "%", "ceil"].contains(&op) && random.below(4) > 0;
    let right = if divides || (op == "*" && random.below(2) == 0) {
        Tree::Number(*random.pick(&numbers))
    } else {
        tree(random, vars, depth - 1)
    };
    Tree::Node(op, Box::new((left, right)))
}

impl Tree {
    fn naive(&self, of: &dyn Fn(&Var) -> Option<i64>) -> Option<i64> {
        match self {
            Tree::Number(value) => Some(*value),
            Tree::Var(var) => of(var),
            Tree::Node(op, both) => {
                let (a, b) = (both.0.naive(of)?, both.1.naive(of)?);
                match *op {
                    "+" => a.checked_add(b),
                    "-" => a.checked_sub(b),
                    "*" => a.checked_mul(b),
                    "/" => (b > 0).then(|| a.div_euclid(b)),
                    "%" => (b > 0).then(|| a.rem_euclid(b)),
                    "ceil" => (b > 0).then(|| -(-a).div_euclid(b)),
                    "min" => Some(a.min(b)),
                    "max" => Some(a.max(b)),
                    _ => unreachable!("no such operator"),
                }
            }
        }
    }

    fn expr(&self) -> Expr {
        match self {
            Tree::Number(value) => Expr::from(*value),
            Tree::Var(var) => Expr::from(var),
            Tree::Node(op, both) => {
                let (a, b) = (both.0.expr(), both.1.expr());
                match *op {
                    "+" => a + b,
                    "-" => a - b,
                    "*" => a * b,
                    "/" => a.div(&b),
                    "%" => a.rem(&b),
                    "ceil" => a.ceil_div(&b),
                    "min" => a.min(b),
                    "max" => a.max(b),
                    _ => unreachable!("no such operator"),
                }
            }
        }
    }
}

/// An expression drawn at random.
pub(crate) fn expression(random: &mut Random, vars: &[Var]) -> Expr {
    let depth = 1 + u32::try_from(random.below(4)).unwrap();
    tree(random, vars, depth).expr()
}

/// Values within the variables' ranges, by position.
fn values(random: &mut Random, vars: &[Var]) -> Vec<i64> {
    vars.iter().map(|var| random.within(0, var.max().unwrap_or(200))).collect()
}

fn look_up<'a>(vars: &'a [Var], values: &'a [i64]) -> impl Fn(&Var) -> Option<i64> + 'a {
    move |var| vars.iter().position(|other| other == var).map(|at| values[at])
}

#[test]
fn simplified_expressions_have_the_value_that_was_written() {
    let vars = variables();
    let mut random = Random::new(1);
    let mut computed = 0;
    for _ in 0..60_000 {
        let depth = 1 + u32::try_from(random.below(5)).unwrap();
        let tree = tree(&mut random, &vars, depth);
        let expr = tree.expr();
        let (low, high) = expr.range();
        for _ in 0..12 {
            let values = values(&mut random, &vars);
            let of = look_up(&vars, &values);
            let Some(value) = tree.naive(&of) else { continue };
            computed += 1;
            assert_eq!(expr.value(&of), Some(value), "{tree:?}\n{expr} at {values:?}");
            assert!(low.is_none_or(|low| low <= value), "{expr} >= {low:?} at {values:?}");
            assert!(high.is_none_or(|high| value <= high), "{expr} <= {high:?} at {values:?}");
        }
    }
    assert!(computed > 300_000, "{computed}");
}

/// The value where `/` and `%` round towards zero, as they do in C; `None` where they would have
/// to round a negative number.
fn in_c(expr: &Expr, of: &dyn Fn(&Var) -> Option<i64>) -> Option<i64> {
    let factor = |factor: &Factor| {
        let quotient = |a, b| {
            let (a, b) = (in_c(a, of)?, in_c(b, of)?);
            (a >= 0 && b > 0).then_some((a, b))
        };
        match factor {
            Factor::Var(var) => of(var),
            Factor::Of(Op::Div, a, b) => quotient(a, b).map(|(a, b)| a / b),
            Factor::Of(Op::Mod, a, b) => quotient(a, b).map(|(a, b)| a % b),
            Factor::Of(Op::Min, a, b) => Some(in_c(a, of)?.min(in_c(b, of)?)),
            Factor::Of(Op::Max, a, b) => Some(in_c(a, of)?.max(in_c(b, of)?)),
        }
    };
    expr.terms().try_fold(0, |sum, (product, coefficient)| {
        product.iter().try_fold(coefficient, |value, f| Some(value * factor(f)?)).map(|v| sum + v)
    })
}

impl Tree {
    /// Whether it divides nothing negative.
    fn is_defined_in_c(&self, of: &dyn Fn(&Var) -> Option<i64>) -> bool {
        match self {
            Tree::Number(_) | Tree::Var(_) => true,
            Tree::Node(op, both) => {
                let divides = ["/", "%", "ceil"].contains(op);
                (!divides || both.0.naive(of).is_some_and(|value| value >= 0))
                    && both.0.is_defined_in_c(of)
                    && both.1.is_defined_in_c(of)
            }
        }
    }
}

#[test]
fn simplification_makes_no_dividend_negative() {
    let vars = variables();
    let mut random = Random::new(4);
    let mut computed = 0;
    for _ in 0..60_000 {
        let depth = 1 + u32::try_from(random.below(5)).unwrap();
        let tree = tree(&mut random, &vars, depth);
        let expr = tree.expr();
        for _ in 0..12 {
            let values = values(&mut random, &vars);
            let of = look_up(&vars, &values);
            let Some(value) = tree.naive(&of).filter(|_| tree.is_defined_in_c(&of)) else {
                continue;
            };
            computed += 1;
            assert_eq!(in_c(&expr, &of), Some(value), "{tree:?}\n{expr} at {values:?}");
        }
    }
    assert!(computed > 200_000, "{computed}");
}

#[test]
fn substitution_is_evaluation() {
    let vars = variables();
    let mut random = Random::new(2);
    let mut computed = 0;
    for _ in 0..10_000 {
        let expr = expression(&mut random, &vars);
        let at = usize::try_from(random.below(vars.len() as u64)).unwrap();
        for _ in 0..4 {
            let values = values(&mut random, &vars);
            let of = look_up(&vars, &values);
            let Some(value) = expr.value(&of) else { continue };
            computed += 1;
            let with = expr.substitute(&vars[at], &Expr::from(values[at]));
            assert!(!with.mentions(&vars[at]), "{with}");
            assert_eq!(with.value(&of), Some(value), "{expr} with {} = {}", vars[at], values[at]);
        }
    }
    assert!(computed > 20_000, "{computed}");
}

#[test]
fn known_comparisons_hold() {
    let vars = variables();
    let mut random = Random::new(3);
    let (mut exceed, mut reach) = (0, 0);
    for _ in 0..20_000 {
        let (a, b) = (expression(&mut random, &vars), expression(&mut random, &vars));
        let relations = [
            (a.exceeds(&b), Cond::less(&b, &a)),
            (a.reaches(&b), Cond::new(&a, Relation::AtLeast, &b)),
        ];
        exceed += u32::from(relations[0].0);
        reach += u32::from(relations[1].0);
        for (_, cond) in relations.iter().filter(|(known, _)| *known) {
            for _ in 0..8 {
                let values = values(&mut random, &vars);
                let of = look_up(&vars, &values);
                assert!(holds(cond, &of) != Some(false), "{cond} at {values:?}");
            }
        }
    }
    assert!(exceed > 500 && reach > exceed, "{exceed} {reach}");
}

fn check(expr: &Expr, text: &str) {
    assert_eq!(expr.to_string(), text);
}

#[test]
fn ranges_simplify() {
    let [m, t] = [("m", None), ("t", Some(31))].map(|(name, max)| Expr::from(Var::new(name, max)));
    let number = |value: i64| Expr::from(value);
    check(&(m.clone() * 16 + &t).div(number(16)), "@m + @t/16");
    check(&(m.clone() * 32 + &t).div(number(32)), "@m");
    check(&(m.clone() * 32 + &t).rem(number(32)), "@t");
    check(&t.div(number(4)).div(number(2)), "@t/8");
    check(&t.rem(number(16)).div(number(4)), "(@t/4)%4");
    check(&t.div(number(4)).rem(number(8)), "@t/4");
    check(&t.clone().min(number(40)), "@t");
    check(&t.clone().max(number(40)), "40");
    check(&m.ceil_div(number(128)), "(@m + 127)/128");
}

#[test]
fn expressions_print_as_c() {
    let [m, t] = [("m", None), ("t", Some(31))].map(|(name, max)| Expr::from(Var::new(name, max)));
    let number = |value: i64| Expr::from(value);
    let quotient = t.div(number(4));
    check(&(m.clone() * 8 + &quotient - 1), "8*@m + @t/4 - 1");
    check(&(number(1) - &t), "1 - @t");
    check(&(number(0) - &quotient), "-(@t/4)");
    check(&(m.clone() * &quotient * 3), "3*@m*(@t/4)");
    check(&(number(3) - &t).max(m.clone()).div(&m), "max(3 - @t, @m)/@m");
    check(&(number(0) - &m).div(&t), "(-@m)/@t");
    check(&m.div(&(m.clone() * 2)), "@m/(2*@m)");
    check(&(m.clone() * &m - &t), "@m*@m - @t");
    check(&Expr::from(-3), "-3");
    check(&Expr::from(0), "0");
}

/// Terms by their factors: what an expression is.
type Terms = BTreeMap<Vec<Factor>, i64>;

fn sum_of(left: &Terms, right: &Terms) -> Terms {
    let mut sum = left.clone();
    for (product, coefficient) in right {
        *sum.entry(product.clone()).or_default() += coefficient;
    }
    sum.retain(|_, coefficient| *coefficient != 0);
    sum
}

fn product_of(left: &Terms, right: &Terms) -> Terms {
    let pairs = left.iter().flat_map(|a| right.iter().map(move |b| (a, b)));
    let each = pairs.map(|((a, by), (b, with))| {
        let mut factors = [&a[..], b].concat();
        factors.sort();
        Terms::from([(factors, by * with)])
    });
    each.fold(Terms::new(), |sum, one| sum_of(&sum, &one))
}

#[test]
fn expressions_are_sorted_lists_of_terms() {
    let (vars, mut random) = (&variables()[1..], Random::new(11));
    let half = Factor::Of(Op::Div, Expr::from(&vars[1]) + 1, Expr::from(2));
    let mut all: Vec<(Expr, Terms)> = vec![(Expr::default(), Terms::new())];
    for _ in 0..600 {
        let pair = match random.below(6) {
            0 => {
                let number = random.within(-3, 3);
                let terms = (number != 0).then(|| (Vec::new(), number));
                (Expr::from(number), terms.into_iter().collect())
            }
            1 => (half.clone().into(), Terms::from([(vec![half.clone()], 1)])),
            2 => {
                let var = random.pick(vars).clone();
                (Expr::from(&var), Terms::from([(vec![Factor::Var(var)], 1)]))
            }
            op => {
                let [(a, own), (b, other)] = [0, 1].map(|_| random.pick(&all).clone());
                let small = own.len() * other.len() <= 12;
                match op {
                    5 if small => (a * b, product_of(&own, &other)),
                    _ => (a + b, sum_of(&own, &other)),
                }
            }
        };
        if pair.1.values().all(|coefficient| coefficient.abs() < 1 << 20) {
            all.push(pair);
        }
    }
    for (expr, terms) in &all {
        let own = terms.iter().map(|(product, &coefficient)| (&product[..], coefficient));
        assert!(expr.terms().eq(own), "{expr}: {terms:?}");
        let constant = match terms.len() {
            0 => Some(0),
            1 => terms.get(&Vec::new()).copied(),
            _ => None,
        };
        assert_eq!(expr.constant(), constant, "{expr}");
        for (other, of_other) in &all {
            assert_eq!(expr == other, terms == of_other, "{expr} and {other}");
            assert_eq!(expr.cmp(other), terms.cmp(of_other), "{expr} and {other}");
        }
    }
}
