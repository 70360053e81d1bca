//! Partitioning: which operations run as one launch.

use crate::candidates::{Candidate, candidates};
use crate::cost::Costs;
use crate::cover::cover;
use crate::executor::executor;
use crate::groups::{Boundary, Executor, Family, Group, GroupId, Groups, Note, Reason};
use crate::layout::is_view;
use crate::legal::{Rules, alone, family, is_sociable};
use crate::net::{Net, OpId};
use crate::set::Set;
use crate::weights::constants;
use graphene_frontend::dim::Bindings;
use graphene_frontend::graph::{Graph, Node, NodeId};
use graphene_ir::target::Target;
use std::collections::{BTreeSet, HashMap, HashSet};

/// How much goes into one launch.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Granularity {
    /// Every operation is a launch: the library executor's plan.
    PerOp,
    /// Operations share launches where that is legal and cheaper, and changes of view are free.
    Fused,
}

/// Puts every operation of the graph into exactly one group.
///
/// Under [`Granularity::Fused`] the groups are a cover of least cost on the target, where `hints` give symbols their
/// sizes; a symbol without one has a typical size. What is legal does not depend on hints that turn out wrong, except
/// that a row whose length is a symbol has to fit at them: longer ones are slower, not wrong.
pub fn partition(
    graph: &Graph,
    target: &Target,
    granularity: Granularity,
    hints: &Bindings,
) -> Groups {
    match granularity {
        Granularity::PerOp => apart(graph, target),
        Granularity::Fused => fused(graph, target, hints),
    }
}

/// Every operation a group, that the library computes where it can.
fn apart(graph: &Graph, target: &Target) -> Groups {
    let constant = constants(graph);
    let groups = graph.nodes().filter(|(id, _)| !constant[id.index()]).filter_map(|(id, node)| {
        let family = Family::of(node.op())?;
        let executor = match executor(target, graph, &[id]) {
            Executor::Template | Executor::Library => Executor::Library,
            Executor::Reference => Executor::Reference,
        };
        Some(Group { family, nodes: vec![id], executor, cost: None })
    });
    let groups = groups.collect();
    let mut arranged = arrange(graph, groups, constant);
    let is_free = |node: &Node| Family::of(node.op()) == Some(Family::View);
    for (id, node) in graph.nodes().filter(|(_, node)| !is_free(node)) {
        let Some(to) = arranged.group_of[id.index()] else { continue };
        for mut value in node.inputs().iter().copied().flatten() {
            while let Some(input) = graph.node(value.node).inputs().first().copied().flatten()
                && is_free(graph.node(value.node))
            {
                value = input;
            }
            let Some(from) = arranged.group_of[value.node.index()] else { continue };
            let reason = Reason::PerOp;
            arranged.groups.boundaries.push(Boundary { value, from, to, reason, gain: None });
        }
    }
    arranged.groups
}

/// The cover of least cost by legal groups; every change of view is a group beside them.
fn fused(graph: &Graph, target: &Target, hints: &Bindings) -> Groups {
    let net = Net::new(graph, target, hints);
    let rules = Rules { net: &net, target };
    let costs = Costs::new(&net, target);
    let candidates = candidates(&rules, &costs);
    let cover = cover(&candidates, net.len());
    let mut groups: Vec<Group> = Vec::with_capacity(cover.chosen.len());
    for &number in &cover.chosen {
        let Candidate { set, family, .. } = *candidates.get(number);
        let mut nodes: Vec<NodeId> = set.iter().map(|op| net[op].node).collect();
        nodes.sort_unstable();
        let executor = executor(target, graph, &nodes);
        groups.push(Group { family, nodes, executor, cost: Some(costs.of(set, family)) });
    }
    let views = graph.nodes().filter(|(_, node)| is_view(node.op()));
    for (id, _) in views.filter(|(id, _)| !net.constant[id.index()]) {
        let nodes = vec![id];
        groups.push(match net.layouts.is_moved(id) {
            false => {
                Group { family: Family::View, nodes, executor: Executor::Template, cost: None }
            }
            true => {
                let executor = executor(target, graph, &nodes);
                Group { family: Family::Copy, nodes, executor, cost: Some(costs.of_move(id)) }
            }
        });
    }
    let mut arranged = arrange(graph, groups, net.constant.clone());
    arranged.groups.boundaries = boundaries(&rules, &costs, &arranged);
    let cuts = [(candidates.cut, Note::Candidates as fn(usize) -> Note), (cover.cut, Note::Covers)];
    arranged.groups.notes =
        cuts.into_iter().filter(|(cut, _)| *cut > 0).map(|(cut, note)| note(cut)).collect();
    arranged.groups
}

/// Groups in an order in which they can run, and where each node is.
struct Arranged {
    groups: Groups,
    group_of: Vec<Option<GroupId>>,
    /// For each group those that read what it makes.
    readers: Vec<BTreeSet<GroupId>>,
}

/// Puts groups in order: by their latest node, after all that they wait for.
fn arrange(graph: &Graph, groups: Vec<Group>, constant: Vec<bool>) -> Arranged {
    let mut number_of = vec![usize::MAX; graph.len()];
    for (number, group) in groups.iter().enumerate() {
        group.nodes.iter().for_each(|id| number_of[id.index()] = number);
    }
    let mut readers = vec![BTreeSet::new(); groups.len()];
    let mut waiting = vec![0_usize; groups.len()];
    for (id, node) in graph.nodes() {
        let to = number_of[id.index()];
        for value in node.inputs().iter().flatten() {
            let from = number_of[value.node.index()];
            if from != usize::MAX && from != to && readers[from].insert(to) {
                waiting[to] += 1;
            }
        }
    }
    let key = |number: usize| (groups[number].nodes.last().copied(), number);
    let all = 0..groups.len();
    let mut ready: BTreeSet<_> = all.filter(|&number| waiting[number] == 0).map(key).collect();
    let mut order = Vec::with_capacity(groups.len());
    while let Some((_, number)) = ready.pop_first() {
        order.push(number);
        for &reader in &readers[number] {
            waiting[reader] -= 1;
            if waiting[reader] == 0 {
                ready.insert(key(reader));
            }
        }
    }
    assert_eq!(order.len(), groups.len(), "covers and operations alone have no cycles");
    let mut renumbered = vec![GroupId(0); groups.len()];
    for (new, &old) in order.iter().enumerate() {
        renumbered[old] = GroupId(new as u32);
    }
    let group_of = number_of.iter().map(|&number| renumbered.get(number).copied()).collect();
    let renumber = |old: &usize| readers[*old].iter().map(|&reader| renumbered[reader]).collect();
    let readers = order.iter().map(renumber).collect();
    let mut groups: Vec<_> = groups.into_iter().map(Some).collect();
    let groups = order.iter().filter_map(|&old| groups[old].take()).collect();
    let groups = Groups { groups, boundaries: Vec::new(), notes: Vec::new(), constant };
    Arranged { groups, group_of, readers }
}

/// The values stored between two groups, each with the reason.
fn boundaries(rules: &Rules<'_>, costs: &Costs<'_>, arranged: &Arranged) -> Vec<Boundary> {
    let net = rules.net;
    let mut boundaries = Vec::new();
    let mut seen = HashSet::new();
    let mut found: HashMap<(GroupId, GroupId), (Reason, Option<f64>)> = HashMap::new();
    for (id, _) in net.graph.nodes() {
        let Some(op) = net.of_node(id) else { continue };
        for read in &net[op].reads {
            let place = |node: NodeId| arranged.group_of[node.index()];
            let (Some(from), Some(to)) = (place(read.root.node), place(id)) else { continue };
            if from == to || !seen.insert((read.root, to)) {
                continue;
            }
            let why = || why_apart(rules, costs, arranged, from, to);
            let (reason, gain) = *found.entry((from, to)).or_insert_with(why);
            boundaries.push(Boundary { value: read.root, from, to, reason, gain });
        }
    }
    boundaries
}

/// Why one group does not hold the operations of two, and the seconds that it would gain.
fn why_apart(
    rules: &Rules<'_>,
    costs: &Costs<'_>,
    arranged: &Arranged,
    from: GroupId,
    to: GroupId,
) -> (Reason, Option<f64>) {
    let set = |group: GroupId| {
        let nodes = arranged.groups.groups[group.index()].nodes.iter();
        let mut ops: Vec<OpId> = nodes.filter_map(|&node| rules.net.of_node(node)).collect();
        ops.sort_unstable();
        Set::collect(ops)
    };
    let Some((a, b)) = set(from).zip(set(to)) else { return (Reason::Apart, None) };
    let Some(union) = a.union(b) else { return (Reason::Apart, None) };
    let group = |id: GroupId| &arranged.groups.groups[id.index()];
    let seconds = |id: GroupId| group(id).cost.map_or(0.0, |cost| cost.seconds());
    let gain = |family| Some(seconds(from) + seconds(to) - costs.of(union, family).seconds());
    // Where no template takes the two: what one that worked as the reader does would gain.
    let none = |reason| (reason, gain(group(to).family));
    let lone = |set: Set| set.iter().find(|&op| !is_sociable(rules.net, op));
    if let Some(op) = lone(a).or_else(|| lone(b)) {
        return none(alone(rules.net, op));
    }
    let gain = match family(rules, union) {
        Ok(family) => gain(family),
        // What the two launches are says more than which of their operations do not go together.
        Err(Reason::Mixed(..)) => {
            return none(Reason::Mixed(group(from).family, group(to).family));
        }
        Err(reason) => return none(reason),
    };
    if waits_through_others(rules.net, arranged, from, to) {
        return (Reason::Cycle, gain);
    }
    (if gain > Some(0.0) { Reason::Elsewhere } else { Reason::Dearer }, gain)
}

/// Whether a group waits for another one by a third one.
fn waits_through_others(net: &Net<'_>, arranged: &Arranged, from: GroupId, to: GroupId) -> bool {
    // On the way stand only groups with operations before the last one of the reader: few, since no group spans much.
    let ops = |group: GroupId| {
        let nodes = &arranged.groups.groups[group.index()].nodes;
        nodes.iter().filter_map(|&node| net.of_node(node))
    };
    let last = ops(to).max();
    let is_between = |reader: &GroupId| *reader < to && ops(*reader).min() < last;
    let mut pending: Vec<GroupId> =
        arranged.readers[from.index()].iter().copied().filter(is_between).collect();
    let mut seen = HashSet::new();
    while let Some(group) = pending.pop() {
        let readers = &arranged.readers[group.index()];
        if readers.contains(&to) {
            return true;
        }
        if seen.insert(group) {
            pending.extend(readers.iter().copied().filter(is_between));
        }
    }
    false
}
