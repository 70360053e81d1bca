//! What a convolution computes, however a template does it.

use crate::schedule::{coordinates, each};
use crate::template::access::{Stride, product, sizes};
use crate::template::epilogue::{Attached, Epilogue, Input, Run, Span};
use crate::template::matmul::{Declared, Edges, tile_of};
use crate::{
    Builder, Expr, Fused, Kind, Layout, Number, Result, Scalar, TensorId, Tiler, Var, View, Window,
    needs,
};

parameters! {
    /// `y[i,o,p] = f(Σ w[o,c,q]·x[i,c,p·stride + q·dilation - pad])`: what is computed, however a template
    /// does it. What lies outside of an image is 0. By default 64 channels to 64 by windows of 3×3.
    pub struct Convolution {
        /// The type of images and weights; matmuls accumulate in single precision, of integers in integers that wrap.
        pub scalar: Scalar = Scalar::F16,
        /// Channels that are read, and that are made: each a multiple of `group`.
        pub channels: [i64; 2] = [64, 64],
        /// Groups of channels, which see nothing of one another.
        pub group: i64 = 1,
        /// The window, for each spatial axis.
        pub axes: Vec<Axis> = vec![Axis { window: 3, stride: 1, dilation: 1, pad: 1 }; 2],
        /// From image to image of x.
        pub image: Stride = Stride::Packed,
        /// What becomes of the sums: of its operands, columns are those `[output channels]`, whole ones have the results' shape.
        pub epilogue: Epilogue = Epilogue::default(),
    }
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
    /// So many windows.
    pub(super) fn windows(&self, count: Expr, fill: f64) -> Window {
        let Axis { window: size, stride, dilation, pad: before } = *self;
        Window { count, size, stride, dilation, before, fill: Number(fill) }
    }
}

impl Convolution {
    /// Elements of a window in one channel.
    pub fn taps(&self) -> i64 {
        self.axes.iter().map(|axis| axis.window).product()
    }

    /// Multiply-adds of a sum.
    pub fn depth(&self) -> i64 {
        self.channels[0] / self.group * self.taps()
    }

    /// Where in the image a pixel of the result sees an element of the window; it may lie outside.
    pub(super) fn seen(&self, at: &[Expr], element: &Expr) -> Vec<Expr> {
        let each = |(i, axis): (usize, &Axis)| {
            at[i].clone() * axis.stride + self.along(i, element) * axis.dilation - axis.pad
        };
        self.axes.iter().enumerate().map(each).collect()
    }

    /// Where along an axis of the window an element of it is.
    pub(super) fn along(&self, axis: usize, element: &Expr) -> Expr {
        let inner: i64 = self.axes[axis + 1..].iter().map(|axis| axis.window).product();
        element.div(inner).rem(self.axes[axis].window)
    }

    /// What each pixel of a result sees of an image, whose spatial axes begin with this one: pixels there, and elements of
    /// their windows behind all axes.
    pub(super) fn windows(&self, first: usize, image: Fused, sizes: &Sizes, fill: f64) -> Fused {
        let axes = (first..).zip(&self.axes).zip(&sizes.out);
        axes.fold(image, |x, ((i, axis), count)| x.window(i, axis.windows(count.clone(), fill)))
    }

    /// A matrix for each group: a column for each pixel of each image, with all that its window sees.
    pub(super) fn columns(&self, windows: Fused) -> Fused {
        let n = self.axes.len();
        let dims = [1..3, 3 + n..3 + 2 * n, 0..1, 3..3 + n].into_iter().flatten().map(Some);
        let merge = |x: Fused, dim: usize| (0..n).fold(x, |x, _| x.merge(dim));
        merge(merge(windows.dims(dims.collect::<Vec<_>>()), 1), 2)
    }

    /// What the kernel computes of sums `[groups, output channels/group, images · pixels]`; operands are those from the
    /// input `first` on.
    pub(super) fn kind(&self, sums: Fused, first: usize, sizes: &Sizes) -> Kind {
        let operands = self.epilogue.operands.iter().zip(first..);
        let operands = operands.map(|(operand, number)| match operand.span {
            Span::Whole => Fused::input(number).split(0, self.group).dims([1, 2, 0, 3].map(Some)),
            Span::Column | Span::Row | Span::Number => {
                Fused::input(number).dims([Some(0), Some(1), None, None])
            }
        });
        let sums = sums.split(2, sizes.pixels.clone());
        let parts: Vec<Fused> = std::iter::once(sums).chain(operands).collect();
        let all = Fused::of(&self.epilogue.function, &parts);
        let result = |of| all.output(of).dims([2, 0, 1, 3].map(Some)).merge(0);
        Kind::Fused(Fused::all((0..self.epilogue.outputs.len()).map(result)))
    }

    pub(super) fn check(&self) -> Result {
        let [read, made] = self.channels;
        let whole = self.group >= 1 && read >= 1 && made >= 1;
        let whole = whole && read % self.group + made % self.group == 0;
        needs(whole, "channels that are multiples of the groups", (self.channels, self.group))?;
        let fits = |axis: &Axis| axis.window >= 1 && axis.stride >= 1 && axis.dilation >= 1;
        let windows = !self.axes.is_empty() && self.axes.iter().all(fits);
        needs(windows, "axes, with windows, strides and dilations of 1 or more", &self.axes)?;
        let operands = &self.epilogue.operands;
        let known = |input: &Input| matches!(input.span, Span::Column | Span::Whole);
        let spans = operands.iter().all(known);
        needs(spans, "epilogue operands by channel or of the results' shape", operands)?;
        needs(self.image != Stride::Broadcast, "images that do not broadcast", self.image)?;
        self.epilogue.check(1)
    }

    pub(super) fn sizes(&self, k: &mut Builder, flat: bool) -> Result<Sizes> {
        let images = k.symbol("images")?;
        let out = sizes(k, "out", self.axes.len())?;
        let pixels = product(&out);
        let seen = if flat { vec![pixels.clone()] } else { sizes(k, "in", self.axes.len())? };
        let stride = (self.image == Stride::Symbol).then(|| k.symbol("x_stride0")).transpose()?;
        Ok(Sizes { images, pixels, out, seen, stride })
    }

    /// Declares x: `[images, groups, channels/group, …]`.
    pub(super) fn image(&self, k: &mut Builder, sizes: &Sizes) -> Result<TensorId> {
        let channels = [self.group, self.channels[0] / self.group].map(Expr::from);
        let one: Vec<Expr> = channels.into_iter().chain(sizes.seen.clone()).collect();
        let stride = sizes.stride.as_ref().map_or_else(|| product(&one), Expr::from);
        let images = Layout::of(&sizes.images, stride);
        k.param("x", [vec![images], Layout::rows(one)].concat(), self.scalar)
    }

    /// The matrix of results whose channels are innermost: declares the epilogue's operands, those of channels as rows, and
    /// the results, Y, Y_2, ….
    pub(super) fn channels_last(&self, k: &mut Builder, sizes: &Sizes) -> Result<Declared> {
        let (m, n) = (sizes.pixels.clone() * &sizes.images, Expr::from(self.channels[1]));
        let whole = Layout::rows([m.clone(), n.clone()]);
        let shapes = [Layout::rows([n.clone()]).into(), whole.into()];
        let mut epilogue = self.declare(k, shapes, Edges::Bulk)?;
        for (span, _) in epilogue.operands.iter_mut().filter(|of| of.0 == Span::Column) {
            *span = Span::Row;
        }
        Ok(Declared { m, n, batch: None, terms: Vec::new(), epilogue })
    }

    /// Declares the epilogue's operands, `[groups, output channels/group]` or as a result, and the results, Y, Y_2, …:
    /// `[images · groups, output channels/group, pixels]`.
    pub(super) fn outer(&self, k: &mut Builder, sizes: &Sizes, edges: Edges) -> Result<Attached> {
        let made = self.channels[1] / self.group;
        let whole = [Expr::from(&sizes.images) * self.group, made.into(), sizes.pixels.clone()];
        let channels = Layout::rows([self.group, made]);
        self.declare(k, [channels.into(), Layout::rows(whole).into()], edges)
    }

    /// Declares operands by channel, whole ones and results, of these shapes.
    fn declare(&self, k: &mut Builder, shapes: [View; 2], edges: Edges) -> Result<Attached> {
        let [channels, whole] = shapes;
        let (operands, results) = self.epilogue.declare(k, self.scalar, 0, |span| match span {
            Some(Span::Column | Span::Row | Span::Number) => ("bias", channels.clone()),
            Some(Span::Whole) => ("R", whole.clone()),
            None => ("Y", whole.clone()),
        })?;
        Ok(Attached::new(&self.epilogue, operands, results, edges))
    }

    /// What is declared outside, in a group: of operands `[groups, output channels/group]` it has the group's.
    pub(super) fn grouped(&self, k: &mut Builder, of: &Attached, group: &Expr) -> Result<Attached> {
        let mut own = of.clone();
        for (_, of) in own.operands.iter_mut().filter(|operand| operand.0 != Span::Whole) {
            let row = tile_of(k, *of, "own", &[Tiler::Size(1), Tiler::Whole], [group, &0.into()])?;
            *of = k.reshape(row, "own", 0, &[&[(self.channels[1] / self.group, 1)]])?;
        }
        Ok(own)
    }
}

/// A kernel's symbols.
pub(super) struct Sizes {
    pub(super) images: Var,
    /// Pixels of a result's image, in all and along each axis.
    pub(super) pixels: Expr,
    pub(super) out: Vec<Expr>,
    /// Those of an image that is read; one axis where all of an image are one.
    pub(super) seen: Vec<Expr>,
    /// From image to image that is read, unless they are packed.
    stride: Option<Var>,
}

impl Sizes {
    /// Finishes the sums of a run of pixels among those of all images; results have a matrix for each image and each of so
    /// many groups. Where they are `wide` all of a run are of one image.
    pub(super) fn leave(
        &self,
        k: &mut Builder,
        (group, groups): (&Expr, i64),
        epilogue: &Attached,
        (sums, run): (TensorId, &Run),
    ) -> Result {
        // The run of so many pixels that has this number.
        let placed = |number: Expr, n: i64| {
            let runs = self.pixels.div(n);
            let batch = Some(number.div(&runs) * groups + group);
            Run { batch, column: number.rem(&runs), n, ..run.clone() }
        };
        if epilogue.wide {
            return epilogue.leave(k, sums, &placed(run.column.clone(), run.n));
        }
        let singles = k.tile(sums, "singles", &[Tiler::Size(1)])?;
        each(k, run.n, |k, i| {
            let sum = k.index(singles, "sum", [&i])?;
            epilogue.leave(k, sum, &placed(run.column.clone() * run.n + i, 1))
        })
    }
}

/// A pixel of a result, or a run of them.
pub(super) struct Place {
    pub(super) image: Expr,
    /// Along each spatial axis.
    pub(super) at: Vec<Expr>,
}

impl Place {
    /// The place with this number among those of all images, of these sizes.
    pub(super) fn of(k: &mut Builder, number: &Expr, sizes: &[Expr]) -> Result<Place> {
        let all = product(sizes);
        let image = k.let_("image", number.div(&all))?.into();
        let pixel = Expr::from(k.let_("pixel", number.rem(&all))?);
        let at = coordinates(k, pixel, sizes)?;
        Ok(Place { image, at })
    }
}
