//! ONNX's messages from the builder's values, and a model with its weights as one stream of bytes.

use bytes::Bytes;
use graphene_frontend::onnx::{
    AttributeProto, AttributeType, DataLocation, Dimension, DimensionValue, ModelProto,
    StringStringEntryProto, TensorProto, TensorShapeProto, TensorTypeProto, TypeProto, TypeValue,
    ValueInfoProto,
};

use crate::builder::{Attr, BOOL, Dim, FLOAT, INT32, INT64};

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
