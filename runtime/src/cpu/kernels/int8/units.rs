//! Dot products of bytes by the machine's units: AMX's tiles, vectors of AVX-512 and of AVX2 with VNNI, those of AVX2, and any.

#![allow(unsafe_code)]

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod unsplit;
mod vectors;

use super::chain::{Finish, Sums};
use super::{DEEP, LANES, Line};
#[cfg(target_arch = "x86_64")]
use crate::cpu::kernels::amx::{self, Amx, Tiles};
#[cfg(target_arch = "x86_64")]
use crate::cpu::kernels::prefetch::prefetch;
#[cfg(target_arch = "x86_64")]
use bytemuck::Zeroable;
#[cfg(target_arch = "x86_64")]
use pulp::x86::V3;
#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::{__m512i, _mm512_dpbusd_epi32, _mm512_set1_epi32};

#[cfg(target_arch = "x86_64")]
use unsplit::{AvxVnni, Unsplit};
pub(super) use vectors::Vectors;

/// Rows of AMX's tiles.
pub(super) const TALL: usize = 16;

#[cfg(target_arch = "x86_64")]
const _: () = assert!(TALL == amx::TALL);

/// A unit that multiplies bytes.
#[derive(Clone, Copy, Debug)]
pub(super) enum Unit {
    /// Tiles, beside vectors with VNNI.
    #[cfg(target_arch = "x86_64")]
    Amx(Amx, Vnni),
    /// AVX-512 with VNNI.
    #[cfg(target_arch = "x86_64")]
    Vnni(Vnni),
    /// AVX2 with VNNI.
    #[cfg(target_arch = "x86_64")]
    AvxVnni(AvxVnni),
    #[cfg(target_arch = "x86_64")]
    Avx2(V3),
    /// AVX2 for columns whose [pairs fit](pairs_fit).
    #[cfg(target_arch = "x86_64")]
    Avx2Unsplit(V3),
    /// What the compiler makes of plain loops.
    Any,
}

impl Unit {
    /// Those of this machine, the best one first.
    #[cfg(target_arch = "x86_64")]
    pub(super) fn all() -> impl Iterator<Item = Self> {
        let vnni = Vnni::new();
        let amx = Amx::for_bytes().zip(vnni).map(|(amx, vnni)| Self::Amx(amx, vnni));
        let of_avx2 = [AvxVnni::new().map(Self::AvxVnni), V3::try_new().map(Self::Avx2)];
        let some = [amx, vnni.map(Self::Vnni)].into_iter().chain(of_avx2).chain([Some(Self::Any)]);
        some.flatten()
    }

    /// The one of other machines.
    #[cfg(not(target_arch = "x86_64"))]
    pub(super) fn all() -> impl Iterator<Item = Self> {
        [Self::Any].into_iter()
    }

    /// The best one.
    pub(super) fn best() -> Self {
        Self::all().next().unwrap_or(Self::Any)
    }

    /// The one to take instead of it for columns whose [pairs fit](pairs_fit).
    pub(super) fn for_pairs_that_fit(self) -> Self {
        match self {
            #[cfg(target_arch = "x86_64")]
            Self::Avx2(v3) => Self::Avx2Unsplit(v3),
            #[cfg(target_arch = "x86_64")]
            Self::Amx(..) | Self::Vnni(_) | Self::AvxVnni(_) | Self::Avx2Unsplit(_) => self,
            Self::Any => self,
        }
    }

    /// The name in profiles.
    pub(super) fn name(self) -> &'static str {
        match self {
            #[cfg(target_arch = "x86_64")]
            Self::Amx(..) => "AMX",
            #[cfg(target_arch = "x86_64")]
            Self::Vnni(_) => "VNNI",
            #[cfg(target_arch = "x86_64")]
            Self::AvxVnni(_) => "AVX-VNNI",
            #[cfg(target_arch = "x86_64")]
            Self::Avx2(_) | Self::Avx2Unsplit(_) => "AVX2",
            Self::Any => "portable",
        }
    }

    /// Words of a column that it multiplies at once.
    pub(super) fn step(self) -> usize {
        match self {
            #[cfg(target_arch = "x86_64")]
            Self::Amx(..) => LANES,
            _ => 1,
        }
    }

    /// Works with its instructions.
    pub(super) fn run(self, work: impl Work) {
        match self {
            #[cfg(target_arch = "x86_64")]
            Self::Amx(amx, vnni) => amx.run(|tiles| vnni.run(WithTiles(Tiled(tiles, vnni), work))),
            #[cfg(target_arch = "x86_64")]
            Self::Vnni(vnni) => vnni.run(work),
            #[cfg(target_arch = "x86_64")]
            Self::AvxVnni(vnni) => vnni.run(work),
            #[cfg(target_arch = "x86_64")]
            Self::Avx2(v3) => avx2::run(v3, work, v3),
            #[cfg(target_arch = "x86_64")]
            Self::Avx2Unsplit(v3) => avx2::run(v3, work, Unsplit(v3)),
            Self::Any => work.run(Plain),
        }
    }
}

/// Whether 16 bits hold the sum of two products of each pair of neighbours in a column and bytes from 0 to 255, as for all
/// weights of 7 bits.
pub(super) fn pairs_fit(lines: &[Line]) -> bool {
    const MOST: i16 = i16::MAX / 255;
    lines.iter().all(|line| {
        let (pairs, _) = line.0.as_chunks::<2>();
        let sum = |of: fn(i16, i16) -> i16, [a, b]: [i8; 2]| of(a.into(), 0) + of(b.into(), 0);
        let fits = |&pair: &[i8; 2]| sum(i16::max, pair) <= MOST && sum(i16::min, pair) >= -MOST;
        pairs.iter().all(fits)
    })
}

/// What is done with a unit's dot products. `run` and all that it calls must be `#[inline(always)]`.
pub(super) trait Work {
    fn run<D: Dots>(self, unit: D);
}

/// Columns side by side in a line of each row of a panel: what a broadcast reads.
#[derive(Clone, Copy)]
pub(super) struct Words<'a> {
    /// The panel's lines.
    pub(super) lines: &'a [Line],
    /// Lines of a row.
    pub(super) across: usize,
    /// Which of them, and its first column.
    pub(super) line: usize,
    pub(super) column: usize,
}

impl<'a> Words<'a> {
    /// Row by row.
    #[inline(always)]
    fn rows<const H: usize>(self) -> impl Iterator<Item = &'a [u32; H]> {
        self.lines.chunks_exact(self.across).map(move |row| {
            let words: &[u32; LANES] = bytemuck::cast_ref(&row[self.line]);
            words[self.column..].first_chunk().expect("so many columns are in the line")
        })
    }
}

/// Dot products of rows of bytes from 0 to 255 and the columns of lines.
pub(super) trait Dots: Copy {
    /// Rows at a time: at most 8, or [`TALL`].
    const ROWS: usize;

    /// What it subtracts from each byte of A: to its dot products, so many times the sum of a column has to be added.
    const ZERO_POINT: i32 = 0;

    /// Those of some rows, which are as long as the panel is deep. They are left modulo 2³².
    fn dots<const H: usize, const V: usize>(
        self,
        rows: [&[u32]; H],
        panel: &[[Line; V]],
        to: &mut [[[i32; LANES]; V]; H],
    );

    /// Those of 16 or 32 rows, each so many words after the one before, by a unit with so many rows.
    #[inline(always)]
    fn tall<const V: usize>(
        self,
        (left, pitch): (&[u32], usize),
        panel: &[[Line; V]],
        to: &mut [[[i32; LANES]; V]],
    ) {
        for (row, to) in to.iter_mut().enumerate() {
            let row = &left[row * pitch..][..panel.len()];
            self.dots([row], panel, std::array::from_mut(to));
        }
    }

    /// Those of `H` columns and of lines of bytes from 0 to 255, of which there are `W` in a row.
    fn turned<const H: usize, const W: usize>(
        self,
        columns: Words<'_>,
        panel: &[[Line; W]],
        to: &mut [[[i32; LANES]; W]; H],
    );

    /// Finishes dot products and stores them; not inlined, for there are many places that do.
    fn finish(self, finish: &mut Finish<'_>, sums: &Sums<'_>);
}

#[derive(Clone, Copy)]
struct Plain;

impl Dots for Plain {
    const ROWS: usize = 1;

    #[inline(always)]
    fn dots<const H: usize, const V: usize>(
        self,
        rows: [&[u32]; H],
        panel: &[[Line; V]],
        to: &mut [[[i32; LANES]; V]; H],
    ) {
        for (k, lines) in panel.iter().enumerate() {
            for (row, to) in rows.iter().zip(to.iter_mut()) {
                let a = row[k].to_ne_bytes().map(i32::from);
                for (line, to) in lines.iter().zip(to) {
                    let (columns, _) = line.0.as_chunks::<DEEP>();
                    for (to, b) in to.iter_mut().zip(columns) {
                        let dot: i32 = a.iter().zip(b).map(|(&a, &b)| a * i32::from(b)).sum();
                        *to = to.wrapping_add(dot);
                    }
                }
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
        for (lines, words) in panel.iter().zip(columns.rows::<H>()) {
            for (word, to) in words.iter().zip(to.iter_mut()) {
                let b = word.to_ne_bytes().map(|byte| i32::from(byte as i8));
                for (line, to) in lines.iter().zip(to) {
                    let (bytes, _) = line.0.as_chunks::<DEEP>();
                    for (to, a) in to.iter_mut().zip(bytes) {
                        let dot: i32 = a.iter().zip(b).map(|(&a, b)| i32::from(a as u8) * b).sum();
                        *to = to.wrapping_add(dot);
                    }
                }
            }
        }
    }

    fn finish(self, finish: &mut Finish<'_>, sums: &Sums<'_>) {
        finish.store(self, sums);
    }
}

/// Proof that the machine has AVX-512 with VNNI.
#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy, Debug)]
pub(super) struct Vnni(());

#[cfg(target_arch = "x86_64")]
impl Vnni {
    fn new() -> Option<Self> {
        let has = is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512dq")
            && is_x86_feature_detected!("avx512vl")
            && is_x86_feature_detected!("avx512vnni");
        has.then_some(Self(()))
    }

    fn run(self, work: impl Work) {
        #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
        fn run(vnni: Vnni, work: impl Work) {
            work.run(vnni);
        }
        // SAFETY: the machine has these, as `new` found.
        unsafe { run(self, work) }
    }
}

#[cfg(target_arch = "x86_64")]
impl Dots for Vnni {
    const ROWS: usize = 8;

    #[inline(always)]
    fn dots<const H: usize, const V: usize>(
        self,
        rows: [&[u32]; H],
        panel: &[[Line; V]],
        to: &mut [[[i32; LANES]; V]; H],
    ) {
        assert!(
            rows.iter().all(|row| row.len() == panel.len()),
            "rows are as long as a panel is deep"
        );
        let lines = panel.as_flattened();
        let mut sums = [[__m512i::zeroed(); V]; H];
        for (k, own) in panel.iter().enumerate() {
            // The next panel lies behind this one.
            (0..V).for_each(|v| prefetch(lines, lines.len() + V * k + v));
            let b = own.map(bytemuck::cast::<Line, __m512i>);
            for (row, sums) in rows.iter().zip(&mut sums) {
                // SAFETY: every row has as many words as the panel has rows, and the machine AVX-512, as `new` found.
                let a = unsafe { _mm512_set1_epi32(*row.get_unchecked(k) as i32) };
                for (sum, &b) in sums.iter_mut().zip(&b) {
                    // SAFETY: likewise, with VNNI.
                    *sum = unsafe { _mm512_dpbusd_epi32(*sum, a, b) };
                }
            }
        }
        keep(&sums, to);
    }

    #[inline(always)]
    fn turned<const H: usize, const W: usize>(
        self,
        columns: Words<'_>,
        panel: &[[Line; W]],
        to: &mut [[[i32; LANES]; W]; H],
    ) {
        let mut sums = [[__m512i::zeroed(); W]; H];
        for (lines, words) in panel.iter().zip(columns.rows::<H>()) {
            let a = lines.map(bytemuck::cast::<Line, __m512i>);
            for (&word, sums) in words.iter().zip(&mut sums) {
                // SAFETY: the machine has AVX-512, as `new` found.
                let b = unsafe { _mm512_set1_epi32(word as i32) };
                for (sum, &a) in sums.iter_mut().zip(&a) {
                    // SAFETY: likewise, with VNNI.
                    *sum = unsafe { _mm512_dpbusd_epi32(*sum, a, b) };
                }
            }
        }
        keep(&sums, to);
    }

    fn finish(self, finish: &mut Finish<'_>, sums: &Sums<'_>) {
        #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
        #[inline(never)]
        fn run(vnni: Vnni, finish: &mut Finish<'_>, sums: &Sums<'_>) {
            finish.store(vnni, sums);
        }
        // SAFETY: the machine has these, as `new` found.
        unsafe { run(self, finish, sums) }
    }
}

/// Works with tiles, too.
#[cfg(target_arch = "x86_64")]
struct WithTiles<'a, W>(Tiled<'a>, W);

#[cfg(target_arch = "x86_64")]
impl<W: Work> Work for WithTiles<'_, W> {
    #[inline(always)]
    fn run<D: Dots>(self, _: D) {
        self.1.run(self.0);
    }
}

/// Tiles, and vectors with VNNI.
#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy)]
struct Tiled<'a>(Tiles<'a>, Vnni);

#[cfg(target_arch = "x86_64")]
impl Dots for Tiled<'_> {
    const ROWS: usize = TALL;

    #[inline(always)]
    fn dots<const H: usize, const V: usize>(
        self,
        rows: [&[u32]; H],
        panel: &[[Line; V]],
        to: &mut [[[i32; LANES]; V]; H],
    ) {
        self.1.dots(rows, panel, to);
    }

    #[inline(always)]
    fn tall<const V: usize>(
        self,
        left: (&[u32], usize),
        panel: &[[Line; V]],
        to: &mut [[[i32; LANES]; V]],
    ) {
        self.0.of_bytes(left, panel, to);
    }

    #[inline(always)]
    fn turned<const H: usize, const W: usize>(
        self,
        columns: Words<'_>,
        panel: &[[Line; W]],
        to: &mut [[[i32; LANES]; W]; H],
    ) {
        self.1.turned(columns, panel, to);
    }

    #[inline(always)]
    fn finish(self, finish: &mut Finish<'_>, sums: &Sums<'_>) {
        self.1.finish(finish, sums);
    }
}

/// Stores sums one by one, from the registers that they are in.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn keep<const W: usize, const H: usize>(sums: &[[__m512i; W]; H], to: &mut [[[i32; LANES]; W]; H]) {
    for (sums, to) in sums.as_flattened().iter().zip(to.as_flattened_mut()) {
        *to = bytemuck::cast(*sums);
    }
}
