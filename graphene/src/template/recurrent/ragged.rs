//! Sequences of several lengths: in steps beyond its length a row's states stay, and what it gives is 0.
//!
//! A row that has ended is computed all the same, of whatever X has there, and what comes out is left.

use super::steps::Context;
use super::sums::Sums;
use super::{Own, Recurrent};
use crate::build::Builder;
use crate::error::Result;
use crate::function::Function;
use crate::index::Expr;
use crate::kernel::{Binary, Kind, Operand, TensorId};
use crate::layout::{Layout, Tiler};
use crate::schedule::pointwise::{load_inside, number, pointwise, vector};
use crate::tensor::{Memory, Scalar};

/// What a thread keeps for it.
pub(super) struct Ragged {
    /// The lengths of the own rows, in single precision, which holds them as they are up to 2²⁴: `[row]`.
    lengths: TensorId,
    /// h of the own units, where that is not their own state: `[row, run].[unit]`.
    pub(super) held: Option<TensorId>,
}

impl Ragged {
    pub(super) fn new(k: &mut Builder, layer: &Recurrent, sums: &Sums) -> Result<Ragged> {
        let view = Layout::rows([sums.rows]);
        let lengths = k.allocate("own_lengths", view, Scalar::F32, Memory::Registers, None)?;
        let held = match layer.cell.own {
            Own::Hidden => None,
            Own::Nothing | Own::Cell => Some(sums.state(k, "held")?),
        };
        Ok(Ragged { lengths, held })
    }
}

impl Context<'_> {
    /// What the rows of a tile begin with; beyond the batch they have no length.
    pub(super) fn begin_ragged(&self, k: &mut Builder, ragged: &Ragged, tile: &Expr) -> Result<()> {
        if let Some(held) = ragged.held {
            self.begin(k, held, self.tensors.first_h, tile)?;
        }
        let Some(lengths) = self.tensors.lengths else { return Ok(()) };
        let lengths = k.tile(lengths, "lengths", &[Tiler::Size(1)])?;
        k.for_("i", 0..self.sums.rows, 1, true, |k, row| {
            let at = self.row(tile, &self.sums.row(&row.into()));
            let from = k.index(lengths, "length", [at])?;
            let length = load_inside(k, from, 1, false, self.one)?;
            let to = Operand::at(ragged.lengths, [row]);
            k.spec(Kind::Move, to, Operand::at(length, [0]), self.one)
        })
    }

    /// What a run gives, and its h, after the element `now` of the sequence: the cell's results, if it has
    /// that element.
    pub(super) fn go_on(
        &self,
        k: &mut Builder,
        ragged: &Ragged,
        now: &Expr,
        at: [&Expr; 2],
        results: &[TensorId],
    ) -> Result<(TensorId, TensorId)> {
        let n = self.sums.run();
        let time = number(k, "time", Scalar::F32)?;
        k.spec(Kind::Index(now.clone()), time, (), self.one)?;
        let lengths = k.tile(ragged.lengths, "own_length", &[Tiler::Size(1)])?;
        let length = k.index(lengths, "own_length", [at[0]])?;
        let own = self.own.map(|own| k.index(own, "own", at)).transpose()?;
        let held = ragged.held.map(|held| k.index(held, "held", at)).transpose()?;
        let given = vector(k, "given", n, Scalar::F32)?;
        let goes_on = || Function::input(0).binary(Binary::Less, Function::input(1));
        let (mut ins, mut outs) = (vec![time, length, results[0]], vec![given]);
        let mut functions = vec![goes_on().select(Function::input(2), 0.0)];
        let mut keep = |next: usize, state: TensorId, ins: &mut Vec<TensorId>| {
            functions.push(goes_on().select(Function::input(next), Function::input(ins.len())));
            ins.push(state);
            outs.push(state);
        };
        // h and the own state, of which one may be all that there is.
        if let Some(held) = held {
            keep(2, held, &mut ins);
        }
        if let (Some(own), Some(&next)) = (own, results.get(1)) {
            ins.push(next);
            keep(ins.len() - 1, own, &mut ins);
        }
        pointwise(k, &Function::all(functions), &outs, &ins, n, self.one)?;
        Ok((given, outs[1]))
    }
}
