//! Steps that have the same kernels, as those of a model's layers do.

use crate::base::program::{Buffer, Operand, Program, Step, StepId};
use graphene_frontend::Graph;
use std::collections::HashMap;

/// For each step of a program the first one that is alike: it computes the same, up to names, from and to operands that lie
/// the same way. [`launches`](super::launches) of the first are right for all of them, so that they need to be made once.
pub fn first_alike(program: &Program) -> Vec<StepId> {
    // Steps that none before them is like, by what is compared fast.
    let mut firsts: HashMap<_, Vec<StepId>> = HashMap::new();
    let steps = program.step_ids().zip(program.steps()).map(|(id, step)| {
        let key = (step.family, step.body.len(), step.inputs.len(), step.outputs.len());
        let firsts = firsts.entry(key).or_default();
        let alike = |first: &&StepId| are_alike(program, program.step(**first), step);
        firsts.iter().find(alike).copied().unwrap_or_else(|| {
            firsts.push(id);
            id
        })
    });
    steps.collect()
}

/// Whether all that kernels are made of is the same. Fields are named one by one, so that a new one has to be looked at here.
pub(crate) fn are_alike(program: &Program, a: &Step, b: &Step) -> bool {
    let Step {
        family,
        executor,
        variants,
        body,
        inputs,
        outputs,
        // Binding's alone.
        origin: _,
        name: _,
        nodes: _,
        in_place: _,
    } = a;
    let lie_alike = |a: &[Operand], b: &[Operand]| {
        a.len() == b.len() && a.iter().zip(b).all(|(a, b)| lie_alike(program, a, b))
    };
    (family, executor, variants) == (&b.family, &b.executor, &b.variants)
        && compute_the_same(body, &b.body)
        && lie_alike(inputs, &b.inputs)
        && lie_alike(outputs, &b.outputs)
}

fn lie_alike(program: &Program, a: &Operand, b: &Operand) -> bool {
    let [of_a, of_b] = [a, b].map(|operand| program.buffer(operand.buffer));
    // Of its kind, kernels know whether it is a weight; names are for reports.
    let Buffer { name: _, dtype, elements, kind: _ } = of_a;
    a.view == b.view
        && (dtype, elements) == (&of_b.dtype, &of_b.elements)
        && of_a.is_weight() == of_b.is_weight()
}

/// Up to names.
fn compute_the_same(a: &Graph, b: &Graph) -> bool {
    let mut nodes = a.nodes().zip(b.nodes()).map(|((_, a), (_, b))| (a, b));
    a.len() == b.len()
        && a.inputs() == b.inputs()
        && a.given() == b.given()
        && nodes.all(|(a, b)| {
            (a.inputs(), a.outputs(), a.op()) == (b.inputs(), b.outputs(), b.op())
                // 0 and -0 are equal numbers; texts tell them apart.
                && format!("{:?}", a.op()) == format!("{:?}", b.op())
        })
}

#[cfg(test)]
mod tests {
    use super::first_alike;
    use crate::partition::Granularity;
    use crate::plan;
    use graphene_frontend::dim::{Bindings, Dim};
    use graphene_frontend::{DType, Graph, Op, Tensor, TensorType};

    /// The third matmul repeats the first; each other step differs from all in one thing.
    #[test]
    fn steps_that_differ_in_anything_are_not_alike() {
        let mut graph = Graph::new();
        let mut input = |name: &str, dtype, columns: i64| {
            let ty = TensorType::new(dtype, vec![Dim::from(8), Dim::from(columns)]);
            graph.add_input(name, ty).expect("a type")
        };
        let [a, b] = ["a", "b"].map(|name| input(name, DType::F32, 8));
        let (half, narrow) = (input("half", DType::F16, 8), input("narrow", DType::F32, 4));
        let weight = Tensor::zeros(DType::F32, vec![8, 8]).expect("so few elements");
        let weight = graph.add_constant("weight", weight);
        let mut add = |name: &str, op: Op, inputs: &[_]| {
            let inputs: Vec<_> = inputs.iter().copied().map(Some).collect();
            let value = graph.add(name, op, &inputs).expect("it takes these").value();
            graph.add_output(name, value);
            value
        };
        let first = add("first", Op::MatMul, &[a, b]);
        add("by a weight", Op::MatMul, &[a, weight]);
        add("repeated", Op::MatMul, &[first, b]);
        add("of other elements", Op::MatMul, &[half, half]);
        add("of other sizes", Op::MatMul, &[a, narrow]);
        add("of rows", Op::Softmax { axis: 1, log: false }, &[a]);
        add("of columns", Op::Softmax { axis: 0, log: false }, &[a]);
        let target = "sm_90a".parse().expect("a target");
        let planned = plan(&graph, &target, Granularity::PerOp, &Bindings::new());
        let program = planned.expect("it is planned").program;
        let alike = program.step_ids().zip(first_alike(&program)).filter(|(id, first)| id != first);
        let alike: Vec<_> = alike
            .map(|(id, first)| [id, first].map(|id| program.step(id).nodes.join(" ")))
            .collect();
        assert_eq!(alike, [["repeated", "first"]]);
        assert_eq!(program.steps().len(), 7);
    }
}
