//! What can only be seen on a GPU: every atom against its meaning, and kernels against their peers.
//!
//! ```text
//! device [--quick] [atoms] [matmuls] [speed] [single] [sustained] [gated] [attention] [decode] [convolutions] [recurrent]
//! [templates] [models]     [library] [layers] [sdpa]
//! ```
//!
//! Without rows, all of them run; `models=NAME` runs one model of the zoo. `--quick` runs fewer cases and times none, as
//! for a sanitizer. Every row prints lines of JSON on stdout, one a case, and what is wrong on stderr. The exit
//! code is 0 if all that ran is right, 4 if something is not, and 6 without a GPU.

mod atoms;
mod attention;
mod convolutions;
mod data;
mod layers;
mod library;
mod matmuls;
mod models;
#[path = "../../../../graphene/tests/it/near.rs"]
mod near;
mod precision;
mod recurrent;
mod sdpa;
mod templates;

use std::process::ExitCode;
use std::sync::OnceLock;

use graphene_runtime::device::{Device, Stream};

/// A row: its name, and what runs it, of what its argument names if there is one; it counts what is wrong.
type Row = (&'static str, fn(&Stream, Option<&str>) -> Result<usize, graphene_runtime::Error>);

/// Whether few cases are enough, and none is timed.
static QUICK: OnceLock<bool> = OnceLock::new();

fn quick() -> bool {
    QUICK.get().copied().unwrap_or(false)
}

const ROWS: &[Row] = &[
    ("atoms", |stream, _| atoms::check(stream)),
    ("matmuls", |stream, _| matmuls::check(stream)),
    ("speed", |stream, _| matmuls::speed(stream)),
    ("single", |stream, _| matmuls::single(stream)),
    ("sustained", |stream, _| matmuls::sustained(stream)),
    ("cell", |stream, _| matmuls::cell(stream)),
    ("gated", |stream, _| matmuls::gated(stream)),
    ("attention", |stream, _| attention::check(stream)),
    ("decode", |stream, _| attention::decode::check(stream)),
    ("convolutions", |stream, _| convolutions::check(stream)),
    ("recurrent", |stream, _| recurrent::check(stream)),
    ("templates", |stream, _| templates::check(stream)),
    ("models", models::check),
    ("library", |stream, _| library::check(stream)),
    ("layers", |stream, _| layers::check(stream)),
    ("sdpa", |stream, _| sdpa::check(stream)),
];

fn main() -> ExitCode {
    let (flags, wanted): (Vec<String>, Vec<String>) =
        std::env::args().skip(1).partition(|argument| argument.starts_with("--"));
    let named = |wanted: &str| wanted.split_once('=').map_or(wanted, |(row, _)| row).to_owned();
    let unknown = wanted.iter().find(|name| ROWS.iter().all(|row| row.0 != named(name)));
    if let Some(unknown) = unknown.or(flags.iter().find(|flag| *flag != "--quick")) {
        let known: Vec<&str> = ROWS.iter().map(|row| row.0).collect();
        eprintln!("no row or flag `{unknown}`; there are: --quick, {}", known.join(", "));
        return ExitCode::from(2);
    }
    QUICK.get_or_init(|| !flags.is_empty());
    let stream = match Device::open(0).and_then(|device| device.stream()) {
        Ok(stream) => stream,
        Err(error) => {
            eprintln!("skipped: {error}");
            return ExitCode::from(6);
        }
    };
    eprintln!("on {:?}", stream.device().properties());
    let mut wrong = 0;
    for (name, run) in ROWS {
        let asked = wanted.iter().find(|wanted| named(wanted) == *name);
        if !wanted.is_empty() && asked.is_none() {
            continue;
        }
        let argument = asked.and_then(|asked| asked.split_once('=')).map(|(_, argument)| argument);
        match run(&stream, argument) {
            Ok(found) => wrong += found,
            Err(error) => {
                eprintln!("{name}: {error}");
                wrong += 1;
            }
        }
    }
    if wrong == 0 { ExitCode::SUCCESS } else { ExitCode::from(4) }
}
