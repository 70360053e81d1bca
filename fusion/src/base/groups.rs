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

/// The table of families: of each the name in reports, and the colour in pictures.
macro_rules! families {
    ($($(#[$doc:meta])* $family:ident, $name:literal, $colour:literal;)*) => {
        /// What kind of computation a group is.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
        pub enum Family {
            $($(#[$doc])* $family,)*
        }

        impl Family {
            /// All families.
            pub const ALL: &[Self] = &[$(Self::$family,)*];

            /// The name in reports and in `--assert-fused`.
            pub fn name(self) -> &'static str {
                match self { $(Self::$family => $name,)* }
            }

            /// The colour of its groups in pictures.
            pub fn colour(self) -> &'static str {
                match self { $(Self::$family => $colour,)* }
            }
        }
    };
}

families! {
    /// A change of view: nothing is launched.
    View, "View", "#eeeeee";
    /// Movement of elements: transpose, slice, concatenation, padding.
    Copy, "Copy", "#cccccc";
    /// One loop over an expression of elements.
    Pointwise, "Pointwise", "#fff2ae";
    /// Matrix products, with what is done to their results.
    MatMul, "MatMul", "#b3cde3";
    /// Several layers, each a matrix product and what is done to its result.
    Mlp, "MLP", "#8fb8de";
    /// Softmax, LayerNorm or RMSNorm: statistics along rows, applied to the rows.
    Normalization, "Normalization", "#ccebc5";
    /// A reduction, running sum or selection along axes.
    Reduction, "Reduction", "#a8ddb5";
    /// Gathers and scatters by indices.
    Gather, "Gather", "#fddaec";
    /// Attention in one pass.
    Fmha, "FMHA", "#fbb4ae";
    /// Convolution or pooling.
    Convolution, "Convolution", "#decbe4";
    /// A recurrent layer.
    Recurrent, "Recurrent", "#fed9a6";
    /// Branches and loops.
    Control, "Control", "#e5d8bd";
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
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, thiserror::Error)]
pub enum Reason {
    /// Every operation is a launch of its own: that was asked for.
    #[error("every operation is a launch of its own")]
    PerOp,
    /// This operation, as it is here, is a launch of its own.
    #[error("this {0} is a launch of its own")]
    Alone(&'static str),
    /// A change of view that strides cannot say: it moves elements.
    #[error("this {0} moves elements, so it is no view")]
    Moved(&'static str),
    /// A launch of this family reads row-major values only: what lies otherwise is copied.
    #[error("a {0} launch reads row-major values only")]
    Packed(Family),
    /// An output is row-major and a buffer of its own: what is not is copied.
    #[error("an output is row-major and in a buffer of its own")]
    Given,
    /// No template computes operations of these two families, or two of the one.
    #[error("no template computes {}", both(*.0, *.1))]
    Mixed(Family, Family),
    /// Launches of this family compute nothing before the operation that names them.
    #[error("a {0} launch takes nothing before it")]
    Prologue(Family),
    /// A change of view stands between the two.
    #[error("a change of view stands between the two")]
    View,
    /// The two have different shapes.
    #[error("the two have different shapes")]
    Shape,
    /// An element type that only loops and operations alone have.
    #[error("only loops take its element type")]
    Type,
    /// Layers in one launch are matmuls by weights of rank 2 that it reads.
    #[error("each layer in one launch must be a matmul by weights")]
    Weights,
    /// Layers in one launch are a chain: each matmul reads the layer before.
    #[error("layers in one launch must be a chain")]
    Chain,
    /// On a GPU several matmuls in one launch are one sum, and nothing else reads them.
    #[error("several matmuls in one launch must be added, and read by nothing else")]
    Sum,
    /// On a GPU a loop computes in single precision or in integers, not in both.
    #[error("one loop computes in integers or in single precision")]
    Numbers,
    /// On a GPU rows of tables in one launch make one result.
    #[error("rows of tables in one launch make one result")]
    Results,
    /// The width of a layer is a symbol, so that nobody knows whether it fits.
    #[error("the width of a layer is a symbol")]
    Width,
    /// What stays inside does not fit.
    #[error("intermediates of {bytes} bytes exceed the {limit} of a block")]
    Memory {
        /// Bytes of a tile's intermediates.
        bytes: u64,
        /// Bytes that a block has.
        limit: u64,
    },
    /// Fusing would make two groups wait for each other.
    #[error("fusing would make two groups wait for each other")]
    Cycle,
    /// The two stand farther apart than a group may span.
    #[error("the two stand too far apart")]
    Apart,
    /// The two could be one launch, and it would take longer.
    #[error("one launch would take longer")]
    NotProfitable,
    /// The two could be one cheaper launch, and what was chosen is cheaper together.
    #[error("another choice is cheaper")]
    Elsewhere,
}

fn both(a: Family, b: Family) -> String {
    if a == b { format!("two of {a}") } else { format!("both {a} and {b}") }
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

impl fmt::Display for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("note: ")?;
        match self {
            Self::Candidates(n) => write!(f, "from {n} operations not all groups were tried"),
            Self::Covers(n) => write!(f, "covers were given up {n} times; a cheaper one may exist"),
            Self::Apart(n) => {
                write!(f, "a group spans at most {SPAN} operations: values stored for that: {n}")
            }
        }
    }
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
