//! What plans promise: every group of several operations has a kernel, and what runs on the reference is said.

use crate::check::{Random, check_graph, random_inputs};
use graphene_frontend::dim::{Bindings, Dim};
use graphene_frontend::dtype::DType;
use graphene_frontend::graph::{Graph, ValueId};
use graphene_frontend::op::{Binary, Op, ReduceOp, Unary};
use graphene_frontend::tensor::Tensor;
use graphene_frontend::types::TensorType;
use graphene_fusion::groups::Executor;
use graphene_fusion::program::Program;
use graphene_fusion::{Granularity, plan};
use graphene_ir::target::Target;
use graphene_runtime::cpu::Module;

/// The program of a plan, after looking that each of its steps runs where the plan says.
fn program(graph: &Graph, granularity: Granularity) -> Program {
    let planned = plan(graph, &Target::cpu(2), granularity, &Bindings::new()).unwrap();
    let module = Module::compile(planned.program.clone()).unwrap();
    for (step, kernel) in module.program().steps().iter().zip(module.kernels()) {
        let by_reference = kernel == "reference";
        let text = || format!("{:?} {}\n{}", step.name, kernel, module.program());
        assert_eq!(step.executor == Executor::Reference, by_reference, "{}", text());
        assert!(!by_reference || step.nodes.len() == 1, "{}", text());
    }
    planned.program
}

/// A graph under construction.
#[derive(Default)]
struct Build(Graph);

impl Build {
    fn input(&mut self, dtype: DType, shape: &[usize]) -> ValueId {
        let name = format!("x{}", self.0.inputs().len());
        let shape = shape.iter().map(|&size| Dim::from(size)).collect();
        self.0.add_input(&name, TensorType::new(dtype, shape)).unwrap()
    }

    fn weight(&mut self, shape: &[usize]) -> ValueId {
        let tensor = Random(shape.len() as u64).tensor(DType::F32, shape.to_vec());
        self.0.add_constant("weight", tensor)
    }

    fn add(&mut self, op: Op, inputs: &[ValueId]) -> ValueId {
        let inputs: Vec<_> = inputs.iter().copied().map(Some).collect();
        self.0.add(op.name(), op.clone(), &inputs).unwrap().value()
    }

    fn cast(&mut self, to: DType, value: ValueId) -> ValueId {
        self.add(Op::Cast { to, saturate: true }, &[value])
    }

    fn give(&mut self, values: &[ValueId]) {
        for &value in values {
            let name = format!("y{}", self.0.outputs().len());
            self.0.add_output(&name, value);
        }
    }

    /// Checks the promises, and the numbers if there is a tolerance; gives the number of steps.
    fn check(&self, tolerance: f64) -> usize {
        program(&self.0, Granularity::PerOp);
        let program = program(&self.0, Granularity::Fused);
        let sizes = Bindings::new();
        check_graph(&self.0, &sizes, &random_inputs(&self.0, &sizes, &mut Random(3)), tolerance);
        program.steps().len()
    }
}

const ADD: Op = Op::Binary(Binary::Add);
const EXP: Op = Op::Unary(Unary::Exp);

#[test]
fn matmuls_give_nothing_that_does_not_wait_for_them() {
    let mut g = Build::default();
    let [a, b] = [(); 2].map(|()| g.input(DType::F32, &[64, 64]));
    let w = g.weight(&[64, 64]);
    let y = g.add(EXP, &[a]);
    let matmul = g.add(Op::MatMul, &[b, w]);
    let z = g.add(ADD, &[matmul, y]);
    g.give(&[y, z]);
    assert_eq!(g.check(1e-4), 2);
    // Nobody else reads the expression: then the matmul's launch computes it.
    let mut g = Build::default();
    let [a, b] = [(); 2].map(|()| g.input(DType::F32, &[64, 64]));
    let w = g.weight(&[64, 64]);
    let y = g.add(EXP, &[a]);
    let matmul = g.add(Op::MatMul, &[b, w]);
    let z = g.add(ADD, &[matmul, y]);
    g.give(&[z]);
    assert_eq!(g.check(1e-4), 1);
}

#[test]
fn elements_that_loops_do_not_take_leave_the_rest_of_the_loop() {
    for to in DType::all() {
        let mut g = Build::default();
        let x = g.input(DType::F32, &[16, 8]);
        let x = g.add(Op::Unary(Unary::Relu), &[x]);
        let x = g.add(ADD, &[x, x]);
        let cast = g.cast(to, x);
        let back = g.cast(DType::F32, cast);
        let y = g.add(Op::Unary(Unary::Tanh), &[back]);
        let y = g.add(ADD, &[y, back]);
        g.give(&[y]);
        let steps = g.check(1e-5);
        assert!(steps <= 4, "{to}: {steps}");
    }
    let mut g = Build::default();
    let (x, by) = (g.input(DType::I32, &[16, 8]), g.input(DType::F32, &[16, 8]));
    let x = g.add(Op::Unary(Unary::Abs), &[x]);
    let by = g.add(Op::Unary(Unary::Abs), &[by]);
    let y = g.add(Op::Binary(Binary::Pow), &[x, by]);
    let y = g.add(Op::Unary(Unary::Neg), &[y]);
    g.give(&[y]);
    g.check(0.0);
}

#[test]
fn layers_are_of_one_type() {
    let mut g = Build::default();
    let (x, z) = (g.input(DType::F32, &[32, 16]), g.input(DType::F16, &[32, 16]));
    let (w, v) = (g.weight(&[16, 16]), g.weight(&[16, 16]));
    let v = g.cast(DType::F16, v);
    let first = g.add(Op::MatMul, &[x, w]);
    let narrow = g.cast(DType::F16, first);
    let both = g.add(ADD, &[narrow, z]);
    let second = g.add(Op::MatMul, &[both, v]);
    let siblings = g.add(Op::MatMul, &[z, v]);
    let wide = g.cast(DType::F32, siblings);
    let sum = g.add(ADD, &[wide, first]);
    g.give(&[second, sum]);
    g.check(2e-2);
    // A mask of the first layer that the second one's expressions read.
    let mut g = Build::default();
    let x = g.input(DType::F32, &[32, 16]);
    let (w, v) = (g.weight(&[16, 16]), g.weight(&[16, 16]));
    let first = g.add(Op::MatMul, &[x, w]);
    let mask = g.add(Op::Binary(Binary::Less), &[first, x]);
    let hidden = g.add(Op::Unary(Unary::Tanh), &[first]);
    let second = g.add(Op::MatMul, &[hidden, v]);
    let y = g.add(Op::Select, &[mask, second, hidden]);
    g.give(&[y]);
    g.check(1e-4);
}

#[test]
fn lookups_that_share_a_launch_have_rows_of_one_shape() {
    let mut g = Build::default();
    let ids = g.input(DType::I64, &[4, 6]);
    let id = g.add(Op::Reduce { op: ReduceOp::Max, axes: vec![1], keep: false }, &[ids]);
    let (words, blocks) = (g.weight(&[32, 8]), g.weight(&[32, 6, 8]));
    let word = g.add(Op::Gather { axis: 0 }, &[words, ids]);
    let block = g.add(Op::Gather { axis: 0 }, &[blocks, id]);
    let sum = g.add(ADD, &[word, block]);
    let softmax = g.add(Op::Softmax { axis: 2, log: false }, &[sum]);
    g.give(&[softmax, sum]);
    g.check(1e-5);
}

#[test]
fn norms_with_one_scale_for_all_are_the_references_alone() {
    let mut g = Build::default();
    let x = g.input(DType::F32, &[4, 8]);
    let scale = g.weight(&[1]);
    let x = g.add(EXP, &[x]);
    let norm = g.add(Op::LayerNorm { axis: 1, epsilon: 1e-5 }, &[x, scale]);
    let y = g.add(EXP, &[norm]);
    g.give(&[y]);
    g.check(1e-4);
}

#[test]
fn reductions_without_a_kernel_of_their_own_are_row_programs() {
    for op in [ReduceOp::L2, ReduceOp::LogSum, ReduceOp::LogSumExp] {
        for keep in [false, true] {
            let mut g = Build::default();
            let x = g.input(DType::F32, &[4, 8]);
            let x = g.add(EXP, &[x]);
            let turned = g.add(Op::Transpose(vec![1, 0]), &[x]);
            let y = g.add(Op::Reduce { op, axes: vec![1], keep }, &[turned]);
            g.give(&[y]);
            let all = program(&g.0, Granularity::PerOp);
            assert!(all.steps().iter().all(|step| step.executor != Executor::Reference), "{all}");
            g.check(1e-4);
        }
    }
}

#[test]
fn operands_may_be_one_value() {
    let concat = Op::Concat { axis: 1 };
    for (op, kernel) in [(Op::MatMul, "gemm"), (concat, "concat")] {
        let mut g = Build::default();
        let x = g.input(DType::F32, &[8, 8]);
        let y = g.add(op, &[x, x]);
        g.give(&[y]);
        let program = program(&g.0, Granularity::Fused);
        let module = Module::compile(program).unwrap();
        assert_eq!(module.kernels().collect::<Vec<_>>(), [kernel]);
        g.check(1e-4);
    }
    let mut g = Build::default();
    let (x, other) = (g.input(DType::F32, &[4, 3]), g.input(DType::F32, &[4, 2]));
    let y = g.add(Op::Concat { axis: 1 }, &[x, other, x, x]);
    let ids = g.input(DType::I64, &[3]);
    let ids = g.cast(DType::Bool, ids);
    let ids = g.cast(DType::I64, ids);
    let z = g.add(Op::Gather { axis: 0 }, &[ids, ids]);
    g.give(&[y, z]);
    g.check(0.0);
}

/// Matmuls, rows, lookups, expressions and changes of view, of many types.
fn random_graph(random: &mut Random, operations: usize) -> Graph {
    let mut g = Build::default();
    let size = if random.below(4) == 0 { 1 } else { 8 };
    let shape = [8, size];
    let mut values = vec![g.input(DType::F32, &shape), g.input(DType::F16, &shape)];
    values.push(g.input(DType::F32, &[8, 1]));
    let ids = g.input(DType::I64, &[8]);
    let (w, table) = (g.weight(&[size, size]), g.weight(&[16, size]));
    let (scale, one) = (g.weight(&[size]), g.weight(&[1]));
    let types: Vec<DType> = DType::all().collect();
    for _ in 0..operations {
        let back = random.below(4).min(values.len() - 1);
        let (a, b) = (values[values.len() - 1 - back], values[random.below(values.len())]);
        let (kind, keep) = (random.below(13), random.below(2) == 0);
        let to = match random.below(3) {
            0 => types[random.below(types.len())],
            1 => DType::F16,
            _ => DType::F32,
        };
        let affine = if random.below(4) == 0 { one } else { scale };
        let (op, inputs) = match kind {
            0 | 1 => (Op::Unary(Unary::Tanh), vec![a]),
            2..5 => (ADD, vec![a, b]),
            5 => (Op::Binary(Binary::Pow), vec![a, b]),
            6 => (Op::Cast { to, saturate: keep }, vec![a]),
            7 => (Op::MatMul, vec![a, w]),
            8 => (Op::Softmax { axis: 1, log: keep }, vec![a]),
            9 => (Op::LayerNorm { axis: 1, epsilon: 1e-5 }, vec![a, affine]),
            10 => {
                let all = [ReduceOp::Sum, ReduceOp::Max, ReduceOp::L2, ReduceOp::LogSumExp];
                (Op::Reduce { op: all[random.below(4)], axes: vec![1], keep }, vec![a])
            }
            11 => (Op::Gather { axis: 0 }, vec![table, ids]),
            _ => (Op::Transpose(vec![1, 0]), vec![a]),
        };
        // What does not fit is not added.
        let inputs: Vec<_> = inputs.into_iter().map(Some).collect();
        if let Ok(node) = g.0.add("node", op, &inputs) {
            values.push(node.value());
        }
    }
    let last = values[values.len() - 1];
    let other = values[random.below(values.len())];
    g.give(&[last, other]);
    g.0
}

#[test]
fn groups_of_several_operations_have_kernels() {
    let (mut random, mut fused) = (Random(11), 0);
    for round in 0..600 {
        let graph = random_graph(&mut random, 3 + round % 20);
        program(&graph, Granularity::PerOp);
        let program = program(&graph, Granularity::Fused);
        fused += program.steps().iter().filter(|step| step.nodes.len() > 1).count();
    }
    assert!(fused > 300, "only {fused} steps of several operations");
}

#[test]
fn weights_are_made_within_bounds() {
    // Billions of elements from two: they are no weight, and nothing is made when the program is compiled.
    let mut g = Build::default();
    let ones = g.0.add_constant("c", Tensor::from_vec(vec![1], vec![1.0_f32]).unwrap());
    let twos =
        g.0.add_constant("d", Tensor::from_vec(vec![40_000, 1], vec![2.0_f32; 40_000]).unwrap());
    let wide = g.add(Op::Expand(vec![40_000.into(), 40_000.into()]), &[ones]);
    let sum = g.add(ADD, &[wide, twos]);
    g.give(&[sum]);
    for granularity in [Granularity::PerOp, Granularity::Fused] {
        let planned = plan(&g.0, &Target::cpu(2), granularity, &Bindings::new()).unwrap();
        assert_eq!(planned.program.made_bytes(), 0, "{}", planned.program);
        let module = Module::compile(planned.program).unwrap();
        assert!(module.bind_within(&Bindings::new(), 1 << 30).is_err());
    }
    // What is made counts.
    let mut g = Build::default();
    let (x, w, v) = (g.input(DType::F32, &[2, 256]), g.weight(&[256, 256]), g.weight(&[256, 256]));
    let matmul = g.add(Op::MatMul, &[w, v]);
    let y = g.add(Op::MatMul, &[x, matmul]);
    g.give(&[y]);
    let program = program(&g.0, Granularity::Fused);
    assert_eq!(program.made_bytes(), 4 << 16);
    assert!(Module::compile_within(program.clone(), 1 << 17).is_err());
    let module = Module::compile_within(program, 1 << 20).unwrap();
    assert!(module.bind_within(&Bindings::new(), 1 << 17).is_err());
    assert!(module.bind_within(&Bindings::new(), 1 << 20).is_ok());
}
