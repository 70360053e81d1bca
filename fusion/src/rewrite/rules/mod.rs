//! The rules: a table a subject.

mod activation;
mod algebra;
mod attention;
mod cell;
mod layout;
mod norm;
mod product;
mod recurrent;

use super::rule::{Compiled, Rule};

/// All tables.
pub(super) const TABLES: &[&[Rule]] = &[
    algebra::RULES,
    layout::RULES,
    activation::RULES,
    norm::RULES,
    attention::RULES,
    product::RULES,
    recurrent::RULES,
    cell::RULES,
];

/// All rules, ready to be searched.
pub(crate) fn compiled() -> Vec<Compiled> {
    TABLES.iter().copied().flatten().map(|rule| rule.compile()).collect()
}
