//! Instances of levels: executions of a spec with a body by its agents, and what their atoms wrote.
//!
//! An instance opens when its first agent comes to the spec, and closes when its last one leaves. Which instance it is that an
//! agent comes to follows from the spec, from the agents, and from how often this one has come to it before: those who carry
//! out a spec together come to it equally often, so that this is what the counters of the loops around it say.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasherDefault, Hasher};
use std::rc::Rc;

use super::clock::lanes_of;
use super::formula::{Check, Formula};
use super::fragment::Fragment;
use super::log::{Log, Written};
use super::runner::Runner;
use super::{Machine, Program, Unchecked};
use crate::Memory;
use crate::kernel::Array;

/// An element of any memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Element(pub(super) u64);

/// A level, how often an agent has come to it, the first thread, and the block, if it is one block's.
type Key = (usize, u64, i64, i64);

/// By what the simulator numbers.
pub(super) type Numbered<K, V> = HashMap<K, V, BuildHasherDefault<Mix>>;

/// An execution of a spec.
#[derive(Debug, Default)]
pub(super) struct Instance {
    pub(super) level: usize,
    pub(super) parent: Option<usize>,
    /// What agents find it by, if not all come at once.
    key: Option<Key>,
    /// The agents that have not left.
    left: i64,
    pub(super) opened: u64,
    /// Where its operands begin along the axes of their buffers.
    pub(super) starts: Vec<i64>,
    pub(super) numbers: Vec<i64>,
    pub(super) vars: Vec<i64>,
    /// Of operands in registers of several threads what each thread held when it came, the threads' one after the other; not a
    /// number where nothing was written.
    pub(super) held: Vec<Vec<f64>>,
    /// The first of its blocks, and of its threads.
    pub(super) from: i64,
    pub(super) first: i64,
    /// The warp and the lane that came first.
    pub(super) warp: usize,
    pub(super) lane: usize,
    /// Whether all that it writes, or the one around it, lies outside of its buffers.
    outside: bool,
    /// Why it is not checked, as far as only its execution tells.
    pub(super) unchecked: Option<Unchecked>,
    pub(super) log: Log,
}

/// The instances that a warp's lanes are in.
#[derive(Debug, Clone)]
pub(super) struct Frame {
    /// Whether they are of its own level, or those around it, as it is not checked.
    own: bool,
    mask: u32,
    of: [u32; 32],
}

/// How often a level's instances were checked.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Checked {
    /// Those that were.
    pub checked: u64,
    /// Those that were left out, by why.
    pub unchecked: BTreeMap<Unchecked, u64>,
    /// Those that were not among the chosen ones.
    pub left_out: u64,
}

/// The instances of a run.
#[derive(Debug, Default)]
pub(super) struct Levels {
    instances: Vec<Option<Instance>>,
    free: Vec<usize>,
    /// Logs of instances that have closed, for others.
    logs: Vec<Log>,
    open: Numbered<Key, usize>,
    /// Which elements registers of several threads hold, as far as values have told: by the root, the latest last.
    pub(super) fragments: Numbered<usize, Vec<Rc<Fragment>>>,
    /// By the root, the block and the warp, the first of the blocks and of the threads that filled it together, and a block's
    /// threads.
    pub(super) teams: Numbered<(usize, i64, usize), (i64, i64, i64)>,
    /// How many writes there were.
    pub(super) now: u64,
    /// Of an instance and a root, whose output it is, as was found last.
    found: Option<((usize, usize), Option<usize>)>,
    pub(super) counts: Vec<Checked>,
    /// Of each level what was evaluated last.
    pub(super) latest: Vec<RefCell<Option<Rc<Evaluated>>>>,
}

/// What a level's kind makes of some inputs, and of the numbers in it.
#[derive(Debug)]
pub(super) struct Evaluated {
    pub(super) ins: Vec<Array>,
    pub(super) numbers: Vec<i64>,
    pub(super) made: Vec<(Array, Array)>,
}

const NONE: u32 = u32::MAX;

/// Numbers that are elements' already need little mixing.
#[derive(Debug, Default, Clone)]
pub(super) struct Mix(u64);

impl Hasher for Mix {
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|&byte| self.write_u64(u64::from(byte)));
    }

    fn write_u64(&mut self, number: u64) {
        let mixed = (self.0 ^ number).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = mixed ^ (mixed >> 32);
    }

    fn write_usize(&mut self, number: usize) {
        self.write_u64(number as u64);
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

impl Element {
    /// An element of global memory, of a block's shared memory, or of a warp's registers, each lane's together.
    pub(super) fn of(memory: Memory, unit: u64, at: usize) -> Element {
        Element((memory as u64) << 62 | unit << 34 | at as u64)
    }
}

impl Levels {
    pub(super) fn new(program: &Program<'_>) -> Levels {
        let counts = vec![Checked::default(); program.levels.len()];
        let latest = counts.iter().map(|_| RefCell::default()).collect();
        Levels { counts, latest, ..Levels::default() }
    }

    pub(super) fn get(&self, instance: usize) -> &Instance {
        self.instances[instance].as_ref().expect("frames name instances that are open")
    }

    fn add(&mut self, instance: Instance) -> usize {
        self.found = None;
        let at = self.free.pop().unwrap_or(self.instances.len());
        self.instances.resize_with(self.instances.len().max(at + 1), || None);
        self.instances[at] = Some(instance);
        at
    }

    /// The innermost instance, from one on outwards, that a tensor is an output of.
    fn whose(&mut self, program: &Program<'_>, from: usize, root: usize) -> Option<usize> {
        if let Some((_, found)) = self.found.filter(|found| found.0 == (from, root)) {
            return found;
        }
        let is_its = |id: &usize| {
            let instance = self.instances[*id].as_ref();
            instance.is_some_and(|of| program.levels[of.level].written.contains(&root))
        };
        let outwards = |id: &usize| self.instances[*id].as_ref()?.parent;
        let found = std::iter::successors(Some(from), outwards).find(is_its);
        self.found = Some(((from, root), found));
        found
    }

    /// Notes a write of a lane.
    pub(super) fn note(
        &mut self,
        program: &Program<'_>,
        (runner, lane): (&Runner, usize),
        (root, element): (usize, Element),
        (before, after): (f64, f64),
    ) {
        self.now += 1;
        let id = runner.frames.last().map_or(NONE, |frame| frame.of[lane]);
        if id == NONE {
            return;
        }
        let now = self.now;
        let Some(id) = self.whose(program, id as usize, root) else { return };
        let Some(instance) = &mut self.instances[id] else { return };
        let root = root as u32;
        instance.log.add(element, Written { root, first: now, last: now, before, after });
    }
}

/// Some lanes of a warp come to a spec with a body.
pub(super) fn enter(machine: &mut Machine<'_, '_>, warp: usize, number: usize) {
    let (program, every) = (machine.program, machine.options.levels);
    let level = &program.levels[number];
    let (runner, levels) = (&mut machine.runners[warp], &mut machine.levels);
    let (mask, leader) = (runner.mask, runner.mask.trailing_zeros() as usize);
    let around = runner.frames.last().map_or([NONE; 32], |frame| frame.of);
    runner.visits[number] += 1;
    let visit = runner.visits[number];
    let first = 32 * runner.index as i64;
    let within = runner.frames.last().is_some_and(|frame| frame.own);
    let at_end = |check: &Check| check.holds(&runner.slots, leader);
    let chosen = visit % every == 1 % every || within && level.ends.iter().any(at_end);
    if level.unchecked.is_some() || !chosen {
        let start = level.threads.start.value(&runner.slots, leader);
        if level.threads.size == 1 || (first..first + 32).contains(&start) {
            let count = &mut levels.counts[number];
            let lanes = u64::from(if level.threads.size == 1 { mask.count_ones() } else { 1 });
            match level.unchecked {
                Some(why) => *count.unchecked.entry(why).or_default() += lanes,
                None => count.left_out += lanes,
            }
        }
        return runner.frames.push(Frame { own: false, mask, of: around });
    }
    let mut frame = Frame { own: true, mask, of: around };
    let block = machine.blocks[runner.block].number;
    let mut groups: Vec<(i64, u32)> = Vec::with_capacity(32);
    for lane in lanes_of(mask) {
        if level.threads.size == 1 {
            groups.push((first + lane as i64, 1 << lane));
            continue;
        }
        let start = level.threads.start.value(&runner.slots, lane);
        match groups.iter_mut().find(|group| group.0 == start) {
            Some(group) => group.1 |= 1 << lane,
            None => groups.push((start, 1 << lane)),
        }
    }
    for (start, lanes) in groups {
        let lane = lanes.trailing_zeros() as usize;
        let (blocks, from) = match &level.blocks {
            None => (1, block),
            Some(None) => (program.blocks, 0),
            Some(Some(team)) => (team.size, team.start.value(&runner.slots, lane)),
        };
        let agents = level.threads.size * blocks;
        let all = agents <= i64::from(lanes.count_ones());
        let key = (!all).then_some((number, visit, start, from));
        let known = key.and_then(|key| levels.open.get(&key).copied());
        let id = known.unwrap_or_else(|| {
            let starts = level.operands.iter().flat_map(|of| &of.place.starts);
            let value = |formula: &Formula| formula.value(&runner.slots, lane);
            let starts: Vec<i64> = starts.map(value).collect();
            let parent = (around[lane] != NONE).then_some(around[lane] as usize);
            let nobody = parent.is_some_and(|parent| levels.get(parent).outside);
            let log = levels.logs.pop().unwrap_or_default();
            let id = levels.add(Instance {
                level: number,
                parent,
                key,
                left: agents,
                opened: levels.now,
                outside: nobody || level.is_outside(&starts),
                starts,
                numbers: level.numbers.iter().map(|row| value(&row.1)).collect(),
                vars: level.vars.iter().map(|row| value(&row.1)).collect(),
                held: level.held(),
                from,
                first: start,
                warp,
                lane,
                unchecked: nobody.then_some(Unchecked::Outside),
                log,
            });
            levels.open.extend(key.map(|key| (key, id)));
            id
        });
        // All see the same operands.
        let instance = levels.instances[id].as_mut().expect("it was found or made above");
        let starts = level.operands.iter().flat_map(|of| &of.place.starts);
        let varying = level.operands.iter().any(|of| of.place.varying);
        let differs = |(formula, start): (&Formula, &i64)| {
            lanes_of(lanes).any(|lane| formula.value(&runner.slots, lane) != *start)
        };
        if (known.is_some() || varying) && starts.zip(&instance.starts).any(differs) {
            instance.unchecked = Some(Unchecked::View);
        }
        level.look(instance, (runner, block), lanes);
        lanes_of(lanes).for_each(|lane| frame.of[lane] = id as u32);
    }
    runner.frames.push(frame);
}

/// The lanes that came to a spec with a body leave it.
pub(super) fn leave(machine: &mut Machine<'_, '_>, warp: usize) {
    let Some(frame) = machine.runners[warp].frames.pop() else { return };
    if !frame.own {
        return;
    }
    let mut rest = frame.mask;
    while rest != 0 {
        let id = frame.of[rest.trailing_zeros() as usize];
        let lanes = lanes_of(rest).filter(|&lane| frame.of[lane] == id);
        let lanes = lanes.fold(0_u32, |lanes, lane| lanes | 1 << lane);
        rest &= !lanes;
        let instance = machine.levels.instances[id as usize].as_mut();
        let instance = instance.expect("its agents are in it");
        instance.left -= i64::from(lanes.count_ones());
        if instance.left <= 0 {
            let lane = lanes.trailing_zeros() as usize;
            super::meaning::check(machine, id as usize, (warp, lane));
            close(machine, id as usize);
        }
    }
}

/// What an instance wrote, the one around it wrote.
fn close(machine: &mut Machine<'_, '_>, id: usize) {
    let levels = &mut machine.levels;
    let instance = levels.instances[id].take().expect("it is closed once");
    levels.free.push(id);
    if let Some(key) = instance.key {
        levels.open.remove(&key);
    }
    let Some(parent) = instance.parent else { return };
    let mut log = instance.log;
    for (element, new) in log.all() {
        let of = levels.whose(machine.program, parent, new.root as usize);
        let Some(parent) = of.and_then(|of| levels.instances[of].as_mut()) else { continue };
        parent.log.add(element, new);
    }
    log.clear();
    levels.logs.push(log);
}

/// The kernel itself is an instance, of all threads of all blocks.
pub(super) fn begin(machine: &mut Machine<'_, '_>, first: bool) {
    let program = machine.program;
    let Some(whole) = program.levels.first() else { return };
    let lanes = [if whole.unchecked.is_some() { NONE } else { 0 }; 32];
    for runner in &mut machine.runners {
        runner.visits = vec![0; program.levels.len()];
        runner.frames = vec![Frame { own: false, mask: u32::MAX, of: lanes }];
    }
    if !first || whole.unchecked.is_some() {
        return;
    }
    let slots = &machine.runners[0].slots;
    let starts = whole.operands.iter().flat_map(|of| &of.place.starts);
    let starts = starts.map(|start| start.value(slots, 0)).collect();
    let numbers = whole.numbers.iter().map(|row| row.1.value(slots, 0)).collect();
    let instance = Instance { left: i64::MAX, starts, numbers, ..Instance::default() };
    machine.levels.instances.push(Some(instance));
}

/// The end of a run: the kernel's instance closes; those that some agents did not leave are counted.
pub(super) fn end(machine: &mut Machine<'_, '_>) {
    let Some(whole) = machine.program.levels.first() else { return };
    let levels = &mut machine.levels;
    if let Some(why) = whole.unchecked {
        *levels.counts[0].unchecked.entry(why).or_default() += 1;
    }
    for instance in levels.instances.iter().flatten().filter(|of| of.level > 0) {
        let count = &mut levels.counts[instance.level];
        *count.unchecked.entry(Unchecked::Unfinished).or_default() += 1;
    }
    if whole.unchecked.is_none() {
        super::meaning::check(machine, 0, (0, 0));
    }
}
