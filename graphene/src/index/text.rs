//! How expressions print: `8*@m + @t/4 - 1`, with `min(a,b)` and `max(a,b)`.

use std::fmt;

use super::{Cond, Expr, Factor, Relation, Var};

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

impl fmt::Display for Relation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Relation::Less => "<",
            Relation::AtLeast => ">=",
            Relation::Equal => "==",
            Relation::Unequal => "!=",
        })
    }
}

impl Expr {
    /// The expression in C's notation, the variables named by `name`; `min` and `max` are calls.
    /// Negative and constant terms come last.
    pub fn render(&self, name: &dyn Fn(&Var) -> String) -> String {
        let mut terms: Vec<(&[Factor], i64)> = self.terms().collect();
        terms.sort_by_key(|(product, coefficient)| (product.is_empty(), *coefficient < 0));
        let mut text = String::new();
        for (product, coefficient) in terms {
            let sign = match (text.is_empty(), coefficient < 0) {
                (true, false) => "",
                (true, true) => "-",
                (false, false) => " + ",
                (false, true) => " - ",
            };
            text.push_str(sign);
            text.push_str(&render_term(product, coefficient.unsigned_abs(), name));
        }
        if text.is_empty() { "0".to_owned() } else { text }
    }
}

/// A quotient or remainder stands first: `*`, `/` and `%` bind alike, from the left.
fn render_term(product: &[Factor], coefficient: u64, name: &dyn Fn(&Var) -> String) -> String {
    let quotient = |factor: &Factor| matches!(factor, Factor::Div(..) | Factor::Mod(..));
    let plain = product.len() == 1 && coefficient == 1;
    let mut parts: Vec<String> = product
        .iter()
        .map(|factor| {
            let text = factor.render(name);
            if quotient(factor) && !plain { format!("({text})") } else { text }
        })
        .collect();
    if coefficient != 1 || parts.is_empty() {
        parts.push(coefficient.to_string());
    }
    parts.join("*")
}

impl Factor {
    fn render(&self, name: &dyn Fn(&Var) -> String) -> String {
        let operand = |expr: &Expr| {
            let text = expr.render(name);
            if text.contains([' ', '*', '/', '%']) { format!("({text})") } else { text }
        };
        match self {
            Factor::Var(var) => name(var),
            Factor::Div(a, b) => format!("{}/{}", operand(a), operand(b)),
            Factor::Mod(a, b) => format!("{}%{}", operand(a), operand(b)),
            Factor::Min(a, b) => format!("min({}, {})", a.render(name), b.render(name)),
            Factor::Max(a, b) => format!("max({}, {})", a.render(name), b.render(name)),
        }
    }
}
