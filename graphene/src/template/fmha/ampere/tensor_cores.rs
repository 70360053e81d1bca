//! Products of halves by the warps' tensor cores: `ldmatrix` and `mma.m16n8k16`.

use super::super::fragments::{fragment, pack};
use super::{Block, Products};
use crate::build::Builder;
use crate::error::Result;
use crate::index::{Expr, Var};
use crate::kernel::{Kind, Operand, TensorId};
use crate::layout::{Layout, Tiler};
use crate::template::product::leaf;
use crate::tensor::{Memory, View};

/// Fragments of queries and of weights, and the row of fragments in shared memory whose address a
/// lane holds.
pub(super) struct TensorCores {
    queries: TensorId,
    weights: TensorId,
    /// Which of 2×2 matrices, and which row of it, the own lane points to.
    address: [Expr; 3],
}

impl TensorCores {
    pub(super) fn new(k: &mut Builder, block: &Block<'_>) -> Result<TensorCores> {
        let fmha = block.fmha;
        // Lane 8i + r holds the address of row r of the i-th of 2×2 matrices.
        let eights = k.tile(block.warp, "eights", &[Tiler::Size(8)])?;
        let grouped = k.reshape(eights, "matrices", 0, &[&[(2, 2)], &[(2, 1)]])?;
        let address = k.indices(grouped, ["matrix_m", "matrix_n", "matrix_row"])?;
        Ok(TensorCores {
            queries: fragment(k, "queries", fmha.head_width(), fmha.scalar)?,
            weights: fragment(k, "weights", fmha.keys, fmha.scalar)?,
            address: address.map(Expr::from),
        })
    }

    /// The own lane's row of one of the 16×16 tiles of `[rows, dim]`, eight elements of it: of the
    /// matrices `[m, n]`, or of `[n, m]`.
    fn row_of(
        &self,
        k: &mut Builder,
        tiles: TensorId,
        at: [Expr; 2],
        across: bool,
    ) -> Result<TensorId> {
        let tile = k.index(tiles, "tile", at)?;
        let matrices = k.tile(tile, "matrices", &[Tiler::Size(8), Tiler::Size(8)])?;
        let [m, n, row] = &self.address;
        let matrix = k.index(matrices, "matrix", if across { [n, m] } else { [m, n] })?;
        let rows = k.tile(matrix, "rows", &[Tiler::Size(1), Tiler::Size(8)])?;
        k.index(rows, "row", [row.clone(), Expr::from(0)])
    }

    /// Products by sixteens along both sides of B, whose fragments are `[n, k]` of 8×8, each loaded
    /// from the rows that `row` points to.
    fn multiply(
        &self,
        k: &mut Builder,
        block: &Block<'_>,
        [acc, a]: [TensorId; 2],
        [deep, wide]: [i64; 2],
        pairs: &[Layout<Expr>; 2],
        row: impl Fn(&mut Builder, &Expr, &Expr) -> Result<TensorId>,
    ) -> Result<()> {
        let columns = k.tile(acc, "columns", &[Tiler::Whole, Tiler::Size(1)])?;
        k.for_("kk", 0..deep, 1, true, |k, kk| {
            k.for_("n", 0..wide, 1, true, |k, n| {
                let view = View::levels_of(&[vec![leaf(2, 4), leaf(2, 2)], pairs.to_vec()]);
                let scalar = block.fmha.scalar;
                let b = k.allocate("b", view, scalar, Memory::Registers, None)?;
                let row = row(k, &kk.into(), &n.into())?;
                k.spec(Kind::Move, b, row, block.warp)?;
                let halves = k.tile(b, "halves", &[Tiler::Size(1), Tiler::Whole])?;
                k.for_("half", 0..2, 1, true, |k, half| {
                    let zero = Expr::from(0);
                    let column = Expr::from(n) * 2 + Expr::from(half);
                    let c = Operand::at(columns, [zero.clone(), column]);
                    let a = Operand::at(a, [zero.clone(), kk.into()]);
                    let b = Operand::at(halves, [half.into(), zero]);
                    k.spec(Kind::MATMUL_ADD, c, [a, b], block.warp)
                })
            })
        })
    }
}

impl Products for TensorCores {
    fn begin(&self, k: &mut Builder, block: &Block<'_>) -> Result<()> {
        let of = k.index(block.shared[0], "of_block", [0])?;
        let tiles = k.tile(of, "tiles", &[Tiler::Size(16), Tiler::Size(16)])?;
        let to = k.tile(self.queries, "a", &[Tiler::Whole, Tiler::Size(2)])?;
        k.for_("kk", 0..block.fmha.head_width() / 16, 1, true, |k, kk| {
            let row = self.row_of(k, tiles, [block.warp_at.clone(), kk.into()], false)?;
            k.spec(Kind::Move, Operand::at(to, [Expr::from(0), kk.into()]), row, block.warp)
        })
    }

    fn keys(&self, k: &mut Builder, block: &Block<'_>, keys: TensorId) -> Result<()> {
        let a = k.tile(self.queries, "a", &[Tiler::Whole, Tiler::Size(2)])?;
        let tiles = k.tile(keys, "tiles", &[Tiler::Size(16), Tiler::Size(16)])?;
        let (deep, wide) = (block.fmha.head_width() / 16, block.fmha.keys / 16);
        let pairs = [leaf(1, 0), leaf(2, 1)];
        self.multiply(k, block, [block.scores, a], [deep, wide], &pairs, |k, kk, n| {
            self.row_of(k, tiles, [n.clone(), kk.clone()], false)
        })
    }

    fn weights(&self, k: &mut Builder, block: &Block<'_>) -> Result<()> {
        pack(k, block.scores, self.weights, block.fmha.keys, block.one)
    }

    fn left(&self) -> [Option<TensorId>; 2] {
        [Some(self.queries), Some(self.weights)]
    }

    fn values(&self, k: &mut Builder, block: &Block<'_>, values: TensorId) -> Result<()> {
        let a = k.tile(self.weights, "a", &[Tiler::Whole, Tiler::Size(2)])?;
        let tiles = k.tile(values, "tiles", &[Tiler::Size(16), Tiler::Size(16)])?;
        let (deep, wide) = (block.fmha.keys / 16, block.fmha.value_width() / 16);
        // A lane's pairs run down the columns: the matrices are transposed on their way.
        let pairs = [leaf(2, 1), leaf(1, 0)];
        self.multiply(k, block, [block.sums, a], [deep, wide], &pairs, |k, kk, n| {
            self.row_of(k, tiles, [kk.clone(), n.clone()], true)
        })
    }

    fn column(&self, block: &Block<'_>, pair: &Var) -> Expr {
        Expr::from(pair) * 4 + &block.column
    }
}
