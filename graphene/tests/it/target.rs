//! Targets: names round-trip, and values are in range.

use graphene_ir::Target;
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

fn cuda(major: u32, minor: u32, accelerated: bool) -> Kind {
    Kind::Cuda { major, minor, accelerated }
}

#[test]
fn targets() {
    check_target("cpu", Kind::Cpu, 1, 1 << 20, 96e9, 10e9);
    check_target("cpu:64", Kind::Cpu, 64, 1 << 20, 64.0 * 96e9, 200e9);
    check_target("sm_70", cuda(7, 0, false), 80, 96 << 10, 125e12, 900e9);
    check_target("sm_75", cuda(7, 5, false), 40, 64 << 10, 65e12, 320e9);
    check_target("sm_80", cuda(8, 0, false), 108, 163 << 10, 312e12, 1.5e12);
    check_target("sm_86", cuda(8, 6, false), 72, 99 << 10, 125e12, 600e9);
    check_target("sm_90a", cuda(9, 0, true), 132, 227 << 10, 790e12, 4e12);
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
