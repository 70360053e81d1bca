//! Recorded measurements: a table a file, and the page that shows them.

use serde::Deserialize;
use std::fmt::Write;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// One table: what was measured, with what command, when, and where.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Table {
    title: String,
    command: String,
    date: String,
    machine: String,
    columns: Vec<String>,
    rows: Vec<Vec<String>>,
    notes: Vec<String>,
}

const HEAD: &str = "# Results

Every table has the command that repeats it, its date and its machine. Times are medians; a ratio is our time over the
peer's from the same run, so below 1 is faster. What is slow stands beside what is fast.

(Written by `cargo run -p graphene-benches --bin results` from the tables of `results/`.)
";

/// The page of all tables of a folder, in the order of their files' names.
///
/// # Errors
/// If the folder or a file cannot be read, or a file is no table whose rows have as many cells as it has columns.
pub fn page(folder: &Path) -> io::Result<String> {
    let entries = fs::read_dir(folder)?.map(|entry| entry.map(|entry| entry.path()));
    let mut paths = entries.collect::<io::Result<Vec<PathBuf>>>()?;
    paths.sort();
    let mut page = HEAD.to_owned();
    for path in paths {
        let wrong = |what: &str| io::Error::other(format!("{}: {what}", path.display()));
        let table: Table = serde_json::from_str(&fs::read_to_string(&path)?)
            .map_err(|error| wrong(&error.to_string()))?;
        if table.rows.iter().any(|row| row.len() != table.columns.len()) {
            return Err(wrong("a row has more or fewer cells than there are columns"));
        }
        show(&table, &mut page).map_err(io::Error::other)?;
    }
    Ok(page)
}

fn show(table: &Table, page: &mut String) -> std::fmt::Result {
    let Table { title, command, date, machine, columns, rows, notes } = table;
    writeln!(page, "\n## {title}\n\n`{command}`, {date}, {machine}\n")?;
    writeln!(page, "| {} |", columns.join(" | "))?;
    writeln!(page, "|{}", "---|".repeat(columns.len()))?;
    for row in rows {
        writeln!(page, "| {} |", row.join(" | "))?;
    }
    if !notes.is_empty() {
        writeln!(page)?;
    }
    notes.iter().try_for_each(|note| writeln!(page, "- {note}"))
}
