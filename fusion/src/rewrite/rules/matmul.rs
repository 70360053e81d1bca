//! Matmuls: projections of one value become one matmul.

use crate::rewrite::rule::{Rule, Site, rule};
use egg::Id;
use graphene_frontend::{Binary, Dim, Op, SliceAxis};
use std::collections::BTreeSet;

#[rustfmt::skip]
pub(super) const RULES: &[Rule] = &[
    rule("merge-projections", "(MatMul ?x ?w)", &[], merge_projections),
];

/// A matmul of a value with a weight, and the sum with its bias if it has one.
struct Projection {
    /// What the rest of the graph reads.
    result: Id,
    weight: Id,
    bias: Option<Id>,
    width: i64,
}

/// Several matmuls of one value with weights side by side are slices of one matmul.
fn merge_projections(s: &mut Site<'_>) -> Option<Id> {
    let (x, own) = (s.var("x"), s.terms.find(s.var("w")));
    let projections = projections(s, x);
    // All of them are merged at once, where the first one stands.
    if projections.len() < 2 || projections.first()?.weight != own {
        return None;
    }
    let merged = merged(s, x, &projections)?;
    let axis = s.ty(merged)?.rank() - 1;
    let mut start = 0;
    for Projection { result, width, .. } in projections {
        let range = SliceAxis { axis, start: Dim::from(start), len: Dim::from(width), step: 1 };
        start += width;
        let slice = s.add(Op::Slice(vec![range]), &[merged])?;
        s.equate(result, slice);
    }
    None
}

/// The matmul with all weights side by side, with all biases if there are any.
fn merged(s: &mut Site<'_>, x: Id, projections: &[Projection]) -> Option<Id> {
    let weights: Vec<Id> = projections.iter().map(|p| p.weight).collect();
    let weight = s.add(Op::Concat { axis: 1 }, &weights)?;
    let matmul = s.add(Op::MatMul, &[x, weight])?;
    if projections.iter().all(|p| p.bias.is_none()) {
        return Some(matmul);
    }
    let biases = projections.iter().map(|own| own.bias.or_else(|| s.zeros(x, own.width)));
    let biases = biases.collect::<Option<Vec<_>>>()?;
    let bias = s.add(Op::Concat { axis: 0 }, &biases)?;
    s.binary(Binary::Add, matmul, bias)
}

/// The matmuls of a value with constant weights, by the order in which they came.
fn projections(s: &Site<'_>, x: Id) -> Vec<Projection> {
    let mut found: Vec<Projection> = Vec::new();
    for class in readers(s, x) {
        for [a, weight] in s.operands(class, "MatMul") {
            let weight = s.terms.find(weight);
            if s.terms.find(a) != s.terms.find(x) || found.iter().any(|p| p.weight == weight) {
                continue;
            }
            found.extend(projection(s, class, weight));
        }
    }
    found
}

fn readers(s: &Site<'_>, id: Id) -> BTreeSet<Id> {
    s.terms[id].parents().map(|reader| s.terms.find(reader)).collect()
}

fn projection(s: &Site<'_>, matmul: Id, weight: Id) -> Option<Projection> {
    let ty = s.ty(weight)?;
    // A merged weight is merged no further.
    let merged = !s.operations(weight, "Concat").is_empty();
    if ty.rank() != 2 || !s.is_constant(weight) || merged {
        return None;
    }
    let width = ty.shape[1].known()?;
    for sum in readers(s, matmul) {
        for [a, bias] in s.operands(sum, "Add") {
            let of_matmul = s.terms.find(a) == matmul && s.is_constant(bias);
            if of_matmul && s.shape(bias)? == [Dim::from(width)] {
                return Some(Projection { result: sum, weight, bias: Some(bias), width });
            }
        }
    }
    Some(Projection { result: matmul, weight, bias: None, width })
}
