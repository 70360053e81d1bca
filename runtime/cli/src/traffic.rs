//! `--concurrency` and `--rate`: several requests at a time, through the runtime's pool, as a server has them.
//!
//! A closed loop has so many callers, each of which asks again when it is answered: it finds the throughput. In an open loop
//! requests come when they come, whether earlier ones are done or not: their times are counted from when they were due, so
//! that waiting counts.

use crate::bench::{Samples, Schedule};
use crate::error::Error;
use crate::interrupt;
use crate::report::Latency;
use clap::{Args, ValueEnum};
use graphene_frontend::tensor::Tensor;
use graphene_runtime::{Input, Model, Outputs, Pending, Pool, Request, RunOptions};
use serde::Serialize;
use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

/// Requests that may wait for a context; more are refused, and counted as errors.
const QUEUE: usize = 1024;

/// Several requests at a time.
#[derive(Args, Debug)]
#[command(next_help_heading = "Concurrent requests")]
pub(crate) struct Asked {
    /// Run on N contexts of a pool: without --rate N callers ask again as soon as they are answered
    #[arg(long, value_name = "N", conflicts_with = "bisect", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(crate) concurrency: Option<u16>,
    /// Requests a second, whether earlier ones are answered or not; times count from when each is due
    #[arg(long, value_name = "R", conflicts_with = "bisect", value_parser = rate)]
    pub(crate) rate: Option<f64>,
    /// How the requests of --rate come
    #[arg(long, value_name = "HOW", default_value = "poisson", requires = "rate")]
    pub(crate) arrivals: Arrivals,
}

/// When requests come.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Arrivals {
    /// At random, one independent of the other
    Poisson,
    /// At equal distances
    Even,
}

impl Arrivals {
    /// How requests come, in words.
    pub(crate) fn said(self) -> &'static str {
        match self {
            Self::Poisson => "as a Poisson process",
            Self::Even => "at equal distances",
        }
    }
}

fn rate(text: &str) -> Result<f64, String> {
    let rate = text.parse().ok().filter(|rate: &f64| (1e-3..=1e6).contains(rate));
    rate.ok_or_else(|| "expected requests a second, from 0.001 to 1000000".to_owned())
}

impl Asked {
    /// The flag that asks for several requests at a time, if one does.
    pub(crate) fn flag(&self) -> Option<&'static str> {
        let concurrency = self.concurrency.map(|_| "--concurrency");
        concurrency.or(self.rate.map(|_| "--rate"))
    }
}

/// What requests side by side took.
#[derive(Serialize, Debug)]
pub(crate) struct Load {
    /// The executor.
    pub(crate) executor: &'static str,
    /// Contexts, and so runs side by side.
    pub(crate) contexts: usize,
    /// The requests a second that came, of an open loop; none of a closed one.
    pub(crate) rate: Option<f64>,
    /// How they came, of an open loop.
    pub(crate) arrivals: Option<Arrivals>,
    /// Requests that were asked.
    pub(crate) requests: usize,
    /// Those that failed, by what the runtime calls the error.
    pub(crate) errors: BTreeMap<String, usize>,
    /// From the first request to the last answer, in seconds.
    pub(crate) seconds: f64,
    /// Answers a second.
    pub(crate) requests_per_s: f64,
    /// Times of those that were answered; none if none was.
    pub(crate) latency: Option<Latency>,
}

/// Has a model of an executor answer requests of these inputs.
///
/// # Errors
/// [`Error::Model`] if there is no pool; what a request fails with is counted.
pub(crate) fn run(
    executor: &'static str,
    model: &Model,
    inputs: &[Tensor],
    asked: &Asked,
    schedule: &Schedule,
    (percentiles, seed): (&[f64], u64),
) -> Result<Load, Error> {
    let contexts = usize::from(asked.concurrency.unwrap_or(1));
    let pool = Pool::builder(model).contexts(contexts).queue(QUEUE).build()?;
    // Each context has run before any is timed.
    let warming = Schedule { duration: schedule.warmup, iterations: Some(contexts), ..*schedule };
    closed(&pool, inputs, contexts, &warming);
    let ran = match asked.rate {
        None => closed(&pool, inputs, contexts, schedule),
        Some(rate) => open(&pool, inputs, due(asked.arrivals, rate, seed), schedule),
    };
    let seconds = ran.span.as_secs_f64();
    let answered = ran.times.len();
    let statistics = Samples::new(ran.times).statistics(percentiles);
    Ok(Load {
        executor,
        contexts,
        rate: asked.rate,
        arrivals: asked.rate.map(|_| asked.arrivals),
        requests: answered + ran.errors.values().sum::<usize>(),
        errors: ran.errors,
        seconds,
        requests_per_s: answered as f64 / seconds.max(1e-9),
        latency: statistics.as_ref().map(Latency::new),
    })
}

/// What became of requests.
#[derive(Default)]
struct Ran {
    /// What those that were answered took, in the order of the answers.
    times: Vec<Duration>,
    errors: BTreeMap<String, usize>,
    span: Duration,
}

impl Ran {
    fn add(&mut self, time: Duration, outcome: Result<(), graphene_runtime::Error>) {
        match outcome {
            Ok(()) => self.times.push(time),
            Err(error) => *self.errors.entry(name(&error)).or_default() += 1,
        }
    }
}

/// What an error is counted as: its kind and number.
fn name(error: &graphene_runtime::Error) -> String {
    format!("{:?} {}", error.kind(), error.code()).to_lowercase()
}

/// As many callers as contexts, each of which asks again when it is answered.
fn closed(pool: &Pool, inputs: &[Tensor], callers: usize, schedule: &Schedule) -> Ran {
    let (start, least) = (Instant::now(), schedule.iterations.unwrap_or(1).div_ceil(callers));
    let inputs: Vec<Input<'_>> = inputs.iter().map(Input::from).collect();
    let all = Mutex::new(Ran::default());
    let call = || {
        let mut asked = 0;
        while (asked < least || start.elapsed() < schedule.duration) && !interrupt::stops() {
            let begun = Instant::now();
            let answer = pool.run(&inputs, &RunOptions::new()).map(drop);
            let time = begun.elapsed();
            all.lock().unwrap_or_else(PoisonError::into_inner).add(time, answer);
            asked += 1;
        }
    };
    std::thread::scope(|scope| (0..callers).for_each(|_| drop(scope.spawn(call))));
    let mut all = all.into_inner().unwrap_or_else(PoisonError::into_inner);
    all.span = start.elapsed();
    all
}

/// Requests when they are due, until the schedule's time is over; answers are waited for.
fn open(
    pool: &Pool,
    inputs: &[Tensor],
    due: impl Iterator<Item = Duration>,
    schedule: &Schedule,
) -> Ran {
    let request = inputs.iter().fold(Request::new(), |all, input| all.input(input.clone()));
    let (sender, receiver) = channel();
    let (start, least) = (Instant::now(), schedule.iterations.unwrap_or(1));
    let (mut ran, mut waiting) = (Ran::default(), BTreeMap::new());
    for (number, due) in due.enumerate() {
        if number >= least && due >= schedule.duration {
            break;
        }
        // Answers are taken while there is time.
        while let Some(left) = (start + due).checked_duration_since(Instant::now()) {
            let Ok(answered) = receiver.recv_timeout(left.min(PATIENCE)) else {
                if interrupt::stops() {
                    break;
                }
                continue;
            };
            settle(answered, &mut waiting, &mut ran);
        }
        if interrupt::stops() {
            break;
        }
        match pool.submit(request.clone(), &RunOptions::new()) {
            Ok(pending) => {
                let (due, sender) = (start + due, Sender::clone(&sender));
                let mut one = Waiting::new(pending, Stamp { number, due, sender });
                match one.poll() {
                    Some(outcome) => ran.add(due.elapsed(), outcome),
                    None => drop(waiting.insert(number, one)),
                }
            }
            Err(error) => ran.add(Duration::ZERO, Err(error)),
        }
    }
    finish(&receiver, &mut waiting, &mut ran);
    ran.span = start.elapsed();
    ran
}

/// How long answers are waited for before signals are looked at.
const PATIENCE: Duration = Duration::from_millis(50);

/// Takes the answers to all that were asked, unless a signal says otherwise: who waits then is not told of.
fn finish(receiver: &Receiver<Answered>, waiting: &mut BTreeMap<usize, Waiting>, ran: &mut Ran) {
    while !waiting.is_empty() && !interrupt::stops() {
        if let Ok(answered) = receiver.recv_timeout(PATIENCE) {
            settle(answered, waiting, ran);
        }
    }
}

/// Which request was answered, and how long after it was due.
type Answered = (usize, Duration);

fn settle((number, time): Answered, waiting: &mut BTreeMap<usize, Waiting>, ran: &mut Ran) {
    let Some(one) = waiting.get_mut(&number) else { return };
    if let Some(outcome) = one.poll() {
        waiting.remove(&number);
        ran.add(time, outcome);
    }
}

/// A request that was asked.
struct Waiting {
    pending: Pin<Box<Pending>>,
    waker: Waker,
}

impl Waiting {
    fn new(pending: Pending, stamp: Stamp) -> Self {
        Self { pending: Box::pin(pending), waker: Arc::new(stamp).into() }
    }

    /// The outcome, if it is there.
    fn poll(&mut self) -> Option<Result<(), graphene_runtime::Error>> {
        let polled: Poll<Result<Outputs, _>> =
            self.pending.as_mut().poll(&mut Context::from_waker(&self.waker));
        match polled {
            Poll::Ready(outcome) => Some(outcome.map(drop)),
            Poll::Pending => None,
        }
    }
}

/// Takes the time when a request is answered, on the thread that has run it.
struct Stamp {
    number: usize,
    due: Instant,
    sender: Sender<Answered>,
}

impl Wake for Stamp {
    fn wake(self: Arc<Self>) {
        // Nobody listens any more after a signal.
        let _ = self.sender.send((self.number, self.due.elapsed()));
    }
}

/// When requests are due, from the beginning.
fn due(arrivals: Arrivals, rate: f64, seed: u64) -> impl Iterator<Item = Duration> {
    let (mut at, mut state) = (0.0, seed);
    std::iter::from_fn(move || {
        let due = Duration::try_from_secs_f64(at).ok()?;
        at += match arrivals {
            Arrivals::Even => 1.0 / rate,
            // Distances of independent arrivals are exponentially distributed.
            Arrivals::Poisson => -(1.0 - uniform(&mut state)).ln() / rate,
        };
        Some(due)
    })
}

/// A number from 0 to less than 1: SplitMix64 (Steele et al., 2014).
fn uniform(state: &mut u64) -> f64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    ((z ^ (z >> 31)) >> 11) as f64 / (1_u64 << 53) as f64
}

#[cfg(test)]
mod tests {
    use super::{Arrivals, due};
    use std::time::Duration;

    #[test]
    fn even_arrivals_are_at_equal_distances() {
        let at: Vec<_> = due(Arrivals::Even, 4.0, 0).take(4).collect();
        assert_eq!(at, [0, 250, 500, 750].map(Duration::from_millis));
    }

    /// Distances have their mean as their standard deviation, and follow from the seed.
    #[test]
    fn poisson_arrivals_are_independent() {
        let at: Vec<f64> =
            due(Arrivals::Poisson, 100.0, 7).take(20_000).map(|d| d.as_secs_f64()).collect();
        let distances: Vec<f64> = at.windows(2).map(|pair| pair[1] - pair[0]).collect();
        let count = distances.len() as f64;
        let mean = distances.iter().sum::<f64>() / count;
        let variance = distances.iter().map(|d| (d - mean).powi(2)).sum::<f64>() / count;
        assert!((mean - 0.01).abs() < 0.0005, "{mean}");
        assert!((variance.sqrt() - 0.01).abs() < 0.0005, "{variance}");
        let again: Vec<f64> =
            due(Arrivals::Poisson, 100.0, 7).take(20_000).map(|d| d.as_secs_f64()).collect();
        assert_eq!(at, again);
        assert_ne!(at[1], due(Arrivals::Poisson, 100.0, 8).nth(1).unwrap().as_secs_f64());
    }
}
