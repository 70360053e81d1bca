//! Plans: what is grouped, why not more, and what it is lowered to.

#![allow(clippy::unwrap_used)] // A failed unwrap is a failed test.

mod channels_last;
mod convolutions;
mod coverage;
mod decoders;
mod explained;
mod fixtures;
mod gated;
mod groups;
mod kernels;
mod launched;
mod layers;
mod library;
mod lookups;
mod lowering;
mod precision;
mod quantised;
mod reductions;
mod resize;
mod spellings;
mod tf32;
mod trees;
mod tuning;
mod zoo;

use graphene_frontend::dim::{Bindings, Symbol};
use graphene_frontend::graph::Graph;
use graphene_frontend::tensor::Tensor;
use graphene_frontend::text::parse;
use graphene_fusion::groups::Groups;
use graphene_fusion::{Granularity, Planned, Report, explain, lower, partition};
use graphene_ir::target::Target;

/// The graph of this text; `@0`, `@1`, … are zeros of these shapes, written as `@0 _`.
fn graph(text: &str, weights: &[&[usize]]) -> Graph {
    let weights: Vec<Tensor> = weights
        .iter()
        .map(|shape| {
            let len = shape.iter().product();
            Tensor::from_vec(shape.to_vec(), vec![0.0_f32; len]).unwrap()
        })
        .collect();
    let mut text = text.to_owned();
    for (i, weight) in weights.iter().enumerate() {
        let hash = graphene_frontend::text::content_hash(weight);
        text = text.replace(&format!("@{i} _"), &format!("@{i} {hash:016x}"));
    }
    parse(&text, &weights).unwrap_or_else(|error| panic!("{error}\n{text}"))
}

fn sizes(sizes: &[(&str, i64)]) -> Bindings {
    let mut bindings = Bindings::new();
    for &(name, size) in sizes {
        bindings.bind(Symbol::new(name), size).unwrap();
    }
    bindings
}

fn plan(graph: &Graph, target: &str, hints: &Bindings) -> Groups {
    let target: Target = target.parse().unwrap();
    partition(graph, &target, Granularity::Fused, hints)
}

/// A graph's plan, which is not rewritten.
fn planned(graph: &Graph, target: &str, hints: &Bindings) -> Planned {
    let (groups, target) = (plan(graph, target, hints), target.parse().unwrap());
    let program = lower(graph, &groups, &target, Granularity::Fused).unwrap();
    Planned { graph: graph.clone(), report: Report::default(), groups, program }
}

/// The lines that explain it.
fn explained(graph: &Graph, target: &str, hints: &Bindings) -> String {
    let lines = explain(&planned(graph, target, hints), &target.parse().unwrap(), hints);
    lines.iter().map(|line| format!("{line}\n")).collect()
}
