//! Soundness: in a saturated e-graph all terms of a class have one value.

mod left;
mod rows;

use super::block::blocks;
use super::language::{Head, Term, Terms, operation};
use super::rules::compiled;
use super::saturate::saturate;
use egg::{Id, Language};
use graphene_frontend::dim::{Bindings, Symbol};
use graphene_frontend::dtype::DType;
use graphene_frontend::eval::evaluate_op;
use graphene_frontend::graph::Graph;
use graphene_frontend::import::{ImportOptions, import, read_model};
use graphene_frontend::op::{Binary, Op};
use graphene_frontend::tensor::Tensor;
use graphene_frontend::testdata::compare;
use graphene_frontend::types::TensorType;
use half::{bf16, f16};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// Numbers that look random and are not: multiples of 1/64 between -2 and 2, scaled.
struct Numbers {
    seed: u64,
    scale: f64,
}

impl Numbers {
    fn next(&mut self) -> f64 {
        self.seed = self
            .seed
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        ((self.seed >> 33) % 257) as f64 / 64.0 - 2.0
    }

    fn tensor(mut self, ty: &TensorType, sizes: &Bindings) -> Tensor {
        let shape = ty.bound_shape(sizes).unwrap();
        let len = shape.iter().product();
        let numbers: Vec<f64> = (0..len).map(|_| self.next()).collect();
        let x = numbers.iter();
        let scaled = numbers.iter().map(|x| x * self.scale);
        match ty.dtype {
            DType::F32 => Tensor::from_vec(shape, scaled.map(|x| x as f32).collect()),
            DType::F64 => Tensor::from_vec(shape, scaled.collect()),
            DType::F16 => Tensor::from_vec(shape, scaled.map(f16::from_f64).collect()),
            DType::BF16 => Tensor::from_vec(shape, scaled.map(bf16::from_f64).collect()),
            DType::Bool => Tensor::from_bools(shape, x.map(|&x| x > -1.0).collect()),
            // Indices and masks: one or nothing.
            DType::I64 => Tensor::from_vec(shape, x.map(|&x| i64::from(x > -1.0)).collect()),
            DType::I32 => Tensor::from_vec(shape, x.map(|&x| i32::from(x > -1.0)).collect()),
            other => {
                let whole = x.map(|&x| (x * 64.0).abs() as f32).collect();
                let whole = Tensor::from_vec(shape, whole).unwrap();
                let cast = Op::Cast { to: other, saturate: true };
                evaluate_op(&cast, &[Some(&whole)], sizes).map(|mut all| all.remove(0))
            }
            .map_err(|error| panic!("{other}: {error}")),
        }
        .unwrap()
    }
}

/// Evaluates every term of every class on random inputs; panics where two of a class differ.
fn check_classes(what: &str, terms: &Terms, sizes: &Bindings) -> usize {
    let inputs = terms.analysis.inputs.iter().zip(1..);
    // Weights are small, or scores in 16-bit types are all rounding.
    let inputs = inputs.map(|((ty, weight), seed)| {
        let numbers = Numbers { seed, scale: if *weight { 0.125 } else { 1.0 } };
        numbers.tensor(ty, sizes)
    });
    let inputs: Vec<Tensor> = inputs.collect();
    let mut values: BTreeMap<Id, Vec<Tensor>> = BTreeMap::new();
    let mut compared = 0;
    let mut done: BTreeSet<Term> = BTreeSet::new();
    loop {
        let before = done.len();
        for class in terms.classes() {
            for term in &class.nodes {
                let term = term.clone().map_children(|id| terms.find(id));
                if done.contains(&term) {
                    continue;
                }
                let Some(value) = evaluate(terms, &term, &inputs, &values, sizes) else { continue };
                match values.get(&class.id) {
                    None => {
                        values.insert(class.id, value);
                    }
                    Some(known) => {
                        compared += 1;
                        for (known, value) in known.iter().zip(&value) {
                            check_equal(what, terms, class.id, &term, known, value);
                        }
                    }
                }
                done.insert(term);
            }
        }
        if done.len() == before {
            return compared;
        }
    }
}

fn evaluate(
    terms: &Terms,
    term: &Term,
    inputs: &[Tensor],
    values: &BTreeMap<Id, Vec<Tensor>>,
    sizes: &Bindings,
) -> Option<Vec<Tensor>> {
    match term.head {
        Head::Input(number) => Some(vec![inputs[number as usize].clone()]),
        Head::Literal(number) => Some(vec![terms.analysis.literals[number as usize].clone()]),
        Head::Output(number) => Some(vec![values.get(&term.children[0])?[number as usize].clone()]),
        Head::Attributes(_) | Head::Absent => None,
        Head::Op(name) => {
            let (op, operands) = operation(terms, term)?;
            let mut tensors = Vec::new();
            for operand in operands {
                tensors.push(match operand {
                    Some(id) => Some(&values.get(&id)?[0]),
                    None => None,
                });
            }
            let indices = indices_in_range(op, &tensors, sizes);
            if let Some(indices) = &indices {
                tensors[1] = Some(indices);
            }
            let result = evaluate_op(op, &tensors, sizes);
            Some(result.unwrap_or_else(|error| panic!("{name}: {error} {op:?} {tensors:?}")))
        }
    }
}

/// The indices of a gather or scatter modulo the size that they index: random ones point anywhere.
fn indices_in_range(op: &Op, tensors: &[Option<&Tensor>], sizes: &Bindings) -> Option<Tensor> {
    let (x, indices) = (tensors.first().copied()??, tensors.get(1).copied()??);
    let limits: Vec<usize> = match op {
        Op::Gather { axis } | Op::GatherElements { axis } | Op::ScatterElements { axis, .. } => {
            vec![x.shape()[*axis]]
        }
        Op::GatherNd { batch_dims } => x.shape()[*batch_dims..].to_vec(),
        Op::ScatterNd { .. } => x.shape().to_vec(),
        _ => return None,
    };
    let width = indices.shape().last().copied().unwrap_or(1);
    let count = if matches!(op, Op::GatherNd { .. } | Op::ScatterNd { .. }) { width } else { 1 };
    let limits = limits[..count].iter().map(|&limit| limit.max(1) as i64).collect();
    let limits = Tensor::from_vec(vec![count], limits).unwrap();
    let whole = |x: &Tensor, to| {
        let cast = Op::Cast { to, saturate: true };
        evaluate_op(&cast, &[Some(x)], sizes).unwrap().remove(0)
    };
    let all = [Some(&whole(indices, DType::I64)), Some(&limits)].map(|x| x.cloned());
    let all: Vec<Option<&Tensor>> = all.iter().map(Option::as_ref).collect();
    let inside = evaluate_op(&Op::Binary(Binary::Mod), &all, sizes).unwrap().remove(0);
    Some(whole(&inside, indices.dtype()))
}

fn check_equal(what: &str, terms: &Terms, class: Id, term: &Term, known: &Tensor, value: &Tensor) {
    let tolerance = match known.dtype() {
        DType::F64 => 1e-5,
        DType::F32 => 1e-4,
        DType::F16 => 1e-2,
        DType::BF16 => 8e-2,
        _ => 0.0,
    };
    let result = compare(value, known, tolerance, tolerance).unwrap();
    assert!(
        result.agrees(),
        "{what}: {term} {:?} differs: {result}\n{:?}\n{:?}",
        operation(terms, term).map(|(op, _)| op),
        terms[class].nodes,
        terms[class].data,
    );
}

/// Sizes for the symbols of a graph, all different and small.
fn small_sizes(graph: &Graph) -> Bindings {
    let mut symbols: BTreeSet<Symbol> = BTreeSet::new();
    for (_, node) in graph.nodes() {
        for ty in node.outputs() {
            ty.shape.iter().for_each(|dim| dim.collect_symbols(&mut symbols));
        }
    }
    bind_small(symbols)
}

/// Sizes for the symbols of these names.
fn small_bindings(names: &[&str]) -> Bindings {
    bind_small(names.iter().map(|name| Symbol::new(name)))
}

fn bind_small(symbols: impl IntoIterator<Item = Symbol>) -> Bindings {
    let mut sizes = Bindings::new();
    for (symbol, size) in symbols.into_iter().zip([2, 7, 3, 5, 4, 6].into_iter().cycle()) {
        sizes.bind(symbol, size).unwrap();
    }
    sizes
}

#[test]
fn all_terms_of_a_class_have_one_value_in_real_exports() {
    let mut folders =
        vec![Path::new(env!("CARGO_MANIFEST_DIR")).join("../frontend/tests/data/fixtures")];
    // More exports can be checked from a folder beside the repository.
    folders.extend(std::env::var_os("GRAPHENE_EXPORTS").map(Into::into));
    let (rules, target) = (compiled(), "sm_90a".parse().unwrap());
    let mut compared = 0;
    let mut failed = BTreeSet::new();
    for folder in folders {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let Ok((model, weights)) = read_model(path.join("model.onnx")) else { continue };
            let Ok(imported) = import(model, &weights, &ImportOptions::default()) else { continue };
            let graph = super::tidy(&imported.graph).unwrap();
            let sizes = small_sizes(&graph);
            for block in blocks(&graph).unwrap() {
                let saturated = saturate(&block, &rules, &target);
                let name = path.display().to_string();
                // All that fail are named, not the first one alone.
                match std::panic::catch_unwind(|| check_classes(&name, &saturated.terms, &sizes)) {
                    Ok(terms) => compared += terms,
                    Err(_) => {
                        failed.insert(name);
                    }
                }
            }
        }
    }
    assert!(failed.is_empty(), "{failed:#?}");
    assert!(compared > 100, "{compared}");
}
