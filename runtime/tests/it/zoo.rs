//! Every zoo model: small ones agree on all executors, the arenas of all are near their lower bound.

use crate::check::{Random, executable};
use bytes::Bytes;
use graphene_frontend::dim::{Bindings, Symbol};
use graphene_frontend::dtype::DType;
use graphene_frontend::eval::evaluate;
use graphene_frontend::graph::Graph;
use graphene_frontend::import::{ExternalData, ExternalDataError, ImportOptions, import};
use graphene_frontend::tensor::Tensor;
use graphene_frontend::testdata::compare;
use graphene_fusion::{Granularity, plan};
use graphene_ir::target::Target;
use graphene_models::{Options, build, names};
use graphene_runtime::bind;

/// Weights that are all zero and take no memory: plans do not look at them.
struct Zeros(Bytes);

impl ExternalData for Zeros {
    fn read(&self, _: &str, _: u64, length: Option<u64>) -> Result<Bytes, ExternalDataError> {
        Ok(self.0.slice(..length.unwrap_or(0) as usize))
    }
}

fn sizes(graph: &Graph, batch: i64, sequence: i64) -> Bindings {
    let mut sizes = Bindings::new();
    for symbol in graph.symbols() {
        let size = if symbol == Symbol::new("batch") { batch } else { sequence };
        sizes.bind(symbol, size).unwrap();
    }
    sizes
}

/// Token ids and masks in range, numbers for the rest.
fn inputs(graph: &Graph, sizes: &Bindings, random: &mut Random) -> Vec<Tensor> {
    let types = graph.inputs().iter().map(|id| (graph.node(*id).name(), graph.ty(id.value())));
    types
        .map(|(name, ty)| {
            let shape = ty.bound_shape(sizes).unwrap();
            let n: usize = shape.iter().product();
            let below = match name {
                "input_ids" => 1000,
                "attention_mask" | "token_type_ids" => 2,
                _ => return random.tensor(ty.dtype, shape),
            };
            assert_eq!(ty.dtype, DType::I64, "{name}");
            Tensor::from_vec(shape, (0..n).map(|_| random.below(below) as i64).collect()).unwrap()
        })
        .collect()
}

#[test]
fn small_models_agree_on_all_executors() {
    let small =
        names().map(|(name, _)| name).filter(|name| name.ends_with("-tiny") || !name.contains('-'));
    for name in small.chain(["mlp-8x64", "mlp-gelu-4x128", "lstm-cell"]) {
        for decomposed_layer_norm in [false, true] {
            let options = Options { decomposed_layer_norm, ..Options::default() };
            let model = build(name, &options).unwrap();
            let graph = import(model.encode(), model.weights(), &ImportOptions::default());
            let graph = graph.unwrap_or_else(|error| panic!("{name}: {error}")).graph;
            for (batch, sequence) in [(1, 1), (2, 17)] {
                let sizes = sizes(&graph, batch, sequence);
                let inputs = inputs(&graph, &sizes, &mut Random(7));
                let expected = evaluate(&graph, &inputs).unwrap();
                for granularity in [Granularity::PerOp, Granularity::Fused] {
                    let actual = executable(&graph, &sizes, granularity).run(&inputs).unwrap();
                    for (actual, expected) in actual.iter().zip(&expected) {
                        let result = compare(actual, expected, 1e-3, 1e-4).unwrap();
                        assert!(
                            result.agrees(),
                            "{name} {batch}x{sequence} {granularity:?}: {result}"
                        );
                    }
                }
            }
        }
    }
}

#[test]
fn arenas_are_near_their_lower_bound() {
    let zeros = Zeros(Bytes::from(vec![0; 1 << 30]));
    for (name, _) in names() {
        let model = build(name, &Options::default()).unwrap();
        let imported = import(model.encode(), &zeros, &ImportOptions::default());
        let graph = imported.unwrap_or_else(|error| panic!("{name}: {error}")).graph;
        for granularity in [Granularity::PerOp, Granularity::Fused] {
            let planned = plan(&graph, &Target::cpu(2), granularity, &Bindings::new()).unwrap();
            let program = planned.program;
            for (batch, sequence) in [(1, 128), (7, 93), (32, 384)] {
                let bound = bind(&program, &sizes(&graph, batch, sequence)).unwrap();
                let (arena, bound) = (bound.arena_bytes(), bound.lower_bound_bytes());
                let near = arena as f64 <= 1.05 * bound as f64;
                assert!(near, "{name} {batch}x{sequence} {granularity:?}: {arena} over {bound}");
            }
        }
    }
}
