//! Soundness: in a saturated e-graph all terms of a class have one value.

mod extraction;
mod left;
mod limits;
mod rows;
mod tidy;

use super::block::blocks;
use super::language::{Head, Term, Terms, operation};
use super::rule::digits;
use super::rules::compiled;
use super::saturate::{LIMITS, saturate};
use egg::{Id, Language};
use graphene_frontend::dim::{Bindings, Symbol};
use graphene_frontend::dtype::DType;
use graphene_frontend::eval::{EvalError, evaluate_op};
use graphene_frontend::graph::Graph;
use graphene_frontend::import::{ImportOptions, Reading, import, read_model};
use graphene_frontend::op::{Binary, Op};
use graphene_frontend::tensor::Tensor;
use graphene_frontend::testdata::compare;
use graphene_frontend::types::TensorType;
use half::{bf16, f16};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Numbers that look random and are not: multiples of 1/64 between -2 and 2, scaled; with extremes every fifth is
/// infinite, none, zero, or far from one.
struct Numbers {
    seed: u64,
    scale: f64,
    extremes: bool,
}

const EXTREMES: [f64; 8] =
    [f64::INFINITY, 65504.0, f64::NAN, 0.0, 1e30, -0.0, -6e-5, f64::NEG_INFINITY];

impl Numbers {
    fn next(&mut self) -> f64 {
        self.seed = self
            .seed
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        let number = self.seed >> 33;
        if self.extremes && number.is_multiple_of(5) {
            return EXTREMES[(number / 5) as usize % EXTREMES.len()];
        }
        (number % 257) as f64 / 64.0 - 2.0
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

/// What the terms of an e-graph were evaluated on, and how far those of a class may be apart.
struct Trial<'a> {
    inputs: Vec<Tensor>,
    sizes: &'a Bindings,
    /// Units in the last place of the largest number on the way.
    ulps: f64,
    /// What classes are known to be. Where that is finite all their terms must be; elsewhere they may be anything.
    known: BTreeMap<Id, Vec<Tensor>>,
}

/// What came of evaluating every term of every class.
#[derive(Default)]
struct Checked {
    /// Terms that were compared with another one of their class.
    compared: usize,
    /// Terms without a value: those on cycles.
    without: usize,
    /// Where two of a class differ.
    wrong: Vec<String>,
    /// Why a term has no value at these sizes.
    refused: Option<EvalError>,
    /// What classes are.
    values: BTreeMap<Id, Vec<Tensor>>,
}

/// Values for the inputs of the terms.
fn random_inputs(terms: &Terms, sizes: &Bindings, extremes: bool) -> Vec<Tensor> {
    let inputs = terms.analysis.inputs.iter().zip(1..);
    // Weights are small, or scores in 16-bit types are all rounding.
    let inputs = inputs.map(|((ty, weight), seed)| {
        let numbers = Numbers { seed, scale: if *weight { 0.125 } else { 1.0 }, extremes };
        numbers.tensor(ty, sizes)
    });
    inputs.collect()
}

/// Evaluates every term of every class on random inputs, and on these again and again what they are made of.
fn check_classes(terms: &Terms, trial: &Trial<'_>) -> Checked {
    let known = trial.known.iter().map(|(id, values)| (terms.find(*id), values.clone()));
    let mut checked = Checked { values: known.collect(), ..Checked::default() };
    let mut pending: Vec<(Id, Term)> = Vec::new();
    for class in terms.classes() {
        let own = class.nodes.iter().map(|t| t.clone().map_children(|id| terms.find(id)));
        let own = own.filter(|t| !matches!(t.head, Head::Attributes(_) | Head::Absent));
        pending.extend(own.map(|term| (class.id, term)));
    }
    let mut largest = 0.0_f64;
    loop {
        let before = pending.len();
        let mut left = Vec::new();
        for (class, term) in pending {
            let value = evaluate(terms, &term, &trial.inputs, &checked.values, trial.sizes);
            let value = match value {
                Some(Ok(value)) => value,
                Some(Err(error)) => return Checked { refused: Some(error), ..checked },
                None => {
                    left.push((class, term));
                    continue;
                }
            };
            largest = value.iter().map(magnitude).fold(largest, f64::max);
            let Some(known) = checked.values.get(&class) else {
                checked.values.insert(class, value);
                continue;
            };
            checked.compared += 1;
            for (known, value) in known.iter().zip(&value) {
                checked.wrong.extend(difference(terms, &term, known, value, trial, largest));
            }
        }
        if left.is_empty() || left.len() == before {
            return Checked { without: left.len(), ..checked };
        }
        pending = left;
    }
}

/// The largest number of a tensor that is no mask's fill.
fn magnitude(tensor: &Tensor) -> f64 {
    reals(tensor).into_iter().map(f64::abs).filter(|x| *x < 1e6).fold(0.0, f64::max)
}

fn reals(tensor: &Tensor) -> Vec<f64> {
    let cast = Op::Cast { to: DType::F64, saturate: true };
    let wide = evaluate_op(&cast, &[Some(tensor)], &Bindings::new()).unwrap().remove(0);
    wide.as_slice::<f64>().unwrap().to_vec()
}

/// Says so if a term's value is not that of its class.
fn difference(
    terms: &Terms,
    term: &Term,
    known: &Tensor,
    value: &Tensor,
    trial: &Trial<'_>,
    largest: f64,
) -> Option<String> {
    let tolerance =
        digits(known.dtype()).map_or(0.0, |digits| trial.ulps * 0.5_f64.powi(digits - 1));
    let alike = known.dtype().is_float() && known.shape() == value.shape();
    if alike && !trial.known.is_empty() {
        let close = |a: f64, b: f64| (a - b).abs() <= tolerance * a.abs().max(1.0);
        let same = |(a, b): (f64, f64)| !a.is_finite() || close(a, b);
        if reals(known).into_iter().zip(reals(value)).all(same) {
            return None;
        }
    }
    let result = compare(value, known, tolerance, tolerance * largest.max(1.0)).unwrap();
    let op = operation(terms, term).map(|(op, _)| op);
    (!result.agrees()).then(|| format!("{term} {op:?} differs: {result}"))
}

fn evaluate(
    terms: &Terms,
    term: &Term,
    inputs: &[Tensor],
    values: &BTreeMap<Id, Vec<Tensor>>,
    sizes: &Bindings,
) -> Option<Result<Vec<Tensor>, EvalError>> {
    match term.head {
        Head::Input(number) => Some(Ok(vec![inputs[number as usize].clone()])),
        Head::Literal(number) => Some(Ok(vec![terms.analysis.literals[number as usize].clone()])),
        Head::Output(number) => {
            Some(Ok(vec![values.get(&term.children[0])?[number as usize].clone()]))
        }
        Head::Attributes(_) | Head::Absent => None,
        Head::Op(_) => {
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
            Some(evaluate_op(op, &tensors, sizes))
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

/// Checks terms of a graph at small sizes, or at larger ones where a window does not fit into those.
fn check_at_some_sizes(terms: &Terms, graph: &Graph) -> Checked {
    let check = |to: &[i64]| {
        let sizes = bind(graph.symbols(), to);
        let inputs = random_inputs(terms, &sizes, false);
        // Scores and norms of many steps, in types of 16 bits all of them rounded.
        let trial = Trial { inputs, sizes: &sizes, ulps: 64.0, known: BTreeMap::new() };
        check_classes(terms, &trial)
    };
    let small = check(&[2, 7, 3, 5, 4, 6]);
    if small.refused.is_some() { check(&[2, 97, 3, 65, 64, 66]) } else { small }
}

/// These sizes for symbols, in turn.
fn bind(symbols: impl IntoIterator<Item = Symbol>, to: &[i64]) -> Bindings {
    let mut sizes = Bindings::new();
    for (symbol, size) in symbols.into_iter().zip(to.iter().copied().cycle()) {
        sizes.bind(symbol, size).unwrap();
    }
    sizes
}

#[test]
fn all_terms_of_a_class_have_one_value_in_real_exports() {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../frontend/tests/data/fixtures");
    // More exports can be checked from a folder beside the repository.
    let more = std::env::var_os("GRAPHENE_EXPORTS").map(PathBuf::from);
    let (rules, target) = (compiled(), "sm_90a".parse().unwrap());
    let (mut models, mut compared, mut failed) = (0, 0, BTreeMap::new());
    for folder in [Some(fixtures.clone()), more].into_iter().flatten() {
        for entry in std::fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path().join("model.onnx");
            // Beside the fixtures there may be folders without a model, and operators that are not known.
            let read = path
                .exists()
                .then(|| read_model(&path, Reading::Mapped).map_err(|error| error.to_string()));
            let imported = read.map(|read| {
                let (model, weights) = read?;
                import(model, &weights, &ImportOptions::default()).map_err(|e| e.to_string())
            });
            let imported = match imported {
                Some(Ok(imported)) => imported,
                Some(Err(error)) if folder == fixtures => panic!("{}: {error}", path.display()),
                None if folder == fixtures => panic!("{} is missing", path.display()),
                _ => continue,
            };
            models += 1;
            let graph = super::tidy(&imported.graph).unwrap();
            for block in blocks(&graph).unwrap() {
                let saturated = saturate(&block, &rules, &target, LIMITS);
                let checked = check_at_some_sizes(&saturated.terms, &graph);
                compared += checked.compared;
                let refused = checked.refused.map(|error| error.to_string());
                let without = (checked.without > 0)
                    .then(|| format!("{} terms have no value", checked.without));
                let reason = checked.wrong.into_iter().next().or(refused).or(without);
                failed.extend(reason.map(|reason| (path.display().to_string(), reason)));
            }
        }
    }
    // All that fail are named, not the first one alone.
    assert!(failed.is_empty(), "{failed:#?}");
    assert!(models >= 12 && compared > 100, "{models} models, {compared} terms");
}
