//! A model of text whose only output is the vector of each text: its tokens' vectors become one where the model runs.
//!
//! Of a batch of texts the vectors of all tokens are some hundred times as much as those of the texts. Where only these are
//! wanted, pooling as a part of the graph saves their way from a GPU, and is fused with what is before it.

use crate::config::TextConfig;
use graphene_frontend::dim::Dim;
use graphene_frontend::graph::{Graph, ValueId};
use graphene_frontend::infer::InferError;
use graphene_frontend::op::{Binary, Op, ReduceOp, SliceAxis};
use graphene_text::{Pooling, Role};

/// The output of a pooled model, as sentence-transformers call it.
const OUTPUT: &str = "sentence_embedding";

/// The graph with the vectors of texts in place of its outputs: those of the output that the settings name, or of the first
/// that has one for each token.
///
/// # Errors
/// What the model lacks for that.
pub(crate) fn pooled(
    mut graph: Graph,
    config: &TextConfig,
    of_folder: Option<Pooling>,
) -> Result<Graph, String> {
    let is_wanted = |(name, value): &&(String, ValueId)| match &config.output {
        Some(wanted) => name == wanted,
        None => graph.ty(*value).rank() == 3,
    };
    let found = graph.outputs().iter().find(is_wanted).map(|(_, value)| *value);
    let hidden = found.filter(|&value| graph.ty(value).rank() == 3);
    let hidden = hidden.ok_or("`pooled` needs an output with a vector for each token")?;
    let pooling = config.pooling.or(of_folder).unwrap_or(Pooling::Mean);
    let pooled = match pooling {
        Pooling::Mean => {
            let is_mask = |name: &str| Role::of(name) == Some(Role::Mask);
            let inputs = graph.inputs().iter().map(|id| id.value());
            let mask = inputs.into_iter().find(|id| is_mask(graph.node(id.node).name()));
            let mask =
                mask.ok_or("`pooled` by the mean needs an attention mask among the inputs")?;
            mean(&mut graph, hidden, mask)
        }
        Pooling::Cls => first(&mut graph, hidden),
        Pooling::Last => return Err("`pooled` is for the first token or the mean".to_owned()),
    };
    let pooled = pooled.map_err(|error| error.to_string())?;
    graph.take_outputs();
    graph.add_output(OUTPUT, pooled);
    Ok(graph)
}

/// The mean of the vectors `[rows, tokens, width]` whose mask `[rows, tokens]` is not zero.
fn mean(graph: &mut Graph, hidden: ValueId, mask: ValueId) -> Result<ValueId, InferError> {
    let dtype = graph.ty(hidden).dtype;
    let mut shape = graph.ty(mask).shape.clone();
    shape.push(Dim::from(1));
    let sum = || Op::Reduce { op: ReduceOp::Sum, axes: vec![1], keep: false };
    let cast = Op::Cast { to: dtype, saturate: true };
    let weights = graph.add("pool/mask", cast, &[Some(mask)])?.value();
    let weights = graph.add("pool/weights", Op::Reshape(shape), &[Some(weights)])?.value();
    let product = Op::Binary(Binary::Mul);
    let kept = graph.add("pool/kept", product, &[Some(hidden), Some(weights)])?.value();
    let total = graph.add("pool/sum", sum(), &[Some(kept)])?.value();
    let count = graph.add("pool/count", sum(), &[Some(weights)])?.value();
    let mean = graph.add("pool/mean", Op::Binary(Binary::Div), &[Some(total), Some(count)])?;
    Ok(mean.value())
}

/// The first of the vectors `[rows, tokens, width]`.
fn first(graph: &mut Graph, hidden: ValueId) -> Result<ValueId, InferError> {
    let mut shape = graph.ty(hidden).shape.clone();
    shape.remove(1);
    let slice = SliceAxis { axis: 1, start: Dim::from(0), len: Dim::from(1), step: 1 };
    let first = graph.add("pool/first", Op::Slice(vec![slice]), &[Some(hidden)])?.value();
    Ok(graph.add("pool/cls", Op::Reshape(shape), &[Some(first)])?.value())
}
