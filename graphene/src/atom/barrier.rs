//! Barriers in memory, rendezvous of threads and blocks, fences, groups, register budgets.

use super::asm::asm;
use super::moves::only_one;
use super::{Atom, Code, D, Fits, Progress, Site, Step, Text, Warp, When, always, given};
use crate::arch::{WARPGROUP, registers_at_launch};
use crate::{Agent, Expr, Feature, Group, Kind, Number, Scope};

/// Where one pattern is another's, the first whose precondition agrees is taken.
#[rustfmt::skip]
pub(super) const ATOMS: &[Atom] = &[
    row("mbarrier.init", MBARRIER, "[].mbar.SH <- Init<<<[]>>>()", always, |s, c| {
        let Kind::Init(Number(count)) = s.spec.kind else { return String::new() };
        let text = format!("mbarrier.init.shared::cta.b64 [%0], {};", count as i64);
        asm(&text, &[], &[address(c)])
    }),
    row("mbarrier.arrive", MBARRIER, "[].mbar.SH <- Arrive<<<[]>>>()", |s| expects(s, false),
        |_, c| asm("mbarrier.arrive.shared::cta.b64 _, [%0];", &[], &[address(c)])),
    row("mbarrier.arrive.expect_tx", MBARRIER, "[].mbar.SH <- Arrive<<<[]>>>()", |s| expects(s, true),
        |s, c| asm("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;", &[], &[address(c), value(s, c)])),
    // Of a block's scope: it orders no accesses of threads between blocks, for which there is a fence that costs far
    // more. A ring needs only that matmuls have read a stage before the peer's copy writes it.
    row("mbarrier.arrive.cluster", &[Feature::Mbarrier, Feature::Cluster],
        "[].mbar.SH@ <- Arrive<<<[]>>>()", |s| expects(s, false), |_, c| {
        let peer = c.peer(D).expect("the pattern asks for a peer's barrier");
        let text = "{ .reg .u32 a; mapa.shared::cluster.u32 a, %0, %1; \
                    mbarrier.arrive.shared::cluster.b64 _, [a]; }";
        asm(text, &[], &[address(c), ("r", peer)])
    }),
    row("mbarrier.try_wait.parity", MBARRIER, "[].mbar.SH <- Wait<<<[threads]>>>()", always, |s, c| {
        let cluster = matches!(s.spec.kind, Kind::Wait(_, Scope::Cluster));
        let scope = if cluster { ".acquire.cluster" } else { "" };
        let text = format!(
            "{{ .reg .pred done; again: \
             mbarrier.try_wait.parity{scope}.shared::cta.b64 done, [%0], %1; \
             @!done bra again; }}"
        );
        asm(&text, &[], &[address(c), value(s, c)])
    }),
    row("bar.sync", &[], "Sync<<<[threads]>>>()", block_wide, sync_text),
    row("bar.warp.sync", &[], "Sync<<<[32]>>>()",
        |s| given(!s.across_blocks(), "it is for threads of one block"),
        |_, _| plain("bar.warp.sync 0xffffffff;")),
    row("barrier.cluster", CLUSTER, "Sync<<<[threads]>>>()", cluster_wide,
        |_, _| plain("barrier.cluster.arrive.release.aligned; barrier.cluster.wait.acquire.aligned;")),
    row("wgmma.fence", WGMMA, "[2,n].[2].fp32.RF <- Fence<matmul><<<[128]>>>()", always,
        |s, c| with_accumulators(s, c, "wgmma.fence.sync.aligned;")),
    row("fence.proxy.async", TMA, "Fence<proxy><<<[threads]>>>()", always,
        |_, _| plain("fence.proxy.async.shared::cta;")),
    row("fence.mbarrier_init", MBARRIER, "Fence<init><<<[threads]>>>()", always,
        |_, _| plain("fence.mbarrier_init.release.cluster;")),
    row("wgmma.commit_group", WGMMA, "Commit<matmul><<<[128]>>>()", always,
        |_, _| plain("wgmma.commit_group.sync.aligned;")),
    row("wgmma.wait_group", WGMMA, "[2,n].[2].fp32.RF <- WaitGroup<matmul><<<[128]>>>()", waits,
        |s, c| with_accumulators(s, c, &format!("wgmma.wait_group.sync.aligned {};", pending(s)))),
    row("cp.async.commit_group", &[Feature::CpAsync], "Commit<copy><<<[threads]>>>()", always,
        |_, _| plain("cp.async.commit_group;")),
    row("cp.async.wait_group", &[Feature::CpAsync], "WaitGroup<copy><<<[threads]>>>()", waits,
        |s, _| plain(&format!("cp.async.wait_group {};", pending(s)))),
    row("cp.async.bulk.commit_group", TMA, "Commit<bulk><<<[]>>>()", always,
        |_, _| plain("cp.async.bulk.commit_group;")),
    row("cp.async.bulk.wait_group", TMA, "WaitGroup<bulk><<<[]>>>()", waits, |s, _| {
        let read = if matches!(s.spec.kind, Kind::WaitGroup(_, _, true)) { ".read" } else { "" };
        plain(&format!("cp.async.bulk.wait_group{read} {};", pending(s)))
    }),
    row("setmaxnreg", &[Feature::Setmaxnreg], "Registers<<<[128]>>>()", budget, |s, _| {
        let Kind::Registers(count) = s.spec.kind else { return String::new() };
        let before = registers_at_launch(s.kernel.block_size().unwrap_or(1024));
        let direction = if count < before { "dec" } else { "inc" };
        plain(&format!("setmaxnreg.{direction}.sync.aligned.u32 {count};"))
    }),
    row("griddepcontrol.launch_dependents", &[Feature::GridDependency],
        "LaunchDependents<<<[threads]>>>()", always, |_, _| plain("griddepcontrol.launch_dependents;")),
    row("griddepcontrol.wait", &[Feature::GridDependency],
        "GridDependencyWait<<<[threads]>>>()", always, |_, _| plain("griddepcontrol.wait;")),
    row("prefetch.global.L2", &[], "Prefetch<<<[]>>>([].*.GL)", always,
        |_, c| asm("prefetch.global.L2 [%0];", &[], &[("l", c.pointer(D, &[]))])),
    row("red.release.gpu.inc", &[], "[].u32.GL <- GridArrive<<<[]>>>()", always, |s, c| {
        let ins = [("l", c.pointer(D, &[])), ("r", c.expr(&(number(s).clone() - 1)))];
        asm("red.release.gpu.global.inc.u32 [%0], %1;", &[], &ins)
    }),
    row("ld.acquire.gpu", &[], "GridWait<<<[]>>>([].u32.GL)", always, |s, c| {
        let text = "{ .reg .pred less; .reg .u32 count; again: \
                    ld.acquire.gpu.global.u32 count, [%0]; \
                    setp.lo.u32 less, count, %1; @less bra again; }";
        asm(text, &[], &[("l", c.pointer(D, &[])), value(s, c)])
    }),
];

const MBARRIER: &[Feature] = &[Feature::Mbarrier];
const CLUSTER: &[Feature] = &[Feature::Cluster];
const WGMMA: &[Feature] = &[Feature::Wgmma];
const TMA: &[Feature] = &[Feature::Tma];

const fn row(
    name: &'static str,
    needs: &'static [Feature],
    pattern: &'static str,
    when: When,
    cuda: Text,
) -> Atom {
    Atom { needs, when, ..Atom::new(name, pattern, meaning, cuda) }
}

fn meaning(site: &Site<'_>, warp: &mut dyn Warp) -> Step {
    let lanes = warp.lanes();
    match &site.spec.kind {
        Kind::Init(Number(count)) => {
            only_one(warp)?;
            return warp.init_barrier(D, *count as i64);
        }
        Kind::Arrive(bytes) => {
            for lane in lanes {
                let bytes = bytes.as_ref().map_or(0, |bytes| warp.value(lane, bytes));
                warp.arrive(lane, D, bytes)?;
            }
        }
        Kind::Wait(parity, scope) => {
            if let Some(&lane) = lanes.first() {
                let parity = warp.value(lane, parity);
                return warp.wait(D, parity, *scope);
            }
        }
        Kind::GridArrive(below) => {
            for lane in lanes {
                let below = warp.value(lane, below);
                warp.count(lane, D, below)?;
            }
        }
        Kind::GridWait(count) => {
            let lane = only_one(warp)?;
            let count = warp.value(lane, count);
            return warp.await_count(lane, D, count);
        }
        Kind::Sync => return warp.rendezvous(),
        Kind::Fence(fence) => return warp.fence(*fence),
        Kind::Commit(group) => return warp.commit(*group),
        Kind::WaitGroup(group, pending, reads) => return warp.wait_group(*group, *pending, *reads),
        Kind::Registers(count) => return warp.registers(*count),
        Kind::LaunchDependents | Kind::GridDependencyWait | Kind::Prefetch => {}
        kind => unreachable!("no pattern here asks for {kind}"),
    }
    Ok(Progress::Done)
}

fn plain(text: &str) -> String {
    asm(text, &[], &[])
}

fn address(code: &Code<'_>) -> (&'static str, String) {
    ("r", code.address(D, &[]))
}

/// The bytes, parity or count that the spec's kind has.
fn number<'a>(site: &'a Site<'_>) -> &'a Expr {
    site.spec.kind.exprs().first().expect("kinds of these patterns have a number")
}

fn value(site: &Site<'_>, code: &Code<'_>) -> (&'static str, String) {
    ("r", code.expr(number(site)))
}

fn pending(site: &Site<'_>) -> i64 {
    if let Kind::WaitGroup(_, pending, _) = site.spec.kind { pending } else { 0 }
}

fn expects(site: &Site<'_>, wanted: bool) -> Fits {
    let expects = matches!(site.spec.kind, Kind::Arrive(Some(_)));
    given(expects == wanted, "it differs in whether bytes are expected")
}

/// The number of groups left is an immediate operand that is not negative, and only bulk copies tell their reads apart.
fn waits(site: &Site<'_>) -> Fits {
    match site.spec.kind {
        Kind::WaitGroup(Group::MatMul | Group::Copy, _, true) => Err("its reads are not apart"),
        Kind::WaitGroup(_, left, _) if left < 0 => Err("no less than 0 groups can be left"),
        Kind::WaitGroup(Group::MatMul, 8.., _) => Err("at most 7 groups of matmuls can be left"),
        _ => Ok(()),
    }
}

/// The whole block, or one of its warpgroups: tiles of one size, so that each has a number of its
/// own among a block's sixteen barriers.
fn block_wide(site: &Site<'_>) -> Fits {
    let size = site.kernel.threads(site.spec.threads).view.size().constant();
    let whole = size.is_some_and(|size| size > 32) && size == site.kernel.block_size().ok();
    let fits = !site.across_blocks() && (whole || size == Some(WARPGROUP));
    given(fits, "it is for a whole block of several warps, or one of its warpgroups")
}

fn cluster_wide(site: &Site<'_>) -> Fits {
    let size = |threads| site.kernel.threads(threads).view.size();
    let whole = size(site.spec.blocks).constant() == site.kernel.cluster_size().ok()
        && size(site.spec.threads) == size(site.kernel.block);
    given(site.across_blocks() && whole, "it is for all threads of all blocks of a cluster")
}

/// The whole block uses barrier 0; its n-th warpgroup uses barrier n + 1.
fn sync_text(site: &Site<'_>, code: &Code<'_>) -> String {
    let view = &site.kernel.threads(site.spec.threads).view;
    let size = view.size();
    if site.kernel.threads(site.kernel.block).view.size() == size {
        return plain("bar.sync 0;");
    }
    let id = view.offset().div(&size) + 1;
    asm(&format!("bar.sync %0, {size};"), &[], &[("r", code.expr(&id))])
}

/// An instruction that accumulators stand by: the compiler may not move their uses across it.
fn with_accumulators(site: &Site<'_>, code: &Code<'_>, text: &str) -> String {
    let elements = super::wgmma::accumulators(site.size("n"));
    let outs: Vec<_> = elements.map(|element| ("+f", code.element(D, &element))).collect();
    asm(text, &outs, &[])
}

fn budget(site: &Site<'_>) -> Fits {
    let fits = matches!(site.spec.kind, Kind::Registers(count @ 24..=256) if count % 8 == 0);
    given(fits, "a register budget is a multiple of 8 in 24..=256")
}

impl Site<'_> {
    /// Whether the spec is one of several blocks together: a tile of the grid, not the grid.
    pub fn across_blocks(&self) -> bool {
        let blocks = self.kernel.threads(self.spec.blocks);
        self.spec.blocks != self.kernel.grid
            && blocks.agent == Agent::Block
            && blocks.view.size().constant().is_none_or(|size| size > 1)
    }
}
