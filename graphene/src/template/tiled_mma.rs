//! How the agents of a block share the matmul of a tile: its sums are in registers, whoever adds them up.

mod threads;
mod warpgroups;
mod warps;

use self::threads::Threads;
use self::warpgroups::Warpgroups;
pub(super) use self::warps::Warps;
use super::epilogue::{Attached, Run, Span};
use super::split_k::{Shares, Visit};
use super::{matmul::Place, stage::Side};
use crate::choose;
pub(super) use crate::schedule::matmul::MatMul as Near;
use crate::schedule::matmul::load;
use crate::schedule::{Ahead, Fetch, multistage};
use crate::{
    Arch, Builder, Expr, Feature, Group, Kind, Result, Scalar, TensorId, ThreadsId, Tiler, Var,
    WARP,
};

/// Who multiplies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum By {
    /// Warps, by tensor cores: fp16 or bf16, or single precision rounded to TF32.
    Warps,
    /// Warpgroups, by tensor cores that read both operands in shared memory: fp16 or bf16, of rows of 32 bytes or more.
    Warpgroups,
    /// Threads, by multiply-adds, fused ones in single precision or of integers of 32 bits: so many rows and columns each.
    Threads([i64; 2]),
}

impl By {
    /// Those who multiply single precision as IEEE has it, or rounded to TF32, or other elements; by threads, those parts of
    /// a tile whose operands are the fewest.
    pub(super) fn of(sides: [Side; 2], warps: i64, tf32: bool) -> By {
        let part = || threads::part(sides.map(|side| side.size), warps);
        if By::is_threads(sides[0].scalar, tf32) { By::Threads(part()) } else { By::Warps }
    }

    /// Whether threads multiply and add such elements; `tf32`: single precision may be rounded to TF32.
    pub fn is_threads(scalar: Scalar, tf32: bool) -> bool {
        scalar == Scalar::I32 || scalar == Scalar::F32 && !tf32
    }

    /// Bytes of an operand that are read together along the contiguous axis. Of single precision across K, a warp reads eight
    /// neighbours of each of four rows.
    pub(super) fn chunk(self, scalar: Scalar, transposed: bool) -> i64 {
        if self == By::Warps && transposed && scalar == Scalar::F32 { 32 } else { 16 }
    }

    /// They, of tiles of `sides`, by so many warps.
    pub(super) fn share(
        self,
        k: &mut Builder,
        block: ThreadsId,
        sides: [Side; 2],
        warps: i64,
    ) -> Result<Box<dyn TiledMma>> {
        Ok(match self {
            By::Warps => {
                let product = [sides[0].size, sides[1].size, sides[0].depth];
                let layout = choose::warps(warps, product, warps::INSTRUCTION);
                Box::new(Warps::arranged(k, block, sides, layout)?.0)
            }
            By::Warpgroups => Box::new(Warpgroups::new(k, block, sides, warps)?),
            By::Threads(part) => Box::new(Threads::new(k, block, sides, part, warps)?),
        })
    }
}

/// The row and the column of warps in which the one of this number is.
pub(super) fn place_of(layout: choose::Warps, number: &Expr) -> [Expr; 2] {
    let [rows, columns] = layout.along;
    match layout.rows_first {
        true => [number.rem(rows), number.div(rows)],
        false => [number.div(columns), number.rem(columns)],
    }
}

/// What matmuls need of an architecture: of fp16 the best that it has.
pub(super) fn features(arch: Arch, scalar: Scalar, tf32: bool) -> &'static [Feature] {
    match scalar {
        Scalar::Bf16 => &[Feature::Ldmatrix, Feature::MmaBf16],
        Scalar::F16 if arch.multiplies_by_quad_pairs() => &[Feature::QuadPairs],
        Scalar::F16 => &[Feature::Ldmatrix, Feature::MmaK8],
        Scalar::F32 if tf32 => &[Feature::MmaTf32],
        Scalar::F32 | Scalar::I32 | Scalar::I64 => &[],
        Scalar::U32 | Scalar::U8 | Scalar::I8 | Scalar::Mbar => &[],
    }
}

/// The own runs of sums: for each of some rows, maybe of those eight below as well, some columns of `n` elements.
pub(super) struct Runs {
    n: i64,
    columns: i64,
    rows: (&'static str, i64),
    eights: i64,
}

/// A run of sums: the numbers of its row and column, which of two rows eight apart it is in, and its number among those whose
/// operands are loaded together.
struct Own {
    at: [Expr; 2],
    half: i64,
    number: Expr,
}

/// Registers of a thread for the operands of an epilogue that it loads together.
const LOADED: i64 = 32;

/// Who has which sums of a block's tile, and adds to them.
pub(super) trait TiledMma {
    /// Rows and columns of a part of the result's tile, a warp's or a warpgroup's, and which of these parts the own one is.
    fn own_part(&self) -> ([i64; 2], [Expr; 2]);

    /// Registers for the sums.
    fn allocate(&self, k: &mut Builder) -> Result<TensorId>;

    fn reset(&self, k: &mut Builder, acc: TensorId) -> Result;

    /// Adds the matmul of a stage; of A, from the step `skipped` of 16 along K on.
    fn multiply(&self, k: &mut Builder, near: Near, skipped: &Expr) -> Result;

    /// Goes through the own pairs of sums and their numbers.
    fn each_pair(&self, k: &mut Builder, acc: TensorId, visit: Visit<'_>) -> Result;

    fn runs(&self) -> Runs;

    /// The tile's row of the own one of this number.
    fn row(&self, i: &Var) -> Expr;

    /// The tile's column, in runs.
    fn column(&self, j: &Expr) -> Expr;

    /// The sums of a run: of the first row or the one eight below, and the numbers of its row and column.
    fn run(&self, k: &mut Builder, acc: TensorId, half: i64, at: [Expr; 2]) -> Result<TensorId>;

    /// Who waits for matmuls where they are asynchronous, and read what copies have written through another proxy.
    fn awaits(&self) -> Option<ThreadsId> {
        None
    }
}

impl dyn TiledMma + '_ {
    /// The sums of so many steps: `fetch` fills a step's stage, of so many, and stages of A and B are `shared`. Its first function,
    /// if there is one, loads what exists while kernels before still run.
    pub(super) fn sum_up(
        &self,
        k: &mut Builder,
        acc: TensorId,
        (stages, block): (i64, ThreadsId),
        steps: &Expr,
        shared: [TensorId; 2],
        fetch: (Option<&Fetch<'_>>, &Fetch<'_>),
    ) -> Result {
        self.reset(k, acc)?;
        let mut ahead = Ahead::new(k, stages, block)?;
        if self.awaits().is_some() {
            ahead = ahead.for_asynchronous_readers();
        }
        // Until the matmuls of so many stages at most are on their way.
        let wait = |k: &mut Builder, stages: i64| match self.awaits() {
            Some(own) => k.spec(Kind::WaitGroup(Group::MatMul, stages, false), acc, (), own),
            None => Ok(()),
        };
        multistage(k, &ahead, steps, fetch, |k, _, stage| {
            self.add(k, acc, block, shared, stage)?;
            wait(k, 1)
        })?;
        wait(k, 0)
    }

    /// Adds the matmul of a stage.
    pub(super) fn add(
        &self,
        k: &mut Builder,
        acc: TensorId,
        block: ThreadsId,
        [a, b]: [TensorId; 2],
        stage: &Var,
    ) -> Result {
        let near = |k: &mut Builder| Ok([k.index(a, "a", [stage])?, k.index(b, "b", [stage])?]);
        load(k, acc, block, near, |k, near| self.multiply(k, near, &0.into()))
    }

    /// Rows and columns of a part, and which part of the result the own one is, of the tile at a place.
    pub(super) fn part(&self, tile: &Place, sides: [Side; 2]) -> ([i64; 2], Place) {
        let (size, [m, n]) = self.own_part();
        let of_tile = [0, 1].map(|i| sides[i].of_one().size / size[i]);
        let (m, n) = (tile.m.clone() * of_tile[0] + m, tile.n.clone() * of_tile[1] + n);
        (size, Place { batch: tile.batch.clone(), m, n })
    }

    /// Adds up the sums of blocks that share a tile; the warp that has all of a part's goes on.
    pub(super) fn add_up(
        &self,
        k: &mut Builder,
        shares: &Shares,
        block: ThreadsId,
        acc: TensorId,
        go_on: impl FnOnce(&mut Builder, ThreadsId) -> Result,
    ) -> Result {
        let warps = k.tile(block, "warps", &[Tiler::Size(WARP)])?;
        let [number, _] = k.indices(warps, ["sharing", "lane"])?;
        let warp = k.index(warps, "warp", [&number])?;
        let each = |k: &mut Builder, visit: Visit<'_>| self.each_pair(k, acc, visit);
        shares.add_up(k, (warp, &number.into()), each, |k| go_on(k, warp))
    }

    /// Goes through the own runs of sums, of a tile whose first element has this place; those of a second matrix, in as many
    /// columns behind, are held with the first one's.
    pub(super) fn each_run(
        &self,
        k: &mut Builder,
        (acc, matrices): (TensorId, i64),
        epilogue: &Attached,
        origin: &Place,
        finish: impl Fn(&mut Builder, TensorId, &Run) -> Result,
    ) -> Result {
        let all = (0.into(), self.runs().columns / matrices);
        self.each_place(
            k,
            &all,
            origin,
            |k, run, _| {
                run.held = epilogue.across(k, Vec::new(), (&run.column, run.n))?;
                Ok(())
            },
            |k, mut run, own| {
                let sums = self.sums(k, (acc, matrices), &mut run, own)?;
                finish(k, sums, &run)
            },
        )
    }

    /// Finishes the own sums of a tile whose first element has this place, and stores what they become.
    ///
    /// Loads of operands that are rows or matrices, for as many columns as [`LOADED`] registers hold or for one, are issued before
    /// the first is waited for; operands that are columns are loaded where they are used.
    pub(super) fn leave(
        &self,
        k: &mut Builder,
        (acc, matrices): (TensorId, i64),
        epilogue: &Attached,
        origin: &Place,
    ) -> Result {
        let Runs { n, columns, rows: (_, rows), eights } = self.runs();
        let (columns, of_column) = (columns / matrices, rows * eights);
        let registers = epilogue.registers(k, n, of_column)?;
        let fits = |some: &i64| columns % some == 0 && some * registers <= LOADED;
        let some = (1..=columns).rev().find(fits).unwrap_or(1);
        k.unroll("some", columns / some, |k, number| {
            let own = (Expr::from(number) * some, some);
            let buffers = epilogue.buffers(k, some * n, some * of_column * n)?;
            if registers > 0 {
                self.each_place(
                    k,
                    &own,
                    origin,
                    |k, run, j| epilogue.fetch(k, &buffers, Span::Row, run, j),
                    |k, run, own| epilogue.fetch(k, &buffers, Span::Whole, &run, &own.number),
                )?;
            }
            self.each_place(
                k,
                &own,
                origin,
                |k, run, j| epilogue.hold(k, &buffers, Span::Row, run, j),
                |k, mut run, own| {
                    epilogue.hold(k, &buffers, Span::Whole, &mut run, &own.number)?;
                    let sums = self.sums(k, (acc, matrices), &mut run, own)?;
                    epilogue.leave(k, sums, &run)
                },
            )
        })
    }

    /// Goes through the runs of so many columns, from the first on: `column` is called once for those of each, with the number of
    /// the column among these, and `body` for each of them.
    fn each_place(
        &self,
        k: &mut Builder,
        (first, columns): &(Expr, i64),
        origin: &Place,
        column: impl Fn(&mut Builder, &mut Run, &Expr) -> Result,
        body: impl Fn(&mut Builder, Run, Own) -> Result,
    ) -> Result {
        let Runs { n, rows: (name, rows), eights, .. } = self.runs();
        k.unroll("j", *columns, |k, j| {
            let at = first.clone() + j;
            let (batch, row) = (origin.batch.clone(), origin.m.clone());
            let of = origin.n.div(n) + self.column(&at);
            let mut run = Run { batch, row, column: of, n, held: Vec::new() };
            column(k, &mut run, &j.into())?;
            k.unroll(name, rows, |k, i| {
                (0..eights).try_for_each(|half| {
                    let mut run = run.clone();
                    run.row = run.row + self.row(i) + 8 * half;
                    let number = (Expr::from(j) * rows + i) * eights + half;
                    body(k, run, Own { at: [i.into(), at.clone()], half, number })
                })
            })
        })
    }

    /// The sums of a run, which holds those of further matrices.
    fn sums(
        &self,
        k: &mut Builder,
        (acc, matrices): (TensorId, i64),
        run: &mut Run,
        Own { at, half, .. }: Own,
    ) -> Result<TensorId> {
        let columns = self.runs().columns / matrices;
        let [i, j] = at;
        for matrix in 1..matrices {
            let at = [i.clone(), j.clone() + matrix * columns];
            run.held.push(Some(self.run(k, acc, half, at)?));
        }
        self.run(k, acc, half, [i, j])
    }
}
