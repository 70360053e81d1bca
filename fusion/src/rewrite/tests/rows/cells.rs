//! Rows of recurrent cells: what must be found, and what must not.

use super::{REALS, Row, expand, number, op, row, shape, slice, weight, x};
use crate::rewrite::tests::left::Bound;
use graphene_frontend::op::Op;

/// Matmuls with all gates at once, biases, and slices of two columns.
fn bound(bias: &'static str, u: Bound) -> Vec<(&'static str, Bound)> {
    let (wide, deep) = if bias == "8" { ("3,8", "2,8") } else { ("3,6", "2,6") };
    let u = match u {
        Bound::Attributes(_) => weight(deep),
        other => other,
    };
    vec![
        ("x", x("batch,3")),
        ("h", x("batch,2")),
        ("c", x("batch,2")),
        ("w", weight(wide)),
        ("u", u),
        ("b", weight(bias)),
        ("d", weight(bias)),
        ("s0", slice(1, 0, 2)),
        ("s1", slice(1, 2, 2)),
        ("s2", slice(1, 4, 2)),
        ("s3", slice(1, 6, 2)),
        ("one", number(1.0)),
    ]
}

/// The first cell of a sequence: its states are zeros.
fn zero_state(mut bound: Vec<(&'static str, Bound)>) -> Vec<(&'static str, Bound)> {
    bound.retain(|(name, _)| *name != "h" && *name != "c");
    bound.extend([("h", number(0.0)), ("c", number(0.0)), ("e", expand("batch,2"))]);
    bound
}

fn leak(text: String) -> &'static str {
    String::leak(text)
}

/// An LSTM's new state by its gates.
fn lstm(i: &str, f: &str, g: &str, o: &str) -> &'static str {
    leak(format!("(Mul {o} (Tanh (Add (Mul {f} ?c) (Mul {i} (Tanh {g})))))"))
}

/// A GRU's candidate.
fn candidate(xs: &str, hs: &str) -> String {
    let reset = format!("(Sigmoid (Add (Slice ?s0 {xs}) (Slice ?s0 {hs})))");
    format!("(Tanh (Add (Slice ?s2 {xs}) (Mul {reset} (Slice ?s2 {hs}))))")
}

const XS: &str = "(Add (MatMul ?x ?w) ?b)";
const HS: &str = "(Add (MatMul ?h ?u) ?d)";

pub(super) fn sound() -> Vec<Row> {
    let lstm_bound = || bound("8", op(Op::Select));
    let gru_bound = || bound("6", op(Op::Select));
    let all = format!("(Add {XS} {HS})");
    let gate = |at: usize| format!("(Sigmoid (Slice ?s{at} {all}))");
    let torch = lstm(&gate(0), &gate(1), &format!("(Slice ?s2 {all})"), &gate(3));
    let view = |at: usize| format!("(Reshape ?flat (Slice ?s{at} (Reshape ?four {all})))");
    let seen = |at: usize| format!("(Sigmoid {})", view(at));
    let viewed = lstm(&seen(0), &seen(1), &view(2), &seen(3));
    let one = |at: usize| format!("(Slice ?s{at} (Sigmoid (Slice ?first {all})))");
    let at_once = lstm(&one(0), &one(1), &format!("(Slice ?s3 {all})"), &one(2));
    let cat = "(Add (MatMul (Concat ?cat ?x ?h) ?both) ?b)";
    let joined = |at: usize| format!("(Sigmoid (Slice ?s{at} {cat}))");
    let joined = lstm(&joined(0), &joined(1), &format!("(Slice ?s2 {cat})"), &joined(3));
    let part = |n: usize| format!("(Add (MatMul ?x ?w{n}) (MatMul ?h ?u{n}))");
    let own = |n: usize| format!("(Sigmoid {})", part(n));
    let apart = lstm(&own(0), &format!("(Sigmoid (Add {} ?one))", part(1)), &part(2), &own(3));
    let mut viewed_bound = lstm_bound();
    viewed_bound.retain(|(name, _)| !name.starts_with('s'));
    viewed_bound.extend([
        ("s0", slice(1, 0, 1)),
        ("s1", slice(1, 1, 1)),
        ("s2", slice(1, 2, 1)),
        ("s3", slice(1, 3, 1)),
    ]);
    viewed_bound.extend([("four", shape("batch,4,2")), ("flat", shape("batch,2"))]);
    let apart_bound = [
        ("w0", "3,2"),
        ("w1", "3,2"),
        ("w2", "3,2"),
        ("w3", "3,2"),
        ("u0", "2,2"),
        ("u1", "2,2"),
        ("u2", "2,2"),
        ("u3", "2,2"),
    ];
    let apart_bound = apart_bound.into_iter().map(|(name, shape)| (name, weight(shape)));
    let started = leak(torch.replace("?h", "(Expand ?e ?h)").replace("?c", "(Expand ?e ?c)"));
    let n = candidate(XS, HS);
    let z = format!("(Sigmoid (Add (Slice ?s1 {XS}) (Slice ?s1 {HS})))");
    let delta = leak(format!("(Add {n} (Mul {z} (Sub ?h {n})))"));
    let convex = leak(format!("(Add (Mul (Sub ?one {z}) {n}) (Mul {z} ?h))"));
    vec![
        row("lstm-cell", REALS, &lstm_bound()).of(&[torch]),
        row("lstm-cell", REALS, &viewed_bound).of(&[viewed]),
        row("lstm-cell", REALS, &[lstm_bound(), vec![("first", slice(1, 0, 6))]].concat())
            .of(&[at_once]),
        row(
            "lstm-cell",
            REALS,
            &[lstm_bound(), vec![("cat", op(Op::Concat { axis: 1 })), ("both", weight("5,8"))]]
                .concat(),
        )
        .of(&[joined]),
        row("lstm-cell", REALS, &lstm_bound().into_iter().chain(apart_bound).collect::<Vec<_>>())
            .of(&[apart]),
        row("lstm-cell", REALS, &zero_state(lstm_bound())).of(&[started]),
        row("gru-cell", REALS, &gru_bound()).of(&[delta]),
        row("gru-cell", REALS, &gru_bound()).of(&[convex]),
    ]
}

pub(super) fn near() -> Vec<Row> {
    let all = format!("(Add {XS} {HS})");
    let gate = |at: usize| format!("(Sigmoid (Slice ?s{at} {all}))");
    let torch = lstm(&gate(0), &gate(1), &format!("(Slice ?s2 {all})"), &gate(3));
    let hard = |at: usize| format!("(Tanh (Slice ?s{at} {all}))");
    let other = lstm(&gate(0), &hard(1), &format!("(Slice ?s2 {all})"), &gate(3));
    let squared =
        lstm(&gate(0), &gate(1), &format!("(Mul (Slice ?s2 {all}) (Slice ?s3 {all}))"), &gate(3));
    let n = candidate(XS, HS);
    let z = format!("(Sigmoid (Add (Slice ?s1 {XS}) (Slice ?s1 {HS})))");
    let strange = leak(format!("(Add {n} (Mul {z} (Sub ?c {n})))"));
    let swapped = leak(format!("(Add (Mul (Sub ?one {z}) ?h) (Mul {z} {n}))"));
    let mut two = bound("6", op(Op::Select));
    two.retain(|(name, _)| *name != "one");
    two.push(("one", number(2.0)));
    let convex = leak(format!("(Add (Mul (Sub ?one {z}) {n}) (Mul {z} ?h))"));
    vec![
        // Weights that are not constant, a gate of another function, gates that are not linear.
        row("lstm-cell", REALS, &bound("8", x("2,8"))).of(&[torch]),
        row("lstm-cell", REALS, &bound("8", op(Op::Select))).of(&[other]),
        row("lstm-cell", REALS, &bound("8", op(Op::Select))).of(&[squared]),
        row("gru-cell", REALS, &bound("6", x("2,6"))).of(&[convex]),
        // A state that the gates do not read, gates that change places, a mixture that is none.
        row("gru-cell", REALS, &bound("6", op(Op::Select))).of(&[strange]),
        row("gru-cell", REALS, &bound("6", op(Op::Select))).of(&[swapped]),
        row("gru-cell", REALS, &two).of(&[convex]),
    ]
}
