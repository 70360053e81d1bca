//! Elements chosen by indices, conditions and rank.

use super::{Outputs, Row, row};
use crate::dim::Dim;
use crate::dtype::DType;
use crate::graph::ValueId;
use crate::import::{Context, OpError, Reason};
use crate::op::{Binary, Combine, Op, SliceAxis};
use crate::tensor::Tensor;

/// The operators of this family.
pub(super) const ROWS: &[Row] = &[
    row("Gather", 1, gather),
    row("GatherElements", 11, gather_elements),
    row("GatherND", 11, gather_nd),
    row("Scatter", 9, scatter_elements),
    row("ScatterElements", 11, scatter_elements),
    row("ScatterND", 11, scatter_nd),
    row("OneHot", 9, one_hot),
    row("Where", 9, select),
    row("NonZero", 9, non_zero),
    row("Compress", 9, compress),
    row("TopK", 1, top_k),
];

fn gather(cx: &mut Context<'_, '_>) -> Outputs {
    let (x, indices) = (cx.input(0)?, cx.input(1)?);
    let axis = cx.axis(cx.rank(x), cx.int_or("axis", 0))?;
    Ok(vec![cx.add(Op::Gather { axis }, &[x, indices])?])
}

fn gather_elements(cx: &mut Context<'_, '_>) -> Outputs {
    let (x, indices) = (cx.input(0)?, cx.input(1)?);
    let axis = cx.axis(cx.rank(x), cx.int_or("axis", 0))?;
    Ok(vec![cx.add(Op::GatherElements { axis }, &[x, indices])?])
}

fn gather_nd(cx: &mut Context<'_, '_>) -> Outputs {
    let (x, indices) = (cx.input(0)?, cx.input(1)?);
    let batch_dims = usize::try_from(cx.int_or("batch_dims", 0))
        .map_err(|_| cx.invalid("a negative number of batch dims"))?;
    Ok(vec![cx.add(Op::GatherNd { batch_dims }, &[x, indices])?])
}

fn combine(cx: &Context<'_, '_>) -> Result<Combine, OpError> {
    match cx.string("reduction").unwrap_or("none") {
        "none" => Ok(Combine::Replace),
        "add" => Ok(Combine::Add),
        "mul" => Ok(Combine::Mul),
        "min" => Ok(Combine::Min),
        "max" => Ok(Combine::Max),
        other => Err(cx.invalid(format!("reduction `{other}`"))),
    }
}

fn scatter_elements(cx: &mut Context<'_, '_>) -> Outputs {
    let inputs = [cx.input(0)?, cx.input(1)?, cx.input(2)?];
    let axis = cx.axis(cx.rank(inputs[0]), cx.int_or("axis", 0))?;
    let combine = combine(cx)?;
    Ok(vec![cx.add(Op::ScatterElements { axis, combine }, &inputs)?])
}

fn scatter_nd(cx: &mut Context<'_, '_>) -> Outputs {
    let inputs = [cx.input(0)?, cx.input(1)?, cx.input(2)?];
    let combine = combine(cx)?;
    Ok(vec![cx.add(Op::ScatterNd { combine }, &inputs)?])
}

fn select(cx: &mut Context<'_, '_>) -> Outputs {
    let inputs = [cx.input(0)?, cx.input(1)?, cx.input(2)?];
    Ok(vec![cx.add(Op::Select, &inputs)?])
}

fn one_hot(cx: &mut Context<'_, '_>) -> Outputs {
    let (indices, depth, values) = (cx.input(0)?, cx.input(1)?, cx.input(2)?);
    let depth = cx.cast(depth, DType::I64)?;
    let depth = cx.dim(depth)?;
    let mut dims = cx.shape(indices);
    let rank = dims.len() + 1;
    let axis = cx.axis(rank, cx.int_or("axis", -1))?;
    let value = |cx: &mut Context<'_, '_>, at: i64| {
        let range = SliceAxis { axis: 0, start: Dim::from(at), len: Dim::from(1), step: 1 };
        let value = cx.add(Op::Slice(vec![range]), &[values])?;
        cx.reshape(value, Vec::new())
    };
    let (off, on) = (value(cx, 0)?, value(cx, 1)?);
    let indices = cx.cast(indices, DType::I64)?;
    let zero = cx.size(Dim::from(0))?;
    let size = cx.size(depth.clone())?;
    let negative = cx.binary(Binary::Less, indices, zero)?;
    let from_end = cx.binary(Binary::Add, indices, size)?;
    let indices = cx.add(Op::Select, &[negative, from_end, indices])?;
    dims.insert(axis, Dim::from(1));
    let indices = cx.reshape(indices, dims)?;
    let classes = cx.counted(DType::I64, depth.clone(), Dim::from(1), Dim::from(0))?;
    let mut shape = vec![Dim::from(1); rank];
    shape[axis] = depth;
    let classes = cx.reshape(classes, shape)?;
    let hot = cx.binary(Binary::Equal, indices, classes)?;
    Ok(vec![cx.add(Op::Select, &[hot, on, off])?])
}

fn non_zero(cx: &mut Context<'_, '_>) -> Outputs {
    let x = cx.input(0)?;
    Ok(vec![cx.add(Op::NonZero, &[x])?])
}

fn compress(cx: &mut Context<'_, '_>) -> Outputs {
    let (x, condition) = (cx.input(0)?, cx.input(1)?);
    let kept = cx.known_ints(condition)?;
    let places: Vec<i64> =
        (0_i64..).zip(&kept).filter(|(_, kept)| **kept != 0).map(|(i, _)| i).collect();
    let places = Tensor::from_vec(vec![places.len()], places)?;
    let places = cx.constant(places);
    let (x, axis) = match cx.int("axis") {
        Some(axis) => (x, cx.axis(cx.rank(x), axis)?),
        None => {
            let elements = cx.ty(x).elements();
            (cx.reshape(x, vec![elements])?, 0)
        }
    };
    Ok(vec![cx.add(Op::Gather { axis }, &[x, places])?])
}

fn top_k(cx: &mut Context<'_, '_>) -> Outputs {
    let x = cx.input(0)?;
    let k = match cx.opset() {
        ..10 => Dim::from(
            cx.int("k").ok_or_else(|| OpError::from(Reason::MissingAttribute("k".into())))?,
        ),
        _ => {
            let k: ValueId = cx.input(1)?;
            cx.dim(k)?
        }
    };
    let axis = cx.axis(cx.rank(x), cx.int_or("axis", -1))?;
    let largest = cx.int_or("largest", 1) != 0;
    cx.add_optional(Op::TopK { k, axis, largest }, &[Some(x)])
}
