//! What keeps a reader from being misled: names that cannot speak to a terminal, comparisons that say little, noise, results
//! that survive a failure, and what was assumed.

use crate::fixtures::fixture;
use crate::models::{FLOAT, graph, node, npy, value, write};
use crate::{Folder, Given, json, quick, read, run};
use graphene_frontend::onnx::{
    DimensionValue, GraphProto, ModelProto, OperatorSetIdProto, StringStringEntryProto, TypeValue,
    ValueInfoProto, encode,
};
use serde_json::Value;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::Duration;

const MLP: &str = "zoo:mlp-2x8";

/// Names that would retitle a terminal, turn what follows around, add a line, and add an element to a page.
const HOSTILE: [&str; 4] = [
    "\u{1b}]0;pwned\u{7}",
    "a\u{202e}b\u{2066}c\u{200f}",
    "x\nfused agrees with library",
    "<script>alert(1)</script>&\"'",
];

/// An input of two dims, the first of which has any name.
fn input(name: &str, dim: &str) -> ValueInfoProto {
    let mut input = value(name, FLOAT, "d 3");
    let ty = input.r#type.as_mut().and_then(|ty| ty.value.as_mut());
    let Some(TypeValue::TensorType(ty)) = ty else { panic!("it is a tensor") };
    let shape = ty.shape.as_mut().expect("it has two dims");
    shape.dim[0].value = Some(DimensionValue::DimParam(dim.to_owned()));
    input
}

/// A model of which every text is hostile; its first operator is `op`.
fn hostile(folder: &Folder, op: &str) -> String {
    let [a, b, c, d] = HOSTILE;
    let mut nodes = vec![node(op, "i", "m"), node("Softmax", "m", "o")];
    nodes[0].input = vec![format!("input{a}")];
    nodes[0].output = vec![format!("middle{b}")];
    nodes[0].name = format!("first{a}{b}{c}{d}");
    nodes[1].input = nodes[0].output.clone();
    nodes[1].output = vec![format!("output{c}{d}")];
    nodes[1].name = format!("second{d}{c}{b}{a}");
    let quoted = d.replace('\'', "\\'");
    let scopes = format!("['', 'module{a}', 'module{a}.inner{quoted}', 'x']");
    nodes[1].metadata_props =
        vec![StringStringEntryProto { key: "pkg.torch.onnx.name_scopes".into(), value: scopes }];
    let output = vec![value(&format!("output{c}{d}"), FLOAT, "?")];
    let input = vec![input(&format!("input{a}"), &format!("dim{b}{a}"))];
    let graph = GraphProto { input, node: nodes, output, ..Default::default() };
    let model = ModelProto {
        ir_version: 8,
        opset_import: vec![OperatorSetIdProto { domain: String::new(), version: 18 }],
        producer_name: format!("producer{a}{b}{c}{d}"),
        graph: Some(graph),
        ..Default::default()
    };
    let path = folder.path("hostile.onnx");
    std::fs::write(&path, encode(&model)).expect("the folder takes files");
    path
}

/// Whether a text could do more to a terminal than show itself.
fn speaks(text: &str) -> bool {
    text.contains(|c: char| c.is_control() && c != '\n')
        || text.contains(['\u{202e}', '\u{2066}', '\u{200f}'])
}

#[track_caller]
fn check_silent(what: &str, given: &Given) {
    for text in [&given.stdout, &given.stderr] {
        assert!(!speaks(text), "{what}: {text:?}");
        // A line that a name has begun.
        let forged = text.lines().any(|line| line.trim() == "fused agrees with library");
        assert!(!forged, "{what}: {text}");
    }
}

#[test]
fn names_cannot_speak_to_a_terminal() {
    let folder = Folder::new();
    let model = hostile(&folder, "Relu");
    let (page, trace) = (folder.path("page.html"), folder.path("trace.json"));
    let dim = "dima\\u{202e}b\\u{2066}c\\u{200f}\\u{1b}]0;pwned\\u{7}=2";
    let flags = ["--dim", dim, "--profile", "--explain", "--report", &page, "--trace", &trace];
    let given = quick(&[&[&*model], &flags[..]].concat());
    assert_eq!(given.code, 0, "{}{}", given.stdout, given.stderr);
    check_silent("a run", &given);
    assert!(given.stdout.contains(r"producer\u{1b}]0;pwned\u{7}a\u{202e}b"), "{}", given.stdout);
    assert!(given.stdout.contains(r"module\u{1b}]0;pwned\u{7}.inner<script>"), "{}", given.stdout);
    for file in [&page, &trace] {
        let text = read(file);
        let hidden = ["\u{1b}", "\u{7}", "\u{202e}", "\u{2066}", "\u{200f}"];
        assert!(hidden.iter().all(|hidden| !text.contains(hidden)), "{file}");
        // Nor as numbers that a reader of JSON makes characters of again.
        let escaped = ["\\u001b", "\\u0007", "\\u202e", "\\u2066", "\\u200f"];
        assert!(escaped.iter().all(|escaped| !text.contains(escaped)), "{file}");
    }
    assert!(!read(&page).contains("<script>alert"));
    let stages = ["import", "rewritten", "groups", "program", "bound", "dot", "egraph"];
    for stage in stages {
        let given = run(&[&model, "--dim", dim, "--emit", stage]);
        assert_eq!(given.code, 0, "{stage}: {}", given.stderr);
        check_silent(stage, &given);
    }
    // In JSON what a terminal obeys is a number.
    let given = quick(&[&model, "--dim", dim, "--json", "--bisect"]);
    check_silent("--json", &given);
    assert_eq!(given.code, 0, "{}", given.stdout);
}

#[test]
fn errors_cannot_speak_to_a_terminal() {
    let folder = Folder::new();
    let model = hostile(&folder, "Rel\u{1b}[2Ju");
    let given = quick(&[&model]);
    assert_eq!(given.code, 3, "{}", given.stdout);
    check_silent("an operator", &given);
    assert!(given.stderr.contains(r"Rel\u{1b}[2Ju"), "{}", given.stderr);
    let model = hostile(&folder, "Relu");
    for flags in
        [&["--dim", "none=3"][..], &["--input", "none=@x.npy"], &["--dim", "x=3", "--json"]]
    {
        let given = quick(&[&[&*model], flags].concat());
        assert_ne!(given.code, 0, "{flags:?}");
        check_silent("an error", &given);
    }
    // Nor can names of files, which are the user's own.
    let given = quick(&["/nowhere/\u{1b}]0;pwned\u{7}.onnx"]);
    assert_eq!(given.code, 7);
    check_silent("a path", &given);
}

/// A model that gives `y` from `x` by these operators of one input.
fn chain(folder: &Folder, ops: &[&str]) -> String {
    let names: Vec<String> = (0..ops.len() - 1).map(|i| format!("v{i}")).collect();
    let from = |i: usize| if i == 0 { "x" } else { &names[i - 1] };
    let to = |i: usize| names.get(i).map_or("y", String::as_str);
    let nodes = ops.iter().enumerate().map(|(i, op)| node(op, from(i), to(i)));
    write(folder, graph(vec![value("x", FLOAT, "3 4")], vec![], nodes.collect(), "y"))
}

#[track_caller]
fn check_warns(model: &str, warning: &str) {
    let given = quick(&[model]);
    assert_eq!(given.code, 0, "{}", given.stderr);
    let lines: Vec<&str> = given.stdout.lines().collect();
    let agrees = lines.iter().position(|line| line.starts_with("fused agrees with library: "));
    let next = lines[agrees.expect("it agrees") + 1];
    assert_eq!(next, format!("  warning: `y` agrees, which says little: {warning}"));
    let report = json(&[model]);
    let told = &report["agreement"][0]["outputs"][0]["warnings"][0];
    assert_eq!(told.as_str(), Some(warning), "{report:#}");
}

/// What says nothing agrees, but not silently.
#[test]
fn vacuous_agreement_is_told() {
    let folder = Folder::new();
    check_warns(
        &chain(&folder, &["Exp", "Neg", "Sqrt"]),
        "12 of 12 elements are NaN on both sides",
    );
    let model = chain(&folder, &["Exp", "Exp", "Exp", "Exp", "Exp", "Exp"]);
    let given = quick(&[&model]);
    assert!(given.stdout.contains("elements are infinite on both sides"), "{}", given.stdout);
    check_warns(&chain(&folder, &["Exp", "Neg", "Relu"]), "all its elements are zero");
    check_warns(&chain(&folder, &["Exp", "Sign"]), "all its elements are 1");
    // Nothing is larger than the tolerance.
    let given = quick(&[&chain(&folder, &["Tanh"]), "--atol", "10"]);
    let vanishes = "warning: `y` agrees, which says little: zeros would agree as well: ";
    assert!(given.stdout.contains(vanishes), "{}", given.stdout);
    // What differs from place to place says something.
    let given = quick(&[&chain(&folder, &["Tanh"])]);
    assert!(!given.stdout.contains("warning"), "{}", given.stdout);
    let line = given.stdout.lines().find(|line| line.starts_with("fused agrees with library: "));
    assert!(line.unwrap().contains(" of the largest value), mean error "), "{}", given.stdout);
}

#[test]
fn what_nobody_gave_is_announced() {
    let given = quick(&["zoo:bert-base-tiny"]);
    let notes = "note: batch=1, sequence=128 assumed; --batch, --seq or --dim give others\n\
                 note: random numbers (seed 0) for input_ids, attention_mask, token_type_ids; --input, --inputs or --data \
                 give others\n";
    assert_eq!(given.stderr, notes);
    let report = json(&["zoo:bert-base-tiny", "--seed", "7", "--seq", "16"]);
    assert_eq!(report["assumed"], serde_json::json!({"batch": 1}));
    assert_eq!((&report["seed"], &report["sizes"]["sequence"]), (&7.into(), &16.into()));
    let (model, data) = fixture("mlp-8x64");
    let given = quick(&[&model, "--data", &data]);
    assert_eq!(given.stderr, "");
    let report = json(&[&model, "--data", &data]);
    assert_eq!((&report["assumed"], &report["seed"]), (&serde_json::json!({}), &Value::Null));
    // Buckets are sizes that somebody gave.
    let report = json(&[MLP, "--buckets", "batch=4,8"]);
    assert_eq!(
        (&report["assumed"], &report["sizes"]["batch"]),
        (&serde_json::json!({}), &4.into())
    );
}

/// The plan is one for the sizes that run: costs are those at a batch of 1, not at a typical one.
#[test]
fn what_is_planned_is_what_runs() {
    let groups = |flags: &[&str]| run(&[&[MLP, "--emit", "groups"], flags].concat()).stdout;
    assert_eq!(groups(&[]), groups(&["--batch", "1"]));
    assert_ne!(groups(&[]), groups(&["--batch", "64"]));
    // Of a sequence that has to be shortened, too.
    let model = &fixture("bert-tiny").0;
    let groups = |flags: &[&str]| run(&[&[model, "--emit", "groups"], flags].concat()).stdout;
    assert_eq!(groups(&[]), groups(&["--batch", "1", "--seq", "64"]));
}

#[test]
fn outputs_can_be_expected_by_name() {
    let folder = Folder::new();
    let (x, y, other) = (folder.path("x.npy"), folder.path("y.npz"), folder.path("other.npz"));
    std::fs::write(&x, npy("<f4", "2, 8", &[0x3e; 64])).unwrap();
    let given = [MLP, "--input", &format!("x=@{x}")];
    let with = |flags: &[&str]| quick(&[&given[..], flags].concat());
    assert_eq!(with(&["--save-outputs", &y]).code, 0);
    let agrees = with(&["--expect", &y]);
    assert_eq!(agrees.code, 0, "{}", agrees.stdout);
    for executor in ["fused", "library"] {
        let line = format!("{executor} agrees with y.npz: ");
        assert!(agrees.stdout.contains(&line), "{}", agrees.stdout);
    }
    // Random inputs have a seed.
    assert_eq!(quick(&[MLP, "--batch", "2", "--save-outputs", &other]).code, 0);
    assert_eq!(quick(&[MLP, "--batch", "2", "--expect", &other]).code, 0);
    let differs = with(&["--expect", &other]);
    assert_eq!(differs.code, 4, "{}", differs.stderr);
    assert!(differs.stdout.contains("fused DIFFERS from other.npz:"), "{}", differs.stdout);
    // A name that no output has is no output of another place.
    let (ids, _) = fixture("lstm");
    let unknown = quick(&[&ids, "--expect", &y]);
    assert_eq!(unknown.code, 2, "{}", unknown.stderr);
    assert!(unknown.stderr.contains("the model has no output `y`; it has "), "{}", unknown.stderr);
    assert_eq!(with(&["--expect", &folder.path("none.npz")]).code, 7);
    // What is read is not overwritten.
    assert_eq!(with(&["--expect", &y, "--save-outputs", &y]).code, 2);
}

#[test]
fn steps_are_bisected_on_the_cpu() {
    let given = quick(&["zoo:bert-base-tiny", "--seq", "8", "--bisect"]);
    assert_eq!(given.code, 0, "{}", given.stderr);
    for executor in ["fused", "library"] {
        let line = given.stdout.lines().find(|line| line.starts_with(&format!("{executor}: ")));
        let line = line.unwrap_or_else(|| panic!("{}", given.stdout));
        assert!(line.ends_with(" steps were compared, and agree with the reference evaluator"));
    }
    // No tolerance is so small that rounding is not seen: the step is named, and where it is.
    let given =
        quick(&["zoo:bert-base-tiny", "--seq", "8", "--bisect", "--rtol", "0", "--atol", "0"]);
    assert_eq!(given.code, 4, "{}", given.stderr);
    assert!(given.stdout.contains("is the first that DIFFERS from the reference evaluator"));
    for row in ["step", "module", "kernel", "nodes", "output", "mismatches"] {
        assert!(given.stdout.contains(&format!("\n  {row} ")), "{row}: {}", given.stdout);
    }
    let report = json(&["zoo:bert-base-tiny", "--seq", "8", "--bisect"]);
    assert_eq!(report["bisection"][0]["against"], "the reference evaluator");
    assert_eq!(report["bisection"][0]["steps"], report["bisection"][0]["compared"]);
    let planned = quick(&[MLP, "--bisect", "--target", "sm_90a"]);
    assert_eq!(planned.code, 2);
    assert!(planned.stderr.starts_with("error: --bisect: the model is only planned"));
}

#[test]
fn values_between_steps_can_be_saved() {
    let folder = Folder::new();
    let (values, archive, outputs) =
        (folder.path("values"), folder.path("values.npz"), folder.path("y.npz"));
    let flags = ["zoo:bert-base-tiny", "--seq", "8", "--exec", "library"];
    let with = |more: &[&str]| quick(&[&flags[..], more].concat());
    let given = with(&["--save-intermediates", &values, "--save-outputs", &outputs]);
    assert_eq!(given.code, 0, "{}", given.stderr);
    assert!(given.stderr.contains(&format!(" values to {values}\n")), "{}", given.stderr);
    let steps = json(&flags)["executors"][0]["launches"].as_u64().unwrap() as usize;
    let files: Vec<_> = std::fs::read_dir(&values).unwrap().map(|e| e.unwrap().path()).collect();
    assert!(files.len() >= steps, "{} files of {steps} steps", files.len());
    let named = |name: &str| files.iter().any(|path| path.ends_with(name));
    assert!(named("encoder.layer.0.attention.self.query.MatMul.npy"), "{files:#?}");
    // The last step's value is the output's.
    assert_eq!(with(&["--save-intermediates", &archive]).code, 0);
    assert!(
        std::fs::metadata(&archive).unwrap().len() > std::fs::metadata(&outputs).unwrap().len()
    );
    // What was saved are the values of another run of the same steps.
    let saved = std::fs::read(&archive).unwrap();
    assert_eq!(with(&["--save-intermediates", &archive]).code, 0);
    assert_eq!(saved, std::fs::read(&archive).unwrap());
    let reference = quick(&[MLP, "--exec", "reference", "--save-intermediates", &archive]);
    assert_eq!(reference.code, 2, "{}", reference.stderr);
}

/// A path that cannot be written is refused before anything is compiled.
#[test]
fn output_paths_are_tried_first() {
    let folder = Folder::new();
    std::fs::create_dir(folder.path("folder")).unwrap();
    for path in [folder.path("folder"), folder.path("none/at/all")] {
        for flag in ["--save-outputs", "--trace", "--report", "--emit"] {
            let value = if flag == "--emit" { format!("groups={path}") } else { path.clone() };
            // No such model is read, as it would be otherwise.
            let given = quick(&["/nowhere.onnx", flag, &value]);
            assert_eq!((given.code, &*given.stdout), (7, ""), "{flag}");
            let said = format!("error: cannot write {path}: ");
            assert!(given.stderr.starts_with(&said), "{flag}: {}", given.stderr);
        }
    }
    // A folder for values is made.
    let values = folder.path("folder/new/values");
    let given = quick(&[MLP, "--save-intermediates", &values, "--json"]);
    assert_eq!(given.code, 0, "{}", given.stderr);
    assert!(std::path::Path::new(&values).is_dir());
    // Trying leaves nothing behind, and a run says what it wrote.
    let page = folder.path("page.html");
    assert_eq!(quick(&["/nowhere.onnx", "--report", &page]).code, 7);
    assert_eq!(folder.files(), ["folder"]);
    let given = quick(&[MLP, "--batch", "1", "--report", &page]);
    assert!(given.stderr.ends_with(&format!("\nwrote {page}\n")), "{}", given.stderr);
}

/// What cannot be written at the end takes nothing of what was found before.
#[test]
#[cfg(target_os = "linux")]
fn measurements_survive_a_file_that_cannot_be_written() {
    let given = quick(&[MLP, "--report", "/dev/full"]);
    assert_eq!(given.code, 7);
    assert!(given.stdout.contains("fused agrees with library"), "{}", given.stdout);
    let said = "error: cannot write /dev/full: No space left on device (os error 28)\n";
    assert!(given.stderr.ends_with(said), "{}", given.stderr);
    let report = json(&[MLP, "--report", "/dev/full"]);
    assert_eq!(report["error"]["kind"], "io");
    assert!(report["executors"][0]["time"]["runs"].as_u64() > Some(0), "{report:#}");
}

/// Starts the command, and sends signals, the first when it has begun to measure; what it gave.
#[cfg(unix)]
fn interrupted(flags: &[&str], signals: &[&str]) -> Given {
    let folder = Folder::new();
    let mut child = Command::new(env!("CARGO_BIN_EXE_graphene-run"))
        .args(flags)
        .args(["--warmup", "0", "--duration", "600s", "--save-outputs", &folder.path("y.npz")])
        .env("CUDA_VISIBLE_DEVICES", "")
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary is built");
    let mut lines = BufReader::new(child.stderr.take().expect("it is a pipe")).lines();
    // The outputs of the first run are written before any run is measured.
    let mut stderr = String::new();
    while !stderr.contains("\nwrote ") {
        let line = lines.next().unwrap_or_else(|| panic!("it ended: {stderr}"));
        stderr += &format!("\n{}", line.expect("it is text"));
    }
    for signal in signals {
        std::thread::sleep(Duration::from_millis(300));
        let id = child.id().to_string();
        let sent = Command::new("kill").args([&format!("-{signal}"), &id]).status();
        assert!(sent.expect("there is kill").success(), "it had ended");
    }
    lines.for_each(|line| stderr += &format!("\n{}", line.expect("it is text")));
    let output = child.wait_with_output().expect("it has ended");
    let stdout = String::from_utf8(output.stdout).expect("output is text");
    Given { code: output.status.code().expect("it ends by itself"), stdout, stderr }
}

#[test]
#[cfg(unix)]
fn a_signal_ends_measuring_and_tells_what_was_found() {
    for (signal, code, name) in [("INT", 130, "SIGINT"), ("TERM", 143, "SIGTERM")] {
        let given = interrupted(&[MLP], &[signal]);
        assert_eq!(given.code, code, "{}", given.stderr);
        let said = format!("interrupted by {name}: what was measured by then");
        assert!(given.stdout.contains(&said), "{}", given.stdout);
        assert!(given.stdout.contains("fused agrees with library"), "{}", given.stdout);
        let runs = given.stdout.lines().find(|line| line.starts_with("  fused "));
        let runs = runs.and_then(|row| row.split("  ").filter(|cell| !cell.is_empty()).nth(3));
        assert!(runs.and_then(|runs| runs.trim().parse().ok()) > Some(0), "{}", given.stdout);
    }
    let given = interrupted(&[MLP, "--json"], &["INT"]);
    let report: Value = serde_json::from_str(&given.stdout).unwrap();
    assert_eq!((&report["interrupted"], &report["exit_code"]), (&"SIGINT".into(), &130.into()));
    assert!(report["executors"][0]["time"]["runs"].as_u64() > Some(0), "{report:#}");
}

/// The first waits for the run that it finds, of some seconds here.
#[test]
#[cfg(unix)]
fn a_second_signal_ends_at_once() {
    let slow =
        ["zoo:bert-base-tiny", "--batch", "512", "--seq", "512", "--exec", "fused", "--json"];
    let given = interrupted(&slow, &["INT", "INT"]);
    assert_eq!(given.code, 130, "{}", given.stderr);
    let failure: Value = serde_json::from_str(&given.stdout).unwrap();
    assert_eq!(failure["error"]["kind"], "interrupted");
    assert_eq!((&failure["error"]["code"], &failure["executors"]), (&130.into(), &Value::Null));
    let said = "error: interrupted while warming up and timing";
    assert!(given.stderr.contains(said), "{}", given.stderr);
}

#[test]
fn requests_side_by_side_are_measured() {
    let measured = |flags: &[&str], times: [&str; 2]| -> Value {
        let times = ["--warmup", "0", "--duration", times[0], "--iterations", times[1], "--json"];
        let given = run(&[flags, &times].concat());
        assert_eq!(given.code, 0, "{}", given.stderr);
        serde_json::from_str(&given.stdout).expect("it is JSON")
    };
    let tiny = ["zoo:bert-base-tiny", "--seq", "8", "--concurrency", "3"];
    let closed = measured(&tiny, ["0", "60"]);
    for (load, executor) in closed["load"].as_array().unwrap().iter().zip(["fused", "library"]) {
        assert_eq!((&load["executor"], &load["contexts"]), (&executor.into(), &3.into()));
        assert!(load["requests"].as_u64() >= Some(60), "{load:#}");
        assert_eq!((&load["rate"], &load["errors"]), (&Value::Null, &serde_json::json!({})));
        assert!(load["requests_per_s"].as_f64().unwrap() > 0.0);
        let percentiles = &load["latency"]["percentiles_ms"];
        assert!(percentiles["50"].is_number() && percentiles["99"].is_null(), "{load:#}");
    }
    assert_eq!(closed["load"].as_array().unwrap().len(), 2);
    let flags = ["zoo:mlp-2x8", "--rate", "200", "--arrivals", "even", "--exec", "fused"];
    let open = measured(&flags, ["500ms", "1"]);
    let load = &open["load"][0];
    assert_eq!((&load["rate"], &load["arrivals"]), (&200.0.into(), &"even".into()));
    // One each five milliseconds, whatever the machine is busy with.
    assert_eq!((&load["requests"], &load["errors"]), (&100.into(), &serde_json::json!({})));
    assert!(load["seconds"].as_f64() > Some(0.49), "{load:#}");
    let given = quick(&[&flags[..], &["--concurrency", "2"]].concat());
    let line = "concurrent requests: 2 contexts, 200 requests a second, at equal distances; times count from when each is due";
    assert!(given.stdout.contains(line), "{}", given.stdout);
    assert_eq!(quick(&[MLP, "--concurrency", "2", "--target", "sm_90a"]).code, 2);
    assert_eq!(quick(&[MLP, "--rate", "0"]).code, 2);
    assert_eq!(quick(&[MLP, "--arrivals", "even"]).code, 2);
}

/// Modules as either exporter of PyTorch names them, and the same number for a step everywhere.
#[test]
fn steps_have_modules_and_one_number() {
    for name in ["bert-tiny", "bert-tiny-dynamo"] {
        let (model, data) = fixture(name);
        let folder = Folder::new();
        let trace = folder.path("trace.json");
        let flags = ["--data", &data, "--profile", "--explain", "--trace", &trace];
        let report = json(&[&[&*model], &flags[..]].concat());
        let steps = report["executors"][0]["profile"].as_array().unwrap();
        let modules: Vec<&str> = steps.iter().filter_map(|step| step["module"].as_str()).collect();
        let layer = modules.iter().find(|module| module.contains("encoder.layer.0.attention"));
        assert!(layer.is_some(), "{name}: {modules:#?}");
        // Each line that explains names two steps, and the value of one of them.
        let program = run(&[&model, "--emit", "program"]).stdout;
        let groups = run(&[&model, "--emit", "groups"]).stdout;
        let trace = read(&trace);
        for (number, step) in steps.iter().enumerate() {
            let name = step["name"].as_str().unwrap();
            let (family, id) = (step["family"].as_str().unwrap(), format!("#{number} "));
            assert_eq!(step["step"], number);
            assert!(program.contains(&format!("  {id}{family} {name:?}")), "{id}{name}: {program}");
            assert!(groups.contains(&format!("{id}{family} {name}")), "{id}{name}: {groups}");
            assert!(trace.contains(&format!("\"{id}")), "{id}{name}");
        }
        let explained = report["explain"].as_array().unwrap();
        assert!(!explained.is_empty());
        for line in explained {
            let line = line.as_str().unwrap();
            let mut numbers = line.split(['#', ' ']).filter_map(|word| word.parse::<usize>().ok());
            let pair = (numbers.next().unwrap(), numbers.next().unwrap());
            assert!(line.starts_with(&format!("#{} -> #{}  ", pair.0, pair.1)), "{line}");
            assert!(pair.0 < pair.1 && pair.1 < steps.len(), "{line}");
        }
    }
}

#[test]
fn no_step_is_beyond_its_roof() {
    let report = json(&["zoo:bert-base-tiny", "--profile"]);
    assert_eq!(report["roof"]["source"], "measured");
    assert!(report["roof"]["gbytes_per_s"].as_f64().unwrap() > 0.1, "{:#}", report["roof"]);
    for executor in report["executors"].as_array().unwrap() {
        for step in executor["profile"].as_array().unwrap() {
            let share = step["roofline"].as_f64().unwrap();
            assert!((0.0..=1.0).contains(&share), "{step:#}");
            let beyond = step["beyond_roof"].as_bool().unwrap_or(false);
            assert!(!beyond || share == 1.0, "{step:#}");
        }
    }
    let given = quick(&["zoo:bert-base-tiny", "--profile"]);
    assert!(given.stdout.contains("roofline rates: measured just now: "), "{}", given.stdout);
}

/// The table of exit codes is that of the help.
#[test]
fn exit_codes_are_in_the_help() {
    let help = run(&["--help"]).stdout;
    for code in ["0", "1", "2", "3", "4", "5", "6", "7", "124", "130", "143"] {
        let is = |line: &str| line.trim_start().starts_with(&format!("{code}  "));
        assert!(help.lines().any(is), "{code}: {help}");
    }
}
