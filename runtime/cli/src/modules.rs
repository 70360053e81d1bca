//! Names of the modules, as PyTorch has them, that steps compute.

/// The module that computes these nodes: the innermost one that holds all of them, or that of the last where none does.
/// `None` if the nodes' names are no paths, as exporters write that do not keep modules.
///
/// Exporters name a node by its scope and its operator: `/encoder/layer.0/attention/self/query/MatMul`.
pub(crate) fn module(nodes: &[String]) -> Option<String> {
    let scopes: Vec<Vec<&str>> = nodes.iter().filter_map(|node| scope(node)).collect();
    let last = scopes.last()?;
    let shared = |scope: &Vec<&str>| scope.iter().zip(last).take_while(|(a, b)| a == b).count();
    let shared = scopes.iter().map(shared).min().unwrap_or(0);
    let module = if shared == 0 { &last[..] } else { &last[..shared] };
    Some(module.join("."))
}

/// The modules that a node's name goes through, outermost first, if it is a path.
fn scope(node: &str) -> Option<Vec<&str>> {
    let mut parts: Vec<&str> = node.split('/').filter(|part| !part.is_empty()).collect();
    parts.pop();
    (!parts.is_empty()).then_some(parts)
}

/// The operations of a step's name, which ends with where the last of them is: `MatMul+Add` of `MatMul+Add (/net/Add)`.
pub(crate) fn operations(name: &str) -> &str {
    name.strip_suffix(')').and_then(|name| name.split_once(" (")).map_or(name, |parts| parts.0)
}

#[cfg(test)]
mod tests {
    use super::{module, operations};

    #[test]
    fn operations_stand_before_the_place() {
        assert_eq!(operations("MatMul+Add (/net/Add)"), "MatMul+Add");
        assert_eq!(operations("Add (a (b))"), "Add");
        assert_eq!(operations("Add"), "Add");
    }

    #[test]
    fn modules_hold_all_nodes_of_a_step() {
        let rows = [
            (
                &["/encoder/layer.0/attention/self/query/MatMul"][..],
                Some("encoder.layer.0.attention.self.query"),
            ),
            (
                &[
                    "/encoder/layer.0/attention/self/query/MatMul",
                    "/encoder/layer.0/attention/self/key/Add",
                ],
                Some("encoder.layer.0.attention.self"),
            ),
            // Nodes without a path say nothing; where no module holds all, the last one's stands for them.
            (&["Conv_12", "/features/conv0/Conv"], Some("features.conv0")),
            (&["/embeddings/Add", "/encoder/LayerNorm/Mul"], Some("encoder.LayerNorm")),
            (&["MatMul_3", "node_add"], None),
            (&[], None),
        ];
        for (nodes, expected) in rows {
            let nodes: Vec<_> = nodes.iter().map(|&node| node.to_owned()).collect();
            assert_eq!(module(&nodes).as_deref(), expected, "{nodes:?}");
        }
    }
}
