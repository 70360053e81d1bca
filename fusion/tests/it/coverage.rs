//! Templates make kernels of every step of the fixtures and of the zoo's models, on every target and in every type.

use crate::{fixtures, kernels::TARGETS, zoo};
use graphene_frontend::dim::Bindings;
use graphene_frontend::dtype::DType;
use graphene_frontend::graph::Graph;
use graphene_fusion::kernels::launches;
use graphene_fusion::{Granularity, plan_in};
use graphene_ir::target::Target;

/// What is computed in: a model's own elements or others, and whether matmuls of single precision are of TF32.
type Precision = (Option<DType>, bool);

/// The steps that no template takes, and why.
fn refused(name: &str, graph: &Graph, types: &[Precision]) -> Vec<String> {
    let mut refused = Vec::new();
    for target in TARGETS {
        let target: Target = target.parse().unwrap();
        for &(elements, tf32) in types {
            let target = Target { tf32, ..target.clone() };
            let hints = Bindings::new();
            let planned = plan_in(graph, &target, Granularity::Fused, &hints, elements).unwrap();
            for step in planned.program.steps() {
                if let Err(refusal) = launches(&planned.program, step, &target) {
                    let step = &step.name;
                    refused.push(format!(
                        "{name} on {target} in {elements:?} {tf32}: {step}: {refusal}"
                    ));
                }
            }
        }
    }
    refused
}

#[test]
fn every_step_of_the_fixtures_has_a_kernel() {
    let types =
        [(None, false), (None, true), (Some(DType::F16), false), (Some(DType::BF16), false)];
    let refused: Vec<String> = fixtures::ALL
        .iter()
        .flat_map(|fixture| refused(fixture, &fixtures::imported(fixture), &types))
        .collect();
    assert_eq!(refused, [""; 0]);
}

#[test]
fn every_step_of_the_zoo_has_a_kernel() {
    let types = [(None, false), (None, true), (Some(DType::F16), false)];
    let refused: Vec<String> =
        zoo::imported().flat_map(|(name, graph)| refused(&name, &graph, &types)).collect();
    assert_eq!(refused, [""; 0]);
}
