//! Partitioning: which operations run as one launch.

use crate::boundary::{Stored, boundaries, stored};
use crate::candidates::{Candidate, candidates};
use crate::cost::Costs;
use crate::cover::cover;
use crate::executor::executor;
use crate::fusion_graph::FusionGraph;
use crate::groups::{Boundary, Executor, Family, Group, GroupId, Groups, Note, Reason};
use crate::join::join;
use crate::layout::is_view;
use crate::legal::Rules;
use crate::library::calls;
use crate::weights::constants;
use graphene_frontend::dim::Bindings;
use graphene_frontend::graph::{Graph, NodeId};
use graphene_ir::target::{Kind, Target};
use std::collections::BTreeSet;

/// How much goes into one launch.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Granularity {
    /// Every operation is a launch: the library executor's plan. On a GPU a matmul or a convolution is one with what
    /// the library's epilogues add to it, and changes of view are free where what reads them takes them as they lie; see
    /// [`library`](crate::library).
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

/// Every operation a group, that the library computes where it can; on a GPU, what one call of its computes is a group.
fn apart(graph: &Graph, target: &Target) -> Groups {
    let constant = constants(graph);
    let library = matches!(target.kind, Kind::Cuda { .. }).then(|| calls(graph, &constant));
    let views = |id: NodeId| library.as_ref().is_some_and(|calls| calls.views[id.index()]);
    let together = library.iter().flat_map(|calls| &calls.groups);
    let mut grouped: BTreeSet<NodeId> = BTreeSet::new();
    let mut groups = Vec::new();
    for (family, nodes) in together {
        grouped.extend(nodes);
        let (family, nodes, executor) = (*family, nodes.clone(), Executor::Library);
        groups.push(Group { family, nodes, executor, cost: None });
    }
    for (id, node) in graph.nodes() {
        let Some(family) = Family::of(node.op()) else { continue };
        if constant[id.index()] || grouped.contains(&id) {
            continue;
        }
        let nodes = vec![id];
        let (family, executor) = match executor(target, graph, &nodes) {
            _ if views(id) => (Family::View, Executor::Template),
            Executor::Template | Executor::Library => (family, Executor::Library),
            Executor::Reference => (family, Executor::Reference),
        };
        groups.push(Group { family, nodes, executor, cost: None });
    }
    let Arranged { mut groups, group_of, .. } = arrange(graph, groups, constant);
    let apart = |stored: Stored| {
        let Stored { value, from, to } = stored;
        Boundary { value, from, to, reason: Reason::PerOp, gain: None }
    };
    groups.boundaries = stored(graph, &groups, &group_of).into_iter().map(apart).collect();
    groups
}

/// The cover of least cost by legal groups; every change of view is a group beside them.
fn fused(graph: &Graph, target: &Target, hints: &Bindings) -> Groups {
    let net = FusionGraph::new(graph, target, hints);
    let rules = Rules { net: &net, target };
    let costs = Costs::new(&net, target);
    let candidates = candidates(&rules, &costs);
    let cover = cover(&candidates, net.len());
    let chosen = cover.chosen.iter().map(|&number| candidates.get(number));
    let chosen = chosen.map(|&Candidate { set, family, .. }| (set, family)).collect();
    let mut groups: Vec<Group> = Vec::with_capacity(cover.chosen.len());
    for (set, family) in join(&rules, &costs, chosen) {
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
    let apart =
        |boundary: &&Boundary| boundary.reason == Reason::Apart && boundary.gain > Some(0.0);
    let apart = arranged.groups.boundaries.iter().filter(apart).count();
    let cuts = [
        (candidates.cut, Note::Candidates as fn(usize) -> Note),
        (cover.cut, Note::Covers),
        (apart, Note::Apart),
    ];
    arranged.groups.notes =
        cuts.into_iter().filter(|(cut, _)| *cut > 0).map(|(cut, note)| note(cut)).collect();
    arranged.groups
}

/// Groups in an order in which they can run, and where each node is.
pub(crate) struct Arranged {
    pub(crate) groups: Groups,
    pub(crate) group_of: Vec<Option<GroupId>>,
    /// For each group those that read what it makes.
    pub(crate) readers: Vec<BTreeSet<GroupId>>,
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
