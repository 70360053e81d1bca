//! Filling stages by moves of single elements, which need not be aligned.

use super::producer::Fill;
use super::{Context, GROUP};
use crate::build::Builder;
use crate::error::Result;
use crate::index::{Expr, Var};
use crate::kernel::{Fence, Kind, Number, Operand, TensorId, Test, ThreadsId};
use crate::tensor::{Memory, View};

impl Context<'_> {
    /// All threads move elements, zeros where there are none.
    pub(super) fn fill_by_moves(&self, k: &mut Builder, own: ThreadsId) -> Result<()> {
        let (gemm, depth) = (self.gemm, self.gemm.depth());
        let from = self.operands(k, [gemm.rows(), depth], [depth, gemm.columns])?;
        let [thread] = k.indices(own, ["mover"])?;
        self.each_stage(k, own, |k, fill, full| {
            let Fill { term, place, step, stage, .. } = fill;
            let [from_a, from_b] = from[*term];
            let at_a = place.at(place.m.clone(), step.clone());
            let at_b = place.at(step.clone(), place.n.clone());
            for (i, (from, at)) in [(from_a, at_a), (from_b, at_b)].into_iter().enumerate() {
                let to = k.index(self.shared[i], "stage", [*stage])?;
                let from = k.index(from, "tile", at)?;
                let size = if i == 0 { [gemm.rows(), depth] } else { [depth, gemm.columns] };
                // Neighbouring threads read neighbours along the contiguous side.
                let across =
                    if i == 0 { gemm.product.a_transposed } else { !gemm.product.b_transposed };
                let header = self.stage_of(k, i, fill, own)?;
                k.decompose(header, |k| self.moves(k, from, to, size, across, &thread))?;
            }
            k.spec(Kind::Fence(Fence::Proxy), (), (), own)?;
            k.spec(Kind::Arrive(None), full, (), self.one)
        })
    }

    /// `size` elements, `GROUP` at a time; `across`: rows are contiguous.
    fn moves(
        &self,
        k: &mut Builder,
        from: TensorId,
        to: TensorId,
        [rows, columns]: [i64; 2],
        across: bool,
        thread: &Var,
    ) -> Result<()> {
        k.for_("e", 0..rows * columns / GROUP, 1, false, |k, e| {
            let linear = Expr::from(e) * GROUP + Expr::from(thread);
            let fast = Expr::from(if across { rows } else { columns });
            let (slow, fast) = (linear.div(&fast), linear.rem(&fast));
            let [row, column] = if across { [fast, slow] } else { [slow, fast] };
            let batch = self.gemm.product.batched.then_some(Expr::from(0));
            let at: Vec<Expr> = batch.into_iter().chain([row.clone(), column.clone()]).collect();
            let from = k.index(from, "from", at)?;
            let scalar = self.gemm.product.scalar;
            let word = k.allocate("word", View::buffer(&[]), scalar, Memory::Registers, None)?;
            k.spec(Kind::Init(Number(0.0)), word, (), self.one)?;
            k.if_(Test::Inside(from.into()), |k| k.spec(Kind::Move, word, from, self.one))?;
            k.spec(Kind::Move, Operand::at(to, [row, column]), word, self.one)
        })
    }
}
