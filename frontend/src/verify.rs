//! Checks of a whole graph, to stand between passes.
//!
//! A [`Graph`] keeps by construction, so nothing here checks, that
//! - every use and every output names a value that exists, and a node uses only nodes before it: the nodes stand
//!   in topological order and there are no cycles;
//! - the edges of the DAG are the nodes' inputs;
//! - inputs are listed in the order of their nodes, and a node is listed if and only if it is an input;
//! - a tensor has as many bytes as its type and shape ask for.
//!
//! What [`verify`] checks:
//! 1. An input takes nothing and has one type, of reasonable size.
//! 2. Every other node's types are those that inference gives for its inputs now; so a constant has its
//!    tensor's type, and a body fits the values that it is used with.
//! 3. Truth values of constants are 0 or 1.
//! 4. No two inputs have one name, and no two outputs.
//! 5. Bodies of control flow keep all of this too, and nest at most [`MAX_DEPTH`] deep.

use crate::dtype::DType;
use crate::graph::{Graph, Node, NodeId};
use crate::infer::{InferError, infer};
use crate::op::Op;
use crate::tensor::Tensor;
use crate::types::TensorType;
use std::collections::BTreeSet;

/// Bodies of control flow nest at most this deep.
pub const MAX_DEPTH: usize = 16;

/// What is wrong with a graph.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
pub enum VerifyError {
    /// An input takes values, or has another number of types than one.
    #[error("{id} `{name}`: an input takes nothing and gives one value")]
    Input {
        /// The node.
        id: NodeId,
        /// Its name.
        name: String,
    },
    /// A node's inputs do not fit its operation.
    #[error("{id} `{name}` ({op}): {error}")]
    Infer {
        /// The node.
        id: NodeId,
        /// Its name.
        name: String,
        /// The operation's name.
        op: &'static str,
        /// Why they do not fit.
        error: InferError,
    },
    /// A node's types are not those that inference gives.
    #[error("{id} `{name}` ({op}) has types {stored:?}, but {inferred:?} are inferred")]
    Types {
        /// The node.
        id: NodeId,
        /// Its name.
        name: String,
        /// The operation's name.
        op: &'static str,
        /// The types that it has.
        stored: Vec<TensorType>,
        /// The types that it should have.
        inferred: Vec<TensorType>,
    },
    /// A constant's truth value is neither 0 nor 1.
    #[error("{id} `{name}`: a constant of bool holds the byte {byte}")]
    Bool {
        /// The node.
        id: NodeId,
        /// Its name.
        name: String,
        /// The byte.
        byte: u8,
    },
    /// Two inputs have one name.
    #[error("two inputs are named `{0}`")]
    DuplicateInput(String),
    /// Two outputs have one name.
    #[error("two outputs are named `{0}`")]
    DuplicateOutput(String),
    /// Bodies are nested deeper than [`MAX_DEPTH`].
    #[error("{id} `{name}`: bodies are nested more than {MAX_DEPTH} deep")]
    Depth {
        /// The node whose body is too deep.
        id: NodeId,
        /// Its name.
        name: String,
    },
    /// A body is not in order.
    #[error("in a body of {id} `{name}`: {error}")]
    Body {
        /// The node.
        id: NodeId,
        /// Its name.
        name: String,
        /// What is wrong in the body.
        error: Box<VerifyError>,
    },
}

/// Checks the invariants above.
///
/// # Errors
/// The first [`VerifyError`], in the order of the nodes.
pub fn verify(graph: &Graph) -> Result<(), VerifyError> {
    verify_at(graph, 0)
}

fn verify_at(graph: &Graph, depth: usize) -> Result<(), VerifyError> {
    for (id, node) in graph.nodes() {
        check_types(graph, id, node)?;
        if let Op::Constant(tensor) = node.op() {
            check_bools(id, node, tensor)?;
        }
        for body in node.op().bodies() {
            if depth == MAX_DEPTH {
                return Err(VerifyError::Depth { id, name: node.name().to_owned() });
            }
            verify_at(body, depth + 1).map_err(|error| VerifyError::Body {
                id,
                name: node.name().to_owned(),
                error: Box::new(error),
            })?;
        }
    }
    let inputs = graph.inputs().iter().map(|&id| graph.node(id).name());
    if let Some(name) = first_duplicate(inputs) {
        return Err(VerifyError::DuplicateInput(name));
    }
    match first_duplicate(graph.outputs().iter().map(|(name, _)| name.as_str())) {
        Some(name) => Err(VerifyError::DuplicateOutput(name)),
        None => Ok(()),
    }
}

fn check_types(graph: &Graph, id: NodeId, node: &Node) -> Result<(), VerifyError> {
    let name = || node.name().to_owned();
    let op = node.op().name();
    let refuse = |error| VerifyError::Infer { id, name: name(), op, error };
    if matches!(node.op(), Op::Input) {
        return match node.outputs() {
            [ty] if node.inputs().is_empty() => ty.check().map_err(refuse),
            _ => Err(VerifyError::Input { id, name: name() }),
        };
    }
    let types: Vec<_> = node.inputs().iter().map(|input| input.map(|v| graph.ty(v))).collect();
    let inferred = infer(node.op(), &types).map_err(refuse)?;
    if inferred != node.outputs() {
        let stored = node.outputs().to_vec();
        return Err(VerifyError::Types { id, name: name(), op, stored, inferred });
    }
    Ok(())
}

fn check_bools(id: NodeId, node: &Node, tensor: &Tensor) -> Result<(), VerifyError> {
    if tensor.dtype() != DType::Bool {
        return Ok(());
    }
    match tensor.bytes().iter().find(|&&byte| byte > 1) {
        Some(&byte) => Err(VerifyError::Bool { id, name: node.name().to_owned(), byte }),
        None => Ok(()),
    }
}

fn first_duplicate<'a>(mut names: impl Iterator<Item = &'a str>) -> Option<String> {
    let mut seen = BTreeSet::new();
    names.find(|name| !seen.insert(*name)).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::{MAX_DEPTH, VerifyError, verify};
    use crate::dtype::DType;
    use crate::graph::Graph;
    use crate::op::{Op, Unary};
    use crate::tensor::Tensor;

    fn small() -> Graph {
        let mut graph = Graph::new();
        let x = graph.add_input("x", "f32[n]".parse().unwrap()).unwrap();
        let y = graph.add("y", Op::Unary(Unary::Exp), &[Some(x)]).unwrap();
        graph.add_output("y", y.value());
        graph
    }

    /// A graph whose one branch is `body`.
    fn around(body: Graph) -> Graph {
        let mut graph = Graph::new();
        let condition = graph.add_input("condition", "bool[]".parse().unwrap()).unwrap();
        let x = graph.add_input("x", "f32[n]".parse().unwrap()).unwrap();
        let op = Op::If { then_branch: Box::new(body), else_branch: Box::new(small()) };
        let y = graph.add("if", op, &[Some(condition), Some(x)]).unwrap();
        graph.add_output("y", y.value());
        graph
    }

    #[test]
    fn sound_graphs_pass() {
        assert_eq!(verify(&Graph::new()), Ok(()));
        assert_eq!(verify(&small()), Ok(()));
        assert_eq!(verify(&around(small())), Ok(()));
    }

    #[test]
    fn names_are_unique() {
        let mut graph = small();
        graph.add_output("y", graph.inputs()[0].value());
        let expected = VerifyError::DuplicateOutput("y".into());
        assert_eq!(verify(&graph), Err(expected.clone()));
        let VerifyError::Body { name, error, .. } = verify(&around_unchecked(graph)).unwrap_err()
        else {
            panic!("a body's error is reported as such")
        };
        assert_eq!((name.as_str(), *error), ("if", expected));

        let mut graph = small();
        graph.add_input("x", "f32[]".parse().unwrap()).unwrap();
        assert_eq!(verify(&graph), Err(VerifyError::DuplicateInput("x".into())));
    }

    /// Both branches alike, so that their outputs agree whatever they are.
    fn around_unchecked(body: Graph) -> Graph {
        let mut graph = Graph::new();
        let condition = graph.add_input("condition", "bool[]".parse().unwrap()).unwrap();
        let x = graph.add_input("x", "f32[n]".parse().unwrap()).unwrap();
        let op = Op::If { then_branch: Box::new(body.clone()), else_branch: Box::new(body) };
        graph.add("if", op, &[Some(condition), Some(x)]).unwrap();
        graph
    }

    #[test]
    fn truth_values_are_zero_or_one() {
        let mut graph = Graph::new();
        let tensor = Tensor::new(DType::Bool, vec![3], vec![0, 1, 2].into()).unwrap();
        graph.add_constant("mask", tensor);
        assert!(matches!(verify(&graph), Err(VerifyError::Bool { byte: 2, .. })));
    }

    #[test]
    fn nesting_is_bounded() {
        let mut body = small();
        for _ in 0..MAX_DEPTH {
            let mut graph = Graph::new();
            let x = graph.add_input("x", "f32[n]".parse().unwrap()).unwrap();
            let condition =
                graph.add_constant("c", Tensor::from_bools(vec![], vec![true]).unwrap());
            let op = Op::If { then_branch: Box::new(body), else_branch: Box::new(small()) };
            let y = graph.add("if", op, &[Some(condition), Some(x)]).unwrap();
            graph.add_output("y", y.value());
            body = graph;
        }
        assert_eq!(verify(&body), Ok(()));
        let mut error = verify(&around(body)).unwrap_err();
        while let VerifyError::Body { error: inner, .. } = error {
            error = *inner;
        }
        assert!(matches!(error, VerifyError::Depth { .. }), "{error}");
    }
}
