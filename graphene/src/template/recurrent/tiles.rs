//! How a block's tiles come to shared memory: rows of the input or of h, and weights; and the products
//! of them.

use super::steps::Context;
use crate::build::{Builder, Header};
use crate::error::Result;
use crate::index::{Cond, Expr};
use crate::kernel::{Kind, TensorId};
use crate::layout::Tiler;
use crate::schedule::{multistage, within};

/// Where rows come from: hands a tensor, and the coordinates of a row by its number, to a body.
pub(super) type Source<'a> = dyn Fn(&mut Builder, &Body<'_>) -> Result<()> + 'a;
pub(super) type Body<'a> =
    dyn Fn(&mut Builder, TensorId, &dyn Fn(&Expr) -> Vec<Expr>) -> Result<()> + 'a;

impl Context<'_> {
    /// Begins to bring the weights that stay for all steps. The copies join the group of the input's
    /// first rows, for which all threads wait before the first product.
    pub(super) fn bring_resident(&self, k: &mut Builder) -> Result<()> {
        for i in 0..2 {
            let Some(resident) = self.resident[i] else { continue };
            k.for_("chunk", 0..self.layer.chunks(i), 1, false, |k, chunk| {
                let to = k.index(resident, "to", [chunk])?;
                self.bring_weights(k, i, &Expr::from(chunk), to)
            })?;
        }
        Ok(())
    }

    /// Adds products with W or R, of rows that `source` hands to a body.
    pub(super) fn products(&self, k: &mut Builder, i: usize, source: &Source<'_>) -> Result<()> {
        let layer = self.layer;
        let chunks = layer.chunks(i);
        multistage(
            k,
            layer.stages,
            &Expr::from(chunks),
            self.block,
            |k, chunk, stage| {
                within(k, chunk, chunks, |k| {
                    let to = k.index(self.rows, "stage", [stage])?;
                    source(k, &|k, from, at| self.fill(k, 0, from, at, chunk, to))?;
                    match (self.resident[i], self.weights) {
                        (None, Some(weights)) => {
                            let to = k.index(weights, "stage", [stage])?;
                            self.bring_weights(k, i, chunk, to)
                        }
                        _ => Ok(()),
                    }
                })
            },
            |k, chunk, stage| {
                let a = k.index(self.rows, "a", [stage])?;
                let b = match (self.resident[i], self.weights) {
                    (None, Some(weights)) => k.index(weights, "b", [stage])?,
                    (Some(resident), _) => k.index(resident, "b", [chunk])?,
                    (None, None) => return Ok(()),
                };
                let header = Header::new(Kind::MATMUL_ADD, self.acc, [a, b], self.block);
                k.decompose(header, |k| self.sums.multiply(k, self.acc, [a, b]))
            },
        )
    }

    /// Brings a tile of W or R: zeros where a sum has no gate of it.
    fn bring_weights(&self, k: &mut Builder, i: usize, chunk: &Expr, to: TensorId) -> Result<()> {
        let layer = self.layer;
        let (eight, sums) = (Expr::from(8), Expr::from(layer.sums()));
        let units = self.units.clone() * layer.units;
        let at = |column: &Expr| {
            let sum = column.div(&eight).rem(&sums);
            let unit = column.div(&(sums.clone() * 8)) * 8 + column.rem(&eight);
            let mut gate = Expr::from(0);
            let mut beyond = Expr::from(0);
            for (number, gates) in layer.cell.sums.iter().enumerate() {
                // 1 for this sum, else 0.
                let from = |least: i64| sum.div(&Expr::from(least.max(1))).min(Expr::from(1));
                let least = number as i64;
                let above = if least + 1 < layer.sums() { from(least + 1) } else { 0.into() };
                let is = if least == 0 { Expr::from(1) - above } else { from(least) - above };
                match gates[i] {
                    Some(own) => gate = gate + is * own,
                    None => beyond = beyond + is * layer.hidden,
                }
            }
            let all = layer.cell.sums.iter().enumerate().all(|(s, g)| g[i] == Some(s as i64));
            let gate = if all { sum } else { gate };
            vec![self.direction.clone(), gate, units.clone() + unit + beyond]
        };
        self.fill(k, 1, self.tensors.weights[i], &at, chunk, to)
    }

    /// Brings a tile of rows; `at` are the coordinates of a row, by its number in the tile.
    fn fill(
        &self,
        k: &mut Builder,
        i: usize,
        from: TensorId,
        at: &dyn Fn(&Expr) -> Vec<Expr>,
        chunk: &Expr,
        to: TensorId,
    ) -> Result<()> {
        let (side, movers) = (self.sides[i], self.movers);
        let piece = side.piece(movers.edges);
        let axes = k.tensor_of(from)?.view.axes().len();
        let mut tiles = vec![Tiler::Size(1); axes];
        tiles[axes - 1] = Tiler::Size(piece);
        let from = k.tile(from, "from_pieces", &tiles)?;
        let to = k.tile(to, "to_pieces", &side.pieces(piece))?;
        let per_row = Expr::from(side.depth / piece);
        let all = side.size * side.depth / piece;
        let count = (all + movers.threads - 1) / movers.threads;
        k.for_("e", 0..count, 1, count <= 16, |k, e| {
            let linear = Expr::from(e) * movers.threads + Expr::from(movers.thread);
            let (row, place) = (linear.div(&per_row), linear.rem(&per_row));
            let body = |k: &mut Builder| {
                let along = chunk.clone() * &per_row + &place;
                let coordinates: Vec<Expr> = at(&row).into_iter().chain([along]).collect();
                let from = k.index(from, "from", coordinates)?;
                let from = k.reshape(from, "from", 0, &[&[(piece, 1)]])?;
                let to = k.index(to, "to", side.order(row.clone(), place.clone()))?;
                let to = k.reshape(to, "to", 0, &[&[(piece, 1)]])?;
                side.bring(k, from, to, piece, movers.one)
            };
            if all % movers.threads == 0 {
                body(k)
            } else {
                k.if_(Cond::less(row.clone(), side.size), body)
            }
        })
    }
}
