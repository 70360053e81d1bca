//! The tensors and symbols of a layer's kernel.

use super::Recurrent;
use crate::{Builder, Expr, Fused, Kind, Layout, Operand, Result, Scalar, TensorId};

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

impl Tensors {
    /// Declares the kernel's tensors.
    pub(super) fn declare(
        k: &mut Builder,
        layer: &Recurrent,
        [steps, batch]: [&Expr; 2],
    ) -> Result<Tensors> {
        let Recurrent { scalar, rows, .. } = *layer;
        let directions = Expr::from(layer.directions());
        let [inputs, hidden, gates] =
            [layer.inputs, layer.hidden, layer.cell.gates].map(Expr::from);
        let all = |steps: &Expr| Layout::rows([steps, &directions, batch, &hidden]);
        let weights = |k: &mut Builder, name: &str, depth: &Expr| {
            k.param(name, Layout::rows([&directions, &gates, &hidden, depth]), scalar)
        };
        let of_state = Layout::rows([&directions, batch, &hidden]);
        let state = |k: &mut Builder, name: &str, wanted: bool| {
            wanted.then(|| k.param(name, of_state.clone(), scalar)).transpose()
        };
        let of_bias = Layout::rows([&directions, &Expr::from(2), &gates, &hidden]);
        let count = layer.cell.constants as i64;
        let of_units = Layout::rows([&directions, &Expr::from(count), &hidden]);
        let counters = Layout::rows([&directions, &batch.ceil_div(rows)]);
        let (ragged, alone) = (layer.ragged, layer.members().is(1));
        Ok(Tensors {
            x: k.param("X", Layout::rows([steps, batch, &inputs]), scalar)?,
            weights: [weights(k, "W", &inputs)?, weights(k, "R", &hidden)?],
            bias: layer.bias.then(|| k.param("bias", of_bias, scalar)).transpose()?,
            first_h: state(k, "h0", layer.initial[0])?,
            first_c: state(k, "c0", layer.initial[1])?,
            constants: (count > 0).then(|| k.param("P", of_units, scalar)).transpose()?,
            lengths: ragged
                .then(|| k.param("lengths", Layout::rows([batch]), Scalar::I32))
                .transpose()?,
            counter: (!alone).then(|| k.scratch("counter", counters, Scalar::U32)).transpose()?,
            reset: (layer.cell.reset.is_some())
                .then(|| k.scratch("reset", of_state.clone(), scalar))
                .transpose()?,
            y: match ragged || !layer.results[0] {
                true => k.scratch(if ragged { "h" } else { "Y" }, all(&2.into()), scalar)?,
                false => k.param("Y", all(steps), scalar)?,
            },
            given: (ragged && layer.results[0])
                .then(|| k.param("Y", all(steps), scalar))
                .transpose()?,
            last_h: state(k, "Y_h", layer.results[1])?,
            last_c: state(k, "Y_c", layer.results[2])?,
        })
    }

    /// The results of a layer, of which h of all steps may be one.
    pub(super) fn outs(&self, every: bool) -> impl Iterator<Item = TensorId> {
        let every = if every { Some(self.given.unwrap_or(self.y)) } else { None };
        [every, self.last_h, self.last_c].into_iter().flatten()
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
