//! What nobody gave: sizes that are assumed, and inputs that are random.

use crate::inputs::Given;
use graphene_frontend::dim::Symbol;
use graphene_frontend::graph::Graph;
use graphene_runtime::Sizing;

/// The sizes that nobody gave.
pub(crate) fn assumed(sizing: &Sizing) -> impl Iterator<Item = (&Symbol, i64)> {
    sizing.sizes.iter().filter(|(symbol, _)| sizing.asked.get(symbol).is_none())
}

/// The names of the inputs that nobody gave.
pub(crate) fn random<'a>(graph: &'a Graph, given: &Given) -> impl Iterator<Item = &'a str> {
    let names = graph.inputs().iter().map(|&id| graph.node(id).name());
    names.filter(|name| given.get(name).is_none())
}

/// What to say of sizes that nobody gave, and of the inputs of a run with a seed.
pub(crate) fn said(sizing: &Sizing, run: Option<(&Graph, &Given, u64)>) -> Vec<String> {
    let mut said = Vec::new();
    let sizes: Vec<_> = assumed(sizing).map(|(symbol, size)| format!("{symbol}={size}")).collect();
    if !sizes.is_empty() {
        let gives = "--batch, --seq or --dim give others";
        said.push(format!("note: {} assumed; {gives}", sizes.join(", ")));
    }
    if let Some((graph, given, seed)) = run {
        let names: Vec<_> = random(graph, given).collect();
        if !names.is_empty() {
            let names = names.join(", ");
            let others = "--input, --inputs or --data give others";
            said.push(format!("note: random numbers (seed {seed}) for {names}; {others}"));
        }
    }
    said
}
