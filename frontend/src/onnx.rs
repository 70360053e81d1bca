//! ONNX's protobuf messages: the fields that are read or written here, by their names and numbers in `onnx.proto`.
//!
//! Decoding from [`bytes::Bytes`] copies no tensor data, and messages nested deeper than a hundred levels are
//! refused by the decoder. Fields left out are skipped when read.

mod names;
mod wire;

pub use names::make_names_visible;
pub use wire::{DecodeError, Inline, decode, encode};

use bytes::Bytes;
use prost::{Enumeration, Message, Oneof};

/// A model: a graph with the operator sets that its operators belong to.
#[derive(Clone, PartialEq, Message)]
pub struct ModelProto {
    /// Version of the format.
    #[prost(int64, tag = "1")]
    pub ir_version: i64,
    /// Operator sets, one a domain.
    #[prost(message, repeated, tag = "8")]
    pub opset_import: Vec<OperatorSetIdProto>,
    /// The tool that wrote the file.
    #[prost(string, tag = "2")]
    pub producer_name: String,
    /// Its version.
    #[prost(string, tag = "3")]
    pub producer_version: String,
    /// The graph.
    #[prost(message, optional, tag = "7")]
    pub graph: Option<GraphProto>,
    /// Free text by key.
    #[prost(message, repeated, tag = "14")]
    pub metadata_props: Vec<StringStringEntryProto>,
    /// Functions that nodes may call.
    #[prost(message, repeated, tag = "25")]
    pub functions: Vec<FunctionProto>,
}

/// Nodes in topological order, with named inputs, outputs and weights.
#[derive(Clone, PartialEq, Message)]
pub struct GraphProto {
    /// The nodes.
    #[prost(message, repeated, tag = "1")]
    pub node: Vec<NodeProto>,
    /// Name of the graph.
    #[prost(string, tag = "2")]
    pub name: String,
    /// Weights and literals.
    #[prost(message, repeated, tag = "5")]
    pub initializer: Vec<TensorProto>,
    /// Weights in coordinate form.
    #[prost(message, repeated, tag = "15")]
    pub sparse_initializer: Vec<SparseTensorProto>,
    /// Inputs; from format version 4 on without the initializers.
    #[prost(message, repeated, tag = "11")]
    pub input: Vec<ValueInfoProto>,
    /// Outputs.
    #[prost(message, repeated, tag = "12")]
    pub output: Vec<ValueInfoProto>,
    /// Types of values between.
    #[prost(message, repeated, tag = "13")]
    pub value_info: Vec<ValueInfoProto>,
}

/// A call of an operator or function.
#[derive(Clone, PartialEq, Message)]
pub struct NodeProto {
    /// Names of the inputs; an empty one is an optional input left out.
    #[prost(string, repeated, tag = "1")]
    pub input: Vec<String>,
    /// Names of the outputs; an empty one is an optional output left out.
    #[prost(string, repeated, tag = "2")]
    pub output: Vec<String>,
    /// Name of the node, possibly empty.
    #[prost(string, tag = "3")]
    pub name: String,
    /// Name of the operator.
    #[prost(string, tag = "4")]
    pub op_type: String,
    /// The operator's domain; empty for ONNX's own.
    #[prost(string, tag = "7")]
    pub domain: String,
    /// Tells functions of one name apart.
    #[prost(string, tag = "8")]
    pub overload: String,
    /// Attributes.
    #[prost(message, repeated, tag = "5")]
    pub attribute: Vec<AttributeProto>,
    /// Free text by key.
    #[prost(message, repeated, tag = "9")]
    pub metadata_props: Vec<StringStringEntryProto>,
}

/// A named attribute; `type` says which field holds it.
#[derive(Clone, PartialEq, Message)]
pub struct AttributeProto {
    /// Name of the attribute.
    #[prost(string, tag = "1")]
    pub name: String,
    /// In a function: the attribute of the call whose value it takes.
    #[prost(string, tag = "21")]
    pub ref_attr_name: String,
    /// Which field is in use.
    #[prost(enumeration = "AttributeType", tag = "20")]
    pub r#type: i32,
    /// A number.
    #[prost(float, tag = "2")]
    pub f: f32,
    /// An integer.
    #[prost(int64, tag = "3")]
    pub i: i64,
    /// Text, by convention UTF-8.
    #[prost(bytes = "bytes", tag = "4")]
    pub s: Bytes,
    /// A tensor.
    #[prost(message, optional, tag = "5")]
    pub t: Option<TensorProto>,
    /// A graph.
    #[prost(message, optional, tag = "6")]
    pub g: Option<GraphProto>,
    /// A tensor in coordinate form.
    #[prost(message, optional, tag = "22")]
    pub sparse_tensor: Option<SparseTensorProto>,
    /// A type.
    #[prost(message, optional, tag = "14")]
    pub tp: Option<TypeProto>,
    /// Numbers.
    #[prost(float, repeated, packed = "false", tag = "7")]
    pub floats: Vec<f32>,
    /// Integers.
    #[prost(int64, repeated, packed = "false", tag = "8")]
    pub ints: Vec<i64>,
    /// Texts.
    #[prost(bytes = "bytes", repeated, tag = "9")]
    pub strings: Vec<Bytes>,
    /// Tensors.
    #[prost(message, repeated, tag = "10")]
    pub tensors: Vec<TensorProto>,
    /// Graphs.
    #[prost(message, repeated, tag = "11")]
    pub graphs: Vec<GraphProto>,
    /// Types.
    #[prost(message, repeated, tag = "15")]
    pub type_protos: Vec<TypeProto>,
}

/// Which field of an [`AttributeProto`] is in use.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Enumeration)]
#[repr(i32)]
#[allow(missing_docs)] // ONNX's names.
pub enum AttributeType {
    Undefined = 0,
    Float = 1,
    Int = 2,
    String = 3,
    Tensor = 4,
    Graph = 5,
    Floats = 6,
    Ints = 7,
    Strings = 8,
    Tensors = 9,
    Graphs = 10,
    SparseTensor = 11,
    SparseTensors = 12,
    TypeProto = 13,
    TypeProtos = 14,
}

/// A tensor: its elements are in `raw_data`, in one of the typed fields, or in another file.
#[derive(Clone, PartialEq, Message)]
pub struct TensorProto {
    /// Elements along each dimension.
    #[prost(int64, repeated, packed = "false", tag = "1")]
    pub dims: Vec<i64>,
    /// Element type, a number of `TensorProto.DataType`.
    #[prost(int32, tag = "2")]
    pub data_type: i32,
    /// Elements of `float`.
    #[prost(float, repeated, tag = "4")]
    pub float_data: Vec<f32>,
    /// Elements of `int32` and narrower types.
    #[prost(int32, repeated, tag = "5")]
    pub int32_data: Vec<i32>,
    /// Elements of `string`.
    #[prost(bytes = "bytes", repeated, tag = "6")]
    pub string_data: Vec<Bytes>,
    /// Elements of `int64`.
    #[prost(int64, repeated, tag = "7")]
    pub int64_data: Vec<i64>,
    /// Name of the value.
    #[prost(string, tag = "8")]
    pub name: String,
    /// Elements as bytes, little-endian, types narrower than a byte packed.
    #[prost(bytes = "bytes", optional, tag = "9")]
    pub raw_data: Option<Bytes>,
    /// Elements of `double`.
    #[prost(double, repeated, tag = "10")]
    pub double_data: Vec<f64>,
    /// Elements of `uint32` and `uint64`.
    #[prost(uint64, repeated, tag = "11")]
    pub uint64_data: Vec<u64>,
    /// Where the elements are, for [`DataLocation::External`]: `location`, `offset`, `length`.
    #[prost(message, repeated, tag = "13")]
    pub external_data: Vec<StringStringEntryProto>,
    /// Whether the elements are in this message or elsewhere.
    #[prost(enumeration = "DataLocation", tag = "14")]
    pub data_location: i32,
}

/// Where the elements of a [`TensorProto`] are.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Enumeration)]
#[repr(i32)]
pub enum DataLocation {
    /// In the message.
    Default = 0,
    /// In another file.
    External = 1,
}

/// A tensor in coordinate form.
#[derive(Clone, PartialEq, Message)]
pub struct SparseTensorProto {
    /// The values; their name is the tensor's.
    #[prost(message, optional, tag = "1")]
    pub values: Option<TensorProto>,
    /// Their places.
    #[prost(message, optional, tag = "2")]
    pub indices: Option<TensorProto>,
    /// Elements along each dimension.
    #[prost(int64, repeated, packed = "false", tag = "3")]
    pub dims: Vec<i64>,
}

/// The name and type of a value.
#[derive(Clone, PartialEq, Message)]
pub struct ValueInfoProto {
    /// Name of the value.
    #[prost(string, tag = "1")]
    pub name: String,
    /// Its type.
    #[prost(message, optional, tag = "2")]
    pub r#type: Option<TypeProto>,
}

/// The type of a value.
#[derive(Clone, PartialEq, Message)]
pub struct TypeProto {
    /// What kind of value.
    #[prost(oneof = "TypeValue", tags = "1, 4, 5, 7, 8, 9")]
    pub value: Option<TypeValue>,
}

/// What kind of value a [`TypeProto`] describes.
#[derive(Clone, PartialEq, Oneof)]
pub enum TypeValue {
    /// A tensor.
    #[prost(message, tag = "1")]
    TensorType(TensorTypeProto),
    /// A sequence; its element type is not read.
    #[prost(message, tag = "4")]
    SequenceType(OtherTypeProto),
    /// A map; its types are not read.
    #[prost(message, tag = "5")]
    MapType(OtherTypeProto),
    /// A value of a domain's own kind.
    #[prost(message, tag = "7")]
    OpaqueType(OtherTypeProto),
    /// A tensor in coordinate form.
    #[prost(message, tag = "8")]
    SparseTensorType(OtherTypeProto),
    /// An optional value; its element type is not read.
    #[prost(message, tag = "9")]
    OptionalType(OtherTypeProto),
}

/// A type that is recognised, so as to be refused by name, and not read further.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Message)]
pub struct OtherTypeProto {}

/// Element type and shape of a tensor.
#[derive(Clone, PartialEq, Message)]
pub struct TensorTypeProto {
    /// Element type, a number of `TensorProto.DataType`.
    #[prost(int32, tag = "1")]
    pub elem_type: i32,
    /// The shape; left out, even the rank is not known.
    #[prost(message, optional, tag = "2")]
    pub shape: Option<TensorShapeProto>,
}

/// A shape.
#[derive(Clone, PartialEq, Message)]
pub struct TensorShapeProto {
    /// The dims.
    #[prost(message, repeated, tag = "1")]
    pub dim: Vec<Dimension>,
}

/// A dim of a [`TensorShapeProto`]; without a value it may be anything.
#[derive(Clone, PartialEq, Eq, Hash, Message)]
pub struct Dimension {
    /// Its size or name.
    #[prost(oneof = "DimensionValue", tags = "1, 2")]
    pub value: Option<DimensionValue>,
}

/// What is known of a [`Dimension`].
#[derive(Clone, PartialEq, Eq, Hash, Oneof)]
pub enum DimensionValue {
    /// Its size.
    #[prost(int64, tag = "1")]
    DimValue(i64),
    /// Its name.
    #[prost(string, tag = "2")]
    DimParam(String),
}

/// A function: nodes that a call of it stands for.
#[derive(Clone, PartialEq, Message)]
pub struct FunctionProto {
    /// Its name, the operator of nodes that call it.
    #[prost(string, tag = "1")]
    pub name: String,
    /// Names of the inputs.
    #[prost(string, repeated, tag = "4")]
    pub input: Vec<String>,
    /// Names of the outputs.
    #[prost(string, repeated, tag = "5")]
    pub output: Vec<String>,
    /// Attributes without default values.
    #[prost(string, repeated, tag = "6")]
    pub attribute: Vec<String>,
    /// Attributes with default values.
    #[prost(message, repeated, tag = "11")]
    pub attribute_proto: Vec<AttributeProto>,
    /// The nodes.
    #[prost(message, repeated, tag = "7")]
    pub node: Vec<NodeProto>,
    /// Operator sets of the nodes.
    #[prost(message, repeated, tag = "9")]
    pub opset_import: Vec<OperatorSetIdProto>,
    /// Its domain.
    #[prost(string, tag = "10")]
    pub domain: String,
    /// Tells functions of one name apart.
    #[prost(string, tag = "13")]
    pub overload: String,
}

/// A version of a domain's operator set.
#[derive(Clone, PartialEq, Eq, Hash, Message)]
pub struct OperatorSetIdProto {
    /// The domain; empty for ONNX's own.
    #[prost(string, tag = "1")]
    pub domain: String,
    /// The version.
    #[prost(int64, tag = "2")]
    pub version: i64,
}

/// A text by key.
#[derive(Clone, PartialEq, Eq, Hash, Message)]
pub struct StringStringEntryProto {
    /// The key.
    #[prost(string, tag = "1")]
    pub key: String,
    /// The text.
    #[prost(string, tag = "2")]
    pub value: String,
}

#[cfg(test)]
mod tests {
    use super::{DimensionValue, ModelProto, NodeProto, TensorProto};
    use bytes::Bytes;
    use prost::Message;

    #[test]
    fn tensor_data_is_not_copied() {
        let tensor =
            TensorProto { raw_data: Some(Bytes::from(vec![7; 4096])), ..Default::default() };
        let graph = super::GraphProto { initializer: vec![tensor], ..Default::default() };
        let model = ModelProto { graph: Some(graph), ir_version: 8, ..Default::default() };
        let bytes = Bytes::from(model.encode_to_vec());
        let decoded = ModelProto::decode(bytes.clone()).unwrap();
        assert_eq!(decoded, model);
        let graph = decoded.graph.unwrap();
        let data = graph.initializer[0].raw_data.as_ref().unwrap();
        assert!(bytes.as_ptr_range().contains(&data.as_ptr()));
    }

    #[test]
    fn nested_messages_round_trip() {
        let node = NodeProto { op_type: "If".into(), ..Default::default() };
        let dim = super::Dimension { value: Some(DimensionValue::DimParam("batch".into())) };
        let shape = super::TensorShapeProto { dim: vec![dim] };
        let ty = super::TensorTypeProto { elem_type: 1, shape: Some(shape) };
        let input = super::ValueInfoProto {
            name: "x".into(),
            r#type: Some(super::TypeProto { value: Some(super::TypeValue::TensorType(ty)) }),
        };
        let graph =
            super::GraphProto { node: vec![node], input: vec![input], ..Default::default() };
        let bytes = graph.encode_to_vec();
        assert_eq!(super::GraphProto::decode(Bytes::from(bytes)), Ok(graph));
    }
}
