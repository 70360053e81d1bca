//! Tensors of data and of threads (Graphene, sections 3 and 4).
//!
//! A [`View`] is a layout over a buffer: a hierarchy of tiles, whose strides are steps along the buffer's axes. So it knows the
//! coordinates in the buffer of everything it reaches: offsets, bounds of partial tiles (section 3.4) and the coordinates that a
//! tensor map wants all follow from them. A [`Tensor`] is a view of elements in a memory, [`Threads`] one of the block's threads
//! or the grid's blocks.

mod text;
mod view;

use std::sync::Arc;

use crate::layout::{Leaf, Stride};
use crate::{Expr, IntTuple, Layout, Swizzle, Tiler, Var, named::named};

/// An axis of a buffer.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Axis {
    /// The number of coordinates.
    pub size: Expr,
    /// The distance between two of them, in elements.
    pub stride: Expr,
}

/// `axes o start o levels`, as CuTe composes them: `levels` maps coordinates to those of the buffer,
/// to which `start` is added, and the axes' strides make them an offset.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct View {
    axes: Arc<[Axis]>,
    start: Stride<Expr>,
    /// A mode for each level of tiles, the outermost first, which has a mode for each dimension.
    levels: Layout<Expr>,
}

named! {
    /// The type of one element.
    pub enum Scalar {
        /// IEEE half precision.
        F16 = "fp16",
        /// Bfloat16.
        Bf16 = "bf16",
        /// IEEE single precision.
        F32 = "fp32",
        I32 = "i32",
        /// Signed 64-bit integer; the simulator holds those of 53 bits.
        I64 = "i64",
        U32 = "u32",
        U8 = "u8",
        I8 = "i8",
        /// A barrier in shared memory that counts arrivals and bytes, of 8 bytes (PTX `mbarrier`).
        Mbar = "mbar",
    }
}

named! {
    /// Where a tensor lives.
    pub enum Memory {
        /// Global memory.
        Global = "GL",
        /// Shared memory of a block.
        Shared = "SH",
        /// Registers: every thread has its own.
        Registers = "RF",
    }
}

/// A tensor of data.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Tensor {
    /// What it reaches.
    pub view: View,
    /// The type of its elements.
    pub scalar: Scalar,
    /// Where it lives.
    pub memory: Memory,
    /// What is applied to byte offsets within its buffer.
    pub swizzle: Option<Swizzle>,
    /// The block of the cluster whose shared memory this is; `None`: the own one.
    pub peer: Option<Expr>,
    /// Whether nothing that may still run when the kernel starts writes it, as a layer's weights: so it may be read before
    /// predecessors are done. Whoever launches the kernel promises that; only parameters are such, and a kernel writes none.
    pub constant: bool,
    /// Whether it is a parameter for the kernel's own use, such as a counter that is 0 before and after: no input or output.
    pub scratch: bool,
}

named! {
    /// Threads or blocks.
    pub enum Agent {
        /// The threads of a block.
        Thread = "thread",
        /// The blocks of a grid.
        Block = "block",
    }
}

/// A tensor of threads or blocks.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Threads {
    /// What it reaches.
    pub view: View,
    /// Which of the two.
    pub agent: Agent,
}

/// An operation that gives a view of a view.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum ViewOp {
    /// Splits each dimension of the outermost level into tiles: a level of tiles' coordinates, and
    /// below it one of the coordinates within a tile.
    Tile(Vec<Tiler>),
    /// Picks one element of the outermost level.
    Index(Vec<IntTuple<Expr>>),
    /// Gives the level at a depth new dimensions, each a layout of the level's colexicographic numbers.
    Reshape(usize, Vec<Layout>),
    /// No dimensions: for threads, each one on its own.
    Scalar,
    /// The same shared memory of another block of the cluster.
    Peer(Expr),
}

impl Scalar {
    /// The name in CUDA C++, as emission's prelude has it; the size in bytes; whether it is floating point.
    fn row(self) -> (&'static str, i64, bool) {
        match self {
            Scalar::F16 => ("half", 2, true),
            Scalar::Bf16 => ("bfloat16", 2, true),
            Scalar::F32 => ("float", 4, true),
            Scalar::I32 => ("int", 4, false),
            Scalar::I64 => ("long long", 8, false),
            Scalar::U32 => ("unsigned", 4, false),
            Scalar::U8 => ("unsigned char", 1, false),
            Scalar::I8 => ("signed char", 1, false),
            Scalar::Mbar => ("unsigned long long", 8, false),
        }
    }

    /// The name in CUDA C++.
    pub fn c_name(self) -> &'static str {
        self.row().0
    }

    /// The size in bytes.
    pub fn bytes(self) -> i64 {
        self.row().1
    }

    /// Whether it is floating point.
    pub fn is_float(self) -> bool {
        self.row().2
    }

    /// A value rounded to the type: to nearest, ties to even; integers towards 0.
    pub fn round(self, value: f64) -> f64 {
        match self {
            Scalar::F32 => f64::from(value as f32),
            Scalar::F16 => round_to(value, 10, -14, 65504.0),
            Scalar::Bf16 => round_to(value, 7, -126, f64::from(f32::from_bits(0x7f7f_0000))),
            Scalar::I32 => f64::from(value as i64 as i32),
            Scalar::I64 => value.trunc(),
            Scalar::U32 => f64::from(value as i64 as u32),
            Scalar::U8 => f64::from(value as i64 as u8),
            Scalar::I8 => f64::from(value as i64 as i8),
            Scalar::Mbar => value,
        }
    }

    /// Half a unit in the last place, relative: the most that rounding moves a normal number by. Integers are as single
    /// precision, in which functions compute them.
    pub fn unit(self) -> f64 {
        match self {
            Scalar::F16 => power(-11),
            Scalar::Bf16 => power(-8),
            _ => power(-24),
        }
    }
}

/// To `bits` bits after the leading one, of exponents from `least` on.
fn round_to(value: f64, bits: i32, least: i32, max: f64) -> f64 {
    if value == 0.0 || !value.is_finite() {
        return value;
    }
    let exponent = (value.to_bits() >> 52 & 0x7ff) as i32 - 1023;
    let unit = power(exponent.max(least) - bits);
    let rounded = (value / unit).round_ties_even() * unit;
    if rounded.abs() > max { f64::INFINITY.copysign(value) } else { rounded }
}

/// 2 to an exponent of normal numbers.
fn power(exponent: i32) -> f64 {
    f64::from_bits(((exponent + 1023) as u64) << 52)
}

impl Tensor {
    /// A tensor of its own buffer.
    pub fn new(view: View, scalar: Scalar, memory: Memory) -> Tensor {
        Tensor { view, scalar, memory, swizzle: None, peer: None, constant: false, scratch: false }
    }

    /// The tensor that an operation gives. Fails as the view does, and likewise for a peer's registers.
    pub fn apply(&self, op: &ViewOp) -> crate::Result<Tensor> {
        match op {
            ViewOp::Peer(block) if self.memory == Memory::Shared => {
                Ok(Tensor { peer: Some(block.clone()), ..self.clone() })
            }
            ViewOp::Peer(_) => Err(crate::Error::Shape("only shared memory has peers".to_owned())),
            op => Ok(Tensor { view: self.view.apply(op)?, ..self.clone() }),
        }
    }
}

impl Threads {
    /// The tensor that an operation gives. Fails as the view does.
    pub fn apply(&self, op: &ViewOp) -> crate::Result<Threads> {
        Ok(Threads { view: self.view.apply(op)?, agent: self.agent })
    }

    /// The coordinate of `linear`, the own thread's or block's number, in each leaf, outermost level first (section 4).
    pub fn coordinates(&self, linear: &Var) -> Vec<Expr> {
        let all = Expr::of_factors(self.view.axes().iter().map(|axis| &axis.size));
        let relative = Expr::from(linear) - self.view.offset();
        let digit = |leaf: &Leaf<Expr>| {
            if leaf.size.is(1) {
                return Expr::from(0);
            }
            let stride = self.view.stride(leaf);
            let digit = relative.div(&stride);
            // The outermost leaf needs no remainder.
            if leaf.size.clone() * stride == all { digit } else { digit.rem(&leaf.size) }
        };
        self.view.leaves().into_iter().map(digit).collect()
    }
}
