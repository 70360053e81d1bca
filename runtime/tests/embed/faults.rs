//! What goes wrong: each ends in a right answer or a documented error, and the engine goes on.

use crate::zoo::{Random, engine, inputs, load, run, source};
use graphene_models::{Options, Storage, build};
use graphene_runtime::{Device, Engine, Error, ErrorKind, Input, Source};
use std::fs;
use std::path::PathBuf;

/// A folder that is removed with this.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("graphene-{}-{name}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[test]
fn a_model_file_may_be_cut_and_overwritten_while_it_is_served() {
    let folder = Folder::new("served");
    let zoo = build("bert-base-tiny", &Options::default()).unwrap();
    for (number, storage) in [Storage::Auto, Storage::External].into_iter().enumerate() {
        let path = folder.0.join(format!("model-{number}.onnx"));
        zoo.write_as(&path, storage, &mut |_, _| {}).unwrap();
        let model = engine().load(&path).unwrap();
        let inputs = inputs(&model, &[("batch", 2), ("sequence", 9)], &mut Random(4));
        let mut context = model.context();
        let before = run(&mut context, &inputs).unwrap();
        for file in fs::read_dir(&folder.0).unwrap() {
            let file = file.unwrap().path();
            let length = fs::metadata(&file).unwrap().len();
            let opened = fs::OpenOptions::new().write(true).open(&file).unwrap();
            opened.set_len(length / 2).unwrap();
            fs::write(&file, vec![0xa5; length as usize / 3]).unwrap();
        }
        assert_eq!(run(&mut context, &inputs).unwrap(), before);
        assert_eq!(run(&mut model.context(), &inputs).unwrap(), before);
        let error = engine().load(&path).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Model, "{error}");
    }
    let error = engine().load(folder.0.join("none.onnx")).unwrap_err();
    assert_eq!((error.kind(), error.code()), (ErrorKind::Model, 601), "{error}");
}

#[test]
fn huge_requests_are_refused_before_anything_is_allocated() {
    let engine = Engine::builder().device(Device::Cpu).memory_limit(64 << 20).build().unwrap();
    let model = load(&engine, "bert-base-tiny", |model| model);
    let used = engine.memory_used();
    let error = model.footprint(&[("batch", usize::MAX), ("sequence", 16)]).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Limit | ErrorKind::Request), "{error}");
    let footprint = model.footprint(&[("batch", 1_000_000_000), ("sequence", 16)]);
    let refused = matches!(&footprint, Err(error) if error.kind() == ErrorKind::Limit);
    assert!(refused, "{footprint:?}");
    let mut context = model.context();
    let error = context.bind(&[("batch", 100_000), ("sequence", 16)]).unwrap_err();
    assert_eq!((error.kind(), error.code()), (ErrorKind::Limit, 203), "{error}");
    let nothing: [i64; 0] = [];
    let shape = vec![1; 10_000];
    let strange = [
        Input::new(&nothing, &[1_000_000_000, 16]),
        Input::new(&nothing, &[usize::MAX, usize::MAX]),
        Input::new(&[7_i64], &shape),
        Input::new(&nothing, &[0, 16]),
    ];
    for input in strange {
        let error = context.run(&[input, input, input]).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::Request | ErrorKind::Limit), "{error}");
    }
    assert_eq!(engine.memory_used(), used);
    let inputs = inputs(&model, &[("batch", 1), ("sequence", 16)], &mut Random(4));
    assert!(run(&mut context, &inputs).is_ok());
}

#[test]
fn a_limit_holds_for_all_contexts_together() {
    let probe = engine();
    let model = load(&probe, "bert-base-tiny", |model| model);
    let sizes = [("batch", 4), ("sequence", 64)];
    let footprint = model.footprint(&sizes).unwrap();
    let limit = footprint.weights + 2 * footprint.arena + footprint.inputs + footprint.outputs;
    let engine = Engine::builder().device(Device::Cpu).memory_limit(limit).build().unwrap();
    let model = load(&engine, "bert-base-tiny", |model| model);
    let mut contexts = [model.context(), model.context(), model.context()];
    let inputs = inputs(&model, &sizes, &mut Random(4));
    let [first, second, third] = &mut contexts;
    let expected = run(first, &inputs).unwrap();
    assert_eq!(run(second, &inputs), Ok(expected.clone()));
    let error = run(third, &inputs).unwrap_err();
    assert_eq!(error.code(), 203, "{error}");
    *first = model.context();
    assert_eq!(run(third, &inputs), Ok(expected));
    let small = Engine::builder().device(Device::Cpu).memory_limit(1000).build().unwrap();
    let error = small.model().load_from(&source("bert-base-tiny")).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Limit, "{error}");
}

#[test]
fn what_is_no_model_is_refused() {
    for bytes in [&b"version https://git-lfs.github.com/spec/v1"[..], b"<html>", b""] {
        let error = engine().model().load_bytes(bytes.to_vec()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Model, "{error}");
    }
    let zoo = build("mlp-8x64", &Options::default()).unwrap();
    let error = engine().model().load_from(&Source::bytes(zoo.encode())).unwrap_err();
    assert!(matches!(error, Error::Import(_)), "{error}");
    let error = Engine::builder().device(Device::Cuda(99)).build().unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Device | ErrorKind::Unsupported), "{error}");
}
