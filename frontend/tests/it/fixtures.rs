//! Models of real exporters: imported, checked, evaluated, and compared with what they should give.

use graphene_frontend::dim::Dim;
use graphene_frontend::dtype::DType;
use graphene_frontend::eval::evaluate;
use graphene_frontend::graph::Graph;
use graphene_frontend::import::{Import, ImportOptions, Reading, import, read_model};
use graphene_frontend::testdata::{compare, read_data_set};
use graphene_frontend::text::print;
use graphene_frontend::verify::verify;
use ruzstd::decoding::StreamingDecoder;
use std::collections::BTreeSet;
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};

pub(crate) fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/fixtures").join(name)
}

fn imported(name: &str) -> Import {
    let (bytes, weights) = read_model(folder(name).join("model.onnx"), Reading::Owned).unwrap();
    let imported = import(bytes, &weights, &ImportOptions::default());
    imported.unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// Operations, inputs and constants aside, that give integers.
fn integer_ops(graph: &Graph) -> BTreeSet<&'static str> {
    let integer = |dtype: DType| dtype.is_integer();
    graph
        .nodes()
        .filter(|(_, node)| node.outputs().iter().any(|ty| integer(ty.dtype)))
        .map(|(_, node)| node.op().name())
        .filter(|name| !["Input", "Constant"].contains(name))
        .collect()
}

fn check_fixture(name: &str, integers: &[&str]) {
    let imported = imported(name);
    let graph = &imported.graph;
    verify(graph).unwrap();
    assert_eq!(
        integer_ops(graph),
        integers.iter().copied().collect(),
        "{name}\n{}",
        print(graph).text
    );
    for (_, node) in graph.nodes() {
        assert!(!["Size", "Iota"].contains(&node.op().name()), "{name}\n{}", print(graph).text);
    }
    let data = read_data_set(&folder(name).join("test_data_set_0")).unwrap();
    let inputs: Vec<_> = data.inputs.into_iter().map(|(_, tensor)| tensor).collect();
    let outputs = evaluate(graph, &inputs).unwrap_or_else(|error| panic!("{name}: {error}"));
    assert_eq!(outputs.len(), data.outputs.len());
    for (output, (_, expected)) in outputs.iter().zip(&data.outputs) {
        let result = compare(output, expected, 1e-3, 1e-4).unwrap();
        assert!(result.agrees(), "{name}: {result}");
    }
}

#[test]
fn shape_arithmetic_leaves_no_trace() {
    let rows: [(&str, &[&str]); 12] = [
        ("bert-tiny", &[]),
        ("bert-tiny-dynamo", &[]),
        ("bert-tiny-opset13", &[]),
        ("bert-tiny-sdpa", &[]),
        ("distilroberta-tiny", &["Add", "Cast", "CumSum", "Mul"]),
        ("fmha", &[]),
        ("layernorm-17", &[]),
        ("layernorm-decomposed", &[]),
        ("lstm", &[]),
        ("lstm-cell-relu", &[]),
        ("mlp-8x64", &[]),
        ("mlp-gelu-4x128", &[]),
    ];
    for (name, integers) in rows {
        check_fixture(name, integers);
    }
}

#[test]
fn dims_given_beforehand_are_in_the_types() {
    let (bytes, weights) =
        read_model(folder("bert-tiny").join("model.onnx"), Reading::Owned).unwrap();
    let mut options = ImportOptions::default();
    options.dims.insert("batch".into(), 2);
    let imported = import(bytes, &weights, &options).unwrap();
    let ids = imported.graph.ty(imported.graph.inputs()[0].value());
    assert_eq!(ids.shape, [Dim::from(2), Dim::symbol("sequence")]);
    assert!(imported.notes.contains(&"dimension `batch` is 2".to_owned()));
}

/// What exporters leave of the machine that ran them: folders of its users and packages, and stack traces.
const TRACES: [&str; 10] = [
    "/root/",
    "/home/",
    "/Users/",
    "/tmp/",
    "/work/",
    "/usr/",
    "/opt/",
    "site-packages",
    "dist-packages",
    "stack_trace",
];

/// All files of test data, those in packs unpacked.
fn visit(folder: &Path, check: &mut dyn FnMut(&Path, &[u8])) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let is = |extension: &str| path.extension().is_some_and(|found| found == extension);
        if path.is_dir() {
            visit(&path, check);
        } else if is("zst") {
            let file = fs::File::open(&path).unwrap();
            let mut bytes = Vec::new();
            StreamingDecoder::new(file).unwrap().read_to_end(&mut bytes).unwrap();
            check(&path, &bytes);
        } else if !is("py") {
            check(&path, &fs::read(&path).unwrap());
        }
    }
}

#[test]
fn fixtures_say_nothing_of_the_machine_that_exported_them() {
    let (mut files, mut bytes) = (0, 0);
    visit(&Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data"), &mut |path, data| {
        for trace in TRACES {
            let found = data.windows(trace.len()).position(|window| window == trace.as_bytes());
            assert_eq!(found, None, "{} holds {trace}", path.display());
        }
        (files, bytes) = (files + 1, bytes + data.len());
    });
    assert!(files > 50 && bytes > 20 << 20, "where are they? {files} files of {bytes} bytes");
}
