//! Convolutions and poolings: within their bound on random shapes, and how fast they are.

use graphene_ir::arch::Arch;
use graphene_ir::function::Function;
use graphene_ir::kernel::{Kernel, Unary};
use graphene_ir::template::conv::{Axis, By, ChannelsLast, Conv, Convolution, Fold, Sliding};
use graphene_ir::template::epilogue::{Epilogue, Span};
use graphene_ir::template::matmul::Edges;
use graphene_ir::tensor::Scalar;
use graphene_runtime::Error;
use graphene_runtime::device::{Bound, Buffer, Stream};

use crate::data::{Random, decode, encode};
use crate::matmuls::{bind, kernel_error, median};

/// How many random shapes are checked.
const RANDOM_SHAPES: usize = 40;

/// How many of channels that are innermost.
const RANDOM_LAST: usize = 12;

/// Elements of the result that are checked of each.
const SAMPLES: usize = 2000;

/// What is timed: images, their sizes, channels read and made, window, stride, pad. The first is AKG's
/// example, without and with zeros around images; the others are of ResNet-50.
const TIMED: [(i64, i64, [i64; 2], i64, i64, i64); 7] = [
    (32, 28, [64, 128], 5, 1, 0),
    (32, 28, [64, 128], 5, 1, 2),
    (32, 224, [3, 64], 7, 2, 3),
    (32, 56, [64, 64], 3, 1, 1),
    (32, 28, [128, 128], 3, 1, 1),
    (32, 14, [1024, 256], 1, 1, 0),
    (32, 7, [512, 512], 3, 1, 1),
];

/// A convolution on the device: what it reads on both sides, and the result.
struct Case {
    convolution: Convolution,
    fold: Fold,
    /// Whether channels are innermost in memory, of weights, too.
    last: bool,
    images: usize,
    seen: Vec<usize>,
    out: Vec<usize>,
    /// x, and if it has them the weights, the biases and the residual.
    ins: Vec<(&'static str, Vec<f64>, Buffer)>,
    y: Buffer,
}

impl Case {
    fn new(
        stream: &Stream,
        convolution: Convolution,
        fold: Fold,
        images: usize,
        seen: &[usize],
        random: &mut Random,
    ) -> Result<Case, Error> {
        let out = convolution.axes.iter().zip(seen).map(|(axis, &size)| {
            let reach = axis.dilation * (axis.window - 1) + 1;
            ((size as i64 + 2 * axis.pad - reach) / axis.stride + 1) as usize
        });
        let out: Vec<usize> = out.collect();
        let [read, made] = convolution.channels.map(|all| all as usize);
        let scalar = convolution.scalar;
        let all = images * made * out.iter().product::<usize>();
        let mut ins = Vec::new();
        let mut input = |name, len: usize| -> Result<(), Error> {
            let values = random.normal(len, scalar, true);
            let buffer = stream.upload(&encode(&values, scalar))?;
            ins.push((name, values, buffer));
            Ok(())
        };
        input("x", images * read * seen.iter().product::<usize>())?;
        if fold == Fold::Weighted {
            input("w", made * convolution.depth() as usize)?;
        }
        for operand in &convolution.epilogue.operands {
            match operand.span {
                Span::Row | Span::Column | Span::Number => input("bias", made)?,
                Span::Whole => input("R", all)?,
            }
        }
        let y = stream.upload(&vec![0xff; all * scalar.bytes() as usize])?;
        let (last, seen) = (false, seen.to_vec());
        Ok(Case { convolution, fold, last, images, seen, out, ins, y })
    }

    fn bind(&self, stream: &Stream, kernel: &Kernel) -> Result<Bound, Error> {
        let mut symbols = vec![("images".to_owned(), self.images as i64)];
        for (axis, (seen, out)) in self.seen.iter().zip(&self.out).enumerate() {
            symbols.push((format!("in{axis}"), *seen as i64));
            symbols.push((format!("out{axis}"), *out as i64));
        }
        let symbols: Vec<(&str, i64)> =
            symbols.iter().map(|(name, value)| (name.as_str(), *value)).collect();
        let ins = self.ins.iter().map(|(name, _, buffer)| (*name, buffer));
        let buffers: Vec<(&str, &Buffer)> = ins.chain([("Y", &self.y)]).collect();
        bind(stream, kernel, &buffers, &symbols)
    }

    fn input(&self, wanted: &str) -> &[f64] {
        let found = self.ins.iter().find(|(name, ..)| *name == wanted);
        found.map_or(&[], |(_, values, _)| values)
    }

    /// What a pixel's window gives in a channel, with its number of terms and the sum of their absolute
    /// values; operands are as `rounded` by the kernel's matmuls.
    fn window(
        &self,
        [image, channel]: [usize; 2],
        pixel: usize,
        rounded: &impl Fn(f64) -> f64,
    ) -> (f64, f64, f64) {
        let Convolution { axes, group, channels, .. } = &self.convolution;
        let (x, w) = (self.input("x"), self.input("w"));
        let [read, made] = channels.map(|all| (all / group) as usize);
        let windows: Vec<usize> = axes.iter().map(|axis| axis.window as usize).collect();
        let size: usize = self.seen.iter().product();
        let pixel = digits(pixel, &self.out);
        let taps: usize = windows.iter().product();
        let mut terms = Vec::new();
        for c in 0..read {
            for tap in 0..taps {
                let mut place = Some(0);
                for (i, element) in digits(tap, &windows).into_iter().enumerate() {
                    let Axis { stride, dilation, pad, .. } = axes[i];
                    let at = pixel[i] as i64 * stride + element as i64 * dilation - pad;
                    let at = usize::try_from(at).ok().filter(|at| *at < self.seen[i]);
                    place = place.zip(at).map(|(place, at)| place * self.seen[i] + at);
                }
                let (all, of_all) = (channels[0] as usize, channel / made * read + c);
                terms.extend(place.map(|place| {
                    let (x_at, w_at) = match self.last {
                        true => (
                            (image * size + place) * all + of_all,
                            // Of depthwise ones channels are innermost among weights, too.
                            if *group > 1 {
                                tap * all + channel
                            } else {
                                (channel * taps + tap) * read + c
                            },
                        ),
                        false => (
                            (image * all + of_all) * size + place,
                            (channel * read + c) * taps + tap,
                        ),
                    };
                    let (x, w) = (x[x_at], w.get(w_at));
                    w.map_or(x, |w| rounded(x) * rounded(*w))
                }));
            }
        }
        let count = terms.len() as f64;
        let size: f64 = terms.iter().map(|term| term.abs()).sum();
        let sum: f64 = terms.iter().sum();
        match self.fold {
            Fold::Weighted | Fold::Transposed | Fold::Sum => (sum, size, count),
            Fold::Max => (terms.iter().fold(f64::NEG_INFINITY, |most, x| most.max(*x)), 0.0, 0.0),
            Fold::Mean => (sum / count, size / count, count),
        }
    }

    /// The largest error as a fraction of its bound, over samples of the result. The bound is that of
    /// matmuls, with one step more for the quotient of a mean.
    fn error(&self, random: &mut Random, rounded: impl Fn(f64) -> f64) -> Result<f64, Error> {
        let Convolution { scalar, epilogue, channels, .. } = &self.convolution;
        let found = decode(&self.y.download()?, *scalar);
        let (half, single) = (scalar.unit(), 2f64.powi(-24));
        let (made, pixels) = (channels[1] as usize, self.out.iter().product::<usize>());
        let mut worst = 0f64;
        for _ in 0..SAMPLES {
            let [image, channel, pixel] =
                [self.images, made, pixels].map(|size| random.within(0, size - 1));
            let place = match self.last {
                true => (image * pixels + pixel) * made + channel,
                false => (image * made + channel) * pixels + pixel,
            };
            let (sum, size, count) = self.window([image, channel], pixel, &rounded);
            let mut arguments = vec![sum];
            for operand in &epilogue.operands {
                arguments.push(match operand.span {
                    Span::Row | Span::Column | Span::Number => self.input("bias")[channel],
                    Span::Whole => self.input("R")[place],
                });
            }
            let y = epilogue.function.eval(&arguments)[0];
            let all: f64 = arguments.iter().map(|argument| argument.abs()).sum();
            let steps = epilogue.function.steps().len() as f64;
            let error = 1.13 * 4.0 * count * single * size + 2.0 * single * steps * all;
            let bound = half * y.abs() + (1.0 + half) * error;
            let error = (found[place] - y).abs();
            let share = if error == 0.0 { 0.0 } else { error / bound };
            worst = if share.is_nan() { f64::INFINITY } else { worst.max(share) };
        }
        Ok(worst)
    }

    /// Runs a kernel, and says whether its error is beyond the bound.
    fn run(
        &self,
        stream: &Stream,
        (template, kernel): (&impl std::fmt::Debug, graphene_ir::Result<Kernel>),
        random: &mut Random,
        rounded: impl Fn(f64) -> f64,
    ) -> Result<usize, Error> {
        let bound = self.bind(stream, &kernel.map_err(kernel_error)?)?;
        bound.launch()?;
        stream.synchronize()?;
        let error = self.error(random, rounded)?;
        let Case { images, seen, .. } = self;
        println!(
            "{{\"row\":\"convolutions\",\"images\":{images},\"sizes\":{seen:?},\"error_of_bound\":{error:.4},\"kernel\":\"{template:?}\"}}"
        );
        if error > 1.0 {
            eprintln!("{images} of {seen:?} {template:?}: {error} of its bound");
        }
        Ok(usize::from(error > 1.0))
    }
}

/// Coordinates of a place, the last axis fastest.
fn digits(mut place: usize, sizes: &[usize]) -> Vec<usize> {
    let mut digits = vec![0; sizes.len()];
    for (digit, size) in digits.iter_mut().zip(sizes).rev() {
        (*digit, place) = (place % size, place / size);
    }
    digits
}

/// gelu(x + bias) + r
fn layer() -> Epilogue {
    let [sum, bias, residual] = [0, 1, 2].map(Function::input);
    let function = (sum + bias).unary(Unary::Gelu) + residual;
    Epilogue::new(function, [Span::Column, Span::Whole])
}

/// How weights and pixels move, where they can do so in bulk.
fn edges(case: &Case) -> [Edges; 2] {
    let unit = (16 / case.convolution.scalar.bytes()) as usize;
    let depth = case.convolution.depth() as usize;
    [depth, case.out.iter().product()].map(|size| match size % unit {
        0 => Edges::Bulk,
        _ => Edges::Moves,
    })
}

/// Random shapes, types, tiles and edges, by each template; then what is timed.
pub(crate) fn check(stream: &Stream) -> Result<usize, Error> {
    let mut random = Random(17);
    let mut wrong = 0;
    for i in 0..if crate::quick() { 6 } else { RANDOM_SHAPES } {
        wrong += check_random(stream, i, &mut random)?;
    }
    for i in 0..if crate::quick() { 3 } else { RANDOM_LAST } {
        wrong += check_channels_last(stream, i, &mut random)?;
    }
    for timed in TIMED.into_iter().filter(|_| !crate::quick()) {
        wrong += time(stream, timed, &mut random)?;
    }
    Ok(wrong)
}

fn check_random(stream: &Stream, i: usize, random: &mut Random) -> Result<usize, Error> {
    let mut wrong = 0;
    let rank = [2, 1, 2, 3][i % 4];
    let axis = |random: &mut Random| Axis {
        window: random.within(1, 4) as i64,
        stride: random.within(1, 2) as i64,
        dilation: random.within(1, 2) as i64,
        pad: random.within(0, 2) as i64,
    };
    let single = Axis { window: 1, stride: 1, dilation: 1, pad: 0 };
    let axes = (0..rank).map(|_| if i.is_multiple_of(5) { single } else { axis(random) }).collect();
    let group = [1, 1, 2, 3][random.within(0, 3)];
    let convolution = Convolution {
        scalar: if i.is_multiple_of(2) { Scalar::F16 } else { Scalar::Bf16 },
        channels: [1, 2].map(|least| group * random.within(least, 80) as i64),
        group,
        axes,
        epilogue: if i % 3 == 2 { layer() } else { Epilogue::default() },
        ..Convolution::default()
    };
    let longest = [200, 30, 14][rank - 1];
    let seen: Vec<usize> = (0..rank).map(|_| random.within(7, longest)).collect();
    let images = random.within(1, 5);
    let case = Case::new(stream, convolution.clone(), Fold::Weighted, images, &seen, random)?;
    let [weights, pixels] = edges(&case);
    let tile = [[128, 128], [64, 64], [32, 64], [16, 64], [64, 128]][random.within(0, 4)];
    let conv = Conv { convolution, tile, weights, pixels, ..Conv::default() };
    wrong += case.run(stream, (&conv, conv.kernel()), random, |x| x)?;
    let convolution = Convolution { scalar: Scalar::F32, ..conv.convolution };
    let case = Case::new(stream, convolution.clone(), Fold::Weighted, images, &seen, random)?;
    let [weights, pixels] = edges(&case);
    let conv = Conv { convolution, weights, pixels, ..conv };
    let tf32 = Conv { stages: 3, ..conv.clone() };
    wrong += case.run(stream, (&tf32, tf32.kernel()), random, |x| Unary::Tf32.value(x))?;
    let by = By::Threads([8, 8]);
    let conv = Conv { by, tile: [128, 128], warps: 8, depth: 16, stages: 3, ..conv };
    wrong += case.run(stream, (&conv, conv.kernel()), random, |x| x)?;
    let sliding = Sliding { convolution: conv.convolution.clone(), ..Sliding::default() };
    wrong += case.run(stream, (&sliding, sliding.kernel()), random, |x| x)?;
    for fold in [Fold::Max, Fold::Mean, Fold::Sum] {
        let epilogue = Epilogue::default();
        // Of nothing but what is beyond the edges there is no largest element, and no mean.
        let axes = conv.convolution.axes.iter().map(|axis| {
            let pad = axis.pad.min(axis.dilation * (axis.window - 1));
            Axis { pad, ..*axis }
        });
        let axes = axes.collect();
        let convolution =
            Convolution { channels: [group; 2], axes, epilogue, ..conv.convolution.clone() };
        let sliding = Sliding { convolution: convolution.clone(), fold, ..Sliding::default() };
        let case = Case::new(stream, convolution, fold, images, &seen, random)?;
        wrong += case.run(stream, (&sliding, sliding.kernel()), random, |x| x)?;
    }
    Ok(wrong)
}

/// A convolution and a pooling whose channels are innermost: by warps, by warpgroups, and with its depth split.
fn check_channels_last(stream: &Stream, i: usize, random: &mut Random) -> Result<usize, Error> {
    let axis = |random: &mut Random| Axis {
        window: random.within(1, 3) as i64,
        stride: random.within(1, 2) as i64,
        dilation: random.within(1, 2) as i64,
        pad: random.within(0, 1) as i64,
    };
    let convolution = Convolution {
        scalar: if i.is_multiple_of(2) { Scalar::F16 } else { Scalar::Bf16 },
        channels: [0, 1].map(|_| 8 * random.within(1, 24) as i64),
        axes: (0..2).map(|_| axis(random)).collect(),
        epilogue: if i % 3 == 2 { layer() } else { Epilogue::default() },
        ..Convolution::default()
    };
    let seen: Vec<usize> = (0..2).map(|_| random.within(7, 30)).collect();
    let images = random.within(1, 5);
    let case = Case::new(stream, convolution.clone(), Fold::Weighted, images, &seen, random)?;
    let case = Case { last: true, ..case };
    let (by, arch, depth) = (By::Warpgroups, Arch::Sm90a, 64);
    let warps = ChannelsLast { convolution, ..ChannelsLast::default() };
    let groups = ChannelsLast { by, arch, depth, ..warps.clone() };
    let (tile, warps_of) = [([64, 32], 4), ([128, 64], 8), ([192, 128], 12)][i % 3];
    let mut wrong = case.run(stream, (&warps, warps.kernel()), random, |x| x)?;
    for split in [1, 2] {
        let conv = ChannelsLast { tile, warps: warps_of, split, ..groups.clone() };
        wrong += case.run(stream, (&conv, conv.kernel()), random, |x| x)?;
    }
    let made = warps.convolution.channels[1];
    let axes = warps.convolution.axes.iter().map(|axis| {
        let pad = axis.pad.min(axis.dilation * (axis.window - 1));
        Axis { pad, ..*axis }
    });
    let axes = axes.collect();
    let (channels, group, epilogue) = ([made; 2], made, Epilogue::default());
    let pooling = Convolution { channels, group, axes, epilogue, ..warps.convolution };
    for (fold, pixels) in [(Fold::Max, 1), (Fold::Sum, 2), (Fold::Weighted, 1), (Fold::Weighted, 4)]
    {
        let pooled = Sliding {
            convolution: pooling.clone(),
            fold,
            channels_last: true,
            pixels,
            ..Sliding::default()
        };
        let case = Case::new(stream, pooling.clone(), fold, images, &seen, random)?;
        let case = Case { last: true, ..case };
        wrong += case.run(stream, (&pooled, pooled.kernel()), random, |x| x)?;
    }
    Ok(wrong)
}

/// The tiles that are tried for speed.
fn variants(conv: &Conv) -> Vec<Conv> {
    let tiles = [[128, 128], [64, 128], [64, 64]];
    if conv.convolution.scalar == Scalar::F32 {
        let conv = Conv { depth: 16, stages: 3, warps: 8, ..conv.clone() };
        let of = |thread, tile| Conv { by: By::Threads(thread), tile, ..conv.clone() };
        let tf32 = Conv { warps: 4, depth: 32, ..conv.clone() };
        return vec![of([8, 8], [128, 128]), of([4, 4], [64, 64]), tf32];
    }
    let each = tiles.map(|tile| Conv { tile, ..conv.clone() });
    let more = Conv { warps: 8, ..conv.clone() };
    each.into_iter().chain([more]).collect()
}

fn time(
    stream: &Stream,
    (images, size, channels, window, stride, pad): (i64, i64, [i64; 2], i64, i64, i64),
    random: &mut Random,
) -> Result<usize, Error> {
    let mut wrong = 0;
    for scalar in [Scalar::F16, Scalar::F32] {
        let axes = vec![Axis { window, stride, dilation: 1, pad }; 2];
        let convolution = Convolution { scalar, channels, axes, ..Convolution::default() };
        let seen = [size as usize; 2];
        let case =
            Case::new(stream, convolution.clone(), Fold::Weighted, images as usize, &seen, random)?;
        let [weights, pixels] = edges(&case);
        let flops = 2.0
            * (case.out.iter().product::<usize>() * case.images) as f64
            * (convolution.depth() * channels[1]) as f64;
        for conv in variants(&Conv { convolution, weights, pixels, ..Conv::default() }) {
            let bound = case.bind(stream, &conv.kernel().map_err(kernel_error)?)?;
            bound.launch()?;
            stream.synchronize()?;
            let rounds = scalar == Scalar::F32 && conv.by == By::Warps;
            let seen = |x| if rounds { Unary::Tf32.value(x) } else { x };
            let error = case.error(random, seen)?;
            wrong += usize::from(error > 1.0);
            let us = median(stream, || bound.launch())?;
            let Conv { by, tile, warps, .. } = conv;
            println!(
                "{{\"row\":\"convolutions\",\"images\":{images},\"size\":{size},\"channels\":{channels:?},\
                 \"window\":{window},\"stride\":{stride},\"pad\":{pad},\"scalar\":\"{scalar}\",\
                 \"by\":\"{by:?}\",\"tile\":{tile:?},\"warps\":{warps},\
                 \"error_of_bound\":{error:.4},\"us\":{us:.2},\"tflops\":{:.1}}}",
                flops / us * 1e-6
            );
        }
    }
    Ok(wrong)
}
