//! Programs with sizes on the CPU: what a run needs beside its memory.

use super::kernel::{BoundKernel, Kernel};
use super::memory::{Access, Memory, Storage, output_tensors};
use super::on_threads;
use super::work::{nanoseconds, spread};
use crate::bind::{Place, Plan};
use crate::error::{Error, Result};
use crate::threads::{self, Turn};
use graphene_frontend::tensor::Tensor;
use graphene_fusion::program::{BufferId, Program};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// What is asked before each step, with the step's number, and again while a run waits for others at a step. An error
/// ends the run.
pub type Control<'a> = &'a mut dyn FnMut(usize) -> Result<()>;

/// A module with sizes. Several threads may run it at a time, each in an arena of its own.
pub struct Bound {
    program: Arc<Program>,
    plan: Plan,
    steps: Vec<Step>,
    weights: Arc<[Option<Tensor>]>,
    /// For each of the program's inputs, and for each of its outputs, its bytes and those of an element.
    inputs: Vec<[usize; 2]>,
    outputs: Vec<[usize; 2]>,
    /// Whether a step is worth several threads.
    spreads: bool,
}

/// A step with its kernel, and where what it reads and writes lies.
struct Step {
    kernel: BoundKernel,
    access: Access,
    /// Whether it is worth several threads.
    spreads: bool,
}

/// A bound program and an arena of its own.
pub struct Executable {
    bound: Bound,
    arena: Storage,
}

impl Bound {
    /// # Errors
    /// [`Error::At`] around [`Error::Mismatch`] where shapes disagree under the plan's sizes, and [`Error::TooLarge`].
    pub(super) fn new(
        program: &Arc<Program>,
        kernels: &[Kernel],
        weights: &Arc<[Option<Tensor>]>,
        plan: Plan,
    ) -> Result<Self> {
        usize::try_from(plan.arena_bytes()).map_err(|_| Error::TooLarge { what: "the arena" })?;
        let work = program.steps().iter().zip(plan.steps());
        let work = work.map(|(step, bound)| nanoseconds(step, bound, plan.bindings()));
        let work: Vec<usize> = work.collect();
        let spreads = spread(&work);
        let mut steps = Vec::with_capacity(kernels.len());
        let all = kernels.iter().zip(plan.steps()).zip(program.steps()).zip(work);
        for (((kernel, bound), step), work) in all {
            let named = |error: Error| error.at(&step.name);
            steps.push(Step {
                kernel: kernel.bind(step, bound, plan.bindings()).map_err(named)?,
                access: Access::new(&plan, bound, |i| kernel.reads(i)).map_err(named)?,
                spreads: spreads(work),
            });
        }
        let (mut inputs, mut outputs) =
            (vec![[0, 1]; program.inputs().len()], vec![[0, 1]; program.outputs().len()]);
        for buffer in plan.buffers() {
            let bytes = [buffer.bytes(), buffer.dtype.size()];
            match buffer.place {
                Place::Input(number) => inputs[number] = bytes,
                Place::Output(number) => outputs[number] = bytes,
                Place::Weight | Place::Arena(_) => {}
            }
        }
        let spreads = steps.iter().any(|step| step.spreads);
        let (program, weights) = (Arc::clone(program), Arc::clone(weights));
        Ok(Self { program, plan, steps, weights, inputs, outputs, spreads })
    }

    /// The plan.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// The program.
    pub fn program(&self) -> &Program {
        &self.program
    }

    /// For each step the kernel that runs it; `reference` where the reference evaluator stands in.
    pub fn kernels(&self) -> impl Iterator<Item = &'static str> {
        self.steps.iter().map(|step| step.kernel.name())
    }

    /// For each step how its kernel multiplies, where its name does not tell.
    pub fn algorithms(&self) -> impl Iterator<Item = Option<&'static str>> {
        let steps = self.steps.iter().zip(self.program.steps()).zip(self.plan.steps());
        steps.map(|((own, step), bound)| own.kernel.kernel.algorithm(step, bound))
    }

    /// Bytes of the arena that a run needs.
    pub fn arena_bytes(&self) -> usize {
        // It was found to fit when this was made.
        self.plan.arena_bytes() as usize
    }

    /// Whether some step is worth several threads: such runs take turns at them, others wait for nobody.
    pub fn is_spread(&self) -> bool {
        self.spreads
    }

    /// Runs the program on the calling thread's [`Threads`](crate::Threads), from the elements of its inputs to those of
    /// its outputs, in the program's order. The arena may hold anything; it begins at a multiple of 64 bytes. After the
    /// first run of a thread, none allocates but for steps of the reference evaluator.
    ///
    /// Types and shapes are not known here: whoever calls has checked them.
    ///
    /// # Errors
    /// [`Error::InputCount`] for another number of inputs; [`Error::Mismatch`] for another number of outputs, for bytes
    /// of another length than bound, and an arena too short; [`Error::Unsupported`] for bytes that do not begin where
    /// such elements can; what `control` says, and, with its name, what a step says. Outputs are not to be read then.
    pub fn run(
        &self,
        arena: &mut [u8],
        inputs: &[&[u8]],
        outputs: &mut [&mut [u8]],
        control: Control<'_>,
    ) -> Result<()> {
        self.check(arena, inputs, outputs)?;
        let mut memory = Memory { weights: &self.weights, inputs, arena, outputs };
        self.run_steps(&mut memory, control, &mut Nobody)
    }

    fn run_steps(
        &self,
        memory: &mut Memory<'_, '_>,
        control: Control<'_>,
        observer: &mut impl Observer,
    ) -> Result<()> {
        match self.spreads {
            true => {
                let turn = Turn::take(|| control(0))?;
                self.each_step(memory, control, turn, observer)
            }
            false => threads::alone(|| {
                let turn = Turn::take(|| Ok(()))?;
                self.each_step(memory, control, turn, observer)
            }),
        }
    }

    fn each_step(
        &self,
        memory: &mut Memory<'_, '_>,
        control: Control<'_>,
        mut turn: Turn,
        observer: &mut impl Observer,
    ) -> Result<()> {
        let steps = self.steps.iter().zip(self.program.steps()).zip(self.plan.steps());
        for (number, ((own, step), bound)) in steps.enumerate() {
            control(number)?;
            turn.pass_on(|| control(number))?;
            let mut run = || {
                let io = memory.io(&own.access, &self.plan, bound)?;
                observer.run(number, || own.kernel.run(step, io, self.plan.bindings()))
            };
            let result = if own.spreads { run() } else { threads::alone(run) };
            let result = result.and_then(|()| observer.see(number, memory));
            result.map_err(|error| error.at(&step.name))?;
        }
        Ok(())
    }

    fn check(&self, arena: &[u8], inputs: &[&[u8]], outputs: &[&mut [u8]]) -> Result<()> {
        if inputs.len() != self.inputs.len() {
            let (expected, found) = (self.inputs.len(), inputs.len());
            return Err(Error::InputCount { expected, found });
        }
        let mismatch = |what, expected, found| Err(Error::Mismatch { what, expected, found });
        if outputs.len() != self.outputs.len() {
            return mismatch("number of outputs", self.outputs.len(), outputs.len());
        }
        let given =
            inputs.iter().copied().zip(&self.inputs).map(|pair| ("bytes of an input", pair));
        let taken = outputs.iter().map(|bytes| &**bytes).zip(&self.outputs);
        let taken = taken.map(|pair| ("bytes of an output", pair));
        for (what, (bytes, &[len, size])) in given.chain(taken) {
            if bytes.len() != len {
                return mismatch(what, len, bytes.len());
            }
            if len > 0 && !bytes.as_ptr().addr().is_multiple_of(size.min(8)) {
                return Err(Error::Unsupported { what: "elements that are not aligned" });
            }
        }
        if arena.len() < self.arena_bytes() {
            return mismatch("bytes of an arena", self.arena_bytes(), arena.len());
        }
        match self.arena_bytes() == 0 || arena.as_ptr().addr().is_multiple_of(64) {
            true => Ok(()),
            false => Err(Error::Unsupported { what: "an arena that is not aligned to 64 bytes" }),
        }
    }
}

impl Executable {
    /// Gives a bound program an arena.
    ///
    /// # Errors
    /// [`Error::Memory`].
    pub fn new(bound: Bound) -> Result<Self> {
        let arena = Storage::new(bound.arena_bytes())?;
        Ok(Self { bound, arena })
    }

    /// The plan.
    pub fn plan(&self) -> &Plan {
        self.bound.plan()
    }

    /// The program.
    pub fn program(&self) -> &Program {
        self.bound.program()
    }

    /// For each step the kernel that runs it; `reference` where the reference evaluator stands in.
    pub fn kernels(&self) -> impl Iterator<Item = &'static str> {
        self.bound.kernels()
    }

    /// Runs the program on these inputs, in the program's order, and gives its outputs: on the calling thread's
    /// [`Threads`](crate::Threads), or else on the process's.
    ///
    /// # Errors
    /// [`Error::InputCount`], [`Error::Input`] for inputs of another type or shape than bound, and what a
    /// step says, with its name.
    pub fn run(&mut self, inputs: &[Tensor]) -> Result<Vec<Tensor>> {
        self.run_steps(inputs, &mut Nobody)
    }

    /// Like [`run`](Self::run), adding to `times`, which has one entry a step, what each step's kernel takes.
    ///
    /// # Errors
    /// As for [`run`](Self::run).
    pub fn run_profiled(
        &mut self,
        inputs: &[Tensor],
        times: &mut Vec<Duration>,
    ) -> Result<Vec<Tensor>> {
        times.resize(self.bound.steps.len(), Duration::ZERO);
        self.run_steps(inputs, &mut Timed(times))
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
        let program = Arc::clone(&self.bound.program);
        let plan = self.bound.plan.clone();
        let accesses: Vec<Access> =
            self.bound.steps.iter().map(|step| step.access.clone()).collect();
        let show = |number: usize, memory: &mut Memory<'_, '_>| {
            let io = memory.io(&accesses[number], &plan, &plan.steps()[number])?;
            for (output, operand) in io.outputs.into_iter().zip(&program.steps()[number].outputs) {
                inspect(number, operand.buffer, output.bytes.to_vec());
            }
            Ok(())
        };
        self.run_steps(inputs, &mut Shown(show)).map(drop)
    }

    fn run_steps(
        &mut self,
        inputs: &[Tensor],
        observer: &mut impl Observer,
    ) -> Result<Vec<Tensor>> {
        let Self { bound, arena } = self;
        bound.plan.check_inputs(&bound.program, inputs)?;
        let outputs = bound.outputs.iter().map(|&[bytes, _]| Storage::new(bytes));
        let mut outputs = outputs.collect::<Result<Vec<_>>>()?;
        let mut parts: Vec<&mut [u8]> = outputs.iter_mut().map(Storage::bytes_mut).collect();
        let inputs: Vec<&[u8]> = inputs.iter().map(Tensor::bytes).collect();
        bound.check(arena.as_ref(), &inputs, &parts)?;
        let mut memory = Memory {
            weights: &bound.weights,
            inputs: &inputs,
            arena: arena.bytes_mut(),
            outputs: &mut parts,
        };
        on_threads(|| bound.run_steps(&mut memory, &mut |_| Ok(()), observer))?;
        output_tensors(&bound.program, &bound.plan, outputs)
    }
}

/// What looks on while steps run.
trait Observer {
    /// Runs a step's kernel.
    fn run(&mut self, _: usize, kernel: impl FnOnce() -> Result<()>) -> Result<()> {
        kernel()
    }

    /// Sees what a step has left in memory.
    fn see(&mut self, _: usize, _: &mut Memory<'_, '_>) -> Result<()> {
        Ok(())
    }
}

/// Looks away.
struct Nobody;

impl Observer for Nobody {}

/// Adds each step's time up.
struct Timed<'a>(&'a mut [Duration]);

impl Observer for Timed<'_> {
    fn run(&mut self, number: usize, kernel: impl FnOnce() -> Result<()>) -> Result<()> {
        let start = Instant::now();
        let result = kernel();
        self.0[number] += start.elapsed();
        result
    }
}

/// Shows what steps leave.
struct Shown<F>(F);

impl<F: FnMut(usize, &mut Memory<'_, '_>) -> Result<()>> Observer for Shown<F> {
    fn see(&mut self, number: usize, memory: &mut Memory<'_, '_>) -> Result<()> {
        (self.0)(number, memory)
    }
}
