//! Recurrent layers.

use crate::rewrite::rule::{Rule, Site, law};
use egg::Id;
use graphene_frontend::op::Op;

#[rustfmt::skip]
pub(super) const RULES: &[Rule] = &[
    law("zero-state", zero_state),
];

/// The place of the first initial state among a recurrent layer's inputs; the second follows.
const STATE: usize = 5;

/// An initial state of zeros is none.
fn zero_state(s: &mut Site<'_>) -> Option<Id> {
    let op = s.op.clone().filter(|op| matches!(op, Op::Rnn(_)))?;
    let mut inputs = s.inputs.clone();
    for state in inputs.iter_mut().skip(STATE).take(2) {
        if state.is_some_and(|id| is_zero(s, id)) {
            *state = None;
        }
    }
    if inputs == s.inputs { None } else { s.add_node(op, &inputs) }
}

/// Zeros, perhaps seen in another shape.
pub(super) fn is_zero(s: &Site<'_>, id: Id) -> bool {
    let expanded =
        |id: Id| s.is(id, 0.0) || s.operands(id, "Expand").into_iter().any(|[x]| s.is(x, 0.0));
    expanded(id) || s.operands(id, "Reshape").into_iter().any(|[x]| expanded(x))
}
