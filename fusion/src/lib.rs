//! From a tensor graph to a program of launches.
//!
//! The way of the data, one public function a stage:
//!
//! 1. [`rewrite`]: an equal, simpler graph.
//! 2. [`partition`]: every operation into exactly one group.
//! 3. [`lower`]: groups to steps over buffers, read and written through views.
//!
//! All three are pure: no device, clock, file or environment.

mod body;
mod candidates;
mod conditions;
pub mod cost;
mod cover;
mod executor;
pub mod groups;
mod legal;
mod lower;
mod net;
mod partition;
pub mod program;
mod rewrite;
mod set;
pub mod variants;
pub mod view;

pub use lower::lower;
pub use partition::{Granularity, partition};
pub use rewrite::{Report, Rewritten, rewrite, tidy};

use graphene_frontend::graph::Node;
use graphene_frontend::infer::InferError;

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
}

impl FusionError {
    fn rebuild(node: &Node, reason: InferError) -> Self {
        Self::Rebuild { name: node.name().to_owned(), op: node.op().name(), reason }
    }
}
