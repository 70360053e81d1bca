//! Model files that somebody truncates, overwrites or replaces, read into memory of the process's own: what is loaded
//! stays as it is, and a load gives what the files held when they were opened, or an error.

use bytes::Bytes;
use graphene_frontend::import::{
    ExternalData, ExternalDataError, ImportError, ImportOptions, ModelFolder, Reading, import,
    read_model,
};
use graphene_frontend::onnx::{
    DataLocation, GraphProto, ModelProto, StringStringEntryProto, TensorProto, encode,
};
use graphene_frontend::tensor::Tensor;
use std::cell::Cell;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

/// Weights of a model, and elements of each; a megabyte and more, so that each has pages to itself.
const WEIGHTS: usize = 3;
const ELEMENTS: usize = 300_000;

/// What somebody does to a file.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Meddling {
    Truncate,
    Overwrite,
    Replace,
    Remove,
}

const ALL: [Meddling; 4] =
    [Meddling::Truncate, Meddling::Overwrite, Meddling::Replace, Meddling::Remove];

impl Meddling {
    fn with(self, file: &Path) {
        let len = fs::metadata(file).unwrap().len();
        let other = vec![0x55; len as usize];
        match self {
            Self::Truncate => {
                File::options().write(true).open(file).unwrap().set_len(len / 4).unwrap();
            }
            Self::Overwrite => fs::write(file, other).unwrap(),
            Self::Replace => {
                fs::write(file.with_extension("new"), other).unwrap();
                fs::rename(file.with_extension("new"), file).unwrap();
            }
            Self::Remove => fs::remove_file(file).unwrap(),
        }
    }
}

/// Weight `number` of a model.
fn weight(number: usize) -> Vec<f32> {
    (0..ELEMENTS).map(|i| (i * 7 + number) as f32).collect()
}

fn bytes(number: usize) -> Vec<u8> {
    weight(number).iter().flat_map(|x| x.to_le_bytes()).collect()
}

/// A model that gives its weights, with these as external data or inside of it.
fn model(files: &[&str]) -> Bytes {
    let tensor = |number: usize| {
        let mut tensor = TensorProto {
            name: format!("w{number}"),
            dims: vec![ELEMENTS as i64],
            data_type: 1,
            ..TensorProto::default()
        };
        let Some(file) = files.get(number % files.len().max(1)) else {
            tensor.raw_data = Some(bytes(number).into());
            return tensor;
        };
        let offset = if files.len() == 1 { number * ELEMENTS * 4 } else { 0 };
        let length = ELEMENTS * 4;
        let entries = [
            ("location", (*file).to_owned()),
            ("offset", offset.to_string()),
            ("length", length.to_string()),
        ];
        let entry =
            |(key, value): (&str, String)| StringStringEntryProto { key: key.into(), value };
        tensor.external_data = entries.map(entry).into();
        tensor.data_location = DataLocation::External as i32;
        tensor
    };
    let initializer: Vec<_> = (0..WEIGHTS.max(files.len())).map(tensor).collect();
    let output = initializer.iter().map(|tensor| graphene_frontend::onnx::ValueInfoProto {
        name: tensor.name.clone(),
        ..Default::default()
    });
    let output = output.collect();
    let graph = GraphProto { initializer, output, ..GraphProto::default() };
    let opset = graphene_frontend::onnx::OperatorSetIdProto { version: 17, ..Default::default() };
    encode(&ModelProto {
        ir_version: 8,
        opset_import: vec![opset],
        graph: Some(graph),
        ..ModelProto::default()
    })
}

/// Writes a model with its weights inside, or in a file beside it; gives the model's path and that of the weights.
fn written(name: &str, is_external: bool) -> (PathBuf, PathBuf) {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("meddled").join(name);
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).unwrap();
    let path = folder.join("model.onnx");
    let data = folder.join("weights.data");
    match is_external {
        true => {
            fs::write(&path, model(&["weights.data"])).unwrap();
            fs::write(&data, (0..WEIGHTS).flat_map(bytes).collect::<Vec<u8>>()).unwrap();
            age(&data);
        }
        false => fs::write(&path, model(&[])).unwrap(),
    }
    age(&path);
    let weights = if is_external { data } else { path.clone() };
    (path, weights)
}

/// Makes a file a minute old: times of writes may be as coarse as some milliseconds.
fn age(file: &Path) {
    let before = SystemTime::now() - Duration::from_secs(60);
    File::options().write(true).open(file).unwrap().set_modified(before).unwrap();
}

/// The weights, as an import gives them.
fn weights(model: Bytes, folder: &dyn ExternalData) -> Result<Vec<Tensor>, ImportError> {
    let graph = import(model, folder, &ImportOptions::default())?.graph;
    let outputs = graph.outputs().iter();
    Ok(outputs.map(|(_, value)| graph.constant(*value).unwrap().clone()).collect())
}

fn assert_right(tensors: &[Tensor]) {
    for (number, tensor) in tensors.iter().enumerate() {
        assert_eq!(tensor.as_slice::<f32>().unwrap(), weight(number), "w{number}");
    }
}

/// A folder in which something happens when so many weights have been read.
struct Meddled<'a> {
    folder: &'a ModelFolder,
    left: Cell<usize>,
    then: &'a dyn Fn(),
}

impl ExternalData for Meddled<'_> {
    fn read(
        &self,
        location: &str,
        offset: u64,
        length: Option<u64>,
    ) -> Result<Bytes, ExternalDataError> {
        if self.left.replace(self.left.get().wrapping_sub(1)) == 0 {
            (self.then)();
        }
        self.folder.read(location, offset, length)
    }
}

#[test]
fn what_is_loaded_stays_as_it_is() {
    for is_external in [false, true] {
        for meddling in ALL {
            let (path, data) = written(&format!("after-{is_external}-{meddling:?}"), is_external);
            let (model, folder) = read_model(&path, Reading::Owned).unwrap();
            let tensors = weights(model, &folder).unwrap();
            drop(folder);
            meddling.with(&data);
            if is_external {
                meddling.with(&path);
            }
            assert_right(&tensors);
        }
    }
}

#[test]
fn a_file_that_changes_while_it_is_read_is_refused_and_one_that_makes_way_for_another_is_not() {
    for is_external in [false, true] {
        for meddling in ALL {
            // Weights in the model are of a file that is open before any of them is read.
            for left in usize::from(is_external)..WEIGHTS {
                let name = format!("while-{is_external}-{meddling:?}-{left}");
                let (path, data) = written(&name, is_external);
                let (model, folder) = read_model(&path, Reading::Owned).unwrap();
                let then = || meddling.with(&data);
                let meddled = Meddled { folder: &folder, left: Cell::new(left), then: &then };
                let outcome = weights(model, &meddled);
                match meddling {
                    Meddling::Replace | Meddling::Remove => assert_right(&outcome.unwrap()),
                    Meddling::Truncate | Meddling::Overwrite => {
                        let error = outcome.unwrap_err().to_string();
                        assert!(error.contains("was changed while it was read"), "{error}");
                    }
                }
            }
        }
    }
}

/// Some exporters write a file for each tensor, more of them than a process may hold open.
#[test]
fn many_files_are_read_and_known_again() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("meddled/many");
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).unwrap();
    let names: Vec<String> = (0..100).map(|number| format!("w{number}")).collect();
    let of = |number: usize| vec![number as u8; 5000];
    for (number, name) in names.iter().enumerate() {
        fs::write(folder.join(name), of(number)).unwrap();
        age(&folder.join(name));
    }
    for reading in [Reading::Owned, Reading::Mapped] {
        let files = ModelFolder::new(&folder, reading);
        let read = |number: usize, range: std::ops::Range<u64>| {
            files.read(&names[number], range.start, Some(range.end - range.start))
        };
        for (number, _) in names.iter().enumerate() {
            assert_eq!(read(number, 0..5000).unwrap(), of(number));
        }
        assert_eq!(files.files().len(), names.len());
        // The last ones are opened anew for each read.
        assert_eq!(read(99, 1..5000).unwrap(), of(99)[1..]);
    }
    let files = ModelFolder::new(&folder, Reading::Owned);
    for name in &names {
        files.read(name, 0, Some(10)).unwrap();
    }
    for number in [0, 99] {
        Meddling::Replace.with(&folder.join(&names[number]));
    }
    assert_eq!(files.read(&names[0], 0, Some(5000)).unwrap(), of(0));
    let changed = files.read(&names[99], 0, Some(5000)).unwrap_err();
    assert_eq!(changed, ExternalDataError::Changed("w99".to_owned()));
}

#[test]
fn tensors_that_share_bytes_in_a_file_share_memory_and_others_do_not() {
    let (path, _) = written("shared", true);
    let folder = ModelFolder::new(path.parent().unwrap(), Reading::Owned);
    let read = |offset, length| folder.read("weights.data", offset, Some(length)).unwrap();
    let (one, same, other) = (read(0, 1 << 20), read(0, 1 << 20), read(1 << 20, 1000));
    assert_eq!(one.as_ptr(), same.as_ptr());
    drop((one, same));
    assert_eq!(other, (0..WEIGHTS).flat_map(bytes).skip(1 << 20).take(1000).collect::<Vec<u8>>());
}

/// A tensor that is in use keeps nothing but itself in memory.
#[test]
fn weights_inside_of_bytes_are_copied_out_of_them() {
    let bytes = model(&[]);
    let tensors = weights(bytes.clone(), &graphene_frontend::import::NoExternalData).unwrap();
    assert_right(&tensors);
    let within = bytes.as_ptr_range();
    assert!(tensors.iter().all(|tensor| !within.contains(&tensor.bytes().as_ptr())));
}

/// A small file cannot be made to take much memory.
#[test]
fn weights_that_overlap_beyond_reason_are_refused() {
    let (path, _) = written("overlapping", true);
    let folder = ModelFolder::new(path.parent().unwrap(), Reading::Owned);
    let read = |number: u64| folder.read("weights.data", 4 * number, Some(3_000_000));
    // What is dropped does not count.
    for number in 0..100 {
        read(number).unwrap();
    }
    let held: Vec<_> = (0..100).map(read).collect();
    let refused = held.iter().position(Result::is_err).unwrap();
    assert!((20..60).contains(&refused), "{refused}");
    assert_eq!(held[refused], Err(ExternalDataError::Overlapping("weights.data".to_owned())));
}
