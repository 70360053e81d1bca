//! What is made of constants alone: computed once, within a budget.

use graphene_frontend::graph::{Graph, Node};
use graphene_frontend::op::{Class, Op};

/// Weights made of constants take at most this many times the bytes of all constants, and [`MOST_BYTES`] beyond: bytes are
/// dequantised by way of integers of 32 bits.
const MOST_TIMES: u64 = 16;
const MOST_BYTES: u64 = 1 << 24;
/// Multiplications and additions of all matrix products among them at most.
const MOST_WORK: u64 = 1 << 34;

/// For each node whether it is made of constants alone: at sizes that are known, by operations whose work is that of
/// reading and writing, and within a budget of bytes for the whole graph. What is beyond runs with the program.
pub(crate) fn constants(graph: &Graph) -> Vec<bool> {
    let given = graph.nodes().filter(|(_, node)| matches!(node.op(), Op::Constant(_)));
    let given = given.map(|(_, node)| bytes(node).unwrap_or(0)).fold(0, u64::saturating_add);
    let mut bytes_left = given.saturating_mul(MOST_TIMES).saturating_add(MOST_BYTES);
    let mut work_left = MOST_WORK;
    let mut constant = vec![false; graph.len()];
    for (id, node) in graph.nodes() {
        if matches!(node.op(), Op::Constant(_)) {
            constant[id.index()] = true;
            continue;
        }
        let mut inputs = node.inputs().iter().flatten().peekable();
        let given = inputs.peek().is_some() && inputs.all(|value| constant[value.node.index()]);
        let Some((bytes, work)) = bytes(node).zip(work(graph, node)).filter(|_| given) else {
            continue;
        };
        if bytes <= bytes_left && work <= work_left {
            bytes_left -= bytes;
            work_left -= work;
            constant[id.index()] = true;
        }
    }
    constant
}

fn bytes(node: &Node) -> Option<u64> {
    node.outputs().iter().try_fold(0_u64, |bytes, ty| {
        let sizes = ty.known_shape()?.into_iter().map(|size| size as u64);
        Some(bytes.saturating_add(sizes.fold(ty.dtype.size() as u64, u64::saturating_mul)))
    })
}

/// Work beyond reading and writing; `None` for what is not made beforehand.
fn work(graph: &Graph, node: &Node) -> Option<u64> {
    match node.op().info().class {
        Class::MatMul => {
            let depth = node.inputs()[0].and_then(|a| graph.ty(a).shape.last()?.known())?;
            let elements = bytes(node)? / node.outputs()[0].dtype.size() as u64;
            Some(elements.saturating_mul(u64::try_from(depth).ok()?))
        }
        Class::Pointwise | Class::View | Class::Movement | Class::Gather | Class::Scatter => {
            Some(0)
        }
        Class::Reduction | Class::Selection | Class::Normalization | Class::Resample => Some(0),
        // The work of the others is not bounded by what they read and write, or nobody makes weights by them.
        Class::Source | Class::Sizes | Class::Convolution | Class::Pool => None,
        Class::Attention | Class::Recurrent | Class::Control => None,
    }
}
