//! `graphene-run`: compiles and runs an ONNX model, and compares fused with library execution.
//!
//! In reading order: [`args`] is the command line, and [`manual`] what is made of it; [`flow`] is what happens, step by step;
//! [`load`] reads the model, which a [`folder`] may hold, and [`suspect`] tells what a file is that is none; [`sizes`],
//! [`inputs`], [`data`], [`mod@text`], [`mod@image`] and [`random`] give it sizes and inputs, within its [`limits`],
//! [`mod@announce`] says which nobody gave, and [`answers`] are what it says of texts and images; [`machine`] opens the device;
//! [`session`] has the runtime plan, compile and run the model; [`blame`] tells whose data was at fault, [`mod@bench`] times it,
//! as steadily as [`noise`] finds, [`profile`] each step, under a [`roof`], and [`traffic`] requests side by side; [`compare`]
//! compares outputs within a [`tolerance`], and [`doubt`] says where that tells little; [`buckets`] prepares it for several
//! sizes, [`tune`] searches for parameters of kernels that [`tuning`] keeps, [`bisect`] looks for the step that goes wrong,
//! [`intermediates`] saves what steps write, [`gates`] counts launches, and [`mod@estimate`] says what steps take at least where
//! nothing runs; [`report`] holds what was found ([`overview`] what needs no run, [`modules`] where in the model, [`invocation`]
//! by which command), which [`summary`], [`page`] and [`trace`] show; [`picture`] is what the page draws of the plan,
//! [`mod@table`] its rows; [`outcome`] prints and writes all of it, and ends with one of the codes of [`mod@exit`], also where a
//! signal says so ([`interrupt`]); [`diff`] compares two results.
//!
//! How a model is loaded, sized, bound and run is [`graphene_runtime`]'s to decide.

mod announce;
mod answers;
mod args;
mod bench;
mod bisect;
mod blame;
mod buckets;
mod compare;
mod data;
mod diff;
mod doctor;
mod doubt;
mod emit;
mod error;
mod estimate;
mod exit;
mod files;
mod flow;
mod folder;
mod gates;
mod human;
mod image;
mod inputs;
mod intermediates;
mod interrupt;
mod invocation;
mod limits;
mod load;
mod machine;
mod manual;
mod modules;
mod noise;
mod npy;
mod on_host;
mod outcome;
mod overview;
mod page;
mod picture;
mod profile;
mod progress;
mod random;
mod report;
mod roof;
mod session;
mod sizes;
mod summary;
mod suspect;
mod table;
mod text;
mod tolerance;
mod trace;
mod traffic;
mod tune;
mod tuning;
mod work;

use args::Arguments;
use clap::Parser;
use error::Error;
use exit::Exit;
use report::Failure;
use std::process::ExitCode;

fn main() -> ExitCode {
    let words = buckets::spread(std::env::args_os());
    let arguments = match Arguments::try_parse_from(&words) {
        Ok(arguments) => arguments,
        Err(error) => return refuse(&error, words.iter().any(|word| word == "--json")),
    };
    let json = arguments.report.json;
    let end = move |error: &Error| {
        files::abandon();
        fail(error, json);
        std::process::exit(i32::from(error.code()));
    };
    if let Some(limit) = arguments.timeout {
        std::thread::spawn(move || {
            std::thread::sleep(limit);
            end(&Error::Timeout { limit, stage: progress::now() });
        });
    }
    interrupt::watch(end);
    // A panic is a defect; its message is on stderr by then.
    let result = std::panic::catch_unwind(|| flow::run(&arguments));
    match result {
        Ok(Ok(code)) => ExitCode::from(code),
        Ok(Err(error)) => fail(&error, json),
        Err(_) => ExitCode::from(Exit::Internal.code()),
    }
}

/// Says why the command line is refused, or gives the help that it asks for; the exit code.
fn refuse(error: &clap::Error, json: bool) -> ExitCode {
    // Help goes to stdout, which may not take it; where stderr does not, nothing can be said.
    if let (Err(unwritten), false) = (files::printed(error.print()), error.use_stderr()) {
        return fail(&unwritten, false);
    }
    if error.use_stderr() && json {
        let text = error.render().to_string();
        let message = text.strip_prefix("error: ").unwrap_or(&text).trim_end().to_owned();
        let (code, kind) = (Exit::Usage.code(), Exit::Usage.kind());
        // The exit code says it as well.
        let _ = files::print(&Failure { code, kind, runtime_code: None, message }.json());
    }
    ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(Exit::Internal.code()))
}

/// Says what went wrong, and its exit code.
fn fail(error: &Error, json: bool) -> ExitCode {
    files::complain(&format!("error: {error}"));
    if json {
        // The exit code says it as well.
        let _ = files::print(&Failure::of(error).json());
    }
    ExitCode::from(error.code())
}
