//! Mutants of the templates whose steps follow each other: recurrent layers of blocks that wait for
//! each other, running sums, rows with several totals, attention on Ampere, products by threads.

use graphene_ir::function::Function;
use graphene_ir::kernel::Unary;
use graphene_ir::template::product::Edges;
use graphene_ir::template::recurrent::{Cell, Direction, Recurrent};
use graphene_ir::tensor::Scalar;

use crate::recurrent;
use crate::told::{Equivalent, Subject, check_told};

/// Several blocks, steps, and chunks of the depth, partial ones among them; and two tiles of rows.
fn layers() -> Vec<Subject> {
    let small = Recurrent { inputs: 40, hidden: 40, depth: 16, units: 16, ..recurrent::small() };
    let subject = |name, layer: Recurrent, rows, every| {
        let kernel = layer.kernel().unwrap();
        let given =
            [(3, 5, 1, 0), (1, rows, 1, 0)].map(|sizes| recurrent::given(&layer, &kernel, sizes));
        Subject::new(name, kernel, given, 2).sampled(every)
    };
    let gru = Recurrent {
        cell: recurrent::gru_reset_first(),
        direction: Direction::Both,
        scalar: Scalar::F32,
        rows: 8,
        slices: 2,
        edges: Edges::Moves,
        units: 8,
        inputs: 35,
        hidden: 35,
        initial: [true, false],
        results: [false, true, false],
        resident: [false; 2],
        ..small.clone()
    };
    let plain = Recurrent {
        cell: Cell::plain(&Function::identity().unary(Unary::Tanh)),
        resident: [false, true],
        bias: false,
        direction: Direction::Reverse,
        results: [true, true, false],
        ..small.clone()
    };
    vec![subject("lstm", small, 17, 3), subject("gru", gru, 9, 6), subject("plain", plain, 17, 3)]
}

/// Changes that make no difference.
const OF_LAYERS: &[Equivalent] = &[
    ("", "delete Init: %pair", "Each step begins with the biases, whatever the sums were before."),
    ("", "Init<0> to Init<1> in %pair", "Likewise."),
    ("", "in for(@i = 0; @i < 1; @i += 1) unroll { #2", "Likewise."),
    ("", "remove predicate: if(0 < 3)", "It is known to hold: there is a first chunk."),
    (
        "gru",
        "<max> in %sum_16[0]",
        "The last sum begins anew, with what was reset, before anybody uses it.",
    ),
    (
        "",
        "Init<0> to Init<1> in %raw",
        "It is the bias of units that there are not, of which nothing is stored.",
    ),
    (
        "",
        "delete Commit: Commit<copy><<<#grid, #one>>>()",
        "The copies of the weights that stay join the group of the input's first chunk, for which \
         all wait before the first product.",
    ),
    ("", "delete WaitGroup: WaitGroup<copy, 0><<<#grid, #one>>>()", "Likewise."),
];

#[test]
fn mutants_of_recurrent_layers_are_told() {
    check_told(&layers(), OF_LAYERS, &[]);
}
