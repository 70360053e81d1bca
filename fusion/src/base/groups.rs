//! Groups: the partition of a graph's operations into launches.

use crate::base::cost::Cost;
use graphene_frontend::graph::{Graph, NodeId, ValueId};
use graphene_frontend::op::{Class, Op};
use std::fmt;

/// The places that the operations of a group may span.
pub(crate) const SPAN: usize = 128;

position! {
    /// A group, by its position in [`Groups::groups`]. Prints as `g4`.
    GroupId, "g"
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
    /// Matrix products, with what is done to their results.
    MatMul,
    /// Several layers, each a matrix product and what is done to its result.
    Mlp,
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
    /// What executes it.
    pub executor: Executor,
    /// What it costs under the planning hints; `None` where nothing was weighed, as for a change of view.
    pub cost: Option<Cost>,
}

/// What executes a launch.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Executor {
    /// A kernel made for the group.
    Template,
    /// The library executor, one call an operation: no template takes it.
    Library,
    /// The reference evaluator: on a CPU no kernel takes it.
    Reference,
}

/// Why a value is stored between two groups instead of staying inside one.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Reason {
    /// Every operation is a launch of its own: that was asked for.
    PerOp,
    /// This operation, as it is here, is a launch of its own.
    Alone(&'static str),
    /// A change of view that strides cannot say: it moves elements.
    Moved(&'static str),
    /// A launch of this family reads row-major values only: what lies otherwise is copied.
    Packed(Family),
    /// An output is row-major and a buffer of its own: what is not is copied.
    Given,
    /// No template computes operations of these two families, or two of the one.
    Mixed(Family, Family),
    /// Launches of this family compute nothing before the operation that names them.
    Prologue(Family),
    /// A change of view stands between the two.
    View,
    /// The two have different shapes.
    Shape,
    /// An element type that only loops and operations alone have.
    Type,
    /// Layers in one launch are matmuls by weights of rank 2 that it reads.
    Weights,
    /// Layers in one launch are a chain: each matmul reads the layer before.
    Chain,
    /// On a GPU several matmuls in one launch are one sum, and nothing else reads them.
    Sum,
    /// On a GPU a loop computes in single precision or in integers, not in both.
    Numbers,
    /// On a GPU rows of tables in one launch make one result.
    Results,
    /// The width of a layer is a symbol, so that nobody knows whether it fits.
    Width,
    /// What stays inside does not fit.
    Memory {
        /// Bytes of a tile's intermediates.
        bytes: u64,
        /// Bytes that a block has.
        limit: u64,
    },
    /// Fusing would make two groups wait for each other.
    Cycle,
    /// The two stand farther apart than a group may span.
    Apart,
    /// The two could be one launch, and it would take longer.
    NotProfitable,
    /// The two could be one cheaper launch, and what was chosen is cheaper together.
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
    /// Seconds that one launch for both would gain, were there a template for it; below zero it would lose. `None`
    /// where nothing was weighed: every operation is a launch.
    pub gain: Option<f64>,
}

/// What a reader of a plan should know about the way to it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Note {
    /// From so many operations not all groups were looked at.
    Candidates(usize),
    /// So many times covers were given up: a cheaper one may exist.
    Covers(usize),
    /// So many values are stored between groups that stand too far apart to be one, where that would gain.
    Apart(usize),
}

/// A partition: every operation that is not a source and not made of constants alone is in exactly one group;
/// groups wait for each other without cycles, and stand in an order in which they can run.
#[derive(Clone, PartialEq, Debug)]
pub struct Groups {
    pub(crate) groups: Vec<Group>,
    pub(crate) boundaries: Vec<Boundary>,
    pub(crate) notes: Vec<Note>,
    /// For each node whether it is made of constants alone.
    pub(crate) constant: Vec<bool>,
}

impl Groups {
    /// Whether the node is made of constants alone: then it is in no group, and its values are weights.
    pub fn is_constant(&self, id: NodeId) -> bool {
        self.constant.get(id.index()).copied().unwrap_or(false)
    }

    /// The groups, in an order in which they can run.
    pub fn groups(&self) -> &[Group] {
        &self.groups
    }

    /// Values stored between two groups, by value and reader.
    pub fn boundaries(&self) -> &[Boundary] {
        &self.boundaries
    }

    /// Where the choice is not known to be the best.
    pub fn notes(&self) -> &[Note] {
        &self.notes
    }

    /// For each node of the graph its group.
    pub(crate) fn group_of(&self, graph: &Graph) -> Vec<Option<GroupId>> {
        let mut group_of = vec![None; graph.len()];
        for (number, group) in self.groups.iter().enumerate() {
            let id = GroupId::from_index(number);
            group.nodes.iter().for_each(|node| group_of[node.index()] = Some(id));
        }
        group_of
    }

    /// Seconds that all groups take, as far as they were weighed.
    pub fn seconds(&self) -> f64 {
        self.groups.iter().filter_map(|group| group.cost).map(|cost| cost.seconds()).sum()
    }

    /// Whether launches were weighed: not where every operation is one.
    pub(crate) fn seconds_known(&self) -> bool {
        self.groups.iter().any(|group| group.cost.is_some())
    }
}

impl Family {
    /// All families.
    pub const ALL: &[Self] = &[
        Self::View,
        Self::Copy,
        Self::Pointwise,
        Self::MatMul,
        Self::Mlp,
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
        Some(match op.info().class {
            Class::Source => return None,
            Class::Pointwise => Self::Pointwise,
            Class::View => Self::View,
            Class::Sizes | Class::Movement | Class::Resample => Self::Copy,
            Class::Gather | Class::Scatter => Self::Gather,
            Class::Reduction | Class::Selection => Self::Reduction,
            Class::MatMul => Self::MatMul,
            Class::Convolution | Class::Pool => Self::Convolution,
            Class::Normalization => Self::Normalization,
            Class::Attention => Self::Fmha,
            Class::Recurrent => Self::Recurrent,
            Class::Control => Self::Control,
        })
    }

    /// The name in reports and in `--assert-fused`.
    pub fn name(self) -> &'static str {
        self.name_and_color().0
    }

    /// The colour of its groups in pictures.
    pub fn colour(self) -> &'static str {
        self.name_and_color().1
    }

    fn name_and_color(self) -> (&'static str, &'static str) {
        match self {
            Self::View => ("View", "#eeeeee"),
            Self::Copy => ("Copy", "#cccccc"),
            Self::Pointwise => ("Pointwise", "#fff2ae"),
            Self::MatMul => ("MatMul", "#b3cde3"),
            Self::Mlp => ("MLP", "#8fb8de"),
            Self::Normalization => ("Normalization", "#ccebc5"),
            Self::Reduction => ("Reduction", "#a8ddb5"),
            Self::Gather => ("Gather", "#fddaec"),
            Self::Fmha => ("FMHA", "#fbb4ae"),
            Self::Convolution => ("Convolution", "#decbe4"),
            Self::Recurrent => ("Recurrent", "#fed9a6"),
            Self::Control => ("Control", "#e5d8bd"),
        }
    }
}

impl Executor {
    /// What stands behind a launch in texts.
    pub(crate) fn suffix(self) -> &'static str {
        match self {
            Self::Template => "",
            Self::Library => " by the library",
            Self::Reference => " by the reference",
        }
    }
}

/// The operations of a group and where its first one stands in the model.
pub(crate) fn group_name(graph: &Graph, nodes: &[NodeId]) -> String {
    let ops: Vec<_> = nodes.iter().map(|&id| graph.node(id).op().name()).collect();
    let place = nodes.last().map_or("", |&id| graph.node(id).name());
    format!("{} ({place})", ops.join("+"))
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
            Self::Alone(op) => write!(f, "this {op} is a launch of its own"),
            Self::Moved(op) => write!(f, "this {op} moves elements, so it is no view"),
            Self::Packed(family) => write!(f, "a {family} launch reads row-major values only"),
            Self::Given => f.write_str("an output is row-major and in a buffer of its own"),
            Self::Mixed(a, b) if a == b => write!(f, "no template computes two of {a}"),
            Self::Mixed(a, b) => write!(f, "no template computes both {a} and {b}"),
            Self::Prologue(family) => write!(f, "a {family} launch takes nothing before it"),
            Self::View => f.write_str("a change of view stands between the two"),
            Self::Shape => f.write_str("the two have different shapes"),
            Self::Type => f.write_str("only loops take its element type"),
            Self::Weights => f.write_str("each layer in one launch must be a matmul by weights"),
            Self::Chain => f.write_str("layers in one launch must be a chain"),
            Self::Sum => {
                f.write_str("several matmuls in one launch must be added, and read by nothing else")
            }
            Self::Numbers => f.write_str("one loop computes in integers or in single precision"),
            Self::Results => f.write_str("rows of tables in one launch make one result"),
            Self::Width => f.write_str("the width of a layer is a symbol"),
            Self::Memory { bytes, limit } => {
                write!(f, "intermediates of {bytes} bytes exceed the {limit} of a block")
            }
            Self::Cycle => f.write_str("fusing would make two groups wait for each other"),
            Self::Apart => f.write_str("the two stand too far apart"),
            Self::NotProfitable => f.write_str("one launch would take longer"),
            Self::Elsewhere => f.write_str("another choice is cheaper"),
        }
    }
}

impl fmt::Display for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Candidates(n) => write!(f, "note: from {n} operations not all groups were tried"),
            Self::Covers(n) => {
                write!(f, "note: covers were given up {n} times; a cheaper one may exist")
            }
            Self::Apart(n) => {
                write!(
                    f,
                    "note: a group spans at most {SPAN} operations: values stored for that: {n}"
                )
            }
        }
    }
}
