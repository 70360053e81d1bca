//! What CUTLASS's C++ CuTe prints: `tests/cute.txt` holds expressions and the results that CuTe 4.7 prints for them,
//! compiled for the host, of integers known at compile time (whose `_` is left out).

use graphene_ir::layout::{Layout, crd2idx};
use graphene_opt::expr::{Value, evaluate};

const CUTE: &str = include_str!("../cute.txt");

/// The rows whose sides this sign parts.
fn rows(sign: &str) -> Vec<(&'static str, &'static str)> {
    let rows = CUTE.lines().filter(|line| !line.starts_with('#'));
    rows.filter_map(|line| line.split_once(sign)).collect()
}

#[test]
fn results_are_as_cute_prints_them() {
    let rows = rows(" => ");
    assert!(rows.len() > 700, "{}", rows.len());
    let wrong: Vec<String> = rows
        .iter()
        .filter_map(|&(expression, printed)| {
            let found = evaluate(expression).map_or_else(
                |error| format!("{error}"),
                |value| {
                    assert_eq!(evaluate(&value.to_string()), Ok(value.clone()), "{expression}");
                    value.to_string()
                },
            );
            (found != printed).then(|| format!("{expression} is {printed}, not {found}"))
        })
        .collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// `composition(A, B)` of two layouts.
fn operands(expression: &str) -> (Layout, Layout) {
    let inside = expression.strip_prefix("composition").unwrap();
    match evaluate(inside) {
        Ok(Value::Layout(both)) if both.rank() == 2 => {
            (both.modes()[0].clone(), both.modes()[1].clone())
        }
        other => panic!("{expression}: {other:?}"),
    }
}

/// Where CuTe's conditions are not enough: its result is not the composition, and here is an error instead.
#[test]
fn what_is_no_composition_is_refused() {
    let rows = rows(" =/=> ");
    assert!(rows.len() > 5, "{}", rows.len());
    for (expression, printed) in rows {
        let error = evaluate(expression).unwrap_err();
        assert_eq!(error.position(), None, "{expression}: {error}");
        let (a, b) = operands(expression);
        let result: Layout = printed.parse().unwrap();
        let differs = |index: i64| {
            let inner = b.at(&index).unwrap().number().unwrap();
            let composed = crd2idx(&graphene_ir::layout::IntTuple::Int(inner), &a);
            composed.unwrap() != result.at(&index).unwrap()
        };
        assert!((0..b.size()).any(differs), "{expression} is {printed}");
    }
}
