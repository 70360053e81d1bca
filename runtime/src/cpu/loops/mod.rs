//! Pointwise groups as one loop.
//!
//! A body of pointwise operations is compiled to straight-line instructions over registers, and a register
//! holds a block of elements that stays in the first-level cache: each instruction is a vectorised loop over
//! the block, each tensor is read and written once. Elements compute as `f32` (also the 16-bit floats, rounded
//! after each operation as if stored), `f64`, `i64` (all integers up to 64 bits signed and 32 unsigned, wrapped
//! after each operation), `u64` or `bool`. Integers on the way from bytes to reals, or back, compute as `f32` too. What many
//! operations make of one byte alone is looked up in a table.

mod chain;
mod compile;
mod compute;
mod domain;
mod elements;
mod execute;
mod fast;
mod held;
mod quantise;
mod scalar;
mod sum;
mod tables;

#[cfg(test)]
mod tests;

pub(crate) use chain::Chain;
pub(crate) use domain::{Domain, Lies, Tile};
pub(crate) use elements::{Elements, ElementsMut};
pub(crate) use execute::{LoopInput, LoopOutput, Workspace};
pub(crate) use scalar::{apply_unary, round};
pub(crate) use sum::Sum;

use crate::cpu::kernels::number::packed;
use crate::cpu::kernels::table::Table;
use graphene_frontend::dtype::DType;
use graphene_frontend::op::{Binary, Unary};
use graphene_frontend::tensor::{Element, Tensor};
use quantise::Quantise;

/// Elements of a block.
pub(crate) const BLOCK: usize = 1024;

/// What a register's elements are.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) enum Class {
    F32,
    F64,
    I64,
    U64,
    Bool,
}

/// A register: the n-th of its class.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) struct Register {
    class: Class,
    index: usize,
}

/// What an instruction reads.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) enum Source {
    /// A register.
    Register(Register),
    /// The block of the loop's input of this number.
    Input(usize),
    /// One number for all elements.
    Scalar(Scalar),
}

/// A number for all elements of a block.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) enum Scalar {
    F32(f32),
    F64(f64),
    I64(i64),
    U64(u64),
    Bool(bool),
}

/// What an instruction does.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) enum Operation {
    Unary(Unary),
    Binary(Binary),
    Select,
    /// Conversion of elements; the destination's type is the instruction's.
    Cast,
    /// The number itself; zero for what is none, as in a conversion to integers.
    Number,
    /// The result of a byte in the loop's table of this number.
    Lookup(usize),
}

/// One vectorised loop over a block.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Instruction {
    operation: Operation,
    /// The element type whose rounding or wrapping the result takes.
    dtype: DType,
    sources: Vec<Source>,
    target: Register,
    /// The output whose block takes the result directly; nothing else reads it then.
    stored: Option<usize>,
}

impl Instruction {
    /// Whether its results are elements of its type unrounded.
    fn is_exact(&self) -> bool {
        match self.operation {
            Operation::Unary(unary) => unary.info().exact,
            Operation::Binary(binary) => binary.info().exact,
            Operation::Select | Operation::Lookup(_) => true,
            Operation::Cast | Operation::Number => false,
        }
    }
}

/// A compiled pointwise body.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Loop {
    instructions: Vec<Instruction>,
    /// Element types of the inputs, and the class in which each computes.
    inputs: Vec<(DType, Class)>,
    /// Element types of the outputs, and the register of each that is not stored directly.
    outputs: Vec<(DType, Option<Source>)>,
    /// Functions of bytes.
    tables: Vec<Table>,
    /// Registers needed of each class.
    registers: [usize; 5],
    /// For each instruction the quantisation that begins with it, if one does.
    quantise: Vec<Option<Quantise>>,
}

impl Class {
    /// The class in which elements of a type compute, if loops take that type.
    pub(crate) fn of(dtype: DType) -> Option<Self> {
        match dtype {
            DType::F32 | DType::F16 | DType::BF16 => Some(Self::F32),
            DType::F64 => Some(Self::F64),
            DType::I8 | DType::I16 | DType::I32 | DType::I64 => Some(Self::I64),
            DType::U8 | DType::U16 | DType::U32 => Some(Self::I64),
            DType::I4 | DType::U4 | DType::I2 | DType::U2 => Some(Self::I64),
            DType::U64 => Some(Self::U64),
            DType::Bool => Some(Self::Bool),
            DType::F8E4M3Fn
            | DType::F8E4M3FnUz
            | DType::F8E5M2
            | DType::F8E5M2FnUz
            | DType::F8E8M0
            | DType::F4E2M1 => None,
        }
    }
}

impl Scalar {
    /// The first element of a tensor, as loops compute with its type; `None` if they do not, or there is none.
    pub(crate) fn of(tensor: &Tensor) -> Option<Self> {
        fn first<T: Element>(tensor: &Tensor) -> Option<T> {
            tensor.as_slice::<T>().ok()?.first().copied()
        }
        Some(match tensor.dtype() {
            DType::F32 => Self::F32(first(tensor)?),
            DType::F16 => Self::F32(first::<half::f16>(tensor)?.to_f32()),
            DType::BF16 => Self::F32(first::<half::bf16>(tensor)?.to_f32()),
            DType::F64 => Self::F64(first(tensor)?),
            DType::I8 => Self::I64(first::<i8>(tensor)?.into()),
            DType::I16 => Self::I64(first::<i16>(tensor)?.into()),
            DType::I32 => Self::I64(first::<i32>(tensor)?.into()),
            DType::I64 => Self::I64(first(tensor)?),
            DType::U8 => Self::I64(first::<u8>(tensor)?.into()),
            DType::U16 => Self::I64(first::<u16>(tensor)?.into()),
            DType::U32 => Self::I64(first::<u32>(tensor)?.into()),
            DType::U64 => Self::U64(first(tensor)?),
            dtype @ (DType::I4 | DType::U4 | DType::I2 | DType::U2) => {
                Self::I64(packed(dtype, (*tensor.bytes().first()?).into()))
            }
            DType::Bool => Self::Bool(*tensor.bytes().first()? != 0),
            _ => return None,
        })
    }
}
