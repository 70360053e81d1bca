//! A context: what one run at a time of a model needs, kept for the next.

#[cfg(feature = "ndarray")]
mod array;
mod bound;
mod buffer_pool;
#[cfg(feature = "cuda")]
mod device;
mod io;
mod view;

#[cfg(feature = "cuda")]
pub use device::DeviceTensor;
pub use io::{Input, OutputMut, Outputs};
pub use view::BoundModel;

use crate::bind::sizes_text;
use crate::control::{Control, RunOptions};
use crate::cpu::Storage;
use crate::engine::Reservation;
use crate::error::{Error, Result};
use crate::executor::Workspace;
use crate::model::{Model, Port, Sizes};
use crate::trace::Span;
use bound::{Entry, Staging};
use buffer_pool::BufferPool;
use graphene_frontend::tensor::Tensor;
use io::Wanted;
use smallvec::SmallVec;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// Shapes that a context keeps bound, unless it is told otherwise.
const KEPT: usize = 8;

/// Requests whose shapes a context remembers.
const REMEMBERED: usize = 64;

/// What a request looks like: its sizes, and the shapes of inputs and outputs under them.
struct Asked {
    sizes: Sizes,
    inputs: Vec<Vec<usize>>,
    outputs: Vec<Vec<usize>>,
}

/// Inputs or outputs in the order of the model's.
type Ordered<T> = SmallVec<[T; 8]>;

/// Runs a model, one request at a time. It has one arena for all intermediates, which grows to the largest request within
/// the engine's memory limit, and keeps the shapes that it ran at last bound. A context can be sent to another thread;
/// several of them run side by side.
///
/// ```
/// # use graphene_runtime::{Engine, Input, OutputMut, RunOptions};
/// # let zoo = graphene_models::build("mlp-2x4", &graphene_models::Options::default())?;
/// # let source = graphene_runtime::Source::with_external(zoo.encode(), zoo.weights().clone());
/// # let model = Engine::new()?.model().load_from(&source)?;
/// let mut context = model.context().keep(2);
/// let (x, shape) = ([1.0_f32; 12], [3, 4]);
/// let outputs = context.run(&[Input::new(&x, &shape)])?;
///
/// // The same into memory of our own.
/// let mut y = [0.0_f32; 12];
/// let place = OutputMut::new(&mut y).named("y");
/// context.run_into(&[Input::new(&x, &shape).named("x")], &mut [place], &RunOptions::new())?;
/// assert_eq!(outputs.to_vec::<f32>("y")?, y);
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// ```
pub struct Context {
    model: Model,
    /// Where it runs, once something ran.
    workspace: Option<Workspace>,
    /// What the arena has of the memory limit.
    arena: Option<Reservation>,
    bound: Vec<Entry>,
    /// Shapes to keep bound.
    kept: usize,
    /// What requests looked like, the last one first: their shapes are checked once.
    asked: VecDeque<Arc<Asked>>,
    /// Counts runs: what ran longest ago is let go first.
    clock: u64,
    staging: Staging,
    outputs: BufferPool,
}

impl Model {
    /// A context, which runs the model. It takes memory when it runs.
    pub fn context(&self) -> Context {
        Context::new(self)
    }
}

impl Context {
    fn new(model: &Model) -> Self {
        let (model, staging) = (model.clone(), Staging::default());
        Self {
            model,
            workspace: None,
            arena: None,
            bound: Vec::new(),
            kept: KEPT,
            asked: VecDeque::new(),
            clock: 0,
            staging,
            outputs: BufferPool::default(),
        }
    }

    /// Keeps so many shapes bound, 8 by default and 1 at least.
    #[must_use]
    pub fn keep(mut self, shapes: usize) -> Self {
        self.kept = shapes.max(1);
        self
    }

    /// The model that it runs.
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// Bytes of its arena.
    pub fn arena_bytes(&self) -> usize {
        self.workspace.as_ref().map_or(0, Workspace::len)
    }

    /// Runs the model and gives its outputs. Inputs without a name are the model's in order.
    ///
    /// # Errors
    /// [`Error::UnknownPort`], [`Error::MissingInput`], [`Error::RepeatedPort`], [`Error::Input`], [`Error::Conflict`] and
    /// [`Error::Unsized`] for inputs that are not the model's; [`Error::Profile`] for sizes beyond its profile;
    /// [`Error::Dim`], [`Error::Infer`] and [`Error::Largest`] for sizes that it does not take, [`Error::At`] around
    /// [`Error::Index`] for an index beyond its table; [`Error::MemoryLimit`], [`Error::Memory`], [`Error::DeviceMemory`];
    /// [`Error::Device`] and [`Error::Unhealthy`]; [`Error::Panicked`]. The context can be used again after all of them.
    pub fn run(&mut self, inputs: &[Input<'_>]) -> Result<Outputs> {
        self.run_with(inputs, &RunOptions::default())
    }

    /// The same with a deadline, or for a caller who may cancel.
    ///
    /// # Errors
    /// As for [`run`](Self::run), and [`Error::Deadline`] and [`Error::Cancelled`].
    pub fn run_with(&mut self, inputs: &[Input<'_>], options: &RunOptions) -> Result<Outputs> {
        match options.may_end() {
            true => self.run_until(inputs, &mut || options.check()),
            false => self.run_steps(inputs, None),
        }
    }

    /// The same; `check` is asked before each step whether the run may go on, and ends it by its error.
    ///
    /// # Errors
    /// As for [`run`](Self::run), and what `check` gives.
    pub fn run_until(
        &mut self,
        inputs: &[Input<'_>],
        check: &mut dyn FnMut() -> Result<()>,
    ) -> Result<Outputs> {
        self.run_steps(inputs, Some(&mut |_step| check()))
    }

    /// The same. On a GPU, where all steps are one launch, `control` is asked with the first one's number while the run is
    /// waited for; without it, that is one synchronisation.
    fn run_steps(&mut self, inputs: &[Input<'_>], control: Control<'_>) -> Result<Outputs> {
        let model = self.model.clone();
        let inputs = in_order(model.inputs(), inputs)?;
        let span = Span::run(|| inputs_text(model.inputs(), &inputs));
        let asked = self.asked(&inputs)?;
        let entry = self.entry(&asked.sizes)?;
        self.tell(&span, &asked.sizes, entry);
        let ports = model.outputs();
        let sizes = ports.iter().zip(&asked.outputs).map(|(port, shape)| bytes_of(port, shape));
        let sizes: Ordered<usize> = sizes.collect::<Result<_>>()?;
        let mut storage = self.outputs.take(&sizes)?;
        let views = storage.iter_mut().map(|storage| Wanted::Host(storage.bytes_mut()));
        let mut views: Ordered<Wanted<'_>> = views.collect();
        self.execute(entry, &inputs, &mut views, &asked.outputs, control)?;
        drop(views);
        let tensors = storage.into_iter().zip(&asked.outputs).zip(ports);
        let tensors = tensors.map(|((storage, shape), port)| {
            let bytes = bytes::Bytes::from_owner(storage);
            Ok(Tensor::new(port.dtype(), shape.clone(), bytes)?)
        });
        let tensors = tensors.collect::<Result<_>>()?;
        let (ports, sizes) = (model.shared_outputs().clone(), self.bound[entry].bindings.clone());
        Ok(Outputs { ports, tensors, sizes })
    }

    /// Runs the model and leaves its outputs in memory of the caller's: nothing is allocated once the context has run at
    /// these sizes. Outputs that are not given are left out.
    ///
    /// # Errors
    /// As for [`run_with`](Self::run_with), and [`Error::Output`] for memory of another type or length than its output.
    pub fn run_into(
        &mut self,
        inputs: &[Input<'_>],
        outputs: &mut [OutputMut<'_>],
        options: &RunOptions,
    ) -> Result<()> {
        let model = self.model.clone();
        let inputs = in_order(model.inputs(), inputs)?;
        let span = Span::run(|| inputs_text(model.inputs(), &inputs));
        let asked = self.asked(&inputs)?;
        let entry = self.entry(&asked.sizes)?;
        self.tell(&span, &asked.sizes, entry);
        let ports = model.outputs();
        let mut views: Ordered<Option<Wanted<'_>>> = ports.iter().map(|_| None).collect();
        for (position, output) in outputs.iter_mut().enumerate() {
            let number = position_of("output", ports, output.name, position)?;
            let (port, shape) = (&ports[number], &asked.outputs[number]);
            let needed = bytes_of(port, shape)?;
            if output.dtype != port.dtype() || output.data.len() != needed {
                let expected = format!("{}{shape:?}", port.dtype());
                let (name, found) = (port.name().to_owned(), output.dtype.to_string());
                let bytes = output.data.len();
                return Err(Error::Output { name, expected, needed, found, bytes });
            }
            if views[number].replace(output.data.reborrow()).is_some() {
                return Err(Error::RepeatedPort { what: "output", name: port.name().to_owned() });
            }
        }
        let mut unwanted = std::mem::take(&mut self.staging.unwanted);
        unwanted.resize_with(ports.len(), Storage::default);
        let mut all: Ordered<Wanted<'_>> = Ordered::new();
        let places = views.into_iter().zip(&mut unwanted).zip(ports).zip(&asked.outputs);
        for (((view, spare), port), shape) in places {
            all.push(match view {
                Some(view) => view,
                None => Wanted::Host(spare.at_least(bytes_of(port, shape)?)?),
            });
        }
        let shapes = &asked.outputs;
        let mut check = |_step| options.check();
        let control: Control<'_> = match options.may_end() {
            true => Some(&mut check),
            false => None,
        };
        let done = self.execute(entry, &inputs, &mut all, shapes, control);
        drop(all);
        self.staging.unwanted = unwanted;
        done
    }

    /// Binds the model at these sizes, so that the first request of them runs like later ones; what is bound can be looked
    /// at.
    ///
    /// # Errors
    /// [`Error::UnknownDim`] and [`Error::Unsized`]; as for [`run`](Self::run).
    pub fn bind(&mut self, sizes: &[(&str, usize)]) -> Result<BoundModel<'_>> {
        let sizes = self.model.solver().named(sizes)?;
        let entry = self.entry(&sizes)?;
        Ok(BoundModel::new(&mut self.bound[entry]))
    }

    /// Runs once, on zeros, at these sizes, so that memory is there and kernels are loaded when the first request comes.
    ///
    /// # Errors
    /// As for [`bind`](Self::bind) and [`run`](Self::run).
    pub fn warm(&mut self, sizes: &[(&str, usize)]) -> Result<()> {
        let sizes = self.model.solver().named(sizes)?;
        self.run_on_zeros(&sizes)
    }

    /// The same at every size that the model's profile tells.
    pub(crate) fn warm_profile(&mut self) -> Result<()> {
        let model = self.model.clone();
        let Some(typical) = model.fitting().typical() else { return Ok(()) };
        let combinations = model.fitting().combinations(&typical);
        combinations.iter().try_for_each(|sizes| self.run_on_zeros(sizes))
    }

    fn run_on_zeros(&mut self, sizes: &Sizes) -> Result<()> {
        let model = self.model.clone();
        let bindings = model.bindings(sizes)?;
        let mut inputs = Vec::new();
        for port in model.inputs() {
            inputs.push(Tensor::zeros(port.dtype(), port.ty().bound_shape(&bindings)?)?);
        }
        let inputs: Vec<Input<'_>> = inputs.iter().map(Input::from).collect();
        self.run(&inputs).map(drop)
    }

    /// Checks types and shapes of inputs, in order, and finds the sizes that they give the model's dims.
    fn asked(&mut self, inputs: &[Input<'_>]) -> Result<Arc<Asked>> {
        let (ports, shape) = (self.model.inputs(), |number: usize| inputs[number].shape);
        let sizes = self.model.solver().solve(ports, shape)?;
        let known = self.asked.iter().position(|asked| asked.sizes == sizes);
        let known = known.and_then(|place| self.asked.remove(place));
        let mut fits = known.is_some();
        for (number, (input, port)) in inputs.iter().zip(ports).enumerate() {
            let elements = graphene_frontend::tensor::checked_elements(input.shape);
            let bytes = elements.and_then(|elements| elements.checked_mul(input.dtype.size()));
            if input.dtype != port.dtype() || bytes != Some(input.data.len()) {
                let found = format!("{input:?} in {} bytes", input.data.len());
                let (name, expected) = (port.name().to_owned(), port.ty().to_string());
                return Err(Error::Input { name, expected, found });
            }
            fits &= known.as_ref().is_some_and(|asked| asked.inputs[number] == input.shape);
        }
        let asked = match known.filter(|_| fits) {
            Some(known) => known,
            None => {
                let bindings = self.model.bindings(&sizes)?;
                self.model.solver().check(ports, &bindings, shape)?;
                let shapes = |ports: &[Port]| {
                    let shape = |port: &Port| Ok(port.ty().bound_shape(&bindings)?);
                    ports.iter().map(shape).collect::<Result<_>>()
                };
                let (inputs, outputs) = (shapes(ports)?, shapes(self.model.outputs())?);
                self.asked.truncate(REMEMBERED - 1);
                Arc::new(Asked { sizes, inputs, outputs })
            }
        };
        self.asked.push_front(Arc::clone(&asked));
        Ok(asked)
    }

    /// The place of the entry for a request of these sizes, which is bound if it is not yet.
    fn entry(&mut self, asked: &Sizes) -> Result<usize> {
        self.model.engine().health()?;
        let sizes = self.model.fitting().fit(asked, self.model.solver())?;
        self.clock += 1;
        if let Some(place) = self.bound.iter().position(|entry| entry.sizes == sizes) {
            self.bound[place].used = self.clock;
            return Ok(place);
        }
        let model = self.model.clone();
        let _span = Span::bind(|| model.sizes_text(&sizes));
        let plan = model.plan_of(&sizes)?;
        let footprint = model.footprint_of(&plan);
        let beyond = footprint.arena.saturating_sub(self.arena_bytes() as u64);
        let needed = [footprint.inputs, footprint.outputs, beyond];
        let needed = needed.into_iter().fold(0, u64::saturating_add);
        // Inputs and outputs are the caller's: they are counted, but not kept reserved.
        let fits = model.engine().budget().reserve(needed, "a run at these sizes");
        drop(fits.map_err(|error| error.at(&sizes_text(plan.bindings())))?);
        if beyond > 0 {
            self.grow(footprint.arena)?;
        }
        let workspace = match &mut self.workspace {
            Some(workspace) => workspace,
            none => none.insert(Workspace::new(model.engine())?),
        };
        // On a GPU inputs and outputs have memory there for as long as they are bound.
        let staged = if model.module().stages() { footprint.inputs + footprint.outputs } else { 0 };
        let staged = model.engine().budget().reserve(staged, "inputs and outputs on the device")?;
        let bound = model.module().bind(plan.bindings(), workspace);
        let bound = bound.map_err(|error| model.engine().noted(error))?;
        if self.bound.len() >= self.kept {
            let oldest = (0..self.bound.len()).min_by_key(|&place| self.bound[place].used);
            oldest.map(|place| self.bound.swap_remove(place));
        }
        self.bound.push(Entry::new(&model, sizes, (bound, staged), self.clock)?);
        Ok(self.bound.len() - 1)
    }

    /// Tells a run's span at which sizes the run was asked for, and at which it takes place.
    fn tell(&self, span: &Span, asked: &Sizes, entry: usize) {
        let bound = &self.bound[entry].sizes;
        let text = |sizes: &Sizes| self.model.sizes_text(sizes);
        span.bound(asked != bound, || text(asked), || text(bound));
    }

    /// A larger arena in place of the one that there is; nothing stays bound to that on a GPU.
    fn grow(&mut self, bytes: u64) -> Result<()> {
        let engine = self.model.engine();
        if self.model.module().stages() {
            self.bound.clear();
        }
        let workspace = match &mut self.workspace {
            Some(workspace) => workspace,
            none => none.insert(Workspace::new(engine)?),
        };
        self.arena = None;
        let reserved = engine.budget().reserve(bytes, "the arena of intermediates");
        // What is not reserved any more is not kept.
        let bytes = if reserved.is_ok() { bytes } else { 0 };
        workspace.grow(bytes).map_err(|error| engine.noted(error))?;
        self.arena = Some(reserved?);
        Ok(())
    }

    /// Runs an entry; `shapes` are those of outputs where they are not the entry's own.
    fn execute(
        &mut self,
        entry: usize,
        inputs: &[Input<'_>],
        outputs: &mut [Wanted<'_>],
        shapes: &[Vec<usize>],
        control: Control<'_>,
    ) -> Result<()> {
        let Self { model, workspace, bound, staging, .. } = self;
        let entry = &mut bound[entry];
        let run = || entry.run(model, workspace, staging, inputs, outputs, shapes, control);
        match catch_unwind(AssertUnwindSafe(run)) {
            Ok(done) => done.map_err(|error| model.engine().noted(error)),
            Err(panic) => {
                // Whatever it left behind is not used again.
                self.bound.clear();
                (self.workspace, self.arena, self.staging) = (None, None, Staging::default());
                Err(Error::Panicked { message: message(&*panic) })
            }
        }
    }
}

/// Inputs as text, each with its name.
fn inputs_text(ports: &[Port], inputs: &[Input<'_>]) -> String {
    let named = ports.iter().zip(inputs);
    let text: Vec<_> = named.map(|(port, input)| format!("{}: {input:?}", port.name())).collect();
    text.join(", ")
}

/// What a panic says.
fn message(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
    text.unwrap_or_else(|| "no message".to_owned())
}

/// Inputs in the order of the model's.
fn in_order<'a>(ports: &[Port], given: &[Input<'a>]) -> Result<Ordered<Input<'a>>> {
    let mut ordered: Ordered<Option<Input<'a>>> = ports.iter().map(|_| None).collect();
    for (position, input) in given.iter().enumerate() {
        if input.name.is_none() && position >= ports.len() {
            return Err(Error::InputCount { expected: ports.len(), found: given.len() });
        }
        let number = position_of("input", ports, input.name, position)?;
        if ordered[number].replace(*input).is_some() {
            let name = ports[number].name().to_owned();
            return Err(Error::RepeatedPort { what: "input", name });
        }
    }
    let missing = |port: &Port| Error::MissingInput {
        name: port.name().to_owned(),
        expected: port.ty().to_string(),
    };
    ordered.into_iter().zip(ports).map(|(input, port)| input.ok_or_else(|| missing(port))).collect()
}

/// The place of a port by its name, or the one given.
fn position_of(
    what: &'static str,
    ports: &[Port],
    name: Option<&str>,
    position: usize,
) -> Result<usize> {
    match name {
        Some(name) => {
            let found = ports.iter().position(|port| port.name() == name);
            found.ok_or_else(|| unknown(what, name, ports))
        }
        None if position < ports.len() => Ok(position),
        None => Err(unknown(what, &format!("number {position}"), ports)),
    }
}

fn unknown(what: &'static str, name: &str, ports: &[Port]) -> Error {
    let known = ports.iter().map(|port| port.name().to_owned()).collect();
    Error::UnknownPort { what, name: name.to_owned(), known }
}

/// Bytes of a tensor of this shape.
fn bytes_of(port: &Port, shape: &[usize]) -> Result<usize> {
    let elements = graphene_frontend::tensor::checked_elements(shape);
    let bytes = elements.and_then(|elements| elements.checked_mul(port.dtype().size()));
    bytes.ok_or(Error::TooLarge { what: "an output" })
}
