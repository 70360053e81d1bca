//! Pointwise operations in symbols.

use super::{Abstract, Affine, MAX_ITEMS, coordinates, position, uniform_of};
use crate::dim::Dim;
use crate::dtype::DType;
use crate::op::{Binary, Unary};
use crate::types::TensorType;

pub(in crate::import) fn unary(op: Unary, x: &Abstract) -> Option<Abstract> {
    if let Abstract::Affine(affine) = x {
        match op {
            Unary::Neg => {
                let strides = affine.strides.iter().map(|stride| -stride).collect();
                let offset = -&affine.offset;
                return Some(Abstract::of_affine(Affine { strides, offset, ..affine.clone() }));
            }
            Unary::Floor | Unary::Ceil | Unary::Round => return Some(x.clone()),
            Unary::Abs | Unary::Relu if affine.range()?.0.lower_bound()? >= 0 => {
                return Some(x.clone());
            }
            _ if affine.is_uniform() => {
                let value = unary_item(op, &affine.offset)?;
                return Some(Abstract::of_affine(Affine::uniform(affine.dims.clone(), value)));
            }
            _ => return None,
        }
    }
    let Abstract::Elements { shape, items } = x else { return None };
    let items = items.iter().map(|item| unary_item(op, item)).collect::<Option<_>>()?;
    Some(Abstract::Elements { shape: shape.clone(), items })
}

fn unary_item(op: Unary, x: &Dim) -> Option<Dim> {
    let positive = || x.lower_bound().is_some_and(|low| low >= 0);
    match op {
        Unary::Neg => Some(-x),
        Unary::Abs if positive() => Some(x.clone()),
        Unary::Abs if x.upper_bound().is_some_and(|high| high <= 0) => Some(-x),
        Unary::Sign if x.lower_bound().is_some_and(|low| low >= 1) => Some(Dim::from(1)),
        Unary::Sign => Some(Dim::from(x.known()?.signum())),
        Unary::Floor | Unary::Ceil | Unary::Round => Some(x.clone()),
        Unary::Relu => Some(x.maximum(&Dim::from(0))),
        Unary::Not => Some(Dim::from(1 - x.known()?)),
        Unary::Sqrt => {
            let x = x.known().filter(|&x| x >= 0)?;
            let root = x.isqrt();
            (root * root == x).then(|| Dim::from(root))
        }
        _ => None,
    }
}

/// The quotient rounded down or up; nothing may be negative.
pub(in crate::import) fn rounded_quotient(
    op: Unary,
    a: &Abstract,
    b: &Abstract,
    result: &TensorType,
) -> Option<Abstract> {
    elementwise(a, b, result, |a, b| {
        if a.lower_bound()? < 0 || b.lower_bound()? < 1 {
            return None;
        }
        match op {
            Unary::Ceil => a.ceil_div(b).ok(),
            _ => a.floor_div(b).ok(),
        }
    })
}

pub(in crate::import) fn binary(
    op: Binary,
    a: &Abstract,
    b: &Abstract,
    dtype: DType,
    result: &TensorType,
) -> Option<Abstract> {
    let item = |a: &Dim, b: &Dim| binary_item(op, a, b, dtype);
    if let Some(known) = elementwise(a, b, result, item) {
        return Some(known);
    }
    let (a, b) = (spread(&a.affine()?, result), spread(&b.affine()?, result));
    match op {
        Binary::Add => combine(&a, &b, |x, y| x + y),
        Binary::Sub => combine(&a, &b, |x, y| x - y),
        Binary::Mul if b.is_uniform() => scale(&a, |x| Some(x * &b.offset)),
        Binary::Mul if a.is_uniform() => scale(&b, |x| Some(x * &a.offset)),
        Binary::Div if b.is_uniform() => scale(&a, |x| x.exact_div(&b.offset)),
        Binary::Mod | Binary::Rem if b.is_uniform() => {
            let (low, high) = a.range()?;
            let within = low.lower_bound()? >= 0 && high.is_at_most(&(&b.offset - &Dim::from(1)));
            within.then(|| Abstract::of_affine(a))
        }
        Binary::Min | Binary::Max => {
            let (low, high) = difference(&a, &b)?.range()?;
            let a_is_less = high.upper_bound().is_some_and(|high| high <= 0);
            let b_is_less = low.lower_bound().is_some_and(|low| low >= 0);
            match (op, a_is_less, b_is_less) {
                (Binary::Min, true, _) | (Binary::Max, _, true) => Some(Abstract::of_affine(a)),
                (Binary::Min, _, true) | (Binary::Max, true, _) => Some(Abstract::of_affine(b)),
                _ => None,
            }
        }
        Binary::Equal
        | Binary::Less
        | Binary::LessOrEqual
        | Binary::Greater
        | Binary::GreaterOrEqual => {
            let (low, high) = difference(&a, &b)?.range()?;
            let truth = compare(op, low.lower_bound(), high.upper_bound())?;
            Some(uniform_of(result, Dim::from(i64::from(truth))))
        }
        _ => None,
    }
}

/// Applies a function to elements if they are few, or to the value of uniform operands.
fn elementwise(
    a: &Abstract,
    b: &Abstract,
    result: &TensorType,
    item: impl Fn(&Dim, &Dim) -> Option<Dim>,
) -> Option<Abstract> {
    if let (Some(a), Some(b)) = (a.uniform(), b.uniform()) {
        return Some(uniform_of(result, item(&a, &b)?));
    }
    let shape = result.known_shape()?;
    let count = crate::tensor::checked_elements(&shape).filter(|&n| n <= MAX_ITEMS)?;
    let (a, b) = (Spread::new(a)?, Spread::new(b)?);
    let each = |i| {
        let place = coordinates(i, &shape);
        item(a.at(&place), b.at(&place))
    };
    let items = (0..count).map(each).collect::<Option<_>>()?;
    Some(Abstract::Elements { shape, items })
}

/// Elements seen at the coordinates of a shape that they broadcast to.
struct Spread {
    shape: Vec<usize>,
    items: Vec<Dim>,
}

impl Spread {
    fn new(x: &Abstract) -> Option<Self> {
        let shape: Option<Vec<usize>> =
            x.dims().iter().map(|dim| usize::try_from(dim.known()?).ok()).collect();
        Some(Self { shape: shape?, items: x.items()? })
    }

    fn at(&self, place: &[usize]) -> &Dim {
        let own = &place[place.len() - self.shape.len()..];
        let own: Vec<usize> =
            own.iter().zip(&self.shape).map(|(&c, &size)| if size == 1 { 0 } else { c }).collect();
        &self.items[position(&own, &self.shape)]
    }
}

fn binary_item(op: Binary, a: &Dim, b: &Dim, dtype: DType) -> Option<Dim> {
    let truth = |truth: bool| Some(Dim::from(i64::from(truth)));
    match op {
        Binary::Add => Some(a + b),
        Binary::Sub => Some(a - b),
        Binary::Mul => Some(a * b),
        Binary::Div => divide(a, b, dtype),
        Binary::Mod | Binary::Rem => {
            if b.lower_bound()? < 1 || (op == Binary::Rem && a.lower_bound()? < 0) {
                return None;
            }
            Some(a - &(b * &a.floor_div(b).ok()?))
        }
        Binary::Pow => {
            let power = b.known().filter(|power| (0..=4).contains(power))?;
            Some((0..power).fold(Dim::from(1), |product, _| product * a))
        }
        Binary::Min => Some(a.minimum(b)),
        Binary::Max => Some(a.maximum(b)),
        Binary::And => truth(a.known()? != 0 && b.known()? != 0),
        Binary::Or => truth(a.known()? != 0 || b.known()? != 0),
        Binary::Xor => truth((a.known()? != 0) != (b.known()? != 0)),
        Binary::Equal
        | Binary::Less
        | Binary::LessOrEqual
        | Binary::Greater
        | Binary::GreaterOrEqual => {
            let difference = a - b;
            truth(compare(op, difference.lower_bound(), difference.upper_bound())?)
        }
        Binary::BitAnd
        | Binary::BitOr
        | Binary::BitXor
        | Binary::ShiftLeft
        | Binary::ShiftRight => None,
    }
}

fn divide(a: &Dim, b: &Dim, dtype: DType) -> Option<Dim> {
    if *b == 0 {
        return None;
    }
    if let Some(quotient) = a.exact_div(b) {
        return Some(quotient);
    }
    if dtype.is_float() {
        return None;
    }
    if let (Some(a), Some(b)) = (a.known(), b.known()) {
        return a.checked_div(b).map(Dim::from);
    }
    if a.lower_bound()? < 0 || b.lower_bound()? < 1 {
        return None;
    }
    a.floor_div(b).ok()
}

/// Whether a comparison holds for a - b within these bounds, if it always or never does.
fn compare(op: Binary, low: Option<i64>, high: Option<i64>) -> Option<bool> {
    let least = |n: i64| low.is_some_and(|low| low >= n);
    let most = |n: i64| high.is_some_and(|high| high <= n);
    let (always, never) = match op {
        Binary::Equal => (least(0) && most(0), least(1) || most(-1)),
        Binary::Less => (most(-1), least(0)),
        Binary::LessOrEqual => (most(0), least(1)),
        Binary::Greater => (least(1), most(0)),
        Binary::GreaterOrEqual => (least(0), most(-1)),
        _ => return None,
    };
    match (always, never) {
        (true, _) => Some(true),
        (_, true) => Some(false),
        (false, false) => None,
    }
}

pub(in crate::import) fn select(
    condition: &Abstract,
    a: &Abstract,
    b: &Abstract,
    result: &TensorType,
) -> Option<Abstract> {
    if let Some(truth) = condition.uniform().and_then(|truth| truth.known()) {
        let chosen = if truth != 0 { a } else { b };
        return Some(Abstract::of_affine(spread(&chosen.affine()?, result))).or_else(|| {
            let zero = Abstract::scalar(Dim::from(0));
            elementwise(chosen, &zero, result, |x, _| Some(x.clone()))
        });
    }
    let shape = result.known_shape()?;
    let count = crate::tensor::checked_elements(&shape).filter(|&n| n <= MAX_ITEMS)?;
    let (condition, a, b) = (Spread::new(condition)?, Spread::new(a)?, Spread::new(b)?);
    let each = |i| {
        let place = coordinates(i, &shape);
        let (a, b) = (a.at(&place), b.at(&place));
        if a == b {
            return Some(a.clone());
        }
        Some(if condition.at(&place).known()? != 0 { a.clone() } else { b.clone() })
    };
    let items = (0..count).map(each).collect::<Option<_>>()?;
    Some(Abstract::Elements { shape, items })
}

pub(in crate::import) fn cast(x: &Abstract, to: DType) -> Option<Abstract> {
    if to == DType::Bool {
        return truth(x);
    }
    let fits = |low: &Dim, high: &Dim| match to {
        // Sizes are taken to be far below the end of these.
        DType::I64 | DType::I32 | DType::F32 | DType::F64 => true,
        DType::U64 | DType::U32 => low.lower_bound().is_some_and(|low| low >= 0),
        DType::I8 => within(low, high, i64::from(i8::MIN), i64::from(i8::MAX)),
        DType::I16 => within(low, high, i64::from(i16::MIN), i64::from(i16::MAX)),
        DType::U8 => within(low, high, 0, i64::from(u8::MAX)),
        DType::U16 => within(low, high, 0, i64::from(u16::MAX)),
        DType::F16 => within(low, high, -2048, 2048),
        DType::BF16 => within(low, high, -256, 256),
        _ => false,
    };
    let fits = match x {
        Abstract::Elements { items, .. } => items.iter().all(|item| fits(item, item)),
        Abstract::Affine(affine) => affine.range().is_some_and(|(low, high)| fits(&low, &high)),
    };
    fits.then(|| x.clone())
}

fn within(low: &Dim, high: &Dim, least: i64, most: i64) -> bool {
    low.lower_bound().is_some_and(|low| low >= least)
        && high.upper_bound().is_some_and(|high| high <= most)
}

/// Which elements are not zero, if that is known of each.
fn truth(x: &Abstract) -> Option<Abstract> {
    let nonzero = |low: &Dim, high: &Dim| {
        let apart = low.lower_bound().is_some_and(|low| low >= 1)
            || high.upper_bound().is_some_and(|high| high <= -1);
        match apart {
            true => Some(Dim::from(1)),
            false if low == high => Some(Dim::from(i64::from(low.known()? != 0))),
            false => None,
        }
    };
    match x {
        Abstract::Elements { shape, items } => {
            let items = items.iter().map(|item| nonzero(item, item)).collect::<Option<_>>()?;
            Some(Abstract::Elements { shape: shape.clone(), items })
        }
        Abstract::Affine(affine) => {
            let (low, high) = affine.range()?;
            let value = nonzero(&low, &high)?;
            Some(Abstract::of_affine(Affine::uniform(affine.dims.clone(), value)))
        }
    }
}

/// The same elements broadcast to the result's shape.
pub(super) fn spread(x: &Affine, result: &TensorType) -> Affine {
    let new = result.rank().saturating_sub(x.dims.len());
    let mut strides = vec![Dim::from(0); new];
    for (dim, stride) in x.dims.iter().zip(&x.strides) {
        strides.push(if *dim == 1 { Dim::from(0) } else { stride.clone() });
    }
    Affine { dims: result.shape.clone(), strides, offset: x.offset.clone() }
}

fn combine(a: &Affine, b: &Affine, f: impl Fn(&Dim, &Dim) -> Dim) -> Option<Abstract> {
    let strides = a.strides.iter().zip(&b.strides).map(|(a, b)| f(a, b)).collect();
    let offset = f(&a.offset, &b.offset);
    Some(Abstract::of_affine(Affine { dims: a.dims.clone(), strides, offset }))
}

fn scale(a: &Affine, f: impl Fn(&Dim) -> Option<Dim>) -> Option<Abstract> {
    let strides = a.strides.iter().map(&f).collect::<Option<_>>()?;
    Some(Abstract::of_affine(Affine { dims: a.dims.clone(), strides, offset: f(&a.offset)? }))
}

fn difference(a: &Affine, b: &Affine) -> Option<Affine> {
    match combine(a, b, |a, b| a - b)? {
        Abstract::Affine(affine) => Some(affine),
        elements @ Abstract::Elements { .. } => elements.affine(),
    }
}
