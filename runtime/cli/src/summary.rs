//! The summary that people read.

use crate::human::{bytes, count, counted, digits, error, time};
use crate::modules::operations;
use crate::report::{
    Agreement, Bisection, Bucket, Executor, Gate, OutputAgreement, Report, Step, Value,
};
use crate::roof::Roof;
use crate::traffic::Load;
use graphene_fusion::program::StepId;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::Duration;

/// Steps that a profile lists; the rest is summed up.
const PROFILE_ROWS: usize = 20;
/// Names longer than this are cut, in characters.
const NAME: usize = 60;

/// The whole summary.
pub(crate) fn summary(report: &Report) -> String {
    let mut text = String::new();
    head(&mut text, report);
    text += &report.answers.to_string();
    times(&mut text, &report.executors, report.speedup);
    load(&mut text, &report.load);
    buckets(&mut text, &report.buckets);
    for executor in &report.executors {
        if let Some(steps) = &executor.profile {
            profile(&mut text, executor, steps, report.roof.as_ref());
        }
    }
    if let Some(signal) = report.interrupted {
        let _ = writeln!(text, "\ninterrupted by {signal}: what was measured by then");
    }
    text + &verdicts(report)
}

/// Why values are stored, whether outputs agree and gates hold, and what else to know.
pub(crate) fn verdicts(report: &Report) -> String {
    let mut text = String::new();
    if let Some(lines) = &report.rewriting {
        let _ = writeln!(text, "\nrewriting for the fused plan");
        lines.iter().for_each(|rule| line(&mut text, rule));
    }
    if let Some(lines) = &report.explain {
        let _ = writeln!(text, "\nvalues stored between steps of the fused plan");
        lines.iter().for_each(|boundary| line(&mut text, boundary));
    }
    if !report.agreement.is_empty() {
        text.push('\n');
    }
    report.agreement.iter().for_each(|entry| agreement(&mut text, entry));
    report.bisection.iter().for_each(|entry| bisection(&mut text, entry));
    if !report.gates.is_empty() {
        text.push('\n');
    }
    for Gate { gate, expected, found, holds } in &report.gates {
        let verdict = if *holds { "holds" } else { "FAILED" };
        let _ = writeln!(text, "gate {gate}: expected {expected}, found {found}: {verdict}");
    }
    if !report.notes.is_empty() {
        text.push('\n');
    }
    report.notes.iter().for_each(|note| {
        let _ = writeln!(text, "note: {note}");
    });
    text
}

fn head(text: &mut String, report: &Report) {
    let model = &report.model;
    let producer = match model.producer.as_str() {
        "" => String::new(),
        producer => format!(", by {producer}"),
    };
    let _ = writeln!(text, "{}  (opset {}{producer})", model.name, model.opset);
    let (before, after) = (model.ops, model.rewritten_ops);
    let rewritten =
        if before == after { String::new() } else { format!(" → {after} after rewriting") };
    row(
        text,
        "model",
        &format!(
            "{}{rewritten}, {} parameters ({})",
            counted(before, "operation", "operations"),
            count(model.parameters),
            bytes(model.weight_bytes)
        ),
    );
    if let Some(specialised) = &model.specialised {
        row(text, "specialised", specialised);
    }
    row(text, "inputs", &values(&report.inputs));
    row(text, "outputs", &values(&report.outputs));
    let device = &report.device;
    let threads = counted(device.threads, "thread", "threads");
    let target = if report.executors.iter().all(|executor| executor.time.is_none()) {
        format!("; planned for {}", report.target)
    } else {
        String::new()
    };
    let what = match &device.gpu {
        Some(gpu) => format!(
            "{}, {} multiprocessors, {}; host {}, {threads}",
            device.name,
            gpu.multiprocessors,
            bytes(gpu.memory_bytes),
            gpu.host
        ),
        None => format!("{}, {threads}, {}", device.name, device.simd),
    };
    row(text, "device", &format!("{what}{target}"));
    let ms = &report.compile_ms;
    let parts =
        [("import", ms.import), ("plan", ms.plan), ("compile", ms.compile), ("bind", ms.bind)];
    let parts = parts.iter().filter(|(_, ms)| *ms > 0.0);
    let parts: Vec<_> = parts.map(|(name, ms)| format!("{name} {}", millis(*ms))).collect();
    row(text, "compiled in", &format!("{} ({})", millis(ms.total), parts.join(", ")));
}

fn row(text: &mut String, name: &str, value: &str) {
    let _ = writeln!(text, "  {name:<12} {value}");
}

fn line(text: &mut String, value: &str) {
    let _ = writeln!(text, "  {value}");
}

fn millis(ms: f64) -> String {
    time(Duration::from_secs_f64((ms / 1e3).max(0.0)))
}

/// Inputs with the dims that have names: `x f32[batch=1, 64]`; all random ones need no source.
fn values(values: &[Value]) -> String {
    let shown = values.iter().map(|value| {
        let source = value.source.as_deref().filter(|source| *source != "random");
        let source = source.map_or(String::new(), |source| format!(" from {source}"));
        let dtype = value.ty.split('[').next().unwrap_or_default();
        format!("{} {dtype}{:?}{source}", value.name, value.shape)
    });
    shown.collect::<Vec<_>>().join("\n               ")
}

fn times(text: &mut String, executors: &[Executor], speedup: Option<f64>) {
    let percentiles = executors.iter().filter_map(|e| e.time.as_ref()).map(|t| &t.percentiles_ms);
    let mut names: Vec<&String> = percentiles.flat_map(BTreeMap::keys).collect();
    names.sort_by(|a, b| number(a).total_cmp(&number(b)));
    names.dedup();
    let mut table = vec![vec!["".to_owned(), "launches".to_owned(), "arena".to_owned()]];
    if let Some(time) = executors.iter().find_map(|executor| executor.time.as_ref()) {
        table[0].extend(["runs", "min"].map(str::to_owned));
        table[0].extend(names.iter().map(|name| format!("p{name}")));
        table[0].extend(["max".to_owned(), format!("{}/s", time.unit)]);
    }
    for executor in executors {
        let launches = executor.launches.map_or("–".to_owned(), |launches| launches.to_string());
        let arena = executor.memory.as_ref().map_or("–".to_owned(), |m| bytes(m.arena_bytes));
        let mut cells = vec![executor.name.to_owned(), launches, arena];
        if let Some(time) = &executor.time {
            cells.extend([time.runs.to_string(), millis(time.min_ms)]);
            cells.extend(
                names.iter().map(|&n| known(time.percentiles_ms.get(n).copied().flatten())),
            );
            cells.extend([millis(time.max_ms), digits(time.per_second)]);
        }
        table.push(cells);
    }
    text.push('\n');
    print_table(text, &table);
    for executor in executors {
        if let Some(memory) = &executor.memory {
            let (arena, bound) = (memory.arena_bytes, memory.lower_bound_bytes);
            if arena > bound {
                line(
                    text,
                    &format!("{}: the arena's lower bound is {}", executor.name, bytes(bound)),
                );
            }
        }
        if let Some(built) = &executor.built {
            let kernels = counted(built.kernels, "kernel", "kernels");
            let (compiled, cached) = (built.compiled, built.cached);
            line(
                text,
                &format!("{}: {kernels}, {compiled} compiled, {cached} cached", executor.name),
            );
        }
        if let Some(on) = &executor.on_device {
            line(
                text,
                &format!(
                    "{}: on the GPU {} ({:.0} % of the median); inputs H2D {} ({}), outputs D2H {} ({})",
                    executor.name,
                    millis(on.run_ms),
                    on.share_of_wall * 100.0,
                    millis(on.upload_ms),
                    bytes(on.upload_bytes),
                    millis(on.download_ms),
                    bytes(on.download_bytes)
                ),
            );
        }
        if !executor.by_reference.is_empty() {
            let steps = executor.by_reference.len();
            let names: Vec<_> =
                executor.by_reference.iter().take(3).map(|name| cut(name)).collect();
            let more = if steps > 3 { ", …" } else { "" };
            let what = counted(steps, "launch is", "launches are");
            line(
                text,
                &format!(
                    "{}: {what} run by the reference evaluator: {}{more}",
                    executor.name,
                    names.join(", ")
                ),
            );
        }
    }
    if let Some(speedup) = speedup {
        let _ = writeln!(text, "\nfused {} library", pace(speedup));
    }
    for executor in executors {
        let noise = executor.time.as_ref().and_then(|time| time.noise?.said());
        if let Some(said) = noise {
            let _ = writeln!(text, "timings are noisy: {}: {said}", executor.name);
        }
    }
}

/// How fast fused execution is beside library execution, of which it takes this part of the time's inverse: what a person
/// says of it.
fn pace(speedup: f64) -> String {
    let longer = 1.0 / speedup.max(1e-9);
    match () {
        () if speedup >= 1.095 => format!("is {}× as fast as", digits(speedup)),
        () if speedup >= 1.005 => format!("is {:.0} % faster than", (speedup - 1.0) * 100.0),
        () if longer < 1.005 => "is as fast as".to_owned(),
        () if longer < 1.995 => format!("is {:.0} % slower than", (longer - 1.0) * 100.0),
        () => format!("takes {}× as long as", digits(longer)),
    }
}

/// Milliseconds, if they are known.
fn known(ms: Option<f64>) -> String {
    ms.map_or("–".to_owned(), millis)
}

/// What requests side by side took.
fn load(text: &mut String, loads: &[Load]) {
    let Some(first) = loads.first() else { return };
    let contexts = counted(first.contexts, "context", "contexts");
    let how = match (first.rate, first.arrivals) {
        (Some(rate), Some(arrivals)) => {
            let rate = digits(rate);
            format!(
                "{rate} requests a second, {}; times count from when each is due",
                arrivals.said()
            )
        }
        _ => "a caller each, who asks again when answered".to_owned(),
    };
    let _ = writeln!(text, "\nconcurrent requests: {contexts}, {how}");
    let latencies = loads.iter().filter_map(|load| load.latency.as_ref());
    let mut names: Vec<&String> = latencies.flat_map(|l| l.percentiles_ms.keys()).collect();
    names.sort_by(|a, b| number(a).total_cmp(&number(b)));
    names.dedup();
    let mut heads = ["", "requests", "errors", "requests/s", "min"].map(str::to_owned).to_vec();
    heads.extend(names.iter().map(|name| format!("p{name}")));
    heads.push("max".to_owned());
    let mut table = vec![heads];
    for load in loads {
        let (errors, of) = (load.errors.values().sum::<usize>(), load.latency.as_ref());
        let mut cells = vec![load.executor.to_owned(), load.requests.to_string()];
        cells.extend([
            errors.to_string(),
            digits(load.requests_per_s),
            known(of.map(|l| l.min_ms)),
        ]);
        let percentile = |name: &&String| of.and_then(|l| l.percentiles_ms.get(*name).copied()?);
        cells.extend(names.iter().map(|name| known(percentile(name))));
        cells.push(known(of.map(|l| l.max_ms)));
        table.push(cells);
    }
    print_table(text, &table);
    for load in loads.iter().filter(|load| !load.errors.is_empty()) {
        let errors: Vec<_> = load.errors.iter().map(|(name, n)| format!("{n} {name}")).collect();
        line(text, &format!("{}: errors: {}", load.executor, errors.join(", ")));
    }
}

fn buckets(text: &mut String, buckets: &[Bucket]) {
    if buckets.is_empty() {
        return;
    }
    let heads = ["bucket", "executor", "bound in", "arena", "p50"];
    let mut table = vec![heads.map(str::to_owned).to_vec()];
    for bucket in buckets {
        let sizes: Vec<_> = bucket.sizes.iter().map(|(name, n)| format!("{name}={n}")).collect();
        for time in &bucket.times {
            table.push(vec![
                sizes.join(" "),
                time.executor.to_owned(),
                millis(time.bind_ms),
                bytes(time.arena_bytes),
                millis(time.median_ms),
            ]);
        }
    }
    text.push('\n');
    print_table(text, &table);
}

fn number(text: &str) -> f64 {
    text.parse().unwrap_or(f64::INFINITY)
}

/// A table with its first column to the left and the rest to the right.
pub(crate) fn print_table(text: &mut String, table: &[Vec<String>]) {
    let columns = table.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| {
        table.iter().filter_map(|cells| cells.get(column)).map(|cell| cell.chars().count()).max()
    };
    let widths: Vec<usize> = (0..columns).map(|column| width(column).unwrap_or(0)).collect();
    for cells in table {
        let mut row = String::from("  ");
        for (i, (cell, &width)) in cells.iter().zip(&widths).enumerate() {
            let _ = if i == 0 {
                write!(row, "{cell:<width$}")
            } else {
                write!(row, "  {cell:>width$}")
            };
        }
        let _ = writeln!(text, "{}", row.trim_end());
    }
}

fn profile(text: &mut String, executor: &Executor, steps: &[Step], roof: Option<&Roof>) {
    let mut sorted: Vec<&Step> = steps.iter().collect();
    sorted.sort_by(|a, b| b.time_us.total_cmp(&a.time_us).then(a.step.cmp(&b.step)));
    let mut families: BTreeMap<&str, (usize, f64)> = BTreeMap::new();
    for step in steps {
        let family = families.entry(step.family).or_default();
        *family = (family.0 + 1, family.1 + step.share);
    }
    let mut families: Vec<_> = families.into_iter().collect();
    families.sort_by(|a, b| b.1.1.total_cmp(&a.1.1));
    let families = families
        .iter()
        .map(|(name, (steps, share))| format!("{name} ×{steps} {:.1} %", share * 100.0));
    let _ = writeln!(
        text,
        "\nprofile of {} execution: {}",
        executor.name,
        families.collect::<Vec<_>>().join(", ")
    );
    if executor.on_device.is_some() {
        line(text, "times on the GPU of one of several launches of a step one after the other");
    }
    let beside = steps.iter().any(|step| step.library_us.is_some());
    let library = if beside { "library" } else { "" };
    let heads = ["step", "time", library, "share", "GB/s", "GFLOP/s", "roofline", "kernel"];
    let row = |cells: [String; 8]| -> Vec<String> {
        let shown = |i: &usize| beside || *i != 2;
        cells.into_iter().enumerate().filter(|(i, _)| shown(i)).map(|(_, cell)| cell).collect()
    };
    let micros = |us: f64| time(Duration::from_secs_f64((us / 1e6).max(1e-12)));
    let mut table = vec![row(heads.map(str::to_owned))];
    for step in sorted.iter().take(PROFILE_ROWS) {
        table.push(row([
            StepId::from_index(step.step).to_string(),
            micros(step.time_us),
            step.library_us.map_or("–".to_owned(), micros),
            format!("{:.1} %", step.share * 100.0),
            digits(step.gbytes_per_s),
            digits(step.tflops_per_s * 1e3),
            format!("{}{:.0} %", if step.beyond_roof { "≥ " } else { "" }, step.roofline * 100.0),
            step.what_runs(),
        ]));
    }
    print_profile(text, &table, &sorted);
    if let Some(rest) = sorted.get(PROFILE_ROWS..).filter(|rest| !rest.is_empty()) {
        let share: f64 = rest.iter().map(|step| step.share).sum();
        line(
            text,
            &format!("{} more: {:.1} %", counted(rest.len(), "step", "steps"), share * 100.0),
        );
    }
    if let Some(roof) = roof {
        line(text, &roof.said(steps.iter().any(|step| step.beyond_roof)));
    }
}

/// The table with the steps' operations and modules after it, to the left.
fn print_profile(text: &mut String, table: &[Vec<String>], steps: &[&Step]) {
    let mut cells = String::new();
    print_table(&mut cells, table);
    let modules = steps.iter().any(|step| step.module.is_some());
    // A step of no module is told by where it is.
    let name = |step: &&Step| match modules {
        true => (cut(operations(&step.name)), step.module.as_deref().unwrap_or("–").to_owned()),
        false => (cut(&step.name), String::new()),
    };
    let heads = ("operations".to_owned(), if modules { "module" } else { "" }.to_owned());
    let names: Vec<_> = std::iter::once(heads).chain(steps.iter().map(name)).collect();
    let widest = |of: &dyn Fn(&str) -> usize, texts: &mut dyn Iterator<Item = &str>| {
        texts.map(of).max().unwrap_or(0)
    };
    let count = |text: &str| text.chars().count();
    let width = widest(&count, &mut cells.lines());
    let listed = names.iter().take(cells.lines().count());
    let own = widest(&count, &mut listed.map(|(operations, _)| operations.as_str()));
    for (cells, (operations, module)) in cells.lines().zip(&names) {
        let row = format!("{cells:<width$}  {operations:<own$}  {module}");
        let _ = writeln!(text, "{}", row.trim_end());
    }
}

fn cut(name: &str) -> String {
    match name.char_indices().nth(NAME) {
        Some((at, _)) => format!("{}…", &name[..at]),
        None => name.to_owned(),
    }
}

fn agreement(text: &mut String, entry: &Agreement) {
    let Agreement { executor, against, agrees, outputs } = entry;
    let worst = |value: fn(&OutputAgreement) -> Option<f64>| {
        outputs.iter().filter_map(value).fold(0.0, f64::max)
    };
    if *agrees {
        let cosine = outputs.iter().filter_map(|output| output.cosine).fold(1.0, f64::min);
        let _ = writeln!(
            text,
            "{executor} agrees with {against}: max error {} ({} of the largest value), mean error {}, cosine {cosine:.6}",
            error(worst(|output| output.max_error)),
            error(worst(|output| output.relative_error)),
            error(worst(|output| output.mean_error)),
        );
        warnings(text, outputs);
        return;
    }
    let _ = writeln!(text, "{executor} DIFFERS from {against}:");
    let mut table = vec![
        ["output", "mismatches", "of", "max error", "of largest", "mean error", "cosine"]
            .map(str::to_owned)
            .to_vec(),
    ];
    let number = |value: Option<f64>| value.map_or("–".to_owned(), error);
    for output in outputs.iter().filter(|output| !output.agrees) {
        table.push(vec![
            output.name.clone(),
            output.mismatches.to_string(),
            output.elements.to_string(),
            number(output.max_error),
            number(output.relative_error),
            number(output.mean_error),
            output.cosine.map_or("–".to_owned(), |cosine| format!("{cosine:.6}")),
        ]);
    }
    print_table(text, &table);
    for output in outputs.iter().filter(|output| !output.agrees) {
        if let Some(detail) = &output.detail {
            line(text, &format!("{}: {detail}", output.name));
        }
    }
    warnings(text, outputs);
}

/// Of which outputs agreement says little, and why.
fn warnings(text: &mut String, outputs: &[OutputAgreement]) {
    for output in outputs {
        for why in &output.warnings {
            line(text, &format!("warning: `{}` agrees, which says little: {why}", output.name));
        }
    }
}

fn bisection(text: &mut String, entry: &Bisection) {
    let Bisection { executor, against, steps, compared, first } = entry;
    let Some(found) = first else {
        let _ = writeln!(
            text,
            "\n{executor}: {compared} of {steps} steps were compared, and agree with {against}"
        );
        return;
    };
    let _ = writeln!(
        text,
        "\n{executor}: step {} of {steps} is the first that DIFFERS from {against}",
        StepId::from_index(found.step)
    );
    let relative = found.relative_error.map(|of| format!(" ({} of the largest value)", error(of)));
    let absolute = found.max_error.map_or("not finite".to_owned(), error);
    let error = absolute + &relative.unwrap_or_default();
    row(text, "step", &found.name);
    if let Some(module) = &found.module {
        row(text, "module", module);
    }
    row(text, "kernel", &found.kernel);
    row(text, "nodes", &found.nodes.join(", "));
    row(text, "output", &found.output);
    row(text, "mismatches", &format!("{} of {}", found.mismatches, found.elements));
    row(text, "max error", &error);
    if let Some(detail) = &found.detail {
        row(text, "first", detail);
    }
}

#[cfg(test)]
mod tests {
    use super::pace;

    #[test]
    fn a_pace_is_told_as_people_tell_it() {
        let rows = [
            (2.5, "is 2.50× as fast as"),
            (1.28, "is 1.28× as fast as"),
            (1.04, "is 4 % faster than"),
            (1.0, "is as fast as"),
            (0.998, "is as fast as"),
            (0.93, "is 8 % slower than"),
            (0.6, "is 67 % slower than"),
            (0.25, "takes 4.00× as long as"),
        ];
        for (speedup, said) in rows {
            assert_eq!(pace(speedup), said, "{speedup}");
        }
    }
}
