//! The functions that an expression may call, and how they take their arguments.

use std::fmt;

use super::Value;
use crate::error::{Error, Result};
use crate::layout::{
    Composed, IntTuple, Layout, Tiler, blocked_product, coalesce, coalesce_by, complement,
    composition_by, crd2idx, flat_divide, flat_product, flatten, idx2crd, left_inverse,
    logical_divide, logical_product, raked_product, right_inverse, tile_to_shape, tiled_divide,
    tiled_product, zipped_divide, zipped_product,
};

/// A function of the notation; `eval` returns none for arguments that it does not take.
pub(super) struct Function {
    pub(super) name: &'static str,
    pub(super) usage: &'static str,
    pub(super) eval: Eval,
}

pub(super) type Eval = fn(&[Value]) -> Option<Result<Value>>;

impl fmt::Debug for Function {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

const fn row(name: &'static str, usage: &'static str, eval: Eval) -> Function {
    Function { name, usage, eval }
}

/// Every function that an expression may call.
#[rustfmt::skip]
pub(super) static FUNCTIONS: &[Function] = &[
    row("coalesce",        "coalesce(layout[, profile])",             eval_coalesce),
    row("flatten",         "flatten(layout)",                         |v| domain(v, flatten)),
    row("composition",     "composition(layout, tiler), composition(swizzle[, offset], layout)", eval_composition),
    row("complement",      "complement(layout[, cotarget])",          eval_complement),
    row("left_inverse",    "left_inverse(layout)",                    |v| layout(v, left_inverse)),
    row("right_inverse",   "right_inverse(layout)",                   |v| layout(v, right_inverse)),
    row("logical_divide",  "logical_divide(layout, tiler)",           |v| tiled(v, logical_divide)),
    row("zipped_divide",   "zipped_divide(layout, tiler)",            |v| tiled(v, zipped_divide)),
    row("tiled_divide",    "tiled_divide(layout, tiler)",             |v| tiled(v, tiled_divide)),
    row("flat_divide",     "flat_divide(layout, tiler)",              |v| tiled(v, flat_divide)),
    row("logical_product", "logical_product(layout, tiler)",          |v| tiled(v, logical_product)),
    row("zipped_product",  "zipped_product(layout, tiler)",           |v| tiled(v, zipped_product)),
    row("tiled_product",   "tiled_product(layout, tiler)",            |v| tiled(v, tiled_product)),
    row("flat_product",    "flat_product(layout, tiler)",             |v| tiled(v, flat_product)),
    row("blocked_product", "blocked_product(layout, layout)",         |v| ranked(v, blocked_product)),
    row("raked_product",   "raked_product(layout, layout)",           |v| ranked(v, raked_product)),
    row("tile_to_shape",   "tile_to_shape(layout, shape[, order])",   eval_tile_to_shape),
    row("make_layout",     "make_layout(shape[, stride]), make_layout(layout, ...)", eval_make_layout),
    row("size",            "size(layout or shape)",                   eval_size),
    row("cosize",          "cosize(layout)",                          |v| number(v, |l| Ok(l.cosize()))),
    row("rank",            "rank(layout)",                            |v| number(v, |l| count(l.rank()))),
    row("depth",           "depth(layout)",                           |v| number(v, |l| count(l.depth()))),
    row("shape",           "shape(layout)",                           |v| ints(v, |l| Ok(l.shape()))),
    row("stride",          "stride(layout), without a swizzle",       eval_stride),
    row("crd2idx",         "crd2idx(coordinate, layout), crd2idx(coordinate, shape, stride)", eval_crd2idx),
    row("idx2crd",         "idx2crd(index, layout or shape)",         eval_idx2crd),
];

pub(super) fn as_ints(value: &Value) -> Option<IntTuple> {
    if let Value::Ints(ints) = value { Some(ints.clone()) } else { None }
}

pub(super) fn as_layout(value: &Value) -> Option<Layout> {
    if let Value::Layout(layout) = value { Some(layout.clone()) } else { None }
}

pub(super) fn tiler(value: &Value) -> Option<Result<Tiler>> {
    match value {
        Value::Ints(shape) => Some(Tiler::from_shape(shape)),
        Value::Layout(layout) => Some(Ok(Tiler::Layout(layout.clone()))),
        Value::Tiler(tiler) => Some(Ok(tiler.clone())),
        Value::Swizzle(_) | Value::Composed(_) => None,
    }
}

fn count(value: usize) -> Result<i64> {
    i64::try_from(value).map_err(|_| Error::Overflow)
}

fn int(value: i64) -> Value {
    Value::Ints(IntTuple::Int(value))
}

/// Applies to a layout, or to the domain of a composed one.
fn on_domain(value: &Value, f: impl FnOnce(&Layout) -> Result<Layout>) -> Option<Result<Value>> {
    match value {
        Value::Layout(layout) => Some(f(layout).map(Value::Layout)),
        Value::Composed(composed) => Some(composed.map(f).map(Value::Composed)),
        Value::Ints(_) | Value::Swizzle(_) | Value::Tiler(_) => None,
    }
}

fn domain(args: &[Value], f: fn(&Layout) -> Result<Layout>) -> Option<Result<Value>> {
    let [value] = args else { return None };
    on_domain(value, f)
}

fn layout(args: &[Value], f: fn(&Layout) -> Result<Layout>) -> Option<Result<Value>> {
    let [Value::Layout(layout)] = args else { return None };
    Some(f(layout).map(Value::Layout))
}

fn tiled(args: &[Value], f: fn(&Layout, &Tiler) -> Result<Layout>) -> Option<Result<Value>> {
    let [value, by] = args else { return None };
    match tiler(by)? {
        Ok(tiler) => on_domain(value, |layout| f(layout, &tiler)),
        Err(error) => Some(Err(error)),
    }
}

fn ranked(args: &[Value], f: fn(&Layout, &Layout) -> Result<Layout>) -> Option<Result<Value>> {
    let [block, Value::Layout(tiler)] = args else { return None };
    on_domain(block, |block| f(block, tiler))
}

fn ints(args: &[Value], f: fn(&Layout) -> Result<IntTuple>) -> Option<Result<Value>> {
    match args {
        [Value::Layout(layout)] | [Value::Composed(Composed { layout, .. })] => {
            Some(f(layout).map(Value::Ints))
        }
        _ => None,
    }
}

fn number(args: &[Value], f: fn(&Layout) -> Result<i64>) -> Option<Result<Value>> {
    match args {
        [Value::Layout(layout)] | [Value::Composed(Composed { layout, .. })] => {
            Some(f(layout).map(int))
        }
        _ => None,
    }
}

fn eval_coalesce(args: &[Value]) -> Option<Result<Value>> {
    match args {
        [value] => on_domain(value, coalesce),
        [value, Value::Ints(profile)] => on_domain(value, |layout| coalesce_by(layout, profile)),
        _ => None,
    }
}

pub(super) fn eval_composition(args: &[Value]) -> Option<Result<Value>> {
    let (swizzle, offset, layout) = match args {
        [Value::Swizzle(swizzle), Value::Layout(layout)] => (swizzle, 0, layout),
        [Value::Swizzle(swizzle), Value::Ints(IntTuple::Int(offset)), Value::Layout(layout)] => {
            (swizzle, *offset, layout)
        }
        _ => return tiled(args, composition_by),
    };
    let (swizzle, layout) = (*swizzle, layout.clone());
    Some(Ok(Value::Composed(Composed { swizzle, offset, layout })))
}

fn eval_complement(args: &[Value]) -> Option<Result<Value>> {
    match args {
        [Value::Layout(layout)] => Some(complement(layout, layout.cosize()).map(Value::Layout)),
        [Value::Layout(layout), Value::Ints(cotarget)] => {
            Some(cotarget.product().and_then(|size| complement(layout, size)).map(Value::Layout))
        }
        _ => None,
    }
}

fn eval_tile_to_shape(args: &[Value]) -> Option<Result<Value>> {
    match args {
        [block, Value::Ints(shape)] => on_domain(block, |block| tile_to_shape(block, shape, None)),
        [block, Value::Ints(shape), Value::Ints(order)] => {
            on_domain(block, |block| tile_to_shape(block, shape, Some(order)))
        }
        _ => None,
    }
}

fn eval_make_layout(args: &[Value]) -> Option<Result<Value>> {
    let layout = match args {
        [Value::Ints(shape)] => Layout::column_major(shape),
        [Value::Ints(shape), Value::Ints(stride)] => Layout::new(shape, stride),
        _ => Layout::tuple(args.iter().map(as_layout).collect::<Option<_>>()?),
    };
    Some(layout.map(Value::Layout))
}

fn eval_size(args: &[Value]) -> Option<Result<Value>> {
    match args {
        [Value::Ints(shape)] => Some(shape.product().map(int)),
        _ => number(args, |layout| Ok(layout.size())),
    }
}

fn eval_stride(args: &[Value]) -> Option<Result<Value>> {
    let [Value::Layout(layout)] = args else { return None };
    Some(Ok(Value::Ints(layout.stride())))
}

fn eval_crd2idx(args: &[Value]) -> Option<Result<Value>> {
    let offset = match args {
        [Value::Ints(coord), Value::Layout(layout)] => crd2idx(coord, layout),
        [Value::Ints(coord), Value::Composed(composed)] => composed.crd2idx(coord),
        [Value::Ints(coord), Value::Ints(shape), Value::Ints(stride)] => {
            Layout::new(shape, stride).and_then(|layout| crd2idx(coord, &layout))
        }
        _ => return None,
    };
    Some(offset.map(int))
}

fn eval_idx2crd(args: &[Value]) -> Option<Result<Value>> {
    let coord = match args {
        [Value::Ints(IntTuple::Int(index)), Value::Ints(shape)] => {
            Layout::column_major(shape).and_then(|layout| idx2crd(*index, &layout))
        }
        [Value::Ints(IntTuple::Int(index)), Value::Layout(layout)]
        | [Value::Ints(IntTuple::Int(index)), Value::Composed(Composed { layout, .. })] => {
            idx2crd(*index, layout)
        }
        _ => return None,
    };
    Some(coord.map(Value::Ints))
}
