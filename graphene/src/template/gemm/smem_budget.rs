//! What fits into shared memory: pipeline stages, and the panels through which C leaves and an addend comes.

use super::residual_tma::RESIDUAL_PANELS;
use super::{Context, Edges, Gemm, PANEL, ROWS};
use crate::arch::Arch;
use crate::build::Builder;
use crate::error::Result;
use crate::kernel::TensorId;
use crate::layout::Swizzle;
use crate::template::epilogue::Span;
use crate::template::product::leaf;
use crate::tensor::{Memory, Scalar, View};
use std::collections::HashSet;

/// Panels of C that a consumer has buffers for: one is computed while one leaves.
pub(super) const PANELS: i64 = 2;

/// Shared memory for barriers, and for the gaps before what begins at multiples of 1024 bytes.
const BARRIERS: i64 = 2048;

impl Gemm {
    /// With as many stages as fit, at most 8: the more are on their way, the less is waited for.
    #[must_use]
    pub fn deepest(self) -> Gemm {
        let fits = |stages: &i64| Gemm { stages: *stages, ..self.clone() }.fits(self.panels());
        let stages = (2..=8).rev().find(fits).unwrap_or(self.stages);
        Gemm { stages, ..self }
    }

    /// Panels of C that a consumer has buffers for: fewest, unless an addend comes by panels.
    fn panels(&self) -> i64 {
        let residual = self.product.epilogue.operands.iter().any(|input| input.span == Span::Whole);
        if residual { RESIDUAL_PANELS } else { PANELS }
    }

    /// How many 16-bit types results have: panels of each have buffers of their own.
    fn kinds(&self) -> i64 {
        let outputs = self.product.epilogue.outputs.iter();
        let kinds: HashSet<Scalar> = outputs
            .map(|output| output.unwrap_or(self.product.scalar))
            .filter(|scalar| self.leaves_by_panels(*scalar))
            .collect();
        kinds.len() as i64
    }

    /// Whether results of a type leave panel by panel.
    pub(super) fn leaves_by_panels(&self, scalar: Scalar) -> bool {
        self.edges == Edges::Bulk && self.split == 1 && scalar.bytes() == 2
    }

    /// Whether the stages fit into shared memory beside panels of C, rows, and what blocks hand over.
    pub(super) fn fits(&self, panels: i64) -> bool {
        let stages = self.stages * (self.rows() + self.columns) * self.depth();
        let panels = self.consumers * panels * self.kinds() * ROWS * PANEL;
        let shared = self.bytes_of_rows() + self.holders().bytes(self.split);
        let bytes = (stages + panels) * self.product.scalar.bytes() + shared;
        bytes + BARRIERS <= Arch::Sm90a.shared_memory()
    }
}

impl Context<'_> {
    /// Panels that each warpgroup has buffers for.
    pub(super) fn panel_buffers(&self) -> i64 {
        if self.residual_tma.is_some() { RESIDUAL_PANELS } else { PANELS }
    }

    /// Buffers for each warpgroup's panels.
    pub(super) fn buffers(&self, k: &mut Builder, scalar: Scalar) -> Result<TensorId> {
        let (panel, buffers) = (ROWS * PANEL, self.panel_buffers());
        let view = View::levels_of(&[
            vec![leaf(self.gemm.consumers, buffers * panel), leaf(buffers, panel)],
            vec![leaf(ROWS, PANEL), leaf(PANEL, 1)],
        ]);
        k.allocate("sC", view, scalar, Memory::Shared, Some(Swizzle::new(3, 4, 3)?))
    }
}
