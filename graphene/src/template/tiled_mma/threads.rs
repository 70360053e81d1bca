//! A thread's part of a tile: its sums in registers, and what it reads of the operands.

use super::{Near, Runs, TiledMma, place_of};
use crate::choose::warps;
use crate::schedule::neighbours;
use crate::template::split_k::{PAIR, Visit};
use crate::template::{matmul::registers, stage::Side};
use crate::{
    Builder, Expr, Layout, Memory, MultipleOf, Operand, Result, TensorId, ThreadsId, Tiler, Var,
    needs,
};

/// A warp's threads, along rows and columns.
const LANES: [i64; 2] = [8, 4];

/// Neighbours that a thread reads at once, whatever is contiguous: steps along K, or rows or columns.
const WIDE: i64 = 4;

/// The row and the column of a lane among a warp's: neighbours share a row, and every other lane a column. So lanes one or two
/// apart read the same 16 bytes, which takes fewer phases: 10 % less time on an H200 than with rows along eight lanes.
fn place_in_warp(lane: &Expr) -> [Expr; 2] {
    [lane.div(2).rem(LANES[0]), lane.rem(2) + lane.div(LANES[0] * 2) * 2]
}

/// The rows and columns of a thread, of a tile that so many warps share so that it can be: those whose operands are the fewest.
pub(crate) fn part(tile: [i64; 2], warps: i64) -> [i64; 2] {
    let of = |rows: i64| [tile[0] / (LANES[0] * rows), tile[1] * rows / (LANES[1] * warps)];
    let whole = |&rows: &i64| {
        let [own_rows, own_columns] = of(rows);
        warps % rows == 0
            && own_rows * LANES[0] * rows == tile[0]
            && own_columns * LANES[1] * (warps / rows) == tile[1]
            && own_columns % WIDE == 0
    };
    let best = (1..=warps).filter(whole).min_by_key(|&rows| of(rows).iter().sum::<i64>());
    of(best.unwrap_or(1))
}

/// How a block's threads share a tile, and where the own one stands, of rows and of columns.
pub(crate) struct Threads {
    sides: [Side; 2],
    /// Rows and columns of a thread's part.
    part: [i64; 2],
    /// The own warp's first row and column in the tile.
    warp: [Expr; 2],
    lane: [Expr; 2],
}

impl Threads {
    /// Of tiles of so many rows and columns, by threads that have `part` of them each.
    pub(crate) fn new(
        k: &mut Builder,
        block: ThreadsId,
        sides: [Side; 2],
        part: [i64; 2],
        count: i64,
    ) -> Result<Threads> {
        let tile = sides.map(|side| side.size);
        let of_warp = [0, 1].map(|i| LANES[i] * part[i]);
        let layout = warps(count, [tile[0], tile[1], 1], [of_warp[0], of_warp[1], 1]);
        let made = (0..2).all(|i| of_warp[i] * layout.along[i] == tile[i]);
        needs(made, "a tile that warps make up", (tile, of_warp, count))?;
        let unit = if sides[1].transposed { WIDE } else { 1 };
        MultipleOf(sides[1].matrices * unit).check("columns a thread", part[1])?;
        let warps = k.tile(block, "warps", &[Tiler::Size(32)])?;
        let [warp, lane] = k.indices(warps, ["warp", "lane"])?;
        let [row, column] = place_of(layout, &warp.into());
        let warp = [row * of_warp[0], column * (of_warp[1] / sides[1].matrices)];
        Ok(Threads { sides, part, warp, lane: place_in_warp(&lane.into()) })
    }

    /// The own rows or columns in the tile: where a warp's lanes read rows one below the other, they
    /// are neighbours; else each has fours of neighbours.
    fn position(&self, i: usize, number: &Expr) -> Expr {
        let (side, lane) = (self.sides[i], &self.lane[i]);
        let [first, number] = side.of_matrix(number.clone(), [self.part[i], side.size]);
        let first = first + &self.warp[i];
        if side.transposed {
            let (four, within) = (number.div(WIDE), number.rem(WIDE));
            first + four * (LANES[i] * WIDE) + lane.clone() * WIDE + within
        } else {
            first + number * LANES[i] + lane
        }
    }

    /// Four steps along K of an operand's own rows or columns, in registers: `[rows,4]`.
    fn near(&self, k: &mut Builder, i: usize, from: TensorId, four: &Expr) -> Result<TensorId> {
        let (side, own) = (self.sides[i], self.part[i]);
        let strides = if side.transposed { [1, own] } else { [WIDE, 1] };
        let near = registers(k, "near", &[&[(own, strides[0]), (WIDE, strides[1])]], side.scalar)?;
        let pieces = if side.transposed { [WIDE, 1] } else { [1, WIDE] }.map(Tiler::Size);
        let to = k.tile(near, "near_pieces", &pieces)?;
        let (outer, inner) = if side.transposed { (own / WIDE, WIDE) } else { (own, 1) };
        k.unroll_both([("piece", outer), ("deep", inner)], |k, [piece, deep]| {
            let (across, along) = if side.transposed {
                let first = self.position(i, &(Expr::from(piece) * WIDE));
                (first.div(WIDE), four.clone() * WIDE + deep)
            } else {
                (self.position(i, &piece.into()), four.clone())
            };
            let from = side.piece_of(k, from, WIDE, side.order(across, along))?;
            let to = k.index(to, "piece", [piece, deep])?;
            let to = k.reshape(to, "piece", 0, &[&[(WIDE, 1)]])?;
            k.move_(to, from)
        })?;
        Ok(near)
    }
}

impl TiledMma for Threads {
    fn own_part(&self) -> ([i64; 2], [Expr; 2]) {
        let size = [0, 1].map(|i| LANES[i] * self.part[i] / self.sides[i].matrices);
        (size, [0, 1].map(|i| self.warp[i].div(size[i])))
    }

    fn allocate(&self, k: &mut Builder) -> Result<TensorId> {
        let scalar = self.sides[0].scalar;
        k.allocate("acc", Layout::rows(self.part), scalar, Memory::Registers, None)
    }

    fn reset(&self, k: &mut Builder, acc: TensorId) -> Result {
        let [rows, columns] = self.part;
        k.unroll_both([("i", rows), ("j", columns)], |k, at| k.init(Operand::at(acc, at), 0.0))
    }

    fn each_pair(&self, k: &mut Builder, acc: TensorId, visit: Visit<'_>) -> Result {
        let [rows, columns] = [self.part[0], self.part[1] / PAIR];
        k.unroll_both([("i", rows), ("j", columns)], |k, [i, j]| {
            let pair = neighbours(k, acc, [i, j].map(Expr::from), PAIR, "pair")?;
            visit(k, pair, Expr::from(i) * columns + Expr::from(j))
        })
    }

    /// Runs are of four columns where they are neighbours.
    fn runs(&self) -> Runs {
        let n = if self.sides[1].transposed { WIDE } else { 1 };
        Runs { n, columns: self.part[1] / n, rows: ("i", self.part[0]), eights: 1 }
    }

    fn row(&self, i: &Var) -> Expr {
        self.position(0, &i.into())
    }

    fn column(&self, j: &Expr) -> Expr {
        let n = self.runs().n;
        self.position(1, &(j.clone() * n)).div(n)
    }

    fn run(&self, k: &mut Builder, acc: TensorId, _: i64, at: [Expr; 2]) -> Result<TensorId> {
        neighbours(k, acc, at, self.runs().n, "sums")
    }

    /// Four steps along K at a time.
    fn multiply(&self, k: &mut Builder, near: Near, skipped: &Expr) -> Result {
        let ([rows, columns], Near { c: acc, a, b, .. }) = (self.part, near);
        k.unroll("four", self.sides[1].depth / WIDE, |k, four| {
            let four = Expr::from(four);
            let along = skipped.clone() * 4 + &four;
            let [a, b] = [self.near(k, 0, a, &along)?, self.near(k, 1, b, &four)?];
            k.unroll("kk", WIDE, |k, kk| {
                let row = |k: &mut Builder, i: Expr, back: bool| {
                    k.unroll("j", columns, |k, j| {
                        let j = if back { Expr::from(columns - 1) - j } else { Expr::from(j) };
                        let ins = [(a, &i), (b, &j)];
                        let ins = ins.map(|(of, at)| Operand::at(of, [at, &kk.into()]));
                        k.fma(Operand::at(acc, [i, j]), ins)
                    })
                };
                // Along one row there, along the next back: of one step along K each multiply-add but the first reads what the
                // one before it did, of A or of B, and registers are read less often.
                k.unroll("pair", rows / 2, |k, pair| {
                    let i = Expr::from(pair) * 2;
                    row(k, i.clone(), false)?;
                    row(k, i + 1, true)
                })?;
                if rows % 2 == 0 { Ok(()) } else { row(k, Expr::from(rows - 1), false) }
            })
        })
    }
}
