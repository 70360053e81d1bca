//! Real exports with their recorded outputs, on the CPU executor.

use crate::check::executable;
use graphene_frontend::dim::Bindings;
use graphene_frontend::import::{ImportOptions, Reading, import, read_model};
use graphene_frontend::testdata::{compare, read_data_set};
use graphene_fusion::Granularity;
use std::path::Path;

#[test]
fn exports_give_their_recorded_outputs() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../frontend/tests/data/fixtures");
    let mut count = 0;
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let (model, weights) = read_model(path.join("model.onnx"), Reading::Mapped).unwrap();
        let imported = import(model, &weights, &ImportOptions::default());
        let graph = imported.unwrap_or_else(|error| panic!("{}: {error}", path.display())).graph;
        let data = read_data_set(&path.join("test_data_set_0")).unwrap();
        let inputs: Vec<_> = data.inputs.iter().map(|(_, tensor)| tensor.clone()).collect();
        let mut sizes = Bindings::new();
        for (&id, tensor) in graph.inputs().iter().zip(&inputs) {
            for (dim, &size) in graph.ty(id.value()).shape.iter().zip(tensor.shape()) {
                if let Some(symbol) = dim.as_symbol() {
                    sizes.bind(symbol.clone(), size as i64).unwrap();
                }
            }
        }
        for granularity in [Granularity::PerOp, Granularity::Fused] {
            let outputs = executable(&graph, &sizes, granularity).run(&inputs).unwrap();
            assert_eq!(outputs.len(), data.outputs.len());
            for (actual, (name, expected)) in outputs.iter().zip(&data.outputs) {
                let result = compare(actual, expected, 1e-3, 1e-4).unwrap();
                assert!(result.agrees(), "{} {granularity:?} {name}: {result}", path.display());
            }
        }
        count += 1;
    }
    assert_eq!(count, 12);
}
