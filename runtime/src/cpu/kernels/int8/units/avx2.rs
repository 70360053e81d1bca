//! Dot products of bytes and their epilogue by AVX2, of whose vectors two have 16 numbers.

use super::{Dots, Finish, LANES, Line, Sums, Vectors, Words, Work};
use crate::cpu::kernels::table::Table;
use bytemuck::Zeroable;
use pulp::x86::V3;
use std::arch::x86_64::{
    __m128i, __m256, __m256i, _CMP_ORD_Q, _MM_FROUND_NO_EXC, _MM_FROUND_TO_NEAREST_INT,
};

/// Works with the instructions that are best for its B.
pub(super) fn run(v3: V3, work: impl Work) {
    if work.has_magnitudes() {
        v3.vectorize(WithAvx2(Magnitudes(v3), work));
    } else {
        v3.vectorize(WithAvx2(v3, work));
    }
}

struct WithAvx2<D, W>(D, W);

impl<D: Dots, W: Work> pulp::NullaryFnOnce for WithAvx2<D, W> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        self.1.run(self.0);
    }
}

struct FinishWithAvx2<'a, 'b, 'c>(V3, &'a mut Finish<'b>, &'a Sums<'c>);

impl pulp::NullaryFnOnce for FinishWithAvx2<'_, '_, '_> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        self.1.store(self.0, self.2);
    }
}

impl Dots for V3 {
    const ROWS: usize = 2;

    /// By multiply-adds of 16 bits, of which a column has two sums: those of bytes may be more than 16 bits hold.
    #[inline(always)]
    fn dots<const H: usize, const V: usize>(
        self,
        rows: [&[u32]; H],
        panel: &[[Line; V]],
        to: &mut [[[i32; LANES]; V]; H],
    ) {
        for v in 0..V {
            let mut sums = [[__m256i::zeroed(); 4]; H];
            for (k, lines) in panel.iter().enumerate() {
                let parts: [__m128i; 4] = bytemuck::cast(lines[v]);
                let a = rows.map(|row| {
                    self.avx2._mm256_cvtepu8_epi16(self.sse2._mm_set1_epi32(row[k] as i32))
                });
                for (part, place) in parts.into_iter().zip(0..) {
                    let b = self.avx2._mm256_cvtepi8_epi16(part);
                    for (a, sums) in a.iter().zip(&mut sums) {
                        let sum: &mut __m256i = &mut sums[place];
                        let both = self.avx2._mm256_madd_epi16(*a, b);
                        *sum = self.avx2._mm256_add_epi32(*sum, both);
                    }
                }
            }
            for (sums, to) in sums.iter().zip(to.iter_mut()) {
                let pairs: [[i32; 2]; LANES] = bytemuck::cast(*sums);
                to[v] = pairs.map(|[a, b]| a.wrapping_add(b));
            }
        }
    }

    #[inline(always)]
    fn turned<const H: usize, const W: usize>(
        self,
        columns: Words<'_>,
        panel: &[[Line; W]],
        to: &mut [[[i32; LANES]; W]; H],
    ) {
        for w in 0..W {
            let mut sums = [[__m256i::zeroed(); 4]; H];
            for (lines, words) in panel.iter().zip(columns.rows::<H>()) {
                let parts: [__m128i; 4] = bytemuck::cast(lines[w]);
                let b = words.map(|word| {
                    self.avx2._mm256_cvtepi8_epi16(self.sse2._mm_set1_epi32(word as i32))
                });
                for (part, place) in parts.into_iter().zip(0..) {
                    let a = self.avx2._mm256_cvtepu8_epi16(part);
                    for (b, sums) in b.iter().zip(&mut sums) {
                        let sum: &mut __m256i = &mut sums[place];
                        let both = self.avx2._mm256_madd_epi16(a, *b);
                        *sum = self.avx2._mm256_add_epi32(*sum, both);
                    }
                }
            }
            for (sums, to) in sums.iter().zip(to.iter_mut()) {
                let pairs: [[i32; 2]; LANES] = bytemuck::cast(*sums);
                to[w] = pairs.map(|[a, b]| a.wrapping_add(b));
            }
        }
    }

    fn finish(self, finish: &mut Finish<'_>, sums: &Sums<'_>) {
        self.vectorize(FinishWithAvx2(self, finish, sums));
    }
}

/// AVX2 for a B without -128. Of a byte of A less 128, the magnitude is multiplied by the byte of B, which is negated if that of A
/// was negative: -128 has no negative. Two terms are at most 2 · 128 · 127, which 16 bits hold.
#[derive(Clone, Copy)]
struct Magnitudes(V3);

impl Magnitudes {
    /// Bytes of 0 to 255 less 128, and their magnitudes.
    #[inline(always)]
    fn split(self, bytes: __m256i) -> [__m256i; 2] {
        let Self(V3 { avx, avx2, .. }) = self;
        let signed = avx2._mm256_xor_si256(bytes, avx._mm256_set1_epi8(-128));
        [signed, avx2._mm256_abs_epi8(signed)]
    }

    /// Adds four terms to each of eight sums.
    #[inline(always)]
    fn add(self, sum: &mut __m256i, [signed, magnitudes]: [__m256i; 2], b: __m256i) {
        let Self(V3 { avx, avx2, .. }) = self;
        let pairs = avx2._mm256_maddubs_epi16(magnitudes, avx2._mm256_sign_epi8(b, signed));
        let fours = avx2._mm256_madd_epi16(pairs, avx._mm256_set1_epi16(1));
        *sum = avx2._mm256_add_epi32(*sum, fours);
    }
}

impl Dots for Magnitudes {
    const ROWS: usize = 8;
    const ZERO_POINT: i32 = 128;

    /// Row by row: six sums, two vectors of A and a temporary one fit into 16 registers.
    #[inline(always)]
    fn dots<const H: usize, const V: usize>(
        self,
        rows: [&[u32]; H],
        panel: &[[Line; V]],
        to: &mut [[[i32; LANES]; V]; H],
    ) {
        for (row, to) in rows.iter().zip(to) {
            assert_eq!(row.len(), panel.len(), "rows are as long as a panel is deep");
            let mut sums = [[__m256i::zeroed(); 2]; V];
            for (&word, lines) in row.iter().zip(panel) {
                let a = self.split(self.0.avx._mm256_set1_epi32(word as i32));
                let lines = lines.map(bytemuck::cast::<Line, [__m256i; 2]>);
                for (&b, sum) in lines.as_flattened().iter().zip(sums.as_flattened_mut()) {
                    self.add(sum, a, b);
                }
            }
            *to = sums.map(bytemuck::cast);
        }
    }

    /// Column by column, though the panel's bytes are split anew for each: sums of two columns would not fit.
    #[inline(always)]
    fn turned<const H: usize, const W: usize>(
        self,
        columns: Words<'_>,
        panel: &[[Line; W]],
        to: &mut [[[i32; LANES]; W]; H],
    ) {
        for (column, to) in to.iter_mut().enumerate() {
            let mut sums = [[__m256i::zeroed(); 2]; W];
            for (lines, words) in panel.iter().zip(columns.rows::<H>()) {
                let b = self.0.avx._mm256_set1_epi32(words[column] as i32);
                let lines = lines.map(bytemuck::cast::<Line, [__m256i; 2]>);
                for (&bytes, sum) in lines.as_flattened().iter().zip(sums.as_flattened_mut()) {
                    self.add(sum, self.split(bytes), b);
                }
            }
            *to = sums.map(bytemuck::cast);
        }
    }

    fn finish(self, finish: &mut Finish<'_>, sums: &Sums<'_>) {
        self.0.finish(finish, sums);
    }
}

/// The same of each vector and another.
#[inline(always)]
fn each(
    a: [__m256; 2],
    b: [__m256; 2],
    function: impl Fn(__m256, __m256) -> __m256,
) -> [__m256; 2] {
    [function(a[0], b[0]), function(a[1], b[1])]
}

impl Vectors for V3 {
    type Vector = [__m256; 2];

    #[inline(always)]
    fn of_sums(
        self,
        dots: &[i32; LANES],
        offset: i32,
        sums: &[i32; LANES],
        bias: &[i32; LANES],
    ) -> Self::Vector {
        let Self { avx, avx2, .. } = self;
        let [dots, sums, bias] = [dots, sums, bias].map(|&x| bytemuck::cast::<_, [__m256i; 2]>(x));
        let offset = avx._mm256_set1_epi32(offset);
        std::array::from_fn(|i| {
            let more = avx2._mm256_mullo_epi32(sums[i], offset);
            let sum = avx2._mm256_add_epi32(dots[i], avx2._mm256_add_epi32(bias[i], more));
            avx._mm256_cvtepi32_ps(sum)
        })
    }

    #[inline(always)]
    fn same(self, x: f32) -> Self::Vector {
        [self.avx._mm256_set1_ps(x); 2]
    }

    #[inline(always)]
    fn load(self, x: &[f32; LANES]) -> Self::Vector {
        bytemuck::cast(*x)
    }

    #[inline(always)]
    fn of_bytes(self, x: &[u8; LANES]) -> Self::Vector {
        let x: __m128i = bytemuck::cast(*x);
        [x, self.sse2._mm_srli_si128::<8>(x)]
            .map(|x| self.avx._mm256_cvtepi32_ps(self.avx2._mm256_cvtepu8_epi32(x)))
    }

    #[inline(always)]
    fn of_signed(self, x: &[u8; LANES]) -> Self::Vector {
        let x: __m128i = bytemuck::cast(*x);
        [x, self.sse2._mm_srli_si128::<8>(x)]
            .map(|x| self.avx._mm256_cvtepi32_ps(self.avx2._mm256_cvtepi8_epi32(x)))
    }

    #[inline(always)]
    fn add(self, a: Self::Vector, b: Self::Vector) -> Self::Vector {
        each(a, b, |a, b| self.avx._mm256_add_ps(a, b))
    }

    #[inline(always)]
    fn sub(self, a: Self::Vector, b: Self::Vector) -> Self::Vector {
        each(a, b, |a, b| self.avx._mm256_sub_ps(a, b))
    }

    #[inline(always)]
    fn mul(self, a: Self::Vector, b: Self::Vector) -> Self::Vector {
        each(a, b, |a, b| self.avx._mm256_mul_ps(a, b))
    }

    #[inline(always)]
    fn div(self, a: Self::Vector, b: Self::Vector) -> Self::Vector {
        each(a, b, |a, b| self.avx._mm256_div_ps(a, b))
    }

    // Of two that neither is less, or one is no number, these give the second.
    #[inline(always)]
    fn at_least(self, x: Self::Vector, low: Self::Vector) -> Self::Vector {
        each(low, x, |low, x| self.avx._mm256_max_ps(low, x))
    }

    #[inline(always)]
    fn number_from(self, x: Self::Vector, low: Self::Vector) -> Self::Vector {
        each(x, low, |x, low| self.avx._mm256_max_ps(x, low))
    }

    #[inline(always)]
    fn at_most(self, x: Self::Vector, high: Self::Vector) -> Self::Vector {
        each(high, x, |high, x| self.avx._mm256_min_ps(high, x))
    }

    #[inline(always)]
    fn round(self, x: Self::Vector) -> Self::Vector {
        const NEAREST: i32 = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
        x.map(|x| self.avx._mm256_round_ps::<NEAREST>(x))
    }

    /// As AVX-512's.
    #[inline(always)]
    fn quotient(self, x: Self::Vector, y: Self::Vector, r: Self::Vector) -> Self::Vector {
        let near = self.mul(x, r);
        let corrected = std::array::from_fn(|i| {
            let rest = self.fma._mm256_fnmadd_ps(near[i], y[i], x[i]);
            self.fma._mm256_fmadd_ps(rest, r[i], near[i])
        });
        self.round(corrected)
    }

    #[inline(always)]
    fn number(self, x: Self::Vector) -> Self::Vector {
        x.map(|x| self.avx._mm256_and_ps(self.avx._mm256_cmp_ps::<_CMP_ORD_Q>(x, x), x))
    }

    #[inline(always)]
    fn lookup(self, x: Self::Vector, table: &Table) -> Self::Vector {
        bytemuck::cast(self.bytes(x).map(|byte| table.reals()[usize::from(byte)]))
    }

    #[inline(always)]
    fn reals(self, x: Self::Vector) -> [f32; LANES] {
        bytemuck::cast(x)
    }

    #[inline(always)]
    fn bytes(self, x: Self::Vector) -> [u8; LANES] {
        let Self { sse2, avx, avx2, .. } = self;
        // What is no number becomes -2³¹, whose last bits are zero.
        let last = avx._mm256_set1_epi32(255);
        let [a, b] = x.map(|x| avx2._mm256_and_si256(avx._mm256_cvttps_epi32(x), last));
        // `packus` puts four words of b behind each four of a; the permutation puts all of a first.
        let words = avx2._mm256_permute4x64_epi64::<0b11_01_10_00>(avx2._mm256_packus_epi32(a, b));
        let [low, high]: [__m128i; 2] = bytemuck::cast(words);
        bytemuck::cast(sse2._mm_packus_epi16(low, high))
    }
}
