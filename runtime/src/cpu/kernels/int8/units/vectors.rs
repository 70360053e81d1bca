//! Vectors of 16 numbers in single precision, and what chains do with them.

#[cfg(target_arch = "x86_64")]
use super::Vnni;
use super::{LANES, Plain};
#[cfg(target_arch = "x86_64")]
use crate::cpu::kernels::table::Bytes;
use crate::cpu::kernels::table::Table;
#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::{
    __m512, __m512i, _CMP_ORD_Q, _MM_FROUND_NO_EXC, _MM_FROUND_TO_NEAREST_INT, _mm512_add_epi32,
    _mm512_add_ps, _mm512_and_si512, _mm512_cmp_ps_mask, _mm512_cmpgt_epi32_mask,
    _mm512_cvtepi8_epi32, _mm512_cvtepi32_epi8, _mm512_cvtepi32_ps, _mm512_cvtepu8_epi32,
    _mm512_cvttps_epi32, _mm512_div_ps, _mm512_fmadd_ps, _mm512_fnmadd_ps, _mm512_i32gather_ps,
    _mm512_mask_blend_epi32, _mm512_maskz_mov_ps, _mm512_max_ps, _mm512_min_ps, _mm512_mul_ps,
    _mm512_mullo_epi32, _mm512_permutex2var_epi32, _mm512_roundscale_ps, _mm512_set1_epi32,
    _mm512_set1_ps, _mm512_slli_epi32, _mm512_srli_epi32, _mm512_srlv_epi32, _mm512_sub_ps,
};

/// A unit's vectors. All functions must be `#[inline(always)]`.
pub(in super::super) trait Vectors: Copy {
    /// 16 numbers.
    type Vector: Copy;

    /// Dot products, with a number times the sums of their columns and a bias added modulo 2³².
    fn of_sums(
        self,
        dots: &[i32; LANES],
        offset: i32,
        sums: &[i32; LANES],
        bias: &[i32; LANES],
    ) -> Self::Vector;
    fn same(self, x: f32) -> Self::Vector;
    fn load(self, x: &[f32; LANES]) -> Self::Vector;
    fn of_bytes(self, x: &[u8; LANES]) -> Self::Vector;
    fn of_signed(self, x: &[u8; LANES]) -> Self::Vector;
    fn add(self, a: Self::Vector, b: Self::Vector) -> Self::Vector;
    fn sub(self, a: Self::Vector, b: Self::Vector) -> Self::Vector;
    fn mul(self, a: Self::Vector, b: Self::Vector) -> Self::Vector;
    fn div(self, a: Self::Vector, b: Self::Vector) -> Self::Vector;
    /// `x`, but where it is less than `low` that.
    fn at_least(self, x: Self::Vector, low: Self::Vector) -> Self::Vector;
    /// The same, and `low` where `x` is no number.
    fn number_from(self, x: Self::Vector, low: Self::Vector) -> Self::Vector;
    /// `x`, but where it is more than `high` that.
    fn at_most(self, x: Self::Vector, high: Self::Vector) -> Self::Vector;
    /// The nearest whole numbers, of two the even one.
    fn round(self, x: Self::Vector) -> Self::Vector;
    /// The whole number nearest to `x / y`, of two the even one; `r` is `1 / y`, and quotients are less than 2²⁰.
    fn quotient(self, x: Self::Vector, y: Self::Vector, r: Self::Vector) -> Self::Vector;
    /// Zero where `x` is no number.
    fn number(self, x: Self::Vector) -> Self::Vector;
    /// What a table has for bytes.
    fn lookup(self, x: Self::Vector, table: &Table) -> Self::Vector;
    fn reals(self, x: Self::Vector) -> [f32; LANES];
    /// The last bits of the whole parts of numbers from -128 to 255; zero for what is none.
    fn bytes(self, x: Self::Vector) -> [u8; LANES];
}

#[inline(always)]
fn each(a: [f32; LANES], b: [f32; LANES], function: impl Fn(f32, f32) -> f32) -> [f32; LANES] {
    std::array::from_fn(|i| function(a[i], b[i]))
}

/// What the compiler makes of plain loops.
impl Vectors for Plain {
    type Vector = [f32; LANES];

    #[inline(always)]
    fn of_sums(
        self,
        dots: &[i32; LANES],
        offset: i32,
        sums: &[i32; LANES],
        bias: &[i32; LANES],
    ) -> Self::Vector {
        std::array::from_fn(|i| {
            let more = bias[i].wrapping_add(offset.wrapping_mul(sums[i]));
            dots[i].wrapping_add(more) as f32
        })
    }

    #[inline(always)]
    fn same(self, x: f32) -> Self::Vector {
        [x; LANES]
    }

    #[inline(always)]
    fn load(self, x: &[f32; LANES]) -> Self::Vector {
        *x
    }

    #[inline(always)]
    fn of_bytes(self, x: &[u8; LANES]) -> Self::Vector {
        x.map(f32::from)
    }

    #[inline(always)]
    fn of_signed(self, x: &[u8; LANES]) -> Self::Vector {
        x.map(|x| f32::from(x as i8))
    }

    #[inline(always)]
    fn add(self, a: Self::Vector, b: Self::Vector) -> Self::Vector {
        each(a, b, |a, b| a + b)
    }

    #[inline(always)]
    fn sub(self, a: Self::Vector, b: Self::Vector) -> Self::Vector {
        each(a, b, |a, b| a - b)
    }

    #[inline(always)]
    fn mul(self, a: Self::Vector, b: Self::Vector) -> Self::Vector {
        each(a, b, |a, b| a * b)
    }

    #[inline(always)]
    fn div(self, a: Self::Vector, b: Self::Vector) -> Self::Vector {
        each(a, b, |a, b| a / b)
    }

    #[inline(always)]
    fn at_least(self, x: Self::Vector, low: Self::Vector) -> Self::Vector {
        each(x, low, |x, low| if x < low { low } else { x })
    }

    #[inline(always)]
    fn number_from(self, x: Self::Vector, low: Self::Vector) -> Self::Vector {
        each(x, low, |x, low| if x > low { x } else { low })
    }

    #[inline(always)]
    fn at_most(self, x: Self::Vector, high: Self::Vector) -> Self::Vector {
        each(x, high, |x, high| if x > high { high } else { x })
    }

    #[inline(always)]
    fn round(self, x: Self::Vector) -> Self::Vector {
        x.map(f32::round_ties_even)
    }

    #[inline(always)]
    fn quotient(self, x: Self::Vector, y: Self::Vector, _: Self::Vector) -> Self::Vector {
        self.round(self.div(x, y))
    }

    #[inline(always)]
    fn number(self, x: Self::Vector) -> Self::Vector {
        x.map(|x| if x.is_nan() { 0.0 } else { x })
    }

    #[inline(always)]
    fn lookup(self, x: Self::Vector, table: &Table) -> Self::Vector {
        x.map(|x| table.of(x))
    }

    #[inline(always)]
    fn reals(self, x: Self::Vector) -> [f32; LANES] {
        x
    }

    #[inline(always)]
    fn bytes(self, x: Self::Vector) -> [u8; LANES] {
        x.map(|x| x as i32 as u8)
    }
}

/// One instruction each.
#[cfg(target_arch = "x86_64")]
macro_rules! instructions {
    ($($name:ident($($x:ident),+) = $instruction:expr;)+) => {
        $(
            #[inline(always)]
            fn $name(self, $($x: __m512),+) -> __m512 {
                // SAFETY: the machine has AVX-512, as the unit proves.
                unsafe { $instruction }
            }
        )+
    };
}

#[cfg(target_arch = "x86_64")]
impl Vectors for Vnni {
    type Vector = __m512;

    #[inline(always)]
    fn of_sums(
        self,
        dots: &[i32; LANES],
        offset: i32,
        sums: &[i32; LANES],
        bias: &[i32; LANES],
    ) -> __m512 {
        let (dots, sums): (__m512i, __m512i) = (bytemuck::cast(*dots), bytemuck::cast(*sums));
        let bias: __m512i = bytemuck::cast(*bias);
        // SAFETY: the machine has AVX-512, as the unit proves.
        unsafe {
            let more = _mm512_mullo_epi32(sums, _mm512_set1_epi32(offset));
            _mm512_cvtepi32_ps(_mm512_add_epi32(dots, _mm512_add_epi32(bias, more)))
        }
    }

    #[inline(always)]
    fn same(self, x: f32) -> __m512 {
        // SAFETY: likewise.
        unsafe { _mm512_set1_ps(x) }
    }

    #[inline(always)]
    fn load(self, x: &[f32; LANES]) -> __m512 {
        bytemuck::cast(*x)
    }

    #[inline(always)]
    fn of_bytes(self, x: &[u8; LANES]) -> __m512 {
        // SAFETY: likewise.
        unsafe { _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(bytemuck::cast(*x))) }
    }

    #[inline(always)]
    fn of_signed(self, x: &[u8; LANES]) -> __m512 {
        // SAFETY: likewise.
        unsafe { _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytemuck::cast(*x))) }
    }

    instructions! {
        add(a, b) = _mm512_add_ps(a, b);
        sub(a, b) = _mm512_sub_ps(a, b);
        mul(a, b) = _mm512_mul_ps(a, b);
        div(a, b) = _mm512_div_ps(a, b);
        // Of two that neither is less, or one is no number, they give the second.
        at_least(x, low) = _mm512_max_ps(low, x);
        number_from(x, low) = _mm512_max_ps(x, low);
        at_most(x, high) = _mm512_min_ps(high, x);
        round(x) = _mm512_roundscale_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(x);
        number(x) = _mm512_maskz_mov_ps(_mm512_cmp_ps_mask::<_CMP_ORD_Q>(x, x), x);
    }

    /// A quotient by the reciprocal, corrected once by its remainder, which a fused multiply-add has exactly: as Markstein's
    /// division. A test compares whole numbers beside those of divisions.
    #[inline(always)]
    fn quotient(self, x: __m512, y: __m512, r: __m512) -> __m512 {
        let near = self.mul(x, r);
        // SAFETY: likewise.
        let corrected = unsafe { _mm512_fmadd_ps(_mm512_fnmadd_ps(near, y, x), r, near) };
        self.round(corrected)
    }

    /// Of bytes: `vpermi2d` finds a word among 32 by bits 2 to 6 of a byte; bit 7 says among which 32, bits 0 and 1 which byte
    /// of the word it is.
    #[inline(always)]
    fn lookup(self, x: __m512, table: &Table) -> __m512 {
        // SAFETY: likewise; what is gathered has places from 0 to 255 in a table of 256.
        unsafe {
            let byte = _mm512_and_si512(_mm512_cvttps_epi32(x), _mm512_set1_epi32(255));
            let Some(Bytes { least, words }) = table.bytes() else {
                return _mm512_i32gather_ps::<4>(byte, table.reals().as_ptr());
            };
            let [a, b, c, d]: [__m512i; 4] = bytemuck::cast(*words);
            let at = _mm512_srli_epi32::<2>(byte);
            let low = _mm512_permutex2var_epi32(a, at, b);
            let high = _mm512_permutex2var_epi32(c, at, d);
            let is_high = _mm512_cmpgt_epi32_mask(byte, _mm512_set1_epi32(127));
            let word = _mm512_mask_blend_epi32(is_high, low, high);
            let bits = _mm512_and_si512(_mm512_slli_epi32::<3>(byte), _mm512_set1_epi32(24));
            let found = _mm512_and_si512(_mm512_srlv_epi32(word, bits), _mm512_set1_epi32(255));
            _mm512_add_ps(_mm512_cvtepi32_ps(found), _mm512_set1_ps(*least))
        }
    }

    #[inline(always)]
    fn reals(self, x: __m512) -> [f32; LANES] {
        bytemuck::cast(x)
    }

    #[inline(always)]
    fn bytes(self, x: __m512) -> [u8; LANES] {
        // What is no number becomes -2³¹, whose last bits are zero.
        // SAFETY: likewise.
        unsafe { bytemuck::cast(_mm512_cvtepi32_epi8(_mm512_cvttps_epi32(x))) }
    }
}
