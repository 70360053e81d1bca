//! Elements that kernels compute with in f32.

use super::matmul::Half;
use half::{bf16, f16};

/// A float of at most 32 bits.
pub trait Real: Copy + Default + Send + Sync + bytemuck::Pod {
    /// The number in f32, exactly.
    fn to_f32(self) -> f32;
    /// The nearest number, ties to even.
    fn from_f32(x: f32) -> Self;
    /// The elements themselves, if they are f32.
    fn as_f32(elements: &[Self]) -> Option<&[f32]>;
    /// `dst[i] = src[i]`, exactly.
    fn widen(dst: &mut [f32], src: &[Self]);
    /// `dst[i] = src[i]`, rounded to the nearest, ties to even.
    fn narrow(dst: &mut [Self], src: &[f32]);
}

impl Real for f32 {
    #[inline(always)]
    fn to_f32(self) -> f32 {
        self
    }

    #[inline(always)]
    fn from_f32(x: f32) -> Self {
        x
    }

    #[inline(always)]
    fn as_f32(elements: &[Self]) -> Option<&[f32]> {
        Some(elements)
    }

    #[inline(always)]
    fn widen(dst: &mut [f32], src: &[Self]) {
        dst.iter_mut().zip(src).for_each(|(y, &x)| *y = x);
    }

    #[inline(always)]
    fn narrow(dst: &mut [Self], src: &[f32]) {
        dst.iter_mut().zip(src).for_each(|(y, &x)| *y = x);
    }
}

macro_rules! half_types {
    ($($type:ident),*) => {$(
        impl Real for $type {
            #[inline(always)]
            fn to_f32(self) -> f32 {
                $type::to_f32(self)
            }

            #[inline(always)]
            fn from_f32(x: f32) -> Self {
                $type::from_f32(x)
            }

            #[inline(always)]
            fn as_f32(_: &[Self]) -> Option<&[f32]> {
                None
            }

            fn widen(dst: &mut [f32], src: &[Self]) {
                Half::widen(dst, src);
            }

            fn narrow(dst: &mut [Self], src: &[f32]) {
                Half::narrow(dst, src);
            }
        }
    )*};
}

half_types!(f16, bf16);
