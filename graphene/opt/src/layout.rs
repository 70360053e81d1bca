//! `graphene-opt layout`: evaluates an expression, and draws it.

use std::path::PathBuf;
use std::process::ExitCode;

use graphene_opt::expr::{self, Error};

use crate::{ALGEBRA, INTERNAL, USAGE, print, svg};

pub(crate) fn layout(
    expression: &str,
    file: Option<PathBuf>,
    owners: Option<[i64; 2]>,
) -> ExitCode {
    let value = match expr::evaluate(expression) {
        Ok(value) => value,
        Err(error) => return fail(expression, &error),
    };
    if let Some(file) = file {
        let drawing = match owners {
            Some(grid) => svg::draw_owners(&value, grid),
            None => svg::draw(&value),
        };
        let drawing = match drawing {
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
    print(&format!("{value}\n"))
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
