//! A row a rule: what its pattern stands for, in every element type that it claims. The rule alone is applied,
//! must say something, and all terms of a class must then have one value.

mod cells;
mod near;
mod sound;

use super::left::{Bound, build};
use super::{check_classes, small_bindings};
use crate::rewrite::rule::{Left, Rule};
use crate::rewrite::rules::TABLES;
use graphene_frontend::dtype::DType;
use graphene_frontend::op::{
    AttentionAttrs, Op, ReduceOp, RnnAttrs, RnnCell, RnnDirection, SliceAxis, Unary,
};
use graphene_frontend::tensor::Tensor;
use std::collections::BTreeSet;

const REALS: &[DType] = &[DType::F32, DType::F64, DType::F16, DType::BF16];
const WIDE: &[DType] = &[DType::F32, DType::F64];
const NARROW: &[DType] = &[DType::F16, DType::BF16];
const NUMBERS: &[DType] =
    &[DType::F32, DType::F64, DType::F16, DType::BF16, DType::I64, DType::I32];
const ALL: &[DType] =
    &[DType::F32, DType::F64, DType::F16, DType::BF16, DType::I64, DType::I32, DType::Bool];
const BOOL: &[DType] = &[DType::Bool];

/// One case of a rule.
struct Row {
    rule: &'static str,
    dtypes: &'static [DType],
    /// Terms; none: the rule's own pattern.
    lefts: Vec<&'static str>,
    bound: Vec<(&'static str, Bound)>,
}

impl Row {
    /// Terms in place of the rule's own pattern: what its variables stand for is spelled out.
    fn of(mut self, lefts: &[&'static str]) -> Self {
        self.lefts = lefts.to_vec();
        self
    }
}

fn row(rule: &'static str, dtypes: &'static [DType], bound: &[(&'static str, Bound)]) -> Row {
    Row { rule, dtypes, lefts: Vec::new(), bound: bound.to_vec() }
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
    op(Op::Attention(AttentionAttrs { scale, causal: false, softcap: 0.0, guarded: false }))
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

/// Applies a row's rule alone until it says nothing new; how often it did, and the terms compared.
fn apply(row: &Row, dtype: DType) -> (usize, usize) {
    let rule = find(row.rule);
    let own = match rule.left {
        Left::Term(pattern) => pattern,
        Left::Operation => "",
    };
    let lefts = if row.lefts.is_empty() { vec![own] } else { row.lefts.clone() };
    let mut terms = build(&lefts, &row.bound, dtype);
    let compiled = rule.compile(false);
    let mut news = 0;
    for _ in 0..4 {
        let places = compiled.search(&terms);
        news += places.iter().filter(|place| compiled.apply(&mut terms, place)).count();
        terms.rebuild();
    }
    let what = format!("{} of {dtype} {:?}", row.rule, row.bound);
    (news, check_classes(&what, &terms, &small_bindings(&["batch", "sequence"])))
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

#[test]
fn rules_fire_and_are_sound() {
    let mut silent = Vec::new();
    for row in sound::rows().into_iter().chain(cells::sound()) {
        for &dtype in row.dtypes {
            let (news, compared) = apply(&row, dtype);
            if news == 0 || compared == 0 {
                silent.push(format!("{} of {dtype}: {news} {compared} {:?}", row.rule, row.bound));
            }
        }
    }
    assert!(silent.is_empty(), "these did not fire:\n{}", silent.join("\n"));
}

#[test]
fn near_misses_do_not_fire() {
    let mut fired = Vec::new();
    for row in near::rows().into_iter().chain(cells::near()) {
        for &dtype in row.dtypes {
            // What it says all the same must at least be true.
            let (news, _) = apply(&row, dtype);
            if news > 0 {
                fired.push(format!("{} of {dtype}: {:?}", row.rule, row.bound));
            }
        }
    }
    assert!(fired.is_empty(), "these fired:\n{}", fired.join("\n"));
}
