//! What a block does with each layer: weights come in stages, the result takes its input's place.

use super::{Context, Given, Layer, rows_of};
use crate::schedule::{Ahead, each, load, neighbours, store};
use crate::template::epilogue::{Attached, Epilogue, Run, Span};
use crate::template::matmul::{Place, tile_of};
use crate::template::stage::Movers;
use crate::template::tiled_mma::{By, Near, TiledMma};
use crate::{Builder, Cond, Expr, Header, Kind, Operand, Relation, Result, TensorId, Tiler, Var};
use std::ops::Range;

/// Who adds a layer's sums, and in which registers.
type Sums<'a> = (&'a dyn TiledMma, TensorId);

impl Context<'_> {
    pub(super) fn layers(&self, k: &mut Builder) -> Result {
        let mlp = self.mlp;
        let ahead = Ahead::new(k, mlp.stages, self.block)?;
        for step in 0..mlp.stages - 1 {
            let own = step..step + 1;
            ahead.fetch(k, |k, stage| self.fetch(k, (0, own), &Expr::from(step), stage))?;
        }
        for (l, layer) in mlp.layers.iter().enumerate() {
            let (sides, warps) = (mlp.sides(l), mlp.warps);
            let tiled = By::of(sides, warps, mlp.tf32).share(k, self.block, sides, warps)?;
            let acc = tiled.allocate(k)?;
            let sums: Sums<'_> = (&*tiled, acc);
            let [rows, whole, header] = self.layer(k, l, acc)?;
            k.decompose(whole, |k| {
                if layer.times > 1 {
                    return self.multiply(k, l, &ahead, sums);
                }
                k.decompose(rows, |k| self.multiply(k, l, &ahead, sums))?;
                k.decompose(header, |k| self.leave(k, l, &Expr::from(0), sums))
            })?;
        }
        Ok(())
    }

    /// Adds a layer's matmuls to its sums; of a layer that is there several times, its results become the next one's input.
    fn multiply(&self, k: &mut Builder, l: usize, ahead: &Ahead, sums: Sums<'_>) -> Result {
        let (mlp, times, (tiled, acc)) = (self.mlp, self.mlp.layers[l].times, sums);
        tiled.reset(k, acc)?;
        let per_layer = Expr::from(mlp.steps(l));
        let steps = mlp.steps(l) * times;
        let later = mlp.stages - 1..steps + mlp.stages - 1;
        ahead.each(
            k,
            &Expr::from(steps),
            |k, step, stage| self.fetch(k, (l, later), step, stage),
            |k, step, stage| {
                let step = Expr::from(step);
                let stage = k.index(self.stages_of(l), "b", [stage])?;
                let of_layer = step.rem(&per_layer);
                let skipped = of_layer.clone() * (mlp.depth / 16);
                let part = [Tiler::Whole, Tiler::Size(mlp.depth)];
                let part = tile_of(k, self.near, "rows_part", &part, [&0.into(), &of_layer])?;
                k.decompose(Header::new(Kind::MATMUL_ADD, acc, [part, stage], self.block), |k| {
                    let near = Near { c: acc, a: self.near, b: stage, threads: self.block };
                    tiled.multiply(k, near, &skipped)
                })?;
                if times == 1 {
                    return Ok(());
                }
                k.if_(Cond::equal(of_layer, per_layer.clone() - 1), |k| {
                    self.leave(k, l, &step.div(&per_layer), sums)?;
                    tiled.reset(k, acc)
                })
            },
        )
    }

    /// What a layer computes: its sums, all of it, and what becomes of the sums.
    fn layer(&self, k: &mut Builder, l: usize, acc: TensorId) -> Result<[Header; 3]> {
        let (mlp, given) = (self.mlp, &self.given[l]);
        let own = (mlp.rows, &self.m);
        let wide = |k: &mut Builder, width: i64| {
            let whole = [Tiler::Whole, Tiler::Size(width)];
            tile_of(k, self.near, "sY_layer", &whole, [&0.into(), &0.into()])
        };
        let from = wide(k, mlp.input(l))?;
        let last = l + 1 == mlp.layers.len();
        let mut outs = if last { Vec::new() } else { vec![wide(k, mlp.layers[l].width)?] };
        for &of in &given.results {
            outs.push(rows_of(k, of, "Y_layer", own)?);
        }
        let mut met = Vec::new();
        for &(span, of) in &given.operands {
            met.push(if span == Span::Row { of } else { rows_of(k, of, "R_layer", own)? });
        }
        let skipped = mlp.layers[l].skip.then_some(from);
        let ins = [&[from, given.weights], &met[..]].concat();
        let after = [&[acc], &met[..], skipped.as_slice()].concat();
        let [sums, whole, left] = mlp.kinds(l);
        Ok([
            Header::new(sums, acc, [from, given.weights], self.block),
            Header::new(whole, outs.clone(), ins, self.block),
            Header::new(left, outs, after, self.block),
        ])
    }

    fn stages_of(&self, l: usize) -> TensorId {
        let stages = self.shared[usize::from(self.mlp.layers[l].transposed)];
        stages.expect("there are stages for every layout of weights")
    }

    /// Brings the weights of a step, counted from a layer's first, that is one of `range`: this layer's
    /// or a later one's, or none past the end.
    fn fetch(
        &self,
        k: &mut Builder,
        (first, range): (usize, Range<i64>),
        step: &Expr,
        stage: &Var,
    ) -> Result {
        let mlp = self.mlp;
        let mut begin = 0;
        for l in first..mlp.layers.len() {
            let per_layer = mlp.steps(l);
            let end = begin + per_layer * mlp.layers[l].times;
            if begin < range.end && end > range.start {
                let before = (end < range.end).then(|| Cond::less(step, end));
                let after = || Cond::new(step, Relation::AtLeast, begin);
                let after = (begin > range.start).then(after);
                let conds: Vec<Cond> = before.into_iter().chain(after).collect();
                let own = (step.clone() - begin).max(0);
                let bring = |k: &mut Builder| {
                    let side = mlp.sides(l)[1];
                    let at = [own.div(per_layer), own.rem(per_layer), Expr::from(0)];
                    let from = k.index(self.given[l].tiles, "tile", at)?;
                    let to = k.index(self.stages_of(l), "stage", [stage])?;
                    let width = if side.transposed { mlp.layers[l].width } else { mlp.input(l) };
                    let (threads, edges) = (32 * mlp.warps, mlp.edges(width));
                    let Context { block, ref thread, .. } = *self;
                    side.fill(k, from, to, Movers { threads, block, thread, edges })
                };
                if conds.is_empty() { bring(k)? } else { k.if_(conds, bring)? }
            }
            begin = end;
        }
        Ok(())
    }

    fn epilogue(&self, k: &mut Builder, l: usize, layer: &Expr) -> Result<Attached> {
        let Layer { width, epilogue, .. } = &self.mlp.layers[l];
        let Given { operands, results, .. } = &self.given[l];
        let (mut operands, results) = (operands.clone(), results.clone());
        for (_, of) in operands.iter_mut().filter(|operand| operand.0 == Span::Row) {
            let row = tile_of(k, *of, "row", &[Tiler::Size(1), Tiler::Whole], [layer, &0.into()])?;
            *of = k.reshape(row, "row", 0, &[&[(*width, 1)]])?;
        }
        Ok(Attached::new(epilogue, operands, results, self.mlp.edges(*width)))
    }

    /// The layer's results go; of all layers but the last, the first one takes the place of the input.
    fn leave(&self, k: &mut Builder, l: usize, layer: &Expr, (sums, acc): Sums<'_>) -> Result {
        let Layer { width, skip, epilogue: Epilogue { outputs, .. }, .. } = &self.mlp.layers[l];
        let epilogue = self.epilogue(k, l, layer)?;
        let kept = usize::from(l + 1 < self.mlp.layers.len());
        if kept > 0 {
            // All of the block have used the layer's input.
            k.spec(Kind::Sync, (), (), self.block)?;
        }
        let padded = self.mlp.padded(l) > *width;
        sums.each_run(k, (acc, 1), &epilogue, &Place::first(), |k, values, local| {
            // `local` counts rows from the block's first.
            let row = self.m.clone() * self.mlp.rows + &local.row;
            let (column, n, mut held) = (local.column.clone(), local.n, local.held.clone());
            if *skip {
                let from = self.run_of_near(k, local)?;
                held.push(Some(load(k, from, true)?));
            }
            let run = Run { batch: None, row, column, n, held };
            let all: Vec<usize> = (0..outputs.len()).collect();
            let outs = epilogue.finished(k, values, &run, &all)?;
            for (result, &out) in outs[kept..].iter().enumerate() {
                epilogue.put(k, result, out, &run)?;
            }
            if kept == 0 {
                return Ok(());
            }
            if padded {
                each(k, run.n, |k, i| {
                    let column = run.column.clone() * run.n + &i;
                    let beyond = Cond::new(column, Relation::AtLeast, *width);
                    k.if_(beyond, |k| k.init(Operand::at(outs[0], [i]), 0.0))
                })?;
            }
            let to = self.run_of_near(k, local)?;
            store(k, to, outs[0], true)
        })
    }

    /// A run of the rows in shared memory.
    fn run_of_near(&self, k: &mut Builder, local: &Run) -> Result<TensorId> {
        neighbours(k, self.near, [&local.row, &local.column].map(Expr::clone), local.n, "run")
    }
}
