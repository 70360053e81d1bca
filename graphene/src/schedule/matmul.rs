//! Fireiron's decompositions of matmuls.
//!
//! Each stands in a spec, makes a smaller one, and hands that to the body: `tile` descends the hierarchy of blocks, warps
//! and threads, `split` cuts K, `load` takes operands from a nearer memory, and `epilog` keeps sums in registers until they
//! are complete.

use crate::build::{Builder, Header};
use crate::error::Result;
use crate::index::{Expr, Var};
use crate::kernel::{Kind, TensorId, ThreadsId};
use crate::layout::Tiler;

/// `c += a·b`, with `a` of `[m,k]`, `b` of `[k,n]`, `c` of `[m,n]`. In registers, `c` is each thread's own part.
#[derive(Debug, Clone, Copy)]
pub struct MatMul {
    /// The result.
    pub c: TensorId,
    /// The left operand.
    pub a: TensorId,
    /// The right operand.
    pub b: TensorId,
    /// The threads that compute it.
    pub threads: ThreadsId,
}

impl MatMul {
    /// The spec's header.
    pub fn header(&self) -> Header {
        Header::new(Kind::MATMUL_ADD, self.c, [self.a, self.b], self.threads)
    }

    fn decompose(
        self,
        k: &mut Builder,
        body: impl FnOnce(&mut Builder, MatMul) -> Result<()>,
    ) -> Result<()> {
        k.decompose(self.header(), |k| body(k, self))
    }
}

/// One of the tiles of `[m,n]`: that of these threads, at these coordinates in tiles. A result in registers is not tiled
/// where the threads are: it is each thread's own already.
pub fn tile(
    k: &mut Builder,
    matmul: MatMul,
    [m, n]: [i64; 2],
    own_result: bool,
    (threads, [row, column]): (ThreadsId, [Expr; 2]),
    body: impl FnOnce(&mut Builder, MatMul) -> Result<()>,
) -> Result<()> {
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
    MatMul { c, a, b, threads }.decompose(k, body)
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
    let a = k.tile(matmul.a, "a", &[Tiler::Whole, Tiler::Size(depth)])?;
    let b = k.tile(matmul.b, "b", &[Tiler::Size(depth), Tiler::Whole])?;
    k.for_("k", Expr::from(0)..count.into(), 1, unrolled, |k, step| {
        let zero = Expr::from(0);
        let a = k.index(a, "a", [zero.clone(), Expr::from(step)])?;
        let b = k.index(b, "b", [Expr::from(step), zero])?;
        MatMul { a, b, ..matmul }.decompose(k, |k, matmul| body(k, matmul, step))
    })
}

/// `c += a·b` with both operands in a nearer memory: `bring` says where that is, and may copy them there.
pub fn load(
    k: &mut Builder,
    c: TensorId,
    threads: ThreadsId,
    bring: impl FnOnce(&mut Builder) -> Result<[TensorId; 2]>,
    body: impl FnOnce(&mut Builder, MatMul) -> Result<()>,
) -> Result<()> {
    let [a, b] = bring(k)?;
    MatMul { c, a, b, threads }.decompose(k, body)
}

/// The sums in registers, of this header and body; `end` brings what becomes of them to where the result is.
pub fn epilog(
    k: &mut Builder,
    sums: Header,
    body: impl FnOnce(&mut Builder) -> Result<()>,
    end: impl FnOnce(&mut Builder) -> Result<()>,
) -> Result<()> {
    k.decompose(sums, body)?;
    end(k)
}
