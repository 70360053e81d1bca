//! Joining: groups that one launch computes for less, but that candidates do not grow to: those that span more, as long
//! chains of layers do, and chains with what rounds their rows, which no single layer has.

use crate::base::groups::Family;
use crate::partition::candidates::NEAR;
use crate::partition::costs::Costs;
use crate::partition::legal::{Rules, family};
use crate::partition::set::{OpId, Set};

/// A group by its operations and its family.
pub(crate) type Chosen = (Set, Family);

/// Joins groups that read each other, the two that gain most first, until none gains.
pub(crate) fn join(rules: &Rules<'_>, costs: &Costs<'_>, mut groups: Vec<Chosen>) -> Vec<Chosen> {
    while let Some((a, b, joined)) = best(rules, costs, &groups) {
        groups[a] = joined;
        groups.swap_remove(b);
    }
    groups
}

/// The two groups that gain most as one, and that one.
fn best(rules: &Rules<'_>, costs: &Costs<'_>, groups: &[Chosen]) -> Option<(usize, usize, Chosen)> {
    let net = rules.net;
    let mut group_of = vec![usize::MAX; net.len()];
    for (number, (set, _)) in groups.iter().enumerate() {
        set.iter().for_each(|op| group_of[op.index()] = number);
    }
    let seconds = |(set, family): Chosen| costs.of(set, family).seconds();
    let mut best: Option<(f64, usize, usize, Chosen)> = None;
    for (to, &(set, own)) in groups.iter().enumerate() {
        let mut makers: Vec<usize> = producers(rules, set).map(|op| group_of[op.index()]).collect();
        makers.sort_unstable();
        makers.dedup();
        for from in makers.into_iter().filter(|&from| from != to) {
            let beyond = |union: &Set| {
                let before = own == Family::Mlp && groups[from].0.len() == 1;
                before || spans(*union) > NEAR
            };
            let Some(union) = groups[from].0.union(set).filter(beyond) else { continue };
            let Ok(family) = family(rules, union) else { continue };
            let joined = (union, family);
            let gain = seconds(groups[from]) + seconds(groups[to]) - seconds(joined);
            let better = gain > best.as_ref().map_or(0.0, |best| best.0);
            if better && !waits_through_others(rules, groups, &group_of, from, to) {
                best = Some((gain, from, to, joined));
            }
        }
    }
    best.map(|(_, from, to, joined)| (from, to, joined))
}

/// The operations that those of a set read.
fn producers<'a>(rules: &'a Rules<'_>, set: Set) -> impl Iterator<Item = OpId> + 'a {
    set.iter().flat_map(|op| rules.net[op].producers.iter().copied())
}

fn spans(set: Set) -> usize {
    128 - set.mask().leading_zeros() as usize
}

/// Whether a group waits for another one by a third one.
fn waits_through_others(
    rules: &Rules<'_>,
    groups: &[Chosen],
    group_of: &[usize],
    from: usize,
    to: usize,
) -> bool {
    let makers = |group: usize| producers(rules, groups[group].0).map(|op| group_of[op.index()]);
    let mut seen = vec![false; groups.len()];
    let mut pending: Vec<usize> = makers(to).filter(|&maker| maker != from).collect();
    while let Some(group) = pending.pop() {
        if group == from {
            return true;
        }
        if group != to && !std::mem::replace(&mut seen[group], true) {
            pending.extend(makers(group));
        }
    }
    false
}
