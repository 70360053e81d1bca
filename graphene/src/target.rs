//! The machines to plan for, as plain values.
//!
//! Planning and emission take a [`Target`] rather than ask a device, so that plans for any machine
//! are made and tested on any other.

use std::str::FromStr;

use crate::{Arch, Error, Feature, convert::display};

/// A machine with the rates and limits that planning uses.
#[derive(Debug, Clone, PartialEq)]
pub struct Target {
    /// What executes.
    pub kind: Kind,
    /// Peak rates of arithmetic, in FLOP/s for the whole machine.
    pub peak: Peak,
    /// Bandwidth of the main memory, in bytes/s.
    pub memory_bandwidth: f64,
    /// The cost of starting one kernel after another in a recorded graph, in seconds. An estimate
    /// for planning: some microseconds on a GPU; on a CPU, waking the worker threads.
    pub launch_cost: f64,
    /// The number of streaming multiprocessors, or of CPU cores.
    pub cores: u32,
    /// Shared memory that one block may use, in bytes; on a CPU, the cache that a core has to itself.
    pub shared_memory_per_block: u64,
    /// Registers of 32 bits of a multiprocessor; on a CPU, lanes of 32 bits in a core's vector registers.
    pub registers_per_core: u32,
    /// The second-level cache of a GPU, or the last-level cache of a CPU, in bytes.
    pub l2_bytes: u64,
    /// Whether matmuls of single precision may round their operands to TF32, so that matrix units
    /// make them, where it has [`Feature::MmaTf32`]. No target does unless it is asked to.
    pub tf32: bool,
    /// Likewise, whether a CPU's matmuls of single precision by weights may round both operands to bf16.
    pub bf16: bool,
}

/// What executes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// The cores of a host.
    Cpu,
    /// A GPU of this architecture.
    Cuda(Arch),
}

/// A class of arithmetic with one peak rate, named by the type of its operands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Precision {
    /// Single precision on the vector units.
    F32,
    /// Single precision rounded to 10 bits of mantissa, on matrix units.
    Tf32,
    /// Half precision on matrix units, accumulated in single precision.
    F16,
    /// Bfloat16 on matrix units, accumulated in single precision.
    Bf16,
}

/// Peak rates in FLOP/s, a multiply-add being two, in the order of [`Precision`]'s variants. Where a machine lacks a precision,
/// the rate of the single precision that stands in for it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Peak([f64; 4]);

impl Peak {
    /// The rate of one class, in FLOP/s.
    pub fn of(&self, precision: Precision) -> f64 {
        self.0[precision as usize]
    }
}

/// One GPU: architecture, TFLOP/s by precision, GB/s, multiprocessors, MiB of second-level cache.
type Gpu = (Arch, [f64; 4], f64, u32, u64);

/// Rates are those of one common board of each architecture; a plan needs their ratios more than their last digit. The register
/// file has 65536 registers on all of them (CUDA C++ Programming Guide, compute capabilities).
///
/// - `sm_70`: Tesla V100 SXM2 data sheet and Volta architecture whitepaper. No tf32, no bf16.
/// - `sm_75`: Tesla T4 data sheet and Turing architecture whitepaper. No tf32, no bf16.
/// - `sm_80`: A100 40 GB SXM data sheet (1555 GB/s) and Ampere architecture whitepaper.
/// - `sm_86`: A10 data sheet; a GeForce RTX 3080 has similar rates.
/// - `sm_90a`: H200 SXM. The data sheet says 989 TFLOP/s dense for f16 and 4.8 TB/s; about 790 and
///   4.0 are reachable, so these are used, tf32 at half of f16; f32 as in the data sheet.
/// - `sm_89`: L4 data sheet (dense) and Ada architecture whitepaper.
/// - `sm_100a`: HGX B200 data sheet for f32 and memory. Of the tensor cores, what warps have by Ampere's instructions, if that is
///   as much of each multiprocessor and cycle as on an A100 (not measured): the data sheet's 2250 need instructions that we lack.
/// - `sm_120`: GeForce RTX 5090 of the RTX Blackwell architecture whitepaper, f16 summed in single precision.
#[rustfmt::skip]
const GPUS: &[Gpu] = &[
    //   arch         f32    tf32   f16    bf16     GB/s   SMs  MiB
    (Arch::Sm70,   [ 15.7,  15.7, 125.0,  15.7],  900.0,  80,   6),
    (Arch::Sm75,   [  8.1,   8.1,  65.0,   8.1],  320.0,  40,   4),
    (Arch::Sm80,   [ 19.5, 156.0, 312.0, 312.0], 1500.0, 108,  40),
    (Arch::Sm86,   [ 31.2,  62.5, 125.0, 125.0],  600.0,  72,   6),
    (Arch::Sm89,   [ 30.3,  60.0, 121.0, 121.0],  300.0,  58,  48),
    (Arch::Sm90a,  [ 66.9, 395.0, 790.0, 790.0], 4000.0, 132,  50),
    (Arch::Sm100a, [ 75.0, 280.0, 560.0, 560.0], 8000.0, 148, 126),
    (Arch::Sm120,  [104.8, 104.8, 209.5, 209.5], 1792.0, 170,  96),
];

impl Target {
    /// A host with `cores` cores (at least one is assumed). Per core, at 3 GHz with two 256-bit multiply-adds a cycle, 96 GFLOP/s
    /// in every precision, since all are computed in single; 10 GB/s of memory bandwidth up to 200 GB/s; 1 MiB of cache of its
    /// own and 1.5 MiB of the last level. These are estimates of a common server core, not of a particular one.
    pub fn cpu(cores: u32) -> Target {
        let cores = cores.max(1);
        let rate = 96e9 * f64::from(cores);
        Target {
            kind: Kind::Cpu,
            peak: Peak([rate; 4]),
            memory_bandwidth: (10e9 * f64::from(cores)).min(200e9),
            launch_cost: 5e-6,
            cores,
            shared_memory_per_block: 1 << 20,
            registers_per_core: 16 * 8,
            l2_bytes: u64::from(cores) * (3 << 19),
            tf32: false,
            bf16: false,
        }
    }

    fn gpu((arch, tflops, gigabytes, cores, l2): Gpu) -> Target {
        Target {
            kind: Kind::Cuda(arch),
            peak: Peak(tflops.map(|tflops| tflops * 1e12)),
            memory_bandwidth: gigabytes * 1e9,
            launch_cost: 2e-6,
            cores,
            shared_memory_per_block: arch.shared_memory().unsigned_abs(),
            registers_per_core: 65536,
            l2_bytes: l2 << 20,
            tf32: false,
            bf16: false,
        }
    }

    /// The architecture, if it is a GPU.
    pub fn arch(&self) -> Option<Arch> {
        if let Kind::Cuda(arch) = self.kind { Some(arch) } else { None }
    }

    /// Whether it is a GPU that has a feature.
    pub fn has(&self, feature: Feature) -> bool {
        self.arch().is_some_and(|arch| arch.has(feature))
    }

    /// How matmuls of single precision are made.
    pub fn single(&self) -> Precision {
        match (self.tf32, self.bf16) {
            (true, _) => Precision::Tf32,
            (false, true) => Precision::Bf16,
            (false, false) => Precision::F32,
        }
    }

    /// The name that parses back to this kind of target: `cpu`, `cpu:8`, `sm_90a`.
    pub fn name(&self) -> String {
        match self.kind {
            Kind::Cpu if self.cores == 1 => "cpu".to_string(),
            Kind::Cpu => format!("cpu:{}", self.cores),
            Kind::Cuda(arch) => arch.to_string(),
        }
    }
}

display! {
    Target: |target, f| f.write_str(&target.name());
}

impl FromStr for Target {
    type Err = Error;

    /// Reads `cpu` (one core), `cpu:N`, or the name of a GPU architecture.
    fn from_str(name: &str) -> Result<Target, Error> {
        if let Some(gpu) = GPUS.iter().find(|gpu| gpu.0.name() == name) {
            return Ok(Target::gpu(*gpu));
        }
        let cores = match name {
            "cpu" => Some(1),
            _ => name.strip_prefix("cpu:").and_then(|cores| cores.parse().ok()),
        };
        cores.filter(|cores| *cores > 0).map(Target::cpu).ok_or_else(|| {
            let known: Vec<_> = std::iter::once("cpu").chain(Arch::ALL.map(|row| row.1)).collect();
            Error::UnknownTarget { name: name.to_string(), known: known.join(", ") }
        })
    }
}
