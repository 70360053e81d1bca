//! Changes that leave a model a model: most results still import, or fail at one node rather than at the first byte.

use super::operators::{Operator, find, operators};
use super::random::Random;
use bytes::Bytes;
use graphene_frontend::onnx::{
    FunctionProto, GraphProto, ModelProto, NodeProto, OperatorSetIdProto, ValueInfoProto,
};
use prost::Message;

mod attributes;
mod values;

/// Graphs do not grow beyond this many nodes.
const MAX_NODES: usize = 40;

/// The bytes of a model like the given one; nothing if those are no model, or once in a while, so that bytes are
/// changed too.
pub fn mutate(model: &[u8], seed: u64) -> Option<Vec<u8>> {
    let mut random = Random::new(seed);
    if random.once_in(20) {
        return None;
    }
    let mut model = ModelProto::decode(Bytes::copy_from_slice(model)).ok()?;
    if model.opset_import.is_empty() {
        let version = *random.pick(&[7, 11, 13, 17, 18, 21, 23]);
        model.opset_import.push(OperatorSetIdProto { domain: String::new(), version });
    }
    for _ in 0..1 + random.below(4) {
        change_model(&mut model, &mut random);
    }
    Some(model.encode_to_vec())
}

fn change_model(model: &mut ModelProto, random: &mut Random) {
    match random.below(40) {
        0 => {
            let version = 1 + random.below(30) as i64;
            let imports = &mut model.opset_import;
            let at = random.below(imports.len());
            imports[at].version = version;
        }
        1 => extract_function(model, random),
        2 => {
            if !model.functions.is_empty() {
                let at = random.below(model.functions.len());
                change_function(&mut model.functions[at], random);
            }
        }
        _ => change_graph(model.graph.get_or_insert_default(), random, 0),
    }
}

/// Makes a node the call of a function whose body is that node.
fn extract_function(model: &mut ModelProto, random: &mut Random) {
    let graph = model.graph.get_or_insert_default();
    if graph.node.is_empty() || model.functions.len() > 4 {
        return;
    }
    let at = random.below(graph.node.len());
    let inner = graph.node[at].clone();
    let name = format!("F{}", model.functions.len());
    let names = |text: &[String]| text.iter().filter(|name| !name.is_empty()).cloned().collect();
    let function = FunctionProto {
        name: name.clone(),
        input: names(&inner.input),
        output: names(&inner.output),
        domain: "local".into(),
        opset_import: model.opset_import.clone(),
        node: vec![inner],
        ..Default::default()
    };
    let call = NodeProto {
        name: graph.node[at].name.clone(),
        op_type: name,
        domain: "local".into(),
        input: function.input.clone(),
        output: function.output.clone(),
        ..Default::default()
    };
    graph.node[at] = call;
    model.functions.push(function);
}

fn change_function(function: &mut FunctionProto, random: &mut Random) {
    let node = std::mem::take(&mut function.node);
    let mut graph = GraphProto { node, ..Default::default() };
    graph.input.extend(function.input.iter().map(|name| named(name)));
    graph.output.extend(function.output.iter().map(|name| named(name)));
    change_graph(&mut graph, random, 0);
    function.node = graph.node;
}

fn named(name: &str) -> ValueInfoProto {
    ValueInfoProto { name: name.to_owned(), r#type: None }
}

/// Changes a graph, or the body of one of its nodes.
fn change_graph(graph: &mut GraphProto, random: &mut Random, depth: usize) {
    if depth < 8 && random.once_in(3) {
        let bodies = graph.node.iter_mut().flat_map(|node| &mut node.attribute);
        let mut bodies: Vec<_> = bodies.filter_map(|attribute| attribute.g.as_mut()).collect();
        if !bodies.is_empty() {
            let at = random.below(bodies.len());
            return change_graph(bodies.swap_remove(at), random, depth + 1);
        }
    }
    match random.below(32) {
        0..4 => add_node(graph, random),
        4..6 => change_operator(graph, random),
        6..10 => rewire(graph, random),
        10..16 => change_attribute(graph, random),
        16..20 => values::change_input(&mut graph.input, random),
        20..24 => values::change_initializer(&mut graph.initializer, random),
        24..26 => input_to_initializer(graph, random),
        26 => initializer_to_input(graph, random),
        27 => remove_node(graph, random),
        28 => change_output(graph, random),
        29 => add_input(graph, random),
        30 => wrap_in_if(graph, random),
        _ => swap_nodes(graph, random),
    }
}

/// The names of all values of a graph.
fn names(graph: &GraphProto) -> Vec<String> {
    let inputs = graph.input.iter().map(|input| &input.name);
    let weights = graph.initializer.iter().map(|tensor| &tensor.name);
    let made = graph.node.iter().flat_map(|node| &node.output);
    inputs.chain(weights).chain(made).filter(|name| !name.is_empty()).cloned().collect()
}

fn fresh(graph: &GraphProto, random: &mut Random) -> String {
    let names = names(graph);
    (0..)
        .map(|i| format!("v{}_{i}", random.below(100)))
        .find(|name| !names.contains(name))
        .expect("names do not run out")
}

fn any_node<'g>(graph: &'g mut GraphProto, random: &mut Random) -> Option<&'g mut NodeProto> {
    let at = random.below(graph.node.len());
    graph.node.get_mut(at)
}

/// Adds a node of any operator, with inputs that exist and an output that the graph gives.
fn add_node(graph: &mut GraphProto, random: &mut Random) {
    if graph.node.len() >= MAX_NODES {
        return;
    }
    let operator = random.pick(operators());
    let names = names(graph);
    let span = operator.max_inputs.saturating_sub(operator.min_inputs);
    let count = operator.min_inputs + random.below(span + 1);
    let mut node = NodeProto {
        op_type: operator.name.into(),
        domain: operator.domain.into(),
        ..Default::default()
    };
    for i in 0..count {
        let absent = names.is_empty() || (i >= operator.min_inputs && random.once_in(3));
        node.input.push(if absent { String::new() } else { random.pick(&names).clone() });
    }
    let outputs = 1 + random.below(operator.max_outputs);
    for i in 0..outputs {
        node.output.push(format!("{}_{i}", fresh(graph, random)));
    }
    fill_attributes(&mut node, operator, random);
    let output = node.output[random.below(outputs)].clone();
    graph.output.push(named(&output));
    graph.node.push(node);
}

fn fill_attributes(node: &mut NodeProto, operator: &Operator, random: &mut Random) {
    for (name, kind) in &operator.attributes {
        if random.once_in(2) {
            node.attribute.push(attributes::make(name, *kind, random));
        }
    }
}

/// Lets a node be another operator, with or without its attributes.
fn change_operator(graph: &mut GraphProto, random: &mut Random) {
    let Some(node) = any_node(graph, random) else { return };
    let operator = random.pick(operators());
    node.op_type = operator.name.into();
    node.domain = operator.domain.into();
    if random.once_in(2) {
        node.attribute.clear();
        fill_attributes(node, operator, random);
    }
}

/// Changes, adds or removes an input or output of a node.
fn rewire(graph: &mut GraphProto, random: &mut Random) {
    let mut names = names(graph);
    names.push(String::new());
    let fresh = fresh(graph, random);
    let Some(node) = any_node(graph, random) else { return };
    let name = random.pick(&names).clone();
    match random.below(8) {
        0 => node.input.push(name),
        1 => drop(node.input.pop()),
        2 => node.output.push(fresh),
        3 => drop(node.output.pop()),
        _ => {
            let at = random.below(node.input.len());
            if let Some(input) = node.input.get_mut(at) {
                *input = name;
            }
        }
    }
}

/// Changes an attribute of a node, adds one that its operator knows, or removes one.
fn change_attribute(graph: &mut GraphProto, random: &mut Random) {
    let at = random.below(graph.node.len());
    let Some(node) = graph.node.get_mut(at) else { return };
    let at = random.below(node.attribute.len());
    match random.below(8) {
        0 if !node.attribute.is_empty() => drop(node.attribute.remove(at)),
        1..4 => {
            let domain = if node.domain == "ai.onnx" { "" } else { &node.domain };
            let Some(operator) = find(domain, &node.op_type) else { return };
            if operator.attributes.is_empty() {
                return;
            }
            let (name, kind) = random.pick(&operator.attributes);
            node.attribute.retain(|attribute| attribute.name != *name);
            node.attribute.push(attributes::make(name, *kind, random));
        }
        _ => {
            if let Some(attribute) = node.attribute.get_mut(at) {
                attributes::change(attribute, random);
            }
        }
    }
}

fn input_to_initializer(graph: &mut GraphProto, random: &mut Random) {
    if graph.input.is_empty() {
        return;
    }
    let input = graph.input.remove(random.below(graph.input.len()));
    graph.initializer.push(values::tensor_for(&input, random));
}

fn initializer_to_input(graph: &mut GraphProto, random: &mut Random) {
    if graph.initializer.is_empty() {
        return;
    }
    let tensor = graph.initializer.remove(random.below(graph.initializer.len()));
    graph.input.push(values::input_for(&tensor, random));
}

fn remove_node(graph: &mut GraphProto, random: &mut Random) {
    if !graph.node.is_empty() {
        graph.node.remove(random.below(graph.node.len()));
    }
}

fn swap_nodes(graph: &mut GraphProto, random: &mut Random) {
    if !graph.node.is_empty() {
        let (a, b) = (random.below(graph.node.len()), random.below(graph.node.len()));
        graph.node.swap(a, b);
    }
}

fn change_output(graph: &mut GraphProto, random: &mut Random) {
    let names = names(graph);
    if names.is_empty() {
        return;
    }
    let output = named(random.pick::<String>(&names));
    match random.below(graph.output.len() + 1) {
        at if at < graph.output.len() && random.once_in(2) => graph.output[at] = output,
        at if at < graph.output.len() => drop(graph.output.remove(at)),
        _ => graph.output.push(output),
    }
}

fn add_input(graph: &mut GraphProto, random: &mut Random) {
    let name = fresh(graph, random);
    if random.once_in(2) {
        graph.initializer.push(values::any_tensor(&name, random));
    } else {
        graph.input.push(values::any_input(&name, random));
    }
}

/// Moves a node into both branches of an `If`.
fn wrap_in_if(graph: &mut GraphProto, random: &mut Random) {
    let condition = names(graph);
    let at = random.below(graph.node.len());
    if condition.is_empty() || graph.node.is_empty() || graph.encoded_len() > 16_384 {
        return;
    }
    let mut inner = graph.node[at].clone();
    let outer = inner.output.clone();
    for name in inner.output.iter_mut().filter(|name| !name.is_empty()) {
        name.push_str("_i");
    }
    let output = inner.output.iter().map(|name| named(name)).collect();
    let body = GraphProto { node: vec![inner], output, ..Default::default() };
    graph.node[at] = NodeProto {
        op_type: "If".into(),
        input: vec![random.pick(&condition).clone()],
        output: outer,
        attribute: vec![
            attributes::body("then_branch", body.clone()),
            attributes::body("else_branch", body),
        ],
        ..Default::default()
    };
}
