//! Things that are lent out one at a time, and those who wait for one, first come first served.

use crate::error::{Error, Result};
use crate::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::collections::VecDeque;
use std::sync::PoisonError;
use std::task::{Context as Task, Poll, Waker};
use std::time::Duration;

/// What is lent, and who waits for it. Locks are taken in the order: the slots', then a ticket's.
pub(crate) struct Slots<T> {
    state: Mutex<State<T>>,
}

struct State<T> {
    free: Vec<T>,
    waiting: VecDeque<Arc<Ticket<T>>>,
    /// How many may wait.
    most: usize,
}

/// A place in the queue.
pub(crate) struct Ticket<T> {
    turn: Mutex<Turn<T>>,
    /// Told when the turn has come, where a thread waits.
    ready: Condvar,
    /// Whether it may go on waiting.
    check: Box<dyn Fn() -> Result<()> + Send + Sync>,
}

enum Turn<T> {
    /// Not yet; who is told when it comes.
    Waiting(Notify<T>),
    /// It has come, with what is lent.
    Given(T),
    /// It will not come.
    Failed(Error),
    /// What came was taken, or nobody waits any more.
    Over,
}

/// Who is told.
pub(crate) enum Notify<T> {
    /// A thread that waits at the ticket.
    Thread,
    /// A task that has asked for it, if it has.
    Task(Option<Waker>),
    /// This is called, without any lock held.
    Call(Box<dyn FnOnce(Result<T>) + Send>),
}

/// What asking for a slot gives.
pub(crate) enum Asked<T> {
    /// One was free.
    Taken(T, Notify<T>),
    /// A place in the queue.
    Queued(Arc<Ticket<T>>),
}

impl<T> Slots<T> {
    /// These, for which `most` may wait.
    pub(crate) fn new(free: Vec<T>, most: usize) -> Self {
        Self { state: Mutex::new(State { free, waiting: VecDeque::new(), most }) }
    }

    /// Takes a slot, or a place in the queue. `check` says at any time whether to go on waiting.
    ///
    /// # Errors
    /// [`Error::Busy`] if the queue is full; what `check` says.
    pub(crate) fn ask(
        &self,
        notify: Notify<T>,
        check: impl Fn() -> Result<()> + Send + Sync + 'static,
    ) -> Result<Asked<T>> {
        check()?;
        let mut state = self.lock();
        if state.waiting.is_empty()
            && let Some(slot) = state.free.pop()
        {
            return Ok(Asked::Taken(slot, notify));
        }
        if state.waiting.len() >= state.most {
            return Err(Error::Busy { waiting: state.waiting.len() });
        }
        let turn = Mutex::new(Turn::Waiting(notify));
        let ticket = Arc::new(Ticket { turn, ready: Condvar::new(), check: Box::new(check) });
        state.waiting.push_back(Arc::clone(&ticket));
        Ok(Asked::Queued(ticket))
    }

    /// Gives a slot back: to the first who waits, if somebody does.
    pub(crate) fn give(&self, slot: T) {
        let mut state = self.lock();
        let Some(ticket) = state.waiting.pop_front() else {
            state.free.push(slot);
            return;
        };
        let call = ticket.settle(Ok(slot));
        drop(state);
        if let Some(call) = call {
            call();
        }
    }

    /// Leaves the queue; a slot that has come meanwhile goes to the next.
    pub(crate) fn leave(&self, ticket: &Arc<Ticket<T>>) {
        let mut state = self.lock();
        state.waiting.retain(|other| !Arc::ptr_eq(other, ticket));
        let turn = std::mem::replace(&mut *ticket.lock(), Turn::Over);
        drop(state);
        if let Turn::Given(slot) = turn {
            self.give(slot);
        }
    }

    /// Ends the waiting of all who may not go on, and says whether somebody still waits.
    pub(crate) fn sweep(&self) -> bool {
        let mut calls = Vec::new();
        let mut state = self.lock();
        state.waiting.retain(|ticket| match (ticket.check)() {
            Ok(()) => true,
            Err(error) => {
                calls.extend(ticket.settle(Err(error)));
                false
            }
        });
        let somebody = !state.waiting.is_empty();
        drop(state);
        calls.into_iter().for_each(|call| call());
        somebody
    }

    /// How many wait.
    pub(crate) fn waiting(&self) -> usize {
        self.lock().waiting.len()
    }

    /// How many are free.
    pub(crate) fn free(&self) -> usize {
        self.lock().free.len()
    }

    fn lock(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A call to be made when no lock is held.
type Call<'a> = Box<dyn FnOnce() + 'a>;

impl<T> Ticket<T> {
    /// Ends the waiting of a ticket that has left the queue.
    fn settle<'a>(&self, outcome: Result<T>) -> Option<Call<'a>>
    where
        T: 'a,
    {
        let mut turn = self.lock();
        let settled = |outcome| match outcome {
            Ok(slot) => Turn::Given(slot),
            Err(error) => Turn::Failed(error),
        };
        match std::mem::replace(&mut *turn, Turn::Over) {
            Turn::Waiting(Notify::Call(call)) => return Some(Box::new(move || call(outcome))),
            Turn::Waiting(Notify::Thread) => {
                *turn = settled(outcome);
                self.ready.notify_one();
            }
            Turn::Waiting(Notify::Task(waker)) => {
                *turn = settled(outcome);
                return waker.map(|waker| -> Call<'a> { Box::new(move || waker.wake()) });
            }
            // A ticket is settled once, by who took it out of the queue.
            other @ (Turn::Given(_) | Turn::Failed(_) | Turn::Over) => *turn = other,
        }
        None
    }

    /// Waits for the turn on this thread, and looks at the ticket's check every so often.
    ///
    /// # Errors
    /// What the check says; the caller has to leave the queue then.
    pub(crate) fn wait(&self, interval: Duration) -> Result<T> {
        let mut turn = self.lock();
        loop {
            match std::mem::replace(&mut *turn, Turn::Over) {
                Turn::Given(slot) => return Ok(slot),
                Turn::Failed(error) => return Err(error),
                waiting => *turn = waiting,
            }
            (self.check)()?;
            let waited = self.ready.wait_timeout(turn, interval);
            turn = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// The turn, if it has come; else the task is woken when it does.
    pub(crate) fn poll(&self, task: &mut Task<'_>) -> Poll<Result<T>> {
        let mut turn = self.lock();
        match std::mem::replace(&mut *turn, Turn::Over) {
            Turn::Given(slot) => Poll::Ready(Ok(slot)),
            Turn::Failed(error) => Poll::Ready(Err(error)),
            Turn::Waiting(_) => {
                *turn = Turn::Waiting(Notify::Task(Some(task.waker().clone())));
                Poll::Pending
            }
            Turn::Over => Poll::Pending,
        }
    }

    fn lock(&self) -> MutexGuard<'_, Turn<T>> {
        self.turn.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(all(test, not(graphene_loom)))]
mod tests {
    use super::{Asked, Notify, Slots};
    use crate::Error;
    use std::time::Duration;

    fn queued(slots: &Slots<u32>) -> std::sync::Arc<super::Ticket<u32>> {
        match slots.ask(Notify::Thread, || Ok(())).expect("the queue has capacity") {
            Asked::Queued(ticket) => ticket,
            Asked::Taken(..) => panic!("nothing is free"),
        }
    }

    #[test]
    fn who_waits_is_served_in_order_and_who_leaves_is_passed_over() {
        let slots = Slots::new(vec![7], 3);
        let Asked::Taken(7, _) = slots.ask(Notify::Thread, || Ok(())).expect("one is free") else {
            panic!("it is free")
        };
        let (first, second, third) = (queued(&slots), queued(&slots), queued(&slots));
        let full = slots.ask(Notify::Thread, || Ok(())).err();
        assert_eq!(full, Some(Error::Busy { waiting: 3 }));
        slots.leave(&second);
        slots.give(7);
        assert_eq!(first.wait(Duration::ZERO), Ok(7));
        slots.give(7);
        // It has come, and goes back when its owner leaves.
        slots.leave(&third);
        assert_eq!((slots.free(), slots.waiting()), (1, 0));
    }

    #[test]
    fn who_may_not_wait_is_told() {
        let slots: Slots<u32> = Slots::new(Vec::new(), 2);
        assert_eq!(slots.ask(Notify::Thread, || Err(Error::Deadline)).err(), Some(Error::Deadline));
        let late = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
        let check = {
            let late = late.clone();
            move || {
                if late.load(std::sync::atomic::Ordering::Relaxed) {
                    Err(Error::Deadline)
                } else {
                    Ok(())
                }
            }
        };
        let (send, told) = std::sync::mpsc::channel();
        let call = Box::new(move |outcome| send.send(outcome).expect("it is heard"));
        slots.ask(Notify::Call(call), check).expect("the queue has capacity");
        assert!(slots.sweep());
        late.store(true, std::sync::atomic::Ordering::Relaxed);
        assert!(!slots.sweep());
        assert_eq!(told.recv(), Ok(Err(Error::Deadline)));
    }
}

/// Every interleaving of a slot that is given back, one who waits and one who leaves.
#[cfg(all(test, graphene_loom))]
mod model {
    use super::{Asked, Notify, Slots};
    use loom::sync::Arc;
    use std::time::Duration;

    #[test]
    fn no_slot_is_lost_and_nobody_is_forgotten() {
        loom::model(|| {
            let slots = Arc::new(Slots::new(Vec::new(), 2));
            let ask = || match slots.ask(Notify::Thread, || Ok(())) {
                Ok(Asked::Queued(ticket)) => ticket,
                _ => panic!("nothing is free"),
            };
            let (leaves, stays) = (ask(), ask());
            let giver = {
                let slots = Arc::clone(&slots);
                loom::thread::spawn(move || slots.give(7_u32))
            };
            let leaver = {
                let slots = Arc::clone(&slots);
                loom::thread::spawn(move || slots.leave(&leaves))
            };
            assert_eq!(stays.wait(Duration::MAX), Ok(7));
            giver.join().expect("it ends");
            leaver.join().expect("it ends");
            assert_eq!((slots.free(), slots.waiting()), (0, 0));
        });
    }
}
