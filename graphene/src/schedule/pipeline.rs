//! The pipeline of producers and consumers: its protocol is written once, here.
//!
//! It has stages, each with two barriers. *Full* completes a phase when a stage's data has
//! arrived, *empty* when all of its readers have left it. A producer waits for *empty* before it
//! fills a stage; since no stage has been filled at first, its first lap waits on the parity that
//! counts as complete from the start.

use crate::build::Builder;
use crate::error::Result;
use crate::index::{Cond, Expr, Relation, Var};
use crate::kernel::{Fence, Kind, Number, Operand, Ring, Scope, TensorId, ThreadsId};
use crate::layout::Layout;
use crate::tensor::{Memory, Scalar};

/// The barriers of a pipeline.
#[derive(Debug, Clone, Copy)]
pub struct Pipeline {
    /// How many stages.
    pub stages: i64,
    /// Complete when a stage's data is there.
    pub full: TensorId,
    /// Complete when a stage's data has been used.
    pub empty: TensorId,
}

impl Pipeline {
    /// Allocates the barriers, and lets one thread, `first`, initialise them. What follows must
    /// begin with a synchronisation.
    pub fn new(
        k: &mut Builder,
        stages: i64,
        filled_by: i64,
        emptied_by: i64,
        first: ThreadsId,
    ) -> Result<Pipeline> {
        let mut barriers =
            |name| k.allocate(name, [Layout::of(stages, 1)], Scalar::Mbar, Memory::Shared, None);
        let (full, empty) = (barriers("full")?, barriers("empty")?);
        k.role(first, 0..1, |k| {
            k.unroll("s", stages, |k, s| {
                let count = |count: i64| Kind::Init(Number(count as f64));
                k.alone(count(filled_by), Operand::at(full, [s]), ())?;
                k.alone(count(emptied_by), Operand::at(empty, [s]), ())
            })?;
            k.alone(Kind::Fence(Fence::Init), (), ())
        })?;
        Ok(Pipeline { stages, full, empty })
    }
}

/// Fills one stage: waits until it is empty, and lets `fill` bring its data, which must complete
/// on the full barrier it is given; then the ring advances.
pub fn produce(
    k: &mut Builder,
    pipeline: &Pipeline,
    ring: &Ring,
    threads: ThreadsId,
    fill: impl FnOnce(&mut Builder, Operand, &Var) -> Result<()>,
) -> Result<()> {
    let stage = ring.stage();
    let other = Expr::from(1) - ring.parity();
    k.spec(Kind::Wait(other, Scope::Block), Operand::at(pipeline.empty, [&stage]), (), threads)?;
    fill(k, Operand::at(pipeline.full, [&stage]), &stage)?;
    k.advance(ring)
}

/// Uses one stage: waits until it is full, and lets `work` begin asynchronous work on it and wait
/// for all but that. Then the stage before is no longer in use, and is released by `release`; the
/// last one is left to the caller.
pub fn consume(
    k: &mut Builder,
    pipeline: &Pipeline,
    ring: &Ring,
    threads: ThreadsId,
    step: &Var,
    work: impl FnOnce(&mut Builder, &Var) -> Result<()>,
    release: impl FnOnce(&mut Builder, Expr) -> Result<()>,
) -> Result<()> {
    let stage = consumer_wait(k, pipeline, ring, threads)?;
    work(k, &stage)?;
    k.if_(vec![Cond::new(step, Relation::AtLeast, 1)], |k| {
        let before = (Expr::from(&stage) + (ring.stages - 1)).rem(&Expr::from(ring.stages));
        release(k, before)
    })?;
    k.advance(ring)
}

/// Waits until a stage is full, which one that uses several pipelines at a time does itself; it must be
/// released.
pub fn consumer_wait(
    k: &mut Builder,
    pipeline: &Pipeline,
    ring: &Ring,
    threads: ThreadsId,
) -> Result<Var> {
    let stage = ring.stage();
    let parity = Kind::Wait(Expr::from(ring.parity()), Scope::Block);
    k.spec(parity, Operand::at(pipeline.full, [&stage]), (), threads)?;
    Ok(stage)
}

/// Waits until the next stage is full, while this one is still in use: of several stages.
pub fn try_wait_next(
    k: &mut Builder,
    pipeline: &Pipeline,
    ring: &Ring,
    threads: ThreadsId,
) -> Result<()> {
    let (next, stages) = (Expr::from(ring.stage()) + 1, Expr::from(ring.stages));
    let parity = (Expr::from(ring.parity()) + next.div(&stages)).rem(&Expr::from(2));
    let full = Operand::at(pipeline.full, [next.rem(&stages)]);
    k.spec(Kind::Wait(parity, Scope::Block), full, (), threads)
}

/// Releases a stage that nothing of the own threads reads any more, and goes on to the next. Of
/// `elected_warps`, tiles of threads, each one's first thread arrives for all of it.
pub fn consumer_release(
    k: &mut Builder,
    pipeline: &Pipeline,
    ring: &Ring,
    elected_warps: ThreadsId,
) -> Result<()> {
    consumer_release_no_advance(k, pipeline, ring, elected_warps)?;
    k.advance(ring)
}

/// Releases a stage as [`consumer_release`] does; going on to the next is left to the caller.
pub fn consumer_release_no_advance(
    k: &mut Builder,
    pipeline: &Pipeline,
    ring: &Ring,
    elected_warps: ThreadsId,
) -> Result<()> {
    k.role(elected_warps, 0..1, |k| {
        k.alone(Kind::Arrive(None), Operand::at(pipeline.empty, [ring.stage()]), ())
    })
}
