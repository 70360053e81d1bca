//! What a layer's kernel and its steps compute of its tensors.

use super::{Context, Direction, Own, Recurrent, Tensors, operands::Ins};
use crate::{
    Binary, Builder, Expr, Fused, Header, Kind, Number, Operand, Result, TensorId, Tiler, Window,
};

/// What a dimension is of, and so which part of it belongs to a tile.
pub(super) enum Dim<'e> {
    Directions,
    Rows,
    /// All of it belongs to every tile.
    All,
    /// One element does.
    At(&'e Expr),
}

/// A layer's operands in expressions: those of the whole batch, or of a tile of its rows and one direction.
#[derive(Clone)]
struct Given<'a> {
    layer: &'a Recurrent,
    x: Fused,
    weights: [Fused; 2],
    bias: Option<Fused>,
    /// h and c to begin with.
    first: [Option<Fused>; 2],
    constants: Option<Fused>,
    lengths: Option<Fused>,
    /// Which directions run back, where there are two: `[direction, 1, 1]`.
    back: Fused,
}

/// The first element along these dimensions.
fn only(x: Fused, along: &[usize]) -> Fused {
    along.iter().fold(x, |x, &dim| x.slice(dim, 0, 1))
}

/// `[direction, row, unit]`, which come after so many other dimensions.
fn units(x: Fused, before: usize) -> Fused {
    x.dims((before..before + 3).map(Some).collect::<Vec<_>>())
}

impl<'a> Given<'a> {
    fn new(
        layer: &'a Recurrent,
        tensors: &Tensors,
        mut of: impl FnMut(TensorId, &[Dim<'_>]) -> Result<Fused>,
    ) -> Result<Given<'a>> {
        use Dim::{All, Directions, Rows};
        let x = of(tensors.x, &[All, Rows, All])?;
        let [w, r] = tensors.weights.map(|weights| of(weights, &[Directions, All, All, All]));
        let mut maybe = |tensor: Option<TensorId>, dims: &[Dim<'_>]| {
            tensor.map(|tensor| of(tensor, dims)).transpose()
        };
        let bias = maybe(tensors.bias, &[Directions, All, All, All])?;
        let first_h = maybe(tensors.first_h, &[Directions, Rows, All])?;
        let first_c = maybe(tensors.first_c, &[Directions, Rows, All])?;
        let constants = maybe(tensors.constants, &[Directions, All, All])?;
        let lengths = maybe(tensors.lengths, &[Rows])?;
        let (weights, first) = ([w?, r?], [first_h, first_c]);
        let back = only(weights[0].clone(), &[1, 2, 3]).dims([Some(0), None, None]).position(0);
        Ok(Given { layer, x, weights, bias, first, constants, lengths, back })
    }

    /// h to begin with, and an LSTM's c: without, zeros.
    fn first(&self, which: usize) -> Fused {
        let rows = only(self.x.clone(), &[0, 2]).dims([Some(1), None]);
        let like = only(self.weights[0].clone(), &[1, 3]).dims([Some(0), None, Some(2)]);
        let zeros = Fused::constant(0.0).select(rows + like, 0.0);
        self.first[which].clone().unwrap_or(zeros)
    }

    /// The same for an expression of further inputs, and which those are.
    fn inner(&self, count: usize) -> (Given<'a>, Vec<Fused>) {
        let (mut inner, mut all) = (self.clone(), Vec::new());
        let parts = [&mut inner.x, &mut inner.back].into_iter().chain(&mut inner.weights);
        let more = [&mut inner.bias, &mut inner.constants, &mut inner.lengths];
        for part in parts.chain(more.into_iter().flatten()) {
            all.push(std::mem::replace(part, Fused::input(count + all.len())));
        }
        (inner, all)
    }

    /// What holds in each direction, of what does forwards and backwards.
    fn directed(&self, forward: Fused, reverse: Fused) -> Fused {
        match self.layer.direction {
            Direction::Forward => forward,
            Direction::Reverse => reverse,
            Direction::Both => self.back.clone().select(reverse, forward),
        }
    }

    /// h before it is rounded, and an LSTM's c, after the step that is the element `now`: of rows of the input, of h as the
    /// step before left it, and of what those two were. Of a sequence that has ended by then they stay.
    fn next(&self, now: &Fused, [x, h]: [&Fused; 2], old: &[Option<Fused>]) -> Fused {
        // The sum of a gate's matmuls, of the input (0) and of h (1).
        let part = |side: usize, gate: i64, rows: &Fused| {
            let weights = self.weights[side].clone().slice(1, gate, 1);
            let sum = rows.clone().matmul(weights.dims([0, 3, 2].map(Some)));
            let Some(bias) = &self.bias else { return sum };
            let bias = bias.clone().slice(1, side as i64, 1).slice(2, gate, 1);
            sum + bias.dims([Some(0), None, Some(3)])
        };
        let sum = |gates: &[Option<i64>; 2], h: &Fused| {
            let sides = gates.iter().zip([x, h]).enumerate();
            let parts = sides.filter_map(|(side, (gate, rows))| Some(part(side, (*gate)?, rows)));
            parts.reduce(|all, part| all + part).unwrap_or(0.0.into())
        };
        let cell = &self.layer.cell;
        let mut ins: Vec<Fused> = cell.sums.iter().map(|gates| sum(gates, h)).collect();
        ins.extend(match cell.own {
            Own::Nothing => None,
            Own::Hidden => old[0].clone(),
            Own::Cell => old[1].clone(),
        });
        if let (Some(reset), Some(gates)) = (&cell.reset, cell.sums.last()) {
            let reset = Fused::of(reset, &ins);
            ins[cell.sums.len() - 1] = sum(gates, &reset.output(0));
            ins.push(reset.output(1));
        }
        if let Some(constants) = &self.constants {
            let of = |number| constants.clone().slice(1, number, 1);
            ins.extend((0..cell.constants as i64).map(of));
        }
        let next = Fused::of(&cell.function, &ins);
        Fused::all((0..self.states()).map(|state| match &old[state] {
            Some(old) => self.while_going(now, next.output(state), old.clone()),
            None => next.output(state),
        }))
    }

    /// The first where sequences have the element `now`, else the second.
    fn while_going(&self, now: &Fused, next: Fused, ended: impl Into<Fused>) -> Fused {
        let Some(lengths) = self.lengths.clone() else { return next };
        let lengths = lengths.dims([Some(0), None]);
        now.clone().binary(Binary::Less, lengths).select(next, ended)
    }

    /// h, and an LSTM's c.
    fn states(&self) -> usize {
        if self.layer.cell.own == Own::Cell { 2 } else { 1 }
    }

    /// h before it is rounded, or an LSTM's c, of states of so many steps or of one.
    fn state(&self, of: &Fused, which: usize, before: usize) -> Fused {
        if self.states() == 1 {
            return of.clone();
        }
        let dims = (0..before).chain(before + 1..before + 4).map(Some);
        of.clone().slice(before, which as i64, 1).dims(dims.collect::<Vec<_>>())
    }

    /// The states that so many of all steps make: `[count + 1, direction, row, unit]`, of an LSTM `[count + 1, 2, …]`.
    fn trace(&self, steps: &Expr, count: &Expr) -> Fused {
        let pack = |all: Fused, like: &Fused| match self.states() {
            1 => all,
            _ => like.clone().position(0).select(all.output(1), all.output(0)),
        };
        // h twice has the shape of both states.
        let twice = |h: Fused| {
            let (count, size, fill) = (Expr::from(2), 1, Number(0.0));
            let window = Window { count, size, stride: 0, dilation: 0, before: 0, fill };
            let one = h.dims([None, Some(0), Some(1), Some(2)]).window(0, window);
            one.dims([0, 1, 2, 3].map(Some))
        };
        let first = Fused::all((0..self.states()).map(|which| self.first(which)));
        let first = pack(first.clone(), &twice(first.output(0)));
        let (inner, all) = self.inner(2);
        let old = [0, 1].map(|which| self.state(&Fused::input(0), which, 0));
        let h = old[0].clone().rounded(self.layer.scalar);
        let step = Fused::input(1).dims([None; 3]);
        let last = Fused::index((steps.clone() - 1).max(0));
        let now = inner.directed(step.clone(), last - step);
        let x = inner.x.clone().gather(now.clone()).dims([0, 3, 4].map(Some));
        let next = inner.next(&now, [&x, &h], &old.map(Some));
        first.steps_of(count.clone(), pack(next, &Fused::input(0)), &all)
    }
}

/// What the kernel computes, and of what.
pub(super) fn whole(
    layer: &Recurrent,
    tensors: &Tensors,
    steps: &Expr,
) -> Result<(Kind, Vec<Operand>)> {
    let mut ins = Ins::default();
    let given = Given::new(layer, tensors, |tensor, _| Ok(ins.add(tensor)))?;
    let trace = given.trace(steps, steps);
    let all = given.state(&trace, 0, 1);
    let last = |which| units(given.state(&trace, which, 1).slice(0, steps.clone(), 1), 1);
    let times = only(given.x.clone(), &[1, 2]).position(0);
    let from = Fused::index(steps.clone()) - times.clone().dims([Some(0)]);
    let every = given.directed(all.clone().slice(0, 1, steps.clone()), all.gather(from));
    let every = given.while_going(&times.dims([Some(0), None, None, None]), every, 0.0);
    let results = [every, last(0), last(given.states() - 1)].into_iter().zip(layer.results);
    let fused = Fused::all(results.filter(|row| row.1).map(|row| row.0));
    Ok(ins.of(fused))
}

pub(super) struct Steps<'a> {
    context: &'a Context<'a>,
    /// What they are of, all of its steps of the input.
    ins: Ins,
    given: Given<'a>,
    /// h, by the element, the direction and the tile.
    h: TensorId,
}

impl<'a> Steps<'a> {
    pub(super) fn new(context: &'a Context<'a>, k: &mut Builder) -> Result<Steps<'a>> {
        let mut ins = Ins::default();
        let given = Given::new(context.layer, &context.tensors, |of, dims| {
            Ok(ins.add(context.part(k, of, dims)?))
        })?;
        let back = Fused::index(context.direction.clone()).dims([None; 3]);
        let one = || Tiler::Size(1);
        let tiles = [one(), one(), Tiler::Size(context.layer.rows), Tiler::Whole];
        let h = k.tile(context.tensors.y, "h_tiles", &tiles)?;
        Ok(Steps { context, ins, given: Given { back, ..given }, h })
    }

    /// What holds before a step, and after all of them: h, of the element `before`, and what threads keep.
    pub(super) fn carried(&self, step: &Expr, before: &Expr) -> (Option<Fused>, Header) {
        let Context { layer, steps, direction, tile, .. } = self.context;
        let trace = self.given.trace(steps, step);
        let of = |which| units(self.given.state(&trace, which, 1).slice(0, step.clone(), 1), 1);
        // h has not been written before the first step.
        let there = |h: Fused| Fused::index(step.clone()).select(h, 0.0);
        let h = of(0).rounded(layer.scalar);
        let h_of_tile = Operand::at(self.h, [before, direction, tile, &0.into()]);
        let mut states = vec![(h_of_tile, there(h))];
        states.extend(self.context.states().map(|(which, tensor)| (tensor.into(), of(which))));
        let kept = (1..states.len()).map(Fused::input);
        let form = Fused::all([there(Fused::input(0))].into_iter().chain(kept));
        (Some(form), self.header(states, &self.ins))
    }

    fn header(&self, outs: Vec<(Operand, Fused)>, ins: &Ins) -> Header {
        let (outs, results): (Vec<Operand>, Vec<Fused>) = outs.into_iter().unzip();
        let (kind, ins) = ins.of(Fused::all(results));
        Header::new(kind, outs, ins, self.context.block).on(self.context.members)
    }

    /// A step, the element `now` of the sequence: the element `to` of h, of the one `before`.
    pub(super) fn step(&self, k: &mut Builder, at: [&Expr; 4]) -> Result<Header> {
        let [step, now, to, before] = at;
        use Dim::{All, At, Directions, Rows};
        let Steps { context, given, .. } = self;
        let tensors = &context.tensors;
        let mut ins = self.ins.clone();
        let x = ins.add(context.part(k, tensors.x, &[At(now), Rows, All])?);
        let last = ins.add(context.part(k, tensors.y, &[At(before), Directions, Rows, All])?);
        let first = given.first[0].clone().unwrap_or(0.0.into());
        let last = Fused::index(step.clone()).select(units(last, 1), first);
        let mut old = [None, None];
        for (which, tensor) in context.states() {
            old[which] = Some(ins.add(tensor));
        }
        let time = Fused::index(now.clone());
        let next = given.next(&time, [&x, &last], &old);
        let h = next.output(0);
        let to = context.part(k, tensors.y, &[At(to), Directions, Rows, All])?;
        let mut outs = vec![(Operand::from(to), h.clone())];
        if let Some(of) = tensors.given {
            let every = given.while_going(&time, h.clone(), 0.0);
            outs.push((context.part(k, of, &[At(now), Directions, Rows, All])?.into(), every));
        }
        if let Some(of) = tensors.last_h {
            let left = (context.steps.clone() - 1 - step).max(0);
            let kept = Fused::index(left).select(Fused::old(outs.len()), h);
            outs.push((context.part(k, of, &[Directions, Rows, All])?.into(), kept));
        }
        outs.extend(context.states().map(|(which, tensor)| (tensor.into(), next.output(which))));
        Ok(self.header(outs, &ins))
    }
}
