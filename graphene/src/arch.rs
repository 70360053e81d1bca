//! The architectures that kernels are written for: each a name and a set of features.
//!
//! An atom's row says which features it needs, and templates, verifier and planning ask for
//! features as well. Nobody asks whether one architecture is newer than another.

use std::str::FromStr;

use crate::{Error, Result, named::named};

named! {
    /// An architecture, a row of `ROWS`.
    pub enum Arch {
        /// Volta.
        Sm70 = "sm_70",
        /// Turing.
        Sm75 = "sm_75",
        /// Ampere, A100.
        Sm80 = "sm_80",
        /// Ampere, A10 and A6000.
        Sm86 = "sm_86",
        /// Ada, L4.
        Sm89 = "sm_89",
        /// Hopper, with the instructions that only it has.
        Sm90a = "sm_90a",
        /// Blackwell of data centres, B200.
        Sm100a = "sm_100a",
        /// Blackwell, RTX 5090.
        Sm120 = "sm_120",
    }
}

named! {
    /// What some architectures have and others lack.
    #[derive(PartialOrd, Ord)]
    pub enum Feature {
        /// Matmuls by quad pairs.
        QuadPairs = "mma.m8n8k4",
        /// Loads of matrices by a warp.
        Ldmatrix = "ldmatrix",
        /// Stores of matrices by a warp.
        Stmatrix = "stmatrix",
        /// Matmuls of fp16 by a warp, 8 deep.
        MmaK8 = "mma.m16n8k8",
        /// Matmuls of fp16 by a warp, 16 deep.
        MmaK16 = "mma.m16n8k16",
        MmaBf16 = "mma of bf16",
        MmaTf32 = "mma of tf32",
        /// Asynchronous copies by single threads.
        CpAsync = "cp.async",
        /// Conversions of two numbers at once to 16 bits each.
        PackedCvt = "cvt.f16x2",
        /// Barriers in shared memory that threads wait for.
        Mbarrier = "mbarrier.try_wait",
        /// Tensor copies.
        Tma = "cp.async.bulk.tensor",
        /// Blocks that reach each other's shared memory.
        Cluster = "clusters",
        /// Asynchronous matmuls by a warpgroup.
        Wgmma = "wgmma",
        /// Register budgets of warpgroups.
        Setmaxnreg = "setmaxnreg",
        /// Kernels that start before their predecessors are done.
        GridDependency = "griddepcontrol",
    }
}

/// The threads of a warp.
pub const WARP: i64 = 32;

/// The threads of a warpgroup.
pub const WARPGROUP: i64 = 4 * WARP;

/// What is known of an architecture: its major and minor compute capability, the shared memory that one block may use, in KiB
/// (CUDA C++ Programming Guide, compute capabilities), and its features.
type Row = (Arch, (i32, i32), i64, &'static [&'static [Feature]]);

#[rustfmt::skip]
const ROWS: [Row; 8] = [
    (Arch::Sm70,   (7, 0),   96, &[VOLTA]),
    (Arch::Sm75,   (7, 5),   64, &[VOLTA, TURING]),
    (Arch::Sm80,   (8, 0),  163, &[VOLTA, TURING, AMPERE]),
    (Arch::Sm86,   (8, 6),   99, &[VOLTA, TURING, AMPERE]),
    (Arch::Sm89,   (8, 9),   99, &[VOLTA, TURING, AMPERE]),
    (Arch::Sm90a,  (9, 0),  227, &[VOLTA, TURING, AMPERE, CLUSTERS, HOPPER]),
    (Arch::Sm100a, (10, 0), 227, &[VOLTA, TURING, AMPERE, CLUSTERS]),
    (Arch::Sm120,  (12, 0),  99, &[VOLTA, TURING, AMPERE, CLUSTERS]),
];

const VOLTA: &[Feature] = &[Feature::QuadPairs];
const TURING: &[Feature] = &[Feature::Ldmatrix, Feature::MmaK8];
#[rustfmt::skip]
const AMPERE: &[Feature] = &[
    Feature::MmaK16, Feature::MmaBf16, Feature::MmaTf32, Feature::CpAsync, Feature::PackedCvt,
];
#[rustfmt::skip]
const CLUSTERS: &[Feature] = &[
    Feature::Stmatrix, Feature::Mbarrier, Feature::Tma, Feature::Cluster, Feature::GridDependency,
];
const HOPPER: &[Feature] = &[Feature::Wgmma, Feature::Setmaxnreg];

impl Arch {
    fn row(self) -> &'static Row {
        ROWS.iter().find(|row| row.0 == self).expect("every architecture has a row")
    }

    /// Whether it has a feature.
    pub fn has(self, feature: Feature) -> bool {
        self.row().3.iter().any(|some| some.contains(&feature))
    }

    /// That it has all of these features. Fails with [`Error::Lacks`] for the first that it has not.
    pub fn needs(self, features: &[Feature]) -> Result {
        let lacks = features.iter().find(|feature| !self.has(**feature));
        lacks.map_or(Ok(()), |&feature| Err(Error::Lacks { arch: self, feature }))
    }

    /// Whether warps multiply fp16 by their quad pairs: they have no matmuls of a warp.
    pub fn multiplies_by_quad_pairs(self) -> bool {
        !self.has(Feature::MmaK8)
    }

    /// Major and minor compute capability: 9 and 0 of `sm_90a`.
    pub fn capability(self) -> (i32, i32) {
        self.row().1
    }

    /// Whether GPUs of this compute capability run its machine code: those of its own major and of the same minor one, or a
    /// later one if its name does not end in a letter.
    pub fn runs_on(self, (major, minor): (i32, i32)) -> bool {
        let own = self.capability();
        own.0 == major && (own.1 == minor || own.1 < minor && !self.name().ends_with('a'))
    }

    /// Shared memory that one block may use, in bytes.
    pub fn shared_memory(self) -> i64 {
        self.row().2 << 10
    }
}

/// The registers that each thread of a block has when it starts, where the block is to have all of
/// a multiprocessor's: they are given out by eights, and a thread has at most 256.
pub(crate) fn registers_at_launch(threads: i64) -> i64 {
    (65_536 / threads.max(1) / 8 * 8).min(256)
}

impl FromStr for Arch {
    type Err = Error;
    fn from_str(name: &str) -> Result<Arch> {
        Arch::ALL.iter().find(|row| row.1 == name).map(|row| row.0).ok_or_else(|| {
            let known: Vec<&str> = Arch::ALL.iter().map(|row| row.1).collect();
            Error::UnknownTarget { name: name.to_owned(), known: known.join(", ") }
        })
    }
}
