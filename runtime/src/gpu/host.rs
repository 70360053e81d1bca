//! Steps that no kernel computes: the CPU executor does, on the host, between the launches around them. They are parts of
//! the CUDA graph like any other: copies down, a call, copies up. [`Kernels::on_host`](super::Kernels::on_host) names them.

use crate::bind::{BoundOperand, BoundStep, Plan};
use crate::cpu::{self, Output, leave, owned};
use crate::device::{Buffer, Device, HostCall};
use crate::error::{Error, Result};
use graphene_frontend::dim::Bindings;
use graphene_frontend::dtype::DType;
use graphene_frontend::tensor::Tensor;
use graphene_fusion::program::{Operand, Step};
use graphene_fusion::{Granularity, plan};
use graphene_ir::target::Target;
use rayon::{ThreadPool, ThreadPoolBuilder};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// A step for the host, compiled for its cores.
pub(super) struct OnHost {
    /// Why no kernel computes it.
    pub(super) why: String,
    module: cpu::Module,
}

/// The same with its weights.
pub(super) struct Loaded {
    module: cpu::Module,
    /// For each input its elements, if it is a weight.
    weights: Vec<Option<Tensor>>,
}

/// A step with its buffers and sizes.
pub(super) struct HostStep {
    call: HostCall,
    outcome: Arc<Mutex<Result<()>>>,
}

impl OnHost {
    /// The step by the CPU executor, if that takes it.
    pub(super) fn new(step: &Step, why: &Error) -> Option<OnHost> {
        let cores = u32::try_from(cpu::threads()).unwrap_or(1);
        let target = Target::cpu(cores);
        let planned = plan(&step.body, &target, Granularity::Fused, &Bindings::new()).ok()?;
        let module = cpu::Module::compile(planned.program).ok()?;
        Some(OnHost { why: why.to_string(), module })
    }

    /// Gives it its weights; `tensors` are the program's, by buffer.
    pub(super) fn load(self, step: &Step, tensors: &[Option<Tensor>]) -> Loaded {
        let weight = |input: &Operand| tensors[input.buffer.index()].clone();
        Loaded { module: self.module, weights: step.inputs.iter().map(weight).collect() }
    }
}

/// How the elements that an operand views lie in the bytes that are copied.
struct Seen {
    operand: BoundOperand,
    dtype: DType,
}

/// What an input of the step is.
enum Source {
    Weight(Tensor),
    Copied(Seen),
}

impl Loaded {
    /// Gives it sizes and buffers.
    ///
    /// # Errors
    /// As for binding on a CPU; [`Error::Unsupported`] for results with gaps between them; as for
    /// [`Device::host_call`].
    pub(super) fn bind(
        &self,
        device: &Device,
        plan: &Plan,
        step: &BoundStep,
        buffers: &[Buffer],
    ) -> Result<HostStep> {
        let mut executable = self.module.bind(plan.bindings())?;
        let dtype = |operand: &BoundOperand| plan.buffers()[operand.buffer.index()].dtype;
        let part = |operand: &BoundOperand| -> Result<(Buffer, Seen)> {
            let (first, len) = span(operand)?;
            let seen = BoundOperand { offset: operand.offset - first, ..operand.clone() };
            let (dtype, size) = (dtype(operand), dtype(operand).size());
            let bytes = buffers[operand.buffer.index()].part(first * size, len * size)?;
            Ok((bytes, Seen { operand: seen, dtype }))
        };
        let (mut down, mut sources) = (Vec::new(), Vec::with_capacity(step.inputs.len()));
        for (operand, weight) in step.inputs.iter().zip(&self.weights) {
            sources.push(match weight {
                Some(weight) => Source::Weight(owned(weight.bytes(), operand, dtype(operand))?),
                None => {
                    let (bytes, seen) = part(operand)?;
                    down.push(bytes);
                    Source::Copied(seen)
                }
            });
        }
        let (mut up, mut results) = (Vec::new(), Vec::with_capacity(step.outputs.len()));
        for operand in &step.outputs {
            let (bytes, seen) = part(operand)?;
            let elements: usize = operand.shape.iter().product();
            if bytes.len() != elements * seen.dtype.size() {
                return Err(Error::Unsupported {
                    what: "a step of the host with gaps in its result",
                });
            }
            up.push(bytes);
            results.push(seen);
        }
        let outcome = Arc::new(Mutex::new(Ok(())));
        let said = Arc::clone(&outcome);
        let say = move |outcome| *said.lock().unwrap_or_else(PoisonError::into_inner) = outcome;
        let call = device.host_call(down, up, move |down, up| {
            // This stays if what follows panics.
            say(Err(Error::Unsupported { what: "a step on the host, which panicked," }));
            let mut run = || compute(&mut executable, &sources, &results, down, up);
            say(match pool() {
                Some(pool) => pool.install(run),
                None => run(),
            });
        })?;
        Ok(HostStep { call, outcome })
    }
}

impl HostStep {
    /// Launches, behind all that was launched before, and does not wait.
    pub(super) fn launch(&self) -> Result<()> {
        self.call.launch()
    }

    /// What became of the last call that is done.
    pub(super) fn outcome(&self) -> Result<()> {
        self.outcome.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// From bytes that came down to bytes that go up.
fn compute(
    executable: &mut cpu::Executable,
    sources: &[Source],
    results: &[Seen],
    down: &[&[u8]],
    up: &mut [&mut [u8]],
) -> Result<()> {
    let mut down = down.iter();
    let mut inputs = Vec::with_capacity(sources.len());
    for source in sources {
        inputs.push(match source {
            Source::Weight(weight) => weight.clone(),
            Source::Copied(Seen { operand, dtype }) => {
                owned(down.next().copied().unwrap_or_default(), operand, *dtype)?
            }
        });
    }
    let found = executable.run(&inputs)?;
    for ((bytes, Seen { operand, dtype }), found) in up.iter_mut().zip(results).zip(&found) {
        leave(&mut Output { bytes, operand, dtype: *dtype }, found)?;
    }
    Ok(())
}

/// The first element that a view reaches, and how many there are from there to its last.
fn span(operand: &BoundOperand) -> Result<(usize, usize)> {
    if operand.shape.contains(&0) {
        return Ok((operand.offset, 0));
    }
    let (mut low, mut high) = (0_usize, 0_usize);
    for (&size, &stride) in operand.shape.iter().zip(&operand.strides) {
        let reach = (size - 1).checked_mul(stride.unsigned_abs());
        let reach = reach.ok_or(Error::TooLarge { what: "an operand of the host" })?;
        *(if stride < 0 { &mut low } else { &mut high }) += reach;
    }
    let first = operand.offset.checked_sub(low);
    let first = first.ok_or(Error::Unsupported { what: "a view from before its buffer" })?;
    Ok((first, low + high + 1))
}

/// The threads that compute, which wait for nothing else: whoever waits for the device may be on a thread of the process's
/// own pool.
fn pool() -> Option<&'static ThreadPool> {
    static POOL: OnceLock<Option<ThreadPool>> = OnceLock::new();
    POOL.get_or_init(|| ThreadPoolBuilder::new().num_threads(cpu::threads()).build().ok()).as_ref()
}
