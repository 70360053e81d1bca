//! Weights laid out for products, once, when a program is compiled: the right operands of fused execution's products.
//! Library execution's products take them as they lie, as a library's call does.

use super::kernels::matmul::{Matrix, Strides};
use super::kernels::packed::Packed;
use super::run::widened;
use crate::bind::{BoundOperand, bind_operand};
use crate::error::{Error, Result};
use bytemuck::cast_slice;
use graphene_frontend::dim::Bindings;
use graphene_frontend::dtype::DType;
use graphene_frontend::op::Op;
use graphene_frontend::tensor::Tensor;
use graphene_fusion::groups::Executor;
use graphene_fusion::program::{BufferKind, Program, Step};
use half::{bf16, f16};
use rayon::iter::{IntoParallelRefIterator, ParallelIterator};
use std::borrow::Cow;
use std::sync::Arc;

/// Which weights are to be laid out.
pub(crate) struct Packing {
    /// Views of weights as matrices, each once, however many products read it.
    matrices: Vec<BoundOperand>,
    /// For each step and each of its inputs the number of its matrix, if it has one.
    numbers: Vec<Vec<Option<usize>>>,
}

/// Weights laid out: for each step and each of its inputs.
pub(crate) type Laid = Vec<Vec<Option<Arc<Packed>>>>;

impl Packing {
    /// What can be laid out of a program's weights.
    pub(crate) fn of(program: &Program) -> Self {
        let mut packing = Self { matrices: Vec::new(), numbers: Vec::new() };
        for step in program.steps() {
            let mut numbers = vec![None; step.inputs.len()];
            for input in right_operands(step) {
                numbers[input] = matrix(program, step, input).map(|found| {
                    let known = packing.matrices.iter().position(|matrix| *matrix == found);
                    known.unwrap_or_else(|| {
                        packing.matrices.push(found);
                        packing.matrices.len() - 1
                    })
                });
            }
            packing.numbers.push(numbers);
        }
        packing
    }

    /// Nothing is laid out.
    pub(crate) fn none(program: &Program) -> Self {
        let numbers = program.steps().iter().map(|step| vec![None; step.inputs.len()]).collect();
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
    pub(crate) fn lay(&self, weights: &[Option<Tensor>]) -> Result<Laid> {
        let lay = |matrix: &BoundOperand| {
            let weight = weights[matrix.buffer.index()].as_ref();
            let weight = weight.ok_or(Error::Shared { buffer: matrix.buffer })?;
            pack(matrix, weight).map(Arc::new)
        };
        let laid: Vec<Arc<Packed>> = self.matrices.par_iter().map(lay).collect::<Result<_>>()?;
        let of = |number: &Option<usize>| number.map(|number| Arc::clone(&laid[number]));
        Ok(self.numbers.iter().map(|numbers| numbers.iter().map(of).collect()).collect())
    }
}

/// The inputs of a step that are right operands of its body's products.
fn right_operands(step: &Step) -> impl Iterator<Item = usize> {
    let products = step.body.nodes().filter(|(_, node)| matches!(node.op(), Op::MatMul));
    products.filter_map(|(_, node)| {
        let right = node.inputs().get(1).copied().flatten()?;
        step.body.inputs().iter().position(|input| input.value() == right)
    })
}

/// A step's input as a matrix, if it is a weight of numbers that are multiplied in single precision.
fn matrix(program: &Program, step: &Step, input: usize) -> Option<BoundOperand> {
    let operand = &step.inputs[input];
    let buffer = program.buffer(operand.buffer);
    let number = matches!(buffer.dtype, DType::F32 | DType::F16 | DType::BF16);
    let weight = matches!(buffer.kind, BufferKind::Weight(_));
    if !number || !weight || step.executor != Executor::Template {
        return None;
    }
    let mut matrix = bind_operand(operand, &Bindings::default()).ok()?;
    let lead = matrix.shape.len().checked_sub(2)?;
    if matrix.shape.drain(..lead).any(|size| size != 1) {
        return None;
    }
    matrix.strides.drain(..lead);
    Some(matrix)
}

fn sizes(matrix: &BoundOperand) -> [usize; 2] {
    [matrix.shape[0], matrix.shape[1]]
}

fn pack(matrix: &BoundOperand, weight: &Tensor) -> Result<Packed> {
    let bytes = weight.bytes();
    let elements: Cow<'_, [f32]> = match weight.dtype() {
        DType::F16 => Cow::Owned(widened::<f16>(cast_slice(bytes))?),
        DType::BF16 => Cow::Owned(widened::<bf16>(cast_slice(bytes))?),
        _ => Cow::Borrowed(cast_slice(bytes)),
    };
    let [depth, columns] = sizes(matrix);
    let [row, column] = [matrix.strides[0], matrix.strides[1]];
    let at = Strides { offset: matrix.offset, batch: &[], row, column };
    Packed::new(Matrix { data: &elements, at }, depth, columns)
}
