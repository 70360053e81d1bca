//! Timing: how long to measure, and what the samples say.

use std::time::{Duration, Instant};

/// Without a stated number of iterations, measuring stops early once it has taken this many times as long as
/// asked for, and [`FEWEST`] samples are there.
const PATIENCE: u32 = 3;
/// Samples that a slow model is measured with at least.
const FEWEST: usize = 3;
/// Rounds over the executors, so that a drift of the machine meets all of them alike.
const ROUNDS: u32 = 5;
/// Iterations where none are asked for.
const ITERATIONS: usize = 10;

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

/// Times of single runs.
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
    /// The percentiles asked for.
    pub(crate) percentiles: Vec<(f64, Duration)>,
}

impl Samples {
    /// Samples of one run.
    pub(crate) fn once(time: Duration) -> Self {
        Self(vec![time])
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
        Some(Statistics {
            runs: sorted.len(),
            median: percentile(&sorted, 50.0),
            mean: total / u32::try_from(sorted.len()).unwrap_or(u32::MAX),
            min,
            max,
            percentiles: percentiles.iter().map(|&p| (p, percentile(&sorted, p))).collect(),
        })
    }
}

/// The percentile of ascending samples, linear between neighbours.
fn percentile(sorted: &[Duration], percent: f64) -> Duration {
    let place = percent.clamp(0.0, 100.0) / 100.0 * (sorted.len() - 1) as f64;
    let (low, high) = (sorted[place.floor() as usize], sorted[place.ceil() as usize]);
    low + (high - low).mul_f64(place.fract())
}

/// Warms up, then measures runs of several subjects by turns; samples a subject, in their order.
///
/// # Errors
/// The first that a run gives.
pub(crate) fn measure<E>(
    schedule: &Schedule,
    subjects: usize,
    mut run: impl FnMut(usize) -> Result<(), E>,
) -> Result<Vec<Samples>, E> {
    for subject in 0..subjects {
        let start = Instant::now();
        while start.elapsed() < schedule.warmup {
            run(subject)?;
        }
    }
    let mut samples = vec![Samples::default(); subjects];
    let least = schedule.iterations.unwrap_or(ITERATIONS);
    let mut spent = vec![Duration::ZERO; subjects];
    for round in 1..=ROUNDS {
        for subject in 0..subjects {
            let goal = schedule.duration * round / ROUNDS;
            let runs = least.div_ceil(ROUNDS as usize) * round as usize;
            let limit = schedule.duration * PATIENCE * round / ROUNDS;
            loop {
                let done = samples[subject].len();
                let enough = spent[subject] >= goal && done >= runs.min(least);
                let slow = schedule.iterations.is_none()
                    && spent[subject] >= limit
                    && done >= FEWEST.min(round as usize);
                if done > 0 && (enough || slow) {
                    break;
                }
                let start = Instant::now();
                run(subject)?;
                let time = start.elapsed();
                spent[subject] += time;
                samples[subject].0.push(time);
            }
        }
    }
    Ok(samples)
}

#[cfg(test)]
mod tests {
    use super::{Samples, Schedule, measure};
    use std::convert::Infallible;
    use std::time::Duration;

    #[test]
    fn statistics_interpolate() {
        let samples = Samples([4, 1, 3, 2].map(Duration::from_millis).to_vec());
        let statistics = samples.statistics(&[0.0, 90.0, 100.0]).unwrap();
        assert_eq!(statistics.median, Duration::from_micros(2500));
        assert_eq!(statistics.mean, Duration::from_micros(2500));
        let percentiles: Vec<_> = statistics.percentiles.iter().map(|p| p.1.as_micros()).collect();
        assert_eq!(percentiles, [1000, 3700, 4000]);
        assert!(Samples::default().statistics(&[50.0]).is_none());
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
            let samples = measure(&schedule, 2, |subject| {
                runs[subject] += 1;
                Ok::<_, Infallible>(())
            });
            let counts: Vec<_> = samples.unwrap().iter().map(Samples::len).collect();
            assert_eq!(counts, [iterations; 2]);
            assert_eq!(runs, [iterations; 2]);
        }
    }
}
