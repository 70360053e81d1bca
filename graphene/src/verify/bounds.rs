//! What is known of indices where a statement is reached.

use crate::{Cond, Expr, Relation, View};

use super::together::Group;

/// Conditions that hold: what is at least 0.
#[derive(Debug, Default, Clone)]
pub(super) struct Known(Vec<Expr>);

impl Known {
    pub(super) fn add(&mut self, conds: &[Cond]) {
        self.0.extend(conds.iter().filter_map(gap));
    }

    /// A condition of [`View::inside`] that nothing implies for the active threads.
    pub(super) fn unproven(&self, view: &View, group: &Group) -> Option<Cond> {
        view.inside().into_iter().find(|cond| {
            let proven = match cond.relation {
                Relation::Less => cond.right.exceeds(&group.tighten(&cond.left)),
                Relation::AtLeast => group.least(&cond.left).is_some_and(|least| least >= 0),
                Relation::Equal | Relation::Unequal => false,
            };
            !proven && !self.implies(cond)
        })
    }

    /// Whether some gap that is known, or a multiple of it, is no larger than the condition's: `i < 48` gives `4*i + 3 < 192`.
    fn implies(&self, cond: &Cond) -> bool {
        let Some(wanted) = gap(cond) else { return false };
        self.0.iter().any(|known| {
            // Of a multiple that matters, some term is one of what is wanted.
            let multiples = known.terms().filter_map(|(product, one)| {
                let (_, all) = wanted.terms().find(|(other, _)| *other == product)?;
                (!product.is_empty() && all.checked_rem(one)? == 0).then(|| all / one)
            });
            let mut multiples = std::iter::once(1).chain(multiples.filter(|&times| times > 0));
            multiples.any(|times| wanted.reaches(&(known.clone() * times)))
        })
    }
}

/// What is at least 0 where a condition holds.
fn gap(cond: &Cond) -> Option<Expr> {
    let (left, right) = (cond.left.clone(), cond.right.clone());
    match cond.relation {
        Relation::Less => Some(right - left - 1),
        Relation::AtLeast => Some(left - right),
        Relation::Equal | Relation::Unequal => None,
    }
}
