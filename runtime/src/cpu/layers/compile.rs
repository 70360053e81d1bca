//! From a body of matmuls and pointwise operations to layers.

use super::{Layer, Layers, Left, MatMul, Read, Write};
use crate::cpu::loops::Loop;
use crate::cpu::part::part;
use crate::cpu::prepacked::Prepacked;
use graphene_frontend::dtype::DType;
use graphene_frontend::graph::{Graph, NodeId, ValueId};
use graphene_frontend::op::Op;
use std::collections::{BTreeMap, BTreeSet};

impl Layers {
    /// Compiles a body; `None` if it is no chain of layers. `prepacked` has what its inputs were prepacked as.
    pub(crate) fn compile(body: &Graph, prepacked: &Prepacked) -> Option<Self> {
        let compiler = Compiler::new(body, prepacked)?;
        let count = compiler.stages.values().max()? + 1;
        let layers = (0..count).map(|stage| compiler.layer(stage)).collect::<Option<_>>()?;
        let kept = compiler.kept.iter().map(|value| compiler.stages[value]).collect();
        Some(Self { dtype: compiler.dtype(), layers, kept })
    }
}

struct Compiler<'a> {
    body: &'a Graph,
    prepacked: &'a Prepacked,
    /// The layer of each value that waits for a matmul: the number of matmuls before its last one.
    stages: BTreeMap<ValueId, usize>,
    /// Values that later layers read, in the body's order.
    kept: Vec<ValueId>,
}

impl<'a> Compiler<'a> {
    fn new(body: &'a Graph, prepacked: &'a Prepacked) -> Option<Self> {
        let mut compiler = Self { body, prepacked, stages: BTreeMap::new(), kept: Vec::new() };
        let mut kept = BTreeSet::new();
        for (id, node) in body.nodes() {
            let operands = node.inputs().iter().flatten();
            let stage = operands.clone().filter_map(|value| compiler.stages.get(value)).max();
            let stage = stage.copied();
            let stage = match node.op() {
                Op::Input => None,
                Op::Constant(tensor) if tensor.len() == 1 => None,
                Op::MatMul => Some(compiler.matmul_stage(id)?),
                // The loop's compiler says which of these it takes.
                Op::Unary(_) | Op::Binary(_) | Op::Select | Op::Cast { .. } => stage,
                _ => return None,
            };
            let Some(stage) = stage else { continue };
            let earlier = |value: &&ValueId| compiler.stages.get(value).is_some_and(|&s| s < stage);
            kept.extend(operands.filter(earlier).copied());
            compiler.stages.insert(id.value(), stage);
        }
        compiler.kept = kept.into_iter().collect();
        compiler.check().then_some(compiler)
    }

    /// The layer of a matmul, if layers have such matmuls.
    fn matmul_stage(&self, id: NodeId) -> Option<usize> {
        let [a, b] = self.body.node(id).inputs() else { return None };
        let (a, b) = ((*a)?, (*b)?);
        self.input(b)?;
        let [of_a, of_b] = [a, b].map(|value| self.body.ty(value));
        let matrices = of_a.shape.len() >= 2 && of_b.shape.len() >= 2;
        match self.stages.get(&a) {
            None => (matrices && self.input(a).is_some()).then_some(0),
            Some(stage) => Some(stage + 1),
        }
    }

    fn input(&self, value: ValueId) -> Option<usize> {
        self.body.inputs().iter().position(|id| id.value() == value)
    }

    fn matmuls(&self, stage: usize) -> impl Iterator<Item = NodeId> {
        let matmuls = self.body.nodes().filter(|(_, node)| matches!(node.op(), Op::MatMul));
        let ids = matmuls.map(|(id, _)| id);
        ids.filter(move |id| self.stages[&id.value()] == stage)
    }

    /// Whether types and shapes are as layers have them.
    fn check(&self) -> bool {
        let Some(first) = self.matmuls(0).next() else { return false };
        let dtype = self.body.ty(first.value()).dtype;
        let stages = self.stages.values().max().map_or(0, |last| last + 1);
        let given = self.body.outputs().iter().map(|(_, value)| value);
        let whole = given.chain(&self.kept).all(|value| {
            let Some(&stage) = self.stages.get(value) else { return false };
            let shape = self.matmuls(stage).next().map(|id| &self.body.ty(id.value()).shape);
            shape == Some(&self.body.ty(*value).shape)
        });
        let alike = (0..stages).all(|stage| {
            let mut shapes = self.matmuls(stage).map(|id| &self.body.ty(id.value()).shape);
            let shape = shapes.next();
            shape.is_some() && shapes.all(|other| Some(other) == shape)
        });
        let matmuls = (0..stages).flat_map(|stage| self.matmuls(stage));
        let mut operands = matmuls.flat_map(|id| self.body.node(id).inputs().iter().flatten());
        let typed = operands.all(|&value| self.body.ty(value).dtype == dtype);
        // In a chain the rows must be those of one matrix.
        let mut weights = (0..stages).flat_map(|stage| self.matmuls(stage)).filter_map(|id| {
            self.body.node(id).inputs()[1].map(|value| self.body.ty(value).shape.len())
        });
        let flat = stages == 1 || weights.all(|rank| rank == 2);
        let kept = self.kept.iter().all(|value| self.body.ty(*value).dtype == dtype);
        // Epilogues find what was kept row by row as they go through their own rows: nothing is broadcast.
        let unbroadcast = self.stages.iter().all(|(value, stage)| {
            let node = self.body.node(value.node);
            let earlier = |input: &&ValueId| self.stages.get(input).is_some_and(|of| of < stage);
            let mut kept = node.inputs().iter().flatten().filter(earlier);
            let shape = &self.body.ty(*value).shape;
            matches!(node.op(), Op::MatMul)
                || kept.all(|input| self.body.ty(*input).shape == *shape)
        });
        let float = matches!(dtype, DType::F32 | DType::F16 | DType::BF16 | DType::F64);
        whole
            && alike
            && typed
            && flat
            && kept
            && unbroadcast
            && float
            && !self.body.outputs().is_empty()
    }

    fn layer(&self, stage: usize) -> Option<Layer> {
        let matmuls: Vec<NodeId> = self.matmuls(stage).collect();
        let (mut writes, mut written) = (Vec::new(), Vec::new());
        for (number, (_, value)) in self.body.outputs().iter().enumerate() {
            if self.stages[value] == stage {
                writes.push(Write::Output(number));
                written.push(*value);
            }
        }
        for (number, value) in self.kept.iter().enumerate() {
            if self.stages[value] == stage {
                writes.push(Write::Kept(number));
                written.push(*value);
            }
        }
        let (graph, reads) =
            epilogue(self.body, &written, |value| self.read(stage, &matmuls, value))?;
        let epilogue = Loop::compile(&graph)?;
        // A matmul is best computed where an output will be: the epilogue then works in place.
        let native = |write: &Write| match *write {
            Write::Output(number) => {
                let found = self.body.ty(self.body.outputs()[number].1).dtype;
                found == self.dtype() && matches!(found, DType::F32 | DType::F64)
            }
            Write::Kept(_) => false,
        };
        let mut places = (0..writes.len()).filter(|&write| native(&writes[write]));
        let matmuls = matmuls.iter().map(|&id| {
            let [a, b] = self.body.node(id).inputs() else { return None };
            let (a, b) = ((*a)?, (*b)?);
            let a = match self.input(a) {
                Some(number) => Left::Input(number),
                None => Left::Kept(self.kept.iter().position(|value| *value == a)?),
            };
            let b = self.input(b)?;
            let prepacked = self.prepacked.get(b).and_then(|matrices| matrices.first());
            let prepacked = prepacked.filter(|packed| packed.is_real()).cloned();
            Some(MatMul { a, b, prepacked, place: places.next() })
        });
        let matmuls = matmuls.collect::<Option<Vec<MatMul>>>()?;
        let result = reads.iter().position(|&read| read == Read::MatMul(0));
        let sum = match &matmuls[..] {
            [only] if only.prepacked.is_some() && self.dtype() == DType::F32 => {
                result.and_then(|result| epilogue.sum(result))
            }
            _ => None,
        };
        Some(Layer { matmuls, epilogue, reads, writes, sum })
    }

    fn dtype(&self) -> DType {
        self.matmuls(0).next().map_or(DType::F32, |id| self.body.ty(id.value()).dtype)
    }

    /// What a layer's epilogue finds made, if it does not make this value.
    fn read(&self, stage: usize, matmuls: &[NodeId], value: ValueId) -> Option<Read> {
        if let Some(number) = self.input(value) {
            return Some(Read::Input(number));
        }
        if self.stages.get(&value).is_some_and(|&other| other < stage) {
            return self.kept.iter().position(|kept| *kept == value).map(Read::Kept);
        }
        matmuls.iter().position(|id| id.value() == value).map(Read::MatMul)
    }
}

/// The pointwise operations that lead to some values as a graph of their own, and what its inputs are.
/// `read` names what they find made. `None` if they cannot be rebuilt.
pub(super) fn epilogue(
    body: &Graph,
    written: &[ValueId],
    read: impl Fn(ValueId) -> Option<Read>,
) -> Option<(Graph, Vec<Read>)> {
    let (graph, inputs) = part(body, written, |value| read(value).is_some())?;
    Some((graph, inputs.into_iter().filter_map(read).collect()))
}
