//! The operator table: a row an operator, in families.
//!
//! A row's function reads attributes and inputs from its [`Context`], adds operations to the graph, and gives
//! back a value per output. Adding an operator is adding a row; those that are one function of elements are rows of the
//! [table of functions](crate::op::FunctionInfo).
//!
//! Lists of tensors are no part of a graph: the rows that take or give them ([`Run::Values`]) choose among tensors at
//! import, where positions are known, and all others take tensors only.

use super::context::Context;
use super::error::OpError;
use super::value::Value;
use crate::graph::ValueId;
use crate::op::{Binary, Unary};
use std::collections::HashMap;
use std::sync::LazyLock;

mod attention;
mod blockwise;
mod classical;
mod control;
mod conv;
mod detection;
mod dynamic_lstm;
mod einsum;
mod fourier;
mod group_query;
mod helpers;
mod image;
mod index;
mod loss;
mod math;
mod matmul;
mod microsoft;
mod movement;
mod norm;
mod optimizer;
mod quant;
pub(super) mod random;
mod recurrence;
mod reduce;
mod resize;
mod rnn;
mod sample;
mod sequence;
mod shape;
mod signal;

/// The values of an operator's outputs.
type Outputs = Result<Vec<ValueId>, OpError>;

/// An operator.
pub struct Row {
    /// Its domain; empty for ONNX's own.
    pub domain: &'static str,
    /// Its name.
    pub op: &'static str,
    /// The lowest version of the domain's operator set whose meaning is implemented.
    pub since: i64,
    /// Adds what it stands for; the values of its outputs in order.
    pub run: Run,
}

/// What a row does.
pub enum Run {
    /// It is this function, whose parameters are attributes.
    Unary(Unary),
    /// It is this function.
    Binary(Binary),
    /// It takes tensors and gives tensors.
    Tensors(TensorsFn),
    /// It may take and give sequences, and what a graph cannot hold.
    Values(ValuesFn),
}

type TensorsFn = fn(&mut Context<'_, '_>) -> Result<Vec<ValueId>, OpError>;
type ValuesFn = fn(&mut Context<'_, '_>) -> Result<Vec<Value>, OpError>;

impl Run {
    /// Runs the row for inputs of these names.
    pub(super) fn call(
        &self,
        cx: &mut Context<'_, '_>,
        names: &[String],
    ) -> Result<Vec<Value>, OpError> {
        let run: &dyn Fn(&mut Context<'_, '_>) -> Outputs = match self {
            Self::Unary(function) => &|cx| math::unary(cx, *function),
            Self::Binary(function) => &|cx| math::binary(cx, *function),
            Self::Tensors(run) => run,
            Self::Values(run) => return run(cx),
        };
        let sequence =
            |(value, _): &(&Option<Value>, &String)| matches!(value, Some(Value::Sequence(_)));
        if let Some((_, name)) = cx.inputs.iter().zip(names).find(sequence) {
            return Err(cx.unsupported(format!("its input `{name}` is a sequence")));
        }
        Ok(run(cx)?.into_iter().map(Value::from).collect())
    }
}

/// A row of ONNX's own domain.
const fn row(op: &'static str, since: i64, run: TensorsFn) -> Row {
    Row { domain: "", op, since, run: Run::Tensors(run) }
}

/// A row of ONNX's own domain that may take and give sequences.
const fn values(op: &'static str, since: i64, run: ValuesFn) -> Row {
    Row { domain: "", op, since, run: Run::Values(run) }
}

/// A row of onnxruntime's domain of fused operators.
const fn microsoft(op: &'static str, since: i64, run: TensorsFn) -> Row {
    Row { domain: "com.microsoft", op, since, run: Run::Tensors(run) }
}

/// The families.
const FAMILIES: &[&[Row]] = &[
    shape::ROWS,
    movement::ROWS,
    index::ROWS,
    control::ROWS,
    math::ROWS,
    reduce::ROWS,
    matmul::ROWS,
    einsum::ROWS,
    conv::ROWS,
    norm::ROWS,
    resize::ROWS,
    rnn::ROWS,
    attention::ROWS,
    quant::ROWS,
    loss::ROWS,
    microsoft::ROWS,
    group_query::ROWS,
    blockwise::ROWS,
    dynamic_lstm::ROWS,
    recurrence::ROWS,
    signal::ROWS,
    image::ROWS,
    optimizer::ROWS,
    sequence::ROWS,
    detection::ROWS,
    random::ROWS,
    classical::ROWS,
];

static FUNCTIONS: LazyLock<Vec<Row>> = LazyLock::new(|| math::functions().collect());

static TABLE: LazyLock<HashMap<(&'static str, &'static str), &'static Row>> =
    LazyLock::new(|| rows().map(|row| ((row.domain, row.op), row)).collect());

/// All rows, by family.
pub fn rows() -> impl Iterator<Item = &'static Row> {
    FAMILIES.iter().flat_map(|family| family.iter()).chain(FUNCTIONS.iter())
}

/// The row of an operator.
pub fn find(domain: &str, op: &str) -> Option<&'static Row> {
    TABLE.get(&(domain, op)).copied()
}
