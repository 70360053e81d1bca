//! The command as its users meet it: the built binary, its output, its exit codes.

mod fixtures;
mod flags;
mod images;
mod manual;
#[cfg(target_os = "linux")]
mod memory;
mod models;
mod numpy;
mod readme;
mod refusals;
mod reports;
mod sizes;
mod stages;
mod steps;
mod suspects;
mod text;
mod trust;

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicU32, Ordering};

/// Flags that make a run short.
const QUICK: [&str; 6] = ["--warmup", "0", "--duration", "0", "--iterations", "2"];

/// What a command gave.
struct Given {
    code: i32,
    stdout: String,
    stderr: String,
}

/// Runs the command with these arguments. What is expected of it is that of the CPU: a GPU, where there is one, is hidden.
fn run(arguments: &[&str]) -> Given {
    let mut command = Command::new(env!("CARGO_BIN_EXE_graphene-run"));
    let output = command.args(arguments).env("CUDA_VISIBLE_DEVICES", "").output();
    let Output { status, stdout, stderr } = output.expect("the binary is built");
    let text = |bytes| String::from_utf8(bytes).expect("output is text");
    Given {
        code: status.code().expect("it ends by itself"),
        stdout: text(stdout),
        stderr: text(stderr),
    }
}

/// Runs the command, shortly.
fn quick(arguments: &[&str]) -> Given {
    run(&[arguments, &QUICK].concat())
}

/// Runs the command shortly, and reads the one JSON object that it prints.
#[track_caller]
fn json(arguments: &[&str]) -> serde_json::Value {
    let given = quick(&[arguments, &["--json"]].concat());
    let parsed = serde_json::from_str(&given.stdout);
    let parsed: serde_json::Value =
        parsed.unwrap_or_else(|error| panic!("{error}: {}{}", given.stdout, given.stderr));
    assert_eq!(parsed["exit_code"], given.code, "{}", given.stderr);
    parsed
}

/// A folder of its own for each test, removed at the end.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path =
            std::env::temp_dir().join(format!("graphene-run-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&path).expect("the temporary folder takes another");
        Self(path)
    }

    fn path(&self, name: &str) -> String {
        self.0.join(name).to_str().expect("the temporary folder's name is text").to_owned()
    }

    /// Names of the files in it, hidden ones too.
    fn files(&self) -> Vec<String> {
        let entries = std::fs::read_dir(&self.0).expect("the folder exists");
        let name = |entry: std::io::Result<std::fs::DirEntry>| {
            entry.expect("the folder can be read").file_name().to_string_lossy().into_owned()
        };
        let mut names: Vec<_> = entries.map(name).collect();
        names.sort();
        names
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // What cannot be removed is left to the system.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn read(path: impl AsRef<Path>) -> String {
    std::fs::read_to_string(path).expect("the file is there")
}
