//! Running layers: tiles, in parallel.

use super::bind::{BoundLayer, BoundLayers, BoundMatMul, Following, Place};
use super::{Layer, Layers, Left, MatMul, Read, Write};
use crate::cpu::kernels::bf16::Line;
use crate::cpu::kernels::copy::copy_strided;
use crate::cpu::kernels::finish::Epilogue;
use crate::cpu::kernels::gemm::{batch_offset, matmul};
use crate::cpu::kernels::matmul::{Element, Matrix, Strides, widened};
use crate::cpu::kernels::packed::{self, Packed};
use crate::cpu::kernels::tile::{Block, Cut, Grid, TileMut, Tiles};
use crate::cpu::loops::{Elements, ElementsMut, LoopInput, LoopOutput, Tile, Workspace, round};
use crate::cpu::memory::{Inputs, Io};
use crate::cpu::prepacked::PackedWeight;
use crate::cpu::run::with_row_major;
use crate::cpu::scratch::{self, Few, Kept, Numbers, kept, sized};
use crate::error::{Error, Result};
use crate::threads::{self, Parts as _};
use bytemuck::{Pod, cast_slice};
use graphene_frontend::dtype::DType;
use half::{bf16, f16};
use std::ops::Range;

/// Layers of fewer multiplications than this run on the calling thread.
const PARALLEL: usize = 1 << 18;

/// A matmul's columns are not divided into narrower tiles than this for the threads' sake.
const NARROW: usize = 192;

/// The `gemm` crate computes this many columns at a time (on AVX-512; half of them on AVX2).
const COLUMNS: usize = 48;

// A layer's matmuls share tiles, and some of them may have been prepacked.
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

/// Rows below which a chain of layers whose weights were prepacked is not divided for the threads' sake.
const LEAST: usize = 16;

/// As [`PackedWeight::multiply`].
type Multiply<T> = fn(
    &PackedWeight,
    usize,
    Matrix<'_, T>,
    usize,
    &mut TileMut<'_, T>,
    &mut [Line],
    Epilogue<'_, T>,
) -> Result<()>;

/// The numbers that a layer multiplies.
trait Number: Element + Pod + Default {
    /// The matmul by what was prepacked, if such numbers are.
    const MULTIPLY: Option<Multiply<Self>>;

    fn elements(slice: &[Self]) -> Elements<'_>;
    fn elements_mut(slice: &mut [Self]) -> ElementsMut<'_>;
    /// The elements of these places of a buffer, 16-bit floats widened.
    fn read(bytes: &[u8], dtype: DType, places: Range<usize>) -> Result<Numbers<'_, Self>>;
    /// Rounds as if stored in this type.
    fn round(dtype: DType, slice: &mut [Self]);
}

impl Number for f32 {
    const MULTIPLY: Option<Multiply<Self>> = Some(PackedWeight::multiply);

    fn elements(slice: &[Self]) -> Elements<'_> {
        Elements::F32(slice)
    }

    fn elements_mut(slice: &mut [Self]) -> ElementsMut<'_> {
        ElementsMut::F32(slice)
    }

    fn read(bytes: &[u8], dtype: DType, places: Range<usize>) -> Result<Numbers<'_, Self>> {
        Ok(match dtype {
            DType::F16 => Numbers::Own(widened::<f16>(&cast_slice(bytes)[places])?),
            DType::BF16 => Numbers::Own(widened::<bf16>(&cast_slice(bytes)[places])?),
            _ => Numbers::Lent(&cast_slice(bytes)[places]),
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

    fn read(bytes: &[u8], _: DType, places: Range<usize>) -> Result<Numbers<'_, Self>> {
        Ok(Numbers::Lent(&cast_slice(bytes)[places]))
    }

    fn round(_: DType, _: &mut [Self]) {}
}

/// An operand of matmuls, and the place in its buffer at which the elements start.
struct Operand<'a, T> {
    elements: Numbers<'a, T>,
    start: usize,
}

impl<T: Number> Operand<'_, T> {
    /// The elements of an input in row-major order.
    fn copied(&self, inputs: &Inputs<'_>, number: usize) -> Result<Self> {
        let (_, operand, _) = inputs.bytes(number)?;
        let mut dense = scratch::take(operand.shape.iter().product())?;
        let from = operand.offset - self.start;
        copy_strided(&mut dense, &operand.shape, &self.elements, from, &operand.strides)?;
        Ok(Self { elements: Numbers::Own(dense), start: 0 })
    }
}

/// What all threads read.
struct Run<'a, 'b, T> {
    layers: &'b Layers,
    bound: &'b BoundLayers,
    /// Those of the step's inputs that matmuls read as they lie, by number.
    operands: Few<(usize, Operand<'a, T>)>,
    /// The step's inputs.
    inputs: &'b Inputs<'a>,
}

/// The memory of one thread.
#[derive(Default)]
struct Space<T> {
    /// The current layer's matmuls.
    matmuls: Vec<Vec<T>>,
    /// A block's rows of each kept value.
    kept: Vec<Vec<T>>,
    /// What a matmul works in whose weights were prepacked.
    lines: Vec<Line>,
    workspace: Workspace,
}

kept!(Space<f32>, Space<f64>);

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

fn run<T: Number>(layers: &Layers, bound: &BoundLayers, mut io: Io<'_>) -> Result<()>
where
    Space<T>: Kept,
{
    let Io { inputs, outputs } = &mut io;
    let mut operands: Few<(usize, Operand<'_, T>)> = Few::new();
    for matmul in layers.layers.iter().flat_map(|layer| &layer.matmuls) {
        let a = match matmul.a {
            Left::Input(number) => Some(number),
            Left::Kept(_) => None,
        };
        let b = matmul.prepacked.is_none().then_some(matmul.b);
        for number in a.into_iter().chain(b) {
            if !operands.iter().any(|&(known, _)| known == number) {
                let given = operand(inputs, number)?;
                let copied = bound.copied.contains(&number);
                operands.push((number, if copied { given.copied(inputs, number)? } else { given }));
            }
        }
    }
    let run = Run { layers, bound, operands, inputs };
    let sizes: Few<usize> = outputs.iter().map(|output| output.dtype.size()).collect();
    with_row_major(outputs, |outputs| run.all(outputs, &sizes))
}

fn operand<'a, T: Number>(inputs: &Inputs<'a>, number: usize) -> Result<Operand<'a, T>> {
    let (bytes, operand, dtype) = inputs.bytes(number)?;
    let span = operand.span();
    if span.is_empty() {
        return Ok(Operand { elements: Numbers::Lent(&[]), start: 0 });
    }
    let start = span.start;
    Ok(Operand { elements: T::read(bytes, dtype, span)?, start })
}

impl<T: Number> Run<'_, '_, T>
where
    Space<T>: Kept,
{
    fn all(&self, outputs: Few<&mut [u8]>, sizes: &[usize]) -> Result<()> {
        let work = self.work();
        let threads = if work < PARALLEL { 1 } else { threads::count() };
        let (tall, wide) = self.tile(threads);
        let grid = Grid {
            matrices: self.bound.matrices(),
            rows: self.bound.rows,
            tall,
            wide: wide.map(|wide| [self.bound.layers[0].columns, wide]),
        };
        let whole = outputs.into_iter().zip(sizes).enumerate();
        let whole = whole.map(|(number, (bytes, &size))| {
            (TileMut::new(bytes, self.columns_of(number) * size), size)
        });
        let cut = Cut::new(grid, whole);
        let cut = cut.ok_or(Error::Unsupported { what: "an output of another shape" })?;
        let mut spaces = scratch::slots::<Space<T>>(threads::count());
        spaces.iter_mut().take(threads).for_each(|space| self.fit(space, grid));
        let run = |space: &mut Space<T>, block: Block, mut tiles: Tiles<'_, u8>| {
            let mut layers = 0..self.layers.layers.len();
            layers.try_for_each(|number| self.layer(number, block, &mut tiles, space))
        };
        let tasks = cut.len();
        let least = if threads == 1 { tasks } else { (PARALLEL / 4 * tasks / work).max(1) };
        let own = &mut spaces;
        threads::try_each_with(own, least, cut, |space, _, (block, tiles)| run(space, block, tiles))
    }

    /// Multiplications in all.
    fn work(&self) -> usize {
        let elements = self.bound.matrices().saturating_mul(self.bound.rows);
        let layers = self.bound.layers.iter();
        let each = layers.map(|layer| {
            let depth: usize = layer.matmuls.iter().map(|matmul| matmul.depth.max(1)).sum();
            elements.saturating_mul(layer.columns).saturating_mul(depth)
        });
        each.fold(0, usize::saturating_add).max(1)
    }

    /// Makes sure of memory for any tile.
    fn fit(&self, space: &mut Space<T>, grid: Grid) {
        let layers = self.layers.layers.iter().zip(&self.bound.layers);
        for (layer, bound) in layers {
            let columns = grid.wide.map_or(bound.columns, |[_, wide]| wide);
            if bound.following.is_none() {
                space.workspace.fit(&layer.epilogue);
            }
            for (number, matmul) in layer.matmuls.iter().enumerate() {
                if !self.is_output(layer, matmul) {
                    grow(&mut space.matmuls, number, grid.tall * columns);
                }
                if let Some(prepacked) = &matmul.prepacked {
                    sized(&mut space.lines, prepacked.memory(grid.tall));
                }
            }
            for write in &layer.writes {
                if let Write::Kept(number) = *write {
                    grow(&mut space.kept, number, grid.tall * columns);
                }
            }
        }
    }

    /// Whether a matmul is computed where an output will be.
    fn is_output(&self, layer: &Layer, matmul: &MatMul) -> bool {
        matches!(matmul.place.map(|write| layer.writes[write]), Some(Write::Output(_)))
    }

    /// Columns of an output.
    fn columns_of(&self, output: usize) -> usize {
        let layers = self.layers.layers.iter().zip(&self.bound.layers);
        let mut own = layers.filter(|(layer, _)| layer.writes.contains(&Write::Output(output)));
        own.next().map_or(0, |(_, bound)| bound.columns)
    }

    /// Rows and columns of a tile; all columns for a chain of layers.
    ///
    /// A tile of a single layer is as tall as can be, for B is packed anew for each tile of the same
    /// columns, while A is read as it lies; and as wide, for long rows are read and written faster. There
    /// is at least one tile for each thread.
    fn tile(&self, threads: usize) -> (usize, Option<usize>) {
        let (matrices, rows) = (self.bound.matrices().max(1), self.bound.rows.max(1));
        let mut matmuls = self.layers.layers.iter().flat_map(|layer| &layer.matmuls);
        if matmuls.all(|matmul| matmul.prepacked.is_some()) {
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
        let beside = layer.matmuls.iter().any(|matmul| matmul.place.is_none());
        if beside {
            columns = columns.min(PANEL);
        }
        let down = wanted.div_ceil(all.div_ceil(columns));
        let tallest = if beside { CACHED / columns } else { TALL };
        let tall = rows.div_ceil(rows.div_ceil(tallest).max(down));
        (tall.next_multiple_of(8).min(rows), Some(columns))
    }

    /// The same where every B was prepacked: tiles may be as small as caches and threads want them.
    fn tile_of_laid(&self, matrices: usize, rows: usize, threads: usize) -> (usize, Option<usize>) {
        let [bound] = &self.bound.layers[..] else {
            // Each tile goes through all weights.
            let down = threads.div_ceil(matrices).min(rows.div_ceil(LEAST));
            let down = rows.div_ceil(packed::HEIGHT).max(down);
            return (rows.div_ceil(down).next_multiple_of(8).min(rows), None);
        };
        let tasks = if threads == 1 { 1 } else { threads::TASKS * threads };
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
        self.matmuls(layer, bound, block, tiles, space)?;
        if layer.is_matmul() || bound.following.is_some() {
            return Ok(());
        }
        let Space { matmuls, kept, workspace, .. } = space;
        let columns = block.columns.unwrap_or(bound.columns);
        // What the epilogue keeps it does not read.
        let mut keeping: Few<(usize, Vec<T>)> = Few::new();
        for write in &layer.writes {
            if let Write::Kept(kept_number) = *write {
                keeping.push((kept_number, std::mem::take(&mut kept[kept_number])));
            }
        }
        let len = block.rows * columns;
        let inputs: Few<LoopInput<'_>> = layer
            .reads
            .iter()
            .map(|read| match *read {
                Read::Input(input) => self.inputs.of_loop(input),
                Read::MatMul(matmul) => match layer.matmuls[matmul].place {
                    Some(write) => LoopInput::Overwritten(write),
                    None => LoopInput::Tile(T::elements(&matmuls[matmul][..len])),
                },
                Read::Kept(number) => LoopInput::Tile(T::elements(&kept[number])),
            })
            .collect();
        // Outputs come before kept values, both in order, as in the layer's writes.
        let own = |(output, _): &(usize, _)| layer.writes.contains(&Write::Output(*output));
        let given = tiles.iter_mut().enumerate().filter(own).map(|(_, tile)| loop_output(tile));
        let mut outputs: Few<LoopOutput<'_>> = given.collect();
        outputs.extend(
            keeping.iter_mut().map(|(_, x)| LoopOutput::Tile(T::elements_mut(&mut x[..len]))),
        );
        let first = self.first(bound, block);
        let tile = match columns == bound.columns {
            true => Tile::range(first..first + block.rows * columns),
            false => Tile { first, rows: block.rows, width: columns, pitch: bound.columns },
        };
        layer.epilogue.run_tile(&bound.domain, tile, &inputs, &mut outputs, workspace);
        drop((inputs, outputs));
        keeping.into_iter().for_each(|(number, elements)| kept[number] = elements);
        Ok(())
    }

    /// A layer's matmuls on a block.
    fn matmuls(
        &self,
        layer: &Layer,
        bound: &BoundLayer,
        block: Block,
        tiles: &mut [TileMut<'_, u8>],
        space: &mut Space<T>,
    ) -> Result<()> {
        let columns = block.columns.unwrap_or(bound.columns);
        let Space { matmuls, kept, lines, .. } = space;
        for (i, (own, at)) in layer.matmuls.iter().zip(&bound.matmuls).enumerate() {
            let a = match (own.a, &at.a) {
                (Left::Input(number), Some(place)) => {
                    self.matrix(number, place, block.matrix, [block.row, 0], at.depth)?
                }
                (Left::Kept(number), _) => Matrix {
                    data: &kept[number][..],
                    at: Strides { offset: 0, batch: &[], row: at.depth as isize, column: 1 },
                },
                (Left::Input(_), None) => {
                    return Err(Error::Unsupported { what: "no left operand" });
                }
            };
            if let Some(Write::Output(output)) = own.place.map(|write| layer.writes[write]) {
                let tile = tiles[output].typed::<T>();
                let mut tile = tile.ok_or(Error::Unsupported { what: "an unaligned output" })?;
                self.matmul((own, at), bound, block, a, &mut tile, lines)?;
                continue;
            }
            let beside = sized(&mut matmuls[i], block.rows * columns);
            let mut tile = TileMut::new(beside, columns);
            self.matmul((own, at), bound, block, a, &mut tile, lines)?;
            T::round(self.layers.dtype, beside);
        }
        // What is kept of a matmul that no loop follows is the matmul itself.
        if let ([Write::Kept(number)], Some(_)) = (&layer.writes[..], &bound.following) {
            std::mem::swap(&mut matmuls[0], &mut kept[*number]);
        }
        Ok(())
    }

    /// The number of a block's first element in the domain of what follows its matmuls.
    fn first(&self, bound: &BoundLayer, block: Block) -> usize {
        (block.matrix * self.bound.rows + block.row) * bound.columns + block.column
    }

    /// What a matmul does to its sums on a block.
    fn epilogue(&self, bound: &BoundLayer, block: Block) -> Result<Epilogue<'_, T>> {
        let Some(Following { bias, residual, function }) = bound.following else {
            return Ok(Epilogue::NONE);
        };
        let from = |(input, place): (usize, usize)| -> Result<&[T]> {
            Ok(&cast_slice(self.inputs.bytes(input)?.0)[place..])
        };
        let bias = match bias {
            Some((input, at)) => Some(from((input, at + block.column))?),
            None => None,
        };
        let first = self.first(bound, block);
        let residual = match residual {
            Some((input, at)) => Some((from((input, at + first))?, bound.columns)),
            None => None,
        };
        Ok(Epilogue { bias, residual, function })
    }

    fn matmul(
        &self,
        (own, at): (&MatMul, &BoundMatMul),
        bound: &BoundLayer,
        block: Block,
        a: Matrix<'_, T>,
        c: &mut TileMut<'_, T>,
        lines: &mut [Line],
    ) -> Result<()> {
        if let (Some(prepacked), Some(multiply)) = (&own.prepacked, T::MULTIPLY) {
            let epilogue = self.epilogue(bound, block)?;
            return multiply(prepacked, at.depth, a, block.column, c, lines, epilogue);
        }
        debug_assert!(bound.following.is_none(), "only prepacked weights are followed so");
        let b = self.matrix(own.b, &at.b, block.matrix, [0, block.column], at.depth)?;
        matmul(at.depth, a, b, c)
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
        let operand = self.operands.iter().find(|(known, _)| *known == number);
        let (_, Operand { elements, start }) =
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

/// Makes sure of a vector of this number and length.
fn grow<T: Copy + Pod>(vectors: &mut Vec<Vec<T>>, number: usize, len: usize) {
    if vectors.len() <= number {
        vectors.resize_with(number + 1, Vec::new);
    }
    sized(&mut vectors[number], len);
}

/// Where a loop writes a tile.
pub(crate) fn loop_output<'a>(tile: &'a mut TileMut<'_, u8>) -> LoopOutput<'a> {
    if tile.is_dense() { LoopOutput::Bytes(tile.dense()) } else { LoopOutput::Rows(tile.whole()) }
}
