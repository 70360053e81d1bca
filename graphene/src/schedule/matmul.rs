//! Fireiron's decompositions of matmuls.
//!
//! Each takes a matmul, emits it as a spec, and hands a smaller one to the body: `tile`
//! descends the hierarchy of blocks, warps and threads, `split` cuts K, `load` brings an operand
//! into a nearer memory, and `epilog` keeps the result in registers until it is complete.

use crate::build::{Builder, Header};
use crate::error::Result;
use crate::index::{Expr, Var};
use crate::kernel::{Kind, TensorId, ThreadsId};
use crate::layout::Tiler;

/// `c += a·b`, with `a` of `[m,k]`, `b` of `[k,n]`, `c` of `[m,n]`, by some threads of some blocks.
/// In registers, `c` is each thread's own part.
#[derive(Debug, Clone, Copy)]
pub struct MatMul {
    /// The result.
    pub c: TensorId,
    /// The left operand.
    pub a: TensorId,
    /// The right operand.
    pub b: TensorId,
    /// The blocks that compute it.
    pub blocks: ThreadsId,
    /// The threads that compute it.
    pub threads: ThreadsId,
}

/// Who computes one of the tiles: its coordinates, and the blocks and threads.
#[derive(Debug, Clone)]
pub struct Share {
    /// The tile's row and column, in tiles.
    pub at: [Expr; 2],
    /// The blocks that compute it.
    pub blocks: ThreadsId,
    /// The threads that compute it.
    pub threads: ThreadsId,
}

impl MatMul {
    /// The spec's header.
    pub fn header(&self) -> Header {
        Header::new(Kind::MATMUL_ADD, self.c, [self.a, self.b], self.threads).on(self.blocks)
    }

    /// Without a decomposition: an atom.
    pub fn atom(&self, k: &mut Builder) -> Result<()> {
        k.add(self.header())
    }
}

/// Tiles of `[m,n]`, each one's share of the agents. A result in registers is not tiled where the
/// agents are: it is each thread's own already.
pub fn tile(
    k: &mut Builder,
    matmul: MatMul,
    [m, n]: [i64; 2],
    own_result: bool,
    share: impl FnOnce(&mut Builder) -> Result<Share>,
    body: impl FnOnce(&mut Builder, MatMul) -> Result<()>,
) -> Result<()> {
    k.decompose(matmul.header(), |k| {
        let Share { at: [row, column], blocks, threads } = share(k)?;
        let zero = Expr::from(0);
        let a = k.tile(matmul.a, "a", &[Tiler::Size(m), Tiler::Whole])?;
        let a = k.index(a, "a", [row.clone(), zero.clone()])?;
        let b = k.tile(matmul.b, "b", &[Tiler::Whole, Tiler::Size(n)])?;
        let b = k.index(b, "b", [zero, column.clone()])?;
        let c = if own_result {
            matmul.c
        } else {
            let c = k.tile(matmul.c, "c", &[Tiler::Size(m), Tiler::Size(n)])?;
            k.index(c, "c", [row, column])?
        };
        body(k, MatMul { c, a, b, blocks, threads })
    })
}

/// One multiply-add after the other, element by element of the result, by each thread alone.
pub fn unroll(k: &mut Builder, matmul: MatMul, [m, n]: [i64; 2]) -> Result<()> {
    k.decompose(matmul.header(), |k| {
        k.for_("i", 0..m, 1, true, |k, i| {
            k.for_("j", 0..n, 1, true, |k, j| {
                let zero = Expr::from(0);
                let a = k.index(matmul.a, "a", [Expr::from(i), zero.clone()])?;
                let b = k.index(matmul.b, "b", [zero, Expr::from(j)])?;
                let c = k.index(matmul.c, "c", [i, j])?;
                MatMul { c, a, b, ..matmul }.atom(k)
            })
        })
    })
}

/// Steps of `depth` along K, of which there are `count`.
pub fn split(
    k: &mut Builder,
    matmul: MatMul,
    depth: i64,
    count: impl Into<Expr>,
    unrolled: bool,
    body: impl FnOnce(&mut Builder, MatMul, &Var) -> Result<()>,
) -> Result<()> {
    k.decompose(matmul.header(), |k| {
        let a = k.tile(matmul.a, "a", &[Tiler::Whole, Tiler::Size(depth)])?;
        let b = k.tile(matmul.b, "b", &[Tiler::Size(depth), Tiler::Whole])?;
        k.for_("k", Expr::from(0)..count.into(), 1, unrolled, |k, step| {
            let zero = Expr::from(0);
            let a = k.index(a, "a", [zero.clone(), Expr::from(step)])?;
            let b = k.index(b, "b", [Expr::from(step), zero])?;
            body(k, MatMul { a, b, ..matmul }, step)
        })
    })
}

/// Both operands in a nearer memory: `bring` copies them there, and says where that is.
pub fn load(
    k: &mut Builder,
    matmul: MatMul,
    bring: impl FnOnce(&mut Builder, TensorId, TensorId) -> Result<[TensorId; 2]>,
    body: impl FnOnce(&mut Builder, MatMul) -> Result<()>,
) -> Result<()> {
    k.decompose(matmul.header(), |k| {
        let [a, b] = bring(k, matmul.a, matmul.b)?;
        body(k, MatMul { a, b, ..matmul })
    })
}

/// The result in registers: `begin` makes and clears them, `end` brings the sums to where the
/// matmul's result is.
pub fn epilog(
    k: &mut Builder,
    matmul: MatMul,
    begin: impl FnOnce(&mut Builder) -> Result<TensorId>,
    body: impl FnOnce(&mut Builder, MatMul) -> Result<()>,
    end: impl FnOnce(&mut Builder, TensorId, TensorId) -> Result<()>,
) -> Result<()> {
    k.decompose(matmul.header(), |k| {
        let c = begin(k)?;
        body(k, MatMul { c, ..matmul })?;
        end(k, matmul.c, c)
    })
}
