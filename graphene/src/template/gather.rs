//! Rows of tables: `y[r] = Σ tableᵢ[indexᵢ[r]]`, and what [`super::rows::Rows`] computes of
//! them, such as the layer normalisation of an embedding layer.
//!
//! Negative indices count from the table's end. Others than those of the table are taken for its first or last row, so that
//! no memory beyond it is read. A table has fewer than 2³¹ rows.

use super::access::Access;
use super::rows::{Norm, Rows};
use crate::schedule::{computed, constant, moved, number};
use crate::{Binary, Builder, Expr, Function, Kind, Result, Scalar, TensorId, Test};

/// Which row of an input is taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Place {
    /// The same as of all other operands.
    Same,
    /// The one whose number the tensor of indices `i0`, `i1`, … of this type has at the row. The
    /// input has `x0_rows`, `x1_rows`, … rows.
    Index(Scalar),
    /// The row modulo the input's number of rows: those of positions in a sequence.
    Repeated,
}

/// The sum of rows of tables, without a normalisation.
pub fn gather(scalar: Scalar, places: &[Place]) -> Rows {
    let inputs = (1..places.len()).map(Function::input);
    Rows {
        norm: Norm::None,
        prologue: inputs.fold(Function::identity(), |sum, input| sum + input),
        ins: vec![Access::packed(scalar, 2); places.len()],
        places: places.to_vec(),
        scale: None,
        shift: None,
        out: Access::packed(scalar, 2),
        vector: 16 / scalar.bytes(),
        ..Rows::default()
    }
}

/// The layer normalisation of the sum of a word's, a position's and a token type's embedding, with indices of this type.
pub fn embedding(scalar: Scalar, index: Scalar) -> Rows {
    Rows {
        norm: Norm::Layer,
        scale: Some(scalar),
        shift: Some(scalar),
        ..gather(scalar, &[Place::Index(index), Place::Repeated, Place::Index(index)])
    }
}

/// The row of a table of so many rows that an index says.
pub(super) fn look_up(k: &mut Builder, indices: TensorId, row: &Expr, rows: &Expr) -> Result<Expr> {
    let scalar = k.tensor_of(indices)?.scalar;
    let raw = constant(k, "index", scalar, 0.0)?;
    let from = k.index(indices, "from", [row.clone()])?;
    k.if_(Test::Inside(from.into()), |k| k.move_(raw, from))?;
    let wide = number(k, "wide", Scalar::I64)?;
    let count = number(k, "count", Scalar::I64)?;
    k.move_(wide, raw)?;
    k.alone(Kind::Index(rows.clone()), count, ())?;
    let [index, size] = [0, 1].map(Function::input);
    let negative = index.clone().binary(Binary::Less, 0.0);
    let wrapped = negative.select(index.clone() + size.clone(), index);
    let within = wrapped.binary(Binary::Min, size - 1.0).binary(Binary::Max, 0.0);
    let clipped = computed(k, &within, ("clipped", 1, Scalar::I64), &[wide, count])?[0];
    let clipped = k.index(clipped, "clipped", [0])?;
    let place = moved(k, "place", Scalar::I32, clipped)?;
    Ok(k.value("looked_up", place)?.into())
}
