//! What moves elements.

use crate::build::{Build, Numbers};
use graphene_frontend::dim::Dim;
use graphene_frontend::dtype::DType;
use graphene_frontend::graph::ValueId;
use graphene_frontend::op::{Combine, Op, PadMode, SliceAxis};

const COMBINE: [Combine; 5] =
    [Combine::Replace, Combine::Add, Combine::Mul, Combine::Min, Combine::Max];

fn any(b: &mut Build, from: usize) -> ValueId {
    b.value(|_| true, from..=6)
}

/// Dims joined, split, put in or left out.
pub(super) fn reshape(b: &mut Build) -> Option<()> {
    let x = any(b, 0);
    let mut shape = b.shape(x);
    for _ in 0..1 + b.random.below(2) {
        let place = b.random.below(shape.len() + 1);
        match b.random.below(4) {
            0 if shape.len() < 7 => shape.insert(place, Dim::from(1)),
            1 => shape.retain(|dim| *dim != 1),
            2 if place + 1 < shape.len() => {
                let joined = &shape[place] * &shape[place + 1];
                shape.splice(place..place + 2, [joined]);
            }
            _ => {
                let size = shape.get(place).and_then(Dim::known).unwrap_or(0);
                let factor = (2..=6).find(|factor| size > *factor && size % factor == 0);
                if let Some(factor) = factor {
                    shape.splice(place..=place, [Dim::from(factor), Dim::from(size / factor)]);
                }
            }
        }
    }
    b.add(Op::Reshape(shape), &[x]).map(drop)
}

/// A random order of so many axes.
pub(super) fn order(b: &mut Build, rank: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..rank).collect();
    for i in (1..rank).rev() {
        order.swap(i, b.random.below(i + 1));
    }
    order
}

pub(super) fn transpose(b: &mut Build) -> Option<()> {
    let x = any(b, 0);
    let rank = b.rank(x);
    let perm = order(b, rank);
    b.add(Op::Transpose(perm), &[x]).map(drop)
}

pub(super) fn expand(b: &mut Build) -> Option<()> {
    let x = any(b, 0);
    let mut shape = b.shape(x);
    for dim in &mut shape {
        if *dim == 1 && b.random.chance(60) {
            *dim = b.dim();
        }
    }
    if shape.len() < 4 && b.random.chance(40) {
        shape.insert(0, b.dim());
    }
    b.add(Op::Expand(shape), &[x]).map(drop)
}

pub(super) fn slice(b: &mut Build) -> Option<()> {
    let x = any(b, 1);
    let mut axes = Vec::new();
    for (axis, dim) in b.shape(x).iter().enumerate() {
        // A symbol is at least one; of a known size all ranges are in range.
        let size = dim.known().unwrap_or(1);
        if size < 1 || !b.random.chance(50) {
            continue;
        }
        let whole = dim.known().is_none() && b.random.chance(50);
        let step = b.random.of(&[1, 1, 1, 2, 3, -1, -2]);
        let most = if whole { 1 } else { (size - 1) / i64::abs(step) + 1 };
        let len = 1 + b.random.below(most as usize) as i64;
        let reach = (len - 1) * i64::abs(step);
        let low = b.random.below((size - reach) as usize) as i64;
        let start = if step > 0 { low } else { low + reach };
        let (start, len, step) = match whole {
            // All of a dim whose size is not known, backwards or but for its first.
            true if b.random.chance(50) => (dim - &Dim::from(1), dim.clone(), -1),
            true => (Dim::from(0), dim.clone(), 1),
            false => (Dim::from(start), Dim::from(len), step),
        };
        axes.push(SliceAxis { axis, start, len, step });
    }
    b.add(Op::Slice(axes), &[x]).map(drop)
}

pub(super) fn concat(b: &mut Build) -> Option<()> {
    let x = any(b, 1);
    let ty = b.ty(x);
    let axis = b.random.below(ty.rank());
    let mut parts = vec![x];
    for _ in 0..b.random.below(3) {
        let same = |shape: &[Dim]| {
            let both = shape.iter().zip(&ty.shape).enumerate();
            shape.len() == ty.rank() && { both }.all(|(i, (a, b))| i == axis || a == b)
        };
        let known = b.pick(|other| other.dtype == ty.dtype && same(&other.shape));
        let part = match known.filter(|_| b.random.chance(70)) {
            Some(part) => part,
            None => {
                let mut shape = ty.shape.clone();
                shape[axis] = b.dim();
                let shape = b.within(shape);
                b.input(ty.dtype, shape)
            }
        };
        parts.insert(b.random.below(parts.len() + 1), part);
    }
    b.add(Op::Concat { axis }, &parts).map(drop)
}

pub(super) fn pad(b: &mut Build) -> Option<()> {
    let x = any(b, 1);
    let modes =
        [PadMode::Constant, PadMode::Constant, PadMode::Reflect, PadMode::Edge, PadMode::Wrap];
    let mode = b.random.of(&modes);
    let some = |b: &mut Build| {
        let shape = b.bound(x);
        let amount = |b: &mut Build, size: usize| match b.random.below(6) {
            0 => 1,
            1 => (2_usize).min(size.saturating_sub(1)) as i64,
            2 if size > 2 => -1,
            _ => 0,
        };
        shape.iter().map(|&size| Dim::from(amount(b, size))).collect::<Vec<_>>()
    };
    let (before, after) = (some(b), some(b));
    let mut operands = vec![x];
    if mode == PadMode::Constant && b.random.chance(40) {
        let dtype = b.dtype(x);
        operands.push(b.scalar(dtype, 1.0));
    }
    b.add(Op::Pad { mode, before, after }, &operands).map(drop)
}

/// An axis of a value with its size; `None` if there is nothing along it.
fn axis_of(b: &mut Build, x: ValueId) -> Option<(usize, usize)> {
    let shape = b.bound(x);
    let axis = b.random.below(shape.len());
    // Indices of a symbol must be in range at every size that it may have; these inputs are for one.
    (shape[axis] > 0).then_some((axis, shape[axis]))
}

pub(super) fn gather(b: &mut Build) -> Option<()> {
    let x = any(b, 1);
    let (axis, size) = axis_of(b, x)?;
    let rank = b.random.below(3);
    let shape = b.new_shape(rank);
    let indices = b.indices(shape, size);
    b.add(Op::Gather { axis }, &[x, indices]).map(drop)
}

/// A shape of indices of elements: smaller than that of the value on other axes.
fn element_shape(b: &mut Build, x: ValueId, axis: usize) -> Vec<Dim> {
    let mut shape = b.shape(x);
    for (i, dim) in shape.iter_mut().enumerate() {
        if i == axis {
            *dim = b.dim();
        } else if b.random.chance(25) {
            *dim = Dim::from(1);
        }
    }
    b.within(shape)
}

pub(super) fn gather_elements(b: &mut Build) -> Option<()> {
    let x = any(b, 1);
    let (axis, size) = axis_of(b, x)?;
    let shape = element_shape(b, x, axis);
    let indices = b.indices(shape, size);
    b.add(Op::GatherElements { axis }, &[x, indices]).map(drop)
}

pub(super) fn gather_nd(b: &mut Build) -> Option<()> {
    let x = any(b, 1);
    let shape = b.bound(x);
    let batch_dims = b.random.below(shape.len()) * b.random.below(2);
    let addressed = 1 + b.random.below(shape.len() - batch_dims);
    let least = shape[batch_dims..batch_dims + addressed].iter().min().copied();
    let mut of = b.shape(x)[..batch_dims].to_vec();
    if b.random.chance(70) {
        of.push(b.dim());
    }
    of.push(Dim::from(addressed));
    let indices = b.indices(of, least.filter(|&size| size > 0)?);
    b.add(Op::GatherNd { batch_dims }, &[x, indices]).map(drop)
}

/// Distinct indices of an axis, so that it does not matter which update is the last.
fn distinct(b: &mut Build, size: usize, count: usize) -> Vec<f64> {
    order(b, size)[..count].iter().map(|&index| index as f64).collect()
}

fn combine(b: &mut Build, x: ValueId) -> Combine {
    let some = if b.dtype(x) == DType::Bool { 1 } else { COMBINE.len() };
    b.random.of(&COMBINE[..some])
}

/// A constant of these indices.
fn index_constant(b: &mut Build, shape: Vec<usize>, numbers: &[f64]) -> ValueId {
    let tensor = crate::build::from_reals(DType::I64, shape, numbers);
    b.constant(tensor)
}

pub(super) fn scatter_elements(b: &mut Build) -> Option<()> {
    let x = any(b, 1);
    let (axis, size) = axis_of(b, x)?;
    let combine = combine(b, x);
    let mut shape = b.bound(x);
    let count = 1 + b.random.below(size);
    let along = distinct(b, size, count);
    shape[axis] = along.len();
    let inner: usize = shape[axis + 1..].iter().product();
    let n: usize = shape.iter().product();
    let numbers: Vec<f64> = (0..n).map(|i| along[i / inner.max(1) % along.len()]).collect();
    let indices = index_constant(b, shape.clone(), &numbers);
    let dtype = b.dtype(x);
    let updates =
        b.source(dtype, shape.into_iter().map(Dim::from).collect(), Numbers::Small, false);
    b.add(Op::ScatterElements { axis, combine }, &[x, indices, updates]).map(drop)
}

pub(super) fn scatter_nd(b: &mut Build) -> Option<()> {
    let x = any(b, 1);
    let combine = combine(b, x);
    let shape = b.bound(x);
    if shape[0] == 0 {
        return None;
    }
    let count = 1 + b.random.below(shape[0]);
    let along = distinct(b, shape[0], count);
    let indices = index_constant(b, vec![along.len(), 1], &along);
    let mut of = b.shape(x);
    of[0] = Dim::from(along.len());
    let dtype = b.dtype(x);
    let updates = b.source(dtype, of, Numbers::Small, false);
    b.add(Op::ScatterNd { combine }, &[x, indices, updates]).map(drop)
}

pub(super) fn iota(b: &mut Build) -> Option<()> {
    let dim = b.dim();
    let iota = b.add(Op::Iota(dim), &[])?;
    if b.random.chance(50) {
        b.add(Op::Cast { to: DType::F32, saturate: true }, &[iota])?;
    }
    Some(())
}

pub(super) fn size(b: &mut Build) -> Option<()> {
    let dim = b.dim();
    b.add(Op::Size(dim), &[]).map(drop)
}
