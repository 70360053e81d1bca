//! Whether rows along a dim, such as a batch's, are independent of each other.
//!
//! [`padding`](super::padding) lets positions meet where those that were added count for nothing, and lets them know how far
//! from the first one they are. Rows that several callers bring may do neither: what one row gives is the same wherever it
//! is and whatever lies beside it. So the walk is the same, with rows of any values in place of zeros, and with a reason
//! beforehand for each operation in which rows meet or are numbered.

use super::{Padding, Unpadded, Value, mentions, refused, walk};
use graphene_frontend::dim::{Dim, Symbol};
use graphene_frontend::graph::{Graph, Node};
use graphene_frontend::op::Op;

/// Where the rows of a dim lie, if each row of the outputs follows from the same row of the inputs alone: then rows may be
/// put together in any order, and cut apart again.
///
/// # Errors
/// [`Unpadded`] with the first operation in which rows meet, or that is not known to leave them apart.
pub fn independent(graph: &Graph, symbol: &Symbol) -> Result<Padding, Unpadded> {
    walk(graph, symbol, Some(leaves_apart))
}

/// Whether an operation leaves rows apart and does not number them, in so far as the rules of padding let either through.
fn leaves_apart(node: &Node, given: &[Option<&Value>], symbol: &Symbol) -> Result<(), String> {
    let runs = |input: usize, axis: usize| {
        let value = given.get(input).copied().flatten();
        value.is_some_and(|value| value.axes.get(axis).is_some_and(Option::is_some))
    };
    let rank =
        |input: usize| given.get(input).copied().flatten().map_or(0, |value| value.axes.len());
    match node.op() {
        Op::Iota(dim) if mentions(dim, symbol) => refused("numbers its positions"),
        Op::Slice(slices) => {
            let shape = &node.outputs()[0].shape;
            let takes = slices.iter().any(|slice| {
                let whole = slice.start == Dim::from(0) && slice.step == 1;
                let named = mentions(&shape[slice.axis], symbol) || mentions(&slice.start, symbol);
                match runs(0, slice.axis) {
                    true => !(whole && shape[slice.axis] == Dim::symbol(symbol.name())),
                    false => named,
                }
            });
            if takes { refused("takes some of its positions") } else { Ok(()) }
        }
        Op::Gather { axis } if runs(0, *axis) => refused("picks some of its positions"),
        Op::Reduce { axes, .. } if axes.iter().any(|&axis| runs(0, axis)) => {
            refused("takes all that lies along it together")
        }
        Op::Softmax { axis, .. } if runs(0, *axis) => {
            refused("takes all that lies along it together")
        }
        Op::Cumulative { axis, .. } if runs(0, *axis) => {
            refused("adds up what lies before a position")
        }
        Op::MatMul if runs(0, rank(0).wrapping_sub(1)) || runs(1, rank(1).wrapping_sub(2)) => {
            refused("adds up what lies along it")
        }
        // Queries by themselves, unless what they see follows from where they are.
        Op::Attention(attrs) if runs(1, 2) || runs(2, 2) || attrs.causal && runs(0, 2) => {
            refused("attends to other positions")
        }
        Op::Input
        | Op::Constant(_)
        | Op::Iota(_)
        | Op::Size(_)
        | Op::Expand(_)
        | Op::Gather { .. }
        | Op::Reduce { .. }
        | Op::Softmax { .. }
        | Op::Cumulative { .. }
        | Op::MatMul
        | Op::Attention(_)
        | Op::Unary(_)
        | Op::Binary(_)
        | Op::Select
        | Op::Cast { .. }
        | Op::BitCast(_)
        | Op::Reshape(_)
        | Op::Transpose(_)
        | Op::Concat { .. }
        | Op::Pad { .. }
        | Op::ArgReduce { .. }
        | Op::TopK { .. }
        | Op::LayerNorm { .. }
        | Op::RmsNorm { .. }
        | Op::Rnn(_)
        | Op::Conv(_)
        | Op::ConvTranspose { .. }
        | Op::Pool(_)
        | Op::GatherElements { .. }
        | Op::GatherNd { .. }
        | Op::ScatterElements { .. }
        | Op::ScatterNd { .. }
        | Op::NonZero
        | Op::Resize(_)
        | Op::If { .. }
        | Op::Loop { .. }
        | Op::Scan(_) => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::independent;
    use graphene_frontend::dim::Symbol;
    use graphene_frontend::text::parse;

    /// The graph of some operations of `x: f32[n, 4]`, and what is said of its rows: where they lie, or why not.
    fn check(row: &(&str, Result<(), &str>)) {
        let (operations, expected) = row;
        let text = format!("symbols n\n%0 = Input : f32[n, 4] \"x\"\n{operations}");
        let graph = parse(&text, &[]).unwrap_or_else(|error| panic!("{error}\n{text}"));
        let found = independent(&graph, &Symbol::new("n"));
        match (found, expected) {
            (Ok(padding), Ok(())) => assert_eq!(padding.inputs[0], [0], "{text}"),
            (Err(why), Err(expected)) => {
                assert!(why.to_string().contains(expected), "{why}\n{text}");
            }
            (found, expected) => panic!("{found:?} instead of {expected:?}\n{text}"),
        }
    }

    #[test]
    fn rows_are_apart_or_there_is_a_reason() {
        let rows = [
            ("%1 = Tanh(%0) : f32[n, 4]\nreturn \"y\" = %1", Ok(())),
            ("%1 = Reduce.mean(%0) {axes=[1], keep=true} : f32[n, 1]\nreturn \"y\" = %1", Ok(())),
            ("%1 = Softmax(%0) {axis=1, log=false} : f32[n, 4]\nreturn \"y\" = %1", Ok(())),
            (
                "%1 = Softmax(%0) {axis=0, log=false} : f32[n, 4]\nreturn \"y\" = %1",
                Err("together"),
            ),
        ];
        rows.iter().for_each(check);
    }
}
