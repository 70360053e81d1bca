//! Barriers in memory, rendezvous of threads and blocks, fences, groups, register budgets.

use super::asm::asm;
use super::moves::only_one;
use super::{Atom, Code, Fault, Progress, Proxy, Site, Step, Warp, When, always};
use crate::arch::{Feature, registers_at_launch};
use crate::kernel::{Fence, Group, Kind, Number, Scope};
use crate::tensor::Agent;

const D: usize = 0;

pub(super) const ATOMS: &[Atom] = &[
    row(
        "mbarrier.init",
        &[Feature::Mbarrier],
        "[].mbar.SH <- Init<<<[]>>>()",
        always,
        init,
        |s, c| {
            let Kind::Init(Number(count)) = s.spec.kind else { return String::new() };
            let text = format!("mbarrier.init.shared::cta.b64 [%0], {};", count as i64);
            asm(&text, &[], &[("r", c.address(D, &[]))])
        },
    ),
    row(
        "mbarrier.arrive",
        &[Feature::Mbarrier],
        "[].mbar.SH <- Arrive<<<[]>>>()",
        |s| expects(s, false),
        arrive,
        |_, c| asm("mbarrier.arrive.shared::cta.b64 _, [%0];", &[], &[("r", c.address(D, &[]))]),
    ),
    row(
        "mbarrier.arrive.expect_tx",
        &[Feature::Mbarrier],
        "[].mbar.SH <- Arrive<<<[]>>>()",
        |s| expects(s, true),
        arrive,
        |s, c| {
            let Kind::Arrive(Some(bytes)) = &s.spec.kind else { return String::new() };
            let ins = [("r", c.address(D, &[])), ("r", c.expr(bytes))];
            asm("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;", &[], &ins)
        },
    ),
    row(
        "mbarrier.arrive.cluster",
        &[Feature::Mbarrier, Feature::Cluster],
        "[].mbar.SH@ <- Arrive<<<[]>>>()",
        |s| expects(s, false),
        arrive,
        |_, c| {
            let peer = c.peer(D).expect("the pattern asks for a peer's barrier");
            // Of a block's scope: it orders no accesses of threads between blocks, for which there is a fence that costs far
            // more. A ring needs only that products have read a stage before the peer's copy writes it.
            let text = "{ .reg .u32 a; mapa.shared::cluster.u32 a, %0, %1; \
                    mbarrier.arrive.shared::cluster.b64 _, [a]; }";
            asm(text, &[], &[("r", c.address(D, &[])), ("r", peer)])
        },
    ),
    row(
        "mbarrier.try_wait.parity",
        &[Feature::Mbarrier],
        "[].mbar.SH <- Wait<<<[threads]>>>()",
        always,
        wait,
        |s, c| {
            let Kind::Wait(parity, scope) = &s.spec.kind else { return String::new() };
            let scope = match scope {
                Scope::Block => "",
                Scope::Cluster => ".acquire.cluster",
            };
            let text = format!(
                "{{ .reg .pred done; again: \
                 mbarrier.try_wait.parity{scope}.shared::cta.b64 done, [%0], %1; \
                 @!done bra again; }}"
            );
            asm(&text, &[], &[("r", c.address(D, &[])), ("r", c.expr(parity))])
        },
    ),
    row("bar.sync", &[], "Sync<<<[threads]>>>()", block_wide, |_, w| w.rendezvous(), sync_text),
    row(
        "bar.warp.sync",
        &[],
        "Sync<<<[32]>>>()",
        |s| if s.across_blocks() { Err("it is for threads of one block") } else { Ok(()) },
        |_, w| w.rendezvous(),
        |_, _| asm("bar.warp.sync 0xffffffff;", &[], &[]),
    ),
    row(
        "barrier.cluster",
        &[Feature::Cluster],
        "Sync<<<[threads]>>>()",
        cluster_wide,
        |_, w| w.rendezvous(),
        |_, _| {
            asm(
                "barrier.cluster.arrive.release.aligned; barrier.cluster.wait.acquire.aligned;",
                &[],
                &[],
            )
        },
    ),
    row(
        "wgmma.fence",
        &[Feature::Wgmma],
        "[2,n].[2].fp32.RF <- Fence<<<[128]>>>()",
        |s| fence_is(s, Fence::MatMul),
        fence,
        |s, c| with_accumulators(s, c, "wgmma.fence.sync.aligned;"),
    ),
    row(
        "fence.proxy.async",
        &[Feature::Tma],
        "Fence<<<[threads]>>>()",
        |s| fence_is(s, Fence::Proxy),
        fence,
        |_, _| asm("fence.proxy.async.shared::cta;", &[], &[]),
    ),
    row(
        "fence.mbarrier_init",
        &[Feature::Mbarrier],
        "Fence<<<[threads]>>>()",
        |s| fence_is(s, Fence::Init),
        fence,
        |_, _| asm("fence.mbarrier_init.release.cluster;", &[], &[]),
    ),
    row(
        "fence.acq_rel.cluster",
        &[Feature::Cluster],
        "Fence<<<[threads]>>>()",
        |s| fence_is(s, Fence::Cluster),
        fence,
        |_, _| asm("fence.acq_rel.cluster;", &[], &[]),
    ),
    row(
        "membar.gl",
        &[],
        "Fence<<<[threads]>>>()",
        |s| fence_is(s, Fence::Global),
        fence,
        |_, _| asm("membar.gl;", &[], &[]),
    ),
    row(
        "wgmma.commit_group",
        &[Feature::Wgmma],
        "Commit<<<[128]>>>()",
        |s| group_is(s, Group::MatMul),
        commit,
        |_, _| asm("wgmma.commit_group.sync.aligned;", &[], &[]),
    ),
    row(
        "wgmma.wait_group",
        &[Feature::Wgmma],
        "[2,n].[2].fp32.RF <- WaitGroup<<<[128]>>>()",
        |s| waits_for(s, Group::MatMul),
        wait_group,
        |s, c| {
            let text = format!("wgmma.wait_group.sync.aligned {};", pending(s));
            with_accumulators(s, c, &text)
        },
    ),
    row(
        "cp.async.commit_group",
        &[Feature::CpAsync],
        "Commit<<<[threads]>>>()",
        |s| group_is(s, Group::Copy),
        commit,
        |_, _| asm("cp.async.commit_group;", &[], &[]),
    ),
    row(
        "cp.async.wait_group",
        &[Feature::CpAsync],
        "WaitGroup<<<[threads]>>>()",
        |s| waits_for(s, Group::Copy),
        wait_group,
        |s, _| asm(&format!("cp.async.wait_group {};", pending(s)), &[], &[]),
    ),
    row(
        "cp.async.bulk.commit_group",
        &[Feature::Tma],
        "Commit<<<[]>>>()",
        |s| group_is(s, Group::Bulk),
        commit,
        |_, _| asm("cp.async.bulk.commit_group;", &[], &[]),
    ),
    row(
        "cp.async.bulk.wait_group",
        &[Feature::Tma],
        "WaitGroup<<<[]>>>()",
        |s| waits_for(s, Group::Bulk),
        wait_group,
        |s, _| {
            let read = matches!(s.spec.kind, Kind::WaitGroup(_, _, true));
            let read = if read { ".read" } else { "" };
            asm(&format!("cp.async.bulk.wait_group{read} {};", pending(s)), &[], &[])
        },
    ),
    row(
        "setmaxnreg",
        &[Feature::Setmaxnreg],
        "Registers<<<[128]>>>()",
        budget,
        registers,
        |s, _| {
            let Kind::Registers(count) = s.spec.kind else { return String::new() };
            let before = registers_at_launch(s.kernel.block_size().unwrap_or(1024));
            let direction = if count < before { "dec" } else { "inc" };
            asm(&format!("setmaxnreg.{direction}.sync.aligned.u32 {count};"), &[], &[])
        },
    ),
    row(
        "griddepcontrol.launch_dependents",
        &[Feature::GridDependency],
        "LaunchDependents<<<[threads]>>>()",
        always,
        |_, _| Ok(Progress::Done),
        |_, _| asm("griddepcontrol.launch_dependents;", &[], &[]),
    ),
    row(
        "griddepcontrol.wait",
        &[Feature::GridDependency],
        "GridDependencyWait<<<[threads]>>>()",
        always,
        |_, _| Ok(Progress::Done),
        |_, _| asm("griddepcontrol.wait;", &[], &[]),
    ),
    row(
        "prefetch.global.L2",
        &[],
        "Prefetch<<<[]>>>([].*.GL)",
        always,
        |_, _| Ok(Progress::Done),
        |_, c| asm("prefetch.global.L2 [%0];", &[], &[("l", c.pointer(D, &[]))]),
    ),
    row("red.release.gpu.inc", &[], "[].u32.GL <- GridArrive<<<[]>>>()", always, count, |s, c| {
        let Kind::GridArrive(below) = &s.spec.kind else { return String::new() };
        let ins = [("l", c.pointer(D, &[])), ("r", c.expr(&(below.clone() - 1)))];
        asm("red.release.gpu.global.inc.u32 [%0], %1;", &[], &ins)
    }),
    row("ld.acquire.gpu", &[], "GridWait<<<[]>>>([].u32.GL)", always, await_count, |s, c| {
        let Kind::GridWait(count) = &s.spec.kind else { return String::new() };
        let text = "{ .reg .pred less; .reg .u32 count; again: \
                    ld.acquire.gpu.global.u32 count, [%0]; \
                    setp.lo.u32 less, count, %1; @less bra again; }";
        asm(text, &[], &[("l", c.pointer(D, &[])), ("r", c.expr(count))])
    }),
];

type Meaning = fn(&Site<'_>, &mut dyn Warp) -> Step;
type Text = fn(&Site<'_>, &dyn Code) -> String;

const fn row(
    name: &'static str,
    needs: &'static [Feature],
    pattern: &'static str,
    when: When,
    meaning: Meaning,
    cuda: Text,
) -> Atom {
    Atom { name, pattern, needs, align: &[], when, proxy: Proxy::Generic, meaning, cuda }
}

fn init(site: &Site<'_>, warp: &mut dyn Warp) -> Step {
    let Kind::Init(Number(count)) = site.spec.kind else { return Ok(Progress::Done) };
    only_one(warp)?;
    warp.init_barrier(D, count as i64)
}

fn arrive(site: &Site<'_>, warp: &mut dyn Warp) -> Step {
    let Kind::Arrive(bytes) = &site.spec.kind else { return Ok(Progress::Done) };
    for lane in warp.lanes() {
        let bytes = bytes.as_ref().map_or(0, |bytes| warp.value(lane, bytes));
        warp.arrive(lane, D, bytes)?;
    }
    Ok(Progress::Done)
}

fn wait(site: &Site<'_>, warp: &mut dyn Warp) -> Step {
    let Kind::Wait(parity, scope) = &site.spec.kind else { return Ok(Progress::Done) };
    let Some(&lane) = warp.lanes().first() else { return Ok(Progress::Done) };
    let parity = warp.value(lane, parity);
    warp.wait(D, parity, *scope)
}

fn count(site: &Site<'_>, warp: &mut dyn Warp) -> Step {
    let Kind::GridArrive(below) = &site.spec.kind else { return Ok(Progress::Done) };
    for lane in warp.lanes() {
        let below = warp.value(lane, below);
        warp.count(lane, D, below)?;
    }
    Ok(Progress::Done)
}

fn await_count(site: &Site<'_>, warp: &mut dyn Warp) -> Step {
    let Kind::GridWait(count) = &site.spec.kind else { return Ok(Progress::Done) };
    let lane = only_one(warp)?;
    let count = warp.value(lane, count);
    warp.await_count(lane, D, count)
}

fn fence(site: &Site<'_>, warp: &mut dyn Warp) -> Step {
    match site.spec.kind {
        Kind::Fence(fence) => warp.fence(fence),
        _ => Ok(Progress::Done),
    }
}

fn commit(site: &Site<'_>, warp: &mut dyn Warp) -> Step {
    match site.spec.kind {
        Kind::Commit(group) => warp.commit(group),
        _ => Ok(Progress::Done),
    }
}

fn wait_group(site: &Site<'_>, warp: &mut dyn Warp) -> Step {
    match site.spec.kind {
        Kind::WaitGroup(group, pending, reads) => warp.wait_group(group, pending, reads),
        _ => Ok(Progress::Done),
    }
}

fn registers(site: &Site<'_>, warp: &mut dyn Warp) -> Step {
    match site.spec.kind {
        Kind::Registers(count) => warp.registers(count),
        _ => Err(Fault::Invalid("no register budget".to_owned())),
    }
}

fn pending(site: &Site<'_>) -> i64 {
    match site.spec.kind {
        Kind::WaitGroup(_, pending, _) => pending,
        _ => 0,
    }
}

fn expects(site: &Site<'_>, wanted: bool) -> std::result::Result<(), &'static str> {
    let expects = matches!(site.spec.kind, Kind::Arrive(Some(_)));
    if expects == wanted { Ok(()) } else { Err("it differs in whether bytes are expected") }
}

fn fence_is(site: &Site<'_>, wanted: Fence) -> std::result::Result<(), &'static str> {
    let is = matches!(site.spec.kind, Kind::Fence(fence) if fence == wanted);
    if is { Ok(()) } else { Err("it is another fence") }
}

fn group_is(site: &Site<'_>, wanted: Group) -> std::result::Result<(), &'static str> {
    let is = match site.spec.kind {
        Kind::Commit(group) | Kind::WaitGroup(group, ..) => group == wanted,
        _ => false,
    };
    if is { Ok(()) } else { Err("it is of another group") }
}

/// A wait for groups of this kind: the number left is an immediate operand that is not negative,
/// and only bulk copies tell their reads apart.
fn waits_for(site: &Site<'_>, wanted: Group) -> std::result::Result<(), &'static str> {
    group_is(site, wanted)?;
    match site.spec.kind {
        Kind::WaitGroup(_, _, true) if wanted != Group::Bulk => Err("its reads are not apart"),
        Kind::WaitGroup(_, left, _) if left < 0 => Err("no less than 0 groups can be left"),
        Kind::WaitGroup(_, left, _) if wanted == Group::MatMul && left > 7 => {
            Err("at most 7 groups of products can be left")
        }
        _ => Ok(()),
    }
}

/// The whole block, or one of its warpgroups: tiles of one size, so that each has a number of its
/// own among a block's sixteen barriers.
fn block_wide(site: &Site<'_>) -> std::result::Result<(), &'static str> {
    let size = site.kernel.threads(site.spec.threads).view.size().constant();
    let block = site.kernel.block_size().ok();
    match size {
        Some(size) if !site.across_blocks() && size > 32 && Some(size) == block => Ok(()),
        Some(WARPGROUP) if !site.across_blocks() => Ok(()),
        _ => Err("it is for a whole block of several warps, or one of its warpgroups"),
    }
}

/// The threads of a warpgroup.
const WARPGROUP: i64 = 128;

/// All threads of all blocks of a cluster.
fn cluster_wide(site: &Site<'_>) -> std::result::Result<(), &'static str> {
    let size = |threads| site.kernel.threads(threads).view.size();
    let whole = size(site.spec.blocks).constant() == site.kernel.cluster_size().ok()
        && size(site.spec.threads) == size(site.kernel.block);
    if site.across_blocks() && whole {
        Ok(())
    } else {
        Err("it is for all threads of all blocks of a cluster")
    }
}

/// The whole block uses barrier 0; its n-th warpgroup uses barrier n + 1.
fn sync_text(site: &Site<'_>, code: &dyn Code) -> String {
    let view = &site.kernel.threads(site.spec.threads).view;
    let size = view.size();
    if site.kernel.threads(site.kernel.block).view.size() == size {
        return asm("bar.sync 0;", &[], &[]);
    }
    let id = view.offset().div(&size) + 1;
    asm(&format!("bar.sync %0, {size};"), &[], &[("r", code.expr(&id))])
}

/// An instruction that accumulators stand by: the compiler may not move their uses across it.
fn with_accumulators(site: &Site<'_>, code: &dyn Code, text: &str) -> String {
    let outs: Vec<_> = super::wgmma::accumulators(site.size("n"))
        .map(|element| ("+f", code.element(D, &element)))
        .collect();
    asm(text, &outs, &[])
}

fn budget(site: &Site<'_>) -> std::result::Result<(), &'static str> {
    match site.spec.kind {
        Kind::Registers(count) if (24..=256).contains(&count) && count % 8 == 0 => Ok(()),
        _ => Err("a register budget is a multiple of 8 in 24..=256"),
    }
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
