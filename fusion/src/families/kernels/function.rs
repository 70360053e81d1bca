//! Functions of elements, from pointwise operations.
//!
//! Most templates compute in single precision, whatever the types of a model's values are; what a model rounds itself, by a
//! cast, is rounded. Integers are taken where single precision gives what integers would: conversions, and comparisons
//! with numbers that it holds; where all values are integers, they are computed with as such. Booleans are 0 and 1.

use super::{Refusal, ensure, scalar};
use crate::base::elements::{number_of, splat};
use crate::base::rebuild::Regrown;
use graphene_frontend::op::{Binary, FunctionClass, Op, Unary};
use graphene_frontend::{DType, Graph, NodeId, Tensor, ValueId};
use graphene_ir::kernel::{Binary as Of2, Unary as Of1};
use graphene_ir::{Function, Scalar};
use std::collections::{BTreeMap, BTreeSet};

/// Integers up to this magnitude are exact in single precision.
const EXACT: f64 = 16_777_216.0;

/// Integers up to this magnitude are exact as a function's numbers. (The next one is not told from that after it.)
const EXACT_WHOLE: f64 = 9_007_199_254_740_991.0;

/// The function that gives some values of a body from others, which are its inputs in this order.
///
/// # Errors
/// [`Refusal`] if it is made of something that is not pointwise, or not exact enough.
pub(super) fn function(
    body: &Graph,
    outputs: &[ValueId],
    inputs: &[ValueId],
) -> Result<Function, Refusal> {
    function_of(body, outputs, inputs, Scalar::F32)
}

/// The same to be computed with such numbers: single precision, or integers of 64 bits where all values are integers or
/// booleans; what has fewer wraps.
///
/// # Errors
/// As for [`function`]; and [`Refusal`] of integers if a value is no integer or boolean.
pub(super) fn function_of(
    body: &Graph,
    outputs: &[ValueId],
    inputs: &[ValueId],
    numbers: Scalar,
) -> Result<Function, Refusal> {
    let inputs = inputs.iter().enumerate();
    let known = inputs.map(|(number, &value)| (value, Function::input(number))).collect();
    let mut made = Making { body, numbers, known };
    let parts = outputs.iter().map(|&value| made.value(value));
    Ok(Function::all(parts.collect::<Result<Vec<_>, _>>()?))
}

/// What a walk from values to what they are made of does at a value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Walk {
    /// Goes on to its operands.
    On,
    /// Finds it.
    Found,
    /// Leaves it.
    Stop,
}

/// What some values are made of, in the body's order: its inputs, and what `walk` finds.
pub(super) fn leaves(
    body: &Graph,
    values: &[ValueId],
    walk: &dyn Fn(ValueId) -> Walk,
) -> Vec<ValueId> {
    let mut pending: Vec<ValueId> = values.to_vec();
    let (mut seen, mut leaves) = (BTreeSet::new(), BTreeSet::new());
    while let Some(value) = pending.pop() {
        if !seen.insert(value) {
            continue;
        }
        let node = body.node(value.node);
        match (walk(value), node.op()) {
            (Walk::Stop, _) => {}
            (Walk::Found, _) | (Walk::On, Op::Input) => drop(leaves.insert(value)),
            (Walk::On, _) => pending.extend(node.inputs().iter().flatten()),
        }
    }
    leaves.into_iter().collect()
}

/// The function that gives some values from one, which comes first, and from others after it; and these.
///
/// # Errors
/// As for [`function`].
pub(super) fn function_after(
    body: &Graph,
    outputs: &[ValueId],
    one: ValueId,
) -> Result<(Function, Vec<ValueId>), Refusal> {
    let others = leaves(body, outputs, &|value| if value == one { Walk::Stop } else { Walk::On });
    Ok((function(body, outputs, &[&[one][..], &others[..]].concat())?, others))
}

/// The numbers in which an operation on elements can be computed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Numbers {
    /// Single precision.
    pub(crate) single: bool,
    /// Integers of 64 bits.
    pub(crate) whole: bool,
}

impl Numbers {
    /// Where each operation finds its own, as on a CPU.
    pub(crate) const ANY: Numbers = Numbers { single: true, whole: true };

    /// Those of an operation of a graph, with others or alone: a function has the same ones for all of its steps.
    pub(crate) fn of(graph: &Graph, id: NodeId) -> Numbers {
        let (node, mut alone) = (graph.node(id), Regrown::default());
        let read = alone.read(node, |body, value| {
            match graph.constant(value).filter(|tensor| tensor.len() == 1) {
                Some(tensor) => Ok(body.add_constant("", tensor.clone())),
                None => body.add_input("", graph.ty(value).clone()),
            }
        });
        let made = read.and_then(|()| alone.copy(id, node)).map(NodeId::value);
        let Ok(made) = made else { return Numbers { single: false, whole: false } };
        let body = alone.graph;
        let inputs: Vec<ValueId> = body.inputs().iter().map(|id| id.value()).collect();
        let [single, whole] = [Scalar::F32, Scalar::I64]
            .map(|numbers| function_of(&body, &[made], &inputs, numbers).is_ok());
        Numbers { single, whole }
    }
}

struct Making<'a> {
    body: &'a Graph,
    /// What is computed with: single precision, or integers.
    numbers: Scalar,
    known: BTreeMap<ValueId, Function>,
}

impl Making<'_> {
    fn value(&mut self, value: ValueId) -> Result<Function, Refusal> {
        if let Some(known) = self.known.get(&value) {
            return Ok(known.clone());
        }
        let made = self.made(value)?;
        self.known.insert(value, made.clone());
        Ok(made)
    }

    fn made(&mut self, value: ValueId) -> Result<Function, Refusal> {
        let node = self.body.node(value.node);
        let op = node.op();
        if let Op::Constant(tensor) = op {
            let most = if self.numbers == Scalar::F32 { EXACT } else { EXACT_WHOLE };
            return constant(tensor, most);
        }
        let operands: Vec<ValueId> = node.inputs().iter().flatten().copied().collect();
        let types: Vec<DType> = operands.iter().map(|&value| self.body.ty(value).dtype).collect();
        let to = self.body.ty(value).dtype;
        let of = operands.iter().map(|&operand| self.value(operand));
        let of = of.collect::<Result<Vec<_>, _>>()?;
        if self.numbers == Scalar::I64 {
            return integers(op, &of, &types, to);
        }
        match (op, &of[..]) {
            (Op::Cast { .. }, [x]) => cast(x.clone(), types[0], to),
            (Op::Unary(op), [x]) => {
                floats(&types, &[to])?;
                match op {
                    // Its result is rounded to a half.
                    Unary::Gelu if to == DType::F16 => Ok(x.clone().unary(Of1::GeluHalf)),
                    _ => unary(*op, x.clone()),
                }
            }
            (Op::Binary(op), [x, y]) => {
                let numbers = [operands[0], operands[1]].map(|value| number_of(self.body, value));
                let small = numbers.iter().flatten().any(|number| number.abs() < EXACT);
                let compares =
                    matches!(op.info().class, FunctionClass::Order | FunctionClass::Same);
                if !(compares && small) {
                    floats(&types, &[to])?;
                }
                binary(*op, x.clone(), y.clone())
            }
            (Op::Select, [which, yes, no]) => {
                floats(&types, &[to])?;
                Ok(which.clone().select(yes.clone(), no.clone()))
            }
            _ => Err(Refusal::Operation(op.name())),
        }
    }
}

/// Whether all of these are floats or booleans that single precision holds.
pub(super) fn floats(types: &[DType], more: &[DType]) -> Result<(), Refusal> {
    for &dtype in types.iter().chain(more) {
        match dtype {
            DType::F32 | DType::F16 | DType::BF16 | DType::Bool => {}
            other if other.is_integer() => return Err(Refusal::Integers),
            other => return Err(Refusal::Elements(other)),
        }
    }
    Ok(())
}

fn constant(tensor: &Tensor, most: f64) -> Result<Function, Refusal> {
    let number = splat(tensor).ok_or(Refusal::Elements(tensor.dtype()))?;
    ensure(!number.is_nan(), Refusal::Operation("a constant that is no number"))?;
    ensure(!tensor.dtype().is_integer() || number.abs() <= most, Refusal::Integers)?;
    Ok(Function::constant(number))
}

fn cast(x: Function, from: DType, to: DType) -> Result<Function, Refusal> {
    scalar(from)?;
    Ok(match to {
        DType::F32 => x,
        DType::F16 | DType::BF16 => x.rounded(scalar(to)?),
        DType::Bool if from == DType::Bool => x,
        DType::Bool => x.binary(Of2::Unequal, 0.0),
        // Towards zero; what single precision holds beyond its digits is an integer already. NaN is 0, as where it is stored.
        _ if to.is_integer() && from.is_float() => {
            let sign = x.clone().unary(Of1::Sign);
            let whole = x.clone().unary(Of1::Abs).unary(Of1::Floor) * sign;
            x.unary(Of1::IsNan).select(0.0, whole)
        }
        _ if to.is_integer() && from == DType::Bool => x,
        _ => return Err(Refusal::Integers),
    })
}

/// An operation on integers and booleans.
fn integers(op: &Op, of: &[Function], types: &[DType], to: DType) -> Result<Function, Refusal> {
    use Unary::{Abs, Neg, Not, Relu, Sign};
    let refused = types.iter().chain([&to]).find(|dtype| dtype.is_float());
    if let Some(&dtype) = refused {
        return Err(Refusal::Elements(dtype));
    }
    types.iter().chain([&to]).try_for_each(|&dtype| scalar(dtype).map(drop))?;
    let wrapped = |x: Function| -> Result<Function, Refusal> {
        Ok(if matches!(to, DType::I64 | DType::Bool) { x } else { x.rounded(scalar(to)?) })
    };
    match (op, of) {
        (Op::Cast { .. }, [x]) if to == DType::Bool => Ok(x.clone().binary(Of2::Unequal, 0.0)),
        (Op::Cast { .. }, [x]) => wrapped(x.clone()),
        (Op::Unary(op @ (Neg | Abs | Sign | Not | Relu)), [x]) => wrapped(unary(*op, x.clone())?),
        // A divisor may be 0.
        (Op::Binary(Binary::Div | Binary::Mod | Binary::Rem | Binary::Pow), _) => {
            Err(Refusal::Integers)
        }
        (Op::Binary(op), [x, y]) => wrapped(binary(*op, x.clone(), y.clone())?),
        (Op::Select, [which, yes, no]) => Ok(which.clone().select(yes.clone(), no.clone())),
        _ => Err(Refusal::Integers),
    }
}

pub(super) fn unary(op: Unary, x: Function) -> Result<Function, Refusal> {
    let one = |op: Of1, x: Function| x.unary(op);
    let less = |x: &Function, bound: f64| x.clone().binary(Of2::Less, bound);
    let expm1 = |x: Function| x.unary(Of1::Expm1);
    Ok(match op {
        Unary::Abs => one(Of1::Abs, x),
        Unary::Neg => -x,
        Unary::Sign => one(Of1::Sign, x),
        Unary::Reciprocal => Function::constant(1.0) / x,
        Unary::Sqrt => one(Of1::Sqrt, x),
        Unary::Exp => one(Of1::Exp, x),
        Unary::Log => one(Of1::Log, x),
        Unary::Floor => one(Of1::Floor, x),
        Unary::Ceil => one(Of1::Ceil, x),
        Unary::Round => one(Of1::Round, x),
        Unary::Sin => one(Of1::Sin, x),
        Unary::Cos => one(Of1::Cos, x),
        Unary::Tan => one(Of1::Tan, x),
        Unary::Asin => one(Of1::Asin, x),
        Unary::Acos => one(Of1::Acos, x),
        Unary::Atan => one(Of1::Atan, x),
        Unary::Sinh => one(Of1::Sinh, x),
        Unary::Cosh => one(Of1::Cosh, x),
        Unary::Tanh => one(Of1::Tanh, x),
        Unary::ScaledTanh { alpha, beta } => one(Of1::Tanh, x * f64::from(beta)) * f64::from(alpha),
        Unary::Asinh => one(Of1::Asinh, x),
        Unary::Acosh => one(Of1::Acosh, x),
        Unary::Atanh => one(Of1::Atanh, x),
        Unary::Erf => one(Of1::Erf, x),
        Unary::Sigmoid => one(Of1::Sigmoid, x),
        Unary::Relu => x.binary(Of2::MaxNan, 0.0),
        Unary::Gelu => one(Of1::Gelu, x),
        Unary::GeluTanh => Function::gelu_tanh().after(&x),
        Unary::Swish { alpha } => x.clone() * one(Of1::Sigmoid, x * f64::from(alpha)),
        Unary::Softplus => softplus(x),
        Unary::Softsign => x.clone() / (one(Of1::Abs, x) + 1.0),
        Unary::Mish => x.clone() * one(Of1::Tanh, softplus(x)),
        Unary::HardSwish => x.clone() * hard_sigmoid(x, 1.0 / 6.0, 0.5),
        Unary::HardSigmoid { alpha, beta } => hard_sigmoid(x, alpha.into(), beta.into()),
        Unary::LeakyRelu { alpha } => less(&x, 0.0).select(x.clone() * f64::from(alpha), x),
        Unary::Elu { alpha } => less(&x, 0.0).select(expm1(x.clone()) * f64::from(alpha), x),
        Unary::Celu { alpha } => {
            let alpha = f64::from(alpha);
            let low = expm1(x.clone() / alpha) * alpha;
            x.binary(Of2::MaxNan, 0.0) + low.binary(Of2::MinNan, 0.0)
        }
        Unary::Selu { alpha, gamma } => {
            let (alpha, gamma) = (f64::from(alpha), f64::from(gamma));
            let high = Function::constant(0.0).binary(Of2::Less, x.clone());
            high.select(x.clone() * gamma, expm1(x) * (alpha * gamma))
        }
        Unary::ThresholdedRelu { alpha } => {
            Function::constant(alpha.into()).binary(Of2::Less, x.clone()).select(x, 0.0)
        }
        Unary::Shrink { bias, lambda } => {
            let (bias, lambda) = (f64::from(bias), f64::from(lambda));
            let high = Function::constant(lambda).binary(Of2::Less, x.clone());
            let middle = one(Of1::IsNan, x.clone()).select(x.clone(), 0.0);
            less(&x, -lambda).select(x.clone() + bias, high.select(x - bias, middle))
        }
        Unary::Not => x.binary(Of2::Equal, 0.0),
        Unary::BitNot => return Err(Refusal::Integers),
        Unary::IsNan => one(Of1::IsNan, x),
        Unary::IsInf { positive, negative } => {
            let infinite = |sign: f64| x.clone().binary(Of2::Equal, sign * f64::INFINITY);
            match (positive, negative) {
                (true, true) => x.clone().unary(Of1::Abs).binary(Of2::Equal, f64::INFINITY),
                (true, false) => infinite(1.0),
                (false, true) => infinite(-1.0),
                (false, false) => Function::constant(0.0),
            }
        }
    })
}

/// ln(1 + eˣ), as max(x, 0) + ln(1 + e⁻ˡˣˡ), which overflows nowhere.
fn softplus(x: Function) -> Function {
    let small = (-x.clone().unary(Of1::Abs)).unary(Of1::Exp).unary(Of1::Log1p);
    x.unary(Of1::Relu) + small
}

/// max(0, min(1, alpha·x + beta)); NaN stays.
fn hard_sigmoid(x: Function, alpha: f64, beta: f64) -> Function {
    (x * alpha + beta).binary(Of2::MaxNan, 0.0).binary(Of2::MinNan, 1.0)
}

fn binary(op: Binary, x: Function, y: Function) -> Result<Function, Refusal> {
    Ok(match op {
        Binary::Add => x + y,
        Binary::Sub => x - y,
        Binary::Mul => x * y,
        Binary::Div => x / y,
        // The remainder with the sign of x, moved by y where that is the other sign.
        Binary::Mod => {
            let rest = x.binary(Of2::Rem, y.clone());
            let other = (rest.clone() * y.clone()).binary(Of2::Less, 0.0);
            other.select(rest.clone() + y, rest)
        }
        Binary::Rem => x.binary(Of2::Rem, y),
        Binary::Pow => x.binary(Of2::Pow, y),
        Binary::Min => x.binary(Of2::MinNan, y),
        Binary::Max => x.binary(Of2::MaxNan, y),
        Binary::And => x * y,
        Binary::Or => x.binary(Of2::Max, y),
        Binary::Xor => x.binary(Of2::Unequal, y),
        Binary::Equal => x.binary(Of2::Equal, y),
        Binary::Less => x.binary(Of2::Less, y),
        Binary::LessOrEqual => x.binary(Of2::AtMost, y),
        Binary::Greater => y.binary(Of2::Less, x),
        Binary::GreaterOrEqual => y.binary(Of2::AtMost, x),
        Binary::BitAnd | Binary::BitOr | Binary::BitXor => return Err(Refusal::Integers),
        Binary::ShiftLeft | Binary::ShiftRight => return Err(Refusal::Integers),
    })
}

#[cfg(test)]
mod tests {
    use super::{EXACT_WHOLE, binary, constant, unary};
    use graphene_frontend::op::{Binary, Native, Parameter, Unary};
    use graphene_frontend::tensor::Tensor;
    use graphene_ir::function::Function;

    /// Numbers of every kind.
    const AT: [f64; 12] = [
        0.75,
        -0.75,
        0.0,
        1.5,
        -2.5,
        30.0,
        -30.0,
        0.01,
        -0.25,
        f64::INFINITY,
        f64::NEG_INFINITY,
        f64::NAN,
    ];

    fn check(name: &str, got: &[f64], expected: f64) {
        let same = got[0] == expected || got[0].is_nan() && expected.is_nan();
        let near = (got[0] - expected).abs() <= 1e-6 * expected.abs() + 1e-12;
        assert!(same || near, "{name} is {got:?}, not {expected}");
    }

    /// Whatever rows the table has, and whatever parameters.
    #[test]
    fn expressions_are_what_functions_mean() {
        for &function in Unary::ALL {
            let mut function = function;
            let parameters = function.parameters().into_iter().zip([0.375, 0.625]);
            for ((_, _, parameter), number) in parameters {
                if let Parameter::Number(old) = parameter {
                    *old = number;
                }
            }
            let Some(meaning) = function.meaning::<Native>() else { continue };
            let made = unary(function, Function::input(0)).unwrap();
            for x in AT {
                check(&format!("{function:?} of {x}"), &made.eval(&[x]), meaning(x));
            }
        }
        for &function in Binary::ALL {
            let Some(meaning) = function.meaning::<Native>() else { continue };
            let made = binary(function, Function::input(0), Function::input(1)).unwrap();
            for (a, b) in AT.iter().flat_map(|a| AT.iter().map(move |b| (*a, *b))) {
                check(&format!("{function:?} of {a} and {b}"), &made.eval(&[a, b]), meaning(a, b));
            }
        }
    }

    /// As double precision has them, the first integer that it does not hold and the one before it are one number.
    #[test]
    fn integers_that_are_not_told_apart_are_refused() {
        let taken = |number: i64| constant(&Tensor::scalar(number), EXACT_WHOLE).is_ok();
        for sign in [1, -1] {
            assert!(taken(sign * ((1 << 53) - 1)));
            assert!(!taken(sign * (1 << 53)));
            assert!(!taken(sign * ((1 << 53) + 1)));
        }
        assert!(!taken(i64::MIN));
    }
}
