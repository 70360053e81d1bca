//! The pages of `--report`: each is one file that needs nothing else and asks for nothing.
//!
//! What a page shows is drawn by its scripts from one block of JSON. The text that stdout has stands in it as well.

use crate::diff::Diff;
use crate::picture::Picture;
use crate::report::Report;
use crate::summary;
use crate::table::Row;

use graphene_frontend::visible::visible;
use serde::Serialize;
use serde_json::Value;

const SHELL: &str = include_str!("page/shell.html");
const STYLE: &str = include_str!("page/page.css");

/// What is special to a page: its sections, and its scripts in the order in which they run, all in one scope.
struct Kind {
    body: &'static str,
    scripts: &'static [&'static str],
}

const RUN: Kind = Kind {
    body: include_str!("page/run.html"),
    scripts: &[
        include_str!("page/base.js"),
        include_str!("page/table.js"),
        include_str!("page/look.js"),
        include_str!("page/head.js"),
        include_str!("page/steps.js"),
        include_str!("page/graph.js"),
        include_str!("page/charts.js"),
        include_str!("page/run.js"),
    ],
};
const DIFF: Kind = Kind {
    body: include_str!("page/diff.html"),
    scripts: &[
        include_str!("page/base.js"),
        include_str!("page/table.js"),
        include_str!("page/diff.js"),
    ],
};

/// What the scripts of a run's page draw.
#[derive(Serialize)]
struct RunData<'a> {
    report: &'a Report,
    picture: &'a Picture,
    rows: &'a [Row],
    /// The rows as a file to save.
    csv: &'a str,
}

/// What those of a comparison's page draw.
#[derive(Serialize)]
struct DiffData<'a> {
    diff: &'a Diff,
}

/// The page of a run.
pub(crate) fn page(report: &Report, picture: &Picture, rows: &[Row], csv: &str) -> String {
    let data = RunData { report, picture, rows, csv };
    made(&RUN, &report.model.name, &summary::summary(report), &data)
}

/// The page of a comparison.
pub(crate) fn of_diff(diff: &Diff) -> String {
    made(&DIFF, &diff.title(), &diff.text(), &DiffData { diff })
}

fn made(kind: &Kind, title: &str, summary: &str, data: &impl Serialize) -> String {
    let data = serde_json::to_value(data);
    let data = data.expect("maps have strings for keys, and nothing else can fail");
    let (title, data) = (escape(&visible(title)), inert(&shown(data).to_string()));
    let summary: String = summary.lines().map(|line| escape(&visible(line)) + "\n").collect();
    let script = kind.scripts.concat();
    let body = fill(kind.body, |name| if name == "summary" { &summary } else { "" });
    fill(SHELL, |name| match name {
        "title" => &title,
        "style" => STYLE,
        "body" => &body,
        "data" => &data,
        "script" => &script,
        _ => "",
    })
}

/// The text with what stands for each `{{name}}`; what is put in is not looked at again.
fn fill<'a>(template: &'a str, value: impl Fn(&str) -> &'a str) -> String {
    let mut parts = template.split("{{");
    let mut text = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let (name, rest) = part.split_once("}}").unwrap_or((part, ""));
        text += value(name);
        text += rest;
    }
    text
}

/// The data with nothing in its texts that a reader would not see; line breaks stay, as those of a file to save.
fn shown(data: Value) -> Value {
    let lines = |text: &str| text.split('\n').map(visible).collect::<Vec<_>>().join("\n");
    match data {
        Value::String(text) => Value::String(lines(&text)),
        Value::Array(values) => values.into_iter().map(shown).collect(),
        Value::Object(fields) => {
            let shown = |(key, value): (String, Value)| (lines(&key), shown(value));
            Value::Object(fields.into_iter().map(shown).collect())
        }
        value @ (Value::Null | Value::Bool(_) | Value::Number(_)) => value,
    }
}

/// JSON that no parser of HTML finds a tag in. These characters stand in strings only.
fn inert(json: &str) -> String {
    json.replace('<', "\\u003c").replace('>', "\\u003e").replace('&', "\\u0026")
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::{DIFF, RUN, SHELL, STYLE, escape, fill, inert, made};

    #[test]
    fn names_cannot_add_markup() {
        assert_eq!(escape("<b>&"), "&lt;b&gt;&amp;");
        let name = "</script><img src=x onerror=alert(1)>&<!--";
        let json = inert(&serde_json::to_string(name).unwrap());
        assert!(!json.contains(['<', '>', '&']), "{json}");
        assert_eq!(serde_json::from_str::<String>(&json).unwrap(), name);
    }

    /// What turns the direction of writing or cannot be seen is a number wherever it stands.
    #[test]
    fn names_cannot_hide() {
        let name = "\u{202e}\u{2066}\u{200b}\u{1b}\"'</script>";
        let data = std::collections::BTreeMap::from([(name, name)]);
        let page = made(&RUN, name, name, &data);
        let hidden = page
            .chars()
            .find(|&c| c != '\n' && (c.is_control() || "\u{202e}\u{2066}\u{200b}".contains(c)));
        assert_eq!(hidden, None);
        let plain = made(&RUN, "", "", &std::collections::BTreeMap::from([("", "")]));
        assert_eq!(page.matches("</script>").count(), plain.matches("</script>").count());
        // The title twice and the text; in JSON, where a backslash is two, the key and the value.
        assert_eq!(page.matches(r"\u{202e}\u{2066}\u{200b}\u{1b}").count(), 3);
        assert_eq!(page.matches(r"\\u{202e}\\u{2066}\\u{200b}\\u{1b}").count(), 2);
    }

    #[test]
    fn what_is_filled_in_is_not_filled_again() {
        let value = |name: &str| if name == "a" { "{{b}}" } else { "B" };
        assert_eq!(fill("x{{a}}y{{b}}z", value), "x{{b}}yBz");
    }

    #[test]
    fn the_pages_need_nothing_else() {
        let scripts = [RUN.scripts.concat(), DIFF.scripts.concat()].concat();
        let all = [SHELL, STYLE, RUN.body, DIFF.body, &scripts].concat();
        for word in ["http:", "https:", "src=", "url(", "@import", "fetch(", "import(", "XMLHttp"] {
            assert!(!all.contains(word), "{word}");
        }
    }
}
