//! Convolutions whose images, weights and results have their channels innermost in memory.

use super::super::matmul;
use super::{Operands, UNKNOWN, Windows};
use crate::base::sizes::ceil;
use crate::base::variants::Variant;
use crate::base::view::{View, channels_last, depthwise_weights};
use crate::families::kernels::{Dims, Made, Refusal, Site, TypedOperand, WIDTH, by_name, made};
use crate::families::tiles::{LEAST_OF_PIXELS, TILES_OF_PIXELS};
use graphene_frontend::dim::Dim;
use graphene_ir::target::Target;
use graphene_ir::template::conv::{Axis, By, ChannelsLast, Convolution};
use graphene_ir::template::epilogue::{Epilogue, Input, Span};
use graphene_ir::template::matmul::MatMul;
use graphene_ir::{Feature, Scalar};

/// Whether a view visits a block of memory in that order.
pub(crate) fn lies_channels_last(view: &View) -> bool {
    view.transpose(&channels_last(view.modes.len())).is_packed()
}

/// The same of weights, whose output channels are innermost where each has a group of its own.
pub(super) fn weights_lie_channels_last(view: &View, group: i64) -> bool {
    match group {
        1 => lies_channels_last(view),
        _ => view.transpose(&depthwise_weights(view.modes.len())).is_packed(),
    }
}

/// Neighbouring pixels of which a thread computes the windows, where channels have groups of their own, and the threads that
/// each core has then at least. Measured on an H200 at MobileNet's and ConvNeXt's sizes (11, batch 1 and 32).
const PIXELS: [(i64, i64); 2] = [(4, 256), (2, 128)];

/// Of those the most that leave cores enough to do.
pub(super) fn pixels_of_thread(target: &Target, convolution: &Convolution, pixels: &Dim) -> i64 {
    let channels = convolution.channels[0] * convolution.scalar.bytes() / WIDTH;
    let threads = pixels.known().unwrap_or(UNKNOWN * 1024) * channels;
    // What windows far apart share of a row is little.
    let near = convolution.axes.last().is_some_and(|axis| axis.window >= 2 * axis.stride);
    let fits = |(pixels, least): &(i64, i64)| {
        (near || *pixels <= 2) && threads / pixels >= i64::from(target.cores) * least
    };
    PIXELS.into_iter().find(fits).map_or(1, |(pixels, _)| pixels)
}

impl Operands<'_> {
    /// Whether the operands of a convolution or a pooling lie so, rather than with their pixels innermost.
    pub(super) fn lie_channels_last(&self, windows: &Windows<'_>) -> Result<bool, Refusal> {
        let filters = match (windows.weights, windows.fold) {
            (Some(w), None) => Some(self.read(w)?.view),
            (None, Some(_)) => None,
            _ => return Ok(false),
        };
        let TypedOperand { scalar, view: image, .. } = self.read(windows.x)?;
        let outputs = self.site.step.outputs.iter().map(|output| &output.view);
        let images: Vec<&View> = outputs.chain([image]).collect();
        let lie = filters.is_none_or(|view| weights_lie_channels_last(view, windows.group));
        if !lie || !images.iter().all(|view| lies_channels_last(view)) {
            return Ok(false);
        }
        let packed = images.into_iter().chain(filters).all(View::is_packed);
        // Of single pixels, which are rows of a matmul, both orders are one.
        let whole = |size: &i64| size * scalar.bytes() % WIDTH == 0;
        let half = matches!(scalar, Scalar::F16 | Scalar::Bf16);
        let rows = windows.weights.is_some() && windows.group == 1 && half;
        let rows =
            rows && windows.channels.iter().all(whole) && self.site.arch.has(Feature::CpAsync);
        Ok(!packed || rows)
    }
}

/// How a convolution is tiled: pixels and output channels of a tile, its warps, and the parts of its depth.
#[derive(Clone, Copy)]
struct Tiling {
    tile: [i64; 2],
    warps: i64,
    split: i64,
}

/// By warpgroups: the depth and the numbers of stages, and the tiles.
const DEPTH: i64 = 64;
const STAGES: [i64; 2] = [4, 8];
/// Bytes of shared memory for barriers, and for what begins at multiples of 1024 bytes.
const BARRIERS: i64 = 1024;
const BY_WARPGROUPS: [([i64; 2], i64); 5] =
    [([64, 32], 4), ([64, 64], 4), ([128, 64], 8), ([128, 128], 8), ([192, 128], 12)];

fn shared(target: &Target) -> i64 {
    i64::try_from(target.shared_memory_per_block).unwrap_or(i64::MAX)
}

impl Tiling {
    /// The one by warpgroups that takes the least time for so many pixels.
    fn by_warpgroups(target: &Target, convolution: &Convolution, pixels: i64) -> Tiling {
        let all = BY_WARPGROUPS.into_iter().flat_map(|(tile, warps)| {
            [1, 2, 4, 8].into_iter().map(move |split| Tiling { tile, warps, split })
        });
        let fits = |of: &Tiling| of.tile[1] <= convolution.channels[1].max(32);
        let times =
            all.filter(fits).filter_map(|of| Some((of.time(target, convolution, pixels)?, of)));
        let least = times.min_by(|a, b| a.0.total_cmp(&b.0));
        least.map_or(Tiling { tile: [64, 32], warps: 4, split: 1 }, |(_, of)| of)
    }

    /// How many stages there are for so many pixels at most: the more loads are on their way, the less is waited for. Eight, or as
    /// many as all blocks of a core have memory for, and two of them (the next kernel's loads its first weights while this one
    /// runs); but four at least.
    fn stages(self, target: &Target, convolution: &Convolution, most: Option<i64>) -> i64 {
        let [few, many] = STAGES;
        let Some(pixels) = most else { return few };
        let blocks = self.tiles(convolution, pixels) * self.split;
        let budget = shared(target) / ceil(blocks, i64::from(target.cores)).max(2);
        ((budget - self.others()) / self.stage(convolution)).clamp(few, many)
    }

    fn tiles(self, convolution: &Convolution, pixels: i64) -> i64 {
        let [rows, columns] = self.tile;
        ceil(pixels, rows) * ceil(convolution.channels[1], columns)
    }

    /// Bytes of a stage.
    fn stage(self, convolution: &Convolution) -> i64 {
        DEPTH * self.tile.iter().sum::<i64>() * convolution.scalar.bytes()
    }

    /// Bytes of shared memory beside stages: what other blocks hand over is of each block's share of the tile's warps (`split_k`).
    fn others(self) -> i64 {
        let Tiling { tile: [rows, columns], warps, split } = self;
        let of_warp = rows * columns / warps * Scalar::F32.bytes();
        (split - 1) * ceil(warps, split) * of_warp + BARRIERS
    }

    /// Microseconds by warpgroups, but for what any takes; `None` for a split that does not pay, or whose clusters cores
    /// cannot hold.
    ///
    /// A core's blocks share its throughput, and one alone waits for its stages and matmuls in turn. Fitted to 369 timings
    /// of ResNet-50's convolutions at batch 1, 8 and 32 in fp16 by four stages (H200): 15 % off them (root mean square), and
    /// what it chooses took 1.07 of the time of the best of all that were tried (geometric mean).
    fn time(self, target: &Target, convolution: &Convolution, pixels: i64) -> Option<f64> {
        let Tiling { tile: [rows, columns], split, .. } = self;
        let cores = i64::from(target.cores);
        let resident = shared(target) / (STAGES[0] * self.stage(convolution) + self.others());
        let tiles = self.tiles(convolution, pixels);
        let steps = ceil(convolution.depth(), DEPTH);
        let pays = split == 1 || (steps >= 2 * split && tiles <= 4 * cores);
        if !pays || resident < if split == 8 { 2 } else { 1 } {
            return None;
        }
        // Where stages hold parts of several elements of windows, each thread finds out for itself which.
        let slow = if convolution.channels[0] % DEPTH == 0 { 1 } else { 2 };
        let steps = (ceil(steps, split) * slow) as f64;
        let (blocks, area) = (tiles * split, (rows * columns) as f64 / 1024.0);
        let (of_core, waves) = (ceil(blocks, cores) as f64, ceil(blocks, cores * resident) as f64);
        let store = 0.24 * area;
        let busy = of_core * (steps * (0.08 + 0.024 * area) + store);
        let alone = waves * steps * (0.22 + 0.017 * area) + store;
        Some(busy.max(alone) + if split == 1 { 0.0 } else { 1.4 })
    }
}

/// For how many pixels about a variant is chosen if there are so many output channels, and for how many at most; `None` for the
/// largest tiles, which have no such limit.
fn likely_and_most(variant: &str, made: i64, cores: i64) -> (i64, Option<i64>) {
    let pixels = |tiles, [rows, columns]: [i64; 2]| tiles * rows / ceil(made, columns);
    let place = TILES_OF_PIXELS.iter().position(|(name, _)| *name == variant);
    let larger = place.and_then(|place| place.checked_sub(1)).map(|place| TILES_OF_PIXELS[place].1);
    // `fewest` has the tiles of `few`.
    let tile = place
        .map_or([64, 64], |place| TILES_OF_PIXELS[place].1.map(|size| size.max(LEAST_OF_PIXELS)));
    (pixels(2 * cores, tile), larger.map(|tile| pixels(cores * 3 / 2, tile)))
}

/// The kernel of a variant of a convolution, with whether its filters are weights, which are there before the program runs.
///
/// Of windows of single elements Hopper's matmul of pixels by weights; else by warpgroups, where there are any, or by warps
/// with the largest tiles of which there are enough.
pub(super) fn kernel(
    site: &Site<'_>,
    (convolution, weights): (Convolution, bool),
    pixels: &Dim,
    variant: &Variant,
    dims: &mut Dims,
) -> Result<Made, Refusal> {
    let [read, made] = convolution.channels;
    let cores = i64::from(site.target.cores);
    let rows = pixels.known().unwrap_or(UNKNOWN * 1024);
    let count = |[of_rows, columns]: [i64; 2]| ceil(rows, of_rows) * ceil(made, columns);
    let named = TILES_OF_PIXELS.iter().find(|(name, _)| *name == variant.name);
    let tile = |tiles: &[[i64; 2]], enough: i64| {
        if let Some((_, [of_rows, columns])) = named {
            let least = tiles[tiles.len() - 1];
            let most = if made > 64 { 128 } else { 64 };
            return [(*of_rows).max(least[0]), (*columns).min(most).max(least[1])];
        }
        let fits = |[_, columns]: [i64; 2]| made > columns / 2;
        let fills = |tile: &&[i64; 2]| fits(**tile) && count(**tile) >= enough;
        tiles.iter().find(fills).copied().unwrap_or(tiles[tiles.len() - 1])
    };
    let single = convolution.scalar == Scalar::F32;
    let own = |axis: &Axis| (axis.window, axis.stride, axis.pad) == (1, 1, 0);
    let by_warpgroups = site.arch.has(Feature::Wgmma) && !single;
    if convolution.axes.iter().all(own) && by_warpgroups {
        let tile = tile(&[[128, 256], [128, 128], [128, 64], [64, 64]], cores * 3 / 4);
        let few = match named {
            Some((name, _)) => *name == TILES_OF_PIXELS[TILES_OF_PIXELS.len() - 1].0,
            None => count(tile) * 4 <= cores,
        };
        let few = few && read * convolution.scalar.bytes() >= 4096;
        let Convolution { scalar, epilogue, .. } = convolution;
        let row = |input: Input| match input.span {
            Span::Column => Input { span: Span::Row, ..input },
            Span::Row | Span::Whole | Span::Number => input,
        };
        let operands = epilogue.operands.into_iter().map(row).collect();
        let matmul =
            MatMul { scalar, epilogue: Epilogue { operands, ..epilogue }, ..MatMul::default() };
        let one = Dim::from(1);
        let sizes = [("M", pixels.clone()), ("N", made.into()), ("K", read.into()), ("batch", one)];
        dims.extend(by_name(sizes));
        return matmul::by_filters(site, (&matmul, weights), tile, if few { 4 } else { 1 }, dims);
    }
    let of = ChannelsLast { convolution, arch: site.arch, ..ChannelsLast::default() };
    if by_warpgroups {
        let (likely, most) = match pixels.known() {
            Some(pixels) => (pixels, Some(pixels)),
            None => likely_and_most(named.map_or("", |(name, _)| name), made, cores),
        };
        let tiling = Tiling::by_warpgroups(site.target, &of.convolution, likely);
        let stages = tiling.stages(site.target, &of.convolution, most);
        let (by, depth, Tiling { tile, warps, split }) = (By::Warpgroups, DEPTH, tiling);
        return Ok(made!(ChannelsLast { by, tile, depth, warps, stages, weights, split, ..of })?);
    }
    // Cores hide what one block waits for by others.
    let tile = tile(&[[128, 128], [128, 64], [64, 64], [64, 32], [32, 32]], cores * 3 / 2);
    // Where tiles are small, little is added up between two stages, unless they are deep.
    let (depth, stages) = match (tile[0], single) {
        (128, false) => (32, 4),
        (_, false) => (64, 4),
        (128, true) => (16, 4),
        (_, true) => (32, 3),
    };
    Ok(made!(ChannelsLast { tile, depth, stages, ..of })?)
}
