//! Variants: the closed set of kernels that a step is compiled as, and when each applies.
//!
//! Variants are compiled once, those that some sizes take; binding takes the first one whose condition holds at the sizes.

use crate::base::parameters::Parameters;
use graphene_frontend::dim::{Bindings, Dim, DimError, Symbol};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// A condition on a dim.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum When {
    /// It holds at all sizes.
    Always,
    /// The dim is at least this.
    AtLeast(Dim, i64),
    /// The dim is at most this.
    AtMost(Dim, i64),
    /// The dim is in one of these ranges: at least the first, at most the second.
    Within(Dim, Vec<[i64; 2]>),
    /// This divides the dim.
    Divides(i64, Dim),
    /// The first of these estimates is no more than any other.
    Fastest(Vec<Dim>),
    /// These symbols have these sizes.
    Sizes(Vec<(Symbol, i64)>),
    /// Any of these holds.
    Any(Vec<When>),
    /// All of these hold.
    All(Vec<When>),
}

/// One way to compute a step.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Variant {
    /// The name in reports.
    pub name: &'static str,
    /// When it applies.
    pub when: When,
    /// The parameters of its template, where they are not those that its name stands for.
    pub parameters: Option<Parameters>,
}

/// Some variants, of which the last always applies; before them those that tuning found.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Variants(pub(crate) Vec<Variant>);

/// The variant that a library computes in one call. An executor that lacks the library goes on without it.
pub const LIBRARY: &str = "library";
/// The only variant of a step that has one.
pub(crate) const ANY: &str = "any";
const TUNED: &str = "tuned";

impl Variants {
    /// One variant that always applies.
    pub fn any() -> Self {
        Self::ending(Vec::new(), ANY)
    }

    pub(crate) fn ending(mut first: Vec<Variant>, last: &'static str) -> Self {
        first.push(Variant::named(last, When::Always));
        Self(first)
    }

    /// One that always applies, of these parameters.
    pub(crate) fn only(parameters: Parameters) -> Self {
        Self(vec![Variant { parameters: Some(parameters), ..Variant::named(TUNED, When::Always) }])
    }

    /// These, and before them one of these parameters, at these sizes.
    pub(crate) fn with(&self, parameters: Parameters, sizes: Vec<(Symbol, i64)>) -> Self {
        let parameters = Some(parameters);
        let first = Variant { parameters, ..Variant::named(TUNED, When::Sizes(sizes)) };
        Self(std::iter::once(first).chain(self.0.iter().cloned()).collect())
    }

    /// The variants, in the order in which their conditions are asked.
    pub fn all(&self) -> &[Variant] {
        &self.0
    }

    /// One of this name, and after it these.
    pub(crate) fn behind(mut self, name: &'static str, when: When) -> Self {
        self.0.insert(0, Variant::named(name, when));
        self
    }

    /// The place of the one that is a library's call, if there is one.
    pub fn library(&self) -> Option<usize> {
        self.0.iter().position(|variant| variant.name == LIBRARY)
    }

    /// The variants, preceded by a copy of each for when all these symbols are multiples of `of`.
    pub(crate) fn with_multiples(self, of: i64, symbols: &BTreeSet<Symbol>) -> Self {
        if symbols.is_empty() {
            return self;
        }
        let divides = symbols.iter().map(|symbol| When::Divides(of, Dim::symbol(symbol.name())));
        let divides: Vec<When> = divides.collect();
        let multiple = self.0.iter().map(|variant| {
            let all = divides.iter().chain([&variant.when]).cloned().collect();
            Variant { when: When::all(all), ..variant.clone() }
        });
        Self(multiple.chain(self.0.iter().cloned()).collect())
    }

    /// Those that are kernels.
    pub(crate) fn without_library(&mut self) {
        self.0.retain(|variant| variant.name != LIBRARY);
    }

    /// The one whose kernel computes what a variant does. Of a call, in case that the library refuses it, this is the last one: its
    /// tiles may be small for the sizes at hand, but no further kernel has to be compiled.
    pub(crate) fn kernel<'a>(&'a self, variant: &'a Variant) -> &'a Variant {
        self.0.last().filter(|_| variant.name == LIBRARY).unwrap_or(variant)
    }

    /// Those that are taken at some sizes, and the last, whose kernel stands ready beside a call.
    pub(crate) fn without_unreachable(&mut self) {
        let last = self.0.len() - 1;
        let always = self.0.iter().position(|variant| variant.when == When::Always);
        if let Some(always) = always.filter(|&always| always < last) {
            self.0.drain(always + 1..last);
        }
    }

    /// The first variant that applies at these sizes.
    ///
    /// # Errors
    /// [`DimError`] if a symbol of a condition has no size.
    pub fn choose(&self, bindings: &Bindings) -> Result<usize, DimError> {
        let last = self.0.len() - 1;
        for (i, variant) in self.0[..last].iter().enumerate() {
            if variant.when.holds(bindings)? {
                return Ok(i);
            }
        }
        Ok(last)
    }
}

impl Variant {
    pub(crate) fn named(name: &'static str, when: When) -> Self {
        Self { name, when, parameters: None }
    }
}

impl When {
    /// When all of these hold, without those that always do.
    pub(crate) fn all(mut conditions: Vec<When>) -> When {
        conditions.retain(|when| *when != When::Always);
        match &conditions[..] {
            [] => When::Always,
            [one] => one.clone(),
            _ => When::All(conditions),
        }
    }

    /// The symbols that are multiples of a number wherever it holds, with these numbers.
    pub fn multiples(&self) -> BTreeMap<Symbol, i64> {
        match self {
            Self::Divides(of, dim) => {
                dim.as_symbol().map(|symbol| (symbol.clone(), *of)).into_iter().collect()
            }
            Self::All(all) => all.iter().flat_map(When::multiples).collect(),
            Self::Always | Self::AtLeast(..) | Self::AtMost(..) => BTreeMap::new(),
            Self::Within(..) | Self::Fastest(_) | Self::Sizes(_) | Self::Any(_) => BTreeMap::new(),
        }
    }

    /// Whether it holds at these sizes.
    ///
    /// # Errors
    /// [`DimError`] if a symbol has no size.
    pub fn holds(&self, bindings: &Bindings) -> Result<bool, DimError> {
        Ok(match self {
            Self::Always => true,
            Self::AtLeast(dim, size) => dim.eval(bindings)? >= *size,
            Self::AtMost(dim, size) => dim.eval(bindings)? <= *size,
            Self::Within(dim, ranges) => {
                let size = dim.eval(bindings)?;
                ranges.iter().any(|&[from, to]| (from..=to).contains(&size))
            }
            Self::Fastest(estimates) => {
                let all = estimates.iter().map(|dim| dim.eval(bindings));
                let all = all.collect::<Result<Vec<_>, _>>()?;
                all.first() <= all.iter().min()
            }
            Self::Divides(divisor, dim) => dim.eval(bindings)?.checked_rem(*divisor) == Some(0),
            Self::Sizes(sizes) => {
                sizes.iter().all(|(symbol, size)| bindings.get(symbol) == Some(*size))
            }
            Self::Any(any) => {
                any.iter().try_fold(false, |found, when| Ok(found || when.holds(bindings)?))?
            }
            Self::All(all) => {
                all.iter().try_fold(true, |hold, when| Ok(hold && when.holds(bindings)?))?
            }
        })
    }
}

impl fmt::Display for When {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let joined =
            |all: &[When], by: &str| all.iter().map(When::to_string).collect::<Vec<_>>().join(by);
        match self {
            Self::Always => f.write_str("always"),
            Self::AtLeast(dim, size) => write!(f, "{dim} >= {size}"),
            Self::AtMost(dim, size) => write!(f, "{dim} <= {size}"),
            Self::Within(dim, ranges) => {
                let ranges: Vec<_> =
                    ranges.iter().map(|[from, to]| format!("{from} to {to}")).collect();
                write!(f, "{dim} in {}", ranges.join(", "))
            }
            Self::Fastest(_) => f.write_str("estimated fastest"),
            Self::Divides(divisor, dim) => write!(f, "{divisor} divides {dim}"),
            Self::Sizes(sizes) => {
                let sizes = sizes.iter().map(|(symbol, size)| format!("{symbol} = {size}"));
                f.write_str(&sizes.collect::<Vec<_>>().join(" and "))
            }
            Self::Any(any) => write!(f, "({})", joined(any, " or ")),
            Self::All(all) => f.write_str(&joined(all, " and ")),
        }
    }
}

/// Prints as `wide if batch*sequence >= 512, else narrow`.
impl fmt::Display for Variants {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, Variant { name, when, .. }) in self.0.iter().enumerate() {
            match when {
                When::Always if i == 0 => f.write_str(name)?,
                When::Always => write!(f, ", else {name}")?,
                when if i == 0 => write!(f, "{name} if {when}")?,
                when => write!(f, ", {name} if {when}")?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::{ANY, LIBRARY, Variant, Variants, When};
    use graphene_frontend::Dim;

    #[test]
    fn what_no_sizes_take_is_dropped_but_the_last() {
        let some = || When::AtLeast(Dim::symbol("b"), 2);
        let left = |first: Vec<(&'static str, When)>| {
            let first = first.into_iter().map(|(name, when)| Variant::named(name, when));
            let mut variants = Variants::ending(first.collect(), "few");
            variants.without_unreachable();
            let names: Vec<&str> = variants.all().iter().map(|variant| variant.name).collect();
            names.join(" ")
        };
        assert_eq!(left(vec![]), "few");
        assert_eq!(left(vec![(LIBRARY, some()), ("wide", some())]), "library wide few");
        assert_eq!(left(vec![(LIBRARY, When::Always), ("wide", some())]), "library few");
        assert_eq!(
            left(vec![("tuned", some()), (LIBRARY, When::Always), (ANY, some())]),
            "tuned library few"
        );
    }
}
