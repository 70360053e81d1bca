//! How requests run: rows of several of them together, where the plan proves that they are independent.
//!
//! A [`Batcher`] has as many lanes as its model has contexts, each a thread. A lane that is free takes the request that has
//! waited longest, and with it those that fit beside it: nothing waits for a batch to fill. `layout` knows along which axes
//! requests are put together and padded, `queue` holds those that wait, `pace` tells how
//! long batches take, `form` chooses the ones that run together, and `lane` runs them and cuts the outputs apart. A request that
//! finds a lane free and takes less time than a thread needs to wake runs where it is.

mod form;
mod lane;
mod layout;
mod pace;
mod queue;
mod region;

use crate::config::ModelConfig;
use crate::error::{Error, Result};
use crate::infer::{InferRequest, InferResponse};
use crate::limits::Limits;
use crate::statistics::Counters;
use form::Caps;
use graphene_runtime::Model;
use lane::Lane;
use layout::Layout;
use pace::Pace;
use queue::{Answer, Job, Queue};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// A request that is expected to take no longer runs on the thread that brings it.
const SHORT: Duration = Duration::from_micros(500);

/// Runs a model's requests.
pub(crate) struct Batcher(Arc<Shared>);

struct Shared {
    name: String,
    model: Model,
    layout: Layout,
    caps: Caps,
    queue: Queue,
    /// Rows that a request may have.
    rows: usize,
    lanes: Vec<Mutex<Lane>>,
    counters: Arc<Counters>,
    pace: Pace,
}

impl Batcher {
    /// Lanes for the model's requests.
    ///
    /// # Errors
    /// [`Error::Server`] if the system gives no threads.
    pub(crate) fn new(
        name: &str,
        model: &Model,
        config: &ModelConfig,
        limits: &Limits,
        counters: Arc<Counters>,
    ) -> Result<Self> {
        let layout = Layout::of(model, &config.batch);
        let on_gpu = model.engine().device().gpu.is_some();
        let caps = Caps::new(&config.batch, &layout, on_gpu);
        // On a GPU one batch is put together, and cut apart, while another runs.
        let contexts = config.contexts.unwrap_or(if on_gpu { 2 } else { 1 }).max(1);
        let lane = || Mutex::new(Lane::new(model));
        let shared = Arc::new(Shared {
            name: name.to_owned(),
            model: model.clone(),
            layout,
            caps,
            queue: Queue::new(limits.queue, limits.queue_bytes),
            rows: limits.rows,
            lanes: (0..contexts).map(|_| lane()).collect(),
            counters,
            pace: Pace::default(),
        });
        // Closes the queue where a thread is refused.
        let batcher = Self(shared);
        for number in 0..batcher.0.lanes.len() {
            let shared = Arc::clone(&batcher.0);
            let refused = |error: std::io::Error| Error::Server {
                what: format!("the system gives no thread for model {name:?}: {error}"),
            };
            let thread = std::thread::Builder::new().name(format!("{name}-{number}"));
            thread.spawn(move || shared.work(number)).map_err(refused)?;
        }
        Ok(batcher)
    }

    /// Rows that a batch may have, one where requests run one by one.
    pub(crate) fn rows(&self) -> usize {
        if self.0.layout.together() { self.0.caps.rows } else { 1 }
    }

    /// Batches that run side by side.
    pub(crate) fn contexts(&self) -> usize {
        self.0.lanes.len()
    }

    /// How many requests wait for a lane.
    pub(crate) fn waiting(&self) -> usize {
        self.0.queue.waiting()
    }

    /// Why requests run one by one, or are not padded to a common length.
    pub(crate) fn notes(&self) -> &[String] {
        self.0.layout.notes()
    }

    /// Runs every size that the caps suggest once, so that the first requests find kernels made and memory there.
    ///
    /// # Errors
    /// [`Error::Model`].
    pub(crate) fn warm(&self) -> Result<()> {
        let failed = |error| Error::Model { name: self.0.name.clone(), error };
        for lane in &self.0.lanes {
            let mut lane = lane.lock().unwrap_or_else(PoisonError::into_inner);
            lane.warm(&self.0.layout, &self.0.caps).map_err(failed)?;
        }
        Ok(())
    }

    /// Runs a request. Dropping the future cancels it. One that comes `alone` may run on this thread.
    ///
    /// # Errors
    /// [`Error::Malformed`], [`Error::Limit`], [`Error::Busy`], [`Error::Deadline`], [`Error::Model`].
    pub(crate) async fn submit(&self, request: InferRequest, alone: bool) -> Result<InferResponse> {
        let shared = &*self.0;
        let deadline = request.deadline;
        let (job, answer) = Job::new(&shared.model, &shared.layout, request)?;
        if job.rows() > shared.rows {
            return Err(Error::Limit {
                what: format!(
                    "the number of rows, the first axis of input {:?},",
                    shared.model.inputs()[0].name()
                ),
                found: job.rows() as u64,
                limit: shared.rows as u64,
                setting: "rows",
            });
        }
        let waits = if alone { shared.run_here(job) } else { Some(job) };
        if let Some(job) = waits {
            shared
                .queue
                .push(job)
                .map_err(|waiting| Error::Busy { name: shared.name.clone(), waiting })?;
        }
        let Answer { finished, outputs, measure } = answer;
        let late = || Error::Deadline { name: shared.name.clone() };
        let lost =
            || Error::Server { what: format!("a request of model {:?} was lost", shared.name) };
        let answered = match deadline {
            None => finished.await,
            Some(at) => tokio::time::timeout_at(at.into(), finished).await.map_err(|_| late())?,
        };
        // Those whose deadline has passed are let go of where they wait.
        let is_late = |at: Instant| at <= Instant::now();
        let lost = |_| if deadline.is_some_and(is_late) { late() } else { lost() };
        let finished = answered.map_err(lost)??;
        let taken = finished.take(&shared.layout, &outputs, measure.as_ref());
        taken.map_err(|error| shared.failed(error))
    }
}

impl Drop for Batcher {
    fn drop(&mut self) {
        self.0.queue.close();
    }
}

impl Shared {
    /// What a lane's thread does until the queue is closed.
    fn work(&self, number: usize) {
        while let Some(jobs) = self.queue.take(|waiting| form::choose(waiting, &self.caps_now())) {
            let mut lane = self.lanes[number].lock().unwrap_or_else(PoisonError::into_inner);
            self.run_caught(&mut lane, jobs);
        }
    }

    /// The caps, and no more positions than gain something.
    fn caps_now(&self) -> Caps {
        Caps { tokens: self.caps.tokens.min(self.pace.enough()), ..self.caps.clone() }
    }

    /// Runs jobs; a defect costs these alone, who learn of it as their senders are dropped, and the lane's context.
    fn run_caught(&self, lane: &mut Lane, jobs: Vec<Job>) {
        if catch_unwind(AssertUnwindSafe(|| self.run(lane, jobs))).is_err() {
            tracing::error!("a batch of model {:?} panicked: please report it", self.name);
            *lane = Lane::new(&self.model);
        }
    }

    /// Runs a job on this thread if that is quick and a lane is free; gives it back if not.
    fn run_here(&self, job: Job) -> Option<Job> {
        let quick = self.pace.expected(job.positions()).is_some_and(|time| time <= SHORT);
        if !quick || self.queue.waiting() > 0 {
            return Some(job);
        }
        let Some(mut lane) = self.lanes.iter().find_map(|lane| lane.try_lock().ok()) else {
            return Some(job);
        };
        self.run_caught(&mut lane, vec![job]);
        None
    }

    /// Runs jobs as one batch, and one by one if that fails by one of them.
    fn run(&self, lane: &mut Lane, jobs: Vec<Job>) {
        let began = Instant::now();
        let several = jobs.len() > 1;
        let positions: usize = jobs.iter().map(Job::positions).sum();
        match lane.run(&self.layout, &self.caps, &jobs) {
            Ok(ran) => {
                let (rows, spent) = (jobs.iter().map(Job::rows).sum(), ran.spent);
                self.pace.note(ran.positions, spent.infer);
                self.counters.batch(
                    jobs.len(),
                    rows,
                    (ran.positions, ran.positions - positions.min(ran.positions)),
                    spent,
                );
                self.log(&jobs, &ran);
                for (job, answer) in jobs.into_iter().zip(ran.answers) {
                    job.settle(Ok(answer), began, spent.infer);
                }
            }
            Err(error) if several && is_of_one(&error) => {
                tracing::debug!("a batch of model {:?} runs one by one: {error}", self.name);
                for job in jobs {
                    self.run(lane, vec![job]);
                }
            }
            Err(error) => {
                for job in jobs {
                    job.settle(Err(self.failed(error.clone())), began, Duration::ZERO);
                }
            }
        }
    }

    fn failed(&self, error: graphene_runtime::Error) -> Error {
        let name = self.name.clone();
        match error {
            graphene_runtime::Error::Deadline => Error::Deadline { name },
            error => Error::Model { name, error },
        }
    }

    fn log(&self, jobs: &[Job], ran: &lane::BatchRun) {
        tracing::debug!(
            model = self.name,
            requests = jobs.len(),
            sizes = ?ran.sizes,
            ids = ?jobs.iter().map(Job::id).collect::<Vec<_>>(),
            "batch"
        );
    }
}

/// Whether an error may be one request's fault, so that the others of its batch would do without it.
fn is_of_one(error: &graphene_runtime::Error) -> bool {
    use graphene_runtime::ErrorKind;
    match error.kind() {
        ErrorKind::Cancelled | ErrorKind::Deadline | ErrorKind::Device => false,
        ErrorKind::Request | ErrorKind::Limit | ErrorKind::Bug => true,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::queue::Job;
    use super::{Batcher, Counters};
    use crate::{Error, InferRequest, Limits, ModelConfig};
    use graphene_models::{Options, build};
    use graphene_runtime::{Device, Engine, Source, Tensor};
    use std::sync::Arc;

    /// A defect in putting requests together costs one batch; the lane goes on.
    #[tokio::test]
    async fn a_panic_ends_with_its_batch() {
        let zoo = build("mlp-2x4", &Options::default()).expect("it is of the zoo");
        let source = Source::with_external(zoo.encode(), zoo.weights().clone());
        let engine = Engine::builder().device(Device::Cpu).threads(1).build().expect("an engine");
        let model = engine.model().load_from(&source).expect("it loads");
        let (config, limits) = (ModelConfig::default(), Limits::default());
        let counters = Arc::new(Counters::default());
        let batcher = Batcher::new("m", &model, &config, &limits, counters).expect("a thread");
        let request = |rows: usize| {
            let x = Tensor::zeros(graphene_runtime::DType::F32, vec![rows, 4]).expect("small");
            InferRequest { inputs: vec![("x".to_owned(), x)], ..InferRequest::default() }
        };
        for _ in 0..3 {
            let shared = &batcher.0;
            let job = |rows| Job::new(&shared.model, &shared.layout, request(rows)).expect("a job");
            let (first, answer) = job(2);
            // It says that it has fewer rows than it has.
            let (second, other) = job(3);
            let jobs = vec![first, second.with_rows(1)];
            let run = |jobs| {
                let mut lane = shared.lanes[0].lock().expect("nobody panicked with it");
                shared.run_caught(&mut lane, jobs);
            };
            run(jobs);
            assert!(answer.finished.await.is_err() && other.finished.await.is_err());
            let after = batcher.submit(request(2), true).await.expect("the lane goes on");
            assert_eq!(after.outputs[0].1.shape(), [2, 4]);
        }
        // One who was lost is told so.
        let (job, answer) = Job::new(&model, &batcher.0.layout, request(1)).expect("a job");
        drop(job);
        assert!(answer.finished.await.is_err());
        let unknown = batcher.submit(InferRequest::default(), true).await;
        assert!(matches!(unknown, Err(Error::Malformed { .. })));
    }
}
