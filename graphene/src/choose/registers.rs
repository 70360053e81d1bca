//! Whether sums stay in registers (Mirage, "When and How to Store the Accumulator").

/// Registers that a thread may have for sums; the rest of its 255 are for operands and addresses.
pub const ACCUMULATORS: i64 = 192;

/// Whether `elements` sums of 32 bits, shared evenly by `threads` threads, stay in registers rather
/// than in shared memory: fewer than [`ACCUMULATORS`] for each.
pub fn in_registers(elements: i64, threads: i64) -> bool {
    (elements + threads - 1) / threads.max(1) < ACCUMULATORS
}
