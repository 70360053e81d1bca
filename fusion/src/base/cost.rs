//! What a launch costs: bytes, blocks and seconds; and what moving bytes takes.

use graphene_ir::target::{Kind, Target};
use std::fmt;

/// Of the smaller of arithmetic and traffic, the part that the other does not hide.
const NOT_HIDDEN: f64 = 0.25;
/// Elements that a core of a CPU takes of a loop at least.
pub(crate) const LOOP_BLOCK: f64 = 2048.0;
/// A core can draw this many times its share of the memory's bandwidth.
const SHARES: f64 = 4.0;
/// The same of a CPU core and what its caches do not hold: a target's bandwidth is that of few cores.
const CPU_SHARES: f64 = 1.25;

/// What a launch is estimated to cost under the planning hints: what the planner chooses by. What is launched, kernels say
/// ([`runs`](crate::kernels::runs)).
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Cost {
    /// Bytes of the outside values that it reads from memory, each once.
    pub read: f64,
    /// Bytes that its blocks read again from memory, rather than from a cache.
    pub reread: f64,
    /// Values that are copied before it, since it does not read them as they lie: each by a launch.
    pub copies: u32,
    /// Their bytes.
    pub copied: f64,
    /// Bytes that it writes to memory.
    pub written: f64,
    /// Seconds of arithmetic.
    pub arithmetic: f64,
    /// Seconds of traffic with memory.
    pub memory: f64,
    /// Seconds of starting it.
    pub launch: f64,
    /// Blocks that can run side by side, as far as cores are filled by them.
    pub blocks: f64,
}

impl Cost {
    /// Seconds that it takes.
    pub fn seconds(&self) -> f64 {
        let (a, b) = (self.arithmetic, self.memory);
        self.launch + a.max(b) + NOT_HIDDEN * a.min(b)
    }

    fn bound(&self) -> &'static str {
        match (self.arithmetic > self.memory, self.arithmetic.max(self.memory) < self.launch) {
            (_, true) => "launch",
            (true, false) => "arithmetic",
            (false, false) => "memory",
        }
    }
}

/// Prints as `memory reads 12.6 MB, again 3.1 MB, copies 4.2 MB before, writes 12.6 MB, 43.1 us by memory`; what is zero is left
/// out.
impl fmt::Display for Cost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "memory reads {}", bytes_text(self.read))?;
        if self.reread > 0.0 {
            write!(f, ", again {}", bytes_text(self.reread))?;
        }
        if self.copies > 0 {
            write!(f, ", copies {} before", bytes_text(self.copied))?;
        }
        write!(f, ", writes {}", bytes_text(self.written))?;
        write!(f, ", {:.1} us by {}", self.seconds() * 1e6, self.bound())
    }
}

pub(crate) fn bytes_text(bytes: f64) -> String {
    match bytes {
        _ if bytes >= 1e9 => format!("{:.2} GB", bytes / 1e9),
        _ if bytes >= 1e6 => format!("{:.2} MB", bytes / 1e6),
        _ if bytes >= 1e3 => format!("{:.1} kB", bytes / 1e3),
        _ => format!("{bytes:.0} B"),
    }
}

/// Seconds in which so many blocks, side by side, move bytes from or to memory.
pub(crate) fn read_time(target: &Target, bytes: f64, blocks: f64) -> f64 {
    let filled = (blocks / f64::from(target.cores)).min(1.0);
    let shares = match target.kind {
        Kind::Cpu if bytes > target.l2_bytes as f64 => CPU_SHARES,
        Kind::Cpu | Kind::Cuda { .. } => SHARES,
    };
    bytes / ((shares * filled).min(1.0) * target.memory_bandwidth)
}

pub(crate) fn move_cost(target: &Target, bytes: f64) -> Cost {
    Cost {
        read: bytes,
        written: bytes,
        memory: 2.0 * bytes / target.memory_bandwidth,
        launch: target.launch_cost,
        blocks: 1.0,
        ..Cost::default()
    }
}
