//! Copies whose contiguous axis changes: `y[…, j, i] = x[…, i, j]`, through tiles in shared memory.
//!
//! Both sides move words of 32 bits, neighbours by neighbouring threads: rows of a tile come as they
//! lie in `x`, and leave as they lie in `y`. Rows of the tile are a word apart from a multiple of the
//! banks, and the threads of a warp read `32/E` words' rows for `E` columns that share a word, `E`
//! being the elements of a word: no two of them need the same bank.
//!
//! Levels: the kernel; a tile, by a block; its way to shared memory, and from there; atoms.
//!
//! Copies that keep the contiguous axis are [`Pointwise`](super::pointwise::Pointwise).
//!
//! - this file: the parameters and the kernel's outline;
//! - `tile`: how a tile comes and goes.

mod tile;

use self::tile::{LANES, Moved, THREADS};
use super::access::{Access, declare, product};
use crate::arch::Arch;
use crate::build::{Builder, Header};
use crate::error::{Error, Result};
use crate::index::Expr;
use crate::kernel::{Fused, Kernel, Kind, TensorId};
use crate::layout::Layout;
use crate::schedule::vectors::{coordinates, part};
use crate::tensor::{Memory, Scalar};

/// The parameters of a transpose. Its symbols are sizes of outer axes `N0`, `N1`, …, `rows`,
/// `columns`, and strides of the operands `x` and `y`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Transpose {
    /// What it is compiled for.
    pub arch: Arch,
    /// The input, of axes `[N0, …, rows, columns]`, the last of them contiguous.
    pub x: Access,
    /// The result, of axes `[N0, …, columns, rows]`, the last of them contiguous.
    pub y: Access,
    /// Whether words of several elements are moved, which must be aligned; otherwise single elements.
    pub words: bool,
}

impl Default for Transpose {
    fn default() -> Transpose {
        let matrix = Access::packed(Scalar::F16, 2);
        Transpose { arch: Arch::Sm90a, x: matrix.clone(), y: matrix, words: true }
    }
}

/// The last two dimensions change places; those before them stay.
fn swapped(outer: usize) -> Kind {
    let dims = (0..outer).chain([outer + 1, outer]).map(Some);
    Kind::Fused(Fused::input(0).dims(dims.collect::<Vec<_>>()))
}

impl Transpose {
    /// The kernel.
    ///
    /// # Errors
    /// [`Error::Kernel`] for parameters that no kernel has.
    pub fn kernel(&self) -> Result<Kernel> {
        self.check()?;
        let mut k = Builder::new("transpose", self.arch);
        let outer: Vec<Expr> = (0..self.x.strides.len() - 2)
            .map(|axis| Ok(k.symbol(&format!("N{axis}"))?.into()))
            .collect::<Result<_>>()?;
        let [rows, columns] = ["rows", "columns"].map(|name| k.symbol(name));
        let (rows, columns) = (Expr::from(rows?), Expr::from(columns?));
        let sizes = |last: [&Expr; 2]| -> Vec<Expr> { outer.iter().chain(last).cloned().collect() };
        let (from, to) = (sizes([&rows, &columns]), sizes([&columns, &rows]));
        let operands = [("x".to_owned(), &self.x, &from[..]), ("y".to_owned(), &self.y, &to)];
        let params = declare(&mut k, &operands)?;
        let (x, y) = (params[0], params[1]);
        let scalar = self.x.scalar;
        let n = if self.words { (4 / scalar.bytes()).max(1) } else { 1 };
        let side = (LANES * n).max(64);
        let tiles = [&rows, &columns].map(|size| size.ceil_div(&Expr::from(side)));
        let blocks = product(&outer) * product(&tiles);
        let grid = k.grid("grid", [Layout::of(blocks, 1)])?;
        let block = k.block("block", [Layout::of(THREADS, 1)])?;
        let one = k.scalar(block, "one")?;
        let own = k.scalar(grid, "own")?;
        k.by(own);
        let [first] = k.indices(grid, ["first"])?;
        let [thread] = k.indices(block, ["thread_of_block"])?;
        let mut at = coordinates(&mut k, first.into(), &[&outer[..], &tiles].concat())?;
        let at_tile = at.split_off(outer.len());
        let pitch = side + (4 / scalar.bytes()).max(1);
        let view = [Layout::of(side, pitch), Layout::of(side, 1)];
        let shared = k.allocate("tile", view, scalar, Memory::Shared, None)?;
        let tile = Moved {
            n,
            side,
            scalar,
            one,
            thread: thread.into(),
            outer: at,
            at: [at_tile[0].clone(), at_tile[1].clone()],
            shared,
        };
        let part = |k: &mut Builder, of: TensorId, name: &str, [row, column]: [usize; 2]| {
            let inner = [row, column].map(|axis| Some((side, tile.at[axis].clone())));
            let outer = tile.outer.iter().map(|at| Some((1, at.clone())));
            part(k, of, name, &outer.chain(inner).collect::<Vec<_>>())
        };
        let (from, to) = (part(&mut k, x, "x_tile", [0, 1])?, part(&mut k, y, "y_tile", [1, 0])?);
        k.decompose(Header::new(swapped(outer.len()), to, from, block), |k| {
            k.decompose(Header::new(Kind::Move, shared, from, block), |k| {
                tile.bring(k, x, &columns)
            })?;
            k.spec(Kind::Sync, (), (), block)?;
            k.decompose(Header::new(swapped(0), to, shared, block), |k| tile.leave(k, y, &rows))
        })?;
        k.finish(swapped(outer.len()), y, x)
    }

    fn check(&self) -> Result<()> {
        let refuse = |why: &str| Err(Error::Kernel(format!("{why}: {self:?}")));
        if self.x.strides.len() < 2 || self.x.strides.len() != self.y.strides.len() {
            return refuse("both operands have rows and columns, and the same outer axes");
        }
        if !self.x.contiguous() || !self.y.contiguous() {
            return refuse("the last axes are contiguous");
        }
        if self.x.scalar != self.y.scalar {
            return refuse("it does not convert");
        }
        Ok(())
    }
}
