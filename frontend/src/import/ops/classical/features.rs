//! What prepares features before a model, and names its results behind it.

use super::super::helpers::Outputs;
use super::{floats, list, samples};
use crate::dim::Dim;
use crate::dtype::DType;
use crate::graph::ValueId;
use crate::import::{Context, OpError};
use crate::op::{Binary, Op, PadMode, ReduceOp, Unary};
use crate::tensor::Tensor;

/// Chosen columns.
pub(super) fn extract(c: &mut Context<'_, '_>) -> Outputs {
    let (x, indices) = (c.input(0)?, c.input(1)?);
    let count = c.ty(indices).elements();
    let indices = c.reshape(indices, vec![count])?;
    let x = if c.rank(x) == 1 { c.unsqueeze(x, &[0])? } else { x };
    let axis = c.axis(c.rank(x), -1)?;
    Ok(vec![c.add(Op::Gather { axis }, &[x, indices])?])
}

/// One above the threshold, else zero.
pub(super) fn binarize(c: &mut Context<'_, '_>) -> Outputs {
    let x = c.input(0)?;
    let threshold = c.scalar_like(x, f64::from(c.float_or("threshold", 0.0)))?;
    let above = c.binary(Binary::Greater, x, threshold)?;
    Ok(vec![c.cast(above, c.dtype(x))?])
}

/// Features side by side, each cut or lengthened by zeros to its own number.
pub(super) fn join(c: &mut Context<'_, '_>) -> Outputs {
    let sizes = c.ints("inputdimensions").unwrap_or_default();
    let mut parts = Vec::with_capacity(c.input_count());
    for i in 0..c.input_count() {
        let x = c.input(i)?;
        let x = samples(c, x, DType::F32)?;
        let columns = c.shape(x)[1].clone();
        let Some(&size) = sizes.get(i) else {
            parts.push(x);
            continue;
        };
        if size < 0 {
            return Err(c.invalid(format!("inputdimensions must not be negative; got {size}")));
        }
        let zero = || vec![Dim::from(0); 2];
        let (before, mut after) = (zero(), zero());
        after[1] = Dim::from(size) - columns;
        parts.push(c.add(Op::Pad { mode: PadMode::Constant, before, after }, &[x])?);
    }
    if parts.is_empty() {
        return Err(c.invalid("there is nothing to join"));
    }
    Ok(vec![c.concat(1, &parts)?])
}

/// What is missing, given by a number or NaN, replaced: by one value, or one a feature.
pub(super) fn impute(c: &mut Context<'_, '_>) -> Outputs {
    let x = c.input(0)?;
    let (values, gone) = if c.dtype(x).is_float() {
        let values = floats(c, "imputed_value_floats")?;
        let gone = f64::from(c.float_or("replaced_value_float", 0.0));
        (list(c, values)?, gone)
    } else {
        let values = c.ints("imputed_value_int64s").unwrap_or_default();
        let values = Tensor::from_vec(vec![values.len()], values.to_vec())?;
        (c.constant(values), c.int_or("replaced_value_int64", 0) as f64)
    };
    let values = c.cast_to(values, c.dtype(x))?;
    let missing = if gone.is_nan() {
        c.unary(Unary::IsNan, x)?
    } else {
        let gone = c.scalar_like(x, gone)?;
        c.binary(Binary::Equal, x, gone)?
    };
    Ok(vec![c.select(missing, values, x)?])
}

/// (x - offset)·scale, one of each or one a feature.
pub(super) fn scale(c: &mut Context<'_, '_>) -> Outputs {
    let x = c.input(0)?;
    let mut x = c.cast_to(x, DType::F32)?;
    if let Some(offset) = c.floats("offset") {
        let offset = list(c, offset)?;
        x = c.minus(x, offset)?;
    }
    if let Some(scale) = c.floats("scale") {
        let scale = list(c, scale)?;
        x = c.times(x, scale)?;
    }
    Ok(vec![x])
}

/// Each sample over its norm; where that is zero, as it is.
pub(super) fn normalize(c: &mut Context<'_, '_>) -> Outputs {
    let op = match c.string("norm").unwrap_or("MAX") {
        "MAX" => ReduceOp::Max,
        "L1" => ReduceOp::L1,
        "L2" => ReduceOp::L2,
        other => return Err(c.invalid(format!("norm must be one of MAX, L1, L2; got {other}"))),
    };
    let x = c.input(0)?;
    let x = c.cast_to(x, DType::F32)?;
    let axis = c.axis(c.rank(x), -1)?;
    let norm = c.reduce(op, x, vec![axis], true)?;
    let (zero, one) = (c.scalar_like(x, 0.0)?, c.scalar_like(x, 1.0)?);
    let none = c.binary(Binary::Equal, norm, zero)?;
    let norm = c.select(none, one, norm)?;
    Ok(vec![c.over(x, norm)?])
}

/// Whether elements are these keys, along a new last dim. NaN is NaN.
fn matches(
    c: &mut Context<'_, '_>,
    x: ValueId,
    keys: ValueId,
    nan: bool,
) -> Result<ValueId, OpError> {
    let x = c.unsqueeze(x, &[c.rank(x)])?;
    let equal = c.binary(Binary::Equal, x, keys)?;
    if !nan || !c.dtype(x).is_float() {
        return Ok(equal);
    }
    let (x, keys) = (c.unary(Unary::IsNan, x)?, c.unary(Unary::IsNan, keys)?);
    let both = c.binary(Binary::And, x, keys)?;
    c.binary(Binary::Or, equal, both)
}

/// Categories become columns of zeros and a one. A category that is not listed has zeros alone, even where the model
/// would rather fail (`zeros` of 0).
pub(super) fn one_hot(c: &mut Context<'_, '_>) -> Outputs {
    let x = c.input(0)?;
    let Some(categories) = c.ints("cats_int64s") else {
        return Err(c.unsupported("categories that are texts (`cats_strings`)"));
    };
    let categories = Tensor::from_vec(vec![categories.len()], categories.to_vec())?;
    let categories = c.constant(categories);
    // Numbers with a fraction are cut to integers.
    let x = c.cast_to(x, DType::I64)?;
    let hot = matches(c, x, categories, false)?;
    Ok(vec![c.cast(hot, DType::F32)?])
}

/// Keys become values, by lists or tensors of them; what is no key becomes the default.
pub(super) fn encode_labels(c: &mut Context<'_, '_>) -> Outputs {
    let x = c.input(0)?;
    let keys = entries(c, "keys")?;
    let values = entries(c, "values")?;
    let dtype = values.dtype();
    let default = match (c.tensor_attr("default_tensor")?, dtype) {
        (Some(default), _) => number_of(c, &default)?,
        (None, DType::I64) => c.int_or("default_int64", -1) as f64,
        (None, _) => f64::from(c.float_or("default_float", -0.0)),
    };
    if keys.len() != values.len() || keys.is_empty() {
        let (keys, values) = (keys.len(), values.len());
        return Err(c.invalid(format!(
            "needs as many keys as values, at least one; got {keys} and {values}"
        )));
    }
    let keys = c.constant(keys);
    let keys = c.cast_to(keys, c.dtype(x))?;
    let values = c.constant(values);
    let rank = c.rank(x);
    let equal = matches(c, x, keys, c.opset() >= 4)?;
    let found = c.reduce(ReduceOp::Max, equal, vec![rank], false)?;
    let equal = c.cast(equal, DType::I32)?;
    let first = Op::ArgReduce { largest: true, axis: rank, keep: false, last: false };
    let first = c.add(first, &[equal])?;
    let value = c.add(Op::Gather { axis: 0 }, &[values, first])?;
    let default = c.scalar(dtype, default)?;
    Ok(vec![c.select(found, value, default)?])
}

/// Keys or values, whichever attribute has them.
fn entries(c: &Context<'_, '_>, which: &str) -> Result<Tensor, OpError> {
    if let Some(tensor) = c.tensor_attr(&format!("{which}_tensor"))? {
        let count = tensor.len();
        return Ok(tensor.reshaped(vec![count])?);
    }
    if let Some(list) = c.ints(&format!("{which}_int64s")) {
        return Ok(Tensor::from_vec(vec![list.len()], list.to_vec())?);
    }
    if let Some(list) = c.floats(&format!("{which}_floats")) {
        return Ok(Tensor::from_vec(vec![list.len()], list.to_vec())?);
    }
    Err(c.unsupported(format!("{which} that are texts (`{which}_strings`)")))
}

fn number_of(c: &Context<'_, '_>, tensor: &Tensor) -> Result<f64, OpError> {
    match crate::eval::number::reals(tensor).as_deref() {
        Ok(&[number]) => Ok(number),
        _ => Err(c.invalid("default_tensor must hold one number")),
    }
}

/// The scores as they are: maps from labels to scores have no form here, and the columns are in the order of labels.
pub(super) fn zip_map(c: &mut Context<'_, '_>) -> Outputs {
    const SHOWN: usize = 16;
    let x = c.input(0)?;
    let mut labels: Vec<String> =
        match (c.ints("classlabels_int64s"), c.strings("classlabels_strings")) {
            (Some(labels), _) => labels.iter().map(ToString::to_string).collect(),
            (None, Some(labels)) => labels.iter().map(|label| format!("{label:?}")).collect(),
            (None, None) => Vec::new(),
        };
    let more = labels.len().saturating_sub(SHOWN);
    labels.truncate(SHOWN);
    let mut listed = labels.join(", ");
    if more > 0 {
        listed += &format!(" and {more} more");
    }
    c.importer.notes.push(format!(
        "the maps of ZipMap are a table: a row a sample, a column each of the labels {listed}"
    ));
    Ok(vec![x])
}
