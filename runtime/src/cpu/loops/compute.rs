//! What one instruction does to a block of elements.

use super::elements::Elements;
use super::fast::{arithmetic, map, simple, truncate, wrap_all};
use super::scalar::{
    fast_binary, fast_unary, integer_binary, integer_power, truncated, unsigned_binary,
    unsigned_unary, with_integer, wrap,
};
use super::{Class, Instruction, Operation, Scalar};
use crate::cpu::kernels::number;
use crate::cpu::kernels::pointwise as fast;
use bytemuck::{cast_slice, cast_slice_mut};
use graphene_frontend::dtype::DType;
use graphene_frontend::op::{Binary, Native, Unary};
use half::{bf16, f16};

/// The elements in single precision.
pub(super) fn move_f32(target: &mut [f32], x: Elements<'_>) {
    match x {
        Elements::F32(x) => target.copy_from_slice(x),
        Elements::F64(x) => map(target, x, |x| x as f32),
        Elements::I64(x) => map(target, x, |x| x as f32),
        Elements::U64(x) => map(target, x, |x| x as f32),
        Elements::Bool(x) => map(target, x, f32::from),
        Elements::Scalar(_) => target.fill(x.f32(0)),
    }
}

/// The elements in single precision, rounded once from what holds more digits to the type that they are of.
pub(super) fn cast_f32(dtype: DType, target: &mut [f32], x: Elements<'_>) {
    let wide = matches!(x.class(), Class::F64 | Class::I64 | Class::U64);
    let each = target.iter_mut().enumerate();
    match dtype {
        DType::F16 if wide => each.for_each(|(i, y)| *y = f16::from_f64(x.f64(i)).to_f32()),
        DType::BF16 if wide => each.for_each(|(i, y)| *y = bf16::from_f64(x.f64(i)).to_f32()),
        _ => move_f32(target, x),
    }
}

pub(super) fn unary_f32(unary: Unary, target: &mut [f32], x: Elements<'_>) {
    match (fast_unary(unary), x) {
        (Some(unary), Elements::F32(x)) => unary.apply(target, x),
        (Some(unary), x) => {
            move_f32(target, x);
            unary.apply_in_place(target);
        }
        (None, Elements::F32(x)) if simple(unary, target, x) => {}
        (None, x) => {
            if let Some(real) = unary.meaning::<Native>() {
                let each = target.iter_mut().enumerate();
                each.for_each(|(i, y)| *y = real(f64::from(x.f32(i))) as f32);
            }
        }
    }
}

pub(super) fn binary_f32(binary: Binary, target: &mut [f32], a: Elements<'_>, b: Elements<'_>) {
    match (fast_binary(binary), a, b) {
        (Some(fast::Binary::Pow), Elements::F32(a), Elements::Scalar(Scalar::F32(b))) => {
            fast::powf(target, a, b);
        }
        (Some(binary), Elements::F32(a), Elements::F32(b)) => binary.apply(target, a, b),
        (Some(binary), Elements::F32(a), Elements::Scalar(Scalar::F32(b))) => {
            binary.apply_right(target, a, b);
        }
        (Some(binary), Elements::Scalar(Scalar::F32(a)), Elements::F32(b)) => {
            binary.apply_left(target, a, b);
        }
        (Some(binary), a @ Elements::Scalar(_), b @ Elements::Scalar(_)) => {
            let [mut y, a, b] = [[0.0], [a.f32(0)], [b.f32(0)]];
            binary.apply(&mut y, &a, &b);
            target.fill(y[0]);
        }
        (_, a, b) => {
            if let Some(real) = binary.meaning::<Native>() {
                let each = target.iter_mut().enumerate();
                each.for_each(|(i, y)| {
                    *y = real(f64::from(a.f32(i)), f64::from(b.f32(i))) as f32;
                });
            }
        }
    }
}

pub(super) fn compute_f64(instruction: &Instruction, target: &mut [f64], sources: &[Elements<'_>]) {
    let each = target.iter_mut().enumerate();
    match instruction.operation {
        Operation::Unary(unary) => {
            if let Some(real) = unary.meaning::<Native>() {
                each.for_each(|(i, y)| *y = real(sources[0].f64(i)));
            }
        }
        Operation::Binary(binary) => {
            if let Some(real) = binary.meaning::<Native>() {
                each.for_each(|(i, y)| *y = real(sources[0].f64(i), sources[1].f64(i)));
            }
        }
        Operation::Select => each.for_each(|(i, y)| {
            *y = if sources[0].bool(i) { sources[1].f64(i) } else { sources[2].f64(i) };
        }),
        Operation::Cast | Operation::Number => each.for_each(|(i, y)| *y = sources[0].f64(i)),
        // Tables have single precision.
        Operation::Lookup(_) => {}
    }
}

pub(super) fn compute_i64(instruction: &Instruction, target: &mut [i64], sources: &[Elements<'_>]) {
    let (dtype, bits) = (instruction.dtype, instruction.dtype.file_bits() as u32);
    if let Operation::Unary(unary) = instruction.operation {
        return with_integer(unary, |integer| {
            let each = target.iter_mut().enumerate();
            each.for_each(|(i, y)| *y = wrap(dtype, integer(sources[0].i64(i))));
        });
    }
    // Vectorised for types of whole bytes.
    let done = bits >= 8
        && match (instruction.operation, sources) {
            (Operation::Binary(binary), &[a, b]) => arithmetic(binary, dtype, target, a, b),
            (Operation::Cast, &[Elements::F32(x)]) => truncate(dtype, target, x),
            (Operation::Cast, &[Elements::I64(x)]) => {
                wrap_all(dtype, target, x);
                true
            }
            _ => false,
        };
    if done {
        return;
    }
    let each = target.iter_mut().enumerate();
    match instruction.operation {
        Operation::Unary(_) | Operation::Lookup(_) => {}
        Operation::Binary(Binary::Pow) => {
            let power = |i| power(dtype, sources[0], sources[1], i) as i64;
            each.for_each(|(i, y)| *y = wrap(dtype, power(i)));
        }
        Operation::Binary(binary) => each.for_each(|(i, y)| {
            *y = wrap(dtype, integer_binary(binary, sources[0].i64(i), sources[1].i64(i), bits));
        }),
        Operation::Select => each.for_each(|(i, y)| {
            *y = if sources[0].bool(i) { sources[1].i64(i) } else { sources[2].i64(i) };
        }),
        Operation::Cast | Operation::Number => match sources[0].class() {
            Class::F32 | Class::F64 => {
                each.for_each(|(i, y)| *y = truncated(dtype, sources[0].f64(i)));
            }
            Class::I64 | Class::U64 | Class::Bool => {
                each.for_each(|(i, y)| *y = wrap(dtype, sources[0].i64(i)));
            }
        },
    }
}

pub(super) fn compute_u64(instruction: &Instruction, target: &mut [u64], sources: &[Elements<'_>]) {
    if let (Operation::Binary(binary), &[a, b]) = (instruction.operation, sources) {
        // What wraps is the same with a sign.
        let [a, b] = [a, b].map(signed);
        if arithmetic(binary, DType::I64, cast_slice_mut(target), a, b) {
            return;
        }
    }
    let each = target.iter_mut().enumerate();
    match instruction.operation {
        Operation::Unary(unary) => {
            each.for_each(|(i, y)| *y = unsigned_unary(unary, sources[0].u64(i)));
        }
        Operation::Binary(Binary::Pow) => {
            each.for_each(|(i, y)| *y = power(DType::U64, sources[0], sources[1], i));
        }
        Operation::Binary(binary) => each.for_each(|(i, y)| {
            *y = unsigned_binary(binary, sources[0].u64(i), sources[1].u64(i));
        }),
        Operation::Select => each.for_each(|(i, y)| {
            *y = if sources[0].bool(i) { sources[1].u64(i) } else { sources[2].u64(i) };
        }),
        Operation::Cast | Operation::Number => match sources[0].class() {
            Class::F32 | Class::F64 => each.for_each(|(i, y)| {
                *y = number::truncated(DType::U64, sources[0].f64(i)) as u64;
            }),
            Class::I64 | Class::U64 | Class::Bool => {
                each.for_each(|(i, y)| *y = sources[0].u64(i));
            }
        },
        Operation::Lookup(_) => {}
    }
}

/// The bits of integers without a sign as integers with one.
fn signed(x: Elements<'_>) -> Elements<'_> {
    match x {
        Elements::U64(x) => Elements::I64(cast_slice(x)),
        Elements::Scalar(Scalar::U64(x)) => Elements::Scalar(Scalar::I64(x as i64)),
        x => x,
    }
}

/// A power of an integer, modulo 2⁶⁴: of a real exponent the real power, truncated.
fn power(dtype: DType, base: Elements<'_>, exponent: Elements<'_>, i: usize) -> u64 {
    match exponent.class() {
        Class::F32 | Class::F64 => {
            number::truncated(dtype, libm::pow(base.f64(i), exponent.f64(i))) as u64
        }
        Class::I64 | Class::U64 | Class::Bool => {
            integer_power(base.integer(i), exponent.integer(i))
        }
    }
}

pub(super) fn compute_bool(instruction: &Instruction, target: &mut [u8], sources: &[Elements<'_>]) {
    let each = target.iter_mut().enumerate();
    match (instruction.operation, sources[0]) {
        (Operation::Unary(unary), x) => match unary.meaning::<Native>() {
            Some(test) => each.for_each(|(i, y)| *y = u8::from(test(x.f64(i)) != 0.0)),
            // The only function of one truth value is its negation.
            None => each.for_each(|(i, y)| *y = u8::from(!x.bool(i))),
        },
        (Operation::Binary(binary), a) => compare(binary, target, a, sources[1]),
        (Operation::Select, condition) => each.for_each(|(i, y)| {
            *y = u8::from(if condition.bool(i) { sources[1].bool(i) } else { sources[2].bool(i) });
        }),
        (Operation::Cast | Operation::Number, x) => {
            each.for_each(|(i, y)| *y = u8::from(x.bool(i)));
        }
        (Operation::Lookup(_), _) => {}
    }
}

fn compare(binary: Binary, target: &mut [u8], a: Elements<'_>, b: Elements<'_>) {
    let each = target.iter_mut().enumerate();
    match (a.class(), binary.comparison::<f64>(), binary.comparison::<i64>()) {
        (Class::U64, Some(_), Some(_)) => {
            each.for_each(|(i, y)| *y = unsigned_binary(binary, a.u64(i), b.u64(i)) as u8);
        }
        (Class::F32 | Class::F64, Some(compare), _) => {
            each.for_each(|(i, y)| *y = u8::from(compare(&a.f64(i), &b.f64(i))));
        }
        (Class::I64, _, Some(compare)) => {
            each.for_each(|(i, y)| *y = u8::from(compare(&a.i64(i), &b.i64(i))));
        }
        _ => each.for_each(|(i, y)| {
            let (a, b) = (i64::from(a.bool(i)), i64::from(b.bool(i)));
            *y = u8::from(integer_binary(binary, a, b, 1) != 0);
        }),
    }
}
