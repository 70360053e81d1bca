//! Elements of buffers as f32, and back.

use crate::bind::BoundOperand;
use crate::cpu::kernels::copy::copy_strided;
use crate::cpu::kernels::real::Real;
use crate::cpu::kernels::view::row_major;
use crate::cpu::loops::Domain;
use crate::error::{Error, Result};
use bytemuck::{Pod, cast_slice, cast_slice_mut};
use graphene_frontend::dtype::DType;
use half::{bf16, f16};
use std::borrow::Cow;

/// What a program reads.
#[derive(Clone, Copy)]
pub(crate) struct RowInput<'a> {
    pub(crate) bytes: &'a [u8],
    pub(crate) operand: &'a BoundOperand,
    pub(crate) dtype: DType,
}

impl RowInput<'_> {
    /// Its elements in row-major order.
    fn domain(&self) -> Result<Domain> {
        let order: Vec<usize> = (0..self.operand.shape.len()).collect();
        Domain::over(&self.operand.shape, &order, &[Some(self.operand)])
    }
}

/// Elements of a domain's only input from `start` on, as many as there is room for.
pub(super) fn read(domain: &Domain, start: usize, bytes: &[u8], dtype: DType, to: &mut [f32]) {
    match dtype {
        DType::F16 => read_as::<f16>(domain, start, bytes, to),
        DType::BF16 => read_as::<bf16>(domain, start, bytes, to),
        _ => read_as::<f32>(domain, start, bytes, to),
    }
}

fn read_as<T: Real + Pod>(domain: &Domain, start: usize, bytes: &[u8], to: &mut [f32]) {
    let elements: &[T] = cast_slice(bytes);
    let mut at = 0;
    for (from, stride, len) in domain.walk(0, start, to.len()) {
        let to = &mut to[at..at + len];
        match stride {
            1 => T::widen(to, &elements[from..from + len]),
            _ => to.iter_mut().enumerate().for_each(|(i, y)| {
                *y = elements[from.wrapping_add_signed(i as isize * stride)].to_f32();
            }),
        }
        at += len;
    }
}

/// Writes elements in their type.
pub(super) fn write(dtype: DType, to: &mut [u8], elements: &[f32]) {
    match dtype {
        DType::F16 => f16::narrow(cast_slice_mut(to), elements),
        DType::BF16 => bf16::narrow(cast_slice_mut(to), elements),
        _ => cast_slice_mut(to).copy_from_slice(elements),
    }
}

/// All elements of an input.
pub(super) fn whole<'a>(input: &RowInput<'a>) -> Result<Cow<'a, [f32]>> {
    let domain = input.domain()?;
    if domain.len == 0 {
        return Ok(Cow::Borrowed(&[]));
    }
    if let (DType::F32, Some((from, 1))) = (input.dtype, domain.run(0, 0, domain.len)) {
        return Ok(Cow::Borrowed(&cast_slice(input.bytes)[from..from + domain.len]));
    }
    let mut elements = vec![0.0; domain.len];
    read(&domain, 0, input.bytes, input.dtype, &mut elements);
    Ok(Cow::Owned(elements))
}

/// For each row of a shape the row of the table that the indices, which broadcast to it, name.
///
/// # Errors
/// [`Error::Index`] for the first index outside the table.
pub(super) fn table_rows(
    table: &RowInput<'_>,
    indices: &RowInput<'_>,
    outer: &[usize],
) -> Result<Vec<usize>> {
    let domain = indices.domain()?;
    if domain.len == 0 {
        return Ok(Vec::new());
    }
    let len = table.operand.shape.first().copied().unwrap_or(0);
    let mut rows = Vec::with_capacity(domain.len);
    for (from, stride, count) in domain.walk(0, 0, domain.len) {
        for i in 0..count {
            let at = from.wrapping_add_signed(i as isize * stride);
            let index = match indices.dtype {
                DType::I32 => i64::from(cast_slice::<u8, i32>(indices.bytes)[at]),
                _ => cast_slice::<u8, i64>(indices.bytes)[at],
            };
            rows.push(row(index, len)?);
        }
    }
    let shape = &indices.operand.shape;
    if shape == outer {
        return Ok(rows);
    }
    let own = row_major(shape);
    let lead = outer.len().saturating_sub(shape.len());
    let strides: Vec<isize> = (0..outer.len())
        .map(|axis| match axis.checked_sub(lead) {
            Some(of) if shape[of] == outer[axis] => own[of],
            _ => 0,
        })
        .collect();
    let mut all = vec![0; outer.iter().product()];
    copy_strided(&mut all, outer, &rows, 0, &strides)?;
    Ok(all)
}

/// The row that an index names; negative ones count from the end.
fn row(index: i64, len: usize) -> Result<usize> {
    let size = i64::try_from(len).unwrap_or(i64::MAX);
    let row = if index < 0 { index.checked_add(size) } else { Some(index) };
    let row = row.filter(|row| (0..size).contains(row));
    row.map(|row| row as usize).ok_or(Error::Index { index, size: len })
}
