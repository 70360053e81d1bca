//! `--tune`: the search for parameters of templates, group by group, on the GPU that runs the model.
//!
//! Groups of equal steps are searched whole, those that take most time in a run first. What times kernels, the clock and the
//! file are the caller's, so that the search itself needs no GPU.

use crate::error::Error;
use crate::machine::Machine;
use crate::session::Plans;
use crate::sizes::named;
use crate::tuning::{Entry, Tuning};
use graphene_frontend::dim::Bindings;
use graphene_frontend::tensor::Tensor;
use graphene_fusion::program::Program;
use graphene_fusion::tuning::{Parameters, candidates, fingerprint, with_parameters};
use graphene_ir::target::Target;
use graphene_runtime::Input;
use graphene_runtime::gpu::{Executable, Trial};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Candidates that are compiled together; the clock is asked, and what was found is kept, after each.
const TOGETHER: usize = 16;
/// Launches of a kernel that are timed together, and how often they are.
const REPEATS: usize = 20;
const REPEATED: usize = 7;
/// What is faster by less than this is no faster: timings are noisy.
const FASTER: f64 = 0.985;

/// Steps that are searched together.
#[derive(Clone, Debug)]
struct Group {
    /// The first of them.
    step: usize,
    /// How many there are.
    steps: usize,
    /// Microseconds of one launch as it is.
    default_us: f64,
    /// What to try.
    candidates: Vec<Parameters>,
    /// What is known of it.
    entry: Entry,
}

/// Tries some of a group's candidates, each with what came of it.
type Try<'a> = dyn FnMut(&Group, &[Parameters]) -> Result<Vec<Trial>, Error> + 'a;

/// What a search did.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Searched {
    /// Groups of equal steps that have candidates.
    groups: usize,
    /// Those of which all were tried, now or before.
    finished: usize,
    /// Candidates that were tried now.
    tried: usize,
    /// Of these, those that computed something else.
    differ: usize,
    /// Of these, those that could not be made or launched.
    refused: usize,
    /// Microseconds that all that was found takes off a run, as steps alone are timed.
    saved_us: f64,
    /// Why the first of the refused was.
    refusal: Option<String>,
}

/// Searches for `limit`, and keeps what it finds.
///
/// # Errors
/// [`Error::Flag`] without a GPU; [`Error::Kernels`] for what goes wrong on it; as for [`Tuning::keep`].
pub(crate) fn tune(
    plans: &Plans,
    machine: &Machine,
    (target, bindings): (&Target, &Bindings),
    inputs: &[Tensor],
    limit: Duration,
    tuning: &mut Tuning,
) -> Result<Searched, Error> {
    let start = Instant::now();
    let failed = |source| Error::Kernels { executor: "fused", source };
    let (program, cache) = (&plans.fused.program, machine.engine.kernel_cache());
    let mut context = plans.compile_fused().map_err(failed)?.context();
    let given: Vec<_> = inputs.iter().map(Input::from).collect();
    context.run(&given).map_err(failed)?;
    let bound = context.bind(&named(bindings)).map_err(failed)?;
    let (Some(executable), Some(gpu)) = (bound.into_gpu(), machine.engine.device().gpu) else {
        return Err(Error::flag("--tune", "it times kernels on a GPU, and none runs the model"));
    };
    let groups = groups(program, target, bindings, tuning, executable).map_err(failed)?;
    let mut trial = |group: &Group, tried: &[Parameters]| {
        let step = &program.steps()[group.step];
        let others: Vec<_> = tried.iter().map(|&p| with_parameters(step, p)).collect();
        let found =
            executable.trials(group.step, &others, (target, gpu.arch, cache), (REPEATS, REPEATED));
        found.map_err(failed)
    };
    search(groups, limit, &mut || start.elapsed(), &mut trial, &mut |entry| tuning.keep(entry))
}

/// The groups of a program that have candidates, those first that take most of a run.
fn groups(
    program: &Program,
    target: &Target,
    bindings: &Bindings,
    tuning: &Tuning,
    executable: &mut Executable,
) -> Result<Vec<Group>, graphene_runtime::Error> {
    let sizes: BTreeMap<String, i64> =
        bindings.iter().map(|(symbol, size)| (symbol.name().to_owned(), size)).collect();
    let mut alike: BTreeMap<String, Vec<usize>> = BTreeMap::new();
    for (number, step) in program.steps().iter().enumerate() {
        alike.entry(fingerprint(program, step, target)).or_default().push(number);
    }
    let mut groups = Vec::new();
    for (print, steps) in alike {
        let step = &program.steps()[steps[0]];
        let candidates = candidates(program, step, target);
        if candidates.is_empty() {
            continue;
        }
        let default_us = match executable.time_step(steps[0], REPEATS, REPEATED) {
            // Without elements there is nothing to time.
            Err(graphene_runtime::Error::Unsupported { .. }) => continue,
            timed => timed?,
        };
        let known = tuning.entry(&print, &sizes).filter(|entry| entry.of == candidates.len());
        let entry = known.cloned().unwrap_or_else(|| Entry {
            step: print,
            operations: step.name.split(" (").next().unwrap_or_default().to_owned(),
            sizes: sizes.clone(),
            parameters: None,
            us: default_us,
            default_us,
            tried: 0,
            of: candidates.len(),
        });
        let steps = (steps[0], steps.len());
        groups.push(Group { step: steps.0, steps: steps.1, default_us, candidates, entry });
    }
    let share = |group: &Group| group.default_us * group.steps as f64;
    groups.sort_by(|a, b| share(b).total_cmp(&share(a)));
    Ok(groups)
}

/// Tries the candidates of each group that were not tried, until `now` is `limit`; keeps what is known of a group after
/// each part of it.
fn search(
    groups: Vec<Group>,
    limit: Duration,
    now: &mut dyn FnMut() -> Duration,
    trial: &mut Try<'_>,
    keep: &mut dyn FnMut(Entry) -> Result<(), Error>,
) -> Result<Searched, Error> {
    let mut searched = Searched { groups: groups.len(), ..Searched::default() };
    for mut group in groups {
        while group.entry.tried < group.candidates.len() && now() < limit {
            let from = group.entry.tried;
            let to = group.candidates.len().min(from + TOGETHER);
            let part = &group.candidates[from..to];
            let trials = trial(&group, part)?;
            for (parameters, trial) in part.iter().zip(trials) {
                searched.tried += 1;
                match trial {
                    Trial::Timed(us) => {
                        let entry = &mut group.entry;
                        if us < entry.us && us < FASTER * entry.default_us {
                            (entry.us, entry.parameters) = (us, Some(parameters.to_string()));
                        }
                    }
                    Trial::Differs(_) => searched.differ += 1,
                    Trial::Refused(why) => {
                        searched.refused += 1;
                        searched.refusal.get_or_insert(why);
                    }
                }
            }
            group.entry.tried = to;
            keep(group.entry.clone())?;
        }
        searched.finished += usize::from(group.entry.tried >= group.candidates.len());
        searched.saved_us += (group.entry.default_us - group.entry.us) * group.steps as f64;
    }
    Ok(searched)
}

impl Searched {
    /// What to say of it, a line each.
    pub(crate) fn notes(&self, tuning: &Tuning) -> Vec<String> {
        let Self { groups, finished, tried, differ, refused, saved_us, refusal } = self;
        let rest = match groups - finished {
            0 => String::new(),
            left => format!("; {left} are not finished, and --tune goes on with them"),
        };
        let path = tuning.path().display();
        let mut notes = vec![format!(
            "tuned {finished} of {groups} groups of equal steps by {tried} trials: their steps take {saved_us:.1} µs less \
             in a run, kept in {path}{rest}"
        )];
        if *differ > 0 {
            notes.push(format!(
                "tuning: {differ} kernels computed something else, and were left out"
            ));
        }
        if let Some(why) = refusal {
            notes.push(format!("tuning: {refused} kernels were not tried; the first: {why}"));
        }
        notes
    }
}

#[cfg(test)]
mod tests {
    use super::{Entry, Error, Group, Parameters, Searched, TOGETHER, Trial, search};
    use graphene_fusion::tuning::FmhaParameters;
    use std::time::Duration;

    /// A group of some candidates, of which the `n`-th has `n` keys.
    fn group(step: usize, candidates: i64, tried: usize) -> Group {
        let entry = Entry {
            step: step.to_string(),
            operations: "Attention".to_owned(),
            sizes: [("batch".to_owned(), 2)].into(),
            parameters: None,
            us: 100.0,
            default_us: 100.0,
            tried,
            of: candidates as usize,
        };
        let parameters = |keys| Parameters::Fmha(FmhaParameters { consumers: 1, keys, stages: 2 });
        let candidates = (0..candidates).map(parameters).collect();
        Group { step, steps: 12, default_us: 100.0, candidates, entry }
    }

    fn keys(parameters: &Parameters) -> i64 {
        match parameters {
            Parameters::Fmha(fmha) => fmha.keys,
            Parameters::Gemm(_) | Parameters::Mlp(_) | Parameters::Folds(_) => {
                unreachable!("these are attention's")
            }
        }
    }

    /// A search in which each part takes a second, and a candidate of `n` keys what `time` says.
    fn run(
        groups: Vec<Group>,
        seconds: u64,
        time: impl Fn(i64) -> Trial,
    ) -> (Searched, Vec<Entry>, Vec<(usize, usize)>) {
        let clock = std::cell::Cell::new(0);
        let (mut kept, mut parts) = (Vec::new(), Vec::new());
        let found = search(
            groups,
            Duration::from_secs(seconds),
            &mut || Duration::from_secs(clock.get()),
            &mut |group, part| {
                clock.set(clock.get() + 1);
                parts.push((group.step, part.len()));
                Ok(part.iter().map(|parameters| time(keys(parameters))).collect())
            },
            &mut |entry| {
                kept.push(entry);
                Ok(())
            },
        );
        (found.unwrap(), kept, parts)
    }

    #[test]
    fn the_fastest_is_kept_and_what_is_wrong_is_not() {
        let time = |keys: i64| match keys {
            3 => Trial::Timed(80.0),
            4 => Trial::Timed(90.0),
            5 => Trial::Differs(1),
            6 => Trial::Refused("too large".to_owned()),
            _ => Trial::Timed(120.0),
        };
        let (found, kept, _) = run(vec![group(0, 8, 0)], 9, time);
        let [entry] = &kept[..] else { panic!("{kept:?}") };
        assert_eq!((entry.us, entry.tried), (80.0, 8));
        assert_eq!(entry.parameters.as_deref(), Some("fmha consumers=1 keys=3 stages=2"));
        let expected = Searched {
            groups: 1,
            finished: 1,
            tried: 8,
            differ: 1,
            refused: 1,
            saved_us: 240.0,
            refusal: Some("too large".to_owned()),
        };
        assert_eq!(found, expected);
    }

    #[test]
    fn what_is_hardly_faster_is_not_kept() {
        let (found, kept, _) = run(vec![group(0, 2, 0)], 9, |_| Trial::Timed(99.0));
        assert_eq!((kept[0].parameters.clone(), kept[0].us, kept[0].tried), (None, 100.0, 2));
        assert_eq!(found.saved_us, 0.0);
    }

    /// A search that ends early goes on where it was, and finds what one that does not end finds.
    #[test]
    fn searches_go_on() {
        let time = |keys: i64| Trial::Timed(200.0 - keys as f64 * 5.0);
        let both = || vec![group(0, 40, 0), group(1, 20, 0)];
        let (whole, expected, parts) = run(both(), 100, time);
        assert_eq!((whole.groups, whole.finished, whole.tried), (2, 2, 60));
        assert_eq!(parts, [(0, TOGETHER), (0, TOGETHER), (0, 8), (1, TOGETHER), (1, 4)]);
        let (early, kept, parts) = run(both(), 2, time);
        assert_eq!((early.finished, early.tried, parts.len()), (0, 32, 2));
        let mut rest = both();
        rest[0].entry = kept.last().unwrap().clone();
        let (late, after, parts) = run(rest, 100, time);
        assert_eq!((late.finished, late.tried), (2, 28));
        assert_eq!(parts[0], (0, 8));
        assert_eq!(after.last(), expected.last());
        assert_eq!(after[0], expected[2]);
        // Nothing is left to do.
        let done: Vec<_> = [&expected[2], &expected[4]].map(Clone::clone).into();
        let mut finished = both();
        finished.iter_mut().zip(done).for_each(|(group, entry)| group.entry = entry);
        let (again, kept, _) = run(finished, 100, time);
        assert_eq!((again.finished, again.tried, kept.len()), (2, 0, 0));
        assert_eq!(again.saved_us, whole.saved_us);
    }

    #[test]
    fn without_time_nothing_is_tried_and_errors_end_it() {
        let (found, kept, _) = run(vec![group(0, 5, 0)], 0, |_| Trial::Timed(1.0));
        assert_eq!((found.tried, found.finished, kept.len()), (0, 0, 0));
        let fail = |_: &Group, _: &[Parameters]| Err(Error::Device("gone".to_owned()));
        let failed = search(
            vec![group(0, 5, 0)],
            Duration::from_secs(1),
            &mut || Duration::ZERO,
            &mut fail.clone(),
            &mut |_| panic!("nothing was found"),
        );
        assert_eq!(failed.unwrap_err().to_string(), Error::Device("gone".to_owned()).to_string());
    }
}
