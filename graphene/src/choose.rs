//! Decisions, as pure functions: what a person would choose by looking at a problem, chosen here
//! from numbers alone, so that each can be read, tested and questioned by itself. They are those of Mirage's
//! transpiler, and all are total.
//!
//! | question | answered by |
//! |---|---|
//! | how is a tile swizzled, so that its banks do not conflict? | [`swizzle`](swizzle()) |
//! | how do warps share a matmul? | [`warps`](warps()) |
//! | do sums stay in registers? | [`in_registers`] |

mod swizzle;
mod warps;

pub use swizzle::{Banks, swizzle, swizzle_of_pairs};
pub use warps::{Warps, warps};

/// Registers that a thread may have for sums; the rest of its 255 are for operands and addresses.
pub const ACCUMULATORS: i64 = 192;

/// Whether `elements` sums of 32 bits (Mirage, "When and How to Store the Accumulator"), shared evenly by `threads` threads, stay
/// in registers rather than in shared memory: fewer than [`ACCUMULATORS`] for each.
pub fn in_registers(elements: i64, threads: i64) -> bool {
    ceil(elements, threads.max(1)) < ACCUMULATORS
}

pub(crate) fn ceil(a: i64, b: i64) -> i64 {
    (a + b - 1) / b
}

pub(crate) fn gcd(a: i64, b: i64) -> i64 {
    if b == 0 { a } else { gcd(b, a % b) }
}
