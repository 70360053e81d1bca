//! How the ring is filled.

use super::{Context, Edges, GROUP, PANEL, Place};
use crate::build::{Builder, Header};
use crate::error::Result;
use crate::index::{Expr, Var};
use crate::kernel::{Fence, Kind, Number, Operand, TensorId, Test, ThreadsId};
use crate::schedule::produce;
use crate::tensor::{Coord, Memory, Tile, View};

impl Context<'_> {
    /// What the producer warpgroup does.
    pub(super) fn produce(&self, k: &mut Builder) -> Result<()> {
        let (own, _) = self.own(k)?;
        k.spec(Kind::Registers(self.gemm.producer_registers()), (), (), own)?;
        match self.gemm.edges {
            Edges::Bulk => {
                let first = GROUP * self.gemm.consumers;
                k.role(self.block, first..first + 1, |k| self.fill_by_copies(k))
            }
            Edges::Moves => self.fill_by_moves(k, own),
        }
    }

    /// One thread issues tensor copies, box by box.
    fn fill_by_copies(&self, k: &mut Builder) -> Result<()> {
        let (gemm, depth) = (self.gemm, self.gemm.depth());
        let box_a = if gemm.product.a_transposed { PANEL } else { gemm.rows() };
        // Of a cluster, each block brings its share of B to both: of the depth, or of the columns.
        let box_b = match gemm.product.b_transposed {
            true => [depth / gemm.cluster, PANEL],
            false => [depth, gemm.columns / gemm.cluster],
        };
        let from = self.operands(k, [box_a, depth], box_b)?;
        self.each_stage(k, self.one, |k, term, place, step, full, stage| {
            let [from_a, from_b] = from[term];
            let bytes = (gemm.rows() + gemm.columns) * depth * gemm.product.scalar.bytes();
            k.spec(Kind::Arrive(Some(bytes.into())), full.clone(), (), self.one)?;
            let [to_a, to_b] = self.stage(k, stage, [box_a, depth], box_b)?;
            for i in 0..gemm.rows() / box_a {
                let row = place.m.clone() * (gemm.rows() / box_a) + i;
                let from =
                    Operand { tensor: from_a, index: Coord::list(place.at(row, step.into())) };
                let to = Operand::at(to_a, [i, 0]);
                k.add(Header::new(Kind::Move, to, from, self.one).signals(full.clone()))?;
            }
            let rank = self.pair.as_ref().map_or(Expr::from(0), |(_, rank)| rank.clone());
            for i in 0..if gemm.product.b_transposed { gemm.columns / PANEL } else { 1 } {
                let (along, across) = match gemm.product.b_transposed {
                    true => (rank.clone(), Expr::from(i)),
                    false => (Expr::from(0), rank.clone()),
                };
                let row = Expr::from(step) * (depth / box_b[0]) + &along;
                let column = place.n.clone() * (gemm.columns / box_b[1]) + &across;
                let from = Operand { tensor: from_b, index: Coord::list(place.at(row, column)) };
                let to = Operand::at(to_b, [along, across]);
                let copy = Header::new(Kind::Move, to, from, self.one).signals(full.clone());
                k.add(match self.pair {
                    Some((pair, _)) => copy.on(pair),
                    None => copy,
                })?;
            }
            Ok(())
        })
    }

    /// All threads ask for the lines of the block's first tile of B, of each term.
    pub(super) fn prefetch(&self, k: &mut Builder) -> Result<()> {
        let (gemm, depth) = (self.gemm, self.gemm.depth());
        let [thread] = k.indices(self.block, ["thread"])?;
        let place = self.walk.place(k, self.first.clone())?;
        let threads = GROUP * (gemm.consumers + 1);
        for (term, steps) in self.declared.terms.iter().zip(&self.steps) {
            let b = self.tiled(k, term.b, "lines", [depth, gemm.columns])?;
            // A line is 128 bytes: of a column's depth, or of a row's columns.
            let of_step = match gemm.product.b_transposed {
                true => depth * (gemm.columns / PANEL),
                false => gemm.columns,
            };
            let (first, steps) = match &self.shares {
                Some(shares) => shares.steps(steps),
                None => (Expr::from(0), steps.clone()),
            };
            let rounds = (steps * of_step).ceil_div(&Expr::from(threads));
            k.for_("round", Expr::from(0)..rounds, 1, false, |k, round| {
                let line = Expr::from(round) * threads + &thread;
                let step = first.clone() + line.div(&of_step.into());
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

    /// A and B of each term, in tiles of so many rows and columns.
    fn operands(
        &self,
        k: &mut Builder,
        of_a: [i64; 2],
        of_b: [i64; 2],
    ) -> Result<Vec<[TensorId; 2]>> {
        let terms = self.declared.terms.iter();
        terms
            .map(|term| {
                let a = self.tiled(k, term.a, "gA", of_a)?;
                Ok([a, self.tiled(k, term.b, "gB", of_b)?])
            })
            .collect()
    }

    /// A stage of both rings, in boxes.
    fn stage(
        &self,
        k: &mut Builder,
        stage: &Var,
        of_a: [i64; 2],
        of_b: [i64; 2],
    ) -> Result<[TensorId; 2]> {
        let [a, b] = self.shared;
        let a = k.index(a, "stage_a", [stage])?;
        let a = k.tile(a, "boxes_a", &of_a.map(Tile::of))?;
        let b = k.index(b, "stage_b", [stage])?;
        Ok([a, k.tile(b, "boxes_b", &of_b.map(Tile::of))?])
    }

    /// Fills one stage after the other, for every step of every term.
    fn each_stage(
        &self,
        k: &mut Builder,
        threads: ThreadsId,
        fill: impl Fn(&mut Builder, usize, &Place, &Var, Operand, &Var) -> Result<()>,
    ) -> Result<()> {
        let ring = k.ring("filling", self.gemm.stages)?;
        self.each_tile(k, self.first.clone(), self.stride.clone(), |k, place| {
            for (term, steps) in self.steps.iter().enumerate() {
                let steps = match &self.shares {
                    Some(shares) => {
                        let (first, count) = shares.steps(steps);
                        first.clone()..first + count
                    }
                    None => Expr::from(0)..steps.clone(),
                };
                k.for_("k", steps, 1, false, |k, step| {
                    produce(k, &self.pipeline, &ring, threads, |k, full, stage| {
                        fill(k, term, place, step, full, stage)
                    })
                })?;
            }
            Ok(())
        })
    }

    /// All threads move elements, zeros where there are none.
    fn fill_by_moves(&self, k: &mut Builder, own: ThreadsId) -> Result<()> {
        let (gemm, depth) = (self.gemm, self.gemm.depth());
        let from = self.operands(k, [gemm.rows(), depth], [depth, gemm.columns])?;
        let [thread] = k.indices(own, ["mover"])?;
        self.each_stage(k, own, |k, term, place, step, full, stage| {
            let [from_a, from_b] = from[term];
            let at_a = place.at(place.m.clone(), step.into());
            let at_b = place.at(step.into(), place.n.clone());
            for (i, (from, at)) in [(from_a, at_a), (from_b, at_b)].into_iter().enumerate() {
                let to = k.index(self.shared[i], "stage", [stage])?;
                let from = k.index(from, "tile", at)?;
                let size = if i == 0 { [gemm.rows(), depth] } else { [depth, gemm.columns] };
                // Neighbouring threads read neighbours along the contiguous side.
                let across =
                    if i == 0 { gemm.product.a_transposed } else { !gemm.product.b_transposed };
                self.moves(k, from, to, size, across, &thread)?;
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
