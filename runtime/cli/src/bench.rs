//! Timing: how long to measure, and what the samples say.

use crate::noise::{self, Noise};
use std::time::{Duration, Instant};

/// Without a stated number of iterations, measuring stops early once it has taken this many times as long as
/// asked for, and [`FEWEST`] samples are there.
const PATIENCE: u32 = 3;
/// Samples that a slow model is measured with at least.
const FEWEST: usize = 3;
/// Rounds of each executor, so that a drift of the machine meets all of them alike.
const ROUNDS: u32 = 10;
/// Iterations where none are asked for.
const ITERATIONS: usize = 10;
/// Runs that must lie beyond a percentile, which is not known otherwise; the median always is.
const BEYOND: f64 = 5.0;

/// How long to warm up and to measure.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Schedule {
    /// Runs before any is timed.
    pub(crate) warmup: Duration,
    /// Time to measure each executor for, at least.
    pub(crate) duration: Duration,
    /// Timed runs of each executor, at least.
    pub(crate) iterations: Option<usize>,
}

/// Times of single runs, in their order.
#[derive(Clone, Debug, Default)]
pub(crate) struct Samples(Vec<Duration>);

/// What samples say.
#[derive(Clone, Debug)]
pub(crate) struct Statistics {
    /// Timed runs.
    pub(crate) runs: usize,
    /// The middle run.
    pub(crate) median: Duration,
    /// The mean.
    pub(crate) mean: Duration,
    /// The fastest run.
    pub(crate) min: Duration,
    /// The slowest run.
    pub(crate) max: Duration,
    /// The percentiles asked for, where there are enough runs to know them.
    pub(crate) percentiles: Vec<(f64, Option<Duration>)>,
    /// How steady they are, where there are enough runs to know it.
    pub(crate) noise: Option<Noise>,
}

impl Samples {
    /// Samples of these runs.
    pub(crate) fn new(times: Vec<Duration>) -> Self {
        Self(times)
    }

    /// The number of runs.
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// Statistics with these percentiles, in percent; `None` without samples.
    pub(crate) fn statistics(&self, percentiles: &[f64]) -> Option<Statistics> {
        let mut sorted = self.0.clone();
        sorted.sort_unstable();
        let (&min, &max) = (sorted.first()?, sorted.last()?);
        let total: Duration = sorted.iter().sum();
        let known = |&percent: &f64| {
            let is_known = is_known(sorted.len(), percent);
            (percent, is_known.then(|| percentile(&sorted, percent)))
        };
        Some(Statistics {
            runs: sorted.len(),
            median: percentile(&sorted, 50.0),
            mean: total / u32::try_from(sorted.len()).unwrap_or(u32::MAX),
            min,
            max,
            percentiles: percentiles.iter().map(known).collect(),
            noise: noise::of(&self.0),
        })
    }
}

/// Whether enough of so many runs lie beyond a percentile, on the side of its tail.
fn is_known(runs: usize, percent: f64) -> bool {
    let tail = percent.min(100.0 - percent) / 100.0;
    // Nine tenths of 50 runs are a little more than 45 in floating point.
    percent == 50.0 || runs as f64 * tail >= BEYOND - 1e-6
}

/// The percentile of ascending samples, linear between neighbours.
fn percentile(sorted: &[Duration], percent: f64) -> Duration {
    let place = percent.clamp(0.0, 100.0) / 100.0 * (sorted.len() - 1) as f64;
    let (low, high) = (sorted[place.floor() as usize], sorted[place.ceil() as usize]);
    low + (high - low).mul_f64(place.fract())
}

/// Warms up, then measures runs of several subjects interleaved, in one order and then in the other; samples a subject,
/// in their order. After another subject's round, the first run of short ones is not timed: what it found in the caches
/// was the other's. It ends early where `stops` says so.
///
/// # Errors
/// The first that a run gives.
pub(crate) fn measure<E>(
    schedule: &Schedule,
    subjects: usize,
    stops: impl Fn() -> bool,
    mut run: impl FnMut(usize) -> Result<(), E>,
) -> Result<Vec<Samples>, E> {
    let mut samples = vec![Samples::default(); subjects];
    let mut last = vec![Duration::MAX; subjects];
    for (subject, last) in last.iter_mut().enumerate() {
        let start = Instant::now();
        while start.elapsed() < schedule.warmup && !stops() {
            *last = timed(&mut run, subject)?;
        }
    }
    let least = schedule.iterations.unwrap_or(ITERATIONS);
    let mut spent = vec![Duration::ZERO; subjects];
    for round in 1..=ROUNDS {
        let goal = schedule.duration * round / ROUNDS;
        let limit = schedule.duration * PATIENCE * round / ROUNDS;
        let runs = least.div_ceil(ROUNDS as usize) * round as usize;
        for place in 0..subjects {
            let subject = if round % 2 == 1 { place } else { subjects - 1 - place };
            let is_short = last[subject] < schedule.duration / ROUNDS / 10;
            if subjects > 1 && is_short && !stops() {
                run(subject)?;
            }
            loop {
                let done = samples[subject].len();
                let enough = spent[subject] >= goal && done >= runs.min(least);
                let slow = schedule.iterations.is_none()
                    && spent[subject] >= limit
                    && done >= FEWEST.min(round as usize);
                if (done > 0 && (enough || slow)) || stops() {
                    break;
                }
                last[subject] = timed(&mut run, subject)?;
                spent[subject] += last[subject];
                samples[subject].0.push(last[subject]);
            }
        }
    }
    Ok(samples)
}

/// What a run of a subject takes.
fn timed<E>(run: &mut impl FnMut(usize) -> Result<(), E>, subject: usize) -> Result<Duration, E> {
    let start = Instant::now();
    run(subject)?;
    Ok(start.elapsed())
}

#[cfg(test)]
mod tests {
    use super::{Samples, Schedule, is_known, measure};
    use std::cell::{Cell, RefCell};
    use std::convert::Infallible;
    use std::time::Duration;

    #[test]
    fn statistics_interpolate() {
        let samples = Samples((1..=101).rev().map(Duration::from_millis).collect());
        let statistics = samples.statistics(&[10.0, 50.0, 90.0]).unwrap();
        assert_eq!(statistics.median, Duration::from_millis(51));
        assert_eq!(statistics.mean, Duration::from_millis(51));
        let percentiles = statistics.percentiles.iter().map(|p| p.1.unwrap().as_micros());
        assert_eq!(percentiles.collect::<Vec<_>>(), [11_000, 51_000, 91_000]);
        let samples = Samples([4, 1, 3, 2].map(Duration::from_millis).to_vec());
        assert_eq!(samples.statistics(&[]).unwrap().median, Duration::from_micros(2500));
        assert!(Samples::default().statistics(&[50.0]).is_none());
    }

    #[test]
    fn percentiles_need_runs_beyond_them() {
        let rows = [(99.0, 500), (95.0, 100), (90.0, 50), (99.9, 5000), (10.0, 50), (50.0, 1)];
        for (percent, runs) in rows {
            assert!(is_known(runs, percent), "p{percent} of {runs}");
            assert!(runs == 1 || !is_known(runs - 1, percent), "p{percent} of {}", runs - 1);
        }
        assert!(!is_known(1_000_000, 100.0) && !is_known(1_000_000, 0.0));
        let samples = Samples(vec![Duration::from_millis(1); 3]);
        let statistics = samples.statistics(&[50.0, 99.0]).unwrap();
        assert_eq!(statistics.percentiles, [(50.0, Some(Duration::from_millis(1))), (99.0, None)]);
    }

    #[test]
    fn iterations_are_the_least_number_of_runs() {
        for iterations in [1, 3, 7, 10] {
            let schedule = Schedule {
                warmup: Duration::ZERO,
                duration: Duration::ZERO,
                iterations: Some(iterations),
            };
            let mut runs = [0; 2];
            let samples = measure(
                &schedule,
                2,
                || false,
                |subject| {
                    runs[subject] += 1;
                    Ok::<_, Infallible>(())
                },
            );
            let counts: Vec<_> = samples.unwrap().iter().map(Samples::len).collect();
            assert_eq!(counts, [iterations; 2]);
            assert_eq!(runs, [iterations; 2]);
        }
    }

    /// Neither has the first or the last round alone, nor pays for what the other left behind.
    #[test]
    fn subjects_are_interleaved() {
        let schedule = Schedule {
            warmup: Duration::from_millis(1),
            duration: Duration::from_millis(200),
            iterations: Some(1),
        };
        let ran = RefCell::new(Vec::new());
        let samples = measure(
            &schedule,
            2,
            || false,
            |subject| {
                std::thread::sleep(Duration::from_micros(100));
                ran.borrow_mut().push(subject);
                Ok::<_, Infallible>(())
            },
        );
        let mut order = ran.borrow().clone();
        order.dedup();
        // Warming up, and then ten rounds, of which every other one goes on with the same subject.
        assert_eq!(order, [0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0]);
        let timed: usize = samples.unwrap().iter().map(Samples::len).sum();
        assert!(ran.borrow().len() >= timed + 20, "{timed} of {} runs", ran.borrow().len());
    }

    #[test]
    fn measuring_stops_when_it_is_told_to() {
        let schedule = Schedule {
            warmup: Duration::ZERO,
            duration: Duration::from_secs(3600),
            iterations: None,
        };
        let runs = Cell::new(0);
        let samples = measure(
            &schedule,
            2,
            || runs.get() >= 7,
            |_| {
                runs.set(runs.get() + 1);
                Ok::<_, Infallible>(())
            },
        );
        let counts: Vec<_> = samples.unwrap().iter().map(Samples::len).collect();
        assert_eq!(counts, [7, 0]);
    }
}
