//! What a caller may choose about a zoo model.

use crate::error::ZooError;

/// Oldest opset that the builders write.
pub const OLDEST_OPSET: i64 = 11;
/// Newest opset that the builders write: the newest of torch's legacy exporter.
pub const NEWEST_OPSET: i64 = 20;
/// Most layers a model may be given.
const MOST_LAYERS: usize = 1024;
/// Largest width a model may be given.
const MOST_WIDTH: usize = 1 << 16;

/// An activation between the layers of an MLP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Activation {
    /// `max(x, 0)`.
    Relu,
    /// The exact GELU, `x·(1 + erf(x/√2))/2`.
    Gelu,
    /// The hyperbolic tangent.
    Tanh,
    /// The logistic function.
    Sigmoid,
    /// `x·sigmoid(x)`.
    Silu,
}

impl Activation {
    /// All activations.
    pub const ALL: [Activation; 5] =
        [Self::Relu, Self::Gelu, Self::Tanh, Self::Sigmoid, Self::Silu];

    /// The name it has in model names and on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Relu => "relu",
            Self::Gelu => "gelu",
            Self::Tanh => "tanh",
            Self::Sigmoid => "sigmoid",
            Self::Silu => "silu",
        }
    }
}

impl std::fmt::Display for Activation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// Which release of the model's Python source the exporter traced. They differ in how an encoder's
/// mask is made, how its scores are scaled and which shapes are read again in each layer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Source {
    /// transformers 4: the mask is `(1 - mask)·lowest`, scores are divided by `√d`.
    #[default]
    Transformers4,
    /// transformers 5: the mask is gathered by ranges and selected, scores are multiplied by `1/√d`.
    Transformers5,
}

impl Source {
    /// Both, in order of age.
    pub const ALL: [Source; 2] = [Self::Transformers4, Self::Transformers5];

    /// The name it has on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Transformers4 => "transformers4",
            Self::Transformers5 => "transformers5",
        }
    }
}

impl std::fmt::Display for Source {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// What a caller may choose about a zoo model; `None` leaves the model's own value.
#[derive(Clone, Debug, PartialEq)]
pub struct Options {
    /// Seed of the weights.
    pub seed: u64,
    /// Number of encoder layers, or depth of an MLP; 1 to 1024.
    pub layers: Option<usize>,
    /// Width of an MLP, LayerNorm, LSTM or LSTM cell; 1 to 65536.
    pub width: Option<usize>,
    /// Activation of an MLP.
    pub activation: Option<Activation>,
    /// ONNX opset to write, 11 to 20.
    pub opset: i64,
    /// Whether LayerNorm is written as its arithmetic even where the opset has it whole (17 on).
    pub decomposed_layer_norm: bool,
    /// The source that an encoder's graph follows.
    pub source: Source,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            seed: 0,
            layers: None,
            width: None,
            activation: None,
            opset: 17,
            decomposed_layer_norm: false,
            source: Source::default(),
        }
    }
}

impl Options {
    /// Refuses values that no model takes.
    pub(crate) fn check(&self, model: &str) -> Result<(), ZooError> {
        if !(OLDEST_OPSET..=NEWEST_OPSET).contains(&self.opset) {
            let reason = format!("opsets {OLDEST_OPSET} to {NEWEST_OPSET} can be written");
            return Err(refusal(model, "opset", self.opset, reason));
        }
        in_range(model, "layers", self.layers, MOST_LAYERS)?;
        in_range(model, "width", self.width, MOST_WIDTH)
    }

    /// Refuses an option that has been given but that this model lacks.
    pub(crate) fn lacks<T: std::fmt::Display>(
        model: &str,
        option: &'static str,
        value: Option<T>,
    ) -> Result<(), ZooError> {
        match value {
            None => Ok(()),
            Some(value) => Err(refusal(model, option, value, "this model lacks it".to_owned())),
        }
    }
}

fn in_range(
    model: &str,
    option: &'static str,
    value: Option<usize>,
    most: usize,
) -> Result<(), ZooError> {
    match value {
        Some(value) if value == 0 || value > most => {
            Err(refusal(model, option, value, format!("it must be 1 to {most}")))
        }
        _ => Ok(()),
    }
}

fn refusal<T: std::fmt::Display>(
    model: &str,
    option: &'static str,
    value: T,
    reason: String,
) -> ZooError {
    ZooError::Option { model: model.to_owned(), option, value: value.to_string(), reason }
}
