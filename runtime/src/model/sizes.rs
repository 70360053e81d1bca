//! From the shapes of a request to the sizes of the model's dims.

use super::Port;
use crate::error::{Error, Result};
use graphene_frontend::dim::{Bindings, Dim, Symbol};
use smallvec::SmallVec;
use std::collections::BTreeSet;

/// Sizes of a model's dims, in the order of its symbols.
pub(crate) type Sizes = SmallVec<[i64; 6]>;

/// How the shapes of inputs give a model's dims their sizes.
#[derive(Debug)]
pub(crate) struct Solver {
    /// The model's dims, by name.
    symbols: Vec<Symbol>,
    /// For each symbol the input and the axis whose size it is, if one is the symbol alone.
    plain: Vec<Option<(usize, usize)>>,
}

impl Solver {
    /// That of a model with these inputs.
    pub(crate) fn new(inputs: &[Port]) -> Self {
        let mut symbols = BTreeSet::new();
        inputs.iter().flat_map(Port::dims).for_each(|dim| dim.collect_symbols(&mut symbols));
        let symbols: Vec<_> = symbols.into_iter().collect();
        let place = |symbol: &Symbol| {
            inputs.iter().enumerate().find_map(|(input, port)| {
                let axis = port.dims().iter().position(|dim| dim.as_symbol() == Some(symbol))?;
                Some((input, axis))
            })
        };
        Self { plain: symbols.iter().map(place).collect(), symbols }
    }

    /// The model's dims, by name.
    pub(crate) fn symbols(&self) -> &[Symbol] {
        &self.symbols
    }

    /// The sizes at which inputs have these shapes. That all shapes agree with them is for [`check`](Self::check).
    ///
    /// # Errors
    /// [`Error::Unsized`] for a dim that no shape tells, [`Error::Input`] for an input of too few dims.
    pub(crate) fn solve<'a>(
        &self,
        inputs: &[Port],
        shape: impl Fn(usize) -> &'a [usize],
    ) -> Result<Sizes> {
        let mut sizes = Sizes::new();
        let mut whole = true;
        for place in &self.plain {
            let size = match *place {
                Some((input, axis)) => {
                    let size = shape(input).get(axis).and_then(|&size| i64::try_from(size).ok());
                    size.ok_or_else(|| misshapen(&inputs[input], shape(input)))?
                }
                None => {
                    whole = false;
                    0
                }
            };
            sizes.push(size);
        }
        if !whole {
            self.solve_expressions(inputs, shape, &mut sizes)?;
        }
        Ok(sizes)
    }

    /// Sizes of the symbols that stand in expressions only: one at a time, from an expression whose others are known and
    /// which grows with it.
    fn solve_expressions<'a>(
        &self,
        inputs: &[Port],
        shape: impl Fn(usize) -> &'a [usize],
        sizes: &mut Sizes,
    ) -> Result<()> {
        let mut known: Vec<bool> = self.plain.iter().map(Option::is_some).collect();
        while let Some(first) = known.iter().position(|known| !known) {
            let mut dims = inputs.iter().enumerate().flat_map(|(i, port)| {
                port.dims().iter().zip(shape(i)).map(|(dim, &size)| (dim, size))
            });
            let found = dims.find_map(|(dim, size)| {
                let unknown = self.only_unknown(dim, &known)?;
                Some((unknown, self.invert(dim, unknown, size, sizes)?))
            });
            let unsized_ = || Error::Unsized { symbol: self.symbols[first].clone() };
            let (symbol, size) = found.ok_or_else(unsized_)?;
            (sizes[symbol], known[symbol]) = (size, true);
        }
        Ok(())
    }

    /// The one symbol of an expression that is not known.
    fn only_unknown(&self, dim: &Dim, known: &[bool]) -> Option<usize> {
        let mut symbols = BTreeSet::new();
        dim.collect_symbols(&mut symbols);
        let number = |symbol: &Symbol| self.symbols.iter().position(|other| other == symbol);
        let mut unknown = symbols.iter().filter_map(number).filter(|&i| !known[i]);
        unknown.next().filter(|_| unknown.next().is_none())
    }

    /// The size of a symbol at which an expression that grows with it is `size`.
    fn invert(&self, dim: &Dim, symbol: usize, size: usize, sizes: &Sizes) -> Option<i64> {
        let size = i64::try_from(size).ok()?;
        let at = |candidate: i64| {
            let mut sizes = sizes.clone();
            sizes[symbol] = candidate;
            dim.eval(&self.bindings(&sizes).ok()?).ok()
        };
        let (mut low, mut high) = (0, size.max(1));
        while at(high)? < size {
            high = high.checked_mul(2)?;
        }
        while low < high {
            let middle = low + (high - low) / 2;
            (low, high) = if at(middle)? < size { (middle + 1, high) } else { (low, middle) };
        }
        (at(low)? == size).then_some(low)
    }

    /// The same sizes by symbol.
    ///
    /// # Errors
    /// [`Error::Dim`] for a negative size.
    pub(crate) fn bindings(&self, sizes: &Sizes) -> Result<Bindings> {
        let mut bindings = Bindings::new();
        for (symbol, &size) in self.symbols.iter().zip(sizes) {
            bindings.fix(symbol.clone(), size)?;
        }
        Ok(bindings)
    }

    /// Sizes given by name, for all of the model's dims.
    ///
    /// # Errors
    /// [`Error::UnknownDim`] and [`Error::Unsized`].
    pub(crate) fn named(&self, given: &[(&str, usize)]) -> Result<Sizes> {
        let known = |name: &str| self.symbols.iter().any(|symbol| symbol.name() == name);
        if let Some((name, _)) = given.iter().find(|(name, _)| !known(name)) {
            return Err(self.unknown(name));
        }
        let size = |symbol: &Symbol| {
            let size = given.iter().find(|(name, _)| *name == symbol.name());
            let size = size.and_then(|&(_, size)| i64::try_from(size).ok());
            size.ok_or_else(|| Error::Unsized { symbol: symbol.clone() })
        };
        self.symbols.iter().map(size).collect()
    }

    /// The error for a name of no dim.
    pub(crate) fn unknown(&self, name: &str) -> Error {
        let known = self.symbols.iter().map(|symbol| symbol.name().to_owned()).collect();
        Error::UnknownDim { name: name.to_owned(), known }
    }

    /// Why inputs of these shapes do not fit: the first axis that disagrees with the dim that it has.
    ///
    /// # Errors
    /// [`Error::Conflict`] and [`Error::Input`].
    pub(crate) fn check<'a>(
        &self,
        inputs: &[Port],
        sizes: &Bindings,
        shape: impl Fn(usize) -> &'a [usize],
    ) -> Result<()> {
        for (number, port) in inputs.iter().enumerate() {
            let shape = shape(number);
            if shape.len() != port.dims().len() {
                return Err(misshapen(port, shape));
            }
            for (axis, (dim, &size)) in port.dims().iter().zip(shape).enumerate() {
                let expected = dim.eval(sizes)?;
                if i64::try_from(size) == Ok(expected) {
                    continue;
                }
                let symbol = dim
                    .as_symbol()
                    .and_then(|symbol| self.symbols.iter().position(|other| other == symbol));
                let by = symbol.and_then(|symbol| self.plain[symbol]);
                let by = by.map(|(input, _)| inputs[input].name().to_owned());
                let (name, dim) = (port.name().to_owned(), dim.clone());
                return Err(Error::Conflict { name, axis, dim, size, expected, by });
            }
        }
        Ok(())
    }
}

/// An input of another rank than its port.
fn misshapen(port: &Port, shape: &[usize]) -> Error {
    let found = format!("a tensor of shape {shape:?}");
    Error::Input { name: port.name().to_owned(), expected: port.ty().to_string(), found }
}

#[cfg(test)]
mod tests {
    use super::{Port, Solver};

    fn ports(types: &[(&str, &str)]) -> Vec<Port> {
        let port = |&(name, ty): &(&str, &str)| (name.to_owned(), ty.parse().expect("a type"));
        Port::of(&types.iter().map(port).collect::<Vec<_>>())
    }

    fn solved(types: &[(&str, &str)], shapes: &[&[usize]]) -> Result<Vec<i64>, String> {
        let inputs = ports(types);
        let solver = Solver::new(&inputs);
        let shape = |input: usize| shapes[input];
        let sizes = solver.solve(&inputs, shape).map_err(|error| error.to_string())?;
        let bindings = solver.bindings(&sizes).map_err(|error| error.to_string())?;
        solver.check(&inputs, &bindings, shape).map_err(|error| error.to_string())?;
        Ok(sizes.to_vec())
    }

    #[test]
    fn shapes_give_dims_their_sizes() {
        let encoder = [("ids", "i64[batch, sequence]"), ("mask", "i64[batch, sequence]")];
        assert_eq!(solved(&encoder, &[&[2, 7], &[2, 7]]), Ok(vec![2, 7]));
        let error = "input \"mask\" has 8 along axis 1, where `sequence` is 7 by input \"ids\"";
        assert_eq!(solved(&encoder, &[&[2, 7], &[2, 8]]), Err(error.to_owned()));
        let error = "input \"ids\" must be i64[batch, sequence], but is a tensor of shape [2]";
        assert_eq!(solved(&encoder, &[&[2], &[2, 8]]), Err(error.to_owned()));
        let decoder = [("ids", "i64[1, s]"), ("mask", "i64[1, past + s]")];
        assert_eq!(solved(&decoder, &[&[1, 2], &[1, 9]]), Ok(vec![7, 2]));
        let error = "no input gives the dim `past` a size";
        assert_eq!(solved(&decoder, &[&[1, 5], &[1, 3]]), Err(error.to_owned()));
        assert_eq!(solved(&[("x", "f32[3]")], &[&[3]]), Ok(vec![]));
        let error = "input \"x\" has 4 along axis 0, where it is 3";
        assert_eq!(solved(&[("x", "f32[3]")], &[&[4]]), Err(error.to_owned()));
    }
}
