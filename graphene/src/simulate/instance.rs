//! Instances of levels: executions of a spec with a body by its agents, and what their atoms wrote.
//!
//! An instance opens when its first agent comes to the spec, and closes when its last one leaves. Which instance it is that an
//! agent comes to follows from the spec, from the agents, and from how often this one has come to it before: those who carry
//! out a spec together come to it equally often, so that this is what the counters of the loops around it say.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use super::element::{Element, Numbered};
use super::fragment::Fragment;
use super::log::{Log, Written};
use super::runner::{Frame, Runner};
use super::{Program, Unchecked};
use crate::kernel::Array;

/// A level, how often an agent has come to it, the first thread, and the block, if it is one block's.
pub(super) type Key = (usize, u64, i64, i64);

/// An execution of a spec.
#[derive(Debug, Default)]
pub(super) struct Instance {
    pub(super) level: usize,
    pub(super) parent: Option<usize>,
    /// What agents find it by, if not all come at once.
    pub(super) key: Option<Key>,
    /// The agents that have not left.
    pub(super) left: i64,
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
    pub(super) outside: bool,
    /// Why it is not checked, as far as only its execution tells.
    pub(super) unchecked: Option<Unchecked>,
    pub(super) log: Log,
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

impl Levels {
    pub(super) fn new(program: &Program<'_>) -> Levels {
        let counts = vec![Checked::default(); program.levels.len()];
        let latest = counts.iter().map(|_| RefCell::default()).collect();
        Levels { counts, latest, ..Levels::default() }
    }

    pub(super) fn get(&self, instance: usize) -> &Instance {
        self.instances[instance].as_ref().expect("frames name instances that are open")
    }

    pub(super) fn get_mut(&mut self, instance: usize) -> &mut Instance {
        self.instances[instance].as_mut().expect("frames name instances that are open")
    }

    /// The open instance that agents find by this.
    pub(super) fn find(&self, key: &Key) -> Option<usize> {
        self.open.get(key).copied()
    }

    /// Opens an instance, whose log has the room of one that has closed.
    pub(super) fn open(&mut self, mut instance: Instance) -> usize {
        instance.log = self.logs.pop().unwrap_or_default();
        self.found = None;
        let id = self.free.pop().unwrap_or(self.instances.len());
        self.instances.resize_with(self.instances.len().max(id + 1), || None);
        self.open.extend(instance.key.map(|key| (key, id)));
        self.instances[id] = Some(instance);
        id
    }

    /// Closes an instance: what it wrote, the one around it wrote.
    pub(super) fn close(&mut self, program: &Program<'_>, id: usize) {
        let instance = self.instances[id].take().expect("it is closed once");
        self.free.push(id);
        if let Some(key) = instance.key {
            self.open.remove(&key);
        }
        let Some(parent) = instance.parent else { return };
        let mut log = instance.log;
        for (element, new) in log.all() {
            let of = self.whose(program, parent, new.root as usize);
            let Some(parent) = of.and_then(|of| self.instances[of].as_mut()) else { continue };
            parent.log.add(element, new);
        }
        log.clear();
        self.logs.push(log);
    }

    /// Counts those that some agents did not leave.
    pub(super) fn count_unfinished(&mut self) {
        for instance in self.instances.iter().flatten().filter(|of| of.level > 0) {
            let count = &mut self.counts[instance.level];
            *count.unchecked.entry(Unchecked::Unfinished).or_default() += 1;
        }
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
        let id = runner.frames.last().map_or(Frame::NONE, |frame| frame.of[lane]);
        if id == Frame::NONE {
            return;
        }
        let now = self.now;
        let Some(id) = self.whose(program, id as usize, root) else { return };
        let Some(instance) = &mut self.instances[id] else { return };
        let root = root as u32;
        instance.log.add(element, Written { root, first: now, last: now, before, after });
    }
}
