//! What is done before predecessors are (programmatic dependent launch): a layer's weights, which they have not made, are on
//! their way then.

use super::producer::Fill;
use super::{Context, GROUP, Gemm, PANEL};
use crate::build::Builder;
use crate::error::Result;
use crate::index::{Cond, Expr, Relation};
use crate::kernel::{Kind, Operand, Test};

impl Gemm {
    /// Whether the first stages' B is copied before predecessors are done: where its copies are a block's own, of one
    /// product, and a block may have begun by then.
    pub(super) fn has_pdl_prologue(&self) -> bool {
        let own = self.cluster == 1 && self.product.terms == 1;
        self.weights && own && self.is_light()
    }
}

impl Context<'_> {
    /// Brings what the first stages hold of the block's first tile of B, and asks for the lines of the rest.
    pub(super) fn pdl_prologue(&self, k: &mut Builder) -> Result<()> {
        let gemm = self.gemm;
        if gemm.has_pdl_prologue() {
            let first = GROUP * gemm.consumers;
            let any = Cond::new(self.first.clone(), Relation::Less, self.walk.count());
            k.role(self.block, first..first + 1, |k| k.if_(any, |k| self.fill_prologue(k)))?;
        }
        if gemm.prefetch { self.prefetch(k) } else { Ok(()) }
    }

    /// Copies of B into the first stages, whose barriers expect A as well. A tile of fewer steps fills no more of them.
    fn fill_prologue(&self, k: &mut Builder) -> Result<()> {
        let gemm = self.gemm;
        let place = &self.walk.place(k, self.first.clone())?;
        let from = self.operands(k, gemm.box_a(), gemm.box_b())?;
        let (first, steps) = self.own_steps(0);
        let stages = steps.min(Expr::from(gemm.stages));
        k.for_("early", Expr::from(0)..stages, 1, false, |k, number| {
            let full = Operand::at(self.pipeline.full, [number]);
            self.expect(k, &full)?;
            let [_, to] = self.stage(k, number, gemm.box_a(), gemm.box_b())?;
            let (step, stage, number) = (first.clone() + number, number, number.into());
            let fill = Fill { term: 0, place, step, stage, number };
            self.bring_b(k, (from[0][1], to), &fill, &full)
        })
    }

    /// All threads ask for the lines of the block's first tile of B, of each term, that no stage has begun with.
    fn prefetch(&self, k: &mut Builder) -> Result<()> {
        let (gemm, depth) = (self.gemm, self.gemm.depth());
        let [thread] = k.indices(self.block, ["thread"])?;
        let place = self.walk.place(k, self.first.clone())?;
        let threads = GROUP * (gemm.consumers + 1);
        for (number, term) in self.declared.terms.iter().enumerate() {
            let b = self.tiled(k, term.b, "lines", [depth, gemm.columns])?;
            // A line is 128 bytes: of a column's depth, or of a row's columns.
            let of_step = match gemm.product.b_transposed {
                true => depth * (gemm.columns / PANEL),
                false => gemm.columns,
            };
            let (first, steps) = self.own_steps(number);
            let begun = match gemm.has_pdl_prologue() {
                true => steps.clone().min(Expr::from(gemm.stages)),
                false => Expr::from(0),
            };
            let rounds = ((steps - begun.clone()) * of_step).ceil_div(&Expr::from(threads));
            k.for_("round", Expr::from(0)..rounds, 1, false, |k, round| {
                let line = Expr::from(round) * threads + &thread;
                let step = first.clone() + begun.clone() + line.div(&of_step.into());
                let line = line.rem(&of_step.into());
                let tile = k.index(b, "tile", place.at(step, place.n.clone()))?;
                let within = match gemm.product.b_transposed {
                    true => [line.rem(&depth.into()), line.div(&depth.into()) * PANEL],
                    false => [Expr::from(0), line],
                };
                let batch = gemm.product.batched.then_some(Expr::from(0));
                let at: Vec<Expr> = batch.into_iter().chain(within).collect();
                let first = k.index(tile, "first", at)?;
                k.if_(Test::Inside(first.into()), |k| k.spec(Kind::Prefetch, (), first, self.one))
            })?;
        }
        Ok(())
    }
}
