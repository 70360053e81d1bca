//! Strides: how far one step of a mode moves.

use super::Int;
use crate::{Result, convert::from};

/// A number, `4`; a multiple of a basis vector, `64@1`, which moves 64 along axis 1 of whatever the layout's values are
/// coordinates of; or a sum of such. Equal strides are equal values.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Stride<I = i64> {
    /// In order, no coefficient 0; what has no axis is a number.
    pub(super) terms: Vec<(Option<usize>, I)>,
}

impl<I: Int> Stride<I> {
    /// No move.
    pub fn zero() -> Stride<I> {
        Stride { terms: Vec::new() }
    }

    /// `by@axis`
    pub fn along(axis: usize, by: I) -> Stride<I> {
        Stride::term(Some(axis), by)
    }

    pub(super) fn term(axis: Option<usize>, by: I) -> Stride<I> {
        Stride { terms: if by.equals(0) { Vec::new() } else { vec![(axis, by)] } }
    }

    /// The number that this is, if it moves along no axis.
    pub fn number(&self) -> Option<I> {
        match &self.terms[..] {
            [] => Some(I::from(0)),
            [(None, number)] => Some(number.clone()),
            _ => None,
        }
    }

    /// The axes that it moves along, and how far.
    pub fn steps(&self) -> impl Iterator<Item = (usize, &I)> {
        self.terms.iter().filter_map(|(axis, by)| Some(((*axis)?, by)))
    }

    /// The same stride, said in other integers.
    pub fn lift<J: Int>(&self) -> Stride<J>
    where
        I: Into<J>,
    {
        let terms = self.terms.iter().map(|(axis, by)| (*axis, by.clone().into()));
        Stride { terms: terms.collect() }
    }

    /// Whether it does not move.
    pub fn is_zero(&self) -> bool {
        self.terms.is_empty()
    }

    /// One step and another. Fails on overflow.
    pub fn plus(&self, other: &Stride<I>) -> Result<Stride<I>> {
        let mut sum = self.clone();
        for (axis, by) in &other.terms {
            match sum.terms.binary_search_by_key(axis, |term| term.0) {
                Ok(at) => {
                    let both = sum.terms[at].1.plus(by)?;
                    if both.equals(0) {
                        sum.terms.remove(at);
                    } else {
                        sum.terms[at].1 = both;
                    }
                }
                Err(at) => sum.terms.insert(at, (*axis, by.clone())),
            }
        }
        Ok(sum)
    }

    /// So many steps. Fails on overflow.
    pub fn times(&self, count: &I) -> Result<Stride<I>> {
        let terms = self.terms.iter().map(|(axis, by)| Ok((*axis, by.times(count)?)));
        let terms = terms.filter(|term| !matches!(term, Ok((_, by)) if by.equals(0)));
        Ok(Stride { terms: terms.collect::<Result<_>>()? })
    }
}

from! {
    {I: Int} I => Stride<I>: |number| Stride::term(None, number);
}
