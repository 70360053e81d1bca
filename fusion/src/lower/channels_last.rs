//! Convolutions whose operands have their channels innermost in memory: which, and what is copied for them.

use super::Lowering;
use crate::FusionError;
use crate::groups::{Family, Group, Groups};
use crate::kernels::{channels_last, lies_channels_last};
use crate::program::{BufferKind, Operand, Weight};
use crate::variants::{Variants, variants_of_pixels};
use crate::view::View;
use crate::weights::recipe_in_order;
use graphene_frontend::dtype::DType;
use graphene_frontend::graph::{Graph, Node, NodeId, ValueId};
use graphene_frontend::op::Op;
use graphene_ir::arch::Feature;
use graphene_ir::target::{Kind, Target};
use std::collections::BTreeSet;
use std::sync::Arc;

/// The convolutions of a graph whose channels are to be innermost: all that may be, where values are copied from order to
/// order for less than half of them; else none.
pub(super) fn convolutions(graph: &Graph, groups: &Groups, target: &Target) -> BTreeSet<NodeId> {
    let mut all = BTreeSet::new();
    if target.kind == Kind::Cpu || !target.has(Feature::CpAsync) {
        return all;
    }
    // Values whose channels are innermost, and those of which there is a copy in the other order.
    let (mut last, mut copied) = (BTreeSet::new(), BTreeSet::new());
    for (id, node) in graph.nodes() {
        let inputs = || node.inputs().iter().flatten();
        let same = |value: &&ValueId| graph.ty(**value).shape == node.outputs()[0].shape;
        if is_taken(graph, groups, target, node) {
            all.insert(id);
            copied.extend(node.inputs()[0].filter(|x| !last.contains(x)));
            last.insert(id.value());
        } else if Family::of(node.op()) == Some(Family::Pointwise) {
            if inputs().filter(same).any(|value| last.contains(value)) {
                last.insert(id.value());
            }
        } else {
            copied.extend(inputs().filter(|value| last.contains(*value)));
        }
    }
    let given = graph.outputs().iter().map(|(_, value)| *value);
    copied.extend(given.filter(|value| last.contains(value)));
    if 2 * copied.len() < all.len() { all } else { BTreeSet::new() }
}

/// Whether the template takes the convolution.
fn is_taken(graph: &Graph, groups: &Groups, target: &Target, node: &Node) -> bool {
    let (Op::Conv(attrs), [Some(x), Some(w), ..]) = (node.op(), node.inputs()) else {
        return false;
    };
    let wide = match graph.ty(*x).dtype {
        DType::F16 | DType::BF16 => 8,
        DType::F32 if target.tf32 => 4,
        _ => return false,
    };
    let channels = [&graph.ty(*x).shape[1], &node.outputs()[0].shape[1]];
    let whole = channels.iter().all(|dim| dim.known().is_some_and(|size| size % wide == 0));
    whole && attrs.group == 1 && groups.is_constant(w.node)
}

impl Lowering<'_> {
    /// The group's convolution, if its channels are to be innermost.
    pub(super) fn channels_last(&self, group: &Group) -> Option<NodeId> {
        group.nodes.iter().copied().find(|id| self.channels_last.contains(id))
    }

    /// The variants of such a convolution.
    pub(super) fn variants_channels_last(&self, conv: NodeId) -> Variants {
        let shape = &self.graph.ty(conv.value()).shape;
        let pixels = shape[2..].iter().fold(shape[0].clone(), |all, size| &all * size);
        variants_of_pixels(self.target, &pixels, &shape[1])
    }

    /// Where such a convolution's group reads an image, the weights or an addend of the result's shape; none for what has
    /// no pixels of its own.
    pub(super) fn place_channels_last(
        &mut self,
        number: usize,
        group: &Group,
        conv: NodeId,
        value: ValueId,
    ) -> Result<Option<Operand>, FusionError> {
        let node = self.graph.node(conv);
        let shape = &self.graph.ty(value).shape;
        let weights = node.inputs().get(1) == Some(&Some(value));
        let image = node.inputs().first() == Some(&Some(value));
        if !weights && !image && *shape != node.outputs()[0].shape {
            return Ok(None);
        }
        if let Some(place) = self.innermost.get(&value) {
            return Ok(Some(place.clone()));
        }
        let order = channels_last(shape.len());
        let view = View::ordered(shape, &order);
        let operand = if weights {
            let recipe = Arc::new(recipe_in_order(self.graph, value, &order)?);
            let buffer = self.new_buffer(value, BufferKind::Weight(Weight::Derived(recipe)));
            Operand { buffer, view }
        } else {
            let place = self.place(value)?;
            if lies_channels_last(&place.view) && place.view.offset == 0 {
                return Ok(Some(place));
            }
            let buffer = self.new_buffer(value, BufferKind::Intermediate);
            let copy = Operand { buffer, view };
            self.copy_before(number, value, place, copy.clone(), group.executor)?;
            copy
        };
        self.innermost.insert(value, operand.clone());
        Ok(Some(operand))
    }
}
