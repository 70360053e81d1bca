//! Extraction: for every class the term to build it by, so that the graph of all roots costs least.
//!
//! Costs are of graphs, not of trees: what two readers share is paid once. A greedy choice that knows the set of
//! classes behind every alternative comes first; where few alternatives are left, an integer programme tries to
//! better it, and the smaller of the two is taken. Both give acyclic graphs.

use super::cost::cost;
use super::language::{Fact, Head, Known, Term, Terms, operation};
use egg::{Id, Language};
use good_lp::solvers::microlp::microlp;
use good_lp::{Expression, Solution, SolverModel, Variable, constraint, variable, variables};
use graphene_frontend::types::TensorType;
use std::collections::{BTreeMap, BTreeSet};

/// For each class that is needed, and some that are not, its term.
pub(crate) type Choice = BTreeMap<Id, Term>;

/// Alternatives up to which the integer programme is tried.
const PROGRAMME: usize = 40;

/// How often the programme is solved anew without a cycle that it chose.
const ATTEMPTS: usize = 4;

/// The cheapest acyclic choice for the roots that was found.
pub(crate) fn extract(terms: &Terms, roots: &[Id]) -> Choice {
    let costs = costs(terms);
    let greedy = greedy(terms, &costs);
    match programme(terms, &costs, roots, &greedy) {
        Some(better) if total(&costs, &better, roots) < total(&costs, &greedy, roots) => better,
        _ => greedy,
    }
}

/// The costs of all terms, by class.
type Costs = BTreeMap<Id, Vec<(Term, f64)>>;

fn costs(terms: &Terms) -> Costs {
    let mut costs = Costs::new();
    for class in terms.classes() {
        let mut nodes: Vec<Term> =
            class.nodes.iter().map(|t| t.clone().map_children(|id| terms.find(id))).collect();
        nodes.sort();
        nodes.dedup();
        // A constant that is known needs no operation.
        if nodes.iter().any(|term| matches!(term.head, Head::Literal(_) | Head::Input(_))) {
            nodes.retain(|term| matches!(term.head, Head::Literal(_) | Head::Input(_)));
            nodes.truncate(1);
        }
        let priced = nodes.into_iter().map(|term| {
            let cost = term_cost(terms, &class.data, &term);
            (term, cost)
        });
        costs.insert(class.id, priced.collect());
    }
    costs
}

fn term_cost(terms: &Terms, fact: &Fact, term: &Term) -> f64 {
    let Fact::Values { types, constant, .. } = fact else { return 0.0 };
    let Some((op, inputs)) = operation(terms, term) else { return 0.0 };
    let inputs: Vec<Option<&TensorType>> =
        inputs.iter().map(|id| id.and_then(|id| terms.ty(id))).collect();
    cost(op, &inputs, types, *constant)
}

/// What a class costs with all that it needs.
struct Best {
    total: f64,
    term: Term,
    /// The needed classes with the costs of their own terms.
    needs: BTreeMap<Id, f64>,
}

/// For each class the term that costs least with all that it needs, sharing counted.
fn greedy(terms: &Terms, costs: &Costs) -> Choice {
    let mut best: BTreeMap<Id, Best> = BTreeMap::new();
    let mut readers: BTreeMap<Id, BTreeSet<Id>> = BTreeMap::new();
    for (&class, nodes) in costs {
        for child in nodes.iter().flat_map(|(term, _)| term.children()) {
            readers.entry(terms.find(*child)).or_default().insert(class);
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
fn programme(terms: &Terms, costs: &Costs, roots: &[Id], greedy: &Choice) -> Option<Choice> {
    let classes = reachable(terms, costs, roots);
    let alternatives: usize =
        classes.iter().map(|id| costs[id].len()).filter(|&count| count > 1).sum();
    if alternatives == 0 || alternatives > PROGRAMME {
        return None;
    }
    let mut cycles: Vec<Vec<(Id, Term)>> = Vec::new();
    for _ in 0..ATTEMPTS {
        let choice = solve(costs, roots, &classes, &cycles, greedy)?;
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

/// The classes that the roots may need.
fn reachable(terms: &Terms, costs: &Costs, roots: &[Id]) -> BTreeSet<Id> {
    let mut found = BTreeSet::new();
    let mut pending = roots.to_vec();
    while let Some(id) = pending.pop() {
        let id = terms.find(id);
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
    let mut all = variables!();
    let mut chosen: BTreeMap<Id, Vec<(&Term, Variable)>> = BTreeMap::new();
    let mut objective = Expression::default();
    // A leaf costs nothing and is there anyway.
    let leaf = |id: &&Id| costs[*id].iter().all(|(term, _)| term.is_leaf());
    for id in classes.iter().filter(|id| !leaf(id)) {
        for (term, cost) in &costs[id] {
            let start = if greedy.get(id) == Some(term) { 1.0 } else { 0.0 };
            let variable = all.add(variable().binary().initial(start));
            objective += *cost * variable;
            chosen.entry(*id).or_default().push((term, variable));
        }
    }
    let sum = |id: &Id| chosen[id].iter().map(|(_, variable)| *variable).sum::<Expression>();
    let mut problem = all.minimise(objective).using(microlp);
    for root in roots.iter().filter(|id| chosen.contains_key(id)) {
        problem = problem.with(constraint!(sum(root) >= 1.0));
    }
    for (term, variable) in chosen.values().flatten() {
        for child in term.children().iter().filter(|id| chosen.contains_key(id)) {
            problem = problem.with(constraint!(sum(child) >= *variable));
        }
    }
    for cycle in cycles {
        let on: Vec<Variable> = cycle
            .iter()
            .filter_map(|(id, term)| Some(chosen.get(id)?.iter().find(|(t, _)| *t == term)?.1))
            .collect();
        let most = on.len() as f64 - 1.0;
        problem = problem.with(constraint!(on.iter().copied().sum::<Expression>() <= most));
    }
    let solution = problem.solve().ok()?;
    let pick = |(id, terms): (&Id, &Vec<(&Term, Variable)>)| {
        let term = terms.iter().find(|(_, variable)| solution.value(*variable) > 0.5)?;
        Some((*id, term.0.clone()))
    };
    let leaves = classes.iter().filter(leaf).map(|id| (*id, costs[id][0].0.clone()));
    Some(chosen.iter().filter_map(pick).chain(leaves).collect())
}
