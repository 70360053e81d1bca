//! Saturation of one block: its graph becomes an e-graph, rules are applied until nothing is new, and what is chosen
//! of it is read back.

use super::block::Block;
use super::extract::Choice;
use super::language::{Facts, Head, Term, Terms, add_literal, add_operation, operation};
use super::rule::Compiled;
use crate::base::error::FusionError;
use crate::base::rebuild::{Rebuilt, Regrown};
use egg::{EGraph, Id};
use graphene_frontend::{Graph, InferError, Op, ValueId};
use graphene_ir::target::{Kind, Target};
use std::collections::BTreeMap;

/// Where saturation ends before all is said.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Rounds of searching and applying all rules.
    pub(crate) rounds: usize,
    /// E-nodes at which nothing more is applied.
    pub(crate) nodes: usize,
}

/// What blocks of real models are far from.
pub(crate) const LIMITS: Limits = Limits { rounds: 16, nodes: 20_000 };

pub(crate) struct Saturated {
    pub(crate) terms: Terms,
    pub(crate) roots: Vec<Id>,
    /// The classes of the block's operations, and where these stand in it.
    named: Vec<(Id, usize)>,
    pub(crate) fired: BTreeMap<&'static str, usize>,
    /// Whether a limit ended it before nothing was new.
    pub(crate) limited: bool,
}

/// The e-graph of a block, under all that the rules say about it.
pub(crate) fn saturate(
    block: &Block,
    rules: &[Compiled],
    target: &Target,
    limits: Limits,
) -> Saturated {
    let mut saturated = encode(block, target.kind == Kind::Cpu);
    let mut rounds = 0;
    while round(&mut saturated, rules, limits) {
        rounds += 1;
        saturated.limited |= rounds >= limits.rounds;
        if saturated.limited {
            break;
        }
    }
    let found = |id: &Id| saturated.terms.find(*id);
    saturated.roots = saturated.roots.iter().map(found).collect();
    saturated
}

fn round(saturated: &mut Saturated, rules: &[Compiled], limits: Limits) -> bool {
    let matches: Vec<_> = rules.iter().map(|rule| rule.search(&saturated.terms)).collect();
    let mut news = false;
    'rules: for (rule, matches) in rules.iter().zip(matches) {
        for place in &matches {
            if saturated.terms.total_size() > limits.nodes {
                saturated.limited = true;
                break 'rules;
            }
            if rule.apply(&mut saturated.terms, place) {
                *saturated.fired.entry(rule.rule.name).or_default() += 1;
                news = true;
            }
        }
    }
    saturated.terms.rebuild();
    news
}

fn encode(block: &Block, rounds_steps: bool) -> Saturated {
    let graph = &block.graph;
    let inputs = graph.inputs().iter().zip(&block.constants);
    let inputs = inputs.map(|(id, constant)| (graph.ty(id.value()).clone(), *constant)).collect();
    let mut terms = EGraph::new(Facts::new(inputs, rounds_steps));
    let mut values: BTreeMap<ValueId, Id> = BTreeMap::new();
    let mut named = Vec::new();
    let (mut number, mut place) = (0, 0);
    for (id, node) in graph.nodes() {
        match node.op() {
            Op::Input => {
                values.insert(id.value(), terms.add(Term::leaf(Head::Input(number))));
                number += 1;
            }
            Op::Constant(tensor) => {
                values.insert(id.value(), add_literal(&mut terms, tensor));
            }
            op => {
                let inputs: Vec<_> = node.inputs().iter().map(|v| v.map(|v| values[&v])).collect();
                let outputs = add_operation(&mut terms, op, &inputs)
                    .expect("inference accepted this operation in the block");
                for (output, &class) in outputs.iter().enumerate() {
                    values.insert(ValueId { node: id, output: output as u32 }, class);
                    named.push((class, place));
                }
                place += 1;
            }
        }
    }
    terms.rebuild();
    let roots = graph.outputs().iter().map(|(_, value)| values[value]).collect();
    Saturated { terms, roots, named, fired: BTreeMap::new(), limited: false }
}

impl Saturated {
    /// Adds what is chosen to the result, between the values that a block of such terms stands between.
    pub(crate) fn splice(
        &self,
        choice: &Choice,
        block: &Block,
        result: &mut Regrown,
    ) -> Rebuilt<()> {
        // Of operations that became one class, the first one's.
        let mut names = BTreeMap::new();
        for (class, place) in &self.named {
            names.entry(self.terms.find(*class)).or_insert(block.names[*place].as_str());
        }
        let mut values = BTreeMap::new();
        for (number, outer) in (0..).zip(&block.inputs) {
            let class = self.terms.lookup(Term::leaf(Head::Input(number)));
            values.insert(class.expect("inputs are never removed"), result.renamed[outer]);
        }
        let graph = &mut result.graph;
        let mut decoder = Decoder { terms: &self.terms, choice, names, graph, values };
        for (&root, &outer) in self.roots.iter().zip(&block.outputs) {
            let name = decoder.names.get(&root).copied().unwrap_or_default();
            let value = decoder.value(root, name).map_err(|reason| {
                let name = block.names.first().cloned().unwrap_or_default();
                FusionError::Rebuild { name, op: "a rewritten block", reason }
            })?;
            result.renamed.insert(outer, value);
        }
        Ok(())
    }
}

struct Decoder<'a> {
    terms: &'a Terms,
    choice: &'a Choice,
    names: BTreeMap<Id, &'a str>,
    graph: &'a mut Graph,
    values: BTreeMap<Id, ValueId>,
}

impl<'a> Decoder<'a> {
    /// The class as a value of the graph; operations that the block did not have take the name of their reader.
    fn value(&mut self, class: Id, reader: &'a str) -> Result<ValueId, InferError> {
        if let Some(&value) = self.values.get(&class) {
            return Ok(value);
        }
        let term = &self.choice[&class];
        let name = self.names.get(&class).copied().unwrap_or(reader);
        let value = match term.head {
            Head::Literal(number) => {
                let tensor = &self.terms.analysis.literals[number as usize];
                self.graph.add_constant(reader, tensor.clone())
            }
            Head::Output(output) => {
                ValueId { node: self.value(term.children[0], name)?.node, output }
            }
            Head::Op(_) => {
                let (op, inputs) = operation(self.terms, term).expect("the term is an operation");
                let value = |id: Option<Id>| id.map(|id| self.value(id, name)).transpose();
                let inputs = inputs.into_iter().map(value).collect::<Result<Vec<_>, _>>()?;
                self.graph.add(name, op.clone(), &inputs)?.value()
            }
            Head::Input(_) | Head::Attributes(_) | Head::Absent => {
                unreachable!("inputs have their values, and nothing reads the others as values")
            }
        };
        self.values.insert(class, value);
        Ok(value)
    }
}
