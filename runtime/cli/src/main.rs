//! `graphene-run`: compiles and runs an ONNX model, and compares fused with library execution.
//!
//! In reading order: [`args`] is the command line; [`flow`] is what happens, step by step; [`load`] reads the model;
//! [`sizes`], [`inputs`], [`data`] and [`random`] give it sizes and inputs, within its [`limits`]; [`machine`] opens the
//! device; [`session`] has the runtime plan, compile and run the model; [`blame`] tells whose data was at fault, [`mod@bench`]
//! times it, [`profile`] each step, [`compare`] compares outputs within a [`tolerance`]; [`buckets`] prepares it for several
//! sizes, [`tune`] searches for parameters of kernels that [`tuning`] keeps, [`bisect`] looks for the step that goes wrong,
//! [`gates`] counts launches; [`report`] holds what was found ([`overview`] what needs no run), which [`summary`], [`page`]
//! and [`trace`] show; [`picture`] is what the page draws of the plan.
//!
//! How a model is loaded, sized, bound and run is [`graphene_runtime`]'s to decide.

mod args;
mod bench;
mod bisect;
mod blame;
mod buckets;
mod compare;
mod data;
mod doctor;
mod emit;
mod error;
mod files;
mod flow;
mod gates;
mod human;
mod inputs;
mod limits;
mod load;
mod machine;
mod npy;
mod on_host;
mod overview;
mod page;
mod picture;
mod profile;
mod progress;
mod random;
mod report;
mod session;
mod sizes;
mod summary;
mod tolerance;
mod trace;
mod tune;
mod tuning;
mod work;

use args::Arguments;
use clap::Parser;
use error::Error;
use report::{Failure, Report};
use std::process::ExitCode;
use std::time::Duration;

/// The exit code of a defect.
const INTERNAL: u8 = 1;

fn main() -> ExitCode {
    let arguments = match Arguments::try_parse_from(buckets::spread(std::env::args_os())) {
        Ok(arguments) => arguments,
        Err(error) => {
            // Help goes to stdout, which may not take it; where stderr does not, nothing can be said.
            return match files::printed(error.print()) {
                Err(unwritten) if !error.use_stderr() => fail(&unwritten, false),
                _ => ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(INTERNAL)),
            };
        }
    };
    let json = arguments.report.json;
    if let Some(limit) = arguments.timeout {
        watch(limit, json);
    }
    // A panic is a defect; its message is on stderr by then.
    let result = std::panic::catch_unwind(|| flow::run(&arguments));
    match result {
        Ok(Ok(code)) => ExitCode::from(code),
        Ok(Err(error)) => fail(&error, json),
        Err(_) => ExitCode::from(INTERNAL),
    }
}

/// Says what went wrong, and its exit code.
fn fail(error: &Error, json: bool) -> ExitCode {
    let (text, exit_code) = (error.to_string(), error.code());
    files::complain(&format!("error: {text}"));
    if json {
        let failure = Failure { schema: Report::SCHEMA, error: &text, exit_code };
        // The exit code says it as well.
        let _ = files::print(&failure.json());
    }
    ExitCode::from(exit_code)
}

/// Ends the process when the time is over.
fn watch(limit: Duration, json: bool) {
    std::thread::spawn(move || {
        std::thread::sleep(limit);
        files::abandon();
        let error = Error::Timeout { limit, stage: progress::now() };
        fail(&error, json);
        std::process::exit(i32::from(error.code()));
    });
}
