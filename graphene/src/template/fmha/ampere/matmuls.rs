//! Matmuls of attention before Hopper: by the warps' tensor cores of fp16 or bf16 (`ldmatrix`, `mma.m16n8k16`), or of single
//! precision rounded to TF32 (`mma.m16n8k8`); and by IEEE fused multiply-adds of single threads.
//!
//! Of TF32, sums over keys take them in any order. A lane has the weights of two neighbouring keys; the
//! instruction wants those of two that are four apart. So of each eight keys the second of a pair
//! stands where the fourth after the first would, among weights and values alike.
//!
//! By threads, a lane multiplies four elements of queries and keys at a time. Weights go through shared memory, where the lanes
//! that share rows read all of these; of the values a lane has fours of columns.

use super::Block;
use crate::choose::swizzle;
use crate::schedule::{neighbours, store, vector};
use crate::template::fragments::{Lane, Matrices, Panels, QuadPairs, fragment, multiply_16};
use crate::template::{fmha::Fmha, matmul::registers};
use crate::{
    Builder, Expr, Header, Kind, Memory, Operand, Result, Scalar, TensorId, Tiler, Unary, Var, View,
};

/// Elements that a thread reads at once.
const WIDE: i64 = 4;

/// Who multiplies.
#[derive(Debug, Clone, Copy)]
pub(super) enum By {
    /// Tensor cores of fp16 or bf16.
    TensorCores,
    /// Those of fp16 by quad pairs.
    QuadPairs,
    /// Those of TF32, to which operands are rounded.
    Rounded,
    /// Threads.
    Threads,
}

pub(super) struct Left {
    pub(super) by: By,
    /// Fragments of queries, unless they stay in shared memory.
    pub(super) queries: Option<TensorId>,
    /// Those of weights; rounded: `[8s of keys].[rows eight apart, pair]`; by threads in shared memory: `[rows, keys]`.
    pub(super) weights: TensorId,
    /// The row of fragments in shared memory whose address a lane holds.
    matrices: Option<Matrices>,
    quads: Option<QuadPairs>,
}

impl Left {
    pub(super) fn new(k: &mut Builder, fmha: &Fmha, lane: &Lane) -> Result<Left> {
        let (rows, keys, single) = (fmha.rows(), fmha.keys, Scalar::F32);
        let quads = fmha.is_by_quad_pairs().then(|| QuadPairs::new(k, lane.warp)).transpose()?;
        let (mut queries, mut matrices) = (None, None);
        let (by, weights) = if fmha.tf32 {
            let levels: [&[(i64, i64)]; 2] = [&[(keys / 8, 4)], &[(2, 2), (2, 1)]];
            (By::Rounded, registers(k, "weights", &levels, single)?)
        } else if fmha.scalar == single || quads.is_some() {
            let panels = Panels { rows, columns: keys, scalar: fmha.scalar };
            let view = View::buffer(&panels.dims());
            // The lanes that share a row write so many neighbours of it at once.
            let near = fmha.spread().columns();
            let swizzle = swizzle(panels.width() / near, near * fmha.scalar.bytes()).xor();
            let by = if quads.is_some() { By::QuadPairs } else { By::Threads };
            (by, k.allocate("sP", view, fmha.scalar, Memory::Shared, swizzle)?)
        } else {
            queries = Some(fragment(k, "queries", fmha.head_width() / 8, fmha.scalar)?);
            let weights = fragment(k, "weights", keys / 8, fmha.scalar)?;
            matrices = Some(Matrices::new(k, lane.warp)?);
            (By::TensorCores, weights)
        };
        Ok(Left { by, queries, weights, matrices, quads })
    }

    /// The own lane's row of one of the 16×16 tiles of `[rows, dim]`.
    fn row(&self, k: &mut Builder, of: TensorId, at: [Expr; 2], across: bool) -> Result<TensorId> {
        let tile = k.index(of, "tile", at)?;
        self.matrices.as_ref().expect("tensor cores have fragments").row(k, tile, across)
    }
}

impl Block<'_> {
    /// Adds the matmul of queries and keys to the scores, or of weights and `values` to the sums.
    pub(super) fn multiply(&self, k: &mut Builder, ins: [TensorId; 2], values: bool) -> Result {
        match (self.left.by, values) {
            (By::TensorCores, _) => self.by_tensor_cores(k, ins, values),
            (By::QuadPairs, _) => self.by_quad_pairs(k, ins, values),
            (By::Rounded, false) => self.keys_rounded(k, ins[1]),
            (By::Rounded, true) => self.values_rounded(k, ins[1]),
            (By::Threads, false) => self.keys_by_threads(k, ins[1]),
            (By::Threads, true) => self.values_by_threads(k, ins[1]),
        }
    }

    /// To what a matmul is added, how deep it is, and how wide.
    fn sums(&self, values: bool) -> (TensorId, i64, i64) {
        match values {
            true => (self.sums, self.fmha.keys, self.fmha.value_width()),
            false => (self.scores, self.fmha.head_width(), self.fmha.keys),
        }
    }

    /// By sixteens along both sides of B, whose fragments are `[n, k]` of 8×8.
    fn by_tensor_cores(&self, k: &mut Builder, [a, b]: [TensorId; 2], values: bool) -> Result {
        let (acc, deep, wide) = self.sums(values);
        // A lane's pairs run down the columns of values: the matrices are transposed on their way.
        let pairs = if values { [(2, 1), (1, 0)] } else { [(1, 0), (2, 1)] };
        let a = k.tile(a, "a", &[Tiler::Whole, Tiler::Size(2)])?;
        let tiles = k.tile(b, "tiles", &[Tiler::Size(16), Tiler::Size(16)])?;
        let columns = k.tile(acc, "columns", &[Tiler::Whole, Tiler::Size(1)])?;
        k.unroll_both([("kk", deep / 16), ("n", wide / 16)], |k, [kk, n]| {
            let b = registers(k, "b", &[&[(2, 4), (2, 2)], &pairs], self.fmha.scalar)?;
            let at = if values { [kk, n] } else { [n, kk] };
            let row = self.left.row(k, tiles, at.map(Expr::from), values)?;
            k.spec(Kind::Move, b, row, self.lane.warp)?;
            let a = k.index(a, "a", [&Expr::from(0), &kk.into()])?;
            k.unroll("half", 2, |k, half| {
                let c = Operand::at(columns, [Expr::from(0), Expr::from(n) * 2 + half]);
                multiply_16(k, c, a, (b, half), self.lane.warp)
            })
        })
    }

    /// Likewise, four steps along K at a time: left operands are rows of shared memory.
    fn by_quad_pairs(&self, k: &mut Builder, [a, b]: [TensorId; 2], values: bool) -> Result {
        let quads = self.left.quads.as_ref().expect("quad pairs multiply");
        let (acc, deep, wide) = self.sums(values);
        let row = self.lane.number.clone() * 16 + &quads.row;
        let eights = k.tile(acc, "eights", &[Tiler::Whole, Tiler::Size(1)])?;
        let sixteens = k.tile(eights, "sixteens", &[Tiler::Size(1), Tiler::Size(2)])?;
        k.for_("four", 0..deep / WIDE, 1, false, |k, four| {
            let four = Expr::from(four);
            let a = near_four(k, a, [row.clone(), four.clone()])?;
            k.unroll("n", wide / 16, |k, n| {
                let n = Expr::from(n);
                let b = if values {
                    let near = registers(k, "four", &[&QuadPairs::four(true)], self.fmha.scalar)?;
                    let at = [four.clone() * 4 + &quads.step, n.clone() * 4 + &quads.four];
                    let from = neighbours(k, b, at, WIDE, "from")?;
                    let to = k.reshape(near, "four", 0, &[&[(WIDE, 1)]])?;
                    k.move_(to, from)?;
                    near
                } else {
                    near_four(k, b, [n.clone() * 16 + &quads.column, four.clone()])?
                };
                let sums = Operand::at(sixteens, [0.into(), n]);
                k.spec(Kind::MATMUL_ADD, sums, [a, b], quads.pair)
            })
        })
    }

    pub(super) fn bring_queries(&self, k: &mut Builder) -> Result {
        let Some(queries) = self.left.queries else { return Ok(()) };
        let of = k.index(self.shared[0], "of_block", [0])?;
        let tiles = k.tile(of, "tiles", &[Tiler::Size(16), Tiler::Size(16)])?;
        let to = k.tile(queries, "a", &[Tiler::Whole, Tiler::Size(2)])?;
        k.decompose(Header::new(Kind::Move, queries, of, self.block), |k| {
            k.unroll("kk", self.fmha.head_width() / 16, |k, kk| {
                let at = [self.lane.number.clone(), kk.into()];
                let row = self.left.row(k, tiles, at, false)?;
                let to = Operand::at(to, [Expr::from(0), kk.into()]);
                k.spec(Kind::Move, to, row, self.lane.warp)
            })
        })
    }

    fn keys_rounded(&self, k: &mut Builder, keys: TensorId) -> Result {
        let queries = k.index(self.shared[0], "of_block", [0])?;
        let columns = k.tile(self.scores, "columns", &[Tiler::Whole, Tiler::Size(1)])?;
        // Of wider heads, more would be asked for at once than there are registers for.
        let unroll = self.fmha.head_width() <= 64;
        k.for_("kk", 0..self.fmha.head_width() / 8, 1, unroll, |k, kk| {
            let depth = |four: i64| Expr::from(kk) * 8 + &self.lane.column + 4 * four;
            let a = registers(k, "a", &[&[(2, 2), (2, 1)]], Scalar::F32)?;
            for (half, four) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
                let row = self.row() + 8 * half;
                word(k, Operand::at(a, [half, four]), queries, [row, depth(four)])?;
            }
            k.unroll("n", self.fmha.keys / 8, |k, n| {
                let key = Expr::from(n) * 8 + &self.lane.row;
                let b = right(k, keys, |four| [key.clone(), depth(four)])?;
                let scores = Operand::at(columns, [Expr::from(0), n.into()]);
                k.spec(Kind::MATMUL_ADD, scores, [a, b], self.lane.warp)
            })
        })
    }

    pub(super) fn weights_rounded(&self, k: &mut Builder) -> Result {
        k.unroll("j", self.fmha.keys / 8, |k, j| {
            let to = k.index(self.left.weights, "to", [j])?;
            k.unroll_both([("half", 2), ("p", 2)], |k, [half, p]| {
                let pair = k.index(self.scores, "pair", [half, j])?;
                k.unary(Unary::Tf32, Operand::at(to, [half, p]), Operand::at(pair, [p]))
            })
        })
    }

    fn values_rounded(&self, k: &mut Builder, values: TensorId) -> Result {
        let columns = k.tile(self.sums, "columns", &[Tiler::Whole, Tiler::Size(1)])?;
        k.unroll("kk", self.fmha.keys / 8, |k, kk| {
            let a = k.index(self.left.weights, "a", [kk])?;
            let key = |p: i64| Expr::from(kk) * 8 + self.lane.column.clone() * 2 + p;
            k.unroll("n", self.fmha.value_width() / 8, |k, n| {
                let column = Expr::from(n) * 8 + &self.lane.row;
                let b = right(k, values, |p| [key(p), column.clone()])?;
                let sums = Operand::at(columns, [Expr::from(0), n.into()]);
                k.spec(Kind::MATMUL_ADD, sums, [a, b], self.lane.warp)
            })
        })
    }

    /// Of the own rows of queries or of weights, four elements each.
    fn rows(&self, k: &mut Builder, of: TensorId, four: &Expr) -> Result<Vec<TensorId>> {
        let spread = self.fmha.spread();
        let row = |half: i64| [self.row() + half * spread.apart(), four.clone()];
        (0..spread.rows()).map(|half| near_four(k, of, row(half))).collect()
    }

    fn keys_by_threads(&self, k: &mut Builder, keys: TensorId) -> Result {
        let queries = k.index(self.shared[0], "of_block", [0])?;
        k.for_("four", 0..self.fmha.head_width() / WIDE, 1, false, |k, four| {
            let four = Expr::from(four);
            let rows = self.rows(k, queries, &four)?;
            let (columns, [pairs, _]) = (self.fmha.spread().columns(), self.fmha.pairs());
            k.unroll_both([("j", pairs), ("p", 2)], |k, [j, p]| {
                let key = Expr::from(j) * columns + self.lane.column.clone() * 2 + p;
                let key = near_four(k, keys, [key, four.clone()])?;
                k.unroll("kk", WIDE, |k, kk| {
                    for (half, row) in (0..).zip(&rows) {
                        let pair = k.index(self.scores, "pair", [Expr::from(half), j.into()])?;
                        let ins = [Operand::at(*row, [kk]), Operand::at(key, [kk])];
                        k.fma(Operand::at(pair, [p]), ins)?;
                    }
                    Ok(())
                })
            })
        })
    }

    pub(super) fn weights_to_shared(&self, k: &mut Builder) -> Result {
        let (spread, [pairs, _]) = (self.fmha.spread(), self.fmha.pairs());
        k.unroll_both([("j", pairs), ("half", spread.rows())], |k, [j, half]| {
            let row = self.row() + Expr::from(half) * spread.apart();
            let at = [row, Expr::from(j) * spread.lanes() + &self.lane.column];
            let to = neighbours(k, self.left.weights, at, 2, "to")?;
            let pair = k.index(self.scores, "pair", [half, j])?;
            store(k, to, pair, true)
        })
    }

    fn values_by_threads(&self, k: &mut Builder, values: TensorId) -> Result {
        k.for_("four", 0..self.fmha.keys / WIDE, 1, false, |k, four| {
            let four = Expr::from(four);
            let rows = self.rows(k, self.left.weights, &four)?;
            let lanes = self.fmha.spread().lanes();
            let fours = self.fmha.value_width() / (WIDE * lanes);
            k.unroll_both([("kk", WIDE), ("f", fours)], |k, [kk, f]| {
                let own = Expr::from(f) * lanes + &self.lane.column;
                let value = near_four(k, values, [four.clone() * WIDE + kk, own])?;
                k.unroll_both([("pair", 2), ("p", 2)], |k, [pair, p]| {
                    for (half, row) in (0..).zip(&rows) {
                        let at = [Expr::from(half), Expr::from(f) * 2 + pair];
                        let sums = k.index(self.sums, "sums", at)?;
                        let value = Operand::at(value, [Expr::from(pair) * 2 + p]);
                        k.fma(Operand::at(sums, [p]), [Operand::at(*row, [kk]), value])?;
                    }
                    Ok(())
                })
            })
        })
    }

    /// Which pair of the values' columns the own lane's `pair`-th is.
    pub(super) fn column(&self, pair: &Var) -> Expr {
        let By::Threads = self.left.by else { return Expr::from(pair) * 4 + &self.lane.column };
        let (pair, lanes) = (Expr::from(pair), self.fmha.spread().lanes());
        pair.div(2) * (2 * lanes) + self.lane.column.clone() * 2 + pair.rem(2)
    }
}

/// An element of shared memory, rounded, in a register.
fn word(k: &mut Builder, to: Operand, from: TensorId, at: [Expr; 2]) -> Result {
    k.move_(to.clone(), Operand::at(from, at))?;
    k.unary(Unary::Tf32, to.clone(), to)
}

/// The own lane's two words of an 8×8 part of the right operand, from where `at` says for each.
fn right(k: &mut Builder, from: TensorId, at: impl Fn(i64) -> [Expr; 2]) -> Result<TensorId> {
    let b = vector(k, "b", 2, Scalar::F32)?;
    (0..2).try_for_each(|i| word(k, Operand::at(b, [i]), from, at(i)))?;
    Ok(b)
}

/// Four elements of a row of shared memory, in registers.
fn near_four(k: &mut Builder, rows: TensorId, at: [Expr; 2]) -> Result<TensorId> {
    let near = vector(k, "four", WIDE, k.tensor_of(rows)?.scalar)?;
    let from = neighbours(k, rows, at, WIDE, "from")?;
    k.move_(near, from)?;
    Ok(near)
}
