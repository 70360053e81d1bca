//! Where each tile lies in shared memory: dynamic storage allocation (Mirage, "Memory Planning").

/// When a tile is in use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Lifetime {
    /// Its size.
    pub bytes: u64,
    /// The first phase in which it is in use.
    pub first: usize,
    /// The last one.
    pub last: usize,
}

/// A place for each tile.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Storage {
    /// Where each tile begins.
    pub offsets: Vec<u64>,
    /// Bytes in all.
    pub bytes: u64,
    /// No placement takes fewer: the most bytes in use in one phase.
    pub least: u64,
}

/// Which tiles are placed first.
type Key = fn(&Lifetime) -> (u64, u64);

/// The orders that are tried. Finding the best place of all is NP-complete.
const ORDERS: [Key; 4] = [
    |tile| (u64::MAX - tile.bytes, tile.first as u64),
    |tile| (u64::MAX - tile.bytes * span(tile), u64::MAX - tile.bytes),
    |tile| (u64::MAX - span(tile), u64::MAX - tile.bytes),
    |tile| (tile.first as u64, u64::MAX - tile.bytes),
];

fn span(tile: &Lifetime) -> u64 {
    (tile.last - tile.first) as u64 + 1
}

/// Places tiles at multiples of `align` such that those in use in one phase lie apart: by first fit,
/// in the best of four orders. Quadratic in the number of tiles.
pub fn storage(tiles: &[Lifetime], align: u64) -> Storage {
    let least = tiles
        .iter()
        .map(|tile| {
            let together = tiles.iter().filter(|other| overlap(other, tile.first));
            together.map(|other| other.bytes.next_multiple_of(align)).sum()
        })
        .max()
        .unwrap_or(0);
    let placed = ORDERS.map(|key| first_fit(tiles, align, key));
    let best = placed.into_iter().min_by_key(|(_, bytes)| *bytes);
    let (offsets, bytes) = best.unwrap_or_default();
    Storage { offsets, bytes, least }
}

fn overlap(tile: &Lifetime, phase: usize) -> bool {
    (tile.first..=tile.last).contains(&phase)
}

fn first_fit(tiles: &[Lifetime], align: u64, key: Key) -> (Vec<u64>, u64) {
    let mut order: Vec<usize> = (0..tiles.len()).collect();
    order.sort_by_key(|&tile| key(&tiles[tile]));
    let mut offsets = vec![0; tiles.len()];
    let mut end = 0;
    for (at, &number) in order.iter().enumerate() {
        let tile = &tiles[number];
        let mut taken: Vec<(u64, u64)> = order[..at]
            .iter()
            .filter(|&&other| tiles[other].first <= tile.last && tile.first <= tiles[other].last)
            .map(|&other| (offsets[other], offsets[other] + tiles[other].bytes))
            .collect();
        taken.sort_unstable();
        let mut offset = 0;
        for (from, to) in taken {
            if offset + tile.bytes > from {
                offset = offset.max(to.next_multiple_of(align));
            }
        }
        offsets[number] = offset;
        end = end.max((offset + tile.bytes).next_multiple_of(align));
    }
    (offsets, end)
}
