//! Convolutions: right within the bound that their arithmetic implies, clean in any order of warps, for
//! every parameter; and they read back.

use graphene_ir::arch::Arch;
use graphene_ir::emit::emit;
use graphene_ir::function::Function;
use graphene_ir::kernel::{Kernel, Unary};
use graphene_ir::simulate::{Inputs, Outcome};
use graphene_ir::template::access::Stride;
use graphene_ir::template::conv::{
    Axis, By, ChannelsLast, Conv, Convolution, Filled, Fold, Sliding,
};
use graphene_ir::template::epilogue::{Epilogue, Input, Span};
use graphene_ir::template::matmul::Edges;
use graphene_ir::tensor::Scalar;

use crate::index::Random;
use crate::support::{
    OLDER, check_clean, check_features, check_meaning, check_text, data, inputs, orders, run,
};

/// The number of images, and the sizes of one; how many zeros more there are behind an image than before
/// it; x has so many elements more between images, or its channels are innermost.
#[derive(Debug, Clone)]
pub(crate) struct Sizes {
    images: usize,
    pixels: Vec<usize>,
    behind: i64,
    apart: usize,
    last: bool,
}

fn sizes(images: usize, pixels: &[usize]) -> Sizes {
    Sizes { images, pixels: pixels.to_vec(), behind: 0, apart: 0, last: false }
}

/// The sizes of a result.
fn outs(convolution: &Convolution, fold: Fold, sizes: &Sizes) -> Vec<usize> {
    let size = |(axis, &size): (&Axis, &usize)| {
        let reach = axis.dilation * (axis.window - 1) + 1;
        let (size, zeros) = (size as i64, 2 * axis.pad + sizes.behind);
        usize::try_from(match fold {
            Fold::Transposed => (size - 1) * axis.stride + reach - zeros,
            _ => (size + zeros - reach).div_euclid(axis.stride) + 1,
        })
        .unwrap()
    };
    convolution.axes.iter().zip(&sizes.pixels).map(size).collect()
}

fn operands(kernel: &Kernel, convolution: &Convolution, fold: Fold, sizes: &Sizes) -> Inputs {
    let own: usize = sizes.pixels.iter().product();
    let stride = own * convolution.channels[0] as usize + sizes.apart;
    let mut symbols = vec![("images".to_owned(), sizes.images), ("x_stride0".to_owned(), stride)];
    for (axis, (&size, out)) in sizes.pixels.iter().zip(outs(convolution, fold, sizes)).enumerate()
    {
        symbols.extend([(format!("in{axis}"), size), (format!("out{axis}"), out)]);
    }
    let known = |name: &str| kernel.symbols.iter().any(|symbol| symbol.name() == name);
    let symbols: Vec<(&str, i64)> = symbols
        .iter()
        .filter(|symbol| known(&symbol.0))
        .map(|(name, value)| (name.as_str(), i64::try_from(*value).unwrap()))
        .collect();
    let one = match convolution.scalar {
        Scalar::F16 => 1 << 10,
        Scalar::Bf16 => 1 << 7,
        _ => 1 << 23,
    };
    let mut random = Random::new(1);
    let values: Vec<f64> =
        (0..65_521).map(|_| random.within(-one, one) as f64 / one as f64).collect();
    inputs(kernel, &symbols, |param, i| values[(10_007 * param + i) % 65_521])
}

/// Coordinates of a place, the last axis fastest.
fn digits(mut place: usize, sizes: &[usize]) -> Vec<usize> {
    let mut digits: Vec<usize> = sizes
        .iter()
        .rev()
        .map(|size| {
            let digit = place % size;
            place /= size;
            digit
        })
        .collect();
    digits.reverse();
    digits
}

/// The elements of x that a pixel of the result's channel sees, each with its weight's place.
fn seen(
    convolution: &Convolution,
    fold: Fold,
    sizes: &Sizes,
    [image, made, pixel]: [usize; 3],
) -> Vec<[usize; 2]> {
    let group = convolution.group as usize;
    let [channels, all_made] = convolution.channels.map(|all| all as usize);
    let [of_group, made_of_group] = [channels / group, all_made / group];
    let windows: Vec<usize> = convolution.axes.iter().map(|axis| axis.window as usize).collect();
    let taps: usize = windows.iter().product();
    let size: usize = sizes.pixels.iter().product();
    let pixel = digits(pixel, &outs(convolution, fold, sizes));
    let mut seen = Vec::new();
    for channel in 0..of_group {
        let channel_of_all = made / made_of_group * of_group + channel;
        for tap in 0..taps {
            let mut place = Some(0);
            for (i, element) in digits(tap, &windows).into_iter().enumerate() {
                let Axis { stride, dilation, pad, .. } = convolution.axes[i];
                let (own, element) = (pixel[i] as i64, element as i64 * dilation);
                let at = match fold {
                    Fold::Transposed if (own + pad - element) % stride != 0 => None,
                    Fold::Transposed => Some((own + pad - element) / stride),
                    _ => Some(own * stride + element - pad),
                };
                let at = at.and_then(|at| usize::try_from(at).ok());
                let at = at.filter(|at| *at < sizes.pixels[i]);
                place = place.zip(at).map(|(place, at)| place * sizes.pixels[i] + at);
            }
            let weight = match fold {
                Fold::Transposed => channel_of_all * made_of_group + made % made_of_group,
                _ => made * of_group + channel,
            };
            seen.extend(place.map(|place| match sizes.last {
                true => [
                    (image * size + place) * channels + channel_of_all,
                    // Of depthwise ones channels are innermost among weights, too.
                    if group > 1 {
                        tap * all_made + made
                    } else {
                        (made * taps + tap) * channels + channel
                    },
                ],
                false => {
                    let first = image * (channels * size + sizes.apart) + channel_of_all * size;
                    [first + place, weight * taps + tap]
                }
            }));
        }
    }
    seen
}

/// A kernel's results are within their bounds, in turn and in this many random orders.
///
/// The bound is that of `products.rs`: a sum of k products in single precision errs by at most 4k·2⁻²⁴
/// of the sum of their absolute values, which an epilogue here multiplies by 1.13 at most; each of its
/// steps is rounded, of values no larger than the sum V of its arguments' absolute values: 2⁻²⁴·V,
/// twice; and the result is rounded to its type. Sums without products have no more terms; the largest
/// is one of them as it is; of a mean, all terms are divided by their number, and there is one step more.
fn check(
    name: &str,
    (convolution, kernel): (&Convolution, &Kernel),
    fold: Fold,
    sizes: &Sizes,
    random_orders: u64,
    rounded: impl Fn(f64) -> f64,
) -> Outcome {
    let inputs = operands(kernel, convolution, fold, sizes);
    let x = data(&inputs, "x");
    let single = 2f64.powi(-24);
    let epilogue = &convolution.epilogue;
    let made = convolution.channels[1] as usize;
    let pixels: usize = outs(convolution, fold, sizes).iter().product();
    let mut expected = vec![Vec::new(); epilogue.outputs.len()];
    for place in 0..sizes.images * made * pixels {
        let at = match sizes.last {
            true => [place / (made * pixels), place % made, place / made % pixels],
            false => [place / (made * pixels), place / pixels % made, place % pixels],
        };
        let seen = seen(convolution, fold, sizes, at);
        let terms: Vec<f64> = seen
            .iter()
            .map(|&[x_at, w_at]| match fold {
                Fold::Weighted | Fold::Transposed => {
                    rounded(x[x_at]) * rounded(data(&inputs, "w")[w_at])
                }
                Fold::Max | Fold::Sum => x[x_at],
                Fold::Mean => x[x_at] / seen.len() as f64,
            })
            .collect();
        let size: f64 = terms.iter().map(|term| term.abs()).sum();
        let (value, size) = match fold {
            Fold::Max => (terms.iter().fold(f64::NEG_INFINITY, |most, x| most.max(*x)), 0.0),
            _ => (terms.iter().sum(), size),
        };
        let mut arguments = vec![value];
        for input in &epilogue.operands {
            arguments.push(match input.span {
                Span::Column | Span::Row => data(&inputs, "bias")[at[1]],
                Span::Whole => data(&inputs, "R")[place],
                Span::Number => data(&inputs, "number")[0],
            });
        }
        let all: f64 = arguments.iter().map(|argument| argument.abs()).sum();
        let steps = epilogue.function.steps().len() - 1 + usize::from(fold == Fold::Mean);
        let error =
            1.13 * 4.0 * terms.len() as f64 * single * size + 2.0 * single * all * steps as f64;
        for (result, y) in epilogue.function.eval(&arguments).into_iter().enumerate() {
            let half = match epilogue.outputs[result].unwrap_or(convolution.scalar) {
                Scalar::F16 => 2f64.powi(-11),
                Scalar::Bf16 => 2f64.powi(-8),
                _ => single,
            };
            expected[result].push((y, half * y.abs() + (1.0 + half) * error));
        }
    }
    let mut last = None;
    for seed in orders(random_orders) {
        let outcome = run(kernel, &inputs, seed);
        check_clean(&format!("{name} {sizes:?} {seed:?}"), &outcome);
        for (result, expected) in expected.iter().enumerate() {
            let result = if result == 0 { "Y".to_owned() } else { format!("Y_{}", result + 1) };
            let found = &outcome.buffers[&result];
            assert_eq!(found.len(), expected.len(), "{name} {sizes:?}");
            for (i, (found, (y, bound))) in found.iter().zip(expected).enumerate() {
                let near = found.is_some_and(|found| (found - y).abs() <= *bound);
                assert!(near, "{name} {sizes:?}: {result}[{i}] is {found:?}, not {y} ± {bound}");
            }
        }
        last = Some(outcome);
    }
    let last = last.unwrap();
    check_meaning(name, kernel, &inputs, &last);
    last
}

/// relu(x + bias) + r, and the sum in single precision.
fn layer() -> Epilogue {
    let [sum, bias, residual] = [0, 1, 2].map(Function::input);
    let first = (sum.clone() + bias).unary(Unary::Relu) + residual;
    let mut epilogue = Epilogue::new(Function::all([first, sum]), [Span::Column, Span::Whole]);
    epilogue.outputs[1] = Some(Scalar::F32);
    epilogue.operands[0] = Input { span: Span::Column, scalar: Some(Scalar::F32) };
    epilogue
}

fn window(size: i64, stride: i64, dilation: i64, pad: i64) -> Axis {
    Axis { window: size, stride, dilation, pad }
}

fn halves() -> Conv {
    let convolution = Convolution { channels: [8, 24], ..Convolution::default() };
    let pixels = Edges::Moves;
    Conv { convolution, pixels, tile: [32, 32], depth: 32, warps: 2, stages: 3, ..Conv::default() }
}

fn singles() -> Conv {
    let convolution = Convolution { scalar: Scalar::F32, ..halves().convolution };
    let by = By::Threads([4, 4]);
    Conv { convolution, by, depth: 8, ..halves() }
}

fn of(conv: Conv, change: impl FnOnce(&mut Convolution)) -> Conv {
    let mut conv = conv;
    change(&mut conv.convolution);
    conv
}

/// All parameters that this file tries; each with sizes, and in how many random orders.
pub(crate) fn rows() -> Vec<(Conv, Sizes, u64)> {
    let bulk = |conv: Conv| Conv { pixels: Edges::Bulk, ..conv };
    let moved = |conv: Conv| Conv { weights: Edges::Moves, ..conv };
    let mut rows = Vec::new();
    for conv in [halves(), singles(), Conv { by: By::Warps, depth: 16, ..singles() }] {
        let with = |axes: &[Axis]| of(conv.clone(), |c| c.axes = axes.to_vec());
        rows.extend([
            (conv.clone(), sizes(2, &[5, 7]), 1),
            // Pixels that fill whole vectors; several tiles of them; an image of one.
            (bulk(conv.clone()), sizes(3, &[4, 8]), 1),
            (conv.clone(), sizes(5, &[3, 7]), 1),
            (conv.clone(), sizes(2, &[1, 1]), 1),
            // Strides, dilations, uneven pads, none at all, and less than none.
            (with(&[window(3, 2, 1, 1), window(3, 2, 1, 0)]), sizes(2, &[9, 10]), 1),
            (with(&[window(3, 1, 2, 2), window(2, 3, 2, 1)]), sizes(1, &[7, 8]), 1),
            (
                with(&[window(5, 1, 1, 2), window(3, 1, 1, 0)]),
                Sizes { behind: 1, ..sizes(1, &[6, 5]) },
                1,
            ),
            (with(&[window(2, 1, 1, -1), window(2, 1, 1, 0)]), sizes(1, &[6, 5]), 0),
            // One axis, and three.
            (with(&[window(3, 2, 1, 1)]), sizes(3, &[21]), 1),
            (with(&[window(2, 1, 1, 0); 3]), sizes(2, &[3, 4, 5]), 1),
            // Single elements, of pixels next to one another or apart.
            (bulk(with(&[window(1, 1, 1, 0); 2])), sizes(3, &[4, 4]), 1),
            (with(&[window(1, 1, 1, 0); 2]), sizes(3, &[5, 3]), 1),
            (bulk(with(&[window(1, 2, 1, 0); 2])), sizes(1, &[7, 15]), 1),
            // Groups; depths that are no multiple of a stage's, nor weights' rows of 16 bytes.
            (of(conv.clone(), |c| (c.channels, c.group) = ([16, 20], 2)), sizes(2, &[4, 5]), 1),
            (moved(of(conv.clone(), |c| c.channels = [3, 5])), sizes(2, &[5, 5]), 1),
            (
                moved(of(conv.clone(), |c| (c.channels, c.group) = ([6, 6], 3))),
                sizes(1, &[4, 5]),
                1,
            ),
            // One channel in a group, of those that are read, made, or both.
            (of(conv.clone(), |c| c.channels = [8, 1]), sizes(2, &[4, 5]), 1),
            (bulk(of(conv.clone(), |c| c.channels = [8, 1])), sizes(2, &[4, 8]), 1),
            (moved(of(conv.clone(), |c| c.channels = [1, 1])), sizes(2, &[4, 5]), 1),
            (moved(of(conv.clone(), |c| c.channels = [1, 5])), sizes(2, &[4, 5]), 1),
            (
                moved(of(conv.clone(), |c| {
                    (c.channels, c.group, c.epilogue) = ([4, 4], 4, layer());
                })),
                sizes(2, &[3, 5]),
                1,
            ),
            (
                bulk(moved(of(conv.clone(), |c| {
                    (c.channels, c.group, c.epilogue) = ([6, 3], 3, layer());
                    c.axes = vec![window(1, 1, 1, 0); 2];
                }))),
                sizes(3, &[4, 4]),
                1,
            ),
            // Images that are apart, more rows than a tile's, epilogues.
            (
                of(conv.clone(), |c| (c.image, c.channels) = (Stride::Symbol, [8, 40])),
                Sizes { apart: 5, ..sizes(3, &[3, 4]) },
                1,
            ),
            (of(conv.clone(), |c| c.epilogue = layer()), sizes(3, &[5, 5]), 1),
            (bulk(of(conv.clone(), |c| c.epilogue = layer())), sizes(2, &[4, 6]), 1),
            (
                moved(of(conv.clone(), |c| {
                    (c.channels, c.group, c.epilogue) = ([4, 6], 2, layer());
                })),
                sizes(2, &[4, 5]),
                1,
            ),
        ]);
    }
    // AKG's example, whose images are 32 of 28×28; the same kernels take these.
    let akg = of(Conv::default(), |c| {
        (c.channels, c.axes) = ([64, 128], vec![window(5, 1, 1, 2); 2]);
    });
    let single = of(akg.clone(), |c| c.scalar = Scalar::F32);
    let by = By::Threads([8, 8]);
    rows.extend([
        (Conv { by, warps: 8, depth: 16, stages: 3, ..single }, sizes(1, &[4, 8]), 0),
        (akg, sizes(2, &[4, 8]), 0),
    ]);
    rows.extend([
        (of(halves(), |c| c.scalar = Scalar::Bf16), sizes(2, &[5, 7]), 1),
        (Conv { tile: [64, 64], warps: 4, stages: 2, raster: 1, ..halves() }, sizes(2, &[9, 9]), 1),
        (Conv { pixels: Edges::Moves, ..Conv::default() }, sizes(1, &[5, 9]), 0),
    ]);
    rows
}

#[test]
fn convolutions_verify_read_back_and_become_cuda() {
    for (conv, ..) in rows() {
        let kernel = conv.kernel().unwrap_or_else(|error| panic!("{conv:?}: {error}"));
        check_text(&format!("{conv:?}"), &kernel);
        let source = emit(&kernel).unwrap().source;
        let matmul = match conv.by {
            By::Warps => "mma.sync",
            By::Warpgroups => "wgmma.mma_async",
            By::Threads(_) => "__fmaf_rn",
        };
        assert!(source.contains(matmul), "{conv:?}");
    }
}

#[test]
fn convolutions_are_right_in_any_order_and_free_of_bank_conflicts() {
    for (conv, sizes, random_orders) in rows() {
        let (name, kernel) = (format!("{conv:?}"), conv.kernel().unwrap());
        let rounded = conv.by == By::Warps && conv.convolution.scalar == Scalar::F32;
        let seen = |x: f64| if rounded { Unary::Tf32.value(x) } else { x };
        let of = (&conv.convolution, &kernel);
        let outcome = check(&name, of, Fold::Weighted, &sizes, random_orders, seen);
        assert_eq!(outcome.costs.total().conflicts, 0, "{name} {sizes:?}");
    }
}

/// All kernels of channels that are innermost which this file tries, with sizes.
pub(crate) fn channels_last() -> Vec<(ChannelsLast, Sizes)> {
    let convolution = Convolution { channels: [32, 24], ..Convolution::default() };
    let conv = ChannelsLast {
        convolution,
        tile: [32, 32],
        depth: 32,
        warps: 2,
        stages: 3,
        ..ChannelsLast::default()
    };
    let with = |axes: &[Axis]| {
        let convolution = Convolution { axes: axes.to_vec(), ..conv.convolution.clone() };
        ChannelsLast { convolution, ..conv.clone() }
    };
    let of = |channels: [i64; 2], scalar: Scalar| {
        let convolution = Convolution { channels, scalar, ..conv.convolution.clone() };
        ChannelsLast { convolution, ..conv.clone() }
    };
    let layered = |conv: ChannelsLast| {
        let convolution = Convolution { epilogue: layer(), ..conv.convolution.clone() };
        ChannelsLast { convolution, ..conv }
    };
    let split = |split: i64| ChannelsLast { split, arch: Arch::Sm90a, ..conv.clone() };
    let groups = |tile, warps| {
        let (by, arch) = (By::Warpgroups, Arch::Sm90a);
        ChannelsLast { by, tile, warps, depth: 64, arch, ..conv.clone() }
    };
    let last = |images, pixels: &[usize]| Sizes { last: true, ..sizes(images, pixels) };
    vec![
        (conv.clone(), last(2, &[5, 7])),
        (conv.clone(), last(3, &[4, 8])),
        (conv.clone(), last(2, &[1, 1])),
        (layered(conv.clone()), last(3, &[5, 5])),
        // Strides, dilations, uneven pads, none at all, and less than none.
        (with(&[window(3, 2, 1, 1), window(3, 2, 1, 0)]), last(2, &[9, 10])),
        (with(&[window(3, 1, 2, 2), window(2, 3, 2, 1)]), last(1, &[7, 8])),
        (with(&[window(5, 1, 1, 2), window(3, 1, 1, 0)]), Sizes { behind: 1, ..last(1, &[6, 5]) }),
        (with(&[window(2, 1, 1, -1), window(2, 1, 1, 0)]), last(1, &[6, 5])),
        // One axis, and three; single elements.
        (with(&[window(3, 2, 1, 1)]), last(3, &[21])),
        (with(&[window(2, 1, 1, 0); 3]), last(2, &[3, 4, 5])),
        (with(&[window(1, 2, 1, 0); 2]), last(1, &[7, 15])),
        // Stages of several elements, or of parts of them; other types; tiles of other sizes.
        (of([8, 8], Scalar::F16), last(2, &[5, 6])),
        (layered(of([24, 40], Scalar::F16)), last(2, &[5, 6])),
        (of([64, 72], Scalar::Bf16), last(2, &[5, 6])),
        (ChannelsLast { depth: 16, ..layered(of([4, 12], Scalar::F32)) }, last(2, &[5, 6])),
        (ChannelsLast { depth: 16, ..of([32, 36], Scalar::F32) }, last(2, &[5, 6])),
        (ChannelsLast { tile: [64, 64], warps: 4, depth: 64, ..conv.clone() }, last(2, &[7, 9])),
        (ChannelsLast { tile: [16, 64], warps: 4, depth: 32, ..conv.clone() }, last(2, &[4, 5])),
        (layered(ChannelsLast::default()), last(1, &[9, 9])),
        // Blocks of a cluster that share tiles: two, and so many that some have no step.
        (layered(split(2)), last(3, &[5, 5])),
        (split(3), last(2, &[5, 7])),
        (split(8), last(1, &[4, 5])),
        (ChannelsLast { tile: [64, 64], warps: 4, ..split(4) }, last(2, &[7, 9])),
        // By warpgroups: one, two, two times 64 rows of each, and such that share tiles.
        (layered(groups([64, 32], 4)), last(2, &[5, 7])),
        (groups([128, 64], 8), last(2, &[9, 9])),
        (ChannelsLast { depth: 32, ..layered(groups([128, 32], 4)) }, last(1, &[9, 9])),
        (ChannelsLast { split: 3, ..layered(groups([64, 32], 4)) }, last(2, &[7, 9])),
    ]
}

#[test]
fn convolutions_of_innermost_channels_are_right_in_any_order_and_read_back() {
    for (conv, sizes) in channels_last() {
        let (name, kernel) = (format!("{conv:?}"), conv.kernel().unwrap());
        check_text(&name, &kernel);
        let by = if conv.by == By::Warpgroups { "wgmma.mma_async" } else { "mma.sync" };
        assert!(emit(&kernel).unwrap().source.contains(by), "{name}");
        let single = conv.convolution.scalar == Scalar::F32;
        let seen = |x: f64| if single { Unary::Tf32.value(x) } else { x };
        let outcome = check(&name, (&conv.convolution, &kernel), Fold::Weighted, &sizes, 1, seen);
        assert_eq!(outcome.costs.total().conflicts, 0, "{name} {sizes:?}");
    }
}

#[test]
fn convolutions_of_older_architectures_are_right() {
    let half = |conv: &Convolution| conv.scalar == Scalar::F16;
    let tiled = rows().into_iter().filter(|row| half(&row.0.convolution) || row.0.by != By::Warps);
    let last = channels_last()
        .into_iter()
        .filter(|(conv, _)| half(&conv.convolution) && conv.by == By::Warps && conv.split == 1);
    let (tiled, last): (Vec<_>, Vec<_>) = (tiled.collect(), last.collect());
    for arch in OLDER {
        let check_one = |name: &str, convolution: &Convolution, kernel: &Kernel, sizes: &Sizes| {
            check_text(name, kernel);
            check_features(name, kernel, half(convolution));
            check(name, (convolution, kernel), Fold::Weighted, sizes, 0, |x| x);
        };
        for (conv, sizes, _) in tiled.iter().step_by(3) {
            let conv = Conv { arch, ..conv.clone() };
            check_one(&format!("{conv:?}"), &conv.convolution, &conv.kernel().unwrap(), sizes);
        }
        for (conv, sizes) in last.iter().step_by(2) {
            let conv = ChannelsLast { arch, ..conv.clone() };
            check_one(&format!("{conv:?}"), &conv.convolution, &conv.kernel().unwrap(), sizes);
        }
    }
}

/// All depthwise convolutions and poolings of channels that are innermost which this file tries, with sizes.
pub(crate) fn channelwise() -> Vec<(Sliding, Sizes)> {
    let last = |images, pixels: &[usize]| Sizes { last: true, ..sizes(images, pixels) };
    let of = |fold, channels: i64, scalar, axes: &[Axis]| {
        let (channels, group, axes) = ([channels; 2], channels, axes.to_vec());
        let convolution = Convolution { scalar, channels, group, axes, ..Convolution::default() };
        Sliding { convolution, fold, channels_last: true, threads: 64, ..Sliding::default() }
    };
    let three = [window(3, 2, 1, 1); 2];
    let mut after = of(Fold::Sum, 24, Scalar::F16, &three);
    after.convolution.epilogue = layer();
    let of_pixels = |pixels, pool: Sliding| Sliding { pixels, ..pool };
    let seven = [window(7, 1, 1, 3); 2];
    let mut layered = of_pixels(4, of(Fold::Weighted, 16, Scalar::F16, &[window(3, 1, 1, 1); 2]));
    layered.convolution.epilogue = layer();
    vec![
        // Depthwise: windows of several pixels that lie in each other, next to each other, and with gaps between; rows that end
        // within a thread's pixels, and before them.
        (of(Fold::Weighted, 16, Scalar::F16, &three), last(2, &[7, 9])),
        (of_pixels(4, of(Fold::Weighted, 8, Scalar::Bf16, &seven)), last(1, &[8, 10])),
        (
            of_pixels(2, of(Fold::Weighted, 8, Scalar::F16, &[window(5, 2, 1, 2); 2])),
            last(2, &[9, 7]),
        ),
        (
            of_pixels(
                3,
                of(Fold::Weighted, 4, Scalar::F32, &[window(2, 1, 2, 1), window(3, 4, 2, 1)]),
            ),
            last(2, &[6, 11]),
        ),
        (of_pixels(4, of(Fold::Weighted, 8, Scalar::F16, &[window(3, 1, 1, 0)])), last(3, &[4])),
        (
            of_pixels(2, of(Fold::Weighted, 8, Scalar::F16, &[window(2, 1, 1, 0); 3])),
            last(1, &[3, 4, 5]),
        ),
        (layered, last(2, &[5, 6])),
        (of_pixels(2, of(Fold::Max, 8, Scalar::F16, &three)), last(2, &[7, 9])),
        (of(Fold::Max, 16, Scalar::F16, &three), last(2, &[7, 9])),
        (
            of(Fold::Sum, 16, Scalar::Bf16, &[window(2, 1, 2, 1), window(3, 3, 1, 0)]),
            last(1, &[8, 7]),
        ),
        (of(Fold::Max, 4, Scalar::F32, &[window(3, 1, 1, 0)]), last(3, &[11])),
        (of(Fold::Sum, 8, Scalar::F16, &[window(7, 7, 1, 0); 2]), last(2, &[7, 7])),
        (after, last(2, &[5, 5])),
    ]
}

#[test]
fn each_of_innermost_channels_is_right_in_any_order_and_reads_back() {
    for (pool, sizes) in channelwise() {
        let (name, kernel) = (format!("{pool:?}"), pool.kernel().unwrap());
        check_text(&name, &kernel);
        check(&name, (&pool.convolution, &kernel), pool.fold, &sizes, 1, |x| x);
    }
    let of = |change: &dyn Fn(&mut Sliding)| {
        let mut pool = Sliding { fold: Fold::Max, channels_last: true, ..Sliding::default() };
        change(&mut pool);
        pool
    };
    for pool in [
        of(&|pool| pool.convolution.group = 32),
        of(&|pool| (pool.convolution.group, pool.convolution.channels) = (12, [12; 2])),
        of(&|pool| pool.fold = Fold::Mean),
        of(&|pool| pool.threads = 0),
        of(&|pool| pool.pixels = 0),
        of(&|pool| (pool.fold, pool.convolution.channels) = (Fold::Weighted, [64, 128])),
    ] {
        assert!(pool.kernel().is_err(), "{pool:?}");
    }
}

#[test]
fn channels_are_filled_up_with_zeros() {
    for (scalar, channels) in [(Scalar::F16, [3, 8]), (Scalar::Bf16, [8, 8]), (Scalar::F32, [1, 4])]
    {
        let filled = Filled { scalar, channels, threads: 32, ..Filled::default() };
        let (name, kernel) = (format!("{filled:?}"), filled.kernel().unwrap());
        check_text(&name, &kernel);
        let [read, made] = channels.map(|all| all as usize);
        let inputs = inputs(&kernel, &[("images", 2), ("pixels", 45)], |_, i| (i % 128) as f64);
        for seed in orders(1) {
            let outcome = run(&kernel, &inputs, seed);
            check_clean(&name, &outcome);
            for (i, found) in outcome.buffers["y"].iter().enumerate() {
                let (image, pixel, channel) = (i / made / 45, i / made % 45, i % made);
                let x = data(&inputs, "x").get((image * read + channel) * 45 + pixel);
                let expected = if channel < read { x.copied() } else { Some(0.0) };
                assert_eq!(*found, expected, "{name} {i}");
            }
            check_meaning(&name, &kernel, &inputs, &outcome);
        }
    }
    for channels in [[0, 8], [9, 8], [3, 16]] {
        let filled = Filled { channels, ..Filled::default() };
        assert!(filled.kernel().is_err(), "{filled:?}");
    }
}

#[test]
fn parameters_of_innermost_channels_that_no_kernel_has_are_refused() {
    let conv = ChannelsLast::default();
    let of = |change: &dyn Fn(&mut Convolution)| {
        let mut convolution = conv.convolution.clone();
        change(&mut convolution);
        ChannelsLast { convolution, ..conv.clone() }
    };
    for conv in [
        of(&|c| c.group = 2),
        of(&|c| c.channels = [3, 64]),
        of(&|c| c.channels = [64, 12]),
        of(&|c| c.image = Stride::Symbol),
        ChannelsLast { depth: 8, ..conv.clone() },
        ChannelsLast { stages: 1, ..conv.clone() },
        ChannelsLast { warps: 3, ..conv.clone() },
        ChannelsLast { tile: [128, 24], ..conv.clone() },
        ChannelsLast { split: 2, ..conv.clone() },
        ChannelsLast { split: 9, arch: Arch::Sm90a, ..conv.clone() },
    ] {
        assert!(conv.kernel().is_err(), "{conv:?}");
    }
}

/// What comes through registers is loaded before a step's products and stored after them.
#[test]
fn pixels_come_while_products_are_computed() {
    let text = halves().kernel().unwrap().to_string();
    let (_, steps) = text.split_once("WaitGroup<copy, ").unwrap();
    let (before, after) = steps.split_once("<- MatMul+=<<<").unwrap();
    let held = [before, after].map(|part| part.matches("= %words[@e]").count());
    assert_eq!(held, [1, 1], "{text}");
}

#[test]
fn convolution_parameters_that_no_kernel_has_are_refused() {
    for conv in [
        of(halves(), |c| c.group = 3),
        of(halves(), |c| c.group = 0),
        of(halves(), |c| c.channels = [8, 0]),
        of(halves(), |c| c.axes.clear()),
        of(halves(), |c| c.axes[0].stride = 0),
        of(halves(), |c| c.axes[1].window = 0),
        of(halves(), |c| c.image = Stride::Broadcast),
        of(halves(), |c| c.epilogue = Epilogue::layer(true, None, false)),
        of(halves(), |c| c.channels = [3, 8]),
        of(singles(), |c| c.scalar = Scalar::F16),
        Conv { depth: 8, ..halves() },
        Conv { depth: 0, ..singles() },
        Conv { stages: 1, ..halves() },
        Conv { warps: 3, ..halves() },
        Conv { warps: 0, ..halves() },
        Conv { raster: 0, ..halves() },
        Conv { tile: [32, 24], ..halves() },
        Conv { by: By::Threads([4, 6]), ..singles() },
    ] {
        assert!(conv.kernel().is_err(), "{conv:?}");
    }
}

/// All kernels by single threads that this file tries, with sizes.
pub(crate) fn sliding() -> Vec<(Sliding, Sizes)> {
    let square = |axis: Axis| vec![axis; 2];
    let small = |fold: Fold, scalar: Scalar, channels: [i64; 2], group: i64, axes: Vec<Axis>| {
        let convolution = Convolution { scalar, channels, group, axes, ..Convolution::default() };
        Sliding { convolution, fold, threads: 64, ..Sliding::default() }
    };
    let mut rows = Vec::new();
    for scalar in [Scalar::F16, Scalar::Bf16, Scalar::F32] {
        use Fold::{Max, Mean, Sum, Transposed, Weighted};
        let mut layered = small(Weighted, scalar, [6, 6], 6, square(window(3, 1, 1, 1)));
        layered.convolution.epilogue = layer();
        let mut apart = layered.clone();
        apart.convolution.image = Stride::Symbol;
        rows.extend([
            (layered, sizes(2, &[5, 7])),
            (apart, Sizes { apart: 3, ..sizes(2, &[5, 4]) }),
            (small(Weighted, scalar, [6, 12], 6, square(window(3, 2, 1, 1))), sizes(2, &[8, 5])),
            (small(Weighted, scalar, [6, 4], 2, vec![window(3, 1, 2, 2)]), sizes(2, &[9])),
            (small(Weighted, scalar, [2, 2], 2, square(window(6, 1, 1, 3))), sizes(1, &[7, 5])),
            (small(Weighted, scalar, [2, 2], 1, vec![window(2, 1, 1, -1); 3]), sizes(1, &[4; 3])),
            (small(Transposed, scalar, [3, 2], 1, square(window(3, 1, 1, 1))), sizes(2, &[4, 5])),
            (small(Transposed, scalar, [4, 6], 2, square(window(3, 2, 1, 1))), sizes(2, &[3, 4])),
            (small(Transposed, scalar, [2, 2], 2, square(window(2, 3, 2, 0))), sizes(1, &[3, 2])),
            (
                small(Transposed, scalar, [2, 1], 1, vec![window(4, 2, 1, 1)]),
                Sizes { behind: -1, ..sizes(3, &[6]) },
            ),
            (small(Max, scalar, [3, 3], 3, square(window(3, 2, 1, 1))), sizes(2, &[7, 8])),
            (small(Max, scalar, [1, 1], 1, vec![window(2, 1, 2, 0)]), sizes(5, &[9])),
            (small(Sum, scalar, [2, 2], 2, square(window(2, 2, 1, 0))), sizes(2, &[4, 6])),
            (
                small(Mean, scalar, [2, 2], 2, square(window(3, 2, 1, 1))),
                Sizes { behind: 1, ..sizes(2, &[6, 5]) },
            ),
        ]);
    }
    rows
}

#[test]
fn windows_by_threads_are_right_in_any_order() {
    for (sliding, sizes) in sliding() {
        let name = format!("{sliding:?}");
        let kernel = sliding.kernel().unwrap_or_else(|error| panic!("{name}: {error}"));
        check_text(&name, &kernel);
        assert!(emit(&kernel).is_ok(), "{name}");
        check(&name, (&sliding.convolution, &kernel), sliding.fold, &sizes, 1, |x| x);
    }
}

#[test]
fn windows_that_no_kernel_has_are_refused() {
    let of = |fold, channels, group| {
        let convolution = Convolution { channels, group, ..Convolution::default() };
        Sliding { convolution, fold, ..Sliding::default() }
    };
    for sliding in [
        of(Fold::Weighted, [8, 6], 4),
        of(Fold::Max, [8, 8], 4),
        of(Fold::Mean, [8, 16], 8),
        Sliding { threads: 0, ..Sliding::default() },
    ] {
        assert!(sliding.kernel().is_err(), "{sliding:?}");
    }
    let volta = Sliding { arch: graphene_ir::arch::Arch::Sm70, ..Sliding::default() };
    assert_eq!(graphene_ir::atom::features(&volta.kernel().unwrap()), Ok(vec![]));
}
