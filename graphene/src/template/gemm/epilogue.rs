//! What becomes of the sums, and how they leave.

use super::{Context, Edges, PANEL, Place, ROWS, leaf};
use crate::build::{Builder, Header};
use crate::error::Result;
use crate::index::{Expr, Var};
use crate::kernel::{Binary, Fence, Group, Kind, Operand, Ring, TensorId, Test, ThreadsId};
use crate::layout::Swizzle;
use crate::tensor::{Coord, Memory, Scalar, Shape, Tile, View};

/// How a warpgroup's rows leave: panel by panel through two shared buffers and tensor copies, or
/// element by element.
pub(super) struct Store<'a> {
    context: &'a Context<'a>,
    own: ThreadsId,
    group: Var,
    /// `[group, buffer].[64, 64]`, and whose turn it is; none where elements move alone.
    buffers: Option<(TensorId, Ring)>,
    /// C in panels.
    panels: TensorId,
    warp: ThreadsId,
    /// The own warp's number in its group, the own lane's row and column of fragments.
    warp_in_group: Expr,
    row: Expr,
    column: Expr,
    /// Which of 2×2 matrices, and which row of it, the own lane points to.
    address: [Expr; 3],
}

/// Two neighbouring sums of a lane.
struct Pair {
    /// Which of the two rows, eight apart, and which eight columns of the tile.
    half: i64,
    eight: Expr,
}

impl<'a> Store<'a> {
    pub(super) fn new(
        k: &mut Builder,
        context: &'a Context<'a>,
        own: ThreadsId,
        group: &Var,
    ) -> Result<Store<'a>> {
        let gemm = context.gemm;
        let buffers = match gemm.edges {
            Edges::Moves => None,
            Edges::Bulk => {
                let panel = ROWS * PANEL;
                let view = View::levels_of(&[
                    vec![leaf(gemm.consumers, 2 * panel), leaf(2, panel)],
                    vec![leaf(ROWS, PANEL), leaf(PANEL, 1)],
                ]);
                let swizzle = Some(Swizzle::new(3, 4, 3)?);
                let buffers = k.allocate("sC", view, gemm.scalar, Memory::Shared, swizzle)?;
                Some((buffers, k.ring("leaving", 2)?))
            }
        };
        let panels = context.tiled(k, context.operands[2], "gC", [ROWS, PANEL])?;
        let warps = k.tile(own, "warps", &[Tile::of(32)])?;
        let quads = k.reshape(warps, "quads", 1, &[&[(4, 1)], &[(8, 4)]])?;
        let [warp_in_group, column, row] = k.indices(quads, ["warp", "quad", "fragment"])?;
        let warp = k.index(warps, "warp", [&warp_in_group])?;
        // Lane 8i + r holds the address of row r of the i-th of 2×2 matrices.
        let eights = k.tile(warp, "eights", &[Tile::of(8)])?;
        let grouped = k.reshape(eights, "matrices", 0, &[&[(2, 2)], &[(2, 1)]])?;
        let address = k.indices(grouped, ["matrix_m", "matrix_n", "matrix_row"])?;
        Ok(Store {
            context,
            own,
            group: group.clone(),
            buffers,
            panels,
            warp,
            warp_in_group: warp_in_group.into(),
            row: row.into(),
            column: column.into(),
            address: address.map(Expr::from),
        })
    }

    /// A tile's rows.
    pub(super) fn tile(&self, k: &mut Builder, acc: TensorId, place: &Place) -> Result<()> {
        k.for_("panel", 0..self.context.gemm.columns / PANEL, 1, true, |k, panel| {
            match &self.buffers {
                Some((buffers, turn)) => self.panel(k, acc, place, panel, *buffers, turn),
                None => self.elements(k, acc, place, panel),
            }
        })
    }

    /// What is still being read out of shared memory must not outlive the block.
    pub(super) fn finish(&self, k: &mut Builder) -> Result<()> {
        if self.buffers.is_none() {
            return Ok(());
        }
        let one = self.context.one;
        k.role(self.own, 0..1, |k| k.spec(Kind::WaitGroup(Group::Bulk, 0, true), (), (), one))
    }

    /// The panel of C that is `panel`-th of the tile, in panels.
    fn at(&self, place: &Place, panel: &Var) -> Vec<Expr> {
        let gemm = self.context.gemm;
        let row = place.m.clone() * gemm.consumers + &Expr::from(&self.group);
        let column = place.n.clone() * (gemm.columns / PANEL) + Expr::from(panel);
        place.at(row, column)
    }

    fn panel(
        &self,
        k: &mut Builder,
        acc: TensorId,
        place: &Place,
        panel: &Var,
        buffers: TensorId,
        turn: &Ring,
    ) -> Result<()> {
        let one = self.context.one;
        let at = [&self.group, &turn.stage()];
        let buffer = k.index(buffers, "buffer", at)?;
        // The buffer's last store has been read: of the two, it is the older.
        k.role(self.own, 0..1, |k| k.spec(Kind::WaitGroup(Group::Bulk, 1, true), (), (), one))?;
        k.spec(Kind::Sync, (), (), self.own)?;
        let strips = k.tile(buffer, "strips", &[Tile::of(16), Tile::of(16)])?;
        k.for_("strip", 0..PANEL / 16, 1, true, |k, strip| {
            let fragment =
                View::levels_of(&[vec![leaf(2, 4), leaf(2, 2)], vec![leaf(1, 0), leaf(2, 1)]]);
            let scalar = self.context.gemm.scalar;
            let halves = k.allocate("halves", fragment, scalar, Memory::Registers, None)?;
            for (half, j) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
                let eight = Expr::from(panel) * (PANEL / 8) + Expr::from(strip) * 2 + j;
                let sums = self.finished(k, acc, place, &Pair { half, eight })?;
                k.spec(Kind::Move, Operand::at(halves, [half, j]), sums, one)?;
            }
            let strip = k.index(strips, "strip", [self.warp_in_group.clone(), strip.into()])?;
            let matrices = k.tile(strip, "matrices", &[Tile::of(8), Tile::of(8)])?;
            let [matrix_m, matrix_n, row] = &self.address;
            let matrix = k.index(matrices, "matrix", [matrix_m, matrix_n])?;
            let rows = k.tile(matrix, "rows", &[Tile::of(1), Tile::of(8)])?;
            let row = k.index(rows, "row", [row.clone(), Expr::from(0)])?;
            k.spec(Kind::Move, row, halves, self.warp)
        })?;
        k.spec(Kind::Fence(Fence::Proxy), (), (), self.own)?;
        k.spec(Kind::Sync, (), (), self.own)?;
        k.role(self.own, 0..1, |k| {
            let to = Operand { tensor: self.panels, index: Coord::list(self.at(place, panel)) };
            k.add(Header::new(Kind::Move, to, buffer, one).async_())?;
            k.spec(Kind::Commit(Group::Bulk), (), (), one)
        })?;
        k.advance(turn)
    }

    /// Each lane writes its elements that lie within C.
    fn elements(&self, k: &mut Builder, acc: TensorId, place: &Place, panel: &Var) -> Result<()> {
        let (one, scalar) = (self.context.one, self.context.gemm.scalar);
        let to = k.index(self.panels, "to", self.at(place, panel))?;
        k.for_("e", 0..PANEL / 8, 1, true, |k, e| {
            for half in 0..2 {
                let eight = Expr::from(panel) * (PANEL / 8) + Expr::from(e);
                let sums = self.finished(k, acc, place, &Pair { half, eight })?;
                for p in 0..2 {
                    let row = self.warp_in_group.clone() * 16 + &self.row + half * 8;
                    let column = Expr::from(e) * 8 + self.column.clone() * 2 + p;
                    let batch = self.context.gemm.batched.then_some(Expr::from(0));
                    let at: Vec<Expr> = batch.into_iter().chain([row, column]).collect();
                    let to = k.index(to, "element", at)?;
                    let word = View::buffer(&[]);
                    let word = k.allocate("out", word, scalar, Memory::Registers, None)?;
                    k.spec(Kind::Move, word, Operand::at(sums, [p]), one)?;
                    k.if_(Test::Inside(to.into()), |k| k.spec(Kind::Move, to, word, one))?;
                }
            }
            Ok(())
        })
    }

    /// Two sums after the epilogue's functions.
    fn finished(
        &self,
        k: &mut Builder,
        acc: TensorId,
        place: &Place,
        pair: &Pair,
    ) -> Result<TensorId> {
        let epilogue = self.context.gemm.epilogue;
        let sums = k.index(acc, "sums", [Expr::from(pair.half), pair.eight.clone()])?;
        let column = place.n.clone() * self.context.gemm.columns
            + pair.eight.clone() * 8
            + self.column.clone() * 2;
        if let Some(bias) = self.context.bias {
            self.add(k, sums, bias, |p| vec![column.clone() + p])?;
        }
        if let Some(function) = epilogue.activation {
            for p in 0..2 {
                let sum = Operand::at(sums, [p]);
                k.spec(Kind::Unary(function), sum.clone(), sum, self.context.one)?;
            }
        }
        if let Some(residual) = self.context.residual {
            let row = place.m.clone() * self.context.gemm.rows()
                + Expr::from(&self.group) * ROWS
                + self.warp_in_group.clone() * 16
                + &self.row
                + pair.half * 8;
            self.add(k, sums, residual, |p| place.at(row.clone(), column.clone() + p))?;
        }
        Ok(sums)
    }

    /// Adds elements of global memory to two sums, nothing beyond its edge.
    fn add(
        &self,
        k: &mut Builder,
        sums: TensorId,
        from: TensorId,
        at: impl Fn(i64) -> Vec<Expr>,
    ) -> Result<()> {
        let one = self.context.one;
        for p in 0..2 {
            let from = k.index(from, "term", at(p))?;
            k.if_(Test::Inside(from.into()), |k| {
                let mut register = |name: &str, scalar: Scalar| {
                    let shape: &[Shape] = &[];
                    k.allocate(name, View::buffer(shape), scalar, Memory::Registers, None)
                };
                let half = register("half_term", self.context.gemm.scalar)?;
                let term = register("term", Scalar::F32)?;
                k.spec(Kind::Move, half, from, one)?;
                k.spec(Kind::Move, term, half, one)?;
                let sum = Operand::at(sums, [p]);
                k.spec(Kind::Binary(Binary::Add), sum.clone(), [sum, term.into()], one)
            })?;
        }
        Ok(())
    }
}
