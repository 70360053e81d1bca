//! Programs on the device that runs them: the host's cores, or a GPU.

use crate::machine::{Gpu, Machine};
use crate::on_host::OnHost;
use crate::progress::Status;
use crate::report::{Built, OnDevice, milliseconds};
use graphene_frontend::dim::Bindings;
use graphene_frontend::tensor::Tensor;
use graphene_fusion::program::Program;
use graphene_runtime::gpu::Cache;
use graphene_runtime::{Error, Place, Plan, cpu, gpu};
use std::time::{Duration, Instant};

/// Time that profiling takes at most for each executor on the CPU, beyond its first run.
const PROFILING: Duration = Duration::from_millis(500);
/// Profiled runs of each executor on the CPU at most.
const PROFILED_RUNS: u32 = 20;
/// Launches of a step on a GPU that are timed together, and how often they are.
pub(crate) const REPEATS: usize = 20;
pub(crate) const REPEATED: usize = 7;
/// Runs on a GPU that are timed by its own clock, and transfers that are timed.
const DEVICE_RUNS: usize = 21;
const TRANSFERS: usize = 5;

/// A program compiled for the device.
pub(crate) enum Module {
    /// For the host's cores.
    Cpu(cpu::Module),
    /// For a GPU, with what its kernels took.
    Gpu(gpu::Module, Built),
}

/// A program bound to sizes.
pub(crate) enum Executable {
    /// On the host's cores.
    Cpu(Box<cpu::Executable>, Vec<&'static str>),
    /// On a GPU.
    Gpu(Box<gpu::Executable>),
}

impl Module {
    /// Compiles a program for the machine's device; what is made of weights beforehand takes at most `memory` bytes.
    /// Kernels of a GPU that are in the machine's cache are not compiled. `status` shows how far it is.
    ///
    /// # Errors
    /// As for [`cpu::Module::compile_within`]; as for [`gpu::Kernels::compile`] and [`gpu::Module::load`].
    pub(crate) fn compile(
        program: Program,
        machine: &Machine,
        memory: u64,
        status: Status,
    ) -> Result<Self, Error> {
        match &machine.gpu {
            None => Ok(Self::Cpu(cpu::Module::compile_within(program, memory)?)),
            Some(gpu) => Self::for_gpu(program, gpu, machine.cache.as_ref(), memory, status),
        }
    }

    fn for_gpu(
        program: Program,
        gpu: &Gpu,
        cache: Option<&Cache>,
        memory: u64,
        status: Status,
    ) -> Result<Self, Error> {
        let needed = program.made_bytes();
        if needed > memory {
            return Err(Error::Exceeds { needed, limit: memory });
        }
        let shown = |done, all| status.kernels(done, all);
        let kernels = gpu::Kernels::compile(program, &gpu.target, gpu.arch, cache, &shown)?;
        let (all, cached) = (kernels.len(), kernels.cached());
        let on_host = kernels.on_host();
        let on_host =
            on_host.map(|(step, why)| OnHost { step: step.to_owned(), why: why.to_owned() });
        let on_host = on_host.collect();
        let built = Built { kernels: all, compiled: all - cached, cached, on_host };
        let module = gpu::Module::load_shown(kernels, &gpu.device, |done, all| {
            status.weights(done, all);
        });
        Ok(Self::Gpu(module?, built))
    }

    /// How many kernels were made, on a GPU.
    pub(crate) fn built(&self) -> Option<&Built> {
        match self {
            Self::Cpu(_) => None,
            Self::Gpu(_, built) => Some(built),
        }
    }

    /// Gives the symbols sizes; memory of at most `limit` bytes is taken on the device.
    ///
    /// # Errors
    /// As for [`cpu::Module::bind_within`]; as for [`gpu::Module::bind`].
    pub(crate) fn bind(&self, bindings: &Bindings, limit: u64) -> Result<Executable, Error> {
        match self {
            Self::Cpu(module) => {
                // What the module holds is counted as resident.
                let limit = limit.saturating_add(module.own_bytes());
                let executable = module.bind_within(bindings, limit)?;
                Ok(Executable::Cpu(Box::new(executable), module.kernels().collect()))
            }
            Self::Gpu(module, _) => {
                let plan = graphene_runtime::bind(module.program(), bindings)?;
                let needed = plan.bytes();
                match needed > limit {
                    true => Err(Error::Exceeds { needed, limit }),
                    false => Ok(Executable::Gpu(Box::new(module.bind(bindings)?))),
                }
            }
        }
    }

    /// Bytes that the device holds for it whether it runs or not.
    pub(crate) fn resident_bytes(&self) -> u64 {
        match self {
            Self::Cpu(module) => module.own_bytes(),
            Self::Gpu(module, _) => module.weight_bytes(),
        }
    }
}

impl Executable {
    /// The program.
    pub(crate) fn program(&self) -> &Program {
        match self {
            Self::Cpu(executable, _) => executable.program(),
            Self::Gpu(executable) => executable.program(),
        }
    }

    /// The plan.
    pub(crate) fn plan(&self) -> &Plan {
        match self {
            Self::Cpu(executable, _) => executable.plan(),
            Self::Gpu(executable) => executable.plan(),
        }
    }

    /// For each step the kernel that runs it; on the CPU `reference` where the reference evaluator stands in, on a GPU
    /// `none` where there are no elements.
    pub(crate) fn kernels(&self) -> Vec<String> {
        match self {
            Self::Cpu(_, kernels) => kernels.iter().map(|&kernel| kernel.to_owned()).collect(),
            Self::Gpu(executable) => {
                executable.kernels().map(|kernel| kernel.unwrap_or("none").to_owned()).collect()
            }
        }
    }

    /// What a library refused at these sizes, said once however many steps it is about.
    pub(crate) fn refusal(&self) -> Option<String> {
        let Self::Gpu(executable) = self else { return None };
        let refusals = executable.refusals();
        let first = refusals.first()?;
        let more = match refusals.len() {
            1 => String::new(),
            all => format!(" (and {} more)", all - 1),
        };
        Some(format!("not by the library: {first}{more}"))
    }

    /// Runs once, from inputs to outputs.
    ///
    /// # Errors
    /// As for [`cpu::Executable::run`] and [`gpu::Executable::run`].
    pub(crate) fn run(&mut self, inputs: &[Tensor]) -> Result<Vec<Tensor>, Error> {
        match self {
            Self::Cpu(executable, _) => executable.run_alone(inputs),
            Self::Gpu(executable) => executable.run(inputs),
        }
    }

    /// Brings inputs to where runs that are timed read them.
    ///
    /// # Errors
    /// As for [`gpu::Executable::write`].
    pub(crate) fn prepare(&mut self, inputs: &[Tensor]) -> Result<(), Error> {
        match self {
            Self::Cpu(..) => Ok(()),
            Self::Gpu(executable) => executable.write(inputs),
        }
    }

    /// What is timed as a run, its inputs being on the device: on the CPU from inputs to outputs, on a GPU the launch of
    /// the graph until all of it is done.
    ///
    /// # Errors
    /// As for [`run`](Self::run).
    pub(crate) fn step(&mut self, inputs: &[Tensor]) -> Result<(), Error> {
        match self {
            // Dropping the outputs belongs to a run: they are allocated in it.
            Self::Cpu(executable, _) => executable.run_alone(inputs).map(drop),
            Self::Gpu(executable) => {
                executable.launch()?;
                executable.synchronize()
            }
        }
    }

    /// What a GPU says of runs whose median takes `wall` milliseconds, and what transfers take. Medians.
    ///
    /// # Errors
    /// As for [`run`](Self::run).
    pub(crate) fn on_device(
        &mut self,
        inputs: &[Tensor],
        wall: f64,
    ) -> Result<Option<OnDevice>, Error> {
        let Self::Gpu(executable) = self else { return Ok(None) };
        let timed = |_| executable.time().map(|microseconds| microseconds / 1e3);
        let run_ms = median((0..DEVICE_RUNS).map(timed).collect::<Result<_, _>>()?);
        let (mut uploads, mut downloads) = (Vec::new(), Vec::new());
        for _ in 0..TRANSFERS {
            let start = Instant::now();
            executable.write(inputs)?;
            uploads.push(milliseconds(start.elapsed()));
            let start = Instant::now();
            executable.read()?;
            downloads.push(milliseconds(start.elapsed()));
        }
        let bytes = |which: fn(Place) -> bool| {
            let buffers = executable.plan().buffers().iter();
            buffers.filter(|buffer| which(buffer.place)).map(|buffer| buffer.bytes() as u64).sum()
        };
        Ok(Some(OnDevice {
            run_ms,
            share_of_wall: run_ms / wall.max(1e-9),
            upload_ms: median(uploads),
            upload_bytes: bytes(|place| matches!(place, Place::Input(_))),
            download_ms: median(downloads),
            download_bytes: bytes(|place| matches!(place, Place::Output(_))),
        }))
    }

    /// Seconds of every step. On the CPU the mean of some runs, step by step; on a GPU as
    /// [`gpu::Executable::time_steps`] has it.
    ///
    /// # Errors
    /// As for [`run`](Self::run).
    pub(crate) fn time_steps(&mut self, inputs: &[Tensor]) -> Result<Vec<f64>, Error> {
        match self {
            Self::Cpu(executable, _) => {
                let (mut times, mut runs) = (Vec::new(), 0);
                let start = Instant::now();
                while runs == 0 || (runs < PROFILED_RUNS && start.elapsed() < PROFILING) {
                    executable.run_profiled(inputs, &mut times)?;
                    runs += 1;
                }
                Ok(times.iter().map(|time| time.as_secs_f64() / f64::from(runs)).collect())
            }
            Self::Gpu(executable) => {
                executable.write(inputs)?;
                let times = executable.time_steps(REPEATS, REPEATED)?;
                Ok(times.iter().map(|microseconds| microseconds / 1e6).collect())
            }
        }
    }
}

/// The middle of some numbers, the upper one of two; 0 of none.
fn median(mut numbers: Vec<f64>) -> f64 {
    numbers.sort_by(f64::total_cmp);
    numbers.get(numbers.len() / 2).copied().unwrap_or(0.0)
}
