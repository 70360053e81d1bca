//! The architectures that kernels are written for.

use std::fmt;
use std::str::FromStr;

use crate::error::{Error, Result};

/// An architecture. Later ones run what earlier ones do, but for what is `sm_90a`'s own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Arch {
    /// Volta.
    Sm70,
    /// Turing.
    Sm75,
    /// Ampere, A100.
    Sm80,
    /// Ampere, A6000.
    Sm86,
    /// Hopper, with the instructions that only it has.
    Sm90a,
}

impl Arch {
    /// All of them, with their names.
    pub const ALL: [(Arch, &'static str); 5] = [
        (Arch::Sm70, "sm_70"),
        (Arch::Sm75, "sm_75"),
        (Arch::Sm80, "sm_80"),
        (Arch::Sm86, "sm_86"),
        (Arch::Sm90a, "sm_90a"),
    ];

    /// Shared memory that one block may use, in bytes.
    pub fn shared_memory(self) -> i64 {
        match self {
            Arch::Sm70 => 96 << 10,
            Arch::Sm75 => 64 << 10,
            Arch::Sm80 => 163 << 10,
            Arch::Sm86 => 99 << 10,
            Arch::Sm90a => 227 << 10,
        }
    }
}

/// The registers that each thread of a block has when it starts, where the block is to have all of
/// a multiprocessor's: they are given out by eights, and a thread has at most 256.
pub(crate) fn registers_at_launch(threads: i64) -> i64 {
    (65_536 / threads.max(1) / 8 * 8).min(256)
}

impl fmt::Display for Arch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let row = Arch::ALL.iter().find(|row| row.0 == *self);
        f.write_str(row.expect("every architecture has a row").1)
    }
}

impl FromStr for Arch {
    type Err = Error;
    fn from_str(name: &str) -> Result<Arch> {
        Arch::ALL.iter().find(|row| row.1 == name).map(|row| row.0).ok_or_else(|| {
            let known: Vec<&str> = Arch::ALL.iter().map(|row| row.1).collect();
            Error::UnknownTarget { name: name.to_owned(), known: known.join(", ") }
        })
    }
}
