//! The symbols of a graph, and the graph with sizes in their place.

use super::Graph;
use crate::dim::{Bindings, Dim, DimError, Symbol};
use crate::infer::InferError;
use crate::op::{Op, ResizeAttrs, ScanAttrs, SliceAxis};
use crate::types::TensorType;
use std::collections::BTreeSet;

impl Op {
    /// The dims among the attributes, those within bodies not among them.
    pub fn dims(&self) -> Vec<&Dim> {
        match self {
            Self::Iota(dim) | Self::Size(dim) | Self::TopK { k: dim, .. } => vec![dim],
            Self::Reshape(dims) | Self::Expand(dims) => dims.iter().collect(),
            Self::Slice(axes) => axes.iter().flat_map(|axis| [&axis.start, &axis.len]).collect(),
            Self::Pad { mode: _, before, after } => before.iter().chain(after).collect(),
            Self::Resize(attrs) => attrs.sizes.iter().collect(),
            Self::Input
            | Self::Constant(_)
            | Self::Unary(_)
            | Self::Binary(_)
            | Self::Select
            | Self::Cast { .. }
            | Self::BitCast(_)
            | Self::Transpose(_)
            | Self::Concat { .. }
            | Self::Gather { .. }
            | Self::GatherElements { .. }
            | Self::GatherNd { .. }
            | Self::ScatterElements { .. }
            | Self::ScatterNd { .. }
            | Self::Reduce { .. }
            | Self::ArgReduce { .. }
            | Self::Cumulative { .. }
            | Self::NonZero
            | Self::MatMul
            | Self::WideMatMul
            | Self::Conv(_)
            | Self::WideConv(_)
            | Self::ConvTranspose { .. }
            | Self::Pool(_)
            | Self::Softmax { .. }
            | Self::LayerNorm { .. }
            | Self::RmsNorm { .. }
            | Self::Attention(_)
            | Self::Rnn(_)
            | Self::If { .. }
            | Self::Loop { .. }
            | Self::Scan(_) => Vec::new(),
        }
    }

    /// The bodies of control flow.
    pub fn bodies(&self) -> Vec<&Graph> {
        match self {
            Self::If { then_branch, else_branch } => vec![then_branch, else_branch],
            Self::Loop { body, carried: _ } => vec![body],
            Self::Scan(attrs) => vec![&attrs.body],
            Self::Input
            | Self::Constant(_)
            | Self::Iota(_)
            | Self::Size(_)
            | Self::Unary(_)
            | Self::Binary(_)
            | Self::Select
            | Self::Cast { .. }
            | Self::BitCast(_)
            | Self::Reshape(_)
            | Self::Transpose(_)
            | Self::Expand(_)
            | Self::Slice(_)
            | Self::Concat { .. }
            | Self::Pad { .. }
            | Self::Gather { .. }
            | Self::GatherElements { .. }
            | Self::GatherNd { .. }
            | Self::ScatterElements { .. }
            | Self::ScatterNd { .. }
            | Self::Reduce { .. }
            | Self::ArgReduce { .. }
            | Self::Cumulative { .. }
            | Self::TopK { .. }
            | Self::NonZero
            | Self::MatMul
            | Self::WideMatMul
            | Self::Conv(_)
            | Self::WideConv(_)
            | Self::ConvTranspose { .. }
            | Self::Pool(_)
            | Self::Softmax { .. }
            | Self::LayerNorm { .. }
            | Self::RmsNorm { .. }
            | Self::Attention(_)
            | Self::Rnn(_)
            | Self::Resize(_) => Vec::new(),
        }
    }

    /// The operation with sizes in place of the symbols that have one, within bodies too.
    ///
    /// # Errors
    /// [`InferError`] if a body does not fit together at these sizes or a dim has no value.
    pub fn substitute(&self, bindings: &Bindings) -> Result<Op, InferError> {
        self.of_dims(&|dim| dim.substitute(bindings))
    }

    /// The operation of other dims, within bodies too.
    fn of_dims(&self, other: Other<'_>) -> Result<Op, InferError> {
        if self.dims().is_empty() && self.bodies().is_empty() {
            return Ok(self.clone());
        }
        let all = |dims: &[Dim]| dims.iter().map(other).collect::<Result<Vec<_>, _>>();
        let body = |body: &Graph| body.of_dims(other).map(Box::new);
        let mut op = self.clone();
        match &mut op {
            Self::Iota(size) | Self::Size(size) | Self::TopK { k: size, .. } => {
                *size = other(size)?;
            }
            Self::Reshape(dims) | Self::Expand(dims) => *dims = all(dims)?,
            Self::Slice(axes) => {
                for SliceAxis { axis: _, start, len, step: _ } in axes {
                    (*start, *len) = (other(start)?, other(len)?);
                }
            }
            Self::Pad { mode: _, before, after } => {
                (*before, *after) = (all(before)?, all(after)?);
            }
            Self::Resize(attrs) => {
                let ResizeAttrs { sizes, .. } = attrs.as_mut();
                *sizes = all(sizes)?;
            }
            Self::If { then_branch, else_branch } => {
                *then_branch = body(then_branch)?;
                *else_branch = body(else_branch)?;
            }
            Self::Loop { body: inner, carried: _ } => *inner = body(inner)?,
            Self::Scan(attrs) => {
                let ScanAttrs { body: inner, .. } = attrs.as_mut();
                *inner = inner.of_dims(other)?;
            }
            // Neither dims nor bodies.
            Self::Input
            | Self::Constant(_)
            | Self::Unary(_)
            | Self::Binary(_)
            | Self::Select
            | Self::Cast { .. }
            | Self::BitCast(_)
            | Self::Transpose(_)
            | Self::Concat { .. }
            | Self::Gather { .. }
            | Self::GatherElements { .. }
            | Self::GatherNd { .. }
            | Self::ScatterElements { .. }
            | Self::ScatterNd { .. }
            | Self::Reduce { .. }
            | Self::ArgReduce { .. }
            | Self::Cumulative { .. }
            | Self::NonZero
            | Self::MatMul
            | Self::WideMatMul
            | Self::Conv(_)
            | Self::WideConv(_)
            | Self::ConvTranspose { .. }
            | Self::Pool(_)
            | Self::Softmax { .. }
            | Self::LayerNorm { .. }
            | Self::RmsNorm { .. }
            | Self::Attention(_)
            | Self::Rnn(_) => {}
        }
        Ok(op)
    }
}

impl Graph {
    /// All symbols in types and attributes, within bodies too.
    pub fn symbols(&self) -> BTreeSet<Symbol> {
        let mut symbols = BTreeSet::new();
        for (_, node) in self.nodes() {
            let types = node.outputs().iter().flat_map(|ty| &ty.shape);
            for dim in types.chain(node.op().dims()) {
                dim.collect_symbols(&mut symbols);
            }
            for body in node.op().bodies() {
                symbols.append(&mut body.symbols());
            }
        }
        symbols
    }

    /// The graph with sizes in place of the symbols that have one, its types inferred anew. Nodes keep their
    /// places and names.
    ///
    /// # Errors
    /// [`InferError`] if the graph does not fit together at these sizes.
    pub fn substitute(&self, bindings: &Bindings) -> Result<Graph, InferError> {
        self.of_dims(&|dim| dim.substitute(bindings))
    }

    /// The graph with a dim in place of a symbol, its types inferred anew. Nodes keep their places and names.
    ///
    /// # Errors
    /// [`InferError`] if the graph does not fit together so.
    pub fn replace(&self, symbol: &Symbol, by: &Dim) -> Result<Graph, InferError> {
        self.of_dims(&|dim| dim.replace(symbol, by))
    }

    fn of_dims(&self, other: Other<'_>) -> Result<Graph, InferError> {
        let mut graph = Graph::new();
        for (id, node) in self.nodes() {
            match node.op() {
                Op::Input => {
                    let TensorType { dtype, shape } = self.ty(id.value());
                    let shape = shape.iter().map(other).collect::<Result<_, _>>()?;
                    graph.add_input(node.name(), TensorType::new(*dtype, shape))?;
                }
                Op::Constant(tensor) => {
                    graph.add_constant(node.name(), tensor.clone());
                }
                op => {
                    graph.add(node.name(), op.of_dims(other)?, node.inputs())?;
                }
            }
        }
        for (name, value) in self.outputs() {
            graph.add_output(name, *value);
        }
        Ok(graph)
    }
}

/// The dim that stands in a dim's place.
type Other<'a> = &'a dyn Fn(&Dim) -> Result<Dim, DimError>;

#[cfg(test)]
mod tests {
    use crate::dim::{Bindings, Symbol};
    use crate::graph::Graph;
    use crate::infer::InferError;
    use crate::op::{Binary, Op};
    use crate::types::TensorType;

    fn sum_of_reshaped() -> Graph {
        let mut graph = Graph::new();
        let ty = |text: &str| text.parse::<TensorType>().unwrap();
        let x = graph.add_input("x", ty("f32[batch, 2*sequence]")).unwrap();
        let y = graph.add_input("y", ty("f32[4]")).unwrap();
        let flat = ty("f32[2*batch*sequence]").shape;
        let flat = graph.add("flat", Op::Reshape(flat), &[Some(x)]).unwrap();
        let sum =
            graph.add("sum", Op::Binary(Binary::Add), &[Some(flat.value()), Some(y)]).unwrap();
        graph.add_output("out", sum.value());
        graph
    }

    fn bound(sizes: &[(&str, i64)]) -> Bindings {
        let mut bindings = Bindings::new();
        for (name, size) in sizes {
            bindings.bind(Symbol::new(name), *size).unwrap();
        }
        bindings
    }

    fn names(graph: &Graph) -> Vec<String> {
        graph.symbols().iter().map(Symbol::to_string).collect()
    }

    #[test]
    fn symbols_give_way_to_sizes() {
        let graph = sum_of_reshaped();
        assert_eq!(names(&graph), ["batch", "sequence"]);
        let half = graph.substitute(&bound(&[("sequence", 1)])).unwrap();
        assert_eq!(names(&half), ["batch"]);
        assert_eq!(half.ty(half.outputs()[0].1).to_string(), "f32[4]");
        assert_eq!(half.ty(half.inputs()[0].value()).to_string(), "f32[batch, 2]");
        let whole = graph.substitute(&bound(&[("sequence", 1), ("batch", 2)])).unwrap();
        assert_eq!(whole, half.substitute(&bound(&[("batch", 2)])).unwrap());
        assert!(whole.symbols().is_empty());
    }

    #[test]
    fn a_symbol_gives_way_to_a_multiple_of_it() {
        let mut graph = Graph::new();
        let ty = |text: &str| text.parse::<TensorType>().unwrap();
        let x = graph.add_input("x", ty("f32[batch, 2*sequence]")).unwrap();
        let flat = Op::Reshape(ty("f32[2*batch*sequence]").shape);
        let flat = graph.add("flat", flat, &[Some(x)]).unwrap();
        graph.add_output("out", flat.value());
        let multiple = graph.replace(&Symbol::new("sequence"), &"8*sequence".parse().unwrap());
        let multiple = multiple.unwrap();
        assert_eq!(names(&multiple), ["batch", "sequence"]);
        assert_eq!(multiple.ty(flat.value()).to_string(), "f32[16*batch*sequence]");
        let sizes = |sequence| bound(&[("batch", 2), ("sequence", sequence)]);
        assert_eq!(multiple.substitute(&sizes(1)).unwrap(), graph.substitute(&sizes(8)).unwrap());
    }

    #[test]
    fn sizes_that_do_not_fit_are_refused() {
        let refused = sum_of_reshaped().substitute(&bound(&[("sequence", 3), ("batch", 1)]));
        assert!(matches!(refused, Err(InferError::Broadcast { .. })), "{refused:?}");
    }

    #[test]
    fn bodies_are_substituted_too() {
        let mut body = Graph::new();
        let x = body.add_input("x", "f32[n]".parse().unwrap()).unwrap();
        body.add_output("y", x);
        let mut graph = Graph::new();
        let condition = graph.add_input("condition", "bool[]".parse().unwrap()).unwrap();
        let x = graph.add_input("x", "f32[n]".parse().unwrap()).unwrap();
        let op = Op::If { then_branch: Box::new(body.clone()), else_branch: Box::new(body) };
        graph.add("if", op, &[Some(condition), Some(x)]).unwrap();
        let bound = graph.substitute(&bound(&[("n", 7)])).unwrap();
        assert!(bound.symbols().is_empty());
        assert_eq!(graph.len(), bound.len());
    }
}
