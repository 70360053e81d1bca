//! Requests that wait for a lane.

use super::lane::Finished;
use super::layout::{Layout, Measure};
use crate::error::{Error, Result};
use crate::infer::{InferRequest, Ran};
use graphene_runtime::{Model, Tensor};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::oneshot;

/// A request on its way through a lane.
pub(super) struct Job {
    id: String,
    /// In the order of the model's inputs.
    inputs: Vec<Tensor>,
    /// Absent where it has to run alone.
    measure: Option<Measure>,
    deadline: Option<Instant>,
    arrived: Instant,
    answer: oneshot::Sender<Result<Finished>>,
}

/// The place where an answer arrives, and what of the batch's outputs it is.
pub(super) struct Answer {
    pub(super) finished: oneshot::Receiver<Result<Finished>>,
    /// The model's outputs that are asked for.
    pub(super) outputs: Vec<usize>,
    pub(super) measure: Option<Measure>,
}

impl Job {
    /// A job for a request of the model's.
    ///
    /// # Errors
    /// [`Error::Malformed`] for names that are not the model's, or a type that isn't an input's.
    pub(super) fn new(
        model: &Model,
        layout: &Layout,
        request: InferRequest,
    ) -> Result<(Self, Answer)> {
        let InferRequest { id, inputs, outputs, deadline, protocol: _ } = request;
        let inputs = in_order(model, inputs)?;
        let place = |name: &String| {
            let known = || model.outputs().iter().map(graphene_runtime::Port::name);
            known().position(|known| known == name).ok_or_else(|| {
                let known: Vec<_> = known().collect();
                Error::malformed(format!(
                    "the model has no output {name:?}; it has {}",
                    known.join(", ")
                ))
            })
        };
        let outputs = match outputs.is_empty() {
            true => (0..model.outputs().len()).collect(),
            false => outputs.iter().map(place).collect::<Result<_>>()?,
        };
        let shapes: Vec<&[usize]> = inputs.iter().map(Tensor::shape).collect();
        let measure = layout.measure(&shapes);
        let (answer, finished) = oneshot::channel();
        let arrived = Instant::now();
        let answered = Answer { finished, outputs, measure: measure.clone() };
        Ok((Self { id, inputs, measure, deadline, arrived, answer }, answered))
    }

    pub(super) fn id(&self) -> &str {
        &self.id
    }

    pub(super) fn inputs(&self) -> &[Tensor] {
        &self.inputs
    }

    pub(super) fn measure(&self) -> Option<&Measure> {
        self.measure.as_ref()
    }

    /// Rows along the batch dim, one where there is none.
    pub(super) fn rows(&self) -> usize {
        self.measure.as_ref().map_or(1, |measure| measure.rows)
    }

    /// Rows times length.
    pub(super) fn positions(&self) -> usize {
        self.measure.as_ref().map_or(1, |measure| measure.rows * measure.length)
    }

    /// The same with another number of rows than its inputs have.
    #[cfg(test)]
    pub(super) fn with_rows(mut self, rows: usize) -> Self {
        if let Some(measure) = &mut self.measure {
            measure.rows = rows;
        }
        self
    }

    /// Bytes of its inputs.
    fn bytes(&self) -> usize {
        self.inputs.iter().map(|input| input.bytes().len()).sum()
    }

    /// Whether nobody waits for its answer any more.
    pub(super) fn is_left(&self, now: Instant) -> bool {
        self.answer.is_closed() || self.deadline.is_some_and(|at| at <= now)
    }

    /// Whether its deadline has passed.
    pub(super) fn is_late(&self, now: Instant) -> bool {
        self.deadline.is_some_and(|at| at <= now)
    }

    /// Answers it. `began` is when its batch did.
    pub(super) fn settle(self, answer: Result<Finished>, began: Instant, computed: Duration) {
        let queued = began.saturating_duration_since(self.arrived);
        let answer = answer
            .map(|finished| Finished { ran: Ran { queued, computed, ..finished.ran }, ..finished });
        // Whoever left does not hear it.
        let _ = self.answer.send(answer);
    }
}

/// Inputs by name in the order of the model's.
fn in_order(model: &Model, inputs: Vec<(String, Tensor)>) -> Result<Vec<Tensor>> {
    let ports = model.inputs();
    let mut places: Vec<Option<Tensor>> = vec![None; ports.len()];
    for (name, tensor) in inputs {
        let Some(place) = ports.iter().position(|port| port.name() == name) else {
            let known: Vec<_> = ports.iter().map(graphene_runtime::Port::name).collect();
            let known = known.join(", ");
            return Err(Error::malformed(format!(
                "the model has no input {name:?}; it has {known}"
            )));
        };
        let (found, wanted) = (tensor.dtype(), ports[place].dtype());
        if found != wanted {
            return Err(Error::malformed(format!(
                "input {name:?} is {found}; it has to be {wanted}"
            )));
        }
        if places[place].replace(tensor).is_some() {
            return Err(Error::malformed(format!("input {name:?} is given twice")));
        }
    }
    let missing = |(port, place): (&graphene_runtime::Port, Option<Tensor>)| {
        place
            .ok_or_else(|| Error::malformed(format!("input {:?} ({port}) is missing", port.name())))
    };
    ports.iter().zip(places).map(missing).collect()
}

/// Requests that wait, in the order in which they came.
pub(super) struct Queue {
    jobs: Mutex<Waiting>,
    wake: Condvar,
    /// How many there are, for those who only look.
    count: AtomicUsize,
    /// How many there may be.
    limit: usize,
    /// Bytes of inputs that there may be.
    bytes: u64,
}

#[derive(Default)]
struct Waiting {
    jobs: VecDeque<Job>,
    bytes: u64,
    closed: bool,
}

impl Queue {
    pub(super) fn new(limit: usize, bytes: u64) -> Self {
        let jobs = Mutex::default();
        Self { jobs, wake: Condvar::new(), count: AtomicUsize::new(0), limit, bytes }
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many wait.
    pub(super) fn waiting(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }

    /// Puts a job last, or gives the number of those that wait where that is as many as may.
    pub(super) fn push(&self, job: Job) -> std::result::Result<(), usize> {
        let mut waiting = self.lock();
        let bytes = waiting.bytes.saturating_add(job.bytes() as u64);
        if waiting.jobs.len() >= self.limit || (bytes > self.bytes && !waiting.jobs.is_empty()) {
            // Those who left free capacity for those who come.
            self.sweep(&mut waiting);
        }
        let bytes = waiting.bytes.saturating_add(job.bytes() as u64);
        if waiting.jobs.len() >= self.limit || (bytes > self.bytes && !waiting.jobs.is_empty()) {
            return Err(waiting.jobs.len());
        }
        waiting.bytes = bytes;
        waiting.jobs.push_back(job);
        self.count.store(waiting.jobs.len(), Ordering::Relaxed);
        drop(waiting);
        self.wake.notify_one();
        Ok(())
    }

    /// Lets go of those whom nobody waits for.
    fn sweep(&self, waiting: &mut Waiting) {
        let now = Instant::now();
        waiting.jobs.retain(|job| !job.is_left(now));
        waiting.bytes = waiting.jobs.iter().map(|job| job.bytes() as u64).sum();
        self.count.store(waiting.jobs.len(), Ordering::Relaxed);
    }

    /// Waits for jobs, and takes those at the places that `choose` gives, in ascending order; none once it is closed.
    pub(super) fn take(&self, choose: impl Fn(&VecDeque<Job>) -> Vec<usize>) -> Option<Vec<Job>> {
        let mut waiting = self.lock();
        loop {
            self.sweep(&mut waiting);
            if !waiting.jobs.is_empty() {
                break;
            }
            if waiting.closed {
                return None;
            }
            waiting = self.wake.wait(waiting).unwrap_or_else(PoisonError::into_inner);
        }
        let places = choose(&waiting.jobs);
        let mut taken = Vec::with_capacity(places.len());
        for place in places.into_iter().rev() {
            taken.extend(waiting.jobs.remove(place));
        }
        taken.reverse();
        waiting.bytes -= taken.iter().map(|job| job.bytes() as u64).sum::<u64>();
        self.count.store(waiting.jobs.len(), Ordering::Relaxed);
        if !waiting.jobs.is_empty() {
            drop(waiting);
            self.wake.notify_one();
        }
        Some(taken)
    }

    /// Takes no more jobs; those that wait are answered still.
    pub(super) fn close(&self) {
        self.lock().closed = true;
        self.wake.notify_all();
    }
}
