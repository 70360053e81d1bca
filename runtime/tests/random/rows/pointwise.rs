//! Functions of single elements.

use crate::build::Build;
use graphene_frontend::dim::Dim;
use graphene_frontend::dtype::DType;
use graphene_frontend::graph::ValueId;
use graphene_frontend::op::{Binary, FunctionClass, Op, Parameter, Unary};

const WHOLE: [Unary; 4] = [Unary::Abs, Unary::Neg, Unary::Sign, Unary::Relu];

/// A function of real numbers, of any parameters.
fn real(b: &mut Build) -> Unary {
    let is_real =
        |unary: &Unary| matches!(unary.info().class, FunctionClass::Number | FunctionClass::Real);
    let all: Vec<Unary> = Unary::ALL.iter().copied().filter(is_real).collect();
    let mut unary = b.random.of(&all);
    for (_, _, parameter) in unary.parameters() {
        if let Parameter::Number(number) = parameter {
            *number = b.random.of(&[0.25, 0.5, 1.0, 1.5]);
        }
    }
    unary
}

/// The functions of two elements of these classes.
fn of(classes: &[FunctionClass]) -> Vec<Binary> {
    let all = Binary::ALL.iter().copied();
    all.filter(|binary| classes.contains(&binary.info().class)).collect()
}

/// Where a function has no value, one of its argument's sigmoid.
pub(super) fn unary(b: &mut Build) -> Option<()> {
    let x = b.real(0..=6);
    let unary = real(b);
    if b.unary(unary, x).is_none() {
        let x = b.unary(Unary::Sigmoid, x)?;
        b.unary(unary, x)?;
    }
    Some(())
}

pub(super) fn unary_whole(b: &mut Build) -> Option<()> {
    if b.random.chance(30) {
        let x = b.real(0..=6);
        let tests = [Unary::IsNan, Unary::IsInf { positive: true, negative: false }];
        let test = b.random.of(&tests);
        b.unary(test, x)?;
        return Some(());
    }
    let x = b.value(|dtype| !dtype.is_float(), 0..=6);
    let unary = match b.dtype(x) {
        DType::Bool => Unary::Not,
        _ if b.random.chance(20) => Unary::BitNot,
        _ => b.random.of(&WHOLE),
    };
    b.unary(unary, x).map(drop)
}

/// An operand that broadcasts with a value: another value, or a new one with fewer dims or ones among them.
pub(super) fn other(b: &mut Build, x: ValueId) -> ValueId {
    let ty = b.ty(x);
    let plain = |a: &Dim, b: &Dim| a == b || *a == 1 || *b == 1;
    let fits =
        |shape: &[Dim]| shape.iter().rev().zip(ty.shape.iter().rev()).all(|(a, b)| plain(a, b));
    if b.random.chance(70)
        && let Some(y) = b.pick(|other| other.dtype == ty.dtype && fits(&other.shape))
    {
        return y;
    }
    if b.random.chance(15) {
        let number = b.random.of(&[-1.0, 0.0, 0.5, 1.0, 2.0, 3.0]);
        return b.scalar(ty.dtype, number);
    }
    let dropped = b.random.below(ty.rank() + 1) * b.random.below(2);
    let mut shape = ty.shape[dropped..].to_vec();
    for dim in &mut shape {
        if b.random.chance(30) {
            *dim = Dim::from(1);
        } else if *dim == 1 && b.random.chance(20) {
            *dim = b.dim();
        }
    }
    if shape.len() < 4 && b.random.chance(5) {
        shape.insert(0, b.dim());
    }
    let shape = b.within(shape);
    b.input(ty.dtype, shape)
}

fn binary(b: &mut Build, op: Binary, x: ValueId) -> Option<()> {
    let y = other(b, x);
    let (x, y) = if b.random.chance(30) { (y, x) } else { (x, y) };
    b.add(Op::Binary(op), &[x, y]).map(drop)
}

pub(super) fn arithmetic(b: &mut Build) -> Option<()> {
    let x = b.value(|dtype| dtype != DType::Bool, 0..=6);
    // Sums and differences and products are what models have.
    let common = [Binary::Add, Binary::Sub, Binary::Mul];
    let all = of(&[FunctionClass::Number]);
    let op = if b.random.chance(65) { b.random.of(&common) } else { b.random.of(&all) };
    if op == Binary::Pow && b.wild && b.dtype(x).is_float() {
        // Fused plans take x^½ for a root, which it is but at -∞.
        return None;
    }
    if op == Binary::Pow && b.random.chance(30) {
        // Its exponents may be of another type.
        let y = b.value(|dtype| dtype != DType::Bool, 0..=6);
        return b.add(Op::Binary(op), &[x, y]).map(drop);
    }
    binary(b, op, x)
}

pub(super) fn comparison(b: &mut Build) -> Option<()> {
    let op = b.random.of(&of(&[FunctionClass::Same, FunctionClass::Order]));
    let x = b.value(|dtype| dtype != DType::Bool || op == Binary::Equal, 0..=6);
    binary(b, op, x)
}

pub(super) fn logic(b: &mut Build) -> Option<()> {
    let x = b.value(|dtype| dtype == DType::Bool, 0..=6);
    let op = b.random.of(&of(&[FunctionClass::Logical]));
    binary(b, op, x)
}

pub(super) fn bits(b: &mut Build) -> Option<()> {
    let x = b.value(DType::is_integer, 0..=6);
    let op = b.random.of(&of(&[FunctionClass::Bits]));
    binary(b, op, x)
}

pub(super) fn select(b: &mut Build) -> Option<()> {
    let x = b.value(|_| true, 0..=6);
    let y = other(b, x);
    let condition = match b.random.chance(50) {
        true => {
            let z = other(b, x);
            let op = if b.dtype(x) == DType::Bool { Binary::Equal } else { Binary::Less };
            b.add(Op::Binary(op), &[x, z])?
        }
        false => {
            let shape = b.shape(x);
            b.input(DType::Bool, shape)
        }
    };
    b.add(Op::Select, &[condition, x, y]).map(drop)
}

pub(super) fn cast(b: &mut Build) -> Option<()> {
    let x = b.value(|_| true, 0..=6);
    let common = [DType::F32, DType::F32, DType::F16, DType::BF16, DType::F64, DType::I64];
    let all: Vec<DType> = DType::all().collect();
    let to = if b.random.chance(65) { b.random.of(&common) } else { b.random.of(&all) };
    b.add(Op::Cast { to, saturate: true }, &[x]).map(drop)
}

pub(super) fn bit_cast(b: &mut Build) -> Option<()> {
    let x = b.value(DType::is_integer, 0..=6);
    let to = match b.dtype(x) {
        DType::I32 => DType::U32,
        DType::I64 => DType::U64,
        DType::I8 => DType::U8,
        DType::U8 => DType::I8,
        DType::U32 => DType::I32,
        DType::U64 => DType::I64,
        _ => return None,
    };
    b.add(Op::BitCast(to), &[x]).map(drop)
}
