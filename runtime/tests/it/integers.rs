//! Matmuls and convolutions of bytes with what follows them, and what quantised models write for them.

use crate::check::{Random, module};
use graphene_frontend::dim::{Bindings, Dim};
use graphene_frontend::dtype::DType;
use graphene_frontend::eval::evaluate;
use graphene_frontend::graph::{Graph, ValueId};
use graphene_frontend::op::{Binary, ConvAttrs, Op, PoolAttrs, PoolKind, Unary};
use graphene_frontend::tensor::Tensor;
use graphene_frontend::types::TensorType;
use graphene_fusion::Granularity;

/// A graph in the making.
struct Make {
    graph: Graph,
    random: Random,
}

impl Make {
    fn new(seed: u64) -> Self {
        Self { graph: Graph::new(), random: Random(seed) }
    }

    fn op(&mut self, op: Op, inputs: &[ValueId]) -> ValueId {
        let inputs: Vec<_> = inputs.iter().copied().map(Some).collect();
        self.graph.add("y", op, &inputs).expect("it is typed").value()
    }

    fn input(&mut self, dtype: DType, shape: &[usize]) -> ValueId {
        let shape = shape.iter().map(|&size| Dim::from(size)).collect();
        let name = format!("x{}", self.graph.inputs().len());
        self.graph.add_input(&name, TensorType::new(dtype, shape)).expect("a name of its own")
    }

    fn cast(&mut self, to: DType, x: ValueId) -> ValueId {
        self.op(Op::Cast { to, saturate: true }, &[x])
    }

    fn number(&mut self, x: f32) -> ValueId {
        self.graph.add_constant("c", Tensor::scalar(x))
    }

    fn binary(&mut self, binary: Binary, a: ValueId, b: f32) -> ValueId {
        let b = self.number(b);
        self.op(Op::Binary(binary), &[a, b])
    }

    /// Integers of this range.
    fn integers(&mut self, shape: &[usize], low: i32, high: i32) -> Vec<i32> {
        let len = shape.iter().product();
        let range = (high - low + 1) as usize;
        (0..len).map(|_| low + self.random.below(range) as i32).collect()
    }

    fn constant<T: graphene_frontend::tensor::Element>(
        &mut self,
        shape: &[usize],
        elements: Vec<T>,
    ) -> ValueId {
        let tensor = Tensor::from_vec(shape.to_vec(), elements).expect("as many elements");
        self.graph.add_constant("w", tensor)
    }

    fn quantised(&mut self, x: ValueId, scale: f32, zero: i32, dtype: DType) -> ValueId {
        let (low, high) = if dtype == DType::U8 { (0.0, 255.0) } else { (-128.0, 127.0) };
        let y = self.binary(Binary::Div, x, scale);
        let y = self.op(Op::Unary(Unary::Round), &[y]);
        let y = self.binary(Binary::Add, y, zero as f32);
        let y = self.binary(Binary::Max, y, low);
        let y = self.binary(Binary::Min, y, high);
        self.cast(dtype, y)
    }

    fn centered(&mut self, x: ValueId, zero: i32) -> ValueId {
        let wide = self.cast(DType::I32, x);
        let zero = self.graph.add_constant("zero", Tensor::scalar(zero));
        self.op(Op::Binary(Binary::Sub), &[wide, zero])
    }

    fn dequantised(&mut self, x: ValueId, scale: f32, zero: i32) -> ValueId {
        let whole = self.centered(x, zero);
        let real = self.cast(DType::F32, whole);
        self.binary(Binary::Mul, real, scale)
    }

    fn finish(mut self, values: &[ValueId]) -> (Graph, Random) {
        for (i, value) in values.iter().enumerate() {
            self.graph.add_output(&format!("y{i}"), *value);
        }
        (self.graph, self.random)
    }
}

/// Bytes of all values.
fn bytes(random: &mut Random, dtype: DType, shape: &[usize]) -> Tensor {
    let len = shape.iter().product();
    let bytes: Vec<u8> = (0..len).map(|_| random.next() as u8).collect();
    Tensor::new(dtype, shape.to_vec(), bytes.into()).expect("as many bytes")
}

fn run(graph: &Graph, inputs: &[Tensor], kernels: &[&str]) -> Vec<Tensor> {
    let module = module(graph, Granularity::Fused);
    let found: Vec<_> = module.kernels().collect();
    for kernel in kernels {
        assert!(found.contains(kernel), "{found:?}: {}", module.program());
    }
    assert!(!found.contains(&"reference"), "{found:?}");
    let mut executable = module.executable(&Bindings::new()).expect("it is bound");
    let first = executable.run(inputs).expect("it runs");
    assert_eq!(first, executable.run(inputs).expect("it runs again"));
    first
}

/// The largest of each window; pads lie before both axes, then behind.
fn largest(kernel: [usize; 2], strides: [usize; 2], pads: [usize; 4]) -> Op {
    Op::Pool(PoolAttrs {
        kind: PoolKind::Max { indices: None },
        kernel: kernel.to_vec(),
        strides: strides.to_vec(),
        dilations: vec![1, 1],
        pads_before: pads[..2].to_vec(),
        pads_after: pads[2..].to_vec(),
        ceil: false,
    })
}

fn attrs(strides: [usize; 2], dilations: [usize; 2], pads: [i64; 4], group: usize) -> ConvAttrs {
    ConvAttrs {
        strides: strides.to_vec(),
        dilations: dilations.to_vec(),
        pads_before: pads[..2].to_vec(),
        pads_after: pads[2..].to_vec(),
        group,
    }
}

/// Images, groups, channels and filters of a group, spatial sizes, kernel, and how it moves.
type Row = ([usize; 4], [usize; 2], [usize; 2], ConvAttrs);

fn rows() -> Vec<Row> {
    vec![
        ([1, 1, 3, 20], [19, 23], [7, 7], attrs([2, 2], [1, 1], [3, 3, 3, 3], 1)),
        ([2, 1, 16, 33], [9, 11], [3, 3], attrs([1, 1], [1, 1], [1, 1, 1, 1], 1)),
        ([1, 2, 5, 6], [9, 11], [3, 2], attrs([2, 1], [2, 3], [3, 0, 1, 4], 2)),
        ([3, 1, 40, 17], [7, 7], [1, 1], attrs([1, 1], [1, 1], [0, 0, 0, 0], 1)),
        ([1, 1, 8, 130], [56, 57], [1, 1], attrs([2, 3], [1, 1], [0, 0, 0, 0], 1)),
        ([1, 1, 64, 70], [40, 50], [3, 3], attrs([1, 1], [1, 1], [1, 1, 1, 1], 1)),
        ([2, 6, 1, 1], [8, 9], [3, 3], attrs([1, 1], [1, 1], [1, 1, 1, 1], 6)),
        ([1, 1, 4, 5], [9, 11], [3, 3], attrs([2, 2], [1, 1], [-2, 1, 1, -3], 1)),
        ([1, 1, 4, 9], [2, 2], [3, 3], attrs([1, 1], [1, 1], [4, 4, 4, 4], 1)),
    ]
}

/// A convolution of integers, scaled, biased and quantised, is the reference's bit for bit: for weights of bytes, and for
/// those that a zero point has moved.
#[test]
fn convolutions_of_bytes_are_exact() {
    for (number, (sizes, spatial, kernel, attrs)) in rows().into_iter().enumerate() {
        for (dtype, zero, low) in [
            (DType::U8, 77, -128),
            (DType::I8, -3, -128),
            (DType::U8, 0, -250),
            (DType::I8, -128, 0),
        ] {
            let [images, groups, channels, each] = sizes;
            let mut make = Make::new(number as u64);
            let shape = [images, groups * channels, spatial[0], spatial[1]];
            let x = make.input(dtype, &shape);
            let of_w = [groups * each, channels, kernel[0], kernel[1]];
            let w = make.integers(&of_w, low, low + 255);
            let w = make.constant(&of_w, w);
            let bias = make.integers(&[groups * each], -9000, 9000);
            let bias = make.constant(&[groups * each], bias);
            let whole = make.centered(x, zero);
            let sum = make.op(Op::Conv(attrs.clone()), &[whole, w, bias]);
            let real = make.cast(DType::F32, sum);
            let filters = groups * each;
            let scales = (0..filters).map(|i| 1e-3 * (1 + i % 7) as f32).collect();
            let scales = make.constant(&[filters, 1, 1], scales);
            let y = make.op(Op::Binary(Binary::Mul), &[real, scales]);
            let bytes_of = make.quantised(y, 0.37, 11, dtype);
            let (graph, mut random) = make.finish(&[bytes_of]);
            let x = [bytes(&mut random, dtype, &shape)];
            let want = evaluate(&graph, &x).expect("the reference runs it");
            assert_eq!(run(&graph, &x, &["int8-conv+epilogue"]), want, "{number} {dtype}");
        }
    }
}

/// The same where channels are innermost, as they are between convolutions.
#[test]
fn convolutions_of_bytes_between_others_are_exact() {
    for (number, (sizes, spatial, kernel, attrs)) in rows().into_iter().enumerate() {
        let [images, groups, channels, each] = sizes;
        for (dtype, zero, low) in [(DType::U8, 77, -128), (DType::I8, -3, 0), (DType::U8, 0, -250)]
        {
            let mut make = Make::new(number as u64 + 40);
            let (all, filters) = (groups * channels, groups * each);
            let shape = [images, 12, spatial[0], spatial[1]];
            let x = make.input(dtype, &shape);
            let single = attrs_of_single();
            let mut at = x;
            for (of_w, attrs) in [
                ([all, 12, 1, 1], single.clone()),
                ([filters, channels, kernel[0], kernel[1]], attrs.clone()),
                ([20, filters, 1, 1], single.clone()),
                ([70, 20, 1, 1], single),
            ] {
                let w = make.integers(&of_w, low, low + 255);
                let w = make.constant(&of_w, w);
                let whole = make.centered(at, zero);
                let sum = make.op(Op::Conv(attrs), &[whole, w]);
                let real = make.cast(DType::F32, sum);
                let scales = (0..of_w[0]).map(|i| 1e-5 * (1 + i % 7) as f32).collect();
                let scales = make.constant(&[of_w[0], 1, 1], scales);
                let y = make.op(Op::Binary(Binary::Mul), &[real, scales]);
                at = make.quantised(y, 0.037, zero, dtype);
            }
            // A residual is added to the bytes of a last one.
            let w = make.integers(&[70, 70, 1, 1], low, low + 255);
            let w = make.constant(&[70, 70, 1, 1], w);
            let whole = make.centered(at, zero);
            let sum = make.op(Op::Conv(attrs_of_single()), &[whole, w]);
            let real = make.cast(DType::F32, sum);
            let scales = (0..70).map(|i| 1e-5 * (1 + i % 7) as f32).collect();
            let scales = make.constant(&[70, 1, 1], scales);
            let y = make.op(Op::Binary(Binary::Mul), &[real, scales]);
            let y = make.quantised(y, 0.011, zero, dtype);
            let y = make.dequantised(y, 0.011, zero);
            let before = make.dequantised(at, 0.037, zero);
            let y = make.op(Op::Binary(Binary::Add), &[y, before]);
            at = make.quantised(y, 0.051, zero, dtype);
            let (graph, mut random) = make.finish(&[at]);
            let x = [bytes(&mut random, dtype, &shape)];
            let want = evaluate(&graph, &x).expect("the reference runs it");
            assert_eq!(run(&graph, &x, &["int8-conv+epilogue"]), want, "{number} {dtype}");
        }
    }
}

fn attrs_of_single() -> ConvAttrs {
    attrs([1, 1], [1, 1], [0, 0, 0, 0], 1)
}

/// Several results of one convolution, one of them its sums.
#[test]
fn sums_may_be_given() {
    let mut make = Make::new(5);
    let shape = [1, 8, 20, 21];
    let x = make.input(DType::U8, &shape);
    let w = make.integers(&[24, 8, 3, 3], -100, 100);
    let w = make.constant(&[24, 8, 3, 3], w);
    let whole = make.centered(x, 3);
    let conv = attrs([1, 1], [1, 1], [1, 1, 1, 1], 1);
    let sum = make.op(Op::Conv(conv), &[whole, w]);
    let real = make.cast(DType::F32, sum);
    let y = make.binary(Binary::Mul, real, 0.25);
    let (graph, mut random) = make.finish(&[sum, y]);
    let x = [bytes(&mut random, DType::U8, &shape)];
    let want = evaluate(&graph, &x).expect("the reference runs it");
    assert_eq!(run(&graph, &x, &["int8-conv+epilogue"]), want);
}

/// The same of matmuls, by a zero point that is known when it runs.
#[test]
fn matmuls_of_bytes_are_exact() {
    for (number, (lead, [m, k, n])) in [
        (&[][..], [1, 1, 1]),
        (&[], [7, 30, 50]),
        (&[2, 3], [5, 33, 17]),
        (&[4], [1, 64, 100]),
        (&[3], [40, 129, 200]),
    ]
    .into_iter()
    .enumerate()
    {
        for (dtype, low) in [(DType::U8, -128), (DType::I8, -20), (DType::I8, -200)] {
            let mut make = Make::new(number as u64 + 100);
            let shape: Vec<usize> = lead.iter().copied().chain([m, k]).collect();
            let x = make.input(dtype, &shape);
            let zero = make.input(dtype, &[]);
            let zero = make.cast(DType::I32, zero);
            let w = make.integers(&[k, n], low, low + 255);
            let w = make.constant(&[k, n], w);
            let wide = make.cast(DType::I32, x);
            let whole = make.op(Op::Binary(Binary::Sub), &[wide, zero]);
            let sum = make.op(Op::MatMul, &[whole, w]);
            let real = make.cast(DType::F32, sum);
            let scales = (0..n).map(|i| 1e-3 * (1 + i % 7) as f32).collect();
            let scales = make.constant(&[n], scales);
            let y = make.op(Op::Binary(Binary::Mul), &[real, scales]);
            let (graph, mut random) = make.finish(&[y]);
            let x = [bytes(&mut random, dtype, &shape), bytes(&mut random, dtype, &[])];
            let want = evaluate(&graph, &x).expect("the reference runs it");
            assert_eq!(run(&graph, &x, &["int8-gemm+epilogue"]), want, "{number} {dtype}");
        }
    }
}

/// A residual block as exporters write it, of convolutions and additions of dequantised bytes: what is stored between is
/// bytes, and results differ from those of real arithmetic by a step where they do.
#[test]
fn quantised_blocks_stay_bytes() {
    for dtype in [DType::U8, DType::I8] {
        let mut make = Make::new(17);
        let shape = [1, 16, 14, 15];
        let zero = if dtype == DType::U8 { 120 } else { -4 };
        let x = make.input(dtype, &shape);
        let block = |make: &mut Make, x: ValueId| {
            let w = make.integers(&[16, 16, 3, 3], -127, 127);
            let w = make.constant(&[16, 16, 3, 3], w.into_iter().map(|w| w as i8).collect());
            let w = make.cast(DType::F32, w);
            let scales = (0..16).map(|i| 0.0009 * (i + 3) as f32).collect();
            let scales = make.constant::<f32>(&[16, 1, 1, 1], scales);
            let w = make.op(Op::Binary(Binary::Mul), &[w, scales]);
            let bias = make.constant(&[16], (0..16).map(|i| i as f32 * 0.1 - 0.7).collect());
            let conv = attrs([1, 1], [1, 1], [1, 1, 1, 1], 1);
            make.op(Op::Conv(conv), &[x, w, bias])
        };
        let real = make.dequantised(x, 0.05, zero);
        let y = block(&mut make, real);
        let y = make.op(Op::Unary(Unary::Relu), &[y]);
        let y = make.quantised(y, 0.3, zero, dtype);
        let y = make.dequantised(y, 0.3, zero);
        let y = block(&mut make, y);
        let y = make.quantised(y, 0.9, zero, dtype);
        let y = make.dequantised(y, 0.9, zero);
        let y = make.op(Op::Binary(Binary::Add), &[y, real]);
        let y = make.quantised(y, 1.1, zero, dtype);
        let (graph, mut random) = make.finish(&[y]);
        let x = [bytes(&mut random, dtype, &shape)];
        let want = evaluate(&graph, &x).expect("the reference runs it");
        let got = run(&graph, &x, &["int8-conv+epilogue"]);
        let steps = |(&a, &b): (&u8, &u8)| match dtype {
            DType::U8 => a.abs_diff(b),
            _ => (a as i8).abs_diff(b as i8),
        };
        let differ: Vec<u8> = got[0].bytes().iter().zip(want[0].bytes()).map(steps).collect();
        assert!(differ.iter().all(|&steps| steps <= 1), "{differ:?}");
        assert!(differ.iter().filter(|&&steps| steps > 0).count() * 100 < differ.len());
        let kernels = module(&graph, Granularity::Fused).kernels().collect::<Vec<_>>();
        assert_eq!(kernels, ["int8-conv+epilogue"; 2]);
    }
}

/// A function of a byte with many operations, as QDQ exports have it, is looked up: by loops, in a matmul's epilogue, and of
/// bytes that are given, beside others that read the same byte.
#[test]
fn functions_of_bytes_are_the_references() {
    for (dtype, zero) in [(DType::U8, 131), (DType::I8, -5)] {
        let mut make = Make::new(41);
        let (x, other) = (make.input(dtype, &[19, 40]), make.input(dtype, &[1, 50]));
        let w = make.integers(&[40, 50], -127, 127);
        let w = make.constant(&[40, 50], w);
        let gelu = |make: &mut Make, x: ValueId| {
            let root = make.binary(Binary::Div, x, std::f32::consts::SQRT_2);
            let erf = make.op(Op::Unary(Unary::Erf), &[root]);
            let erf = make.quantised(erf, 0.0078, zero, dtype);
            let erf = make.dequantised(erf, 0.0078, zero);
            let erf = make.binary(Binary::Add, erf, 1.0);
            make.op(Op::Binary(Binary::Mul), &[x, erf])
        };
        let whole = make.centered(x, zero);
        let sum = make.op(Op::MatMul, &[whole, w]);
        let real = make.cast(DType::F32, sum);
        let real = make.binary(Binary::Mul, real, 2e-4);
        let byte = make.quantised(real, 0.05, zero, dtype);
        let real = make.dequantised(byte, 0.05, zero);
        let y = gelu(&mut make, real);
        let y = make.quantised(y, 0.02, zero, dtype);
        let other = make.dequantised(other, 0.03, zero);
        let z = gelu(&mut make, other);
        let z = make.op(Op::Binary(Binary::Add), &[z, real]);
        let z = make.quantised(z, 0.04, zero, dtype);
        let (graph, mut random) = make.finish(&[y, byte, z]);
        let x = [bytes(&mut random, dtype, &[19, 40]), bytes(&mut random, dtype, &[1, 50])];
        let want = evaluate(&graph, &x).expect("the reference runs it");
        assert_eq!(run(&graph, &x, &["int8-gemm+epilogue"]), want, "{dtype}");
    }
}

/// A pooling between conversions is one of bytes, and nothing else runs.
#[test]
fn largest_of_bytes() {
    for (dtype, zero) in [(DType::U8, 9), (DType::I8, -100)] {
        let mut make = Make::new(23);
        let shape = [2, 5, 11, 9];
        let x = make.input(dtype, &shape);
        let real = make.dequantised(x, 0.021, zero);
        let y = make.op(largest([3, 3], [2, 1], [1, 1, 1, 1]), &[real]);
        let y = make.quantised(y, 0.021, zero, dtype);
        let (graph, mut random) = make.finish(&[y]);
        let x = [bytes(&mut random, dtype, &shape)];
        let want = evaluate(&graph, &x).expect("the reference runs it");
        assert_eq!(run(&graph, &x, &["pool"]), want);
        assert_eq!(module(&graph, Granularity::Fused).kernels().collect::<Vec<_>>(), ["pool"]);
    }
}

/// A network's beginning as exporters write it, where the largest of each window is quantised: numbers are quantised first,
/// with the convolution, and bytes are pooled as it writes them.
#[test]
fn images_are_quantised_before_the_largest_are_taken() {
    for (dtype, zero) in [(DType::U8, 114), (DType::I8, -3)] {
        let mut make = Make::new(31);
        let shape = [2, 8, 19, 22];
        let x = make.input(dtype, &shape);
        let convolved = |make: &mut Make, x: ValueId, [filters, channels]: [usize; 2]| {
            let w = make.integers(&[filters, channels, 3, 3], -127, 127);
            let w = make.constant(&[filters, channels, 3, 3], w);
            let whole = make.centered(x, zero);
            let sum = make.op(Op::Conv(attrs([1, 1], [1, 1], [1, 1, 1, 1], 1)), &[whole, w]);
            let real = make.cast(DType::F32, sum);
            let scales = (0..filters).map(|i| 1e-5 * (1 + i % 7) as f32).collect();
            let scales = make.constant(&[filters, 1, 1], scales);
            let y = make.op(Op::Binary(Binary::Mul), &[real, scales]);
            make.quantised(y, 0.037, zero, dtype)
        };
        let y = convolved(&mut make, x, [33, 8]);
        let y = make.dequantised(y, 0.037, zero);
        let y = make.op(Op::Unary(Unary::Relu), &[y]);
        let y = make.op(largest([3, 2], [2, 2], [1, 0, 1, 1]), &[y]);
        let y = make.quantised(y, 0.025, zero, dtype);
        let y = convolved(&mut make, y, [20, 33]);
        let (graph, mut random) = make.finish(&[y]);
        let x = [bytes(&mut random, dtype, &shape)];
        let want = evaluate(&graph, &x).expect("the reference runs it");
        assert_eq!(run(&graph, &x, &[]), want, "{dtype}");
        let module = module(&graph, Granularity::Fused);
        let kernels = module.kernels().collect::<Vec<_>>();
        assert_eq!(kernels, ["int8-conv+epilogue", "pool", "int8-conv+epilogue"]);
        // By the best instructions that the machine has.
        let bound = module.bind(&Bindings::new()).expect("it is bound");
        let algorithms: Vec<_> = bound.algorithms().collect();
        assert!(algorithms[0] == algorithms[2] && algorithms[1].is_none(), "{algorithms:?}");
        let unit = algorithms[0].expect("bytes are multiplied");
        assert!(["AMX", "VNNI", "AVX-VNNI", "AVX2", "portable"].contains(&unit), "{unit}");
    }
}

/// Attention's scores as exporters write them, quantised before heads are split and joined and once more behind: the second
/// time takes no step where its scale is that of the first. Scales are powers of two, so that all is exact.
#[test]
fn bytes_that_are_quantised_again_behind_a_view_stay() {
    for (dtype, zero) in [(DType::U8, 126), (DType::I8, -2)] {
        for scale in [0.25, 0.5] {
            let mut make = Make::new(41);
            let x = make.input(dtype, &[2, 6, 24]);
            let projected = |make: &mut Make, x: ValueId, [depth, columns]: [usize; 2]| {
                let w = make.integers(&[depth, columns], -127, 127);
                let w = make.constant(&[depth, columns], w);
                let whole = make.centered(x, zero);
                let sum = make.op(Op::MatMul, &[whole, w]);
                let real = make.cast(DType::F32, sum);
                let y = make.binary(Binary::Mul, real, 0.5_f32.powi(14));
                let y = make.quantised(y, 0.25, zero, dtype);
                make.dequantised(y, 0.25, zero)
            };
            let again = |make: &mut Make, x: ValueId| {
                let bytes = make.quantised(x, scale, zero, dtype);
                (bytes, make.dequantised(bytes, scale, zero))
            };
            let dims = |shape: &[usize]| shape.iter().map(|&size| Dim::from(size)).collect();
            let [queries, keys] = [vec![0, 2, 1, 3], vec![0, 2, 3, 1]].map(|perm| {
                let y = projected(&mut make, x, [24, 24]);
                let y = make.op(Op::Reshape(dims(&[2, 6, 3, 8])), &[y]);
                let y = make.op(Op::Transpose(perm), &[y]);
                again(&mut make, y).1
            });
            let scores = make.op(Op::MatMul, &[queries, keys]);
            let scores = make.quantised(scores, 0.25, zero, dtype);
            let scores = make.dequantised(scores, 0.25, zero);
            let y = make.op(Op::Transpose(vec![0, 2, 1, 3]), &[scores]);
            let y = make.op(Op::Reshape(dims(&[2, 6, 18])), &[y]);
            let (y, _) = again(&mut make, y);
            let y = projected(&mut make, y, [18, 10]);
            let (graph, mut random) = make.finish(&[y]);
            let x = [bytes(&mut random, dtype, &[2, 6, 24])];
            let want = evaluate(&graph, &x).expect("the reference runs it");
            assert_eq!(run(&graph, &x, &[]), want, "{dtype} {scale}");
            let module = module(&graph, Granularity::Fused);
            let of_bytes = "int8-gemm+epilogue";
            let is_once = module.kernels().eq([of_bytes, of_bytes, "gemm+epilogue", of_bytes]);
            assert_eq!(is_once, scale == 0.25, "{dtype} {}", module.program());
        }
    }
}

/// Windows of padding alone have nothing that is the largest: reals say so, and bytes would not.
#[test]
fn windows_of_padding_are_of_reals() {
    let mut make = Make::new(37);
    let shape = [1, 4, 5, 6];
    let x = make.input(DType::U8, &shape);
    let real = make.dequantised(x, 0.1, 114);
    let y = make.op(Op::Unary(Unary::Relu), &[real]);
    let y = make.op(largest([2, 2], [1, 1], [2, 0, 0, 2]), &[y]);
    let y = make.quantised(y, 0.1, 114, DType::U8);
    let (graph, mut random) = make.finish(&[y]);
    let x = [bytes(&mut random, DType::U8, &shape)];
    let want = evaluate(&graph, &x).expect("the reference runs it");
    assert_eq!(run(&graph, &x, &["pool"]), want);
}

/// Quantised and dequantised elements, numbers that are none and infinities among them, are the reference's bit for bit.
#[test]
fn bytes_in_loops_are_exact() {
    let mut make = Make::new(29);
    let (x, other) = (make.input(DType::F32, &[3000]), make.input(DType::I8, &[3000]));
    let q = make.quantised(x, 0.01, 7, DType::I8);
    let real = make.dequantised(q, 0.01, 7);
    let other = make.dequantised(other, 0.3, -5);
    let sum = make.op(Op::Binary(Binary::Add), &[real, other]);
    let y = make.quantised(sum, 0.2, 100, DType::U8);
    // Sums of bytes wrap: these compute in integers.
    let wrapped = make.op(Op::Binary(Binary::Add), &[q, q]);
    let (graph, mut random) = make.finish(&[q, y, wrapped, sum]);
    let mut x: Vec<f32> = (0..3000).map(|_| random.below(4000) as f32 * 1e-3 - 2.0).collect();
    x[..6].copy_from_slice(&[f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 1e30, -1e30, -0.0]);
    let x = Tensor::from_vec(vec![3000], x).expect("3000");
    let inputs = [x, bytes(&mut random, DType::I8, &[3000])];
    let want = evaluate(&graph, &inputs).expect("the reference runs it");
    let got = run(&graph, &inputs, &["loop"]);
    assert_eq!(got[..3], want[..3]);
    let bits = |tensor: &Tensor| tensor.as_slice::<f32>().expect("f32").to_vec();
    assert!(bits(&got[3]).iter().zip(bits(&want[3])).all(|(a, b)| a.to_bits() == b.to_bits()));
}
