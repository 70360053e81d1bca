//! Candidates: the legal groups of a net, each once, with what it costs.
//!
//! Groups grow from each operation as their first one: by what reads its values, what makes those of the members, and
//! siblings that read the same value and have the same shape, while the set stays legal and convex (nothing outside
//! waits for a member and is waited for by another). A group that costs as much as its operations alone is left out:
//! a cover never needs it.

use crate::base::groups::Family;
use crate::partition::costs::Costs;
use crate::partition::fusion_graph::{FusionGraph, Role, ShapeId};
use crate::partition::legal::{family, is_fusible};
use crate::partition::set::{OpId, Set, bits};
use graphene_frontend::{Op, ValueId};
use std::collections::{BTreeSet, HashMap, HashSet};
use std::mem::{Discriminant, discriminant};

/// Most sets looked at for one first operation, in graphs of up to [`MANY`] / [`MOST_SETS`] operations; of more
/// operations each has its share of [`MANY`], at least [`LEAST_SETS`].
const MOST_SETS: usize = 512;
const LEAST_SETS: usize = 32;
const MANY: usize = 1 << 18;

/// The places that a candidate may span. Groups that span more are joined of these.
pub(crate) const NEAR: usize = 64;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Candidate {
    pub(crate) set: Set,
    pub(crate) family: Family,
    /// Seconds.
    pub(crate) cost: f64,
    /// The outside operations that it waits for: bit i is the one `NEAR - i` places before the first.
    pub(crate) needs: u128,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Candidates {
    /// For each operation the candidates that it is the first of.
    by_first: Vec<Vec<Candidate>>,
    /// Operations from which not all sets were looked at.
    pub(crate) cut: usize,
}

impl Candidates {
    /// The candidates with this first operation.
    pub(crate) fn of(&self, first: OpId) -> &[Candidate] {
        self.by_first.get(first.index()).map_or(&[][..], Vec::as_slice)
    }
}

pub(crate) fn candidates(costs: &Costs<'_>) -> Candidates {
    let net = costs.net;
    let near = neighbours(net);
    let alone = |op: OpId| costs.of(Set::of(op), net[op].family).seconds();
    let alone: Vec<f64> = net.ids().map(alone).collect();
    let most = (MANY / net.len().max(1)).clamp(LEAST_SETS, MOST_SETS);
    let mut found = Candidates::default();
    for first in net.ids() {
        let mut own = Vec::new();
        let window = Window::new(net, &near, first);
        let mut seen = HashSet::from([1_u64]);
        let mut pending = vec![Set::of(first)];
        while let Some(set) = pending.pop() {
            let Ok(family) = family(net, set) else { continue };
            let cost = costs.of(set, family).seconds();
            let apart: f64 = set.iter().map(|op| alone[op.index()]).sum();
            if set.len() == 1 || cost < apart {
                own.push(Candidate { set, family, cost, needs: needs(net, set) });
            }
            for offset in bits(window.around(set.mask() as u64)) {
                let grown = set.mask() as u64 | 1 << offset;
                if window.is_convex(grown) && seen.len() < most && seen.insert(grown) {
                    pending.push(set.with_mask(u128::from(grown)));
                }
            }
        }
        found.cut += usize::from(seen.len() >= most);
        found.by_first.push(own);
    }
    found
}

/// The outside operations that a set waits for, near enough to matter.
fn needs(net: &FusionGraph<'_>, set: Set) -> u128 {
    let producers = set.iter().flat_map(|op| &net[op].producers);
    let outside = producers.filter(|from| !set.contains(**from));
    let places = outside.map(|from| i64::from(from.0) + NEAR as i64 - i64::from(set.first().0));
    places.filter(|place| *place >= 0).fold(0, |needs, place| needs | 1_u128 << place)
}

/// For every operation those that may join its group directly: makers, readers and siblings.
fn neighbours(net: &FusionGraph<'_>) -> Vec<BTreeSet<OpId>> {
    let mut near = vec![BTreeSet::new(); net.len()];
    let mut link = |a: OpId, b: OpId| {
        let apart = a.0.abs_diff(b.0) as usize;
        if apart > 0 && apart < NEAR && is_fusible(net, a) && is_fusible(net, b) {
            near[a.index()].insert(b);
            near[b.index()].insert(a);
        }
    };
    // Siblings join in a row, each the one before it: there are too many choices of some of many.
    let mut latest: HashMap<(ValueId, Walk), OpId> = HashMap::new();
    for op in net.ids() {
        net[op].producers.iter().for_each(|&from| link(from, op));
        for read in &net[op].reads {
            let constant = matches!(net.graph.node(read.root.node).op(), Op::Constant(_));
            let walk = walk(net, op).filter(|_| !constant);
            let alike = walk.and_then(|walk| latest.insert((read.root, walk), op));
            alike.into_iter().for_each(|other| link(other, op));
        }
    }
    near
}

/// How an operation walks over what it reads: as what, over which shape, and from which axis on along rows. Readers of one
/// value that walk alike are siblings.
type Walk = (Discriminant<Role>, ShapeId, usize);

fn walk(net: &FusionGraph<'_>, op: OpId) -> Option<Walk> {
    let role = net[op].role;
    let (shape, first) = match role {
        Role::Point { .. } | Role::MatMul | Role::Lookup => (net[op].shape, 0),
        Role::Row(row) => (row.full, row.first),
        Role::Convolution | Role::Integers | Role::Alone => return None,
    };
    Some((discriminant(&role), shape, first))
}

/// The operations within the span of a first one; bit and place i: the operation i places after it.
struct Window {
    /// What each waits for, directly or not.
    before: Vec<u64>,
    /// What waits for each.
    after: Vec<u64>,
    /// What may join each directly.
    near: Vec<u64>,
}

impl Window {
    fn new(net: &FusionGraph<'_>, neighbours: &[BTreeSet<OpId>], first: OpId) -> Self {
        let len = (net.len() - first.index()).min(NEAR);
        let place = |op: OpId| op.0.checked_sub(first.0).filter(|&i| (i as usize) < len);
        let (mut before, mut after) = (vec![0_u64; len], vec![0_u64; len]);
        let mut near = vec![0; len];
        for i in 0..len {
            let op = OpId(first.0 + i as u32);
            for from in net[op].producers.iter().filter_map(|&from| place(from)) {
                before[i] |= before[from as usize] | 1 << from;
            }
            let joins = neighbours[op.index()].iter().filter_map(|&other| place(other));
            near[i] = joins.fold(0, |mask, other| mask | 1 << other);
        }
        for (i, &before) in before.iter().enumerate() {
            bits(before).for_each(|from| after[from as usize] |= 1 << i);
        }
        Self { before, after, near }
    }

    fn around(&self, mask: u64) -> u64 {
        bits(mask).fold(0, |around, i| around | self.near[i as usize]) & !mask
    }

    /// Whether no way leaves the set and comes back to it.
    fn is_convex(&self, mask: u64) -> bool {
        let (mut before, mut after) = (0, 0);
        for i in bits(mask) {
            before |= self.before[i as usize];
            after |= self.after[i as usize];
        }
        before & after & !mask == 0
    }
}
