//! Matmuls of attention before Hopper: by the warps' tensor cores of fp16 or bf16 (`ldmatrix`, `mma.m16n8k16`), or of single
//! precision rounded to TF32 (`mma.m16n8k8`); and by IEEE fused multiply-adds of single threads.
//!
//! Of TF32, sums over keys take them in any order. A lane has the weights of two neighbouring keys; the
//! instruction wants those of two that are four apart. So of each eight keys the second of a pair
//! stands where the fourth after the first would, among weights and values alike.
//!
//! By threads, a lane has its scores as a warp's tensor cores would give them, four elements of queries and keys
//! at a time. Weights go through shared memory, where the lanes of a quad read all of their rows'; of
//! the values a lane has fours of columns.

use super::{Block, Matmuls};
use crate::build::{Builder, Header};
use crate::error::Result;
use crate::index::{Expr, Var};
use crate::kernel::{Kind, Operand, TensorId, Unary};
use crate::layout::{Swizzle, Tiler};
use crate::schedule::pointwise::vector;
use crate::template::fragments::{Matrices, Panels, fragment};
use crate::template::matmul::registers;
use crate::tensor::{Memory, Scalar, View};

/// Fragments of queries and of weights, and the row of fragments in shared memory whose address a lane holds.
pub(super) struct TensorCores {
    queries: TensorId,
    weights: TensorId,
    matrices: Matrices,
}

impl TensorCores {
    pub(super) fn new(k: &mut Builder, block: &Block<'_>) -> Result<TensorCores> {
        let fmha = block.fmha;
        Ok(TensorCores {
            queries: fragment(k, "queries", fmha.head_width() / 8, fmha.scalar)?,
            weights: fragment(k, "weights", fmha.keys / 8, fmha.scalar)?,
            matrices: Matrices::new(k, block.lane.warp)?,
        })
    }

    /// The own lane's row of one of the 16×16 tiles of `[rows, dim]`.
    fn row(
        &self,
        k: &mut Builder,
        tiles: TensorId,
        at: [&Expr; 2],
        across: bool,
    ) -> Result<TensorId> {
        let tile = k.index(tiles, "tile", at)?;
        self.matrices.row(k, tile, across)
    }

    /// Matmuls by sixteens along both sides of B, whose fragments are `[n, k]` of 8×8, each loaded
    /// from the rows that `row` points to.
    fn multiply(
        &self,
        k: &mut Builder,
        block: &Block<'_>,
        [acc, a]: [TensorId; 2],
        [deep, wide]: [i64; 2],
        pairs: [(i64, i64); 2],
        row: impl Fn(&mut Builder, &Expr, &Expr) -> Result<TensorId>,
    ) -> Result<()> {
        let columns = k.tile(acc, "columns", &[Tiler::Whole, Tiler::Size(1)])?;
        k.unroll("kk", deep, |k, kk| {
            k.unroll("n", wide, |k, n| {
                let b = registers(k, "b", &[&[(2, 4), (2, 2)], &pairs], block.fmha.scalar)?;
                let row = row(k, &kk.into(), &n.into())?;
                k.spec(Kind::Move, b, row, block.lane.warp)?;
                let eights = k.tile(b, "halves", &[Tiler::Size(1), Tiler::Whole])?;
                k.unroll("half", 2, |k, half| {
                    let zero = Expr::from(0);
                    let column = Expr::from(n) * 2 + Expr::from(half);
                    let c = Operand::at(columns, [zero.clone(), column]);
                    let a = Operand::at(a, [zero.clone(), kk.into()]);
                    let b = Operand::at(eights, [half.into(), zero]);
                    k.spec(Kind::MATMUL_ADD, c, [a, b], block.lane.warp)
                })
            })
        })
    }
}

impl Matmuls for TensorCores {
    fn begin(&self, k: &mut Builder, block: &Block<'_>) -> Result<()> {
        let of = k.index(block.shared[0], "of_block", [0])?;
        let tiles = k.tile(of, "tiles", &[Tiler::Size(16), Tiler::Size(16)])?;
        let to = k.tile(self.queries, "a", &[Tiler::Whole, Tiler::Size(2)])?;
        k.decompose(Header::new(Kind::Move, self.queries, of, block.block), |k| {
            k.unroll("kk", block.fmha.head_width() / 16, |k, kk| {
                let row = self.row(k, tiles, [&block.lane.number, &kk.into()], false)?;
                let to = Operand::at(to, [Expr::from(0), kk.into()]);
                k.spec(Kind::Move, to, row, block.lane.warp)
            })
        })
    }

    fn keys(&self, k: &mut Builder, block: &Block<'_>, keys: TensorId) -> Result<()> {
        let a = k.tile(self.queries, "a", &[Tiler::Whole, Tiler::Size(2)])?;
        let tiles = k.tile(keys, "tiles", &[Tiler::Size(16), Tiler::Size(16)])?;
        let (deep, wide) = (block.fmha.head_width() / 16, block.fmha.keys / 16);
        let pairs = [(1, 0), (2, 1)];
        self.multiply(k, block, [block.scores, a], [deep, wide], pairs, |k, kk, n| {
            self.row(k, tiles, [n, kk], false)
        })
    }

    fn weights(&self, k: &mut Builder, block: &Block<'_>) -> Result<()> {
        block.fmha.pack(k, block.scores, self.weights)
    }

    fn left(&self) -> (Option<TensorId>, TensorId) {
        (Some(self.queries), self.weights)
    }

    fn values(&self, k: &mut Builder, block: &Block<'_>, values: TensorId) -> Result<()> {
        let a = k.tile(self.weights, "a", &[Tiler::Whole, Tiler::Size(2)])?;
        let tiles = k.tile(values, "tiles", &[Tiler::Size(16), Tiler::Size(16)])?;
        let (deep, wide) = (block.fmha.keys / 16, block.fmha.value_width() / 16);
        // A lane's pairs run down the columns: the matrices are transposed on their way.
        let pairs = [(2, 1), (1, 0)];
        self.multiply(k, block, [block.sums, a], [deep, wide], pairs, |k, kk, n| {
            self.row(k, tiles, [kk, n], true)
        })
    }
}

/// The weights, rounded: `[8s of keys].[rows eight apart, pair]`.
pub(super) struct Rounded {
    weights: TensorId,
}

impl Rounded {
    pub(super) fn new(k: &mut Builder, block: &Block<'_>) -> Result<Rounded> {
        let levels: [&[(i64, i64)]; 2] = [&[(block.fmha.keys / 8, 4)], &[(2, 2), (2, 1)]];
        Ok(Rounded { weights: registers(k, "weights", &levels, Scalar::F32)? })
    }
}

/// An element of shared memory, rounded, in a register.
fn word(k: &mut Builder, to: Operand, from: TensorId, at: [Expr; 2]) -> Result<()> {
    k.move_(to.clone(), Operand::at(from, at))?;
    k.unary(Unary::Tf32, to.clone(), to)
}

/// The own lane's two words of an 8×8 part of the right operand, from where `at` says for each.
fn right(k: &mut Builder, from: TensorId, at: impl Fn(i64) -> [Expr; 2]) -> Result<TensorId> {
    let b = vector(k, "b", 2, Scalar::F32)?;
    for i in 0..2 {
        word(k, Operand::at(b, [i]), from, at(i))?;
    }
    Ok(b)
}

impl Matmuls for Rounded {
    fn keys(&self, k: &mut Builder, block: &Block<'_>, keys: TensorId) -> Result<()> {
        let queries = k.index(block.shared[0], "of_block", [0])?;
        let columns = k.tile(block.scores, "columns", &[Tiler::Whole, Tiler::Size(1)])?;
        // Of wider heads, more would be asked for at once than there are registers for.
        let unroll = block.fmha.head_width() <= 64;
        k.for_("kk", 0..block.fmha.head_width() / 8, 1, unroll, |k, kk| {
            let depth = |four: i64| Expr::from(kk) * 8 + &block.lane.column + 4 * four;
            let a = registers(k, "a", &[&[(2, 2), (2, 1)]], Scalar::F32)?;
            for (half, four) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
                let row = block.row() + 8 * half;
                word(k, Operand::at(a, [half, four]), queries, [row, depth(four)])?;
            }
            k.unroll("n", block.fmha.keys / 8, |k, n| {
                let key = Expr::from(n) * 8 + &block.lane.row;
                let b = right(k, keys, |four| [key.clone(), depth(four)])?;
                let scores = Operand::at(columns, [Expr::from(0), n.into()]);
                k.spec(Kind::MATMUL_ADD, scores, [a, b], block.lane.warp)
            })
        })
    }

    fn weights(&self, k: &mut Builder, block: &Block<'_>) -> Result<()> {
        k.unroll("j", block.fmha.keys / 8, |k, j| {
            let to = k.index(self.weights, "to", [j])?;
            k.unroll("half", 2, |k, half| {
                let pair = k.index(block.scores, "pair", [half, j])?;
                k.unroll("p", 2, |k, p| {
                    let (to, from) = (Operand::at(to, [half, p]), Operand::at(pair, [p]));
                    k.unary(Unary::Tf32, to, from)
                })
            })
        })
    }

    fn left(&self) -> (Option<TensorId>, TensorId) {
        (None, self.weights)
    }

    fn values(&self, k: &mut Builder, block: &Block<'_>, values: TensorId) -> Result<()> {
        let columns = k.tile(block.sums, "columns", &[Tiler::Whole, Tiler::Size(1)])?;
        k.unroll("kk", block.fmha.keys / 8, |k, kk| {
            let a = k.index(self.weights, "a", [kk])?;
            let key = |p: i64| Expr::from(kk) * 8 + block.lane.column.clone() * 2 + p;
            k.unroll("n", block.fmha.value_width() / 8, |k, n| {
                let column = Expr::from(n) * 8 + &block.lane.row;
                let b = right(k, values, |p| [key(p), column.clone()])?;
                let sums = Operand::at(columns, [Expr::from(0), n.into()]);
                k.spec(Kind::MATMUL_ADD, sums, [a, b], block.lane.warp)
            })
        })
    }
}

/// Elements that a thread reads at once.
const WIDE: i64 = 4;

/// The weights in shared memory: `[rows, keys]`.
pub(super) struct Threads {
    weights: TensorId,
}

impl Threads {
    pub(super) fn new(k: &mut Builder, block: &Block<'_>) -> Result<Threads> {
        let (rows, columns) = (block.fmha.rows(), block.fmha.keys);
        let panels = Panels { rows, columns, scalar: Scalar::F32 };
        let view = View::buffer(&panels.dims());
        // Half a warp writes 32 bytes of each of four rows at once.
        let swizzle = Some(Swizzle::new(if panels.width() == 32 { 2 } else { 1 }, 5, 2)?);
        let weights = k.allocate("sP", view, Scalar::F32, Memory::Shared, swizzle)?;
        Ok(Threads { weights })
    }
}

/// Four elements of a row of shared memory, in registers.
fn near_four(k: &mut Builder, rows: TensorId, at: [Expr; 2]) -> Result<TensorId> {
    let near = vector(k, "four", WIDE, Scalar::F32)?;
    let from = k.index(rows, "from", at)?;
    let from = k.reshape(from, "from", 0, &[&[(WIDE, 1)]])?;
    k.move_(near, from)?;
    Ok(near)
}

/// Of the own two rows of queries or of weights, four elements each.
fn rows(k: &mut Builder, block: &Block<'_>, fours: TensorId, at: &Expr) -> Result<[TensorId; 2]> {
    let row = |half: i64| [block.row() + half * 8, at.clone()];
    Ok([near_four(k, fours, row(0))?, near_four(k, fours, row(1))?])
}

/// A matrix in fours along its rows.
fn fours(k: &mut Builder, of: TensorId) -> Result<TensorId> {
    k.tile(of, "fours", &[Tiler::Size(1), Tiler::Size(WIDE)])
}

impl Matmuls for Threads {
    fn keys(&self, k: &mut Builder, block: &Block<'_>, keys: TensorId) -> Result<()> {
        let queries = k.index(block.shared[0], "of_block", [0])?;
        let (queries, keys) = (fours(k, queries)?, fours(k, keys)?);
        k.for_("four", 0..block.fmha.head_width() / WIDE, 1, false, |k, four| {
            let four = Expr::from(four);
            let rows = rows(k, block, queries, &four)?;
            k.unroll("j", block.fmha.keys / 8, |k, j| {
                k.unroll("p", 2, |k, p| {
                    let key = Expr::from(j) * 8 + block.lane.column.clone() * 2 + p;
                    let key = near_four(k, keys, [key, four.clone()])?;
                    k.unroll("kk", WIDE, |k, kk| {
                        for (half, row) in [0, 1].into_iter().zip(&rows) {
                            let half = Expr::from(half);
                            let pair = k.index(block.scores, "pair", [half, j.into()])?;
                            let ins = [Operand::at(*row, [kk]), Operand::at(key, [kk])];
                            k.fma(Operand::at(pair, [p]), ins)?;
                        }
                        Ok(())
                    })
                })
            })
        })
    }

    fn weights(&self, k: &mut Builder, block: &Block<'_>) -> Result<()> {
        let to = k.tile(self.weights, "pairs", &[Tiler::Size(1), Tiler::Size(2)])?;
        k.unroll("j", block.fmha.keys / 8, |k, j| {
            k.unroll("half", 2, |k, half| {
                let row = block.row() + Expr::from(half) * 8;
                let to = k.index(to, "to", [row, Expr::from(j) * 4 + &block.lane.column])?;
                let to = k.reshape(to, "to", 0, &[&[(2, 1)]])?;
                k.move_(to, Operand::at(block.scores, [half, j]))
            })
        })
    }

    fn left(&self) -> (Option<TensorId>, TensorId) {
        (None, self.weights)
    }

    fn values(&self, k: &mut Builder, block: &Block<'_>, values: TensorId) -> Result<()> {
        let (weights, values) = (fours(k, self.weights)?, fours(k, values)?);
        k.for_("four", 0..block.fmha.keys / WIDE, 1, false, |k, four| {
            let four = Expr::from(four);
            let rows = rows(k, block, weights, &four)?;
            k.unroll("kk", WIDE, |k, kk| {
                k.unroll("f", block.fmha.value_width() / 16, |k, f| {
                    let key = four.clone() * WIDE + kk;
                    let own = Expr::from(f) * WIDE + &block.lane.column;
                    let value = near_four(k, values, [key, own])?;
                    k.unroll("pair", 2, |k, pair| {
                        k.unroll("p", 2, |k, p| {
                            for (half, row) in [0, 1].into_iter().zip(&rows) {
                                let half = Expr::from(half);
                                let j = Expr::from(f) * 2 + pair;
                                let sums = k.index(block.sums, "sums", [half, j])?;
                                let at = Expr::from(pair) * 2 + p;
                                let ins = [Operand::at(*row, [kk]), Operand::at(value, [at])];
                                k.fma(Operand::at(sums, [p]), ins)?;
                            }
                            Ok(())
                        })
                    })
                })
            })
        })
    }

    fn column(&self, block: &Block<'_>, pair: &Var) -> Expr {
        let two = Expr::from(2);
        let (four, pair) = (Expr::from(pair).div(&two), Expr::from(pair).rem(&two));
        four * 8 + block.lane.column.clone() * 2 + pair
    }
}
