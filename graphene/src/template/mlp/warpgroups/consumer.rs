//! What consumers do: each layer's matmuls by one or two parts of its columns, and what becomes of their sums.

use super::{Near, PANEL, PRODUCER_REGISTERS, Shared, parts};
use crate::schedule::{PipelineState, load, widen};
use crate::template::epilogue::{Attached, Run, Span};
use crate::template::fragments::{
    Lane, Matrices, ROWS, await_tma, clear, consumer_registers, elected_warps, fragment, own_group,
};
use crate::template::matmul::{Edges, tile_of};
use crate::template::mlp::rows_of;
use crate::{
    Builder, Expr, Fence, Group, Header, Kind, Operand, Result, Scalar, TensorId, ThreadsId, Tiler,
};
use std::collections::btree_map::{BTreeMap, Entry};
use std::ops::Range;

/// Columns of a layer that one thread has: sums, and activations as the next layer's left operand.
#[derive(Clone, Copy)]
pub(super) struct Part {
    pub(super) sums: TensorId,
    pub(super) rows: TensorId,
    /// The first of its panels, and how many they are.
    pub(super) first: i64,
    pub(super) panels: i64,
}

pub(super) struct Consumer<'a> {
    pub(super) shared: &'a Shared<'a>,
    pub(super) near: &'a Near,
    pub(super) own: ThreadsId,
    pub(super) group: Expr,
    /// Which 64 of all rows are its own.
    pub(super) m: Expr,
    pub(super) lane: Lane,
    pub(super) matrices: Matrices,
    elected_warps: ThreadsId,
    /// Stages that are used, and that are released.
    using: PipelineState,
    leaving: PipelineState,
}

/// A part of a layer that is still to be made of its sums.
struct Pending {
    layer: usize,
    /// Which of the layers that are alike.
    time: Expr,
    part: Part,
    /// Stages that are released when its sums are there.
    stages: i64,
}

/// Layers that are alike of a loop's body: compilers see no matmul through that is in flight where a loop begins again, and
/// let all of them wait for each other.
const TOGETHER: i64 = 3;

/// Eights of columns in a panel.
pub(super) const EIGHTS: i64 = PANEL / 8;

impl Shared<'_> {
    pub(super) fn consume(&self, k: &mut Builder, near: &Near) -> Result {
        let consumer = Consumer::new(k, self, near)?;
        let own = consumer.own;
        let mut columns = BTreeMap::new();
        for width in self.mlp.layers.iter().map(|layer| layer.width).chain([self.mlp.width]) {
            if let Entry::Vacant(own) = columns.entry(width) {
                own.insert(consumer.columns(k, width)?);
            }
        }
        let given = (self.x, &self.given[..]);
        let rows = |of, name: &str| rows_of(k, of, name, (ROWS, &consumer.m));
        let tile = self.mlp.header(given, own, rows)?;
        let copied = near.rows.filter(|_| self.mlp.copies()[1]);
        k.decompose(tile, |k| {
            let last = consumer.layers(k, &columns)?;
            copied.map_or(Ok(()), |rows| consumer.leave(k, &columns[&last], rows))
        })?;
        copied.map_or(Ok(()), |_| await_tma(k, own, 0))
    }
}

pub(super) fn each_panel(parts: &[Part], mut body: impl FnMut(&Part, i64) -> Result) -> Result {
    parts.iter().try_for_each(|part| (0..part.panels).try_for_each(|panel| body(part, panel)))
}

impl<'a> Consumer<'a> {
    fn new(k: &mut Builder, shared: &'a Shared<'a>, near: &'a Near) -> Result<Consumer<'a>> {
        let (own, group) = own_group(k, shared.groups)?;
        let consumers = shared.by.consumers;
        let registers = consumer_registers(consumers, PRODUCER_REGISTERS);
        k.spec(Kind::Registers(registers), (), (), own)?;
        let lane = Lane::new(k, own)?;
        let matrices = Matrices::new(k, lane.warp)?;
        let elected_warps = elected_warps(k, shared.block, consumers)?;
        let using = near.pipeline.begin(k, "using")?;
        let leaving = near.pipeline.begin(k, "leaving")?;
        let m = shared.tile.clone() * consumers + &group;
        let group = group.into();
        Ok(Consumer { shared, near, own, group, m, lane, matrices, elected_warps, using, leaving })
    }

    /// Registers for so many columns. Sums are zeros at first: fences name them before anything sets them.
    fn columns(&self, k: &mut Builder, width: i64) -> Result<Vec<Part>> {
        let (mut all, mut first) = (Vec::new(), 0);
        for panels in parts(width) {
            let sums = fragment(k, "acc", panels * EIGHTS, Scalar::F32)?;
            clear(k, sums, panels * EIGHTS)?;
            let rows = fragment(k, "rows", panels * EIGHTS, self.shared.mlp.scalar)?;
            all.push(Part { sums, rows, first, panels });
            first += panels;
        }
        Ok(all)
    }

    /// All layers, one after the other; says how wide the last one is.
    fn layers(&self, k: &mut Builder, columns: &BTreeMap<i64, Vec<Part>>) -> Result<i64> {
        let mlp = self.shared.mlp;
        self.begin(k, &columns[&mlp.width])?;
        let (mut width, mut pending) = (mlp.width, None);
        for (l, layer) in mlp.layers.iter().enumerate() {
            let [from, to] = [width, layer.width].map(|width| &columns[&width][..]);
            pending = self.layer(k, (l, &Expr::from(0)), pending, [from, to])?;
            // What is left of those that are alike: some by a loop, the last few one by one.
            let together = if self.overlaps() { TOGETHER } else { 1 };
            let (rounds, left) = ((layer.times - 1) / together, (layer.times - 1) % together);
            let several = |k: &mut Builder, first: Expr, count: i64, pending| {
                let one = |pending, i| self.layer(k, (l, &(first.clone() + i)), pending, [to, to]);
                (0..count).try_fold(pending, one)
            };
            if rounds > 0 {
                self.drain(k, pending.take())?;
                k.for_("round", 0..rounds, 1, false, |k, round| {
                    let first = Expr::from(round) * together + 1;
                    let pending = several(k, first, together, None)?;
                    self.drain(k, pending)
                })?;
            }
            pending = several(k, Expr::from(rounds * together + 1), left, pending)?;
            width = layer.width;
        }
        self.drain(k, pending)?;
        Ok(width)
    }

    /// Makes what is pending; nothing is in flight then.
    fn drain(&self, k: &mut Builder, pending: Option<Pending>) -> Result {
        pending.map_or(Ok(()), |pending| self.finish(k, &pending, 0))
    }

    /// Columns of a panel in registers.
    pub(super) fn panel(&self, k: &mut Builder, of: TensorId, panel: i64) -> Result<TensorId> {
        let panels = [Tiler::Whole, Tiler::Size(EIGHTS)];
        tile_of(k, of, "panel", &panels, [&0.into(), &panel.into()])
    }

    /// A layer, while what is pending of the one before is made; what of it is pending then, which tensor cores still work on.
    fn layer(
        &self,
        k: &mut Builder,
        (layer, time): (usize, &Expr),
        before: Option<Pending>,
        [from, to]: [&[Part]; 2],
    ) -> Result<Option<Pending>> {
        let all: i64 = from.iter().map(|part| part.panels).sum();
        let early = if before.is_some() { from[0].panels } else { all };
        self.multiply(k, from, &to[0], 0..early)?;
        if let Some(before) = before {
            k.spec(Kind::Commit(Group::MatMul), (), (), self.own)?;
            self.finish(k, &before, 1)?;
            self.multiply(k, from, &to[0], early..all)?;
        }
        let of = |part: &Part, stages| Pending { layer, time: time.clone(), part: *part, stages };
        let [first, second] = to else {
            k.spec(Kind::Commit(Group::MatMul), (), (), self.own)?;
            return self.finish(k, &of(&to[0], all), 0).map(|()| None);
        };
        // The input's first part is used first: what the output's first part takes the place of.
        let early = if from.len() > 1 { from[0].panels } else { 0 };
        self.multiply(k, from, second, 0..early)?;
        let overlaps = self.overlaps();
        if overlaps {
            k.spec(Kind::Commit(Group::MatMul), (), (), self.own)?;
        }
        self.multiply(k, from, second, early..all)?;
        k.spec(Kind::Commit(Group::MatMul), (), (), self.own)?;
        if !overlaps {
            self.finish(k, &of(first, 2 * all), 0)?;
            return self.finish(k, &of(second, 0), 0).map(|()| None);
        }
        self.finish(k, &of(first, all + early), 1)?;
        Ok(Some(of(second, all - early)))
    }

    /// Whether one part's result is made beside matmuls of the other: compilers hold operands that a matmul in flight has
    /// read until none is, for which layers of more columns leave no registers. Another consumer multiplies then.
    fn overlaps(&self) -> bool {
        self.shared.mlp.widest() <= 2 * PANEL
    }

    /// Adds the matmuls of some panels of K to a part's sums.
    fn multiply(&self, k: &mut Builder, from: &[Part], to: &Part, along: Range<i64>) -> Result {
        let (near, own) = (self.near, self.own);
        for step in along {
            let stage = self.using.consumer_wait(k, own)?;
            let part = &from[usize::from(step >= from[0].panels)];
            let a = self.panel(k, part.rows, step - part.first)?;
            let stage = k.index(near.weights, "stage", [stage])?;
            let whole = [PANEL, to.panels * PANEL].map(Tiler::Size);
            let b = tile_of(k, stage, "b_panel", &whole, [&0.into(), &0.into()])?;
            let first = if step == 0 { Kind::MATMUL } else { Kind::MATMUL_ADD };
            k.decompose(Header::new(first.clone(), to.sums, [a, b], own), |k| {
                let a = k.tile(a, "a", &[Tiler::Whole, Tiler::Size(2)])?;
                let b = k.tile(b, "b", &[Tiler::Size(16), Tiler::Whole])?;
                k.spec(Kind::Fence(Fence::MatMul), to.sums, (), own)?;
                let matmul = |k: &mut Builder, kind: Kind, kk: Expr| {
                    let a = Operand::at(a, [0.into(), kk.clone()]);
                    let b = Operand::at(b, [kk, 0.into()]);
                    k.add(Header::new(kind, to.sums, [a, b], own).async_())
                };
                matmul(k, first, Expr::from(0))?;
                k.for_("kk", 1..PANEL / 16, 1, true, |k, kk| matmul(k, Kind::MATMUL_ADD, kk.into()))
            })?;
            k.advance(&self.using.ring)?;
        }
        Ok(())
    }

    /// Makes a part of a layer's result, when all matmuls but those of so many groups are done.
    fn finish(&self, k: &mut Builder, of: &Pending, groups: i64) -> Result {
        let (mlp, given) = (self.shared.mlp, &self.shared.given);
        let Pending { layer, ref time, part, stages } = *of;
        let last = layer + 1 == given.len();
        let result = given[layer].results.first().filter(|_| last && !mlp.copies()[1]);
        k.spec(Kind::WaitGroup(Group::MatMul, groups, false), part.sums, (), self.own)?;
        for _ in 0..stages {
            self.leaving.consumer_release(k, self.elected_warps)?;
        }
        each_panel(&[part], |part, panel| {
            let (sums, rows) = (self.panel(k, part.sums, panel)?, self.panel(k, part.rows, panel)?);
            let number = part.first + panel;
            let mut terms = Vec::new();
            for &of in &self.near.operands[layer] {
                let at = [time, &Expr::from(number)];
                let term = tile_of(k, of, "term", &[1, PANEL].map(Tiler::Size), at)?;
                terms.push(k.reshape(term, "term", 0, &[&[(PANEL, 1)]])?);
            }
            let skipped = mlp.layers[layer].skip.then_some(rows);
            let ins = [&[sums], &terms[..], skipped.as_slice()].concat();
            let [_, _, kind] = mlp.kinds(layer);
            let out = result.map_or(Ok(rows), |&result| self.rows_of(k, result, number))?;
            k.decompose(Header::new(kind, out, ins, self.own), |k| {
                self.epilogue(k, layer, (number, sums, rows), &terms, result)
            })
        })
    }

    /// What becomes of the own lane's sums of a panel: rows for the next layer, or what the result has there.
    fn epilogue(
        &self,
        k: &mut Builder,
        layer: usize,
        (panel, sums, rows): (i64, TensorId, TensorId),
        terms: &[TensorId],
        result: Option<&TensorId>,
    ) -> Result {
        let layer = &self.shared.mlp.layers[layer];
        let operands = terms.iter().map(|&term| (Span::Row, term)).collect();
        let results = result.into_iter().copied().collect();
        let attached = Attached::new(&layer.epilogue, operands, results, Edges::Bulk);
        k.unroll("j", EIGHTS, |k, j| {
            let mut held = Vec::new();
            for &term in terms {
                let pair = Expr::from(j) * 4 + &self.lane.column;
                let pair = tile_of(k, term, "pair", &[Tiler::Size(2)], [&pair])?;
                held.push(Some(load(k, pair, true)?));
            }
            for half in 0..2 {
                let at = [Expr::from(half), Expr::from(j)];
                let mut held = held.clone();
                if layer.skip {
                    let raw = k.index(rows, "raw", at.clone())?;
                    let raw = k.reshape(raw, "raw", 0, &[&[(2, 1)]])?;
                    held.push(Some(widen(k, raw)?));
                }
                let own = k.index(sums, "pair", at.clone())?;
                let run = Run { held, ..self.run(panel, j, half) };
                let outs = attached.finished(k, own, &run, &[0])?;
                match result {
                    Some(_) => attached.put(k, 0, outs[0], &run)?,
                    None => k.move_(Operand::at(rows, at), outs[0])?,
                }
            }
            Ok(())
        })
    }
}
