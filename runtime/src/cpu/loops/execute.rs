//! Running a loop: blocks of its domain, in parallel.

use super::scalar::{
    comparison, fast_binary, fast_unary, integer_binary, integer_unary, real_binary, real_unary,
    round, wrap,
};
use super::{BLOCK, Class, Domain, Instruction, Loop, Operation, Register, Scalar, Source};
use crate::cpu::kernels::pointwise as fast;
use graphene_frontend::dtype::DType;
use graphene_frontend::op::{Binary, Unary};
use half::{bf16, f16};
use rayon::iter::{IntoParallelIterator, ParallelIterator};

/// Loops of fewer element operations than this run on the calling thread.
const PARALLEL: usize = 1 << 16;

/// What a loop reads.
#[derive(Clone, Copy, Debug)]
pub(crate) enum LoopInput<'a> {
    /// A buffer's bytes.
    Bytes(&'a [u8]),
    /// The memory of this output, before it is overwritten, element for element.
    Overwritten(usize),
}

/// The registers of one thread.
#[derive(Default)]
struct Registers {
    f32: Vec<Vec<f32>>,
    f64: Vec<Vec<f64>>,
    i64: Vec<Vec<i64>>,
    bool: Vec<Vec<u8>>,
}

/// A block of elements, of any class.
#[derive(Clone, Copy)]
enum Block<'a> {
    F32(&'a [f32]),
    F64(&'a [f64]),
    I64(&'a [i64]),
    Bool(&'a [u8]),
    Scalar(Scalar),
}

/// The blocks of the inputs: a register where they were gathered or converted, else the tensor itself.
struct Inputs<'a> {
    direct: Vec<Option<&'a [f32]>>,
    gathered: Registers,
}

impl Loop {
    /// Runs the loop over its domain. Outputs are the bytes of whole buffers in the domain's order.
    pub(crate) fn run(&self, domain: &Domain, inputs: &[LoopInput<'_>], outputs: Vec<&mut [u8]>) {
        if domain.len == 0 {
            return;
        }
        let threads = rayon::current_num_threads();
        let work = domain.len.saturating_mul(self.len().max(1));
        let parts = if work < PARALLEL { 1 } else { threads * 4 };
        let chunk = domain.len.div_ceil(parts).next_multiple_of(BLOCK);
        let mut chunks: Vec<(usize, Vec<&mut [u8]>)> =
            (0..domain.len.div_ceil(chunk)).map(|i| (i * chunk, Vec::new())).collect();
        for ((dtype, _), bytes) in self.outputs.iter().zip(outputs) {
            let bytes = &mut bytes[..domain.len * dtype.size()];
            for ((_, own), part) in chunks.iter_mut().zip(bytes.chunks_mut(chunk * dtype.size())) {
                own.push(part);
            }
        }
        match chunks.len() {
            1 => chunks.into_iter().for_each(|(start, mut outputs)| {
                self.run_chunk(domain, inputs, start, &mut outputs, chunk.min(domain.len));
            }),
            _ => chunks.into_par_iter().for_each(|(start, mut outputs)| {
                let len = chunk.min(domain.len - start);
                self.run_chunk(domain, inputs, start, &mut outputs, len);
            }),
        }
    }

    fn run_chunk(
        &self,
        domain: &Domain,
        inputs: &[LoopInput<'_>],
        start: usize,
        outputs: &mut [&mut [u8]],
        len: usize,
    ) {
        let mut registers = Registers::new(self.registers);
        let mut gathered = Registers::new([0; 4]);
        for class in self.inputs.iter().map(|&dtype| Class::of(dtype)) {
            gathered.push(class.unwrap_or(Class::I64));
        }
        let mut blocks = Inputs { direct: vec![None; inputs.len()], gathered };
        for first in (0..len).step_by(BLOCK) {
            let n = BLOCK.min(len - first);
            for (i, input) in inputs.iter().enumerate() {
                self.load(domain, i, input, start + first, first, n, outputs, &mut blocks);
            }
            for instruction in &self.instructions {
                match instruction.stored {
                    Some(output) => {
                        let target = &mut typed_mut::<f32>(outputs[output])[first..first + n];
                        self.compute_f32(instruction, target, &registers, &blocks, n);
                    }
                    None => self.compute(instruction, &mut registers, &blocks, n),
                }
            }
            for ((dtype, source), bytes) in self.outputs.iter().zip(&mut *outputs) {
                if let Some(source) = source {
                    let block = self.block(*source, &registers, &blocks, n);
                    let size = dtype.size();
                    store(*dtype, block, &mut bytes[first * size..(first + n) * size]);
                }
            }
        }
    }

    #[allow(clippy::too_many_arguments)] // One input's block: where, how many, from what, into what.
    fn load<'a>(
        &self,
        domain: &Domain,
        i: usize,
        input: &LoopInput<'a>,
        start: usize,
        first: usize,
        n: usize,
        outputs: &[&mut [u8]],
        blocks: &mut Inputs<'a>,
    ) {
        let dtype = self.inputs[i];
        match *input {
            LoopInput::Bytes(bytes) => {
                if dtype == DType::F32
                    && let Some(offset) = domain.contiguous(i)
                {
                    blocks.direct[i] = Some(&typed::<f32>(bytes)[offset + start..][..n]);
                    return;
                }
                let mut at = 0;
                for (from, stride, len) in domain.walk(i, start, n) {
                    blocks.gathered.gather(i, dtype, bytes, from, stride, at..at + len);
                    at += len;
                }
            }
            LoopInput::Overwritten(output) => {
                blocks.gathered.gather(i, dtype, outputs[output], first, 1, 0..n);
            }
        }
    }

    fn block<'b>(
        &self,
        source: Source,
        registers: &'b Registers,
        inputs: &'b Inputs<'_>,
        n: usize,
    ) -> Block<'b> {
        match source {
            Source::Scalar(scalar) => Block::Scalar(scalar),
            Source::Register(register) => registers.block(register, n),
            Source::Input(i) => match inputs.direct[i] {
                Some(direct) => Block::F32(direct),
                None => {
                    let class = Class::of(self.inputs[i]).unwrap_or(Class::I64);
                    inputs.gathered.block(Register { class, index: i }, n)
                }
            },
        }
    }

    fn compute(
        &self,
        instruction: &Instruction,
        registers: &mut Registers,
        inputs: &Inputs<'_>,
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
                registers.f64[index] = target;
            }
            Class::I64 => {
                let mut target = std::mem::take(&mut registers.i64[index]);
                let sources = self.blocks(instruction, registers, inputs, n);
                compute_i64(instruction, &mut target[..n], &sources);
                registers.i64[index] = target;
            }
            Class::Bool => {
                let mut target = std::mem::take(&mut registers.bool[index]);
                let sources = self.blocks(instruction, registers, inputs, n);
                compute_bool(instruction, &mut target[..n], &sources);
                registers.bool[index] = target;
            }
        }
    }

    fn blocks<'b>(
        &self,
        instruction: &Instruction,
        registers: &'b Registers,
        inputs: &'b Inputs<'_>,
        n: usize,
    ) -> Vec<Block<'b>> {
        let sources = instruction.sources.iter();
        sources.map(|&source| self.block(source, registers, inputs, n)).collect()
    }

    fn compute_f32(
        &self,
        instruction: &Instruction,
        target: &mut [f32],
        registers: &Registers,
        inputs: &Inputs<'_>,
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
            Operation::Cast => match block(0) {
                Block::F32(x) => target.copy_from_slice(x),
                x => target.iter_mut().enumerate().for_each(|(i, y)| *y = x.f32(i)),
            },
        }
        round(instruction.dtype, target);
    }
}

fn move_f32(target: &mut [f32], x: Block<'_>) {
    target.iter_mut().enumerate().for_each(|(i, y)| *y = x.f32(i));
}

fn unary_f32(unary: Unary, target: &mut [f32], x: Block<'_>) {
    match (fast_unary(unary), x) {
        (Some(unary), Block::F32(x)) => unary.apply(target, x),
        (Some(unary), x) => {
            move_f32(target, x);
            unary.apply_in_place(target);
        }
        (None, x) => {
            if let Some(real) = real_unary(unary) {
                let each = target.iter_mut().enumerate();
                each.for_each(|(i, y)| *y = real(f64::from(x.f32(i))) as f32);
            }
        }
    }
}

fn binary_f32(binary: Binary, target: &mut [f32], a: Block<'_>, b: Block<'_>) {
    match (fast_binary(binary), a, b) {
        (Some(fast::Binary::Pow), Block::F32(a), Block::Scalar(Scalar::F32(b))) => {
            fast::powf(target, a, b);
        }
        (Some(binary), Block::F32(a), Block::F32(b)) => binary.apply(target, a, b),
        (Some(binary), Block::F32(a), Block::Scalar(Scalar::F32(b))) => {
            binary.apply_right(target, a, b);
        }
        (Some(binary), Block::Scalar(Scalar::F32(a)), Block::F32(b)) => {
            binary.apply_left(target, a, b);
        }
        (_, a, b) => {
            if let Some(real) = real_binary(binary) {
                let each = target.iter_mut().enumerate();
                each.for_each(|(i, y)| {
                    *y = real(f64::from(a.f32(i)), f64::from(b.f32(i))) as f32;
                });
            }
        }
    }
}

fn compute_f64(instruction: &Instruction, target: &mut [f64], sources: &[Block<'_>]) {
    let each = target.iter_mut().enumerate();
    match instruction.operation {
        Operation::Unary(unary) => {
            if let Some(real) = real_unary(unary) {
                each.for_each(|(i, y)| *y = real(sources[0].f64(i)));
            }
        }
        Operation::Binary(binary) => {
            if let Some(real) = real_binary(binary) {
                each.for_each(|(i, y)| *y = real(sources[0].f64(i), sources[1].f64(i)));
            }
        }
        Operation::Select => each.for_each(|(i, y)| {
            *y = if sources[0].bool(i) { sources[1].f64(i) } else { sources[2].f64(i) };
        }),
        Operation::Cast => each.for_each(|(i, y)| *y = sources[0].f64(i)),
    }
}

fn compute_i64(instruction: &Instruction, target: &mut [i64], sources: &[Block<'_>]) {
    let (dtype, bits) = (instruction.dtype, instruction.dtype.size() as u32 * 8);
    let each = target.iter_mut().enumerate();
    match instruction.operation {
        Operation::Unary(unary) => {
            let integer = integer_unary(unary);
            each.for_each(|(i, y)| *y = wrap(dtype, integer(sources[0].i64(i))));
        }
        Operation::Binary(binary) => each.for_each(|(i, y)| {
            *y = wrap(dtype, integer_binary(binary, sources[0].i64(i), sources[1].i64(i), bits));
        }),
        Operation::Select => each.for_each(|(i, y)| {
            *y = if sources[0].bool(i) { sources[1].i64(i) } else { sources[2].i64(i) };
        }),
        Operation::Cast => {
            each.for_each(|(i, y)| *y = wrap(dtype, sources[0].i64(i)));
        }
    }
}

fn compute_bool(instruction: &Instruction, target: &mut [u8], sources: &[Block<'_>]) {
    let each = target.iter_mut().enumerate();
    match (instruction.operation, sources[0]) {
        (Operation::Unary(Unary::IsNan), x) => {
            each.for_each(|(i, y)| *y = u8::from(x.f64(i).is_nan()));
        }
        (Operation::Unary(Unary::IsInf { positive, negative }), x) => each.for_each(|(i, y)| {
            let x = x.f64(i);
            *y = u8::from(x == f64::INFINITY && positive || x == f64::NEG_INFINITY && negative);
        }),
        // The only other function of one truth value is its negation.
        (Operation::Unary(_), x) => each.for_each(|(i, y)| *y = u8::from(!x.bool(i))),
        (Operation::Binary(binary), a) => compare(binary, target, a, sources[1]),
        (Operation::Select, condition) => each.for_each(|(i, y)| {
            *y = u8::from(if condition.bool(i) { sources[1].bool(i) } else { sources[2].bool(i) });
        }),
        (Operation::Cast, x) => each.for_each(|(i, y)| *y = u8::from(x.bool(i))),
    }
}

fn compare(binary: Binary, target: &mut [u8], a: Block<'_>, b: Block<'_>) {
    let each = target.iter_mut().enumerate();
    match (a.class(), comparison::<f64>(binary), comparison::<i64>(binary)) {
        (Class::F32 | Class::F64, Some(compare), _) => {
            each.for_each(|(i, y)| *y = u8::from(compare(&a.f64(i), &b.f64(i))));
        }
        (Class::I64, _, Some(compare)) => {
            each.for_each(|(i, y)| *y = u8::from(compare(&a.i64(i), &b.i64(i))));
        }
        _ => each.for_each(|(i, y)| {
            let (a, b) = (i64::from(a.bool(i)), i64::from(b.bool(i)));
            *y = u8::from(integer_binary(binary, a, b, 1) != 0);
        }),
    }
}

impl Block<'_> {
    fn class(self) -> Class {
        match self {
            Block::F32(_) | Block::Scalar(Scalar::F32(_)) => Class::F32,
            Block::F64(_) | Block::Scalar(Scalar::F64(_)) => Class::F64,
            Block::I64(_) | Block::Scalar(Scalar::I64(_)) => Class::I64,
            Block::Bool(_) | Block::Scalar(Scalar::Bool(_)) => Class::Bool,
        }
    }

    #[inline]
    fn f32(self, i: usize) -> f32 {
        match self {
            Block::F32(x) => x[i],
            Block::F64(x) => x[i] as f32,
            Block::I64(x) => x[i] as f32,
            Block::Bool(x) => f32::from(x[i]),
            Block::Scalar(Scalar::F32(x)) => x,
            Block::Scalar(Scalar::F64(x)) => x as f32,
            Block::Scalar(Scalar::I64(x)) => x as f32,
            Block::Scalar(Scalar::Bool(x)) => f32::from(u8::from(x)),
        }
    }

    #[inline]
    fn f64(self, i: usize) -> f64 {
        match self {
            Block::F64(x) => x[i],
            Block::I64(x) => x[i] as f64,
            Block::Scalar(Scalar::F64(x)) => x,
            Block::Scalar(Scalar::I64(x)) => x as f64,
            _ => f64::from(self.f32(i)),
        }
    }

    #[inline]
    fn i64(self, i: usize) -> i64 {
        match self {
            Block::I64(x) => x[i],
            Block::F32(x) => x[i] as i64,
            Block::F64(x) => x[i] as i64,
            Block::Bool(x) => i64::from(x[i]),
            Block::Scalar(Scalar::I64(x)) => x,
            Block::Scalar(Scalar::F32(x)) => x as i64,
            Block::Scalar(Scalar::F64(x)) => x as i64,
            Block::Scalar(Scalar::Bool(x)) => i64::from(x),
        }
    }

    #[inline]
    fn bool(self, i: usize) -> bool {
        match self {
            Block::Bool(x) => x[i] != 0,
            Block::F32(x) => x[i] != 0.0,
            Block::F64(x) => x[i] != 0.0,
            Block::I64(x) => x[i] != 0,
            Block::Scalar(Scalar::Bool(x)) => x,
            Block::Scalar(Scalar::F32(x)) => x != 0.0,
            Block::Scalar(Scalar::F64(x)) => x != 0.0,
            Block::Scalar(Scalar::I64(x)) => x != 0,
        }
    }
}

impl Registers {
    fn new([f32, f64, i64, bool]: [usize; 4]) -> Self {
        Self {
            f32: vec![vec![0.0; BLOCK]; f32],
            f64: vec![vec![0.0; BLOCK]; f64],
            i64: vec![vec![0; BLOCK]; i64],
            bool: vec![vec![0; BLOCK]; bool],
        }
    }

    /// Makes room for one more input, under the same number in every class, memory only in its own.
    fn push(&mut self, class: Class) {
        let len = |own: Class| if own == class { BLOCK } else { 0 };
        self.f32.push(vec![0.0; len(Class::F32)]);
        self.f64.push(vec![0.0; len(Class::F64)]);
        self.i64.push(vec![0; len(Class::I64)]);
        self.bool.push(vec![0; len(Class::Bool)]);
    }

    fn block(&self, Register { class, index }: Register, n: usize) -> Block<'_> {
        match class {
            Class::F32 => Block::F32(&self.f32[index][..n]),
            Class::F64 => Block::F64(&self.f64[index][..n]),
            Class::I64 => Block::I64(&self.i64[index][..n]),
            Class::Bool => Block::Bool(&self.bool[index][..n]),
        }
    }

    /// Reads a run of elements into part of a register, converted to its class.
    fn gather(
        &mut self,
        index: usize,
        dtype: DType,
        bytes: &[u8],
        from: usize,
        stride: isize,
        to: std::ops::Range<usize>,
    ) {
        macro_rules! run {
            ($class:ident, $ty:ty, $convert:expr) => {
                gather_run(&mut self.$class[index][to], typed::<$ty>(bytes), from, stride, $convert)
            };
        }
        match dtype {
            DType::F32 => run!(f32, f32, |x| x),
            DType::F16 => run!(f32, f16, f16::to_f32),
            DType::BF16 => run!(f32, bf16, bf16::to_f32),
            DType::F64 => run!(f64, f64, |x| x),
            DType::I8 => run!(i64, i8, i64::from),
            DType::I16 => run!(i64, i16, i64::from),
            DType::I32 => run!(i64, i32, i64::from),
            DType::I64 => run!(i64, i64, |x| x),
            DType::U8 => run!(i64, u8, i64::from),
            DType::U16 => run!(i64, u16, i64::from),
            DType::U32 => run!(i64, u32, i64::from),
            DType::Bool => run!(bool, u8, |x| u8::from(x != 0)),
            // `Class::of` refuses the others when the loop is compiled.
            _ => {}
        }
    }
}

fn gather_run<T: Copy, U: Copy>(
    target: &mut [U],
    source: &[T],
    from: usize,
    stride: isize,
    convert: impl Fn(T) -> U,
) {
    match stride {
        0 => target.fill(convert(source[from])),
        1 => {
            let source = &source[from..from + target.len()];
            target.iter_mut().zip(source).for_each(|(y, &x)| *y = convert(x));
        }
        _ => {
            let mut at = from as isize;
            for y in target {
                *y = convert(source[at as usize]);
                at += stride;
            }
        }
    }
}

/// Writes a block in its type.
fn store(dtype: DType, block: Block<'_>, bytes: &mut [u8]) {
    macro_rules! write {
        ($ty:ty, $get:ident, $convert:expr) => {{
            let target = typed_mut::<$ty>(bytes);
            target.iter_mut().enumerate().for_each(|(i, y)| *y = $convert(block.$get(i)));
        }};
    }
    match dtype {
        DType::F32 => write!(f32, f32, |x| x),
        DType::F16 => write!(f16, f32, f16::from_f32),
        DType::BF16 => write!(bf16, f32, bf16::from_f32),
        DType::F64 => write!(f64, f64, |x| x),
        DType::I8 => write!(i8, i64, |x| x as i8),
        DType::I16 => write!(i16, i64, |x| x as i16),
        DType::I32 => write!(i32, i64, |x| x as i32),
        DType::I64 => write!(i64, i64, |x| x),
        DType::U8 => write!(u8, i64, |x| x as u8),
        DType::U16 => write!(u16, i64, |x| x as u16),
        DType::U32 => write!(u32, i64, |x| x as u32),
        DType::Bool => write!(u8, bool, u8::from),
        _ => {}
    }
}

fn typed<T: bytemuck::Pod>(bytes: &[u8]) -> &[T] {
    bytemuck::cast_slice(bytes)
}

fn typed_mut<T: bytemuck::Pod>(bytes: &mut [u8]) -> &mut [T] {
    bytemuck::cast_slice_mut(bytes)
}
