//! Matmuls by AMX: registers are tiles of 16 rows of 64 bytes, and an instruction multiplies two of them.

#![allow(unsafe_code)]

use bytemuck::Pod;
use std::arch::asm;
use std::arch::x86_64::{__cpuid_count, __get_cpuid_max};
use std::marker::PhantomData;
use std::sync::LazyLock;

/// Rows of a tile, and its words in a row.
pub(super) const TALL: usize = 16;

/// Bytes of a row.
const ROW: usize = TALL * size_of::<u32>();

/// Instructions that multiply tiles, by their bits of EDX in CPUID's leaf 7 (Intel's manual).
#[derive(Clone, Copy)]
enum Instruction {
    Tdpbusd = 1 << 25,
    Tdpbf16ps = 1 << 22,
}

/// The bit of EDX for tiles.
const TILES: u32 = 1 << 24;

/// Proof that the machine has AMX, and that the process may use it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Amx(());

impl Amx {
    /// AMX with its instruction for bytes.
    pub(super) fn for_bytes() -> Option<Self> {
        static FOUND: LazyLock<Option<Amx>> = LazyLock::new(|| Amx::new(Instruction::Tdpbusd));
        *FOUND
    }

    /// AMX with its instruction for numbers of bf16.
    pub(super) fn for_bf16() -> Option<Self> {
        static FOUND: LazyLock<Option<Amx>> = LazyLock::new(|| Amx::new(Instruction::Tdpbf16ps));
        *FOUND
    }

    fn new(instruction: Instruction) -> Option<Self> {
        let need = TILES | instruction as u32;
        let has = __get_cpuid_max(0).0 >= 7 && __cpuid_count(7, 0).edx & need == need;
        (has && may_use_tiles()).then_some(Self(()))
    }

    /// Works with all tile registers of their full size.
    #[inline(always)]
    pub(super) fn run(self, work: impl for<'a> FnOnce(Tiles<'a>)) {
        let shape = Shape::FULL;
        // SAFETY: the machine has AMX and the process may use it, as `new` found; the operand is what the instruction reads.
        unsafe { asm!("ldtilecfg [{}]", in(reg) &raw const shape, options(nostack, readonly)) };
        work(Tiles(PhantomData));
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
            shape.bytes_of_rows[register] = ROW as u16;
            shape.rows[register] = TALL as u8;
            register += 1;
        }
        shape
    };
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

// The compiler has no tile in a register of its own: nothing here uses its types for them. So they are still there for the next
// instruction, which stays behind this one as long as neither is said to be pure.

/// Loads a tile of memory, whose rows are so many bytes apart, into this register.
macro_rules! load_tile {
    ($at:expr, $apart:expr, $register:tt) => {
        // SAFETY: registers have their full size, as `Tiles` proves; a tile at the address is within a slice, as `begin` checks.
        unsafe {
            asm!(
                concat!("tileloadd ", $register, ", [{at} + {of}*1]"),
                at = in(reg) $at,
                of = in(reg) $apart,
                out($register) _,
                options(nostack, readonly)
            );
        }
    };
}

/// Stores a register in memory, the rows so many bytes apart.
macro_rules! store_tile {
    ($at:expr, $apart:expr, $register:literal) => {
        // SAFETY: registers have their full size, as `Tiles` proves; there are 16 or 32 rows, as `begin` checks.
        unsafe {
            asm!(
                concat!("tilestored [{at} + {of}*1], ", $register),
                at = in(reg) $at,
                of = in(reg) $apart,
                options(nostack)
            );
        }
    };
}

/// Adds the dot products of the last two registers' tiles to this register's, by this instruction.
macro_rules! multiply {
    ($instruction:literal, $sums:tt) => {
        // SAFETY: registers have their full size, as `Tiles` proves.
        unsafe {
            asm!(
                concat!($instruction, " ", $sums, ", tmm6, tmm7"),
                out($sums) _,
                options(nostack, nomem)
            );
        }
    };
}

/// Adds the dot products of tiles of A and those of a panel to 2 × 3 tiles of sums, or as many as there are, by this instruction.
/// Of the last two registers one holds a tile of A, the other one of the panel: few loads of A, whose rows lie apart, are the
/// fastest.
macro_rules! accumulate {
    ($instruction:literal, $left:expr, $pitch:expr, $panel:expr, $columns:expr, $both:expr) => {{
        let (of_a, of_b) = ($pitch * size_of::<u32>(), $columns * ROW);
        for (step, lines) in $panel.chunks_exact(TALL).enumerate() {
            let a = $left[step * TALL..].as_ptr();
            let below = a.wrapping_add(TALL * $pitch);
            let lines = lines.as_flattened();
            load_tile!(a, of_a, "tmm6");
            load_tile!(lines.as_ptr(), of_b, "tmm7");
            multiply!($instruction, "tmm0");
            if $columns > 1 {
                load_tile!(lines[1..].as_ptr(), of_b, "tmm7");
                multiply!($instruction, "tmm1");
            }
            if $columns > 2 {
                load_tile!(lines[2..].as_ptr(), of_b, "tmm7");
                multiply!($instruction, "tmm2");
            }
            if $both {
                load_tile!(below, of_a, "tmm6");
                // The last column's tile is still there.
                match $columns {
                    1 => multiply!($instruction, "tmm3"),
                    2 => multiply!($instruction, "tmm4"),
                    _ => multiply!($instruction, "tmm5"),
                }
                if $columns > 1 {
                    load_tile!(lines.as_ptr(), of_b, "tmm7");
                    multiply!($instruction, "tmm3");
                }
                if $columns > 2 {
                    load_tile!(lines[1..].as_ptr(), of_b, "tmm7");
                    multiply!($instruction, "tmm4");
                }
            }
        }
    }};
}

/// Proof that all tile registers of this thread have their full size.
#[derive(Clone, Copy)]
pub(super) struct Tiles<'a>(PhantomData<(&'a (), *const ())>);

impl Tiles<'_> {
    /// Dot products, modulo 2³², of 16 or 32 rows of bytes from 0 to 255, each so many words after the one before, and the
    /// columns of lines of bytes from -128 to 127.
    #[inline(always)]
    pub(super) fn of_bytes<L: Pod, const V: usize>(
        self,
        (left, pitch): (&[u32], usize),
        panel: &[[L; V]],
        to: &mut [[[i32; TALL]; V]],
    ) {
        let both = self.begin((left, pitch), panel, to.len());
        accumulate!("tdpbusd", left, pitch, panel, V, both);
        self.store(both, to);
    }

    /// The same of words of two numbers of bf16. Of 16 words the dot product of the lower 16 bits and that of the upper ones
    /// are added to each other and then to the sum before; each addition is rounded to nearest, and numbers and sums below the
    /// least normal one count as zero.
    #[inline(always)]
    pub(super) fn of_bf16<L: Pod, const V: usize>(
        self,
        (left, pitch): (&[u32], usize),
        panel: &[[L; V]],
        to: &mut [[[f32; TALL]; V]],
    ) {
        let both = self.begin((left, pitch), panel, to.len());
        accumulate!("tdpbf16ps", left, pitch, panel, V, both);
        self.store(both, to);
    }

    /// Checks sizes and begins with sums of zero; gives whether there are rows for two tiles.
    #[inline(always)]
    fn begin<L: Pod, const V: usize>(
        self,
        (left, pitch): (&[u32], usize),
        panel: &[[L; V]],
        rows: usize,
    ) -> bool {
        const { assert!(size_of::<L>() == ROW && V >= 1 && V <= 3, "2 × 3 tiles at most") }
        assert!(rows == TALL || rows == 2 * TALL, "2 × 3 tiles at most");
        assert!(panel.len().is_multiple_of(TALL), "tiles of 16 lines");
        let end = (rows - 1).checked_mul(pitch).and_then(|last| last.checked_add(panel.len()));
        assert!(end.is_some_and(|end| end <= left.len()), "rows as long as a panel is deep");
        // SAFETY: registers have their full size, as `self` proves.
        unsafe {
            asm!(
                "tilezero tmm0",
                "tilezero tmm1",
                "tilezero tmm2",
                "tilezero tmm3",
                "tilezero tmm4",
                "tilezero tmm5",
                out("tmm0") _,
                out("tmm1") _,
                out("tmm2") _,
                out("tmm3") _,
                out("tmm4") _,
                out("tmm5") _,
                options(nostack, nomem)
            );
        }
        rows > TALL
    }

    /// Stores the sums.
    #[inline(always)]
    fn store<T: Pod, const V: usize>(self, both: bool, to: &mut [[[T; TALL]; V]]) {
        const { assert!(size_of::<T>() == size_of::<u32>()) }
        let of = V * ROW;
        /// A column of tiles.
        macro_rules! column {
            ($v:literal, $above:literal, $below:literal) => {
                if V > $v {
                    let at = to.as_flattened_mut()[$v..].as_mut_ptr();
                    store_tile!(at, of, $above);
                    if both {
                        let at = to[TALL..].as_flattened_mut()[$v..].as_mut_ptr();
                        store_tile!(at, of, $below);
                    }
                }
            };
        }
        column!(0, "tmm0", "tmm3");
        column!(1, "tmm1", "tmm4");
        column!(2, "tmm2", "tmm5");
    }
}
