//! Rotary embeddings of positions, each half of a row by itself: models write `x·cos + [-x₂, x₁]·sin`, of which what is in
//! brackets would be made, and joined, before anything else can be computed.

use crate::base::rebuild::{Rebuilt, rebuilt};
use crate::rewrite::ranges::{both_of, either};
use graphene_frontend::{Binary, Dim, Graph, Op, Unary, ValueId};

/// The graph with `[x₁·cos₁ - x₂·sin₁, x₂·cos₂ + x₁·sin₂]` in place of such sums: each element is rounded as it was.
pub(crate) fn split_rotations(graph: &Graph) -> Rebuilt<Graph> {
    rebuilt(graph, |mut at, _, inputs| {
        let &[Some(a), Some(b)] = inputs else { return Ok(None) };
        let is_sum = *at.node.op() == Op::Binary(Binary::Add);
        let found = is_sum.then(|| either(a, b, |a, b| rotation(at.graph, a, b))).flatten();
        let Some(Rotation { low, high, cos, sin, axis, half }) = found else { return Ok(None) };
        let mut parts = Vec::with_capacity(2);
        for (number, own, other, by) in [(0, low, high, Binary::Sub), (1, high, low, Binary::Add)] {
            let start = &half * &Dim::from(number);
            let mut part = |(value, axis)| at.slice(value, axis, start.clone(), half.clone());
            let (cos, sin) = (part(cos)?, part(sin)?);
            let own = at.binary(Binary::Mul, own, cos)?;
            let other = at.binary(Binary::Mul, other, sin)?;
            parts.push(at.binary(by, own, other)?);
        }
        at.add(Op::Concat { axis }, &parts).map(Some)
    })
}

/// The first and the second half of what is rotated along an axis, and factors, each with its own number of that axis.
struct Rotation {
    low: ValueId,
    high: ValueId,
    cos: (ValueId, usize),
    sin: (ValueId, usize),
    axis: usize,
    half: Dim,
}

fn rotation(graph: &Graph, straight: ValueId, crossed: ValueId) -> Option<Rotation> {
    let factors = |value| graph.operands(value, &Op::Binary(Binary::Mul));
    let [a, b] = factors(crossed)?;
    either(a, b, |joined, sin| {
        let joined = graph.operation(joined);
        let (Op::Concat { axis }, &[Some(negative), Some(low)]) = joined else { return None };
        let [high] = graph.operands(negative, &Op::Unary(Unary::Neg))?;
        let (x, along, half) = both_of(graph, [low, high])?;
        let (size, rest) = graph.ty(x).shape.split_last()?;
        let is_last = along == *axis && *axis == rest.len();
        let [a, b] = factors(straight)?;
        let cos = if a == x { b } else { a };
        // Factors have all of the axis.
        let whole = |value: ValueId| {
            let shape = &graph.ty(value).shape;
            (shape.last() == Some(size)).then(|| (value, shape.len() - 1))
        };
        let (cos, sin) = (whole(cos)?, whole(sin)?);
        let found = Rotation { low, high, cos, sin, axis: *axis, half };
        (is_last && (a == x || b == x)).then_some(found)
    })
}
