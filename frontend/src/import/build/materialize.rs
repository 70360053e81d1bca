//! Graph values for elements known in symbols: where shape arithmetic is needed as data after all.

use super::Builder;
use crate::dim::Dim;
use crate::dtype::DType;
use crate::eval::number;
use crate::graph::ValueId;
use crate::import::error::{OpError, Reason};
use crate::import::symbolic::{Abstract, Affine, coordinates};
use crate::op::{Binary, Op};
use crate::tensor::{Tensor, checked_elements};

/// Affine constants with at most this many elements become constants; larger ones are computed when run.
const MAX_LITERAL: usize = 1 << 16;

/// A value with these elements: a constant if all is known, a broadcast scalar if all are equal, else arithmetic
/// on sizes and counters.
pub(super) fn materialize(
    builder: &mut Builder,
    dtype: DType,
    elements: &Abstract,
) -> Result<ValueId, OpError> {
    match elements {
        Abstract::Elements { shape, items } => {
            if let Some(known) = items.iter().map(Dim::known).collect::<Option<Vec<_>>>() {
                return literal(builder, dtype, shape.clone(), &known);
            }
            if let (Some(value), true) = (elements.uniform(), items.len() > 1) {
                let dims = elements.dims();
                return uniform(builder, dtype, &dims, &value);
            }
            listed(builder, dtype, shape, items)
        }
        Abstract::Affine(affine) if affine.is_uniform() => {
            uniform(builder, dtype, &affine.dims, &affine.offset)
        }
        Abstract::Affine(affine) => counted(builder, dtype, affine),
    }
}

fn literal(
    builder: &mut Builder,
    dtype: DType,
    shape: Vec<usize>,
    items: &[i64],
) -> Result<ValueId, OpError> {
    let items: Vec<i128> = items.iter().map(|&item| i128::from(item)).collect();
    let tensor = number::from_integers(dtype, shape, &items)
        .map_err(|error| Reason::Operator(error.to_string()))?;
    Ok(builder.constant(tensor))
}

fn plain(builder: &mut Builder, op: Op, inputs: &[ValueId]) -> Result<ValueId, OpError> {
    let inputs: Vec<_> = inputs.iter().copied().map(Some).collect();
    Ok(builder.add_plain(op, &inputs)?.value())
}

fn cast(builder: &mut Builder, value: ValueId, to: DType) -> Result<ValueId, OpError> {
    if builder.ty(value).dtype == to {
        return Ok(value);
    }
    plain(builder, Op::Cast { to, saturate: true }, &[value])
}

/// A dim as a scalar.
fn size(builder: &mut Builder, dtype: DType, dim: &Dim) -> Result<ValueId, OpError> {
    match dim.known() {
        Some(known) => literal(builder, dtype, Vec::new(), &[known]),
        None => {
            let size = plain(builder, Op::Size(dim.clone()), &[])?;
            cast(builder, size, dtype)
        }
    }
}

fn uniform(
    builder: &mut Builder,
    dtype: DType,
    dims: &[Dim],
    value: &Dim,
) -> Result<ValueId, OpError> {
    let scalar = builder.value_of(dtype, Abstract::scalar(value.clone()))?;
    if dims.is_empty() {
        return Ok(scalar);
    }
    plain(builder, Op::Expand(dims.to_vec()), &[scalar])
}

/// Known elements side by side are one constant.
fn listed(
    builder: &mut Builder,
    dtype: DType,
    shape: &[usize],
    items: &[Dim],
) -> Result<ValueId, OpError> {
    if let ([], [item]) = (shape, items) {
        return size(builder, dtype, item);
    }
    let mut parts = Vec::new();
    let mut rest = items;
    while let Some(first) = rest.first() {
        let known: Vec<i64> = rest.iter().map_while(Dim::known).collect();
        if known.is_empty() {
            let scalar = builder.value_of(DType::I64, Abstract::scalar(first.clone()))?;
            parts.push(plain(builder, Op::Reshape(vec![Dim::from(1)]), &[scalar])?);
            rest = &rest[1..];
        } else {
            parts.push(literal(builder, DType::I64, vec![known.len()], &known)?);
            rest = &rest[known.len()..];
        }
    }
    let mut value = match parts.as_slice() {
        [part] => *part,
        _ => plain(builder, Op::Concat { axis: 0 }, &parts)?,
    };
    if shape.len() != 1 {
        let dims = shape.iter().map(|&size| Dim::from(size)).collect();
        value = plain(builder, Op::Reshape(dims), &[value])?;
    }
    cast(builder, value, dtype)
}

/// The sum of counters times strides.
fn counted(builder: &mut Builder, dtype: DType, affine: &Affine) -> Result<ValueId, OpError> {
    if let Some(tensor) = affine_tensor(affine) {
        let value = builder.constant(tensor);
        return cast_constant(builder, value, dtype);
    }
    let rank = affine.dims.len();
    let mut sum: Option<ValueId> = None;
    for axis in (0..rank).filter(|&axis| affine.strides[axis] != 0) {
        let (dim, stride) = (&affine.dims[axis], &affine.strides[axis]);
        let mut term = plain(builder, Op::Iota(dim.clone()), &[])?;
        if *stride != 1 {
            let factor = size(builder, DType::I64, stride)?;
            term = plain(builder, Op::Binary(Binary::Mul), &[term, factor])?;
        }
        if axis + 1 < rank {
            let mut shape = vec![dim.clone()];
            shape.resize(rank - axis, Dim::from(1));
            term = plain(builder, Op::Reshape(shape), &[term])?;
        }
        sum = Some(match sum {
            Some(sum) => plain(builder, Op::Binary(Binary::Add), &[sum, term])?,
            None => term,
        });
    }
    let mut value = match sum {
        Some(sum) if affine.offset == 0 => sum,
        Some(sum) => {
            let offset = size(builder, DType::I64, &affine.offset)?;
            plain(builder, Op::Binary(Binary::Add), &[sum, offset])?
        }
        None => size(builder, DType::I64, &affine.offset)?,
    };
    if builder.ty(value).shape != affine.dims {
        value = plain(builder, Op::Expand(affine.dims.clone()), &[value])?;
    }
    cast(builder, value, dtype)
}

fn cast_constant(builder: &mut Builder, value: ValueId, dtype: DType) -> Result<ValueId, OpError> {
    if builder.ty(value).dtype == dtype {
        return Ok(value);
    }
    Ok(builder.add_folded(Op::Cast { to: dtype, saturate: true }, &[Some(value)])?[0])
}

fn affine_tensor(affine: &Affine) -> Option<Tensor> {
    let known = |dims: &[Dim]| dims.iter().map(Dim::known).collect::<Option<Vec<i64>>>();
    let shape: Option<Vec<usize>> =
        known(&affine.dims)?.into_iter().map(|size| usize::try_from(size).ok()).collect();
    let (shape, strides, offset) = (shape?, known(&affine.strides)?, affine.offset.known()?);
    let count = checked_elements(&shape).filter(|&count| count <= MAX_LITERAL)?;
    let item = |i: usize| {
        let place = coordinates(i, &shape);
        let terms = place.iter().zip(&strides);
        terms.fold(offset, |sum, (&c, &s)| sum.wrapping_add(s.wrapping_mul(c as i64)))
    };
    Tensor::from_vec(shape.clone(), (0..count).map(item).collect::<Vec<i64>>()).ok()
}
