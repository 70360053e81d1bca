//! `--bisect`: a run step by step, beside the same steps as they should be: for a GPU, in single precision on the CPU; for the
//! CPU, by the reference evaluator.

use crate::compare::{Elements, compare_numbers, numbers};
use crate::error::Error;
use crate::modules::module;
use crate::report::{Bisection, StepDifference};
use crate::tolerance::Tolerance;
use graphene_frontend::dim::Bindings;
use graphene_frontend::dtype::DType;
use graphene_frontend::graph::{Graph, Node, ValueId};
use graphene_frontend::op::Op;
use graphene_frontend::tensor::Tensor;
use graphene_frontend::types::TensorType;
use graphene_fusion::program::{BufferId, Program};
use graphene_fusion::{Granularity, Planned, lower};
use graphene_ir::target::Target;
use graphene_runtime::{BoundOperand, Plan, Threads, cpu, gpu};
use std::collections::{BTreeSet, VecDeque};
use std::sync::mpsc::{Receiver, sync_channel};

/// Steps whose outputs the oracle computes ahead of the executor.
const AHEAD: usize = 2;

/// What computes the steps as they should be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Oracle {
    /// The CPU's kernels, with single precision in place of half precision.
    Single,
    /// The reference evaluator.
    Reference,
}

impl Oracle {
    /// What it is called.
    fn name(self) -> &'static str {
        match self {
            Self::Single => "single precision on the CPU",
            Self::Reference => "the reference evaluator",
        }
    }

    /// Whose execution it is, in errors.
    fn executor(self) -> &'static str {
        match self {
            Self::Single => "single-precision",
            Self::Reference => "reference",
        }
    }

    /// Threads of its own: those of the executor may wait for it.
    fn threads(self) -> Result<Threads, graphene_runtime::Error> {
        Threads::new(match self {
            Self::Single => cpu::threads(),
            Self::Reference => 1,
        })
    }
}

/// What a step wrote: its number, the buffer, the bytes.
type Written = (usize, BufferId, Vec<u8>);

/// What is run beside what.
pub(crate) struct Sides<'a> {
    /// The name of the executor.
    pub(crate) executor: &'static str,
    /// Its plan.
    pub(crate) planned: &'a Planned,
    /// How it was lowered.
    pub(crate) granularity: Granularity,
    /// What it was planned for.
    pub(crate) target: &'a Target,
    /// The sizes.
    pub(crate) bindings: &'a Bindings,
    /// What outputs of steps are compared by.
    pub(crate) tolerance: Tolerance,
    /// What they are compared with.
    pub(crate) oracle: Oracle,
}

/// A side that runs step by step, and shows what each step writes.
pub(crate) trait Inspected {
    /// The plan.
    fn plan(&self) -> &Plan;

    /// For each step the kernel that runs it.
    fn kernels(&self) -> Vec<String>;

    /// Runs step by step, and shows the outputs of each.
    ///
    /// # Errors
    /// As for [`gpu::Executable::run_inspected`].
    fn run(&mut self, inputs: &[Tensor], inspect: impl FnMut(usize, BufferId, Vec<u8>)) -> Ran;
}

/// How a run ended.
type Ran = Result<(), graphene_runtime::Error>;

impl Inspected for gpu::Executable {
    fn plan(&self) -> &Plan {
        self.plan()
    }

    fn kernels(&self) -> Vec<String> {
        self.kernels().map(|name| name.unwrap_or("none").to_owned()).collect()
    }

    fn run(&mut self, inputs: &[Tensor], inspect: impl FnMut(usize, BufferId, Vec<u8>)) -> Ran {
        self.run_inspected(inputs, inspect)
    }
}

impl Inspected for cpu::Executable {
    fn plan(&self) -> &Plan {
        self.plan()
    }

    fn kernels(&self) -> Vec<String> {
        self.kernels().map(str::to_owned).collect()
    }

    fn run(&mut self, inputs: &[Tensor], inspect: impl FnMut(usize, BufferId, Vec<u8>)) -> Ran {
        self.run_inspected(inputs, inspect)
    }
}

impl Sides<'_> {
    /// The oracle's side, and the inputs as it takes them.
    fn oracle(&self, inputs: &[Tensor]) -> Result<(cpu::Module, Vec<Tensor>), Error> {
        let program = || single_program(self.planned, self.target, self.granularity);
        let (module, inputs) = match self.oracle {
            Oracle::Single => {
                let inputs = inputs.iter().map(single).collect::<Result<_, _>>()?;
                (cpu::Module::compile(program()?), inputs)
            }
            Oracle::Reference => {
                (cpu::Module::compile_reference(self.planned.program.clone()), inputs.to_vec())
            }
        };
        Ok((module.map_err(Error::Compile)?, inputs))
    }

    /// Runs both sides, and finds the first step whose outputs are out of tolerance.
    ///
    /// # Errors
    /// [`Error::Flag`] if the groups cannot be computed in single precision; [`Error::Run`], which names the step, of
    /// either side.
    pub(crate) fn run(
        &self,
        device: &mut impl Inspected,
        inputs: &[Tensor],
    ) -> Result<Bisection, Error> {
        let refused = |executor: &'static str| {
            let sizes = crate::sizes::sizes_text(self.bindings);
            move |source| Error::Run { executor, sizes, source: Box::new(source) }
        };
        let (module, own_inputs) = self.oracle(inputs)?;
        let whose = self.oracle.executor();
        let mut oracle = module.executable(self.bindings).map_err(refused(whose))?;
        let (right, threads) = (oracle.plan().clone(), self.oracle.threads());
        let threads = threads.map_err(refused(whose))?;
        let (sender, receiver) = sync_channel::<Written>(AHEAD);
        let (names, plan) = (device.kernels(), device.plan().clone());
        let (mut first, mut seen) = (None, BTreeSet::new());
        std::thread::scope(|scope| {
            let oracle = scope.spawn(move || {
                let shown = |step, buffer, bytes| {
                    // The other side may have ended early.
                    let _ = sender.send((step, buffer, bytes));
                };
                threads.run(|| oracle.run_inspected(&own_inputs, shown))
            });
            let mut expected = Expected { receiver, ahead: VecDeque::new() };
            let ran = device.run(inputs, |step, buffer, bytes| {
                let Some(right_bytes) = expected.of(step, buffer) else { return };
                let pair = [(&plan, &bytes), (&right, &right_bytes)];
                let Some(found) = self.compare(step, buffer, pair) else { return };
                seen.insert(step);
                if first.is_none() && found.mismatches > 0 {
                    let kernel = names.get(step).map_or("unknown", String::as_str);
                    first = Some(difference(&self.planned.program, step, buffer, kernel, &found));
                }
            });
            // The other side ends also where this one ended early.
            drop(expected);
            let oracle = oracle.join();
            ran.map_err(refused(self.executor))?;
            match oracle {
                Ok(outcome) => outcome.map_err(refused(whose)),
                // A panic of the other side is this one's.
                Err(panic) => std::panic::resume_unwind(panic),
            }
        })?;
        let steps = self.planned.program.steps().len();
        let (executor, against) = (self.executor, self.oracle.name());
        Ok(Bisection { executor, against, steps, compared: seen.len(), first })
    }

    /// How what a step wrote to a buffer differs from what is right, if both can be read.
    fn compare(
        &self,
        step: usize,
        buffer: BufferId,
        sides: [(&Plan, &Vec<u8>); 2],
    ) -> Option<Elements> {
        let [found, expected] = sides.map(|(plan, bytes)| values(plan, step, buffer, bytes));
        let (found, expected) = (found?, expected?);
        let real = sides[0].0.buffers()[buffer.index()].dtype.is_float();
        let bound = self.tolerance.of_step(real, &expected);
        (found.len() == expected.len()).then(|| compare_numbers(&found, &expected, bound))
    }
}

/// What the oracle's side wrote, in its order.
struct Expected {
    receiver: Receiver<Written>,
    /// What came, and was not asked for yet.
    ahead: VecDeque<Written>,
}

impl Expected {
    /// What a step wrote to a buffer. Steps before it that the executor has not, since they have no elements, are left out.
    fn of(&mut self, step: usize, buffer: BufferId) -> Option<Vec<u8>> {
        loop {
            let (at, of, bytes) = match self.ahead.pop_front() {
                Some(written) => written,
                None => self.receiver.recv().ok()?,
            };
            if (at, of) == (step, buffer) {
                return Some(bytes);
            }
            if at > step {
                self.ahead.push_front((at, of, bytes));
                return None;
            }
        }
    }
}

fn difference(
    program: &Program,
    number: usize,
    buffer: BufferId,
    kernel: &str,
    found: &Elements,
) -> StepDifference {
    let step = &program.steps()[number];
    let first = found
        .first
        .map(|(place, found, expected)| format!("element {place} is {found}, expected {expected}"));
    StepDifference {
        step: number,
        name: step.name.clone(),
        module: module(&step.nodes),
        kernel: kernel.to_owned(),
        nodes: step.nodes.clone(),
        output: program.buffer(buffer).name.clone(),
        elements: found.count,
        mismatches: found.mismatches,
        max_error: Some(found.max_error).filter(|error| error.is_finite()),
        relative_error: found.relative_error().filter(|error| error.is_finite()),
        detail: first,
    }
}

/// The elements that a step wrote to a buffer, in row-major order of what it sees of it.
fn values(plan: &Plan, step: usize, buffer: BufferId, bytes: &[u8]) -> Option<Vec<f64>> {
    let operand = plan.steps().get(step)?.outputs.iter().find(|out| out.buffer == buffer)?;
    let bound = plan.buffers().get(buffer.index())?;
    let tensor = Tensor::new(bound.dtype, vec![bound.elements], bytes.to_vec().into()).ok()?;
    let all: Vec<f64> = numbers(&tensor).collect();
    places(operand).map(|place| all.get(place).copied()).collect()
}

/// Where an operand's elements lie, in row-major order.
pub(crate) fn places(operand: &BoundOperand) -> impl Iterator<Item = usize> {
    let count: usize = operand.shape.iter().product();
    (0..count).map(|element| {
        let mut rest = element;
        let mut place = operand.offset as isize;
        for (&size, &stride) in operand.shape.iter().zip(&operand.strides).rev() {
            place += (rest % size) as isize * stride;
            rest /= size;
        }
        usize::try_from(place).unwrap_or(usize::MAX)
    })
}

/// The program of the same groups, with single precision in place of half precision. Of TF32 it has weights that are
/// rounded.
fn single_program(
    planned: &Planned,
    target: &Target,
    granularity: Granularity,
) -> Result<Program, Error> {
    let refuse = |why: String| Error::flag("--bisect", why);
    let graph = single_graph(&planned.graph)?;
    let program = lower(&graph, &planned.groups, target, granularity)?;
    let names = |program: &Program| -> Vec<String> {
        let steps = program.steps().iter().map(|step| &step.name);
        steps.chain(program.buffers().iter().map(|buffer| &buffer.name)).cloned().collect()
    };
    match names(&program) == names(&planned.program) {
        true => Ok(program),
        false => Err(refuse("in single precision the model has other steps".to_owned())),
    }
}

/// The graph with the same nodes, with single precision in place of half precision.
fn single_graph(graph: &Graph) -> Result<Graph, Error> {
    let mut made = Graph::new();
    for (id, node) in graph.nodes() {
        let failed = |error: &dyn std::fmt::Display| {
            let name = node.name();
            Error::flag(
                "--bisect",
                format!("`{name}` is not computed in single precision: {error}"),
            )
        };
        let value = match node.op() {
            Op::Input => made.add_input(node.name(), single_type(node)).map_err(|e| failed(&e))?,
            Op::Constant(tensor) => made.add_constant(node.name(), single(tensor)?),
            op => {
                let op = match op {
                    Op::Cast { to, saturate } if is_half(*to) => {
                        Op::Cast { to: DType::F32, saturate: *saturate }
                    }
                    op => op.clone(),
                };
                made.add(node.name(), op, node.inputs()).map_err(|e| failed(&e))?.value()
            }
        };
        if value.node != id {
            return Err(failed(&"its number is another"));
        }
    }
    graph.outputs().iter().for_each(|(name, value): &(String, ValueId)| {
        made.add_output(name, *value);
    });
    Ok(made)
}

fn is_half(dtype: DType) -> bool {
    matches!(dtype, DType::F16 | DType::BF16)
}

fn single_type(node: &Node) -> TensorType {
    let mut ty = node.outputs()[0].clone();
    if is_half(ty.dtype) {
        ty.dtype = DType::F32;
    }
    ty
}

/// The tensor, in single precision if it is of half precision.
fn single(tensor: &Tensor) -> Result<Tensor, Error> {
    if !is_half(tensor.dtype()) {
        return Ok(tensor.clone());
    }
    let elements: Vec<f32> = numbers(tensor).map(|x| x as f32).collect();
    Tensor::from_vec(tensor.shape().to_vec(), elements)
        .map_err(|error| Error::Compile(error.into()))
}

#[cfg(test)]
mod tests;
