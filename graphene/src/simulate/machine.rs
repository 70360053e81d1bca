//! The machine: blocks, their warps and memories, and who goes on next.

use std::collections::HashMap;

use super::barrier::Barrier;
use super::clock::{Epoch, Knowledge, Who, lanes_of};
use super::control::control;
use super::gather::{Gathering, Meeting};
use super::instance::Levels;
use super::issue::{self, Failure};
use super::program::{Op, Task};
use super::runner::{Runner, State, Units};
use super::visit;
use super::{Cost, Costs, Finding, Options, Outcome, Program, Root, Space};
use crate::arch::registers_at_launch;
use crate::atom::{Fault, Progress, Proxy};
use crate::text::print::{joined, list};
use crate::{Kind, Memory};

pub(super) struct Machine<'p, 'k> {
    pub(super) program: &'p Program<'k>,
    pub(super) options: &'p Options,
    random: Option<Random>,
    pub(super) global: Space,
    pub(super) blocks: Vec<Block>,
    pub(super) runners: Vec<Runner>,
    /// Of each asynchronous copy, its effects' epoch once it has landed.
    pub(super) transfers: Vec<Option<Epoch>>,
    pub(super) landings: Vec<Landing>,
    pub(super) gatherings: HashMap<Meeting, Gathering>,
    /// What those published who counted, by the number of the counter's element in global memory.
    pub(super) counters: HashMap<usize, Knowledge>,
    /// How much has happened for which a warp may wait.
    pub(super) events: u64,
    first_unit: u32,
    /// How many units a block has, and how many of them are its warps.
    pub(super) units: (u32, u32),
    pub(super) costs: Vec<Cost>,
    pub(super) findings: Vec<Finding>,
    /// The instances of levels: none where they are not checked.
    pub(super) levels: Levels,
    /// Whether enough has been found.
    pub(super) stopped: bool,
    pub(super) scratch: issue::Scratch,
}

#[derive(Debug, Default)]
pub(super) struct Block {
    /// Its number in the grid.
    pub(super) number: i64,
    pub(super) shared: Space,
    pub(super) barriers: Vec<Barrier>,
    /// Warps that have not ended.
    pub(super) running: usize,
    /// Registers that no warp has.
    pub(super) spare: i64,
    /// When others last accessed its memory, and in which statement.
    pub(super) visitors: HashMap<Who, (Epoch, u32)>,
}

/// A transfer on its way.
#[derive(Debug, Clone, Copy)]
pub(super) struct Landing {
    pub(super) transfer: usize,
    pub(super) block: usize,
    pub(super) barrier: usize,
    pub(super) bytes: i64,
    pub(super) proxy: Proxy,
    pub(super) from: usize,
    pub(super) at: u32,
}

/// Numbers that look random (SplitMix64).
#[derive(Debug, Clone)]
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % bound.max(1) as u64) as usize
    }
}

/// The most atoms that a warp carries out at a stretch in random order.
const STRETCH: usize = 16;

/// The most rounds of loops of a warp, unless told otherwise: some seconds of empty ones.
const ROUNDS: u64 = 1 << 24;

impl<'p, 'k> Machine<'p, 'k> {
    pub(super) fn new(program: &'p Program<'k>, options: &'p Options, global: Space) -> Self {
        let cost = |task: &Task<'_>| Cost {
            statement: task.number as usize,
            atom: task.site.atom.name,
            ..Cost::default()
        };
        // The warps; for each of them, its copies, and the reads and the writes of its bulk copies; the matmuls of each
        // warpgroup; the copies to each barrier.
        let warps = (program.threads as u32).div_ceil(32);
        let units = 4 * warps + warps.div_ceil(4) + program.barriers as u32;
        Machine {
            program,
            options,
            random: options.seed.map(Random),
            global,
            blocks: Vec::new(),
            runners: Vec::new(),
            transfers: Vec::new(),
            landings: Vec::new(),
            gatherings: HashMap::new(),
            counters: HashMap::new(),
            events: 0,
            first_unit: 0,
            units: (units, warps),
            costs: program.tasks.iter().map(cost).collect(),
            findings: Vec::new(),
            levels: Levels::new(program),
            stopped: false,
            scratch: issue::Scratch::default(),
        }
    }

    pub(super) fn run(&mut self) {
        let program = self.program;
        let all = self.options.whole_grid || program.kernel.cooperative();
        let together = if all { program.blocks } else { program.cluster };
        for first in (0..program.blocks).step_by(together.max(1) as usize) {
            self.start(first, together.min(program.blocks - first));
            visit::begin(self, first == 0);
            self.schedule();
            if self.stopped {
                return;
            }
            self.check_exits();
            self.first_unit += self.units.0 * self.blocks.len() as u32;
        }
        visit::end(self);
    }

    /// The unit of a barrier's copies, within the run.
    pub(super) fn barrier_unit(&self, block: usize, barrier: usize) -> u32 {
        (block + 1) as u32 * self.units.0 - self.program.barriers as u32 + barrier as u32
    }

    /// What nobody knows more than.
    pub(super) fn ignorance(&self) -> Knowledge {
        Knowledge::new(self.units.0 as usize * self.blocks.len())
    }

    fn start(&mut self, first: i64, count: i64) {
        let program = self.program;
        let (units, warps) = (self.units.0 as usize * count as usize, self.units.1 as usize);
        let per_thread = registers_at_launch(program.threads);
        self.blocks = (0..count)
            .map(|block| Block {
                number: first + block,
                shared: Space::new(program.shared, false, self.options.levels > 0),
                barriers: (0..program.barriers).map(|_| Barrier::new(units)).collect(),
                running: warps,
                ..Block::default()
            })
            .collect();
        self.runners.clear();
        for (block, warp) in (0..count as usize).flat_map(|b| (0..warps).map(move |w| (b, w))) {
            let base = block as u32 * self.units.0;
            let at = |kind: usize| base + (kind * warps + warp) as u32;
            let own = Units {
                first: self.first_unit,
                warp: at(0),
                copy: at(1),
                source: at(2),
                bulk: at(3),
                matmul: base + (4 * warps + warp / 4) as u32,
            };
            let (at, begin) = ((block, warp), program.start(first + block as i64, warp));
            self.runners.push(Runner::new(at, begin, own, units, program.registers, per_thread));
        }
        (self.landings, self.gatherings, self.counters) = Default::default();
    }

    /// Lets warps go on, and transfers land, until all have ended or nobody can.
    fn schedule(&mut self) {
        let mut next_warp = 0;
        while !self.stopped {
            let count = self.runners.len();
            let ready = if self.random.is_none() {
                (next_warp..next_warp + count).map(|w| w % count).find(|&w| self.can_go_on(w))
            } else {
                let ready: Vec<usize> = (0..count).filter(|&w| self.can_go_on(w)).collect();
                let random = self.random.as_mut().filter(|_| !ready.is_empty());
                random.map(|random| ready[random.below(ready.len())])
            };
            let round = ready.is_none_or(|w| w < next_warp);
            // A transfer goes on once a round, or by chance.
            let lands = |random: &mut Random| random.below(4) == 0;
            if !self.landings.is_empty()
                && (ready.is_none() || self.random.as_mut().map_or(round, lands))
            {
                let which = self.random.as_mut().map_or(0, |r| r.below(self.landings.len()));
                let landing = self.landings.remove(which);
                self.land(&landing);
                next_warp = 0;
                continue;
            }
            let Some(warp) = ready else {
                if self.runners.iter().any(|runner| runner.state != State::Ended) {
                    self.deadlock();
                }
                return;
            };
            let stretch = self.random.as_mut().map_or(usize::MAX, |r| 1 + r.below(STRETCH));
            self.advance(warp, stretch);
            next_warp = warp + 1;
        }
    }

    fn can_go_on(&self, warp: usize) -> bool {
        match self.runners[warp].state {
            State::Ready => true,
            State::Waiting(since) => since != self.events,
            State::Ended => false,
        }
    }

    /// Carries out a warp's statements until it waits, ends, or has carried out so many atoms.
    fn advance(&mut self, warp: usize, mut left: usize) {
        let program = self.program;
        let rounds = if self.options.rounds == 0 { ROUNDS } else { self.options.rounds };
        while left > 0 && !self.stopped {
            let runner = &mut self.runners[warp];
            runner.time += u32::from(std::mem::take(&mut runner.tick));
            let at = runner.counter;
            runner.counter += 1;
            match &program.ops[at] {
                Op::Atom(task) => {
                    left -= 1;
                    let progress = issue::carry_out(self, warp, *task).unwrap_or_else(|failure| {
                        self.record(warp, failure, Some(program.numbers[at]));
                        Progress::Done
                    });
                    if progress == Progress::Blocked {
                        let runner = &mut self.runners[warp];
                        runner.counter = at;
                        runner.state = State::Waiting(self.events);
                        return;
                    }
                    self.runners[warp].state = State::Ready;
                }
                Op::Exit => {
                    runner.state = State::Ended;
                    self.blocks[runner.block].running -= 1;
                    return;
                }
                Op::Enter(level) => visit::enter(self, warp, *level),
                Op::Leave => visit::leave(self, warp),
                op => {
                    if let Err(fault) = control(runner, op, rounds) {
                        self.record(warp, fault, Some(program.numbers[at]));
                        self.stopped = true;
                    }
                }
            }
        }
    }

    /// Notes a finding at a statement, or at the kernel's own spec; whether to go on.
    pub(super) fn record(&mut self, warp: usize, failure: impl Into<Failure>, at: Option<u32>) {
        let Failure { fault, other, lane } = failure.into();
        let Runner { block, index: warp, .. } = self.runners[warp];
        let block = self.blocks[block].number;
        let statement = self.program.said(at);
        let other = other.map(|other| self.program.said(Some(other)));
        self.findings.push(Finding { fault, statement, other, block, warp, lane });
        self.stopped |= self.findings.len() >= self.options.findings.max(1);
    }

    /// A transfer's bytes arrive, and its barrier learns of them.
    fn land(&mut self, landing: &Landing) {
        let Landing { transfer, block, barrier, bytes, proxy, from, at } = *landing;
        self.events += 1;
        if self.blocks[block].running == 0 {
            let fault = Fault::InFlight("shared memory of a block that has left".to_owned());
            return self.record(from, fault, Some(at));
        }
        let unit = self.barrier_unit(block, barrier);
        let target = &mut self.blocks[block].barriers[barrier];
        target.filled = (target.phase + 1, at);
        target.stored |= proxy == Proxy::Generic;
        self.transfers[transfer] = Some(Epoch::new(self.first_unit + unit, 0, target.phase + 1));
        match target.land(bytes) {
            Ok(()) => target.settle(unit),
            Err(why) => self.record(from, Fault::Barrier(format!("a barrier {why}")), Some(at)),
        }
    }

    fn deadlock(&mut self) {
        // Warps that wait at one place are told together.
        let mut waiting: Vec<(String, i64, Vec<usize>)> = Vec::new();
        let mut first = None;
        for (w, runner) in self.runners.iter().enumerate() {
            if runner.state == State::Ended {
                continue;
            }
            let number = self.program.numbers[runner.counter];
            first = first.or(Some((w, number)));
            let block = self.blocks[runner.block].number;
            let state = self.waits_for(w).unwrap_or_default();
            let place = format!("statement {number}: {}{state}", self.program.line(number));
            match waiting.iter_mut().find(|row| row.0 == place && row.1 == block) {
                Some(row) => row.2.push(runner.index),
                None => waiting.push((place, block, vec![runner.index])),
            }
        }
        let waiting = waiting.into_iter().map(|(place, block, warps)| {
            format!("warps {} of block {block} wait at {place}", list(warps))
        });
        if let Some((warp, number)) = first {
            self.record(warp, Fault::Deadlock(joined(waiting, "; ")), Some(number));
        }
        self.stopped = true;
    }

    /// The state of the barrier or counter that a warp waits for.
    fn waits_for(&self, warp: usize) -> Option<String> {
        let runner = &self.runners[warp];
        let Op::Atom(task) = &self.program.ops[runner.counter] else { return None };
        let task = &self.program.tasks[*task];
        let place = task.places.first()?;
        let lane = lanes_of(runner.mask).next()?;
        let starts = place.starts.iter().zip(&place.axes);
        let offset: i64 =
            starts.map(|(start, axis)| start.value(&runner.slots, lane) * axis.1).sum();
        let (name, at) = (&place.name, place.first + usize::try_from(offset).ok()?);
        match task.site.spec.kind {
            Kind::GridWait(_) => Some(format!(" (%{name}[{offset}] is {})", self.global.peek(at))),
            Kind::Wait(..) => {
                let Barrier { phase, pending, bytes, .. } =
                    self.blocks[runner.block].barriers.get(at)?;
                let state = format!("phase {phase} lacks {pending} arrivals and {bytes} bytes");
                Some(format!(" (%{name}[{offset}]: {state})"))
            }
            _ => None,
        }
    }

    /// What must not be left undone when a block leaves.
    fn check_exits(&mut self) {
        for w in 0..self.runners.len() {
            if self.stopped {
                return;
            }
            let runner = &self.runners[w];
            let unread = |lane: &usize| runner.bulk.read[*lane] < runner.bulk.used[*lane];
            let uncopied = |lane: &usize| runner.copies.done[*lane] < runner.copies.used[*lane];
            let (what, at, lane) = if runner.matmuls.done < runner.matmuls.used {
                ("a matmul that nobody has waited for", runner.matmuls.at, None)
            } else if let Some(lane) = (0..32).find(uncopied) {
                ("a copy that nobody has waited for", runner.copies.at, Some(lane))
            } else if let Some(lane) = (0..32).find(unread) {
                ("the source of a copy, at the block's end,", runner.bulk.at, Some(lane))
            } else {
                continue;
            };
            let fault = Fault::InFlight(what.to_owned());
            self.record(w, Failure { fault, other: None, lane }, Some(at));
        }
        for block in 0..self.blocks.len() {
            self.check_exit(block);
        }
    }

    fn check_exit(&mut self, block: usize) {
        let mut known = self.ignorance();
        let warps = self.units.1 as usize;
        for runner in &mut self.runners[block * warps..(block + 1) * warps] {
            runner.publish(runner.present, &mut known);
        }
        let mut faults = Vec::new();
        for (number, barrier) in self.blocks[block].barriers.iter().enumerate() {
            let (phase, at) = barrier.filled;
            if !known.order.knows(self.barrier_unit(block, number), 0, phase) {
                faults.push((Fault::InFlight("a copy that nobody has waited for".to_owned()), at));
            }
        }
        let visitors = self.blocks[block].visitors.values();
        let late = visitors.filter(|(epoch, _)| {
            let unit = epoch.who.unit() - self.first_unit;
            !known.order.knows(unit, epoch.who.lane(), epoch.time)
        });
        if let Some((_, at)) = late.min_by_key(|visit| visit.1) {
            let what = "a block may leave before this access to its shared memory".to_owned();
            faults.push((Fault::Race(what), *at));
        }
        for (fault, at) in faults {
            if !self.stopped {
                self.record(block * warps, fault, Some(at));
            }
        }
    }

    pub(super) fn outcome(self) -> Outcome {
        let program = self.program;
        let global = program.roots.iter().filter(|root| root.memory == Memory::Global);
        let contents = |root: &Root| self.global.contents(root.first, root.len);
        let buffers = global.map(|root| (root.name.clone(), contents(root))).collect();
        let levels = program.levels.iter().map(|level| program.said(level.number));
        let levels = levels.zip(self.levels.counts).collect();
        let costs = Costs { statements: self.costs };
        Outcome { buffers, findings: self.findings, costs, levels }
    }
}
