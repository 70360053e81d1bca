//! `--buckets`: models prepared for all combinations of some sizes, and runs between them.

use crate::args::Exec;
use crate::bench::Schedule;
use crate::error::Error;
use crate::random;
use crate::report::{Bucket, BucketTime, milliseconds};
use crate::session::{self, Compiled, Runner};
use crate::sizes::{named, sizes_text, unknown};
use graphene_frontend::dim::{Bindings, Symbol};
use graphene_frontend::graph::Graph;
use graphene_runtime::{Model, Profile, Roles, Sizing};
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
    /// What to say of it.
    pub(crate) notes: Vec<String>,
}

/// The profile of a model that is prepared for the sizes asked for.
///
/// # Errors
/// [`Error::UnknownDim`] for a name of no dim; [`Error::Flag`] for a dim that is listed twice, and too many combinations.
pub(crate) fn profile(asked: &[Asked], graph: &Graph, roles: &Roles) -> Result<Profile, Error> {
    let (mut profile, mut listed, mut combinations) = (Profile::new(), Vec::new(), 1);
    for (name, sizes) in asked {
        let symbol = find(name, graph, roles)?;
        if listed.contains(&symbol) {
            return Err(Error::flag("--buckets", format!("`{name}` is listed twice")));
        }
        combinations *= sizes.len();
        if combinations > MOST {
            return Err(Error::flag("--buckets", format!("more than {MOST} combinations")));
        }
        let sizes = sizes.iter().map(|&size| usize::try_from(size).unwrap_or(usize::MAX));
        profile = profile.buckets(symbol.name(), sizes);
        listed.push(symbol);
    }
    Ok(profile)
}

/// The sizes of a run: of a dim that buckets are asked for and that has no size otherwise, the first.
///
/// # Errors
/// [`Error::UnknownDim`] for a name of no dim.
pub(crate) fn first(asked: &[Asked], graph: &Graph, mut sizing: Sizing) -> Result<Sizing, Error> {
    for (name, sizes) in asked {
        let symbol = find(name, graph, &sizing.roles)?;
        if let (None, Some(&first)) = (sizing.asked.get(&symbol), sizes.first()) {
            let others = sizing.sizes.iter().filter(|(other, _)| **other != symbol);
            let mut all = Bindings::new();
            for (other, size) in others.chain([(&symbol, first)]) {
                let fixed = all.fix(other.clone(), size);
                fixed.map_err(|source| Error::Dim { what: "--buckets".to_owned(), source })?;
            }
            let given = sizing.asked.fix(symbol, first);
            given.map_err(|source| Error::Dim { what: "--buckets".to_owned(), source })?;
            sizing.sizes = all;
        }
    }
    Ok(sizing)
}

/// All combinations of the sizes asked for, and the sizes of the run. Where the model cannot be padded along a dim, its size
/// stays.
///
/// # Errors
/// [`Error::UnknownDim`] for a name of no dim; [`Error::Flag`] for a size of the run that is larger than all asked for.
pub(crate) fn fit(
    asked: &[Asked],
    graph: &Graph,
    model: &Model,
    sizing: &Sizing,
) -> Result<Buckets, Error> {
    let (mut exact, mut notes) = (Vec::new(), Vec::new());
    for (name, sizes) in asked {
        let symbol = find(name, graph, &sizing.roles)?;
        let size = sizing.asked.get(&symbol).or(sizes.first().copied()).unwrap_or(1);
        let unpadded = model.unpadded(symbol.name()).filter(|_| !sizes.contains(&size));
        notes.extend(
            unpadded.map(|why| format!("{why}; the run has its own size, {symbol}={size}")),
        );
        exact.push((symbol, size));
    }
    let mut chosen = Bindings::new();
    for (symbol, size) in sizing.sizes.iter() {
        let new = exact.iter().find(|row| row.0 == *symbol).map_or(size, |row| row.1);
        let fixed = chosen.fix(symbol.clone(), new);
        fixed.map_err(|source| Error::Dim { what: "--buckets".to_owned(), source })?;
    }
    let beyond = |error| match error {
        graphene_runtime::Error::Profile { symbol, size, .. } => {
            let row = asked.iter().zip(&exact).find(|(_, (listed, _))| *listed == symbol);
            let nearest = row.and_then(|((name, sizes), _)| Some((name, sizes.iter().max()?)));
            let nearest = nearest.map(|(name, nearest)| {
                format!("no bucket holds {name}={size}; the nearest has {name}={nearest}")
            });
            Error::flag("--buckets", nearest.unwrap_or_else(|| format!("`{symbol}` has no sizes")))
        }
        error => error.into(),
    };
    let all = model.combinations(&named(&chosen)).map_err(beyond)?;
    let bucket = model.fit(&named(&chosen)).map_err(beyond)?;
    if bucket != chosen {
        let (asked, at) = (sizes_text(&chosen), sizes_text(&bucket));
        notes.push(format!("{asked} runs padded, at {at}; outputs are cut to what was asked for"));
    }
    let given = first(asked, graph, sizing.clone())?.asked;
    Ok(Buckets { all, sizing: Sizing { sizes: chosen, asked: given, ..sizing.clone() }, notes })
}

/// Whether lengths of the sequence are asked for.
pub(crate) fn lists_sequence(asked: &[Asked], roles: &Roles) -> bool {
    let sequence = roles.sequence.as_ref().map(Symbol::name);
    asked.iter().any(|(name, _)| name == "seq" || Some(name.as_str()) == sequence)
}

/// The symbol of this name, or that is the batch or the sequence.
fn find(name: &str, graph: &Graph, roles: &Roles) -> Result<Symbol, Error> {
    let role = match name {
        "batch" => roles.batch.as_ref(),
        "seq" => roles.sequence.as_ref(),
        _ => None,
    };
    let symbols = graph.symbols();
    let named = symbols.iter().find(|symbol| symbol.name() == name);
    let names = symbols.iter().map(Symbol::name);
    named.or(role).cloned().ok_or_else(|| unknown("--buckets", name, names, roles))
}

/// Binds every executor but the reference to every combination, and then times each on random inputs.
///
/// # Errors
/// As for [`Runner::bind`] and [`Runner::run`].
pub(crate) fn measure(
    combinations: &[Bindings],
    compiled: &[Compiled],
    graph: &Graph,
    schedule: &Schedule,
    seed: u64,
) -> Result<Vec<Bucket>, Error> {
    let compiled = compiled.iter().filter(|compiled| compiled.exec != Exec::Reference);
    let mut runners: Vec<_> = compiled.map(|one| Runner::new(one, graph, MOST)).collect();
    let mut buckets = Vec::new();
    for bindings in combinations {
        let sizes = bindings.iter().map(|(symbol, size)| (symbol.name().to_owned(), size));
        let mut times = Vec::new();
        for runner in &mut runners {
            let start = Instant::now();
            runner.bind(bindings)?;
            let bind_ms = milliseconds(start.elapsed());
            let arena_bytes = runner.arena_bytes()?;
            let executor = runner.exec().name();
            times.push(BucketTime { executor, bind_ms, median_ms: 0.0, arena_bytes });
        }
        buckets.push(Bucket { sizes: sizes.collect(), times });
    }
    for (bindings, bucket) in combinations.iter().zip(&mut buckets) {
        let inputs = graph.inputs().iter().map(|&id| random::tensor(graph, id, bindings, seed));
        let inputs: Vec<_> = inputs.collect::<Result<_, _>>()?;
        runners.iter_mut().try_for_each(|runner| runner.bind(bindings))?;
        let samples = session::time(&mut runners, &inputs, schedule)?;
        for (time, samples) in bucket.times.iter_mut().zip(&samples) {
            time.median_ms = samples.statistics(&[]).map_or(0.0, |s| milliseconds(s.median));
        }
    }
    Ok(buckets)
}

#[cfg(test)]
mod tests {
    use super::spread;

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
}
