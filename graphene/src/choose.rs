//! Decisions, as pure functions: what a person would choose by looking at a problem, chosen here
//! from numbers alone, so that each can be read, tested and questioned by itself.
//!
//! Most are those of Mirage's transpiler; the last is AKG's automatic mapping.
//!
//! | question | answered by |
//! |---|---|
//! | how is a tile swizzled, so that its banks do not conflict? | [`swizzle`](swizzle()) |
//! | how do warps share a matmul? | [`warps`](warps()) |
//! | do sums stay in registers? | [`in_registers`] |
//! | how many elements, threads and blocks? | [`mapping`](mapping()) |
//!
//! All are total.

mod mapping;
mod registers;
mod swizzle;
mod warps;

pub use mapping::{Mapping, mapping};
pub use registers::{ACCUMULATORS, in_registers};
pub use swizzle::{Banks, swizzle};
pub use warps::{Warps, warps};
