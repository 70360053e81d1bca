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

    /// The length at which requests of this one run.
    pub(super) fn length(&self, length: usize) -> usize {
        length.next_multiple_of(self.multiple)
    }

    /// The rows at which a batch of these runs: up to 8 as they are, then multiples of an eighth to a quarter of their
    /// power of two, so that a twelfth is padding on average.
    pub(super) fn batch_rows(&self, rows: usize) -> usize {
        if !self.round_rows || rows <= 8 || rows > self.rows {
            return rows;
        }
        let step = (rows.next_power_of_two() / 8).max(1);
        rows.next_multiple_of(step).min(self.rows.max(rows))
    }
}

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
    let window = window(&all, caps);
    let mut places: Vec<usize> = all[window].iter().map(|candidate| candidate.place).collect();
    places.sort_unstable();
    places
}

/// The longest run around the first job of candidates sorted by length that grows by the nearer neighbour each time.
fn window(all: &[Candidate], caps: &Caps) -> std::ops::Range<usize> {
    let first = all.iter().position(|candidate| candidate.place == 0).unwrap_or(0);
    let mut range = first..first + 1;
    let (mut rows, mut real) = (all[first].rows, all[first].rows * all[first].length);
    loop {
        let longest = all[range.end - 1].length;
        let fits = |more: &Candidate| {
            let (rows, longest) = (rows + more.rows, longest.max(more.length));
            let positions = rows * longest;
            let padding = positions - (real + more.rows * more.length);
            rows <= caps.rows
                && positions <= caps.tokens
                && padding as f64 <= caps.padding * positions as f64
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
        assert_eq!(
            Vec::from_iter(sizes),
            [1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 28, 32, 40, 48, 56, 64]
        );
        assert!((1..=64).all(|rows| caps.batch_rows(rows) >= rows));
        assert_eq!([1, 16, 17].map(|length| caps.length(length)), [16, 16, 32]);
        assert_eq!(caps.batch_rows(100), 100);
    }
}
