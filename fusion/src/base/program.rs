//! Programs: what executors run.
//!
//! A [`Program`] is a list of steps over buffers. A step is one launch: a small body graph, its family, and for
//! each of the body's inputs and outputs the view of a buffer. Sizes are still expressions; binding gives them
//! numbers.

use crate::base::groups::{Executor, Family, GroupId};
use crate::base::variants::Variants;
use crate::base::view::View;
use graphene_frontend::infer::{InferError, infer};
use graphene_frontend::{Bindings, DType, Dim, Graph, Op, Symbol, Tensor, TensorType};
use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

position! {
    /// A buffer, by its position in [`Program::buffers`]. Prints as `@3`.
    BufferId, "@"
}
position! {
    /// A step, by its position in [`Program::steps`]: so all texts about a plan name it, and the group that it launches.
    /// Prints as `#3`.
    StepId, "#"
}

/// Memory that steps read and write.
#[derive(Clone, Debug)]
pub struct Buffer {
    /// Name of the value that it holds, for reports.
    pub name: String,
    /// Its element type.
    pub dtype: DType,
    /// Its size in elements.
    pub elements: Dim,
    /// Where it lives.
    pub kind: BufferKind,
}

impl BufferKind {
    /// A weight that such a graph makes.
    pub(crate) fn derived(recipe: Graph) -> Self {
        Self::Weight(Weight::Derived(Arc::new(recipe)))
    }
}

impl Buffer {
    /// Whether it is read-only for the life of the program.
    pub fn is_weight(&self) -> bool {
        matches!(self.kind, BufferKind::Weight(_))
    }

    /// Whether it is a weight made of others.
    pub fn is_derived(&self) -> bool {
        matches!(self.kind, BufferKind::Weight(Weight::Derived(_)))
    }
}

/// Where the elements of a weight come from.
#[derive(Clone, Debug)]
pub enum Weight {
    /// The model has them.
    Given(Tensor),
    /// They are made of the model's once, when the program is compiled: the only output of a graph without inputs.
    Derived(Arc<Graph>),
    /// An executor has taken them: it holds what it needs of them, as it needs it.
    Released,
}

/// Where a buffer lives.
#[derive(Clone, Debug)]
pub enum BufferKind {
    /// Given by the caller: the input of this number.
    Input(usize),
    /// Read-only for the life of the program.
    Weight(Weight),
    /// Handed to the caller: the output of this number.
    Output(usize),
    /// In the arena, alive from its first writer to its last reader.
    Intermediate,
}

/// A view of a buffer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Operand {
    /// The buffer.
    pub buffer: BufferId,
    /// How it is read or written; its shape is the value's.
    pub view: View,
}

/// What a step is there for.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Origin {
    /// It is the launch of a group.
    Group(GroupId),
    /// It copies what a group reads row-major only.
    Before(GroupId),
    /// It copies a value into the output of this number.
    Output(usize),
}

/// One launch.
#[derive(Clone, Debug)]
pub struct Step {
    /// What it is there for.
    pub origin: Origin,
    /// Name for reports: the operations in it, and where in the model they are.
    pub name: String,
    /// What kind of launch it is.
    pub family: Family,
    /// What executes it.
    pub executor: Executor,
    /// The kernels that it is compiled as; binding takes one of them.
    pub variants: Variants,
    /// Names of the model's nodes that it computes.
    pub nodes: Vec<String>,
    /// What it computes, from inputs to outputs.
    pub body: Arc<Graph>,
    /// What the body's inputs read.
    pub inputs: Vec<Operand>,
    /// What the body's outputs write; contiguous unless the family writes through views.
    pub outputs: Vec<Operand>,
    /// Pairs (output, input) where the output may take the input's memory if nobody reads it later.
    pub in_place: Vec<(usize, usize)>,
}

/// An operation that takes its symbolic inputs at some sizes only: a known size met a symbolic one, or a range
/// must lie within a dim.
#[derive(Clone, PartialEq, Debug)]
pub struct Condition {
    /// The name of the model's node.
    pub name: String,
    /// The operation.
    pub op: Op,
    /// Types of its inputs.
    pub inputs: Vec<Option<TensorType>>,
}

impl Condition {
    /// Infers the operation anew at these sizes.
    ///
    /// # Errors
    /// [`InferError`] if the inputs do not fit the operation or a symbol that they need has no size.
    pub fn check(&self, bindings: &Bindings) -> Result<(), InferError> {
        let bound = |ty: &TensorType| ty.substitute(bindings);
        let inputs = self.inputs.iter().map(|ty| ty.as_ref().map(bound).transpose());
        let inputs: Vec<_> = inputs.collect::<Result<_, _>>()?;
        let inputs: Vec<_> = inputs.iter().map(Option::as_ref).collect();
        infer(&self.op.substitute(bindings)?, &inputs).map(drop)
    }
}

/// A model ready to be bound and run.
#[derive(Clone, Debug)]
pub struct Program {
    pub(crate) inputs: Vec<(String, TensorType)>,
    pub(crate) outputs: Vec<(String, TensorType)>,
    pub(crate) conditions: Vec<Condition>,
    pub(crate) buffers: Vec<Buffer>,
    pub(crate) steps: Vec<Step>,
    pub(crate) bf16: bool,
}

impl Program {
    /// Names and types of the inputs, in order.
    pub fn inputs(&self) -> &[(String, TensorType)] {
        &self.inputs
    }

    /// Names and types of the outputs, in order.
    pub fn outputs(&self) -> &[(String, TensorType)] {
        &self.outputs
    }

    /// What sizes must fulfil, beyond what was proved in symbols.
    pub fn conditions(&self) -> &[Condition] {
        &self.conditions
    }

    /// All buffers.
    pub fn buffers(&self) -> &[Buffer] {
        &self.buffers
    }

    /// The names of all buffers, in their order.
    pub fn buffer_ids(&self) -> impl Iterator<Item = BufferId> + use<> {
        (0..self.buffers.len()).map(BufferId::from_index)
    }

    /// The buffer.
    pub fn buffer(&self, id: BufferId) -> &Buffer {
        &self.buffers[id.index()]
    }

    /// The steps, in the order in which they run.
    pub fn steps(&self) -> &[Step] {
        &self.steps
    }

    /// The step.
    pub fn step(&self, id: StepId) -> &Step {
        &self.steps[id.index()]
    }

    /// The names of all steps, in their order.
    pub fn step_ids(&self) -> impl Iterator<Item = StepId> + use<> {
        (0..self.steps.len()).map(StepId::from_index)
    }

    /// Whether matmuls of single precision by weights may round both operands to bf16, as
    /// [its target](graphene_ir::target::Target::bf16) says.
    pub fn allows_bf16(&self) -> bool {
        self.bf16
    }

    /// The step that launches a group; `None` for a change of view that moves nothing.
    pub fn step_of(&self, group: GroupId) -> Option<StepId> {
        let is = |step: &Step| step.origin == Origin::Group(group);
        self.steps.iter().position(is).map(StepId::from_index)
    }

    /// Bytes of the weights that are made when the program is compiled.
    pub fn made_bytes(&self) -> u64 {
        let made = |buffer: &&Buffer| buffer.is_derived();
        let bytes = self.buffers.iter().filter(made).map(|buffer| {
            let elements = buffer.elements.known().and_then(|n| u64::try_from(n).ok());
            elements.unwrap_or(u64::MAX).saturating_mul(buffer.dtype.size() as u64)
        });
        bytes.fold(0, u64::saturating_add)
    }

    /// Takes a weight out of the program, which remembers only that it had one; `None` for what is no weight, or was
    /// taken before. Executors take weights one by one and let go of each when they have what they need of it, so
    /// that weights are in memory once; whoever keeps a clone of the program, the graph that it was planned from, or
    /// the plan around it keeps all of them in memory besides.
    pub fn take_weight(&mut self, id: BufferId) -> Option<Weight> {
        let BufferKind::Weight(weight) = &mut self.buffers[id.index()].kind else { return None };
        match std::mem::replace(weight, Weight::Released) {
            Weight::Released => None,
            weight => Some(weight),
        }
    }

    /// Takes all weights out of the program and drops them.
    pub fn release_weights(&mut self) {
        for id in self.buffer_ids() {
            drop(self.take_weight(id));
        }
    }

    /// Leaves a step to its own kernels at all sizes: for a machine without the library that computes some of them faster.
    pub fn without_library(&mut self, step: StepId) {
        self.steps[step.index()].variants.without_library();
    }

    /// Drops variants that no sizes take, since one before them always applies.
    pub fn without_unreachable(&mut self) {
        self.steps.iter_mut().for_each(|step| step.variants.without_unreachable());
    }

    /// Symbols that need a size before the program can run.
    pub fn symbols(&self) -> BTreeSet<Symbol> {
        self.inputs.iter().flat_map(|(_, ty)| &ty.shape).flat_map(Dim::symbols).collect()
    }
}

impl fmt::Display for Operand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.buffer, self.view)
    }
}

impl fmt::Display for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "program {{")?;
        if self.bf16 {
            writeln!(f, "  matmuls by weights may round to bf16")?;
        }
        for (i, buffer) in self.buffers.iter().enumerate() {
            let kind = match &buffer.kind {
                BufferKind::Input(n) => format!("input {n}"),
                BufferKind::Weight(Weight::Given(_)) => "weight".to_owned(),
                BufferKind::Weight(Weight::Released) => "released weight".to_owned(),
                BufferKind::Weight(Weight::Derived(_)) => "derived weight".to_owned(),
                BufferKind::Output(n) => format!("output {n}"),
                BufferKind::Intermediate => "intermediate".to_owned(),
            };
            writeln!(f, "  @{i} = {kind} {}[{}] {:?}", buffer.dtype, buffer.elements, buffer.name)?;
        }
        for (id, step) in self.step_ids().zip(&self.steps) {
            writeln!(f, "  {id} {} {:?}{}", step.family, step.name, step.executor.suffix())?;
            if step.variants.all().len() > 1 {
                writeln!(f, "    variants {}", step.variants)?;
            }
            for operand in &step.inputs {
                writeln!(f, "    reads  {operand}")?;
            }
            for operand in &step.outputs {
                writeln!(f, "    writes {operand}")?;
            }
        }
        writeln!(f, "}}")
    }
}
