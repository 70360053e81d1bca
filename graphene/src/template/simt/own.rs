//! A thread's part of a tile: its sums in registers, and what it reads of the operands.

use crate::build::Builder;
use crate::choose::warps;
use crate::error::{Error, Result};
use crate::index::Expr;
use crate::kernel::{Kind, Number, Operand, TensorId, ThreadsId};
use crate::layout::{Layout, Tiler};
use crate::template::epilogue::{Across, Attached, Run};
use crate::template::product::Place;
use crate::template::split_k::{PAIR, Visit};
use crate::template::stage::Side;
use crate::tensor::{Memory, Scalar};

/// A warp's threads, along rows and columns.
const LANES: [i64; 2] = [8, 4];

/// Elements that a thread reads at once.
pub(super) const WIDE: i64 = 4;

/// The row and the column of a lane among a warp's: neighbours share a row, and every other lane a column. So all reads of
/// 16 bytes have lanes one or two apart that read the same, which takes fewer phases: products of 64×64 tiles with 4×4 for
/// each thread took 10 % less time so on an H200 than with rows along eight lanes.
fn place_in_warp(lane: &Expr) -> [Expr; 2] {
    let (two, rows) = (Expr::from(2), Expr::from(LANES[0]));
    let row = lane.div(&two).rem(&rows);
    let column = lane.rem(&two) + lane.div(&(rows * 2)) * 2;
    [row, column]
}

/// The rows and columns of a thread, of a tile that so many warps share so that it can be: those whose
/// operands are the fewest.
pub(in crate::template) fn part(tile: [i64; 2], warps: i64) -> [i64; 2] {
    let of = |rows: i64| [tile[0] / (LANES[0] * rows), tile[1] * rows / (LANES[1] * warps)];
    let whole = |&rows: &i64| {
        let [own_rows, own_columns] = of(rows);
        let columns = warps / rows;
        warps % rows == 0
            && own_rows * LANES[0] * rows == tile[0]
            && own_columns * LANES[1] * columns == tile[1]
            && own_columns % WIDE == 0
    };
    let best = (1..=warps).filter(whole).min_by_key(|&rows| of(rows).iter().sum::<i64>());
    of(best.unwrap_or(1))
}

/// How a block's threads share a tile, and where the own one stands, of rows and of columns.
pub(in crate::template) struct Own {
    pub(super) sides: [Side; 2],
    /// Rows and columns of a thread's part.
    pub(super) part: [i64; 2],
    /// Each thread on its own.
    pub(in crate::template) one: ThreadsId,
    /// The own warp's first row and column in the tile.
    warp: [Expr; 2],
    lane: [Expr; 2],
}

impl Own {
    /// Of tiles of so many rows and columns, by threads that have `part` of them each.
    pub(in crate::template) fn new(
        k: &mut Builder,
        block: ThreadsId,
        sides: [Side; 2],
        part: [i64; 2],
        count: i64,
    ) -> Result<Own> {
        let tile = sides.map(|side| side.size);
        let of_warp = [0, 1].map(|i| LANES[i] * part[i]);
        let layout = warps(count, [tile[0], tile[1], 1], [of_warp[0], of_warp[1], 1]);
        if (0..2).any(|i| of_warp[i] * layout.along[i] != tile[i]) {
            let message = format!("{count} warps of {of_warp:?} do not make a tile");
            return Err(Error::Kernel(message));
        }
        let one = k.scalar(block, "one")?;
        let warps = k.tile(block, "warps", &[Tiler::Size(32)])?;
        let [warp, lane] = k.indices(warps, ["warp", "lane"])?;
        let rows = Expr::from(layout.along[0]);
        let columns = Expr::from(layout.along[1]);
        let (warp, lane) = (Expr::from(warp), Expr::from(lane));
        let [row, column] = if layout.rows_first {
            [warp.rem(&rows), warp.div(&rows)]
        } else {
            [warp.div(&columns), warp.rem(&columns)]
        };
        Ok(Own {
            sides,
            part,
            one,
            warp: [row * of_warp[0], column * of_warp[1]],
            lane: place_in_warp(&lane),
        })
    }

    /// Rows and columns of a warp.
    pub(super) fn of_warp(&self) -> [i64; 2] {
        [0, 1].map(|i| LANES[i] * self.part[i])
    }

    /// The own warp's place, in such tiles.
    pub(super) fn place(&self, Place { batch, m, n }: &Place) -> Place {
        let [m, n] = [(0, m), (1, n)].map(|(i, tile)| {
            let of_warp = self.of_warp()[i];
            tile.clone() * (self.sides[i].size / of_warp) + self.warp[i].div(&of_warp.into())
        });
        Place { batch: batch.clone(), m, n }
    }

    /// The own rows or columns in the tile: where a warp's lanes read rows one below the other, they
    /// are neighbours; else each has fours of neighbours.
    pub(super) fn position(&self, i: usize, number: &Expr) -> Expr {
        let (warp, lane) = (self.warp[i].clone(), &self.lane[i]);
        if self.sides[i].transposed {
            let wide = Expr::from(WIDE);
            let (four, within) = (number.div(&wide), number.rem(&wide));
            warp + four * (LANES[i] * WIDE) + lane.clone() * WIDE + within
        } else {
            warp + number.clone() * LANES[i] + lane
        }
    }

    /// Registers for the own sums.
    pub(in crate::template) fn allocate(&self, k: &mut Builder) -> Result<TensorId> {
        k.allocate("acc", Layout::rows(self.part), Scalar::F32, Memory::Registers, None)
    }

    /// Sets the sums to 0.
    pub(in crate::template) fn reset(&self, k: &mut Builder, acc: TensorId) -> Result<()> {
        let [rows, columns] = self.part;
        k.for_("i", 0..rows, 1, true, |k, i| {
            k.for_("j", 0..columns, 1, true, |k, j| {
                k.spec(Kind::Init(Number(0.0)), Operand::at(acc, [i, j]), (), self.one)
            })
        })
    }

    /// Goes through the own pairs of sums and their numbers.
    pub(super) fn each_pair(&self, k: &mut Builder, acc: TensorId, visit: Visit<'_>) -> Result<()> {
        let pairs = k.tile(acc, "pairs", &[Tiler::Size(1), Tiler::Size(PAIR)])?;
        let [rows, columns] = self.part;
        k.for_("i", 0..rows, 1, true, |k, i| {
            k.for_("j", 0..columns / PAIR, 1, true, |k, j| {
                let pair = k.index(pairs, "pair", [i, j])?;
                let pair = k.reshape(pair, "pair", 0, &[&[(PAIR, 1)]])?;
                visit(k, pair, Expr::from(i) * (columns / PAIR) + Expr::from(j))
            })
        })
    }

    /// How many of a thread's columns are neighbours.
    pub(in crate::template) fn run(&self) -> i64 {
        if self.sides[1].transposed { WIDE } else { 1 }
    }

    /// Goes through the own runs of sums. `origin` is the row of the tile's first sum, and its column
    /// in runs.
    pub(in crate::template) fn each_run(
        &self,
        k: &mut Builder,
        acc: TensorId,
        epilogue: &Attached,
        batch: Option<&Expr>,
        origin: &[Expr; 2],
        body: impl Fn(&mut Builder, TensorId, &Run, &Across) -> Result<()>,
    ) -> Result<()> {
        let n = self.run();
        let runs = k.tile(acc, "runs", &[Tiler::Size(1), Tiler::Size(n)])?;
        let [rows, columns] = self.part;
        k.for_("j", 0..columns / n, 1, true, |k, j| {
            let column = self.position(1, &(Expr::from(j) * n)).div(&Expr::from(n));
            let column = origin[1].clone() + column;
            let across = epilogue.across(k, &column, n, self.one)?;
            k.for_("i", 0..rows, 1, true, |k, i| {
                let row = origin[0].clone() + self.position(0, &i.into());
                let run = Run { batch: batch.cloned(), row, column: column.clone(), n };
                let sums = k.index(runs, "sums", [i, j])?;
                let sums = k.reshape(sums, "sums", 0, &[&[(n, 1)]])?;
                body(k, sums, &run, &across)
            })
        })
    }
}
