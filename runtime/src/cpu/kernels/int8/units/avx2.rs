//! Dot products of bytes and their epilogue by AVX2, of whose vectors two have 16 numbers.

use super::unsplit::Multiplies;
use super::{Dots, Finish, LANES, Line, Sums, Vectors, Words, Work};
use crate::cpu::kernels::table::Table;
use bytemuck::Zeroable;
use pulp::x86::V3;
use std::arch::x86_64::{
    __m128i, __m256, __m256i, _CMP_ORD_Q, _MM_FROUND_NO_EXC, _MM_FROUND_TO_NEAREST_INT,
};

/// Works with its instructions, dot products being computed in this way.
pub(super) fn run(v3: V3, work: impl Work, dots: impl Dots) {
    v3.vectorize(WithAvx2(work, dots));
}

struct WithAvx2<W, D>(W, D);

impl<W: Work, D: Dots> pulp::NullaryFnOnce for WithAvx2<W, D> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        self.0.run(self.1);
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

/// Words of a row that are split at a time.
const SPLIT: usize = 256;

/// Bytes of -128 to 127 as their magnitudes, and all bits of those that are negative.
#[inline(always)]
fn split(v3: V3, bytes: __m256i) -> [__m256i; 2] {
    [v3.avx2._mm256_abs_epi8(bytes), v3.avx2._mm256_cmpgt_epi8(__m256i::zeroed(), bytes)]
}

/// Adds up the magnitudes of eight bytes at a time, of the negative ones alone.
#[inline(always)]
fn add_negative(v3: V3, totals: &mut __m256i, [magnitudes, negative]: [__m256i; 2]) {
    let own = v3.avx2._mm256_and_si256(magnitudes, negative);
    let eights = v3.avx2._mm256_sad_epu8(own, __m256i::zeroed());
    *totals = v3.avx2._mm256_add_epi64(*totals, eights);
}

/// Words of a row apart: the magnitudes of its bytes less 128, and all bits of those that are negative. Each is broadcast from
/// memory.
struct Split {
    magnitudes: [u32; SPLIT],
    negative: [u32; SPLIT],
}

impl Split {
    /// Splits at most so many words; gives the sum of the negative ones' magnitudes.
    #[inline(always)]
    fn fill(&mut self, v3: V3, words: &[u32]) -> i32 {
        let (eights, rest) = words.as_chunks::<8>();
        // What fills up the last ones stands for zero.
        let mut last = [0x8080_8080; 8];
        last[..rest.len()].copy_from_slice(rest);
        let (magnitudes, _) = self.magnitudes.as_chunks_mut::<8>();
        let (negative, _) = self.negative.as_chunks_mut::<8>();
        let mut totals = __m256i::zeroed();
        let own = eights.iter().chain([&last]).zip(magnitudes.iter_mut().zip(negative));
        for (&own, (magnitudes, negative)) in own {
            let least = v3.avx._mm256_set1_epi8(i8::MIN);
            let bytes = v3.avx2._mm256_xor_si256(bytemuck::cast(own), least);
            let both = split(v3, bytes);
            add_negative(v3, &mut totals, both);
            [*magnitudes, *negative] = both.map(bytemuck::cast);
        }
        let totals: [i64; 4] = bytemuck::cast(totals);
        totals.iter().sum::<i64>() as i32
    }
}

/// `pmaddubsw` multiplies bytes of 0 to 255 by bytes of -128 to 127, and cuts sums of two to 16 bits. So one side is taken by its
/// magnitudes, of at most 128, and where it is negative the other is negated: `x·y = |x|·(-1 - y) + |x|`, for `-1 - y` is a byte
/// where -128 has no negative. What is left to add, the magnitudes of negative bytes, is the same for all sums of a row. Two
/// terms are from -2·128·128 to 2·128·127, which 16 bits hold.
impl Dots for V3 {
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
        let Self { avx, avx2, .. } = self;
        let mut own = Split { magnitudes: [0; SPLIT], negative: [0; SPLIT] };
        for (row, to) in rows.iter().zip(to) {
            assert_eq!(row.len(), panel.len(), "rows are as long as a panel is deep");
            let mut sums = [[__m256i::zeroed(); 2]; V];
            for (row, panel) in row.chunks(SPLIT).zip(panel.chunks(SPLIT)) {
                let negative = avx._mm256_set1_epi32(own.fill(self, row));
                for sum in sums.as_flattened_mut() {
                    *sum = avx2._mm256_add_epi32(*sum, negative);
                }
                let words = own.magnitudes.iter().zip(&own.negative);
                for ((&magnitudes, &negative), lines) in words.zip(panel) {
                    let magnitudes = avx._mm256_set1_epi32(magnitudes as i32);
                    let negative = avx._mm256_set1_epi32(negative as i32);
                    let lines = lines.map(bytemuck::cast::<Line, [__m256i; 2]>);
                    for (&b, sum) in lines.as_flattened().iter().zip(sums.as_flattened_mut()) {
                        let b = avx2._mm256_xor_si256(b, negative);
                        *sum = self.add_terms(*sum, magnitudes, b);
                    }
                }
            }
            *to = sums.map(bytemuck::cast);
        }
    }

    /// Column by column, of whose bytes the magnitudes are taken.
    #[inline(always)]
    fn turned<const H: usize, const W: usize>(
        self,
        columns: Words<'_>,
        panel: &[[Line; W]],
        to: &mut [[[i32; LANES]; W]; H],
    ) {
        let Self { avx, avx2, .. } = self;
        for (column, to) in to.iter_mut().enumerate() {
            let mut sums = [[__m256i::zeroed(); 2]; W];
            let mut totals = __m256i::zeroed();
            for (lines, words) in panel.iter().zip(columns.rows::<H>()) {
                let b = split(self, avx._mm256_set1_epi32(words[column] as i32));
                add_negative(self, &mut totals, b);
                let [magnitudes, negative] = b;
                // Less 128, and negated.
                let turned = avx2._mm256_xor_si256(negative, avx._mm256_set1_epi8(i8::MIN));
                let lines = lines.map(bytemuck::cast::<Line, [__m256i; 2]>);
                for (&a, sum) in lines.as_flattened().iter().zip(sums.as_flattened_mut()) {
                    *sum = self.add_terms(*sum, magnitudes, avx2._mm256_xor_si256(a, turned));
                }
            }
            // All eights are the same word twice.
            let [total, ..]: [i64; 4] = bytemuck::cast(totals);
            let negative = avx._mm256_set1_epi32((total / 2) as i32);
            for sum in sums.as_flattened_mut() {
                *sum = avx2._mm256_add_epi32(*sum, negative);
            }
            *to = sums.map(bytemuck::cast);
        }
    }

    fn finish(self, finish: &mut Finish<'_>, sums: &Sums<'_>) {
        self.vectorize(FinishWithAvx2(self, finish, sums));
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
