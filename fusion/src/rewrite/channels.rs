//! Convolutions of few channels filled up, so that their channels may be innermost.

use crate::base::rebuild::{InPlace, Rebuilt, rebuilt};
use graphene_frontend::op::{Op, PadMode};
use graphene_frontend::{DType, Dim, Graph, Node};
use graphene_ir::target::Target;

/// Convolutions of few channels, such as the first one of a model of images, of more: they are filled up with zeros, so
/// that they may be innermost. `None` without such convolutions.
pub(crate) fn filled_up(graph: &Graph, target: &Target) -> Rebuilt<Option<Graph>> {
    let lacks = |node: &Node| {
        let read = (node.op(), node.input(0));
        let (Op::Conv(attrs) | Op::WideConv(attrs), Some(x)) = read else { return None };
        let of = graph.ty(x).shape[1].known()?;
        let lacks = (-of).rem_euclid(whole(target, graph.ty(x).dtype)?);
        // Of fewer than a third of them nearly all work would be on zeros.
        (attrs.group == 1 && (1..=2 * of).contains(&lacks)).then_some(lacks)
    };
    if !graph.nodes().any(|(_, node)| lacks(node).is_some()) {
        return Ok(None);
    }
    let filled = rebuilt(graph, |mut at, _, inputs| {
        let Some(lacks) = lacks(at.node) else { return Ok(None) };
        let mut inputs = inputs.to_vec();
        for (input, what) in inputs.iter_mut().take(2).zip(["image", "weights"]) {
            let Some(value) = *input else { continue };
            let before = vec![Dim::from(0); at.graph.ty(value).rank()];
            let mut after = before.clone();
            after[1] = Dim::from(lacks);
            let pad = Op::Pad { mode: PadMode::Constant, before, after };
            let name = format!("{}/{what} of whole channels", at.node.name());
            let mut named = InPlace { graph: at.graph, node: at.node, name: &name };
            *input = Some(named.add_optional(pad, &[Some(value), None])?);
        }
        at.add_optional(at.node.op().clone(), &inputs).map(Some)
    })?;
    Ok(Some(filled))
}

/// Channels that sixteen bytes hold; `None` for elements that the template does not take.
pub(crate) fn whole(target: &Target, elements: DType) -> Option<i64> {
    match elements {
        DType::F16 | DType::BF16 => Some(8),
        DType::F32 if target.tf32 => Some(4),
        _ => None,
    }
}
