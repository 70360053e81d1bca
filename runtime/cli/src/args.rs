//! The command line.

use crate::buckets::Asked;
use crate::error::Error;
use crate::machine::Machine;
use crate::{files, intermediates, manual, traffic, tuning};
use clap::{Args, Parser, ValueEnum, ValueHint};
use clap_complete::Shell;
use graphene_frontend::visible::visible;
use graphene_ir::target::Target;
use graphene_runtime::gpu::Cache;
use graphene_runtime::{DType, Dtype};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

/// Compiles and runs an ONNX model, and compares fused with library execution.
///
/// With a model and no more, it is compiled, warmed up and timed in both ways, their outputs are compared, and a
/// summary is printed.
#[derive(Parser, Debug)]
#[command(name = "graphene-run", version, max_term_width = 100, after_help = manual::after_help())]
pub(crate) struct Arguments {
    /// An ONNX file, a folder with model.onnx (as optimum-cli export onnx writes), or zoo:NAME for a model of the zoo
    #[arg(value_hint = ValueHint::AnyPath)]
    #[arg(required_unless_present_any = ["list_ops", "list_zoo", "doctor", "diff", "completions", "man"])]
    pub(crate) model: Option<String>,
    #[command(flatten)]
    pub(crate) sizes: Sizes,
    #[command(flatten)]
    pub(crate) data: Data,
    #[command(flatten)]
    pub(crate) run: Run,
    #[command(flatten)]
    pub(crate) traffic: traffic::Asked,
    #[command(flatten)]
    pub(crate) report: Report,
    #[command(flatten)]
    pub(crate) gates: Gates,
    /// Print the table of supported operators, and end
    #[arg(long, help_heading = "Other", conflicts_with = "model")]
    pub(crate) list_ops: bool,
    /// Print the models of the zoo with their sizes, and end
    #[arg(long, help_heading = "Other", conflicts_with = "model")]
    pub(crate) list_zoo: bool,
    /// Write a model of the zoo as ONNX, and end; weights of more than 1.5 GB go into a file beside it
    #[arg(long, value_name = "FILE.onnx", value_hint = ValueHint::FilePath, help_heading = "Other")]
    pub(crate) save_model: Option<PathBuf>,
    /// Compare two results of --json, and end; --report writes the comparison as a page. Results that were made with
    /// --profile too are compared step by step
    #[arg(long, value_names = ["BEFORE.json", "AFTER.json"], num_args = 2, help_heading = "Other", conflicts_with = "model")]
    pub(crate) diff: Option<Vec<PathBuf>>,
    /// Print what was found on this machine, and end
    #[arg(long, help_heading = "Other", conflicts_with = "model")]
    pub(crate) doctor: bool,
    /// Print completions for a shell, and end
    #[arg(long, value_name = "SHELL", help_heading = "Other", conflicts_with = "model")]
    pub(crate) completions: Option<Shell>,
    /// Print the manual page, and end
    #[arg(long, help_heading = "Other", conflicts_with = "model")]
    pub(crate) man: bool,
    /// End with exit code 124 if all is not done by then
    #[arg(long, value_name = "TIME", value_parser = limit, help_heading = "Other")]
    pub(crate) timeout: Option<Duration>,
}

/// Sizes of dynamic dims.
#[derive(Args, Debug)]
#[command(next_help_heading = "Sizes")]
pub(crate) struct Sizes {
    /// Size of the batch: the dim of that name, else the first dim of the first dynamic input
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(i64).range(1..))]
    pub(crate) batch: Option<i64>,
    /// Length of the sequence: the dim of that name, else the second dim of the first dynamic input
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(i64).range(1..))]
    pub(crate) seq: Option<i64>,
    /// Size of a dynamic dim by name. It may be 0, as that of an empty past; the model is imported for that size alone then
    #[arg(long, value_name = "NAME=N", value_parser = named_size)]
    pub(crate) dim: Vec<(String, i64)>,
    /// Prepare the model for all combinations of these sizes, and time each: for example batch=1,8,32 seq=128,384. A
    /// run of a size between them is padded to the next where that is exact, and has its own size elsewhere
    // What may follow a value is spread over flags of one value each: clap alone would take MODEL for another value.
    #[arg(long, value_name = "NAME=N,N", value_parser = named_sizes)]
    pub(crate) buckets: Vec<Asked>,
}

/// Inputs, and what the outputs should be.
#[derive(Args, Debug)]
#[command(next_help_heading = "Inputs and outputs")]
pub(crate) struct Data {
    /// An input from a .npy file or an image (.png, .jpg, .webp), which is resized as preprocessor_config.json beside the
    /// model says, else as the model's input asks; may be given for each input
    #[arg(long, value_name = "NAME=@FILE", value_parser = named_file, value_hint = ValueHint::FilePath)]
    pub(crate) input: Vec<(String, PathBuf)>,
    /// A text, tokenized by the tokenizer.json beside the model; several are a batch, padded to the longest. Prints what the
    /// model makes of them: labels, words for `[MASK]`, or the embedding
    #[arg(long, value_name = "TEXT", conflicts_with = "data")]
    pub(crate) text: Vec<String>,
    /// The second text of a pair, for models that read two; one for each --text, or several for a single one
    #[arg(long, value_name = "TEXT", requires = "text")]
    pub(crate) text_pair: Vec<String>,
    /// Inputs by name from a .npz archive
    #[arg(long, value_name = "FILE.npz")]
    pub(crate) inputs: Option<PathBuf>,
    /// A folder with input_i.pb, and output_i.pb to check the outputs against
    #[arg(long, value_name = "DIR", conflicts_with_all = ["input", "inputs"])]
    pub(crate) data: Option<PathBuf>,
    /// Outputs to expect, by name, from a .npz archive: exit code 4 if they differ
    #[arg(long, value_name = "FILE.npz", conflicts_with = "data")]
    pub(crate) expect: Option<PathBuf>,
    /// Seed of random inputs, of random numbers that the model draws, and of a zoo model's weights
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) seed: u64,
    /// Write the outputs of the first executor to a .npz archive
    #[arg(long, value_name = "FILE.npz")]
    pub(crate) save_outputs: Option<PathBuf>,
    /// Write what each step of the first executor stores, by name: to a .npz archive, or to a folder value by value, which
    /// takes less memory
    #[arg(long, value_name = "DIR|FILE.npz", conflicts_with = "buckets")]
    pub(crate) save_intermediates: Option<PathBuf>,
    /// Relative tolerance of comparisons [default: 1e-3]
    #[arg(long, value_name = "X", value_parser = tolerance)]
    pub(crate) rtol: Option<f64>,
    /// Absolute tolerance of comparisons [default: 1e-4, times the elements' median magnitude where that is above 1; in half
    /// precision, TF32, bf16 and quantised models, where neither is given, both follow from how often values are rounded]
    #[arg(long, value_name = "X", value_parser = tolerance)]
    pub(crate) atol: Option<f64>,
}

/// What runs where, and how long.
#[derive(Args, Debug)]
#[command(next_help_heading = "Execution")]
pub(crate) struct Run {
    /// Plan for a target: cpu, cpu:N (cores), sm_70, sm_75, sm_80, sm_86, sm_89, sm_90a, sm_100a, sm_120 [default: the
    /// device's]. For another than the device's GPU the model is planned only
    #[arg(long, value_name = "TARGET", value_parser = Target::from_str)]
    pub(crate) target: Option<Target>,
    /// Where to run: auto (a GPU if there is one), cpu, cuda or cuda:N
    #[arg(long, value_name = "DEVICE", default_value = "auto")]
    pub(crate) device: Device,
    /// Executors to run, in this order: fused, library, reference
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "fused,library")]
    pub(crate) exec: Vec<Exec>,
    /// Precision to compute in, for models in single precision; tf32 and f16 need a GPU. On a CPU bf16 is that of matmuls by
    /// weights alone, which take half the memory
    #[arg(long, value_name = "TYPE", default_value = "model")]
    pub(crate) dtype: Precision,
    /// Time to warm up each executor
    #[arg(long, value_name = "TIME", default_value = "200ms", value_parser = duration)]
    pub(crate) warmup: Duration,
    /// Time to measure each executor for, at least
    #[arg(long, value_name = "TIME", default_value = "3s", value_parser = duration)]
    pub(crate) duration: Duration,
    /// Timed runs of each executor, at least [default: 10, fewer for slow models]
    #[arg(long, value_name = "N", value_parser = positive)]
    pub(crate) iterations: Option<usize>,
    /// Percentiles of the times to print
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "50,90,95,99", value_parser = percent)]
    pub(crate) percentiles: Vec<f64>,
    /// Search on the GPU for faster parameters of kernels at these sizes, for about this long, and keep them in the file
    /// of --tuning, which later runs read; an unfinished search is resumed
    #[arg(long, value_name = "TIME", value_parser = limit, conflicts_with = "bisect")]
    pub(crate) tune: Option<Duration>,
    /// The file of what --tune finds [default: MODEL.tuning.json beside the model]
    #[arg(long, value_name = "FILE.json")]
    pub(crate) tuning: Option<PathBuf>,
    /// Compile the kernels of a GPU again, and keep none for later runs
    #[arg(long)]
    pub(crate) no_cache: bool,
    /// Size limit, in MiB, of the folder of compiled kernels ($GRAPHENE_CACHE, else ~/.cache/graphene): the least
    /// recently used are evicted
    #[arg(long, value_name = "N", default_value_t = Cache::LIMIT >> 20)]
    pub(crate) cache_mib: u64,
    /// Threads of the CPU executors, at most 1024 [default: one a core]
    #[arg(long, value_name = "N", value_parser = threads)]
    pub(crate) threads: Option<usize>,
}

/// What is shown.
#[derive(Args, Debug)]
#[command(next_help_heading = "Reports")]
pub(crate) struct Report {
    /// Print a stage to stdout and end, or write it to a file and go on: import, rewritten, groups, program, bound, dot,
    /// egraph (one for each block of the model that is unlike the others), and for a GPU target graphene, cuda
    #[arg(long, value_name = "STAGE[=PATH]")]
    pub(crate) emit: Vec<Emit>,
    /// Say why values are stored between groups instead of being fused
    #[arg(long)]
    pub(crate) explain: bool,
    /// Time every step, with bandwidth, arithmetic rate and share of the roofline
    #[arg(long)]
    pub(crate) profile: bool,
    /// Instead of timing, run step by step, and name the first step whose output is out of tolerance: on the CPU compared
    /// with the reference evaluator, on a GPU with the same steps in single precision on the CPU
    #[arg(long, conflicts_with_all = ["profile", "trace", "save_outputs", "save_intermediates", "buckets", "csv"])]
    pub(crate) bisect: bool,
    /// Write a trace that Perfetto and chrome://tracing open
    #[arg(long, value_name = "FILE.json")]
    pub(crate) trace: Option<PathBuf>,
    /// Write an HTML page: times and accuracy, every step beside the library's, the graph, why values are stored between
    /// steps, and the arena; for another target than the machine's, estimates
    #[arg(long, value_name = "FILE.html")]
    pub(crate) report: Option<PathBuf>,
    /// Write the page's table of steps as comma-separated values
    #[arg(long, value_name = "FILE.csv", conflicts_with = "diff")]
    pub(crate) csv: Option<PathBuf>,
    /// Print one JSON object on stdout instead of the summary
    #[arg(long)]
    pub(crate) json: bool,
}

/// Conditions that end the command with exit code 5 if they do not hold.
#[derive(Args, Debug)]
#[command(next_help_heading = "Gates")]
pub(crate) struct Gates {
    /// The fused plan has exactly N groups of this family (as --json counts them, for example MatMul=2)
    #[arg(long, value_name = "FAMILY=N", value_parser = named_count)]
    pub(crate) assert_fused: Vec<(String, usize)>,
    /// The fused plan has at most N launches, counted in the program that runs
    #[arg(long, value_name = "N")]
    pub(crate) assert_launches: Option<usize>,
}

/// A way to run a model.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum Exec {
    /// Fused groups
    Fused,
    /// One launch an operation
    Library,
    /// The reference evaluator, which defines the right results; run once
    Reference,
}

impl Exec {
    /// The name on the command line and in reports.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Fused => "fused",
            Self::Library => "library",
            Self::Reference => "reference",
        }
    }
}

/// Precision of storage and matmuls.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum Precision {
    /// As the model has it
    Model,
    /// Single precision
    F32,
    /// Single precision, of which matrix products, convolutions and attention see 10 bits of mantissa
    Tf32,
    /// Half precision
    F16,
    /// Bfloat16; on a CPU, that of weights and of what they are multiplied by
    Bf16,
}

impl Precision {
    /// The elements that a model computes with.
    pub(crate) fn dtype(self) -> Dtype {
        match self {
            Self::Model => Dtype::Model,
            Self::F32 => Dtype::F32,
            Self::Tf32 => Dtype::Tf32,
            Self::F16 => Dtype::F16,
            Self::Bf16 => Dtype::Bf16,
        }
    }

    /// The name on the command line and in reports.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Model => "model",
            Self::F32 => "f32",
            Self::Tf32 => "tf32",
            Self::F16 => "f16",
            Self::Bf16 => "bf16",
        }
    }

    /// What values of single precision are stored in, if that is half precision.
    pub(crate) fn half_type(self) -> Option<DType> {
        match self {
            Self::Model | Self::F32 | Self::Tf32 => None,
            Self::F16 => Some(DType::F16),
            Self::Bf16 => Some(DType::BF16),
        }
    }
}

/// Where to run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Device {
    /// The best that there is.
    Auto,
    /// The host's cores.
    Cpu,
    /// A GPU.
    Cuda(usize),
}

impl FromStr for Device {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        match (text, text.strip_prefix("cuda:").map(str::parse)) {
            ("auto", _) => Ok(Self::Auto),
            ("cpu", _) => Ok(Self::Cpu),
            ("cuda", _) => Ok(Self::Cuda(0)),
            (_, Some(Ok(number))) => Ok(Self::Cuda(number)),
            _ => Err("expected auto, cpu, cuda or cuda:N".to_owned()),
        }
    }
}

/// A stage of compilation that can be printed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum Stage {
    /// The graph as imported
    Import,
    /// The graph after rewriting
    Rewritten,
    /// The partition
    Groups,
    /// The steps and buffers
    Program,
    /// The same with sizes and places
    Bound,
    /// The rewritten graph for graphviz, coloured by what is one launch
    Dot,
    /// The e-graphs that rewriting chooses from, for graphviz, one for each block that is unlike the others
    Egraph,
    /// The kernels of a GPU target's steps, as specs
    Graphene,
    /// The same as CUDA C++
    Cuda,
}

/// A stage and where to print it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Emit {
    /// What.
    pub(crate) stage: Stage,
    /// Where; stdout if absent.
    pub(crate) path: Option<PathBuf>,
}

impl FromStr for Emit {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let (stage, path) = match text.split_once('=') {
            Some((_, "")) => return Err("no path after `=`".to_owned()),
            Some((stage, path)) => (stage, Some(path.into())),
            None => (text, None),
        };
        if stage == "ptx" {
            return Err("this build prints CUDA C++, but no PTX yet".to_owned());
        }
        let parsed = Stage::from_str(stage, false);
        parsed.map(|stage| Self { stage, path }).map_err(|_| {
            let known = Stage::value_variants().iter().filter_map(ValueEnum::to_possible_value);
            let known: Vec<_> = known.map(|value| value.get_name().to_owned()).collect();
            format!("expected one of {}", known.join(", "))
        })
    }
}

/// The path with its folder's links resolved, and its own if it is there.
fn resolved(path: &Path) -> PathBuf {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    let folder = folder.unwrap_or(Path::new(".")).canonicalize();
    let beside = folder.ok().and_then(|folder| Some(folder.join(path.file_name()?)));
    path.canonicalize().ok().or(beside).unwrap_or_else(|| path.to_owned())
}

fn overwritten(flag: &'static str, path: &Path) -> Error {
    Error::flag(flag, format!("{} is read, and would be overwritten", path.display()))
}

impl Arguments {
    /// What clap cannot check: flags that do not go together.
    ///
    /// # Errors
    /// [`Error::Flag`].
    pub(crate) fn check(&self) -> Result<(), Error> {
        if self.report.json && self.emits_to_stdout() {
            return Err(Error::flag("--emit", "stdout is taken by --json; give it a path"));
        }
        let mut taken: Vec<PathBuf> = Vec::new();
        for (flag, path) in self.written() {
            if taken.contains(&resolved(path)) {
                let reason = format!("{} is written by another flag already", path.display());
                return Err(Error::flag(flag, reason));
            }
            if self.reads(path) {
                return Err(overwritten(flag, path));
            }
            taken.push(resolved(path));
        }
        let exec = &self.run.exec;
        let repeated = (1..exec.len()).map(|i| (exec[i], &exec[..i]));
        if self.data.save_intermediates.is_some() && exec.first() == Some(&Exec::Reference) {
            let reason = "the reference has no steps; name another executor first in --exec";
            return Err(Error::flag("--save-intermediates", reason));
        }
        if let Some((exec, _)) = { repeated }.find(|(exec, before)| before.contains(exec)) {
            return Err(Error::flag("--exec", format!("`{}` is listed twice", exec.name())));
        }
        Ok(())
    }

    /// Refuses to overwrite these files, which have been read, links resolved.
    ///
    /// # Errors
    /// [`Error::Flag`].
    pub(crate) fn spare(&self, files: &[PathBuf]) -> Result<(), Error> {
        let read = |path: &Path| path.canonicalize().is_ok_and(|path| files.contains(&path));
        match self.written().find(|(_, path)| read(path)) {
            Some((flag, path)) => Err(overwritten(flag, path)),
            None => Ok(()),
        }
    }

    /// The files that are written, and the flags that name them.
    fn written(&self) -> impl Iterator<Item = (&'static str, &PathBuf)> {
        let emits = self.report.emit.iter().filter_map(|emit| emit.path.as_ref());
        let others = [
            ("--save-outputs", &self.data.save_outputs),
            ("--save-intermediates", &self.data.save_intermediates),
            ("--trace", &self.report.trace),
            ("--report", &self.report.report),
            ("--csv", &self.report.csv),
        ];
        let others = others.into_iter().filter_map(|(flag, path)| Some((flag, path.as_ref()?)));
        emits.map(|path| ("--emit", path)).chain(others)
    }

    /// Sees whether all files that are to be written can be, before any work is done.
    ///
    /// # Errors
    /// [`Error::Write`].
    pub(crate) fn probe_written(&self) -> Result<(), Error> {
        if self.run.tune.is_some() {
            files::probe(&tuning::path(self))?;
        }
        self.written().try_for_each(|(flag, path)| match flag {
            "--save-intermediates" => intermediates::probe(path),
            _ => files::probe(path),
        })
    }

    /// Whether a file is the model, or one that inputs come from: by whatever path, if it is there.
    fn reads(&self, path: &Path) -> bool {
        let Ok(path) = path.canonicalize() else { return false };
        let data = &self.data;
        let model = self.model.as_deref().map(Path::new);
        let files = data.input.iter().map(|(_, file)| file.as_path());
        let results = self.diff.iter().flatten().map(PathBuf::as_path);
        let files = files.chain(data.inputs.as_deref()).chain(data.expect.as_deref());
        let files = files.chain(model).chain(results);
        let is = |file: &Path| file.canonicalize().is_ok_and(|file| file == path);
        let folder = data.data.as_deref().and_then(|folder| folder.canonicalize().ok());
        let of_data = folder.is_some_and(|folder| path.parent() == Some(&folder));
        of_data || { files }.any(is)
    }

    /// Whether a stage is to be printed to stdout.
    pub(crate) fn emits_to_stdout(&self) -> bool {
        self.report.emit.iter().any(|emit| emit.path.is_none())
    }

    /// Whether steps are to be timed one by one.
    pub(crate) fn profiles(&self) -> bool {
        let Report { profile, trace, report, csv, .. } = &self.report;
        *profile || trace.is_some() || report.is_some() || csv.is_some()
    }

    /// Whether the plan is all that is asked for: a stage on stdout, or a target that this machine is not.
    ///
    /// # Errors
    /// [`Error::Flag`] for what only a run gives.
    pub(crate) fn plan_only(&self, machine: &Machine) -> Result<bool, Error> {
        let other = self.run.target.as_ref().filter(|target| !machine.runs(target));
        if !self.emits_to_stdout() && other.is_none() {
            return Ok(false);
        }
        let only_runs = [
            ("--save-outputs", self.data.save_outputs.is_some()),
            ("--save-intermediates", self.data.save_intermediates.is_some()),
            (self.traffic.flag().unwrap_or("--rate"), self.traffic.flag().is_some()),
            ("--bisect", self.report.bisect),
            ("--profile", self.report.profile),
            ("--buckets", !self.sizes.buckets.is_empty()),
            ("--exec", self.run.exec.contains(&Exec::Reference)),
        ];
        let Some((flag, _)) = only_runs.into_iter().find(|(_, asked)| *asked) else {
            return Ok(true);
        };
        let why = match other {
            Some(target) => format!("--target {target} is not what this machine runs"),
            None => "--emit prints a stage and ends".to_owned(),
        };
        let what = if flag == "--exec" { "the reference has no plan" } else { "nothing is run" };
        Err(Error::flag(flag, format!("the model is only planned, and {what}: {why}")))
    }
}

/// Whether the target is a host's cores.
pub(crate) fn is_cpu(target: &Target) -> bool {
    match target.kind {
        graphene_ir::target::Kind::Cpu => true,
        graphene_ir::target::Kind::Cuda { .. } => false,
    }
}

fn named<'a>(text: &'a str, example: &str) -> Result<(&'a str, &'a str), String> {
    let parts = text.rsplit_once('=').filter(|(name, value)| !name.is_empty() && !value.is_empty());
    parts.ok_or_else(|| format!("expected {example}"))
}

fn named_size(text: &str) -> Result<(String, i64), String> {
    let (name, size) = named(text, "NAME=N, for example batch=8")?;
    match size.parse() {
        Ok(size) if size >= 0 => Ok((visible(name).into_owned(), size)),
        _ => Err(format!("`{size}` is no size of at least 0")),
    }
}

fn named_sizes(text: &str) -> Result<Asked, String> {
    let (name, sizes) = named(text, "NAME=N,N, for example batch=1,8,32")?;
    let size = |size: &str| match size.parse() {
        Ok(size) if size >= 1 => Ok(size),
        _ => Err(format!("`{size}` is no size of at least 1")),
    };
    Ok((name.to_owned(), sizes.split(',').map(size).collect::<Result<_, _>>()?))
}

fn named_count(text: &str) -> Result<(String, usize), String> {
    let (name, count) = named(text, "FAMILY=N, for example FMHA=12")?;
    let count = count.parse().map_err(|_| format!("`{count}` is no count"))?;
    Ok((name.to_owned(), count))
}

fn named_file(text: &str) -> Result<(String, PathBuf), String> {
    let parts = text.split_once("=@").filter(|(name, path)| !name.is_empty() && !path.is_empty());
    let (name, path) = parts.ok_or("expected NAME=@FILE, for example x=@x.npy or x=@cat.png")?;
    Ok((visible(name).into_owned(), path.into()))
}

fn duration(text: &str) -> Result<Duration, String> {
    let digits = text.trim_end_matches(|c: char| c.is_alphabetic() || c == 'µ');
    let seconds = match &text[digits.len()..] {
        "us" | "µs" => 1e-6,
        "ms" => 1e-3,
        "s" => 1.0,
        "m" | "min" => 60.0,
        "h" => 3600.0,
        "" if digits == "0" => 1.0,
        _ => return Err("expected a time with its unit, for example 200ms, 3s or 1m".to_owned()),
    };
    let number: f64 = digits.parse().map_err(|_| format!("`{digits}` is no number"))?;
    Duration::try_from_secs_f64(number * seconds).map_err(|_| "out of range".to_owned())
}

fn limit(text: &str) -> Result<Duration, String> {
    let limit = duration(text)?;
    if limit.is_zero() { Err("leaves no time to do anything in".to_owned()) } else { Ok(limit) }
}

fn positive(text: &str) -> Result<usize, String> {
    text.parse()
        .ok()
        .filter(|&n| n >= 1)
        .ok_or_else(|| "expected a number of at least 1".to_owned())
}

fn threads(text: &str) -> Result<usize, String> {
    use graphene_runtime::MOST_THREADS;
    let threads = positive(text).ok().filter(|&n| n <= MOST_THREADS);
    threads.ok_or_else(|| format!("expected a number from 1 to {MOST_THREADS}"))
}

fn percent(text: &str) -> Result<f64, String> {
    let percent = text.parse().ok().filter(|p| (0.0..=100.0).contains(p));
    percent.ok_or_else(|| "expected a number from 0 to 100".to_owned())
}

fn tolerance(text: &str) -> Result<f64, String> {
    let tolerance = text.parse().ok().filter(|&t: &f64| t >= 0.0 && t.is_finite());
    tolerance.ok_or_else(|| "expected a number that is not negative".to_owned())
}

#[cfg(test)]
mod tests {
    use super::{Arguments, Device, Emit, Stage, duration};
    use clap::CommandFactory;
    use std::time::Duration;

    #[test]
    fn the_command_is_well_formed() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn times_have_units() {
        let rows = [
            ("200ms", 200_000),
            ("3s", 3_000_000),
            ("1.5s", 1_500_000),
            ("2m", 120_000_000),
            ("7us", 7),
            ("0", 0),
        ];
        for (text, micros) in rows {
            assert_eq!(duration(text), Ok(Duration::from_micros(micros)), "{text}");
        }
        for text in ["", "3", "s", "-1s", "1e400s", "3 parsecs", "nans", "infs"] {
            assert!(duration(text).is_err(), "{text}");
        }
    }

    #[test]
    fn devices_and_stages_are_read() {
        assert_eq!("cuda:3".parse(), Ok(Device::Cuda(3)));
        assert!("cuda:".parse::<Device>().is_err());
        assert_eq!(
            "dot=a=b.dot".parse(),
            Ok(Emit { stage: Stage::Dot, path: Some("a=b.dot".into()) })
        );
        assert!("dot=".parse::<Emit>().is_err());
        assert!("ptx".parse::<Emit>().is_err());
    }
}
