//! Files and folders that are no model: what they are, and what to do.

use crate::models::{FLOAT, graph, node, value};
use crate::{Folder, quick};
use graphene_frontend::onnx::{
    ModelProto, OperatorSetIdProto, StringStringEntryProto, TensorProto, encode,
};
use std::fs;

/// A model whose weight is in a file of its own.
fn with_external(location: &str) -> Vec<u8> {
    let entry =
        |key: &str, value: &str| StringStringEntryProto { key: key.into(), value: value.into() };
    let weight = TensorProto {
        name: "w".into(),
        dims: vec![4],
        data_type: FLOAT,
        data_location: 1,
        external_data: vec![
            entry("location", location),
            entry("offset", "0"),
            entry("length", "16"),
        ],
        ..Default::default()
    };
    let graph =
        graph(vec![value("x", FLOAT, "n 4")], vec![weight], vec![node("Add", "x w", "y")], "y");
    let opset = OperatorSetIdProto { domain: String::new(), version: 18 };
    let (ir_version, opset_import) = (8, vec![opset]);
    encode(&ModelProto { ir_version, opset_import, graph: Some(graph), ..Default::default() })
        .to_vec()
}

/// The local header of a zip archive's first file.
fn zip(name: &str) -> Vec<u8> {
    let mut bytes = b"PK\x03\x04".to_vec();
    bytes.extend([0; 22]);
    bytes.extend((name.len() as u16).to_le_bytes());
    bytes.extend([0, 0]);
    bytes.extend(name.as_bytes());
    bytes.extend([0; 64]);
    bytes
}

fn safetensors() -> Vec<u8> {
    let mut bytes = 2_u64.to_le_bytes().to_vec();
    bytes.extend(b"{}        ");
    bytes
}

const LFS: &[u8] = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n";

/// Files by what they hold, and what is said of each.
fn rows() -> Vec<(&'static str, Vec<u8>, &'static str)> {
    let model = with_external("w.bin");
    vec![
        ("empty", vec![], "it is empty; copy or export it again"),
        (
            "pointer",
            LFS.to_vec(),
            "it is a git-LFS pointer, not the file itself; `git lfs pull` in its folder fetches it",
        ),
        (
            "page",
            b"\n<!doctype HTML>\n<p>Sign in".to_vec(),
            "it is an HTML page, as a download that failed leaves; download it again; Hugging Face has files at /resolve/ and their pages at /blob/",
        ),
        ("packed", b"\x1f\x8b\x08\0\0\0\0\0".to_vec(), "it is packed by gzip; unpack it by gunzip"),
        (
            "checkpoint",
            zip("archive/data.pkl"),
            "it is a PyTorch checkpoint (.pt), not ONNX; export the model by torch.onnx.export",
        ),
        ("archive", zip("model.onnx"), "not an ONNX model: it is a zip archive; unpack it"),
        (
            "pickle",
            b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.".to_vec(),
            "it is a Python pickle, as older PyTorch checkpoints (.pt) are, not ONNX; export the model by torch.onnx.export",
        ),
        (
            "safetensors",
            safetensors(),
            "it is a safetensors file, which has weights but no graph; export the model: `optimum-cli export onnx --model FOLDER OUT/`",
        ),
        (
            "saved-model",
            b"\x08\x01\x12\x90\x01\x0a\x8d\x01\x0a\0".to_vec(),
            "it is a TensorFlow SavedModel, not ONNX; `python -m tf2onnx.convert --saved-model FOLDER --output model.onnx` converts it",
        ),
        (
            "keras",
            b"\x89HDF\r\n\x1a\n\0\0".to_vec(),
            "it is an HDF5 file, as Keras models (.h5) are, not ONNX; `model.export(\"model.onnx\", format=\"onnx\")` exports it",
        ),
        (
            "lite",
            b"\x1c\0\0\0TFL3\0\0".to_vec(),
            "it is a TensorFlow Lite model, not ONNX; `python -m tf2onnx.convert --tflite FILE --output model.onnx` converts it",
        ),
        (
            "ort",
            b"\x20\0\0\0ORTM\0\0".to_vec(),
            "it is in onnxruntime's own format; give the .onnx file that it was made of",
        ),
        (
            "gguf",
            b"GGUF\x03\0\0\0".to_vec(),
            "it is a GGUF file, as llama.cpp takes it, not ONNX; export the model that it was made of",
        ),
        (
            "openvino",
            b"<?xml version=\"1.0\"?><net/>".to_vec(),
            "it is XML, as OpenVINO's models are, not ONNX; give the .onnx file that it was made of",
        ),
        (
            "truncated",
            model[..model.len() - 20].to_vec(),
            "not an ONNX model: it is truncated, at least 16 B are missing at its end; copy or download it again",
        ),
        ("text", b"all: build\n".to_vec(), "not an ONNX model: it is a text file"),
        (
            "noise",
            b"\xff\xff\xff\xff\x01\x02".to_vec(),
            "not an ONNX model: its bytes are of another format",
        ),
    ]
}

#[test]
fn files_that_are_no_model_are_told_what_they_are() {
    let folder = Folder::new();
    for (name, bytes, reason) in rows() {
        fs::write(folder.path(name), bytes).unwrap();
        let given = quick(&[&folder.path(name)]);
        assert_eq!(given.stderr, format!("error: {}: {reason}\n", folder.path(name)));
        assert_eq!((given.code, &*given.stdout), (3, ""), "{name}");
    }
}

#[test]
fn folders_without_a_model_are_told_what_is_in_them() {
    let lacks = "it holds neither model.onnx nor onnx/model.onnx";
    let weights = "model.safetensors: it is a safetensors file, which has weights but no graph; export the model: \
                   `optimum-cli export onnx --model FOLDER OUT/`";
    let rows: [(&str, Vec<u8>, String); 4] = [
        ("model.safetensors", safetensors(), format!("{lacks}; {weights}")),
        (
            "pytorch_model.bin",
            zip("archive/data.pkl"),
            format!(
                "{lacks}; pytorch_model.bin: it is a PyTorch checkpoint (.pt), not ONNX; export the model by torch.onnx.export"
            ),
        ),
        (
            "weights.bin",
            LFS.to_vec(),
            format!(
                "{lacks}; weights.bin: it is a git-LFS pointer, not the file itself; `git lfs pull` in its folder fetches it"
            ),
        ),
        ("notes.txt", b"nothing".to_vec(), lacks.to_owned()),
    ];
    let check = |folder: &Folder, reason: &str| {
        let given = quick(&[&folder.path("")]);
        assert_eq!(given.stderr, format!("error: {}: {reason}\n", folder.path("")));
        assert_eq!((given.code, &*given.stdout), (3, ""));
    };
    for (name, bytes, reason) in rows {
        let folder = Folder::new();
        fs::write(folder.path(name), bytes).unwrap();
        check(&folder, &reason);
    }
    check(&Folder::new(), &format!("{lacks}, nor any other file"));
}

#[test]
fn missing_weights_are_told_with_where_they_have_to_be() {
    let folder = Folder::new();
    let (model, data) = (folder.path("model.onnx"), folder.path("model.onnx.data"));
    fs::write(&model, with_external("model.onnx.data")).unwrap();
    let check = |expected: String| {
        let given = quick(&[&model]);
        assert_eq!((given.code, given.stderr), (3, expected));
    };
    check(format!(
        "error: {model}: weight `w` is in `model.onnx.data`, which is missing: it must stand beside the model, as {data}\n"
    ));
    fs::write(&data, &LFS[..14]).unwrap();
    check(format!(
        "error: {data}: it has 14 B, but weight `w` ends at 16 B: it is truncated, or of another model\n"
    ));
    fs::write(&data, "").unwrap();
    check(format!("error: {data}: it is empty; copy or export it again\n"));
    fs::write(&data, [0; 16]).unwrap();
    assert_eq!(quick(&[&model]).code, 0);
}
