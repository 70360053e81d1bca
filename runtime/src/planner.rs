//! The memory planner: lifetimes to byte offsets in one arena.
//!
//! Dynamic storage allocation is NP-hard, so several classical heuristics run and the best result is
//! kept: list placement (every interval in some order to the lowest or the tightest gap that no live
//! neighbour touches), a sweep over time with best fit, and, where none reaches the lower bound, a
//! bounded local search that moves the intervals at the top of the arena forward in the order. The
//! plan is a pure function of its input: no clock, no randomness beyond a fixed sequence.
//!
//! Reuse *in place* is the caller's decision: where an op may write over its operand, the caller
//! merges both values into one interval (the larger size, first step of the operand, last step of
//! the result) and gives both the offset planned for it.

use crate::error::{Error, Result};

/// Every offset is a multiple of this many bytes.
pub const ALIGNMENT: u64 = 256;

/// The largest number of conflicting pairs for which list placement runs; beyond it the sweep alone
/// decides, so that memory stays bounded for any input.
const MAX_CONFLICTS: usize = 4 << 20;

/// The number of placements (an interval against one neighbour) that the local search may spend.
const SEARCH_BUDGET: usize = 150_000;

/// A value that must live at one place from step `first` to step `last`, both included. A `last`
/// before `first` is read as `first`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Interval {
    /// Size in bytes.
    pub size: u64,
    /// The step that writes the value.
    pub first: usize,
    /// The last step that reads it.
    pub last: usize,
}

/// Which heuristic found a layout.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Heuristic {
    /// Sweep over the steps, best fit among the gaps.
    Sweep,
    /// Largest first.
    Size,
    /// Largest size × lifetime first.
    Area,
    /// Earliest first.
    Start,
    /// Longest lifetime first.
    Lifetime,
    /// Largest sum of conflicting sizes first.
    Conflict,
    /// Intervals of the steps that need most memory first.
    Hill,
    /// Local search from the best of the others.
    Search,
}

/// Where everything lies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layout {
    /// Byte offset of each interval, a multiple of [`ALIGNMENT`].
    pub offsets: Vec<u64>,
    /// Bytes the arena needs.
    pub total: u64,
    /// The largest sum of aligned sizes live at one step: no layout is smaller.
    pub lower_bound: u64,
    /// The heuristic that found this layout.
    pub heuristic: Heuristic,
}

/// How a gap is chosen.
#[derive(Clone, Copy)]
enum Fit {
    Lowest,
    Tightest,
}

/// Plans the arena for `intervals`.
///
/// # Errors
/// [`Error::TooLarge`] if the sum of the aligned sizes passes `u64::MAX`.
pub fn plan(intervals: &[Interval]) -> Result<Layout> {
    let blocks = blocks(intervals)?;
    let lower_bound = lower_bound(&blocks);
    let offsets = sweep(&blocks);
    let total = total(&blocks, &offsets);
    let mut best = Layout { offsets, total, lower_bound, heuristic: Heuristic::Sweep };
    if best.total == lower_bound {
        return Ok(best);
    }
    if let Some(conflicts) = Conflicts::of(&blocks) {
        improve_by_lists(&blocks, &conflicts, &mut best);
    }
    Ok(best)
}

/// An interval with its size aligned and its end exclusive.
#[derive(Clone, Copy)]
struct Block {
    size: u64,
    first: usize,
    last: usize,
}

fn blocks(intervals: &[Interval]) -> Result<Vec<Block>> {
    let too_large = || Error::TooLarge { what: "the arena" };
    let mut sum = 0u64;
    let mut blocks = Vec::with_capacity(intervals.len());
    for interval in intervals {
        let size = interval.size.checked_next_multiple_of(ALIGNMENT).ok_or_else(too_large)?;
        sum = sum.checked_add(size).ok_or_else(too_large)?;
        let last = interval.last.max(interval.first);
        blocks.push(Block { size, first: interval.first, last });
    }
    Ok(blocks)
}

fn total(blocks: &[Block], offsets: &[u64]) -> u64 {
    blocks.iter().zip(offsets).map(|(b, o)| b.size + o).max().unwrap_or(0)
}

/// The indices of the non-empty blocks by first step, and again by last step.
fn events(blocks: &[Block]) -> (Vec<usize>, Vec<usize>) {
    let mut starts: Vec<usize> = (0..blocks.len()).filter(|&i| blocks[i].size > 0).collect();
    let mut ends = starts.clone();
    starts.sort_by_key(|&i| blocks[i].first);
    ends.sort_by_key(|&i| blocks[i].last);
    (starts, ends)
}

fn lower_bound(blocks: &[Block]) -> u64 {
    let (starts, ends) = events(blocks);
    let (mut live, mut peak, mut ended) = (0u64, 0u64, 0usize);
    for &i in &starts {
        while blocks[ends[ended]].last < blocks[i].first {
            live -= blocks[ends[ended]].size;
            ended += 1;
        }
        live += blocks[i].size;
        peak = peak.max(live);
    }
    peak
}

/// Walks the steps once: frees what has ended, then places what begins, larger first, into the
/// tightest gap between the live blocks.
fn sweep(blocks: &[Block]) -> Vec<u64> {
    let (mut starts, _) = events(blocks);
    starts.sort_by_key(|&i| (blocks[i].first, std::cmp::Reverse(blocks[i].size), i));
    let mut offsets = vec![0u64; blocks.len()];
    let mut live: Vec<(u64, u64, usize)> = Vec::new();
    for &i in &starts {
        let block = blocks[i];
        live.retain(|&(_, _, last)| last >= block.first);
        let offset = gap(live.iter().map(|&(from, to, _)| (from, to)), block.size, Fit::Tightest);
        let at = live.partition_point(|&(from, _, _)| from < offset);
        live.insert(at, (offset, offset + block.size, block.last));
        offsets[i] = offset;
    }
    offsets
}

/// The offset of a gap of at least `size` bytes between `taken` ranges (sorted by start), or the end
/// of the last of them.
fn gap(taken: impl Iterator<Item = (u64, u64)>, size: u64, fit: Fit) -> u64 {
    let mut end = 0u64;
    let mut best: Option<(u64, u64)> = None;
    for (from, to) in taken {
        if from >= end && from - end >= size {
            match fit {
                Fit::Lowest => return end,
                Fit::Tightest => {
                    if best.is_none_or(|(width, _)| from - end < width) {
                        best = Some((from - end, end));
                    }
                }
            }
        }
        end = end.max(to);
    }
    best.map_or(end, |(_, offset)| offset)
}

/// For every block the blocks that live at the same time: the adjacency in one array.
struct Conflicts {
    starts: Vec<usize>,
    neighbours: Vec<u32>,
}

impl Conflicts {
    /// `None` where there are more than [`MAX_CONFLICTS`] pairs.
    fn of(blocks: &[Block]) -> Option<Self> {
        u32::try_from(blocks.len()).ok()?;
        let mut pairs: Vec<(u32, u32)> = Vec::new();
        let mut live: Vec<usize> = Vec::new();
        for &i in &events(blocks).0 {
            live.retain(|&j| blocks[j].last >= blocks[i].first);
            if pairs.len() + live.len() > MAX_CONFLICTS {
                return None;
            }
            pairs.extend(live.iter().map(|&j| (i as u32, j as u32)));
            live.push(i);
        }
        let mut starts = vec![0usize; blocks.len() + 1];
        for &(a, b) in &pairs {
            starts[a as usize + 1] += 1;
            starts[b as usize + 1] += 1;
        }
        for i in 1..starts.len() {
            starts[i] += starts[i - 1];
        }
        let mut next = starts.clone();
        let mut neighbours = vec![0u32; 2 * pairs.len()];
        for &(a, b) in &pairs {
            for (from, to) in [(a, b), (b, a)] {
                neighbours[next[from as usize]] = to;
                next[from as usize] += 1;
            }
        }
        Some(Self { starts, neighbours })
    }

    fn of_block(&self, i: usize) -> &[u32] {
        &self.neighbours[self.starts[i]..self.starts[i + 1]]
    }
}

/// Scratch space of list placement.
struct Placer<'a> {
    blocks: &'a [Block],
    conflicts: &'a Conflicts,
    offsets: Vec<u64>,
    placed: Vec<bool>,
    taken: Vec<(u64, u64)>,
}

impl<'a> Placer<'a> {
    fn new(blocks: &'a [Block], conflicts: &'a Conflicts) -> Self {
        let n = blocks.len();
        Self { blocks, conflicts, offsets: vec![0; n], placed: vec![false; n], taken: Vec::new() }
    }

    /// Places the blocks in `order` and returns the total; stops early, with `None`, once the total
    /// reaches `limit`.
    fn place(&mut self, order: &[usize], fit: Fit, limit: u64) -> Option<u64> {
        self.placed.fill(false);
        let mut total = 0u64;
        for &i in order {
            self.taken.clear();
            for &j in self.conflicts.of_block(i) {
                let j = j as usize;
                if self.placed[j] {
                    self.taken.push((self.offsets[j], self.offsets[j] + self.blocks[j].size));
                }
            }
            self.taken.sort_unstable();
            let size = self.blocks[i].size;
            let offset = gap(self.taken.iter().copied(), size, fit);
            total = total.max(offset + size);
            if total >= limit {
                return None;
            }
            self.offsets[i] = offset;
            self.placed[i] = true;
        }
        Some(total)
    }
}

/// One order of list placement: its name and the key that is placed first where it is largest.
type Row<'a> = (Heuristic, Box<dyn Fn(usize) -> u128 + 'a>);

fn improve_by_lists(blocks: &[Block], conflicts: &Conflicts, best: &mut Layout) {
    let lifetime = |i: usize| (blocks[i].last - blocks[i].first) as u128 + 1;
    let size = |i: usize| u128::from(blocks[i].size);
    let heights = heights(blocks);
    let weight = |i: usize| conflicts.of_block(i).iter().map(|&j| size(j as usize)).sum::<u128>();
    let weights: Vec<u128> = (0..blocks.len()).map(weight).collect();
    let rows: [Row<'_>; 6] = [
        (Heuristic::Size, Box::new(|i| size(i) << 32 | lifetime(i).min(u128::from(u32::MAX)))),
        (Heuristic::Area, Box::new(|i| size(i) * lifetime(i))),
        (Heuristic::Hill, Box::new(|i| u128::from(heights[i]) << 64 | size(i))),
        (Heuristic::Conflict, Box::new(|i| weights[i])),
        (Heuristic::Lifetime, Box::new(|i| lifetime(i) << 64 | size(i))),
        (Heuristic::Start, Box::new(|i| (u128::MAX >> 64) - blocks[i].first as u128)),
    ];
    let mut placer = Placer::new(blocks, conflicts);
    let mut best_order: Option<(Vec<usize>, Fit)> = None;
    for (heuristic, key) in rows {
        let mut order: Vec<usize> = (0..blocks.len()).filter(|&i| blocks[i].size > 0).collect();
        order.sort_by_cached_key(|&i| (std::cmp::Reverse(key(i)), blocks[i].first, i));
        for fit in [Fit::Lowest, Fit::Tightest] {
            if let Some(total) = placer.place(&order, fit, best.total) {
                best.total = total;
                best.offsets.copy_from_slice(&placer.offsets);
                best.heuristic = heuristic;
                best_order = Some((order.clone(), fit));
            }
            if best.total == best.lower_bound {
                return;
            }
        }
    }
    let (order, fit) = best_order.unwrap_or_else(|| {
        let mut order: Vec<usize> = (0..blocks.len()).filter(|&i| blocks[i].size > 0).collect();
        order.sort_by_key(|&i| (best.offsets[i], blocks[i].first, i));
        (order, Fit::Lowest)
    });
    search(&mut placer, order, fit, best);
}

/// For every block the most bytes live at any of its steps.
fn heights(blocks: &[Block]) -> Vec<u64> {
    let (starts, ends) = events(blocks);
    // Live bytes change only at starts, upward; the height of a block is the largest such level
    // at a start within its life, which a sparse table over the starts answers.
    let mut levels = Vec::with_capacity(starts.len());
    let (mut live, mut ended) = (0u64, 0usize);
    for &i in &starts {
        while blocks[ends[ended]].last < blocks[i].first {
            live -= blocks[ends[ended]].size;
            ended += 1;
        }
        live += blocks[i].size;
        levels.push(live);
    }
    let mut table = vec![levels];
    let mut width = 1;
    while 2 * width <= starts.len() {
        let row = &table[table.len() - 1];
        let next = (0..row.len() - width).map(|i| row[i].max(row[i + width])).collect();
        table.push(next);
        width *= 2;
    }
    let mut heights = vec![0u64; blocks.len()];
    for (at, &i) in starts.iter().enumerate() {
        let end = starts.partition_point(|&j| blocks[j].first <= blocks[i].last);
        let level = (end - at).ilog2() as usize;
        heights[i] = table[level][at].max(table[level][end - (1 << level)]);
    }
    heights
}

/// Moves a block that touches the top of the arena towards the front of the order, keeps what is
/// better, and stops at the bound or when the budget is spent. The choices follow a fixed sequence.
fn search(placer: &mut Placer<'_>, mut order: Vec<usize>, fit: Fit, best: &mut Layout) {
    let cost = placer.conflicts.neighbours.len() + order.len();
    let tries = (SEARCH_BUDGET / cost.max(1)).min(256);
    let mut state = 0x9E37_79B9_7F4A_7C15u64;
    let mut random = |below: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state % below.max(1) as u64) as usize
    };
    for _ in 0..tries {
        let tops: Vec<usize> = (0..order.len())
            .filter(|&p| best.offsets[order[p]] + placer.blocks[order[p]].size == best.total)
            .collect();
        let Some(&from) = tops.get(random(tops.len())) else { return };
        let mut candidate = order.clone();
        let moved = candidate.remove(from);
        candidate.insert(random(from + 1), moved);
        let (a, b) = (random(candidate.len()), random(candidate.len()));
        if random(2) == 1 {
            candidate.swap(a, b);
        }
        if let Some(total) = placer.place(&candidate, fit, best.total) {
            best.total = total;
            best.offsets.copy_from_slice(&placer.offsets);
            best.heuristic = Heuristic::Search;
            order = candidate;
        }
        if best.total == best.lower_bound {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{ALIGNMENT, Heuristic, Interval, plan};
    use crate::error::Error;

    fn random(state: &mut u64) -> u64 {
        *state ^= *state << 13;
        *state ^= *state >> 7;
        *state ^= *state << 17;
        *state
    }

    fn check_plan(intervals: &[Interval]) -> u64 {
        let layout = plan(intervals).unwrap();
        assert_eq!(layout, plan(intervals).unwrap());
        let bytes = |i: usize| intervals[i].size.next_multiple_of(ALIGNMENT);
        for i in 0..intervals.len() {
            assert_eq!(layout.offsets[i] % ALIGNMENT, 0);
            assert!(layout.offsets[i] + bytes(i) <= layout.total);
            for j in 0..i {
                let (a, b) = (intervals[i], intervals[j]);
                let live = a.first <= b.last && b.first <= a.last;
                let apart = layout.offsets[i] + bytes(i) <= layout.offsets[j]
                    || layout.offsets[j] + bytes(j) <= layout.offsets[i];
                assert!(!live || apart || a.size == 0 || b.size == 0, "{i} and {j} overlap");
            }
        }
        let steps = intervals.iter().flat_map(|x| [x.first, x.last]);
        let live = |t: usize| {
            let at = (0..intervals.len()).filter(|&i| intervals[i].first <= t);
            at.filter(|&i| t <= intervals[i].last).map(bytes).sum::<u64>()
        };
        assert_eq!(layout.lower_bound, steps.map(live).max().unwrap_or(0));
        assert!(layout.total >= layout.lower_bound);
        layout.total - layout.lower_bound
    }

    #[test]
    fn random_intervals_never_overlap() {
        let mut state = 7;
        for case in 0..300 {
            let n = (random(&mut state) % 40) as usize;
            let span = 1 + case % 30;
            let intervals: Vec<Interval> = (0..n)
                .map(|_| {
                    let first = (random(&mut state) % 50) as usize;
                    let last = first + (random(&mut state) % span) as usize;
                    Interval { size: random(&mut state) % 5000, first, last }
                })
                .collect();
            check_plan(&intervals);
        }
    }

    /// The intermediates of an encoder: per layer a few values, short lives, one residual.
    fn encoder(layers: usize) -> Vec<Interval> {
        let mut out = Vec::new();
        for layer in 0..layers {
            let t = layer * 24;
            let hidden = 1024 * 1024 * 4;
            for (size, first, last) in [
                (hidden, t, t + 8),
                (hidden, t + 1, t + 4),
                (hidden, t + 2, t + 4),
                (hidden, t + 3, t + 6),
                (16 * 128 * 128 * 32, t + 4, t + 5),
                (16 * 128 * 128 * 32, t + 5, t + 6),
                (hidden, t + 6, t + 7),
                (hidden, t + 7, t + 8),
                (hidden, t + 8, t + 9),
                (hidden, t + 9, t + 20),
                (4 * hidden, t + 10, t + 11),
                (4 * hidden, t + 11, t + 12),
                (hidden, t + 12, t + 13),
                (8192, t + 9, t + 10),
                (8192, t + 9, t + 10),
                (hidden, t + 13, t + 20),
                (hidden, t + 20, t + 24),
                (8192, t + 21, t + 22),
                (8192, t + 21, t + 23),
                (hidden / 3, t + 22, t + 24),
                (hidden / 5, t + 3, t + 22),
                (1000, t, t + 24),
                (0, t, t + 24),
                (77_777, t + 11, t + 21),
                (hidden / 7, t + 4, t + 12),
            ] {
                out.push(Interval { size, first, last });
            }
        }
        out
    }

    #[test]
    fn an_encoder_of_600_values_is_planned_near_the_bound_in_milliseconds() {
        let intervals = encoder(24);
        assert_eq!(intervals.len(), 600);
        let layout = plan(&intervals).unwrap();
        let excess = check_plan(&intervals);
        assert!(excess * 50 <= layout.lower_bound, "{excess} over {}", layout.lower_bound);
        let start = std::time::Instant::now();
        for _ in 0..10 {
            plan(&intervals).unwrap();
        }
        println!("{:?} {:?} excess {excess}", start.elapsed() / 10, layout.heuristic);
    }

    #[test]
    fn a_chain_takes_two_places() {
        let chain: Vec<Interval> =
            (0..100).map(|i| Interval { size: 300, first: i, last: i + 1 }).collect();
        assert_eq!(plan(&chain).unwrap().total, 1024);
    }

    #[test]
    fn best_of_several_beats_the_sweep() {
        // The sweep puts the second value above the first, and so breaks the space that the third
        // needs; placing the third first does not.
        let intervals = [(1, 0, 1), (1, 1, 3), (2, 2, 3)].map(|(size, first, last)| Interval {
            size: size * ALIGNMENT,
            first,
            last,
        });
        assert_eq!(check_plan(&intervals), 0);
        assert_ne!(plan(&intervals).unwrap().heuristic, Heuristic::Sweep);
    }

    #[test]
    fn extremes() {
        let empty = plan(&[]).unwrap();
        assert_eq!((empty.total, empty.heuristic), (0, Heuristic::Sweep));
        check_plan(&[Interval { size: 0, first: 3, last: 5 }]);
        check_plan(&[Interval { size: 9, first: 0, last: usize::MAX }; 3]);
        let backwards = plan(&[Interval { size: 9, first: 5, last: 1 }; 2]).unwrap();
        assert_eq!(backwards.total, 512);
        let huge = Interval { size: u64::MAX - 500, first: 0, last: 1 };
        assert_eq!(plan(&[huge, huge]), Err(Error::TooLarge { what: "the arena" }));
        let dense: Vec<Interval> =
            (0..5000).map(|i| Interval { size: i, first: 0, last: 9 }).collect();
        let layout = plan(&dense).unwrap();
        assert_eq!(layout.total, layout.lower_bound);
    }
}
