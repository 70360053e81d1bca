//! Encoding and decoding of models.

use super::{DataLocation, ModelProto, TensorProto};
use bytes::Bytes;
use prost::Message;
use prost::encoding::{WireType, encode_key, encode_varint};

/// Number of `graph` in ModelProto.
const GRAPH: u32 = 7;
/// Number of `initializer` in GraphProto.
const INITIALIZER: u32 = 5;
/// Number of `raw_data` in TensorProto.
const RAW_DATA: u32 = 9;

/// Bytes that are no ONNX model.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
#[error(transparent)]
pub struct DecodeError(#[from] prost::DecodeError);

/// The model as the bytes of an ONNX file.
pub fn encode(model: &ModelProto) -> Bytes {
    model.encode_to_vec().into()
}

/// The model of an ONNX file's bytes; tensor data is shared with them, not copied.
///
/// # Errors
/// [`DecodeError`] if they are none.
pub fn decode(bytes: Bytes) -> Result<ModelProto, DecodeError> {
    Ok(ModelProto::decode(bytes)?)
}

/// A model whose weights are to be written inside of it: everything but their bytes, encoded.
///
/// Fields of a message may come in any order, so the initializers come last, where they can be streamed:
/// the weights are never whole in memory.
pub struct Inline {
    /// All that comes before the first initializer.
    pub head: Vec<u8>,
    /// Per initializer, in order, all that comes before its bytes.
    pub tensors: Vec<Vec<u8>>,
}

impl Inline {
    /// Encodes `model`; `lengths` are the initializers' sizes in bytes, in their order.
    pub fn new(model: &ModelProto, lengths: &[u64]) -> Self {
        let mut model = model.clone();
        let mut graph = model.graph.take().unwrap_or_default();
        let initializers = std::mem::take(&mut graph.initializer);
        let tensors: Vec<Vec<u8>> = initializers
            .into_iter()
            .zip(lengths)
            .map(|(tensor, length)| initializer_head(tensor, *length))
            .collect();
        let mut head = model.encode_to_vec();
        let graph = graph.encode_to_vec();
        let heads: u64 = tensors.iter().map(|tensor| tensor.len() as u64).sum();
        encode_key(GRAPH, WireType::LengthDelimited, &mut head);
        encode_varint(graph.len() as u64 + heads + lengths.iter().sum::<u64>(), &mut head);
        head.extend_from_slice(&graph);
        Self { head, tensors }
    }
}

/// An initializer's field in its graph, up to the `length` bytes that it ends with.
fn initializer_head(mut tensor: TensorProto, length: u64) -> Vec<u8> {
    tensor.external_data.clear();
    tensor.data_location = DataLocation::Default.into();
    let mut body = tensor.encode_to_vec();
    encode_key(RAW_DATA, WireType::LengthDelimited, &mut body);
    encode_varint(length, &mut body);
    let mut head = Vec::with_capacity(body.len() + 16);
    encode_key(INITIALIZER, WireType::LengthDelimited, &mut head);
    encode_varint(body.len() as u64 + length, &mut head);
    head.extend_from_slice(&body);
    head
}
