//! Functions of elements.

use super::{as_type, bools, check_close, check_exact, run, tensor};
use crate::dtype::DType;
use crate::op::{Binary, Op, Portable, Range, Unary};
use crate::tensor::Tensor;
use half::f16;
use std::f64::consts::{E, FRAC_PI_3, FRAC_PI_4, FRAC_PI_6, SQRT_2};

/// Rows: function, argument, value.
#[test]
fn unary_functions_of_reals() {
    let inf = f64::INFINITY;
    let rows = [
        (Unary::Abs, -1.5, 1.5),
        (Unary::Neg, 2.0, -2.0),
        (Unary::Sign, -3.0, -1.0),
        (Unary::Sign, 0.0, 0.0),
        (Unary::Reciprocal, 4.0, 0.25),
        (Unary::Sqrt, 2.0, SQRT_2),
        (Unary::Sqrt, -1.0, f64::NAN),
        (Unary::Exp, 1.0, E),
        (Unary::Exp, 100.0, inf),
        (Unary::Log, 0.0, -inf),
        (Unary::Floor, -1.5, -2.0),
        (Unary::Ceil, -1.5, -1.0),
        (Unary::Round, 0.5, 0.0),
        (Unary::Round, 1.5, 2.0),
        (Unary::Round, -2.5, -2.0),
        (Unary::Sin, 1.0, 0.8414709848078965),
        (Unary::Cos, 1.0, 0.5403023058681398),
        (Unary::Tan, 1.0, 1.5574077246549023),
        (Unary::Asin, 0.5, FRAC_PI_6),
        (Unary::Acos, 0.5, FRAC_PI_3),
        (Unary::Atan, 1.0, FRAC_PI_4),
        (Unary::Sinh, 1.0, 1.1752011936438014),
        (Unary::Cosh, 1.0, 1.5430806348152437),
        (Unary::Tanh, 1.0, 0.7615941559557649),
        (Unary::Asinh, 1.0, 0.881373587019543),
        (Unary::Acosh, 2.0, 1.3169578969248166),
        (Unary::Acosh, -1e5, f64::NAN),
        (Unary::Atanh, 0.5, 0.5493061443340548),
        (Unary::Erf, 0.5, 0.5204998778130465),
        (Unary::Sigmoid, 1.0, 0.7310585786300049),
        (Unary::Sigmoid, -1000.0, 0.0),
        (Unary::Relu, -1.0, 0.0),
        (Unary::Relu, f64::NAN, f64::NAN),
        (Unary::Gelu, 1.0, 0.8413447460685429),
        (Unary::Gelu, -3.0, -0.004049694),
        (Unary::GeluTanh, 1.0, 0.8411919906082768),
        (Unary::Swish { alpha: 1.0 }, 1.0, 0.7310585786300049),
        (Unary::Swish { alpha: 2.0 }, 1.0, 0.8807970779778823),
        (Unary::Softplus, 1.0, 1.3132616875182228),
        (Unary::Softplus, 1000.0, 1000.0),
        (Unary::Softsign, -1.0, -0.5),
        (Unary::Mish, 1.0, 0.8650983882673103),
        (Unary::HardSwish, 1.0, 0.6666666666666666),
        (Unary::HardSwish, -4.0, 0.0),
        (Unary::HardSigmoid { alpha: 0.2, beta: 0.5 }, 1.0, 0.7),
        (Unary::LeakyRelu { alpha: 0.1 }, -1.0, -0.1),
        (Unary::Elu { alpha: 2.0 }, -1.0, -1.2642411176571153),
        (Unary::Celu { alpha: 2.0 }, -1.0, -0.7869386805747332),
        (Unary::Selu { alpha: 2.0, gamma: 3.0 }, -1.0, -3.792723352971346),
        (Unary::Selu { alpha: 2.0, gamma: 3.0 }, 1.0, 3.0),
        (Unary::ThresholdedRelu { alpha: 2.0 }, 1.5, 0.0),
        (Unary::ThresholdedRelu { alpha: 2.0 }, 2.2, 2.2),
        (Unary::ThresholdedRelu { alpha: 2.0 }, f64::NAN, 0.0),
        (Unary::Celu { alpha: 2.0 }, f64::NAN, f64::NAN),
        (Unary::Shrink { bias: 1.5, lambda: 1.5 }, -2.0, -0.5),
        (Unary::Shrink { bias: 1.5, lambda: 1.5 }, 1.0, 0.0),
    ];
    for (function, x, y) in rows {
        for dtype in [DType::F32, DType::F64] {
            if dtype == DType::F64 && y.is_infinite() {
                continue;
            }
            let x = as_type(dtype, &[1], &[x]);
            check_close(&Op::Unary(function), &[Some(&x)], &[1], &[y]);
        }
        let x = as_type(DType::BF16, &[1], &[1.0]);
        assert_eq!(run(&Op::Unary(function), &[&x]).unwrap()[0].dtype(), DType::BF16);
    }
}

#[test]
fn unary_functions_of_integers_and_truth_values() {
    let rows = [
        (Unary::Abs, tensor(&[2], &[-128_i8, -5]), tensor(&[2], &[-128_i8, 5])),
        (Unary::Neg, tensor(&[1], &[3_u8]), tensor(&[1], &[253_u8])),
        (Unary::Sign, tensor(&[3], &[-7_i64, 0, 7]), tensor(&[3], &[-1_i64, 0, 1])),
        (Unary::Relu, tensor(&[2], &[-7_i32, 7]), tensor(&[2], &[0_i32, 7])),
        (Unary::BitNot, tensor(&[1], &[0x0f_u16]), tensor(&[1], &[0xfff0_u16])),
        (Unary::Not, bools(&[2], &[0, 1]), bools(&[2], &[1, 0])),
        (Unary::IsNan, tensor(&[2], &[f32::NAN, 1.0]), bools(&[2], &[1, 0])),
        (
            Unary::IsInf { positive: true, negative: false },
            tensor(&[3], &[f32::INFINITY, f32::NEG_INFINITY, 0.0]),
            bools(&[3], &[1, 0, 0]),
        ),
    ];
    for (function, x, y) in rows {
        check_exact(&Op::Unary(function), &[&x], &[y]);
    }
    assert!(run(&Op::Unary(Unary::Exp), &[&tensor(&[1], &[1_i32])]).is_err());
    assert!(run(&Op::Unary(Unary::Not), &[&tensor(&[1], &[1_i32])]).is_err());
}

/// Rows: function, operands, value.
#[test]
fn binary_functions_of_reals() {
    let rows = [
        (Binary::Add, 1.5, 2.0, 3.5),
        (Binary::Sub, 1.5, 2.0, -0.5),
        (Binary::Mul, 1.5, 2.0, 3.0),
        (Binary::Div, 1.5, 2.0, 0.75),
        (Binary::Div, 1.0, 0.0, f64::INFINITY),
        (Binary::Mod, -4.5, 2.0, 1.5),
        (Binary::Mod, 4.5, -2.0, -1.5),
        (Binary::Rem, -4.5, 2.0, -0.5),
        (Binary::Pow, 2.0, -1.0, 0.5),
        (Binary::Min, f64::NAN, 1.0, f64::NAN),
        (Binary::Max, 1.0, f64::NAN, f64::NAN),
        (Binary::Max, 1.0, 2.0, 2.0),
    ];
    for (function, a, b, y) in rows {
        for dtype in [DType::F32, DType::F16, DType::BF16, DType::F64] {
            let (a, b) = (as_type(dtype, &[], &[a]), as_type(dtype, &[], &[b]));
            check_close(&Op::Binary(function), &[Some(&a), Some(&b)], &[], &[y]);
        }
    }
}

/// Rows: function, type, operands, value.
#[test]
fn binary_functions_of_integers() {
    let rows = [
        (Binary::Add, DType::U8, 250, 10, 4),
        (Binary::Sub, DType::U32, 0, 1, 0xffff_ffff),
        (Binary::Mul, DType::I8, 100, 3, 44),
        (Binary::Div, DType::I32, -7, 2, -3),
        (Binary::Div, DType::I32, 7, 0, 0),
        (Binary::Div, DType::I8, -128, -1, -128),
        (Binary::Mod, DType::I64, -7, 3, 2),
        (Binary::Mod, DType::I64, 7, -3, -2),
        (Binary::Rem, DType::I64, -7, 3, -1),
        (Binary::Rem, DType::I64, -7, 0, 0),
        (Binary::Pow, DType::I32, 3, 4, 81),
        (Binary::Pow, DType::I32, 2, -1, 0),
        (Binary::Pow, DType::U8, 2, 9, 0),
        (Binary::Min, DType::I16, -2, 1, -2),
        (Binary::BitAnd, DType::U8, 12, 10, 8),
        (Binary::BitOr, DType::I32, 12, 10, 14),
        (Binary::BitXor, DType::U64, 12, 10, 6),
        (Binary::ShiftLeft, DType::U8, 129, 1, 2),
        (Binary::ShiftLeft, DType::U32, 1, 32, 0),
        (Binary::ShiftRight, DType::U16, 9, 1, 4),
        (Binary::ShiftRight, DType::I8, -9, 1, -5),
        (Binary::ShiftRight, DType::I8, -9, 8, -1),
        (Binary::ShiftRight, DType::I8, -9, -1, -1),
        (Binary::ShiftLeft, DType::I8, 65, 1, -126),
    ];
    for (function, dtype, a, b, y) in rows {
        let [a, b, y] = [a, b, y].map(|v: i64| as_type(dtype, &[1], &[v as f64]));
        check_exact(&Op::Binary(function), &[&a, &b], &[y]);
    }
    let (a, b) = (tensor(&[2], &[2_i32, 3]), tensor(&[2], &[0.5_f32, 2.0]));
    check_exact(&Op::Binary(Binary::Pow), &[&a, &b], &[tensor(&[2], &[1_i32, 9])]);
    let largest = tensor(&[1], &[u64::MAX]);
    let less = run(&Op::Binary(Binary::Less), &[&tensor(&[1], &[1_u64]), &largest]).unwrap();
    assert_eq!(less, [bools(&[1], &[1])]);
}

#[test]
fn operands_broadcast() {
    let a = tensor(&[2, 1], &[1.0_f32, 2.0]);
    let b = tensor(&[3], &[10.0_f32, 20.0, 30.0]);
    let sum = tensor(&[2, 3], &[11.0_f32, 21.0, 31.0, 12.0, 22.0, 32.0]);
    check_exact(&Op::Binary(Binary::Add), &[&a, &b], &[sum]);
    let condition = bools(&[2, 1], &[1, 0]);
    let chosen = tensor(&[2, 3], &[1.0_f32, 1.0, 1.0, 10.0, 20.0, 30.0]);
    check_exact(&Op::Select, &[&condition, &tensor(&[], &[1.0_f32]), &b], &[chosen]);
    assert!(run(&Op::Binary(Binary::Add), &[&a, &tensor(&[3], &[1_i32, 2, 3])]).is_err());
    assert!(run(&Op::Binary(Binary::Add), &[&b, &tensor(&[2], &[1.0_f32, 2.0])]).is_err());
    let empty = tensor::<f32>(&[0, 3], &[]);
    check_exact(&Op::Binary(Binary::Add), &[&empty, &b], std::slice::from_ref(&empty));
}

/// Rows: from type and value, to type and value.
#[test]
fn casts() {
    let inf = f64::INFINITY;
    let rows = [
        (DType::F32, 2.7, DType::I32, 2.0),
        (DType::F32, -2.7, DType::I64, -2.0),
        (DType::F32, -1.0, DType::U8, 255.0),
        (DType::F32, 300.0, DType::U8, 44.0),
        (DType::F32, f64::NAN, DType::I32, 0.0),
        (DType::F32, inf, DType::I16, 32767.0),
        (DType::F32, 9.0, DType::I4, -7.0),
        (DType::F32, -1.5, DType::U4, 15.0),
        (DType::F32, 2.7, DType::I2, -2.0),
        (DType::F32, f64::NAN, DType::Bool, 1.0),
        (DType::F32, 0.25, DType::Bool, 1.0),
        (DType::F64, 1e6, DType::F16, inf),
        (DType::F32, 1e6, DType::F8E4M3Fn, 448.0),
        (DType::F16, 0.3, DType::F4E2M1, 0.5),
        (DType::I4, -8.0, DType::I8, -8.0),
        (DType::U2, 3.0, DType::F32, 3.0),
        (DType::I32, 300.0, DType::I8, 44.0),
        (DType::I32, 5.0, DType::F8E5M2, 5.0),
        (DType::Bool, 1.0, DType::F32, 1.0),
        (DType::I64, 16777217.0, DType::F32, 16777216.0),
    ];
    for (from, x, to, y) in rows {
        let x = as_type(from, &[1], &[x]);
        check_exact(&Op::Cast { to, saturate: true }, &[&x], &[as_type(to, &[1], &[y])]);
    }
    let x = tensor(&[1], &[1e6_f32]);
    let nan = run(&Op::Cast { to: DType::F8E4M3Fn, saturate: false }, &[&x]).unwrap();
    assert_eq!(nan[0].bytes(), [0x7f]);
}

/// Values of every type survive a cast to the widest type and back.
#[test]
fn every_type_casts() {
    for dtype in DType::all() {
        let x = Tensor::zeros(dtype, vec![2]).unwrap();
        let wide = if dtype.is_float() { DType::F64 } else { DType::I64 };
        let there = run(&Op::Cast { to: wide, saturate: true }, &[&x]).unwrap();
        check_exact(&Op::Cast { to: dtype, saturate: true }, &[&there[0]], &[x]);
    }
}

/// What the table of functions says of rounding and of finite numbers holds for all numbers of fp16, and pairs of some.
#[test]
fn rows_tell_what_is_exact_and_what_is_finite() {
    let check = |name: &str, exact: bool, range: Range, y: f64| {
        let half = f16::from_f64(y).to_f64();
        assert!(!exact || half == y || y.is_nan(), "{name} rounds {y}");
        match range {
            Range::Unit => assert!(y.abs() <= 1.0, "{name} gives {y}"),
            Range::Finite | Range::Grows => assert!(y.is_finite(), "{name} gives {y}"),
            Range::Any => {}
        }
    };
    let numbers = || (0..=u16::MAX).map(|bits| f16::from_bits(bits).to_f64());
    for unary in Unary::ALL {
        let Some(meaning) = unary.meaning::<Portable>() else { continue };
        let row = unary.info();
        numbers()
            .filter(|x| x.is_finite())
            .for_each(|x| check(row.name, row.exact, row.range, meaning(x)));
    }
    for binary in Binary::ALL {
        let Some(meaning) = binary.meaning::<Portable>() else { continue };
        let row = binary.info();
        let some: Vec<f64> = numbers().step_by(331).filter(|x| x.is_finite()).collect();
        for (a, b) in some.iter().flat_map(|a| some.iter().map(move |b| (*a, *b))) {
            check(row.name, row.exact, row.range, meaning(a, b));
        }
    }
}
