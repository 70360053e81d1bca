//! How long batches take, as far as earlier ones tell.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// The weight of what was known beside a new run's.
const MEMORY: f64 = 0.98;

/// A batch is long enough once the rate of a longer one is at most this part higher.
const GAIN: f64 = 0.05;

/// The time of a batch as a line over its positions: what every batch costs, and what a position adds. Fitted to the runs
/// so far, the latest counting most.
#[derive(Debug, Default)]
pub(super) struct Pace(Mutex<Sums>);

/// Sums over runs of positions `x` and seconds `y`.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
struct Sums {
    n: f64,
    x: f64,
    y: f64,
    xx: f64,
    xy: f64,
}

impl Pace {
    /// Takes note of a run.
    pub(super) fn note(&self, positions: usize, took: Duration) {
        let (x, y) = (positions as f64, took.as_secs_f64());
        let mut sums = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        *sums = Sums {
            n: sums.n * MEMORY + 1.0,
            x: sums.x * MEMORY + x,
            y: sums.y * MEMORY + y,
            xx: sums.xx * MEMORY + x * x,
            xy: sums.xy * MEMORY + x * y,
        };
    }

    fn sums(&self) -> Sums {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The time that a batch of so many positions is expected to take; nothing before the first run.
    pub(super) fn expected(&self, positions: usize) -> Option<Duration> {
        let sums = self.sums();
        let (fixed, each) = sums.line()?;
        Duration::try_from_secs_f64(fixed + each * positions as f64).ok()
    }

    /// The positions beyond which a batch gains little and keeps those waiting who come next. No bound where it isn't
    /// known yet what a position adds.
    pub(super) fn enough(&self) -> usize {
        match self.sums().line() {
            Some((fixed, each)) if each > 0.0 => (fixed / (GAIN * each)) as usize,
            _ => usize::MAX,
        }
    }
}

impl Sums {
    /// Seconds of every batch, and of each position; nothing before the first run. Both are at least zero.
    fn line(self) -> Option<(f64, f64)> {
        if self.n == 0.0 {
            return None;
        }
        let (x, y) = (self.x / self.n, self.y / self.n);
        let spread = self.xx / self.n - x * x;
        // Runs of one size say nothing of others.
        if spread <= 1e-3 * x * x {
            return Some((y, 0.0));
        }
        let each = ((self.xy / self.n - x * y) / spread).max(0.0);
        let fixed = (y - each * x).max(0.0);
        // A line that begins below zero goes through it.
        let each = if fixed == 0.0 { y / x } else { each };
        Some((fixed, each))
    }
}

#[cfg(test)]
mod tests {
    use super::Pace;
    use std::time::Duration;

    fn pace(runs: &[(usize, u64)]) -> Pace {
        let pace = Pace::default();
        runs.iter().for_each(|&(positions, us)| pace.note(positions, Duration::from_micros(us)));
        pace
    }

    #[test]
    fn batches_are_as_long_as_they_gain() {
        assert_eq!(pace(&[]).expected(1), None);
        assert_eq!(pace(&[]).enough(), usize::MAX);
        // Runs of one size: nothing is known of longer ones.
        assert_eq!(pace(&[(16, 500), (16, 500)]).enough(), usize::MAX);
        // Twice as long takes as long: longer is better.
        assert_eq!(pace(&[(16, 500), (32, 500)]).enough(), usize::MAX);
        // 100 us for all, 10 us for each: 200 positions have 0.95 of the best rate.
        let affine = pace(&[(10, 200), (90, 1000), (40, 500)]);
        assert!((199..=201).contains(&affine.enough()), "{}", affine.enough());
        let expected = affine.expected(100).expect("it is known");
        assert!(expected.abs_diff(Duration::from_micros(1100)) < Duration::from_micros(2));
        // Twice as long takes twice as long, or longer: a batch gains nothing.
        assert_eq!(pace(&[(16, 100), (32, 200)]).enough(), 0);
        assert_eq!(pace(&[(16, 100), (32, 300)]).enough(), 0);
    }
}
