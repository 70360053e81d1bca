//! Lowering: groups become steps over buffers, changes of view become views.

mod body;
pub(crate) mod channels_last;
mod conditions;
mod matmuls;
mod recipes;
mod text;
pub mod tuning;

use crate::base::error::FusionError;
use crate::base::groups::{Executor, Family, Group, GroupId, Groups, group_name};
use crate::base::program::{Buffer, BufferId, BufferKind, Operand, Origin, Program, Step, Weight};
use crate::base::rebuild::Rebuilt;
use crate::base::sizes::planning_sizes;
use crate::base::variants::Variants;
use crate::base::view::{View, channels_last};
use crate::families::kernels::has_call;
use crate::families::layout::{
    is_view, order_of_read, takes_views, transposed, view_of, writes_any_order,
};
use crate::families::library::{copied_order, heads_order};
use crate::families::tiles::variants;
use crate::lower::body::{Read, body};
use crate::lower::conditions::conditions;
use crate::lower::recipes::recipe;
use crate::partition::Granularity;
use graphene_frontend::{Bindings, DType, Graph, NodeId, Op, TensorType, ValueId};
use graphene_ir::target::{Kind, Target};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Lowers the groups of a graph to a program for a target: a step a group, in the groups' order.
///
/// A change of view gives no step where its view can be written down; where it cannot (merging dims that do not lie
/// side by side), it is a copy. Families that read whole buffers only get a copy before them.
///
/// # Errors
/// [`FusionError::Rebuild`] if an operation refuses the inputs that it had: a defect of inference.
pub fn lower(
    graph: &Graph,
    groups: &Groups,
    target: &Target,
    granularity: Granularity,
) -> Rebuilt<Program> {
    lower_for(graph, groups, target, (granularity, &Bindings::new()))
}

/// The same, planned for these sizes: matmuls have the kernels among their variants that are estimated fastest there.
///
/// # Errors
/// As for [`lower`].
pub(crate) fn lower_for(
    graph: &Graph,
    groups: &Groups,
    target: &Target,
    (granularity, hints): (Granularity, &Bindings),
) -> Rebuilt<Program> {
    let named = |name: &str, value: ValueId| (name.to_owned(), graph.ty(value).clone());
    let inputs = graph.inputs().iter().map(|id| named(graph.node(*id).name(), id.value()));
    let mut lowering = Lowering {
        graph,
        target,
        sizes: planning_sizes(graph, hints),
        granularity,
        groups,
        group_of: groups.group_of(graph),
        given: graph.given().into_iter().collect(),
        places: BTreeMap::new(),
        reordered: BTreeMap::new(),
        channels_last: match (granularity, target.kind) {
            (Granularity::Fused, _) | (Granularity::PerOp, Kind::Cuda { .. }) => {
                channels_last::convolutions(graph, groups, target)
            }
            (Granularity::PerOp, Kind::Cpu) => BTreeSet::new(),
        },
        program: Program {
            inputs: inputs.collect(),
            outputs: graph.outputs().iter().map(|(name, value)| named(name, *value)).collect(),
            conditions: conditions(graph),
            buffers: Vec::new(),
            steps: Vec::new(),
            bf16: target.bf16,
        },
    };
    for (number, id) in graph.inputs().iter().enumerate() {
        lowering.store(id.value(), BufferKind::Input(number), None);
    }
    let fused = granularity == Granularity::Fused;
    for (i, group) in groups.groups().iter().enumerate() {
        let (number, first) = (GroupId::from_index(i), group.nodes[0]);
        let is_view = is_view(graph.node(first).op());
        match group.family {
            Family::View => lowering.lower_view(number, group)?,
            Family::Copy if is_view && (fused || lowering.moves_nothing(first)?) => {
                lowering.lower_view(number, group)?;
            }
            Family::Copy if is_view => lowering.lower_copy(number, group)?,
            _ => lowering.lower_group(number, group)?,
        }
    }
    lowering.lower_outputs()?;
    let mut program = lowering.program;
    for id in program.step_ids() {
        // Operands of matmuls and convolutions may lie as no call takes them.
        if !has_call(&program, program.step(id), target) {
            program.without_library(id);
        }
    }
    Ok(program)
}

struct Lowering<'a> {
    graph: &'a Graph,
    target: &'a Target,
    /// The sizes that the program is planned for.
    sizes: Bindings,
    granularity: Granularity,
    groups: &'a Groups,
    group_of: Vec<Option<GroupId>>,
    given: BTreeSet<ValueId>,
    places: BTreeMap<ValueId, Operand>,
    /// Where weights are as matrix units multiply by them, and values whose channels are innermost, if that is elsewhere.
    reordered: BTreeMap<ValueId, Operand>,
    /// The convolutions that read and write values whose channels are innermost.
    channels_last: BTreeSet<NodeId>,
    program: Program,
}

impl Lowering<'_> {
    /// A new buffer for a value, its dims in this order in memory or row-major.
    fn buffer(&mut self, value: ValueId, kind: BufferKind, order: Option<&[usize]>) -> Operand {
        let ty = self.graph.ty(value);
        let view = match order {
            Some(order) => View::ordered(&ty.shape, order),
            None => View::contiguous(&ty.shape),
        };
        self.program.buffers.push(Buffer {
            name: self.graph.node(value.node).name().to_owned(),
            dtype: ty.dtype,
            elements: ty.elements(),
            kind,
        });
        Operand { buffer: BufferId::from_index(self.program.buffers.len() - 1), view }
    }

    /// Gives the value such a buffer of its own.
    fn store(&mut self, value: ValueId, kind: BufferKind, order: Option<&[usize]>) -> Operand {
        let operand = self.buffer(value, kind, order);
        self.places.insert(value, operand.clone());
        operand
    }

    /// Where the value is; constants get their buffer on first use, or are views of one that has it.
    fn place(&mut self, value: ValueId) -> Rebuilt<Operand> {
        if let Some(place) = self.places.get(&value) {
            return Ok(place.clone());
        }
        assert!(self.groups.is_constant(value.node), "groups stand in order");
        if let Some(tensor) = self.graph.constant(value) {
            return Ok(self.store(value, BufferKind::Weight(Weight::Given(tensor.clone())), None));
        }
        let is_view = is_view(self.graph.node(value.node).op());
        let seen = if is_view { self.seen(value.node)? } else { None };
        let Some(seen) = seen else { return self.made(value) };
        self.places.insert(value, seen.clone());
        Ok(seen)
    }

    /// How a value that is there lies, or a constant would where [`Self::place`] puts it.
    fn view(&self, value: ValueId) -> View {
        if let Some(place) = self.places.get(&value) {
            return place.view.clone();
        }
        let node = self.graph.node(value.node);
        let from = node.input(0).filter(|_| is_view(node.op()));
        let seen = from.and_then(|from| view_of(node.op(), &self.view(from)));
        seen.unwrap_or_else(|| View::contiguous(&self.graph.ty(value).shape))
    }

    /// A weight that is made when the program is compiled.
    fn made(&mut self, value: ValueId) -> Rebuilt<Operand> {
        Ok(self.store(value, BufferKind::derived(recipe(self.graph, value)?), None))
    }

    /// A buffer with a value's dims in this order in memory, beside the value as others read it.
    fn reorder(&mut self, value: ValueId, order: &[usize], kind: BufferKind) -> Operand {
        let operand = self.buffer(value, kind, Some(order));
        self.reordered.insert(value, operand.clone());
        operand
    }

    fn lower_view(&mut self, number: GroupId, group: &Group) -> Rebuilt<()> {
        let id = group.nodes[0];
        let Some(seen) = self.seen(id)? else { return self.lower_copy(number, group) };
        self.places.insert(id.value(), seen);
        Ok(())
    }

    /// Whether a change of view moves no element: its value lies row-major then, or its channels are innermost, and what
    /// reads it takes that.
    fn moves_nothing(&mut self, id: NodeId) -> Rebuilt<bool> {
        let Some(Operand { view: seen, .. }) = self.seen(id)? else { return Ok(false) };
        let takes = |reader: NodeId| {
            let Some(id) = self.group_of[reader.index()] else { return false };
            let group = &self.groups.groups()[id.index()];
            group.family == Family::Pointwise
                || group.nodes.iter().any(|node| self.channels_last.contains(node))
        };
        let alike = || {
            let uses = self.graph.uses(id);
            seen.is_channels_last() && uses.iter().all(|(reader, _)| takes(*reader))
        };
        Ok(!self.channels_last.is_empty() && (seen.is_contiguous() || alike()))
    }

    fn input_place(&mut self, id: NodeId) -> Rebuilt<Operand> {
        let input = self.graph.node(id).inputs()[0].expect("a change of view has its input");
        self.place(input)
    }

    /// What a change of view makes of the place of its input, where strides say it.
    fn seen(&mut self, id: NodeId) -> Rebuilt<Option<Operand>> {
        let Operand { buffer, view } = self.input_place(id)?;
        Ok(view_of(self.graph.node(id).op(), &view).map(|view| Operand { buffer, view }))
    }

    /// A step that moves the elements of a change of view into a buffer of their own.
    fn lower_copy(&mut self, number: GroupId, group: &Group) -> Rebuilt<()> {
        let &Group { executor, ref nodes, .. } = group;
        let id = nodes[0];
        let (input, output) = if let Op::Reshape(_) = self.graph.node(id).op() {
            // The input's elements in row-major order, then seen under the new shape.
            let input = self.input_place(id)?;
            let Operand { buffer, .. } = self.store(id.value(), BufferKind::Intermediate, None);
            let view = View::contiguous(&input.view.shape());
            (input, Operand { buffer, view })
        } else {
            let Some(input) = self.seen(id)? else {
                return self.lower_group(number, &Group { family: Family::Copy, ..group.clone() });
            };
            let library = self.target.kind != Kind::Cpu && self.granularity == Granularity::PerOp;
            let order = library.then(|| copied_order(self.graph, id, &input.view)).flatten();
            let output = self.store(id.value(), BufferKind::Intermediate, order.as_deref());
            (input, output)
        };
        self.push_copy(Origin::Group(number), id.value(), input, output, executor)
    }

    fn push_copy(
        &mut self,
        origin: Origin,
        value: ValueId,
        from: Operand,
        to: Operand,
        executor: Executor,
    ) -> Rebuilt<()> {
        let node = self.graph.node(value.node);
        let ty = TensorType::new(self.graph.ty(value).dtype, from.view.shape());
        let mut body = Graph::new();
        // The reference has no part in copies.
        let executor = match (executor, self.granularity) {
            (Executor::Template | Executor::Library, _) => executor,
            (Executor::Reference, Granularity::Fused) => Executor::Template,
            (Executor::Reference, Granularity::PerOp) => Executor::Library,
        };
        let input = body.add_input("x", ty).map_err(|e| FusionError::rebuild(node, e))?;
        body.add_output("y", input);
        self.program.steps.push(Step {
            origin,
            name: format!("{} ({})", node.op().name(), node.name()),
            family: Family::Copy,
            executor,
            variants: variants(self.target, Family::Copy, &body, &self.sizes),
            nodes: vec![node.name().to_owned()],
            body: Arc::new(body),
            inputs: vec![from],
            outputs: vec![to],
            in_place: Vec::new(),
        });
        Ok(())
    }

    fn lower_group(&mut self, number: GroupId, group: &Group) -> Rebuilt<()> {
        let inside = |id: NodeId| self.group_of[id.index()] == Some(number);
        let writes = self.graph.stored(&group.nodes, inside);
        if writes.is_empty() {
            return Ok(());
        }
        let turned = self.weights_to_turn(group);
        if turned.is_empty() {
            self.lay_weights_alike(group)?;
        }
        self.pack_operands(number, group, &turned)?;
        let (body, reads) = body(self.graph, group, &writes)?;
        let innermost = self.channels_last(group, &writes);
        let pools = self.pools_channels_last(group);
        let mut inputs = Vec::with_capacity(reads.len());
        for Read { value, by_points } in reads {
            let channels_last = match innermost {
                Some(conv) => self.place_channels_last(number, group, conv, value)?,
                None => None,
            };
            let as_it_lies = channels_last.is_some()
                || pools.is_some()
                || takes_views(group.family)
                || (by_points && group.nodes.len() > 1)
                || group.executor == Executor::Reference;
            let place = match channels_last {
                Some(place) => place,
                None if turned.contains(&value) => self.turn(value)?,
                None => self.place(value)?,
            };
            inputs.push(match as_it_lies || place.view.is_contiguous() {
                true => place,
                false => self.gathered(number, value, place, group.executor)?,
            });
        }
        // One loop writes all its outputs in one order.
        let mut orders = writes.iter().map(|&value| self.write_order(group.family, value, &inputs));
        let order =
            orders.next().flatten().filter(|first| orders.all(|o| o.as_ref() == Some(first)));
        let order = match innermost {
            Some(conv) => Some(channels_last(self.graph.ty(conv.value()).rank())),
            None if pools == Some(true) => Some(channels_last(self.graph.ty(writes[0]).rank())),
            None => order,
        };
        let output = |&value| self.store(value, BufferKind::Intermediate, order.as_deref());
        let outputs: Vec<Operand> = writes.iter().map(output).collect();
        if innermost.is_some() {
            self.reordered.extend(writes.iter().copied().zip(outputs.iter().cloned()));
        }
        let in_place = match group.family {
            Family::Pointwise => self.in_place_pairs(&inputs, &outputs),
            Family::Normalization if self.normalises_in_place(group, &writes) => {
                let mut pairs = self.in_place_pairs(&inputs, &outputs);
                pairs.retain(|&(_, input)| input == 0);
                pairs
            }
            _ => Vec::new(),
        };
        let nodes = group.nodes.iter().map(|&id| self.graph.node(id).name().to_owned()).collect();
        let is_left = group.executor == Executor::Library;
        self.program.steps.push(Step {
            origin: Origin::Group(number),
            name: group_name(self.graph, &group.nodes),
            family: group.family,
            executor: group.executor,
            variants: match innermost {
                Some(conv) => self.variants_channels_last(conv, &body),
                // A call at all sizes, beside which one kernel stands ready.
                None if is_left && group.family == Family::Convolution => Variants::any(),
                None => variants(self.target, group.family, &body, &self.sizes),
            },
            nodes,
            body: Arc::new(body),
            inputs,
            outputs,
            in_place,
        });
        Ok(())
    }

    /// A row-major copy of a value that a family without views reads.
    fn gathered(
        &mut self,
        number: GroupId,
        value: ValueId,
        place: Operand,
        executor: Executor,
    ) -> Rebuilt<Operand> {
        let copy = self.store(value, BufferKind::Intermediate, None);
        self.push_copy(Origin::Before(number), value, place, copy.clone(), executor)?;
        Ok(copy)
    }

    /// The order of dims in memory in which an output is written, where row-major is not the best:
    /// as its only reader, a transpose, wants it; or as the pointwise inputs lie.
    fn write_order(
        &self,
        family: Family,
        value: ValueId,
        inputs: &[Operand],
    ) -> Option<Vec<usize>> {
        let (gpu, per_op) = (self.target.kind != Kind::Cpu, self.granularity == Granularity::PerOp);
        if per_op && gpu && family == Family::Fmha {
            return heads_order(self.graph, value);
        }
        if self.given.contains(&value) || per_op && self.channels_last.is_empty() {
            return None;
        }
        if gpu && family == Family::Copy && self.is_image_of_all(value) {
            return Some(channels_last(self.graph.ty(value).rank()));
        }
        // A GPU's templates write matmuls in rows.
        let in_rows = gpu && matches!(family, Family::MatMul | Family::Mlp);
        if !writes_any_order(family) || in_rows || per_op && family != Family::Pointwise {
            return None;
        }
        transposed(self.graph, value).filter(|_| !per_op).or_else(|| {
            let read = inputs.iter().map(|input| input.view.clone());
            order_of_read(family, &self.graph.ty(value).shape, read)
        })
    }

    /// Whether a norm may overwrite its input: on a CPU a thread reads a row before it writes it, and no other. Not in plans of
    /// one step for each operator: additions there are in place too, so one buffer would live through the whole model, and
    /// arenas would grow.
    fn normalises_in_place(&self, group: &Group, writes: &[ValueId]) -> bool {
        let (&[id], &[y]) = (&group.nodes[..], writes) else { return false };
        let node = self.graph.node(id);
        let norm = matches!(node.op(), Op::LayerNorm { .. } | Op::RmsNorm { .. });
        let once = node.inputs().iter().filter(|&&input| input == node.input(0)).count() == 1;
        let in_f32 = self.graph.ty(y).dtype == DType::F32;
        let fused = self.granularity == Granularity::Fused && self.target.kind == Kind::Cpu;
        fused && norm && once && in_f32 && id.value() == y
    }

    /// Outputs that may overwrite an input, where both see a whole buffer alike.
    fn in_place_pairs(&self, inputs: &[Operand], outputs: &[Operand]) -> Vec<(usize, usize)> {
        let alike = |&(o, i): &(usize, usize)| {
            let (output, input) = (&outputs[o], &inputs[i]);
            let [out, of] = [output, input].map(|operand| self.program.buffer(operand.buffer));
            matches!(of.kind, BufferKind::Intermediate)
                && of.dtype.size() == out.dtype.size()
                && of.elements == out.elements
                && input.view == output.view
                && inputs.iter().filter(|other| other.buffer == input.buffer).count() == 1
        };
        let pairs = (0..outputs.len()).flat_map(|o| (0..inputs.len()).map(move |i| (o, i)));
        pairs.filter(alike).collect()
    }

    /// Turns the buffers of outputs into output buffers; copies what is a view, an input, a weight, or given twice.
    fn lower_outputs(&mut self) -> Rebuilt<()> {
        for (number, (_, value)) in self.graph.outputs().iter().enumerate() {
            let place = self.place(*value)?;
            let buffer = self.program.buffer(place.buffer);
            let whole = place.view.is_contiguous()
                && matches!(buffer.kind, BufferKind::Intermediate)
                && buffer.elements == self.graph.ty(*value).elements()
                && buffer.dtype == self.graph.ty(*value).dtype;
            if whole {
                self.program.buffers[place.buffer.index()].kind = BufferKind::Output(number);
                continue;
            }
            let to = self.buffer(*value, BufferKind::Output(number), None);
            self.push_copy(Origin::Output(number), *value, place, to, Executor::Template)?;
        }
        // An output's memory is the caller's: nothing may be written over it afterwards.
        for step in &mut self.program.steps {
            let buffers = &self.program.buffers;
            let stays = |operand: &Operand| {
                matches!(buffers[operand.buffer.index()].kind, BufferKind::Intermediate)
            };
            let (inputs, outputs) = (&step.inputs, &step.outputs);
            step.in_place.retain(|&(o, i)| stays(&outputs[o]) && stays(&inputs[i]));
        }
        Ok(())
    }
}
