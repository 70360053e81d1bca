//! Where a model's dims lie, and what may be done along them.

use graphene_frontend::dim::Symbol;
use graphene_frontend::graph::Graph;
use graphene_fusion::pad::{Padding, Unpadded, independent, padding};

/// Where a dim lies: for each input and each output of a model, in order, the axes along which it runs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DimAxes {
    /// For each input.
    pub inputs: Vec<Vec<usize>>,
    /// For each output.
    pub outputs: Vec<Vec<usize>>,
}

/// What may be done along a dim, or why not.
#[derive(Debug)]
pub(crate) struct Along {
    pub(crate) independent: Result<DimAxes, String>,
    pub(crate) paddable: Result<DimAxes, String>,
}

impl Along {
    /// What a planned graph lets be done along a dim.
    pub(crate) fn of(graph: &Graph, symbol: &Symbol) -> Self {
        let axes = |found: Result<Padding, Unpadded>| match found {
            Ok(Padding { inputs, outputs, .. }) => Ok(DimAxes { inputs, outputs }),
            Err(why) => Err(why.to_string()),
        };
        let independent = axes(independent(graph, symbol));
        // A row of zeros is a row.
        let paddable = independent.clone().or_else(|_| axes(padding(graph, symbol)));
        Self { independent, paddable }
    }
}
