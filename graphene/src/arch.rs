//! The architectures that kernels are written for: each a name and a set of features.
//!
//! An atom's row says which features it needs, and templates, verifier and planning ask for
//! features as well. Nobody asks whether one architecture is newer than another.

use std::fmt;
use std::str::FromStr;

use crate::error::{Error, Result};
use crate::named::named;

/// An architecture, a row of `ROWS`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Arch {
    /// Volta.
    Sm70,
    /// Turing.
    Sm75,
    /// Ampere, A100.
    Sm80,
    /// Ampere, A6000.
    Sm86,
    /// Hopper, with the instructions that only it has.
    Sm90a,
}

named! {
    /// What some architectures have and others lack.
    #[derive(PartialOrd, Ord)]
    pub enum Feature {
        /// Products by quad pairs.
        QuadPairs = "mma.m8n8k4",
        /// Loads of matrices by a warp.
        Ldmatrix = "ldmatrix",
        /// Stores of matrices by a warp.
        Stmatrix = "stmatrix",
        /// Products of fp16 by a warp, 8 deep.
        MmaK8 = "mma.m16n8k8",
        /// Products of fp16 by a warp, 16 deep.
        MmaK16 = "mma.m16n8k16",
        /// Products of bf16 by a warp.
        MmaBf16 = "mma of bf16",
        /// Products of TF32 by a warp.
        MmaTf32 = "mma of tf32",
        /// Asynchronous copies by single threads.
        CpAsync = "cp.async",
        /// Conversions of two numbers at once to 16 bits each.
        PackedCvt = "cvt.f16x2",
        /// The larger and the smaller of two fp16 numbers.
        HalfMax = "max.f16x2",
        /// Barriers in shared memory that threads wait for.
        Mbarrier = "mbarrier.try_wait",
        /// Tensor copies.
        Tma = "cp.async.bulk.tensor",
        /// Blocks that reach each other's shared memory.
        Cluster = "clusters",
        /// Asynchronous products by a warpgroup.
        Wgmma = "wgmma",
        /// Register budgets of warpgroups.
        Setmaxnreg = "setmaxnreg",
        /// Kernels that start before their predecessors are done.
        GridDependency = "griddepcontrol",
    }
}

/// What is known of an architecture.
struct Row {
    arch: Arch,
    name: &'static str,
    /// Major and minor compute capability.
    capability: (i32, i32),
    /// Shared memory that one block may use, in KiB (CUDA C++ Programming Guide, compute capabilities).
    shared: i64,
    features: Features,
}

/// A set of features.
#[derive(Clone, Copy)]
struct Features(u32);

#[rustfmt::skip]
const ROWS: [Row; 5] = [
    row(Arch::Sm70,  "sm_70",  (7, 0),  96, VOLTA),
    row(Arch::Sm75,  "sm_75",  (7, 5),  64, TURING),
    row(Arch::Sm80,  "sm_80",  (8, 0), 163, AMPERE),
    row(Arch::Sm86,  "sm_86",  (8, 6),  99, AMPERE),
    row(Arch::Sm90a, "sm_90a", (9, 0), 227, HOPPER),
];

const VOLTA: Features = Features(0).with(&[Feature::QuadPairs]);
const TURING: Features = VOLTA.with(&[Feature::Ldmatrix, Feature::MmaK8]);
const AMPERE: Features = TURING.with(&[
    Feature::MmaK16,
    Feature::MmaBf16,
    Feature::MmaTf32,
    Feature::CpAsync,
    Feature::PackedCvt,
    Feature::HalfMax,
]);
const HOPPER: Features = AMPERE.with(&[
    Feature::Stmatrix,
    Feature::Mbarrier,
    Feature::Tma,
    Feature::Cluster,
    Feature::Wgmma,
    Feature::Setmaxnreg,
    Feature::GridDependency,
]);

const fn row(
    arch: Arch,
    name: &'static str,
    capability: (i32, i32),
    shared: i64,
    features: Features,
) -> Row {
    Row { arch, name, capability, shared, features }
}

impl Features {
    const fn with(self, features: &[Feature]) -> Features {
        let (mut all, mut i) = (self.0, 0);
        while i < features.len() {
            all |= 1 << features[i] as u32;
            i += 1;
        }
        Features(all)
    }
}

impl Arch {
    /// All of them, with their names.
    pub const ALL: [(Arch, &'static str); ROWS.len()] = {
        let (mut all, mut i) = ([(Arch::Sm70, ""); ROWS.len()], 0);
        while i < ROWS.len() {
            all[i] = (ROWS[i].arch, ROWS[i].name);
            i += 1;
        }
        all
    };

    fn row(self) -> &'static Row {
        ROWS.iter().find(|row| row.arch == self).expect("every architecture has a row")
    }

    /// Whether it has a feature.
    pub fn has(self, feature: Feature) -> bool {
        self.row().features.0 & 1 << feature as u32 != 0
    }

    /// That it has all of these features.
    ///
    /// # Errors
    /// [`Error::Lacks`] for the first that it has not.
    pub fn needs(self, features: &[Feature]) -> Result<()> {
        match features.iter().find(|feature| !self.has(**feature)) {
            Some(&feature) => Err(Error::Lacks { arch: self, feature }),
            None => Ok(()),
        }
    }

    /// Major and minor compute capability: 9 and 0 of `sm_90a`.
    pub fn capability(self) -> (i32, i32) {
        self.row().capability
    }

    /// Shared memory that one block may use, in bytes.
    pub fn shared_memory(self) -> i64 {
        self.row().shared << 10
    }
}

/// The registers that each thread of a block has when it starts, where the block is to have all of
/// a multiprocessor's: they are given out by eights, and a thread has at most 256.
pub(crate) fn registers_at_launch(threads: i64) -> i64 {
    (65_536 / threads.max(1) / 8 * 8).min(256)
}

impl fmt::Display for Arch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.row().name)
    }
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
