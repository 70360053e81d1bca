//! The text form of a graph: printed, and parsed back to an equal graph.
//!
//! ```text
//! symbols batch, sequence
//! %0 = Input : f32[batch, 12, sequence, 64] "scores"
//! %1 = Constant(0.125) : f32[] "scale"
//! %2 = Constant(@0 3f1c25a86e0b9d74) : f32[768, 768] "weight"
//! %3 = Mul(%0, %1) : f32[batch, 12, sequence, 64] "layer.0/scaled"
//! %4 = Softmax(%3) {axis: 3} : f32[batch, 12, sequence, 64] "layer.0/softmax"
//! return "probabilities" = %4
//! ```
//!
//! A line is a node: its number (they are consecutive), operation, inputs (`_`: left out), attributes, the types
//! of its outputs, and its name. Attributes stand in a fixed order, all of them; bodies of control flow
//! are attributes within `{ }`. The symbols are those of the graph, ascending; the line is left out where there
//! are none. `#` begins a comment.
//!
//! Constants of up to 32 elements are written out and exact: the shortest decimal that reads back as the
//! same number, or the bits (`0x7fc00000`) of what is no number and of the narrow types. Larger ones are a place
//! in a table of tensors beside the text, with a hash of their content that parsing checks.

use crate::graph::{Graph, Node, NodeId};
use crate::op::Op;
use crate::tensor::Tensor;
use crate::types::TensorType;
use std::fmt::{self, Write};

mod element;
mod field;
mod ops;
mod parse;

pub use parse::{ParseGraphError, Reason, parse};

/// Constants of more elements than this are printed by reference.
pub const MAX_INLINE: usize = 32;

/// A graph as text, with the constants that the text only refers to.
#[derive(Clone, PartialEq, Debug)]
pub struct GraphText {
    /// The text.
    pub text: String,
    /// What `@0`, `@1`, … in the text stand for.
    pub weights: Vec<Tensor>,
}

/// The text form of `graph`, which [`parse`] reads back.
pub fn print(graph: &Graph) -> GraphText {
    let mut printer = Printer { text: String::new(), indent: 0, weights: Vec::new() };
    let symbols: Vec<_> = graph.symbols().iter().map(ToString::to_string).collect();
    if !symbols.is_empty() {
        printer.line(format_args!("symbols {}", symbols.join(", ")));
    }
    printer.graph(graph);
    GraphText { text: printer.text, weights: printer.weights }
}

/// The elements of a constant, a word each, as the text form writes them.
pub(crate) fn elements(tensor: &Tensor) -> Vec<String> {
    element::print(tensor)
}

/// A hash of a tensor's type and elements, the same on every machine.
pub fn content_hash(tensor: &Tensor) -> u64 {
    // Word-wise multiply and rotate, after the manner of FxHash: weights are hundreds of megabytes.
    let mix =
        |hash: u64, word: u64| (hash.rotate_left(5) ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mut hash = mix(0, tensor.dtype().onnx() as u64);
    for &size in tensor.shape() {
        hash = mix(hash, size as u64);
    }
    let mut words = tensor.bytes().chunks_exact(8);
    for word in &mut words {
        hash = mix(hash, u64::from_le_bytes(word.try_into().expect("chunks are of eight bytes")));
    }
    for &byte in words.remainder() {
        hash = mix(hash, u64::from(byte));
    }
    hash ^ (hash >> 32)
}

/// Text being written.
struct Printer {
    text: String,
    indent: usize,
    weights: Vec<Tensor>,
}

impl Printer {
    /// Writes in the middle of a line.
    fn put(&mut self, text: impl fmt::Display) {
        write!(self.text, "{text}").expect("writing to a string does not fail");
    }

    fn line(&mut self, text: fmt::Arguments<'_>) {
        self.start_line();
        self.put(text);
        self.text.push('\n');
    }

    fn start_line(&mut self) {
        self.text.extend(std::iter::repeat_n("  ", self.indent));
    }

    fn graph(&mut self, graph: &Graph) {
        for (id, node) in graph.nodes() {
            self.start_line();
            self.node(id, node);
            self.text.push('\n');
        }
        let outputs: Vec<_> = graph
            .outputs()
            .iter()
            .map(|(name, value)| format!("{} = {value}", quoted(name)))
            .collect();
        let space = if outputs.is_empty() { "" } else { " " };
        self.line(format_args!("return{space}{}", outputs.join(", ")));
    }

    fn node(&mut self, id: NodeId, node: &Node) {
        self.put(format_args!("{id} = {}", node.op().name()));
        if let Op::Constant(tensor) = node.op() {
            self.constant(tensor);
        }
        if !node.inputs().is_empty() {
            let input = |input: &Option<_>| {
                input.map_or("_".to_owned(), |v: crate::graph::ValueId| v.to_string())
            };
            let inputs: Vec<_> = node.inputs().iter().map(input).collect();
            self.put(format_args!("({})", inputs.join(", ")));
        }
        // The table of attributes reads and writes alike, so it wants an operation that it may change.
        let mut op = node.op().clone();
        let mut codec = field::Codec::print(self);
        ops::attributes(&mut op, &mut codec)
            .and_then(|()| codec.finish())
            .expect("only reading fails");
        let types: Vec<_> = node.outputs().iter().map(TensorType::to_string).collect();
        self.put(format_args!(" : {} {}", types.join(", "), quoted(node.name())));
    }

    fn constant(&mut self, tensor: &Tensor) {
        if tensor.len() <= MAX_INLINE {
            self.put(format_args!("({})", element::print(tensor).join(", ")));
        } else {
            self.put(format_args!("(@{} {:016x})", self.weights.len(), content_hash(tensor)));
            self.weights.push(tensor.clone());
        }
    }
}

/// A name in quotes, with the characters escaped that would end it or the line.
fn quoted(name: &str) -> String {
    let mut text = String::from("\"");
    for c in name.chars() {
        match c {
            '"' | '\\' => text.extend(['\\', c]),
            c if c.is_control() => text.push_str(&format!("\\u{{{:x}}}", c as u32)),
            c => text.push(c),
        }
    }
    text.push('"');
    text
}

#[cfg(test)]
mod tests;
