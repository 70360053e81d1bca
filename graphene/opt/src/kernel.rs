//! `graphene-opt print`, `verify` and `emit`: what is done with a kernel in text form.

use std::io::{Read, Write};
use std::path::Path;
use std::process::ExitCode;

use graphene_ir::arch::Arch;
use graphene_ir::emit::{self, PASSES, Pass};
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

/// The pass of this name.
pub(crate) fn pass(name: &str) -> Result<&'static Pass, String> {
    let known = || PASSES.iter().map(|pass| pass.name).collect::<Vec<_>>().join(", ");
    PASSES
        .iter()
        .find(|pass| pass.name == name)
        .ok_or_else(|| format!("the passes are {}", known()))
}

/// All passes, a line each.
pub(crate) fn passes() -> String {
    PASSES.iter().map(|pass| format!("{:8} {}\n", pass.name, pass.does)).collect()
}

/// Prints the kernel's source, as it is after a pass if one is named, or its launch.
pub(crate) fn emit(
    mut kernel: Kernel,
    arch: Option<Arch>,
    launch: bool,
    after: Option<&Pass>,
) -> ExitCode {
    kernel.arch = arch.unwrap_or(kernel.arch);
    let text = match after {
        Some(pass) => emit::after(&kernel, pass),
        None => emit::emit(&kernel).map(|emitted| match launch {
            true => emitted.launch.to_string(),
            false => emitted.source,
        }),
    };
    match text {
        Ok(text) => print(&text),
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
