//! Elements of operands: where they lie, and reads and writes of them.

use std::mem::discriminant;

use super::clock::Epoch;
use super::element::{Element, unit_of};
use super::issue::{Base, Failure, Issue};
use super::memory::{Access, Conflict, Space};
use super::place::Place;
use super::program::Mode;
use super::runner::{Mark, Runner};
use super::tally;
use crate::atom::{At, Fault, Tried};
use crate::text::print::joined;
use crate::{Group, Memory};

/// A lane, an operand as it sees it, and the number of its element.
type Which = (usize, usize, usize);

/// Where an element of an operand lies.
#[derive(Debug, Clone, Copy)]
pub(super) struct Spot<'p> {
    place: &'p Place,
    lane: usize,
    operand: usize,
    element: usize,
    /// The block of the run whose memory it is in.
    block: usize,
    /// The offset in its buffer.
    offset: i64,
}

/// What is done with an element of memory.
type Deed = fn(&mut Space, usize, &Access<'_>) -> Option<Conflict>;

impl<'p> Issue<'_, 'p, '_> {
    /// The number of an element of an operand.
    #[inline(always)]
    fn number(&mut self, at: At<'_>) -> Tried<usize> {
        self.task.places[at.1].number(at.2).ok_or_else(|| self.no_element(at))
    }

    #[cold]
    fn no_element(&mut self, (lane, operand, element): At<'_>) -> Fault {
        let name = &self.task.places[operand].name;
        self.blame(lane, Fault::Invalid(format!("%{name} has no element {element:?}")))
    }

    /// Where an element lies; `None` outside of its buffer.
    #[inline(always)]
    pub(super) fn spot(&mut self, at: At<'_>) -> Tried<Option<Spot<'p>>> {
        let number = self.number(at)?;
        let base = self.base_of(at.0, at.1);
        Ok(self.spot_from(base, (at.0, at.1, number)))
    }

    /// Where an element of an operand lies that begins there. All of this is inlined: a spot is never copied.
    #[inline(always)]
    fn spot_from(&self, base: Base, (lane, operand, element): Which) -> Option<Spot<'p>> {
        let place = &self.task.places[operand];
        let offset = base.offset + place.distances[element];
        let starts = || &self.scratch.starts[base.starts..];
        let inside = base.inside || place.is_inside(starts(), element);
        inside.then_some(Spot { place, lane, operand, element, block: base.block, offset })
    }

    /// An element that must lie inside of its buffer.
    #[inline(always)]
    pub(super) fn inner_spot(&mut self, at: At<'_>) -> Tried<Spot<'p>> {
        let number = self.number(at)?;
        let base = self.base_of(at.0, at.1);
        self.inner_spot_from(base, (at.0, at.1, number))
    }

    /// Likewise, of an operand that begins there.
    #[inline(always)]
    pub(super) fn inner_spot_from(&mut self, base: Base, at: Which) -> Tried<Spot<'p>> {
        self.spot_from(base, at).ok_or_else(|| self.outside(at))
    }

    #[cold]
    fn outside(&mut self, (lane, operand, element): Which) -> Fault {
        let fault = Fault::OutOfBounds(self.text(lane, operand, element));
        self.blame(lane, fault)
    }

    /// An element's name and its coordinates along its buffer's axes.
    fn text(&self, lane: usize, operand: usize, element: usize) -> String {
        let place = &self.task.places[operand];
        let starts = &self.scratch.starts[self.base_of(lane, operand).starts..];
        let coordinates = starts.iter().zip(place.steps(element)).map(|(start, step)| start + step);
        format!("%{}[{}]", place.name, joined(coordinates, ","))
    }

    #[inline(always)]
    pub(super) fn load(&mut self, spot: Spot<'p>) -> Tried<f64> {
        match spot.place.memory {
            Memory::Registers => self.load_register(spot),
            Memory::Shared | Memory::Global => self.load_memory(spot),
        }
    }

    #[inline(never)]
    fn load_memory(&mut self, spot: Spot<'p>) -> Tried<f64> {
        self.note(spot);
        let read: Deed = if spot.place.written { Space::read } else { Space::read_constant };
        self.touch(spot, self.stamp(spot.lane, false), read)?;
        Ok(self.peek(spot))
    }

    /// Writes an element, rounded to its type.
    #[inline(always)]
    pub(super) fn store(&mut self, spot: Spot<'p>, value: f64) -> Tried {
        let value = spot.place.scalar.round(value);
        match spot.place.memory {
            Memory::Registers => self.store_register(spot, value),
            Memory::Shared | Memory::Global => self.store_memory(spot, value),
        }
    }

    #[inline(never)]
    fn store_memory(&mut self, spot: Spot<'p>, value: f64) -> Tried {
        let place = spot.place;
        if self.task.mode != Mode::Signals {
            return self.put(spot, self.stamp(spot.lane, true), value);
        }
        for which in 0..self.scratch.targets.len() {
            let target = &mut self.scratch.targets[which];
            if target.lane != spot.lane {
                continue;
            }
            target.landing.bytes += place.bytes;
            let stamp = Epoch::transfer(target.landing.transfer);
            let spot = Spot { block: target.block, ..spot };
            self.put(spot, stamp, value)?;
        }
        Ok(())
    }

    fn put(&mut self, spot: Spot<'p>, stamp: Epoch, value: f64) -> Tried {
        self.note(spot);
        self.touch(spot, stamp, Space::write)?;
        self.poke(spot, value);
        Ok(())
    }

    /// Replaces an element of global memory in one step.
    pub(super) fn exchange(&mut self, spot: Spot<'p>, change: impl Fn(f64) -> f64) -> Tried {
        let place = spot.place;
        if place.memory != Memory::Global {
            let text = "only global memory is updated in one step".to_owned();
            return Err(self.blame(spot.lane, Fault::Invalid(text)));
        }
        self.note(spot);
        self.touch(spot, self.stamp(spot.lane, true), Space::update)?;
        self.poke(spot, place.scalar.round(change(self.peek(spot))));
        Ok(())
    }

    /// Reads an element as one that waits for it: others may update it at the same time.
    pub(super) fn observe(&mut self, spot: Spot<'p>) -> Tried<f64> {
        self.touch(spot, self.stamp(spot.lane, false), Space::observe)?;
        Ok(self.peek(spot))
    }

    /// The number of an element in its memory.
    pub(super) fn counter(&self, spot: Spot<'p>) -> usize {
        spot.place.first + spot.offset as usize
    }

    fn peek(&self, spot: Spot<'p>) -> f64 {
        let at = self.counter(spot);
        match spot.place.memory {
            Memory::Global => self.machine.global.peek(at),
            Memory::Shared | Memory::Registers => self.machine.blocks[spot.block].shared.peek(at),
        }
    }

    fn poke(&mut self, spot: Spot<'p>, value: f64) {
        let (place, at) = (spot.place, self.counter(spot));
        let machine = &mut *self.machine;
        let block = &mut machine.blocks[spot.block];
        let (space, unit) = match place.memory {
            Memory::Global => (&mut machine.global, 0),
            Memory::Shared | Memory::Registers => (&mut block.shared, block.number as u64),
        };
        if machine.options.levels > 0 {
            let element = Element::of(place.memory, unit, at);
            let (by, values) = ((&machine.runners[self.warp], spot.lane), (space.peek(at), value));
            machine.levels.note(machine.program, by, (place.number, element), values);
            space.changed[at] = machine.levels.now;
        }
        space.poke(at, value);
    }

    /// Counts the bytes of an access, and which addresses it touches.
    fn note(&mut self, spot: Spot<'p>) {
        let place = spot.place;
        let (cost, address) = (&mut self.machine.costs[self.number], place.physical(spot.offset));
        let traffic = if place.memory == Memory::Shared {
            self.scratch.spans[32 * spot.operand + spot.lane].extend(address, place.bytes);
            &mut cost.shared
        } else {
            let sector = tally::sector(spot.operand, address);
            if self.scratch.sectors.last() != Some(&sector) {
                self.scratch.sectors.push(sector);
            }
            &mut cost.global
        };
        if spot.operand < self.task.site.outs() {
            traffic.written += place.bytes as u64;
        } else if self.task.mode != Mode::Group(Group::MatMul) {
            // What a warpgroup's matmul reads is counted as a whole.
            traffic.read += place.bytes as u64;
        }
    }

    /// Checks an access to memory, and leaves its trace there.
    fn touch(&mut self, spot: Spot<'p>, stamp: Epoch, deed: Deed) -> Tried {
        let (place, at) = (spot.place, self.counter(spot));
        let machine = &mut *self.machine;
        let access = Access {
            runner: &machine.runners[self.warp],
            lane: spot.lane,
            transfers: &machine.transfers,
            units: machine.units,
            proxy: self.task.site.atom.proxy,
            stamp,
            at: self.task.number,
        };
        let own = access.runner.block == spot.block;
        let space = match place.memory {
            Memory::Global => &mut machine.global,
            Memory::Shared | Memory::Registers => &mut machine.blocks[spot.block].shared,
        };
        if let Some(conflict) = deed(space, at, &access) {
            self.report(spot, conflict)?;
        }
        if !own && place.memory == Memory::Shared {
            self.visit((spot.lane, spot.operand), spot.block)?;
        }
        Ok(())
    }

    /// Which epoch a read or a write has.
    fn stamp(&self, lane: usize, writes: bool) -> Epoch {
        let Runner { units, matmuls, bulk, copies, .. } = &self.machine.runners[self.warp];
        let (unit, lane, open) = match (self.task.mode, writes) {
            (Mode::Group(Group::MatMul), false) => (units.matmul, 0, matmuls.committed),
            (Mode::Group(Group::Bulk), false) => (units.source, lane, bulk.committed[lane]),
            (Mode::Group(Group::Bulk), true) => (units.bulk, lane, bulk.committed[lane]),
            (Mode::Group(Group::Copy), true) => (units.copy, lane, copies.committed[lane]),
            (mode, _) => {
                let mut targets = self.scratch.targets.iter();
                let own = targets.find(|of| mode == Mode::Signals && !writes && of.lane == lane);
                let now = || self.machine.runners[self.warp].now(lane);
                return own.map_or_else(now, |target| Epoch::transfer(target.landing.transfer));
            }
        };
        Epoch::new(units.first + unit, lane, open + 1)
    }

    #[cold]
    fn report(&mut self, spot: Spot<'p>, conflict: Conflict) -> Tried {
        let text = self.text(spot.lane, spot.operand, spot.element);
        let (fault, other) = match conflict {
            Conflict::Uninitialised => (Fault::Uninitialised(text), None),
            Conflict::Race(at) => {
                (Fault::Race(format!("two accesses to {text}, in no order")), Some(at))
            }
            Conflict::InFlight(at) => (Fault::InFlight(text), Some(at)),
            Conflict::Unfenced(at) => {
                let text = format!("a thread wrote {text}, and an asynchronous unit accesses it");
                (Fault::MissingFence(text), Some(at))
            }
            Conflict::Twice(at) => (Fault::WrittenTwice(text), Some(at)),
        };
        self.complain(spot.lane, fault, other)
    }

    /// Hands a fault back if enough has been found; otherwise notes it, once for a statement and kind of fault.
    pub(super) fn complain(&mut self, lane: usize, fault: Fault, other: Option<u32>) -> Tried {
        let (number, kind) = (self.task.number, discriminant(&fault));
        if self.machine.findings.iter().any(|known| {
            known.statement.number == number as usize && discriminant(&known.fault) == kind
        }) {
            return Ok(());
        }
        if self.machine.findings.len() + 1 >= self.machine.options.findings.max(1) {
            (self.other, self.blamed) = (other, Some(lane));
            return Err(fault);
        }
        self.machine.record(self.warp, Failure { fault, other, lane: Some(lane) }, Some(number));
        Ok(())
    }

    /// Notes an access to another block's shared memory, which must be there.
    pub(super) fn visit(&mut self, (lane, operand): (usize, usize), block: usize) -> Tried {
        let name = &self.task.places[operand].name;
        let (units, warps) = self.machine.units;
        let runner = &self.machine.runners[self.warp];
        let knowledge = runner.knowledge(lane);
        let first = block as u32 * units;
        let started = (first..first + warps).any(|unit| knowledge.order.knows(unit, lane, 1));
        if !started {
            let text = format!("%{name} of a block that may not have started");
            return self.complain(lane, Fault::Race(text), None);
        }
        if self.machine.blocks[block].running == 0 {
            let text = format!("%{name} of a block that has left");
            return self.complain(lane, Fault::Invalid(text), None);
        }
        // When a transfer has landed, the barrier that it signals knows.
        if self.task.mode != Mode::Signals {
            let now = runner.now(lane);
            self.machine.blocks[block].visitors.insert(now.who, (now, self.task.number));
        }
        Ok(())
    }

    #[inline(always)]
    fn load_register(&mut self, spot: Spot<'p>) -> Tried<f64> {
        let counter = self.counter(spot);
        let matmul = self.task.mode == Mode::Group(Group::MatMul);
        let accumulates = matmul && spot.operand < self.task.site.outs();
        let number = self.task.number;
        let runner = &mut self.machine.runners[self.warp];
        let at = runner.register(counter, spot.lane);
        let (fences, matmuls) = (runner.fences, runner.matmuls);
        let mark = &mut runner.marks[at];
        let (before, value) = (*mark, runner.registers[at]);
        if matmul {
            mark.read_in = matmuls.committed + 1;
        } else {
            mark.touched = fences + 1;
        }
        if before.written_in > before.waited && !accumulates {
            self.report(spot, Conflict::InFlight(before.at))?;
        } else if !before.valid {
            self.report(spot, Conflict::Uninitialised)?;
        } else if matmul && before.touched > fences {
            self.unfenced_register(spot, before)?;
        }
        if matmul && !accumulates {
            self.machine.runners[self.warp].marks[at].at = number;
        }
        Ok(value)
    }

    #[inline(always)]
    fn store_register(&mut self, spot: Spot<'p>, value: f64) -> Tried {
        let counter = self.counter(spot);
        let matmul = self.task.mode == Mode::Group(Group::MatMul);
        let number = self.task.number;
        let runner = &mut self.machine.runners[self.warp];
        let at = runner.register(counter, spot.lane);
        let (fences, matmuls) = (runner.fences, runner.matmuls);
        let mark = &mut runner.marks[at];
        let before = *mark;
        (mark.valid, mark.at) = (true, number);
        if matmul {
            mark.written_in = matmuls.committed + 1;
        } else {
            mark.touched = fences + 1;
        }
        let replaced = std::mem::replace(&mut runner.registers[at], value);
        if self.machine.options.levels > 0 {
            let runner = &self.machine.runners[self.warp];
            let block = self.machine.blocks[runner.block].number;
            let element = Element::of(Memory::Registers, unit_of(block, runner.index), at);
            let (by, values) = ((runner, spot.lane), (replaced, value));
            let root = spot.place.number;
            self.machine.levels.note(self.machine.program, by, (root, element), values);
        }
        // A matmul may add to what an earlier one of its warpgroup still writes.
        if !matmul && before.in_flight(matmuls.done) {
            return self.report(spot, Conflict::InFlight(before.at));
        }
        if matmul && before.touched > fences {
            return self.unfenced_register(spot, before);
        }
        Ok(())
    }

    #[cold]
    fn unfenced_register(&mut self, spot: Spot<'p>, before: Mark) -> Tried {
        let text = self.text(spot.lane, spot.operand, spot.element);
        let text = format!("{text} is accessed by threads, and then by a matmul");
        self.complain(spot.lane, Fault::MissingFence(text), Some(before.at))
    }
}
