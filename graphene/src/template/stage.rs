//! Operands of a product in shared memory, stage by stage.

mod side;

pub(super) use self::side::{Movers, Side};
use super::product::{Declared, Place};
use crate::build::Builder;
use crate::error::Result;
use crate::index::{Cond, Expr, Relation, Var};
use crate::kernel::TensorId;

/// Of the steps along several K, one after the other, the term that a step belongs to: `body` is
/// given the term and the step within it, and is reached for one term, or for none past the end.
fn of_terms(
    k: &mut Builder,
    steps: &[Expr],
    step: &Expr,
    body: impl Fn(&mut Builder, usize, Expr) -> Result<()>,
) -> Result<()> {
    let mut first = Expr::from(0);
    for (term, count) in steps.iter().enumerate() {
        let end = first.clone() + count;
        let mut conds = vec![Cond::less(step, &end)];
        if term > 0 {
            conds.push(Cond::new(step, Relation::AtLeast, &first));
        }
        let own = (step.clone() - &first).max(Expr::from(0));
        k.if_(conds, |k| body(k, term, own))?;
        first = end;
    }
    Ok(())
}

/// The stages of both operands, and the tiles that fill them.
pub(super) struct Stages {
    sides: [Side; 2],
    shared: [TensorId; 2],
    /// A and B of each term, in tiles.
    terms: Vec<[TensorId; 2]>,
}

impl Stages {
    pub(super) fn new(
        k: &mut Builder,
        declared: &Declared,
        sides: [Side; 2],
        stages: i64,
    ) -> Result<Stages> {
        let [a, b] = sides;
        let shared = [a.allocate(k, "sA", stages)?, b.allocate(k, "sB", stages)?];
        let batched = declared.batch.is_some();
        let mut terms = Vec::new();
        for term in &declared.terms {
            terms.push([a.tiled(k, term.a, batched)?, b.tiled(k, term.b, batched)?]);
        }
        Ok(Stages { sides, shared, terms })
    }

    /// Fills a stage for a step along the K of all terms, of so many `steps` each; does nothing past
    /// the end.
    pub(super) fn fill(
        &self,
        k: &mut Builder,
        steps: &[Expr],
        place: &Place,
        step: &Expr,
        stage: &Var,
        movers: Movers<'_>,
    ) -> Result<()> {
        of_terms(k, steps, step, |k, term, step| {
            let at_b = place.at(step.clone(), place.n.clone());
            let at = [place.at(place.m.clone(), step), at_b];
            for (i, at) in at.into_iter().enumerate() {
                let from = k.index(self.terms[term][i], "tile", at)?;
                let to = k.index(self.shared[i], "stage", [stage])?;
                self.sides[i].fill(k, from, to, movers)?;
            }
            Ok(())
        })
    }

    /// A stage's tiles of A and B.
    pub(super) fn of(&self, k: &mut Builder, stage: &Var) -> Result<[TensorId; 2]> {
        let [a, b] = self.shared;
        Ok([k.index(a, "a", [stage])?, k.index(b, "b", [stage])?])
    }
}
