//! What kernels by tensor cores share: panels of shared memory, the lanes of a warp, and fragments in registers.

use super::matmul::{leaf, registers};
use super::split_k::Visit;
use crate::arch::registers_at_launch;
use crate::choose::{Banks, swizzle};
use crate::schedule::Spread;
use crate::{
    Arch, Builder, Expr, Feature, Fence, Group, Kind, Layout, Memory, Operand, Result, Scalar,
    TensorId, ThreadsId, Tiler, Var, View,
};

pub(super) use crate::arch::WARPGROUP as GROUP;

/// Shared memory for barriers, and for the gaps before what begins at multiples of 1024 bytes.
pub(super) const BARRIERS: i64 = 2048;

/// Registers of the threads of a warpgroup that only issues copies.
pub(super) const PRODUCER_REGISTERS: i64 = 40;

/// Rows of a warpgroup's matmul.
pub const ROWS: i64 = 64;

/// Bytes of its depth.
pub(super) const STEP: i64 = 32;

/// How tiles `[rows, columns]` lie in shared memory: in panels of rows as wide as a swizzle, of 128, 64 or 32 bytes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Panels {
    pub(super) rows: i64,
    pub(super) columns: i64,
    pub(super) scalar: Scalar,
}

impl Panels {
    /// The columns of a panel.
    pub(super) fn width(self) -> i64 {
        let widths = [128, 64, 32].map(|width| width / self.scalar.bytes());
        widths.into_iter().find(|width| self.columns % width == 0).unwrap_or(self.columns)
    }

    pub(super) fn count(self) -> i64 {
        self.columns / self.width()
    }

    /// The rows, and the columns panel by panel.
    pub(super) fn dims(self) -> [Layout<Expr>; 2] {
        let width = self.width();
        let columns = match self.count() {
            1 => leaf(width, 1),
            count => Layout::join(vec![leaf(width, 1), leaf(count, self.rows * width)]),
        };
        [leaf(self.rows, width), columns]
    }

    /// Shared memory for tiles that `outer` dimensions number; `across`: `[columns, rows]`.
    pub(super) fn allocate(
        self,
        k: &mut Builder,
        name: &str,
        outer: &[i64],
        across: bool,
    ) -> Result<TensorId> {
        self.allocate_as(k, name, (outer, across), swizzle)
    }

    /// Likewise with a swizzle for so many chunks of so many bytes.
    pub(super) fn allocate_as(
        self,
        k: &mut Builder,
        name: &str,
        (outer, across): (&[i64], bool),
        swizzle: fn(i64, i64) -> Banks,
    ) -> Result<TensorId> {
        let [rows, columns] = self.dims();
        let tile = if across { vec![columns, rows] } else { vec![rows, columns] };
        let levels = [packed(outer, self.rows * self.columns), tile];
        let view = View::levels_of(if outer.is_empty() { &levels[1..] } else { &levels });
        let swizzle = swizzle(self.width() * self.scalar.bytes() / 16, 16).xor();
        k.allocate(name, view, self.scalar, Memory::Shared, swizzle)
    }
}

/// Dimensions one within the other, the innermost of runs of `n`.
pub(super) fn packed(sizes: &[i64], n: i64) -> Vec<Layout<Expr>> {
    let inner = |i: usize| sizes[i + 1..].iter().product::<i64>() * n;
    sizes.iter().enumerate().map(|(i, &size)| leaf(size, inner(i))).collect()
}

/// The own warp of some threads, and where the own lane stands in fragments of 8×8.
pub(super) struct Lane {
    pub(super) warp: ThreadsId,
    pub(super) number: Expr,
    pub(super) row: Expr,
    /// Its pair of columns.
    pub(super) column: Expr,
}

impl Lane {
    pub(super) fn new(k: &mut Builder, threads: ThreadsId) -> Result<Lane> {
        Lane::of(k, threads, Spread::TwoRows)
    }

    pub(super) fn of(k: &mut Builder, threads: ThreadsId, spread: Spread) -> Result<Lane> {
        let warps = k.tile(threads, "warps", &[Tiler::Size(32)])?;
        if spread == Spread::TwoRows && k.arch().multiplies_by_quad_pairs() {
            let [number, lane] = k.indices(warps, ["warp", "lane"])?;
            let warp = k.index(warps, "warp", [&number])?;
            let [row, column] = spot(k.arch(), &lane.into());
            return Ok(Lane { warp, number: number.into(), row, column });
        }
        let lanes = spread.lanes();
        let rows = k.reshape(warps, "quads", 1, &[&[(lanes, 1)], &[(32 / lanes, lanes)]])?;
        let [number, column, row] = k.indices(rows, ["warp", "quad", "fragment"])?;
        let warp = k.index(warps, "warp", [&number])?;
        Ok(Lane { warp, number: number.into(), row: row.into(), column: column.into() })
    }
}

/// The own lane's row of eight, and its pair of an eight's columns: what it has of accumulators of 16×16, in the rows eight
/// further on and in the other eight of columns as well.
pub(super) fn spot(arch: Arch, lane: &Expr) -> [Expr; 2] {
    match arch.multiplies_by_quad_pairs() {
        true => [lane.rem(2) + lane.div(8) * 2, lane.div(2).rem(4)],
        false => [lane.div(4), lane.rem(4)],
    }
}

/// How the quad pairs of a warp multiply 16×4 by 4×16: each adds to its own 8×8, of such rows and columns that lanes have of the
/// sums what [`spot`] says.
pub(super) struct QuadPairs {
    pub(super) pair: ThreadsId,
    /// The own lane's row of the left operand, of which it holds four steps along K.
    pub(super) row: Expr,
    /// Its column of the right one, likewise.
    pub(super) column: Expr,
    /// Where columns are contiguous: its step along K, of which it holds the columns of this four.
    pub(super) step: Expr,
    pub(super) four: Expr,
}

impl QuadPairs {
    pub(super) fn new(k: &mut Builder, warp: ThreadsId) -> Result<QuadPairs> {
        let [lane] = k.indices(warp, ["in_warp"])?.map(Expr::from);
        let quads = Tiler::Layout(Layout::of_modes(&[(4, 1), (2, 16)])?);
        let pairs = k.tile(warp, "pairs", &[quads])?;
        let pair = k.index(pairs, "pair", [lane.rem(16).div(4)])?;
        let upper = lane.div(16);
        let row = spot(k.arch(), &lane)[0].clone() + lane.div(2).rem(2) * 8;
        let column = upper.clone() * 8 + lane.rem(8);
        let (step, four) = (lane.rem(4), upper * 2 + lane.rem(8).div(4));
        Ok(QuadPairs { pair, row, column, step, four })
    }

    /// The registers of four elements: of a column of the right operand and of any of the left one, or `across` the right
    /// one's columns.
    pub(super) fn four(across: bool) -> [(i64, i64); 2] {
        if across { [(1, 0), (4, 1)] } else { [(4, 1), (1, 0)] }
    }
}

/// Adds the matmul of 16×16 by an eight of 16×16 to 16×8, of TF32 half as deep, by a warp: at once, or in two steps of half as
/// much along K.
pub(super) fn multiply_16(
    k: &mut Builder,
    to: Operand,
    a: TensorId,
    (b, eight): (TensorId, impl Into<Expr>),
    warp: ThreadsId,
) -> Result {
    let (zero, eight) = (Expr::from(0), eight.into());
    if k.arch().has(Feature::MmaK16) {
        let b = k.tile(b, "eights", &[Tiler::Size(1), Tiler::Whole])?;
        return k.spec(Kind::MATMUL_ADD, to, [a.into(), Operand::at(b, [eight, zero])], warp);
    }
    let a = k.tile(a, "steps", &[Tiler::Whole, Tiler::Size(1)])?;
    let b = k.tile(b, "eights", &[Tiler::Size(1), Tiler::Size(1)])?;
    k.unroll("step", 2, |k, step| {
        let ins = [Operand::at(a, [&zero, &step.into()]), Operand::at(b, [&eight, &step.into()])];
        k.spec(Kind::MATMUL_ADD, to, ins, warp)
    })
}

/// Which of 2×2 matrices, and which row of it, the own lane points to.
pub(super) struct Matrices([Expr; 3]);

impl Matrices {
    /// Lane 8i + r holds the address of row r of the i-th of 2×2 matrices.
    pub(super) fn new(k: &mut Builder, warp: ThreadsId) -> Result<Matrices> {
        let eights = k.tile(warp, "eights", &[Tiler::Size(8)])?;
        let grouped = k.reshape(eights, "matrices", 0, &[&[(2, 2)], &[(2, 1)]])?;
        let address = k.indices(grouped, ["matrix_m", "matrix_n", "matrix_row"])?;
        Ok(Matrices(address.map(Expr::from)))
    }

    /// The own lane's row of a tile of 16×16, eight elements of it: of the matrices `[m, n]`, or `across` of `[n, m]`.
    pub(super) fn row(&self, k: &mut Builder, tile: TensorId, across: bool) -> Result<TensorId> {
        let Matrices([m, n, row]) = self;
        let matrices = k.tile(tile, "matrices", &[Tiler::Size(8), Tiler::Size(8)])?;
        let matrix = k.index(matrices, "matrix", if across { [n, m] } else { [m, n] })?;
        let rows = k.tile(matrix, "rows", &[Tiler::Size(1), Tiler::Size(8)])?;
        k.index(rows, "row", [row.clone(), Expr::from(0)])
    }

    /// Goes through the own warp's 16×16 tiles of a shared buffer: `body` is given a tile's number and the own lane's row of
    /// it, and says which registers go there.
    pub(super) fn store(
        &self,
        k: &mut Builder,
        lane: &Lane,
        buffer: TensorId,
        columns: i64,
        body: impl FnOnce(&mut Builder, &Expr, TensorId) -> Result<TensorId>,
    ) -> Result {
        let strips = k.tile(buffer, "strips", &[Tiler::Size(16), Tiler::Size(16)])?;
        k.unroll("strip", columns / 16, |k, strip| {
            let tile = k.index(strips, "strip", [lane.number.clone(), strip.into()])?;
            let row = self.row(k, tile, false)?;
            let from = body(k, &strip.into(), row)?;
            k.spec(Kind::Move, row, from, lane.warp)
        })
    }
}

/// What a warpgroup has stored in shared memory leaves by these tensor copies, a group of their own, which one thread issues.
pub(super) fn leave_by_tma(
    k: &mut Builder,
    own: ThreadsId,
    copies: impl FnOnce(&mut Builder) -> Result,
) -> Result {
    k.spec(Kind::Fence(Fence::Proxy), (), (), own)?;
    k.spec(Kind::Sync, (), (), own)?;
    k.role(own, 0..1, |k| {
        copies(k)?;
        k.alone(Kind::Commit(Group::Bulk), (), ())
    })
}

/// Waits until what leaves has been read, but for so many groups of such copies.
pub(super) fn await_tma(k: &mut Builder, own: ThreadsId, groups: i64) -> Result {
    k.role(own, 0..1, |k| k.alone(Kind::WaitGroup(Group::Bulk, groups, true), (), ()))
}

/// A fragment of 16×16 elements as matrices are stored: `[2 eights of rows, 2 of columns].[pair]`.
pub(super) fn matrix_fragment(k: &mut Builder, name: &str, scalar: Scalar) -> Result<TensorId> {
    registers(k, name, &[&[(2, 4), (2, 2)], &[(1, 0), (2, 1)]], scalar)
}

/// Registers of an accumulator, or of operands: of two rows eight apart, pairs of columns of so many eights.
pub(super) fn fragment(k: &mut Builder, name: &str, eights: i64, of: Scalar) -> Result<TensorId> {
    spread_fragment(k, name, (Spread::TwoRows, 8 * eights), of)
}

/// Likewise of all rows that a lane has of so many columns: `[rows, pairs].[2]`.
pub(super) fn spread_fragment(
    k: &mut Builder,
    name: &str,
    (spread, columns): (Spread, i64),
    of: Scalar,
) -> Result<TensorId> {
    let rows = spread.rows();
    registers(k, name, &[&[(rows, 2), (columns / spread.columns(), 2 * rows)], &[(2, 1)]], of)
}

/// Goes through the pairs of such a fragment and their numbers.
pub(super) fn each_pair(k: &mut Builder, of: TensorId, eights: i64, body: Visit<'_>) -> Result {
    k.unroll_both([("j", eights), ("half", 2)], |k, [j, half]| {
        let pair = k.index(of, "pair", [half, j])?;
        body(k, pair, Expr::from(j) * 2 + Expr::from(half))
    })
}

pub(super) fn clear(k: &mut Builder, acc: TensorId, eights: i64) -> Result {
    each_pair(k, acc, eights, &|k, pair, _| {
        k.unroll("p", 2, |k, p| k.init(Operand::at(pair, [p]), 0.0))
    })
}

/// The own one of a block's warpgroups, and its number.
pub(super) fn own_group(k: &mut Builder, groups: ThreadsId) -> Result<(ThreadsId, Var)> {
    let [group, _] = k.indices(groups, ["group", "in_group"])?;
    Ok((k.index(groups, "own", [&group])?, group))
}

/// All warps of a block with so many consumers: the first lane of each arrives for it.
pub(super) fn elected_warps(k: &mut Builder, of: ThreadsId, consumers: i64) -> Result<ThreadsId> {
    k.tile(of, "lanes", &[Tiler::Layout(Layout::mode(4 * (consumers + 1), 32)?)])
}

/// Registers of a consumer's threads: what the block has at launch, but for what the producer keeps.
pub(super) fn consumer_registers(consumers: i64, producer: i64) -> i64 {
    let groups = consumers + 1;
    let all = groups * registers_at_launch(GROUP * groups);
    ((all - producer) / consumers / 8 * 8).min(240)
}
