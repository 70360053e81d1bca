//! Tensor graphs, and how ONNX models become them. Names that passes over graphs are written with are at the root, too.

pub mod dim;
pub mod dot;
pub mod dtype;
pub mod eval;
pub mod graph;
pub mod import;
pub mod infer;
pub mod memory;
pub mod narrow;
pub mod onnx;
pub mod op;
pub mod tensor;
pub mod testdata;
pub mod text;
pub mod types;
pub mod verify;
pub mod visible;

pub use dim::{Bindings, Dim, Symbol};
pub use dtype::DType;
pub use graph::{Graph, Node, NodeId, ValueId};
pub use infer::InferError;
pub use op::{Binary, Op, ReduceOp, SliceAxis, Unary};
pub use tensor::Tensor;
pub use types::TensorType;
