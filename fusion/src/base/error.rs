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
    /// An operation is in two groups, or in one though it is made of constants alone.
    #[error("node {name:?} is computed twice")]
    PlacedTwice {
        /// The node's name.
        name: String,
    },
    /// An operation is in no group.
    #[error("node {name:?} is in no group")]
    NotPlaced {
        /// The node's name.
        name: String,
    },
    /// A step reads a buffer, or the program gives one, that nothing wrote.
    #[error("nothing wrote {buffer:?}")]
    Unwritten {
        /// Name of the value in the buffer.
        buffer: String,
    },
    /// The operands of a step are not those of its body.
    #[error("the operands of step {step:?} are not those of what it computes")]
    Operands {
        /// The step's name.
        step: String,
    },
}

impl FusionError {
    pub(crate) fn rebuild(node: &Node, reason: InferError) -> Self {
        Self::Rebuild { name: node.name().to_owned(), op: node.op().name(), reason }
    }
}
