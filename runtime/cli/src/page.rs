//! The page of `--report`: one file that needs nothing else and asks for nothing, with the graph, a bar a group, a timeline
//! and the arena.
//!
//! What it shows is drawn by `page/page.js` from one block of JSON. The summary stands in it as text as well.

use crate::picture::Picture;
use crate::report::Report;
use crate::summary;
use serde::Serialize;

const PAGE: &str = include_str!("page/page.html");
const STYLE: &str = include_str!("page/page.css");
/// In the order in which they run: all in one scope.
const SCRIPTS: [&str; 4] = [
    include_str!("page/tools.js"),
    include_str!("page/charts.js"),
    include_str!("page/graph.js"),
    include_str!("page/page.js"),
];

/// What the scripts draw.
#[derive(Serialize)]
struct Data<'a> {
    report: &'a Report,
    picture: &'a Picture,
}

/// The page.
pub(crate) fn page(report: &Report, picture: &Picture) -> String {
    let data = serde_json::to_string(&Data { report, picture });
    let data = data.expect("maps have strings for keys, and nothing else can fail");
    let (title, text, data) =
        (escape(&report.model.name), escape(&summary::summary(report)), inert(&data));
    let script = SCRIPTS.concat();
    fill(PAGE, |name| match name {
        "title" => &title,
        "style" => STYLE,
        "summary" => &text,
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

/// JSON that no parser of HTML finds a tag in. These characters stand in strings only.
fn inert(json: &str) -> String {
    let json = json.replace('<', "\\u003c").replace('>', "\\u003e").replace('&', "\\u0026");
    json.replace('\u{2028}', "\\u2028").replace('\u{2029}', "\\u2029")
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::{PAGE, SCRIPTS, STYLE, escape, fill, inert};

    #[test]
    fn names_cannot_add_markup() {
        assert_eq!(escape("<b>&"), "&lt;b&gt;&amp;");
        let name = "</script><img src=x onerror=alert(1)>&<!--";
        let json = inert(&serde_json::to_string(name).unwrap());
        assert!(!json.contains(['<', '>', '&']), "{json}");
        assert_eq!(serde_json::from_str::<String>(&json).unwrap(), name);
    }

    #[test]
    fn what_is_filled_in_is_not_filled_again() {
        let value = |name: &str| if name == "a" { "{{b}}" } else { "B" };
        assert_eq!(fill("x{{a}}y{{b}}z", value), "x{{b}}yBz");
    }

    #[test]
    fn the_page_needs_nothing_else() {
        let all = [PAGE, STYLE, &SCRIPTS.concat()].concat();
        for word in ["http:", "https:", "src=", "url(", "@import", "fetch(", "import(", "XMLHttp"] {
            assert!(!all.contains(word), "{word}");
        }
    }
}
