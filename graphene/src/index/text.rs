//! How expressions print: `8*@m + @t/4 - 1`, `min(@a, @b)`.

use std::fmt;

use super::{Cond, Expr, Factor, Op, Var};

impl fmt::Display for Var {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "@{}", self.name())
    }
}

impl fmt::Display for Expr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.render(&|var| var.to_string()))
    }
}

impl fmt::Display for Cond {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {}", self.left, self.relation, self.right)
    }
}

impl Expr {
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

impl Factor {
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

impl Expr {
    /// Whether this prints as a number, a name or a call, which bind tighter than operators.
    pub(crate) fn is_primary(&self) -> bool {
        match self.constant() {
            Some(value) => value >= 0,
            None => {
                let mut terms = self.terms();
                let first = terms.next();
                let single = terms.next().is_none();
                let divides = |factor: &Factor| matches!(factor, Factor::Of(Op::Div | Op::Mod, ..));
                single && matches!(first, Some(([factor], 1)) if !divides(factor))
            }
        }
    }
}
