//! Copies whose contiguous axis changes: `y[…, j, i] = x[…, i, j]`, through tiles in shared memory.
//!
//! Both sides move words of 32 bits, neighbours by neighbouring threads: rows of a tile come as they lie in `x`, and leave as
//! they lie in `y`. Rows of the tile are a word apart from a multiple of the banks, and the threads of a warp read `32/E` words'
//! rows for `E` columns that share a word, `E` being the elements of a word: no two of them need the same bank.
//!
//! Levels:
//!
//! - kernel: y, of x
//!   - tile by a block: a tile of y, of one of x
//!     - load by a block: the tile of x comes to shared memory, as it lies
//!     - epilogue by a block: the tile leaves to y, as it lies there
//!
//! Copies that keep the contiguous axis are [`Pointwise`](super::pointwise::Pointwise).

use super::access::{Access, declare, launch, product, sizes};
use crate::schedule::{Run, Runs, coordinates, copy, each, neighbours, part, vector};
use crate::{
    Arch, Builder, Expr, Fused, Header, Kernel, Kind, Layout, Memory, Operand, Result, Scalar,
    TensorId, Tiler, needs,
};

parameters! {
    /// The parameters of a transpose. Its symbols are sizes of outer axes `N0`, `N1`, …, `rows`,
    /// `columns`, and strides of the operands `x` and `y`.
    pub struct Transpose {
        /// What it is compiled for.
        pub arch: Arch = Arch::Sm90a,
        /// The input, of axes `[N0, …, rows, columns]`, the last of them contiguous.
        pub x: Access = Access::packed(Scalar::F16, 2),
        /// The result, of axes `[N0, …, columns, rows]`, the last of them contiguous.
        pub y: Access = Access::packed(Scalar::F16, 2),
        /// Whether words of several elements are moved, which must be aligned; otherwise single elements.
        pub words: bool = true,
    }
}

/// The last two dimensions change places; those before them stay.
fn swapped(outer: usize) -> Kind {
    let dims = (0..outer).chain([outer + 1, outer]).map(Some);
    Kind::Fused(Fused::input(0).dims(dims.collect::<Vec<_>>()))
}

impl Transpose {
    /// The kernel.
    pub fn kernel(&self) -> Result<Kernel> {
        self.check()?;
        let mut k = Builder::new("transpose", self.arch);
        let outer = sizes(&mut k, "N", self.x.strides.len() - 2)?;
        let [rows, columns] = k.symbols(["rows", "columns"])?.map(Expr::from);
        let all = |last: [&Expr; 2]| -> Vec<Expr> { outer.iter().chain(last).cloned().collect() };
        let (from, to) = (all([&rows, &columns]), all([&columns, &rows]));
        let operands = [("x".to_owned(), &self.x, &from[..]), ("y".to_owned(), &self.y, &to)];
        let params = declare(&mut k, &operands)?;
        let (x, y, scalar) = (params[0], params[1], self.x.scalar);
        let n = if self.words { (4 / scalar.bytes()).max(1) } else { 1 };
        let side = (LANES * n).max(64);
        let tiles = [&rows, &columns].map(|size| size.ceil_div(side));
        let blocks = product(&outer) * product(&tiles);
        let (block, first) = launch(&mut k, blocks, THREADS, "first")?;
        let [thread] = k.indices(block, ["thread_of_block"])?;
        let mut outer_at = coordinates(&mut k, first, &[&outer[..], &tiles].concat())?;
        let at_tile = outer_at.split_off(outer.len());
        let pitch = side + (4 / scalar.bytes()).max(1);
        let view = [Layout::of(side, pitch), Layout::of(side, 1)];
        let shared = k.allocate("tile", view, scalar, Memory::Shared, None)?;
        let at = [0, 1].map(|axis| at_tile[axis].clone());
        let tile = Moved { n, side, scalar, thread: thread.into(), outer: outer_at, at, shared };
        let mut part = |of: TensorId, name: &str, axes: [usize; 2]| {
            let inner = axes.map(|axis| Some((side, tile.at[axis].clone())));
            let outer = tile.outer.iter().map(|at| Some((1, at.clone())));
            part(&mut k, of, name, &outer.chain(inner).collect::<Vec<_>>())
        };
        let (from, to) = (part(x, "x_tile", [0, 1])?, part(y, "y_tile", [1, 0])?);
        k.decompose(Header::new(swapped(outer.len()), to, from, block), |k| {
            let load = Header::new(Kind::Move, shared, from, block);
            k.decompose(load, |k| tile.bring(k, x, &columns))?;
            k.spec(Kind::Sync, (), (), block)?;
            k.decompose(Header::new(swapped(0), to, shared, block), |k| tile.leave(k, y, &rows))
        })?;
        k.finish(swapped(outer.len()), y, x)
    }

    fn check(&self) -> Result {
        let (x, y) = (&self.x, &self.y);
        let axes = x.strides.len() >= 2 && x.strides.len() == y.strides.len();
        needs(axes, "operands of rows and columns, and the same outer axes", self)?;
        needs(x.contiguous() && y.contiguous(), "last axes that are contiguous", self)?;
        needs(x.scalar == y.scalar, "operands of one type", self)
    }
}

const THREADS: i64 = 256;

/// The lanes of a warp, and the banks.
const LANES: i64 = 32;

/// A block's tile.
struct Moved {
    /// Elements of a move.
    n: i64,
    /// Rows and columns of a tile: those of a warp's words, at least.
    side: i64,
    scalar: Scalar,
    thread: Expr,
    /// The tile's place along the outer axes, and its row and column in tiles.
    outer: Vec<Expr>,
    at: [Expr; 2],
    shared: TensorId,
}

impl Moved {
    /// How many moves of a thread fill or empty a tile.
    fn moves(&self) -> i64 {
        self.side * self.side / self.n / THREADS
    }

    /// The tile's rows, as far as they are within `x`: all loads come before what waits for them.
    fn bring(&self, k: &mut Builder, x: TensorId, columns: &Expr) -> Result {
        let (n, words, [row, column]) = (self.n, self.side / self.n, &self.at);
        // Of the i-th word its place in the tile, and in `x`.
        let place = |i: &Expr| {
            let linear = i.clone() * THREADS + &self.thread;
            let (r, c) = (linear.div(words), linear.rem(words));
            let of_x = [row.clone() * self.side + &r, column.clone() * words + &c];
            ([r, c], of_x)
        };
        let held = vector(k, "held", self.moves() * n, self.scalar)?;
        let own = k.tile(held, "own", &[Tiler::Size(n)])?;
        each(k, self.moves(), |k, i| {
            let (_, at) = place(&i);
            let to = k.index(own, "word", [&i])?;
            self.within(k, x, columns, &at, |k, run| {
                let Some(e) = run.element else { return copy(k, to, run.view, true) };
                k.move_(Operand::at(to, [e]), Operand::at(run.view, [0]))
            })
        })?;
        each(k, self.moves(), |k, i| {
            let (to, at) = place(&i);
            let word = k.index(own, "word", [&i])?;
            let to = neighbours(k, self.shared, to, n, "to")?;
            self.within(k, x, columns, &at, |k, run| {
                let Some(e) = run.element else { return copy(k, to, word, true) };
                k.move_(Operand::at(to, [&e]), Operand::at(word, [&e]))
            })
        })
    }

    /// The tile's columns, as rows of `y`.
    fn leave(&self, k: &mut Builder, y: TensorId, rows: &Expr) -> Result {
        let (n, [row, column]) = (self.n, &self.at);
        let (warp, lane) = (self.thread.div(LANES), self.thread.rem(LANES));
        let (across, chunks) = (LANES / n, self.side / LANES);
        each(k, self.moves(), |k, i| {
            let chunk = i * (THREADS / LANES) + &warp;
            let q = lane.rem(across) + chunk.rem(chunks) * across;
            let j = chunk.div(chunks) * n + lane.div(across);
            let word = vector(k, "word", n, self.scalar)?;
            let at = [column.clone() * self.side + &j, row.clone() * (self.side / n) + &q];
            let from = |e: Expr| Operand::at(self.shared, [q.clone() * n + e, j.clone()]);
            self.within(k, y, rows, &at, |k, run| match run.element {
                Some(e) => {
                    let element = Operand::at(word, [&e]);
                    k.move_(element.clone(), from(e))?;
                    k.move_(Operand::at(run.view, [0]), element)
                }
                None => {
                    each(k, n, |k, e| k.move_(Operand::at(word, [&e]), from(e.clone())))?;
                    copy(k, run.view, word, true)
                }
            })
        })
    }

    /// `body` for the word of an operand at a row and a column that counts words, or for those of its elements that are within.
    fn within(
        &self,
        k: &mut Builder,
        of: TensorId,
        end: &Expr,
        [row, column]: &[Expr; 2],
        body: impl Fn(&mut Builder, Run) -> Result,
    ) -> Result {
        let view = |k: &mut Builder, n: i64, column: &Expr| {
            let at = self.outer.iter().chain([row, column]).cloned();
            neighbours(k, of, at, n, "word")
        };
        Runs { n: self.n, end: end.clone(), written_out: true }.within(k, column, view, body)
    }
}
