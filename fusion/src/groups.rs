//! Groups: the partition of a graph's operations into launches.

use crate::partition::is_view;
use graphene_frontend::graph::{Graph, NodeId, ValueId};
use graphene_frontend::op::Op;
use std::fmt;

/// A group of a [`Groups`]. Prints as `g4`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct GroupId(pub(crate) u32);

impl GroupId {
    /// The position of the group in [`Groups::groups`].
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// What kind of computation a group is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Family {
    /// A change of view: nothing is launched.
    View,
    /// Movement of elements: transpose, slice, concatenation, padding.
    Copy,
    /// One loop over an expression of elements.
    Pointwise,
    /// A matrix product.
    MatMul,
    /// Softmax, LayerNorm or RMSNorm: statistics along rows, applied to the rows.
    Normalization,
    /// A reduction, running sum or selection along axes.
    Reduction,
    /// Gathers and scatters by indices.
    Gather,
    /// Attention in one pass.
    Fmha,
    /// Convolution or pooling.
    Convolution,
    /// A recurrent layer.
    Recurrent,
    /// Branches and loops.
    Control,
}

/// Operations that run as one launch.
#[derive(Clone, PartialEq, Debug)]
pub struct Group {
    /// What kind of computation it is.
    pub family: Family,
    /// Its operations, in topological order.
    pub nodes: Vec<NodeId>,
}

/// Why a value is stored between two groups instead of staying inside one.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Reason {
    /// Every operation is a launch of its own: that was asked for.
    PerOp,
    /// The producer is of a family that takes no consumer in.
    Producer(Family),
    /// The consumer is of a family that takes no producer in.
    Consumer(Family),
    /// A change of view stands between the two.
    View,
    /// The two loop over different shapes.
    Shape,
    /// Fusing would make two groups wait for each other.
    Cycle,
    /// Another producer's group was joined.
    Elsewhere,
}

/// A value that is stored between two groups, and why.
#[derive(Clone, PartialEq, Debug)]
pub struct Boundary {
    /// The value.
    pub value: ValueId,
    /// The group that makes it.
    pub from: GroupId,
    /// The group that reads it.
    pub to: GroupId,
    /// Why it is stored.
    pub reason: Reason,
}

/// A partition: every operation that is not a source is in exactly one group, and groups wait for each
/// other without cycles; they stand in an order in which they can run.
#[derive(Clone, PartialEq, Debug)]
pub struct Groups {
    pub(crate) groups: Vec<Group>,
    pub(crate) boundaries: Vec<Boundary>,
}

impl Groups {
    /// All operations in one group of this family, changes of view of sources before it and others after it:
    /// for those who want to run a group that they know.
    pub fn one(graph: &Graph, family: Family) -> Self {
        let mut given = vec![false; graph.len()];
        let [mut before, mut nodes, mut after] = [const { Vec::new() }; 3];
        for (id, node) in graph.nodes() {
            let view = is_view(node.op());
            let mut values = node.inputs().iter().flatten();
            given[id.index()] = match Family::of(node.op()) {
                None => true,
                Some(_) => view && values.all(|value| given[value.node.index()]),
            };
            match (Family::of(node.op()), view) {
                (None, _) => {}
                (Some(_), false) => nodes.push(id),
                (Some(_), true) if given[id.index()] => before.push(id),
                (Some(_), true) => after.push(id),
            }
        }
        let view = |id| Group { family: Family::View, nodes: vec![id] };
        let groups = before.into_iter().map(view).chain([Group { family, nodes }]);
        let groups = groups.chain(after.into_iter().map(view)).collect();
        Self { groups, boundaries: Vec::new() }
    }

    /// The groups, in an order in which they can run.
    pub fn groups(&self) -> &[Group] {
        &self.groups
    }

    /// Values stored between two groups, by value and reader.
    pub fn boundaries(&self) -> &[Boundary] {
        &self.boundaries
    }

    /// Text: a line a group, with its family and its operations.
    pub fn print(&self, graph: &Graph) -> String {
        let mut text = String::new();
        for (i, group) in self.groups.iter().enumerate() {
            let name = group_name(graph, &group.nodes);
            text += &format!("g{i} {} {name}\n", group.family);
        }
        text
    }

    /// Text: a line a boundary, with its reason.
    pub fn explain(&self, graph: &Graph) -> String {
        let mut text = String::new();
        for Boundary { value, from, to, reason } in &self.boundaries {
            let name = graph.node(value.node).name();
            text += &format!("{from} -> {to}  {} {name:?} is stored: {reason}\n", graph.ty(*value));
        }
        text
    }
}

impl Family {
    /// All families.
    pub const ALL: [Self; 11] = [
        Self::View,
        Self::Copy,
        Self::Pointwise,
        Self::MatMul,
        Self::Normalization,
        Self::Reduction,
        Self::Gather,
        Self::Fmha,
        Self::Convolution,
        Self::Recurrent,
        Self::Control,
    ];

    /// The family of an operation alone; `None` for sources.
    pub fn of(op: &Op) -> Option<Self> {
        Some(match op {
            Op::Input | Op::Constant(_) => return None,
            Op::Iota(_) | Op::Size(_) => Self::Copy,
            Op::Unary(_) | Op::Binary(_) | Op::Select | Op::Cast { .. } => Self::Pointwise,
            Op::Reshape(_) | Op::BitCast(_) => Self::View,
            Op::Transpose(_) | Op::Expand(_) | Op::Slice(_) => Self::Copy,
            Op::Concat { .. } | Op::Pad { .. } | Op::Resize(_) => Self::Copy,
            Op::Gather { .. }
            | Op::GatherElements { .. }
            | Op::GatherNd { .. }
            | Op::ScatterElements { .. }
            | Op::ScatterNd { .. } => Self::Gather,
            Op::Reduce { .. }
            | Op::ArgReduce { .. }
            | Op::Cumulative { .. }
            | Op::TopK { .. }
            | Op::NonZero => Self::Reduction,
            Op::MatMul => Self::MatMul,
            Op::Conv(_) | Op::ConvTranspose { .. } | Op::Pool(_) => Self::Convolution,
            Op::Softmax { .. } | Op::LayerNorm { .. } | Op::RmsNorm { .. } => Self::Normalization,
            Op::Attention(_) => Self::Fmha,
            Op::Rnn(_) => Self::Recurrent,
            Op::If { .. } | Op::Loop { .. } | Op::Scan(_) => Self::Control,
        })
    }

    /// The name in reports and in `--assert-fused`.
    pub fn name(self) -> &'static str {
        match self {
            Self::View => "View",
            Self::Copy => "Copy",
            Self::Pointwise => "Pointwise",
            Self::MatMul => "MatMul",
            Self::Normalization => "Normalization",
            Self::Reduction => "Reduction",
            Self::Gather => "Gather",
            Self::Fmha => "FMHA",
            Self::Convolution => "Convolution",
            Self::Recurrent => "Recurrent",
            Self::Control => "Control",
        }
    }
}

/// The operations of a group and where its first one stands in the model.
pub(crate) fn group_name(graph: &Graph, nodes: &[NodeId]) -> String {
    let ops: Vec<_> = nodes.iter().map(|&id| graph.node(id).op().name()).collect();
    let place = nodes.last().map_or("", |&id| graph.node(id).name());
    format!("{} ({place})", ops.join("+"))
}

impl fmt::Display for GroupId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "g{}", self.0)
    }
}

impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::PerOp => f.write_str("every operation is a launch of its own"),
            Self::Producer(family) => write!(f, "a {family} group takes no consumer in"),
            Self::Consumer(family) => write!(f, "a {family} group takes no producer in"),
            Self::View => f.write_str("a change of view stands between the two"),
            Self::Shape => f.write_str("the two loop over different shapes"),
            Self::Cycle => f.write_str("fusing would make two groups wait for each other"),
            Self::Elsewhere => f.write_str("the consumer joined another producer's group"),
        }
    }
}
