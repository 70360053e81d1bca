//! Pointwise operations.

use super::check;
use crate::dtype::DType;
use crate::op::{Binary, Op, Unary};

#[test]
fn unary() {
    let rows = [
        (Unary::Exp, "f16[batch, 4]", "f16[batch, 4]"),
        (Unary::Exp, "i32[4]", "!DType"),
        (Unary::Abs, "i32[4]", "i32[4]"),
        (Unary::Neg, "bool[4]", "!DType"),
        (Unary::Not, "bool[4]", "bool[4]"),
        (Unary::Not, "u8[4]", "!DType"),
        (Unary::BitNot, "u8[4]", "u8[4]"),
        (Unary::BitNot, "f32[4]", "!DType"),
        (Unary::IsNan, "f64[2]", "bool[2]"),
        (Unary::IsInf { positive: true, negative: false }, "i8[2]", "!DType"),
        (Unary::Relu, "", "!Arity"),
        (Unary::Relu, "-", "!Missing"),
        (Unary::Relu, "f32[1]; f32[1]", "!Arity"),
    ];
    for (op, inputs, expected) in rows {
        check(&Op::Unary(op), inputs, expected);
    }
}

#[test]
fn binary_element_types() {
    let rows = [
        (Binary::Add, "f32[2]; f32[2]", "f32[2]"),
        (Binary::Add, "f32[2]; f16[2]", "!DType"),
        (Binary::Add, "bool[2]; bool[2]", "!DType"),
        (Binary::Pow, "f32[2]; i64[]", "f32[2]"),
        (Binary::Pow, "f32[2]; bool[]", "!DType"),
        (Binary::And, "bool[2]; bool[2]", "bool[2]"),
        (Binary::And, "u8[2]; u8[2]", "!DType"),
        (Binary::BitXor, "i16[2]; i16[2]", "i16[2]"),
        (Binary::ShiftLeft, "u32[2]; u32[2]", "u32[2]"),
        (Binary::ShiftLeft, "i32[2]; i32[2]", "i32[2]"),
        (Binary::ShiftRight, "f32[2]; f32[2]", "!DType"),
        (Binary::Equal, "bool[2]; bool[2]", "bool[2]"),
        (Binary::Less, "i64[2]; i64[2]", "bool[2]"),
        (Binary::Less, "bool[2]; bool[2]", "!DType"),
    ];
    for (op, inputs, expected) in rows {
        check(&Op::Binary(op), inputs, expected);
    }
}

#[test]
fn broadcasting() {
    let rows = [
        ("f32[2, 3]; f32[3]", "f32[2, 3]"),
        ("f32[3]; f32[2, 3]", "f32[2, 3]"),
        ("f32[2, 1]; f32[1, 3]", "f32[2, 3]"),
        ("f32[]; f32[0]", "f32[0]"),
        ("f32[1]; f32[0]", "f32[0]"),
        ("f32[2]; f32[0]", "!Broadcast"),
        ("f32[2, 3]; f32[2]", "!Broadcast"),
        ("f32[batch]; f32[batch]", "f32[batch]"),
        ("f32[batch]; f32[1]", "f32[batch]"),
        ("f32[batch]; f32[5]", "f32[5]"),
        ("f32[5]; f32[batch]", "f32[5]"),
        ("f32[a]; f32[b]", "!Unresolved"),
        ("f32[a]; f32[a + 1]", "!Unresolved"),
        ("f32[a + 1]; f32[a + 2]", "!Broadcast"),
        ("f32[a + 5]; f32[4]", "!Broadcast"),
        ("f32[2*a]; f32[a + a]", "f32[2*a]"),
        ("f32[a - 1]; f32[max(0, a - 1)]", "f32[a - 1]"),
        ("f32[max(0, a - 1)]; f32[a - 1]", "f32[a - 1]"),
        ("f32[max(1, a - 1)]; f32[a - 1]", "!Unresolved"),
    ];
    for (inputs, expected) in rows {
        check(&Op::Binary(Binary::Mul), inputs, expected);
    }
}

#[test]
fn select_and_casts() {
    let cast = |to| Op::Cast { to, saturate: true };
    let rows = [
        (Op::Select, "bool[2, 1]; f32[3]; f32[]", "f32[2, 3]"),
        (Op::Select, "bool[4]; bool[]; bool[]", "bool[4]"),
        (Op::Select, "u8[4]; f32[]; f32[]", "!DType"),
        (Op::Select, "bool[4]; f32[]; f16[]", "!DType"),
        (Op::Select, "bool[4]; f32[3]; f32[]", "!Broadcast"),
        (Op::Select, "bool[4]; f32[]", "!Arity"),
        (cast(DType::I4), "f32[batch]", "i4[batch]"),
        (cast(DType::Bool), "f8e5m2[]", "bool[]"),
        (Op::BitCast(DType::I32), "f32[3]", "i32[3]"),
        (Op::BitCast(DType::I64), "f32[3]", "!DType"),
        (Op::BitCast(DType::U8), "u4[3]", "!DType"),
    ];
    for (op, inputs, expected) in rows {
        check(&op, inputs, expected);
    }
}
