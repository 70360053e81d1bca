//! Targets: names round-trip, and values are in range.

use graphene_ir::Target;
use graphene_ir::arch::{Arch, Feature};
use graphene_ir::target::{Kind, Precision};

fn check_target(name: &str, kind: Kind, cores: u32, shared: u64, f16: f64, bandwidth: f64) {
    let target: Target = name.parse().unwrap();
    assert_eq!(target.to_string(), name);
    assert_eq!(target.kind, kind);
    assert_eq!(target.cores, cores);
    assert_eq!(target.shared_memory_per_block, shared);
    assert_eq!(target.peak.of(Precision::F16), f16);
    assert_eq!(target.memory_bandwidth, bandwidth);
    assert!(target.peak.of(Precision::F32) <= target.peak.of(Precision::Tf32));
    assert!(target.launch_cost > 0.0 && target.l2_bytes > 0);
}

#[test]
fn targets() {
    check_target("cpu", Kind::Cpu, 1, 1 << 20, 96e9, 10e9);
    check_target("cpu:64", Kind::Cpu, 64, 1 << 20, 64.0 * 96e9, 200e9);
    check_target("sm_70", Kind::Cuda(Arch::Sm70), 80, 96 << 10, 125e12, 900e9);
    check_target("sm_75", Kind::Cuda(Arch::Sm75), 40, 64 << 10, 65e12, 320e9);
    check_target("sm_80", Kind::Cuda(Arch::Sm80), 108, 163 << 10, 312e12, 1.5e12);
    check_target("sm_86", Kind::Cuda(Arch::Sm86), 72, 99 << 10, 125e12, 600e9);
    check_target("sm_90a", Kind::Cuda(Arch::Sm90a), 132, 227 << 10, 790e12, 4e12);
}

/// What each architecture has that the one before it lacks.
#[test]
fn features() {
    let news: [&[Feature]; 5] = [
        &[Feature::QuadPairs],
        &[Feature::Ldmatrix, Feature::MmaK8],
        &[
            Feature::MmaK16,
            Feature::MmaBf16,
            Feature::MmaTf32,
            Feature::CpAsync,
            Feature::PackedCvt,
        ],
        &[],
        &[
            Feature::Stmatrix,
            Feature::Mbarrier,
            Feature::Tma,
            Feature::Cluster,
            Feature::Wgmma,
            Feature::Setmaxnreg,
            Feature::GridDependency,
        ],
    ];
    let mut had = Vec::new();
    for ((arch, name), news) in Arch::ALL.into_iter().zip(news) {
        assert!(arch.needs(&had).is_ok(), "{name} has what others had");
        for &feature in news {
            let lacking = Arch::ALL.iter().take_while(|row| row.0 != arch);
            assert!(arch.has(feature), "{name} has {feature}");
            assert!(lacking.clone().all(|row| !row.0.has(feature)), "{feature} is new on {name}");
        }
        had.extend_from_slice(news);
    }
    let lacks =
        Arch::Sm75.needs(&[Feature::Ldmatrix, Feature::CpAsync, Feature::Wgmma]).unwrap_err();
    assert_eq!(lacks.to_string(), "needs cp.async, which sm_75 lacks");
    let target: Target = "cpu".parse().unwrap();
    assert!(!target.has(Feature::QuadPairs) && target.arch().is_none());
}

#[test]
fn unknown_targets_list_the_known() {
    for name in ["", "sm_90", "cpu:0", "cpu:x", "SM_80"] {
        let message = name.parse::<Target>().unwrap_err().to_string();
        assert_eq!(
            message,
            format!(
                "unknown target `{name}`; known: cpu, sm_70, sm_75, sm_80, sm_86, sm_90a, \
                 and cpu:N for N cores"
            )
        );
    }
}
