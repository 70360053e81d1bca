//! Elements, threads and blocks of a loop over independent elements (AKG, "Auto-Mapping").

use super::ceil;
use crate::WARP;
use crate::target::Target;

/// How a loop is spread over a GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Mapping {
    /// Elements that a thread takes at a time.
    pub tile: i64,
    /// Threads of a block.
    pub threads: i64,
    /// Blocks; each takes one tile of all its threads after the other.
    pub blocks: i64,
}

/// Threads of a block at most: enough to hide the latency of loads with a few blocks on each
/// multiprocessor, few enough that a small loop reaches all of them.
const THREADS: i64 = 256;
/// Threads that a multiprocessor holds, on every architecture that is planned for at least.
const RESIDENT: i64 = 1536;

/// The mapping of a loop over `elements` elements, of which an instruction moves up to `vector`, a power of two, at a time.
///
/// - A tile is as many elements as an instruction moves, halved until it divides their number: then
///   no thread asks whether its tile is whole.
/// - A block has 256 threads, halved while there are fewer blocks than multiprocessors.
/// - There are no more blocks than run at once.
pub fn mapping(elements: i64, vector: i64, target: &Target) -> Mapping {
    let mut tile = vector.max(1);
    while elements % tile != 0 {
        tile /= 2;
    }
    let tiles = (elements / tile).max(1);
    let cores = i64::from(target.cores.max(1));
    let mut threads = THREADS;
    while threads > WARP && ceil(tiles, threads) < cores {
        threads /= 2;
    }
    let blocks = ceil(tiles, threads).min(cores * (RESIDENT / threads));
    Mapping { tile, threads, blocks }
}
