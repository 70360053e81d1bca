//! Tensors of numbers, and what expressions are of them.

use std::ops::Range;

use super::fused::{Fold, Monoid, Scan, Term, Window};
use super::near::Given;
use crate::{Error, Expr, Result, Step};

/// A tensor of numbers, the last dimension running fastest.
#[derive(Debug, Clone, PartialEq)]
pub struct Array {
    /// The dimensions' sizes.
    pub shape: Vec<usize>,
    /// The elements.
    pub data: Vec<f64>,
}

impl Array {
    /// The tensor whose elements are these.
    pub fn new(shape: &[usize], mut element: impl FnMut(&[usize]) -> f64) -> Array {
        let mut data = Vec::with_capacity(shape.iter().product());
        visit(shape, |at| data.push(element(at)));
        Array { shape: shape.to_vec(), data }
    }

    /// A tensor without dimensions.
    pub(crate) fn one(element: f64) -> Array {
        Array { shape: Vec::new(), data: vec![element] }
    }

    /// The element that stands at these coordinates where the tensor is broadcast.
    pub fn at(&self, at: &[usize]) -> f64 {
        let own = at.len() - self.shape.len();
        let dims = self.shape.iter().zip(&at[own..]);
        self.data[dims.fold(0, |offset, (&size, &at)| offset * size + at.min(size - 1))]
    }

    /// The tensor as one of another shape, which differs from its own in dimensions of 1 or broadcasts it. Fails with
    /// [`Error::Shape`] where it does neither.
    pub fn fit(self, shape: &[usize]) -> Result<Array> {
        if self.shape == shape {
            return Ok(self);
        }
        let more = |shape: &[usize]| -> Vec<usize> {
            shape.iter().copied().filter(|&size| size != 1).collect()
        };
        if more(&self.shape) == more(shape) {
            return Ok(Array { shape: shape.to_vec(), ..self });
        }
        if broadcast(&[&self.shape, shape])? != shape {
            return refuse(format!("{:?} does not broadcast to {shape:?}", self.shape));
        }
        Ok(Array::new(shape, |at| self.at(at)))
    }
}

/// All coordinates, in order.
pub(super) fn visit(shape: &[usize], mut visit: impl FnMut(&[usize])) {
    let mut at = vec![0; shape.len()];
    for _ in 0..shape.iter().product() {
        visit(&at);
        for (at, &size) in at.iter_mut().zip(shape).rev() {
            *at += 1;
            if *at < size {
                break;
            }
            *at = 0;
        }
    }
}

fn refuse<T>(why: String) -> Result<T> {
    Err(Error::Shape(why))
}

/// The shape to which all of these broadcast.
pub(super) fn broadcast(shapes: &[&[usize]]) -> Result<Vec<usize>> {
    let rank = shapes.iter().map(|shape| shape.len()).max().unwrap_or(0);
    let mut all = vec![1; rank];
    for shape in shapes {
        for (all, &size) in all[rank - shape.len()..].iter_mut().zip(*shape) {
            if *all != size && *all != 1 && size != 1 {
                return refuse(format!("{shapes:?} do not broadcast"));
            }
            *all = if *all == 1 { size } else { *all };
        }
    }
    Ok(all)
}

/// A term of exact operands, but those that [`near`](super::near) evaluates itself: inputs and steps.
pub(super) fn value(term: &Term, of: &[&Array], by: Given<'_>) -> Result<Array> {
    let unknown = |expr: &Expr| Error::Shape(format!("the value of {expr} is not known"));
    let value = |expr: &Expr| (by.number)(expr).ok_or_else(|| unknown(expr));
    let size = |expr: &Expr| usize::try_from(value(expr)?).map_err(|_| unknown(expr));
    let missing = |which: &usize| Error::Shape(format!("there is no operand {which}"));
    match (term, of) {
        (Term::Step(Step::Input(input)), _) => Err(missing(input)),
        (Term::Old(output), _) => by.outs.get(*output).cloned().ok_or_else(|| missing(output)),
        (Term::Step(step), _) => Ok(Array::one(step.value(&[], &[]))),
        (Term::Index(expr), _) => Ok(Array::one(value(expr)? as f64)),
        (Term::MatMul(..), [a, b]) => matmul(a, b),
        (Term::Gather(..), [table, index]) => gather(table, index),
        (Term::Dims(dims, _), [x]) => {
            let sizes = dims.iter().map(|dim| dim.map_or(Some(1), |d| x.shape.get(d).copied()));
            let Some(shape) = sizes.collect::<Option<Vec<usize>>>() else {
                return refuse(format!("{:?} has not the dimensions {dims:?}", x.shape));
            };
            Ok(permuted(x, dims, shape))
        }
        (Term::Fold(fold, part, _), [x]) => {
            fold.along.iter().try_for_each(|&dim| has(x, dim))?;
            Ok(folded(x, fold, *part))
        }
        (Term::Scan(scan, _), [x]) => has(x, scan.along).map(|()| scanned(x, scan)),
        (Term::Position(dim, _), [x]) => {
            has(x, *dim).map(|()| Array::new(&x.shape, |at| at[*dim] as f64))
        }
        (Term::Split(dim, inner, _), [x]) => {
            has(x, *dim)?;
            let (mut shape, inner) = (x.shape.clone(), size(inner)?.max(1));
            shape.splice(*dim..=*dim, [x.shape[*dim] / inner, inner]);
            reshaped(x, shape)
        }
        (Term::Merge(dim, _), [x]) => {
            has(x, dim + 1)?;
            let mut shape = x.shape.clone();
            shape.splice(*dim..=dim + 1, [x.shape[*dim] * x.shape[dim + 1]]);
            reshaped(x, shape)
        }
        (Term::Slice(dim, first, count, _), [x]) => {
            has(x, *dim)?;
            let (first, count) = (size(first)?, size(count)?);
            if first + count > x.shape[*dim] {
                return refuse(format!("{:?} ends before {first} + {count}", x.shape));
            }
            Ok(sliced(x, *dim, first..first + count))
        }
        (Term::Window(dim, window, _), [x]) => {
            has(x, *dim)?;
            Ok(windows(x, *dim, window, size(&window.count)?))
        }
        _ => unreachable!("a term has all its operands"),
    }
}

fn has(x: &Array, dim: usize) -> Result {
    let none = || refuse(format!("{:?} has no dimension {dim}", x.shape));
    if dim < x.shape.len() { Ok(()) } else { none() }
}

fn reshaped(x: &Array, shape: Vec<usize>) -> Result<Array> {
    if shape.iter().product::<usize>() != x.data.len() {
        return refuse(format!("{:?} does not become {shape:?}", x.shape));
    }
    Ok(Array { shape, data: x.data.clone() })
}

/// A tensor of some dimensions of another, in their order; it is the same along those that are new.
fn permuted(x: &Array, dims: &[Option<usize>], shape: Vec<usize>) -> Array {
    let stride =
        |dim: &Option<usize>| dim.map_or(0, |dim| x.shape[dim + 1..].iter().product::<usize>());
    let mut strides: Vec<usize> = dims.iter().map(stride).collect();
    let (Some(&count), Some(last)) = (shape.last(), strides.pop()) else {
        return Array { shape, data: vec![x.data[0]] };
    };
    let mut data = Vec::with_capacity(shape.iter().product());
    visit(&shape[..shape.len() - 1], |at| {
        let first: usize = at.iter().zip(&strides).map(|(at, stride)| at * stride).sum();
        data.extend((0..count).map(|i| x.data[first + i * last]));
    });
    Array { shape, data }
}

/// The part of a tensor that has these coordinates along a dimension.
fn sliced(x: &Array, dim: usize, part: Range<usize>) -> Array {
    let (mut shape, inner) = (x.shape.clone(), x.shape[dim + 1..].iter().product::<usize>());
    shape[dim] = part.len();
    let outer = x.data.chunks((inner * x.shape[dim]).max(1));
    let parts = outer.flat_map(|of| &of[part.start * inner..part.end * inner]);
    Array { data: parts.copied().collect(), shape }
}

fn matmul(a: &Array, b: &Array) -> Result<Array> {
    // A vector is a row on the left, a column on the right.
    let (mut left, mut right) = (a.shape.clone(), b.shape.clone());
    while left.len() < 2 {
        left.insert(0, 1);
    }
    while right.len() < 2 {
        right.push(1);
    }
    let (ranks, inner) = ([left.len() - 2, right.len() - 2], left[left.len() - 1]);
    if right[ranks[1]] != inner {
        return refuse(format!("{:?} times {:?} is no matmul", a.shape, b.shape));
    }
    let mut shape = broadcast(&[&left[..ranks[0]], &right[..ranks[1]]])?;
    let batch = shape.len();
    shape.extend([left[ranks[0]], right[ranks[1] + 1]]);
    let first = |shape: &[usize], at: &[usize]| {
        let (own, matrix) = shape.split_at(shape.len() - 2);
        let dims = own.iter().zip(&at[batch - own.len()..]);
        let number = dims.fold(0, |offset, (&size, &at)| offset * size + at.min(size - 1));
        number * matrix[0] * matrix[1]
    };
    let columns = shape[batch + 1];
    let mut data = Vec::with_capacity(shape.iter().product());
    // A row at a time, to which each row of the right side is added.
    visit(&shape[..=batch], |at| {
        let (row, matrix) = (first(&left, at) + at[batch] * inner, first(&right, at));
        let start = data.len();
        data.resize(start + columns, 0.0);
        for k in 0..inner {
            let (x, from) = (a.data[row + k], matrix + k * columns);
            let sums = data[start..].iter_mut().zip(&b.data[from..from + columns]);
            sums.for_each(|(sum, y)| *sum += x * y);
        }
    });
    Ok(Array { shape, data })
}

fn gather(table: &Array, index: &Array) -> Result<Array> {
    has(table, 0)?;
    let last = table.shape[0] as f64 - 1.0;
    let shape = [&index.shape[..], &table.shape[1..]].concat();
    let rank = index.shape.len();
    Ok(Array::new(&shape, |at| {
        let which = index.at(&at[..rank]);
        let which = if which < 0.0 { which + last + 1.0 } else { which };
        let row = which.min(last).max(0.0) as usize;
        table.at(&[&[row], &at[rank..]].concat())
    }))
}

pub(super) fn folded(x: &Array, fold: &Fold, part: usize) -> Array {
    let (mut kept, mut inner) = (x.shape.clone(), vec![1; x.shape.len()]);
    for &dim in &fold.along {
        kept[dim] = 1;
        inner[dim] = x.shape[dim];
    }
    // Where the elements of one fold lie, and where each fold begins.
    let number = |at: &[usize], kept: bool| {
        let own = |dim: usize| if kept && fold.along.contains(&dim) { 0 } else { at[dim] };
        x.shape.iter().enumerate().fold(0, |number, (dim, size)| number * size + own(dim))
    };
    let mut along = Vec::with_capacity(inner.iter().product());
    visit(&inner, |at| along.push(number(at, false)));
    let mut elements = Vec::with_capacity(along.len());
    Array::new(&kept, |at| {
        let first = number(at, true);
        elements.clear();
        elements.extend(along.iter().map(|further| x.data[first + further]));
        fold.monoid.value(part, &elements)
    })
}

impl Monoid {
    /// A part of what it makes of these elements.
    pub fn value(self, part: usize, elements: &[f64]) -> f64 {
        let count = elements.len() as f64;
        let sum = |of: &dyn Fn(f64) -> f64| elements.iter().map(|&x| of(x)).sum::<f64>();
        let max = elements.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        match (self, part) {
            (Monoid::Of(op), _) => {
                let neutral = op.neutral().unwrap_or(f64::NAN);
                elements.iter().fold(neutral, |all, &x| op.value(all, x))
            }
            (Monoid::Softmax, 0) => max,
            (Monoid::Softmax, _) => sum(&|x| if x == max { 1.0 } else { (x - max).exp() }),
            (Monoid::Welford, 0) => sum(&|x| x) / count,
            (Monoid::Welford, _) => {
                let mean = sum(&|x| x) / count;
                sum(&|x| (x - mean).powi(2)) / count
            }
        }
    }
}

pub(super) fn scanned(x: &Array, scan: &Scan) -> Array {
    let (size, inner) = (x.shape[scan.along], x.shape[scan.along + 1..].iter().product::<usize>());
    let mut scanned = x.clone();
    for first in (0..x.data.len()).filter(|at| at / inner % size == 0) {
        let mut all = scan.op.neutral().unwrap_or(f64::NAN);
        for i in 0..size {
            let at = first + inner * if scan.reverse { size - 1 - i } else { i };
            let with = scan.op.value(all, x.data[at]);
            scanned.data[at] = if scan.exclusive { all } else { with };
            all = with;
        }
    }
    scanned
}

fn windows(x: &Array, dim: usize, window: &Window, count: usize) -> Array {
    let mut shape = x.shape.clone();
    shape[dim] = count;
    shape.push(usize::try_from(window.size).unwrap_or(0));
    let mut own = vec![0; x.shape.len()];
    Array::new(&shape, |at| {
        own.copy_from_slice(&at[..x.shape.len()]);
        let [place, within] = [at[dim], at[at.len() - 1]].map(|at| at as i64);
        let from = place * window.stride + within * window.dilation - window.before;
        match usize::try_from(from) {
            Ok(from) if from < x.shape[dim] => {
                own[dim] = from;
                x.at(&own)
            }
            Ok(_) | Err(_) => window.fill.0,
        }
    })
}
