//! The threads of a pool: those that run what was submitted, and one that looks at deadlines.

use super::INTERVAL;
use crate::context::Outputs;
use crate::error::{Error, Result};
use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context as Task, Poll, Waker};
use std::thread;

/// What a thread of the pool's does.
pub(super) type Job = Box<dyn FnOnce() + Send>;

/// Whether there is still something to look at.
type Sweep = Box<dyn Fn() -> bool + Send>;

/// As many threads as there are contexts, started when first needed. They end when the pool is dropped.
pub(super) struct Runner {
    most: usize,
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    /// Told of a job, and of the end.
    job: Condvar,
    /// Told of something to look at, and of the end.
    sweep: Condvar,
}

#[derive(Default)]
struct State {
    jobs: VecDeque<Job>,
    threads: usize,
    idle: usize,
    /// What the watching thread calls, once there is one.
    sweep: Option<Sweep>,
    watched: bool,
    watching: bool,
    ended: bool,
}

impl Runner {
    pub(super) fn new(most: usize) -> Self {
        Self { most, shared: Arc::default() }
    }

    /// Has a thread do this.
    ///
    /// # Errors
    /// [`Error::Threads`] if there is none and none can be started.
    pub(super) fn start(&self, job: Job) -> Result<()> {
        let mut state = self.shared.lock();
        if state.idle <= state.jobs.len() && state.threads < self.most {
            let shared = Arc::clone(&self.shared);
            let started = spawn("graphene-pool", move || shared.work());
            match started {
                Ok(()) => state.threads += 1,
                Err(error) if state.threads == 0 => return Err(error),
                // Those that there are will come to it.
                Err(_) => {}
            }
        }
        state.jobs.push_back(job);
        self.shared.job.notify_one();
        Ok(())
    }

    /// Has a thread call `sweep` every so often, until it says that there is nothing more to look at.
    pub(super) fn watch(&self, sweep: impl Fn() -> bool + Send + 'static) {
        let mut state = self.shared.lock();
        state.watched = true;
        if !state.watching {
            state.sweep = Some(Box::new(sweep));
            let shared = Arc::clone(&self.shared);
            // Without it deadlines are seen when a context is free.
            state.watching = spawn("graphene-pool-watch", move || shared.watch()).is_ok();
        }
        self.shared.sweep.notify_one();
    }
}

fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> Result<()> {
    let started = thread::Builder::new().name(name.to_owned()).spawn(work);
    started.map(drop).map_err(|error| Error::Threads { reason: error.to_string() })
}

impl Drop for Runner {
    fn drop(&mut self) {
        self.shared.lock().ended = true;
        self.shared.job.notify_all();
        self.shared.sweep.notify_all();
    }
}

impl Shared {
    fn work(&self) {
        let mut state = self.lock();
        loop {
            if let Some(job) = state.jobs.pop_front() {
                drop(state);
                job();
                state = self.lock();
            } else if state.ended {
                return;
            } else {
                state.idle += 1;
                state = self.job.wait(state).unwrap_or_else(PoisonError::into_inner);
                state.idle -= 1;
            }
        }
    }

    fn watch(&self) {
        let Some(sweep) = self.lock().sweep.take() else { return };
        let mut state = self.lock();
        while !state.ended {
            if !state.watched {
                state = self.sweep.wait(state).unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            // Whoever comes while this looks sets it anew.
            state.watched = false;
            drop(state);
            let more = sweep();
            state = self.lock();
            if more {
                state.watched = true;
                let waited = self.sweep.wait_timeout(state, INTERVAL);
                state = waited.unwrap_or_else(PoisonError::into_inner).0;
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Where the outcome of a run is left for who waits for it.
#[derive(Default)]
pub(super) struct Answer {
    state: Mutex<Awaited>,
    ready: Condvar,
}

#[derive(Default)]
struct Awaited {
    outcome: Option<Result<Outputs>>,
    waker: Option<Waker>,
}

impl Answer {
    pub(super) fn settle(&self, outcome: Result<Outputs>) {
        let mut state = self.lock();
        state.outcome = Some(outcome);
        let waker = state.waker.take();
        drop(state);
        self.ready.notify_all();
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    pub(super) fn wait(&self) -> Result<Outputs> {
        let mut state = self.lock();
        loop {
            match state.outcome.take() {
                Some(outcome) => return outcome,
                None => state = self.ready.wait(state).unwrap_or_else(PoisonError::into_inner),
            }
        }
    }

    pub(super) fn poll(&self, task: &mut Task<'_>) -> Poll<Result<Outputs>> {
        let mut state = self.lock();
        match state.outcome.take() {
            Some(outcome) => Poll::Ready(outcome),
            None => {
                state.waker = Some(task.waker().clone());
                Poll::Pending
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Awaited> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
