//! Convolutions as matmuls (implicit GEMM): of the weights, a row for each output channel, by a
//! matrix that is nowhere in memory, a column for each output pixel of each image with all that its
//! window sees. Tiles of that matrix are gathered from the image as they are needed.
//!
//! Images are `[images, channels, …]` with any number of spatial axes, weights
//! `[output channels, channels/group, …]`, as ONNX has both. Neighbouring columns are neighbouring
//! pixels: results leave as they lie, and a tile goes on from one image to the next.
//!
//! Levels:
//!
//! - kernel: results of images and weights; a tile of them may go on in the next image, so that it is no view of them
//!   - reduction by a block: a tile's sums
//!     - load by a block: a stage of weights, or of what pixels see; what is too narrow for a copy comes through registers
//!     - stage by a block: adds a matmul of both to the sums
//!   - registers by a thread: what becomes of a run of sums, which leaves as it lies
//!
//! `channels_last` has the same of images whose channels are innermost in memory, `channelwise` depthwise ones and poolings
//! of such, and `sliding` convolutions with few channels in a group, and poolings, by single threads.

mod channels_last;
mod channelwise;
mod convolution;
mod filled;
mod gather;
mod sliding;

pub use self::channels_last::ChannelsLast;
use self::convolution::Sizes;
pub use self::convolution::{Axis, Convolution};
pub use self::filled::Filled;
use self::gather::Gather;
pub use self::sliding::{Fold, Sliding};
use super::matmul::{Edges, MatMul, Place, Walk, tile_of};
pub use super::tiled_mma::By;
use super::{access::launch, multistage::Multistage, stage::Movers};
use crate::choose::ceil;
use crate::schedule::{multistage_through_registers, within};
use crate::{Arch, Builder, Expr, Fused, Header, Kernel, Kind, Layout, Result, Tiler, Var, needs};

parameters! {
    /// The parameters of a convolution.
    pub struct Conv {
        /// What is computed.
        pub convolution: Convolution = Convolution::default(),
        /// What the kernel is written for; it runs on newer ones, too.
        pub arch: Arch = Arch::Sm80,
        /// Who multiplies.
        pub by: By = By::Warps,
        /// How weights move: in bulk, they start at a multiple of 16 bytes, and so does each output channel's.
        pub weights: Edges = Edges::Bulk,
        /// How pixels move: in bulk, each channel's pixels of the results start at a multiple of 16 bytes,
        /// and those of the image as well where windows are of one element and see all of them.
        pub pixels: Edges = Edges::Bulk,
        /// Output channels and pixels of a block's tile, as of a matmul by warps or by threads.
        pub tile: [i64; 2] = [128, 128],
        /// The depth of a stage.
        pub depth: i64 = 32,
        /// Warps of a block.
        pub warps: i64 = 4,
        /// Stages in shared memory.
        pub stages: i64 = 4,
        /// Rows of tiles that are walked together, so that operands stay in the L2 cache.
        pub raster: i64 = 8,
    }
}

impl Conv {
    /// The kernel, with symbols `images`, `out0`, `out1`, … for the sizes of results along the spatial
    /// axes, and `in0`, `in1`, … for those of the images, unless [`is_flat`](Conv::is_flat).
    pub fn kernel(&self) -> Result<Kernel> {
        self.check()?;
        let convolution = &self.convolution;
        let threads = 32 * self.warps;
        let [a, b] = self.matmul().sides();
        a.check(self.weights)?;
        let mut k = Builder::new("conv", self.arch);
        let sizes = convolution.sizes(&mut k, self.is_flat())?;
        let x = convolution.image(&mut k, &sizes)?;
        let (group, depth) = (convolution.group, convolution.depth());
        let w = Layout::rows([group, convolution.channels[1] / group, depth]);
        let w = k.param("w", w, convolution.scalar)?;
        let outer = convolution.outer(&mut k, &sizes, self.pixels)?;
        let walk = self.walk(&sizes);
        let (block, t) = launch(&mut k, walk.count(), threads, "t")?;
        let [thread] = k.indices(block, ["thread"])?;
        let mut place = walk.place(&mut k, t)?;
        if walk.tiles_m.is(1) {
            // It is the only one, of which no tile needs to be told apart.
            place.m = Expr::from(0);
        }
        let group = place.batch.clone().unwrap_or(Expr::from(0));
        let movers = Movers { threads, block, thread: &thread, edges: self.weights };
        let gather = Gather::new(&mut k, self, &sizes, x, b, [&group, &place.n], movers)?;
        let mma = self.by.share(&mut k, block, [a, b], self.warps)?;
        let weights = a.tiled(&mut k, w)?;
        let stages = self.stages;
        let shared = [a.allocate(&mut k, "sW", stages)?, b.allocate(&mut k, "sX", stages)?];
        let acc = mma.allocate(&mut k)?;
        let count = ceil(depth, self.depth);
        let fetch = |k: &mut Builder, step: &Expr, stage: &Var| {
            within(k, step, count, |k| {
                let mut step = step.clone();
                if step.constant().is_none() {
                    // It is no other step: that its number is bounded, bounds channels.
                    step = k.let_("step", step.min(count - 1))?.into();
                }
                let from = k.index(weights, "tile", [&group, &place.m, &step])?;
                let to = k.index(shared[0], "stage", [stage])?;
                a.fill(k, from, to, movers)?;
                gather.fetch(k, &step, shared[1], stage)
            })
        };
        let settle = |k: &mut Builder, step: &Expr, stage: &Var| match gather.words {
            Some(_) => within(k, step, count, |k| gather.settle(k, shared[1], stage)),
            None => Ok(()),
        };
        let tiles = [Tiler::Size(1), Tiler::Size(self.tile[0]), Tiler::Whole];
        let rows = tile_of(&mut k, w, "w_tile", &tiles, [&group, &place.m, &0.into()])?;
        let sums = Kind::Fused(Fused::input(1).matmul(gather.columns.clone()));
        let multiply =
            |k: &mut Builder, _: &Var, stage: &Var| mma.add(k, acc, block, shared, stage);
        let (steps, bring) = (Expr::from(count), [&fetch as _, &settle as _]);
        k.decompose(Header::new(sums, acc, [x, rows], block), |k| {
            mma.reset(k, acc)?;
            multistage_through_registers(k, stages, &steps, block, bring, multiply)
        })?;
        let epilogue = convolution.grouped(&mut k, &outer, &group)?;
        let [m, n] = [place.m.clone() * self.tile[0], place.n.clone() * self.tile[1]];
        let origin = Place { batch: None, m, n };
        mma.each_run(&mut k, (acc, 1), &epilogue, &origin, |k, sums, run| {
            sizes.leave(k, (&group, convolution.group), &epilogue, (sums, run))
        })?;
        let ins: Vec<_> = [x, w].into_iter().chain(outer.ins()).collect();
        let sums = Fused::input(1).matmul(self.columns(&sizes));
        let kind = convolution.kind(sums, 2, &sizes);
        k.finish_as(Header::new(kind, outer.results, ins, block))
    }

    /// Whether all pixels of an image are one axis: windows are single elements.
    pub fn is_flat(&self) -> bool {
        let alone = |axis: &Axis| axis.window == 1 && axis.stride == 1 && axis.pad == 0;
        self.pixels == Edges::Bulk && self.convolution.axes.iter().all(alone)
    }

    /// The matrix whose columns are what pixels see.
    fn columns(&self, sizes: &Sizes) -> Fused {
        if self.is_flat() {
            return Fused::input(0).dims([1, 2, 0, 3].map(Some)).merge(2);
        }
        let windows = self.convolution.windows(3, Fused::input(0), sizes, 0.0);
        self.convolution.columns(windows)
    }

    /// The matmul that shares tiles likewise: the weights', and those of pixels.
    fn matmul(&self) -> Multistage {
        let &Conv { arch, by, tile, depth, warps, stages, raster, .. } = self;
        let scalar = self.convolution.scalar;
        let matmul = MatMul { scalar, b_transposed: true, ..MatMul::default() };
        Multistage { matmul, arch, by, tile, depth, warps, stages, raster, ..Multistage::mma() }
    }

    /// Tiles of each group, group by group.
    fn walk(&self, sizes: &Sizes) -> Walk {
        let Convolution { channels, group, .. } = self.convolution;
        let tiles_m = Expr::from(channels[1] / group).ceil_div(self.tile[0]);
        let tiles_n = (sizes.pixels.clone() * &sizes.images).ceil_div(self.tile[1]);
        let batch = (group > 1).then(|| Expr::from(group));
        Walk { tiles_m, tiles_n, batch, raster: self.raster }
    }

    fn check(&self) -> Result {
        self.convolution.check()?;
        self.matmul().check()?;
        let row = self.convolution.depth() * self.convolution.scalar.bytes();
        let aligned = self.weights == Edges::Moves || row % 16 == 0;
        needs(aligned, "weights of a channel in a multiple of 16 bytes for wide copies", row)
    }
}
