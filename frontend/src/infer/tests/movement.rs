//! Operations that move elements.

use super::{check, dims};
use crate::dim::Dim;
use crate::op::{Combine, Op, PadMode, SliceAxis};

#[test]
fn reshape_and_transpose_and_expand() {
    let reshape = |shape| Op::Reshape(dims(shape));
    let expand = |shape| Op::Expand(dims(shape));
    let rows = [
        (reshape("6"), "f32[2, 3]", "f32[6]"),
        (reshape(""), "f32[1, 1]", "f32[]"),
        (reshape("5"), "f32[2, 3]", "!Elements"),
        (reshape("0, 7"), "f32[batch, 0]", "f32[0, 7]"),
        (
            reshape("batch, sequence, 12, 64"),
            "f32[batch, sequence, 768]",
            "f32[batch, sequence, 12, 64]",
        ),
        (reshape("batch*sequence, 768"), "f32[batch, sequence, 768]", "f32[batch*sequence, 768]"),
        (reshape("sequence, batch"), "f32[batch, sequence]", "f32[sequence, batch]"),
        (reshape("a, 3"), "f32[b, 3]", "!Unresolved"),
        (reshape("8"), "f32[batch, 4]", "!Unresolved"),
        (reshape("3"), "f32[batch, 4]", "!Elements"),
        (reshape("-2, -3"), "f32[6]", "!Negative"),
        (Op::Transpose(vec![1, 0, 2]), "f32[2, batch, 4]", "f32[batch, 2, 4]"),
        (Op::Transpose(vec![]), "f32[]", "f32[]"),
        (Op::Transpose(vec![0]), "f32[2, 3]", "!Attribute"),
        (Op::Transpose(vec![0, 0]), "f32[2, 3]", "!Axis"),
        (Op::Transpose(vec![0, 2]), "f32[2, 3]", "!Axis"),
        (expand("batch, 12, 4"), "f32[12, 1]", "f32[batch, 12, 4]"),
        (expand("3"), "f32[2]", "!Broadcast"),
        (expand("3"), "f32[1, 3]", "!Broadcast"),
        (expand("1"), "f32[2]", "!Broadcast"),
        (expand("batch"), "f32[sequence]", "!Unresolved"),
        (expand("4"), "f32[batch]", "f32[4]"),
    ];
    for (op, inputs, expected) in rows {
        check(&op, inputs, expected);
    }
}

#[test]
fn slice() {
    let slice = |axis, start: &str, len: &str, step| {
        let (start, len): (Dim, Dim) = (start.parse().unwrap(), len.parse().unwrap());
        SliceAxis { axis, start, len, step }
    };
    let rows = [
        (vec![], "f32[5]", "f32[5]"),
        (vec![slice(0, "1", "2", 2)], "f32[5, 3]", "f32[2, 3]"),
        (vec![slice(0, "4", "5", -1)], "f32[5]", "f32[5]"),
        (vec![slice(0, "4", "6", -1)], "f32[5]", "!Exceeds"),
        (vec![slice(0, "1", "3", 2)], "f32[5]", "!Exceeds"),
        (vec![slice(0, "9", "0", 1)], "f32[5]", "f32[0]"),
        (vec![slice(0, "0", "1", 0)], "f32[5]", "!Attribute"),
        (vec![slice(1, "0", "1", 1)], "f32[5]", "!Axis"),
        (vec![slice(0, "0", "1", 1), slice(0, "0", "1", 1)], "f32[5]", "!Axis"),
        (vec![slice(0, "0", "sequence", 1)], "f32[512]", "f32[sequence]"),
        (vec![slice(0, "1", "sequence", 1)], "f32[sequence]", "!Exceeds"),
        (vec![slice(0, "1", "sequence - 1", 1)], "f32[sequence]", "f32[sequence - 1]"),
    ];
    for (axes, inputs, expected) in rows {
        check(&Op::Slice(axes), inputs, expected);
    }
}

#[test]
fn concat_and_pad() {
    let concat = |axis| Op::Concat { axis };
    let pad = |mode, before, after| Op::Pad { mode, before: dims(before), after: dims(after) };
    let rows = [
        (concat(0), "f32[2, 3]; f32[n, 3]; f32[1, m]", "f32[n + 3, 3]"),
        (concat(1), "f32[2, 3]; f32[2, 4]", "f32[2, 7]"),
        (concat(0), "f32[2, a]; f32[2, b]", "!Unresolved"),
        (concat(0), "f32[2, 3]; f32[2, 4]", "!Dims"),
        (concat(0), "f32[2]; f32[2, 4]", "!Rank"),
        (concat(0), "f32[2]; f64[2]", "!DType"),
        (concat(0), "f32[]", "!Axis"),
        (concat(0), "", "!Arity"),
        (concat(0), "f32[1]; -", "!Missing"),
        (pad(PadMode::Constant, "1, 0", "2, -1"), "f32[n, 4]", "f32[n + 3, 3]"),
        (pad(PadMode::Constant, "1", "n"), "f32[2]; f32[]", "f32[n + 3]"),
        (pad(PadMode::Constant, "1", "1"), "f32[2]; f32[1]", "!Rank"),
        (pad(PadMode::Constant, "1", "1"), "f32[2]; i8[]", "!DType"),
        (pad(PadMode::Constant, "-3", "0"), "f32[2]", "!Negative"),
        (pad(PadMode::Constant, "1", ""), "f32[2]", "!Attribute"),
        (pad(PadMode::Constant, "1", "1"), "f32[0]", "f32[2]"),
        (pad(PadMode::Edge, "1", "1"), "f32[0]", "!Empty"),
        (pad(PadMode::Reflect, "1", "1"), "f32[2]", "f32[4]"),
        (pad(PadMode::Wrap, "1", "1"), "f32[2]; f32[]", "!Arity"),
    ];
    for (op, inputs, expected) in rows {
        check(&op, inputs, expected);
    }
}

#[test]
fn gather() {
    let (gather, elements) = (|axis| Op::Gather { axis }, |axis| Op::GatherElements { axis });
    let nd = |batch_dims| Op::GatherNd { batch_dims };
    let rows = [
        (gather(0), "f16[30522, 768]; i64[batch, sequence]", "f16[batch, sequence, 768]"),
        (gather(1), "f32[2, 3, 4]; i32[]", "f32[2, 4]"),
        (gather(1), "f32[2]; i64[]", "!Axis"),
        (gather(0), "f32[2]; i8[]", "!DType"),
        (elements(1), "f32[2, 3]; i64[2, 7]", "f32[2, 7]"),
        (elements(1), "f32[2, 3]; i64[1, 7]", "f32[1, 7]"),
        (elements(1), "f32[2, 3]; i64[3, 7]", "!Exceeds"),
        (elements(1), "f32[2, 3]; i64[2]", "!Rank"),
        (nd(0), "f32[2, 3, 4]; i64[5, 2]", "f32[5, 4]"),
        (nd(1), "f32[b, 3, 4]; i64[b, 5, 1]", "f32[b, 5, 4]"),
        (nd(1), "f32[2, 3]; i64[3, 1]", "!Dims"),
        (nd(0), "f32[2, 3]; i64[3]", "!Exceeds"),
        (nd(0), "f32[2, 3]; i64[0]", "!Exceeds"),
        (nd(0), "f32[2, 3]; i64[n]", "!UnresolvedRank"),
        (nd(1), "f32[2]; i64[2, 1]", "!Axis"),
        (nd(0), "f32[2]; i64[]", "!Axis"),
    ];
    for (op, inputs, expected) in rows {
        check(&op, inputs, expected);
    }
}

#[test]
fn scatter() {
    let elements = |combine| Op::ScatterElements { axis: 0, combine };
    let nd = |combine| Op::ScatterNd { combine };
    let rows = [
        (elements(Combine::Add), "f32[5, 3]; i64[2, 3]; f32[2, 3]", "f32[5, 3]"),
        (elements(Combine::Add), "f32[5, 3]; i64[2, 4]; f32[2, 4]", "!Exceeds"),
        (elements(Combine::Add), "f32[5, 3]; i64[2, 3]; f32[1, 3]", "!Dims"),
        (elements(Combine::Add), "f32[5, 3]; i64[2, 3]; i64[2, 3]", "!DType"),
        (elements(Combine::Replace), "bool[5]; i64[2]; bool[2]", "bool[5]"),
        (elements(Combine::Max), "bool[5]; i64[2]; bool[2]", "!DType"),
        (nd(Combine::Replace), "f32[5, 3]; i32[n, 1]; f32[n, 3]", "f32[5, 3]"),
        (nd(Combine::Replace), "f32[5, 3]; i32[7, 2]; f32[7]", "f32[5, 3]"),
        (nd(Combine::Replace), "f32[5, 3]; i32[7, 2]; f32[7, 3]", "!Rank"),
        (nd(Combine::Replace), "f32[5, 3]; i32[a, 1]; f32[b, 3]", "!Unresolved"),
        (nd(Combine::Replace), "f32[5, 3]; i32[7, 3]; f32[7]", "!Exceeds"),
        (nd(Combine::Replace), "f32[5, 3]; i32[]; f32[7]", "!Rank"),
    ];
    for (op, inputs, expected) in rows {
        check(&op, inputs, expected);
    }
}
