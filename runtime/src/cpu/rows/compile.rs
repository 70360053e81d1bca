//! From a body to stages.

use super::fold::Fold;
use super::{Level, RowProgram, Source, Stage, Target};
use crate::cpu::loops::{Class, Loop};
use graphene_frontend::dim::Dim;
use graphene_frontend::dtype::DType;
use graphene_frontend::graph::{Graph, Node, NodeId, ValueId};
use graphene_frontend::op::Op;
use std::collections::BTreeMap;

/// What a node is a part of.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Part {
    /// The loop of its level.
    Loop(Level),
    /// A stage of its own.
    Alone(usize),
}

/// A stage before it is compiled: how many others it waits for, one after the other, and what it is.
type Place = (usize, Part);

struct Compiler<'a> {
    body: &'a Graph,
    shape: Vec<Dim>,
    axis: usize,
    places: BTreeMap<NodeId, Place>,
    levels: BTreeMap<ValueId, Level>,
    slots: BTreeMap<ValueId, usize>,
    kinds: Vec<(Class, Level)>,
}

impl RowProgram {
    /// Compiles a body; `None` if it is not one over rows, or an operation or an element type has no stage.
    pub(crate) fn compile(body: &Graph) -> Option<Self> {
        let (shape, axis) = domain(body)?;
        let mut compiler = Compiler {
            body,
            shape,
            axis,
            places: BTreeMap::new(),
            levels: BTreeMap::new(),
            slots: BTreeMap::new(),
            kinds: Vec::new(),
        };
        let mut stages: BTreeMap<Place, Vec<NodeId>> = BTreeMap::new();
        for (id, node) in body.nodes() {
            if !matches!(node.op(), Op::Input | Op::Constant(_)) {
                let place = compiler.place(id, node)?;
                stages.entry(place).or_default().push(id);
            }
        }
        for (id, node) in body.nodes() {
            compiler.make_slots(id, node)?;
        }
        let stages = stages.iter().map(|(place, nodes)| compiler.stage(*place, nodes));
        let stages = stages.collect::<Option<Vec<_>>>()?;
        let outputs = body.outputs().iter().map(|(_, value)| compiler.output_level(*value));
        let outputs = outputs.collect::<Option<Vec<_>>>()?;
        let Compiler { shape, axis, kinds, .. } = compiler;
        Some(Self { shape, axis, stages, slots: kinds, outputs })
    }
}

/// The shape of the rows and their first axis: what all folds and lookups agree on.
fn domain(body: &Graph) -> Option<(Vec<Dim>, usize)> {
    let mut found: Option<(Vec<Dim>, usize)> = None;
    for (_, node) in body.nodes() {
        let shape = || Some(body.ty((*node.inputs().first()?)?).shape.clone());
        let own = match node.op() {
            Op::Softmax { axis, .. } => (shape()?, *axis),
            Op::LayerNorm { axis, .. } | Op::RmsNorm { axis, .. } => (shape()?, *axis),
            Op::Reduce { axes, .. } => (shape()?, *axes.first()?),
            _ => continue,
        };
        if found.as_ref().is_some_and(|found| *found != own) {
            return None;
        }
        found = Some(own);
    }
    if found.is_some() {
        return found;
    }
    // Lookups alone: the rows are the tables'.
    let shape = body.ty(body.outputs().first()?.1).shape.clone();
    let lookup = body.nodes().find(|(_, node)| matches!(node.op(), Op::Gather { axis: 0 }))?;
    let table = body.ty((*lookup.1.inputs().first()?)?).shape.len();
    let axis = (shape.len() + 1).checked_sub(table)?;
    Some((shape, axis))
}

/// Whether the shape broadcasts to the other.
fn broadcasts(shape: &[Dim], to: &[Dim]) -> bool {
    let pairs = shape.iter().rev().zip(to.iter().rev());
    shape.len() <= to.len() && pairs.into_iter().all(|(a, b)| *a == 1 || a == b)
}

fn is_real(dtype: DType) -> bool {
    matches!(dtype, DType::F32 | DType::F16 | DType::BF16)
}

impl Compiler<'_> {
    /// The shape of one number a row.
    fn row_shape(&self) -> Vec<Dim> {
        let ones = self.shape[self.axis..].iter().map(|_| Dim::from(1));
        self.shape[..self.axis].iter().cloned().chain(ones).collect()
    }

    /// Which stage the node belongs to; notes the levels of its values.
    fn place(&mut self, id: NodeId, node: &Node) -> Option<Place> {
        let part = match node.op() {
            Op::Unary(_) | Op::Binary(_) | Op::Select | Op::Cast { .. } => {
                Part::Loop(self.level(id, node)?)
            }
            Op::Softmax { .. } | Op::LayerNorm { .. } | Op::RmsNorm { .. } | Op::Reduce { .. } => {
                self.check_fold(node)?;
                let reduces = matches!(node.op(), Op::Reduce { .. });
                let first = if reduces { Level::Row } else { Level::Full };
                self.levels.insert(id.value(), first);
                for output in 1..node.outputs().len() as u32 {
                    self.levels.insert(ValueId { node: id, output }, Level::Row);
                }
                Part::Alone(id.index())
            }
            Op::Gather { axis: 0 } => {
                self.check_lookup(id, node)?;
                self.levels.insert(id.value(), Level::Full);
                Part::Alone(id.index())
            }
            _ => return None,
        };
        let mut depth = 0;
        for value in node.inputs().iter().flatten() {
            // Of a norm only the first output is read on.
            if let Some(&(of, from)) = self.places.get(&value.node) {
                let same = from == part && matches!(part, Part::Loop(_));
                depth = depth.max(if same { of } else { of + 1 });
                if value.output != 0 {
                    return None;
                }
            }
        }
        self.places.insert(id, (depth, part));
        Some((depth, part))
    }

    /// The level of a pointwise node.
    fn level(&mut self, id: NodeId, node: &Node) -> Option<Level> {
        let shape = &self.body.ty(id.value()).shape;
        let reads_full = node
            .inputs()
            .iter()
            .flatten()
            .any(|value| self.levels.get(value) == Some(&Level::Full));
        let level = if !reads_full && broadcasts(shape, &self.row_shape()) {
            Level::Row
        } else if broadcasts(shape, &self.shape) {
            Level::Full
        } else {
            return None;
        };
        // A reduction that dropped its axes does not broadcast along its rows.
        for value in node.inputs().iter().flatten() {
            let rank = self.body.ty(*value).shape.len();
            if self.levels.get(value) == Some(&Level::Row) && self.is_fold(*value) {
                (rank == self.shape.len()).then_some(())?;
            }
        }
        self.levels.insert(id.value(), level);
        Some(level)
    }

    fn is_fold(&self, value: ValueId) -> bool {
        matches!(self.places.get(&value.node), Some((_, Part::Alone(_))))
    }

    fn check_fold(&self, node: &Node) -> Option<()> {
        let source = (*node.inputs().first()?)?;
        let ty = self.body.ty(source);
        let whole_rows = match node.op() {
            Op::Softmax { axis, .. } => axis + 1 == self.shape.len(),
            Op::Reduce { axes, .. } => axes.iter().copied().eq(self.axis..self.shape.len()),
            _ => true,
        };
        let affine = node.inputs()[1..].iter().flatten();
        let whole = affine.into_iter().all(|&value| {
            self.input(value).is_some()
                && is_real(self.body.ty(value).dtype)
                && self.body.ty(value).shape == self.shape[self.axis..]
        });
        (whole_rows && whole && is_real(ty.dtype) && ty.shape == self.shape).then_some(())
    }

    fn check_lookup(&self, id: NodeId, node: &Node) -> Option<()> {
        let [Some(table), Some(indices)] = *node.inputs() else { return None };
        self.input(table)?;
        self.input(indices)?;
        let (table, shape) = (self.body.ty(table), &self.body.ty(id.value()).shape);
        let fits = is_real(table.dtype)
            && matches!(self.body.ty(indices).dtype, DType::I32 | DType::I64)
            && table.shape.get(1..)? == &self.shape[self.axis..]
            && broadcasts(shape, &self.shape);
        fits.then_some(())
    }

    fn input(&self, value: ValueId) -> Option<usize> {
        self.body.inputs().iter().position(|id| id.value() == value)
    }

    /// The level of an output, which must have all elements of its level.
    fn output_level(&self, value: ValueId) -> Option<Level> {
        let level = *self.levels.get(&value)?;
        let shape = &self.body.ty(value).shape;
        let whole = match level {
            Level::Full => *shape == self.shape,
            Level::Row => *shape == self.row_shape() || shape[..] == self.shape[..self.axis],
        };
        whole.then_some(level)
    }

    /// Gives each value of the node that another stage reads a slot.
    fn make_slots(&mut self, id: NodeId, node: &Node) -> Option<()> {
        let Some(place) = self.places.get(&id) else { return Some(()) };
        for (reader, edge) in self.body.uses(id) {
            let value = ValueId { node: id, output: edge.output };
            let apart = self.places.get(&reader) != Some(place);
            if apart && !self.slots.contains_key(&value) {
                let dtype = node.outputs()[edge.output as usize].dtype;
                self.kinds.push((Class::of(dtype)?, *self.levels.get(&value)?));
                self.slots.insert(value, self.kinds.len() - 1);
            }
        }
        Some(())
    }

    fn source(&self, value: ValueId) -> Option<Source> {
        let slot = self.slots.get(&value).map(|&slot| Source::Slot(slot));
        slot.or_else(|| self.input(value).map(Source::Input))
    }

    fn targets(&self, value: ValueId) -> Vec<Target> {
        let outputs = self.body.outputs().iter().enumerate();
        let outputs = outputs.filter(|(_, (_, output))| *output == value);
        let slot = self.slots.get(&value).map(|&slot| Target::Slot(slot));
        slot.into_iter().chain(outputs.map(|(number, _)| Target::Output(number))).collect()
    }

    fn stage(&self, (_, part): Place, nodes: &[NodeId]) -> Option<Stage> {
        match part {
            Part::Loop(level) => self.loop_stage(level, nodes),
            Part::Alone(_) => {
                let id = *nodes.first()?;
                let node = self.body.node(id);
                match node.op() {
                    Op::Gather { .. } => {
                        let [Some(table), Some(indices)] = *node.inputs() else { return None };
                        Some(Stage::Lookup {
                            table: self.input(table)?,
                            indices: self.input(indices)?,
                            dtype: self.body.ty(table).dtype,
                            writes: self.targets(id.value()),
                        })
                    }
                    _ => self.fold_stage(id, node),
                }
            }
        }
    }

    fn fold_stage(&self, id: NodeId, node: &Node) -> Option<Stage> {
        let operand = |place: usize| node.inputs().get(place).copied().flatten();
        let affine = |place: usize| operand(place).and_then(|value| self.input(value));
        let fold = match *node.op() {
            Op::Softmax { log, .. } => Fold::Softmax { log },
            Op::LayerNorm { epsilon, .. } => {
                Fold::Norm { rms: false, epsilon, scale: affine(1), bias: affine(2) }
            }
            Op::RmsNorm { epsilon, .. } => {
                Fold::Norm { rms: true, epsilon, scale: affine(1), bias: affine(2) }
            }
            Op::Reduce { op, .. } => Fold::Reduce(op),
            _ => return None,
        };
        let source = operand(0)?;
        let results = (0..node.outputs().len() as u32).map(|output| {
            let value = ValueId { node: id, output };
            (self.body.ty(value).dtype, self.targets(value))
        });
        Some(Stage::Fold {
            fold,
            source: (self.source(source)?, self.body.ty(source).dtype),
            results: results.collect(),
        })
    }

    /// The nodes as a body of their own.
    fn loop_stage(&self, level: Level, nodes: &[NodeId]) -> Option<Stage> {
        let mut graph = Graph::new();
        let mut own: BTreeMap<ValueId, ValueId> = BTreeMap::new();
        let (mut reads, mut writes) = (Vec::new(), Vec::new());
        for &id in nodes {
            let node = self.body.node(id);
            for &value in node.inputs().iter().flatten() {
                if own.contains_key(&value) {
                    continue;
                }
                let inner = match self.body.constant(value) {
                    Some(tensor) if tensor.len() == 1 => {
                        graph.add_constant("constant", tensor.clone())
                    }
                    Some(_) => return None,
                    None => {
                        let name = format!("x{}", reads.len());
                        reads.push(self.source(value)?);
                        graph.add_input(&name, self.body.ty(value).clone()).ok()?
                    }
                };
                own.insert(value, inner);
            }
            let inputs: Vec<_> = node.inputs().iter().map(|v| v.map(|v| own[&v])).collect();
            let inner = graph.add(node.name(), node.op().clone(), &inputs).ok()?;
            own.insert(id.value(), inner.value());
        }
        for &id in nodes {
            for target in self.targets(id.value()) {
                graph.add_output("y", own[&id.value()]);
                writes.push(target);
            }
        }
        Some(Stage::Loop { level, program: Loop::compile(&graph)?, reads, writes })
    }
}
