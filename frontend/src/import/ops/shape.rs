//! Shapes and constants.

use super::{Row, row};
use crate::graph::ValueId;
use crate::import::{Context, OpError};

/// The operators of this family.
pub(super) const ROWS: &[Row] = &[row("Identity", 1, identity), row("Transpose", 1, transpose)];

type Outputs = Result<Vec<ValueId>, OpError>;

fn identity(cx: &mut Context<'_, '_>) -> Outputs {
    Ok(vec![cx.input(0)?])
}

fn transpose(cx: &mut Context<'_, '_>) -> Outputs {
    let x = cx.input(0)?;
    let rank = cx.rank(x);
    let perm = match cx.ints("perm") {
        Some(perm) => perm.iter().map(|&axis| cx.axis(rank, axis)).collect::<Result<_, _>>()?,
        None => (0..rank).rev().collect(),
    };
    Ok(vec![cx.transpose(x, perm)?])
}
