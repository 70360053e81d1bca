//! README's commands, run as they are written, give what README shows.

use super::Folder;
use crate::models::npy;
use std::env;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use zip::ZipWriter;
use zip::write::SimpleFileOptions;

/// What stands for the model that README exports from PyTorch.
const FIXTURE: &str = "../../frontend/tests/data/fixtures/mlp-8x64/model.onnx";

/// Cargo's own commands: the tests are run by the one, and the other builds what they run.
const OF_CARGO: [&str; 2] = ["cargo test ", "cargo install "];

/// Code blocks of README of one kind.
fn blocks(kind: &str) -> Vec<String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../README.md");
    let readme = fs::read_to_string(path).expect("README is there");
    let begin = format!("```{kind}\n");
    let parts = readme.split(&begin).skip(1);
    parts.map(|part| part.split("```").next().unwrap_or_default().to_owned()).collect()
}

/// Commands, each with the lines below it.
fn commands(block: &str) -> Vec<(String, String)> {
    let parts = block.split("$ ").skip(1);
    let pair = |part: &str| {
        part.split_once('\n').map(|(command, output)| (command.to_owned(), output.to_owned()))
    };
    parts.filter_map(pair).collect()
}

/// Runs a line of shell in a folder, with the built command on the path and no GPU.
fn shell(line: &str, folder: &Path) -> String {
    let built = Path::new(env!("CARGO_BIN_EXE_graphene-run")).parent().expect("it is in a folder");
    let path = env::var_os("PATH").unwrap_or_default();
    let path = env::join_paths([built.to_owned()].into_iter().chain(env::split_paths(&path)));
    let mut command = Command::new("sh");
    command.args(["-c", line]).current_dir(folder).env("CUDA_VISIBLE_DEVICES", "");
    let given = command.env("PATH", path.expect("paths without colons")).output();
    let Output { status, stdout, stderr } = given.expect("there is a shell");
    assert!(status.success(), "{line}\n{}", String::from_utf8_lossy(&stderr));
    String::from_utf8(stdout).expect("output is text")
}

/// What does not depend on the machine: the words of each line without numbers, units of time, and the device.
fn stable(text: &str) -> Vec<String> {
    let words = |line: &str| {
        if line.starts_with("fused ") && line.ends_with(" library") {
            return "fused is compared with library".to_owned();
        }
        let words = line.split(|c: char| c.is_whitespace() || "(),[]%×".contains(c));
        let kept = words.filter(|word| {
            let counts = word.starts_with(|c: char| c.is_ascii_digit());
            let units = ["ns", "µs", "ms", "s", "B", "kB", "MB", "–"];
            !word.is_empty() && !counts && !units.contains(word)
        });
        kept.collect::<Vec<_>>().join(" ")
    };
    let of_machine = ["device", "timings are noisy"];
    let is_stable = |line: &&str| of_machine.iter().all(|o| !line.trim_start().starts_with(o));
    let lines = text.lines().filter(is_stable);
    lines.map(words).filter(|line| !line.is_empty()).collect()
}

/// Inputs of the fixture and its outputs, as Python would save them: outputs are the reference evaluator's.
fn given_and_expected(root: &Path) {
    let numbers = (0..8 * 64).map(|i| ((i * 37 % 101) as f32 - 50.0) / 50.0);
    let bytes: Vec<u8> = numbers.flat_map(f32::to_le_bytes).collect();
    let mut zip = ZipWriter::new(fs::File::create(root.join("in.npz")).expect("a file"));
    zip.start_file("x.npy", SimpleFileOptions::default()).expect("an archive");
    zip.write_all(&npy("<f4", "8, 64", &bytes)).expect("an archive");
    zip.finish().expect("an archive");
    let record =
        "graphene-run model.onnx --inputs in.npz --exec reference --duration 0 --save-outputs";
    shell(&format!("{record} expected.npz"), root);
}

#[test]
fn commands_of_the_readme_give_what_it_shows() {
    let folder = Folder::new();
    let root = PathBuf::from(folder.path(""));
    let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join(FIXTURE);
    fs::copy(fixture, root.join("model.onnx")).expect("a fixture");
    for (from, to) in [("", "minilm"), ("1_Pooling", "minilm/1_Pooling")] {
        fs::create_dir(root.join(to)).expect("a folder");
        let files = fs::read_dir(crate::text::fixture("encoder/") + from).expect("a fixture");
        let files = files.map(|entry| entry.expect("a file").path());
        for file in files.filter(|path| path.is_file()) {
            fs::copy(&file, root.join(to).join(file.file_name().expect("a name"))).expect("a copy");
        }
    }
    given_and_expected(&root);
    let embed = "graphene-run minilm/ --text 'A fine day.' --exec reference --duration 0";
    shell(&format!("{embed} --save-outputs minilm.npz"), &root);
    let mut count = 0;
    for (command, shown) in blocks("console").iter().flat_map(|block| commands(block)) {
        if OF_CARGO.iter().any(|own| command.starts_with(own)) {
            continue;
        }
        let output = shell(&command.replace("cargo run --release --", "graphene-run"), &root);
        if !shown.trim().is_empty() {
            assert_eq!(stable(&output), stable(&shown), "{command}\n{output}");
        }
        count += 1;
    }
    assert!(count >= 6, "{count} commands");
    assert!(root.join("page.html").is_file());
}

#[test]
fn a_model_is_exported_as_the_readme_says() {
    let there = Command::new("python3").args(["-c", "import numpy, torch, onnx"]).output();
    if !there.is_ok_and(|output| output.status.success()) {
        eprintln!("skipped: Python with numpy, torch and onnx is not here");
        return;
    }
    let folder = Folder::new();
    let root = PathBuf::from(folder.path(""));
    let [export] = &blocks("python")[..] else { panic!("one block is Python's") };
    fs::write(root.join("export.py"), export).expect("a file");
    let run = "graphene-run model.onnx --inputs in.npz --expect expected.npz --duration 0";
    shell(&format!("python3 export.py && {run}"), &root);
}
