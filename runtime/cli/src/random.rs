//! Random inputs that a model can take: token ids below the size of their table, masks of ones, normal floats.

use crate::error::Error;
use crate::machine;
use bytes::Bytes;
use graphene_frontend::dim::Bindings;
use graphene_frontend::dtype::DType;
use graphene_frontend::graph::{Graph, NodeId, ValueId};
use graphene_frontend::op::Op;
use graphene_frontend::tensor::{Element, Tensor, TensorError};
use half::{bf16, f16};
use std::collections::BTreeSet;

/// More elements than this are not drawn: the model's sizes are a mistake then.
const MAX_ELEMENTS: usize = 1 << 32;

/// The part of the host's memory that an input may fill.
const SHARE: u64 = 4;

/// What an input's elements may be.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) enum Range {
    /// Normal with mean 0 and deviation 1.
    Normal,
    /// Whole numbers from 0 and below this.
    Below(i64),
    /// All this number.
    All(i64),
}

/// A tensor for an input, a function of the seed, the input's name and its type.
///
/// # Errors
/// [`Error::Dim`] if a size is missing, [`Error::NoRandom`] for unreasonable sizes.
pub(crate) fn tensor(
    graph: &Graph,
    input: NodeId,
    bindings: &Bindings,
    seed: u64,
) -> Result<Tensor, Error> {
    let (name, ty) = (graph.node(input).name(), graph.ty(input.value()));
    let refused =
        |reason: String| Error::NoRandom { name: name.to_owned(), ty: ty.to_string(), reason };
    let dim_error = |source| Error::Dim { what: format!("input `{name}`"), source };
    let shape = ty.bound_shape(bindings).map_err(dim_error)?;
    let elements = graphene_frontend::tensor::checked_elements(&shape);
    let memory = machine::memory().unwrap_or(u64::MAX) / SHARE;
    let fits = |&n: &usize| n <= MAX_ELEMENTS && (n * ty.dtype.size()) as u64 <= memory;
    let elements = elements.filter(fits);
    let elements = elements.ok_or_else(|| refused(format!("{shape:?} is too large")))?;
    let range = range(graph, input, bindings);
    fill(ty.dtype, shape, elements, range, &mut Random::new(seed, name))
        .map_err(|error| refused(error.to_string()))
}

/// What an input's elements may be, by its type, its name, and what the graph does with it.
pub(crate) fn range(graph: &Graph, input: NodeId, bindings: &Bindings) -> Range {
    let (name, ty) = (graph.node(input).name(), graph.ty(input.value()));
    if name.to_ascii_lowercase().contains("mask") || ty.dtype == DType::Bool {
        return Range::All(1);
    }
    if ty.dtype.is_float() {
        return Range::Normal;
    }
    match bound(graph, input, bindings) {
        Some(Bound::Index(size)) => Range::Below(size.max(1)),
        Some(Bound::Length(size)) => Range::All(size),
        None => Range::All(1),
    }
}

#[derive(Clone, Copy)]
enum Bound {
    /// It indexes an axis of this size.
    Index(i64),
    /// It says how many of this many steps there are.
    Length(i64),
}

/// Follows an input through changes of view and type to what it indexes; the tightest bound.
fn bound(graph: &Graph, input: NodeId, bindings: &Bindings) -> Option<Bound> {
    let mut pending = vec![input];
    let mut seen = BTreeSet::new();
    let mut tightest: Option<i64> = None;
    while let Some(id) = pending.pop() {
        if !seen.insert(id) {
            continue;
        }
        for (user, edge) in graph.uses(id) {
            let node = graph.node(user);
            let size = |value: Option<ValueId>, axis: usize| -> Option<i64> {
                graph.ty(value?).shape.get(axis)?.eval(bindings).ok()
            };
            let source = node.inputs().first().copied().flatten();
            let index = match (node.op(), edge.input) {
                (
                    Op::Gather { axis }
                    | Op::GatherElements { axis }
                    | Op::ScatterElements { axis, .. },
                    1,
                ) => size(source, *axis),
                (Op::GatherNd { batch_dims }, 1) => smallest(graph, source, *batch_dims, bindings),
                (Op::ScatterNd { .. }, 1) => smallest(graph, source, 0, bindings),
                (Op::Rnn(_), 4) => return size(source, 0).map(Bound::Length),
                (op, _) if moves_only(op) => {
                    pending.push(user);
                    None
                }
                _ => None,
            };
            tightest = match (tightest, index) {
                (Some(a), Some(b)) => Some(a.min(b)),
                (a, b) => a.or(b),
            };
        }
    }
    tightest.map(Bound::Index)
}

/// The smallest of a value's sizes from an axis on.
fn smallest(
    graph: &Graph,
    value: Option<ValueId>,
    axis: usize,
    bindings: &Bindings,
) -> Option<i64> {
    let dims = graph.ty(value?).shape.iter().skip(axis);
    dims.filter_map(|dim| dim.eval(bindings).ok()).min()
}

/// Whether the operation's elements are those of its inputs.
fn moves_only(op: &Op) -> bool {
    matches!(
        op,
        Op::Reshape(_)
            | Op::Transpose(_)
            | Op::Expand(_)
            | Op::Slice(_)
            | Op::Concat { .. }
            | Op::Cast { .. }
    )
}

fn fill(
    dtype: DType,
    shape: Vec<usize>,
    elements: usize,
    range: Range,
    random: &mut Random,
) -> Result<Tensor, TensorError> {
    match dtype {
        DType::F32 => make(shape, elements, || random.float(range) as f32),
        DType::F64 => make(shape, elements, || random.float(range)),
        DType::F16 => make(shape, elements, || f16::from_f64(random.float(range))),
        DType::BF16 => make(shape, elements, || bf16::from_f64(random.float(range))),
        DType::I8 => make(shape, elements, || random.whole(range) as i8),
        DType::I16 => make(shape, elements, || random.whole(range) as i16),
        DType::I32 => make(shape, elements, || random.whole(range) as i32),
        DType::I64 => make(shape, elements, || random.whole(range)),
        DType::U8 => make(shape, elements, || random.whole(range) as u8),
        DType::U16 => make(shape, elements, || random.whole(range) as u16),
        DType::U32 => make(shape, elements, || random.whole(range) as u32),
        DType::U64 => make(shape, elements, || random.whole(range) as u64),
        DType::Bool => Tensor::new(dtype, shape, Bytes::from(vec![1; elements])),
        // Narrow integers: one is 0b1. Narrow floats: their zero is of no use, but 0b1 is a small positive number.
        DType::I4
        | DType::U4
        | DType::I2
        | DType::U2
        | DType::F8E4M3Fn
        | DType::F8E4M3FnUz
        | DType::F8E5M2
        | DType::F8E5M2FnUz
        | DType::F8E8M0
        | DType::F4E2M1 => Tensor::new(dtype, shape, Bytes::from(vec![1; elements])),
    }
}

fn make<T: Element>(
    shape: Vec<usize>,
    elements: usize,
    next: impl FnMut() -> T,
) -> Result<Tensor, TensorError> {
    Tensor::from_vec(shape, std::iter::repeat_with(next).take(elements).collect())
}

/// The sequence of splitmix64 (Steele et al., 2014).
pub(crate) struct Random {
    state: u64,
    spare: Option<f64>,
}

impl Random {
    /// A sequence for a seed and a name.
    pub(crate) fn new(seed: u64, name: &str) -> Self {
        // FNV-1a of the name.
        let state = name.bytes().fold(seed ^ 0xcbf2_9ce4_8422_2325, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        });
        Self { state, spare: None }
    }

    fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    /// Uniform in `(0, 1]`.
    fn uniform(&mut self) -> f64 {
        ((self.next() >> 11) + 1) as f64 / (1_u64 << 53) as f64
    }

    /// Normal, by Box and Muller.
    fn normal(&mut self) -> f64 {
        if let Some(spare) = self.spare.take() {
            return spare;
        }
        let radius = (-2.0 * self.uniform().ln()).sqrt();
        let angle = std::f64::consts::TAU * self.uniform();
        self.spare = Some(radius * angle.sin());
        radius * angle.cos()
    }

    fn whole(&mut self, range: Range) -> i64 {
        match range {
            Range::Below(size) => (self.next() % size.max(1) as u64) as i64,
            Range::All(number) => number,
            Range::Normal => self.normal() as i64,
        }
    }

    fn float(&mut self, range: Range) -> f64 {
        match range {
            Range::Normal => self.normal(),
            Range::Below(_) | Range::All(_) => self.whole(range) as f64,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Random, Range, range, tensor};
    use graphene_frontend::dim::{Bindings, Symbol};
    use graphene_frontend::graph::Graph;
    use graphene_frontend::op::Op;
    use graphene_frontend::tensor::Tensor;

    /// A graph that looks ids up in a table of 7 rows, by way of a reshape.
    fn embedding() -> Graph {
        let mut graph = Graph::new();
        let ids = graph.add_input("ids", "i64[batch, 5]".parse().unwrap()).unwrap();
        graph.add_input("attention_mask", "i64[batch, 5]".parse().unwrap()).unwrap();
        graph.add_input("x", "f32[batch, 1000]".parse().unwrap()).unwrap();
        graph.add_input("count", "i32[]".parse().unwrap()).unwrap();
        let table =
            graph.add_constant("table", Tensor::from_vec(vec![7, 2], vec![0_f32; 14]).unwrap());
        let shape = "f32[5*batch]".parse::<graphene_frontend::types::TensorType>().unwrap().shape;
        let flat = graph.add("flat", Op::Reshape(shape), &[Some(ids)]).unwrap();
        let rows =
            graph.add("rows", Op::Gather { axis: 0 }, &[Some(table), Some(flat.value())]).unwrap();
        graph.add_output("rows", rows.value());
        graph
    }

    #[test]
    fn ranges_follow_from_the_graph() {
        let graph = embedding();
        let mut bindings = Bindings::new();
        bindings.bind(Symbol::new("batch"), 3).unwrap();
        let ranges: Vec<_> =
            graph.inputs().iter().map(|&id| range(&graph, id, &bindings)).collect();
        assert_eq!(ranges, [Range::Below(7), Range::All(1), Range::Normal, Range::All(1)]);
        let draw = |seed| tensor(&graph, graph.inputs()[0], &bindings, seed).unwrap();
        let ids = draw(1);
        assert_eq!(ids.shape(), [3, 5]);
        assert!(ids.as_slice::<i64>().unwrap().iter().all(|id| (0..7).contains(id)));
        assert_eq!(ids, draw(1));
        assert_ne!(ids, draw(2));
    }

    #[test]
    fn normal_numbers_have_their_moments() {
        let mut random = Random::new(0, "x");
        let draws: Vec<f64> = (0..100_000).map(|_| random.normal()).collect();
        let mean = draws.iter().sum::<f64>() / draws.len() as f64;
        let square = draws.iter().map(|x| x * x).sum::<f64>() / draws.len() as f64;
        assert!(mean.abs() < 0.02 && (square - 1.0).abs() < 0.02, "{mean} {square}");
    }
}
