//! The table of steps: what the page shows row by row, and what `--csv` writes.

use crate::args::Exec;
use crate::picture::{self, Picture};
use crate::report::{Executor, Report};

use graphene_frontend::visible::visible;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};

/// A step of the fused plan, with its time where it was timed, or else what it takes at least.
#[derive(Serialize, Debug, Default, Clone)]
pub(crate) struct Row {
    /// Its place in the program.
    pub(crate) step: usize,
    /// The module that computes it.
    pub(crate) module: Option<String>,
    /// Its family.
    pub(crate) family: &'static str,
    /// Its operations.
    pub(crate) operators: String,
    /// Elements that it reads and writes.
    pub(crate) types: String,
    /// Elements and sizes of what it reads, but for weights.
    pub(crate) reads: String,
    /// Elements and sizes of what it writes.
    pub(crate) writes: String,
    /// The kernel that runs it, with its variant; nothing where it was planned only.
    pub(crate) kernel: String,
    /// Microseconds.
    pub(crate) time_us: Option<f64>,
    /// Whether those are an estimate.
    pub(crate) estimated: bool,
    /// Share of the time of all steps.
    pub(crate) share: Option<f64>,
    /// Bytes that it reads and writes at least.
    pub(crate) bytes: Option<u64>,
    /// Floating-point operations, a multiply-add being two.
    pub(crate) flops: Option<u64>,
    /// Gigabytes of these a second.
    pub(crate) gbytes_per_s: Option<f64>,
    /// Tera-operations of these a second.
    pub(crate) tflops_per_s: Option<f64>,
    /// Least time that the roof allows over the time taken, at most 1.
    pub(crate) roofline: Option<f64>,
    /// Whether it took less than the roof allows.
    pub(crate) beyond_roof: bool,
    /// What that least time is spent on.
    pub(crate) bound: &'static str,
    /// Microseconds that library execution takes for the same operations.
    pub(crate) library_us: Option<f64>,
    /// `CPU` or `GPU`.
    pub(crate) runs_on: &'static str,
    /// Why it does not run as planned: on a GPU's host, or by the reference evaluator.
    pub(crate) falls_back: Option<String>,
    /// Its operations and where they are in the model.
    pub(crate) name: String,
}

/// A row for each step of the fused plan. `refusals` says of each why the device of a target that was planned for would not
/// run it, if so.
pub(crate) fn rows(report: &Report, picture: &Picture, refusals: &[Option<String>]) -> Vec<Row> {
    let fused = report.executors.iter().find(|entry| entry.name == Exec::Fused.name());
    let mut rows: Vec<Row> = picture.steps.iter().enumerate().map(described).collect();
    for (row, refusal) in rows.iter_mut().zip(refusals) {
        row.falls_back = refusal.clone();
    }
    if let Some(fused) = fused {
        timed(&mut rows, fused);
        estimated(&mut rows, fused);
        fallen_back(&mut rows, fused);
    }
    let on_gpu = !report.target.starts_with("cpu");
    for row in &mut rows {
        row.runs_on = if on_gpu && row.falls_back.is_none() { "GPU" } else { "CPU" };
    }
    rows
}

/// What a row says without a time.
fn described((number, step): (usize, &picture::Step)) -> Row {
    let shapes = |values: &[picture::Value]| {
        values.iter().map(|value| value.shape.as_str()).collect::<Vec<_>>().join(", ")
    };
    Row {
        step: number,
        module: step.module.clone(),
        family: step.family,
        operators: step.operations.join(", "),
        types: step.types.clone(),
        reads: shapes(&step.reads),
        writes: shapes(&step.writes),
        name: step.name.clone(),
        ..Row::default()
    }
}

fn timed(rows: &mut [Row], fused: &Executor) {
    for (row, step) in rows.iter_mut().zip(fused.profile.iter().flatten()) {
        row.kernel = match step.variant {
            Some(variant) => format!("{} {variant}", step.kernel),
            None => step.kernel.clone(),
        };
        row.time_us = Some(step.time_us);
        row.share = Some(step.share);
        (row.bytes, row.flops) = (Some(step.bytes), Some(step.flops));
        row.gbytes_per_s = Some(step.gbytes_per_s);
        row.tflops_per_s = Some(step.tflops_per_s);
        row.roofline = Some(step.roofline);
        row.beyond_roof = step.beyond_roof;
        row.bound = step.bound;
        row.library_us = step.library_us;
    }
}

fn estimated(rows: &mut [Row], fused: &Executor) {
    let steps = || fused.estimate.iter().flatten();
    let total: f64 = steps().filter_map(|step| step.time_us).sum();
    for (row, step) in rows.iter_mut().zip(steps()) {
        row.time_us = step.time_us;
        row.estimated = true;
        row.share = step.time_us.map(|time| time / total.max(1e-12));
        (row.bytes, row.flops) = (Some(step.bytes), Some(step.flops));
        row.bound = step.bound;
        row.library_us = step.library_us;
    }
}

/// What runs elsewhere than its plan is for, by the names of steps.
fn fallen_back(rows: &mut [Row], fused: &Executor) {
    let on_host = fused.built.iter().flat_map(|built| &built.on_host);
    let on_host: BTreeMap<&str, &str> =
        on_host.map(|step| (step.step.as_str(), step.why.as_str())).collect();
    let by_reference: BTreeSet<&str> = fused.by_reference.iter().map(String::as_str).collect();
    for row in rows {
        if let Some(why) = on_host.get(row.name.as_str()) {
            row.falls_back = Some(format!("{why}: falls back to the CPU"));
        } else if by_reference.contains(row.name.as_str()) {
            row.falls_back = Some("no kernel: the reference evaluator computes it".to_owned());
        }
    }
}

/// A column's name, and its cell of a row.
type Column = (&'static str, fn(&Row) -> Cell);

/// The columns of the file: their names, and what a row has in them.
const COLUMNS: [Column; 20] = [
    ("step", |row| Cell::number(row.step)),
    ("module", |row| Cell::text(row.module.as_deref().unwrap_or_default())),
    ("family", |row| Cell::text(row.family)),
    ("operators", |row| Cell::text(&row.operators)),
    ("types", |row| Cell::text(&row.types)),
    ("reads", |row| Cell::text(&row.reads)),
    ("writes", |row| Cell::text(&row.writes)),
    ("kernel", |row| Cell::text(&row.kernel)),
    ("time_us", |row| Cell::known(row.time_us)),
    ("estimated", |row| Cell::number(row.estimated)),
    ("share", |row| Cell::known(row.share)),
    ("bytes", |row| Cell::known(row.bytes)),
    ("flops", |row| Cell::known(row.flops)),
    ("gbytes_per_s", |row| Cell::known(row.gbytes_per_s)),
    ("tflops_per_s", |row| Cell::known(row.tflops_per_s)),
    ("roofline", |row| Cell::known(row.roofline)),
    ("library_us", |row| Cell::known(row.library_us)),
    ("runs_on", |row| Cell::text(row.runs_on)),
    ("falls_back", |row| Cell::text(row.falls_back.as_deref().unwrap_or_default())),
    ("name", |row| Cell::text(&row.name)),
];

/// A cell of a file of comma-separated values, as it stands there.
struct Cell(String);

impl Cell {
    fn number(value: impl ToString) -> Self {
        Self(value.to_string())
    }

    fn known(value: Option<impl ToString>) -> Self {
        value.map_or(Self(String::new()), Self::number)
    }

    /// Text in quotes where it has to be (RFC 4180). A spreadsheet would compute what begins like a formula: an apostrophe
    /// stands before it.
    fn text(value: &str) -> Self {
        let value = visible(value);
        let formula = if value.starts_with(['=', '+', '-', '@']) { "'" } else { "" };
        match value.contains([',', '"', '\n', '\r']) {
            true => Self(format!("\"{formula}{}\"", value.replace('"', "\"\""))),
            false => Self(format!("{formula}{value}")),
        }
    }
}

/// The rows as comma-separated values, with a line of names first.
pub(crate) fn csv(rows: &[Row]) -> String {
    let mut text = COLUMNS.map(|(name, _)| name).join(",") + "\n";
    for row in rows {
        text += &COLUMNS.map(|(_, cell)| cell(row).0).join(",");
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::{Row, csv};

    #[test]
    fn cells_are_quoted_and_no_formulas() {
        let row = Row {
            step: 3,
            family: "MatMul",
            operators: "MatMul, Add ×2".to_owned(),
            time_us: Some(1.5),
            name: "=1+\"1\"\u{202e}".to_owned(),
            runs_on: "CPU",
            ..Row::default()
        };
        let text = csv(&[row]);
        let (head, row) = text.split_once('\n').unwrap();
        assert!(head.starts_with("step,module,family,operators,") && head.ends_with(",name"));
        let expected =
            r#"3,,MatMul,"MatMul, Add ×2",,,,,1.5,false,,,,,,,,CPU,,"'=1+""1""\u{202e}""#;
        assert_eq!(row, format!("{expected}\n"));
    }
}
