//! Weights laid out for products, once, when a program is compiled: what fused execution's products and
//! recurrent layers multiply by. Library execution takes them as they lie, as a library's call does.

use super::kernels::matmul::{Matrix, Strides};
use super::kernels::packed::Packed;
use super::run::{cell, widened};
use crate::bind::{BoundOperand, bind_operand};
use crate::error::{Error, Result};
use bytemuck::cast_slice;
use graphene_frontend::dim::Bindings;
use graphene_frontend::dtype::DType;
use graphene_frontend::op::{Op, RnnAttrs};
use graphene_frontend::tensor::Tensor;
use graphene_fusion::groups::Executor;
use graphene_fusion::program::{BufferKind, Program, Step};
use half::{bf16, f16};
use rayon::iter::{IntoParallelRefIterator, ParallelIterator};
use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;

/// Which weights are to be laid out.
pub(crate) struct Packing {
    /// Views of weights as matrices, each once, however many products read it.
    matrices: Vec<BoundOperand>,
    /// For each step and each of its inputs the numbers of its matrices.
    numbers: Vec<Vec<Vec<usize>>>,
}

/// The matrices that a step's inputs were laid out as: for each input none or one; for a recurrent layer's weights some
/// for each direction.
pub(crate) type Laid = Vec<Vec<Arc<Packed>>>;

impl Packing {
    /// What can be laid out of a program's weights.
    pub(crate) fn of(program: &Program) -> Self {
        let mut packing = Self { matrices: Vec::new(), numbers: Vec::new() };
        for step in program.steps() {
            let mut numbers = vec![Vec::new(); step.inputs.len()];
            for (input, matrices) in matrices(program, step) {
                numbers[input] =
                    matrices.into_iter().map(|matrix| packing.number(matrix)).collect();
            }
            packing.numbers.push(numbers);
        }
        packing
    }

    fn number(&mut self, matrix: BoundOperand) -> usize {
        let known = self.matrices.iter().position(|known| *known == matrix);
        known.unwrap_or_else(|| {
            self.matrices.push(matrix);
            self.matrices.len() - 1
        })
    }

    /// Nothing is laid out.
    pub(crate) fn none(program: &Program) -> Self {
        let numbers = program.steps().iter().map(|step| vec![Vec::new(); step.inputs.len()]);
        let numbers = numbers.collect();
        Self { matrices: Vec::new(), numbers }
    }

    /// Bytes that it takes; `u64::MAX` if they are more.
    pub(crate) fn bytes(&self) -> u64 {
        let bytes = self.matrices.iter().map(|matrix| {
            let [depth, columns] = sizes(matrix);
            Packed::bytes(depth, columns).map_or(u64::MAX, |bytes| bytes as u64)
        });
        bytes.fold(0, u64::saturating_add)
    }

    /// Lays the weights out; `weights` has the elements of each buffer that is one.
    ///
    /// # Errors
    /// [`Error::Memory`].
    pub(crate) fn lay(&self, weights: &[Option<Tensor>]) -> Result<Vec<Laid>> {
        let lay = |matrix: &BoundOperand| {
            let weight = weights[matrix.buffer.index()].as_ref();
            let weight = weight.ok_or(Error::Shared { buffer: matrix.buffer })?;
            pack(matrix, weight.bytes(), weight.dtype()).map(Arc::new)
        };
        let laid: Vec<Arc<Packed>> = self.matrices.par_iter().map(lay).collect::<Result<_>>()?;
        let of = |numbers: &Vec<usize>| numbers.iter().map(|&n| Arc::clone(&laid[n])).collect();
        Ok(self.numbers.iter().map(|inputs| inputs.iter().map(of).collect()).collect())
    }
}

/// A step's inputs that products multiply by, and the matrices that each of them is.
fn matrices(program: &Program, step: &Step) -> Vec<(usize, Vec<BoundOperand>)> {
    let mut found = Vec::new();
    for (_, node) in step.body.nodes() {
        let places: &[usize] = match node.op() {
            Op::MatMul => &[1],
            Op::Rnn(_) => &[1, 2],
            _ => &[],
        };
        for &place in places {
            let value = node.inputs().get(place).copied().flatten();
            let input = step.body.inputs().iter().position(|input| Some(input.value()) == value);
            let Some(input) = input else { continue };
            let Some(weight) = weight(program, step, input) else { continue };
            let matrices = match (node.op(), place) {
                (Op::Rnn(attrs), 1) => directions(&weight, &[0..cell(attrs.cell).gates()], attrs),
                (Op::Rnn(attrs), _) => directions(&weight, cell(attrs.cell).parts(), attrs),
                _ => single(weight).into_iter().collect(),
            };
            found.push((input, matrices));
        }
    }
    found
}

/// A step's input, if it is a weight of numbers that are multiplied in single precision.
fn weight(program: &Program, step: &Step, input: usize) -> Option<BoundOperand> {
    let operand = &step.inputs[input];
    let buffer = program.buffer(operand.buffer);
    let number = matches!(buffer.dtype, DType::F32 | DType::F16 | DType::BF16);
    let weight = matches!(buffer.kind, BufferKind::Weight(_));
    if !number || !weight || step.executor != Executor::Template {
        return None;
    }
    bind_operand(operand, &Bindings::default()).ok()
}

/// A weight as one matrix, if it is one.
fn single(mut weight: BoundOperand) -> Option<BoundOperand> {
    let lead = weight.shape.len().checked_sub(2)?;
    weight.strides.drain(..lead);
    let one = weight.shape.drain(..lead).all(|size| size == 1);
    one.then_some(weight)
}

/// A recurrent layer's weights `[d, gates·h, k]` as matrices `[k, columns]`, one for each direction and range of gates.
pub(crate) fn directions(
    weight: &BoundOperand,
    parts: &[Range<usize>],
    attrs: &RnnAttrs,
) -> Vec<BoundOperand> {
    let (&[count, _, depth], &[apart, down, across]) = (&weight.shape[..], &weight.strides[..])
    else {
        return Vec::new();
    };
    let of = |direction: usize, gates: &Range<usize>| {
        let first = direction as isize * apart + (gates.start * attrs.hidden) as isize * down;
        BoundOperand {
            buffer: weight.buffer,
            offset: (weight.offset as isize + first) as usize,
            shape: vec![depth, gates.len() * attrs.hidden],
            strides: vec![across, down],
        }
    };
    (0..count).flat_map(|direction| parts.iter().map(move |gates| of(direction, gates))).collect()
}

fn sizes(matrix: &BoundOperand) -> [usize; 2] {
    [matrix.shape[0], matrix.shape[1]]
}

/// Lays a matrix out; `bytes` are those of its buffer.
///
/// # Errors
/// As [`Packed::new`].
pub(crate) fn pack(matrix: &BoundOperand, bytes: &[u8], dtype: DType) -> Result<Packed> {
    let elements: Cow<'_, [f32]> = match dtype {
        DType::F16 => Cow::Owned(widened::<f16>(cast_slice(bytes))?),
        DType::BF16 => Cow::Owned(widened::<bf16>(cast_slice(bytes))?),
        _ => Cow::Borrowed(cast_slice(bytes)),
    };
    let [depth, columns] = sizes(matrix);
    let [row, column] = [matrix.strides[0], matrix.strides[1]];
    let at = Strides { offset: matrix.offset, batch: &[], row, column };
    Packed::new(Matrix { data: &elements, at }, depth, columns)
}

#[cfg(test)]
mod tests {
    use super::Packing;
    use crate::cpu::Module;
    use graphene_frontend::dim::{Bindings, Dim};
    use graphene_frontend::dtype::DType;
    use graphene_frontend::graph::Graph;
    use graphene_frontend::op::{Op, RnnAttrs, RnnCell, RnnDirection, Unary};
    use graphene_frontend::tensor::Tensor;
    use graphene_frontend::types::TensorType;
    use graphene_fusion::{Granularity, plan};
    use graphene_ir::target::Target;

    fn weight(graph: &mut Graph, shape: &[usize]) -> graphene_frontend::graph::ValueId {
        let len = shape.iter().product::<usize>();
        let elements = (0..len).map(|i| ((i * 7919) % 1013) as f32 * 2e-3 - 1.0).collect();
        let tensor = Tensor::from_vec::<f32>(shape.to_vec(), elements).expect("as many elements");
        graph.add_constant("w", tensor)
    }

    fn input(graph: &mut Graph, shape: &[usize]) -> graphene_frontend::graph::ValueId {
        let shape = shape.iter().map(|&size| Dim::from(size)).collect();
        graph.add_input("x", TensorType::new(DType::F32, shape)).expect("a name of its own")
    }

    /// Outputs of a graph run by either plan, and the matrices that were laid out for each.
    fn run(graph: &Graph, x: &Tensor, limit: u64) -> [(Vec<f32>, usize); 2] {
        [Granularity::Fused, Granularity::PerOp].map(|granularity| {
            let planned = plan(graph, &Target::cpu(2), granularity, &Bindings::new());
            let program = planned.expect("it is planned").program;
            let count = Packing::of(&program).matrices.len();
            let module = Module::compile_within(program, limit).expect("it is compiled");
            let mut executable = module.bind(&Bindings::new()).expect("it is bound");
            let outputs = executable.run(std::slice::from_ref(x)).expect("it runs");
            (outputs[0].as_slice().expect("floats").to_vec(), count)
        })
    }

    fn assert_near(got: &[f32], want: &[f32]) {
        assert_eq!(got.len(), want.len());
        for (got, want) in got.iter().zip(want) {
            assert!((got - want).abs() <= 1e-5 * want.abs().max(1.0), "{got} {want}");
        }
    }

    #[test]
    fn weights_that_products_share_are_laid_out_once_and_for_fused_execution_only() {
        let mut graph = Graph::new();
        let w = weight(&mut graph, &[40, 40]);
        let mut x = input(&mut graph, &[3, 40]);
        for _ in 0..3 {
            let product = graph.add("product", Op::MatMul, &[Some(x), Some(w)]).expect("one");
            x = graph
                .add("y", Op::Unary(Unary::Tanh), &[Some(product.value())])
                .expect("one")
                .value();
        }
        graph.add_output("y", x);
        let x = Tensor::from_vec(vec![3, 40], vec![0.25_f32; 120]).expect("120");
        let [(fused, laid), (library, left)] = run(&graph, &x, u64::MAX);
        assert_eq!((laid, left), (1, 0));
        assert_near(&fused, &library);
        // Without room for it products take the weight as it lies.
        let [(within, _), _] = run(&graph, &x, 40);
        assert_near(&within, &library);
    }

    /// Every cell and direction: their gates' products are cut in different ways.
    #[test]
    fn recurrent_weights_are_laid_out_for_each_direction_and_part() {
        let cells = [
            (RnnCell::Lstm { input_forget: false }, 4, 2),
            (RnnCell::Gru { linear_before_reset: true }, 3, 2),
            (RnnCell::Gru { linear_before_reset: false }, 3, 3),
            (RnnCell::Plain, 1, 2),
        ];
        let directions = [
            (RnnDirection::Forward, 1),
            (RnnDirection::Reverse, 1),
            (RnnDirection::Bidirectional, 2),
        ];
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
                let [(fused, laid), (library, left)] = run(&graph, &x.expect("all"), u64::MAX);
                assert_eq!((laid, left), (matrices * count, 0), "{cell:?} {direction:?}");
                assert_near(&fused, &library);
            }
        }
    }
}
