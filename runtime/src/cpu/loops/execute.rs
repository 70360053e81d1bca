//! Running a loop: parts of its domain, in parallel or on the calling thread.

use super::compute::{
    binary_f32, cast_f32, compute_bool, compute_f64, compute_i64, compute_u64, move_f32, unary_f32,
};
use super::elements::{Elements, ElementsMut, Registers, store, typed, typed_mut};
use super::fast::map;
use super::quantise::{Quantise, STORED, To};
use super::scalar::round;
use super::{BLOCK, Class, Domain, Instruction, Loop, Operation, Register, Scalar, Source, Tile};
use crate::cpu::kernels::tile::TileMut;
use crate::cpu::scratch::{self, Few, kept};
use crate::threads::{self, chunks_mut};
use graphene_frontend::dtype::DType;

/// Loops of fewer element operations than this run on the calling thread.
const PARALLEL: usize = 1 << 16;

/// Where rows are at least as long as this, a block does not go beyond its row: inputs that
/// broadcast then lie in one run and need not be copied. Of shorter rows a block has several.
const LONG_ROW: usize = BLOCK / 2 + 1;

/// What a loop reads.
#[derive(Clone, Copy, Debug)]
pub(crate) enum LoopInput<'a> {
    /// A buffer's bytes, walked through as the domain says.
    Bytes(&'a [u8]),
    /// The memory of this output, before it is overwritten, element for element.
    Overwritten(usize),
    /// The tile's elements one after the other, computed earlier.
    Tile(Elements<'a>),
    /// A number for each run of this many elements of the tile, computed earlier.
    Repeated(Elements<'a>, usize),
}

/// Where a loop writes a tile of an output.
pub(crate) enum LoopOutput<'a> {
    /// The tile's elements one after the other, in the output's type.
    Bytes(&'a mut [u8]),
    /// The same, a slice for each row of the tile.
    Rows(TileMut<'a, u8>),
    /// The tile's elements one after the other, in the form in which they compute, for later use.
    Tile(ElementsMut<'a>),
}

/// The memory in which a thread runs loops, any that it was made to [`fit`](Self::fit).
#[derive(Default)]
pub(crate) struct Workspace {
    registers: Registers,
    /// Inputs that do not lie in memory as the loop reads them.
    gathered: Registers,
}

kept!(Workspace);

impl Workspace {
    /// Makes sure of memory for a loop.
    pub(crate) fn fit(&mut self, program: &Loop) {
        self.registers.fit(program.registers);
        for (index, &(_, class)) in program.inputs.iter().enumerate() {
            self.gathered.fit_block(Register { class, index });
        }
    }
}

/// The blocks of the inputs: where they lie, or `None` where they were gathered.
type Direct<'a> = Few<Option<Elements<'a>>>;

/// A block of a tile.
#[derive(Clone, Copy)]
struct Block {
    /// Its first element in the domain.
    start: usize,
    /// Its first element in the tile.
    at: usize,
    /// The same as a row and a column of the tile.
    row: usize,
    column: usize,
    len: usize,
}

impl Loop {
    /// Runs the loop over its domain. Outputs are the bytes of whole buffers in the domain's order.
    pub(crate) fn run<'a>(
        &self,
        domain: &Domain,
        inputs: &[LoopInput<'_>],
        outputs: impl IntoIterator<Item = &'a mut [u8]>,
    ) {
        if domain.len == 0 {
            return;
        }
        let work = domain.len.saturating_mul(self.len().max(1));
        let parts = if work < PARALLEL { 1 } else { threads::count() * 4 };
        let chunk = domain.len.div_ceil(parts);
        let row = domain.row();
        let step = if row < LONG_ROW { BLOCK / row * row } else { row };
        let chunk = chunk.next_multiple_of(if step <= chunk { step } else { BLOCK });
        let outputs = self.outputs.iter().zip(outputs).map(|((dtype, _), bytes)| {
            chunks_mut(&mut bytes[..domain.len * dtype.size()], chunk * dtype.size())
        });
        let outputs: Few<_> = outputs.collect();
        let mut workspaces = scratch::slots::<Workspace>(threads::count());
        workspaces.iter_mut().for_each(|workspace| workspace.fit(self));
        threads::each_with(&mut workspaces, 1, outputs, |workspace, number, outputs| {
            let mut outputs: Few<_> = outputs.into_iter().map(LoopOutput::Bytes).collect();
            let start = number * chunk;
            let tile = Tile::range(start..domain.len.min(start + chunk));
            self.run_tile(domain, tile, inputs, &mut outputs, workspace);
        });
    }

    /// Runs the loop over a tile of its domain on the calling thread. Inputs and outputs are those of
    /// the body, in order.
    pub(crate) fn run_tile(
        &self,
        domain: &Domain,
        tile: Tile,
        inputs: &[LoopInput<'_>],
        outputs: &mut [LoopOutput<'_>],
        workspace: &mut Workspace,
    ) {
        if tile.width == 0 || tile.rows == 0 {
            return;
        }
        let Workspace { registers, gathered } = workspace;
        let mut direct: Direct<'_> = inputs.iter().map(|_| None).collect();
        let rows = outputs.iter().any(|output| matches!(output, LoopOutput::Rows(_)));
        // Whole rows of the domain are taken one by one, for then most inputs move evenly.
        let tile = if rows { tile } else { tile.by_rows(domain.row(), LONG_ROW) };
        let walks: Few<_> = (0..inputs.len()).map(|i| domain.even(i, tile)).collect();
        // Of each input that is the same in all rows how much is gathered already from a row's first element on.
        let mut repeated: Few<usize> = inputs.iter().map(|_| 0).collect();
        for row in 0..tile.rows {
            let mut done = 0;
            while done < tile.width {
                let start = tile.first + row * tile.pitch + done;
                let mut block =
                    Block { start, at: row * tile.width + done, row, column: done, len: 0 };
                block.len = block_len(domain, start, tile.width - done);
                let is_whole = start.is_multiple_of(domain.row());
                for (i, input) in inputs.iter().enumerate() {
                    let repeats = is_whole && matches!(input, LoopInput::Bytes(_));
                    let repeats = repeats && domain.repeats(i);
                    if repeats && repeated[i] >= block.len {
                        direct[i] = None;
                        continue;
                    }
                    let run = walks[i].map(|even| even.at(row, done));
                    direct[i] = self.load((domain, run), i, input, block, outputs, gathered);
                    repeated[i] = if repeats && direct[i].is_none() { block.len } else { 0 };
                }
                self.run_block(block, outputs, registers, (&direct, gathered));
                done += block.len;
            }
        }
    }

    fn run_block(
        &self,
        block: Block,
        outputs: &mut [LoopOutput<'_>],
        registers: &mut Registers,
        inputs: (&Direct<'_>, &Registers),
    ) {
        let n = block.len;
        let (mut number, mut stored) = (0, 0_u64);
        while let Some(instruction) = self.instructions.get(number) {
            if let Some(quantise) = &self.quantise[number]
                && self.quantise(quantise, block, outputs, registers, inputs)
            {
                number += quantise.len;
                stored |= quantise.stored.map_or(0, |output| 1 << output);
                continue;
            }
            number += 1;
            match instruction.stored {
                Some(output) => {
                    let target = outputs[output].f32(block);
                    self.compute_f32(instruction, target, registers, inputs, n);
                }
                None => self.compute(instruction, registers, inputs, n),
            }
        }
        for (number, ((dtype, source), output)) in self.outputs.iter().zip(outputs).enumerate() {
            let is_stored = number < STORED && stored >> number & 1 == 1;
            let Some(source) = source.filter(|_| !is_stored) else { continue };
            let elements = self.block(source, registers, inputs, n);
            match output {
                LoopOutput::Tile(tile) => tile.set(block.at, elements, n),
                _ => store(*dtype, elements, output.bytes(block, dtype.size())),
            }
        }
    }

    /// Quantises in one pass; `false` where that is not done.
    fn quantise(
        &self,
        quantise: &Quantise,
        block: Block,
        outputs: &mut [LoopOutput<'_>],
        registers: &mut Registers,
        inputs: (&Direct<'_>, &Registers),
    ) -> bool {
        let n = block.len;
        let output = quantise.stored.map(|output| &mut outputs[output]);
        if let Some(output) = output.filter(|output| !matches!(output, LoopOutput::Tile(_))) {
            let to = To::Bytes(output.bytes(block, 1));
            return quantise.run(to, |source| self.block(source, registers, inputs, n));
        }
        let index = quantise.target.index;
        // The block may be read where it is written.
        let mut target = std::mem::take(&mut registers.quantised);
        let to = To::Reals(&mut target[..n]);
        let done = quantise.run(to, |source| self.block(source, registers, inputs, n));
        if done {
            std::mem::swap(&mut target, &mut registers.f32[index]);
        }
        registers.quantised = target;
        done
    }

    /// An input's block: where it lies, or else it is gathered.
    fn load<'a>(
        &self,
        (domain, run): (&Domain, Option<(usize, isize)>),
        i: usize,
        input: &LoopInput<'a>,
        block: Block,
        outputs: &mut [LoopOutput<'_>],
        gathered: &mut Registers,
    ) -> Option<Elements<'a>> {
        let ((dtype, class), n) = (self.inputs[i], block.len);
        let register = Register { class, index: i };
        match *input {
            LoopInput::Bytes(bytes) => match run.or_else(|| domain.run(i, block.start, n)) {
                Some((from, 1)) if dtype == DType::F32 => {
                    return Some(Elements::F32(&typed(bytes)[from..][..n]));
                }
                Some((from, 0)) if class == Class::F32 => {
                    gathered.gather(register, dtype, bytes, from, 0, 0..1);
                    return Some(Elements::Scalar(Scalar::F32(gathered.f32[i][0])));
                }
                Some((from, stride)) => gathered.gather(register, dtype, bytes, from, stride, 0..n),
                None => {
                    let mut at = 0;
                    for (from, stride, len) in domain.walk(i, block.start, n) {
                        gathered.gather(register, dtype, bytes, from, stride, at..at + len);
                        at += len;
                    }
                }
            },
            LoopInput::Overwritten(output) => match &mut outputs[output] {
                LoopOutput::Tile(tile) => gathered.copy(register, tile.part(block.at, n), 0..n),
                output => {
                    let bytes = output.bytes(block, dtype.size());
                    gathered.gather(register, dtype, bytes, 0, 1, 0..n);
                }
            },
            LoopInput::Tile(elements) => return Some(elements.part(block.at, n)),
            LoopInput::Repeated(elements, times) => {
                let mut at = 0;
                while at < n {
                    let place = block.at + at;
                    let len = (times - place % times).min(n - at);
                    gathered.copy(register, elements.one(place / times), at..at + len);
                    at += len;
                }
            }
        }
        None
    }

    fn block<'b>(
        &self,
        source: Source,
        registers: &'b Registers,
        (direct, gathered): (&'b Direct<'_>, &'b Registers),
        n: usize,
    ) -> Elements<'b> {
        match source {
            Source::Scalar(scalar) => Elements::Scalar(scalar),
            Source::Register(register) => registers.block(register, n),
            Source::Input(i) => match direct[i] {
                Some(direct) => direct,
                None => {
                    let (_, class) = self.inputs[i];
                    gathered.block(Register { class, index: i }, n)
                }
            },
        }
    }

    fn compute(
        &self,
        instruction: &Instruction,
        registers: &mut Registers,
        inputs: (&Direct<'_>, &Registers),
        n: usize,
    ) {
        let Register { class, index } = instruction.target;
        match class {
            Class::F32 => {
                let mut target = std::mem::take(&mut registers.f32[index]);
                self.compute_f32(instruction, &mut target[..n], registers, inputs, n);
                registers.f32[index] = target;
            }
            Class::F64 => {
                let mut target = std::mem::take(&mut registers.f64[index]);
                let sources = self.blocks(instruction, registers, inputs, n);
                compute_f64(instruction, &mut target[..n], &sources);
                drop(sources);
                registers.f64[index] = target;
            }
            Class::I64 => {
                let mut target = std::mem::take(&mut registers.i64[index]);
                let sources = self.blocks(instruction, registers, inputs, n);
                compute_i64(instruction, &mut target[..n], &sources);
                drop(sources);
                registers.i64[index] = target;
            }
            Class::U64 => {
                let mut target = std::mem::take(&mut registers.u64[index]);
                let sources = self.blocks(instruction, registers, inputs, n);
                compute_u64(instruction, &mut target[..n], &sources);
                drop(sources);
                registers.u64[index] = target;
            }
            Class::Bool => {
                let mut target = std::mem::take(&mut registers.bool[index]);
                let sources = self.blocks(instruction, registers, inputs, n);
                compute_bool(instruction, &mut target[..n], &sources);
                drop(sources);
                registers.bool[index] = target;
            }
        }
    }

    fn blocks<'b>(
        &self,
        instruction: &Instruction,
        registers: &'b Registers,
        inputs: (&'b Direct<'_>, &'b Registers),
        n: usize,
    ) -> Few<Elements<'b>> {
        let sources = instruction.sources.iter();
        sources.map(|&source| self.block(source, registers, inputs, n)).collect()
    }

    fn compute_f32(
        &self,
        instruction: &Instruction,
        target: &mut [f32],
        registers: &Registers,
        inputs: (&Direct<'_>, &Registers),
        n: usize,
    ) {
        let block = |i: usize| self.block(instruction.sources[i], registers, inputs, n);
        match instruction.operation {
            Operation::Unary(unary) => unary_f32(unary, target, block(0)),
            Operation::Binary(binary) => binary_f32(binary, target, block(0), block(1)),
            Operation::Select => {
                let (condition, a, b) = (block(0), block(1), block(2));
                for (i, y) in target.iter_mut().enumerate() {
                    *y = if condition.bool(i) { a.f32(i) } else { b.f32(i) };
                }
            }
            Operation::Cast => cast_f32(instruction.dtype, target, block(0)),
            Operation::Lookup(table) => {
                let table = &self.tables[table];
                match block(0) {
                    Elements::F32(x) => map(target, x, |x| table.of(x)),
                    x => target.iter_mut().enumerate().for_each(|(i, y)| *y = table.of(x.f32(i))),
                }
            }
            Operation::Number => {
                let number = |x: f32| if x.is_nan() { 0.0 } else { x };
                match block(0) {
                    Elements::F32(x) => map(target, x, number),
                    elements => {
                        move_f32(target, elements);
                        target.iter_mut().for_each(|x| *x = number(*x));
                    }
                }
            }
        }
        if !instruction.is_exact() {
            round(instruction.dtype, target);
        }
    }
}

/// How many of the `left` elements from `start` on are run at a time.
fn block_len(domain: &Domain, start: usize, left: usize) -> usize {
    let row = domain.row();
    if row < LONG_ROW && start.is_multiple_of(row) && left >= row {
        // Whole rows: inputs that are the same in all of them are gathered once.
        let rows = left / row;
        return rows.div_ceil(rows.div_ceil(BLOCK / row)) * row;
    }
    let left = if row < LONG_ROW { left } else { left.min(row - start % row) };
    // Blocks of one row are about as long as each other.
    left.div_ceil(left.div_ceil(BLOCK)).next_multiple_of(16).min(left)
}

impl LoopOutput<'_> {
    /// The bytes of a block.
    fn bytes(&mut self, block: Block, size: usize) -> &mut [u8] {
        let n = block.len * size;
        match self {
            Self::Bytes(bytes) => &mut bytes[block.at * size..][..n],
            Self::Rows(rows) => &mut rows.row(block.row)[block.column * size..][..n],
            Self::Tile(_) => &mut [],
        }
    }

    /// The elements of a block of an output of type f32.
    fn f32(&mut self, block: Block) -> &mut [f32] {
        match self {
            Self::Tile(ElementsMut::F32(elements)) => &mut elements[block.at..][..block.len],
            _ => typed_mut(self.bytes(block, size_of::<f32>())),
        }
    }
}
