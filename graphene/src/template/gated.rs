//! Gated matmuls `f(A·B) * (A·B_2)`, such as SwiGLU and GEGLU of a feed-forward layer: two matmuls of one A, in the tiles of
//! one, whose sums meet in registers.
//!
//! What lies in shared memory as a tile of B is two tiles of half its columns, of B and of B_2, side by side: so copies bring
//! them as before, and instructions multiply by them as before. Each thread has sums of as many columns of both, and of the
//! same ones: to the epilogue's function the second matmul's are one input more, its last. All templates of matmuls make
//! them so; a tile's columns are those of both matrices.
//!
//! ```
//! use graphene_ir::kernel::Unary;
//! use graphene_ir::template::gemm::Gemm;
//! use graphene_ir::template::matmul::MatMul;
//!
//! let swiglu = Gemm { matmul: MatMul::gated(Unary::Silu), ..Gemm::default() };
//! let kernel = swiglu.kernel()?;
//! assert_eq!(kernel.spec.kind.to_string(), "Fused{silu(matmul(%0, %1)) * matmul(%0, %2)}");
//! # Ok::<(), graphene_ir::Error>(())
//! ```

use super::{epilogue::Epilogue, matmul::MatMul, stage::Side};
use crate::{Builder, Expr, Function, Layout, Result, TensorId, Tiler, Unary};

impl MatMul {
    /// `f(A·B) * (A·B_2)`.
    pub fn gated(f: Unary) -> MatMul {
        let [gate, value] = [0, 1].map(Function::input);
        let epilogue = Epilogue::new(gate.unary(f) * value, []);
        MatMul { gated: true, epilogue, ..MatMul::default() }
    }

    /// How many matrices A is multiplied by, each of which has as many of a tile's columns.
    pub(super) fn matrices(&self) -> i64 {
        if self.gated { 2 } else { 1 }
    }

    /// The sums of each matrix: of registers whose second dimension are columns, of `strips` of rows one after the other, in
    /// each of which are as many of each matrix.
    pub(super) fn sums(
        &self,
        k: &mut Builder,
        acc: TensorId,
        strips: i64,
    ) -> Result<Vec<TensorId>> {
        let matrices = self.matrices();
        if matrices == 1 {
            return Ok(vec![acc]);
        }
        let all = k.tensor_of(acc)?.view.dims().nth(1).and_then(|dim| dim.size().constant());
        let columns = all.unwrap_or(1) / (strips * matrices);
        let of_one = match strips {
            1 => Tiler::Size(columns),
            _ => Tiler::Layout(Layout::of_modes(&[(columns, 1), (strips, columns * matrices)])?),
        };
        let all = k.tile(acc, "of_matrices", &[Tiler::Whole, of_one])?;
        (0..matrices).map(|i| k.index(all, "of_matrix", [0, i])).collect()
    }
}

impl Side {
    /// The tile of one of the matrices that lie side by side.
    pub(super) fn of_one(&self) -> Side {
        Side { size: self.size / self.matrices, matrices: 1, ..*self }
    }

    /// Where the one of this number lies in a tile.
    pub(super) fn part(&self, k: &mut Builder, tile: TensorId, number: usize) -> Result<TensorId> {
        if self.matrices == 1 {
            return Ok(tile);
        }
        let Side { size, depth, .. } = self.of_one();
        let parts = k.tile(tile, "of_matrices", &self.order(size, depth).map(Tiler::Size))?;
        k.index(parts, "of_matrix", self.order(Expr::from(number as i64), 0.into()))
    }

    /// Of the columns that an agent has, as many of each matrix: where the matrix of this one begins, and which of its columns
    /// there it is. The agent has `own` of a tile's `all`, in any unit.
    pub(super) fn of_matrix(&self, column: Expr, [own, all]: [i64; 2]) -> [Expr; 2] {
        if self.matrices == 1 {
            return [0.into(), column];
        }
        let own = own / self.matrices;
        [column.div(own) * (all / self.matrices), column.rem(own)]
    }
}
