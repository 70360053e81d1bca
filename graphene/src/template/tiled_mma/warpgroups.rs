//! A warpgroup's matmul by tensor cores, of operands in shared memory (PTX, `wgmma`): sums are in registers.

use super::{Near, Runs, TiledMma};
use crate::template::fragments::{GROUP, Lane, ROWS, STEP, clear, each_pair, fragment, own_group};
use crate::template::{split_k::Visit, stage::Side};
use crate::{
    Builder, Expr, Fence, Group, Header, Kind, MultipleOf, Operand, Result, Scalar, TensorId,
    ThreadsId, Tiler, Var, WARP, needs,
};

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
        let groups = warps * WARP / GROUP;
        let [rows, columns] = sides.map(|side| side.size);
        let whole = groups >= 1 && groups * GROUP == warps * WARP;
        let shared = whole && rows % (groups * ROWS) == 0;
        needs(shared, "a tile that warpgroups share by 64 rows", (rows, warps))?;
        MultipleOf(8).check("columns a tile", columns)?;
        needs(columns <= 256, "at most 256 columns a tile", columns)?;
        let groups_of = k.tile(block, "warpgroups", &[Tiler::Size(GROUP)])?;
        let (own, group) = own_group(k, groups_of)?;
        let lane = Lane::new(k, own)?;
        Ok(Warpgroups { sides, own, group: group.into(), strips: rows / (groups * ROWS), lane })
    }

    /// Eights of columns.
    fn eights(&self) -> i64 {
        self.sides[1].size / 8
    }
}

impl TiledMma for Warpgroups {
    fn own_part(&self) -> ([i64; 2], [Expr; 2]) {
        ([ROWS * self.strips, self.sides[1].of_one().size], [self.group.clone(), 0.into()])
    }

    fn allocate(&self, k: &mut Builder) -> Result<TensorId> {
        fragment(k, "acc", self.strips * self.eights(), Scalar::F32)
    }

    fn reset(&self, k: &mut Builder, acc: TensorId) -> Result {
        clear(k, acc, self.strips * self.eights())
    }

    fn each_pair(&self, k: &mut Builder, acc: TensorId, visit: Visit<'_>) -> Result {
        each_pair(k, acc, self.strips * self.eights(), visit)
    }

    fn multiply(&self, k: &mut Builder, near: Near, _: &Expr) -> Result {
        let along = STEP / self.sides[0].scalar.bytes();
        let Near { c: acc, a, b, .. } = near;
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

    fn awaits(&self) -> Option<ThreadsId> {
        Some(self.own)
    }

    fn runs(&self) -> Runs {
        Runs { n: 2, columns: self.eights(), rows: ("strip", self.strips), eights: 2 }
    }

    fn row(&self, strip: &Var) -> Expr {
        let sixteen = (self.group.clone() * self.strips + strip) * 4 + &self.lane.number;
        sixteen * 16 + &self.lane.row
    }

    fn column(&self, j: &Expr) -> Expr {
        j.clone() * 4 + &self.lane.column
    }

    fn run(&self, k: &mut Builder, acc: TensorId, half: i64, at: [Expr; 2]) -> Result<TensorId> {
        let sums = k.tile(acc, "strips", &[Tiler::Size(1), Tiler::Size(self.eights())])?;
        let [strip, j] = at;
        let own = k.index(sums, "own", [Expr::from(half), strip])?;
        k.index(own, "pair", [Expr::from(0), j])
    }
}
