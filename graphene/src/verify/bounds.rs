//! What is known of indices where a statement is reached.

use crate::index::{Cond, Expr, Relation, Var};
use crate::kernel::{Kernel, Test};
use crate::tensor::View;

use super::together::Group;

/// Conditions that hold.
#[derive(Debug, Default, Clone)]
pub(super) struct Known {
    less: Vec<(Expr, Expr)>,
}

/// The comparisons that a test makes.
pub(super) fn conditions(kernel: &Kernel, test: &Test) -> Vec<Cond> {
    match test {
        Test::All(conds) => conds.clone(),
        Test::Inside(operand) => {
            kernel.operand(operand).map(|tensor| tensor.view.inside()).unwrap_or_default()
        }
    }
}

impl Known {
    /// A loop's counter stays below its end.
    pub(super) fn within(&mut self, counter: &Var, end: &Expr) {
        self.less.push((Expr::from(counter), end.clone()));
    }

    pub(super) fn add(&mut self, conds: &[Cond]) {
        for cond in conds {
            if cond.relation == Relation::Less {
                self.less.push((cond.left.clone(), cond.right.clone()));
            }
        }
    }

    /// A condition of [`View::inside`] that nothing implies for the active threads.
    pub(super) fn unproven(&self, view: &View, group: &Group) -> Option<Cond> {
        view.inside().into_iter().find(|cond| {
            let left = group.tighten(&cond.left);
            !cond.right.exceeds(&left) && !self.implies(cond)
        })
    }

    /// Whether some `a < b` that is known gives `left < right`: by `left - a <= right - b`.
    fn implies(&self, cond: &Cond) -> bool {
        let slack = cond.right.clone() - &cond.left;
        self.less.iter().any(|(a, b)| slack.reaches(&(b.clone() - a)))
    }
}
