//! The summary, `--json`, the trace and the page.

use crate::{Folder, json, quick, read};
use expect_test::expect;

/// The summary with its numbers of time and memory left out.
fn steady(text: &str) -> String {
    let line = |line: &str| {
        let line = line.trim_end();
        match line.split_whitespace().next() {
            Some("device" | "compiled") => {
                line.split_whitespace().next().unwrap_or_default().to_owned()
            }
            Some(name @ ("fused" | "library" | "reference")) if line.starts_with("  ") => {
                let launches = line.split_whitespace().nth(1).unwrap_or_default();
                format!("  {name} {launches} …")
            }
            _ if line.contains("launches") => "  launches …".to_owned(),
            Some("fused") if line.ends_with(" library") => "fused is … library".to_owned(),
            _ => line.to_owned(),
        }
    };
    text.lines().map(|text| line(text) + "\n").collect()
}

#[test]
fn summary_says_what_was_run() {
    let given = quick(&["zoo:mlp-2x8", "--batch", "3", "--explain"]);
    let random = "note: random numbers (seed 0) for x; --input, --inputs or --data give others\n";
    assert_eq!(given.stderr, random);
    expect![[r#"
        zoo:mlp-2x8  (opset 17, by graphene-models 0.1.0)
          model        6 operations, 144 parameters (576 B)
          inputs       x f32[3, 8]
          outputs      y f32[3, 8]
        device
        compiled

          launches …
          fused 1 …
          library 6 …

        fused is … library

        rewriting for the fused plan
          2 blocks, 2 unlike the others
          0 chosen by integer programming, 0 by greedy search

        values stored between steps of the fused plan

        fused agrees with library: max error 0 (0 of the largest value), mean error 0, cosine 1.000000
    "#]]
    .assert_eq(&steady(&given.stdout));
}

#[test]
fn json_has_its_fields() {
    let report =
        json(&["zoo:mlp-2x8", "--exec", "fused,library,reference", "--percentiles", "10,99.9"]);
    assert_eq!(report["schema"], 2);
    assert_eq!(report["model"]["name"], "zoo:mlp-2x8");
    assert_eq!(report["model"]["parameters"], 144);
    assert_eq!((&report["sizes"]["batch"], &report["assumed"]["batch"]), (&1.into(), &1.into()));
    assert_eq!((&report["seed"], &report["inputs"][0]["source"]), (&0.into(), &"random".into()));
    assert_eq!(report["inputs"][0]["type"], "f32[batch, 8]");
    assert_eq!(report["inputs"][0]["shape"], serde_json::json!([1, 8]));
    assert!(report["compile_ms"]["total"].as_f64().unwrap() > 0.0);
    let executors = report["executors"].as_array().unwrap();
    let names: Vec<_> = executors.iter().map(|executor| &executor["name"]).collect();
    assert_eq!(names, ["fused", "library", "reference"]);
    assert_eq!(executors[0]["launches"], 1);
    assert_eq!(executors[0]["families"], serde_json::json!({"MLP": 1}));
    assert_eq!(executors[0]["time"]["runs"], 2);
    assert_eq!(executors[2]["time"]["runs"], 1);
    let percentiles = executors[0]["time"]["percentiles_ms"].as_object().unwrap();
    // Of two runs neither is known.
    assert_eq!(percentiles.keys().collect::<Vec<_>>(), ["10", "99.9"]);
    assert!(percentiles.values().all(serde_json::Value::is_null), "{percentiles:?}");
    assert!(report["speedup"].as_f64().unwrap() > 0.0);
    let against: Vec<_> =
        report["agreement"].as_array().unwrap().iter().map(|entry| &entry["against"]).collect();
    assert_eq!(against, ["reference", "reference"]);
    assert_eq!(report["agreement"][0]["outputs"][0]["elements"], 8);
}

#[test]
fn json_tells_of_failures_too() {
    let failure = json(&["zoo:mlp-2x8", "--device", "cuda"]);
    assert_eq!((&failure["exit_code"], &failure["error"]["code"]), (&6.into(), &6.into()));
    assert_eq!(failure["error"]["kind"], "device");
    assert!(failure["error"]["message"].as_str().unwrap().starts_with("--device cuda:0: "));
    let failure = json(&["zoo:mlp-2x8", "--emit", "groups"]);
    let message = "--emit: stdout is taken by --json; give it a path";
    let expected = serde_json::json!({"code": 2, "kind": "usage", "message": message});
    assert_eq!(failure["error"], expected);
    // What clap refuses, before it is known what else is asked for.
    let failure = json(&["zoo:mlp-2x8", "--batchs", "3"]);
    assert_eq!(failure["error"]["kind"], "usage");
    let message = failure["error"]["message"].as_str().unwrap();
    assert!(message.starts_with("unexpected argument '--batchs' found"), "{message}");
    // What the runtime refuses has its number.
    let failure = json(&["zoo:bert-base-tiny", "--dim", "batch=3", "--batch", "4"]);
    assert_eq!(failure["error"]["runtime_code"], 120);
}

#[test]
fn seeds_decide_inputs() {
    let folder = Folder::new();
    let (a, b, c) = (folder.path("a.npz"), folder.path("b.npz"), folder.path("c.npz"));
    for (path, seed) in [(&a, "1"), (&b, "1"), (&c, "2")] {
        assert_eq!(quick(&["zoo:mlp-2x8", "--seed", seed, "--save-outputs", path]).code, 0);
    }
    assert_eq!(std::fs::read(&a).unwrap(), std::fs::read(&b).unwrap());
    assert_ne!(std::fs::read(&a).unwrap(), std::fs::read(&c).unwrap());
}

#[test]
fn traces_and_pages_are_written_whole() {
    let folder = Folder::new();
    let (trace, page) = (folder.path("trace.json"), folder.path("report.html"));
    let given = quick(&["zoo:mlp-2x8", "--trace", &trace, "--report", &page, "--profile"]);
    assert_eq!(given.code, 0, "{}", given.stderr);
    assert!(given.stdout.contains("profile of fused execution: "), "{}", given.stdout);
    assert_eq!(folder.files(), ["report.html", "trace.json"]);
    let trace: serde_json::Value = serde_json::from_str(&read(&trace)).unwrap();
    let events = trace["traceEvents"].as_array().unwrap();
    let of = |category: &str| events.iter().filter(|event| event["cat"] == category).count();
    // Three tracks; fused and library have one step and six.
    assert_eq!((of("__metadata"), of("step")), (3, 1 + 6));
    let steps = events.iter().filter(|event| event["cat"] == "step");
    assert!(steps.clone().all(|event| event["ph"] == "X" && event["dur"].as_f64().unwrap() > 0.0));
    // What a browser makes of it is tested apart, where there is one.
    let page = read(&page);
    assert!(page.starts_with("<!doctype html>") && page.ends_with("</html>\n"));
    assert!(page.contains("fused agrees with library") && !page.contains("{{"), "{page}");
}

/// What library execution takes is told of the fused steps that compute the same nodes, each once.
#[test]
fn the_library_is_beside_each_step() {
    let report = json(&["zoo:bert-base-tiny", "--seq", "8", "--profile"]);
    let of = |executor: usize, field: &str| -> Vec<f64> {
        let steps = report["executors"][executor]["profile"].as_array().unwrap();
        steps.iter().map(|step| step[field].as_f64().unwrap_or(0.0)).collect()
    };
    let (beside, library) = (of(0, "library_us"), of(1, "time_us"));
    assert!(beside.iter().all(|&time| time > 0.0), "{beside:?}");
    let (beside, library): (f64, f64) = (beside.iter().sum(), library.iter().sum());
    assert!((beside - library).abs() < 1e-6 * library, "{beside} of {library}");
    assert!(of(0, "tflops_per_s").iter().sum::<f64>() > 0.0);
    // Weights are packed for the matmuls of fused execution, which its profile says.
    let steps = report["executors"][0]["profile"].as_array().unwrap();
    let mut matmuls = steps.iter().filter(|step| step["family"] == "MatMul");
    assert!(matmuls.any(|step| step["algorithm"] == "packed"), "{steps:?}");
}
