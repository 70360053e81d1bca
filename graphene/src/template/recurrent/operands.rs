//! The tensors and symbols of a layer's kernel.

use super::Recurrent;
use crate::{Builder, Expr, Fused, Kind, Layout, Operand, Result, Scalar, TensorId};

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

impl Tensors {
    pub(super) fn declare(
        k: &mut Builder,
        layer: &Recurrent,
        [steps, batch]: [&Expr; 2],
    ) -> Result<Tensors> {
        let Recurrent { scalar, rows, inputs, hidden, .. } = *layer;
        let directions = Expr::from(layer.directions());
        let [inputs, hidden, gates] = [inputs, hidden, layer.cell.gates].map(Expr::from);
        let all = |steps: &Expr| Layout::rows([steps, &directions, batch, &hidden]);
        let weights = |k: &mut Builder, name: &str, depth: &Expr| {
            k.param(name, Layout::rows([&directions, &gates, &hidden, depth]), scalar)
        };
        let of_state = Layout::rows([&directions, batch, &hidden]);
        let maybe = |k: &mut Builder, name: &str, wanted: bool, shape: &Vec<Layout<Expr>>| {
            wanted.then(|| k.param(name, shape.clone(), scalar)).transpose()
        };
        let of_bias = Layout::rows([&directions, &Expr::from(2), &gates, &hidden]);
        let count = layer.cell.constants as i64;
        let of_units = Layout::rows([&directions, &Expr::from(count), &hidden]);
        let counters = Layout::rows([&directions, &batch.ceil_div(rows)]);
        let of_lengths = Layout::rows([batch]);
        let (ragged, resets) = (layer.ragged, layer.cell.reset.is_some());
        let together = !layer.members().is(1);
        Ok(Tensors {
            x: k.param("X", Layout::rows([steps, batch, &inputs]), scalar)?,
            weights: [weights(k, "W", &inputs)?, weights(k, "R", &hidden)?],
            bias: maybe(k, "bias", layer.bias, &of_bias)?,
            first_h: maybe(k, "h0", layer.initial[0], &of_state)?,
            first_c: maybe(k, "c0", layer.initial[1], &of_state)?,
            constants: maybe(k, "P", count > 0, &of_units)?,
            lengths: ragged.then(|| k.param("lengths", of_lengths, Scalar::I32)).transpose()?,
            counter: together.then(|| k.scratch("counter", counters, Scalar::U32)).transpose()?,
            reset: resets.then(|| k.scratch("reset", of_state.clone(), scalar)).transpose()?,
            y: match ragged || !layer.results[0] {
                true => k.scratch(if ragged { "h" } else { "Y" }, all(&2.into()), scalar)?,
                false => k.param("Y", all(steps), scalar)?,
            },
            given: maybe(k, "Y", ragged && layer.results[0], &all(steps))?,
            last_h: maybe(k, "Y_h", layer.results[1], &of_state)?,
            last_c: maybe(k, "Y_c", layer.results[2], &of_state)?,
        })
    }
}

/// Operands as they are added, and expressions of them.
#[derive(Clone, Default)]
pub(super) struct Ins(Vec<Operand>);

impl Ins {
    pub(super) fn add(&mut self, tensor: impl Into<Operand>) -> Fused {
        self.0.push(tensor.into());
        Fused::input(self.0.len() - 1)
    }

    /// An expression of those that it uses, and these.
    pub(super) fn of(&self, results: Fused) -> (Kind, Vec<Operand>) {
        let (fused, used) = results.over_used();
        (Kind::Fused(fused), used.into_iter().map(|at| self.0[at].clone()).collect())
    }
}
