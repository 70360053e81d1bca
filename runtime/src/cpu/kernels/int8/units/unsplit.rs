//! Dot products of bytes by vectors of AVX2 that multiply them as they are: by AVX-VNNI, which machines have that lack AVX-512,
//! or by AVX2 alone, where 16 bits hold the sums of two products.

use super::{Dots, Finish, LANES, Line, Sums, Words, Work};
use bytemuck::Zeroable;
use pulp::x86::V3;
use std::arch::x86_64::{__m256i, _mm256_dpbusd_avx_epi32};

/// Instructions that multiply bytes. All functions must be `#[inline(always)]`.
pub(super) trait Multiplies: Copy {
    /// Whether two rows are summed at a time, because the sums of one are too few to hide how long an instruction takes.
    const BY_TWOS: bool;

    fn vectors(self) -> V3;

    /// Adds four terms to each of eight sums: of the bytes from 0 to 255 in `a` and those from -128 to 127 in `b`.
    fn add_terms(self, sum: __m256i, a: __m256i, b: __m256i) -> __m256i;
}

/// Proof that the machine has AVX-VNNI, and AVX2.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct AvxVnni(V3);

impl AvxVnni {
    pub(super) fn new() -> Option<Self> {
        V3::try_new().filter(|_| is_x86_feature_detected!("avxvnni")).map(Self)
    }

    pub(super) fn run(self, work: impl Work) {
        #[target_feature(enable = "avx2,bmi1,bmi2,f16c,fma,lzcnt,movbe,popcnt,avxvnni")]
        fn run(unit: AvxVnni, work: impl Work) {
            work.run(Unsplit(unit));
        }
        // SAFETY: the machine has these, as `new` found.
        unsafe { run(self, work) }
    }
}

impl Multiplies for AvxVnni {
    const BY_TWOS: bool = true;

    #[inline(always)]
    fn vectors(self) -> V3 {
        self.0
    }

    #[inline(always)]
    fn add_terms(self, sum: __m256i, a: __m256i, b: __m256i) -> __m256i {
        // SAFETY: the machine has AVX-VNNI, as `new` found.
        unsafe { _mm256_dpbusd_avx_epi32(sum, a, b) }
    }
}

/// By `pmaddubsw`, which cuts the sums of two products to 16 bits.
impl Multiplies for V3 {
    const BY_TWOS: bool = false;

    #[inline(always)]
    fn vectors(self) -> V3 {
        self
    }

    #[inline(always)]
    fn add_terms(self, sum: __m256i, a: __m256i, b: __m256i) -> __m256i {
        let pairs = self.avx2._mm256_maddubs_epi16(a, b);
        let fours = self.avx2._mm256_madd_epi16(pairs, self.avx._mm256_set1_epi16(1));
        self.avx2._mm256_add_epi32(sum, fours)
    }
}

/// Multiplies bytes as they are.
#[derive(Clone, Copy)]
pub(super) struct Unsplit<M>(pub(super) M);

impl<M: Multiplies> Unsplit<M> {
    /// The sums of so few rows that all are in registers. A vector of the panel is multiplied for all rows before the next one,
    /// for which there is no register, is read.
    #[inline(always)]
    fn few<const H: usize, const V: usize>(
        self,
        rows: [&[u32]; H],
        panel: &[[Line; V]],
        to: &mut [[[i32; LANES]; V]],
    ) {
        let V3 { avx, .. } = self.0.vectors();
        let rows = rows.map(|row| &row[..panel.len()]);
        let mut sums = [[[__m256i::zeroed(); H]; 2]; V];
        for (k, lines) in panel.iter().enumerate() {
            let a = rows.map(|row| avx._mm256_set1_epi32(row[k] as i32));
            for (line, sums) in lines.iter().zip(&mut sums) {
                let vectors: [__m256i; 2] = bytemuck::cast(*line);
                for (b, sums) in vectors.into_iter().zip(sums) {
                    for (sum, a) in sums.iter_mut().zip(a) {
                        *sum = self.0.add_terms(*sum, a, b);
                    }
                }
            }
        }
        for (i, to) in to.iter_mut().enumerate() {
            *to = sums.map(|line| bytemuck::cast(line.map(|sums| sums[i])));
        }
    }
}

impl<M: Multiplies> Dots for Unsplit<M> {
    const ROWS: usize = 8;

    /// Six sums, a broadcast word and two temporary vectors fit into 16 registers; so do twelve sums of two rows and what
    /// AVX-VNNI needs.
    #[inline(always)]
    fn dots<const H: usize, const V: usize>(
        self,
        rows: [&[u32]; H],
        panel: &[[Line; V]],
        to: &mut [[[i32; LANES]; V]; H],
    ) {
        let by_twos = if M::BY_TWOS { H / 2 * 2 } else { 0 };
        let ((twos, _), ones) = (rows[..by_twos].as_chunks::<2>(), &rows[by_twos..]);
        let (to_twos, to_ones) = to.split_at_mut(by_twos);
        for (&rows, to) in twos.iter().zip(to_twos.as_chunks_mut::<2>().0) {
            self.few(rows, panel, to);
        }
        for (&row, to) in ones.iter().zip(to_ones) {
            self.few([row], panel, std::array::from_mut(to));
        }
    }

    /// Column by column.
    #[inline(always)]
    fn turned<const H: usize, const W: usize>(
        self,
        columns: Words<'_>,
        panel: &[[Line; W]],
        to: &mut [[[i32; LANES]; W]; H],
    ) {
        let V3 { avx, .. } = self.0.vectors();
        for (column, to) in to.iter_mut().enumerate() {
            let mut sums = [[__m256i::zeroed(); 2]; W];
            for (lines, words) in panel.iter().zip(columns.rows::<H>()) {
                let b = avx._mm256_set1_epi32(words[column] as i32);
                for (line, sums) in lines.iter().zip(&mut sums) {
                    let vectors: [__m256i; 2] = bytemuck::cast(*line);
                    for (a, sum) in vectors.into_iter().zip(sums) {
                        *sum = self.0.add_terms(*sum, a, b);
                    }
                }
            }
            *to = sums.map(bytemuck::cast);
        }
    }

    #[inline(always)]
    fn finish(self, finish: &mut Finish<'_>, sums: &Sums<'_>) {
        self.0.vectors().finish(finish, sums);
    }
}
