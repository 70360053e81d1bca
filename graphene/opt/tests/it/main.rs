//! The command as its user sees it: output, messages and exit codes.

// The checks that the tests share are not themselves marked as tests.
#![allow(clippy::unwrap_used)]

use std::process::{Command, Output};

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
    assert!(page.contains("<title>S&lt;1,0,1&gt; o 0 o (2,2):(2,1)</title>"));
    check_svg("row", "4:1", 0, 4);
    check_svg("rank", "(2,2,2):(1,2,4)", 3, 0);
    check_svg("large", "(1000,1000):(1,1000)", 3, 0);
    check_svg("number", "size(4:1)", 3, 0);
}
