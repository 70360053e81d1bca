//! Fireiron's decompositions of matmuls.
//!
//! Each stands in a spec, makes a smaller one, and hands that to the body: `load` takes operands from a nearer memory, and
//! `epilog` keeps sums in registers until they are complete. What `tile` and `split` do, templates do by a walk over tiles and
//! by loops over stages.

use crate::{Builder, Header, Kind, Result, TensorId, ThreadsId};

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
}

/// `c += a·b` with both operands in a nearer memory: `bring` says where that is, and may copy them there.
pub fn load(
    k: &mut Builder,
    c: TensorId,
    threads: ThreadsId,
    bring: impl FnOnce(&mut Builder) -> Result<[TensorId; 2]>,
    body: impl FnOnce(&mut Builder, MatMul) -> Result,
) -> Result {
    let [a, b] = bring(k)?;
    let matmul = MatMul { c, a, b, threads };
    k.decompose(matmul.header(), |k| body(k, matmul))
}

/// The sums in registers, of this header and body; `end` brings what becomes of them to where the result is.
pub fn epilog(
    k: &mut Builder,
    sums: Header,
    body: impl FnOnce(&mut Builder) -> Result,
    end: impl FnOnce(&mut Builder) -> Result,
) -> Result {
    k.decompose(sums, body)?;
    end(k)
}
