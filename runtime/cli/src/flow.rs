//! What the command does, step by step.

use crate::args::{Arguments, Exec, Stage, is_cpu};
use crate::bench::{Samples, Schedule};
use crate::compare::compare;
use crate::data::Expected;
use crate::error::{self, Error};
use crate::inputs::{self, Given};
use crate::load;
use crate::machine::Machine;
use crate::picture::Picture;
use crate::progress::Progress;
use crate::report::{Agreement, Compile, OutputAgreement, Report, Time, milliseconds};
use crate::session::{self, Compiled, Plans, Runner};
use crate::sizes::{DEFAULT_SEQUENCE, check_given, is_free, requested};
use crate::tolerance::{Rounded, Tolerance, own_halves};
use crate::tuning::{Tuning, path_of};
use crate::{
    blame, buckets, data, doctor, emit, files, gates, limits, machine, npy, on_host, overview,
    page, profile, random, summary, trace, tune,
};
use graphene_frontend::dim::Bindings;
use graphene_frontend::graph::{Graph, NodeId};
use graphene_frontend::import::DeclaredInput;
use graphene_frontend::tensor::Tensor;
use graphene_fusion::{explain, tuning};
use graphene_ir::target::Target;
use graphene_runtime::gpu::Cache;
use graphene_runtime::{Imported, Profile, RequestedSizes, Role, Sizing, Source};
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

/// Shapes that an executor keeps bound: that of its run, and of its bucket.
const KEPT: usize = 2;

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
    if arguments.report.bisect && (plan_only || !machine.is_gpu()) {
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
    let source = progress.stage(stage::IMPORT, || load::open(arguments))?;
    let declared = source.inputs()?;
    // Data that does not fit is often that of a model that is not supported, which says more.
    let read = read_given(arguments, &declared);
    let (given, expected, known) = read.map_err(|error| defect(&source).unwrap_or(error))?;
    let import = || {
        let mut known = given.for_import(&declared, known.clone());
        known.seed = arguments.data.seed;
        source.import(&known)
    };
    let loaded = progress.stage(stage::IMPORT, import)?;
    arguments.spare(&source.files())?;
    let sizing = known.settle(&loaded.graph)?;
    let builder = session::builder(arguments, machine, &sizing.asked);
    let target = builder.planned_for();
    let plan = || Plans::new(&loaded.graph, builder, &arguments.run.exec);
    let mut plans = progress.stage(stage::PLAN, plan)?;
    check_given(&loaded.graph, &given, &sizing.sizes)?;
    let tuned = tuned(arguments, machine, &target, progress, &mut plans, || {
        let inputs = inputs_of(&loaded.graph, &given, &sizing, arguments.data.seed);
        Ok((inputs?, sizing.sizes.clone()))
    })?;
    let name = arguments.model.as_deref().unwrap_or_default();
    let mut report = overview::start(name, &loaded, &plans, machine, &target);
    report.notes.extend(tuned);
    report.gates = gates::check(&arguments.gates, &plans.fused.program)?;
    if arguments.report.explain {
        let rewriting = plans.fused.report.to_string();
        report.rewriting = Some(rewriting.lines().map(str::to_owned).collect());
        let lines = explain(&plans.fused, &target, &sizing.asked);
        report.explain = Some(lines.iter().map(ToString::to_string).collect());
    }
    let job = {
        let halves = arguments.run.dtype.halves().or_else(|| own_halves(&loaded.graph));
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
    let Some(gpu) = machine.engine.device().gpu.filter(|_| machine.runs(target)) else {
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
        None => random::tensor(graph, id, &sizing.sizes, seed),
    };
    graph.inputs().iter().map(input).collect()
}

/// The inputs that are given, the outputs that are expected, and the sizes that follow from inputs and flags.
fn read_given(
    arguments: &Arguments,
    declared: &[DeclaredInput],
) -> Result<(Given, Expected, RequestedSizes), Error> {
    let (mut given, expected) = match &arguments.data.data {
        Some(folder) => data::read(folder, declared)?,
        None => (inputs::read(&arguments.data)?, Expected::default()),
    };
    given.resolve(declared)?;
    let known = requested(declared, &arguments.sizes, &given)?;
    Ok((given, expected, known))
}

/// Why a model cannot be imported whatever is given, if so.
fn defect(source: &Source) -> Option<Error> {
    use graphene_runtime::Error as E;
    let error = source.import(&graphene_runtime::Given::default()).err()?;
    match error {
        E::NeedsSize { .. } | E::NeedsValue { .. } => None,
        error => Some(error.into()),
    }
}

/// A run of a model.
struct Job<'a> {
    arguments: &'a Arguments,
    machine: &'a Machine,
    loaded: &'a Imported,
    plans: &'a Plans,
    given: &'a Given,
    known: &'a RequestedSizes,
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
                    session::compile(self.plans, exec, &Profile::new(), progress.status())?
                }
                false => Vec::new(),
            };
            sizing = self.settle_sequence(&compiled, sizing, progress, report)?;
        } else if !self.arguments.emits_to_stdout() {
            sizing = self.settle_sequence(&[], sizing, progress, report)?;
        }
        // No reader of another stage has asked for sizes.
        if !is_free(&sizing) {
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
        let asked = &self.arguments.sizes.buckets;
        let profile = buckets::profile(asked, &self.loaded.graph, &sizing.roles)?;
        let compile = || session::compile(self.plans, exec, &profile, status);
        let compiled = progress.stage(stage::COMPILE, compile)?;
        if let Some(warning) = self.machine.engine.kernel_cache().and_then(Cache::warning) {
            progress.clear();
            files::complain(&format!("warning: {warning}"));
        }
        if !buckets::lists_sequence(asked, &sizing.roles) {
            sizing = self.settle_sequence(&compiled, sizing, progress, report)?;
        }
        let mut combinations = Vec::new();
        let model = compiled.iter().find_map(|compiled| compiled.model.as_ref());
        if let Some(model) = model.filter(|_| !asked.is_empty()) {
            let fit = buckets::fit(asked, &self.loaded.graph, model, &sizing)?;
            (combinations, sizing) = (fit.all, fit.sizing);
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
        let mut first = self.first_run(&compiled, &sizing, progress)?;
        for runner in &mut first.runners {
            report.notes.extend(runner.refusal()?);
        }
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
        let mut samples =
            progress.stage(stage::TIME, || session::time(runners, inputs, &schedule))?;
        // The reference is not timed again.
        for ((runner, samples), &time) in runners.iter().zip(&mut samples).zip(&first.times) {
            if runner.exec() == Exec::Reference {
                *samples = Samples::once(time);
            }
        }
        let batch = sizing.roles.batch.as_ref().and_then(|batch| sizing.sizes.get(batch));
        for ((compiled, runner), samples) in compiled.iter().zip(&mut *runners).zip(&samples) {
            let mut entry = runner.describe(compiled, self.plans)?;
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
            let (graph, all) = (&self.loaded.graph, &combinations);
            let seed = self.arguments.data.seed;
            let measure = || buckets::measure(all, &compiled, graph, &schedule, seed);
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
        while is_free(&sizing) && length >= 1 {
            let mut known = self.known.clone();
            known.default_of(Role::Sequence, length);
            sizing = known.settle(&self.loaded.graph)?;
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
            Some(first) => self.first_run(first, sizing, progress).map(drop),
            None => Ok(()),
        }
    }

    /// The executor whose plan is shown.
    fn first_exec(&self) -> Exec {
        self.arguments.run.exec.first().copied().unwrap_or(Exec::Fused)
    }

    /// Refuses sizes that the model does not take, whether it runs or is planned only.
    fn check_sizes(&self, sizing: &Sizing) -> Result<(), Error> {
        self.plans.bind(Exec::Fused, &sizing.sizes)?;
        limits::check(&self.loaded.graph, self.given, &sizing.sizes)
    }

    /// The first run of each executor, in a bucket where there is one; the reference runs at the sizes asked for.
    fn first_run<'a>(
        &'a self,
        compiled: &[Compiled],
        sizing: &Sizing,
        progress: &mut Progress,
    ) -> Result<First<'a>, Error> {
        let mut runners = self.runners(compiled, sizing, progress)?;
        let mut inputs =
            inputs_of(&self.loaded.graph, self.given, sizing, self.arguments.data.seed)?;
        let (mut outputs, mut times) = (Vec::new(), Vec::new());
        for runner in &mut runners {
            let start = Instant::now();
            let run = progress.stage(stage::FIRST, || runner.run(&inputs));
            outputs.push(run.map_err(|error| self.blame(error))?);
            times.push(start.elapsed());
        }
        // From now on runs are timed alone: without the filling and the cutting, which are the host's.
        if !self.arguments.sizes.buckets.is_empty() {
            let mut timed: Vec<_> =
                runners.iter_mut().filter(|runner| runner.exec() != Exec::Reference).collect();
            if let Some(first) = timed.first_mut() {
                inputs = first.padded(&inputs)?;
                let bucket = first.bucket()?;
                timed.iter_mut().try_for_each(|runner| runner.bind(&bucket))?;
            }
        }
        Ok(First { runners, inputs, outputs, times })
    }

    /// The executors bound to sizes.
    fn runners<'a>(
        &'a self,
        compiled: &[Compiled],
        sizing: &Sizing,
        progress: &mut Progress,
    ) -> Result<Vec<Runner<'a>>, Error> {
        progress.stage(stage::BIND, || {
            let mut runners = Vec::new();
            for compiled in compiled {
                let mut runner = Runner::new(compiled, &self.loaded.graph, KEPT);
                runner.bind(&sizing.sizes)?;
                runners.push(runner);
            }
            Ok(runners)
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
        let mut runners = self.runners(compiled, sizing, progress)?;
        let inputs = inputs_of(&self.loaded.graph, self.given, sizing, self.arguments.data.seed)?;
        for (runner, compiled) in runners.iter_mut().zip(compiled) {
            report.executors.push(runner.describe(compiled, self.plans)?);
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
    let plan = plans.bind(Exec::Fused, &sizing.sizes).ok();
    Picture::new(&plans.fused.program, plan.as_ref(), &sizing.sizes)
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
