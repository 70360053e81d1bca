//! The order of a block's operators: fewest barriers, then least memory (Mirage, "TB Graph
//! Scheduling").

use std::collections::BTreeMap;

/// An operator that a block computes as a whole: from tiles in shared memory to one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Operator {
    /// The operators whose results it reads, all of them before it in the list.
    pub reads: Vec<usize>,
    /// Whether it works on what the first of these still holds in registers, so that no barrier
    /// need stand between the two.
    pub fused: bool,
    /// Bytes of its result.
    pub bytes: u64,
}

/// Operators in phases: a barrier stands between one phase and the next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Order {
    /// The operators of each phase, in the order in which they run.
    pub phases: Vec<Vec<usize>>,
}

/// Operators whose orders are searched; longer lists run in the order of their depth.
const SEARCHED: usize = 16;

/// The most states that the search looks at.
const STATES: usize = 20_000;

impl Order {
    /// The number of barriers.
    pub fn barriers(&self) -> usize {
        self.phases.len().saturating_sub(1)
    }

    /// The most bytes that results take at once. A result lives from its operator to the last one
    /// that reads it; one that nobody reads lives to the end.
    pub fn peak(&self, operators: &[Operator]) -> u64 {
        let mut done = vec![false; operators.len()];
        let mut peak = 0;
        for &next in self.phases.iter().flatten() {
            done[next] = true;
            peak = peak.max(alive(operators, |number| done[number], next));
        }
        peak
    }
}

/// The order of operators with the fewest barriers and, among those, the least
/// [peak](Order::peak) that a search of up to 16 operators and 20,000 states finds; where it finds
/// none better, the operators sorted by depth.
///
/// An operator may run once those that it reads are in an earlier phase, or in the same one where
/// it is fused with it. The number of phases is one more than the greatest depth: the number of
/// barriers on the longest way to an operator.
pub fn order(operators: &[Operator]) -> Order {
    let depths = depths(operators);
    let phases = depths.iter().max().map_or(0, |deepest| deepest + 1);
    let mut by_depth = vec![Vec::new(); phases];
    for (operator, &depth) in depths.iter().enumerate() {
        by_depth[depth].push(operator);
    }
    let sorted = Order { phases: by_depth };
    if operators.len() > SEARCHED {
        return sorted;
    }
    let latest = latest(operators, phases);
    let mut search = Search { operators, latest: &latest, known: BTreeMap::new() };
    let first = State { done: 0, before: 0, phase: 0 };
    let (peak, Some(steps)) = search.best(first) else { return sorted };
    if peak >= sorted.peak(operators) {
        return sorted;
    }
    let mut phases = vec![Vec::new(); phases];
    for Step { phase, operator } in steps {
        phases[phase].push(operator);
    }
    Order { phases }
}

/// For each operator the barriers before it, at least.
fn depths(operators: &[Operator]) -> Vec<usize> {
    let mut depths: Vec<usize> = Vec::with_capacity(operators.len());
    for operator in operators {
        let after = |(i, &read): (usize, &usize)| depths[read] + usize::from(!fused(operator, i));
        depths.push(operator.reads.iter().enumerate().map(after).max().unwrap_or(0));
    }
    depths
}

/// For each operator the last phase in which it may run.
fn latest(operators: &[Operator], phases: usize) -> Vec<usize> {
    let mut latest = vec![phases.saturating_sub(1); operators.len()];
    for (number, operator) in operators.iter().enumerate().rev() {
        for (i, &read) in operator.reads.iter().enumerate() {
            let before = latest[number].saturating_sub(usize::from(!fused(operator, i)));
            // What is still in registers is used at once, in the same phase.
            latest[read] = latest[read].min(before);
        }
    }
    latest
}

fn fused(operator: &Operator, read: usize) -> bool {
    operator.fused && read == 0
}

/// Bytes alive while `running` runs, which is done as well.
fn alive(operators: &[Operator], done: impl Fn(usize) -> bool, running: usize) -> u64 {
    let needed = |number: usize| {
        let mut readers =
            operators.iter().enumerate().filter(|(_, reader)| reader.reads.contains(&number));
        let mut read = false;
        let waits = readers.any(|(reader, _)| {
            read = true;
            reader == running || !done(reader)
        });
        waits || !read
    };
    (0..operators.len())
        .filter(|&number| done(number) && needed(number))
        .map(|number| operators[number].bytes)
        .sum()
}

#[derive(Debug, Clone, Copy)]
struct Step {
    phase: usize,
    operator: usize,
}

/// All orders, by what has run, what of it before the last barrier, and the phase.
struct Search<'a> {
    operators: &'a [Operator],
    latest: &'a [usize],
    known: BTreeMap<State, (u64, Option<Vec<Step>>)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct State {
    done: u32,
    before: u32,
    phase: usize,
}

impl Search<'_> {
    /// The least peak of what is left, and the steps; none where it cannot be done, or not within
    /// the limit.
    fn best(&mut self, state: State) -> (u64, Option<Vec<Step>>) {
        let State { done, phase, .. } = state;
        if done.count_ones() as usize == self.operators.len() {
            return (0, Some(Vec::new()));
        }
        if let Some(known) = self.known.get(&state) {
            return known.clone();
        }
        if self.known.len() >= STATES {
            return (u64::MAX, None);
        }
        let waiting = (0..self.operators.len()).filter(|number| done & (1 << number) == 0);
        let mut best = (u64::MAX, None);
        if waiting.clone().all(|number| self.latest[number] > phase) {
            best = self.best(State { done, before: done, phase: phase + 1 });
        }
        for number in waiting {
            if !self.may_run(number, state) {
                continue;
            }
            let after = done | 1 << number;
            let here = alive(self.operators, |other| after & (1 << other) != 0, number);
            if here >= best.0 {
                continue;
            }
            let (rest, steps) = self.best(State { done: after, ..state });
            if let (Some(steps), true) = (steps, here.max(rest) < best.0) {
                let first = Step { phase, operator: number };
                best = (here.max(rest), Some(std::iter::once(first).chain(steps).collect()));
            }
        }
        self.known.insert(state, best.clone());
        best
    }

    /// Whether an operator may run now: those that it reads ran before the last barrier, but for
    /// the one that it is fused with.
    fn may_run(&self, number: usize, state: State) -> bool {
        let operator = &self.operators[number];
        self.latest[number] >= state.phase
            && operator.reads.iter().enumerate().all(|(i, &read)| {
                let ran = if fused(operator, i) { state.done } else { state.before };
                ran & (1 << read) != 0
            })
    }
}
