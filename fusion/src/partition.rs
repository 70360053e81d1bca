//! Partitioning: which operations run as one launch.

use crate::groups::{Boundary, Family, Group, GroupId, Groups, Reason};
use graphene_frontend::graph::{Graph, NodeId, ValueId};
use graphene_frontend::op::Op;
use graphene_ir::target::Target;
use std::collections::{BTreeMap, BTreeSet};

/// How much goes into one launch.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Granularity {
    /// Every operation is a launch: the library executor's plan.
    PerOp,
    /// Neighbours are fused, and changes of view are free.
    Fused,
}

/// Puts every operation of the graph into exactly one group.
///
/// Under [`Granularity::Fused`] pointwise neighbours over one shape become one loop and transposes, slices and
/// broadcasts become views; the rates of the target do not weigh in yet, since these never cost anything.
pub fn partition(graph: &Graph, target: &Target, granularity: Granularity) -> Groups {
    let _ = target;
    let mut partitioner = Partitioner::new(graph);
    let mut refused = BTreeMap::new();
    for (id, node) in graph.nodes() {
        let Some(family) = Family::of(node.op()) else { continue };
        let family = match granularity {
            Granularity::PerOp => family,
            Granularity::Fused if is_view(node.op()) => Family::View,
            Granularity::Fused => family,
        };
        let joined = match (granularity, family) {
            (Granularity::Fused, Family::Pointwise) => partitioner.join(id, &mut refused),
            _ => None,
        };
        let group = joined.unwrap_or_else(|| partitioner.open(family));
        partitioner.place(id, group);
    }
    partitioner.finish(granularity, &refused)
}

/// Whether the operation is a change of view of its input, where the shape of that view is known.
pub(crate) fn is_view(op: &Op) -> bool {
    matches!(op, Op::Reshape(_) | Op::BitCast(_) | Op::Transpose(_) | Op::Expand(_) | Op::Slice(_))
}

struct Partitioner<'a> {
    graph: &'a Graph,
    group_of: Vec<Option<GroupId>>,
    groups: Vec<Group>,
    /// For each group those that read what it makes.
    readers: Vec<BTreeSet<GroupId>>,
    /// For each group the length of the longest chain of groups that it waits for.
    depths: Vec<usize>,
}

impl<'a> Partitioner<'a> {
    fn new(graph: &'a Graph) -> Self {
        let group_of = vec![None; graph.len()];
        Self { graph, group_of, groups: Vec::new(), readers: Vec::new(), depths: Vec::new() }
    }

    fn open(&mut self, family: Family) -> GroupId {
        self.groups.push(Group { family, nodes: Vec::new() });
        self.readers.push(BTreeSet::new());
        self.depths.push(0);
        GroupId(self.groups.len() as u32 - 1)
    }

    /// The groups whose values the node reads.
    fn producers(&self, id: NodeId) -> impl Iterator<Item = GroupId> + '_ {
        let values = self.graph.node(id).inputs().iter().flatten();
        values.filter_map(|value| self.group_of[value.node.index()])
    }

    fn place(&mut self, id: NodeId, group: GroupId) {
        let producers: Vec<_> = self.producers(id).filter(|&from| from != group).collect();
        for from in producers {
            self.readers[from.index()].insert(group);
            self.deepen(group, self.depths[from.index()] + 1);
        }
        self.groups[group.index()].nodes.push(id);
        self.group_of[id.index()] = Some(group);
    }

    /// Notes that a group waits for a chain of so many, and its readers for longer ones.
    fn deepen(&mut self, group: GroupId, depth: usize) {
        let mut pending = vec![(group, depth)];
        while let Some((group, depth)) = pending.pop() {
            if self.depths[group.index()] < depth {
                self.depths[group.index()] = depth;
                pending.extend(self.readers[group.index()].iter().map(|&group| (group, depth + 1)));
            }
        }
    }

    /// The pointwise group of a producer that the node can join; refusals are noted by value and reader.
    fn join(
        &self,
        id: NodeId,
        refused: &mut BTreeMap<(ValueId, NodeId), Reason>,
    ) -> Option<GroupId> {
        let shape = &self.graph.node(id).outputs()[0].shape;
        let mut joined = None;
        for value in self.graph.node(id).inputs().iter().flatten() {
            let Some(group) = self.group_of[value.node.index()] else { continue };
            let family = self.groups[group.index()].family;
            let reason = if family != Family::Pointwise {
                Reason::Producer(family)
            } else if &self.graph.ty(*value).shape != shape {
                Reason::Shape
            } else if joined.is_some_and(|joined| joined != group) {
                Reason::Elsewhere
            } else if self.waits_for(id, group) {
                Reason::Cycle
            } else {
                joined = Some(group);
                continue;
            };
            refused.insert((*value, id), reason);
        }
        joined
    }

    /// Whether the node waits for the group by a way that leaves the group.
    fn waits_for(&self, id: NodeId, group: GroupId) -> bool {
        let mut pending: Vec<_> = self.producers(id).filter(|&from| from != group).collect();
        let mut seen = BTreeSet::new();
        while let Some(next) = pending.pop() {
            if next == group {
                return true;
            }
            // Whatever waits for a group lies deeper than it.
            if self.depths[next.index()] > self.depths[group.index()] && seen.insert(next) {
                let nodes = &self.groups[next.index()].nodes;
                pending.extend(nodes.iter().flat_map(|&node| self.producers(node)));
            }
        }
        false
    }

    fn finish(
        self,
        granularity: Granularity,
        refused: &BTreeMap<(ValueId, NodeId), Reason>,
    ) -> Groups {
        let order = self.order();
        let mut renumbered = vec![GroupId(0); self.groups.len()];
        for (new, old) in order.iter().enumerate() {
            renumbered[old.index()] = GroupId(new as u32);
        }
        let group_of =
            |id: NodeId| self.group_of[id.index()].map(|group| renumbered[group.index()]);
        let mut boundaries = Vec::new();
        for (id, node) in self.graph.nodes() {
            let Some(to) = group_of(id) else { continue };
            let family = self.groups[order[to.index()].index()].family;
            if family == Family::View {
                continue;
            }
            for &read in node.inputs().iter().flatten() {
                let value = self.viewed(read);
                let Some(from) = group_of(value.node).filter(|&from| from != to) else { continue };
                let reason = match (granularity, refused.get(&(read, id))) {
                    (Granularity::PerOp, _) => Reason::PerOp,
                    (Granularity::Fused, _) if value != read => Reason::View,
                    (Granularity::Fused, Some(reason)) => *reason,
                    (Granularity::Fused, None) => Reason::Consumer(family),
                };
                boundaries.push(Boundary { value, from, to, reason });
            }
        }
        let groups = order.iter().map(|old| self.groups[old.index()].clone()).collect();
        Groups { groups, boundaries }
    }

    /// The value that a value is a view of: itself, unless a change of view makes it.
    fn viewed(&self, mut value: ValueId) -> ValueId {
        while let Some(group) = self.group_of[value.node.index()]
            && self.groups[group.index()].family == Family::View
            && let Some(input) = self.graph.node(value.node).inputs()[0]
        {
            value = input;
        }
        value
    }

    /// The groups in an order in which they can run: by their latest node, after all that they wait for.
    fn order(&self) -> Vec<GroupId> {
        let mut waiting = vec![0_usize; self.groups.len()];
        for reader in self.readers.iter().flatten() {
            waiting[reader.index()] += 1;
        }
        let key = |group: GroupId| (self.groups[group.index()].nodes.last().copied(), group);
        let all = (0..self.groups.len() as u32).map(GroupId);
        let mut ready: BTreeSet<_> =
            all.filter(|group| waiting[group.index()] == 0).map(key).collect();
        let mut order = Vec::with_capacity(self.groups.len());
        while let Some((_, group)) = ready.pop_first() {
            order.push(group);
            for &reader in &self.readers[group.index()] {
                waiting[reader.index()] -= 1;
                if waiting[reader.index()] == 0 {
                    ready.insert(key(reader));
                }
            }
        }
        debug_assert_eq!(order.len(), self.groups.len(), "groups wait for each other");
        order
    }
}
