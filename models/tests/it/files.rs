//! Written files hold the model and its weights, or are not there.

use std::fs;
use std::path::Path;

use graphene_frontend::onnx::decode;
use graphene_models::{Options, Storage, ZooError, ZooModel};

use crate::{scratch, zoo};

fn files(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap();
    let mut names: Vec<String> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

fn weights(model: &ZooModel) -> Vec<u8> {
    let mut bytes = vec![0; model.weights().length() as usize];
    model.weights().fill(0, &mut bytes);
    bytes
}

#[test]
fn one_file_has_the_weights_inside() {
    let folder = scratch("inline");
    for name in ["bert-base-tiny", "albert-base-tiny", "lstm-tiny", "fmha"] {
        let model = zoo(name, &Options::default());
        let path = folder.join("model.onnx");
        let mut progress = Vec::new();
        let show = &mut |done, total| progress.push((done, total));
        model.write_as(&path, Storage::Auto, show).unwrap();
        let read = decode(fs::read(&path).unwrap().into()).unwrap();
        let whole = weights(&model);
        // Put back as references, the weights give the model that was built.
        let mut expected = model.model().clone();
        for (tensor, weight) in
            expected.graph.as_mut().unwrap().initializer.iter_mut().zip(model.weights().iter())
        {
            let start = weight.offset() as usize;
            let bytes = whole[start..start + weight.length() as usize].to_vec();
            tensor.raw_data = Some(bytes.into());
            tensor.external_data.clear();
            tensor.data_location = Default::default();
        }
        assert!(read == expected, "{name}");
        if model.weights().length() > 0 {
            let (done, total) = *progress.last().unwrap();
            assert_eq!(done, total);
        }
    }
    assert_eq!(files(&folder), ["model.onnx"]);
}

#[test]
fn external_weights_lie_beside_the_model() {
    let folder = scratch("external");
    let model = zoo("roberta-base-tiny", &Options::default());
    model.write_as(&folder.join("m.onnx"), Storage::External, &mut |_, _| ()).unwrap();
    assert_eq!(files(&folder), ["m.onnx", "m.onnx.data"]);
    assert!(fs::read(folder.join("m.onnx.data")).unwrap() == weights(&model));
    let read = decode(fs::read(folder.join("m.onnx")).unwrap().into()).unwrap();
    for tensor in &read.graph.unwrap().initializer {
        assert_eq!(tensor.external_data[0].value, "m.onnx.data");
        assert_eq!(tensor.raw_data, None);
    }
}

#[test]
fn a_failed_write_leaves_nothing() {
    let folder = scratch("failed");
    let model = zoo("mlp-2x8", &Options::default());
    let missing = model.write(&folder.join("absent").join("m.onnx"));
    assert!(matches!(missing, Err(ZooError::Write { .. })), "{missing:?}");
    assert!(matches!(model.write(Path::new("/")), Err(ZooError::NotAFile(_))));
    // A folder cannot be replaced by a file, which shows only when the draft is complete.
    fs::create_dir_all(folder.join("m.onnx").join("inside")).unwrap();
    let taken = model.write(&folder.join("m.onnx"));
    assert!(matches!(taken, Err(ZooError::Write { .. })), "{taken:?}");
    assert_eq!(files(&folder), ["m.onnx"]);
}

#[test]
#[cfg(unix)]
fn devices_are_not_replaced() {
    let folder = scratch("device");
    // Behind a link, so that a writer that replaces what it is given would replace the link alone.
    let path = folder.join("device");
    std::os::unix::fs::symlink("/dev/zero", &path).unwrap();
    let error = zoo("lstm-tiny", &Options::default()).write(&path).unwrap_err();
    assert!(error.to_string().ends_with("it is no regular file"), "{error}");
    assert!(fs::symlink_metadata(&path).unwrap().is_symlink());
    assert_eq!(files(&folder), ["device"]);
}
