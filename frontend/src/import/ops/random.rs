//! Random numbers.
//!
//! An element's number is a function of the run's seed, of which node of the model draws, and of the element's place:
//! every executor gives the same, every run of a model too, and a graph stays free of state. The function is
//! SplitMix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators, OOPSLA 2014), whose i-th number is a
//! hash of a key plus i times a constant; it is written here in operations on integers. A node's own attribute `seed`
//! stands for the run's, so that nothing else decides what it draws; without one the number of nodes that drew before
//! counts as well.

use super::helpers::Outputs;
use super::{Row, row};
use crate::dim::Dim;
use crate::dtype::DType;
use crate::graph::ValueId;
use crate::import::{Context, OpError, Reason};
use crate::op::{Binary, CumulativeOp, Op, ReduceOp, Unary};
use crate::tensor::Tensor;
use std::f64::consts::TAU;

/// The operators of this family.
pub(super) const ROWS: &[Row] = &[
    row("RandomUniform", 1, |c| {
        let shape = shape_attr(c)?;
        uniform(c, shape, DType::F32)
    }),
    row("RandomUniformLike", 1, |c| {
        let x = c.input(0)?;
        uniform(c, c.shape(x), c.dtype(x))
    }),
    row("RandomNormal", 1, |c| {
        let shape = shape_attr(c)?;
        normal(c, shape, DType::F32)
    }),
    row("RandomNormalLike", 1, |c| {
        let x = c.input(0)?;
        normal(c, c.shape(x), c.dtype(x))
    }),
    row("Bernoulli", 15, bernoulli),
    row("Multinomial", 7, multinomial),
    row("Dropout", 1, dropout),
];

/// The distance of two counters: 2⁶⁴ over the golden ratio, made odd.
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// The shifts and factors of the hash; the last shift is [`LAST`].
const ROUNDS: [(u64, u64); 2] = [(30, 0xbf58_476d_1ce4_e5b9), (27, 0x94d0_49bb_1331_11eb)];
const LAST: u64 = 31;

/// The hash of a number.
pub(in crate::import) fn hash(number: u64) -> u64 {
    let mixed =
        ROUNDS.iter().fold(number, |z, (shift, factor)| (z ^ (z >> shift)).wrapping_mul(*factor));
    mixed ^ (mixed >> LAST)
}

/// The key of a node that draws as the n-th of a model, counted from one, or of one with a seed of its own.
pub(in crate::import) fn key(seed: u64, n: u64) -> u64 {
    hash(hash(seed).wrapping_add(n.wrapping_mul(STEP)))
}

fn shape_attr(c: &Context<'_, '_>) -> Result<Vec<Dim>, OpError> {
    let sizes = c.ints("shape").ok_or_else(|| Reason::MissingAttribute("shape".into()))?;
    if let Some(size) = sizes.iter().find(|size| **size < 0) {
        return Err(Reason::NegativeSize(*size).into());
    }
    Ok(sizes.iter().copied().map(Dim::from).collect())
}

/// 64 random bits for each of `count` elements: the hash, in operations.
fn draw(c: &mut Context<'_, '_>, count: Dim) -> Result<ValueId, OpError> {
    // Dropout's own seed is an integer, the others' a number.
    let own = c.attribute("seed").map(|seed| (u64::from(seed.f.to_bits()) << 32) ^ seed.i as u64);
    let key = c.draw_key(own)?;
    let constant = |c: &mut Context<'_, '_>, number: u64| c.constant(Tensor::scalar(number));
    let counter = c.iota(count, 0, 1)?;
    let counter = c.cast(counter, DType::U64)?;
    let (step, key) = (constant(c, STEP), constant(c, key.wrapping_add(STEP)));
    let counter = c.times(counter, step)?;
    let mut z = c.plus(counter, key)?;
    for (shift, factor) in ROUNDS {
        z = folded(c, z, shift)?;
        let factor = constant(c, factor);
        z = c.times(z, factor)?;
    }
    folded(c, z, LAST)
}

/// z xor (z >> shift)
fn folded(c: &mut Context<'_, '_>, z: ValueId, shift: u64) -> Result<ValueId, OpError> {
    let shifted = right(c, z, shift)?;
    c.binary(Binary::BitXor, z, shifted)
}

fn right(c: &mut Context<'_, '_>, z: ValueId, shift: u64) -> Result<ValueId, OpError> {
    let shift = c.constant(Tensor::scalar(shift));
    c.binary(Binary::ShiftRight, z, shift)
}

/// The type that numbers of a type are drawn in.
fn working(dtype: DType) -> DType {
    if dtype == DType::F64 { DType::F64 } else { DType::F32 }
}

/// As many random numbers of [0, 1) as a shape has elements, multiples of 2⁻²⁴, or 2⁻⁵³ in fp64.
fn unit(c: &mut Context<'_, '_>, shape: Vec<Dim>, dtype: DType) -> Result<ValueId, OpError> {
    let bits = if dtype == DType::F64 { 53 } else { 24 };
    let z = draw(c, product(&shape))?;
    let z = right(c, z, 64 - bits)?;
    let z = c.cast(z, dtype)?;
    let z = c.scaled(z, (-(bits as f64)).exp2())?;
    c.reshape(z, shape)
}

fn product(shape: &[Dim]) -> Dim {
    shape.iter().product::<Dim>()
}

/// The float type of the result: an attribute, or else this one.
fn result_type(c: &Context<'_, '_>, default: DType) -> Result<DType, OpError> {
    let dtype = c.dtype_attr("dtype")?.unwrap_or(default);
    if dtype.is_float() { Ok(dtype) } else { Err(OpError::refuses(dtype)) }
}

fn uniform(c: &mut Context<'_, '_>, shape: Vec<Dim>, default: DType) -> Outputs {
    let dtype = result_type(c, default)?;
    let (low, high) = (f64::from(c.float_or("low", 0.0)), f64::from(c.float_or("high", 1.0)));
    let u = unit(c, shape, working(dtype))?;
    let u = c.scaled(u, high - low)?;
    let u = c.shifted(u, low)?;
    Ok(vec![c.cast_to(u, dtype)?])
}

/// By the polar form of Box and Muller: √(-2·ln u)·cos(2π·v), u and v being parts of the same 64 bits.
fn normal(c: &mut Context<'_, '_>, shape: Vec<Dim>, default: DType) -> Outputs {
    let dtype = result_type(c, default)?;
    let wide = working(dtype);
    let bits = if wide == DType::F64 { 32 } else { 24 };
    let unit = (-(bits as f64)).exp2();
    let z = draw(c, product(&shape))?;
    let first = right(c, z, 64 - bits)?;
    let u = c.cast(first, wide)?;
    // Of (0, 1], so that its logarithm is finite.
    let u = c.shifted(u, 1.0)?;
    let u = c.scaled(u, unit)?;
    let u = c.unary(Unary::Log, u)?;
    let u = c.scaled(u, -2.0)?;
    let radius = c.unary(Unary::Sqrt, u)?;
    let second = right(c, z, 64 - 2 * bits)?;
    let mask = c.constant(Tensor::scalar((1_u64 << bits) - 1));
    let second = c.binary(Binary::BitAnd, second, mask)?;
    let v = c.cast(second, wide)?;
    let v = c.scaled(v, TAU * unit)?;
    let v = c.unary(Unary::Cos, v)?;
    let y = c.times(radius, v)?;
    let y = c.scaled(y, f64::from(c.float_or("scale", 1.0)))?;
    let y = c.shifted(y, f64::from(c.float_or("mean", 0.0)))?;
    let y = c.reshape(y, shape)?;
    Ok(vec![c.cast_to(y, dtype)?])
}

/// One with the probability that the element is, else zero.
fn bernoulli(c: &mut Context<'_, '_>) -> Outputs {
    let x = c.input(0)?;
    let dtype = c.dtype_attr("dtype")?.unwrap_or(c.dtype(x));
    let wide = working(c.dtype(x));
    let p = c.cast_to(x, wide)?;
    let u = unit(c, c.shape(x), wide)?;
    let drawn = c.binary(Binary::Less, u, p)?;
    Ok(vec![c.cast_to(drawn, dtype)?])
}

/// `[b, classes] → [b, sample_size]`: classes by the logarithms of their weights, each drawn where the running sum of
/// probabilities passes a random number.
fn multinomial(c: &mut Context<'_, '_>) -> Outputs {
    let x = c.input(0)?;
    let shape = c.shape(x);
    let [batch, classes] = shape.as_slice() else {
        return Err(c.invalid(format!("needs [batch, classes]; got {} dims", shape.len())));
    };
    let samples = c.int_or("sample_size", 1);
    if samples < 1 {
        return Err(c.invalid(format!("sample_size must be at least 1; got {samples}")));
    }
    let dtype = c.dtype_attr("dtype")?.unwrap_or(DType::I32);
    if !matches!(dtype, DType::I32 | DType::I64) {
        return Err(OpError::refuses(dtype));
    }
    let wide = working(c.dtype(x));
    let x = c.cast_to(x, wide)?;
    let p = c.add(Op::Softmax { axis: 1, log: false }, &[x])?;
    let sums = Op::Cumulative { op: CumulativeOp::Sum, axis: 1, exclusive: false, reverse: false };
    let sums = c.add(sums, &[p])?;
    let sums = c.unsqueeze(sums, &[1])?;
    let u = unit(c, vec![batch.clone(), Dim::from(samples), Dim::from(1)], wide)?;
    let passed = c.binary(Binary::LessOrEqual, sums, u)?;
    let passed = c.cast(passed, DType::I64)?;
    let class = c.reduce(ReduceOp::Sum, passed, vec![2], false)?;
    // The last sum may be rounded to less than one.
    let last = c.size(classes - &Dim::from(1))?;
    let class = c.binary(Binary::Min, class, last)?;
    Ok(vec![c.cast_to(class, dtype)?])
}

/// In training, elements are zero with the probability of the ratio and the others larger; else they stay.
fn dropout(c: &mut Context<'_, '_>) -> Outputs {
    let x = c.input(0)?;
    let training = match c.optional(2) {
        Some(training) => match c.known(training) {
            Some(training) => training.bytes().first() != Some(&0),
            None => return Err(OpError::NeedsValue(training)),
        },
        None => false,
    };
    let ratio = match c.optional(1) {
        Some(ratio) if training => c.known_floats(ratio)?.first().copied().unwrap_or(0.5),
        _ => 0.5,
    };
    if training && ratio != 0.0 {
        return dropped(c, x, ratio);
    }
    let mut outputs = vec![x];
    if c.wants_output(1) {
        let dtype = if c.opset() < 10 { c.dtype(x) } else { DType::Bool };
        let one = c.scalar(dtype, 1.0)?;
        let shape = c.shape(x);
        outputs.push(c.add(Op::Expand(shape), &[one])?);
    }
    Ok(outputs)
}

fn dropped(c: &mut Context<'_, '_>, x: ValueId, ratio: f64) -> Outputs {
    if !(0.0..1.0).contains(&ratio) {
        return Err(
            c.invalid(format!("the ratio must be within 0 and 1, less than 1; got {ratio}"))
        );
    }
    let dtype = working(c.dtype(x));
    let u = unit(c, c.shape(x), dtype)?;
    let least = c.scalar(dtype, ratio)?;
    let kept = c.binary(Binary::GreaterOrEqual, u, least)?;
    let larger = c.scaled(x, 1.0 / (1.0 - ratio))?;
    let zero = c.scalar_like(x, 0.0)?;
    Ok(vec![c.select(kept, larger, zero)?, kept])
}
