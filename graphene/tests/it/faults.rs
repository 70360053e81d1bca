//! Seeded faults: every template's kernels, each with one mistake, and who finds it without a GPU.
//!
//! A fault is looked for by the builder and the verifier, which run nothing; by the simulator's findings; and by values:
//! the kernel with the fault leaves others than the kernel does, bit for bit, which each template's own tests compare with its
//! reference. One that nobody finds makes no difference, for a reason that stands in a rule or a row, or it is missed.
//!
//! ```text
//! FAULTS=40 cargo test --release -p graphene-ir --test it -- --nocapture seeded_faults_are_found
//! ```
//!
//! prints the table, of so many faults of each kernel: all with 0. The tests run a sample. `FAULTS_SEED` chooses others.

mod known;
mod sites;

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use graphene_ir::atom;
use graphene_ir::emit::emit;
use graphene_ir::kernel::Kernel;
use graphene_ir::simulate::{Buffer, Finding, Inputs, Options, Outcome, simulate};
use graphene_ir::verify::verify;

use crate::index::Random;
use crate::support::{check_clean, inputs, orders, run};
use crate::{element_mutants, mutants, sequence_mutants};
use known::excuse;
use sites::{Family, Fault, faults};

/// A kernel, what it runs on, and what it leaves.
struct Subject {
    name: &'static str,
    kernel: Kernel,
    runs: Vec<(Inputs, Bits)>,
}

/// Elements by their bits, but that all that are no numbers are alike, and both zeros.
type Bits = BTreeMap<String, Vec<Option<u64>>>;

/// Who finds a fault.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Verdict {
    /// The builder or the verifier, saying this.
    Verifier(String),
    /// The simulator; whether it names both accesses, or the barrier.
    Simulator(bool, String),
    /// Nothing but values; and the level that does not do what it says, if one is found.
    Values(Option<Named>),
    /// The simulator itself fails.
    Broken,
    /// The CUDA text is the same.
    SameText,
    /// Nobody.
    Nobody,
}

/// A level that does not do what it says.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Named {
    /// Whether the fault is within it, and it is the innermost such.
    around: bool,
    innermost: bool,
    says: String,
}

/// How many findings of a run are asked for: the first may be a consequence of the one that names the cause.
const FINDINGS: usize = 4;

/// More rounds of loops than any of these kernels has.
const ROUNDS: u64 = 1 << 16;

fn bits(outcome: &Outcome) -> Bits {
    let element = |x: f64| if x.is_nan() { u64::MAX } else { (x + 0.0).to_bits() };
    let buffer = |(name, elements): (&String, &Vec<Option<f64>>)| {
        (name.clone(), elements.iter().map(|x| x.map(element)).collect())
    };
    outcome.buffers.iter().map(buffer).collect()
}

/// A fault of strides may reach further than a tensor does: what is there is more of the same.
fn longer(inputs: &Inputs) -> Inputs {
    let mut inputs = inputs.clone();
    for buffer in inputs.buffers.values_mut() {
        match buffer {
            Buffer::Data(data) => data.extend_from_within(..),
            Buffer::Undefined(len) => *len *= 2,
        }
    }
    inputs
}

/// Values that are others, and the same number of them.
fn reversed(inputs: &Inputs) -> Inputs {
    let mut inputs = inputs.clone();
    for buffer in inputs.buffers.values_mut() {
        if let Buffer::Data(data) = buffer {
            data.reverse();
        }
    }
    inputs
}

/// Sizes at which loops run more often than at the others', and what is counted in whole numbers.
fn more(name: &str, kernel: &Kernel) -> Option<Inputs> {
    let product = |m, n, k| vec![("M", m), ("N", n), ("K", k), ("blocks", 1), ("clusters", 1)];
    let symbols = match name {
        "one consumer" | "early" | "moves" => product(200, 72, 64),
        "two consumers" | "epilogue" => product(400, 72, 64),
        "split" => vec![("M", 136), ("N", 136), ("K", 456), ("blocks", 9), ("clusters", 9)],
        "mma" => product(300, 40, 16),
        "embedding" => {
            vec![("rows", 2), ("columns", 1024), ("x0_rows", 7), ("x1_rows", 3), ("x2_rows", 2)]
        }
        "last" => vec![("outer", 2), ("reduced", 1047), ("x0_stride0", 1048)],
        "cluster_load" | "cluster_store" | "mbarrier_cluster" | "st_async_2" => product(1, 1, 1),
        "transposed" => {
            vec![("images", 2), ("out0", 7), ("out1", 5), ("in0", 4), ("in1", 3)]
        }
        "pointwise" => {
            vec![("N0", 3), ("N1", 207), ("blocks", 1), ("x0_stride0", 208), ("y0_stride0", 208)]
        }
        "joined" => vec![
            ("N0_0", 9),
            ("N0_1", 111),
            ("x0_stride0", 112),
            ("y0_stride0", 112),
            ("N1_0", 15),
            ("N1_1", 27),
            ("y1_stride0", 28),
            ("N2_0", 171),
            ("first2", 9),
            ("blocks", 1),
        ],
        "parts" => vec![
            ("outer", 2),
            ("reduced", 19),
            ("inner", 303),
            ("parts", 2),
            ("x0_stride0", 6000),
            ("x0_stride1", 304),
            ("y_stride0", 304),
        ],
        _ => return None,
    };
    Some(inputs(kernel, &symbols, |param, i| {
        ((37 * i + 11 * (i / 64) + param) % 101) as f64 - 50.0
    }))
}

/// Kernels of every template, small ones, and what they run on.
pub(crate) fn kernels() -> impl Iterator<Item = mutants::Given> {
    let told = element_mutants::all().into_iter().chain(sequence_mutants::all());
    let all = mutants::all().into_iter().chain(told.map(|subject| subject.given()));
    all.map(|(name, kernel, mut given)| {
        given.push(reversed(&given[0]));
        given.extend(more(name, &kernel));
        (name, kernel, given)
    })
}

fn subjects() -> Vec<Subject> {
    let subject = |(name, kernel, given): mutants::Given| {
        let given = given.into_iter().map(|inputs| {
            let outcome = run(&kernel, &inputs, None);
            check_clean(name, &outcome);
            (longer(&inputs), bits(&outcome))
        });
        Subject { name, runs: given.collect(), kernel }
    };
    kernels().map(subject).collect()
}

impl Subject {
    fn judge(&self, fault: &Fault) -> Verdict {
        let kernel = match fault.seed(&self.kernel) {
            Ok(kernel) => kernel,
            Err(error) => return Verdict::Verifier(error.to_string()),
        };
        if let Some(finding) = verify(&kernel).first() {
            return Verdict::Verifier(finding.to_string());
        }
        let run = catch_unwind(AssertUnwindSafe(|| self.simulated(&kernel, fault)));
        let verdict = run.unwrap_or(Verdict::Broken);
        let text = |kernel| emit(kernel).map(|emitted| emitted.source).ok();
        if verdict == Verdict::Nobody && text(&kernel) == text(&self.kernel) {
            return Verdict::SameText;
        }
        verdict
    }

    /// What the simulator finds; the first inputs are those that try all parts of a kernel.
    fn simulated(&self, kernel: &Kernel, fault: &Fault) -> Verdict {
        let mut wrong = None;
        for (number, (inputs, expected)) in self.runs.iter().enumerate() {
            for seed in orders(u64::from(number == 0)) {
                let options =
                    Options { seed, findings: FINDINGS, rounds: ROUNDS, ..Options::default() };
                let outcome = match simulate(kernel, inputs, &options) {
                    Ok(outcome) => outcome,
                    Err(error) => return Verdict::Simulator(false, error.to_string()),
                };
                if let Some(first) = outcome.findings.first() {
                    let named = outcome.findings.iter().find(|finding| is_named(finding));
                    return Verdict::Simulator(named.is_some(), named.unwrap_or(first).to_string());
                }
                if wrong.is_none() && bits(&outcome) != *expected {
                    wrong = Some(inputs);
                }
            }
        }
        match wrong {
            Some(inputs) => Verdict::Values(self.named(kernel, inputs, fault)),
            None => Verdict::Nobody,
        }
    }

    /// The level that is the first not to do what it says.
    fn named(&self, kernel: &Kernel, inputs: &Inputs, fault: &Fault) -> Option<Named> {
        let options = Options { levels: 1, rounds: ROUNDS, findings: 1000, ..Options::default() };
        let outcome = simulate(kernel, inputs, &options).ok()?;
        // What the kernel itself misstates says nothing of the fault.
        let misstated = simulate(&self.kernel, inputs, &options).ok()?.findings;
        let known = |finding: &&Finding| {
            misstated.iter().any(|known| known.statement.text == finding.statement.text)
        };
        let finding = outcome.findings.iter().find(|finding| !known(finding))?;
        let whole = finding.statement.text == kernel.name;
        let number = finding.statement.number;
        let around = whole || fault.within.is_empty() || fault.within.contains(&number);
        let innermost = fault.within.last().map_or(whole, |last| *last == number && !whole);
        Some(Named { around, innermost, says: finding.to_string() })
    }
}

/// Whether a finding says which barrier it is, or which two accesses.
fn is_named(finding: &Finding) -> bool {
    match &finding.fault {
        atom::Fault::Deadlock(_) | atom::Fault::Barrier(_) => true,
        // Barriers that are in use while they are made, and what is in flight when its block leaves.
        atom::Fault::MissingFence(_) => true,
        atom::Fault::Race(text) if text.ends_with("while it is initialised") => true,
        atom::Fault::InFlight(text) if text.ends_with("at the block's end,") => true,
        _ => finding.other.is_some(),
    }
}

/// So many faults of a kernel, those of each change in turn; all if it is 0.
fn chosen(kernel: &Kernel, random: &mut Random, count: usize) -> Vec<Fault> {
    let mut kinds: BTreeMap<(Family, &str), Vec<Fault>> = BTreeMap::new();
    for fault in faults(kernel) {
        kinds.entry((fault.family, fault.change)).or_default().push(fault);
    }
    let mut left: Vec<Vec<Fault>> = kinds.into_values().collect();
    for i in (1..left.len()).rev() {
        left.swap(i, random.below(i as u64 + 1) as usize);
    }
    let mut all = Vec::new();
    while all.len() < count || count == 0 {
        left.retain(|faults| !faults.is_empty());
        if left.is_empty() {
            break;
        }
        for faults in &mut left {
            let at = random.below(faults.len() as u64) as usize;
            all.push(faults.swap_remove(at));
        }
    }
    if count > 0 {
        all.truncate(count);
    }
    all
}

/// What came of the faults of one change.
#[derive(Debug, Clone, Default)]
struct Row {
    seeded: usize,
    verifier: usize,
    simulator: usize,
    named: usize,
    values: usize,
    /// Of those that values tell: those that a level around them is named for, the innermost, or another.
    level: usize,
    innermost: usize,
    elsewhere: usize,
    /// Found by nobody, and none by a rule, or by a row.
    same: usize,
    ruled: usize,
    argued: usize,
    missed: usize,
}

impl Row {
    fn add(&mut self, other: &Row) {
        self.seeded += other.seeded;
        self.verifier += other.verifier;
        self.simulator += other.simulator;
        self.named += other.named;
        self.values += other.values;
        self.level += other.level;
        self.innermost += other.innermost;
        self.elsewhere += other.elsewhere;
        self.same += other.same;
        self.ruled += other.ruled;
        self.argued += other.argued;
        self.missed += other.missed;
    }

    fn found(&self) -> usize {
        self.verifier + self.simulator + self.values
    }

    fn line(&self, name: &str) -> String {
        let counts = [
            self.seeded,
            self.verifier,
            self.simulator,
            self.named,
            self.values,
            self.level,
            self.innermost,
            self.elsewhere,
            self.same,
            self.ruled,
            self.argued,
            self.missed,
        ];
        let columns = counts.iter().map(|count| format!("{count:7}")).collect::<String>();
        format!("{name:36}{columns}")
    }
}

/// Seeds faults, and says what came of them.
fn seed_faults(seed: u64, count: usize) -> BTreeMap<(Family, &'static str), Row> {
    let subjects = subjects();
    let mut random = Random::new(seed);
    let all: Vec<(&Subject, Fault)> = subjects
        .iter()
        .flat_map(|subject| {
            let faults = chosen(&subject.kernel, &mut random, count);
            faults.into_iter().map(move |fault| (subject, fault))
        })
        .collect();
    let (next, told) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                loop {
                    let at = next.fetch_add(1, Ordering::Relaxed);
                    let Some((subject, fault)) = all.get(at) else { break };
                    let verdict = subject.judge(fault);
                    told.lock().unwrap().push((at, verdict));
                }
            });
        }
    });
    let mut told = told.into_inner().unwrap();
    told.sort_unstable_by_key(|row| row.0);
    let mut rows: BTreeMap<(Family, &str), Row> = BTreeMap::new();
    for (at, verdict) in told {
        let (subject, fault) = &all[at];
        let row = rows.entry((fault.family, fault.change)).or_default();
        row.seeded += 1;
        match &verdict {
            Verdict::Verifier(_) => row.verifier += 1,
            Verdict::Simulator(named, _) => {
                row.simulator += 1;
                row.named += usize::from(*named);
            }
            Verdict::Values(named) => {
                row.values += 1;
                match named {
                    Some(Named { innermost: true, .. }) => {
                        (row.level, row.innermost) = (row.level + 1, row.innermost + 1);
                    }
                    Some(Named { around: true, .. }) => row.level += 1,
                    Some(_) => row.elsewhere += 1,
                    None => {}
                }
            }
            Verdict::SameText => row.same += 1,
            Verdict::Nobody if fault.none.is_some() => row.ruled += 1,
            Verdict::Nobody if excuse(subject.name, fault).is_some() => row.argued += 1,
            Verdict::Nobody | Verdict::Broken => row.missed += 1,
        }
        let why = fault.none.or_else(|| excuse(subject.name, fault)).unwrap_or_default();
        let Fault { family, change, line, .. } = fault;
        println!("{} | {family:?} | {change} | {line} | {verdict:?} | {why}", subject.name);
    }
    rows
}

fn print(rows: &BTreeMap<(Family, &'static str), Row>) {
    let heads =
        "seeded  verif  simul  named values  level  inner   else   same   rule argued missed";
    println!("{:36} {heads}", "");
    let (mut sum, mut family) = (Row::default(), BTreeMap::<Family, Row>::new());
    for ((of, change), row) in rows {
        println!("{}", row.line(&format!("{of:?}: {change}")));
        sum.add(row);
        family.entry(*of).or_default().add(row);
    }
    family.iter().for_each(|(of, row)| println!("{}", row.line(&format!("{of:?}"))));
    println!("{}", sum.line("all"));
}

fn number(name: &str, default: usize) -> usize {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

/// Of the faults that make a difference, so many of 100 are found, and so many of those in synchronisation under a name.
fn check(rows: &BTreeMap<(Family, &'static str), Row>) {
    let sum = |of: &dyn Fn(Family) -> bool| {
        let mut sum = Row::default();
        rows.iter().filter(|row| of(row.0.0)).for_each(|row| sum.add(row.1));
        sum
    };
    let all = sum(&|_| true);
    let values = sum(&|family| family != Family::Synchronisation);
    let order = sum(&|family| family == Family::Synchronisation);
    let share = |part: usize, of: usize| 100.0 * part as f64 / of as f64;
    let found = share(values.found(), values.found() + values.missed);
    let named = share(order.verifier + order.named, order.found() + order.missed);
    let argued = share(all.argued, all.seeded);
    println!("found: {found:.1} % of those that change values");
    println!("named: {named:.1} % of those in synchronisation; argued to be none: {argued:.1} %");
    let levels = share(values.level, values.values.max(1));
    let innermost = share(values.innermost, values.values.max(1));
    println!("named by level: {levels:.1} % of those that only values tell");
    println!("at the innermost level: {innermost:.1} % of these");
    assert!(found >= 98.0 && named >= 95.0 && argued <= 5.0 && innermost >= 90.0);
}

#[test]
fn seeded_faults_are_found() {
    let rows = seed_faults(number("FAULTS_SEED", 1) as u64, number("FAULTS", 4));
    print(&rows);
    check(&rows);
}
