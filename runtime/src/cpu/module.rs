//! Compiled and bound programs on the CPU.

use super::kernel::{BoundKernel, Kernel};
use super::memory::{Memory, Part, Storage, output_tensors};
use super::packing::Packing;
use super::run::{Input, Io, Output};
use crate::bind::{BoundStep, Place, Plan, bind};
use crate::error::{Error, Result};
use crate::weight::elements;
use graphene_frontend::dim::Bindings;
use graphene_frontend::tensor::Tensor;
use graphene_fusion::groups::Family;
use graphene_fusion::program::{BufferId, Program};
use rayon::iter::{IndexedParallelIterator, IntoParallelRefIterator, ParallelIterator};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A program with a kernel chosen for every step. Cloning shares it.
#[derive(Clone, Debug)]
pub struct Module {
    program: Arc<Program>,
    kernels: Arc<[Kernel]>,
    /// For each buffer that is a weight its elements, if a kernel reads them as they lie.
    weights: Arc<[Option<Tensor>]>,
    /// Bytes of weights made of others, and of those laid out for products.
    own_bytes: u64,
}

/// A module with sizes and an arena, ready to run.
pub struct Executable {
    program: Arc<Program>,
    plan: Plan,
    kernels: Vec<BoundKernel>,
    weights: Arc<[Option<Tensor>]>,
    arena: Storage,
    /// Whether several launches are spread over threads.
    spread: bool,
}

/// A step that has an operand of so many elements is spread over threads, as a rule.
const SPREAD: usize = 1 << 16;

impl Module {
    /// Chooses a kernel for every step, makes the weights that are made of others, and lays out those that products
    /// read.
    ///
    /// # Errors
    /// [`Error::At`] around [`Error::Eval`] for a weight that cannot be made, and [`Error::Memory`].
    pub fn compile(program: Program) -> Result<Self> {
        Self::compile_within(program, u64::MAX)
    }

    /// Like [`compile`](Self::compile), for weights made of others of at most `limit` bytes together. Where laying
    /// weights out would take them beyond half of that, products read weights as they lie.
    ///
    /// # Errors
    /// As for [`compile`](Self::compile), and [`Error::Exceeds`], before anything is made.
    pub fn compile_within(program: Program, limit: u64) -> Result<Self> {
        let needed = program.made_bytes();
        if needed > limit {
            return Err(Error::Exceeds { needed, limit });
        }
        let packing = Packing::of(&program);
        let packing = match needed.saturating_add(packing.bytes()) <= limit / 2 {
            true => packing,
            false => Packing::none(&program),
        };
        let steps = program.steps().iter().zip(packing.lay(&program)?);
        let kernels: Arc<[_]> = steps.map(|(step, laid)| Kernel::choose(step, &laid)).collect();
        let weights = read_as_they_lie(&program, &kernels)?;
        let made = program.buffers().iter().zip(&*weights).filter(|(buffer, _)| buffer.is_made());
        let made =
            made.filter_map(|(_, weight)| weight.as_ref()).map(|weight| weight.bytes().len());
        let own_bytes = packing.bytes() + made.sum::<usize>() as u64;
        Ok(Self { program: Arc::new(program), kernels, weights, own_bytes })
    }

    /// The program.
    pub fn program(&self) -> &Program {
        &self.program
    }

    /// Bytes of weights made of others, and of those laid out for products.
    pub fn own_bytes(&self) -> u64 {
        self.own_bytes
    }

    /// For each step the kernel that runs it; `reference` where the reference evaluator stands in.
    pub fn kernels(&self) -> impl Iterator<Item = &'static str> {
        self.kernels.iter().map(Kernel::name)
    }

    /// Gives the symbols sizes, lays out the arena and allocates it.
    ///
    /// # Errors
    /// [`Error::Dim`] for a symbol without a size, [`Error::TooLarge`], [`Error::Memory`], and
    /// [`Error::At`] around [`Error::Mismatch`] where shapes disagree under these sizes.
    pub fn bind(&self, bindings: &Bindings) -> Result<Executable> {
        self.bind_within(bindings, u64::MAX)
    }

    /// Like [`bind`](Self::bind), for arenas, inputs, outputs and the module's own weights of at most `limit` bytes
    /// together.
    ///
    /// # Errors
    /// As for [`bind`](Self::bind), and [`Error::Exceeds`], before anything is allocated.
    pub fn bind_within(&self, bindings: &Bindings, limit: u64) -> Result<Executable> {
        let plan = bind(&self.program, bindings)?;
        let needed = plan.bytes().saturating_add(self.own_bytes);
        if needed > limit {
            return Err(Error::Exceeds { needed, limit });
        }
        let mut kernels = Vec::with_capacity(self.kernels.len());
        for ((kernel, bound), step) in
            self.kernels.iter().zip(plan.steps()).zip(self.program.steps())
        {
            kernels.push(kernel.bind(bound, bindings).map_err(|error| error.at(&step.name))?);
        }
        let bytes = usize::try_from(plan.arena_bytes());
        let arena = Storage::new(bytes.map_err(|_| Error::TooLarge { what: "the arena" })?)?;
        let (program, weights) = (Arc::clone(&self.program), Arc::clone(&self.weights));
        let spread = is_spread(&program, &plan);
        Ok(Executable { program, plan, kernels, weights, arena, spread })
    }
}

impl Executable {
    /// The plan.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// The program.
    pub fn program(&self) -> &Program {
        &self.program
    }

    /// Runs the program on these inputs, in the program's order, and gives its outputs.
    ///
    /// # Errors
    /// [`Error::InputCount`], [`Error::Input`] for inputs of another type or shape than bound, and what a
    /// step says, with its name.
    pub fn run(&mut self, inputs: &[Tensor]) -> Result<Vec<Tensor>> {
        self.run_steps(inputs, |_, _| Ok(()))
    }

    /// Like [`run`](Self::run), for a process that runs nothing else meanwhile: where several launches are spread
    /// over threads, all of it runs on one of these, so that none has to wake one and wait. Runs side by side would
    /// be in each other's way then.
    ///
    /// # Errors
    /// As for [`run`](Self::run).
    pub fn run_alone(&mut self, inputs: &[Tensor]) -> Result<Vec<Tensor>> {
        match self.spread && rayon::current_num_threads() > 1 {
            true => rayon::scope(|_| self.run(inputs)),
            false => self.run(inputs),
        }
    }

    /// Like [`run`](Self::run), adding each step's time to `times`, which has one entry a step.
    ///
    /// # Errors
    /// As for [`run`](Self::run).
    pub fn run_profiled(
        &mut self,
        inputs: &[Tensor],
        times: &mut Vec<Duration>,
    ) -> Result<Vec<Tensor>> {
        times.resize(self.kernels.len(), Duration::ZERO);
        let mut before = Instant::now();
        self.run_steps(inputs, |step, _| {
            let now = Instant::now();
            times[step] += now - before;
            before = now;
            Ok(())
        })
    }

    /// Runs step by step and shows each step's outputs, as their buffers hold them.
    ///
    /// # Errors
    /// As for [`run`](Self::run).
    pub fn run_inspected(
        &mut self,
        inputs: &[Tensor],
        mut inspect: impl FnMut(usize, BufferId, Vec<u8>),
    ) -> Result<()> {
        let program = Arc::clone(&self.program);
        let show = |number: usize, memory: &mut Memory<'_>| {
            for output in program.steps().get(number).into_iter().flat_map(|step| &step.outputs) {
                let bytes = match memory.parts(&[(output.buffer, false)])?.first() {
                    Some(Part::Shared(bytes)) => bytes.to_vec(),
                    Some(Part::Exclusive(bytes)) => bytes.to_vec(),
                    None => return Err(Error::Shared { buffer: output.buffer }),
                };
                inspect(number, output.buffer, bytes);
            }
            Ok(())
        };
        self.run_steps(inputs, show).map(drop)
    }

    fn run_steps(
        &mut self,
        inputs: &[Tensor],
        mut done: impl FnMut(usize, &mut Memory<'_>) -> Result<()>,
    ) -> Result<Vec<Tensor>> {
        self.plan.check_inputs(&self.program, inputs)?;
        let mut outputs = self.output_storage()?;
        let mut memory = Memory {
            program: &self.program,
            weights: &self.weights,
            plan: &self.plan,
            inputs,
            arena: self.arena.bytes_mut(),
            outputs: &mut outputs,
        };
        for (i, (kernel, step)) in self.kernels.iter().zip(self.program.steps()).enumerate() {
            let result = run_step(&mut memory, i, kernel).and_then(|()| done(i, &mut memory));
            result.map_err(|error| error.at(&step.name))?;
        }
        output_tensors(&self.program, &self.plan, outputs)
    }

    fn output_storage(&self) -> Result<Vec<Storage>> {
        let count = self.program.outputs().len();
        let mut outputs: Vec<Storage> =
            std::iter::repeat_with(Storage::default).take(count).collect();
        for buffer in self.plan.buffers() {
            if let Place::Output(number) = buffer.place {
                outputs[number] = Storage::new(buffer.bytes())?;
            }
        }
        Ok(outputs)
    }
}

/// Whether several launches are spread over threads; a recurrent layer is several, one a step.
fn is_spread(program: &Program, plan: &Plan) -> bool {
    let large = |bound: &BoundStep| {
        let len = |shape: &[usize]| shape.iter().fold(1, |len: usize, &n| len.saturating_mul(n));
        let mut operands = bound.inputs.iter().chain(&bound.outputs);
        operands.any(|operand| len(&operand.shape) >= SPREAD)
    };
    let recurrent = program.steps().iter().any(|step| step.family == Family::Recurrent);
    recurrent || plan.steps().iter().filter(|bound| large(bound)).count() > 1
}

/// For each buffer that is a weight its elements, if a kernel reads them as they lie.
///
/// # Errors
/// [`Error::At`] around [`Error::Eval`] for a weight that cannot be made.
fn read_as_they_lie(program: &Program, kernels: &[Kernel]) -> Result<Arc<[Option<Tensor>]>> {
    let mut read = vec![false; program.buffers().len()];
    for (step, kernel) in program.steps().iter().zip(kernels) {
        for (input, operand) in step.inputs.iter().enumerate() {
            read[operand.buffer.index()] |= kernel.reads(input);
        }
    }
    let buffers = program.buffers().par_iter().zip(read);
    let weights = buffers.map(|(buffer, read)| if read { elements(buffer) } else { Ok(None) });
    Ok(weights.collect::<Result<Vec<_>>>()?.into())
}

fn run_step(memory: &mut Memory<'_>, number: usize, kernel: &BoundKernel) -> Result<()> {
    let (program, plan) = (memory.program, memory.plan);
    let (step, bound) = (&program.steps()[number], &plan.steps()[number]);
    // Each buffer once: written ones first, then those read that no output overwrites.
    let mut buffers: Vec<(BufferId, bool)> =
        bound.outputs.iter().map(|output| (output.buffer, true)).collect();
    let mut place_of = vec![usize::MAX; bound.inputs.len()];
    for (i, input) in bound.inputs.iter().enumerate() {
        if bound.overwritten_by[i].is_some() || !kernel.kernel.reads(i) {
            continue;
        }
        let known = buffers.iter().position(|&(id, _)| id == input.buffer);
        place_of[i] = known.unwrap_or_else(|| {
            buffers.push((input.buffer, false));
            buffers.len() - 1
        });
    }
    let mut parts = memory.parts(&buffers)?.into_iter();
    let mut outputs = Vec::with_capacity(bound.outputs.len());
    for operand in &bound.outputs {
        match parts.next() {
            Some(Part::Exclusive(bytes)) => {
                let dtype = plan.buffers()[operand.buffer.index()].dtype;
                outputs.push(Output { bytes, operand, dtype });
            }
            _ => return Err(Error::Shared { buffer: operand.buffer }),
        }
    }
    let shared: Vec<&[u8]> = parts
        .map(|part| match part {
            Part::Shared(bytes) => bytes,
            Part::Exclusive(bytes) => bytes,
        })
        .collect();
    let mut inputs = Vec::with_capacity(bound.inputs.len());
    for (i, operand) in bound.inputs.iter().enumerate() {
        let dtype = plan.buffers()[operand.buffer.index()].dtype;
        inputs.push(match bound.overwritten_by[i] {
            Some(output) => Input::Overwritten { output },
            None if !kernel.kernel.reads(i) => Input::Laid,
            None => {
                let place = place_of[i].checked_sub(outputs.len());
                let bytes = place.and_then(|place| shared.get(place)).copied();
                let bytes = bytes.ok_or(Error::Shared { buffer: operand.buffer })?;
                Input::Bytes { bytes, operand, dtype }
            }
        });
    }
    kernel.run(step, Io { inputs, outputs }, plan.bindings())
}
