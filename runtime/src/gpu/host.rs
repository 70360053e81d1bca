//! Steps that no kernel computes: the CPU executor does, on the host, between the launches around them. They are parts of
//! the CUDA graph like any other: D2H copies, a host call, H2D copies. [`Kernels::on_host`](super::Kernels::on_host)
//! names them.

use crate::bind::{BoundOperand, BoundStep, Plan};
use crate::cpu::kernels::view::row_major;
use crate::cpu::{self, Output, leave, owned};
use crate::device::{Buffer, HostCall, Stream};
use crate::error::{Error, Result};
use crate::threads::Threads;
use graphene_frontend::dim::Bindings;
use graphene_frontend::dtype::DType;
use graphene_frontend::tensor::Tensor;
use graphene_fusion::kernels::Refusal;
use graphene_fusion::program::{Operand, Step};
use graphene_fusion::{Granularity, plan};
use graphene_ir::target::Target;
use std::mem;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// A step that falls back to the CPU, compiled for its cores.
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
    pub(super) fn new(step: &Step, why: &Refusal) -> Option<OnHost> {
        let cores = u32::try_from(cpu::threads()).unwrap_or(1);
        let target = Target::cpu(cores);
        let planned = plan(&step.body, &target, Granularity::Fused, &Bindings::new()).ok()?;
        let module = cpu::Module::compile(planned.program).ok()?;
        Some(OnHost { why: why.in_short(), module })
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
    /// Gives it sizes and buffers on a stream.
    ///
    /// # Errors
    /// As for binding on a CPU; [`Error::Unsupported`] for results with gaps between them; as for
    /// [`Stream::host_call`].
    pub(super) fn bind(
        &self,
        stream: &Stream,
        plan: &Plan,
        step: &BoundStep,
        buffers: &[Buffer],
    ) -> Result<HostStep> {
        let mut executable = self.module.executable(plan.bindings())?;
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
                Some(weight) if is_whole(weight, operand) => Source::Weight(weight.clone()),
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
        let told = Arc::clone(&outcome);
        let call = stream.host_call(down, up, move |down, up| {
            let panicked = Error::Unsupported { what: "a step on the host, which panicked," };
            let before = tell(&told, Err(panicked));
            let mut run = || compute(&mut executable, &sources, &results, down, up);
            let outcome = match pool() {
                Some(threads) => threads.run(run),
                None => run(),
            };
            // The first failure stays until somebody has heard of it.
            drop(tell(&told, before.and(outcome)));
        })?;
        Ok(HostStep { call, outcome })
    }
}

/// Leaves what became of a call, and gives what was there.
fn tell(at: &Mutex<Result<()>>, outcome: Result<()>) -> Result<()> {
    mem::replace(&mut *at.lock().unwrap_or_else(PoisonError::into_inner), outcome)
}

impl HostStep {
    /// Launches, behind all that was launched before, and does not wait.
    pub(super) fn launch(&self) -> Result<()> {
        self.call.launch()
    }

    /// The first failure of the calls that are done, told once.
    ///
    /// # Errors
    /// What the CPU executor says; [`Error::Unsupported`] where it panicked.
    pub(super) fn outcome(&self) -> Result<()> {
        tell(&self.outcome, Ok(()))
    }
}

/// Whether a view is a tensor as it is.
fn is_whole(tensor: &Tensor, operand: &BoundOperand) -> bool {
    let packed = row_major(&operand.shape);
    let mut axes = operand.shape.iter().zip(operand.strides.iter().zip(&packed));
    operand.offset == 0
        && tensor.shape() == operand.shape
        && axes.all(|(&size, (own, packed))| size == 1 || own == packed)
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
    // The step is named by whoever asks for its outcome.
    let found = executable.run(&inputs).map_err(|error| match error {
        Error::At { error, .. } => *error,
        other => other,
    })?;
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
    let (mut before, mut after) = (Some(0_usize), Some(1_usize));
    for (&size, &stride) in operand.shape.iter().zip(&operand.strides) {
        let reach = (size - 1).checked_mul(stride.unsigned_abs());
        let side = if stride < 0 { &mut before } else { &mut after };
        *side = side.zip(reach).and_then(|(side, reach)| side.checked_add(reach));
    }
    let sides = before.zip(after).and_then(|(a, b)| Some((a, a.checked_add(b)?)));
    let (before, len) = sides.ok_or(Error::TooLarge { what: "an operand of the host" })?;
    let first = operand.offset.checked_sub(before);
    let first = first.ok_or(Error::Unsupported { what: "a view from before its buffer" })?;
    Ok((first, len))
}

/// The threads that compute, which wait for nothing else: whoever waits for the device may be on a thread of the process's
/// own pool.
fn pool() -> Option<&'static Threads> {
    static POOL: OnceLock<Option<Threads>> = OnceLock::new();
    POOL.get_or_init(|| Threads::new(cpu::threads()).ok()).as_ref()
}

#[cfg(test)]
mod tests {
    use super::{OnHost, Seen, Source, compute, span};
    use crate::bind::{BoundOperand, bind};
    use graphene_frontend::dim::Bindings;
    use graphene_frontend::dtype::DType;
    use graphene_frontend::tensor::Tensor;
    use graphene_frontend::text::parse;
    use graphene_fusion::kernels::Refusal;
    use graphene_fusion::program::Program;
    use graphene_fusion::{Granularity, plan};

    /// The quotient of two matrices of integers, which no kernel computes.
    fn program() -> Program {
        let text = r#"
            %0 = Input : i64[2, 3] "x"
            %1 = Input : i64[2, 3] "w"
            %2 = Div(%0, %1) : i64[2, 3] "quotient"
            return "y" = %2
        "#;
        let graph = parse(text, &[]).expect("a graph");
        let target = "sm_90a".parse().expect("a target");
        let planned = plan(&graph, &target, Granularity::Fused, &Bindings::new());
        planned.expect("it is planned").program
    }

    fn operand(offset: usize, shape: &[usize], strides: &[isize]) -> BoundOperand {
        let plan = bind(&program(), &Bindings::new()).expect("it is bound");
        let (shape, strides) = (shape.to_vec(), strides.to_vec());
        BoundOperand { offset, shape, strides, ..plan.steps()[0].inputs[0].clone() }
    }

    #[test]
    fn spans_go_from_the_first_element_to_the_last() {
        assert_eq!(span(&operand(4, &[2, 3], &[10, 1])), Ok((4, 13)));
        assert_eq!(span(&operand(4, &[2, 3], &[1, -2])), Ok((0, 6)));
        assert_eq!(span(&operand(4, &[5], &[0])), Ok((4, 1)));
        assert_eq!(span(&operand(4, &[5, 0], &[9, 9])), Ok((4, 0)));
        assert_eq!(span(&operand(4, &[], &[])), Ok((4, 1)));
        assert!(span(&operand(3, &[3], &[-2])).is_err());
        assert!(span(&operand(0, &[2, 3], &[1, isize::MAX])).is_err());
    }

    /// A matrix that is turned by a weight, written as it was read; a weight that is none.
    #[test]
    fn bytes_become_bytes_as_operands_view_them() {
        let program = program();
        let step = &program.steps()[0];
        let host = OnHost::new(step, &Refusal::Integers).expect("the CPU takes it");
        assert_eq!(host.why, "arithmetic on integers");
        let mut executable = host.module.executable(&Bindings::new()).expect("it is bound");
        let weight = |w: [i64; 6]| Tensor::from_vec(vec![2, 3], w.to_vec()).expect("a tensor");
        let seen = |operand| Seen { operand, dtype: DType::I64 };
        let x: Vec<u8> = (1..=6).flat_map(|x: i64| (60 * x).to_le_bytes()).collect();
        let results = [seen(operand(0, &[2, 3], &[1, 2]))];
        let mut run = |w| {
            let sources = [Source::Copied(seen(operand(0, &[2, 3], &[1, 2]))), Source::Weight(w)];
            let mut y = [0; 48];
            compute(&mut executable, &sources, &results, &[&x], &mut [&mut y])?;
            let numbers = y.chunks(8).map(|bytes| bytes.try_into().map(i64::from_le_bytes));
            Ok::<_, crate::Error>(numbers.collect::<Result<Vec<_>, _>>().expect("eight bytes each"))
        };
        // x is [[60, 180, 300], [120, 240, 360]]; y lies likewise.
        assert_eq!(run(weight([1, 2, 3, 4, 5, 6])), Ok(vec![60, 30, 90, 48, 100, 60]));
        let other = Tensor::from_vec(vec![3, 2], vec![1_i64; 6]).expect("a tensor");
        assert!(matches!(run(other), Err(crate::Error::Input { .. })));
    }
}
