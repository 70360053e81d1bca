//! Plans of zoo models.

use crate::{plan, sizes};
use bytes::Bytes;
use graphene_frontend::dim::Bindings;
use graphene_frontend::graph::Graph;
use graphene_frontend::import::{ExternalData, ExternalDataError, ImportOptions, import};
use graphene_fusion::{rewrite, verify};
use graphene_ir::target::Target;
use graphene_models::{Options, build, names};

/// Weights that are all zero and take no memory: plans do not look at them.
struct Zeros(Bytes);

impl ExternalData for Zeros {
    fn read(&self, _: &str, _: u64, length: Option<u64>) -> Result<Bytes, ExternalDataError> {
        Ok(self.0.slice(..length.unwrap_or(0) as usize))
    }
}

/// All models, as they are imported.
pub(crate) fn imported() -> impl Iterator<Item = (String, Graph)> {
    let zeros = Zeros(Bytes::from(vec![0; 1 << 30]));
    let options = [false, true]
        .map(|decomposed_layer_norm| Options { decomposed_layer_norm, ..Options::default() });
    let rows = names().flat_map(move |(name, _)| options.clone().map(|options| (name, options)));
    rows.map(move |(name, options)| {
        let model = build(name, &options).unwrap();
        let graph = import(model.encode(), &zeros, &ImportOptions::default()).unwrap().graph;
        (name.to_owned(), graph)
    })
}

fn models() -> impl Iterator<Item = (String, Graph)> {
    imported().map(|(name, graph)| {
        let rewritten = rewrite(&graph, &Target::cpu(2), &Bindings::new()).unwrap().graph;
        (name, rewritten)
    })
}

#[test]
fn plans_hold_every_operation_once_and_can_run() {
    for (name, graph) in models() {
        for target in ["cpu:2", "sm_80", "sm_90a"] {
            for batch in [1, 32] {
                let hints = sizes(&[("batch", batch), ("sequence", 128)]);
                let groups = plan(&graph, target, &hints);
                verify::groups(&graph, &groups).unwrap_or_else(|error| panic!("{name}: {error}"));
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
