//! `graphene-opt`: evaluates layouts from the command line.
//!
//! Exit codes: 0 fine; 1 output could not be written; 2 usage or notation; 3 the expression has no
//! answer in the algebra.

mod svg;

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use graphene_ir::Error;
use graphene_ir::layout::expr;

/// Works with Graphene's layouts.
#[derive(Parser)]
#[command(version)]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Evaluates layout algebra in CuTe's notation and function names.
    ///
    /// For example: graphene-opt layout 'composition((6,2):(8,2), (4,3):(3,1))'
    Layout {
        /// The expression.
        #[arg(allow_hyphen_values = true)]
        expression: String,
        /// Draws the offsets as a grid into this file; the first mode runs down the rows.
        #[arg(long, value_name = "FILE")]
        svg: Option<PathBuf>,
    },
}

const INTERNAL: u8 = 1;
const USAGE: u8 = 2;
const ALGEBRA: u8 = 3;

fn main() -> ExitCode {
    match Args::parse().command {
        Command::Layout { expression, svg } => layout(&expression, svg),
    }
}

fn layout(expression: &str, file: Option<PathBuf>) -> ExitCode {
    let value = match expr::evaluate(expression) {
        Ok(value) => value,
        Err(error) => return fail(expression, &error),
    };
    if let Some(file) = file {
        let drawing = match svg::draw(&value) {
            Ok(drawing) => drawing,
            Err(error) => {
                eprintln!("error: {error}");
                return ExitCode::from(ALGEBRA);
            }
        };
        if let Err(error) = std::fs::write(&file, drawing) {
            eprintln!("error: {}: {error}", file.display());
            return ExitCode::from(INTERNAL);
        }
    }
    // A reader that went away, as `| head` does, is no reason to panic.
    match writeln!(std::io::stdout(), "{value}") {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::from(INTERNAL),
    }
}

/// Reports an error, with a caret under its position where it has one.
fn fail(expression: &str, error: &Error) -> ExitCode {
    let Some(at) = error.position() else {
        eprintln!("error: {error}");
        return ExitCode::from(ALGEBRA);
    };
    // Control characters would move the caret away from its column.
    let shown: String = expression.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    let column = expression.get(..at).unwrap_or(expression).chars().count();
    eprintln!("error: {error}\n  {shown}\n  {:>width$}", '^', width = column + 1);
    ExitCode::from(USAGE)
}
