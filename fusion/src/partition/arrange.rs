//! The order of groups.

use crate::base::groups::{Group, Groups};
use graphene_frontend::graph::Graph;
use std::collections::BTreeSet;

/// Puts groups in order: by their latest node, after all that they wait for.
pub(super) fn arrange(graph: &Graph, groups: Vec<Group>, constant: Vec<bool>) -> Groups {
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
    let mut groups: Vec<_> = groups.into_iter().map(Some).collect();
    let groups = order.iter().filter_map(|&old| groups[old].take()).collect();
    Groups { groups, boundaries: Vec::new(), notes: Vec::new(), constant }
}
