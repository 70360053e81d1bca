//! Extraction: for every class the term to build it by, so that the graph of all roots costs least.
//!
//! Costs are of graphs, not of trees: what two readers share is paid once. A greedy choice that knows the set of
//! classes behind every alternative comes first; where few alternatives are left, an integer programme tries to
//! better it, and the smaller of the two is taken. Both give acyclic graphs.

use super::cost::cost;
use super::language::{Head, Term, Terms, operation};
use egg::{Id, Language};
use graphene_frontend::dim::Bindings;
use microlp::{ComparisonOp, OptimizationDirection, Problem, SolveOptions, Variable};
use std::collections::{BTreeMap, BTreeSet};

/// For each class that is needed, and some that are not, its term.
pub(crate) type Choice = BTreeMap<Id, Term>;

/// Alternatives up to which the integer programme is tried.
const PROGRAMME: usize = 40;

/// How often the programme is solved anew without a cycle that it chose.
const ATTEMPTS: usize = 4;

/// Nodes of its search tree at which a programme takes the best that it has found.
const BRANCHES: u64 = 1_000;

/// What came of the integer programme.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Programme {
    /// Nothing was to be chosen.
    Needless,
    /// It was solved.
    Solved,
    /// It would have been too large, or had no solution without a cycle in a few attempts.
    GivenUp,
}

/// The cheapest acyclic choice for the roots that was found; symbols without a hint have a typical size.
/// The e-graph is rebuilt, and roots are canonical classes.
pub(crate) fn extract(terms: &Terms, roots: &[Id], hints: &Bindings) -> (Choice, Programme) {
    let costs = costs(terms, hints);
    let greedy = greedy(&costs);
    debug_assert!(needed(&greedy, roots).is_ok(), "what costs more than its parts is on no cycle");
    let classes = reachable(&costs, roots);
    if classes.iter().all(|id| costs[id].len() == 1) {
        return (greedy, Programme::Needless);
    }
    let better = programme(&costs, roots, &classes, &greedy);
    let programme = if better.is_some() { Programme::Solved } else { Programme::GivenUp };
    let cheaper = |other: &Choice| total(&costs, other, roots) < total(&costs, &greedy, roots);
    (better.filter(cheaper).unwrap_or(greedy), programme)
}

type Costs = BTreeMap<Id, Vec<(Term, f64)>>;

/// The terms of each class of a rebuilt e-graph, ascending, each with its own cost.
fn costs(terms: &Terms, hints: &Bindings) -> Costs {
    let mut costs = Costs::new();
    for class in terms.classes() {
        // A constant that is known needs no operation.
        let is_known = |term: &Term| matches!(term.head, Head::Literal(_) | Head::Input(_));
        let known = class.nodes.iter().position(is_known);
        let nodes = known.map_or(&class.nodes[..], |known| &class.nodes[known..=known]);
        let price = |term: &Term| {
            let Some((op, inputs)) = operation(terms, term) else { return 0.0 };
            let ty = |id: &Option<Id>| id.and_then(|id| terms[id].data.ty());
            let inputs: Vec<_> = inputs.iter().map(ty).collect();
            cost(op, &inputs, &class.data.types, class.data.constant, hints)
        };
        let priced = nodes.iter().map(|term| (term.clone(), price(term)));
        costs.insert(class.id, priced.collect());
    }
    costs
}

/// What a class costs with all that it needs.
struct Best {
    total: f64,
    term: Term,
    /// The needed classes with the costs of their own terms.
    needs: BTreeMap<Id, f64>,
}

/// For each class the term that costs least with all that it needs, sharing counted.
fn greedy(costs: &Costs) -> Choice {
    let mut best: BTreeMap<Id, Best> = BTreeMap::new();
    let mut readers: BTreeMap<Id, BTreeSet<Id>> = BTreeMap::new();
    for (&class, nodes) in costs {
        for child in nodes.iter().flat_map(|(term, _)| term.children()) {
            readers.entry(*child).or_default().insert(class);
        }
    }
    let mut pending: BTreeSet<Id> = costs.keys().copied().collect();
    while let Some(class) = pending.pop_first() {
        for (term, own) in &costs[&class] {
            let Some(candidate) = assemble(class, term, *own, &best) else { continue };
            if best.get(&class).is_none_or(|old| candidate.total < old.total - 1e-9) {
                best.insert(class, candidate);
                pending.extend(readers.get(&class).into_iter().flatten());
            }
        }
    }
    best.into_iter().map(|(class, best)| (class, best.term)).collect()
}

/// A class by this term, if all that it needs is there and does not need the class.
fn assemble(class: Id, term: &Term, own: f64, best: &BTreeMap<Id, Best>) -> Option<Best> {
    let mut needs = BTreeMap::from([(class, own)]);
    for child in term.children() {
        let child = best.get(child)?;
        if child.needs.contains_key(&class) {
            return None;
        }
        for (&id, &cost) in &child.needs {
            let known = needs.entry(id).or_insert(cost);
            *known = known.min(cost);
        }
    }
    let total = needs.values().sum();
    Some(Best { total, term: term.clone(), needs })
}

/// What a choice costs for the roots; infinite if it is none.
fn total(costs: &Costs, choice: &Choice, roots: &[Id]) -> f64 {
    let Ok(needed) = needed(choice, roots) else { return f64::INFINITY };
    let cost = |id: &Id| {
        let chosen = costs[id].iter().find(|(term, _)| term == &choice[id]);
        chosen.map_or(f64::INFINITY, |(_, cost)| *cost)
    };
    needed.iter().map(cost).sum()
}

/// The classes that the roots need; `Err`: a cycle of classes, or one alone that has no term.
fn needed(choice: &Choice, roots: &[Id]) -> Result<BTreeSet<Id>, Vec<Id>> {
    let mut done = BTreeSet::new();
    let mut path: Vec<Id> = Vec::new();
    // A class is left after all that it needs; one met again before that closes a cycle.
    let mut pending: Vec<(Id, bool)> = roots.iter().map(|&id| (id, false)).collect();
    while let Some((id, leaving)) = pending.pop() {
        if leaving {
            path.pop();
            done.insert(id);
            continue;
        }
        if done.contains(&id) {
            continue;
        }
        if let Some(start) = path.iter().position(|&open| open == id) {
            return Err(path.split_off(start));
        }
        let Some(term) = choice.get(&id) else { return Err(vec![id]) };
        path.push(id);
        pending.push((id, true));
        pending.extend(term.children().iter().map(|&child| (child, false)));
    }
    Ok(done)
}

/// A choice by an integer programme: a variable a term, a root has one, and a term has one for each of its
/// children. `None` where there are too many alternatives or too many cycles.
fn programme(
    costs: &Costs,
    roots: &[Id],
    classes: &BTreeSet<Id>,
    greedy: &Choice,
) -> Option<Choice> {
    let counts = classes.iter().map(|id| costs[id].len()).filter(|&count| count > 1);
    if counts.sum::<usize>() > PROGRAMME {
        return None;
    }
    let mut cycles: Vec<Vec<(Id, Term)>> = Vec::new();
    for _ in 0..ATTEMPTS {
        let choice = solve(costs, roots, classes, &cycles, greedy)?;
        match needed(&choice, roots) {
            Ok(_) => return Some(choice),
            Err(cycle) => {
                let chosen =
                    cycle.into_iter().filter_map(|id| Some((id, choice.get(&id)?.clone())));
                cycles.push(chosen.collect());
            }
        }
    }
    None
}

fn reachable(costs: &Costs, roots: &[Id]) -> BTreeSet<Id> {
    let mut found = BTreeSet::new();
    let mut pending = roots.to_vec();
    while let Some(id) = pending.pop() {
        if found.insert(id) {
            pending.extend(costs[&id].iter().flat_map(|(term, _)| term.children()));
        }
    }
    found
}

fn solve(
    costs: &Costs,
    roots: &[Id],
    classes: &BTreeSet<Id>,
    cycles: &[Vec<(Id, Term)>],
    greedy: &Choice,
) -> Option<Choice> {
    let mut problem = Problem::new(OptimizationDirection::Minimize);
    let mut chosen: BTreeMap<Id, Vec<(&Term, Variable)>> = BTreeMap::new();
    let mut start = Vec::new();
    // A leaf costs nothing and is there anyway.
    let leaf = |id: &&Id| costs[*id].iter().all(|(term, _)| term.is_leaf());
    for id in classes.iter().filter(|id| !leaf(id)) {
        for (term, cost) in &costs[id] {
            let variable = problem.add_binary_var(*cost);
            start.push((variable, if greedy.get(id) == Some(term) { 1.0 } else { 0.0 }));
            chosen.entry(*id).or_default().push((term, variable));
        }
    }
    let any = |id: &Id| chosen[id].iter().map(|(_, variable)| (*variable, 1.0));
    for root in roots.iter().filter(|id| chosen.contains_key(id)) {
        problem.add_constraint(any(root), ComparisonOp::Ge, 1.0);
    }
    for (term, variable) in chosen.values().flatten() {
        // A term that reads its own class stands on both sides.
        for child in term.children().iter().filter(|id| chosen.contains_key(id)) {
            let mut needs: BTreeMap<usize, (Variable, f64)> = BTreeMap::new();
            for (other, weight) in any(child).chain([(*variable, -1.0)]) {
                needs.entry(other.idx()).or_insert((other, 0.0)).1 += weight;
            }
            problem.add_constraint(needs.into_values(), ComparisonOp::Ge, 0.0);
        }
    }
    for cycle in cycles {
        let variable =
            |(id, own): &(Id, Term)| Some(chosen.get(id)?.iter().find(|(term, _)| *term == own)?.1);
        let on: Vec<Variable> = cycle.iter().filter_map(variable).collect();
        let most = on.len() as f64 - 1.0;
        problem.add_constraint(on.iter().map(|on| (*on, 1.0)), ComparisonOp::Le, most);
    }
    let mut options = SolveOptions::default();
    (options.node_limit, options.warm_start) = (Some(BRANCHES), Some(start));
    let solution = problem.solve_with(options).ok()?.into_solution().ok()?;
    let pick = |(id, terms): (&Id, &Vec<(&Term, Variable)>)| {
        let term = terms.iter().find(|(_, variable)| solution.var_value(*variable) > 0.5)?;
        Some((*id, term.0.clone()))
    };
    let leaves = classes.iter().filter(leaf).map(|id| (*id, costs[id][0].0.clone()));
    Some(chosen.iter().filter_map(pick).chain(leaves).collect())
}
