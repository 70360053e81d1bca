//! A thread's own window: which elements it sees, and what becomes of them.

use super::Axis;
use super::sliding::{Fold, Sliding};
use crate::build::Builder;
use crate::error::Result;
use crate::index::{Cond, Expr};
use crate::kernel::{Binary, Kind, Number, Operand, TensorId, Test, ThreadsId};
use crate::schedule::pointwise::number;
use crate::template::access::product;
use crate::tensor::Scalar;

/// Up to so many elements of a window are written out.
const WRITTEN_OUT: i64 = 32;

/// What the parts of the kernel share: the own pixel, and the registers that its window is folded to.
pub(super) struct Own<'a> {
    pub(super) sliding: &'a Sliding,
    pub(super) x: TensorId,
    pub(super) w: Option<TensorId>,
    pub(super) one: ThreadsId,
    pub(super) image: Expr,
    /// The group, and the output channel in it.
    pub(super) group: Expr,
    pub(super) row: Expr,
    pub(super) at: Vec<Expr>,
    pub(super) total: TensorId,
    pub(super) count: Option<TensorId>,
}

impl Own<'_> {
    /// Folds the own pixel's window.
    pub(super) fn window(&self, k: &mut Builder) -> Result<()> {
        let convolution = &self.sliding.convolution;
        let (read, taps) = (convolution.channels[0] / convolution.group, convolution.taps());
        k.for_("c", 0..read, 1, false, |k, channel| {
            k.for_("tap", 0..taps, 1, taps <= WRITTEN_OUT, |k, tap| {
                let (channel, tap) = (Expr::from(channel), Expr::from(tap));
                let (seen, conds) = self.seen(&tap);
                let image = [self.image.clone(), self.group.clone(), channel.clone()];
                let from = Operand::at(self.x, image.into_iter().chain(seen));
                let w = self
                    .w
                    .map(|w| Operand::at(w, [self.group.clone(), self.row.clone(), channel, tap]));
                let inside =
                    |k: &mut Builder| k.if_(Test::Inside(from.clone()), |k| self.fold(k, from, w));
                if conds.is_empty() { inside(k) } else { k.if_(conds, inside) }
            })
        })?;
        let Some(count) = self.count else { return Ok(()) };
        let total = Operand::at(self.total, [0]);
        k.spec(Kind::Binary(Binary::Div), total.clone(), [total, count.into()], self.one)
    }

    /// Where in the image an element of the window is, and under which conditions it is anywhere.
    fn seen(&self, tap: &Expr) -> (Vec<Expr>, Vec<Cond>) {
        let convolution = &self.sliding.convolution;
        if self.sliding.fold != Fold::Transposed {
            return (convolution.seen(&self.at, tap), Vec::new());
        }
        let windows: Vec<Expr> =
            convolution.axes.iter().map(|axis| Expr::from(axis.window)).collect();
        let (mut seen, mut conds) = (Vec::new(), Vec::new());
        for (i, Axis { window, stride, dilation, pad }) in convolution.axes.iter().enumerate() {
            let element = tap.div(&product(&windows[i + 1..])).rem(&windows[i]);
            // Steps that are added before and taken away after, as quotients are not negative.
            let before = ((window - 1) * dilation - pad).max(0) / stride + 1;
            let place = self.at[i].clone() + (before * stride + pad) - element * *dilation;
            let stride = Expr::from(*stride);
            seen.push(place.div(&stride) - before);
            if !stride.is(1) {
                conds.push(Cond::equal(place.rem(&stride), 0));
            }
        }
        (seen, conds)
    }

    /// Folds an element into the total.
    fn fold(&self, k: &mut Builder, from: Operand, w: Option<Operand>) -> Result<()> {
        let total = Operand::at(self.total, [0]);
        let x = self.load(k, from)?;
        if let Some(w) = w {
            let w = self.load(k, w)?;
            return k.spec(Kind::MATMUL_ADD, total, [x, w], self.one);
        }
        let op = if self.sliding.fold == Fold::Max { Binary::MaxNan } else { Binary::Add };
        k.spec(Kind::Reduction(op), total, x, self.one)?;
        let Some(count) = self.count else { return Ok(()) };
        let one = number(k, "one_more", Scalar::F32)?;
        k.spec(Kind::Init(Number(1.0)), one, (), self.one)?;
        k.spec(Kind::Reduction(Binary::Add), count, one, self.one)
    }

    /// An element in single precision.
    fn load(&self, k: &mut Builder, from: Operand) -> Result<TensorId> {
        let scalar = self.sliding.convolution.scalar;
        let raw = number(k, "raw", scalar)?;
        k.spec(Kind::Move, raw, from, self.one)?;
        if scalar == Scalar::F32 {
            return Ok(raw);
        }
        let wide = number(k, "wide", Scalar::F32)?;
        k.spec(Kind::Move, wide, raw, self.one)?;
        Ok(wide)
    }
}
