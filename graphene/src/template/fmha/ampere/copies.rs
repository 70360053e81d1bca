//! Tiles of queries, keys and values on their way to shared memory, by asynchronous copies; and the result on its way out.

use super::super::tiles::Place;
use super::{Block, Products, STAGES};
use crate::build::{Builder, Header};
use crate::error::Result;
use crate::index::{Cond, Expr, Var};
use crate::kernel::{Group, Kind, Operand, Ring, Test};
use crate::layout::Tiler;
use crate::schedule::pointwise::WIDTH;
use crate::template::product::leaf;
use crate::tensor::{Memory, Scalar, View};

impl Block<'_> {
    /// All but the youngest group of copies is there, for all threads.
    pub(super) fn meet(&self, k: &mut Builder) -> Result<()> {
        k.spec(Kind::WaitGroup(Group::Copy, 1, false), (), (), self.block)?;
        k.spec(Kind::Sync, (), (), self.block)
    }

    /// The next step's tile into the stage that the step before used, a group of their own.
    pub(super) fn next(
        &self,
        k: &mut Builder,
        which: usize,
        place: &Place,
        step: &Var,
        ring: &Ring,
    ) -> Result<()> {
        let next = Expr::from(step) + 1;
        k.if_(Cond::less(next.clone(), &place.steps), |k| {
            let stage = (Expr::from(ring.stage()) + 1).rem(&Expr::from(STAGES));
            self.copy(k, which, place, place.tile(next), stage)
        })?;
        k.spec(Kind::Commit(Group::Copy), (), (), self.block)
    }

    /// A tile of queries, keys or values into a stage; zeros beyond the end.
    pub(super) fn copy(
        &self,
        k: &mut Builder,
        which: usize,
        place: &Place,
        tile: Expr,
        stage: Expr,
    ) -> Result<()> {
        let fmha = self.fmha;
        let (rows, dim, head) = match which {
            0 => (fmha.rows(), fmha.head_width(), &place.head),
            1 => (fmha.keys, fmha.head_width(), &place.kv_head),
            _ => (fmha.keys, fmha.value_width(), &place.kv_head),
        };
        let piece = WIDTH / fmha.scalar.bytes();
        let to = k.index(self.shared[which], "stage", [stage])?;
        let whole = place.rows(k, &self.operands, which, rows, &tile)?;
        let header = Header::new(Kind::Move, to, whole, self.block).async_();
        k.decompose(header, |k| {
            let to = k.tile(to, "chunks", &[Tiler::Size(1), Tiler::Size(piece)])?;
            // Keys are declared with their elements first.
            let keys = which == 1;
            let mut sizes = [1, 1, 1, piece].map(Tiler::Size);
            if keys {
                sizes.swap(2, 3);
            }
            let from = k.tile(self.operands[which], "from", &sizes)?;
            let (all, threads) = (rows * dim / piece, fmha.ampere_threads());
            let width = fmha.panel(dim);
            let (width, panels) = (width / piece, dim / width);
            k.for_("e", 0..(all + threads - 1) / threads, 1, false, |k, e| {
                // Chunks of a panel's rows follow one another: neighbouring threads' banks differ.
                let linear = Expr::from(e) * threads + &self.thread;
                let chunk = linear.rem(&Expr::from(width));
                let line = linear.div(&Expr::from(width));
                let (row, chunk, inside) = if panels == 1 {
                    (line.clone(), chunk, Cond::less(line, rows))
                } else {
                    let panel = line.div(&Expr::from(rows));
                    let inside = Cond::less(panel.clone(), panels);
                    (line.rem(&Expr::from(rows)), panel * width + chunk, inside)
                };
                let body = |k: &mut Builder| {
                    let of_all = tile.clone() * rows + &row;
                    let mut at = [&place.batch, head, &of_all, &chunk];
                    if keys {
                        at.swap(2, 3);
                    }
                    let from = k.index(from, "chunk", at)?;
                    let to = k.index(to, "to", [&row, &chunk])?;
                    k.add(Header::new(Kind::Move, to, from, self.one).async_())
                };
                if all % threads == 0 { body(k) } else { k.if_(inside, body) }
            })
        })
    }

    /// Each lane writes its pairs that lie within the result.
    pub(super) fn store(
        &self,
        k: &mut Builder,
        products: &dyn Products,
        place: &Place,
    ) -> Result<()> {
        let rows = place.rows(k, &self.operands, 3, self.fmha.rows(), &place.m)?;
        k.decompose(Header::new(Kind::Move, rows, self.sums, self.block), |k| {
            let to = k.tile(self.operands[3], "pairs", &[1, 1, 1, 2].map(Tiler::Size))?;
            let row = place.m.clone() * self.fmha.rows() + self.warp_at.clone() * 16 + &self.row;
            k.for_("j", 0..self.fmha.value_width() / 8, 1, true, |k, j| {
                k.for_("half", 0..2, 1, true, |k, half| {
                    let mut out = Operand::at(self.sums, [half, j]);
                    if self.fmha.scalar != Scalar::F32 {
                        let pair = View::buffer(&[leaf(2, 1)]);
                        let halves =
                            k.allocate("out", pair, self.fmha.scalar, Memory::Registers, None)?;
                        k.spec(Kind::Move, halves, out, self.one)?;
                        out = halves.into();
                    }
                    let row = row.clone() + Expr::from(half) * 8;
                    let column = products.column(self, j);
                    let to = k.index(to, "to", [&place.batch, &place.head, &row, &column])?;
                    k.if_(Test::Inside(to.into()), |k| k.spec(Kind::Move, to, out, self.one))
                })
            })
        })
    }
}
