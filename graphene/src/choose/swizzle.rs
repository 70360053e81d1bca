//! How a tile in shared memory avoids bank conflicts (Mirage, "Decide How to Swizzle").

use super::gcd;
use crate::Swizzle;

/// What keeps the rows of a tile apart in the banks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Banks {
    /// Byte offsets are xored with bits of their row: no memory is lost.
    Xor(Swizzle),
    /// Rows are this many bytes longer.
    Shift(i64),
}

impl Banks {
    /// The swizzle, if rows are no longer for it.
    pub fn xor(self) -> Option<Swizzle> {
        if let Banks::Xor(swizzle) = self { Some(swizzle) } else { None }
    }
}

/// Bytes that all banks hold side by side: 32 banks of 4.
const LINE: i64 = 128;

/// The swizzle of a tile whose rows have `chunks` chunks of `chunk` bytes, which stay together and are read from one column of
/// several rows at a time, as `ldmatrix` does. `chunk` is a power of two, at most 128.
///
/// Where the number of chunks is a power of two, the row's number is xored into the chunk's; elsewhere a row is made longer by
/// one chunk if its length in chunks and the number of chunks in a line of banks have a common divisor: then as many rows as a
/// line has chunks begin in different banks.
pub fn swizzle(chunks: i64, chunk: i64) -> Banks {
    let line = LINE / chunk;
    if !chunks.max(1).unsigned_abs().is_power_of_two() {
        return Banks::Shift(if gcd(chunks, line) == 1 { 0 } else { chunk });
    }
    // As many chunks as a row has, or a line of banks, change places.
    let (bits, base) = (log2(chunks.min(line)), log2(chunk));
    // Rows shorter than a line change with the line, longer ones with the row.
    let shift = log2(chunks.max(line));
    Swizzle::new(bits, base, shift).map_or(Banks::Shift(chunk), Banks::Xor)
}

/// As [`swizzle`], for lanes that read rows 0, 2, 4 and so on at once: two neighbouring rows have the same swizzle. Only for a power
/// of two of chunks, and rows of at least 128 bytes; elsewhere it is [`swizzle`]'s, and every other row may conflict.
pub fn swizzle_of_pairs(chunks: i64, chunk: i64) -> Banks {
    match swizzle(chunks, chunk) {
        Banks::Xor(of) if chunks * chunk >= LINE => {
            Swizzle::new(of.bits(), of.base(), of.shift() + 1).map_or(Banks::Xor(of), Banks::Xor)
        }
        other => other,
    }
}

fn log2(power: i64) -> i64 {
    i64::from(power.max(1).ilog2())
}
