//! What the command does, step by step.

use crate::args::{self, Arguments, Emit, Exec, Stage, is_cpu};
use crate::bench::{Samples, Schedule};
use crate::compare::compare;
use crate::data::Expected;
use crate::error::Error;
use crate::inputs::{self, Given};
use crate::interrupt::{self, Measuring};
use crate::load::{self, Opened};
use crate::machine::Machine;
use crate::picture::Picture;
use crate::progress::Progress;
use crate::report::{Agreement, Compile, OutputAgreement, Report, Time, milliseconds};
use crate::roof::Roof;
use crate::session::{self, Compiled, Plans, Runner};
use crate::sizes::{DEFAULT_SEQUENCE, check_given, is_free, requested};
use crate::tolerance::{Rounded, Tolerance, own_half_type};
use crate::tuning::{self, Tuning};
use crate::{
    announce, answers, blame, buckets, data, diff, doctor, emit, estimate, files, gates, limits,
    machine, manual, npy, on_host, outcome, overview, page, profile, random, table, trace, traffic,
    tune,
};
use graphene_frontend::dim::Bindings;
use graphene_frontend::graph::{Graph, NodeId};
use graphene_frontend::import::DeclaredInput;
use graphene_frontend::tensor::Tensor;
use graphene_fusion::explain;
use graphene_fusion::tuning::{Choice, tuned as with_choices};
use graphene_ir::target::Target;
use graphene_runtime::gpu::Cache;
use graphene_runtime::{Imported, Profile, Reading, RequestedSizes, Role, Sizing};
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
    pub(super) const BISECT: &str = "comparing step by step with the reference";
    pub(super) const SAVE: &str = "running step by step and saving values";
    pub(super) const LOAD: &str = "answering concurrent requests";
    pub(super) const ROOF: &str = "measuring the machine's rates";
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
    if arguments.list_zoo {
        return files::print(&load::zoo(arguments.report.json)?).map(|()| 0);
    }
    if let Some(page) = manual::page(arguments) {
        return files::print(&page).map(|()| 0);
    }
    if arguments.doctor {
        let (table, note) = doctor::doctor(arguments.report.json);
        files::print(&table)?;
        note.iter().for_each(|note| files::complain(note));
        return Ok(0);
    }
    if let Some(path) = &arguments.save_model {
        return load::save(arguments, path).map(|()| 0);
    }
    arguments.probe_written()?;
    if let Some([before, after]) = arguments.diff.as_deref() {
        return diff::run([before, after], &arguments.report);
    }
    let machine = machine::prepare(&arguments.run)?;
    let plan_only = arguments.plan_only(&machine)?;
    let mut progress = Progress::new();
    run_model(arguments, &machine, plan_only, &mut progress)
}

fn run_model(
    arguments: &Arguments,
    machine: &Machine,
    plan_only: bool,
    progress: &mut Progress,
) -> Result<u8, Error> {
    // A run gives weights back one by one when it has prepacked them; what is planned reads few of them.
    let reading = if plan_only { Reading::Mapped } else { Reading::Owned };
    let source = progress.stage(stage::IMPORT, || load::open(arguments, reading))?;
    let declared = source.inputs()?;
    // Data that does not fit is often that of a model that is not supported, which says more.
    let read = read_given(arguments, &source, &declared);
    let (given, expected, known) = read.map_err(|error| defect(&source).unwrap_or(error))?;
    let import = || {
        let mut known = given.for_import(&declared, known.clone());
        known.seed = arguments.data.seed;
        source.import(&known)
    };
    let loaded = progress.stage(stage::IMPORT, import)?;
    arguments.spare(&source.files())?;
    drop(source);
    let outputs: Vec<_> = loaded.graph.outputs().iter().map(|(name, _)| name).collect();
    expected.by_position(&outputs)?;
    let asked = &arguments.sizes.buckets;
    let sizing = buckets::first(asked, &loaded.graph, known.settle(&loaded.graph)?)?;
    let target = session::builder(arguments, machine, &sizing.sizes).planned_for();
    let mut plan = |sizes: &Bindings| {
        let builder = session::builder(arguments, machine, sizes);
        let plan = || Plans::new(&loaded.graph, builder, &arguments.run.exec);
        progress.stage(stage::PLAN, plan)
    };
    let mut plans = plan(&sizing.sizes)?;
    // What is planned is what runs: a sequence that nobody asked for may have to be shorter.
    let free = is_free(&sizing) && !buckets::lists_sequence(asked, &sizing.roles);
    let fits = || shortened(&loaded.graph, &plans, &given, &known, &sizing);
    let sizing = match free.then(fits).flatten() {
        Some(fits) => {
            plans = plan(&fits.sizes)?;
            fits
        }
        None => sizing,
    };
    check_given(&loaded.graph, &given, &sizing.sizes)?;
    let tuned = tuned(arguments, machine, &target, progress, &mut plans, || {
        let inputs = inputs_of(&loaded.graph, &given, &sizing, arguments.data.seed);
        Ok((inputs?, sizing.sizes.clone()))
    })?;
    let name = arguments.model.as_deref().unwrap_or_default();
    let mut report = overview::start(name, &loaded, &plans, machine, &target, arguments.run.dtype);
    report.notes.extend(tuned);
    report.gates = gates::check(&arguments.gates, &plans.fused.program)?;
    if arguments.report.explain {
        let rewriting = plans.fused.report.to_string();
        report.rewriting = Some(rewriting.lines().map(str::to_owned).collect());
        let lines = explain(&plans.fused, &target, &sizing.sizes);
        report.explain = Some(lines.iter().map(ToString::to_string).collect());
    }
    let mut job = {
        let values = arguments.run.dtype.half_type().filter(|_| !target.bf16);
        let half = values.or_else(|| own_half_type(&loaded.graph));
        let rounded = half.and_then(Rounded::half).or_else(|| Rounded::matmuls(&target));
        let rounded = rounded.or_else(|| Rounded::bytes(&loaded.graph));
        let tolerance = Tolerance::new(&arguments.data, &loaded.graph, rounded);
        let (given, known) = (&given, &known);
        Job { arguments, machine, loaded, plans, given, known, target: &target, tolerance }
    };
    let mut ran_at = sizing.clone();
    let ran = match plan_only {
        true => {
            let expected = expected.origin().filter(|_| !arguments.emits_to_stdout());
            let later = |(flag, _)| format!("outputs are compared with those of {flag} by a run");
            report.notes.extend(expected.map(later));
            job.plan_only(&mut ran_at, progress, &mut report)
        }
        false => job.run(&expected, &mut ran_at, progress, &mut report),
    };
    progress.clear();
    report.compile_ms = compile_times(progress);
    outcome::tell(arguments, report, ran, |report| {
        write_reports(arguments, progress, report, || drawn(report, &job.plans, &ran_at, &target))
    })
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
    let device = format!("{} {}", machine.report.name, gpu.arch);
    let mut kept = Tuning::open(tuning::path(arguments), device)?;
    let mut notes = Vec::new();
    if let Some(limit) = limit {
        let (inputs, bindings) = at()?;
        let search = || tune::tune(plans, machine, (target, &bindings), &inputs, limit, &mut kept);
        notes = progress.stage(stage::TUNE, search)?.notes(&kept);
    }
    let choices = kept.choices();
    if !choices.is_empty() {
        let path = kept.path().display();
        let (program, stale) = with_choices(plans.fused.program.clone(), &choices, target);
        plans.fused.program = program;
        if limit.is_none() {
            notes.push(format!("what tuning found for this GPU is taken from {path}"));
        }
        let left = |choice: &&Choice| format!("{path}: no kernel has `{}`", choice.parameters);
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
    source: &Opened,
    declared: &[DeclaredInput],
) -> Result<(Given, Expected, RequestedSizes), Error> {
    let (mut given, expected) = match &arguments.data.data {
        Some(folder) => data::read(folder, declared)?,
        None => {
            let expected = arguments.data.expect.as_deref().map(data::read_expected);
            let model =
                inputs::Asked { declared, folder: source.folder(), sizes: &arguments.sizes };
            (inputs::read(&arguments.data, &model)?, expected.transpose()?.unwrap_or_default())
        }
    };
    given.resolve(declared)?;
    let known = requested(declared, &arguments.sizes, &given)?;
    Ok((given, expected, known))
}

/// Why a model cannot be imported whatever is given, if so.
fn defect(source: &Opened) -> Option<Error> {
    use graphene_runtime::Error as E;
    let error = source.import(&graphene_runtime::Given::default()).err()?;
    match error {
        Error::Model(E::NeedsSize { .. } | E::NeedsValue { .. }) => None,
        error => Some(error),
    }
}

/// A run of a model.
struct Job<'a> {
    arguments: &'a Arguments,
    machine: &'a Machine,
    loaded: Imported,
    plans: Plans,
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
    /// Prints stages and describes the plans; the model runs at most once, to find the sizes of a bound plan.
    fn plan_only(
        &mut self,
        sizing: &mut Sizing,
        progress: &mut Progress,
        report: &mut Report,
    ) -> Result<(), Error> {
        let emits = &self.arguments.report.emit;
        if emits.iter().any(|emit| emit.stage == Stage::Bound) {
            let compiled = match is_cpu(self.target) {
                true => {
                    let exec = &self.arguments.run.exec;
                    let (plans, status) = (&mut self.plans, progress.status());
                    session::compile(plans, true, exec, &Profile::new(), status)?
                }
                false => Vec::new(),
            };
            self.settle_sequence(&compiled, sizing, progress, report)?;
        } else if !self.arguments.emits_to_stdout() {
            self.settle_sequence(&[], sizing, progress, report)?;
        }
        // No reader of another stage has asked for sizes.
        if !is_free(sizing) {
            self.check_sizes(sizing)?;
        }
        let of_model = |emit: &Emit| matches!(emit.stage, Stage::Import | Stage::Egraph);
        if emits.is_empty() || !emits.iter().all(of_model) {
            self.announce(sizing, progress);
        }
        emit::emit(emits, &self.loaded.graph, &self.plans, self.first_exec(), self.target, sizing)?;
        self.describe_values(sizing, report);
        let exec = self.arguments.run.exec.iter();
        report.executors = exec.map(|&exec| session::describe(exec, &self.plans)).collect();
        if !self.arguments.emits_to_stdout() {
            estimate::add(report, &self.plans, &sizing.sizes, self.target);
            report.notes.push(format!("planned for {}, not run", report.target));
            for &exec in &self.arguments.run.exec {
                let program = self.plans.program(exec);
                let without = program.and_then(|p| on_host::without_kernels(p, self.target));
                report.notes.extend(without.map(|said| format!("{}: {said}", exec.name())));
            }
        }
        Ok(())
    }

    /// Runs the model, compares and times it; `sizing` becomes what it ran at.
    fn run(
        &mut self,
        expected: &Expected,
        sizing: &mut Sizing,
        progress: &mut Progress,
        report: &mut Report,
    ) -> Result<(), Error> {
        let exec = &self.arguments.run.exec;
        let status = progress.status();
        let asked = &self.arguments.sizes.buckets;
        let profile = buckets::profile(asked, &self.loaded.graph, &sizing.roles)?;
        let keep = self.reads_weights();
        if !keep {
            self.loaded.graph.release_weights();
        }
        let compile = || session::compile(&mut self.plans, keep, exec, &profile, status);
        let compiled = progress.stage(stage::COMPILE, compile)?;
        self.run_compiled(&compiled, expected, sizing, progress, report)
    }

    /// Whether anything but the executors' kernels reads weights: the reference evaluator, steps one by one, a stage that is
    /// printed, or the page, which says what fits into one launch.
    fn reads_weights(&self) -> bool {
        let Arguments { run, report, data, .. } = self.arguments;
        let steps = report.bisect || data.save_intermediates.is_some();
        let shown = !report.emit.is_empty() || report.report.is_some();
        steps || shown || run.exec.contains(&Exec::Reference)
    }

    /// The rest of [`run`](Self::run).
    fn run_compiled(
        &self,
        compiled: &[Compiled],
        expected: &Expected,
        sizing: &mut Sizing,
        progress: &mut Progress,
        report: &mut Report,
    ) -> Result<(), Error> {
        let asked = &self.arguments.sizes.buckets;
        if let Some(warning) = self.machine.engine.kernel_cache().and_then(Cache::warning) {
            progress.clear();
            files::complain(&format!("warning: {warning}"));
        }
        if !buckets::lists_sequence(asked, &sizing.roles) {
            self.settle_sequence(compiled, sizing, progress, report)?;
        }
        let mut combinations = Vec::new();
        let model = compiled.iter().find_map(|compiled| compiled.model.as_ref());
        if let Some(model) = model.filter(|_| !asked.is_empty()) {
            let fit = buckets::fit(asked, &self.loaded.graph, model, sizing)?;
            (combinations, *sizing) = (fit.all, fit.sizing);
            report.notes.extend(fit.notes);
        }
        self.check_sizes(sizing)?;
        emit::emit(
            &self.arguments.report.emit,
            &self.loaded.graph,
            &self.plans,
            self.first_exec(),
            self.target,
            sizing,
        )?;
        self.describe_values(sizing, report);
        if self.arguments.report.bisect {
            self.announce(sizing, progress);
            return self.bisect(compiled, sizing, progress, report);
        }
        report.notes.extend(compiled.iter().filter_map(Compiled::on_host));
        let mut first = self.first_run(compiled, sizing, progress)?;
        self.announce(sizing, progress);
        for runner in &mut first.runners {
            report.notes.extend(runner.refusal()?);
        }
        let (said, notes) = answers::read(self.given, &self.loaded.graph, &first.outputs[0]);
        report.answers = said;
        report.notes.extend(notes);
        report.agreement = self.compare(&first, expected)?;
        let names: Vec<_> = self.loaded.graph.outputs().iter().map(|(name, _)| name).collect();
        report.notes.extend(expected.unchecked(&names)?);
        self.save(&mut first, progress, report)?;
        // There is something to tell of, which a signal does not take away.
        let _measuring = Measuring::begin();
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
                *samples = Samples::new(vec![time]);
            }
        }
        let batch = sizing.roles.batch.as_ref().and_then(|batch| sizing.sizes.get(batch));
        for ((compiled, runner), samples) in compiled.iter().zip(&mut *runners).zip(&samples) {
            let mut entry = runner.describe(compiled, &self.plans)?;
            let statistics = samples.statistics(&self.arguments.run.percentiles);
            entry.time = statistics.map(|s| Time::new(&s, batch));
            report.executors.push(entry);
        }
        report.speedup = overview::speedup(&report.executors);
        self.look_closer(runners, inputs, progress, report)?;
        self.load(compiled, inputs, &schedule, progress, report)?;
        drop(first);
        if !combinations.is_empty() && !interrupt::stops() {
            let (graph, all) = (&self.loaded.graph, &combinations);
            let seed = self.arguments.data.seed;
            let measure = || buckets::measure(all, compiled, graph, &schedule, seed);
            report.buckets = progress.stage(stage::BUCKETS, measure)?;
        }
        Ok(())
    }

    /// Times transfers of a GPU and, where that is asked for, single steps.
    fn look_closer(
        &self,
        runners: &mut [Runner<'_>],
        inputs: &[Tensor],
        progress: &mut Progress,
        report: &mut Report,
    ) -> Result<(), Error> {
        for (runner, entry) in runners.iter_mut().zip(&mut report.executors) {
            if let Some(time) = entry.time.as_ref().filter(|_| !interrupt::stops()) {
                entry.on_device = runner.on_device(inputs, time.median_ms)?;
            }
        }
        if !self.arguments.profiles() || interrupt::stops() {
            return Ok(());
        }
        let threads = self.machine.report.threads;
        let roof = progress.stage(stage::ROOF, || Roof::of(self.target, threads));
        for (runner, entry) in runners.iter_mut().zip(&mut report.executors) {
            if !interrupt::stops() {
                let profile = || runner.profile(inputs, &roof);
                entry.profile = progress.stage(stage::PROFILE, profile)?;
            }
        }
        report.roof = Some(roof);
        profile::beside_library(&mut report.executors, &self.plans);
        Ok(())
    }

    /// Has each executor answer several requests at a time, if that is asked for.
    fn load(
        &self,
        compiled: &[Compiled],
        inputs: &[Tensor],
        schedule: &Schedule,
        progress: &mut Progress,
        report: &mut Report,
    ) -> Result<(), Error> {
        let Arguments { traffic: asked, run, data, .. } = self.arguments;
        for compiled in compiled.iter().filter(|_| asked.flag().is_some()) {
            let Some(model) = compiled.model.as_ref().filter(|_| !interrupt::stops()) else {
                continue;
            };
            let (name, how) = (compiled.exec.name(), (&run.percentiles[..], data.seed));
            let answer = || traffic::run(name, model, inputs, asked, schedule, how);
            report.load.push(progress.stage(stage::LOAD, answer)?);
        }
        Ok(())
    }

    fn describe_values(&self, sizing: &Sizing, report: &mut Report) {
        let seed = self.arguments.data.seed;
        overview::describe_values(report, &self.loaded.graph, sizing, self.given, seed);
    }

    /// Says on stderr what nobody gave: sizes that are assumed, and random inputs of a run.
    fn announce(&self, sizing: &Sizing, progress: &Progress) {
        progress.clear();
        let graph = &self.loaded.graph;
        let runs = !self.arguments.emits_to_stdout() && self.machine.runs(self.target);
        let random = runs.then_some((graph, self.given, self.arguments.data.seed));
        announce::said(sizing, random).iter().for_each(|said| files::complain(said));
    }

    /// Shortens a sequence that nobody asked for until the model takes it, for example where it has a table of
    /// fewer positions.
    fn settle_sequence(
        &self,
        compiled: &[Compiled],
        sizing: &mut Sizing,
        progress: &mut Progress,
        report: &mut Report,
    ) -> Result<(), Error> {
        let mut failure = None;
        for length in lengths().filter(|_| is_free(sizing)).collect::<Vec<_>>() {
            let mut known = self.known.clone();
            known.default_of(Role::Sequence, length);
            *sizing = known.settle(&self.loaded.graph)?;
            match self.attempt(compiled, sizing, progress) {
                Ok(()) if length == DEFAULT_SEQUENCE => return Ok(()),
                Ok(()) => {
                    report.notes.push(format!(
                        "a sequence of {length}, since the model refuses {DEFAULT_SEQUENCE}; --seq N asks for another"
                    ));
                    return Ok(());
                }
                Err(error @ Error::Memory { .. }) => return Err(error),
                // The first failure is the one to tell of.
                Err(error) => failure = Some(failure.unwrap_or(error)),
            }
        }
        failure.map_or(Ok(()), Err)
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
        check_sizes(&self.loaded.graph, &self.plans, self.given, sizing)
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
        blame::index(error, &self.plans, &self.loaded.graph, self.given)
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
            report.executors.push(runner.describe(compiled, &self.plans)?);
            let found = progress.stage(stage::BISECT, || {
                runner.bisect(&self.plans, &inputs, self.target, self.tolerance)
            });
            report.bisection.extend(found.map_err(|error| self.blame(error))?);
        }
        estimate::add(report, &self.plans, &sizing.sizes, self.target);
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
        if let Some((_, path)) = expected.origin() {
            for (exec, outputs) in runs() {
                let rows = expected_outputs.iter().map(|&(i, tensor)| {
                    OutputAgreement::new(names[i], &compare(&outputs[i], tensor, tolerance))
                });
                add(exec.name(), last_part(path), rows.collect());
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

    /// Saves what the first executor gave, as far as that is asked for. What cannot be written does not end the run.
    fn save(
        &self,
        first: &mut First<'_>,
        progress: &mut Progress,
        report: &mut Report,
    ) -> Result<(), Error> {
        let data = &self.arguments.data;
        let outputs = data.save_outputs.iter().map(|path| {
            let names = self.loaded.graph.outputs().iter().map(|(name, _)| name.clone());
            let tensors: Vec<_> = names.zip(first.outputs[0].iter().cloned()).collect();
            let bytes = npy::npz_bytes(&tensors);
            let bytes = bytes.map_err(|source| Error::Npy { path: path.clone(), source })?;
            files::write(path, &bytes)
        });
        let outputs: Result<(), Error> = outputs.collect();
        let steps = match &data.save_intermediates {
            Some(path) => {
                let runner = &mut first.runners[0];
                let save = || runner.save_intermediates(&self.plans, &first.inputs, path);
                progress.stage(stage::SAVE, save)
            }
            None => Ok(()),
        };
        for saved in [outputs, steps] {
            outcome::keep(report, saved)?;
        }
        Ok(())
    }
}

/// The last part of a path.
fn last_part(path: &std::path::Path) -> String {
    path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned()
}

/// Refuses sizes that a model does not take.
fn check_sizes(graph: &Graph, plans: &Plans, given: &Given, sizing: &Sizing) -> Result<(), Error> {
    plans.bind(Exec::Fused, &sizing.sizes)?;
    limits::check(graph, given, &sizing.sizes)
}

/// Lengths of a sequence that nobody asked for, until the model takes one.
fn lengths() -> impl Iterator<Item = i64> {
    std::iter::successors(Some(DEFAULT_SEQUENCE), |length| Some(length / 2)).take_while(|&n| n >= 1)
}

/// The sizes with the longest sequence that fits the plan, where that of these does not.
fn shortened(
    graph: &Graph,
    plans: &Plans,
    given: &Given,
    known: &RequestedSizes,
    sizing: &Sizing,
) -> Option<Sizing> {
    if check_sizes(graph, plans, given, sizing).is_ok() {
        return None;
    }
    let at = |length| {
        let mut known = known.clone();
        known.default_of(Role::Sequence, length);
        let sizing = known.settle(graph).ok()?;
        check_sizes(graph, plans, given, &sizing).is_ok().then_some(sizing)
    };
    lengths().skip(1).find_map(at)
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

/// The fused plan as the page draws it, and its steps row by row. Where it cannot be bound, nothing has run and the arena is
/// left out.
fn drawn(
    report: &Report,
    plans: &Plans,
    sizing: &Sizing,
    target: &Target,
) -> (Picture, Vec<table::Row>) {
    let plan = plans.bind(Exec::Fused, &sizing.sizes).ok();
    let lines = explain(&plans.fused, target, &sizing.sizes);
    let picture = Picture::new(&plans.fused.program, plan.as_ref(), &lines, &sizing.sizes);
    let planned = report.executors.iter().all(|executor| executor.time.is_none());
    let refusals = planned.then(|| on_host::refusals(&plans.fused.program, target));
    let rows = table::rows(report, &picture, &refusals.unwrap_or_default());
    (picture, rows)
}

/// Writes the trace, the page and the table of steps, as far as they are asked for; what could not be written.
fn write_reports(
    arguments: &Arguments,
    progress: &Progress,
    report: &Report,
    drawn: impl FnOnce() -> (Picture, Vec<table::Row>),
) -> Vec<Error> {
    let mut written = Vec::new();
    let args::Report { trace, report: page, csv, .. } = &arguments.report;
    if let Some(path) = trace {
        let trace = trace::trace(progress.stages(), &report.executors);
        written.push(files::write(path, trace.as_bytes()));
    }
    if page.is_some() || csv.is_some() {
        let (picture, rows) = drawn();
        let steps = table::csv(&rows);
        let whole =
            |path| files::write(path, page::page(report, &picture, &rows, &steps).as_bytes());
        written.extend(page.as_deref().map(whole));
        written.extend(csv.as_deref().map(|path| files::write(path, steps.as_bytes())));
    }
    written.into_iter().filter_map(Result::err).collect()
}
