//! What must hold for any bytes.

use bytes::Bytes;
use graphene_frontend::dim::Bindings;
use graphene_frontend::eval::evaluate_with;
use graphene_frontend::graph::Graph;
use graphene_frontend::import::{
    ImportError, ImportOptions, NoExternalData, import as import_model,
};
use graphene_frontend::op::Op;
use graphene_frontend::tensor::{Tensor, checked_elements};
use graphene_frontend::text::{parse, print};
use graphene_frontend::verify::verify;

/// Graphs whose values have no more elements than this together are evaluated.
const SMALL: usize = 10_000;

/// Imports a model: it fails with a message, or gives a graph that verifies, prints and parses, takes sizes for its
/// symbols, and evaluates where it is small. A model that asks for sizes gets an equation if one will do, else twos.
pub fn import(model: &[u8]) {
    let mut options = ImportOptions::default();
    for _ in 0..3 {
        match import_model(Bytes::copy_from_slice(model), &NoExternalData, &options) {
            Ok(imported) => return check_graph(&imported.graph),
            Err(error) => {
                assert!(!error.to_string().is_empty(), "an error without a message");
                let ImportError::Resists { symbols, mut equal, .. } = error else { return };
                if symbols.is_empty() {
                    return;
                }
                if options.equal.is_empty() && !equal.is_empty() {
                    options.equal.push(equal.swap_remove(0));
                    continue;
                }
                options.dims = symbols.iter().map(|symbol| (symbol.name().to_owned(), 2)).collect();
            }
        }
    }
}

/// Parses a graph: it fails with a message, or gives a graph that is what [`import`] asks of one.
pub fn text(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    match parse(text, &[]) {
        Ok(graph) => check_graph(&graph),
        Err(error) => assert!(!error.to_string().is_empty(), "an error without a message"),
    }
}

fn check_graph(graph: &Graph) {
    check_form(graph);
    let symbols = graph.symbols();
    for size in [1, 2] {
        let mut bindings = Bindings::new();
        for symbol in &symbols {
            bindings.bind(symbol.clone(), size).expect("small sizes are allowed");
        }
        let substituted = match graph.substitute(&bindings) {
            Ok(substituted) => substituted,
            Err(error) => {
                assert!(!error.to_string().is_empty(), "an error without a message");
                continue;
            }
        };
        if !symbols.is_empty() {
            check_form(&substituted);
        }
        check_values(graph, &substituted, &bindings, size);
        if symbols.is_empty() {
            return;
        }
    }
}

/// The graph verifies, and its text reads back as the same graph.
fn check_form(graph: &Graph) {
    if let Err(error) = verify(graph) {
        panic!("the graph does not verify: {error}");
    }
    let printed = print(graph);
    match parse(&printed.text, &printed.weights) {
        Ok(parsed) => assert_eq!(print(&parsed), printed, "the text reads back as another graph"),
        Err(error) => panic!("the text does not parse: {error}\n{}", printed.text),
    }
}

/// The graph and the one with sizes in place of its symbols have the same values, if they have any.
fn check_values(graph: &Graph, substituted: &Graph, bindings: &Bindings, fill: i64) {
    if work(substituted).is_none_or(|work| work > SMALL) {
        return;
    }
    let Some(inputs) = inputs(substituted, fill) else { return };
    let values = evaluate_with(substituted, &inputs, &Bindings::new());
    if let Err(error) = &values {
        assert!(!error.to_string().is_empty(), "an error without a message");
    }
    if graph.symbols().is_empty() {
        return;
    }
    if let (Ok(values), Ok(symbolic)) = (values, evaluate_with(graph, &inputs, bindings)) {
        assert!(values == symbolic, "sizes change the values");
    }
}

/// Zeros for the inputs, or ones.
fn inputs(graph: &Graph, fill: i64) -> Option<Vec<Tensor>> {
    let input = |id: &graphene_frontend::graph::NodeId| {
        let ty = graph.ty(id.value());
        let shape = ty.known_shape()?;
        let zeros = Tensor::zeros(ty.dtype, shape.clone()).ok()?;
        if fill == 1 {
            return Some(zeros);
        }
        let mut bytes = zeros.bytes().to_vec();
        bytes.iter_mut().step_by(ty.dtype.size()).for_each(|byte| *byte = 1);
        Tensor::new(ty.dtype, shape, bytes.into()).ok()
    };
    graph.inputs().iter().map(input).collect()
}

/// Elements of all values together, bodies as often as they run; nothing where that is not known.
fn work(graph: &Graph) -> Option<usize> {
    let mut total = 0_usize;
    for (_, node) in graph.nodes() {
        for ty in node.outputs() {
            total = total.checked_add(checked_elements(&ty.known_shape()?)?)?;
        }
        let times = match node.op() {
            Op::Loop { .. } => {
                let count = node.inputs().first().copied().flatten()?;
                let count = graph.constant(count)?.as_slice::<i64>().ok()?.first().copied()?;
                usize::try_from(count).unwrap_or(0)
            }
            Op::Scan(_) => {
                let sizes = node.inputs().iter().flatten().map(|value| graph.ty(*value));
                sizes.flat_map(|ty| ty.known_shape()).flatten().max().unwrap_or(0)
            }
            _ => 1,
        };
        for body in node.op().bodies() {
            total = total.checked_add(work(body)?.checked_add(1)?.checked_mul(times)?)?;
        }
    }
    Some(total)
}
