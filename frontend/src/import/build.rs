//! A graph under construction: every operation is simplified, evaluated in symbols or folded before it is added.

mod evaluate;
mod materialize;
mod simplify;

use super::budget::{Budget, MAX_NODES};
use super::error::{OpError, Reason};
use super::symbolic::{Abstract, Affine};
use crate::dim::{Bindings, Dim};
use crate::dtype::DType;
use crate::eval::evaluate_op;
use crate::graph::{Graph, Node, NodeId, ValueId};
use crate::infer::infer;
use crate::op::Op;
use crate::tensor::Tensor;
use crate::types::TensorType;
use std::collections::HashMap;

/// Larger results are not computed at import: an operation on weights stays in the graph.
const FOLD_BYTES: usize = 16 << 20;

/// Larger matrices of bytes stay bytes: who multiplies by them knows whether as bytes or as larger numbers.
const FOLD_WIDENED: usize = 1 << 10;

/// A larger transposed weight stays one: matmuls take such operands as they are.
const FOLD_TRANSPOSED: usize = 1 << 14;

/// A uniform tensor with more elements stays a broadcast scalar.
const FOLD_UNIFORM: usize = 1 << 10;

/// A graph with what is known beside the types of its values.
#[derive(Default)]
pub(super) struct Builder {
    pub(super) graph: Graph,
    /// The name of the ONNX node at hand, for the nodes that it becomes.
    pub(super) name: String,
    facts: HashMap<ValueId, Option<Abstract>>,
    forms: HashMap<(DType, Abstract), ValueId>,
    pub(super) budget: Budget,
    /// Values of the enclosing graph that this one takes as inputs after its formal ones.
    pub(super) captures: Vec<(ValueId, ValueId)>,
    /// Values of the enclosing graph on which the formal inputs' values hang.
    pub(super) deciders: Vec<ValueId>,
}

impl Builder {
    /// The builder of a body, which shares what is left of the budget.
    pub(super) fn inner(&self) -> Self {
        Self { budget: self.budget.clone(), ..Self::default() }
    }

    pub(super) fn ty(&self, value: ValueId) -> &TensorType {
        self.graph.ty(value)
    }

    /// Adds a constant.
    pub(super) fn constant(&mut self, tensor: Tensor) -> ValueId {
        self.graph.add_constant(&self.name, tensor)
    }

    /// The elements of a value in symbols, if they are known.
    pub(super) fn fact(&mut self, value: ValueId) -> Option<Abstract> {
        if let Some(fact) = self.facts.get(&value) {
            return fact.clone();
        }
        let fact = self.graph.constant(value).and_then(Abstract::of_tensor);
        self.facts.insert(value, fact.clone());
        fact
    }

    /// A value with these elements: the same one for the same elements.
    pub(super) fn value_of(
        &mut self,
        dtype: DType,
        elements: Abstract,
    ) -> Result<ValueId, OpError> {
        let key = (dtype, elements);
        if let Some(&value) = self.forms.get(&key) {
            return Ok(value);
        }
        let value = materialize::materialize(self, dtype, &key.1)?;
        self.facts.insert(value, Some(key.1.clone()));
        self.forms.insert(key, value);
        Ok(value)
    }

    /// Adds an operation, or finds a value that is its only output already.
    pub(super) fn add(
        &mut self,
        op: Op,
        inputs: &[Option<ValueId>],
    ) -> Result<Vec<ValueId>, OpError> {
        if op == Op::NonZero {
            return self.add_non_zero(inputs);
        }
        let constant = |input: &Option<ValueId>| {
            input.is_none_or(|value| self.graph.constant(value).is_some())
        };
        let sized = matches!(op, Op::Iota(_) | Op::Size(_));
        if !sized && inputs.iter().all(constant) {
            let values = self.add_folded(op.clone(), inputs)?;
            // Control flow may have no outputs at all.
            if values.first().is_none_or(|&value| self.graph.constant(value).is_some()) {
                return Ok(values);
            }
        }
        let types: Vec<_> = inputs.iter().map(|input| input.map(|v| self.graph.ty(v))).collect();
        if let [result] = infer(&op, &types)?.as_slice()
            && let Some(elements) = evaluate::evaluate(self, &op, inputs, result)
        {
            return Ok(vec![self.value_of(result.dtype, elements)?]);
        }
        if let Some(value) = simplify::simplify(self, &op, inputs)? {
            return Ok(vec![value]);
        }
        let node = self.add_plain(op, inputs)?;
        Ok(self.outputs(node))
    }

    fn outputs(&self, node: NodeId) -> Vec<ValueId> {
        let count = self.graph.node(node).outputs().len() as u32;
        (0..count).map(|output| ValueId { node, output }).collect()
    }

    /// Adds an operation on constants, as a constant if it is small enough.
    pub(super) fn add_folded(
        &mut self,
        op: Op,
        inputs: &[Option<ValueId>],
    ) -> Result<Vec<ValueId>, OpError> {
        let node = self.add_plain(op, inputs)?;
        Ok(self.fold(node).unwrap_or_else(|| self.outputs(node)))
    }

    /// The places of non-zero elements, of which there must be a known number.
    fn add_non_zero(&mut self, inputs: &[Option<ValueId>]) -> Result<Vec<ValueId>, OpError> {
        if let [Some(x)] = inputs
            && let Some(Abstract::Affine(affine)) = self.fact(*x)
            && affine.is_uniform()
            && affine.offset.lower_bound().is_some_and(|low| low >= 1)
            && let [size] = affine.dims.as_slice()
        {
            let places = Affine {
                dims: vec![Dim::from(1), size.clone()],
                strides: vec![Dim::from(0), Dim::from(1)],
                offset: Dim::from(0),
            };
            return Ok(vec![self.value_of(DType::I64, Abstract::of_affine(places))?]);
        }
        self.force_op(&Op::NonZero, inputs)
    }

    /// Adds an operation as it is.
    pub(super) fn add_plain(
        &mut self,
        op: Op,
        inputs: &[Option<ValueId>],
    ) -> Result<NodeId, OpError> {
        if self.graph.len() >= MAX_NODES {
            return Err(Reason::Nodes(MAX_NODES).into());
        }
        Ok(self.graph.add(&self.name, op, inputs)?)
    }

    /// The outputs of a node as constants, if its inputs are and the outputs are small.
    fn fold(&mut self, node: NodeId) -> Option<Vec<ValueId>> {
        let node = self.graph.node(node);
        let bytes = result_bytes(node)?;
        let free = matches!(node.op(), Op::Reshape(_) | Op::BitCast(_));
        let limit = match node.op() {
            Op::Cast { .. } if self.widens(node) => FOLD_WIDENED,
            Op::Expand(_) => FOLD_UNIFORM * node.outputs()[0].dtype.size(),
            Op::Transpose(_) => FOLD_TRANSPOSED,
            _ => FOLD_BYTES,
        };
        if !free && bytes > limit {
            return None;
        }
        let operands = self.operands(node.inputs())?;
        let operands: Vec<_> = operands.iter().map(Option::as_ref).collect();
        let types: Vec<_> = node.inputs().iter().map(|v| v.map(|v| self.graph.ty(v))).collect();
        if !free && !self.budget.take_steps(node.op(), &types, node.outputs()) {
            return None;
        }
        // An operation that fails stays in the graph, to fail when it runs, if it ever does.
        let results = evaluate_op(node.op(), &operands, &Bindings::new()).ok()?;
        if results.iter().map(TensorType::of).ne(node.outputs().iter().cloned()) {
            return None;
        }
        if !free && !self.budget.take_bytes(bytes) {
            return None;
        }
        Some(results.into_iter().map(|tensor| self.constant(tensor)).collect())
    }

    /// Whether a node makes larger elements of a matrix of bytes.
    fn widens(&self, node: &Node) -> bool {
        let &[Some(x)] = node.inputs() else { return false };
        let from = self.graph.ty(x);
        let bytes = matches!(from.dtype, DType::I8 | DType::U8);
        bytes && from.rank() > 1 && node.outputs()[0].dtype.size() > from.dtype.size()
    }

    /// The constants behind values, if all are.
    fn operands(&self, inputs: &[Option<ValueId>]) -> Option<Vec<Option<Tensor>>> {
        inputs
            .iter()
            .map(|input| match input {
                Some(value) => self.graph.constant(*value).cloned().map(Some),
                None => Some(None),
            })
            .collect()
    }

    /// Evaluates an operation whose inputs must be known.
    fn force_op(&mut self, op: &Op, inputs: &[Option<ValueId>]) -> Result<Vec<ValueId>, OpError> {
        let mut operands = Vec::new();
        for input in inputs {
            operands.push(match *input {
                Some(value) => Some(self.known(value).ok_or(OpError::NeedsValue(value))?),
                None => None,
            });
        }
        let operands: Vec<_> = operands.iter().map(Option::as_ref).collect();
        let results = evaluate_op(op, &operands, &Bindings::new())
            .map_err(|error| Reason::Operator(error.to_string()))?;
        Ok(results.into_iter().map(|tensor| self.constant(tensor)).collect())
    }

    /// The elements of a value, if they depend on constants only and take no unreasonable time to compute.
    pub(super) fn known(&self, value: ValueId) -> Option<Tensor> {
        self.known_at(value, 0, &mut HashMap::new())
    }

    fn known_at(
        &self,
        value: ValueId,
        depth: usize,
        made: &mut HashMap<NodeId, Option<Vec<Tensor>>>,
    ) -> Option<Tensor> {
        const MAX_DEPTH: usize = 64;
        if let Some(tensor) = self.graph.constant(value) {
            return Some(tensor.clone());
        }
        if !made.contains_key(&value.node) {
            let results = match depth {
                MAX_DEPTH => None,
                _ => self.results_at(value.node, depth, made),
            };
            made.insert(value.node, results);
        }
        made.get(&value.node)?.as_ref()?.get(value.output as usize).cloned()
    }

    fn results_at(
        &self,
        id: NodeId,
        depth: usize,
        made: &mut HashMap<NodeId, Option<Vec<Tensor>>>,
    ) -> Option<Vec<Tensor>> {
        let node = self.graph.node(id);
        if *node.op() == Op::Input {
            return None;
        }
        let mut operands = Vec::new();
        for input in node.inputs() {
            operands.push(match *input {
                Some(value) => Some(self.known_at(value, depth + 1, made)?),
                None => None,
            });
        }
        let types: Vec<_> = node.inputs().iter().map(|v| v.map(|v| self.graph.ty(v))).collect();
        if !self.budget.take_steps(node.op(), &types, node.outputs()) {
            return None;
        }
        let operands: Vec<_> = operands.iter().map(Option::as_ref).collect();
        evaluate_op(node.op(), &operands, &Bindings::new()).ok()
    }
}

/// Bytes of a node's results, if their shapes are known.
fn result_bytes(node: &Node) -> Option<usize> {
    node.outputs().iter().try_fold(0_usize, |bytes, ty| {
        let elements = crate::tensor::checked_elements(&ty.known_shape()?)?;
        bytes.checked_add(elements.checked_mul(ty.dtype.size())?)
    })
}
