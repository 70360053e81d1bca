//! Boundaries: the values stored between two groups, why, and what one launch for both would gain.

use crate::base::groups::{Boundary, Family, Group, GroupId, Groups, Reason};
use crate::partition::costs::{Costs, Kept};
use crate::partition::join::waits_through_others;
use crate::partition::legal::{alone, family, is_fusible};
use crate::partition::set::{OpId, Set};
use graphene_frontend::{Graph, NodeId};
use std::collections::{BTreeSet, HashMap};

/// What is stored between groups that are launches, as where every operation is one: changes of view that move nothing are
/// looked through.
pub(crate) fn stored(graph: &Graph, groups: &Groups) -> Vec<Boundary> {
    let group_of = groups.group_of(graph);
    let of = |id: NodeId| group_of[id.index()].map(|group| (group, &groups.groups[group.index()]));
    let is_free = |id: NodeId| of(id).is_some_and(|(_, group)| group.family == Family::View);
    let mut all = BTreeSet::new();
    for (to, group) in groups.groups.iter().enumerate().filter(|(_, g)| g.family != Family::View) {
        let to = GroupId::from_index(to);
        for input in group.nodes.iter().flat_map(|&id| graph.node(id).inputs()).flatten() {
            let mut value = *input;
            while is_free(value.node)
                && let Some(source) = graph.node(value.node).input(0)
            {
                value = source;
            }
            let from = of(value.node).map(|(from, _)| from).filter(|&from| from != to);
            all.extend(from.map(|from| (to, value, from)));
        }
    }
    let boundary =
        |(to, value, from)| Boundary { value, from, to, reason: Reason::PerOp, gain: None };
    all.into_iter().map(boundary).collect()
}

pub(crate) fn boundaries(costs: &Costs<'_>, groups: &Groups) -> Vec<Boundary> {
    let net = costs.net;
    let all = stored(net.graph, groups);
    let ops = |group: &Group| {
        let mut ops: Vec<_> = group.nodes.iter().filter_map(|&id| net.of_node(id)).collect();
        ops.sort_unstable();
        ops
    };
    let ops = groups.groups.iter().map(ops).collect();
    let group_of = groups.group_of(net.graph);
    let apart = WhyApart { costs, groups, group_of, all: &all, ops };
    let mut found: HashMap<(GroupId, GroupId), (Reason, Option<f64>)> = HashMap::new();
    let boundary = |&Boundary { to, value, from, .. }: &Boundary| {
        let (reason, gain) = *found.entry((from, to)).or_insert_with(|| apart.why(from, to));
        Boundary { value, from, to, reason, gain }
    };
    all.iter().map(boundary).collect()
}

struct WhyApart<'a> {
    costs: &'a Costs<'a>,
    groups: &'a Groups,
    group_of: Vec<Option<GroupId>>,
    all: &'a [Boundary],
    /// For each group its operations that have to be placed, ascending; none of a change of view.
    ops: Vec<Vec<OpId>>,
}

impl WhyApart<'_> {
    fn group(&self, id: GroupId) -> &Group {
        &self.groups.groups[id.index()]
    }

    /// Why one group does not hold the operations of two, and the seconds that it would gain.
    fn why(&self, from: GroupId, to: GroupId) -> (Reason, Option<f64>) {
        let net = self.costs.net;
        // Where no template takes the two: what one that did the work of both would gain.
        let none = |reason| (reason, self.gain(from, to, None));
        for id in [from, to] {
            if let ([node], []) = (&self.group(id).nodes[..], &self.ops[id.index()][..]) {
                return none(Reason::Moved(net.graph.node(*node).op().name()));
            }
        }
        let all = [from, to].map(|id| &self.ops[id.index()]);
        let lone = |ops: &Vec<OpId>| ops.iter().copied().find(|&op| !is_fusible(net, op));
        if let Some(op) = all.into_iter().find_map(lone) {
            return none(alone(net, op));
        }
        let [a, b] = all.map(|ops| Set::collect(ops.iter().copied()));
        let Some(union) = a.zip(b).and_then(|(a, b)| a.union(b)) else {
            return none(Reason::Apart);
        };
        let gain = match family(net, union) {
            Ok(family) => self.gain(from, to, Some((union, family))),
            // What the two launches are says more than which of their operations do not go together.
            Err(Reason::Mixed(..)) => {
                return none(Reason::Mixed(self.group(from).family, self.group(to).family));
            }
            Err(reason) => return none(reason),
        };
        // What stands before a group waits for none behind it.
        let makers = |group: GroupId| {
            let producers = self.ops[group.index()].iter().flat_map(|&op| &net[op].producers);
            let makers = producers.filter_map(|&op| self.group_of[net[op].node.index()]);
            makers.filter(|maker| *maker >= from)
        };
        if waits_through_others(from, to, makers) {
            return (Reason::Cycle, gain);
        }
        (if gain > Some(0.0) { Reason::Elsewhere } else { Reason::NotProfitable }, gain)
    }

    /// The seconds that one launch would gain: a legal one by its own cost, another one by what both take.
    fn gain(&self, from: GroupId, to: GroupId, legal: Option<(Set, Family)>) -> Option<f64> {
        let (a, b) = (self.group(from).cost?, self.group(to).cost?);
        let joined = self.costs.joined(a, b, self.kept(from, to));
        let both = match legal {
            // That more blocks would run side by side in one launch is no reason to have one.
            Some((union, family)) => {
                let kept = a.memory + b.memory - joined.memory;
                let costlier = a.seconds().max(b.seconds());
                self.costs.of(union, family).seconds().max(costlier - kept)
            }
            None => joined.seconds(),
        };
        Some(a.seconds() + b.seconds() - both)
    }

    /// What stays inside if two groups are one launch.
    fn kept(&self, from: GroupId, to: GroupId) -> Kept {
        let net = self.costs.net;
        let [a, b] = [from, to].map(|id| &self.ops[id.index()][..]);
        if !a.is_empty() && !b.is_empty() {
            return self.costs.kept(a, b);
        }
        // One of them moves elements.
        let mut kept = Kept::default();
        for stored in self.all.iter().filter(|stored| stored.from == from && stored.to == to) {
            let bytes = net.bytes(stored.value);
            kept.read += bytes;
            let read = |other: &&Boundary| other.value == stored.value && other.to != to;
            let given = net.is_given(stored.value);
            kept.written += if given || self.all.iter().any(|s| read(&s)) { 0.0 } else { bytes };
        }
        let of = |id: GroupId| self.group(id).cost.unwrap_or_default();
        Kept { read: kept.read.min(of(to).read), written: kept.written.min(of(from).written) }
    }
}
