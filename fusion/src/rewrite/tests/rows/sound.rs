//! Rows that must fire.

use super::{
    ALL, BOOL, BROAD, NUMBERS, REALS, Row, SINGLE, WIDE, allowed, attention, cast, expand, filled,
    forbidden, layer_norm, lstm, mean, number, perm, reduce, rms_norm, row, shape, softmax, typed,
    weight, x,
};
use crate::rewrite::tests::left::Bound;
use graphene_frontend::dtype::DType;
use graphene_frontend::op::{Op, ReduceOp};
use std::f64::consts::FRAC_1_SQRT_2;

/// √(2/π).
const ROOT: f64 = 0.797_884_560_802_865_4;

pub(super) fn rows() -> Vec<Row> {
    [
        algebra(),
        scales(),
        layout(),
        pointwise(),
        activation(),
        norm(),
        softmaxes(),
        attentions(),
        viewed_attentions(),
        filled_attentions(),
        merged_heads(),
        steps_of_norms(),
        constants_of_views(),
        matmuls(),
    ]
    .into_iter()
    .flatten()
    .collect()
}

fn algebra() -> Vec<Row> {
    vec![
        row("add-zero", NUMBERS, &[("x", x("batch,3")), ("c", number(0.0))]),
        row("add-zero", NUMBERS, &[("x", x("2,3")), ("c", filled("1,3", 0.0))]),
        row("subtract-zero", NUMBERS, &[("x", x("batch,3")), ("c", number(0.0))]),
        row("multiply-by-one", NUMBERS, &[("x", x("batch,3")), ("c", number(1.0))]),
        row("divide-by-one", NUMBERS, &[("x", x("batch,3")), ("c", number(1.0))]),
        row("and-true", BOOL, &[("x", x("batch,3")), ("c", number(1.0))]),
        row("or-false", BOOL, &[("x", x("batch,3")), ("c", number(0.0))]),
        row("negate-twice", NUMBERS, &[("x", x("batch,3"))]),
        row("not-twice", BOOL, &[("x", x("batch,3"))]),
        row("square", REALS, &[("x", x("batch,3")), ("c", number(2.0))]),
        row("cube", REALS, &[("x", x("batch,3")), ("c", number(3.0))]),
        row("root", REALS, &[("x", x("batch,3")), ("c", number(0.5))]),
        row("inverse-root", REALS, &[("x", x("batch,3")), ("c", number(-0.5))]),
        row("inverse", REALS, &[("x", x("batch,3")), ("c", number(1.0))]),
        row("times-inverse", REALS, &[("a", x("batch,3")), ("b", x("3"))]),
    ]
}

fn scales() -> Vec<Row> {
    vec![
        row("divide-by-constant", REALS, &[("x", x("batch,3")), ("c", number(8.0))]),
        row("divide-by-constant", REALS, &[("x", x("batch,3")), ("c", filled("3", 3.0))]),
        row("scale-twice", REALS, &[("x", x("batch,3")), ("a", number(0.5)), ("b", number(3.0))]),
        row("scale-twice", REALS, &[("x", x("batch,3")), ("a", number(0.125)), ("b", number(8.0))]),
        row("scale-last", BROAD, &[("x", x("batch,3")), ("c", number(0.5)), ("y", x("3"))]),
        row(
            "scale-of-matmul-a",
            BROAD,
            &[("x", x("batch,3")), ("c", number(0.25)), ("y", x("3,4"))],
        ),
        row(
            "scale-of-matmul-a",
            BROAD,
            &[("x", x("1,2,3")), ("c", filled("2,1,1", 0.25)), ("y", x("2,3,4"))],
        ),
        row(
            "scale-of-matmul-b",
            BROAD,
            &[("x", x("batch,3")), ("c", number(0.25)), ("y", x("3,4"))],
        ),
        row(
            "scale-of-transpose",
            REALS,
            &[("x", x("batch,3,4")), ("c", number(0.25)), ("p", perm(&[0, 2, 1]))],
        ),
        row(
            "scale-of-reshape",
            REALS,
            &[("x", x("batch,3,4")), ("c", number(0.25)), ("p", shape("batch,12"))],
        ),
    ]
}

fn layout() -> Vec<Row> {
    let flat = [("s", shape("6,4")), ("x", x("2,3,4")), ("w", weight("4,5"))];
    vec![
        row(
            "reshape-twice",
            ALL,
            &[("s", shape("batch,2,6")), ("t", shape("batch,12")), ("x", x("batch,3,4"))],
        ),
        row("reshape-to-itself", ALL, &[("s", shape("batch,3")), ("x", x("batch,3"))]),
        row(
            "expand-twice",
            ALL,
            &[("s", expand("batch,4,3")), ("t", expand("4,3")), ("x", x("1,3"))],
        ),
        row("expand-to-itself", ALL, &[("s", expand("batch,3")), ("x", x("batch,3"))]),
        row(
            "transpose-twice",
            ALL,
            &[("p", perm(&[2, 0, 1])), ("q", perm(&[0, 2, 1])), ("x", x("batch,3,4"))],
        ),
        row(
            "transpose-twice",
            ALL,
            &[("p", perm(&[0, 2, 1])), ("q", perm(&[0, 2, 1])), ("x", x("batch,3,4"))],
        ),
        row("transpose-nothing", ALL, &[("p", perm(&[0, 1])), ("x", x("batch,3"))]),
        row("transpose-of-ones", ALL, &[("p", perm(&[1, 0, 3, 2])), ("x", x("batch,1,3,1"))]),
        row(
            "reshape-of-transpose",
            ALL,
            &[("s", shape("batch,1,4,3")), ("p", perm(&[0, 2, 1])), ("x", x("batch,3,4"))],
        ),
        row(
            "reshape-of-transpose",
            ALL,
            &[("s", shape("4,3,2")), ("p", perm(&[3, 0, 2, 1])), ("x", x("3,2,1,4"))],
        ),
        row(
            "reshape-of-transpose",
            ALL,
            &[("s", shape("1,4,1,3,2,1")), ("p", perm(&[2, 1, 0])), ("x", x("2,3,4"))],
        ),
        row(
            "transpose-of-batches",
            ALL,
            &[
                ("s", shape("batch,3,5,4")),
                ("p", perm(&[0, 2, 1])),
                ("t", shape("batch*3,4,5")),
                ("x", x("batch,3,4,5")),
            ],
        ),
        row(
            "split-of-transpose",
            ALL,
            &[("s", shape("batch,4,3,2")), ("p", perm(&[1, 0, 2])), ("x", x("3,batch*4,2"))],
        ),
        row(
            "split-of-transpose",
            ALL,
            &[("s", shape("2,4,1,3,5")), ("p", perm(&[1, 2, 0])), ("x", x("15,8,1"))],
        ),
        row(
            "transpose-of-merge",
            ALL,
            &[("p", perm(&[1, 0, 2])), ("m", shape("batch*4,3,2")), ("x", x("batch,4,3,2"))],
        ),
        row(
            "transpose-of-merge",
            ALL,
            &[("p", perm(&[1, 2, 0])), ("m", shape("8,3,5")), ("x", x("2,4,1,3,5,1"))],
        ),
        row(
            "reshape-of-matmul",
            REALS,
            &[("s", shape("batch,3,5")), ("x", x("batch*3,4")), ("w", weight("4,5"))],
        ),
        row(
            "reshape-of-bias",
            REALS,
            &[("s", shape("batch,3,5")), ("x", x("batch*3,5")), ("b", weight("5"))],
        ),
        row("matmul-of-reshape", REALS, &flat),
        row(
            "matmul-of-reshape",
            REALS,
            &[("s", shape("batch*sequence,4")), ("x", x("batch,sequence,4")), ("w", weight("4,5"))],
        ),
    ]
}

fn pointwise() -> Vec<Row> {
    let (e, p, s) = (expand("batch,4,3"), perm(&[0, 2, 1]), shape("batch,12"));
    let not = ["(Not (Expand ?e ?x))"];
    let sum = ["(Add (Expand ?e ?x) (Expand ?e ?y))"];
    let scaled = ["(Mul (Expand ?e ?x) ?c)"];
    let either = ["(Select (Expand ?e ?m) (Expand ?e ?x) ?c)"];
    let pair = [("e", e.clone()), ("x", x("1,3")), ("y", x("1,3"))];
    let single = [("e", e.clone()), ("x", x("1,3")), ("c", filled("1,1,1", 2.0))];
    let chosen =
        [("e", e.clone()), ("m", typed("4,1", DType::Bool)), ("x", x("4,1")), ("c", number(2.0))];
    vec![
        row("pointwise-of-expands", BOOL, &[("e", e.clone()), ("x", x("1,3"))]).of(&not),
        row("pointwise-of-expands", NUMBERS, &pair).of(&sum),
        row("pointwise-of-expands", NUMBERS, &single).of(&scaled),
        row("pointwise-of-expands", NUMBERS, &chosen).of(&either),
        row("pointwise-of-expands", NUMBERS, &[("e", e.clone()), ("x", x("1")), ("y", x("1"))])
            .of(&sum),
        row("pointwise-broadcasts", NUMBERS, &[("e", e), ("x", x("4,1")), ("y", x("batch,1,3"))])
            .of(&["(Add (Expand ?e ?x) ?y)", "(Mul (Expand ?e ?x) (Expand ?e ?y))"]),
        row(
            "pointwise-of-reshapes",
            NUMBERS,
            &[("s", s.clone()), ("x", x("batch,3,4")), ("y", x("batch,3,4"))],
        )
        .of(&["(Add (Reshape ?s ?x) (Reshape ?s ?y))"]),
        row(
            "pointwise-of-reshapes",
            NUMBERS,
            &[("s", shape("batch*3,4")), ("x", x("batch,3,4")), ("b", x("4"))],
        )
        .of(&["(Add (Reshape ?s ?x) ?b)"]),
        row(
            "pointwise-of-reshapes",
            NUMBERS,
            &[("s", s), ("x", x("batch,3,4")), ("c", filled("1,1", 3.0))],
        )
        .of(&["(Mul (Reshape ?s ?x) ?c)"]),
        row(
            "pointwise-of-reshapes",
            NUMBERS,
            &[("s", shape("1,1,1")), ("x", x("1")), ("y", x("1"))],
        )
        .of(&["(Add (Reshape ?s ?x) (Reshape ?s ?y))"]),
        row(
            "pointwise-of-transposes",
            NUMBERS,
            &[("p", p.clone()), ("x", x("batch,3,4")), ("y", x("batch,3,4"))],
        )
        .of(&["(Add (Transpose ?p ?x) (Transpose ?p ?y))"]),
        row(
            "pointwise-of-transposes",
            NUMBERS,
            &[("p", p), ("x", x("batch,3,4")), ("c", filled("1,1,1", 3.0))],
        )
        .of(&["(Mul (Transpose ?p ?x) ?c)"]),
    ]
}

fn dropped(op: ReduceOp, axes: &[usize]) -> Bound {
    Bound::Attributes(Op::Reduce { op, axes: axes.to_vec(), keep: false })
}

fn activation() -> Vec<Row> {
    let value = || ("x", x("batch,3"));
    let (one, half) = (|| ("one", number(1.0)), || ("half", number(0.5)));
    vec![
        row("relu", REALS, &[value(), ("c", number(0.0))]),
        row("sigmoid", REALS, &[value(), ("c", number(1.0))]),
        row("silu", REALS, &[value()]),
        row("swish", SINGLE, &[value(), ("c", number(1.702))]),
        row("swish", &[DType::F64], &[value(), ("c", number(1.5))]),
        row("gelu", REALS, &[value(), ("r", number(FRAC_1_SQRT_2)), one(), half()]),
        row("gelu-half-first", REALS, &[value(), ("r", number(FRAC_1_SQRT_2)), one(), half()]),
        row("gelu-half-inside", REALS, &[value(), ("r", number(FRAC_1_SQRT_2)), one(), half()]),
        row(
            "gelu-tanh-half-first",
            REALS,
            &[value(), ("r", number(ROOT)), ("c", number(0.044_715)), one(), half()],
        ),
        row(
            "gelu-tanh-half-inside",
            REALS,
            &[value(), ("r", number(ROOT)), ("c", number(0.044_715)), one(), half()],
        ),
        row(
            "gelu-tanh-stepwise",
            REALS,
            &[
                value(),
                ("r", number(ROOT)),
                ("c", number(0.044_715)),
                one(),
                ("other", number(1.0)),
                half(),
            ],
        ),
        row(
            "gelu-of-half",
            REALS,
            &[value(), ("r", number(FRAC_1_SQRT_2)), half(), ("other", number(0.5))],
        ),
        row(
            "gelu-tanh",
            REALS,
            &[value(), ("r", number(ROOT)), ("c", number(0.044_715)), one(), half()],
        ),
        row(
            "gelu-tanh-factored",
            REALS,
            &[
                value(),
                ("r", number(ROOT)),
                ("c", number(0.044_715)),
                one(),
                ("other", number(1.0)),
                half(),
            ],
        ),
        row("mish", REALS, &[value()]),
    ]
}

fn norm() -> Vec<Row> {
    let value = || ("x", x("batch,3,4"));
    let epsilon = || ("e", number(1e-3));
    vec![
        row("layer-norm", SINGLE, &[value(), ("a", mean(&[2])), epsilon()]),
        row("layer-norm", SINGLE, &[value(), ("a", mean(&[1, 2])), epsilon()]),
        row("layer-norm-bare", SINGLE, &[value(), ("a", mean(&[2]))]),
        row("layer-norm-bare", SINGLE, &[value(), ("a", mean(&[1]))]),
        row("rms-norm-bare", SINGLE, &[value(), ("a", mean(&[2]))]),
        row("layer-norm-moments", &[DType::F32], &[value(), ("a", mean(&[2])), epsilon()]),
        row("layer-norm", SINGLE, &[value(), ("a", mean(&[1])), epsilon()]),
        row("layer-norm", SINGLE, &[("x", x("batch,3,2,2")), ("a", mean(&[1])), epsilon()]),
        row("layer-norm-scale", REALS, &[value(), ("a", layer_norm(2)), ("g", weight("4"))]),
        row("layer-norm-scale", REALS, &[value(), ("a", layer_norm(1)), ("g", weight("1,3,4"))]),
        row(
            "layer-norm-bias",
            REALS,
            &[value(), ("a", layer_norm(2)), ("g", weight("4")), ("b", weight("4"))],
        ),
        row("rms-norm", SINGLE, &[value(), ("a", mean(&[2])), epsilon()]),
        row("rms-norm-scale", REALS, &[value(), ("a", rms_norm(2)), ("g", weight("4"))]),
        row(
            "rms-norm-narrowed",
            &[DType::F16],
            &[value(), ("a", rms_norm(2)), ("w", cast(DType::F32)), ("n", cast(DType::F16))],
        ),
        row(
            "rms-norm-narrowed",
            &[DType::BF16],
            &[value(), ("a", rms_norm(2)), ("w", cast(DType::F32)), ("n", cast(DType::BF16))],
        ),
        row(
            "mean-of-squares",
            REALS,
            &[value(), ("a", reduce(ReduceOp::SumSquare, &[2])), ("c", number(0.25))],
        ),
        row(
            "mean-of-sum",
            REALS,
            &[value(), ("a", reduce(ReduceOp::Sum, &[2])), ("c", number(0.25))],
        ),
    ]
}

fn softmaxes() -> Vec<Row> {
    let value = || ("x", x("batch,3,4"));
    vec![
        row(
            "softmax",
            SINGLE,
            &[value(), ("m", reduce(ReduceOp::Max, &[2])), ("a", reduce(ReduceOp::Sum, &[2]))],
        ),
        row(
            "softmax",
            SINGLE,
            &[value(), ("m", reduce(ReduceOp::Max, &[1])), ("a", reduce(ReduceOp::Sum, &[1]))],
        ),
        row("softmax-unshifted", SINGLE, &[value(), ("a", reduce(ReduceOp::Sum, &[2]))]),
    ]
}

fn attentions() -> Vec<Row> {
    let heads = |k: &'static str| {
        [("q", x("2,4,3,8")), ("k", x(k)), ("v", x("2,4,2,5")), ("a", softmax(3))]
    };
    let with = |more: &[(&'static str, Bound)]| [&heads("2,4,8,2")[..], more].concat();
    let lowest = |dtype| match dtype {
        DType::F32 => f64::from(f32::MIN),
        _ => f64::from(half::bf16::MIN),
    };
    let lowest_of_f32 =
        Bound::Number { shape: "", dtype: Some(DType::F32), number: f64::from(f32::MIN) };
    let scale = || ("c", number(0.125));
    let three =
        [("q", x("batch,3,8")), ("k", x("batch,8,2")), ("v", x("batch,2,5")), ("a", softmax(2))];
    let nan = "(Select (IsNan (Softmax ?a (Select ?m (Mul (MatMul ?q ?k) ?c) ?f))) ?z (Softmax ?a (Select ?m (Mul (MatMul ?q ?k) ?c) ?f)))";
    let guarded = String::leak(format!("(MatMul {nan} ?v)"));
    let masked = "(MatMul (Softmax ?a (Select ?m (Mul (MatMul ?q ?k) ?c) ?f)) ?v)";
    let recast = "(MatMul (Cast ?n (Softmax ?a (Cast ?w (MatMul ?q ?k)))) ?v)";
    vec![
        row("attention", SINGLE, &heads("2,4,8,2"))
            .of(&["(MatMul (Softmax ?a (MatMul ?q ?k)) ?v)"]),
        row("attention", SINGLE, &with(&[scale()]))
            .of(&["(MatMul (Softmax ?a (Mul (MatMul ?q ?k) ?c)) ?v)"]),
        row("attention", SINGLE, &with(&[scale(), ("m", x("2,1,1,2"))]))
            .of(&["(MatMul (Softmax ?a (Add (Mul (MatMul ?q ?k) ?c) ?m)) ?v)"]),
        row("attention", SINGLE, &with(&[scale(), ("m", x("3,2"))]))
            .of(&["(MatMul (Softmax ?a (Add ?m (Mul (MatMul ?q ?k) ?c))) ?v)"]),
        row(
            "attention",
            SINGLE,
            &with(&[scale(), ("m", allowed()), ("f", number(f64::NEG_INFINITY))]),
        )
        .of(&[masked]),
        row(
            "attention",
            SINGLE,
            &with(&[
                scale(),
                ("m", allowed()),
                ("f", number(f64::NEG_INFINITY)),
                ("z", number(0.0)),
            ]),
        )
        .of(&[guarded]),
        row(
            "attention",
            SINGLE,
            &with(&[scale(), ("m", allowed()), ("f", number(f64::NEG_INFINITY))]),
        )
        .of(&["(MatMul (Softmax ?a (Select ?m ?f (Mul (MatMul ?q ?k) ?c))) ?v)"]),
        row(
            "attention",
            &[DType::F32],
            &with(&[scale(), ("m", allowed()), ("f", number(lowest(DType::F32)))]),
        )
        .of(&[masked]),
        // In `bf16` the lowest of `f32` is infinite, and the lowest of its own serves as well.
        row(
            "attention",
            &[DType::BF16],
            &with(&[
                ("w", cast(DType::F32)),
                ("n", cast(DType::BF16)),
                ("m", allowed()),
                ("f", lowest_of_f32),
            ]),
        )
        .of(&["(MatMul (Cast ?n (Softmax ?a (Select ?m (Cast ?w (MatMul ?q ?k)) ?f))) ?v)"]),
        row(
            "attention",
            &[DType::BF16],
            &with(&[scale(), ("m", allowed()), ("f", number(lowest(DType::BF16)))]),
        )
        .of(&[masked]),
        row("attention", SINGLE, &three).of(&["(MatMul (Softmax ?a (MatMul ?q ?k)) ?v)"]),
        row("attention", SINGLE, &[&three[..], &[("m", x("batch,1,2"))]].concat())
            .of(&["(MatMul (Softmax ?a (Add (MatMul ?q ?k) ?m)) ?v)"]),
        row("attention", &[DType::F16], &with(&[("w", cast(DType::F32)), ("n", cast(DType::F16))]))
            .of(&[recast]),
        row(
            "attention",
            &[DType::BF16],
            &with(&[("w", cast(DType::F32)), ("n", cast(DType::BF16))]),
        )
        .of(&[recast]),
        // A scale far below one, of logits that were far above.
        row("attention", SINGLE, &with(&[("c", number(1e-4))]))
            .of(&["(MatMul (Softmax ?a (Mul (MatMul ?q ?k) ?c)) ?v)"]),
        row("attention", &[DType::F32], &with(&[("w", cast(DType::F64)), ("n", cast(DType::F32))]))
            .of(&[recast]),
        row("attention-scale", REALS, &attended(&[("c", number(0.5))]))
            .of(&["(Attention ?a (Mul ?q ?c) (Mul ?k ?c) ?v absent)"]),
        row("attention-mask", REALS, &attended(&[("m", x("2,1,1,2")), ("e", expand("2,4,3,2"))]))
            .of(&["(Attention ?a ?q ?k ?v (Expand ?e ?m))"]),
        row(
            "attention-mask",
            REALS,
            &attended(&[("m", typed("2,1,1,2", DType::Bool)), ("e", expand("2,1,3,2"))]),
        )
        .of(&["(Attention ?a ?q ?k ?v (Expand ?e ?m))"]),
        row(
            "attention-groups",
            REALS,
            &attended(&[
                ("g", x("2,2,1,2,8")),
                ("h", x("2,2,1,2,5")),
                ("e", expand("2,2,2,2,8")),
                ("f", expand("2,2,2,2,5")),
                ("s", shape("2,4,2,8")),
                ("t", shape("2,4,2,5")),
            ]),
        )
        .of(&["(Attention ?a ?q (Reshape ?s (Expand ?e ?g)) (Reshape ?t (Expand ?f ?h)) absent)"]),
    ]
}

#[rustfmt::skip]
fn steps_of_norms() -> Vec<Row> {
    let value = || ("x", x("batch,3,4"));
    let narrowed = |dtype| row("layer-norm-narrowed", if dtype == DType::F16 { &[DType::F16] } else { &[DType::BF16] },
        &[value(), ("a", layer_norm(2)), ("w", cast(DType::F32)), ("n", cast(dtype))]);
    vec![
        narrowed(DType::F16),
        narrowed(DType::BF16),
        row("weight-of-quotient", BROAD, &[value(), ("g", weight("4")), ("r", x("batch,3,1"))]),
        row("weight-of-quotient", REALS, &[value(), ("g", weight("4")), ("r", x("batch,3,1"))]).of(&["(Div (Mul ?x ?g) (Sqrt ?r))"]),
        row("weight-over-root", BROAD, &[value(), ("g", weight("4")), ("r", x("batch,3,1"))]),
        row("weight-over-root", REALS, &[value(), ("g", weight("4")), ("r", x("batch,3,1"))]).of(&["(Mul ?x (Div ?g (Sqrt ?r)))"]),
        row("scaled-difference", WIDE, &[value(), ("b", weight("4")), ("m", x("batch,3,1")), ("i", x("batch,3,4"))]),
        row("reduction-kept", REALS, &[value(), ("a", dropped(ReduceOp::Mean, &[1, 2])), ("s", shape("batch,1,1"))])
            .of(&["(Reshape ?s (ReduceMean ?a ?x))"]),
        row("reduction-kept", NUMBERS, &[value(), ("a", dropped(ReduceOp::Sum, &[1])), ("s", shape("batch,1,4"))])
            .of(&["(Reshape ?s (ReduceSum ?a ?x))"]),
        row("reduction-kept", NUMBERS, &[value(), ("a", dropped(ReduceOp::Max, &[2])), ("s", shape("batch,3,1"))])
            .of(&["(Reshape ?s (ReduceMax ?a ?x))"]),
    ]
}

#[rustfmt::skip]
fn constants_of_views() -> Vec<Row> {
    vec![
        row("pointwise-of-transposes", NUMBERS, &[("p", perm(&[0, 2, 3, 1])), ("x", x("batch,3,2,4")), ("g", weight("4,3"))])
            .of(&["(Mul (Transpose ?p ?x) ?g)"]),
        row("pointwise-of-transposes", NUMBERS, &[("p", perm(&[1, 2, 0])), ("x", x("batch,3,2")), ("g", weight("2,1"))])
            .of(&["(Sub ?g (Transpose ?p ?x))"]),
    ]
}

/// Attention whose scores and weights are seen in other shapes, capped, or masked more than once.
#[rustfmt::skip]
fn viewed_attentions() -> Vec<Row> {
    let flat = |more: &[(&'static str, Bound)]| {
        let own = [
            ("q", x("8,3,8")),
            ("k", x("8,8,2")),
            ("v", x("8,2,5")),
            ("t", shape("2,4,3,2")),
            ("c", number(0.5)),
        ];
        [&own[..], more].concat()
    };
    let with = |more: &[(&'static str, Bound)]| {
        let own = [
            ("q", x("2,4,3,8")),
            ("k", x("2,4,8,2")),
            ("v", x("2,4,2,5")),
            ("a", softmax(3)),
            ("c", number(0.5)),
        ];
        [&own[..], more].concat()
    };
    let (m, n, f) = (("m", allowed()), ("n", x("2,4,3,2")), ("f", number(f64::NEG_INFINITY)));
    let z = ("z", number(0.0));
    let groups = [
        ("q", x("2,2,3,3,8")),
        ("k", x("2,2,1,8,2")),
        ("v", x("2,2,1,2,5")),
        ("a", softmax(4)),
        ("c", number(0.5)),
        ("m", x("2,1,1,3,2")),
    ];
    vec![
        row("attention", SINGLE, &flat(&[("a", softmax(3)), ("v", x("2,4,2,5")), ("m", x("2,1,1,2"))]))
            .of(&["(MatMul (Softmax ?a (Add (Reshape ?t (MatMul ?q ?k)) ?m)) ?v)"]),
        row("attention", SINGLE, &flat(&[("a", softmax(2)), ("s", shape("8,3,2")), ("m", x("2,1,3,2"))]))
            .of(&["(MatMul (Softmax ?a (Reshape ?s (Add (Reshape ?t (MatMul ?q ?k)) ?m))) ?v)"]),
        row("attention", SINGLE, &flat(&[("a", softmax(3)), ("s", shape("8,3,2")), ("m", x("2,1,3,2")), ("n", x("8,1,2"))]))
            .of(&["(MatMul (Reshape ?s (Softmax ?a (Add (Reshape ?t (Add (Mul (MatMul ?q ?k) ?c) ?n)) ?m))) ?v)"]),
        row("attention", SINGLE, &with(&[("s", shape("1,2,4,3,2")), ("t", shape("2,4,3,2")), ("n", x("4,3,2")), ("m", x("2,1,3,2"))]))
            .of(&["(MatMul (Softmax ?a (Reshape ?t (Add (Reshape ?s (Add (MatMul ?q ?k) ?n)) ?m))) ?v)"]),
        row("attention", SINGLE, &groups).of(&["(MatMul (Softmax ?a (Add (Mul (MatMul ?q ?k) ?c) ?m)) ?v)"]),
        row("attention", SINGLE, &with(&[("d", number(5.0)), ("m", x("3,2"))]))
            .of(&["(MatMul (Softmax ?a (Add (Mul (Tanh (Mul (MatMul ?q ?k) ?c)) ?d) ?m)) ?v)"]),
        row("attention", SINGLE, &with(&[n.clone(), ("o", x("3,2"))]))
            .of(&["(MatMul (Softmax ?a (Mul (Add (Add ?o (MatMul ?q ?k)) ?n) ?c)) ?v)"]),
        row("attention", SINGLE, &with(&[m.clone(), n.clone(), f.clone()]))
            .of(&["(MatMul (Softmax ?a (Add (Select ?m (MatMul ?q ?k) ?f) ?n)) ?v)"]),
        row("attention", SINGLE, &with(&[m.clone(), n.clone(), f.clone()]))
            .of(&["(MatMul (Softmax ?a (Select ?m (Add (MatMul ?q ?k) ?n) ?f)) ?v)"]),
        row("attention", &[DType::F32], &with(&[m.clone(), n.clone(), ("f", number(-1e38))]))
            .of(&["(MatMul (Softmax ?a (Select ?m (Add (MatMul ?q ?k) ?n) ?f)) ?v)"]),
        row("attention", SINGLE, &with(&[m.clone(), ("o", typed("3,2", DType::Bool)), f.clone()]))
            .of(&["(MatMul (Softmax ?a (Select ?o (Select ?m (MatMul ?q ?k) ?f) ?f)) ?v)"]),
        row("attention", SINGLE, &with(&[m, f.clone(), z.clone()]))
            .of(&["(MatMul (Select ?m (Softmax ?a (Select ?m (Mul (MatMul ?q ?k) ?c) ?f)) ?z) ?v)"]),
        row("attention", SINGLE, &with(&[("m", forbidden()), f, z]))
            .of(&["(MatMul (Select ?m ?z (Softmax ?a (Select ?m ?f (Mul (MatMul ?q ?k) ?c)))) ?v)"]),
    ]
}

/// Attention whose mask gives scores a number, also in rows of which it forbids all.
#[rustfmt::skip]
fn filled_attentions() -> Vec<Row> {
    const F16: &[DType] = &[DType::F16];
    const WIDER: &[DType] = &[DType::F32, DType::BF16];
    let own = [
        ("q", x("2,4,3,8")), ("k", x("2,4,8,2")), ("v", x("2,4,2,5")), ("a", softmax(3)), ("c", number(0.125)),
        ("m", typed("2,4,3,2", DType::Bool)),
    ];
    let with = |fill: f64| [&own[..], &[("f", number(fill))]].concat();
    let lowest = Bound::Number { shape: "", dtype: Some(DType::F32), number: f64::from(f32::MIN) };
    let cast = [("f", lowest), ("n", cast(DType::F16)), ("w", cast(DType::F32))];
    let masked = "(MatMul (Softmax ?a (Select ?m (Mul (MatMul ?q ?k) ?c) ?f)) ?v)";
    let after = "(MatMul (Softmax ?a (Mul (Select ?m (MatMul ?q ?k) ?f) ?c)) ?v)";
    let twice = "(MatMul (Softmax ?a (Select ?o ?f (Select ?m (MatMul ?q ?k) ?f))) ?v)";
    let recast = "(MatMul (Cast ?n (Softmax ?a (Select ?m (Cast ?w (MatMul ?q ?k)) ?f))) ?v)";
    vec![
        row("attention", WIDER, &with(-1e9)).of(&[masked]),
        row("attention", SINGLE, &with(-1e4)).of(&[masked]),
        row("attention", SINGLE, &with(0.25)).of(&[masked]),
        row("attention", SINGLE, &with(-1e4)).of(&[after]),
        row("attention", SINGLE, &[&with(-1e4)[..], &[("o", typed("1,3,2", DType::Bool))]].concat()).of(&[twice]),
        row("attention", F16, &with(-65504.0)).of(&[masked]),
        row("attention", F16, &[&own[..], &cast].concat()).of(&[recast]),
    ]
}

/// Attention over batch and heads in one dim.
#[rustfmt::skip]
fn merged_heads() -> Vec<Row> {
    let heads = [
        ("a", attention(0.25)), ("s", shape("batch*4,1,3,8")),
        ("k", x("batch*4,1,2,8")), ("v", x("batch*4,1,2,5")),
    ];
    let with = |more: &[(&'static str, Bound)]| [&heads[..], more].concat();
    let split = ("q", x("batch,4,3,8"));
    let turned = [("p", perm(&[1, 0, 2])), ("t", shape("3,batch*4,8")), ("q", x("3,batch,32"))];
    vec![
        row("attention-heads", REALS, &with(std::slice::from_ref(&split)))
            .of(&["(Attention ?a (Reshape ?s ?q) ?k ?v absent)"]),
        row("attention-heads", REALS, &with(&[split.clone(), ("m", x("batch*4,1,1,2"))]))
            .of(&["(Attention ?a (Reshape ?s ?q) ?k ?v ?m)"]),
        row("attention-heads", REALS, &with(&[split, ("m", typed("1,3,2", DType::Bool))]))
            .of(&["(Attention ?a (Reshape ?s ?q) ?k ?v ?m)"]),
        row("attention-heads", REALS, &with(&turned))
            .of(&["(Attention ?a (Reshape ?s (Transpose ?p (Reshape ?t ?q))) ?k ?v absent)"]),
    ]
}

/// Operands of an attention, and more.
fn attended(more: &[(&'static str, Bound)]) -> Vec<(&'static str, Bound)> {
    let own =
        [("a", attention(0.25)), ("q", x("2,4,3,8")), ("k", x("2,4,2,8")), ("v", x("2,4,2,5"))];
    [&own[..], more].concat()
}

fn matmuls() -> Vec<Row> {
    let state = || ("h", number(0.0));
    let layer = [
        ("a", lstm(2)),
        ("x", x("3,batch,4")),
        ("w", weight("1,8,4")),
        ("r", weight("1,8,2")),
        ("e", expand("1,batch,2")),
    ];
    vec![
        row(
            "merge-projections",
            REALS,
            &[("x", x("batch,3")), ("u", weight("3,4")), ("w", weight("3,5")), ("b", weight("4"))],
        )
        .of(&["(Add (MatMul ?x ?u) ?b)", "(MatMul ?x ?w)"]),
        row(
            "merge-projections",
            REALS,
            &[("x", x("batch,3")), ("u", weight("3,4")), ("w", weight("3,5"))],
        )
        .of(&["(MatMul ?x ?u)", "(MatMul ?x ?w)"]),
        row("zero-state", REALS, &[&layer[..], &[state(), ("c", x("1,batch,2"))]].concat())
            .of(&["(Lstm ?a ?x ?w ?r absent absent (Expand ?e ?h) ?c absent)"]),
        row("zero-state", REALS, &[&layer[..], &[state(), ("c", number(0.0))]].concat())
            .of(&["(Lstm ?a ?x ?w ?r absent absent (Expand ?e ?h) (Expand ?e ?c) absent)"]),
    ]
}
