//! Dot products of bytes by AMX: registers are tiles of 16 rows of 64 bytes, and an instruction multiplies two of them.

use super::{Dots, Finish, LANES, Line, Sums, TALL, Vnni, Words, Work};
use std::arch::asm;
use std::sync::LazyLock;

/// Proof that the machine has AMX for bytes, that the process may use it, and that it has AVX-512 with VNNI.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct Amx(Vnni);

impl Amx {
    pub(super) fn new() -> Option<Self> {
        static FOUND: LazyLock<Option<Amx>> =
            LazyLock::new(|| Vnni::new().filter(|_| has_tiles() && may_use_tiles()).map(Amx));
        *FOUND
    }

    /// Works with all tile registers of their full size.
    pub(super) fn run(self, work: impl Work) {
        struct WithTiles<W>(W);
        impl<W: Work> Work for WithTiles<W> {
            #[inline(always)]
            fn run<D: Dots>(self, _: D) {
                self.0.run(Tiles(()));
            }
        }
        let shape = Shape::FULL;
        // SAFETY: the machine has AMX and the process may use it, as `new` found; the operand is what the instruction reads.
        unsafe { asm!("ldtilecfg [{}]", in(reg) &raw const shape, options(nostack, readonly)) };
        self.0.run(WithTiles(work));
        // SAFETY: likewise; nobody reads the tiles any more.
        unsafe { asm!("tilerelease", options(nostack, nomem)) };
    }
}

/// The sizes of tile registers, as the instruction reads them.
#[repr(C, align(64))]
struct Shape {
    palette: u8,
    start: u8,
    reserved: [u8; 14],
    bytes_of_rows: [u16; 16],
    rows: [u8; 16],
}

impl Shape {
    const FULL: Self = {
        let mut shape =
            Self { palette: 1, start: 0, reserved: [0; 14], bytes_of_rows: [0; 16], rows: [0; 16] };
        let mut register = 0;
        while register < 8 {
            shape.bytes_of_rows[register] = size_of::<Line>() as u16;
            shape.rows[register] = TALL as u8;
            register += 1;
        }
        shape
    };
}

/// Intel's manual, CPUID, leaf 7: bits 24 and 25 of EDX.
fn has_tiles() -> bool {
    use std::arch::x86_64::{__cpuid_count, __get_cpuid_max};
    __get_cpuid_max(0).0 >= 7 && __cpuid_count(7, 0).edx >> 24 & 3 == 3
}

/// Asks Linux for tile registers, once for all threads (`Documentation/arch/x86/xstate.rst`): frames of signals are larger then,
/// and it refuses where an alternate stack would be too small for them. Other systems are not known.
#[cfg(target_os = "linux")]
fn may_use_tiles() -> bool {
    const ARCH_PRCTL: isize = 158;
    const REQUEST_PERMISSION: usize = 0x1023;
    const TILE_DATA: usize = 18;
    let result: isize;
    // SAFETY: the call reads and writes no memory of the process, and overwrites the registers named.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") ARCH_PRCTL => result,
            in("rdi") REQUEST_PERMISSION,
            in("rsi") TILE_DATA,
            out("rcx") _,
            out("r11") _,
            options(nostack),
        );
    }
    result == 0
}

#[cfg(not(target_os = "linux"))]
fn may_use_tiles() -> bool {
    false
}

/// Proof that all tile registers have their full size. Vectors are those of VNNI.
#[derive(Clone, Copy)]
struct Tiles(());

impl Dots for Tiles {
    const ROWS: usize = TALL;

    #[inline(always)]
    fn dots<const H: usize, const V: usize>(
        self,
        rows: [&[u32]; H],
        panel: &[[Line; V]],
        to: &mut [[[i32; LANES]; V]; H],
    ) {
        Vnni(()).dots(rows, panel, to);
    }

    /// By 2 × 3 tiles of sums, or as many as there are; the last two registers hold what is multiplied.
    #[inline(always)]
    fn tall<const V: usize>(
        self,
        (left, pitch): (&[u32], usize),
        panel: &[[Line; V]],
        to: &mut [[[i32; LANES]; V]],
    ) {
        let rows = to.len();
        let both = rows > TALL;
        assert!((1..=3).contains(&V) && (rows == TALL || rows == 2 * TALL), "2 × 3 tiles at most");
        assert!(panel.len().is_multiple_of(TALL), "tiles of 16 lines");
        assert!(left.len() >= (rows - 1) * pitch + panel.len(), "rows as long as a panel is deep");
        let (of_a, of_b) = (pitch * size_of::<u32>(), V * size_of::<Line>());
        /// Runs instructions on a tile of memory, whose rows are so many bytes apart.
        macro_rules! tile {
            ($at:expr, $apart:expr, $($text:expr),+) => {
                // SAFETY: registers have their full size, as `self` proves; a tile at the address is within a slice, as was
                // made sure of.
                unsafe { asm!($($text),+, at = in(reg) $at, of = in(reg) $apart, options(nostack)) }
            };
        }
        // SAFETY: likewise.
        unsafe {
            asm!(
                "tilezero tmm0",
                "tilezero tmm1",
                "tilezero tmm2",
                "tilezero tmm3",
                "tilezero tmm4",
                "tilezero tmm5",
                options(nostack, nomem)
            );
        }
        for (step, lines) in panel.chunks_exact(TALL).enumerate() {
            let a = left[step * TALL..].as_ptr();
            let below = a.wrapping_add(TALL * pitch);
            /// The sums of a column of tiles.
            macro_rules! column {
                ($v:literal, $above:literal, $below:literal) => {
                    if V > $v {
                        let b = lines.as_flattened()[$v..].as_ptr();
                        tile!(b, of_b, "tileloadd tmm7, [{at} + {of}*1]");
                        tile!(a, of_a, "tileloadd tmm6, [{at} + {of}*1]", $above);
                        if both {
                            tile!(below, of_a, "tileloadd tmm6, [{at} + {of}*1]", $below);
                        }
                    }
                };
            }
            column!(0, "tdpbusd tmm0, tmm6, tmm7", "tdpbusd tmm3, tmm6, tmm7");
            column!(1, "tdpbusd tmm1, tmm6, tmm7", "tdpbusd tmm4, tmm6, tmm7");
            column!(2, "tdpbusd tmm2, tmm6, tmm7", "tdpbusd tmm5, tmm6, tmm7");
        }
        /// Stores a column of tiles.
        macro_rules! store {
            ($v:literal, $above:literal, $below:literal) => {
                if V > $v {
                    tile!(to.as_flattened_mut()[$v..].as_mut_ptr(), of_b, $above);
                    if both {
                        let below = to[TALL..].as_flattened_mut()[$v..].as_mut_ptr();
                        tile!(below, of_b, $below);
                    }
                }
            };
        }
        store!(0, "tilestored [{at} + {of}*1], tmm0", "tilestored [{at} + {of}*1], tmm3");
        store!(1, "tilestored [{at} + {of}*1], tmm1", "tilestored [{at} + {of}*1], tmm4");
        store!(2, "tilestored [{at} + {of}*1], tmm2", "tilestored [{at} + {of}*1], tmm5");
    }

    #[inline(always)]
    fn turned<const H: usize, const W: usize>(
        self,
        columns: Words<'_>,
        panel: &[[Line; W]],
        to: &mut [[[i32; LANES]; W]; H],
    ) {
        Vnni(()).turned(columns, panel, to);
    }

    #[inline(always)]
    fn finish(self, finish: &mut Finish<'_>, sums: &Sums<'_>) {
        Vnni(()).finish(finish, sums);
    }
}
