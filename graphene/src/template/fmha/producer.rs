//! How stages are filled.

use super::context::{Place, order};
use super::scores::{load, term};
use super::{Context, GROUP, Given, Mask, PRODUCER_REGISTERS, WARP};
use crate::schedule::{PipelineState, vector};
use crate::template::fragments::own_group;
use crate::{Builder, Cond, Expr, Header, Kind, Operand, Result, TensorId, Tiler, choose::ceil};

/// Queries (0), keys (1) or values (2): their pipeline state, and their panels in global memory.
struct Source {
    which: usize,
    state: PipelineState,
    from: TensorId,
}

impl Context<'_> {
    /// One thread issues tensor copies, in the order in which consumers release stages; a warp beside it brings the mask.
    pub(super) fn produce(&self, k: &mut Builder) -> Result {
        let (own, _) = own_group(k, self.groups)?;
        k.spec(Kind::Registers(PRODUCER_REGISTERS), (), (), own)?;
        let first = GROUP * self.given.fmha.consumers;
        k.role(self.given.block, first..first + 1, |k| {
            let [queries, keys, values] = [0, 1, 2].map(|which| self.source(k, which));
            let (queries, keys, values) = (queries?, keys?, values?);
            self.given.each_tile(k, |k, place| {
                self.fill(k, &queries, place, &place.m)?;
                self.fill(k, &keys, place, &place.tile(0))?;
                k.for_("step", Expr::from(1)..place.steps.clone(), 1, false, |k, step| {
                    let step = Expr::from(step);
                    self.fill(k, &keys, place, &place.tile(step.clone()))?;
                    self.fill(k, &values, place, &place.tile(step - 1))
                })?;
                self.fill(k, &values, place, &Expr::from(0))
            })
        })?;
        self.produce_terms(k)
    }

    fn source(&self, k: &mut Builder, which: usize) -> Result<Source> {
        let panels = self.given.fmha.panels(which);
        let name = ["filling_q", "filling_k", "filling_v"][which];
        let state = self.pipelines[which].begin(k, name)?;
        let [rows, columns] = order(which, panels.rows, panels.width());
        let tiles = [1, 1, rows, columns].map(Tiler::Size);
        let from = k.tile(self.given.params[which], ["gQ", "gK", "gV"][which], &tiles)?;
        Ok(Source { which, state, from })
    }

    /// The tile of this number, panel by panel.
    fn fill(&self, k: &mut Builder, source: &Source, place: &Place<'_>, tile: &Expr) -> Result {
        let Source { which, ref state, from } = *source;
        let (panels, one) = (self.given.fmha.panels(which), k.one()?);
        state.produce(k, one, |k, full, stage| {
            let bytes = panels.rows * panels.columns * panels.scalar.bytes();
            k.alone(Kind::Arrive(Some(bytes.into())), full.clone(), ())?;
            let mut to = self.shared[which];
            if which > 0 {
                to = k.index(to, "stage", [stage])?;
            }
            let whole = place.rows(k, which, panels.rows, tile)?;
            let move_ = Header::alone(Kind::Move, to, whole).signals(full.clone());
            k.decompose(move_, |k| {
                let panel = order(which, Tiler::Whole, Tiler::Size(panels.width()));
                let to = k.tile(to, "to", &panel)?;
                (0..panels.count()).try_for_each(|i| {
                    let from = Operand::at(from, place.at(which, tile.clone(), i.into()));
                    let to = Operand::at(to, order(which, 0, i));
                    k.add(Header::alone(Kind::Move, to, from).signals(full.clone()))
                })
            })
        })
    }

    /// What the warp does that follows the one which brings keys: with each tile of them, the terms of a mask of one element
    /// a key. All its elements are asked for before the first is used.
    fn produce_terms(&self, k: &mut Builder) -> Result {
        let Given { fmha, block, .. } = *self.given;
        let (Mask::PerKey(scalar), Some(terms)) = (fmha.mask, self.terms) else { return Ok(()) };
        let (first, count) = (GROUP * fmha.consumers + WARP, ceil(fmha.keys, WARP));
        k.role(block, first..first + WARP, |k| {
            let [thread] = k.indices(block, ["masker"])?;
            let lane = &Expr::from(thread).rem(WARP);
            let (state, one) = (self.pipelines[1].begin(k, "filling_m")?, k.one()?);
            self.given.each_tile(k, |k, place| {
                k.for_("step", Expr::from(0)..place.steps.clone(), 1, false, |k, step| {
                    let first = Expr::from(k.let_("tile", place.tile(step))?) * fmha.keys;
                    state.produce(k, one, |k, full, stage| {
                        let words = vector(k, "words", count, scalar)?;
                        k.unroll("i", count, |k, i| {
                            let key = first + Expr::from(i) * WARP + lane;
                            load(k, self.given, &[&place.batch, &key], Operand::at(words, [i]))
                        })?;
                        let to = k.index(terms, "stage", [stage])?;
                        k.unroll("i", count, |k, i| {
                            let at = Expr::from(i) * WARP + lane;
                            let inside = Cond::less(at.clone(), fmha.keys);
                            let body = |k: &mut Builder| {
                                let term = term(k, fmha, scalar, Operand::at(words, [i]))?;
                                k.move_(Operand::at(to, [at]), term)
                            };
                            if fmha.keys % WARP == 0 { body(k) } else { k.if_(inside, body) }
                        })?;
                        k.alone(Kind::Arrive(None), full, ())
                    })
                })
            })
        })
    }
}
