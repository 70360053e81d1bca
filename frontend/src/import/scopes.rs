//! The modules of PyTorch that nodes come from, as part of their names.
//!
//! PyTorch's older exporter names a node by where it stands: `/encoder/layer.0/attention/self/query/MatMul`. The newer one
//! numbers them, `node_MatMul_54`, and lists the modules in the node's metadata. Here all get names of the older kind.

use super::order::node_name;
use crate::onnx::{GraphProto, ModelProto, NodeProto};

/// The entry of a node's metadata that lists the modules, outermost first, and last the node's name in PyTorch.
const NAME_SCOPES: &str = "pkg.torch.onnx.name_scopes";

/// Puts before the name of each node that lists its modules the path of these. The rest of the metadata goes: it can be
/// larger than the graph.
pub(super) fn name_by_scopes(model: &mut ModelProto) {
    model.graph.iter_mut().for_each(of_graph);
    model.functions.iter_mut().flat_map(|function| &mut function.node).for_each(of_node);
}

fn of_graph(graph: &mut GraphProto) {
    graph.node.iter_mut().for_each(of_node);
}

fn of_node(node: &mut NodeProto) {
    let metadata = std::mem::take(&mut node.metadata_props);
    let entry = metadata.iter().find(|entry| entry.key == NAME_SCOPES);
    if let Some(path) = entry.and_then(|entry| path(&entry.value)) {
        node.name = format!("{path}/{}", node_name(node));
    }
    for attribute in &mut node.attribute {
        attribute.g.iter_mut().chain(&mut attribute.graphs).for_each(of_graph);
    }
}

/// The path of the innermost module of a list, `/encoder/layer.0`, of `['', 'encoder', 'encoder.layer.0', 'linear']`: each
/// module repeats the name of the one around it. `None` for one that is in no module, and for what is no such list.
fn path(list: &str) -> Option<String> {
    let scopes = strings(list)?;
    let (_, modules) = scopes.split_last()?;
    let (mut path, mut outer) = (String::new(), "");
    for module in modules.iter().filter(|module| !module.is_empty()) {
        let inner = module.strip_prefix(outer).and_then(|rest| rest.strip_prefix('.'));
        path.push('/');
        path += inner.filter(|_| !outer.is_empty()).unwrap_or(module);
        outer = module;
    }
    Some(path).filter(|path| !path.is_empty())
}

/// The strings of a list as Python writes it.
fn strings(list: &str) -> Option<Vec<String>> {
    let mut rest = list.trim().strip_prefix('[')?.strip_suffix(']')?.trim_start();
    let mut strings = Vec::new();
    while let Some(quote) = rest.chars().next() {
        let mut string = String::new();
        let mut chars = rest.char_indices().skip(1);
        let end = loop {
            match chars.next()? {
                (at, c) if c == quote => break at,
                (_, '\\') => string.push(chars.next()?.1),
                (_, c) => string.push(c),
            }
        };
        if !matches!(quote, '\'' | '"') {
            return None;
        }
        strings.push(string);
        rest = rest[end + 1..].trim_start();
        rest = rest.strip_prefix(',').unwrap_or(rest).trim_start();
    }
    Some(strings)
}

#[cfg(test)]
mod tests {
    use super::path;

    #[test]
    fn modules_are_a_path() {
        let rows = [
            ("['', 'm', 'm.encoder', 'm.encoder.layer.0', 'linear']", Some("/m/encoder/layer.0")),
            ("['', 'linear', 'linear']", Some("/linear")),
            // A module that is called from elsewhere than the one around it.
            ("['', 'decoder', 'embed', 'matmul']", Some("/decoder/embed")),
            (r#"["", "it's", 'a\'b', 'x']"#, Some("/it's/a'b")),
            ("['', 'add_1']", None),
            ("['add_1']", None),
            ("[]", None),
            ("", None),
            ("['m', 'x'", None),
            ("['m, x]", None),
            ("[m, x]", None),
            ("[1, 2]", None),
        ];
        for (list, expected) in rows {
            assert_eq!(path(list).as_deref(), expected, "{list}");
        }
    }
}
