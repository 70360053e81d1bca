//! Matmuls by AMX: registers are tiles of 16 rows of 64 bytes, and an instruction multiplies two of them.

#![allow(unsafe_code)]

use bytemuck::Pod;
use std::arch::asm;
use std::arch::x86_64::{__cpuid_count, __get_cpuid_max};
use std::sync::LazyLock;

/// Rows of a tile, and its words in a row.
pub(super) const TALL: usize = 16;

/// Bytes of a row.
const ROW: usize = TALL * size_of::<u32>();

/// What an instruction multiplies: Intel's manual, CPUID, leaf 7, has bits of EDX for each.
#[derive(Clone, Copy)]
enum Product {
    Bytes = 1 << 25,
    Bf16 = 1 << 22,
}

/// The bit of EDX for tiles.
const TILES: u32 = 1 << 24;

/// Proof that the machine has AMX, and that the process may use it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Amx(());

impl Amx {
    /// That for bytes.
    pub(super) fn for_bytes() -> Option<Self> {
        static FOUND: LazyLock<Option<Amx>> = LazyLock::new(|| Amx::new(Product::Bytes));
        *FOUND
    }

    /// That for numbers of bf16.
    pub(super) fn for_bf16() -> Option<Self> {
        static FOUND: LazyLock<Option<Amx>> = LazyLock::new(|| Amx::new(Product::Bf16));
        *FOUND
    }

    fn new(product: Product) -> Option<Self> {
        let need = TILES | product as u32;
        let has = __get_cpuid_max(0).0 >= 7 && __cpuid_count(7, 0).edx & need == need;
        (has && may_use_tiles()).then_some(Self(()))
    }

    /// Works with all tile registers of their full size.
    #[inline(always)]
    pub(super) fn run(self, work: impl FnOnce(Tiles)) {
        let shape = Shape::FULL;
        // SAFETY: the machine has AMX and the process may use it, as `new` found; the operand is what the instruction reads.
        unsafe { asm!("ldtilecfg [{}]", in(reg) &raw const shape, options(nostack, readonly)) };
        work(Tiles(()));
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

/// Runs instructions on a tile of memory, whose rows are so many bytes apart.
macro_rules! tile {
    ($at:expr, $apart:expr, $($text:expr),+) => {
        // SAFETY: registers have their full size, as `Tiles` proves; a tile at the address is within a slice, as was made sure
        // of.
        unsafe { asm!($($text),+, at = in(reg) $at, of = in(reg) $apart, options(nostack)) }
    };
}

/// Adds products of tiles of A and those of a panel to 2 × 3 tiles of sums, or as many as there are, by this instruction. Of the
/// last two registers one holds a tile of A, the other one of the panel: few loads of A, whose rows lie apart, are the fastest.
macro_rules! add_products {
    ($instruction:literal, $left:expr, $pitch:expr, $panel:expr, $columns:expr, $both:expr) => {{
        let (of_a, of_b) = ($pitch * size_of::<u32>(), $columns * ROW);
        for (step, lines) in $panel.chunks_exact(TALL).enumerate() {
            let a = $left[step * TALL..].as_ptr();
            let below = a.wrapping_add(TALL * $pitch);
            macro_rules! load_b {
                ($v:literal) => {
                    let b = lines.as_flattened()[$v..].as_ptr();
                    tile!(b, of_b, "tileloadd tmm7, [{at} + {of}*1]");
                };
            }
            macro_rules! multiply {
                ($sums:literal) => {
                    // SAFETY: registers have their full size, as `Tiles` proves.
                    unsafe {
                        asm!(
                            concat!($instruction, " ", $sums, ", tmm6, tmm7"),
                            options(nostack, nomem)
                        );
                    }
                };
            }
            tile!(a, of_a, "tileloadd tmm6, [{at} + {of}*1]");
            load_b!(0);
            multiply!("tmm0");
            if $columns > 1 {
                load_b!(1);
                multiply!("tmm1");
            }
            if $columns > 2 {
                load_b!(2);
                multiply!("tmm2");
            }
            if $both {
                tile!(below, of_a, "tileloadd tmm6, [{at} + {of}*1]");
                // The last column's tile is still there.
                match $columns {
                    1 => multiply!("tmm3"),
                    2 => multiply!("tmm4"),
                    _ => multiply!("tmm5"),
                }
                if $columns > 1 {
                    load_b!(0);
                    multiply!("tmm3");
                }
                if $columns > 2 {
                    load_b!(1);
                    multiply!("tmm4");
                }
            }
        }
    }};
}

/// Proof that all tile registers have their full size.
#[derive(Clone, Copy)]
pub(super) struct Tiles(());

impl Tiles {
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
        add_products!("tdpbusd", left, pitch, panel, V, both);
        self.store(both, to);
    }

    /// The same of words of two numbers of bf16. Of 16 words the sums of what is in their lower halves, and of what is in
    /// their upper ones, are added to each other and to those before; all are rounded to nearest, and numbers and sums below
    /// the least normal one count as zero.
    #[inline(always)]
    pub(super) fn of_bf16<L: Pod, const V: usize>(
        self,
        (left, pitch): (&[u32], usize),
        panel: &[[L; V]],
        to: &mut [[[f32; TALL]; V]],
    ) {
        let both = self.begin((left, pitch), panel, to.len());
        add_products!("tdpbf16ps", left, pitch, panel, V, both);
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
        assert!(left.len() >= (rows - 1) * pitch + panel.len(), "rows as long as a panel is deep");
        // SAFETY: registers have their full size, as `self` proves.
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
                    tile!(to.as_flattened_mut()[$v..].as_mut_ptr(), of, $above);
                    if both {
                        tile!(to[TALL..].as_flattened_mut()[$v..].as_mut_ptr(), of, $below);
                    }
                }
            };
        }
        column!(0, "tilestored [{at} + {of}*1], tmm0", "tilestored [{at} + {of}*1], tmm3");
        column!(1, "tilestored [{at} + {of}*1], tmm1", "tilestored [{at} + {of}*1], tmm4");
        column!(2, "tilestored [{at} + {of}*1], tmm2", "tilestored [{at} + {of}*1], tmm5");
    }
}
