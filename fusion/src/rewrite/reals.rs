//! What quantised models compute between bytes and reals, on a GPU, as reals alone.
//!
//! A kernel there computes with reals or with integers, so each conversion between them would end a launch. Two computations are
//! exact in single precision: a byte less a zero point, and rounding and clamping to where bytes are, which gives the number that
//! the byte is (but for the sign of zero). So images between two operators stay reals, and conversions are part of what makes
//! them. Matmuls of such numbers run on tensor cores, with operands in fp16 and sums in fp32.

use super::integers::{
    in_order, is_byte, is_largest, known, number, range_of, reorders, under_views, viewed,
};
use super::ranges::either;
use super::tidy::pruned;
use crate::base::rebuild::{InPlace, Rebuilt, Replaced, rebuilt};
use graphene_frontend::op::{Binary, Op, Unary};
use graphene_frontend::{DType, Dim, Graph, Node, NodeId, Tensor, ValueId};

/// Whole numbers up to this magnitude have exact sums and differences, of the types in which bytes are quantised.
fn exact(dtype: DType) -> Option<f32> {
    match dtype {
        DType::F32 => Some(8_388_608.0),
        DType::F16 => Some(1024.0),
        _ => None,
    }
}

/// The graph with reals in place of what is dequantised from bytes, and in place of bytes that are only dequantised or widened;
/// and without what changes no whole number, as where something is quantised twice; matmuls and convolutions of numbers that bytes
/// hold are `WideMatMul`s and `WideConv`s of fp16. Biases of convolutions of integers become additions.
pub(crate) fn as_reals(graph: &Graph) -> Rebuilt<Graph> {
    // Whether nothing else reads what the node reads first.
    let is_alone = |node: &Node| node.input(0).and_then(|x| graph.only_reader(x.node)).is_some();
    let result = rebuilt(graph, |mut at, id, inputs| match (at.node.op(), inputs) {
        (Op::Cast { to: DType::F32, .. }, &[Some(x)]) => {
            let sum = if is_alone(at.node) { wide_sum(&mut at, x)? } else { None };
            sum.map_or_else(|| difference(&mut at, x), |sum| Ok(Some(sum)))
        }
        (Op::Cast { to: DType::I32, .. }, &[Some(x)]) => {
            bytes(&mut at, x, By::Reals)?.map(|real| at.cast(DType::I32, real)).transpose()
        }
        (Op::Binary(Binary::Sub), &[Some(a), Some(b)]) if at.graph.ty(a).dtype == DType::I32 => {
            let [a, b] = [bytes(&mut at, a, By::Reals)?, bytes(&mut at, b, By::Reals)?];
            let (Some(a), Some(b)) = (a, b) else { return Ok(None) };
            // NaN becomes 0 as an integer, so that the model has `0 - b` where a is NaN; the difference of reals would be NaN, and
            // become 0. So integers stay, unless b is NaN wherever a is (quotients by one scale, which may be 0), or is 0.
            let [of_a, of_b] = [a, b].map(|x| Range::of(at.graph, x, DEEPEST).nan);
            let alike = of_a == of_b && of_a != NaN::Perhaps;
            if !alike && number(at.graph, b) != Some(0.0) {
                return Ok(None);
            }
            let real = less(&mut at, a, b)?;
            at.cast(DType::I32, real).map(Some)
        }
        // Kernels of convolutions add biases in single precision.
        (Op::Conv(attrs), &[Some(x), Some(w), Some(bias)])
            if at.graph.ty(x).dtype == DType::I32 =>
        {
            let (sum, axes) = (Op::Conv(attrs.clone()), attrs.strides.len());
            let sum = at.add(sum, &[x, w])?;
            let mut shape = at.graph.ty(bias).shape.clone();
            shape.extend(vec![Dim::from(1); axes]);
            let bias = at.add(Op::Reshape(shape), &[bias])?;
            at.binary(Binary::Add, sum, bias).map(Some)
        }
        (Op::MatMul, &[Some(a), Some(b)]) => scaled_wide_matmul(&mut at, a, b),
        (Op::Conv(_), _) => scaled_wide_conv(&mut at, inputs),
        (Op::Pool(pool), &[Some(x)]) if is_largest(pool) && feeds_functions(graph, id) => {
            pooled_first(&mut at, x)
        }
        (op, &[Some(x), ..]) => match kept(at.graph, op, x, inputs.get(1).copied().flatten()) {
            None if is_alone(at.node) => rounded_last(&mut at, inputs),
            known => Ok(known),
        },
        _ => Ok(None),
    })?;
    stored_in_fp16(&pruned(&result)?)
}

/// The graph with whole numbers in fp16, which holds them, so that launches store them so: those that one reader has in fp16 and others
/// do not, and those of two dequantised values that are added, of which one stands in memory.
fn stored_in_fp16(graph: &Graph) -> Rebuilt<Graph> {
    let is_to_fp16 = |op: &Op| matches!(op, Op::Cast { to: DType::F16, .. });
    let is_dequantised = |value: ValueId| {
        let factors = graph.operands(value, &Op::Binary(Binary::Mul));
        factors.is_some_and(|factors: [_; 2]| factors.into_iter().any(|x| fits_fp16(graph, x)))
    };
    let is_shared = |id: NodeId| {
        let uses = graph.uses(id);
        uses.len() > 1 && uses.iter().any(|(reader, _)| is_to_fp16(graph.node(*reader).op()))
    };
    let is_added = |id: NodeId| {
        let sum = graph.only_reader(id).and_then(|scaled| graph.only_reader(scaled));
        let terms = sum.and_then(|sum| graph.operands(sum.value(), &Op::Binary(Binary::Add)));
        terms.is_some_and(|terms: [_; 2]| terms.into_iter().all(is_dequantised))
    };
    rebuilt(graph, |mut at, id, inputs| match (at.node.op(), inputs) {
        (op, &[Some(x)]) if is_to_fp16(op) => {
            let back = at.graph.operands(x, &Op::Cast { to: DType::F32, saturate: true });
            Ok(back.map(|[half]| half).filter(|half| at.graph.ty(*half).dtype == DType::F16))
        }
        (op @ (Op::Unary(Unary::Round | Unary::Relu) | Op::Binary(_)), inputs)
            if (is_shared(id) || is_added(id)) && fits_fp16(graph, id.value()) =>
        {
            let number = at.add_optional(op.clone(), inputs)?;
            let half = at.cast(DType::F16, number)?;
            at.cast(DType::F32, half).map(Some)
        }
        _ => Ok(None),
    })
}

/// A rounded number that is clamped between whole numbers, clamped before it is rounded: rounding numbers that are small takes fewer
/// instructions.
fn rounded_last(at: &mut InPlace<'_>, inputs: &[Option<ValueId>]) -> Replaced {
    let bound = clamped_to(at.graph, at.node.op(), inputs.get(1).copied().flatten());
    let x = inputs[0].filter(|x| at.graph.ty(*x).dtype == DType::F32);
    let x = x.filter(|_| bound.is_some_and(|bound| bound.fract() == 0.0));
    let x = x.map(|x| at.graph.operation(x));
    let Some((Op::Unary(Unary::Round), &[Some(x)])) = x else { return Ok(None) };
    let inputs = [&[Some(x)], &inputs[1..]].concat();
    let clamped = at.add_optional(at.node.op().clone(), &inputs)?;
    at.add(Op::Unary(Unary::Round), &[clamped]).map(Some)
}

/// The number that an operation clamps to from below or above, if it is known.
fn clamped_to(graph: &Graph, op: &Op, by: Option<ValueId>) -> Option<f32> {
    match op {
        Op::Unary(Unary::Relu) => Some(0.0),
        Op::Binary(Binary::Min | Binary::Max) => number(graph, by?),
        _ => None,
    }
}

/// `clamp(round(x) + z) - z` as `round(clamp(x))`, with bounds that are less by z.
fn clamped_around_zero(at: &mut InPlace<'_>, a: ValueId, z: f32) -> Replaced {
    let (ty, mut value, mut clamps) = (at.graph.ty(a).clone(), a, Vec::new());
    let x = loop {
        let node = at.graph.node(value.node);
        let (op, x, by) = (node.op(), node.input(0), node.input(1));
        let Some(x) = x.filter(|x| *at.graph.ty(*x) == ty) else { return Ok(None) };
        match (clamped_to(at.graph, op, by), op) {
            (Some(bound), _) if bound.fract() == 0.0 => {
                let op = if *op == Op::Binary(Binary::Min) { Binary::Min } else { Binary::Max };
                clamps.push((op, bound - z));
                value = x;
            }
            (_, Op::Binary(Binary::Add)) if by.and_then(|by| number(at.graph, by)) == Some(z) => {
                break x;
            }
            _ => return Ok(None),
        }
    };
    let x = at.graph.operation(x);
    let (Op::Unary(Unary::Round), &[Some(rounded)]) = x else { return Ok(None) };
    if clamps.is_empty() || ty.dtype != DType::F32 {
        return Ok(None);
    }
    let clamped = clamps.into_iter().rev().try_fold(rounded, |x, (op, bound)| {
        let bound = at.constant(Tensor::scalar(bound));
        at.binary(op, x, bound)
    })?;
    at.add(Op::Unary(Unary::Round), &[clamped]).map(Some)
}

/// A matmul or convolution of 32-bit integers that is converted to single precision, as a wide one of fp16 for tensor cores, if fp16
/// holds both operands and no sum overflows 32 bits. Sums are exact up to 2²⁴; beyond, partial sums are rounded, where the model
/// rounds the last one.
fn wide_sum(at: &mut InPlace<'_>, sum: ValueId) -> Replaced {
    let (op, &[Some(a), Some(b)]) = at.graph.operation(sum) else { return Ok(None) };
    let (wide, depth) = match op {
        Op::MatMul => (Op::WideMatMul, at.graph.ty(a).shape.last().and_then(Dim::known)),
        Op::Conv(attrs) => {
            let window = at.graph.ty(b).shape[1..].iter().product::<Dim>();
            (Op::WideConv(attrs.clone()), window.known())
        }
        _ => return Ok(None),
    };
    let [of_a, of_b] = [a, b].map(|x| largest(at.graph, x).filter(|&most| most <= MOST_IN_FP16));
    let most = of_a.zip(of_b).zip(depth).map(|((a, b), depth)| a * b * depth as f32);
    if most.is_none_or(|most| most >= 2f32.powi(31)) {
        return Ok(None);
    }
    let operands = [in_fp16(at, a)?, in_fp16(at, b)?];
    at.add(wide, &operands).map(Some)
}

/// `MatMul(x·s, w·t)` as `WideMatMul(x, w)·(s·t)`, where x and w are whole numbers that fp16 holds, and s and t constant scales, if
/// any. Sums round as those of [`wide_sum`]; the model rounds each scaled term.
fn scaled_wide_matmul(at: &mut InPlace<'_>, a: ValueId, b: ValueId) -> Replaced {
    let both = scaled(at.graph, a).zip(scaled(at.graph, b));
    let Some(((x, row), (w, column))) = both else { return Ok(None) };
    let shape = |scale: Option<ValueId>| scale.map_or(&[][..], |scale| &at.graph.ty(scale).shape);
    // s is one number; t may be one for each column. What varies along K is no factor of the sum.
    let [of_x, of_w] = [shape(row), shape(column)];
    let others = of_w.iter().rev().skip(1).chain(of_x);
    let fits = of_x.len() <= 1 && of_w.len() <= at.graph.ty(w).rank();
    if !fits || others.into_iter().any(|size| *size != 1) {
        return Ok(None);
    }
    let operands = [in_fp16(at, x)?, in_fp16(at, w)?];
    let sum = at.add(Op::WideMatMul, &operands)?;
    let scale = match (column, row) {
        (Some(column), Some(row)) => Some(at.binary(Binary::Mul, column, row)?),
        (column, row) => column.or(row),
    };
    at.with(Binary::Mul, sum, scale).map(Some)
}

/// `Conv(x·s, w·t, bias)` as `WideConv(x, w)·(s·t) + bias` likewise, where t may be one for each filter.
fn scaled_wide_conv(at: &mut InPlace<'_>, inputs: &[Option<ValueId>]) -> Replaced {
    let read = (at.node.op(), inputs);
    let (Op::Conv(attrs), &[Some(x), Some(w), ref bias @ ..]) = read else { return Ok(None) };
    let both = scaled(at.graph, x).zip(scaled(at.graph, w));
    let Some(((x, image), (w, filters))) = both else { return Ok(None) };
    let shape = |scale: Option<ValueId>| scale.map_or(&[][..], |scale| &at.graph.ty(scale).shape);
    let rank = at.graph.ty(w).rank();
    let of_filters = shape(filters);
    let others = of_filters.iter().skip(usize::from(of_filters.len() == rank)).chain(shape(image));
    if others.into_iter().any(|size| *size != 1) {
        return Ok(None);
    }
    let scale = |value| known(at.graph, value, &[1.0]);
    let bias = known(at.graph, bias.first().copied().flatten(), &[]);
    let scales = scale(image).zip(scale(filters)).zip(bias);
    let Some(((image, mut factors), bias)) = scales else { return Ok(None) };
    factors.iter_mut().for_each(|factor| *factor *= image[0]);
    let wide = Op::WideConv(attrs.clone());
    let operands = [in_fp16(at, x)?, in_fp16(at, w)?];
    let sum = at.add(wide, &operands)?;
    let factors = at.per_filter(factors, rank - 2);
    let scaled = at.binary(Binary::Mul, sum, factors)?;
    let bias = (!bias.is_empty()).then(|| at.per_filter(bias, rank - 2));
    at.with(Binary::Add, scaled, bias).map(Some)
}

/// Whether all that reads a node is a function of elements: a launch that can take over what is moved behind the node.
fn feeds_functions(graph: &Graph, id: NodeId) -> bool {
    let uses = graph.uses(id);
    let is_of_elements =
        |id: NodeId| matches!(graph.node(id).op(), Op::Unary(_) | Op::Binary(_) | Op::Cast { .. });
    !uses.is_empty() && !graph.gives(id) && uses.iter().all(|(reader, _)| is_of_elements(*reader))
}

/// `MaxPool(f(x))` as `f(MaxPool(x))` in fp16, where x is whole numbers that fp16 holds, and f is Relu and multiplications by positive
/// constants, which keep order.
fn pooled_first(at: &mut InPlace<'_>, pooled: ValueId) -> Replaced {
    let (mut numbers, mut f) = (pooled, Vec::new());
    while let (op @ (Op::Unary(Unary::Relu) | Op::Binary(Binary::Mul)), &[Some(x), ref by @ ..]) =
        at.graph.operation(numbers)
        && at.graph.ty(x) == at.graph.ty(pooled)
    {
        let by = by.first().copied();
        let constant = by.flatten().and_then(|by| number(at.graph, by));
        if in_order(op, 0.0, constant).is_none() {
            break;
        }
        f.push((op.clone(), by));
        numbers = x;
    }
    if f.is_empty() || !fits_fp16(at.graph, numbers) {
        return Ok(None);
    }
    let half = in_fp16(at, numbers)?;
    let largest = at.add(at.node.op().clone(), &[half])?;
    let largest = at.cast(DType::F32, largest)?;
    let result = f.into_iter().rev().try_fold(largest, |x, (op, by)| {
        at.add_optional(op, &[Some(x)].into_iter().chain(by).collect::<Vec<_>>())
    });
    result.map(Some)
}

/// Of a value of single precision that is whole numbers that fp16 holds, or such times a constant scale: the numbers, and the scale.
fn scaled(graph: &Graph, value: ValueId) -> Option<(ValueId, Option<ValueId>)> {
    if graph.ty(value).dtype != DType::F32 {
        return None;
    }
    let fits = |x: ValueId| graph.ty(x).shape == graph.ty(value).shape && fits_fp16(graph, x);
    // Two such scales, multiplied, neither overflow nor underflow.
    let is_moderate = |scale: ValueId| {
        let scales = graph.constant(scale).and_then(|scale| scale.as_slice::<f32>().ok());
        scales.is_some_and(|scales| scales.iter().all(|x| (1e-18..1e18).contains(&x.abs())))
    };
    let factors = graph.operands(value, &Op::Binary(Binary::Mul));
    let scaled = factors.and_then(|[a, b]| {
        either(a, b, |x, scale| (is_moderate(scale) && fits(x)).then_some((x, Some(scale))))
    });
    scaled.or_else(|| fits(value).then_some((value, None)))
}

/// Whole numbers in fp16. They are converted before changes of view, so that the launch that makes them can store them so.
fn in_fp16(at: &mut InPlace<'_>, numbers: ValueId) -> Rebuilt<ValueId> {
    let (numbers, views) = under_views(at.graph, numbers);
    let source = match at.graph.operation(numbers) {
        (Op::Cast { .. }, &[Some(x)]) if is_byte(at.graph.ty(x).dtype) => x,
        _ => numbers,
    };
    let half = at.cast(DType::F16, source)?;
    viewed(at, half, views)
}

/// Half precision holds all whole numbers up to this one.
const MOST_IN_FP16: f32 = 2048.0;

/// Whether a value of single precision is whole numbers that fp16 holds.
fn fits_fp16(graph: &Graph, value: ValueId) -> bool {
    graph.ty(value).dtype == DType::F32
        && whole(graph, value).is_some_and(|ends| furthest(ends) <= MOST_IN_FP16)
}

fn furthest([low, high]: [f32; 2]) -> f32 {
    low.abs().max(high.abs())
}

/// An upper bound of the magnitude of 32-bit integers that are bytes, or differences of two bytes.
fn largest(graph: &Graph, integers: ValueId) -> Option<f32> {
    let integers = graph.through(integers, reorders);
    match graph.operation(integers) {
        _ if graph.ty(integers).dtype != DType::I32 => None,
        (Op::Binary(Binary::Sub), &[Some(a), Some(b)]) => {
            Some(largest_of_bytes(graph, a)? + largest_of_bytes(graph, b)?)
        }
        _ => largest_of_bytes(graph, integers),
    }
}

/// The same of bytes, of reals of a known range that were converted, and of a constant of one element.
fn largest_of_bytes(graph: &Graph, integers: ValueId) -> Option<f32> {
    let integers = graph.through(integers, reorders);
    match graph.operation(integers) {
        (Op::Cast { .. }, &[Some(x)]) if is_byte(graph.ty(x).dtype) => {
            Some(furthest(range_of(graph.ty(x).dtype)))
        }
        (Op::Cast { .. }, &[Some(x)]) => whole(graph, x).map(furthest),
        (Op::Constant(_), _) => number(graph, integers).map(f32::abs),
        _ => None,
    }
}

/// Integers in single precision, if they are bytes, or bytes less bytes.
fn difference(at: &mut InPlace<'_>, integers: ValueId) -> Replaced {
    let (integers, views) = under_views(at.graph, integers);
    let real = match at.graph.operation(integers) {
        // Integers of fewer bits wrap.
        (Op::Binary(Binary::Sub), &[Some(a), Some(b)])
            if at.graph.ty(integers).dtype == DType::I32 =>
        {
            let [a, b] = [bytes(at, a, By::Conversion)?, bytes(at, b, By::Conversion)?];
            a.zip(b).map(|(a, b)| less(at, a, b)).transpose()?
        }
        (Op::Cast { to: DType::I32, .. }, &[Some(x)])
            if is_exact(at.graph, x) && Range::of(at.graph, x, DEEPEST).nan == NaN::Never =>
        {
            Some(at.cast(DType::F32, x)?)
        }
        _ => bytes(at, integers, By::Conversion)?,
    };
    real.map(|real| viewed(at, real, views)).transpose()
}

/// One number less another.
fn less(at: &mut InPlace<'_>, a: ValueId, b: ValueId) -> Rebuilt<ValueId> {
    if let Some(known) = kept(at.graph, &Op::Binary(Binary::Sub), a, Some(b)) {
        return Ok(known);
    }
    let whole = number(at.graph, b).filter(|z| z.fract() == 0.0);
    let moved = whole.map(|z| clamped_around_zero(at, a, z)).transpose()?.flatten();
    moved.map_or_else(|| at.binary(Binary::Sub, a, b), Ok)
}

/// Whether reals are whole numbers, and small enough for sums of two of them.
fn is_exact(graph: &Graph, reals: ValueId) -> bool {
    let most = exact(graph.ty(reals).dtype);
    let both = most.zip(whole(graph, reals));
    both.is_some_and(|(most, [low, high])| low > -most && high < most)
}

/// What becomes of bytes that were not made from reals.
#[derive(Clone, Copy, PartialEq, Eq)]
enum By {
    /// They are converted.
    Conversion,
    /// Nothing: reals are wanted to be made integers again.
    Reals,
}

/// Integers in single precision, if they are bytes.
fn bytes(at: &mut InPlace<'_>, integers: ValueId, by: By) -> Replaced {
    let (integers, views) = under_views(at.graph, integers);
    let dtype = at.graph.ty(integers).dtype;
    let real = match at.graph.operation(integers) {
        (Op::Cast { .. }, &[Some(x)]) if is_clamped(at.graph, x, dtype, by) => {
            Some(at.cast(DType::F32, x)?)
        }
        (Op::Cast { to: DType::I32, .. }, &[Some(x)]) if is_byte(at.graph.ty(x).dtype) => {
            bytes(at, x, by)?
        }
        (Op::Constant(tensor), _) if tensor.len() == 1 => {
            let shape = tensor.shape().to_vec();
            let number = number(at.graph, integers).filter(|x| (-128.0..=255.0).contains(x));
            let real = |number| Tensor::from_vec(shape, vec![number]).expect("one number");
            number.map(|number| at.constant(real(number)))
        }
        _ if is_byte(dtype) && by == By::Conversion => Some(at.cast(DType::F32, integers)?),
        _ => None,
    };
    real.map(|real| viewed(at, real, views)).transpose()
}

/// Whether reals are whole numbers, and bytes: such ones, or of either type where integers are wider. As integers, NaN is 0 with
/// bytes between or without; as a real it would stay.
fn is_clamped(graph: &Graph, reals: ValueId, dtype: DType, by: By) -> bool {
    let [least, most] = match dtype {
        DType::I32 => [-128.0, 255.0],
        _ if is_byte(dtype) => range_of(dtype),
        _ => return false,
    };
    let Range { ends: [low, high], whole, nan } = Range::of(graph, reals, DEEPEST);
    let known = exact(graph.ty(reals).dtype).is_some() && whole && low >= least && high <= most;
    known && (by == By::Reals || nan == NaN::Never)
}

/// The whole number that an operation gives, if it is one that it is given: rounded, clamped to where it is, or with an addition
/// and a subtraction of the same number, which undo each other.
fn kept(graph: &Graph, op: &Op, x: ValueId, by: Option<ValueId>) -> Option<ValueId> {
    let most = exact(graph.ty(x).dtype)?;
    // The result has the shape of x.
    let rank = |value: ValueId| graph.ty(value).rank();
    let by = by.filter(|by| rank(*by) <= rank(x)).and_then(|by| number(graph, by));
    let back = match op {
        Op::Binary(Binary::Sub) => Binary::Add,
        Op::Binary(Binary::Add) => Binary::Sub,
        Op::Unary(Unary::Round | Unary::Relu) | Op::Binary(Binary::Min | Binary::Max) => {
            let range = whole(graph, x)?;
            return (range.map(|end| in_order(op, end, by)) == range.map(Some)).then_some(x);
        }
        _ => return None,
    };
    let [before, moved] = graph.operands(x, &Op::Binary(back))?;
    let by = by.filter(|by| by.fract() == 0.0 && number(graph, moved) == Some(*by))?;
    let same = rank(moved) <= rank(before) && by.abs() < most;
    (same && is_exact(graph, before)).then_some(before)
}

/// Operations that are looked through for a range: those of two quantisations, and some more.
const DEEPEST: usize = 16;

/// Between which numbers a value is, if it is a whole number of a type in which bytes are quantised.
fn whole(graph: &Graph, value: ValueId) -> Option<[f32; 2]> {
    let Range { ends, whole, .. } = Range::of(graph, value, DEEPEST);
    (whole && exact(graph.ty(value).dtype).is_some()).then_some(ends)
}

/// Between which numbers a value is, and what else is known of it.
#[derive(Clone, Copy)]
struct Range {
    ends: [f32; 2],
    /// It is a whole number.
    whole: bool,
    /// Where it is NaN, as far as arithmetic makes it that.
    nan: NaN,
}

/// Where a value is NaN.
#[derive(Clone, Copy, PartialEq, Eq)]
enum NaN {
    Never,
    /// Where this divisor is 0, and what it divides.
    Quotient(ValueId),
    /// Where either of two others is.
    Perhaps,
}

impl NaN {
    fn or(self, other: Self) -> Self {
        match (self, other) {
            (Self::Never, nan) | (nan, Self::Never) => nan,
            (nan, other) if nan == other => nan,
            _ => Self::Perhaps,
        }
    }
}

impl Range {
    const ALL: Range =
        Range { ends: [f32::NEG_INFINITY, f32::INFINITY], whole: false, nan: NaN::Never };

    fn of(graph: &Graph, value: ValueId, depth: usize) -> Range {
        let made = depth.checked_sub(1).and_then(|depth| Self::made(graph, value, depth));
        made.unwrap_or(Self::ALL)
    }

    /// What is told by the operation that makes a value.
    fn made(graph: &Graph, value: ValueId, depth: usize) -> Option<Range> {
        let (op, inputs) = graph.operation(value);
        let (x, by) = ((*inputs.first()?)?, inputs.get(1).copied().flatten());
        let constant = by.and_then(|by| number(graph, by));
        let made = match op {
            view if reorders(view) => Self::of(graph, x, depth),
            Op::Cast { to: DType::F32 | DType::F16, .. } if is_byte(graph.ty(x).dtype) => {
                Range { ends: range_of(graph.ty(x).dtype), whole: true, ..Self::ALL }
            }
            Op::Cast { to: DType::F32, .. } => {
                exact(graph.ty(x).dtype).map(|_| Self::of(graph, x, depth))?
            }
            Op::Binary(Binary::Div) => {
                let divides = constant.is_some_and(|by| by != 0.0);
                let nan = if divides { NaN::Never } else { NaN::Quotient(by?) };
                Range { nan, ..Self::ALL }
            }
            Op::Binary(op @ (Binary::Add | Binary::Sub)) if constant.is_none() => {
                // Both are looked through; half of the depth each bounds that.
                let (x, by) = (Self::of(graph, x, depth / 2), Self::of(graph, by?, depth / 2));
                let ([low, high], [least, most]) = (x.ends, by.ends);
                let ends = match op {
                    Binary::Add => [low + least, high + most],
                    _ => [low - most, high - least],
                };
                Range { ends, whole: x.whole && by.whole, nan: x.nan.or(by.nan) }
            }
            Op::Unary(Unary::Round | Unary::Relu)
            | Op::Binary(Binary::Add | Binary::Sub | Binary::Min | Binary::Max) => {
                let x = Self::of(graph, x, depth);
                let [low, high] = x.ends.map(|end| in_order(op, end, constant));
                let is_whole = constant.is_none_or(|by| by.fract() == 0.0);
                let whole = x.whole && is_whole || *op == Op::Unary(Unary::Round);
                // Of half precision only such numbers are clamped and moved exactly.
                if !is_whole && graph.ty(value).dtype != DType::F32 {
                    return None;
                }
                Range { ends: [low?, high?], whole, ..x }
            }
            _ => return None,
        };
        // Rounding would move ends that are larger.
        let most = exact(graph.ty(value).dtype)?;
        let fits = |end: &f32| end.is_infinite() || end.abs() <= most;
        Some(if made.ends.iter().all(fits) { made } else { Range { ends: Self::ALL.ends, ..made } })
    }
}
