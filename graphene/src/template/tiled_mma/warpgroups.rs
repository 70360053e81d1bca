//! A warpgroup's matmul by tensor cores, of operands in shared memory (PTX, `wgmma`): sums are in registers.

use super::Finish;
use crate::arch::{WARP, WARPGROUP};
use crate::build::{Builder, Header};
use crate::error::{MultipleOf, Result, needs};
use crate::index::Expr;
use crate::kernel::{Fence, Group, Kind, Operand, TensorId, ThreadsId};
use crate::layout::Tiler;
use crate::template::epilogue::{Attached, Run};
use crate::template::fragments::{Lane, ROWS, clear, each_pair, fragment, own_group};
use crate::template::matmul::Place;
use crate::template::split_k::Visit;
use crate::template::stage::Side;
use crate::tensor::Scalar;

/// Bytes of an instruction's depth.
const STEP: i64 = 32;

/// How a block's warpgroups share a tile: each has rows of its own.
pub(crate) struct Warpgroups {
    sides: [Side; 2],
    own: ThreadsId,
    /// Which of the warpgroups it is.
    group: Expr,
    /// How many times 64 rows each has.
    strips: i64,
    lane: Lane,
}

impl Warpgroups {
    /// Of tiles of `sides`, by so many warps.
    pub(super) fn new(
        k: &mut Builder,
        block: ThreadsId,
        sides: [Side; 2],
        warps: i64,
    ) -> Result<Warpgroups> {
        let groups = warps * WARP / WARPGROUP;
        let [rows, columns] = sides.map(|side| side.size);
        let shared = groups >= 1 && groups * WARPGROUP == warps * WARP;
        let shared = shared && rows % (groups * ROWS) == 0;
        needs(shared, "a tile that warpgroups share by 64 rows", (rows, warps))?;
        MultipleOf(8).check("columns a tile", columns)?;
        needs(columns <= 256, "at most 256 columns a tile", columns)?;
        let groups_of = k.tile(block, "warpgroups", &[Tiler::Size(WARPGROUP)])?;
        let (own, group) = own_group(k, groups_of)?;
        let lane = Lane::new(k, own)?;
        Ok(Warpgroups { sides, own, group: group.into(), strips: rows / (groups * ROWS), lane })
    }

    /// Eights of columns.
    fn eights(&self) -> i64 {
        self.sides[1].size / 8
    }

    /// Rows and columns of a warpgroup.
    pub(super) fn of_group(&self) -> [i64; 2] {
        [ROWS * self.strips, self.sides[1].size]
    }

    /// The own warpgroup's row and column in the tile, in such parts.
    pub(super) fn part(&self) -> [Expr; 2] {
        [self.group.clone(), 0.into()]
    }

    /// Registers for the sums.
    pub(super) fn allocate(&self, k: &mut Builder) -> Result<TensorId> {
        fragment(k, "acc", self.strips * self.eights(), Scalar::F32)
    }

    /// Sets the sums to 0.
    pub(super) fn reset(&self, k: &mut Builder, acc: TensorId) -> Result<()> {
        clear(k, acc, self.strips * self.eights())
    }

    /// Goes through the own pairs of sums and their numbers.
    pub(super) fn each_pair(&self, k: &mut Builder, acc: TensorId, visit: Visit<'_>) -> Result<()> {
        each_pair(k, acc, self.strips * self.eights(), visit)
    }

    /// Begins to add the matmuls of a stage.
    pub(super) fn multiply(
        &self,
        k: &mut Builder,
        acc: TensorId,
        a: TensorId,
        b: TensorId,
    ) -> Result<()> {
        let along = STEP / self.sides[0].scalar.bytes();
        let a = k.tile(a, "a", &[Tiler::Size(ROWS), Tiler::Size(along)])?;
        let b = k.tile(b, "b", &[Tiler::Size(along), Tiler::Whole])?;
        let sums = k.tile(acc, "strips", &[Tiler::Whole, Tiler::Size(self.eights())])?;
        k.spec(Kind::Fence(Fence::MatMul), acc, (), self.own)?;
        k.unroll("kk", self.sides[0].depth / along, |k, kk| {
            k.unroll("strip", self.strips, |k, strip| {
                let row = self.group.clone() * self.strips + strip;
                let a = Operand::at(a, [row, kk.into()]);
                let b = Operand::at(b, [Expr::from(kk), Expr::from(0)]);
                let sums = Operand::at(sums, [Expr::from(0), strip.into()]);
                k.add(Header::new(Kind::MATMUL_ADD, sums, [a, b], self.own).async_())
            })
        })?;
        k.spec(Kind::Commit(Group::MatMul), (), (), self.own)
    }

    /// Waits until the matmuls of so many stages at most are on their way.
    pub(super) fn wait(&self, k: &mut Builder, acc: TensorId, stages: i64) -> Result<()> {
        k.spec(Kind::WaitGroup(Group::MatMul, stages, false), acc, (), self.own)
    }

    /// Goes through the own lane's pairs of sums.
    pub(super) fn each_run(
        &self,
        k: &mut Builder,
        acc: TensorId,
        epilogue: &Attached,
        origin: &Place,
        finish: Finish<'_>,
    ) -> Result<()> {
        let sums = k.tile(acc, "strips", &[Tiler::Size(1), Tiler::Size(self.eights())])?;
        k.unroll("j", self.eights(), |k, j| {
            let column = origin.n.div(&2.into()) + Expr::from(j) * 4 + &self.lane.column;
            let held = epilogue.across(k, Vec::new(), (&column, 2))?;
            k.unroll("strip", self.strips, |k, strip| {
                for half in 0..2 {
                    let strip_of = self.group.clone() * self.strips + strip;
                    let sixteen = strip_of * 4 + &self.lane.number;
                    let row = origin.m.clone() + sixteen * 16 + &self.lane.row + 8 * half;
                    let (batch, column) = (origin.batch.clone(), column.clone());
                    let run = Run { batch, row, column, n: 2, held: held.clone() };
                    let own = k.index(sums, "own", [Expr::from(half), strip.into()])?;
                    let pair = k.index(own, "pair", [Expr::from(0), j.into()])?;
                    finish(k, pair, &run)?;
                }
                Ok(())
            })
        })
    }
}
