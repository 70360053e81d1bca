//! onnxruntime's weights of few bits, of which every block has its own scale and zero point.

use super::helpers::Outputs;
use super::{Row, microsoft};
use crate::dim::Dim;
use crate::dtype::DType;
use crate::graph::ValueId;
use crate::import::{Context, OpError, Reason};
use crate::op::{Binary, Op};

/// The operators of this family.
pub(super) const ROWS: &[Row] = &[
    microsoft("MatMulNBits", 1, mat_mul_n_bits),
    microsoft("GatherBlockQuantized", 1, gather_block_quantized),
];

/// A size that an attribute gives.
fn size(c: &Context<'_, '_>, name: &str) -> Result<i64, OpError> {
    let size = c.int(name).ok_or_else(|| Reason::MissingAttribute(name.into()))?;
    match size {
        1..=0x7fff_ffff => Ok(size),
        _ => Err(c.invalid(format!("`{name}` must be positive and fit into 31 bits; got {size}"))),
    }
}

/// The bits of an element.
fn bits(c: &Context<'_, '_>) -> Result<i64, OpError> {
    match c.int_or("bits", 4) {
        bits @ (2 | 4 | 8) => Ok(bits),
        bits => Err(c.unsupported(format!("`bits` = {bits}: quantise to 2, 4 or 8"))),
    }
}

/// The elements of a block, if that is a size of one.
fn checked_block(c: &Context<'_, '_>, block: i64) -> Result<i64, OpError> {
    match block {
        16..=0x7fff_ffff if block & (block - 1) == 0 => Ok(block),
        _ => Err(c.invalid(format!("`block_size` must be a power of two from 16 on; got {block}"))),
    }
}

/// Bytes `[…, n]` as the elements of 2, 4 or 8 bits that they hold, `[…, n·8/bits]`, the low bits first.
fn unpacked(c: &mut Context<'_, '_>, packed: ValueId, bits: i64) -> Result<ValueId, OpError> {
    let mut shape = c.shape(packed);
    let Some(last) = shape.pop().filter(|_| bits < 8) else { return Ok(packed) };
    let (each, axis) = (8 / bits, shape.len() + 1);
    let mut parts = Vec::new();
    for i in 0..each {
        let mut part = packed;
        if i > 0 {
            let by = c.scalar(DType::U8, (i * bits) as f64)?;
            part = c.binary(Binary::ShiftRight, part, by)?;
        }
        if i + 1 < each {
            let low = c.scalar(DType::U8, ((1 << bits) - 1) as f64)?;
            part = c.binary(Binary::BitAnd, part, low)?;
        }
        parts.push(c.unsqueeze(part, &[axis])?);
    }
    let apart = c.concat(axis, &parts)?;
    shape.push(last * Dim::from(each));
    c.reshape(apart, shape)
}

/// `(q - zero point) · scale` in f32.
fn dequantized(
    c: &mut Context<'_, '_>,
    quantized: ValueId,
    zero_point: ValueId,
    scale: ValueId,
) -> Result<ValueId, OpError> {
    let q = c.cast_to(quantized, DType::F32)?;
    let zero_point = c.cast_to(zero_point, DType::F32)?;
    let scale = c.cast_to(scale, DType::F32)?;
    let centered = c.minus(q, zero_point)?;
    c.times(centered, scale)
}

/// `A · Wᵀ + bias` with W `[n, k]` of few bits in blocks along k. Any `accuracy_level` is met: A stays as it is.
fn mat_mul_n_bits(c: &mut Context<'_, '_>) -> Outputs {
    let (a, packed, scales) = (c.input(0)?, c.input(1)?, c.input(2)?);
    let (k, n) = (Dim::from(size(c, "K")?), Dim::from(size(c, "N")?));
    let (bits, block) = (bits(c)?, checked_block(c, size(c, "block_size")?)?);
    if c.int_or("weight_prepacked", 0) != 0 {
        return Err(c.unsupported(
            "weights packed for one GPU (`weight_prepacked`): export them as they are",
        ));
    }
    if c.dtype(packed) != DType::U8 {
        return Err(c.unsupported("weights that are not packed into bytes: quantise them to uint8"));
    }
    if c.shape(packed).iter().any(|dim| *dim == 0) {
        return Err(c.unsupported("a projection that is left out (empty `B`): remove the node"));
    }
    let blocks = k.ceil_div(&Dim::from(block))?;
    let bytes = Dim::from(block * bits / 8);
    let packed = c.reshape(packed, vec![n.clone(), blocks.clone(), bytes])?;
    let q = unpacked(c, packed, bits)?;
    let whole = vec![n.clone(), &blocks * &Dim::from(block)];
    let each = vec![n.clone(), blocks.clone(), Dim::from(1)];
    let scales = c.reshape(scales, each.clone())?;
    let zero_points = match c.optional(3) {
        Some(zero_points) if c.dtype(zero_points) == DType::U8 => {
            let bytes = (&blocks * &Dim::from(bits)).ceil_div(&Dim::from(8))?;
            let zero_points = c.reshape(zero_points, vec![n, bytes])?;
            let zero_points = unpacked(c, zero_points, bits)?;
            let zero_points = c.narrow(zero_points, 1, Dim::from(0), blocks.clone())?;
            c.reshape(zero_points, each)?
        }
        Some(zero_points) if c.dtype(zero_points).is_float() => c.reshape(zero_points, each)?,
        Some(_) => return Err(c.unsupported("zero points that are neither uint8 nor floats")),
        None => c.scalar(DType::F32, (1 << (bits - 1)) as f64)?,
    };
    let w = match c.optional(4) {
        Some(groups) => {
            // The block of each column.
            let groups = c.reshape(groups, vec![k.clone()])?;
            let q = c.reshape(q, whole)?;
            let q = c.narrow(q, 1, Dim::from(0), k)?;
            let of_columns = |c: &mut Context<'_, '_>, v: ValueId| {
                if c.rank(v) == 0 {
                    return Ok(v);
                }
                let v = c.squeeze(v, 2)?;
                c.add(Op::Gather { axis: 1 }, &[v, groups])
            };
            let (zero_points, scales) = (of_columns(c, zero_points)?, of_columns(c, scales)?);
            dequantized(c, q, zero_points, scales)?
        }
        None => {
            let w = dequantized(c, q, zero_points, scales)?;
            let w = c.reshape(w, whole)?;
            c.narrow(w, 1, Dim::from(0), k)?
        }
    };
    let w = c.cast_to(w, c.dtype(a))?;
    let w = c.transposed(w)?;
    let y = c.mat_mul(a, w)?;
    Ok(vec![match c.optional(5) {
        Some(bias) => c.plus(y, bias)?,
        None => y,
    }])
}

/// For each of `n` elements in a row, the number of its block.
fn block_of(c: &mut Context<'_, '_>, n: Dim, block: i64) -> Result<ValueId, OpError> {
    let places = c.iota(n, 0, 1)?;
    let block = c.scalar(DType::I64, block as f64)?;
    c.over(places, block)
}

/// Rows gathered from a quantised table, dequantised; an index that is out of range gives zeros.
fn gather_block_quantized(c: &mut Context<'_, '_>) -> Outputs {
    let (data, indices, scales) = (c.input(0)?, c.input(1)?, c.input(2)?);
    let (rank, dtype) = (c.rank(data), c.dtype(data));
    let gather = c.axis(rank, c.int_or("gather_axis", 0))?;
    let quantize = c.axis(rank, c.int_or("quantize_axis", 1))?;
    let floats = dtype.is_float();
    let bits = if floats { 8 } else { bits(c)? };
    let block = match c.int_or("block_size", 128) {
        0 if floats => 1 << 31,
        block => checked_block(c, block)?,
    };
    let packed = dtype == DType::U8;
    if packed && (gather != 0 || quantize + 1 != rank || quantize == gather) {
        return Err(c.invalid("bytes are gathered along axis 0 and quantised along the last"));
    }
    if !packed && !floats && (![DType::I4, DType::U4].contains(&dtype) || bits != 4) {
        return Err(c.unsupported(format!(
            "a table of {dtype} with `bits` = {bits}: 4 bits as int4 or uint4, others as uint8"
        )));
    }
    if c.rank(scales) != rank {
        return Err(c.invalid("the table and its scales must have as many dims"));
    }
    let zero_points = match c.optional(3) {
        Some(_) if floats => return Err(c.invalid("a table of floats has no `zero_points`")),
        Some(given) if packed => {
            let all = unpacked(c, given, bits)?;
            Some(c.narrow(all, quantize, Dim::from(0), c.shape(scales)[quantize].clone())?)
        }
        given => given,
    };
    let (places, inside) = in_range(c, indices, c.shape(data)[gather].clone())?;
    let mut q = c.add(Op::Gather { axis: gather }, &[data, places])?;
    if packed {
        q = unpacked(c, q, bits)?;
    }
    // The axis of blocks in the result, and the block of each of its elements.
    let blocks = match quantize < gather {
        true => quantize,
        false => quantize + c.rank(indices) - usize::from(quantize > gather),
    };
    let along = if quantize == gather {
        let block = c.scalar(DType::I64, block as f64)?;
        c.over(places, block)?
    } else {
        block_of(c, c.shape(q)[blocks].clone(), block)?
    };
    let spread = |c: &mut Context<'_, '_>, v: ValueId| {
        if quantize == gather {
            return c.add(Op::Gather { axis: gather }, &[v, along]);
        }
        // One scale may be that of all rows.
        let all = c.shape(v)[gather] == 1 && c.shape(data)[gather] != 1;
        let places = if all { c.minus(places, places)? } else { places };
        let rows = c.add(Op::Gather { axis: gather }, &[v, places])?;
        c.add(Op::Gather { axis: blocks }, &[rows, along])
    };
    let scale = spread(c, scales)?;
    let zero_point = match zero_points {
        Some(zero_points) => spread(c, zero_points)?,
        None if packed => c.scalar(DType::F32, (1 << (bits - 1)) as f64)?,
        None => c.scalar(DType::F32, 0.0)?,
    };
    let y = dequantized(c, q, zero_point, scale)?;
    let mut shape = vec![Dim::from(1); rank - 1 + c.rank(indices)];
    shape[gather..][..c.rank(indices)].clone_from_slice(&c.shape(indices));
    let inside = c.reshape(inside, shape)?;
    let zero = c.scalar_like(y, 0.0)?;
    let y = c.select(inside, y, zero)?;
    Ok(vec![c.cast_to(y, c.dtype(scales))?])
}

/// Indices counted from the front, those that are out of range made zero; and whether each is in range.
fn in_range(
    c: &mut Context<'_, '_>,
    indices: ValueId,
    size: Dim,
) -> Result<(ValueId, ValueId), OpError> {
    let indices = c.cast_to(indices, DType::I64)?;
    let (zero, size) = (c.scalar(DType::I64, 0.0)?, c.size(size)?);
    let negative = c.binary(Binary::Less, indices, zero)?;
    let from_end = c.plus(indices, size)?;
    let places = c.select(negative, from_end, indices)?;
    let begun = c.binary(Binary::GreaterOrEqual, places, zero)?;
    let inside = c.binary(Binary::Less, places, size)?;
    let inside = c.binary(Binary::And, begun, inside)?;
    Ok((c.select(inside, places, zero)?, inside))
}
