//! Sizes at which random inputs lead beyond a model's tables.
//!
//! Binding finds where positions are a slice of their table. Where a model computes them from its inputs, as RoBERTa counts
//! the tokens that are no padding, whether they lie within depends on values; of random inputs it is known between which
//! numbers they lie, and so here what is computed from them. Inputs that are given are left to the run.

use crate::error::Error;
use crate::inputs::Given;
use crate::random::{self, Range};
use crate::sizes::sizes_text;
use graphene_frontend::dim::{Bindings, Dim};
use graphene_frontend::graph::{Graph, NodeId, ValueId};
use graphene_frontend::op::{Binary, CumulativeOp, Op};
use graphene_frontend::tensor::Tensor;
use std::collections::HashMap;

/// Refuses sizes at which random inputs would pick rows that a table does not have, and would not at smaller sizes.
///
/// # Errors
/// [`Error::Limit`].
pub(crate) fn check(graph: &Graph, given: &Given, bindings: &Bindings) -> Result<(), Error> {
    for (_, node) in graph.nodes() {
        let (Op::Gather { axis } | Op::GatherElements { axis } | Op::ScatterElements { axis, .. }) =
            node.op()
        else {
            continue;
        };
        let &[Some(table), Some(index), ..] = node.inputs() else { continue };
        let Some(rows) = graph.ty(table).shape.get(*axis) else { continue };
        let beyond = |sizes: &Bindings| {
            let rows = rows.eval(sizes).ok()?;
            let mut bounds = Bounds { graph, given, sizes, known: HashMap::new() };
            let (_, highest) = bounds.of(index)?;
            (highest >= i128::from(rows)).then_some((highest, rows))
        };
        let Some((highest, rows)) = beyond(bindings) else { continue };
        let found = graphene_runtime::largest(bindings, |sizes| beyond(sizes).is_none());
        if let Some((symbol, size, largest)) = found {
            let (node, op) = (node.name().to_owned(), node.op().name());
            let sizes = sizes_text(bindings);
            return Err(Error::Limit { sizes, node, op, highest, rows, symbol, size, largest });
        }
    }
    Ok(())
}

/// The least and the largest number among the elements of values.
struct Bounds<'a> {
    graph: &'a Graph,
    given: &'a Given,
    sizes: &'a Bindings,
    known: HashMap<NodeId, Option<(i128, i128)>>,
}

impl Bounds<'_> {
    /// Those of a value of whole numbers, if they are known.
    fn of(&mut self, value: ValueId) -> Option<(i128, i128)> {
        if self.graph.ty(value).dtype.is_float() || value.output != 0 {
            return None;
        }
        if let Some(known) = self.known.get(&value.node) {
            return *known;
        }
        let found = self.compute(value.node);
        self.known.insert(value.node, found);
        found
    }

    fn compute(&mut self, id: NodeId) -> Option<(i128, i128)> {
        let node = self.graph.node(id);
        let inputs: Vec<_> = node.inputs().iter().copied().flatten().collect();
        let size = |dim: &Dim| dim.eval(self.sizes).ok().map(i128::from);
        match node.op() {
            Op::Input if self.given.get(node.name()).is_some() => None,
            Op::Input => match random::range(self.graph, id, self.sizes) {
                Range::Below(size) => Some((0, i128::from(size) - 1)),
                Range::All(number) => Some((number.into(), number.into())),
                Range::Normal => None,
            },
            Op::Constant(tensor) => bounds_of(tensor),
            Op::Iota(dim) => Some((0, size(dim)? - 1)),
            Op::Size(dim) => Some((size(dim)?, size(dim)?)),
            Op::Binary(op) => {
                if matches!(*op, Binary::Equal | Binary::Less | Binary::LessOrEqual)
                    || matches!(*op, Binary::Greater | Binary::GreaterOrEqual)
                {
                    return Some((0, 1));
                }
                let (a, b) = (self.of(*inputs.first()?)?, self.of(*inputs.get(1)?)?);
                binary(*op, a, b)
            }
            Op::Unary(_) if node.outputs()[0].dtype == graphene_frontend::dtype::DType::Bool => {
                Some((0, 1))
            }
            Op::Cumulative { op: CumulativeOp::Sum, axis, exclusive, .. } => {
                let steps = size(node.outputs()[0].shape.get(*axis)?)? - i128::from(*exclusive);
                let (low, high) = self.of(*inputs.first()?)?;
                let sum = |first: i128| first.checked_mul(steps.max(1));
                Some((low.min(sum(low)?), high.max(sum(high)?)))
            }
            Op::Select => {
                let (a, b) = (self.of(*inputs.get(1)?)?, self.of(*inputs.get(2)?)?);
                Some((a.0.min(b.0), a.1.max(b.1)))
            }
            Op::Concat { .. } => {
                let all = inputs.iter().map(|&input| self.of(input));
                let all: Vec<_> = all.collect::<Option<_>>()?;
                Some((all.iter().map(|x| x.0).min()?, all.iter().map(|x| x.1).max()?))
            }
            // Elements stay what they are, all or some of them.
            Op::Cast { .. }
            | Op::Reshape(_)
            | Op::Transpose(_)
            | Op::Expand(_)
            | Op::Slice(_)
            | Op::Gather { .. }
            | Op::GatherElements { .. } => self.of(*inputs.first()?),
            _ => None,
        }
    }
}

/// What lies between the bounds of two operands gives.
fn binary(op: Binary, a: (i128, i128), b: (i128, i128)) -> Option<(i128, i128)> {
    let corners = |of: fn(i128, i128) -> Option<i128>| {
        let all = [of(a.0, b.0), of(a.0, b.1), of(a.1, b.0), of(a.1, b.1)];
        let all: Vec<i128> = all.into_iter().collect::<Option<_>>()?;
        Some((*all.iter().min()?, *all.iter().max()?))
    };
    match op {
        Binary::Add => corners(i128::checked_add),
        Binary::Sub => corners(i128::checked_sub),
        Binary::Mul => corners(i128::checked_mul),
        Binary::Min => corners(|a, b| Some(a.min(b))),
        Binary::Max => corners(|a, b| Some(a.max(b))),
        Binary::Mod if b.0 > 0 => Some((0, b.1 - 1)),
        Binary::And | Binary::Or | Binary::Xor => Some((0, 1)),
        _ => None,
    }
}

fn bounds_of(tensor: &Tensor) -> Option<(i128, i128)> {
    let all = || crate::compare::numbers(tensor).map(|x| x as i128);
    Some((all().min()?, all().max()?))
}

#[cfg(test)]
mod tests {
    use super::check;
    use crate::inputs::Given;
    use graphene_frontend::dim::{Bindings, Symbol};
    use graphene_frontend::graph::Graph;
    use graphene_frontend::op::{Binary, CumulativeOp, Op};
    use graphene_frontend::tensor::Tensor;

    /// Rows of a table of 9 by how many ones of a mask are before and at a position, but at most `limit`.
    fn counting(limit: i64) -> Graph {
        let mut graph = Graph::new();
        let mask = graph.add_input("mask", "i64[n, s]".parse().expect("a type")).expect("one");
        let sum =
            Op::Cumulative { op: CumulativeOp::Sum, axis: 1, exclusive: false, reverse: false };
        let count = graph.add("count", sum, &[Some(mask)]).expect("integers").value();
        let limit = graph.add_constant("limit", Tensor::scalar(limit));
        let least = graph.add("least", Op::Binary(Binary::Min), &[Some(count), Some(limit)]);
        let table = Tensor::from_vec(vec![9, 1], vec![0_f32; 9]).expect("9 of them");
        let table = graph.add_constant("table", table);
        let index = least.expect("integers").value();
        let rows = graph.add("rows", Op::Gather { axis: 0 }, &[Some(table), Some(index)]);
        graph.add_output("y", rows.expect("a table and indices").value());
        graph
    }

    #[test]
    fn positions_that_are_counted_stay_within_their_table() {
        let checked = |limit, s| {
            let mut sizes = Bindings::new();
            sizes.bind(Symbol::new("n"), 2).expect("it is new");
            sizes.bind(Symbol::new("s"), s).expect("it is new");
            let checked = check(&counting(limit), &Given::default(), &sizes);
            checked.map_err(|error| (error.code(), error.to_string()))
        };
        assert_eq!(checked(100, 8), Ok(()));
        let error = "n=2, s=12: s=12 is too large, s=8 is the largest possible: `rows` (Gather) would pick row 12 of 9";
        assert_eq!(checked(100, 12), Err((2, error.to_owned())));
        assert_eq!(checked(8, 12), Ok(()));
        // No size is at fault where none is small enough.
        assert_eq!(checked(-1, 12), Ok(()));
    }
}
