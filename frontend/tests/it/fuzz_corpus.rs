//! The checks that the fuzzers make, as a plain test: over the inputs that broke something once (`tests/data/fuzz`),
//! over the suites of ONNX's and onnxruntime's cases, and over a few mutations of each of their models.

use std::fs;
use std::io::Read;
use std::path::Path;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

#[allow(unreachable_pub)] // It is a crate of its own as well.
#[path = "../../fuzz/src/lib.rs"]
mod fuzz;

/// No input may take longer than this.
const LIMIT: Duration = Duration::from_secs(30);

/// Mutations of each of the suite's models.
const MUTATIONS: u64 = 3;

type Inputs = Vec<(String, Vec<u8>)>;

/// The inputs of a folder in `tests/data/fuzz`.
fn corpus(folder: &str) -> Inputs {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/fuzz").join(folder);
    let mut paths: Vec<_> =
        fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    let read = |path: &std::path::PathBuf| (path.display().to_string(), fs::read(path).unwrap());
    paths.iter().map(read).collect()
}

/// The models of the suites.
fn suite() -> Inputs {
    let node: &[u8] = include_bytes!("../data/onnx-node-suite.tar.zst");
    let graphs: &[u8] = include_bytes!("../data/onnxruntime-graphs.tar.zst");
    let contrib: &[u8] = include_bytes!("../data/onnxruntime-contrib.tar.zst");
    let mut models = Vec::new();
    for packed in [node, graphs, contrib] {
        let decoder = ruzstd::decoding::StreamingDecoder::new(packed).unwrap();
        for entry in tar::Archive::new(decoder).entries().unwrap() {
            let mut entry = entry.unwrap();
            let path = entry.path().unwrap().into_owned();
            if path.ends_with("model.onnx") {
                let mut bytes = Vec::new();
                entry.read_to_end(&mut bytes).unwrap();
                models.push((path.display().to_string(), bytes));
            }
        }
    }
    models
}

/// Runs the check on every input; a panic, a silent thread or too few inputs fail.
fn check_all(inputs: Inputs, at_least: usize, check: fn(&[u8])) {
    assert!(inputs.len() >= at_least, "{} inputs, expected {at_least}", inputs.len());
    let (sender, begun) = channel();
    let worker = std::thread::spawn(move || {
        for (name, bytes) in inputs {
            if sender.send(name).is_err() {
                return;
            }
            check(&bytes);
        }
    });
    let last = watch(&begun);
    assert!(worker.join().is_ok(), "{last} breaks a promise");
}

/// Follows the names of inputs at work until there are no more; the last.
fn watch(begun: &Receiver<String>) -> String {
    let mut last = String::new();
    loop {
        match begun.recv_timeout(LIMIT) {
            Ok(name) => last = name,
            Err(RecvTimeoutError::Disconnected) => return last,
            Err(RecvTimeoutError::Timeout) => panic!("{last} takes longer than {LIMIT:?}"),
        }
    }
}

#[test]
fn former_findings_in_models_stay_fixed() {
    check_all(corpus("import"), 1, fuzz::import);
}

#[test]
fn former_findings_in_texts_stay_fixed() {
    check_all(corpus("text"), 1, fuzz::text);
}

#[test]
fn the_suites_keep_every_promise() {
    check_all(suite(), 2000, fuzz::import);
}

#[test]
fn mutated_models_keep_every_promise() {
    let mut mutated = Vec::new();
    for (i, (name, bytes)) in suite().into_iter().enumerate() {
        for k in 0..MUTATIONS {
            let seed = i as u64 * MUTATIONS + k;
            if let Some(bytes) = fuzz::mutate(&bytes, seed) {
                mutated.push((format!("{name}, mutated by seed {seed},"), bytes));
            }
        }
    }
    check_all(mutated, 3000, fuzz::import);
}
