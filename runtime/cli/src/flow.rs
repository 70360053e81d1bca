//! What the command does, step by step.

use crate::args::{Arguments, Exec, Precision, Stage, is_cpu};
use crate::bench::Schedule;
use crate::buckets::Padded;
use crate::compare::compare;
use crate::data::Expected;
use crate::error::{self, Error};
use crate::inputs::{self, Given};
use crate::load::{self, Loaded};
use crate::machine::Machine;
use crate::picture::Picture;
use crate::progress::Progress;
use crate::report::{Agreement, Compile, OutputAgreement, Report, Time, milliseconds};
use crate::session::{self, Compiled, Plans, Runner};
use crate::sizes::{DEFAULT_SEQUENCE, Known, Sizing, check_given, sizes};
use crate::tolerance::{Rounded, Tolerance, own_halves};
use crate::tuning::{Tuning, path_of};
use crate::{
    blame, buckets, data, doctor, emit, files, gates, limits, machine, npy, on_host, overview,
    page, profile, random, summary, trace, tune,
};
use graphene_frontend::dim::Bindings;
use graphene_frontend::dtype::DType;
use graphene_frontend::graph::{Graph, NodeId};
use graphene_frontend::import::DeclaredInput;
use graphene_frontend::tensor::Tensor;
use graphene_fusion::{explain, tuning};
use graphene_ir::target::Target;
use graphene_runtime::gpu::Cache;
use std::time::{Duration, Instant};

/// Names of the stages, in the status line and the trace.
mod stage {
    pub(super) const IMPORT: &str = "importing";
    pub(super) const PLAN: &str = "planning";
    pub(super) const TUNE: &str = "tuning";
    pub(super) const COMPILE: &str = "compiling";
    pub(super) const BIND: &str = "binding";
    pub(super) const FIRST: &str = "running for the first time";
    pub(super) const TIME: &str = "warming up and timing";
    pub(super) const PROFILE: &str = "profiling";
    pub(super) const BUCKETS: &str = "preparing and timing buckets";
    pub(super) const BISECT: &str = "running step by step beside the CPU";
}

/// Does what the command line asks for; the exit code.
///
/// # Errors
/// Whatever ends the command before it has found something.
pub(crate) fn run(arguments: &Arguments) -> Result<u8, Error> {
    arguments.check()?;
    gates::check_names(&arguments.gates)?;
    if arguments.list_ops {
        return files::print(&load::operators(arguments.report.json)).map(|()| 0);
    }
    if arguments.doctor {
        let (table, note) = doctor::doctor(arguments.report.json);
        files::print(&table)?;
        note.iter().for_each(|note| files::complain(note));
        return Ok(0);
    }
    let machine = machine::prepare(&arguments.run)?;
    let plan_only = arguments.plan_only(&machine)?;
    if arguments.report.bisect && (plan_only || machine.gpu.is_none()) {
        let reason = "it looks for a step that goes wrong on a GPU, and none runs the model";
        return Err(Error::flag("--bisect", reason));
    }
    let mut progress = Progress::new();
    let result = run_model(arguments, &machine, plan_only, &mut progress);
    progress.clear();
    let report = result?;
    // A stage on stdout is for a reader that wants nothing else.
    match (arguments.report.json, arguments.emits_to_stdout()) {
        (true, _) => files::print(&report.json())?,
        (false, true) => files::complain(summary::verdicts(&report).trim()),
        (false, false) => files::print(&summary::summary(&report))?,
    }
    Ok(report.exit_code)
}

fn run_model(
    arguments: &Arguments,
    machine: &Machine,
    plan_only: bool,
    progress: &mut Progress,
) -> Result<Report, Error> {
    let target = machine.target(&arguments.run);
    let source = progress.stage(stage::IMPORT, || load::open(arguments))?;
    let declared = source.inputs()?;
    // Data that does not fit is often that of a model that is not supported, which says more.
    let read = read_given(arguments, &declared);
    let (given, expected, known) = read.map_err(|error| source.defect().unwrap_or(error))?;
    let import = || source.import(&declared, &arguments.sizes, &given, &known);
    let loaded = progress.stage(stage::IMPORT, import)?;
    arguments.spare(&source.files())?;
    let elements = elements(arguments.run.dtype, &loaded.graph, &target)?;
    let exec = &arguments.run.exec;
    let sizing = sizes(&loaded.graph, &arguments.sizes, &known, DEFAULT_SEQUENCE)?;
    let plan = || Plans::new(&loaded.graph, &target, exec, &sizing.given, elements);
    let mut plans = progress.stage(stage::PLAN, plan)?;
    check_given(&loaded.graph, &given, &sizing.bindings)?;
    let tuned = tuned(arguments, machine, &target, progress, &mut plans, || {
        let inputs = inputs_of(&loaded.graph, &given, &sizing, arguments.data.seed);
        Ok((inputs?, sizing.bindings.clone()))
    })?;
    let mut report = overview::start(&loaded, &plans, machine, &target);
    report.notes.extend(tuned);
    report.gates = gates::check(&arguments.gates, &plans.fused.program)?;
    if arguments.report.explain {
        let rewriting = plans.fused.report.to_string();
        report.rewriting = Some(rewriting.lines().map(str::to_owned).collect());
        let lines = explain(&plans.fused, &target, &sizing.given);
        report.explain = Some(lines.iter().map(ToString::to_string).collect());
    }
    let job = {
        let halves = elements.or_else(|| own_halves(&loaded.graph));
        let rounded = halves.and_then(Rounded::halves).or(target.tf32.then_some(Rounded::Products));
        let tolerance = Tolerance::new(&arguments.data, &loaded.graph, rounded);
        let (loaded, plans, given, known) = (&loaded, &plans, &given, &known);
        Job { arguments, machine, loaded, plans, given, known, target: &target, tolerance }
    };
    let sizing = match plan_only {
        true => {
            let expected = expected.folder().filter(|_| !arguments.emits_to_stdout());
            report.notes.extend(
                expected.map(|_| "outputs are compared with those of --data by a run".to_owned()),
            );
            job.plan_only(sizing, progress, &mut report)?
        }
        false => job.run(&expected, sizing, progress, &mut report)?,
    };
    report.compile_ms = compile_times(progress);
    report.exit_code = match (report.differs(), report.gate_failed()) {
        (true, _) => error::DIFFER,
        (_, true) => error::GATE,
        _ => 0,
    };
    write_reports(arguments, progress, &report, || picture(&plans, &sizing))?;
    Ok(report)
}

/// Gives the fused plan what tuning found for the machine's GPU, after a search if one is asked for with the inputs and sizes
/// that `at` gives; what to say of it.
fn tuned(
    arguments: &Arguments,
    machine: &Machine,
    target: &Target,
    progress: &mut Progress,
    plans: &mut Plans,
    at: impl FnOnce() -> Result<(Vec<Tensor>, Bindings), Error>,
) -> Result<Vec<String>, Error> {
    let limit = arguments.run.tune;
    let Some(gpu) = machine.gpu.as_ref().filter(|_| machine.runs(target)) else {
        let flag = limit.map(|_| "--tune").or(arguments.run.tuning.as_ref().map(|_| "--tuning"));
        let reason = "it is about kernels of a GPU, and none runs the model";
        return flag.map_or(Ok(Vec::new()), |flag| Err(Error::flag(flag, reason)));
    };
    let path = arguments.run.tuning.clone();
    let path = path.unwrap_or_else(|| path_of(arguments.model.as_deref().unwrap_or_default()));
    let device = format!("{} {}", machine.report.name, gpu.arch);
    let mut kept = Tuning::open(path, device)?;
    let mut notes = Vec::new();
    if let Some(limit) = limit {
        let (inputs, bindings) = at()?;
        let search = || tune::tune(plans, machine, (target, &bindings), &inputs, limit, &mut kept);
        notes = progress.stage(stage::TUNE, search)?.notes(&kept);
    }
    let choices = kept.choices();
    if !choices.is_empty() {
        let path = kept.path().display();
        let (program, stale) = tuning::tuned(plans.fused.program.clone(), &choices, target);
        plans.fused.program = program;
        if limit.is_none() {
            notes.push(format!("what tuning found for this GPU is taken from {path}"));
        }
        let left =
            |choice: &&tuning::Choice| format!("{path}: no kernel has `{}`", choice.parameters);
        notes.extend(stale.iter().map(left));
    }
    Ok(notes)
}

/// The inputs: those given, and random ones.
fn inputs_of(
    graph: &Graph,
    given: &Given,
    sizing: &Sizing,
    seed: u64,
) -> Result<Vec<Tensor>, Error> {
    let input = |&id: &NodeId| match given.get(graph.node(id).name()) {
        Some((tensor, _)) => Ok(tensor.clone()),
        None => random::tensor(graph, id, &sizing.bindings, seed),
    };
    graph.inputs().iter().map(input).collect()
}

/// The inputs that are given, the outputs that are expected, and the sizes that follow from inputs and flags.
fn read_given(
    arguments: &Arguments,
    declared: &[DeclaredInput],
) -> Result<(Given, Expected, Known), Error> {
    let (mut given, expected) = match &arguments.data.data {
        Some(folder) => data::read(folder, declared)?,
        None => (inputs::read(&arguments.data)?, Expected::default()),
    };
    given.resolve(declared)?;
    let known = Known::new(declared, &arguments.sizes, &given)?;
    Ok((given, expected, known))
}

/// The elements that values of single precision become, if they are to be others. Halves are what GPUs are planned with.
fn elements(precision: Precision, graph: &Graph, target: &Target) -> Result<Option<DType>, Error> {
    let floats = |dtype: DType| dtype.is_float() && dtype != DType::F32;
    let other = graph.nodes().find_map(|(_, node)| {
        node.outputs().iter().map(|ty| ty.dtype).find(|&dtype| floats(dtype))
    });
    let refuse = |why: String| Err(Error::flag("--dtype", why));
    let halves = match precision {
        Precision::Model => return Ok(None),
        Precision::F32 => {
            return match other {
                None => Ok(None),
                Some(dtype) => refuse(format!("the model computes in {dtype}, not in f32")),
            };
        }
        Precision::Tf32 => {
            return match other {
                None if target.has_tf32() => Ok(None),
                None => refuse(format!("GPUs have TF32 from sm_80 on; {target} has not")),
                Some(dtype) => refuse(format!("the model computes in {dtype}, not in f32")),
            };
        }
        Precision::F16 => DType::F16,
        Precision::Bf16 => DType::BF16,
    };
    match (other, is_cpu(target)) {
        (Some(dtype), _) if dtype != halves => {
            refuse(format!("the model computes in {dtype}, not in {halves}"))
        }
        (_, true) => refuse(format!("{halves} is for GPUs; give `--target`, or use `model`")),
        _ => Ok(Some(halves)),
    }
}

/// A run of a model.
struct Job<'a> {
    arguments: &'a Arguments,
    machine: &'a Machine,
    loaded: &'a Loaded,
    plans: &'a Plans,
    given: &'a Given,
    known: &'a Known,
    target: &'a Target,
    tolerance: Tolerance,
}

/// The first run of each executor.
struct First<'a> {
    runners: Vec<Runner<'a>>,
    inputs: Vec<Tensor>,
    outputs: Vec<Vec<Tensor>>,
    times: Vec<Duration>,
}

impl Job<'_> {
    /// Prints stages and describes the plans; the model runs at most once, to find the sizes of a bound plan,
    /// which are returned.
    fn plan_only(
        &self,
        mut sizing: Sizing,
        progress: &mut Progress,
        report: &mut Report,
    ) -> Result<Sizing, Error> {
        let emits = &self.arguments.report.emit;
        if emits.iter().any(|emit| emit.stage == Stage::Bound) {
            let compiled = match is_cpu(self.target) {
                true => {
                    let exec = &self.arguments.run.exec;
                    session::compile(self.plans, exec, self.machine, progress.status())?
                }
                false => Vec::new(),
            };
            sizing = self.settle_sequence(&compiled, sizing, progress, report)?;
        } else if !self.arguments.emits_to_stdout() {
            sizing = self.settle_sequence(&[], sizing, progress, report)?;
        }
        // No reader of another stage has asked for sizes.
        if !sizing.free_sequence {
            self.check_sizes(&sizing)?;
        }
        emit::emit(emits, &self.loaded.graph, self.plans, self.first_exec(), self.target, &sizing)?;
        overview::describe_values(report, &self.loaded.graph, &sizing, self.given);
        let exec = self.arguments.run.exec.iter();
        report.executors = exec.map(|&exec| session::describe(exec, self.plans)).collect();
        if !self.arguments.emits_to_stdout() {
            report.notes.push(format!("planned for {}, not run", report.target));
            for &exec in &self.arguments.run.exec {
                let program = self.plans.program(exec);
                let without = program.and_then(|p| on_host::without_kernels(p, self.target));
                report.notes.extend(without.map(|said| format!("{}: {said}", exec.name())));
            }
        }
        Ok(sizing)
    }

    /// Runs the model, compares and times it; the sizes that it ran at.
    fn run(
        &self,
        expected: &Expected,
        mut sizing: Sizing,
        progress: &mut Progress,
        report: &mut Report,
    ) -> Result<Sizing, Error> {
        let exec = &self.arguments.run.exec;
        let status = progress.status();
        let compile = || session::compile(self.plans, exec, self.machine, status);
        let compiled = progress.stage(stage::COMPILE, compile)?;
        if let Some(warning) = self.machine.cache.as_ref().and_then(Cache::warning) {
            progress.clear();
            files::complain(&format!("warning: {warning}"));
        }
        let asked = &self.arguments.sizes.buckets;
        if !buckets::lists_sequence(asked, &sizing.roles) {
            sizing = self.settle_sequence(&compiled, sizing, progress, report)?;
        }
        let (mut combinations, mut padded) = (Vec::new(), None);
        if !asked.is_empty() {
            let planned = &self.plans.fused.graph;
            let fit = buckets::fit(asked, &self.loaded.graph, planned, &sizing)?;
            (combinations, sizing, padded) = (fit.all, fit.sizing, fit.padded);
            report.notes.extend(fit.notes);
        }
        self.check_sizes(&sizing)?;
        emit::emit(
            &self.arguments.report.emit,
            &self.loaded.graph,
            self.plans,
            self.first_exec(),
            self.target,
            &sizing,
        )?;
        overview::describe_values(report, &self.loaded.graph, &sizing, self.given);
        if self.arguments.report.bisect {
            self.bisect(&compiled, &sizing, progress, report)?;
            return Ok(sizing);
        }
        report.notes.extend(compiled.iter().filter_map(Compiled::on_host));
        let mut first = self.first_run(&compiled, &sizing, padded.as_ref(), progress)?;
        report.notes.extend(first.runners.iter().filter_map(Runner::refusal));
        report.agreement = self.compare(&first, expected)?;
        let names: Vec<_> = self.loaded.graph.outputs().iter().map(|(name, _)| name).collect();
        report.notes.extend(data::unchecked(&names, &expected.by_position(&names)?));
        if let Some(path) = &self.arguments.data.save_outputs {
            self.save(path, &first.outputs[0])?;
        }
        let schedule = Schedule {
            warmup: self.arguments.run.warmup,
            duration: self.arguments.run.duration,
            iterations: self.arguments.run.iterations,
        };
        let (runners, inputs) = (&mut first.runners, &first.inputs);
        let samples = progress
            .stage(stage::TIME, || session::time(runners, inputs, &schedule, &first.times))?;
        let batch = sizing.roles.batch.as_ref().and_then(|batch| sizing.bindings.get(batch));
        for ((compiled, runner), samples) in compiled.iter().zip(&mut *runners).zip(&samples) {
            let mut entry = runner.describe(compiled, self.plans);
            let statistics = samples.statistics(&self.arguments.run.percentiles);
            entry.time = statistics.map(|s| Time::new(&s, batch));
            if let Some(time) = &entry.time {
                entry.on_device = runner.on_device(inputs, time.median_ms)?;
            }
            if self.arguments.profiles() {
                entry.profile =
                    progress.stage(stage::PROFILE, || runner.profile(inputs, self.target))?;
            }
            report.executors.push(entry);
        }
        drop(first);
        if !combinations.is_empty() {
            let resources = (self.machine.memory(), self.arguments.data.seed);
            let (graph, all) = (&self.loaded.graph, &combinations);
            let measure = || buckets::measure(all, &compiled, graph, &schedule, resources);
            report.buckets = progress.stage(stage::BUCKETS, measure)?;
        }
        report.speedup = overview::speedup(&report.executors);
        profile::beside_library(&mut report.executors, self.plans);
        Ok(sizing)
    }

    /// Shortens a sequence that nobody asked for until the model takes it, for example where it has a table of
    /// fewer positions.
    fn settle_sequence(
        &self,
        compiled: &[Compiled],
        mut sizing: Sizing,
        progress: &mut Progress,
        report: &mut Report,
    ) -> Result<Sizing, Error> {
        let mut length = DEFAULT_SEQUENCE;
        let mut failure = None;
        while sizing.free_sequence && length >= 1 {
            sizing = sizes(&self.loaded.graph, &self.arguments.sizes, self.known, length)?;
            match self.attempt(compiled, &sizing, progress) {
                Ok(()) if length == DEFAULT_SEQUENCE => return Ok(sizing),
                Ok(()) => {
                    report.notes.push(format!(
                        "a sequence of {length}, since the model refuses {DEFAULT_SEQUENCE}; --seq N asks for another"
                    ));
                    return Ok(sizing);
                }
                Err(error @ Error::Memory { .. }) => return Err(error),
                // The first failure is the one to tell of.
                Err(error) => failure = Some(failure.unwrap_or(error)),
            }
            length /= 2;
        }
        failure.map_or(Ok(sizing), Err)
    }

    /// Binds the plan, and runs the first executor once if that is the CPU's; a GPU's kernels would take the last row of a
    /// table for one beyond it.
    fn attempt(
        &self,
        compiled: &[Compiled],
        sizing: &Sizing,
        progress: &mut Progress,
    ) -> Result<(), Error> {
        self.check_sizes(sizing)?;
        match compiled.get(..1).filter(|_| is_cpu(self.target)) {
            Some(first) => self.first_run(first, sizing, None, progress).map(drop),
            None => Ok(()),
        }
    }

    /// The executor whose plan is shown.
    fn first_exec(&self) -> Exec {
        self.arguments.run.exec.first().copied().unwrap_or(Exec::Fused)
    }

    /// Refuses sizes that the model does not take, whether it runs or is planned only.
    fn check_sizes(&self, sizing: &Sizing) -> Result<(), Error> {
        let (program, bindings) = (&self.plans.fused.program, &sizing.bindings);
        match session::bind(program, bindings) {
            Ok(_) => limits::check(&self.loaded.graph, self.given, bindings),
            // Sizes that no model takes are said in terms of the memory that a run has.
            Err(error) if self.machine.runs(self.target) && !error.names_the_largest() => {
                session::check_memory(program, bindings, self.machine.memory()).and(Err(error))
            }
            Err(error) => Err(error),
        }
    }

    /// The first run of each executor, in a bucket where there is one; the reference runs at the sizes asked for.
    fn first_run<'a>(
        &'a self,
        compiled: &[Compiled],
        sizing: &'a Sizing,
        padded: Option<&'a Padded>,
        progress: &mut Progress,
    ) -> Result<First<'a>, Error> {
        let mut runners = self.runners(compiled, sizing, padded, progress)?;
        let exact = inputs_of(&self.loaded.graph, self.given, sizing, self.arguments.data.seed)?;
        let refused = |source| session::refused(Exec::Fused, &sizing.bindings, source);
        let filled = padded.map(|padded| padded.fill(&exact)).transpose().map_err(refused)?;
        let (mut outputs, mut times) = (Vec::new(), Vec::new());
        for runner in &mut runners {
            let bucket = padded.zip(filled.as_ref());
            let bucket = bucket.filter(|_| runner.exec() != Exec::Reference);
            let inputs = bucket.map_or(&exact, |(_, filled)| filled);
            let start = Instant::now();
            let run = progress.stage(stage::FIRST, || runner.run(inputs));
            let given = run.map_err(|error| self.blame(error))?;
            times.push(start.elapsed());
            outputs.push(match bucket {
                Some((padded, _)) => padded.cut(&given).map_err(refused)?,
                None => given,
            });
        }
        Ok(First { runners, inputs: filled.unwrap_or(exact), outputs, times })
    }

    /// The executors bound to sizes.
    fn runners<'a>(
        &'a self,
        compiled: &[Compiled],
        sizing: &'a Sizing,
        padded: Option<&'a Padded>,
        progress: &mut Progress,
    ) -> Result<Vec<Runner<'a>>, Error> {
        let (graph, exact) = (&self.loaded.graph, &sizing.bindings);
        let bindings = padded.map_or(exact, |padded| &padded.bucket);
        let memory = self.machine.memory();
        progress.stage(stage::BIND, || {
            session::check_memory(&self.plans.fused.program, bindings, memory)?;
            let mut runners = Vec::new();
            let mut taken = compiled.iter().map(Compiled::resident_bytes).sum();
            for compiled in compiled {
                let sizes = if compiled.exec == Exec::Reference { exact } else { bindings };
                let runner = Runner::bind(compiled, graph, sizes, memory, taken)?;
                taken += runner.arena_bytes();
                runners.push(runner);
            }
            Ok::<_, Error>(runners)
        })
    }

    /// The error, with the data that is at fault.
    fn blame(&self, error: Error) -> Error {
        blame::index(error, self.plans, &self.loaded.graph, self.given)
    }

    /// Runs every executor of the GPU step by step beside the CPU.
    fn bisect(
        &self,
        compiled: &[Compiled],
        sizing: &Sizing,
        progress: &mut Progress,
        report: &mut Report,
    ) -> Result<(), Error> {
        let mut runners = self.runners(compiled, sizing, None, progress)?;
        let inputs = inputs_of(&self.loaded.graph, self.given, sizing, self.arguments.data.seed)?;
        for (runner, compiled) in runners.iter_mut().zip(compiled) {
            report.executors.push(runner.describe(compiled, self.plans));
            let found = progress.stage(stage::BISECT, || {
                runner.bisect(self.plans, &inputs, self.target, self.tolerance)
            });
            report.bisection.extend(found.map_err(|error| self.blame(error))?);
        }
        Ok(())
    }

    /// Compares every executor with the files, or with the reference, or with library execution.
    fn compare(&self, first: &First<'_>, expected: &Expected) -> Result<Vec<Agreement>, Error> {
        let tolerance = self.tolerance;
        let names: Vec<_> = self.loaded.graph.outputs().iter().map(|(name, _)| name).collect();
        let mut agreement = Vec::new();
        let mut add = |executor, against: String, outputs: Vec<OutputAgreement>| {
            let agrees = outputs.iter().all(|output| output.agrees);
            agreement.push(Agreement { executor, against, agrees, outputs });
        };
        let runs = || first.runners.iter().map(Runner::exec).zip(&first.outputs);
        let expected_outputs = expected.by_position(&names)?;
        if let Some(folder) = expected.folder() {
            for (exec, outputs) in runs() {
                let rows = expected_outputs.iter().map(|&(i, tensor)| {
                    OutputAgreement::new(names[i], &compare(&outputs[i], tensor, tolerance))
                });
                add(exec.name(), folder_name(folder), rows.collect());
            }
        }
        let order = [Exec::Reference, Exec::Library];
        let base = order.iter().find_map(|&base| runs().find(|(exec, _)| *exec == base));
        if let Some((base, right)) = base {
            for (exec, outputs) in runs().filter(|(exec, _)| *exec != base) {
                let rows = outputs.iter().zip(right).zip(&names);
                let rows = rows
                    .map(|((a, b), name)| OutputAgreement::new(name, &compare(a, b, tolerance)));
                add(exec.name(), base.name().to_owned(), rows.collect());
            }
        }
        Ok(agreement)
    }

    fn save(&self, path: &std::path::Path, outputs: &[Tensor]) -> Result<(), Error> {
        let names = self.loaded.graph.outputs().iter().map(|(name, _)| name.clone());
        let tensors: Vec<_> = names.zip(outputs.iter().cloned()).collect();
        let bytes = npy::npz_bytes(&tensors);
        let bytes = bytes.map_err(|source| Error::Npy { path: path.to_owned(), source })?;
        files::write(path, &bytes)
    }
}

/// The last part of a folder's path.
fn folder_name(folder: &std::path::Path) -> String {
    folder.file_name().unwrap_or(folder.as_os_str()).to_string_lossy().into_owned()
}

fn compile_times(progress: &Progress) -> Compile {
    let total = |name| milliseconds(progress.total(name));
    let mut times = Compile {
        import: total(stage::IMPORT),
        plan: total(stage::PLAN),
        compile: total(stage::COMPILE),
        bind: total(stage::BIND),
        total: 0.0,
    };
    times.total = times.import + times.plan + times.compile + times.bind;
    times
}

/// The fused plan as the page draws it. Where it cannot be bound, nothing has run and the arena is left out.
fn picture(plans: &Plans, sizing: &Sizing) -> Picture {
    let program = &plans.fused.program;
    let plan = session::bind(program, &sizing.bindings).ok();
    Picture::new(program, plan.as_ref(), &sizing.bindings)
}

fn write_reports(
    arguments: &Arguments,
    progress: &Progress,
    report: &Report,
    picture: impl FnOnce() -> Picture,
) -> Result<(), Error> {
    if let Some(path) = &arguments.report.trace {
        files::write(path, trace::trace(progress.stages(), &report.executors).as_bytes())?;
    }
    if let Some(path) = &arguments.report.report {
        files::write(path, page::page(report, &picture()).as_bytes())?;
    }
    Ok(())
}
