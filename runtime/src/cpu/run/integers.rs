//! Matmuls and convolutions of bytes with what follows them.

use super::conv::sizes;
use super::with_row_major;
use crate::bind::BoundOperand;
use crate::cpu::kernels::channels_last::Moves;
use crate::cpu::kernels::conv::{Conv, Filters, conv_integers};
use crate::cpu::kernels::copy::copy_between;
use crate::cpu::kernels::int8::{
    Finish, Images, ImagesOfBytes, Left, Line, Results, Rows, Steps, To, Windows, multiply_tile,
    multiply_windows,
};
use crate::cpu::kernels::integer::matmul_integers;
use crate::cpu::kernels::matmul::{Matrix, MatrixMut, Size, Strides};
use crate::cpu::kernels::packed::{self, Packed};
use crate::cpu::kernels::simd::{Kernel, dispatch};
use crate::cpu::kernels::tile::{Block, Cut, Grid, TileMut, Tiles};
use crate::cpu::kernels::view::{check_size, row_major};
use crate::cpu::layers::{ConvRead, IntegerLayer, Zero, loop_output};
use crate::cpu::loops::{Domain, Elements, LoopInput, LoopOutput, Tile, Workspace};
use crate::cpu::memory::{Inputs, Io};
use crate::cpu::scratch::{self, Few, Numbers, kept, sized};
use crate::error::{Error, Result};
use crate::threads;
use bytemuck::{cast_slice, cast_slice_mut};
use graphene_frontend::dtype::DType;
use pulp::Simd;
use std::ops::Range;

/// Multiplications that a thread takes at least, where several share a step.
const SHARE: usize = 1 << 19;

/// Tiles for each thread: one that is slower leaves some to the others.
const TASKS: usize = 3;

/// Windows of a tile, about, and the fewest that one is cut down to so that all threads have some.
const WIDE: usize = 768;
const NARROW: usize = 192;

/// Filters of a tile, a multiple of a line's columns, where others take the rest of the same windows.
const FILTERS: usize = 64;

/// Windows of the shortest tile whose channels are innermost.
const SHORT: usize = 32;

/// Sums that a thread holds at a time, about.
const HELD: usize = 1 << 16;

/// The memory of one thread.
#[derive(Default)]
struct Space {
    lines: Vec<Line>,
    sums: Vec<i32>,
    wide: Vec<i64>,
    workspace: Workspace,
}

kept!(Space);

/// What all threads read.
struct Run<'a, 'b> {
    layer: &'b IntegerLayer,
    domain: &'b Domain,
    inputs: &'b Inputs<'a>,
    /// Columns of the result's rows.
    columns: usize,
    /// What is done to sums as they are stored, if that is all of the epilogue.
    steps: Option<Steps<'b>>,
}

/// Runs the layer of a step.
///
/// # Errors
/// [`Error::Memory`], and [`Error::Mismatch`] where shapes disagree: a defect of the plan.
pub(crate) fn run_integer_layer(
    layer: &IntegerLayer,
    domain: &Domain,
    mut io: Io<'_>,
) -> Result<()> {
    let Io { inputs, outputs } = &mut io;
    let (bytes, x, dtype) = inputs.bytes(layer.bytes)?;
    let zero = match layer.zero {
        Zero::Number(zero) => zero,
        Zero::Input(number) => {
            let (bytes, operand, _) = inputs.bytes(number)?;
            cast_slice::<u8, i32>(bytes)[operand.offset]
        }
    };
    let bias = match layer.bias {
        Some(number) => {
            let (bytes, bias, _) = inputs.bytes(number)?;
            let len = bias.shape.iter().product::<usize>();
            Some(&cast_slice::<u8, i32>(bytes)[bias.offset..][..len])
        }
        None => None,
    };
    let shape = outputs[0].operand.shape.clone();
    let each: Few<usize> = outputs.iter().map(|output| output.dtype.size()).collect();
    let signed = dtype == DType::I8;
    let weight = inputs.shape(layer.weight);
    let rank = shape.len();
    let lead = if layer.conv.is_some() { 2 } else { rank.saturating_sub(1) };
    let columns = shape[lead.min(rank)..].iter().product();
    let mut run = Run { layer, domain, inputs, columns, steps: None };
    if shape.contains(&0) {
        return Ok(());
    }
    if let (Some(attrs), true) = (&layer.conv, layer.channels_last) {
        let moves = Moves::new(sizes([&x.shape, weight], attrs, &shape, false)?.geometry)?;
        let windows = Windows::new(images(bytes, x, zero, signed)?, &moves)?;
        run.columns = shape[1];
        run.steps = run.chain();
        let outputs = outputs.iter_mut().map(|output| output.dense_bytes()).collect();
        return run.slide(&windows, bias, outputs, &each);
    }
    let data = row_major_bytes(bytes, x)?;
    with_row_major(outputs, |outputs| {
        if let Some(attrs) = &layer.conv {
            let conv = sizes([&x.shape, weight], attrs, &shape, false)?;
            let images = match layer.packed.is_empty() {
                true => None,
                false => Images::new(&data, &conv, zero, signed)?,
            };
            if let Some(images) = images {
                return run.convolve(&images, &conv, bias, outputs, &each);
            }
        } else if let [packed] = &layer.packed[..] {
            let (k, n) = packed.sizes();
            run.steps = run.chain();
            let rows = data.len() / k.max(1);
            let at = Strides { offset: 0, batch: &[], row: k as isize, column: 1 };
            if k > 0 {
                let in_place = match signed {
                    true => None,
                    false => Rows::in_place(&data, [rows, k, k], zero, packed),
                };
                if let Some(left) = in_place {
                    return run.multiply(left, [rows, k, n], outputs, &each);
                }
                let left = Left::of_bytes(k, Matrix { data: &data, at }, rows, zero, signed)?;
                return run.multiply(left.rows(), [rows, k, n], outputs, &each);
            }
        }
        run.whole(&data, signed, zero, bias, (&x.shape, &shape), outputs)
    })
}

/// Images as an operand has them.
fn images<'a>(
    data: &'a [u8],
    operand: &BoundOperand,
    zero: i32,
    signed: bool,
) -> Result<ImagesOfBytes<'a>> {
    let (shape, strides) = match (&operand.shape[..], &operand.strides[..]) {
        (&[n, c, w], &[image, channel, column]) => ([n, c, 1, w], [image, channel, 0, column]),
        (&[n, c, h, w], &[image, channel, row, column]) => {
            ([n, c, h, w], [image, channel, row, column])
        }
        _ => return Err(Error::Unsupported { what: "images of this rank" }),
    };
    Ok(ImagesOfBytes { data, offset: operand.offset, shape, strides, zero, signed })
}

/// The bytes of an operand in row-major order.
fn row_major_bytes<'a>(bytes: &'a [u8], operand: &BoundOperand) -> Result<Numbers<'a, u8>> {
    let (len, strides) = (operand.shape.iter().product::<usize>(), row_major(&operand.shape));
    let mut axes = strides.iter().zip(&operand.strides).zip(&operand.shape);
    if axes.all(|((a, b), &n)| n == 1 || a == b) {
        return Ok(Numbers::Lent(&bytes[operand.offset..][..len]));
    }
    let mut dense = scratch::take::<u8>(len)?;
    let (at, from) = (operand.offset, &operand.strides);
    copy_between(&mut dense, 0, &strides, &operand.shape, bytes, at, from)?;
    Ok(Numbers::Own(dense))
}

impl<'a: 'b, 'b> Run<'a, 'b> {
    /// What is done to sums as they are stored, where a matmul's columns are those of the result.
    fn chain(&self) -> Option<Steps<'b>> {
        let is_moved = self.layer.packed.iter().any(|packed| packed.is_moved());
        let chain = self.layer.chain.as_ref().filter(|_| !is_moved)?;
        let inputs = self.epilogue_inputs(LoopInput::Bytes(&[]));
        chain.bind(&self.layer.epilogue, self.domain, self.columns, &inputs)
    }

    fn convolve(
        &self,
        images: &Images,
        conv: &Conv<'_>,
        bias: Option<&[i32]>,
        outputs: Few<&mut [u8]>,
        each: &[usize],
    ) -> Result<()> {
        let (parts, filters) = (conv.images * conv.groups, conv.filters);
        let wanted_of_row = *conv.geometry.outer.last().unwrap_or(&1);
        let down = self.columns / wanted_of_row;
        let work = parts * filters * self.columns * images.depth();
        let wanted = if threads::count() == 1 { 1 } else { TASKS * threads::count() };
        let wanted = wanted.min(work / SHARE);
        let mut rows = (WIDE / wanted_of_row).clamp(1, down);
        let mut tall = (HELD / (rows * wanted_of_row)).max(FILTERS).next_multiple_of(FILTERS);
        let tiles = |rows: usize, tall: usize| parts * down.div_ceil(rows) * filters.div_ceil(tall);
        while tiles(rows, tall) < wanted && rows > 1 && rows * wanted_of_row > NARROW {
            rows = rows.div_ceil(2);
        }
        while tiles(rows, tall) < wanted && tall > FILTERS {
            tall = (tall / 2).next_multiple_of(FILTERS);
        }
        let wide = Some([self.columns, rows * wanted_of_row]);
        let grid = Grid { matrices: parts, rows: filters, tall, wide };
        self.cut(grid, images.lines(), wanted, (outputs, each), |block, space, _| {
            let columns = block.columns.unwrap_or(self.columns);
            let first = block.column / wanted_of_row;
            let rows = first..first + columns / wanted_of_row;
            let group = block.matrix % conv.groups;
            let packed = self.layer.packed.get(group);
            let packed = packed.ok_or(Error::Unsupported { what: "groups of other filters" })?;
            let bias = bias.map(|bias| &bias[group * filters..][..filters]);
            let own = (block.row..block.row + block.rows, rows);
            let (lines, to) = (&mut space.lines[..images.lines()], &mut space.sums[..]);
            let to = &mut to[..block.rows * columns];
            multiply_windows((images, block.matrix), packed, own, bias, lines, to)
        })
    }

    fn multiply(
        &self,
        left: Rows<'_>,
        [rows, k, n]: [usize; 3],
        outputs: Few<&mut [u8]>,
        each: &[usize],
    ) -> Result<()> {
        let wanted = if threads::count() == 1 { 1 } else { TASKS * threads::count() };
        let wanted = wanted.min(rows.saturating_mul(n).saturating_mul(k) / SHARE);
        let (tall, wide) = packed::tile([rows, n], wanted);
        let grid = Grid { matrices: 1, rows, tall, wide: Some([n, wide]) };
        self.cut(grid, 0, wanted, (outputs, each), |block, space, tiles| {
            let to = self.to(block, None, &mut space.sums, tiles)?;
            multiply_tile(left, &self.layer.packed[0], block.row, block.column, to)
        })
    }

    /// A convolution whose channels are innermost: a matmul of windows by filters.
    fn slide(
        &self,
        windows: &Windows<'_>,
        bias: Option<&[i32]>,
        outputs: Few<&mut [u8]>,
        each: &[usize],
    ) -> Result<()> {
        let packed = &*self.layer.packed[0];
        let (depth, n) = packed.sizes();
        check_size("rows of packed filters", windows.depth(), depth)?;
        let rows = windows.count();
        let wanted = if threads::count() == 1 { 1 } else { TASKS * threads::count() };
        let wanted = wanted.min(rows.saturating_mul(n).saturating_mul(depth) / SHARE).max(1);
        let tall = (HELD / 2 / n / SHORT * SHORT).clamp(SHORT, 4 * SHORT);
        let tall = tall.min((rows / wanted / SHORT * SHORT).max(SHORT));
        let across = wanted.div_ceil(rows.div_ceil(tall)).min(n.div_ceil(FILTERS));
        let wide = n.div_ceil(across).next_multiple_of(Packed::COLUMNS).min(n);
        let grid = Grid { matrices: 1, rows, tall, wide: Some([n, wide]) };
        let in_place = |rows: &Range<usize>| windows.in_place(rows, packed);
        let gathered = match wide < n && in_place(&(0..tall.min(rows))).is_none() {
            true => Some(windows.all(packed)?),
            false => None,
        };
        let lines = (windows.words(tall.min(rows)) * size_of::<u32>()).div_ceil(size_of::<Line>());
        self.cut(grid, lines, wanted, (outputs, each), |block, space, tiles| {
            let Space { lines, sums, .. } = space;
            let own = block.row..block.row + block.rows;
            let (left, row) = match (&gathered, in_place(&own)) {
                (Some(left), _) => (left.rows(), block.row),
                (None, Some(left)) => (left, 0),
                (None, None) => (windows.gather(own, packed, cast_slice_mut(lines)), 0),
            };
            let to = self.to(block, bias, sums, tiles)?;
            multiply_tile(left, packed, row, block.column, to)?;
            if let (Some(bias), None) = (bias, &self.steps) {
                let columns = block.columns.unwrap_or(n);
                let sums = &mut sums[..block.rows * columns];
                let bias = &bias[block.column..][..columns];
                for sums in sums.chunks_exact_mut(columns) {
                    sums.iter_mut().zip(bias).for_each(|(sum, &b)| *sum = sum.wrapping_add(b));
                }
            }
            Ok(())
        })
    }

    /// Where a tile of a matmul goes: to its results, or to memory for sums.
    fn to<'c>(
        &'c self,
        block: Block,
        bias: Option<&'c [i32]>,
        sums: &'c mut [i32],
        tiles: &'c mut Tiles<'_, u8>,
    ) -> Result<To<'c>> {
        let columns = block.columns.unwrap_or(self.columns);
        let (Some(steps), [tile]) = (&self.steps, &mut tiles[..]) else {
            return Ok(To::Sums(TileMut::new(&mut sums[..block.rows * columns], columns)));
        };
        let to = match self.layer.chain.as_ref().is_some_and(|chain| chain.dtype == DType::F32) {
            true => {
                let tile = tile.typed::<f32>();
                Results::Reals(tile.ok_or(Error::Unsupported { what: "an unaligned output" })?)
            }
            false => Results::Bytes(tile.whole()),
        };
        let first = [block.row, block.column];
        Ok(To::Finished(Finish { bias, steps, first, columns: self.columns, to }))
    }

    /// Runs tiles: their sums, and the epilogue on them if it is not in those.
    fn cut(
        &self,
        grid: Grid,
        lines: usize,
        wanted: usize,
        (outputs, each): (Few<&mut [u8]>, &[usize]),
        sums: impl Fn(Block, &mut Space, &mut Tiles<'_, u8>) -> Result<()> + Sync,
    ) -> Result<()> {
        let whole = outputs.into_iter().zip(each);
        let whole = whole.map(|(bytes, &size)| (TileMut::new(bytes, self.columns * size), size));
        let cut = Cut::new(grid, whole);
        let cut = cut.ok_or(Error::Unsupported { what: "an output of another shape" })?;
        let held = if self.steps.is_some() { 0 } else { grid.tall.min(grid.rows) };
        let most = held * grid.wide.map_or(self.columns, |[_, wide]| wide);
        let mut spaces = scratch::slots::<Space>(threads::count());
        for space in spaces.iter_mut() {
            sized(&mut space.lines, lines);
            sized(&mut space.sums, most);
            sized(&mut space.wide, if self.layer.real { 0 } else { most });
            space.workspace.fit(&self.layer.epilogue);
        }
        let least = if wanted < 2 { usize::MAX } else { 1 };
        threads::try_each_with(&mut spaces, least, cut, |space, _, (block, mut tiles)| {
            sums(block, space, &mut tiles)?;
            if self.steps.is_none() {
                self.follow(block, grid.rows, space, &mut tiles);
            }
            Ok(())
        })
    }

    /// The epilogue on the sums of a tile.
    fn follow(&self, block: Block, rows: usize, space: &mut Space, tiles: &mut Tiles<'_, u8>) {
        let Space { sums, wide, workspace, .. } = space;
        let columns = block.columns.unwrap_or(self.columns);
        let len = block.rows * columns;
        let sums = match self.layer.real {
            true => {
                dispatch(Reals(&mut sums[..len]));
                Elements::F32(cast_slice(&sums[..len]))
            }
            false => {
                wide[..len].iter_mut().zip(&*sums).for_each(|(to, &sum)| *to = sum.into());
                Elements::I64(&wide[..len])
            }
        };
        let inputs = self.epilogue_inputs(LoopInput::Tile(sums));
        let mut outputs: Few<LoopOutput<'_>> = tiles.iter_mut().map(loop_output).collect();
        let first = (block.matrix * rows + block.row) * self.columns + block.column;
        let tile = match columns == self.columns {
            true => Tile::range(first..first + len),
            false => Tile { first, rows: block.rows, width: columns, pitch: self.columns },
        };
        self.layer.epilogue.run_tile(self.domain, tile, &inputs, &mut outputs, workspace);
    }

    fn epilogue_inputs<'c>(&self, result: LoopInput<'c>) -> Few<LoopInput<'c>>
    where
        'a: 'c,
    {
        let read = |read| match read {
            ConvRead::Input(number) => self.inputs.of_loop(number),
            ConvRead::Result => result,
        };
        self.layer.reads().map(read).collect()
    }

    /// All at once, where the weight is read as it lies.
    fn whole(
        &self,
        bytes: &[u8],
        signed: bool,
        zero: i32,
        bias: Option<&[i32]>,
        (from, to): (&[usize], &[usize]),
        outputs: Few<&mut [u8]>,
    ) -> Result<()> {
        let mut x = scratch::take::<i32>(bytes.len())?;
        for (to, &byte) in x.iter_mut().zip(bytes) {
            let byte = if signed { i32::from(byte as i8) } else { byte.into() };
            *to = byte.wrapping_sub(zero);
        }
        let (w, weight, _) = self.inputs.bytes(self.layer.weight)?;
        let len = weight.shape.iter().product::<usize>();
        let mut y = scratch::take::<i32>(to.iter().product())?;
        match &self.layer.conv {
            Some(attrs) => {
                let conv = sizes([from, &weight.shape], attrs, to, false)?;
                let w = &cast_slice::<u8, i32>(w)[weight.offset..][..len];
                conv_integers(&mut y, &x, Filters::Plain(w), bias, conv)?;
            }
            None => {
                let [k, n] = [weight.shape[weight.shape.len() - 2], self.columns];
                let size = Size { batch: &[], m: y.len() / n, n, k };
                let at =
                    |row: usize| Strides { offset: 0, batch: &[], row: row as isize, column: 1 };
                let [.., row, column] = weight.strides[..] else {
                    return Err(Error::Unsupported { what: "a matmul of vectors" });
                };
                let b = Strides { offset: weight.offset, batch: &[], row, column };
                let b = Matrix { data: cast_slice::<u8, i32>(w), at: b };
                let a = Matrix { data: &x[..], at: at(k) };
                matmul_integers(size, a, b, MatrixMut { data: &mut y[..], at: at(n) })?;
            }
        }
        let mut wide = Vec::new();
        let sums = match self.layer.real {
            true => {
                dispatch(Reals(&mut y));
                Elements::F32(cast_slice(&y))
            }
            false => {
                wide.extend(y.iter().map(|&sum| i64::from(sum)));
                Elements::I64(&wide)
            }
        };
        let inputs = self.epilogue_inputs(LoopInput::Tile(sums));
        let mut outputs: Few<_> = outputs.into_iter().map(LoopOutput::Bytes).collect();
        let mut workspace = scratch::slots::<Workspace>(1);
        workspace[0].fit(&self.layer.epilogue);
        let tile = Tile::range(0..y.len());
        self.layer.epilogue.run_tile(self.domain, tile, &inputs, &mut outputs, &mut workspace[0]);
        Ok(())
    }
}

/// Makes integers what they are in single precision, in their place.
struct Reals<'a>(&'a mut [i32]);

impl Kernel for Reals<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd, const FMA: bool>(self, _: S) {
        self.0.iter_mut().for_each(|x| *x = (*x as f32).to_bits() as i32);
    }
}
