//! Folds over the threads that work on one thing: within a warp by exchanges, across warps through shared memory.

use super::{copy, each, neighbours, number, vector};
use crate::kernel::{Fold, Monoid};
use crate::{
    Binary, Builder, Cond, Expr, Header, Kind, Layout, Memory, Operand, Result, Scalar, TensorId,
    ThreadsId, Tiler, needs,
};

/// The threads of a block in groups of equal size, each of which reduces together: a power of two within a warp, or whole warps.
#[derive(Debug, Clone)]
pub struct ThreadGroups {
    /// Threads of a group.
    pub size: i64,
    /// Groups of a block.
    pub count: i64,
    /// The own group's number, and the own thread's in it.
    pub at: [Expr; 2],
    /// The block, and each of its threads on its own.
    pub block: ThreadsId,
    /// The own group.
    pub team: ThreadsId,
    warp: ThreadsId,
    lane: Expr,
}

impl ThreadGroups {
    /// Whether a block can have such groups: of a power of two threads or of whole warps, which fill whole warps together.
    pub fn check(size: i64, count: i64) -> Result {
        let shape = if size <= 32 { size > 0 && 32 % size == 0 } else { size % 32 == 0 };
        let threads = size.saturating_mul(count);
        let whole = shape && count > 0 && threads % 32 == 0 && threads <= 1024;
        needs(whole, "groups that make a block of whole warps", (count, size))
    }

    /// The groups of a block of `size · count` threads.
    pub fn new(k: &mut Builder, block: ThreadsId, size: i64, count: i64) -> Result<ThreadGroups> {
        ThreadGroups::check(size, count)?;
        let warps = k.tile(block, "warps", &[Tiler::Size(32)])?;
        let [warp, lane] = k.indices(warps, ["warp", "lane"])?;
        let thread = Expr::from(&warp) * 32 + Expr::from(&lane);
        let warp = k.index(warps, "warp", [&warp])?;
        let team = k.let_("team", thread.div(size))?;
        let member = k.let_("member", thread.rem(size))?;
        let at = [Expr::from(team), Expr::from(member)];
        let teams = k.tile(block, "teams", &[Tiler::Size(size)])?;
        let team = k.index(teams, "own_team", [at[0].clone()])?;
        Ok(ThreadGroups { size, count, at, block, team, warp, lane: lane.into() })
    }

    /// Folds a register of each of the group's threads into one value, which all of them get; or, within a warp, each of
    /// some registers `[n]`.
    pub fn fold(&self, k: &mut Builder, op: Binary, value: TensorId) -> Result {
        if self.size == 1 {
            return Ok(());
        }
        // Of the group's threads, which are the first dimension of their registers.
        let fold = Kind::Fold(Fold { monoid: Monoid::Of(op), along: vec![0] });
        let header = Header::new(fold, value, value, self.team);
        k.decompose(header, |k| self.exchange(k, op, value))
    }

    fn exchange(&self, k: &mut Builder, op: Binary, value: TensorId) -> Result {
        let threads = if self.size < 32 { self.team } else { self.warp };
        let elements = self.elements(k, value)?;
        for distance in [16, 8, 4, 2, 1].into_iter().filter(|&distance| distance < self.size) {
            // Exchanges of several follow one another: none waits for the one before.
            let mut others = Vec::new();
            for element in &elements {
                let other = number(k, "other", Scalar::F32)?;
                k.spec(Kind::Shfl(distance), other, element.clone(), threads)?;
                others.push(other);
            }
            for (element, other) in elements.iter().zip(others) {
                k.reduce(op, element.clone(), other)?;
            }
        }
        if self.size <= 32 {
            return Ok(());
        }
        let warps = self.size / 32;
        let view = Layout::rows([self.count, warps]);
        let parts = k.allocate("parts", view, Scalar::F32, Memory::Shared, None)?;
        let [team, member] = &self.at;
        let own = Operand::at(parts, [team.clone(), member.div(32)]);
        k.if_(Cond::equal(self.lane.clone(), 0), |k| k.move_(own, value))?;
        k.spec(Kind::Sync, (), (), self.block)?;
        let row = neighbours(k, parts, [team.clone(), Expr::from(0)], warps, "team_part")?;
        let all = vector(k, "all_parts", warps, Scalar::F32)?;
        copy(k, all, row, true)?;
        k.move_(value, Operand::at(all, [0]))?;
        each(k, warps - 1, |k, i| k.reduce(op, value, Operand::at(all, [i + 1])))
    }

    /// A register, or each of some.
    fn elements(&self, k: &Builder, value: TensorId) -> Result<Vec<Operand>> {
        let view = &k.tensor_of(value)?.view;
        let Some(n) = view.levels().first().and_then(|level| level.size().constant()) else {
            return Ok(vec![value.into()]);
        };
        needs(n == 1 || self.size <= 32, "several values of threads of one warp", n)?;
        Ok((0..n).map(|i| Operand::at(value, [i])).collect())
    }
}
