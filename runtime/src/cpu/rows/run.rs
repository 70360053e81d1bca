//! Running stages over blocks of rows.

use super::fold::{Fold, normalise, reduced, soften};
use super::read::{RowInput, read, table_rows, whole, write};
use super::{BoundRows, Level, RowProgram, Source, Stage, Target};
use crate::cpu::kernels::norm::Affine;
use crate::cpu::loops::{
    Class, Domain, Elements, ElementsMut, LoopInput, LoopOutput, Tile, Workspace, round,
};
use crate::cpu::scratch::{self, Buffer, Few, Numbers, kept, sized};
use crate::error::Result;
use crate::threads::{self, so_many_mut};
use bytemuck::{cast_slice, cast_slice_mut};
use graphene_frontend::dtype::DType;
use smallvec::SmallVec;

/// Elements of a block of rows: few enough for a block of every value to stay in cache.
const BLOCK: usize = 1 << 13;

/// Rows of fewer elements in all than this run on the calling thread.
const PARALLEL: usize = 1 << 13;

/// A block of a value that later stages read, of the class that the program says.
#[derive(Default)]
struct Slot {
    f32: Vec<f32>,
    f64: Vec<f64>,
    i64: Vec<i64>,
    u64: Vec<u64>,
    bool: Vec<u8>,
}

/// One value a stage: more than sixteen need memory of their own.
type Stages<T> = SmallVec<[T; 16]>;

/// What all blocks share.
struct Shared<'a> {
    program: &'a RowProgram,
    bound: &'a BoundRows,
    inputs: &'a [RowInput<'a>],
    /// For each stage that is a lookup the row of the table for each row.
    lookups: Stages<Option<Buffer<usize>>>,
    /// For each stage that is a norm its scale and bias.
    affine: Stages<[Option<Numbers<'a, f32>>; 2]>,
    /// For each output the bytes of what it has of a row.
    sizes: Few<usize>,
}

/// What a thread works in.
#[derive(Default)]
struct Scratch {
    slots: Vec<Slot>,
    workspace: Workspace,
    /// A row in f32.
    line: Vec<f32>,
    /// Another.
    spare: Vec<f32>,
}

kept!(Scratch);

/// Consecutive rows: the first, how many, and the bytes of each output for them.
struct Rows<'a> {
    first: usize,
    count: usize,
    outputs: Few<&'a mut [u8]>,
}

impl RowProgram {
    /// Runs the program. Outputs are the bytes of their elements in row-major order.
    ///
    /// # Errors
    /// [`Error::Index`](crate::Error::Index) for an index outside its table; nothing is written then.
    pub(crate) fn run(
        &self,
        bound: &BoundRows,
        inputs: &[RowInput<'_>],
        outputs: Few<(&mut [u8], DType)>,
    ) -> Result<()> {
        let width = bound.width;
        let (mut lookups, mut affine) = (Stages::new(), Stages::new());
        for (number, stage) in self.stages.iter().enumerate() {
            lookups.push(match (stage, &bound.indices[number]) {
                (Stage::Lookup { table, indices, .. }, Some(domain)) => {
                    Some(table_rows(&inputs[*table], &inputs[*indices], domain)?)
                }
                (Stage::Lookup { .. } | Stage::Loop { .. } | Stage::Fold { .. }, _) => None,
            });
            affine.push(match stage {
                Stage::Fold { fold: Fold::Norm { scale, bias, .. }, .. } => {
                    let line = |place: Option<usize>, domain: &Option<Domain>| {
                        let both = place.zip(domain.as_ref());
                        both.map(|(i, domain)| whole(&inputs[i], domain)).transpose()
                    };
                    let [of_scale, of_bias] = &bound.affine[number];
                    [line(*scale, of_scale)?, line(*bias, of_bias)?]
                }
                Stage::Lookup { .. } | Stage::Loop { .. } | Stage::Fold { .. } => [None, None],
            });
        }
        let sizes = outputs.iter().zip(&self.outputs).map(|((_, dtype), level)| {
            dtype.size() * if *level == Level::Full { width } else { 1 }
        });
        let sizes: Few<usize> = sizes.collect();
        let height = (BLOCK / width.max(1)).clamp(1, bound.rows.max(1));
        let threads = threads::count();
        let part = match threads == 1 || bound.rows.saturating_mul(width) < PARALLEL {
            true => bound.rows.max(1),
            false => bound.rows.div_ceil(4 * threads).next_multiple_of(height),
        };
        let parts = bound.rows.div_ceil(part);
        let outputs = outputs.into_iter().zip(&sizes);
        let outputs = outputs.map(|((bytes, _), size)| so_many_mut(bytes, part * size, parts));
        let outputs: Few<_> = outputs.collect();
        let mut scratches = scratch::slots::<Scratch>(threads);
        scratches.iter_mut().for_each(|scratch| scratch.fit(self, width, height));
        let shared = Shared { program: self, bound, inputs, lookups, affine, sizes };
        threads::each_with(&mut scratches, 1, outputs, |scratch, number, outputs| {
            let first = number * part;
            let rows = Rows { first, count: part.min(bound.rows - first), outputs };
            shared.blocks(rows, height, scratch);
        });
        Ok(())
    }
}

impl<'a> Rows<'a> {
    /// The first so many rows, which are taken away.
    fn take(&mut self, count: usize, sizes: &[usize]) -> Rows<'a> {
        let count = count.min(self.count);
        let own = self.outputs.iter_mut().zip(sizes).map(|(rest, size)| {
            let (own, after) = std::mem::take(rest).split_at_mut(count * size);
            *rest = after;
            own
        });
        let rows = Rows { first: self.first, count, outputs: own.collect() };
        self.first += count;
        self.count -= count;
        rows
    }
}

impl Scratch {
    /// Makes sure of memory for blocks of so many rows.
    fn fit(&mut self, program: &RowProgram, width: usize, height: usize) {
        if self.slots.len() < program.slots.len() {
            self.slots.resize_with(program.slots.len(), Slot::default);
        }
        for (slot, &(class, level)) in self.slots.iter_mut().zip(&program.slots) {
            slot.elements_mut(class, height * if level == Level::Full { width } else { 1 });
        }
        for stage in &program.stages {
            match stage {
                Stage::Loop { program, .. } => self.workspace.fit(program),
                Stage::Fold { .. } | Stage::Lookup { .. } => {}
            }
        }
        sized(&mut self.line, width);
        sized(&mut self.spare, width);
    }
}

impl Shared<'_> {
    /// Runs rows, so many at a time.
    fn blocks(&self, mut rows: Rows<'_>, height: usize, scratch: &mut Scratch) {
        while rows.count > 0 {
            let mut block = rows.take(height, &self.sizes);
            for (number, stage) in self.program.stages.iter().enumerate() {
                match stage {
                    Stage::Loop { .. } => self.run_loop(number, &mut block, scratch),
                    Stage::Fold { .. } => self.run_fold(number, &mut block, scratch),
                    Stage::Lookup { .. } => self.run_lookup(number, &mut block, scratch),
                }
            }
        }
    }

    fn run_loop(&self, number: usize, block: &mut Rows<'_>, scratch: &mut Scratch) {
        let Stage::Loop { level, program, reads, writes } = &self.program.stages[number] else {
            return;
        };
        let domain = &self.bound.domains[number];
        let (level, width) = (*level, self.bound.width);
        let per_row = if level == Level::Full { width } else { 1 };
        let len = block.count * per_row;
        // The slots that are written are taken out meanwhile.
        let Scratch { slots, workspace, .. } = scratch;
        let kinds = &self.program.slots;
        let mut taken: Few<Slot> = writes
            .iter()
            .map(|target| match target {
                Target::Slot(slot) => std::mem::take(&mut slots[*slot]),
                Target::Output(_) => Slot::default(),
            })
            .collect();
        let mut outputs: Few<Option<&mut [u8]>> =
            block.outputs.iter_mut().map(|bytes| Some(&mut **bytes)).collect();
        let mut targets: Few<LoopOutput<'_>> = Few::new();
        for (target, slot) in writes.iter().zip(&mut taken) {
            targets.push(match target {
                Target::Slot(number) => LoopOutput::Tile(slot.elements_mut(kinds[*number].0, len)),
                Target::Output(output) => {
                    LoopOutput::Bytes(outputs[*output].take().unwrap_or_default())
                }
            });
        }
        let reads: Few<LoopInput<'_>> = reads
            .iter()
            .map(|source| match *source {
                Source::Input(input) => LoopInput::Bytes(self.inputs[input].bytes),
                Source::Slot(slot) => match (level, kinds[slot].1) {
                    (Level::Full, Level::Row) => {
                        LoopInput::Repeated(slots[slot].elements(kinds[slot].0, block.count), width)
                    }
                    _ => LoopInput::Tile(slots[slot].elements(kinds[slot].0, len)),
                },
            })
            .collect();
        let tile = Tile::range(block.first * per_row..block.first * per_row + len);
        program.run_tile(domain, tile, &reads, &mut targets, workspace);
        drop((reads, targets));
        for (target, slot) in writes.iter().zip(taken) {
            if let Target::Slot(number) = target {
                slots[*number] = slot;
            }
        }
    }

    fn run_fold(&self, number: usize, block: &mut Rows<'_>, scratch: &mut Scratch) {
        let Stage::Fold { fold, source, results } = &self.program.stages[number] else { return };
        let Scratch { slots, line, spare, .. } = scratch;
        let width = self.bound.width;
        let (line, spare) = (&mut line[..width], &mut spare[..width]);
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
            Source::Slot(slot) => &slots[slot].f32[at * width..][..width],
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
        let Some(rows) = &self.lookups[number] else { return };
        let domain = &self.bound.domains[number];
        let Scratch { slots, line, .. } = scratch;
        let line = &mut line[..self.bound.width];
        for row in 0..block.count {
            let of_table = rows[block.first + row];
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
                slots[slot].f32[start..start + len].copy_from_slice(elements);
            }
            Target::Output(output) => {
                let size = dtype.size();
                write(dtype, &mut block.outputs[output][start * size..][..len * size], elements);
            }
        }
    }
}

impl Slot {
    fn elements(&self, class: Class, len: usize) -> Elements<'_> {
        match class {
            Class::F32 => Elements::F32(&self.f32[..len]),
            Class::F64 => Elements::F64(&self.f64[..len]),
            Class::I64 => Elements::I64(&self.i64[..len]),
            Class::U64 => Elements::U64(&self.u64[..len]),
            Class::Bool => Elements::Bool(&self.bool[..len]),
        }
    }

    fn elements_mut(&mut self, class: Class, len: usize) -> ElementsMut<'_> {
        match class {
            Class::F32 => ElementsMut::F32(sized(&mut self.f32, len)),
            Class::F64 => ElementsMut::F64(sized(&mut self.f64, len)),
            Class::I64 => ElementsMut::I64(sized(&mut self.i64, len)),
            Class::U64 => ElementsMut::U64(sized(&mut self.u64, len)),
            Class::Bool => ElementsMut::Bool(sized(&mut self.bool, len)),
        }
    }
}
