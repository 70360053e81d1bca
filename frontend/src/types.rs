//! Types of values: an element type and a shape of dims.

use crate::dim::{Bindings, Dim, DimError, ParseDimError, Symbol};
use crate::dtype::{DType, ParseDTypeError};
use crate::tensor::Tensor;
use std::fmt;
use std::str::FromStr;

/// More dims than any real tensor has.
pub const MAX_RANK: usize = 16;

/// The element type and shape of a value.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct TensorType {
    /// The element type.
    pub dtype: DType,
    /// Elements along each dimension.
    pub shape: Vec<Dim>,
}

impl TensorType {
    /// A type of these parts.
    pub fn new(dtype: DType, shape: Vec<Dim>) -> Self {
        Self { dtype, shape }
    }

    /// The type of a tensor.
    pub fn of(tensor: &Tensor) -> Self {
        Self::new(tensor.dtype(), tensor.shape().iter().map(|&size| Dim::from(size)).collect())
    }

    /// The number of dims.
    pub fn rank(&self) -> usize {
        self.shape.len()
    }

    /// The number of elements, as an expression.
    pub fn elements(&self) -> Dim {
        self.shape.iter().product::<Dim>()
    }

    /// The sizes, if all are known.
    pub fn known_shape(&self) -> Option<Vec<usize>> {
        self.shape.iter().map(|dim| usize::try_from(dim.known()?).ok()).collect()
    }

    /// The sizes under `bindings`.
    ///
    /// # Errors
    /// [`DimError`] if a symbol has no size.
    pub fn bound_shape(&self, bindings: &Bindings) -> Result<Vec<usize>, DimError> {
        let size = |dim: &Dim| Ok(usize::try_from(dim.eval(bindings)?).unwrap_or(0));
        self.shape.iter().map(size).collect()
    }

    /// The type with sizes in place of the symbols that have one.
    ///
    /// # Errors
    /// [`DimError::DivisionByZero`] if a divisor comes out as zero.
    pub fn substitute(&self, bindings: &Bindings) -> Result<Self, DimError> {
        let shape = self.shape.iter().map(|dim| dim.substitute(bindings));
        Ok(Self::new(self.dtype, shape.collect::<Result<_, _>>()?))
    }

    /// Replaces a symbol by a dim.
    ///
    /// # Errors
    /// [`DimError::DivisionByZero`].
    pub fn replace(&self, symbol: &Symbol, dim: &Dim) -> Result<Self, DimError> {
        let shape = self.shape.iter().map(|own| own.replace(symbol, dim));
        Ok(Self::new(self.dtype, shape.collect::<Result<_, _>>()?))
    }
}

/// A shape as text, for example `[batch, 2*sequence, 768]`.
pub fn shape_text(shape: &[Dim]) -> String {
    let dims: Vec<_> = shape.iter().map(Dim::to_string).collect();
    format!("[{}]", dims.join(", "))
}

impl fmt::Display for TensorType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.dtype, shape_text(&self.shape))
    }
}

/// Text that is no type.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ParseTypeError {
    /// The element type is not one of ours.
    #[error(transparent)]
    DType(#[from] ParseDTypeError),
    /// A dim is malformed.
    #[error(transparent)]
    Dim(#[from] ParseDimError),
    /// There are no brackets about the shape, or text after them.
    #[error("a type is written like `f32[batch, 768]`")]
    Brackets,
    /// More dims than [`MAX_RANK`].
    #[error("a type has at most {MAX_RANK} dims")]
    Rank,
}

impl FromStr for TensorType {
    type Err = ParseTypeError;
    fn from_str(text: &str) -> Result<Self, ParseTypeError> {
        let (dtype, rest) = text.trim().split_once('[').ok_or(ParseTypeError::Brackets)?;
        let inner = rest.strip_suffix(']').ok_or(ParseTypeError::Brackets)?;
        Ok(Self::new(dtype.trim().parse()?, parse_dims(inner)?))
    }
}

/// Dims between commas; a comma within parentheses or a quoted name is part of its dim.
fn parse_dims(text: &str) -> Result<Vec<Dim>, ParseTypeError> {
    let (mut dims, mut start, mut depth, mut quoted) = (Vec::new(), 0, 0_usize, false);
    if text.trim().is_empty() {
        return Ok(dims);
    }
    for (at, c) in text.char_indices() {
        match c {
            '`' => quoted = !quoted,
            '(' if !quoted => depth += 1,
            ')' if !quoted => depth = depth.saturating_sub(1),
            ',' if !quoted && depth == 0 => {
                dims.push(text[start..at].parse()?);
                start = at + 1;
            }
            _ => {}
        }
        if dims.len() >= MAX_RANK {
            return Err(ParseTypeError::Rank);
        }
    }
    dims.push(text[start..].parse()?);
    Ok(dims)
}

#[cfg(test)]
mod tests {
    use super::TensorType;

    #[test]
    fn text_form_round_trips() {
        let rows = [
            "f32[]",
            "i64[0]",
            "bool[1, batch]",
            "bf16[batch, 2*sequence, min(a, floor(b + 1, 2)), `a, (b`, 768]",
        ];
        for text in rows {
            let parsed: TensorType = text.parse().unwrap();
            assert_eq!(parsed.to_string(), text);
        }
    }

    #[test]
    fn malformed_text_is_refused() {
        let long = format!("f32[{}1]", "1, ".repeat(16));
        for text in
            ["", "f32", "f32[", "f32[2", "f32]2[", "x[2]", "f32[2,]", "f32[,2]", "f32[2] x", &long]
        {
            assert!(text.parse::<TensorType>().is_err(), "{text}");
        }
    }

    #[test]
    fn sizes_out_of_reason_are_refused() {
        let rows = [
            ("f32[0, 9000000000000000000]", true),
            ("f32[68719476736]", true),
            ("f32[68719476736, 2]", false),
            ("f32[68719476736, 2, batch]", false),
            ("f32[9000000000000000000, 9000000000000000000]", false),
            ("f32[0, -1]", false),
            ("f32[-1, 0]", false),
            ("f32[-batch, 4]", false),
            ("f32[batch - 1]", true),
        ];
        for (text, fine) in rows {
            let ty: TensorType = text.parse().unwrap();
            assert_eq!(ty.check().is_ok(), fine, "{text}");
        }
    }
}
