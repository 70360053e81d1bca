//! A model planned, compiled and bound for its executors.

use crate::args::{Arguments, Exec};
use crate::bench::{self, Samples, Schedule};
use crate::bisect::{Oracle, Sides};
use crate::error::Error;
use crate::intermediates;
use crate::interrupt;
use crate::machine::Machine;
use crate::on_host::{self, OnHost};
use crate::profile;
use crate::progress::Status;
use crate::report::{self, Built, Memory, OnDevice, milliseconds};
use crate::roof::Roof;
use crate::sizes::{named, sizes_text};
use crate::tolerance::Tolerance;
use graphene_frontend::dim::Bindings;
use graphene_frontend::eval::evaluate_with;
use graphene_frontend::graph::Graph;
use graphene_frontend::tensor::Tensor;
use graphene_fusion::program::{BufferKind, Program};
use graphene_fusion::{Granularity, Planned};
use graphene_ir::target::Target;
use graphene_runtime::gpu::Executable;
use graphene_runtime::{
    BoundModel, Context, Execution, Input, Model, ModelBuilder, Place, Plan, Profile, Progress, cpu,
};
use std::collections::BTreeMap;
use std::path::Path;
use std::time::Instant;

/// Runs on a GPU that are timed by its own clock, and transfers that are timed.
const DEVICE_RUNS: usize = 21;
const TRANSFERS: usize = 5;

/// How the command line asks for a model to be planned, at the sizes that it runs at.
pub(crate) fn builder(arguments: &Arguments, machine: &Machine, sizes: &Bindings) -> ModelBuilder {
    let mut builder = machine.engine.model().dtype(arguments.run.dtype.dtype());
    if let Some(target) = &arguments.run.target {
        builder = builder.target(target.clone());
    }
    named(sizes).into_iter().fold(builder, |builder, (dim, size)| builder.typical(dim, size))
}

/// A model's plans: one for each executor that has one.
pub(crate) struct Plans {
    /// How they are made.
    builder: ModelBuilder,
    /// The plan of fused execution.
    pub(crate) fused: Planned,
    /// That of library execution, if asked for.
    pub(crate) library: Option<Planned>,
}

impl Plans {
    /// Plans a graph.
    ///
    /// # Errors
    /// [`Error::Flag`] for elements that it is not computed with, [`Error::Model`].
    pub(crate) fn new(graph: &Graph, builder: ModelBuilder, exec: &[Exec]) -> Result<Self, Error> {
        let planned = |execution| {
            let planned = builder.clone().execution(execution).plan(graph);
            planned.map_err(Error::of_elements)
        };
        let fused = planned(Execution::Fused)?;
        let library = exec.contains(&Exec::Library).then(|| planned(Execution::Library));
        let library = library.transpose()?;
        Ok(Self { builder, fused, library })
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

    /// Where the buffers of an executor's plan would lie.
    ///
    /// # Errors
    /// [`Error::Run`], [`Error::Memory`].
    pub(crate) fn bind(&self, exec: Exec, sizes: &Bindings) -> Result<Plan, Error> {
        let plan = self.builder.bind(self.of(exec), sizes);
        plan.map_err(|source| refused(Exec::Fused, sizes, source))
    }

    /// The plan of an executor to compile; the reference has none. Where `keep` does not hold these plans keep no weights
    /// beside it.
    fn taken(&mut self, exec: Exec, keep: bool) -> Option<Planned> {
        let planned = match exec {
            Exec::Fused => &mut self.fused,
            Exec::Library => self.library.as_mut()?,
            Exec::Reference => return None,
        };
        let taken = planned.clone();
        if !keep {
            planned.graph.release_weights();
            planned.program.release_weights();
        }
        Some(taken)
    }

    /// Compiles a plan of fused execution for the machine's device.
    ///
    /// # Errors
    /// As for [`ModelBuilder::compile`].
    pub(crate) fn compile_fused(&self) -> Result<Model, graphene_runtime::Error> {
        self.builder.clone().compile(self.fused.clone())
    }
}

/// An executor with its model.
pub(crate) struct Compiled {
    /// Which executor.
    pub(crate) exec: Exec,
    /// The model; the reference has none.
    pub(crate) model: Option<Model>,
}

impl Compiled {
    /// How its kernels for a GPU were made, if it is on one.
    fn built(&self) -> Option<Built> {
        let built = self.model.as_ref()?.built()?;
        let on_host = built.on_host.iter().cloned().map(|(step, why)| OnHost { step, why });
        let (kernels, compiled, cached) = (built.kernels, built.compiled, built.cached);
        Some(Built { kernels, compiled, cached, on_host: on_host.collect() })
    }

    /// Which steps of a program for a GPU fall back to the CPU, if any.
    pub(crate) fn on_host(&self) -> Option<String> {
        let said = on_host::said(&self.built()?.on_host)?;
        Some(format!("{}: falls back to the CPU for want of a kernel: {said}", self.exec.name()))
    }
}

/// Compiles the plans of these executors for the machine's device, prepared for the sizes of a profile. The plans keep
/// their weights only where that is asked for.
///
/// # Errors
/// [`Error::Compile`], [`Error::Kernels`], [`Error::Memory`].
pub(crate) fn compile(
    plans: &mut Plans,
    keep: bool,
    exec: &[Exec],
    profile: &Profile,
    status: Status,
) -> Result<Vec<Compiled>, Error> {
    let shown = move |progress| match progress {
        Progress::Kernels { done, all } => status.kernels(done, all),
        Progress::Weights { done, all } => status.weights(done, all),
        _ => {}
    };
    let builder = plans.builder.clone().profile(profile.clone()).progress(shown);
    let taken: Vec<_> = exec.iter().map(|&exec| (exec, plans.taken(exec, keep))).collect();
    let compile = |(exec, planned): (Exec, Option<Planned>)| {
        let model = planned.map(|planned| builder.clone().compile(planned)).transpose();
        let model = model.map_err(|source| match source {
            graphene_runtime::Error::MemoryLimit { needed, used, limit, .. } => {
                let needed = needed.saturating_add(used);
                Error::Memory { sizes: String::new(), needed, memory: limit }
            }
            source if is_for_gpu(&builder) => Error::Kernels { executor: exec.name(), source },
            source => Error::Compile(source),
        })?;
        Ok(Compiled { exec, model })
    };
    taken.into_iter().map(compile).collect()
}

fn is_for_gpu(builder: &ModelBuilder) -> bool {
    !crate::args::is_cpu(&builder.planned_for())
}

/// An executor ready to run.
pub(crate) struct Runner<'a> {
    exec: Exec,
    graph: &'a Graph,
    /// What it is bound to.
    sizes: Bindings,
    context: Option<Context>,
}

/// What is timed.
enum Subject<'a> {
    /// A run from inputs to outputs.
    Context(&'a mut Context),
    /// The launch of all kernels until they are done, inputs being on the device.
    Launch(&'a mut Executable),
}

impl<'a> Runner<'a> {
    /// A runner that keeps so many shapes bound; the reference evaluates `graph`.
    pub(crate) fn new(compiled: &Compiled, graph: &'a Graph, kept: usize) -> Self {
        let context = compiled.model.as_ref().map(|model| model.context().keep(kept));
        Self { exec: compiled.exec, graph, sizes: Bindings::new(), context }
    }

    /// Binds it to sizes: its model runs at those that its profile has for them.
    ///
    /// # Errors
    /// [`Error::Run`], [`Error::Memory`].
    pub(crate) fn bind(&mut self, sizes: &Bindings) -> Result<(), Error> {
        self.sizes = sizes.clone();
        self.bound().map(drop)
    }

    /// What is bound; the reference binds nothing.
    fn bound(&mut self) -> Result<Option<BoundModel<'_>>, Error> {
        let Some(context) = &mut self.context else { return Ok(None) };
        let bound = context.bind(&named(&self.sizes));
        bound.map(Some).map_err(|source| refused(self.exec, &self.sizes, source))
    }

    /// Which executor.
    pub(crate) fn exec(&self) -> Exec {
        self.exec
    }

    /// What a library refused at these sizes, said once however many steps it is about.
    ///
    /// # Errors
    /// As for [`bind`](Self::bind), and so for all that asks for what is bound.
    pub(crate) fn refusal(&mut self) -> Result<Option<String>, Error> {
        let Some(bound) = self.bound()? else { return Ok(None) };
        let refusals = bound.refusals();
        let Some(first) = refusals.first() else { return Ok(None) };
        let more = match refusals.len() {
            1 => String::new(),
            all => format!(" (and {} more)", all - 1),
        };
        Ok(Some(format!("not by the library: {first}{more}")))
    }

    /// Runs once.
    ///
    /// # Errors
    /// [`Error::Run`], [`Error::Evaluate`].
    pub(crate) fn run(&mut self, inputs: &[Tensor]) -> Result<Vec<Tensor>, Error> {
        match &mut self.context {
            Some(context) => {
                let outputs = context.run(&borrowed(inputs));
                let outputs = outputs.map_err(|source| refused(self.exec, &self.sizes, source))?;
                Ok(outputs.into_iter().collect())
            }
            None => evaluate_with(self.graph, inputs, &self.sizes)
                .map_err(|source| Error::Evaluate { sizes: sizes_text(&self.sizes), source }),
        }
    }

    /// The inputs as large as they are where they run.
    ///
    /// # Errors
    /// [`Error::Run`].
    pub(crate) fn padded(&mut self, inputs: &[Tensor]) -> Result<Vec<Tensor>, Error> {
        let Some(context) = &mut self.context else { return Ok(inputs.to_vec()) };
        let padded = context.padded(&borrowed(inputs));
        padded.map_err(|source| refused(self.exec, &self.sizes, source))
    }

    /// The sizes that it runs at.
    ///
    /// # Errors
    /// As for [`bind`](Self::bind).
    pub(crate) fn bucket(&mut self) -> Result<Bindings, Error> {
        let bound = self.bound()?.map(|bound| bound.sizes().clone());
        Ok(bound.unwrap_or_else(|| self.sizes.clone()))
    }

    /// Bytes of the arena.
    ///
    /// # Errors
    /// As for [`bind`](Self::bind).
    pub(crate) fn arena_bytes(&mut self) -> Result<u64, Error> {
        Ok(self.bound()?.map_or(0, |bound| bound.plan().arena_bytes()))
    }

    /// What runs are timed by, with these inputs where it reads them; nothing for the reference.
    ///
    /// # Errors
    /// [`Error::Run`].
    fn subject(&mut self, inputs: &[Tensor]) -> Result<Option<Subject<'_>>, Error> {
        let Self { exec, sizes, context: Some(context), .. } = self else { return Ok(None) };
        let failed = |source| refused(*exec, sizes, source);
        if context.model().engine().device().gpu.is_none() {
            return Ok(Some(Subject::Context(context)));
        }
        let bound = context.bind(&named(sizes)).map_err(failed)?;
        let Some(executable) = bound.into_gpu() else { return Ok(None) };
        executable.write(inputs).map_err(failed)?;
        Ok(Some(Subject::Launch(executable)))
    }

    /// What a GPU says of runs whose median takes `wall` milliseconds, and what transfers take. Medians.
    ///
    /// # Errors
    /// [`Error::Run`].
    pub(crate) fn on_device(
        &mut self,
        inputs: &[Tensor],
        wall: f64,
    ) -> Result<Option<OnDevice>, Error> {
        let (exec, sizes) = (self.exec, self.sizes.clone());
        let failed = |source| refused(exec, &sizes, source);
        let Some(Subject::Launch(executable)) = self.subject(inputs)? else { return Ok(None) };
        let timed = |_| executable.time().map(|microseconds| microseconds / 1e3);
        let times = (0..DEVICE_RUNS).map(timed).collect::<Result<_, _>>();
        let run_ms = median(times.map_err(failed)?);
        let (mut uploads, mut downloads) = (Vec::new(), Vec::new());
        for _ in 0..TRANSFERS {
            let start = Instant::now();
            executable.write(inputs).map_err(failed)?;
            uploads.push(milliseconds(start.elapsed()));
            let start = Instant::now();
            executable.read().map_err(failed)?;
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

    /// Times every step.
    ///
    /// # Errors
    /// [`Error::Run`].
    pub(crate) fn profile(
        &mut self,
        inputs: &[Tensor],
        roof: &Roof,
    ) -> Result<Option<Vec<report::Step>>, Error> {
        let Some(context) = &mut self.context else { return Ok(None) };
        let times = context.profile(&borrowed(inputs));
        let times = times.map_err(|source| refused(self.exec, &self.sizes, source))?;
        let model = context.model().clone();
        let Some(bound) = self.bound()? else { return Ok(None) };
        Ok(Some(profile::steps(model.program(), &bound, &times, roof)))
    }

    /// Runs the executor step by step beside what is right; nothing for the reference.
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
        let (exec, bindings) = (self.exec, &self.sizes.clone());
        let Some(planned) = planned else { return Ok(None) };
        let (executor, oracle) = (exec.name(), Oracle::Single);
        let sides = Sides { executor, planned, granularity, target, bindings, tolerance, oracle };
        match self.gpu()? {
            Some(executable) => sides.run(executable, inputs),
            None => {
                let mut executable = on_cpu(exec, planned, bindings)?;
                Sides { oracle: Oracle::Reference, ..sides }.run(&mut executable, inputs)
            }
        }
        .map(Some)
    }

    /// Saves what each step writes; nothing for the reference, which has none.
    ///
    /// # Errors
    /// As for [`intermediates::save`].
    pub(crate) fn save_intermediates(
        &mut self,
        plans: &Plans,
        inputs: &[Tensor],
        path: &Path,
    ) -> Result<(), Error> {
        let (exec, sizes) = (self.exec, self.sizes.clone());
        let Some(program) = plans.program(exec) else { return Ok(()) };
        let failed = |source| refused(exec, &sizes, source);
        match self.gpu()? {
            Some(executable) => intermediates::save(executable, program, inputs, path, failed),
            None => {
                let mut executable = on_cpu(exec, plans.of(exec), &sizes)?;
                intermediates::save(&mut executable, program, inputs, path, failed)
            }
        }
    }

    /// What is bound on a GPU, if it is on one.
    fn gpu(&mut self) -> Result<Option<&mut Executable>, Error> {
        Ok(self.bound()?.and_then(BoundModel::into_gpu))
    }

    /// The entry of the executor, without times.
    ///
    /// # Errors
    /// As for [`bind`](Self::bind).
    pub(crate) fn describe(
        &mut self,
        compiled: &Compiled,
        plans: &Plans,
    ) -> Result<report::Executor, Error> {
        let mut entry = describe(self.exec, plans);
        entry.built = compiled.built();
        let (Some(model), Some(bound)) = (&compiled.model, self.bound()?) else {
            return Ok(entry);
        };
        let plan = bound.plan();
        entry.memory = Some(Memory {
            arena_bytes: plan.arena_bytes(),
            lower_bound_bytes: plan.lower_bound_bytes(),
            heuristic: format!("{:?}", plan.heuristic()).to_lowercase(),
        });
        let names = model.program().steps().iter().map(|step| &step.name);
        for (name, kernel) in names.zip(bound.kernels()) {
            if kernel == "reference" {
                entry.by_reference.push(name.clone());
            }
            *entry.kernels.entry(kernel.to_owned()).or_default() += 1;
        }
        Ok(entry)
    }
}

impl Subject<'_> {
    fn step(&mut self, inputs: &[Input<'_>]) -> Result<(), graphene_runtime::Error> {
        match self {
            // Dropping the outputs belongs to a run: they are allocated in it.
            Self::Context(context) => context.run(inputs).map(drop),
            Self::Launch(executable) => {
                executable.launch()?;
                executable.synchronize()
            }
        }
    }
}

/// Times the runners interleaved, but for the reference: those have no samples. Inputs are as large as they are where
/// they run.
///
/// # Errors
/// [`Error::Run`].
pub(crate) fn time(
    runners: &mut [Runner<'_>],
    inputs: &[Tensor],
    schedule: &Schedule,
) -> Result<Vec<Samples>, Error> {
    let given = borrowed(inputs);
    let described: Vec<_> =
        runners.iter().map(|runner| (runner.exec, runner.sizes.clone())).collect();
    let mut subjects = Vec::new();
    for (number, runner) in runners.iter_mut().enumerate() {
        subjects.extend(runner.subject(inputs)?.map(|subject| (number, subject)));
    }
    let measured = bench::measure(schedule, subjects.len(), interrupt::stops, |place| {
        let (number, subject) = &mut subjects[place];
        let (exec, sizes) = &described[*number];
        subject.step(&given).map_err(|source| refused(*exec, sizes, source))
    })?;
    let mut samples = vec![Samples::default(); described.len()];
    for ((number, _), measured) in subjects.iter().zip(measured) {
        samples[*number] = measured;
    }
    Ok(samples)
}

/// A plan on the host's cores, to be looked at step by step.
fn on_cpu(exec: Exec, planned: &Planned, sizes: &Bindings) -> Result<cpu::Executable, Error> {
    let module = cpu::Module::compile(planned.program.clone()).map_err(Error::Compile)?;
    module.executable(sizes).map_err(|source| refused(exec, sizes, source))
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
        estimate: None,
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

/// What an executor refuses at these sizes.
pub(crate) fn refused(exec: Exec, sizes: &Bindings, source: graphene_runtime::Error) -> Error {
    use graphene_runtime::Error as E;
    let sizes = sizes_text(sizes);
    let limit = match &source {
        E::At { error, .. } => error,
        error => error,
    };
    match *limit {
        E::MemoryLimit { needed, used, limit, .. } => {
            Error::Memory { sizes, needed: needed.saturating_add(used), memory: limit }
        }
        _ => Error::Run { executor: exec.name(), sizes, source: Box::new(source) },
    }
}

fn borrowed(inputs: &[Tensor]) -> Vec<Input<'_>> {
    inputs.iter().map(Input::from).collect()
}

/// The middle of some numbers, the upper one of two; 0 of none.
fn median(mut numbers: Vec<f64>) -> f64 {
    numbers.sort_by(f64::total_cmp);
    numbers.get(numbers.len() / 2).copied().unwrap_or(0.0)
}
