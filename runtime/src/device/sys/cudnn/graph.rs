//! cuDNN's graphs of operations: the plans that its heuristics propose for one, and their runs.

use super::super::recording::Outside;
use super::super::stream::Stream;
use super::Handle;
use super::descriptor::{
    Attribute, BehaviorNote, Descriptor, Kind, NumericalNote, Pointer, State, making, refused,
};
use crate::error::{Error, Result};
use cudarc::cudnn::sys::{
    self, cudnnBackendBehaviorNote_t as Behavior, cudnnBackendHeurMode_t as Mode,
    cudnnBackendNumericalNote_t as Numerics, cudnnConvolutionMode_t, cudnnDataType_t as DataType,
    cudnnPointwiseMode_t, cudnnReduceTensorOp_t,
};
use std::ffi::c_void;
use std::ptr;
use std::sync::{Arc, Mutex, PoisonError};

/// A tensor of a graph: as many sizes as strides, in elements.
#[derive(Debug, Clone, PartialEq)]
pub(in crate::device) struct Tensor {
    pub(in crate::device) elements: Elements,
    pub(in crate::device) sizes: Vec<i64>,
    pub(in crate::device) strides: Vec<i64>,
    pub(in crate::device) place: Place,
}

/// What a tensor's elements are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(in crate::device) enum Elements {
    F32,
    F16,
    Bf16,
    I32,
    Bool,
}

/// Where a tensor is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::device) enum Place {
    /// On the device, at multiples of 16 bytes.
    Device,
    /// Inside of the graph.
    Inside,
    /// One number, given as it is.
    Number,
}

/// What a tensor is numbered by: its place among a graph's tensors.
pub(in crate::device) type Id = usize;

/// An operation of a graph.
#[derive(Debug, Clone, PartialEq)]
pub(in crate::device) enum Operation {
    /// `c = a · b`, accumulated in f32.
    MatMul { a: Id, b: Id, c: Id },
    /// `y = f(x, b, t)`, computed in a type.
    Pointwise { f: Pointwise, x: Id, b: Option<Id>, t: Option<Id>, y: Id },
    /// `y` = all elements of `x` along the axes that are one in `y`.
    Reduce { f: Reduction, x: Id, y: Id },
    /// `y = x ∗ w`, accumulated in f32; groups are as many as channels of `x` are a multiple of those of `w`.
    Convolve { windows: Windows, x: Id, w: Id, y: Id },
}

/// How windows lie on an image: a number for each spatial axis.
#[derive(Debug, Clone, PartialEq)]
pub(in crate::device) struct Windows {
    pub(in crate::device) strides: Vec<i64>,
    pub(in crate::device) dilations: Vec<i64>,
    /// Zeros before the first pixels.
    pub(in crate::device) before: Vec<i64>,
    /// Zeros after the last pixels.
    pub(in crate::device) after: Vec<i64>,
}

/// What is said of an engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::device) enum Note {
    /// It multiplies on tensor cores: f32 as TF32.
    TensorCore,
    /// It rounds operands to a smaller type.
    DownConvertInputs,
    /// It sums in a smaller type than f32.
    ReducedPrecisionReduction,
    /// Its results differ from run to run.
    Nondeterministic,
    /// It compiles code when it is made ready.
    RuntimeCompilation,
}

/// A pointwise function.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::device) enum Pointwise {
    Add,
    Sub,
    Mul,
    Div,
    Exp,
    Log,
    /// The index along an axis.
    Index(i64),
    /// x ≥ b
    GreaterOrEqual,
    /// x where t holds, b elsewhere.
    Select,
    /// max(x, 0)
    Relu,
    /// x + 0·b: where an engine knows a graph by its addend only. It does not read b.
    AddNone,
}

/// A reduction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::device) enum Reduction {
    Max,
    Add,
}

impl Pointwise {
    fn mode(self) -> cudnnPointwiseMode_t {
        match self {
            Self::Add | Self::AddNone => cudnnPointwiseMode_t::CUDNN_POINTWISE_ADD,
            Self::Sub => cudnnPointwiseMode_t::CUDNN_POINTWISE_SUB,
            Self::Mul => cudnnPointwiseMode_t::CUDNN_POINTWISE_MUL,
            Self::Div => cudnnPointwiseMode_t::CUDNN_POINTWISE_DIV,
            Self::Exp => cudnnPointwiseMode_t::CUDNN_POINTWISE_EXP,
            Self::Log => cudnnPointwiseMode_t::CUDNN_POINTWISE_LOG,
            Self::Index(_) => cudnnPointwiseMode_t::CUDNN_POINTWISE_GEN_INDEX,
            Self::GreaterOrEqual => cudnnPointwiseMode_t::CUDNN_POINTWISE_CMP_GE,
            Self::Select => cudnnPointwiseMode_t::CUDNN_POINTWISE_BINARY_SELECT,
            Self::Relu => cudnnPointwiseMode_t::CUDNN_POINTWISE_RELU_FWD,
        }
    }

    /// The type in which it is computed.
    fn precision(self) -> DataType {
        match self {
            Self::GreaterOrEqual => DataType::CUDNN_DATA_BOOLEAN,
            Self::Add
            | Self::Sub
            | Self::Mul
            | Self::Div
            | Self::Exp
            | Self::Log
            | Self::Index(_)
            | Self::Select
            | Self::Relu
            | Self::AddNone => DataType::CUDNN_DATA_FLOAT,
        }
    }
}

impl Elements {
    fn data_type(self) -> DataType {
        match self {
            Self::F32 => DataType::CUDNN_DATA_FLOAT,
            Self::F16 => DataType::CUDNN_DATA_HALF,
            Self::Bf16 => DataType::CUDNN_DATA_BFLOAT16,
            Self::I32 => DataType::CUDNN_DATA_INT32,
            Self::Bool => DataType::CUDNN_DATA_BOOLEAN,
        }
    }
}

/// What proposes ways to compute a graph.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::device) enum Heuristic {
    /// The library's model of time.
    Model,
    /// What it has for graphs that this knows nothing of.
    Fallback,
}

/// Operations that the library computes together.
pub(in crate::device) struct Graph(Arc<Descriptor>);

impl Graph {
    /// Describes tensors and operations, which are in an order in which they can run.
    pub(in crate::device) fn new(
        handle: &Handle,
        tensors: &[Tensor],
        operations: &[Operation],
    ) -> Result<Graph> {
        let locked = handle.lock()?;
        let tensors = tensors.iter().enumerate().map(|(id, tensor)| described(id, tensor));
        let tensors: Vec<Arc<Descriptor>> = tensors.collect::<Result<_>>()?;
        let operations: Vec<Arc<Descriptor>> =
            operations.iter().map(|op| operation(op, &tensors)).collect::<Result<_>>()?;
        let operations: Vec<&Arc<Descriptor>> = operations.iter().collect();
        let graph = making(Kind::CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR)?
            .refer(Attribute::CUDNN_ATTR_OPERATIONGRAPH_OPS, &operations)?
            .set(Attribute::CUDNN_ATTR_OPERATIONGRAPH_HANDLE, &[State(locked.raw())])?
            .finish()?;
        Ok(Graph(graph))
    }

    /// The ways to compute it that the library's heuristics propose, at most so many, in their order: those of its model of
    /// time, or if that has none, those that it falls back to.
    pub(in crate::device) fn ways(&self, handle: &Handle, most: usize) -> Result<Vec<Way>> {
        for heuristic in [Heuristic::Model, Heuristic::Fallback] {
            let found = self.ways_by(handle, heuristic, most, &[])?;
            if !found.is_empty() {
                return Ok(found);
            }
        }
        Ok(Vec::new())
    }

    /// Those of one heuristic, whose engines have no note that is barred.
    pub(in crate::device) fn ways_by(
        &self,
        handle: &Handle,
        heuristic: Heuristic,
        most: usize,
        barred: &[Note],
    ) -> Result<Vec<Way>> {
        /// So many are looked at where some are barred.
        const LISTED: usize = 64;
        let listed = if barred.is_empty() { most } else { LISTED };
        let mode = match heuristic {
            Heuristic::Model => Mode::CUDNN_HEUR_MODE_A,
            Heuristic::Fallback => Mode::CUDNN_HEUR_MODE_FALLBACK,
        };
        let _locked = handle.lock()?;
        let heuristic = making(Kind::CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR)?
            .refer(Attribute::CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, &[&self.0])?
            .set(Attribute::CUDNN_ATTR_ENGINEHEUR_MODE, &[mode])?
            .finish()?;
        let (results, kind) =
            (Attribute::CUDNN_ATTR_ENGINEHEUR_RESULTS, Kind::CUDNN_BACKEND_ENGINECFG_DESCRIPTOR);
        let proposed = heuristic.objects(results, kind, listed)?;
        let (some, mut ways) = (!proposed.is_empty(), Vec::new());
        for way in proposed.into_iter().map(Way) {
            if barred.is_empty() || !way.notes()?.iter().any(|note| barred.contains(note)) {
                ways.push(way);
            }
        }
        ways.truncate(most);
        match some && ways.is_empty() {
            true => Err(Error::Unsupported {
                what: "a graph for which all of cuDNN's engines are barred",
            }),
            false => Ok(ways),
        }
    }
}

fn described(id: Id, tensor: &Tensor) -> Result<Arc<Descriptor>> {
    const ALIGNMENT: i64 = 16;
    let making = making(Kind::CUDNN_BACKEND_TENSOR_DESCRIPTOR)?
        .set(Attribute::CUDNN_ATTR_TENSOR_DATA_TYPE, &[tensor.elements.data_type()])?
        .set(Attribute::CUDNN_ATTR_TENSOR_DIMENSIONS, &tensor.sizes)?
        .set(Attribute::CUDNN_ATTR_TENSOR_STRIDES, &tensor.strides)?
        .set(Attribute::CUDNN_ATTR_TENSOR_UNIQUE_ID, &[unique(id)])?
        .set(Attribute::CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, &[ALIGNMENT])?;
    match tensor.place {
        Place::Device => making,
        Place::Inside => making.set(Attribute::CUDNN_ATTR_TENSOR_IS_VIRTUAL, &[true])?,
        Place::Number => making.set(Attribute::CUDNN_ATTR_TENSOR_IS_BY_VALUE, &[true])?,
    }
    .finish()
}

/// The library's number of a tensor.
fn unique(id: Id) -> i64 {
    id as i64 + 1
}

fn operation(operation: &Operation, tensors: &[Arc<Descriptor>]) -> Result<Arc<Descriptor>> {
    let float = DataType::CUDNN_DATA_FLOAT;
    match *operation {
        Operation::MatMul { a, b, c } => {
            let how = making(Kind::CUDNN_BACKEND_MATMUL_DESCRIPTOR)?
                .set(Attribute::CUDNN_ATTR_MATMUL_COMP_TYPE, &[float])?
                .finish()?;
            making(Kind::CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR)?
                .refer(Attribute::CUDNN_ATTR_OPERATION_MATMUL_ADESC, &[&tensors[a]])?
                .refer(Attribute::CUDNN_ATTR_OPERATION_MATMUL_BDESC, &[&tensors[b]])?
                .refer(Attribute::CUDNN_ATTR_OPERATION_MATMUL_CDESC, &[&tensors[c]])?
                .refer(Attribute::CUDNN_ATTR_OPERATION_MATMUL_DESC, &[&how])?
                .finish()
        }
        Operation::Pointwise { f, x, b, t, y } => {
            let mut how = making(Kind::CUDNN_BACKEND_POINTWISE_DESCRIPTOR)?
                .set(Attribute::CUDNN_ATTR_POINTWISE_MODE, &[f.mode()])?
                .set(Attribute::CUDNN_ATTR_POINTWISE_MATH_PREC, &[f.precision()])?;
            if let Pointwise::Index(axis) = f {
                how = how.set(Attribute::CUDNN_ATTR_POINTWISE_AXIS, &[axis])?;
            }
            let mut making = making(Kind::CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR)?
                .refer(Attribute::CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, &[&how.finish()?])?
                .refer(Attribute::CUDNN_ATTR_OPERATION_POINTWISE_XDESC, &[&tensors[x]])?
                .refer(Attribute::CUDNN_ATTR_OPERATION_POINTWISE_YDESC, &[&tensors[y]])?;
            if let Some(b) = b {
                making = making
                    .refer(Attribute::CUDNN_ATTR_OPERATION_POINTWISE_BDESC, &[&tensors[b]])?;
            }
            if f == Pointwise::AddNone {
                making =
                    making.set(Attribute::CUDNN_ATTR_OPERATION_POINTWISE_ALPHA2, &[0.0_f32])?;
            }
            if let Some(t) = t {
                making = making
                    .refer(Attribute::CUDNN_ATTR_OPERATION_POINTWISE_TDESC, &[&tensors[t]])?;
            }
            making.finish()
        }
        Operation::Convolve { ref windows, x, w, y } => {
            let Windows { strides, dilations, before, after } = windows;
            let mode = cudnnConvolutionMode_t::CUDNN_CROSS_CORRELATION;
            let axes = strides.len() as i64;
            let how = making(Kind::CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR)?
                .set(Attribute::CUDNN_ATTR_CONVOLUTION_COMP_TYPE, &[float])?
                .set(Attribute::CUDNN_ATTR_CONVOLUTION_CONV_MODE, &[mode])?
                .set(Attribute::CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, &[axes])?
                .set(Attribute::CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, before)?
                .set(Attribute::CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, after)?
                .set(Attribute::CUDNN_ATTR_CONVOLUTION_DILATIONS, dilations)?
                .set(Attribute::CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, strides)?
                .finish()?;
            making(Kind::CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR)?
                .refer(Attribute::CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X, &[&tensors[x]])?
                .refer(Attribute::CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W, &[&tensors[w]])?
                .refer(Attribute::CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y, &[&tensors[y]])?
                .refer(Attribute::CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC, &[&how])?
                .set(Attribute::CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA, &[1.0_f32])?
                .set(Attribute::CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_BETA, &[0.0_f32])?
                .finish()
        }
        Operation::Reduce { f, x, y } => {
            let f = match f {
                Reduction::Max => cudnnReduceTensorOp_t::CUDNN_REDUCE_TENSOR_MAX,
                Reduction::Add => cudnnReduceTensorOp_t::CUDNN_REDUCE_TENSOR_ADD,
            };
            let how = making(Kind::CUDNN_BACKEND_REDUCTION_DESCRIPTOR)?
                .set(Attribute::CUDNN_ATTR_REDUCTION_COMP_TYPE, &[float])?
                .set(Attribute::CUDNN_ATTR_REDUCTION_OPERATOR, &[f])?
                .finish()?;
            making(Kind::CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR)?
                .refer(Attribute::CUDNN_ATTR_OPERATION_REDUCTION_DESC, &[&how])?
                .refer(Attribute::CUDNN_ATTR_OPERATION_REDUCTION_XDESC, &[&tensors[x]])?
                .refer(Attribute::CUDNN_ATTR_OPERATION_REDUCTION_YDESC, &[&tensors[y]])?
                .finish()
        }
    }
}

/// A way to compute a graph.
pub(in crate::device) struct Way(Arc<Descriptor>);

/// A way that is ready to run on any operands.
pub(in crate::device) struct Plan {
    descriptor: Outside<Arc<Descriptor>>,
    workspace: usize,
    running: Mutex<()>,
    /// What it was made with, kept as long.
    _handle: Arc<Outside<Handle>>,
}

impl Way {
    /// What is said of its engine, of what there are names for here.
    fn notes(&self) -> Result<Vec<Note>> {
        let (name, kind) =
            (Attribute::CUDNN_ATTR_ENGINECFG_ENGINE, Kind::CUDNN_BACKEND_ENGINE_DESCRIPTOR);
        let engine = self.0.object(name, kind)?;
        let none = NumericalNote(Numerics::CUDNN_NUMERICAL_NOTE_TYPE_COUNT as u32);
        let numerics = vec![none; none.0 as usize];
        let numerics = engine.notes(Attribute::CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, numerics)?;
        let none = BehaviorNote(Behavior::CUDNN_BEHAVIOR_NOTE_TYPE_COUNT as u32);
        let behavior = vec![none; none.0 as usize];
        let behavior = engine.notes(Attribute::CUDNN_ATTR_ENGINE_BEHAVIOR_NOTE, behavior)?;
        let compiles = Behavior::CUDNN_BEHAVIOR_NOTE_RUNTIME_COMPILATION as u32;
        let compiles = behavior.contains(&BehaviorNote(compiles));
        let named = [
            (Numerics::CUDNN_NUMERICAL_NOTE_TENSOR_CORE, Note::TensorCore),
            (Numerics::CUDNN_NUMERICAL_NOTE_DOWN_CONVERT_INPUTS, Note::DownConvertInputs),
            (
                Numerics::CUDNN_NUMERICAL_NOTE_REDUCED_PRECISION_REDUCTION,
                Note::ReducedPrecisionReduction,
            ),
            (Numerics::CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC, Note::Nondeterministic),
        ];
        let said = named.iter().filter(|(of, _)| numerics.contains(&NumericalNote(*of as u32)));
        let said = said.map(|(_, note)| *note);
        Ok(said.chain(compiles.then_some(Note::RuntimeCompilation)).collect())
    }

    /// Makes it ready, which may compile code.
    pub(in crate::device) fn plan(&self, handle: &Arc<Outside<Handle>>) -> Result<Plan> {
        let _guard = handle.context.exclude_recording("a plan while a graph is recorded")?;
        let locked = handle.lock()?;
        let descriptor = making(Kind::CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR)?
            .refer(Attribute::CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, &[&self.0])?
            .finish()?;
        let workspace = descriptor.number(Attribute::CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE)?;
        let workspace = usize::try_from(workspace)
            .map_err(|_| Error::TooLarge { what: "a workspace for cuDNN" })?;
        let (descriptor, running) = (Outside::new(descriptor), Mutex::default());
        drop(locked);
        Ok(Plan { descriptor, workspace, running, _handle: Arc::clone(handle) })
    }
}

/// Where a graph's tensors and the workspace are.
pub(in crate::device) struct Pack {
    descriptor: Arc<Descriptor>,
    /// What tensors point to that are given as they are.
    _numbers: Box<[f32]>,
}

impl Pack {
    /// `memories` are tensors on the device with where they lie, and `numbers` those that are given as they are.
    pub(in crate::device) fn new(
        memories: &[(Id, u64)],
        numbers: &[(Id, f32)],
        workspace: u64,
    ) -> Result<Pack> {
        let mut held: Box<[f32]> = numbers.iter().map(|&(_, number)| number).collect();
        let mut at = Vec::with_capacity(memories.len() + numbers.len());
        at.extend(memories.iter().map(|&(id, at)| (unique(id), Pointer(at as *mut c_void))));
        for (&(id, _), number) in numbers.iter().zip(held.iter_mut()) {
            at.push((unique(id), Pointer(ptr::from_mut(number).cast())));
        }
        let (ids, at): (Vec<i64>, Vec<Pointer>) = at.into_iter().unzip();
        let descriptor = making(Kind::CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR)?
            .set(Attribute::CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, &at)?
            .set(Attribute::CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, &ids)?
            .set(
                Attribute::CUDNN_ATTR_VARIANT_PACK_WORKSPACE,
                &[Pointer(workspace as *mut c_void)],
            )?
            .finish()?;
        Ok(Pack { descriptor, _numbers: held })
    }
}

impl Plan {
    /// Bytes of the workspace.
    pub(in crate::device) fn workspace(&self) -> usize {
        self.workspace
    }

    /// Computes, behind all work of the stream, whose memory the pointers are; the caller has checked lengths.
    pub(in crate::device) fn run(
        &self,
        (handle, stream): (&Handle, &Stream),
        pack: &Pack,
    ) -> Result<()> {
        let locked = handle.launching(stream)?;
        // The library does not say that two threads may run one plan at once.
        let _alone = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        let (plan, pack) = (self.descriptor.raw(), pack.descriptor.raw());
        // SAFETY: all objects live, as do the numbers that the pack points to, and the memories are the device's.
        let status = unsafe { sys::cudnnBackendExecute(locked.raw(), plan, pack) };
        refused("cudnnBackendExecute", status, || "an execution plan".to_owned())
    }
}
