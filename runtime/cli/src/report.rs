//! What a run has found, as one value: the summary, the page and `--json` all show this.

use crate::answers::Answers;
use crate::bench::Statistics;
use crate::compare::Difference;
use crate::doubt::doubts;
use crate::error::Error;
use crate::noise::Noise;
use crate::on_host::OnHost;
use crate::roof::Roof;
use crate::traffic::Load;
use graphene_frontend::visible::is_hidden;
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::Duration;

/// The version of the layout below; it grows when a field changes its meaning or goes away.
const SCHEMA: u32 = 2;

/// All that a run has found.
#[derive(Serialize, Debug)]
pub(crate) struct Report {
    /// Version of this layout.
    pub(crate) schema: u32,
    /// Version of the command.
    pub(crate) version: &'static str,
    /// Revision of its source, if the build was told.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) revision: Option<&'static str>,
    /// When it ran, in UTC: `2026-02-03T14:05:09Z`.
    pub(crate) date: String,
    /// The command line, as a shell takes it.
    pub(crate) command: String,
    /// The model.
    pub(crate) model: Model,
    /// The machine.
    pub(crate) device: Device,
    /// The target that was planned for.
    pub(crate) target: String,
    /// What estimates take for the target's rates, where there are any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) rates: Option<Rates>,
    /// The elements that floating-point values are computed in, for example `f32`.
    pub(crate) dtype: String,
    /// Sizes of the dynamic dims.
    pub(crate) sizes: BTreeMap<String, i64>,
    /// Those of them that nobody gave.
    pub(crate) assumed: BTreeMap<String, i64>,
    /// The seed of random inputs, if there are any.
    pub(crate) seed: Option<u64>,
    /// The inputs, in order.
    pub(crate) inputs: Vec<Value>,
    /// The outputs, in order.
    pub(crate) outputs: Vec<Value>,
    /// What the model says of texts and images that it was given, by the first executor.
    #[serde(flatten)]
    pub(crate) answers: Answers,
    /// What compilation took.
    pub(crate) compile_ms: Compile,
    /// The executors that were planned or run, in the order asked for.
    pub(crate) executors: Vec<Executor>,
    /// Median time of library over median time of fused execution, where both ran.
    pub(crate) speedup: Option<f64>,
    /// What the steps of profiles are held against, if there are any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) roof: Option<Roof>,
    /// What several requests at a time took, if asked for.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) load: Vec<Load>,
    /// The combinations of sizes prepared, if asked for.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) buckets: Vec<Bucket>,
    /// Comparisons of outputs.
    pub(crate) agreement: Vec<Agreement>,
    /// What running step by step found, for each executor, if asked for.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) bisection: Vec<Bisection>,
    /// The gates asked for.
    pub(crate) gates: Vec<Gate>,
    /// What rewriting did for the fused plan, if asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) rewriting: Option<Vec<String>>,
    /// Values stored between groups of the fused plan, if asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) explain: Option<Vec<String>>,
    /// What else is worth knowing.
    pub(crate) notes: Vec<String>,
    /// The signal that ended measuring, if one did: what is here was found before.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) interrupted: Option<&'static str>,
    /// What went wrong after something was found, if anything did.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) error: Option<Failure>,
    /// The exit code.
    pub(crate) exit_code: u8,
}

/// A model.
#[derive(Serialize, Debug, Default)]
pub(crate) struct Model {
    /// As named on the command line.
    pub(crate) name: String,
    /// Version of ONNX's operator set.
    pub(crate) opset: i64,
    /// The tool that wrote it.
    pub(crate) producer: String,
    /// Operations after import.
    pub(crate) ops: usize,
    /// Operations after rewriting.
    pub(crate) rewritten_ops: usize,
    /// Elements of the weights.
    pub(crate) parameters: u64,
    /// Bytes of the weights.
    pub(crate) weight_bytes: u64,
    /// Operations after rewriting, by name.
    pub(crate) histogram: BTreeMap<&'static str, usize>,
    /// The sizes and inputs that the import was specialised to, where shapes do not resolve in symbols.
    pub(crate) specialised: Option<String>,
}

/// A machine.
#[derive(Serialize, Debug, Clone)]
pub(crate) struct Device {
    /// `cpu` or `cuda`.
    pub(crate) kind: &'static str,
    /// The name of the processor or GPU that runs programs.
    pub(crate) name: String,
    /// Threads of the host.
    pub(crate) threads: usize,
    /// The host's widest vector instructions.
    pub(crate) simd: &'static str,
    /// More about the GPU, if one runs programs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) gpu: Option<Gpu>,
}

/// A GPU.
#[derive(Serialize, Debug, Clone)]
pub(crate) struct Gpu {
    /// Its number, from 0.
    pub(crate) number: usize,
    /// Its streaming multiprocessors.
    pub(crate) multiprocessors: u32,
    /// Its compute capability, for example `9.0`.
    pub(crate) capability: String,
    /// Its memory.
    pub(crate) memory_bytes: u64,
    /// The name of the host's processor.
    pub(crate) host: String,
}

/// What estimates follow from.
#[derive(Serialize, Debug, Clone)]
pub(crate) struct Rates {
    /// The rates of the target.
    pub(crate) roof: Roof,
    /// What a launch costs, in microseconds.
    pub(crate) launch_us: f64,
}

/// An input or output.
#[derive(Serialize, Debug)]
pub(crate) struct Value {
    /// Its name.
    pub(crate) name: String,
    /// Type and dims as the model has them.
    #[serde(rename = "type")]
    pub(crate) ty: String,
    /// Sizes in this run.
    pub(crate) shape: Vec<usize>,
    /// Where its data came from; `None` for outputs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) source: Option<String>,
}

/// Milliseconds of compilation; those of all executors together.
#[derive(Serialize, Debug, Default)]
pub(crate) struct Compile {
    /// Reading the file, or building the zoo model, and importing.
    pub(crate) import: f64,
    /// Rewriting, partitioning and lowering.
    pub(crate) plan: f64,
    /// Choosing and building kernels.
    pub(crate) compile: f64,
    /// Binding to sizes.
    pub(crate) bind: f64,
    /// All of these.
    pub(crate) total: f64,
}

/// An executor.
#[derive(Serialize, Debug)]
pub(crate) struct Executor {
    /// `fused`, `library` or `reference`.
    pub(crate) name: &'static str,
    /// Launches of one run; `None` for the reference.
    pub(crate) launches: Option<usize>,
    /// Launches by family.
    pub(crate) families: BTreeMap<&'static str, usize>,
    /// Launches by the kernel that runs them; `reference` where the reference evaluator stands in.
    pub(crate) kernels: BTreeMap<String, usize>,
    /// Names of the steps that the reference evaluator runs.
    pub(crate) by_reference: Vec<String>,
    /// How its kernels were made, on a GPU.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) built: Option<Built>,
    /// Its memory.
    pub(crate) memory: Option<Memory>,
    /// Its times, if it was run: on a GPU from the launch of all kernels until they are done, inputs being there.
    pub(crate) time: Option<Time>,
    /// What else runs on a GPU take.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) on_device: Option<OnDevice>,
    /// Its steps, if it was profiled.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) profile: Option<Vec<Step>>,
    /// What its steps take at least, if it was planned and not run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) estimate: Option<Vec<StepEstimate>>,
}

/// How a GPU's kernels were made; equal ones count once.
#[derive(Serialize, Debug, Clone, PartialEq, Eq)]
pub(crate) struct Built {
    /// All of them.
    pub(crate) kernels: usize,
    /// Those that were compiled.
    pub(crate) compiled: usize,
    /// Those that an earlier run had compiled.
    pub(crate) cached: usize,
    /// The steps that fall back to the CPU, as they have no kernel.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) on_host: Vec<OnHost>,
}

/// What runs on a GPU take by its own clock, and transfers by the host's; medians.
#[derive(Serialize, Debug, Clone)]
pub(crate) struct OnDevice {
    /// A run from the first kernel's beginning to the last one's end, in milliseconds.
    pub(crate) run_ms: f64,
    /// That over the median time of a run.
    pub(crate) share_of_wall: f64,
    /// All inputs to the device, in milliseconds.
    pub(crate) upload_ms: f64,
    /// Bytes of the inputs.
    pub(crate) upload_bytes: u64,
    /// All outputs from the device, in milliseconds.
    pub(crate) download_ms: f64,
    /// Bytes of the outputs.
    pub(crate) download_bytes: u64,
}

/// Memory of an executor.
#[derive(Serialize, Debug, Clone)]
pub(crate) struct Memory {
    /// Bytes of intermediates.
    pub(crate) arena_bytes: u64,
    /// No arena is smaller than this, in bytes.
    pub(crate) lower_bound_bytes: u64,
    /// The heuristic that placed it.
    pub(crate) heuristic: String,
}

/// Times of an executor.
#[derive(Serialize, Debug)]
pub(crate) struct Time {
    /// Timed runs.
    pub(crate) runs: usize,
    /// The middle run, in milliseconds.
    pub(crate) median_ms: f64,
    /// The mean, in milliseconds.
    pub(crate) mean_ms: f64,
    /// The fastest, in milliseconds.
    pub(crate) min_ms: f64,
    /// The slowest, in milliseconds.
    pub(crate) max_ms: f64,
    /// Percentiles, in milliseconds; none where too few runs lie beyond to know it.
    pub(crate) percentiles_ms: BTreeMap<String, Option<f64>>,
    /// How steady the times are; none for too few runs.
    pub(crate) noise: Option<Noise>,
    /// Units a second at the median.
    pub(crate) per_second: f64,
    /// `samples`, a run being as many as the batch has, or `runs` where no dim is known to be the batch.
    pub(crate) unit: &'static str,
}

/// Times of requests, in milliseconds.
#[derive(Serialize, Debug)]
pub(crate) struct Latency {
    /// The fastest.
    pub(crate) min_ms: f64,
    /// The middle one.
    pub(crate) median_ms: f64,
    /// The mean.
    pub(crate) mean_ms: f64,
    /// The slowest.
    pub(crate) max_ms: f64,
    /// Percentiles; none where too few requests lie beyond to know it.
    pub(crate) percentiles_ms: BTreeMap<String, Option<f64>>,
}

/// A combination of sizes that executors were prepared for.
#[derive(Serialize, Debug)]
pub(crate) struct Bucket {
    /// The sizes.
    pub(crate) sizes: BTreeMap<String, i64>,
    /// What each executor takes at them.
    pub(crate) times: Vec<BucketTime>,
}

/// What an executor takes at a combination of sizes.
#[derive(Serialize, Debug)]
pub(crate) struct BucketTime {
    /// The executor.
    pub(crate) executor: &'static str,
    /// Binding it, in milliseconds.
    pub(crate) bind_ms: f64,
    /// The middle run, in milliseconds.
    pub(crate) median_ms: f64,
    /// Bytes of intermediates.
    pub(crate) arena_bytes: u64,
}

/// A step with its time.
#[derive(Serialize, Debug, Clone)]
pub(crate) struct Step {
    /// Its place in the program.
    pub(crate) step: usize,
    /// Its operations and where they are in the model.
    pub(crate) name: String,
    /// The module that all its nodes are in, where their names tell one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) module: Option<String>,
    /// Its family.
    pub(crate) family: &'static str,
    /// The kernel that runs it.
    pub(crate) kernel: String,
    /// How that multiplies on a CPU, where its name does not tell: for example `Winograd`, `packed` or `VNNI`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) algorithm: Option<&'static str>,
    /// Which of the step's variants it is, where there are several.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) variant: Option<&'static str>,
    /// Time in microseconds: on the CPU the mean of some runs; on a GPU that of one of several launches of this step one
    /// after the other in a CUDA graph, the median of some runs of it.
    pub(crate) time_us: f64,
    /// Share of the time of all steps.
    pub(crate) share: f64,
    /// Bytes that it reads and writes at least.
    pub(crate) bytes: u64,
    /// Floating-point operations, a multiply-add being two.
    pub(crate) flops: u64,
    /// Gigabytes of these a second.
    pub(crate) gbytes_per_s: f64,
    /// Tera-operations of these a second.
    pub(crate) tflops_per_s: f64,
    /// Least time that the roof allows over the time taken, at most 1.
    pub(crate) roofline: f64,
    /// What that least time is spent on: `memory` or `arithmetic`.
    pub(crate) bound: &'static str,
    /// Whether it took less than the roof allows.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(crate) beyond_roof: bool,
    /// Microseconds that library execution takes for the same nodes, where both were profiled.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) library_us: Option<f64>,
}

impl Step {
    /// The kernel, how it multiplies, and the variant.
    pub(crate) fn what_runs(&self) -> String {
        let parts = [Some(&*self.kernel), self.algorithm, self.variant];
        parts.into_iter().flatten().collect::<Vec<_>>().join(" ")
    }
}

/// What a step takes at least on a target that it was planned for: its launch, and its traffic with memory or its
/// arithmetic at the target's peak rates.
#[derive(Serialize, Debug, Clone)]
pub(crate) struct StepEstimate {
    /// Its place in the program.
    pub(crate) step: usize,
    /// Its operations and where they are in the model.
    pub(crate) name: String,
    /// Its family.
    pub(crate) family: &'static str,
    /// Microseconds; `None` for a step that would fall back to the CPU.
    pub(crate) time_us: Option<f64>,
    /// Bytes that it reads and writes at least.
    pub(crate) bytes: u64,
    /// Floating-point operations, a multiply-add being two.
    pub(crate) flops: u64,
    /// What takes most of that time: `memory`, `arithmetic` or `launch`.
    pub(crate) bound: &'static str,
    /// Microseconds that library execution takes at least for the same nodes, where both were planned.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) library_us: Option<f64>,
}

/// A comparison of all outputs.
#[derive(Serialize, Debug)]
pub(crate) struct Agreement {
    /// The executor.
    pub(crate) executor: &'static str,
    /// What it is compared with: another executor, or the file's folder.
    pub(crate) against: String,
    /// Whether all agree.
    pub(crate) agrees: bool,
    /// An entry an output.
    pub(crate) outputs: Vec<OutputAgreement>,
}

/// A comparison of one output.
#[derive(Serialize, Debug)]
pub(crate) struct OutputAgreement {
    /// The output.
    pub(crate) name: String,
    /// Whether it agrees.
    pub(crate) agrees: bool,
    /// Elements.
    pub(crate) elements: usize,
    /// Elements too far apart.
    pub(crate) mismatches: usize,
    /// Elements that are NaN on both sides, which counts as agreeing.
    pub(crate) nans: usize,
    /// Elements that are the same infinity on both sides.
    pub(crate) infinities: usize,
    /// The largest distance; `None` if it is not finite or types differ.
    pub(crate) max_error: Option<f64>,
    /// That over the largest finite magnitude that is expected; `None` where all is zero.
    pub(crate) relative_error: Option<f64>,
    /// The mean distance.
    pub(crate) mean_error: Option<f64>,
    /// The cosine of the angle between the two.
    pub(crate) cosine: Option<f64>,
    /// Types or first elements that differ.
    pub(crate) detail: Option<String>,
    /// Why its agreement says little, if that is so.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) warnings: Vec<String>,
}

/// A run step by step, beside the same steps as they should be.
#[derive(Serialize, Debug)]
pub(crate) struct Bisection {
    /// The executor.
    pub(crate) executor: &'static str,
    /// What its steps were compared with.
    pub(crate) against: &'static str,
    /// How many steps there are.
    pub(crate) steps: usize,
    /// How many of them were compared: those that have elements.
    pub(crate) compared: usize,
    /// The first step whose output is out of tolerance.
    pub(crate) first: Option<StepDifference>,
}

/// An output of a step that is out of tolerance.
#[derive(Serialize, Debug)]
pub(crate) struct StepDifference {
    /// Its place in the program.
    pub(crate) step: usize,
    /// Its operations and where they are in the model.
    pub(crate) name: String,
    /// The module that all its nodes are in, where their names tell one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) module: Option<String>,
    /// The kernel that it launches.
    pub(crate) kernel: String,
    /// The model's nodes that it computes.
    pub(crate) nodes: Vec<String>,
    /// The value.
    pub(crate) output: String,
    /// Its elements.
    pub(crate) elements: usize,
    /// Those too far from what is expected.
    pub(crate) mismatches: usize,
    /// The largest distance; `None` if it is not finite.
    pub(crate) max_error: Option<f64>,
    /// That over the largest finite magnitude that is expected; `None` where all is zero.
    pub(crate) relative_error: Option<f64>,
    /// The first element that differs.
    pub(crate) detail: Option<String>,
}

/// A gate.
#[derive(Serialize, Debug)]
pub(crate) struct Gate {
    /// What is counted, for example `fused FMHA` or `launches`.
    pub(crate) gate: String,
    /// The count asked for.
    pub(crate) expected: usize,
    /// The count found.
    pub(crate) found: usize,
    /// Whether they are equal.
    pub(crate) holds: bool,
}

/// What went wrong.
#[derive(Serialize, Debug)]
pub(crate) struct Failure {
    /// The exit code that it has.
    pub(crate) code: u8,
    /// The same as a word.
    pub(crate) kind: &'static str,
    /// The runtime's number for it, if it is the runtime's, which stays the same from version to version.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) runtime_code: Option<u16>,
    /// What to tell a person.
    pub(crate) message: String,
}

/// All that there is to say where nothing was found, for `--json`.
#[derive(Serialize, Debug)]
struct Failed<'a> {
    /// Version of this layout.
    schema: u32,
    /// Version of the command.
    version: &'static str,
    /// What went wrong.
    error: &'a Failure,
    /// The exit code.
    exit_code: u8,
}

impl Report {
    /// The version of this layout.
    pub(crate) const SCHEMA: u32 = SCHEMA;

    /// Whether anything has run, or was found of the plan.
    pub(crate) fn tells_something(&self) -> bool {
        !self.agreement.is_empty() || !self.executors.is_empty() || !self.bisection.is_empty()
    }

    /// Whether any comparison failed, of outputs or of steps.
    pub(crate) fn differs(&self) -> bool {
        self.agreement.iter().any(|agreement| !agreement.agrees)
            || self.bisection.iter().any(|bisection| bisection.first.is_some())
    }

    /// Whether any gate failed.
    pub(crate) fn gate_failed(&self) -> bool {
        self.gates.iter().any(|gate| !gate.holds)
    }

    /// One JSON object, with a newline at its end.
    pub(crate) fn json(&self) -> String {
        json(self)
    }
}

impl Failure {
    /// What an error is.
    pub(crate) fn of(error: &Error) -> Self {
        let exit = error.exit();
        let (code, kind, runtime_code) = (exit.code(), exit.kind(), error.runtime_code());
        Self { code, kind, runtime_code, message: error.to_string() }
    }

    /// One JSON object, with a newline at its end.
    pub(crate) fn json(&self) -> String {
        let version = env!("CARGO_PKG_VERSION");
        json(&Failed { schema: SCHEMA, version, error: self, exit_code: self.code })
    }
}

/// A table of what needs no model, as one JSON object, with a newline at its end.
pub(crate) fn table<T: Serialize>(name: &str, rows: &[T]) -> String {
    #[derive(Serialize)]
    struct Table<'a, T> {
        schema: u32,
        version: &'static str,
        #[serde(flatten)]
        rows: BTreeMap<&'a str, &'a [T]>,
    }
    let version = env!("CARGO_PKG_VERSION");
    json(&Table { schema: SCHEMA, version, rows: BTreeMap::from([(name, rows)]) })
}

/// One JSON object, with a newline at its end.
pub(crate) fn json<T: Serialize>(value: &T) -> String {
    let text = serde_json::to_string_pretty(value);
    let text = text.expect("maps have strings for keys, and nothing else can fail");
    // What serde leaves of characters that a terminal obeys stands in strings, where it may be a number.
    let mut plain = String::with_capacity(text.len() + 1);
    for c in text.chars() {
        match is_hidden(c) && c != '\n' {
            true => c.encode_utf16(&mut [0; 2]).iter().for_each(|unit| {
                let _ = write!(plain, "\\u{unit:04x}");
            }),
            false => plain.push(c),
        }
    }
    plain + "\n"
}

impl Latency {
    /// Times from statistics.
    pub(crate) fn new(statistics: &Statistics) -> Self {
        Self {
            min_ms: milliseconds(statistics.min),
            median_ms: milliseconds(statistics.median),
            mean_ms: milliseconds(statistics.mean),
            max_ms: milliseconds(statistics.max),
            percentiles_ms: percentiles(statistics),
        }
    }
}

fn percentiles(statistics: &Statistics) -> BTreeMap<String, Option<f64>> {
    let percentiles = statistics.percentiles.iter();
    percentiles.map(|(p, time)| (p.to_string(), time.map(milliseconds))).collect()
}

impl Time {
    /// Times from statistics, for runs of this batch, if there is one.
    pub(crate) fn new(statistics: &Statistics, batch: Option<i64>) -> Self {
        let samples = batch.unwrap_or(1) as f64;
        Self {
            runs: statistics.runs,
            median_ms: milliseconds(statistics.median),
            mean_ms: milliseconds(statistics.mean),
            min_ms: milliseconds(statistics.min),
            max_ms: milliseconds(statistics.max),
            percentiles_ms: percentiles(statistics),
            noise: statistics.noise,
            per_second: samples / statistics.median.as_secs_f64().max(1e-9),
            unit: if batch.is_some() { "samples" } else { "runs" },
        }
    }
}

impl OutputAgreement {
    /// The entry for an output.
    pub(crate) fn new(name: &str, difference: &Difference) -> Self {
        let mut entry = Self {
            name: name.to_owned(),
            agrees: difference.agrees(),
            elements: 0,
            mismatches: 0,
            nans: 0,
            infinities: 0,
            max_error: None,
            relative_error: None,
            mean_error: None,
            cosine: None,
            detail: None,
            warnings: Vec::new(),
        };
        match difference {
            Difference::Type { expected, found } => {
                entry.detail = Some(format!("expected {expected}, found {found}"));
            }
            Difference::Elements(elements) => {
                let finite = |value: f64| Some(value).filter(|value| value.is_finite());
                entry.elements = elements.count;
                entry.mismatches = elements.mismatches;
                entry.nans = elements.nans;
                entry.infinities = elements.infinities;
                entry.max_error = finite(elements.max_error);
                entry.relative_error = elements.relative_error().and_then(finite);
                entry.mean_error = finite(elements.mean_error);
                entry.cosine = finite(elements.cosine);
                entry.detail = elements.first.map(|(place, found, expected)| {
                    format!("element {place} is {found}, expected {expected}")
                });
                let doubts = doubts(elements).into_iter();
                entry.warnings = doubts.map(|doubt| doubt.said(elements.count)).collect();
            }
        }
        entry
    }
}

/// Milliseconds of a time.
pub(crate) fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}
