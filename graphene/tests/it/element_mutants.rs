//! Mutants of the templates that compute on elements and rows, and of convolutions: every one is told from the kernel, by
//! the verifier, by the simulator, or by its results; or it is known to be none.

use graphene_ir::function::Function;
use graphene_ir::kernel::{Kernel, Unary};
use graphene_ir::simulate::{Options, simulate};
use graphene_ir::template::access::{Access, Stride};
use graphene_ir::template::conv::{Axis, By, Conv, Convolution, Fold, Sliding};
use graphene_ir::template::epilogue::{Epilogue, Span};
use graphene_ir::template::gather::embedding;
use graphene_ir::template::pointwise::Pointwise;
use graphene_ir::template::product::Edges;
use graphene_ir::template::reduce::Reduce;
use graphene_ir::template::rows::{Norm, Rows};
use graphene_ir::template::transpose::Transpose;
use graphene_ir::tensor::Scalar;
use graphene_ir::text::parse;
use graphene_ir::verify::verify;

use crate::mutate::mutants;
use crate::support::{check_clean, inputs, orders, run};

const F16: Scalar = Scalar::F16;

/// A kernel, and values of its symbols.
type Subject = (&'static str, Kernel, Vec<(&'static str, i64)>);

fn subjects() -> Vec<Subject> {
    let rows = Rows { threads: 64, teams: 2, held: Some(1), ..Rows::default() };
    let fused = Rows {
        prologue: Function::sum(),
        ins: vec![Access::packed(F16, 2); 2],
        sum: Some(Access::packed(F16, 2)),
        ..rows.clone()
    };
    let softmax = Rows { norm: Norm::Softmax, scale: None, shift: None, ..rows.clone() };
    let again = Rows { norm: Norm::Rms, shift: None, held: None, ..rows.clone() };
    let apart = Access::rows(F16, 2);
    let pointwise = Pointwise {
        function: Function::sum().unary(Unary::Relu),
        ins: vec![
            apart.clone(),
            Access { scalar: F16, strides: vec![Stride::Packed, Stride::Broadcast] },
        ],
        outs: vec![apart.clone()],
        threads: 32,
        ..Pointwise::default()
    };
    let last = Reduce {
        ins: vec![apart.clone()],
        threads: 64,
        finish: Reduce::mean(),
        ..Reduce::default()
    };
    let single = Access { scalar: Scalar::F32, ..apart.clone() };
    let columns =
        Reduce { ins: vec![Access::rows(F16, 3)], out: apart.clone(), ..Reduce::default() };
    let shape = |rows, columns| vec![("rows", rows), ("columns", columns)];
    let axes =
        |outer, reduced, inner| vec![("outer", outer), ("reduced", reduced), ("inner", inner)];
    let more = |symbols: Vec<_>, more: &[(&'static str, i64)]| [symbols, more.to_vec()].concat();
    vec![
        ("layer", fused.kernel().unwrap(), shape(3, 264)),
        ("softmax", softmax.kernel().unwrap(), shape(3, 264)),
        ("again", again.kernel().unwrap(), shape(3, 1032)),
        (
            "embedding",
            Rows { threads: 32, ..embedding(F16, Scalar::I64) }.kernel().unwrap(),
            more(shape(5, 264), &[("x0_rows", 7), ("x1_rows", 3), ("x2_rows", 2)]),
        ),
        (
            "pointwise",
            pointwise.kernel().unwrap(),
            vec![("N0", 3), ("N1", 203), ("blocks", 2), ("x0_stride0", 208), ("y0_stride0", 208)],
        ),
        (
            "last",
            last.kernel().unwrap(),
            vec![("outer", 5), ("reduced", 1043), ("x0_stride0", 1048)],
        ),
        (
            "columns",
            columns.kernel().unwrap(),
            more(axes(2, 9, 269), &[("x0_stride0", 2600), ("x0_stride1", 272), ("y_stride0", 272)]),
        ),
        (
            "parts",
            Reduce { parts: true, out: single, ..columns }.kernel().unwrap(),
            more(
                axes(1, 19, 45),
                &[("parts", 2), ("x0_stride0", 1000), ("x0_stride1", 48), ("y_stride0", 48)],
            ),
        ),
        (
            "transpose",
            Transpose { x: apart.clone(), y: apart, ..Transpose::default() }.kernel().unwrap(),
            more(shape(67, 107), &[("x_stride0", 108), ("y_stride0", 68)]),
        ),
    ]
}

/// Convolutions of more steps than there are stages, the last of them partial, and of partial tiles.
fn convolutions() -> Vec<Subject> {
    let images = |images, [a, b]: [i64; 2], [c, d]: [i64; 2]| {
        vec![("images", images), ("out0", a), ("out1", b), ("in0", c), ("in1", d)]
    };
    let bias = Epilogue::new(Function::sum(), [Span::Column]);
    let convolution = Convolution { channels: [16, 40], epilogue: bias, ..Convolution::default() };
    let [tile, pixels] = [[32, 32], [5, 7]];
    let halves = Conv {
        pixels: Edges::Moves,
        convolution,
        tile,
        depth: 32,
        warps: 2,
        stages: 3,
        raster: 1,
        ..Conv::default()
    };
    let of = |change: &dyn Fn(&mut Convolution)| {
        let mut convolution = halves.convolution.clone();
        change(&mut convolution);
        Conv { convolution, ..halves.clone() }
    };
    let single = of(&|c| (c.scalar, c.channels, c.group) = (Scalar::F32, [12, 80], 2));
    let by = By::Threads([4, 4]);
    let single = Conv { weights: Edges::Moves, by, depth: 16, ..single };
    let point = Axis { window: 1, stride: 1, dilation: 1, pad: 0 };
    let flat = of(&|c| (c.axes, c.channels) = (vec![point; 2], [136, 40]));
    let slide = |fold, channels: [i64; 2], group, axis: Axis| {
        let axes = vec![axis; 2];
        let scalar = Scalar::F32;
        let epilogue = Epilogue::default();
        let convolution =
            Convolution { scalar, channels, group, axes, epilogue, ..halves.convolution.clone() };
        let threads = 64;
        Sliding { convolution, fold, threads, ..Sliding::default() }.kernel().unwrap()
    };
    let apart = Axis { window: 3, stride: 2, dilation: 1, pad: 1 };
    vec![
        ("conv", halves.kernel().unwrap(), images(2, pixels, pixels)),
        ("conv of singles", single.kernel().unwrap(), images(2, pixels, pixels)),
        (
            "flat conv",
            Conv { pixels: Edges::Bulk, ..flat }.kernel().unwrap(),
            images(3, [4, 4], [4, 4])[..3].to_vec(),
        ),
        ("depthwise", slide(Fold::Products, [3, 6], 3, apart), images(2, [4, 3], [7, 5])),
        ("transposed", slide(Fold::Transposed, [4, 2], 2, apart), images(1, [7, 5], [4, 3])),
        ("largest", slide(Fold::Max, [2, 2], 2, apart), images(2, [4, 3], [7, 5])),
        ("mean", slide(Fold::Mean, [2, 2], 2, apart), images(2, [4, 3], [7, 5])),
    ]
}

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

/// Changes that make no difference: of which kernel (all if it is empty), a part of what is changed
/// and its line, and why.
const EQUIVALENT: &[(&str, &str, &str)] = &[
    (
        "",
        "== 0 to == 1 in if(@lane",
        "Exchanges between all lanes have left the same total in each; any of them may hand it on.",
    ),
    ("last", "== 0 to == 1 in if(@member", "Likewise, of a team's threads."),
    (
        "embedding",
        "Init<0> to Init<1> in %index",
        "It is the index of rows that there are not, of which nothing is stored.",
    ),
    (
        "",
        "one less pending: WaitGroup<copy, 1>",
        "It waits for one group more: every order of events is one that there was before.",
    ),
    (
        "conv",
        "Init<0> to Init<1> in %raw",
        "It is the bias of channels that there are not, of which nothing is stored.",
    ),
    ("conv of singles", "Init<0> to Init<1> in %raw", "Likewise."),
    ("flat conv", "Init<0> to Init<1> in %raw", "Likewise."),
    (
        "conv of singles",
        "swizzle: %sX",
        "Lanes read neighbours in one row, which are in banks of their own with it and without.",
    ),
    (
        "",
        "remove predicate: if(@k + 2 <",
        "The last step is brought once more, to a stage that nobody reads again.",
    ),
    (
        "pointwise",
        "/32 to /16 in for(@tile",
        "There are more steps: those beyond the items find nothing inside.",
    ),
    (
        "columns",
        "remove predicate: if(@strand == 0) { for(@other",
        "The other strands' threads fold as well, and nothing reads what comes of it.",
    ),
    ("parts", "remove predicate: if(@strand == 0) { for(@other", "Likewise."),
    (
        "transpose",
        "remove predicate: if(@columns <",
        "Elements of words that are whole are brought a second time, by the same thread.",
    ),
];

#[test]
fn mutants_are_told_from_their_kernels() {
    let (mut all, mut silent) = (0, Vec::new());
    for (name, kernel, symbols) in subjects().into_iter().chain(convolutions()) {
        let given = inputs(&kernel, &symbols, |param, i| {
            let param = kernel.params[param];
            match kernel.tensor_name(param) {
                // Some count from the end, some are beyond it.
                "i0" => [-6.0, 3.0, 9.0, -9.0, 6.0][i],
                "i2" => [1.0, -1.0, 5.0, -8.0, 0.0][i],
                "y" => 0.0,
                // One exponent is so large, and the others so small, that it matters who knows it.
                _ if name == "softmax" && i == 2 * 264 + 19 * 8 => -10.0,
                _ if name == "softmax" => ((i * 37 + 11 * (i / 64)) % 101) as f64 / 16.0 - 200.0,
                // Mostly negative, so that a maximum is not confused with 0.
                _ => ((i * 37 + 11 * (i / 64)) % 101) as f64 / 64.0 - 1.25,
            }
        });
        let outcome = run(&kernel, &given, None);
        check_clean(name, &outcome);
        let expected = outcome.buffers;
        let made = mutants(&kernel).into_iter();
        let made =
            made.map(|mutant| (format!("{}: {}", mutant.change, mutant.line), mutant.kernel));
        let texts = replaced(&kernel).into_iter().map(|(what, text)| (what, parse(&text)));
        for (what, mutant) in made.chain(texts) {
            all += 1;
            let Ok(mutant) = mutant else { continue };
            if !verify(&mutant).is_empty() {
                continue;
            }
            let told = orders(5).any(|seed| {
                let options = Options { seed, ..Options::default() };
                simulate(&mutant, &given, &options).is_ok_and(|outcome| {
                    !outcome.findings.is_empty()
                        || outcome.costs.total().conflicts > 0
                        || outcome.buffers != expected
                })
            });
            let known = |row: &&(&str, &str, &str)| {
                (row.0.is_empty() || row.0 == name) && what.contains(row.1)
            };
            if !told && EQUIVALENT.iter().find(known).is_none() {
                silent.push(format!("{name}: {what}"));
            }
        }
    }
    println!("{all} mutants, {} of them silent: {silent:#?}", silent.len());
    assert_eq!(silent, Vec::<String>::new());
}
