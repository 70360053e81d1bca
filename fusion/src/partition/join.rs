//! Joining: groups that one launch computes for less, but that candidates do not grow to: those that span more, as long
//! chains of layers do, and chains with what rounds their rows, which no single layer has.

use crate::base::groups::Family;
use crate::partition::candidates::NEAR;
use crate::partition::costs::Costs;
use crate::partition::legal::family;
use crate::partition::set::Set;
use std::collections::{BTreeSet, HashSet};
use std::hash::Hash;

/// A group by its operations and its family.
pub(crate) type Chosen = (Set, Family);

/// Joins groups that read each other, the two that gain most first, until none gains.
pub(crate) fn join(costs: &Costs<'_>, mut groups: Vec<Chosen>) -> Vec<Chosen> {
    while let Some((a, b, joined)) = best(costs, &groups) {
        groups[a] = joined;
        groups.swap_remove(b);
    }
    groups
}

fn best(costs: &Costs<'_>, groups: &[Chosen]) -> Option<(usize, usize, Chosen)> {
    let net = costs.net;
    let mut group_of = vec![usize::MAX; net.len()];
    for (number, (set, _)) in groups.iter().enumerate() {
        set.iter().for_each(|op| group_of[op.index()] = number);
    }
    let makers = |group: usize| {
        let producers = groups[group].0.iter().flat_map(|op| &net[op].producers);
        producers.map(|op| group_of[op.index()])
    };
    let seconds = |(set, family): Chosen| costs.of(set, family).seconds();
    let mut best: Option<(f64, usize, usize, Chosen)> = None;
    for (to, &(set, own)) in groups.iter().enumerate() {
        let own_makers: BTreeSet<usize> = makers(to).filter(|&from| from != to).collect();
        for from in own_makers {
            let beyond = |union: &Set| {
                let before = own == Family::Mlp && groups[from].0.len() == 1;
                let spans = 128 - union.mask().leading_zeros() as usize;
                before || spans > NEAR
            };
            let Some(union) = groups[from].0.union(set).filter(beyond) else { continue };
            let Ok(family) = family(net, union) else { continue };
            let joined = (union, family);
            let gain = seconds(groups[from]) + seconds(groups[to]) - seconds(joined);
            let better = gain > best.as_ref().map_or(0.0, |best| best.0);
            if better && !waits_through_others(from, to, makers) {
                best = Some((gain, from, to, joined));
            }
        }
    }
    best.map(|(_, from, to, joined)| (from, to, joined))
}

/// Whether a group waits for another one by a third one. `makers`: the groups that one reads.
pub(super) fn waits_through_others<G: Copy + Eq + Hash, I: Iterator<Item = G>>(
    from: G,
    to: G,
    makers: impl Fn(G) -> I,
) -> bool {
    let mut seen = HashSet::from([to]);
    let mut pending: Vec<G> = makers(to).filter(|maker| *maker != from).collect();
    while let Some(group) = pending.pop() {
        if group == from {
            return true;
        }
        if seen.insert(group) {
            pending.extend(makers(group));
        }
    }
    false
}
