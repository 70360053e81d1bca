//! How a model is loaded: read, imported, planned, compiled, warmed up.

mod sizing;
mod source;

pub use sizing::{RequestedSizes, Role, Roles, Sizing};
pub use source::{Given, Imported, Source, Specialised};

use crate::bind::{Plan, bind, bind_on};
use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::executor::{Module, Progress};
use crate::model::{Model, Profile, Signature};
use crate::trace::Span;
use graphene_frontend::dim::{Bindings, Symbol};
use graphene_frontend::dtype::DType;
use graphene_frontend::graph::Graph;
use graphene_frontend::import::Reading;
use graphene_frontend::tensor::Tensor;
use graphene_fusion::{Granularity, Planned, plan_in};
use graphene_ir::arch::Feature;
use graphene_ir::target::{Kind, Target};
use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;
use std::sync::Arc;

/// The elements that a model computes with.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[non_exhaustive]
pub enum Dtype {
    /// Those of the model.
    #[default]
    Model,
    /// Single precision.
    F32,
    /// Single precision, whose matmuls and attention round their operands to TF32: on GPUs from sm_80 on.
    Tf32,
    /// fp16 in place of single precision: on GPUs.
    F16,
    /// bf16 in place of single precision on GPUs; on a CPU single precision, whose matmuls by weights round both operands to
    /// bf16, as which the weights are kept.
    Bf16,
}

/// How a model's graph becomes launches.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[non_exhaustive]
pub enum Execution {
    /// Groups of operations are one kernel each.
    #[default]
    Fused,
    /// An operation is a call of a library: what fused execution is compared with.
    Library,
}

/// How a model is to be loaded; see [`Engine::model`].
///
/// ```
/// # use graphene_runtime::{Engine, Profile};
/// # let zoo = graphene_models::build("mlp-2x4", &graphene_models::Options::default())?;
/// # let source = graphene_runtime::Source::with_external(zoo.encode(), zoo.weights().clone());
/// let engine = Engine::new()?;
/// let profile = Profile::new().buckets("batch", [1, 8]);
/// // Both batches run once before the first request comes.
/// let model = engine.model().profile(profile).warm().load_from(&source)?;
/// assert!(engine.memory_used() > 0);
/// # drop(model);
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct ModelBuilder {
    engine: Engine,
    dtype: Dtype,
    execution: Execution,
    target: Option<Target>,
    typical: BTreeMap<String, i64>,
    given: Given,
    profile: Profile,
    reading: Reading,
    warm: bool,
    progress: Shown,
}

/// What is told how far loading is.
#[derive(Clone)]
struct Shown(Arc<dyn Fn(Progress) + Send + Sync>);

impl fmt::Debug for Shown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a function")
    }
}

impl Engine {
    /// Loads a model file with the default settings, in memory of the process's own.
    ///
    /// # Errors
    /// As for [`ModelBuilder::load`].
    pub fn load(&self, path: impl AsRef<Path>) -> Result<Model> {
        self.model().load(path)
    }

    /// A model with settings of one's own.
    pub fn model(&self) -> ModelBuilder {
        ModelBuilder::new(self)
    }
}

impl ModelBuilder {
    fn new(engine: &Engine) -> Self {
        Self {
            engine: engine.clone(),
            dtype: Dtype::default(),
            execution: Execution::default(),
            target: None,
            typical: BTreeMap::new(),
            given: Given::default(),
            profile: Profile::default(),
            reading: Reading::Owned,
            warm: false,
            progress: Shown(Arc::new(|_| {})),
        }
    }

    /// The elements that it computes with; the model's own by default.
    #[must_use]
    pub fn dtype(mut self, dtype: Dtype) -> Self {
        self.dtype = dtype;
        self
    }

    /// How its graph becomes launches; fused by default.
    #[must_use]
    pub fn execution(mut self, execution: Execution) -> Self {
        self.execution = execution;
        self
    }

    /// Plans for another target than the engine's device. If it is of another kind, what is [planned](Self::plan) can only
    /// be looked at.
    #[must_use]
    pub fn target(mut self, target: Target) -> Self {
        self.target = Some(target);
        self
    }

    /// The size of a dim that plans are made for, in place of the largest of the profile. What is planned runs at others as
    /// well, perhaps less fast.
    #[must_use]
    pub fn typical(mut self, dim: &str, size: usize) -> Self {
        self.typical.insert(dim.to_owned(), i64::try_from(size).unwrap_or(i64::MAX));
        self
    }

    /// The sizes that it is prepared for; any by default.
    #[must_use]
    pub fn profile(mut self, profile: Profile) -> Self {
        self.profile = profile;
        self
    }

    /// Fixes a dim: the model is loaded for this size alone. A dim of no elements has to be fixed.
    #[must_use]
    pub fn dim(mut self, name: &str, size: usize) -> Self {
        self.given.dims.insert(name.to_owned(), i64::try_from(size).unwrap_or(i64::MAX));
        self
    }

    /// Fixes the values of an input, which is a constant then.
    #[must_use]
    pub fn value(mut self, input: &str, value: Tensor) -> Self {
        self.given.values.insert(input.to_owned(), value);
        self
    }

    /// The seed of random numbers that the model draws, such as those of `RandomNormal`; 0 by default. Every run of the model
    /// draws the same.
    #[must_use]
    pub fn seed(mut self, seed: u64) -> Self {
        self.given.seed = seed;
        self
    }

    /// Says the shape of an input whose rank the model does not tell.
    #[must_use]
    pub fn shape(mut self, input: &str, shape: &[usize]) -> Self {
        self.given.shapes.insert(input.to_owned(), shape.to_vec());
        self
    }

    /// How a model file comes into memory: read, by default, so that nothing that happens to the file later matters; or
    /// mapped, for files that stay as they are.
    #[must_use]
    pub fn reading(mut self, reading: Reading) -> Self {
        self.reading = reading;
        self
    }

    /// Runs the model once at the profile's sizes, every combination of its buckets, before it is given out, so that
    /// first requests are as fast as later ones. The profile has to tell a size for every dim.
    #[must_use]
    pub fn warm(mut self) -> Self {
        self.warm = true;
        self
    }

    /// Has a function told how far loading is, from any thread.
    #[must_use]
    pub fn progress(mut self, shown: impl Fn(Progress) + Send + Sync + 'static) -> Self {
        self.progress = Shown(Arc::new(shown));
        self
    }

    /// Loads a model file.
    ///
    /// # Errors
    /// [`Error::Read`]; as for [`load_from`](Self::load_from).
    pub fn load(self, path: impl AsRef<Path>) -> Result<Model> {
        let source = Source::open(path, self.reading)?;
        self.load_from(&source)
    }

    /// Loads a model in memory, which has all its weights in it.
    ///
    /// # Errors
    /// As for [`load_from`](Self::load_from).
    pub fn load_bytes(self, model: impl Into<bytes::Bytes>) -> Result<Model> {
        self.load_from(&Source::bytes(model))
    }

    /// Loads a model.
    ///
    /// # Errors
    /// As for [`Source::import`], [`plan`](Self::plan) and [`compile`](Self::compile).
    pub fn load_from(mut self, source: &Source) -> Result<Model> {
        let _span = Span::load(self.dtype, self.execution);
        let mut given = self.given.clone();
        for (dim, size) in self.profile.typicals().filter(|(_, size)| *size > 0) {
            given.sizes.add(&Symbol::new(dim), size, "the profile")?;
        }
        let Imported { graph, mut notes, specialised, .. } = source.import(&given)?;
        let planned = self.plan(&graph)?;
        for of in &specialised {
            match of {
                Specialised::Size(dim, _) | Specialised::Equal(dim, _) => self.profile.remove(dim),
                Specialised::Values(_) => {}
            }
        }
        // Weights are dropped one by one when they have been prepacked, if nobody else holds them.
        drop((graph, given));
        if !specialised.is_empty() {
            notes.push(format!("made for {} alone", Specialised::list(&specialised)));
        }
        self.finish(planned, notes)
    }

    /// Loads a graph that was made or imported otherwise.
    ///
    /// # Errors
    /// As for [`plan`](Self::plan) and [`compile`](Self::compile).
    pub fn load_graph(self, graph: Graph) -> Result<Model> {
        let planned = self.plan(&graph)?;
        drop(graph);
        self.finish(planned, Vec::new())
    }

    /// What is planned for: the engine's device, unless it is [another](Self::target).
    pub fn planned_for(&self) -> Target {
        let own = self.engine.target();
        let target = match &self.target {
            Some(target) if own.kind != target.kind || own.kind == Kind::Cpu => target.clone(),
            Some(_) | None => own,
        };
        let bf16 = self.dtype == Dtype::Bf16 && target.kind == Kind::Cpu;
        Target { tf32: self.dtype == Dtype::Tf32, bf16, ..target }
    }

    /// The first half of loading: rewrites the graph of an [imported](Source::import) model, partitions it, and lowers it
    /// to a program. What is planned can be looked at and changed before it is [compiled](Self::compile).
    ///
    /// # Errors
    /// [`Error::Elements`] and [`Error::Target`] for elements that the model is not computed with; [`Error::Plan`].
    pub fn plan(&self, graph: &Graph) -> Result<Planned> {
        let target = self.planned_for();
        let elements = self.elements(graph, &target)?;
        let mut hints = Bindings::new();
        for symbol in graph.symbols() {
            let typical = self.typical.get(symbol.name()).copied();
            if let Some(size) = typical.or_else(|| self.profile.typical(symbol.name())) {
                hints.fix(symbol.clone(), size)?;
            }
        }
        let granularity = match self.execution {
            Execution::Fused => Granularity::Fused,
            Execution::Library => Granularity::PerOp,
        };
        Ok(plan_in(graph, &target, granularity, &hints, elements)?)
    }

    /// The second half of loading: makes the kernels of what is planned for the engine's device, and brings its weights
    /// there.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for a plan that is for another device; [`Error::UnknownDim`] for a dim of the profile that the
    /// model does not have; [`Error::MemoryLimit`]; on a GPU [`Error::MissingLibrary`], [`Error::Compile`],
    /// [`Error::DeviceMemory`] and [`Error::Device`]; what a warm-up says.
    pub fn compile(self, planned: Planned) -> Result<Model> {
        self.finish(planned, Vec::new())
    }

    /// Where the buffers of what is planned would lie at these sizes. Nothing is allocated.
    ///
    /// # Errors
    /// As for [`bind`]; where the plan is for the engine's device, [`Error::MemoryLimit`] for sizes that it has no memory
    /// for.
    pub fn bind(&self, planned: &Planned, sizes: &Bindings) -> Result<Plan> {
        match self.is_for_engine() {
            true => bind_on(&planned.program, sizes, self.engine.memory_limit()),
            false => bind(&planned.program, sizes),
        }
    }

    /// Whether what is planned runs on the engine's device.
    pub fn is_for_engine(&self) -> bool {
        self.target.as_ref().is_none_or(|target| target.kind == self.engine.target().kind)
    }

    fn finish(self, planned: Planned, mut notes: Vec<String>) -> Result<Model> {
        if !self.is_for_engine() {
            return Err(Error::Unsupported { what: "a plan for another device than the engine's" });
        }
        let target = self.planned_for();
        let Planned { graph, program, .. } = planned;
        let signature = Signature::of(&program, &graph, &self.profile)?;
        notes.extend(signature.notes());
        // Nobody else may hold weights that kernels have in another layout.
        drop(graph);
        let engine = self.engine;
        let module = Module::compile(program, &target, &engine, &*self.progress.0)?;
        notes.extend(module.notes());
        let model = Model::new(engine, module, signature, notes)?;
        if self.warm {
            model.context().warm_profile()?;
        }
        Ok(model)
    }

    /// The elements that values of single precision become, if they are to be others.
    fn elements(&self, graph: &Graph, target: &Target) -> Result<Option<DType>> {
        let (wanted, becomes) = match self.dtype {
            Dtype::Model => return Ok(None),
            Dtype::F32 | Dtype::Tf32 => (DType::F32, None),
            Dtype::F16 => (DType::F16, Some(DType::F16)),
            Dtype::Bf16 => (DType::BF16, (!target.bf16).then_some(DType::BF16)),
        };
        let floats = |dtype: DType| dtype.is_float() && dtype != DType::F32;
        let other = graph.nodes().find_map(|(_, node)| {
            node.outputs().iter().map(|ty| ty.dtype).find(|&dtype| floats(dtype))
        });
        if let Some(found) = other.filter(|&found| found != wanted) {
            return Err(Error::Elements { found, wanted });
        }
        let (computed, needs) = match self.dtype {
            Dtype::Model | Dtype::F32 | Dtype::Bf16 => (true, None),
            Dtype::Tf32 => (target.has(Feature::MmaTf32), Some(Feature::MmaTf32)),
            Dtype::F16 => (target.kind != Kind::Cpu, None),
        };
        let (wanted, target) = (self.dtype.to_string(), target.to_string());
        if computed { Ok(becomes) } else { Err(Error::Target { wanted, needs, target }) }
    }
}

impl fmt::Display for Dtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Model => "model",
            Self::F32 => "f32",
            Self::Tf32 => "tf32",
            Self::F16 => "f16",
            Self::Bf16 => "bf16",
        })
    }
}
