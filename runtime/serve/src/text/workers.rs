//! Threads that make tokens of text: long texts would keep the connections of others waiting.

use crate::error::{Error, Result};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::oneshot;

/// Threads at most.
const MOST: usize = 4;

/// Texts that are one piece of work: fewer are not worth a thread to wake.
const PIECE: usize = 16;

type Work = Box<dyn FnOnce() + Send>;

/// A few threads and the work that waits for them. They end when this is dropped.
pub(super) struct Workers {
    queue: Sender<Work>,
    count: usize,
}

impl Workers {
    /// As many threads as the machine has cores for, up to a few.
    ///
    /// # Errors
    /// If the system gives none.
    pub(super) fn new() -> std::io::Result<Self> {
        let count = std::thread::available_parallelism().map_or(1, usize::from).min(MOST);
        let (queue, waiting) = channel::<Work>();
        let waiting = Arc::new(Mutex::new(waiting));
        for number in 0..count {
            let waiting = Arc::clone(&waiting);
            let thread = std::thread::Builder::new().name(format!("text-{number}"));
            thread.spawn(move || work(&waiting))?;
        }
        Ok(Self { queue, count })
    }

    pub(super) fn count(&self) -> usize {
        self.count
    }

    /// What `make` makes of the items and their places, in their order.
    ///
    /// # Errors
    /// The first error of `make` by place; [`Error::Server`] if it panics.
    pub(super) async fn map<T: Send + 'static, R: Send + 'static>(
        &self,
        items: Vec<T>,
        make: impl Fn(usize, &T) -> Result<R> + Clone + Send + 'static,
    ) -> Result<Vec<R>> {
        let lost = || Error::Server { what: "tokens were not made: please report it".to_owned() };
        let mut pieces = Vec::new();
        let mut items = items.into_iter().enumerate();
        loop {
            let piece: Vec<(usize, T)> = items.by_ref().take(PIECE).collect();
            if piece.is_empty() {
                break;
            }
            let (done, made) = oneshot::channel();
            let make = make.clone();
            let work = move || {
                let all: Result<Vec<R>> =
                    piece.iter().map(|(place, item)| make(*place, item)).collect();
                // Whoever left does not hear it.
                let _ = done.send(all);
            };
            self.queue.send(Box::new(work)).map_err(|_| lost())?;
            pieces.push(made);
        }
        let mut all = Vec::new();
        for piece in pieces {
            all.extend(piece.await.map_err(|_| lost())??);
        }
        Ok(all)
    }
}

fn work(waiting: &Mutex<Receiver<Work>>) {
    loop {
        let next = waiting.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok(next) = next else { return };
        // A tokenizer that panics costs one request, which learns of it as its sender is dropped.
        let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(next));
    }
}
