//! What the verifier refuses, one kernel a rule.

use graphene_ir::text::parse;
use graphene_ir::verify::{Rule, verify};

/// A kernel of a block of `threads`, whose body begins with `statements`.
fn kernel(threads: i64, statements: &str) -> String {
    format!(
        "kernel a sm_90a ()\n%in:[4096:1].fp32.GL\n%out:[4096:1].fp32.GL\n#g:[1:1].block\n\
         #b:[{threads}:1].thread\n%out <- Spec<<<#g, #b>>>(%in) {{\n  @t = #b.indices()\n  \
         #one:[].thread = #b.scalar()\n  %r:[].fp32.RF\n  {statements}\n  \
         %out[@t] <- Move<<<#g, #one>>>(%r)\n}}"
    )
}

fn check(threads: i64, statements: &str, rule: Option<Rule>) {
    let kernel = parse(&kernel(threads, statements)).unwrap();
    let found: Vec<Rule> = verify(&kernel)
        .iter()
        .map(|finding| finding.rule)
        // Some of these kernels leave their input unread, which is not what they are about.
        .filter(|rule| *rule != Rule::Declared)
        .collect();
    assert_eq!(found.first().copied(), rule, "{statements}: {found:?}");
}

#[test]
fn indices_lie_within_on_both_sides() {
    let load = |index: &str| format!("%r <- Move<<<#g, #one>>>(%in[{index}])");
    check(256, &load("@t"), None);
    check(256, &load("255 - @t"), None);
    check(256, &load("@t - 5"), Some(Rule::Inside));
    check(256, &load("-1"), Some(Rule::Inside));
    check(256, &load("4095 + @t"), Some(Rule::Inside));
    let guarded = |test: &str| {
        format!("%r <- Init<0><<<#g, #one>>>()\n  if({test}) {{ {} }}", load("@t - 5"))
    };
    check(256, &guarded("@t >= 5"), None);
    check(256, &guarded("@t >= 4"), Some(Rule::Inside));
}

#[test]
fn roles_are_reached_by_their_threads_only() {
    let role = |of: &str| {
        format!(
            "#groups:[2:128].[128:1].thread = #b.tile(128)\n  #mine:[128:1].thread = #groups[{of}]\n  \
             @group, @in_group = #groups.indices()\n  role #mine[0..1] {{ }}\n  \
             %r <- Init<0><<<#g, #one>>>()"
        )
    };
    check(256, &role("1"), Some(Rule::Together));
}

#[test]
fn blocks_have_1024_threads_at_most() {
    check(1024, "%r <- Init<0><<<#g, #one>>>()", None);
    check(1056, "%r <- Init<0><<<#g, #one>>>()", Some(Rule::Together));
    check(1 << 60, "%r <- Init<0><<<#g, #one>>>()", Some(Rule::Together));
}

#[test]
fn signals_go_to_barriers_that_exist() {
    let copy = |stage: i64| {
        format!(
            "kernel copy sm_90a ()\n%in:[8,32:32,1].fp32.GL\n#g:[1:1].block\n#b:[32:1].thread\n\
             Spec<<<#g, #b>>>(%in) {{\n  #one:[].thread = #b.scalar()\n  \
             %s:[8,32:32,1].fp32.SH\n  %full:[2:1].mbar.SH\n  role #b[0..1] {{\n    \
             %s <- Move<<<#g, #one>>>(%in) signals %full[{stage}]\n  }}\n}}"
        )
    };
    for (stage, found) in [(1, 0), (2, 1)] {
        let kernel = parse(&copy(stage)).unwrap();
        let outside = verify(&kernel).iter().filter(|f| f.rule == Rule::Inside).count();
        assert_eq!(outside, found, "{:?}", verify(&kernel));
    }
}
