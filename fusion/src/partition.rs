//! Partitioning: which operations run as one launch.

mod arrange;
mod boundary;
mod candidates;
mod costs;
mod cover;
mod fusion_graph;
mod grids;
mod join;
mod legal;
mod set;

use crate::base::constants::constants;
use crate::base::error::FusionError;
use crate::base::groups::{Boundary, Executor, Family, Group, Groups, Note, Reason};
use crate::base::verify;
use crate::families::executor::executor;
use crate::families::layout::is_view;
use crate::families::library::{Calls, calls};
use crate::partition::arrange::arrange;
use crate::partition::boundary::{boundaries, stored};
use crate::partition::candidates::candidates;
use crate::partition::costs::Costs;
use crate::partition::cover::cover;
use crate::partition::fusion_graph::FusionGraph;
use crate::partition::join::join;
use graphene_frontend::{Bindings, Graph, NodeId};
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

impl Groups {
    /// A partition that the caller knows, in an order in which it can run: each group by its family and operations.
    ///
    /// # Errors
    /// What [`verify::groups`] finds against it.
    pub fn new(
        graph: &Graph,
        target: &Target,
        parts: Vec<(Family, Vec<NodeId>)>,
    ) -> Result<Self, FusionError> {
        let groups = parts.into_iter().map(|(family, nodes)| {
            let executor = executor(target, graph, &nodes);
            Group { family, nodes, executor, cost: None }
        });
        let groups = groups.collect();
        let constant = constants(graph);
        let groups = Self { groups, boundaries: Vec::new(), notes: Vec::new(), constant };
        verify::groups(graph, &groups).map(|()| groups)
    }
}

/// Every operation a group, that the library computes where it can; on a GPU, what one call of its computes is a group.
fn apart(graph: &Graph, target: &Target) -> Groups {
    let constant = constants(graph);
    let Calls { views, groups: together } = match target.kind {
        Kind::Cuda { .. } => calls(graph, &constant),
        Kind::Cpu => Calls { views: vec![false; graph.len()], groups: Vec::new() },
    };
    let mut grouped: BTreeSet<NodeId> = BTreeSet::new();
    let mut groups = Vec::new();
    for (family, nodes) in together {
        grouped.extend(&nodes);
        groups.push(Group { family, nodes, executor: Executor::Library, cost: None });
    }
    for (id, node) in graph.nodes() {
        let Some(family) = Family::of(node.op()) else { continue };
        if constant[id.index()] || grouped.contains(&id) {
            continue;
        }
        let nodes = vec![id];
        let (family, executor) = match executor(target, graph, &nodes) {
            _ if views[id.index()] => (Family::View, Executor::Template),
            Executor::Template | Executor::Library => (family, Executor::Library),
            Executor::Reference => (family, Executor::Reference),
        };
        groups.push(Group { family, nodes, executor, cost: None });
    }
    let mut groups = arrange(graph, groups, constant);
    groups.boundaries = stored(graph, &groups);
    groups
}

/// The cover of least cost by legal groups; every change of view is a group beside them.
fn fused(graph: &Graph, target: &Target, hints: &Bindings) -> Groups {
    let net = FusionGraph::new(graph, target, hints);
    let costs = Costs::new(&net);
    let candidates = candidates(&costs);
    let cover = cover(&candidates, net.len());
    let chosen = cover.chosen.iter().map(|candidate| (candidate.set, candidate.family)).collect();
    let mut groups: Vec<Group> = Vec::with_capacity(cover.chosen.len());
    for (set, family) in join(&costs, chosen) {
        let mut nodes: Vec<NodeId> = set.iter().map(|op| net[op].node).collect();
        nodes.sort_unstable();
        let executor = executor(target, graph, &nodes);
        groups.push(Group { family, nodes, executor, cost: Some(costs.of(set, family)) });
    }
    let views = graph.nodes().filter(|(_, node)| is_view(node.op()));
    for (id, _) in views.filter(|(id, _)| !net.constant[id.index()]) {
        let (family, executor, cost) = match net.layouts.is_moved(id) {
            false => (Family::View, Executor::Template, None),
            true => (Family::Copy, executor(target, graph, &[id]), Some(costs.of_move(id))),
        };
        groups.push(Group { family, nodes: vec![id], executor, cost });
    }
    let mut groups = arrange(graph, groups, net.constant.clone());
    groups.boundaries = boundaries(&costs, &groups);
    let apart =
        |boundary: &&Boundary| boundary.reason == Reason::Apart && boundary.gain > Some(0.0);
    let apart = groups.boundaries.iter().filter(apart).count();
    let notes: [fn(usize) -> Note; 3] = [Note::Candidates, Note::Covers, Note::Apart];
    let cuts = [candidates.cut, cover.cut, apart].into_iter().zip(notes);
    groups.notes = cuts.filter(|(cut, _)| *cut > 0).map(|(cut, note)| note(cut)).collect();
    groups
}
