//! The operations of a graph that have to be placed, seen through changes of view.
//!
//! A reshape, a transpose, a slice or an expansion is no operation here: who reads its result reads the value
//! beneath. The operations stand in an order of their own, topological and depth first, so that what feeds what
//! stands near it; shapes are interned and sizes are those of the planning hints.

use crate::base::constants::constants;
use crate::base::elements::{is_plain, is_real};
use crate::base::groups::{Executor, Family};
use crate::base::sizes::planning_sizes;
use crate::families::executor::executor;
use crate::families::kernels::{Numbers, adds_integers};
use crate::families::layout::{Layouts, is_view};
use crate::partition::set::{OpId, Set};
use crate::rewrite::integers::multiplies_narrow;
use graphene_frontend::{Bindings, DType, Dim, Graph, Node, NodeId, Op, ValueId};
use graphene_ir::target::{Kind, Target};
use std::collections::{BTreeSet, HashMap, HashSet};
use std::iter::successors;
use std::ops::Index;

/// A shape of a [`FusionGraph`]; equal shapes have equal numbers.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct ShapeId(u32);

/// The part that an operation can play in a group of several.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Role {
    /// An expression of elements.
    Point {
        /// Every template computes with its element types, not only loops.
        plain: bool,
        numbers: Numbers,
    },
    /// A matmul of reals; on a GPU also of integers of 32 bits.
    MatMul,
    /// A function of rows: a reduction, softmax or normalisation over trailing axes.
    Row(Row),
    /// Rows of a table of reals by indices.
    Lookup,
    /// A convolution of reals; on a GPU also of integers of 32 bits.
    Convolution,
    /// A matmul or a convolution of integers by a constant of bytes.
    Integers,
    /// It is a group of its own.
    Alone,
}

impl Role {
    pub(crate) fn row(self) -> Option<Row> {
        if let Self::Row(row) = self { Some(row) } else { None }
    }

    pub(crate) fn numbers(self) -> Option<Numbers> {
        if let Self::Point { numbers, .. } = self { Some(numbers) } else { None }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Row {
    /// The first of the axes that make a row.
    pub(crate) first: usize,
    /// The shape of what it reads.
    pub(crate) full: ShapeId,
    /// That shape with ones along the row.
    pub(crate) reduced: ShapeId,
    /// Its result may be read within the group: it is of one of those two shapes.
    pub(crate) inner: bool,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Read {
    /// Which of the node's inputs.
    pub(crate) slot: usize,
    /// The value beneath all changes of view.
    pub(crate) root: ValueId,
    /// The operation that makes it, unless it is an input or a constant of the graph.
    pub(crate) from: Option<OpId>,
    /// The root, or the last slice of it: values read through one part are read once.
    pub(crate) part: ValueId,
    /// No change of view stands between.
    pub(crate) direct: bool,
    /// It lies row-major, if operations are taken one by one.
    pub(crate) row_major: bool,
    /// The shape that the operation sees.
    pub(crate) shape: ShapeId,
    /// Bytes of the part that it sees.
    pub(crate) bytes: f64,
}

#[derive(Clone, Debug)]
pub(crate) struct Written {
    pub(crate) bytes: f64,
    /// Who reads it, through views or not; ascending.
    pub(crate) readers: Vec<OpId>,
    /// It is an output of the graph, or a view of it is.
    pub(crate) given: bool,
}

#[derive(Clone, Debug)]
pub(crate) struct Operation {
    pub(crate) node: NodeId,
    /// Its part in larger groups.
    pub(crate) role: Role,
    /// Its family when it is alone.
    pub(crate) family: Family,
    /// Who executes it when it is alone.
    pub(crate) executor: Executor,
    /// The element type of its first result.
    pub(crate) dtype: DType,
    pub(crate) shape: ShapeId,
    pub(crate) reads: Vec<Read>,
    pub(crate) writes: Vec<Written>,
    /// The operations that it waits for, ascending.
    pub(crate) producers: Vec<OpId>,
}

/// The operations of a graph that have to be placed.
pub(crate) struct FusionGraph<'a> {
    pub(crate) graph: &'a Graph,
    pub(crate) target: &'a Target,
    /// For each node whether it is made of constants alone.
    pub(crate) constant: Vec<bool>,
    pub(crate) layouts: Layouts,
    hints: Bindings,
    ops: Vec<Operation>,
    of_node: Vec<Option<OpId>>,
    /// For every change of view what lies beneath it.
    view_source: Vec<Option<ViewSource>>,
    /// The outputs of the graph, and what lies beneath them.
    given: HashSet<ValueId>,
    shape_ids: HashMap<Vec<Dim>, ShapeId>,
    /// For every shape its sizes under the hints, and as far as they are known without.
    shapes: Vec<(Vec<f64>, Vec<Option<i64>>)>,
}

/// What a value is beneath its changes of view.
#[derive(Clone, Copy)]
struct ViewSource {
    root: ValueId,
    part: ValueId,
    elements: f64,
    direct: bool,
}

impl<'a> FusionGraph<'a> {
    /// The operations of the graph, with what the target makes of them and sizes under these hints.
    pub(crate) fn new(graph: &'a Graph, target: &'a Target, hints: &Bindings) -> Self {
        let constant = constants(graph);
        let mut net = Self {
            graph,
            target,
            layouts: Layouts::new(graph, &constant),
            constant,
            hints: planning_sizes(graph, hints),
            ops: Vec::new(),
            of_node: vec![None; graph.len()],
            view_source: vec![None; graph.len()],
            given: given(graph),
            shape_ids: HashMap::new(),
            shapes: Vec::new(),
        };
        net.look_through_views();
        for (place, node) in net.order().into_iter().enumerate() {
            net.of_node[node.index()] = Some(OpId(place as u32));
            let operation = net.operation(node);
            net.ops.push(operation);
        }
        net.connect();
        net
    }

    pub(crate) fn len(&self) -> usize {
        self.ops.len()
    }

    pub(crate) fn ids(&self) -> impl Iterator<Item = OpId> + use<> {
        (0..self.ops.len() as u32).map(OpId)
    }

    /// The operation of a node, if it has to be placed.
    pub(crate) fn of_node(&self, node: NodeId) -> Option<OpId> {
        self.of_node[node.index()]
    }

    pub(crate) fn node(&self, op: OpId) -> &'a Node {
        self.graph.node(self[op].node)
    }

    pub(crate) fn sizes(&self, shape: ShapeId) -> &[f64] {
        &self.shapes[shape.0 as usize].0
    }

    /// The sizes of a shape as far as they are known without hints.
    pub(crate) fn known(&self, shape: ShapeId) -> &[Option<i64>] {
        &self.shapes[shape.0 as usize].1
    }

    pub(crate) fn elements(&self, shape: ShapeId) -> f64 {
        self.sizes(shape).iter().product()
    }

    pub(crate) fn bytes(&self, value: ValueId) -> f64 {
        let ty = self.graph.ty(value);
        let size = |dim: &Dim| self.size(dim);
        ty.shape.iter().map(size).product::<f64>() * ty.dtype.size() as f64
    }

    fn size(&self, dim: &Dim) -> f64 {
        dim.eval(&self.hints).map_or(1.0, |size| size.max(0) as f64)
    }

    /// Whether the graph gives this value, or a view of it.
    pub(crate) fn is_given(&self, value: ValueId) -> bool {
        self.given.contains(&value)
    }

    pub(crate) fn read(&self, op: OpId, slot: usize) -> Option<&Read> {
        self[op].reads.iter().find(|read| read.slot == slot)
    }

    pub(crate) fn matmuls(&self, set: Set) -> impl Iterator<Item = OpId> {
        set.iter().filter(|&op| self[op].role == Role::MatMul)
    }

    fn intern(&mut self, shape: &[Dim]) -> ShapeId {
        if let Some(&id) = self.shape_ids.get(shape) {
            return id;
        }
        let id = ShapeId(self.shapes.len() as u32);
        let sizes = shape.iter().map(|dim| self.size(dim)).collect();
        self.shapes.push((sizes, shape.iter().map(Dim::known).collect()));
        self.shape_ids.insert(shape.to_vec(), id);
        id
    }

    fn look_through_views(&mut self) {
        for (id, node) in self.graph.nodes().filter(|(_, node)| is_view(node.op())) {
            let input = node.inputs()[0].expect("a change of view has its input");
            let mut under = self.under(input);
            let shape = self.intern(&node.outputs()[0].shape);
            under.elements = under.elements.min(self.elements(shape));
            if matches!(node.op(), Op::Slice(_)) {
                under.part = id.value();
            }
            self.view_source[id.index()] = Some(ViewSource { direct: false, ..under });
        }
    }

    fn under(&mut self, value: ValueId) -> ViewSource {
        self.view_source[value.node.index()].unwrap_or_else(|| {
            let shape = self.intern(&self.graph.ty(value).shape);
            ViewSource { root: value, part: value, elements: self.elements(shape), direct: true }
        })
    }

    /// The value beneath all changes of view.
    fn root(&self, value: ValueId) -> ValueId {
        self.view_source[value.node.index()].map_or(value, |under| under.root)
    }

    fn operation(&mut self, id: NodeId) -> Operation {
        let node = self.graph.node(id);
        let mut reads = Vec::with_capacity(node.inputs().len());
        for (slot, value) in node.inputs().iter().enumerate() {
            let Some(value) = *value else { continue };
            let ViewSource { root, part, elements, direct } = self.under(value);
            let ty = self.graph.ty(value);
            let shape = self.intern(&ty.shape);
            let from = self.of_node[root.node.index()];
            let bytes = elements * ty.dtype.size() as f64;
            let row_major = self.layouts.is_row_major(value);
            reads.push(Read { slot, root, from, part, direct, row_major, shape, bytes });
        }
        let producers: BTreeSet<OpId> = reads.iter().filter_map(|read| read.from).collect();
        let writes = (0..node.outputs().len() as u32).map(|output| {
            let value = ValueId { node: id, output };
            Written { bytes: self.bytes(value), readers: Vec::new(), given: self.is_given(value) }
        });
        let writes = writes.collect();
        let shape = self.intern(&node.outputs()[0].shape);
        let family = Family::of(node.op()).expect("sources are no operations to place");
        // What no template takes alone, none takes with others.
        let executor = executor(self.target, self.graph, &[id]);
        let role = match executor {
            Executor::Template => self.role(id, &reads),
            Executor::Library | Executor::Reference => Role::Alone,
        };
        let (dtype, producers) = (node.outputs()[0].dtype, producers.into_iter().collect());
        Operation { node: id, role, family, executor, dtype, shape, reads, writes, producers }
    }

    fn role(&mut self, id: NodeId, reads: &[Read]) -> Role {
        let (node, target) = (self.graph.node(id), self.target);
        let output = &node.outputs()[0];
        let ty = |slot: usize| node.input(slot).map(|v| self.graph.ty(v));
        let is_narrow = || multiplies_narrow(self.graph, node);
        let first_is_real = ty(0).is_some_and(|ty| is_real(ty.dtype));
        let whole = target.kind != Kind::Cpu && ty(0).is_some_and(|ty| ty.dtype == DType::I32);
        match node.op() {
            Op::Unary(_) | Op::Binary(_) | Op::Select | Op::Cast { .. } => {
                let inputs = node.inputs().iter().flatten();
                let plain = inputs.map(|&value| self.graph.ty(value)).chain([output]);
                let plain = plain.map(|ty| ty.dtype).all(is_plain);
                let numbers = match target.kind {
                    Kind::Cpu => Numbers::ANY,
                    Kind::Cuda { .. } => Numbers::of(self.graph, id),
                };
                Role::Point { plain: plain && numbers.single, numbers }
            }
            Op::MatMul | Op::WideMatMul if first_is_real || whole => Role::MatMul,
            Op::WideConv(_) if first_is_real => Role::Convolution,
            Op::Conv(conv) if first_is_real || whole && adds_integers(self.graph, node, conv) => {
                Role::Convolution
            }
            Op::MatMul | Op::Conv(_) if target.kind == Kind::Cpu && is_narrow() => Role::Integers,
            Op::Gather { axis: 0 } if first_is_real => Role::Lookup,
            op => {
                let rows = ty(0).filter(|_| first_is_real);
                let rows = rows.and_then(|ty| Some((ty, row_axis(op, ty.rank())?)));
                let Some((ty, (first, inner))) = rows else { return Role::Alone };
                let mut reduced = ty.shape.clone();
                reduced[first..].fill(Dim::from(1));
                let (full, reduced) = (reads[0].shape, self.intern(&reduced));
                Role::Row(Row { first, full, reduced, inner })
            }
        }
    }

    /// The nodes to place, each after those that it waits for, depth first from the outputs; then the dead ones.
    fn order(&self) -> Vec<NodeId> {
        let is_placed = |id: NodeId, node: &Node| {
            Family::of(node.op()).is_some() && !is_view(node.op()) && !self.constant[id.index()]
        };
        let mut done = vec![false; self.graph.len()];
        let mut order = Vec::new();
        let mut visit = |start: NodeId| {
            let mut stack = vec![(start, 0)];
            while let Some((id, next)) = stack.pop() {
                let node = self.graph.node(id);
                if done[id.index()] || !is_placed(id, node) {
                    continue;
                }
                match node.inputs().get(next) {
                    Some(input) => {
                        stack.push((id, next + 1));
                        stack.extend(input.map(|value| (self.root(value).node, 0)));
                    }
                    None => {
                        done[id.index()] = true;
                        order.push(id);
                    }
                }
            }
        };
        self.graph.outputs().iter().for_each(|&(_, value)| visit(self.root(value).node));
        self.graph.nodes().for_each(|(id, _)| visit(id));
        order
    }

    /// Fills in who reads what.
    fn connect(&mut self) {
        for id in self.ids() {
            for read in self[id].reads.clone() {
                let Some(from) = read.from else { continue };
                let readers = &mut self.ops[from.index()].writes[read.root.output as usize].readers;
                if readers.last() != Some(&id) {
                    readers.push(id);
                }
            }
        }
    }
}

/// The outputs of a graph, and all values that they are views of.
fn given(graph: &Graph) -> HashSet<ValueId> {
    let under = |value: &ValueId| match graph.operation(*value) {
        (op, [under, ..]) if is_view(op) => *under,
        _ => None,
    };
    graph.given().into_iter().flat_map(|value| successors(Some(value), under)).collect()
}

impl Written {
    /// Whether a group of these operations has to store it: something outside reads it, or it is given.
    pub(crate) fn is_stored(&self, set: Set) -> bool {
        self.leaves(|op| set.contains(op))
    }

    /// Whether it goes beyond the operations that are inside.
    pub(crate) fn leaves(&self, inside: impl Fn(OpId) -> bool) -> bool {
        self.given || self.readers.iter().any(|&reader| !inside(reader))
    }
}

impl Index<OpId> for FusionGraph<'_> {
    type Output = Operation;
    fn index(&self, op: OpId) -> &Operation {
        &self.ops[op.index()]
    }
}

/// The first axis of the rows that an operation on this rank works along, if those are whole trailing axes, and
/// whether its result can be read within a group.
fn row_axis(op: &Op, rank: usize) -> Option<(usize, bool)> {
    match op {
        Op::Softmax { axis, .. } if axis + 1 == rank => Some((*axis, true)),
        Op::LayerNorm { axis, .. } | Op::RmsNorm { axis, .. } => Some((*axis, true)),
        Op::Reduce { axes, keep, .. } => {
            let first = *axes.first()?;
            axes.iter().copied().eq(first..rank).then_some((first, *keep))
        }
        _ => None,
    }
}
