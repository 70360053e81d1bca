//! How values lie in memory: what lowering does to an operation alone, known before there are groups.
//!
//! A change of view moves nothing where strides can say it; else it is a copy. Producers that may write in any order
//! write as their readers want it. Groups of several operations may still lie otherwise than their operations alone.

use crate::base::groups::Family;
use crate::base::view::View;
use graphene_frontend::{Dim, Graph, Node, NodeId, Op, ValueId};
use std::collections::BTreeSet;

/// How the values of a graph lie, operations taken one by one.
pub(crate) struct Layouts {
    /// For each node how its first output lies, where that is not row-major.
    views: Vec<Option<View>>,
    /// For each node whether it is a change of view that has to move elements.
    moved: Vec<bool>,
}

pub(crate) fn is_view(op: &Op) -> bool {
    matches!(op, Op::Reshape(_) | Op::BitCast(_) | Op::Transpose(_) | Op::Expand(_) | Op::Slice(_))
}

/// What a change of view makes of a view of its input; `None` if no strides say it, or if it is no such operation.
pub(crate) fn view_of(op: &Op, view: &View) -> Option<View> {
    match op {
        Op::Reshape(shape) => view.reshape(shape),
        Op::Transpose(perm) => Some(view.transpose(perm)),
        Op::Expand(shape) => view.expand(shape),
        Op::Slice(ranges) => Some(view.slice(ranges)),
        // The same bits: a view as long as the buffer's own type does not matter to a copy.
        _ => None,
    }
}

/// The order in which all readers of the value see it, if they are transposes.
pub(crate) fn transposed(graph: &Graph, value: ValueId) -> Option<Vec<usize>> {
    let uses = graph.uses(value.node);
    let uses = uses.iter().filter(|(_, edge)| edge.output == value.output);
    let mut readers = uses.map(|(reader, _)| graph.node(*reader).op());
    let Some(Op::Transpose(perm)) = readers.next() else { return None };
    let alike = |op: &Op| matches!(op, Op::Transpose(other) if other == perm);
    readers.all(alike).then(|| perm.clone())
}

/// Whether executors read all of a family's inputs through views. Of the others, groups of several operations read
/// through views what only their pointwise operations read.
pub(crate) fn takes_views(family: Family) -> bool {
    writes_any_order(family) || matches!(family, Family::View | Family::Copy)
}

/// Whether executors write a family's outputs with their dims in any order.
pub(crate) fn writes_any_order(family: Family) -> bool {
    matches!(family, Family::Pointwise | Family::MatMul | Family::Mlp | Family::Fmha)
}

impl Layouts {
    /// Looks at every operation once. What is made of constants alone lies as it is made, or as a view of that.
    pub(crate) fn new(graph: &Graph, constant: &[bool]) -> Self {
        let given: BTreeSet<ValueId> = graph.given().into_iter().collect();
        let mut layouts = Self { views: vec![None; graph.len()], moved: vec![false; graph.len()] };
        for (id, node) in graph.nodes() {
            let view = if is_view(node.op()) {
                let input = node.inputs()[0].expect("a change of view has its input");
                let view = view_of(node.op(), &layouts.view(graph, input));
                layouts.moved[id.index()] = view.is_none() && !constant[id.index()];
                view
            } else if given.contains(&id.value()) || constant[id.index()] {
                None
            } else {
                layouts.written(graph, id, node)
            };
            layouts.views[id.index()] = view.filter(|view| !view.is_contiguous());
        }
        layouts
    }

    pub(crate) fn is_row_major(&self, value: ValueId) -> bool {
        value.output > 0 || self.views[value.node.index()].is_none()
    }

    pub(crate) fn is_moved(&self, id: NodeId) -> bool {
        self.moved[id.index()]
    }

    fn view(&self, graph: &Graph, value: ValueId) -> View {
        let own = self.views[value.node.index()].as_ref().filter(|_| value.output == 0);
        own.cloned().unwrap_or_else(|| View::contiguous(&graph.ty(value).shape))
    }

    /// How an operation writes its result where it may choose.
    fn written(&self, graph: &Graph, id: NodeId, node: &Node) -> Option<View> {
        let family = Family::of(node.op()).filter(|&family| writes_any_order(family))?;
        let order = transposed(graph, id.value()).or_else(|| {
            let read = node.inputs().iter().flatten().map(|&value| self.view(graph, value));
            order_of_read(family, &node.outputs()[0].shape, read)
        })?;
        Some(View::ordered(&node.outputs()[0].shape, &order))
    }
}

/// The order of dims in memory in which a pointwise family writes a shape where none of that shape that it reads lies
/// row-major: as one of them lies.
pub(crate) fn order_of_read(
    family: Family,
    shape: &[Dim],
    read: impl Iterator<Item = View>,
) -> Option<Vec<usize>> {
    let full: Vec<View> = read.filter(|view| view.shape() == shape).collect();
    if family != Family::Pointwise || full.iter().any(View::is_contiguous) {
        return None;
    }
    full.iter().find_map(View::memory_order)
}
