//! Memory with a shadow: for each element, who wrote it last and who has read it since.
//!
//! The scheme is that of FastTrack (Flanagan and Freund, 2009): one epoch for the last write; one
//! for the reads since, or a set of them once two are not ordered. An access by an asynchronous
//! unit has the epoch of that unit, so that "not yet waited for" and "not ordered" are one check.

use std::collections::HashMap;

use super::clock::{Epoch, Who, lanes_of};
use super::runner::Runner;
use crate::atom::Proxy;

/// Memory of one kind.
#[derive(Debug, Default)]
pub(super) struct Space {
    data: Vec<f64>,
    cells: Vec<Cell>,
    sets: Vec<Vec<Reader>>,
    free: Vec<u32>,
    /// Who has updated elements in one step each.
    updates: HashMap<usize, Vec<Reader>>,
    /// Whether one element may be written once only.
    once: bool,
    /// When each element was last written, as levels count; empty where nothing is checked of them.
    pub(super) changed: Vec<u64>,
}

#[derive(Debug, Clone, Copy, Default)]
struct Cell {
    writer: Epoch,
    reader: Epoch,
    written_at: u32,
    read_at: u32,
    valid: bool,
    /// Whether threads wrote it last, rather than asynchronous units.
    generic: bool,
    /// Whether it was written and not read since.
    unread: bool,
    updated: bool,
}

/// Lanes that read at one time.
#[derive(Debug, Clone, Copy)]
struct Reader {
    unit: u32,
    time: u32,
    mask: u32,
    at: u32,
}

/// What is wrong with an access, as [faults](crate::atom::Fault) say; other statements by number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Conflict {
    Uninitialised,
    Race(u32),
    InFlight(u32),
    Unfenced(u32),
    Twice(u32),
}

/// Who accesses memory, and what it knows.
#[derive(Clone, Copy)]
pub(super) struct Access<'a> {
    pub(super) runner: &'a Runner,
    pub(super) lane: usize,
    /// Of each asynchronous copy, its effects' epoch once it has landed.
    pub(super) transfers: &'a [Option<Epoch>],
    /// How many units a block has, and how many of them are its warps.
    pub(super) units: (u32, u32),
    pub(super) proxy: Proxy,
    /// The epoch that the access has.
    pub(super) stamp: Epoch,
    /// The statement.
    pub(super) at: u32,
}

impl Access<'_> {
    /// Whether what happened then, if anything did, is ordered before this access.
    fn knows(&self, epoch: Epoch) -> bool {
        let knows = |epoch| self.runner.knows(self.lane, epoch);
        epoch.who == Who::NONE || self.resolve(epoch).is_some_and(knows)
    }

    fn resolve(&self, epoch: Epoch) -> Option<Epoch> {
        if epoch.who == Who::TRANSFER { self.transfers[epoch.time as usize] } else { Some(epoch) }
    }

    /// What is wrong if what happened then, in that statement, is not ordered before this access.
    fn conflict(&self, epoch: Epoch, at: u32) -> Option<Conflict> {
        if self.knows(epoch) {
            return None;
        }
        let copies = epoch.who == Who::TRANSFER || epoch.who.unit() % self.units.0 >= self.units.1;
        Some(if copies { Conflict::InFlight(at) } else { Conflict::Race(at) })
    }

    fn reader(&self) -> Reader {
        let Epoch { who, time } = self.stamp;
        let single = who == Who::TRANSFER;
        let (unit, mask) = if single { (TRANSFERS, 1) } else { (who.unit(), 1 << who.lane()) };
        Reader { unit, time, mask, at: self.at }
    }
}

/// The unit of transfers in sets of readers; the time is the transfer's number.
const TRANSFERS: u32 = u32::MAX;

impl Reader {
    /// What is wrong if what some of the lanes read is not ordered before an access.
    fn conflict(&self, by: &Access<'_>) -> Option<Conflict> {
        lanes_of(self.mask).find_map(|lane| match self.unit {
            TRANSFERS => by.conflict(Epoch { who: Who::TRANSFER, time: self.time }, self.at),
            unit => by.conflict(Epoch::new(unit, lane, self.time), self.at),
        })
    }
}

impl Space {
    /// Memory of so many elements that nothing has written; whether one may be written once only, and whether it notes when.
    pub(super) fn new(len: usize, once: bool, dated: bool) -> Space {
        let (data, cells) = (vec![0.0; len], vec![Cell::default(); len]);
        let changed = if dated { vec![0; len] } else { Vec::new() };
        Space { data, cells, once, changed, ..Space::default() }
    }

    /// Sets an element from outside.
    pub(super) fn fill(&mut self, at: usize, value: f64) {
        self.data[at] = value;
        self.cells[at].valid = true;
    }

    /// The elements in a range: those that were ever written.
    pub(super) fn contents(&self, first: usize, len: usize) -> Vec<Option<f64>> {
        (first..first + len).map(|at| self.cells[at].valid.then_some(self.data[at])).collect()
    }

    /// Whether the last write of an element is ordered before an access.
    pub(super) fn is_ordered(&self, at: usize, by: &Access<'_>) -> bool {
        by.knows(self.cells[at].writer)
    }

    /// Whether anything was ever written to an element.
    pub(super) fn is_valid(&self, at: usize) -> bool {
        self.cells[at].valid
    }

    /// An element, whatever its state.
    pub(super) fn peek(&self, at: usize) -> f64 {
        self.data[at]
    }

    /// Sets an element, whatever its state.
    pub(super) fn poke(&mut self, at: usize, value: f64) {
        self.data[at] = value;
    }

    /// Checks and notes a read.
    pub(super) fn read(&mut self, at: usize, by: &Access<'_>) -> Option<Conflict> {
        let cell = self.cells[at];
        if let Some(conflict) = self.after_writes(at, by, false) {
            return Some(conflict);
        }
        self.cells[at].unread = false;
        if cell.reader != by.stamp {
            self.note_reader(at, by);
        }
        // Whoever writes it later, in no order with this, names both accesses.
        (!cell.valid).then_some(Conflict::Uninitialised)
    }

    /// Checks a read of an element that nothing writes: no order needs noting.
    pub(super) fn read_constant(&mut self, at: usize, _: &Access<'_>) -> Option<Conflict> {
        (!self.is_valid(at)).then_some(Conflict::Uninitialised)
    }

    /// Checks a read that updates in one step do not disturb, nor it them.
    pub(super) fn observe(&mut self, at: usize, by: &Access<'_>) -> Option<Conflict> {
        let cell = &mut self.cells[at];
        by.conflict(cell.writer, cell.written_at).or_else(|| {
            cell.unread = false;
            (!cell.valid).then_some(Conflict::Uninitialised)
        })
    }

    fn note_reader(&mut self, at: usize, by: &Access<'_>) {
        let cell = &mut self.cells[at];
        if cell.reader.who == Who::SEVERAL {
            add(&mut self.sets[cell.reader.time as usize], by.reader());
        } else if by.knows(cell.reader) {
            (cell.reader, cell.read_at) = (by.stamp, by.at);
        } else {
            let first = Access { stamp: cell.reader, at: cell.read_at, ..*by }.reader();
            let set = self.free.pop().unwrap_or_else(|| {
                self.sets.push(Vec::new());
                self.sets.len() as u32 - 1
            });
            cell.reader = Epoch { who: Who::SEVERAL, time: set };
            self.sets[set as usize].push(first);
            add(&mut self.sets[set as usize], by.reader());
        }
    }

    /// Checks and notes a write.
    pub(super) fn write(&mut self, at: usize, by: &Access<'_>) -> Option<Conflict> {
        let cell = self.cells[at];
        let twice = (self.once && cell.unread).then_some(Conflict::Twice(cell.written_at));
        let conflict = twice.or_else(|| self.before_write(at, by, false));
        if cell.reader.who == Who::SEVERAL {
            self.sets[cell.reader.time as usize].clear();
            self.free.push(cell.reader.time);
        }
        if cell.updated {
            self.updates.remove(&at);
        }
        self.cells[at] = Cell {
            writer: by.stamp,
            written_at: by.at,
            valid: true,
            generic: by.proxy == Proxy::Generic,
            unread: true,
            ..Cell::default()
        };
        conflict
    }

    /// Checks and notes an update in one step.
    pub(super) fn update(&mut self, at: usize, by: &Access<'_>) -> Option<Conflict> {
        let unset = (!self.cells[at].valid).then_some(Conflict::Uninitialised);
        let conflict = self.before_write(at, by, true).or(unset);
        let cell = &mut self.cells[at];
        (cell.updated, cell.unread) = (true, true);
        add(self.updates.entry(at).or_default(), by.reader());
        conflict
    }

    /// Whether an access is ordered after all writes, and after all updates but if it is one: these do not disturb each other.
    fn after_writes(&self, at: usize, by: &Access<'_>, update: bool) -> Option<Conflict> {
        let cell = &self.cells[at];
        let conflict = by.conflict(cell.writer, cell.written_at);
        // Between a thread's write and an asynchronous access there must be a fence.
        let fenced = |epoch| by.runner.fenced(by.lane, epoch);
        let asked = by.proxy == Proxy::Async && cell.generic;
        if conflict.is_some() || asked && !by.resolve(cell.writer).is_some_and(fenced) {
            return conflict.or(Some(Conflict::Unfenced(cell.written_at)));
        }
        let others = if cell.updated && !update { &self.updates[&at][..] } else { &[] };
        let mut unordered = others.iter().filter(|reader| reader.conflict(by).is_some());
        unordered.next().map(|reader| Conflict::Race(reader.at))
    }

    fn before_write(&self, at: usize, by: &Access<'_>, update: bool) -> Option<Conflict> {
        let cell = &self.cells[at];
        self.after_writes(at, by, update).or_else(|| match cell.reader.who {
            Who::SEVERAL => {
                self.sets[cell.reader.time as usize].iter().find_map(|reader| reader.conflict(by))
            }
            _ => by.conflict(cell.reader, cell.read_at),
        })
    }
}

/// Adds a reader; what its lanes read before is implied.
fn add(set: &mut Vec<Reader>, reader: Reader) {
    let mut noted = false;
    if reader.unit != TRANSFERS {
        for known in set.iter_mut().filter(|known| known.unit == reader.unit) {
            if known.time == reader.time {
                known.mask |= reader.mask;
                noted = true;
            } else {
                known.mask &= !reader.mask;
            }
        }
        set.retain(|known| known.mask != 0);
    }
    if !noted {
        set.push(reader);
    }
}

#[cfg(test)]
#[path = "../../tests/units/memory.rs"]
mod tests;
