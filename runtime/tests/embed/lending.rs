//! Pools: order, bounds, deadlines, cancellation, from threads and from tasks.

use crate::zoo::{Random, engine, inputs, load};
use graphene_runtime::{Cancel, Error, Input, Pool, Request, RunOptions, Tensor};
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread;
use std::time::{Duration, Instant};

fn pool(contexts: usize, queue: usize) -> (Pool, Vec<Tensor>) {
    let model = load(&engine(), "bert-base-tiny", |model| model);
    let inputs = inputs(&model, &[("batch", 1), ("sequence", 12)], &mut Random(9));
    (Pool::builder(&model).contexts(contexts).queue(queue).build().unwrap(), inputs)
}

fn request(inputs: &[Tensor]) -> Request {
    inputs.iter().fold(Request::new(), |request, input| request.input(input.clone()))
}

/// Wakes the thread that blocks on a future.
struct Unpark(thread::Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

fn block_on<F: Future>(future: F) -> F::Output {
    let mut future = pin!(future);
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(output) => return output,
            Poll::Pending => thread::park(),
        }
    }
}

#[test]
fn threads_and_tasks_get_what_a_context_gives() {
    let (pool, inputs) = pool(2, 64);
    let views: Vec<Input<'_>> = inputs.iter().map(Input::from).collect();
    let expected = pool.run(&views, &RunOptions::new()).unwrap();
    let submitted: Vec<_> =
        (0..8).map(|_| pool.submit(request(&inputs), &RunOptions::new()).unwrap()).collect();
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let found = pool.run(&views, &RunOptions::new()).unwrap();
                assert_eq!(found.tensors(), expected.tensors());
            });
        }
    });
    for (i, pending) in submitted.into_iter().enumerate() {
        let found = if i % 2 == 0 { pending.wait() } else { block_on(pending) };
        assert_eq!(found.unwrap().tensors(), expected.tensors());
    }
    let mut lease = block_on(pool.acquire_async(&RunOptions::new())).unwrap();
    assert_eq!(lease.run(&views).unwrap().tensors(), expected.tensors());
    let error = pool.submit(Request::new(), &RunOptions::new()).unwrap().wait().unwrap_err();
    assert_eq!(error.code(), 102);
}

#[test]
fn a_full_queue_refuses_until_somebody_leaves() {
    let (pool, inputs) = pool(1, 1);
    let lease = pool.acquire(&RunOptions::new()).unwrap();
    let waits = pool.submit(request(&inputs), &RunOptions::new()).unwrap();
    assert_eq!(pool.waiting(), 1);
    let busy = pool.acquire(&RunOptions::new()).err();
    assert_eq!(busy, Some(Error::Busy { waiting: 1 }));
    assert!(pool.submit(request(&inputs), &RunOptions::new()).is_err());
    // A caller that leaves is not run.
    drop(waits);
    assert_eq!(pool.waiting(), 0);
    let waits = pool.acquire_async(&RunOptions::new());
    drop(lease);
    assert!(block_on(waits).is_ok());
}

#[test]
fn deadlines_and_cancel_flags_end_the_waiting() {
    let (pool, inputs) = pool(1, 8);
    let lease = pool.acquire(&RunOptions::new()).unwrap();
    let soon = || RunOptions::new().deadline(Instant::now() + Duration::from_millis(30));
    assert_eq!(pool.acquire(&soon()).err(), Some(Error::Deadline));
    assert_eq!(block_on(pool.acquire_async(&soon())).err(), Some(Error::Deadline));
    let pending = pool.submit(request(&inputs), &soon()).unwrap();
    assert_eq!(pending.wait().err(), Some(Error::Deadline));
    let cancel = Cancel::new();
    let options = RunOptions::new().cancelled_by(&cancel);
    let pending = pool.submit(request(&inputs), &options).unwrap();
    cancel.set();
    assert_eq!(block_on(pending).err(), Some(Error::Cancelled));
    assert_eq!(pool.acquire(&options).err(), Some(Error::Cancelled));
    assert_eq!(pool.waiting(), 0);
    drop(lease);
    let views: Vec<Input<'_>> = inputs.iter().map(Input::from).collect();
    assert!(pool.run(&views, &RunOptions::new()).is_ok());
    let past = RunOptions::new().deadline(Instant::now());
    assert_eq!(pool.run(&views, &past).err(), Some(Error::Deadline));
}

#[test]
fn a_deadline_ends_a_run_between_two_steps() {
    let model = load(&engine(), "bert-base-tiny", |model| model);
    let inputs = inputs(&model, &[("batch", 64), ("sequence", 384)], &mut Random(9));
    let views: Vec<Input<'_>> = inputs.iter().map(Input::from).collect();
    let mut context = model.context();
    let start = Instant::now();
    let expected = context.run(&views).unwrap();
    let whole = start.elapsed();
    let soon = RunOptions::new().deadline(Instant::now() + whole / 8);
    let start = Instant::now();
    assert_eq!(context.run_with(&views, &soon).err(), Some(Error::Deadline));
    assert!(start.elapsed() < whole, "{:?} of {whole:?}", start.elapsed());
    assert_eq!(context.run(&views).unwrap().tensors(), expected.tensors());
}
