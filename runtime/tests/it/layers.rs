//! Matmuls with epilogues and chains of layers, each as one launch.

use crate::check::{Random, check_group, random_inputs};
use graphene_frontend::dim::{Bindings, Dim, Symbol};
use graphene_frontend::dtype::DType;
use graphene_frontend::graph::{Graph, ValueId};
use graphene_frontend::op::{Binary, ConvAttrs, Op, SliceAxis, Unary};
use graphene_frontend::tensor::Tensor;
use graphene_frontend::types::TensorType;
use graphene_fusion::groups::Family;
use half::{bf16, f16};

/// Types of matmuls, and tolerances for sums of so many terms as below.
const REAL: [(DType, f64); 4] =
    [(DType::F32, 2e-5), (DType::F64, 1e-12), (DType::F16, 4e-3), (DType::BF16, 3e-2)];

fn dims(text: &str) -> Vec<Dim> {
    text.split(',').filter(|dim| !dim.is_empty()).map(|dim| dim.trim().parse().unwrap()).collect()
}

fn sizes(pairs: &[(&str, i64)]) -> Bindings {
    let mut bindings = Bindings::new();
    pairs.iter().for_each(|&(name, size)| bindings.bind(Symbol::new(name), size).unwrap());
    bindings
}

/// A graph under construction.
struct Build {
    graph: Graph,
    dtype: DType,
}

impl Build {
    fn new(dtype: DType) -> Self {
        Self { graph: Graph::new(), dtype }
    }

    fn input(&mut self, shape: &str) -> ValueId {
        self.input_of(self.dtype, shape)
    }

    fn input_of(&mut self, dtype: DType, shape: &str) -> ValueId {
        let name = format!("x{}", self.graph.inputs().len());
        self.graph.add_input(&name, TensorType::new(dtype, dims(shape))).unwrap()
    }

    /// Weights, small enough that sums of products stay near 1.
    fn weight(&mut self, shape: &[usize]) -> ValueId {
        let small = Random(shape.len() as u64 + 7).tensor(DType::F64, shape.to_vec());
        let rows = shape.first().map_or(1, |&rows| rows.max(1)) as f64;
        let scaled: Vec<f64> =
            small.as_slice::<f64>().unwrap().iter().map(|x| x / rows.sqrt()).collect();
        let tensor = match self.dtype {
            DType::F64 => Tensor::from_vec(shape.to_vec(), scaled),
            DType::F16 => {
                let rounded = scaled.iter().map(|&x| f16::from_f64(x)).collect();
                Tensor::from_vec(shape.to_vec(), rounded)
            }
            DType::BF16 => {
                let rounded = scaled.iter().map(|&x| bf16::from_f64(x)).collect();
                Tensor::from_vec(shape.to_vec(), rounded)
            }
            _ => Tensor::from_vec(shape.to_vec(), scaled.iter().map(|&x| x as f32).collect()),
        };
        self.graph.add_constant("weight", tensor.unwrap())
    }

    fn add(&mut self, op: Op, inputs: &[ValueId]) -> ValueId {
        let inputs: Vec<_> = inputs.iter().copied().map(Some).collect();
        self.graph.add(op.name(), op.clone(), &inputs).unwrap().value()
    }

    fn matmul(&mut self, a: ValueId, b: ValueId) -> ValueId {
        self.add(Op::MatMul, &[a, b])
    }

    fn sum(&mut self, a: ValueId, b: ValueId) -> ValueId {
        self.add(Op::Binary(Binary::Add), &[a, b])
    }

    fn times(&mut self, a: ValueId, b: ValueId) -> ValueId {
        self.add(Op::Binary(Binary::Mul), &[a, b])
    }

    fn unary(&mut self, unary: Unary, x: ValueId) -> ValueId {
        self.add(Op::Unary(unary), &[x])
    }

    fn give(&mut self, value: ValueId) {
        let name = format!("y{}", self.graph.outputs().len());
        self.graph.add_output(&name, value);
    }

    fn check(&self, bindings: &Bindings, kernel: &str, tolerance: f64) {
        let inputs = random_inputs(&self.graph, bindings, &mut Random(5));
        check_group(&self.graph, Family::MatMul, bindings, &inputs, kernel, tolerance);
    }
}

#[test]
fn bias_activation_and_residual() {
    for (dtype, tolerance) in REAL {
        for (m, k, n) in [
            (1, 40, 33),
            (7, 5, 1),
            (65, 64, 130),
            (130, 33, 1000),
            (0, 4, 5),
            (3, 0, 7),
            (2, 3, 0),
        ] {
            let mut g = Build::new(dtype);
            let x = g.input(&format!("{m},{k}"));
            let w = g.weight(&[k, n]);
            let bias = g.weight(&[n]);
            let residual = g.input(&format!("{m},{n}"));
            let matmul = g.matmul(x, w);
            let y = g.sum(matmul, bias);
            let y = g.unary(Unary::Gelu, y);
            let y = g.sum(residual, y);
            g.give(y);
            g.check(&sizes(&[]), "gemm+epilogue", tolerance);
        }
    }
}

/// What kernels of matmuls add and apply themselves: in tiles of rows and columns, deep, of one row, of no terms, and of
/// batches whose rows lie apart. The bias, and the residual, are parts of what the caller gives.
#[test]
fn sums_are_followed_by_a_bias_a_residual_and_a_function() {
    let part = |g: &mut Build, shape: &str, len: i64| {
        let whole = g.input(shape);
        let range = SliceAxis { axis: 0, start: Dim::from(3), len: Dim::from(len), step: 1 };
        g.add(Op::Slice(vec![range]), &[whole])
    };
    for (b, m, k, n) in [
        (1, 300, 40, 900),
        (1, 9, 1700, 50),
        (1, 1, 33, 2000),
        (1, 2, 40, 130),
        (1, 5, 0, 7),
        (3, 130, 24, 48),
        (7, 4, 24, 48),
    ] {
        for swapped in [false, true] {
            let mut g = Build::new(DType::F32);
            let x = g.input(&format!("{m},{b},{k}"));
            let x = g.add(Op::Transpose(vec![1, 0, 2]), &[x]);
            let w = g.weight(&[k, n]);
            let bias = part(&mut g, &format!("{}", n + 5), n as i64);
            let residual = part(&mut g, &format!("{},{m},{n}", b + 4), b);
            let terms = if swapped { [residual, bias] } else { [bias, residual] };
            let mut y = g.matmul(x, w);
            for term in terms {
                y = g.sum(y, term);
            }
            let y = g.unary(Unary::Relu, y);
            g.give(y);
            g.check(&sizes(&[]), "gemm+epilogue", 2e-5);
        }
    }
}

#[test]
fn large_matmuls_are_cut_into_tiles() {
    // By weights, which are prepacked, and by what callers give.
    let sizes_of = [(600, 128, 900), (4200, 16, 64), (1100, 24, 500)];
    for ((m, k, n), given) in sizes_of.into_iter().flat_map(|size| [(size, false), (size, true)]) {
        let mut g = Build::new(DType::F32);
        let (x, residual) = (g.input(&format!("s,{k}")), g.input(&format!("s,{n}")));
        let w = if given { g.input(&format!("{k},{n}")) } else { g.weight(&[k, n]) };
        let v = g.weight(&[n]);
        let matmul = g.matmul(x, w);
        let y = g.sum(matmul, v);
        let less = g.add(Op::Binary(Binary::Less), &[y, residual]);
        let y = g.unary(Unary::Tanh, y);
        g.give(y);
        g.give(less);
        g.check(&sizes(&[("s", m)]), "gemm+epilogue", 2e-5);
    }
}

#[test]
fn operands_are_read_through_their_views() {
    for (dtype, tolerance) in REAL {
        let mut g = Build::new(dtype);
        // Heads of one packed value, against each other, with a mask that broadcasts and a scale.
        let packed = g.input("b,s,72");
        let part = |g: &mut Build, number: i64| {
            let start = Dim::from(24 * number);
            let range = SliceAxis { axis: 2, start, len: Dim::from(24), step: 1 };
            let part = g.add(Op::Slice(vec![range]), &[packed]);
            let split = g.add(Op::Reshape(dims("b,s,3,8")), &[part]);
            g.add(Op::Transpose(vec![0, 2, 1, 3]), &[split])
        };
        let (q, k) = (part(&mut g, 0), part(&mut g, 1));
        let k = g.add(Op::Transpose(vec![0, 1, 3, 2]), &[k]);
        let (mask, scale) = (g.input("b,1,1,s"), g.weight(&[]));
        let matmul = g.matmul(q, k);
        let y = g.times(matmul, scale);
        let y = g.sum(y, mask);
        g.give(y);
        g.give(matmul);
        for (b, s) in [(1, 1), (2, 9), (5, 130)] {
            g.check(&sizes(&[("b", b), ("s", s)]), "gemm+epilogue", tolerance * 4.0);
        }
    }
}

#[test]
fn operands_backwards_and_transposed() {
    let mut g = Build::new(DType::F32);
    let (x, w, residual) = (g.input("b,k,s"), g.input("n,k"), g.input("n,s"));
    let back =
        SliceAxis { axis: 1, start: "k - 1".parse().unwrap(), len: "k".parse().unwrap(), step: -1 };
    let x = g.add(Op::Slice(vec![back]), &[x]);
    let x = g.add(Op::Transpose(vec![0, 2, 1]), &[x]);
    let w = g.add(Op::Transpose(vec![1, 0]), &[w]);
    let residual = g.add(Op::Transpose(vec![1, 0]), &[residual]);
    let matmul = g.matmul(x, w);
    let y = g.sum(residual, matmul);
    let z = g.unary(Unary::Relu, y);
    g.give(y);
    g.give(z);
    for (b, s, k, n) in [(1, 7, 5, 3), (3, 1, 20, 400), (2, 70, 30, 410)] {
        let bindings = sizes(&[("b", b), ("s", s), ("k", k), ("n", n)]);
        g.check(&bindings, "gemm+epilogue", 1e-4);
    }
}

/// Matrices of few rows, each from another place: a matmul's own operand, which its epilogue reads as well.
#[test]
fn rows_of_one_matrix_lie_apart() {
    for (dtype, tolerance) in REAL {
        let mut g = Build::new(dtype);
        let (x, w) = (g.input("b,s,24"), g.weight(&[24, 24]));
        let x = g.add(Op::Transpose(vec![1, 0, 2]), &[x]);
        let matmul = g.matmul(x, w);
        let y = g.sum(matmul, x);
        g.give(y);
        for (b, s) in [(1, 9), (3, 5), (4, 197), (70, 2)] {
            g.check(&sizes(&[("b", b), ("s", s)]), "gemm+epilogue", tolerance);
        }
    }
}

#[test]
fn several_matmuls_share_an_epilogue() {
    for (dtype, tolerance) in REAL {
        for (b, s) in [(1, 1), (2, 33), (3, 400)] {
            let mut g = Build::new(dtype);
            let (x, z) = (g.input("b,s,24"), g.input("b,s,16"));
            let (u, v, w) = (g.weight(&[24, 50]), g.weight(&[16, 50]), g.weight(&[24, 50]));
            let (first, second, third) = (g.matmul(x, u), g.matmul(z, v), g.matmul(x, w));
            let sum = g.sum(first, second);
            let gate = g.unary(Unary::Sigmoid, third);
            let y = g.times(sum, gate);
            let big = g.add(Op::Binary(Binary::Greater), &[y, third]);
            let chosen = g.add(Op::Select, &[big, y, third]);
            for value in [second, y, big, chosen] {
                g.give(value);
            }
            g.check(&sizes(&[("b", b), ("s", s)]), "gemm+epilogue", tolerance);
        }
    }
}

#[test]
fn epilogues_convert() {
    let mut g = Build::new(DType::F16);
    let (x, w) = (g.input("s,40"), g.weight(&[40, 300]));
    let (scale, table) = (g.input_of(DType::F32, "300"), g.input_of(DType::I32, "s,1"));
    let matmul = g.matmul(x, w);
    let wide = g.add(Op::Cast { to: DType::F32, saturate: true }, &[matmul]);
    let y = g.times(wide, scale);
    let table = g.add(Op::Cast { to: DType::F32, saturate: true }, &[table]);
    let z = g.sum(y, table);
    g.give(matmul);
    g.give(z);
    g.give(y);
    for s in [1, 70] {
        g.check(&sizes(&[("s", s)]), "gemm+epilogue", 4e-3);
    }
}

#[test]
fn outputs_are_written_as_their_reader_wants_them() {
    for dtype in [DType::F32, DType::BF16] {
        for perm in [vec![1, 0, 2], vec![2, 0, 1]] {
            let mut g = Build::new(dtype);
            let (x, w) = (g.input("b,s,12"), g.weight(&[12, 8]));
            let matmul = g.matmul(x, w);
            let y = g.unary(Unary::Exp, matmul);
            let turned = g.add(Op::Transpose(perm), &[y]);
            g.give(turned);
            g.check(&sizes(&[("b", 2), ("s", 5)]), "gemm+epilogue", 3e-2);
        }
    }
}

#[test]
fn chains_of_layers() {
    for (dtype, tolerance) in REAL {
        // Which layers multiply by weights, which are prepacked; the others by what callers give.
        for ((b, s), own) in [
            ((1, 1), [true; 3]),
            ((2, 9), [true; 3]),
            ((3, 200), [true; 3]),
            ((0, 4), [true; 3]),
            ((3, 200), [false; 3]),
            ((3, 200), [true, false, true]),
        ] {
            let mut g = Build::new(dtype);
            let x = g.input(&format!("{b},{s},20"));
            let mut y = x;
            for ((k, n), own) in [(20, 64), (64, 7), (7, 20)].into_iter().zip(own) {
                let w = if own { g.weight(&[k, n]) } else { g.input(&format!("{k},{n}")) };
                let bias = g.weight(&[n]);
                let matmul = g.matmul(y, w);
                y = g.sum(matmul, bias);
                y = g.unary(if n == 64 { Unary::Gelu } else { Unary::Tanh }, y);
            }
            let y = g.sum(y, x);
            g.give(y);
            g.check(&sizes(&[]), "mlp", tolerance * 4.0);
        }
    }
}

/// A kept layer to which its own input is added.
#[test]
fn chains_of_residual_layers() {
    for s in [1, 9, 200] {
        let mut g = Build::new(DType::F32);
        let x = g.input("s,20");
        let mut y = x;
        for _ in 0..2 {
            let (w, bias) = (g.weight(&[20, 20]), g.weight(&[20]));
            let matmul = g.matmul(y, w);
            let sum = g.sum(matmul, bias);
            let sum = g.sum(sum, x);
            y = g.unary(Unary::Gelu, sum);
        }
        g.give(y);
        g.check(&sizes(&[("s", s)]), "mlp", 1e-4);
    }
}

#[test]
fn layers_may_be_kept_gated_and_given() {
    for (dtype, tolerance) in REAL {
        for s in [1, 9, 300] {
            let mut g = Build::new(dtype);
            let x = g.input("s,20");
            let (gate, up, down) = (g.weight(&[20, 90]), g.weight(&[20, 90]), g.weight(&[90, 90]));
            let last = g.weight(&[90, 5]);
            let (gate, up) = (g.matmul(x, gate), g.matmul(x, up));
            let gate = g.unary(Unary::Swish { alpha: 1.0 }, gate);
            let hidden = g.times(gate, up);
            let matmul = g.matmul(hidden, down);
            // Read by its own layer, by the next and by the caller.
            let y = g.sum(matmul, hidden);
            let z = g.sum(y, up);
            let logits = g.matmul(z, last);
            g.give(y);
            g.give(logits);
            g.give(gate);
            g.check(&sizes(&[("s", s)]), "mlp", tolerance * 8.0);
        }
    }
}

#[test]
fn convolutions_with_epilogues() {
    for (dtype, tolerance) in [(DType::F32, 2e-5), (DType::F16, 4e-3), (DType::BF16, 3e-2)] {
        // Images, channels, filters, groups and spatial sizes.
        let rows = [
            (1, 3, 8, 1, vec![9, 11]),
            (3, 8, 8, 8, vec![7, 6]),
            (2, 4, 6, 2, vec![30]),
            (5, 2, 3, 1, vec![4, 3, 5]),
            (0, 3, 8, 1, vec![9, 11]),
            (1, 16, 70, 1, vec![33, 31]),
        ];
        for (images, channels, filters, group, spatial) in rows {
            for outputs in [&[0][..], &[0, 1, 2]] {
                let mut g = Build::new(dtype);
                let rank = spatial.len();
                let attrs = ConvAttrs {
                    strides: vec![1; rank],
                    dilations: vec![1; rank],
                    pads_before: vec![1; rank],
                    pads_after: vec![1; rank],
                    group,
                };
                let shape = |channels: usize| {
                    let sizes = [images, channels].into_iter().chain(spatial.iter().copied());
                    sizes.map(|size| size.to_string()).collect::<Vec<_>>().join(",")
                };
                let (x, residual) = (g.input(&shape(channels)), g.input(&shape(filters)));
                let window: Vec<usize> =
                    [filters, channels / group].into_iter().chain(vec![3; rank]).collect();
                let w = g.weight(&window);
                let bias = g.weight(&[filters]);
                let column: Vec<usize> = [filters].into_iter().chain(vec![1; rank]).collect();
                let (scale, shift) = (g.weight(&column), g.weight(&column));
                let conv = g.add(Op::Conv(attrs), &[x, w, bias]);
                let y = g.times(conv, scale);
                let y = g.sum(y, shift);
                let y = g.sum(residual, y);
                let z = g.unary(Unary::Relu, y);
                let all = [z, conv, y];
                outputs.iter().for_each(|&output| g.give(all[output]));
                let inputs = random_inputs(&g.graph, &sizes(&[]), &mut Random(5));
                let family = Family::Convolution;
                let tolerance = tolerance * 8.0;
                let kernel = "conv+epilogue";
                check_group(&g.graph, family, &sizes(&[]), &inputs, kernel, tolerance);
            }
        }
    }
}

#[test]
fn what_is_no_layer_is_left_to_the_reference() {
    let both = |shape: &str| {
        let mut g = Build::new(DType::F32);
        let (x, w, wide) = (g.input("s,8"), g.weight(&[8, 6]), g.input(shape));
        let matmul = g.matmul(x, w);
        let y = g.sum(matmul, wide);
        g.give(y);
        g
    };
    let bindings = sizes(&[("s", 3)]);
    both("s,6").check(&bindings, "gemm+epilogue", 1e-5);
    // The sum is wider than the matmul.
    both("4,s,6").check(&bindings, "reference", 1e-5);
    // The right operand is made by the group.
    let mut g = Build::new(DType::F32);
    let (x, w) = (g.input("s,8"), g.input("8,6"));
    let w = g.unary(Unary::Neg, w);
    let y = g.matmul(x, w);
    g.give(y);
    g.check(&bindings, "reference", 1e-5);
}
