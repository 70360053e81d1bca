//! Running layers: tiles, in parallel.

use super::bind::{BoundLayer, BoundLayers, BoundProduct, Place};
use super::{Layer, Layers, Left, Product, Read, Write};
use crate::cpu::kernels::gemm::{TileMut, batch_offset, product};
use crate::cpu::kernels::matmul::{Element, Matrix, Strides, widened};
use crate::cpu::kernels::packed::{self, Packed, multiply};
use crate::cpu::loops::{Elements, ElementsMut, LoopInput, LoopOutput, Tile, Workspace, round};
use crate::cpu::run::{Io, with_row_major};
use crate::error::{Error, Result};
use bytemuck::{Pod, cast_slice};
use graphene_frontend::dtype::DType;
use half::{bf16, f16};
use rayon::iter::{IndexedParallelIterator, IntoParallelIterator, ParallelIterator};
use std::borrow::Cow;
use std::ops::Range;
use std::sync::Mutex;

/// Layers of fewer multiplications than this run on the calling thread.
const PARALLEL: usize = 1 << 18;

/// A product's columns are not divided into narrower tiles than this for the threads' sake.
const NARROW: usize = 192;

/// The `gemm` crate computes this many columns at a time (on AVX-512; half of them on AVX2).
const COLUMNS: usize = 48;

// A layer's products share tiles, and some of them may have been laid out beforehand.
const _: () = assert!(COLUMNS.is_multiple_of(Packed::COLUMNS));

/// It packs so many columns of B at a time: those of a tile that is computed beside its place.
const PANEL: usize = 8 * COLUMNS;

/// The most rows of a tile that is computed in place: more are better shared by threads.
const TALL: usize = 4096;

/// Elements of a tile that is computed beside its place: it stays in the second-level cache.
const CACHED: usize = 3 << 17;

/// Rows that a thread takes through a chain of layers at a time at most. Every B is packed anew for
/// each such block: with fewer rows that costs more than what lies between layers gains by being near.
const CHAIN: usize = 1024;

/// Rows below which a chain of layers whose weights were laid out beforehand is not divided for the threads' sake.
const LEAST: usize = 16;

/// Tiles for each thread of a product whose weights were laid out beforehand, where there can be so many: a thread
/// that is slower leaves some to the others.
const TASKS: usize = 4;

/// As [`multiply`].
type Multiply<T> = fn(usize, Matrix<'_, T>, &Packed, usize, &mut TileMut<'_, T>) -> Result<()>;

/// The numbers that a layer multiplies.
trait Number: Element + Pod {
    /// The product by what was laid out beforehand, if such numbers are.
    const MULTIPLY: Option<Multiply<Self>>;

    fn elements(slice: &[Self]) -> Elements<'_>;
    fn elements_mut(slice: &mut [Self]) -> ElementsMut<'_>;
    /// The elements of these places of a buffer, 16-bit floats widened.
    fn read(bytes: &[u8], dtype: DType, places: Range<usize>) -> Result<Cow<'_, [Self]>>;
    /// Rounds as if stored in this type.
    fn round(dtype: DType, slice: &mut [Self]);
}

impl Number for f32 {
    const MULTIPLY: Option<Multiply<Self>> = Some(multiply);

    fn elements(slice: &[Self]) -> Elements<'_> {
        Elements::F32(slice)
    }

    fn elements_mut(slice: &mut [Self]) -> ElementsMut<'_> {
        ElementsMut::F32(slice)
    }

    fn read(bytes: &[u8], dtype: DType, places: Range<usize>) -> Result<Cow<'_, [Self]>> {
        Ok(match dtype {
            DType::F16 => Cow::Owned(widened::<f16>(&cast_slice(bytes)[places])?),
            DType::BF16 => Cow::Owned(widened::<bf16>(&cast_slice(bytes)[places])?),
            _ => Cow::Borrowed(&cast_slice(bytes)[places]),
        })
    }

    fn round(dtype: DType, slice: &mut [Self]) {
        round(dtype, slice);
    }
}

impl Number for f64 {
    const MULTIPLY: Option<Multiply<Self>> = None;

    fn elements(slice: &[Self]) -> Elements<'_> {
        Elements::F64(slice)
    }

    fn elements_mut(slice: &mut [Self]) -> ElementsMut<'_> {
        ElementsMut::F64(slice)
    }

    fn read(bytes: &[u8], _: DType, places: Range<usize>) -> Result<Cow<'_, [Self]>> {
        Ok(Cow::Borrowed(&cast_slice(bytes)[places]))
    }

    fn round(_: DType, _: &mut [Self]) {}
}

/// An operand of products, and the place in its buffer at which the elements start.
struct Operand<'a, T: Clone> {
    elements: Cow<'a, [T]>,
    start: usize,
}

/// What all threads read.
struct Run<'a, T: Clone> {
    layers: &'a Layers,
    bound: &'a BoundLayers,
    /// The step's inputs as products read them, where one does.
    operands: Vec<Option<Operand<'a, T>>>,
    /// The step's inputs as epilogues read them.
    inputs: Vec<LoopInput<'a>>,
}

/// What a thread computes at a time: a tile of a matrix. All columns are those of each layer.
#[derive(Clone, Copy, Debug)]
struct Block {
    matrix: usize,
    row: usize,
    rows: usize,
    column: usize,
    columns: Option<usize>,
}

/// A block, and its part of each of the step's outputs.
type Task<'a> = (Block, Vec<TileMut<'a, u8>>);

/// The memory of one thread.
struct Space<T> {
    /// The current layer's products.
    products: Vec<Vec<T>>,
    /// A block's rows of each kept value.
    kept: Vec<Vec<T>>,
    /// One for each layer.
    workspaces: Vec<Workspace>,
}

/// Runs the layers of a step.
///
/// # Errors
/// [`Error::Memory`], and [`Error::OutOfBounds`] for operands that leave their buffers: a defect of the plan.
pub(crate) fn run_layers(layers: &Layers, bound: &BoundLayers, io: Io<'_>) -> Result<()> {
    match layers.dtype {
        DType::F64 => run::<f64>(layers, bound, io),
        _ => run::<f32>(layers, bound, io),
    }
}

fn run<T: Number>(layers: &Layers, bound: &BoundLayers, mut io: Io<'_>) -> Result<()> {
    let mut operands: Vec<Option<Operand<'_, T>>> = io.inputs.iter().map(|_| None).collect();
    for product in layers.layers.iter().flat_map(|layer| &layer.products) {
        let a = match product.a {
            Left::Input(number) => Some(number),
            Left::Kept(_) => None,
        };
        let b = product.laid.is_none().then_some(product.b);
        for number in a.into_iter().chain(b) {
            if operands[number].is_none() {
                operands[number] = Some(operand(&io, number)?);
            }
        }
    }
    let run = Run { layers, bound, operands, inputs: io.loop_inputs() };
    let sizes: Vec<usize> = io.outputs.iter().map(|output| output.dtype.size()).collect();
    with_row_major(&mut io.outputs, |outputs| run.all(outputs, &sizes))
}

fn operand<'a, T: Number>(io: &Io<'a>, number: usize) -> Result<Operand<'a, T>> {
    let (bytes, operand, dtype) = io.input(number)?;
    let span = operand.span();
    if span.is_empty() {
        return Ok(Operand { elements: Cow::Borrowed(&[]), start: 0 });
    }
    let start = span.start;
    Ok(Operand { elements: T::read(bytes, dtype, span)?, start })
}

impl<T: Number> Run<'_, T> {
    fn all(&self, outputs: Vec<&mut [u8]>, sizes: &[usize]) -> Result<()> {
        let [threads, work] = [rayon::current_num_threads(), self.work()];
        let threads = if work < PARALLEL { 1 } else { threads };
        let tasks = self.tasks(outputs, sizes, threads);
        let spaces: Mutex<Vec<Space<T>>> = Mutex::default();
        let run = |(block, mut tiles): Task<'_>| {
            let space = spaces.lock().map_or(None, |mut spaces| spaces.pop());
            let mut space = space.unwrap_or_else(|| self.space());
            for number in 0..self.layers.layers.len() {
                self.layer(number, block, &mut tiles, &mut space)?;
            }
            if let Ok(mut spaces) = spaces.lock() {
                spaces.push(space);
            }
            Ok(())
        };
        if threads == 1 {
            return tasks.into_iter().try_for_each(run);
        }
        let least = (PARALLEL / 4 * tasks.len() / work).max(1);
        tasks.into_par_iter().with_min_len(least).try_for_each(run)
    }

    /// Multiplications in all.
    fn work(&self) -> usize {
        let elements = self.bound.matrices().saturating_mul(self.bound.rows);
        let layers = self.bound.layers.iter();
        let each = layers.map(|layer| {
            let depth: usize = layer.products.iter().map(|product| product.depth.max(1)).sum();
            elements.saturating_mul(layer.columns).saturating_mul(depth)
        });
        each.fold(0, usize::saturating_add).max(1)
    }

    fn space(&self) -> Space<T> {
        let layers = &self.layers.layers;
        let products = layers.iter().map(|layer| layer.products.len()).max().unwrap_or(0);
        Space {
            products: vec![Vec::new(); products],
            kept: vec![Vec::new(); self.layers.kept.len()],
            workspaces: layers.iter().map(|layer| layer.epilogue.workspace()).collect(),
        }
    }

    /// Cuts the outputs into tiles.
    fn tasks<'a>(
        &self,
        outputs: Vec<&'a mut [u8]>,
        sizes: &[usize],
        threads: usize,
    ) -> Vec<Task<'a>> {
        let (rows, columns) = self.tile(threads);
        let mut rest: Vec<TileMut<'a, u8>> = Vec::with_capacity(outputs.len());
        for (number, (bytes, size)) in outputs.into_iter().zip(sizes).enumerate() {
            rest.push(TileMut::new(bytes, self.columns_of(number) * size));
        }
        let mut tasks = Vec::new();
        for matrix in 0..self.bound.matrices() {
            for row in (0..self.bound.rows).step_by(rows) {
                let rows = rows.min(self.bound.rows - row);
                let tiles = cut(&mut rest, |tile, _| tile.split_rows(rows));
                let block = Block { matrix, row, rows, column: 0, columns: None };
                match columns {
                    Some(columns) => self.across(&mut tasks, block, tiles, columns, sizes),
                    None => tasks.push((block, tiles)),
                }
            }
        }
        tasks
    }

    /// Cuts rows of a single layer into tiles of this many columns.
    fn across<'a>(
        &self,
        tasks: &mut Vec<Task<'a>>,
        block: Block,
        mut rest: Vec<TileMut<'a, u8>>,
        columns: usize,
        sizes: &[usize],
    ) {
        let all = self.bound.layers[0].columns;
        for column in (0..all).step_by(columns) {
            let columns = columns.min(all - column);
            let tiles = cut(&mut rest, |tile, number| tile.split_columns(columns * sizes[number]));
            tasks.push((Block { column, columns: Some(columns), ..block }, tiles));
        }
    }

    /// Columns of an output.
    fn columns_of(&self, output: usize) -> usize {
        let writes =
            |layer: &&(&Layer, &BoundLayer)| layer.0.writes.contains(&Write::Output(output));
        let layers = self.layers.layers.iter().zip(&self.bound.layers);
        let layer = layers.collect::<Vec<_>>().iter().find(writes).map(|layer| layer.1.columns);
        layer.unwrap_or(0)
    }

    /// Rows and columns of a tile; all columns for a chain of layers.
    ///
    /// A tile of a single layer is as tall as can be, for B is packed anew for each tile of the same
    /// columns, while A is read as it lies; and as wide, for long rows are read and written faster. There
    /// is at least one tile for each thread.
    fn tile(&self, threads: usize) -> (usize, Option<usize>) {
        let (matrices, rows) = (self.bound.matrices().max(1), self.bound.rows.max(1));
        let mut products = self.layers.layers.iter().flat_map(|layer| &layer.products);
        if products.all(|product| product.laid.is_some()) {
            return self.tile_of_laid(matrices, rows, threads);
        }
        let wanted = match matrices {
            1 => threads,
            _ => (2 * threads).div_ceil(matrices),
        };
        let ([layer], [bound]) = (&self.layers.layers[..], &self.bound.layers[..]) else {
            let blocks = rows.div_ceil(CHAIN).next_multiple_of(wanted);
            return (rows.div_ceil(blocks).next_multiple_of(8).min(rows), None);
        };
        let all = bound.columns.max(1);
        let across = wanted.min(all / NARROW).max(1);
        let mut columns = all.div_ceil(across).next_multiple_of(COLUMNS).min(all);
        let beside = layer.products.iter().any(|product| product.place.is_none());
        if beside {
            columns = columns.min(PANEL);
        }
        let down = wanted.div_ceil(all.div_ceil(columns));
        let tallest = if beside { CACHED / columns } else { TALL };
        let tall = rows.div_ceil(rows.div_ceil(tallest).max(down));
        (tall.next_multiple_of(8).min(rows), Some(columns))
    }

    /// The same where every B was laid out beforehand: tiles may be as small as caches and threads want them.
    fn tile_of_laid(&self, matrices: usize, rows: usize, threads: usize) -> (usize, Option<usize>) {
        let [bound] = &self.bound.layers[..] else {
            // Each tile goes through all weights.
            let down = threads.div_ceil(matrices).min(rows.div_ceil(LEAST));
            let down = rows.div_ceil(packed::HEIGHT).max(down);
            return (rows.div_ceil(down).next_multiple_of(8).min(rows), None);
        };
        let tasks = if threads == 1 { 1 } else { TASKS * threads };
        let (rows, columns) = packed::tile([rows, bound.columns], tasks.div_ceil(matrices));
        (rows, Some(columns))
    }

    /// Runs a layer on a block.
    fn layer(
        &self,
        number: usize,
        block: Block,
        tiles: &mut [TileMut<'_, u8>],
        space: &mut Space<T>,
    ) -> Result<()> {
        let (layer, bound) = (&self.layers.layers[number], &self.bound.layers[number]);
        self.products(layer, bound, block, tiles, space)?;
        if layer.is_product() {
            return Ok(());
        }
        let Space { products, kept, workspaces } = space;
        let columns = block.columns.unwrap_or(bound.columns);
        // What the epilogue keeps it does not read.
        let mut keeping: Vec<(usize, Vec<T>)> = Vec::new();
        for write in &layer.writes {
            if let Write::Kept(kept_number) = *write {
                let mut elements = std::mem::take(&mut kept[kept_number]);
                elements.resize(block.rows * columns, T::ZERO);
                keeping.push((kept_number, elements));
            }
        }
        let inputs: Vec<LoopInput<'_>> = layer
            .reads
            .iter()
            .map(|read| match *read {
                Read::Input(input) => self.inputs[input],
                Read::Product(product) => match layer.products[product].place {
                    Some(write) => LoopInput::Overwritten(write),
                    None => LoopInput::Tile(T::elements(&products[product])),
                },
                Read::Kept(number) => LoopInput::Tile(T::elements(&kept[number])),
            })
            .collect();
        // Outputs come before kept values, both in order, as in the layer's writes.
        let own = |(output, _): &(usize, _)| layer.writes.contains(&Write::Output(*output));
        let given = tiles.iter_mut().enumerate().filter(own).map(|(_, tile)| loop_output(tile));
        let mut outputs: Vec<LoopOutput<'_>> = given.collect();
        outputs.extend(keeping.iter_mut().map(|(_, x)| LoopOutput::Tile(T::elements_mut(x))));
        let row = block.matrix * self.bound.rows + block.row;
        let first = row * bound.columns + block.column;
        let tile = match columns == bound.columns {
            true => Tile::range(first..first + block.rows * columns),
            false => Tile { first, rows: block.rows, width: columns, pitch: bound.columns },
        };
        let workspace = &mut workspaces[number];
        layer.epilogue.run_tile(&bound.domain, tile, &inputs, &mut outputs, workspace);
        keeping.into_iter().for_each(|(number, elements)| kept[number] = elements);
        Ok(())
    }

    /// A layer's products on a block.
    fn products(
        &self,
        layer: &Layer,
        bound: &BoundLayer,
        block: Block,
        tiles: &mut [TileMut<'_, u8>],
        space: &mut Space<T>,
    ) -> Result<()> {
        let columns = block.columns.unwrap_or(bound.columns);
        for (i, (own, at)) in layer.products.iter().zip(&bound.products).enumerate() {
            let a = match (own.a, &at.a) {
                (Left::Input(number), Some(place)) => {
                    self.matrix(number, place, block.matrix, [block.row, 0], at.depth)?
                }
                (Left::Kept(number), _) => Matrix {
                    data: &space.kept[number][..],
                    at: Strides { offset: 0, batch: &[], row: at.depth as isize, column: 1 },
                },
                (Left::Input(_), None) => {
                    return Err(Error::Unsupported { what: "no left operand" });
                }
            };
            match own.place.map(|write| layer.writes[write]) {
                Some(Write::Output(output)) => {
                    let tile = tiles[output].typed::<T>();
                    let mut tile =
                        tile.ok_or(Error::Unsupported { what: "an unaligned output" })?;
                    self.product((own, at), block, a, &mut tile)?;
                }
                Some(Write::Kept(_)) | None => {
                    let beside = &mut space.products[i];
                    beside.resize(block.rows * columns, T::ZERO);
                    self.product((own, at), block, a, &mut TileMut::new(beside, columns))?;
                    T::round(self.layers.dtype, beside);
                }
            }
        }
        Ok(())
    }

    fn product(
        &self,
        (own, at): (&Product, &BoundProduct),
        block: Block,
        a: Matrix<'_, T>,
        c: &mut TileMut<'_, T>,
    ) -> Result<()> {
        if let (Some(laid), Some(multiply)) = (&own.laid, T::MULTIPLY) {
            return multiply(at.depth, a, laid, block.column, c);
        }
        let b = self.matrix(own.b, &at.b, block.matrix, [0, block.column], at.depth)?;
        product(at.depth, a, b, c)
    }

    /// A matrix of an operand, from this row and column on.
    fn matrix(
        &self,
        number: usize,
        place: &Place,
        matrix: usize,
        [row, column]: [usize; 2],
        depth: usize,
    ) -> Result<Matrix<'_, T>> {
        let operand = self.operands[number].as_ref();
        let Operand { elements, start } =
            operand.ok_or(Error::Unsupported { what: "no operand" })?;
        // Of operands without elements nothing is read, wherever they begin.
        let offset = match depth {
            0 => 0,
            _ => {
                let batch = batch_offset(matrix, &self.bound.batch, &place.batch);
                let from = row as isize * place.row + column as isize * place.column;
                (place.offset as isize + batch + from - *start as isize) as usize
            }
        };
        Ok(Matrix { data: elements, at: place.strides(offset) })
    }
}

/// Takes a part off each of the tiles.
fn cut<'a>(
    rest: &mut Vec<TileMut<'a, u8>>,
    split: impl Fn(TileMut<'a, u8>, usize) -> [TileMut<'a, u8>; 2],
) -> Vec<TileMut<'a, u8>> {
    let parts = std::mem::take(rest).into_iter().enumerate();
    let (own, after) = parts.map(|(number, tile)| split(tile, number).into()).unzip();
    *rest = after;
    own
}

fn loop_output<'a>(tile: &'a mut TileMut<'_, u8>) -> LoopOutput<'a> {
    if tile.is_dense() {
        LoopOutput::Bytes(tile.dense())
    } else {
        LoopOutput::Rows(tile.each_row().collect())
    }
}
