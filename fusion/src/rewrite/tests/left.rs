//! A row's left side as terms: its patterns, with values for their variables.

use super::Numbers;
use crate::rewrite::language::{Facts, Head, Term, Terms, add_literal, add_operation};
use egg::{EGraph, ENodeOrVar, Id, Pattern};
use graphene_frontend::dim::Bindings;
use graphene_frontend::dtype::DType;
use graphene_frontend::op::Op;
use graphene_frontend::tensor::Tensor;
use graphene_frontend::types::TensorType;
use half::{bf16, f16};
use std::collections::BTreeMap;

/// What a variable of a pattern stands for.
#[derive(Clone, Debug)]
pub(super) enum Bound {
    /// A value from outside of this shape, of the row's type or one of its own.
    Value { shape: &'static str, dtype: Option<DType>, constant: bool },
    /// A constant of this shape, all of whose elements are a number.
    Number { shape: &'static str, dtype: Option<DType>, number: f64 },
    /// A constant that is not one number.
    Numbers { shape: &'static str, seed: u64 },
    /// A constant of its own type.
    Tensor(Tensor),
    /// Attributes.
    Attributes(Op),
}

/// What a term of a pattern was built as.
#[derive(Clone)]
enum Built {
    Attributes(Op),
    Absent,
    Values(Vec<Id>),
}

/// Terms that hold the patterns, and nothing else, and the class of each pattern.
pub(super) fn build(
    lefts: &[&str],
    bound: &[(&'static str, Bound)],
    dtype: DType,
    rounds_steps: bool,
) -> (Terms, Vec<Id>) {
    let mut terms: Terms = EGraph::new(Facts::new(Vec::new(), rounds_steps));
    let mut roots = Vec::with_capacity(lefts.len());
    let mut values: BTreeMap<String, Built> = BTreeMap::new();
    for (name, what) in bound {
        values.insert(format!("?{name}"), leaf(&mut terms, what, dtype));
    }
    for left in lefts {
        let pattern: Pattern<Term> = left.replace('~', "").parse().unwrap();
        let mut built: Vec<Built> = Vec::new();
        for node in pattern.ast.as_ref() {
            let new = match node {
                ENodeOrVar::Var(name) => values
                    .get(&name.to_string())
                    .unwrap_or_else(|| panic!("{left}: {name} is not bound"))
                    .clone(),
                ENodeOrVar::ENode(term) => {
                    let children = term.children.iter().map(|&id| built[usize::from(id)].clone());
                    node_of(&mut terms, term.head, children.collect())
                        .unwrap_or_else(|| panic!("{left}: {} is refused", term))
                }
            };
            built.push(new);
        }
        match built.last() {
            Some(Built::Values(values)) => roots.push(values[0]),
            Some(Built::Attributes(_) | Built::Absent) | None => panic!("{left} is no value"),
        }
    }
    terms.rebuild();
    (terms, roots)
}

fn leaf(terms: &mut Terms, what: &Bound, row: DType) -> Built {
    let ty = |shape: &str, dtype: Option<DType>| {
        let dims = shape.split(',').map(str::trim).filter(|dim| !dim.is_empty());
        TensorType::new(dtype.unwrap_or(row), dims.map(|dim| dim.parse().unwrap()).collect())
    };
    let id = match what {
        Bound::Attributes(op) => return Built::Attributes(op.clone()),
        Bound::Value { shape, dtype, constant } => {
            terms.analysis.inputs.push((ty(shape, *dtype), *constant));
            let number = terms.analysis.inputs.len() as u32 - 1;
            terms.add(Term::leaf(Head::Input(number)))
        }
        Bound::Number { shape, dtype, number } => {
            let tensor = filled(&ty(shape, *dtype), *number);
            add_literal(terms, &tensor)
        }
        Bound::Numbers { shape, seed } => {
            let tensor = Numbers { seed: *seed, scale: 1.0, extremes: false }
                .tensor(&ty(shape, None), &Bindings::new());
            add_literal(terms, &tensor)
        }
        Bound::Tensor(tensor) => add_literal(terms, tensor),
    };
    Built::Values(vec![id])
}

fn filled(ty: &TensorType, x: f64) -> Tensor {
    let shape = ty.known_shape().unwrap();
    let len = shape.iter().product();
    match ty.dtype {
        DType::F32 => Tensor::from_vec(shape, vec![x as f32; len]),
        DType::F64 => Tensor::from_vec(shape, vec![x; len]),
        DType::F16 => Tensor::from_vec(shape, vec![f16::from_f64(x); len]),
        DType::BF16 => Tensor::from_vec(shape, vec![bf16::from_f64(x); len]),
        DType::I64 => Tensor::from_vec(shape, vec![x as i64; len]),
        DType::I32 => Tensor::from_vec(shape, vec![x as i32; len]),
        DType::Bool => Tensor::from_bools(shape, vec![x != 0.0; len]),
        other => panic!("no numbers of {other}"),
    }
    .unwrap()
}

fn node_of(terms: &mut Terms, head: Head, children: Vec<Built>) -> Option<Built> {
    let name = match head {
        Head::Absent => return Some(Built::Absent),
        Head::Output(number) => {
            let Some(Built::Values(values)) = children.into_iter().next() else { return None };
            return Some(Built::Values(vec![*values.get(number as usize)?]));
        }
        Head::Op(name) => name,
        Head::Input(_) | Head::Literal(_) | Head::Attributes(_) => return None,
    };
    let (op, operands) = match children.split_first() {
        Some((Built::Attributes(op), operands)) => (op.clone(), operands),
        _ => (plain(name)?, children.as_slice()),
    };
    assert_eq!(op.name(), name, "these attributes are of another operation");
    let mut inputs: Vec<Option<Id>> = Vec::with_capacity(operands.len());
    for operand in operands {
        inputs.push(match operand {
            Built::Values(values) => values.first().copied(),
            Built::Absent => None,
            Built::Attributes(_) => return None,
        });
    }
    while inputs.last() == Some(&None) {
        inputs.pop();
    }
    add_operation(terms, &op, &inputs).map(Built::Values)
}

/// The operation of a name that has no attributes.
fn plain(name: &str) -> Option<Op> {
    Op::prototypes().into_iter().find(|op| op.name() == name && !op.info().attributes)
}
