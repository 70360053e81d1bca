//! The encoders: BERT, RoBERTa and their relatives, and ALBERT, which uses one layer again and again.

use crate::attention::{Sizes, additive_mask, gathered_mask, self_attention};
use crate::blocks::{Entry, Module, cast, expand, gelu, gelu_tanh, gemm, layer_norm, linear};
use crate::blocks::{matrix, size, slice_to};
use crate::builder::{Attr, Builder, Dim, INT32, INT64};
use crate::catalog::{Encoder, Family};
use crate::error::ZooError;
use crate::options::Source;
use crate::weights::Init;

const BATCH: Dim = Dim::Named("batch");
const SEQUENCE: Dim = Dim::Named("sequence");
/// Distribution of embedding tables, as BERT's.
const TABLE: Init = Init { mean: 0.0, std: 0.02 };
/// The token id of padding in RoBERTa, from which its positions are counted.
const PADDING: i64 = 1;

/// Builds an encoder with inputs `input_ids`, `attention_mask` and, but for RoBERTa, `token_type_ids`,
/// each i64 `[batch, sequence]`, and outputs `last_hidden_state` `[batch, sequence, hidden]` and
/// `pooler_output` `[batch, hidden]`.
pub(crate) fn build(b: &mut Builder, config: &Encoder, source: Source) -> Result<(), ZooError> {
    b.input("input_ids", INT64, &[BATCH, SEQUENCE]);
    b.input("attention_mask", INT64, &[BATCH, SEQUENCE]);
    let roberta = config.family == Family::Roberta;
    if !roberta {
        b.input("token_type_ids", INT64, &[BATCH, SEQUENCE]);
    }
    let given = || "token_type_ids".to_owned();
    let (x, mask, sizes) = match source {
        Source::Transformers4 => {
            let types = if roberta { zero_types(b, config) } else { given() };
            let mask = additive_mask(b);
            let positions = positions(b, config);
            (embeddings(b, config, &types, &positions)?, mask, None)
        }
        Source::Transformers5 => {
            let positions = positions(b, config);
            let types = if roberta { gathered_types(b, config, &positions) } else { given() };
            let x = embeddings(b, config, &types, &positions)?;
            let (mask, sizes) = gathered_mask(b, &x);
            (x, mask, Some(sizes))
        }
    };
    let hidden = layers(b, config, x, &mask, sizes)?;
    let pooled = pooler(b, config, &hidden)?;
    b.output(&hidden, "last_hidden_state", &[BATCH, SEQUENCE, Dim::Size(config.hidden)]);
    b.output(&pooled, "pooler_output", &[BATCH, Dim::Size(config.hidden)]);
    Ok(())
}

/// Position ids: for BERT the first of a constant range, for RoBERTa a running count of real tokens.
fn positions(b: &mut Builder, config: &Encoder) -> String {
    let scope = "/embeddings";
    if config.family != Family::Roberta {
        let length = size(b, scope, "input_ids", 1);
        let all: Vec<i64> = (0..config.positions as i64).collect();
        let table = table(b, scope, &all);
        return slice_to(b, scope, &table, &length);
    }
    let padding = b.int(scope, PADDING);
    let padded = b.op(scope, "Equal", &["input_ids", &padding], &[]);
    let real = b.op(scope, "Not", &[&padded], &[]);
    let real = b.op(scope, "Cast", &[&real], &[Attr::Int("to", i64::from(INT32))]);
    let axis = b.op(scope, "Constant", &[], &[Attr::Int32("value", 1)]);
    let count = b.op(scope, "CumSum", &[&real, &axis], &[]);
    let count = b.op(scope, "Mul", &[&count, &real], &[]);
    let count = cast(b, scope, &count, false);
    let padding = b.int(scope, PADDING);
    b.op(scope, "Add", &[&count, &padding], &[])
}

/// Token types where they are no input: a constant row of zeros cut to the sequence and expanded.
fn zero_types(b: &mut Builder, config: &Encoder) -> String {
    let scope = "";
    let Sizes { batch, sequence } = Sizes::of(b, scope, "input_ids");
    let table = table(b, scope, &vec![0; config.positions]);
    let row = slice_to(b, scope, &table, &sequence);
    expand(b, scope, &row, &[Entry::Scalar(&batch), Entry::Scalar(&sequence)])
}

/// The same zeros in newer sources, which gather them by the position ids.
fn gathered_types(b: &mut Builder, config: &Encoder, positions: &str) -> String {
    let scope = "/embeddings";
    let Sizes { batch, sequence } = Sizes::of(b, scope, "input_ids");
    let table = table(b, scope, &vec![0; config.positions]);
    let rows = size(b, scope, positions, 0);
    let rows = expand(b, scope, &table, &[Entry::Scalar(&rows), Entry::Known(-1)]);
    let types = b.op(scope, "GatherElements", &[&rows, positions], &[Attr::Int("axis", 1)]);
    expand(b, scope, &types, &[Entry::Scalar(&batch), Entry::Scalar(&sequence)])
}

/// A constant `[1, positions]`, a buffer of the traced module.
fn table(b: &mut Builder, scope: &str, values: &[i64]) -> String {
    b.op(scope, "Constant", &[], &[Attr::Int64s("value", &[1, values.len() as i64], values)])
}

/// The sum of word, token type and position embeddings, normalised: `[batch, sequence, embedding]`.
fn embeddings(
    b: &mut Builder,
    config: &Encoder,
    types: &str,
    positions: &str,
) -> Result<String, ZooError> {
    let module = Module::root().child("embeddings");
    let look_up = |b: &mut Builder, name: &str, rows: usize, ids: &str| {
        let child = module.child(name);
        let table = b.weight(&child.parameter("weight"), &[rows, config.embedding], TABLE)?;
        Ok::<_, ZooError>(b.op(&child.scope, "Gather", &[&table, ids], &[]))
    };
    let words = look_up(b, "word_embeddings", config.vocabulary, "input_ids")?;
    let types = look_up(b, "token_type_embeddings", config.types, types)?;
    let sum = b.op(&module.scope, "Add", &[&words, &types], &[]);
    let places = look_up(b, "position_embeddings", config.positions, positions)?;
    let sum = b.op(&module.scope, "Add", &[&sum, &places], &[]);
    layer_norm(b, &module.child("LayerNorm"), &sum, config.embedding, config.epsilon)
}

/// All layers: `[batch, sequence, embedding]` to `[batch, sequence, hidden]`.
fn layers(
    b: &mut Builder,
    config: &Encoder,
    mut x: String,
    mask: &str,
    mut sizes: Option<Sizes>,
) -> Result<String, ZooError> {
    let encoder = Module::root().child("encoder");
    if config.family == Family::Albert {
        let map = encoder.child("embedding_hidden_mapping_in");
        x = linear(b, &map, &x, (config.embedding, config.hidden))?;
    }
    for index in 0..config.layers {
        let layer = Layer::at(&encoder, config, index);
        // The first layer's sizes have been read for the mask; each later one reads its own.
        if index > 0 && sizes.is_some() {
            sizes = Some(Sizes::of(b, &layer.attention.scope, &x));
        }
        let context = self_attention(b, &layer.attention, config, &x, mask, sizes.as_ref())?;
        x = rest_of_layer(b, config, &layer, &x, &context)?;
    }
    Ok(x)
}

/// The modules of one layer, by what they do.
struct Layer {
    attention: Module,
    projection: Module,
    residual: Module,
    attention_norm: Module,
    intermediate: Module,
    activation: Module,
    output: Module,
    output_residual: Module,
    output_norm: Module,
}

impl Layer {
    fn at(encoder: &Module, config: &Encoder, index: usize) -> Self {
        if config.family == Family::Albert {
            // Every layer is the same module, so all parameters are shared.
            let layer = encoder.child("albert_layer_groups.0/albert_layers.0");
            let attention = layer.child("attention");
            return Self {
                projection: attention.child("dense"),
                residual: attention.clone(),
                attention_norm: attention.child("LayerNorm"),
                attention,
                intermediate: layer.child("ffn"),
                activation: layer.child("activation"),
                output: layer.child("ffn_output"),
                output_norm: layer.child("full_layer_layer_norm"),
                output_residual: layer,
            };
        }
        let layer = encoder.child(&format!("layer.{index}"));
        let (attended, output) = (layer.child("attention/output"), layer.child("output"));
        Self {
            attention: layer.child("attention/self"),
            projection: attended.child("dense"),
            attention_norm: attended.child("LayerNorm"),
            residual: attended,
            intermediate: layer.child("intermediate/dense"),
            activation: layer.child("intermediate/intermediate_act_fn"),
            output: output.child("dense"),
            output_norm: output.child("LayerNorm"),
            output_residual: output,
        }
    }
}

/// What follows attention in a layer: projection, residual and norm, then the feed-forward part.
fn rest_of_layer(
    b: &mut Builder,
    config: &Encoder,
    layer: &Layer,
    x: &str,
    context: &str,
) -> Result<String, ZooError> {
    let Encoder { hidden, intermediate, epsilon, .. } = *config;
    let albert = config.family == Family::Albert;
    let projected = linear(b, &layer.projection, context, (hidden, hidden))?;
    // ALBERT's source adds the residual from the left.
    let operands = if albert { [x, &projected] } else { [&projected, x] };
    let sum = b.op(&layer.residual.scope, "Add", &operands, &[]);
    let attended = layer_norm(b, &layer.attention_norm, &sum, hidden, epsilon)?;
    let inner = linear(b, &layer.intermediate, &attended, (hidden, intermediate))?;
    let scope = layer.activation.scope.as_str();
    let active = if albert { gelu_tanh(b, scope, &inner) } else { gelu(b, scope, &inner) };
    let outer = linear(b, &layer.output, &active, (intermediate, hidden))?;
    let sum = b.op(&layer.output_residual.scope, "Add", &[&outer, &attended], &[]);
    layer_norm(b, &layer.output_norm, &sum, hidden, epsilon)
}

/// The first token through a linear layer and tanh: `[batch, hidden]`.
fn pooler(b: &mut Builder, config: &Encoder, hidden: &str) -> Result<String, ZooError> {
    let albert = config.family == Family::Albert;
    let pooler = Module::root().child("pooler");
    let (scope, dense) =
        if albert { ("", pooler.clone()) } else { (pooler.scope.as_str(), pooler.child("dense")) };
    let first = b.int(scope, 0);
    let token = b.op(scope, "Gather", &[hidden, &first], &[Attr::Int("axis", 1)]);
    let square = (config.hidden, config.hidden);
    let matmul = gemm(b, &dense, &token, square, matrix(config.hidden))?;
    let activation = if albert { "/pooler_activation" } else { &pooler.scope };
    Ok(b.op(activation, "Tanh", &[&matmul], &[]))
}
