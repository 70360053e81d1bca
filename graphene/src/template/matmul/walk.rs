//! The tiles of a matmul's result, and the order in which blocks take them.

use super::{Declared, tile_of};
use crate::{Builder, Expr, Result, TensorId, Tiler};

/// The tiles of the result, and the order in which they are walked: matmul by matmul, in bands of
/// rows, down the columns of a band.
pub(crate) struct Walk {
    pub(crate) tiles_m: Expr,
    pub(crate) tiles_n: Expr,
    pub(crate) batch: Option<Expr>,
    /// Rows of tiles that are walked together.
    pub(crate) raster: i64,
}

/// A tile of the result: its place in the batch, and its row and column in tiles.
#[derive(Clone)]
pub(crate) struct Place {
    pub(crate) batch: Option<Expr>,
    pub(crate) m: Expr,
    pub(crate) n: Expr,
}

impl Walk {
    pub(crate) fn new(of: &Declared, [rows, columns]: [i64; 2], raster: i64) -> Walk {
        let (tiles_m, tiles_n) = (of.m.ceil_div(rows), of.n.ceil_div(columns));
        Walk { tiles_m, tiles_n, batch: of.batch.clone(), raster }
    }

    pub(crate) fn count(&self) -> Expr {
        let batches = self.batch.clone().unwrap_or(Expr::from(1));
        self.tiles_m.clone() * &self.tiles_n * batches
    }

    /// The `t`-th tile.
    pub(crate) fn place(&self, k: &mut Builder, t: impl Into<Expr>) -> Result<Place> {
        let mut t = t.into();
        let mut batch = None;
        if self.batch.is_some() {
            let of_one = self.tiles_m.clone() * &self.tiles_n;
            batch = Some(Expr::from(k.let_("product", t.div(&of_one))?));
            t = k.let_("tile", t.rem(&of_one))?.into();
        }
        let band_size = self.tiles_n.clone() * self.raster;
        let band = Expr::from(k.let_("band", t.div(&band_size))?);
        let left = self.tiles_m.clone() - band.clone() * self.raster;
        let height = Expr::from(k.let_("height", left.min(self.raster).max(1))?);
        let within = Expr::from(k.let_("within", t.rem(&band_size))?);
        let m = k.let_("m", band * self.raster + within.rem(&height))?;
        let n = k.let_("n", within.div(&height))?;
        Ok(Place { batch, m: m.into(), n: n.into() })
    }
}

impl Place {
    pub(crate) fn first() -> Place {
        Place { batch: None, m: 0.into(), n: 0.into() }
    }

    /// A tile of a tensor that may be batched.
    pub(super) fn view(
        &self,
        k: &mut Builder,
        of: TensorId,
        name: &str,
        tiles: &[Tiler; 2],
        at: [&Expr; 2],
    ) -> Result<TensorId> {
        let batch = self.batch.is_some().then_some(Tiler::Size(1));
        let tiles: Vec<Tiler> = batch.into_iter().chain(tiles.iter().cloned()).collect();
        tile_of(k, of, name, &tiles, self.batch.iter().chain(at))
    }

    /// Coordinates within a tensor that may be batched.
    pub(crate) fn at(&self, at: [Expr; 2]) -> Vec<Expr> {
        self.batch.iter().cloned().chain(at).collect()
    }
}
