//! Dot products of bf16 by AMX and AVX-512, where the machine has instructions for them.

#![allow(unsafe_code)]

use super::{LANES, Line, MatMul};

/// Rows of AMX's tiles.
pub(super) const TALL: usize = 16;

#[cfg(target_arch = "x86_64")]
pub(super) use {
    crate::cpu::kernels::amx::Tiles,
    x86::{Instructions, Unit},
};

#[cfg(not(target_arch = "x86_64"))]
pub(super) use none::{Instructions, Tiles, Unit};

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::{LANES, Line, MatMul, TALL};
    use crate::cpu::kernels::amx::{self, Amx, Tiles};
    use crate::cpu::kernels::prefetch::prefetch;
    use bytemuck::Zeroable;
    use std::arch::x86_64::{
        __m512, __m512bh, __m512i, _mm512_cvtne2ps_pbh, _mm512_dpbf16_ps, _mm512_set1_epi32,
    };
    use std::sync::LazyLock;

    const _: () = assert!(TALL == amx::TALL);

    /// Proof that the machine has AVX-512 with instructions for bf16; beside it AMX with such.
    #[derive(Clone, Copy, Debug)]
    pub(in super::super) struct Unit(Option<Amx>);

    impl Unit {
        /// Those of this machine, the best one first.
        pub(in super::super) fn all() -> impl Iterator<Item = Self> {
            let has = is_x86_feature_detected!("avx512f")
                && is_x86_feature_detected!("avx512bw")
                && is_x86_feature_detected!("avx512dq")
                && is_x86_feature_detected!("avx512vl")
                && is_x86_feature_detected!("avx512bf16");
            let with_tiles = Amx::for_bf16().filter(|_| has).map(|amx| Self(Some(amx)));
            with_tiles.into_iter().chain(has.then_some(Self(None)))
        }

        /// The best one.
        pub(in super::super) fn best() -> Option<Self> {
            static BEST: LazyLock<Option<Unit>> = LazyLock::new(|| Unit::all().next());
            *BEST
        }

        /// The name in profiles.
        pub(in super::super) fn name(self) -> &'static str {
            if self.0.is_some() { "AMX-BF16" } else { "AVX512-BF16" }
        }

        /// Words of a column that it multiplies at once.
        pub(in super::super) fn step(self) -> usize {
            if self.0.is_some() { LANES } else { 1 }
        }

        /// Rows of A that it multiplies at once: A's memory is padded to a multiple of them.
        pub(in super::super) fn rows(self) -> usize {
            if self.0.is_some() { TALL } else { 1 }
        }

        /// Multiplies with its instructions.
        pub(in super::super) fn run(self, work: MatMul<'_, '_, '_>) {
            #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")]
            fn run(instructions: Instructions<'_>, work: MatMul<'_, '_, '_>) {
                work.run(instructions);
            }
            // SAFETY: the machine has these, as `all` found.
            let run = |tiles: Option<Tiles<'_>>| unsafe { run(Instructions(tiles), work) };
            match self.0 {
                Some(amx) => amx.run(|tiles| run(Some(tiles))),
                None => run(None),
            }
        }
    }

    /// Proof that a unit's instructions may be used; with tiles where it has them.
    #[derive(Clone, Copy)]
    pub(in super::super) struct Instructions<'a>(Option<Tiles<'a>>);

    impl<'a> Instructions<'a> {
        /// What multiplies 16 or 32 rows at once.
        #[inline(always)]
        pub(in super::super) fn tiles(self) -> Option<Tiles<'a>> {
            self.0
        }

        /// The sums of rows of words times the columns of a panel. Of a word the upper half is multiplied and added first,
        /// then the lower one, each sum rounded to nearest; numbers and sums below the least normal one count as zero. What
        /// is next is asked for at this pace.
        #[inline(always)]
        pub(in super::super) fn dots<const H: usize, const V: usize>(
            self,
            rows: [&[u32]; H],
            panel: &[[Line; V]],
            (next, pace): (&[u32], usize),
            to: &mut [[[f32; LANES]; V]; H],
        ) {
            assert!(
                rows.iter().all(|row| row.len() == panel.len()),
                "rows are as long as a panel is deep"
            );
            let mut sums = [[__m512::zeroed(); V]; H];
            for (k, own) in panel.iter().enumerate() {
                // A row or two are multiplied no faster than the panel itself is read.
                if H > 2 {
                    prefetch(next, k * pace);
                }
                let b = own.map(bytemuck::cast::<Line, __m512i>);
                for (row, sums) in rows.iter().zip(&mut sums) {
                    // SAFETY: every row has as many words as the panel has rows, and the machine AVX-512, as `all` found.
                    let a = unsafe { _mm512_set1_epi32(*row.get_unchecked(k) as i32) };
                    for (sum, &b) in sums.iter_mut().zip(&b) {
                        // SAFETY: likewise, with instructions for bf16; types of one size, any bits of which are values.
                        *sum = unsafe { _mm512_dpbf16_ps(*sum, pairs(a), pairs(b)) };
                    }
                }
            }
            for (sum, to) in sums.as_flattened().iter().zip(to.as_flattened_mut()) {
                *to = bytemuck::cast(*sum);
            }
        }

        /// A row rounded to bf16, ties to even, in pairs; what fills up its last line is zero.
        #[inline(always)]
        pub(in super::super) fn narrow_row(self, row: &[f32], to: &mut [Line]) {
            let (chunks, rest) = row.as_chunks::<{ 2 * LANES }>();
            for (chunk, to) in chunks.iter().zip(&mut *to) {
                *to = self.narrow(chunk);
            }
            if !rest.is_empty() {
                let mut last = [0.0; 2 * LANES];
                last[..rest.len()].copy_from_slice(rest);
                to[chunks.len()] = self.narrow(&last);
            }
        }

        #[inline(always)]
        fn narrow(self, numbers: &[f32; 2 * LANES]) -> Line {
            let [first, second]: [__m512; 2] = bytemuck::cast(*numbers);
            // SAFETY: the machine has the instruction, as `all` found; types of one size, any bits of which are values.
            let words: __m512i = unsafe { std::mem::transmute(_mm512_cvtne2ps_pbh(second, first)) };
            bytemuck::cast(words)
        }
    }

    /// Words as pairs of numbers.
    #[inline(always)]
    fn pairs(words: __m512i) -> __m512bh {
        // SAFETY: both are 64 bytes, of which any are a value.
        unsafe { std::mem::transmute(words) }
    }
}

#[cfg(not(target_arch = "x86_64"))]
mod none {
    use super::{LANES, Line, MatMul};

    /// No machine has it.
    #[derive(Clone, Copy, Debug)]
    pub(in super::super) enum Unit {}

    /// Nor its instructions.
    pub(in super::super) type Instructions<'a> = Unit;
    pub(in super::super) type Tiles<'a> = Unit;

    impl Unit {
        pub(in super::super) fn all() -> impl Iterator<Item = Self> {
            std::iter::empty()
        }

        pub(in super::super) fn best() -> Option<Self> {
            None
        }

        pub(in super::super) fn name(self) -> &'static str {
            match self {}
        }

        pub(in super::super) fn step(self) -> usize {
            match self {}
        }

        pub(in super::super) fn rows(self) -> usize {
            match self {}
        }

        pub(in super::super) fn run(self, work: MatMul<'_, '_, '_>) {
            work.run(self);
        }

        /// What multiplies 16 or 32 rows at once.
        pub(in super::super) fn tiles(self) -> Option<Self> {
            match self {}
        }

        pub(in super::super) fn of_bf16<const V: usize>(
            self,
            _: (&[u32], usize),
            _: &[[Line; V]],
            _: &mut [[[f32; LANES]; V]],
        ) {
            match self {}
        }

        pub(in super::super) fn dots<const H: usize, const V: usize>(
            self,
            _: [&[u32]; H],
            _: &[[Line; V]],
            _: (&[u32], usize),
            _: &mut [[[f32; LANES]; V]; H],
        ) {
            match self {}
        }

        pub(in super::super) fn narrow_row(self, _: &[f32], _: &mut [Line]) {
            match self {}
        }
    }
}
