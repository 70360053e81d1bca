//! Several matmuls of one body: whether they are added, or gate each other.

use super::Refusal;
use graphene_frontend::graph::{Graph, NodeId, ValueId};
use graphene_frontend::op::{Binary, Op};

/// Whether the body's matmuls are two of one A that are not added.
pub(crate) fn is_gated(body: &Graph) -> bool {
    let matmuls = body.matmuls();
    let left = |id: NodeId| body.node(id).inputs()[0];
    matches!(matmuls[..], [gate, value] if left(gate) == left(value))
        && summed(body, &matmuls).is_err()
}

/// The sum that matmuls end in, and the other values that are added; the matmul itself if there is one. Each is added once, and
/// nothing else reads one.
pub(super) fn summed(body: &Graph, matmuls: &[NodeId]) -> Result<(ValueId, Vec<ValueId>), Refusal> {
    if let [one] = matmuls {
        return Ok((one.value(), Vec::new()));
    }
    let is_sum = |value: ValueId| *body.operation(value).0 == Op::Binary(Binary::Add);
    let added_in = |value: ValueId| {
        body.only_reader(value.node).map(NodeId::value).filter(|reader| is_sum(*reader))
    };
    let operands = |value: ValueId| body.operation(value).1.iter().flatten().copied().collect();
    let terms: Vec<ValueId> = matmuls.iter().map(|id| id.value()).collect();
    let shape = |value: ValueId| &body.ty(value).shape;
    let sum = sum_of(&terms, is_sum, added_in, operands);
    let sum = sum.filter(|(value, _)| shape(*value) == shape(terms[0]));
    sum.ok_or(Refusal::Operation("several matmuls that are not added"))
}

/// The value that adds all terms, and the other addends. Each term is added once and read by nothing else; no other addend
/// depends on a term. `added_in`: the addition that reads a value, if it is the only reader.
pub(crate) fn sum_of<T: Copy + PartialEq>(
    terms: &[T],
    is_sum: impl Fn(T) -> bool,
    added_in: impl Fn(T) -> Option<T>,
    operands: impl Fn(T) -> Vec<T>,
) -> Option<(T, Vec<T>)> {
    let root = std::iter::successors(added_in(*terms.first()?), |&sum| added_in(sum)).last()?;
    let (mut pending, mut others, mut added) = (vec![root], Vec::new(), 0);
    while let Some(value) = pending.pop() {
        if terms.contains(&value) {
            added += usize::from(added_in(value).is_some());
        } else if value == root || is_sum(value) && added_in(value).is_some() {
            pending.extend(operands(value));
        } else {
            others.push(value);
        }
    }
    let (mut pending, mut seen) = (others.clone(), Vec::new());
    while let Some(value) = pending.pop() {
        if terms.contains(&value) {
            return None;
        }
        if !seen.contains(&value) {
            seen.push(value);
            pending.extend(operands(value));
        }
    }
    (added == terms.len()).then_some((root, others))
}
