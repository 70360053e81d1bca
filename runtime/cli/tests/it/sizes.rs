//! Sizes of dynamic dims: from inputs that are given, from flags, by default.

use crate::fixtures::fixture;
use crate::models::{FLOAT, graph, node, npy, value, write, zeros};
use crate::{Folder, json, quick};
use graphene_frontend::onnx::{AttributeProto, AttributeType};
use std::io::Write;
use zip::ZipWriter;
use zip::write::SimpleFileOptions;

/// A model whose import asks for the sizes of both dims: they may differ.
fn sum(folder: &Folder) -> String {
    let inputs = vec![value("x", FLOAT, "p"), value("z", FLOAT, "q")];
    write(folder, graph(inputs, vec![], vec![node("Add", "x z", "y")], "y"))
}

#[track_caller]
fn check_says(arguments: &[&str], code: i32, message: &str) {
    let given = quick(arguments);
    assert_eq!((given.code, given.stderr), (code, format!("error: {message}\n")));
}

/// The sizes of given inputs are those that a specialised import takes, whichever flag gives them.
#[test]
fn inputs_size_specialised_imports() {
    let folder = Folder::new();
    let model = sum(&folder);
    let unsized_dims = "the model has dims without a size: `p`, `q`; pass --dim p=N --dim q=N";
    check_says(&[&model], 2, unsized_dims);

    let (x, z) = (zeros(&folder, "x", "3,", 3), zeros(&folder, "z", "3,", 3));
    let report = json(&[&model, "--input", &x, "--input", &z]);
    assert_eq!(report["outputs"][0]["shape"], serde_json::json!([3]), "{report:#}");

    let archive = folder.path("x.npz");
    let mut zip = ZipWriter::new(std::fs::File::create(&archive).unwrap());
    for name in ["x.npy", "z.npy"] {
        zip.start_file(name, SimpleFileOptions::default()).unwrap();
        zip.write_all(&npy("<f4", "1,", &[0; 4])).unwrap();
    }
    zip.finish().unwrap();
    let report = json(&[&model, "--inputs", &archive]);
    assert_eq!(report["outputs"][0]["shape"], serde_json::json!([1]), "{report:#}");

    // Tensor messages: one dim of 2, f32, eight bytes of data. Their names are none, so their order counts.
    let data = Folder::new();
    for file in ["input_0.pb", "input_1.pb"] {
        let message = [&[0x08, 2, 0x10, 1, 0x4a, 8][..], &[0; 8]].concat();
        std::fs::write(data.path(file), message).unwrap();
    }
    let report = json(&[&model, "--data", &data.path("")]);
    assert_eq!(report["outputs"][0]["shape"], serde_json::json!([2]), "{report:#}");
}

#[test]
fn sizes_that_contradict_name_both_origins() {
    let folder = Folder::new();
    let model = sum(&folder);
    let x = zeros(&folder, "x", "3,", 3);
    let is = format!("it is 3 by input `x` from {}", folder.path("x.npy"));
    let row = |flags: &[&str], message: &str| {
        let all = [&[&model, "--input", &x], flags].concat();
        check_says(&all, 2, message);
    };
    row(&["--dim", "p=4"], &format!("--dim: dimension `p` cannot be 4: {is}"));
    row(&["--batch", "4", "--dim", "q=3"], &format!("--batch: dimension `p` cannot be 4: {is}"));
    row(&["--dim", "r=4"], "--dim r: the model has no such dim; it has p (--batch), q");
    // One that repeats what the input says is fine, and the other dim is still asked for.
    row(&["--dim", "p=3"], "the model has dims without a size: `q`; pass --dim q=N");
    let report = json(&[&model, "--input", &x, "--batch", "3", "--dim", "q=3"]);
    assert_eq!(report["outputs"][0]["shape"], serde_json::json!([3]), "{report:#}");

    let inputs = vec![value("x", FLOAT, "p"), value("z", FLOAT, "p")];
    let model = write(&folder, graph(inputs, vec![], vec![node("Add", "x z", "y")], "y"));
    let (z, path) = (zeros(&folder, "z", "4,", 4), folder.path("z.npy"));
    let message = format!("input `z` from {path}: dimension `p` cannot be 4: {is}");
    check_says(&[&model, "--input", &x, "--input", &z], 2, &message);
}

/// A decoder's first step has no past: the model is imported for that size alone.
#[test]
fn dims_may_be_empty() {
    let folder = Folder::new();
    let inputs = vec![value("past", FLOAT, "p 8"), value("x", FLOAT, "q 8")];
    let mut present = node("Concat", "past x", "y");
    let of_rows = AttributeProto { name: "axis".into(), ..Default::default() };
    present.attribute.push(AttributeProto { r#type: AttributeType::Int.into(), ..of_rows });
    let model = write(&folder, graph(inputs, vec![], vec![present], "y"));
    let flags = ["--dim", "p=0", "--dim", "q=3", "--exec", "fused,library,reference"];
    let report = json(&[&[&model[..]], &flags[..]].concat());
    assert_eq!(report["outputs"][0]["shape"], serde_json::json!([3, 8]), "{report:#}");
    assert_eq!(report["model"]["specialised"], "p=0");
    assert_eq!(report["exit_code"], 0, "{report:#}");
}

/// Nothing in gives nothing out: a size of zero is one like any other where the operations have a meaning for it.
#[test]
fn inputs_may_be_empty() {
    let folder = Folder::new();
    let (x, y) = (zeros(&folder, "x", "0, 8", 0), folder.path("y.npz"));
    let flags = ["zoo:mlp-2x8", "--input", &x, "--exec", "fused,library,reference"];
    let report = json(&[&flags[..], &["--save-outputs", &y]].concat());
    assert_eq!(report["outputs"][0]["shape"], serde_json::json!([0, 8]), "{report:#}");
    assert_eq!(report["model"]["specialised"], "batch=0");
    let agrees: Vec<_> =
        report["agreement"].as_array().unwrap().iter().map(|entry| &entry["agrees"]).collect();
    assert_eq!(agrees, [true, true]);
    assert!(std::path::Path::new(&y).exists());

    // A batch of no rows beside a sequence of some, planned for a GPU as well.
    let (model, _) = fixture("bert-tiny");
    let ids = npy("<i8", "0, 8", &[]);
    std::fs::write(folder.path("ids.npy"), ids).unwrap();
    let ids = format!("input_ids=@{}", folder.path("ids.npy"));
    let report = json(&[&model, "--input", &ids, "--exec", "fused,library,reference"]);
    assert_eq!(report["exit_code"], 0, "{report:#}");
    assert_eq!(report["outputs"][0]["shape"][0], 0, "{report:#}");
    let given = quick(&[&model, "--input", &ids, "--target", "sm_90a", "--emit", "cuda"]);
    assert_eq!(given.code, 0, "{}", given.stderr);

    // No index is that of the largest of no elements.
    let inputs = vec![value("x", FLOAT, "p 8")];
    let model = write(&folder, graph(inputs, vec![], vec![node("ArgMax", "x", "y")], "y"));
    let given = quick(&[&model, "--input", &x]);
    assert_eq!(given.code, 3, "{}", given.stdout);
    assert!(given.stderr.contains("`y` (ArgMax)"), "{}", given.stderr);
}

/// The shape of data stands in for one that the model does not say.
#[test]
fn inputs_of_unknown_rank_take_the_shape_of_their_data() {
    let folder = Folder::new();
    let inputs = vec![value("x", FLOAT, "?"), value("z", FLOAT, "p 4")];
    let model = write(&folder, graph(inputs, vec![], vec![node("Add", "x z", "y")], "y"));
    let given = quick(&[&model]);
    assert_eq!(given.code, 3, "{}", given.stdout);
    assert!(given.stderr.contains("its input `x` has no shape"), "{}", given.stderr);
    let x = zeros(&folder, "x", "3, 4", 12);
    let report = json(&[&model, "--input", &x, "--dim", "p=3"]);
    assert_eq!(report["inputs"][0]["type"], "f32[3, 4]", "{report:#}");
    assert_eq!(report["outputs"][0]["shape"], serde_json::json!([3, 4]));
}

#[test]
fn buckets_are_prepared_and_timed() {
    let report = json(&["zoo:bert-base-tiny", "--buckets", "batch=1,2", "seq=4,8"]);
    let buckets = report["buckets"].as_array().unwrap();
    let sizes: Vec<_> = buckets.iter().map(|bucket| bucket["sizes"].to_string()).collect();
    assert_eq!(sizes.len(), 4, "{sizes:?}");
    assert!(sizes[1].contains("1") && sizes[1].contains("8"), "{sizes:?}");
    for bucket in buckets {
        let times = bucket["times"].as_array().unwrap();
        let names: Vec<_> = times.iter().map(|time| time["executor"].as_str().unwrap()).collect();
        assert_eq!(names, ["fused", "library"]);
        assert!(times.iter().all(|time| time["median_ms"].as_f64().unwrap() > 0.0));
    }
    // The run itself is at one of them: the first, or the one asked for.
    assert_eq!(report["inputs"][0]["shape"], serde_json::json!([1, 4]));
    let report = json(&["zoo:bert-base-tiny", "--batch", "2", "--buckets", "batch=1,2"]);
    assert_eq!(report["inputs"][0]["shape"], serde_json::json!([2, 128]));
}

/// Between buckets a run is padded where that is exact: what comes of it is compared with the reference at its own
/// sizes.
#[test]
fn sizes_between_buckets_run_padded() {
    let buckets = ["--buckets", "batch=2,4", "seq=8,16"];
    let flags = [&["zoo:bert-base-tiny", "--batch", "3", "--seq", "11"], &buckets[..]].concat();
    let report = json(&[&flags[..], &["--exec", "fused,library,reference"]].concat());
    assert_eq!(report["exit_code"], 0, "{report:#}");
    assert_eq!(report["inputs"][0]["shape"], serde_json::json!([3, 11]));
    let agreement = report["agreement"].as_array().unwrap();
    assert_eq!(agreement.len(), 2);
    assert!(
        agreement.iter().all(|entry| entry["against"] == "reference" && entry["agrees"] == true)
    );
    let note = "batch=3, sequence=11 runs padded, at batch=4, sequence=16; outputs are cut to what was asked for";
    assert!(report["notes"].as_array().unwrap().iter().any(|found| found == note), "{report:#}");
    // Below the smallest as well, and alike for what files give.
    let (model, data) = fixture("bert-tiny");
    let report = json(&[&model, "--data", &data, "--buckets", "batch=32", "seq=64"]);
    assert_eq!(report["exit_code"], 0, "{report:#}");
    assert!(report["notes"].to_string().contains(" runs padded, at batch=32, sequence=64; "));
}

#[test]
fn buckets_may_stand_before_the_model() {
    for flags in [&["--buckets", "batch=1,2", "seq=4,8"][..], &["--buckets", "batch=1,2"]] {
        let report = json(&[flags, &["zoo:bert-base-tiny"]].concat());
        let buckets = report["buckets"].as_array().unwrap().len();
        assert_eq!(buckets, 1 << (flags.len() - 1), "{report:#}");
    }
}

#[test]
fn sizes_that_cannot_be_padded_run_as_they_are() {
    let (model, data) = fixture("lstm");
    let report = json(&[&model, "--data", &data, "--buckets", "batch=64", "seq=128"]);
    assert_eq!(report["exit_code"], 0, "{report:#}");
    let notes = report["notes"].to_string();
    assert!(notes.contains("cannot be padded: ") && notes.contains("runs along it"), "{notes}");
}

#[test]
fn sizes_outside_all_buckets_are_refused() {
    let rows: [(&[&str], &str); 4] = [
        (
            &["--batch", "9", "--buckets", "batch=1,8"],
            "--buckets: no bucket holds batch=9; the nearest has batch=8",
        ),
        (&["--buckets", "batch=1", "batch=2"], "--buckets: `batch` is listed twice"),
        (
            &["--buckets", "depth=1"],
            "--buckets depth: the model has no such dim; it has batch (--batch)",
        ),
        (&["--buckets", "batch=1,0"], "`0` is no size of at least 1"),
    ];
    for (flags, message) in rows {
        let given = quick(&[&["zoo:mlp-2x8"], flags].concat());
        assert_eq!(given.code, 2, "{flags:?}");
        assert!(given.stderr.contains(message), "{flags:?}: {}", given.stderr);
    }
}
