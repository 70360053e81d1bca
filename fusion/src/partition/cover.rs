//! The cover of least cost: which candidates, each operation in one, in an order in which they can run.
//!
//! A shortest path over ideals: sets of operations that hold whatever their members wait for. From an ideal a
//! candidate leads on if it is outside of the ideal and all that it waits for is inside, so no two groups of a
//! path wait for each other. All groups may be taken in any such order; it is enough to take next the one that holds
//! the lowest operation left, or, where that one waits for others, those that it waits for. So an ideal is a prefix
//! of the order and a few operations beyond, and there are few ideals of a size. Where there are more than a limit,
//! the dearest are given up, and the result says so.

use crate::partition::candidates::{Candidate, Candidates, NEAR};
use crate::partition::set::OpId;
use std::collections::HashMap;
use std::iter::successors;

/// Most ideals of one size that are followed.
const MOST_IDEALS: usize = 512;
/// Most that are followed where the search has looked at more than its share of [`WORK`] candidates.
const LEAST_IDEALS: usize = 8;
/// Candidates looked at in all, roughly.
const WORK: usize = 1 << 23;

/// The groups chosen, in an order in which they can run.
#[derive(Clone, Debug)]
pub(crate) struct Cover<'a> {
    pub(crate) chosen: Vec<&'a Candidate>,
    /// How often ideals were given up; with none, no cover by the candidates is cheaper.
    pub(crate) cut: usize,
}

/// An ideal: everything before `lowest`, which is not in it, and the operations `lowest + i` of the bits that are set.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Ideal {
    lowest: u32,
    beyond: u128,
}

/// The cheapest way found to an ideal.
#[derive(Clone, Copy)]
struct Way {
    cost: f64,
    /// The step that it ends with.
    last: u32,
}

/// A step of a way: the candidate, and the step before.
struct Step<'a> {
    candidate: &'a Candidate,
    before: u32,
}

/// Where a way begins: the number of no step.
const START: u32 = u32::MAX;

pub(crate) fn cover(candidates: &Candidates, len: usize) -> Cover<'_> {
    let mut by_size: Vec<HashMap<u128, Way>> = vec![HashMap::new(); len + 1];
    by_size[0].insert(0, Way { cost: 0.0, last: START });
    let (mut steps, mut cut, mut looked) = (Vec::new(), 0, 0);
    let mut next = Vec::new();
    for size in 0..len {
        let mut ways: Vec<(u128, Way)> = by_size[size].drain().collect();
        ways.sort_unstable_by(|a, b| a.1.cost.total_cmp(&b.1.cost).then(a.0.cmp(&b.0)));
        let in_time = looked <= WORK / 4 + WORK / len * size;
        let most = if in_time { MOST_IDEALS } else { LEAST_IDEALS };
        cut += usize::from(ways.len() > most);
        ways.truncate(most);
        for (beyond, way) in ways {
            // All of an ideal's operations lie before its lowest missing one, or beyond.
            let lowest = size as u32 - beyond.count_ones();
            let ideal = Ideal { lowest, beyond };
            next.clear();
            let (seen, complete) = ideal.expansions(candidates, &mut next);
            looked += seen;
            cut += usize::from(!complete);
            for &candidate in &next {
                let to = ideal.with(candidate);
                let cost = way.cost + candidate.cost;
                let size = size + candidate.set.len();
                let known = by_size[size].get_mut(&to);
                if known.as_ref().is_some_and(|known| known.cost <= cost) {
                    continue;
                }
                steps.push(Step { candidate, before: way.last });
                let better = Way { cost, last: steps.len() as u32 - 1 };
                match known {
                    Some(known) => *known = better,
                    None => drop(by_size[size].insert(to, better)),
                }
            }
        }
    }
    // Every operation alone is a candidate, and the lowest missing one, or what it waits for, always leads on.
    let end = by_size[len].get(&0).expect("operations alone are a cover");
    let back = successors(steps.get(end.last as usize), |step| steps.get(step.before as usize));
    let mut chosen: Vec<_> = back.map(|step| step.candidate).collect();
    chosen.reverse();
    Cover { chosen, cut }
}

impl Ideal {
    /// The candidate's operations as bits beyond the lowest missing one; `None` if they would lie too far.
    fn place(self, candidate: &Candidate) -> Option<u128> {
        let shift = candidate.set.first().0 - self.lowest;
        (shift < NEAR as u32).then(|| candidate.set.mask() << shift)
    }

    /// The operations that the candidate waits for and the ideal lacks, as bits beyond the lowest missing one.
    fn lacks(self, candidate: &Candidate) -> u128 {
        let shift = candidate.set.first().0 - self.lowest;
        (candidate.needs >> (NEAR as u32 - shift)) & !self.beyond
    }

    /// The candidates that lead on; how many were looked at, and whether none of use stands too far away.
    fn expansions<'a>(self, all: &'a Candidates, out: &mut Vec<&'a Candidate>) -> (usize, bool) {
        let (mut lacking, mut looked) = (0, 0);
        for candidate in all.of(OpId(self.lowest)) {
            looked += 1;
            let Some(place) = self.place(candidate) else { continue };
            if place & self.beyond == 0 {
                match self.lacks(candidate) {
                    0 => out.push(candidate),
                    lacks => lacking |= lacks,
                }
            }
        }
        // What the others wait for, and what that waits for in its turn.
        let mut looked_for = 0;
        let own = out.len();
        while lacking != looked_for {
            looked_for = lacking;
            out.truncate(own);
            let farthest = (127 - lacking.leading_zeros()).min(NEAR as u32 - 1);
            for first in (1..=farthest).filter(|first| self.beyond >> first & 1 == 0) {
                for candidate in all.of(OpId(self.lowest + first)) {
                    looked += 1;
                    let Some(place) = self.place(candidate) else { continue };
                    if place & self.beyond != 0 || place & looked_for == 0 {
                        continue;
                    }
                    // What waits for the lowest operation is nothing that this one can wait for.
                    match self.lacks(candidate) {
                        0 => out.push(candidate),
                        lacks if lacks & 1 == 0 => lacking |= lacks,
                        _ => {}
                    }
                }
            }
        }
        (looked, lacking >> NEAR == 0)
    }

    /// The operations beyond the lowest one that is missing with the candidate, as bits beyond that.
    fn with(self, candidate: &Candidate) -> u128 {
        let place = self.place(candidate).expect("a candidate that leads on is near");
        let beyond = self.beyond | place;
        beyond.checked_shr(beyond.trailing_ones()).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests;
