//! Matrix products.

use super::{required_input, with_row_major};
use crate::bind::BoundOperand;
use crate::cpu::kernels::gemm::batch_offset;
use crate::cpu::kernels::int8::{PackedIntegers, multiply_integers};
use crate::cpu::kernels::integer::{Integer, matmul_integers};
use crate::cpu::kernels::matmul::{
    Element, Half, Matrix, MatrixMut, Size, Strides, matmul, matmul_half,
};
use crate::cpu::kernels::view::{Axes, check_size};
use crate::cpu::memory::Io;
use crate::error::{Error, Result};
use bytemuck::{Pod, cast_slice, cast_slice_mut};
use graphene_frontend::dtype::DType;
use graphene_fusion::program::Step;
use half::{bf16, f16};

pub(crate) fn run_matmul(step: &Step, mut io: Io<'_>) -> Result<()> {
    let (a, a_at, dtype) = io.input(required_input(step, 0)?)?;
    let (b, b_at, _) = io.input(required_input(step, 1)?)?;
    let output = &mut io.outputs[0];
    let matmul = MatMul::new(a_at, b_at, output.operand)?;
    match dtype {
        DType::F64 => matmul.run::<f64>(1.0, a, b, output.bytes),
        DType::F16 => matmul.run_half::<f16>(a, b, output.bytes),
        DType::I32 => matmul.run_integers::<i32>(a, b, output.bytes),
        DType::I64 => matmul.run_integers::<i64>(a, b, output.bytes),
        DType::U32 => matmul.run_integers::<u32>(a, b, output.bytes),
        DType::U64 => matmul.run_integers::<u64>(a, b, output.bytes),
        DType::BF16 => matmul.run_half::<bf16>(a, b, output.bytes),
        _ => matmul.run::<f32>(1.0, a, b, output.bytes),
    }
}

/// A matmul of integers of 32 bits, whose right operand was prepacked.
pub(crate) fn run_integer_matmul(
    step: &Step,
    mut io: Io<'_>,
    packed: &PackedIntegers,
) -> Result<()> {
    let (a, a_at, _) = io.input(required_input(step, 0)?)?;
    let data: &[i32] = cast_slice(a);
    let (_, columns) = packed.sizes();
    let ([batch @ .., m, k], [apart @ .., row, column]) = (&a_at.shape[..], &a_at.strides[..])
    else {
        return Err(Error::Unsupported { what: "a matmul of vectors" });
    };
    // Matrices one after the other are one.
    let (mut rows, mut row, mut lead) = (*m, *row, batch.len());
    while lead > 0 && (batch[lead - 1] == 1 || rows == 1 || apart[lead - 1] == row * rows as isize)
    {
        lead -= 1;
        if rows == 1 {
            row = apart[lead];
        }
        rows *= batch[lead];
    }
    let (batch, apart) = (&batch[..lead], &apart[..lead]);
    with_row_major(&mut io.outputs, |mut outputs| {
        let c: &mut [i32] = cast_slice_mut(outputs[0]);
        let len = batch.iter().product::<usize>() * rows * columns;
        check_size("elements of the matmul", len, c.len())?;
        if len == 0 {
            return Ok(());
        }
        c.chunks_mut(rows * columns).enumerate().try_for_each(|(index, c)| {
            let offset = a_at.offset as isize + batch_offset(index, batch, apart);
            let at = Strides { offset: offset as usize, batch: &[], row, column: *column };
            multiply_integers(*k, Matrix { data, at }, packed, c)
        })
    })
}

/// A batched matmul: its sizes, and per operand the offset, the batch strides and those of the last two dims.
struct MatMul {
    batch: Axes<usize>,
    sizes: [usize; 3],
    offsets: [usize; 3],
    batch_strides: [Axes<isize>; 3],
    last: [[isize; 2]; 3],
}

impl MatMul {
    fn new(a: &BoundOperand, b: &BoundOperand, c: &BoundOperand) -> Result<Self> {
        let rank = c.shape.len();
        let lead = rank.checked_sub(2).ok_or(Error::Unsupported { what: "a matmul of vectors" })?;
        let (m, n) = (c.shape[lead], c.shape[lead + 1]);
        let k = *a.shape.last().unwrap_or(&0);
        for (what, operand, expected) in
            [("rows and columns of A", a, [m, k]), ("rows and columns of B", b, [k, n])]
        {
            let own = operand.shape.len().checked_sub(2).map(|lead| &operand.shape[lead..]);
            let own = own.ok_or(Error::Unsupported { what: "a matmul of vectors" })?;
            for (&found, expected) in own.iter().zip(expected) {
                if found != expected {
                    return Err(Error::Mismatch { what, expected, found });
                }
            }
        }
        let batch = Axes::from_slice(&c.shape[..lead]);
        let mut batch_strides = [(); 3].map(|()| Axes::new());
        let mut last = [[0; 2]; 3];
        for (i, operand) in [a, b, c].into_iter().enumerate() {
            let own = operand.shape.len() - 2;
            last[i] = [operand.strides[own], operand.strides[own + 1]];
            let missing = lead.checked_sub(own).ok_or(Error::Unsupported { what: "a batch" })?;
            batch_strides[i] = Axes::from_elem(0, missing);
            for axis in 0..own {
                let (size, expected) = (operand.shape[axis], batch[missing + axis]);
                if size != expected && size != 1 {
                    return Err(Error::Mismatch {
                        what: "batch of a matmul",
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

    fn run_integers<T: Integer + Pod>(&self, a: &[u8], b: &[u8], c: &mut [u8]) -> Result<()> {
        let a = Matrix::<T> { data: cast_slice(a), at: self.at(0) };
        let b = Matrix::<T> { data: cast_slice(b), at: self.at(1) };
        matmul_integers(self.size(), a, b, MatrixMut { data: cast_slice_mut(c), at: self.at(2) })
    }

    fn run_half<T: Half + Pod>(&self, a: &[u8], b: &[u8], c: &mut [u8]) -> Result<()> {
        let a = Matrix::<T> { data: cast_slice(a), at: self.at(0) };
        let b = Matrix::<T> { data: cast_slice(b), at: self.at(1) };
        matmul_half(self.size(), 1.0, a, b, MatrixMut { data: cast_slice_mut(c), at: self.at(2) })
    }
}
