//! Text out of a file as a terminal or a page may show it.

use std::borrow::Cow;
use std::fmt::Write;

/// The text with every character that shows nothing itself, but changes what is shown, written as its number: an escape
/// character as `\u{1b}`. Those are controls, among them line breaks, marks that turn the direction of writing, and
/// characters of no width that hide.
///
/// Names in an import are such texts already, and so are those that errors of an import give.
pub fn visible(text: &str) -> Cow<'_, str> {
    if !text.contains(is_hidden) {
        return Cow::Borrowed(text);
    }
    let mut shown = String::with_capacity(text.len() + 8);
    for c in text.chars() {
        match is_hidden(c) {
            true => write!(shown, "{}", c.escape_unicode()).expect("a string takes all text"),
            false => shown.push(c),
        }
    }
    Cow::Owned(shown)
}

/// Whether a character changes how others are shown, and shows nothing itself. Joiners, which scripts need, and what
/// belongs to the letter before are none.
pub fn is_hidden(c: char) -> bool {
    c.is_control()
        || matches!(
            c,
            // Direction of writing.
            '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}'
            // Breaks of lines and paragraphs.
            | '\u{2028}' | '\u{2029}'
            // No width.
            | '\u{ad}' | '\u{180e}' | '\u{200b}' | '\u{2060}'..='\u{2064}' | '\u{206a}'..='\u{206f}' | '\u{feff}'
            // Annotations, and tags.
            | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}'
        )
}

/// Makes a text visible in place.
pub(crate) fn make_visible(text: &mut String) {
    if let Cow::Owned(shown) = visible(text) {
        *text = shown;
    }
}

#[cfg(test)]
mod tests {
    use super::visible;
    use std::borrow::Cow;

    #[test]
    fn what_shows_itself_stays() {
        for text in
            ["", "/encoder/layer.0/MatMul", "a b", "größe", "数量", "نیم\u{200c}فاصله", "<b>&\"\\"]
        {
            assert!(matches!(visible(text), Cow::Borrowed(same) if same == text), "{text}");
        }
    }

    #[test]
    fn what_changes_what_is_shown_is_a_number() {
        let rows = [
            ("\u{1b}]0;title\u{7}", r"\u{1b}]0;title\u{7}"),
            ("a\nnote: b\r\t", r"a\u{a}note: b\u{d}\u{9}"),
            ("\u{7f}\u{9b}2J", r"\u{7f}\u{9b}2J"),
            ("a\u{202e}b\u{2066}c\u{200f}", r"a\u{202e}b\u{2066}c\u{200f}"),
            ("a\u{200b}\u{feff}\u{e0041}\u{2028}", r"a\u{200b}\u{feff}\u{e0041}\u{2028}"),
        ];
        for (text, shown) in rows {
            assert_eq!(visible(text), shown);
            // What is shown once is shown so again.
            assert_eq!(visible(shown), shown);
        }
    }
}
