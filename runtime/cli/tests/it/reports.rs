//! The summary, `--json`, the trace and the page.

use crate::models::{FLOAT, graph, node, value, write};
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
            _ if line.contains("× as fast") => "fused is …× as fast as library".to_owned(),
            _ => line.to_owned(),
        }
    };
    text.lines().map(|text| line(text) + "\n").collect()
}

#[test]
fn summary_says_what_was_run() {
    let given = quick(&["zoo:mlp-2x8", "--batch", "3", "--explain"]);
    assert_eq!(given.stderr, "");
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

        fused is …× as fast as library

        rewriting for the fused plan
          2 blocks, 2 unlike the others
          0 chosen by programmes, 0 by greed alone

        values stored between steps of the fused plan

        fused agrees with library: max error 0, mean error 0, cosine 1.000000
    "#]]
    .assert_eq(&steady(&given.stdout));
}

/// What is no number on both sides agrees, but not silently.
#[test]
fn summary_says_that_outputs_are_nan() {
    let folder = Folder::new();
    let nodes = [("Exp", "x", "e"), ("Neg", "e", "n"), ("Sqrt", "n", "y")];
    let nodes = nodes.map(|(op, inputs, output)| node(op, inputs, output));
    let model = write(&folder, graph(vec![value("x", FLOAT, "3 4")], vec![], nodes.into(), "y"));
    let given = quick(&[&model]);
    assert_eq!((given.code, &*given.stderr), (0, ""));
    let line = "fused agrees with library: max error 0, mean error 0, cosine 1.000000; 12 of 12 elements are NaN in both\n";
    assert!(given.stdout.contains(line), "{}", given.stdout);
    assert_eq!(json(&[&model])["agreement"][0]["outputs"][0]["nans"], 12);
}

#[test]
fn json_has_its_fields() {
    let report =
        json(&["zoo:mlp-2x8", "--exec", "fused,library,reference", "--percentiles", "10,99.9"]);
    assert_eq!(report["schema"], 1);
    assert_eq!(report["model"]["name"], "zoo:mlp-2x8");
    assert_eq!(report["model"]["parameters"], 144);
    assert_eq!(report["sizes"]["batch"], 1);
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
    assert_eq!(percentiles.keys().collect::<Vec<_>>(), ["10", "99.9"]);
    assert!(report["speedup"].as_f64().unwrap() > 0.0);
    let against: Vec<_> =
        report["agreement"].as_array().unwrap().iter().map(|entry| &entry["against"]).collect();
    assert_eq!(against, ["reference", "reference"]);
    assert_eq!(report["agreement"][0]["outputs"][0]["elements"], 8);
}

#[test]
fn json_tells_of_failures_too() {
    let failure = json(&["zoo:mlp-2x8", "--device", "cuda"]);
    assert_eq!(failure["exit_code"], 6);
    assert!(failure["error"].as_str().unwrap().starts_with("--device cuda:0: "));
    let failure = json(&["zoo:mlp-2x8", "--emit", "groups"]);
    assert_eq!(failure["error"], "--emit: stdout is taken by --json; give it a path");
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
}
