//! Runs a graph on every executor and compares.

use graphene_frontend::dim::{Bindings, Dim};
use graphene_frontend::dtype::DType;
use graphene_frontend::eval::evaluate_with;
use graphene_frontend::graph::{Graph, ValueId};
use graphene_frontend::op::Op;
use graphene_frontend::tensor::Tensor;
use graphene_frontend::types::TensorType;
use graphene_fusion::groups::{Family, Groups};
use graphene_fusion::{Granularity, lower, plan};
use graphene_ir::target::Target;
use graphene_runtime::cpu::{Executable, Module};

/// The graph's program under these sizes.
pub(crate) fn executable(
    graph: &Graph,
    bindings: &Bindings,
    granularity: Granularity,
) -> Executable {
    module(graph, granularity).executable(bindings).expect("the program can be bound")
}

pub(crate) fn module(graph: &Graph, granularity: Granularity) -> Module {
    let planned = plan(graph, &Target::cpu(2), granularity, &Bindings::new());
    Module::compile(planned.expect("the graph can be planned").program)
        .expect("its weights can be made")
}

/// Checks one operation on these operands, all its outputs or only some: that this kernel runs it, and
/// that it agrees with the reference.
pub(crate) fn check_op(
    op: Op,
    operands: &[Option<Tensor>],
    outputs: &[u32],
    kernel: &str,
    tolerance: f64,
) {
    let mut graph = Graph::new();
    let mut values = Vec::new();
    let mut inputs = Vec::new();
    for (i, operand) in operands.iter().enumerate() {
        values.push(operand.as_ref().map(|tensor| {
            inputs.push(tensor.clone());
            let shape = tensor.shape().iter().map(|&size| Dim::from(size)).collect();
            graph.add_input(&format!("x{i}"), TensorType::new(tensor.dtype(), shape)).unwrap()
        }));
    }
    let node = graph.add("node", op, &values).expect("the operands fit the operation");
    for &output in outputs {
        graph.add_output(&format!("y{output}"), ValueId { node, output });
    }
    let module = module(&graph, Granularity::PerOp);
    let kernels: Vec<_> = module.kernels().collect();
    assert_eq!(kernels, [kernel], "{}", module.program());
    check_graph(&graph, &Bindings::new(), &inputs, tolerance);
}

/// Checks a graph whose operations, changes of view of its inputs aside, are one group: that this kernel
/// runs it, and that it agrees with the reference, twice in a row on one arena.
pub(crate) fn check_group(
    graph: &Graph,
    family: Family,
    bindings: &Bindings,
    inputs: &[Tensor],
    kernel: &str,
    tolerance: f64,
) {
    let expected = evaluate_with(graph, inputs, bindings).expect("the reference takes the graph");
    let mut executable = group(graph, family, bindings, kernel);
    for run in 0..2 {
        let actual = executable.run(inputs).expect("the program runs");
        assert_eq!(actual.len(), expected.len());
        for (i, (actual, expected)) in actual.iter().zip(&expected).enumerate() {
            let place = format!("{kernel} run {run} output {i}\n{}", executable.program());
            check_tensor(actual, expected, tolerance, &place);
        }
    }
}

/// Random inputs for the graph: small numbers, so that exponentials and integer sums stay in range.
pub(crate) fn random_inputs(
    graph: &Graph,
    bindings: &Bindings,
    random: &mut Random,
) -> Vec<Tensor> {
    let types = graph.inputs().iter().map(|id| graph.ty(id.value()).clone());
    types
        .map(|ty| {
            let shape = ty.bound_shape(bindings).unwrap();
            random.tensor(ty.dtype, shape)
        })
        .collect()
}

/// Checks that library and fused execution agree with the reference, twice in a row on one arena.
pub(crate) fn check_graph(graph: &Graph, bindings: &Bindings, inputs: &[Tensor], tolerance: f64) {
    let expected = evaluate_with(graph, inputs, bindings).expect("the reference takes the graph");
    for granularity in [Granularity::PerOp, Granularity::Fused] {
        let mut executable = executable(graph, bindings, granularity);
        for run in 0..2 {
            let actual = executable.run(inputs).expect("the program runs");
            assert_eq!(actual.len(), expected.len());
            for (i, (actual, expected)) in actual.iter().zip(&expected).enumerate() {
                let place =
                    format!("{granularity:?} run {run} output {i}\n{}", executable.program());
                check_tensor(actual, expected, tolerance, &place);
            }
        }
    }
}

/// A graph as one group of this family behind changes of view; this kernel runs it.
pub(crate) fn group(
    graph: &Graph,
    family: Family,
    bindings: &Bindings,
    kernel: &str,
) -> Executable {
    let groups = one_group(graph, family);
    let program = lower(graph, &groups, &Target::cpu(2), Granularity::Fused);
    let program = program.expect("the groups can be lowered");
    let module = Module::compile(program).expect("its weights can be made");
    let last = module.kernels().filter(|&kernel| kernel != "copy").last();
    // Weights of bf16, if they can be prepacked, are multiplied by kernels that differ in nothing else.
    let last = last.map(|kernel| kernel.strip_prefix("bf16-").unwrap_or(kernel));
    assert_eq!(last, Some(kernel), "{}", module.program());
    module.executable(bindings).expect("the program can be bound")
}

/// All operations in one group of this family, changes of view of sources before it and others after it.
fn one_group(graph: &Graph, family: Family) -> Groups {
    let is_view = |op: &Op| {
        matches!(
            op,
            Op::Reshape(_) | Op::BitCast(_) | Op::Transpose(_) | Op::Expand(_) | Op::Slice(_)
        )
    };
    let mut given = vec![false; graph.len()];
    let (mut before, mut nodes, mut after) = (Vec::new(), Vec::new(), Vec::new());
    for (id, node) in graph.nodes() {
        let view = is_view(node.op());
        let mut values = node.inputs().iter().flatten();
        given[id.index()] = match Family::of(node.op()) {
            None => true,
            Some(_) => view && values.all(|value| given[value.node.index()]),
        };
        match (Family::of(node.op()), view) {
            (None, _) => {}
            (Some(_), false) => nodes.push(id),
            (Some(_), true) if given[id.index()] => before.push((Family::View, vec![id])),
            (Some(_), true) => after.push((Family::View, vec![id])),
        }
    }
    before.push((family, nodes));
    before.extend(after);
    Groups::new(graph, &Target::cpu(2), before).expect("the group can run")
}

fn check_tensor(actual: &Tensor, expected: &Tensor, tolerance: f64, place: &str) {
    assert_eq!(actual.dtype(), expected.dtype(), "{place}");
    assert_eq!(actual.shape(), expected.shape(), "{place}");
    let (actual, expected) = (numbers(actual), numbers(expected));
    for (i, (&a, &e)) in actual.iter().zip(&expected).enumerate() {
        let near = (a - e).abs() <= tolerance * (1.0 + e.abs());
        assert!(
            near || a == e || (a.is_nan() && e.is_nan()),
            "element {i}: {a} against {e}\n{place}"
        );
    }
}

/// The elements as f64.
pub(crate) fn numbers(tensor: &Tensor) -> Vec<f64> {
    match tensor.dtype() {
        DType::F32 => tensor.as_slice::<f32>().unwrap().iter().map(|&x| x.into()).collect(),
        DType::F64 => tensor.as_slice::<f64>().unwrap().to_vec(),
        DType::F16 => tensor.as_slice::<half::f16>().unwrap().iter().map(|x| x.to_f64()).collect(),
        DType::BF16 => {
            tensor.as_slice::<half::bf16>().unwrap().iter().map(|x| x.to_f64()).collect()
        }
        DType::I64 => tensor.as_slice::<i64>().unwrap().iter().map(|&x| x as f64).collect(),
        DType::I32 => tensor.as_slice::<i32>().unwrap().iter().map(|&x| x.into()).collect(),
        DType::U8 => tensor.as_slice::<u8>().unwrap().iter().map(|&x| x.into()).collect(),
        DType::Bool => tensor.bytes().iter().map(|&x| x.into()).collect(),
        other => panic!("the suite makes no {other}"),
    }
}

/// A small reproducible generator (splitmix64).
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub(crate) fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }

    fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }

    pub(crate) fn tensor(&mut self, dtype: DType, shape: Vec<usize>) -> Tensor {
        let n: usize = shape.iter().product();
        let real: Vec<f64> = (0..n).map(|_| self.unit() * 4.0 - 2.0).collect();
        let whole: Vec<i64> = real.iter().map(|x| (x * 4.0) as i64).collect();
        match dtype {
            DType::F32 => Tensor::from_vec(shape, real.iter().map(|&x| x as f32).collect()),
            DType::F64 => Tensor::from_vec(shape, real),
            DType::F16 => {
                Tensor::from_vec(shape, real.iter().map(|&x| half::f16::from_f64(x)).collect())
            }
            DType::BF16 => {
                Tensor::from_vec(shape, real.iter().map(|&x| half::bf16::from_f64(x)).collect())
            }
            DType::I64 => Tensor::from_vec(shape, whole),
            DType::I32 => Tensor::from_vec(shape, whole.iter().map(|&x| x as i32).collect()),
            DType::U8 => {
                Tensor::from_vec(shape, whole.iter().map(|&x| x.unsigned_abs() as u8).collect())
            }
            DType::Bool => Tensor::from_bools(shape, whole.iter().map(|x| x % 2 == 0).collect()),
            other => panic!("the suite makes no {other}"),
        }
        .unwrap()
    }
}
