//! `--buckets`: executables for all combinations of some sizes, prepared ahead.

use crate::args::Exec;
use crate::bench::{self, Schedule};
use crate::error::Error;
use crate::random;
use crate::report::{Bucket, BucketTime, milliseconds};
use crate::session::{Compiled, Runner};
use crate::sizes::{Roles, Sizing};
use graphene_frontend::dim::{Bindings, Symbol};
use graphene_frontend::graph::Graph;
use std::time::Instant;

/// Combinations at most.
const MOST: usize = 64;

/// Sizes of a dim, as given.
pub(crate) type Asked = (String, Vec<i64>);

/// All combinations of the sizes asked for, and the sizing of the run, which is one of them: of a dim that nobody gave a
/// size it is the first asked for.
///
/// # Errors
/// [`Error::UnknownDim`] for a name of no dim; [`Error::Flag`] for a dim that is listed twice, a size of the run that is
/// none of those asked for, and too many combinations.
pub(crate) fn combinations(
    asked: &[Asked],
    graph: &Graph,
    sizing: &Sizing,
) -> Result<(Vec<Bindings>, Sizing), Error> {
    let symbols = graph.symbols();
    let mut all = vec![Vec::new()];
    let (mut listed, mut chosen): (Vec<Symbol>, _) = (Vec::new(), sizing.bindings.clone());
    for (name, sizes) in asked {
        let symbol = find(name, symbols.iter(), &sizing.roles)?;
        if listed.contains(&symbol) {
            return Err(Error::flag("--buckets", format!("`{name}` is listed twice")));
        }
        let size = match (sizing.given.get(&symbol), sizes.first()) {
            (Some(size), _) => inside(name, size, sizes)?,
            (None, Some(&first)) => first,
            (None, None) => return Err(Error::flag("--buckets", format!("`{name}` has no sizes"))),
        };
        chosen = with(&chosen, &[(symbol.clone(), size)])?;
        all = all
            .iter()
            .flat_map(|before: &Vec<_>| {
                sizes.iter().map(|&size| [&before[..], &[(symbol.clone(), size)]].concat())
            })
            .collect();
        if all.len() > MOST {
            return Err(Error::flag("--buckets", format!("more than {MOST} combinations")));
        }
        listed.push(symbol);
    }
    let all = all.iter().map(|sizes| with(&chosen, sizes)).collect::<Result<_, _>>()?;
    Ok((all, Sizing { bindings: chosen, ..sizing.clone() }))
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
    named.or(role).cloned().ok_or_else(|| Error::UnknownDim {
        flag: "--buckets",
        name: name.to_owned(),
        known: symbols.map(|symbol| symbol.name().to_owned()).collect(),
    })
}

/// The size, if it is one of these.
fn inside(name: &str, size: i64, sizes: &[i64]) -> Result<i64, Error> {
    let nearest = sizes.iter().min_by_key(|&&other| other.abs_diff(size));
    match nearest {
        Some(&nearest) if nearest == size => Ok(size),
        Some(nearest) => Err(Error::flag(
            "--buckets",
            format!("no bucket has {name}={size}; the nearest has {name}={nearest}"),
        )),
        None => Err(Error::flag("--buckets", format!("`{name}` has no sizes"))),
    }
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
    use super::inside;

    #[test]
    fn sizes_outside_name_the_nearest() {
        assert_eq!(inside("batch", 8, &[1, 8, 32]).unwrap(), 8);
        let error = inside("batch", 21, &[1, 8, 32]).unwrap_err().to_string();
        assert_eq!(error, "--buckets: no bucket has batch=21; the nearest has batch=32");
    }
}
