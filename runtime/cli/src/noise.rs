//! Whether times are steady enough to be compared.

use serde::Serialize;
use std::time::Duration;

/// Runs by which noise can be told.
const FEWEST: usize = 8;
/// More than this part of the median between the quartiles is noise.
const SPREAD: f64 = 0.10;
/// So is a median of the second half that differs from that of the first by more than this part.
const DRIFT: f64 = 0.05;

/// How steady the times of runs are, in the order in which they were taken.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub(crate) struct Noise {
    /// The distance between the quartiles, over the median.
    pub(crate) spread: f64,
    /// The median of the second half over that of the first, less one: below zero, runs became faster.
    pub(crate) drift: f64,
    /// Whether either is more than steady times have.
    pub(crate) noisy: bool,
}

/// The noise of times; `None` for too few.
pub(crate) fn of(times: &[Duration]) -> Option<Noise> {
    if times.len() < FEWEST {
        return None;
    }
    let seconds: Vec<f64> = times.iter().map(Duration::as_secs_f64).collect();
    let quantile = |seconds: &[f64], place: f64| {
        let mut sorted = seconds.to_vec();
        sorted.sort_by(f64::total_cmp);
        sorted[((sorted.len() - 1) as f64 * place).round() as usize]
    };
    let median = quantile(&seconds, 0.5).max(1e-12);
    let spread = (quantile(&seconds, 0.75) - quantile(&seconds, 0.25)) / median;
    let (first, second) = seconds.split_at(seconds.len() / 2);
    let drift = quantile(second, 0.5) / quantile(first, 0.5).max(1e-12) - 1.0;
    Some(Noise { spread, drift, noisy: spread > SPREAD || drift.abs() > DRIFT })
}

impl Noise {
    /// What to say of noisy times.
    pub(crate) fn said(&self) -> Option<String> {
        if !self.noisy {
            return None;
        }
        let Self { spread, drift, .. } = self;
        let spread = format!(
            "the middle half of the runs spreads over {:.0} % of the median",
            spread * 100.0
        );
        let slower = if *drift > 0.0 { "slower" } else { "faster" };
        Some(match drift.abs() > DRIFT {
            true => format!("{spread}, and later runs were {:.0} % {slower}", drift.abs() * 100.0),
            false => spread,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::of;
    use std::time::Duration;

    fn times(micros: impl IntoIterator<Item = u64>) -> Vec<Duration> {
        micros.into_iter().map(Duration::from_micros).collect()
    }

    #[test]
    fn steady_times_are_not_noisy() {
        // Some outliers say nothing of the others.
        let steady = times((0..100).map(|i| if i % 10 == 9 { 5000 } else { 1000 + i % 7 }));
        let noise = of(&steady).unwrap();
        assert!(!noise.noisy && noise.said().is_none(), "{noise:?}");
        assert!(noise.spread < 0.01 && noise.drift.abs() < 0.01, "{noise:?}");
    }

    #[test]
    fn spread_and_drift_are_noise() {
        let wide = of(&times((0..100).map(|i| 1000 + 400 * (i % 2)))).unwrap();
        assert!(wide.noisy && (wide.spread - 0.4 / 1.4).abs() < 1e-9, "{wide:?}");
        let said = wide.said().unwrap();
        assert_eq!(said, "the middle half of the runs spreads over 29 % of the median");
        let slower = of(&times((0..100).map(|i| if i < 50 { 1000 } else { 1080 }))).unwrap();
        assert!(slower.noisy && (slower.drift - 0.08).abs() < 1e-9, "{slower:?}");
        assert!(slower.said().unwrap().ends_with("and later runs were 8 % slower"), "{slower:?}");
        let faster = of(&times((0..100).map(|i| if i < 50 { 1000 } else { 900 }))).unwrap();
        assert!(faster.said().unwrap().ends_with("and later runs were 10 % faster"), "{faster:?}");
    }

    #[test]
    fn few_times_tell_nothing() {
        assert_eq!(of(&times([1, 1000, 1, 1000, 1, 1000, 1])), None);
        assert_eq!(of(&[]), None);
    }
}
