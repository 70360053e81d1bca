//! Convolutions of images whose channels are innermost in memory (NHWC), as matmuls: a row for each output pixel of each
//! image, with what its window sees element by element and channel by channel within, by a column of weights for each
//! output channel. Sixteen bytes of channels of one pixel move at once, and results leave as they lie.
//!
//! Weights are `[output channels, window, channels]`, addends and results `[images, pixels, output channels]`. There is
//! one group.
//!
//! Levels:
//!
//! - kernel: results of images and weights
//!   - reduction by a block: a tile's sums
//!     - load by a block: a stage of weights, or of what pixels see
//!     - stage by a block: adds a matmul of both to the sums
//!   - registers by a thread: what becomes of a run of sums, which leaves as it lies
//!   - cluster: of split-K, a tile of results, by blocks that each multiply a part of the depth
//!     - load by a block: a stage of weights, or of what pixels see
//!     - stage by a block: adds a matmul of both to the block's sums
//!     - registers by a thread: what becomes of a run of all blocks' sums

use super::Convolution;
use super::convolution::{Place, Sizes};
use crate::choose::ceil;
use crate::schedule::{WIDTH, begin_copy, copying, neighbours, within};
use crate::template::matmul::{Edges, MatMul, Place as TilePlace, Walk, tile_of};
use crate::template::stage::{Movers, Side};
use crate::template::{access::Stride, multistage::Multistage, tiled_mma::By};
use crate::{
    Arch, Builder, Cond, Expr, Fused, Header, Kernel, Kind, Layout, MultipleOf, Result, TensorId,
    Tiler, Var, needs,
};

parameters! {
    /// The parameters of a convolution whose channels are innermost.
    pub struct ChannelsLast {
        /// What is computed: of packed images in one group, whose channels fill whole sixteens of bytes.
        pub convolution: Convolution = Convolution::default(),
        /// What the kernel is written for; it runs on newer ones, too.
        pub arch: Arch = Arch::Sm80,
        /// Who multiplies: not threads.
        pub by: By = By::Warps,
        /// Pixels and output channels of a block's tile, as of a matmul by these.
        pub tile: [i64; 2] = [128, 64],
        /// The depth of a stage.
        pub depth: i64 = 32,
        /// Warps of a block.
        pub warps: i64 = 4,
        /// Stages in shared memory.
        pub stages: i64 = 4,
        /// Rows of tiles that are walked together, so that operands stay in the L2 cache.
        pub raster: i64 = 8,
        /// Whether the weights exist before the program runs: then their first stages are loaded while kernels before still run.
        pub weights: bool = false,
        /// Into how many parts the depth is split, each a block of a cluster, which adds them up: where few tiles leave most of
        /// the GPU idle.
        pub split: i64 = 1,
    }
}

impl ChannelsLast {
    /// The kernel, with the symbols of a [`Conv`](super::Conv::kernel) that is not flat.
    pub fn kernel(&self) -> Result<Kernel> {
        self.check()?;
        let Convolution { scalar, channels: [read, made], .. } = self.convolution;
        let matmul = self.matmul();
        let [a, b] = matmul.sides();
        let mut k = Builder::new("conv_channels_last", self.arch);
        let sizes = self.convolution.sizes(&mut k, false)?;
        let x = [vec![Expr::from(&sizes.images)], sizes.seen.clone(), vec![read.into()]].concat();
        let x = k.param("x", Layout::rows(x), scalar)?;
        let depth = self.convolution.depth();
        let w = Layout::columns([depth, made]);
        let w = if self.weights { k.constant("w", w, scalar) } else { k.param("w", w, scalar) }?;
        let declared = self.convolution.channels_last(&mut k, &sizes)?;
        let epilogue = &declared.epilogue;
        let walk = Walk::new(&declared, self.tile, self.raster);
        let (block, t, shares) = matmul.launch(&mut k, walk.count())?;
        let [thread] = k.indices(block, ["thread"])?;
        let place = walk.place(&mut k, t)?;
        let (threads, edges) = (32 * self.warps, Edges::Bulk);
        let movers = Movers { threads, block, thread: &thread, edges };
        let rows = Rows::new(&mut k, (self, a), &sizes, x, &place.m, movers)?;
        let mma = self.by.share(&mut k, block, [a, b], self.warps)?;
        let weights = b.tiled(&mut k, w)?;
        let shared =
            [a.allocate(&mut k, "sX", self.stages)?, b.allocate(&mut k, "sW", self.stages)?];
        let acc = mma.allocate(&mut k)?;
        let count = Expr::from(ceil(depth, self.depth));
        let (first, count) =
            shares.as_ref().map_or((Expr::from(0), count.clone()), |shares| shares.steps(&count));
        let multiply = |k: &mut Builder| {
            let fetch_pixels = |k: &mut Builder, step: &Expr, stage: &Var| {
                within(k, step, &count, |k| {
                    rows.fetch(k, &(first.clone() + step), shared[0], stage)
                })
            };
            let fetch_weights = |k: &mut Builder, step: &Expr, stage: &Var| {
                within(k, step, &count, |k| {
                    let from = k.index(weights, "tile", [&(first.clone() + step), &place.n])?;
                    let to = k.index(shared[1], "stage", [stage])?;
                    b.fill(k, from, to, movers)
                })
            };
            mma.sum_up(
                k,
                acc,
                (self.stages, block),
                &count,
                shared,
                (Some(&fetch_weights), &fetch_pixels),
            )
        };
        let columns = [Tiler::Whole, Tiler::Size(self.tile[1])];
        let factor = tile_of(&mut k, w, "w_tile", &columns, [&Expr::from(0), &place.n])?;
        let of_tile = rows.columns.clone().matmul(Fused::input(1));
        let [m, n] = [place.m.clone() * self.tile[0], place.n.clone() * self.tile[1]];
        let origin = TilePlace { batch: None, m, n };
        let store = |k: &mut Builder| mma.leave(k, (acc, 1), epilogue, &origin);
        match &shares {
            Some(shares) => {
                let part = declared.part(&mut k, self.tile, &place)?;
                let ins = [&[x, factor], &part.operands[..]].concat();
                let kind = Kind::Fused(epilogue.fused([of_tile], 2));
                let tile = Header::new(kind, part.results, ins, block).on(shares.blocks);
                k.decompose(tile, |k| {
                    multiply(k)?;
                    mma.add_up(k, shares, block, acc, |k, _| store(k))
                })?;
                // A block stays while others may still write there: a rule of all clusters.
                k.add(Header::new(Kind::Sync, (), (), block).on(shares.blocks))?;
            }
            None => {
                let sums = Header::new(Kind::Fused(of_tile), acc, [x, factor], block);
                k.decompose(sums, multiply)?;
                store(&mut k)?;
            }
        }
        let kind = epilogue.fused([self.columns(&sizes).matmul(Fused::input(1))], 2);
        let ins: Vec<TensorId> = [x, w].into_iter().chain(epilogue.ins()).collect();
        k.finish_as(Header::new(Kind::Fused(kind), epilogue.results.clone(), ins, block))
    }

    /// The matrix whose rows are what pixels see.
    fn columns(&self, sizes: &Sizes) -> Fused {
        let n = self.convolution.axes.len();
        let windows = self.convolution.windows(1, Fused::input(0), sizes, 0.0);
        let dims = [0..1 + n, 2 + n..2 + 2 * n, 1 + n..2 + n].into_iter().flatten().map(Some);
        let merge = |x: Fused, dim: usize| (0..n).fold(x, |x, _| x.merge(dim));
        merge(merge(windows.dims(dims.collect::<Vec<_>>()), 0), 1)
    }

    /// The matmul that shares tiles likewise: those of what pixels see, and the weights'.
    fn matmul(&self) -> Multistage {
        let &ChannelsLast { arch, by, tile, depth, warps, stages, raster, split, .. } = self;
        let matmul = MatMul { scalar: self.convolution.scalar, ..MatMul::default() };
        let edges = Edges::Bulk;
        Multistage { matmul, arch, edges, by, tile, depth, warps, stages, raster, split }
    }

    fn check(&self) -> Result {
        self.convolution.check()?;
        self.matmul().check()?;
        let &ChannelsLast { depth, warps, .. } = self;
        let Convolution { scalar, channels, group, image, .. } = self.convolution;
        needs(!matches!(self.by, By::Threads(_)), "matmuls by tensor cores", self.by)?;
        needs(group == 1, "one group", group)?;
        needs(image == Stride::Packed, "packed images", image)?;
        let wide = MultipleOf(WIDTH / scalar.bytes());
        channels.iter().try_for_each(|&all| wide.check("channels", all))?;
        wide.check("as the depth of a stage", depth)?;
        let runs = depth * scalar.bytes() / WIDTH;
        needs(32 * warps % runs == 0, "threads that share a stage's rows", (warps, depth))
    }
}

/// A thread's part of each tile of what pixels see: sixteen bytes of some rows, the same in all tiles, so that it finds
/// out only once where their pixels are.
struct Rows<'a> {
    convolution: &'a Convolution,
    side: Side,
    movers: Movers<'a>,
    x: TensorId,
    images: Expr,
    /// What the tile's pixels see.
    columns: Fused,
    /// The own rows' pixels.
    places: Vec<Place>,
    /// The own run in a row of a tile, and the first own row.
    own: Expr,
    row: Expr,
    /// How many rows all threads move at once.
    rows: i64,
}

impl Rows<'_> {
    /// For the tile of this number.
    fn new<'a>(
        k: &mut Builder,
        (conv, side): (&'a ChannelsLast, Side),
        sizes: &Sizes,
        x: TensorId,
        tile: &Expr,
        movers: Movers<'a>,
    ) -> Result<Rows<'a>> {
        let runs = side.depth / side.piece(Edges::Bulk);
        let rows = movers.threads / runs;
        let thread = Expr::from(movers.thread);
        let own = k.let_("own_run", thread.rem(runs))?.into();
        let row = Expr::from(k.let_("own_row", thread.div(runs))?);
        let first = tile.clone() * side.size;
        let place = |e| Place::of(k, &(first.clone() + e * rows + &row), &sizes.out);
        let places = (0..ceil(side.size, rows)).map(place).collect::<Result<_>>()?;
        let images = Expr::from(&sizes.images);
        let columns = conv.columns(sizes).slice(0, first.clone(), side.size);
        let convolution = &conv.convolution;
        Ok(Rows { convolution, side, movers, x, images, columns, places, own, row, rows })
    }

    /// Begins to copy a step along the depth to its stage; zeros where there is nothing.
    fn fetch(&self, k: &mut Builder, step: &Expr, stages: TensorId, stage: &Var) -> Result {
        let Rows { convolution, side, .. } = self;
        let (depth, piece) = (side.depth, side.piece(Edges::Bulk));
        let (read, taps) = (convolution.channels[0], convolution.taps());
        // Where stages are of one element of windows each, all threads know which without a division of their own.
        let (tap, run) = if read % depth == 0 {
            let steps = read / depth;
            (step.div(steps), step.rem(steps) * (depth / piece) + &self.own)
        } else {
            let run = step.clone() * (depth / piece) + &self.own;
            (run.div(read / piece), run.rem(read / piece))
        };
        let (tap, run) = (Expr::from(k.let_("tap", tap)?), Expr::from(k.let_("run", run)?));
        let part = self.columns.clone().slice(1, step.clone() * depth, depth);
        let to = k.index(stages, "stage", [stage])?;
        let header = copying(k, Header::new(Kind::Fused(part), to, self.x, self.movers.block));
        // Behind the last element there are only images that are not there.
        let beyond = match convolution.depth() % depth {
            0 => Expr::from(0),
            _ => tap.div(taps) * &self.images,
        };
        k.decompose(header, |k| {
            (0..).zip(&self.places).try_for_each(|(e, place)| {
                let row = self.row.clone() + e * self.rows;
                let inside = Cond::less(row.clone(), side.size);
                let bring = |k: &mut Builder| {
                    let to = side.piece_of(k, to, piece, side.order(row, self.own.clone()))?;
                    let image = place.image.clone() + &beyond;
                    let seen = convolution.seen(&place.at, &tap.rem(taps));
                    let at = [image].into_iter().chain(seen).chain([run.clone()]);
                    let from = neighbours(k, self.x, at, piece, "from")?;
                    begin_copy(k, to, from)
                };
                if (e + 1) * self.rows <= side.size { bring(k) } else { k.if_(inside, bring) }
            })
        })
    }
}
