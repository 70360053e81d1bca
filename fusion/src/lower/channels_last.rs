//! Convolutions and poolings whose operands have their channels innermost in memory: which, and what is copied for them.

use super::Lowering;
use crate::base::groups::{Family, Group, GroupId, Groups};
use crate::base::program::{BufferKind, Operand, Origin};
use crate::base::rebuild::Rebuilt;
use crate::base::variants::Variants;
use crate::base::view::{channels_last, depthwise_weights};
use crate::families::calls::with_call;
use crate::families::layout::is_view;
use crate::families::tiles::variants_of_pixels;
use crate::lower::recipes::recipe_in_order;
use crate::partition::Granularity;
use crate::rewrite::channels::whole;
use crate::rewrite::integers::{FEW, multiplied_bytes};
use graphene_frontend::op::{Op, PoolAttrs, PoolKind, ReduceOp};
use graphene_frontend::{DType, Graph, Node, NodeId, ValueId};
use graphene_ir::arch::Feature;
use graphene_ir::target::{Kind, Target};
use std::collections::BTreeSet;

/// The convolutions and poolings of a graph whose channels are to be innermost: all that may be, where values are copied
/// from order to order for less than half of them, on a GPU for half of them at most; else none. A CPU's convolutions read
/// images in any order, and its poolings and its reductions over all pixels know both. The library's plan for a GPU has
/// them as a fused one does, so that both are compared in the order that suits tensor cores.
pub(crate) fn convolutions(graph: &Graph, groups: &Groups, target: &Target) -> BTreeSet<NodeId> {
    let mut all = BTreeSet::new();
    let cpu = target.kind == Kind::Cpu;
    if !cpu && !target.has(Feature::CpAsync) {
        return all;
    }
    // Values whose channels are innermost, and those of which there is a copy in the other order.
    let (mut last, mut copied) = (BTreeSet::new(), BTreeSet::new());
    for (id, node) in graph.nodes() {
        // Of single pixels both orders are one.
        let has_pixels =
            |value: &&ValueId| graph.ty(**value).shape.iter().skip(2).any(|size| *size != 1);
        let inputs = || node.inputs().iter().flatten().filter(has_pixels);
        let same = |value: &&ValueId| graph.ty(**value).shape == node.outputs()[0].shape;
        let lies_so = if is_taken(graph, groups, target, id) {
            all.insert(id);
            let image = node.inputs()[0].filter(|x| has_pixels(&x));
            copied.extend(image.filter(|x| !cpu && !last.contains(x)));
            true
        } else if cpu && is_pooling(node.op()) {
            inputs().any(|value| last.contains(value))
        } else if is_view(node.op()) && (cpu || !merges_channels(graph, node))
            || is_over_pixels(graph, node)
        {
            false
        } else if Family::of(node.op()) == Some(Family::Pointwise) {
            inputs().filter(same).any(|value| last.contains(value))
        } else {
            copied.extend(inputs().filter(|value| last.contains(*value)));
            false
        };
        last.extend(lies_so.then(|| id.value()));
    }
    copied.extend(graph.given().into_iter().filter(|value| last.contains(value)));
    let few = 2 * copied.len() < all.len() + usize::from(!cpu);
    if few { all } else { BTreeSet::new() }
}

/// Whether a template takes the convolution or the pooling.
fn is_taken(graph: &Graph, groups: &Groups, target: &Target, id: NodeId) -> bool {
    let node = graph.node(id);
    if target.kind == Kind::Cpu {
        return is_taken_by_cpu(graph, groups, id);
    }
    let taken = match (node.op(), node.inputs()) {
        (Op::Conv(attrs) | Op::WideConv(attrs), [_, Some(w), ..]) => {
            (attrs.group == 1 || is_depthwise(graph, node)) && groups.is_constant(w.node)
        }
        (Op::Pool(PoolAttrs { kind, ceil, .. }), _) => match kind {
            PoolKind::Max { indices } => indices.is_none(),
            PoolKind::Average { include_pad } => *include_pad && !ceil,
            PoolKind::Lp { .. } => false,
        },
        _ => false,
    };
    let Some(x) = node.input(0).filter(|_| taken) else { return false };
    let Some(wide) = whole(target, graph.ty(x).dtype) else { return false };
    let channels = [&graph.ty(x).shape[1], &node.outputs()[0].shape[1]];
    channels.iter().all(|dim| dim.known().is_some_and(|size| size % wide == 0))
}

/// Whether each channel has a group of its own, with one result.
fn is_depthwise(graph: &Graph, node: &Node) -> bool {
    let (Op::Conv(attrs) | Op::WideConv(attrs), [_, Some(w), ..]) = (node.op(), node.inputs())
    else {
        return false;
    };
    let filters = &graph.ty(*w).shape;
    attrs.group > 1 && filters[1] == 1 && filters[0].known() == Some(attrs.group as i64)
}

/// Whether a change of shape makes one axis of channels and pixels.
fn merges_channels(graph: &Graph, node: &Node) -> bool {
    let (Op::Reshape(made), Some(x)) = (node.op(), node.inputs()[0]) else { return false };
    made.get(1) != graph.ty(x).shape.get(1)
}

/// Whether a CPU's kernel takes the convolution: one group, or one for each channel; of bytes one group, where what widens
/// them is in the same launch.
fn is_taken_by_cpu(graph: &Graph, groups: &Groups, id: NodeId) -> bool {
    let node = graph.node(id);
    let (Op::Conv(attrs), [Some(x), Some(w), ..]) = (node.op(), node.inputs()) else {
        return false;
    };
    let (filters, single) = (&graph.ty(*w).shape, graph.ty(*x).dtype == DType::F32);
    let windows = filters.iter().all(|size| size.known().is_some_and(|size| size > 0));
    let axes = (1..=2).contains(&attrs.strides.len());
    let together = |group: &Group| group.nodes.contains(&id) && group.nodes.contains(&x.node);
    let bytes = || {
        let known =
            multiplied_bytes(graph, node).is_some() && filters[0].known() >= Some(FEW as i64);
        known && attrs.group == 1 && groups.groups().iter().any(together)
    };
    let known = windows && axes && groups.is_constant(w.node);
    known && (single && (attrs.group == 1 || is_depthwise(graph, node)) || bytes())
}

/// Whether the operation is a pooling of numbers alone.
fn is_pooling(op: &Op) -> bool {
    let Op::Pool(attrs) = op else { return false };
    matches!(attrs.kind, PoolKind::Max { indices: None } | PoolKind::Average { .. })
        && (1..=2).contains(&attrs.kernel.len())
}

/// Whether the operation reduces images to their channels.
fn is_over_pixels(graph: &Graph, node: &Node) -> bool {
    let (Op::Reduce { op, axes, .. }, [Some(x)]) = (node.op(), node.inputs()) else {
        return false;
    };
    let known = matches!(op, ReduceOp::Sum | ReduceOp::Mean | ReduceOp::Max | ReduceOp::Min);
    known && (2..graph.ty(*x).rank()).eq(axes.iter().copied())
}

impl Lowering<'_> {
    /// Whether a group is one pooling, or one reduction over all pixels, of images whose channels are innermost: `true` for
    /// the pooling, whose results lie so too.
    pub(super) fn pools_channels_last(&self, group: &Group) -> Option<bool> {
        let &[id] = &group.nodes[..] else { return None };
        let node = self.graph.node(id);
        let view = &self.places.get(&node.input(0)?)?.view;
        let turned = view.is_channels_last() && !view.is_contiguous();
        let cpu = self.target.kind == Kind::Cpu;
        let pooling = cpu && is_pooling(node.op());
        let taken = match self.graph.ty(id.value()).dtype {
            DType::F32 => true,
            DType::U8 | DType::I8 => pooling || !cpu,
            _ => !cpu,
        };
        if self.channels_last.is_empty() || !turned || !taken {
            return None;
        }
        (pooling || is_over_pixels(self.graph, node)).then_some(pooling)
    }

    /// The group's convolution, if its channels are to be innermost. A CPU's templates write one result in single precision
    /// so, and any where bytes are multiplied.
    pub(super) fn channels_last(&self, group: &Group, writes: &[ValueId]) -> Option<NodeId> {
        let conv = group.nodes.iter().copied().find(|id| self.channels_last.contains(id))?;
        let dtype = |value: ValueId| self.graph.ty(value).dtype;
        let bytes = dtype(conv.value()) == DType::I32;
        let single = matches!(writes, [only] if dtype(*only) == DType::F32);
        (bytes || single || self.target.kind != Kind::Cpu).then_some(conv)
    }

    /// Whether all that read a value are such convolutions, of which it is the image.
    pub(super) fn is_image_of_all(&self, value: ValueId) -> bool {
        let uses = self.graph.uses(value.node);
        let is_image = |reader: NodeId| {
            let inputs = self.graph.node(reader).inputs();
            inputs.iter().filter(|input| **input == Some(value)).count() == 1
                && inputs.first() == Some(&Some(value))
                && self.channels_last.contains(&reader)
        };
        !uses.is_empty() && uses.iter().all(|(reader, _)| is_image(*reader))
    }

    pub(super) fn variants_channels_last(&self, conv: NodeId, body: &Graph) -> Variants {
        let node = self.graph.node(conv);
        let dense =
            matches!(node.op(), Op::Conv(_) | Op::WideConv(_)) && !is_depthwise(self.graph, node);
        if self.target.kind == Kind::Cpu || !dense {
            return Variants::any();
        }
        let shape = &self.graph.ty(conv.value()).shape;
        let pixels = shape[2..].iter().fold(shape[0].clone(), |all, size| &all * size);
        let own = variants_of_pixels(self.target, &pixels, &shape[1]);
        with_call(self.target, Family::Convolution, body, own)
    }

    /// Where such a convolution's group reads an image, the weights or an addend of the result's shape; none for what has
    /// no pixels of its own.
    pub(super) fn place_channels_last(
        &mut self,
        number: GroupId,
        group: &Group,
        conv: NodeId,
        value: ValueId,
    ) -> Rebuilt<Option<Operand>> {
        let node = self.graph.node(conv);
        let shape = &self.graph.ty(value).shape;
        let weights = node.inputs().get(1) == Some(&Some(value));
        let image = node.inputs().first() == Some(&Some(value));
        if self.target.kind == Kind::Cpu {
            return if image { self.place(value).map(Some) } else { Ok(None) };
        }
        if !weights && !image && *shape != node.outputs()[0].shape {
            return Ok(None);
        }
        if let Some(place) = self.reordered.get(&value) {
            return Ok(Some(place.clone()));
        }
        let mut order = channels_last(shape.len());
        if weights {
            // A library knows one order of weights.
            if self.granularity == Granularity::Fused && is_depthwise(self.graph, node) {
                order = depthwise_weights(shape.len());
            }
            let recipe = recipe_in_order(self.graph, value, &order)?;
            return Ok(Some(self.reorder(value, &order, BufferKind::derived(recipe))));
        }
        let place = self.place(value)?;
        if place.view.is_channels_last() {
            return Ok(Some(place));
        }
        let copy = self.reorder(value, &order, BufferKind::Intermediate);
        self.push_copy(Origin::Before(number), value, place, copy.clone(), group.executor)?;
        Ok(Some(copy))
    }
}
