//! Running a model in other elements than its own: single precision as halves.

use crate::FusionError;
use graphene_frontend::dtype::DType;
use graphene_frontend::graph::{Graph, Node, ValueId};
use graphene_frontend::op::Op;
use graphene_frontend::tensor::Tensor;
use std::collections::HashMap;

/// Constants of at most so many elements are converted as they stand, so that what looks at their values still can.
const SMALL: usize = 4096;

/// The graph with all values of single precision as elements of `to`, `f16` or `bf16`. Its inputs and outputs stay what
/// they are; so do values of other types. Constants beyond the largest number of `to` become that number, so that masks
/// stay finite.
///
/// A graph is converted when it has been rewritten: recognised operations keep their statistics in single precision,
/// and rules see a model's constants before they are rounded.
///
/// # Errors
/// [`FusionError::Rebuild`] if an operation does not take halves.
pub fn convert(graph: &Graph, to: DType) -> Result<Graph, FusionError> {
    let cast = |to| Op::Cast { to, saturate: true };
    let mut result = Graph::new();
    let mut renamed: HashMap<ValueId, ValueId> = HashMap::new();
    for (id, node) in graph.nodes() {
        let failed = |error| FusionError::rebuild(node, error);
        let single = node.outputs().first().is_some_and(|ty| ty.dtype == DType::F32);
        let made = match node.op() {
            Op::Input => {
                let ty = node.outputs()[0].clone();
                let value = result.add_input(node.name(), ty).map_err(failed)?;
                match single {
                    true => result.add(node.name(), cast(to), &[Some(value)]).map_err(failed)?,
                    false => value.node,
                }
            }
            Op::Constant(tensor) if single => converted(&mut result, node, tensor, to)?.node,
            Op::Constant(tensor) => result.add_constant(node.name(), tensor.clone()).node,
            op => {
                let inputs = node.inputs().iter().map(|v| v.map(|v| renamed[&v]));
                let inputs: Vec<Option<ValueId>> = inputs.collect();
                let op = match op {
                    Op::Cast { to: DType::F32, .. } => cast(to),
                    op => op.clone(),
                };
                result.add(node.name(), op, &inputs).map_err(failed)?
            }
        };
        for output in (0..).take(node.outputs().len()) {
            let (old, new) = (ValueId { node: id, output }, ValueId { node: made, output });
            renamed.insert(old, new);
        }
    }
    for (name, value) in graph.outputs() {
        let mut given = renamed[value];
        let (was, is) = (graph.ty(*value).dtype, result.ty(given).dtype);
        if was != is {
            let node = graph.node(value.node);
            let made = result.add(name, cast(was), &[Some(given)]);
            given = made.map_err(|error| FusionError::rebuild(node, error))?.value();
        }
        result.add_output(name, given);
    }
    Ok(result)
}

/// A constant of single precision, within the range of `to`.
fn converted(
    graph: &mut Graph,
    node: &Node,
    tensor: &Tensor,
    to: DType,
) -> Result<ValueId, FusionError> {
    let most = match to {
        DType::F16 => f32::from(half::f16::MAX),
        _ => f32::from(half::bf16::MAX),
    };
    let elements = tensor.as_slice::<f32>().unwrap_or_default();
    if elements.len() <= SMALL {
        let within = |x: &f32| if x.is_nan() { *x } else { x.clamp(-most, most) };
        let shape = tensor.shape().to_vec();
        let small = match to {
            DType::F16 => {
                let elements = elements.iter().map(|x| half::f16::from_f32(within(x)));
                Tensor::from_vec(shape, elements.collect())
            }
            _ => {
                let elements = elements.iter().map(|x| half::bf16::from_f32(within(x)));
                Tensor::from_vec(shape, elements.collect())
            }
        };
        return Ok(graph.add_constant(node.name(), small.expect("as many elements as there were")));
    }
    // Weights are converted when the program is compiled, where they are read.
    let value = graph.add_constant(node.name(), tensor.clone());
    let made = graph.add(node.name(), Op::Cast { to, saturate: true }, &[Some(value)]);
    Ok(made.map_err(|error| FusionError::rebuild(node, error))?.value())
}
