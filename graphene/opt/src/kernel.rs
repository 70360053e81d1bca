//! `graphene-opt print`, `verify` and `emit`: what is done with a kernel in text form.

use std::io::{Read, Write};
use std::path::Path;
use std::process::ExitCode;

use graphene_ir::arch::Arch;
use graphene_ir::kernel::Kernel;
use graphene_ir::{text, verify as verifier};

use crate::{ALGEBRA, INTERNAL, USAGE, print};

/// Reads a kernel and does something with it.
pub(crate) fn with(file: &Path, work: impl FnOnce(Kernel) -> ExitCode) -> ExitCode {
    let source = match read(file) {
        Ok(source) => source,
        Err(error) => return fail(INTERNAL, &format!("{}: {error}", file.display())),
    };
    match text::parse(&source) {
        Ok(kernel) => work(kernel),
        Err(error) => fail(USAGE, &format!("{}:{error}", file.display())),
    }
}

fn read(file: &Path) -> std::io::Result<String> {
    if file != Path::new("-") {
        return std::fs::read_to_string(file);
    }
    let mut source = String::new();
    std::io::stdin().read_to_string(&mut source)?;
    Ok(source)
}

/// Prints what is wrong with the kernel.
pub(crate) fn verify(kernel: &Kernel) -> ExitCode {
    let findings = verifier::verify(kernel);
    for finding in &findings {
        complain(&finding.to_string());
    }
    if findings.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(ALGEBRA) }
}

/// Prints the kernel's source, or its launch.
pub(crate) fn emit(mut kernel: Kernel, arch: Option<Arch>, launch: bool) -> ExitCode {
    kernel.arch = arch.unwrap_or(kernel.arch);
    match graphene_ir::emit::emit(&kernel) {
        Ok(emitted) if launch => print(&emitted.launch.to_string()),
        Ok(emitted) => print(&emitted.source),
        Err(error) => fail(ALGEBRA, &error.to_string()),
    }
}

/// Reports an error.
pub(crate) fn fail(code: u8, message: &str) -> ExitCode {
    complain(message);
    ExitCode::from(code)
}

/// Prints an error. A reader that went away is no reason to panic.
pub(crate) fn complain(message: &str) {
    writeln!(std::io::stderr(), "error: {message}").ok();
}
