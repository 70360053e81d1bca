//! Running stages over blocks of rows.

use super::fold::{Fold, normalise, reduced, soften};
use super::read::{RowInput, read, table_rows, whole, write};
use super::{BoundRows, Level, RowProgram, Source, Stage, Target};
use crate::cpu::kernels::norm::Affine;
use crate::cpu::loops::{
    Class, Elements, ElementsMut, LoopInput, LoopOutput, Tile, Workspace, round,
};
use crate::error::Result;
use bytemuck::{cast_slice, cast_slice_mut};
use graphene_frontend::dtype::DType;
use rayon::iter::{IntoParallelIterator, ParallelIterator};
use std::borrow::Cow;

/// Elements of a block of rows: few enough for a block of every value to stay in cache.
const BLOCK: usize = 1 << 13;

/// Rows of fewer elements in all than this run on the calling thread.
const PARALLEL: usize = 1 << 13;

/// A block of a value that later stages read.
enum Slot {
    F32(Vec<f32>),
    F64(Vec<f64>),
    I64(Vec<i64>),
    Bool(Vec<u8>),
}

/// What all blocks share.
struct Shared<'a> {
    program: &'a RowProgram,
    bound: &'a BoundRows,
    inputs: &'a [RowInput<'a>],
    /// For each stage that is a lookup the row of the table for each row.
    lookups: Vec<Vec<usize>>,
    /// For each stage that is a norm its scale and bias.
    affine: Vec<[Option<Cow<'a, [f32]>>; 2]>,
    /// For each output the bytes of what it has of a row.
    sizes: Vec<usize>,
}

/// What a thread works in.
struct Scratch {
    slots: Vec<Slot>,
    workspaces: Vec<Option<Workspace>>,
    /// A row in f32.
    line: Vec<f32>,
    /// Another.
    spare: Vec<f32>,
}

/// Consecutive rows: the first, how many, and the bytes of each output for them.
struct Rows<'a> {
    first: usize,
    count: usize,
    outputs: Vec<&'a mut [u8]>,
}

impl RowProgram {
    /// Runs the program. Outputs are the bytes of their elements in row-major order.
    ///
    /// # Errors
    /// [`Error::Index`] for an index outside its table; nothing is written then.
    pub(crate) fn run(
        &self,
        bound: &BoundRows,
        inputs: &[RowInput<'_>],
        outputs: Vec<(&mut [u8], DType)>,
    ) -> Result<()> {
        let width = bound.width;
        let mut lookups = Vec::with_capacity(self.stages.len());
        let mut affine = Vec::with_capacity(self.stages.len());
        for stage in &self.stages {
            lookups.push(match stage {
                Stage::Lookup { table, indices, .. } => {
                    table_rows(&inputs[*table], &inputs[*indices], &bound.outer)?
                }
                Stage::Loop { .. } | Stage::Fold { .. } => Vec::new(),
            });
            affine.push(match stage {
                Stage::Fold { fold: Fold::Norm { scale, bias, .. }, .. } => {
                    let line = |place: &Option<usize>| place.map(|i| whole(&inputs[i])).transpose();
                    [line(scale)?, line(bias)?]
                }
                Stage::Lookup { .. } | Stage::Loop { .. } | Stage::Fold { .. } => [None, None],
            });
        }
        let sizes = outputs.iter().zip(&self.outputs).map(|((_, dtype), level)| {
            dtype.size() * if *level == Level::Full { width } else { 1 }
        });
        let sizes = sizes.collect();
        let shared = Shared { program: self, bound, inputs, lookups, affine, sizes };
        let outputs = outputs.into_iter().map(|(bytes, _)| bytes).collect();
        let all = Rows { first: 0, count: bound.rows, outputs };
        let height = (BLOCK / width.max(1)).clamp(1, bound.rows.max(1));
        let threads = rayon::current_num_threads();
        if threads == 1 || bound.rows.saturating_mul(width) < PARALLEL {
            shared.blocks(all, height);
        } else {
            let part = bound.rows.div_ceil(4 * threads).next_multiple_of(height);
            let parts = all.split(part, &shared.sizes);
            parts.into_par_iter().for_each(|rows| shared.blocks(rows, height));
        }
        Ok(())
    }
}

impl<'a> Rows<'a> {
    /// In parts of so many rows.
    fn split(self, part: usize, sizes: &[usize]) -> Vec<Self> {
        let Self { mut first, count, mut outputs } = self;
        let end = first + count;
        let mut parts = Vec::with_capacity(count.div_ceil(part));
        while first < end {
            let count = part.min(end - first);
            let own = outputs.iter_mut().zip(sizes).map(|(rest, size)| {
                let (own, after) = std::mem::take(rest).split_at_mut(count * size);
                *rest = after;
                own
            });
            parts.push(Rows { first, count, outputs: own.collect() });
            first += count;
        }
        parts
    }
}

impl Shared<'_> {
    /// Runs rows, so many at a time.
    fn blocks(&self, rows: Rows<'_>, height: usize) {
        let width = self.bound.width;
        let slots = self.program.slots.iter().map(|&(class, level)| {
            let len = height * if level == Level::Full { width } else { 1 };
            Slot::new(class, len)
        });
        let workspaces = self.program.stages.iter().map(|stage| match stage {
            Stage::Loop { program, .. } => Some(program.workspace()),
            Stage::Fold { .. } | Stage::Lookup { .. } => None,
        });
        let mut scratch = Scratch {
            slots: slots.collect(),
            workspaces: workspaces.collect(),
            line: vec![0.0; width],
            spare: vec![0.0; width],
        };
        for mut block in rows.split(height, &self.sizes) {
            for (number, stage) in self.program.stages.iter().enumerate() {
                match stage {
                    Stage::Loop { .. } => self.run_loop(number, &mut block, &mut scratch),
                    Stage::Fold { .. } => self.run_fold(number, &mut block, &mut scratch),
                    Stage::Lookup { .. } => self.run_lookup(number, &mut block, &mut scratch),
                }
            }
        }
    }

    fn run_loop(&self, number: usize, block: &mut Rows<'_>, scratch: &mut Scratch) {
        let Stage::Loop { level, program, reads, writes } = &self.program.stages[number] else {
            return;
        };
        let Some(workspace) = &mut scratch.workspaces[number] else { return };
        let domain = &self.bound.domains[number];
        let (level, width) = (*level, self.bound.width);
        let per_row = if level == Level::Full { width } else { 1 };
        let len = block.count * per_row;
        // The slots that are written are taken out meanwhile.
        let slots = &mut scratch.slots;
        let mut taken: Vec<Slot> = writes
            .iter()
            .map(|target| match target {
                Target::Slot(slot) => std::mem::take(&mut slots[*slot]),
                Target::Output(_) => Slot::default(),
            })
            .collect();
        let mut outputs: Vec<Option<&mut [u8]>> =
            block.outputs.iter_mut().map(|bytes| Some(&mut **bytes)).collect();
        let mut targets: Vec<LoopOutput<'_>> = Vec::with_capacity(writes.len());
        for (target, slot) in writes.iter().zip(&mut taken) {
            targets.push(match target {
                Target::Slot(_) => LoopOutput::Tile(slot.elements_mut(len)),
                Target::Output(output) => {
                    LoopOutput::Bytes(outputs[*output].take().unwrap_or_default())
                }
            });
        }
        let reads: Vec<LoopInput<'_>> = reads
            .iter()
            .map(|source| match *source {
                Source::Input(input) => LoopInput::Bytes(self.inputs[input].bytes),
                Source::Slot(slot) => match (level, self.program.slots[slot].1) {
                    (Level::Full, Level::Row) => {
                        LoopInput::Repeated(slots[slot].elements(block.count), width)
                    }
                    _ => LoopInput::Tile(slots[slot].elements(len)),
                },
            })
            .collect();
        let tile = Tile::range(block.first * per_row..block.first * per_row + len);
        program.run_tile(domain, tile, &reads, &mut targets, workspace);
        for (target, slot) in writes.iter().zip(taken) {
            if let Target::Slot(number) = target {
                scratch.slots[*number] = slot;
            }
        }
    }

    fn run_fold(&self, number: usize, block: &mut Rows<'_>, scratch: &mut Scratch) {
        let Stage::Fold { fold, source, results } = &self.program.stages[number] else { return };
        let Scratch { slots, line, spare, .. } = scratch;
        let (dtype, targets) = &results[0];
        for row in 0..block.count {
            let from = self.row(number, *source, (block.first + row, row), slots, spare);
            if let Fold::Reduce(op) = fold {
                let mut value = [reduced(*op, from)];
                round(*dtype, &mut value);
                put(targets, *dtype, row, &value, slots, block);
                continue;
            }
            // An output of its own takes the row at once.
            let stats = match targets[..] {
                [Target::Output(output)] if *dtype == DType::F32 => {
                    let size = size_of_val(from);
                    let to = cast_slice_mut(&mut block.outputs[output][row * size..][..size]);
                    self.fold_row(number, from, to)
                }
                _ => {
                    let stats = self.fold_row(number, from, line);
                    put(targets, *dtype, row, line, slots, block);
                    stats
                }
            };
            for ((dtype, targets), value) in results[1..].iter().zip(stats) {
                put(targets, *dtype, row, &[value], slots, block);
            }
        }
    }

    /// One row to a row; of norms also the mean and the inverse of the deviation.
    fn fold_row(&self, number: usize, from: &[f32], to: &mut [f32]) -> [f32; 2] {
        let Stage::Fold { fold, source, results } = &self.program.stages[number] else {
            return [0.0; 2];
        };
        to.copy_from_slice(from);
        let stats = match *fold {
            Fold::Softmax { log } => {
                soften(log, source.1, to);
                [0.0; 2]
            }
            Fold::Norm { rms, epsilon, .. } => {
                let [scale, bias] = &self.affine[number];
                let (scale, bias) = (scale.as_deref(), bias.as_deref());
                normalise(rms, to, Affine { scale, bias, epsilon })
            }
            Fold::Reduce(_) => [0.0; 2],
        };
        round(results[0].0, to);
        stats
    }

    /// A row of what a fold reads, by its number in all and in the block.
    fn row<'b>(
        &'b self,
        number: usize,
        (source, dtype): (Source, DType),
        (row, at): (usize, usize),
        slots: &'b [Slot],
        spare: &'b mut [f32],
    ) -> &'b [f32] {
        let width = self.bound.width;
        match source {
            Source::Slot(slot) => &slots[slot].f32()[at * width..][..width],
            Source::Input(_) if width == 0 => spare,
            Source::Input(input) => {
                let (bytes, domain) = (self.inputs[input].bytes, &self.bound.domains[number]);
                if let (DType::F32, Some((from, 1))) = (dtype, domain.run(0, row * width, width)) {
                    return &cast_slice(bytes)[from..from + width];
                }
                read(domain, row * width, bytes, dtype, spare);
                spare
            }
        }
    }

    fn run_lookup(&self, number: usize, block: &mut Rows<'_>, scratch: &mut Scratch) {
        let Stage::Lookup { table, dtype, writes, .. } = &self.program.stages[number] else {
            return;
        };
        let domain = &self.bound.domains[number];
        let Scratch { slots, line, .. } = scratch;
        for row in 0..block.count {
            let of_table = self.lookups[number][block.first + row];
            read(domain, of_table * line.len(), self.inputs[*table].bytes, *dtype, line);
            put(writes, *dtype, row, line, slots, block);
        }
    }
}

/// Stores the elements of a row, or its one number, everywhere it goes.
fn put(
    targets: &[Target],
    dtype: DType,
    row: usize,
    elements: &[f32],
    slots: &mut [Slot],
    block: &mut Rows<'_>,
) {
    let (start, len) = (row * elements.len(), elements.len());
    for target in targets {
        match *target {
            Target::Slot(slot) => {
                slots[slot].f32_mut()[start..start + len].copy_from_slice(elements)
            }
            Target::Output(output) => {
                let size = dtype.size();
                write(dtype, &mut block.outputs[output][start * size..][..len * size], elements);
            }
        }
    }
}

impl Default for Slot {
    fn default() -> Self {
        Self::F32(Vec::new())
    }
}

impl Slot {
    fn new(class: Class, len: usize) -> Self {
        match class {
            Class::F32 => Self::F32(vec![0.0; len]),
            Class::F64 => Self::F64(vec![0.0; len]),
            Class::I64 => Self::I64(vec![0; len]),
            Class::Bool => Self::Bool(vec![0; len]),
        }
    }

    fn elements(&self, len: usize) -> Elements<'_> {
        match self {
            Self::F32(x) => Elements::F32(&x[..len]),
            Self::F64(x) => Elements::F64(&x[..len]),
            Self::I64(x) => Elements::I64(&x[..len]),
            Self::Bool(x) => Elements::Bool(&x[..len]),
        }
    }

    fn elements_mut(&mut self, len: usize) -> ElementsMut<'_> {
        match self {
            Self::F32(x) => ElementsMut::F32(&mut x[..len]),
            Self::F64(x) => ElementsMut::F64(&mut x[..len]),
            Self::I64(x) => ElementsMut::I64(&mut x[..len]),
            Self::Bool(x) => ElementsMut::Bool(&mut x[..len]),
        }
    }

    /// The elements of a fold or a lookup, which are floats that compute in f32.
    fn f32(&self) -> &[f32] {
        match self {
            Self::F32(x) => x,
            Self::F64(_) | Self::I64(_) | Self::Bool(_) => &[],
        }
    }

    fn f32_mut(&mut self) -> &mut [f32] {
        match self {
            Self::F32(x) => x,
            Self::F64(_) | Self::I64(_) | Self::Bool(_) => &mut [],
        }
    }
}
