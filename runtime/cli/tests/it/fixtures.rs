//! Models as exporters write them, with outputs that another runtime computed.

use crate::{Folder, json, quick, run};
use std::path::PathBuf;

/// The folders of the models.
fn fixtures() -> Vec<PathBuf> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../frontend/tests/data/fixtures");
    let entries = std::fs::read_dir(folder).expect("the fixtures are there");
    let paths = entries.map(|entry| entry.expect("the folder can be read").path());
    let mut found: Vec<_> = paths.filter(|path| path.join("model.onnx").exists()).collect();
    found.sort();
    assert!(found.len() >= 12, "{found:?}");
    found
}

pub(crate) fn fixture(name: &str) -> (String, String) {
    let folder = fixtures().into_iter().find(|path| path.ends_with(name)).expect("it is there");
    let text = |path: PathBuf| path.to_str().expect("paths are text").to_owned();
    (text(folder.join("model.onnx")), text(folder.join("test_data_set_0")))
}

#[test]
fn outputs_are_those_of_the_files() {
    for folder in fixtures() {
        let (model, data) = (folder.join("model.onnx"), folder.join("test_data_set_0"));
        let paths = [&model, &data].map(|path| path.to_str().expect("paths are text"));
        let report = json(&[paths[0], "--data", paths[1]]);
        assert_eq!(report["exit_code"], 0, "{}: {report:#}", folder.display());
        let agreement = report["agreement"].as_array().unwrap();
        let pairs: Vec<_> =
            agreement.iter().map(|entry| (&entry["executor"], &entry["against"])).collect();
        assert_eq!(
            serde_json::json!(pairs),
            serde_json::json!([
                ["fused", "test_data_set_0"],
                ["library", "test_data_set_0"],
                ["fused", "library"]
            ])
        );
        for entry in agreement {
            assert_eq!(entry["agrees"], true, "{}", folder.display());
            assert!(!entry["outputs"].as_array().unwrap().is_empty(), "{}", folder.display());
        }
    }
}

#[test]
fn random_inputs_are_taken() {
    for folder in fixtures() {
        let model = folder.join("model.onnx");
        let report =
            json(&[model.to_str().expect("paths are text"), "--exec", "fused,library,reference"]);
        assert_eq!(report["exit_code"], 0, "{}: {report:#}", folder.display());
    }
}

#[test]
fn outputs_that_differ_are_code_4() {
    let (model, data) = fixture("mlp-8x64");
    let folder = Folder::new();
    std::fs::copy(format!("{data}/input_0.pb"), folder.path("input_0.pb")).unwrap();
    // The input has the type and sizes of the output, and other elements.
    std::fs::copy(format!("{data}/input_0.pb"), folder.path("output_0.pb")).unwrap();
    let given = quick(&[&model, "--data", &folder.path("")]);
    assert_eq!((given.code, given.stderr.as_str()), (4, ""));
    for line in ["fused DIFFERS from ", "library DIFFERS from ", "fused agrees with library"] {
        assert!(given.stdout.lines().any(|found| found.starts_with(line)), "{}", given.stdout);
    }
    assert!(given.stdout.contains("mismatches   of"), "{}", given.stdout);
    let given = quick(&[&model, "--data", &folder.path(""), "--atol", "1e9"]);
    assert_eq!(given.code, 0);
}

#[test]
fn folders_that_do_not_fit_are_code_2() {
    let (model, _) = fixture("mlp-8x64");
    let (_, data) = fixture("fmha");
    let given = quick(&[&model, "--data", &data]);
    assert_eq!(given.code, 2, "{}", given.stdout);
    assert!(given.stderr.ends_with("4 inputs, but the model has 1\n"), "{}", given.stderr);
    let empty = Folder::new();
    let given = quick(&[&model, "--data", &empty.path("")]);
    assert_eq!(given.code, 2, "{}", given.stdout);
    assert!(given.stderr.contains("holds no input_0.pb and no output_0.pb"), "{}", given.stderr);
    std::fs::copy(format!("{data}/output_0.pb"), empty.path("output_0.pb")).unwrap();
    let given = quick(&[&model, "--data", &empty.path("")]);
    assert_eq!(given.code, 2, "{}", given.stdout);
    assert!(given.stderr.contains("no inputs that they could be of"), "{}", given.stderr);
}

/// A sequence that nobody asked for is shortened to what the table of positions holds.
#[test]
fn sequences_fit_the_model() {
    let (model, _) = fixture("bert-tiny");
    let report = json(&[&model]);
    assert_eq!(report["sizes"]["sequence"], 64, "{report:#}");
    for flags in [&["--emit", "bound"][..], &["--emit", "bound", "--target", "sm_90a"]] {
        let given = run(&[&[&*model], flags].concat());
        let note =
            "note: a sequence of 64, since the model refuses 128; --seq N asks for another\n";
        assert_eq!(given.code, 0, "{}", given.stderr);
        assert!(given.stderr.ends_with(note), "{}", given.stderr);
        let assumed = "note: batch=1, sequence=64 assumed; ";
        assert!(given.stderr.starts_with(assumed), "{}", given.stderr);
        assert!(given.stdout.starts_with("plan batch=1 sequence=64 {\n"), "{}", given.stdout);
    }
}

/// One that somebody asked for is refused alike whether the model runs or is planned, and with the largest possible:
/// positions are a slice of their table, or counted.
#[test]
fn sequences_beyond_the_table_name_the_largest() {
    let (model, _) = fixture("bert-tiny");
    let sliced = "/m/embeddings/position_embeddings/Gather: sequence=128 is too large, sequence=64 is the largest possible";
    let counted = "sequence=600 is too large, sequence=512 is the largest possible: \
                   `/embeddings/position_embeddings/Gather` (Gather) would pick row 601 of 514";
    let rows = [(&*model, "128", sliced), ("zoo:roberta-base-tiny", "600", counted)];
    for (model, length, message) in rows {
        for flags in [&[][..], &["--target", "sm_90a"], &["--emit", "bound"], &["--emit", "groups"]]
        {
            let given = quick(&[&[model, "--seq", length], flags].concat());
            assert_eq!((given.code, &*given.stdout), (2, ""), "{flags:?}: {}", given.stderr);
            assert!(given.stderr.contains(message), "{flags:?}: {}", given.stderr);
        }
    }
    // What fits is taken.
    for target in ["cpu", "sm_90a"] {
        let flags = ["--batch", "1", "--seq", "512", "--target", target, "--emit", "groups"];
        let given = quick(&[&["zoo:roberta-base-tiny"], &flags[..]].concat());
        assert_eq!((given.code, &*given.stderr), (0, ""));
    }
}

/// A folder with fewer outputs than the model has says so; one with an output twice is an error.
#[test]
fn outputs_that_are_not_checked_are_named() {
    let (model, data) = fixture("bert-tiny");
    let folder = Folder::new();
    for file in std::fs::read_dir(data).unwrap().map(|entry| entry.unwrap().path()) {
        std::fs::copy(&file, folder.path(file.file_name().unwrap().to_str().unwrap())).unwrap();
    }
    let data = folder.path(".");
    std::fs::remove_file(folder.path("output_1.pb")).unwrap();
    let given = quick(&[&model, "--data", &data]);
    assert_eq!(given.code, 0, "{}", given.stderr);
    assert!(given.stdout.contains("--data has nothing to check "), "{}", given.stdout);
    std::fs::copy(folder.path("output_0.pb"), folder.path("output_1.pb")).unwrap();
    let given = quick(&[&model, "--data", &data]);
    assert_eq!(given.code, 2, "{}", given.stdout);
    assert!(given.stderr.contains("is there twice"), "{}", given.stderr);
}
