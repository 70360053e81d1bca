//! Random graphs on every executor: none may panic, refuse, or give other numbers than the reference.
//!
//! ```text
//! cargo test --release -p graphene-runtime --test random                 # some hundreds of graphs
//! GRAPHENE_RANDOM=100000 cargo test --release -p graphene-runtime --test random
//! GRAPHENE_RANDOM=1 GRAPHENE_RANDOM_FROM=4711 cargo test --release -p graphene-runtime --test random
//! ```
//!
//! A graph is made from a seed, by the table in `rows.rs`. `GRAPHENE_RANDOM` says how many, `GRAPHENE_RANDOM_FROM` the first
//! seed; `GRAPHENE_RANDOM_OPERATORS=1` lists what they were made of. `compare.rs` says how far results may be apart and why.
//! What fails is shown once a cause, with its seed, as the text of a smaller graph that fails alike; `regressions.rs` keeps
//! those that did. Progress is on stderr.
//!
//! Where there is a GPU, it runs graphs too, `GRAPHENE_RANDOM_GPU` of them; what it has no kernels for runs on the host.

#![allow(clippy::unwrap_used)] // A failed unwrap is a failed test.

mod build;
mod compare;
mod execute;
#[allow(dead_code)] // The suite asks more of it.
#[path = "../node_suite/on_gpu.rs"]
mod on_gpu;
mod regressions;
mod rows;
mod shrink;

use build::{Case, from_reals};
use compare::{Expected, Seen};
use execute::{Failure, Kind, check, check_on_gpu, guarded, keep_panics};
use graphene_frontend::dtype::DType;
use graphene_frontend::eval::evaluate_with;
use graphene_frontend::text::print;
use graphene_frontend::types::TensorType;
use libtest_mimic::{Arguments, Failed, Trial};
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

/// Graphs of a run that asks for no number.
const GRAPHS: u64 = 500;

/// Those on a GPU, which compiles kernels for each.
const GRAPHS_ON_GPU: u64 = 2000;

/// Causes that are shown, each with a small graph.
const SHOWN: usize = 12;

fn main() {
    let arguments = Arguments::from_args();
    keep_panics();
    let trials = vec![
        Trial::test("regressions", || regressions::check_all().map_err(Failed::from)),
        Trial::test("comparisons_see_errors", comparisons_see_errors),
        Trial::test("graphs", || many("on the CPU", number("GRAPHENE_RANDOM", GRAPHS), check)),
        Trial::test("graphs_on_a_gpu", || {
            many("on the GPU", number("GRAPHENE_RANDOM_GPU", GRAPHS_ON_GPU), check_on_gpu)
        })
        .with_ignored_flag(!on_gpu::is_there()),
    ];
    let conclusion = libtest_mimic::run(&arguments, trials);
    on_gpu::summarise();
    conclusion.exit();
}

/// An element that is off by a thousandth is said to be wrong, in nearly all graphs of single or double precision: what
/// explains differences by roundings must not explain all of them.
fn comparisons_see_errors() -> Result<(), Failed> {
    let (mut seen, mut all) = (0, 0);
    for seed in 0..20 {
        let case = &rows::cases(seed).cases[0];
        let outputs = evaluate_with(&case.graph, &case.inputs, &case.sizes)?;
        let half = |ty: &TensorType| matches!(ty.dtype, DType::F16 | DType::BF16);
        if case.graph.nodes().flat_map(|(_, node)| node.outputs()).any(half) {
            continue;
        }
        for (number, output) in outputs.iter().enumerate() {
            let numbers = build::reals(output);
            let most = numbers.iter().map(|x| x.abs()).fold(0.0, f64::max);
            if !output.dtype().is_float() || most < 1e-3 || !most.is_finite() {
                continue;
            }
            let place = numbers.iter().position(|x| x.abs() == most).unwrap_or(0);
            let mut wrong = numbers;
            wrong[place] *= 1.001;
            let mut actual = outputs.clone();
            actual[number] = from_reals(output.dtype(), output.shape().to_vec(), &wrong);
            all += 1;
            seen += usize::from(Expected::new(case, &outputs).compare(&actual, 1.0).is_err());
        }
    }
    let few = seen * 100 < all * 95;
    if few { Err(Failed::from(format!("{seen} of {all} errors are seen"))) } else { Ok(()) }
}

/// A number in the environment.
fn number(name: &str, default: u64) -> u64 {
    let said = std::env::var(name).ok();
    said.map_or(default, |text| text.parse().unwrap_or_else(|_| panic!("{name} is a number")))
}

/// What was seen of all graphs.
#[derive(Default)]
struct Tally {
    seen: Seen,
    nodes: usize,
    operators: BTreeMap<&'static str, usize>,
    /// Rows of the table that added something.
    rows: BTreeMap<&'static str, usize>,
    /// Graphs that ran at two sets of sizes.
    sizes: usize,
    failures: Vec<(u64, Failure)>,
}

type Check = fn(&[Case]) -> Result<Seen, Failure>;

/// Runs so many graphs on all cores.
fn many(place: &str, count: u64, check: Check) -> Result<(), Failed> {
    let from = number("GRAPHENE_RANDOM_FROM", 0);
    let (next, start) = (AtomicU64::new(from), Instant::now());
    let tally = Mutex::new(Tally::default());
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= from + count {
                        break;
                    }
                    one(seed, check, &tally);
                    let done = seed + 1 - from;
                    if done.is_multiple_of(1000) {
                        let failed = tally.lock().unwrap().failures.len();
                        let seconds = start.elapsed().as_secs();
                        eprintln!("{done} of {count} graphs {place}, {failed} fail, {seconds} s");
                    }
                }
            });
        }
    });
    let tally = tally.into_inner().unwrap();
    let Tally { seen, nodes, operators, rows, sizes, mut failures } = tally;
    eprintln!(
        "{count} graphs {place} from seed {from}, {sizes} of them at two sizes: {nodes} nodes of {} operators, {} \
         elements compared; {} differ by what roundings do, {} of them near ties; {} graphs fail; {} s",
        operators.len(),
        seen.elements,
        seen.rounded,
        seen.near_ties,
        failures.len(),
        start.elapsed().as_secs(),
    );
    if std::env::var("GRAPHENE_RANDOM_OPERATORS").is_ok() {
        for (name, count) in operators.iter().chain(&rows) {
            eprintln!("{count:8} {name}");
        }
    }
    failures.sort_by_key(|(seed, _)| *seed);
    if failures.is_empty() { Ok(()) } else { Err(Failed::from(report(&failures, check))) }
}

fn one(seed: u64, check: Check, tally: &Mutex<Tally>) {
    let made = guarded("generator", || Ok(rows::cases(seed)));
    let result = made.and_then(|made| check(&made.cases).map(|seen| (made, seen)));
    let mut tally = tally.lock().unwrap();
    match result {
        Ok((made, seen)) => {
            tally.seen.add(&seen);
            let graph = &made.cases[0].graph;
            tally.nodes += graph.len();
            for (_, node) in graph.nodes() {
                *tally.operators.entry(node.op().name()).or_default() += 1;
            }
            made.rows.iter().for_each(|row| *tally.rows.entry(row).or_default() += 1);
            tally.sizes += usize::from(made.cases.len() > 1);
        }
        Err(failure) => tally.failures.push((seed, failure)),
    }
}

/// A cause a paragraph, the first graph of each made small.
fn report(failures: &[(u64, Failure)], check: Check) -> String {
    let mut causes: BTreeMap<(Kind, &str, String), Vec<usize>> = BTreeMap::new();
    for (place, (_, failure)) in failures.iter().enumerate() {
        let cause = if failure.kind == Kind::Wrong { String::new() } else { failure.cause() };
        causes.entry((failure.kind, failure.executor, cause)).or_default().push(place);
    }
    let mut text = format!("{} graphs fail, by {} causes", failures.len(), causes.len());
    for ((kind, executor, cause), places) in &causes {
        let seeds: Vec<u64> = places.iter().map(|&place| failures[place].0).collect();
        let few = &seeds[..seeds.len().min(8)];
        text +=
            &format!("\n\n{kind:?} ({executor}) {cause}: {} graphs, seeds {few:?}", seeds.len());
    }
    // Wrong answers have no cause that could be told before they are small.
    let shown = causes.values().flat_map(|places| places.iter().take(4)).take(SHOWN);
    for &place in shown {
        let (seed, failure) = &failures[place];
        text += &format!(
            "\n\nseed {seed}: {:?} ({}): {}\n",
            failure.kind, failure.executor, failure.what
        );
        if let Ok(made) = guarded("generator", || Ok(rows::cases(*seed))) {
            text += &shown_small(&made.cases[failure.case], failure, check);
        }
    }
    text
}

/// The text of a smaller graph that fails so, with sizes and inputs.
fn shown_small(case: &Case, failure: &Failure, check: Check) -> String {
    let small = shrink::shrunk(case, failure, check);
    let mut text = String::new();
    for (symbol, size) in small.sizes.iter() {
        text += &format!("# {symbol} = {size}\n");
    }
    for (i, input) in small.inputs.iter().enumerate() {
        let numbers = build::reals(input);
        let few: Vec<String> = numbers.iter().take(12).map(f64::to_string).collect();
        text += &format!("# input {i}: {}\n", few.join(" "));
    }
    if let Err(again) = check(std::slice::from_ref(&small)) {
        text += &format!("# {}\n", again.what);
    }
    text + &print(&small.graph).text
}
