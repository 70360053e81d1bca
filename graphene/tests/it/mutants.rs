//! Mutants of Hopper's product, of attention, and of kernels whose blocks exchange data: the verifier or the
//! simulator reports what is wrong with each, under its name.

use std::collections::{BTreeMap, BTreeSet};

use graphene_ir::kernel::Kernel;
use graphene_ir::simulate::{Inputs, Options, simulate};
use graphene_ir::template::epilogue::Epilogue;
use graphene_ir::template::fmha::{Fmha, Mask};
use graphene_ir::template::gemm::Gemm;
use graphene_ir::template::matmul::{Edges, MatMul};
use graphene_ir::template::mlp::{Layer, Mlp};
use graphene_ir::template::multistage::Multistage;
use graphene_ir::tensor::Scalar;
use graphene_ir::verify::verify;

use crate::fmha::{Sizes, operands};
use crate::index::Random;
use crate::mutate::{Mutant, mutants};
use crate::support::{check_clean, inputs, kind, orders, run};

/// What each change may be reported as: by rules of the verifier, by faults of the simulator, or
/// by what its outcome tells besides: `Unwritten` elements of an output, bank `Conflicts`.
const NAMES: &[(&str, &str)] = &[
    // What is no longer ordered is a race; with what is asynchronous, an access in flight; if the
    // other comes first, a read of what was not written yet.
    ("delete Sync", "Race InFlight Uninitialised Clusters"),
    ("Sync of the block", "Together"),
    ("Sync of one block", "Uninitialised Clusters"),
    ("delete Fence", "MissingFence Clusters Race"),
    ("delete Commit", "InFlight"),
    ("delete WaitGroup", "InFlight"),
    ("one more pending", "InFlight"),
    ("one less pending", "Atomic"),
    ("flip read", "Atomic"),
    // Who waits for it waits for ever.
    ("delete Arrive", "Deadlock"),
    ("16 bytes more", "Deadlock"),
    ("16 bytes less", "Deadlock InFlight"),
    ("no bytes", "InFlight Uninitialised"),
    ("delete Wait", "Race InFlight Uninitialised Barrier"),
    ("wait for the own block", "MissingFence"),
    ("flip parity", "Race InFlight Uninitialised Deadlock Barrier"),
    // Of a barrier, or of a register.
    ("delete Init", "Barrier Uninitialised"),
    ("count one more", "Deadlock"),
    // A count of 0 is none. Else a phase completes too early: what it guards is in use, its late
    // arrivals count for the next phase, or it passes its waiters by.
    ("count one less", "Barrier Race InFlight Deadlock"),
    ("delete Registers", "Fits"),
    // What blocks count stays behind for the next launch, which only the counter tells.
    ("delete GridArrive", "Deadlock Grid Declared"),
    ("count to one more", ""),
    ("count to one less", "Deadlock"),
    ("delete GridWait", "Race Uninitialised Grid"),
    ("await one more", "Deadlock Race Uninitialised"),
    ("await one less", "Race Uninitialised Grid"),
    ("uneven Registers", "Atomic"),
    ("too few Registers", "Atomic"),
    ("too many Registers", "Atomic"),
    ("more Registers", "Fits"),
    ("complete now", "Atomic"),
    ("complete as a group", "Atomic"),
    ("signal another barrier", "Deadlock Inside Atomic"),
    ("off by a stage", "Race InFlight Deadlock Barrier Uninitialised"),
    ("delete advance", "Race InFlight Uninitialised Deadlock Barrier"),
    ("add a stage", "Inside Deadlock InFlight"),
    ("take a stage", "Race InFlight Uninitialised Deadlock Refused"),
    // Or others do the same as well; of what one thread counts for all, arrivals are too many.
    (
        "remove predicate",
        "Inside InFlight Uninitialised Race WrittenTwice Invalid Deadlock Barrier",
    ),
    ("drop body", "Deadlock Uninitialised Unwritten Declared Race"),
    ("drop role", "Deadlock Unwritten Declared InFlight Barrier Fits"),
    // More threads than one at what one alone may do, or more arrivals than are counted, so that a stage is filled while it
    // is read; or two write the same.
    ("widen role up", "Invalid Barrier Deadlock Fits Inside Race InFlight"),
    ("widen role down", "Fits Deadlock Barrier"),
    ("role of all", "Invalid Barrier Deadlock Fits Inside Race"),
    // Nobody does it, or another than who must wait for it.
    ("shift role up", "InFlight Fits Inside Deadlock"),
    ("shift role down", "Deadlock Fits"),
    ("remove swizzle", "Atomic Conflicts"),
    ("narrow swizzle", "Atomic Conflicts"),
];

/// Changes that make no difference: of which kernels, what, of a statement whose line has this;
/// and why.
const EQUIVALENT: &[(&str, &str, &str, &str)] = &[
    (
        "",
        "shift role up",
        "role #block[0] { for(@s",
        "Another thread of the block initialises the barriers and fences that; all of the block \
         meets before anybody uses them.",
    ),
    (
        "",
        "shift role up",
        "role #lanes[0] { %empty",
        "Another lane of each warp arrives. It has waited for the same groups of products: they \
         are the warpgroup's, not a lane's.",
    ),
    (
        "",
        "shift role up",
        "role #block[",
        "Another thread of the producer's warpgroup issues the copies and waits for the stages.",
    ),
    (
        "",
        "widen role down",
        "] { %gA",
        "The thread before is a consumer's; the role around leaves it out.",
    ),
    (
        "",
        "one less pending",
        ", 1",
        "It waits for one group more: every order of events is one that there was before.",
    ),
    (
        "one consumer",
        "widen role down",
        "role #warpgroups[1]",
        "The consumers' threads find nothing to do there: within it is a role of one of the producer's, and registers are \
         not moved.",
    ),
    ("early", "widen role down", "role #warpgroups[1]", "Likewise."),
    (
        "early",
        "shift role down",
        "role #block[128] { if(@first",
        "Another thread begins: stages are full when all has come, whoever asked for it.",
    ),
    ("epilogue", "one less pending", "WaitGroup<bulk, 2", "Likewise."),
    ("epilogue", "one less pending", "WaitGroup<bulk, 3", "Likewise."),
    (
        "epilogue",
        "delete Fence",
        "Fence<init><<<#cta, #one_2>>>",
        "The same thread fences once more, when it has initialised the ring's barriers.",
    ),
    (
        "",
        "flip read",
        "WaitGroup<bulk,",
        "It waits for the groups' writes as well as for their reads: every order of events is one \
         that there was before.",
    ),
    (
        "",
        "widen role up",
        "role #own[0] { WaitGroup",
        "A thread without groups of its own has none to wait for.",
    ),
    (
        "",
        "role of all",
        "role #own[0] { WaitGroup",
        "Threads without groups of their own have none to wait for.",
    ),
    (
        "",
        "off by a stage",
        "%buffer",
        "The two buffers change places; every access is through this view of them.",
    ),
    (
        "",
        "remove predicate",
        "if((@K + 63)/64 >= 1)",
        "K is one number for all tiles. If it is 0, nobody ever waits for a stage, so that \
         arriving at its barrier does nothing; else the predicate holds.",
    ),
    (
        "split",
        "delete Fence",
        "Fence<init><<<#cta, #one_2>>>",
        "The same thread fences once more, when it has initialised the ring's barriers.",
    ),
    ("split", "widen role down", "role #warpgroups[1]", "As of one consumer."),
    (
        "split",
        "remove predicate",
        "if(min((",
        "A block has one tile: nobody waits for the stage that it leaves last.",
    ),
    ("split", "drop body", "if(min((", "Likewise."),
    ("split", "drop role", "<- Arrive<<<#cta, #one>>>() #2", "Likewise."),
    ("split", "widen role up", "<- Arrive<<<#cta, #one>>>() #2", "Likewise."),
    ("split", "role of all", "<- Arrive<<<#cta, #one>>>() #2", "Likewise."),
    ("split", "delete Arrive", "<- Arrive<<<#cta, #one>>>() #2", "Likewise."),
    ("split", "off by a stage", "<- Arrive<<<#cta, #one>>>() #2", "Likewise."),
    (
        "mbarrier_cluster",
        "shift role up",
        "role #warp[0] { %bar",
        "Another lane initialises the barrier and fences that; the cluster meets before its use.",
    ),
    ("st_async_2", "shift role up", "role #warp[0] { %bar", "Likewise."),
    (
        "cluster_load",
        "delete Sync",
        "#1",
        "The first: before the second, each block accesses its own memory only.",
    ),
    ("cluster_load", "Sync of one block", "#1", "Likewise."),
    (
        "cluster_store",
        "delete Sync",
        "#3",
        "After the second, each block accesses its own memory only.",
    ),
    ("cluster_store", "Sync of one block", "#3", "Likewise."),
    (
        "moves",
        "delete Fence",
        "Fence<init>",
        "Only threads of the own block use the barriers, after they have met: no asynchronous \
         copy signals one, and there is no other block.",
    ),
    ("alike", "delete Init", "%raw", "There are biases for all columns: none is taken for 0."),
    ("alike", "remove predicate", "if(inside(%term", "Likewise."),
    ("single", "delete Init", "%raw_2", "Likewise, of the last layer."),
    ("single", "remove predicate", "if(inside(%term_2)", "Likewise."),
    ("alike", "delete advance", "advance @filling #4", "No weights are left to be brought."),
    ("single", "delete advance", "advance @filling #4", "Likewise."),
    (
        "single",
        "drop body",
        "@lane%2 >= 24)",
        "Beyond a layer's columns sums and biases are 0, and so is their ReLU.",
    ),
    ("single", "delete Init", "%result[0]", "Likewise."),
    (
        "single",
        "remove swizzle",
        "%sW",
        "The eight lanes whose accesses are of one phase read two columns, one beside the other.",
    ),
    ("single", "narrow swizzle", "%sW", "Likewise."),
];

/// Changes that nothing but the result tells, and why; they count as missed.
const MISSED: &[(&str, &str, &str)] = &[
    (
        "count one less",
        "%empty[@s] <- Init<4>",
        "Of one warpgroup, a warp's arrival says as much as four; phases are one ahead only after four laps.",
    ),
    (
        "drop body",
        "if(inside(%term",
        "What is left out is arithmetic; order, bounds and use of memory stay right.",
    ),
    ("remove predicate", "if(@k%2 ==", "A layer ends after some of its sums' terms."),
    ("delete Init", "%pair_5[", "A layer's sums begin with those of the layer before."),
    ("delete Init", "%pair_6[", "Likewise."),
    ("remove predicate", "@lane%2 >= 24)", "Of a layer's result no column is left."),
    ("delete advance", "advance @using #2", "All steps of the last layer use its first weights."),
];

/// Likewise of consumers that take turns, whatever they multiply.
const OF_TURNS: &[(&str, &str, &str, &str)] = &[
    (
        "turns",
        "shift role up",
        "role #lanes[0] { %turns",
        "Another lane of each warp arrives, after the same products have been issued.",
    ),
    (
        "turns",
        "widen role up",
        "role #warpgroups[1] { role #lanes[0]",
        "The warpgroup after is the producer's; the role around leaves it out.",
    ),
    (
        "turns",
        "shift role down",
        "role #warpgroups[1] { role #lanes[0]",
        "The first consumer says itself that the first turn is its.",
    ),
];

/// Likewise of attention.
const OF_ATTENTION: &[(&str, &str, &str, &str)] = &[
    (
        "",
        "shift role up",
        "role #block[0] { for(@s",
        "Another thread of the block initialises the barriers and fences that; all of the block \
         meets before anybody uses them.",
    ),
    (
        "",
        "delete Fence",
        "Fence<init><<<#cta, #one_2>>>",
        "The same thread fences once more, when it has initialised the barriers of all rings.",
    ),
    ("", "delete Fence", "Fence<init><<<#cta, #one_3>>>", "Likewise."),
    (
        "",
        "off by a stage",
        "%empty_2[@filling_k.stage] <- Wait<1 - @filling_k.parity><<<#cta, #one>>>() #2",
        "Of two stages: every other wait is for the copy before, rather than for the one before \
         that; what the others should wait for is done since then, or since the queries' wait.",
    ),
    ("", "off by a stage", "%empty_2[@filling_m.stage] <- Wait", "Likewise."),
    (
        "",
        "shift role up",
        "role #lanes[0] { %empty",
        "Another lane of each warp arrives. It has waited for the same groups of products: they \
         are the warpgroup's, not a lane's.",
    ),
    (
        "",
        "shift role up",
        "role #block[",
        "Another thread of the producer's warpgroup issues the copies and waits for the stages; or as \
         many others bring the mask.",
    ),
    (
        "",
        "widen role down",
        "role #block[128]",
        "The thread before is a consumer's; the role around leaves it out.",
    ),
    ("turns", "widen role down", "role #block[256]", "Likewise."),
    (
        "",
        "one less pending",
        ", 1",
        "It waits for one group more: every order of events is one that there was before.",
    ),
    (
        "",
        "flip read",
        "WaitGroup<bulk,",
        "It waits for the groups' writes as well as for their reads: every order of events is one \
         that there was before.",
    ),
    (
        "",
        "widen role up",
        "role #own[0] { WaitGroup",
        "A thread without groups of its own has none to wait for.",
    ),
    (
        "",
        "role of all",
        "role #own[0] { WaitGroup",
        "Threads without groups of their own have none to wait for.",
    ),
    (
        "",
        "remove predicate",
        "if(@keys < 16*@tile",
        "Of a tile that is not partial, the predicate of each key leaves all of them alone.",
    ),
    (
        "",
        "remove predicate",
        "if(@steps >= 2)",
        "After one step nothing was summed before: its factor makes no difference.",
    ),
    (
        "",
        "delete Wait",
        "%full_3[(@using_v.stage + 1)%2]",
        "Values are waited for once more, before their product.",
    ),
    (
        "",
        "delete Wait",
        "%empty_2[@filling_k.stage] <- Wait<1 - @filling_k.parity><<<#cta, #one>>>() #1",
        "Queries are given back after all their keys: who has waited for the former's stage need \
         not wait for the latter's.",
    ),
    (
        "turns",
        "delete Wait",
        "%turns[@group] <- Wait",
        "Turns order what shares nothing but the tensor cores.",
    ),
    (
        "turns",
        "flip parity",
        "%turns[@group] <- Wait<@turn.parity><<<#cta, #own>>>() #2",
        "Likewise; it waits for a turn that there was.",
    ),
];

const MISSED_OF_ATTENTION: &[(&str, &str, &str)] = &[
    ("drop body", "if(@keys <", "What is left out is arithmetic."),
    ("drop body", ">= @keys) { for(@half", "Likewise."),
    ("remove predicate", ">= @keys) { for(@half", "Likewise."),
    ("delete Init", "Init<-inf>", "Likewise."),
    ("drop body", "if(@steps >= 2)", "Likewise."),
    (
        "count one less",
        "%empty[0] <- Init<4>",
        "Of one warpgroup, a warp's arrival says as much as four; phases are one ahead only after \
         four tiles.",
    ),
    ("count one less", "%empty[0] <- Init<8>", "Likewise of two warpgroups."),
    ("take a stage", "ring @using[2]", "Each tile lands in the stage that the one before was in."),
    ("delete advance", "advance @using", "Likewise."),
];

/// The row of changes that make no difference that a change of one of these kernels falls under.
pub(crate) fn excuse(kernel: &str, change: &str, line: &str) -> Option<&'static str> {
    let mut rows = EQUIVALENT.iter().chain(OF_TURNS).chain(OF_ATTENTION);
    let row = rows.find(|(of, row, part, _)| {
        (of.is_empty() || *of == kernel) && *row == change && line.contains(part)
    });
    row.map(|row| row.3)
}

/// What makes no difference, and what nothing but the result tells.
#[derive(Clone, Copy)]
struct Known<'a> {
    equivalent: &'a [(&'static str, &'static str, &'static str, &'static str)],
    missed: &'static [(&'static str, &'static str, &'static str)],
}

/// How a mutant was told from the kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Verdict {
    /// By whom and under which name, and what was said.
    Reported(&'static str, String, String),
    /// Only its results differ.
    Wrong,
    /// It does what the kernel does.
    Silent,
}

type Buffers = BTreeMap<String, Vec<Option<f64>>>;

struct Subject {
    name: &'static str,
    kernel: Kernel,
    /// What the kernel runs on, and leaves in its outputs.
    runs: Vec<(Inputs, Buffers)>,
}

/// In how many random orders a kernel and its mutants run, besides the warps' turns.
const ORDERS: u64 = 2;

/// A kernel, and what it runs on.
pub(crate) type Given = (&'static str, Kernel, Vec<Inputs>);

fn given(name: &'static str, kernel: Kernel, sizes: &[[i64; 3]]) -> Given {
    let mut random = Random::new(3);
    let values: Vec<f64> = (0..65_521).map(|_| random.within(-64, 64) as f64 / 64.0).collect();
    let runs = sizes.iter().map(|&[m, n, k]| {
        let symbols = [("M", m), ("N", n), ("K", k), ("blocks", 1), ("clusters", 1)];
        inputs(&kernel, &symbols, |n, i| values[(10_007 * n + i) % 65_521])
    });
    let runs = runs.collect();
    (name, kernel, runs)
}

impl Subject {
    fn on((name, kernel, runs): Given) -> Subject {
        assert_eq!(verify(&kernel), vec![]);
        let runs = runs.into_iter().map(|inputs| {
            let mut outputs = None;
            for seed in orders(ORDERS) {
                let outcome = run(&kernel, &inputs, seed);
                check_clean(name, &outcome);
                assert_eq!(outcome.costs.total().conflicts, 0, "{name}");
                assert!(outcome.buffers.values().flatten().all(Option::is_some), "{name}");
                assert!(outputs.is_none_or(|before| before == outcome.buffers), "{name}");
                outputs = Some(outcome.buffers);
            }
            (inputs, outputs.unwrap())
        });
        Subject { name, runs: runs.collect(), kernel }
    }

    fn judge(&self, mutant: &Mutant) -> Verdict {
        let reported = |by, name: &str, text| Verdict::Reported(by, name.to_owned(), text);
        let kernel = match &mutant.kernel {
            Ok(kernel) => kernel,
            Err(error) => return reported("builder", "Refused", error.to_string()),
        };
        if let Some(finding) = verify(kernel).first() {
            return reported("verifier", &format!("{:?}", finding.rule), finding.to_string());
        }
        let mut wrong = false;
        for (i, (inputs, outputs)) in self.runs.iter().enumerate() {
            // The first inputs are those that try all parts of the kernel.
            for seed in orders(if i == 0 { ORDERS } else { 0 }) {
                let options = Options { seed, ..Options::default() };
                let outcome = simulate(kernel, inputs, &options).unwrap();
                if let Some(finding) = outcome.findings.first() {
                    return reported("simulator", kind(&finding.fault), finding.to_string());
                }
                let holes = outcome.buffers.values().flatten().filter(|x| x.is_none()).count();
                if holes > 0 {
                    return reported("simulator", "Unwritten", format!("{holes} elements"));
                }
                let conflicts = outcome.costs.total().conflicts;
                if conflicts > 0 {
                    return reported("simulator", "Conflicts", format!("{conflicts}"));
                }
                wrong |= outcome.buffers != *outputs;
            }
        }
        if wrong { Verdict::Wrong } else { Verdict::Silent }
    }
}

fn subjects() -> Vec<Given> {
    let small = Gemm { columns: 64, stages: 2, raster: 2, consumers: 1, ..Gemm::default() };
    let matmul = MatMul { epilogue: Epilogue::layer(true, None, true), ..MatMul::default() };
    let gemm = |name, gemm: &Gemm, sizes: &[[i64; 3]]| given(name, gemm.kernel().unwrap(), sizes);
    let example = |name| given(name, crate::support::example(name), &[[0; 3]]);
    let staged = |name, kernel: graphene_ir::Result<Kernel>, sizes: &[[i64; 3]]| {
        given(name, kernel.unwrap(), sizes)
    };
    let mma = Multistage { tile: [32, 32], depth: 32, warps: 2, stages: 3, ..Multistage::mma() };
    // Four tiles, partial ones among them, with more steps than the ring has stages; and none.
    let mut subjects = vec![
        gemm("one consumer", &small, &[[72, 72, 136], [72, 72, 0]]),
        gemm(
            "early",
            &Gemm { weights: true, ..small.clone() },
            &[[72, 72, 136], [72, 72, 64], [0, 72, 72]],
        ),
        gemm(
            "two consumers",
            &Gemm { consumers: 2, ..small.clone() },
            &[[136, 72, 136], [136, 72, 0]],
        ),
        gemm(
            "turns",
            &Gemm { ping_pong: true, consumers: 2, ..small.clone() },
            &[[200, 72, 136], [136, 72, 0]],
        ),
        gemm(
            "moves",
            &Gemm { edges: Edges::Moves, ..small.clone() },
            &[[67, 65, 129], [67, 65, 0]],
        ),
        // More panels than there is room for.
        gemm(
            "epilogue",
            &Gemm { matmul, columns: 256, ..small.clone() },
            &[[72, 200, 264], [72, 200, 0]],
        ),
        gemm("split", &Gemm { split: 2, ..small.clone() }, &[[64, 64, 456], [64, 64, 0]]),
        staged("mma", mma.kernel(), &[[40, 40, 136], [40, 40, 0]]),
        example("mbarrier_cluster"),
        example("cluster_load"),
        example("cluster_store"),
        example("st_async_2"),
    ];
    subjects.extend(layers());
    subjects
}

/// A loop of layers and a last one, and layers by threads of other widths than stages are deep.
fn layers() -> Vec<Given> {
    let layer = |width| Layer { width, ..Layer::default() };
    let small = |mlp: Mlp| Mlp { rows: 32, depth: 16, warps: 2, stages: 3, ..mlp };
    let alike = small(Mlp::alike(3, layer(32)));
    let layers = vec![layer(24), layer(32)];
    let single = small(Mlp { scalar: Scalar::F32, width: 32, layers, ..Mlp::default() });
    vec![
        given("alike", alike.kernel().unwrap(), &[[40, 0, 0]]),
        given("single", single.kernel().unwrap(), &[[40, 0, 0]]),
    ]
}

/// Two tiles of queries, five to eight of keys, partial ones among them, or one; and one key.
fn attention() -> Vec<Given> {
    let small = Fmha { consumers: 1, keys: 16, ..Fmha::default() };
    let masked = Fmha { mask: Mask::PerKey(Scalar::F32), ..small.clone() };
    let turns = Fmha { consumers: 2, ..small.clone() };
    let all = |fmha: &Fmha, sizes: &[(usize, usize)]| {
        let sizes = sizes.iter().map(|&(q, k)| Sizes::of(q, k));
        sizes.chain([Sizes::grouped(3, 40)]).map(|sizes| operands(fmha, sizes)).collect()
    };
    let runs = |sizes: &[(usize, usize)]| all(&small, sizes);
    // Of Ampere's two stages, one tile's last is the next one's first only if steps are odd.
    vec![
        ("attention", small.kernel().unwrap(), runs(&[(70, 120), (70, 104), (70, 9), (3, 1)])),
        (
            "masked",
            masked.kernel().unwrap(),
            all(&masked, &[(70, 120), (70, 104), (70, 9), (3, 5)]),
        ),
        ("turns", turns.kernel().unwrap(), runs(&[(130, 120), (260, 104), (130, 9), (3, 1)])),
        ("ampere", small.ampere().unwrap(), runs(&[(70, 72), (70, 120), (3, 1)])),
    ]
}

/// All of these kernels, and what they run on.
pub(crate) fn all() -> Vec<Given> {
    subjects().into_iter().chain(attention()).collect()
}

/// A mutant with what became of it.
struct Judged {
    subject: &'static str,
    mutant: Mutant,
    verdict: Verdict,
    /// The row of [`Known::equivalent`] that it falls under.
    excuse: Option<usize>,
}

fn is_known_miss(known: Known<'_>, mutant: &Mutant) -> bool {
    known
        .missed
        .iter()
        .any(|(change, line, _)| *change == mutant.change && mutant.line.contains(line))
}

fn judge_all(known: Known<'_>, subject: &Subject) -> Vec<Judged> {
    let judge = |mutant: Mutant| {
        let excuse = known.equivalent.iter().position(|(of, change, line, _)| {
            (of.is_empty() || *of == subject.name)
                && *change == mutant.change
                && mutant.line.contains(line)
        });
        let verdict = subject.judge(&mutant);
        Judged { subject: subject.name, mutant, verdict, excuse }
    };
    mutants(&subject.kernel).into_iter().map(judge).collect()
}

/// Whether a mutant is reported under one of its change's names.
fn is_reported(judged: &Judged) -> bool {
    match &judged.verdict {
        Verdict::Reported(_, name, _) => is_named(judged.mutant.change, name),
        Verdict::Wrong | Verdict::Silent => false,
    }
}

/// Whether what a change makes may be reported under a name.
pub(crate) fn is_named(change: &str, name: &str) -> bool {
    let row = NAMES.iter().find(|row| row.0 == change);
    let (_, names) = row.unwrap_or_else(|| panic!("no names of {change}"));
    names.split(' ').any(|known| known == name)
}

#[test]
fn mutants_are_reported_under_their_names() {
    let equivalent = [EQUIVALENT, OF_TURNS].concat();
    check(subjects(), Known { equivalent: &equivalent, missed: MISSED });
}

#[test]
fn mutants_of_attention_are_reported_under_their_names() {
    let equivalent = [OF_ATTENTION, OF_TURNS].concat();
    check(attention(), Known { equivalent: &equivalent, missed: MISSED_OF_ATTENTION });
}

fn check(subjects: Vec<Given>, known: Known<'_>) {
    let subjects: Vec<Subject> = subjects.into_iter().map(Subject::on).collect();
    let subjects = std::sync::Mutex::new(subjects);
    let all = std::sync::Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while let Some(subject) = { subjects.lock().unwrap().pop() } {
                    all.lock().unwrap().extend(judge_all(known, &subject));
                }
            });
        }
    });
    let all = all.into_inner().unwrap();
    for Judged { subject, mutant, verdict, .. } in &all {
        println!("{subject} | {} | {} | {verdict:?}", mutant.change, mutant.line);
    }
    let (mut missed, mut excuses, mut unknown) = (0, BTreeSet::new(), Vec::new());
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for judged in &all {
        let Judged { subject, mutant, verdict, excuse } = judged;
        let text = format!("{subject}: {} of {}: {verdict:?}", mutant.change, mutant.line);
        match (verdict, excuse) {
            (Verdict::Reported(by, ..), None) if is_reported(judged) => {
                *counts.entry(by).or_default() += 1;
            }
            (Verdict::Silent, Some(row)) => {
                excuses.insert(*row);
            }
            _ => {
                missed += 1;
                if !is_known_miss(known, mutant) {
                    unknown.push(text);
                }
            }
        }
    }
    check_each(&all);
    let reported: usize = counts.values().sum();
    let equivalent = all.len() - reported - missed;
    println!("{} mutants: {counts:?}, {equivalent} equivalent, {missed} missed", all.len());
    assert_eq!(unknown, Vec::<String>::new());
    let idle: Vec<_> = (0..known.equivalent.len()).filter(|row| !excuses.contains(row)).collect();
    assert_eq!(idle, vec![], "rows that excuse nothing");
    assert!(reported * 100 >= 95 * (reported + missed), "{missed} of {} missed", all.len());
}

/// Of each kernel, 95 mutants in 100 are reported, or have wrong results.
fn check_each(all: &[Judged]) {
    let mut counts: BTreeMap<&str, (usize, usize)> = BTreeMap::new();
    for judged in
        all.iter().filter(|judged| judged.verdict != Verdict::Silent || judged.excuse.is_none())
    {
        let (told, count) = counts.entry(judged.subject).or_default();
        *told += usize::from(is_reported(judged) || judged.verdict == Verdict::Wrong);
        *count += 1;
    }
    println!("{counts:?}");
    let few: Vec<_> = counts.iter().filter(|(_, (told, count))| told * 100 < 95 * count).collect();
    assert!(few.is_empty(), "{few:?}");
}
