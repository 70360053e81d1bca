//! ONNX's messages from the builder's values, and a model with its weights as one stream of bytes.

use bytes::Bytes;
use graphene_frontend::onnx::{
    AttributeProto, AttributeType, DataLocation, Dimension, DimensionValue, ModelProto,
    StringStringEntryProto, TensorProto, TensorShapeProto, TensorTypeProto, TypeProto, TypeValue,
    ValueInfoProto,
};
use prost::Message;
use prost::encoding::{WireType, encode_key, encode_varint};

use crate::builder::{Attr, BOOL, Dim, FLOAT, INT32, INT64};

/// Number of `graph` in ModelProto.
const GRAPH: u32 = 7;
/// Number of `initializer` in GraphProto.
const INITIALIZER: u32 = 5;
/// Number of `raw_data` in TensorProto.
const RAW_DATA: u32 = 9;

/// A graph's input or output.
pub(crate) fn value(name: &str, kind: i32, dims: &[Dim]) -> ValueInfoProto {
    let dim = dims.iter().map(|dim| Dimension {
        value: Some(match dim {
            Dim::Named(name) => DimensionValue::DimParam((*name).to_owned()),
            Dim::Size(size) => DimensionValue::DimValue(*size as i64),
        }),
    });
    let shape = TensorShapeProto { dim: dim.collect() };
    let tensor = TensorTypeProto { elem_type: kind, shape: Some(shape) };
    let value = Some(TypeValue::TensorType(tensor));
    let r#type = Some(TypeProto { value });
    ValueInfoProto { name: name.to_owned(), r#type }
}

/// A node's attribute.
pub(crate) fn attribute(attr: &Attr) -> AttributeProto {
    let named = |name: &str, kind: AttributeType| AttributeProto {
        name: name.to_owned(),
        r#type: kind.into(),
        ..AttributeProto::default()
    };
    let tensor = |name: &str, kind: i32, dims: &[i64], raw: Vec<u8>| AttributeProto {
        t: Some(TensorProto {
            dims: dims.to_vec(),
            data_type: kind,
            raw_data: Some(Bytes::from(raw)),
            ..TensorProto::default()
        }),
        ..named(name, AttributeType::Tensor)
    };
    match *attr {
        Attr::Float(name, value) => {
            AttributeProto { f: value, ..named(name, AttributeType::Float) }
        }
        Attr::Int(name, value) => AttributeProto { i: value, ..named(name, AttributeType::Int) },
        Attr::Str(name, value) => {
            AttributeProto { s: value.into(), ..named(name, AttributeType::String) }
        }
        Attr::Ints(name, values) => {
            AttributeProto { ints: values.to_vec(), ..named(name, AttributeType::Ints) }
        }
        Attr::Int64s(name, dims, values) => {
            tensor(name, INT64, dims, values.iter().flat_map(|value| value.to_le_bytes()).collect())
        }
        Attr::Int32(name, value) => tensor(name, INT32, &[], value.to_le_bytes().to_vec()),
        Attr::FloatTensor(name, dims, value) => {
            tensor(name, FLOAT, dims, value.to_le_bytes().to_vec())
        }
        Attr::True(name) => tensor(name, BOOL, &[1], vec![1]),
    }
}

/// An initializer of f32 whose bytes lie at `location`.
pub(crate) fn external(
    name: &str,
    dims: Vec<i64>,
    location: &str,
    offset: u64,
    length: u64,
) -> TensorProto {
    TensorProto {
        name: name.to_owned(),
        dims,
        data_type: FLOAT,
        data_location: DataLocation::External.into(),
        external_data: [
            ("location", location.to_owned()),
            ("offset", offset.to_string()),
            ("length", length.to_string()),
        ]
        .map(|(key, value)| StringStringEntryProto { key: key.to_owned(), value })
        .to_vec(),
        ..TensorProto::default()
    }
}

/// `model` with its initializers' references pointing to another location.
pub(crate) fn relocated(model: &ModelProto, location: &str) -> ModelProto {
    let mut model = model.clone();
    for tensor in model.graph.iter_mut().flat_map(|graph| &mut graph.initializer) {
        for entry in tensor.external_data.iter_mut().filter(|entry| entry.key == "location") {
            location.clone_into(&mut entry.value);
        }
    }
    model
}

/// A model whose weights are to be written inside of it: everything but their bytes, encoded.
///
/// Fields of a message may come in any order, so the initializers come last, where they can be streamed:
/// the weights are never whole in memory.
pub(crate) struct Inline {
    /// All that comes before the first initializer.
    pub(crate) head: Vec<u8>,
    /// Per initializer, in order, all that comes before its bytes.
    pub(crate) tensors: Vec<Vec<u8>>,
}

impl Inline {
    /// Encodes `model`; `lengths` are the initializers' sizes in bytes, in their order.
    pub(crate) fn new(model: &ModelProto, lengths: &[u64]) -> Self {
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
