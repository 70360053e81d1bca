//! Copies whose contiguous axis changes: `y[…, j, i] = x[…, i, j]`, through tiles in shared memory.
//!
//! Both sides move vectors, neighbours by neighbouring threads. The tile's rows come as they lie in `x`; a thread then takes a
//! word of 32 bits from each of as many rows as a vector of `y` has elements. Of types of up to 4 bytes, a row of the tile has a
//! word for each bank and one more, and every 32 rows are a vector further apart: no two threads of a warp need the same bank.
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
        /// Elements of a move of `x`: 16, 8 or 4 bytes, at most 8, or one; strides are multiples of it. Of 8 bytes each, one.
        pub load: i64 = 8,
        /// Those of a move of `y`.
        pub store: i64 = 8,
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
        let word = (4 / scalar.bytes()).max(1);
        let side = LANES * word;
        let tiles = [&rows, &columns].map(|size| size.ceil_div(side));
        let blocks = product(&outer) * product(&tiles);
        let (block, first) = launch(&mut k, blocks, THREADS, "first")?;
        let [thread] = k.indices(block, ["thread_of_block"])?;
        let mut outer_at = coordinates(&mut k, first, &[&outer[..], &tiles].concat())?;
        let at = outer_at.split_off(outer.len());
        // Rows apart by a word, and every 32 by a vector.
        let (pitch, next) = (side + word, LANES * (side + word) + self.store.max(word));
        let lines = Layout::join(vec![Layout::of(LANES, pitch), Layout::of(word, next)]);
        let shared =
            k.allocate("tile", [lines, Layout::of(side, 1)], scalar, Memory::Shared, None)?;
        let tile = Moved { of: self, word, thread: thread.into(), outer: outer_at, at, shared };
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
        needs(x.scalar == y.scalar, "operands of one type", self)?;
        let bytes = x.scalar.bytes();
        let fits = |v| v == 1 || bytes <= 4 && v <= 8 && [4, 8, 16].contains(&(v * bytes));
        needs(fits(self.load) && fits(self.store), "vectors of 16, 8 or 4 bytes, or elements", self)
    }
}

const THREADS: i64 = 128;
/// The lanes of a warp, and the banks.
const LANES: i64 = 32;

/// A block's tile.
struct Moved<'a> {
    of: &'a Transpose,
    /// Elements of a word, or one: a tile has as many rows and columns as 32 of them have elements.
    word: i64,
    thread: Expr,
    /// The tile's place along the outer axes, and its row and column in tiles.
    outer: Vec<Expr>,
    at: Vec<Expr>,
    shared: TensorId,
}

impl Moved<'_> {
    /// The tile's rows, zeros beyond `x`: all loads come before what waits for them.
    fn bring(&self, k: &mut Builder, x: TensorId, columns: &Expr) -> Result {
        let (v, side) = (self.of.load, LANES * self.word);
        let n = self.word.min(v);
        let (vectors, moves) = (side / v, side * side / v / THREADS);
        // Of the i-th vector its row of the tile, and its place there.
        let place = |i: &Expr| {
            let linear = i.clone() * THREADS + &self.thread;
            (linear.div(vectors), linear.rem(vectors))
        };
        let held = vector(k, "held", moves * v, self.of.x.scalar)?;
        let own = k.tile(held, "own", &[Tiler::Size(v)])?;
        let parts = k.tile(held, "parts", &[Tiler::Size(n)])?;
        each(k, moves * v, |k, e| k.init(Operand::at(held, [e]), 0.0))?;
        each(k, moves, |k, i| {
            let (r, c) = place(&i);
            let at = [self.at[0].clone() * side + r, self.at[1].clone() * vectors + c];
            let to = k.index(own, "vector", [&i])?;
            self.within(k, x, (columns, v), &at, |k, run| {
                let Some(e) = run.element else { return copy(k, to, run.view, true) };
                k.move_(Operand::at(to, [e]), Operand::at(run.view, [0]))
            })
        })?;
        each(k, moves * v / n, |k, word| {
            let (r, c) = place(&word.div(v / n));
            let at = [r, c * (v / n) + word.rem(v / n)];
            let to = neighbours(k, self.shared, at, n, "to")?;
            let from = k.index(parts, "part", [word])?;
            copy(k, to, from, true)
        })
    }

    /// The tile's columns, as rows of `y`.
    fn leave(&self, k: &mut Builder, y: TensorId, rows: &Expr) -> Result {
        let (v, side) = (self.of.store, LANES * self.word);
        let n = self.word.min(v);
        let vectors = side / v;
        each(k, side * side / (v * n) / THREADS, |k, i| {
            let linear = i * THREADS + &self.thread;
            let (q, c) = (linear.rem(vectors), linear.div(vectors));
            let words = vector(k, "words", v * n, self.of.x.scalar)?;
            let own = k.tile(words, "own", &[Tiler::Size(n)])?;
            each(k, v, |k, e| {
                let to = k.index(own, "word", [&e])?;
                let from = neighbours(k, self.shared, [q.clone() * v + e, c.clone()], n, "from")?;
                copy(k, to, from, true)
            })?;
            each(k, n, |k, column| {
                let out = vector(k, "out", v, self.of.x.scalar)?;
                each(k, v, |k, e| {
                    k.move_(Operand::at(out, [&e]), Operand::at(words, [e * n + &column]))
                })?;
                let at = [
                    self.at[1].clone() * side + c.clone() * n + column,
                    self.at[0].clone() * vectors + &q,
                ];
                self.within(k, y, (rows, v), &at, |k, run| match run.element {
                    Some(e) => k.move_(Operand::at(run.view, [0]), Operand::at(out, [e])),
                    None => copy(k, run.view, out, true),
                })
            })
        })
    }

    /// `body` for the vector of an operand at a row and a column that counts vectors, or for those of its elements that are within.
    fn within(
        &self,
        k: &mut Builder,
        of: TensorId,
        (end, n): (&Expr, i64),
        [row, column]: &[Expr; 2],
        body: impl Fn(&mut Builder, Run) -> Result,
    ) -> Result {
        let view = |k: &mut Builder, n: i64, column: &Expr| {
            let at = self.outer.iter().chain([row, column]).cloned();
            neighbours(k, of, at, n, "vector")
        };
        Runs { n, end: end.clone(), written_out: true }.within(k, column, view, body)
    }
}
