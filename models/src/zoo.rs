//! A zoo model: its ONNX message, and its weights, made when they are asked for.

use bytes::Bytes;
use graphene_frontend::onnx::{ModelProto, encode};

use crate::builder::Builder;
use crate::catalog::{Architecture, architecture};
use crate::encoder;
use crate::error::ZooError;
use crate::options::Options;
use crate::small;
use crate::weights::Weights;

/// A model of the zoo. Its initializers refer to the one location that its weights are.
#[derive(Clone, Debug)]
pub struct ZooModel {
    model: ModelProto,
    weights: Weights,
}

impl ZooModel {
    /// The ONNX message; every initializer refers to external data.
    pub fn model(&self) -> &ModelProto {
        &self.model
    }

    /// The weights that the initializers refer to.
    pub fn weights(&self) -> &Weights {
        &self.weights
    }

    /// The message as bytes, without the weights: what an import takes beside [`ZooModel::weights`].
    pub fn encode(&self) -> Bytes {
        encode(&self.model)
    }

    /// The message and the weights apart.
    pub fn into_parts(self) -> (ModelProto, Weights) {
        (self.model, self.weights)
    }
}

/// Builds the model that `name` stands for.
///
/// # Errors
/// When the zoo has no such name, or the model does not take an option as given.
pub fn build(name: &str, options: &Options) -> Result<ZooModel, ZooError> {
    let architecture = architecture(name, options)?;
    let mut builder = Builder::new(name, options);
    let b = &mut builder;
    match architecture {
        Architecture::Encoder(config) => encoder::build(b, &config, options.source)?,
        Architecture::Mlp { depth, width, activation } => small::mlp(b, depth, width, activation)?,
        Architecture::Lstm { input, hidden, output } => small::lstm(b, input, hidden, output)?,
        Architecture::LstmCell { width } => small::lstm_cell(b, width)?,
        Architecture::LayerNorm { width } => small::layer_norm_alone(b, width)?,
        Architecture::Attention { heads, head } => small::attention(b, heads, head),
    }
    let (model, weights) = builder.finish();
    Ok(ZooModel { model, weights })
}
