//! `--diff`: two results of `--json` side by side.
//!
//! In reading order: [`results`] reads them; here they are compared; [`text`] is what stdout shows. The page shows the same.

mod results;
mod text;

use crate::args;
use crate::error::Error;
use crate::files;
use crate::page;
use crate::report::Report;
use results::{Executor, Results, Step, Time};
use serde::Serialize;
use std::collections::HashMap;
use std::path::PathBuf;

/// Two results side by side.
#[derive(Serialize, Debug)]
pub(crate) struct Diff {
    /// Version of this layout.
    schema: u32,
    /// The files.
    files: Pair<String>,
    /// What each is a result of.
    facts: Vec<Fact>,
    /// The executors that either has.
    executors: Vec<Side>,
    /// The steps of fused execution that either has, in the order of the later result; gone ones at the end.
    steps: Vec<Change>,
    /// Whether the times of steps are estimates.
    estimated: Pair<bool>,
    /// What else is worth knowing.
    notes: Vec<String>,
}

/// One of each result.
#[derive(Serialize, Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Pair<T> {
    before: T,
    after: T,
}

/// Something that a result is a result of.
#[derive(Serialize, Debug)]
struct Fact {
    what: &'static str,
    #[serde(flatten)]
    text: Pair<String>,
    /// Whether times of results that differ in it tell more than how the command changed.
    matters: bool,
}

/// An executor.
#[derive(Serialize, Debug)]
struct Side {
    name: String,
    /// The middle run, in milliseconds.
    median_ms: Pair<Option<f64>>,
    /// Whether the medians differ by no more than runs of either result do.
    noise: bool,
    launches: Pair<Option<u64>>,
    arena_bytes: Pair<Option<u64>>,
}

/// A step.
#[derive(Serialize, Debug)]
struct Change {
    /// Its operations and where they are in the model.
    name: String,
    family: String,
    status: Status,
    /// Its place in each program.
    step: Pair<Option<usize>>,
    time_us: Pair<Option<f64>>,
    /// What library execution takes for the same operations.
    library_us: Pair<Option<f64>>,
}

/// Which results have a step.
#[derive(Serialize, Debug, Clone, Copy, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
enum Status {
    Both,
    New,
    Gone,
}

/// Compares two results, prints the comparison and writes it as a page, as asked for; the exit code.
///
/// # Errors
/// [`Error::Results`] for a file that is none; as for [`files::write`] and [`files::print`].
pub(crate) fn run(paths: [&PathBuf; 2], flags: &args::Report) -> Result<u8, Error> {
    let [before, after] = paths;
    let diff = Diff::new(paths, &Results::read(before)?, &Results::read(after)?);
    if let Some(path) = &flags.report {
        files::write(path, page::of_diff(&diff).as_bytes())?;
    }
    match flags.json {
        true => files::print(&crate::report::json(&diff))?,
        false => files::print(&diff.text())?,
    }
    Ok(0)
}

impl Diff {
    fn new(paths: [&PathBuf; 2], before: &Results, after: &Results) -> Self {
        let files = pair(paths, |path| path.display().to_string());
        let fused = |results: &Results| results.executor("fused").cloned().unwrap_or_default();
        let (b, a) = (fused(before), fused(after));
        let mut notes = Vec::new();
        for (name, results) in [(&files.before, before), (&files.after, after)] {
            let signal = results.interrupted.iter();
            notes.extend(signal.map(|signal| format!("{name} was interrupted by {signal}")));
        }
        for (name, executor) in [(&files.before, &b), (&files.after, &a)] {
            if executor.steps().is_empty() {
                notes.push(format!(
                    "{name} has no times of steps: make it with `--json --profile` to compare those too"
                ));
            }
        }
        let estimated = Pair { before: b.is_estimate(), after: a.is_estimate() };
        if estimated.before || estimated.after {
            let which = match (estimated.before, estimated.after) {
                (true, true) => "times of steps are estimates".to_owned(),
                (true, false) => format!("times of steps in {} are estimates", files.before),
                (_, _) => format!("times of steps in {} are estimates", files.after),
            };
            notes.push(format!("{which}: the least that the target's peak rates allow"));
        }
        let both = !b.steps().is_empty() && !a.steps().is_empty();
        Self {
            schema: Report::SCHEMA,
            facts: facts(before, after),
            executors: executors(before, after),
            steps: if both { changes(b.steps(), a.steps()) } else { Vec::new() },
            files,
            estimated,
            notes,
        }
    }

    /// The comparison as stdout shows it.
    pub(crate) fn text(&self) -> String {
        text::text(self)
    }

    /// A title for its page.
    pub(crate) fn title(&self) -> String {
        let Pair { before, after } = &self.files;
        format!("{before} → {after}")
    }
}

fn pair<A, T>([before, after]: [A; 2], of: impl Fn(A) -> T) -> Pair<T> {
    Pair { before: of(before), after: of(after) }
}

/// What the results are results of.
fn facts(before: &Results, after: &Results) -> Vec<Fact> {
    let fact = |what, of: fn(&Results) -> String, matters| {
        let text = pair([before, after], of);
        Fact { what, text, matters }
    };
    let facts = [
        fact("model", |results| results.model.name.clone(), true),
        fact("machine", Results::machine, true),
        fact("target", |results| results.target.clone(), true),
        fact("sizes", Results::sizes, true),
        fact("dtype", |results| results.dtype.clone(), true),
        fact("version", Results::version, true),
        fact("date", |results| results.date.clone(), false),
        fact("command", |results| results.command.clone(), false),
    ];
    let known = |fact: &Fact| !(fact.text.before.is_empty() && fact.text.after.is_empty());
    facts.into_iter().filter(known).collect()
}

fn executors(before: &Results, after: &Results) -> Vec<Side> {
    let mut names: Vec<&str> = Vec::new();
    for entry in before.executors.iter().chain(&after.executors) {
        if !names.contains(&entry.name.as_str()) {
            names.push(&entry.name);
        }
    }
    let side = |name: &str| {
        let [b, a] = [before, after].map(|results| results.executor(name));
        let time = |entry: Option<&Executor>| entry.and_then(|entry| entry.time.clone());
        let (old, new) = (time(b), time(a));
        Side {
            name: name.to_owned(),
            median_ms: pair([&old, &new], |time| time.as_ref().map(|time| time.median_ms)),
            noise: old.zip(new).is_some_and(|(old, new)| is_noise(&old, &new)),
            launches: pair([b, a], |entry| entry?.launches),
            arena_bytes: pair([b, a], |entry| Some(entry?.memory.as_ref()?.arena_bytes)),
        }
    };
    names.into_iter().map(side).collect()
}

/// Whether two medians are no farther apart than nine of ten runs of either result are from its own, or all of few.
fn is_noise(before: &Time, after: &Time) -> bool {
    let spread = |time: &Time| {
        let slow = time.percentiles_ms.get("90").copied().flatten();
        slow.unwrap_or(time.max_ms.max(time.median_ms)) - time.median_ms
    };
    (before.median_ms - after.median_ms).abs() <= spread(before).max(spread(after))
}

/// The steps that either has, those of one name being the same: the first of a name in one is the first in the other.
fn changes(before: &[Step], after: &[Step]) -> Vec<Change> {
    let mut old: HashMap<(&str, usize), usize> = HashMap::new();
    for (place, key) in numbered(before).into_iter().enumerate() {
        old.insert(key, place);
    }
    let change = |status, b: Option<&Step>, a: Option<&Step>| {
        let either = a.or(b)?;
        Some(Change {
            name: either.name.clone(),
            family: either.family.clone(),
            status,
            step: pair([b, a], |step| Some(step?.step)),
            time_us: pair([b, a], |step| step?.time_us),
            library_us: pair([b, a], |step| step?.library_us),
        })
    };
    let mut changes = Vec::new();
    for (place, key) in numbered(after).into_iter().enumerate() {
        let matched = old.remove(&key).and_then(|place| before.get(place));
        let status = if matched.is_some() { Status::Both } else { Status::New };
        changes.extend(change(status, matched, after.get(place)));
    }
    let mut gone: Vec<usize> = old.into_values().collect();
    gone.sort_unstable();
    let gone = gone.into_iter().filter_map(|place| change(Status::Gone, before.get(place), None));
    changes.extend(gone);
    changes
}

/// The names of steps, each with how many of its name stand before it.
fn numbered(steps: &[Step]) -> Vec<(&str, usize)> {
    let mut seen: HashMap<&str, usize> = HashMap::new();
    let numbered = steps.iter().map(|step| {
        let count = seen.entry(&step.name).or_default();
        *count += 1;
        (step.name.as_str(), *count)
    });
    numbered.collect()
}

#[cfg(test)]
mod tests {
    use super::results::{Step, Time};
    use super::{Status, changes, is_noise};

    fn steps(names: &[&str]) -> Vec<Step> {
        let step = |(step, name): (usize, &&str)| {
            let time_us = Some(step as f64 + 1.0);
            Step { step, name: (*name).to_owned(), time_us, ..Step::default() }
        };
        names.iter().enumerate().map(step).collect()
    }

    #[test]
    fn steps_of_one_name_are_the_same_in_their_order() {
        let found = changes(&steps(&["a", "b", "a", "c"]), &steps(&["a", "d", "a", "c"]));
        let rows: Vec<_> =
            found.iter().map(|c| (&*c.name, c.status, c.step.before, c.step.after)).collect();
        let expected = [
            ("a", Status::Both, Some(0), Some(0)),
            ("d", Status::New, None, Some(1)),
            ("a", Status::Both, Some(2), Some(2)),
            ("c", Status::Both, Some(3), Some(3)),
            ("b", Status::Gone, Some(1), None),
        ];
        assert_eq!(rows, expected);
    }

    #[test]
    fn noise_is_what_runs_of_one_result_differ_by() {
        let time = |median: f64, p90: f64| Time {
            median_ms: median,
            max_ms: 9.0,
            percentiles_ms: [("90".to_owned(), Some(p90))].into(),
        };
        assert!(is_noise(&time(1.0, 1.2), &time(1.15, 1.16)));
        assert!(!is_noise(&time(1.0, 1.1), &time(1.15, 1.2)));
        // Of few runs no percentile is known.
        let few = |max_ms| Time { median_ms: 1.0, max_ms, ..Time::default() };
        assert!(!is_noise(&few(1.05), &time(1.1, 1.1)) && is_noise(&few(1.2), &time(1.1, 1.1)));
    }
}
