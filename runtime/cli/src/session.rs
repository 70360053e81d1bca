//! A model planned, compiled and bound for its executors.

use crate::args::Exec;
use crate::bench::{self, Samples, Schedule};
use crate::bisect::Sides;
use crate::engine::{Executable, Module};
use crate::error::Error;
use crate::machine::{self, Machine};
use crate::on_host;
use crate::profile;
use crate::progress::Status;
use crate::report::{self, Memory, OnDevice};
use crate::sizes::sizes_text;
use crate::tolerance::Tolerance;
use graphene_frontend::dim::Bindings;
use graphene_frontend::dtype::DType;
use graphene_frontend::eval::evaluate_with;
use graphene_frontend::graph::Graph;
use graphene_frontend::tensor::Tensor;
use graphene_fusion::program::{Buffer, BufferKind, Program};
use graphene_fusion::{Granularity, Planned, plan_in};
use graphene_ir::target::Target;
use graphene_runtime::Plan;
use std::collections::BTreeMap;
use std::time::Duration;

/// A model's plans: after rewriting, one partition and program for each executor that has one.
pub(crate) struct Plans {
    /// The plan of fused execution.
    pub(crate) fused: Planned,
    /// That of library execution, if asked for.
    pub(crate) library: Option<Planned>,
}

impl Plans {
    /// Rewrites, partitions and lowers, planning for the sizes that `hints` give; values of single precision become
    /// other `elements` if asked for.
    ///
    /// # Errors
    /// [`Error::Fusion`].
    pub(crate) fn new(
        graph: &Graph,
        target: &Target,
        exec: &[Exec],
        hints: &Bindings,
        elements: Option<DType>,
    ) -> Result<Self, Error> {
        let planned = |granularity| plan_in(graph, target, granularity, hints, elements);
        let fused = planned(Granularity::Fused)?;
        let library = exec.contains(&Exec::Library).then(|| planned(Granularity::PerOp));
        Ok(Self { fused, library: library.transpose()? })
    }

    /// The plan of an executor; that of fused execution for the reference, which has none.
    pub(crate) fn of(&self, exec: Exec) -> &Planned {
        match exec {
            Exec::Library => self.library.as_ref().unwrap_or(&self.fused),
            Exec::Fused | Exec::Reference => &self.fused,
        }
    }

    /// The program of an executor; the reference has none.
    pub(crate) fn program(&self, exec: Exec) -> Option<&Program> {
        match exec {
            Exec::Fused => Some(&self.fused.program),
            Exec::Library => self.library.as_ref().map(|planned| &planned.program),
            Exec::Reference => None,
        }
    }
}

/// An executor with its compiled program.
pub(crate) struct Compiled {
    /// Which executor.
    pub(crate) exec: Exec,
    /// The module; the reference has none.
    pub(crate) module: Option<Module>,
}

impl Compiled {
    /// Bytes that the device holds for it whether it runs or not.
    pub(crate) fn resident_bytes(&self) -> u64 {
        self.module.as_ref().map_or(0, Module::resident_bytes)
    }

    /// What the host computes of a program for a GPU, if it does.
    pub(crate) fn on_host(&self) -> Option<String> {
        let built = self.module.as_ref().and_then(Module::built)?;
        let said = on_host::said(&built.on_host)?;
        Some(format!("{}: no kernel, so the host computes it: {said}", self.exec.name()))
    }
}

/// Compiles the programs of these executors for the machine's device, within the host's memory.
///
/// # Errors
/// [`Error::Compile`], [`Error::Kernels`], [`Error::Memory`].
pub(crate) fn compile(
    plans: &Plans,
    exec: &[Exec],
    machine: &Machine,
    status: Status,
) -> Result<Vec<Compiled>, Error> {
    let memory = machine::memory().unwrap_or(u64::MAX);
    let compile = |&exec: &Exec| {
        let program = plans.program(exec).cloned();
        let module =
            program.map(|program| Module::compile(program, machine, memory, status)).transpose();
        let module = module.map_err(|source| match source {
            graphene_runtime::Error::Exceeds { needed, limit } => {
                Error::Memory { sizes: String::new(), needed, memory: limit }
            }
            source if machine.gpu.is_some() => Error::Kernels { executor: exec.name(), source },
            source => Error::Compile(source),
        })?;
        Ok(Compiled { exec, module })
    };
    exec.iter().map(compile).collect()
}

/// An executor ready to run.
pub(crate) struct Runner<'a> {
    exec: Exec,
    graph: &'a Graph,
    bindings: &'a Bindings,
    executable: Option<Executable>,
}

impl<'a> Runner<'a> {
    /// Binds a compiled program to sizes, within `memory` bytes of which other runners have `taken` some; the
    /// reference evaluates `graph`.
    ///
    /// # Errors
    /// [`Error::Run`], [`Error::Memory`].
    pub(crate) fn bind(
        compiled: &Compiled,
        graph: &'a Graph,
        bindings: &'a Bindings,
        memory: u64,
        taken: u64,
    ) -> Result<Self, Error> {
        let exec = compiled.exec;
        let left = memory.saturating_sub(taken);
        let bind = |module: &Module| module.bind(bindings, left);
        let executable = compiled.module.as_ref().map(bind).transpose();
        let executable = executable.map_err(|source| match source {
            graphene_runtime::Error::Exceeds { needed, .. } => {
                let (sizes, needed) = (sizes_text(bindings), needed.saturating_add(taken));
                Error::Memory { sizes, needed, memory }
            }
            source => refused(exec, bindings, source),
        })?;
        Ok(Self { exec, graph, bindings, executable })
    }

    /// What a library refused at these sizes.
    pub(crate) fn refusal(&self) -> Option<String> {
        self.executable.as_ref().and_then(Executable::refusal)
    }

    /// Which executor.
    pub(crate) fn exec(&self) -> Exec {
        self.exec
    }

    /// Runs once.
    ///
    /// # Errors
    /// [`Error::Run`], [`Error::Evaluate`].
    pub(crate) fn run(&mut self, inputs: &[Tensor]) -> Result<Vec<Tensor>, Error> {
        match &mut self.executable {
            Some(executable) => {
                let outputs = executable.run(inputs);
                outputs.map_err(|source| refused(self.exec, self.bindings, source))
            }
            None => evaluate_with(self.graph, inputs, self.bindings)
                .map_err(|source| Error::Evaluate { sizes: sizes_text(self.bindings), source }),
        }
    }

    /// Bytes of the arena.
    pub(crate) fn arena_bytes(&self) -> u64 {
        self.executable.as_ref().map_or(0, |executable| executable.plan().arena_bytes())
    }

    /// Bytes of the arena and how they were laid out.
    pub(crate) fn memory(&self) -> Option<Memory> {
        let plan = self.executable.as_ref()?.plan();
        Some(Memory {
            arena_bytes: plan.arena_bytes(),
            lower_bound_bytes: plan.lower_bound_bytes(),
            heuristic: format!("{:?}", plan.heuristic()).to_lowercase(),
        })
    }

    /// Brings inputs to where runs that are timed read them.
    ///
    /// # Errors
    /// [`Error::Run`].
    pub(crate) fn prepare(&mut self, inputs: &[Tensor]) -> Result<(), Error> {
        let prepared = self.executable.as_mut().map_or(Ok(()), |run| run.prepare(inputs));
        prepared.map_err(|source| refused(self.exec, self.bindings, source))
    }

    /// Runs once as runs are timed: with inputs on the device, and outputs left there.
    ///
    /// # Errors
    /// As for [`run`](Self::run).
    pub(crate) fn step(&mut self, inputs: &[Tensor]) -> Result<(), Error> {
        match &mut self.executable {
            Some(executable) => {
                let done = executable.step(inputs);
                done.map_err(|source| refused(self.exec, self.bindings, source))
            }
            None => self.run(inputs).map(drop),
        }
    }

    /// What a GPU says of runs whose median takes `wall` milliseconds, and what transfers take.
    ///
    /// # Errors
    /// [`Error::Run`].
    pub(crate) fn on_device(
        &mut self,
        inputs: &[Tensor],
        wall: f64,
    ) -> Result<Option<OnDevice>, Error> {
        let Some(executable) = &mut self.executable else { return Ok(None) };
        let found = executable.on_device(inputs, wall);
        found.map_err(|source| refused(self.exec, self.bindings, source))
    }

    /// Times every step.
    ///
    /// # Errors
    /// [`Error::Run`].
    pub(crate) fn profile(
        &mut self,
        inputs: &[Tensor],
        target: &Target,
    ) -> Result<Option<Vec<report::Step>>, Error> {
        let Some(executable) = &mut self.executable else { return Ok(None) };
        let times = executable.time_steps(inputs);
        let times = times.map_err(|source| refused(self.exec, self.bindings, source))?;
        Ok(Some(profile::steps(executable, &times, self.bindings, target)))
    }

    /// Runs a GPU's executor step by step beside the CPU; nothing for the reference.
    ///
    /// # Errors
    /// As for [`Sides::run`].
    pub(crate) fn bisect(
        &mut self,
        plans: &Plans,
        inputs: &[Tensor],
        target: &Target,
        tolerance: Tolerance,
    ) -> Result<Option<report::Bisection>, Error> {
        let (planned, granularity) = match self.exec {
            Exec::Fused => (Some(&plans.fused), Granularity::Fused),
            Exec::Library => (plans.library.as_ref(), Granularity::PerOp),
            Exec::Reference => (None, Granularity::PerOp),
        };
        let (Some(planned), Some(Executable::Gpu(executable))) = (planned, &mut self.executable)
        else {
            return Ok(None);
        };
        let (executor, bindings) = (self.exec.name(), self.bindings);
        let sides = Sides { executor, planned, granularity, target, bindings, tolerance };
        sides.run(&mut **executable, inputs).map(Some)
    }

    /// The entry of the executor, without times.
    pub(crate) fn describe(&self, compiled: &Compiled, plans: &Plans) -> report::Executor {
        let mut entry = describe(self.exec, plans);
        entry.built = compiled.module.as_ref().and_then(Module::built).cloned();
        entry.memory = self.memory();
        if let Some(executable) = &self.executable {
            let names = executable.program().steps().iter().map(|step| &step.name);
            for (name, kernel) in names.zip(executable.kernels()) {
                if kernel == "reference" {
                    entry.by_reference.push(name.clone());
                }
                *entry.kernels.entry(kernel).or_default() += 1;
            }
        }
        entry
    }
}

/// Times the runners by turns. The reference is not timed again: `first` is the time of its one run.
///
/// # Errors
/// As for [`Runner::run`].
pub(crate) fn time(
    runners: &mut [Runner<'_>],
    inputs: &[Tensor],
    schedule: &Schedule,
    first: &[Duration],
) -> Result<Vec<Samples>, Error> {
    let timed: Vec<usize> =
        (0..runners.len()).filter(|&i| runners[i].exec != Exec::Reference).collect();
    runners.iter_mut().try_for_each(|runner| runner.prepare(inputs))?;
    let measured =
        bench::measure(schedule, timed.len(), |subject| runners[timed[subject]].step(inputs))?;
    let mut samples: Vec<_> = first.iter().map(|&time| Samples::once(time)).collect();
    for (&i, measured) in timed.iter().zip(measured) {
        samples[i] = measured;
    }
    Ok(samples)
}

/// The entry of an executor as it is planned.
pub(crate) fn describe(exec: Exec, plans: &Plans) -> report::Executor {
    let mut entry = report::Executor {
        name: exec.name(),
        launches: None,
        families: BTreeMap::new(),
        kernels: BTreeMap::new(),
        by_reference: Vec::new(),
        built: None,
        memory: None,
        time: None,
        on_device: None,
        profile: None,
    };
    if let Some(program) = plans.program(exec) {
        entry.launches = Some(program.steps().len());
        for step in program.steps() {
            *entry.families.entry(step.family.name()).or_default() += 1;
        }
    }
    entry
}

/// Elements and bytes of a program's weights.
pub(crate) fn weight_bytes(program: &Program) -> u64 {
    let bytes = program.buffers().iter().map(|buffer| match &buffer.kind {
        BufferKind::Weight(_) => {
            let elements = buffer.elements.known().and_then(|n| u64::try_from(n).ok());
            elements.unwrap_or(0).saturating_mul(buffer.dtype.size() as u64)
        }
        BufferKind::Input(_) | BufferKind::Output(_) | BufferKind::Intermediate => 0,
    });
    bytes.sum()
}

/// Refuses sizes at which the inputs, the outputs and the largest intermediate alone take more than `memory` bytes.
///
/// # Errors
/// [`Error::Memory`].
pub(crate) fn check_memory(
    program: &Program,
    bindings: &Bindings,
    memory: u64,
) -> Result<(), Error> {
    let bytes = |buffer: &Buffer| {
        let elements = buffer.elements.eval(bindings).ok().and_then(|n| u64::try_from(n).ok());
        elements.unwrap_or(0).saturating_mul(buffer.dtype.size() as u64)
    };
    let (mut outside, mut largest) = (0_u64, 0);
    for buffer in program.buffers() {
        match &buffer.kind {
            BufferKind::Input(_) | BufferKind::Output(_) => {
                outside = outside.saturating_add(bytes(buffer));
            }
            BufferKind::Intermediate => largest = bytes(buffer).max(largest),
            BufferKind::Weight(_) => {}
        }
    }
    let needed = outside.saturating_add(largest);
    match needed > memory {
        true => Err(Error::Memory { sizes: sizes_text(bindings), needed, memory }),
        false => Ok(()),
    }
}

/// Binds the fused program without allocating anything.
///
/// # Errors
/// [`Error::Run`].
pub(crate) fn bind(program: &Program, bindings: &Bindings) -> Result<Plan, Error> {
    let plan = graphene_runtime::bind(program, bindings);
    plan.map_err(|source| refused(Exec::Fused, bindings, source))
}

/// What an executor refuses at these sizes.
pub(crate) fn refused(exec: Exec, bindings: &Bindings, source: graphene_runtime::Error) -> Error {
    Error::Run { executor: exec.name(), sizes: sizes_text(bindings), source }
}
