//! A model: what it takes and gives, its kernels and its weights, for any number of contexts.

mod axes;
mod port;
mod profile;
mod signature;
mod sizes;

pub use axes::DimAxes;
pub use port::Port;
pub use profile::Profile;

pub(crate) use profile::Fitting;
pub(crate) use signature::Signature;
pub(crate) use sizes::{Sizes, Solver};

use crate::bind::{Plan, bind_on, sizes_text};
use crate::engine::{Engine, Reservation};
use crate::error::{Error, Result};
use crate::executor::{Built, Module};
use axes::Along;
use graphene_frontend::dim::Bindings;
use graphene_fusion::program::Program;
use std::fmt;
use std::sync::Arc;

/// A loaded model: it doesn't change, and its weights are in memory once, however many contexts run it. Clones are the
/// same model.
///
/// ```
/// # use graphene_runtime::Engine;
/// # let zoo = graphene_models::build("mlp-2x4", &graphene_models::Options::default())?;
/// # let source = graphene_runtime::Source::with_external(zoo.encode(), zoo.weights().clone());
/// # let model = Engine::new()?.model().load_from(&source)?;
/// assert_eq!(model.inputs()[0].to_string(), "x: f32[batch, 4]");
/// assert_eq!(model.dims().collect::<Vec<_>>(), ["batch"]);
/// let footprint = model.footprint(&[("batch", 32)])?;
/// assert_eq!(footprint.outputs, 32 * 4 * 4);
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Model(Arc<Inner>);

struct Inner {
    engine: Engine,
    module: Module,
    signature: Signature,
    notes: Vec<String>,
    /// The weights.
    _memory: Reservation,
}

/// The memory that a model takes at some sizes, in bytes, before anything of it is allocated.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Footprint {
    /// Weights, prepacked or as they are: once for all contexts.
    pub weights: u64,
    /// The arena of intermediates: once for each context, of the largest sizes that it has run at.
    pub arena: u64,
    /// The request's inputs.
    pub inputs: u64,
    /// The request's outputs.
    pub outputs: u64,
}

impl Model {
    /// A model of what it takes and gives, and of what computes it on the engine.
    ///
    /// # Errors
    /// [`Error::MemoryLimit`] if the engine has no memory left for the weights.
    pub(crate) fn new(
        engine: Engine,
        module: Module,
        signature: Signature,
        notes: Vec<String>,
    ) -> Result<Self> {
        let memory = engine.budget().reserve(module.weight_bytes(), "the model's weights")?;
        Ok(Self(Arc::new(Inner { engine, module, signature, notes, _memory: memory })))
    }

    /// The engine that it is loaded on.
    pub fn engine(&self) -> &Engine {
        &self.0.engine
    }

    /// What it takes, in order.
    pub fn inputs(&self) -> &[Port] {
        &self.0.signature.inputs
    }

    /// What it gives, in order.
    pub fn outputs(&self) -> &[Port] {
        &self.0.signature.outputs
    }

    /// The names of its symbolic dims, which requests give sizes.
    pub fn dims(&self) -> impl Iterator<Item = &str> {
        self.solver().symbols().iter().map(|symbol| symbol.name())
    }

    /// What is worth knowing of how it was loaded: sizes that it was made for, operators that run by the reference
    /// evaluator or on the host, dims that cannot be padded.
    pub fn notes(&self) -> &[String] {
        &self.0.notes
    }

    /// The memory that it takes when its dims have these sizes. Nothing is allocated.
    ///
    /// # Errors
    /// [`Error::UnknownDim`] and [`Error::Unsized`] if the sizes are not those of its dims; [`Error::Profile`]; as for
    /// [`Context::run`](crate::Context::run) if the model doesn't take them.
    pub fn footprint(&self, sizes: &[(&str, usize)]) -> Result<Footprint> {
        let plan = self.plan_of(&self.fitted(sizes)?)?;
        Ok(self.footprint_of(&plan))
    }

    /// Where its buffers lie when its dims have these sizes. Nothing is allocated.
    ///
    /// # Errors
    /// As for [`footprint`](Self::footprint).
    pub fn plan(&self, sizes: &[(&str, usize)]) -> Result<Plan> {
        self.plan_of(&self.fitted(sizes)?)
    }

    /// The sizes at which requests of these sizes run: where they are padded, those of a bucket of the profile.
    ///
    /// # Errors
    /// As for [`footprint`](Self::footprint).
    pub fn fit(&self, sizes: &[(&str, usize)]) -> Result<Bindings> {
        self.solver().bindings(&self.fitted(sizes)?)
    }

    /// The sizes at which requests of these sizes run.
    fn fitted(&self, sizes: &[(&str, usize)]) -> Result<Sizes> {
        let sizes = self.solver().named(sizes)?;
        self.fitting().fit(&sizes, self.solver())
    }

    /// Every combination of the profile's buckets, the other dims being as in `sizes`; the
    /// last dim's sizes vary first.
    ///
    /// # Errors
    /// [`Error::UnknownDim`] and [`Error::Unsized`].
    pub fn combinations(&self, sizes: &[(&str, usize)]) -> Result<Vec<Bindings>> {
        let sizes = self.solver().named(sizes)?;
        let all = self.fitting().combinations(&sizes);
        all.iter().map(|sizes| self.solver().bindings(sizes)).collect()
    }

    /// Why requests are not padded to the profile's buckets of a dim, if it has some and they are not.
    pub fn unpadded(&self, dim: &str) -> Option<&str> {
        let mut symbols = self.solver().symbols().iter();
        self.fitting().unpadded(symbols.position(|symbol| symbol.name() == dim)?)
    }

    /// Where a dim lies, if rows along it, such as a batch's, are independent: what a row of the outputs is follows from
    /// the same row of the inputs alone, so that rows of several requests may run together, in any order, and be cut apart.
    ///
    /// # Errors
    /// Why the plan does not prove it, as text.
    pub fn independent(&self, dim: &str) -> std::result::Result<&DimAxes, String> {
        self.along(dim)?.independent.as_ref().map_err(Clone::clone)
    }

    /// Where a dim lies, if inputs may be filled with zeros to a larger size of it, and outputs cut, with the same answer.
    /// Masks among the inputs mean 1 for what is there.
    ///
    /// # Errors
    /// Why the plan does not prove it, as text.
    pub fn paddable(&self, dim: &str) -> std::result::Result<&DimAxes, String> {
        self.along(dim)?.paddable.as_ref().map_err(Clone::clone)
    }

    fn along(&self, dim: &str) -> std::result::Result<&Along, String> {
        let place = self.dims().position(|name| name == dim);
        place
            .map(|place| &self.0.signature.along[place])
            .ok_or_else(|| format!("the model has no dim `{dim}`"))
    }

    /// What is run: steps and buffers, the weights being with the kernels.
    pub fn program(&self) -> &Program {
        self.0.module.program()
    }

    /// How its kernels for a GPU were made, if it is on one.
    pub fn built(&self) -> Option<&Built> {
        self.0.module.built()
    }

    pub(crate) fn footprint_of(&self, plan: &Plan) -> Footprint {
        let (inputs, outputs) = plan.port_bytes();
        let (weights, arena) = (self.0.module.weight_bytes(), plan.arena_bytes());
        Footprint { weights, arena, inputs, outputs }
    }

    pub(crate) fn plan_of(&self, sizes: &Sizes) -> Result<Plan> {
        let limit = self.0.engine.memory_limit();
        bind_on(self.0.module.program(), &self.bindings(sizes)?, limit)
    }

    /// Sizes by symbol.
    ///
    /// # Errors
    /// [`Error::Dim`] for a size below one: what the plan concludes of symbols holds from one on.
    pub(crate) fn bindings(&self, sizes: &Sizes) -> Result<Bindings> {
        let mut bindings = Bindings::new();
        for (symbol, &size) in self.solver().symbols().iter().zip(sizes) {
            bindings.bind(symbol.clone(), size).map_err(Error::from)?;
        }
        Ok(bindings)
    }

    /// Sizes as text: `batch=8, sequence=128`; of those that no model can have, why.
    pub(crate) fn sizes_text(&self, sizes: &Sizes) -> String {
        let bindings = self.bindings(sizes);
        bindings.map_or_else(|error| error.to_string(), |bindings| sizes_text(&bindings))
    }

    pub(crate) fn module(&self) -> &Module {
        &self.0.module
    }

    pub(crate) fn solver(&self) -> &Solver {
        &self.0.signature.solver
    }

    pub(crate) fn fitting(&self) -> &Fitting {
        &self.0.signature.fitting
    }

    pub(crate) fn shared_outputs(&self) -> &Arc<[Port]> {
        &self.0.signature.outputs
    }
}

impl fmt::Debug for Model {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Model")
            .field("inputs", &self.0.signature.inputs)
            .field("outputs", &self.0.signature.outputs)
            .finish()
    }
}
