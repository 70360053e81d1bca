//! Images: sampling at places that are computed, crops, and patches put together.

use super::conv::{explicit_pads, steps};
use super::helpers::Outputs;
use super::sample::{Interpolation, Outside, Sampler, flattened, measure, product};
use super::{Row, row};
use crate::dim::Dim;
use crate::dtype::DType;
use crate::graph::ValueId;
use crate::import::{Context, OpError};
use crate::op::{Binary, Combine, Op, PadMode, ReduceOp, Unary};
use crate::tensor::Tensor;

/// The operators of this family.
pub(super) const ROWS: &[Row] = &[
    row("GridSample", 16, grid_sample),
    row("AffineGrid", 20, affine_grid),
    row("DeformConv", 19, deform_conv),
    row("RoiAlign", 10, roi_align),
    row("CenterCropPad", 18, center_crop_pad),
    row("Col2Im", 18, col2im),
];

/// More bins and samples along an axis than any model has.
const MAX_BINS: i64 = 1 << 12;

/// More elements than any table of places has that is built on import.
const MAX_PLACES: usize = 1 << 26;

/// The image at places `[n, o…, d]` given from -1 to 1, the last spatial dim first.
fn grid_sample(c: &mut Context<'_, '_>) -> Outputs {
    let (x, grid) = (c.input(0)?, c.input(1)?);
    let interpolation = match c.string("mode") {
        None | Some("linear" | "bilinear") => Interpolation::Linear,
        Some("nearest") => Interpolation::Nearest,
        Some("cubic" | "bicubic") => Interpolation::Cubic,
        Some(_) => return Err(c.invalid("`mode` is none of the known ones")),
    };
    let outside = match c.string("padding_mode") {
        None | Some("zeros") => Outside::Zeros,
        Some("border") => Outside::Border,
        Some("reflection") => Outside::Reflection,
        Some(_) => return Err(c.invalid("`padding_mode` is none of the known ones")),
    };
    let corners = c.int_or("align_corners", 0) != 0;
    let (flat, sizes) = flattened(c, x)?;
    let places = c.shape(grid);
    let (rank, spatial) = (places.len(), sizes.len());
    if spatial > 3 {
        return Err(c.unsupported("more than three spatial dims"));
    }
    if rank != spatial + 2 || c.known_size(grid, rank - 1)? != spatial as i64 {
        return Err(c.invalid("the grid does not fit the image"));
    }
    let grid = c.widen(grid)?;
    let outputs = places[1..rank - 1].to_vec();
    let mut coordinates = Vec::new();
    for (axis, size) in sizes.iter().enumerate() {
        let last = Dim::from(spatial - 1 - axis);
        let part = c.narrow(grid, rank - 1, last, Dim::from(1))?;
        let row = vec![places[0].clone(), Dim::from(1), product(&outputs)];
        let part = c.reshape(part, row)?;
        // ((g + 1)·size - 1) / 2, or (g + 1)·(size - 1) / 2 where corners are aligned.
        let size = measure(c, size, if corners { -1.0 } else { 0.0 }, c.dtype(part))?;
        let from_zero = c.shifted(part, 1.0)?;
        let doubled = c.times(from_zero, size)?;
        let doubled = c.shifted(doubled, if corners { 0.0 } else { -1.0 })?;
        coordinates.push(c.scaled(doubled, 0.5)?);
    }
    let sampler = Sampler { flat, sizes, interpolation, outside, corners };
    let y = sampler.at(c, &coordinates)?;
    let mut shape = c.shape(x)[..2].to_vec();
    shape.extend(outputs);
    Ok(vec![c.reshape(y, shape)?])
}

/// The places of a grid that an affine map sends each element to.
fn affine_grid(c: &mut Context<'_, '_>) -> Outputs {
    let (theta, size) = (c.input(0)?, c.input(1)?);
    let size = c.dims(size)?;
    let Some(sizes) = size.get(2..).filter(|sizes| !sizes.is_empty()) else {
        return Err(c.invalid("the size must have a batch, channels and spatial dims"));
    };
    let corners = c.int_or("align_corners", 0) != 0;
    let own = c.dtype(theta);
    let rank = sizes.len() + 1;
    let mut whole = sizes.to_vec();
    whole.push(Dim::from(1));
    // The last spatial dim is the first coordinate; a one for the offsets comes last.
    let mut columns = Vec::new();
    for (axis, size) in sizes.iter().enumerate().rev() {
        let steps = c.iota(size.clone(), axis, rank)?;
        let steps = c.cast(steps, DType::F32)?;
        let steps = c.scaled(steps, 2.0)?;
        let steps = c.shifted(steps, if corners { 0.0 } else { 1.0 })?;
        let extent = measure(c, size, if corners { -1.0 } else { 0.0 }, DType::F32)?;
        let place = c.over(steps, extent)?;
        let place = c.shifted(place, -1.0)?;
        columns.push(c.expand(place, whole.clone())?);
    }
    let one = c.scalar(DType::F32, 1.0)?;
    columns.push(c.expand(one, whole)?);
    let base = c.concat(rank - 1, &columns)?;
    let base = c.reshape(base, vec![product(sizes), Dim::from(columns.len())])?;
    let base = c.cast_to(base, own)?;
    let map = c.transposed(theta)?;
    let grid = c.mat_mul(base, map)?;
    let mut shape = vec![c.shape(theta)[0].clone()];
    shape.extend_from_slice(sizes);
    shape.push(Dim::from(sizes.len()));
    Ok(vec![c.reshape(grid, shape)?])
}

/// A convolution whose window's elements are each moved by an offset: the image is sampled at all of them, and
/// the columns multiplied with the kernels.
fn deform_conv(c: &mut Context<'_, '_>) -> Outputs {
    let (x, w, offset) = (c.input(0)?, c.input(1)?, c.input(2)?);
    let (bias, mask) = (c.optional(3), c.optional(4));
    let (shape, kernels, outputs) = (c.shape(x), c.shape(w), c.shape(offset));
    if shape.len() != 4 || kernels.len() != 4 || outputs.len() != 4 {
        return Err(c.unsupported("other than two spatial dims"));
    }
    let (strides, dilations) = (steps(c, "strides", 2)?, steps(c, "dilations", 2)?);
    let (before, _) = explicit_pads(c, 2)?;
    let groups = Dim::from(c.int_or("group", 1));
    let shifts = Dim::from(c.int_or("offset_group", 1));
    let divide = |a: &Dim, b: &Dim| c.quotient(a, b, "groups must divide the channels");
    let (moved, kernels_each) = (divide(&shape[1], &shifts)?, divide(&kernels[0], &groups)?);
    let batches = &shape[0] * &shifts;
    let window = vec![kernels[2].clone(), kernels[3].clone()];
    let places = vec![outputs[2].clone(), outputs[3].clone()];
    let samples = product(&window) * product(&places);
    let image = c.reshape(x, vec![batches.clone(), moved, shape[2].clone(), shape[3].clone()])?;
    let (flat, sizes) = flattened(c, image)?;
    let offset = c.widen(offset)?;
    let parts = [window.clone(), vec![Dim::from(2)], places.clone()].concat();
    let parts = [vec![batches.clone()], parts].concat();
    let offset = c.reshape(offset, parts)?;
    let mut coordinates = Vec::new();
    for axis in 0..2 {
        let part = c.narrow(offset, 3, Dim::from(axis), Dim::from(1))?;
        let part = c.squeeze(part, 3)?;
        let inner = c.iota(window[axis].clone(), 1 + axis, 5)?;
        let inner = c.scaled(inner, dilations[axis] as f64)?;
        let outer = c.iota(places[axis].clone(), 3 + axis, 5)?;
        let outer = c.scaled(outer, strides[axis] as f64)?;
        let start = c.plus(inner, outer)?;
        let start = c.shifted(start, -(before[axis] as f64))?;
        let start = c.cast(start, c.dtype(part))?;
        let place = c.plus(part, start)?;
        coordinates.push(c.reshape(place, vec![batches.clone(), Dim::from(1), samples.clone()])?);
    }
    let (interpolation, outside) = (Interpolation::Linear, Outside::Zeros);
    let sampler = Sampler { flat, sizes, interpolation, outside, corners: true };
    let mut columns = sampler.at(c, &coordinates)?;
    if let Some(mask) = mask {
        let mask = c.reshape(mask, vec![batches, Dim::from(1), samples])?;
        columns = c.times(columns, mask)?;
    }
    let depth = &kernels[1] * &product(&window);
    let pixels = product(&places);
    let stacked = vec![shape[0].clone(), groups.clone(), depth.clone(), pixels];
    let columns = c.reshape(columns, stacked)?;
    let weights = c.reshape(w, vec![groups, kernels_each, depth])?;
    let y = c.mat_mul(weights, columns)?;
    let whole = vec![shape[0].clone(), kernels[0].clone(), places[0].clone(), places[1].clone()];
    let mut y = c.reshape(y, whole)?;
    if let Some(bias) = bias {
        let bias = c.channels(bias, 4)?;
        y = c.plus(y, bias)?;
    }
    Ok(vec![y])
}

/// Regions of images, each resized to bins that take the mean or the largest of a fixed number of samples.
fn roi_align(c: &mut Context<'_, '_>) -> Outputs {
    let (x, rois, batches) = (c.input(0)?, c.input(1)?, c.input(2)?);
    let samples = c.int_or("sampling_ratio", 0);
    if samples <= 0 {
        return Err(c.unsupported("a number of samples that depends on the region"));
    }
    let default = if c.opset() < 16 { "output_half_pixel" } else { "half_pixel" };
    let half = match c.string("coordinate_transformation_mode").unwrap_or(default) {
        "half_pixel" => true,
        "output_half_pixel" => false,
        _ => return Err(c.invalid("the coordinate transformation is none of the known ones")),
    };
    let largest = match c.string("mode") {
        None | Some("avg") => false,
        Some("max") => true,
        Some(_) => return Err(c.invalid("`mode` must be avg or max")),
    };
    let own = c.dtype(x);
    let bins = [c.int_or("output_height", 1), c.int_or("output_width", 1)];
    let x = c.add(Op::Gather { axis: 0 }, &[x, batches])?;
    let (flat, sizes) = flattened(c, x)?;
    let (regions, channels) = (c.shape(flat)[0].clone(), c.shape(flat)[1].clone());
    let limits = 1..=MAX_BINS;
    if sizes.len() != 2 || bins.iter().chain([&samples]).any(|n| !limits.contains(n)) {
        return Err(c.invalid("regions are of images with height and width"));
    }
    let rois = c.widen(rois)?;
    let scaled = c.scaled(rois, f64::from(c.float_or("spatial_scale", 1.0)))?;
    let corners = c.shifted(scaled, if half { -0.5 } else { 0.0 })?;
    let mut axes = Vec::new();
    for axis in 0..2 {
        // A region is x1, y1, x2, y2.
        let start = c.narrow(corners, 1, Dim::from(1 - axis), Dim::from(1))?;
        let end = c.narrow(corners, 1, Dim::from(3 - axis), Dim::from(1))?;
        let mut extent = c.minus(end, start)?;
        if !half {
            let one = c.scalar_like(extent, 1.0)?;
            extent = c.binary(Binary::Max, extent, one)?;
        }
        let count = bins[axis as usize] * samples;
        let step = c.scaled(extent, 1.0 / count as f64)?;
        let places = c.iota(Dim::from(count), 1, 2)?;
        let places = c.cast(places, c.dtype(step))?;
        let places = c.shifted(places, 0.5)?;
        let places = c.times(places, step)?;
        let place = c.plus(start, places)?;
        axes.push(region_taps(c, place, &sizes[axis as usize], axis == 0)?);
    }
    let points = Dim::from(bins[0] * samples * bins[1] * samples);
    let mut whole: Option<ValueId> = None;
    for (row, row_weight) in &axes[0] {
        for (column, column_weight) in &axes[1] {
            let width = c.size(sizes[1].clone())?;
            let place = c.times(*row, width)?;
            let place = c.plus(place, *column)?;
            let place = c.reshape(place, vec![regions.clone(), Dim::from(1), points.clone()])?;
            let shape = vec![regions.clone(), channels.clone(), points.clone()];
            let place = c.expand(place, shape)?;
            let values = c.add(Op::GatherElements { axis: 2 }, &[flat, place])?;
            let weight = c.times(*row_weight, *column_weight)?;
            let weight = c.reshape(weight, vec![regions.clone(), Dim::from(1), points.clone()])?;
            let weight = c.cast_to(weight, own)?;
            let term = c.times(values, weight)?;
            let op = if largest { Binary::Max } else { Binary::Add };
            whole = Some(match whole {
                Some(whole) => c.binary(op, whole, term)?,
                None => term,
            });
        }
    }
    let whole = whole.ok_or_else(|| c.invalid("no samples"))?;
    let apart = [bins[0], samples, bins[1], samples].map(Dim::from);
    let apart = c.reshape(whole, [vec![regions, channels], apart.to_vec()].concat())?;
    let op = if largest { ReduceOp::Max } else { ReduceOp::Mean };
    Ok(vec![c.reduce(op, apart, vec![3, 5], false)?])
}

/// The two elements about each place along an axis and their weights, as rows `[r, n, 1]` or columns
/// `[r, 1, n]`. A place more than one beyond the image weighs nothing; one just outside counts as at the border.
fn region_taps(
    c: &mut Context<'_, '_>,
    place: ValueId,
    size: &Dim,
    row: bool,
) -> Result<[(ValueId, ValueId); 2], OpError> {
    let place = c.unsqueeze(place, &[if row { 2 } else { 1 }])?;
    let dtype = c.dtype(place);
    let (zero, below) = (c.scalar(dtype, 0.0)?, c.scalar(dtype, -1.0)?);
    let beyond = measure(c, size, 0.0, dtype)?;
    let last = measure(c, size, -1.0, dtype)?;
    let from = c.binary(Binary::GreaterOrEqual, place, below)?;
    let to = c.binary(Binary::LessOrEqual, place, beyond)?;
    let counts = c.binary(Binary::And, from, to)?;
    let place = c.binary(Binary::Max, place, zero)?;
    let place = c.binary(Binary::Min, place, last)?;
    let low = c.unary(Unary::Floor, place)?;
    let next = c.shifted(low, 1.0)?;
    let high = c.binary(Binary::Min, next, last)?;
    let t = c.minus(place, low)?;
    let one = c.scalar(dtype, 1.0)?;
    let rest = c.minus(one, t)?;
    let mut taps = Vec::new();
    for (index, weight) in [(low, rest), (high, t)] {
        let weight = c.select(counts, weight, zero)?;
        taps.push((c.cast(index, DType::I64)?, weight));
    }
    Ok([taps[0], taps[1]])
}

/// Each axis cut or zero-padded about its centre.
fn center_crop_pad(c: &mut Context<'_, '_>) -> Outputs {
    let (x, target) = (c.input(0)?, c.input(1)?);
    let target = c.dims(target)?;
    let shape = c.shape(x);
    let axes: Vec<usize> = match c.ints("axes") {
        Some(axes) => {
            axes.iter().map(|&axis| c.axis(shape.len(), axis)).collect::<Result<_, _>>()?
        }
        None => (0..shape.len()).collect(),
    };
    if axes.len() != target.len() {
        return Err(c.invalid("the shape must have a size for each axis"));
    }
    let (zero, two) = (Dim::from(0), Dim::from(2));
    let mut before = vec![zero.clone(); shape.len()];
    let mut after = before.clone();
    for (&axis, target) in axes.iter().zip(&target) {
        let grown = (target - &shape[axis]).maximum(&zero).floor_div(&two)?;
        let cut = (&shape[axis] - target).maximum(&zero).floor_div(&two)?;
        before[axis] = grown - cut;
        after[axis] = target - &shape[axis] - &before[axis];
    }
    Ok(vec![c.add(Op::Pad { mode: PadMode::Constant, before, after }, &[x])?])
}

/// Patches `[n, c·elements, patches]` added up where they lie in an image.
fn col2im(c: &mut Context<'_, '_>) -> Outputs {
    let (x, image, block) = (c.input(0)?, c.input(1)?, c.input(2)?);
    let (image, block) = (c.known_ints(image)?, c.known_ints(block)?);
    let spatial = image.len();
    let (strides, dilations) = (steps(c, "strides", spatial)?, steps(c, "dilations", spatial)?);
    let (before, after) = explicit_pads(c, spatial)?;
    let shape = c.shape(x);
    let refuse = || c.invalid("the patches do not fit the image");
    if block.len() != spatial || shape.len() != 3 || image.iter().chain(&block).any(|&n| n <= 0) {
        return Err(refuse());
    }
    let mut axes = Vec::new();
    for i in 0..spatial {
        let (stride, dilation) = (strides[i] as i64, dilations[i] as i64);
        let window = dilation.saturating_mul(block[i] - 1).saturating_add(1);
        let padded = image[i].saturating_add(before[i]).saturating_add(after[i]);
        let span = padded.saturating_sub(window);
        let count = span.div_euclid(stride).saturating_add(1);
        let fits = usize::try_from(count.saturating_mul(block[i])).is_ok_and(|n| n < MAX_PLACES);
        if count < 1 || !fits {
            return Err(refuse());
        }
        axes.push(Patches { block: block[i], count, stride, dilation, before: before[i] });
    }
    let places = axes.iter().try_fold(1_i64, |n, axis| n.checked_mul(axis.block * axis.count));
    let pixels = image.iter().try_fold(1_i64, |n, &size| n.checked_mul(size));
    let (places, pixels) = (places.ok_or_else(refuse)?, pixels.ok_or_else(refuse)?);
    if usize::try_from(places).map_or(true, |n| n > MAX_PLACES) {
        return Err(refuse());
    }
    let table = patch_places(&axes, &image, pixels);
    let elements: i64 = block.iter().product();
    let channels = c.quotient(&shape[1], &Dim::from(elements), "the patches do not fit")?;
    let flat = vec![shape[0].clone(), channels.clone(), Dim::from(places)];
    let columns = c.reshape(x, flat.clone())?;
    let table = c.constant(Tensor::from_vec(vec![1, 1, table.len()], table)?);
    let table = c.expand(table, flat)?;
    // What lies in the padding goes to one more element, which is cut off.
    let zero = c.scalar_like(x, 0.0)?;
    let blank = vec![shape[0].clone(), channels.clone(), Dim::from(pixels) + Dim::from(1)];
    let blank = c.expand(zero, blank)?;
    let op = Op::ScatterElements { axis: 2, combine: Combine::Add };
    let sum = c.add(op, &[blank, table, columns])?;
    let sum = c.narrow(sum, 2, Dim::from(0), Dim::from(pixels))?;
    let mut whole = vec![shape[0].clone(), channels];
    whole.extend(image.iter().map(|&size| Dim::from(size)));
    Ok(vec![c.reshape(sum, whole)?])
}

/// Patches along one axis.
struct Patches {
    block: i64,
    count: i64,
    stride: i64,
    dilation: i64,
    before: i64,
}

/// For each element of a patch, then each patch: its place in the flat image, or `pixels` if it is outside.
fn patch_places(axes: &[Patches], image: &[i64], pixels: i64) -> Vec<i64> {
    let elements: i64 = axes.iter().map(|axis| axis.block).product();
    let patches: i64 = axes.iter().map(|axis| axis.count).product();
    let mut table = Vec::new();
    for element in 0..elements {
        for patch in 0..patches {
            let (mut element, mut patch) = (element, patch);
            let (mut place, mut stride) = (0, 1);
            for (axis, &size) in axes.iter().zip(image).rev() {
                let inner = element % axis.block * axis.dilation;
                let at = patch % axis.count * axis.stride + inner - axis.before;
                (element, patch) = (element / axis.block, patch / axis.count);
                if !(0..size).contains(&at) {
                    place = pixels;
                    break;
                }
                place += at * stride;
                stride *= size;
            }
            table.push(place);
        }
    }
    table
}
