//! Software pipelining by groups of copies: while threads work on one stage of shared memory, their
//! own asynchronous copies fill the others.

use crate::build::Builder;
use crate::error::Result;
use crate::index::{Expr, Var};
use crate::kernel::{Group, Kind, ThreadsId};

/// Goes through `steps` steps. `fetch` begins the copies of a step into a stage, and does nothing for
/// a step that is none; `work` uses a stage whose copies are there.
///
/// All copies of a step form one group. After it has waited for its own, a thread waits for the
/// others', and by then nobody uses the stage of the step before any more: that one is filled next.
/// Afterwards the last stages may still be in use.
///
/// # Errors
/// Those of the builder and of the functions.
pub fn multistage(
    k: &mut Builder,
    stages: i64,
    steps: &Expr,
    block: ThreadsId,
    fetch: impl Fn(&mut Builder, &Expr, &Var) -> Result<()>,
    work: impl FnOnce(&mut Builder, &Var, &Var) -> Result<()>,
) -> Result<()> {
    let one = k.scalar(block, "one")?;
    let (filling, using) = (k.ring("filling", stages)?, k.ring("using", stages)?);
    let fetch = |k: &mut Builder, step: &Expr| {
        fetch(k, step, &filling.stage())?;
        k.spec(Kind::Commit(Group::Copy), (), (), one)?;
        k.advance(&filling)
    };
    for step in 0..stages - 1 {
        fetch(k, &Expr::from(step))?;
    }
    k.for_("k", Expr::from(0)..steps.clone(), 1, false, |k, step| {
        k.spec(Kind::WaitGroup(Group::Copy, stages - 2, false), (), (), one)?;
        k.spec(Kind::Sync, (), (), block)?;
        fetch(k, &(Expr::from(step) + (stages - 1)))?;
        work(k, step, &using.stage())?;
        k.advance(&using)
    })
}
