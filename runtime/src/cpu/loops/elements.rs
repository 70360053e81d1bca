//! Elements of a block in the form in which they compute: 16-bit floats as `f32`, integers as `i64`, or `u64`.

use super::fast::map;
use super::{BLOCK, Class, Register, Scalar};
use crate::cpu::kernels::number::packed;
use graphene_frontend::dtype::DType;
use half::{bf16, f16};

/// Elements of a block, of any class.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Elements<'a> {
    /// Also of the 16-bit floats.
    F32(&'a [f32]),
    F64(&'a [f64]),
    /// Of all integers but those without a sign of 64 bits.
    I64(&'a [i64]),
    U64(&'a [u64]),
    /// 0 or 1.
    Bool(&'a [u8]),
    /// One number for all.
    Scalar(Scalar),
}

/// Elements of a block to write, of any class.
#[derive(Debug)]
pub(crate) enum ElementsMut<'a> {
    F32(&'a mut [f32]),
    F64(&'a mut [f64]),
    I64(&'a mut [i64]),
    U64(&'a mut [u64]),
    Bool(&'a mut [u8]),
}

/// Blocks by number, for each class.
#[derive(Default)]
pub(super) struct Registers {
    pub(super) f32: Vec<Vec<f32>>,
    pub(super) f64: Vec<Vec<f64>>,
    pub(super) i64: Vec<Vec<i64>>,
    pub(super) u64: Vec<Vec<u64>>,
    pub(super) bool: Vec<Vec<u8>>,
    /// What a quantisation writes, until it takes the place of a register.
    pub(super) quantised: Vec<f32>,
}

impl<'a> Elements<'a> {
    /// `n` of the elements, from `start` on.
    pub(super) fn part(self, start: usize, n: usize) -> Elements<'a> {
        match self {
            Elements::F32(x) => Elements::F32(&x[start..][..n]),
            Elements::F64(x) => Elements::F64(&x[start..][..n]),
            Elements::I64(x) => Elements::I64(&x[start..][..n]),
            Elements::U64(x) => Elements::U64(&x[start..][..n]),
            Elements::Bool(x) => Elements::Bool(&x[start..][..n]),
            Elements::Scalar(x) => Elements::Scalar(x),
        }
    }

    /// The number of this place, for all.
    pub(super) fn one(self, place: usize) -> Elements<'a> {
        Elements::Scalar(match self {
            Elements::F32(x) => Scalar::F32(x[place]),
            Elements::F64(x) => Scalar::F64(x[place]),
            Elements::I64(x) => Scalar::I64(x[place]),
            Elements::U64(x) => Scalar::U64(x[place]),
            Elements::Bool(x) => Scalar::Bool(x[place] != 0),
            Elements::Scalar(x) => x,
        })
    }

    pub(super) fn class(self) -> Class {
        match self {
            Elements::F32(_) | Elements::Scalar(Scalar::F32(_)) => Class::F32,
            Elements::F64(_) | Elements::Scalar(Scalar::F64(_)) => Class::F64,
            Elements::I64(_) | Elements::Scalar(Scalar::I64(_)) => Class::I64,
            Elements::U64(_) | Elements::Scalar(Scalar::U64(_)) => Class::U64,
            Elements::Bool(_) | Elements::Scalar(Scalar::Bool(_)) => Class::Bool,
        }
    }

    #[inline]
    pub(super) fn f32(self, i: usize) -> f32 {
        match self {
            Elements::F32(x) => x[i],
            Elements::F64(x) => x[i] as f32,
            Elements::I64(x) => x[i] as f32,
            Elements::U64(x) => x[i] as f32,
            Elements::Bool(x) => f32::from(x[i]),
            Elements::Scalar(Scalar::F32(x)) => x,
            Elements::Scalar(Scalar::F64(x)) => x as f32,
            Elements::Scalar(Scalar::I64(x)) => x as f32,
            Elements::Scalar(Scalar::U64(x)) => x as f32,
            Elements::Scalar(Scalar::Bool(x)) => f32::from(u8::from(x)),
        }
    }

    #[inline]
    pub(super) fn f64(self, i: usize) -> f64 {
        match self {
            Elements::F64(x) => x[i],
            Elements::I64(x) => x[i] as f64,
            Elements::U64(x) => x[i] as f64,
            Elements::Scalar(Scalar::F64(x)) => x,
            Elements::Scalar(Scalar::I64(x)) => x as f64,
            Elements::Scalar(Scalar::U64(x)) => x as f64,
            _ => f64::from(self.f32(i)),
        }
    }

    #[inline]
    pub(super) fn i64(self, i: usize) -> i64 {
        match self {
            Elements::I64(x) => x[i],
            Elements::U64(x) => x[i] as i64,
            Elements::F32(x) => x[i] as i64,
            Elements::F64(x) => x[i] as i64,
            Elements::Bool(x) => i64::from(x[i]),
            Elements::Scalar(Scalar::I64(x)) => x,
            Elements::Scalar(Scalar::U64(x)) => x as i64,
            Elements::Scalar(Scalar::F32(x)) => x as i64,
            Elements::Scalar(Scalar::F64(x)) => x as i64,
            Elements::Scalar(Scalar::Bool(x)) => i64::from(x),
        }
    }

    /// Integers modulo their width.
    #[inline]
    pub(super) fn u64(self, i: usize) -> u64 {
        match self {
            Elements::U64(x) => x[i],
            Elements::Scalar(Scalar::U64(x)) => x,
            _ => self.i64(i) as u64,
        }
    }

    /// Integers as they are.
    #[inline]
    pub(super) fn integer(self, i: usize) -> i128 {
        match self.class() {
            Class::U64 => self.u64(i).into(),
            _ => self.i64(i).into(),
        }
    }

    #[inline]
    pub(super) fn bool(self, i: usize) -> bool {
        match self {
            Elements::Bool(x) => x[i] != 0,
            Elements::F32(x) => x[i] != 0.0,
            Elements::F64(x) => x[i] != 0.0,
            Elements::I64(x) => x[i] != 0,
            Elements::U64(x) => x[i] != 0,
            Elements::Scalar(Scalar::Bool(x)) => x,
            Elements::Scalar(Scalar::F32(x)) => x != 0.0,
            Elements::Scalar(Scalar::F64(x)) => x != 0.0,
            Elements::Scalar(Scalar::I64(x)) => x != 0,
            Elements::Scalar(Scalar::U64(x)) => x != 0,
        }
    }
}

impl ElementsMut<'_> {
    /// `n` of the elements, from `start` on.
    pub(super) fn part(&self, start: usize, n: usize) -> Elements<'_> {
        match self {
            Self::F32(x) => Elements::F32(&x[start..][..n]),
            Self::F64(x) => Elements::F64(&x[start..][..n]),
            Self::I64(x) => Elements::I64(&x[start..][..n]),
            Self::U64(x) => Elements::U64(&x[start..][..n]),
            Self::Bool(x) => Elements::Bool(&x[start..][..n]),
        }
    }

    /// Writes a block from `start` on.
    pub(super) fn set(&mut self, start: usize, block: Elements<'_>, n: usize) {
        macro_rules! write {
            ($to:expr, $get:ident, $convert:expr) => {{
                let target = $to[start..][..n].iter_mut().enumerate();
                target.for_each(|(i, y)| *y = $convert(block.$get(i)));
            }};
        }
        match (self, block) {
            (Self::F32(y), Elements::F32(x)) => y[start..][..n].copy_from_slice(x),
            (Self::F32(y), _) => write!(y, f32, |x| x),
            (Self::F64(y), _) => write!(y, f64, |x| x),
            (Self::I64(y), _) => write!(y, i64, |x| x),
            (Self::U64(y), _) => write!(y, u64, |x| x),
            (Self::Bool(y), _) => write!(y, bool, u8::from),
        }
    }
}

impl Registers {
    /// Makes sure of so many blocks of each class.
    pub(super) fn fit(&mut self, counts: [usize; 5]) {
        fn fit<T: Clone + Default>(blocks: &mut Vec<Vec<T>>, count: usize) {
            (0..count).for_each(|index| fit_one(blocks, index));
        }
        let [f32, f64, i64, u64, bool] = counts;
        fit(&mut self.f32, f32);
        fit(&mut self.f64, f64);
        fit(&mut self.i64, i64);
        fit(&mut self.u64, u64);
        fit(&mut self.bool, bool);
        self.quantised.resize(BLOCK, 0.0);
    }

    /// Makes sure of a block of this number in a class.
    pub(super) fn fit_block(&mut self, Register { class, index }: Register) {
        match class {
            Class::F32 => fit_one(&mut self.f32, index),
            Class::F64 => fit_one(&mut self.f64, index),
            Class::I64 => fit_one(&mut self.i64, index),
            Class::U64 => fit_one(&mut self.u64, index),
            Class::Bool => fit_one(&mut self.bool, index),
        }
    }

    pub(super) fn block(&self, Register { class, index }: Register, n: usize) -> Elements<'_> {
        match class {
            Class::F32 => Elements::F32(&self.f32[index][..n]),
            Class::F64 => Elements::F64(&self.f64[index][..n]),
            Class::I64 => Elements::I64(&self.i64[index][..n]),
            Class::U64 => Elements::U64(&self.u64[index][..n]),
            Class::Bool => Elements::Bool(&self.bool[index][..n]),
        }
    }

    /// Reads a run of elements into part of a register, converted to its class.
    pub(super) fn gather(
        &mut self,
        Register { class, index }: Register,
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
            DType::I8 if class == Class::F32 => run!(f32, i8, f32::from),
            DType::U8 if class == Class::F32 => run!(f32, u8, f32::from),
            DType::I16 if class == Class::F32 => run!(f32, i16, f32::from),
            DType::U16 if class == Class::F32 => run!(f32, u16, f32::from),
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
            DType::U64 => run!(u64, u64, |x| x),
            DType::I4 | DType::U4 | DType::I2 | DType::U2 => {
                run!(i64, u8, |x| packed(dtype, i64::from(x)))
            }
            DType::Bool => run!(bool, u8, |x| u8::from(x != 0)),
            // `Class::of` refuses the others when the loop is compiled.
            _ => {}
        }
    }

    /// Copies elements into part of a register, converted to its class.
    pub(super) fn copy(
        &mut self,
        Register { class, index }: Register,
        from: Elements<'_>,
        to: std::ops::Range<usize>,
    ) {
        let (start, n) = (to.start, to.len());
        match (class, from) {
            (Class::F32, Elements::Scalar(x)) => {
                self.f32[index][to].fill(Elements::Scalar(x).f32(0))
            }
            (Class::F32, x) => ElementsMut::F32(&mut self.f32[index]).set(start, x, n),
            (Class::F64, x) => ElementsMut::F64(&mut self.f64[index]).set(start, x, n),
            (Class::I64, x) => ElementsMut::I64(&mut self.i64[index]).set(start, x, n),
            (Class::U64, x) => ElementsMut::U64(&mut self.u64[index]).set(start, x, n),
            (Class::Bool, x) => ElementsMut::Bool(&mut self.bool[index]).set(start, x, n),
        }
    }
}

fn fit_one<T: Clone + Default>(blocks: &mut Vec<Vec<T>>, index: usize) {
    if blocks.len() <= index {
        blocks.resize(index + 1, Vec::new());
    }
    if blocks[index].is_empty() {
        blocks[index].resize(BLOCK, T::default());
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
            map(target, source, convert);
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

/// A number of -128 to 255 as a byte, without its fraction; zero for what is none.
#[inline(always)]
pub(super) fn byte(x: f32) -> u8 {
    /// 1.5 · 2²³: the last bits of a sum with it are those of the whole number.
    const WHOLE: f32 = 12_582_912.0;
    ((if x.is_nan() { 0.0 } else { x.trunc() }) + WHOLE).to_bits() as u8
}

/// Writes a block in its type.
pub(super) fn store(dtype: DType, block: Elements<'_>, bytes: &mut [u8]) {
    macro_rules! write {
        ($ty:ty, $get:ident, $convert:expr) => {{
            let target = typed_mut::<$ty>(bytes);
            target.iter_mut().enumerate().for_each(|(i, y)| *y = $convert(block.$get(i)));
        }};
    }
    macro_rules! integers {
        ($ty:ty) => {
            match block {
                Elements::I64(x) => map(typed_mut(bytes), x, |x| x as $ty),
                // Held in single precision, which they are within.
                Elements::F32(x) if size_of::<$ty>() == 1 => map(bytes, x, byte),
                Elements::F32(x) => map(typed_mut(bytes), x, |x| x as $ty),
                _ => write!($ty, i64, |x| x as $ty),
            }
        };
    }
    match dtype {
        DType::F32 => match block {
            Elements::F32(x) => typed_mut(bytes).copy_from_slice(x),
            _ => write!(f32, f32, |x| x),
        },
        DType::F16 => write!(f16, f32, f16::from_f32),
        DType::BF16 => write!(bf16, f32, bf16::from_f32),
        DType::F64 => write!(f64, f64, |x| x),
        DType::I8 => integers!(i8),
        DType::I16 => integers!(i16),
        DType::I32 => integers!(i32),
        DType::I64 => write!(i64, i64, |x| x),
        DType::U8 => integers!(u8),
        DType::U16 => integers!(u16),
        DType::U32 => integers!(u32),
        DType::U64 => write!(u64, u64, |x| x),
        DType::I4 | DType::U4 | DType::I2 | DType::U2 => write!(u8, i64, |x| x as u8),
        DType::Bool => write!(u8, bool, u8::from),
        _ => {}
    }
}

pub(super) fn typed<T: bytemuck::Pod>(bytes: &[u8]) -> &[T] {
    bytemuck::cast_slice(bytes)
}

pub(super) fn typed_mut<T: bytemuck::Pod>(bytes: &mut [u8]) -> &mut [T] {
    bytemuck::cast_slice_mut(bytes)
}
