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
    check_target("sm_89", Kind::Cuda(Arch::Sm89), 58, 99 << 10, 121e12, 300e9);
    check_target("sm_100a", Kind::Cuda(Arch::Sm100a), 148, 227 << 10, 560e12, 8e12);
    check_target("sm_120", Kind::Cuda(Arch::Sm120), 170, 99 << 10, 209.5e12, 1.792e12);
    check_target("sm_90a", Kind::Cuda(Arch::Sm90a), 132, 227 << 10, 790e12, 4e12);
}

/// What each architecture has that some before it lack; but for those of Hopper alone, later ones have it as well.
#[test]
fn features() {
    let news: &[(Arch, &[Feature])] = &[
        (Arch::Sm70, &[Feature::QuadPairs]),
        (Arch::Sm75, &[Feature::Ldmatrix, Feature::MmaK8]),
        (Arch::Sm80, &[Feature::MmaK16, Feature::MmaBf16, Feature::MmaTf32]),
        (Arch::Sm80, &[Feature::CpAsync, Feature::PackedCvt]),
        (Arch::Sm90a, &[Feature::Stmatrix, Feature::Mbarrier, Feature::Tma]),
        (Arch::Sm90a, &[Feature::Cluster, Feature::GridDependency]),
    ];
    let hopper = [Feature::Wgmma, Feature::Setmaxnreg];
    for (arch, name) in Arch::ALL {
        for (first, features) in news {
            for &feature in *features {
                let has = arch.capability() >= first.capability();
                assert_eq!(arch.has(feature), has, "{name}: {feature}");
            }
        }
        assert!(hopper.iter().all(|&feature| arch.has(feature) == (arch == Arch::Sm90a)), "{name}");
    }
    let known = news.iter().map(|row| row.1.len()).sum::<usize>() + hopper.len();
    assert_eq!(known, Feature::ALL.len());
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
                "unknown target `{name}`; known: cpu, sm_70, sm_75, sm_80, sm_86, sm_89, \
                 sm_90a, sm_100a, sm_120, and cpu:N for N cores"
            )
        );
    }
}

/// Machine code of which architecture a GPU runs: of its own major capability, of architectures that have instructions that no
/// later one has, its own minor one only.
#[test]
fn capabilities() {
    let runs = |capability| -> Vec<&str> {
        Arch::ALL.iter().filter(|row| row.0.runs_on(capability)).map(|row| row.1).collect()
    };
    assert_eq!(runs((7, 2)), ["sm_70"]);
    assert_eq!(runs((8, 9)), ["sm_80", "sm_86", "sm_89"]);
    assert_eq!(runs((9, 0)), ["sm_90a"]);
    assert_eq!(runs((10, 0)), ["sm_100a"]);
    assert_eq!(runs((10, 3)), [""; 0]);
    assert_eq!(runs((12, 1)), ["sm_120"]);
}
