//! The command as its user sees it: output, messages and exit codes.

// The checks that the tests share are not themselves marked as tests.
#![allow(clippy::unwrap_used)]

mod cute;
mod expression;

use std::io::Write;
use std::process::{Command, Output, Stdio};

fn run(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_graphene-opt")).args(args).output().unwrap()
}

fn check_layout(expression: &str, code: i32, stdout: &str, stderr: &str) {
    let output = run(&["layout", expression]);
    assert_eq!(output.status.code(), Some(code), "{expression}");
    assert_eq!(String::from_utf8(output.stdout).unwrap(), stdout, "{expression}");
    assert_eq!(String::from_utf8(output.stderr).unwrap(), stderr, "{expression}");
}

#[test]
fn layouts() {
    let expression = "composition((6,2):(8,2), (4,3):(3,1))";
    check_layout(expression, 0, "((2,2),3):((24,2),8)\n", "");
    check_layout("4:-1", 0, "4:-1\n", "");
    check_layout(
        "composition((6,2):(8,2), (4,3):(3,1)",
        2,
        "",
        "error: expected `,` or `)`\n  composition((6,2):(8,2), (4,3):(3,1)\n  \
         \x20                                   ^\n",
    );
    check_layout(
        "compose(4:1,2:1)",
        2,
        "",
        "error: unknown function `compose`\n  compose(4:1,2:1)\n  ^\n",
    );
    check_layout(
        "size(\u{e9})",
        2,
        "",
        "error: expected an integer, a tuple, a layout or a function\n  size(\u{e9})\n       ^\n",
    );
    check_layout(
        "composition((4,6):(1,8), 6:1)",
        3,
        "",
        "error: composition: (4,6):(1,8) o 6:1 is not a layout: it is regular for 4 elements, \
         which do not divide 6\n",
    );
    assert_eq!(run(&["layout"]).status.code(), Some(2));
    assert_eq!(run(&["nothing"]).status.code(), Some(2));
}

fn check_svg(name: &str, expression: &str, code: i32, cells: usize) -> String {
    let file = std::env::temp_dir().join(format!("graphene-opt-{}-{name}.svg", std::process::id()));
    let output = run(&["layout", expression, "--svg", file.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(code), "{expression}");
    let page = std::fs::read_to_string(&file).unwrap_or_default();
    std::fs::remove_file(&file).ok();
    assert_eq!(page.matches("<rect").count(), cells, "{expression}");
    page
}

#[test]
fn drawings() {
    // The labels of the rows and columns, then the offsets, column by column.
    let page = check_svg("plain", "(2,3):(30,10)", 0, 6);
    let numbers: Vec<&str> = page
        .lines()
        .filter_map(|line| line.strip_suffix("</text>")?.split('>').next_back())
        .collect();
    assert_eq!(numbers, ["0", "1", "0", "0", "30", "1", "10", "40", "2", "20", "50"]);
    let page = check_svg("swizzle", "S<1,0,1> o 0 o (2,2):(2,1)", 0, 4);
    assert!(page.contains("<title>Sw&lt;1,0,1&gt; o 0 o (2,2):(2,1)</title>"));
    check_svg("row", "4:1", 0, 4);
    check_svg("rank", "(2,2,2):(1,2,4)", 3, 0);
    check_svg("large", "(1000,1000):(1,1000)", 3, 0);
    check_svg("number", "size(4:1)", 3, 0);
}

#[test]
fn drawings_of_owners() {
    // Two by two threads with two neighbours each: mma's accumulator, smaller.
    let file = std::env::temp_dir().join(format!("graphene-opt-{}-owners.svg", std::process::id()));
    let expression = "((2,2),2):((4,1),2)";
    let file_name = file.to_str().unwrap();
    let output = run(&["layout", expression, "--svg", file_name, "--owners", "2x4"]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let page = std::fs::read_to_string(&file).unwrap();
    let names: Vec<&str> = page
        .lines()
        .filter_map(|line| line.strip_suffix("</text>")?.split('>').next_back())
        .filter(|words| words.starts_with('T'))
        .collect();
    // Offset 4 is the first cell of the third column: thread 1's first value.
    let expected = ["T0 V0", "T2 V0", "T0 V1", "T2 V1", "T1 V0", "T3 V0", "T1 V1", "T3 V1"];
    assert_eq!(names, expected);
    let small = ["layout", expression, "--svg", file_name, "--owners", "2x3"];
    assert_eq!(run(&small).status.code(), Some(3));
    let wrong = ["layout", expression, "--svg", file_name, "--owners", "2"];
    assert_eq!(run(&wrong).status.code(), Some(2));
    // And mma's accumulator itself, whose places are rows and columns.
    let of_mma = ["layout", "MMA_16X8_C", "--svg", file_name, "--owners", "16x8"];
    assert_eq!(run(&of_mma).stdout, b"((4,8),(2,2)):((2@1,1@0),(8@0,1@1))\n");
    let page = std::fs::read_to_string(&file).unwrap();
    let first =
        page.lines().filter_map(|line| line.strip_suffix("</text>")?.split('>').next_back());
    let first: Vec<&str> = first.filter(|words| words.starts_with('T')).take(9).collect();
    assert_eq!((first[0], first[1], first[8]), ("T0 V0", "T4 V0", "T0 V1"));
    std::fs::remove_file(&file).ok();
}

/// A warp that doubles numbers by adding each to itself.
const DOUBLE: &str = "kernel twice sm_80 (@N)
%in:[@N:1].fp32.GL
%out:[@N:1].fp32.GL
#grid:[1:1].block
#warp:[32:1].thread
%out <- Fused{%0 + %0}<<<#grid, #warp>>>(%in) {
  @lane = #warp.indices()
  #one:[].thread = #warp.scalar()
  %r:[].fp32.RF
  if(@lane < @N) {
    %r <- Move<<<#grid, #one>>>(%in[@lane])
    %r <- BinaryPointwise<+><<<#grid, #one>>>(%r, %r)
    %out[@lane] <- Move<<<#grid, #one>>>(%r)
  }
}
";

fn check_kernel(kernel: &str, args: &[&str], code: i32, stdout: &str, stderr: &str) {
    let mut child = Command::new(env!("CARGO_BIN_EXE_graphene-opt"))
        .args([&args[..1], &["-"], &args[1..]].concat())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(kernel.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    let (out, err) = (text(output.stdout), text(output.stderr));
    assert_eq!((output.status.code(), &*err), (Some(code), stderr), "{args:?}: {out}");
    assert!(out.starts_with(stdout) && stdout.is_empty() == out.is_empty(), "{args:?}: {out}");
}

#[test]
fn kernels() {
    check_kernel(DOUBLE, &["print"], 0, DOUBLE, "");
    let tree = "kernel twice sm_80\n%out:[@N].GL <- Fused{%0 + %0}<<<#grid:[1], #warp:[32]>>>(%in:[@N].GL)\n  \
                Move x2, BinaryPointwise\n";
    check_kernel(DOUBLE, &["tree"], 0, tree, "");
    check_kernel(DOUBLE, &["verify"], 0, "", "");
    check_kernel(DOUBLE, &["emit"], 0, "// twice: generated by Graphene for sm_80.\n", "");
    let sm_90a = "// twice: generated by Graphene for sm_90a.\n";
    check_kernel(DOUBLE, &["emit", "--arch", "sm_90a"], 0, sm_90a, "");
    let launch = "twice for sm_80\ngrid 1, cluster 1, block 32, shared 0\n\
                  pointer %in: @N of fp32, read\npointer %out: @N of fp32, written\nsymbol @N\n";
    check_kernel(DOUBLE, &["emit", "--launch"], 0, launch, "");
    check_kernel(DOUBLE, &["emit", "--after", "lower"], 0, "// twice: generated by", "");
    let passes = String::from_utf8(run(&["passes"]).stdout).unwrap();
    assert!(passes.starts_with("lower    statements of C"), "{passes}");
    assert_eq!(run(&["emit", "-", "--after", "nothing"]).status.code(), Some(2));
    let sized = ["simulate", "--size", "N=20", "--seeds", "3"];
    let costs = "statement 4 ld.global: 1 times; global 80 read, 0 written, ";
    check_kernel(DOUBLE, &sized, 0, costs, "");
}

#[test]
fn wrong_kernels() {
    let name = "error: -:1:7: expected the kernel's name, found the end\n";
    check_kernel("kernel", &["print"], 2, "", name);
    let missing = "error: @N has no value: give one by --size N=N\n";
    check_kernel(DOUBLE, &["simulate"], 2, "", missing);
    let open = DOUBLE.replace("@lane < @N", "0 < @N");
    let outside = "error: %in[20] is read or written out of bounds; in statement 4: %r <- Move<<<#grid, \
                   #one>>>(%in[@lane]); block 0, warp 0, lane 20\n\
                   error: %r[] is read before it is written; in statement 5: %r <- \
                   BinaryPointwise<+><<<#grid, #one>>>(%r, %r); block 0, warp 0, lane 20\n\
                   error: %out[20] is read or written out of bounds; in statement 6: %out[@lane] \
                   <- Move<<<#grid, #one>>>(%r); block 0, warp 0, lane 20\n\
                   error: found with seed 0\n";
    let unproven = "error: Inside: spec 2: nothing says that @lane < @N for [].fp32.GL\n\
                    error: Inside: spec 4: nothing says that @lane < @N for [].fp32.GL\n";
    let scalars = "error: %r <- Move<<<#grid, #one>>>(%in[@lane]): no atom carries this out; \
                   near ones: []\n";
    check_kernel(&open, &["simulate", "--size", "N=20"], 3, "", outside);
    check_kernel(&open, &["verify"], 3, "", unproven);
    let two = DOUBLE.replace("%r:[].fp32.RF", "%r:[2:1].fp32.RF");
    check_kernel(&two, &["emit"], 3, "", scalars);
}
