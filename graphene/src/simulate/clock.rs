//! Who has seen what: vector clocks with a component for each unit of the machine.
//!
//! A unit is a warp, something asynchronous that works for one, or a barrier's copies. Its time grows; what it does at one time
//! is known or unknown to others together, except that the lanes of a unit can be told apart: a lane that arrives at a barrier on
//! its own publishes what it did itself, not what its warp's other lanes did.

/// A lane of a unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Who(u32);

/// When a lane of a unit did something: the unit's time then.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Epoch {
    pub(super) who: Who,
    pub(super) time: u32,
}

/// For each unit, up to which time everything it did is known.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Clock {
    all: Vec<u32>,
    /// Units whose lanes are known up to different times; these are beyond that of `all`.
    lanes: Vec<(u32, [u32; 32])>,
}

/// What has happened before, and which of it asynchronous units may see: what threads wrote and fenced since.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Knowledge {
    pub(super) order: Clock,
    pub(super) fenced: Clock,
}

impl Who {
    pub(super) const NONE: Who = Who(u32::MAX);
    /// A transfer: the epoch's time is its number, and says who and when once it has landed.
    pub(super) const TRANSFER: Who = Who(u32::MAX - 1);
    /// Several: the epoch's time is the number of a set.
    pub(super) const SEVERAL: Who = Who(u32::MAX - 2);

    pub(super) fn unit(self) -> u32 {
        self.0 / 32
    }

    pub(super) fn lane(self) -> usize {
        (self.0 % 32) as usize
    }
}

impl Default for Epoch {
    fn default() -> Epoch {
        Epoch { who: Who::NONE, time: 0 }
    }
}

impl Epoch {
    pub(super) fn new(unit: u32, lane: usize, time: u32) -> Epoch {
        Epoch { who: Who(unit * 32 + lane as u32), time }
    }

    pub(super) fn transfer(number: usize) -> Epoch {
        Epoch { who: Who::TRANSFER, time: number as u32 }
    }
}

impl Clock {
    pub(super) fn new(units: usize) -> Clock {
        Clock { all: vec![0; units], lanes: Vec::new() }
    }

    /// Whether what a lane of a unit did at a time is known. Units of other runs are not.
    pub(super) fn knows(&self, unit: u32, lane: usize, time: u32) -> bool {
        match self.all.get(unit as usize) {
            Some(&all) if all >= time => true,
            Some(_) => self.lanes.iter().any(|row| row.0 == unit && row.1[lane] >= time),
            None => false,
        }
    }

    /// All of a unit is known up to a time.
    pub(super) fn raise(&mut self, unit: u32, time: u32) {
        let all = &mut self.all[unit as usize];
        *all = time.max(*all);
        self.settle();
    }

    /// Some lanes of a unit are known up to a time each.
    pub(super) fn raise_lanes(&mut self, unit: u32, mask: u32, times: &[u32; 32]) {
        let all = self.all[unit as usize];
        if !(0..32).any(|lane| mask >> lane & 1 == 1 && times[lane] > all) {
            return;
        }
        let at = self.lanes.iter().position(|row| row.0 == unit).unwrap_or_else(|| {
            self.lanes.push((unit, [all; 32]));
            self.lanes.len() - 1
        });
        for lane in lanes_of(mask) {
            let known = &mut self.lanes[at].1[lane];
            *known = times[lane].max(*known);
        }
        self.settle();
    }

    /// Learns what another clock knows.
    pub(super) fn join(&mut self, other: &Clock) {
        for (own, other) in self.all.iter_mut().zip(&other.all) {
            *own = (*own).max(*other);
        }
        for (unit, times) in &other.lanes {
            self.raise_lanes(*unit, u32::MAX, times);
        }
        self.settle();
    }

    fn forget(&mut self, units: impl Fn(u32) -> bool) {
        for (unit, time) in (0..).zip(&mut self.all) {
            if units(unit) {
                *time = 0;
            }
        }
        self.lanes.retain(|row| !units(row.0));
    }

    /// Moves what all lanes of a unit share to `all`.
    fn settle(&mut self) {
        let all = &mut self.all;
        self.lanes.retain_mut(|(unit, times)| {
            let shared = &mut all[*unit as usize];
            let least = times.iter().copied().min().unwrap_or(0);
            *shared = least.max(*shared);
            times.iter_mut().for_each(|time| *time = (*time).max(*shared));
            times.iter().any(|time| time > shared)
        });
    }
}

impl Knowledge {
    pub(super) fn new(units: usize) -> Knowledge {
        Knowledge { order: Clock::new(units), fenced: Clock::new(units) }
    }

    pub(super) fn join(&mut self, other: &Knowledge) {
        self.order.join(&other.order);
        self.fenced.join(&other.fenced);
    }

    /// Forgets all that is known of these units.
    pub(super) fn forget(&mut self, units: impl Fn(u32) -> bool) {
        self.order.forget(&units);
        self.fenced.forget(&units);
    }
}

pub(super) fn lanes_of(mask: u32) -> impl Iterator<Item = usize> {
    let rests = std::iter::successors(Some(mask), |rest| Some(rest & rest.wrapping_sub(1)));
    rests.take_while(|rest| *rest != 0).map(|rest| rest.trailing_zeros() as usize)
}

#[cfg(test)]
#[path = "../../tests/units/clock.rs"]
mod tests;
