//! Reading the text form of a graph.
//!
//! Nothing in a text can make it panic: values are looked up before they are used, bodies nest to a bound, and
//! nothing is allocated but in proportion to the text.

use super::field::Codec;
use super::{content_hash, element, ops};
use crate::dim::{Dim, ParseDimError};
use crate::graph::{Graph, NodeId, ValueId};
use crate::infer::InferError;
use crate::op::Op;
use crate::tensor::{Tensor, TensorError};
use crate::types::{ParseTypeError, TensorType};
use crate::verify::MAX_DEPTH;
use std::collections::BTreeMap;

/// Text that is no graph, and where.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
#[error("line {line}, column {column}: {reason}")]
pub struct ParseGraphError {
    /// The line, from one.
    pub line: usize,
    /// The column in characters, from one.
    pub column: usize,
    /// What is wrong.
    pub reason: Reason,
}

/// What is wrong with a text.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
pub enum Reason {
    /// Something else should stand here.
    #[error("expected {0}")]
    Expected(&'static str),
    /// A token or keyword should stand here.
    #[error("expected `{0}`")]
    Token(String),
    /// No operation has this name.
    #[error("`{0}` is no operation")]
    UnknownOp(String),
    /// The value is not defined above.
    #[error("there is no value `{0}` here")]
    UnknownValue(String),
    /// Nodes are numbered consecutively.
    #[error("the next node is {0}")]
    NodeNumber(NodeId),
    /// A malformed dim.
    #[error(transparent)]
    Dim(#[from] ParseDimError),
    /// A malformed type.
    #[error(transparent)]
    Type(#[from] ParseTypeError),
    /// The node's inputs do not fit its operation.
    #[error(transparent)]
    Infer(#[from] InferError),
    /// The node has other types than those written.
    #[error("the types here are {0}")]
    Types(String),
    /// An element of a constant does not fit its type, or there are too few or too many.
    #[error("these elements make no {0}")]
    Elements(TensorType),
    /// The table of weights has no such row.
    #[error("there is no weight @{0}")]
    NoWeight(usize),
    /// The weight is another one than the text speaks of.
    #[error("weight @{0} has another type or content")]
    OtherWeight(usize),
    /// A tensor that cannot be.
    #[error(transparent)]
    Tensor(#[from] TensorError),
    /// Bodies are nested too deeply.
    #[error("bodies are nested more than {MAX_DEPTH} deep")]
    Depth,
    /// The header lists other symbols than the graph has.
    #[error("the graph's symbols are {0}")]
    Symbols(String),
}

/// The graph of which `text` is the text form; `weights` is what `@0`, `@1`, … stand for.
///
/// # Errors
/// [`ParseGraphError`], at the first place that does not fit.
pub fn parse(text: &str, weights: &[Tensor]) -> Result<Graph, ParseGraphError> {
    let prototypes = Op::prototypes().into_iter().map(|op| (op.name(), op)).collect();
    let mut parser = Parser { text, at: 0, depth: 0, weights, prototypes };
    let header = parser.here();
    let mut declared = Vec::new();
    if parser.eat_keyword("symbols") {
        loop {
            declared.push(parser.dim()?.to_string());
            if !parser.eat(",") {
                break;
            }
        }
    }
    let graph = parser.graph()?;
    if parser.peek().is_some() {
        return Err(parser.error(Reason::Expected("the end of the text")));
    }
    let symbols: Vec<_> = graph.symbols().iter().map(ToString::to_string).collect();
    if symbols != declared {
        return Err(parser.error_at(header, Reason::Symbols(symbols.join(", "))));
    }
    Ok(graph)
}

/// A place in a text being read.
pub(super) struct Parser<'t> {
    text: &'t str,
    at: usize,
    depth: usize,
    weights: &'t [Tensor],
    prototypes: BTreeMap<&'static str, Op>,
}

type Parsed<T> = Result<T, ParseGraphError>;

/// Elements written out, or a weight by number and hash.
enum Constant<'t> {
    Inline(Vec<&'t str>),
    Weight(usize, u64),
}

impl<'t> Parser<'t> {
    fn graph(&mut self) -> Parsed<Graph> {
        let mut graph = Graph::new();
        while self.peek() == Some('%') {
            self.node(&mut graph)?;
        }
        self.keyword("return")?;
        if self.peek() != Some('"') {
            return Ok(graph);
        }
        loop {
            let name = self.string()?;
            self.expect("=")?;
            let value = self.value(&graph)?;
            graph.add_output(&name, value);
            if !self.eat(",") {
                return Ok(graph);
            }
        }
    }

    /// A graph one level down.
    pub(super) fn body(&mut self) -> Parsed<Graph> {
        if self.depth == MAX_DEPTH {
            return Err(self.error(Reason::Depth));
        }
        self.depth += 1;
        let graph = self.graph()?;
        self.depth -= 1;
        Ok(graph)
    }

    fn node(&mut self, graph: &mut Graph) -> Parsed<()> {
        let start = self.here();
        let next = NodeId::from_index(graph.len());
        self.expect("%")?;
        if self.word().parse() != Ok(next.index()) {
            return Err(self.error_at(start, Reason::NodeNumber(next)));
        }
        self.expect("=")?;
        let at = self.here();
        match self.word() {
            "Input" => self.input(graph),
            "Constant" => self.constant(graph),
            name => {
                let Some(op) = self.prototypes.get(name).cloned() else {
                    let name = name.chars().take(40).collect();
                    return Err(self.error_at(at, Reason::UnknownOp(name)));
                };
                self.operation(graph, at, op)
            }
        }
    }

    fn input(&mut self, graph: &mut Graph) -> Parsed<()> {
        let at = self.here();
        self.expect(":")?;
        let ty = self.ty()?;
        let name = self.string()?;
        graph.add_input(&name, ty).map_err(|error| self.error_at(at, error.into()))?;
        Ok(())
    }

    fn constant(&mut self, graph: &mut Graph) -> Parsed<()> {
        let at = self.here();
        let constant = self.elements()?;
        self.expect(":")?;
        let ty = self.ty()?;
        let tensor = match constant {
            Constant::Inline(words) => {
                let tensor =
                    ty.known_shape().and_then(|shape| element::parse(ty.dtype, shape, &words));
                tensor.ok_or_else(|| self.error_at(at, Reason::Elements(ty)))?
            }
            Constant::Weight(place, hash) => {
                let weights = self.weights;
                let weight =
                    weights.get(place).ok_or_else(|| self.error_at(at, Reason::NoWeight(place)))?;
                if TensorType::of(weight) != ty || content_hash(weight) != hash {
                    return Err(self.error_at(at, Reason::OtherWeight(place)));
                }
                weight.clone()
            }
        };
        let name = self.string()?;
        graph.add_constant(&name, tensor);
        Ok(())
    }

    fn elements(&mut self) -> Parsed<Constant<'t>> {
        self.expect("(")?;
        if self.eat("@") {
            let place = self.word_as("a place in the weights", |word| word.parse().ok())?;
            let hash = self.word_as("a hash", |word| u64::from_str_radix(word, 16).ok())?;
            self.expect(")")?;
            return Ok(Constant::Weight(place, hash));
        }
        let mut words = Vec::new();
        if self.eat(")") {
            return Ok(Constant::Inline(words));
        }
        loop {
            words.push(self.word());
            if self.eat(")") {
                return Ok(Constant::Inline(words));
            }
            self.expect(",")?;
        }
    }

    fn operation(&mut self, graph: &mut Graph, at: usize, mut op: Op) -> Parsed<()> {
        let inputs = self.inputs(graph)?;
        let mut codec = Codec::parse(self);
        ops::attributes(&mut op, &mut codec)?;
        codec.finish()?;
        self.expect(":")?;
        let types_at = self.here();
        let mut types = vec![self.ty()?];
        while self.eat(",") {
            types.push(self.ty()?);
        }
        let name = self.string()?;
        let node =
            graph.add(&name, op, &inputs).map_err(|error| self.error_at(at, error.into()))?;
        let inferred = graph.node(node).outputs();
        if inferred != types {
            let inferred: Vec<_> = inferred.iter().map(TensorType::to_string).collect();
            return Err(self.error_at(types_at, Reason::Types(inferred.join(", "))));
        }
        Ok(())
    }

    fn inputs(&mut self, graph: &Graph) -> Parsed<Vec<Option<ValueId>>> {
        let mut inputs = Vec::new();
        if !self.eat("(") || self.eat(")") {
            return Ok(inputs);
        }
        loop {
            inputs.push(if self.eat_keyword("_") { None } else { Some(self.value(graph)?) });
            if self.eat(")") {
                return Ok(inputs);
            }
            self.expect(",")?;
        }
    }

    /// `%7` or `%7.1`, of the nodes so far.
    fn value(&mut self, graph: &Graph) -> Parsed<ValueId> {
        self.expect("%")?;
        let at = self.here();
        let word = self.word();
        let (node, output) = word.split_once('.').unwrap_or((word, "0"));
        let value = node.parse().ok().zip(output.parse().ok()).filter(|&(node, output)| {
            node < graph.len()
                && (output as usize) < graph.node(NodeId::from_index(node)).outputs().len()
        });
        match value {
            Some((node, output)) => Ok(ValueId { node: NodeId::from_index(node), output }),
            None => {
                let name = word.chars().take(40).collect();
                Err(self.error_at(at, Reason::UnknownValue(name)))
            }
        }
    }

    fn ty(&mut self) -> Parsed<TensorType> {
        let at = self.here();
        self.until(&[']']);
        if self.text[self.at..].starts_with(']') {
            self.at += 1;
        }
        let text = &self.text[at..self.at];
        text.parse().map_err(|error: ParseTypeError| self.error_at(at, error.into()))
    }

    pub(super) fn dim(&mut self) -> Parsed<Dim> {
        let at = self.here();
        let text = self.until(&[',', ']', '}', '\n', '%', '#']);
        text.parse().map_err(|error: ParseDimError| self.error_at(at, error.into()))
    }

    /// The text up to one of these characters outside of parentheses and quoted symbols.
    fn until(&mut self, ends: &[char]) -> &'t str {
        let rest = &self.text[self.at..];
        let (mut parens, mut quoted) = (0_usize, false);
        let end = rest.find(|c| {
            match c {
                '`' => quoted = !quoted,
                '(' if !quoted => parens += 1,
                ')' if !quoted => parens = parens.saturating_sub(1),
                _ => {}
            }
            !quoted && parens == 0 && ends.contains(&c)
        });
        let end = end.unwrap_or(rest.len());
        self.at += end;
        &rest[..end]
    }

    /// A name in quotes.
    fn string(&mut self) -> Parsed<String> {
        let start = self.here();
        let unclosed = Reason::Expected("a name in quotes, closed");
        self.expect("\"")
            .map_err(|_| self.error_at(start, Reason::Expected("a name in quotes")))?;
        let mut name = String::new();
        loop {
            let rest = &self.text[self.at..];
            let mut chars = rest.chars();
            match chars.next() {
                None => return Err(self.error_at(start, unclosed)),
                Some('"') => {
                    self.at += 1;
                    return Ok(name);
                }
                Some('\\') => {
                    let (c, length) = escape(&rest[1..]).ok_or_else(|| {
                        self.error(Reason::Expected("`\\\"`, `\\\\` or `\\u{…}`"))
                    })?;
                    name.push(c);
                    self.at += 1 + length;
                }
                Some(c) => {
                    name.push(c);
                    self.at += c.len_utf8();
                }
            }
        }
    }

    /// The next character that is not space or comment.
    pub(super) fn peek(&mut self) -> Option<char> {
        loop {
            let rest = &self.text[self.at..];
            self.at += rest.len() - rest.trim_start().len();
            let rest = &self.text[self.at..];
            if !rest.starts_with('#') {
                return rest.chars().next();
            }
            self.at += rest.find('\n').unwrap_or(rest.len());
        }
    }

    /// The place of the next character.
    pub(super) fn here(&mut self) -> usize {
        self.peek();
        self.at
    }

    pub(super) fn eat(&mut self, token: &str) -> bool {
        self.peek();
        let found = self.text[self.at..].starts_with(token);
        self.at += if found { token.len() } else { 0 };
        found
    }

    pub(super) fn expect(&mut self, token: &str) -> Parsed<()> {
        if self.eat(token) { Ok(()) } else { Err(self.error(Reason::Token(token.to_owned()))) }
    }

    /// A run of letters, digits and what numbers are made of; maybe empty.
    pub(super) fn word(&mut self) -> &'t str {
        let start = self.here();
        let rest = &self.text[start..];
        let in_word = |c: char| c.is_alphanumeric() || matches!(c, '_' | '.' | '-' | '+');
        let end = rest.find(|c| !in_word(c)).unwrap_or(rest.len());
        self.at += end;
        &rest[..end]
    }

    /// A word that means something.
    pub(super) fn word_as<T>(
        &mut self,
        what: &'static str,
        meaning: impl Fn(&str) -> Option<T>,
    ) -> Parsed<T> {
        let at = self.here();
        let word = self.word();
        meaning(word).ok_or_else(|| self.error_at(at, Reason::Expected(what)))
    }

    pub(super) fn eat_keyword(&mut self, keyword: &str) -> bool {
        let at = self.here();
        let found = self.word() == keyword;
        if !found {
            self.at = at;
        }
        found
    }

    pub(super) fn keyword(&mut self, keyword: &str) -> Parsed<()> {
        if self.eat_keyword(keyword) {
            return Ok(());
        }
        Err(self.error(Reason::Token(keyword.to_owned())))
    }

    fn error(&mut self, reason: Reason) -> ParseGraphError {
        let at = self.here();
        self.error_at(at, reason)
    }

    pub(super) fn error_at(&self, at: usize, reason: Reason) -> ParseGraphError {
        let before = &self.text[..at];
        let line = before.matches('\n').count() + 1;
        let column = before.chars().rev().take_while(|&c| c != '\n').count() + 1;
        ParseGraphError { line, column, reason }
    }
}

/// The character behind a backslash, and the bytes that it takes.
fn escape(rest: &str) -> Option<(char, usize)> {
    match rest.chars().next()? {
        c @ ('"' | '\\') => Some((c, 1)),
        'u' => {
            let (digits, _) = rest.strip_prefix("u{")?.split_once('}')?;
            if digits.len() > 6 || !digits.bytes().all(|b| b.is_ascii_hexdigit()) {
                return None;
            }
            let c = char::from_u32(u32::from_str_radix(digits, 16).ok()?)?;
            Some((c, digits.len() + 3))
        }
        _ => None,
    }
}
