//! Kernels are trees: every spec with a body says what it computes, the outermost included, and there are the levels that the
//! head of its template lists, and no others.

use crate::kernels::TARGETS;
use crate::zoo;
use graphene_frontend::dim::Bindings;
use graphene_frontend::dtype::DType;
use graphene_frontend::graph::Graph;
use graphene_fusion::kernels::launches;
use graphene_fusion::{Granularity, plan_in};
use graphene_ir::arch::Arch;
use graphene_ir::emit::emit;
use graphene_ir::function::Function;
use graphene_ir::kernel::{Kernel, Kind, Number, Operand, Spec, Stmt, Term, Unary};
use graphene_ir::target::Target;
use graphene_ir::template::access::Access;
use graphene_ir::template::conv::{ChannelsLast, Conv, Convolution, Fold, Sliding};
use graphene_ir::template::epilogue::Epilogue;
use graphene_ir::template::fmha::{Fmha, Mask};
use graphene_ir::template::gather::embedding;
use graphene_ir::template::gemm::Gemm;
use graphene_ir::template::matmul::{Edges, MatMul};
use graphene_ir::template::mlp::{Layer, Mlp, Warpgroups};
use graphene_ir::template::multistage::Multistage;
use graphene_ir::template::parts::{Part, Parts, Source};
use graphene_ir::template::recurrent::{Cell, Direction, Recurrent};
use graphene_ir::template::reduce::Reduce;
use graphene_ir::template::scan::Scan;
use graphene_ir::template::transpose::Transpose;
use graphene_ir::tensor::{Memory, Scalar};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// Which file heads the template of the kernels of a name; there are two templates of `mlp`.
const HEADS: [(&str, &str); 22] = [
    ("conv", "conv.rs"),
    ("conv_channels_last", "conv/channels_last.rs"),
    ("depthwise", "conv/channelwise.rs"),
    ("filled", "conv/filled.rs"),
    ("fmha", "fmha.rs"),
    ("fmha_decode", "fmha/decode.rs"),
    ("folds", "folds.rs"),
    ("gemm", "gemm.rs"),
    ("mlp by warps", "mlp.rs"),
    ("mlp by warpgroups", "mlp/warpgroups.rs"),
    ("mma", "multistage.rs"),
    ("parts", "parts.rs"),
    ("pointwise", "pointwise.rs"),
    ("pooled", "conv/channelwise.rs"),
    ("recurrent", "recurrent.rs"),
    ("reduce", "reduce.rs"),
    ("rows", "rows.rs"),
    ("scan", "scan.rs"),
    ("simt", "multistage.rs"),
    ("sliding", "conv/sliding.rs"),
    ("transpose", "transpose.rs"),
    ("wgmma", "multistage.rs"),
];

/// What heads call threads that work together, by the name of their tensor.
const AGENTS: [(&str, &str); 5] = [
    ("block", "by a block"),
    ("one", "by a thread"),
    ("own", "by a warpgroup"),
    ("own_team", "by a team"),
    ("warp", "by a warp"),
];

/// The head of a kernel's template.
fn head(kernel: &Kernel) -> &'static str {
    let name = match kernel.name.as_str() {
        "mlp" if emit(kernel).unwrap().source.contains("wgmma") => "mlp by warpgroups",
        "mlp" => "mlp by warps",
        name => name,
    };
    HEADS.iter().find(|row| row.0 == name).unwrap_or_else(|| panic!("{name} has no head")).1
}

fn templates() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../graphene/src/template")
}

/// The levels that a head lists, each behind those around it: items of a nested list, which begin as [`level`] says.
fn listed(head: &str) -> BTreeSet<String> {
    let text = fs::read_to_string(templates().join(head)).unwrap();
    let list = text.lines().skip_while(|line| *line != "//! Levels:").skip(2);
    let (mut around, mut all) = (Vec::new(), BTreeSet::new());
    for line in list.map_while(|line| line.strip_prefix("//! ")) {
        if let Some((indent, item)) = line.split_once("- ")
            && indent.trim().is_empty()
        {
            around.truncate(indent.len() / 2);
            around.push(item.split(':').next().unwrap());
            assert!(all.insert(around.join(" > ")), "{head} lists twice: {item}");
        }
    }
    all
}

/// What heads call a spec within the outermost one: what it does, by where its operands lie, and who does it. The table of
/// these names is in `graphene/src/template.rs`.
fn level(kernel: &Kernel, spec: &Spec) -> String {
    let among = |operands: &[Operand], memory| {
        operands.iter().any(|of| kernel.tensor(of.tensor).memory == memory)
    };
    let [to_global, to_shared] =
        [Memory::Global, Memory::Shared].map(|memory| among(&spec.outs, memory));
    let [global, shared, registers] =
        [Memory::Global, Memory::Shared, Memory::Registers].map(|memory| among(&spec.ins, memory));
    let several = !kernel.threads(spec.blocks).view.size().is(1);
    if to_global && several {
        return if kernel.cooperative() { "step" } else { "cluster" }.to_owned();
    }
    let threads = kernel.threads_name(spec.threads);
    let name = threads.trim_end_matches(|c: char| c == '_' || c.is_ascii_digit());
    let agents = AGENTS.iter().find(|row| row.0 == name);
    let agents = agents.unwrap_or_else(|| panic!("who is #{threads}?\n{}", kernel.tree())).1;
    let name = match () {
        () if to_global && (registers || shared && !global) => "epilogue",
        () if shared && (to_global || to_shared) => "layer",
        () if to_global && agents == "by a thread" => "item",
        () if to_global => "tile",
        () if !to_shared && global && reduces(&spec.kind) => "reduction",
        () if !to_shared && shared && reduces(&spec.kind) => "stage",
        () if to_shared || global || shared && spec.kind == Kind::Move => "load",
        () => "registers",
    };
    format!("{name} {agents}")
}

/// Whether a spec adds up or folds.
fn reduces(kind: &Kind) -> bool {
    let is = |term: &Term| matches!(term, Term::MatMul(..) | Term::Fold(..));
    kind.meaning(&[], &[]).is_some_and(|fused| fused.steps().iter().any(is))
}

/// The levels of some statements, each behind those around it.
fn levels(kernel: &Kernel, stmts: &[Stmt], around: &str, found: &mut BTreeSet<String>) {
    for stmt in stmts {
        let mut inner = around.to_owned();
        if let Stmt::Spec(spec) = stmt
            && spec.body.is_some()
        {
            check_typed(kernel, spec);
            inner = format!("{around} > {}", level(kernel, spec));
            found.insert(inner.clone());
        }
        levels(kernel, stmt.body(), &inner, found);
    }
}

/// A spec says what it computes.
fn check_typed(kernel: &Kernel, spec: &Spec) {
    assert!(spec.kind.meaning(&[], &[]).is_some(), "{}:\n{}", spec.kind, kernel.tree());
}

/// The kernels of a model of single precision for all targets, as it is and in half precision. Every step has some.
fn kernels(graph: &Graph) -> Vec<Kernel> {
    let mut all = Vec::new();
    for (target, elements) in TARGETS.iter().flat_map(|to| [(to, None), (to, Some(DType::F16))]) {
        let (target, hints) = (target.parse::<Target>().unwrap(), Bindings::new());
        let planned = plan_in(graph, &target, Granularity::Fused, &hints, elements).unwrap();
        for step in planned.program.steps() {
            let launches = launches(&planned.program, step, &target);
            let launches = launches.unwrap_or_else(|refusal| panic!("{}: {refusal}", step.name));
            all.extend(launches.into_iter().map(|launch| launch.kernel));
        }
    }
    all
}

/// Kernels of elements, rows and windows with parameters that those models do not have.
fn of_elements() -> Vec<graphene_ir::Result<Kernel>> {
    let part = |source| Part { source, to: Access::packed(Scalar::I64, 2), vector: 1 };
    let parts = [Source::Filled(Number(0.0)), Source::Counted].map(part).to_vec();
    let epilogue = Epilogue::layer(false, Some(Unary::Relu), false);
    let convolution = Convolution { epilogue, ..Convolution::default() };
    let sliding = |fold, group| {
        let convolution = Convolution { group, ..convolution.clone() };
        Sliding { convolution, fold, ..Sliding::default() }
    };
    let split = ChannelsLast { arch: Arch::Sm90a, split: 2, ..ChannelsLast::default() };
    vec![
        Reduce { finish: Reduce::mean(), ..Reduce::default() }.kernel(),
        Scan::default().kernel(),
        Transpose::default().kernel(),
        embedding(Scalar::F16, Scalar::I64).kernel(),
        Parts { parts, ..Parts::default() }.kernel(),
        sliding(Fold::Weighted, 64).kernel(),
        sliding(Fold::Transposed, 1).kernel(),
        sliding(Fold::Mean, 64).kernel(),
        Sliding { channels_last: true, ..sliding(Fold::Sum, 64) }.kernel(),
        Sliding { channels_last: true, pixels: 4, ..sliding(Fold::Weighted, 64) }.kernel(),
        Conv { pixels: Edges::Moves, convolution: convolution.clone(), ..Conv::default() }.kernel(),
        ChannelsLast { convolution, ..split }.kernel(),
    ]
}

/// Kernels of matmuls, attention and layers with such parameters.
fn of_matmuls() -> Vec<graphene_ir::Result<Kernel>> {
    let epilogue = Epilogue::layer(true, Some(Unary::Gelu), true);
    let matmul = MatMul { epilogue, ..MatMul::default() };
    let gemm = Gemm { matmul: matmul.clone(), ..Gemm::default() };
    let split = Multistage { arch: Arch::Sm90a, split: 2, ..Multistage::mma() };
    let single = MatMul { scalar: Scalar::F32, ..matmul.clone() };
    let fmha = Fmha::default();
    let of_single = Fmha { scalar: Scalar::F32, keys: 32, ..fmha.clone() };
    let mask = |mask| Fmha { mask, ..fmha.clone() };
    let alike = Mlp { x: Some(Scalar::F32), ..Mlp::alike(3, Layer::default()) };
    let small = Recurrent { inputs: 64, hidden: 64, depth: 32, stages: 2, ..Recurrent::default() };
    let recurrent = Recurrent { slices: 1, rows: 16, warps: [1, 1], ..small };
    let recurrent = Recurrent { initial: [true, false], ..recurrent };
    let tanh = Function::identity().unary(Unary::Tanh);
    let (cell, results) = (Cell::gru_reset_first(&tanh, &tanh), [true, true, false]);
    let reset = Recurrent { cell, results, ..recurrent.clone() };
    let ragged = Recurrent { ragged: true, direction: Direction::Both, ..recurrent.clone() };
    vec![
        Gemm { ping_pong: true, ..gemm.clone() }.kernel(),
        Gemm { edges: Edges::Moves, ..gemm.clone() }.kernel(),
        Gemm { split: 2, ..gemm.clone() }.kernel(),
        Gemm { cluster: 2, ..gemm }.kernel(),
        Multistage { matmul, ..split }.kernel(),
        Multistage { matmul: single, ..Multistage::simt() }.kernel(),
        alike.kernel(),
        Warpgroups { consumers: 1, stages: 4 }.kernel(&alike),
        mask(Mask::PerKey(Scalar::F32)).kernel(),
        mask(Mask::Dense(Scalar::F32)).kernel(),
        mask(Mask::PerKey(Scalar::U8)).ampere(),
        mask(Mask::Dense(Scalar::F32)).ampere(),
        of_single.ampere(),
        Fmha { tf32: true, ..of_single }.ampere(),
        fmha.clone().ahead().decode(),
        Fmha { arch: Arch::Sm90a, parts: 8, ..mask(Mask::Dense(Scalar::U8)) }.ahead().decode(),
        recurrent.kernel(),
        Recurrent { units: 16, ..reset }.kernel(),
        Recurrent { resident: [false; 2], ..ragged }.kernel(),
    ]
}

#[test]
fn kernels_have_the_levels_that_heads_list() {
    let zoo = ["bert-base", "mlp", "lstm", "albert-base"].map(zoo::named);
    let exports = ["resnet-18", "llama"].map(zoo::exported);
    let models = zoo.iter().chain(&exports).flat_map(kernels);
    let variants = of_elements().into_iter().chain(of_matmuls()).map(Result::unwrap);
    let mut all = BTreeMap::from(HEADS.map(|(_, head)| (head, BTreeSet::new())));
    for kernel in models.chain(variants) {
        check_typed(&kernel, &kernel.spec);
        let found = all.get_mut(head(&kernel)).unwrap();
        found.insert("kernel".to_owned());
        levels(&kernel, kernel.spec.body.as_deref().unwrap(), "kernel", found);
    }
    let differ = all.iter().filter_map(|(head, found)| {
        let listed = listed(head);
        let only = |of: &BTreeSet<String>, than: &BTreeSet<String>| {
            Vec::from_iter(of.difference(than).cloned()).join("\n  ")
        };
        let (unlisted, absent) = (only(found, &listed), only(&listed, found));
        (*found != listed)
            .then(|| format!("{head} does not list\n  {unlisted}\nno kernel has\n  {absent}\n"))
    });
    let differ = String::from_iter(differ);
    assert!(differ.is_empty(), "{differ}");
}

#[test]
fn all_lists_of_levels_are_compared() {
    let folders = ["", "conv", "fmha", "mlp"].map(|folder| templates().join(folder));
    let files = folders.iter().flat_map(|folder| fs::read_dir(folder).unwrap());
    let files = files.map(|file| file.unwrap().path()).filter(|path| path.is_file());
    let heads = files.filter(|path| fs::read_to_string(path).unwrap().contains("//! Levels:"));
    let name = |path: PathBuf| path.strip_prefix(templates()).unwrap().display().to_string();
    let compared = HEADS.map(|row| row.1.to_owned());
    assert_eq!(BTreeSet::from_iter(heads.map(name)), BTreeSet::from(compared));
}
