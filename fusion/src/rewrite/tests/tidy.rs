//! Tidying alone: no rule, no e-graph.

use crate::rewrite::tidy;
use expect_test::{Expect, expect};
use graphene_frontend::text::{parse, print};

fn check(text: &str, expected: &Expect) {
    let graph = parse(text, &[]).unwrap_or_else(|error| panic!("{error}\n{text}"));
    expected.assert_eq(&print(&tidy(&graph).unwrap()).text);
}

/// Two readers' own chains are one, from the first operation that differs on two; attributes count.
#[test]
fn what_stands_twice_is_computed_once() {
    check(
        r#"
        symbols b
        %0 = Input : f32[b, 8] "x"
        %1 = Exp(%0) : f32[b, 8] "first"
        %2 = Softmax(%1) {axis: 1} : f32[b, 8] "by_rows"
        %3 = Neg(%2) : f32[b, 8] "y"
        %4 = Exp(%0) : f32[b, 8] "again"
        %5 = Softmax(%4) {axis: 1} : f32[b, 8] "by_rows_again"
        %6 = Tanh(%5) : f32[b, 8] "z"
        %7 = Softmax(%4) {axis: 0} : f32[b, 8] "by_columns"
        return "y" = %3, "z" = %6, "w" = %7
    "#,
        &expect![[r#"
            symbols b
            %0 = Input : f32[b, 8] "x"
            %1 = Exp(%0) : f32[b, 8] "first"
            %2 = Softmax(%1) {axis: 1} : f32[b, 8] "by_rows"
            %3 = Neg(%2) : f32[b, 8] "y"
            %4 = Tanh(%2) : f32[b, 8] "z"
            %5 = Softmax(%1) {axis: 0} : f32[b, 8] "by_columns"
            return "y" = %3, "z" = %4, "w" = %5
        "#]],
    );
}

#[test]
fn what_no_output_needs_is_dropped() {
    check(
        r#"
        symbols b
        %0 = Input : f32[b, 8] "x"
        %1 = Input : f32[b, 8] "unread"
        %2 = Exp(%0) : f32[b, 8] "kept"
        %3 = Neg(%2) : f32[b, 8] "dropped"
        %4 = Tanh(%3) : f32[b, 8] "dropped_too"
        return "y" = %2
    "#,
        &expect![[r#"
            symbols b
            %0 = Input : f32[b, 8] "x"
            %1 = Input : f32[b, 8] "unread"
            %2 = Exp(%0) : f32[b, 8] "kept"
            return "y" = %2
        "#]],
    );
}
