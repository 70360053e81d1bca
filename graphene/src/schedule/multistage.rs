//! Software pipelining by groups of copies: while threads work on one stage of shared memory, their own copies fill the others.

use super::{commit_copies, wait_for_copies};
use crate::{Builder, Cond, Expr, Fence, Kind, Result, Ring, ThreadsId, Var};

/// Goes through `steps` steps. `fetch` begins the copies of a step into a stage, and does nothing for
/// a step that is none; `work` uses a stage whose copies are there.
///
/// `early` begins the copies of what exists while kernels before this one still run; those of all first stages come first.
///
/// All copies of a step form one group; what `early` copies for the first stages belongs to the first step's. After it has waited for its own, a thread waits for the others', and by then nobody uses
/// the stage of the step before any more: that one is filled next. Afterwards the last stages may still be in use.
pub fn multistage(
    k: &mut Builder,
    ahead: &Ahead,
    steps: &Expr,
    (early, fetch): (Option<&Fetch<'_>>, &Fetch<'_>),
    work: impl FnOnce(&mut Builder, &Var, &Var) -> Result,
) -> Result {
    let first = || (0..ahead.steps).map(Expr::from);
    if let Some(early) = early {
        for step in first() {
            let stage = k.let_("stage", step.clone())?;
            early(k, &step, &stage)?;
        }
    }
    for step in first() {
        ahead.fetch(k, |k, stage| fetch(k, &step, stage))?;
    }
    let both = |k: &mut Builder, step: &Expr, stage: &Var| {
        early.map_or(Ok(()), |early| early(k, step, stage))?;
        fetch(k, step, stage)
    };
    ahead.each(k, steps, both, work)
}

/// `body` for a step that is one of `count`: what `fetch` does, which is asked for steps past the end, too.
pub fn within(
    k: &mut Builder,
    step: &Expr,
    count: impl Into<Expr>,
    body: impl FnOnce(&mut Builder) -> Result,
) -> Result {
    let count = count.into();
    if step.reaches(&count) {
        return Ok(());
    }
    if count.exceeds(step) { body(k) } else { k.if_(Cond::less(step, count), body) }
}

/// What is done for a step's stage.
pub type Fetch<'a> = dyn Fn(&mut Builder, &Expr, &Var) -> Result + 'a;

/// As [`multistage`], where something comes through registers: `fetch` begins to load it, and `settle`
/// brings it to its stage, after the work on another step.
pub fn multistage_through_registers(
    k: &mut Builder,
    stages: i64,
    steps: &Expr,
    block: ThreadsId,
    [fetch, settle]: [&Fetch<'_>; 2],
    work: impl FnOnce(&mut Builder, &Var, &Var) -> Result,
) -> Result {
    let ahead = Ahead::new(k, stages, block)?;
    let filling = ahead.filling.stage();
    for step in (0..stages - 1).map(Expr::from) {
        fetch(k, &step, &filling)?;
        settle(k, &step, &filling)?;
        ahead.close(k)?;
    }
    k.for_("k", Expr::from(0)..steps.clone(), 1, false, |k, step| {
        ahead.meet(k)?;
        let next = Expr::from(step) + (stages - 1);
        fetch(k, &next, &filling)?;
        work(k, step, &ahead.using.stage())?;
        settle(k, &next, &filling)?;
        ahead.close(k)?;
        k.advance(&ahead.using)
    })
}

/// Stages that are filled so many steps ahead, by one loop after the other.
pub struct Ahead {
    /// By how many steps.
    steps: i64,
    block: ThreadsId,
    filling: Ring,
    using: Ring,
    /// Whether stages are read through the asynchronous proxy (PTX, `fence.proxy.async`), which sees what copies have
    /// written only behind a fence.
    asynchronous: bool,
}

impl Ahead {
    /// One stage is used while all others are filled. Nothing is filled yet: `stages - 1` steps are to be fetched before the
    /// first loop.
    pub fn new(k: &mut Builder, stages: i64, block: ThreadsId) -> Result<Ahead> {
        let (filling, using) = (k.ring("filling", stages)?, k.ring("using", stages)?);
        Ok(Ahead { steps: stages - 1, block, filling, using, asynchronous: false })
    }

    /// Likewise, of three stages or more, where matmuls read them asynchronously: those of a step and of the one before it
    /// are used while the others are filled.
    #[must_use]
    pub fn for_asynchronous_readers(self) -> Ahead {
        Ahead { steps: self.steps - 1, asynchronous: true, ..self }
    }

    /// Begins the copies of the next step.
    pub fn fetch(
        &self,
        k: &mut Builder,
        fetch: impl FnOnce(&mut Builder, &Var) -> Result,
    ) -> Result {
        fetch(k, &self.filling.stage())?;
        self.close(k)
    }

    /// All copies of a step have begun.
    fn close(&self, k: &mut Builder) -> Result {
        commit_copies(k)?;
        k.advance(&self.filling)
    }

    /// The next step's copies are there, and the stage before it is free.
    fn meet(&self, k: &mut Builder) -> Result {
        wait_for_copies(k, self.steps - 1)?;
        if self.asynchronous {
            k.spec(Kind::Fence(Fence::Proxy), (), (), self.block)?;
        }
        k.spec(Kind::Sync, (), (), self.block)
    }

    /// Goes through `steps` more steps; `fetch` is given the number of the step that is ahead, counted from the first of these.
    pub fn each(
        &self,
        k: &mut Builder,
        steps: &Expr,
        fetch: impl FnOnce(&mut Builder, &Expr, &Var) -> Result,
        work: impl FnOnce(&mut Builder, &Var, &Var) -> Result,
    ) -> Result {
        k.for_("k", Expr::from(0)..steps.clone(), 1, false, |k, step| {
            self.meet(k)?;
            let ahead = Expr::from(step) + self.steps;
            self.fetch(k, |k, stage| fetch(k, &ahead, stage))?;
            work(k, step, &self.using.stage())?;
            k.advance(&self.using)
        })
    }
}
