//! What plans say of launches is what is emitted, on fixtures, the zoo, exports and ONNX's node suite: grids, clusters, parts of a
//! depth, and how many launches there are. (What kernels request of memory, [`simulated`] counts.) And what planners took the
//! grids for is near what they are.

use crate::kernels::{TARGETS, simulated};
use crate::{fixtures, sizes, zoo};
use graphene_frontend::dim::Bindings;
use graphene_frontend::dtype::DType;
use graphene_frontend::graph::Graph;
use graphene_frontend::import::{ImportOptions, NoExternalData, import};
use graphene_frontend::text::parse;
use graphene_fusion::groups::Family;
use graphene_fusion::kernels::{Launch, first_alike, launches};
use graphene_fusion::program::{Origin, Step, StepId};
use graphene_fusion::{Granularity, Planned, plan_in};
use graphene_ir::emit::emit;
use graphene_ir::index::Var;
use graphene_ir::target::Target;
use std::collections::{BTreeMap, BTreeSet};
use std::io::Read;

/// What a launch is when it is emitted, at some sizes.
pub(crate) struct Emitted {
    entry: String,
    pub(crate) blocks: i64,
    pub(crate) threads: i64,
    cluster: i64,
    parts: i64,
}

pub(crate) fn emitted(launch: &Launch, sizes: &Bindings) -> Emitted {
    let kernel = emit(&launch.kernel).unwrap();
    let value = |var: &Var| {
        let place = kernel.launch.symbols.iter().position(|symbol| symbol == var)?;
        launch.symbols[place].eval(sizes).ok()
    };
    let cluster = i64::from(kernel.launch.cluster);
    Emitted {
        entry: kernel.launch.entry,
        blocks: kernel.launch.grid.value(&value).unwrap(),
        threads: i64::from(kernel.launch.block),
        cluster,
        // Only blocks that split a depth send each other what they have.
        parts: if kernel.source.contains("st.async.") { cluster } else { 1 },
    }
}

/// The launch of a step that binding takes at some sizes, and its variant's name; `None` for a call of a library.
fn chosen(
    planned: &Planned,
    step: &Step,
    target: &Target,
    sizes: &Bindings,
) -> Option<(Launch, &'static str)> {
    let all = step.variants.all();
    let number = all.iter().position(|variant| variant.when.holds(sizes).unwrap()).unwrap();
    let name = all[number].name;
    let mut launches =
        launches(&planned.program, step, target).ok().filter(|_| name != "library")?;
    Some((launches.swap_remove(number.min(launches.len() - 1)), name))
}

/// The models of ONNX's node suite that are imported without values.
fn node_suite() -> impl Iterator<Item = (String, Graph)> {
    let packed: &[u8] = include_bytes!("../../../frontend/tests/data/onnx-node-suite.tar.zst");
    let decoder = ruzstd::decoding::StreamingDecoder::new(packed).unwrap();
    let mut models = Vec::new();
    for entry in tar::Archive::new(decoder).entries().unwrap() {
        let mut entry = entry.unwrap();
        let path = entry.path().unwrap().display().to_string();
        if path.ends_with("model.onnx") {
            let mut bytes = Vec::new();
            entry.read_to_end(&mut bytes).unwrap();
            let imported = import(bytes.into(), &NoExternalData, &ImportOptions::default());
            models.extend(imported.ok().map(|imported| (path, imported.graph)));
        }
    }
    assert!(models.len() > 900, "{} models", models.len());
    models.into_iter()
}

fn models() -> impl Iterator<Item = (String, Graph)> {
    let fixtures = fixtures::ALL.map(|name| (name.to_owned(), fixtures::imported(name)));
    let exports = ["resnet-18", "llama"].map(|name| (name.to_owned(), zoo::exported(name)));
    // Norms that are spelled out are the same after rewriting.
    fixtures.into_iter().chain(zoo::imported().step_by(2)).chain(exports)
}

/// Plans by warps in half precision, by threads in single precision, and by warpgroups.
fn each_plan(graph: &Graph, hints: &Bindings, mut check: impl FnMut(&Planned, &Target)) {
    let half = Some(DType::F16);
    for (target, elements) in [("sm_80", half), ("sm_90a", None), ("sm_90a", half)] {
        let target = target.parse().unwrap();
        check(&plan_in(graph, &target, Granularity::Fused, hints, elements).unwrap(), &target);
    }
}

fn hinted(graph: &Graph, batch: i64, other: i64) -> Bindings {
    let size = |name: &str| if name.to_lowercase().contains("batch") { batch } else { other };
    let symbols: Vec<String> = graph.symbols().iter().map(|s| s.name().to_owned()).collect();
    sizes(&symbols.iter().map(|name| (&name[..], size(name))).collect::<Vec<_>>())
}

/// Compares a printed plan with what is emitted. Returns how many launches there are.
fn check_printed(name: &str, planned: &Planned, target: &Target, hints: &Bindings) -> usize {
    let Planned { graph, groups, program, .. } = planned;
    let text = groups.print(graph, program, target, hints);
    let (mut stated, mut several): (BTreeMap<usize, String>, _) =
        (BTreeMap::new(), BTreeMap::new());
    let mut step = 0;
    for line in text.lines() {
        if let Some(number) = line.strip_prefix('#') {
            step = number.split(' ').next().unwrap().parse().unwrap();
            if let Some((of, _)) = line.split_once(" launches from ") {
                let count: usize = of.rsplit(' ').next().unwrap().parse().unwrap();
                several.insert(step, count);
            }
        } else if let Some(launch) = line.strip_prefix("    launch: ") {
            let launch = launch.split("; they").next().unwrap().to_owned();
            assert_eq!(stated.insert(step, launch), None, "{name}\n{text}");
        }
    }
    assert_eq!(stated.len(), program.steps().len(), "{name}\n{text}");
    // Of steps that are alike the first one is looked at.
    let (mut count, first) = (0, first_alike(program));
    for (id, step) in program.step_ids().zip(program.steps()) {
        let stated = &stated[&id.index()];
        if let Origin::Group(group) = step.origin {
            let before = |other: &&Step| other.origin == Origin::Before(group);
            let copies = program.steps().iter().filter(before).count();
            let said = several.get(&id.index()).copied();
            assert_eq!(said, (copies > 0).then_some(copies + 1), "{name}: {id}\n{text}");
        }
        if first[id.index()] != id {
            count += usize::from(stated.contains("block"));
            continue;
        }
        let Some((launch, variant)) = chosen(planned, step, target, hints) else {
            assert!(!stated.contains("block"), "{name}: {id}\n{text}");
            continue;
        };
        if stated == "nothing" {
            continue;
        }
        let Emitted { entry, blocks, threads, cluster, parts } = emitted(&launch, hints);
        let mut is = entry;
        if variant != "any" {
            is += &format!(" ({variant})");
        }
        is +=
            &format!(", {blocks} block{} of {threads} threads", if blocks == 1 { "" } else { "s" });
        if cluster > 1 {
            is += &format!(" in clusters of {cluster}");
        }
        if parts > 1 {
            is += &format!(", which add up {parts} parts of each result");
        }
        assert_eq!(*stated, is, "{name} on {target}: {id}\n{text}");
        if let Some(split) = variant.strip_prefix("split") {
            let single = launch.kernel.cluster_size().unwrap() == 1;
            assert!(single || split.parse() == Ok(parts), "{name} on {target}: {id}\n{text}");
        }
        count += 1;
    }
    count
}

#[test]
fn printed_launches_are_those_that_are_emitted() {
    let mut count = 0;
    for (name, graph) in models() {
        let hints = hinted(&graph, 1, 16);
        each_plan(&graph, &hints, |planned, target| {
            count += check_printed(&name, planned, target, &hints)
        });
    }
    assert!(count > 1000, "{count}");
}

#[test]
fn printed_launches_of_the_node_suite_are_those_that_are_emitted() {
    let (mut count, mut known) = (0, BTreeSet::new());
    for (name, graph) in node_suite() {
        let hints = hinted(&graph, 2, 3);
        for target in TARGETS {
            let target = target.parse().unwrap();
            let planned = plan_in(&graph, &target, Granularity::Fused, &hints, None).unwrap();
            count += check_printed(&name, &planned, &target, &hints);
            for step in planned.program.steps() {
                let Some((launch, _)) = chosen(&planned, step, &target, &hints) else { continue };
                let launched = launch.at("any", &hints).unwrap();
                let few = launched.requested(1 << 14).is_some();
                if few && known.insert(format!("{} {:?}", launched.kernel, launched.symbols)) {
                    simulated(
                        &format!("{name} on {target}: {}", step.name),
                        &planned.program,
                        step,
                        &launch,
                        &hints,
                    );
                }
            }
        }
    }
    assert!(count > 1000 && known.len() > 300, "{count} {}", known.len());
}

/// Attention of one query of each head, of which `group` share keys.
fn one_query(group: i64) -> Graph {
    let text = format!(
        r#"
        symbols batch, t
        %0 = Input : f32[batch, 12, 1, 64] "queries"
        %1 = Input : f32[batch, {}, t, 64] "keys"
        %2 = Attention(%0, %1, %1) {{scale: 0.125, causal: false, softcap: 0, guarded: false}} : f32[batch, 12, 1, 64] "attention"
        return "y" = %2
    "#,
        12 / group
    );
    parse(&text, &[]).unwrap()
}

#[test]
fn printed_launches_of_one_query_are_those_that_are_emitted() {
    for (group, batch, keys) in [(1, 1, 1024), (1, 8, 1024), (1, 1, 100), (4, 3, 1023), (6, 1, 512)]
    {
        let (graph, name) = (one_query(group), format!("{group} heads, {batch}, {keys}"));
        let hints = hinted(&graph, batch, keys);
        let mut names = Vec::new();
        each_plan(&graph, &hints, |planned, target| {
            check_printed(&name, planned, target, &hints);
            let mut steps = planned.program.steps().iter();
            let step = steps.find(|step| step.family == Family::Fmha).unwrap();
            names.push(chosen(planned, step, target, &hints).unwrap().1);
        });
        let wanted = match (group, batch, keys) {
            (1 | 4, 1 | 3, 1023..) => ["decode1", "decode8", "decode8"],
            (1, 8, _) => ["decode1", "decode2", "decode2"],
            (1, ..) => ["any", "decode1", "decode1"],
            _ => ["any", "any", "decode"],
        };
        assert_eq!(names, wanted, "{name}");
    }
}

/// How many times as many cores a planner takes a launch to fill as it does, or the other way round.
const NEAR: f64 = 2.0;

/// Blocks up to which launches take as long as launches do, however many they are.
const FEW: f64 = 8.0;

/// The launches of plans that fill other parts of the cores than planners take them to, each kind once; and how many were asked.
fn far(graphs: impl Iterator<Item = (String, Graph)>, batches: &[i64]) -> (Vec<String>, usize) {
    let mut far: BTreeMap<String, String> = BTreeMap::new();
    let mut count = 0;
    for (name, graph) in graphs {
        for &batch in batches {
            let hints = hinted(&graph, batch, 128);
            each_plan(&graph, &hints, |planned, target| {
                let first = first_alike(&planned.program);
                let mut launched: BTreeMap<StepId, Option<_>> = BTreeMap::new();
                for (id, step) in planned.program.step_ids().zip(planned.program.steps()) {
                    let Origin::Group(group) = step.origin else { continue };
                    let group = &planned.groups.groups()[group.index()];
                    let Some(cost) = group.cost else { continue };
                    let launched = launched.entry(first[id.index()]).or_insert_with(|| {
                        let (launch, variant) = chosen(planned, step, target, &hints)?;
                        let blocks = launch.at(variant, &hints).unwrap().blocks;
                        Some((launch.kernel.name, variant, blocks))
                    });
                    let Some((kernel, variant, blocks)) = &*launched else { continue };
                    let blocks = *blocks;
                    count += 1;
                    let cores = f64::from(target.cores);
                    let [taken, is] =
                        [cost.blocks, blocks as f64].map(|blocks| blocks.clamp(1.0, cores));
                    if taken.max(is) > FEW && taken.max(is) > NEAR * taken.min(is) {
                        let kind = format!("{} {kernel}", group.family);
                        let taken = cost.blocks;
                        let line = format!(
                            "{taken} for {blocks} ({variant}): {name} of {batch}, on {target}: {}",
                            step.name
                        );
                        println!("{kind}: {line}");
                        far.entry(format!("{kind} {}", taken > blocks as f64)).or_insert(line);
                    }
                }
            });
        }
    }
    (far.into_iter().map(|(kind, line)| format!("{kind}: {line}")).collect(), count)
}

#[test]
fn planners_take_grids_for_what_they_are() {
    let (mut far, count) = far(models(), &[1, 64]);
    // Planners do not know of channels that will be innermost, along which the means of a ResNet's images are columns.
    far.retain(|line| !(line.starts_with("Reduction reduce") && line.contains(": resnet-18 of ")));
    assert!(far.is_empty() && count > 500, "{far:#?} of {count}");
}

#[test]
fn planners_take_grids_of_the_node_suite_for_what_they_are() {
    let (far, count) = far(node_suite(), &[2]);
    assert!(far.is_empty() && count > 1000, "{far:#?} of {count}");
}

/// What models have few of: few long rows, columns, running sums, tables without norms, depths that are split.
#[test]
fn planners_take_grids_of_odd_shapes_for_what_they_are() {
    let rows = [
        ("f32[1, 262147]", "Softmax(%0) {axis: 1}", "f32[1, 262147]"),
        ("f16[4, 65536]", "Softmax(%0) {axis: 1}", "f16[4, 65536]"),
        ("f32[8, 50257]", "LogSoftmax(%0) {axis: 1}", "f32[8, 50257]"),
        ("f32[32, 20000]", "LogSoftmax(%0) {axis: 1}", "f32[32, 20000]"),
        ("f32[512, 96]", "Softmax(%0) {axis: 1}", "f32[512, 96]"),
        ("f32[64, 128, 8]", "Softmax(%0) {axis: 1}", "f32[64, 128, 8]"),
        ("f32[2, 262144]", "ReduceSum(%0) {axes: [1], keep: true}", "f32[2, 1]"),
        ("f32[1, 262147]", "ReduceMax(%0) {axes: [1], keep: false}", "f32[1]"),
        ("f32[16384, 128]", "ReduceSum(%0) {axes: [0], keep: false}", "f32[128]"),
        ("f16[8, 512, 768]", "ReduceMean(%0) {axes: [1], keep: false}", "f16[8, 768]"),
        ("f32[8, 512, 64]", "ReduceMean(%0) {axes: [0, 2], keep: false}", "f32[512]"),
        ("f32[4096, 8]", "ReduceMax(%0) {axes: [1], keep: true}", "f32[4096, 1]"),
        (
            "f32[256, 1024]",
            "CumSum(%0) {axis: 1, exclusive: false, reverse: false}",
            "f32[256, 1024]",
        ),
        ("f16[8, 3]", "Tanh(%0)", "f16[8, 3]"),
        ("f16[1024, 1000]", "Tanh(%0)", "f16[1024, 1000]"),
        ("f16[16, 4096]", "MatMul(%0, %1)", "f16[16, 1024]"),
        ("f16[64, 512, 64]", "MatMul(%0, %1)", "f16[64, 512, 1024]"),
    ];
    let graphs = rows.into_iter().map(|(of, op, to)| {
        let (depth, dtype) = (of.trim_end_matches(']').rsplit(", ").next().unwrap(), &of[..3]);
        let weights = match op.starts_with("MatMul") {
            true => format!("%1 = Input : {dtype}[{depth}, 1024] \"w\"\n"),
            false => String::new(),
        };
        let made = if weights.is_empty() { 1 } else { 2 };
        let text = format!(
            "%0 = Input : {of} \"x\"\n{weights}%{made} = {op} : {to} \"y\"\nreturn \"y\" = %{made}"
        );
        (text.clone(), parse(&text, &[]).unwrap_or_else(|error| panic!("{error}\n{text}")))
    });
    let (odd, mut count) = far(graphs, &[1]);
    assert!(odd.is_empty(), "{odd:#?}");
    let graphs = [1, 4, 6].map(|group| (format!("{group} heads"), one_query(group)));
    let (far, more) = far(graphs.into_iter(), &[1, 8, 64]);
    count += more;
    assert!(far.is_empty() && count > 40, "{far:#?} of {count}");
}
