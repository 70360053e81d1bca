//! Why a graph cannot be planned.

use graphene_frontend::{InferError, Node};

/// Why a graph cannot be planned.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
pub enum FusionError {
    /// An operation refuses the inputs that it had in the graph it comes from.
    #[error("node {name:?} ({op}) cannot be rebuilt: {reason}")]
    Rebuild {
        /// The node's name.
        name: String,
        /// The operation.
        op: &'static str,
        /// What inference said.
        reason: InferError,
    },
    /// A group reads what no group before it makes, or an operation of a group what stands after it.
    #[error("node {reader:?} reads {name:?} before it is made")]
    ReadEarly {
        /// Name of the node that makes it.
        name: String,
        /// Name of the node that reads it.
        reader: String,
    },
    /// An operation, by its node's name, is in two groups, or in one though it is made of constants alone.
    #[error("node {0:?} is computed twice")]
    PlacedTwice(String),
    /// An operation, by its node's name, is in no group.
    #[error("node {0:?} is in no group")]
    NotPlaced(String),
    /// A step reads a buffer, or the program gives one, that nothing wrote: by the name of the value in it.
    #[error("nothing wrote {0:?}")]
    Unwritten(String),
    /// The operands of a step, by its name, are not those of its body.
    #[error("the operands of step {0:?} are not those of what it computes")]
    Operands(String),
}

impl FusionError {
    pub(crate) fn rebuild(node: &Node, reason: InferError) -> Self {
        Self::Rebuild { name: node.name().to_owned(), op: node.op().name(), reason }
    }
}
