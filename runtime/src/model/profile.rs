//! The sizes that a model is prepared for.

use super::sizes::{Sizes, Solver};
use crate::error::{Error, Result};
use graphene_frontend::dim::Symbol;
use graphene_frontend::graph::Graph;
use graphene_fusion::pad::padding;
use std::collections::BTreeMap;
use std::fmt;
use std::ops::RangeInclusive;

/// The sizes that a model is prepared for, dim by dim. A dim that it does not name may have any size.
///
/// ```
/// # use graphene_runtime::{Engine, ErrorKind, Input, Profile};
/// # let zoo = graphene_models::build("mlp-2x4", &graphene_models::Options::default())?;
/// # let source = graphene_runtime::Source::with_external(zoo.encode(), zoo.weights().clone());
/// let profile = Profile::new().buckets("batch", [1, 8]);
/// let model = Engine::new()?.model().profile(profile).load_from(&source)?;
/// let batch = |size| model.context().run(&[Input::new(&vec![0.0_f32; size * 4], &[size, 4])]);
/// // Three rows run as eight, and three are given.
/// assert_eq!(batch(3)?[0].shape(), [3, 4]);
/// assert_eq!(batch(3)?.sizes().iter().next().map(|(_, size)| size), Some(8));
/// assert_eq!(batch(9).unwrap_err().kind(), ErrorKind::Request);
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct Profile(BTreeMap<String, Allowed>);

/// The sizes that a dim may have.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Allowed {
    /// These, and what lies between: each runs at its own size.
    Range(RangeInclusive<i64>),
    /// In ascending order: a request runs at the smallest that holds it.
    Buckets(Vec<i64>),
}

impl Profile {
    /// Any sizes.
    pub fn new() -> Self {
        Self::default()
    }

    /// A dim has this size in every request.
    #[must_use]
    pub fn exact(self, dim: &str, size: usize) -> Self {
        self.range(dim, size..=size)
    }

    /// A dim's size lies between these.
    #[must_use]
    pub fn range(mut self, dim: &str, sizes: RangeInclusive<usize>) -> Self {
        let allowed = Allowed::Range(number(*sizes.start())..=number(*sizes.end()));
        self.0.insert(dim.to_owned(), allowed);
        self
    }

    /// Requests run at the smallest of these sizes that holds them: inputs are filled up with zeros and outputs are cut,
    /// where the plan proves that the answer is the same. Where it does not, a request runs at its own size, which
    /// [`Model::notes`](crate::Model::notes) says.
    #[must_use]
    pub fn buckets(mut self, dim: &str, sizes: impl IntoIterator<Item = usize>) -> Self {
        let mut sizes: Vec<i64> = sizes.into_iter().map(number).collect();
        sizes.sort_unstable();
        sizes.dedup();
        self.0.insert(dim.to_owned(), Allowed::Buckets(sizes));
        self
    }

    /// The size that plans are made for, if the profile tells one: the largest.
    pub(crate) fn typical(&self, dim: &str) -> Option<i64> {
        self.0.get(dim)?.largest()
    }

    /// Says nothing of a dim any more: the model is made for one size of it.
    pub(crate) fn remove(&mut self, dim: &str) {
        self.0.remove(dim);
    }

    /// Sizes that plans are made for.
    pub(crate) fn typicals(&self) -> impl Iterator<Item = (&str, i64)> {
        self.0.iter().filter_map(|(dim, allowed)| Some((&**dim, allowed.largest()?)))
    }
}

fn number(size: usize) -> i64 {
    i64::try_from(size).unwrap_or(i64::MAX)
}

/// A profile for the dims of a model.
#[derive(Debug)]
pub(crate) struct Fitting {
    /// By the model's symbols.
    rules: Vec<Option<Rule>>,
}

/// What a profile says of a dim.
#[derive(Debug)]
struct Rule {
    allowed: Allowed,
    /// Why requests are not padded to the dim's buckets, if they are not.
    unpadded: Option<String>,
}

impl Fitting {
    /// That of a model whose planned graph is given.
    ///
    /// # Errors
    /// [`Error::UnknownDim`] for a dim that the model does not have; [`Error::EmptyProfile`] for one of no size.
    pub(crate) fn new(profile: &Profile, solver: &Solver, graph: &Graph) -> Result<Self> {
        let known = |name: &str| solver.symbols().iter().any(|symbol| symbol.name() == name);
        if let Some(name) = profile.0.keys().find(|name| !known(name)) {
            return Err(solver.unknown(name));
        }
        if let Some((name, _)) = profile.0.iter().find(|(_, allowed)| allowed.is_empty()) {
            return Err(Error::EmptyProfile { name: name.clone() });
        }
        let rule = |symbol: &Symbol| {
            let allowed = profile.0.get(symbol.name())?.clone();
            let unpadded = match allowed {
                Allowed::Range(_) => None,
                Allowed::Buckets(_) => padding(graph, symbol).err().map(|why| why.to_string()),
            };
            Some(Rule { allowed, unpadded })
        };
        Ok(Self { rules: solver.symbols().iter().map(rule).collect() })
    }

    /// What is worth knowing of it.
    pub(crate) fn notes(&self) -> impl Iterator<Item = String> {
        let unpadded = self.rules.iter().flatten().filter_map(|rule| rule.unpadded.as_ref());
        unpadded.map(|why| format!("{why}; requests run at their own size"))
    }

    /// Why requests are not padded to the buckets of the symbol of this number, if they are not.
    pub(crate) fn unpadded(&self, number: usize) -> Option<&str> {
        self.rules.get(number)?.as_ref()?.unpadded.as_deref()
    }

    /// The sizes at which a request of these runs: no smaller ones.
    ///
    /// # Errors
    /// [`Error::Profile`].
    pub(crate) fn fit(&self, asked: &Sizes, solver: &Solver) -> Result<Sizes> {
        let mut sizes = asked.clone();
        for (number, rule) in self.rules.iter().enumerate() {
            let Some(Rule { allowed, unpadded }) = rule else { continue };
            let size = asked[number];
            let held = match allowed {
                Allowed::Range(range) => range.contains(&size).then_some(size),
                Allowed::Buckets(all) => all.iter().copied().find(|&bucket| bucket >= size),
            };
            let refused = || {
                let symbol = solver.symbols()[number].clone();
                Error::Profile { symbol, size, allowed: allowed.to_string() }
            };
            let held = held.ok_or_else(refused)?;
            if unpadded.is_none() {
                sizes[number] = held;
            }
        }
        Ok(sizes)
    }

    /// Every combination of the buckets, the other dims being as in `sizes`: those of the last dim beside each other.
    pub(crate) fn combinations(&self, sizes: &Sizes) -> Vec<Sizes> {
        let mut all = vec![sizes.clone()];
        for (number, rule) in self.rules.iter().enumerate() {
            let Some(Rule { allowed: Allowed::Buckets(buckets), .. }) = rule else { continue };
            let at = |sizes: &Sizes, bucket: i64| {
                let mut sizes = sizes.clone();
                sizes[number] = bucket;
                sizes
            };
            let with = |sizes: Sizes| buckets.iter().map(move |&bucket| at(&sizes, bucket));
            all = all.into_iter().flat_map(with).collect();
        }
        all
    }

    /// The sizes that a model is warmed up at, where the profile tells one for every dim.
    pub(crate) fn typical(&self) -> Option<Sizes> {
        let size = |rule: &Option<Rule>| rule.as_ref()?.allowed.largest();
        self.rules.iter().map(size).collect()
    }
}

impl Allowed {
    /// Whether no size is allowed.
    fn is_empty(&self) -> bool {
        match self {
            Self::Range(sizes) => sizes.is_empty(),
            Self::Buckets(sizes) => sizes.is_empty(),
        }
    }

    /// The largest of the sizes.
    fn largest(&self) -> Option<i64> {
        match self {
            Self::Range(sizes) => Some(*sizes.end()),
            Self::Buckets(sizes) => sizes.last().copied(),
        }
    }
}

impl fmt::Display for Allowed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Range(range) if range.start() == range.end() => write!(f, "{}", range.start()),
            Self::Range(range) => write!(f, "{} to {}", range.start(), range.end()),
            Self::Buckets(sizes) => match sizes.last() {
                Some(largest) => write!(f, "at most {largest}"),
                None => write!(f, "no size"),
            },
        }
    }
}
