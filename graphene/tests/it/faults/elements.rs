//! Kernels of the templates that compute on elements and rows, and of convolutions.

use graphene_ir::function::Function;
use graphene_ir::kernel::{Kernel, Number, Unary};
use graphene_ir::simulate::Inputs;
use graphene_ir::template::access::{Access, Stride};
use graphene_ir::template::conv::{Axis, By, Conv, Convolution, Fold, Sliding};
use graphene_ir::template::epilogue::{Epilogue, Span};
use graphene_ir::template::gather::embedding;
use graphene_ir::template::matmul::Edges;
use graphene_ir::template::parts::{Part, Parts, Source};
use graphene_ir::template::pointwise::Pointwise;
use graphene_ir::template::reduce::Reduce;
use graphene_ir::template::rows::{Norm, Rows};
use graphene_ir::template::transpose::Transpose;
use graphene_ir::tensor::Scalar;

use super::Given;
use crate::support::inputs;

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
    let again = Rows { norm: Norm::Rms, shift: None, held: None, ahead: 2, ..rows.clone() };
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
    let to = Access { scalar: Scalar::I64, strides: vec![Stride::Packed] };
    let joined = Parts {
        parts: vec![
            Part { source: Source::Copied(apart.clone()), to: apart.clone(), vector: 8 },
            Part { source: Source::Filled(Number(-2.0)), to: apart.clone(), vector: 4 },
            Part { source: Source::Counted, to, vector: 1 },
        ],
        threads: 32,
        ..Parts::default()
    };
    let columns =
        Reduce { ins: vec![Access::rows(F16, 3)], out: apart.clone(), ..Reduce::default() };
    let shape = |rows, columns| vec![("rows", rows), ("columns", columns)];
    let axes =
        |outer, reduced, inner| vec![("outer", outer), ("reduced", reduced), ("inner", inner)];
    let more = |symbols: Vec<_>, more: &[(&'static str, i64)]| [symbols, more.to_vec()].concat();
    vec![
        ("layer", fused.kernel().unwrap(), shape(3, 264)),
        ("softmax", softmax.kernel().unwrap(), shape(5, 264)),
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
            "joined",
            joined.kernel().unwrap(),
            more(
                vec![("N0_0", 3), ("N0_1", 107), ("x0_stride0", 112), ("y0_stride0", 112)],
                &[
                    ("N1_0", 5),
                    ("N1_1", 27),
                    ("y1_stride0", 28),
                    ("N2_0", 71),
                    ("first2", 9),
                    ("blocks", 2),
                ],
            ),
        ),
        (
            "columns",
            columns.kernel().unwrap(),
            more(axes(2, 9, 269), &[("x0_stride0", 2600), ("x0_stride1", 272), ("y_stride0", 272)]),
        ),
        (
            "transpose",
            Transpose { x: apart.clone(), y: apart, load: 4, store: 4, ..Transpose::default() }
                .kernel()
                .unwrap(),
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
    let of_halves = Convolution { epilogue: Epilogue::default(), ..halves.convolution.clone() };
    let point = Axis { window: 1, stride: 1, dilation: 1, pad: 0 };
    let flat = of(&|c| (c.axes, c.channels) = (vec![point; 2], [136, 56]));
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
    let convolution = Convolution { channels: [8; 2], group: 8, axes: vec![apart; 2], ..of_halves };
    let (channels_last, threads) = (true, 64);
    let own = Sliding { convolution, channels_last, threads, pixels: 2, ..Sliding::default() };
    vec![
        ("conv", halves.kernel().unwrap(), images(2, pixels, pixels)),
        ("conv of singles", single.kernel().unwrap(), images(2, pixels, pixels)),
        (
            "flat conv",
            Conv { pixels: Edges::Bulk, ..flat }.kernel().unwrap(),
            images(3, [4, 4], [4, 4])[..3].to_vec(),
        ),
        ("depthwise", slide(Fold::Weighted, [3, 6], 3, apart), images(2, [4, 3], [7, 5])),
        ("channelwise", own.kernel().unwrap(), images(2, [4, 3], [7, 5])),
        ("transposed", slide(Fold::Transposed, [4, 2], 2, apart), images(1, [7, 5], [4, 3])),
        ("largest", slide(Fold::Max, [2, 2], 2, apart), images(2, [4, 3], [7, 5])),
        ("mean", slide(Fold::Mean, [2, 2], 2, apart), images(2, [4, 3], [7, 5])),
    ]
}

/// All of these kernels.
pub(super) fn all() -> impl Iterator<Item = Given> {
    let all = subjects().into_iter().chain(convolutions());
    all.map(|(name, kernel, symbols)| {
        let inputs = vec![given(name, &kernel, &symbols)];
        Given { name, kernel, inputs }
    })
}

fn given(name: &str, kernel: &Kernel, symbols: &[(&'static str, i64)]) -> Inputs {
    inputs(kernel, symbols, |param, i| {
        let param = kernel.params[param];
        match kernel.tensor_name(param) {
            // Some count from the end, some are beyond it.
            "i0" => [-6.0, 3.0, 9.0, -9.0, 6.0][i],
            "i2" => [1.0, -1.0, 5.0, -8.0, 0.0][i],
            "y" => 0.0,
            // One exponent of some rows is so large, and the others so small, that it matters who knows it.
            _ if name == "softmax"
                && [2, 3, 4].map(|row| 264 * row + 8 * [12, 32, 19][row - 2]).contains(&i) =>
            {
                -10.0
            }
            _ if name == "softmax" => ((i * 37 + 11 * (i / 64)) % 101) as f64 / 16.0 - 200.0,
            // Mostly negative, so that a maximum is not confused with 0.
            _ => ((i * 37 + 11 * (i / 64)) % 101) as f64 / 64.0 - 1.25,
        }
    })
}
