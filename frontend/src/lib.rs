//! frontend
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
