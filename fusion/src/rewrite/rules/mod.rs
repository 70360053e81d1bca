//! The rules: a table a subject.

mod activation;
mod algebra;
mod attention;
mod cell;
mod layout;
mod matmul;
mod norm;
mod scores;

use super::rule::{Compiled, Rule};

/// All tables, each with whether both sides of its rules round alike, step by step.
pub(super) const TABLES: &[(&[Rule], bool)] = &[
    (algebra::RULES, false),
    (layout::RULES, true),
    (activation::RULES, false),
    (norm::RULES, false),
    (attention::RULES, false),
    (matmul::RULES, true),
    (cell::LAYERS, true),
    (cell::RULES, false),
];

pub(crate) fn compiled() -> Vec<Compiled> {
    let tables = TABLES.iter();
    tables.flat_map(|(rules, exact)| rules.iter().map(|rule| rule.compile(*exact))).collect()
}
