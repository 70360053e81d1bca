//! Convolutions as matrix products (implicit GEMM): of the weights, a row for each output channel, by a
//! matrix that is nowhere in memory, a column for each output pixel of each image with all that its
//! window sees. Tiles of that matrix are gathered from the image as they are needed.
//!
//! Images are `[images, channels, …]` with any number of spatial axes, weights
//! `[output channels, channels/group, …]`, as ONNX has both. Neighbouring columns are neighbouring
//! pixels: results leave as they lie, and a tile goes on from one image to the next.
//!
//! - this file: what is computed, the parameters, and the kernel's outline;
//! - `operands`: a kernel's tensors;
//! - `gather`: how tiles of pixels come;
//! - `sliding`: convolutions with few channels in a group, and poolings, by single threads.

mod gather;
mod operands;
mod sliding;

use self::gather::Gather;
use self::operands::{Images, Sizes};
pub use self::sliding::{Fold, Sliding};
use super::access::{Stride, product};
use super::epilogue::{Across, Attached, Epilogue, Run, Span};
use super::mma::Fragments;
use super::product::{Edges, Place, Walk, line};
use super::simt::Own;
use super::stage::{Movers, Side};
use crate::arch::Arch;
use crate::build::Builder;
use crate::choose::in_registers;
use crate::error::{Error, Result};
use crate::index::{Cond, Expr, Var};
use crate::kernel::{Kernel, TensorId};
use crate::schedule::multistage_through_registers;
use crate::tensor::{Scalar, Shape};

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

/// Who multiplies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum By {
    /// Warps, by tensor cores: halves, or single precision rounded to TF32.
    Warps,
    /// Threads, by fused multiply-adds in single precision: so many rows and columns each.
    Threads([i64; 2]),
}

/// The parameters of a convolution.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Conv {
    /// What is computed.
    pub convolution: Convolution,
    /// What the kernel is written for; it runs on newer ones, too.
    pub arch: Arch,
    /// Who multiplies.
    pub by: By,
    /// How weights move: in bulk, they start at a multiple of 16 bytes, and so does each output
    /// channel's.
    pub weights: Edges,
    /// How pixels move: in bulk, each channel's pixels of the results start at a multiple of 16 bytes,
    /// and those of the image as well where windows are of one element and see all of them.
    pub pixels: Edges,
    /// Output channels and pixels of a block's tile, as of a product by warps or by threads.
    pub tile: [i64; 2],
    /// The depth of a stage.
    pub depth: i64,
    /// Warps of a block.
    pub warps: i64,
    /// Stages in shared memory.
    pub stages: i64,
    /// Rows of tiles that are walked together, so that operands stay in the L2 cache.
    pub raster: i64,
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

impl Default for Conv {
    fn default() -> Conv {
        Conv {
            convolution: Convolution::default(),
            arch: Arch::Sm80,
            by: By::Warps,
            weights: Edges::Bulk,
            pixels: Edges::Bulk,
            tile: [128, 128],
            depth: 32,
            warps: 4,
            stages: 4,
            raster: 8,
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
    fn seen(&self, at: &[Expr], element: &Expr) -> Vec<Expr> {
        let windows: Vec<Expr> = self.axes.iter().map(|axis| Expr::from(axis.window)).collect();
        let each = |(i, axis): (usize, &Axis)| {
            let element = element.div(&product(&windows[i + 1..])).rem(&windows[i]);
            at[i].clone() * axis.stride + element * axis.dilation - axis.pad
        };
        self.axes.iter().enumerate().map(each).collect()
    }

    /// Whether each output pixel sees its own pixel alone.
    fn is_pointwise(&self) -> bool {
        self.axes.iter().all(|axis| axis.window == 1 && axis.stride == 1 && axis.pad == 0)
    }

    fn check(&self) -> Result<()> {
        let refuse = |why: &str| Err(Error::Kernel(format!("{why}: {self:?}")));
        let [read, made] = self.channels;
        if self.group < 1 || read < 1 || made < 1 || read % self.group + made % self.group != 0 {
            return refuse("channels are multiples of groups");
        }
        let fits = |axis: &Axis| axis.window >= 1 && axis.stride >= 1 && axis.dilation >= 1;
        if self.axes.is_empty() || !self.axes.iter().all(fits) {
            return refuse("windows along one axis at least, of an element at least, that move");
        }
        if self.epilogue.operands.iter().any(|input| input.span == Span::Row) {
            return refuse("operands a channel, or of the results' shape");
        }
        if self.image == Stride::Broadcast {
            return refuse("images are apart");
        }
        self.epilogue.check()
    }
}

impl Conv {
    /// The kernel, with symbols `images`, `out0`, `out1`, … for the sizes of results along the spatial
    /// axes, and `in0`, `in1`, … for those of the images, unless [`is_flat`](Conv::is_flat).
    ///
    /// # Errors
    /// [`Error::Kernel`] for parameters that no kernel has.
    pub fn kernel(&self) -> Result<Kernel> {
        self.check()?;
        let convolution = &self.convolution;
        let threads = 32 * self.warps;
        let sides = self.sides();
        sides[0].check(self.weights)?;
        let mut k = Builder::new("conv", self.arch);
        let sizes = convolution.sizes(&mut k, self.is_flat())?;
        let x = convolution.image(&mut k, &sizes)?;
        let [made, depth] = [convolution.channels[1] / convolution.group, convolution.depth()];
        let w = Shape::rows([convolution.group, made, depth]);
        let w = k.param("w", w, convolution.scalar)?;
        let outer = convolution.outer(&mut k, &sizes)?;
        let walk = self.walk(&sizes);
        let grid = k.grid("grid", line(walk.count()))?;
        let block = k.block("block", line(threads))?;
        let one = k.scalar(block, "one")?;
        let [t] = k.indices(grid, ["t"])?;
        let [thread] = k.indices(block, ["thread"])?;
        let place = walk.place(&mut k, &t)?;
        let group = place.batch.clone().unwrap_or(Expr::from(0));
        let movers = Movers { threads, thread: &thread, one, edges: self.weights };
        let gather = Gather::new(&mut k, self, &sizes, x, sides[1], [&group, &place.n], movers)?;
        let units = match self.by {
            By::Warps => Units::Warps(Fragments::new(&mut k, block, sides, self.warps)?),
            By::Threads(part) => Units::Threads(Own::new(&mut k, block, sides, part, self.warps)?),
        };
        let [a, b] = sides;
        let weights = a.tiled(&mut k, w, true)?;
        let shared =
            [a.allocate(&mut k, "sW", self.stages)?, b.allocate(&mut k, "sX", self.stages)?];
        let acc = units.clear(&mut k)?;
        let count = (depth + self.depth - 1) / self.depth;
        let within = |k: &mut Builder, step: &Expr, body: &dyn Fn(&mut Builder, &Expr) -> Done| {
            match step.constant() {
                Some(step) if step >= count => Ok(()),
                Some(_) => body(k, step),
                None => k.if_(Cond::less(step, count), |k| {
                    // It is no other step: that its number is bounded, bounds channels.
                    let step = k.let_("step", step.clone().min(Expr::from(count - 1)))?;
                    body(k, &step.into())
                }),
            }
        };
        let fetch = |k: &mut Builder, step: &Expr, stage: &Var| {
            within(k, step, &|k, step| {
                let from = k.index(weights, "tile", [&group, &place.m, step])?;
                let to = k.index(shared[0], "stage", [stage])?;
                a.fill(k, from, to, movers)?;
                gather.fetch(k, step, shared[1], stage)
            })
        };
        let settle = |k: &mut Builder, step: &Expr, stage: &Var| {
            if !gather.holds() {
                return Ok(());
            }
            within(k, step, &|k, _| gather.settle(k, shared[1], stage))
        };
        multistage_through_registers(
            &mut k,
            self.stages,
            &Expr::from(count),
            block,
            [&fetch, &settle],
            |k, _, stage| {
                let [a, b] = shared;
                let [a, b] = [k.index(a, "a", [stage])?, k.index(b, "b", [stage])?];
                units.multiply(k, acc, [a, b])
            },
        )?;
        let epilogue = outer.attach(&mut k, convolution, &group, self.pixels)?;
        let images = Images { group, groups: convolution.group, pixels: &sizes.pixels };
        units.each_run(&mut k, acc, &epilogue, self.tile, &place, |k, sums, run, across| {
            images.leave(k, &epilogue, sums, run, across, one)
        })?;
        k.finish(outer.results.clone(), [vec![x, w], outer.ins()].concat())
    }

    /// Whether all pixels of an image are one axis: windows are single elements.
    pub fn is_flat(&self) -> bool {
        self.pixels == Edges::Bulk && self.convolution.is_pointwise()
    }

    /// The weights' tiles, and those of pixels.
    fn sides(&self) -> [Side; 2] {
        [0, 1].map(|i| {
            let (right, scalar) = (i == 1, self.convolution.scalar);
            let chunk = match self.by {
                By::Warps => Fragments::chunk(scalar, right),
                By::Threads(_) => 16,
            };
            let (size, depth) = (self.tile[i], self.depth);
            Side { right, size, depth, transposed: right, scalar, chunk }
        })
    }

    /// Tiles of each group, group by group.
    fn walk(&self, sizes: &Sizes) -> Walk {
        let Convolution { channels, group, .. } = self.convolution;
        let columns = sizes.pixels.clone() * &sizes.images;
        let tiles = |extent: Expr, size: i64| extent.ceil_div(&Expr::from(size));
        Walk {
            tiles_m: tiles(Expr::from(channels[1] / group), self.tile[0]),
            tiles_n: tiles(columns, self.tile[1]),
            batch: (group > 1).then(|| Expr::from(group)),
            raster: self.raster,
        }
    }

    fn check(&self) -> Result<()> {
        self.convolution.check()?;
        let refuse = |why: &str| Err(Error::Kernel(format!("{why}: {self:?}")));
        if self.arch < Arch::Sm80 || self.raster < 1 || !(1..=32).contains(&self.warps) {
            return refuse("a band has a row, a block 1 to 32 warps, of sm_80 or newer");
        }
        if self.convolution.channels[1] == self.convolution.group {
            // A view along a single channel knows no row beyond it.
            return refuse(
                "a group that makes one channel has no rows for tiles; `Sliding` takes it",
            );
        }
        let unit = match self.by {
            By::Warps => 16,
            By::Threads(_) => 4,
        };
        if self.stages < 2 || self.depth < unit || self.depth % unit != 0 {
            return refuse("two stages at least, of a depth of 16, 32, … or by threads 4, 8, …");
        }
        if self.tile.iter().any(|size| *size < unit) {
            return refuse("a tile has 16 rows and columns at least");
        }
        if let By::Threads(thread) = self.by
            && (thread.iter().any(|size| *size < 4 || size % 4 != 0)
                || self.convolution.scalar != Scalar::F32)
        {
            return refuse("a thread has fours of rows and columns, in single precision");
        }
        if self.weights == Edges::Bulk && self.convolution.depth() * self.scalar_bytes() % 16 != 0 {
            return refuse("weights of an output channel that do not begin at 16 bytes");
        }
        if !in_registers(self.tile[0] * self.tile[1], 32 * self.warps) {
            return refuse("a thread has too many sums");
        }
        Ok(())
    }

    fn scalar_bytes(&self) -> i64 {
        self.convolution.scalar.bytes()
    }
}

type Done = Result<()>;

/// Who multiplies, and where they stand.
enum Units {
    Warps(Fragments),
    Threads(Own),
}

impl Units {
    /// The sums, all 0.
    fn clear(&self, k: &mut Builder) -> Result<TensorId> {
        match self {
            Units::Warps(fragments) => fragments.clear(k),
            Units::Threads(own) => own.clear(k),
        }
    }

    /// Adds the products of a stage.
    fn multiply(&self, k: &mut Builder, acc: TensorId, [a, b]: [TensorId; 2]) -> Result<()> {
        match self {
            Units::Warps(fragments) => fragments.multiply(k, acc, a, &Expr::from(0), b),
            Units::Threads(own) => own.multiply(k, acc, a, &Expr::from(0), b),
        }
    }

    /// Goes through the own sums in runs of neighbouring columns.
    fn each_run(
        &self,
        k: &mut Builder,
        acc: TensorId,
        epilogue: &Attached,
        tile: [i64; 2],
        place: &Place,
        body: impl Fn(&mut Builder, TensorId, &Run, &Across) -> Result<()>,
    ) -> Result<()> {
        let origin = |n: i64| [place.m.clone() * tile[0], place.n.clone() * (tile[1] / n)];
        match self {
            Units::Warps(fragments) => {
                fragments.each_pair(k, acc, epilogue, None, &origin(2), body)
            }
            Units::Threads(own) => own.each_run(k, acc, epilogue, None, &origin(own.run()), body),
        }
    }
}
