//! What a convolution computes, however a template does it.

use super::operands::Sizes;
use crate::error::{Result, needs};
use crate::index::Expr;
use crate::kernel::{Fused, Kind, Number, Window};
use crate::template::access::{Stride, product};
use crate::template::epilogue::{Epilogue, Span};
use crate::tensor::Scalar;

/// `y[i,o,p] = f(Σ w[o,c,q]·x[i,c,p·stride + q·dilation - pad])`: what is computed, however a template
/// does it. What lies outside of an image is 0.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Convolution {
    /// The type of images and weights; products accumulate in single precision.
    pub scalar: Scalar,
    /// Channels that are read, and that are made: each a multiple of `group`.
    pub channels: [i64; 2],
    /// Groups of channels, which see nothing of one another.
    pub group: i64,
    /// The window, for each spatial axis.
    pub axes: Vec<Axis>,
    /// From image to image of x.
    pub image: Stride,
    /// What becomes of the sums: of its operands, columns are those `[output channels]`, whole ones
    /// have the results' shape.
    pub epilogue: Epilogue,
}

/// A window along one axis.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Axis {
    /// Its size.
    pub window: i64,
    /// From one output pixel's window to the next one's.
    pub stride: i64,
    /// From element to element within the window.
    pub dilation: i64,
    /// Zeros before the image; a negative number leaves out as many elements. How many are behind it
    /// follows from the output's size.
    pub pad: i64,
}

impl Axis {
    /// Its windows, whatever their number.
    pub(super) fn windows(&self) -> Window {
        let Axis { window: size, stride, dilation, pad: before } = *self;
        Window { count: 1.into(), size, stride, dilation, before, fill: Number(0.0) }
    }
}

impl Default for Convolution {
    /// 64 channels to 64 by windows of 3×3.
    fn default() -> Convolution {
        Convolution {
            scalar: Scalar::F16,
            channels: [64, 64],
            group: 1,
            axes: vec![Axis { window: 3, stride: 1, dilation: 1, pad: 1 }; 2],
            image: Stride::Packed,
            epilogue: Epilogue::default(),
        }
    }
}

impl Convolution {
    /// Elements of a window in one channel.
    pub fn taps(&self) -> i64 {
        self.axes.iter().map(|axis| axis.window).product()
    }

    /// Products of a sum.
    pub fn depth(&self) -> i64 {
        self.channels[0] / self.group * self.taps()
    }

    /// Where in the image a pixel of the result sees an element of the window; it may lie outside.
    pub(super) fn seen(&self, at: &[Expr], element: &Expr) -> Vec<Expr> {
        let windows: Vec<Expr> = self.axes.iter().map(|axis| Expr::from(axis.window)).collect();
        let each = |(i, axis): (usize, &Axis)| {
            let element = element.div(&product(&windows[i + 1..])).rem(&windows[i]);
            at[i].clone() * axis.stride + element * axis.dilation - axis.pad
        };
        self.axes.iter().enumerate().map(each).collect()
    }

    /// What each pixel of a result sees of an image: `[images, groups, channels/group, …]` of pixels and then of elements of
    /// their windows, by axes as `window` has them.
    pub(super) fn windows(
        &self,
        image: Fused,
        sizes: &Sizes,
        window: impl Fn(&Axis) -> Window,
    ) -> Fused {
        let axes = self.axes.iter().zip(&sizes.out).enumerate();
        axes.fold(image, |x, (i, (axis, count))| {
            x.window(3 + i, Window { count: count.clone(), ..window(axis) })
        })
    }

    /// A matrix for each group: a column for each pixel of each image, with all that its window sees.
    pub(super) fn columns(&self, windows: Fused) -> Fused {
        let n = self.axes.len();
        let dims = [1..3, 3 + n..3 + 2 * n, 0..1, 3..3 + n].into_iter().flatten().map(Some);
        let merge = |x: Fused, dim: usize| (0..n).fold(x, |x, _| x.merge(dim));
        merge(merge(windows.dims(dims.collect::<Vec<_>>()), 1), 2)
    }

    /// The same where all pixels of an image are one axis.
    pub(super) fn flat_columns() -> Fused {
        Fused::input(0).dims([1, 2, 0, 3].map(Some)).merge(2)
    }

    /// What the kernel computes of sums `[groups, output channels/group, images · pixels]`; operands are those from the
    /// input `first` on.
    pub(super) fn kind(&self, sums: Fused, first: usize, sizes: &Sizes) -> Kind {
        let operands = self.epilogue.operands.iter().zip(first..);
        let operands = operands.map(|(operand, number)| match operand.span {
            Span::Whole => Fused::input(number).split(0, self.group).dims([1, 2, 0, 3].map(Some)),
            Span::Column | Span::Row => Fused::input(number).dims([Some(0), Some(1), None, None]),
        });
        let sums = sums.split(2, sizes.pixels.clone());
        let parts: Vec<Fused> = std::iter::once(sums).chain(operands).collect();
        let all = Fused::of(&self.epilogue.function, &parts);
        let result = |of| all.output(of).dims([2, 0, 1, 3].map(Some)).merge(0);
        Kind::Fused(Fused::all((0..self.epilogue.outputs.len()).map(result)))
    }

    /// Whether each output pixel sees its own pixel alone.
    pub(super) fn is_pointwise(&self) -> bool {
        self.axes.iter().all(|axis| axis.window == 1 && axis.stride == 1 && axis.pad == 0)
    }

    /// Whether there is such a convolution.
    pub(super) fn check(&self) -> Result<()> {
        let [read, made] = self.channels;
        let whole = self.group >= 1 && read >= 1 && made >= 1;
        let whole = whole && read % self.group + made % self.group == 0;
        needs(whole, "channels that are multiples of the groups", (self.channels, self.group))?;
        let fits = |axis: &Axis| axis.window >= 1 && axis.stride >= 1 && axis.dilation >= 1;
        let windows = !self.axes.is_empty() && self.axes.iter().all(fits);
        needs(
            windows,
            "1 or more axes, with windows, strides and dilations of 1 or more",
            &self.axes,
        )?;
        let operands = &self.epilogue.operands;
        let spans = operands.iter().all(|input| input.span != Span::Row);
        needs(spans, "epilogue operands by channel or of the results' shape", operands)?;
        needs(self.image != Stride::Broadcast, "images that do not broadcast", self.image)?;
        self.epilogue.check()
    }
}
