//! Near misses: rows that look like a rule's and must not fire.

use super::{
    NARROW, REALS, Row, WIDE, allowed, attention, cast, expand, filled, forbidden, gru, layer_norm,
    lstm, mean, number, numbers, perm, reduce, rms_norm, row, shape, softmax, typed, weight, x,
};
use crate::rewrite::tests::left::Bound;
use graphene_frontend::dtype::DType;
use graphene_frontend::op::{Op, ReduceOp};

pub(super) fn rows() -> Vec<Row> {
    [algebra(), scales(), layout(), norm(), attentions(), roundings(), doubles(), matmuls()]
        .into_iter()
        .flatten()
        .collect()
}

fn algebra() -> Vec<Row> {
    vec![
        // The constant enlarges what it is added to.
        row("add-zero", REALS, &[("x", x("3")), ("c", filled("2,3", 0.0))]),
        row("add-zero", REALS, &[("x", x("2,3")), ("c", filled("1,1,1", 0.0))]),
        row("multiply-by-one", REALS, &[("x", x("3")), ("c", filled("2,3", 1.0))]),
        row("multiply-by-one", REALS, &[("x", x("3")), ("c", number(0.99))]),
        row("square", REALS, &[("x", x("3")), ("c", number(2.1))]),
        row("divide-by-constant", REALS, &[("x", x("2,3")), ("c", numbers("3"))]),
        row("divide-by-constant", REALS, &[("x", x("2,3")), ("c", number(0.0))]),
        row(
            "divide-by-constant",
            &[DType::I64, DType::I32],
            &[("x", x("2,3")), ("c", number(2.0))],
        ),
        row("scale-twice", REALS, &[("x", x("2,3")), ("a", numbers("3")), ("b", number(3.0))]),
        // Scales that overflow in one order and not in the other.
        row("scale-twice", WIDE, &[("x", x("2,3")), ("a", number(-1e300)), ("b", number(1e-3))]),
        row("scale-twice", NARROW, &[("x", x("2,3")), ("a", number(-1e30)), ("b", number(1e-3))]),
        row("divide-by-constant", WIDE, &[("x", x("2,3")), ("c", number(1e-200))]),
        row("scale-last", REALS, &[("x", x("2,3")), ("c", number(-1e200)), ("y", x("3"))]),
        row("scale-last", REALS, &[("x", x("2,3")), ("c", number(0.5)), ("y", weight("3"))]),
        row("scale-of-matmul-a", REALS, &[("x", x("2,3")), ("c", x("3")), ("y", x("3,4"))]),
        row(
            "scale-of-matmul-a",
            REALS,
            &[("x", x("2,3")), ("c", filled("1,1,1", 0.5)), ("y", x("3,4"))],
        ),
        row(
            "scale-of-transpose",
            REALS,
            &[("x", x("1,3")), ("c", filled("2,3", 0.25)), ("p", perm(&[1, 0]))],
        ),
        row("relu", REALS, &[("x", x("2,3")), ("c", number(0.5))]),
        row("sigmoid", REALS, &[("x", x("2,3")), ("c", number(2.0))]),
        row("swish", REALS, &[("x", x("2,3")), ("c", numbers("3"))]),
        row(
            "gelu",
            REALS,
            &[("x", x("2,3")), ("r", number(0.72)), ("one", number(1.0)), ("half", number(0.5))],
        ),
        row(
            "gelu-tanh",
            REALS,
            &[
                ("x", x("2,3")),
                ("r", number(0.797_884_56)),
                ("c", number(0.047)),
                ("one", number(1.0)),
                ("half", number(0.5)),
            ],
        ),
    ]
}

/// Scales that are one, or another's, only nearly; and those that overflow in one order and not in the other.
#[rustfmt::skip]
fn scales() -> Vec<Row> {
    const F16: &[DType] = &[DType::F16];
    const BF16: &[DType] = &[DType::BF16];
    let matmul = |c: f64| [("x", x("2,3")), ("c", number(c)), ("y", x("3,4"))];
    vec![
        // Both are one scale, but not none, and not another that stands beside.
        row("scale-twice", BF16, &[("x", x("2,3")), ("a", number(2.0)), ("b", number(0.5078125))])
            .of(&["(Mul (Mul ?x ?a) ?b)", "?x"]).apart(),
        row("scale-twice", F16, &[("x", x("2,3")), ("a", number(2.0)), ("b", number(0.50048828125))])
            .of(&["(Mul (Mul ?x ?a) ?b)", "?x"]).apart(),
        row("scale-twice", BF16, &[("x", x("2,3")), ("a", number(0.5)), ("b", number(0.25)), ("n", number(0.1235))])
            .of(&["(Mul (Mul ?x ?a) ?b)", "(Mul ?x ?n)"]).apart(),
        row("scale-twice", &[DType::F32], &[("x", x("2,3")), ("a", number(1e-30)), ("b", number(1e-30))]),
        row("scale-twice", WIDE, &[("x", x("2,3")), ("a", number(1e-160)), ("b", number(1e-160))]),
        row("scale-twice", REALS, &[("x", x("2,3")), ("a", number(0.0)), ("b", number(0.5))]),
        row("scale-of-matmul-a", F16, &matmul(0.125)),
        row("scale-of-matmul-a", REALS, &matmul(0.0)),
        row("scale-of-matmul-a", &[DType::F32], &matmul(1e-12)),
        row("scale-of-matmul-a", WIDE, &matmul(1e-100)),
        row("scale-of-matmul-b", F16, &matmul(0.125)),
        row("scale-of-matmul-b", REALS, &matmul(0.0)),
        row("scale-last", F16, &[("x", x("2,3")), ("c", number(0.125)), ("y", x("3"))]),
        row("scale-last", REALS, &[("x", x("2,3")), ("c", number(0.0)), ("y", x("3"))]),
        row("divide-by-constant", &[DType::F32], &[("x", x("2,3")), ("c", number(3e38))]),
    ]
}

/// Attention whose scores or weights are rounded on the way: what it computes does not round there.
#[rustfmt::skip]
fn roundings() -> Vec<Row> {
    const F16: &[DType] = &[DType::F16];
    const BF16: &[DType] = &[DType::BF16];
    const F32: &[DType] = &[DType::F32];
    let with = |more: &[(&'static str, Bound)]| {
        let own = [("q", x("2,4,3,8")), ("k", x("2,4,8,2")), ("v", x("2,4,2,5")), ("a", softmax(3)), ("c", number(0.5))];
        [&own[..], more].concat()
    };
    let through = |of, to| with(&[("n", cast(of)), ("w", cast(to))]);
    let scores = ["(MatMul (Softmax ?a (Cast ?w (Cast ?n (MatMul ?q ?k)))) ?v)"];
    let scaled = ["(MatMul (Softmax ?a (Mul (Cast ?w (Cast ?n (Mul (MatMul ?q ?k) ?c))) ?c)) ?v)"];
    let weights = ["(MatMul (Cast ?w (Cast ?n (Softmax ?a (MatMul ?q ?k)))) ?v)"];
    let inside = ["(MatMul (Cast ?w (Softmax ?a (Cast ?n (MatMul ?q ?k)))) ?v)"];
    vec![
        row("attention", F32, &through(DType::F8E4M3Fn, DType::F32)).of(&scores),
        row("attention", F32, &through(DType::F8E4M3Fn, DType::F32)).of(&scaled),
        row("attention", F32, &through(DType::F8E4M3Fn, DType::F32)).of(&weights),
        row("attention", F32, &through(DType::F4E2M1, DType::F32)).of(&weights),
        row("attention", F16, &through(DType::F8E5M2, DType::F16)).of(&scores),
        row("attention", F32, &through(DType::F16, DType::F32)).of(&scores),
        row("attention", F32, &through(DType::F16, DType::F32)).of(&inside),
        row("attention", F32, &through(DType::BF16, DType::F32)).of(&weights),
        row("attention", F16, &through(DType::BF16, DType::F16)).of(&inside),
        row("attention", BF16, &through(DType::F16, DType::BF16)).of(&inside),
        row("attention", &[DType::F64], &through(DType::F32, DType::F64)).of(&inside),
        // Weights that two conditions zero, one of which the scores know.
        row("attention", REALS, &with(&[("m", allowed()), ("o", typed("2,1,3,2", DType::Bool)), ("f", number(f64::NEG_INFINITY)), ("z", number(0.0))]))
            .of(&["(MatMul (Select ?o (Select ?m (Softmax ?a (Select ?m (MatMul ?q ?k) ?f)) ?z) ?z) ?v)"]),
        // The unbiased variance is not the mean, though 1/127 is near to 1/128 in `bf16`.
        row("mean-of-squares", BF16, &[("x", x("2,128")), ("a", reduce(ReduceOp::SumSquare, &[1])), ("c", number(1.0 / 127.0))]),
        row("mean-of-sum", WIDE, &[("x", x("2,3")), ("a", reduce(ReduceOp::Sum, &[1])), ("c", number(0.333334))]),
        row("mean-of-sum", BF16, &[("x", x("2,127")), ("a", reduce(ReduceOp::Sum, &[1])), ("c", number(1.0 / 128.0))]),
    ]
}

/// In `f64` attributes of 32 bits would be other numbers, and no target has such norms and attention.
#[rustfmt::skip]
fn doubles() -> Vec<Row> {
    const F64: &[DType] = &[DType::F64];
    let value = || ("x", x("2,3,4"));
    let heads = [("q", x("2,4,3,8")), ("k", x("2,4,8,2")), ("v", x("2,4,2,5")), ("a", softmax(3))];
    let own = [("a", attention(0.25)), ("q", x("2,4,3,8")), ("k", x("2,4,2,8")), ("v", x("2,4,2,5"))];
    vec![
        row("swish", F64, &[value(), ("c", number(1.702))]),
        row("layer-norm", F64, &[value(), ("a", mean(&[2])), ("e", number(0.125))]),
        row("layer-norm-moments", F64, &[value(), ("a", mean(&[2])), ("e", number(0.125))]),
        row("rms-norm", F64, &[value(), ("a", mean(&[2])), ("e", number(0.125))]),
        row("softmax", F64, &[value(), ("m", reduce(ReduceOp::Max, &[2])), ("a", reduce(ReduceOp::Sum, &[2]))]),
        row("softmax-unshifted", F64, &[value(), ("a", reduce(ReduceOp::Sum, &[2]))]),
        row("attention", F64, &heads).of(&["(MatMul (Softmax ?a (MatMul ?q ?k)) ?v)"]),
        row("attention-scale", F64, &[&own[..], &[("c", number(0.3))]].concat())
            .of(&["(Attention ?a (Mul ?q ?c) ?k ?v absent)"]),
    ]
}

fn layout() -> Vec<Row> {
    let e = expand("5,4,3");
    vec![
        row("reshape-to-itself", REALS, &[("s", shape("3,2")), ("x", x("2,3"))]),
        row("expand-to-itself", REALS, &[("s", expand("2,3")), ("x", x("1,3"))]),
        row("transpose-nothing", REALS, &[("p", perm(&[1, 0])), ("x", x("3,3"))]),
        row("transpose-of-ones", REALS, &[("p", perm(&[2, 1, 0])), ("x", x("2,1,3"))]),
        // What is split or merged across the dims that a transpose moves, or is only another grouping of rows.
        row(
            "split-of-transpose",
            REALS,
            &[("s", shape("6,2,2")), ("p", perm(&[1, 0])), ("x", x("6,4"))],
        ),
        row(
            "transpose-of-merge",
            REALS,
            &[("p", perm(&[1, 0])), ("m", shape("6,4")), ("x", x("4,3,2"))],
        ),
        row(
            "reshape-of-matmul",
            REALS,
            &[("s", shape("2,15")), ("x", x("6,4")), ("w", weight("4,5"))],
        ),
        row(
            "reshape-of-bias",
            REALS,
            &[("s", shape("3,2,5")), ("x", x("3,10")), ("b", weight("10"))],
        ),
        // Dims that merge after the transpose.
        row(
            "reshape-of-transpose",
            REALS,
            &[("s", shape("2,12")), ("p", perm(&[0, 2, 1])), ("x", x("2,3,4"))],
        ),
        row(
            "transpose-of-batches",
            REALS,
            &[
                ("s", shape("3,2,5,4")),
                ("p", perm(&[0, 2, 1])),
                ("t", shape("6,4,5")),
                ("x", x("2,3,4,5")),
            ],
        ),
        row(
            "transpose-of-batches",
            REALS,
            &[
                ("s", shape("2,3,5,4")),
                ("p", perm(&[0, 2, 1])),
                ("t", shape("6,5,4")),
                ("x", x("2,3,4,5")),
            ],
        ),
        row(
            "reshape-of-transpose",
            REALS,
            &[("s", shape("1,2,3,4")), ("p", perm(&[0, 2, 1])), ("x", x("2,3,4"))],
        ),
        row(
            "matmul-of-reshape",
            REALS,
            &[("s", shape("4,6")), ("x", x("2,3,4")), ("w", weight("6,5"))],
        ),
        row("matmul-of-reshape", REALS, &[("s", shape("6,4")), ("x", x("2,3,4")), ("w", x("4,5"))]),
        row(
            "matmul-of-reshape",
            REALS,
            &[("s", shape("6,4")), ("x", x("2,3,4")), ("w", weight("2,4,5"))],
        ),
        row("pointwise-of-expands", REALS, &[("e", e.clone()), ("x", x("1,3")), ("y", x("4,1"))])
            .of(&["(Add (Expand ?e ?x) (Expand ?e ?y))"]),
        row("pointwise-of-expands", REALS, &[("e", e), ("x", x("1,3")), ("y", x("4,3"))])
            .of(&["(Add (Expand ?e ?x) ?y)"]),
        // Without the expand the sum is smaller.
        row(
            "pointwise-broadcasts",
            REALS,
            &[("e", expand("5,3")), ("x", x("1,3")), ("y", x("1,3"))],
        )
        .of(&["(Add (Expand ?e ?x) ?y)"]),
        // What is added along the last dim means another dim before the reshape.
        row(
            "pointwise-of-reshapes",
            REALS,
            &[("s", shape("2,12")), ("x", x("2,3,4")), ("b", x("12"))],
        )
        .of(&["(Add (Reshape ?s ?x) ?b)"]),
        row(
            "pointwise-of-reshapes",
            REALS,
            &[("s", shape("4,6")), ("x", x("2,3,4")), ("y", x("4,6"))],
        )
        .of(&["(Add (Reshape ?s ?x) ?y)"]),
        row(
            "pointwise-of-reshapes",
            REALS,
            &[("s", shape("4,6")), ("x", x("2,3,4")), ("y", x("8,3"))],
        )
        .of(&["(Add (Reshape ?s ?x) (Reshape ?s ?y))"]),
        row(
            "pointwise-of-transposes",
            REALS,
            &[
                ("p", perm(&[0, 2, 1])),
                ("q", perm(&[1, 2, 0])),
                ("x", x("2,3,4")),
                ("y", x("3,2,4")),
            ],
        )
        .of(&["(Add (Transpose ?p ?x) (Transpose ?q ?y))"]),
        row(
            "pointwise-of-transposes",
            REALS,
            &[("p", perm(&[1, 0])), ("x", x("3,4")), ("b", x("3"))],
        )
        .of(&["(Add (Transpose ?p ?x) ?b)"]),
    ]
}

fn norm() -> Vec<Row> {
    let value = || ("x", x("2,3,4"));
    let epsilon = || ("e", number(1e-3));
    vec![
        row("layer-norm", REALS, &[value(), ("a", mean(&[0, 1])), epsilon()]),
        row(
            "layer-norm-narrowed",
            NARROW,
            &[value(), ("a", layer_norm(2)), ("w", cast(DType::F64)), ("n", cast(DType::F32))],
        ),
        row("weight-of-quotient", &[DType::F16], &[value(), ("g", weight("4")), ("r", x("2,3,1"))]),
        row("weight-over-root", &[DType::F16], &[value(), ("g", weight("4")), ("r", x("2,3,1"))]),
        // Weights stand where both are, and sums that are not of one weight.
        row("weight-of-quotient", REALS, &[value(), ("g", x("4")), ("r", x("2,3,1"))]),
        row("weight-over-root", REALS, &[value(), ("g", x("4")), ("r", x("2,3,1"))]),
        row(
            "scaled-difference",
            NARROW,
            &[value(), ("b", weight("4")), ("m", x("2,3,1")), ("i", x("2,3,4"))],
        ),
        row(
            "reduction-kept",
            REALS,
            &[
                value(),
                (
                    "a",
                    Bound::Attributes(Op::Reduce {
                        op: ReduceOp::Mean,
                        axes: vec![1],
                        keep: false,
                    }),
                ),
                ("s", shape("2,4,1")),
            ],
        )
        .of(&["(Reshape ?s (ReduceMean ?a ?x))"]),
        row("layer-norm", REALS, &[value(), ("a", mean(&[2])), ("e", numbers("4"))]),
        row("layer-norm", REALS, &[value(), ("a", mean(&[2])), ("e", x(""))]),
        row("layer-norm-moments", REALS, &[value(), ("a", mean(&[0, 1])), epsilon()]),
        // The difference of moments cancels in 16-bit types.
        row("layer-norm-moments", NARROW, &[value(), ("a", mean(&[2])), epsilon()]),
        row("layer-norm-scale", REALS, &[value(), ("a", layer_norm(2)), ("g", x("4"))]),
        row("layer-norm-scale", REALS, &[value(), ("a", layer_norm(2)), ("g", weight("3,1"))]),
        row("layer-norm-scale", REALS, &[value(), ("a", layer_norm(2)), ("g", weight("3,4"))]),
        row("layer-norm-scale", REALS, &[value(), ("a", layer_norm(1)), ("g", weight("4"))]),
        row(
            "layer-norm-scale",
            REALS,
            &[("x", x("3,4")), ("a", layer_norm(1)), ("g", weight("1,1,4"))],
        ),
        row(
            "layer-norm-bias",
            REALS,
            &[value(), ("a", layer_norm(2)), ("g", weight("4")), ("b", weight("3,1"))],
        ),
        row("rms-norm", REALS, &[value(), ("a", mean(&[0, 1])), epsilon()]),
        row("rms-norm", REALS, &[value(), ("a", mean(&[1])), epsilon()]),
        row("rms-norm-scale", REALS, &[value(), ("a", rms_norm(2)), ("g", weight("2,3,4"))]),
        row(
            "rms-norm-narrowed",
            NARROW,
            &[value(), ("a", rms_norm(2)), ("w", cast(DType::F32)), ("n", cast(DType::F64))],
        ),
        row(
            "mean-of-squares",
            REALS,
            &[value(), ("a", reduce(ReduceOp::SumSquare, &[2])), ("c", number(0.5))],
        ),
        row(
            "mean-of-sum",
            REALS,
            &[value(), ("a", reduce(ReduceOp::Sum, &[1])), ("c", number(0.25))],
        ),
        row(
            "mean-of-sum",
            REALS,
            &[("x", x("2,batch")), ("a", reduce(ReduceOp::Sum, &[1])), ("c", number(0.25))],
        ),
    ]
}

fn attentions() -> Vec<Row> {
    let heads =
        || [("q", x("2,4,3,8")), ("k", x("2,4,8,2")), ("v", x("2,4,2,5")), ("c", number(0.125))];
    let with = |more: &[(&'static str, Bound)]| [&heads()[..], more].concat();
    let masked = "(MatMul (Softmax ?a (Select ?m (Mul (MatMul ?q ?k) ?c) ?f)) ?v)";
    let mask = Bound::Value { shape: "2,1,3,2", dtype: Some(DType::Bool), constant: false };
    let guarded =
        "(MatMul (Select (IsNan (Softmax ?a (MatMul ?q ?k))) ?z (Softmax ?a (MatMul ?q ?k))) ?v)";
    let summed = ["(MatMul (Softmax ?a (Add (Mul (MatMul ?q ?k) ?c) ?m)) ?v)"];
    let own = |more: &[(&'static str, Bound)]| {
        let own =
            [("a", attention(0.25)), ("q", x("2,4,3,8")), ("k", x("2,4,2,8")), ("v", x("2,4,2,5"))];
        [&own[..], more].concat()
    };
    let interleaved = own(&[
        ("g", x("2,1,2,2,8")),
        ("h", x("2,1,2,2,5")),
        ("e", expand("2,2,2,2,8")),
        ("f", expand("2,2,2,2,5")),
        ("s", shape("2,4,2,8")),
        ("t", shape("2,4,2,5")),
    ]);
    let groups =
        ["(Attention ?a ?q (Reshape ?s (Expand ?e ?g)) (Reshape ?t (Expand ?f ?h)) absent)"];
    let max = |axis: usize| reduce(ReduceOp::Max, &[axis]);
    let sum = |axis: usize| reduce(ReduceOp::Sum, &[axis]);
    let dropped = |op| Bound::Attributes(Op::Reduce { op, axes: vec![2], keep: false });
    vec![
        row("softmax", REALS, &[("x", x("4,4")), ("m", max(1)), ("a", sum(0))]),
        row(
            "softmax",
            REALS,
            &[("x", x("4,4,4")), ("m", dropped(ReduceOp::Max)), ("a", dropped(ReduceOp::Sum))],
        ),
        row(
            "softmax-unshifted",
            REALS,
            &[("x", x("2,3,4")), ("a", reduce(ReduceOp::Sum, &[1, 2]))],
        ),
        row("attention", REALS, &with(&[("a", softmax(2))]))
            .of(&["(MatMul (Softmax ?a (MatMul ?q ?k)) ?v)"]),
        row(
            "attention",
            REALS,
            &with(&[("a", Bound::Attributes(Op::Softmax { axis: 3, log: true }))]),
        )
        .of(&["(MatMul (LogSoftmax ?a (MatMul ?q ?k)) ?v)"]),
        // A fill that is a number beside what is added, which it would leave something of.
        row(
            "attention",
            REALS,
            &with(&[("a", softmax(3)), ("m", mask.clone()), ("n", x("3,2")), ("f", number(-1e4))]),
        )
        .of(&["(MatMul (Softmax ?a (Select ?m (Add (MatMul ?q ?k) ?n) ?f)) ?v)"]),
        row(
            "attention",
            REALS,
            &with(&[("a", softmax(3)), ("m", mask.clone()), ("n", x("3,2")), ("f", number(-1e4))]),
        )
        .of(&["(MatMul (Softmax ?a (Add (Select ?m (MatMul ?q ?k) ?f) ?n)) ?v)"]),
        row(
            "attention",
            REALS,
            &with(&[("a", softmax(3)), ("m", mask), ("f", number(f64::INFINITY))]),
        )
        .of(&[masked]),
        row("attention", REALS, &with(&[("a", softmax(3)), ("z", number(1.0))])).of(&[guarded]),
        // A mask that is larger than the scores.
        row(
            "attention",
            REALS,
            &[
                ("q", x("1,4,3,8")),
                ("k", x("1,4,8,2")),
                ("v", x("1,4,2,5")),
                ("a", softmax(3)),
                ("c", number(0.5)),
                ("m", x("2,1,3,2")),
            ],
        )
        .of(&summed),
        row(
            "attention",
            REALS,
            &[("q", x("3,8")), ("k", x("8,2")), ("v", x("2,5")), ("a", softmax(1))],
        )
        .of(&["(MatMul (Softmax ?a (MatMul ?q ?k)) ?v)"]),
        row(
            "attention",
            REALS,
            &[("q", x("1,4,3,8")), ("k", x("2,4,8,2")), ("v", x("2,4,2,5")), ("a", softmax(3))],
        )
        .of(&["(MatMul (Softmax ?a (MatMul ?q ?k)) ?v)"]),
        // A cap on scores that are already masked, weights that are zero elsewhere than where the scores are filled.
        row("attention", REALS, &with(&[("a", softmax(3)), ("d", number(5.0)), ("m", x("3,2"))]))
            .of(&["(MatMul (Softmax ?a (Mul (Tanh (Add (Mul (MatMul ?q ?k) ?c) ?m)) ?d)) ?v)"]),
        row(
            "attention",
            REALS,
            &with(&[
                ("a", softmax(3)),
                ("m", allowed()),
                ("n", forbidden()),
                ("f", number(f64::NEG_INFINITY)),
                ("z", number(0.0)),
            ]),
        )
        .of(&["(MatMul (Select ?n (Softmax ?a (Select ?m (MatMul ?q ?k) ?f)) ?z) ?v)"]),
        row(
            "attention",
            REALS,
            &with(&[
                ("a", softmax(3)),
                ("m", allowed()),
                ("f", number(f64::NEG_INFINITY)),
                ("z", number(0.0)),
            ]),
        )
        .of(&["(MatMul (Select ?m ?z (Softmax ?a (Select ?m (MatMul ?q ?k) ?f))) ?v)"]),
        row("attention", REALS, &with(&[("a", softmax(3)), ("m", allowed()), ("z", number(0.0))]))
            .of(&["(MatMul (Select ?m (Softmax ?a (MatMul ?q ?k)) ?z) ?v)"]),
        // Rows and columns that change places between the matmuls.
        row(
            "attention",
            REALS,
            &[
                ("q", x("2,4,3,8")),
                ("k", x("2,4,8,2")),
                ("v", x("2,4,3,5")),
                ("a", softmax(3)),
                ("s", shape("2,4,2,3")),
            ],
        )
        .of(&["(MatMul (Softmax ?a (Reshape ?s (MatMul ?q ?k))) ?v)"]),
        row("attention-scale", REALS, &own(&[("c", numbers("8"))]))
            .of(&["(Attention ?a (Mul ?q ?c) ?k ?v absent)"]),
        row("attention-scale", REALS, &own(&[("c", x("8"))]))
            .of(&["(Attention ?a (Mul ?q ?c) ?k ?v absent)"]),
        row("attention-groups", REALS, &interleaved).of(&groups),
    ]
}

fn matmuls() -> Vec<Row> {
    let layer = [
        ("a", lstm(2)),
        ("x", x("3,batch,4")),
        ("w", weight("1,8,4")),
        ("r", weight("1,8,2")),
        ("e", expand("1,batch,2")),
    ];
    let gates = [
        ("a", gru(2)),
        ("x", x("3,batch,4")),
        ("w", weight("1,6,4")),
        ("r", weight("1,6,2")),
        ("e", expand("1,batch,2")),
    ];
    let stated = ["(Lstm ?a ?x ?w ?r absent absent (Expand ?e ?h) absent absent)"];
    vec![
        row(
            "merge-projections",
            REALS,
            &[("x", x("batch,3")), ("u", weight("3,4")), ("w", x("3,5"))],
        )
        .of(&["(MatMul ?x ?u)", "(MatMul ?x ?w)"]),
        row(
            "merge-projections",
            REALS,
            &[("x", x("batch,3")), ("y", x("batch,3")), ("w", weight("3,5"))],
        )
        .of(&["(MatMul ?x ?w)", "(MatMul ?y ?w)"]),
        row(
            "merge-projections",
            REALS,
            &[("x", x("2,3,3")), ("u", weight("2,3,4")), ("w", weight("2,3,5"))],
        )
        .of(&["(MatMul ?x ?u)", "(MatMul ?x ?w)"]),
        row("zero-state", REALS, &[&layer[..], &[("h", number(1.0))]].concat()).of(&stated),
        row("zero-state", REALS, &[&layer[..], &[("h", x(""))]].concat()).of(&stated),
        row("zero-state", REALS, &[&gates[..], &[("h", x(""))]].concat())
            .of(&["(Gru ?a ?x ?w ?r absent absent (Expand ?e ?h) absent)"]),
    ]
}
