//! A comparison as stdout shows it.

use super::{Change, Diff, Pair, Side, Status};
use crate::human::{bytes, counted, time};
use crate::summary::print_table;

use graphene_frontend::visible::visible;
use std::fmt::Write;
use std::time::Duration;

/// Steps that are listed; the rest is counted.
const ROWS: usize = 20;

/// The comparison.
pub(super) fn text(diff: &Diff) -> String {
    let mut text = String::new();
    let _ = writeln!(text, "{}", visible(&diff.title()));
    for fact in diff.facts.iter().filter(|fact| fact.matters) {
        let Pair { before, after } = &fact.text;
        let (before, after) = (visible(before), visible(after));
        let _ = match before == after {
            true => writeln!(text, "  {:<8} {before}", fact.what),
            false => writeln!(text, "  {:<8} DIFFERS: {before} → {after}", fact.what),
        };
    }
    text.push('\n');
    executors(&mut text, &diff.executors);
    if !diff.steps.is_empty() {
        text.push('\n');
        steps(&mut text, &diff.steps);
    }
    if !diff.notes.is_empty() {
        text.push('\n');
    }
    for note in &diff.notes {
        let _ = writeln!(text, "note: {}", visible(note));
    }
    text
}

fn executors(text: &mut String, sides: &[Side]) {
    let mut table = vec![["", "before", "after", "change"].map(str::to_owned).to_vec()];
    for side in sides {
        let mut row = |what: &str, values: Pair<Option<String>>, change: String| {
            let Pair { before, after } = values;
            if before.is_some() || after.is_some() {
                let cell = |value: Option<String>| value.unwrap_or_else(|| "–".to_owned());
                let name = format!("{} {what}", visible(&side.name));
                table.push(vec![name, cell(before), cell(after), change]);
            }
        };
        let millis = |ms: f64| time(Duration::from_secs_f64((ms / 1e3).max(0.0)));
        let noise = if side.noise { " (noise)" } else { "" };
        row("p50", side.median_ms.each(millis), percent(side.median_ms) + noise);
        let count = |count: u64| count.to_string();
        row("launches", side.launches.each(count), percent(side.launches.each(|n| n as f64)));
        row("arena", side.arena_bytes.each(bytes), percent(side.arena_bytes.each(|n| n as f64)));
    }
    print_table(text, &table);
}

fn steps(text: &mut String, changes: &[Change]) {
    let count = |status| changes.iter().filter(|change| change.status == status).count();
    let (both, new, gone) = (count(Status::Both), count(Status::New), count(Status::Gone));
    let _ = writeln!(
        text,
        "{} of fused execution in both, {new} new, {gone} gone; the largest changes first",
        counted(both, "step", "steps")
    );
    let mut sorted: Vec<&Change> = changes.iter().collect();
    let size = |change: &Change| {
        let Pair { before, after } = change.time_us;
        (after.unwrap_or(0.0) - before.unwrap_or(0.0)).abs()
    };
    sorted.sort_by(|a, b| size(b).total_cmp(&size(a)));
    let micros = |us: f64| time(Duration::from_secs_f64((us / 1e6).max(0.0)));
    let mut table = vec![["step", "before", "after", "change"].map(str::to_owned).to_vec()];
    for change in sorted.iter().take(ROWS) {
        let Pair { before, after } = change.time_us.each(micros);
        let what = match change.status {
            Status::Both => percent(change.time_us),
            Status::New => "new".to_owned(),
            Status::Gone => "gone".to_owned(),
        };
        let cell = |value: Option<String>| value.unwrap_or_else(|| "–".to_owned());
        let step = change.step.after.or(change.step.before).unwrap_or_default();
        table.push(vec![step.to_string(), cell(before), cell(after), what]);
    }
    let mut cells = String::new();
    print_table(&mut cells, &table);
    let width = cells.lines().map(|line| line.chars().count()).max().unwrap_or(0);
    let names = std::iter::once("operations".into()).chain(sorted.iter().map(|c| visible(&c.name)));
    for (cells, name) in cells.lines().zip(names) {
        let _ = writeln!(text, "{cells:<width$}  {name}");
    }
    if let Some(rest) = sorted.len().checked_sub(ROWS).filter(|&rest| rest > 0) {
        let _ = writeln!(text, "  {}", counted(rest, "more step", "more steps"));
    }
}

/// How much more or less the second is: `+3.2 %`.
fn percent(values: Pair<Option<f64>>) -> String {
    match (values.before, values.after) {
        (Some(before), Some(after)) if before > 0.0 => {
            let percent = (after / before - 1.0) * 100.0;
            if percent.abs() < 0.05 { "0 %".to_owned() } else { format!("{percent:+.1} %") }
        }
        _ => String::new(),
    }
}

impl<T> Pair<Option<T>> {
    fn each<U>(self, of: impl Fn(T) -> U) -> Pair<Option<U>> {
        Pair { before: self.before.map(&of), after: self.after.map(&of) }
    }
}

#[cfg(test)]
mod tests {
    use super::{Pair, percent};

    #[test]
    fn changes_have_a_sign() {
        let of = |before, after| percent(Pair { before, after });
        assert_eq!(of(Some(2.0), Some(3.0)), "+50.0 %");
        assert_eq!(of(Some(2.0), Some(1.0)), "-50.0 %");
        assert_eq!(of(Some(2.0), Some(2.0)), "0 %");
        assert_eq!(of(None, Some(2.0)), "");
        assert_eq!(of(Some(0.0), Some(2.0)), "");
    }
}
