//! What kernels compute bit for bit as the reference evaluator, in every type that the operation takes.

use crate::check::{Random, module};
use graphene_frontend::dim::{Bindings, Dim, Symbol};
use graphene_frontend::dtype::DType;
use graphene_frontend::eval::{evaluate_op, evaluate_with};
use graphene_frontend::graph::{Graph, ValueId};
use graphene_frontend::op::{
    Binary, Combine, CoordinateTransform, CumulativeOp, NearestMode, Op, ReduceOp, ResizeAttrs,
    ResizeMode, Unary,
};
use graphene_frontend::tensor::Tensor;
use graphene_frontend::types::TensorType;
use graphene_fusion::Granularity;

const INDICES: [DType; 2] = [DType::I32, DType::I64];

/// Elements of a type: some few numbers, many of them equal, and some beyond the type.
fn elements(random: &mut Random, dtype: DType, shape: &[usize]) -> Tensor {
    let count = shape.iter().product();
    let wide = if dtype.is_float() {
        let specials = [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 0.0, -0.0, 1e30];
        let one = |random: &mut Random| match random.below(16) {
            0 => specials[random.below(6)],
            1..8 => random.below(7) as f64 - 3.0,
            _ => random.below(1 << 20) as f64 / 65536.0 - 8.0,
        };
        Tensor::from_vec(shape.to_vec(), (0..count).map(|_| one(random)).collect())
    } else {
        let one = |random: &mut Random| match random.below(4) {
            0 => random.next() as i64,
            _ => random.below(9) as i64 - 4,
        };
        Tensor::from_vec(shape.to_vec(), (0..count).map(|_| one(random)).collect())
    };
    cast(&wide.unwrap(), dtype)
}

fn cast(x: &Tensor, to: DType) -> Tensor {
    let op = Op::Cast { to, saturate: true };
    evaluate_op(&op, &[Some(x)], &Bindings::new()).unwrap().remove(0)
}

/// Indices along an axis of this size, from its front or its end.
fn indices(random: &mut Random, dtype: DType, shape: &[usize], sizes: &[usize]) -> Tensor {
    let count: usize = shape.iter().product();
    let one = |i: usize| {
        let size = sizes[i % sizes.len()];
        random.below(2 * size) as i64 - size as i64
    };
    cast(&Tensor::from_vec(shape.to_vec(), (0..count).map(one).collect()).unwrap(), dtype)
}

/// A graph of one operation on these operands; where it is symbolic, sizes above 1 are symbols, but for how many indices
/// name a slice.
fn graph(op: &Op, operands: &[Tensor], symbolic: bool) -> (Graph, Bindings) {
    let (mut graph, mut bindings) = (Graph::new(), Bindings::new());
    let slices = matches!(op, Op::GatherNd { .. } | Op::ScatterNd { .. });
    let mut dim = |size: usize, is_known: bool| match symbolic && size > 1 && !is_known {
        true => {
            let symbol = Symbol::new(&format!("s{size}"));
            if bindings.get(&symbol).is_none() {
                bindings.bind(symbol.clone(), size as i64).unwrap();
            }
            Dim::symbol(symbol.name())
        }
        false => Dim::from(size),
    };
    let inputs = operands.iter().enumerate().map(|(i, tensor)| {
        let last = tensor.shape().len() - 1;
        let sizes = tensor.shape().iter().enumerate();
        let shape = sizes.map(|(axis, &size)| dim(size, slices && i == 1 && axis == last));
        (format!("x{i}"), TensorType::new(tensor.dtype(), shape.collect()))
    });
    let inputs: Vec<_> = inputs.collect();
    let values = inputs.into_iter().map(|(name, ty)| graph.add_input(&name, ty).ok());
    let values: Vec<_> = values.collect();
    let node = graph.add("node", op.clone(), &values).expect("the operands fit the operation");
    for output in 0..graph.node(node).outputs().len() as u32 {
        graph.add_output(&format!("y{output}"), ValueId { node, output });
    }
    (graph, bindings)
}

/// Checks that a kernel of this name runs the operation, twice in a row on one arena, and gives the reference's bits; of
/// what is no number, that it is none.
fn check(op: &Op, operands: &[Tensor], kernel: &str) {
    for symbolic in [false, true] {
        let (graph, bindings) = graph(op, operands, symbolic);
        let expected = evaluate_with(&graph, operands, &bindings).expect("the reference takes it");
        let module = module(&graph, Granularity::PerOp);
        assert_eq!(module.kernels().collect::<Vec<_>>(), [kernel], "{}", module.program());
        let mut executable = module.executable(&bindings).expect("the program can be bound");
        for _ in 0..2 {
            let actual = executable.run(operands).expect("the program runs");
            for (actual, expected) in actual.iter().zip(&expected) {
                let types: Vec<_> = operands.iter().map(|x| format!("{x:?}")).collect();
                let place = format!("{op:?} of {types:?}");
                assert_eq!(actual.dtype(), expected.dtype(), "{place}");
                assert_eq!(actual.shape(), expected.shape(), "{place}");
                same(actual, expected, &place);
            }
        }
    }
}

fn same(actual: &Tensor, expected: &Tensor, place: &str) {
    let size = actual.dtype().size();
    let pairs = actual.bytes().chunks(size).zip(expected.bytes().chunks(size));
    let is_nan = |bytes: &[u8]| match actual.dtype() {
        DType::F32 => f32::from_le_bytes(bytes.try_into().unwrap()).is_nan(),
        DType::F64 => f64::from_le_bytes(bytes.try_into().unwrap()).is_nan(),
        DType::F16 => half::f16::from_le_bytes(bytes.try_into().unwrap()).is_nan(),
        DType::BF16 => half::bf16::from_le_bytes(bytes.try_into().unwrap()).is_nan(),
        _ => false,
    };
    for (i, (a, e)) in pairs.enumerate() {
        let alike = a == e || is_nan(a) && is_nan(e);
        assert!(alike, "element {i}: {a:02x?} against {e:02x?}\n{place}");
    }
}

/// How updates meet what is there, in a type that may hold no numbers.
fn combinations(dtype: DType) -> &'static [Combine] {
    let all = &[Combine::Replace, Combine::Add, Combine::Mul, Combine::Min, Combine::Max];
    if dtype == DType::Bool { &all[..1] } else { all }
}

#[test]
fn single_elements_at_indices() {
    let rows: [(&[usize], &[usize], usize); 7] = [
        (&[5], &[9], 0),
        (&[4, 3], &[2, 3], 0),
        (&[4, 3], &[4, 7], 1),
        (&[3, 4, 5], &[2, 6, 3], 1),
        (&[3, 4, 5], &[3, 4, 1], 2),
        (&[2, 3], &[0, 3], 0),
        (&[3, 5], &[3, 0], 0),
    ];
    let mut random = Random(5);
    for dtype in DType::all() {
        for (number, (shape, indexed, axis)) in rows.into_iter().enumerate() {
            let x = elements(&mut random, dtype, shape);
            let at = indices(&mut random, INDICES[number % 2], indexed, &[shape[axis]]);
            let updates = elements(&mut random, dtype, indexed);
            check(&Op::GatherElements { axis }, &[x.clone(), at.clone()], "gather-elements");
            for &combine in combinations(dtype) {
                let op = Op::ScatterElements { axis, combine };
                check(&op, &[x.clone(), at.clone(), updates.clone()], "scatter-elements");
            }
        }
    }
}

#[test]
fn slices_at_indices() {
    let rows: [(&[usize], &[usize], usize); 6] = [
        (&[5], &[9, 1], 0),
        (&[4, 3], &[6, 1], 0),
        (&[4, 3, 2], &[2, 3, 2], 0),
        (&[3, 4, 5], &[3, 2, 1], 1),
        (&[3, 4, 5], &[3, 4, 1], 2),
        (&[3, 0], &[2, 1], 0),
    ];
    let mut random = Random(6);
    for dtype in DType::all() {
        for (number, (shape, indexed, batch_dims)) in rows.into_iter().enumerate() {
            let (&depth, lead) = indexed.split_last().unwrap();
            let named = &shape[batch_dims..batch_dims + depth];
            let x = elements(&mut random, dtype, shape);
            let at = indices(&mut random, INDICES[number % 2], indexed, named);
            check(&Op::GatherNd { batch_dims }, &[x.clone(), at.clone()], "gather-nd");
            if batch_dims > 0 {
                continue;
            }
            let updated = [lead, &shape[depth..]].concat();
            let updates = elements(&mut random, dtype, &updated);
            for &combine in combinations(dtype) {
                let operands = [x.clone(), at.clone(), updates.clone()];
                check(&Op::ScatterNd { combine }, &operands, "scatter-nd");
            }
        }
    }
}

#[test]
fn many_updates_of_few_places_meet_in_order() {
    let mut random = Random(7);
    for dtype in [DType::F16, DType::F32, DType::U8, DType::I64] {
        let x = elements(&mut random, dtype, &[300, 70]);
        let updates = elements(&mut random, dtype, &[400, 100]);
        let few = indices(&mut random, DType::I64, &[400, 100], &[3]);
        for &combine in combinations(dtype) {
            let (x, at) = (elements(&mut random, dtype, &[400, 170]), few.clone());
            let op = Op::ScatterElements { axis: 1, combine };
            check(&op, &[x, at, updates.clone()], "scatter-elements");
        }
        let rows = indices(&mut random, DType::I32, &[900, 1], &[300]);
        let updates = elements(&mut random, dtype, &[900, 70]);
        for &combine in combinations(dtype) {
            let operands = [x.clone(), rows.clone(), updates.clone()];
            check(&Op::ScatterNd { combine }, &operands, "scatter-nd");
        }
    }
}

#[test]
fn indices_that_name_nothing_are_refused() {
    let x = Tensor::from_vec(vec![2, 3], vec![1_i16; 6]).unwrap();
    let rows = [
        (Op::GatherElements { axis: 1 }, vec![1, 2], "3 is outside an axis of size 3"),
        (Op::GatherNd { batch_dims: 0 }, vec![1, 2], "3 is outside an axis of size 2"),
        (Op::GatherNd { batch_dims: 1 }, vec![2, 1], "3 is outside an axis of size 3"),
    ];
    for (op, shape, message) in rows {
        let at = Tensor::from_vec(shape, vec![3_i64, 0]).unwrap();
        let operands = [x.clone(), at];
        let (graph, bindings) = graph(&op, &operands, false);
        assert!(evaluate_with(&graph, &operands, &bindings).is_err());
        let mut executable = module(&graph, Granularity::Fused).executable(&bindings).unwrap();
        let error = executable.run(&operands).unwrap_err().to_string();
        assert!(error.contains("node") && error.contains(message), "{error}");
    }
}

#[test]
fn orders_and_running_sums() {
    let mut random = Random(8);
    for dtype in DType::all().filter(|&dtype| dtype != DType::Bool) {
        for (shape, axis) in [(&[17][..], 0), (&[3, 9], 1), (&[7, 4], 0), (&[2, 5, 3], 1)] {
            let x = [elements(&mut random, dtype, shape)];
            for flag in [false, true] {
                for k in [0, 2, shape[axis]] {
                    let op = Op::TopK { k: k.into(), axis, largest: flag };
                    check_static(&op, &x, "top-k");
                }
                for last in [false, true] {
                    let op = Op::ArgReduce { largest: flag, axis, keep: last, last };
                    check(&op, &x, "arg-reduce");
                }
                for op in [CumulativeOp::Sum, CumulativeOp::Prod] {
                    for reverse in [false, true] {
                        let op = Op::Cumulative { op, axis, exclusive: flag, reverse };
                        check(&op, &x, "cumulative");
                    }
                }
            }
        }
    }
}

/// As [`check`], of sizes that are known.
fn check_static(op: &Op, operands: &[Tensor], kernel: &str) {
    let (graph, bindings) = graph(op, operands, false);
    let expected = evaluate_with(&graph, operands, &bindings).expect("the reference takes it");
    let module = module(&graph, Granularity::PerOp);
    assert_eq!(module.kernels().collect::<Vec<_>>(), [kernel], "{}", module.program());
    let actual = module.executable(&bindings).unwrap().run(operands).expect("the program runs");
    for (actual, expected) in actual.iter().zip(&expected) {
        same(actual, expected, &format!("{op:?} of {operands:?}"));
    }
}

#[test]
fn reductions_of_numbers_that_are_no_single_reals() {
    let all = [
        ReduceOp::Max,
        ReduceOp::Min,
        ReduceOp::Sum,
        ReduceOp::Mean,
        ReduceOp::Prod,
        ReduceOp::L1,
        ReduceOp::L2,
        ReduceOp::SumSquare,
        ReduceOp::LogSum,
        ReduceOp::LogSumExp,
    ];
    let single = [DType::F32, DType::F16, DType::BF16];
    let mut random = Random(9);
    for dtype in DType::all().filter(|dtype| !single.contains(dtype)) {
        for op in if dtype == DType::Bool { &all[..2] } else { &all } {
            for axes in [vec![0], vec![1], vec![2], vec![0, 2], vec![0, 1, 2], vec![]] {
                let shape = if axes == [2] { [2, 3, 0] } else { [3, 4, 5] };
                let x = [elements(&mut random, dtype, &shape)];
                check(&Op::Reduce { op: *op, axes, keep: false }, &x, "fold");
            }
        }
    }
}

const WHOLE: [DType; 6] = [DType::U64, DType::I64, DType::I4, DType::U4, DType::I2, DType::U2];

#[test]
fn loops_of_integers() {
    use Binary::{
        Add, BitAnd, BitOr, BitXor, Div, Equal, Greater, GreaterOrEqual, Less, LessOrEqual, Max,
        Min, Mod, Mul, Pow, Rem, ShiftLeft, ShiftRight, Sub,
    };
    let binary = [
        Add,
        Sub,
        Mul,
        Div,
        Mod,
        Rem,
        Pow,
        Min,
        Max,
        BitAnd,
        BitOr,
        BitXor,
        ShiftLeft,
        ShiftRight,
        Equal,
        Less,
        LessOrEqual,
        Greater,
        GreaterOrEqual,
    ];
    let mut random = Random(10);
    for dtype in WHOLE {
        for (left, right) in [(&[3, 700][..], &[3, 700][..]), (&[3, 7], &[7]), (&[1], &[5, 3])] {
            let operands = [left, right].map(|shape| elements(&mut random, dtype, shape));
            for binary in binary {
                check(&Op::Binary(binary), &operands, "loop");
            }
            let condition = elements(&mut random, DType::Bool, right);
            let [a, b] = operands;
            check(&Op::Select, &[condition, a, b], "loop");
        }
        for unary in [Unary::Abs, Unary::Neg, Unary::Sign, Unary::Relu, Unary::BitNot] {
            check(&Op::Unary(unary), &[elements(&mut random, dtype, &[5, 300])], "loop");
        }
    }
}

#[test]
fn casts_and_bits() {
    let narrow = |dtype: &DType| dtype.is_float() && dtype.size() == 1;
    let mut random = Random(11);
    for from in DType::all().filter(|dtype| !narrow(dtype)) {
        for to in DType::all().filter(|dtype| !narrow(dtype) && *dtype != from) {
            let x = [elements(&mut random, from, &[4, 300])];
            check(&Op::Cast { to, saturate: true }, &x, "loop");
        }
    }
    for from in DType::all() {
        for to in DType::all().filter(|to| to.file_bits() == from.file_bits()) {
            check(&Op::BitCast(to), &[elements(&mut random, from, &[4, 5])], "copy");
        }
    }
}

#[test]
fn integers_to_powers_of_other_types() {
    let mut random = Random(12);
    let bases = [DType::I8, DType::U16, DType::I32, DType::I64, DType::U64, DType::I4];
    let exponents = [DType::F32, DType::F64, DType::F16, DType::I32, DType::U64, DType::U8];
    for base in bases {
        for exponent in exponents {
            let x = [base, exponent].map(|dtype| elements(&mut random, dtype, &[5, 40]));
            check(&Op::Binary(Binary::Pow), &x, "loop");
        }
    }
}

#[test]
fn sizes_and_ranges() {
    let mut graph = Graph::new();
    let n = Dim::symbol("n");
    let x = graph.add_input("x", TensorType::new(DType::I64, vec![n.clone()])).unwrap();
    let size = graph.add("size", Op::Size(n.clone() * Dim::from(2)), &[]).unwrap().value();
    let range = graph.add("range", Op::Iota(n), &[]).unwrap().value();
    for (name, value) in [("x", x), ("size", size), ("range", range)] {
        graph.add_output(name, value);
    }
    for granularity in [Granularity::PerOp, Granularity::Fused] {
        let module = module(&graph, granularity);
        assert!(module.kernels().all(|kernel| kernel != "reference"), "{}", module.program());
        for n in [1, 7] {
            let mut bindings = Bindings::new();
            bindings.bind(Symbol::new("n"), n).unwrap();
            let x = Tensor::from_vec(vec![n as usize], vec![3_i64; n as usize]).unwrap();
            let outputs = module.executable(&bindings).unwrap().run(&[x]).unwrap();
            assert_eq!(outputs[1].as_slice::<i64>().unwrap(), [2 * n]);
            assert!(outputs[2].as_slice::<i64>().unwrap().iter().copied().eq(0..n));
        }
    }
}

#[test]
fn resizes_by_interpolation() {
    let cubic = |exclude_outside| ResizeMode::Cubic { a: -0.75, exclude_outside };
    let nearest = ResizeMode::Nearest(NearestMode::RoundPreferFloor);
    let transforms = [
        CoordinateTransform::HalfPixel,
        CoordinateTransform::AlignCorners,
        CoordinateTransform::CropAndResize,
    ];
    let mut random = Random(13);
    for dtype in [DType::F32, DType::F16, DType::F64, DType::U8, DType::I64, DType::U64, DType::I4]
    {
        for mode in [ResizeMode::Linear, cubic(false), cubic(true), nearest] {
            for transform in transforms {
                let crops = transform == CoordinateTransform::CropAndResize;
                for antialias in [false, true] {
                    let op = Op::Resize(Box::new(ResizeAttrs {
                        sizes: [2, 7, 3, 300].map(Dim::from).to_vec(),
                        scales: vec![None; 4],
                        mode,
                        transform,
                        roi: vec![(0.0, 1.0), (0.0, 1.0), (-0.2, 0.8), (0.1, 1.4)],
                        extrapolation: 5.0,
                        antialias,
                    }));
                    let x = [elements(&mut random, dtype, &[2, 4, 5, 211])];
                    let by_sums = crops || mode != nearest;
                    check_static(&op, &x, if by_sums { "resize" } else { "nearest" });
                }
            }
        }
    }
}

#[test]
fn softmaxes_of_double_precision_and_of_bytes() {
    let mut random = Random(14);
    for dtype in [DType::F64, DType::F8E4M3Fn, DType::F8E5M2] {
        for (shape, axis) in [(&[3, 70][..], 1), (&[5, 30], 0), (&[2, 9, 7], 1), (&[0, 3], 1)] {
            let x = [elements(&mut random, dtype, shape)];
            for log in [false, true] {
                check(&Op::Softmax { axis, log }, &x, "softmax");
            }
        }
    }
}
