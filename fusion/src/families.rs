//! Families of launches: who executes a group, how its operands may lie, and with which kernels or calls of a library.

pub(crate) mod attention;
pub(crate) mod calls;
pub(crate) mod estimates;
pub(crate) mod executor;
pub(crate) mod grids;
pub mod kernels;
pub(crate) mod layout;
pub mod library;
pub(crate) mod tiles;
