//! Parameters that are searched: which steps have any, that kernels are made of them, and how they come into a program.

use crate::fixtures::imported;
use crate::sizes;
use graphene_frontend::dim::Bindings;
use graphene_frontend::dtype::DType;
use graphene_fusion::groups::Family;
use graphene_fusion::kernels::launches;
use graphene_fusion::program::{Program, Step};
use graphene_fusion::tuning::{
    Choice, Parameters, candidates, fingerprint, tuned, with_parameters,
};
use graphene_fusion::{Granularity, plan_in};
use graphene_ir::target::Target;
use graphene_ir::verify::verify;
use std::collections::{BTreeMap, BTreeSet};

/// A model of two layers in half precision, for a target.
fn planned(target: &str) -> (Program, Target) {
    let target: Target = target.parse().unwrap();
    let half = Some(DType::F16);
    let planned =
        plan_in(&imported("bert-tiny"), &target, Granularity::Fused, &Bindings::new(), half);
    (planned.unwrap().program, target)
}

fn of(program: &Program, family: Family) -> Vec<&Step> {
    program.steps().iter().filter(|step| step.family == family).collect()
}

#[test]
fn parameters_are_read_back() {
    for text in [
        "gemm columns=192 consumers=2 strips=1 ping_pong=1 stages=4 cluster=2 split=1",
        "fmha consumers=3 keys=96 stages=2",
    ] {
        assert_eq!(text.parse::<Parameters>().unwrap().to_string(), text);
    }
    for text in [
        "",
        "gemm",
        "fmha consumers=3 keys=96",
        "fmha consumers=3 keys=96 stages=2 more=1",
        "fmha consumers=3 keys=96 keys=96 stages=2",
        "fmha consumers=3 keys=x stages=2",
        "fmha consumers=3 keys=-16 stages=2",
        "conv consumers=3 keys=96 stages=2",
        "fmha consumers=3 keys=99999999999 stages=2",
    ] {
        let error = text.parse::<Parameters>().unwrap_err().to_string();
        assert_eq!(error, format!("`{text}` are no parameters of a template"));
    }
}

#[test]
fn every_candidate_is_a_kernel_that_verifies_and_fits() {
    let (program, target) = planned("sm_90a");
    for (family, least) in [(Family::MatMul, 20), (Family::Fmha, 8)] {
        let steps = of(&program, family);
        let step = steps.first().unwrap_or_else(|| panic!("there is a {family}"));
        let all = candidates(&program, step, &target);
        assert!(all.len() >= least && all.len() <= 120, "{} of {}", all.len(), step.name);
        assert_eq!(all.iter().collect::<BTreeSet<_>>().len(), all.len(), "one is there twice");
        assert_eq!(
            all,
            candidates(&program, step, &target),
            "a search that goes on needs an order"
        );
        // All were made; a few are verified here.
        for parameters in all.iter().step_by(23) {
            let made = launches(&program, &with_parameters(step, *parameters), &target).unwrap();
            let [launch] = &made[..] else { panic!("{parameters}: {} kernels", made.len()) };
            assert_eq!(verify(&launch.kernel), [], "{parameters}");
        }
    }
}

#[test]
fn other_targets_and_families_have_none() {
    let (program, target) = planned("sm_80");
    // No kernel of Hopper's is made for it, so that one step of each family says it.
    for step in [of(&program, Family::MatMul)[0], of(&program, Family::Fmha)[0]] {
        assert_eq!(candidates(&program, step, &target), [], "{}", step.name);
    }
    let (program, target) = planned("sm_90a");
    for step in of(&program, Family::Normalization) {
        assert_eq!(candidates(&program, step, &target), [], "{}", step.name);
    }
}

/// Layers compute the same in other nodes, so that what is found for one is for all.
#[test]
fn equal_steps_have_equal_fingerprints() {
    let (program, target) = planned("sm_90a");
    let attention = of(&program, Family::Fmha);
    assert!(attention.len() >= 2);
    let prints: BTreeSet<_> =
        attention.iter().map(|step| fingerprint(&program, step, &target)).collect();
    assert_eq!(prints.len(), 1);
    let all: BTreeSet<_> =
        program.steps().iter().map(|step| fingerprint(&program, step, &target)).collect();
    assert!(all.len() > 3 && all.len() < program.steps().len(), "{}", all.len());
    let (single, _) = planned("sm_80");
    let other = of(&single, Family::Fmha);
    assert_eq!(fingerprint(&single, other[0], &target), *prints.first().unwrap());
    let rounded = Target { tf32: true, ..target };
    assert_ne!(fingerprint(&program, attention[0], &rounded), *prints.first().unwrap());
}

#[test]
fn choices_are_variants_at_their_sizes() {
    let (program, target) = planned("sm_90a");
    let step = of(&program, Family::Fmha)[0];
    let parameters: Parameters = "fmha consumers=1 keys=64 stages=2".parse().unwrap();
    let choice = |fingerprint: String| Choice {
        fingerprint,
        sizes: BTreeMap::from([("batch".to_owned(), 2), ("sequence".to_owned(), 16)]),
        parameters,
    };
    // Of the same step, but with more shared memory than there is, and a matmul's.
    let stale = [
        "fmha consumers=2 keys=128 stages=60",
        "gemm columns=64 consumers=1 strips=1 ping_pong=0 stages=4 cluster=1 split=1",
    ];
    let stale = stale.map(|text| Choice {
        parameters: text.parse().unwrap(),
        ..choice(fingerprint(&program, step, &target))
    });
    let fresh = [choice(fingerprint(&program, step, &target)), choice("0".to_owned())];
    let choices = [stale.to_vec(), fresh.to_vec()].concat();
    let (after, left) = tuned(program.clone(), &choices, &target);
    assert_eq!(left, stale.iter().collect::<Vec<_>>());
    let (at, elsewhere) =
        (sizes(&[("batch", 2), ("sequence", 16)]), sizes(&[("batch", 3), ("sequence", 16)]));
    for (before, step) in program.steps().iter().zip(after.steps()) {
        let (was, is) = (before.variants.all(), step.variants.all());
        if step.family != Family::Fmha {
            assert_eq!(was, is);
            continue;
        }
        assert_eq!(is[0].parameters, Some(parameters));
        assert_eq!(&is[1..], was);
        assert!(step.variants.to_string().starts_with("tuned if batch = 2 and sequence = 16, "));
        assert_eq!(step.variants.choose(&at).unwrap(), 0);
        let otherwise = before.variants.choose(&elsewhere).unwrap();
        assert_eq!(step.variants.choose(&elsewhere).unwrap(), otherwise + 1);
        let made = launches(&after, step, &target).unwrap();
        assert_eq!(made.len(), is.len());
    }
}
