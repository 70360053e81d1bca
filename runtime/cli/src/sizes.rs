//! Sizes for the dynamic dims: from inputs, from flags, and by default.

use crate::args::Sizes;
use crate::error::Error;
use crate::inputs::Given;
use graphene_frontend::dim::{Bindings, Dim, Symbol};
use graphene_frontend::graph::Graph;
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

/// Sizes for the symbols of a graph.
#[derive(Clone, Debug)]
pub(crate) struct Sizing {
    /// The sizes.
    pub(crate) bindings: Bindings,
    /// Which symbols mean what.
    pub(crate) roles: Roles,
    /// Nobody has asked for this length of the sequence: a shorter one will do where it does not fit.
    pub(crate) free_sequence: bool,
}

/// Sizes for all symbols of a graph.
///
/// Inputs that are given decide; flags must agree with them. What neither says is 1 for the batch and `sequence`
/// for the sequence. `dims` are sizes that the import has taken: the graph no longer has their symbols.
///
/// # Errors
/// [`Error::Input`] and [`Error::Dim`] for sizes that conflict, [`Error::UnknownDim`] and [`Error::Flag`] for
/// flags that fit no dim, [`Error::UnboundDims`] for symbols left without a size.
pub(crate) fn sizes(
    graph: &Graph,
    flags: &Sizes,
    given: &Given,
    dims: &BTreeMap<String, i64>,
    sequence: i64,
) -> Result<Sizing, Error> {
    let mut bindings = Bindings::new();
    for &id in graph.inputs() {
        let name = graph.node(id).name();
        if let Some((tensor, origin)) = given.get(name) {
            let sizes = graph.ty(id.value()).shape.iter().zip(tensor.shape());
            for (dim, &size) in sizes {
                if let Some(symbol) = dim.as_symbol() {
                    let size = i64::try_from(size).unwrap_or(i64::MAX);
                    let what = || format!("input `{name}` from {origin}");
                    bind(&mut bindings, symbol, size, what)?;
                }
            }
        }
    }
    let symbols = graph.symbols();
    for (name, size) in &flags.dim {
        let symbol = Symbol::new(name);
        // The import has asked for this size; a flag that repeats another must still agree with it.
        if let Some(&taken) = dims.get(name)
            && !symbols.contains(&symbol)
        {
            if *size != taken {
                let reason = format!("`{name}` cannot be {size}: it is {taken} already");
                return Err(Error::flag("--dim", reason));
            }
            continue;
        }
        if !symbols.contains(&symbol) {
            let known = symbols.iter().map(|symbol| symbol.name().to_owned()).collect();
            return Err(Error::UnknownDim { name: name.clone(), known });
        }
        bind(&mut bindings, &symbol, *size, || "--dim".to_owned())?;
    }
    let types = graph.inputs().iter().map(|id| graph.ty(id.value()));
    let roles = Roles::of(types.clone());
    let free = |symbol: &Option<Symbol>| symbol.as_ref().is_some_and(|s| bindings.get(s).is_none());
    let free_sequence = flags.seq.is_none() && free(&roles.sequence);
    let rows = [
        ("--batch", flags.batch, &roles.batch, DEFAULT_BATCH, 0),
        ("--seq", flags.seq, &roles.sequence, sequence, 1),
    ];
    for (flag, size, symbol, default, axis) in rows {
        match (size, symbol) {
            (Some(size), Some(symbol)) => bind(&mut bindings, symbol, size, || flag.to_owned())?,
            (None, Some(symbol)) if bindings.get(symbol).is_none() => {
                bind(&mut bindings, symbol, default, || flag.to_owned())?;
            }
            (Some(size), None) => check_fixed(flag, size, types.clone(), axis)?,
            (None, _) => {}
        }
    }
    let unbound: Vec<_> =
        symbols.into_iter().filter(|symbol| bindings.get(symbol).is_none()).collect();
    match unbound.is_empty() {
        true => Ok(Sizing { bindings, roles, free_sequence }),
        false => Err(Error::UnboundDims(unbound)),
    }
}

fn bind(
    bindings: &mut Bindings,
    symbol: &Symbol,
    size: i64,
    what: impl Fn() -> String,
) -> Result<(), Error> {
    bindings.bind(symbol.clone(), size).map_err(|source| Error::Dim { what: what(), source })
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
            return Err(Error::Input {
                name: name.to_owned(),
                expected: ty.to_string(),
                found: format!("{tensor:?}"),
                origin,
            });
        }
    }
    Ok(())
}

/// The sizes that a specialised import needs for these symbols: by flags and given inputs, else by default.
pub(crate) fn sizes_by_name(
    symbols: impl IntoIterator<Item = Symbol>,
    flags: &Sizes,
) -> Result<Bindings, Error> {
    let (mut bindings, mut unbound) = (Bindings::new(), Vec::new());
    for symbol in symbols {
        let by_dim = flags.dim.iter().find(|(name, _)| name == symbol.name()).map(|dim| dim.1);
        let size = by_dim.or_else(|| match symbol.name() {
            name if names_batch(name) => Some(flags.batch.unwrap_or(DEFAULT_BATCH)),
            name if names_sequence(name) => Some(flags.seq.unwrap_or(DEFAULT_SEQUENCE)),
            _ => None,
        });
        match size {
            Some(size) => bind(&mut bindings, &symbol, size, || "--dim".to_owned())?,
            None => unbound.push(symbol),
        }
    }
    if unbound.is_empty() { Ok(bindings) } else { Err(Error::UnboundDims(unbound)) }
}

#[cfg(test)]
mod tests {
    use super::{Sizes, sizes};
    use crate::inputs::Given;
    use graphene_frontend::graph::Graph;
    use std::collections::BTreeMap;

    #[test]
    fn sizes_that_the_import_has_taken_may_be_given() {
        let taken = BTreeMap::from([("rows".to_owned(), 3)]);
        let given = |name: &str, size| {
            let flags = Sizes { batch: None, seq: None, dim: vec![(name.to_owned(), size)] };
            let sizing = sizes(&Graph::default(), &flags, &Given::default(), &taken, 1);
            sizing.map(|sizing| sizing.bindings.iter().count()).map_err(|error| error.to_string())
        };
        assert_eq!(given("rows", 3), Ok(0));
        assert_eq!(given("rows", 4), Err("--dim: `rows` cannot be 4: it is 3 already".to_owned()));
        assert_eq!(given("row", 3), Err("--dim row: the model has no such dim".to_owned()));
    }
}
