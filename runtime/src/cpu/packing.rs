//! Weights prepacked once, when a program is compiled: what recurrent layers, fused execution's GEMMs and those of
//! integers multiply by. Library execution's other GEMMs take them as they are, as a library's call does.
//!
//! Compiling consumes the program's weights: what is prepacked is dropped as it was, and what kernels read as it is
//! stays, once.

use super::kernel::Kernel;
use super::layers::channels_last;
use super::prepacked::{PackedWeight, Prepacked};
use super::weight_matrix::{Elements, WeightMatrix, cell, directions, filters, images, single};
use crate::bind::{BoundOperand, bind_operand};
use crate::error::{Error, Result};
use crate::threads;
use crate::weight;
use graphene_frontend::dim::Bindings;
use graphene_frontend::dtype::DType;
use graphene_frontend::graph::ValueId;
use graphene_frontend::op::Op;
use graphene_frontend::tensor::Tensor;
use graphene_fusion::groups::Executor;
use graphene_fusion::program::{BufferId, Program, Step};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Mutex, PoisonError};

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
                let is_weight = program.buffer(operand.buffer).is_weight();
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
                let numbers = of_buffer.get(&id).map_or(&[][..], Vec::as_slice);
                let packs = |&number: &usize| self.matrices[number].elements == Elements::Integers;
                // Integers of 8 bits are packed as they are.
                let narrow = !self.kept[id.index()] && numbers.iter().all(packs);
                let tensor = match weight::narrow_integers(&weight).filter(|_| narrow) {
                    Some(tensor) => tensor,
                    None => weight::made(&weight, &name)?,
                };
                drop(weight);
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

/// A step's input, if it is a weight of numbers that are multiplied in single precision or of integers of 32 bits, each
/// of which lies in a place of its own.
fn weight_operand(program: &Program, step: &Step, input: usize) -> Option<BoundOperand> {
    let operand = &step.inputs[input];
    let buffer = program.buffer(operand.buffer);
    let number = matches!(buffer.dtype, DType::F32 | DType::F16 | DType::BF16 | DType::I32);
    if !number || !buffer.is_weight() {
        return None;
    }
    let weight = bind_operand(operand, &Bindings::default()).ok()?;
    let mut axes = weight.shape.iter().zip(&weight.strides);
    axes.all(|(&size, &stride)| size <= 1 || stride != 0).then_some(weight)
}

#[cfg(test)]
mod tests;
