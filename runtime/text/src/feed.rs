//! What the inputs of a model of text take.

use crate::error::{Error, Result};
use crate::tokens::Tokens;
use graphene_frontend::dtype::DType;
use graphene_frontend::tensor::Tensor;
use graphene_frontend::types::TensorType;
use std::fmt;

/// An input or an output of a model.
#[derive(Clone, PartialEq, Debug)]
pub struct Port {
    /// Its name.
    pub name: String,
    /// Its type.
    pub ty: TensorType,
}

/// What an input takes of a text's tokens.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Feed {
    name: String,
    dtype: DType,
    role: Role,
}

/// A part of tokens that is an input of its own.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Role {
    /// Their ids.
    Ids,
    /// 1 for tokens, 0 for padding.
    Mask,
    /// 1 for those of the second text of a pair.
    Types,
    /// Their places, from 0.
    Positions,
}

impl Role {
    /// What an input of this name takes.
    pub fn of(name: &str) -> Option<Self> {
        match name {
            _ if name.contains("attention_mask") || name.contains("input_mask") => Some(Self::Mask),
            _ if name.contains("token_type") || name.contains("segment_ids") => Some(Self::Types),
            _ if name.contains("position_ids") => Some(Self::Positions),
            _ if name.contains("input_ids") => Some(Self::Ids),
            _ => None,
        }
    }
}

impl Feed {
    /// What an input takes.
    ///
    /// # Errors
    /// [`Error::Input`] and [`Error::InputType`] for one that takes no tokens.
    pub fn of(port: &Port) -> Result<Self> {
        let told = || port.to_string();
        let role = Role::of(&port.name).ok_or_else(|| Error::Input { port: told() })?;
        let (name, dtype) = (port.name.clone(), port.ty.dtype);
        match (dtype, port.ty.rank()) {
            (DType::I32 | DType::I64, 2) => Ok(Self { name, dtype, role }),
            _ => Err(Error::InputType { port: told() }),
        }
    }

    /// The input's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The input of some texts, `[texts, length]`: a row each, padded to `length` with the id `pad`, or cut there.
    ///
    /// # Errors
    /// [`Error::TooLarge`].
    pub fn tensor(&self, texts: &[Tokens], length: usize, pad: u32) -> Result<Tensor> {
        let number = |tokens: &Tokens, place: usize| {
            let of = |all: &[u32], padding| i64::from(all.get(place).copied().unwrap_or(padding));
            match self.role {
                Role::Ids => of(&tokens.ids, pad),
                Role::Mask => i64::from(place < tokens.ids.len()),
                Role::Types => of(&tokens.types, 0),
                Role::Positions => place as i64,
            }
        };
        let shape = vec![texts.len(), length];
        let numbers = texts.iter().flat_map(|tokens| (0..length).map(move |i| number(tokens, i)));
        let tensor = match self.dtype {
            DType::I32 => Tensor::from_vec(shape, numbers.map(|x| x as i32).collect()),
            _ => Tensor::from_vec(shape, numbers.collect()),
        };
        tensor.map_err(|_| Error::TooLarge { rows: texts.len(), length })
    }
}

impl fmt::Display for Port {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.name, self.ty)
    }
}

#[cfg(test)]
mod tests {
    use super::{Feed, Port};
    use crate::error::Error;
    use crate::tokens::Tokens;

    fn feed(name: &str, ty: &str) -> Result<Feed, Error> {
        Feed::of(&Port { name: name.to_owned(), ty: ty.parse().unwrap() })
    }

    fn tokens(ids: &[u32], types: &[u32]) -> Tokens {
        Tokens { ids: ids.to_vec(), types: types.to_vec(), parts: Vec::new() }
    }

    #[test]
    fn rows_are_padded() {
        let texts = [tokens(&[2, 9, 3], &[0, 0, 1]), tokens(&[7], &[0])];
        let rows = [
            ("input_ids", [2, 9, 3, 5, 7, 5, 5, 5]),
            ("attention_mask", [1, 1, 1, 0, 1, 0, 0, 0]),
            ("token_type_ids", [0, 0, 1, 0, 0, 0, 0, 0]),
            ("position_ids", [0, 1, 2, 3, 0, 1, 2, 3]),
        ];
        for (name, expected) in rows {
            let wide = feed(name, "i64[b, s]").unwrap().tensor(&texts, 4, 5).unwrap();
            assert_eq!(
                (wide.shape(), wide.as_slice::<i64>().unwrap()),
                (&[2, 4][..], &expected[..])
            );
            let narrow = feed(name, "i32[2, 4]").unwrap().tensor(&texts, 4, 5).unwrap();
            assert_eq!(narrow.as_slice::<i32>().unwrap(), expected.map(|x| x as i32));
        }
    }

    #[test]
    fn inputs_that_take_no_tokens_are_told() {
        let told = |name, ty| feed(name, ty).unwrap_err().to_string();
        assert!(told("x", "f32[n, 4]").contains("input x: f32[n, 4] takes neither ids"));
        assert!(told("input_ids", "f32[n, 4]").contains("has to be i64 or i32 of two dims"));
    }
}
