//! What all stages share: the types of a plan, and what they ask of a graph.

pub(crate) mod constants;
pub mod cost;
pub(crate) mod elements;
pub(crate) mod error;
pub(crate) mod graph;
pub mod groups;
pub(crate) mod parameters;
pub mod program;
pub(crate) mod rebuild;
pub(crate) mod sizes;
pub mod variants;
pub mod verify;
pub mod view;
