//! How stages are filled.

use super::context::Context;
use super::tiles::Place;
use super::{GROUP, PRODUCER_REGISTERS};
use crate::build::{Builder, Header};
use crate::error::Result;
use crate::index::Expr;
use crate::kernel::{Kind, Operand, Ring, TensorId};
use crate::layout::{IntTuple, Tiler};
use crate::schedule::produce;

/// Keys or values: their place among the operands, their pipeline state, and their tiles in global memory.
struct Source {
    which: usize,
    ring: Ring,
    from: TensorId,
}

impl Context<'_> {
    /// What the producer warpgroup does: one thread issues tensor copies, in the order in which
    /// consumers release stages; a warp beside it brings the mask.
    pub(super) fn produce(&self, k: &mut Builder) -> Result<()> {
        let fmha = self.fmha;
        let (own, _) = self.own(k)?;
        k.spec(Kind::Registers(PRODUCER_REGISTERS), (), (), own)?;
        let first = GROUP * fmha.consumers;
        k.role(self.block, first..first + 1, |k| {
            let queries = k.ring("filling_q", 1)?;
            let from_q = self.boxes(k, 0, "gQ", [fmha.rows(), fmha.panel(fmha.head_width())])?;
            let keys = Source {
                which: 1,
                ring: k.ring("filling_k", fmha.stages)?,
                from: self.boxes(k, 1, "gK", [fmha.panel(fmha.head_width()), fmha.keys])?,
            };
            let values = Source {
                which: 2,
                ring: k.ring("filling_v", fmha.stages)?,
                from: self.boxes(k, 2, "gV", [fmha.keys, fmha.panel(fmha.value_width())])?,
            };
            self.each_tile(k, |k, place| {
                self.fill_queries(k, &queries, from_q, place)?;
                self.fill(k, &keys, place, place.tile(0))?;
                k.for_("step", Expr::from(1)..place.steps.clone(), 1, false, |k, step| {
                    let step = Expr::from(step);
                    self.fill(k, &keys, place, place.tile(step.clone()))?;
                    self.fill(k, &values, place, place.tile(step - 1))
                })?;
                self.fill(k, &values, place, Expr::from(0))
            })
        })?;
        self.produce_terms(k)
    }

    /// An operand of global memory in boxes.
    fn boxes(&self, k: &mut Builder, which: usize, name: &str, size: [i64; 2]) -> Result<TensorId> {
        let tiles = [1, 1, size[0], size[1]].map(Tiler::Size);
        k.tile(self.operands[which], name, &tiles)
    }

    fn fill_queries(
        &self,
        k: &mut Builder,
        ring: &Ring,
        from: TensorId,
        place: &Place,
    ) -> Result<()> {
        let dim = self.fmha.head_width();
        produce(k, &self.pipelines[0], ring, self.one, |k, full, _| {
            let bytes = self.fmha.rows() * dim * self.fmha.scalar.bytes();
            k.spec(Kind::Arrive(Some(bytes.into())), full.clone(), (), self.one)?;
            let whole = place.rows(k, &self.operands, 0, self.fmha.rows(), &place.m)?;
            let move_ = Header::new(Kind::Move, self.shared[0], whole, self.one);
            k.decompose(move_.signals(full.clone()), |k| {
                let to = k.tile(
                    self.shared[0],
                    "to",
                    &[Tiler::Whole, Tiler::Size(self.fmha.panel(dim))],
                )?;
                for i in 0..dim / self.fmha.panel(dim) {
                    let at = [&place.batch, &place.head, &place.m].map(Expr::clone);
                    let at = IntTuple::list(at.into_iter().chain([Expr::from(i)]));
                    let from = Operand { tensor: from, index: at };
                    let to = Operand::at(to, [0, i]);
                    k.add(Header::new(Kind::Move, to, from, self.one).signals(full.clone()))?;
                }
                Ok(())
            })
        })
    }

    /// The tile of keys or values of a number.
    fn fill(&self, k: &mut Builder, source: &Source, place: &Place, tile: Expr) -> Result<()> {
        let Source { which, ring, from } = source;
        let keys = *which == 1;
        let dim = if keys { self.fmha.head_width() } else { self.fmha.value_width() };
        produce(k, &self.pipelines[*which], ring, self.one, |k, full, stage| {
            let bytes = self.fmha.keys * dim * self.fmha.scalar.bytes();
            k.spec(Kind::Arrive(Some(bytes.into())), full.clone(), (), self.one)?;
            let to = k.index(self.shared[*which], "stage", [stage])?;
            let whole = place.rows(k, &self.operands, *which, self.fmha.keys, &tile)?;
            let move_ = Header::new(Kind::Move, to, whole, self.one);
            k.decompose(move_.signals(full.clone()), |k| {
                let mut boxes = [Tiler::Size(self.fmha.panel(dim)), Tiler::Whole];
                if !keys {
                    boxes.swap(0, 1);
                }
                let to = k.tile(to, "to", &boxes)?;
                for i in 0..dim / self.fmha.panel(dim) {
                    let [mut row, mut column] = [Expr::from(i), tile.clone()];
                    let mut at = [i, 0];
                    if !keys {
                        std::mem::swap(&mut row, &mut column);
                        at.swap(0, 1);
                    }
                    let index = IntTuple::list([&place.batch, &place.kv_head, &row, &column]);
                    let from = Operand { tensor: *from, index };
                    let to = Operand::at(to, at);
                    k.add(Header::new(Kind::Move, to, from, self.one).signals(full.clone()))?;
                }
                Ok(())
            })
        })
    }
}
