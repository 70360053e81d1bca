//! What an import may cost: a small file can ask for much.
//!
//! Constants are computed at import by the evaluator, and functions and loops are written out. Both are counted over
//! the whole model, its bodies among it, so that an import ends soon whatever the file asks for.

use crate::op::{Class, Op, PoolAttrs};
use crate::tensor::{Tensor, checked_elements};
use crate::types::TensorType;
use std::cell::Cell;
use std::rc::Rc;

/// One operation on constants does at most this many steps.
const STEPS_PER_OP: usize = 1 << 26;

/// Operations on constants that compute hold at most this many elements; the evaluator takes 16 bytes each.
const ELEMENTS_PER_OP: usize = 1 << 24;

/// All operations on constants together do at most this many steps, and more where the model has weights.
const STEPS: usize = 1 << 26;

/// All results kept take at most this many bytes, and more where the model has weights.
const BYTES: usize = 1 << 28;

/// Steps for each element of a weight, and bytes for each byte.
const SHARE: usize = 8;

/// Nodes of a graph, and all nodes, calls and iterations: more than any real model has.
pub(super) const MAX_NODES: usize = 1 << 18;

/// What is left; clones share it.
#[derive(Clone, Debug)]
pub(super) struct Budget(Rc<Left>);

#[derive(Debug)]
struct Left {
    steps: Cell<usize>,
    bytes: Cell<usize>,
    nodes: Cell<usize>,
}

impl Default for Budget {
    fn default() -> Self {
        let (steps, bytes, nodes) = (Cell::new(STEPS), Cell::new(BYTES), Cell::new(MAX_NODES));
        Self(Rc::new(Left { steps, bytes, nodes }))
    }
}

impl Budget {
    /// Allows for more: the model has this weight.
    pub(super) fn grow(&self, weight: &Tensor) {
        let add = |left: &Cell<usize>, n: usize| {
            left.set(left.get().saturating_add(n.saturating_mul(SHARE)));
        };
        add(&self.0.steps, weight.len());
        add(&self.0.bytes, weight.bytes().len());
    }

    /// Takes the steps of an operation on constants; false, and nothing taken, where it does too many.
    pub(super) fn take_steps(
        &self,
        op: &Op,
        inputs: &[Option<&TensorType>],
        outputs: &[TensorType],
    ) -> bool {
        let steps = steps(op, inputs, outputs).filter(|&steps| steps <= STEPS_PER_OP);
        steps.is_some_and(|steps| take(&self.0.steps, steps))
    }

    /// Takes steps of a computation that is no operation; false where there are no more.
    pub(super) fn take_work(&self, steps: usize) -> bool {
        take(&self.0.steps, steps)
    }

    /// Takes bytes for a result that is kept; false where there are no more.
    pub(super) fn take_bytes(&self, bytes: usize) -> bool {
        take(&self.0.bytes, bytes)
    }

    /// Takes some of the nodes, calls and iterations; false where there are no more.
    pub(super) fn take_nodes(&self, nodes: usize) -> bool {
        take(&self.0.nodes, nodes)
    }
}

fn take(left: &Cell<usize>, amount: usize) -> bool {
    match left.get().checked_sub(amount) {
        Some(rest) => {
            left.set(rest);
            true
        }
        None => false,
    }
}

fn elements(ty: &TensorType) -> Option<usize> {
    checked_elements(&ty.known_shape()?)
}

/// About how many steps the evaluator does; nothing for shapes that are not known, and for what runs other graphs.
fn steps(op: &Op, inputs: &[Option<&TensorType>], outputs: &[TensorType]) -> Option<usize> {
    // What only picks elements does not read the others.
    let picks = matches!(op, Op::Slice(_) | Op::Gather { .. } | Op::GatherNd { .. });
    let read = inputs.iter().copied().flatten().filter(|_| !picks);
    let mut all = 1_usize;
    for ty in read.chain(outputs) {
        all = all.checked_add(elements(ty)?)?;
    }
    if all > ELEMENTS_PER_OP {
        return None;
    }
    let input = |i: usize| inputs.get(i).copied().flatten();
    let size = |i: usize, from_end: usize| {
        let shape = input(i)?.known_shape()?;
        shape.len().checked_sub(from_end).and_then(|axis| shape.get(axis).copied())
    };
    let result = elements(outputs.first()?)?;
    let more = match op {
        Op::MatMul => result.checked_mul(size(0, 1)?)?,
        Op::Conv(_) | Op::WideConv(_) => {
            let kernel = elements(input(1)?)? / input(1)?.known_shape()?.first()?.max(&1);
            result.checked_mul(kernel)?
        }
        Op::ConvTranspose { .. } => {
            let kernel = elements(input(1)?)? / input(1)?.known_shape()?.first()?.max(&1);
            elements(input(0)?)?.checked_mul(kernel)?
        }
        Op::Pool(PoolAttrs { kernel, .. }) => checked_elements(kernel)?.checked_mul(result)?,
        // A query meets every key, then every value.
        Op::Attention(_) => {
            let keys = size(1, 2)?;
            elements(input(0)?)?.checked_add(result)?.checked_mul(keys)?
        }
        // A step of a sample meets all weights.
        Op::Rnn(_) => {
            let weights = elements(input(1)?)?.checked_add(elements(input(2)?)?)?;
            size(0, 3)?.checked_mul(size(0, 2)?)?.checked_mul(weights)?
        }
        // The window is at most an axis wide.
        Op::Resize(_) => {
            let widest = input(0)?.known_shape()?.into_iter().max().unwrap_or(1);
            result.checked_mul(widest)?
        }
        Op::TopK { .. } => all.checked_mul(usize::BITS as usize)?,
        op => match op.info().class {
            Class::Source | Class::Sizes | Class::Pointwise | Class::View | Class::Movement => 0,
            Class::Gather | Class::Scatter | Class::Reduction | Class::Selection => 0,
            Class::Normalization => 0,
            Class::MatMul
            | Class::Convolution
            | Class::Pool
            | Class::Attention
            | Class::Recurrent
            | Class::Resample
            | Class::Control => return None,
        },
    };
    all.checked_add(more)
}
