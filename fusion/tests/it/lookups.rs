//! What takes elements by indices, on a GPU: rows of tables.

use crate::kernels::{TARGETS, check_graph, elements, tensor};
use crate::sizes;
use graphene_frontend::dim::Bindings;
use graphene_frontend::eval::evaluate_with;
use graphene_frontend::op::Op;
use graphene_frontend::tensor::Tensor;
use graphene_frontend::text::parse;
use graphene_fusion::{Granularity, plan};

/// A graph whose inputs are a table and indices, of these sizes: what is planned computes the same, bit for bit, from
/// indices from the front and from the end of axes of 3, and a template takes every step.
fn check(text: &str) {
    let graph = parse(text, &[]).unwrap_or_else(|error| panic!("{error}\n{text}"));
    let target = "sm_90a".parse().unwrap();
    let planned = plan(&graph, &target, Granularity::Fused, &Bindings::new()).unwrap();
    let mut ops = planned.graph.nodes().map(|(_, node)| node.op());
    let first = |op: &Op| !matches!(op, Op::GatherElements { .. } | Op::GatherNd { .. });
    assert!(ops.all(first), "{}", planned.program);
    let bindings = sizes(&[("b", 2)]);
    let inputs: Vec<Tensor> = graph
        .inputs()
        .iter()
        .map(|&id| {
            let ty = graph.ty(id.value());
            let shape = ty.shape.iter().map(|dim| dim.eval(&bindings).unwrap() as usize);
            let shape: Vec<usize> = shape.collect();
            let len = shape.iter().product();
            let data: Vec<f64> = match ty.dtype.is_integer() && ty.dtype.size() > 1 {
                true => (0..len).map(|i| (i * 5 % 6) as f64 - 2.0).collect(),
                false => elements(ty.dtype, len, 1),
            };
            tensor(ty.dtype, shape, &data)
        })
        .collect();
    let of = |graph| evaluate_with(graph, &inputs, &bindings).unwrap();
    let (found, expected) = (of(&planned.graph), of(&graph));
    assert_eq!(found[0].bytes(), expected[0].bytes(), "{text}\n{}", planned.program);
    let refused = check_graph(text, &graph, &TARGETS, &[bindings]);
    assert!(refused.is_empty(), "{refused:?}\n{}", planned.program);
}

#[test]
fn lookups_along_any_axis_are_rows() {
    for (table, to) in [("f32", "f32"), ("f16", "f16"), ("bool", "bool"), ("u8", "u8")] {
        for index in ["i64", "i32"] {
            check(&format!(
                r#"
                symbols b
                %0 = Input : {table}[b, 3, 4] "x"
                %1 = Input : {index}[2, 2] "i"
                %2 = Neg(%1) : {index}[2, 2] "computed"
                %3 = Gather(%0, %2) {{axis: 1}} : {to}[b, 2, 2, 4] "y"
                return "y" = %3
            "#
            ));
        }
    }
    check(
        r#"
        symbols b
        %0 = Input : f32[b, 3] "x"
        %1 = Input : i64[5] "i"
        %2 = Neg(%1) : i64[5] "computed"
        %3 = Gather(%0, %2) {axis: 1} : f32[b, 5] "y"
        return "y" = %3
    "#,
    );
}

#[test]
fn lookups_by_several_indices_are_rows() {
    check(
        r#"
        symbols b
        %0 = Input : f32[3, 3, 8] "x"
        %1 = Input : i64[b, 5, 2] "i"
        %2 = Neg(%1) : i64[b, 5, 2] "computed"
        %3 = GatherNd(%0, %2) {batch_dims: 0} : f32[b, 5, 8] "y"
        return "y" = %3
    "#,
    );
    check(
        r#"
        symbols b
        %0 = Input : bool[b, 4, 3] "x"
        %1 = Input : i64[b, 4, 1] "i"
        %2 = Neg(%1) : i64[b, 4, 1] "computed"
        %3 = GatherNd(%0, %2) {batch_dims: 2} : bool[b, 4] "y"
        return "y" = %3
    "#,
    );
    check(
        r#"
        symbols b
        %0 = Input : f16[b, 3, 3] "x"
        %1 = Input : i64[b, 7, 1] "i"
        %2 = Neg(%1) : i64[b, 7, 1] "computed"
        %3 = GatherNd(%0, %2) {batch_dims: 1} : f16[b, 7, 3] "y"
        return "y" = %3
    "#,
    );
}

#[test]
fn lookups_of_single_elements_are_rows() {
    for axis in [0, 1, 2] {
        check(&format!(
            r#"
            symbols b
            %0 = Input : f32[3, 3, 3] "x"
            %1 = Input : i64[2, 3, b] "i"
            %2 = Neg(%1) : i64[2, 3, b] "computed"
            %3 = GatherElements(%0, %2) {{axis: {axis}}} : f32[2, 3, b] "y"
            return "y" = %3
        "#
        ));
    }
}

#[test]
fn borders_of_own_elements_are_rows() {
    for mode in ["reflect", "edge", "wrap"] {
        check(&format!(
            r#"
            symbols b
            %0 = Input : f32[b, 2, 4, 5] "x"
            %1 = Pad(%0) {{mode: {mode}, before: [0, 0, 1, 2], after: [0, 0, 2, 1]}} : f32[b, 2, 7, 8] "y"
            return "y" = %1
        "#
        ));
    }
}

/// Rows of tables of any number, also of one that is known only when shapes are bound.
#[test]
fn tables_have_any_number_of_rows() {
    check(
        r#"
        symbols b
        %0 = Input : f32[b + 1, 8] "x"
        %1 = Input : i64[5] "i"
        %2 = Neg(%1) : i64[5] "computed"
        %3 = Gather(%0, %2) {axis: 0} : f32[5, 8] "y"
        return "y" = %3
    "#,
    );
}
