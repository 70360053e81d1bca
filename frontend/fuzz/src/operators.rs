//! Operators with the attributes that they know, for models that are worth importing.

use std::sync::LazyLock;

/// What an attribute holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    /// A number.
    Float,
    /// An integer.
    Int,
    /// Text.
    Text,
    /// A tensor.
    Tensor,
    /// A graph.
    Graph,
    /// Numbers.
    Floats,
    /// Integers.
    Ints,
    /// Texts.
    Texts,
}

/// An operator.
pub(crate) struct Operator {
    /// Its domain; empty for ONNX's own.
    pub(crate) domain: &'static str,
    /// Its name.
    pub(crate) name: &'static str,
    /// The fewest inputs.
    pub(crate) min_inputs: usize,
    /// The most inputs, at most eight of them.
    pub(crate) max_inputs: usize,
    /// The most outputs, at most four of them.
    pub(crate) max_outputs: usize,
    /// Attributes of all versions.
    pub(crate) attributes: Vec<(&'static str, Kind)>,
}

/// A line an operator, fields between tabs: domain, name, fewest and most inputs, most outputs, attributes.
static TABLE: LazyLock<Vec<Operator>> =
    LazyLock::new(|| include_str!("operators.tsv").lines().filter_map(read).collect());

/// All operators.
pub(crate) fn operators() -> &'static [Operator] {
    &TABLE
}

/// The operator of this name.
pub(crate) fn find(domain: &str, name: &str) -> Option<&'static Operator> {
    TABLE.iter().find(|operator| operator.name == name && operator.domain == domain)
}

fn read(line: &'static str) -> Option<Operator> {
    let mut fields = line.split('\t');
    let (domain, name) = (fields.next()?, fields.next()?);
    let mut number = || fields.next()?.parse().ok();
    let (min_inputs, max_inputs, max_outputs) = (number()?, number()?, number()?);
    let attributes = fields.next()?.split(' ').filter_map(read_attribute).collect();
    Some(Operator { domain, name, min_inputs, max_inputs, max_outputs, attributes })
}

fn read_attribute(text: &'static str) -> Option<(&'static str, Kind)> {
    let (name, kind) = text.split_once(':')?;
    let kind = match kind {
        "float" => Kind::Float,
        "int" => Kind::Int,
        "string" => Kind::Text,
        "tensor" => Kind::Tensor,
        "graph" => Kind::Graph,
        "floats" => Kind::Floats,
        "ints" => Kind::Ints,
        "strings" => Kind::Texts,
        _ => return None,
    };
    Some((name, kind))
}
