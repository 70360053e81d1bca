//! What can only be seen on a GPU: every atom against its meaning, and kernels against their peers.
//!
//! ```text
//! device [atoms] [products] [speed] [attention] [convolutions] [recurrent] [models] [library]
//! ```
//!
//! Without rows, all of them run. Every row prints lines of JSON on stdout, one a case, and what is wrong on stderr. The exit
//! code is 0 if all that ran is right, 4 if something is not, and 6 without a GPU.

mod atoms;
mod attention;
mod convolutions;
mod data;
mod library;
mod models;
mod products;
mod recurrent;

use std::process::ExitCode;
use std::sync::Arc;

use graphene_runtime::device::Device;

/// A row: its name, and what runs it; it counts what is wrong.
type Row = (&'static str, fn(&Arc<Device>) -> Result<usize, graphene_runtime::Error>);

const ROWS: &[Row] = &[
    ("atoms", |device| atoms::check(device)),
    ("products", |device| products::check(device)),
    ("speed", |device| products::speed(device)),
    ("attention", |device| attention::check(device)),
    ("convolutions", |device| convolutions::check(device)),
    ("recurrent", |device| recurrent::check(device)),
    ("models", models::check),
    ("library", library::check),
];

fn main() -> ExitCode {
    let wanted: Vec<String> = std::env::args().skip(1).collect();
    if let Some(unknown) = wanted.iter().find(|name| ROWS.iter().all(|row| row.0 != **name)) {
        let known: Vec<&str> = ROWS.iter().map(|row| row.0).collect();
        eprintln!("no row `{unknown}`; there are: {}", known.join(", "));
        return ExitCode::from(2);
    }
    let device = match Device::open(0) {
        Ok(device) => Arc::new(device),
        Err(error) => {
            eprintln!("skipped: {error}");
            return ExitCode::from(6);
        }
    };
    eprintln!("on {:?}", device.properties());
    let mut wrong = 0;
    for (name, run) in ROWS {
        if !wanted.is_empty() && !wanted.iter().any(|wanted| wanted == name) {
            continue;
        }
        match run(&device) {
            Ok(found) => wrong += found,
            Err(error) => {
                eprintln!("{name}: {error}");
                wrong += 1;
            }
        }
    }
    if wrong == 0 { ExitCode::SUCCESS } else { ExitCode::from(4) }
}
