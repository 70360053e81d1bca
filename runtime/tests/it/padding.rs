//! Requests in larger sizes than they ask for: the same as exact ones, or refused.

use crate::check::{Random, executable};
use graphene_frontend::dim::{Bindings, Dim, Symbol};
use graphene_frontend::graph::{Graph, ValueId};
use graphene_frontend::import::{ImportOptions, Reading, import, read_model};
use graphene_frontend::op::{
    AttentionAttrs, Binary, ConvAttrs, CumulativeOp, Op, ReduceOp, SliceAxis, Unary,
};
use graphene_frontend::tensor::Tensor;
use graphene_frontend::testdata::compare;
use graphene_fusion::pad::{Padding, padding};
use graphene_fusion::{Granularity, plan};
use graphene_ir::target::Target;
use graphene_models::{Options, build, names};
use std::path::Path;

/// Sizes by the names of dims.
type Sizes = [(&'static str, i64); 2];

fn fixture(name: &str) -> Graph {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../frontend/tests/data/fixtures");
    let (model, weights) =
        read_model(folder.join(name).join("model.onnx"), Reading::Mapped).unwrap();
    import(model, &weights, &ImportOptions::default()).unwrap().graph
}

fn zoo(name: &str) -> Graph {
    let model = build(name, &Options::default()).unwrap();
    let (bytes, (_, weights)) = (model.encode(), model.into_parts());
    import(bytes, &weights, &ImportOptions::default()).unwrap().graph
}

fn paddings(graph: &Graph, symbols: &[&str]) -> Vec<Padding> {
    let target = Target::cpu(2);
    let planned = plan(graph, &target, Granularity::Fused, &Bindings::new()).unwrap();
    let of = |name: &&str| padding(&planned.graph, &Symbol::new(name));
    symbols.iter().map(of).collect::<Result<_, _>>().unwrap_or_else(|error| panic!("{error}"))
}

fn sizes(rows: &[(&str, i64)]) -> Bindings {
    let mut sizes = Bindings::new();
    rows.iter().for_each(|&(name, size)| sizes.bind(Symbol::new(name), size).unwrap());
    sizes
}

/// Token ids, masks with something to attend to in every row, and numbers.
fn inputs(graph: &Graph, sizes: &Bindings, random: &mut Random) -> Vec<Tensor> {
    let types = graph.inputs().iter().map(|id| (graph.node(*id).name(), graph.ty(id.value())));
    let made = types.map(|(name, ty)| {
        let shape = ty.bound_shape(sizes).unwrap();
        let n: usize = shape.iter().product();
        let length = shape.last().copied().unwrap_or(1);
        let mut id = |i: usize| match name {
            "input_ids" => random.below(1000) as i64,
            "attention_mask" if i.is_multiple_of(length) => 1,
            _ => random.below(2) as i64,
        };
        match ty.dtype.is_float() {
            true => random.tensor(ty.dtype, shape),
            false => Tensor::from_vec(shape, (0..n).map(&mut id).collect()).unwrap(),
        }
    });
    made.collect()
}

/// Inputs at larger sizes: zeros behind what is given.
fn filled(inputs: &[Tensor], paddings: &[Padding], bucket: &Bindings) -> Vec<Tensor> {
    resize_all(inputs, paddings, bucket, |padding| &padding.inputs)
}

/// The part of outputs that was asked for.
fn cut(outputs: &[Tensor], paddings: &[Padding], asked: &Bindings) -> Vec<Tensor> {
    resize_all(outputs, paddings, asked, |padding| &padding.outputs)
}

fn resize_all(
    tensors: &[Tensor],
    paddings: &[Padding],
    sizes: &Bindings,
    axes: impl Fn(&Padding) -> &Vec<Vec<usize>>,
) -> Vec<Tensor> {
    let mut tensors = tensors.to_vec();
    for padding in paddings {
        let size = usize::try_from(sizes.get(&padding.symbol).unwrap()).unwrap();
        assert_eq!(axes(padding).len(), tensors.len());
        for (tensor, axes) in tensors.iter_mut().zip(axes(padding)) {
            axes.iter().for_each(|&axis| *tensor = resized(tensor, axis, size));
        }
    }
    tensors
}

/// A tensor with `size` elements along an axis: its first ones, and zeros behind them.
fn resized(tensor: &Tensor, axis: usize, size: usize) -> Tensor {
    let mut shape = tensor.shape().to_vec();
    let before = std::mem::replace(&mut shape[axis], size);
    let width = tensor.dtype().size();
    let inner = shape[axis + 1..].iter().product::<usize>() * width;
    let rows = shape[..axis].iter().product::<usize>();
    let mut bytes = vec![0; rows * size * inner];
    let kept = before.min(size) * inner;
    for row in 0..rows {
        let (from, to) = (row * before * inner, row * size * inner);
        bytes[to..to + kept].copy_from_slice(&tensor.bytes()[from..from + kept]);
    }
    Tensor::new(tensor.dtype(), shape, bytes.into()).unwrap()
}

/// Runs at the sizes asked for and at the larger ones, by operations and fused.
fn check(name: &str, graph: &Graph, asked: &Bindings, bucket: &Bindings, symbols: &[&str]) {
    let paddings = paddings(graph, symbols);
    let given = inputs(graph, asked, &mut Random(7));
    let more = filled(&given, &paddings, bucket);
    for granularity in [Granularity::PerOp, Granularity::Fused] {
        let exact = executable(graph, asked, granularity).run(&given).unwrap();
        let padded = executable(graph, bucket, granularity).run(&more).unwrap();
        let padded = cut(&padded, &paddings, asked);
        assert_eq!(exact.len(), padded.len());
        for (number, (exact, padded)) in exact.iter().zip(&padded).enumerate() {
            let result = compare(padded, exact, 1e-5, 1e-5).unwrap();
            assert!(result.agrees(), "{name} {granularity:?}, output {number}: {result}");
        }
    }
}

#[test]
fn encoders_with_masks_are_padded_exactly() {
    let fixtures = ["bert-tiny", "bert-tiny-opset13", "bert-tiny-sdpa", "distilroberta-tiny"];
    let tiny = names().map(|(name, _)| name).filter(|name| name.ends_with("-tiny"));
    let graphs = fixtures.iter().map(|&name| (name, fixture(name)));
    let mut count = 0;
    for (name, graph) in graphs.chain(tiny.map(|name| (name, zoo(name)))) {
        // Others have no sequence, or one that recurrent layers run along.
        if !graph.symbols().contains(&Symbol::new("sequence")) {
            continue;
        }
        let rows: [(Sizes, Sizes, &[&str]); 3] = [
            ([("batch", 3), ("sequence", 21)], [("batch", 3), ("sequence", 32)], &["sequence"]),
            ([("batch", 3), ("sequence", 21)], [("batch", 8), ("sequence", 21)], &["batch"]),
            (
                [("batch", 1), ("sequence", 1)],
                [("batch", 2), ("sequence", 24)],
                &["batch", "sequence"],
            ),
        ];
        for (asked, bucket, symbols) in rows {
            check(name, &graph, &sizes(&asked), &sizes(&bucket), symbols);
        }
        count += 1;
    }
    assert!(count >= 8, "{count}");
}

/// One image, row or sequence does not know of others.
#[test]
fn batches_are_padded() {
    for name in ["lstm", "mlp-8x64", "mlp-gelu-4x128"] {
        let graph = fixture(name);
        let Some(symbol) = graph.symbols().into_iter().find(|symbol| symbol.name() == "batch")
        else {
            continue;
        };
        let all = |batch| {
            let mut sizes = Bindings::new();
            for other in graph.symbols() {
                let size = if other == symbol { batch } else { 5 };
                sizes.bind(other, size).unwrap();
            }
            sizes
        };
        check(name, &graph, &all(3), &all(4), &["batch"]);
    }
}

/// An operation on `x[b, s, 8]`, or a `mask[b, s]` of 0 and 1 where it asks for one.
type Build = fn(&mut Graph, ValueId) -> ValueId;

fn add(graph: &mut Graph, name: &str, op: Op, inputs: &[ValueId]) -> ValueId {
    let inputs: Vec<_> = inputs.iter().copied().map(Some).collect();
    graph.add(name, op, &inputs).unwrap().value()
}

fn of(build: Build) -> Graph {
    let mut graph = Graph::new();
    let x = graph.add_input("x", "f32[b, s, 8]".parse().unwrap()).unwrap();
    let y = build(&mut graph, x);
    graph.add_output("y", y);
    graph
}

fn mask(graph: &mut Graph, ty: &str) -> ValueId {
    graph.add_input("mask", ty.parse().unwrap()).unwrap()
}

fn number(graph: &mut Graph, number: f32) -> ValueId {
    graph.add_constant("number", Tensor::scalar(number))
}

/// Attention of `x` to itself, four features by four heads being one head of eight.
fn attend(graph: &mut Graph, x: ValueId, mask: Option<ValueId>, causal: bool) -> ValueId {
    let shape = ["b", "1", "s", "8"].map(|dim| dim.parse::<Dim>().unwrap());
    let heads = add(graph, "heads", Op::Reshape(shape.to_vec()), &[x]);
    let (scale, fill) = (0.5, f32::NEG_INFINITY);
    let attrs = AttentionAttrs { scale, causal, softcap: 0.0, guarded: false, fill };
    let operands = [Some(heads), Some(heads), Some(heads), mask];
    graph.add("attention", Op::Attention(attrs), &operands).unwrap().value()
}

/// What a mask makes of scores: 0 where it is 1, `low` where it is 0.
fn scores(graph: &mut Graph, low: f32) -> ValueId {
    scores_of(graph, "f32[b, 1, 1, s]", low)
}

fn scores_of(graph: &mut Graph, ty: &str, low: f32) -> ValueId {
    let given = mask(graph, ty);
    let (one, low) = (number(graph, 1.0), number(graph, low));
    let inverted = add(graph, "inverted", Op::Binary(Binary::Sub), &[one, given]);
    add(graph, "scores", Op::Binary(Binary::Mul), &[inverted, low])
}

const SUM: ReduceOp = ReduceOp::Sum;

fn cast(to: &str) -> Op {
    Op::Cast { to: to.parse().unwrap(), saturate: true }
}

/// The sum over positions that a mask keeps of numbers that have none: of those that it does not, `0·∞` where one is ∞.
fn kept(graph: &mut Graph, numbers: ValueId) -> ValueId {
    let kept = graph.add_input("kept", "f32[b, s, 1]".parse().unwrap()).unwrap();
    let all = add(graph, "all", Op::Binary(Binary::Mul), &[numbers, kept]);
    add(graph, "n", Op::Reduce { op: SUM, axes: vec![1], keep: false }, &[all])
}

#[test]
fn what_mixes_positions_is_refused_by_name() {
    let rows: [(&str, Build, &str); 17] = [
        (
            "narrowed",
            |g, x| {
                let x = add(g, "fp16", cast("f16"), &[x]);
                let x = add(g, "kept", cast("f32"), &[x]);
                let low = scores(g, -1e4);
                attend(g, x, Some(low), false)
            },
            "attends to what may not be finite",
        ),
        (
            "sum of two masks",
            |g, _| {
                let low = scores_of(g, "f32[8]", f32::MIN);
                let lower = add(g, "both", Op::Binary(Binary::Add), &[low, low]);
                kept(g, lower)
            },
            "takes all",
        ),
        (
            "norm",
            |g, x| add(g, "n", Op::LayerNorm { axis: 1, epsilon: 1e-5 }, &[x]),
            "normalises over it",
        ),
        (
            "mean",
            |g, x| add(g, "n", Op::Reduce { op: ReduceOp::Mean, axes: vec![1], keep: true }, &[x]),
            "takes all",
        ),
        (
            "largest",
            |g, x| add(g, "n", Op::Reduce { op: ReduceOp::Max, axes: vec![1], keep: false }, &[x]),
            "takes all",
        ),
        ("softmax", |g, x| add(g, "n", Op::Softmax { axis: 1, log: false }, &[x]), "no mask"),
        ("attention", |g, x| attend(g, x, None, false), "no mask is known"),
        (
            "weak mask",
            |g, x| {
                let low = scores(g, -10.0);
                attend(g, x, Some(low), false)
            },
            "no mask is known",
        ),
        (
            "inverted mask",
            |g, x| {
                let low = mask(g, "f32[b, 1, 1, s]");
                attend(g, x, Some(low), false)
            },
            "no mask is known",
        ),
        (
            "window",
            |g, x| {
                let turned = add(g, "turned", Op::Transpose(vec![0, 2, 1]), &[x]);
                let filter = g.add_constant(
                    "filter",
                    Tensor::from_vec(vec![8, 8, 3], vec![0.1_f32; 192]).unwrap(),
                );
                let attrs = ConvAttrs {
                    strides: vec![1],
                    dilations: vec![1],
                    pads_before: vec![1],
                    pads_after: vec![1],
                    group: 1,
                };
                add(g, "n", Op::Conv(attrs), &[turned, filter])
            },
            "moves a window along it",
        ),
        (
            "last",
            |g, x| {
                let start = "s".parse::<Dim>().unwrap() - Dim::from(1);
                let axis = SliceAxis { axis: 1, start, len: 1.into(), step: 1 };
                add(g, "n", Op::Slice(vec![axis]), &[x])
            },
            "begins where it says",
        ),
        (
            "second",
            |g, x| {
                let two = Tensor::from_vec(vec![1], vec![1_i64]).unwrap();
                let two = g.add_constant("two", two);
                add(g, "n", Op::Gather { axis: 1 }, &[x, two])
            },
            "picks some of its positions",
        ),
        (
            "from the end",
            |g, x| {
                let op = CumulativeOp::Sum;
                add(g, "n", Op::Cumulative { op, axis: 1, exclusive: false, reverse: true }, &[x])
            },
            "from its end",
        ),
        ("joined", |g, x| add(g, "n", Op::Concat { axis: 1 }, &[x, x]), "joins others"),
        (
            "flat",
            |g, x| {
                let shape = ["b", "8*s"].map(|dim| dim.parse::<Dim>().unwrap());
                add(g, "n", Op::Reshape(shape.to_vec()), &[x])
            },
            "in one axis with others",
        ),
        (
            "product",
            |g, x| {
                let one = number(g, 1.0);
                let x = add(g, "more", Op::Binary(Binary::Add), &[x, one]);
                let turned = add(g, "turned", Op::Transpose(vec![0, 2, 1]), &[x]);
                add(g, "n", Op::MatMul, &[turned, x])
            },
            "adds up what lies along it",
        ),
        (
            "length",
            |g, x| {
                let length = add(g, "length", Op::Size("s".parse().unwrap()), &[]);
                let length = add(
                    g,
                    "cast",
                    Op::Cast { to: "f32".parse().unwrap(), saturate: true },
                    &[length],
                );
                add(g, "n", Op::Binary(Binary::Div), &[x, length])
            },
            "is a size that follows from it",
        ),
    ];
    for (name, build, reason) in rows {
        let error = padding(&of(build), &Symbol::new("s")).expect_err(name).to_string();
        assert!(
            error.starts_with("`s` cannot be padded: \"") && error.contains(reason),
            "{name}: {error}"
        );
    }
}

#[test]
fn what_leaves_positions_apart_is_padded() {
    let rows: [(&str, Build); 8] = [
        ("narrowed within bounds", |g, x| {
            let x = add(g, "bounded", Op::Unary(Unary::Tanh), &[x]);
            let x = add(g, "fp16", cast("f16"), &[x]);
            let x = add(g, "kept", cast("f32"), &[x]);
            let low = scores(g, -1e4);
            attend(g, x, Some(low), false)
        }),
        ("one mask times another", |g, _| {
            let low = scores_of(g, "f32[8]", -1e4);
            kept(g, low)
        }),
        ("mask by a number", |g, x| {
            let low = scores(g, -1e4);
            attend(g, x, Some(low), false)
        }),
        ("mask of truth values", |g, x| {
            let may = mask(g, "bool[b, 1, 1, s]");
            attend(g, x, Some(may), false)
        }),
        ("mask of every query", |g, x| {
            let may = mask(g, "bool[b, 1, s, s]");
            attend(g, x, Some(may), false)
        }),
        ("causal", |g, x| attend(g, x, None, true)),
        ("mean by a mask", |g, x| {
            let given = mask(g, "f32[b, s, 1]");
            let kept = add(g, "kept", Op::Binary(Binary::Mul), &[x, given]);
            let op = |keep| Op::Reduce { op: SUM, axes: vec![1], keep };
            let (sum, count) =
                (add(g, "sum", op(false), &[kept]), add(g, "count", op(false), &[given]));
            add(g, "mean", Op::Binary(Binary::Div), &[sum, count])
        }),
        ("so far", |g, x| {
            let op = CumulativeOp::Sum;
            add(g, "n", Op::Cumulative { op, axis: 1, exclusive: false, reverse: false }, &[x])
        }),
    ];
    for (name, build) in rows {
        let graph = of(build);
        let padding = padding(&graph, &Symbol::new("s")).unwrap_or_else(|e| panic!("{name}: {e}"));
        let (asked, bucket) = (sizes(&[("b", 2), ("s", 5)]), sizes(&[("b", 2), ("s", 9)]));
        let mut random = Random(3);
        let given = graph.inputs().iter().map(|id| {
            let ty = graph.ty(id.value());
            let shape = ty.bound_shape(&asked).unwrap();
            // The first of each five is there, and every other one.
            let n: usize = shape.iter().product();
            match (graph.node(*id).name(), ty.dtype.is_float()) {
                ("mask" | "kept", true) => {
                    Tensor::from_vec(shape, (0..n).map(|i| ((i % 5 % 2) ^ 1) as f32).collect())
                }
                ("mask", false) => {
                    Tensor::from_bools(shape, (0..n).map(|i| i % 5 % 2 == 0).collect())
                }
                _ => return random.tensor(ty.dtype, shape),
            }
            .unwrap()
        });
        let given: Vec<Tensor> = given.collect();
        let paddings = [padding];
        let more = filled(&given, &paddings, &bucket);
        for granularity in [Granularity::PerOp, Granularity::Fused] {
            let exact = executable(&graph, &asked, granularity).run(&given).unwrap();
            let padded = executable(&graph, &bucket, granularity).run(&more).unwrap();
            let padded = cut(&padded, &paddings, &asked);
            let result = compare(&padded[0], &exact[0], 1e-5, 1e-6).unwrap();
            assert!(result.agrees(), "{name} {granularity:?}: {result}");
        }
    }
}
