//! An atom as a warp issues it: where its operands lie, and what its meaning may do to them.

use super::clock::lanes_of;
use super::machine::{Landing, Machine};
use super::place::Place;
use super::program::{Mode, Program, Task};
use super::tally::{self, Span};
use crate::atom::{Fault, Progress, Proxy, Tried};
use crate::{Group, Memory};

/// What went wrong, and with whom.
#[derive(Debug)]
pub(super) struct Failure {
    pub(super) fault: Fault,
    pub(super) other: Option<u32>,
    pub(super) lane: Option<usize>,
}

impl From<Fault> for Failure {
    fn from(fault: Fault) -> Failure {
        Failure { fault, other: None, lane: None }
    }
}

/// Where an operand begins, as a lane sees it: the offset in its buffer, within which all of it may lie, and the block of the
/// run whose memory that is.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Base {
    pub(super) offset: i64,
    pub(super) inside: bool,
    pub(super) block: usize,
    /// Where its coordinates along the axes are.
    pub(super) starts: usize,
}

/// Memory that issues share.
#[derive(Debug, Default)]
pub(super) struct Scratch {
    /// Of each operand as each lane sees it; as the first does where they see one.
    bases: Vec<Base>,
    pub(super) starts: Vec<i64>,
    pub(super) spans: Vec<Span>,
    /// The sectors of global memory that operands touch, each at least once.
    pub(super) sectors: Vec<(usize, i64)>,
    pub(super) targets: Vec<Target>,
}

/// A block that a transfer of a lane writes to.
#[derive(Debug, Clone, Copy)]
pub(super) struct Target {
    pub(super) lane: usize,
    pub(super) block: usize,
    pub(super) landing: Landing,
}

/// A warp at an atom.
pub(super) struct Issue<'m, 'p, 'k> {
    pub(super) machine: &'m mut Machine<'p, 'k>,
    pub(super) task: &'p Task<'k>,
    pub(super) number: usize,
    pub(super) warp: usize,
    pub(super) mask: u32,
    pub(super) scratch: Scratch,
    pub(super) other: Option<u32>,
    pub(super) blamed: Option<usize>,
}

/// Lets a warp carry out an atom.
pub(super) fn carry_out(
    machine: &mut Machine<'_, '_>,
    warp: usize,
    number: usize,
) -> Result<Progress, Failure> {
    let program: &Program<'_> = machine.program;
    let task = &program.tasks[number];
    let scratch = std::mem::take(&mut machine.scratch);
    let mask = machine.runners[warp].mask;
    let mut issue = Issue { machine, task, number, warp, mask, scratch, other: None, blamed: None };
    let step = issue.prepare().and_then(|()| {
        let step = (task.site.atom.meaning)(&task.site, &mut issue);
        // The transfers are on their way.
        issue.machine.landings.extend(issue.scratch.targets.iter().map(|target| target.landing));
        step
    });
    if step == Ok(Progress::Done) {
        issue.count();
    }
    let Issue { machine, scratch, other, blamed: lane, .. } = issue;
    machine.scratch = scratch;
    step.map_err(|fault| Failure { fault, other, lane })
}

impl Issue<'_, '_, '_> {
    fn prepare(&mut self) -> Tried {
        self.scratch.starts.clear();
        self.scratch.targets.clear();
        self.scratch.spans.clear();
        self.scratch.sectors.clear();
        self.assemble()?;
        let task = self.task;
        let lanes = 32 * task.places.len();
        if task.places.iter().any(|place| place.memory == Memory::Shared) {
            self.scratch.spans.resize(lanes, Span::EMPTY);
        }
        if self.scratch.bases.len() < lanes {
            self.scratch.bases.resize(lanes, Base::default());
        }
        for (operand, place) in task.places.iter().enumerate() {
            if place.varying && self.mask != u32::MAX {
                self.scratch.bases[32 * operand..][..32].fill(Base::default());
            }
            let lanes = if place.varying { self.mask } else { 1 << self.mask.trailing_zeros() };
            for lane in lanes_of(lanes) {
                let base = self.base(place, lane)?;
                let at = 32 * operand + if place.varying { lane } else { 0 };
                self.scratch.bases[at] = base;
            }
        }
        let runner = &mut self.machine.runners[self.warp];
        match task.mode {
            Mode::Now => {}
            Mode::Signals => self.aim()?,
            Mode::Group(group) => match runner.groups(group) {
                None => {
                    runner.matmuls.used = runner.matmuls.committed + 1;
                    runner.matmuls.at = task.number;
                    if runner.fences == 0 {
                        let text = "none stands before the first matmul";
                        return Err(Fault::MissingFence(text.to_owned()));
                    }
                }
                Some(groups) => {
                    groups.at = task.number;
                    for lane in lanes_of(self.mask) {
                        groups.used[lane] = groups.committed[lane] + 1;
                    }
                }
            },
        }
        Ok(())
    }

    /// Checks that all lanes take part that must.
    fn assemble(&self) -> Tried {
        let team = &self.task.threads;
        if team.size == 1 {
            return Ok(());
        }
        let runner = &self.machine.runners[self.warp];
        let first = 32 * runner.index as i64;
        let mut covered = 0_u32;
        for lane in lanes_of(self.mask) {
            if covered >> lane & 1 == 1 {
                continue;
            }
            let start = team.start.value(&runner.slots, lane);
            let threads = team.offsets.iter().map(|offset| start + offset - first);
            let own = threads.filter(|thread| (0..32).contains(thread));
            let needed = own.fold(0_u32, |needed, thread| needed | 1 << thread);
            if needed >> lane & 1 == 0 {
                let thread = first + lane as i64;
                let text = format!("thread {thread} is none of those that this is for");
                return Err(Fault::Divergence(text));
            }
            let absent = (needed & !self.mask).count_ones();
            if absent > 0 {
                return Err(Fault::Divergence(format!("{absent} lanes are absent")));
            }
            covered |= needed;
        }
        Ok(())
    }

    fn base(&mut self, place: &Place, lane: usize) -> Tried<Base> {
        let starts = self.scratch.starts.len();
        let runner = &self.machine.runners[self.warp];
        let (mut offset, mut inside) = (0, true);
        for ((start, axis), reach) in place.starts.iter().zip(&place.axes).zip(&place.reach) {
            let start = start.value(&runner.slots, lane);
            offset += start * axis.1;
            inside &= start >= 0 && start + reach < axis.0;
            self.scratch.starts.push(start);
        }
        let mut block = runner.block;
        if let Some(peer) = &place.peer {
            let rank = peer.value(&runner.slots, lane);
            let cluster = self.machine.program.cluster;
            if !(0..cluster).contains(&rank) {
                return Err(self.blame(lane, Fault::Invalid(format!("there is no block {rank}"))));
            }
            block = block / cluster as usize * cluster as usize + rank as usize;
        }
        if place.memory != Memory::Registers && place.physical(offset.max(0)) % place.align != 0 {
            let align = place.align;
            let text = format!("%{} at element {offset} (a multiple of {align} bytes)", place.name);
            return Err(self.blame(lane, Fault::Misaligned(text)));
        }
        Ok(Base { offset, inside, block, starts })
    }

    pub(super) fn blame(&mut self, lane: usize, fault: Fault) -> Fault {
        self.blamed = Some(lane);
        fault
    }

    #[inline(always)]
    pub(super) fn base_of(&self, lane: usize, operand: usize) -> Base {
        let varying = self.task.places[operand].varying;
        self.scratch.bases[32 * operand + if varying { lane } else { 0 }]
    }

    /// The barrier that an operand is: its block, and its number there.
    pub(super) fn barrier_of(&mut self, lane: usize, operand: usize) -> Tried<(usize, usize)> {
        let (base, place) = (self.base_of(lane, operand), &self.task.places[operand]);
        if !base.inside {
            let text = format!("%{}[{}]", place.name, base.offset);
            return Err(self.blame(lane, Fault::OutOfBounds(text)));
        }
        Ok((base.block, place.first + base.offset as usize))
    }

    /// Finds the blocks that transfers write to, and their barriers.
    fn aim(&mut self) -> Tried {
        let task = self.task;
        let signal = task.places.len() - 1;
        for lane in lanes_of(self.mask) {
            let (barrier_block, barrier) = self.barrier_of(lane, signal)?;
            let blocks: Vec<usize> = if task.site.across_blocks() {
                let runner = &self.machine.runners[self.warp];
                let start =
                    task.blocks.start.value(&runner.slots, lane) - self.machine.blocks[0].number;
                task.blocks.offsets.iter().map(|offset| (start + offset) as usize).collect()
            } else {
                vec![self.base_of(lane, 0).block]
            };
            for block in blocks {
                if block >= self.machine.blocks.len() {
                    return Err(Fault::Invalid("a copy goes to another cluster".to_owned()));
                }
                // Each block's own barrier learns of its copy, unless one block's is named.
                let named = task.places[signal].peer.is_some();
                let barrier_block = if named { barrier_block } else { block };
                self.check_barrier((lane, signal), (barrier_block, barrier), true)?;
                let landing = Landing {
                    transfer: self.machine.transfers.len(),
                    block: barrier_block,
                    barrier,
                    bytes: 0,
                    proxy: task.site.atom.proxy,
                    from: self.warp,
                    at: task.number,
                };
                self.machine.transfers.push(None);
                self.scratch.targets.push(Target { lane, block, landing });
            }
        }
        Ok(())
    }

    /// Adds to the statement's costs.
    fn count(&mut self) {
        let cost = &mut self.machine.costs[self.number];
        cost.executions += 1;
        cost.sectors += tally::count(&mut self.scratch.sectors);
        let matmul = self.task.mode == Mode::Group(Group::MatMul);
        let places = self.task.places.iter().enumerate();
        for (operand, place) in places.filter(|row| row.1.memory == Memory::Shared) {
            // All of a warpgroup's lanes read one tile.
            if matmul && self.machine.runners[self.warp].index.is_multiple_of(4) {
                cost.shared.read += (place.size() * place.bytes) as u64;
            } else if !matmul && self.task.site.atom.proxy == Proxy::Generic {
                cost.conflicts += tally::conflicts(&self.scratch.spans[32 * operand..][..32]);
            }
        }
    }

    /// What a wait for matmuls names is theirs no longer, if their group is done.
    pub(super) fn release_accumulators(&mut self) {
        for (operand, place) in self.task.places.iter().enumerate() {
            for lane in lanes_of(self.mask) {
                let first = place.first as i64 + self.base_of(lane, operand).offset;
                let runner = &mut self.machine.runners[self.warp];
                for distance in &place.distances {
                    let at = runner.register((first + distance) as usize, lane);
                    runner.marks[at].waited = runner.matmuls.done;
                }
            }
        }
    }

    pub(super) fn barrier_fault(&mut self, lane: usize, operand: usize, why: &str) -> Fault {
        let (name, base) = (&self.task.places[operand].name, self.base_of(lane, operand));
        self.blame(lane, Fault::Barrier(format!("%{name}[{}] {why}", base.offset)))
    }

    /// A barrier may be used once its initialisation is ordered before; by other blocks and by
    /// asynchronous units, once it was fenced as well.
    pub(super) fn check_barrier(
        &mut self,
        (lane, operand): (usize, usize),
        (block, barrier): (usize, usize),
        fenced: bool,
    ) -> Tried {
        let (runner, name) = (&self.machine.runners[self.warp], &self.task.places[operand].name);
        let Some(target) = self.machine.blocks[block].barriers.get(barrier) else {
            return Err(self.barrier_fault(lane, operand, "does not exist"));
        };
        if !target.exists() {
            return Err(self.barrier_fault(lane, operand, "is used before it is initialised"));
        }
        if !runner.knows(lane, target.made) {
            let text = format!("%{name} is used while it is initialised");
            return self.complain(lane, Fault::Race(text), None);
        }
        if fenced && !target.fenced.is_some_and(|fence| runner.knows(lane, fence)) {
            let text = format!("the initialisation of %{name} is not fenced");
            return self.complain(lane, Fault::MissingFence(text), None);
        }
        Ok(())
    }

    /// Fences the barriers that the own lanes have initialised.
    pub(super) fn fence_barriers(&mut self) {
        let runner = &mut self.machine.runners[self.warp];
        for barrier in &mut self.machine.blocks[runner.block].barriers {
            let made = lanes_of(self.mask).any(|lane| barrier.made.who == runner.now(lane).who);
            if barrier.exists() && barrier.fenced.is_none() && made {
                barrier.fenced = Some(runner.now(barrier.made.who.lane()));
            }
        }
        runner.tick = true;
    }
}
