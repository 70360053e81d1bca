//! The picture of a graph, in Graphviz' language: `dot -Tsvg`.

use crate::graph::{Graph, Node, NodeId};
use crate::op::Op;
use crate::types::TensorType;
use std::fmt::{self, Write};

/// `graph` for Graphviz: operations with their types, constants as small boxes, bodies of control flow as clusters.
///
/// Every use of a constant of one element has a box of its own, so that a shared literal does not draw lines
/// across the page.
pub fn dot(graph: &Graph) -> String {
    let mut text = String::new();
    draw(graph, &mut text).expect("writing to a string does not fail");
    text
}

fn draw(graph: &Graph, out: &mut String) -> fmt::Result {
    writeln!(out, "digraph {{")?;
    writeln!(out, "  node [fontname=\"Helvetica\", fontsize=10, shape=box, style=rounded];")?;
    writeln!(out, "  edge [fontname=\"Helvetica\", fontsize=8];")?;
    body(graph, "n", 1, out)?;
    writeln!(out, "}}")
}

/// The nodes and edges of a graph whose nodes' names begin with `prefix`.
fn body(graph: &Graph, prefix: &str, depth: usize, out: &mut String) -> fmt::Result {
    let indent = "  ".repeat(depth);
    for (id, node) in graph.nodes() {
        let place = id.index();
        match node.op() {
            // Drawn at its uses.
            Op::Constant(tensor) if tensor.len() == 1 => continue,
            Op::Constant(_) => {
                let label = label(&[node.name(), &types(node)]);
                writeln!(out, "{indent}{prefix}{place} [label={label}, {SMALL}];")?;
            }
            Op::Input => {
                let label = label(&[node.name(), &types(node)]);
                writeln!(out, "{indent}{prefix}{place} [label={label}, shape=ellipse];")?;
            }
            op => {
                let label = label(&[op.name(), &types(node)]);
                let tooltip = quoted(node.name());
                writeln!(out, "{indent}{prefix}{place} [label={label}, tooltip={tooltip}];")?;
            }
        }
        uses(graph, id, node, prefix, &indent, out)?;
        for (i, inner) in node.op().bodies().into_iter().enumerate() {
            let prefix = format!("{prefix}{place}_{i}_");
            writeln!(out, "{indent}subgraph cluster_{prefix} {{")?;
            let title = quoted(&format!("{id} {} body {i}", node.op().name()));
            writeln!(out, "{indent}  label={title}; fontsize=9;")?;
            body(inner, &prefix, depth + 1, out)?;
            writeln!(out, "{indent}}}")?;
        }
    }
    for (i, (name, value)) in graph.outputs().iter().enumerate() {
        let label = label(&[name, &graph.ty(*value).to_string()]);
        writeln!(out, "{indent}{prefix}out{i} [label={label}, shape=ellipse];")?;
        edge_source(graph, value.node, &format!("{prefix}out{i}"), prefix, &indent, out)?;
        writeln!(out, " -> {prefix}out{i};")?;
    }
    Ok(())
}

const SMALL: &str = "shape=box, style=filled, fillcolor=\"#eeeeee\", fontsize=8, height=0.2";

fn uses(
    graph: &Graph,
    id: NodeId,
    node: &Node,
    prefix: &str,
    indent: &str,
    out: &mut String,
) -> fmt::Result {
    let target = id.index();
    for (i, value) in node.inputs().iter().enumerate() {
        let Some(value) = value else { continue };
        edge_source(graph, value.node, &format!("{prefix}{target}_in{i}"), prefix, indent, out)?;
        write!(out, " -> {prefix}{target}")?;
        // Which of several: the order of the inputs matters and Graphviz may swap them.
        if node.inputs().len() > 1 {
            write!(out, " [headlabel=\"{i}\"]")?;
        }
        writeln!(out, ";")?;
    }
    Ok(())
}

/// Begins the line of an edge; a constant of one element is drawn here, under the name `own`.
fn edge_source(
    graph: &Graph,
    source: NodeId,
    own: &str,
    prefix: &str,
    indent: &str,
    out: &mut String,
) -> fmt::Result {
    match graph.constant(source.value()) {
        Some(tensor) if tensor.len() == 1 => {
            let element = crate::text::elements(tensor).concat();
            let label = label(&[&element, &graph.ty(source.value()).to_string()]);
            writeln!(out, "{indent}{own}_c [label={label}, {SMALL}];")?;
            write!(out, "{indent}{own}_c")
        }
        _ => write!(out, "{indent}{prefix}{}", source.index()),
    }
}

fn types(node: &Node) -> String {
    let types: Vec<_> = node.outputs().iter().map(TensorType::to_string).collect();
    types.join("\n")
}

fn label(lines: &[&str]) -> String {
    quoted(&lines.join("\n"))
}

/// A string of Graphviz, in which a line break is `\n`, and characters may be written as in HTML.
fn quoted(text: &str) -> String {
    let text = text.replace('&', "&amp;");
    let text = text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
    format!("\"{text}\"")
}

#[cfg(test)]
mod tests {
    use super::dot;
    use crate::text::parse;

    #[test]
    fn a_small_graph() {
        let text = "symbols n\n\
            %0 = Input : f32[n] \"x \\\"1\\\" &lt;\"\n\
            %1 = Constant(0.5) : f32[] \"half\"\n\
            %2 = Constant(1.0, 2.0) : f32[2] \"two\"\n\
            %3 = Mul(%0, %1) : f32[n] \"scaled\"\n\
            %4 = Exp(%2) : f32[2] \"exp\"\n\
            return \"y\" = %3";
        let expected = r##"digraph {
  node [fontname="Helvetica", fontsize=10, shape=box, style=rounded];
  edge [fontname="Helvetica", fontsize=8];
  n0 [label="x \"1\" &amp;lt;\nf32[n]", shape=ellipse];
  n2 [label="two\nf32[2]", shape=box, style=filled, fillcolor="#eeeeee", fontsize=8, height=0.2];
  n3 [label="Mul\nf32[n]", tooltip="scaled"];
  n0 -> n3 [headlabel="0"];
  n3_in1_c [label="0.5\nf32[]", shape=box, style=filled, fillcolor="#eeeeee", fontsize=8, height=0.2];
  n3_in1_c -> n3 [headlabel="1"];
  n4 [label="Exp\nf32[2]", tooltip="exp"];
  n2 -> n4;
  nout0 [label="y\nf32[n]", shape=ellipse];
  n3 -> nout0;
}
"##;
        assert_eq!(dot(&parse(text, &[]).unwrap()), expected);
    }

    #[test]
    fn bodies_are_clusters() {
        let graph = parse(include_str!("text/tests/control.txt"), &[]).unwrap();
        let text = dot(&graph);
        for cluster in ["n3_0_", "n3_1_", "n4_0_", "n4_0_3_0_", "n4_0_3_1_", "n5_0_"] {
            assert_eq!(
                text.matches(&format!("subgraph cluster_{cluster} {{")).count(),
                1,
                "{cluster}"
            );
        }
        assert_eq!(text.matches('{').count(), text.matches('}').count());
    }
}
