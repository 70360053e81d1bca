//! What loops carry: it holds at their heads, whichever way a state represents it, or is named there.

use expect_test::expect;
use graphene_ir::atom::Fault;
use graphene_ir::kernel::Kernel;
use graphene_ir::simulate::{Finding, Inputs, Options, Outcome, simulate};
use graphene_ir::template::fmha::Fmha;
use graphene_ir::template::scan::Scan;
use graphene_ir::text::parse;
use graphene_ir::verify::{Rule, verify};

use crate::fmha::{self, Sizes, operands};
use crate::recurrent;
use crate::support::{check_clean, check_text, inputs};

/// Sums of columns, by a loop of constant bounds whose counter goes past the end.
const SUMS: &str = "kernel sums sm_80 ()
%x:[5,32:32,1].fp32.GL
%y:[32:1].fp32.GL
#grid:[1:1].block
#block:[32:1].thread
%y <- Fused{fold<+>(%0, 0)}<<<#grid, #block>>>(%x) {
  #one:[].thread = #block.scalar()
  @t = #block.indices()
  %sum:[].fp32.RF
  %sum <- Init<0><<<#grid, #one>>>()
  %rows:[5,1:32,0].[1,32:0,1].fp32.GL = %x.tile(1, _)
  for(@i = 0; @i < 5; @i += 2)
    carry %sum = Fused{fold<+>(slice(%0, 0, 0, min(5, @i)), 0)}<<<#grid, #block>>>(%x) {
    for(@j = 0; @j < 2; @j += 1) {
      if(@i + @j < 5) {
        %row:[1,32:0,1].fp32.GL = %rows[@i + @j, 0]
        %sum <- Fused{%0 + old(0)}<<<#grid, #block>>>(%row) {
          %value:[].fp32.RF
          %value <- Move<<<#grid, #one>>>(%row[0, @t])
          %sum <- Reduction<+><<<#grid, #one>>>(%value)
        }
      }
      // here
    }
  }
  %y[@t] <- Move<<<#grid, #one>>>(%sum)
}
";

fn sums(text: &str) -> Outcome {
    let kernel = parse(text).unwrap();
    let given = inputs(&kernel, &[], |_, i| (i * i % 37) as f64);
    simulate(&kernel, &given, &Options { levels: 1, findings: 9, ..Options::default() }).unwrap()
}

/// How often what the first loop that carries says was checked, and not.
fn counts(outcome: &Outcome) -> (u64, u64) {
    let of = outcome.levels.iter().find(|row| row.0.text.starts_with("for(")).unwrap();
    (of.1.checked, of.1.unchecked.values().sum())
}

#[test]
fn what_a_loop_carries_is_checked_at_its_head() {
    let kernel = parse(SUMS).unwrap();
    check_text("sums", &kernel);
    assert_eq!(verify(&kernel), vec![]);
    let outcome = sums(SUMS);
    check_clean("sums", &outcome);
    // Before each of three rounds, and at the end.
    assert_eq!(counts(&outcome), (4, 0));
}

fn named(findings: &[Finding]) -> Vec<String> {
    let text = |fault: &Fault| match fault {
        Fault::Differs(text) => text.clone(),
        other => format!("{other:?}"),
    };
    let all = findings.iter();
    all.map(|of| format!("{}: {}", of.statement.text, text(&of.fault))).collect()
}

#[test]
fn what_does_not_hold_is_named_at_the_head() {
    let wrong = |from: &str, to: &str| {
        assert!(SUMS.contains(from), "{from}");
        named(&sums(&SUMS.replace(from, to)).findings)[0].clone()
    };
    let begins = wrong("Init<0>", "Init<1>");
    expect![
        "for(@i = 0; @i < 5; @i += 2): carried %sum of @i = 0: element [0,0] of %0: 1, expected 0"
    ]
    .assert_eq(&begins);
    let forgets = wrong("// here", "if(@i + @j == 3) { %sum <- Init<7><<<#grid, #one>>>() }");
    expect![
        "for(@i = 0; @i < 5; @i += 2): carried %sum of @i = 4: element [0,0] of %0: 7, expected 54"
    ]
    .assert_eq(&forgets);
}

#[test]
fn what_is_not_carried_is_refused() {
    let changed = |from: &str, to: &str| {
        assert!(SUMS.contains(from), "{from}");
        parse(&SUMS.replace(from, to))
    };
    let errors = [
        ("carry %sum =", "carry %value ="),
        ("carry %sum =", "carry %sum, %sum ="),
        ("carry %sum =", "carry %sum as Fused{%1} ="),
        ("carry %sum =", "carry %sum as Fused{%0, %0} ="),
        ("min(5, @i))", "min(5, @j))"),
    ];
    let errors = errors.map(|(from, to)| changed(from, to).unwrap_err().to_string());
    expect![[r#"
        13:11: no %value is known here
        12:7: Fused{fold<+>(slice(%0, 0, 0, min(5, @i)), 0)} has not 2 outputs and 1 inputs
        12:7: 2 states of 1
        12:7: Fused{fold<+>(slice(%0, 0, 0, min(5, @i)), 0)} has not 2 outputs and 1 inputs
        13:55: no @j is known here"#]]
    .assert_eq(&errors.join("\n"));
    let found = |from: &str, to: &str| {
        let found = verify(&changed(from, to).unwrap());
        found.into_iter().map(|of| (of.rule, of.message)).collect::<Vec<_>>()
    };
    let kept = found(
        "carry %sum = Fused{fold<+>(slice(%0, 0, 0, min(5, @i)), 0)}",
        "carry %y = Fused{%0}",
    );
    assert_eq!(kept[0].0, Rule::Carried, "{kept:?}");
    let silent = found("Fused{fold<+>(slice(%0, 0, 0, min(5, @i)), 0)}", "Shfl<1>");
    assert_eq!(silent[0].0, Rule::Carried, "{silent:?}");
}

fn attention() -> Fmha {
    Fmha { head_dim: 32, value_dim: 32, consumers: 1, keys: 32, ..Fmha::default() }
}

fn attend(kernel: &Kernel, levels: u64) -> Outcome {
    let given = operands(&attention(), Sizes::of(70, 110));
    simulate(kernel, &given, &Options { levels, findings: 9, ..Options::default() }).unwrap()
}

#[test]
fn attention_carries_its_softmax() {
    for (kernel, heads) in [(attention().kernel().unwrap(), 4), (attention().ampere().unwrap(), 5)]
    {
        let outcome = attend(&kernel, 1);
        check_clean(&kernel.arch.to_string(), &outcome);
        // Of two tiles of queries, each before four tiles of keys, but for the first on Hopper, and after them.
        let (checked, unchecked) = counts(&outcome);
        assert_eq!(checked + unchecked, 2 * heads, "{}", kernel.arch);
        // Where nothing is known of registers yet.
        assert!(unchecked <= 1, "{}: {unchecked}", kernel.arch);
        // Of the tile that is chosen, the first head and the last.
        let (checked, unchecked) = counts(&attend(&kernel, 1000));
        assert_eq!(checked + unchecked, 2, "{}", kernel.arch);
    }
}

/// What stands between the specs: by what sums are multiplied, and what is left out.
#[test]
fn a_wrong_state_of_attention_is_named_at_the_head() {
    for kernel in [attention().kernel().unwrap(), attention().ampere().unwrap()] {
        let text = kernel.to_string();
        let rescales = |line: &&str| line.contains("%pair") && line.ends_with("%factors[@half])");
        let factor = text.lines().find(rescales).unwrap();
        let other = factor.replace("%factors[@half])", "%factors[0])");
        for (right, wrong) in [(factor, other.as_str()), ("Init<-inf>", "Init<-1>")] {
            assert!(text.contains(right), "{right}");
            let kernel = parse(&text.replacen(right, wrong, 1)).unwrap();
            assert_eq!(verify(&kernel), vec![]);
            let said = named(&attend(&kernel, 1).findings);
            assert!(said[0].starts_with("for(@step"), "{}: {wrong}: {said:#?}", kernel.arch);
            assert!(said[0].contains("carried %largest, %sums, %acc"), "{said:#?}");
        }
    }
}

/// What these carry holds; of so many heads of a hundred it is known which elements registers hold.
fn check_heads(share: u64, all: impl Iterator<Item = (String, Kernel, Inputs)>) {
    let (mut checked, mut unchecked) = (0, 0);
    for (name, kernel, given) in all {
        let options = Options { levels: 1, findings: 99, ..Options::default() };
        let mut outcome = simulate(&kernel, &given, &options).unwrap();
        outcome.findings.retain(|of| of.statement.text.starts_with("for("));
        check_clean(&name, &outcome);
        for (_, count) in outcome.levels.iter().filter(|row| row.0.text.starts_with("for(")) {
            checked += count.checked;
            unchecked += count.unchecked.values().sum::<u64>();
        }
    }
    println!("{checked} heads checked, {unchecked} not");
    assert!(checked * 100 >= share * (checked + unchecked), "{checked}, not: {unchecked}");
}

/// Every sort of mask.
#[test]
fn what_attention_carries_holds() {
    let rows = fmha::rows().into_iter().filter(|row| row.1.scores() <= 8000);
    check_heads(
        50,
        rows.flat_map(|(fmha, sizes, _)| {
            [fmha.kernel(), fmha.ampere()]
                .map(|kernel| (format!("{fmha:?}"), kernel.unwrap(), operands(&fmha, sizes)))
        }),
    );
}

#[test]
fn what_recurrent_layers_carry_holds() {
    check_heads(
        100,
        recurrent::rows().into_iter().map(|(layer, sizes)| {
            let kernel = layer.kernel().unwrap();
            let given = recurrent::given(&layer, &kernel, sizes);
            (format!("{layer:?}"), kernel, given)
        }),
    );
}

/// No step is wrong of a layer that begins with another c.
#[test]
fn a_wrong_first_state_of_a_recurrent_layer_is_named_at_the_head() {
    let layer = recurrent::small();
    let text = layer.kernel().unwrap().to_string();
    let begins = text.lines().find(|line| line.contains("%own") && line.contains("Init<0>"));
    let begins = begins.unwrap();
    let wrong = text.replacen(begins, &begins.replace("Init<0>", "Init<1>"), 1);
    let kernel = parse(&wrong).unwrap();
    assert_eq!(verify(&kernel), vec![]);
    let given = recurrent::given(&layer, &kernel, (3, 5, 1, 0));
    let options = Options { levels: 1, findings: 9, ..Options::default() };
    let said = named(&simulate(&kernel, &given, &options).unwrap().findings);
    assert!(said[0].starts_with("for(@step"), "{said:#?}");
    assert!(said[0].contains("carried %h_tiles, %own of"), "{said:#?}");
}

/// What a scan carries is the sum of all chunks before.
#[test]
fn what_scans_carry_holds() {
    let scan = Scan { threads: 32, ..Scan::default() };
    let reverse = Scan { reverse: true, exclusive: true, ..scan.clone() };
    check_heads(
        100,
        [scan, reverse].into_iter().map(|scan| {
            let kernel = scan.kernel().unwrap();
            let given = inputs(&kernel, &[("N0", 2), ("N1", 70)], |_, i| (i * i % 37) as f64);
            (format!("{scan:?}"), kernel, given)
        }),
    );
}
