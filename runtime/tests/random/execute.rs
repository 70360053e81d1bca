//! Running a case: on the reference, and on every executor, whose outputs are compared with its.

use crate::build::Case;
use crate::compare::{Expected, Seen};
use crate::on_gpu;
use graphene_frontend::dim::Bindings;
use graphene_frontend::eval::evaluate_with;
use graphene_frontend::tensor::Tensor;
use graphene_fusion::{Granularity, plan};
use graphene_ir::target::Target;
use graphene_runtime::cpu::Module;
use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;

/// What went wrong, where.
#[derive(Clone, Debug)]
pub(crate) struct Failure {
    /// Which of the cases of a graph.
    pub(crate) case: usize,
    pub(crate) kind: Kind,
    /// The executor.
    pub(crate) executor: &'static str,
    /// What was said.
    pub(crate) what: String,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Kind {
    Panic,
    Refusal,
    Wrong,
}

impl Failure {
    fn of(self, case: usize) -> Self {
        Self { case, ..self }
    }

    /// Whether a smaller graph that fails so still shows the same.
    pub(crate) fn is_like(&self, other: &Self) -> bool {
        self.kind == other.kind
            && self.executor == other.executor
            && (self.kind == Kind::Wrong || self.cause() == other.cause())
    }

    /// What was said without its numbers and names: for panics, where.
    pub(crate) fn cause(&self) -> String {
        let text: String = self.what.chars().filter(|c| !c.is_ascii_digit()).collect();
        let place = text.rsplit(" at ").next().unwrap_or_default();
        match self.kind {
            Kind::Panic => place.to_owned(),
            Kind::Refusal | Kind::Wrong => text.rsplit(':').next().unwrap_or_default().to_owned(),
        }
    }
}

/// The outputs of some runs of a case.
type Runs = Vec<Vec<Tensor>>;

/// Runs a graph, which is planned once, on the cases for it; gives the runs of each, up to one that fails.
type Executor = fn(&[Case], &mut Vec<Runs>) -> Result<(), String>;

/// The executors of the CPU, by name.
const EXECUTORS: [(&str, Executor); 2] = [
    ("library", |cases, runs| on_cpu(cases, runs, Granularity::PerOp)),
    ("fused", |cases, runs| on_cpu(cases, runs, Granularity::Fused)),
];

/// Those of a GPU.
const ON_GPU: [(&str, Executor); 2] = [
    ("library on the GPU", |cases, runs| on_gpu(cases, runs, Granularity::PerOp)),
    ("fused on the GPU", |cases, runs| on_gpu(cases, runs, Granularity::Fused)),
];

/// How much coarser a GPU's functions and sums of half precision are.
const COARSE: f64 = 4.0;

/// Runs the cases of one graph on the CPU.
pub(crate) fn check(cases: &[Case]) -> Result<Seen, Failure> {
    check_by(cases, &EXECUTORS, 1.0)
}

/// Runs the cases of one graph on the GPU, which must be there.
pub(crate) fn check_on_gpu(cases: &[Case]) -> Result<Seen, Failure> {
    check_by(cases, &ON_GPU, COARSE)
}

fn check_by(
    cases: &[Case],
    executors: &[(&'static str, Executor)],
    coarse: f64,
) -> Result<Seen, Failure> {
    let mut references = Vec::new();
    for (number, case) in cases.iter().enumerate() {
        let Case { graph, inputs, sizes } = case;
        let run = || evaluate_with(graph, inputs, sizes).map_err(|error| error.to_string());
        references.push(guarded("reference", run).map_err(|failure| failure.of(number))?);
    }
    let mut expected: Vec<Expected<'_>> =
        cases.iter().zip(&references).map(|(case, outputs)| Expected::new(case, outputs)).collect();
    let mut seen = Seen::default();
    for &(executor, run) in executors {
        let mut runs = Vec::new();
        let result = guarded(executor, || run(cases, &mut runs));
        result.map_err(|failure| failure.of(runs.len().min(cases.len() - 1)))?;
        for (number, (runs, expected)) in runs.iter().zip(&mut expected).enumerate() {
            for outputs in runs {
                let compared = expected.compare(outputs, coarse);
                let wrong = |what| Failure { case: number, kind: Kind::Wrong, executor, what };
                seen.add(&compared.map_err(wrong)?);
            }
        }
    }
    Ok(seen)
}

/// Each case twice in a row in one arena.
fn on_cpu(cases: &[Case], runs: &mut Vec<Runs>, granularity: Granularity) -> Result<(), String> {
    let text = |error: &dyn std::error::Error| error.to_string();
    let planned = plan(&cases[0].graph, &Target::cpu(2), granularity, &Bindings::new());
    let program = planned.map_err(|error| text(&error))?.program;
    let module = Module::compile(program).map_err(|error| text(&error))?;
    for case in cases {
        let mut executable = module.executable(&case.sizes).map_err(|error| text(&error))?;
        let mut run = || executable.run(&case.inputs).map_err(|error| text(&error));
        runs.push(vec![run()?, run()?]);
    }
    Ok(())
}

fn on_gpu(cases: &[Case], runs: &mut Vec<Runs>, granularity: Granularity) -> Result<(), String> {
    for case in cases {
        runs.push(vec![on_gpu::run(&case.graph, &case.inputs, &case.sizes, granularity)?]);
    }
    Ok(())
}

thread_local! {
    /// Where this thread panicked last.
    static PLACE: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// Where any thread panicked last: kernels run on others.
static ANYWHERE: Mutex<Option<String>> = Mutex::new(None);

/// Keeps where panics come from, instead of printing them.
pub(crate) fn keep_panics() {
    std::panic::set_hook(Box::new(|info| {
        let place = info.location().map(|place| format!("{}:{}", place.file(), place.line()));
        let payload = info.payload();
        let said = payload.downcast_ref::<&str>().map(|text| (*text).to_owned());
        let said = said.or_else(|| payload.downcast_ref::<String>().cloned()).unwrap_or_default();
        let text = format!("{said} at {}", place.unwrap_or_default());
        PLACE.set(Some(text.clone()));
        *ANYWHERE.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = Some(text);
    }));
}

/// Runs something that may panic.
pub(crate) fn guarded<T>(
    executor: &'static str,
    run: impl FnOnce() -> Result<T, String>,
) -> Result<T, Failure> {
    PLACE.set(None);
    match catch_unwind(AssertUnwindSafe(run)) {
        Ok(Ok(result)) => Ok(result),
        Ok(Err(what)) => Err(Failure { case: 0, kind: Kind::Refusal, executor, what }),
        Err(_) => {
            let anywhere = || ANYWHERE.lock().ok().and_then(|text| text.clone());
            let what = PLACE.take().or_else(anywhere).unwrap_or_default();
            Err(Failure { case: 0, kind: Kind::Panic, executor, what })
        }
    }
}
