//! The simulator: what is right runs clean and gives the right numbers, and every fault is found.

use std::collections::{HashMap, HashSet};

use graphene_ir::atom::Fault;
use graphene_ir::kernel::{Kernel, Kind, Stmt, TensorId};
use graphene_ir::simulate::{Buffer, Inputs, Options, Outcome, simulate};
use graphene_ir::template::gemm::Gemm;
use graphene_ir::text::parse;

use crate::support::example;

/// Small numbers, so that sums of products are exact.
fn small(i: usize) -> f64 {
    (i * 7 % 5) as f64 - 2.0
}

/// The tensors that a kernel writes without reading them.
fn outputs(kernel: &Kernel) -> HashSet<TensorId> {
    let (mut roots, mut outs) = (HashMap::new(), HashSet::new());
    kernel.each_stmt(&mut |stmt| {
        if let Stmt::View(id, of, _) = stmt {
            let root = *roots.get(of).unwrap_or(of);
            roots.insert(*id, root);
        } else if let Stmt::Spec(spec) = stmt
            && spec.body.is_none()
            && spec.kind != Kind::MATMUL_ADD
        {
            outs.extend(spec.outs.iter().map(|out| *roots.get(&out.tensor).unwrap_or(&out.tensor)));
        }
    });
    outs
}

fn inputs(kernel: &Kernel, symbols: &[(&str, i64)]) -> Inputs {
    let outputs = outputs(kernel);
    let symbol = |name: &str| symbols.iter().find(|row| row.0 == name).map(|row| row.1);
    let mut inputs = Inputs::default();
    inputs.symbols.extend(symbols.iter().map(|&(name, value)| (name.to_owned(), value)));
    for &param in &kernel.params {
        let axes = kernel.tensor(param).view.axes().iter();
        let reach = axes.map(|axis| {
            let value = |expr: &graphene_ir::index::Expr| expr.value(&|var| symbol(var.name()));
            (value(&axis.size).unwrap() - 1) * value(&axis.stride).unwrap()
        });
        let len = usize::try_from(1 + reach.sum::<i64>()).unwrap();
        let buffer = if outputs.contains(&param) {
            Buffer::Undefined(len)
        } else {
            Buffer::Data((0..len).map(small).collect())
        };
        inputs.buffers.insert(kernel.tensor_name(param).to_owned(), buffer);
    }
    inputs
}

fn run(kernel: &Kernel, symbols: &[(&str, i64)], seed: Option<u64>) -> Outcome {
    let options = Options { seed, ..Options::default() };
    simulate(kernel, &inputs(kernel, symbols), &options).unwrap()
}

/// Runs in turn and in a few random orders.
fn run_all(kernel: &Kernel, symbols: &[(&str, i64)]) -> Vec<Outcome> {
    let seeds = [None, Some(1), Some(2), Some(3)];
    seeds.into_iter().map(|seed| run(kernel, symbols, seed)).collect()
}

fn check_clean(name: &str, outcome: &Outcome) {
    let findings: Vec<String> = outcome.findings.iter().map(ToString::to_string).collect();
    assert!(findings.is_empty(), "{name}: {findings:#?}");
}

/// The name of a fault's variant.
fn kind(fault: &Fault) -> &'static str {
    match fault {
        Fault::OutOfBounds(_) => "out of bounds",
        Fault::Misaligned(_) => "misaligned",
        Fault::Uninitialised(_) => "uninitialised",
        Fault::Race(_) => "race",
        Fault::InFlight(_) => "in flight",
        Fault::MissingFence(_) => "missing fence",
        Fault::Deadlock(_) => "deadlock",
        Fault::WrittenTwice(_) => "written twice",
        Fault::Barrier(_) => "barrier",
        Fault::Divergence(_) => "divergence",
        Fault::Differs(_) => "differs",
        Fault::Unstable(_) => "unstable",
        Fault::Invalid(_) => "invalid",
    }
}

/// Every order finds one fault, of one of the kinds in `expected`.
fn check_fault(name: &str, expected: &str, kernel: &Kernel) {
    for outcome in run_all(kernel, &[]) {
        let found: Vec<String> = outcome.findings.iter().map(ToString::to_string).collect();
        assert_eq!(outcome.findings.len(), 1, "{name}: {found:#?}");
        let kind = kind(&outcome.findings[0].fault);
        assert!(expected.split(" or ").any(|expected| expected == kind), "{name}: {found:#?}");
    }
}

fn check_right(name: &str, kernel: &Kernel) {
    run_all(kernel, &[]).iter().for_each(|outcome| check_clean(name, outcome));
}

/// What a product of the inputs must be.
fn product(m: usize, n: usize, k: usize) -> Vec<Option<f64>> {
    let element = |row: usize, column: usize| {
        (0..k).map(|i| small(row * k + i) * small(column * k + i)).sum::<f64>()
    };
    (0..m * n).map(|i| Some(element(i / n, i % n))).collect()
}

#[test]
fn the_gemm_template_multiplies() {
    let rows = [(128, 128, 128, 1), (128, 256, 192, 1), (192, 200, 104, 2)];
    for (m, n, k, blocks) in rows {
        let kernel = Gemm { columns: 128, stages: 2, ..Gemm::default() }.kernel().unwrap();
        let symbols = [("M", m), ("N", n), ("K", k), ("blocks", blocks)];
        for outcome in run_all(&kernel, &symbols) {
            check_clean("gemm", &outcome);
            let expected = product(m as usize, n as usize, k as usize);
            assert_eq!(outcome.buffers["C"], expected, "{m}x{n}x{k}");
            assert_eq!(outcome.costs.total().conflicts, 0);
        }
    }
}

/// Words through shared memory, of two warps.
const HEAD: &str = "kernel words sm_90a ()
%in:[64:1].fp32.GL
%out:[64:1].fp32.GL
#grid:[1:1].block
#block:[64:1].thread
%out <- Move<<<#grid,#block>>>(%in) {
#one:[].thread = #block.scalar()
@t = #block.indices()
#warps:[2:32].[32:1].thread = #block.tile(32)
@warp, @lane = #warps.indices()
#warp:[32:1].thread = #warps[@warp]
%s:[64:1].fp32.SH
%bar:[1:1].mbar.SH
%r:[].fp32.RF
%r <- Move<<<#grid,#one>>>(%in[@t])
";

/// A rule, the fault of a kernel that breaks it, and the body of both that one and one that keeps
/// it: lines that begin with `-` are in the first only, lines that begin with `+` in the second.
const RULES: &[(&str, &str, &str)] = &[
    (
        "warps meet before they exchange",
        "race or uninitialised",
        "%s[@t] <- Move<<<#grid,#one>>>(%r)
        -Sync<<<#grid,#warp>>>()
        +Sync<<<#grid,#block>>>()
        %r <- Move<<<#grid,#one>>>(%s[63 - @t])
        %out[@t] <- Move<<<#grid,#one>>>(%r)",
    ),
    (
        "warps meet before what was read is overwritten",
        "race",
        "%s[@t] <- Move<<<#grid,#one>>>(%r)
        Sync<<<#grid,#block>>>()
        %r <- Move<<<#grid,#one>>>(%s[63 - @t])
        +Sync<<<#grid,#block>>>()
        %s[@t] <- Move<<<#grid,#one>>>(%r)",
    ),
    (
        "lanes meet before they exchange",
        "race or uninitialised",
        "%s[@t] <- Move<<<#grid,#one>>>(%r)
        +Sync<<<#grid,#warp>>>()
        %r <- Move<<<#grid,#one>>>(%s[32*@warp + 31 - @lane])",
    ),
    (
        "a warp meets before one lane speaks for it",
        "race or uninitialised",
        "role #block[0] {
        %bar[0] <- Init<1><<<#grid,#one>>>()
        }
        Sync<<<#grid,#block>>>()
        role #warps[0] {
        %s[@t] <- Move<<<#grid,#one>>>(%r)
        +Sync<<<#grid,#warp>>>()
        role #warp[0] {
        %bar[0] <- Arrive<<<#grid,#one>>>()
        }
        }
        role #warps[1] {
        %bar[0] <- Wait<0><<<#grid,#warp>>>()
        %r <- Move<<<#grid,#one>>>(%s[@lane])
        }",
    ),
    (
        "what one lane has waited for, another has not",
        "race",
        "role #block[0] {
        %bar[0] <- Init<32><<<#grid,#one>>>()
        }
        Sync<<<#grid,#block>>>()
        role #warps[0] {
        %s[@t] <- Move<<<#grid,#one>>>(%r)
        %bar[0] <- Arrive<<<#grid,#one>>>()
        }
        role #warps[1] {
        role #warp[0] {
        %bar[0] <- Wait<0><<<#grid,#one>>>()
        }
        +Sync<<<#grid,#warp>>>()
        %r <- Move<<<#grid,#one>>>(%s[@lane])
        }",
    ),
    (
        "two lanes do not write one shared element",
        "race",
        "-%s[@t/2] <- Move<<<#grid,#one>>>(%r)
        +%s[@t] <- Move<<<#grid,#one>>>(%r)",
    ),
    (
        "each thread writes its own output",
        "written twice",
        "-%out[@t/2] <- Move<<<#grid,#one>>>(%r)
        +%out[@t] <- Move<<<#grid,#one>>>(%r)",
    ),
    (
        "an output is written once, unless it is read in between",
        "written twice",
        "%out[@t] <- Move<<<#grid,#one>>>(%r)
        +%r <- Move<<<#grid,#one>>>(%out[@t])
        %out[@t] <- Move<<<#grid,#one>>>(%r)",
    ),
    (
        "reads stay within the axes",
        "out of bounds",
        "-%r <- Move<<<#grid,#one>>>(%in[@t + 1])
        +%r <- Move<<<#grid,#one>>>(%in[(@t + 1)%64])",
    ),
    (
        "writes stay within the axes",
        "out of bounds",
        "-%s[2*@t] <- Move<<<#grid,#one>>>(%r)
        +%s[@t] <- Move<<<#grid,#one>>>(%r)",
    ),
    (
        "a register is written before it is read",
        "uninitialised",
        "%x:[].fp32.RF
        +%x <- Move<<<#grid,#one>>>(%r)
        %out[@t] <- Move<<<#grid,#one>>>(%x)",
    ),
    (
        "a loop's register is new each time",
        "uninitialised",
        "for(@i = 0; @i < 2; @i += 1) {
        %x:[].fp32.RF
        -if(@i < 1) {
        +if(@i < 2) {
        %x <- Move<<<#grid,#one>>>(%r)
        }
        %r <- Move<<<#grid,#one>>>(%x)
        }",
    ),
    (
        "shared memory is written before it is read",
        "uninitialised",
        "-if(@t < 63) {
        +if(@t < 64) {
        %s[@t] <- Move<<<#grid,#one>>>(%r)
        }
        Sync<<<#grid,#block>>>()
        %r <- Move<<<#grid,#one>>>(%s[63 - @t])",
    ),
    (
        "all lanes come to a meeting",
        "divergence",
        "-if(@lane < 31) {
        +if(@lane < 32) {
        Sync<<<#grid,#warp>>>()
        }",
    ),
    (
        "all warps come to a meeting",
        "deadlock",
        "-role #warps[0] {
        +role #warps[0..2] {
        Sync<<<#grid,#block>>>()
        }",
    ),
    (
        "a loop ends for all lanes at once",
        "divergence",
        "-for(@i = 0; @i < @lane; @i += 1) {
        +for(@i = 0; @i < @warp; @i += 1) {
        %s[@t] <- Move<<<#grid,#one>>>(%r)
        }",
    ),
    (
        "the first lap waits on the other parity",
        "deadlock",
        "role #block[0] {
        %bar[0] <- Init<32><<<#grid,#one>>>()
        }
        Sync<<<#grid,#block>>>()
        -%bar[0] <- Wait<0><<<#grid,#block>>>()
        +%bar[0] <- Wait<1><<<#grid,#block>>>()",
    ),
    (
        "a barrier is initialised once",
        "barrier",
        "role #block[0] {
        %bar[0] <- Init<1><<<#grid,#one>>>()
        -%bar[0] <- Init<1><<<#grid,#one>>>()
        }",
    ),
    (
        "a phase takes no more arrivals than its count",
        "barrier",
        "role #block[0] {
        %bar[0] <- Init<1><<<#grid,#one>>>()
        %bar[0] <- Arrive<8><<<#grid,#one>>>()
        -%bar[0] <- Arrive<8><<<#grid,#one>>>()
        }",
    ),
    (
        "a phase passes its waiters by if there are too many arrivals",
        "deadlock",
        "role #block[0] {
        -%bar[0] <- Init<16><<<#grid,#one>>>()
        +%bar[0] <- Init<32><<<#grid,#one>>>()
        }
        Sync<<<#grid,#block>>>()
        role #warps[0] {
        %bar[0] <- Arrive<<<#grid,#one>>>()
        Sync<<<#grid,#warp>>>()
        %bar[0] <- Wait<0><<<#grid,#warp>>>()
        }",
    ),
];

#[test]
fn broken_rules_are_found() {
    for (name, expected, body) in RULES {
        let [faulty, right] = ['-', '+'].map(|own| {
            let mut text = HEAD.to_owned();
            for line in body.lines().map(str::trim) {
                let (sign, rest) = line.split_at(1);
                match sign {
                    "-" | "+" if sign != own.to_string() => continue,
                    "-" | "+" => text.push_str(rest),
                    _ => text.push_str(line),
                }
                text.push('\n');
            }
            parse(&(text + "}")).unwrap_or_else(|error| panic!("{name}: {error}"))
        });
        check_fault(name, expected, &faulty);
        check_right(name, &right);
    }
}

/// An atom; what is replaced in which of its example's lines that have it, by what; the fault.
/// Without a replacement the line goes.
const MUTANTS: &[(&str, &str, usize, &str, &str)] = &[
    ("bar_sync", "Sync", 0, "", "race or uninitialised"),
    ("warp_sync", "Sync", 0, "", "race or uninitialised"),
    ("ldmatrix_x4", "Sync", 0, "", "race or uninitialised"),
    ("stmatrix", "Sync", 0, "", "race or uninitialised"),
    ("mbarrier", "Init<32>", 0, "", "barrier"),
    ("mbarrier", "Init<32>", 0, "Init<33>", "deadlock"),
    ("mbarrier", "Sync", 0, "", "barrier or race"),
    ("mbarrier", "Arrive", 0, "", "deadlock"),
    ("mbarrier", "Wait", 0, "", "race or uninitialised"),
    ("mbarrier", "Wait<0>", 0, "Wait<1>", "race or uninitialised or deadlock"),
    ("mbarrier_cluster", "Fence<init>", 0, "", "missing fence"),
    ("mbarrier_cluster", "Sync", 0, "", "race or barrier"),
    ("mbarrier_cluster", "Wait<0, cluster>", 0, "", "in flight or uninitialised"),
    ("mbarrier_cluster", "Arrive", 1, "", "deadlock"),
    ("st_async_2", "Fence<init>", 0, "", "missing fence"),
    ("st_async_2", "Sync", 0, "", "race or barrier"),
    ("st_async_2", "Wait", 0, "", "in flight or uninitialised"),
    ("st_async_2", "Wait<0, cluster>", 0, "Wait<0>", "missing fence"),
    ("st_async_2", "Arrive<256>", 0, "Arrive<248>", "in flight"),
    ("st_async_2", "Arrive<256>", 0, "Arrive<264>", "deadlock"),
    ("cp_async_16", "WaitGroup", 0, "", "in flight"),
    ("cp_async_16", "Commit", 0, "", "in flight"),
    ("bulk_load", "Wait<0>", 0, "", "in flight"),
    ("bulk_load", "Wait<0>", 0, "Wait<1>", "in flight"),
    ("bulk_load", "Arrive<1024>", 0, "Arrive<1000>", "deadlock"),
    ("bulk_load", "Arrive<1024>", 0, "Arrive", "in flight"),
    ("bulk_load", "Arrive", 0, "", "deadlock"),
    ("bulk_load", "Fence", 0, "", "missing fence"),
    ("bulk_load", "Sync", 0, "", "race or barrier or in flight"),
    ("bulk_store", "Fence<proxy>", 0, "", "missing fence"),
    ("bulk_store", "Sync", 0, "", "race or uninitialised"),
    (
        "bulk_store",
        "Fence<proxy><<<#grid, #block>>>()",
        0,
        "role #block[0] { Fence<proxy><<<#grid, #one>>>() }",
        "missing fence",
    ),
    (
        "bulk_store",
        "WaitGroup<bulk, 0>",
        0,
        "%x:[].fp16.RF %x <- Move<<<#grid, #one>>>(%in[0, 0])
         %s[0, 0] <- Move<<<#grid, #one>>>(%x) WaitGroup<bulk, 0>",
        "in flight",
    ),
    (
        "bulk_store",
        "WaitGroup<bulk, 0><<<#grid, #one>>>()",
        0,
        "WaitGroup<bulk, 0, read><<<#grid, #one>>>()
         %x:[].fp16.RF %x <- Move<<<#grid, #one>>>(%out[0, 0])",
        "in flight",
    ),
    ("bulk_store", "Commit", 0, "", "in flight"),
    ("bulk_store", "WaitGroup", 0, "", "in flight"),
    ("wgmma", "Fence<proxy>", 0, "", "missing fence"),
    ("wgmma", "Sync", 0, "", "race or uninitialised"),
    ("wgmma", "Fence<matmul>", 0, "", "missing fence"),
    ("wgmma", "Commit", 0, "", "in flight"),
    ("wgmma", "WaitGroup", 0, "", "in flight"),
    ("wgmma_registers", "Fence<matmul>", 0, "", "missing fence"),
    ("wgmma_set", "Fence<matmul>", 0, "", "missing fence"),
    ("wgmma_set", "WaitGroup", 0, "", "in flight"),
    ("mma", "Init", 0, "", "uninitialised"),
];

/// A kernel's text with something replaced in one of the lines that have it; with nothing in its
/// place, the line goes.
fn mutate(text: &str, from: &str, which: usize, to: &str) -> Kernel {
    let mut seen = 0;
    let lines = text.lines().filter_map(|line| {
        let here = line.contains(from) && seen == which;
        seen += usize::from(line.contains(from));
        match (here, to) {
            (false, _) => Some(line.to_owned()),
            (true, "") => None,
            (true, to) => Some(line.replace(from, to)),
        }
    });
    let mutant: Vec<String> = lines.collect();
    let mutant = mutant.join("\n");
    assert_ne!(mutant, text.trim_end(), "there is no {from}");
    parse(&mutant).unwrap_or_else(|error| panic!("{error}: {mutant}"))
}

#[test]
fn mutants_of_the_atoms_examples_are_found() {
    for (name, from, which, to, expected) in MUTANTS {
        let mutant = mutate(&example(name).to_string(), from, *which, to);
        check_fault(&format!("{name}, {from} {which}"), expected, &mutant);
    }
}

/// Likewise of the product of the template.
const GEMM_MUTANTS: &[(&str, usize, &str, &str)] = &[
    ("Fence<init>", 0, "", "missing fence"),
    ("Sync", 0, "", "barrier or race"),
    ("%empty[@filling.stage] <- Wait", 0, "", "in flight or barrier"),
    ("Wait<@using.parity>", 0, "Wait<1 - @using.parity>", "in flight or uninitialised or deadlock"),
    ("%full[@using.stage] <- Wait", 0, "", "in flight or uninitialised"),
    ("%empty[(@using.stage", 0, "", "deadlock"),
    ("WaitGroup<matmul, 1>", 0, "WaitGroup<matmul, 2>", "in flight"),
    ("WaitGroup<matmul, 0>", 0, "", "in flight"),
    ("Fence<matmul>", 0, "", "missing fence"),
    ("Fence<proxy>", 0, "", "missing fence"),
    ("WaitGroup<bulk, 0, read>", 0, "", "in flight"),
    ("Registers<24>", 0, "", "deadlock"),
];

#[test]
fn mutants_of_the_gemm_template_are_found() {
    let gemm = Gemm { columns: 128, stages: 2, ..Gemm::default() };
    let text = gemm.kernel().unwrap().to_string();
    let symbols = [("M", 128), ("N", 128), ("K", 256), ("blocks", 1)];
    for (from, which, to, expected) in GEMM_MUTANTS {
        let mutant = mutate(&text, from, *which, to);
        for seed in [None, Some(7)] {
            let outcome = run(&mutant, &symbols, seed);
            let found: Vec<String> = outcome.findings.iter().map(ToString::to_string).collect();
            assert_eq!(outcome.findings.len(), 1, "{from}: {found:#?}");
            let kind = kind(&outcome.findings[0].fault);
            assert!(expected.split(" or ").any(|e| e == kind), "{from}: {found:#?}");
        }
    }
}

/// Two products into two accumulators, each a group: what is between them and the end.
fn two_products(waits: &str) -> Kernel {
    let text = example("wgmma").to_string();
    let from = text.find("%acc:[").unwrap();
    let store = text.rfind("for(").unwrap();
    let store = &text[store..text.rfind('}').unwrap()];
    let declare = |name: &str| {
        format!(
            "%{name}:[2,2:2,4].[2:1].fp32.RF
            for(@i = 0; @i < 8; @i += 1) unroll {{
            %zero_{name}:[2:1].fp32.RF = %{name}[@i/2%2, @i/4]
            %zero_{name}[@i%2] <- Init<1><<<#grid,#one>>>()
            }}"
        )
    };
    let product = |name: &str, b: &str| {
        format!(
            "%{name} <- Fence<matmul><<<#grid,#block>>>()
            %{name} <- MatMul+=<<<#grid,#block>>>(%sA, %{b}) async
            Commit<matmul><<<#grid,#block>>>()"
        )
    };
    let head = text[..from].to_owned();
    let (declare_acc, declare_other) = (declare("acc"), declare("other"));
    let (first, second) = (product("acc", "sB"), product("other", "sB2"));
    let head = head.replace(
        "%sA:[",
        "%sB2:[16,16:16,1].bf16.SH.S<1,4,3>
        %sA:[",
    );
    let fill = head.find("Fence<proxy>").unwrap();
    let (before, after) = head.split_at(fill);
    let copy = "for(@i = 0; @i < 2; @i += 1) {
        %word <- Move<<<#grid,#one>>>(%B[(2*@thread_of + @i)/16, (2*@thread_of + @i)%16])
        %sB2[(2*@thread_of + @i)/16, (2*@thread_of + @i)%16] <- Move<<<#grid,#one>>>(%word)
        }";
    parse(&format!(
        "{before}{copy}\n{after}{declare_acc}\n{declare_other}\n{first}\n{second}\n{waits}\n\
         {store}\n}}"
    ))
    .unwrap_or_else(|error| panic!("{error}"))
}

/// A wait that leaves the younger of two products in flight leaves its accumulator and its operand
/// in shared memory in flight, and gives the older's back; so does one for both that names one.
#[test]
fn a_wait_is_for_its_groups_and_for_the_accumulators_that_it_names() {
    let one = "%acc <- WaitGroup<matmul, 1><<<#grid,#block>>>()";
    let both = "%acc <- WaitGroup<matmul, 0><<<#grid,#block>>>()";
    let other = "%other <- WaitGroup<matmul, 0><<<#grid,#block>>>()";
    let touch = "%pair_x:[2:1].fp32.RF = %other[0, 0]
        %pair_x[0] <- Init<0><<<#grid,#one>>>()";
    let overwrite = |name: &str| {
        format!(
            "%zero_x:[].bf16.RF
            %zero_x <- Init<0><<<#grid,#one>>>()
            Sync<<<#grid,#block>>>()
            %{name}[@thread_of/16, @thread_of%16] <- Move<<<#grid,#one>>>(%zero_x)"
        )
    };
    let rows = [
        ("all", format!("{one}\n{other}\n{touch}"), ""),
        ("the older", format!("{one}\n{}\n{other}", overwrite("sB")), ""),
        ("the younger's accumulator", format!("{one}\n{touch}\n{other}"), "in flight"),
        ("the younger's operand", format!("{one}\n{}\n{other}", overwrite("sB2")), "in flight"),
        ("both operands", format!("{both}\n{}", overwrite("sB2")), ""),
        ("an accumulator not named", format!("{both}\n{touch}"), "in flight"),
        ("two waits", format!("{both}\n{other}\n{touch}"), ""),
    ];
    for (name, waits, expected) in rows {
        let kernel = two_products(&waits);
        match expected {
            "" => check_right(name, &kernel),
            _ => check_fault(name, expected, &kernel),
        }
    }
}

#[test]
fn registers_come_from_those_given_up() {
    let kernel = |given: i64| {
        parse(&format!(
            "kernel budget sm_90a ()
            %out:[384:1].fp32.GL
            #grid:[1:1].block
            #block:[384:1].thread
            %out <- Init<0><<<#grid,#block>>>() {{
            #groups:[3:128].[128:1].thread = #block.tile(128)
            @group, @in_group = #groups.indices()
            #group:[128:1].thread = #groups[@group]
            role #groups[0] {{
            Registers<{given}><<<#grid,#group>>>()
            }}
            role #groups[1..3] {{
            Registers<232><<<#grid,#group>>>()
            }}
            }}"
        ))
        .unwrap()
    };
    check_right("40 and twice 232", &kernel(40));
    check_fault("48 and twice 232", "deadlock", &kernel(48));
}

/// Each of two blocks copies half of a tile to both of them.
const MULTICAST: &str = "kernel multicast sm_90a ()
%in:[16,32:32,1].fp16.GL
%out:[2,16,32:512,32,1].fp16.GL
#grid:[1:2].[2:1].block
#warp:[32:1].thread
%out <- Move<<<#grid,#warp>>>(%in) {
#one:[].thread = #warp.scalar()
@cluster, @rank = #grid.indices()
#pair:[2:1].block = #grid[@cluster]
@lane = #warp.indices()
%s:[16,32:32,1].fp16.SH.S<2,4,3>
%full:[1:1].mbar.SH
%from:[2,1:256,32].[8,32:32,1].fp16.GL = %in.tile(8, 32)
%to:[2,1:256,32].[8,32:32,1].fp16.SH.S<2,4,3> = %s.tile(8, 32)
role #warp[0] {
%full[0] <- Init<1><<<#grid,#one>>>()
Fence<init><<<#grid,#one>>>()
}
Sync<<<#pair,#warp>>>()
for(@round = 0; @round < 2; @round += 1) {
role #warp[0] {
%full[0] <- Arrive<1024><<<#grid,#one>>>()
%to[@rank, 0] <- Move<<<#pair,#one>>>(%from[@rank, 0]) signals %full[0]
}
%full[0] <- Wait<@round><<<#grid,#warp>>>()
for(@i = 0; @i < 16; @i += 1) {
%r:[].fp16.RF
%r <- Move<<<#grid,#one>>>(%s[@i, @lane])
if(@round == 1) {
%out[@rank, @i, @lane] <- Move<<<#grid,#one>>>(%r)
}
}
// All blocks have read it.
Sync<<<#pair,#warp>>>()
}
}";

#[test]
fn copies_go_to_all_blocks_of_a_cluster() {
    let kernel = parse(MULTICAST).unwrap();
    for outcome in run_all(&kernel, &[]) {
        check_clean("multicast", &outcome);
        let half: Vec<Option<f64>> = (0..512).map(|i| Some(small(i))).collect();
        assert_eq!(outcome.buffers["out"], [half.clone(), half].concat());
    }
    let mutants = [
        ("Fence<init><<<#grid,#one>>>()\n", "missing fence"),
        ("// All blocks have read it.\nSync<<<#pair,#warp>>>()\n", "in flight or race"),
        ("%full[0] <- Wait<@round><<<#grid,#warp>>>()\n", "in flight or uninitialised"),
    ];
    for (line, expected) in mutants {
        let mutant = MULTICAST.replacen(line, "", 1);
        assert_ne!(mutant, MULTICAST);
        check_fault(line, expected, &parse(&mutant).unwrap());
    }
}

#[test]
fn vectors_are_aligned_for_the_sizes_given() {
    let kernel = parse(
        "kernel vectors sm_80 (@K)
        %in:[32,@K:@K,1].fp32.GL
        %out:[32,2:2,1].fp32.GL
        #grid:[1:1].block
        #block:[32:1].thread
        %out <- Fused{slice(%0, 1, 0, 2)}<<<#grid,#block>>>(%in) {
        #one:[].thread = #block.scalar()
        @t = #block.indices()
        %from:[32,(@K + 1)/2:@K,2].[1,2:0,1].fp32.GL = %in.tile(1, 2)
        %to:[32,1:2,2].[1,2:0,1].fp32.GL = %out.tile(1, 2)
        %r:[2:1].fp32.RF
        %r <- Move<<<#grid,#one>>>(%from[@t, 0])
        %to[@t, 0] <- Move<<<#grid,#one>>>(%r)
        }",
    )
    .unwrap();
    check_clean("4 columns", &run(&kernel, &[("K", 4)], None));
    let found = run(&kernel, &[("K", 3)], None).findings;
    assert_eq!(
        found.iter().map(|finding| kind(&finding.fault)).collect::<Vec<_>>(),
        ["misaligned"]
    );
    assert_eq!(found[0].lane, Some(1));
}

/// What a finding says.
#[test]
fn findings_name_both_statements() {
    let text = example("bulk_load").to_string();
    let lines: Vec<&str> = text.lines().filter(|line| !line.contains("Wait<0>")).collect();
    let outcome = run(&parse(&lines.join("\n")).unwrap(), &[], None);
    let finding = &outcome.findings[0];
    assert!(finding.statement.text.contains("%s[@i, @lane]"), "{finding}");
    assert!(finding.other.as_ref().unwrap().text.contains("signals %full[0]"), "{finding}");
}

#[test]
fn several_findings_are_collected() {
    let text = example("bar_sync").to_string();
    let lines: Vec<&str> = text.lines().filter(|line| !line.contains("Sync")).collect();
    let kernel = parse(&lines.join("\n")).unwrap();
    let options = Options { findings: 9, ..Options::default() };
    let outcome = simulate(&kernel, &inputs(&kernel, &[]), &options).unwrap();
    let kinds: Vec<&str> = outcome.findings.iter().map(|finding| kind(&finding.fault)).collect();
    // One warp reads what nothing has written, the other writes that and reads what the first writes.
    assert_eq!(kinds, ["uninitialised", "race", "race"], "{:#?}", outcome.findings);
}

/// A loop of more rounds than anybody waits for ends in a fault that names it.
#[test]
fn loops_without_an_end_are_found() {
    let text = "\
kernel endless sm_80 (@N)
%x:[32:1].fp32.GL
%y:[32:1].fp32.GL
#grid:[1:1].block
#block:[32:1].thread
%y <- Move<<<#grid, #block>>>(%x) {
  #one:[].thread = #block.scalar()
  @t = #block.indices()
  %v:[].fp32.RF
  for(@i = 0; @i < 3; @i += 1) {
    for(@j = 0; @j < @N; @j += 1) {
      %v <- Move<<<#grid, #one>>>(%x[@t])
    }
  }
  %y[@t] <- Move<<<#grid, #one>>>(%v)
}
";
    let kernel = parse(text).unwrap();
    let run = |n: i64, rounds: u64| {
        let options = Options { rounds, ..Options::default() };
        simulate(&kernel, &inputs(&kernel, &[("N", n)]), &options).unwrap().findings
    };
    assert_eq!(run(5, 18), []);
    for (n, rounds) in [(5, 17), (1 << 40, 1000)] {
        let [finding] = &run(n, rounds)[..] else { panic!("one finding") };
        let text = finding.to_string();
        let loops = text.contains("rounds") && text.contains("statement");
        assert!(loops && text.contains("for(@"), "{text}");
    }
    let text = run(1 << 40, 1000)[0].to_string();
    assert!(text.contains("for(@j = 0; @j < @N; @j += 1)"), "{text}");
}

#[test]
fn costs_are_counted() {
    let kernel = example("bar_sync");
    let total = run(&kernel, &[], None).costs.total();
    assert_eq!((total.global.read, total.global.written), (256, 256));
    assert_eq!((total.shared.read, total.shared.written), (256, 256));
    assert_eq!((total.sectors, total.conflicts), (16, 0));
    let costs = run(&kernel, &[], None).costs.statements;
    let syncs = costs.iter().filter(|cost| cost.atom == "bar.sync").map(|cost| cost.executions);
    assert_eq!(syncs.sum::<u64>(), 2);
    // Rows of 32 bytes: of eight, the fifth lies in the banks of the first.
    let costs = run(&example("ldmatrix_x4"), &[], None).costs;
    let cost = costs.statements.iter().find(|cost| cost.atom == "ldmatrix.x4").unwrap();
    assert_eq!((cost.executions, cost.conflicts, cost.shared.read), (1, 4, 512));
}

#[test]
fn what_is_missing_is_an_error() {
    let kernel = Gemm::default().kernel().unwrap();
    let error = simulate(&kernel, &Inputs::default(), &Options::default()).unwrap_err();
    assert!(error.to_string().contains("has no value"), "{error}");
    let mut short = inputs(&kernel, &[("M", 8), ("N", 8), ("K", 8), ("blocks", 1)]);
    short.buffers.insert("A".to_owned(), Buffer::Undefined(63));
    let error = simulate(&kernel, &short, &Options::default()).unwrap_err();
    assert!(error.to_string().contains("64 elements"), "{error}");
}
