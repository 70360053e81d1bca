//! The page of `--report`: the summary and the time of every step, in one file without scripts.

use crate::human::{bytes, digits, time};
use crate::report::{Executor, Report, Step};
use crate::summary;
use std::fmt::Write;
use std::time::Duration;

const STYLE: &str = "body{font:15px/1.5 system-ui,sans-serif;max-width:72rem;margin:2rem auto;padding:0 1rem;color:#222}\
    pre{background:#f6f6f4;padding:1rem;overflow-x:auto}table{border-collapse:collapse;width:100%;font-size:13px}\
    th,td{text-align:right;padding:.15rem .6rem;border-bottom:1px solid #e5e5e5;white-space:nowrap}\
    th:last-child,td:last-child{text-align:left;white-space:normal}\
    .bar{display:inline-block;height:.7em;background:#4a7ab5;vertical-align:baseline}";

/// The page.
pub(crate) fn page(report: &Report) -> String {
    let name = escape(&report.model.name);
    let mut html = format!(
        "<!doctype html>\n<html lang=\"en\"><meta charset=\"utf-8\"><title>{name}</title>\
         <style>{STYLE}</style>\n<h1>{name}</h1>\n<pre>{}</pre>\n",
        escape(&summary::summary(report))
    );
    report.executors.iter().for_each(|executor| steps(&mut html, executor));
    html + "</html>\n"
}

fn steps(html: &mut String, executor: &Executor) {
    let Some(steps) = &executor.profile else { return };
    let _ = write!(html, "<h2>Steps of {} execution</h2>\n<table><tr>", executor.name);
    for head in [
        "step",
        "time",
        "",
        "share",
        "bytes",
        "GB/s",
        "GFLOP/s",
        "roofline",
        "kernel",
        "operations",
    ] {
        let _ = write!(html, "<th>{head}");
    }
    html.push('\n');
    let longest = steps.iter().map(|step| step.time_us).fold(0.0, f64::max).max(1e-9);
    steps.iter().for_each(|step| row(html, step, longest));
    html.push_str("</table>\n");
}

fn row(html: &mut String, step: &Step, longest: f64) {
    let seconds = (step.time_us / 1e6).max(1e-12);
    let cells = [
        step.step.to_string(),
        time(Duration::from_secs_f64(seconds)),
        format!(
            "<span class=\"bar\" style=\"width:{:.1}rem\"></span>",
            10.0 * step.time_us / longest
        ),
        format!("{:.1} %", step.share * 100.0),
        bytes(step.bytes),
        digits(step.bytes as f64 / seconds / 1e9),
        digits(step.flops as f64 / seconds / 1e9),
        format!("{:.0} %", step.roofline * 100.0),
        step.kernel.clone(),
        escape(&step.name),
    ];
    html.push_str("<tr>");
    cells.iter().for_each(|cell| {
        let _ = write!(html, "<td>{cell}");
    });
    html.push('\n');
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    #[test]
    fn names_cannot_add_markup() {
        assert_eq!(super::escape("<b>&"), "&lt;b&gt;&amp;");
    }
}
