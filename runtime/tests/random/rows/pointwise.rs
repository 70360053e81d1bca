//! Functions of single elements.

use crate::build::Build;
use graphene_frontend::dim::Dim;
use graphene_frontend::dtype::DType;
use graphene_frontend::graph::ValueId;
use graphene_frontend::op::{Binary, Op, Unary};

/// All functions of real numbers.
const REAL: [Unary; 39] = [
    Unary::Abs,
    Unary::Neg,
    Unary::Sign,
    Unary::Reciprocal,
    Unary::Sqrt,
    Unary::Exp,
    Unary::Log,
    Unary::Floor,
    Unary::Ceil,
    Unary::Round,
    Unary::Sin,
    Unary::Cos,
    Unary::Tan,
    Unary::Asin,
    Unary::Acos,
    Unary::Atan,
    Unary::Sinh,
    Unary::Cosh,
    Unary::Tanh,
    Unary::Asinh,
    Unary::Acosh,
    Unary::Atanh,
    Unary::Erf,
    Unary::Sigmoid,
    Unary::Relu,
    Unary::Gelu,
    Unary::GeluTanh,
    Unary::Swish { alpha: 1.0 },
    Unary::Softplus,
    Unary::Softsign,
    Unary::Mish,
    Unary::HardSwish,
    Unary::HardSigmoid { alpha: 0.2, beta: 0.5 },
    Unary::LeakyRelu { alpha: 0.01 },
    Unary::Elu { alpha: 1.0 },
    Unary::Celu { alpha: 1.5 },
    Unary::Selu { alpha: 1.67, gamma: 1.05 },
    Unary::ThresholdedRelu { alpha: 0.5 },
    Unary::Shrink { bias: 0.25, lambda: 0.5 },
];

const WHOLE: [Unary; 4] = [Unary::Abs, Unary::Neg, Unary::Sign, Unary::Relu];

const ARITHMETIC: [Binary; 9] = [
    Binary::Add,
    Binary::Sub,
    Binary::Mul,
    Binary::Div,
    Binary::Mod,
    Binary::Rem,
    Binary::Pow,
    Binary::Min,
    Binary::Max,
];

const COMPARISONS: [Binary; 5] =
    [Binary::Equal, Binary::Less, Binary::LessOrEqual, Binary::Greater, Binary::GreaterOrEqual];

const LOGIC: [Binary; 3] = [Binary::And, Binary::Or, Binary::Xor];

const BITS: [Binary; 5] =
    [Binary::BitAnd, Binary::BitOr, Binary::BitXor, Binary::ShiftLeft, Binary::ShiftRight];

/// Where a function has no value, one of its argument's sigmoid.
pub(super) fn unary(b: &mut Build) -> Option<()> {
    let x = b.real(0..=6);
    let unary = b.random.of(&REAL);
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
    let first = if b.random.chance(65) { 3 } else { ARITHMETIC.len() };
    let op = b.random.of(&ARITHMETIC[..first]);
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
    let op = b.random.of(&COMPARISONS);
    let x = b.value(|dtype| dtype != DType::Bool || op == Binary::Equal, 0..=6);
    binary(b, op, x)
}

pub(super) fn logic(b: &mut Build) -> Option<()> {
    let x = b.value(|dtype| dtype == DType::Bool, 0..=6);
    let op = b.random.of(&LOGIC);
    binary(b, op, x)
}

pub(super) fn bits(b: &mut Build) -> Option<()> {
    let x = b.value(DType::is_integer, 0..=6);
    let op = b.random.of(&BITS);
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
