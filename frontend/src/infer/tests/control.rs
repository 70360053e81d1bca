//! Control flow.

use super::check;
use crate::graph::Graph;
use crate::op::{Binary, Op, ScanAttrs};

/// A body with these inputs that gives the ones listed, by place; -1 is the sum of the last two inputs.
fn body(inputs: &str, outputs: &[i32]) -> Graph {
    let mut graph = Graph::new();
    let mut values = Vec::new();
    for (i, ty) in inputs.split(';').filter(|ty| !ty.trim().is_empty()).enumerate() {
        values.push(graph.add_input(&format!("x{i}"), ty.parse().unwrap()).unwrap());
    }
    for (i, &output) in outputs.iter().enumerate() {
        let value = match usize::try_from(output) {
            Ok(place) => values[place],
            Err(_) => {
                let last = [Some(values[values.len() - 2]), values.last().copied()];
                graph.add("sum", Op::Binary(Binary::Add), &last).unwrap().value()
            }
        };
        graph.add_output(&format!("y{i}"), value);
    }
    graph
}

#[test]
fn branches() {
    let branch = |a: (&str, &[i32]), b: (&str, &[i32])| Op::If {
        then_branch: Box::new(body(a.0, a.1)),
        else_branch: Box::new(body(b.0, b.1)),
    };
    let two = "f32[n]; f32[n]";
    let rows = [
        (branch((two, &[0]), (two, &[-1])), "bool[]; f32[n]; f32[n]", "f32[n]"),
        (branch((two, &[0]), (two, &[-1])), "bool[1]; f32[n]; f32[n]", "!Rank"),
        (branch((two, &[0]), (two, &[-1])), "f32[]; f32[n]; f32[n]", "!DType"),
        (branch((two, &[0]), (two, &[-1])), "bool[]; f32[n]", "!BodyArity"),
        (branch((two, &[0]), (two, &[-1])), "bool[]; f32[n]; f16[n]", "!Body"),
        (branch((two, &[0]), (two, &[-1])), "bool[]; f32[n]; f32[m]", "!Unresolved"),
        (branch((two, &[0]), (two, &[0, 1])), "bool[]; f32[n]; f32[n]", "!BodyArity"),
        (branch((two, &[0]), (two, &[-1])), "-; f32[n]; f32[n]", "!Missing"),
        (branch((two, &[0]), (two, &[-1])), "", "!Arity"),
        (
            branch(("f32[n]; f32[m]", &[0]), ("f32[n]; f32[m]", &[1])),
            "bool[]; f32[n]; f32[m]",
            "!Unresolved",
        ),
        (
            branch(("f32[2]; f32[3]", &[0]), ("f32[2]; f32[3]", &[1])),
            "bool[]; f32[2]; f32[3]",
            "!DataDependent",
        ),
        (
            branch(("f32[2]; f16[2]", &[0]), ("f32[2]; f16[2]", &[1])),
            "bool[]; f32[2]; f16[2]",
            "!Body",
        ),
        (branch(("f32[4]", &[0]), ("f32[4]", &[0])), "bool[]; f32[n]", "f32[4]"),
        (branch(("f32[4]", &[0]), ("f32[4]", &[0])), "bool[]; f32[3]", "!Body"),
        (branch(("f32[n]", &[0]), ("f32[n]", &[0])), "bool[]; f32[4]", "!Unresolved"),
    ];
    for (op, inputs, expected) in rows {
        check(&op, inputs, expected);
    }
}

#[test]
fn loops() {
    let repeat = |carried, inputs, outputs: &[i32]| Op::Loop {
        body: Box::new(body(inputs, outputs)),
        carried,
    };
    let formal = "i64[]; bool[]; f32[n]; f32[n]";
    let rows = [
        (repeat(1, formal, &[1, -1]), "i64[]; bool[]; f32[n]; f32[n]", "f32[n]"),
        (repeat(1, formal, &[1, -1]), "-; -; f32[n]; f32[n]", "f32[n]"),
        (repeat(2, formal, &[1, 3, 2]), "-; -; f32[n]; f32[n]", "f32[n]; f32[n]"),
        (repeat(1, formal, &[1, -1, 2]), "i64[]; bool[]; f32[n]; f32[n]", "!DataDependent"),
        (repeat(1, formal, &[1]), "i64[]; bool[]; f32[n]; f32[n]", "!BodyArity"),
        (repeat(1, formal, &[0, -1]), "i64[]; bool[]; f32[n]; f32[n]", "!Body"),
        (repeat(1, formal, &[1, -1]), "i32[]; bool[]; f32[n]; f32[n]", "!DType"),
        (repeat(1, formal, &[1, -1]), "i64[1]; bool[]; f32[n]; f32[n]", "!Rank"),
        (repeat(1, formal, &[1, -1]), "i64[]; bool[]; f32[n]", "!BodyArity"),
        (repeat(2, formal, &[1, -1]), "i64[]; bool[]; f32[n]", "!Arity"),
        (
            repeat(1, "i64[]; bool[]; f32[1]; f32[3]", &[1, -1]),
            "-; -; f32[1]; f32[3]",
            "!DataDependent",
        ),
    ];
    for (op, inputs, expected) in rows {
        check(&op, inputs, expected);
    }
}

#[test]
fn scans() {
    let scan = |carried, inputs: &[usize], outputs: &[usize], formal, results: &[i32]| {
        Op::Scan(Box::new(ScanAttrs {
            body: body(formal, results),
            carried,
            inputs: inputs.iter().map(|&axis| (axis, false)).collect(),
            outputs: outputs.iter().map(|&axis| (axis, true)).collect(),
        }))
    };
    let rows = [
        (scan(1, &[0], &[0], "f32[4]; f32[4]", &[-1, 0]), "f32[4]; f32[s, 4]", "f32[4]; f32[s, 4]"),
        (scan(1, &[1], &[1], "f32[4]; f32[4]", &[-1, 0]), "f32[4]; f32[4, s]", "f32[4]; f32[4, s]"),
        (scan(0, &[0, 0], &[0], "f32[4]; f32[4]", &[-1]), "f32[3, 4]; f32[s, 4]", "f32[3, 4]"),
        (scan(0, &[0, 0], &[0], "f32[4]; f32[4]", &[-1]), "f32[3, 4]; f32[2, 4]", "!Dims"),
        (scan(0, &[0, 0], &[2], "f32[4]; f32[4]", &[-1]), "f32[3, 4]; f32[3, 4]", "!Axis"),
        (scan(0, &[2, 0], &[0], "f32[4]; f32[4]", &[-1]), "f32[3, 4]; f32[3, 4]", "!Axis"),
        (scan(1, &[], &[], "f32[4]; f32[4]", &[-1]), "f32[4]; f32[4]", "!Attribute"),
        (scan(1, &[0], &[0], "f32[4]; f32[4]", &[-1]), "f32[4]; f32[s, 4]", "!BodyArity"),
        (scan(1, &[0], &[], "f32[1]; f32[4]", &[-1]), "f32[1]; f32[s, 4]", "!DataDependent"),
        (scan(1, &[0], &[], "f32[4]; f32[4]", &[-1]), "f32[4]", "!Arity"),
        (scan(1, &[0], &[], "f32[4]; f32[4]", &[-1]), "f32[4]; f32[s, 5]", "!Body"),
    ];
    for (op, inputs, expected) in rows {
        check(&op, inputs, expected);
    }
}
