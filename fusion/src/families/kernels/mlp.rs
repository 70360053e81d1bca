//! Chains of layers.

use super::function::{Walk, function, leaves};
use super::matmul::Operands;
use super::operand::Matrix;
use super::{
    Launch, Made, Pointer, Refusal, Site, StepOperand, TypedOperand, ensure, made, scalar,
};
use crate::base::parameters::{MlpParameters, Parameters};
use crate::base::sizes::is_multiple;
use graphene_frontend::{Dim, NodeId, Op, ValueId};
use graphene_ir::template::access::Stride;
use graphene_ir::template::epilogue::{Epilogue, Span};
use graphene_ir::template::matmul::Edges;
use graphene_ir::template::mlp::{Layer, Mlp, Warpgroups};
use graphene_ir::{Feature, Scalar};
use std::collections::BTreeMap;

/// Like layers from which on they are a loop, for which their weights are stacked one after the other.
const LOOP: usize = 4;

/// Elements at multiples of which all begins, so that several can move at once.
const UNIT: i64 = 8;

/// The launches of a step of layers, one for each of its variants.
pub(super) fn launches(site: &Site<'_>) -> Result<Vec<Launch>, Refusal> {
    let body = &site.step.body;
    let matmuls = body.matmuls();
    let first = *matmuls.first().ok_or(Refusal::Operation("a chain of no layers"))?;
    let input = Input::new(site, first)?;
    let chain = Chain::new(site, &matmuls, input.scalar)?;
    let layers = (0..matmuls.len()).map(|l| chain.layer(l)).collect::<Result<Vec<_>, _>>()?;

    let aligned = |dim: &Dim| is_multiple(dim, UNIT);
    let pointers = || layers.iter().flat_map(|layer| &layer.pointers).chain([&input.pointer]);
    let begins = pointers().all(|pointer| aligned(&pointer.offset));
    let edges = if begins && aligned(&input.row) { Edges::Bulk } else { Edges::Moves };
    let packed = input.row == input.width;
    let mut dims = BTreeMap::from([("M".to_owned(), input.rows)]);
    if !packed {
        dims.insert("X_stride0".to_owned(), input.row);
    }
    let (layers, pointers, stacks) = stacked(&layers);
    let pointers: Vec<Pointer> = std::iter::once(input.pointer).chain(pointers).collect();
    let mlp = Mlp {
        scalar: input.scalar,
        x: Some(input.x),
        tf32: input.scalar == Scalar::F32 && site.target.tf32,
        arch: site.arch,
        width: input.width,
        stride: if packed { Stride::Packed } else { Stride::Symbol },
        layers,
        edges,
        ..Mlp::default()
    };
    let shared = i64::try_from(site.target.shared_memory_per_block).unwrap_or(i64::MAX);
    site.launch_each(|variant| {
        let Some(Parameters::Mlp(MlpParameters { rows })) = variant.parameters else {
            return Err(Refusal::Operation("layers by other parameters"));
        };
        let kernel = match by_warpgroups(&mlp, site, rows) {
            Some(kernel) => kernel,
            None => made!(mlp.clone().fitting(rows, shared)?)?,
        };
        let launch = site.launch(kernel, &dims, pointers.clone());
        Ok(Launch { stacks: stacks.clone(), ..launch })
    })
}

/// The kernel by warpgroups, where the GPU has them and layers are such that they take them: with 128 rows a block if it is
/// to have so many, else with 64.
fn by_warpgroups(mlp: &Mlp, site: &Site<'_>, rows: i64) -> Option<Made> {
    let consumers = if rows >= 128 { 2 } else { 1 };
    let has = site.arch.has(Feature::Wgmma);
    let warpgroups = has.then(|| Warpgroups::fitting(mlp, consumers))?;
    Some((warpgroups.kernel(mlp).ok()?, warpgroups.numbers()))
}

/// What the first layer reads.
struct Input {
    /// As it is read, which is rounded to the layers' type.
    x: Scalar,
    scalar: Scalar,
    pointer: Pointer,
    rows: Dim,
    width: i64,
    /// From row to row.
    row: Dim,
}

impl Input {
    fn new(site: &Site<'_>, matmul: NodeId) -> Result<Self, Refusal> {
        let body = &site.step.body;
        let of = |id: NodeId| body.node(id).input(0);
        let rounded = of(matmul).ok_or(Refusal::Operation("a matmul of nothing"))?;
        let is_cast = matches!(body.node(rounded.node).op(), Op::Cast { .. });
        let value = if is_cast { of(rounded.node) } else { Some(rounded) };
        let computed = "a matmul of a value that the launch itself computes";
        let TypedOperand { operand, scalar: x, view } = site.read(value, computed)?;
        let scalar = scalar(body.ty(rounded).dtype)?;
        let shape = view.shape();
        let Some((columns, rows)) = shape.split_last() else {
            return Err(Refusal::Layout("a matmul of a number"));
        };
        let width = columns.known().ok_or(Refusal::Layout("layers of unknown width"))?;
        let matrix = Matrix::of(view, &shape, rows.len())?;
        let rows = rows.iter().product::<Dim>();
        let row = if rows == 1 { Dim::from(width) } else { matrix.row };
        let side_by_side = matrix.column == 1 || width == 1;
        let even = matrix.period.is_none() && row != 0 && side_by_side;
        ensure(even, Refusal::Layout("rows without one stride between them"))?;
        let pointer = Pointer { operand, offset: matrix.offset };
        Ok(Self { x, scalar, pointer, rows, width, row })
    }
}

/// A body's matmuls, each of what the one before has become.
struct Chain<'a> {
    site: &'a Site<'a>,
    matmuls: &'a [NodeId],
    scalar: Scalar,
    /// What each matmul reads.
    inputs: Vec<ValueId>,
    /// For each node of the body the last matmul that it is made of.
    layer_of: BTreeMap<NodeId, usize>,
}

/// A layer with what it reads and writes.
struct Bridged {
    layer: Layer,
    /// Rows of its weights, if they are known.
    depth: Option<i64>,
    pointers: Vec<Pointer>,
    /// Whether all that it reads are weights, which can be prepacked.
    constant: bool,
}

impl<'a> Chain<'a> {
    fn new(site: &'a Site<'a>, matmuls: &'a [NodeId], scalar: Scalar) -> Result<Self, Refusal> {
        let body = &site.step.body;
        let mut layer_of: BTreeMap<NodeId, usize> = BTreeMap::new();
        let mut inputs = Vec::new();
        for (id, node) in body.nodes() {
            let before = node.inputs().iter().flatten().filter_map(|v| layer_of.get(&v.node));
            let mut layer = before.copied().max();
            if let Some(number) = matmuls.iter().position(|&matmul| matmul == id) {
                let follows = layer == number.checked_sub(1);
                ensure(follows, Refusal::Operation("matmuls that are no chain"))?;
                inputs.push(node.input(0).ok_or(Refusal::Operation("a matmul of nothing"))?);
                layer = Some(number);
            }
            layer.map(|layer| layer_of.insert(id, layer));
        }
        Ok(Self { site, matmuls, scalar, inputs, layer_of })
    }

    fn layer(&self, l: usize) -> Result<Bridged, Refusal> {
        let (body, matmul) = (&self.site.step.body, self.matmuls[l]);
        let shape = &body.ty(matmul.value()).shape;
        let outputs = body.outputs().iter().enumerate();
        let own = outputs.filter(|(_, (_, value))| self.layer_of.get(&value.node) == Some(&l));
        let (numbers, stored): (Vec<usize>, Vec<ValueId>) =
            own.map(|(number, (_, value))| (number, *value)).unzip();
        let kept = self.inputs.get(l + 1).copied();
        let given: Vec<ValueId> = kept.into_iter().chain(stored).collect();

        let input = (l > 0).then(|| self.inputs[l]);
        let walk = |value: ValueId| {
            let other = self.layer_of.get(&value.node).is_some_and(|of| *of < l);
            match value == matmul.value() {
                true => Walk::Stop,
                false if other => Walk::Found,
                false => Walk::On,
            }
        };
        let mut values = leaves(body, &given, &walk);
        let skipped = input.filter(|input| values.contains(input));
        values.retain(|value| Some(*value) != skipped);
        let order = [matmul.value()];
        let order: Vec<ValueId> = order.iter().chain(&values).chain(&skipped).copied().collect();
        let function = function(body, &given, &order)?;
        let width = shape.last().and_then(Dim::known);
        let width = width.ok_or(Refusal::Layout("layers of unknown width"))?;
        let whole = skipped.is_none_or(|input| body.ty(input).shape == *shape);
        ensure(whole, Refusal::Layout("an input that is repeated"))?;

        let mut operands = Operands::new(self.site, shape, Some(self.scalar));
        let (depth, transposed) = self.weights(&mut operands, l)?;
        let inputs = values.iter().map(|&value| operands.epilogue_input(value));
        let inputs = inputs.collect::<Result<Vec<_>, _>>()?;
        let mut outputs: Vec<Option<Scalar>> = kept.iter().map(|_| None).collect();
        for &number in &numbers {
            outputs.push(operands.result(number)?);
        }
        let constant = operands.pointers.iter().all(|pointer| self.is_weight(pointer));
        let epilogue = Epilogue { function, operands: inputs, outputs };
        let layer = Layer { width, transposed, times: 1, skip: skipped.is_some(), epilogue };
        Ok(Bridged { layer, depth, pointers: operands.pointers, constant })
    }

    /// Adds the weights; says how many rows they have, and whether the output's column is contiguous.
    fn weights(
        &self,
        operands: &mut Operands<'_>,
        l: usize,
    ) -> Result<(Option<i64>, bool), Refusal> {
        let value = self.site.step.body.node(self.matmuls[l]).input(1);
        let TypedOperand { operand, scalar, view } =
            self.site.read(value, "weights that are computed")?;
        let shape = view.shape();
        let [depth, columns] = &shape[..] else {
            return Err(Refusal::Layout("weights that are no matrix"));
        };
        ensure(scalar == self.scalar, Refusal::Layout("a matmul of two types"))?;
        let matrix = Matrix::of(view, &shape, 1)?;
        let is = |stride: &Dim, size: &Dim, wanted: &Dim| *size == 1 || stride == wanted;
        let one = Dim::from(1);
        let rows = is(&matrix.column, columns, &one) && is(&matrix.row, depth, columns);
        let turned = is(&matrix.row, depth, &one) && is(&matrix.column, columns, depth);
        ensure(rows || turned, Refusal::Layout("weights that are not packed"))?;
        operands.push(operand, scalar, &matrix.offset);
        Ok((depth.known(), rows))
    }

    /// Whether it is all of a weight.
    fn is_weight(&self, pointer: &Pointer) -> bool {
        let StepOperand::Input(number) = pointer.operand else { return false };
        let operand = &self.site.step.inputs[number];
        let all = operand.view.shape().iter().product::<Dim>();
        let whole = pointer.offset == 0 && self.site.program.buffer(operand.buffer).elements == all;
        whole && self.site.is_weight(pointer.operand)
    }
}

/// Layers with those that are alike as one, what they point to, and what is stacked one after the other.
fn stacked(bridged: &[Bridged]) -> (Vec<Layer>, Vec<Pointer>, Vec<Vec<StepOperand>>) {
    let (mut layers, mut pointers, mut stacks) = (Vec::new(), Vec::new(), Vec::new());
    let last = bridged.len() - 1;
    let alike = |l: usize, other: usize| {
        let Bridged { layer, depth, constant, .. } = &bridged[l];
        l < last
            && *constant
            && *depth == Some(layer.width)
            && layer.epilogue.function.outputs().len() == 1
            && layer.epilogue.operands.iter().all(|input| input.span == Span::Row)
            && *layer == bridged[other].layer
    };
    let mut l = 0;
    while l <= last {
        let own = &bridged[l];
        let times = (l..last).take_while(|&other| alike(other, l)).count();
        if times < LOOP {
            layers.push(own.layer.clone());
            pointers.extend(own.pointers.iter().cloned());
            l += 1;
            continue;
        }
        layers.push(Layer { times: times as i64, ..own.layer.clone() });
        for place in 0..own.pointers.len() {
            let of = |other: &Bridged| other.pointers[place].operand;
            pointers
                .push(Pointer { operand: StepOperand::Stack(stacks.len()), offset: Dim::from(0) });
            stacks.push(bridged[l..l + times].iter().map(of).collect());
        }
        l += times;
    }
    (layers, pointers, stacks)
}
