//! Elements in registers: how they come and go, and functions of them.
//!
//! A thread holds vectors: register tensors `[n:1]`, where they are computed on in single precision,
//! or, if that is what a function computes with, in integers of 64 bits.

use super::quotient::{Reciprocal, quotient, reciprocal};
use crate::{
    Binary, Builder, Error, Expr, Feature, Function, Fused, Header, Kind, Layout, Memory, Number,
    Operand, Result, Scalar, Step, TensorId, Test, Tiler, Unary, build::Operands, function::Node,
    function::Value,
};

/// The bytes that a thread loads or stores at once.
pub const WIDTH: i64 = 16;

/// A register tensor `[n:1]`.
pub fn vector(k: &mut Builder, name: &str, n: i64, scalar: Scalar) -> Result<TensorId> {
    k.allocate(name, [Layout::of(n, 1)], scalar, Memory::Registers, None)
}

/// How many elements a tensor has, which must be known.
fn count(k: &Builder, of: TensorId) -> Result<i64> {
    let view = &k.tensor_of(of)?.view;
    view.size().constant().ok_or_else(|| Error::Shape(format!("{view} has no fixed size")))
}

/// Elements `[n]` of any memory, in registers and in single precision. Where they are `contiguous`
/// they are loaded 16 bytes at a time, or all at once if they are fewer.
pub fn load(k: &mut Builder, from: TensorId, contiguous: bool) -> Result<TensorId> {
    load_as(k, (from, contiguous), Scalar::F32)
}

/// The same as numbers of this type.
pub fn load_as(k: &mut Builder, from: (TensorId, bool), numbers: Scalar) -> Result<TensorId> {
    let raw = raw(k, from.0)?;
    copy(k, raw, from.0, from.1)?;
    widen_to(k, raw, numbers)
}

/// Registers for elements of global memory.
fn raw(k: &mut Builder, from: TensorId) -> Result<TensorId> {
    let (n, scalar) = (count(k, from)?, k.tensor_of(from)?.scalar);
    vector(k, "raw", n, scalar)
}

/// Elements `[n]` of global memory, in registers and in single precision; 0 beyond the edge. If
/// they are `wide`, they are contiguous, and all of them lie within or none does.
pub fn load_inside(k: &mut Builder, from: TensorId, wide: bool) -> Result<TensorId> {
    let raw = raw(k, from)?;
    fetch_inside(k, raw, from, wide)?;
    widen(k, raw)
}

/// The same elements into registers `[n]` of their type.
pub fn fetch_inside(k: &mut Builder, raw: TensorId, from: TensorId, wide: bool) -> Result {
    let n = count(k, raw)?;
    each(k, n, |k, i| k.init(Operand::at(raw, [i]), 0.0))?;
    copy_inside(k, [raw, from], from, wide)
}

/// Stores what registers hold in single precision as elements `[n]` of global memory that lie
/// within it. `wide` is as for [`load_inside`].
pub fn store_inside(k: &mut Builder, to: TensorId, from: TensorId, wide: bool) -> Result {
    let narrow = narrowed(k, from, to)?;
    copy_inside(k, [to, narrow], to, wide)
}

/// Copies the elements that lie within `global`, which is one of the two sides.
fn copy_inside(k: &mut Builder, [to, from]: [TensorId; 2], global: TensorId, wide: bool) -> Result {
    if wide {
        return k.if_(Test::Inside(global.into()), |k| copy(k, to, from, true));
    }
    let n = count(k, to)?;
    each(k, n, |k, i| {
        let at = |tensor| Operand::at(tensor, [&i]);
        k.if_(Test::Inside(at(global)), |k| k.move_(at(to), at(from)))
    })
}

/// A vector in single precision.
pub fn widen(k: &mut Builder, raw: TensorId) -> Result<TensorId> {
    widen_to(k, raw, Scalar::F32)
}

fn widen_to(k: &mut Builder, raw: TensorId, numbers: Scalar) -> Result<TensorId> {
    if k.tensor_of(raw)?.scalar == numbers {
        return Ok(raw);
    }
    let n = count(k, raw)?;
    let wide = vector(k, "wide", n, numbers)?;
    each(k, n, |k, i| k.move_(Operand::at(wide, [&i]), Operand::at(raw, [&i])))?;
    Ok(wide)
}

/// Stores what registers hold in single precision as elements `[n]`, rounded to their type.
pub fn store(k: &mut Builder, to: TensorId, from: TensorId, contiguous: bool) -> Result {
    let narrow = narrowed(k, from, to)?;
    copy(k, to, narrow, contiguous)
}

/// A vector rounded from single precision to the type of `to`.
fn narrowed(k: &mut Builder, from: TensorId, to: TensorId) -> Result<TensorId> {
    let (n, scalar) = (count(k, from)?, k.tensor_of(to)?.scalar);
    if scalar == k.tensor_of(from)?.scalar {
        return Ok(from);
    }
    let narrow = vector(k, "narrow", n, scalar)?;
    round(k, narrow, from)?;
    Ok(narrow)
}

/// Rounds registers `[n]` of single precision, two at a time where one instruction does that.
pub fn round(k: &mut Builder, to: TensorId, from: TensorId) -> Result {
    let (n, scalar) = (count(k, to)?, k.tensor_of(to)?.scalar);
    let single = k.tensor_of(from)?.scalar == Scalar::F32;
    let pairs = single && scalar.is_float() && n % 2 == 0 && k.arch().has(Feature::PackedCvt);
    moves(k, [to, from], ["narrow_pairs", "wide_pairs"], if pairs { 2 } else { 1 })
}

/// Copies elements `[n]` of one type, by the widest moves that their number admits.
pub fn copy(k: &mut Builder, to: TensorId, from: TensorId, contiguous: bool) -> Result {
    let (n, scalar) = (count(k, to)?, k.tensor_of(from)?.scalar);
    let width = if contiguous { width(n, scalar) } else { 1 };
    moves(k, [to, from], ["to_parts", "from_parts"], width)
}

/// Moves elements `[n]`, so many at a time.
fn moves(k: &mut Builder, [to, from]: [TensorId; 2], names: [&str; 2], width: i64) -> Result {
    let n = count(k, to)?;
    let to = k.tile(to, names[0], &[Tiler::Size(width)])?;
    let from = k.tile(from, names[1], &[Tiler::Size(width)])?;
    each(k, n / width, |k, i| k.move_(Operand::at(to, [&i]), Operand::at(from, [&i])))
}

/// How many of `n` contiguous elements one move has: 16, 8 or 4 bytes, else a single element.
fn width(n: i64, scalar: Scalar) -> i64 {
    let bytes = scalar.bytes();
    let fits = |width: &i64| bytes <= 4 && width % bytes == 0 && n % (width / bytes) == 0;
    [WIDTH, 8, 4].into_iter().find(fits).map_or(1, |width| width / bytes)
}

/// `body` for every element, written out.
pub fn each(k: &mut Builder, n: i64, body: impl FnOnce(&mut Builder, Expr) -> Result) -> Result {
    match n {
        0 => Ok(()),
        1 => body(k, Expr::from(0)),
        _ => k.unroll("i", n, |k, i| body(k, i.into())),
    }
}

/// A function's outputs in vectors `[n]` of new registers, which are numbers of this type.
pub fn computed(
    k: &mut Builder,
    function: &Function,
    (name, n, numbers): (&str, i64, Scalar),
    ins: &[TensorId],
) -> Result<Vec<TensorId>> {
    let outs = function.outputs().iter().map(|_| vector(k, name, n, numbers));
    let outs = outs.collect::<Result<Vec<_>>>()?;
    pointwise(k, function, &outs, ins)?;
    Ok(outs)
}

/// Applies a function to each element of vectors in single precision, or of integers; an input
/// of one element is that of all of them. `outs` may be among `ins`.
pub fn pointwise(k: &mut Builder, f: &Function, outs: &[TensorId], ins: &[TensorId]) -> Result {
    let (n, numbers) = (count(k, outs[0])?, k.tensor_of(outs[0])?.scalar);
    let (fused, used) = Fused::of(f, &[]).over_used();
    let used: Vec<TensorId> = used.into_iter().map(|input| ins[input]).collect();
    let header = Header::alone(Kind::Fused(fused), outs.to_vec(), used);
    k.decompose(header, |k| {
        each(k, n, |k, i| {
            let values = steps(k, f, ins, numbers, &i)?;
            outs.iter().zip(f.outputs()).try_for_each(|(&out, value)| {
                k.move_(Operand::at(out, [&i]), values[value.index()].clone())
            })
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
) -> Result<Vec<Operand>> {
    let mut values: Vec<Operand> = Vec::new();
    for step in function.steps() {
        let of: Vec<Operand> = step.operands().map(|value| values[value.index()].clone()).collect();
        let kind = match step {
            Step::Input(input) => {
                let view = &k.tensor_of(ins[*input])?.view;
                values.push(match view.levels() {
                    [] => ins[*input].into(),
                    _ if view.size().is(1) => Operand::at(ins[*input], [0]),
                    _ => Operand::at(ins[*input], [element]),
                });
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
            k.move_(rounded, of)?;
            k.move_(value, rounded)?;
        } else if let Some(by) = known_divisor(function, step).filter(|_| numbers == Scalar::F32) {
            quotient(k, value, &of[0], by)?;
        } else if numbers == Scalar::F32
            // Before, clamps are comparisons, and compilers may fuse what is clamped with the addition.
            && k.arch().has(Feature::CpAsync)
            && is_small_rounding(function, step)
        {
            rounded_by_sums(k, value, &of[0])?;
        } else {
            k.alone(kind, value, of)?;
        }
        values.push(value.into());
    }
    Ok(values)
}

/// The number that a division is by, and by what that multiplies instead.
fn known_divisor(function: &Function, step: &Step) -> Option<(f64, Reciprocal)> {
    let Step::Binary(Binary::Div, _, by) = step else { return None };
    let Step::Constant(number) = function.steps()[by.index()] else { return None };
    Some((number.0, reciprocal(number.0 as f32)?))
}

/// 1.5·2²³: added to a number of at most 2²², it leaves a sum without a fraction in single precision.
const NO_FRACTION: f64 = 12_582_912.0;

/// Whether a step rounds what has just been clamped to numbers of at most 2²² on either side.
fn is_small_rounding(function: &Function, step: &Step) -> bool {
    let step_of = |value: Value| &function.steps()[value.index()];
    let is_small = |value: Value| match step_of(value) {
        Step::Constant(Number(bound)) => bound.abs() <= 4_194_304.0,
        _ => false,
    };
    let Step::Unary(Unary::Round, x) = step else { return false };
    let Step::Binary(last, y, bound) = step_of(*x) else { return false };
    let Step::Binary(first, _, other) = step_of(*y) else { return false };
    let clamps = [[last, first], [first, last]].contains(&[&Binary::MinNan, &Binary::MaxNan]);
    clamps && is_small(*bound) && is_small(*other)
}

/// `to = round(x)` of a number of at most 2²²: adds and subtracts [`NO_FRACTION`], and restores the sign, which matters to 0. The
/// instruction that rounds has the rate of conversions, a quarter of theirs or less (CUDA programming guide, "Arithmetic
/// Instructions").
fn rounded_by_sums(k: &mut Builder, to: TensorId, x: &Operand) -> Result {
    k.decompose(Header::alone(Kind::Unary(Unary::Round), to, x.clone()), |k| {
        let large = constant(k, "large", Scalar::F32, NO_FRACTION)?;
        k.binary(Binary::Add, to, [x.clone(), large.into()])?;
        k.binary(Binary::Sub, to, [to, large])?;
        k.binary(Binary::CopySign, to, [to.into(), x.clone()])
    })
}

/// A register.
pub fn number(k: &mut Builder, name: &str, scalar: Scalar) -> Result<TensorId> {
    let shape: [Layout<Expr>; 0] = [];
    k.allocate(name, shape, scalar, Memory::Registers, None)
}

/// A register that begins as this number.
pub fn constant(k: &mut Builder, name: &str, scalar: Scalar, value: f64) -> Result<TensorId> {
    let register = number(k, name, scalar)?;
    k.init(register, value)?;
    Ok(register)
}

/// A register that an element is moved to.
pub fn moved(
    k: &mut Builder,
    name: &str,
    scalar: Scalar,
    from: impl Into<Operands>,
) -> Result<TensorId> {
    let register = number(k, name, scalar)?;
    k.move_(register, from)?;
    Ok(register)
}
