//! Convolutions whose images, weights and results have their channels innermost in memory.

use super::super::matmul;
use super::{Operands, UNKNOWN, Windows, packed_all};
use crate::kernels::{Refusal, Site};
use crate::variants::{TILES_OF_PIXELS, Variant};
use crate::view::View;
use graphene_frontend::dim::Dim;
use graphene_ir::arch::Feature;
use graphene_ir::kernel::Kernel;
use graphene_ir::template::conv::{Axis, ChannelsLast, Convolution};
use graphene_ir::template::epilogue::{Epilogue, Input, Span};
use graphene_ir::template::matmul::MatMul;
use graphene_ir::tensor::Scalar;
use std::collections::BTreeMap;

/// The order of dims in memory, outermost first: images, pixels, channels.
pub(crate) fn channels_last(rank: usize) -> Vec<usize> {
    [0].into_iter().chain(2..rank).chain([1]).collect()
}

/// Whether a view visits a block of memory in that order.
pub(crate) fn lies_channels_last(view: &View) -> bool {
    packed_all(&view.transpose(&channels_last(view.modes.len())))
}

impl Operands<'_> {
    /// Whether a convolution's operands lie so, rather than with their pixels innermost.
    pub(super) fn lie_channels_last(&self, windows: &Windows<'_>) -> Result<bool, Refusal> {
        let Some(w) = windows.weights.filter(|_| windows.fold.is_none()) else { return Ok(false) };
        let outputs = (0..self.site.step.outputs.len()).map(super::StepOperand::Output);
        let all = [self.read(windows.x)?, self.read(w)?].into_iter().chain(outputs);
        let mut packed = true;
        for operand in all {
            let (_, view) = self.site.operand(operand)?;
            if !lies_channels_last(view) {
                return Ok(false);
            }
            packed &= packed_all(view);
        }
        Ok(!packed)
    }
}

/// The kernel of a variant, or with the largest tiles of which there are enough: by warps; of windows of single
/// elements Hopper's matmul of pixels by weights.
pub(super) fn kernel(
    site: &Site<'_>,
    convolution: Convolution,
    pixels: &Dim,
    variant: &Variant,
    dims: &mut BTreeMap<String, Dim>,
) -> Result<Kernel, Refusal> {
    let [read, made] = convolution.channels;
    let cores = i64::from(site.target.cores);
    let rows = pixels.known().unwrap_or(UNKNOWN * 1024);
    let count = |[of_rows, columns]: [i64; 2]| {
        let tiles = |all: i64, size: i64| (all + size - 1) / size;
        tiles(rows, of_rows) * tiles(made, columns)
    };
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
    if convolution.axes.iter().all(own) && site.arch.has(Feature::Wgmma) && !single {
        let tile = tile(&[[128, 256], [128, 128], [128, 64], [64, 64]], cores * 3 / 4);
        let few = match named {
            Some(_) => tile == [64, 64],
            None => count(tile) * 4 <= cores,
        };
        let few = few && read * convolution.scalar.bytes() >= 4096;
        let Convolution { scalar, epilogue, .. } = convolution;
        let row = |input: Input| match input.span {
            Span::Column => Input { span: Span::Row, ..input },
            Span::Row | Span::Whole => input,
        };
        let operands = epilogue.operands.into_iter().map(row).collect();
        let matmul =
            MatMul { scalar, epilogue: Epilogue { operands, ..epilogue }, ..MatMul::default() };
        let sizes = [("M", pixels.clone()), ("N", made.into()), ("K", read.into())];
        dims.extend(sizes.map(|(name, dim)| (name.to_owned(), dim)));
        dims.insert("batch".to_owned(), Dim::from(1));
        return matmul::by_weights(site, &matmul, tile, if few { 4 } else { 1 }, dims);
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
    let arch = site.arch;
    Ok(ChannelsLast { convolution, arch, tile, depth, stages, ..ChannelsLast::default() }
        .kernel()?)
}
