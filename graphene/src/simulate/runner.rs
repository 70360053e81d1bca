//! A warp: its counter, masks, variables and registers, and what its lanes know.

use super::clock::{Epoch, Knowledge, lanes_of};
use crate::Group;

#[derive(Debug, Default)]
pub(super) struct Runner {
    /// The number of its block in the run, and its own in the block.
    pub(super) block: usize,
    pub(super) index: usize,
    pub(super) counter: usize,
    pub(super) rounds: u64,
    /// The active lanes, and those from before each mask.
    pub(super) mask: u32,
    pub(super) masks: Vec<u32>,
    /// The lanes that have threads.
    pub(super) present: u32,
    pub(super) slots: Vec<i64>,
    pub(super) state: State,
    /// What waiting in a gathering has come to.
    pub(super) gathering: Gathered,
    pub(super) time: u32,
    /// Whether time passes before the next statement.
    pub(super) tick: bool,
    /// Lanes with the same knowledge, and what they know.
    classes: Vec<(u32, Knowledge)>,
    class_of: [u8; 32],
    pub(super) units: Units,
    /// Elements in registers, each lane's together.
    pub(super) registers: Vec<f64>,
    pub(super) marks: Vec<Mark>,
    /// How many fences of registers before matmuls there were.
    pub(super) fences: u32,
    pub(super) matmuls: Matmuls,
    pub(super) copies: Groups,
    pub(super) bulk: Groups,
    /// Registers that each thread has.
    pub(super) budget: i64,
    /// The instances of levels that its lanes are in, and how often they came to each level.
    pub(super) frames: Vec<Frame>,
    pub(super) visits: Vec<u64>,
}

/// The instances that a warp's lanes are in.
#[derive(Debug, Clone)]
pub(super) struct Frame {
    /// Whether they are of its own level, or those around it, as it is not checked.
    pub(super) own: bool,
    pub(super) mask: u32,
    /// Of each lane, or `NONE`.
    pub(super) of: [u32; 32],
}

/// Whether a warp can go on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum State {
    #[default]
    Ready,
    /// Not until something happens after this many events.
    Waiting(u64),
    Ended,
}

/// Where a warp is with a rendezvous: in none, waiting for the others, or told that all are there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Gathered {
    #[default]
    No,
    Waits,
    All,
}

/// The first unit of the run and, relative to it, those that work for a warp: itself, its copies into shared memory, the reads
/// and the writes of its bulk copies, its warpgroup's matmuls.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Units {
    pub(super) first: u32,
    pub(super) warp: u32,
    pub(super) copy: u32,
    pub(super) source: u32,
    pub(super) bulk: u32,
    pub(super) matmul: u32,
}

/// The state of an element in a register.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Mark {
    pub(super) valid: bool,
    /// The last group of matmuls that writes it, and that reads it; from 1 on.
    pub(super) written_in: u32,
    pub(super) read_in: u32,
    /// Up to which group a wait that names it has waited. Only then may what a matmul writes be
    /// accessed: the compiler may move the accesses of what a wait does not name across it.
    pub(super) waited: u32,
    /// How many fences there had been, and one more, when a statement last accessed it at once.
    pub(super) touched: u32,
    /// The statement that wrote it last, or used it in a matmul.
    pub(super) at: u32,
}

/// Groups of matmuls of a warp.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Matmuls {
    pub(super) committed: u32,
    pub(super) done: u32,
    /// The last group that has a matmul.
    pub(super) used: u32,
    pub(super) at: u32,
}

/// Groups of copies of each lane.
#[derive(Debug, Clone, Default)]
pub(super) struct Groups {
    pub(super) committed: [u32; 32],
    pub(super) done: [u32; 32],
    /// Up to which group the sources have been read.
    pub(super) read: [u32; 32],
    pub(super) used: [u32; 32],
    pub(super) at: u32,
}

impl Frame {
    /// The instance of a lane that is in none.
    pub(super) const NONE: u32 = u32::MAX;
}

impl Mark {
    /// Whether a matmul may still write it, or read it, where so many groups are done.
    pub(super) fn in_flight(&self, done: u32) -> bool {
        self.written_in > self.waited || self.read_in > done
    }
}

impl Runner {
    pub(super) fn new(
        (block, index): (usize, usize),
        (present, slots): (u32, Vec<i64>),
        units: Units,
        all: usize,
        registers: usize,
        budget: i64,
    ) -> Runner {
        Runner {
            block,
            index,
            mask: present,
            present,
            slots,
            // 0 is before the run, 1 its beginning.
            time: 2,
            classes: vec![(u32::MAX, Knowledge::new(all))],
            units,
            registers: vec![0.0; registers * 32],
            marks: vec![Mark::default(); registers * 32],
            budget,
            ..Runner::default()
        }
    }

    /// Where a lane's register of a number lies among all.
    #[inline(always)]
    pub(super) fn register(&self, number: usize, lane: usize) -> usize {
        lane * (self.registers.len() / 32) + number
    }

    /// The epoch of what a lane does now.
    pub(super) fn now(&self, lane: usize) -> Epoch {
        Epoch::new(self.units.first + self.units.warp, lane, self.time)
    }

    pub(super) fn knows(&self, lane: usize, epoch: Epoch) -> bool {
        let unit = epoch.who.unit().wrapping_sub(self.units.first);
        let same = epoch.who.lane() == lane;
        let own = match unit {
            _ if unit == self.units.warp => same,
            _ if unit == self.units.copy => same && self.copies.done[lane] >= epoch.time,
            _ if unit == self.units.source => same && self.bulk.read[lane] >= epoch.time,
            _ if unit == self.units.bulk => same && self.bulk.done[lane] >= epoch.time,
            _ if unit == self.units.matmul => self.matmuls.done >= epoch.time,
            _ => false,
        };
        own || self.knowledge(lane).order.knows(unit, epoch.who.lane(), epoch.time)
    }

    /// Whether asynchronous units may see what threads wrote then.
    pub(super) fn fenced(&self, lane: usize, epoch: Epoch) -> bool {
        let unit = epoch.who.unit().wrapping_sub(self.units.first);
        self.knowledge(lane).fenced.knows(unit, epoch.who.lane(), epoch.time)
    }

    pub(super) fn knowledge(&self, lane: usize) -> &Knowledge {
        &self.classes[usize::from(self.class_of[lane])].1
    }

    /// Adds to `sum` what some lanes know, and have done themselves; later deeds are not in it.
    pub(super) fn publish(&mut self, mask: u32, sum: &mut Knowledge) {
        for class in self.classes.iter().filter(|class| class.0 & mask != 0) {
            sum.join(&class.1);
        }
        let units = self.units;
        if mask & self.present == self.present {
            sum.order.raise(units.warp, self.time);
        } else {
            sum.order.raise_lanes(units.warp, mask, &[self.time; 32]);
        }
        sum.order.raise_lanes(units.copy, mask, &self.copies.done);
        sum.order.raise_lanes(units.source, mask, &self.bulk.read);
        sum.order.raise_lanes(units.bulk, mask, &self.bulk.done);
        sum.order.raise(units.matmul, self.matmuls.done);
        self.tick = true;
    }

    pub(super) fn learn(&mut self, mask: u32, news: &Knowledge) {
        let mut split = Vec::new();
        for class in self.classes.iter_mut().filter(|class| class.0 & mask != 0) {
            if class.0 & !mask & self.present != 0 {
                split.push((class.0 & mask, class.1.clone()));
                class.0 &= !mask;
            } else {
                class.1.join(news);
            }
        }
        split.iter_mut().for_each(|class| class.1.join(news));
        self.classes.extend(split);
        self.number_classes();
    }

    /// Some lanes now know the same.
    pub(super) fn agree(&mut self, mask: u32, all: &Knowledge) {
        let mask = if mask & self.present == self.present { u32::MAX } else { mask };
        self.classes.iter_mut().for_each(|class| class.0 &= !mask);
        self.classes.retain(|class| class.0 != 0);
        self.classes.push((mask, all.clone()));
        self.number_classes();
    }

    fn number_classes(&mut self) {
        for (number, class) in (0..).zip(&self.classes) {
            lanes_of(class.0).for_each(|lane| self.class_of[lane] = number);
        }
    }

    /// The lanes' writes so far may be seen by asynchronous units, wherever they are ordered before.
    pub(super) fn fence(&mut self, mask: u32) {
        for (lanes, known) in self.classes.iter_mut().filter(|class| class.0 & mask != 0) {
            known.fenced.raise_lanes(self.units.warp, *lanes & mask, &[self.time; 32]);
            known.fenced.raise_lanes(self.units.copy, *lanes & mask, &self.copies.done);
        }
        self.tick = true;
    }

    /// The copies' groups of a kind.
    pub(super) fn groups(&mut self, group: Group) -> Option<&mut Groups> {
        match group {
            Group::MatMul => None,
            Group::Copy => Some(&mut self.copies),
            Group::Bulk => Some(&mut self.bulk),
        }
    }
}
