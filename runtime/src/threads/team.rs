//! How threads of a team find work and wait: sections and turns.
//!
//! A *section* is so many numbered parts that the team's threads run between them. One thread leads it: it opens the
//! section, runs parts like the others, closes it when no part is left, and waits for those that still run one. The
//! others join as long as it is open, so that the leader never waits for a thread that has slept through it. Each
//! thread has a range of parts of its own and, when that is done, takes what is left of others'.
//!
//! Only one thread leads at a time: the one whose *turn* it is. Turns are taken first come, first served.
//!
//! This file has all that is synchronised; `model` goes through its interleavings.

#![allow(unsafe_code)]

#[cfg(graphene_loom)]
use loom::sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize, Ordering};
#[cfg(graphene_loom)]
use loom::sync::{Condvar, Mutex, MutexGuard};
#[cfg(not(graphene_loom))]
use std::sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize, Ordering};
#[cfg(not(graphene_loom))]
use std::sync::{Condvar, Mutex, MutexGuard};

use std::collections::VecDeque;
use std::ptr;
use std::sync::PoisonError;
use std::time::Duration;
#[cfg(not(graphene_loom))]
use std::time::Instant;

/// One section more, in the upper half of a team's state: odd while a section is open.
const EPOCH: u64 = 1 << 32;

/// The leader sleeps until the last of the others has left.
const LEADER_SLEEPS: u64 = 1 << 31;

/// The threads beside the leader that are in the section, in the lowest bits of a team's state.
const ACTIVE: u64 = LEADER_SLEEPS - 1;

/// What a worker's inbox says while it sleeps: no section has this number.
const ASLEEP: u64 = u64::MAX;

/// What it says when the worker is to end.
const QUIT: u64 = u64::MAX - 1;

/// How long a thread looks for work, or for the others' end, before it sleeps: most sections follow each other sooner,
/// and waking a thread takes about as long.
#[cfg(not(graphene_loom))]
const SPIN: Duration = Duration::from_micros(40);

/// How much of that time it takes no heed of others on its core.
#[cfg(not(graphene_loom))]
const ALONE: Duration = Duration::from_micros(4);

/// What the parts of a section do: called with the slot of the thread and the number of the part.
type Work<'a> = &'a (dyn Fn(usize, usize) + Sync);

/// On cache lines of its own (two, for they are fetched in pairs).
#[repr(align(128))]
struct Padded<T>(T);

/// The parts that a thread begins with: those not taken yet.
struct Range {
    next: AtomicUsize,
    end: AtomicUsize,
}

/// Where a worker is told of a section.
struct Inbox {
    /// The newest section's epoch, [`ASLEEP`] or [`QUIT`].
    word: AtomicU64,
    lock: Mutex<()>,
    wake: Condvar,
}

/// The leader, which has slot 0, and workers, which have the others.
pub(super) struct Team {
    /// Epoch, [`LEADER_SLEEPS`] and [`ACTIVE`].
    state: Padded<AtomicU64>,
    /// The open section's work.
    work: AtomicPtr<Work<'static>>,
    /// One for each slot.
    ranges: Box<[Padded<Range>]>,
    /// One for each worker.
    inboxes: Box<[Padded<Inbox>]>,
    end: Mutex<()>,
    ended: Condvar,
    /// Whether threads that wait look out for a while before they sleep.
    #[cfg_attr(graphene_loom, allow(dead_code))]
    spins: bool,
    pub(super) lead: FairLock,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Nothing that a lock guards here is left half-changed by a panic.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Range {
    fn set(&self, start: usize, end: usize) {
        self.next.store(start, Ordering::Relaxed);
        self.end.store(end, Ordering::Relaxed);
    }

    fn take(&self) -> Option<usize> {
        let end = self.end.load(Ordering::Relaxed);
        if self.next.load(Ordering::Relaxed) >= end {
            return None;
        }
        Some(self.next.fetch_add(1, Ordering::Relaxed)).filter(|&part| part < end)
    }
}

impl Inbox {
    fn post(&self, word: u64) {
        if self.word.swap(word, Ordering::AcqRel) == ASLEEP {
            // The worker holds the lock until it waits.
            drop(lock(&self.lock));
            self.wake.notify_one();
        }
    }

    /// Waits for another word than this.
    fn next(&self, seen: u64, spins: bool) -> u64 {
        let word =
            until(spins, || Some(self.word.load(Ordering::Acquire)).filter(|&word| word != seen));
        if let Some(word) = word {
            return word;
        }
        let mut guard = lock(&self.lock);
        let slept = self.word.compare_exchange(seen, ASLEEP, Ordering::AcqRel, Ordering::Acquire);
        if let Err(word) = slept {
            return word;
        }
        loop {
            guard = self.wake.wait(guard).unwrap_or_else(PoisonError::into_inner);
            let word = self.word.load(Ordering::Acquire);
            if word != ASLEEP {
                return word;
            }
        }
    }
}

/// What `look` finds, if that is soon.
#[cfg(not(graphene_loom))]
fn until<T>(spins: bool, look: impl Fn() -> Option<T>) -> Option<T> {
    if let Some(found) = look() {
        return Some(found);
    }
    if !spins {
        return None;
    }
    let start = Instant::now();
    loop {
        for _ in 0..32 {
            std::hint::spin_loop();
            if let Some(found) = look() {
                return Some(found);
            }
        }
        let passed = start.elapsed();
        if passed > SPIN {
            return None;
        }
        if passed > ALONE {
            // A thread that was woken may have been put where the one that woke it runs.
            std::thread::yield_now();
        }
    }
}

#[cfg(graphene_loom)]
fn until<T>(_: bool, look: impl Fn() -> Option<T>) -> Option<T> {
    look()
}

impl Team {
    /// A team of so many threads, at least one: the leader and workers, each of which is to call
    /// [`serve`](Self::serve).
    pub(super) fn new(count: usize, spins: bool) -> Self {
        let range = || Padded(Range { next: AtomicUsize::new(0), end: AtomicUsize::new(0) });
        let inbox = || {
            Padded(Inbox { word: AtomicU64::new(0), lock: Mutex::new(()), wake: Condvar::new() })
        };
        Self {
            state: Padded(AtomicU64::new(0)),
            work: AtomicPtr::new(ptr::null_mut()),
            ranges: (0..count).map(|_| range()).collect(),
            inboxes: (1..count).map(|_| inbox()).collect(),
            end: Mutex::new(()),
            ended: Condvar::new(),
            spins,
            lead: FairLock::new(),
        }
    }

    /// The number of threads.
    pub(super) fn count(&self) -> usize {
        self.ranges.len()
    }

    /// Runs all parts, each once, on the calling thread and those workers that come in time. The caller has the turn.
    pub(super) fn section(&self, parts: usize, work: Work<'_>) {
        let count = self.count();
        for (slot, range) in self.ranges.iter().enumerate() {
            range.0.set(parts * slot / count, parts * (slot + 1) / count);
        }
        let erased = ptr::from_ref(&work).cast::<Work<'static>>().cast_mut();
        self.work.store(erased, Ordering::Relaxed);
        let epoch = self.state.0.fetch_add(EPOCH, Ordering::AcqRel).wrapping_add(EPOCH) / EPOCH;
        // The section ends where this goes out of scope, also if a part panics.
        let _open = Open(self);
        for inbox in self.inboxes.iter().take(parts.saturating_sub(1)) {
            inbox.0.post(epoch);
        }
        self.run(0, work);
    }

    /// Runs parts until none is left: the slot's own, then others'.
    fn run(&self, slot: usize, work: Work<'_>) {
        let count = self.count();
        for other in (slot..count).chain(0..slot) {
            while let Some(part) = self.ranges[other].0.take() {
                work(slot, part);
            }
        }
    }

    /// Works in sections until the team ends: what a worker does, in slots from 1 on.
    pub(super) fn serve(&self, slot: usize) {
        let inbox = &self.inboxes[slot - 1].0;
        let mut seen = 0;
        loop {
            seen = inbox.next(seen, self.spins);
            if seen == QUIT {
                return;
            }
            if self.join(seen) {
                let leave = Leave(self);
                let work = self.work.load(Ordering::Relaxed);
                // SAFETY: the leader stored the pointer before it opened the section that this thread has joined, and
                // what it points to lives until the leader has seen this thread leave (`Leave`, then `Open`).
                let work = unsafe { *work };
                self.run(slot, work);
                drop(leave);
            }
        }
    }

    /// Goes into a section, if it is open still.
    fn join(&self, epoch: u64) -> bool {
        let mut state = self.state.0.load(Ordering::Acquire);
        while state / EPOCH == epoch && epoch % 2 == 1 {
            let joined = self.state.0.compare_exchange_weak(
                state,
                state + 1,
                Ordering::AcqRel,
                Ordering::Acquire,
            );
            match joined {
                Ok(_) => return true,
                Err(other) => state = other,
            }
        }
        false
    }

    /// Lets the workers end.
    pub(super) fn quit(&self) {
        self.inboxes.iter().for_each(|inbox| inbox.0.post(QUIT));
    }
}

/// A section that is open: closed, and left by all, when this is dropped.
struct Open<'a>(&'a Team);

impl Drop for Open<'_> {
    fn drop(&mut self) {
        let team = self.0;
        if std::thread::panicking() {
            team.ranges.iter().for_each(|range| range.0.end.store(0, Ordering::Relaxed));
        }
        team.state.0.fetch_add(EPOCH, Ordering::AcqRel);
        let left = || {
            let state = team.state.0.load(Ordering::Acquire);
            (state & ACTIVE == 0).then_some(())
        };
        if until(team.spins, left).is_some() {
            return;
        }
        let mut guard = lock(&team.end);
        let mut state = team.state.0.fetch_or(LEADER_SLEEPS, Ordering::AcqRel);
        while state & ACTIVE != 0 {
            guard = team.ended.wait(guard).unwrap_or_else(PoisonError::into_inner);
            state = team.state.0.load(Ordering::Acquire);
        }
        team.state.0.fetch_and(!LEADER_SLEEPS, Ordering::AcqRel);
    }
}

/// A worker in a section: out of it when this is dropped.
struct Leave<'a>(&'a Team);

impl Drop for Leave<'_> {
    fn drop(&mut self) {
        let before = self.0.state.0.fetch_sub(1, Ordering::AcqRel);
        if before & LEADER_SLEEPS != 0 && before & ACTIVE == 1 {
            drop(lock(&self.0.end));
            self.0.ended.notify_one();
        }
    }
}

/// Who leads the team: a lock that is given first come, first served.
pub(super) struct FairLock {
    queue: Mutex<Queue>,
    /// Where those that wait sleep, by ticket: few are woken for nothing.
    beds: [Condvar; BEDS],
}

/// Where those that wait for a turn sleep.
const BEDS: usize = if cfg!(graphene_loom) { 2 } else { 16 };

struct Queue {
    taken: bool,
    /// Those that wait, by ticket, in the order in which they came.
    waiting: VecDeque<u64>,
    tickets: u64,
}

impl Queue {
    fn take(&mut self, ticket: u64) -> bool {
        let first = !self.taken && self.waiting.front() == Some(&ticket);
        if first {
            self.waiting.pop_front();
            self.taken = true;
        }
        first
    }
}

impl FairLock {
    fn new() -> Self {
        let queue = Queue { taken: false, waiting: VecDeque::with_capacity(64), tickets: 0 };
        Self { queue: Mutex::new(queue), beds: std::array::from_fn(|_| Condvar::new()) }
    }

    /// Waits for the turn. `check` is asked every so often, and ends the waiting with an error.
    ///
    /// # Errors
    /// What `check` says; the turn is not taken then.
    pub(super) fn acquire<E>(
        &self,
        every: Duration,
        mut check: impl FnMut() -> Result<(), E>,
    ) -> Result<(), E> {
        let mut queue = lock(&self.queue);
        if !queue.taken && queue.waiting.is_empty() {
            queue.taken = true;
            return Ok(());
        }
        queue.tickets += 1;
        let ticket = queue.tickets;
        queue.waiting.push_back(ticket);
        loop {
            // What is asked may take its time, or panic: not under the lock, and not without its place given up.
            drop(queue);
            let waits = Waits { lock: self, ticket };
            check()?;
            std::mem::forget(waits);
            queue = lock(&self.queue);
            if queue.take(ticket) {
                return Ok(());
            }
            let waited = self.bed(ticket).wait_timeout(queue, every);
            queue = waited.unwrap_or_else(PoisonError::into_inner).0;
            if queue.take(ticket) {
                return Ok(());
            }
        }
    }

    /// Gives the turn to whoever is next.
    pub(super) fn release(&self) {
        let mut queue = lock(&self.queue);
        queue.taken = false;
        self.wake(&queue);
    }

    /// Wakes whoever is next.
    fn wake(&self, queue: &Queue) {
        if let (false, Some(&ticket)) = (queue.taken, queue.waiting.front()) {
            self.bed(ticket).notify_all();
        }
    }

    fn bed(&self, ticket: u64) -> &Condvar {
        &self.beds[(ticket % BEDS as u64) as usize]
    }

    /// Whether somebody waits for the turn.
    pub(super) fn is_awaited(&self) -> bool {
        !lock(&self.queue).waiting.is_empty()
    }
}

/// A place in the queue, which is given up when this is dropped.
struct Waits<'a> {
    lock: &'a FairLock,
    ticket: u64,
}

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        let mut queue = lock(&self.lock.queue);
        queue.waiting.retain(|&other| other != self.ticket);
        // It may have been the one that all others waited for.
        self.lock.wake(&queue);
    }
}
