//! The functions that an expression may call, and how they take their arguments.

use std::fmt;

use graphene_ir::layout::{
    Composed, IntTuple, Layout, Outer, Stride, Tiler, blocked_product, coalesce, coalesce_by,
    complement, composition_by, crd2idx, flat_divide, flat_product, flatten, idx2crd, left_inverse,
    logical_divide, logical_product, raked_product, right_inverse, tile_to_shape, tiled_divide,
    tiled_product, zipped_divide, zipped_product,
};
use graphene_ir::{Error, Result};

use super::Value;

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
    row("composition",     "composition(layout, tiler), composition(swizzle or layout, offset, layout)", eval_composition),
    row("complement",      "complement(layout[, cotarget])",          eval_complement),
    row("left_inverse",    "left_inverse(layout)",                    |v| inverse(v, left_inverse)),
    row("right_inverse",   "right_inverse(layout)",                   |v| inverse(v, right_inverse)),
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
    row("cosize",          "cosize(layout)",                          |v| of_domain(v, |l| Ok(int(l.cosize())))),
    row("rank",            "rank(layout)",                            |v| of_domain(v, |l| count(l.rank()))),
    row("depth",           "depth(layout)",                           |v| of_domain(v, |l| count(l.depth()))),
    row("shape",           "shape(layout)",                           |v| of_domain(v, |l| Ok(ints(&l.shape())))),
    row("stride",          "stride(layout), without a swizzle",       eval_stride),
    row("crd2idx",         "crd2idx(coordinate, layout), crd2idx(coordinate, shape, stride)", eval_crd2idx),
    row("idx2crd",         "idx2crd(index, layout or shape)",         eval_idx2crd),
];

fn count(value: usize) -> Result<Value> {
    i64::try_from(value).map(int).map_err(|_| Error::Overflow)
}

fn int(value: i64) -> Value {
    Value::Ints(IntTuple::Int(Stride::from(value)))
}

fn ints(values: &IntTuple) -> Value {
    let values = values.map(&|value| Some(Stride::from(*value)));
    Value::Ints(values.expect("every number is a stride"))
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

/// A number of a layout, or of the domain of a composed one.
fn of_domain(args: &[Value], f: fn(&Layout) -> Result<Value>) -> Option<Result<Value>> {
    match args {
        [Value::Layout(layout)] | [Value::Composed(Composed { layout, .. })] => Some(f(layout)),
        _ => None,
    }
}

/// A swizzle is its own inverse; after a layout it becomes one before the layout's inverse.
fn inverse(args: &[Value], f: fn(&Layout) -> Result<Layout>) -> Option<Result<Value>> {
    match args {
        [Value::Layout(layout)] => Some(f(layout).map(Value::Layout)),
        [Value::Swizzle(swizzle)] => Some(Ok(Value::Swizzle(*swizzle))),
        [Value::Composed(Composed { outer: Outer::Swizzle(swizzle), offset, layout })]
            if offset.is_zero() =>
        {
            Some(f(layout).and_then(|inverse| swizzle.after(&inverse)).map(decayed))
        }
        _ => None,
    }
}

/// A composed layout, or the layout itself where nothing comes after it.
fn decayed(composed: Composed) -> Value {
    match composed.outer {
        Outer::Swizzle(swizzle) if swizzle.bits() == 0 && composed.offset.is_zero() => {
            Value::Layout(composed.layout)
        }
        Outer::Swizzle(_) | Outer::Layout(_) => Value::Composed(composed),
    }
}

fn tiled(args: &[Value], f: fn(&Layout, &Tiler) -> Result<Layout>) -> Option<Result<Value>> {
    let [value, by] = args else { return None };
    let tiler = by.tiler()?;
    on_domain(value, |layout| f(layout, &tiler))
}

fn ranked(args: &[Value], f: fn(&Layout, &Layout) -> Result<Layout>) -> Option<Result<Value>> {
    let [block, Value::Layout(tiler)] = args else { return None };
    on_domain(block, |block| f(block, tiler))
}

fn eval_coalesce(args: &[Value]) -> Option<Result<Value>> {
    match args {
        [value] => on_domain(value, coalesce),
        [value, profile] => {
            let profile = profile.ints()?;
            on_domain(value, |layout| coalesce_by(layout, &profile))
        }
        _ => None,
    }
}

pub(super) fn eval_composition(args: &[Value]) -> Option<Result<Value>> {
    let outer = |value: &Value| match value {
        Value::Swizzle(swizzle) => Some(Outer::Swizzle(*swizzle)),
        Value::Layout(layout) => Some(Outer::Layout(layout.clone())),
        Value::Ints(_) | Value::Composed(_) | Value::Tiler(_) => None,
    };
    let composed = match args {
        [after, Value::Ints(IntTuple::Int(offset)), Value::Layout(layout)] => {
            Composed { outer: outer(after)?, offset: offset.clone(), layout: layout.clone() }
        }
        [Value::Swizzle(swizzle), Value::Layout(layout)] => {
            let outer = Outer::Swizzle(*swizzle);
            Composed { outer, offset: Stride::zero(), layout: layout.clone() }
        }
        [Value::Layout(layout), Value::Swizzle(swizzle)] => {
            return Some(swizzle.after(layout).map(decayed));
        }
        _ => return tiled(args, composition_by),
    };
    Some(Ok(decayed(composed)))
}

fn eval_complement(args: &[Value]) -> Option<Result<Value>> {
    match args {
        [Value::Layout(layout)] => Some(complement(layout, &layout.cosize()).map(Value::Layout)),
        [Value::Layout(layout), cotarget] => {
            let size = cotarget.ints()?.product();
            Some(size.and_then(|size| complement(layout, &size)).map(Value::Layout))
        }
        _ => None,
    }
}

fn eval_tile_to_shape(args: &[Value]) -> Option<Result<Value>> {
    let (block, shape, order) = match args {
        [block, shape] => (block, shape, None),
        [block, shape, order] => (block, shape, Some(order.ints()?)),
        _ => return None,
    };
    let shape = shape.ints()?;
    on_domain(block, |block| tile_to_shape(block, &shape, order.as_ref()))
}

fn eval_make_layout(args: &[Value]) -> Option<Result<Value>> {
    let layout = match args {
        [Value::Ints(_)] => Layout::column_major(&args[0].ints()?),
        [shape, Value::Ints(stride)] => Layout::new(&shape.ints()?, stride),
        _ => Layout::tuple(args.iter().cloned().map(Value::layout).collect::<Option<_>>()?),
    };
    Some(layout.map(Value::Layout))
}

fn eval_size(args: &[Value]) -> Option<Result<Value>> {
    match args {
        [shape @ Value::Ints(_)] => Some(shape.ints()?.product().map(int)),
        _ => of_domain(args, |layout| Ok(int(layout.size()))),
    }
}

fn eval_stride(args: &[Value]) -> Option<Result<Value>> {
    let [Value::Layout(layout)] = args else { return None };
    Some(Ok(Value::Ints(layout.stride())))
}

fn eval_crd2idx(args: &[Value]) -> Option<Result<Value>> {
    match args {
        [coord, Value::Layout(layout)] => {
            let coord = coord.ints()?;
            Some(crd2idx(&coord, layout).map(|offset| coordinate(offset, layout)))
        }
        [coord, Value::Composed(composed)] => {
            let offset = composed.crd2idx(&coord.ints()?);
            Some(offset.map(|offset| Value::Ints(IntTuple::Int(offset))))
        }
        [coord, shape, Value::Ints(stride)] => match Layout::new(&shape.ints()?, stride) {
            Ok(layout) => eval_crd2idx(&[coord.clone(), Value::Layout(layout)]),
            Err(error) => Some(Err(error)),
        },
        _ => None,
    }
}

/// A number, or a coordinate along each of the axes that a layout has.
fn coordinate(offset: Stride, layout: &Layout) -> Value {
    let leaves = layout.leaves();
    let axes = leaves.iter().flat_map(|leaf| leaf.stride.steps()).map(|step| step.0 + 1).max();
    let along = |axis| offset.steps().find(|step| step.0 == axis).map_or(0, |step| *step.1);
    let int = |axis| IntTuple::Int(Stride::from(along(axis)));
    Value::Ints(match axes {
        Some(axes) => IntTuple::Tuple((0..axes).map(int).collect()),
        None => IntTuple::Int(offset),
    })
}

fn eval_idx2crd(args: &[Value]) -> Option<Result<Value>> {
    let [index, of] = args else { return None };
    let IntTuple::Int(index) = index.ints()? else { return None };
    let coord = match of {
        Value::Ints(_) => {
            Layout::column_major(&of.ints()?).and_then(|layout| idx2crd(index, &layout))
        }
        Value::Layout(layout) | Value::Composed(Composed { layout, .. }) => idx2crd(index, layout),
        Value::Swizzle(_) | Value::Tiler(_) => return None,
    };
    Some(coord.map(|coord| ints(&coord)))
}
