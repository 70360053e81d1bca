//! Poolings of images whose channels are innermost in memory: each thread folds the windows of 16 bytes of channels of a
//! pixel, element by element.
//!
//! Levels: the kernel; channels of a pixel, by a thread; atoms.

use super::convolution::Place;
use super::{Axis, Convolution, Fold};
use crate::arch::Arch;
use crate::build::{Builder, Header};
use crate::error::{MultipleOf, Result, Within, needs};
use crate::index::{Cond, Expr};
use crate::kernel::{Binary, Fused, Kernel, Kind, Number, Operand, Test, Window};
use crate::layout::Layout;
use crate::schedule::pointwise::{WIDTH, each, vector};
use crate::schedule::vectors::neighbours;
use crate::template::access::launch;
use crate::template::epilogue::Run;
use crate::tensor::Scalar;

/// The parameters of a pooling whose channels are innermost.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Pooled {
    /// What is computed, by a group for each channel.
    pub convolution: Convolution,
    /// The largest of a window, or the sum.
    pub fold: Fold,
    /// What the kernel is written for; it runs on newer ones, too.
    pub arch: Arch,
    /// Threads of a block.
    pub threads: i64,
}

impl Default for Pooled {
    fn default() -> Pooled {
        let convolution = Convolution { group: 64, ..Convolution::default() };
        Pooled { convolution, fold: Fold::Max, arch: Arch::Sm80, threads: 256 }
    }
}

impl Pooled {
    /// The kernel, with symbols as [`ChannelsLast`](super::ChannelsLast) has them.
    ///
    /// # Errors
    /// [`crate::Error::Constraint`] for parameters that no kernel has.
    pub fn kernel(&self) -> Result<Kernel> {
        let (neutral, op) = self.folded()?;
        let convolution = &self.convolution;
        let Convolution { scalar, channels: [channels, _], .. } = *convolution;
        let n = WIDTH / scalar.bytes();
        let mut k = Builder::new("pooled", self.arch);
        let sizes = convolution.sizes(&mut k, false)?;
        let x = [vec![Expr::from(&sizes.images)], sizes.seen.clone(), vec![channels.into()]];
        let x = k.param("x", Layout::rows(x.concat()), scalar)?;
        let declared = convolution.channels_last(&mut k, &sizes)?;
        let epilogue = &declared.epilogue;
        let of_pixel = Expr::from(channels / n);
        let all = declared.m.clone() * &of_pixel;
        let blocks = all.ceil_div(&Expr::from(self.threads));
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
            k.for_("tap", 0..taps, 1, taps <= super::sliding::WRITTEN_OUT, |k, tap| {
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

    /// What a window is folded by, and from what on.
    fn folded(&self) -> Result<(f64, Binary)> {
        self.convolution.check()?;
        let Convolution { scalar, channels, group, .. } = self.convolution;
        needs(channels == [group; 2], "a group for each channel", channels)?;
        MultipleOf(WIDTH / scalar.bytes()).check("channels", group)?;
        Within(1, 1024).check("threads", self.threads)?;
        needs(matches!(self.fold, Fold::Max | Fold::Sum), "largest elements or sums", self.fold)?;
        Ok(match self.fold {
            Fold::Max => (f64::NEG_INFINITY, Binary::MaxNan),
            _ => (0.0, Binary::Add),
        })
    }
}
