//! What is known of indices where a statement is reached.

use crate::index::{Cond, Expr, Relation, Var};
use crate::tensor::View;

use super::together::Group;

/// Conditions that hold.
#[derive(Debug, Default, Clone)]
pub(super) struct Known {
    less: Vec<(Expr, Expr)>,
    least: Vec<(Expr, Expr)>,
}

impl Known {
    /// A loop's counter stays below its end.
    pub(super) fn within(&mut self, counter: &Var, end: &Expr) {
        self.less.push((Expr::from(counter), end.clone()));
    }

    pub(super) fn add(&mut self, conds: &[Cond]) {
        for cond in conds {
            let sides = (cond.left.clone(), cond.right.clone());
            match cond.relation {
                Relation::Less => self.less.push(sides),
                Relation::AtLeast => self.least.push(sides),
                Relation::Equal | Relation::Unequal => {}
            }
        }
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

    /// Whether some `a < b` that is known gives `left < right`, by `b - a <= right - left`; or some
    /// `a >= b` gives `left >= right`, by `a - b <= left - right`.
    fn implies(&self, cond: &Cond) -> bool {
        let slack = cond.right.clone() - &cond.left;
        match cond.relation {
            Relation::Less => self.less.iter().any(|(a, b)| slack.reaches(&(b.clone() - a))),
            Relation::AtLeast => {
                let over = cond.left.clone() - &cond.right;
                self.least.iter().any(|(a, b)| over.reaches(&(a.clone() - b)))
            }
            Relation::Equal | Relation::Unequal => false,
        }
    }
}
