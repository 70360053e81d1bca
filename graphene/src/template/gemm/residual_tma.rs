//! An addend of the sums' shape, such as a residual, that comes by tensor copies: panel by panel, to where the panel of C is to
//! leave from. So it takes no registers before it is needed, and its rows come whole.

use super::epilogue::{ByPanels, Panel, Store};
use super::{Gemm, PANEL, Place, ROWS};
use crate::template::epilogue::{Attached, Span};
use crate::template::matmul::{line, tiled};
use crate::{
    Builder, Cond, Expr, Fence, Group, Header, Kind, Memory, Operand, Result, Scalar, Scope,
    TensorId, ThreadsId, Var,
};

/// How many panels are asked for before they are needed.
const LEAD: i64 = 2;

/// Panels that a consumer has buffers for: those that are asked for, the one that is computed, and one that still leaves.
pub(super) const RESIDUAL_PANELS: i64 = LEAD + 2;

/// The addend, whose panels come to where C, which alone leaves by panels, leaves from; and one barrier for each panel of each
/// consumer, complete when it has come.
pub(super) struct ResidualTma {
    /// Which of the epilogue's operands it is.
    pub(super) operand: usize,
    panels: TensorId,
    barriers: TensorId,
}

impl ResidualTma {
    /// The first such operand, where C alone leaves by panels, and of the same type; one thread initialises the barriers.
    /// What follows must begin with a meeting of the block.
    pub(super) fn new(
        k: &mut Builder,
        gemm: &Gemm,
        epilogue: &Attached,
        block: ThreadsId,
    ) -> Result<Option<ResidualTma>> {
        let [result] = epilogue.results[..] else { return Ok(None) };
        let scalar = k.tensor_of(result)?.scalar;
        let fits = |&(_, &(span, tensor)): &(usize, &(Span, TensorId))| {
            span == Span::Whole && k.tensor_of(tensor).is_ok_and(|of| of.scalar == scalar)
        };
        let found = epilogue.operands.iter().enumerate().find(fits);
        let possible = gemm.leaves_by_panels(scalar) && gemm.fits(RESIDUAL_PANELS);
        let Some((operand, &(_, tensor))) = found.filter(|_| possible) else { return Ok(None) };
        let all = gemm.consumers * RESIDUAL_PANELS;
        let barriers = k.allocate("come", line(all), Scalar::Mbar, Memory::Shared, None)?;
        k.role(block, 0..1, |k| {
            k.unroll("c", all, |k, c| k.init(Operand::at(barriers, [c]), 1.0))?;
            k.alone(Kind::Fence(Fence::Init), (), ())
        })?;
        let panels = tiled(k, tensor, "gR", [ROWS, PANEL])?;
        Ok(Some(ResidualTma { operand, panels, barriers }))
    }

    /// Complete when what a consumer asked for into this buffer has come.
    fn come(&self, group: &Var, stage: impl Into<Expr>) -> Operand {
        Operand::at(self.barriers, [Expr::from(group) * RESIDUAL_PANELS + stage.into()])
    }

    /// Waits until this panel has come.
    pub(super) fn wait(&self, k: &mut Builder, store: &Store<'_>) -> Result {
        let ring = &store.by_panels[0].ring;
        let come = self.come(&store.group, ring.stage());
        k.spec(Kind::Wait(Expr::from(ring.parity()), Scope::Block), come, (), store.own)
    }

    /// Asks for a tile's first panels.
    pub(super) fn first(&self, k: &mut Builder, store: &Store<'_>, place: &Place) -> Result {
        let first = LEAD.min(store.context.gemm.panels_of_consumer());
        k.role(store.own, 0..1, |k| {
            // The buffers that take them are those from which C left longest ago.
            (0..first).try_for_each(|number| self.ask(k, store, place, (&number.into(), number)))
        })
    }

    /// Asks for a panel beyond this one.
    pub(super) fn beyond(&self, k: &mut Builder, store: &Store<'_>, panel: &Panel<'_>) -> Result {
        let panels = store.context.gemm.panels_of_consumer();
        if panels <= LEAD {
            return Ok(());
        }
        let number = panel.number.clone() + LEAD;
        k.if_(Cond::less(number.clone(), panels), |k| {
            k.role(store.own, 0..1, |k| self.ask(k, store, panel.ahead.place, (&number, LEAD)))
        })
    }

    /// Asks for the panel of this number, into the buffer so many buffers on, once that is no longer read.
    fn ask(&self, k: &mut Builder, store: &Store<'_>, place: &Place, of: (&Expr, i64)) -> Result {
        let (number, stages_on) = of;
        let ByPanels { buffers, ring, .. } = &store.by_panels[0];
        let across = Expr::from(store.context.gemm.width() / PANEL);
        let at = store.at(place, &number.div(&across), &number.rem(&across));
        let from = Operand::at(self.panels, at);
        let stage = (Expr::from(ring.stage()) + stages_on).rem(RESIDUAL_PANELS);
        let come = self.come(&store.group, stage.clone());
        let bytes = ROWS * PANEL * k.tensor_of(*buffers)?.scalar.bytes();
        k.alone(Kind::Arrive(Some(bytes.into())), come.clone(), ())?;
        // C left from it before it left from the buffers between that one and this one's.
        let later = RESIDUAL_PANELS - stages_on - 1;
        k.alone(Kind::WaitGroup(Group::Bulk, later, true), (), ())?;
        let to = k.index(*buffers, "ahead", [Expr::from(&store.group), stage])?;
        k.add(Header::alone(Kind::Move, to, from).signals(come))
    }
}
