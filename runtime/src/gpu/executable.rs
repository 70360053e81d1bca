//! A module with sizes: launches with all that they need, recorded as one graph.

use super::library::{Call, is_left};
use super::state::check_states;
use super::{Loaded, Module};
use crate::bind::{Place, Plan, bind};
use crate::device::cublaslt::BoundGemm;
use crate::device::cudnn::BoundConvolution;
use crate::device::{Buffer, Graph, Stream};
use crate::error::{Error, Result};
use crate::indices::{Indices, check, check_tables};
use graphene_frontend::dim::Bindings;
use graphene_frontend::tensor::Tensor;
use graphene_fusion::kernels::{Scratch, StepOperand};
use graphene_fusion::program::{BufferId, Program, Step};
use std::sync::Arc;

/// A program bound to sizes, on a stream of a device, ready to run. It goes from thread to thread, and one at a time runs it.
pub struct Executable {
    pub(super) stream: Stream,
    pub(super) program: Arc<Program>,
    pub(super) plan: Plan,
    pub(super) indices: Arc<[Indices]>,
    /// All buffers of the program, in its order.
    pub(super) buffers: Vec<Buffer>,
    /// For each step its launch, unless it has no elements.
    pub(super) launches: Vec<Option<Call>>,
    /// What a library refused at these sizes, and what computes it instead: a kernel or the CPU.
    refusals: Vec<String>,
    graph: Option<Graph>,
    /// Which of the buffers the inputs and outputs are, by their numbers.
    pub(super) inputs: Vec<usize>,
    pub(super) outputs: Vec<usize>,
    /// Whether a request was given up whose work may still run.
    pub(super) given_up: bool,
}

/// A caller's own memory, of the stream that runs the program, where a program's inputs are read and its outputs left: no copy
/// lies between it and the kernels. What has none gets memory of the executable's.
///
/// Nothing looks at what the caller writes there by itself: an index beyond its table is taken for the table's first or last
/// row, where [`Executable::write`] refuses it.
///
/// An input and an output may be one buffer: what a run leaves there is the next one's input, as a state that stays on the
/// device. Binding refuses that where the program reads the input once it has begun to write the output.
#[derive(Clone, Default)]
pub struct Io {
    /// By the program's inputs, in their order; fewer leave the last ones out.
    pub inputs: Vec<Option<Buffer>>,
    /// Likewise of outputs.
    pub outputs: Vec<Option<Buffer>>,
}

impl Io {
    /// The caller's buffer for this place, which must have as many bytes at least.
    fn of(&self, place: Place, bytes: usize) -> Result<Option<Buffer>> {
        let given = match place {
            Place::Input(number) => self.inputs.get(number),
            Place::Output(number) => self.outputs.get(number),
            Place::Arena(_) | Place::Weight => None,
        };
        let Some(Some(buffer)) = given else { return Ok(None) };
        if buffer.len() < bytes {
            let what = "bytes of a caller's buffer";
            return Err(Error::Mismatch { what, expected: bytes, found: buffer.len() });
        }
        buffer.part(0, bytes).map(Some)
    }

    /// The stream of the buffers; all streams take read-only ones.
    fn stream(&self) -> Option<&Stream> {
        let mut all = self.inputs.iter().chain(&self.outputs).flatten();
        all.find(|buffer| !buffer.is_read_only()).map(Buffer::stream)
    }
}

impl Module {
    /// Gives the symbols sizes, lays out the arena, and records the launches, on a stream and in memory of the executable's
    /// own. The first time that a matmul or a convolution of a shape is bound, the library's algorithms for it are timed.
    ///
    /// # Errors
    /// As for [`bind`]; [`Error::DeviceMemory`]; [`Error::At`] around what a kernel does not take.
    pub fn bind(&self, bindings: &Bindings) -> Result<Executable> {
        self.bind_to(bindings, &Io::default())
    }

    /// Likewise with inputs and outputs in memory of the caller's, who may fill and read it between launches: on the
    /// stream of that memory, if there is some.
    ///
    /// # Errors
    /// Likewise; [`Error::Mismatch`] for a buffer that is too small, with the name of the input or output;
    /// [`Error::Foreign`] for buffers of several streams.
    pub fn bind_to(&self, bindings: &Bindings, io: &Io) -> Result<Executable> {
        let stream = io.stream().cloned().map_or_else(|| self.device.stream(), Ok)?;
        self.bind_with_arena(&stream, bindings, io)
    }

    /// Likewise on a stream of the caller's.
    ///
    /// # Errors
    /// Likewise.
    pub fn bind_on(&self, stream: &Stream, bindings: &Bindings) -> Result<Executable> {
        self.bind_with_arena(stream, bindings, &Io::default())
    }

    fn bind_with_arena(&self, stream: &Stream, bindings: &Bindings, io: &Io) -> Result<Executable> {
        let plan = self.plan(bindings)?;
        let arena = usize::try_from(plan.arena_bytes());
        let arena = arena.map_err(|_| Error::TooLarge { what: "the arena" })?;
        let arena = stream.alloc(arena);
        let arena = arena.map_err(|error| error.wanted_for("the arena of intermediates"))?;
        self.bind_plan(stream, plan, &arena, io)
    }

    /// Likewise on a stream of the caller's and with intermediates in an arena of that stream, which has
    /// [`Plan::arena_bytes`] at least. Several executables may have one arena: their runs come one after the other on the
    /// stream, and each makes all its intermediates anew.
    ///
    /// Binding runs what is timed or loaded beforehand: what the arena and the buffers of `io` hold is lost.
    ///
    /// # Errors
    /// Likewise; [`Error::Mismatch`] for an arena that is too small, [`Error::Foreign`] for memory of another stream.
    pub fn bind_in(
        &self,
        stream: &Stream,
        bindings: &Bindings,
        arena: &Buffer,
        io: &Io,
    ) -> Result<Executable> {
        self.bind_plan(stream, self.plan(bindings)?, arena, io)
    }

    /// The plan of the program at these sizes, by which its arena can be made before it is bound.
    ///
    /// # Errors
    /// As for [`bind`]; [`Error::At`] around [`Error::Index`] for a table without rows.
    pub fn plan(&self, bindings: &Bindings) -> Result<Plan> {
        let plan = bind(&self.program, bindings)?;
        check_tables(&self.program, bindings)?;
        Ok(plan)
    }

    /// As [`bind_in`](Self::bind_in), with a plan of this module.
    ///
    /// # Errors
    /// Likewise.
    fn bind_plan(
        &self,
        stream: &Stream,
        plan: Plan,
        arena: &Buffer,
        io: &Io,
    ) -> Result<Executable> {
        let (needed, found) = (plan.arena_bytes(), arena.len());
        if needed > found as u64 {
            let expected = usize::try_from(needed).unwrap_or(usize::MAX);
            return Err(Error::Mismatch { what: "bytes of the arena", expected, found });
        }
        stream.check_written("the arena", arena)?;
        let bindings = plan.bindings().clone();
        let mut buffers = Vec::with_capacity(plan.buffers().len());
        for (buffer, weight) in plan.buffers().iter().zip(self.weights.iter()) {
            let name = match buffer.place {
                Place::Input(number) => &self.program.inputs()[number].0,
                Place::Output(number) => &self.program.outputs()[number].0,
                Place::Arena(_) | Place::Weight => "",
            };
            let given = io.of(buffer.place, buffer.bytes()).map_err(|error| error.at(name))?;
            if let Some(given) = &given {
                check_given(stream, arena, buffer.place, given).map_err(|error| error.at(name))?;
            }
            buffers.push(match (buffer.place, weight, given) {
                (_, _, Some(given)) => given,
                (Place::Arena(first), ..) => arena.part(first, buffer.bytes())?,
                (Place::Weight, Some(weight), _) => weight.clone(),
                // Nothing reads it where it would lie.
                (Place::Weight, None, _) => arena.part(0, 0)?,
                (Place::Input(_), ..) => allocate(stream, buffer.bytes(), "input", name)?,
                (Place::Output(_), ..) => allocate(stream, buffer.bytes(), "output", name)?,
            });
        }
        check_states(&self.program, &plan, &buffers)?;
        let mut launches = Vec::with_capacity(self.steps.len());
        let mut refusals = Vec::new();
        for (number, (step, variants)) in self.program.steps().iter().zip(&*self.steps).enumerate()
        {
            let bound = &plan.steps()[number];
            let empty = bound.outputs.iter().all(|output| output.shape.contains(&0));
            let variant = variants.get(bound.variant).or(variants.last());
            let own = || match (variant, &self.hosts[number]) {
                (Some(variant), _) => Some(launch(stream, variant, step, &buffers, &bindings)),
                (None, Some(host)) => {
                    let bound = host.bind(stream, &plan, bound, &buffers);
                    Some(bound.map(|step| Call::Host(Box::new(step))))
                }
                (None, None) => None,
            };
            // Of a step with kernels of its own, a library's call is one of the variants.
            let other = |library| !is_left(step) && library != Some(bound.variant);
            let call = match &self.calls[number] {
                _ if empty => None,
                Some(_) if other(step.variants.library()) => own(),
                None => own(),
                Some(call) => {
                    let called = self.libraries.bind(stream, call, step, &buffers, &bindings);
                    match called {
                        Ok(call) => Some(Ok(call)),
                        Err(refusal) => {
                            let own = own();
                            if let Some(Ok(own)) = &own {
                                let by =
                                    if own.is_host() { "on the host" } else { "by its kernel" };
                                refusals.push(format!("{}, {by}: {refusal}", step.name));
                            }
                            Some(own.unwrap_or(Err(refusal)))
                        }
                    }
                }
            };
            launches.push(call.transpose().map_err(|error| error.at(&step.name))?);
        }
        let graph = match launches.iter().any(Option::is_some) {
            true => Some(stream.capture(|| launch_all(&self.program, &launches))?),
            false => None,
        };
        let places = |find: fn(Place) -> Option<usize>, count: usize| {
            let mut places = vec![usize::MAX; count];
            for (place, buffer) in plan.buffers().iter().enumerate() {
                if let Some(number) = find(buffer.place) {
                    places[number] = place;
                }
            }
            match places.contains(&usize::MAX) {
                true => Err(Error::Unsupported {
                    what: "a program with an input or output that is nowhere",
                }),
                false => Ok(places),
            }
        };
        let inputs = places(
            |place| if let Place::Input(number) = place { Some(number) } else { None },
            self.program.inputs().len(),
        )?;
        let outputs = places(
            |place| if let Place::Output(number) = place { Some(number) } else { None },
            self.program.outputs().len(),
        )?;
        Ok(Executable {
            stream: stream.clone(),
            program: Arc::clone(&self.program),
            plan,
            indices: Arc::clone(&self.indices),
            buffers,
            launches,
            refusals,
            graph,
            inputs,
            outputs,
            given_up: false,
        })
    }
}

/// Whether a caller's buffer can be an input, which may be read-only, or an output.
fn check_given(stream: &Stream, arena: &Buffer, place: Place, given: &Buffer) -> Result<()> {
    if given.overlaps(arena) {
        return Err(Error::Unsupported {
            what: "an input or output in the arena of intermediates",
        });
    }
    match place {
        Place::Output(_) => stream.check_written("a caller's memory", given),
        Place::Input(_) | Place::Arena(_) | Place::Weight => {
            stream.check_own("a caller's memory", given)
        }
    }
}

/// Memory for an input or an output that no caller has.
fn allocate(stream: &Stream, bytes: usize, what: &str, name: &str) -> Result<Buffer> {
    let buffer = stream.alloc(bytes);
    buffer.map_err(|error| error.wanted_for(format_args!("the {what} {name:?}")))
}

fn launch_all(program: &Program, launches: &[Option<Call>]) -> Result<()> {
    let mut all = program.steps().iter().zip(launches);
    all.try_for_each(|(step, call)| match call {
        Some(call) => call.launch().map_err(|error| error.at(&step.name)),
        None => Ok(()),
    })
}

/// A variant's kernel with its buffers and the values of its symbols.
pub(super) fn launch(
    stream: &Stream,
    variant: &Loaded,
    step: &Step,
    buffers: &[Buffer],
    bindings: &Bindings,
) -> Result<Call> {
    let kernel = &variant.launch.kernel;
    let mut symbols = Vec::with_capacity(kernel.symbols.len());
    for (symbol, dim) in kernel.symbols.iter().zip(&variant.launch.symbols) {
        symbols.push((symbol.name(), dim.eval(bindings)?));
    }
    let scratch_buffer = |of: &Scratch| {
        let bytes = of.elements.eval(bindings)?.checked_mul(of.scalar.bytes());
        let bytes = bytes.and_then(|bytes| usize::try_from(bytes).ok());
        let bytes = bytes.ok_or(Error::TooLarge { what: "scratch memory" })?;
        stream.alloc(bytes).map_err(|error| error.wanted_for("the kernel's scratch memory"))
    };
    let scratch: Vec<Buffer> =
        variant.launch.scratch.iter().map(scratch_buffer).collect::<Result<_>>()?;
    let mut pointers = Vec::with_capacity(kernel.params.len());
    for (&param, pointer) in kernel.params.iter().zip(&variant.launch.pointers) {
        let whole = match pointer.operand {
            StepOperand::Input(number) => &buffers[step.inputs[number].buffer.index()],
            StepOperand::Output(number) => &buffers[step.outputs[number].buffer.index()],
            StepOperand::Stack(number) => &variant.stacks[number],
            StepOperand::Scratch(number) => &scratch[number],
        };
        let scalar = kernel.tensor(param).scalar;
        let first = pointer.offset.eval(bindings)? * scalar.bytes();
        let first = usize::try_from(first).map_err(|_| Error::TooLarge { what: "an offset" })?;
        let part = whole.part(first, whole.len().saturating_sub(first))?;
        pointers.push((kernel.tensor_name(param), part));
    }
    let pointers: Vec<(&str, &Buffer)> =
        pointers.iter().map(|(name, part)| (*name, part)).collect();
    let bound = variant.kernel.bind(stream, &pointers, &symbols)?;
    Ok(Call::Kernel(Box::new(bound)))
}

impl Executable {
    /// The stream that it runs on.
    pub fn stream(&self) -> &Stream {
        &self.stream
    }

    /// Where the input of this number is read: the caller's memory, or the executable's.
    pub fn input(&self, number: usize) -> Option<&Buffer> {
        self.buffers.get(*self.inputs.get(number)?)
    }

    /// Where the output of this number is left, until the next run.
    pub fn output(&self, number: usize) -> Option<&Buffer> {
        self.buffers.get(*self.outputs.get(number)?)
    }

    /// The plan.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// The program.
    pub fn program(&self) -> &Program {
        &self.program
    }

    /// What a library has no way to compute at these sizes, with its words: the step's own kernel computes
    /// that, or the host.
    pub fn refusals(&self) -> &[String] {
        &self.refusals
    }

    /// How many kernels, calls of libraries and of the host a run launches.
    pub fn launches(&self) -> usize {
        self.launches.iter().flatten().count()
    }

    /// Runs the program on these inputs, in the program's order, and gives its outputs.
    ///
    /// # Errors
    /// [`Error::InputCount`], [`Error::Input`] for inputs of another type or shape than bound, [`Error::At`] around
    /// [`Error::Index`] for an index beyond its table or what a step on the host says, [`Error::Device`].
    pub fn run(&mut self, inputs: &[Tensor]) -> Result<Vec<Tensor>> {
        self.write(inputs)?;
        self.launch()?;
        self.read()
    }

    /// Gives the program its inputs. Those that are indices of tables are looked at first.
    ///
    /// # Errors
    /// As for [`run`](Self::run).
    pub fn write(&mut self, inputs: &[Tensor]) -> Result<()> {
        self.plan.check_inputs(&self.program, inputs)?;
        let elements = |number: usize| inputs.get(number).map(|of| (of.dtype(), of.bytes()));
        check(&self.indices, &self.program, &self.plan, elements)?;
        for (bound, buffer) in self.plan.buffers().iter().zip(&self.buffers) {
            if let Place::Input(number) = bound.place {
                buffer.write(inputs[number].bytes())?;
            }
        }
        Ok(())
    }

    /// Launches all kernels, and does not wait.
    ///
    /// # Errors
    /// [`Error::Device`].
    pub fn launch(&mut self) -> Result<()> {
        self.launch_graph()
    }

    pub(super) fn launch_graph(&self) -> Result<()> {
        self.graph.as_ref().map_or(Ok(()), Graph::launch)
    }

    /// Launches all kernels one by one, as a caller's own graph records them, and does not wait.
    ///
    /// # Errors
    /// [`Error::Device`].
    pub fn launch_each(&self) -> Result<()> {
        launch_all(&self.program, &self.launches)
    }

    /// Waits until all that was launched is done.
    ///
    /// # Errors
    /// [`Error::Device`], also for what a kernel did wrong; what a step on the host says, with its name.
    pub fn synchronize(&self) -> Result<()> {
        self.stream.synchronize()?;
        self.outcomes()
    }

    /// What steps on the host say of runs that are done.
    pub(super) fn outcomes(&self) -> Result<()> {
        // All are asked, so that none tells of this time the next time.
        let calls = self.program.steps().iter().zip(&self.launches);
        let told = calls.filter_map(|(step, call)| Some((step, call.as_ref()?.outcome())));
        let failed: Vec<Error> =
            told.filter_map(|(step, outcome)| Some(outcome.err()?.at(&step.name))).collect();
        failed.into_iter().next().map_or(Ok(()), Err)
    }

    /// The steps with what computes each: `cublaslt`, `cudnn`, `host`, or a kernel by its name; `None` for one without
    /// elements.
    pub fn steps(&self) -> impl Iterator<Item = (&Step, Option<&str>)> {
        let names = self.launches.iter().map(|call| call.as_ref().map(Call::name));
        self.program.steps().iter().zip(names)
    }

    /// Launches one step, by its place in the program, and does not wait.
    ///
    /// # Errors
    /// [`Error::Device`] with the step's name.
    pub fn launch_step(&self, number: usize) -> Result<()> {
        match (self.program.steps().get(number), self.launches.get(number)) {
            (Some(step), Some(Some(call))) => call.launch().map_err(|e| e.at(&step.name)),
            _ => Ok(()),
        }
    }

    /// The step's matmul, if it is one of cuBLASLt's.
    pub fn matmul(&self, number: usize) -> Option<&BoundGemm> {
        match self.launches.get(number)? {
            Some(Call::MatMul(matmul)) => Some(matmul),
            _ => None,
        }
    }

    /// The step's convolution, if it is one of cuDNN's.
    pub fn convolution(&self, number: usize) -> Option<&BoundConvolution> {
        match self.launches.get(number)? {
            Some(Call::Conv(convolution)) => Some(convolution),
            _ => None,
        }
    }

    /// The outputs, when all that was launched is done.
    ///
    /// # Errors
    /// As for [`synchronize`](Self::synchronize).
    pub fn read(&self) -> Result<Vec<Tensor>> {
        self.synchronize()?;
        let mut outputs: Vec<Option<Tensor>> = vec![None; self.program.outputs().len()];
        for (i, bound) in self.plan.buffers().iter().enumerate() {
            if let Place::Output(number) = bound.place {
                let (_, ty) = &self.program.outputs()[number];
                let shape = ty.bound_shape(self.plan.bindings())?;
                let bytes = self.buffers[i].download()?;
                outputs[number] = Some(Tensor::new(ty.dtype, shape, bytes.into())?);
            }
        }
        Ok(outputs.into_iter().flatten().collect())
    }

    /// Runs step by step and shows each step's outputs, as their buffers hold them.
    ///
    /// # Errors
    /// As for [`run`](Self::run), with the step's name.
    pub fn run_inspected(
        &mut self,
        inputs: &[Tensor],
        mut inspect: impl FnMut(usize, BufferId, Vec<u8>),
    ) -> Result<()> {
        self.write(inputs)?;
        for (i, step) in self.program.steps().iter().enumerate() {
            let Some(launch) = &self.launches[i] else { continue };
            launch.launch().map_err(|error| error.at(&step.name))?;
            self.synchronize()?;
            for output in &step.outputs {
                let bytes = self.buffers[output.buffer.index()].download();
                inspect(i, output.buffer, bytes.map_err(|error| error.at(&step.name))?);
            }
        }
        Ok(())
    }
}
