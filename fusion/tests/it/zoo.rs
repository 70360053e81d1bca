//! Plans of zoo models.

use crate::{plan, sizes};
use bytes::Bytes;
use graphene_frontend::dim::Bindings;
use graphene_frontend::graph::Graph;
use graphene_frontend::import::{ExternalData, ExternalDataError, ImportOptions, import};
use graphene_fusion::{rewrite, verify};
use graphene_ir::target::Target;
use graphene_models::{Options, build, names};
use std::fs;
use std::path::Path;

/// Weights that are all zero and take no memory: plans do not look at them.
struct Zeros(Bytes);

impl ExternalData for Zeros {
    fn read(&self, _: &str, _: u64, length: Option<u64>) -> Result<Bytes, ExternalDataError> {
        Ok(self.0.slice(..length.unwrap_or(0) as usize))
    }
}

/// For files whose weights have so many bytes each, at most.
fn zeros(most: usize) -> Zeros {
    Zeros(Bytes::from(vec![0; most]))
}

fn imported_with(name: &str, options: &Options) -> Graph {
    let model = build(name, options).unwrap();
    import(model.encode(), &zeros(1 << 30), &ImportOptions::default()).unwrap().graph
}

/// All models, as they are imported.
pub(crate) fn imported() -> impl Iterator<Item = (String, Graph)> {
    let options = [false, true]
        .map(|decomposed_layer_norm| Options { decomposed_layer_norm, ..Options::default() });
    let rows = names().flat_map(move |(name, _)| options.clone().map(|options| (name, options)));
    rows.map(|(name, options)| (name.to_owned(), imported_with(name, &options)))
}

/// One of them.
pub(crate) fn named(name: &str) -> Graph {
    imported_with(name, &Options::default())
}

/// A model that `tests/data/exports.py` exported without its weights.
pub(crate) fn exported(name: &str) -> Graph {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/data/{name}.onnx"));
    let file = fs::read(file).unwrap().into();
    import(file, &zeros(1 << 27), &ImportOptions::default()).unwrap().graph
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
