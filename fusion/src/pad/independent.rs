//! Whether rows along a dim, such as a batch's, are independent of each other.
//!
//! [`padding`](super::padding) lets positions meet where those that were added count for nothing, and lets them know how far
//! from the first one they are. Rows that several callers bring may do neither: what one row gives is the same wherever it
//! is and whatever lies beside it. So the walk is the same, with rows of any values in place of zeros, and with a reason
//! beforehand for each operation in which rows meet or are numbered.

use super::{Padding, Said, Unpadded, Value, mentions, refused, walk};
use graphene_frontend::{Dim, Graph, Node, Op, SliceAxis, Symbol};

/// Where the rows of a dim lie, if each row of the outputs follows from the same row of the inputs alone: then rows may be
/// put together in any order, and cut apart again.
///
/// # Errors
/// [`Unpadded`] with the first operation in which rows meet, or that is not known to leave them apart.
pub fn independent(graph: &Graph, symbol: &Symbol) -> Result<Padding, Unpadded> {
    walk(graph, symbol, Some(leaves_apart))
}

const TOGETHER: &str = "takes all that lies along it together";

/// Whether an operation leaves rows apart and does not number them, in so far as the rules of padding let either through.
fn leaves_apart(node: &Node, given: &[Option<&Value>], symbol: &Symbol) -> Said<()> {
    let axes = |input: usize| given.get(input).copied().flatten().map_or(&[][..], |x| &x.axes[..]);
    let runs = |input: usize, axis: usize| axes(input).get(axis).is_some_and(Option::is_some);
    let last_but = |input: usize, behind: usize| axes(input).len().wrapping_sub(1 + behind);
    let takes = |slice: &SliceAxis| {
        let to = &node.outputs()[0].shape[slice.axis];
        let whole = slice.start == Dim::from(0) && slice.step == 1;
        match runs(0, slice.axis) {
            true => !(whole && *to == Dim::symbol(symbol.name())),
            false => mentions(to, symbol) || mentions(&slice.start, symbol),
        }
    };
    refused(match node.op() {
        Op::Iota(dim) if mentions(dim, symbol) => "numbers its positions",
        Op::Slice(slices) if slices.iter().any(takes) => "takes some of its positions",
        Op::Gather { axis } if runs(0, *axis) => "picks some of its positions",
        Op::Reduce { axes, .. } if axes.iter().any(|&axis| runs(0, axis)) => TOGETHER,
        Op::Softmax { axis, .. } if runs(0, *axis) => TOGETHER,
        Op::Cumulative { axis, .. } if runs(0, *axis) => "adds up what lies before a position",
        Op::MatMul | Op::WideMatMul if runs(0, last_but(0, 0)) || runs(1, last_but(1, 1)) => {
            "adds up what lies along it"
        }
        // Queries by themselves, unless what they see follows from where they are.
        Op::Attention(attrs) if runs(1, 2) || runs(2, 2) || attrs.causal && runs(0, 2) => {
            "attends to other positions"
        }
        // Others leave rows apart where they do not run along them, or have no rule of padding.
        _ => return Ok(()),
    })
}

#[cfg(test)]
mod tests {
    use super::independent;
    use graphene_frontend::dim::Symbol;
    use graphene_frontend::eval::evaluate;
    use graphene_frontend::graph::Graph;
    use graphene_frontend::tensor::Tensor;
    use graphene_frontend::text::parse;

    /// Operations on `x: f32[n, 4]` whose last value is the output, and why rows are not apart; nothing where they are.
    const ROWS: &[(&str, Option<&str>)] = &[
        ("%1 = Tanh(%0) : f32[n, 4]", None),
        ("%1 = Add(%0, %0) : f32[n, 4]", None),
        ("%1 = ReduceMean(%0) {axes: [1], keep: false} : f32[n]", None),
        ("%1 = Softmax(%0) {axis: 1} : f32[n, 4]", None),
        ("%1 = CumSum(%0) {axis: 1, exclusive: false, reverse: false} : f32[n, 4]", None),
        ("%1 = TopK(%0) {k: 2, axis: 1, largest: true} : f32[n, 2], i64[n, 2]", None),
        ("%1 = Slice(%0) {axes: [{axis: 1, start: 1, len: 2, step: 1}]} : f32[n, 2]", None),
        ("%1 = Reshape(%0) {shape: [n, 2, 2]} : f32[n, 2, 2]", None),
        (
            "%1 = Reshape(%0) {shape: [4*n]} : f32[4*n]\n%2 = Tanh(%1) : f32[4*n]\n%3 = Reshape(%2) {shape: [n, 4]} : f32[n, 4]",
            None,
        ),
        (
            "%1 = Transpose(%0) {perm: [1, 0]} : f32[4, n]\n%2 = ReduceSum(%1) {axes: [0], keep: false} : f32[n]",
            None,
        ),
        ("%1 = Concat(%0, %0) {axis: 1} : f32[n, 8]", None),
        // Rows meet.
        (
            "%1 = ReduceMean(%0) {axes: [0], keep: true} : f32[1, 4]\n%2 = Sub(%0, %1) : f32[n, 4]",
            Some("together"),
        ),
        (
            "%1 = ReduceSum(%0) {axes: [0, 1], keep: true} : f32[1, 1]\n%2 = Sub(%0, %1) : f32[n, 4]",
            Some("together"),
        ),
        ("%1 = ArgMax(%0) {axis: 0, keep: false, last: false} : i64[4]", Some("together")),
        ("%1 = Softmax(%0) {axis: 0} : f32[n, 4]", Some("together")),
        (
            "%1 = Transpose(%0) {perm: [1, 0]} : f32[4, n]\n%2 = MatMul(%0, %1) : f32[n, n]\n%3 = MatMul(%2, %0) : f32[n, 4]",
            Some("adds up"),
        ),
        ("%1 = Concat(%0, %0) {axis: 0} : f32[2*n, 4]", Some("joins")),
        ("%1 = Reshape(%0) {shape: [4, n]} : f32[4, n]", Some("mixes")),
        ("%1 = TopK(%0) {k: 1, axis: 0, largest: true} : f32[1, 4], i64[1, 4]", Some("orders")),
        // Rows are numbered.
        (
            "%1 = Iota {size: n} : i64[n]\n%2 = Cast(%1) {to: f32, saturate: true} : f32[n]\n%3 = Reshape(%2) {shape: [n, 1]} : f32[n, 1]\n%4 = Add(%0, %3) : f32[n, 4]",
            Some("numbers"),
        ),
        (
            "%1 = CumSum(%0) {axis: 0, exclusive: false, reverse: false} : f32[n, 4]",
            Some("lies before"),
        ),
        (
            "%1 = Slice(%0) {axes: [{axis: 0, start: 0, len: 1, step: 1}]} : f32[1, 4]\n%2 = Add(%0, %1) : f32[n, 4]",
            Some("some of its positions"),
        ),
        (
            "%1 = Slice(%0) {axes: [{axis: 0, start: n - 1, len: n, step: -1}]} : f32[n, 4]",
            Some("some of its positions"),
        ),
        (
            "%1 = Reshape(%0) {shape: [1, 1, n, 4]} : f32[1, 1, n, 4]\n%2 = Attention(%1, %1, %1) {scale: 0.5, causal: true, softcap: 0.0, guarded: false} : f32[1, 1, n, 4]",
            Some("attends"),
        ),
        (
            "%1 = Size {size: n} : i64[]\n%2 = Cast(%1) {to: f32, saturate: true} : f32[]\n%3 = Div(%0, %2) : f32[n, 4]",
            Some("size"),
        ),
    ];

    fn graph(operations: &str) -> Graph {
        let last = operations.lines().last().and_then(|line| line.split(' ').next());
        let named: String =
            operations.lines().map(|line| format!("{line} \"{}\"\n", &line[..2])).collect();
        let last = last.expect("there is one");
        let text =
            format!("symbols n\n%0 = Input : f32[n, 4] \"x\"\n{named}return \"y\" = {last}\n");
        parse(&text, &[]).unwrap_or_else(|error| panic!("{error}\n{text}"))
    }

    /// What the reference gives for these rows.
    fn run(graph: &Graph, rows: &[[f32; 4]]) -> Vec<f32> {
        let x = Tensor::from_vec(vec![rows.len(), 4], rows.concat()).expect("small");
        let outputs = evaluate(graph, &[x]).expect("it is evaluated");
        let y = &outputs[0];
        y.as_slice::<f32>().map_or_else(|_| panic!("{y:?}"), <[f32]>::to_vec)
    }

    #[test]
    fn rows_are_apart_or_there_is_a_reason() {
        let rows = [[1.0, -2.0, 0.5, 3.0], [0.25, 4.0, -1.0, 2.0], [-3.0, 1.5, 2.5, 0.0]];
        for (operations, expected) in ROWS {
            let graph = graph(operations);
            match (independent(&graph, &Symbol::new("n")), expected) {
                (Ok(axes), None) => {
                    assert_eq!((&axes.inputs[0][..], &axes.outputs[0][..]), (&[0][..], &[0][..]));
                    let alone: Vec<f32> =
                        [2, 0, 1].iter().flat_map(|&row| run(&graph, &rows[row..=row])).collect();
                    assert_eq!(run(&graph, &[rows[2], rows[0], rows[1]]), alone, "{operations}");
                }
                (Err(why), Some(expected)) => {
                    assert!(why.to_string().contains(expected), "{why}\n{operations}");
                }
                (found, _) => panic!("{found:?} of\n{operations}"),
            }
        }
    }
}
