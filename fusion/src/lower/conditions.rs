//! What sizes must fulfil beyond what inference proves in symbols.

use crate::base::program::Condition;
use graphene_frontend::op::{Class, Op};
use graphene_frontend::{Graph, TensorType};
use std::collections::HashMap;

/// What sizes must fulfil: the operations that take symbolic inputs at some sizes only, each once.
pub(crate) fn conditions(graph: &Graph) -> Vec<Condition> {
    let mut conditions: Vec<Condition> = Vec::new();
    let mut seen: HashMap<(&str, Vec<Option<&TensorType>>), Vec<usize>> = HashMap::new();
    for (_, node) in graph.nodes().filter(|(_, node)| fits_at_some_sizes(node.op())) {
        let inputs: Vec<_> = node.inputs().iter().map(|v| v.map(|v| graph.ty(v))).collect();
        let types = inputs.iter().flatten().flat_map(|ty| &ty.shape);
        if types.chain(node.op().dims()).all(|dim| dim.known().is_some()) {
            continue;
        }
        let alike = seen.entry((node.op().name(), inputs.clone())).or_default();
        if alike.iter().all(|&i| conditions[i].op != *node.op()) {
            alike.push(conditions.len());
            conditions.push(Condition {
                name: node.name().to_owned(),
                op: node.op().clone(),
                inputs: inputs.into_iter().map(Option::<&_>::cloned).collect(),
            });
        }
    }
    conditions
}

/// Whether symbolic inputs that inference lets pass may not fit the operation at the sizes that they get.
fn fits_at_some_sizes(op: &Op) -> bool {
    // A reshape is proved in symbols, and bodies check themselves as they run.
    let proved = matches!(op.info().class, Class::Source | Class::View | Class::Control);
    let one_input = matches!(op, Op::Unary(_) | Op::Cast { .. } | Op::Transpose(_))
        || matches!(op, Op::Cumulative { .. } | Op::Softmax { .. });
    !proved && !one_input
}
