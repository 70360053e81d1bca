//! Barriers that count arrivals and bytes (PTX `mbarrier`).

use super::clock::{Epoch, Knowledge};

#[derive(Debug, Default)]
pub(super) struct Barrier {
    /// Arrivals that complete a phase; 0 before it is initialised.
    count: i64,
    /// Arrivals that the phase lacks.
    pub(super) pending: i64,
    /// Bytes that the phase lacks; below 0 while more have come than are expected.
    pub(super) bytes: i64,
    /// How many phases have completed.
    pub(super) phase: u32,
    /// When it was initialised, and when its maker fenced that.
    pub(super) made: Epoch,
    pub(super) fenced: Option<Epoch>,
    /// What those know who have arrived in this phase.
    pub(super) arriving: Knowledge,
    /// What those knew who have arrived in completed phases.
    pub(super) complete: Knowledge,
    /// Whether threads' own stores have come (PTX `st.async`), rather than copies.
    pub(super) stored: bool,
    /// The phase, from 1 on, in which the last bytes came, and the statement that sent them.
    pub(super) filled: (u32, u32),
}

/// The most that a count of arrivals or bytes may be (PTX ISA, `mbarrier`).
const MOST: i64 = (1 << 20) - 1;

impl Barrier {
    pub(super) fn new(units: usize) -> Barrier {
        let nothing = Knowledge::new(units);
        Barrier { arriving: nothing.clone(), complete: nothing, ..Barrier::default() }
    }

    /// Whether it has been initialised.
    pub(super) fn exists(&self) -> bool {
        self.count > 0
    }

    pub(super) fn init(&mut self, count: i64, made: Epoch) -> Result<(), &'static str> {
        if self.exists() {
            return Err("is initialised twice");
        }
        if !(1..=MOST).contains(&count) {
            return Err("is initialised with a count outside of 1..2^20");
        }
        (self.count, self.pending, self.made) = (count, count, made);
        Ok(())
    }

    /// One arrival, and so many bytes that are expected.
    pub(super) fn arrive(&mut self, bytes: i64) -> Result<(), &'static str> {
        if self.pending == 0 {
            return Err("gets more arrivals than its count");
        }
        if bytes < 0 {
            return Err("expects a negative number of bytes");
        }
        self.pending -= 1;
        self.bytes += bytes;
        if self.bytes > MOST { Err("expects 2^20 bytes or more") } else { Ok(()) }
    }

    /// So many bytes have come.
    pub(super) fn land(&mut self, bytes: i64) -> Result<(), &'static str> {
        self.bytes -= bytes;
        let why = "gets 2^20 bytes or more that it does not expect";
        if self.bytes < -MOST { Err(why) } else { Ok(()) }
    }

    /// Completes the phase if nothing is lacking.
    pub(super) fn settle(&mut self, unit: u32) {
        if !self.exists() || self.pending > 0 || self.bytes != 0 {
            return;
        }
        self.phase += 1;
        self.pending = self.count;
        self.complete.join(&self.arriving);
        self.complete.order.raise(unit, self.phase);
    }
}
