//! The notation: what parses, and how what does not is reported.

use graphene_ir::layout::Layout;
use graphene_ir::{Error, Result};
use graphene_opt::expr;

fn check_syntax(text: &str, position: usize, message: &str) {
    let error = expr::evaluate(text).unwrap_err();
    assert_eq!(error.position(), Some(position), "{text}: {error}");
    assert_eq!(error.to_string(), message, "{text}");
}

#[test]
fn notation_errors_have_a_position() {
    check_syntax("", 0, "expected an integer, a tuple, a layout or a function");
    check_syntax("(4,", 3, "expected an integer, a tuple, a layout or a function");
    check_syntax("(4,2", 4, "expected `,` or `)`");
    check_syntax("4:1 2", 4, "expected the end, `:` or `o`");
    check_syntax("4:1:2", 3, "expected the end, `:` or `o`");
    check_syntax("99999999999999999999:1", 0, "expected an integer of 64 bits");
    check_syntax("S<1,2>", 5, "expected a swizzle such as S<3,4,3>");
    check_syntax("size 4:1", 5, "expected `(`");
    check_syntax("size(nonsense(4))", 5, "unknown function `nonsense`");
    check_syntax("size(4, 5)", 0, "wrong arguments; usage: size(layout or shape)");
    check_syntax("(4:1, 5)", 0, "wrong arguments; usage: (a,b): integers, or layouts, or tilers");
    check_syntax("4 o 4:1", 0, "wrong arguments; usage: layout o layout");
    check_syntax("4:1@", 4, "expected an integer, a tuple, a layout or a function");
    check_syntax("4:1@-1", 4, "expected an axis, from 0 on");
    check_syntax("size(coalesce(4))", 5, "wrong arguments; usage: coalesce(layout[, profile])");
    check_syntax(
        "stride(S<1,0,1> o 0 o 4:1)",
        0,
        "wrong arguments; usage: stride(layout), without a swizzle",
    );
    check_syntax(&"(".repeat(100_000), 64, "expected fewer levels of nesting");
    check_syntax(&"<".repeat(100_000), 64, "expected fewer levels of nesting");
    check_syntax(&"rank(".repeat(100_000), 320, "expected fewer levels of nesting");
}

fn check_algebra(text: &str, matches: fn(&Error) -> bool) {
    let error = expr::evaluate(text).unwrap_err();
    let reason = matches!(&error, expr::Error::Algebra(reason) if matches(reason));
    assert!(error.position().is_none() && reason, "{text}: {error:?}");
}

#[test]
fn algebra_errors_have_reasons() {
    check_algebra("0:1", |e| matches!(e, Error::Size(0)));
    check_algebra("(-4,2):(1,1)", |e| matches!(e, Error::Size(-4)));
    check_algebra("(4,2):1", |e| matches!(e, Error::Profile { .. }));
    check_algebra("(4,(2)):(1,4)", |e| matches!(e, Error::Profile { .. }));
    check_algebra("crd2idx((1,2,3),(4,2):(1,4))", |e| matches!(e, Error::Profile { .. }));
    check_algebra("idx2crd(8,(4,2))", |e| matches!(e, Error::Index { index: 8, size: 8 }));
    check_algebra("3:4611686018427387904", |e| matches!(e, Error::Overflow));
    check_algebra("(4294967296,4294967296):(0,0)", |e| matches!(e, Error::Overflow));
    check_algebra("2:-9223372036854775808", |e| matches!(e, Error::Overflow));
    check_algebra("size((4294967296,4294967296))", |e| matches!(e, Error::Overflow));
    check_algebra("logical_product(4294967296:1,4294967296:1)", |e| matches!(e, Error::Overflow));
    check_algebra("crd2idx(9223372036854775807, 4:2)", |e| matches!(e, Error::Overflow));
    check_algebra("composition(4:1,(1,1))", |e| matches!(e, Error::Rank { .. }));
    check_algebra("logical_divide((4,4):(1,4),(1,1,1))", |e| matches!(e, Error::Rank { .. }));
    check_algebra("coalesce((4,4):(1,4),(1,1,1))", |e| matches!(e, Error::Rank { .. }));
    check_algebra("zipped_divide((4,4):(1,4),<_,2>)", |e| matches!(e, Error::WholeMode { .. }));
    check_algebra("tile_to_shape(3:1,(4,4))", |e| matches!(e, Error::BlockShape { .. }));
    check_algebra("S<3,4,2>", |e| matches!(e, Error::Swizzle { .. }));
    check_algebra("crd2idx(1, S<3,4,3> o -8 o 4:1)", |e| matches!(e, Error::NegativeOffset(-7)));
    check_algebra("complement(4:-1,8)", |e| matches!(e, Error::NegativeStride { .. }));
    check_algebra("complement((2,2):(1,3),12)", |e| matches!(e, Error::NoTiling { .. }));
    check_algebra("left_inverse((2,2):(1,1))", |e| matches!(e, Error::NotInjective { .. }));
    // CuTe's static assertion rejects this one; pycute returns a layout of two elements.
    check_algebra("composition((8,8):(8,1),4:3)", |e| matches!(e, Error::Divisibility { .. }));
    // Each mode of the right side divides, and CuTe returns (3,2):(8,24), which is wrong at 4.
    check_algebra("composition((4,8):(8,1),(3,2):(1,3))", |e| matches!(e, Error::Carry { .. }));
    // The same at sizes where not every element can be tried.
    check_algebra(
        "composition((1099511627776,8):(8,1),(1099511627775,2):(1,1099511627775))",
        |e| matches!(e, Error::Carry { .. }),
    );
}

/// Evaluates, and if there is a value checks that it reads back as itself.
fn check_total(text: &str) -> bool {
    let Ok(value) = expr::evaluate(text) else { return false };
    assert_eq!(expr::evaluate(&value.to_string()), Ok(value), "{text}");
    true
}

#[test]
fn every_call_has_an_answer_or_a_reason() {
    let functions = [
        "coalesce",
        "flatten",
        "composition",
        "complement",
        "left_inverse",
        "right_inverse",
        "logical_divide",
        "zipped_divide",
        "tiled_divide",
        "flat_divide",
        "logical_product",
        "zipped_product",
        "tiled_product",
        "flat_product",
        "blocked_product",
        "raked_product",
        "tile_to_shape",
        "make_layout",
        "size",
        "cosize",
        "rank",
        "depth",
        "shape",
        "stride",
        "crd2idx",
        "idx2crd",
    ];
    let values = [
        "-1",
        "0",
        "3",
        "4",
        "9223372036854775807",
        "-9223372036854775808",
        "(2,3)",
        "((2,2),3)",
        "(1,(4294967296,2147483647))",
        "1:0",
        "1:9223372036854775807",
        "4:2",
        "6:-1",
        "4:0",
        "2:9223372036854775806",
        "9223372036854775807:1",
        "4611686018427387904:-2",
        "(4):(1)",
        "(2,3):(3,1)",
        "((2,2),4):((1,8),2)",
        "(3,1,5):(7,-9223372036854775808,2)",
        "(2147483648,2147483648):(2147483647,1)",
        "(3,5,7):(4611686018427387904,0,-3)",
        "_",
        "<2,_>",
        "<2:1,<2,3>>",
        "S<2,1,3>",
        "S<30,2,-30>",
        "S<2,1,3> o -7 o (4,8):(8,1)",
        "S<2,1,3> o 9223372036854775807 o 4:1",
    ];
    let mut answered = 0;
    for function in functions {
        for first in values {
            answered += i32::from(check_total(&format!("{function}({first})")));
            for second in values {
                answered += i32::from(check_total(&format!("{function}({first},{second})")));
                check_total(&format!("{function}({second},{first},{second})"));
            }
        }
    }
    assert!(answered > 1500, "{answered}");
}

#[test]
fn any_text_has_an_answer_or_a_reason() {
    let tokens = [
        "(",
        ")",
        "(",
        ")",
        "<",
        ">",
        ",",
        ",",
        ":",
        ":",
        " o ",
        "o",
        "_",
        "-",
        "S<2,1,3>",
        "S",
        "0",
        "1",
        "2",
        "3",
        "(2,3):(3,1)",
        "4:2",
        "coalesce(",
        "composition(",
        "size",
        "\u{e9}",
    ];
    let mut state: u64 = 1;
    for _ in 0..100_000 {
        let mut text = String::new();
        for _ in 0..7 {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            text.push_str(tokens[usize::try_from(state >> 33).unwrap() % tokens.len()]);
        }
        check_total(&text);
    }
}

#[test]
fn carries_that_cancel_are_layouts_if_they_can_be_tried() {
    // 3 = (1,1,0) and 4 = (0,0,1): 7 = 1 + 6, although the sum carries twice.
    let value = expr::evaluate("composition((2,2,2):(1,5,7),(2,2):(1,3))").unwrap();
    assert_eq!(value.to_string(), "(2,2):(1,6)");
    check_algebra("composition((2,2,2):(1,5,7),(2,2,1099511627776):(1,3,8))", |e| {
        matches!(e, Error::Undecided { .. })
    });
}

#[test]
fn a_layout_is_read_from_a_literal_only() {
    let read = |text: &str| -> Result<Layout> { text.parse() };
    assert_eq!(read(" ( 4 , 2 ) : ( 1 , 4 ) ").unwrap().to_string(), "(4,2):(1,4)");
    assert_eq!(read("((4),2):((1@1),-8@0)").unwrap().to_string(), "((4),2):((1@1),-8@0)");
    for text in ["coalesce(4:1)", "4:1 o 4:1", "4", "S<1,0,1>", "S<1,0,1> o 0 o 4:1", "_", "<4>"] {
        assert!(matches!(read(text), Err(Error::Text { .. })), "{text}");
    }
}

#[test]
fn values_print_as_they_parse() {
    for text in [
        "4",
        "(4,(-2,3))",
        "((2,2),3):((24,2),8)",
        "(4):(1)",
        "()",
        "():()",
        "(4,8):(1@0,64@1)",
        "Sw<3,4,-3>",
        "Sw<3,4,3> o 8 o (5,4):(4,1)",
        "(4,2):(2,1) o 2 o (2,2):(1,2)",
        "(4,8):(8,1) o 1@0 o (2,2):(1@0,2@1)",
        "<3:4,<_,8:2>>",
    ] {
        assert_eq!(expr::evaluate(text).unwrap().to_string(), text);
    }
}
