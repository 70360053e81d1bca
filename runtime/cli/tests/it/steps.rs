//! The table of steps, estimates of what was not run, and comparisons of results.

use crate::models::{graph, node, value, write};
use crate::{Folder, json, quick, read, run};

/// ONNX's number for f64.
const DOUBLE: i32 = 11;

/// The lines of a file of comma-separated values, as cells; no cell has a quote or a line break in it.
fn cells(csv: &str) -> Vec<Vec<String>> {
    let line = |line: &str| {
        let mut cells = vec![String::new()];
        for (i, part) in line.split('"').enumerate() {
            // What stands between two quotes is of one cell.
            let mut parts = part.split(if i % 2 == 0 { "," } else { "\0" });
            cells.last_mut().expect("a cell").push_str(parts.next().unwrap_or_default());
            cells.extend(parts.map(str::to_owned));
        }
        cells
    };
    csv.lines().map(line).collect()
}

#[test]
fn steps_are_written_as_a_table() {
    let folder = Folder::new();
    let path = folder.path("steps.csv");
    let report = json(&["zoo:mlp-2x8", "--csv", &path]);
    let csv = read(&path);
    let [head, row] = &cells(&csv)[..] else { panic!("{csv}") };
    let of = |name: &str| {
        let at = head.iter().position(|head| *head == name);
        row[at.unwrap_or_else(|| panic!("no column {name}: {csv}"))].as_str()
    };
    assert_eq!((of("step"), of("family"), of("estimated")), ("0", "MLP", "false"), "{csv}");
    assert_eq!((of("types"), of("runs_on"), of("falls_back")), ("f32", "CPU", ""), "{csv}");
    let step = &report["executors"][0]["profile"][0];
    for name in ["time_us", "bytes", "flops", "gbytes_per_s", "roofline", "library_us"] {
        let (written, told) = (of(name).parse::<f64>().unwrap(), step[name].as_f64().unwrap());
        assert!((written - told).abs() <= 1e-12 * told, "{name}: {written}, {told}");
    }
}

/// A target whose device is absent: every step has what it takes at least, or why it would fall back.
#[test]
fn plans_have_estimates() {
    let folder = Folder::new();
    let path = folder.path("steps.csv");
    let report = json(&["zoo:bert-base-tiny", "--target", "sm_90a", "--csv", &path]);
    let launch = report["rates"]["launch_us"].as_f64().unwrap();
    for executor in [0, 1] {
        let entry = &report["executors"][executor];
        assert!(entry["time"].is_null() && entry.get("profile").is_none(), "{entry:#}");
        let steps = entry["estimate"].as_array().unwrap();
        assert_eq!(steps.len() as u64, entry["launches"]);
        assert!(steps.iter().all(|step| step["time_us"].as_f64() >= Some(launch)), "{entry:#}");
    }
    let csv = read(&path);
    assert_eq!(
        csv.lines().count() as u64,
        1 + report["executors"][0]["launches"].as_u64().unwrap()
    );
    assert!(csv.lines().skip(1).all(|line| line.contains(",true,")), "{csv}");

    let nodes = vec![node("Exp", "x", "y")];
    let model = write(&folder, graph(vec![value("x", DOUBLE, "3 4")], vec![], nodes, "y"));
    let report = json(&[&model, "--target", "sm_90a", "--exec", "fused", "--csv", &path]);
    assert!(report["executors"][0]["estimate"][0]["time_us"].is_null(), "{report:#}");
    let csv = read(&path);
    assert!(csv.contains(",CPU,no template computes with f64,"), "{csv}");
    // A run takes no estimates.
    let report = json(&["zoo:mlp-2x8"]);
    assert!(report["executors"][0].get("estimate").is_none() && report.get("rates").is_none());
}

#[test]
fn results_say_how_they_were_made() {
    let report = json(&["zoo:mlp-2x8", "--batch", "3"]);
    let command = report["command"].as_str().unwrap();
    assert!(command.starts_with("graphene-run zoo:mlp-2x8 --batch 3 "), "{command}");
    assert_eq!(report["dtype"], "f32");
    let date = report["date"].as_str().unwrap();
    let form: String = date.chars().map(|c| if c.is_ascii_digit() { '0' } else { c }).collect();
    assert_eq!(form, "0000-00-00T00:00:00Z");
    let plan = json(&["zoo:mlp-2x8", "--target", "sm_90a", "--dtype", "f16"]);
    assert_eq!(plan["dtype"], "f16");
}

/// A result as `--json` prints it, in a file; its path.
fn result(folder: &Folder, name: &str, arguments: &[&str]) -> String {
    let path = folder.path(name);
    let given = quick(&[arguments, &["--json"]].concat());
    assert_eq!(given.code, 0, "{}", given.stderr);
    std::fs::write(&path, given.stdout).expect("a file");
    path
}

#[test]
fn results_are_compared_step_by_step() {
    let folder = Folder::new();
    let before = result(&folder, "a.json", &["zoo:bert-base-tiny", "--seq", "8", "--profile"]);
    let after = ["zoo:bert-base-tiny", "--seq", "16", "--profile", "--threads", "1"];
    let after = result(&folder, "b.json", &after);
    let given = run(&["--diff", &before, &after]);
    assert_eq!((given.code, &*given.stderr), (0, ""));
    let said = given.stdout;
    assert!(said.starts_with(&format!("{before} → {after}\n")), "{said}");
    let lines = [
        "  model    zoo:bert-base-tiny\n",
        "DIFFERS: batch=1, sequence=8 → batch=1, sequence=16\n",
    ];
    for line in lines.iter().chain(&["  fused p50 ", "  library arena ", "  fused launches "]) {
        assert!(said.contains(line), "{line:?} is not in {said}");
    }
    assert!(said.contains("15 steps of fused execution in both, 0 new, 0 gone"), "{said}");
    let given = run(&["--diff", &before, &after, "--json"]);
    let diff: serde_json::Value = serde_json::from_str(&given.stdout).unwrap();
    assert_eq!(diff["steps"].as_array().unwrap().len(), 15);
    let step = &diff["steps"][0];
    assert_eq!((&step["status"], &step["step"]["before"]), (&"both".into(), &0.into()));
    assert!(step["time_us"]["before"].as_f64() > Some(0.0), "{step:#}");

    // The same result differs in nothing.
    let given = run(&["--diff", &before, &before]);
    assert!(!given.stdout.contains("DIFFERS"), "{}", given.stdout);
    // What was not timed by steps is compared as a whole.
    let whole = result(&folder, "c.json", &["zoo:bert-base-tiny", "--seq", "8"]);
    let given = run(&["--diff", &before, &whole]);
    assert!(given.stdout.contains("  fused p50 "), "{}", given.stdout);
    let note = format!("note: {whole} has no times of steps: make it with `--json --profile`");
    assert!(given.stdout.contains(&note), "{}", given.stdout);
}

#[test]
fn what_is_no_result_is_refused() {
    let folder = Folder::new();
    let good = result(&folder, "good.json", &["zoo:mlp-2x8"]);
    let failed = folder.path("failed.json");
    let given = quick(&["zoo:mlp-2x8", "--device", "cuda", "--json"]);
    std::fs::write(&failed, given.stdout).unwrap();
    let rows = [
        ("text.json", Some("no json"), "no JSON of ours"),
        ("other.json", Some("{}"), "no result: it has no `schema`"),
        ("newer.json", Some("{\"schema\": 99}"), "schema 99, but this version reads up to"),
        ("failed.json", None, "that run failed: --device cuda:0"),
    ];
    for (name, content, why) in rows {
        let path = folder.path(name);
        if let Some(content) = content {
            std::fs::write(&path, content).unwrap();
        }
        let given = run(&["--diff", &good, &path]);
        assert_eq!((given.code, &*given.stdout), (2, ""), "{name}");
        assert!(given.stderr.contains(&format!("{path}: {why}")), "{}", given.stderr);
    }
    let absent = folder.path("absent.json");
    let given = run(&["--diff", &absent, &good]);
    assert_eq!(given.code, 7);
    assert!(given.stderr.contains(&format!("cannot read {absent}: ")), "{}", given.stderr);
    let page = run(&["--diff", &good, &good, "--report", &good]);
    assert_eq!(page.code, 2);
    assert!(page.stderr.contains("is read, and would be overwritten"), "{}", page.stderr);
    assert_eq!(run(&["--diff", &good]).code, 2);
    assert_eq!(run(&["zoo:mlp-2x8", "--diff", &good, &good]).code, 2);
}
