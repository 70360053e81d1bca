//! Plans of zoo models.

use crate::{plan, sizes};
use bytes::Bytes;
use graphene_frontend::dim::Bindings;
use graphene_frontend::graph::{Graph, ValueId};
use graphene_frontend::import::{ExternalData, ExternalDataError, ImportOptions, import};
use graphene_fusion::groups::{Family, Groups};
use graphene_fusion::rewrite;
use graphene_ir::target::Target;
use graphene_models::{Options, build, names};
use std::collections::BTreeSet;

/// Weights that are all zero and take no memory: plans do not look at them.
struct Zeros(Bytes);

impl ExternalData for Zeros {
    fn read(&self, _: &str, _: u64, length: Option<u64>) -> Result<Bytes, ExternalDataError> {
        Ok(self.0.slice(..length.unwrap_or(0) as usize))
    }
}

fn models() -> impl Iterator<Item = (String, Graph)> {
    let zeros = Zeros(Bytes::from(vec![0; 1 << 30]));
    let options = [false, true]
        .map(|decomposed_layer_norm| Options { decomposed_layer_norm, ..Options::default() });
    let rows = names().flat_map(move |(name, _)| options.clone().map(|options| (name, options)));
    rows.map(move |(name, options)| {
        let model = build(name, &options).unwrap();
        let graph = import(model.encode(), &zeros, &ImportOptions::default()).unwrap().graph;
        (name.to_owned(), rewrite(&graph, &Target::cpu(2), &Bindings::new()).unwrap().graph)
    })
}

/// Every operation is in one group, and reads what earlier groups make, or its own group before it.
pub(crate) fn check_order(name: &str, graph: &Graph, groups: &Groups) {
    // What is made of constants alone is made before anything runs.
    let mut placed = vec![false; graph.len()];
    for (id, node) in graph.nodes().filter(|(_, node)| Family::of(node.op()).is_some()) {
        let mut inputs = node.inputs().iter().flatten().peekable();
        let made = |value: &ValueId| graph.constant(*value).is_some() || placed[value.node.index()];
        let known = node.outputs().iter().all(|ty| ty.known_shape().is_some());
        placed[id.index()] = known && inputs.peek().is_some() && inputs.all(made);
    }
    for group in groups.groups() {
        let mut own = BTreeSet::new();
        for &id in &group.nodes {
            let node = graph.node(id);
            for value in node.inputs().iter().flatten() {
                let source = Family::of(graph.node(value.node).op()).is_none();
                let made = source || placed[value.node.index()] || own.contains(&value.node);
                assert!(
                    made,
                    "{name}: {} is read before it is made",
                    graph.node(value.node).name()
                );
            }
            assert!(own.insert(id));
        }
        for id in own {
            assert!(!placed[id.index()], "{name}: {id} is in two groups");
            placed[id.index()] = true;
        }
    }
    for (id, node) in graph.nodes().filter(|(_, node)| Family::of(node.op()).is_some()) {
        assert!(placed[id.index()], "{name}: {} is in no group", node.name());
    }
}

#[test]
fn plans_hold_every_operation_once_and_can_run() {
    for (name, graph) in models() {
        for target in ["cpu:2", "sm_80", "sm_90a"] {
            for batch in [1, 32] {
                let hints = sizes(&[("batch", batch), ("sequence", 128)]);
                let groups = plan(&graph, target, &hints);
                check_order(&name, &graph, &groups);
                assert_eq!(groups.notes(), [], "{name} on {target}");
            }
        }
    }
}

#[test]
fn larger_batches_cost_more() {
    for (name, graph) in models() {
        for target in ["cpu:2", "sm_90a"] {
            let costs = [1, 2, 8, 64].map(|batch| {
                let hints = sizes(&[("batch", batch), ("sequence", 128)]);
                plan(&graph, target, &hints).seconds()
            });
            // Two blocks draw the weights faster than one: small batches may gain a little by growing.
            let grow = costs.windows(2).all(|pair| pair[1] > 0.99 * pair[0]);
            assert!(grow && costs[3] > costs[0], "{name} on {target}: {costs:?}");
        }
    }
}

#[test]
fn plans_are_the_same_every_time() {
    for (name, graph) in models().filter(|(name, _)| name.ends_with("-tiny")) {
        let plan = || plan(&graph, "sm_90a", &sizes(&[]));
        assert_eq!(plan(), plan(), "{name}");
    }
}
