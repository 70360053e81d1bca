//! Threads of one's own: who runs the parts of kernels.
//!
//! [`Threads`] are started once and shared. [`Threads::run`] makes them the calling thread's, and kernels called there
//! spread their parts over them. Which part is which depends on sizes and on [`count`] alone, never on timing, so that
//! results are the same, bit for bit, from run to run. Parts within parts, and parts outside of `run`, run on the
//! calling thread.
//!
//! In reading order: `team` is how threads find work and wait, `parts` what they take apart by number, and `model` the
//! interleavings of `team`.

#[cfg(all(test, graphene_loom))]
mod model;
mod parts;
mod team;

#[cfg(all(test, not(graphene_loom)))]
mod tests;

pub(crate) use parts::{Parts, chunks, chunks_mut, items_mut, so_many_mut};

use crate::error::{Error, Result};
use std::any::Any;
use std::cell::{Cell, RefCell};
use std::fmt;
use std::num::NonZero;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};
use team::Team;

/// How long a run has the threads for itself while others wait for them: long beside what a change costs, short
/// beside what a person notices.
const QUANTUM: Duration = Duration::from_millis(20);

/// How often a run that waits for its turn looks whether it is to go on waiting.
const POLL: Duration = Duration::from_millis(10);

/// Parts that a thread begins with, where there can be so many: one that is slower leaves some to the others.
pub(crate) const TASKS: usize = 4;

/// Threads that share the work of whoever runs on them. Cloning shares them; they end when the last clone is dropped.
///
/// Several callers may run at a time. Those whose work is spread over the threads take turns; see the crate's CPU
/// executor for where a run passes its turn on.
#[derive(Clone)]
pub struct Threads {
    crew: Arc<Crew>,
}

/// The team and its workers.
struct Crew {
    team: Arc<Team>,
    workers: Vec<JoinHandle<()>>,
}

/// What a thread may do with the threads that are its own.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Mode {
    /// Spread parts, if it is given a turn.
    Free,
    /// Spread parts: it has the turn.
    Leads,
    /// Run them itself.
    Alone,
}

thread_local! {
    static CURRENT: RefCell<Option<Threads>> = const { RefCell::new(None) };
    static MODE: Cell<Mode> = const { Cell::new(Mode::Free) };
}

/// More threads than any machine has cores for: starting many more takes minutes, or ends the process.
pub const MOST_THREADS: usize = 1024;

impl Threads {
    /// Starts threads, one fewer than `count`: the one that runs is the last of them.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for a count of 0; [`Error::Threads`] for more than [`MOST_THREADS`], and where the system
    /// starts no more.
    pub fn new(count: usize) -> Result<Self> {
        if count == 0 {
            return Err(Error::Unsupported { what: "work on no threads" });
        }
        if count > MOST_THREADS {
            let reason = format!("{count} are asked for, and at most {MOST_THREADS} work together");
            return Err(Error::Threads { reason });
        }
        let cores = thread::available_parallelism().map_or(1, NonZero::get);
        let team = Arc::new(Team::new(count, count <= cores));
        let mut crew = Crew { team, workers: Vec::with_capacity(count - 1) };
        for slot in 1..count {
            let team = Arc::clone(&crew.team);
            let serve = move || {
                MODE.set(Mode::Alone);
                team.serve(slot);
            };
            let started = thread::Builder::new().name(format!("graphene-{slot}")).spawn(serve);
            // Those that were started end with the crew.
            let refused = |error: std::io::Error| Error::Threads { reason: error.to_string() };
            crew.workers.push(started.map_err(refused)?);
        }
        Ok(Self { crew: Arc::new(crew) })
    }

    /// How many there are, with the one that runs.
    pub fn count(&self) -> usize {
        self.crew.team.count()
    }

    /// Does work whose kernels spread over these threads, on the calling thread. Within a part of other work they do not.
    pub fn run<R>(&self, work: impl FnOnce() -> R) -> R {
        if MODE.get() != Mode::Free {
            return work();
        }
        let before = CURRENT.replace(Some(self.clone()));
        let _before = defer(move || CURRENT.set(before));
        work()
    }

    /// The calling thread's own, inside of [`run`](Self::run).
    pub(crate) fn current() -> Option<Self> {
        CURRENT.with_borrow(Clone::clone)
    }
}

impl fmt::Debug for Threads {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Threads({})", self.count())
    }
}

impl Drop for Crew {
    fn drop(&mut self) {
        self.team.quit();
        let own = thread::current().id();
        for worker in self.workers.drain(..).filter(|worker| worker.thread().id() != own) {
            // Parts' panics are carried to their callers, so there is none left here.
            let _ = worker.join();
        }
    }
}

/// Runs when it is dropped.
struct Defer<F: FnOnce()>(Option<F>);

impl<F: FnOnce()> Drop for Defer<F> {
    fn drop(&mut self) {
        if let Some(run) = self.0.take() {
            run();
        }
    }
}

fn defer<F: FnOnce()>(run: F) -> Defer<F> {
    Defer(Some(run))
}

/// Sets the mode until what is returned is dropped.
fn mode(mode: Mode) -> impl Drop {
    let before = MODE.replace(mode);
    defer(move || MODE.set(before))
}

/// The threads that parts are spread over: 1 outside of [`Threads::run`], and within a part.
pub(crate) fn count() -> usize {
    match MODE.get() {
        Mode::Alone => 1,
        Mode::Free | Mode::Leads => {
            CURRENT.with_borrow(|current| current.as_ref().map_or(1, Threads::count))
        }
    }
}

/// Does work whose parts all run on the calling thread.
pub(crate) fn alone<R>(work: impl FnOnce() -> R) -> R {
    let _mode = mode(Mode::Alone);
    work()
}

/// A run's turn at the current threads, from its first step to its last.
pub(crate) struct Turn {
    /// None where there is but one thread, or the turn is another's to give.
    threads: Option<Threads>,
    since: Instant,
    mode: Mode,
}

impl Turn {
    /// Waits for the turn. `check` is asked every so often, and ends the waiting with an error.
    ///
    /// # Errors
    /// What `check` says.
    pub(crate) fn take(check: impl FnMut() -> Result<()>) -> Result<Self> {
        let mode = MODE.get();
        let threads = if mode == Mode::Free { Threads::current() } else { None };
        let mut turn = Self { threads: None, since: Instant::now(), mode };
        if let Some(threads) = threads.filter(|threads| threads.count() > 1) {
            turn.begin(threads, check)?;
        }
        Ok(turn)
    }

    /// Lets others have the turn, if some wait and it has been had for long, and waits for the next one.
    ///
    /// # Errors
    /// As for [`take`](Self::take).
    pub(crate) fn pass_on(&mut self, check: impl FnMut() -> Result<()>) -> Result<()> {
        let Some(threads) = &self.threads else { return Ok(()) };
        if self.since.elapsed() < QUANTUM || !threads.crew.team.lead.is_awaited() {
            return Ok(());
        }
        match self.end() {
            Some(threads) => self.begin(threads, check),
            None => Ok(()),
        }
    }

    fn begin(&mut self, threads: Threads, check: impl FnMut() -> Result<()>) -> Result<()> {
        threads.crew.team.lead.acquire(POLL, check)?;
        self.threads = Some(threads);
        self.since = Instant::now();
        MODE.set(Mode::Leads);
        Ok(())
    }

    fn end(&mut self) -> Option<Threads> {
        let threads = self.threads.take()?;
        threads.crew.team.lead.release();
        MODE.set(self.mode);
        Some(threads)
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.end();
    }
}

/// What a part panicked with.
type Panic = Box<dyn Any + Send>;

/// Runs parts `0..parts`, each once. `work` is called with the slot of the thread that runs the part, below
/// [`count`], which no other thread has meanwhile, and with the part's number.
///
/// # Panics
/// As a part does; parts that were not begun by then may be left out.
pub(crate) fn for_each_slot(parts: usize, work: impl Fn(usize, usize) + Sync) {
    let threads = match (parts, MODE.get()) {
        (0 | 1, _) | (_, Mode::Alone) => None,
        (_, Mode::Free | Mode::Leads) => Threads::current().filter(|threads| threads.count() > 1),
    };
    let Some(threads) = threads else { return (0..parts).for_each(|part| work(0, part)) };
    // Within a run the turn has been taken.
    let _turn = Turn::take(|| Ok(())).expect("nothing ends the waiting");
    let (panicked, panic) = (AtomicBool::new(false), Mutex::<Option<Panic>>::new(None));
    let guarded = |slot: usize, part: usize| {
        if panicked.load(Ordering::Relaxed) {
            return;
        }
        if let Err(found) = catch_unwind(AssertUnwindSafe(|| work(slot, part))) {
            panicked.store(true, Ordering::Relaxed);
            *panic.lock().unwrap_or_else(PoisonError::into_inner) = Some(found);
        }
    };
    {
        let _inside = mode(Mode::Alone);
        threads.crew.team.section(parts, &guarded);
    }
    if let Some(found) = panic.into_inner().unwrap_or_else(PoisonError::into_inner) {
        resume_unwind(found);
    }
}

/// Runs parts `0..parts`, each once.
pub(crate) fn for_each(parts: usize, work: impl Fn(usize) + Sync) {
    for_each_slot(parts, |_, part| work(part));
}

/// Runs parts `0..parts`, each once, and gives the error of the first one in their order that has one.
///
/// # Errors
/// What a part says.
pub(crate) fn try_for_each_slot(
    parts: usize,
    work: impl Fn(usize, usize) -> Result<()> + Sync,
) -> Result<()> {
    let first: Mutex<Option<(usize, Error)>> = Mutex::new(None);
    for_each_slot(parts, |slot, part| {
        let Err(error) = work(slot, part) else { return };
        let mut first = first.lock().unwrap_or_else(PoisonError::into_inner);
        if first.as_ref().is_none_or(|&(before, _)| part < before) {
            *first = Some((part, error));
        }
    });
    match first.into_inner().unwrap_or_else(PoisonError::into_inner) {
        Some((_, error)) => Err(error),
        None => Ok(()),
    }
}

/// As [`try_for_each_slot`], where no part asks for its slot.
///
/// # Errors
/// What a part says.
pub(crate) fn try_for_each(parts: usize, work: impl Fn(usize) -> Result<()> + Sync) -> Result<()> {
    try_for_each_slot(parts, |_, part| work(part))
}

/// In how many groups so many items are shared out, where a thread takes at least `least` of them.
fn groups(items: usize, least: usize) -> usize {
    let count = count();
    if count == 1 {
        1.min(items)
    } else {
        (items / least.max(1)).clamp(1, TASKS * count).min(items)
    }
}

/// The items of a group: neighbours, as many in each group as in the others.
fn group(number: usize, groups: usize, items: usize) -> std::ops::Range<usize> {
    let at = |number: usize| (number as u128 * items as u128 / groups as u128) as usize;
    at(number)..at(number + 1)
}

/// Gives every item of `parts` to `work`, with its number. A thread takes at least `least` neighbours.
pub(crate) fn each<P: Parts>(least: usize, parts: P, work: impl Fn(usize, P::Part) + Sync) {
    let (items, shared) = (parts.len(), parts::Shared::new(parts));
    let groups = groups(items, least);
    for_each(groups, |number| {
        group(number, groups, items).for_each(|item| work(item, shared.take(item)));
    });
}

/// As [`each`], where work may fail.
///
/// # Errors
/// What `work` says of the first item in their order that it refuses.
pub(crate) fn try_each<P: Parts>(
    least: usize,
    parts: P,
    work: impl Fn(usize, P::Part) -> Result<()> + Sync,
) -> Result<()> {
    let (items, shared) = (parts.len(), parts::Shared::new(parts));
    let groups = groups(items, least);
    try_for_each(groups, |number| {
        group(number, groups, items).try_for_each(|item| work(item, shared.take(item)))
    })
}

/// As [`each`], and whoever does the work has one of the `slots`, of which there are at least [`count`], for itself.
///
/// # Errors
/// What `work` says of the first item in their order that it refuses.
pub(crate) fn try_each_with<P: Parts, S: Send>(
    slots: &mut [S],
    least: usize,
    parts: P,
    work: impl Fn(&mut S, usize, P::Part) -> Result<()> + Sync,
) -> Result<()> {
    assert!(slots.len() >= count(), "one slot for each thread");
    let (items, shared) = (parts.len(), parts::Shared::new(parts));
    let (groups, slots) = (groups(items, least), parts::Slots::of(slots, 1, count()));
    try_for_each_slot(groups, |slot, number| {
        let mut own = slots.take(slot);
        group(number, groups, items).try_for_each(|item| work(&mut own[0], item, shared.take(item)))
    })
}

/// As [`try_each_with`], where work cannot fail.
pub(crate) fn each_with<P: Parts, S: Send>(
    slots: &mut [S],
    least: usize,
    parts: P,
    work: impl Fn(&mut S, usize, P::Part) + Sync,
) {
    let done = try_each_with(slots, least, parts, |slot, item, part| {
        work(slot, item, part);
        Ok(())
    });
    done.expect("such work has no errors");
}

/// As [`try_each_with`], where the slots are parts of `memory`, as long as each other.
///
/// # Errors
/// What `work` says of the first item in their order that it refuses.
pub(crate) fn try_each_within<P: Parts, T: Send>(
    memory: &mut [T],
    least: usize,
    parts: P,
    work: impl Fn(&mut [T], usize, P::Part) -> Result<()> + Sync,
) -> Result<()> {
    let (items, shared) = (parts.len(), parts::Shared::new(parts));
    let (groups, len) = (groups(items, least), memory.len() / count());
    let slots = parts::Slots::of(memory, len, count());
    try_for_each_slot(groups, |slot, number| {
        let mut own = slots.take(slot);
        group(number, groups, items).try_for_each(|item| work(&mut own, item, shared.take(item)))
    })
}

/// The values of a function, in the order of its arguments `0..len`. Between some of them others may have their turn.
pub(crate) fn map<R: Send>(len: usize, value: impl Fn(usize) -> R + Sync) -> Vec<R> {
    let mut values: Vec<Option<R>> = std::iter::repeat_with(|| None).take(len).collect();
    let some = TASKS * count();
    for (number, values) in values.chunks_mut(some).enumerate() {
        let first = number * some;
        each(1, items_mut(values), |number, place| *place = Some(value(first + number)));
    }
    values.into_iter().flatten().collect()
}
