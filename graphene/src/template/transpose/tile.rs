//! A tile on its way through shared memory.

use crate::build::Builder;
use crate::error::Result;
use crate::index::{Cond, Expr};
use crate::kernel::{Kind, Operand, TensorId, Test, ThreadsId};
use crate::layout::Tiler;
use crate::schedule::pointwise::{copy, each, vector};
use crate::schedule::vectors::neighbours;
use crate::tensor::Scalar;

/// Threads of a block.
pub(super) const THREADS: i64 = 256;

/// The lanes of a warp, and the banks.
pub(super) const LANES: i64 = 32;

/// A block's tile.
pub(super) struct Moved {
    /// Elements of a move.
    pub(super) n: i64,
    /// Rows and columns of a tile: those of a warp's words, at least.
    pub(super) side: i64,
    pub(super) scalar: Scalar,
    pub(super) one: ThreadsId,
    pub(super) thread: Expr,
    /// The tile's place along the outer axes, and its row and column in tiles.
    pub(super) outer: Vec<Expr>,
    pub(super) at: [Expr; 2],
    pub(super) shared: TensorId,
}

impl Moved {
    /// How many moves of a thread fill or empty a tile.
    fn moves(&self) -> i64 {
        self.side * self.side / self.n / THREADS
    }

    /// The tile's rows, as far as they are within `x`: all loads come before what waits for them.
    pub(super) fn bring(&self, k: &mut Builder, x: TensorId, columns: &Expr) -> Result<()> {
        let n = self.n;
        let words = self.side / n;
        let place = |i: &Expr| {
            let linear = i.clone() * THREADS + &self.thread;
            [linear.div(&Expr::from(words)), linear.rem(&Expr::from(words))]
        };
        let [row, column] = &self.at;
        let held = vector(k, "held", self.moves() * n, self.scalar)?;
        let own = k.tile(held, "own", &[Tiler::Size(n)])?;
        each(k, self.moves(), |k, i| {
            let [r, c] = place(&i);
            let (r, c) = (row.clone() * self.side + r, column.clone() * words + c);
            let to = k.index(own, "word", [&i])?;
            self.guarded(k, x, columns, [&r, &c], |k, from, e| {
                let Some(e) = e else { return copy(k, to, from, n, true, self.one) };
                k.spec(Kind::Move, Operand::at(to, [e]), Operand::at(from, [0]), self.one)
            })
        })?;
        let tiled = k.tile(self.shared, "words", &[Tiler::Size(1), Tiler::Size(n)])?;
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
    pub(super) fn leave(&self, k: &mut Builder, y: TensorId, rows: &Expr) -> Result<()> {
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
            let at = self.outer.iter().chain([row, &column]).cloned();
            neighbours(k, of, at, n, "word")
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
