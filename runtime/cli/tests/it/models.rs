//! Small models and tensors, written down briefly.

use crate::Folder;
use graphene_frontend::onnx::{
    Dimension, DimensionValue, GraphProto, ModelProto, NodeProto, OperatorSetIdProto, TensorProto,
    TensorShapeProto, TensorTypeProto, TypeProto, TypeValue, ValueInfoProto, encode,
};

/// ONNX's number for f32.
pub(crate) const FLOAT: i32 = 1;
/// ONNX's number for i64.
pub(crate) const INT64: i32 = 7;

/// A node `outputs = op(inputs)`, named after its first output; names between spaces.
pub(crate) fn node(op: &str, inputs: &str, outputs: &str) -> NodeProto {
    let names = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    NodeProto {
        name: names(outputs).concat(),
        op_type: op.into(),
        input: names(inputs),
        output: names(outputs),
        ..Default::default()
    }
}

/// An input or output; a dim is a number or a name, and `?` stands for an unknown rank.
pub(crate) fn value(name: &str, elem_type: i32, dims: &str) -> ValueInfoProto {
    let dim = |text: &str| Dimension {
        value: Some(match text.parse() {
            Ok(size) => DimensionValue::DimValue(size),
            Err(_) => DimensionValue::DimParam(text.into()),
        }),
    };
    let shape = || TensorShapeProto { dim: dims.split_whitespace().map(dim).collect() };
    let ty = TensorTypeProto { elem_type, shape: (dims != "?").then(shape) };
    let r#type = Some(TypeProto { value: Some(TypeValue::TensorType(ty)) });
    ValueInfoProto { name: name.into(), r#type }
}

/// A weight of i64.
pub(crate) fn ints(name: &str, dims: &[i64], data: &[i64]) -> TensorProto {
    TensorProto {
        name: name.into(),
        dims: dims.to_vec(),
        data_type: INT64,
        int64_data: data.to_vec(),
        ..Default::default()
    }
}

/// A graph whose outputs are named between spaces.
pub(crate) fn graph(
    input: Vec<ValueInfoProto>,
    initializer: Vec<TensorProto>,
    node: Vec<NodeProto>,
    outputs: &str,
) -> GraphProto {
    let output = outputs.split_whitespace().map(|name| value(name, FLOAT, "?")).collect();
    GraphProto { input, initializer, node, output, ..Default::default() }
}

/// Writes a model of this graph to the folder; its path.
pub(crate) fn write(folder: &Folder, graph: GraphProto) -> String {
    let opset = OperatorSetIdProto { domain: String::new(), version: 18 };
    let model = ModelProto {
        ir_version: 8,
        opset_import: vec![opset],
        graph: Some(graph),
        ..Default::default()
    };
    let path = folder.path("model.onnx");
    std::fs::write(&path, encode(&model)).expect("the folder takes files");
    path
}

/// The bytes of a `.npy` file: elements of `descr`, sizes as a tuple's inside.
pub(crate) fn npy(descr: &str, shape: &str, elements: &[u8]) -> Vec<u8> {
    let header = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': ({shape}), }}\n");
    let mut file = b"\x93NUMPY\x01\x00".to_vec();
    file.extend((header.len() as u16).to_le_bytes());
    file.extend(header.as_bytes());
    file.extend(elements);
    file
}

/// Writes a `.npy` file of f32 zeros to the folder; the flag's value that gives it to the input.
pub(crate) fn zeros(folder: &Folder, name: &str, shape: &str, count: usize) -> String {
    input(folder, name, &npy("<f4", shape, &vec![0; 4 * count]))
}

/// Writes a `.npy` file of i64 to the folder; the flag's value that gives it to the input.
pub(crate) fn numbers(folder: &Folder, name: &str, shape: &str, data: &[i64]) -> String {
    let bytes: Vec<u8> = data.iter().flat_map(|number| number.to_le_bytes()).collect();
    input(folder, name, &npy("<i8", shape, &bytes))
}

fn input(folder: &Folder, name: &str, file: &[u8]) -> String {
    let path = folder.path(&format!("{name}.npy"));
    std::fs::write(&path, file).expect("the folder takes files");
    format!("{name}=@{path}")
}
