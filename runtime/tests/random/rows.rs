//! What graphs are made of: a row an operator, or a few that models have together.

mod layers;
mod movement;
mod pointwise;
mod reductions;

use crate::build::{Build, Case};

/// What a row is called, how often it comes, and how it is added; `None` where nothing fits.
pub(crate) struct Row {
    pub(crate) name: &'static str,
    pub(crate) often: usize,
    pub(crate) add: fn(&mut Build) -> Option<()>,
}

const fn row(name: &'static str, often: usize, add: fn(&mut Build) -> Option<()>) -> Row {
    Row { name, often, add }
}

/// All of them. A row of a table of functions is as many operators.
pub(crate) const ROWS: [Row; 44] = [
    row("functions of real numbers", 14, pointwise::unary),
    row("functions of other numbers", 2, pointwise::unary_whole),
    row("arithmetic", 16, pointwise::arithmetic),
    row("comparisons", 3, pointwise::comparison),
    row("logic", 2, pointwise::logic),
    row("bits", 1, pointwise::bits),
    row("Select", 5, pointwise::select),
    row("Cast", 4, pointwise::cast),
    row("BitCast", 1, pointwise::bit_cast),
    row("Reshape", 6, movement::reshape),
    row("Transpose", 6, movement::transpose),
    row("Expand", 3, movement::expand),
    row("Slice", 4, movement::slice),
    row("Concat", 3, movement::concat),
    row("Pad", 2, movement::pad),
    row("Gather", 3, movement::gather),
    row("GatherElements", 1, movement::gather_elements),
    row("GatherNd", 1, movement::gather_nd),
    row("ScatterElements", 1, movement::scatter_elements),
    row("ScatterNd", 1, movement::scatter_nd),
    row("Iota", 1, movement::iota),
    row("Size", 1, movement::size),
    row("Reduce", 6, reductions::reduce),
    row("ArgReduce", 2, reductions::arg_reduce),
    row("Cumulative", 1, reductions::cumulative),
    row("TopK", 1, reductions::top_k),
    row("Softmax", 4, reductions::softmax),
    row("LayerNorm", 3, reductions::layer_norm),
    row("RmsNorm", 2, reductions::rms_norm),
    row("steps of Softmax", 1, reductions::softmax_by_steps),
    row("steps of LayerNorm", 1, reductions::layer_norm_by_steps),
    row("steps of RmsNorm", 1, reductions::rms_norm_by_steps),
    row("MatMul by weights", 8, layers::mat_mul_weight),
    row("MatMul", 4, layers::mat_mul),
    row("layers", 6, layers::layers),
    row("gates", 2, layers::gates),
    row("Conv", 2, layers::conv),
    row("ConvTranspose", 1, layers::conv_transpose),
    row("Pool", 2, layers::pool),
    row("Attention", 1, layers::attention),
    row("steps of Attention", 2, layers::attention_by_steps),
    row("Rnn", 1, layers::rnn),
    row("Resize", 1, layers::resize),
    row("If, Loop, Scan", 1, layers::control),
];

/// What a seed makes.
pub(crate) struct Made {
    /// A graph with inputs; where there are symbols, now and then two, at sizes of their own.
    pub(crate) cases: Vec<Case>,
    /// The rows that added something.
    pub(crate) rows: Vec<&'static str>,
}

/// The graph of a seed.
pub(crate) fn cases(seed: u64) -> Made {
    let mut build = Build::new(seed);
    let total = ROWS.iter().map(|row| row.often).sum();
    let most = build.random.of(&[4, 12, 12, 12, 30]);
    let mut rows = Vec::new();
    for _ in 0..1 + build.random.below(most) {
        let mut place = build.random.below(total);
        let row = ROWS.iter().find(|row| {
            let found = place < row.often;
            place = place.wrapping_sub(row.often);
            found
        });
        // What does not fit is not added.
        let row = row.expect("places are below the total");
        rows.extend((row.add)(&mut build).map(|()| row.name));
    }
    if build.graph.is_empty() {
        build.real(0..=4);
    }
    Made { cases: build.finish(), rows }
}
