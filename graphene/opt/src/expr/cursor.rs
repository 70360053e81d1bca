//! Words and signs of an expression, and where they stand.

/// A place in a text.
pub(super) struct Cursor<'t> {
    text: &'t str,
    at: usize,
}

impl<'t> Cursor<'t> {
    pub(super) fn new(text: &'t str) -> Cursor<'t> {
        Cursor { text, at: 0 }
    }

    /// Where the next word or sign starts.
    pub(super) fn next(&self) -> usize {
        self.text.len() - self.rest().len()
    }

    pub(super) fn rest(&self) -> &'t str {
        self.text[self.at..].trim_start()
    }

    /// Goes on so many bytes behind where the next word starts.
    pub(super) fn skip(&mut self, bytes: usize) {
        self.at = self.next() + bytes;
    }

    pub(super) fn eat(&mut self, sign: &str) -> bool {
        let sees = self.rest().starts_with(sign);
        if sees {
            self.skip(sign.len());
        }
        sees
    }

    /// The word here, which may be a number; empty where there is none.
    pub(super) fn word(&self) -> &'t str {
        let rest = self.rest();
        let end = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_');
        &rest[..end.unwrap_or(rest.len())]
    }

    pub(super) fn eat_word(&mut self, word: &str) -> bool {
        let same = self.word() == word;
        if same {
            self.skip(word.len());
        }
        same
    }
}
