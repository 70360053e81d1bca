//! Rust source in parts: code, string literals, comments.

use std::ops::Range;

/// What a part of a source is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    Code,
    /// A string literal with its quotes.
    Text,
    /// A comment with its slashes; documentation is one.
    Comment,
}

/// The parts of a source, in order and without gaps.
pub(crate) fn parts(source: &str) -> Vec<(Kind, Range<usize>)> {
    let mut parts = Vec::new();
    let (mut code, mut at) = (0, 0);
    while at < source.len() {
        let Some((kind, end)) = literal(source, at) else {
            at += step(source, at);
            continue;
        };
        if code < at {
            parts.push((Kind::Code, code..at));
        }
        parts.push((kind, at..end));
        (code, at) = (end, end);
    }
    if code < at {
        parts.push((Kind::Code, code..at));
    }
    parts
}

/// The comment or string literal that begins here, and where it ends.
fn literal(source: &str, at: usize) -> Option<(Kind, usize)> {
    let rest = &source[at..];
    let until = |from: usize, end: &str| {
        rest[from..].find(end).map_or(source.len(), |found| at + from + found + end.len())
    };
    if rest.starts_with("//") {
        return Some((Kind::Comment, rest.find('\n').map_or(source.len(), |end| at + end)));
    }
    if rest.starts_with("/*") {
        return Some((Kind::Comment, until(2, "*/")));
    }
    if rest.starts_with('"') {
        let mut escaped = false;
        for (place, letter) in rest.char_indices().skip(1) {
            match letter {
                '"' if !escaped => return Some((Kind::Text, at + place + 1)),
                _ => escaped = letter == '\\' && !escaped,
            }
        }
        return Some((Kind::Text, source.len()));
    }
    let named = source[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_');
    let raw = rest.strip_prefix("br").or_else(|| rest.strip_prefix('r')).filter(|_| !named)?;
    let hashes = raw.len() - raw.trim_start_matches('#').len();
    let body = raw[hashes..].strip_prefix('"')?;
    Some((Kind::Text, until(rest.len() - body.len(), &format!("\"{}", "#".repeat(hashes)))))
}

/// How many bytes of code are one: a character literal may be a quote or a slash.
fn step(source: &str, at: usize) -> usize {
    let rest = &source[at..];
    let letter = rest.chars().next().map_or(1, char::len_utf8);
    if letter > 1 || !rest.starts_with('\'') {
        return letter;
    }
    let mut inside = rest[1..].char_indices();
    match (inside.next(), inside.next()) {
        (Some((_, '\\')), Some((second, escape))) => {
            let from = 1 + second + escape.len_utf8();
            rest[from..].find('\'').map_or(1, |end| from + end + 1)
        }
        // A lifetime has no quote behind it.
        (Some(_), Some((second, '\''))) => 1 + second + 1,
        _ => 1,
    }
}

#[test]
fn sources_are_cut_into_code_strings_and_comments() {
    use Kind::{Code, Comment, Text};
    let rows: &[(&str, &[(Kind, &str)])] = &[
        ("let room = 1;", &[(Code, "let room = 1;")]),
        ("a // \"b\"\nc", &[(Code, "a "), (Comment, "// \"b\""), (Code, "\nc")]),
        ("a /* \" */ b", &[(Code, "a "), (Comment, "/* \" */"), (Code, " b")]),
        (r#"f("a \" // b", c)"#, &[(Code, "f("), (Text, r#""a \" // b""#), (Code, ", c)")]),
        (r#""\\" d"#, &[(Text, r#""\\""#), (Code, " d")]),
        ("r#\"a \" b\"# c", &[(Text, "r#\"a \" b\"#"), (Code, " c")]),
        ("for\"a\"", &[(Code, "for"), (Text, "\"a\"")]),
        ("'\"' + '\\'' + b'/' // é", &[(Code, "'\"' + '\\'' + b'/' "), (Comment, "// é")]),
        ("fn f<'a>(x: &'a str) \"x\"", &[(Code, "fn f<'a>(x: &'a str) "), (Text, "\"x\"")]),
    ];
    for (source, expected) in rows {
        let found = parts(source);
        let found: Vec<_> = found.into_iter().map(|(kind, at)| (kind, &source[at])).collect();
        assert_eq!(found, *expected, "{source}");
    }
}
