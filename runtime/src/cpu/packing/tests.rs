//! What is prepacked, and that matmuls by it are those of the reference.

use super::Packing;
use crate::cpu::Module;
use crate::cpu::kernels::bf16::PackedBf16;
use crate::error::Error;
use bytes::Bytes;
use graphene_frontend::dim::{Bindings, Dim};
use graphene_frontend::dtype::DType;
use graphene_frontend::eval::evaluate;
use graphene_frontend::graph::{Graph, ValueId};
use graphene_frontend::op::{Binary, ConvAttrs, Op, RnnAttrs, RnnCell, RnnDirection, Unary};
use graphene_frontend::tensor::Tensor;
use graphene_frontend::types::TensorType;
use graphene_fusion::{Granularity, plan};
use graphene_ir::target::Target;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

fn weight(graph: &mut Graph, shape: &[usize]) -> ValueId {
    let len = shape.iter().product::<usize>();
    let elements = (0..len).map(|i| ((i * 7919) % 1013) as f32 * 2e-3 - 1.0).collect();
    let tensor = Tensor::from_vec::<f32>(shape.to_vec(), elements).expect("as many elements");
    graph.add_constant("w", tensor)
}

fn input(graph: &mut Graph, shape: &[usize]) -> ValueId {
    let shape = shape.iter().map(|&size| Dim::from(size)).collect();
    graph.add_input("x", TensorType::new(DType::F32, shape)).expect("a name of its own")
}

/// Runs a graph by either plan, with results near the reference's; gives for each how many matrices are
/// prepacked, and the bytes that the module holds.
fn run(graph: &Graph, x: &Tensor, limit: u64) -> [(usize, u64); 2] {
    let want = evaluate(graph, std::slice::from_ref(x)).expect("the reference runs it");
    [Granularity::Fused, Granularity::PerOp].map(|granularity| {
        let planned = plan(graph, &Target::cpu(2), granularity, &Bindings::new());
        let program = planned.expect("it is planned").program;
        let count = Packing::of(&program).matrices.len();
        let module = Module::compile_within(program, limit).expect("it is compiled");
        let bytes = module.own_bytes();
        let mut executable = module.executable(&Bindings::new()).expect("it is bound");
        let outputs = executable.run(std::slice::from_ref(x)).expect("it runs");
        for (got, want) in outputs.iter().zip(&want) {
            let [got, want] = [got, want].map(|tensor| tensor.as_slice::<f32>().expect("floats"));
            assert_eq!(got.len(), want.len());
            for (got, want) in got.iter().zip(want) {
                assert!((got - want).abs() <= 1e-5 * want.abs().max(1.0), "{got} {want}");
            }
        }
        (count, bytes)
    })
}

/// `x[3, 40]` through tanh(x·w), as often as there are weights.
fn layers(graph: &mut Graph, weights: &[ValueId]) -> Tensor {
    let mut x = input(graph, &[3, 40]);
    for &w in weights {
        let matmul = graph.add("product", Op::MatMul, &[Some(x), Some(w)]).expect("one");
        let y = graph.add("y", Op::Unary(Unary::Tanh), &[Some(matmul.value())]);
        x = y.expect("one").value();
    }
    graph.add_output("y", x);
    Tensor::from_vec(vec![3, 40], vec![0.25_f32; 120]).expect("120")
}

#[test]
fn weights_that_matmuls_share_are_prepacked_once_and_for_fused_execution_only() {
    let mut graph = Graph::new();
    let w = weight(&mut graph, &[40, 40]);
    let x = layers(&mut graph, &[w, w, w]);
    let [(fused, bytes), library] = run(&graph, &x, u64::MAX);
    assert_eq!((fused, library), (1, (0, 40 * 40 * 4)));
    assert!((40 * 40 * 4..=40 * 48 * 4).contains(&bytes), "{bytes}");
    // Where panels are too large, the weights as they are may do.
    assert_eq!(run(&graph, &x, bytes)[0], (1, bytes));
    if bytes > 40 * 40 * 4 {
        assert_eq!(run(&graph, &x, bytes - 1)[0], (1, 40 * 40 * 4));
    }
}

/// The largest relative changes by which numbers become those of bf16 and of single precision.
const BF16: f64 = 1.0 / (1 << 8) as f64;
const SINGLE: f64 = 1.0 / (1 << 24) as f64;

/// `|x[3, 40]·w|` as often as `layers` says, whose elements are exactly `dtype`'s where they are weights.
fn magnitudes(w: &Tensor, layers: usize, x: &Tensor) -> Graph {
    let mut graph = Graph::new();
    let shape = x.shape().iter().map(|&size| Dim::from(size)).collect();
    let mut y = graph.add_input("x", TensorType::new(x.dtype(), shape)).expect("a name");
    let w = graph.add_constant("w", w.clone());
    for _ in 0..layers {
        let matmul = graph.add("product", Op::MatMul, &[Some(y), Some(w)]).expect("one");
        y = graph.add("y", Op::Unary(Unary::Abs), &[Some(matmul.value())]).expect("one").value();
    }
    graph.add_output("y", y);
    graph
}

/// What [`magnitudes`] gives in double precision, and how far from it roundings of all operands to bf16 and of sums to
/// single precision may lead.
fn magnitudes_within(w: &[f32], layers: usize, x: &[f32]) -> (Vec<f64>, Vec<f64>) {
    let n = 40;
    let (mut y, mut off): (Vec<f64>, _) =
        (x.iter().map(|&x| x.into()).collect(), vec![0.0; x.len()]);
    let each = (1.0 + BF16).powi(2) * (1.0 + 2.02 * n as f64 * SINGLE) - 1.0;
    for _ in 0..layers {
        let sum = |place: usize, term: &dyn Fn(usize, f64) -> f64| -> f64 {
            let (row, column) = (place / n, place % n);
            (0..n).map(|k| term(row * n + k, w[k * n + column].into())).sum()
        };
        let places = 0..y.len();
        let next = places.clone().map(|place| sum(place, &|k, w| y[k] * w).abs()).collect();
        let carried = |k: usize, w: f64| (off[k] + each * (y[k].abs() + off[k])) * w.abs();
        off = places.map(|place| sum(place, &carried)).collect();
        y = next;
    }
    (y, off)
}

/// With less memory, and as far off as roundings of what is multiplied may carry.
#[test]
fn weights_may_be_rounded_to_bf16() {
    let elements = (0..1600).map(|i| ((i * 7919) % 1013) as f32 * 2e-3 - 1.0).collect();
    let w = Tensor::from_vec::<f32>(vec![40, 40], elements).expect("1600");
    let x = (0..120).map(|i| (i as f32 * 0.7).sin()).collect();
    let x = Tensor::from_vec::<f32>(vec![3, 40], x).expect("120");
    let [w_numbers, x_numbers] = [&w, &x].map(|tensor| tensor.as_slice::<f32>().expect("floats"));
    for layers in [1, 3] {
        let graph = magnitudes(&w, layers, &x);
        let [(single, all), (narrow, half)] = [false, true].map(|bf16| {
            let target = Target { bf16, ..Target::cpu(2) };
            let planned = plan(&graph, &target, Granularity::Fused, &Bindings::new());
            let module = Module::compile(planned.expect("it is planned").program);
            let module = module.expect("it is compiled");
            let named = module.kernels().filter(|name| name.starts_with("bf16-")).count();
            assert_eq!(named > 0, bf16, "{:?}", module.kernels().collect::<Vec<_>>());
            let bytes = module.own_bytes();
            let mut executable = module.executable(&Bindings::new()).expect("it is bound");
            let outputs = executable.run(std::slice::from_ref(&x)).expect("it runs");
            (outputs[0].as_slice::<f32>().expect("floats").to_vec(), bytes)
        });
        assert_eq!(Some(half as usize), PackedBf16::bytes(40, 40));
        assert!(all >= 40 * 40 * 4 && half < all, "{half} {all}");
        // What fills up whole lines and steps is little: of these none.
        assert_eq!(PackedBf16::bytes(64, 48), Some(64 * 48 * 2));
        assert_ne!(narrow, single, "nothing was rounded");
        let (want, bounds) = magnitudes_within(w_numbers, layers, x_numbers);
        for ((&got, want), bound) in narrow.iter().zip(want).zip(bounds) {
            assert!((f64::from(got) - want).abs() <= bound, "{got} {want} ± {bound}");
        }
    }
}

/// Those of a model in bf16 are not widened.
#[test]
fn weights_of_bf16_stay_so() {
    let w = (0..1600).map(|i| half::bf16::from_f32(((i * 7919) % 1013) as f32 * 2e-3 - 1.0));
    let w = Tensor::from_vec(vec![40, 40], w.collect::<Vec<_>>()).expect("1600");
    let x = (0..120).map(|i| half::bf16::from_f32((i as f32 * 0.7).sin()));
    let x = Tensor::from_vec(vec![3, 40], x.collect::<Vec<_>>()).expect("120");
    let graph = magnitudes(&w, 1, &x);
    let want = evaluate(&graph, std::slice::from_ref(&x)).expect("the reference runs it");
    let planned = plan(&graph, &Target::cpu(2), Granularity::Fused, &Bindings::new());
    let module = Module::compile(planned.expect("it is planned").program).expect("it is compiled");
    assert_eq!(Some(module.own_bytes() as usize), PackedBf16::bytes(40, 40));
    let mut executable = module.executable(&Bindings::new()).expect("it is bound");
    let got = executable.run(std::slice::from_ref(&x)).expect("it runs");
    let [got, want] = [&got[0], &want[0]].map(|y| y.as_slice::<half::bf16>().expect("bf16"));
    for (got, want) in got.iter().zip(want) {
        // Sums in another order, of 40 terms of at most 1, may fall to the other side of a rounding.
        let [got, want] = [got, want].map(|x| x.to_f64());
        let sums = 2.0 * 40.0 * SINGLE * 40.0;
        assert!((got - want).abs() <= 2.0 * BF16 * want.abs() + sums, "{got} {want}");
    }
}

#[test]
fn weights_that_are_read_otherwise_too_stay_as_they_are() {
    let mut graph = Graph::new();
    let [w, v] = [weight(&mut graph, &[40, 40]), weight(&mut graph, &[40, 40])];
    let x = layers(&mut graph, &[w, v]);
    let last = graph.outputs()[0].1;
    let rows = graph.add("rows", Op::Binary(Binary::Add), &[Some(w), Some(v)]).expect("one");
    let both = graph.add("both", Op::MatMul, &[Some(last), Some(rows.value())]).expect("one");
    graph.add_output("z", both.value());
    let [(prepacked, _), (left, _)] = run(&graph, &x, u64::MAX);
    assert_eq!((prepacked, left), (3, 0));
}

/// Memory that says when it is free.
struct Told(Vec<u8>, Arc<AtomicUsize>);

impl AsRef<[u8]> for Told {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl Drop for Told {
    fn drop(&mut self) {
        self.1.fetch_add(self.0.len(), Ordering::Relaxed);
    }
}

/// What is prepacked or merged is dropped as it was; what is read as it is stays, and is not copied.
#[test]
fn a_module_holds_each_weight_once() {
    let free = Arc::new(AtomicUsize::new(0));
    let mut graph = Graph::new();
    let weight = |graph: &mut Graph, shape: [usize; 2]| {
        let bytes = vec![0; 4 * shape[0] * shape[1]];
        let bytes = Bytes::from_owner(Told(bytes, Arc::clone(&free)));
        let tensor = Tensor::new(DType::F32, shape.to_vec(), bytes).expect("as many bytes");
        graph.add_constant("w", tensor)
    };
    let [w, left, right] = [[40, 40], [40, 20], [40, 20]].map(|shape| weight(&mut graph, shape));
    let table = weight(&mut graph, [10, 40]);
    let op = |graph: &mut Graph, op: Op, inputs: &[ValueId]| {
        let inputs: Vec<_> = inputs.iter().copied().map(Some).collect();
        graph.add("y", op, &inputs).expect("one").value()
    };
    let ty = TensorType::new(DType::I64, vec![Dim::from(3_usize)]);
    let x = graph.add_input("x", ty).expect("a name of its own");
    let rows = op(&mut graph, Op::Gather { axis: 0 }, &[table, x]);
    let y = op(&mut graph, Op::MatMul, &[rows, w]);
    let y = op(&mut graph, Op::Unary(Unary::Tanh), &[y]);
    let merged = op(&mut graph, Op::Concat { axis: 1 }, &[left, right]);
    let y = op(&mut graph, Op::MatMul, &[y, merged]);
    let y = op(&mut graph, Op::Unary(Unary::Tanh), &[y]);
    graph.add_output("y", y);
    let planned = plan(&graph, &Target::cpu(2), Granularity::Fused, &Bindings::new());
    let program = planned.expect("it is planned").program;
    drop(graph);
    assert_eq!(free.load(Ordering::Relaxed), 0);
    let module = Module::compile(program).expect("it is compiled");
    let [packed, kept] = [40 * 40 * 4, 10 * 40 * 4];
    assert_eq!(free.load(Ordering::Relaxed), 2 * packed);
    let filled = 40 * 48 * 4;
    let held = module.own_bytes() as usize;
    assert!((2 * packed + kept..=2 * filled + kept).contains(&held), "{held}");
    // Its program has no weights to compile a second time.
    let again = Module::compile(module.program().clone());
    assert!(matches!(again, Err(Error::Released { .. })), "{again:?}");
    drop(module);
    assert_eq!(free.load(Ordering::Relaxed), 2 * packed + kept);
}

/// Tensors that share memory count once.
#[test]
fn shared_memory_counts_once() {
    let mut graph = Graph::new();
    let x = input(&mut graph, &[3, 40]);
    let tensor = Tensor::from_vec(vec![3, 40], vec![0.5_f32; 120]).expect("120");
    let mut y = x;
    for op in [Binary::Add, Binary::Mul] {
        let constant = graph.add_constant("c", tensor.clone());
        y = graph.add("y", Op::Binary(op), &[Some(y), Some(constant)]).expect("one").value();
    }
    graph.add_output("y", y);
    let [(_, fused), (_, library)] = run(&graph, &tensor, u64::MAX);
    assert_eq!([fused, library], [120 * 4; 2]);
}

/// A weight of one element that is to be a matrix of many is no matrix to prepack.
#[test]
fn broadcast_weights_are_not_prepacked() {
    let mut graph = Graph::new();
    let one = weight(&mut graph, &[1, 1]);
    let shape = vec![Dim::from(40_usize), Dim::from(40_usize)];
    let wide = graph.add("wide", Op::Expand(shape), &[Some(one)]).expect("one").value();
    let x = layers(&mut graph, &[wide]);
    assert_eq!(run(&graph, &x, u64::MAX).map(|(prepacked, _)| prepacked), [0, 0]);
}

/// One initializer in two places of a layer is read as it lies.
#[test]
fn recurrent_weights_in_two_places_stay_as_they_are() {
    let mut graph = Graph::new();
    let x = input(&mut graph, &[3, 2, 2]);
    let zeros = Tensor::zeros(DType::F32, vec![1, 2, 2]).expect("4");
    let w = graph.add_constant("zeros", zeros);
    let r = weight(&mut graph, &[1, 2, 2]);
    let attrs = RnnAttrs {
        cell: RnnCell::Plain,
        direction: RnnDirection::Forward,
        hidden: 2,
        activations: vec![Unary::Tanh],
        clip: None,
    };
    let operands = [Some(x), Some(w), Some(r), None, None, Some(r)];
    let node = graph.add("rnn", Op::Rnn(attrs), &operands).expect("a layer");
    graph.add_output("y", node.value());
    let x = Tensor::from_vec(vec![3, 2, 2], vec![0.5_f32; 12]).expect("12");
    let [(fused, _), (library, _)] = run(&graph, &x, u64::MAX);
    assert_eq!((fused, library), (1, 1));
}

/// Every cell and direction: their gates' matmuls are cut in different ways.
#[test]
fn recurrent_weights_are_prepacked_for_each_direction_and_part() {
    let cells = [
        (RnnCell::Lstm { input_forget: false }, 4, 2),
        (RnnCell::Gru { linear_before_reset: true }, 3, 2),
        (RnnCell::Gru { linear_before_reset: false }, 3, 3),
        (RnnCell::Plain, 1, 2),
    ];
    let directions =
        [(RnnDirection::Forward, 1), (RnnDirection::Reverse, 1), (RnnDirection::Bidirectional, 2)];
    let (steps, batch, inputs, hidden) = (5, 2, 6, 20);
    for (cell, gates, matrices) in cells {
        for (direction, count) in directions {
            let mut graph = Graph::new();
            let x = input(&mut graph, &[steps, batch, inputs]);
            let w = weight(&mut graph, &[count, gates * hidden, inputs]);
            let r = weight(&mut graph, &[count, gates * hidden, hidden]);
            let each: &[Unary] = match gates {
                4 => &[Unary::Sigmoid, Unary::Tanh, Unary::Tanh],
                3 => &[Unary::Sigmoid, Unary::Tanh],
                _ => &[Unary::Tanh],
            };
            let activations = each.repeat(count);
            let attrs = RnnAttrs { cell, direction, hidden, activations, clip: None };
            let node = graph.add("rnn", Op::Rnn(attrs), &[Some(x), Some(w), Some(r)]);
            graph.add_output("y", node.expect("a layer").value());
            let elements = (0..steps * batch * inputs).map(|i| (i % 7) as f32 * 0.2 - 0.5);
            let x = Tensor::from_vec(vec![steps, batch, inputs], elements.collect());
            let [(fused, _), (library, _)] = run(&graph, &x.expect("all"), u64::MAX);
            assert_eq!([fused, library], [matrices * count; 2], "{cell:?} {direction:?}");
        }
    }
}

/// A matmul of quantised operands as imports write it: `x` in this type less a zero point, by a weight of bytes less
/// one zero point a column.
fn quantised(dtype: DType, lead: &[usize], of_weight: &[usize], [rows, k, n]: [usize; 3]) -> Graph {
    let mut graph = Graph::new();
    let shape: Vec<usize> = lead.iter().copied().chain([rows, k]).collect();
    let ty = TensorType::new(dtype, shape.iter().map(|&size| Dim::from(size)).collect());
    let x = graph.add_input("x", ty).expect("a name of its own");
    let len = of_weight.iter().product::<usize>() * k * n;
    let bytes: Vec<i8> = (0..len).map(|i| (i * 7919 % 251) as i8).collect();
    let shape = of_weight.iter().copied().chain([k, n]).collect();
    let w = graph.add_constant("w", Tensor::from_vec(shape, bytes).expect("as many elements"));
    let zeros: Vec<i8> = (0..n).map(|i| (i * 31 % 256) as u8 as i8).collect();
    let zeros = graph.add_constant("zeros", Tensor::from_vec(vec![n], zeros).expect("n"));
    let zero = graph.add_constant("zero", Tensor::scalar(77_i32));
    let wide = Op::Cast { to: DType::I32, saturate: true };
    let mut add = |op: &Op, inputs: &[ValueId]| {
        let inputs: Vec<_> = inputs.iter().copied().map(Some).collect();
        graph.add("y", op.clone(), &inputs).expect("it is typed").value()
    };
    let minus = Op::Binary(Binary::Sub);
    let [x, w, zeros] = [x, w, zeros].map(|value| add(&wide, &[value]));
    let (x, w) = (add(&minus, &[x, zero]), add(&minus, &[w, zeros]));
    let y = add(&Op::MatMul, &[x, w]);
    graph.add_output("y", y);
    graph
}

fn check_quantised(x: &Tensor, of_weight: &[usize], sizes: [usize; 3], kernel: &str) {
    let lead = &x.shape()[..x.shape().len() - 2];
    check_exact(&quantised(x.dtype(), lead, of_weight, sizes), x, kernel);
}

/// Runs a graph by either plan, one of whose kernels is this, with an epilogue or without: results are the reference's.
fn check_exact(graph: &Graph, x: &Tensor, kernel: &str) {
    let want = evaluate(graph, std::slice::from_ref(x)).expect("the reference runs it");
    for granularity in [Granularity::Fused, Granularity::PerOp] {
        let planned = plan(graph, &Target::cpu(2), granularity, &Bindings::new());
        let module = Module::compile(planned.expect("it is planned").program);
        let module = module.expect("it is compiled");
        let mut names = module.kernels().map(|name| name.trim_end_matches("+epilogue"));
        assert!(names.any(|name| name == kernel), "{kernel}: {}", module.program());
        let mut executable = module.executable(&Bindings::new()).expect("it is bound");
        let got = executable.run(std::slice::from_ref(x)).expect("it runs");
        assert_eq!(got, want, "{}", module.program());
    }
}

#[test]
fn quantised_matmuls_are_those_of_the_reference_bit_for_bit() {
    for (lead, of_weight, sizes) in [
        (&[][..], &[][..], [1, 1, 1]),
        (&[], &[], [7, 30, 50]),
        (&[2, 3], &[], [5, 33, 17]),
        (&[4], &[1, 1], [1, 64, 100]),
        (&[3], &[1], [2, 129, 48]),
    ] {
        let shape: Vec<usize> = lead.iter().copied().chain(sizes[..2].iter().copied()).collect();
        let len: usize = shape.iter().product();
        let bytes = (0..len).map(|i| (i * 13 % 256) as u8).collect::<Vec<_>>();
        let x = Tensor::from_vec(shape.clone(), bytes).expect("as many elements");
        check_quantised(&x, of_weight, sizes, "int8-gemm");
        // What no byte holds is multiplied all the same.
        let wide = (0..len).map(|i| (i as i32).wrapping_mul(7_654_321)).collect::<Vec<_>>();
        let x = Tensor::from_vec(shape, wide).expect("as many elements");
        check_quantised(&x, of_weight, sizes, "int8-gemm");
    }
}

#[test]
fn matrices_that_differ_along_the_batch_are_no_prepacked_one() {
    let x = Tensor::from_vec(vec![2, 3, 8], (0..48).collect::<Vec<u8>>()).expect("48");
    check_quantised(&x, &[2], [3, 8, 5], "gemm");
}

/// Convolutions of constant filters, less one zero point for each, prepacked where they are not few.
#[test]
fn quantised_convolutions_are_those_of_the_reference_bit_for_bit() {
    for (groups, channels, each, side, kernel) in
        [(1, 3, 20, 9, 3), (2, 4, 5, 7, 3), (6, 1, 1, 8, 3), (1, 40, 17, 6, 1)]
    {
        let mut graph = Graph::new();
        let shape = [2, groups * channels, side, side];
        let ty = TensorType::new(DType::U8, shape.map(Dim::from).to_vec());
        let x = graph.add_input("x", ty).expect("a name of its own");
        let len = groups * each * channels * kernel * kernel;
        let bytes: Vec<i8> = (0..len).map(|i| (i * 7919 % 251) as i8).collect();
        let shape_of_w = vec![groups * each, channels, kernel, kernel];
        let w = Tensor::from_vec(shape_of_w, bytes).expect("as many elements");
        let w = graph.add_constant("w", w);
        let zeros = (0..groups * each).map(|i| (i * 31 % 256) as u8 as i8).collect::<Vec<_>>();
        let zeros = Tensor::from_vec(vec![groups * each, 1, 1, 1], zeros).expect("one a filter");
        let zeros = graph.add_constant("zeros", zeros);
        let zero = graph.add_constant("zero", Tensor::scalar(77_i32));
        let bias: Vec<i32> = (0..groups * each).map(|i| i as i32 * 100 - 700).collect();
        let bias = Tensor::from_vec(vec![groups * each], bias).expect("one a filter");
        let bias = graph.add_constant("bias", bias);
        let mut add = |op: &Op, inputs: &[ValueId]| {
            let inputs: Vec<_> = inputs.iter().copied().map(Some).collect();
            graph.add("y", op.clone(), &inputs).expect("it is typed").value()
        };
        let wide = Op::Cast { to: DType::I32, saturate: true };
        let [x, w, zeros] = [x, w, zeros].map(|value| add(&wide, &[value]));
        let minus = Op::Binary(Binary::Sub);
        let (x, w) = (add(&minus, &[x, zero]), add(&minus, &[w, zeros]));
        let pad = vec![kernel as i64 / 2; 2];
        let conv = Op::Conv(ConvAttrs {
            strides: vec![1, 2],
            dilations: vec![1, 1],
            pads_before: pad.clone(),
            pads_after: pad,
            group: groups,
        });
        let y = add(&conv, &[x, w, bias]);
        graph.add_output("y", y);
        let len = shape.iter().product();
        let x = (0..len).map(|i| (i * 13 % 256) as u8).collect::<Vec<_>>();
        let x = Tensor::from_vec(shape.to_vec(), x).expect("as many elements");
        check_exact(&graph, &x, "int8-conv");
    }
}
