//! A pool: some contexts of a model, lent to whoever asks, in order, from threads and from tasks.

mod runner;
mod slots;

use crate::context::{Context, Input, Outputs};
use crate::control::{Cancel, RunOptions};
use crate::error::{Error, Result};
use crate::model::Model;
use crate::sync;
use graphene_frontend::tensor::Tensor;
use runner::{Answer, Runner};
use slots::{Asked, Notify, Slots, Ticket};
use std::fmt;
use std::future::Future;
use std::ops::{Deref, DerefMut};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context as Task, Poll};
use std::time::Duration;

/// How often one who waits looks at a deadline and a cancel flag.
const INTERVAL: Duration = Duration::from_millis(2);

/// Contexts of a model that are lent to one caller at a time, first come first served. Clones are the same pool.
///
/// ```
/// # use graphene_runtime::{Engine, Input, Pool, RunOptions};
/// # let zoo = graphene_models::build("mlp-2x4", &graphene_models::Options::default())?;
/// # let source = graphene_runtime::Source::with_external(zoo.encode(), zoo.weights().clone());
/// # let model = Engine::new()?.model().load_from(&source)?;
/// let pool = Pool::builder(&model).contexts(2).queue(64).build()?;
/// std::thread::scope(|scope| {
///     for batch in 1..=4 {
///         let pool = &pool;
///         scope.spawn(move || {
///             let x = vec![0.5_f32; batch * 4];
///             let outputs = pool.run(&[Input::new(&x, &[batch, 4])], &RunOptions::new());
///             assert_eq!(outputs.unwrap()[0].shape(), [batch, 4]);
///         });
///     }
/// });
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Pool(Arc<Inner>);

struct Inner {
    model: Model,
    slots: Slots<Context>,
    runner: Runner,
}

/// How a pool is to be; see [`Pool::builder`].
#[derive(Clone, Debug)]
pub struct PoolBuilder {
    model: Model,
    contexts: usize,
    queue: usize,
    kept: usize,
}

/// A context that is lent, and given back when this is dropped.
pub struct Lease {
    pool: Pool,
    /// There until it is dropped.
    context: Option<Context>,
}

/// A request that owns its inputs, for runs that outlive the call that starts them.
///
/// ```
/// # use graphene_runtime::{Engine, Pool, Request, RunOptions, Tensor};
/// # let zoo = graphene_models::build("mlp-2x4", &graphene_models::Options::default())?;
/// # let source = graphene_runtime::Source::with_external(zoo.encode(), zoo.weights().clone());
/// # let model = Engine::new()?.model().load_from(&source)?;
/// # let pool = Pool::builder(&model).build()?;
/// let x = Tensor::from_vec(vec![1, 4], vec![1.0_f32, 2.0, 3.0, 4.0])?;
/// let pending = pool.submit(Request::new().named("x", x), &RunOptions::new())?;
/// // A task awaits it: `pending.await?`. A thread waits.
/// let outputs = pending.wait()?;
/// assert_eq!(outputs[0].shape(), [1, 4]);
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct Request {
    inputs: Vec<(Option<String>, Tensor)>,
}

/// A lease that comes; see [`Pool::acquire_async`]. Dropping it leaves the queue.
pub struct Acquire {
    pool: Pool,
    state: Acquiring,
}

enum Acquiring {
    /// What is given at the first poll.
    Ready(Option<Result<Box<Context>>>),
    Queued(sync::Arc<Ticket<Context>>),
}

/// A run that was submitted; see [`Pool::submit`]. Dropping it cancels the run: at once where it has not begun, before the
/// next step where it has.
pub struct Pending {
    pool: Pool,
    ticket: Option<sync::Arc<Ticket<Context>>>,
    answer: Arc<Answer>,
    cancel: Cancel,
}

impl Pool {
    /// A pool of this model's contexts.
    pub fn builder(model: &Model) -> PoolBuilder {
        PoolBuilder { model: model.clone(), contexts: 1, queue: 64, kept: 0 }
    }

    /// The model.
    pub fn model(&self) -> &Model {
        &self.0.model
    }

    /// How many requests wait for a context.
    pub fn waiting(&self) -> usize {
        self.0.slots.waiting()
    }

    /// Lends a context, and waits for one where all are in use.
    ///
    /// # Errors
    /// [`Error::Busy`] if as many wait as may; [`Error::Deadline`] and [`Error::Cancelled`].
    pub fn acquire(&self, options: &RunOptions) -> Result<Lease> {
        match self.ask(Notify::Thread, options)? {
            Asked::Taken(context, _) => Ok(self.lease(context)),
            Asked::Queued(ticket) => match ticket.wait(INTERVAL) {
                Ok(context) => Ok(self.lease(context)),
                Err(error) => {
                    self.0.slots.leave(&ticket);
                    Err(error)
                }
            },
        }
    }

    /// Lends a context when one is free, for a task of any async runtime.
    ///
    /// The future gives the errors of [`acquire`](Self::acquire).
    pub fn acquire_async(&self, options: &RunOptions) -> Acquire {
        let state = match self.ask(Notify::Task(None), options) {
            Ok(Asked::Taken(context, _)) => Acquiring::Ready(Some(Ok(Box::new(context)))),
            Ok(Asked::Queued(ticket)) => {
                self.watch(options);
                Acquiring::Queued(ticket)
            }
            Err(error) => Acquiring::Ready(Some(Err(error))),
        };
        Acquire { pool: self.clone(), state }
    }

    /// Runs a request on this thread, when a context is free.
    ///
    /// # Errors
    /// As for [`acquire`](Self::acquire) and [`Context::run_with`].
    pub fn run(&self, inputs: &[Input<'_>], options: &RunOptions) -> Result<Outputs> {
        self.acquire(options)?.run_with(inputs, options)
    }

    /// Runs a request on a thread of the pool's when a context is free. What is returned is a future of the outputs, for
    /// tasks of any async runtime; [`Pending::wait`] is for threads.
    ///
    /// # Errors
    /// [`Error::Busy`], [`Error::Deadline`] and [`Error::Cancelled`] at once; what happens later is the future's.
    pub fn submit(&self, request: Request, options: &RunOptions) -> Result<Pending> {
        let (cancel, answer) = (Cancel::new(), Arc::new(Answer::default()));
        let all = options.clone();
        let job = {
            let (pool, answer, cancel) = (self.clone(), Arc::clone(&answer), cancel.clone());
            move |context: Result<Context>| match context {
                Ok(context) => {
                    let lease = pool.lease(context);
                    let told = Arc::clone(&answer);
                    let work = move || run_job(lease, &request, &all, &cancel, &told);
                    if let Err(error) = pool.0.runner.start(Box::new(work)) {
                        answer.settle(Err(error));
                    }
                }
                Err(error) => answer.settle(Err(error)),
            }
        };
        let ticket = match self.ask(Notify::Call(Box::new(job)), options)? {
            Asked::Taken(context, Notify::Call(job)) => {
                job(Ok(context));
                None
            }
            Asked::Taken(context, _) => {
                self.0.slots.give(context);
                None
            }
            Asked::Queued(ticket) => {
                self.watch(options);
                Some(ticket)
            }
        };
        Ok(Pending { pool: self.clone(), ticket, answer, cancel })
    }

    fn ask(&self, notify: Notify<Context>, options: &RunOptions) -> Result<Asked<Context>> {
        let options = options.clone();
        self.0.slots.ask(notify, move || options.check())
    }

    /// Has somebody look at deadlines and cancel flags of tasks that wait.
    fn watch(&self, options: &RunOptions) {
        if options.may_end() {
            let pool = Arc::downgrade(&self.0);
            self.0.runner.watch(move || pool.upgrade().is_some_and(|pool| pool.slots.sweep()));
        }
    }

    fn lease(&self, context: Context) -> Lease {
        Lease { pool: self.clone(), context: Some(context) }
    }
}

/// What a thread of the pool's does with a context.
fn run_job(
    mut lease: Lease,
    request: &Request,
    options: &RunOptions,
    cancel: &Cancel,
    answer: &Answer,
) {
    let inputs: Vec<Input<'_>> = request.inputs.iter().map(as_input).collect();
    let outputs = lease.run_until(&inputs, &mut || match cancel.is_set() {
        true => Err(Error::Cancelled),
        false => options.check(),
    });
    // The next request has its context before this one's caller goes on.
    drop(lease);
    answer.settle(outputs);
}

fn as_input((name, tensor): &(Option<String>, Tensor)) -> Input<'_> {
    let input = Input::from(tensor);
    name.as_ref().map_or(input, |name| input.named(name))
}

impl PoolBuilder {
    /// How many contexts, and so runs side by side; 1 by default, and at least.
    #[must_use]
    pub fn contexts(mut self, contexts: usize) -> Self {
        self.contexts = contexts.max(1);
        self
    }

    /// How many requests may wait for a context, 64 by default; more are refused with [`Error::Busy`].
    #[must_use]
    pub fn queue(mut self, requests: usize) -> Self {
        self.queue = requests;
        self
    }

    /// How many shapes each context keeps bound; see [`Context::keep`].
    #[must_use]
    pub fn keep(mut self, shapes: usize) -> Self {
        self.kept = shapes;
        self
    }

    /// Makes the pool.
    ///
    /// # Errors
    /// [`Error::Unhealthy`] if the engine's device is lost.
    pub fn build(self) -> Result<Pool> {
        let Self { model, contexts, queue, kept } = self;
        model.engine().health()?;
        let context = || match kept {
            0 => model.context(),
            kept => model.context().keep(kept),
        };
        let slots = Slots::new((0..contexts).map(|_| context()).collect(), queue);
        Ok(Pool(Arc::new(Inner { runner: Runner::new(contexts), slots, model })))
    }
}

impl Request {
    /// A request without inputs.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds the model's next input, in order.
    #[must_use]
    pub fn input(mut self, tensor: Tensor) -> Self {
        self.inputs.push((None, tensor));
        self
    }

    /// Adds the model's input of this name.
    #[must_use]
    pub fn named(mut self, name: &str, tensor: Tensor) -> Self {
        self.inputs.push((Some(name.to_owned()), tensor));
        self
    }
}

impl Deref for Lease {
    type Target = Context;

    fn deref(&self) -> &Context {
        self.context.as_ref().expect("it is there until the lease is dropped")
    }
}

impl DerefMut for Lease {
    fn deref_mut(&mut self) -> &mut Context {
        self.context.as_mut().expect("it is there until the lease is dropped")
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if let Some(context) = self.context.take() {
            self.pool.0.slots.give(context);
        }
    }
}

impl Future for Acquire {
    type Output = Result<Lease>;

    fn poll(mut self: Pin<&mut Self>, task: &mut Task<'_>) -> Poll<Self::Output> {
        let given = match &mut self.state {
            Acquiring::Ready(given) => {
                let given = given.take().map(|given| given.map(|context| *context));
                given.map_or(Poll::Pending, Poll::Ready)
            }
            Acquiring::Queued(ticket) => ticket.poll(task),
        };
        given.map(|given| given.map(|context| self.pool.lease(context)))
    }
}

impl Drop for Acquire {
    fn drop(&mut self) {
        match &mut self.state {
            Acquiring::Ready(given) => {
                if let Some(Ok(context)) = given.take() {
                    self.pool.0.slots.give(*context);
                }
            }
            Acquiring::Queued(ticket) => self.pool.0.slots.leave(ticket),
        }
    }
}

impl Pending {
    /// Waits on this thread.
    ///
    /// # Errors
    /// As for [`Pool::run`].
    pub fn wait(self) -> Result<Outputs> {
        self.answer.wait()
    }
}

impl Future for Pending {
    type Output = Result<Outputs>;

    fn poll(self: Pin<&mut Self>, task: &mut Task<'_>) -> Poll<Self::Output> {
        self.answer.poll(task)
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        self.cancel.set();
        if let Some(ticket) = &self.ticket {
            self.pool.0.slots.leave(ticket);
        }
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Inner { model, slots, .. } = &*self.0;
        let (free, waiting) = (slots.free(), slots.waiting());
        f.debug_struct("Pool")
            .field("model", model)
            .field("free", &free)
            .field("waiting", &waiting)
            .finish()
    }
}

#[cfg(all(test, not(graphene_loom)))]
mod tests {
    use super::Pool;
    use crate::{Device, Engine, Error, Input, RunOptions};
    use graphene_frontend::text::parse;

    /// A run that panics gives an error, and its context is as good as new for the next.
    #[test]
    fn a_panic_ends_with_its_run() {
        let text = r#"
            symbols n
            %0 = Input : f32[n] "x"
            %1 = Neg(%0) : f32[n] "y"
            return "y" = %1
        "#;
        let engine = Engine::builder().device(Device::Cpu).threads(2).build().expect("two threads");
        let graph = parse(text, &[]).expect("a graph");
        let model = engine.model().load_graph(graph).expect("it loads");
        let pool = Pool::builder(&model).contexts(1).build().expect("a pool");
        let inputs = [Input::new(&[1.0_f32, 2.0], &[2])];
        let options = RunOptions::new();
        for _ in 0..3 {
            let mut lease = pool.acquire(&options).expect("it is free");
            let panicked = lease.run_until(&inputs, &mut || panic!("injected"));
            let error = panicked.expect_err("it panicked");
            assert_eq!(error, Error::Panicked { message: "injected".to_owned() });
            drop(lease);
            let outputs = pool.run(&inputs, &options).expect("it runs");
            assert_eq!(outputs.to_vec::<f32>("y"), Ok(vec![-1.0, -2.0]));
        }
    }
}
