//! The summary that people read.

use crate::human::{bytes, count, counted, digits, error, time};
use crate::report::{
    Agreement, Bisection, Bucket, Executor, Gate, OutputAgreement, Report, Step, Value,
};
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
    times(&mut text, &report.executors, report.speedup);
    buckets(&mut text, &report.buckets);
    for executor in &report.executors {
        if let Some(steps) = &executor.profile {
            profile(&mut text, executor, steps);
        }
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
                names.iter().map(|&n| {
                    time.percentiles_ms.get(n).map_or("–".to_owned(), |&ms| millis(ms))
                }),
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
                    "{}: on the GPU {} ({:.0} % of the median); inputs {} up ({}), outputs {} down ({})",
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
        let _ = writeln!(text, "\nfused is {}× as fast as library", digits(speedup));
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
fn print_table(text: &mut String, table: &[Vec<String>]) {
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

fn profile(text: &mut String, executor: &Executor, steps: &[Step]) {
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
            step.step.to_string(),
            micros(step.time_us),
            step.library_us.map_or("–".to_owned(), micros),
            format!("{:.1} %", step.share * 100.0),
            digits(step.gbytes_per_s),
            digits(step.tflops_per_s * 1e3),
            format!("{:.0} %", step.roofline * 100.0),
            step.variant.map_or(step.kernel.clone(), |name| format!("{} {name}", step.kernel)),
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
}

/// The table with the steps' names after it, to the left.
fn print_profile(text: &mut String, table: &[Vec<String>], steps: &[&Step]) {
    let mut cells = String::new();
    print_table(&mut cells, table);
    let width = cells.lines().map(|line| line.chars().count()).max().unwrap_or(0);
    let names =
        std::iter::once("operations".to_owned()).chain(steps.iter().map(|step| cut(&step.name)));
    for (cells, name) in cells.lines().zip(names) {
        let _ = writeln!(text, "{cells:<width$}  {name}");
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
            "{executor} agrees with {against}: max error {}, mean error {}, cosine {cosine:.6}{}",
            error(worst(|output| output.max_error)),
            error(worst(|output| output.mean_error)),
            nans(outputs),
        );
        return;
    }
    let _ = writeln!(text, "{executor} DIFFERS from {against}{}:", nans(outputs));
    let mut table = vec![
        ["output", "mismatches", "of", "max error", "mean error", "cosine"]
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
}

/// What to say of numbers that are none on both sides.
fn nans(outputs: &[OutputAgreement]) -> String {
    let all = outputs.iter().map(|output| output.elements).sum::<usize>();
    match outputs.iter().map(|output| output.nans).sum::<usize>() {
        0 => String::new(),
        nans => format!("; {nans} of {all} elements are NaN in both"),
    }
}

fn bisection(text: &mut String, entry: &Bisection) {
    let Bisection { executor, steps, compared, first } = entry;
    let Some(found) = first else {
        let _ = writeln!(
            text,
            "\n{executor}: {compared} of {steps} steps were compared, and agree with single precision on the CPU"
        );
        return;
    };
    let _ = writeln!(
        text,
        "\n{executor}: step {} of {steps} is the first that DIFFERS from single precision on the CPU",
        found.step
    );
    let error = found.max_error.map_or("not finite".to_owned(), error);
    row(text, "step", &found.name);
    row(text, "kernel", &found.kernel);
    row(text, "nodes", &found.nodes.join(", "));
    row(text, "output", &found.output);
    row(text, "mismatches", &format!("{} of {}", found.mismatches, found.elements));
    row(text, "max error", &error);
    if let Some(detail) = &found.detail {
        row(text, "first", detail);
    }
}
