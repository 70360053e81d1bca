//! The tensors and symbols of a layer's kernel.

use super::Recurrent;
use super::steps::Context;
use crate::build::{Builder, Header};
use crate::error::Result;
use crate::index::Expr;
use crate::kernel::{Binary, Fused, Kind, TensorId};
use crate::layout::{Layout, Tiler};
use crate::template::matmul::tile_of;
use crate::tensor::Scalar;

/// The symbols.
pub(super) struct Sizes {
    pub(super) steps: Expr,
    pub(super) batch: Expr,
    pub(super) parts: Expr,
}

/// The kernel's tensors.
pub(super) struct Tensors {
    pub(super) x: TensorId,
    /// W and R.
    pub(super) weights: [TensorId; 2],
    pub(super) bias: Option<TensorId>,
    pub(super) first_h: Option<TensorId>,
    pub(super) first_c: Option<TensorId>,
    pub(super) constants: Option<TensorId>,
    pub(super) lengths: Option<TensorId>,
    pub(super) counter: Option<TensorId>,
    /// What is read in place of h, the second time in a step.
    pub(super) reset: Option<TensorId>,
    /// h of all steps, or of the last two in turn.
    pub(super) y: TensorId,
    /// What ragged sequences give in all steps.
    pub(super) given: Option<TensorId>,
    pub(super) last_h: Option<TensorId>,
    pub(super) last_c: Option<TensorId>,
}

impl Recurrent {
    /// Declares the kernel's tensors.
    pub(super) fn declare(&self, k: &mut Builder, sizes: &Sizes) -> Result<Tensors> {
        let Recurrent { scalar, rows, .. } = *self;
        let (steps, batch) = (&sizes.steps, &sizes.batch);
        let directions = Expr::from(self.directions());
        let [inputs, hidden, gates] = [self.inputs, self.hidden, self.cell.gates].map(Expr::from);
        let x = k.param("X", Layout::rows([steps, batch, &inputs]), scalar)?;
        let weights = |k: &mut Builder, name: &str, depth: &Expr| {
            k.param(name, Layout::rows([&directions, &gates, &hidden, depth]), scalar)
        };
        let weights = [weights(k, "W", &inputs)?, weights(k, "R", &hidden)?];
        let of_bias = Layout::rows([&directions, &Expr::from(2), &gates, &hidden]);
        let bias = self.bias.then(|| k.param("bias", of_bias, scalar)).transpose()?;
        let state = |k: &mut Builder, name: &str, wanted: bool| {
            let view = Layout::rows([&directions, batch, &hidden]);
            wanted.then(|| k.param(name, view, scalar)).transpose()
        };
        let first_h = state(k, "h0", self.initial[0])?;
        let first_c = state(k, "c0", self.initial[1])?;
        let count = self.cell.constants as i64;
        let of_units = Layout::rows([&directions, &Expr::from(count), &hidden]);
        let constants = (count > 0).then(|| k.param("P", of_units, scalar)).transpose()?;
        let lengths = Layout::rows([batch]);
        let lengths = self.ragged.then(|| k.param("lengths", lengths, Scalar::I32)).transpose()?;
        let tiles = batch.ceil_div(&Expr::from(rows));
        let alone = self.members().is(1);
        let counters = Layout::rows([&directions, &tiles]);
        let counter = (!alone).then(|| k.scratch("counter", counters, Scalar::U32)).transpose()?;
        let of_state = Layout::rows([&directions, batch, &hidden]);
        let reset = self.cell.reset.as_ref();
        let reset = reset.map(|_| k.scratch("reset", of_state, scalar)).transpose()?;
        let all = |steps: &Expr| Layout::rows([steps, &directions, batch, &hidden]);
        let alternates = self.ragged || !self.results[0];
        let name = if self.ragged { "h" } else { "Y" };
        let y = match alternates {
            true => k.scratch(name, all(&Expr::from(2)), scalar)?,
            false => k.param(name, all(steps), scalar)?,
        };
        let given = self.ragged && self.results[0];
        let given = given.then(|| k.param("Y", all(steps), scalar)).transpose()?;
        let last_h = state(k, "Y_h", self.results[1])?;
        let last_c = state(k, "Y_c", self.results[2])?;
        Ok(Tensors {
            x,
            weights,
            bias,
            first_h,
            first_c,
            constants,
            lengths,
            counter,
            reset,
            y,
            given,
            last_h,
            last_c,
        })
    }
}

impl Tensors {
    pub(super) fn ins(&self) -> impl Iterator<Item = TensorId> {
        let optional = [self.bias, self.first_h, self.first_c, self.constants, self.lengths]
            .into_iter()
            .flatten();
        [self.x].into_iter().chain(self.weights).chain(optional)
    }

    /// The results of a layer, of which h of all steps may be one.
    pub(super) fn outs(&self, every: bool) -> impl Iterator<Item = TensorId> {
        let every = if every { Some(self.given.unwrap_or(self.y)) } else { None };
        [every, self.last_h, self.last_c].into_iter().flatten()
    }
}

/// Operands as they are added, and expressions of them.
#[derive(Default)]
struct Ins(Vec<TensorId>);

impl Ins {
    fn add(&mut self, tensor: TensorId) -> Fused {
        self.0.push(tensor);
        Fused::input(self.0.len() - 1)
    }
}

/// A step, the element `now` of the sequence: the element `to` of h, of the one `before`.
pub(super) fn step(
    context: &Context<'_>,
    k: &mut Builder,
    [step, now, to, before]: [&Expr; 4],
    tile: &Expr,
) -> Result<Header> {
    let (cell, tensors) = (&context.layer.cell, &context.tensors);
    let (one, rows) = (Tiler::Size(1), Tiler::Size(context.layer.rows));
    let (zero, direction) = (Expr::from(0), &context.direction);
    // `[rows, …]` of the tile, and all of the direction.
    let of_step = |k: &mut Builder, of, at| {
        let tiles = [one.clone(), one.clone(), rows.clone(), Tiler::Whole];
        tile_of(k, of, "h_step", &tiles, [at, direction, tile, &zero])
    };
    let of_tile = |k: &mut Builder, of, first| {
        let tiles = [one.clone(), rows.clone(), Tiler::Whole];
        tile_of(k, of, "of_rows", &tiles, [first, tile, &zero])
    };
    let of_units = |k: &mut Builder, of: TensorId| {
        let mut tiles = vec![Tiler::Whole; k.tensor_of(of)?.view.axes().len()];
        let mut at = vec![&zero; tiles.len()];
        (tiles[0], at[0]) = (one.clone(), direction);
        tile_of(k, of, "of_direction", &tiles, at)
    };
    let mut ins = Ins::default();
    let matrix = |x: Fused, dims: [usize; 2]| x.dims(dims.map(Some));
    let x = matrix(ins.add(of_tile(k, tensors.x, now)?), [1, 2]);
    let last = matrix(ins.add(of_step(k, tensors.y, before)?), [2, 3]);
    let mut weights = Vec::new();
    for of in tensors.weights {
        weights.push(ins.add(of_units(k, of)?));
    }
    let bias = tensors.bias.map(|of| Ok(ins.add(of_units(k, of)?))).transpose()?;
    let first = match tensors.first_h {
        Some(of) => matrix(ins.add(of_tile(k, of, direction)?), [1, 2]),
        None => Fused::number(0.0),
    };
    let last = Fused::index(step.clone()).select(last, first);
    let constants = match tensors.constants {
        Some(of) => Some(ins.add(of_units(k, of)?)),
        None => None,
    };
    let length = match tensors.lengths {
        Some(of) => Some(ins.add(tile_of(k, of, "of_rows", std::slice::from_ref(&rows), [tile])?)),
        None => None,
    };
    let own = context.own.map(|own| ins.add(own));
    let held = context.ragged.as_ref().and_then(|ragged| ragged.held).map(|held| ins.add(held));
    // The sum of a gate's matmuls, of the input (0) and of h (1).
    let part = |side: usize, gate: i64, rows: &Fused| {
        let weights = matrix(weights[side].clone().slice(1, gate, 1), [3, 2]);
        let sum = rows.clone().matmul(weights);
        match &bias {
            Some(bias) => {
                let bias = bias.clone().slice(1, side as i64, 1).slice(2, gate, 1);
                sum.binary(Binary::Add, bias.dims([Some(3)]))
            }
            None => sum,
        }
    };
    let sum = |gates: &[Option<i64>; 2], last: &Fused| {
        let sides = gates.iter().zip([&x, last]).enumerate();
        let parts = sides.filter_map(|(side, (gate, rows))| Some(part(side, (*gate)?, rows)));
        parts.reduce(|all, part| all.binary(Binary::Add, part)).unwrap_or(Fused::number(0.0))
    };
    let mut given: Vec<Fused> = cell.sums.iter().map(|gates| sum(gates, &last)).collect();
    given.extend(own.clone());
    if let (Some(reset), Some(gates)) = (&cell.reset, cell.sums.last()) {
        let reset = Fused::of(reset, &given);
        given[cell.sums.len() - 1] = sum(gates, &reset.output(0));
        given.push(reset.output(1));
    }
    if let Some(constants) = constants {
        let of = |number| constants.clone().slice(1, number, 1).dims([Some(2)]);
        given.extend((0..cell.constants as i64).map(of));
    }
    let next = Fused::of(&cell.function, &given);
    // Of a sequence that has ended nothing is given, and states stay.
    let goes_on = length
        .map(|length| Fused::index(now.clone()).binary(Binary::Less, length.dims([Some(0), None])));
    let stays = |next: Fused, old: Fused| match &goes_on {
        Some(goes_on) => goes_on.clone().select(next, old),
        None => next,
    };
    let mut h = next.output(0);
    let every = tensors.given.map(|of| (of, stays(h.clone(), Fused::number(0.0))));
    h = match held.clone().or(own.clone().filter(|_| goes_on.is_some())) {
        Some(state) => stays(h, state),
        None => h,
    };
    let mut outs = vec![(of_step(k, tensors.y, to)?, h.clone())];
    if let Some((of, every)) = every {
        outs.push((of_step(k, of, now)?, every));
    }
    if let Some(of) = tensors.last_h {
        let left = Fused::index((context.steps.clone() - 1 - step).max(zero.clone()));
        let kept = left.select(Fused::old(outs.len()), h.clone());
        outs.push((of_tile(k, of, direction)?, kept));
    }
    if let (Some(tensor), Some(own)) = (context.own, own) {
        outs.push((tensor, stays(next.output(1), own)));
    }
    if let Some(tensor) = context.ragged.as_ref().and_then(|ragged| ragged.held) {
        outs.push((tensor, h));
    }
    let (outs, results): (Vec<TensorId>, Vec<Fused>) = outs.into_iter().unzip();
    let kind = Kind::Fused(Fused::all(results));
    Ok(Header::new(kind, outs, ins.0, context.block).on(context.members))
}
