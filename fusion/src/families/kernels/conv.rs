//! Convolutions with what follows them, and poolings.

mod channels_last;

pub(crate) use self::channels_last::lies_channels_last;
use super::function::function_after;
use super::operand::forward;
use super::{
    Dims, Launch, Made, Pointer, Refusal, Site, StepOperand, TypedOperand, WIDTH, ensure, made,
};
use crate::base::sizes::{ceil, is_multiple};
use crate::base::variants::Variant;
use crate::base::view::View;
use crate::families::tiles::{TILED, TILES_OF_CHANNELS};
use graphene_frontend::op::{ConvAttrs, Op, PoolAttrs, PoolKind};
use graphene_frontend::{Dim, Graph, Node, NodeId, ValueId};
use graphene_ir::template::access::Stride;
use graphene_ir::template::conv::{Axis, By, Conv, Convolution, Fold, Sliding};
use graphene_ir::template::epilogue::{Epilogue, Input, Span};
use graphene_ir::template::matmul::Edges;
use graphene_ir::{Function, Scalar};

/// How many a dim is taken for whose size depends on a symbol, where tiles are chosen.
const UNKNOWN: i64 = 8;

/// The launches of a step with a convolution or a pooling: of convolutions by tiles one for each of its variants, else one for
/// all.
pub(super) fn launches(site: &Site<'_>) -> Result<Vec<Launch>, Refusal> {
    let body = &site.step.body;
    let windows = Windows::of(body)?;
    let given = body.given();
    let (function, after) = function_after(body, &given, windows.value)?;
    // The bias comes before what the other operations read.
    let first = 1 + usize::from(windows.bias.is_some());
    let others = (0..after.len()).map(|i| Function::input(first + i));
    let inner = Function::all(std::iter::once(windows.total.clone()).chain(others));
    let function = function.after(&inner);

    let shape = &body.ty(windows.value).shape;
    let mut operands = Operands { site, shape, last: false, pointers: Vec::new() };
    operands.last = operands.lie_channels_last(&windows)?;
    let windows = if operands.last { windows.of_channels(shape) } else { windows };
    let (scalar, image) = operands.image(&windows)?;
    let added = body.nodes().any(|(_, node)| match node.op() {
        Op::Conv(conv) => scalar == Scalar::I32 && adds_integers(body, node, conv),
        _ => false,
    });
    ensure(scalar.is_float() || added, Refusal::Integers)?;
    if let Some(w) = windows.weights {
        operands.weights(w, scalar, windows.group)?;
    }
    let mut inputs = Vec::with_capacity(first + after.len());
    if let Some(bias) = windows.bias {
        inputs.push(operands.bias(bias)?);
    }
    for &value in &after {
        inputs.push(operands.addend(value)?);
    }
    let outputs = (0..given.len()).map(|number| operands.result(number));
    let outputs = outputs.collect::<Result<Vec<_>, _>>()?;
    let stride = if image.is_some() { Stride::Symbol } else { Stride::Packed };
    let Windows { channels, group, axes, .. } = windows;
    let epilogue = Epilogue { function, operands: inputs, outputs };
    let convolution = Convolution { scalar, channels, group, axes, image: stride, epilogue };

    let mut dims = Dims::new();
    dims.insert("images".to_owned(), windows.images.clone());
    dims.extend(image.iter().map(|stride| ("x_stride0".to_owned(), stride.clone())));
    for (name, sizes) in [("in", windows.seen), ("out", &operands.shape[2..])] {
        let sizes = sizes.iter().enumerate();
        dims.extend(sizes.map(|(axis, size)| (format!("{name}{axis}"), size.clone())));
    }
    let pixels = operands.shape[2..].iter().product::<Dim>();
    let all_pixels = &pixels * &windows.images;
    if operands.last {
        operands.check_aligned(scalar)?;
    }
    let sliding = Sliding { channels_last: operands.last, arch: site.arch, ..Sliding::default() };
    let kernel = match windows.fold {
        Some(fold) => made!(Sliding { convolution, fold, ..sliding }),
        None if operands.last && group > 1 => {
            let pixels = channels_last::pixels_of_thread(site.target, &convolution, &all_pixels);
            made!(Sliding { convolution, pixels, threads: 128, ..sliding })
        }
        None if operands.last => {
            let is_weight = site.is_weight(operands.pointers[1].operand);
            return site.launch_each(|variant| {
                let (mut dims, of) = (dims.clone(), (convolution.clone(), is_weight));
                let kernel = channels_last::kernel(site, of, &all_pixels, variant, &mut dims)?;
                Ok(site.launch(kernel, &dims, operands.pointers.clone()))
            });
        }
        None if channels[1] / group < TILED => made!(Sliding { convolution, ..sliding }),
        None => {
            let edges = operands.edges(&convolution, &pixels, image.as_ref());
            return site.launch_each(|variant| {
                let kernel = tiled(site, convolution.clone(), edges, &all_pixels, variant)?;
                Ok(site.launch(kernel, &dims, operands.pointers.clone()))
            });
        }
    };
    Ok(vec![site.launch(kernel?, &dims, operands.pointers)])
}

/// Whether a convolution of integers has a kernel: one by tiles. What slides over windows, and what adds biases, computes in single
/// precision, which does not hold all sums.
pub(crate) fn adds_integers(graph: &Graph, node: &Node, conv: &ConvAttrs) -> bool {
    let made = node.input(1).and_then(|w| graph.ty(w).shape[0].known());
    let made_of_group = made.zip(number(conv.group).ok()).map(|(made, group)| made / group);
    node.input(2).is_none() && made_of_group.is_some_and(|made| made >= TILED)
}

/// The kernel of a convolution by tiles. By single threads, which multiply integers, too, they are the variant's; by tensor cores,
/// for half and for single precision that may be rounded to TF32, the largest of which there is one for each core.
fn tiled(
    site: &Site<'_>,
    convolution: Convolution,
    [weights, pixels]: [Edges; 2],
    columns: &Dim,
    variant: &Variant,
) -> graphene_ir::Result<Made> {
    let Convolution { scalar, channels: [_, made], group, .. } = convolution;
    let (single, threads) = (scalar == Scalar::F32, site.is_by_threads(scalar));
    let conv = Conv { convolution, arch: site.arch, weights, pixels, ..Conv::default() };
    if threads {
        let [.., (_, least)] = TILES_OF_CHANNELS;
        let of_name = TILES_OF_CHANNELS.into_iter().find(|(name, _)| *name == variant.name);
        let tile = of_name.map_or(least, |(_, tile)| tile);
        let (thread, warps) = match tile {
            [128, _] => ([8, 8], 8),
            [64, _] => ([4, 4], 8),
            _ => ([4, 4], 4),
        };
        let stages = site.stages(3);
        return made!(Conv { by: By::Threads(thread), tile, warps, depth: 16, stages, ..conv });
    }
    let made = made / group;
    let columns = columns.known().unwrap_or(UNKNOWN * 1024);
    let cores = i64::from(site.target.cores);
    let fills = |[rows, of_tile]: [i64; 2]| {
        let fits = rows == 16 || made > rows / 2;
        fits && ceil(made, rows) * ceil(columns, of_tile) * group >= cores
    };
    // Of words, and by quad pairs, registers do not hold the sums of the widest and all that their copies need.
    let widest = usize::from(single || site.arch.multiplies_by_quad_pairs());
    let tiles = &[[128, 128], [64, 128], [64, 64], [32, 64], [16, 64]][widest..];
    let tile = tiles.iter().copied().find(|tile| fills(*tile)).unwrap_or([16, 64]);
    // What older GPUs have room for.
    let stages = site.stages(if single { 3 } else { 4 });
    made!(Conv { tile, stages, ..conv })
}

/// The operation of a body that has windows.
struct Windows<'a> {
    /// What it gives.
    value: ValueId,
    x: ValueId,
    weights: Option<ValueId>,
    bias: Option<ValueId>,
    /// What a window is folded to: the sum of products, if nothing else.
    fold: Option<Fold>,
    /// What it gives, of what the window is folded to, and of the bias.
    total: Function,
    images: Dim,
    /// The sizes of an image that is read.
    seen: &'a [Dim],
    channels: [i64; 2],
    group: i64,
    axes: Vec<Axis>,
}

impl<'a> Windows<'a> {
    fn of(body: &'a Graph) -> Result<Self, Refusal> {
        let transposed = Some(Fold::Transposed);
        let mut found = body.nodes().filter_map(|(id, node)| match node.op() {
            Op::Conv(attrs) | Op::WideConv(attrs) => Some(Self::convolution(body, id, attrs, None)),
            Op::ConvTranspose { conv, .. } => Some(Self::convolution(body, id, conv, transposed)),
            Op::Pool(attrs) => Some(Self::pooling(body, id, attrs)),
            _ => None,
        });
        match (found.next(), found.next()) {
            (Some(windows), None) => windows,
            (Some(_), Some(_)) => Err(Refusal::Operation("several convolutions")),
            (None, _) => Err(Refusal::Operation("a convolution of nothing")),
        }
    }

    fn convolution(
        body: &'a Graph,
        id: NodeId,
        attrs: &ConvAttrs,
        fold: Option<Fold>,
    ) -> Result<Self, Refusal> {
        let (value, node) = (id.value(), body.node(id));
        let nothing = Refusal::Operation("a convolution of nothing");
        let (Some(x), Some(w)) = (node.input(0), node.input(1)) else { return Err(nothing) };
        let bias = node.input(2);
        let [of_x, of_w, of_y] = [x, w, value].map(|value| &body.ty(value).shape);
        let known = |dim: &Dim| dim.known().ok_or(Refusal::Layout("channels of unknown number"));
        let axis = |axis: usize| {
            let window = known(&of_w[2 + axis])?;
            Self::axis(window, attrs.strides[axis], attrs.dilations[axis], attrs.pads_before[axis])
        };
        let total = match bias {
            Some(_) => Function::input(0) + Function::input(1),
            None => Function::input(0),
        };
        Ok(Self {
            value,
            x,
            weights: Some(w),
            bias,
            fold,
            total,
            images: of_x[0].clone(),
            seen: &of_x[2..],
            channels: [known(&of_x[1])?, known(&of_y[1])?],
            group: number(attrs.group)?,
            axes: (0..of_x.len() - 2).map(axis).collect::<Result<_, _>>()?,
        })
    }

    fn axis(window: i64, stride: usize, dilation: usize, pad: i64) -> Result<Axis, Refusal> {
        Ok(Axis { window, stride: number(stride)?, dilation: number(dilation)?, pad })
    }

    fn pooling(body: &'a Graph, id: NodeId, attrs: &PoolAttrs) -> Result<Self, Refusal> {
        let x = body.node(id).input(0).ok_or(Refusal::Operation("a pooling of nothing"))?;
        let shape = &body.ty(x).shape;
        let axes = (0..attrs.kernel.len()).map(|axis| {
            let (window, pad) = (number(attrs.kernel[axis])?, number(attrs.pads_before[axis])?);
            Self::axis(window, attrs.strides[axis], attrs.dilations[axis], pad)
        });
        let axes = axes.collect::<Result<Vec<Axis>, Refusal>>()?;
        let mut total = Function::input(0);
        let fold = match attrs.kind {
            PoolKind::Max { indices: None } => Fold::Max,
            PoolKind::Max { indices: Some(_) } => {
                return Err(Refusal::Operation("the places of largest elements"));
            }
            PoolKind::Average { include_pad: false } => Fold::Mean,
            PoolKind::Average { include_pad: true } if attrs.ceil => {
                return Err(Refusal::Operation("means over windows that end in no padding"));
            }
            PoolKind::Average { include_pad: true } => {
                let elements: i64 = axes.iter().map(|axis| axis.window).product();
                total = total / elements as f64;
                Fold::Sum
            }
            PoolKind::Lp { .. } => return Err(Refusal::Operation("norms of windows")),
        };
        // Each channel is an image of its own.
        Ok(Self {
            value: id.value(),
            x,
            weights: None,
            bias: None,
            fold: Some(fold),
            total,
            images: &shape[0] * &shape[1],
            seen: &shape[2..],
            channels: [1, 1],
            group: 1,
            axes,
        })
    }
}

impl Windows<'_> {
    /// Of images whose channels are innermost: those of a pooling are no images of their own.
    fn of_channels(self, shape: &[Dim]) -> Self {
        match (self.fold, shape[1].known()) {
            (Some(Fold::Max | Fold::Sum), Some(all)) => {
                Self { images: shape[0].clone(), channels: [all; 2], group: all, ..self }
            }
            _ => self,
        }
    }
}

fn number(size: usize) -> Result<i64, Refusal> {
    i64::try_from(size).map_err(|_| Refusal::Layout("windows larger than any memory"))
}

/// A step's operands, as the template takes them: in the order in which they are added.
struct Operands<'a> {
    site: &'a Site<'a>,
    /// That of the result.
    shape: &'a [Dim],
    /// Whether channels are innermost in all that has pixels, and in weights.
    last: bool,
    pointers: Vec<Pointer>,
}

impl<'a> Operands<'a> {
    fn read(&self, value: ValueId) -> Result<TypedOperand<'a>, Refusal> {
        self.site.read(Some(value), "a convolution of a value that the launch itself computes")
    }

    /// Whether a view has no gaps, in the operands' order.
    fn packed(&self, view: &View) -> bool {
        if self.last { lies_channels_last(view) } else { view.is_packed() }
    }

    /// The type of x, and how far images are apart, unless they are packed.
    fn image(&mut self, windows: &Windows<'_>) -> Result<(Scalar, Option<Dim>), Refusal> {
        let image = self.read(windows.x)?;
        let TypedOperand { scalar, view, .. } = image;
        self.pointers.push(image.pointer());
        if self.last || view.is_packed() {
            return Ok((scalar, None));
        }
        // Poolings have one image for each channel.
        let inner = View { offset: Dim::from(0), modes: view.modes[1..].to_vec() };
        let apart = &view.modes[0].stride;
        let even = windows.weights.is_some() && inner.is_packed() && *apart != 0;
        let odd = Refusal::Layout("images whose pixels or channels are not packed");
        ensure(even && forward(&view.modes).is_ok(), odd)?;
        Ok((scalar, Some(apart.clone())))
    }

    fn weights(&mut self, value: ValueId, scalar: Scalar, group: i64) -> Result<(), Refusal> {
        let weights = self.read(value)?;
        ensure(weights.scalar == scalar, Refusal::Layout("a convolution of two types"))?;
        let packed = match self.last {
            true => channels_last::weights_lie_channels_last(weights.view, group),
            false => weights.view.is_packed(),
        };
        ensure(packed, Refusal::Layout("weights that are not packed"))?;
        self.pointers.push(weights.pointer());
        Ok(())
    }

    fn bias(&mut self, value: ValueId) -> Result<Input, Refusal> {
        let bias = self.read(value)?;
        ensure(bias.view.is_packed(), Refusal::Layout("a bias that is not packed"))?;
        self.pointers.push(bias.pointer());
        Ok(Input { span: Span::Column, scalar: Some(bias.scalar) })
    }

    /// What broadcasts to the result.
    fn addend(&mut self, value: ValueId) -> Result<Input, Refusal> {
        let addend = self.read(value)?;
        let span = match addend.view.expand(self.shape) {
            Some(whole) if self.packed(&whole) => Span::Whole,
            Some(whole) if is_channels(&whole) => Span::Column,
            _ => return Err(Refusal::Layout("an addend that is no channel's nor the result's")),
        };
        self.pointers.push(addend.pointer());
        Ok(Input { span, scalar: Some(addend.scalar) })
    }

    fn result(&mut self, number: usize) -> Result<Option<Scalar>, Refusal> {
        let result = self.site.operand(StepOperand::Output(number))?;
        let packed = result.view.shape() == self.shape && self.packed(result.view);
        ensure(packed, Refusal::Layout("a result that is not packed"))?;
        self.pointers.push(result.pointer());
        Ok(Some(result.scalar))
    }

    /// Whether all operands begin where several elements move at once.
    fn check_aligned(&self, scalar: Scalar) -> Result<(), Refusal> {
        let begins = |pointer: &Pointer| is_multiple(&pointer.offset, WIDTH / scalar.bytes());
        let odd = Refusal::Layout("operands that begin at no multiple of 16 bytes");
        ensure(self.pointers.iter().all(begins), odd)
    }

    fn edges(&self, convolution: &Convolution, pixels: &Dim, image: Option<&Dim>) -> [Edges; 2] {
        let aligned = |dim: &Dim| is_multiple(dim, WIDTH / convolution.scalar.bytes());
        let weights = &self.pointers[1];
        let others = self.pointers.iter().filter(|pointer| *pointer != weights);
        let whole = others.map(|pointer| &pointer.offset).chain([pixels]).chain(image).all(aligned);
        let weights = aligned(&weights.offset) && aligned(&Dim::from(convolution.depth()));
        [weights, whole].map(|bulk| if bulk { Edges::Bulk } else { Edges::Moves })
    }
}

/// Whether a view has one element for each channel.
fn is_channels(view: &View) -> bool {
    let mut modes = view.modes.iter().enumerate().filter(|(_, mode)| mode.size != 1);
    modes.all(|(axis, mode)| mode.stride == i64::from(axis == 1))
}
