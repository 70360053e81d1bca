//! Rooflines: the least time that a step's work takes, by rates that no step should exceed.

use crate::work::Work;
use graphene_ir::target::{Kind, Precision, Target};
use graphene_runtime::cpu::{Rates, rates};
use serde::Serialize;
use std::sync::OnceLock;

/// The rates that steps are held against.
#[derive(Serialize, Clone, PartialEq, Debug)]
pub(crate) struct Roof {
    /// Where they are from.
    pub(crate) source: Source,
    /// Tera-operations a second by the type of a matmul's operands.
    pub(crate) tflops_per_s: Peaks,
    /// Gigabytes a second, from the memory beyond the caches.
    pub(crate) gbytes_per_s: f64,
    /// For a CPU, gigabytes a second by how many bytes work reads: what fits a cache comes from there.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) cached: Vec<Cached>,
}

/// Where the rates of a [`Roof`] are from.
#[derive(Serialize, Clone, Copy, PartialEq, Eq, Debug)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Source {
    /// This run has measured them.
    Measured,
    /// They are those of the target, which common boards of its kind reach.
    Target,
}

/// Tera-operations a second.
#[derive(Serialize, Clone, Copy, PartialEq, Debug)]
pub(crate) struct Peaks {
    f32: f64,
    tf32: f64,
    f16: f64,
    bf16: f64,
    /// Of matmuls of bytes, where that is known; those of single precision stand in for it elsewhere.
    #[serde(skip_serializing_if = "Option::is_none")]
    int8: Option<f64>,
}

/// The bandwidth of so many bytes and more.
#[derive(Serialize, Clone, Copy, PartialEq, Debug)]
pub(crate) struct Cached {
    bytes: u64,
    gbytes_per_s: f64,
}

impl Roof {
    /// The roof of what runs programs: for a CPU with so many threads, its rates are measured once a process; a GPU's are
    /// those of its target.
    pub(crate) fn of(target: &Target, threads: usize) -> Self {
        static MEASURED: OnceLock<Rates> = OnceLock::new();
        match target.kind {
            Kind::Cpu => Self::measured(MEASURED.get_or_init(|| rates(threads)), target.single()),
            Kind::Cuda { .. } => Self::planned(target),
        }
    }

    /// The rates that a target is planned with.
    pub(crate) fn planned(target: &Target) -> Self {
        let tera = |precision| target.peak.of(precision) / 1e12;
        let [f32, f16, bf16] = [Precision::F32, Precision::F16, Precision::Bf16].map(tera);
        let tf32 = tera(target.single());
        let gbytes_per_s = target.memory_bandwidth / 1e9;
        let tflops_per_s = Peaks { f32, tf32, f16, bf16, int8: None };
        Self { source: Source::Target, tflops_per_s, gbytes_per_s, cached: Vec::new() }
    }

    /// A CPU's, which computes in single precision whatever it is given, but for matmuls of bytes and by weights of bf16; `single` is how
    /// matmuls of single precision are made.
    fn measured(rates: &Rates, single: Precision) -> Self {
        let [tera, bf16, int8] = [rates.flops, rates.bf16, rates.int8].map(|flops| flops / 1e12);
        let matmuls = if single == Precision::Bf16 { bf16 } else { tera };
        let cached = rates.bandwidth.iter();
        Self {
            source: Source::Measured,
            tflops_per_s: Peaks { f32: tera, tf32: matmuls, f16: tera, bf16, int8: Some(int8) },
            gbytes_per_s: rates.memory() / 1e9,
            cached: cached
                .map(|&(bytes, rate)| Cached { bytes, gbytes_per_s: rate / 1e9 })
                .collect(),
        }
    }

    /// Seconds that work takes at least.
    pub(crate) fn least_seconds(&self, work: Work) -> f64 {
        let (arithmetic, traffic) = self.seconds(work);
        arithmetic.max(traffic)
    }

    /// What takes longer: `memory` or `arithmetic`.
    pub(crate) fn bound(&self, work: Work) -> &'static str {
        let (arithmetic, traffic) = self.seconds(work);
        if arithmetic > traffic { "arithmetic" } else { "memory" }
    }

    /// Seconds of arithmetic and of traffic with memory.
    fn seconds(&self, work: Work) -> (f64, f64) {
        let Peaks { f32, tf32, f16, bf16, int8 } = self.tflops_per_s;
        let flops = work.flops;
        let rows = [
            (flops.f16, f16),
            (flops.bf16, bf16),
            (flops.bytes, int8.unwrap_or(f32)),
            (flops.single, tf32),
            (flops.other, f32),
        ];
        let seconds = rows.map(|(flops, tera)| flops as f64 / (tera * 1e12));
        // Work on fewer bytes than were measured is not known to be slower.
        let cached = self.cached.iter().rev().find(|cached| cached.bytes <= work.bytes);
        let cached = cached.or(self.cached.first()).map(|cached| cached.gbytes_per_s);
        let bandwidth = cached.unwrap_or(self.gbytes_per_s) * 1e9;
        (seconds.iter().sum(), work.bytes as f64 / bandwidth)
    }

    /// The part of the roof that work reaches which takes so many seconds, at most 1, and whether it would be more.
    pub(crate) fn share(&self, work: Work, seconds: f64) -> (f64, bool) {
        let share = self.least_seconds(work) / seconds.max(1e-12);
        (share.min(1.0), share > 1.0)
    }

    /// What steps were held against, and what it means to be beyond.
    pub(crate) fn said(&self, beyond: bool) -> String {
        let Self { source, tflops_per_s: Peaks { f32, f16, bf16, int8, .. }, .. } = self;
        let gbytes_per_s = self.gbytes_per_s;
        let faster = [(Some(*bf16), "matmuls of bf16"), (*int8, "matmuls of bytes")];
        let faster = faster.map(|(rate, what)| {
            let rate = rate.filter(|rate| rate > f32);
            let said = |rate| format!(", {} in {what}", crate::human::digits(rate * 1e3));
            rate.map_or_else(String::new, said)
        });
        let rates = match source {
            Source::Measured => format!(
                "measured just now: {} GFLOP/s{}, {} GB/s from memory, more from caches",
                crate::human::digits(f32 * 1e3),
                faster.concat(),
                crate::human::digits(gbytes_per_s)
            ),
            Source::Target => format!(
                "the target's: {} TFLOP/s in f32, {} in f16, {} GB/s",
                crate::human::digits(*f32),
                crate::human::digits(*f16),
                crate::human::digits(gbytes_per_s)
            ),
        };
        let beyond =
            if beyond { "; ≥ 100 %: faster than that, as from a nearer cache" } else { "" };
        format!("roofline rates: {rates}{beyond}")
    }
}

#[cfg(test)]
mod tests {
    use super::{Roof, Source};
    use crate::work::{Flops, Work};
    use graphene_ir::target::{Precision, Target};
    use graphene_runtime::cpu::Rates;

    fn work(bytes: u64, flops: u64) -> Work {
        Work { bytes, flops: Flops { other: flops, ..Flops::default() } }
    }

    fn roof(single: Precision) -> Roof {
        let bandwidth = vec![(1 << 10, 8e9), (1 << 20, 1e9)];
        Roof::measured(&Rates { flops: 1e9, bf16: 2e9, int8: 4e9, bandwidth }, single)
    }

    #[test]
    fn work_is_bound_by_what_takes_longest() {
        let near = |work: super::Work, seconds: f64| {
            let least = roof(Precision::F32).least_seconds(work);
            assert!((least - seconds).abs() < 1e-12, "{least} {seconds}");
        };
        near(work(0, 1_000_000), 1e-3);
        let matmuls = Work { bytes: 0, flops: Flops { single: 1_000_000, ..Flops::default() } };
        near(matmuls, 1e-3);
        assert_eq!(roof(Precision::Bf16).least_seconds(matmuls), 0.5e-3);
        let bytes = Work { bytes: 0, flops: Flops { bytes: 1_000_000, ..Flops::default() } };
        near(bytes, 0.25e-3);
        assert_eq!(
            [roof(Precision::F32).bound(work(0, 1)), roof(Precision::F32).bound(work(1, 0))],
            ["arithmetic", "memory"]
        );
        // What fits a cache is read from there.
        near(work(8 << 10, 0), 1.024e-6);
        near(work(1 << 20, 0), (1 << 20) as f64 / 1e9);
        near(work(100, 0), 100.0 / 8e9);
    }

    #[test]
    fn no_share_is_more_than_all() {
        let work = work(0, 1_000_000);
        assert_eq!(roof(Precision::F32).share(work, 2e-3), (0.5, false));
        assert_eq!(roof(Precision::F32).share(work, 1e-3), (1.0, false));
        assert_eq!(roof(Precision::F32).share(work, 0.5e-3), (1.0, true));
        assert_eq!(roof(Precision::F32).share(work, 0.0), (1.0, true));
    }

    #[test]
    fn rates_say_where_they_are_from() {
        let gpu: Target = "sm_90a".parse().unwrap();
        let planned = Roof::of(&gpu, 2);
        assert_eq!(planned.source, Source::Target);
        assert!(planned.said(false).contains("the target's: 66.9 TFLOP/s in f32, 790 in f16"));
        let measured = Roof::of(&Target::cpu(2), 2);
        assert_eq!(measured.source, Source::Measured);
        assert!(measured.said(true).contains("measured just now") && !measured.cached.is_empty());
        // Once a process.
        assert_eq!(Roof::of(&Target::cpu(2), 2), measured);
    }
}
