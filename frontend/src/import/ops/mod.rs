//! The operator table: a row an operator, in families.
//!
//! A row's function reads attributes and inputs from its [`Context`], adds operations to the graph, and gives
//! back a value per output. Adding an operator is adding a row.

use super::context::Context;
use super::error::OpError;
use crate::graph::ValueId;
use std::collections::HashMap;
use std::sync::LazyLock;

mod attention;
mod control;
mod conv;
mod einsum;
mod fourier;
mod helpers;
mod image;
mod index;
mod loss;
mod math;
mod microsoft;
mod movement;
mod norm;
mod optimizer;
mod product;
mod quant;
mod recurrence;
mod reduce;
mod resize;
mod rnn;
mod sample;
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
    pub run: fn(&mut Context<'_, '_>) -> Result<Vec<ValueId>, OpError>,
}

/// A row of ONNX's own domain.
const fn row(
    op: &'static str,
    since: i64,
    run: fn(&mut Context<'_, '_>) -> Result<Vec<ValueId>, OpError>,
) -> Row {
    Row { domain: "", op, since, run }
}

/// A row of onnxruntime's domain of fused operators.
const fn microsoft(
    op: &'static str,
    since: i64,
    run: fn(&mut Context<'_, '_>) -> Result<Vec<ValueId>, OpError>,
) -> Row {
    Row { domain: "com.microsoft", op, since, run }
}

/// The families.
const FAMILIES: &[&[Row]] = &[
    shape::ROWS,
    movement::ROWS,
    index::ROWS,
    control::ROWS,
    math::ROWS,
    reduce::ROWS,
    product::ROWS,
    einsum::ROWS,
    conv::ROWS,
    norm::ROWS,
    resize::ROWS,
    rnn::ROWS,
    attention::ROWS,
    quant::ROWS,
    loss::ROWS,
    microsoft::ROWS,
    recurrence::ROWS,
    signal::ROWS,
    image::ROWS,
    optimizer::ROWS,
];

static TABLE: LazyLock<HashMap<(&'static str, &'static str), &'static Row>> =
    LazyLock::new(|| rows().map(|row| ((row.domain, row.op), row)).collect());

/// All rows, by family.
pub fn rows() -> impl Iterator<Item = &'static Row> {
    FAMILIES.iter().flat_map(|family| family.iter())
}

/// The row of an operator.
pub fn find(domain: &str, op: &str) -> Option<&'static Row> {
    TABLE.get(&(domain, op)).copied()
}
