//! Windows by single threads: convolutions with few channels in a group, transposed ones, and poolings.
//!
//! Each thread computes one pixel of a result, element by element of its window.
//!
//! Levels:
//!
//! - kernel: results of images, and of weights where there are any
//!   - registers by a thread: what becomes of the sum of a pixel

use super::convolution::{Place, Sizes};
use super::{Axis, Convolution};
use crate::schedule::{constant, moved, vector};
use crate::template::{access::launch, epilogue::Run, matmul::Edges};
use crate::{
    Arch, Binary, Builder, Cond, Expr, Fused, Header, Kernel, Kind, Layout, Operand, Result,
    Scalar, TensorId, Test, Within, needs,
};

/// What becomes of a window's elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Fold {
    /// They are multiplied by weights, and added over all channels of a group.
    Weighted,
    /// Likewise, by the transpose of a convolution: strides, dilations and pads are of the result, and
    /// weights `[channels, output channels/group, …]`.
    Transposed,
    /// The largest; NaN if one is. What lies outside of the image does not take part.
    Max,
    /// The sum.
    Sum,
    /// The mean of those inside of the image; NaN of none.
    Mean,
}

parameters! {
    /// The parameters of a kernel of windows. Poolings have a group for each channel.
    /// By default of 64 channels, each by its own 3×3 weights.
    pub struct Sliding {
        /// What is computed.
        pub convolution: Convolution = Convolution { group: 64, ..Convolution::default() },
        /// How.
        pub fold: Fold = Fold::Weighted,
        /// Whether channels are innermost in memory, of packed images, each in a group of its own: 16 bytes of them at a time.
        pub channels_last: bool = false,
        /// Neighbouring pixels of a thread along the last axis, where channels are innermost.
        pub pixels: i64 = 1,
        /// What the kernel is written for; it runs on newer ones, too.
        pub arch: Arch = Arch::Sm80,
        /// Threads of a block.
        pub threads: i64 = 256,
    }
}

impl Sliding {
    /// The kernel, with the symbols of a [`Conv`](super::Conv::kernel) that is not flat.
    pub fn kernel(&self) -> Result<Kernel> {
        self.check()?;
        if self.channels_last {
            return self.channelwise();
        }
        let convolution = &self.convolution;
        let mut k = Builder::new("sliding", self.arch);
        let sizes = convolution.sizes(&mut k, false)?;
        let x = convolution.image(&mut k, &sizes)?;
        let w = self.weights().map(|w| k.param("w", w, convolution.scalar)).transpose()?;
        let outer = convolution.outer(&mut k, &sizes, Edges::Moves)?;
        let made = convolution.channels[1];
        let all = sizes.pixels.clone() * &sizes.images * made;
        let (block, t) = launch(&mut k, all.ceil_div(self.threads), self.threads, "t")?;
        let [thread] = k.indices(block, ["thread"])?;
        let pixel = t * self.threads + Expr::from(thread);
        let plane = Place::of(&mut k, &pixel, &sizes.out)?;
        // Of all planes, those of an image lie together.
        let channel = plane.image.rem(made);
        let of_group = made / convolution.group;
        let image = k.let_("own_image", plane.image.div(made))?.into();
        let group = Expr::from(k.let_("group", channel.div(of_group))?);
        let row = k.let_("row", channel.rem(of_group))?.into();
        let total = vector(&mut k, "total", 1, Scalar::F32)?;
        k.init(Operand::at(total, [0]), self.folded().0)?;
        let count = || constant(&mut k, "count", Scalar::F32, 0.0);
        let count = (self.fold == Fold::Mean).then(count).transpose()?;
        let own = Own { sliding: self, x, w, image, group, row, at: plane.at, total, count };
        own.window(&mut k)?;
        let epilogue = convolution.grouped(&mut k, &outer, &own.group)?;
        let batch = Some(own.image.clone() * convolution.group + &own.group);
        let column = pixel.rem(&sizes.pixels);
        let held = epilogue.across(&mut k, Vec::new(), (&column, 1))?;
        let run = Run { batch, row: own.row.clone(), column, n: 1, held };
        epilogue.leave(&mut k, total, &run)?;
        let ins = [x].into_iter().chain(w).chain(outer.ins()).collect::<Vec<_>>();
        k.finish_as(Header::new(self.kind(&sizes), outer.results, ins, block))
    }

    fn kind(&self, sizes: &Sizes) -> Kind {
        let (convolution, n) = (&self.convolution, self.convolution.axes.len());
        let fold = |image| {
            let (fill, op) = self.folded();
            let along: Vec<usize> = (3 + n..3 + 2 * n).collect();
            convolution.columns(convolution.windows(3, image, sizes, fill).folded(op, along))
        };
        let weighed = |windows| Fused::input(1).merge(2).matmul(convolution.columns(windows));
        let image = Fused::input(0);
        let sums = match self.fold {
            Fold::Weighted => weighed(convolution.windows(3, image, sizes, 0.0)),
            Fold::Transposed => weighed(self.transposed(sizes)),
            Fold::Max | Fold::Sum => fold(image),
            Fold::Mean => {
                let ones = image.clone().position(0) * 0.0 + 1.0;
                fold(image) / fold(ones)
            }
        };
        convolution.kind(sums, 1 + usize::from(self.weights().is_some()), sizes)
    }

    /// From what on a window is folded, and by what.
    pub(super) fn folded(&self) -> (f64, Binary) {
        match self.fold {
            Fold::Max => (f64::NEG_INFINITY, Binary::MaxNan),
            Fold::Weighted | Fold::Transposed | Fold::Sum | Fold::Mean => (0.0, Binary::Add),
        }
    }

    /// Windows of a transposed convolution: of the image with zeros between its elements, and backwards.
    fn transposed(&self, sizes: &Sizes) -> Fused {
        let n = self.convolution.axes.len();
        let apart = |x: Fused, (i, axis): (usize, &Axis)| {
            let (at, rank) = (4 + i, 3 + n);
            let dims = (0..at).map(Some).chain([None]).chain((at..rank).map(Some));
            let one = Axis { window: 1, stride: 1, dilation: 1, pad: 0 };
            let zeros = one.windows(axis.stride.into(), 0.0);
            let apart = x.dims(dims.collect::<Vec<_>>()).window(at, zeros).merge(3 + i);
            apart.dims((0..rank).map(Some).collect::<Vec<_>>())
        };
        let image = self.convolution.axes.iter().enumerate().fold(Fused::input(0), apart);
        let mut backwards = self.convolution.clone();
        for Axis { stride, dilation, pad, .. } in &mut backwards.axes {
            (*stride, *dilation, *pad) = (1, -*dilation, -*pad);
        }
        backwards.windows(3, image, sizes, 0.0)
    }

    /// How weights lie: for each group, `[output channels, channels, window]`.
    fn weights(&self) -> Option<[Layout<Expr>; 4]> {
        let Convolution { channels, group, .. } = self.convolution;
        let ([read, made], taps) = (channels.map(|all| all / group), self.convolution.taps());
        let [made_by, read_by] = match self.fold {
            Fold::Weighted => [read * taps, taps],
            Fold::Transposed => [taps, made * taps],
            Fold::Max | Fold::Sum | Fold::Mean => return None,
        };
        let dims = [(group, read * made * taps), (made, made_by), (read, read_by), (taps, 1)];
        Some(dims.map(|(size, stride)| Layout::of(size, stride)))
    }

    fn check(&self) -> Result {
        self.convolution.check()?;
        let Convolution { channels, group, .. } = self.convolution;
        let weighted = self.weights().is_some();
        needs(weighted || channels == [group; 2], "a group for each channel to pool", channels)?;
        Within(1, 1024).check("threads", self.threads)
    }
}

/// Up to so many elements of a window are written out.
pub(super) const WRITTEN_OUT: i64 = 32;

/// What the parts of the kernel share: the own pixel, and the registers that its window is folded to.
struct Own<'a> {
    sliding: &'a Sliding,
    x: TensorId,
    w: Option<TensorId>,
    image: Expr,
    /// The group, and the output channel in it.
    group: Expr,
    row: Expr,
    at: Vec<Expr>,
    total: TensorId,
    count: Option<TensorId>,
}

impl Own<'_> {
    /// Folds the own pixel's window.
    fn window(&self, k: &mut Builder) -> Result {
        let convolution = &self.sliding.convolution;
        let (read, taps) = (convolution.channels[0] / convolution.group, convolution.taps());
        k.for_("c", 0..read, 1, false, |k, channel| {
            k.for_("tap", 0..taps, 1, taps <= WRITTEN_OUT, |k, tap| {
                let (channel, tap) = (Expr::from(channel), Expr::from(tap));
                let (seen, conds) = self.seen(&tap);
                let image = [self.image.clone(), self.group.clone(), channel.clone()];
                let from = Operand::at(self.x, image.into_iter().chain(seen));
                let at = [self.group.clone(), self.row.clone(), channel, tap];
                let w = self.w.map(|w| Operand::at(w, at));
                let test = Test::Inside(from.clone());
                let inside = |k: &mut Builder| k.if_(test, |k| self.fold(k, from, w));
                if conds.is_empty() { inside(k) } else { k.if_(conds, inside) }
            })
        })?;
        let Some(count) = self.count else { return Ok(()) };
        let total = Operand::at(self.total, [0]);
        k.binary(Binary::Div, total.clone(), [total, count.into()])
    }

    /// Where in the image an element of the window is, and under which conditions it is anywhere.
    fn seen(&self, tap: &Expr) -> (Vec<Expr>, Vec<Cond>) {
        let convolution = &self.sliding.convolution;
        if self.sliding.fold != Fold::Transposed {
            return (convolution.seen(&self.at, tap), Vec::new());
        }
        let (mut seen, mut conds) = (Vec::new(), Vec::new());
        for (i, Axis { window, stride, dilation, pad }) in convolution.axes.iter().enumerate() {
            // Steps that are added before and taken away after, as quotients are not negative.
            let before = ((window - 1) * dilation - pad).max(0) / stride + 1;
            let place = self.at[i].clone() + (before * stride + pad)
                - convolution.along(i, tap) * *dilation;
            let stride = Expr::from(*stride);
            seen.push(place.div(&stride) - before);
            if !stride.is(1) {
                conds.push(Cond::equal(place.rem(&stride), 0));
            }
        }
        (seen, conds)
    }

    /// Folds an element into the total.
    fn fold(&self, k: &mut Builder, from: Operand, w: Option<Operand>) -> Result {
        let total = Operand::at(self.total, [0]);
        let x = self.load(k, from)?;
        if let Some(w) = w {
            let w = self.load(k, w)?;
            return k.fma(total, [x, w]);
        }
        k.reduce(self.sliding.folded().1, total, x)?;
        let Some(count) = self.count else { return Ok(()) };
        let one = constant(k, "one_more", Scalar::F32, 1.0)?;
        k.reduce(Binary::Add, count, one)
    }

    /// An element in single precision.
    fn load(&self, k: &mut Builder, from: Operand) -> Result<TensorId> {
        let scalar = self.sliding.convolution.scalar;
        let raw = moved(k, "raw", scalar, from)?;
        if scalar == Scalar::F32 { Ok(raw) } else { moved(k, "wide", Scalar::F32, raw) }
    }
}
