//! Decisions, as pure functions: what a person would choose by looking at a problem, chosen here
//! from numbers alone, so that each can be read, tested and questioned by itself.
//!
//! Most are those of Mirage's transpiler; the last is AKG's automatic mapping.
//!
//! | question | answered by |
//! |---|---|
//! | in which order do a block's operators run, and where do barriers stand? | [`order`] |
//! | which dimension of each tensor is contiguous? | [`innermost`](innermost()) |
//! | how is a tile swizzled, so that its banks do not conflict? | [`swizzle`](swizzle()) |
//! | where does each tile lie in shared memory? | [`storage`](storage()) |
//! | how do warps share a product? | [`warps`](warps()) |
//! | do sums stay in registers? | [`in_registers`] |
//! | how many elements, threads and blocks? | [`mapping`](mapping()) |
//!
//! All are total and take no longer than a limit that their documentation states.

mod innermost;
mod mapping;
mod order;
mod registers;
mod storage;
mod swizzle;
mod warps;

pub use innermost::{Pair, innermost};
pub use mapping::{Mapping, mapping};
pub use order::{Operator, Order, order};
pub use registers::{ACCUMULATORS, in_registers};
pub use storage::{Lifetime, Storage, storage};
pub use swizzle::{Banks, swizzle};
pub use warps::{Warps, warps};
