//! Attention in one call of cuDNN: which attentions it takes, and how the others are spelled.

use super::matmul::if_any;
use super::optional_text;
use crate::base::elements::{self, is_real, number_of};
use crate::base::groups::Family;
use crate::base::program::{Operand, Program, Step};
use crate::base::rebuild::{InPlace, Rebuilt, rebuilt};
use crate::base::sizes::is_multiple;
use crate::base::view::{Mode, View};
use crate::families::kernels::{Pointer, StepOperand, are_alike, launches};
use crate::families::layout::{is_view, transposed};
use graphene_frontend::op::{AttentionAttrs, Binary, Op, Unary};
use graphene_frontend::{DType, Dim, Graph, Node, NodeId, ValueId};
use graphene_ir::target::Target;
use std::collections::BTreeSet;
use std::fmt;

/// One call for attention: `result = softmax(scale · q·kᵀ + mask) · v`.
#[derive(Clone, PartialEq, Debug)]
pub struct Sdpa {
    /// The elements of all operands, f16 or bf16; sums, scores and weights are of single precision.
    pub dtype: DType,
    /// `[batch, heads, queries, depth]`
    pub q: Heads,
    /// `[batch, groups, keys, depth]`, where heads are a multiple of groups.
    pub k: Heads,
    /// `[batch, groups, keys, columns]`
    pub v: Heads,
    /// Added to scores: `[batch, heads, queries, keys]`, of which all but the last may be one.
    pub mask: Option<Heads>,
    /// `[batch, heads, queries, columns]`
    pub result: Heads,
    /// Multiplies the scores.
    pub scale: f32,
    /// Query i attends keys 0..=i only.
    pub causal: bool,
}

/// A tensor of four dims in an operand's buffer.
#[derive(Clone, PartialEq, Debug)]
pub struct Heads {
    /// Where its first element lies.
    pub pointer: Pointer,
    /// Sizes and distances of its dims, in elements; those of the last lie side by side.
    pub modes: [Mode; 4],
}

/// Elements of a head at most.
const WIDEST: i64 = 256;

/// Bytes at multiples of which rows begin.
const ALIGNMENT: i64 = 16;

/// Whether cuDNN takes an attention, as far as its attributes and types say. It computes in half precision, from masks
/// of numbers, and says nothing of what a row is that may attend nowhere, so that ones that need their guard are a
/// kernel's.
fn is_sdpa(graph: &Graph, node: &Node, attrs: &AttentionAttrs) -> bool {
    let Some(ty) = node.outputs().first() else { return false };
    let AttentionAttrs { softcap, guarded, fill, .. } = *attrs;
    let mask = node.input(3).map(|mask| graph.ty(mask));
    let adds = mask.is_none_or(|mask| match mask.dtype {
        DType::Bool => fill == f32::NEG_INFINITY,
        dtype => dtype == ty.dtype && mask.shape.last().is_some_and(|keys| *keys != 1),
    });
    let half = matches!(ty.dtype, DType::F16 | DType::BF16);
    half && softcap == 0.0
        && !guarded
        && adds
        && widths(graph, node).is_some_and(|most| most <= WIDEST)
}

/// The larger of the sizes of a row of keys and of values, where both are multiples of [`ALIGNMENT`].
fn widths(graph: &Graph, node: &Node) -> Option<i64> {
    let width = |place: usize| {
        let ty = graph.ty(node.input(place)?);
        let size = ty.shape.last()?.known()?;
        let bytes = size.checked_mul(ty.dtype.size() as i64)?;
        (bytes > 0 && bytes % ALIGNMENT == 0).then_some(size)
    };
    Some(width(1)?.max(width(2)?))
}

/// Whether attention reads an operand so: its rows begin at multiples of [`ALIGNMENT`], and a mask's keys lie side by side.
pub(super) fn is_attended(graph: &Graph, reader: NodeId, value: ValueId, view: &View) -> bool {
    let unit = ALIGNMENT / graph.ty(value).dtype.size().max(1) as i64;
    let [outer @ .., last] = &view.modes[..] else { return false };
    let forward = |dim: &Dim| dim.lower_bound().is_some_and(|least| least >= 0);
    let strides = || outer.iter().map(|mode| &mode.stride).chain([&view.offset]);
    let aligned = || strides().all(|dim| is_multiple(dim, unit));
    let side_by_side = last.stride == 1 && strides().all(forward);
    let slots = graph.node(reader).inputs().iter().enumerate();
    let mut slots = slots.filter(|(_, input)| **input == Some(value)).map(|(slot, _)| slot);
    side_by_side && slots.all(|slot| slot == 3 || aligned())
}

/// The order of dims in memory in which attention writes, as what reads it wants it: of each row the elements stay side
/// by side.
pub(crate) fn heads_order(graph: &Graph, value: ValueId) -> Option<Vec<usize>> {
    let order = transposed(graph, value).filter(|_| !graph.gives(value.node))?;
    (order.last() == Some(&(order.len() - 1))).then_some(order)
}

/// The graph with attentions as libraries have them: masks of truth values as numbers for those that cuDNN takes; of the
/// others, matmuls and a softmax for those that no kernel takes or that a kernel has no advantage in, being of single
/// precision. By matmuls, those that a call would take are matmuls and a softmax, too, but for causal ones and those
/// with shared heads.
pub(crate) fn spelled(graph: &Graph, by: AttentionBy) -> Rebuilt<Graph> {
    rebuilt(graph, |mut at, _, inputs| {
        let Op::Attention(attrs) = at.node.op() else { return Ok(None) };
        let attrs = without_guard(graph, at.node, attrs);
        let call = is_sdpa(graph, at.node, &attrs);
        let kernel = attrs.fill == f32::NEG_INFINITY && widths(graph, at.node).is_some();
        let plain = !attrs.guarded && attrs.softcap == 0.0;
        let pays = if call { plain && by == AttentionBy::MatMuls } else { plain || !kernel };
        if pays && has_matmuls(graph, at.node, &attrs) {
            return matmuls(at, &attrs, inputs).map(Some);
        }
        let mut inputs = inputs.to_vec();
        if let &[_, _, _, Some(mask)] = &inputs[..]
            && call
            && at.graph.ty(mask).dtype == DType::Bool
        {
            let dtype = at.node.outputs()[0].dtype;
            let (none, all) = (at.number(dtype, 0.0), at.number(dtype, f32::NEG_INFINITY));
            inputs[3] = Some(at.add(Op::Select, &[mask, none, all])?);
        }
        at.add_optional(Op::Attention(attrs), &inputs).map(Some)
    })
}

/// The attentions that no template takes as their operands lie, by name. Equal steps are asked about once.
pub(crate) fn attention_without_kernel(program: &Program, target: &Target) -> BTreeSet<String> {
    let mut known: Vec<(&Step, bool)> = Vec::new();
    let mut without = BTreeSet::new();
    for step in program.steps().iter().filter(|step| step.family == Family::Fmha) {
        let found = known.iter().find(|(of, _)| are_alike(program, of, step));
        let takes = found.map_or_else(|| launches(program, step, target).is_ok(), |known| known.1);
        known.push((step, takes));
        if !takes {
            without.extend(step.nodes.iter().cloned());
        }
    }
    without
}

/// The graph with the attentions of these names as matmuls and a softmax, where they have such a spelling.
pub(crate) fn without_attention(graph: &Graph, names: &BTreeSet<String>) -> Rebuilt<Graph> {
    rebuilt(graph, |at, _, inputs| match at.node.op() {
        Op::Attention(attrs)
            if names.contains(at.node.name()) && has_matmuls(graph, at.node, attrs) =>
        {
            matmuls(at, attrs, inputs).map(Some)
        }
        _ => Ok(None),
    })
}

/// How the library computes attention, on a GPU.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum AttentionBy {
    /// In one call wherever cuDNN has one.
    Calls,
    /// By strided batches of matmuls and a softmax between them wherever that can be: what libraries had before.
    MatMuls,
}

/// The attributes without a guard against NaN, where no row of finite operands needs it: nothing is masked, or masked by
/// finite numbers.
fn without_guard(graph: &Graph, node: &Node, attrs: &AttentionAttrs) -> AttentionAttrs {
    let finite = |value: &Option<ValueId>| {
        value.and_then(|value| number_of(graph, value)).is_some_and(f64::is_finite)
    };
    let needless =
        node.input(3).is_none_or(|mask| match graph.operation(graph.through(mask, is_view)) {
            (Op::Select, [_, chosen @ ..]) => chosen.iter().all(finite),
            _ => false,
        });
    AttentionAttrs { guarded: attrs.guarded && !needless, ..attrs.clone() }
}

/// Whether matmuls and a softmax compute it: it is of reals, not causal, and shares no heads.
fn has_matmuls(graph: &Graph, node: &Node, attrs: &AttentionAttrs) -> bool {
    let heads = |place: usize| graph.ty(node.input(place)?).shape.get(1);
    !attrs.causal && heads(0) == heads(1) && is_real(node.outputs()[0].dtype)
}

impl InPlace<'_> {
    fn number(&mut self, dtype: DType, number: f32) -> ValueId {
        let number = elements::number(dtype, f64::from(number));
        self.constant(number.expect("attention is of real numbers"))
    }
}

/// Attention of real numbers as matmuls and a softmax.
fn matmuls(
    mut at: InPlace<'_>,
    attrs: &AttentionAttrs,
    inputs: &[Option<ValueId>],
) -> Rebuilt<ValueId> {
    let [q, k, v] =
        [0, 1, 2].map(|place| inputs[place].expect("inference gives attention q, k and v"));
    let AttentionAttrs { scale, softcap, guarded, fill, .. } = *attrs;
    let dtype = at.graph.ty(q).dtype;
    let k = at.add(Op::Transpose(vec![0, 1, 3, 2]), &[k])?;
    let mut scores = at.add(Op::MatMul, &[q, k])?;
    let inner = if softcap == 0.0 { scale } else { scale / softcap };
    if inner != 1.0 {
        let inner = at.number(dtype, inner);
        scores = at.binary(Binary::Mul, scores, inner)?;
    }
    if softcap != 0.0 {
        scores = at.add(Op::Unary(Unary::Tanh), &[scores])?;
        let outer = at.number(dtype, softcap);
        scores = at.binary(Binary::Mul, scores, outer)?;
    }
    scores = match inputs.get(3).copied().flatten() {
        None => scores,
        Some(mask) if at.graph.ty(mask).dtype == DType::Bool => {
            let fill = at.number(dtype, fill);
            at.add(Op::Select, &[mask, scores, fill])?
        }
        Some(mask) => at.binary(Binary::Add, scores, mask)?,
    };
    let mut weights = at.add(Op::Softmax { axis: 3, log: false }, &[scores])?;
    if guarded {
        let nan = at.add(Op::Unary(Unary::IsNan), &[weights])?;
        let zero = at.number(dtype, 0.0);
        weights = at.add(Op::Select, &[nan, zero, weights])?;
    }
    at.add(Op::MatMul, &[weights, v])
}

/// The call that computes a step, if one does.
pub fn sdpa(program: &Program, step: &Step) -> Option<Sdpa> {
    let body = &*step.body;
    let node = body.only_operation()?;
    let Op::Attention(attrs) = node.op() else { return None };
    if step.family != Family::Fmha || !is_sdpa(body, node, attrs) {
        return None;
    }
    let dtype = node.outputs()[0].dtype;
    let input = |value: ValueId| {
        let (number, operand) = super::matmul::read(program, step, value, dtype)?;
        heads(number, operand)
    };
    let read = |place: usize| input(node.input(place)?);
    // Only of numbers: a mask of truth values has other elements.
    let mask = if_any(node.input(3), |mask| input(mask).map(broadcast))?;
    let aligned = |heads: &Heads| {
        let strides = heads.modes[..3].iter().map(|mode| &mode.stride);
        let mut begin = strides.chain([&heads.pointer.offset]);
        begin.all(|dim| is_multiple(dim, ALIGNMENT / dtype.size() as i64))
    };
    let result = heads(StepOperand::Output(0), step.outputs.first()?)?;
    let (q, k, v) = (read(0)?, read(1)?, read(2)?);
    let AttentionAttrs { scale, causal, .. } = *attrs;
    let all = [&q, &k, &v, &result].into_iter().all(aligned);
    all.then_some(Sdpa { dtype, q, k, v, mask, result, scale, causal })
}

/// An operand of at most four dims, the last of which lies side by side.
fn heads(operand: StepOperand, Operand { view, .. }: &Operand) -> Option<Heads> {
    let mut modes = vec![Mode { size: Dim::from(1), stride: Dim::from(0) }; 4];
    let first = modes.len().checked_sub(view.modes.len())?;
    modes.splice(first.., view.modes.iter().cloned());
    let modes: [Mode; 4] = modes.try_into().ok()?;
    (modes[3].stride == 1).then_some(Heads { pointer: Pointer::to(operand, view), modes })
}

/// A mask whose dims are one where they repeat.
fn broadcast(mut mask: Heads) -> Heads {
    for mode in mask.modes[..3].iter_mut().filter(|mode| mode.stride == 0) {
        mode.size = Dim::from(1);
    }
    mask
}

/// Prints as `attention of [b, 12, s, 64] by [b, 12, t, 64], mask [b, 1, 1, t] f16: 0.125·in0[…]·in1[…] + in3[…], in2[…] ->
/// out0[…]`, with the distances of batches, heads and rows.
impl fmt::Display for Sdpa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { dtype, q, k, v, mask, result, scale, causal } = self;
        let masked = optional_text(", mask ", mask.as_ref().map(sizes), "");
        let causal = if *causal { ", causal" } else { "" };
        write!(f, "attention of {} by {}{masked}{causal} {dtype}: ", sizes(q), sizes(k))?;
        let mask = optional_text(" + ", mask.as_ref(), "");
        write!(f, "{scale}·{q}·{k}{mask}, {v} -> {result}")
    }
}

impl fmt::Display for Heads {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [batch, head, row, _] = self.modes.each_ref().map(|mode| &mode.stride);
        write!(f, "{}[{batch}, {head}, {row}]", self.pointer)
    }
}

fn sizes(heads: &Heads) -> String {
    let [batch, head, row, element] = heads.modes.each_ref().map(|mode| &mode.size);
    format!("[{batch}, {head}, {row}, {element}]")
}
