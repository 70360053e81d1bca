//! Small models, written down briefly.

use bytes::Bytes;
use graphene_frontend::import::{Import, ImportError, ImportOptions, NoExternalData, import};
use graphene_frontend::onnx::{
    AttributeProto, AttributeType, Dimension, DimensionValue, GraphProto, ModelProto, NodeProto,
    OperatorSetIdProto, TensorProto, TensorShapeProto, TensorTypeProto, TypeProto, TypeValue,
    ValueInfoProto,
};
use prost::Message;

/// A node `outputs = op(inputs)`; names between spaces.
pub(crate) fn node(op: &str, inputs: &str, outputs: &str) -> NodeProto {
    let names = |text: &str| text.split_whitespace().map(|name| name.replace('_', "")).collect();
    NodeProto {
        op_type: op.into(),
        input: names(inputs),
        output: names(outputs),
        ..Default::default()
    }
}

pub(crate) fn with(mut node: NodeProto, attribute: AttributeProto) -> NodeProto {
    node.attribute.push(attribute);
    node
}

pub(crate) fn int(name: &str, i: i64) -> AttributeProto {
    AttributeProto { name: name.into(), r#type: AttributeType::Int as i32, i, ..Default::default() }
}

pub(crate) fn number(name: &str, f: f32) -> AttributeProto {
    AttributeProto {
        name: name.into(),
        r#type: AttributeType::Float as i32,
        f,
        ..Default::default()
    }
}

pub(crate) fn text(name: &str, s: &str) -> AttributeProto {
    let r#type = AttributeType::String as i32;
    AttributeProto { name: name.into(), r#type, s: s.to_owned().into(), ..Default::default() }
}

pub(crate) fn int_list(name: &str, ints: &[i64]) -> AttributeProto {
    let r#type = AttributeType::Ints as i32;
    AttributeProto { name: name.into(), r#type, ints: ints.to_vec(), ..Default::default() }
}

pub(crate) fn number_list(name: &str, floats: &[f32]) -> AttributeProto {
    let r#type = AttributeType::Floats as i32;
    AttributeProto { name: name.into(), r#type, floats: floats.to_vec(), ..Default::default() }
}

pub(crate) fn text_list(name: &str, texts: &[&str]) -> AttributeProto {
    let strings = texts.iter().map(|&text| text.to_owned().into()).collect();
    let r#type = AttributeType::Strings as i32;
    AttributeProto { name: name.into(), r#type, strings, ..Default::default() }
}

pub(crate) fn tensor(name: &str, tensor: TensorProto) -> AttributeProto {
    let r#type = AttributeType::Tensor as i32;
    AttributeProto { name: name.into(), r#type, t: Some(tensor), ..Default::default() }
}

pub(crate) fn subgraph(name: &str, graph: GraphProto) -> AttributeProto {
    let r#type = AttributeType::Graph as i32;
    AttributeProto { name: name.into(), r#type, g: Some(graph), ..Default::default() }
}

/// An input or output; a dim is a number or a name.
pub(crate) fn value(name: &str, elem_type: i32, dims: &str) -> ValueInfoProto {
    let dim = |text: &str| Dimension {
        value: Some(match text.parse() {
            Ok(size) => DimensionValue::DimValue(size),
            Err(_) => DimensionValue::DimParam(text.into()),
        }),
    };
    let shape = TensorShapeProto { dim: dims.split_whitespace().map(dim).collect() };
    let ty = TensorTypeProto { elem_type, shape: Some(shape) };
    let r#type = Some(TypeProto { value: Some(TypeValue::TensorType(ty)) });
    ValueInfoProto { name: name.into(), r#type }
}

pub(crate) fn ints(name: &str, dims: &[i64], data: &[i64]) -> TensorProto {
    TensorProto {
        name: name.into(),
        dims: dims.to_vec(),
        data_type: 7,
        int64_data: data.to_vec(),
        ..Default::default()
    }
}

pub(crate) fn graph(
    input: Vec<ValueInfoProto>,
    node: Vec<NodeProto>,
    outputs: &[&str],
) -> GraphProto {
    let output = outputs.iter().map(|name| value(name, 1, "")).collect();
    GraphProto { input, node, output, ..Default::default() }
}

pub(crate) fn model(graph: GraphProto) -> ModelProto {
    let opset = OperatorSetIdProto { domain: String::new(), version: 18 };
    ModelProto {
        ir_version: 8,
        opset_import: vec![opset],
        graph: Some(graph),
        ..Default::default()
    }
}

pub(crate) fn bytes(model: &ModelProto) -> Bytes {
    model.encode_to_vec().into()
}

pub(crate) fn imported(model: &ModelProto) -> Result<Import, ImportError> {
    import(bytes(model), &NoExternalData, &ImportOptions::default())
}
