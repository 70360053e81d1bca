//! The sizes that symbols have for planning.

use graphene_frontend::dim::{Bindings, Symbol};
use graphene_frontend::graph::Graph;

/// The size that a symbol has for planning where nobody gives it one.
pub(crate) fn typical(symbol: &Symbol) -> i64 {
    if symbol.name().to_ascii_lowercase().contains("batch") { 8 } else { 128 }
}

/// Sizes for planning: those given, and typical ones for the other symbols.
pub(crate) fn planning_sizes(graph: &Graph, hints: &Bindings) -> Bindings {
    let mut sizes = Bindings::new();
    for symbol in graph.symbols() {
        let size = hints.get(&symbol).unwrap_or_else(|| typical(&symbol));
        sizes.fix(symbol, size).expect("a graph has each symbol once, and hints are sizes");
    }
    sizes
}

/// How many parts of a size cover so many.
pub(crate) fn ceil(all: i64, size: i64) -> i64 {
    all.saturating_add(size - 1) / size
}
