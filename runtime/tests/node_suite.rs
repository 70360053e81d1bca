//! ONNX's backend suite of single operators, run by the reference evaluator, the library and the fused executor; where there
//! is a GPU, also by the two executors there.
//!
//! Each case is a model with inputs and expected outputs. It passes if all outputs of all
//! executors agree within the suite's own tolerance; it is refused if the importer says that it does not support an operator,
//! which is reported as ignored; anything else fails. `node_suite/passing.txt` lists the cases that pass, and a case that is new
//! or gone fails; `UPDATE_EXPECT=1` in the environment writes the list anew.
//!
//! What passes is run again with a symbol in place of every size of an input: the importer may then ask for sizes,
//! but what it makes must still be right.
//!
//! Three more suites of the same layout hold what ONNX's has not: onnxruntime's own operators, old opsets, recurrent
//! layers with every option; sequences, detectors' boxes, scikit-learn's pipelines; and onnxruntime's operators of
//! quantised models and decoders. Their expected outputs are onnxruntime's, and none of it may be refused.

#[path = "node_suite/on_gpu.rs"]
mod on_gpu;

use bytes::Bytes;
use graphene_frontend::dim::{Bindings, Dim, Symbol};
use graphene_frontend::eval::evaluate;
use graphene_frontend::graph::Graph;
use graphene_frontend::import::{
    Import, ImportError, ImportOptions, NoExternalData, Unsupported, import,
};
use graphene_frontend::onnx::{
    DimensionValue, GraphProto, ModelProto, TypeProto, TypeValue, decode, encode,
};
use graphene_frontend::tensor::Tensor;
use graphene_frontend::testdata::{compare, read_tensor_proto};
use graphene_frontend::types::TensorType;
use graphene_fusion::{Granularity, plan};
use graphene_ir::target::Target;
use graphene_runtime::cpu::Module;
use libtest_mimic::{Arguments, Failed, Trial};
use std::collections::{BTreeMap, BTreeSet};
use std::io::Read;
use std::sync::Mutex;

/// The names of the cases that pass, one a line.
const PASSING: &str = include_str!("node_suite/passing.txt");

/// Cases that draw random numbers: the suite expects those of NumPy's generator. Of ours the types are compared with the
/// suite's and the values between executors; that they are distributed as they should be is tested in the frontend.
const DRAWN: [&str; 10] = [
    "test_bernoulli",
    "test_bernoulli_double",
    "test_bernoulli_double_expanded",
    "test_bernoulli_expanded",
    "test_bernoulli_seed",
    "test_bernoulli_seed_expanded",
    "test_training_dropout",
    "test_training_dropout_default",
    "test_training_dropout_default_mask",
    "test_training_dropout_mask",
];

/// Runs of the first two suites on a GPU in which a step falls back to the CPU; lower it with what has kernels.
const ON_HOST: usize = 3212;

/// ONNX's suite, packed.
const NODE_SUITE: &[u8] = include_bytes!("../../frontend/tests/data/onnx-node-suite.tar.zst");

/// The suite of onnxruntime's outputs, packed; `onnxruntime-suite.py` writes it.
const ONNXRUNTIME_SUITE: &[u8] =
    include_bytes!("../../frontend/tests/data/onnxruntime-suite.tar.zst");

/// The suite of onnxruntime's outputs for larger graphs, packed; `onnxruntime-graphs.py` writes it.
const ONNXRUNTIME_GRAPHS: &[u8] =
    include_bytes!("../../frontend/tests/data/onnxruntime-graphs.tar.zst");

/// The suite of onnxruntime's outputs for its operators of quantised models and decoders, packed;
/// `onnxruntime-contrib.py` writes it.
const ONNXRUNTIME_CONTRIB: &[u8] =
    include_bytes!("../../frontend/tests/data/onnxruntime-contrib.tar.zst");

/// A row of the suite's index.
struct Case {
    name: String,
    rtol: f64,
    atol: f64,
}

impl Case {
    /// Whether its outputs are random numbers.
    fn is_drawn(&self) -> bool {
        DRAWN.contains(&self.name.as_str())
    }
}

/// What became of a case.
enum Outcome {
    Passed,
    Refused(Vec<Unsupported>),
    Wrong(String),
}

type Files = BTreeMap<String, Bytes>;

fn main() {
    let arguments = Arguments::from_args();
    let mut trials = Vec::new();
    run_suite(&arguments, NODE_SUITE, true, &mut trials);
    run_suite(&arguments, ONNXRUNTIME_SUITE, false, &mut trials);
    // Without a GPU this one says so.
    let on_host = on_gpu::summarise();
    let kernels = move || match on_host {
        0..=ON_HOST => Ok(()),
        more => Err(Failed::from(format!("{more} runs need the host, {ON_HOST} did before"))),
    };
    trials.push(Trial::test("on_a_gpu", kernels).with_ignored_flag(!on_gpu::is_there()));
    run_suite(&arguments, ONNXRUNTIME_GRAPHS, false, &mut trials);
    run_suite(&arguments, ONNXRUNTIME_CONTRIB, false, &mut trials);
    libtest_mimic::run(&arguments, trials).exit();
}

/// A trial for each case of a suite, and one for all of that which may refuse some.
fn run_suite(arguments: &Arguments, suite: &[u8], may_refuse: bool, trials: &mut Vec<Trial>) {
    let files = unpack(suite);
    let mut cases = cases(&files);
    if let Some(filter) = &arguments.filter {
        cases.retain(|case| case.name.contains(filter));
    }
    let outcomes = run_all(&files, &cases);
    if may_refuse && arguments.filter.is_none() {
        trials.push(summary(&cases, &outcomes));
    }
    trials.extend(cases.iter().zip(outcomes).map(|(case, outcome)| {
        let (failure, ignored) = match outcome {
            Outcome::Passed => (None, false),
            Outcome::Refused(all) if !may_refuse => (Some(refusals(&all)), false),
            Outcome::Refused(_) => (None, true),
            Outcome::Wrong(why) => (Some(why), false),
        };
        let result = move || failure.map_or(Ok(()), |why| Err(Failed::from(why)));
        Trial::test(case.name.clone(), result).with_ignored_flag(ignored)
    }));
}

fn refusals(all: &[Unsupported]) -> String {
    all.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
}

/// Prints to stderr, as stdout is for lists of trials, what is refused by operator, and the counts. Gives a trial that fails unless the
/// cases that pass are those that are listed.
fn summary(cases: &[Case], outcomes: &[Outcome]) -> Trial {
    let mut refused: BTreeMap<String, BTreeSet<&str>> = BTreeMap::new();
    let (mut passed, mut drawn, mut wrong) = (BTreeSet::new(), 0, 0);
    for (case, outcome) in cases.iter().zip(outcomes) {
        match outcome {
            Outcome::Passed if case.is_drawn() => drawn += 1,
            Outcome::Passed => {
                passed.insert(case.name.as_str());
            }
            Outcome::Wrong(_) => wrong += 1,
            Outcome::Refused(all) => {
                for one in all {
                    let key = format!("{}: {}", one.op, one.why);
                    refused.entry(key).or_default().insert(&case.name);
                }
            }
        }
    }
    let mut rows: Vec<_> = refused.into_iter().collect();
    rows.sort_by_key(|(_, cases)| std::cmp::Reverse(cases.len()));
    eprintln!("refused, by operator:");
    for (why, cases) in rows {
        eprintln!("{:5} {why}", cases.len());
    }
    let (passes, all) = (passed.len(), cases.len());
    eprintln!("passed {passes}, drew numbers of their own {drawn}, wrong {wrong}, of {all}");
    let difference = difference(&passed);
    Trial::test("the_cases_that_pass_are_those_listed", move || difference.map_err(Failed::from))
}

/// Compares the cases that pass with the list of them, or writes it.
fn difference(passed: &BTreeSet<&str>) -> Result<(), String> {
    if std::env::var_os("UPDATE_EXPECT").is_some() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/node_suite/passing.txt");
        let lines: String = passed.iter().map(|name| format!("{name}\n")).collect();
        return std::fs::write(path, lines).map_err(|error| format!("{path}: {error}"));
    }
    let listed: BTreeSet<&str> = PASSING.lines().collect();
    let list =
        |names: Vec<&&str>| names.iter().map(|name| format!("\n  {name}")).collect::<String>();
    let gone = list(listed.difference(passed).collect());
    let new = list(passed.difference(&listed).collect());
    match (gone.is_empty(), new.is_empty()) {
        (true, true) => Ok(()),
        (true, false) => Err(format!("these pass and are not listed in passing.txt:{new}")),
        (false, true) => Err(format!("these passed before:{gone}")),
        (false, false) => Err(format!("these passed before:{gone}\nthese are new:{new}")),
    }
}

/// The files of a suite by path below `node/`.
fn unpack(suite: &[u8]) -> Files {
    let decoder = ruzstd::decoding::StreamingDecoder::new(suite).expect("the suite is a zst file");
    let mut files = Files::new();
    let mut archive = tar::Archive::new(decoder);
    for entry in archive.entries().expect("the suite is a tar file") {
        let mut entry = entry.expect("an entry of the suite");
        let path = entry.path().expect("a path").to_string_lossy().into_owned();
        let mut bytes = Vec::new();
        entry.read_to_end(&mut bytes).expect("a file of the suite");
        if let Some(path) = path.trim_start_matches("./").strip_prefix("node/") {
            files.insert(path.to_owned(), bytes.into());
        }
    }
    files
}

/// The rows of `index.tsv`: case, operators, opset, rtol, atol.
fn cases(files: &Files) -> Vec<Case> {
    let index = files.get("index.tsv").expect("the suite has an index");
    let text = std::str::from_utf8(index).expect("the index is text");
    let row = |line: &str| {
        let mut columns = line.split('\t');
        let name = columns.next()?.to_owned();
        let rtol = columns.nth(2)?.trim().parse().ok()?;
        let atol = columns.next()?.trim().parse().ok()?;
        Some(Case { name, rtol, atol })
    };
    text.lines().filter_map(row).collect()
}

/// All cases, on all cores, in order.
fn run_all(files: &Files, cases: &[Case]) -> Vec<Outcome> {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let next = Mutex::new(0..cases.len());
    let results = Mutex::new(BTreeMap::new());
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let Some(i) = next.lock().expect("no thread panics").next() else { break };
                    let outcome = std::panic::catch_unwind(|| run(files, &cases[i]));
                    let outcome = outcome.unwrap_or_else(|_| Outcome::Wrong("panics".into()));
                    results.lock().expect("no thread panics").insert(i, outcome);
                }
            });
        }
    });
    results.into_inner().expect("no thread panics").into_values().collect()
}

/// Runs a case as it is, and where it passes, again with sizes as symbols.
fn run(files: &Files, case: &Case) -> Outcome {
    let Some(model) = files.get(&format!("{}/model.onnx", case.name)) else {
        return Outcome::Wrong("there is no model".to_owned());
    };
    let outcome = run_model(files, case, model);
    match (&outcome, with_symbols(model)) {
        (Outcome::Passed, Some(symbolic)) => match run_model(files, case, &symbolic) {
            Outcome::Passed => outcome,
            Outcome::Refused(all) => Outcome::Wrong(format!("with symbols: {}", refusals(&all))),
            Outcome::Wrong(why) => Outcome::Wrong(format!("with symbols: {why}")),
        },
        _ => outcome,
    }
}

/// The model with every size of an input that is not one replaced by a symbol, equal sizes by the same; `None` if
/// there is no such size.
fn with_symbols(model: &Bytes) -> Option<Bytes> {
    let mut model = decode(model.clone()).ok()?;
    let mut replaced = false;
    for input in &mut model.graph.as_mut()?.input {
        let Some(TypeProto { value: Some(TypeValue::TensorType(ty)) }) = &mut input.r#type else {
            continue;
        };
        for dim in ty.shape.iter_mut().flat_map(|shape| &mut shape.dim) {
            if let Some(DimensionValue::DimValue(size @ 2..)) = dim.value {
                dim.value = Some(DimensionValue::DimParam(format!("{SYMBOL}{size}")));
                replaced = true;
            }
        }
    }
    replaced.then(|| encode(&model))
}

/// Symbols in place of sizes are named by this and the size.
const SYMBOL: &str = "size_";

/// More symbols than a case has.
const MAX_SYMBOLS: usize = 100;

fn run_model(files: &Files, case: &Case, model: &Bytes) -> Outcome {
    let data = |kind: &str, i: usize| {
        let path = format!("{}/test_data_set_0/{kind}_{i}.pb", case.name);
        files.get(&path).cloned().ok_or_else(|| format!("{path} is missing"))
    };
    let graph = match decode(model.clone()) {
        Ok(ModelProto { graph: Some(graph), .. }) => graph,
        _ => return Outcome::Wrong("no model".to_owned()),
    };
    let inputs = || -> Result<BTreeMap<String, Tensor>, String> {
        let mut inputs = BTreeMap::new();
        for (i, info) in graph.input.iter().enumerate() {
            let (_, tensor) = read_tensor_proto(data("input", i)?).map_err(|e| e.to_string())?;
            inputs.insert(info.name.clone(), tensor);
        }
        Ok(inputs)
    };
    let imported = match import_with_values(model, &graph, inputs) {
        Ok(imported) => imported,
        Err(Refusal::Unsupported(all)) => return Outcome::Refused(all),
        Err(Refusal::Failed(why)) => return Outcome::Wrong(why),
    };
    let check = || -> Result<(), String> {
        let mut inputs = inputs()?;
        let graph = &imported.graph;
        let mut arguments = Vec::new();
        for &id in graph.inputs() {
            let name = graph.node(id).name();
            arguments.push(inputs.remove(name).ok_or_else(|| format!("no data for `{name}`"))?);
        }
        let on_gpu = if on_gpu::is_there() { &ON_GPU[..] } else { &[] };
        let mut outputs = Vec::new();
        for (name, run) in EXECUTORS.iter().chain(on_gpu) {
            let found = run(graph, &arguments).map_err(|error| format!("{name}: {error}"))?;
            outputs.push((*name, found));
        }
        let count = outputs[0].1.len();
        for (executor, i, output) in numbered(&outputs) {
            let (_, mut expected) =
                read_tensor_proto(data("output", i)?).map_err(|e| e.to_string())?;
            if case.is_drawn() {
                let (found, wanted) = (TensorType::of(output), TensorType::of(&expected));
                if found != wanted {
                    return Err(format!("{executor}: output {i} is {found}, not {wanted}"));
                }
                expected = outputs[0].1[i].clone();
            }
            let (rtol, atol) = match ON_GPU.iter().any(|(name, _)| *name == executor) {
                true => on_gpu::tolerance(&expected, case.rtol, case.atol),
                false => (case.rtol, case.atol),
            };
            let result = compare(output, &expected, rtol, atol).map_err(|e| e.to_string())?;
            if !result.agrees() {
                return Err(format!("{executor}: output {i}: {result}"));
            }
        }
        match data("output", count) {
            Ok(_) => Err("there are more outputs than the model gives".to_owned()),
            Err(_) if count == 0 => Err("there are no outputs".to_owned()),
            Err(_) => Ok(()),
        }
    };
    match check() {
        Ok(()) => Outcome::Passed,
        Err(why) => Outcome::Wrong(why),
    }
}

/// The outputs of all executors with their numbers.
fn numbered<'a>(
    outputs: &'a [(&'static str, Vec<Tensor>)],
) -> impl Iterator<Item = (&'static str, usize, &'a Tensor)> {
    outputs.iter().flat_map(|(executor, outputs)| {
        outputs.iter().enumerate().map(|(i, output)| (*executor, i, output))
    })
}

type Executor = fn(&Graph, &[Tensor]) -> Result<Vec<Tensor>, String>;

/// All executors, by name.
const EXECUTORS: [(&str, Executor); 3] = [
    ("reference", |graph, inputs| evaluate(graph, inputs).map_err(|error| error.to_string())),
    ("library", |graph, inputs| run_program(graph, inputs, Granularity::PerOp)),
    ("fused", |graph, inputs| run_program(graph, inputs, Granularity::Fused)),
];

/// Those of a GPU.
const ON_GPU: [(&str, Executor); 2] = [
    ("library on the GPU", |graph, inputs| {
        on_gpu::run(graph, inputs, &sizes(graph, inputs)?, Granularity::PerOp)
    }),
    ("fused on the GPU", |graph, inputs| {
        on_gpu::run(graph, inputs, &sizes(graph, inputs)?, Granularity::Fused)
    }),
];

/// The sizes that a graph's symbols have with these inputs.
fn sizes(graph: &Graph, inputs: &[Tensor]) -> Result<Bindings, String> {
    let mut sizes = Bindings::new();
    for (&id, tensor) in graph.inputs().iter().zip(inputs) {
        for (dim, &size) in graph.ty(id.value()).shape.iter().zip(tensor.shape()) {
            if let Some(symbol) = dim.as_symbol() {
                sizes.bind(symbol.clone(), size as i64).map_err(|error| error.to_string())?;
            }
        }
    }
    Ok(sizes)
}

fn run_program(
    graph: &Graph,
    inputs: &[Tensor],
    granularity: Granularity,
) -> Result<Vec<Tensor>, String> {
    let text = |error: &dyn std::error::Error| error.to_string();
    let planned = plan(graph, &Target::cpu(2), granularity, &Bindings::new());
    let program = planned.map_err(|error| text(&error))?.program;
    let module = Module::compile(program).map_err(|error| text(&error))?;
    let mut executable = module.executable(&sizes(graph, inputs)?).map_err(|error| text(&error))?;
    executable.run(inputs).map_err(|error| text(&error))
}

/// Why a case does not get as far as being evaluated.
enum Refusal {
    Unsupported(Vec<Unsupported>),
    Failed(String),
}

/// The size that a symbol stands for.
fn size_of(symbol: &Symbol) -> Option<i64> {
    symbol.name().strip_prefix(SYMBOL)?.parse().ok()
}

/// Whether an equation is right for the sizes that its symbols stand for.
fn holds(symbol: &Symbol, dim: &Dim) -> bool {
    let (mut symbols, mut sizes) = (BTreeSet::new(), Bindings::new());
    dim.collect_symbols(&mut symbols);
    let bound = symbols
        .into_iter()
        .all(|symbol| size_of(&symbol).is_some_and(|size| sizes.bind(symbol, size).is_ok()));
    bound && size_of(symbol).is_some_and(|size| dim.eval(&sizes) == Ok(size))
}

/// Imports the model; where a shape depends on values or sizes, again with those, or with a symbol as a sum of others.
fn import_with_values(
    model: &Bytes,
    graph: &GraphProto,
    inputs: impl Fn() -> Result<BTreeMap<String, Tensor>, String>,
) -> Result<Import, Refusal> {
    let mut options = ImportOptions::default();
    for _ in 0..=graph.input.len() + MAX_SYMBOLS {
        let error = match import(model.clone(), &NoExternalData, &options) {
            Ok(imported) => return Ok(imported),
            Err(error) => error,
        };
        match error {
            ImportError::Unsupported(all) => return Err(Refusal::Unsupported(all)),
            ImportError::Resists { equal, .. }
                if equal.iter().any(|(symbol, dim)| holds(symbol, dim)) =>
            {
                options.equal.extend(equal.into_iter().find(|(symbol, dim)| holds(symbol, dim)));
            }
            ImportError::Resists { symbols, .. }
                if symbols.iter().any(|symbol| !options.dims.contains_key(symbol.name())) =>
            {
                for symbol in symbols {
                    let size = size_of(&symbol)
                        .ok_or_else(|| Refusal::Failed(format!("{symbol} has no size")))?;
                    options.dims.insert(symbol.name().to_owned(), size);
                }
            }
            ImportError::Resists { inputs: needed, .. }
                if needed.iter().any(|name| !options.values.contains_key(name)) =>
            {
                let all = inputs().map_err(Refusal::Failed)?;
                let needed = needed.iter().filter_map(|name| all.get_key_value(name));
                options.values.extend(needed.map(|(name, value)| (name.clone(), value.clone())));
            }
            error => return Err(Refusal::Failed(error.to_string())),
        }
    }
    Err(Refusal::Failed("the importer asks for ever more values".to_owned()))
}
