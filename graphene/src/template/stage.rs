//! Operands of a matmul in shared memory, stage by stage.

use super::matmul::{Both, Declared, Edges, MatMul, Place, is_batched, leaf, tiled};
use super::tiled_mma::By;
use crate::choose::{Banks, ceil, swizzle};
use crate::schedule::{WIDTH, begin_copy, constant, copying, moved};
use crate::{
    Builder, Cond, Expr, Header, Kind, Memory, Operand, Relation, Result, Scalar, Swizzle,
    TensorId, Test, ThreadsId, Tiler, Var, needs,
};

/// The stages of both operands, and the tiles that fill them.
pub(super) struct Stages<'a> {
    sides: [Side; 2],
    pub(super) shared: [TensorId; 2],
    /// What A and B are of, for each term, in tiles.
    terms: Vec<Both>,
    movers: Movers<'a>,
}

impl<'a> Stages<'a> {
    pub(super) fn new(
        k: &mut Builder,
        declared: &Declared,
        sides: [Side; 2],
        (stages, movers): (i64, Movers<'a>),
    ) -> Result<Stages<'a>> {
        let [a, b] = sides;
        let shared = [a.allocate(k, "sA", stages)?, b.allocate(k, "sB", stages)?];
        let terms = declared.in_tiles(k, ["tiles"; 2], sides.map(|side| side.of_one().tile()))?;
        Ok(Stages { sides, shared, terms, movers })
    }

    /// Fills a stage for a step along the K of all terms, of so many `steps` each, one after the other: that of the term to
    /// which it belongs; does nothing past the end.
    pub(super) fn fill(
        &self,
        k: &mut Builder,
        (steps, step): (&[Expr], &Expr),
        place: &Place,
        stage: &Var,
    ) -> Result {
        let mut first = Expr::from(0);
        for (term, count) in steps.iter().enumerate() {
            let end = first.clone() + count;
            let mut conds = vec![Cond::less(step, &end)];
            if term > 0 {
                conds.push(Cond::new(step, Relation::AtLeast, &first));
            }
            let own = (step.clone() - &first).max(0);
            let at = [[place.m.clone(), own.clone()], [own, place.n.clone()]];
            k.if_(conds, |k| {
                self.sides.iter().enumerate().try_for_each(|(i, side)| {
                    self.terms[term][i].iter().enumerate().try_for_each(|(number, &of)| {
                        let from = k.index(of, "tile", place.at(at[i].clone()))?;
                        let to = k.index(self.shared[i], "stage", [stage])?;
                        let to = side.part(k, to, number)?;
                        side.of_one().fill(k, from, to, self.movers)
                    })
                })
            })?;
            first = end;
        }
        Ok(())
    }
}

/// The tiles of one operand of a matmul: A's `[side,depth]`, or B's `[depth,side]`.
#[derive(Debug, Clone, Copy)]
pub(super) struct Side {
    /// Whether it is B.
    pub(super) right: bool,
    /// The extent along M or N.
    pub(super) size: i64,
    /// How many matrices' tiles it is, side by side.
    pub(super) matrices: i64,
    pub(super) depth: i64,
    /// Whether M or N is contiguous, rather than K.
    pub(super) transposed: bool,
    pub(super) scalar: Scalar,
    /// Bytes that are read together along the contiguous axis, as the swizzle must leave them.
    pub(super) chunk: i64,
}

/// Who brings tiles.
#[derive(Debug, Clone, Copy)]
pub(super) struct Movers<'a> {
    pub(super) threads: i64,
    /// All of them, which are a block.
    pub(super) block: ThreadsId,
    /// The own thread's number.
    pub(super) thread: &'a Var,
    pub(super) edges: Edges,
}

impl Side {
    /// A's and B's tiles of a matmul of `[m,n]` by `depth`, which these multiply.
    pub(super) fn both(matmul: &MatMul, tile: [i64; 2], depth: i64, by: By) -> [Side; 2] {
        let side = |right: bool, transposed: bool, matrices: i64| {
            let (size, scalar) = (tile[usize::from(right)], matmul.scalar);
            let chunk = by.chunk(scalar, transposed);
            Side { right, size, matrices, depth, transposed, scalar, chunk }
        };
        [side(false, matmul.a_transposed, 1), side(true, matmul.b_transposed, matmul.matrices())]
    }

    /// Coordinates or extents in the operand's order.
    pub(super) fn order<T>(&self, side: T, depth: T) -> [T; 2] {
        if self.right { [depth, side] } else { [side, depth] }
    }

    /// Of the extents along M or N and along K, the contiguous one and the other.
    fn extents(&self) -> [i64; 2] {
        if self.transposed { [self.size, self.depth] } else { [self.depth, self.size] }
    }

    /// Along the contiguous axis and the other, in the operand's order.
    fn along<T>(&self, contiguous: T, other: T) -> [T; 2] {
        let (side, depth) = if self.transposed { (contiguous, other) } else { (other, contiguous) };
        self.order(side, depth)
    }

    /// Tiles of `along` contiguous elements.
    pub(super) fn pieces(&self, along: i64) -> [Tiler; 2] {
        self.along(along, 1).map(Tiler::Size)
    }

    /// The piece of so many contiguous elements of a tile that has these coordinates, in the operand's order.
    pub(super) fn piece_of(
        &self,
        k: &mut Builder,
        of: TensorId,
        n: i64,
        at: [Expr; 2],
    ) -> Result<TensorId> {
        let pieces = k.tile(of, "pieces", &self.pieces(n))?;
        let piece = k.index(pieces, "piece", at)?;
        k.reshape(piece, "piece", 0, &[&[(n, 1)]])
    }

    /// Whether tiles can be brought so.
    pub(super) fn check(&self, edges: Edges) -> Result {
        needs(self.extents()[0] % self.piece(edges) == 0, "rows of a multiple of 16 bytes", self)
    }

    /// How many elements move at once.
    pub(super) fn piece(&self, edges: Edges) -> i64 {
        if edges == Edges::Bulk { WIDTH / self.scalar.bytes() } else { 1 }
    }

    /// Whether they move as they are: words or more at once.
    fn copies(&self, edges: Edges) -> bool {
        self.piece(edges) * self.scalar.bytes() >= 4
    }

    /// How the tiles of shared memory lie, without bank conflicts for those who read a chunk of each of
    /// several neighbouring rows: swizzled, or in rows of so many elements.
    fn lies(&self) -> (Option<Swizzle>, i64) {
        let (contiguous, bytes) = (self.extents()[0], self.scalar.bytes());
        match swizzle(contiguous * bytes / self.chunk, self.chunk) {
            Banks::Xor(swizzle) => (Some(swizzle), contiguous),
            Banks::Shift(more) => (None, contiguous + more / bytes),
        }
    }

    /// Bytes of shared memory that a tile takes.
    pub(super) fn bytes(&self) -> i64 {
        self.lies().1 * self.extents()[1] * self.scalar.bytes()
    }

    /// Shared memory for so many tiles: `[stages].[…]`.
    pub(super) fn allocate(&self, k: &mut Builder, name: &str, stages: i64) -> Result<TensorId> {
        let (swizzle, row) = self.lies();
        let (side, depth) = if self.transposed { (1, row) } else { (row, 1) };
        let tile = self.order(leaf(self.size, side), leaf(self.depth, depth));
        let levels = [vec![leaf(stages, row * self.extents()[1])], tile.to_vec()];
        k.allocate(name, levels, self.scalar, Memory::Shared, swizzle)
    }

    /// Brings a tile of global memory, which may have a batch's dimension before; zeros where there is nothing.
    pub(super) fn fill(
        &self,
        k: &mut Builder,
        from: TensorId,
        to: TensorId,
        movers: Movers<'_>,
    ) -> Result {
        let header = Header::new(Kind::Move, to, from, movers.block);
        let header = if self.copies(movers.edges) { copying(k, header) } else { header };
        k.decompose(header, |k| {
            let batched = is_batched(k, from)?;
            let batch = batched.then_some(Tiler::Size(1)).into_iter();
            let tiles: Vec<Tiler> = batch.chain(self.pieces(self.piece(movers.edges))).collect();
            let from = k.tile(from, "from_pieces", &tiles)?;
            self.each_piece(k, to, movers, |[row, place]| {
                let first = batched.then_some(Expr::from(0)).into_iter();
                (from, first.chain(self.along(place, row)).collect())
            })
        })
    }

    /// Brings all pieces of a tile: `from` says of which pieces, and where there, one of a row and a place in it comes.
    pub(super) fn each_piece(
        &self,
        k: &mut Builder,
        to: TensorId,
        movers: Movers<'_>,
        from: impl Fn([Expr; 2]) -> (TensorId, Vec<Expr>),
    ) -> Result {
        let piece = self.piece(movers.edges);
        let [contiguous, other] = self.extents();
        let (per_row, all) = (contiguous / piece, contiguous * other / piece);
        let count = ceil(all, movers.threads);
        k.for_("e", 0..count, 1, count <= 16, |k, e| {
            let linear = Expr::from(e) * movers.threads + Expr::from(movers.thread);
            let (row, place) = (linear.div(per_row), linear.rem(per_row));
            let inside = Cond::less(row.clone(), other);
            let (of, at) = from([row.clone(), place.clone()]);
            let body = |k: &mut Builder| {
                let from = k.index(of, "from", at)?;
                let from = k.reshape(from, "from", 0, &[&[(piece, 1)]])?;
                let to = self.piece_of(k, to, piece, self.along(place, row))?;
                if self.copies(movers.edges) {
                    return begin_copy(k, to, from);
                }
                let scalar = k.tensor_of(from)?.scalar;
                let mut word = constant(k, "word", scalar, 0.0)?;
                k.if_(Test::Inside(from.into()), |k| k.move_(word, Operand::at(from, [0])))?;
                if scalar != self.scalar {
                    word = moved(k, "rounded", self.scalar, word)?;
                }
                k.move_(Operand::at(to, [0]), word)
            };
            if all % movers.threads == 0 { body(k) } else { k.if_(inside, body) }
        })
    }

    /// A matrix of global memory, maybe of a batch, in tiles.
    pub(super) fn tiled(&self, k: &mut Builder, of: TensorId) -> Result<TensorId> {
        tiled(k, of, "tiles", self.tile())
    }

    /// The extents of a tile.
    fn tile(&self) -> [i64; 2] {
        self.order(self.size, self.depth)
    }
}
