//! What fits into shared memory: the ring's stages, and the panels through which C leaves and an addend comes.

use super::brought::ROOM;
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

/// Panels of C that a consumer has room for: one is computed while one leaves.
pub(super) const PANELS: i64 = 2;

/// Shared memory for barriers, and for the gaps before what begins at multiples of 1024 bytes.
const BARRIERS: i64 = 2048;

impl Gemm {
    /// With as many stages as there is room for, at most 8: the more are on their way, the less is waited for.
    #[must_use]
    pub fn deepest(self) -> Gemm {
        let fits = |stages: &i64| Gemm { stages: *stages, ..self.clone() }.fits(self.panels());
        let stages = (2..=8).rev().find(fits).unwrap_or(self.stages);
        Gemm { stages, ..self }
    }

    /// Panels of C that a consumer has room for: fewest, unless an addend comes by panels.
    fn panels(&self) -> i64 {
        let brought = self.product.epilogue.operands.iter().any(|input| input.span == Span::Whole);
        if brought { ROOM } else { PANELS }
    }

    /// How many types of halves results have: panels of each have buffers of their own.
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

    /// Whether the ring fits into shared memory beside panels of C, rows, and what blocks hand over.
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
    pub(super) fn room(&self) -> i64 {
        if self.brought.is_some() { ROOM } else { PANELS }
    }

    /// Buffers for each warpgroup's panels.
    pub(super) fn buffers(&self, k: &mut Builder, scalar: Scalar) -> Result<TensorId> {
        let (panel, room) = (ROWS * PANEL, self.room());
        let view = View::levels_of(&[
            vec![leaf(self.gemm.consumers, room * panel), leaf(room, panel)],
            vec![leaf(ROWS, PANEL), leaf(PANEL, 1)],
        ]);
        k.allocate("sC", view, scalar, Memory::Shared, Some(Swizzle::new(3, 4, 3)?))
    }
}
