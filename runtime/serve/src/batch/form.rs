//! Which requests run together.

use super::layout::Layout;
use super::queue::Job;
use crate::config::BatchConfig;
use std::collections::VecDeque;

/// What a batch may be at most.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Caps {
    /// Rows.
    pub(super) rows: usize,
    /// Rows times the longest request's length.
    pub(super) tokens: usize,
    /// The part of positions that may be padding.
    pub(super) padding: f64,
    /// Lengths are rounded up to a multiple of it.
    pub(super) multiple: usize,
    /// Whether rows are rounded up to sizes that come again.
    pub(super) round_rows: bool,
}

impl Caps {
    pub(super) fn new(config: &BatchConfig, layout: &Layout, on_gpu: bool) -> Self {
        let usual = if on_gpu { 16 } else { 1 };
        let multiple = config.multiple.unwrap_or(usual).max(1);
        let multiple = if layout.padded() { multiple } else { 1 };
        Self {
            rows: config.rows.max(1),
            tokens: config.tokens.max(1),
            padding: config.padding.clamp(0.0, 1.0),
            multiple,
            round_rows: multiple > 1,
        }
    }

    /// The length at which requests of this one run: up to eight times the multiple one of its multiples, then of an
    /// eighth to a quarter of their power of two.
    pub(super) fn length(&self, length: usize) -> usize {
        let step = (length.next_power_of_two() / 8).max(self.multiple);
        if self.multiple == 1 { length } else { length.next_multiple_of(step) }
    }

    /// The rows at which a batch of these runs.
    pub(super) fn batch_rows(&self, rows: usize) -> usize {
        if !self.round_rows || rows > self.rows {
            return rows;
        }
        let up = SIZES.iter().copied().find(|&size| size >= rows);
        up.unwrap_or(rows.next_multiple_of(32)).min(self.rows.max(rows))
    }

    /// The rows that a batch of so many has best: fewer, where those of the next size would be padding for too large a
    /// part.
    fn best_rows(&self, rows: usize) -> usize {
        let up = self.batch_rows(rows);
        let down = SIZES.iter().copied().filter(|&size| size <= rows).max().unwrap_or(rows);
        let is_much = (up - rows) as f64 > self.padding * up as f64;
        if is_much { down } else { rows }
    }

    /// Sizes that batches mostly have, of rows and of lengths up to this one.
    pub(super) fn usual(&self, longest: usize) -> Vec<(usize, usize)> {
        let mut all = Vec::new();
        let mut length = self.length(1);
        while length <= longest {
            let rows =
                SIZES.iter().filter(|&&rows| rows <= self.rows && rows * length <= self.tokens);
            all.extend(rows.map(|&rows| (rows, length)));
            length = self.length(length + 1);
        }
        all
    }
}

/// Rows to which batches are padded where shapes are dear.
const SIZES: [usize; 13] = [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 40, 48, 64];

/// What is looked at of a request to choose a batch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Candidate {
    place: usize,
    rows: usize,
    length: usize,
}

/// The places of the jobs that run together, in ascending order: the first one, and of those with the same other sizes
/// the ones of nearest length, as long as rows, positions and padding are within the caps.
pub(super) fn choose(waiting: &VecDeque<Job>, caps: &Caps) -> Vec<usize> {
    let Some(measure) = waiting.front().and_then(Job::measure) else { return vec![0] };
    let candidate = |(place, job): (usize, &Job)| {
        let own = job.measure()?;
        let fits = own.others == measure.others;
        fits.then_some(Candidate { place, rows: own.rows, length: own.length })
    };
    let mut all: Vec<Candidate> = waiting.iter().enumerate().filter_map(candidate).collect();
    all.sort_by_key(|candidate| (candidate.length, candidate.place));
    let mut kept = window(&all, caps);
    let mut rows: usize = all[kept.clone()].iter().map(|candidate| candidate.rows).sum();
    let best = caps.best_rows(rows);
    // The first one stays; those of the most different lengths wait for the next batch.
    while rows > best && kept.len() > 1 {
        let (shortest, longest) = (all[kept.start], all[kept.end - 1]);
        let far = measure.length - shortest.length > longest.length - measure.length;
        let gone = if (far && shortest.place != 0) || longest.place == 0 {
            kept.start += 1;
            shortest
        } else {
            kept.end -= 1;
            longest
        };
        rows -= gone.rows;
    }
    let mut places: Vec<usize> = all[kept].iter().map(|candidate| candidate.place).collect();
    places.sort_unstable();
    places
}

/// The longest run around the first job of candidates sorted by length that grows by the nearer neighbour each time.
fn window(all: &[Candidate], caps: &Caps) -> std::ops::Range<usize> {
    let first = all.iter().position(|candidate| candidate.place == 0).unwrap_or(0);
    let mut range = first..first + 1;
    let (mut rows, mut real) = (all[first].rows, all[first].rows * all[first].length);
    loop {
        let longest = caps.length(all[range.end - 1].length);
        let fits = |more: &Candidate| {
            let (rows, length) = (rows + more.rows, longest.max(caps.length(more.length)));
            let positions = rows * length;
            let padding = positions - (real + more.rows * more.length);
            // What is padded to the same length anyhow costs nothing more.
            let same = caps.length(more.length) == longest;
            rows <= caps.rows
                && positions <= caps.tokens
                && (same || padding as f64 <= caps.padding * positions as f64)
        };
        let shorter = range.start.checked_sub(1).map(|place| &all[place]).filter(|more| fits(more));
        let longer = all.get(range.end).filter(|more| fits(more));
        let down = match (shorter, longer) {
            (None, None) => return range,
            (Some(_), None) => true,
            (None, Some(_)) => false,
            (Some(shorter), Some(longer)) => {
                all[first].length - shorter.length < longer.length - all[first].length
            }
        };
        let more = if down {
            range.start -= 1;
            all[range.start]
        } else {
            range.end += 1;
            all[range.end - 1]
        };
        rows += more.rows;
        real += more.rows * more.length;
    }
}

#[cfg(test)]
mod tests {
    use super::{Candidate, Caps, window};

    fn caps(rows: usize, tokens: usize, padding: f64) -> Caps {
        Caps { rows, tokens, padding, multiple: 1, round_rows: false }
    }

    /// The places that run together of requests of one row and these lengths, in the order in which they came.
    fn chosen(lengths: &[usize], caps: &Caps) -> Vec<usize> {
        let candidate = |(place, &length)| Candidate { place, rows: 1, length };
        let mut all: Vec<Candidate> = lengths.iter().enumerate().map(candidate).collect();
        all.sort_by_key(|candidate| (candidate.length, candidate.place));
        let mut places: Vec<usize> = all[window(&all, caps)].iter().map(|one| one.place).collect();
        places.sort_unstable();
        places
    }

    #[test]
    fn batches_are_of_near_lengths_within_their_caps() {
        let rows: &[(&[usize], Caps, &[usize])] = &[
            (&[16], caps(8, 1000, 0.1), &[0]),
            (&[16, 16, 16], caps(8, 1000, 0.0), &[0, 1, 2]),
            (&[16, 16, 16], caps(2, 1000, 0.0), &[0, 1]),
            (&[16, 16, 16], caps(8, 40, 0.0), &[0, 1]),
            // The one that came first is always among them, however few its like.
            (&[300, 16, 16, 16], caps(8, 10_000, 0.1), &[0]),
            (&[300, 16, 290, 16, 280], caps(8, 10_000, 0.1), &[0, 2, 4]),
            (&[16, 17, 300], caps(8, 10_000, 0.1), &[0, 1]),
            (&[16, 17, 300], caps(8, 10_000, 1.0), &[0, 1, 2]),
            // One that is too large runs alone.
            (&[500, 500], caps(8, 100, 1.0), &[0]),
        ];
        for (lengths, caps, expected) in rows {
            assert_eq!(chosen(lengths, caps), *expected, "{lengths:?} {caps:?}");
        }
    }

    #[test]
    fn sizes_that_come_again_are_few() {
        let caps = Caps { multiple: 16, round_rows: true, ..caps(64, 1 << 20, 0.1) };
        let sizes: std::collections::BTreeSet<usize> =
            (1..=64).map(|rows| caps.batch_rows(rows)).collect();
        assert_eq!(Vec::from_iter(sizes), super::SIZES);
        assert!((1..=64).all(|rows| caps.batch_rows(rows) >= rows));
        let lengths: std::collections::BTreeSet<usize> =
            (1..=512).map(|length| caps.length(length)).collect();
        let expected = [16, 32, 48, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320, 384, 448, 512];
        assert_eq!(Vec::from_iter(lengths), expected);
        assert_eq!(caps.usual(512).len(), 13 * 16);
        // 33 rows of 40 are more than a tenth of padding, 37 are not.
        assert_eq!([33, 37, 40, 64].map(|rows| caps.best_rows(rows)), [32, 37, 40, 64]);
        assert_eq!([1, 16, 17].map(|length| caps.length(length)), [16, 16, 32]);
        assert_eq!(caps.batch_rows(100), 100);
    }
}
