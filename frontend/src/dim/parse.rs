//! The text form of dims: `2*sequence + 1`, `floor(batch*sequence + 3, 4)`, `min(sequence, 512)`.
//!
//! It also reads the spellings that exporters put into `dim_param`: `a // b`, `floor(a/b)`, `Max(a, b)`.

use super::{Dim, Symbol};
use std::str::FromStr;

/// Deeper nesting than any real file has, and far below what the stack bears.
const MAX_DEPTH: usize = 64;

/// Text that is not a dimension.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("not a dimension: `{text}` ({reason} at byte {at})")]
pub struct ParseDimError {
    text: String,
    reason: &'static str,
    at: usize,
}

/// Whether a symbol's name is printed without quotes.
pub(super) fn is_identifier(name: &str) -> bool {
    let mut chars = name.chars();
    chars.next().is_some_and(|c| c.is_ascii_alphabetic() || c == '_')
        && chars.all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | ':'))
        && !matches!(name.to_ascii_lowercase().as_str(), "floor" | "min" | "max")
}

impl FromStr for Dim {
    type Err = ParseDimError;
    fn from_str(text: &str) -> Result<Self, ParseDimError> {
        let mut parser = Parser { text, at: 0, depth: 0 };
        let dim = parser.sum()?;
        match parser.peek() {
            None => Ok(dim),
            Some(_) => Err(parser.error("unexpected text")),
        }
    }
}

impl Symbol {
    /// The symbol for an ONNX `dim_param`, quoted on printing where it is no identifier.
    pub fn quoted(name: &str) -> Self {
        Self::new(&name.replace('`', "'"))
    }
}

struct Parser<'a> {
    text: &'a str,
    at: usize,
    depth: usize,
}

impl Parser<'_> {
    fn error(&self, reason: &'static str) -> ParseDimError {
        ParseDimError { text: self.text.chars().take(120).collect(), reason, at: self.at }
    }

    fn peek(&mut self) -> Option<char> {
        let rest = &self.text[self.at..];
        self.at += rest.len() - rest.trim_start().len();
        self.text[self.at..].chars().next()
    }

    fn eat(&mut self, token: &str) -> bool {
        self.peek();
        let found = self.text[self.at..].starts_with(token);
        if found {
            self.at += token.len();
        }
        found
    }

    fn expect(&mut self, token: &str, reason: &'static str) -> Result<(), ParseDimError> {
        if self.eat(token) { Ok(()) } else { Err(self.error(reason)) }
    }

    fn sum(&mut self) -> Result<Dim, ParseDimError> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return Err(self.error("nested too deeply"));
        }
        let negative = self.eat("-");
        let first = self.product()?;
        let mut sum = if negative { -&first } else { first };
        loop {
            if self.eat("+") {
                sum = sum + self.product()?;
            } else if self.eat("-") {
                sum = sum - self.product()?;
            } else {
                self.depth -= 1;
                return Ok(sum);
            }
        }
    }

    fn product(&mut self) -> Result<Dim, ParseDimError> {
        let mut product = self.factor()?;
        loop {
            if self.eat("*") {
                product = product * self.factor()?;
            } else if self.eat("//") {
                let divisor = self.factor()?;
                product =
                    product.floor_div(&divisor).map_err(|_| self.error("division by zero"))?;
            } else {
                return Ok(product);
            }
        }
    }

    fn factor(&mut self) -> Result<Dim, ParseDimError> {
        match self.peek() {
            Some('(') => {
                self.at += 1;
                let inner = self.sum()?;
                self.expect(")", "expected `)`")?;
                Ok(inner)
            }
            Some('`') => {
                let name = &self.text[self.at + 1..];
                let end = name.find('`').ok_or_else(|| self.error("unclosed quote"))?;
                self.at += end + 2;
                Ok(Dim::symbol(&name[..end]))
            }
            Some(c) if c.is_ascii_digit() => {
                let digits = self.take(|c| c.is_ascii_digit());
                digits.parse::<i64>().map(Dim::from).map_err(|_| self.error("number too large"))
            }
            Some(c) if c.is_ascii_alphabetic() || c == '_' => self.name_or_call(),
            _ => Err(self.error("expected a number, a name or `(`")),
        }
    }

    fn take(&mut self, accept: impl Fn(char) -> bool) -> String {
        let rest = &self.text[self.at..];
        let end = rest.find(|c| !accept(c)).unwrap_or(rest.len());
        self.at += end;
        rest[..end].to_owned()
    }

    fn name_or_call(&mut self) -> Result<Dim, ParseDimError> {
        let name = self.take(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | ':'));
        let call = name.to_ascii_lowercase();
        if !matches!(call.as_str(), "floor" | "min" | "max") {
            return Ok(Dim::symbol(&name));
        }
        self.expect("(", "expected `(`")?;
        let a = self.sum()?;
        if !self.eat(",") {
            self.expect("/", "expected `,`")?;
        }
        let b = self.sum()?;
        self.expect(")", "expected `)`")?;
        match call.as_str() {
            "min" => Ok(a.minimum(&b)),
            "max" => Ok(a.maximum(&b)),
            _ => a.floor_div(&b).map_err(|_| self.error("division by zero")),
        }
    }
}
