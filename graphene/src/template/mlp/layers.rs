//! What a block does with each layer: weights come in stages, the result takes its input's place.

use super::{Context, Layer, rows_of};
use crate::schedule::{Ahead, each, load, neighbours, store};
use crate::template::epilogue::{Attached, Epilogue, Run, Span};
use crate::template::matmul::{Place, tile_of};
use crate::template::stage::Movers;
use crate::template::tiled_mma::{By, Near, TiledMma};
use crate::{
    Builder, Cond, Error, Expr, Header, Kind, Operand, Relation, Result, TensorId, Tiler, Var,
};

impl Context<'_> {
    /// One layer after the other.
    pub(super) fn layers(&self, k: &mut Builder) -> Result {
        let mlp = self.mlp;
        let ahead = Ahead::new(k, mlp.stages, self.block)?;
        for step in 0..mlp.stages - 1 {
            ahead
                .fetch(k, |k, stage| self.fetch(k, 0, step..step + 1, &Expr::from(step), stage))?;
        }
        for (l, layer) in mlp.layers.iter().enumerate() {
            let (sides, warps) = (mlp.sides(l), mlp.warps);
            let sums = By::of(sides, warps, mlp.tf32).share(k, self.block, sides, warps)?;
            let sums = &*sums;
            let acc = sums.allocate(k)?;
            let [rows, whole, header] = self.layer(k, l, acc)?;
            k.decompose(whole, |k| {
                if layer.times > 1 {
                    return self.multiply(k, l, &ahead, sums, acc);
                }
                k.decompose(rows, |k| self.multiply(k, l, &ahead, sums, acc))?;
                k.decompose(header, |k| match l + 1 == mlp.layers.len() {
                    true => self.leave(k, l, sums, acc),
                    false => self.keep(k, l, &Expr::from(0), sums, acc),
                })
            })?;
        }
        Ok(())
    }

    /// Adds a layer's matmuls to its sums; of a layer that is there several times, its results become the next one's input.
    fn multiply(
        &self,
        k: &mut Builder,
        l: usize,
        ahead: &Ahead,
        sums: &dyn TiledMma,
        acc: TensorId,
    ) -> Result {
        let (mlp, times) = (self.mlp, self.mlp.layers[l].times);
        sums.reset(k, acc)?;
        let per_layer = Expr::from(mlp.steps(l));
        let steps = mlp.steps(l) * times;
        let later = mlp.stages - 1..steps + mlp.stages - 1;
        ahead.each(
            k,
            &Expr::from(steps),
            |k, step, stage| self.fetch(k, l, later, step, stage),
            |k, step, stage| {
                let step = Expr::from(step);
                let stages = self.stages_of(l)?;
                let stage = k.index(stages, "b", [stage])?;
                let of_layer = step.rem(&per_layer);
                let skipped = of_layer.clone() * (mlp.depth / 16);
                let part = [Tiler::Whole, Tiler::Size(mlp.depth)];
                let part = tile_of(k, self.near, "rows_part", &part, [&0.into(), &of_layer])?;
                k.decompose(Header::new(Kind::MATMUL_ADD, acc, [part, stage], self.block), |k| {
                    let near = Near { c: acc, a: self.near, b: stage, threads: self.block };
                    sums.multiply(k, near, &skipped)
                })?;
                if times == 1 {
                    return Ok(());
                }
                k.if_(Cond::equal(of_layer, per_layer.clone() - 1), |k| {
                    self.keep(k, l, &step.div(&per_layer), sums, acc)?;
                    sums.reset(k, acc)
                })
            },
        )
    }

    /// The block's rows of a tensor in global memory.
    fn rows(&self, k: &mut Builder, of: TensorId, name: &str) -> Result<TensorId> {
        rows_of(k, of, name, (self.mlp.rows, &self.origin.div(self.mlp.rows)))
    }

    /// What a layer computes: its sums, all of it, and what becomes of the sums.
    fn layer(&self, k: &mut Builder, l: usize, acc: TensorId) -> Result<[Header; 3]> {
        let (mlp, given) = (self.mlp, &self.given[l]);
        let wide = |k: &mut Builder, width: i64| {
            let whole = [Tiler::Whole, Tiler::Size(width)];
            tile_of(k, self.near, "sY_layer", &whole, [&0.into(), &0.into()])
        };
        let from = wide(k, mlp.input(l))?;
        let last = l + 1 == mlp.layers.len();
        let mut outs = if last { Vec::new() } else { vec![wide(k, mlp.layers[l].width)?] };
        for &of in &given.results {
            outs.push(self.rows(k, of, "Y_layer")?);
        }
        let mut met = Vec::new();
        for &(span, of) in &given.operands {
            met.push(if span == Span::Row { of } else { self.rows(k, of, "R_layer")? });
        }
        let ins = [&[from, given.weights], &met[..]].concat();
        let after = [&[acc], &met[..]].concat();
        let skipped = mlp.layers[l].skip.then_some(from);
        let after: Vec<TensorId> = after.into_iter().chain(skipped).collect();
        let [sums, whole, left] = mlp.kinds(l);
        Ok([
            Header::new(sums, acc, [from, given.weights], self.block),
            Header::new(whole, outs.clone(), ins, self.block),
            Header::new(left, outs, after, self.block),
        ])
    }

    fn stages_of(&self, l: usize) -> Result<TensorId> {
        let stages = self.shared[usize::from(self.mlp.layers[l].transposed)];
        stages.ok_or_else(|| Error::Kernel("a layer without stages".to_owned()))
    }

    /// Brings the weights of a step, counted from a layer's first, that is one of `range`: this layer's
    /// or a later one's, or none past the end.
    fn fetch(
        &self,
        k: &mut Builder,
        first: usize,
        range: std::ops::Range<i64>,
        step: &Expr,
        stage: &Var,
    ) -> Result {
        let mlp = self.mlp;
        let mut begin = 0;
        for l in first..mlp.layers.len() {
            let per_layer = mlp.steps(l);
            let end = begin + per_layer * mlp.layers[l].times;
            if begin < range.end && end > range.start {
                let mut conds = Vec::new();
                if end < range.end {
                    conds.push(Cond::less(step, end));
                }
                if begin > range.start {
                    conds.push(Cond::new(step, Relation::AtLeast, begin));
                }
                let own = (step.clone() - begin).max(0);
                let bring = |k: &mut Builder| {
                    let side = mlp.sides(l)[1];
                    let per_layer = Expr::from(per_layer);
                    let at = [own.div(&per_layer), own.rem(&per_layer), Expr::from(0)];
                    let from = k.index(self.given[l].tiles, "tile", at)?;
                    let to = k.index(self.stages_of(l)?, "stage", [stage])?;
                    let width = if side.transposed { mlp.layers[l].width } else { mlp.input(l) };
                    let (threads, edges) = (32 * mlp.warps, mlp.edges(width));
                    let Context { block, thread, .. } = self;
                    let movers = Movers { threads, block: *block, thread, edges };
                    side.fill(k, from, to, movers)
                };
                if conds.is_empty() { bring(k)? } else { k.if_(conds, bring)? }
            }
            begin = end;
        }
        Ok(())
    }

    /// What a layer does with its sums.
    fn epilogue(&self, k: &mut Builder, l: usize, layer: &Expr) -> Result<Attached> {
        let Layer { width, epilogue, .. } = &self.mlp.layers[l];
        let (mut operands, results) =
            (self.given[l].operands.clone(), self.given[l].results.clone());
        for (_, of) in operands.iter_mut().filter(|operand| operand.0 == Span::Row) {
            let row = tile_of(k, *of, "row", &[Tiler::Size(1), Tiler::Whole], [layer, &0.into()])?;
            *of = k.reshape(row, "row", 0, &[&[(*width, 1)]])?;
        }
        Ok(Attached::new(epilogue, operands, results, self.mlp.edges(*width)))
    }

    /// A run's sums and what they meet, as results, and the run in global memory; `local` counts rows from the block's first.
    fn finished(
        &self,
        k: &mut Builder,
        l: usize,
        sums: TensorId,
        epilogue: &Attached,
        local: &Run,
    ) -> Result<(Vec<TensorId>, Run)> {
        let Layer { skip, epilogue: Epilogue { outputs, .. }, .. } = &self.mlp.layers[l];
        let (row, column) = (self.origin.clone() + &local.row, local.column.clone());
        let (n, mut held) = (local.n, local.held.clone());
        if *skip {
            let from = self.run_of_near(k, local)?;
            held.push(Some(load(k, from, true)?));
        }
        let run = Run { batch: None, row, column, n, held };
        let outs = epilogue.finished(k, sums, &run, &(0..outputs.len()).collect::<Vec<_>>())?;
        Ok((outs, run))
    }

    /// The layer's result takes the place of its input; further results go.
    fn keep(
        &self,
        k: &mut Builder,
        l: usize,
        layer: &Expr,
        sums: &dyn TiledMma,
        acc: TensorId,
    ) -> Result {
        let epilogue = self.epilogue(k, l, layer)?;
        // All of the block have used the layer's input.
        k.spec(Kind::Sync, (), (), self.block)?;
        let width = self.mlp.layers[l].width;
        let padded = self.mlp.padded(l) > width;
        sums.each_run(k, (acc, 1), &epilogue, &Place::first(), |k, values, local| {
            let (outs, run) = self.finished(k, l, values, &epilogue, local)?;
            for (result, &out) in outs[1..].iter().enumerate() {
                epilogue.put(k, result, out, &run)?;
            }
            if padded {
                each(k, run.n, |k, i| {
                    let column = run.column.clone() * run.n + &i;
                    k.if_(Cond::new(column, Relation::AtLeast, width), |k| {
                        let value = Operand::at(outs[0], [&i]);
                        k.init(value, 0.0)
                    })
                })?;
            }
            let to = self.run_of_near(k, local)?;
            store(k, to, outs[0], true)
        })
    }

    /// The last layer's results go.
    fn leave(&self, k: &mut Builder, l: usize, sums: &dyn TiledMma, acc: TensorId) -> Result {
        let epilogue = self.epilogue(k, l, &Expr::from(0))?;
        sums.each_run(k, (acc, 1), &epilogue, &Place::first(), |k, values, local| {
            let (outs, run) = self.finished(k, l, values, &epilogue, local)?;
            let mut outs = outs.into_iter().enumerate();
            outs.try_for_each(|(result, out)| epilogue.put(k, result, out, &run))
        })
    }

    /// A run of the rows in shared memory.
    fn run_of_near(&self, k: &mut Builder, local: &Run) -> Result<TensorId> {
        neighbours(k, self.near, [&local.row, &local.column].map(Expr::clone), local.n, "run")
    }
}
