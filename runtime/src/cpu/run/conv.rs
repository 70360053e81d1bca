//! Convolutions and poolings.

use super::wide::Wide;
use super::{input_number, lies_row_major, output_number, required_input, with_row_major};
use crate::bind::{BoundOperand, BoundStep};
use crate::cpu::kernels::channels_last::{self, Form, Images, Moves, Part, convolve, pack_filters};
use crate::cpu::kernels::conv::{
    Conv, Filters, algorithm, conv, conv_integers, conv_then, conv_transpose,
};
use crate::cpu::kernels::finish::Finish;
use crate::cpu::kernels::int8::PackedIntegers;
use crate::cpu::kernels::matmul::narrowed;
use crate::cpu::kernels::pointwise::{Binary, Unary, powf};
use crate::cpu::kernels::pool::{Geometry, Pool, max_of_integers, max_pool, pool};
use crate::cpu::kernels::tile::TileMut;
use crate::cpu::kernels::view::Axes;
use crate::cpu::layers::{ConvLayer, ConvRead, Filters as OfChannels, loop_output};
use crate::cpu::loops::{Domain, LoopInput, LoopOutput, Tile, Workspace};
use crate::cpu::memory::{Inputs, Io};
use crate::cpu::scratch::{self, Buffer, Few, Numbers};
use crate::error::{Error, Result};
use crate::threads::{self, chunks_mut, items_mut};
use bytemuck::{Pod, cast_slice, cast_slice_mut};
use graphene_frontend::dtype::DType;
use graphene_frontend::op::{ConvAttrs, IndexOrder, PoolAttrs, PoolKind};
use graphene_fusion::program::Step;
use half::{bf16, f16};
use std::sync::Arc;

/// Batch, channels and spatial sizes.
fn split(shape: &[usize]) -> Result<(usize, usize, &[usize])> {
    match *shape {
        [batch, channels, ref spatial @ ..] => Ok((batch, channels, spatial)),
        _ => Err(Error::Mismatch { what: "rank of an image", expected: 3, found: shape.len() }),
    }
}

/// A convolution's operands in f32.
struct Operands<'a> {
    x: Numbers<'a, f32>,
    w: Numbers<'a, f32>,
    bias: Option<Numbers<'a, f32>>,
    shapes: [&'a [usize]; 2],
}

impl<'a> Operands<'a> {
    fn new(io: &Io<'a>, [x, w, bias]: [Option<usize>; 3]) -> Result<Self> {
        let given = |number: Option<usize>| {
            io.reals(number.ok_or(Error::Unsupported { what: "a missing operand" })?)
        };
        let ((x, x_shape), (w, w_shape)) = (given(x)?, given(w)?);
        let bias = match bias {
            Some(number) => Some(io.reals(number)?.0),
            None => None,
        };
        Ok(Self { x, w, bias, shapes: [x_shape, w_shape] })
    }

    /// Sizes of the convolution, or of its transpose, that writes this shape.
    fn sizes<'b>(
        &'b self,
        attrs: &'b ConvAttrs,
        y: &'b [usize],
        transposed: bool,
    ) -> Result<Conv<'b>> {
        sizes(self.shapes, attrs, y, transposed)
    }
}

/// Sizes of a convolution of images and filters of these shapes, or of its transpose.
pub(super) fn sizes<'a>(
    [x, w]: [&'a [usize]; 2],
    attrs: &'a ConvAttrs,
    y: &'a [usize],
    transposed: bool,
) -> Result<Conv<'a>> {
    let ((images, _, from), (rows, columns, kernel)) = (split(x)?, split(w)?);
    let (_, _, to) = split(y)?;
    let grouped = rows.checked_div(attrs.group).ok_or(Error::Unsupported { what: "no groups" })?;
    let (channels, filters, inner, outer) = match transposed {
        false => (columns, grouped, from, to),
        true => (grouped, columns, to, from),
    };
    let geometry = Geometry {
        inner,
        outer,
        kernel,
        strides: &attrs.strides,
        dilations: &attrs.dilations,
        before: &attrs.pads_before,
    };
    Ok(Conv { images, groups: attrs.group, channels, filters, geometry })
}

fn run(step: &Step, mut io: Io<'_>, attrs: &ConvAttrs, transposed: bool) -> Result<()> {
    let numbers = [0, 1, 2].map(|place| input_number(step, place));
    let [x, w, bias] = numbers;
    let operands = Operands::new(&io, [x?, w?, bias?])?;
    let output = &mut io.outputs[0];
    let sizes = operands.sizes(attrs, &output.operand.shape, transposed)?;
    let mut y = Wide::new(output)?;
    let kernel = if transposed { conv_transpose } else { conv };
    kernel(y.elements(), &operands.x, &operands.w, operands.bias.as_deref(), sizes)?;
    y.finish();
    Ok(())
}

/// How a convolution whose channels are not innermost is computed, for profiles: of the images and filters of these numbers.
pub(crate) fn conv_algorithm(
    attrs: &ConvAttrs,
    [x, w]: [Option<usize>; 2],
    step: &BoundStep,
) -> Option<&'static str> {
    let shapes = [&step.inputs[x?].shape[..], &step.inputs[w?].shape[..]];
    algorithm(sizes(shapes, attrs, &step.outputs[0].shape, false).ok()?).ok()
}

pub(crate) fn run_conv(step: &Step, io: Io<'_>, attrs: &ConvAttrs) -> Result<()> {
    run(step, io, attrs, false)
}

/// A convolution of integers of 32 bits, whose filters may have been prepacked.
pub(crate) fn run_integer_conv(
    step: &Step,
    mut io: Io<'_>,
    attrs: &ConvAttrs,
    packed: &[Arc<PackedIntegers>],
) -> Result<()> {
    let [x, w] = [required_input(step, 0)?, required_input(step, 1)?];
    let shapes = [x, w].map(|number| io.inputs.shape(number));
    let (x, _) = io.dense::<i32>(x)?;
    let filters = match packed {
        [] => Filters::Plain(io.dense(w)?.0),
        packed => Filters::Packed(packed),
    };
    let bias = match input_number(step, 2)? {
        Some(number) => Some(io.dense::<i32>(number)?.0),
        None => None,
    };
    let output = &mut io.outputs[0];
    let sizes = sizes(shapes, attrs, &output.operand.shape, false)?;
    conv_integers(output.dense(), x, filters, bias, sizes)
}

pub(crate) fn run_conv_transpose(step: &Step, io: Io<'_>, attrs: &ConvAttrs) -> Result<()> {
    run(step, io, attrs, true)
}

/// A convolution with its epilogue: on each part as it is computed if there is one output, in f32; else on
/// all of it afterwards.
pub(crate) fn run_conv_layer(layer: &ConvLayer, domain: &Domain, mut io: Io<'_>) -> Result<()> {
    if let Some(filters) = &layer.channels_last {
        return run_channels_last(layer, filters, domain, io);
    }
    let operands = Operands::new(&io, layer.operands)?;
    let shape = &io.outputs[0].operand.shape;
    let sizes = operands.sizes(&layer.attrs, shape, false)?;
    let Io { inputs: given, outputs } = &mut io;
    let Operands { x, w, bias, .. } = &operands;
    let near = matches!(&outputs[..], [output] if output.dtype == DType::F32);
    let dtype = layer.dtype;
    with_row_major(outputs, |mut outputs| {
        if let [y] = &mut outputs[..]
            && near
            && dtype == DType::F32
        {
            let inputs = epilogue_inputs(layer, given, LoopInput::Overwritten(0));
            let then = |first: usize, part: &mut [f32]| {
                let tile = Tile::range(first..first + part.len());
                let part = LoopOutput::Bytes(cast_slice_mut(part));
                // A part of which nobody leads others: memory of the thread's own.
                let mut workspace = scratch::slots::<Workspace>(1);
                workspace[0].fit(&layer.epilogue);
                layer.epilogue.run_tile(domain, tile, &inputs, &mut [part], &mut workspace[0]);
            };
            return conv_then(cast_slice_mut(y), x, w, bias.as_deref(), sizes, then);
        }
        let mut stored = scratch::take::<u8>(shape.iter().product::<usize>() * dtype.size())?;
        let run = |y: &mut [f32]| conv(y, x, w, bias.as_deref(), sizes);
        stored_as(dtype, &mut stored, run)?;
        let inputs = epilogue_inputs(layer, given, LoopInput::Bytes(&stored));
        layer.epilogue.run(domain, &inputs, outputs);
        Ok(())
    })
}

/// Images as an operand has them.
fn images<'a, T: Pod>(bytes: &'a [u8], operand: &BoundOperand) -> Result<Images<'a, T>> {
    let [n, c, ref shape @ ..] = operand.shape[..] else {
        return Err(Error::Mismatch {
            what: "rank of an image",
            expected: 3,
            found: operand.shape.len(),
        });
    };
    let strides = &operand.strides;
    let (shape, strides) = match *shape {
        [w] => ([n, c, 1, w], [strides[0], strides[1], 0, strides[2]]),
        [h, w] => ([n, c, h, w], [strides[0], strides[1], strides[2], strides[3]]),
        _ => return Err(Error::Unsupported { what: "images of this rank" }),
    };
    Ok(Images { data: cast_slice(bytes), offset: operand.offset, shape, strides })
}

/// A convolution whose results have their channels innermost, with its epilogue on each tile as it is computed.
fn run_channels_last(
    layer: &ConvLayer,
    filters: &OfChannels,
    domain: &Domain,
    mut io: Io<'_>,
) -> Result<()> {
    let [Some(x), Some(w), bias] = layer.operands else {
        return Err(Error::Unsupported { what: "a missing operand" });
    };
    let (bytes, image, _) = io.input(x)?;
    let images = images(bytes, image)?;
    let bias = match bias {
        Some(number) => Some(io.dense::<f32>(number)?.0),
        None => None,
    };
    let shape = &io.outputs[0].operand.shape;
    let kernel = io.inputs.shape(w);
    let geometry = sizes([&image.shape, kernel], &layer.attrs, shape, false)?.geometry;
    let moves = Moves::new(geometry)?;
    let form = filters.form();
    let packed = match &filters.packed {
        Some(packed) => Arc::clone(packed),
        None => {
            let sizes = [kernel[0], kernel[1], kernel[2..].iter().product()];
            let depthwise = form == Form::Depthwise;
            Arc::new(pack_filters(io.dense(w)?.0, sizes, depthwise)?)
        }
    };
    let columns = shape[1];
    let Io { inputs: given, outputs } = &mut io;
    let inputs = epilogue_inputs(layer, given, LoopInput::Overwritten(0));
    // What is not done as sums are stored is done on each tile.
    let finish = finish(layer, domain, &inputs);
    let whole = layer.epilogue.len() == 0 || finish.is_some();
    let then = |part: Part, tile: &mut TileMut<'_, u8>| {
        if whole {
            return;
        }
        let first = part.row * columns + part.column;
        let of = match part.columns == columns {
            true => Tile::range(first..first + part.rows * columns),
            false => Tile { first, rows: part.rows, width: part.columns, pitch: columns },
        };
        let mut workspace = scratch::slots::<Workspace>(1);
        workspace[0].fit(&layer.epilogue);
        let mut outputs = [loop_output(tile)];
        layer.epilogue.run_tile(domain, of, &inputs, &mut outputs, &mut workspace[0]);
    };
    let y = outputs[0].dense_bytes();
    let finish = finish.unwrap_or(Finish::NONE);
    convolve(y, images, &packed, (bias, finish), (&moves, form), then)
}

/// The epilogue as what is done to sums while they are stored, if it is that and what it adds lies as the result does.
fn finish<'a>(layer: &ConvLayer, domain: &Domain, inputs: &[LoopInput<'a>]) -> Option<Finish<'a>> {
    let (added, activation) = layer.finish?;
    let residual = match added {
        None => None,
        Some(number) => match (inputs[number], domain.run(number, 0, domain.len)?) {
            (LoopInput::Bytes(bytes), (from, 1)) => {
                Some(cast_slice(bytes).get(from..from + domain.len)?)
            }
            _ => return None,
        },
    };
    Some(Finish { residual, activation })
}

fn epilogue_inputs<'a, 'b: 'a>(
    layer: &ConvLayer,
    given: &Inputs<'b>,
    result: LoopInput<'a>,
) -> Few<LoopInput<'a>> {
    let read = |read| match read {
        ConvRead::Input(number) => given.of_loop(number),
        ConvRead::Result => result,
    };
    layer.reads().map(read).collect()
}

/// Writes elements that are computed in f32 in their type.
fn stored_as(
    dtype: DType,
    to: &mut [u8],
    compute: impl FnOnce(&mut [f32]) -> Result<()>,
) -> Result<()> {
    if dtype == DType::F32 {
        return compute(cast_slice_mut(to));
    }
    let mut wide = scratch::take::<f32>(to.len() / dtype.size())?;
    compute(&mut wide)?;
    match dtype {
        DType::F16 => narrowed::<f16>(cast_slice_mut(to), &wide),
        _ => narrowed::<bf16>(cast_slice_mut(to), &wide),
    }
    Ok(())
}

pub(crate) fn run_pool(step: &Step, mut io: Io<'_>, attrs: &PoolAttrs) -> Result<()> {
    let (_, operand, dtype) = io.input(0)?;
    let shape = &operand.shape[..];
    let (batch, channels, inner) = split(shape)?;
    let planes = batch * channels;
    let pads = |&pad: &usize| i64::try_from(pad).unwrap_or(i64::MAX);
    let before: Axes<i64> = attrs.pads_before.iter().map(pads).collect();
    let outer = split(&io.outputs[0].operand.shape)?.2;
    let on = Geometry {
        inner,
        outer,
        kernel: &attrs.kernel,
        strides: &attrs.strides,
        dilations: &attrs.dilations,
        before: &before,
    };
    let kind = match attrs.kind {
        PoolKind::Max { .. } => Pool::Max,
        PoolKind::Average { .. } => Pool::Sum,
        PoolKind::Lp { p } => Pool::Powers(p),
    };
    if !lies_row_major(operand) {
        let (moves, bytes, y) = (Moves::new(on)?, io.input(0)?.0, &mut io.outputs[0]);
        match (dtype, &attrs.kind) {
            (DType::U8, PoolKind::Max { .. }) => {
                let x = images::<u8>(bytes, operand)?;
                return channels_last::largest(y.dense(), x, &moves, u8::MIN);
            }
            (DType::I8, PoolKind::Max { .. }) => {
                let x = images::<i8>(bytes, operand)?;
                return channels_last::largest(y.dense(), x, &moves, i8::MIN);
            }
            (DType::F32, _) => {}
            _ => return Err(Error::Unsupported { what: "a pooling of such images" }),
        }
        let (x, y) = (images(bytes, operand)?, y.dense::<f32>());
        channels_last::pool(kind, y, x, &moves)?;
        if let PoolKind::Average { include_pad } = attrs.kind {
            let (divisors, plane) = (divisors(attrs, on, include_pad)?, channels.max(1));
            threads::each(1 << 10, chunks_mut(y, plane), |number, y| {
                let divisor = divisors[number % divisors.len()];
                y.iter_mut().for_each(|y| *y /= divisor);
            });
        }
        return Ok(());
    }
    if let PoolKind::Max { indices: Some(order) } = attrs.kind
        && let Some(number) = output_number(step, 1)
    {
        return max_with_places(step, io, planes, on, order, number);
    }
    match dtype {
        DType::U8 => {
            let (x, _) = io.dense::<u8>(0)?;
            return max_of_integers(io.outputs[0].dense(), x, planes, on, u8::MIN);
        }
        DType::I8 => {
            let (x, _) = io.dense::<i8>(0)?;
            return max_of_integers(io.outputs[0].dense(), x, planes, on, i8::MIN);
        }
        _ => {}
    }
    let (x, _) = io.reals(0)?;
    let mut y = Wide::new(&mut io.outputs[0])?;
    match attrs.kind {
        PoolKind::Max { .. } => pool(kind, y.elements(), &x, planes, on)?,
        PoolKind::Average { include_pad } => {
            pool(kind, y.elements(), &x, planes, on)?;
            let divisors = divisors(attrs, on, include_pad)?;
            let planes = chunks_mut(y.elements(), divisors.len().max(1));
            threads::each(1, planes, |_, plane| Binary::Div.apply_in_place(plane, &divisors));
        }
        PoolKind::Lp { p } => {
            pool(kind, y.elements(), &x, planes, on)?;
            threads::each(1, chunks_mut(y.elements(), ROOTS), |_, block| root(block, p));
        }
    }
    y.finish();
    Ok(())
}

/// Elements whose roots are taken at a time.
const ROOTS: usize = 1 << 10;

fn root(block: &mut [f32], p: i64) {
    match p {
        1 => {}
        2 => Unary::Sqrt.apply_in_place(block),
        p => {
            let mut powers = [0.0; ROOTS];
            let powers = &mut powers[..block.len()];
            powers.copy_from_slice(block);
            powf(block, powers, 1.0 / p as f32);
        }
    }
}

fn max_with_places(
    step: &Step,
    mut io: Io<'_>,
    planes: usize,
    on: Geometry<'_>,
    order: IndexOrder,
    number: usize,
) -> Result<()> {
    let (x, _) = io.reals(0)?;
    let (mut y, mut places) = (None, None);
    for (i, output) in io.outputs.iter_mut().enumerate() {
        if i == number {
            places = Some(output.dense::<i64>());
        } else if output_number(step, 0) == Some(i) {
            y = Some(Wide::new(output)?);
        }
    }
    let places = places.ok_or(Error::Unsupported { what: "an output given twice" })?;
    let mut y = match y {
        Some(y) => y,
        None => Wide::Spare(scratch::take(places.len())?),
    };
    max_pool(y.elements(), places, &x, planes, on)?;
    y.finish();
    if order == IndexOrder::ColumnMajor {
        let plane: usize = on.inner.iter().product();
        threads::each(1 << 12, items_mut(places), |_, place| {
            if *place >= 0 {
                let whole = *place as usize;
                *place = (whole / plane * plane + column_major(whole % plane, on.inner)) as i64;
            }
        });
    }
    Ok(())
}

/// The number of a place with the first axis fastest.
fn column_major(mut place: usize, sizes: &[usize]) -> usize {
    let mut index = 0;
    for &size in sizes.iter().rev() {
        index = index * size + place % size;
        place /= size;
    }
    index
}

/// Elements of each window of a plane: those inside, or those inside of the padding too.
fn divisors(attrs: &PoolAttrs, on: Geometry<'_>, include_pad: bool) -> Result<Buffer<f32>> {
    let mut counts = scratch::take::<f32>(on.outer.iter().product())?;
    counts.fill(1.0);
    let mut stride = 1;
    for axis in (0..on.outer.len()).rev() {
        let of_axis = (0..on.outer[axis]).map(|window| {
            let before = attrs.pads_before[axis] as i128;
            let (inner, dilation) = (on.inner[axis] as i128, attrs.dilations[axis].max(1) as i128);
            let (low, high) = match include_pad {
                true => (-before, inner + attrs.pads_after[axis] as i128),
                false => (0, inner),
            };
            let start = window as i128 * attrs.strides[axis] as i128 - before;
            let kernel = attrs.kernel[axis] as i128;
            // Elements of the window below a place.
            let below =
                |place: i128| (place - start + dilation - 1).div_euclid(dilation).clamp(0, kernel);
            (below(high) - below(low)) as f32
        });
        let mut line = scratch::take::<f32>(on.outer[axis])?;
        line.iter_mut().zip(of_axis).for_each(|(to, count)| *to = count);
        let of_axis = line;
        for (place, count) in counts.iter_mut().enumerate() {
            *count *= of_axis[place / stride % of_axis.len()];
        }
        stride *= on.outer[axis].max(1);
    }
    Ok(counts)
}
