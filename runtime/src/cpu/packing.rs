//! Weights prepacked once, when a program is compiled: what recurrent layers, fused execution's GEMMs and those of
//! integers multiply by. Library execution's other GEMMs take them as they are, as a library's call does.
//!
//! Compiling consumes the program's weights: what is prepacked is dropped as it was, and what kernels read as it is
//! stays, once.

use super::kernel::Kernel;
use super::kernels::bf16::{self, PackedBf16};
use super::kernels::channels_last::{Form, pack_filters, winograd};
use super::kernels::conv::are_packed;
use super::kernels::int8::{PackedIntegers, deep};
use super::kernels::matmul::{Matrix, Strides, widened};
use super::kernels::packed::{self, Packed};
use super::kernels::rnn::Cell;
use super::kernels::tile::TileMut;
use super::kernels::view::row_major;
use super::layers::channels_last;
use super::scratch::{self, Numbers};
use crate::bind::{BoundOperand, bind_operand};
use crate::error::{Error, Result};
use crate::threads;
use crate::weight;
use bytemuck::cast_slice;
use graphene_frontend::dim::Bindings;
use graphene_frontend::dtype::DType;
use graphene_frontend::graph::ValueId;
use graphene_frontend::op::{Op, RnnAttrs, RnnCell};
use graphene_frontend::tensor::Tensor;
use graphene_fusion::groups::Executor;
use graphene_fusion::program::{BufferId, BufferKind, Program, Step};
use half::f16;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

/// What becomes of a program's weights: which are prepacked, which are kept as they are, and which nobody reads.
pub(crate) struct Packing {
    /// Views of weights as matrices, each once, however many GEMMs read it.
    matrices: Vec<WeightMatrix>,
    /// For each step and each of its inputs the numbers of its matrices.
    numbers: Vec<Vec<Vec<usize>>>,
    /// For each buffer whether it is a weight that a kernel reads as it is.
    kept: Vec<bool>,
    /// Bytes of all that a module holds of the weights, at most; `u64::MAX` if they are more.
    bytes: u64,
}

/// A view of a weight as a matrix.
#[derive(Clone, PartialEq, Eq, Hash)]
struct WeightMatrix {
    at: BoundOperand,
    elements: Elements,
}

/// What a matrix is prepacked as.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Elements {
    /// Numbers that are multiplied in single precision.
    Reals,
    /// Numbers of bf16.
    Bf16,
    /// Integers of 32 bits.
    Integers,
}

/// The matrices that a step's inputs were prepacked as: for each input none or one; for a recurrent layer's weights
/// some for each direction.
pub(crate) type Prepacked = Vec<Vec<PackedWeight>>;

/// A prepacked matrix.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum PackedWeight {
    /// Of numbers that are multiplied in single precision.
    Reals(Arc<Packed>),
    /// Of numbers of bf16.
    Bf16(Arc<PackedBf16>),
    /// Of integers of 32 bits.
    Integers(Arc<PackedIntegers>),
}

impl PackedWeight {
    /// That of numbers in single precision.
    pub(crate) fn real(&self) -> Option<Arc<Packed>> {
        match self {
            Self::Reals(packed) => Some(Arc::clone(packed)),
            Self::Bf16(_) | Self::Integers(_) => None,
        }
    }

    /// Whether numbers in single precision are multiplied by it.
    pub(crate) fn is_real(&self) -> bool {
        matches!(self, Self::Reals(_) | Self::Bf16(_))
    }

    /// C = A·B on the calling thread, as [`packed::multiply`], in memory of as many lines as [`memory`](Self::memory) says.
    ///
    /// # Errors
    /// As for [`packed::multiply`] and [`bf16::multiply`]; [`Error::Unsupported`] for a matrix of integers.
    pub(crate) fn multiply(
        &self,
        k: usize,
        a: Matrix<'_, f32>,
        column: usize,
        c: &mut TileMut<'_, f32>,
        memory: &mut [bf16::Line],
    ) -> Result<()> {
        match self {
            Self::Reals(b) => packed::multiply(k, a, b, column, c),
            Self::Bf16(b) => bf16::multiply(k, a, b, column, c, memory),
            Self::Integers(_) => Err(Error::Unsupported { what: "a matrix of integers" }),
        }
    }

    /// Lines that a matmul of at most so many rows works in.
    pub(crate) fn memory(&self, rows: usize) -> usize {
        match self {
            Self::Bf16(b) => bf16::memory(rows, b),
            Self::Reals(_) | Self::Integers(_) => 0,
        }
    }

    /// That of integers.
    pub(crate) fn integers(&self) -> Option<Arc<PackedIntegers>> {
        match self {
            Self::Reals(_) | Self::Bf16(_) => None,
            Self::Integers(packed) => Some(Arc::clone(packed)),
        }
    }

    /// Its place in memory and its bytes.
    fn held(&self) -> (usize, u64) {
        match self {
            Self::Reals(packed) => (Arc::as_ptr(packed).addr(), packed.held_bytes()),
            Self::Bf16(packed) => (Arc::as_ptr(packed).addr(), packed.held_bytes()),
            Self::Integers(packed) => (Arc::as_ptr(packed).addr(), packed.held_bytes()),
        }
    }
}

/// All that a module holds of a program's weights.
pub(crate) struct Weights {
    /// For each step what its inputs were prepacked as.
    pub(crate) prepacked: Vec<Prepacked>,
    /// For each buffer its elements, if a kernel reads them as they are.
    pub(crate) kept: Vec<Option<Tensor>>,
}

impl Weights {
    /// Their bytes, with those of constants in what steps compute. Memory that weights share counts once.
    pub(crate) fn bytes(&self, program: &Program) -> u64 {
        let mut seen = BTreeSet::new();
        let packed = self.prepacked.iter().flatten().flatten();
        let packed = packed.map(PackedWeight::held).filter(|&(place, _)| seen.insert((place, 0)));
        let packed: u64 = packed.map(|(_, bytes)| bytes).sum();
        let mut seen = BTreeSet::new();
        let kept = self.kept.iter().flatten().map(|tensor| weight::new_bytes(tensor, &mut seen));
        packed + kept.sum::<u64>() + weight::constant_bytes(program, &mut seen)
    }
}

impl Packing {
    /// Prepacks what kernels take prepacked, if the module then holds at most `limit` bytes of weights; else nothing.
    ///
    /// # Errors
    /// [`Error::Exceeds`] if either is more.
    pub(crate) fn within(program: &Program, limit: u64) -> Result<Self> {
        let packing = Self::of(program);
        if packing.bytes <= limit {
            return Ok(packing);
        }
        // Elements of fp16 have 32 bits when they are packed, and panels may be filled up.
        let plain = Self::none(program);
        match plain.bytes <= limit {
            true => Ok(plain),
            false => Err(Error::Exceeds { needed: plain.bytes.min(packing.bytes), limit }),
        }
    }

    /// Prepacks what kernels take prepacked.
    pub(crate) fn of(program: &Program) -> Self {
        let steps = program.steps().iter();
        let wanted: Vec<_> = steps
            .map(|step| {
                let mut of_inputs = vec![Vec::new(); step.inputs.len()];
                for (input, matrices) in matrices(program, step) {
                    of_inputs[input] = matrices;
                }
                let prepacked: Prepacked = of_inputs
                    .iter()
                    .map(|of| of.iter().map(WeightMatrix::outline).collect())
                    .collect();
                let kernel = Kernel::choose(step, &prepacked);
                for (input, matrices) in of_inputs.iter_mut().enumerate() {
                    // What is read as it is too need not be there a second time.
                    if kernel.reads(input) {
                        matrices.clear();
                    }
                }
                of_inputs
            })
            .collect();
        Self::with(program, wanted)
    }

    /// Nothing is prepacked.
    pub(crate) fn none(program: &Program) -> Self {
        let steps = program.steps().iter();
        Self::with(program, steps.map(|step| vec![Vec::new(); step.inputs.len()]).collect())
    }

    /// With these matrices for each step and each of its inputs.
    fn with(program: &Program, wanted: Vec<Vec<Vec<WeightMatrix>>>) -> Self {
        let mut known: HashMap<WeightMatrix, usize> = HashMap::new();
        let mut matrices = Vec::new();
        let mut number = |matrix: WeightMatrix| {
            *known.entry(matrix).or_insert_with_key(|matrix| {
                matrices.push(matrix.clone());
                matrices.len() - 1
            })
        };
        let mut kept = vec![false; program.buffers().len()];
        let mut numbers = Vec::with_capacity(wanted.len());
        for (step, of_inputs) in program.steps().iter().zip(wanted) {
            for (operand, matrices) in step.inputs.iter().zip(&of_inputs) {
                let is_weight =
                    matches!(program.buffer(operand.buffer).kind, BufferKind::Weight(_));
                kept[operand.buffer.index()] |= is_weight && matrices.is_empty();
            }
            let of_inputs = of_inputs.into_iter();
            let of_inputs = of_inputs.map(|of| of.into_iter().map(&mut number).collect());
            numbers.push(of_inputs.collect());
        }
        let of_kept = program.buffers().iter().zip(&kept).filter(|(_, kept)| **kept);
        let of_kept = of_kept.map(|(buffer, _)| weight::bytes(buffer));
        let bytes = matrices.iter().map(WeightMatrix::packed_bytes).chain(of_kept);
        let bytes =
            bytes.fold(weight::constant_bytes(program, &mut BTreeSet::new()), u64::saturating_add);
        Self { matrices, numbers, kept, bytes }
    }

    /// Takes all weights out of the program: prepacks them or keeps them, and drops each when that is done. Some at a
    /// time are on the way, so that originals and copies together are never much more than either.
    ///
    /// # Errors
    /// [`Error::Memory`], [`Error::Released`], and [`Error::At`] around [`Error::Eval`] for a weight that cannot be
    /// made. The program's weights are gone then.
    pub(crate) fn take(&self, program: &mut Program) -> Result<Weights> {
        let mut of_buffer: BTreeMap<BufferId, Vec<usize>> = BTreeMap::new();
        for (number, matrix) in self.matrices.iter().enumerate() {
            of_buffer.entry(matrix.at.buffer).or_default().push(number);
        }
        let mut prepacked: Vec<Option<PackedWeight>> = vec![None; self.matrices.len()];
        let mut kept = vec![None; self.kept.len()];
        for wave in self.waves(program, &of_buffer) {
            let mut taken = Vec::with_capacity(wave.len());
            for id in wave {
                let name = program.buffer(id).name.clone();
                let weight = program.take_weight(id);
                let weight = weight.ok_or(Error::Released { weight: name.clone() })?;
                taken.push(Mutex::new(Some((id, weight, name))));
            }
            type Packs = (Vec<(usize, PackedWeight)>, Option<(BufferId, Tensor)>);
            let pack = |place: usize| -> Result<Packs> {
                let mut own = taken[place].lock().unwrap_or_else(PoisonError::into_inner);
                let Some((id, weight, name)) = own.take() else { return Ok(Packs::default()) };
                let tensor = weight::made(&weight, &name)?;
                drop(weight);
                let numbers = of_buffer.get(&id).map_or(&[][..], Vec::as_slice);
                let packed = numbers.iter().map(|&number| {
                    let panels = self.matrices[number].packed(tensor.bytes(), tensor.dtype())?;
                    Ok((number, panels))
                });
                let packed: Vec<_> = packed.collect::<Result<_>>()?;
                Ok((packed, self.kept[id.index()].then_some((id, tensor))))
            };
            for done in threads::map(taken.len(), pack) {
                let (packed, as_it_is) = done?;
                packed.into_iter().for_each(|(number, packed)| prepacked[number] = Some(packed));
                if let Some((id, tensor)) = as_it_is {
                    kept[id.index()] = Some(tensor);
                }
            }
        }
        let of = |&number: &usize| {
            prepacked[number].clone().expect("every matrix is of a buffer that a wave has taken")
        };
        let of = |numbers: &Vec<usize>| numbers.iter().map(of).collect();
        let prepacked = self.numbers.iter().map(|inputs| inputs.iter().map(of).collect()).collect();
        Ok(Weights { prepacked, kept })
    }

    /// The buffers that are read, in the order in which they are taken, so many at a time that what is made of them
    /// is a small part of all. The others are released.
    fn waves(
        &self,
        program: &mut Program,
        of_buffer: &BTreeMap<BufferId, Vec<usize>>,
    ) -> Vec<Vec<BufferId>> {
        let most = (self.bytes / SHARE).max(LEAST);
        let (mut waves, mut wave, mut bytes) = (Vec::new(), Vec::new(), 0_u64);
        for id in program.buffer_ids() {
            let numbers = of_buffer.get(&id);
            if numbers.is_none() && !self.kept[id.index()] {
                drop(program.take_weight(id));
                continue;
            }
            let buffer = program.buffer(id);
            let made = if buffer.is_derived() { weight::bytes(buffer) } else { 0 };
            let packed = numbers.into_iter().flatten().map(|&n| self.matrices[n].packed_bytes());
            let own = packed.fold(made, u64::saturating_add);
            if bytes.saturating_add(own) > most && !wave.is_empty() {
                waves.push(std::mem::take(&mut wave));
                bytes = 0;
            }
            bytes = bytes.saturating_add(own);
            wave.push(id);
        }
        waves.push(wave);
        waves
    }
}

/// What is made of weights at a time is at most this part of what the module holds, or so many bytes.
const SHARE: u64 = 8;
const LEAST: u64 = 1 << 24;

impl WeightMatrix {
    fn sizes(&self) -> [usize; 2] {
        sizes(&self.at, self.elements == Elements::Integers)
    }

    /// Prepacked, without its numbers.
    fn outline(&self) -> PackedWeight {
        let [depth, columns] = self.sizes();
        match self.elements {
            Elements::Reals => PackedWeight::Reals(Arc::new(Packed::outline(depth, columns))),
            Elements::Bf16 => PackedWeight::Bf16(Arc::new(PackedBf16::outline(depth, columns))),
            Elements::Integers => {
                PackedWeight::Integers(Arc::new(PackedIntegers::outline(depth, columns)))
            }
        }
    }

    fn packed_bytes(&self) -> u64 {
        let [depth, columns] = self.sizes();
        let bytes = match self.elements {
            Elements::Reals => Packed::bytes(depth, columns),
            Elements::Bf16 => PackedBf16::bytes(depth, columns),
            Elements::Integers => PackedIntegers::bytes(depth, columns),
        };
        bytes.map_or(u64::MAX, |bytes| bytes as u64)
    }

    /// Prepacked; `bytes` are those of its buffer.
    ///
    /// # Errors
    /// As [`pack`].
    fn packed(&self, bytes: &[u8], dtype: DType) -> Result<PackedWeight> {
        Ok(match self.elements {
            Elements::Reals => PackedWeight::Reals(Arc::new(pack(&self.at, bytes, dtype)?)),
            Elements::Bf16 => {
                let data = &numbers(&self.at, bytes, dtype)?;
                let [depth, columns] = self.sizes();
                let b = Matrix { data, at: strides(&self.at) };
                PackedWeight::Bf16(Arc::new(PackedBf16::new(b, depth, columns)?))
            }
            Elements::Integers => PackedWeight::Integers(Arc::new(pack_integers(&self.at, bytes)?)),
        })
    }
}

/// A step's inputs that matmuls multiply by and nothing else reads, and the matrices that each of them is.
fn matrices(program: &Program, step: &Step) -> Vec<(usize, Vec<WeightMatrix>)> {
    let mut places: Vec<Vec<(&Op, usize)>> = vec![Vec::new(); step.inputs.len()];
    let inputs: HashMap<ValueId, usize> =
        step.body.inputs().iter().enumerate().map(|(i, id)| (id.value(), i)).collect();
    for (_, node) in step.body.nodes() {
        for (place, value) in node.inputs().iter().enumerate() {
            if let Some(&input) = value.as_ref().and_then(|value| inputs.get(value)) {
                places[input].push((node.op(), place));
            }
        }
    }
    let own = |(input, places): (usize, &Vec<(&Op, usize)>)| {
        let weight = || weight_operand(program, step, input);
        let is_right = |&(op, place): &(&Op, usize)| matches!((op, place), (Op::MatMul, 1));
        let is_factor = places.iter().all(is_right);
        #[allow(clippy::single_range_in_vec_init)] // Groups of gates, of which there may be one.
        let matrices = match places[..] {
            [(Op::Rnn(attrs), 1)] => directions(&weight()?, &[0..cell(attrs.cell).gates()], attrs)?,
            [(Op::Rnn(attrs), 2)] => directions(&weight()?, cell(attrs.cell).parts(), attrs)?,
            [(Op::Conv(attrs), 1)] if is_integer(step) => {
                filters(&weight()?, attrs.group, is_fused(step))?
            }
            [(Op::Conv(_), 1)] => channels_last(step).and_then(|form| images(&weight()?, form))?,
            [_, ..] if is_factor && wants_panels(step) => {
                vec![single(weight()?)?]
            }
            _ => return None,
        };
        let elements = match program.buffer(step.inputs[input].buffer).dtype {
            DType::I32 => Elements::Integers,
            DType::BF16 if is_factor => Elements::Bf16,
            DType::F32 if is_factor && program.allows_bf16() => Elements::Bf16,
            _ => Elements::Reals,
        };
        let matrices: Vec<BoundOperand> = matrices;
        Some((input, matrices.into_iter().map(|at| WeightMatrix { at, elements }).collect()))
    };
    places.iter().enumerate().filter_map(own).collect()
}

/// Whether a step's matmuls are for this crate's kernels: those of integers, and those of fused execution, but for one
/// that is written through strides and nothing else.
fn wants_panels(step: &Step) -> bool {
    let row_major = step.outputs.iter().all(|output| output.view.is_contiguous());
    let fused = step.executor == Executor::Template && (is_fused(step) || row_major);
    is_integer(step) || fused
}

/// Whether a step's matmul or convolution is one of integers of 32 bits.
fn is_integer(step: &Step) -> bool {
    let mut roots =
        step.body.nodes().filter(|(_, node)| matches!(node.op(), Op::MatMul | Op::Conv(_)));
    roots.any(|(_, node)| node.outputs()[0].dtype == DType::I32)
}

/// Whether a step has several operations.
fn is_fused(step: &Step) -> bool {
    step.body.len() - step.body.inputs().len() > 1
}

/// Filters `[g·m, c, kernel…]` of a convolution of integers as matrices of m columns, one for each group; `None` where
/// they are so few that they are read as they lie. Where images are of bytes, of at most two spatial axes, the rows are the
/// channels of each element of the windows.
fn filters(weight: &BoundOperand, groups: usize, bytes: bool) -> Option<Vec<BoundOperand>> {
    let (&count, rest) = weight.shape.split_first()?;
    let (each, depth) = (count.checked_div(groups)?, rest.iter().product::<usize>());
    let axes = row_major(&weight.shape).into_iter().zip(&weight.strides).zip(&weight.shape);
    let is_row_major = axes.into_iter().all(|((a, &b), &size)| size == 1 || a == b);
    let by_taps = bytes && (2..=3).contains(&rest.len());
    let taps: usize = rest.iter().skip(1).product();
    let (shape, strides) = match by_taps {
        true => (vec![taps, rest[0], each], vec![1, taps as isize, depth as isize]),
        false => (vec![depth, each], vec![1, depth as isize]),
    };
    let of = |group: usize| BoundOperand {
        buffer: weight.buffer,
        offset: weight.offset + group * each * depth,
        shape: shape.clone(),
        strides: strides.clone(),
    };
    let packs = are_packed(each) && (by_taps || !bytes);
    (packs && is_row_major && depth > 0).then(|| (0..groups).map(of).collect())
}

/// Filters `[m, c, kernel…]` of a convolution whose images have their channels innermost as a matrix `[kernel, c, m]`; of a
/// group for each channel `[kernel, m]`. Those that are transformed have a kernel of two axes, `[3, 3, c, m]`.
fn images(weight: &BoundOperand, form: Form) -> Option<Vec<BoundOperand>> {
    let [filters, channels, ref kernel @ ..] = weight.shape[..] else { return None };
    let taps: usize = kernel.iter().product();
    let axes = row_major(&weight.shape).into_iter().zip(&weight.strides).zip(&weight.shape);
    let is_row_major = axes.into_iter().all(|((a, &b), &size)| size == 1 || a == b);
    let (of_channel, of_filter) = (taps as isize, (taps * channels) as isize);
    let (shape, strides) = match form {
        Form::Depthwise => (vec![taps, filters], vec![1, of_channel]),
        Form::Windows => (vec![taps, channels, filters], vec![1, of_channel, of_filter]),
        Form::Winograd => (vec![3, 3, channels, filters], vec![3, 1, of_channel, of_filter]),
    };
    let BoundOperand { buffer, offset, .. } = *weight;
    is_row_major.then(|| vec![BoundOperand { buffer, offset, shape, strides }])
}

/// A step's input, if it is a weight of numbers that are multiplied in single precision or of integers of 32 bits, each
/// of which lies in a place of its own.
fn weight_operand(program: &Program, step: &Step, input: usize) -> Option<BoundOperand> {
    let operand = &step.inputs[input];
    let buffer = program.buffer(operand.buffer);
    let number = matches!(buffer.dtype, DType::F32 | DType::F16 | DType::BF16 | DType::I32);
    if !number || !matches!(buffer.kind, BufferKind::Weight(_)) {
        return None;
    }
    let weight = bind_operand(operand, &Bindings::default()).ok()?;
    let mut axes = weight.shape.iter().zip(&weight.strides);
    axes.all(|(&size, &stride)| size <= 1 || stride != 0).then_some(weight)
}

/// A weight as one matrix, if it is one.
fn single(mut weight: BoundOperand) -> Option<BoundOperand> {
    let lead = weight.shape.len().checked_sub(2)?;
    weight.strides.drain(..lead);
    let one = weight.shape.drain(..lead).all(|size| size == 1);
    one.then_some(weight)
}

/// The kernel's cell.
pub(crate) fn cell(cell: RnnCell) -> Cell {
    match cell {
        RnnCell::Lstm { input_forget } => Cell::Lstm { input_forget },
        RnnCell::Gru { linear_before_reset } => Cell::Gru { linear_before_reset },
        RnnCell::Plain => Cell::Plain,
    }
}

/// A recurrent layer's weights `[d, gates·h, k]` as matrices `[k, columns]`, one for each direction and range of
/// gates; `None` for other shapes.
pub(crate) fn directions(
    weight: &BoundOperand,
    parts: &[Range<usize>],
    attrs: &RnnAttrs,
) -> Option<Vec<BoundOperand>> {
    let (&[count, rows, depth], &[apart, down, across]) = (&weight.shape[..], &weight.strides[..])
    else {
        return None;
    };
    if rows != cell(attrs.cell).gates() * attrs.hidden {
        return None;
    }
    let of = |direction: usize, gates: &Range<usize>| {
        let first = direction as isize * apart + (gates.start * attrs.hidden) as isize * down;
        BoundOperand {
            buffer: weight.buffer,
            offset: (weight.offset as isize + first) as usize,
            shape: vec![depth, gates.len() * attrs.hidden],
            strides: vec![across, down],
        }
    };
    let each = |direction| parts.iter().map(move |gates| of(direction, gates));
    Some((0..count).flat_map(each).collect())
}

fn sizes(matrix: &BoundOperand, integers: bool) -> [usize; 2] {
    match matrix.shape[..] {
        [taps, channels, filters] if integers => [taps * deep(channels), filters],
        [taps, channels, filters] => [taps * channels, filters],
        [_, _, channels, filters] => [winograd::PATCH * channels, filters],
        _ => [matrix.shape[0], matrix.shape[1]],
    }
}

/// Packs a matrix of integers; `bytes` are those of its buffer.
///
/// # Errors
/// As [`PackedIntegers::new`].
fn pack_integers(matrix: &BoundOperand, bytes: &[u8]) -> Result<PackedIntegers> {
    let ([depth, columns], at) = (sizes(matrix, true), strides(matrix));
    let data: &[i32] = &cast_slice(bytes)[matrix.span()];
    if let [taps, channels, _] = matrix.shape[..] {
        let mut rows = scratch::zeros::<i32>(depth * columns)?;
        for (number, row) in rows.chunks_exact_mut(columns.max(1)).enumerate() {
            let (tap, channel) = (number / deep(channels), number % deep(channels));
            let from = at.offset + tap + channel * taps;
            let apart = matrix.strides[2] as usize;
            let row = if channel < channels { row } else { &mut [] };
            let of_row = row.iter_mut().enumerate();
            of_row.for_each(|(filter, to)| *to = data[from + filter * apart]);
        }
        let at = Strides { offset: 0, batch: &[], row: columns as isize, column: 1 };
        return PackedIntegers::new(Matrix { data: &rows, at }, depth, columns);
    }
    PackedIntegers::new(Matrix { data, at }, depth, columns)
}

/// Packs a matrix of numbers that are multiplied in single precision; `bytes` are those of its buffer.
///
/// # Errors
/// As [`Packed::new`], and [`Error::Unsupported`] for other elements.
pub(crate) fn pack(matrix: &BoundOperand, bytes: &[u8], dtype: DType) -> Result<Packed> {
    let elements = numbers(matrix, bytes, dtype)?;
    if let [_, _, channels, filters] = matrix.shape[..] {
        return winograd::pack(&elements, [filters, channels]);
    }
    if let [taps, channels, filters] = matrix.shape[..] {
        return pack_filters(&elements, [filters, channels, taps], false);
    }
    let [depth, columns] = sizes(matrix, false);
    Packed::new(Matrix { data: &elements, at: strides(matrix) }, depth, columns)
}

/// The numbers of a matrix's span in single precision.
fn numbers<'a>(matrix: &BoundOperand, bytes: &'a [u8], dtype: DType) -> Result<Numbers<'a, f32>> {
    let span = matrix.span();
    Ok(match dtype {
        DType::F32 => Numbers::Lent(&cast_slice(bytes)[span]),
        DType::F16 => Numbers::Own(widened::<f16>(&cast_slice(bytes)[span])?),
        DType::BF16 => Numbers::Own(widened::<half::bf16>(&cast_slice(bytes)[span])?),
        _ => return Err(Error::Unsupported { what: "an element type" }),
    })
}

/// Where a matrix lies in its span.
fn strides(matrix: &BoundOperand) -> Strides<'static> {
    let offset = matrix.offset.saturating_sub(matrix.span().start);
    Strides { offset, batch: &[], row: matrix.strides[0], column: matrix.strides[1] }
}

#[cfg(test)]
mod tests;
