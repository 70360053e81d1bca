//! The order of groups.

use crate::base::groups::{Group, Groups};
use graphene_frontend::graph::Graph;
use std::collections::BTreeSet;
use std::mem::take;

/// Puts groups in order: by their latest node, after all that they wait for.
pub(super) fn arrange(graph: &Graph, groups: Vec<Group>, constant: Vec<bool>) -> Groups {
    let mut all = Groups { groups, boundaries: Vec::new(), notes: Vec::new(), constant };
    let (group_of, groups) = (all.group_of(graph), take(&mut all.groups));
    let mut readers = vec![BTreeSet::new(); groups.len()];
    let mut waiting = vec![0_usize; groups.len()];
    for (id, node) in graph.nodes() {
        let Some(to) = group_of[id.index()] else { continue };
        let makers =
            node.inputs().iter().flatten().filter_map(|value| group_of[value.node.index()]);
        for from in makers.filter(|from| *from != to) {
            waiting[to.index()] += usize::from(readers[from.index()].insert(to.index()));
        }
    }
    let key = |number: usize| (groups[number].nodes.last().copied(), number);
    let first = (0..groups.len()).filter(|&number| waiting[number] == 0);
    let mut ready: BTreeSet<_> = first.map(key).collect();
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
    all.groups = order.iter().filter_map(|&old| groups[old].take()).collect();
    all
}
