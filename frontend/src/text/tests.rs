//! Round trips, exact elements, errors with their places, and text damaged at random.

use super::{GraphText, MAX_INLINE, content_hash, parse, print};
use crate::dtype::DType;
use crate::graph::Graph;
use crate::op::{Op, ReduceOp, Unary};
use crate::tensor::Tensor;
use crate::verify::verify;
use half::{bf16, f16};
use std::collections::BTreeSet;

mod damage;

/// Graphs in the exact text that printing gives, every operation among them.
pub(super) const SAMPLES: [&str; 8] = [
    include_str!("tests/sources.txt"),
    include_str!("tests/pointwise.txt"),
    include_str!("tests/movement.txt"),
    include_str!("tests/reduce.txt"),
    include_str!("tests/matmul.txt"),
    include_str!("tests/layer.txt"),
    include_str!("tests/control.txt"),
    "return\n",
];

fn graph(text: &str) -> Graph {
    parse(text, &[]).unwrap_or_else(|error| panic!("{error}\n{text}"))
}

fn check_round_trip(graph: &Graph) -> GraphText {
    let printed = print(graph);
    let parsed = parse(&printed.text, &printed.weights)
        .unwrap_or_else(|error| panic!("{error}\n{}", printed.text));
    assert_eq!(&parsed, graph, "{}", printed.text);
    printed
}

#[test]
fn samples_print_as_they_are_written() {
    for text in SAMPLES {
        let graph = graph(text);
        assert_eq!(verify(&graph), Ok(()), "{text}");
        assert_eq!(check_round_trip(&graph).text, text);
    }
}

/// The variants of an enum, read from its definition, so that none can be forgotten here.
fn variants(name: &str) -> BTreeSet<String> {
    let source = [include_str!("../op.rs"), include_str!("../op/attributes.rs")].concat();
    let start = source.find(&format!("pub enum {name} {{\n")).unwrap();
    let body = &source[start..start + source[start..].find("\n}\n").unwrap()];
    let rows = body.lines().filter_map(|line| line.strip_prefix("    "));
    let rows = rows.filter(|row| row.starts_with(|c: char| c.is_ascii_uppercase()));
    rows.map(|row| row.split(|c: char| !c.is_alphanumeric()).next().unwrap().to_owned()).collect()
}

fn debug_names<T: std::fmt::Debug>(values: impl IntoIterator<Item = T>) -> BTreeSet<String> {
    let name = |value| format!("{value:?}").split([' ', '(']).next().unwrap().to_owned();
    values.into_iter().map(name).collect()
}

#[test]
fn tables_hold_every_variant() {
    assert_eq!(debug_names(ReduceOp::ALL), variants("ReduceOp"));
    let mut ops = debug_names(Op::prototypes());
    ops.extend(["Input".to_owned(), "Constant".to_owned()]);
    assert_eq!(ops, variants("Op"));
}

#[test]
fn samples_hold_every_variant() {
    fn collect(graph: &Graph, ops: &mut Vec<Op>) {
        for (_, node) in graph.nodes() {
            ops.push(node.op().clone());
            node.op().bodies().into_iter().for_each(|body| collect(body, ops));
        }
    }
    let mut ops = Vec::new();
    SAMPLES.iter().for_each(|text| collect(&graph(text), &mut ops));
    // Its size depends on values, so no graph can hold it.
    let mut expected = variants("Op");
    expected.remove("NonZero");
    assert_eq!(debug_names(&ops), expected);
}

#[test]
fn every_named_operation_reads_its_own_attributes() {
    for &unary in Unary::ALL {
        let taken = [DType::F32, DType::I32, DType::Bool];
        let takes = unary.info().class.takes();
        let dtype = taken.into_iter().find(|&dtype| takes.is_none_or(|own| own.contains(dtype)));
        let dtype = dtype.unwrap();
        let mut graph = Graph::new();
        let x = graph.add_constant("x", Tensor::zeros(dtype, vec![2]).unwrap());
        graph.add("y", Op::Unary(unary), &[Some(x)]).unwrap();
        check_round_trip(&graph);
    }
}

fn constant(tensor: Tensor) -> Graph {
    let mut graph = Graph::new();
    let value = graph.add_constant("c", tensor);
    graph.add_output("y", value);
    graph
}

#[test]
fn elements_are_exact() {
    let f32s = [0.0, -0.0, 0.1, 1e-45, f32::MAX, f32::MIN_POSITIVE, f32::INFINITY, -f32::INFINITY];
    let nans = [0x7fc0_0000, 0xffc0_0001, 0x7f80_0001].map(f32::from_bits);
    let f64s = [0.1, -0.0, 5e-324, f64::MAX, f64::NAN, f64::from_bits(0xfff0_0000_0000_0001)];
    let values: Vec<_> = (0..MAX_INLINE as u16).map(|i| f16::from_bits(i * 2047)).collect();
    let bfloats: Vec<_> = (0..MAX_INLINE as u16).map(|i| bf16::from_bits(i * 2047)).collect();
    let tensors = [
        Tensor::from_vec(vec![2, 4], f32s.to_vec()),
        Tensor::from_vec(vec![3], nans.to_vec()),
        Tensor::from_vec(vec![6], f64s.to_vec()),
        Tensor::from_vec(vec![MAX_INLINE], values),
        Tensor::from_vec(vec![MAX_INLINE], bfloats),
        Tensor::from_vec(vec![2], vec![i64::MIN, i64::MAX]),
        Tensor::from_vec(vec![2], vec![0, u64::MAX]),
        Tensor::from_bools(vec![2], vec![false, true]),
        Tensor::new(DType::Bool, vec![1], vec![7].into()),
        Tensor::from_vec(vec![0, 3], Vec::<f32>::new()),
    ];
    for tensor in tensors {
        let printed = check_round_trip(&constant(tensor.unwrap()));
        assert!(printed.weights.is_empty(), "{}", printed.text);
    }
    for dtype in DType::all() {
        let bytes: Vec<u8> = (0..16 * dtype.size()).map(|i| (i * 37) as u8).collect();
        let tensor = Tensor::new(dtype, vec![4, 4], bytes.into()).unwrap();
        check_round_trip(&constant(tensor));
    }
}

#[test]
fn large_constants_are_references() {
    let weight = |first: f32| {
        let mut data: Vec<f32> = (0..33).map(|i| i as f32).collect();
        data[0] = first;
        Tensor::from_vec(vec![33], data).unwrap()
    };
    let graph = constant(weight(0.0));
    let printed = check_round_trip(&graph);
    assert_eq!(printed.weights.len(), 1);
    for weights in [vec![], vec![weight(1.0)], vec![weight(0.0).reshaped(vec![3, 11]).unwrap()]] {
        assert!(parse(&printed.text, &weights).is_err());
    }
    assert_ne!(content_hash(&weight(0.0)), content_hash(&weight(-0.0)));
}

#[test]
fn names_are_escaped() {
    let name = "a \"b\"\\ \n\t\u{7f} # % é 漢";
    let mut graph = Graph::new();
    let x = graph.add_input(name, "f32[`two, (words`, floor(a + 1, 2)]".parse().unwrap()).unwrap();
    graph.add_output(name, x);
    check_round_trip(&graph);
}

#[test]
fn comments_and_spaces_do_not_matter() {
    let spaced = "# A graph.\nsymbols n # one\n %0=Input:f32[ n ]\"x\"  %1\n= Exp( %0 ) : f32[n] \"y\" \
                  # exponential\nreturn \"out\"=%1 # done";
    let plain =
        "symbols n\n%0 = Input : f32[n] \"x\"\n%1 = Exp(%0) : f32[n] \"y\"\nreturn \"out\" = %1\n";
    assert_eq!(print(&graph(spaced)).text, plain);
}

#[test]
fn errors_name_the_place() {
    let rows = [
        ("", "line 1, column 1: expected `return`"),
        ("return x", "line 1, column 8: expected the end of the text"),
        ("%1 = Input : f32[] \"x\"", "line 1, column 1: the next node is %0"),
        ("%0 = Foo()", "line 1, column 6: `Foo` is no operation"),
        ("%0 = Input : f33[] \"x\"", "line 1, column 14: `f33` is no element type"),
        ("%0 = Input : f32[] x", "line 1, column 20: expected a name in quotes"),
        ("%0 = Input : f32[] \"x", "line 1, column 20: expected a name in quotes, closed"),
        ("%0 = Exp(%0)", "line 1, column 11: there is no value `0` here"),
        ("%0 = Iota {sise: 3}", "line 1, column 12: expected `size`"),
        ("%0 = Iota {size: 3} : f32[3] \"i\"", "line 1, column 23: the types here are i64[3]"),
        ("%0 = Iota {size: } : f32[3] \"i\"", "line 1, column 18: not a dimension"),
        ("%0 = Constant(1) : i8[2] \"i\"", "line 1, column 14: these elements make no i8[2]"),
        ("%0 = Constant(300) : i8[1] \"i\"", "line 1, column 14: these elements make no i8[1]"),
        ("%0 = Constant(0.1) : f16[1] \"i\"", "line 1, column 14: these elements make no f16[1]"),
        ("%0 = Constant(nan) : f32[1] \"i\"", "line 1, column 14: these elements make no f32[1]"),
        ("%0 = Constant(@3 0) : i8[1] \"i\"", "line 1, column 14: there is no weight @3"),
        ("%0 = Input : f32[n] \"x\"\nreturn", "line 1, column 1: the graph's symbols are n"),
        (
            "%0 = Input : i32[2] \"x\"\n  %1 = Exp(%0) : i32[2] \"y\"",
            "line 2, column 8: input 0 must",
        ),
        ("%0 = Input : i32[2] \"x\"\nreturn \"y\" = %0.1", "line 2, column 15: there is no value"),
    ];
    for (text, expected) in rows {
        let error = parse(text, &[]).expect_err(text).to_string();
        assert!(error.starts_with(expected), "{text}\n{error}");
    }
}

#[test]
fn nesting_is_bounded() {
    let deep = "%0 = Loop {carried: 0, body: {".repeat(100_000);
    let error = parse(&deep, &[]).unwrap_err().to_string();
    assert!(error.contains("more than 16 deep"), "{error}");
    for text in ["[".repeat(100_000), format!("symbols {}", "(".repeat(100_000))] {
        assert!(parse(&text, &[]).is_err());
    }
}
