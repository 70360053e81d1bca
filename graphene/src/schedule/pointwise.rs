//! Elements in registers: how they come and go, and functions of them.
//!
//! A thread holds vectors: register tensors `[n:1]`, where they are computed on in single precision,
//! or, if that is what a function computes with, in integers of 64 bits.

use crate::arch::Feature;
use crate::build::{Builder, Header};
use crate::error::Result;
use crate::function::{Function, Node, Step};
use crate::index::Expr;
use crate::kernel::{Fused, Kind, Number, Operand, TensorId, Test, ThreadsId};
use crate::layout::{Layout, Tiler};
use crate::tensor::{Memory, Scalar};

/// The bytes that a thread loads or stores at once.
pub const WIDTH: i64 = 16;

/// A register tensor `[n:1]`.
pub fn vector(k: &mut Builder, name: &str, n: i64, scalar: Scalar) -> Result<TensorId> {
    k.allocate(name, [Layout::of(n, 1)], scalar, Memory::Registers, None)
}

/// Elements `[n]` of any memory, in registers and in single precision. Where they are `contiguous`
/// they are loaded 16 bytes at a time, or all at once if they are fewer.
pub fn load(
    k: &mut Builder,
    from: TensorId,
    n: i64,
    contiguous: bool,
    one: ThreadsId,
) -> Result<TensorId> {
    load_as(k, from, n, contiguous, Scalar::F32, one)
}

/// The same as numbers of this type.
pub fn load_as(
    k: &mut Builder,
    from: TensorId,
    n: i64,
    contiguous: bool,
    numbers: Scalar,
    one: ThreadsId,
) -> Result<TensorId> {
    let scalar = k.tensor_of(from)?.scalar;
    let raw = vector(k, "raw", n, scalar)?;
    copy(k, raw, from, n, contiguous, one)?;
    widen_to(k, raw, n, numbers, one)
}

/// Elements `[n]` of global memory, in registers and in single precision; 0 beyond the edge. If
/// they are `wide`, they are contiguous, and all of them lie within or none does.
pub fn load_inside(
    k: &mut Builder,
    from: TensorId,
    n: i64,
    wide: bool,
    one: ThreadsId,
) -> Result<TensorId> {
    let scalar = k.tensor_of(from)?.scalar;
    let raw = vector(k, "raw", n, scalar)?;
    fetch_inside(k, raw, from, n, wide, one)?;
    widen(k, raw, n, one)
}

/// The same elements into registers `[n]` of their type.
pub fn fetch_inside(
    k: &mut Builder,
    raw: TensorId,
    from: TensorId,
    n: i64,
    wide: bool,
    one: ThreadsId,
) -> Result<()> {
    each(k, n, |k, i| k.spec(Kind::Init(Number(0.0)), Operand::at(raw, [i]), (), one))?;
    if wide {
        return k.if_(Test::Inside(from.into()), |k| copy(k, raw, from, n, true, one));
    }
    moves_inside(k, raw, from, from, n, one)
}

/// Stores what registers hold in single precision as elements `[n]` of global memory that lie
/// within it. `wide` is as for [`load_inside`].
pub fn store_inside(
    k: &mut Builder,
    to: TensorId,
    from: TensorId,
    n: i64,
    wide: bool,
    one: ThreadsId,
) -> Result<()> {
    let scalar = k.tensor_of(to)?.scalar;
    let narrow = narrowed(k, from, n, scalar, one)?;
    if wide {
        k.if_(Test::Inside(to.into()), |k| copy(k, to, narrow, n, true, one))
    } else {
        moves_inside(k, to, narrow, to, n, one)
    }
}

/// Moves each of `n` elements that lies within `global`, which is one of the two sides.
fn moves_inside(
    k: &mut Builder,
    to: TensorId,
    from: TensorId,
    global: TensorId,
    n: i64,
    one: ThreadsId,
) -> Result<()> {
    each(k, n, |k, i| {
        let at = |tensor| Operand::at(tensor, [&i]);
        k.if_(Test::Inside(at(global)), |k| k.spec(Kind::Move, at(to), at(from), one))
    })
}

/// A vector in single precision.
pub fn widen(k: &mut Builder, raw: TensorId, n: i64, one: ThreadsId) -> Result<TensorId> {
    widen_to(k, raw, n, Scalar::F32, one)
}

fn widen_to(
    k: &mut Builder,
    raw: TensorId,
    n: i64,
    numbers: Scalar,
    one: ThreadsId,
) -> Result<TensorId> {
    if k.tensor_of(raw)?.scalar == numbers {
        return Ok(raw);
    }
    let wide = vector(k, "wide", n, numbers)?;
    each(k, n, |k, i| k.spec(Kind::Move, Operand::at(wide, [&i]), Operand::at(raw, [&i]), one))?;
    Ok(wide)
}

/// Stores what registers hold in single precision as elements `[n]`, rounded to their type.
pub fn store(
    k: &mut Builder,
    to: TensorId,
    from: TensorId,
    n: i64,
    contiguous: bool,
    one: ThreadsId,
) -> Result<()> {
    let scalar = k.tensor_of(to)?.scalar;
    let narrow = narrowed(k, from, n, scalar, one)?;
    copy(k, to, narrow, n, contiguous, one)
}

/// A vector rounded from single precision to a type: two elements at a time where one instruction
/// does that.
fn narrowed(
    k: &mut Builder,
    from: TensorId,
    n: i64,
    scalar: Scalar,
    one: ThreadsId,
) -> Result<TensorId> {
    if scalar == k.tensor_of(from)?.scalar {
        return Ok(from);
    }
    let narrow = vector(k, "narrow", n, scalar)?;
    let pairs = scalar.is_float() && n % 2 == 0 && k.arch().has(Feature::PackedCvt);
    let size = if pairs { 2 } else { 1 };
    let to = k.tile(narrow, "narrow_pairs", &[Tiler::Size(size)])?;
    let from = k.tile(from, "wide_pairs", &[Tiler::Size(size)])?;
    each(k, n / size, |k, i| {
        k.spec(Kind::Move, Operand::at(to, [&i]), Operand::at(from, [&i]), one)
    })?;
    Ok(narrow)
}

/// Copies elements `[n]` of one type, by the widest moves that their number admits.
pub fn copy(
    k: &mut Builder,
    to: TensorId,
    from: TensorId,
    n: i64,
    contiguous: bool,
    one: ThreadsId,
) -> Result<()> {
    let width = if contiguous { width(n, k.tensor_of(from)?.scalar) } else { 1 };
    let to = k.tile(to, "to_parts", &[Tiler::Size(width)])?;
    let from = k.tile(from, "from_parts", &[Tiler::Size(width)])?;
    each(k, n / width, |k, i| {
        k.spec(Kind::Move, Operand::at(to, [&i]), Operand::at(from, [&i]), one)
    })
}

/// How many of `n` contiguous elements one move has: 16, 8 or 4 bytes, else a single element.
fn width(n: i64, scalar: Scalar) -> i64 {
    let bytes = scalar.bytes();
    let fits = |width: &i64| bytes <= 4 && width % bytes == 0 && n % (width / bytes) == 0;
    [WIDTH, 8, 4].into_iter().find(fits).map_or(1, |width| width / bytes)
}

/// `body` for every element, written out.
pub fn each(
    k: &mut Builder,
    n: i64,
    body: impl FnOnce(&mut Builder, Expr) -> Result<()>,
) -> Result<()> {
    if n == 1 {
        return body(k, Expr::from(0));
    }
    k.for_("i", 0..n, 1, true, |k, i| body(k, i.into()))
}

/// Applies a function to each of `n` elements of vectors in single precision, or of integers; an input
/// of one element is that of all of them. `outs` may be among `ins`.
pub fn pointwise(
    k: &mut Builder,
    function: &Function,
    outs: &[TensorId],
    ins: &[TensorId],
    n: i64,
    one: ThreadsId,
) -> Result<()> {
    let (fused, used) = Fused::of(function, &[]).over_used();
    let used: Vec<TensorId> = used.into_iter().map(|input| ins[input]).collect();
    let header = Header::new(Kind::Fused(fused), outs.to_vec(), used, one);
    k.decompose(header, |k| {
        each(k, n, |k, i| {
            let numbers = k.tensor_of(outs[0])?.scalar;
            let values = steps(k, function, ins, numbers, &i, one)?;
            for (&out, value) in outs.iter().zip(function.outputs()) {
                let out = Operand::at(out, [&i]);
                k.spec(Kind::Move, out, values[value.index()].clone(), one)?;
            }
            Ok(())
        })
    })
}

/// The value of every step for one element.
fn steps(
    k: &mut Builder,
    function: &Function,
    ins: &[TensorId],
    numbers: Scalar,
    element: &Expr,
    one: ThreadsId,
) -> Result<Vec<Operand>> {
    let mut values: Vec<Operand> = Vec::new();
    for step in function.steps() {
        let operands: Vec<Operand> =
            step.operands().map(|value| values[value.index()].clone()).collect();
        let kind = match step {
            Step::Input(input) => {
                values.push(input_element(k, ins[*input], element)?);
                continue;
            }
            Step::Constant(number) => Kind::Init(*number),
            Step::Unary(op, _) => Kind::Unary(*op),
            Step::Binary(op, ..) => Kind::Binary(*op),
            Step::Select(..) => Kind::Select,
            Step::Round(..) => Kind::Move,
        };
        let value = number(k, "value", numbers)?;
        if let Step::Round(scalar, _) = step
            && *scalar != numbers
        {
            let rounded = number(k, "rounded", *scalar)?;
            k.spec(Kind::Move, rounded, operands, one)?;
            k.spec(Kind::Move, value, rounded, one)?;
        } else {
            k.spec(kind, value, operands, one)?;
        }
        values.push(value.into());
    }
    Ok(values)
}

fn input_element(k: &Builder, input: TensorId, element: &Expr) -> Result<Operand> {
    let view = &k.tensor_of(input)?.view;
    Ok(match view.levels() {
        [] => input.into(),
        _ if view.size().is(1) => Operand::at(input, [0]),
        _ => Operand::at(input, [element]),
    })
}

/// A register.
pub fn number(k: &mut Builder, name: &str, scalar: Scalar) -> Result<TensorId> {
    let shape: [Layout<Expr>; 0] = [];
    k.allocate(name, shape, scalar, Memory::Registers, None)
}
