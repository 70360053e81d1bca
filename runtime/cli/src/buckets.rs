//! `--buckets`: executables for all combinations of some sizes, prepared ahead, and runs between them.

use crate::args::Exec;
use crate::bench::{self, Schedule};
use crate::error::Error;
use crate::random;
use crate::report::{Bucket, BucketTime, milliseconds};
use crate::session::{Compiled, Runner};
use crate::sizes::{Roles, Sizing, sizes_text, unknown};
use graphene_frontend::dim::{Bindings, Symbol};
use graphene_frontend::graph::Graph;
use graphene_frontend::tensor::Tensor;
use graphene_fusion::pad::{Padding, padding};
use graphene_runtime::pad;
use std::ffi::OsString;
use std::path::Path;
use std::time::Instant;

/// Combinations at most.
const MOST: usize = 64;

/// Sizes of a dim, as given.
pub(crate) type Asked = (String, Vec<i64>);

/// The command line with every value of `--buckets` behind a flag of its own. The first word after the flag is one; others
/// are, as far as they read NAME=… and name no file.
pub(crate) fn spread(words: impl IntoIterator<Item = OsString>) -> Vec<OsString> {
    const FLAG: &str = "--buckets";
    let named = |word: &OsString| {
        word.to_str().is_some_and(|word| {
            word.contains('=') && !word.starts_with('-') && !Path::new(word).exists()
        })
    };
    let mut spread = Vec::new();
    let mut words = words.into_iter().peekable();
    while let Some(word) = words.next() {
        let ends = word == "--";
        let mut more = word == FLAG || word.to_str().is_some_and(|w| w.starts_with("--buckets="));
        spread.push(word);
        if ends {
            break;
        }
        if more && spread.last().is_some_and(|word| word == FLAG) {
            spread.extend(words.next());
        }
        while more {
            match words.next_if(named) {
                Some(value) => spread.extend([FLAG.into(), value]),
                None => more = false,
            }
        }
    }
    spread.extend(words);
    spread
}

/// The buckets, and how a run fits among them.
pub(crate) struct Buckets {
    /// All combinations of the sizes asked for.
    pub(crate) all: Vec<Bindings>,
    /// The sizes of the run, as asked for: of a dim that nobody gave a size, the first of those asked for.
    pub(crate) sizing: Sizing,
    /// How it runs, if not at these.
    pub(crate) padded: Option<Padded>,
    /// What to say of it.
    pub(crate) notes: Vec<String>,
}

/// A run at larger sizes than it asks for.
pub(crate) struct Padded {
    /// Those.
    pub(crate) bucket: Bindings,
    asked: Bindings,
    paddings: Vec<Padding>,
}

impl Padded {
    /// Inputs as large as the bucket.
    ///
    /// # Errors
    /// As for [`pad::filled`].
    pub(crate) fn fill(&self, inputs: &[Tensor]) -> Result<Vec<Tensor>, graphene_runtime::Error> {
        pad::filled(inputs, &self.paddings, &self.bucket)
    }

    /// The part of outputs that was asked for.
    ///
    /// # Errors
    /// As for [`pad::cut`].
    pub(crate) fn cut(&self, outputs: &[Tensor]) -> Result<Vec<Tensor>, graphene_runtime::Error> {
        pad::cut(outputs, &self.paddings, &self.asked)
    }
}

/// All combinations of the sizes asked for, and the bucket of a run: along each dim the smallest size that holds it.
/// Where
/// `planned`, the graph that runs, cannot be padded along a dim, its size stays.
///
/// # Errors
/// [`Error::UnknownDim`] for a name of no dim; [`Error::Flag`] for a dim that is listed twice, a size of the run that
/// is larger than all asked for, and too many combinations.
pub(crate) fn fit(
    asked: &[Asked],
    graph: &Graph,
    planned: &Graph,
    sizing: &Sizing,
) -> Result<Buckets, Error> {
    let symbols = graph.symbols();
    let (mut all, mut notes) = (vec![Vec::new()], Vec::new());
    let (mut exact, mut larger, mut paddings) = (Vec::new(), Vec::new(), Vec::new());
    for (name, sizes) in asked {
        let symbol = find(name, symbols.iter(), &sizing.roles)?;
        if exact.iter().any(|(listed, _): &(Symbol, i64)| *listed == symbol) {
            return Err(Error::flag("--buckets", format!("`{name}` is listed twice")));
        }
        let size = sizing.given.get(&symbol).or(sizes.first().copied()).unwrap_or(1);
        let mut bucket = holding(name, size, sizes)?;
        if bucket != size {
            match padding(planned, &symbol) {
                Ok(padding) => paddings.push(padding),
                Err(unpadded) => {
                    notes.push(format!("{unpadded}; the run has its own size, {symbol}={size}"));
                    bucket = size;
                }
            }
        }
        exact.push((symbol.clone(), size));
        larger.push((symbol.clone(), bucket));
        all = all
            .iter()
            .flat_map(|before: &Vec<_>| {
                sizes.iter().map(|&size| [&before[..], &[(symbol.clone(), size)]].concat())
            })
            .collect();
        if all.len() > MOST {
            return Err(Error::flag("--buckets", format!("more than {MOST} combinations")));
        }
    }
    let chosen = with(&sizing.bindings, &exact)?;
    let all = all.iter().map(|sizes| with(&chosen, sizes)).collect::<Result<_, _>>()?;
    let bucket = with(&chosen, &larger)?;
    if !paddings.is_empty() {
        let (asked, at) = (sizes_text(&chosen), sizes_text(&bucket));
        notes.push(format!("{asked} runs padded, at {at}; outputs are cut to what was asked for"));
    }
    let padded = (!paddings.is_empty()).then(|| Padded { bucket, asked: chosen.clone(), paddings });
    Ok(Buckets { all, sizing: Sizing { bindings: chosen, ..sizing.clone() }, padded, notes })
}

/// Whether lengths of the sequence are asked for.
pub(crate) fn lists_sequence(asked: &[Asked], roles: &Roles) -> bool {
    let sequence = roles.sequence.as_ref().map(Symbol::name);
    asked.iter().any(|(name, _)| name == "seq" || Some(name.as_str()) == sequence)
}

/// The symbol of this name, or that is the batch or the sequence.
fn find<'a>(
    name: &str,
    symbols: impl Iterator<Item = &'a Symbol> + Clone,
    roles: &Roles,
) -> Result<Symbol, Error> {
    let role = match name {
        "batch" => roles.batch.as_ref(),
        "seq" => roles.sequence.as_ref(),
        _ => None,
    };
    let named = symbols.clone().find(|symbol| symbol.name() == name);
    named.or(role).cloned().ok_or_else(|| unknown("--buckets", name, symbols, roles))
}

/// The smallest of these sizes that is no smaller.
fn holding(name: &str, size: i64, sizes: &[i64]) -> Result<i64, Error> {
    let holding = sizes.iter().copied().filter(|&other| other >= size).min();
    holding.ok_or_else(|| {
        let reason = match sizes.iter().max() {
            Some(nearest) => {
                format!("no bucket holds {name}={size}; the nearest has {name}={nearest}")
            }
            None => format!("`{name}` has no sizes"),
        };
        Error::flag("--buckets", reason)
    })
}

/// The sizes with some of them changed.
fn with(sizes: &Bindings, changed: &[(Symbol, i64)]) -> Result<Bindings, Error> {
    let mut made = Bindings::new();
    for (symbol, size) in sizes.iter() {
        let new = changed.iter().find(|row| row.0 == *symbol).map_or(size, |row| row.1);
        made.fix(symbol.clone(), new)
            .map_err(|source| Error::Dim { what: "--buckets".to_owned(), source })?;
    }
    Ok(made)
}

/// Binds every executor but the reference to every combination, within `memory` bytes for all of them together, and
/// then times each on random inputs.
///
/// # Errors
/// As for [`Runner::bind`] and [`Runner::run`].
pub(crate) fn measure(
    combinations: &[Bindings],
    compiled: &[Compiled],
    graph: &Graph,
    schedule: &Schedule,
    (memory, seed): (u64, u64),
) -> Result<Vec<Bucket>, Error> {
    let mut taken = compiled.iter().map(Compiled::resident_bytes).sum();
    let mut prepared = Vec::new();
    for bindings in combinations {
        let mut runners = Vec::new();
        for compiled in compiled.iter().filter(|compiled| compiled.exec != Exec::Reference) {
            let start = Instant::now();
            let runner = Runner::bind(compiled, graph, bindings, memory, taken)?;
            let bind = start.elapsed();
            taken += runner.arena_bytes();
            runners.push((runner, bind));
        }
        prepared.push((bindings, runners));
    }
    let mut buckets = Vec::new();
    for (bindings, runners) in &mut prepared {
        let inputs = graph.inputs().iter().map(|&id| random::tensor(graph, id, bindings, seed));
        let inputs: Vec<_> = inputs.collect::<Result<_, _>>()?;
        runners.iter_mut().try_for_each(|(runner, _)| runner.prepare(&inputs))?;
        let samples =
            bench::measure(schedule, runners.len(), |subject| runners[subject].0.step(&inputs))?;
        let row = |((runner, bind), samples): (&(Runner<'_>, _), &bench::Samples)| BucketTime {
            executor: runner.exec().name(),
            bind_ms: milliseconds(*bind),
            median_ms: samples.statistics(&[]).map_or(0.0, |s| milliseconds(s.median)),
            arena_bytes: runner.arena_bytes(),
        };
        let times = runners.iter().zip(&samples).map(row).collect();
        let sizes = bindings.iter().map(|(symbol, size)| (symbol.name().to_owned(), size));
        buckets.push(Bucket { sizes: sizes.collect(), times });
    }
    Ok(buckets)
}

#[cfg(test)]
mod tests {
    use super::{holding, spread};

    #[test]
    fn what_follows_buckets_is_theirs_or_the_models() {
        let rows = [
            ("m --buckets batch=1,8 seq=4", "m --buckets batch=1,8 --buckets seq=4"),
            ("--buckets batch=1,8 m", "--buckets batch=1,8 m"),
            ("--buckets batch=1 s=2 m --json", "--buckets batch=1 --buckets s=2 m --json"),
            ("--buckets=batch=1 s=2 --seq 3 m", "--buckets=batch=1 --buckets s=2 --seq 3 m"),
            ("--buckets m batch=1", "--buckets m --buckets batch=1"),
            ("--dim a=1 m", "--dim a=1 m"),
            ("-- --buckets a=1 b=2", "-- --buckets a=1 b=2"),
            ("m --buckets", "m --buckets"),
        ];
        for (words, spreads) in rows {
            let spread = spread(words.split(' ').map(Into::into));
            let spread: Vec<_> = spread.iter().filter_map(|word| word.to_str()).collect();
            assert_eq!(spread.join(" "), spreads);
        }
    }

    #[test]
    fn sizes_run_in_the_smallest_that_holds_them() {
        for (size, bucket) in [(1, 1), (2, 8), (8, 8), (9, 32), (32, 32)] {
            assert_eq!(holding("batch", size, &[32, 1, 8]).unwrap(), bucket);
        }
        let error = holding("batch", 33, &[1, 32, 8]).unwrap_err().to_string();
        assert_eq!(error, "--buckets: no bucket holds batch=33; the nearest has batch=32");
    }
}
