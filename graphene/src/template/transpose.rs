//! Copies whose contiguous axis changes: `y[…, j, i] = x[…, i, j]`, through tiles in shared memory.
//!
//! Both sides move words of 32 bits, neighbours by neighbouring threads: rows of a tile come as they
//! lie in `x`, and leave as they lie in `y`. Rows of the tile are a word apart from a multiple of the
//! banks, and the threads of a warp read `32/E` words' rows for `E` columns that share a word, `E`
//! being the elements of a word: no two of them need the same bank.
//!
//! Copies that keep the contiguous axis are [`Pointwise`](super::pointwise::Pointwise).

use super::access::{Access, product};
use crate::arch::Arch;
use crate::build::Builder;
use crate::error::{Error, Result};
use crate::index::{Cond, Expr};
use crate::kernel::{Kernel, Kind, Operand, TensorId, Test, ThreadsId};
use crate::schedule::pointwise::{copy, each, vector};
use crate::tensor::{Memory, Scalar, Shape, Tile};

/// The parameters of a transpose. Its symbols are sizes of outer axes `N0`, `N1`, …, `rows`,
/// `columns`, and strides of the operands `x` and `y`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Transpose {
    /// What it is compiled for.
    pub arch: Arch,
    /// The input, of axes `[N0, …, rows, columns]`, the last of them contiguous.
    pub x: Access,
    /// The result, of axes `[N0, …, columns, rows]`, the last of them contiguous.
    pub y: Access,
    /// Whether words of several elements are moved, which must be aligned; otherwise single elements.
    pub words: bool,
}

/// Threads of a block.
const THREADS: i64 = 256;

/// The lanes of a warp, and the banks.
const LANES: i64 = 32;

impl Default for Transpose {
    fn default() -> Transpose {
        let matrix = Access::packed(Scalar::F16, 2);
        Transpose { arch: Arch::Sm90a, x: matrix.clone(), y: matrix, words: true }
    }
}

/// What the parts of the kernel share.
struct Context {
    /// Elements of a move.
    n: i64,
    /// Rows and columns of a tile: those of a warp's words, at least.
    side: i64,
    scalar: Scalar,
    one: ThreadsId,
    thread: Expr,
    /// The tile's place along the outer axes, and its row and column in tiles.
    outer: Vec<Expr>,
    at: [Expr; 2],
    shared: TensorId,
}

impl Transpose {
    /// The kernel.
    ///
    /// # Errors
    /// [`Error::Kernel`] for parameters that no kernel has.
    pub fn kernel(&self) -> Result<Kernel> {
        self.check()?;
        let mut k = Builder::new("transpose", self.arch);
        let outer: Vec<Expr> = (0..self.x.strides.len() - 2)
            .map(|axis| Ok(k.symbol(&format!("N{axis}"))?.into()))
            .collect::<Result<_>>()?;
        let [rows, columns] = ["rows", "columns"].map(|name| k.symbol(name));
        let (rows, columns) = (Expr::from(rows?), Expr::from(columns?));
        let symbols = [self.x.symbols(&mut k, "x")?, self.y.symbols(&mut k, "y")?];
        let sizes = |last: [&Expr; 2]| -> Vec<Expr> { outer.iter().chain(last).cloned().collect() };
        let x = self.x.param(&mut k, "x", &sizes([&rows, &columns]), &symbols[0])?;
        let y = self.y.param(&mut k, "y", &sizes([&columns, &rows]), &symbols[1])?;
        let scalar = self.x.scalar;
        let n = if self.words { (4 / scalar.bytes()).max(1) } else { 1 };
        let side = (LANES * n).max(64);
        let tiles = [&rows, &columns].map(|size| size.ceil_div(&Expr::from(side)));
        let blocks = product(&outer) * product(&tiles);
        let grid = k.grid("grid", [Shape::of(blocks, 1)])?;
        let block = k.block("block", [Shape::of(THREADS, 1)])?;
        let one = k.scalar(block, "one")?;
        let [first] = k.indices(grid, ["first"])?;
        let [thread] = k.indices(block, ["thread_of_block"])?;
        let mut rest = Expr::from(first);
        let mut at: Vec<Expr> = Vec::new();
        // All axes but the first, which takes what is left, the fastest first.
        let axes: Vec<&Expr> = outer.iter().chain(&tiles).collect();
        for size in axes.into_iter().skip(1).rev() {
            at.push(k.let_("at", rest.rem(size))?.into());
            rest = k.let_("rest", rest.div(size))?.into();
        }
        at.push(rest);
        let (column, row) = (at.remove(0), at.remove(0));
        at.reverse();
        let pitch = side + (4 / scalar.bytes()).max(1);
        let tile = [Shape::of(side, pitch), Shape::of(side, 1)];
        let shared = k.allocate("tile", tile, scalar, Memory::Shared, None)?;
        let context = Context {
            n,
            side,
            scalar,
            one,
            thread: thread.into(),
            outer: at,
            at: [row, column],
            shared,
        };
        context.bring(&mut k, x, &columns)?;
        k.spec(Kind::Sync, (), (), block)?;
        context.leave(&mut k, y, &rows)?;
        k.finish(y, x)
    }

    fn check(&self) -> Result<()> {
        let refuse = |why: &str| Err(Error::Kernel(format!("{why}: {self:?}")));
        if self.x.strides.len() < 2 || self.x.strides.len() != self.y.strides.len() {
            return refuse("both operands have rows and columns, and the same outer axes");
        }
        if !self.x.contiguous() || !self.y.contiguous() {
            return refuse("the last axes are contiguous");
        }
        if self.x.scalar != self.y.scalar {
            return refuse("it does not convert");
        }
        Ok(())
    }
}

impl Context {
    /// How many moves of a thread fill or empty a tile.
    fn moves(&self) -> i64 {
        self.side * self.side / self.n / THREADS
    }

    /// The tile's rows, as far as they are within `x`: all loads come before what waits for them.
    fn bring(&self, k: &mut Builder, x: TensorId, columns: &Expr) -> Result<()> {
        let n = self.n;
        let words = self.side / n;
        let place = |i: &Expr| {
            let linear = i.clone() * THREADS + &self.thread;
            [linear.div(&Expr::from(words)), linear.rem(&Expr::from(words))]
        };
        let [row, column] = &self.at;
        let held = vector(k, "held", self.moves() * n, self.scalar)?;
        let own = k.tile(held, "own", &[Tile::of(n)])?;
        each(k, self.moves(), |k, i| {
            let [r, c] = place(&i);
            let (r, c) = (row.clone() * self.side + r, column.clone() * words + c);
            let to = k.index(own, "word", [&i])?;
            self.guarded(k, x, columns, [&r, &c], |k, from, e| {
                let Some(e) = e else { return copy(k, to, from, n, true, self.one) };
                k.spec(Kind::Move, Operand::at(to, [e]), Operand::at(from, [0]), self.one)
            })
        })?;
        let tiled = k.tile(self.shared, "words", &[Tile::of(1), Tile::of(n)])?;
        each(k, self.moves(), |k, i| {
            let [r, c] = place(&i);
            let (at, from) = ([row.clone() * self.side + &r, column.clone() * words + &c], [r, c]);
            let word = k.index(own, "word", [&i])?;
            let to = k.index(tiled, "to", from)?;
            let to = k.reshape(to, "to", 0, &[&[(n, 1)]])?;
            self.guarded(k, x, columns, [&at[0], &at[1]], |k, _, e| {
                let Some(e) = e else { return copy(k, to, word, n, true, self.one) };
                k.spec(Kind::Move, Operand::at(to, [e]), Operand::at(word, [e]), self.one)
            })
        })
    }

    /// The tile's columns, as rows of `y`.
    fn leave(&self, k: &mut Builder, y: TensorId, rows: &Expr) -> Result<()> {
        let n = self.n;
        let [row, column] = &self.at;
        let (warp, lane) = (self.thread.div(&LANES.into()), self.thread.rem(&LANES.into()));
        let across = LANES / n;
        let chunks = Expr::from(self.side / LANES);
        each(k, self.moves(), |k, i| {
            let chunk = i * (THREADS / LANES) + &warp;
            let q = lane.rem(&across.into()) + chunk.rem(&chunks) * across;
            let j = chunk.div(&chunks) * n + lane.div(&across.into());
            let word = vector(k, "word", n, self.scalar)?;
            let at = [column.clone() * self.side + &j, row.clone() * (self.side / n) + &q];
            let from = |e: Expr| Operand::at(self.shared, [q.clone() * n + e, j.clone()]);
            self.guarded(k, y, rows, [&at[0], &at[1]], |k, to, e| match e {
                Some(e) => {
                    let element = Operand::at(word, [e]);
                    k.spec(Kind::Move, element.clone(), from(e.into()), self.one)?;
                    k.spec(Kind::Move, Operand::at(to, [0]), element, self.one)
                }
                None => {
                    each(k, n, |k, e| {
                        k.spec(Kind::Move, Operand::at(word, [&e]), from(e.clone()), self.one)
                    })?;
                    copy(k, to, word, n, true, self.one)
                }
            })
        })
    }

    /// `body` for the word of an operand at a row and a column that counts words, if it is within;
    /// and for each of its elements that is, if the word is not. It gets a view of the word, or of
    /// the element and the element's number.
    fn guarded(
        &self,
        k: &mut Builder,
        of: TensorId,
        end: &Expr,
        [row, column]: [&Expr; 2],
        body: impl Fn(&mut Builder, TensorId, Option<i64>) -> Result<()>,
    ) -> Result<()> {
        let n = self.n;
        let view = |k: &mut Builder, n: i64, column: Expr| {
            let mut tiles = vec![Tile::of(1); self.outer.len() + 1];
            tiles.push(Tile::of(n));
            let tiled = k.tile(of, "tiled", &tiles)?;
            let at = self.outer.iter().chain([row, &column]).cloned();
            let word = k.index(tiled, "word", at)?;
            k.reshape(word, "word", 0, &[&[(n, 1)]])
        };
        let word = view(k, n, column.clone())?;
        k.if_(Test::Inside(word.into()), |k| body(k, word, None))?;
        if n == 1 {
            return Ok(());
        }
        let last = column.clone() * n + n;
        k.if_(Cond::less(end, last), |k| {
            for e in 0..n - 1 {
                let element = view(k, 1, column.clone() * n + e)?;
                k.if_(Test::Inside(element.into()), |k| body(k, element, Some(e)))?;
            }
            Ok(())
        })
    }
}
