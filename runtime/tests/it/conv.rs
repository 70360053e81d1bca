//! Convolutions and their transposes: geometries, groups, partial blocks.

use crate::check::{Random, check_graph, check_op, executable, module, random_inputs};
use graphene_frontend::dim::{Bindings, Dim};
use graphene_frontend::dtype::DType;
use graphene_frontend::graph::{Graph, ValueId};
use graphene_frontend::op::{Binary, ConvAttrs, Op, PoolAttrs, PoolKind, ReduceOp, Unary};
use graphene_frontend::types::TensorType;
use graphene_fusion::Granularity;
use graphene_runtime::Threads;

/// A row: spatial sizes, kernel, strides, dilations, pads before, pads after.
type Row = (
    &'static [usize],
    &'static [usize],
    &'static [usize],
    &'static [usize],
    &'static [i64],
    &'static [i64],
);

const ROWS: &[Row] = &[
    (&[1], &[1], &[1], &[1], &[0], &[0]),
    (&[37], &[5], &[1], &[1], &[2], &[1]),
    (&[300], &[3], &[2], &[4], &[0], &[5]),
    (&[9, 11], &[1, 1], &[1, 1], &[1, 1], &[0, 0], &[0, 0]),
    (&[9, 11], &[1, 1], &[2, 3], &[1, 1], &[0, 0], &[0, 0]),
    (&[9, 11], &[3, 3], &[1, 1], &[1, 1], &[1, 1], &[1, 1]),
    (&[9, 11], &[3, 2], &[2, 1], &[2, 3], &[3, 0], &[1, 4]),
    (&[30, 31], &[3, 3], &[1, 1], &[1, 1], &[1, 1], &[1, 1]),
    (&[9, 11], &[3, 3], &[2, 2], &[1, 1], &[-2, 1], &[1, -3]),
    (&[2, 2], &[3, 3], &[1, 1], &[1, 1], &[4, 4], &[4, 4]),
    (&[4, 5, 6], &[2, 3, 1], &[1, 2, 1], &[1, 1, 2], &[1, 0, 0], &[0, 2, 1]),
];

/// Images, groups, channels and filters of a group.
const CHANNELS: &[[usize; 4]] = &[
    [1, 1, 1, 1],
    [2, 1, 3, 9],
    [1, 1, 40, 17],
    [3, 4, 1, 1],
    [2, 3, 1, 2],
    [2, 2, 5, 6],
    [0, 1, 3, 4],
];

fn attrs(row: &Row, group: usize) -> ConvAttrs {
    let &(_, _, strides, dilations, before, after) = row;
    ConvAttrs {
        strides: strides.to_vec(),
        dilations: dilations.to_vec(),
        pads_before: before.to_vec(),
        pads_after: after.to_vec(),
        group,
    }
}

fn shape(lead: [usize; 2], spatial: &[usize]) -> Vec<usize> {
    lead.into_iter().chain(spatial.iter().copied()).collect()
}

fn check_conv(row: &Row, [n, g, c, m]: [usize; 4], dtype: DType, tolerance: f64) {
    let mut random = Random(5);
    let mut operands = vec![
        Some(random.tensor(dtype, shape([n, g * c], row.0))),
        Some(random.tensor(dtype, shape([g * m, c], row.1))),
    ];
    let op = || Op::Conv(attrs(row, g));
    let kernel = if dtype == DType::I32 { "int8-conv" } else { "conv" };
    check_op(op(), &operands, &[0], kernel, tolerance);
    operands.push(Some(random.tensor(dtype, vec![g * m])));
    check_op(op(), &operands, &[0], kernel, tolerance);
}

fn check_transpose(row: &Row, [n, g, c, m]: [usize; 4], dtype: DType, tolerance: f64) {
    let mut random = Random(5);
    let mut operands = vec![
        Some(random.tensor(dtype, shape([n, g * c], row.0))),
        Some(random.tensor(dtype, shape([g * c, m], row.1))),
    ];
    let (kernel, mut conv) = (row.1, attrs(row, g));
    // Pads cut from the result here, so they are kept smaller than the windows.
    let bound = |(pad, &k): (&mut i64, &usize)| *pad = (*pad).min(k as i64 / 2);
    conv.pads_before.iter_mut().zip(kernel).for_each(bound);
    conv.pads_after.iter_mut().zip(kernel).for_each(bound);
    let output_padding = conv.strides.iter().map(|stride| stride - 1).collect();
    let op = Op::ConvTranspose { conv, output_padding };
    check_op(op.clone(), &operands, &[0], "conv-transpose", tolerance);
    operands.push(Some(random.tensor(dtype, vec![g * m])));
    check_op(op, &operands, &[0], "conv-transpose", tolerance);
}

#[test]
fn every_geometry_and_grouping() {
    for row in ROWS {
        for &channels in CHANNELS {
            // Up to 360 products of at most 4, each sum rounded.
            check_conv(row, channels, DType::F32, 1e-4);
            check_transpose(row, channels, DType::F32, 1e-4);
        }
    }
}

#[test]
fn integers_are_exact() {
    for row in ROWS {
        for &channels in CHANNELS {
            check_conv(row, channels, DType::I32, 0.0);
        }
    }
    let row: Row = (&[40, 50], &[3, 3], &[1, 1], &[1, 1], &[1, 1], &[1, 1]);
    check_conv(&row, [1, 1, 64, 8], DType::I32, 0.0);
}

#[test]
fn blocks_of_windows() {
    let row: Row = (&[40, 50], &[3, 3], &[1, 1], &[1, 1], &[1, 1], &[1, 1]);
    for channels in [[1, 1, 64, 8], [2, 1, 64, 8], [3, 2, 20, 5]] {
        check_conv(&row, channels, DType::F32, 1e-4);
        check_transpose(&row, channels, DType::F32, 1e-4);
    }
}

#[test]
fn narrow_floats() {
    for (dtype, tolerance) in [(DType::F16, 1e-3), (DType::BF16, 8e-3)] {
        for row in &ROWS[5..8] {
            check_conv(row, [2, 2, 5, 6], dtype, tolerance);
            check_transpose(row, [2, 2, 5, 6], dtype, tolerance);
        }
    }
}

/// A network of this convolution and others, whose images have their channels innermost.
fn network(row: &Row, [n, c, m]: [usize; 3], kind: &PoolKind) -> Graph {
    let (mut random, mut graph) = (Random(7), Graph::new());
    let rank = row.0.len();
    let dims = shape([n, c], row.0).into_iter().map(Dim::from).collect();
    let x = graph.add_input("x", TensorType::new(DType::F32, dims)).unwrap();
    let mut conv = |graph: &mut Graph, x: ValueId, lead: [usize; 2], kernel: &[usize], attrs| {
        let w = graph.add_constant("w", random.tensor(DType::F32, shape(lead, kernel)));
        let bias = graph.add_constant("b", random.tensor(DType::F32, vec![lead[0]]));
        graph.add("conv", Op::Conv(attrs), &[Some(x), Some(w), Some(bias)]).unwrap().value()
    };
    let op = |graph: &mut Graph, op: Op, inputs: &[ValueId]| {
        let inputs: Vec<_> = inputs.iter().copied().map(Some).collect();
        graph.add("op", op, &inputs).unwrap().value()
    };
    let plain = |pad: i64, group: usize| ConvAttrs {
        strides: vec![1; rank],
        dilations: vec![1; rank],
        pads_before: vec![pad; rank],
        pads_after: vec![pad; rank],
        group,
    };
    let first = conv(&mut graph, x, [m, c], row.1, attrs(row, 1));
    let first = op(&mut graph, Op::Unary(Unary::Relu), &[first]);
    let own = conv(&mut graph, first, [m, 1], &vec![3; rank], plain(1, m));
    let own = op(&mut graph, Op::Unary(Unary::Relu), &[own]);
    let last = conv(&mut graph, own, [m, m], &vec![1; rank], plain(0, 1));
    let sum = op(&mut graph, Op::Binary(Binary::Add), &[last, first]);
    let pool = PoolAttrs {
        kind: kind.clone(),
        kernel: vec![2; rank],
        strides: vec![1; rank],
        dilations: vec![1; rank],
        pads_before: vec![1; rank],
        pads_after: vec![0; rank],
        ceil: false,
    };
    let pooled = op(&mut graph, Op::Pool(pool), &[sum]);
    let axes = (2..rank + 2).collect();
    let mean = op(&mut graph, Op::Reduce { op: ReduceOp::Mean, axes, keep: true }, &[pooled]);
    graph.add_output("y", mean);
    graph
}

#[test]
fn networks_whose_channels_are_innermost() {
    let kinds = [
        PoolKind::Max { indices: None },
        PoolKind::Average { include_pad: true },
        PoolKind::Average { include_pad: false },
    ];
    let rows = ROWS.iter().filter(|row| row.0.len() <= 2);
    for (number, row) in rows.enumerate() {
        for sizes in [[1, 3, 8], [2, 20, 33], [1, 17, 70]] {
            let graph = network(row, sizes, &kinds[number % kinds.len()]);
            let bindings = Bindings::new();
            let inputs = random_inputs(&graph, &bindings, &mut Random(5));
            let fused = executable(&graph, &bindings, Granularity::Fused);
            let convs =
                fused.program().steps().iter().filter(|step| {
                    step.body.nodes().any(|(_, node)| matches!(node.op(), Op::Conv(_)))
                });
            for conv in convs {
                assert!(conv.outputs[0].view.is_channels_last(), "{}", fused.program());
            }
            for threads in [1, 2] {
                let threads = Threads::new(threads).unwrap();
                threads.run(|| check_graph(&graph, &bindings, &inputs, 1e-4));
            }
        }
    }
}

#[test]
fn algorithms_are_named() {
    let (row, bindings) = (&ROWS[7], Bindings::new());
    let graph = network(row, [1, 64, 64], &PoolKind::Max { indices: None });
    let algorithms = |granularity| -> Vec<_> {
        let bound = module(&graph, granularity).bind(&bindings).unwrap();
        assert_eq!(bound.algorithms().count(), bound.kernels().count());
        bound.algorithms().flatten().collect()
    };
    assert_eq!(algorithms(Granularity::Fused), ["Winograd", "direct", "implicit GEMM"]);
    assert_eq!(algorithms(Granularity::PerOp), ["im2col", "direct", "GEMM"]);
    // What is not packed beforehand is not transformed.
    let mut given = Graph::new();
    let [x, w] = [("x", [1, 64, 30, 31]), ("w", [64, 64, 3, 3])].map(|(name, shape)| {
        let shape = shape.into_iter().map(Dim::from).collect();
        given.add_input(name, TensorType::new(DType::F32, shape)).unwrap()
    });
    let first = given.add("conv", Op::Conv(attrs(row, 1)), &[Some(x), Some(w)]).unwrap().value();
    let last = given.add("conv", Op::Conv(attrs(row, 1)), &[Some(first), Some(w)]).unwrap();
    given.add_output("y", last.value());
    let bound = module(&given, Granularity::Fused).bind(&bindings).unwrap();
    let found: Vec<_> = bound.algorithms().flatten().collect();
    assert!(!found.is_empty() && !found.contains(&"Winograd"), "{found:?}");
}
