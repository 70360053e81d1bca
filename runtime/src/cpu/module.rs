//! Compiled programs on the CPU.

use super::bound::{Bound, Executable};
use super::kernel::Kernel;
use super::on_threads;
use super::packing::{Packing, Weights};
use super::prepacked::Prepacked;
use crate::bind::bind;
use crate::error::{Error, Result};
use graphene_frontend::dim::Bindings;
use graphene_frontend::tensor::Tensor;
use graphene_fusion::program::{Program, Step};
use std::sync::Arc;

/// A program with a kernel chosen for every step. Cloning shares it.
#[derive(Clone, Debug)]
pub struct Module {
    program: Arc<Program>,
    kernels: Arc<[Kernel]>,
    /// For each buffer that is a weight its elements, if a kernel reads them as they lie.
    weights: Arc<[Option<Tensor>]>,
    /// Bytes of all weights that it holds.
    own_bytes: u64,
}

impl Module {
    /// Chooses a kernel for every step, makes the weights that are made of others, and prepacks those that GEMMs
    /// read. The program's weights are taken out of it one after the other, and each is dropped when it has been
    /// prepacked: weights that nobody else holds are in memory once, a few of them twice for a moment.
    ///
    /// # Errors
    /// [`Error::At`] around [`Error::Eval`] for a weight that cannot be made, [`Error::Memory`], and
    /// [`Error::Released`] for a program that has been compiled before.
    pub fn compile(program: Program) -> Result<Self> {
        Self::compile_within(program, u64::MAX)
    }

    /// Like [`compile`](Self::compile), for a module that holds at most `limit` bytes of weights. Prepacked weights
    /// can be larger than they were: those of fp16 become single precision, and panels are filled up. Where
    /// they would go beyond the limit and the weights as they are do not, GEMMs read them as they are.
    ///
    /// # Errors
    /// As for [`compile`](Self::compile), and [`Error::Exceeds`], before anything is made.
    pub fn compile_within(program: Program, limit: u64) -> Result<Self> {
        on_threads(|| {
            let packing = Packing::within(&program, limit)?;
            Self::make(program, &packing, Kernel::choose)
        })
    }

    /// Like [`compile`](Self::compile), for a module whose every step the reference evaluator runs: what the steps of others
    /// are compared with.
    ///
    /// # Errors
    /// As for [`compile`](Self::compile).
    pub fn compile_reference(program: Program) -> Result<Self> {
        on_threads(|| {
            let packing = Packing::none(&program);
            Self::make(program, &packing, |_, _| Kernel::Reference)
        })
    }

    fn make(
        mut program: Program,
        packing: &Packing,
        choose: impl Fn(&Step, &Prepacked) -> Kernel,
    ) -> Result<Self> {
        let weights = packing.take(&mut program)?;
        let own_bytes = weights.bytes(&program);
        let Weights { prepacked, kept } = weights;
        let steps = program.steps().iter().zip(prepacked);
        let kernels = steps.map(|(step, prepacked)| choose(step, &prepacked)).collect();
        let weights = kept.into();
        Ok(Self { program: Arc::new(program), kernels, weights, own_bytes })
    }

    /// The program, without its weights.
    pub fn program(&self) -> &Program {
        &self.program
    }

    /// Bytes of all weights that the module holds: those prepacked, those that kernels read as they are, and constants
    /// in what steps compute. Mapped weights that are read as they are count, though the system may drop their pages.
    pub fn own_bytes(&self) -> u64 {
        self.own_bytes
    }

    /// For each step the kernel that runs it; `reference` where the reference evaluator stands in.
    pub fn kernels(&self) -> impl Iterator<Item = &'static str> {
        self.kernels.iter().map(Kernel::name)
    }

    /// Gives the symbols sizes, and plans the arena.
    ///
    /// # Errors
    /// [`Error::Dim`] for a symbol without a size, [`Error::TooLarge`], and [`Error::At`] around [`Error::Mismatch`]
    /// where shapes disagree under these sizes.
    pub fn bind(&self, bindings: &Bindings) -> Result<Bound> {
        self.bind_within(bindings, u64::MAX)
    }

    /// Like [`bind`](Self::bind), for arenas, inputs, outputs and the module's own weights of at most `limit` bytes
    /// together.
    ///
    /// # Errors
    /// As for [`bind`](Self::bind), and [`Error::Exceeds`].
    pub fn bind_within(&self, bindings: &Bindings, limit: u64) -> Result<Bound> {
        let plan = bind(&self.program, bindings)?;
        let needed = plan.bytes().saturating_add(self.own_bytes);
        if needed > limit {
            return Err(Error::Exceeds { needed, limit });
        }
        Bound::new(&self.program, &self.kernels, &self.weights, plan)
    }

    /// [`bind`](Self::bind), with an arena.
    ///
    /// # Errors
    /// As for [`bind`](Self::bind), and [`Error::Memory`].
    pub fn executable(&self, bindings: &Bindings) -> Result<Executable> {
        Executable::new(self.bind(bindings)?)
    }
}
