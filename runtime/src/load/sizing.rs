//! Sizes for a model's dims before any request: which dim is the batch and which the sequence, and what several callers'
//! words about sizes come to.

use crate::error::{Error, Result};
use graphene_frontend::dim::{Bindings, Dim, Symbol};
use graphene_frontend::graph::Graph;
use graphene_frontend::import::DeclaredInput;
use graphene_frontend::types::TensorType;
use std::collections::{BTreeMap, BTreeSet};

/// Which dims of a model mean the batch and the sequence.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Roles {
    /// The batch.
    pub batch: Option<Symbol>,
    /// The sequence.
    pub sequence: Option<Symbol>,
}

/// What a dim means.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Role {
    /// Samples.
    Batch,
    /// Positions.
    Sequence,
}

impl Roles {
    /// The roles of the dims in the types of a model's inputs: by name, as of `batch` and `seq_len`, else by place, the
    /// batch being first and the sequence second.
    pub fn of<'a>(inputs: impl Iterator<Item = &'a TensorType> + Clone) -> Self {
        let symbols = || inputs.clone().flat_map(|ty| &ty.shape).filter_map(Dim::as_symbol);
        let named = |role: Role| symbols().find(|symbol| role.is_named(symbol.name())).cloned();
        let (batch, sequence) = (named(Role::Batch), named(Role::Sequence));
        let placed = |role: Role, other: &Option<Symbol>| {
            let mut there = inputs.clone().filter_map(|ty| ty.shape.get(role.axis())?.as_symbol());
            there.find(|&symbol| Some(symbol) != other.as_ref()).cloned()
        };
        let batch = batch.or_else(|| placed(Role::Batch, &sequence));
        let sequence = sequence.or_else(|| placed(Role::Sequence, &batch));
        Self { batch, sequence }
    }

    /// The dim that has a role.
    pub fn dim(&self, role: Role) -> Option<&Symbol> {
        match role {
            Role::Batch => self.batch.as_ref(),
            Role::Sequence => self.sequence.as_ref(),
        }
    }

    /// The role of a dim.
    pub fn role(&self, symbol: &Symbol) -> Option<Role> {
        Role::ALL.into_iter().find(|&role| self.dim(role) == Some(symbol))
    }
}

impl Role {
    /// All of them.
    pub const ALL: [Self; 2] = [Self::Batch, Self::Sequence];

    /// `batch` or `sequence`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Batch => "batch",
            Self::Sequence => "sequence",
        }
    }

    /// Whether a dim of this name has the role wherever it stands.
    pub fn is_named(self, name: &str) -> bool {
        let name = name.to_ascii_lowercase();
        match self {
            Self::Batch => matches!(&*name, "n" | "b" | "bs") || name.contains("batch"),
            Self::Sequence => {
                let names = ["s", "t", "len", "length", "tokens", "time", "steps"];
                names.contains(&&*name) || name.contains("seq")
            }
        }
    }

    /// The axis that has the role where names don't tell.
    fn axis(self) -> usize {
        match self {
            Self::Batch => 0,
            Self::Sequence => 1,
        }
    }
}

/// Sizes that are asked for a model's dims, each with where it is from in the caller's words, which errors repeat.
#[derive(Clone, Debug, Default)]
pub struct RequestedSizes {
    dims: BTreeMap<Symbol, Requested>,
    roles: BTreeMap<Role, Requested>,
    defaults: BTreeMap<Role, i64>,
}

/// A size, and where it is from.
#[derive(Clone, Debug)]
struct Requested {
    size: i64,
    origin: String,
}

impl RequestedSizes {
    /// The sizes that an input of this shape gives the dims of its type.
    ///
    /// # Errors
    /// [`Error::Mismatch`] for a shape of another rank; [`Error::Contradiction`].
    pub fn shape(&mut self, ty: &TensorType, shape: &[usize], origin: &str) -> Result<()> {
        if shape.len() != ty.rank() {
            let (expected, found) = (ty.rank(), shape.len());
            return Err(Error::Mismatch { what: "dims of an input", expected, found });
        }
        for (dim, &size) in ty.shape.iter().zip(shape) {
            if let Some(symbol) = dim.as_symbol() {
                self.add(symbol, i64::try_from(size).unwrap_or(i64::MAX), origin)?;
            }
        }
        Ok(())
    }

    /// A dim's size by its name, which one of the model's inputs has.
    ///
    /// # Errors
    /// [`Error::UnknownDim`]; [`Error::Contradiction`].
    pub fn dim(
        &mut self,
        declared: &[DeclaredInput],
        name: &str,
        size: i64,
        origin: &str,
    ) -> Result<()> {
        let mut symbols = BTreeSet::new();
        let types = declared.iter().filter_map(|input| input.ty.as_ref());
        types.flat_map(|ty| &ty.shape).for_each(|dim| dim.collect_symbols(&mut symbols));
        match symbols.iter().find(|symbol| symbol.name() == name) {
            Some(symbol) => self.add(symbol, size, origin),
            None => {
                let known = symbols.iter().map(|symbol| symbol.name().to_owned()).collect();
                Err(Error::UnknownDim { name: name.to_owned(), known })
            }
        }
    }

    /// The size of whichever dim has this role.
    pub fn role(&mut self, role: Role, size: i64, origin: &str) {
        self.roles.insert(role, Requested { size, origin: origin.to_owned() });
    }

    /// The size of the dim of this role where nobody asks for another. Before the model is imported, dims have a role by
    /// name alone.
    pub fn default_of(&mut self, role: Role, size: i64) {
        self.defaults.insert(role, size);
    }

    /// A dim's size, where an input or a name gives it.
    pub fn get(&self, symbol: &Symbol) -> Option<i64> {
        self.dims.get(symbol).map(|requested| requested.size)
    }

    /// Gives a dim a size.
    ///
    /// # Errors
    /// [`Error::Contradiction`].
    pub(crate) fn add(&mut self, symbol: &Symbol, size: i64, origin: &str) -> Result<()> {
        let requested = || Requested { size, origin: origin.to_owned() };
        let before = self.dims.entry(symbol.clone()).or_insert_with(requested);
        if before.size == size {
            return Ok(());
        }
        let (before, by, origin) = (before.size, before.origin.clone(), origin.to_owned());
        Err(Error::Contradiction { origin, symbol: symbol.clone(), size, before, by })
    }

    /// The dims of size zero. An import has to know them: what it concludes holds for sizes of at least one.
    pub(crate) fn empty(&self) -> Vec<Symbol> {
        let empty = self.dims.iter().filter(|(_, requested)| requested.size == 0);
        empty.map(|(symbol, _)| symbol.clone()).collect()
    }

    /// The sizes of dims on which a shape depends.
    ///
    /// # Errors
    /// [`Error::Contradiction`]; [`Error::NoSize`] for dims that have none.
    pub(crate) fn specialise(&self, symbols: &[Symbol], roles: &Roles) -> Result<Bindings> {
        let mut all = self.clone();
        for symbol in symbols {
            let named = |role: Role| role.is_named(symbol.name());
            for (&role, Requested { size, origin }) in &self.roles {
                if roles.role(symbol) == Some(role) || named(role) {
                    all.add(symbol, *size, origin)?;
                }
            }
            let default = self.defaults.iter().find(|&(&role, _)| named(role));
            if let (Some((role, &size)), None) = (default, all.get(symbol)) {
                all.add(symbol, size, role.name())?;
            }
        }
        all.bindings(symbols)
    }

    /// Sizes for all dims of a graph: those of inputs and names, with which those of roles have to agree, and what is
    /// neither by default.
    ///
    /// # Errors
    /// [`Error::Contradiction`]; [`Error::Role`] for a role that no dim has; [`Error::NoSize`].
    pub fn settle(&self, graph: &Graph) -> Result<Sizing> {
        let types = graph.inputs().iter().map(|id| graph.ty(id.value()));
        let (roles, mut all) = (Roles::of(types.clone()), self.clone());
        let mut by_default = BTreeSet::new();
        for role in Role::ALL {
            match (self.roles.get(&role), roles.dim(role), self.defaults.get(&role)) {
                (Some(Requested { size, origin }), Some(symbol), _) => {
                    all.add(symbol, *size, origin)?;
                }
                (Some(requested), None, _) => check_fixed(requested, types.clone(), role)?,
                (None, Some(symbol), Some(&size)) if all.get(symbol).is_none() => {
                    all.add(symbol, size, role.name())?;
                    by_default.insert(symbol.clone());
                }
                (None, _, _) => {}
            }
        }
        let symbols: Vec<_> = graph.symbols().into_iter().collect();
        let sizes = all.bindings(&symbols)?;
        let asked: Vec<_> = symbols.into_iter().filter(|s| !by_default.contains(s)).collect();
        let asked = all.bindings(&asked)?;
        Ok(Sizing { sizes, asked, roles })
    }

    /// These dims' sizes.
    fn bindings(&self, symbols: &[Symbol]) -> Result<Bindings> {
        let (mut bindings, mut missing) = (Bindings::new(), Vec::new());
        for symbol in symbols {
            match self.get(symbol) {
                Some(size) => bindings.fix(symbol.clone(), size)?,
                None => missing.push(symbol.clone()),
            }
        }
        if missing.is_empty() { Ok(bindings) } else { Err(Error::NoSize { symbols: missing }) }
    }
}

/// Sizes for all dims of a graph.
#[derive(Clone, Debug, Default)]
pub struct Sizing {
    /// The sizes.
    pub sizes: Bindings,
    /// Those of them that somebody asked for.
    pub asked: Bindings,
    /// Which dims mean what.
    pub roles: Roles,
}

/// Accepts a size for a role whose dim the model has at this very size.
fn check_fixed<'a>(
    requested: &Requested,
    types: impl Iterator<Item = &'a TensorType>,
    role: Role,
) -> Result<()> {
    let fixed = types.filter_map(|ty| ty.shape.get(role.axis())?.known());
    let fixed: BTreeSet<i64> = fixed.collect();
    if fixed.contains(&requested.size) {
        return Ok(());
    }
    let (origin, fixed) = (requested.origin.clone(), fixed.first().copied());
    Err(Error::Role { origin, role: role.name(), fixed })
}

#[cfg(test)]
mod tests {
    use super::{RequestedSizes, Role, Roles};
    use crate::error::Result;
    use graphene_frontend::dim::Symbol;
    use graphene_frontend::graph::Graph;
    use graphene_frontend::import::DeclaredInput;

    fn declared() -> [DeclaredInput; 1] {
        let ty = Some("f32[rows, batch]".parse().expect("it is a type"));
        [DeclaredInput { name: "x".to_owned(), ty }]
    }

    fn named(name: &str, size: i64) -> Result<RequestedSizes> {
        let mut requested = RequestedSizes::default();
        requested.dim(&declared(), name, size, "the caller")?;
        Ok(requested)
    }

    #[test]
    fn sizes_that_the_import_has_taken_may_be_given() {
        let settled = named("rows", 3).and_then(|sizes| sizes.settle(&Graph::default()));
        assert_eq!(settled.map(|sizing| sizing.sizes.iter().count()), Ok(0));
        let error = named("row", 3).map(drop).unwrap_err().to_string();
        assert_eq!(error, "the model has no dim \"row\"; it has batch, rows");
    }

    #[test]
    fn specialised_imports_take_sizes_by_role_and_by_name() {
        let given = |sizes: Result<RequestedSizes>, name: &str| {
            let sizes = sizes.and_then(|s| s.specialise(&[Symbol::new(name)], &Roles::default()));
            let sizes = sizes.map_err(|error| error.to_string())?;
            Ok::<_, String>(sizes.iter().map(|(_, size)| size).collect::<Vec<_>>())
        };
        let mut sizes = RequestedSizes::default();
        assert_eq!(
            given(Ok(sizes.clone()), "rows"),
            Err("the model has dims without a size: `rows`".to_owned())
        );
        sizes.default_of(Role::Batch, 1);
        assert_eq!(given(Ok(sizes.clone()), "batch"), Ok(vec![1]));
        sizes.role(Role::Batch, 4, "the caller");
        assert_eq!(given(Ok(sizes), "batch"), Ok(vec![4]));
        assert_eq!(given(named("rows", 3), "rows"), Ok(vec![3]));
        let conflicting = named("batch", 3).map(|mut sizes| {
            sizes.role(Role::Batch, 4, "another");
            sizes
        });
        let conflict = "another: dimension `batch` cannot be 4: it is 3 by the caller";
        assert_eq!(given(conflicting, "batch"), Err(conflict.to_owned()));
    }

    #[test]
    fn roles_are_by_name_and_then_by_place() {
        let of = |types: &[&str]| {
            let types: Vec<_> = types.iter().map(|ty| ty.parse().expect("a type")).collect();
            let Roles { batch, sequence } = Roles::of(types.iter());
            [batch, sequence].map(|symbol| symbol.map(|symbol| symbol.name().to_owned()))
        };
        let some = |names: [&str; 2]| names.map(|name| Some(name.to_owned()));
        assert_eq!(of(&["i64[seq_len, batch]"]), some(["batch", "seq_len"]));
        assert_eq!(of(&["f32[4]", "f32[p, q, 3]"]), some(["p", "q"]));
        assert_eq!(of(&["f32[p, p]"]), [Some("p".to_owned()), None]);
    }
}
