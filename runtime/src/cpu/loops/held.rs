//! Integers that a loop holds in single precision, which is exact for them: bytes, what quantising rounds and clamps to, and
//! both less a zero point, as long as nothing but conversions and such sums reads them.

use super::Scalar;
use graphene_frontend::dtype::DType;
use graphene_frontend::graph::{Graph, ValueId};
use graphene_frontend::op::{Binary, Op, Unary};
use std::collections::BTreeMap;

/// Single precision has all integers up to this one.
const MOST: f64 = 16_777_216.0;

/// The least and the largest number of a range.
type Range = [f64; 2];

const ANY: Range = [f64::NEG_INFINITY, f64::INFINITY];

/// The values that are held so.
pub(super) fn held(body: &Graph) -> BTreeMap<ValueId, Range> {
    let mut refused: Vec<ValueId> = Vec::new();
    loop {
        let mut held = BTreeMap::new();
        for (id, _) in body.nodes().filter(|(id, _)| !refused.contains(&id.value())) {
            if let Some(range) = range(body, &held, id.value()) {
                held.insert(id.value(), range);
            }
        }
        let misread = |value: &&ValueId| !is_read_so(body, &held, **value);
        let misread: Vec<ValueId> = held.keys().filter(misread).copied().collect();
        if misread.is_empty() {
            return held;
        }
        refused.extend(misread);
    }
}

/// The range of an integer type, if it is one that loops compute with.
fn range_of(dtype: DType) -> Option<Range> {
    Some(match dtype {
        DType::I8 => [-128.0, 127.0],
        DType::U8 => [0.0, 255.0],
        DType::I16 => [-32768.0, 32767.0],
        DType::U16 => [0.0, 65535.0],
        DType::I32 | DType::I64 => [-MOST, MOST],
        DType::U32 => [0.0, MOST],
        _ => return None,
    })
}

/// The numbers that an integer value may be, if single precision can hold it; `held` has those before it.
fn range(body: &Graph, held: &BTreeMap<ValueId, Range>, value: ValueId) -> Option<Range> {
    let (node, dtype) = (body.node(value.node), body.ty(value).dtype);
    let own = range_of(dtype)?;
    let found = match (node.op(), node.inputs()) {
        (Op::Input, _) if dtype.size() <= 2 => own,
        // What is stored is cut to a whole number by that.
        (Op::Cast { .. }, [Some(x)]) if body.ty(*x).dtype == DType::F32 => {
            let (range, whole) = real(body, *x);
            (whole || body.uses(value.node).is_empty()).then_some(range)?
        }
        (Op::Cast { .. }, [Some(x)]) => *held.get(x)?,
        (Op::Binary(binary @ (Binary::Add | Binary::Sub)), [Some(x), Some(c)]) => {
            let (&[low, high], c) = (held.get(x)?, integer(body, *c)?);
            let c = if *binary == Binary::Sub { -c } else { c };
            [low + c, high + c]
        }
        _ => return None,
    };
    (found[0] >= own[0] && found[1] <= own[1]).then_some(found)
}

/// A constant integer of one element.
pub(super) fn integer(body: &Graph, value: ValueId) -> Option<f64> {
    match Scalar::of(body.constant(value)?)? {
        Scalar::I64(x) => Some(x as f64).filter(|x| x.abs() <= MOST),
        _ => None,
    }
}

/// The range of a real number, and whether it is whole.
fn real(body: &Graph, value: ValueId) -> (Range, bool) {
    let node = body.node(value.node);
    let constant = |value: Option<ValueId>| {
        let tensor = body.constant(value?).filter(|tensor| tensor.len() == 1)?;
        Some(f64::from(*tensor.as_slice::<f32>().ok()?.first()?))
    };
    match (node.op(), node.inputs()) {
        (Op::Unary(Unary::Round), _) => (ANY, true),
        (Op::Unary(Unary::Relu), [Some(x)]) => {
            let (range, whole) = real(body, *x);
            (range.map(|x| x.max(0.0)), whole)
        }
        (Op::Binary(binary), [Some(x), c]) => {
            let (Some(c), (range, whole)) = (constant(*c), real(body, *x)) else {
                return (ANY, false);
            };
            let range = match binary {
                Binary::Max => range.map(|x| x.max(c)),
                Binary::Min => range.map(|x| x.min(c)),
                Binary::Add => range.map(|x| x + c),
                Binary::Sub => range.map(|x| x - c),
                _ => return (ANY, false),
            };
            (range, whole && c.fract() == 0.0)
        }
        _ => (ANY, false),
    }
}

/// Whether all that reads a held value takes it as a real number.
fn is_read_so(body: &Graph, held: &BTreeMap<ValueId, Range>, value: ValueId) -> bool {
    body.uses(value.node).iter().all(|(reader, _)| {
        let (node, result) = (body.node(*reader), reader.value());
        match node.op() {
            Op::Cast { to: DType::F32, .. } => true,
            Op::Cast { .. } => held.contains_key(&result),
            Op::Binary(_) => held.contains_key(&result) && node.inputs()[0] == Some(value),
            _ => false,
        }
    })
}
