//! Running one step: from operands to the kernels' slices.

use super::kernels::copy::copy_between;
use super::kernels::gather::gather;
use super::kernels::matmul::{Element, Matrix, MatrixMut, Size, Strides, matmul, matmul_half};
use super::kernels::norm::{Affine, Norm, norm};
use super::kernels::reduce::{Reduce, reduce};
use super::kernels::softmax::{Softmax, softmax};
use super::loops::LoopInput;
use super::memory::Storage;
use crate::bind::BoundOperand;
use crate::error::{Error, Result};
use bytemuck::{Pod, cast_slice, cast_slice_mut};
use bytes::Bytes;
use graphene_frontend::dim::Bindings;
use graphene_frontend::dtype::DType;
use graphene_frontend::eval::evaluate_with;
use graphene_frontend::tensor::Tensor;
use graphene_fusion::program::Step;
use half::{bf16, f16};

/// What a step reads and writes.
pub(crate) struct Io<'a> {
    pub(crate) inputs: Vec<Input<'a>>,
    pub(crate) outputs: Vec<Output<'a>>,
}

/// What a step reads: a view of bytes, or memory that one of its outputs overwrites.
pub(crate) enum Input<'a> {
    Bytes { bytes: &'a [u8], operand: &'a BoundOperand, dtype: DType },
    Overwritten { output: usize },
}

/// What a step writes: a view of bytes.
pub(crate) struct Output<'a> {
    pub(crate) bytes: &'a mut [u8],
    pub(crate) operand: &'a BoundOperand,
    pub(crate) dtype: DType,
}

impl<'a> Io<'a> {
    /// The inputs as a loop reads them.
    pub(crate) fn loop_inputs(&self) -> Vec<LoopInput<'a>> {
        let read = |input: &Input<'a>| match *input {
            Input::Bytes { bytes, .. } => LoopInput::Bytes(bytes),
            Input::Overwritten { output } => LoopInput::Overwritten(output),
        };
        self.inputs.iter().map(read).collect()
    }

    /// An input that no output overwrites; only loops overwrite.
    fn input(&self, i: usize) -> Result<(&'a [u8], &'a BoundOperand, DType)> {
        match self.inputs.get(i) {
            Some(&Input::Bytes { bytes, operand, dtype }) => Ok((bytes, operand, dtype)),
            Some(Input::Overwritten { .. }) | None => {
                Err(Error::Unsupported { what: "an input in place" })
            }
        }
    }

    /// An input whose elements lie in row-major order.
    fn dense<T: Pod>(&self, i: usize) -> Result<(&'a [T], &'a [usize])> {
        let (bytes, operand, _) = self.input(i)?;
        let len: usize = operand.shape.iter().product();
        Ok((&cast_slice(bytes)[operand.offset..operand.offset + len], &operand.shape))
    }
}

impl Output<'_> {
    fn dense<T: Pod>(&mut self) -> &mut [T] {
        let len: usize = self.operand.shape.iter().product();
        &mut cast_slice_mut(self.bytes)[self.operand.offset..self.operand.offset + len]
    }
}

/// Calls a function generic over the storage of elements of this many bytes.
macro_rules! by_size {
    ($size:expr, $call:ident ( $($argument:expr),* )) => {
        match $size {
            1 => $call::<u8>($($argument),*),
            2 => $call::<u16>($($argument),*),
            4 => $call::<u32>($($argument),*),
            _ => $call::<u64>($($argument),*),
        }
    };
}

pub(crate) fn run_copy(mut io: Io<'_>) -> Result<()> {
    let (bytes, from, dtype) = io.input(0)?;
    by_size!(dtype.size(), copy(&mut io.outputs[0], bytes, from))
}

fn copy<T: Pod + Default + Send + Sync>(
    output: &mut Output<'_>,
    bytes: &[u8],
    from: &BoundOperand,
) -> Result<()> {
    let to = output.operand;
    let (target, source) = (cast_slice_mut::<u8, T>(output.bytes), cast_slice::<u8, T>(bytes));
    copy_between(target, to.offset, &to.strides, &to.shape, source, from.offset, &from.strides)
}

pub(crate) fn run_matmul(mut io: Io<'_>) -> Result<()> {
    let (a, a_at, dtype) = io.input(0)?;
    let (b, b_at, _) = io.input(1)?;
    let output = &mut io.outputs[0];
    let product = Product::new(a_at, b_at, output.operand)?;
    match dtype {
        DType::F64 => product.run::<f64>(1.0, a, b, output.bytes),
        DType::F16 => product.run_half::<f16>(a, b, output.bytes),
        DType::BF16 => product.run_half::<bf16>(a, b, output.bytes),
        _ => product.run::<f32>(1.0, a, b, output.bytes),
    }
}

/// A batched product: its sizes, and per operand the offset, the batch strides and those of the last two dims.
struct Product {
    batch: Vec<usize>,
    sizes: [usize; 3],
    offsets: [usize; 3],
    batch_strides: [Vec<isize>; 3],
    last: [[isize; 2]; 3],
}

impl Product {
    fn new(a: &BoundOperand, b: &BoundOperand, c: &BoundOperand) -> Result<Self> {
        let rank = c.shape.len();
        let lead =
            rank.checked_sub(2).ok_or(Error::Unsupported { what: "a product of vectors" })?;
        let (m, n) = (c.shape[lead], c.shape[lead + 1]);
        let k = *a.shape.last().unwrap_or(&0);
        for (what, operand, expected) in
            [("rows and columns of A", a, [m, k]), ("rows and columns of B", b, [k, n])]
        {
            let own = operand.shape.len().checked_sub(2).map(|lead| &operand.shape[lead..]);
            let own = own.ok_or(Error::Unsupported { what: "a product of vectors" })?;
            for (&found, expected) in own.iter().zip(expected) {
                if found != expected {
                    return Err(Error::Mismatch { what, expected, found });
                }
            }
        }
        let batch = c.shape[..lead].to_vec();
        let mut batch_strides = [const { Vec::new() }; 3];
        let mut last = [[0; 2]; 3];
        for (i, operand) in [a, b, c].into_iter().enumerate() {
            let own = operand.shape.len() - 2;
            last[i] = [operand.strides[own], operand.strides[own + 1]];
            let missing = lead.checked_sub(own).ok_or(Error::Unsupported { what: "a batch" })?;
            batch_strides[i] = vec![0; missing];
            for axis in 0..own {
                let (size, expected) = (operand.shape[axis], batch[missing + axis]);
                if size != expected && size != 1 {
                    return Err(Error::Mismatch {
                        what: "batch of a product",
                        expected,
                        found: size,
                    });
                }
                let stride = if size == expected { operand.strides[axis] } else { 0 };
                batch_strides[i].push(stride);
            }
        }
        let offsets = [a.offset, b.offset, c.offset];
        Ok(Self { batch, sizes: [m, n, k], offsets, batch_strides, last })
    }

    fn size(&self) -> Size<'_> {
        let [m, n, k] = self.sizes;
        Size { batch: &self.batch, m, n, k }
    }

    fn at(&self, i: usize) -> Strides<'_> {
        let [row, column] = self.last[i];
        Strides { offset: self.offsets[i], batch: &self.batch_strides[i], row, column }
    }

    fn run<T: Element + Pod>(&self, one: T, a: &[u8], b: &[u8], c: &mut [u8]) -> Result<()> {
        let a = Matrix { data: cast_slice(a), at: self.at(0) };
        let b = Matrix { data: cast_slice(b), at: self.at(1) };
        matmul::<T>(self.size(), one, a, b, MatrixMut { data: cast_slice_mut(c), at: self.at(2) })
    }

    fn run_half<T: super::kernels::matmul::Half + Pod>(
        &self,
        a: &[u8],
        b: &[u8],
        c: &mut [u8],
    ) -> Result<()> {
        let a = Matrix::<T> { data: cast_slice(a), at: self.at(0) };
        let b = Matrix::<T> { data: cast_slice(b), at: self.at(1) };
        matmul_half(self.size(), 1.0, a, b, MatrixMut { data: cast_slice_mut(c), at: self.at(2) })
    }
}

pub(crate) fn run_softmax(mut io: Io<'_>, axis: usize, log: bool) -> Result<()> {
    let (source, shape) = io.dense::<f32>(0)?;
    let kind = if log { Softmax::Log } else { Softmax::Plain };
    let sizes = around(shape, axis);
    softmax(kind, io.outputs[0].dense(), source, sizes)
}

pub(crate) fn run_norm(
    step: &Step,
    mut io: Io<'_>,
    axis: usize,
    epsilon: f32,
    rms: bool,
) -> Result<()> {
    let (source, shape) = io.dense::<f32>(0)?;
    let n: usize = shape[axis..].iter().product();
    let kind = if rms { Norm::Rms } else { Norm::Layer };
    let (id, node) =
        step.body.nodes().last().ok_or(Error::Unsupported { what: "an empty body" })?;
    let operand = |i: usize| -> Result<Option<&[f32]>> {
        match node.inputs().get(i).copied().flatten() {
            None => Ok(None),
            Some(value) => {
                let number = step.body.inputs().iter().position(|input| input.value() == value);
                let number = number.ok_or(Error::Unsupported { what: "a constant operand" })?;
                Ok(Some(io.dense::<f32>(number)?.0))
            }
        }
    };
    let affine = Affine { scale: operand(1)?, bias: operand(2)?, epsilon };
    // Outputs are those of the node that something reads: y, and rarely the statistics.
    let mut y = None;
    let mut stats: [Option<&mut [f32]>; 2] = [None, None];
    for (output, (_, value)) in io.outputs.iter_mut().zip(step.body.outputs()) {
        debug_assert_eq!(value.node, id);
        match value.output {
            0 => y = Some(output.dense::<f32>()),
            i => stats[i as usize - 1] = Some(output.dense::<f32>()),
        }
    }
    let (mut spare_y, mut spare) = (Vec::new(), [Vec::new(), Vec::new()]);
    let y = y.unwrap_or_else(|| {
        spare_y.resize(source.len(), 0.0);
        &mut spare_y
    });
    let rows = source.len().checked_div(n).unwrap_or(0);
    let stats = match stats {
        [None, None] => None,
        [mean, inverse] => {
            let [spare_mean, spare_inverse] = &mut spare;
            let mean = mean.unwrap_or_else(|| {
                spare_mean.resize(rows, 0.0);
                spare_mean
            });
            let inverse = inverse.unwrap_or_else(|| {
                spare_inverse.resize(rows, 0.0);
                spare_inverse
            });
            Some((mean, inverse))
        }
    };
    norm(kind, y, source, n, affine, stats)
}

pub(crate) fn run_reduce(mut io: Io<'_>, op: Reduce, axes: &[usize]) -> Result<()> {
    let (source, shape) = io.dense::<f32>(0)?;
    reduce(op, io.outputs[0].dense(), source, shape, axes)
}

pub(crate) fn run_gather(mut io: Io<'_>, axis: usize) -> Result<()> {
    let (_, table, dtype) = io.input(0)?;
    let indices: Vec<i64> = match io.input(1)?.2 {
        DType::I32 => io.dense::<i32>(1)?.0.iter().map(|&index| index.into()).collect(),
        _ => io.dense::<i64>(1)?.0.to_vec(),
    };
    let sizes = around(&table.shape, axis);
    by_size!(dtype.size(), gather_of(&mut io, sizes, &indices))
}

fn gather_of<T: Pod + Send + Sync>(
    io: &mut Io<'_>,
    sizes: [usize; 3],
    indices: &[i64],
) -> Result<()> {
    let (source, _) = io.dense::<T>(0)?;
    gather(io.outputs[0].dense::<T>(), source, sizes, indices)
}

pub(crate) fn run_concat(mut io: Io<'_>, axis: usize) -> Result<()> {
    let size = io.outputs[0].dtype.size();
    by_size!(size, concat_of(&mut io, axis))
}

fn concat_of<T: Pod + Default + Send + Sync>(io: &mut Io<'_>, axis: usize) -> Result<()> {
    let to = io.outputs[0].operand;
    let mut at = 0;
    for i in 0..io.inputs.len() {
        let (bytes, from, _) = io.input(i)?;
        let offset = to.offset + at * to.strides[axis].unsigned_abs();
        let target = cast_slice_mut::<u8, T>(io.outputs[0].bytes);
        let source = cast_slice::<u8, T>(bytes);
        copy_between(target, offset, &to.strides, &from.shape, source, from.offset, &from.strides)?;
        at += from.shape[axis];
    }
    Ok(())
}

/// The step's body by the reference evaluator, over copies of its inputs.
pub(crate) fn run_reference(step: &Step, mut io: Io<'_>, bindings: &Bindings) -> Result<()> {
    let mut inputs = Vec::with_capacity(io.inputs.len());
    for i in 0..io.inputs.len() {
        inputs.push(match io.inputs[i] {
            Input::Bytes { bytes, operand, dtype } => owned(bytes, operand, dtype)?,
            Input::Overwritten { output } => {
                let Output { bytes, operand, dtype } = &io.outputs[output];
                owned(bytes, operand, *dtype)?
            }
        });
    }
    let results = evaluate_with(&step.body, &inputs, bindings)?;
    for (output, result) in io.outputs.iter_mut().zip(&results) {
        let from = row_major_operand(output.operand, result.shape());
        by_size!(output.dtype.size(), copy(output, result.bytes(), &from))?;
    }
    Ok(())
}

/// A row-major copy of what an operand views.
fn owned(bytes: &[u8], operand: &BoundOperand, dtype: DType) -> Result<Tensor> {
    let len: usize = operand.shape.iter().product();
    let mut copied = Storage::new(len * dtype.size())?;
    let to = row_major_operand(operand, &operand.shape);
    let mut output = Output { bytes: copied.bytes_mut(), operand: &to, dtype };
    by_size!(dtype.size(), copy(&mut output, bytes, operand))?;
    Ok(Tensor::new(dtype, operand.shape.clone(), Bytes::from_owner(copied))?)
}

fn row_major_operand(like: &BoundOperand, shape: &[usize]) -> BoundOperand {
    let mut strides = vec![1_isize; shape.len()];
    for axis in (1..shape.len()).rev() {
        strides[axis - 1] = strides[axis] * shape[axis] as isize;
    }
    BoundOperand { buffer: like.buffer, offset: 0, shape: shape.to_vec(), strides }
}

/// Sizes before, along and after an axis.
fn around(shape: &[usize], axis: usize) -> [usize; 3] {
    let outer = shape[..axis].iter().product();
    [outer, shape[axis], shape[axis + 1..].iter().product()]
}
