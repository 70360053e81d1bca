//! Sizes for the dynamic dims: from inputs, from flags, and by default.

use crate::args::Sizes;
use crate::error::{Error, Origin};
use crate::inputs::Given;
use graphene_frontend::dim::{Bindings, Dim, Symbol};
use graphene_frontend::graph::Graph;
use graphene_frontend::import::DeclaredInput;
use graphene_frontend::tensor::Tensor;
use graphene_frontend::types::TensorType;
use std::collections::{BTreeMap, BTreeSet};

/// Length of a sequence where none is given.
pub(crate) const DEFAULT_SEQUENCE: i64 = 128;
/// Size of a batch where none is given.
const DEFAULT_BATCH: i64 = 1;

/// Which symbols mean the batch and the sequence.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Roles {
    /// The batch.
    pub(crate) batch: Option<Symbol>,
    /// The sequence.
    pub(crate) sequence: Option<Symbol>,
}

impl Roles {
    /// The roles of the symbols in the types of a model's inputs: by name, else by place.
    pub(crate) fn of<'a>(inputs: impl Iterator<Item = &'a TensorType> + Clone) -> Self {
        let symbols = || inputs.clone().flat_map(|ty| &ty.shape).filter_map(Dim::as_symbol);
        let named = |is: fn(&str) -> bool| symbols().find(|symbol| is(symbol.name())).cloned();
        let (batch, sequence) = (named(names_batch), named(names_sequence));
        let placed = |axis: usize, other: &Option<Symbol>| {
            let at_axis = inputs.clone().filter_map(|ty| ty.shape.get(axis)?.as_symbol());
            at_axis.into_iter().find(|&symbol| Some(symbol) != other.as_ref()).cloned()
        };
        let batch = batch.or_else(|| placed(0, &sequence));
        let sequence = sequence.or_else(|| placed(1, &batch));
        Self { batch, sequence }
    }
}

/// Whether a symbol of this name is a batch.
pub(crate) fn names_batch(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    matches!(name.as_str(), "n" | "b" | "bs") || name.contains("batch")
}

/// Whether a symbol of this name is a sequence.
pub(crate) fn names_sequence(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    matches!(name.as_str(), "s" | "t" | "len" | "length" | "tokens" | "time" | "steps")
        || name.contains("seq")
}

/// A name of no dim of a model, with the names that there are.
pub(crate) fn unknown<'a>(
    flag: &'static str,
    name: &str,
    symbols: impl Iterator<Item = &'a Symbol>,
    roles: &Roles,
) -> Error {
    let role = |symbol: &Symbol| match Some(symbol) {
        symbol if symbol == roles.batch.as_ref() => " (--batch)",
        symbol if symbol == roles.sequence.as_ref() => " (--seq)",
        _ => "",
    };
    let known = symbols.map(|symbol| format!("{}{}", symbol.name(), role(symbol))).collect();
    Error::UnknownDim { flag, name: name.to_owned(), known }
}

/// Sizes that inputs and `--dim` give, each with where it is from.
#[derive(Clone, Debug, Default)]
pub(crate) struct Known(BTreeMap<Symbol, (i64, String)>);

impl Known {
    /// The sizes that the given inputs and `--dim` say for the dims of a model's inputs.
    ///
    /// # Errors
    /// [`Error::Input`] for an input of another rank than declared, [`Error::Sizes`] for sizes that conflict,
    /// [`Error::UnknownDim`] for a flag that fits no dim.
    pub(crate) fn new(
        declared: &[DeclaredInput],
        flags: &Sizes,
        given: &Given,
    ) -> Result<Self, Error> {
        let mut known = Self::default();
        let typed = || declared.iter().filter_map(|input| Some((&input.name, input.ty.as_ref()?)));
        for (name, ty) in typed() {
            let Some((tensor, origin)) = given.get(name) else { continue };
            if tensor.shape().len() != ty.rank() {
                return Err(misfit(name, ty, tensor, origin));
            }
            for (dim, &size) in ty.shape.iter().zip(tensor.shape()) {
                if let Some(symbol) = dim.as_symbol() {
                    let size = i64::try_from(size).unwrap_or(i64::MAX);
                    known.add(symbol, size, format!("input `{name}` from {origin}"))?;
                }
            }
        }
        let mut symbols = BTreeSet::new();
        typed().flat_map(|(_, ty)| &ty.shape).for_each(|dim| dim.collect_symbols(&mut symbols));
        for (name, size) in &flags.dim {
            let symbol = Symbol::new(name);
            if !symbols.contains(&symbol) {
                let roles = Roles::of(typed().map(|(_, ty)| ty));
                return Err(unknown("--dim", name, symbols.iter(), &roles));
            }
            known.add(&symbol, *size, "--dim".to_owned())?;
        }
        Ok(known)
    }

    fn add(&mut self, symbol: &Symbol, size: i64, what: String) -> Result<(), Error> {
        let (before, origin) = self.0.entry(symbol.clone()).or_insert((size, what.clone()));
        if *before == size {
            return Ok(());
        }
        let (symbol, before, origin) = (symbol.clone(), *before, origin.clone());
        Err(Error::Sizes { what, symbol, size, before, origin })
    }

    /// The dims of size zero. An import has to know them: what it concludes holds for sizes of at least one.
    pub(crate) fn empty(&self) -> Vec<Symbol> {
        self.0
            .iter()
            .filter(|(_, (size, _))| *size == 0)
            .map(|(symbol, _)| symbol.clone())
            .collect()
    }

    fn get(&self, symbol: &Symbol) -> Option<i64> {
        self.0.get(symbol).map(|&(size, _)| size)
    }

    /// The sizes that a specialised import needs for these symbols: by inputs and flags, else by default. `inputs`
    /// are types that tell which symbols are the batch and the sequence where their names do not.
    ///
    /// # Errors
    /// [`Error::Sizes`] for flags that conflict with inputs, [`Error::UnboundDims`] for symbols without a size.
    pub(crate) fn specialise<'a>(
        &self,
        symbols: &[Symbol],
        flags: &Sizes,
        inputs: impl Iterator<Item = &'a TensorType> + Clone,
    ) -> Result<Bindings, Error> {
        let (roles, mut sizes) = (Roles::of(inputs), self.clone());
        for symbol in symbols {
            let rows = [
                ("--batch", flags.batch, &roles.batch, names_batch as fn(&str) -> bool),
                ("--seq", flags.seq, &roles.sequence, names_sequence),
            ];
            for (flag, size, role, is_named) in rows {
                let fits = role.as_ref() == Some(symbol) || is_named(symbol.name());
                if let Some(size) = size.filter(|_| fits) {
                    sizes.add(symbol, size, flag.to_owned())?;
                }
            }
        }
        let default = |symbol: &Symbol| match symbol.name() {
            name if names_batch(name) => Some(DEFAULT_BATCH),
            name if names_sequence(name) => Some(DEFAULT_SEQUENCE),
            _ => None,
        };
        sizes.bindings(symbols, default)
    }

    /// These symbols' sizes.
    fn bindings(
        &self,
        symbols: &[Symbol],
        default: impl Fn(&Symbol) -> Option<i64>,
    ) -> Result<Bindings, Error> {
        let (mut bindings, mut unbound) = (Bindings::new(), Vec::new());
        for symbol in symbols {
            match self.get(symbol).or_else(|| default(symbol)) {
                Some(size) => bindings
                    .fix(symbol.clone(), size)
                    .map_err(|source| Error::Dim { what: "sizes".to_owned(), source })?,
                None => unbound.push(symbol.clone()),
            }
        }
        if unbound.is_empty() { Ok(bindings) } else { Err(Error::UnboundDims(unbound)) }
    }
}

/// Sizes for the symbols of a graph.
#[derive(Clone, Debug)]
pub(crate) struct Sizing {
    /// The sizes.
    pub(crate) bindings: Bindings,
    /// Those of them that somebody asked for, for planning.
    pub(crate) given: Bindings,
    /// Which symbols mean what.
    pub(crate) roles: Roles,
    /// Nobody has asked for this length of the sequence: a shorter one will do where it does not fit.
    pub(crate) free_sequence: bool,
}

/// Sizes for all symbols of a graph.
///
/// Inputs that are given and `--dim` decide; other flags must agree with them. What neither says is 1 for the batch
/// and `sequence` for the sequence.
///
/// # Errors
/// [`Error::Sizes`] for sizes that conflict, [`Error::Flag`] for flags that fit no dim, [`Error::UnboundDims`] for
/// symbols left without a size.
pub(crate) fn sizes(
    graph: &Graph,
    flags: &Sizes,
    known: &Known,
    sequence: i64,
) -> Result<Sizing, Error> {
    let types = graph.inputs().iter().map(|id| graph.ty(id.value()));
    let (roles, mut all) = (Roles::of(types.clone()), known.clone());
    let free = |symbol: &Option<Symbol>| symbol.as_ref().is_some_and(|s| known.get(s).is_none());
    let free_sequence = flags.seq.is_none() && free(&roles.sequence);
    let rows = [
        ("--batch", flags.batch, &roles.batch, DEFAULT_BATCH, 0),
        ("--seq", flags.seq, &roles.sequence, sequence, 1),
    ];
    let mut by_default = BTreeSet::new();
    for (flag, size, symbol, default, axis) in rows {
        match (size, symbol) {
            (Some(size), Some(symbol)) => all.add(symbol, size, flag.to_owned())?,
            (None, Some(symbol)) if all.get(symbol).is_none() => {
                all.add(symbol, default, flag.to_owned())?;
                by_default.insert(symbol.clone());
            }
            (Some(size), None) => check_fixed(flag, size, types.clone(), axis)?,
            (None, _) => {}
        }
    }
    let symbols: Vec<_> = graph.symbols().into_iter().collect();
    let bindings = all.bindings(&symbols, |_| None)?;
    let asked: Vec<_> = symbols.into_iter().filter(|s| !by_default.contains(s)).collect();
    let given = all.bindings(&asked, |_| None)?;
    Ok(Sizing { bindings, given, roles, free_sequence })
}

/// Accepts a flag for a dim that the model fixes at this very size.
fn check_fixed<'a>(
    flag: &'static str,
    size: i64,
    types: impl Iterator<Item = &'a TensorType>,
    axis: usize,
) -> Result<(), Error> {
    let fixed: BTreeSet<i64> = types.filter_map(|ty| ty.shape.get(axis)?.known()).collect();
    match fixed.first() {
        Some(_) if fixed.contains(&size) => Ok(()),
        Some(fixed) => {
            let what = if axis == 0 { "batch" } else { "sequence" };
            Err(Error::flag(flag, format!("the model's {what} is fixed at {fixed}")))
        }
        None => Err(Error::flag(flag, "the model has no such dim")),
    }
}

/// Sizes as text: `batch=8, sequence=128`.
pub(crate) fn sizes_text(bindings: &Bindings) -> String {
    let sizes: Vec<_> = bindings.iter().map(|(symbol, size)| format!("{symbol}={size}")).collect();
    sizes.join(", ")
}

/// Checks that given tensors have the types that the model asks for under these sizes.
///
/// # Errors
/// [`Error::Input`].
pub(crate) fn check_given(graph: &Graph, given: &Given, bindings: &Bindings) -> Result<(), Error> {
    for &id in graph.inputs() {
        let (name, ty) = (graph.node(id).name(), graph.ty(id.value()));
        let Some((tensor, origin)) = given.get(name) else { continue };
        let shape = ty.bound_shape(bindings);
        let fits = tensor.dtype() == ty.dtype && shape.is_ok_and(|shape| tensor.shape() == shape);
        if !fits {
            return Err(misfit(name, ty, tensor, origin));
        }
    }
    Ok(())
}

/// A given tensor that is not what the model asks for.
fn misfit(name: &str, expected: &TensorType, found: &Tensor, origin: Origin) -> Error {
    let (name, expected) = (name.to_owned(), expected.to_string());
    Error::Input { name, expected, found: format!("{found:?}"), origin }
}

#[cfg(test)]
mod tests {
    use super::{Known, Sizes, names_batch, sizes};
    use crate::inputs::Given;
    use graphene_frontend::dim::Symbol;
    use graphene_frontend::graph::Graph;
    use graphene_frontend::import::DeclaredInput;

    fn flags(batch: Option<i64>, dim: &[(&str, i64)]) -> Sizes {
        let dim = dim.iter().map(|&(name, size)| (name.to_owned(), size)).collect();
        Sizes { batch, seq: None, dim, buckets: Vec::new() }
    }

    fn known(flags: &Sizes) -> Result<Known, String> {
        let ty = Some("f32[rows, batch]".parse().expect("it is a type"));
        let declared = [DeclaredInput { name: "x".to_owned(), ty }];
        Known::new(&declared, flags, &Given::default()).map_err(|error| error.to_string())
    }

    #[test]
    fn sizes_that_the_import_has_taken_may_be_given() {
        let given = |name: &str, size| {
            let flags = flags(None, &[(name, size)]);
            let sizing = sizes(&Graph::default(), &flags, &known(&flags)?, 1);
            sizing.map(|sizing| sizing.bindings.iter().count()).map_err(|error| error.to_string())
        };
        assert_eq!(given("rows", 3), Ok(0));
        let other = "--dim row: the model has no such dim; it has batch (--batch), rows";
        assert_eq!(given("row", 3), Err(other.to_owned()));
    }

    #[test]
    fn specialised_imports_take_sizes_by_flag_and_by_name() {
        let given = |flags: &Sizes, name: &str| {
            let sizes = known(flags)?.specialise(&[Symbol::new(name)], flags, [].into_iter());
            let sizes = sizes.map_err(|error| error.to_string())?;
            Ok::<_, String>(sizes.iter().map(|(_, size)| size).collect::<Vec<_>>())
        };
        assert!(names_batch("batch"));
        assert_eq!(given(&flags(None, &[]), "batch"), Ok(vec![1]));
        assert_eq!(given(&flags(Some(4), &[]), "batch"), Ok(vec![4]));
        assert_eq!(given(&flags(None, &[("rows", 3)]), "rows"), Ok(vec![3]));
        let unbound = "the model has dims without a size: `rows`; pass --dim rows=N";
        assert_eq!(given(&flags(None, &[]), "rows"), Err(unbound.to_owned()));
        let conflict = "--batch: dimension `batch` cannot be 4: it is 3 by --dim";
        assert_eq!(given(&flags(Some(4), &[("batch", 3)]), "batch"), Err(conflict.to_owned()));
    }
}
