//! What holds between the stages, whatever the model: looked at after each of them in debug builds, and by tests.
//!
//! - Of groups: every operation is in exactly one, unless it is a source or made of constants alone. A group reads
//!   what earlier groups make, or its own operations before the reader. So groups can run in their order.
//! - Of programs: a step has an operand for each input and output of its body, of its element type. It reads inputs,
//!   weights and what earlier steps wrote, and writes neither inputs nor weights. All outputs are written.

use crate::base::error::FusionError;
use crate::base::groups::{Family, Groups};
use crate::base::program::{Buffer, BufferKind, Operand, Program, Step};
use graphene_frontend::{Graph, Node, Op, ValueId};

/// Looks whether the groups of a graph hold every operation once, in an order in which they can run.
///
/// # Errors
/// [`FusionError::ReadEarly`], [`FusionError::PlacedTwice`], [`FusionError::NotPlaced`].
pub fn groups(graph: &Graph, groups: &Groups) -> Result<(), FusionError> {
    let is_source = |node: &Node| Family::of(node.op()).is_none();
    let mut made = vec![false; graph.len()];
    for (id, node) in graph.nodes().filter(|(id, _)| groups.is_constant(*id)) {
        let mut inputs = node.inputs().iter().flatten().peekable();
        let begun = matches!(node.op(), Op::Constant(_)) || inputs.peek().is_some();
        made[id.index()] = begun && inputs.all(|value| made[value.node.index()]);
    }
    for &id in groups.groups().iter().flat_map(|group| &group.nodes) {
        let node = graph.node(id);
        for from in node.inputs().iter().flatten().map(|value| value.node) {
            if !made[from.index()] && !is_source(graph.node(from)) {
                let name = graph.node(from).name().to_owned();
                return Err(FusionError::ReadEarly { name, reader: node.name().to_owned() });
            }
        }
        if std::mem::replace(&mut made[id.index()], true) {
            return Err(FusionError::PlacedTwice(node.name().to_owned()));
        }
    }
    let left = graph.nodes().find(|(id, node)| !made[id.index()] && !is_source(node));
    left.map_or(Ok(()), |(_, node)| Err(FusionError::NotPlaced(node.name().to_owned())))
}

/// Looks whether the steps of a program read what is there, and write all outputs.
///
/// # Errors
/// [`FusionError::Unwritten`], [`FusionError::Operands`].
pub fn program(program: &Program) -> Result<(), FusionError> {
    let buffers = program.buffers();
    let given = |kind: &BufferKind| match kind {
        BufferKind::Input(_) | BufferKind::Weight(_) => true,
        BufferKind::Output(_) | BufferKind::Intermediate => false,
    };
    let mut written: Vec<bool> = buffers.iter().map(|buffer| given(&buffer.kind)).collect();
    for step in program.steps() {
        let inputs = step.body.inputs().iter().map(|id| id.value()).collect();
        let operands = [(&step.inputs, inputs), (&step.outputs, step.body.given())];
        if !operands.iter().all(|(operands, values)| fits(program, step, operands, values)) {
            return Err(FusionError::Operands(step.name.clone()));
        }
        if let Some(read) = step.inputs.iter().find(|read| !written[read.buffer.index()]) {
            let buffer = buffers[read.buffer.index()].name.clone();
            return Err(FusionError::Unwritten(buffer));
        }
        if step.outputs.iter().any(|to| given(&buffers[to.buffer.index()].kind)) {
            return Err(FusionError::Operands(step.name.clone()));
        }
        step.outputs.iter().for_each(|to| written[to.buffer.index()] = true);
    }
    let is_output = |buffer: &Buffer| matches!(buffer.kind, BufferKind::Output(_));
    let left =
        buffers.iter().zip(&written).find(|(buffer, written)| is_output(buffer) && !**written);
    left.map_or(Ok(()), |(buffer, _)| Err(FusionError::Unwritten(buffer.name.clone())))
}

/// Whether the operands are those of these values of the step's body.
fn fits(program: &Program, step: &Step, operands: &[Operand], values: &[ValueId]) -> bool {
    let is_of = |(operand, value): (&Operand, &ValueId)| {
        let ty = step.body.ty(*value);
        // A copy may go by another shape of as many elements.
        let shaped = step.family == Family::Copy || operand.view.shape() == ty.shape;
        shaped && program.buffer(operand.buffer).dtype == ty.dtype
    };
    operands.len() == values.len() && operands.iter().zip(values).all(is_of)
}

#[cfg(test)]
mod tests {
    use super::program;
    use crate::{FusionError, Granularity, plan};
    use graphene_frontend::dim::Bindings;
    use graphene_frontend::text::parse;
    use graphene_ir::target::Target;

    #[test]
    fn programs_that_cannot_run_are_refused() {
        let text = r#"
            %0 = Input : f32[8, 8] "x"
            %1 = Softmax(%0) {axis: 0} : f32[8, 8] "columns"
            %2 = Softmax(%1) {axis: 1} : f32[8, 8] "rows"
            return "y" = %2
        "#;
        let graph = parse(text, &[]).unwrap();
        let planned = plan(&graph, &Target::cpu(2), Granularity::Fused, &Bindings::new()).unwrap();
        let good = planned.program;
        assert_eq!(program(&good), Ok(()));
        let mut early = good.clone();
        early.steps.reverse();
        let unwritten = |buffer: &str| Err(FusionError::Unwritten(buffer.to_owned()));
        assert_eq!(program(&early), unwritten("columns"));
        let mut short = good.clone();
        short.steps.pop();
        assert_eq!(program(&short), unwritten("rows"));
        let mut bare = good.clone();
        bare.steps[1].inputs.clear();
        let step = bare.steps[1].name.clone();
        assert_eq!(program(&bare), Err(FusionError::Operands(step)));
        let mut over = good;
        over.steps[1].outputs[0] = over.steps[0].inputs[0].clone();
        let step = over.steps[1].name.clone();
        assert_eq!(program(&over), Err(FusionError::Operands(step)));
    }
}
