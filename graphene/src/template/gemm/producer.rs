//! How the ring is filled.

use super::{Context, Edges, GROUP, Gemm, PANEL, Place};
use crate::build::{Builder, Header};
use crate::error::Result;
use crate::index::{Cond, Expr, Relation, Var};
use crate::kernel::{Fence, Kind, Number, Operand, TensorId, Test, ThreadsId};
use crate::schedule::produce;
use crate::tensor::{Coord, Memory, Tile, View};

/// What a stage is filled with.
struct Step<'a> {
    term: usize,
    place: &'a Place,
    /// The step along K.
    step: Expr,
    /// How many of the block's stages came before it, or more than a ring has.
    number: Expr,
}

impl Gemm {
    /// Rows and depth of a copy of A.
    fn box_a(&self) -> [i64; 2] {
        [if self.product.a_transposed { PANEL } else { self.rows() }, self.depth()]
    }

    /// Depth and columns of a copy of B. Of a cluster, each block brings its share of B to both: of the depth, or of the
    /// columns.
    fn box_b(&self) -> [i64; 2] {
        match self.product.b_transposed {
            true => [self.depth() / self.cluster, PANEL],
            false => [self.depth(), self.columns / self.cluster],
        }
    }

    /// Whether the first stages' B is brought before predecessors are done: where its copies are a block's own, of one
    /// product, and a block may have begun by then.
    fn begins_early(&self) -> bool {
        let own = self.cluster == 1 && self.product.terms == 1;
        self.weights && own && self.is_light()
    }
}

impl Context<'_> {
    /// What the producer warpgroup does.
    pub(super) fn produce(&self, k: &mut Builder) -> Result<()> {
        let (own, _) = self.own(k)?;
        if !self.gemm.is_light() {
            k.spec(Kind::Registers(self.gemm.producer_registers()), (), (), own)?;
        }
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
        let gemm = self.gemm;
        let from = self.operands(k, gemm.box_a(), gemm.box_b())?;
        self.each_stage(k, self.one, |k, at, full, stage| {
            let [from_a, from_b] = from[at.term];
            let [to_a, to_b] = self.stage(k, stage, gemm.box_a(), gemm.box_b())?;
            if gemm.begins_early() {
                // Of the first stages, B has been asked for already.
                let late = Cond::new(at.number.clone(), Relation::AtLeast, self.ahead());
                k.if_(late, |k| {
                    self.expect(k, &full)?;
                    self.bring_b(k, (from_b, to_b), (at.place, &at.step), &full)
                })?;
                return self.bring_a(k, (from_a, to_a), (at.place, &at.step), &full);
            }
            self.expect(k, &full)?;
            self.bring_a(k, (from_a, to_a), (at.place, &at.step), &full)?;
            self.bring_b(k, (from_b, to_b), (at.place, &at.step), &full)
        })
    }

    /// Before predecessors are done, which have not made it: brings what the first stages hold of the block's first tile of
    /// B, and asks for the lines of the rest.
    pub(super) fn begin_early(&self, k: &mut Builder) -> Result<()> {
        let gemm = self.gemm;
        if gemm.begins_early() {
            let first = GROUP * gemm.consumers;
            let any = Cond::new(self.first.clone(), Relation::Less, self.walk.count());
            k.role(self.block, first..first + 1, |k| k.if_(any, |k| self.fill_early(k)))?;
        }
        if gemm.prefetch { self.prefetch(k) } else { Ok(()) }
    }

    /// Copies of B into the first stages, whose barriers expect A as well.
    fn fill_early(&self, k: &mut Builder) -> Result<()> {
        let gemm = self.gemm;
        let place = self.walk.place(k, self.first.clone())?;
        let from = self.operands(k, gemm.box_a(), gemm.box_b())?;
        let (first, _) = self.own_steps(0);
        k.for_("early", Expr::from(0)..self.ahead(), 1, false, |k, stage| {
            let full = Operand::at(self.pipeline.full, [stage]);
            self.expect(k, &full)?;
            let [_, to] = self.stage(k, stage, gemm.box_a(), gemm.box_b())?;
            let step = first.clone() + stage;
            self.bring_b(k, (from[0][1], to), (&place, &step), &full)
        })
    }

    /// How many stages begin early: all, unless the tile has fewer steps.
    fn ahead(&self) -> Expr {
        self.own_steps(0).1.min(Expr::from(self.gemm.stages))
    }

    /// The own steps along the K of a term: the first, and how many.
    fn own_steps(&self, term: usize) -> (Expr, Expr) {
        let all = &self.steps[term];
        self.shares.as_ref().map_or((Expr::from(0), all.clone()), |shares| shares.steps(all))
    }

    /// A stage is full when so many bytes have come.
    fn expect(&self, k: &mut Builder, full: &Operand) -> Result<()> {
        let gemm = self.gemm;
        let bytes = (gemm.rows() + gemm.columns) * gemm.depth() * gemm.product.scalar.bytes();
        k.spec(Kind::Arrive(Some(bytes.into())), full.clone(), (), self.one)
    }

    fn bring_a(
        &self,
        k: &mut Builder,
        (from, to): (TensorId, TensorId),
        (place, step): (&Place, &Expr),
        full: &Operand,
    ) -> Result<()> {
        let boxes = self.gemm.rows() / self.gemm.box_a()[0];
        for i in 0..boxes {
            let row = place.m.clone() * boxes + i;
            let from = Operand { tensor: from, index: Coord::list(place.at(row, step.clone())) };
            let to = Operand::at(to, [i, 0]);
            k.add(Header::new(Kind::Move, to, from, self.one).signals(full.clone()))?;
        }
        Ok(())
    }

    fn bring_b(
        &self,
        k: &mut Builder,
        (from, to): (TensorId, TensorId),
        (place, step): (&Place, &Expr),
        full: &Operand,
    ) -> Result<()> {
        let gemm = self.gemm;
        let [deep, wide] = gemm.box_b();
        let rank = self.pair.as_ref().map_or(Expr::from(0), |(_, rank)| rank.clone());
        for i in 0..if gemm.product.b_transposed { gemm.columns / PANEL } else { 1 } {
            let (along, across) = match gemm.product.b_transposed {
                true => (rank.clone(), Expr::from(i)),
                false => (Expr::from(0), rank.clone()),
            };
            let row = step.clone() * (gemm.depth() / deep) + &along;
            let column = place.n.clone() * (gemm.columns / wide) + &across;
            let from = Operand { tensor: from, index: Coord::list(place.at(row, column)) };
            let to = Operand::at(to, [along, across]);
            let copy = Header::new(Kind::Move, to, from, self.one).signals(full.clone());
            k.add(match self.pair {
                Some((pair, _)) => copy.on(pair),
                None => copy,
            })?;
        }
        Ok(())
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
            let begun = if gemm.begins_early() { self.ahead() } else { Expr::from(0) };
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
        fill: impl Fn(&mut Builder, &Step<'_>, Operand, &Var) -> Result<()>,
    ) -> Result<()> {
        let ring = k.ring("filling", self.gemm.stages)?;
        self.each_tile(k, self.first.clone(), self.stride.clone(), |k, t, place| {
            for term in 0..self.steps.len() {
                let (first, count) = self.own_steps(term);
                k.for_("k", first.clone()..first.clone() + count, 1, false, |k, step| {
                    produce(k, &self.pipeline, &ring, threads, |k, full, stage| {
                        // Other tiles than the first are as far behind it as all stages at least.
                        let tiles = Expr::from(t) - self.first.clone();
                        let number = tiles * self.gemm.stages + step - first.clone();
                        fill(k, &Step { term, place, step: step.into(), number }, full, stage)
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
        self.each_stage(k, own, |k, &Step { term, place, ref step, .. }, full, stage| {
            let [from_a, from_b] = from[term];
            let at_a = place.at(place.m.clone(), step.clone());
            let at_b = place.at(step.clone(), place.n.clone());
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
