//! The sizes that symbols have for planning.

use graphene_frontend::{Bindings, Dim, Graph, Symbol};

/// The size that a symbol has for planning where nobody gives it one.
fn typical(symbol: &Symbol) -> i64 {
    if symbol.name().to_ascii_lowercase().contains("batch") { 8 } else { 128 }
}

/// Sizes for planning: those given, and typical ones for the other symbols.
pub(crate) fn planning_sizes(graph: &Graph, hints: &Bindings) -> Bindings {
    sizes_of(graph.symbols(), hints)
}

/// Sizes of these symbols for planning: those given, else typical ones.
pub(crate) fn sizes_of(symbols: impl IntoIterator<Item = Symbol>, hints: &Bindings) -> Bindings {
    let mut sizes = Bindings::new();
    for symbol in symbols {
        let size = hints.get(&symbol).unwrap_or_else(|| typical(&symbol));
        sizes.fix(symbol, size).expect("each symbol is there once, and hints are sizes");
    }
    sizes
}

/// How many parts of a size cover so many.
pub(crate) fn ceil(all: i64, size: i64) -> i64 {
    all.saturating_add(size - 1) / size
}

/// Whether a dim is a multiple of a number at all sizes.
pub(crate) fn is_multiple(dim: &Dim, of: i64) -> bool {
    dim.exact_div(&Dim::from(of)).is_some()
}

pub(crate) fn tiles(dim: &Dim, size: i64) -> Dim {
    dim.ceil_div(&Dim::from(size)).expect("tiles are not empty")
}
