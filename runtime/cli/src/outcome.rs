//! The end of the command: the summary whatever else fails, the files, and the exit code.

use crate::args::Arguments;
use crate::error::Error;
use crate::exit::Exit;
use crate::report::{Failure, Report};
use crate::{files, interrupt, summary};

/// Tells what was found, also where that is not all, and has `write` write it to files; the exit code.
///
/// # Errors
/// That of the run, if it has found nothing; [`Error::Output`].
pub(crate) fn tell(
    arguments: &Arguments,
    mut report: Report,
    ran: Result<(), Error>,
    write: impl FnOnce(&Report) -> Vec<Error>,
) -> Result<u8, Error> {
    let said = match ran {
        Err(error) if !report.tells_something() => return Err(error),
        Err(error) => {
            report.error.get_or_insert(Failure::of(&error));
            format!("error: {error}")
        }
        Ok(()) => String::new(),
    };
    report.interrupted = interrupt::came().map(interrupt::Signal::name);
    report.exit_code = exit(&report).code();
    if arguments.report.json {
        files::complain(&said);
        note(&mut report, write);
        return files::print(&report.json()).map(|()| report.exit_code);
    }
    // A stage on stdout is for a reader that wants nothing else.
    let printed = match arguments.emits_to_stdout() {
        true => {
            files::complain(summary::verdicts(&report).trim());
            Ok(())
        }
        false => files::print(&summary::summary(&report)),
    };
    files::complain(&said);
    note(&mut report, write);
    printed.map(|()| report.exit_code)
}

/// Writes files, says what could not be written, and notes it in the report.
fn note(report: &mut Report, write: impl FnOnce(&Report) -> Vec<Error>) {
    write(report).iter().for_each(|error| add(report, error));
    report.exit_code = exit(report).code();
}

/// Notes that something could not be written, which ends nothing; other errors are given back.
///
/// # Errors
/// Those that are no fault of a file.
pub(crate) fn keep(report: &mut Report, written: Result<(), Error>) -> Result<(), Error> {
    match written {
        Err(error) if error.exit() == Exit::Io => {
            add(report, &error);
            Ok(())
        }
        written => written,
    }
}

/// Says what could not be written; the first of these is the report's error.
fn add(report: &mut Report, error: &Error) {
    files::complain(&format!("error: {error}"));
    report.error.get_or_insert(Failure::of(error));
}

/// How the command ends: by an error, a signal, or what was found.
fn exit(report: &Report) -> Exit {
    let failed = report.error.as_ref();
    let failed = failed.and_then(|error| Exit::ALL.into_iter().find(|e| e.code() == error.code));
    let stopped = || interrupt::came().map(interrupt::Signal::exit);
    match (failed.or_else(stopped), report.differs(), report.gate_failed()) {
        (Some(exit), _, _) => exit,
        (None, true, _) => Exit::Differ,
        (None, false, true) => Exit::Gate,
        (None, false, false) => Exit::Fine,
    }
}
