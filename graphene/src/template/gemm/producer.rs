//! How stages are filled; `moves`: by single elements.

use super::{Context, Edges, GROUP, Gemm, PANEL, Place};
use crate::build::{Builder, Header};
use crate::error::Result;
use crate::index::{Cond, Expr, Relation, Var};
use crate::kernel::{Kind, Operand, TensorId, ThreadsId};
use crate::layout::{IntTuple, Tiler};
use crate::schedule::produce;

/// What a stage is filled with.
pub(super) struct Fill<'a> {
    pub(super) term: usize,
    pub(super) place: &'a Place,
    /// The step along K.
    pub(super) step: Expr,
    pub(super) stage: &'a Var,
    /// Of the block's first tile, which of its steps that is; of later ones, no less than there are stages.
    pub(super) number: Expr,
}

impl Gemm {
    /// Rows and depth of a copy of A.
    pub(super) fn box_a(&self) -> [i64; 2] {
        [if self.product.a_transposed { PANEL } else { self.rows() }, self.depth()]
    }

    /// Depth and columns of a copy of B. Of a cluster, each block brings its share of B to both: of the depth, or of the
    /// columns.
    pub(super) fn box_b(&self) -> [i64; 2] {
        match self.product.b_transposed {
            true => [self.depth() / self.cluster, PANEL],
            false => [self.depth(), self.columns / self.cluster],
        }
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
        self.each_stage(k, self.one, |k, fill, full| {
            let [from_a, from_b] = from[fill.term];
            let [to_a, to_b] = self.stage(k, fill.stage, gemm.box_a(), gemm.box_b())?;
            if gemm.has_pdl_prologue() {
                // Of the first stages, B has been asked for already.
                let late = Cond::new(fill.number.clone(), Relation::AtLeast, gemm.stages);
                k.if_(late, |k| {
                    self.expect(k, &full)?;
                    self.bring_b(k, (from_b, to_b), fill, &full)
                })?;
                return self.bring_a(k, (from_a, to_a), fill, &full);
            }
            self.expect(k, &full)?;
            self.bring_a(k, (from_a, to_a), fill, &full)?;
            self.bring_b(k, (from_b, to_b), fill, &full)
        })
    }

    /// A stage is full when so many bytes have come.
    pub(super) fn expect(&self, k: &mut Builder, full: &Operand) -> Result<()> {
        let gemm = self.gemm;
        let bytes = (gemm.rows() + gemm.columns) * gemm.depth() * gemm.product.scalar.bytes();
        k.spec(Kind::Arrive(Some(bytes.into())), full.clone(), (), self.one)
    }

    fn bring_a(
        &self,
        k: &mut Builder,
        (from, to): (TensorId, TensorId),
        fill: &Fill<'_>,
        full: &Operand,
    ) -> Result<()> {
        let boxes = self.gemm.rows() / self.gemm.box_a()[0];
        let header = self.stage_of(k, 0, fill, self.one)?.signals(full.clone());
        k.decompose(header, |k| {
            for i in 0..boxes {
                let row = fill.place.m.clone() * boxes + i;
                let from = Operand {
                    tensor: from,
                    index: IntTuple::list(fill.place.at(row, fill.step.clone())),
                };
                let to = Operand::at(to, [i, 0]);
                k.add(Header::new(Kind::Move, to, from, self.one).signals(full.clone()))?;
            }
            Ok(())
        })
    }

    pub(super) fn bring_b(
        &self,
        k: &mut Builder,
        (from, to): (TensorId, TensorId),
        fill: &Fill<'_>,
        full: &Operand,
    ) -> Result<()> {
        let gemm = self.gemm;
        let [deep, wide] = gemm.box_b();
        let rank = self.pair.as_ref().map_or(Expr::from(0), |(_, rank)| rank.clone());
        let header = self.stage_of(k, 1, fill, self.one)?.signals(full.clone());
        let header = match self.pair {
            Some((pair, _)) => header.on(pair),
            None => header,
        };
        k.decompose(header, |k| {
            for i in 0..if gemm.product.b_transposed { gemm.columns / PANEL } else { 1 } {
                let (along, across) = match gemm.product.b_transposed {
                    true => (rank.clone(), Expr::from(i)),
                    false => (Expr::from(0), rank.clone()),
                };
                let row = fill.step.clone() * (gemm.depth() / deep) + &along;
                let column = fill.place.n.clone() * (gemm.columns / wide) + &across;
                let from =
                    Operand { tensor: from, index: IntTuple::list(fill.place.at(row, column)) };
                let to = Operand::at(to, [along, across]);
                let copy = Header::new(Kind::Move, to, from, self.one).signals(full.clone());
                k.add(match self.pair {
                    Some((pair, _)) => copy.on(pair),
                    None => copy,
                })?;
            }
            Ok(())
        })
    }

    /// Moves a step's tile of A or of B to its stage.
    pub(super) fn stage_of(
        &self,
        k: &mut Builder,
        i: usize,
        Fill { term, place, step, stage, .. }: &Fill<'_>,
        threads: ThreadsId,
    ) -> Result<Header> {
        let (gemm, term) = (self.gemm, &self.declared.terms[*term]);
        let (of, size, at) = match i {
            0 => (term.a, [gemm.rows(), gemm.depth()], place.at(place.m.clone(), step.clone())),
            _ => (term.b, [gemm.depth(), gemm.columns], place.at(step.clone(), place.n.clone())),
        };
        let from = self.tiled(k, of, "step", size)?;
        let from = Operand { tensor: from, index: IntTuple::list(at) };
        let to = Operand::at(self.shared[i], [*stage]);
        Ok(Header::new(Kind::Move, to, from, threads))
    }

    /// A and B of each term, in tiles of so many rows and columns.
    pub(super) fn operands(
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

    /// A stage of both operands, in boxes.
    pub(super) fn stage(
        &self,
        k: &mut Builder,
        stage: &Var,
        of_a: [i64; 2],
        of_b: [i64; 2],
    ) -> Result<[TensorId; 2]> {
        let [a, b] = self.shared;
        let a = k.index(a, "stage_a", [stage])?;
        let a = k.tile(a, "boxes_a", &of_a.map(Tiler::Size))?;
        let b = k.index(b, "stage_b", [stage])?;
        Ok([a, k.tile(b, "boxes_b", &of_b.map(Tiler::Size))?])
    }

    /// Fills one stage after the other, for every step of every term.
    pub(super) fn each_stage(
        &self,
        k: &mut Builder,
        threads: ThreadsId,
        fill: impl Fn(&mut Builder, &Fill<'_>, Operand) -> Result<()>,
    ) -> Result<()> {
        let ring = k.ring("filling", self.gemm.stages)?;
        self.each_tile(k, self.first.clone(), self.stride.clone(), |k, t, place| {
            for term in 0..self.steps.len() {
                let (first, count) = self.own_steps(term);
                k.for_("k", first.clone()..first.clone() + count, 1, false, |k, step| {
                    produce(k, &self.pipeline, &ring, threads, |k, full, stage| {
                        let tiles = Expr::from(t) - self.first.clone();
                        let number = tiles * self.gemm.stages + step - first.clone();
                        let step = step.into();
                        fill(k, &Fill { term, place, step, stage, number }, full)
                    })
                })?;
            }
            Ok(())
        })
    }
}
