//! What is counted of a model's requests, as the statistics extension of the Open Inference Protocol gives it.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, SystemTime};

/// How often something happened, and how long it took in all.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counted {
    /// How often.
    pub count: u64,
    /// Nanoseconds in all.
    pub ns: u64,
}

/// What is counted of a version's requests since it was loaded.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Statistics {
    /// Requests answered, from their arrival on.
    pub success: Counted,
    /// Requests that failed.
    pub fail: Counted,
    /// Waiting for a context.
    pub queue: Counted,
    /// Putting inputs together.
    pub compute_input: Counted,
    /// The model.
    pub compute_infer: Counted,
    /// Cutting outputs apart.
    pub compute_output: Counted,
    /// Rows that ran.
    pub inferences: u64,
    /// Batches that ran.
    pub executions: u64,
    /// Positions of the batches that ran, padding included: rows times their length.
    pub positions: u64,
    /// Positions of these that were padding.
    pub padding: u64,
    /// When the last request was answered, in milliseconds since 1970.
    pub last_ms: u64,
    /// Batches by their rows.
    pub batches: BTreeMap<usize, Batches>,
}

/// Batches of as many rows.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Batches {
    /// Putting inputs together.
    pub compute_input: Counted,
    /// The model.
    pub compute_infer: Counted,
    /// Cutting outputs apart.
    pub compute_output: Counted,
}

/// The time of a batch's parts.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Spent {
    pub(crate) input: Duration,
    pub(crate) infer: Duration,
    pub(crate) output: Duration,
}

impl Counted {
    fn add(&mut self, count: u64, time: Duration) {
        self.count += count;
        self.ns += u64::try_from(time.as_nanos()).unwrap_or(u64::MAX) * count;
    }
}

/// The counters of a version.
#[derive(Debug, Default)]
pub(crate) struct Counters(Mutex<Statistics>);

impl Counters {
    /// What was counted so far.
    pub(crate) fn snapshot(&self) -> Statistics {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn change(&self, change: impl FnOnce(&mut Statistics)) {
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// Counts a batch of requests that ran.
    /// Positions are those that ran, and of these the padding.
    pub(crate) fn batch(
        &self,
        requests: usize,
        rows: usize,
        positions: (usize, usize),
        spent: Spent,
    ) {
        self.change(|all| {
            let requests = requests as u64;
            all.compute_input.add(requests, spent.input);
            all.compute_infer.add(requests, spent.infer);
            all.compute_output.add(requests, spent.output);
            all.inferences += rows as u64;
            all.executions += 1;
            all.positions += positions.0 as u64;
            all.padding += positions.1 as u64;
            let batches = all.batches.entry(rows).or_default();
            batches.compute_input.add(1, spent.input);
            batches.compute_infer.add(1, spent.infer);
            batches.compute_output.add(1, spent.output);
        });
    }

    /// Counts a request that is answered.
    pub(crate) fn answered(&self, queued: Duration, whole: Duration) {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        self.change(|all| {
            all.queue.add(1, queued);
            all.success.add(1, whole);
            all.last_ms = u64::try_from(now.as_millis()).unwrap_or(u64::MAX);
        });
    }

    /// Counts a request that failed.
    pub(crate) fn failed(&self, whole: Duration) {
        self.change(|all| all.fail.add(1, whole));
    }
}
