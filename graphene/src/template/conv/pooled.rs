//! Poolings of images whose channels are innermost in memory: each thread folds the windows of 16 bytes of channels of a
//! pixel, element by element.
//!
//! Levels: the kernel; channels of a pixel, by a thread; atoms.

use super::convolution::Place;
use super::sliding::WRITTEN_OUT;
use super::{Axis, Convolution, Fold, Sliding};
use crate::build::{Builder, Header};
use crate::error::{MultipleOf, Result, needs};
use crate::index::{Cond, Expr};
use crate::kernel::{Fused, Kernel, Kind, Number, Operand, Test, Window};
use crate::layout::Layout;
use crate::schedule::pointwise::{WIDTH, each, vector};
use crate::schedule::vectors::neighbours;
use crate::template::access::launch;
use crate::template::epilogue::Run;
use crate::tensor::Scalar;

impl Sliding {
    /// The kernel of a pooling whose channels are innermost.
    pub(super) fn pooled(&self) -> Result<Kernel> {
        let (convolution, (neutral, op)) = (&self.convolution, self.folded());
        let Convolution { scalar, channels: [channels, _], .. } = *convolution;
        let n = WIDTH / scalar.bytes();
        MultipleOf(n).check("channels", channels)?;
        needs(matches!(self.fold, Fold::Max | Fold::Sum), "largest elements or sums", self.fold)?;
        let mut k = Builder::new("pooled", self.arch);
        let sizes = convolution.sizes(&mut k, false)?;
        let x = [vec![Expr::from(&sizes.images)], sizes.seen.clone(), vec![channels.into()]];
        let x = k.param("x", Layout::rows(x.concat()), scalar)?;
        let declared = convolution.channels_last(&mut k, &sizes)?;
        let epilogue = &declared.epilogue;
        let of_pixel = Expr::from(channels / n);
        let all = declared.m.clone() * &of_pixel;
        let blocks = all.ceil_div(self.threads);
        let (block, begin) = launch(&mut k, blocks, self.threads, "begin")?;
        let [thread] = k.indices(block, ["thread"])?;
        let number = begin * self.threads + Expr::from(thread);
        k.if_(Cond::less(number.clone(), all), |k| {
            let row = Expr::from(k.let_("row", number.div(&of_pixel))?);
            let column = Expr::from(k.let_("column", number.rem(&of_pixel))?);
            let place = Place::of(k, &row, &sizes.out)?;
            let total = vector(k, "total", n, Scalar::F32)?;
            each(k, n, |k, i| k.init(Operand::at(total, [i]), neutral))?;
            let taps = convolution.taps();
            k.for_("tap", 0..taps, 1, taps <= WRITTEN_OUT, |k, tap| {
                let seen = convolution.seen(&place.at, &tap.into());
                let at = [place.image.clone()].into_iter().chain(seen).chain([column.clone()]);
                let from = neighbours(k, x, at, n, "from")?;
                k.if_(Test::Inside(from.into()), |k| {
                    let raw = vector(k, "raw", n, scalar)?;
                    k.move_(raw, from)?;
                    let wide = vector(k, "wide", n, Scalar::F32)?;
                    each(k, n, |k, i| {
                        let wide = Operand::at(wide, [i.clone()]);
                        k.move_(wide.clone(), Operand::at(raw, [i.clone()]))?;
                        let total = Operand::at(total, [i]);
                        k.binary(op, total.clone(), [total, wide])
                    })
                })
            })?;
            let held = epilogue.across(k, Vec::new(), (&column, n))?;
            let run = Run { batch: None, row, column, n, held };
            epilogue.leave(k, total, &run, &epilogue.all())
        })?;
        let axes = convolution.axes.len();
        let along: Vec<usize> = (2 + axes..2 + 2 * axes).collect();
        let window = |axis: &Axis| Window { fill: Number(neutral), ..axis.windows() };
        let windows = convolution.windows(1, Fused::input(0), &sizes, window);
        let folded = windows.folded(op, along);
        let pixels = [0, 1].into_iter().flat_map(|dim| (0..axes).map(move |_| dim));
        let pixels = pixels.fold(folded, Fused::merge);
        let ins: Vec<_> = [x].into_iter().chain(epilogue.ins()).collect();
        let kind = Kind::Fused(epilogue.fused(pixels, 1));
        k.finish_as(Header::new(kind, epilogue.results.clone(), ins, block))
    }
}
