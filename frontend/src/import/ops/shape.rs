//! Shapes, constants and conversions.

use super::{Outputs, Row, row, values};
use crate::dim::Dim;
use crate::dtype::DType;
use crate::graph::ValueId;
use crate::import::{Context, OpError, Reason};
use crate::op::{Binary, Op};
use crate::tensor::Tensor;

/// The operators of this family.
pub(super) const ROWS: &[Row] = &[
    values("Identity", 1, |cx| Ok(vec![cx.value(0)?])),
    row("Constant", 1, constant),
    row("ConstantOfShape", 9, constant_of_shape),
    row("Shape", 1, shape),
    row("Size", 1, size),
    row("Range", 11, range),
    row("EyeLike", 9, eye_like),
    row("Reshape", 5, reshape),
    row("Flatten", 1, flatten),
    row("Squeeze", 1, squeeze),
    row("Unsqueeze", 1, unsqueeze),
    row("Expand", 8, expand),
    row("Cast", 6, cast),
    row("CastLike", 15, cast_like),
    row("BitCast", 26, bit_cast),
];

fn constant(cx: &mut Context<'_, '_>) -> Outputs {
    let strings = ["value_string", "value_strings", "sparse_value"];
    if let Some(name) = strings.iter().find(|name| cx.attribute(name).is_some()) {
        return Err(cx.unsupported(format!("attribute `{name}`")));
    }
    let tensor = if let Some(tensor) = cx.tensor_attr("value")? {
        tensor
    } else if let Some(value) = cx.float("value_float") {
        Tensor::scalar(value)
    } else if let Some(value) = cx.int("value_int") {
        Tensor::scalar(value)
    } else if let Some(values) = cx.floats("value_floats") {
        Tensor::from_vec(vec![values.len()], values.to_vec())?
    } else if let Some(values) = cx.ints("value_ints") {
        Tensor::from_vec(vec![values.len()], values.to_vec())?
    } else {
        return Err(Reason::MissingAttribute("value".into()).into());
    };
    Ok(vec![cx.constant(tensor)])
}

fn constant_of_shape(cx: &mut Context<'_, '_>) -> Outputs {
    let shape = cx.input(0)?;
    let dims = cx.dims(shape)?;
    let value = match cx.tensor_attr("value")? {
        Some(value) => value.reshaped(Vec::new())?,
        None => Tensor::scalar(0.0_f32),
    };
    let value = cx.constant(value);
    Ok(vec![cx.expand(value, dims)?])
}

fn shape(cx: &mut Context<'_, '_>) -> Outputs {
    let x = cx.input(0)?;
    let dims = cx.shape(x);
    let rank = dims.len() as i64;
    let clamp = |at: i64| {
        let at = if at < 0 { at.saturating_add(rank) } else { at };
        at.clamp(0, rank) as usize
    };
    let (start, end) = (clamp(cx.int_or("start", 0)), clamp(cx.int_or("end", rank)));
    let dims = dims.get(start..end).unwrap_or_default().to_vec();
    Ok(vec![cx.list(dims)?])
}

fn size(cx: &mut Context<'_, '_>) -> Outputs {
    let x = cx.input(0)?;
    let elements = cx.ty(x).elements();
    Ok(vec![cx.size(elements)?])
}

fn range(cx: &mut Context<'_, '_>) -> Outputs {
    let (start, limit, delta) = (cx.input(0)?, cx.input(1)?, cx.input(2)?);
    let dtype = cx.dtype(start);
    let in_symbols = (cx.dim(start), cx.dim(limit), cx.dim(delta));
    if let (Ok(start), Ok(limit), Ok(delta)) = in_symbols {
        let count = steps(&start, &limit, &delta)
            .ok_or_else(|| cx.unsupported("a step of unknown sign"))?
            .maximum(&Dim::from(0));
        return Ok(vec![cx.counted(dtype, count, delta, start)?]);
    }
    if dtype.is_integer() {
        // Whichever is not known says so.
        for value in [start, limit, delta] {
            cx.dim(value)?;
        }
    }
    let number = |cx: &Context<'_, '_>, value| match cx.known_floats(value)?.as_slice() {
        [number] => Ok(*number),
        _ => Err(cx.invalid("a single number is expected")),
    };
    let (first, last, step) = (number(cx, start)?, number(cx, limit)?, number(cx, delta)?);
    let count = ((last - first) / step).ceil().max(0.0);
    if !count.is_finite() || count > (1_u64 << 31) as f64 {
        return Err(cx.invalid("a range without end"));
    }
    let counter = cx.counted(DType::I64, Dim::from(count as i64), Dim::from(1), Dim::from(0))?;
    let counter = cx.cast(counter, dtype)?;
    let scaled = cx.binary(Binary::Mul, counter, delta)?;
    Ok(vec![cx.binary(Binary::Add, scaled, start)?])
}

fn steps(start: &Dim, limit: &Dim, delta: &Dim) -> Option<Dim> {
    if delta.lower_bound().is_some_and(|low| low >= 1) {
        return (limit - start).ceil_div(delta).ok();
    }
    if delta.upper_bound().is_some_and(|high| high <= -1) {
        return (start - limit).ceil_div(&-delta).ok();
    }
    None
}

fn eye_like(cx: &mut Context<'_, '_>) -> Outputs {
    let x = cx.input(0)?;
    let ty = cx.ty(x);
    let [rows, columns] = ty.shape.as_slice() else {
        return Err(cx.invalid("takes a matrix"));
    };
    let dtype = cx.dtype_attr("dtype")?.unwrap_or(ty.dtype);
    let k = Dim::from(cx.int_or("k", 0));
    let row = cx.counted(DType::I64, rows.clone(), Dim::from(1), k)?;
    let row = cx.reshape(row, vec![rows.clone(), Dim::from(1)])?;
    let column = cx.counted(DType::I64, columns.clone(), Dim::from(1), Dim::from(0))?;
    let equal = cx.binary(Binary::Equal, row, column)?;
    Ok(vec![cx.cast(equal, dtype)?])
}

fn reshape(cx: &mut Context<'_, '_>) -> Outputs {
    let (x, shape) = (cx.input(0)?, cx.input(1)?);
    let given = cx.dims(shape)?;
    let from = cx.shape(x);
    let keep_zeros = cx.int_or("allowzero", 0) != 0;
    let mut to = Vec::with_capacity(given.len().min(crate::types::MAX_RANK));
    let mut rest = None;
    for (i, dim) in given.into_iter().enumerate() {
        to.push(match dim.known() {
            Some(-1) => {
                if rest.replace(i).is_some() {
                    return Err(cx.invalid("more than one size is -1"));
                }
                Dim::from(1)
            }
            Some(0) if !keep_zeros => match from.get(i) {
                Some(dim) => dim.clone(),
                None => return Err(cx.invalid("keeps a dim that there is not")),
            },
            _ => dim,
        });
    }
    if let Some(i) = rest {
        to[i] = remaining(cx, &from, &to)?;
    }
    Ok(vec![cx.reshape(x, to)?])
}

/// The quotient of the products of two shapes; dims that stand in both leave it first.
fn remaining(cx: &Context<'_, '_>, from: &[Dim], to: &[Dim]) -> Result<Dim, OpError> {
    let mut left: Vec<&Dim> = from.iter().collect();
    let mut divisors = Vec::new();
    for dim in to {
        match left.iter().position(|other| *other == dim) {
            Some(at) => drop(left.swap_remove(at)),
            None => divisors.push(dim),
        }
    }
    let product = |dims: &[&Dim]| dims.iter().copied().product::<Dim>();
    let (elements, divisor) = (product(&left), product(&divisors));
    if divisor == 0 {
        return Err(cx.invalid("a size of -1 beside one of 0"));
    }
    Ok(elements.floor_div(&divisor)?)
}

fn flatten(cx: &mut Context<'_, '_>) -> Outputs {
    let x = cx.input(0)?;
    let dims = cx.shape(x);
    let given = cx.int_or("axis", 1);
    let axis = if given == dims.len() as i64 { dims.len() } else { cx.axis(dims.len(), given)? };
    let product = |dims: &[Dim]| dims.iter().product::<Dim>();
    let (rows, columns) = (product(&dims[..axis]), product(&dims[axis..]));
    Ok(vec![cx.reshape(x, vec![rows, columns])?])
}

/// Axes as an attribute or, from version 13 on, as an input.
fn given_axes(cx: &Context<'_, '_>) -> Result<Option<Vec<i64>>, OpError> {
    if cx.opset() < 13 {
        return Ok(cx.ints("axes").map(<[i64]>::to_vec));
    }
    cx.optional(1).map(|axes| cx.known_ints(axes)).transpose()
}

fn squeeze(cx: &mut Context<'_, '_>) -> Outputs {
    let x = cx.input(0)?;
    let dims = cx.shape(x);
    let axes = match given_axes(cx)? {
        Some(axes) => cx.axes(dims.len(), &axes)?,
        None => {
            if let Some(dim) = dims.iter().find(|dim| dim.known().is_none()) {
                return Err(crate::infer::InferError::UnresolvedRank(dim.clone()).into());
            }
            (0..dims.len()).filter(|&axis| dims[axis] == 1).collect()
        }
    };
    let kept = dims.iter().enumerate().filter(|(axis, _)| !axes.contains(axis));
    let kept = kept.map(|(_, dim)| dim.clone()).collect();
    Ok(vec![cx.reshape(x, kept)?])
}

fn unsqueeze(cx: &mut Context<'_, '_>) -> Outputs {
    let x = cx.input(0)?;
    let Some(axes) = given_axes(cx)? else {
        return Err(Reason::MissingAttribute("axes".into()).into());
    };
    let mut dims = cx.shape(x);
    let rank = dims.len().saturating_add(axes.len());
    if rank > crate::types::MAX_RANK {
        return Err(cx.invalid("too many dims"));
    }
    for axis in cx.axes(rank, &axes)? {
        dims.insert(axis, Dim::from(1));
    }
    Ok(vec![cx.reshape(x, dims)?])
}

fn expand(cx: &mut Context<'_, '_>) -> Outputs {
    let (x, shape) = (cx.input(0)?, cx.input(1)?);
    let mut target = cx.dims(shape)?;
    let own = cx.shape(x);
    while target.len() < own.len() {
        target.insert(0, Dim::from(1));
    }
    // The rule is that of two operands: a target of one keeps the value's own size.
    let skip = target.len() - own.len();
    for (dim, target) in own.iter().zip(&mut target[skip..]) {
        if *target == 1 {
            *target = dim.clone();
        }
    }
    Ok(vec![cx.expand(x, target)?])
}

fn convert(cx: &mut Context<'_, '_>, x: ValueId, to: DType) -> Outputs {
    let saturate = cx.int_or("saturate", 1) != 0;
    Ok(vec![cx.add(Op::Cast { to, saturate }, &[x])?])
}

fn cast(cx: &mut Context<'_, '_>) -> Outputs {
    let x = cx.input(0)?;
    match cx.dtype_attr("to")? {
        Some(to) => convert(cx, x, to),
        None => Err(Reason::MissingAttribute("to".into()).into()),
    }
}

fn cast_like(cx: &mut Context<'_, '_>) -> Outputs {
    let (x, like) = (cx.input(0)?, cx.input(1)?);
    let to = cx.dtype(like);
    convert(cx, x, to)
}

fn bit_cast(cx: &mut Context<'_, '_>) -> Outputs {
    let x = cx.input(0)?;
    match cx.dtype_attr("to")? {
        Some(to) => Ok(vec![cx.add(Op::BitCast(to), &[x])?]),
        None => Err(Reason::MissingAttribute("to".into()).into()),
    }
}
