//! Words, names and signs of the text, and where they stand.

use super::print::list;
use crate::{Error, Number, Result};

/// How deep expressions and types may nest.
const MAX_DEPTH: usize = 100;

/// A place in a text.
pub(crate) struct Parser<'t> {
    text: &'t str,
    at: usize,
    depth: usize,
}

fn is_name(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_'
}

impl<'t> Parser<'t> {
    pub(crate) fn new(text: &'t str) -> Parser<'t> {
        Parser { text, at: 0, depth: 0 }
    }

    /// Where the next word or sign starts.
    pub(crate) fn next(&self) -> usize {
        let mut rest = &self.text[self.at..];
        loop {
            rest = rest.trim_start();
            match rest.strip_prefix("//") {
                Some(comment) => rest = comment.find('\n').map_or("", |end| &comment[end..]),
                None => return self.text.len() - rest.len(),
            }
        }
    }

    pub(crate) fn back(&mut self, at: usize) {
        self.at = at;
    }

    pub(crate) fn rest(&self) -> &'t str {
        &self.text[self.next()..]
    }

    pub(crate) fn sees(&self, sign: &str) -> bool {
        self.rest().starts_with(sign)
    }

    pub(crate) fn eat(&mut self, sign: &str) -> bool {
        self.eat_if(self.sees(sign), sign.len())
    }

    /// Eats so many bytes of the next word or sign, if it is what is looked for.
    fn eat_if(&mut self, found: bool, len: usize) -> bool {
        if found {
            self.at = self.next() + len;
        }
        found
    }

    pub(crate) fn expect(&mut self, sign: &str) -> Result {
        if self.eat(sign) { Ok(()) } else { Err(self.expected(&format!("`{sign}`"))) }
    }

    pub(crate) fn word(&mut self) -> Option<&'t str> {
        let word = self.peek_word();
        self.at = self.next() + word.len();
        (!word.is_empty()).then_some(word)
    }

    pub(crate) fn peek_word(&self) -> &'t str {
        let rest = self.rest();
        let end = rest.find(|c| !is_name(c)).unwrap_or(rest.len());
        &rest[..end]
    }

    pub(crate) fn eat_word(&mut self, word: &str) -> bool {
        self.eat_if(self.peek_word() == word, word.len())
    }

    pub(crate) fn expect_word(&mut self, word: &str) -> Result {
        if self.eat_word(word) { Ok(()) } else { Err(self.expected(&format!("`{word}`"))) }
    }

    /// What `%`, `#` or `@` makes a name, if there is one; a ring's stage or parity is one too.
    pub(crate) fn name(&mut self, sigil: char) -> Option<&'t str> {
        let rest = self.rest().strip_prefix(sigil)?;
        let mut end = rest.find(|c| !is_name(c)).unwrap_or(rest.len());
        if end == 0 {
            return None;
        }
        let part = [".stage", ".parity"].into_iter().find(|part| {
            let after = rest[end..].strip_prefix(part);
            sigil == '@' && after.is_some_and(|after| !after.starts_with(is_name))
        });
        end += part.map_or(0, str::len);
        self.at = self.next() + 1 + end;
        Some(&rest[..end])
    }

    pub(crate) fn expect_name(&mut self, sigil: char, of: &str) -> Result<&'t str> {
        self.name(sigil).ok_or_else(|| self.expected(&format!("{of}, `{sigil}name`")))
    }

    /// Whether a `%` here is the remainder, which is then eaten: see the notation.
    pub(crate) fn eat_remainder(&mut self) -> bool {
        let next = self.next();
        let after = self.text[next..].strip_prefix('%');
        let is = after.is_some_and(|after| next == self.at || !after.starts_with(is_name));
        self.eat_if(is, 1)
    }

    pub(crate) fn sees_digit(&self) -> bool {
        self.rest().starts_with(|c: char| c.is_ascii_digit())
    }

    /// An integer without a sign.
    pub(crate) fn natural(&mut self) -> Result<i64> {
        let digits = self.peek_word();
        if !self.sees_digit() {
            return Err(self.expected("an integer"));
        }
        let value = digits.parse().map_err(|_| self.expected("an integer of at most 63 bits"))?;
        self.at = self.next() + digits.len();
        Ok(value)
    }

    pub(crate) fn integer(&mut self) -> Result<i64> {
        let negative = self.eat("-");
        let value = self.natural()?;
        Ok(if negative { -value } else { value })
    }

    /// One or more, with commas between.
    pub(crate) fn list<T>(
        &mut self,
        mut read: impl FnMut(&mut Self) -> Result<T>,
    ) -> Result<Vec<T>> {
        let mut all = vec![read(self)?];
        while self.eat(",") {
            all.push(read(self)?);
        }
        Ok(all)
    }

    /// What stands between two signs.
    pub(crate) fn within<T>(
        &mut self,
        [open, close]: [&str; 2],
        read: impl FnOnce(&mut Self) -> Result<T>,
    ) -> Result<T> {
        let value = self.after(open, read)?;
        self.expect(close)?;
        Ok(value)
    }

    /// Any number of them in parentheses.
    pub(crate) fn parenthesized<T>(
        &mut self,
        read: impl FnMut(&mut Self) -> Result<T>,
    ) -> Result<Vec<T>> {
        self.within(["(", ")"], |p| if p.sees(")") { Ok(Vec::new()) } else { p.list(read) })
    }

    /// A word that is a row's name.
    pub(crate) fn row<T: Copy>(&mut self, what: &str, rows: &[(T, &'static str)]) -> Result<T> {
        let row = rows.iter().find(|row| self.eat_word(row.1));
        let names = || list(rows.iter().map(|row| row.1));
        row.map(|row| row.0).ok_or_else(|| self.expected(&format!("{what} ({})", names())))
    }

    /// `<...>`
    pub(crate) fn argument<T>(&mut self, read: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        self.within(["<", ">"], read)
    }

    /// What stands behind a sign.
    pub(crate) fn after<T>(
        &mut self,
        sign: &str,
        read: impl FnOnce(&mut Self) -> Result<T>,
    ) -> Result<T> {
        self.expect(sign).and_then(|()| read(self))
    }

    pub(crate) fn after_comma<T>(&mut self, of: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        self.after(",", of)
    }

    /// `, word`, or nothing.
    pub(crate) fn flag(&mut self, word: &str) -> Result<bool> {
        if self.eat(",") { self.expect_word(word).map(|()| true) } else { Ok(false) }
    }

    pub(crate) fn dimensions(&mut self) -> Result<Vec<usize>> {
        self.list(Parser::dimension)
    }

    pub(crate) fn dimension(&mut self) -> Result<usize> {
        let at = self.next();
        let number = self.natural()?;
        usize::try_from(number).map_err(|_| self.fail(at, "a dimension is a small number"))
    }

    pub(crate) fn number(&mut self) -> Result<Number> {
        self.float().ok_or_else(|| self.expected("a number"))
    }

    pub(crate) fn float(&mut self) -> Option<Number> {
        let rest = &self.rest();
        let sign = usize::from(rest.starts_with('-'));
        let digits = |c: char| c.is_ascii_digit() || c == '.';
        let mut end = sign + rest[sign..].find(|c| !digits(c)).unwrap_or(rest.len() - sign);
        if rest[sign..].starts_with("inf") {
            end = sign + 3;
        } else if end == sign {
            return None;
        } else if rest[end..].starts_with('e') {
            let exponent = rest[end + 1..].strip_prefix('-').unwrap_or(&rest[end + 1..]);
            let first = rest.len() - exponent.len();
            end = first + exponent.find(|c: char| !c.is_ascii_digit()).unwrap_or(exponent.len());
        }
        let value = rest[..end].parse::<f64>().ok().filter(|value| !value.is_nan())?;
        self.back(self.next() + end);
        Some(Number(value))
    }

    /// Whether a parenthesis here holds several parts rather than an expression.
    pub(crate) fn opens_tuple(&self) -> bool {
        let mut depth = 0_usize;
        for sign in self.rest().chars() {
            match sign {
                '(' => depth += 1,
                // The first sign opened no parenthesis.
                _ if depth == 0 => return false,
                ')' if depth == 1 => return false,
                ')' => depth -= 1,
                ',' if depth == 1 => return true,
                // No expression goes on behind these.
                '{' | '}' | '[' | ']' | ';' => return false,
                _ => {}
            }
        }
        false
    }

    /// What stands before a sign, which is not eaten.
    pub(crate) fn until(&mut self, sign: char) -> &'t str {
        let rest = self.rest();
        let end = rest.find(sign).unwrap_or(rest.len());
        self.at = self.next() + end;
        rest[..end].trim_end()
    }

    /// One level deeper.
    pub(crate) fn nested<T>(&mut self, read: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        if self.depth >= MAX_DEPTH {
            return Err(self.fail(self.next(), Error::Depth.to_string()));
        }
        self.depth += 1;
        let value = read(self);
        self.depth -= 1;
        value
    }

    pub(crate) fn end(&self) -> Result {
        if self.rest().is_empty() { Ok(()) } else { Err(self.expected("the end of the text")) }
    }

    pub(crate) fn expected(&self, what: &str) -> Error {
        let found = match (self.rest().chars().next(), self.peek_word()) {
            (None, _) => "the end".to_owned(),
            (Some(sign), "") => format!("`{sign}`"),
            (Some(_), word) => format!("`{word}`"),
        };
        self.fail(self.next(), format!("expected {what}, found {found}"))
    }

    pub(crate) fn fail(&self, at: usize, message: impl Into<String>) -> Error {
        let before = &self.text[..at];
        let line = before.matches('\n').count() + 1;
        let column = before.rsplit('\n').next().unwrap_or_default().chars().count() + 1;
        Error::Text { at, line, column, message: message.into() }
    }

    /// What is read, or the error with this position if it has none yet.
    pub(crate) fn placed<T>(&mut self, read: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        let at = self.next();
        read(self).map_err(|error| match error.position() {
            Some(_) => error,
            None => self.fail(at, error.to_string()),
        })
    }
}
