//! NVRTC takes what is emitted: the kernels that try the atoms, the paper's figures and the templates, for
//! architectures that they are for: of each template one kernel for every target, and all of BERT-base's; others for one with
//! warpgroups and one without. What NVRTC does not compile for is reported as ignored.
//!
//! NVRTC compiles one program at a time in a process: each trial runs in one of its own.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::{env, fs};

use bytes::Bytes;
use graphene_frontend::dim::Bindings;
use graphene_frontend::dtype::DType;
use graphene_frontend::import::{ExternalData, ExternalDataError, ImportOptions, import};
use graphene_fusion::kernels::launches;
use graphene_fusion::{Granularity, plan_in};
use graphene_ir::Target;
use graphene_ir::arch::{Arch, Feature};
use graphene_ir::atom;
use graphene_ir::emit::emit;
use graphene_ir::function::Function;
use graphene_ir::kernel::{Binary, Kernel, Number, Unary};
use graphene_ir::template::access::Access;
use graphene_ir::template::conv::{Axis, By, ChannelsLast, Conv, Convolution, Fold, Sliding};
use graphene_ir::template::epilogue::Epilogue;
use graphene_ir::template::fmha::{Fmha, Mask};
use graphene_ir::template::folds::Folds;
use graphene_ir::template::gather::{Place, embedding, gather};
use graphene_ir::template::gemm::Gemm;
use graphene_ir::template::matmul::{Edges, MatMul};
use graphene_ir::template::mlp::{Layer, Mlp, Warpgroups};
use graphene_ir::template::multistage::Multistage;
use graphene_ir::template::pointwise::Pointwise;
use graphene_ir::template::recurrent::{Cell, Direction, Recurrent};
use graphene_ir::template::reduce::Reduce;
use graphene_ir::template::rows::{Norm, Rows};
use graphene_ir::template::transpose::Transpose;
use graphene_ir::tensor::Scalar;
use graphene_ir::text::parse_all;
use graphene_runtime::device::{Library, compile, compile_ptx, compiles_for};
use libtest_mimic::{Arguments, Failed, Trial};

/// Set where a trial runs in a process of its own.
const APART: &str = "GRAPHENE_EMITTED_APART";

type Make = Arc<dyn Fn() -> graphene_ir::Result<Kernel> + Send + Sync>;

fn main() {
    libtest_mimic::run(&Arguments::from_args(), trials()).exit();
}

fn trials() -> Vec<Trial> {
    let mut trials = Vec::new();
    add_ptx(&mut trials);
    for (name, kernel) in written() {
        let needs = atom::features(&kernel).expect("its architecture has its atoms");
        let own = kernel.arch;
        let tried = |arch: Arch| arch == own || WITH_AND_WITHOUT_WARPGROUPS.contains(&arch);
        let exists = |arch: Arch| tried(arch) && arch.needs(&needs).is_ok();
        add(&mut trials, &name, exists, Arc::new(move || Ok(kernel.clone())));
    }
    for (arch, name) in Arch::ALL {
        for (kind, kernel) in templates(arch) {
            add(&mut trials, &format!("one_{kind}"), |other| other == arch, kernel);
        }
        for half in [true, false] {
            let model = format!("bert_base_{}::{name}", if half { "f16" } else { "f32" });
            trial(&mut trials, model, arch, move || check_bert_base(arch, half));
        }
    }
    let later = |arch: Arch| WITH_AND_WITHOUT_WARPGROUPS.contains(&arch);
    add(&mut trials, "pointwise", later, Arc::new(|| Pointwise::default().kernel()));
    add(&mut trials, "pointwise_all", later, Arc::new(|| all_functions().kernel()));
    add(&mut trials, "transpose", later, Arc::new(|| Transpose::default().kernel()));
    for (name, reduce) in reductions() {
        add(&mut trials, name, later, Arc::new(move || reduce.kernel()));
    }
    for (name, rows) in rows() {
        add(&mut trials, name, later, Arc::new(move || rows.kernel()));
    }
    for (a, b) in [(false, false), (false, true), (true, false), (true, true)] {
        let matmul = MatMul { a_transposed: a, b_transposed: b, ..MatMul::default() };
        let layout = format!("{}{}", if a { 't' } else { 'n' }, if b { 't' } else { 'n' });
        matmuls(&mut trials, &layout, &matmul);
    }
    let epilogue = Epilogue::layer(true, Some(Unary::Gelu), true);
    matmuls(&mut trials, "layer", &MatMul { epilogue, ..MatMul::default() });
    matmuls(&mut trials, "gated", &MatMul::gated(Unary::Silu));
    matmuls(&mut trials, "two", &MatMul { terms: 2, batched: true, ..MatMul::default() });
    for arch in WITH_AND_WITHOUT_WARPGROUPS {
        for (name, mlp) in layers(arch) {
            add(&mut trials, &name, |other| other == arch, Arc::new(move || mlp.kernel()));
        }
    }
    for (name, mlp) in layers_by_warpgroups() {
        let kernel = move || Warpgroups::fitting(&mlp, 2).kernel(&mlp);
        add(&mut trials, &name, |other| other == Arch::Sm90a, Arc::new(kernel));
    }
    for (name, folds) in folds() {
        add(&mut trials, name, later, Arc::new(move || folds.kernel()));
    }
    for (name, conv) in convolutions() {
        add(&mut trials, name, later, Arc::new(move || conv.kernel()));
    }
    for (name, conv) in channels_last() {
        add(&mut trials, name, later, Arc::new(move || conv.kernel()));
    }
    for (name, sliding) in windows() {
        add(&mut trials, name, later, Arc::new(move || sliding.kernel()));
    }
    for (name, layer) in recurrent_layers() {
        let name = format!("recurrent_{name}");
        let bytes = layer.shared_bytes();
        let fits = move |arch: Arch| later(arch) && bytes <= arch.shared_memory();
        add(&mut trials, &name, fits, Arc::new(move || layer.kernel()));
    }
    for (name, fmha) in decoding() {
        let exists = |arch: Arch| arch.has(Feature::Cluster);
        let of = move || Fmha { arch: Arch::Sm90a, ..fmha.clone() }.ahead().decode();
        add(&mut trials, &format!("fmha_decode_{name}"), exists, Arc::new(of));
    }
    for (name, fmha) in attention() {
        let name = format!("fmha_{name}");
        let head = fmha.head_dim.max(fmha.value_dim);
        let wide = head > 128;
        let ampere = Fmha { keys: 64, consumers: 1, ..fmha.clone() };
        let keys = if head <= 64 { 64 } else { 32 };
        let single = Fmha { scalar: Scalar::F32, keys, ..ampere.clone() };
        let hopper = |arch: Arch| arch.has(Feature::Wgmma);
        add(&mut trials, &name, hopper, Arc::new(move || fmha.kernel()));
        if wide {
            // Warps that hold their queries and such sums in registers spill some of them.
            continue;
        }
        let name = format!("{name}_ampere");
        add(&mut trials, &name, |arch| arch == Arch::Sm80, Arc::new(move || ampere.ampere()));
        if single.mask == Mask::None || single.mask == Mask::PerKey(Scalar::F32) {
            let rounded = Fmha { tf32: true, keys: 32, ..single.clone() };
            let tf32 = format!("{name}_tf32");
            add(&mut trials, &tf32, |arch| arch == Arch::Sm80, Arc::new(move || rounded.ampere()));
            let name = format!("{name}_single");
            add(&mut trials, &name, |arch| arch == Arch::Sm80, Arc::new(move || single.ampere()));
        }
    }
    trials
}

/// What kernels are compiled for of which others are compiled for every target.
const WITH_AND_WITHOUT_WARPGROUPS: [Arch; 2] = [Arch::Sm80, Arch::Sm90a];

/// A kernel of each template that all targets have, in half and in single precision where it multiplies. None is made yet: each
/// trial's process lists all trials.
fn templates(arch: Arch) -> Vec<(&'static str, Make)> {
    let single = |matmul: &MatMul| MatMul { scalar: Scalar::F32, ..matmul.clone() };
    let epilogue = Epilogue::layer(true, Some(Unary::Gelu), true);
    let matmul = MatMul { b_transposed: true, epilogue, ..MatMul::default() };
    let simt = Multistage { matmul: single(&matmul), arch, stages: 2, ..Multistage::simt() };
    let whole = MatMul { scalar: Scalar::I32, b_transposed: true, ..MatMul::default() };
    let integers = Multistage { matmul: whole, ..simt.clone() };
    let mma = Multistage { matmul, arch, stages: 2, ..Multistage::mma() };
    let moves = Multistage { edges: Edges::Moves, ..mma.clone() };
    let fmha = Fmha { arch, consumers: 1, keys: 64, ..Fmha::default() };
    let mut of_single = Fmha { scalar: Scalar::F32, ..fmha.clone() };
    while of_single.ampere_bytes() > arch.shared_memory().unsigned_abs() {
        of_single.keys -= 16;
    }
    let parts = if arch.has(Feature::Cluster) { 8 } else { 1 };
    let decode = Fmha { parts, ..fmha.clone() }.ahead();
    let conv = Conv { arch, stages: 2, tile: [64, 128], ..Conv::default() };
    let by_threads = Conv {
        convolution: Convolution { scalar: Scalar::F32, ..Convolution::default() },
        by: By::Threads([4, 4]),
        tile: [64, 64],
        warps: 8,
        depth: 16,
        ..conv.clone()
    };
    let last = ChannelsLast { arch, stages: 2, ..ChannelsLast::default() };
    let mlp = Mlp { arch, ..Mlp::alike(4, Layer::default()) }.fitting(32, arch.shared_memory());
    let layer = Recurrent { arch, inputs: 64, hidden: 64, ..Recurrent::default() };
    let means = Reduce { arch, finish: Reduce::mean(), ..Reduce::default() };
    let softmax = Rows { norm: Norm::Softmax, scale: None, shift: None, ..Rows::default() };
    let words = || Access::packed(Scalar::F32, 2);
    let log = Rows { norm: Norm::LogSoftmax, ins: vec![words()], out: words(), ..softmax.clone() };
    let long = move |columns, vector| {
        let log = log.clone();
        lazily(move || Rows { arch, vector, ..log.clone() }.fitting(columns).kernel())
    };
    let single_decode = Fmha { scalar: Scalar::F32, ..decode.clone() };
    vec![
        ("mma", lazily(move || mma.kernel())),
        ("mma_moves", lazily(move || moves.kernel())),
        ("simt", lazily(move || simt.kernel())),
        ("simt_integers", lazily(move || integers.kernel())),
        ("fmha", lazily(move || fmha.ampere())),
        ("fmha_single", lazily(move || of_single.ampere())),
        ("fmha_decode", lazily(move || decode.decode())),
        ("fmha_decode_single", lazily(move || single_decode.clone().ahead().decode())),
        ("conv", lazily(move || conv.kernel())),
        ("conv_simt", lazily(move || by_threads.kernel())),
        ("conv_channels_last", lazily(move || last.kernel())),
        ("sliding", lazily(move || Sliding { arch, ..Sliding::default() }.kernel())),
        ("mlp", lazily(move || mlp.clone().and_then(|mlp| mlp.kernel()))),
        ("recurrent", lazily(move || layer.kernel())),
        ("norm", lazily(move || Rows { arch, ..Rows::default() }.kernel())),
        ("softmax", lazily(move || Rows { arch, ..softmax.clone() }.kernel())),
        ("log_softmax_odd", long(50257, 1)),
        ("log_softmax_long", long(32000, 4)),
        ("reduce", lazily(move || means.kernel())),
        ("folds", lazily(move || Folds { arch, ..Folds::default() }.kernel())),
        ("pointwise", lazily(move || Pointwise { arch, ..Pointwise::default() }.kernel())),
        ("transpose", lazily(move || Transpose { arch, ..Transpose::default() }.kernel())),
    ]
}

fn lazily(make: impl Fn() -> graphene_ir::Result<Kernel> + Send + Sync + 'static) -> Make {
    Arc::new(make)
}

/// Weights that are all zero: plans do not look at them.
struct Zeros(Bytes);

impl ExternalData for Zeros {
    fn read(&self, _: &str, _: u64, length: Option<u64>) -> Result<Bytes, ExternalDataError> {
        Ok(self.0.slice(..length.unwrap_or(0) as usize))
    }
}

/// All kernels of BERT-base compile for a target. Registers may be spilled: on sm_70 a matmul of single precision lacks some.
fn check_bert_base(arch: Arch, half: bool) -> Result<(), Failed> {
    let target: Target = arch.name().parse()?;
    let model = graphene_models::build("bert-base", &graphene_models::Options::default())?;
    let zeros = Zeros(Bytes::from(vec![0; 1 << 27]));
    let graph = import(model.encode(), &zeros, &ImportOptions::default())?.graph;
    let elements = half.then_some(DType::F16);
    let planned = plan_in(&graph, &target, Granularity::Fused, &Bindings::new(), elements)?;
    let mut sources = BTreeSet::new();
    for step in planned.program.steps() {
        let step_launches = launches(&planned.program, step, &target);
        for launch in step_launches.map_err(|why| format!("{}: {why}", step.name))? {
            sources.insert(emit(&launch.kernel)?.source);
        }
    }
    if sources.len() < 5 {
        return Err(Failed::from(format!("only {} kernels", sources.len())));
    }
    for source in sources {
        compile(&source, arch, "kernel.cu")?;
    }
    Ok(())
}

/// The kernels that try the atoms, and the paper's figures, with names.
fn written() -> BTreeMap<String, Kernel> {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("../graphene/tests");
    let atoms = fs::read_dir(tests.join("atoms")).expect("graphene's tests are beside the runtime");
    let figures = ["figure_1", "quad_pairs", "gemm", "fireiron"];
    let figures = figures.map(|name| tests.join(format!("kernels/{name}.graphene")));
    let files = atoms.flatten().map(|file| file.path()).chain(figures);
    let kernels = files.flat_map(|file| {
        let text = fs::read_to_string(&file).expect("a file of a folder is there");
        let all = parse_all(&text).unwrap_or_else(|error| panic!("{}:{error}", file.display()));
        let stem = file.file_stem().map(|stem| stem.display().to_string()).unwrap_or_default();
        all.into_iter().map(move |kernel| (format!("{stem}/{}", kernel.name), kernel))
    });
    kernels.collect()
}

/// Chains of layers, as blocks of an architecture have room for them.
fn layers(arch: Arch) -> Vec<(String, Mlp)> {
    let mut all = Vec::new();
    for (scalar, name) in
        [(Scalar::F16, "mlp"), (Scalar::Bf16, "mlp_bf16"), (Scalar::F32, "mlp_f32")]
    {
        for (transposed, side) in [(false, 'n'), (true, 't')] {
            let layer = |width| Layer { width, transposed, ..Layer::default() };
            let plain = |mlp: Mlp, rows| Mlp { scalar, ..mlp }.fitting(rows, arch.shared_memory());
            for (width, rows) in [(128, 128), (128, 64), (256, 64), (512, 32)] {
                let mlp = plain(Mlp::alike(4, layer(width)), rows);
                all.push((format!("{name}_{side}_{width}x{rows}"), mlp));
            }
            let epilogue = Epilogue::layer(true, None, true);
            let second = Layer { epilogue, ..layer(64) };
            let encoder = Mlp { width: 64, layers: vec![layer(128), second], ..Mlp::default() };
            all.push((format!("{name}_{side}_encoder"), plain(encoder, 32)));
        }
    }
    all.into_iter().filter_map(|(name, mlp)| Some((name, mlp.ok()?))).collect()
}

/// Chains of layers that warpgroups take, of every width: all of half precision, and in single precision what comes in and
/// what goes out.
fn layers_by_warpgroups() -> Vec<(String, Mlp)> {
    let mut all = Vec::new();
    for (scalar, name) in [(Scalar::F16, "mlp"), (Scalar::Bf16, "mlp_bf16")] {
        for width in [64, 128, 192, 256] {
            let mut mlp = Mlp { scalar, ..Mlp::alike(5, Layer { width, ..Layer::default() }) };
            all.push((format!("{name}_warpgroups_{width}"), mlp.clone()));
            mlp.x = Some(Scalar::F32);
            for layer in &mut mlp.layers {
                layer.epilogue.operands[0].scalar = Some(Scalar::F32);
            }
            mlp.layers[1].epilogue.outputs[0] = Some(Scalar::F32);
            all.push((format!("{name}_warpgroups_{width}_single"), mlp));
        }
    }
    all
}

/// Sums of rows of half precision by single elements, and by vectors.
fn folds() -> [(&'static str, Folds); 2] {
    [
        ("folds", Folds::default()),
        ("folds_wide", Folds { vector: 8, threads: 256, teams: 1, ..Folds::default() }),
    ]
}

/// Every function of numbers, but those whose code in CUDA's library needs a stack: it reduces large
/// arguments of trigonometric functions with an array.
fn all_functions() -> Pointwise {
    let [x, y] = [0, 1].map(Function::input);
    let reduces = |op: &Unary| matches!(op, Unary::Sin | Unary::Cos | Unary::Tan);
    let unary = Unary::ALL.into_iter().map(|row| row.0).filter(|op| !reduces(op));
    let unary = unary.fold(y.clone(), |sum, op| sum + x.clone().unary(op));
    let all = Binary::ALL.into_iter().fold(unary, |sum, (op, _)| {
        let value = x.clone().binary(op, y.clone());
        sum.clone().binary(Binary::Less, value.clone()).select(value.rounded(Scalar::Bf16), sum)
    });
    let ins = vec![Access::packed(Scalar::F32, 1), Access::packed(Scalar::F16, 1)];
    Pointwise { function: all, ins, vector: 1, ..Pointwise::default() }
}

fn reductions() -> [(&'static str, Reduce); 2] {
    let means = Reduce { finish: Reduce::mean(), ..Reduce::default() };
    [("reduce_means", means), ("reduce_columns", Reduce { strands: 8, ..Reduce::default() })]
}

fn rows() -> [(&'static str, Rows); 8] {
    let bare = Rows { scale: None, shift: None, ..Rows::default() };
    let matrix = || Access::packed(Scalar::F16, 2);
    let residual = Rows {
        prologue: Function::sum() + Function::input(2),
        ins: vec![matrix(), matrix(), Access::line(Scalar::F16, 2)],
        sum: Some(matrix()),
        ..Rows::default()
    };
    [
        ("gather", gather(Scalar::F32, &[Place::Index(Scalar::I64)])),
        ("embedding", embedding(Scalar::F16, Scalar::I64).fitting(768)),
        ("rows_layer", Rows::default()),
        ("rows_residual", residual.clone().fitting(1024)),
        ("rows_residual_long", residual.fitting(8192)),
        ("rows_rms", Rows { norm: Norm::Rms, shift: None, ..Rows::default() }.fitting(4096)),
        ("rows_softmax", Rows { norm: Norm::Softmax, ..bare.clone() }),
        ("rows_log_softmax", Rows { norm: Norm::LogSoftmax, ..bare }.fitting(100_000)),
    ]
}

/// Convolutions of innermost channels, in the largest tiles and in small, deep ones; with stages of several elements of
/// windows.
fn channels_last() -> Vec<(&'static str, ChannelsLast)> {
    let conv = ChannelsLast::default();
    let of = |convolution| ChannelsLast { convolution, ..conv.clone() };
    let [single, few] = [(Scalar::F32, [64, 64]), (Scalar::F16, [8, 64])]
        .map(|(scalar, channels)| of(Convolution { scalar, channels, ..Convolution::default() }));
    vec![
        ("conv_channels_last_small", ChannelsLast { tile: [32, 32], depth: 64, ..conv.clone() }),
        ("conv_channels_last_few", few),
        ("conv_channels_last_tf32", ChannelsLast { depth: 16, ..single }),
        ("conv_channels_last", ChannelsLast { tile: [128, 128], ..conv }),
    ]
}

/// Convolutions by each of the ways to multiply, with pixels by single elements and in bulk.
fn convolutions() -> Vec<(&'static str, Conv)> {
    let single = Convolution { scalar: Scalar::F32, ..Convolution::default() };
    let flat = |convolution: &Convolution| {
        let axes = convolution.axes.iter().map(|axis| Axis { window: 1, pad: 0, ..*axis });
        Convolution { axes: axes.collect(), ..convolution.clone() }
    };
    let tf32 = Conv { convolution: single.clone(), tile: [64, 128], stages: 3, ..Conv::default() };
    let simt =
        Conv { by: By::Threads([8, 8]), tile: [128, 128], warps: 8, depth: 16, ..tf32.clone() };
    let moves = |conv: &Conv| Conv { weights: Edges::Moves, pixels: Edges::Moves, ..conv.clone() };
    let conv = Conv::default();
    vec![
        ("conv_moves", moves(&conv)),
        ("conv_flat", Conv { convolution: flat(&conv.convolution), ..conv.clone() }),
        ("conv_few", Conv { tile: [16, 64], ..conv.clone() }),
        ("conv", conv),
        ("conv_tf32_moves", moves(&tf32)),
        ("conv_tf32_few", Conv { tile: [16, 64], ..tf32.clone() }),
        ("conv_tf32", tf32),
        ("conv_simt_moves", moves(&simt)),
        ("conv_simt_flat", Conv { convolution: flat(&single), ..simt.clone() }),
        ("conv_simt", simt),
    ]
}

fn windows() -> Vec<(&'static str, Sliding)> {
    let pool = |fold| {
        let convolution = Convolution { channels: [1, 1], ..Convolution::default() };
        Sliding { convolution, fold, ..Sliding::default() }
    };
    let transposed = Sliding { fold: Fold::Transposed, ..Sliding::default() };
    vec![
        ("sliding", Sliding::default()),
        ("sliding_transposed", transposed),
        ("sliding_max", pool(Fold::Max)),
        ("sliding_mean", pool(Fold::Mean)),
    ]
}

/// Recurrent layers of several cells and types.
fn recurrent_layers() -> Vec<(&'static str, Recurrent)> {
    let [f, g] = [Unary::Sigmoid, Unary::Tanh].map(|op| Function::identity().unary(op));
    let layer = Recurrent::default();
    let bare = Recurrent { results: [true, true, false], ..layer.clone() };
    let single = Recurrent { inputs: 64, hidden: 64, scalar: Scalar::F32, ..layer.clone() };
    let both = Recurrent { direction: Direction::Both, initial: [true; 2], ..layer.clone() };
    let streamed = Recurrent { resident: [false; 2], ..layer.clone() };
    let ragged = Recurrent { ragged: true, ..both.clone() };
    let peepholes = Cell::lstm_with_peepholes(&f, &g, &g, false);
    vec![
        ("wide", Recurrent { rows: 128, warps: [4, 1], slices: 2, ..layer.clone() }),
        ("peepholes", Recurrent { cell: peepholes, ragged: true, ..layer.clone() }),
        ("ragged", ragged.clone()),
        ("ragged_single", Recurrent { ragged: true, ..single.clone() }),
        (
            "ragged_gru",
            Recurrent {
                cell: Cell::gru_reset_first(&f, &g),
                initial: [true, false],
                results: [true, true, false],
                ..ragged
            },
        ),
        ("lstm", layer),
        ("both", both),
        ("streamed", streamed.clone()),
        ("moves", Recurrent { edges: Edges::Moves, inputs: 77, hidden: 99, ..streamed }),
        ("single", single.clone()),
        ("single_moves", Recurrent { edges: Edges::Moves, inputs: 7, hidden: 9, ..single }),
        ("gru", Recurrent { cell: Cell::gru(&f, &g), scalar: Scalar::Bf16, ..bare.clone() }),
        ("gru_reset_first", Recurrent { cell: Cell::gru_reset_first(&f, &g), ..bare.clone() }),
        ("plain", Recurrent { cell: Cell::plain(&g), units: 16, ..bare }),
    ]
}

/// Attention of several dimensions and masks.
fn attention() -> Vec<(&'static str, Fmha)> {
    let wide = Fmha { head_dim: 128, value_dim: 128, ..Fmha::default() };
    let masked = |mask: Mask| Fmha { mask, ..Fmha::default() };
    let three = |fmha: Fmha| Fmha { consumers: 3, keys: 96, stages: 3, ..fmha };
    let lost = Fmha { fill: Number(f64::from(f32::MIN)), ..masked(Mask::PerKey(Scalar::U8)) };
    vec![
        ("64", Fmha::default()),
        ("64_causal", Fmha { causal: true, scalar: Scalar::Bf16, ..Fmha::default() }),
        ("64_key", masked(Mask::PerKey(Scalar::F32))),
        ("64_one", Fmha { consumers: 1, ..Fmha::default() }),
        ("64_key_one", Fmha { consumers: 1, ..masked(Mask::PerKey(Scalar::F16)) }),
        ("64_key_three", three(masked(Mask::PerKey(Scalar::F32)))),
        ("64_key_lost_three", three(lost)),
        ("64_dense_three", Fmha { keys: 64, ..three(masked(Mask::Dense(Scalar::F16))) }),
        ("64_key_bytes", masked(Mask::PerKey(Scalar::U8))),
        ("64_key_fill", Fmha { fill: Number(-1e9), ..masked(Mask::PerKey(Scalar::U8)) }),
        ("64_fill", Fmha { fill: Number(-1e9), ..masked(Mask::Dense(Scalar::U8)) }),
        ("64_dense", masked(Mask::Dense(Scalar::F16))),
        ("64_bytes", masked(Mask::Dense(Scalar::U8))),
        ("64_three", three(Fmha::default())),
        ("32", Fmha { head_dim: 32, value_dim: 32, ..Fmha::default() }),
        ("40", Fmha { head_dim: 40, value_dim: 40, ..Fmha::default() }),
        ("256", Fmha { head_dim: 256, value_dim: 256, keys: 48, ..Fmha::default() }),
        ("96", Fmha { head_dim: 96, value_dim: 96, ..Fmha::default() }),
        ("128_causal", Fmha { causal: true, ..wide.clone() }),
        ("128_key", Fmha { mask: Mask::PerKey(Scalar::F16), keys: 96, ..wide.clone() }),
        ("128", wide),
    ]
}

/// Attention of few queries.
fn decoding() -> Vec<(&'static str, Fmha)> {
    let eight = Fmha { consumers: 1, parts: 8, ..Fmha::default() };
    let wide = Fmha { head_dim: 256, value_dim: 256, ..eight.clone() };
    let fill = Number(f64::from(f32::MIN));
    vec![
        ("bytes", Fmha { mask: Mask::PerKey(Scalar::U8), fill, ..eight.clone() }),
        ("dense", Fmha { mask: Mask::Dense(Scalar::F16), few: 4, ..eight.clone() }),
        ("guarded", Fmha { guarded: true, scalar: Scalar::Bf16, ..eight.clone() }),
        ("cap", Fmha { softcap: Some(Number(30.0)), parts: 2, consumers: 3, ..eight }),
        ("256", wide),
    ]
}

/// A matmul by every template at its defaults, and by single elements.
fn matmuls(trials: &mut Vec<Trial>, name: &str, matmul: &MatMul) {
    let gemm = Gemm { matmul: matmul.clone(), ..Gemm::default() };
    let name_of = |template: &str| format!("{template}_{name}");
    let hopper = |arch: Arch| arch.has(Feature::Wgmma);
    let ping_pong = Gemm { ping_pong: true, strips: 2, columns: 128, stages: 6, ..gemm.clone() };
    add(trials, &name_of("gemm"), hopper, Arc::new(move || gemm.kernel()));
    // Blocks of a cluster leave too few registers for a long epilogue with a matrix.
    if matmul.gated || matmul.epilogue == Epilogue::default() {
        let pairs = Gemm { cluster: 2, ..ping_pong.clone() };
        add(trials, &name_of("gemm_pairs"), hopper, Arc::new(move || pairs.kernel()));
    }
    // Each matrix of a gated matmul has as many columns of a tile: a multiple of 64.
    let [most, least] = if matmul.gated { [128, 128] } else { [192, 64] };
    let wide = Gemm { columns: most, ..ping_pong.clone() }.deepest();
    add(trials, &name_of("gemm_wide"), hopper, Arc::new(move || wide.kernel()));
    add(trials, &name_of("gemm_ping_pong"), hopper, Arc::new(move || ping_pong.kernel()));
    if !matmul.a_transposed && !matmul.b_transposed {
        let single = MatMul { scalar: Scalar::F32, ..matmul.clone() };
        let tf32 = Gemm { matmul: single, ..Gemm::default() };
        let ping_pong =
            Gemm { ping_pong: true, strips: 2, columns: most, ..tf32.clone() }.deepest();
        let few = Gemm {
            columns: least,
            consumers: 1,
            split: 4,
            weights: true,
            prefetch: true,
            ..tf32.clone()
        };
        add(trials, &name_of("gemm_tf32"), hopper, Arc::new(move || tf32.kernel()));
        add(trials, &name_of("gemm_tf32_ping_pong"), hopper, Arc::new(move || ping_pong.kernel()));
        if matmul.terms == 1 {
            add(trials, &name_of("gemm_tf32_few"), hopper, Arc::new(move || few.kernel()));
        }
    }
    for (edges, suffix) in [(Edges::Bulk, ""), (Edges::Moves, "_moves")] {
        let single = MatMul { scalar: Scalar::F32, ..matmul.clone() };
        let mma = Multistage { matmul: matmul.clone(), edges, ..Multistage::mma() };
        let tf32 = Multistage { matmul: single.clone(), depth: 16, ..mma.clone() };
        let small = Multistage { tile: [64, 64], ..tf32.clone() };
        let simt = Multistage { matmul: single, edges, ..Multistage::simt() };
        let split = Multistage { split: 2, arch: Arch::Sm90a, ..simt.clone() };
        let ampere = |arch: Arch| WITH_AND_WITHOUT_WARPGROUPS.contains(&arch);
        let name_of = |template: &str| format!("{template}_{name}{suffix}");
        add(trials, &name_of("mma"), ampere, Arc::new(move || mma.kernel()));
        add(trials, &name_of("tf32"), ampere, Arc::new(move || tf32.kernel()));
        add(trials, &name_of("tf32_small"), ampere, Arc::new(move || small.kernel()));
        add(trials, &name_of("simt"), ampere, Arc::new(move || simt.kernel()));
        if matmul.terms == 1 {
            add(trials, &name_of("simt_split"), hopper, Arc::new(move || split.kernel()));
        }
    }
}

/// A trial for each architecture.
fn add(trials: &mut Vec<Trial>, name: &str, exists: impl Fn(Arch) -> bool, make: Make) {
    for (arch, arch_name) in Arch::ALL.into_iter().filter(|row| exists(row.0)) {
        let make = Arc::clone(&make);
        trial(trials, format!("{name}::{arch_name}"), arch, move || check(&*make, arch));
    }
}

/// A trial in a process of its own.
fn trial(
    trials: &mut Vec<Trial>,
    name: String,
    arch: Arch,
    check: impl Fn() -> Result<(), Failed> + Send + 'static,
) {
    let can = Library::Nvrtc.found() && compiles_for(arch).unwrap_or(true);
    let of_its_own = name.clone();
    let trial = Trial::test(name, move || match env::var_os(APART) {
        Some(_) => check(),
        None => apart(&of_its_own),
    });
    trials.push(trial.with_ignored_flag(!can));
}

/// Runs the trial of a name in a process of its own.
fn apart(name: &str) -> Result<(), Failed> {
    let mut command = Command::new(env::current_exe()?);
    let output = command.args([name, "--exact"]).env(APART, "1").output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    // Of no trial at all, none would fail.
    if output.status.success() && text.contains("1 passed") {
        Ok(())
    } else {
        Err(Failed::from(format!("{text}{}", String::from_utf8_lossy(&output.stderr))))
    }
}

/// For GPUs that are newer than any architecture here, the driver compiles PTX, whose version it knows.
fn add_ptx(trials: &mut Vec<Trial>) {
    let trial = Trial::test("ptx::sm_80", || {
        let source =
            emit(&Pointwise { arch: Arch::Sm80, ..Pointwise::default() }.kernel()?)?.source;
        let ptx = compile_ptx(&source, Arch::Sm80, "kernel.cu")?;
        let text = String::from_utf8_lossy(ptx.image());
        let whole = text.contains(".target sm_80") && text.ends_with('\0');
        if whole { Ok(()) } else { Err(Failed::from(text.into_owned())) }
    });
    trials.push(trial.with_ignored_flag(!Library::Nvrtc.found()));
}

/// The kernel compiles.
fn check(make: &dyn Fn() -> graphene_ir::Result<Kernel>, arch: Arch) -> Result<(), Failed> {
    let mut kernel = make()?;
    kernel.arch = arch;
    check_source(&emit(&kernel)?.source, arch)
}

/// A kernel's source compiles, without a stack: every register has a number that the compiler knows.
fn check_source(source: &str, arch: Arch) -> Result<(), Failed> {
    if source.contains("#include") {
        return Err(Failed::from(format!("it includes what NVRTC may not have:\n{source}")));
    }
    let cubin = compile(source, arch, "kernel.cu")?;
    let log = cubin.log();
    let clean = log.stack + log.spill_loads + log.spill_stores == 0;
    if clean && !log.serialized_wgmma && !log.setmaxnreg_ignored && !log.text.contains("kernel.cu(")
    {
        Ok(())
    } else {
        Err(Failed::from(format!("{}\n{source}", log.text)))
    }
}
