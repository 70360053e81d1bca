//! Attention: masks of every kind, grouped heads, partial blocks.

use crate::check::{Random, check_graph, check_op, module};
use graphene_frontend::dim::{Bindings, Dim};
use graphene_frontend::dtype::DType;
use graphene_frontend::graph::{Graph, ValueId};
use graphene_frontend::op::{AttentionAttrs, Op, SliceAxis};
use graphene_frontend::tensor::Tensor;
use graphene_frontend::types::TensorType;
use graphene_fusion::Granularity;

const PLAIN: AttentionAttrs = AttentionAttrs {
    scale: 0.25,
    causal: false,
    softcap: 0.0,
    guarded: false,
    fill: f32::NEG_INFINITY,
};

/// Batch, heads, groups, queries, keys, depth, depth of the values.
type Sizes = [usize; 7];

fn operands(
    dtype: DType,
    [b, h, g, s, t, d, e]: Sizes,
    random: &mut Random,
) -> Vec<Option<Tensor>> {
    let shapes = [vec![b, h, s, d], vec![b, g, t, d], vec![b, g, t, e]];
    shapes.map(|shape| Some(random.tensor(dtype, shape))).into()
}

fn check(dtype: DType, sizes: Sizes, attrs: AttentionAttrs, mask: Option<Tensor>, tolerance: f64) {
    let mut operands = operands(dtype, sizes, &mut Random(7));
    operands.push(mask);
    check_op(Op::Attention(attrs), &operands, &[0], "attention", tolerance);
}

#[test]
fn sizes() {
    for sizes in [
        [1, 1, 1, 1, 1, 1, 1],
        [2, 3, 3, 5, 7, 8, 8],
        [1, 2, 2, 130, 300, 33, 17],
        [1, 4, 2, 9, 520, 16, 5],
        [2, 6, 1, 129, 257, 4, 40],
        // Of several parts of blocks, and from beyond the second-level cache.
        [2, 2, 2, 600, 300, 40, 40],
        [0, 2, 2, 3, 3, 4, 4],
        [1, 2, 2, 3, 0, 4, 4],
        [1, 2, 1, 3, 5, 0, 4],
        [1, 2, 1, 3, 5, 4, 0],
    ] {
        check(DType::F32, sizes, PLAIN, None, 1e-5);
        check(DType::F32, sizes, AttentionAttrs { causal: true, ..PLAIN }, None, 1e-5);
        check(DType::F32, sizes, AttentionAttrs { softcap: 1.5, ..PLAIN }, None, 1e-5);
    }
}

#[test]
fn masks_broadcast() {
    let (b, h, s, t) = (2, 4, 131, 270);
    let sizes = [b, h, 2, s, t, 9, 10];
    for shape in
        [vec![b, h, s, t], vec![b, 1, 1, t], vec![1, h, s, 1], vec![s, t], vec![t], vec![1], vec![]]
    {
        for dtype in [DType::F32, DType::Bool] {
            let mask = Random(3).tensor(dtype, shape.clone());
            let causal = AttentionAttrs { causal: true, ..PLAIN };
            check(DType::F32, sizes, PLAIN, Some(mask.clone()), 1e-5);
            check(DType::F32, sizes, causal, Some(mask.clone()), 1e-5);
            for fill in [-1e9, -1e4, 0.25] {
                let filled = AttentionAttrs { fill, ..PLAIN };
                check(DType::F32, sizes, filled, Some(mask.clone()), 1e-5);
            }
        }
    }
}

#[test]
fn rows_that_attend_nowhere_or_late() {
    let (s, t) = (3, 600);
    // The first row attends nothing, the second only a key of the last block, the third all but the first.
    let attended = |i: usize| [false, i % t == 590, i % t > 300][i / t];
    let bools = Tensor::from_bools(vec![s, t], (0..s * t).map(attended).collect()).unwrap();
    let bias = |i| if attended(i) { 0.5 } else { f32::NEG_INFINITY };
    let floats = Tensor::from_vec(vec![s, t], (0..s * t).map(bias).collect()).unwrap();
    for mask in [bools, floats] {
        for guarded in [false, true] {
            for fill in [f32::NEG_INFINITY, -1e9, -1e4] {
                let attrs = AttentionAttrs { guarded, fill, ..PLAIN };
                check(DType::F32, [1, 2, 2, s, t, 8, 8], attrs, Some(mask.clone()), 1e-5);
            }
        }
    }
}

#[test]
fn infinite_and_missing_scores() {
    for special in [f32::NAN, f32::INFINITY] {
        let mut mask = vec![0.0_f32; 2 * 300];
        mask[299] = special;
        let mask = Tensor::from_vec(vec![2, 300], mask).unwrap();
        for guarded in [false, true] {
            let attrs = AttentionAttrs { guarded, ..PLAIN };
            check(DType::F32, [1, 1, 1, 2, 300, 4, 4], attrs, Some(mask.clone()), 1e-5);
        }
    }
}

#[test]
fn narrow_floats() {
    for (dtype, tolerance) in [(DType::F16, 1e-3), (DType::BF16, 8e-3)] {
        let sizes = [2, 4, 2, 37, 300, 16, 12];
        check(dtype, sizes, PLAIN, None, tolerance);
        let mask = Random(5).tensor(dtype, vec![37, 300]);
        check(dtype, sizes, PLAIN, Some(mask), tolerance);
    }
}

fn add(graph: &mut Graph, op: Op, inputs: &[Option<ValueId>]) -> ValueId {
    graph.add(op.name(), op.clone(), inputs).unwrap().value()
}

/// Heads of `x[b,s,n·h·d]`, part `i` of n, as `[b,h,s,d]`; reversed along the sequence if so asked.
fn heads(graph: &mut Graph, x: ValueId, i: usize, [h, d]: [usize; 2], reversed: bool) -> ValueId {
    let (b, s) = (graph.ty(x).shape[0].clone(), graph.ty(x).shape[1].clone());
    let (start, len) = (Dim::from(i * h * d), Dim::from(h * d));
    let mut ranges = vec![SliceAxis { axis: 2, start, len, step: 1 }];
    if reversed {
        let last = &s - &Dim::from(1);
        ranges.push(SliceAxis { axis: 1, start: last, len: s.clone(), step: -1 });
    }
    let part = add(graph, Op::Slice(ranges), &[Some(x)]);
    let split = Op::Reshape(vec![b, s, Dim::from(h), Dim::from(d)]);
    let split = add(graph, split, &[Some(part)]);
    add(graph, Op::Transpose(vec![0, 2, 1, 3]), &[Some(split)])
}

/// Attention over one packed `[b,s,3·h·d]`, its heads merged again: nothing but attention may run.
fn check_packed(dtype: DType, [b, s, h, d]: [usize; 4], mask: Option<Tensor>, reversed: bool) {
    let mut graph = Graph::new();
    let shape = [b, s, 3 * h * d];
    let mut random = Random(3);
    let mut inputs = vec![random.tensor(dtype, shape.to_vec())];
    let input = |graph: &mut Graph, name: &str, tensor: &Tensor| {
        let shape = tensor.shape().iter().map(|&size| Dim::from(size)).collect();
        graph.add_input(name, TensorType::new(tensor.dtype(), shape)).unwrap()
    };
    let x = input(&mut graph, "x", &inputs[0]);
    let [q, k, v] = [0, 1, 2].map(|i| heads(&mut graph, x, i, [h, d], reversed && i > 0));
    let bias = mask.map(|mask| {
        let value = input(&mut graph, "mask", &mask);
        inputs.push(mask);
        value
    });
    let y = add(&mut graph, Op::Attention(PLAIN), &[Some(q), Some(k), Some(v), bias]);
    let y = add(&mut graph, Op::Transpose(vec![0, 2, 1, 3]), &[Some(y)]);
    let merged = [b, s, h * d].map(Dim::from).to_vec();
    let y = add(&mut graph, Op::Reshape(merged), &[Some(y)]);
    graph.add_output("y", y);
    let module = module(&graph, Granularity::Fused);
    assert_eq!(module.kernels().collect::<Vec<_>>(), ["attention"], "{}", module.program());
    let tolerance = [(DType::F32, 1e-5), (DType::F16, 1e-3), (DType::BF16, 8e-3)];
    let (_, tolerance) = tolerance.into_iter().find(|&(of, _)| of == dtype).unwrap();
    check_graph(&graph, &Bindings::new(), &inputs, tolerance);
}

#[test]
fn packed_heads_are_read_and_merged_in_place() {
    for dtype in [DType::F32, DType::F16, DType::BF16] {
        for sizes in [[1, 1, 1, 1], [2, 9, 3, 8], [2, 140, 2, 17], [1, 300, 2, 33]] {
            let [b, s, ..] = sizes;
            check_packed(dtype, sizes, None, false);
            check_packed(dtype, sizes, None, true);
            let bias = Random(9).tensor(dtype, vec![b, 1, 1, s]);
            check_packed(dtype, sizes, Some(bias), true);
            let attended = Tensor::from_bools(vec![s, 1], (0..s).map(|i| i % 3 != 1).collect());
            check_packed(dtype, sizes, attended.ok(), false);
        }
    }
}

#[test]
fn operands_and_result_may_lie_transposed() {
    let (b, h, s, t, d) = (2, 3, 37, 50, 9);
    // Each operand is stored with its axes in this order, and so is the result.
    for order in [[3, 2, 1, 0], [0, 1, 3, 2], [2, 0, 1, 3], [1, 2, 0, 3]] {
        let mut graph = Graph::new();
        let mut inputs = Vec::new();
        let mut back = vec![0; 4];
        order.iter().enumerate().for_each(|(place, &axis)| back[axis] = place);
        let mut random = Random(4);
        let operands = [[b, h, s, d], [b, h, t, d], [b, h, t, d]].map(|shape| {
            let stored: Vec<usize> = order.iter().map(|&axis| shape[axis]).collect();
            let ty = TensorType::new(DType::F32, stored.iter().map(|&n| Dim::from(n)).collect());
            let x = graph.add_input(&format!("x{}", inputs.len()), ty).unwrap();
            inputs.push(random.tensor(DType::F32, stored));
            Some(add(&mut graph, Op::Transpose(back.clone()), &[Some(x)]))
        });
        let y = add(&mut graph, Op::Attention(PLAIN), &operands);
        let y = add(&mut graph, Op::Transpose(order.to_vec()), &[Some(y)]);
        graph.add_output("y", y);
        let module = module(&graph, Granularity::Fused);
        assert_eq!(module.kernels().collect::<Vec<_>>(), ["attention"], "{}", module.program());
        check_graph(&graph, &Bindings::new(), &inputs, 1e-5);
    }
}
