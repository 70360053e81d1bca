//! Loops that are a sum, and a function of it.

use super::scalar::fast_unary;
use super::{Loop, Operation, Source};
use crate::cpu::kernels::pointwise::Unary;
use graphene_frontend::dtype::DType;
use graphene_frontend::op::Binary;

/// A loop over numbers in single precision that adds some of its inputs to another one.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Sum {
    /// The numbers of the inputs that are added, in order.
    pub(crate) added: Vec<usize>,
    /// A function of the sum.
    pub(crate) function: Option<Unary>,
}

impl Loop {
    /// The loop as what is added to the input of this number; `None` if it does something else.
    pub(crate) fn sum(&self, result: usize) -> Option<Sum> {
        let mut value = Source::Input(result);
        let mut sum = Sum { added: Vec::new(), function: None };
        for instruction in &self.instructions {
            match (instruction.operation, &instruction.sources[..]) {
                _ if instruction.dtype != DType::F32 || sum.function.is_some() => return None,
                (Operation::Binary(Binary::Add), &[a, b]) if a == value || b == value => {
                    match if a == value { b } else { a } {
                        Source::Input(other) if other != result => sum.added.push(other),
                        _ => return None,
                    }
                }
                (Operation::Unary(unary), &[x]) if x == value => {
                    sum.function = Some(fast_unary(unary)?);
                }
                _ => return None,
            }
            value = Source::Register(instruction.target);
        }
        let single = self.inputs.iter().all(|&(dtype, _)| dtype == DType::F32);
        let stored = self.instructions.last()?.stored == Some(0) && self.outputs.len() == 1;
        (single && stored).then_some(sum)
    }
}

#[cfg(test)]
mod tests {
    use super::{Loop, Sum, Unary};
    use graphene_frontend::dim::Dim;
    use graphene_frontend::dtype::DType;
    use graphene_frontend::graph::{Graph, ValueId};
    use graphene_frontend::op::{Binary, Op, Unary as Function};
    use graphene_frontend::types::TensorType;

    /// A loop over three inputs of 3 rows and 8 columns, the second one a single row.
    fn sum(dtype: DType, body: impl Fn(&mut Graph, [ValueId; 3]) -> ValueId) -> Option<Sum> {
        let mut graph = Graph::new();
        let inputs = [("x", 3), ("b", 1), ("r", 3)].map(|(name, rows)| {
            let shape = [rows, 8].map(Dim::from).to_vec();
            graph.add_input(name, TensorType::new(dtype, shape)).unwrap()
        });
        let y = body(&mut graph, inputs);
        graph.add_output("y", y);
        Loop::compile(&graph).unwrap().sum(0)
    }

    fn op(graph: &mut Graph, op: Op, inputs: &[ValueId]) -> ValueId {
        let inputs: Vec<_> = inputs.iter().copied().map(Some).collect();
        graph.add("y", op, &inputs).unwrap().value()
    }

    fn add(graph: &mut Graph, x: ValueId, y: ValueId) -> ValueId {
        op(graph, Op::Binary(Binary::Add), &[x, y])
    }

    #[test]
    fn sums_and_a_function_of_them() {
        let found = sum(DType::F32, |graph, [x, b, r]| {
            let y = add(graph, b, x);
            let y = add(graph, y, r);
            op(graph, Op::Unary(Function::Gelu), &[y])
        });
        assert_eq!(found, Some(Sum { added: vec![1, 2], function: Some(Unary::Gelu) }));
        let found = sum(DType::F32, |graph, [x, b, _]| add(graph, x, b));
        assert_eq!(found, Some(Sum { added: vec![1], function: None }));
    }

    /// What is added twice, added to a function, no sum, or rounded on the way.
    #[test]
    fn other_loops_are_none() {
        let twice = |graph: &mut Graph, [x, b, _]: [ValueId; 3]| {
            let y = add(graph, x, b);
            add(graph, y, x)
        };
        let late = |graph: &mut Graph, [x, b, _]: [ValueId; 3]| {
            let y = op(graph, Op::Unary(Function::Relu), &[x]);
            add(graph, y, b)
        };
        let product = |graph: &mut Graph, [x, b, _]: [ValueId; 3]| {
            op(graph, Op::Binary(Binary::Mul), &[x, b])
        };
        let plain = |graph: &mut Graph, [x, b, _]: [ValueId; 3]| add(graph, x, b);
        assert_eq!(sum(DType::F32, twice), None);
        assert_eq!(sum(DType::F32, late), None);
        assert_eq!(sum(DType::F32, product), None);
        assert_eq!(sum(DType::F16, plain), None);
    }
}
