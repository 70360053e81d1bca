//! Results that are put together: joins, surroundings, ranges and sizes, the same bits as another type.

use super::operand::Axes;
use super::{
    Dims, Launch, Pointer, Refusal, Site, StepOperand, WIDTH, bits, by_name, ensure,
    lies_channels_last, made, pointwise,
};
use crate::base::sizes::is_multiple;
use crate::base::view::View;
use crate::families::grids::widest;
use graphene_frontend::dim::{Bindings, Dim};
use graphene_frontend::dtype::DType;
use graphene_frontend::graph::{Node, ValueId};
use graphene_frontend::op::{Op, PadMode, SliceAxis};
use graphene_ir::kernel::Number;
use graphene_ir::template::conv::Filled;
use graphene_ir::template::parts::{Part, Parts, Source};

/// Bytes of a kernel's parameters at most, whatever compiles it: 8 for each operand, 4 for each symbol.
const PARAMETERS: usize = 4096;

/// What a symbol is at most where a size that is made of several is asked to be less than 2³¹.
const LONGEST: i64 = 1 << 15;

/// A box of the result, and what stands there.
struct Piece {
    to: View,
    what: What,
}

enum What {
    /// An operand's elements.
    Copied(StepOperand, View),
    Zeros,
    /// Numbers from this one on.
    Counted(Dim),
}

/// The launch of a step that moves elements, or makes them of sizes; refused so, if it is another one.
pub(super) fn launch(site: &Site<'_>, other: Refusal) -> Result<Launch, Refusal> {
    let body = &site.step.body;
    let pieces = match body.only_operation() {
        None if body.nodes().any(|(_, node)| node.is_operation()) => {
            Err(Refusal::Operation("several movements in one step"))
        }
        None => copied(site),
        Some(node) => match node.op() {
            Op::Concat { axis } => joined(site, node, *axis),
            Op::Pad { mode: PadMode::Constant, before, after } => {
                if let Some(filled) = filled(site, node, before, after) {
                    return filled;
                }
                surrounded(site, node, [before, after])
            }
            Op::Pad { .. } => Err(Refusal::Operation("borders that are elements of the operand")),
            Op::BitCast(_) => copied(site),
            Op::Iota(_) => counted(site, Dim::from(0)),
            Op::Size(size) if !is_symbol(size) => {
                Err(Refusal::Operation("sizes that may be negative, or 2³¹ and more"))
            }
            Op::Size(size) => counted(site, size.clone()),
            _ => return Err(other),
        },
    };
    made(site, &pieces?)
}

/// Whether a kernel's symbols can have the value: it is not negative, and less than 2³¹ where no symbol is beyond
/// [`LONGEST`].
fn is_symbol(dim: &Dim) -> bool {
    let mut long = Bindings::new();
    let bound = dim.symbols().into_iter().try_for_each(|symbol| long.bind(symbol, LONGEST));
    let most = bound.and_then(|()| dim.eval(&long));
    dim.lower_bound().is_some_and(|least| least >= 0)
        && most.is_ok_and(|most| most <= i64::from(i32::MAX))
}

fn result<'a>(site: &Site<'a>) -> &'a View {
    &site.step.outputs[0].view
}

fn type_of(site: &Site<'_>) -> DType {
    site.program.buffers()[site.step.outputs[0].buffer.index()].dtype
}

/// What an input of the operation is.
fn input(site: &Site<'_>, value: ValueId) -> Result<What, Refusal> {
    let number = site.step.body.place_of_input(value);
    let number = number.ok_or(Refusal::Layout("parts that are no operands"))?;
    Ok(What::Copied(StepOperand::Input(number), site.step.inputs[number].view.clone()))
}

fn copied(site: &Site<'_>) -> Result<Vec<Piece>, Refusal> {
    let value = site.step.body.inputs().first().ok_or(Refusal::Operation("copies of nothing"))?;
    Ok(vec![Piece { to: result(site).clone(), what: input(site, value.value())? }])
}

fn counted(site: &Site<'_>, first: Dim) -> Result<Vec<Piece>, Refusal> {
    Ok(vec![Piece { to: result(site).clone(), what: What::Counted(first) }])
}

/// A range of a view along one axis.
fn range(of: &View, axis: usize, start: &Dim, len: &Dim) -> View {
    of.slice(&[SliceAxis { axis, start: start.clone(), len: len.clone(), step: 1 }])
}

fn joined(site: &Site<'_>, node: &Node, axis: usize) -> Result<Vec<Piece>, Refusal> {
    let mut start = Dim::from(0);
    let mut pieces = Vec::with_capacity(node.inputs().len());
    for &value in node.inputs().iter().flatten() {
        let len = &site.step.body.ty(value).shape[axis];
        let to = range(result(site), axis, &start, len);
        pieces.push(Piece { to, what: input(site, value)? });
        start = &start + len;
    }
    Ok(pieces)
}

/// The launch of an image with more channels, which are zeros and innermost in memory; `None` for another pad.
fn filled(
    site: &Site<'_>,
    node: &Node,
    before: &[Dim],
    after: &[Dim],
) -> Option<Result<Launch, Refusal>> {
    let (&[Some(x)] | &[Some(x), None], [_, lacks, ..]) = (node.inputs(), after) else {
        return None;
    };
    let channels_alone = before.iter().chain(after).filter(|dim| **dim != 0).count() == 1;
    let What::Copied(operand, from) = input(site, x).ok()? else { return None };
    let (scalar, to) = (bits(type_of(site)).ok()?, result(site));
    let read = from.modes.get(1)?.size.known()?;
    let made = read + lacks.known()?;
    let whole = made * scalar.bytes() == WIDTH && is_multiple(&to.offset, made);
    if !channels_alone || made == read || !whole || !lies_channels_last(to) || !from.is_contiguous()
    {
        return None;
    }
    let arch = site.arch;
    let kernel = made!(Filled { scalar, channels: [read, made], arch, ..Filled::default() });
    let pixels = from.modes[2..].iter().map(|mode| &mode.size).product::<Dim>();
    let dims = Dims::from(by_name([("images", from.modes[0].size.clone()), ("pixels", pixels)]));
    let pointers = vec![Pointer::to(operand, &from), Pointer::to(StepOperand::Output(0), to)];
    Some(kernel.map(|kernel| site.launch(kernel, &dims, pointers)).map_err(Refusal::from))
}

/// Around the operand, what is before and after it along one axis after the other, each box as wide as the operand along
/// those that came before.
fn surrounded(
    site: &Site<'_>,
    node: &Node,
    [before, after]: [&[Dim]; 2],
) -> Result<Vec<Piece>, Refusal> {
    let border = || node.input(1).map_or(Ok(What::Zeros), |value| input(site, value));
    let nothing = Refusal::Operation("a pad of nothing");
    let Some(operand) = node.input(0) else { return Err(nothing) };
    let What::Copied(from, mut inner) = input(site, operand)? else { return Err(nothing) };
    let (mut rest, mut pieces) = (result(site).clone(), Vec::new());
    for (axis, (before, after)) in before.iter().zip(after).enumerate() {
        let zero = Dim::from(0);
        let own = inner.modes[axis].size.clone();
        // What is negative cuts the operand.
        let cut = [before, after].map(|dim| dim.known().filter(|&n| n < 0).unwrap_or(0));
        let forward = |dim: &Dim| dim.lower_bound().is_some_and(|least| least >= 0);
        let mut borders = [before, after].into_iter().zip(cut);
        let known = borders.all(|(dim, cut)| cut != 0 || forward(dim));
        ensure(known, Refusal::Layout("a border whose sign depends on a symbol"))?;
        let [low, high] = cut.map(|cut| Dim::from(-cut));
        let len = &(&own - &low) - &high;
        let fits = cut == [0, 0] || forward(&len);
        ensure(fits, Refusal::Layout("a cut of more than there may be"))?;
        inner = range(&inner, axis, &low, &len);
        let (before, after) = (before + &low, after + &high);
        let end = &before + &len;
        for (start, len) in [(&zero, &before), (&end, &after)] {
            if *len != 0 {
                pieces.push(Piece { to: range(&rest, axis, start, len), what: border()? });
            }
        }
        rest = range(&rest, axis, &before, &len);
    }
    pieces.push(Piece { to: rest, what: What::Copied(from, inner) });
    Ok(pieces)
}

fn made(site: &Site<'_>, pieces: &[Piece]) -> Result<Launch, Refusal> {
    let scalar = bits(type_of(site))?;
    let mut dims = Dims::new();
    let (mut parts, mut pointers) = (Vec::new(), Vec::new());
    let mut items = Dim::from(0);
    for (p, Piece { to, what }) in pieces.iter().enumerate() {
        let mut views = vec![to];
        if let What::Copied(_, from) = what {
            views.push(from);
        }
        let axes = Axes::of(&views)?;
        dims.extend(axes.named(&format!("N{p}_")));
        let offsets: Vec<&Dim> = views.iter().map(|view| &view.offset).collect();
        let vector = match what {
            What::Counted(_) => 1,
            What::Copied(..) | What::Zeros => axes.vector(&offsets, widest(scalar.bytes())),
        };
        let target = axes.access(0, &format!("y{p}"), scalar, &mut dims);
        pointers.push(Pointer::to(StepOperand::Output(0), to));
        let source = match what {
            What::Copied(operand, from) => {
                pointers.push(Pointer::to(*operand, from));
                Source::Copied(axes.access(1, &format!("x{p}"), scalar, &mut dims))
            }
            What::Zeros => Source::Filled(Number(0.0)),
            What::Counted(first) => {
                dims.insert(format!("first{p}"), first.clone());
                Source::Counted
            }
        };
        items = &items + &pointwise::items(&axes, vector);
        parts.push(Part { source, to: target, vector });
    }
    let threads = pointwise::threads(site, &items, &mut dims);
    let made = made!(Parts { arch: site.arch, parts, threads })?;
    let kernel = &made.0;
    let bytes = 8 * kernel.params.len() + 4 * kernel.symbols.len();
    ensure(bytes <= PARAMETERS, Refusal::Operation("so many parts"))?;
    Ok(site.launch(made, &dims, pointers))
}
