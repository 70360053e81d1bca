//! Operations that give a value which is there already.

use super::build::Builder;
use super::error::OpError;
use crate::graph::ValueId;
use crate::op::Op;

/// The value that the operation's only output equals, if there is one.
pub(super) fn simplify(
    builder: &mut Builder,
    op: &Op,
    inputs: &[Option<ValueId>],
) -> Result<Option<ValueId>, OpError> {
    let _ = (builder, op, inputs);
    Ok(None)
}
