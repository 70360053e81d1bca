//! What is told of a mutant: by whom, and whether under a name that fits its change.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use graphene_ir::Result;
use graphene_ir::kernel::Kernel;
use graphene_ir::simulate::{Inputs, Options, Outcome, simulate};
use graphene_ir::text::parse;
use graphene_ir::verify::verify;

use crate::mutants::is_named;
use crate::mutate::{deleted, sampled};
use crate::support::{check_clean, kind, orders, run};

/// Elements by their bits, but that all that are no numbers are alike, and both zeros.
type Bits = BTreeMap<String, Vec<Option<u64>>>;

fn bits(outcome: &Outcome) -> Bits {
    let element = |x: f64| if x.is_nan() { u64::MAX } else { (x + 0.0).to_bits() };
    let buffer = |(name, elements): (&String, &Vec<Option<f64>>)| {
        (name.clone(), elements.iter().map(|x| x.map(element)).collect())
    };
    outcome.buffers.iter().map(buffer).collect()
}

/// What a kernel runs on and leaves in its outputs, and its bank conflicts, of which a mutant has more.
struct Run {
    given: Inputs,
    expected: Bits,
    conflicts: u64,
}

/// A kernel, and what it runs on.
pub(crate) struct Subject {
    name: &'static str,
    kernel: Kernel,
    given: Vec<Inputs>,
    /// In how many random orders a mutant runs.
    orders: u64,
    /// One of so many mutants is tried.
    every: usize,
}

impl Subject {
    /// Runs on the first inputs in so many random orders as well, on the others in turn.
    pub(crate) fn new(
        name: &'static str,
        kernel: Kernel,
        given: impl IntoIterator<Item = Inputs>,
        random: u64,
    ) -> Subject {
        let given = given.into_iter().collect();
        Subject { name, kernel, given, orders: random, every: 1 }
    }

    /// What the kernel leaves, in whatever order its warps go on.
    fn runs(&self) -> Vec<Run> {
        let Subject { name, kernel, .. } = self;
        let run_on = |given: &Inputs| {
            let outcome = run(kernel, given, None);
            check_clean(name, &outcome);
            for seed in orders(self.orders).skip(1) {
                let again = run(kernel, given, seed);
                check_clean(name, &again);
                assert_eq!(bits(&again), bits(&outcome), "{name} {seed:?}");
            }
            let conflicts = outcome.costs.total().conflicts;
            Run { given: given.clone(), expected: bits(&outcome), conflicts }
        };
        self.given.iter().map(run_on).collect()
    }

    /// Its name, the kernel, and what it runs on.
    pub(crate) fn given(self) -> (&'static str, Kernel, Vec<Inputs>) {
        (self.name, self.kernel, self.given)
    }

    /// With one of so many mutants tried.
    pub(crate) fn sampled(self, every: usize) -> Subject {
        Subject { every, ..self }
    }

    /// Who tells a mutant from the kernel, and under which name; nobody, if it does what the kernel does.
    fn told(&self, runs: &[Run], mutant: &Result<Kernel>) -> Option<(&'static str, String)> {
        let Ok(mutant) = mutant else { return Some(("builder", "Refused".to_owned())) };
        if let Some(finding) = verify(mutant).first() {
            return Some(("verifier", format!("{:?}", finding.rule)));
        }
        for (number, run) in runs.iter().enumerate() {
            for seed in orders(if number == 0 { self.orders } else { 0 }) {
                if let told @ Some(_) = run.told(mutant, seed) {
                    return told;
                }
            }
        }
        None
    }
}

impl Run {
    fn told(&self, mutant: &Kernel, seed: Option<u64>) -> Option<(&'static str, String)> {
        let options = Options { seed, ..Options::default() };
        let Ok(outcome) = simulate(mutant, &self.given, &options) else {
            return Some(("simulator", "Refused".to_owned()));
        };
        if let Some(finding) = outcome.findings.first() {
            return Some(("simulator", kind(&finding.fault).to_owned()));
        }
        if outcome.costs.total().conflicts > self.conflicts {
            return Some(("simulator", "Conflicts".to_owned()));
        }
        (bits(&outcome) != self.expected).then(|| ("result", "Wrong".to_owned()))
    }
}

/// A change that makes no difference: of which kernel (all if it is empty), a part of what is changed
/// and its line, and why.
pub(crate) type Equivalent = (&'static str, &'static str, &'static str);

/// What is replaced in a line of the text, besides the changes of statements.
const REPLACED: &[(&str, &str)] = &[
    ("Shfl<16>", "Shfl<8>"),
    ("Shfl<1>", "Shfl<2>"),
    ("Reduction<+>", "Reduction<max>"),
    ("Reduction<max>", "Reduction<+>"),
    ("BinaryPointwise<->", "BinaryPointwise<+>"),
    ("BinaryPointwise<+>", "BinaryPointwise<->"),
    ("BinaryPointwise<*>", "BinaryPointwise<+>"),
    ("BinaryPointwise</>", "BinaryPointwise<*>"),
    ("Init<0>", "Init<1>"),
    ("Init<-inf>", "Init<0>"),
    (".rsqrt", ".sqrt"),
    ("<rcp>", "<neg>"),
    ("@i = 0", "@i = 1"),
    (" = 0; ", " = 1; "),
    ("+ 8 <", "+ 7 <"),
    ("== 0", "== 1"),
    ("% 32", "% 16"),
    ("%32", "%16"),
    ("/32", "/16"),
];

fn replaced(kernel: &Kernel) -> Vec<(String, String)> {
    let text = kernel.to_string();
    let lines: Vec<&str> = text.lines().collect();
    let first = kernel.params.len() + 4;
    let mut all = Vec::new();
    for (at, line) in lines.iter().enumerate().skip(first) {
        for (from, to) in REPLACED.iter().filter(|row| line.contains(row.0)) {
            let mut mutant: Vec<String> = lines.iter().map(|line| (*line).to_owned()).collect();
            mutant[at] = line.replacen(from, to, 1);
            all.push((format!("{from} to {to} in {} #{at}", line.trim()), mutant.join("\n")));
        }
    }
    all
}

/// A mutant: what was changed; if it was a statement, by which rule; and what came of it.
struct Mutant {
    what: String,
    rule: Option<&'static str>,
    kernel: Result<Kernel>,
}

fn all_mutants(subject: &Subject) -> Vec<Mutant> {
    let Subject { kernel, every, .. } = subject;
    let of_statement = sampled(kernel, *every).into_iter().map(|mutant| Mutant {
        what: format!("{}: {}", mutant.change, mutant.line),
        rule: Some(mutant.change),
        kernel: mutant.kernel,
    });
    let texts = replaced(kernel).into_iter().chain(deleted(kernel)).step_by(*every);
    let of_text = texts.map(|(what, text)| Mutant { what, rule: None, kernel: parse(&text) });
    of_statement.chain(of_text).collect()
}

/// At least 95 of 100 mutants of each kernel are told from it, under names that fit; `equivalent` are
/// left out, each of which is silent, and `missed` are the only others that are silent.
pub(crate) fn check_told(subjects: &[Subject], equivalent: &[Equivalent], missed: &[Equivalent]) {
    let runs: Vec<Vec<Run>> = subjects.iter().map(Subject::runs).collect();
    let all: Vec<(&Subject, &[Run], Mutant)> = subjects
        .iter()
        .zip(&runs)
        .flat_map(|(of, runs)| all_mutants(of).into_iter().map(move |m| (of, &runs[..], m)))
        .collect();
    let (next, told) = (AtomicUsize::new(0), Mutex::new(BTreeMap::new()));
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while let Some((subject, runs, mutant)) =
                    all.get(next.fetch_add(1, Ordering::Relaxed))
                {
                    let verdict = subject.told(runs, &mutant.kernel);
                    told.lock().unwrap().insert((subject.name, mutant.what.clone()), verdict);
                }
            });
        }
    });
    let told = told.into_inner().unwrap();
    let row = |rows: &[Equivalent], subject: &Subject, what: &str| {
        rows.iter()
            .position(|(of, part, _)| (of.is_empty() || *of == subject.name) && what.contains(part))
    };
    let (mut unknown, mut used, mut few) = (Vec::new(), BTreeSet::new(), Vec::new());
    for subject in subjects {
        let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
        for (.., mutant) in all.iter().filter(|row| row.0.name == subject.name) {
            let what = &mutant.what;
            let by = match &told[&(subject.name, what.clone())] {
                Some((by @ ("verifier" | "simulator"), name))
                    if mutant.rule.is_some_and(|rule| !is_named(rule, name)) =>
                {
                    unknown.push(format!("{}: {what}: {name} by the {by}", subject.name));
                    "misnamed"
                }
                Some((by, _)) => by,
                None => match (row(equivalent, subject, what), row(missed, subject, what)) {
                    (Some(row), _) => {
                        used.insert(row);
                        "equivalent"
                    }
                    (None, known) => {
                        if known.is_none() {
                            unknown.push(format!("{}: {what}", subject.name));
                        }
                        "silent"
                    }
                },
            };
            *counts.entry(by).or_default() += 1;
        }
        println!("{}: {counts:?}, of one in {}", subject.name, subject.every);
        let count = |by: &str| counts.get(by).copied().unwrap_or(0);
        let right = count("builder") + count("verifier") + count("simulator") + count("result");
        if right * 100 < 95 * (right + count("silent") + count("misnamed")) {
            few.push(subject.name);
        }
    }
    println!("{} mutants", all.len());
    assert!(unknown.is_empty(), "silent or misnamed: {unknown:#?}");
    assert!(few.is_empty(), "fewer than 95 of 100 are told: {few:?}");
    let idle: Vec<_> = (0..equivalent.len()).filter(|row| !used.contains(row)).collect();
    assert!(idle.is_empty(), "rows that excuse nothing: {idle:?}");
}
