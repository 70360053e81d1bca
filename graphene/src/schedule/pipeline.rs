//! The pipeline of producers and consumers: its protocol is written once, here.
//!
//! It has stages, each with two barriers. *Full* completes a phase when a stage's data has arrived, *empty* when all of its
//! readers have left it. A producer waits for *empty* before it fills a stage; since no stage has been filled at first, its first
//! lap waits on the parity that counts as complete from the start.

use crate::{
    Builder, Expr, Fence, Kind, Layout, Memory, Operand, Result, Ring, Scalar, Scope, TensorId,
    ThreadsId, Var,
};

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
    /// Barriers of stages that so many fill and empty (`by`), initialised by one thread, `first`. A synchronisation must follow.
    pub fn new(k: &mut Builder, stages: i64, by: [i64; 2], first: ThreadsId) -> Result<Pipeline> {
        let mut barriers =
            |name| k.allocate(name, [Layout::of(stages, 1)], Scalar::Mbar, Memory::Shared, None);
        let (full, empty) = (barriers("full")?, barriers("empty")?);
        k.role(first, 0..1, |k| {
            k.unroll("s", stages, |k, s| {
                k.init(Operand::at(full, [s]), by[0] as f64)?;
                k.init(Operand::at(empty, [s]), by[1] as f64)
            })?;
            k.alone(Kind::Fence(Fence::Init), (), ())
        })?;
        Ok(Pipeline { stages, full, empty })
    }

    /// Where one stands who begins with the first stage.
    pub fn begin(self, k: &mut Builder, name: &str) -> Result<PipelineState> {
        Ok(PipelineState { pipeline: self, ring: k.ring(name, self.stages)? })
    }
}

/// Where someone stands who fills a pipeline's stages, or uses them, one after the other.
#[derive(Debug, Clone)]
pub struct PipelineState {
    /// The pipeline.
    pub pipeline: Pipeline,
    /// The stage that is next, and its parity.
    pub ring: Ring,
}

impl PipelineState {
    /// Fills one stage: waits until it is empty, and lets `fill` bring its data, which must complete
    /// on the full barrier it is given; then the ring advances.
    pub fn produce(
        &self,
        k: &mut Builder,
        threads: ThreadsId,
        fill: impl FnOnce(&mut Builder, Operand, &Var) -> Result,
    ) -> Result {
        let stage = self.ring.stage();
        let [full, empty] =
            [self.pipeline.full, self.pipeline.empty].map(|of| Operand::at(of, [&stage]));
        let other = Expr::from(1) - self.ring.parity();
        k.spec(Kind::Wait(other, Scope::Block), empty, (), threads)?;
        fill(k, full, &stage)?;
        k.advance(&self.ring)
    }

    /// The stage before this one, which asynchronous work on this one no longer reads.
    pub fn previous(&self) -> Expr {
        let stages = self.ring.stages;
        (Expr::from(self.ring.stage()) + (stages - 1)).rem(stages)
    }

    /// Waits until a stage is full; it must be released.
    pub fn consumer_wait(&self, k: &mut Builder, threads: ThreadsId) -> Result<Var> {
        let stage = self.ring.stage();
        let parity = Kind::Wait(Expr::from(self.ring.parity()), Scope::Block);
        k.spec(parity, Operand::at(self.pipeline.full, [&stage]), (), threads)?;
        Ok(stage)
    }

    /// Waits until the next stage is full, while this one is still in use: of several stages.
    pub fn try_wait_next(&self, k: &mut Builder, threads: ThreadsId) -> Result {
        let (ring, stages) = (&self.ring, Expr::from(self.ring.stages));
        let next = Expr::from(ring.stage()) + 1;
        let parity = (Expr::from(ring.parity()) + next.div(&stages)).rem(2);
        let full = Operand::at(self.pipeline.full, [next.rem(&stages)]);
        k.spec(Kind::Wait(parity, Scope::Block), full, (), threads)
    }

    /// Releases a stage that nothing of the own threads reads any more, and goes on to the next. Of
    /// `elected_warps`, tiles of threads, each one's first thread arrives for all of it.
    pub fn consumer_release(&self, k: &mut Builder, elected_warps: ThreadsId) -> Result {
        self.consumer_release_no_advance(k, elected_warps)?;
        k.advance(&self.ring)
    }

    /// Releases a stage as [`consumer_release`](PipelineState::consumer_release) does, but does not go on to the next.
    pub fn consumer_release_no_advance(&self, k: &mut Builder, warps: ThreadsId) -> Result {
        let empty = Operand::at(self.pipeline.empty, [self.ring.stage()]);
        k.role(warps, 0..1, |k| k.alone(Kind::Arrive(None), empty, ()))
    }
}
