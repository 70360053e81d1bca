//! Depthwise convolutions and poolings of images whose channels are innermost in memory: each thread has 16 bytes of channels
//! of some neighbouring pixels. What their windows share of a row of the image is read once, and so are a row's weights.
//!
//! Weights are `[window, channels]`, addends and results `[images, pixels, channels]`.
//!
//! Levels:
//!
//! - kernel: results of images, and of weights where there are any
//!   - registers by a thread: what becomes of some channels of a pixel

use super::convolution::{Place, Sizes};
use super::{Axis, Convolution, Fold, Sliding, sliding::WRITTEN_OUT};
use crate::schedule::{WIDTH, each, neighbours, vector, widen};
use crate::template::{access::launch, epilogue::Run};
use crate::{
    Builder, Cond, Expr, Fused, Header, Kernel, Kind, Layout, MultipleOf, Operand, Result, Scalar,
    TensorId, Test, Within, needs,
};

impl Sliding {
    /// The kernel of what has channels innermost.
    pub(super) fn channelwise(&self) -> Result<Kernel> {
        let (convolution, (neutral, _)) = (&self.convolution, self.folded());
        let Convolution { scalar, channels: [channels, made], group, .. } = *convolution;
        let n = WIDTH / scalar.bytes();
        MultipleOf(n).check("channels", channels)?;
        Within(1, 8).check("pixels a thread", self.pixels)?;
        let own = channels == group && made == group;
        needs(own, "a group for each channel, of one result", (channels, made, group))?;
        let weighted = self.fold == Fold::Weighted;
        let folds = weighted || matches!(self.fold, Fold::Max | Fold::Sum);
        needs(folds, "weights, largest elements or sums", self.fold)?;
        let mut k = Builder::new(if weighted { "depthwise" } else { "pooled" }, self.arch);
        let sizes = convolution.sizes(&mut k, false)?;
        let x = [vec![Expr::from(&sizes.images)], sizes.seen.clone(), vec![channels.into()]];
        let x = k.param("x", Layout::rows(x.concat()), scalar)?;
        let of_weights = Layout::rows([convolution.taps(), channels]);
        let w = weighted.then(|| k.param("w", of_weights, scalar)).transpose()?;
        let declared = convolution.channels_last(&mut k, &sizes)?;
        let epilogue = &declared.epilogue;
        let of_pixel = Expr::from(channels / n);
        // Runs of pixels along the last axis.
        let mut runs = sizes.out.clone();
        let across = runs.pop().expect("the check wants an axis");
        runs.push(across.ceil_div(self.pixels));
        let all = runs.iter().fold(of_pixel.clone(), |all, size| all * size) * &sizes.images;
        let (block, begin) = launch(&mut k, all.ceil_div(self.threads), self.threads, "begin")?;
        let [thread] = k.indices(block, ["thread"])?;
        let number = begin * self.threads + Expr::from(thread);
        k.if_(Cond::less(number.clone(), all), |k| {
            let run = Expr::from(k.let_("run", number.div(&of_pixel))?);
            let column = Expr::from(k.let_("column", number.rem(&of_pixel))?);
            let mut place = Place::of(k, &run, &runs)?;
            if let Some(first) = place.at.last_mut() {
                *first = first.clone() * self.pixels;
            }
            let mut totals = Vec::new();
            for _ in 0..self.pixels {
                let total = vector(k, "total", n, Scalar::F32)?;
                each(k, n, |k, i| k.init(Operand::at(total, [i]), neutral))?;
                totals.push(total);
            }
            self.fold_windows(k, (x, w), (&place, &column), &totals)?;
            let image = place.at[..place.at.len() - 1].iter().zip(&sizes.out);
            let row = image.fold(place.image.clone(), |row, (at, size)| row * size + at);
            let held = epilogue.across(k, Vec::new(), (&column, n))?;
            for (pixel, &total) in (0..).zip(&totals) {
                let at = place.at[place.at.len() - 1].clone() + pixel;
                let row = row.clone() * &across + &at;
                let run = Run { batch: None, row, column: column.clone(), n, held: held.clone() };
                let leave = |k: &mut Builder| epilogue.leave(k, total, &run);
                if pixel == 0 { leave(k)? } else { k.if_(Cond::less(at, &across), leave)? }
            }
            Ok(())
        })?;
        let ins: Vec<_> = [x].into_iter().chain(w).chain(epilogue.ins()).collect();
        let folded = self.folded_pixels(&sizes);
        let kind = Kind::Fused(epilogue.fused([folded], 1 + usize::from(weighted)));
        k.finish_as(Header::new(kind, epilogue.results.clone(), ins, block))
    }

    /// What windows are folded to: `[images · pixels, channels]`.
    fn folded_pixels(&self, sizes: &Sizes) -> Fused {
        let (neutral, op) = self.folded();
        let axes = self.convolution.axes.len();
        let along: Vec<usize> = (2 + axes..2 + 2 * axes).collect();
        let mut windows = self.convolution.windows(1, Fused::input(0), sizes, neutral);
        if self.fold == Fold::Weighted {
            // `[window, channels]`, whose window has as many dimensions as axes, behind those of pixels and of channels.
            let taps = self.convolution.axes.iter().skip(1).rev();
            let weights = taps.fold(Fused::input(1), |w, axis| w.split(0, axis.window));
            let dims = (0..1 + axes).map(|_| None).chain([Some(axes)]).chain((0..axes).map(Some));
            windows = windows * weights.dims(dims.collect::<Vec<_>>());
        }
        let pixels = [0, 1].into_iter().flat_map(|dim| (0..axes).map(move |_| dim));
        pixels.fold(windows.folded(op, along), Fused::merge)
    }

    /// Folds to `totals` the windows of a thread's pixels, which begin at a place, in its column of channels: a row of them
    /// after the other, and within a row what is seen of the image from column to column.
    fn fold_windows(
        &self,
        k: &mut Builder,
        (x, w): (TensorId, Option<TensorId>),
        (place, column): (&Place, &Expr),
        totals: &[TensorId],
    ) -> Result {
        let (convolution, (neutral, op)) = (&self.convolution, self.folded());
        let (scalar, pixels) = (convolution.scalar, totals.len() as i64);
        let n = WIDTH / scalar.bytes();
        let &Axis { window, stride, dilation, .. } =
            convolution.axes.last().expect("the check wants an axis");
        let rows = convolution.taps() / window;
        k.for_("row", 0..rows, 1, rows * window <= WRITTEN_OUT, |k, row| {
            let first = Expr::from(row) * window;
            let weight = |k: &mut Builder, w: TensorId, tap: i64| {
                let at = [first.clone() + tap, column.clone()];
                let from = neighbours(k, w, at, n, "from")?;
                let raw = vector(k, "raw", n, scalar)?;
                k.move_(raw, from)?;
                widen(k, raw)
            };
            let weights = w.map(|w| (0..window).map(|tap| weight(k, w, tap)).collect());
            let weights: Option<Vec<TensorId>> = weights.transpose()?;
            let mut seen = convolution.seen(&place.at, &first);
            let begin = seen.pop().expect("the check wants an axis");
            // Columns of the image that the pixels' windows have, with each of these pixels and the tap of its window there.
            let of = |step: i64| {
                let seen = |at: i64| at >= 0 && at % dilation == 0 && at / dilation < window;
                let taps = (0..pixels).map(|pixel| (pixel, step - pixel * stride));
                (step, taps.filter(|&(_, at)| seen(at)).collect::<Vec<_>>())
            };
            let all = (0..(pixels - 1) * stride + (window - 1) * dilation + 1).map(of);
            let columns: Vec<_> = all.filter(|(_, pixels)| !pixels.is_empty()).collect();
            columns.chunks(TOGETHER).try_for_each(|columns| {
                // All loads come before what waits for the first of them.
                let mut raws = Vec::new();
                for (step, _) in columns {
                    let at = [place.image.clone()].into_iter().chain(seen.clone());
                    let at = at.chain([begin.clone() + *step, column.clone()]);
                    let from = neighbours(k, x, at, n, "from")?;
                    let raw = vector(k, "raw", n, scalar)?;
                    each(k, n, |k, i| k.init(Operand::at(raw, [i]), neutral))?;
                    k.if_(Test::Inside(from.into()), |k| k.move_(raw, from))?;
                    raws.push(raw);
                }
                for (raw, (_, pixels)) in raws.into_iter().zip(columns) {
                    let wide = widen(k, raw)?;
                    for (pixel, at) in pixels {
                        let w = weights.as_ref().map(|all| all[(at / dilation) as usize]);
                        each(k, n, |k, i| {
                            let all = [totals[*pixel as usize], wide];
                            let [total, x] = all.map(|of| Operand::at(of, [i.clone()]));
                            match w {
                                Some(w) => k.fma(total, [x, Operand::at(w, [i])]),
                                None => k.binary(op, total.clone(), [total, x]),
                            }
                        })?;
                    }
                }
                Ok(())
            })
        })
    }
}

/// Columns of the image whose loads are on their way together.
const TOGETHER: usize = 10;
