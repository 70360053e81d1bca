//! What a model takes and gives, whatever it runs on: its ports, its dims, and what may be done along them.

use super::{Along, Fitting, Port, Profile, Solver};
use crate::error::Result;
use graphene_frontend::graph::Graph;
use graphene_fusion::program::Program;
use std::sync::Arc;

/// What a model takes and gives.
pub(crate) struct Signature {
    pub(super) inputs: Vec<Port>,
    /// Shared with the outputs of runs, which are found by name in it.
    pub(super) outputs: Arc<[Port]>,
    pub(super) solver: Solver,
    pub(super) fitting: Fitting,
    /// By the number of the symbol.
    pub(super) along: Vec<Along>,
}

impl Signature {
    /// That of a program whose planned graph is given, for the sizes of a profile.
    ///
    /// # Errors
    /// As for [`Fitting::new`].
    pub(crate) fn of(program: &Program, graph: &Graph, profile: &Profile) -> Result<Self> {
        let inputs = Port::of(program.inputs());
        let outputs = Port::of(program.outputs()).into();
        let solver = Solver::new(&inputs);
        let fitting = Fitting::new(profile, &solver, graph)?;
        let along = solver.symbols().iter().map(|symbol| Along::of(graph, symbol)).collect();
        Ok(Self { inputs, outputs, solver, fitting, along })
    }

    /// What is worth knowing of it.
    pub(crate) fn notes(&self) -> impl Iterator<Item = String> {
        self.fitting.notes()
    }
}
