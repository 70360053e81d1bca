//! A row a rule: what its pattern stands for, in every element type that it claims. The rule alone is applied,
//! must say something, and all terms of a class must then have one value.

mod cells;
mod near;
mod sound;

use super::left::{Bound, build};
use super::{Trial, bind, check_classes, random_inputs};
use crate::rewrite::language::Terms;
use crate::rewrite::rule::Rule;
use crate::rewrite::rules::TABLES;
use egg::Id;
use graphene_frontend::dim::{Bindings, Symbol};
use graphene_frontend::dtype::DType;
use graphene_frontend::op::{
    AttentionAttrs, Op, ReduceOp, RnnAttrs, RnnCell, RnnDirection, SliceAxis, Unary,
};
use graphene_frontend::tensor::Tensor;
use std::collections::{BTreeMap, BTreeSet};

const REALS: &[DType] = &[DType::F32, DType::F64, DType::F16, DType::BF16];
/// Types that are computed with in `f32`.
const SINGLE: &[DType] = &[DType::F32, DType::F16, DType::BF16];
/// Types of so broad a range that products do not soon overflow.
const BROAD: &[DType] = &[DType::F32, DType::F64, DType::BF16];
const WIDE: &[DType] = &[DType::F32, DType::F64];
const NARROW: &[DType] = &[DType::F16, DType::BF16];
const NUMBERS: &[DType] =
    &[DType::F32, DType::F64, DType::F16, DType::BF16, DType::I64, DType::I32];
const ALL: &[DType] =
    &[DType::F32, DType::F64, DType::F16, DType::BF16, DType::I64, DType::I32, DType::Bool];
const BOOL: &[DType] = &[DType::Bool];

/// One case of a rule.
#[derive(Clone)]
struct Row {
    rule: &'static str,
    dtypes: &'static [DType],
    /// Terms; none: the rule's own pattern.
    lefts: Vec<&'static str>,
    bound: Vec<(&'static str, Bound)>,
    /// Of a near miss: the rule may fire, but what the terms give must stay different.
    apart: bool,
}

impl Row {
    /// Terms in place of the rule's own pattern: what its variables stand for is spelled out.
    fn of(mut self, lefts: &[&'static str]) -> Self {
        self.lefts = lefts.to_vec();
        self
    }

    /// The rule may say something, but never that two of the terms are equal.
    fn apart(mut self) -> Self {
        self.apart = true;
        self
    }
}

fn row(rule: &'static str, dtypes: &'static [DType], bound: &[(&'static str, Bound)]) -> Row {
    Row { rule, dtypes, lefts: Vec::new(), bound: bound.to_vec(), apart: false }
}

/// A value of the row's type.
fn x(shape: &'static str) -> Bound {
    Bound::Value { shape, dtype: None, constant: false }
}

/// A value of its own type.
fn typed(shape: &'static str, dtype: DType) -> Bound {
    Bound::Value { shape, dtype: Some(dtype), constant: false }
}

/// Constants known by type only.
fn weight(shape: &'static str) -> Bound {
    Bound::Value { shape, dtype: None, constant: true }
}

fn number(number: f64) -> Bound {
    Bound::Number { shape: "", dtype: None, number }
}

/// A small constant of this shape and number.
fn filled(shape: &'static str, number: f64) -> Bound {
    Bound::Number { shape, dtype: None, number }
}

/// A small constant that is not one number.
fn numbers(shape: &'static str) -> Bound {
    Bound::Numbers { shape, seed: 7 }
}

fn op(op: Op) -> Bound {
    Bound::Attributes(op)
}

fn reduce(op: ReduceOp, axes: &[usize]) -> Bound {
    Bound::Attributes(Op::Reduce { op, axes: axes.to_vec(), keep: true })
}

fn mean(axes: &[usize]) -> Bound {
    reduce(ReduceOp::Mean, axes)
}

fn perm(perm: &[usize]) -> Bound {
    op(Op::Transpose(perm.to_vec()))
}

fn dims(text: &str) -> Vec<graphene_frontend::dim::Dim> {
    text.split(',').map(|dim| dim.parse().unwrap()).collect()
}

fn shape(text: &str) -> Bound {
    op(Op::Reshape(dims(text)))
}

fn expand(text: &str) -> Bound {
    op(Op::Expand(dims(text)))
}

fn cast(to: DType) -> Bound {
    op(Op::Cast { to, saturate: true })
}

fn softmax(axis: usize) -> Bound {
    op(Op::Softmax { axis, log: false })
}

fn layer_norm(axis: usize) -> Bound {
    op(Op::LayerNorm { axis, epsilon: 1e-5 })
}

fn rms_norm(axis: usize) -> Bound {
    op(Op::RmsNorm { axis, epsilon: 1e-6 })
}

fn attention(scale: f32) -> Bound {
    let (causal, softcap, guarded, fill) = (false, 0.0, false, f32::NEG_INFINITY);
    op(Op::Attention(AttentionAttrs { scale, causal, softcap, guarded, fill }))
}

fn slice(axis: usize, start: i64, len: i64) -> Bound {
    op(Op::Slice(vec![SliceAxis { axis, start: start.into(), len: len.into(), step: 1 }]))
}

fn lstm(hidden: usize) -> Bound {
    op(Op::Rnn(RnnAttrs {
        cell: RnnCell::Lstm { input_forget: false },
        direction: RnnDirection::Forward,
        hidden,
        activations: vec![Unary::Sigmoid, Unary::Tanh, Unary::Tanh],
        clip: None,
    }))
}

fn gru(hidden: usize) -> Bound {
    op(Op::Rnn(RnnAttrs {
        cell: RnnCell::Gru { linear_before_reset: true },
        direction: RnnDirection::Forward,
        hidden,
        activations: vec![Unary::Sigmoid, Unary::Tanh],
        clip: None,
    }))
}

/// Truth values of a mask `[2, 1, 3, 2]`, one of whose rows allows nothing.
fn allowed() -> Bound {
    let rows =
        [[true, false], [true, true], [false, false], [true, true], [false, true], [true, true]];
    Bound::Tensor(Tensor::from_bools(vec![2, 1, 3, 2], rows.concat()).unwrap())
}

/// Its opposite.
fn forbidden() -> Bound {
    let rows = [
        [false, true],
        [false, false],
        [true, true],
        [false, false],
        [true, false],
        [false, false],
    ];
    Bound::Tensor(Tensor::from_bools(vec![2, 1, 3, 2], rows.concat()).unwrap())
}

/// The rule of a name.
fn find(name: &str) -> Rule {
    let mut all = TABLES.iter().flat_map(|(rules, _)| rules.iter());
    *all.find(|rule| rule.name == name).unwrap_or_else(|| panic!("there is no rule {name}"))
}

/// What came of applying a row's rule alone until it says nothing new.
struct Applied {
    /// How often it said something.
    news: usize,
    /// How many terms were compared.
    compared: usize,
    /// How many of the row's own terms are different values.
    different: usize,
    /// How often it said what was no equality of one type.
    refused: usize,
    /// Where two of a class differ.
    wrong: Vec<String>,
}

/// Units in the last place that two spellings of a row may be apart.
const ULPS: f64 = 4.0;

fn trial(inputs: Vec<Tensor>, sizes: &Bindings) -> Trial<'_> {
    Trial { inputs, sizes, ulps: ULPS, known: BTreeMap::new() }
}

/// Rules whose sides differ where numbers are infinite or far apart, and why that is theirs.
const EXTREMES: [(&str, &str); 6] = [
    ("attention", "a mask is added to scores, also where one replaced what was not finite"),
    ("inverse-root", "-∞ to the power of -1/2 is 0, but has no root"),
    ("softmax-unshifted", "a row with ∞ has no softmax, also in its other places"),
    ("weight-of-quotient", "a root of numbers that are no mean of squares may be small"),
    ("weight-over-root", "a root of numbers that are no mean of squares may be small"),
    ("lstm-cell", "terms far apart are added in another order"),
];

/// Applies a row's rule; all terms of a class must then have one value, whatever the sizes and the data.
fn apply(row: &Row, dtype: DType) -> Applied {
    let (before, _) = row.terms(dtype, false);
    let (terms, roots, news) = saturated(row, dtype, false);
    let mut result = Applied {
        news,
        compared: 0,
        different: roots.iter().map(|id| terms.find(*id)).collect::<BTreeSet<_>>().len(),
        refused: terms.analysis.refused,
        wrong: Vec::new(),
    };
    let symbols = || ["batch", "sequence"].map(Symbol::new);
    for sizes in [[2, 7], [1, 1]] {
        let sizes = bind(symbols(), &sizes);
        for extremes in [false, true] {
            if extremes && EXTREMES.iter().any(|(rule, _)| *rule == row.rule) {
                continue;
            }
            let inputs = random_inputs(&terms, &sizes, extremes);
            let mut trial = trial(inputs, &sizes);
            if extremes {
                trial.known = check_classes(&before, &trial).values;
            }
            let checked = check_classes(&terms, &trial);
            result.compared += if extremes { 0 } else { checked.compared };
            let what = format!("{} of {dtype} {sizes:?}, extremes {extremes}", row.rule);
            assert!(checked.refused.is_none(), "{what}: {:?}", checked.refused);
            result.wrong.extend(checked.wrong.iter().map(|wrong| format!("{what}: {wrong}")));
        }
    }
    result
}

impl Row {
    /// The row's terms and their classes.
    fn terms(&self, dtype: DType, rounds_steps: bool) -> (Terms, Vec<Id>) {
        let own = find(self.rule).pattern.unwrap_or_default();
        let lefts = if self.lefts.is_empty() { vec![own] } else { self.lefts.clone() };
        build(&lefts, &self.bound, dtype, rounds_steps)
    }
}

/// A row's terms with all that its rule says about them, their classes, and how often it said something.
fn saturated(row: &Row, dtype: DType, rounds_steps: bool) -> (Terms, Vec<Id>, usize) {
    let (mut terms, roots) = row.terms(dtype, rounds_steps);
    let is_exact = |rules: &[Rule]| rules.iter().any(|rule| rule.name == row.rule);
    let exact = TABLES.iter().any(|(rules, exact)| *exact && is_exact(rules));
    let compiled = find(row.rule).compile(exact);
    let mut news = 0;
    for _ in 0..4 {
        let places = compiled.search(&terms);
        news += places.iter().filter(|place| compiled.apply(&mut terms, place)).count();
        terms.rebuild();
    }
    (terms, roots, news)
}

#[test]
fn every_rule_has_a_row() {
    let rows = sound::rows().into_iter().chain(cells::sound());
    let rows: BTreeSet<&str> = rows.map(|row| row.rule).collect();
    let rules = TABLES.iter().flat_map(|(rules, _)| rules.iter()).map(|rule| rule.name);
    let missing: Vec<&str> = rules.filter(|name| !rows.contains(name)).collect();
    assert!(missing.is_empty(), "{missing:?}");
}

#[test]
fn names_are_of_one_rule_each() {
    let mut seen = BTreeSet::new();
    for rule in TABLES.iter().flat_map(|(rules, _)| rules.iter()) {
        assert!(seen.insert(rule.name), "{}", rule.name);
    }
}

fn sound_rows() -> impl Iterator<Item = (Row, DType)> {
    let rows = sound::rows().into_iter().chain(cells::sound());
    rows.flat_map(|row| row.dtypes.iter().map(move |&dtype| (row.clone(), dtype)))
}

fn near_rows() -> impl Iterator<Item = (Row, DType)> {
    let rows = near::rows().into_iter().chain(cells::near());
    rows.flat_map(|row| row.dtypes.iter().map(move |&dtype| (row.clone(), dtype)))
}

#[test]
fn rules_fire_and_are_sound() {
    let (mut silent, mut wrong) = (Vec::new(), Vec::new());
    for (row, dtype) in sound_rows() {
        let applied = apply(&row, dtype);
        if applied.news == 0 || applied.compared == 0 {
            silent.push(format!("{} of {dtype}: {:?}", row.rule, row.bound));
        }
        wrong.extend(applied.wrong);
    }
    assert!(silent.is_empty(), "these did not fire:\n{}", silent.join("\n"));
    assert!(wrong.is_empty(), "these are not equal:\n{}", wrong.join("\n"));
}

#[test]
fn near_misses_do_not_fire() {
    let (mut fired, mut wrong) = (Vec::new(), Vec::new());
    for (row, dtype) in near_rows() {
        let applied = apply(&row, dtype);
        let miss = if row.apart { applied.different == row.lefts.len() } else { applied.news == 0 };
        if !miss {
            fired.push(format!("{} of {dtype}: {:?} {:?}", row.rule, row.lefts, row.bound));
        }
        // What it says all the same must at least be true.
        wrong.extend(applied.wrong);
    }
    assert!(fired.is_empty(), "these fired:\n{}\n{}", fired.join("\n"), wrong.join("\n"));
    assert!(wrong.is_empty(), "these are not equal:\n{}", wrong.join("\n"));
}

/// Weights that are zero where a condition forbids are NaN elsewhere if a score is: the model's NaN is not hidden.
#[test]
fn infinite_queries_are_not_hidden_by_a_mask() {
    let zeroed = "(MatMul (Select ?m (Softmax ?a (Select ?m (MatMul ?q ?k) ?f)) ?z) ?v)";
    let heads = [("q", x("2,4,3,8")), ("k", x("2,4,8,2")), ("v", x("2,4,2,5"))];
    let number = |number| Bound::Number { shape: "", dtype: None, number };
    let more =
        [("a", softmax(3)), ("m", allowed()), ("f", number(f64::NEG_INFINITY)), ("z", number(0.0))];
    let row = row("attention", &[DType::F32], &[&heads[..], &more].concat()).of(&[zeroed]);
    let (terms, _, news) = saturated(&row, DType::F32, false);
    assert!(news > 0);
    let sizes = Bindings::new();
    let mut inputs = random_inputs(&terms, &sizes, false);
    let mut q = inputs[0].as_slice::<f32>().unwrap().to_vec();
    q[5] = f32::INFINITY;
    inputs[0] = Tensor::from_vec(vec![2, 4, 3, 8], q).unwrap();
    let checked = check_classes(&terms, &trial(inputs, &sizes));
    assert!(checked.wrong.is_empty() && checked.compared > 0, "{:?}", checked.wrong);
}

/// Rules that build a candidate of another type where their operands broadcast, and rely on its refusal.
#[test]
fn few_rules_rely_on_the_refusal_of_other_types() {
    let mut relying = BTreeSet::new();
    for (row, dtype) in sound_rows().chain(near_rows()) {
        if apply(&row, dtype).refused > 0 {
            relying.insert(row.rule);
        }
    }
    let known = [
        "add-zero",
        "layer-norm-scale",
        "multiply-by-one",
        "pointwise-broadcasts",
        "scale-of-matmul-a",
        "scale-of-transpose",
    ];
    assert_eq!(relying.into_iter().collect::<Vec<_>>(), known);
}

/// Where operations in types of 16 bits round one by one, rules of exact tables round alike, and others are silent.
#[test]
fn tables_that_are_exact_round_alike() {
    let exact = |name| {
        let own = |rules: &[Rule]| rules.iter().any(|rule| rule.name == name);
        TABLES.iter().any(|(rules, exact)| *exact && own(rules))
    };
    let mut wrong = Vec::new();
    let narrow = |dtype: DType| matches!(dtype, DType::F16 | DType::BF16);
    for (row, dtype) in sound_rows().chain(near_rows()).filter(|(_, dtype)| narrow(*dtype)) {
        let (terms, _, news) = saturated(&row, dtype, true);
        if !exact(row.rule) {
            if news > 0 {
                wrong.push(format!("{} of {dtype} fired: {:?}", row.rule, row.bound));
            }
            continue;
        }
        let sizes = bind(["batch", "sequence"].map(Symbol::new), &[2, 7]);
        let inputs = random_inputs(&terms, &sizes, false);
        let trial = Trial { ulps: 0.0, ..trial(inputs, &sizes) };
        let what = |wrong: &String| format!("{} of {dtype}: {wrong}", row.rule);
        wrong.extend(check_classes(&terms, &trial).wrong.iter().map(what));
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
