//! How far what a kernel has for an expression may be from its exact value.

use std::borrow::Cow;

use super::fused::{Fold, Fused, Monoid, Scan, Term, Window};
use super::value::{Array, broadcast, folded, scanned, value, visit};
use crate::function::Node;
use crate::function::near::{Near, SINGLE, moves};
use crate::{Binary, Expr, Number, Result, Scalar, Step, Unary};

/// The whole numbers up to this are exact in single precision.
const WHOLE: f64 = 1.0 / SINGLE;

/// The distance of neighbours among numbers of TF32 between 1 and 2.
const TF32: f64 = 1.0 / 1024.0;

/// Of the unit of fp16, its least number.
pub(crate) const LEAST: f64 = 1.0 / 16_384.0;

/// What the kernel's expressions are.
type Numbers<'a> = &'a dyn Fn(&Expr) -> Option<i64>;

/// A tensor, and the most that each of its elements is off.
type Both = (Array, Array);

/// What a fold by, or a scan with, a function of two numbers makes of a tensor.
type Along<'a> = &'a dyn Fn(Binary, &Array) -> Array;

/// What an expression is evaluated by, beside its inputs.
#[derive(Clone, Copy)]
pub(crate) struct Given<'a> {
    /// What the outputs held before.
    pub(crate) outs: &'a [Array],
    pub(crate) number: Numbers<'a>,
    /// The unit of what matmuls round to.
    pub(crate) unit: f64,
}

impl Fused {
    /// The outputs, of the inputs and of what the outputs held before, in double precision. `number` says what the kernel's
    /// expressions are. Fails with [`crate::Error::Shape`] where the shapes do not fit, or a number is not known.
    pub fn values(&self, ins: &[Array], outs: &[Array], number: Numbers<'_>) -> Result<Vec<Array>> {
        let all = self.nearly(ins, Given { outs, number, unit: 0.0 })?;
        all.into_iter().zip(outs).map(|((value, _), out)| value.fit(&out.shape)).collect()
    }

    /// The outputs' elements in double precision, and the most that what is computed in single precision is off.
    ///
    /// A step's error is how far it moves between the ends of its operands' ranges, and 2⁻²⁴ of its value; where its operands
    /// are exact, it is what rounding its value to single precision takes. A sum is off by its terms' errors, and by 2⁻²⁴ of the
    /// sum of their absolute values for each of them, in whatever order it is computed; where that sum is at most 2²⁴ units
    /// of the terms' last places, by nothing: so what small whole numbers multiply and add up to are exact. What is computed and
    /// then multiplied as a matrix is rounded to a type of operands: `unit` is the largest of theirs. The shapes are the
    /// expressions'. Fails as [`values`](Fused::values) does.
    pub(crate) fn nearly(&self, ins: &[Array], by: Given<'_>) -> Result<Vec<Both>> {
        if let Some(all) = self.by_elements(ins, by) {
            return Ok(all);
        }
        let ins: Vec<_> = ins.iter().map(|x| (x.clone(), each(x, |_| 0.0))).collect();
        self.near(&ins, by)
    }

    /// Likewise, of functions of each element alone: nothing where there is more in it, or elements are not each other's.
    fn by_elements(&self, ins: &[Array], by: Given<'_>) -> Option<Vec<Both>> {
        let Given { outs, number, .. } = by;
        let shape = &outs.first()?.shape;
        let fits = |x: &Array| x.shape == *shape || x.data.len() == 1;
        if !outs.iter().all(|out| out.shape == *shape) || !ins.iter().all(fits) {
            return None;
        }
        let empty = || Array { shape: shape.clone(), data: Vec::with_capacity(outs[0].data.len()) };
        let mut all: Vec<_> = self.outputs().iter().map(|_| (empty(), empty())).collect();
        let mut near: Vec<Near> = Vec::with_capacity(self.steps().len());
        for element in 0..outs[0].data.len() {
            near.clear();
            let at = |x: &Array| Some(*x.data.get(element).or(x.data.first())?);
            for term in self.steps() {
                near.push(match term {
                    Term::Step(Step::Input(input)) => (at(ins.get(*input)?)?, 0.0),
                    Term::Step(step) => {
                        let mut of = [(0.0, 0.0); 3];
                        let places = of.iter_mut().zip(step.operands());
                        let count = places.map(|(of, x)| *of = near[x.index()]).count();
                        stepped(step, &of[..count])
                    }
                    Term::Old(output) => (at(outs.get(*output)?)?, 0.0),
                    Term::Index(value) => (number(value)? as f64, 0.0),
                    _ => return None,
                });
            }
            for ((values, errors), output) in all.iter_mut().zip(self.outputs()) {
                let (value, error) = near[output.index()];
                values.data.push(value);
                errors.data.push(error);
            }
        }
        Some(all)
    }

    /// Likewise, of inputs that are off themselves.
    fn near(&self, ins: &[Both], by: Given<'_>) -> Result<Vec<Both>> {
        let mut all: Vec<Cow<'_, Both>> = Vec::with_capacity(self.steps().len());
        let mut given: Vec<bool> = Vec::with_capacity(self.steps().len());
        for term in self.steps() {
            let reshaped = matches!(term, Term::Dims(..) | Term::Split(..) | Term::Merge(..));
            let chosen = matches!(term, Term::Slice(..) | Term::Window(..) | Term::Gather(..));
            let moved = term.input().is_some() || reshaped || chosen;
            let known: Vec<bool> = term.operands().map(|x| given[x.index()]).collect();
            given.push(moved && known.iter().all(|given| *given));
            let of: Vec<&Both> = term.operands().map(|x| &*all[x.index()]).collect();
            all.push(match term {
                Term::Step(Step::Input(input)) if *input < ins.len() => Cow::Borrowed(&ins[*input]),
                Term::Steps(count, next, _) => {
                    let of = of.into_iter().cloned().collect();
                    Cow::Owned(steps(count, next, of, by)?)
                }
                Term::Step(step) if !of.is_empty() => Cow::Owned(each_stepped(step, &of)?),
                _ => {
                    let values: Vec<&Array> = of.iter().map(|near| &near.0).collect();
                    let own = value(term, &values, by)?;
                    let error = error(term, &own, &of, &known, by)?;
                    Cow::Owned((own, error))
                }
            });
        }
        Ok(self.outputs().iter().map(|output| all[output.index()].clone().into_owned()).collect())
    }
}

/// The states of so many steps: what one is off, the next is of.
fn steps(count: &Expr, next: &Fused, mut given: Vec<Both>, by: Given<'_>) -> Result<Both> {
    let count = value(&Term::Index(count.clone()), &[], by)?.data[0] as i64;
    given.insert(1, (Array::one(0.0), Array::one(0.0)));
    let (mut all, mut errors) = given[0].clone();
    let shape = std::mem::take(&mut all.shape);
    for step in 0..count {
        given[1].0 = Array::one(step as f64);
        let (state, off) = next.near(&given, Given { outs: &[], ..by })?.remove(0);
        given[0] = (state.fit(&shape)?, off.fit(&shape)?);
        all.data.extend(&given[0].0.data);
        errors.data.extend(&given[0].1.data);
    }
    all.shape = [&[count as usize + 1], &shape[..]].concat();
    errors.shape.clone_from(&all.shape);
    Ok((all, errors))
}

fn each(x: &Array, of: impl Fn(f64) -> f64) -> Array {
    Array { shape: x.shape.clone(), data: x.data.iter().map(|&x| of(x)).collect() }
}

/// A function of each two elements of tensors of one shape.
fn each_pair(x: &Array, y: &Array, of: impl Fn(f64, f64) -> f64) -> Array {
    let data = x.data.iter().zip(&y.data).map(|(&x, &y)| of(x, y)).collect();
    Array { shape: x.shape.clone(), data }
}

fn sum(x: &Array, y: &Array) -> Array {
    each_pair(x, y, |x, y| x + y)
}

fn is_exact(x: &Array) -> bool {
    x.data.iter().all(|&error| error == 0.0)
}

/// A power of two that all elements are whole multiples of.
fn unit(x: &Array) -> Option<f64> {
    let fits = |scale: f64| x.data.iter().all(|x| (x * scale).fract() == 0.0);
    let scale = (0..=20).step_by(4).map(|bits| f64::from(1 << bits)).find(|&scale| fits(scale));
    scale.map(|scale| 1.0 / scale)
}

/// A function of each element, and what it is off.
fn each_stepped(step: &Step, of: &[&Both]) -> Result<Both> {
    let shape = broadcast(&of.iter().map(|near| &near.0.shape[..]).collect::<Vec<_>>())?;
    let alike = of.iter().all(|(x, _)| x.shape == shape || x.data.len() == 1);
    let count = shape.iter().product();
    let mut all = Vec::with_capacity(count);
    let mut add = |element: &dyn Fn(&Array) -> f64| {
        let mut near = [(0.0, 0.0); 3];
        near.iter_mut().zip(of).for_each(|(near, (x, off))| *near = (element(x), element(off)));
        all.push(stepped(step, &near[..of.len()]));
    };
    if alike {
        (0..count).for_each(|number| add(&|x| x.data[number.min(x.data.len() - 1)]));
    } else {
        visit(&shape, |at| add(&|x| x.at(at)));
    }
    let (values, errors) = all.into_iter().unzip();
    Ok((Array { shape: shape.clone(), data: values }, Array { shape, data: errors }))
}

/// What a term of such operands is off; of each operand, whether it is given rather than computed.
fn error(term: &Term, own: &Array, of: &[&Both], given: &[bool], by: Given<'_>) -> Result<Array> {
    let moved = |term: &Term, x: &Array| value(term, &[x], by);
    let none = || each(own, |_| 0.0);
    Ok(match (term, of) {
        (Term::Step(step @ Step::Constant(_)), _) => each(own, |_| stepped(step, &[]).1),
        (Term::Step(_) | Term::Old(_) | Term::Index(_) | Term::Position(..), _) => none(),
        (Term::MatMul(..), [(a, _), (b, _)]) => {
            let rounded = |which: usize| {
                each_pair(&of[which].0, &of[which].1, |x, off| {
                    let fits = given[which] || off == 0.0 && Scalar::F16.round(x) == x;
                    if fits { off } else { off + by.unit * (x.abs() + LEAST) }
                })
            };
            let [a_off, b_off] = [0, 1].map(rounded);
            let times = |a: &Array, b: &Array| value(term, &[a, b], by);
            let (a_size, b_size) = (each(a, f64::abs), each(b, f64::abs));
            let terms = a.shape.last().map_or(1, |&inner| inner) as f64;
            if is_exact(&a_off) && is_exact(&b_off) {
                let largest = |x: &Array| x.data.iter().copied().fold(0.0, f64::max);
                let most = terms * largest(&a_size) * largest(&b_size);
                if unit(a).zip(unit(b)).is_some_and(|(a, b)| most <= WHOLE * a * b) {
                    return Ok(none());
                }
                return Ok(each(&times(&a_size, &b_size)?, |size| 4.0 * terms * SINGLE * size));
            }
            // How far the left side moves, and what rounding is of, both times the right one.
            let (a_most, b_most) = (sum(&a_size, &a_off), sum(&b_size, &b_off));
            let all = times(&sum(&a_off, &each(&a_most, |x| 4.0 * terms * SINGLE * x)), &b_most)?;
            if is_exact(&b_off) { all } else { sum(&all, &times(&a_size, &b_off)?) }
        }
        (Term::Fold(fold, part, _), [x]) => fold_error(fold, *part, x, own),
        (Term::Scan(scan, _), [x]) => {
            let of = |op, x: &Array| scanned(x, &Scan { op, ..scan.clone() });
            let terms = x.0.shape.get(scan.along).map_or(1.0, |&size| size as f64);
            combined(scan.op, terms, x, own, &of)
        }
        (Term::Window(dim, window, value), [(_, off)]) => {
            moved(&Term::Window(*dim, Window { fill: Number(0.0), ..window.clone() }, *value), off)?
        }
        (Term::Gather(..), [(_, off), (index, _)]) => value(term, &[off, index], by)?,
        (Term::Dims(..) | Term::Split(..) | Term::Merge(..) | Term::Slice(..), [(_, off)]) => {
            return if is_exact(off) { Ok(none()) } else { moved(term, off) };
        }
        _ => unreachable!("a term has all its operands"),
    })
}

/// A step of values that are off.
fn stepped(step: &Step, of: &[Near]) -> Near {
    // How far a finite sum or multiplication moves is known without its values at the ends of ranges.
    let closed = match (step, of) {
        (Step::Binary(op @ (Binary::Add | Binary::Sub), ..), [(x, x_off), (y, y_off)]) => {
            Some((op.value(*x, *y), x_off + y_off))
        }
        (Step::Binary(Binary::Mul, ..), [(x, x_off), (y, y_off)]) => {
            Some((x * y, x.abs() * y_off + (y.abs() + y_off) * x_off))
        }
        _ => None,
    };
    let closed = closed.filter(|near| near.0.is_finite() && near.1.is_finite());
    let (own, moves) = closed.unwrap_or_else(|| moves(of, |x| step.value(&[], x)));
    let off = match step {
        Step::Round(scalar, _) if moves > 0.0 => moves + 2.0 * scalar.unit() * own.abs(),
        // What is nearly halfway may be rounded either way.
        Step::Unary(Unary::Tf32, _) if of[0].1 > 0.0 => of[0].1 + TF32 * own.abs(),
        Step::Round(..) => 0.0,
        _ if of.iter().all(|near| near.1 == 0.0) => {
            let rounded = (Scalar::F32.round(own) - own).abs();
            if rounded.is_nan() { 0.0 } else { rounded }
        }
        _ if own.is_infinite() => moves,
        _ => moves + SINGLE * (own.abs() + moves),
    };
    (own, off)
}

/// What a fold by, or a scan with, a function of two numbers is off.
fn combined(op: Binary, terms: f64, (x, off): &Both, own: &Array, of: Along<'_>) -> Array {
    match op {
        Binary::Add => {
            let size = of(Binary::Add, &sum(&each(x, f64::abs), off));
            let whole = |unit| size.data.iter().all(|&size| size <= WHOLE * unit);
            if is_exact(off) && unit(x).is_some_and(whole) {
                return each(own, |_| 0.0);
            }
            each_pair(&of(Binary::Add, off), &size, |off, size| off + terms * SINGLE * size)
        }
        Binary::Mul => {
            let share = |x: f64, off: f64| if off == 0.0 { 0.0 } else { off / x.abs() };
            let shares = of(Binary::Add, &each_pair(x, off, share));
            each_pair(own, &shares, |own, share| 2.0 * own.abs() * (share + terms * SINGLE))
        }
        _ => of(Binary::Max, off),
    }
}

/// What a part of a fold is off.
fn fold_error(fold: &Fold, part: usize, both: &Both, own: &Array) -> Array {
    let (x, off) = both;
    let along = |monoid| Fold { monoid, along: fold.along.clone() };
    let of = |op: Binary, x: &Array| folded(x, &along(Monoid::Of(op)), 0);
    let terms: f64 = fold.along.iter().map(|&dim| x.shape[dim] as f64).product();
    let most = off.data.iter().copied().fold(0.0, f64::max);
    match (fold.monoid, part) {
        (Monoid::Of(op), _) => combined(op, terms, both, own, &of),
        (Monoid::Softmax, 0) => of(Binary::Max, off),
        (Monoid::Softmax, _) => {
            let max = folded(x, fold, 0);
            let weights = Array::new(&x.shape, |at| {
                let below = x.at(at) - max.at(at);
                let off = off.at(at) + most + 4.0 * SINGLE * (1.0 - below);
                if below == f64::NEG_INFINITY { 0.0 } else { below.exp() * (off + terms * SINGLE) }
            });
            of(Binary::Add, &weights)
        }
        (Monoid::Welford, part) => {
            let mean = folded(x, fold, 0);
            let size = of(Binary::Add, &sum(&each(x, f64::abs), off));
            let moves = of(Binary::Add, off);
            let mean_off =
                each_pair(&moves, &size, |x, size| (x + (terms + 1.0) * SINGLE * size) / terms);
            if part == 0 {
                return mean_off;
            }
            let squares = Array::new(&x.shape, |at| {
                let (far, off) = ((x.at(at) - mean.at(at)).abs(), off.at(at) + mean_off.at(at));
                2.0 * far * off + off * off + (terms + 4.0) * SINGLE * far * far
            });
            each(&of(Binary::Add, &squares), |x| x / terms)
        }
    }
}
