//! Rows that belong to a tile's columns, such as a bias: each consumer copies its tile's part of them to shared memory while
//! the products are computed, and reads pairs of it there, as the sums lie in registers.

use super::epilogue::{Panel, Store};
use super::{Context, Edges, Gemm, PANEL, Place};
use crate::build::{Builder, Header};
use crate::error::Result;
use crate::index::Expr;
use crate::kernel::{Group, Kind, TensorId};
use crate::layout::Tiler;
use crate::schedule::pointwise::{WIDTH, load};
use crate::template::epilogue::Span;
use crate::template::product::leaf;
use crate::tensor::{Memory, Scalar, View};

/// Of each operand that is a row, where its part is: `[consumer].[columns]`.
pub(super) struct Rows(Vec<Option<TensorId>>);

impl Gemm {
    /// Bytes of shared memory that rows take.
    pub(super) fn bytes_of_rows(&self) -> i64 {
        let operands = self.product.epilogue.operands.iter();
        let scalars =
            operands.map(|input| (input.span, input.scalar.unwrap_or(self.product.scalar)));
        let copied = scalars.filter(|&(span, scalar)| self.copies(span, scalar));
        self.consumers * self.columns * copied.map(|(_, scalar)| scalar.bytes()).sum::<i64>()
    }

    /// Whether an operand is a row that is copied: not where elements move alone, which need not be aligned, nor of eight
    /// bytes. Such rows are read where they are needed.
    fn copies(&self, span: Span, scalar: Scalar) -> bool {
        span == Span::Row && self.edges == Edges::Bulk && scalar.bytes() <= 4
    }
}

impl Rows {
    pub(super) fn new(k: &mut Builder, context: &Context<'_>) -> Result<Rows> {
        let Gemm { consumers, columns, .. } = *context.gemm;
        let operands = context.declared.epilogue.operands().iter();
        let rows = operands.map(|&(span, tensor)| {
            let scalar = k.tensor_of(tensor)?.scalar;
            if !context.gemm.copies(span, scalar) {
                return Ok(None);
            }
            let view = View::levels_of(&[vec![leaf(consumers, columns)], vec![leaf(columns, 1)]]);
            k.allocate("row", view, scalar, Memory::Shared, None).map(Some)
        });
        Ok(Rows(rows.collect::<Result<_>>()?))
    }

    fn is_empty(&self) -> bool {
        self.0.iter().all(Option::is_none)
    }
}

impl Store<'_> {
    /// Begins to copy the tile's rows. The last tile's are no longer read.
    pub(super) fn ask_for_rows(&self, k: &mut Builder, place: &Place) -> Result<()> {
        if self.rows.is_empty() {
            return Ok(());
        }
        let one = self.context.one;
        let [thread] = k.indices(self.own, ["copier"])?;
        let operands = self.context.declared.epilogue.operands();
        for (&(_, from), row) in operands.iter().zip(&self.rows.0) {
            let &Some(row) = row else { continue };
            let run = WIDTH / k.tensor_of(from)?.scalar.bytes();
            let runs = self.context.gemm.columns / run;
            let from = k.tile(from, "runs", &[Tiler::Size(run)])?;
            let to = k.index(row, "row", [&self.group])?;
            let to = k.tile(to, "runs", &[Tiler::Size(run)])?;
            k.role(self.own, 0..runs, |k| {
                let from = k.index(from, "run", [place.n.clone() * runs + &thread])?;
                let to = k.index(to, "run", [&thread])?;
                k.add(Header::new(Kind::Move, to, from, one).async_())
            })?;
        }
        k.spec(Kind::Commit(Group::Copy), (), (), one)
    }

    /// Waits until the consumer's threads have copied them.
    pub(super) fn await_rows(&self, k: &mut Builder) -> Result<()> {
        if self.rows.is_empty() {
            return Ok(());
        }
        k.spec(Kind::WaitGroup(Group::Copy, 0, false), (), (), self.context.one)?;
        k.spec(Kind::Sync, (), (), self.own)
    }

    /// Lets the next tile's rows take their place. A panel that leaves does so too, since threads meet once they have computed
    /// it: unless runs read rows after the last one.
    pub(super) fn leave_rows(&self, k: &mut Builder) -> Result<()> {
        // Blocks that share a tile have no other.
        let last = self.context.shares.is_some();
        if last || self.rows.is_empty() || self.by_runs.is_empty() {
            return Ok(());
        }
        k.spec(Kind::Sync, (), (), self.own)
    }

    /// The own lane's pairs in eight columns of a panel, in single precision.
    pub(super) fn rows_at(
        &self,
        k: &mut Builder,
        panel: &Panel<'_>,
        eight: &Expr,
    ) -> Result<Vec<Option<TensorId>>> {
        let eight = panel.panel.clone() * (PANEL / 8) + eight;
        let mut rows = Vec::new();
        for row in &self.rows.0 {
            let &Some(row) = row else {
                rows.push(None);
                continue;
            };
            let row = k.index(row, "row", [&self.group])?;
            let pairs = k.tile(row, "pairs", &[Tiler::Size(2)])?;
            let pair = k.index(pairs, "pair", [eight.clone() * 4 + &self.column])?;
            rows.push(Some(load(k, pair, 2, true, self.context.one)?));
        }
        Ok(rows)
    }
}
