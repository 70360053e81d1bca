//! Programs on an engine's device: one interface for the executors.

use crate::bind::Plan;
use crate::cpu::{self, Storage};
#[cfg(feature = "cuda")]
use crate::device::{Buffer, Stream};
use crate::engine::{Engine, Opened};
use crate::error::{Error, Result};
#[cfg(feature = "cuda")]
use crate::gpu;
use graphene_frontend::dim::Bindings;
use graphene_fusion::program::Program;
use graphene_ir::target::Target;

/// How far the loading of a model is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Progress {
    /// Kernels for a GPU that are compiled.
    Kernels {
        /// So many are.
        done: usize,
        /// Of so many.
        all: usize,
    },
    /// Bytes of weights that are on a GPU.
    Weights {
        /// So many are.
        done: u64,
        /// Of so many.
        all: u64,
    },
}

/// How the kernels of a model on a GPU were made; equal ones count once.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Built {
    /// All of them.
    pub kernels: usize,
    /// Those that were compiled.
    pub compiled: usize,
    /// Those that were kept from before.
    pub cached: usize,
    /// The steps that fall back to the CPU, by name, and why.
    pub on_host: Vec<(String, String)>,
}

/// A program compiled for a device.
#[derive(Clone)]
pub(crate) enum Module {
    /// For a CPU.
    Cpu(cpu::Module),
    /// For a GPU.
    #[cfg(feature = "cuda")]
    Gpu(gpu::Module, Built),
}

/// A program bound to sizes.
pub(crate) enum Bound {
    /// On the host's cores.
    Cpu(Box<cpu::Bound>),
    /// On a GPU.
    #[cfg(feature = "cuda")]
    Gpu(Box<gpu::Executable>),
}

/// What a context runs in, whatever the sizes: the arena of intermediates; on a GPU a stream of its own.
pub(crate) enum Workspace {
    /// In the host's memory.
    Cpu(Storage),
    /// On a GPU.
    #[cfg(feature = "cuda")]
    Gpu(Stream, Buffer),
}

impl Module {
    /// Compiles a program that is planned for this target, which is of the engine's device, within what is left of the
    /// memory limit.
    ///
    /// # Errors
    /// As for [`cpu::Module::compile_within`], `gpu::Kernels::compile` and `gpu::Module::load`; [`Error::MemoryLimit`].
    pub(crate) fn compile(
        program: Program,
        target: &Target,
        engine: &Engine,
        progress: &(dyn Fn(Progress) + Send + Sync),
    ) -> Result<Self> {
        let compiled = Self::compile_within(program, target, engine, progress);
        compiled.map_err(|error| match error {
            Error::Exceeds { needed, .. } => {
                let (used, limit) = (engine.memory_used(), engine.memory_limit());
                Error::MemoryLimit { what: "the model's weights".to_owned(), needed, used, limit }
            }
            error => engine.noted(error),
        })
    }

    fn compile_within(
        program: Program,
        target: &Target,
        engine: &Engine,
        progress: &(dyn Fn(Progress) + Send + Sync),
    ) -> Result<Self> {
        let left = engine.budget().left();
        // Only a GPU has kernels of a target, and what takes long enough to be told.
        let _ = (target, progress);
        match engine.opened() {
            Opened::Cpu { .. } => {
                let module = engine.pool().run(|| cpu::Module::compile_within(program, left));
                Ok(Self::Cpu(module?))
            }
            #[cfg(feature = "cuda")]
            Opened::Cuda(cuda) => {
                let (needed, limit) = (program.made_bytes(), left);
                if needed > limit {
                    return Err(Error::Exceeds { needed, limit });
                }
                let shown = |done, all| progress(Progress::Kernels { done, all });
                let cache = cuda.cache.as_ref();
                let kernels = gpu::Kernels::compile(program, target, cuda.arch, cache, &shown)?;
                let (all, cached) = (kernels.len(), kernels.cached());
                let on_host = kernels.on_host();
                let on_host = on_host.map(|(step, why)| (step.to_owned(), why.to_owned()));
                let on_host = on_host.collect();
                let built = Built { kernels: all, compiled: all - cached, cached, on_host };
                let shown = |done, all| progress(Progress::Weights { done, all });
                let module = gpu::Module::load_shown(kernels, &cuda.device, shown)?;
                Ok(Self::Gpu(module, built))
            }
        }
    }

    /// What a user may want to know of how steps are computed.
    pub(crate) fn notes(&self) -> Vec<String> {
        match self {
            Self::Cpu(module) => {
                let steps = module.program().steps().iter().zip(module.kernels());
                let slow = steps.filter(|(_, kernel)| *kernel == "reference");
                let said =
                    |step: &str| format!("{step}: runs by the reference evaluator, which is slow");
                slow.map(|(step, _)| said(&step.name)).collect()
            }
            #[cfg(feature = "cuda")]
            Self::Gpu(_, built) => {
                let said = |(step, why): &(String, String)| {
                    format!("{step}: no kernel ({why}); falls back to the CPU")
                };
                built.on_host.iter().map(said).collect()
            }
        }
    }

    /// How its kernels were made, on a GPU.
    pub(crate) fn built(&self) -> Option<&Built> {
        match self {
            Self::Cpu(_) => None,
            #[cfg(feature = "cuda")]
            Self::Gpu(_, built) => Some(built),
        }
    }

    /// The program.
    pub(crate) fn program(&self) -> &Program {
        match self {
            Self::Cpu(module) => module.program(),
            #[cfg(feature = "cuda")]
            Self::Gpu(module, _) => module.program(),
        }
    }

    /// Bytes of weights on the device, prepacked or as they are.
    pub(crate) fn weight_bytes(&self) -> u64 {
        match self {
            Self::Cpu(module) => module.own_bytes(),
            #[cfg(feature = "cuda")]
            Self::Gpu(module, _) => module.weight_bytes(),
        }
    }

    /// Whether bound programs have inputs and outputs of their own on the device.
    pub(crate) fn stages(&self) -> bool {
        match self {
            Self::Cpu(_) => false,
            #[cfg(feature = "cuda")]
            Self::Gpu(..) => true,
        }
    }

    /// Gives the symbols sizes; the workspace's arena is large enough for them.
    ///
    /// # Errors
    /// As for [`cpu::Module::bind`] and `gpu::Module::bind_in`.
    pub(crate) fn bind(&self, bindings: &Bindings, workspace: &Workspace) -> Result<Bound> {
        match (self, workspace) {
            (Self::Cpu(module), Workspace::Cpu(_)) => {
                Ok(Bound::Cpu(Box::new(module.bind(bindings)?)))
            }
            #[cfg(feature = "cuda")]
            (Self::Gpu(module, _), Workspace::Gpu(stream, arena)) => {
                let io = gpu::Io::default();
                Ok(Bound::Gpu(Box::new(module.bind_in(stream, bindings, arena, &io)?)))
            }
            #[cfg(feature = "cuda")]
            (Self::Cpu(_), Workspace::Gpu(..)) | (Self::Gpu(..), Workspace::Cpu(_)) => {
                Err(Error::Unsupported { what: "a workspace of another device" })
            }
        }
    }
}

impl Bound {
    /// Where buffers lie.
    pub(crate) fn plan(&self) -> &Plan {
        match self {
            Self::Cpu(bound) => bound.plan(),
            #[cfg(feature = "cuda")]
            Self::Gpu(executable) => executable.plan(),
        }
    }

    /// For each step what computes it; `none` where there are no elements.
    pub(crate) fn kernels(&self) -> Vec<&str> {
        match self {
            Self::Cpu(bound) => bound.kernels().collect(),
            #[cfg(feature = "cuda")]
            Self::Gpu(executable) => {
                executable.kernels().map(|kernel| kernel.unwrap_or("none")).collect()
            }
        }
    }

    /// For each step how what computes it multiplies, where its name does not tell.
    pub(crate) fn algorithms(&self) -> Vec<Option<&'static str>> {
        match self {
            Self::Cpu(bound) => bound.algorithms().collect(),
            #[cfg(feature = "cuda")]
            Self::Gpu(executable) => executable.kernels().map(|_| None).collect(),
        }
    }

    /// What libraries refused at these sizes.
    pub(crate) fn refusals(&self) -> &[String] {
        match self {
            Self::Cpu(_) => &[],
            #[cfg(feature = "cuda")]
            Self::Gpu(executable) => executable.refusals(),
        }
    }
}

impl Workspace {
    /// One without an arena for a module's runs.
    ///
    /// # Errors
    /// [`Error::Device`] if there is no stream.
    pub(crate) fn new(engine: &Engine) -> Result<Self> {
        match engine.opened() {
            Opened::Cpu { .. } => Ok(Self::Cpu(Storage::default())),
            #[cfg(feature = "cuda")]
            Opened::Cuda(cuda) => {
                let stream = cuda.device.stream()?;
                let arena = stream.alloc(0)?;
                Ok(Self::Gpu(stream, arena))
            }
        }
    }

    /// An arena of so many bytes in place of the one that there is. Nothing may be bound to that one.
    ///
    /// # Errors
    /// [`Error::Memory`] and [`Error::DeviceMemory`]; the arena has no bytes then.
    pub(crate) fn grow(&mut self, bytes: u64) -> Result<()> {
        let bytes = usize::try_from(bytes).map_err(|_| Error::TooLarge { what: "the arena" })?;
        match self {
            Self::Cpu(storage) => {
                *storage = Storage::default();
                *storage = Storage::new(bytes)?;
            }
            #[cfg(feature = "cuda")]
            Self::Gpu(stream, arena) => {
                *arena = stream.alloc(0)?;
                let grown = stream.alloc(bytes);
                *arena = grown.map_err(|error| error.wanted_for("the arena of intermediates"))?;
            }
        }
        Ok(())
    }

    /// Bytes of its arena.
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Cpu(storage) => storage.as_ref().len(),
            #[cfg(feature = "cuda")]
            Self::Gpu(_, arena) => arena.len(),
        }
    }
}
