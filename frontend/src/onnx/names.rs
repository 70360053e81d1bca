//! The names in a model as they may be shown: whoever prints one later need not think of it.

use super::{
    AttributeProto, DimensionValue, FunctionProto, GraphProto, ModelProto, NodeProto,
    OperatorSetIdProto, TensorProto, TypeProto, TypeValue, ValueInfoProto,
};
use crate::visible::make_visible;

/// Makes all names of a model [`visible`](crate::visible::visible): alike where they are given and where they are used, so
/// that the graph stays what it is. Texts that are data (attributes, and where weights lie) stay as they are.
pub fn make_names_visible(model: &mut ModelProto) {
    make_visible(&mut model.producer_name);
    make_visible(&mut model.producer_version);
    of_operator_sets(&mut model.opset_import);
    model.graph.iter_mut().for_each(of_graph);
    model.functions.iter_mut().for_each(of_function);
}

fn of_operator_sets(imports: &mut [OperatorSetIdProto]) {
    imports.iter_mut().for_each(|import| make_visible(&mut import.domain));
}

fn of_graph(graph: &mut GraphProto) {
    make_visible(&mut graph.name);
    graph.node.iter_mut().for_each(of_node);
    graph.initializer.iter_mut().for_each(of_tensor);
    let sparse = graph.sparse_initializer.iter_mut();
    sparse.filter_map(|tensor| tensor.values.as_mut()).for_each(of_tensor);
    let values = graph.input.iter_mut().chain(&mut graph.output).chain(&mut graph.value_info);
    values.for_each(of_value);
}

fn of_function(function: &mut FunctionProto) {
    let FunctionProto { name, input, output, attribute, domain, overload, .. } = function;
    [name, domain, overload].into_iter().for_each(make_visible);
    input.iter_mut().chain(output).chain(attribute).for_each(make_visible);
    function.attribute_proto.iter_mut().for_each(of_attribute);
    function.node.iter_mut().for_each(of_node);
    of_operator_sets(&mut function.opset_import);
}

fn of_node(node: &mut NodeProto) {
    let NodeProto { input, output, name, op_type, domain, overload, .. } = node;
    input.iter_mut().chain(output).for_each(make_visible);
    [name, op_type, domain, overload].into_iter().for_each(make_visible);
    node.attribute.iter_mut().for_each(of_attribute);
}

fn of_attribute(attribute: &mut AttributeProto) {
    make_visible(&mut attribute.name);
    make_visible(&mut attribute.ref_attr_name);
    attribute.t.iter_mut().chain(&mut attribute.tensors).for_each(of_tensor);
    attribute.g.iter_mut().chain(&mut attribute.graphs).for_each(of_graph);
    attribute.tp.iter_mut().chain(&mut attribute.type_protos).for_each(of_type);
}

fn of_tensor(tensor: &mut TensorProto) {
    make_visible(&mut tensor.name);
}

fn of_value(value: &mut ValueInfoProto) {
    make_visible(&mut value.name);
    value.r#type.iter_mut().for_each(of_type);
}

fn of_type(ty: &mut TypeProto) {
    let Some(TypeValue::TensorType(tensor)) = &mut ty.value else { return };
    for dim in tensor.shape.iter_mut().flat_map(|shape| &mut shape.dim) {
        if let Some(DimensionValue::DimParam(name)) = &mut dim.value {
            make_visible(name);
        }
    }
}
