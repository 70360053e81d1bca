//! Dimensions as canonical expressions over named symbols.
//!
//! A [`Dim`] is a sum of products of atoms with integer coefficients; an atom is a symbol, a floor
//! division, a minimum or a maximum. Two dims that are equal as polynomials over their atoms are equal
//! as values (`==`), print the same text and hash alike, so a shape comparison is a comparison of values.
//!
//! Every symbol stands for a size of at least one: [`Bindings::bind`] refuses anything else, and a size of zero
//! takes the symbol's place before anything is concluded from it ([`Bindings::fix`]). Arithmetic saturates at the
//! ends of `i64`; whoever allocates checks sizes against a limit far below, so a saturated size is always refused
//! there. An expression of more than [`MAX_WEIGHT`] parts saturates too: squaring a sum again and again, or dividing
//! quotients, would otherwise let a small file ask for any memory and any depth.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::iter;
use std::ops::{Add, Mul, Neg, Sub};
use std::sync::Arc;

mod parse;

pub use parse::ParseDimError;

/// Most symbols, operators and terms in one expression; real ones have a few dozen.
pub const MAX_WEIGHT: u32 = 1024;

/// The name of a dimension that is not known until a shape is bound, for example `batch`.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Symbol(Arc<str>);

/// A dimension: a known size or an expression over symbols, in canonical form.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Dim(Repr);

#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Repr {
    Known(i64),
    /// At least one term; a sum without terms is `Known`.
    Sum(Arc<Sum>),
}

/// `constant + Σ coefficient · product`, products ascending and distinct, coefficients non-zero.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Sum {
    terms: Vec<(Product, i64)>,
    constant: i64,
    /// Parts of the expression, at most [`MAX_WEIGHT`]; it follows from the terms.
    weight: u32,
}

/// A non-empty product of atoms with positive powers, atoms ascending and distinct.
type Product = Vec<(Atom, u32)>;

#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Atom {
    Symbol(Symbol),
    /// Floor division; the divisor is never a known zero.
    Div(Dim, Dim),
    /// Operands ascending and distinct.
    Min(Dim, Dim),
    /// Operands ascending and distinct.
    Max(Dim, Dim),
}

/// Sizes for symbols.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct Bindings(BTreeMap<Symbol, i64>);

/// Why an expression has no value.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum DimError {
    /// A symbol has no size in the bindings.
    #[error("dimension `{0}` has no size")]
    Unbound(Symbol),
    /// A divisor came out as zero.
    #[error("`{0}` divides by zero")]
    DivisionByZero(Dim),
    /// A symbol was given a size below one, or two different sizes.
    #[error("dimension `{symbol}` cannot be {size}{}", .before.map(|b| format!(": it is {b} already")).unwrap_or_default())]
    Size {
        /// The symbol.
        symbol: Symbol,
        /// The refused size.
        size: i64,
        /// Its size so far, where that is what conflicts.
        before: Option<i64>,
    },
}

impl Symbol {
    /// A symbol of this name.
    pub fn new(name: &str) -> Self {
        Self(name.into())
    }

    /// The name.
    pub fn name(&self) -> &str {
        &self.0
    }
}

impl Bindings {
    /// No sizes.
    pub fn new() -> Self {
        Self::default()
    }

    /// Binds `symbol` to `size` (elements).
    ///
    /// # Errors
    /// [`DimError::Size`] if the size is below one or the symbol has another size already.
    pub fn bind(&mut self, symbol: Symbol, size: i64) -> Result<(), DimError> {
        if size < 1 {
            return Err(DimError::Size { symbol, size, before: None });
        }
        self.fix(symbol, size)
    }

    /// Binds `symbol` to `size` (elements), which may be zero: only for what is built from these sizes on. What was
    /// concluded before holds for sizes of at least one.
    ///
    /// # Errors
    /// [`DimError::Size`] if the size is negative or the symbol has another size already.
    pub fn fix(&mut self, symbol: Symbol, size: i64) -> Result<(), DimError> {
        let before = self.get(&symbol).filter(|&before| before != size);
        if size < 0 || before.is_some() {
            return Err(DimError::Size { symbol, size, before });
        }
        self.0.insert(symbol, size);
        Ok(())
    }

    /// The size of `symbol`, if it has one.
    pub fn get(&self, symbol: &Symbol) -> Option<i64> {
        self.0.get(symbol).copied()
    }

    /// All sizes, by symbol name.
    pub fn iter(&self) -> impl Iterator<Item = (&Symbol, i64)> {
        self.0.iter().map(|(symbol, &size)| (symbol, size))
    }
}

impl Dim {
    /// The dimension named `name`.
    pub fn symbol(name: &str) -> Self {
        Self::from(Atom::Symbol(Symbol::new(name)))
    }

    /// The size, if no symbol is in it.
    pub fn known(&self) -> Option<i64> {
        match &self.0 {
            Repr::Known(size) => Some(*size),
            Repr::Sum(_) => None,
        }
    }

    /// The symbol, if the dim is exactly one.
    pub fn as_symbol(&self) -> Option<&Symbol> {
        match self.as_atom() {
            Some(Atom::Symbol(symbol)) => Some(symbol),
            Some(Atom::Div(..) | Atom::Min(..) | Atom::Max(..)) | None => None,
        }
    }

    /// The symbols in it.
    pub fn symbols(&self) -> BTreeSet<Symbol> {
        let mut symbols = BTreeSet::new();
        self.collect_symbols(&mut symbols);
        symbols
    }

    /// Adds the symbols in it to `out`.
    pub fn collect_symbols(&self, out: &mut BTreeSet<Symbol>) {
        for (product, _) in self.terms() {
            for (atom, _) in product {
                match atom {
                    Atom::Symbol(symbol) => {
                        out.insert(symbol.clone());
                    }
                    Atom::Div(a, b) | Atom::Min(a, b) | Atom::Max(a, b) => {
                        a.collect_symbols(out);
                        b.collect_symbols(out);
                    }
                }
            }
        }
    }

    /// `⌊self / divisor⌋`. Division of every term by a constant or a product is carried out.
    ///
    /// # Errors
    /// [`DimError::DivisionByZero`] if the divisor is a known zero.
    pub fn floor_div(&self, divisor: &Dim) -> Result<Dim, DimError> {
        if divisor.known() == Some(0) {
            return Err(DimError::DivisionByZero(self.clone()));
        }
        if let (Some(a), Some(b)) = (self.known(), divisor.known()) {
            return Ok(Dim::from(floor_quotient(a, b)));
        }
        if let Some(quotient) = self.exact_div(divisor) {
            return Ok(quotient);
        }
        // ⌊(q·d + r) / d⌋ = q + ⌊r / d⌋: whole multiples leave the division.
        let (whole, rest) = self.split_multiples(divisor);
        let inner = match (rest.known(), divisor.known()) {
            (Some(a), Some(b)) => Dim::from(floor_quotient(a, b)),
            _ => Dim::from(Atom::Div(rest, divisor.clone())),
        };
        Ok(whole + inner)
    }

    /// `⌈self / divisor⌉` for a positive divisor.
    ///
    /// # Errors
    /// [`DimError::DivisionByZero`] if the divisor is a known zero.
    pub fn ceil_div(&self, divisor: &Dim) -> Result<Dim, DimError> {
        (self + divisor - Dim::from(1)).floor_div(divisor)
    }

    /// The quotient, if `divisor` is one product that divides every term without remainder.
    pub fn exact_div(&self, divisor: &Dim) -> Option<Dim> {
        if self == divisor {
            return Some(Dim::from(1));
        }
        let (factor, coefficient) = divisor.as_product()?;
        if coefficient == 0 {
            return None;
        }
        let mut quotient = Dim::from(0);
        for (product, c) in self.all_terms() {
            if c.checked_rem(coefficient)? != 0 {
                return None;
            }
            quotient = quotient + Dim::term(divide_product(&product, &factor)?, c / coefficient);
        }
        Some(quotient)
    }

    /// The smaller of two dims; decided now where the bounds of the symbols allow.
    pub fn minimum(&self, other: &Dim) -> Dim {
        match (self.is_at_most(other), other.is_at_most(self)) {
            (true, _) => self.clone(),
            (_, true) => other.clone(),
            _ if self < other => Dim::from(Atom::Min(self.clone(), other.clone())),
            _ => Dim::from(Atom::Min(other.clone(), self.clone())),
        }
    }

    /// The larger of two dims; decided now where the bounds of the symbols allow.
    pub fn maximum(&self, other: &Dim) -> Dim {
        match (self.is_at_most(other), other.is_at_most(self)) {
            (true, _) => other.clone(),
            (_, true) => self.clone(),
            _ if self < other => Dim::from(Atom::Max(self.clone(), other.clone())),
            _ => Dim::from(Atom::Max(other.clone(), self.clone())),
        }
    }

    /// Whether `self <= other` for all symbols of at least one (`false`: not provable here).
    pub fn is_at_most(&self, other: &Dim) -> bool {
        (other - self).lower_bound().is_some_and(|bound| bound >= 0)
    }

    /// A bound from below that holds for all symbols of at least one, if there is one.
    pub fn lower_bound(&self) -> Option<i64> {
        self.bounds().0
    }

    /// A bound from above that holds for all symbols of at least one, if there is one.
    pub fn upper_bound(&self) -> Option<i64> {
        self.bounds().1
    }

    /// Replaces the symbols that have a size; the rest stays.
    ///
    /// # Errors
    /// [`DimError::DivisionByZero`] if a divisor comes out as zero.
    pub fn substitute(&self, bindings: &Bindings) -> Result<Dim, DimError> {
        self.map_symbols(&|symbol| bindings.get(symbol).map(Dim::from))
    }

    /// Replaces a symbol by a dim.
    ///
    /// # Errors
    /// [`DimError::DivisionByZero`] if a divisor comes out as zero.
    pub fn replace(&self, symbol: &Symbol, dim: &Dim) -> Result<Dim, DimError> {
        self.map_symbols(&|other| (other == symbol).then(|| dim.clone()))
    }

    /// The equations by which two dims are equal whatever the sizes: each makes one symbol a sum of others that is at
    /// least two, as in `total = past + sequence`. Dims that may be one are not equated: they may broadcast instead.
    pub fn equate(&self, other: &Dim) -> Vec<(Symbol, Dim)> {
        let difference = self - other;
        let solved = |(product, coefficient): &(Product, i64)| {
            let ([(Atom::Symbol(symbol), 1)], 1 | -1) = (product.as_slice(), coefficient) else {
                return None;
            };
            let rest = &difference - &Dim::term(product.clone(), *coefficient);
            let sum = if *coefficient == 1 { -&rest } else { rest };
            let symbols = sum.symbols();
            let fits = !symbols.contains(symbol) && sum.lower_bound().is_some_and(|low| low >= 2);
            (fits && !symbols.is_empty()).then(|| (symbol.clone(), sum))
        };
        difference.terms().iter().filter_map(solved).collect()
    }

    fn map_symbols(&self, of: &dyn Fn(&Symbol) -> Option<Dim>) -> Result<Dim, DimError> {
        if self.known().is_some() {
            return Ok(self.clone());
        }
        let mut sum = Dim::from(self.constant());
        for (product, coefficient) in self.terms() {
            let mut value = Dim::from(*coefficient);
            for (atom, power) in product {
                let factor = match atom {
                    Atom::Symbol(symbol) => match of(symbol) {
                        Some(dim) => dim,
                        None => Dim::from(atom.clone()),
                    },
                    Atom::Div(a, b) => a.map_symbols(of)?.floor_div(&b.map_symbols(of)?)?,
                    Atom::Min(a, b) => a.map_symbols(of)?.minimum(&b.map_symbols(of)?),
                    Atom::Max(a, b) => a.map_symbols(of)?.maximum(&b.map_symbols(of)?),
                };
                for _ in 0..*power {
                    value = value * factor.clone();
                }
            }
            sum = sum + value;
        }
        Ok(sum)
    }

    /// The size under `bindings`.
    ///
    /// # Errors
    /// [`DimError::Unbound`] for a symbol without a size, [`DimError::DivisionByZero`].
    pub fn eval(&self, bindings: &Bindings) -> Result<i64, DimError> {
        let value = self.substitute(bindings)?;
        value.known().ok_or_else(|| {
            DimError::Unbound(value.symbols().pop_first().expect("an unknown dim holds a symbol"))
        })
    }

    fn constant(&self) -> i64 {
        match &self.0 {
            Repr::Known(size) => *size,
            Repr::Sum(sum) => sum.constant,
        }
    }

    fn terms(&self) -> &[(Product, i64)] {
        match &self.0 {
            Repr::Known(_) => &[],
            Repr::Sum(sum) => &sum.terms,
        }
    }

    /// All terms, the constant among them as the empty product.
    fn all_terms(&self) -> impl Iterator<Item = (Product, i64)> + '_ {
        let constant = Some((Vec::new(), self.constant())).filter(|&(_, c)| c != 0);
        self.terms().iter().cloned().chain(constant)
    }

    /// The dim as one product and its coefficient.
    fn as_product(&self) -> Option<(Product, i64)> {
        match &self.0 {
            Repr::Known(size) => Some((Vec::new(), *size)),
            Repr::Sum(sum) => match sum.terms.as_slice() {
                [(product, c)] if sum.constant == 0 => Some((product.clone(), *c)),
                _ => None,
            },
        }
    }

    fn as_atom(&self) -> Option<&Atom> {
        match self.terms() {
            [(product, 1)] if self.constant() == 0 => match product.as_slice() {
                [(atom, 1)] => Some(atom),
                _ => None,
            },
            _ => None,
        }
    }

    fn term(product: Product, coefficient: i64) -> Dim {
        if product.is_empty() || coefficient == 0 {
            return Dim::from(coefficient);
        }
        Self::from_terms([(product, coefficient)].into(), 0)
    }

    fn from_terms(terms: BTreeMap<Product, i64>, constant: i64) -> Dim {
        let terms: Vec<_> = terms.into_iter().filter(|&(_, c)| c != 0).collect();
        if terms.is_empty() {
            return Dim::from(constant);
        }
        let parts = terms.iter().map(|(product, _)| product_weight(product));
        let weight = parts.fold(1, u32::saturating_add);
        if weight > MAX_WEIGHT {
            return Dim::from(i64::MAX);
        }
        Dim(Repr::Sum(Arc::new(Sum { terms, constant, weight })))
    }

    fn weight(&self) -> u32 {
        match &self.0 {
            Repr::Known(_) => 1,
            Repr::Sum(sum) => sum.weight,
        }
    }

    /// `(q, r)` with `self = q·divisor + r`, where q takes every term that divides.
    fn split_multiples(&self, divisor: &Dim) -> (Dim, Dim) {
        let Some((factor, coefficient)) = divisor.as_product().filter(|&(_, c)| c != 0) else {
            return (Dim::from(0), self.clone());
        };
        let (mut whole, mut rest) = (Dim::from(0), Dim::from(0));
        for (product, c) in self.all_terms() {
            match divide_product(&product, &factor) {
                Some(quotient) => {
                    whole = whole + Dim::term(quotient, c.div_euclid(coefficient));
                    rest = rest + Dim::term(product, c.rem_euclid(coefficient));
                }
                None => rest = rest + Dim::term(product, c),
            }
        }
        (whole, rest)
    }

    fn bounds(&self) -> (Option<i64>, Option<i64>) {
        let (mut low, mut high) = (Some(self.constant()), Some(self.constant()));
        for (product, c) in self.terms() {
            let (mut l, mut h) = (Some(1_i64), Some(1_i64));
            for (atom, power) in product {
                let (al, ah) = atom.bounds();
                // Products of non-negative factors only: anything else is unbounded here.
                let al = al.filter(|&al| al >= 0);
                for _ in 0..*power {
                    l = l.zip(al).and_then(|(l, al)| l.checked_mul(al));
                    h = al.and(h).zip(ah).and_then(|(h, ah)| h.checked_mul(ah));
                }
            }
            let (l, h) = if *c >= 0 { (l, h) } else { (h, l) };
            low = low.zip(l).and_then(|(sum, l)| sum.checked_add(l.checked_mul(*c)?));
            high = high.zip(h).and_then(|(sum, h)| sum.checked_add(h.checked_mul(*c)?));
        }
        (low, high)
    }
}

impl Atom {
    fn weight(&self) -> u32 {
        match self {
            Atom::Symbol(_) => 1,
            Atom::Div(a, b) | Atom::Min(a, b) | Atom::Max(a, b) => 1 + a.weight() + b.weight(),
        }
    }

    fn bounds(&self) -> (Option<i64>, Option<i64>) {
        let pick = |a: Option<i64>, b: Option<i64>, f: fn(i64, i64) -> i64| match (a, b) {
            (Some(a), Some(b)) => Some(f(a, b)),
            _ => None,
        };
        match self {
            Atom::Symbol(_) => (Some(1), None),
            Atom::Div(a, b) => match (a.bounds(), b.bounds()) {
                ((Some(al), ah), (Some(bl), bh)) if al >= 0 && bl >= 1 => {
                    (Some(bh.map_or(0, |bh| al / bh)), ah.map(|ah| ah / bl))
                }
                _ => (None, None),
            },
            Atom::Min(a, b) => {
                let ((al, ah), (bl, bh)) = (a.bounds(), b.bounds());
                (pick(al, bl, i64::min), pick(ah, bh, i64::min).or(ah).or(bh))
            }
            Atom::Max(a, b) => {
                let ((al, ah), (bl, bh)) = (a.bounds(), b.bounds());
                (pick(al, bl, i64::max).or(al).or(bl), pick(ah, bh, i64::max))
            }
        }
    }
}

/// `⌊a / b⌋`, saturating, for b ≠ 0.
fn floor_quotient(a: i64, b: i64) -> i64 {
    match (a.checked_div(b), a.checked_rem(b)) {
        (Some(quotient), Some(rest)) => quotient - i64::from(rest != 0 && (rest < 0) != (b < 0)),
        _ => i64::MAX,
    }
}

fn product_weight(product: &Product) -> u32 {
    let parts = product.iter().map(|(atom, power)| atom.weight().saturating_mul(*power));
    parts.fold(1, u32::saturating_add)
}

/// `product / factor`, if every power of the factor is there.
fn divide_product(product: &Product, factor: &Product) -> Option<Product> {
    let mut powers: BTreeMap<Atom, u32> = product.iter().cloned().collect();
    for (atom, power) in factor {
        let left = powers.get_mut(atom)?;
        *left = left.checked_sub(*power)?;
    }
    Some(powers.into_iter().filter(|&(_, power)| power > 0).collect())
}

impl From<i64> for Dim {
    fn from(size: i64) -> Self {
        Self(Repr::Known(size))
    }
}

impl From<i32> for Dim {
    fn from(size: i32) -> Self {
        Self::from(i64::from(size))
    }
}

impl From<usize> for Dim {
    fn from(size: usize) -> Self {
        Self::from(i64::try_from(size).unwrap_or(i64::MAX))
    }
}

impl From<Atom> for Dim {
    fn from(atom: Atom) -> Self {
        Self::term(vec![(atom, 1)], 1)
    }
}

impl Add for &Dim {
    type Output = Dim;
    fn add(self, other: &Dim) -> Dim {
        if let (Some(a), Some(b)) = (self.known(), other.known()) {
            return Dim::from(a.saturating_add(b));
        }
        let mut terms: BTreeMap<Product, i64> = self.terms().iter().cloned().collect();
        for (product, c) in other.terms() {
            let sum = terms.entry(product.clone()).or_insert(0);
            *sum = sum.saturating_add(*c);
        }
        Dim::from_terms(terms, self.constant().saturating_add(other.constant()))
    }
}

impl Mul for &Dim {
    type Output = Dim;
    fn mul(self, other: &Dim) -> Dim {
        if let (Some(a), Some(b)) = (self.known(), other.known()) {
            return Dim::from(a.saturating_mul(b));
        }
        // Terms may cancel, but not so many that a reasonable expression is left.
        if self.terms().len() * other.terms().len() > 4 * MAX_WEIGHT as usize {
            return Dim::from(i64::MAX);
        }
        let mut terms: BTreeMap<Product, i64> = BTreeMap::new();
        let mut constant = 0_i64;
        for (p, c) in self.all_terms() {
            for (q, d) in other.all_terms() {
                let coefficient = c.saturating_mul(d);
                let mut powers: BTreeMap<Atom, u32> = p.iter().cloned().collect();
                for (atom, power) in q {
                    let sum = powers.entry(atom).or_insert(0);
                    *sum = sum.saturating_add(power);
                }
                if powers.is_empty() {
                    constant = constant.saturating_add(coefficient);
                } else {
                    let sum = terms.entry(powers.into_iter().collect()).or_insert(0);
                    *sum = sum.saturating_add(coefficient);
                }
            }
        }
        Dim::from_terms(terms, constant)
    }
}

impl<'a> iter::Product<&'a Dim> for Dim {
    fn product<I: Iterator<Item = &'a Dim>>(dims: I) -> Dim {
        dims.fold(Dim::from(1), |product, dim| &product * dim)
    }
}

impl Neg for &Dim {
    type Output = Dim;
    fn neg(self) -> Dim {
        self * &Dim::from(-1)
    }
}

impl Sub for &Dim {
    type Output = Dim;
    fn sub(self, other: &Dim) -> Dim {
        self + &-other
    }
}

/// The owned forms of an operator on references.
macro_rules! owned_operator {
    ($($trait:ident $method:ident),*) => {$(
        impl $trait<Dim> for Dim {
            type Output = Dim;
            fn $method(self, other: Dim) -> Dim { (&self).$method(&other) }
        }
        impl $trait<&Dim> for Dim {
            type Output = Dim;
            fn $method(self, other: &Dim) -> Dim { (&self).$method(other) }
        }
        impl $trait<Dim> for &Dim {
            type Output = Dim;
            fn $method(self, other: Dim) -> Dim { self.$method(&other) }
        }
    )*};
}
owned_operator!(Add add, Sub sub, Mul mul);

impl PartialEq<i64> for Dim {
    fn eq(&self, other: &i64) -> bool {
        self.known() == Some(*other)
    }
}

impl fmt::Display for Symbol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if parse::is_identifier(self.name()) {
            return f.write_str(self.name());
        }
        write!(f, "`{}`", self.name().replace('`', "'"))
    }
}

impl fmt::Display for Dim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(size) = self.known() {
            return write!(f, "{size}");
        }
        for (i, (product, c)) in self.terms().iter().enumerate() {
            match (i, *c < 0) {
                (0, true) => f.write_str("-")?,
                (0, false) => {}
                (_, true) => f.write_str(" - ")?,
                (_, false) => f.write_str(" + ")?,
            }
            if c.unsigned_abs() != 1 {
                write!(f, "{}*", c.unsigned_abs())?;
            }
            let factors = product.iter().flat_map(|(atom, n)| (0..*n).map(move |_| atom));
            for (j, atom) in factors.enumerate() {
                write!(f, "{}{atom}", if j > 0 { "*" } else { "" })?;
            }
        }
        match self.constant() {
            0 => Ok(()),
            c if c < 0 => write!(f, " - {}", c.unsigned_abs()),
            c => write!(f, " + {c}"),
        }
    }
}

impl fmt::Display for Atom {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Atom::Symbol(symbol) => write!(f, "{symbol}"),
            Atom::Div(a, b) => write!(f, "floor({a}, {b})"),
            Atom::Min(a, b) => write!(f, "min({a}, {b})"),
            Atom::Max(a, b) => write!(f, "max({a}, {b})"),
        }
    }
}

impl fmt::Debug for Dim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

#[cfg(test)]
mod tests;
