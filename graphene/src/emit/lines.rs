//! Lines of at most a hundred columns, where the text has spaces to break at.

const WIDTH: usize = 100;

/// How much further in the rest of a line goes on.
const INDENT: usize = 4;

/// The lines of a statement, `indent` columns in. A broken string goes on as another one, which C joins; comments stay whole.
pub(super) fn broken(statement: &str, indent: usize) -> String {
    let mut text = String::new();
    for line in statement.lines() {
        let (mut rest, mut margin, mut quoted) = (line, indent, false);
        while let Some(at) = last_space(rest, WIDTH.saturating_sub(margin + 2)) {
            let (piece, after) = rest.split_at(at + 1);
            let open = if quoted { "\"" } else { "" };
            quoted ^= piece.matches('"').count() % 2 == 1;
            // Within a string the space counts.
            let (piece, close) = if quoted { (piece, "\"") } else { (piece.trim_end(), "") };
            text.push_str(&format!("{:margin$}{open}{piece}{close}\n", ""));
            (rest, margin) = (after, indent + INDENT);
        }
        let open = if quoted { "\"" } else { "" };
        text.push_str(&format!("{:margin$}{open}{rest}\n", ""));
    }
    text
}

/// Where to break a text that does not fit: behind a sign that ends something, unless that would leave most of the line empty.
fn last_space(text: &str, width: usize) -> Option<usize> {
    if text.len() <= width + 2 || text.starts_with("//") || !text.is_ascii() {
        return None;
    }
    let ends = |at: &usize| text[..*at].ends_with([',', ':', ';', '=', '&']);
    let spaces = || text[..width].rmatch_indices(' ').map(|(at, _)| at).filter(|&at| at > 0);
    spaces().find(ends).filter(|&at| at > width / 2).or_else(|| spaces().next())
}
