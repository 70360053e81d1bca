//! Resizing to nearest elements on a GPU.

use crate::kernels::{TARGETS, check_graph, elements, tensor};
use crate::sizes;
use graphene_frontend::dim::{Bindings, Dim};
use graphene_frontend::dtype::DType;
use graphene_frontend::eval::evaluate_with;
use graphene_frontend::graph::Graph;
use graphene_frontend::op::{CoordinateTransform, NearestMode, Op, ResizeAttrs, ResizeMode};
use graphene_frontend::types::TensorType;
use graphene_fusion::{Granularity, plan};

/// A resize of `[b, 2, 6, 8]`'s last axes to these sizes, of twice the values.
fn resized(
    dtype: DType,
    to: [i64; 2],
    (mode, transform): (NearestMode, CoordinateTransform),
) -> Graph {
    let mut graph = Graph::new();
    let batch = Dim::symbol("b");
    let shape = |last: [i64; 2]| [batch.clone(), 2.into(), last[0].into(), last[1].into()].to_vec();
    let x = graph.add_input("x", TensorType { dtype, shape: shape([6, 8]) }).unwrap();
    let sum = graph.add("sum", Op::Binary(graphene_frontend::op::Binary::Add), &[Some(x), Some(x)]);
    let attrs = ResizeAttrs {
        sizes: shape(to),
        scales: vec![None; 4],
        mode: ResizeMode::Nearest(mode),
        transform,
        roi: vec![(0.0, 1.0); 4],
        extrapolation: 0.0,
        antialias: false,
    };
    let y = graph.add("y", Op::Resize(Box::new(attrs)), &[Some(sum.unwrap().value())]).unwrap();
    graph.add_output("y", y.value());
    graph
}

#[test]
fn whole_factors_are_views() {
    let ways = [
        (NearestMode::Floor, CoordinateTransform::Asymmetric),
        (NearestMode::RoundPreferFloor, CoordinateTransform::HalfPixel),
        (NearestMode::Ceil, CoordinateTransform::PytorchHalfPixel),
    ];
    let target = "sm_90a".parse().unwrap();
    for (dtype, way) in [(DType::F32, ways[0]), (DType::F16, ways[1]), (DType::I64, ways[2])] {
        for (to, whole) in [
            ([3, 8], true),
            ([2, 2], true),
            ([12, 24], way != ways[2]),
            ([6, 16], way != ways[2]),
            ([9, 8], false),
        ] {
            let (name, graph) = (format!("{dtype} {to:?} {way:?}"), resized(dtype, to, way));
            let planned = plan(&graph, &target, Granularity::Fused, &Bindings::new()).unwrap();
            let stays = planned.graph.nodes().any(|(_, node)| matches!(node.op(), Op::Resize(_)));
            assert!(!stays, "{name}: {}", planned.program);
            let views =
                !planned.graph.nodes().any(|(_, node)| matches!(node.op(), Op::Gather { .. }));
            assert_eq!(views, whole, "{name}: {}", planned.program);
            let bindings = sizes(&[("b", 2)]);
            let x = tensor(dtype, vec![2, 2, 6, 8], &elements(dtype, 192, 0));
            let [expected, found] = [&graph, &planned.graph]
                .map(|graph| evaluate_with(graph, std::slice::from_ref(&x), &bindings).unwrap());
            assert_eq!(expected[0].bytes(), found[0].bytes(), "{name}");
            if dtype != DType::I64 {
                assert!(check_graph(&name, &graph, &TARGETS, &[bindings]).is_empty());
            }
        }
    }
}
