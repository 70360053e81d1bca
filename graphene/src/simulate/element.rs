//! Elements of any memory by number, and tables by such numbers.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use crate::Memory;

/// An element of any memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Element(pub(super) u64);

impl Element {
    /// An element of global memory, of a block's shared memory, or of a warp's registers, each lane's together.
    pub(super) fn of(memory: Memory, unit: u64, at: usize) -> Element {
        Element((memory as u64) << 62 | unit << 34 | at as u64)
    }
}

/// The unit of a warp's registers.
pub(super) fn unit_of(block: i64, warp: usize) -> u64 {
    (block as u64) << 5 | warp as u64
}

/// By what the simulator numbers.
pub(super) type Numbered<K, V> = HashMap<K, V, BuildHasherDefault<Mix>>;

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
