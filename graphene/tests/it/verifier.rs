//! What the verifier refuses, one kernel a rule.

use graphene_ir::schedule::dependent;
use graphene_ir::simulate::{Buffer, Options, simulate};
use graphene_ir::text::parse;
use graphene_ir::verify::{Rule, verify};

use crate::support::{inputs, kind, orders};

/// A kernel of a block of `threads`, whose body begins with `statements`.
fn kernel(threads: i64, statements: &str) -> String {
    format!(
        "kernel a sm_90a ()\n%in:[4096:1].fp32.GL\n%out:[4096:1].fp32.GL\n#g:[1:1].block\n\
         #b:[{threads}:1].thread\n%out <- Move<<<#g, #b>>>(%in) {{\n  @t = #b.indices()\n  \
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
    // What is known of a number says as much of its multiples.
    let run = |end: i64| {
        let load = load("4*@i + 3");
        format!("for(@i = 0; @i < 2000; @i += 1) {{ if(@i < {end}) {{ {load} }} }}")
    };
    check(256, &run(1024), None);
    check(256, &run(1025), Some(Rule::Inside));
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

/// A ring is at one stage for all threads only while all advance it.
#[test]
fn rings_that_some_threads_advance_differ() {
    let sync = "if(@r_1.stage == 0) { Sync<<<#g, #b>>>() }\n  %r <- Init<0><<<#g, #one>>>()";
    let with = |advance: &str| format!("ring @r_1[2]\n  {advance}\n  {sync}");
    check(64, &with("advance @r_1"), None);
    check(64, &with("if(@t >= 32) { advance @r_1 }"), Some(Rule::Together));
    check(64, &with("role #b[0..1] { advance @r_1 }"), Some(Rule::Together));
    check(64, &with("if(@t >= 0) { advance @r_1 }"), None);
    // Where those who advance it are by themselves, it is the same for all of them.
    let apart = "#warps:[2:32].[32:1].thread = #b.tile(32)\n  #warp:[32:1].thread = #warps[0]\n  \
                 ring @r_1[2]\n  role #warps[0..1] { advance @r_1 if(@r_1.stage == 0) { \
                 Sync<<<#g, #warp>>>() } }\n  %r <- Init<0><<<#g, #one>>>()";
    check(64, apart, None);
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
             Prefetch<<<#g, #b>>>(%in) {{\n  #one:[].thread = #b.scalar()\n  \
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

/// Stores to another block tell a barrier there, and are its own block's.
#[test]
fn stores_of_words_tell_the_block_that_they_go_to() {
    let text = crate::support::example("st_async_2").to_string();
    let store = "<<<#grid, #one>>>(%r) signals %bar_there[0]";
    for other in
        ["<<<#grid, #one>>>(%r) signals %bar[0]", "<<<#pair, #one>>>(%r) signals %bar_there[0]"]
    {
        assert!(text.contains(store), "{text}");
        let kernel = parse(&text.replace(store, other)).unwrap();
        let found = verify(&kernel);
        assert!(found.iter().any(|finding| finding.rule == Rule::Atomic), "{other}: {found:?}");
    }
}

/// A kernel of three blocks of one thread that pass a number on by a barrier. `first` stands before it,
/// `members` is what each waits for, and `of` is what the counting stands in.
fn blocks(first: &str, members: &str, of: &str) -> String {
    format!(
        "kernel a sm_70 ()\n%in:[3:1].fp32.GL\n%counter:[3:1].u32.GL\n%passed:[3:1].fp32.GL\n\
         %out:[3:1].fp32.GL\n#g:[3:1].block\n#b:[1:1].thread\n\
         %counter, %passed, %out <- Fused{{old(0), %0, gather(%0, 2 - position(%0, 0))}}<<<#g, #b>>>(%in) {{\n  @n = #g.indices()\n  \
         #one:[].thread = #b.scalar()\n  %r:[].fp32.RF\n  {first}\n  \
         %r <- Move<<<#g, #one>>>(%in[@n])\n  %passed[@n] <- Move<<<#g, #one>>>(%r)\n  \
         {of} {{\n    %counter[0] <- GridArrive<4><<<#g, #one>>>()\n  }}\n  \
         GridWait<{members}><<<#g, #one>>>(%counter[0])\n  \
         %r <- Move<<<#g, #one>>>(%passed[2 - @n])\n  %out[@n] <- Move<<<#g, #one>>>(%r)\n}}"
    )
}

#[test]
fn all_blocks_reach_their_barrier() {
    for (first, members, of, refused) in [
        ("", "3", "if(true)", false),
        ("@last = 2", "3", "if(@last == 2)", false),
        ("", "3", "if(@n < 2)", true),
        ("@half = @n/2", "3", "if(@half == 0)", true),
        ("", "1 + @n", "if(true)", true),
        ("", "3", "for(@i = @n; @i < 3; @i += 1)", true),
        ("", "3", "for(@i = 0; @i < 1; @i += 1)", false),
    ] {
        let text = blocks(first, members, of);
        let kernel = parse(&text).unwrap_or_else(|error| panic!("{error}\n{text}"));
        let found = verify(&kernel);
        let rules: Vec<Rule> = found.iter().map(|finding| finding.rule).collect();
        assert_eq!(rules, vec![Rule::Grid; usize::from(refused)], "{of}: {found:?}");
    }
    // Blocks of one counter may be as many as choose it, and do as it says.
    let own = blocks("", "1", "if(@n < 2)").replace("%counter[0]", "%counter[@n]");
    assert_eq!(verify(&parse(&own).unwrap()), vec![]);
}

#[test]
fn what_a_missing_arrival_or_order_between_blocks_does() {
    let right = blocks("", "3", "if(true)");
    let counting = "%counter[0] <- GridArrive<4><<<#g, #one>>>()";
    for (text, expected) in [
        (right.clone(), ""),
        // One block does not arrive.
        (blocks("", "3", "if(@n < 2)"), "Deadlock"),
        // All wait for one more than there are; the counter begins anew before it is reached.
        (blocks("", "4", "if(true)"), "Deadlock"),
        (right.replace("GridArrive<4>", "GridArrive<3>"), "Deadlock"),
        // Two are enough to go on.
        (blocks("", "2", "if(true)"), "Race"),
        // Counted before what the others read is written.
        (blocks(counting, "3", "if(@n < 0)").replace("GridArrive<4>", "GridArrive<7>"), "Race"),
        // Nobody waits.
        (right.replace("GridWait<3><<<#g, #one>>>(%counter[0])", ""), "Race"),
    ] {
        let kernel = parse(&text).unwrap_or_else(|error| panic!("{error}\n{text}"));
        let mut given = inputs(&kernel, &[], |_, _| 0.0);
        given.buffers.insert("passed".to_owned(), Buffer::Data(vec![0.0; 3]));
        // Without a wait blocks run one after the other, unless they are asked not to. Where too few
        // are waited for, some orders are right.
        let mut all = Vec::new();
        for seed in orders(8) {
            let options = Options { seed, whole_grid: true, ..Options::default() };
            let outcome = simulate(&kernel, &given, &options).unwrap();
            all.push(outcome.findings.first().map_or("", |finding| kind(&finding.fault)));
        }
        let known = |found: &str| found == expected || (found.is_empty() && expected == "Race");
        assert!(all.iter().all(|found| known(found)), "{expected}, not {all:?}\n{text}");
        assert!(all.contains(&expected), "{expected}, not {all:?}\n{text}");
    }
}

/// The kernel of `text`, with these statements about an element's move.
fn about(before: &str, after: &str) -> String {
    format!(
        "kernel a sm_90a ()\n%in:[3:1].fp32.GL\n%out:[3:1].fp32.GL\n#g:[3:1].block\n#b:[32:1].thread\n\
         %out <- Move<<<#g, #b>>>(%in) {{\n  @n = #g.indices()\n  @t = #b.indices()\n  \
         #one:[].thread = #b.scalar()\n  %r:[].fp32.RF\n  {before}\n  if(@t == 0) {{\n    \
         %r <- Move<<<#g, #one>>>(%in[@n])\n    %out[@n] <- Move<<<#g, #one>>>(%r)\n  }}\n  {after}\n}}"
    )
}

#[test]
fn nothing_is_touched_before_predecessors_are_done() {
    let (wait, some) = (
        "GridDependencyWait<<<#g, #b>>>()",
        "if(@t < 1) {\n    GridDependencyWait<<<#g, #one>>>()\n  }",
    );
    for (before, after, early) in
        [("", "", 0), (wait, "", 0), (wait, wait, 0), ("", wait, 2), (some, "", 3)]
    {
        let text = about(before, after);
        let found = verify(&parse(&text).unwrap_or_else(|error| panic!("{error}\n{text}")));
        let rules: Vec<Rule> = found.iter().map(|finding| finding.rule).collect();
        assert_eq!(rules, vec![Rule::Predecessor; early], "{text}: {found:?}");
    }
}

/// What no kernel writes may be read before; it is written by none, and nothing else is such.
#[test]
fn constants_are_read_before_predecessors_are_done() {
    let wait = "GridDependencyWait<<<#g, #b>>>()";
    let text = about("", wait).replace("%in:[3:1].fp32.GL", "%in:[3:1].fp32.GL.const");
    let kernel = parse(&text).unwrap();
    assert_eq!(parse(&kernel.to_string()).unwrap(), kernel);
    // The read is one of the two accesses that come too early.
    let rules: Vec<Rule> = verify(&kernel).iter().map(|finding| finding.rule).collect();
    assert_eq!(rules, [Rule::Predecessor]);
    let made = dependent(parse(&text.replace(wait, "")).unwrap());
    assert_eq!(verify(&made), vec![]);
    let refused = |text: &str| parse(text).unwrap_err().to_string();
    let written = text.replace("%out:[3:1].fp32.GL", "%out:[3:1].fp32.GL.const");
    assert!(refused(&written).contains("what is constant is not written"), "{}", refused(&written));
    let own = text.replace("%r:[].fp32.RF", "%r:[].fp32.RF.const");
    assert!(refused(&own).contains("only parameters are constant"), "{}", refused(&own));
    let derived = about("%part:[3:1].fp32.GL.const = %in.tile(1)", "");
    assert!(parse(&derived).is_err());
}

#[test]
fn kernels_wait_for_predecessors_before_they_touch_memory() {
    let kernel = parse(&about("", "")).unwrap();
    let made = dependent(kernel.clone());
    let text = made.to_string();
    assert_eq!(verify(&made), vec![]);
    assert_eq!(parse(&text).unwrap(), made);
    let places = ["LaunchDependents<<<#g", "@t = #b", "GridDependencyWait<<<#g", "if(@t == 0)"];
    let places = places.map(|part| text.find(part).unwrap_or_else(|| panic!("{part}: {text}")));
    assert!(places.is_sorted(), "{text}");
    assert_eq!(dependent(made.clone()), made);
    // An older architecture has no such launches; blocks that wait for each other start together.
    let older = parse(&about("", "").replace("sm_90a", "sm_80")).unwrap();
    assert_eq!(dependent(older.clone()), older);
    let together = parse(&blocks("", "3", "if(true)").replace("sm_70", "sm_90a")).unwrap();
    assert_eq!(dependent(together.clone()), together);
}

/// What a tile is made of may come through memory that others fill; what it writes is an output, or scratch.
#[test]
fn decompositions_keep_to_their_specs() {
    let declared = |ins: &str, more: &str, room: &str| {
        let text = format!(
            "kernel a sm_90a ()\n%in:[32:1].fp32.GL\n%other:[32:1].fp32.GL\n\
             %room:[32:1].fp32.GL{room}\n%out:[32:1].fp32.GL\n#g:[1:1].block\n\
             #b:[64:1].thread\n%out <- Fused{{select(1, %0, %1)}}<<<#g, #b>>>(%in, %other) {{\n  @t = #b.indices()\n  \
             #one:[].thread = #b.scalar()\n  #warps:[2:32].[32:1].thread = #b.tile(32)\n  \
             #second:[32:1].thread = #warps[1]\n  %s:[32:1].fp32.SH\n  %r:[].fp32.RF\n  \
             %unused:[].fp32.RF\n  role #warps[0] {{\n    \
             %unused <- Move<<<#g, #one>>>(%other[@t])\n    %r <- Move<<<#g, #one>>>(%in[@t])\n    \
             %s[@t] <- Move<<<#g, #one>>>(%r)\n  }}\n  Sync<<<#g, #b>>>()\n  \
             role #warps[1] {{\n    %out <- Move<<<#g, #second>>>({ins}) {{\n      %q:[].fp32.RF\n      \
             %q <- Move<<<#g, #one>>>(%s[@t - 32])\n      \
             %out[@t - 32] <- Move<<<#g, #one>>>(%q)\n      {more}\n    }}\n  }}\n}}"
        );
        let kernel = parse(&text).unwrap_or_else(|error| panic!("{error}\n{text}"));
        assert_eq!(parse(&kernel.to_string()).unwrap(), kernel);
        let rules: Vec<Rule> = verify(&kernel).iter().map(|finding| finding.rule).collect();
        assert!(rules.iter().all(|rule| *rule == Rule::Declared), "{rules:?}\n{text}");
        rules.len()
    };
    let room = "%room[@t - 32] <- Move<<<#g, #one>>>(%q)";
    assert_eq!(declared("%in", "", ""), 0);
    // Nothing that its decomposition reads is made of it.
    assert_eq!(declared("%other", "", ""), 1);
    assert_eq!(declared("%in", room, ""), 1);
    assert_eq!(declared("%in", room, ".scratch"), 0);
}

/// What a level is decomposed into is done by its own threads and blocks.
#[test]
fn agents_of_a_level_are_tiles_of_those_above() {
    let level = |agents: &str, inner: &str| {
        let text = format!(
            "kernel a sm_90a ()\n%in:[128:1].fp32.GL\n%out:[128:1].fp32.GL\n#g:[4:1].block\n\
             #b:[128:1].thread\n%out <- Fused{{%0}}<<<#g, #b>>>(%in) {{\n  \
             @t = #b.indices()\n  #own:[].block = #g.scalar()\n  #one:[].thread = #b.scalar()\n  \
             #pairs:[2:64].[64:1].thread = #b.tile(64)\n  #pair:[64:1].thread = #pairs[@t/64]\n  \
             #warps:[4:32].[32:1].thread = #b.tile(32)\n  #warp:[32:1].thread = #warps[@t/32]\n  \
             #eights:[16:8].[8:1].thread = #b.tile(8)\n  #eight:[8:1].thread = #eights[@t/8]\n  \
             %r:[].fp32.RF\n  %q:[].fp32.RF\n  %r <- Fused{{%0}}<<<{agents}>>>(%in[@t]) {{\n    \
             %r <- Move<<<#own, #one>>>(%in[@t])\n    {inner}\n  }}\n  \
             %out[@t] <- Move<<<#own, #one>>>(%r)\n}}"
        );
        let found = verify(&parse(&text).unwrap_or_else(|error| panic!("{error}\n{text}")));
        found.first().map(|finding| finding.rule)
    };
    for (agents, inner, rule) in [
        ("#own, #b", "Sync<<<#own, #b>>>()", None),
        ("#own, #warp", "Sync<<<#own, #warp>>>()", None),
        ("#own, #b", "%q <- Shfl<1><<<#own, #eight>>>(%r)", None),
        ("#own, #warp", "%q <- Shfl<4><<<#own, #eight>>>(%r)", None),
        ("#own, #eight", "%q <- Shfl<4><<<#own, #warp>>>(%r)", Some(Rule::Agents)),
        ("#own, #warp", "Sync<<<#own, #pair>>>()", Some(Rule::Agents)),
        ("#own, #one", "Sync<<<#own, #warp>>>()", Some(Rule::Agents)),
        // The whole block's barrier is met by all of its tiles.
        ("#own, #eight", "Sync<<<#own, #b>>>()", None),
        ("#g, #b", "Sync<<<#g, #b>>>()", None),
        ("#own, #warp", "%r <- Move<<<#g, #one>>>(%in[@t])", Some(Rule::Agents)),
        // It exchanges among eight.
        ("#own, #b", "%q <- Shfl<8><<<#own, #eight>>>(%r)", Some(Rule::Atomic)),
    ] {
        assert_eq!(level(agents, inner), rule, "{agents}: {inner}");
    }
}
