//! Groups over rows in one launch: folds of rows with pointwise neighbours, and lookups in tables.

use crate::check::{Random, check_group, group};
use graphene_frontend::dim::Bindings;
use graphene_frontend::dim::Dim;
use graphene_frontend::dtype::DType;
use graphene_frontend::graph::{Graph, ValueId};
use graphene_frontend::op::{Binary, Op, ReduceOp, SliceAxis, Unary};
use graphene_frontend::tensor::Tensor;
use graphene_frontend::types::TensorType;
use graphene_fusion::groups::Family;
use graphene_runtime::Error;

const NARROW: [(DType, f64); 3] = [(DType::F32, 1e-5), (DType::F16, 4e-3), (DType::BF16, 3e-2)];

/// Rows, and elements of a row.
const SIZES: [[usize; 2]; 8] =
    [[1, 1], [1, 70], [5, 1], [37, 33], [300, 100], [11, 1500], [0, 7], [2, 9000]];

/// A graph under construction, with its inputs.
struct Build {
    graph: Graph,
    inputs: Vec<Tensor>,
    random: Random,
}

impl Build {
    fn new() -> Self {
        Self { graph: Graph::new(), inputs: Vec::new(), random: Random(11) }
    }

    fn give(&mut self, tensor: Tensor) -> ValueId {
        let shape = tensor.shape().iter().map(|&size| Dim::from(size)).collect();
        let ty = TensorType::new(tensor.dtype(), shape);
        let value = self.graph.add_input(&format!("x{}", self.inputs.len()), ty).unwrap();
        self.inputs.push(tensor);
        value
    }

    fn input(&mut self, dtype: DType, shape: &[usize]) -> ValueId {
        let tensor = self.random.tensor(dtype, shape.to_vec());
        self.give(tensor)
    }

    fn number(&mut self, dtype: DType, x: f32) -> ValueId {
        let tensor = match dtype {
            DType::F16 => Tensor::from_vec(vec![], vec![half::f16::from_f32(x)]),
            DType::BF16 => Tensor::from_vec(vec![], vec![half::bf16::from_f32(x)]),
            _ => Tensor::from_vec(vec![], vec![x]),
        };
        self.graph.add_constant("number", tensor.unwrap())
    }

    fn add(&mut self, op: Op, inputs: &[ValueId]) -> ValueId {
        let inputs: Vec<_> = inputs.iter().copied().map(Some).collect();
        self.graph.add(op.name(), op.clone(), &inputs).unwrap().value()
    }

    fn binary(&mut self, binary: Binary, a: ValueId, b: ValueId) -> ValueId {
        self.add(Op::Binary(binary), &[a, b])
    }

    fn reduce(&mut self, op: ReduceOp, axes: &[usize], keep: bool, x: ValueId) -> ValueId {
        self.add(Op::Reduce { op, axes: axes.to_vec(), keep }, &[x])
    }

    fn output(&mut self, value: ValueId) {
        self.graph.add_output("y", value);
    }

    fn check(&self, family: Family, kernel: &str, tolerance: f64) {
        check_group(&self.graph, family, &Bindings::new(), &self.inputs, kernel, tolerance);
    }
}

#[test]
fn a_residual_and_its_norm() {
    for (dtype, tolerance) in NARROW {
        for [rows, n] in SIZES {
            for (rms, stored, stats) in
                [(false, true, false), (false, false, true), (true, true, false)]
            {
                let mut g = Build::new();
                let (a, b) = (g.input(dtype, &[rows, n]), g.input(dtype, &[rows, n]));
                let (scale, bias) = (g.input(dtype, &[n]), g.input(dtype, &[n]));
                let sum = g.binary(Binary::Add, a, b);
                let norm = match rms {
                    true => g.add(Op::RmsNorm { axis: 1, epsilon: 1e-3 }, &[sum, scale]),
                    false => g.add(Op::LayerNorm { axis: 1, epsilon: 1e-3 }, &[sum, scale, bias]),
                };
                if stored {
                    g.output(sum);
                }
                g.output(norm);
                if stats {
                    g.output(ValueId { output: 1, ..norm });
                    g.output(ValueId { output: 2, ..norm });
                }
                g.check(Family::Normalization, "rows", tolerance);
            }
        }
    }
}

#[test]
fn scaled_and_masked_softmax() {
    let (b, h, s, t) = (2, 3, 5, 70);
    for (dtype, tolerance) in NARROW {
        for log in [false, true] {
            for mask in [&[b, 1, 1, t][..], &[b, h, s, t], &[s, 1], &[1]] {
                let mut g = Build::new();
                let x = g.input(dtype, &[b, h, s, t]);
                let mask = g.input(dtype, mask);
                let (half, large) = (g.number(dtype, 0.5), g.number(dtype, -100.0));
                let one = g.number(dtype, 1.0);
                // (1 - mask) · -100, at the mask's own shape.
                let off = g.binary(Binary::Sub, one, mask);
                let bias = g.binary(Binary::Mul, off, large);
                let scaled = g.binary(Binary::Mul, x, half);
                let scores = g.binary(Binary::Add, scaled, bias);
                let y = g.add(Op::Softmax { axis: 3, log }, &[scores]);
                let z = g.add(Op::Unary(Unary::Neg), &[y]);
                g.output(y);
                g.output(z);
                g.check(Family::Normalization, "rows", tolerance);
            }
        }
    }
}

#[test]
fn selected_softmax_of_views() {
    // Scores stored [t, b, s], a bool mask over keys, every second key of the buffer.
    let (b, s, t) = (3, 20, 33);
    for (dtype, tolerance) in NARROW {
        let mut g = Build::new();
        let stored = g.input(dtype, &[2 * t, b, s]);
        let mask = g.input(DType::Bool, &[b, 1, t]);
        let turned = g.add(Op::Transpose(vec![1, 2, 0]), &[stored]);
        let (start, len) = (Dim::from(2 * t - 1), Dim::from(t));
        let range = SliceAxis { axis: 2, start, len, step: -2 };
        let part = g.add(Op::Slice(vec![range]), &[turned]);
        let never = g.number(dtype, f32::NEG_INFINITY);
        let scores = g.add(Op::Select, &[mask, part, never]);
        let y = g.add(Op::Softmax { axis: 2, log: false }, &[scores]);
        let flag = g.add(Op::Unary(Unary::IsNan), &[y]);
        let zero = g.number(dtype, 0.0);
        let z = g.add(Op::Select, &[flag, zero, y]);
        g.output(z);
        g.output(flag);
        g.check(Family::Normalization, "rows", tolerance);
    }
}

#[test]
fn a_fold_reads_a_view_itself() {
    for (dtype, tolerance) in NARROW {
        for log in [false, true] {
            let mut g = Build::new();
            let stored = g.input(dtype, &[40, 7]);
            let turned = g.add(Op::Transpose(vec![1, 0]), &[stored]);
            let y = g.add(Op::Softmax { axis: 1, log }, &[turned]);
            let z = g.binary(Binary::Mul, y, turned);
            g.output(z);
            g.check(Family::Normalization, "rows", tolerance);
        }
    }
}

#[test]
fn norms_written_out() {
    for (dtype, tolerance) in NARROW {
        for [rows, n] in SIZES {
            let mut g = Build::new();
            let x = g.input(dtype, &[rows, n]);
            let (scale, bias) = (g.input(dtype, &[n]), g.input(dtype, &[1, n]));
            let (two, epsilon) = (g.number(dtype, 2.0), g.number(dtype, 0.01));
            let mean = g.reduce(ReduceOp::Mean, &[1], true, x);
            let off = g.binary(Binary::Sub, x, mean);
            let square = g.binary(Binary::Pow, off, two);
            let variance = g.reduce(ReduceOp::Mean, &[1], true, square);
            let variance = g.binary(Binary::Add, variance, epsilon);
            let deviation = g.add(Op::Unary(Unary::Sqrt), &[variance]);
            let y = g.binary(Binary::Div, off, deviation);
            let y = g.binary(Binary::Mul, y, scale);
            let y = g.binary(Binary::Add, y, bias);
            let last = g.reduce(ReduceOp::Max, &[1], false, y);
            for value in [mean, y, deviation, last] {
                g.output(value);
            }
            g.check(Family::Normalization, "rows", tolerance * 2.0);
        }
    }
}

#[test]
fn every_reduction_of_trailing_axes() {
    for (dtype, tolerance) in NARROW {
        for op in [
            ReduceOp::Sum,
            ReduceOp::Mean,
            ReduceOp::Prod,
            ReduceOp::Max,
            ReduceOp::Min,
            ReduceOp::L1,
            ReduceOp::L2,
            ReduceOp::SumSquare,
            ReduceOp::LogSum,
            ReduceOp::LogSumExp,
        ] {
            for (shape, axes) in [
                (&[4, 5, 6][..], &[1, 2][..]),
                (&[4, 5, 6], &[2]),
                (&[30], &[0]),
                (&[3, 0], &[1]),
                (&[0, 3], &[1]),
            ] {
                for keep in [false, true] {
                    let mut g = Build::new();
                    let x = g.input(dtype, shape);
                    let y = g.add(Op::Unary(Unary::Abs), &[x]);
                    let sum = g.reduce(op, axes, keep, y);
                    g.output(sum);
                    g.check(Family::Reduction, "rows", tolerance * 2.0);
                }
            }
        }
    }
}

#[test]
fn special_numbers() {
    let special = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 3e38, -0.0, 1e-40];
    for x in special {
        for op in [ReduceOp::Sum, ReduceOp::Max, ReduceOp::Min, ReduceOp::L2, ReduceOp::LogSumExp] {
            let mut g = Build::new();
            let mut values = vec![0.5_f32; 3 * 40];
            values[50] = x;
            let a = g.give(Tensor::from_vec(vec![3, 40], values).unwrap());
            let one = g.number(DType::F32, 1.0);
            let b = g.binary(Binary::Mul, a, one);
            let sum = g.reduce(op, &[1], true, b);
            let soft = g.add(Op::Softmax { axis: 1, log: false }, &[b]);
            let norm = g.add(Op::LayerNorm { axis: 1, epsilon: 1e-3 }, &[b]);
            g.output(sum);
            g.output(soft);
            // The reference adds up squares of large numbers in f64.
            if x != 3e38 {
                g.output(norm);
            }
            g.check(Family::Reduction, "rows", 1e-5);
        }
    }
}

#[test]
fn other_types_beside_the_rows() {
    let mut g = Build::new();
    let (x, mask) = (g.input(DType::F32, &[6, 50]), g.input(DType::I64, &[6, 50]));
    let zero = g.graph.add_constant("zero", Tensor::from_vec(vec![], vec![0_i64]).unwrap());
    let kept = g.binary(Binary::Greater, mask, zero);
    let count = g.add(Op::Cast { to: DType::F32, saturate: true }, &[kept]);
    let all = g.reduce(ReduceOp::Sum, &[1], true, count);
    let none = g.number(DType::F32, 0.0);
    let chosen = g.add(Op::Select, &[kept, x, none]);
    let sum = g.reduce(ReduceOp::Sum, &[1], true, chosen);
    let mean = g.binary(Binary::Div, sum, all);
    let y = g.binary(Binary::Sub, x, mean);
    let wide = g.add(Op::Cast { to: DType::F64, saturate: true }, &[y]);
    let y = g.add(Op::Select, &[kept, wide, wide]);
    for value in [kept, mean, y] {
        g.output(value);
    }
    g.check(Family::Reduction, "rows", 1e-5);
}

#[test]
fn several_folds_and_outputs() {
    for (dtype, tolerance) in NARROW {
        let mut g = Build::new();
        let (x, column) = (g.input(dtype, &[2, 9, 40]), g.input(dtype, &[9, 1]));
        let sum = g.reduce(ReduceOp::Mean, &[2], true, x);
        let shifted = g.binary(Binary::Sub, sum, column);
        let y = g.binary(Binary::Add, x, shifted);
        let soft = g.add(Op::Softmax { axis: 2, log: false }, &[y]);
        let norm = g.add(Op::RmsNorm { axis: 2, epsilon: 1e-3 }, &[soft]);
        let both = g.binary(Binary::Sub, norm, soft);
        let last = g.reduce(ReduceOp::Sum, &[2], false, both);
        for value in [both, soft, shifted, last] {
            g.output(value);
        }
        g.check(Family::Normalization, "rows", tolerance * 4.0);
    }
}

/// Lookups of tokens, positions and kinds, summed and normalised.
fn embedding(dtype: DType, [b, s, n]: [usize; 3], index: DType, norm: bool) -> Build {
    let mut g = Build::new();
    let indices = |g: &mut Build, shape: &[usize], size: i64| {
        let len: usize = shape.iter().product();
        let values =
            (0..len as i64).map(|i| (i * 7919 + 3) % size - if i % 3 == 0 { size } else { 0 });
        let values: Vec<i64> = values.collect();
        let tensor = match index {
            DType::I32 => {
                Tensor::from_vec(shape.to_vec(), values.iter().map(|&i| i as i32).collect())
            }
            _ => Tensor::from_vec(shape.to_vec(), values),
        };
        g.give(tensor.unwrap())
    };
    let (words, kinds) = (g.input(dtype, &[50, n]), g.input(dtype, &[2, n]));
    let places = g.input(dtype, &[s + 5, n]);
    let (tokens, kind) = (indices(&mut g, &[b, s], 50), indices(&mut g, &[1, s], 2));
    let range = SliceAxis { axis: 0, start: Dim::from(2), len: Dim::from(s), step: 1 };
    let place = g.add(Op::Slice(vec![range]), &[places]);
    let words = g.add(Op::Gather { axis: 0 }, &[words, tokens]);
    let kinds = g.add(Op::Gather { axis: 0 }, &[kinds, kind]);
    let sum = g.binary(Binary::Add, words, kinds);
    let mut y = g.binary(Binary::Add, sum, place);
    if norm {
        let (scale, bias) = (g.input(dtype, &[n]), g.input(dtype, &[n]));
        y = g.add(Op::LayerNorm { axis: 2, epsilon: 1e-3 }, &[y, scale, bias]);
        g.output(words);
    }
    g.output(y);
    g
}

#[test]
fn embeddings() {
    for (dtype, tolerance) in NARROW {
        for sizes in [[1, 1, 8], [2, 9, 33], [3, 70, 768], [0, 5, 4]] {
            for index in [DType::I32, DType::I64] {
                for norm in [false, true] {
                    let g = embedding(dtype, sizes, index, norm);
                    g.check(Family::Gather, "embedding", tolerance * 2.0);
                }
            }
        }
    }
}

#[test]
fn indices_outside_a_table_are_refused() {
    for bad in [50, -51, i64::MAX, i64::MIN] {
        let mut g = embedding(DType::F32, [2, 9, 33], DType::I64, true);
        let mut tokens = g.inputs[3].as_slice::<i64>().unwrap().to_vec();
        tokens[7] = bad;
        g.inputs[3] = Tensor::from_vec(vec![2, 9], tokens).unwrap();
        let mut executable = group(&g.graph, Family::Gather, &Bindings::new(), "embedding");
        let refused = executable.run(&g.inputs).map(drop).unwrap_err();
        let Error::At { error, .. } = &refused else { panic!("{refused}") };
        assert_eq!(**error, Error::Index { index: bad, size: 50 });
    }
}

#[test]
fn what_is_not_over_rows_is_left_to_the_reference() {
    // Two folds over different axes; a fold of another type.
    let mut g = Build::new();
    let x = g.input(DType::F32, &[6, 5]);
    let sum = g.reduce(ReduceOp::Sum, &[0], true, x);
    let y = g.binary(Binary::Sub, x, sum);
    let soft = g.add(Op::Softmax { axis: 1, log: false }, &[y]);
    g.output(soft);
    g.check(Family::Reduction, "reference", 1e-5);
    let mut g = Build::new();
    let x = g.input(DType::I64, &[6, 5]);
    let y = g.add(Op::Unary(Unary::Neg), &[x]);
    let sum = g.reduce(ReduceOp::Sum, &[1], true, y);
    g.output(sum);
    g.check(Family::Reduction, "reference", 0.0);
}
