//! Movement of elements in symbols.

use super::pointwise::spread;
use super::{Abstract, Affine, MAX_ITEMS, coordinates, position};
use crate::dim::Dim;
use crate::op::SliceAxis;
use crate::types::TensorType;

/// Element i of the result is the element `source(coordinates)` of the items.
fn picked(result: &TensorType, source: impl Fn(&[usize]) -> Option<Dim>) -> Option<Abstract> {
    let shape = result.known_shape()?;
    let count = crate::tensor::checked_elements(&shape).filter(|&n| n <= MAX_ITEMS)?;
    let items = (0..count).map(|i| source(&coordinates(i, &shape))).collect::<Option<_>>()?;
    Some(Abstract::Elements { shape, items })
}

pub(in crate::import) fn reshape(x: &Abstract, result: &TensorType) -> Option<Abstract> {
    if let (Some(shape), Some(items)) = (result.known_shape(), x.items()) {
        let fits = crate::tensor::checked_elements(&shape) == Some(items.len());
        return fits.then_some(Abstract::Elements { shape, items });
    }
    let affine = x.affine()?;
    let strides = reshaped_strides(&affine, &result.shape)?;
    let dims = result.shape.clone();
    Some(Abstract::of_affine(Affine { dims, strides, offset: affine.offset }))
}

/// Neighbouring dims that count on, as one: sizes and strides from the last to the first, single elements left out.
pub(in crate::import) fn blocks(dims: &[Dim], strides: &[Dim]) -> Vec<(Dim, Dim)> {
    let mut blocks: Vec<(Dim, Dim)> = Vec::new();
    for (dim, stride) in dims.iter().zip(strides).rev().filter(|(dim, _)| **dim != 1) {
        match blocks.last_mut() {
            Some((size, inner)) if *stride == &*inner * &*size => *size = &*size * dim,
            _ => blocks.push((dim.clone(), stride.clone())),
        }
    }
    blocks
}

fn reshaped_strides(from: &Affine, to: &[Dim]) -> Option<Vec<Dim>> {
    if from.is_uniform() {
        return Some(vec![Dim::from(0); to.len()]);
    }
    let mut strides = vec![Dim::from(0); to.len()];
    let mut axis = to.len();
    for (size, stride) in blocks(&from.dims, &from.strides) {
        let mut inner = Dim::from(1);
        while inner != size {
            axis = axis.checked_sub(1)?;
            if to[axis] == 1 {
                continue;
            }
            strides[axis] = &stride * &inner;
            inner = inner * &to[axis];
            if inner != size && size.is_at_most(&inner) {
                return None;
            }
        }
    }
    to[..axis].iter().all(|dim| *dim == 1).then_some(strides)
}

pub(in crate::import) fn transpose(x: &Abstract, perm: &[usize]) -> Option<Abstract> {
    match x {
        Abstract::Affine(affine) => {
            let dims = perm.iter().map(|&axis| affine.dims[axis].clone()).collect();
            let strides = perm.iter().map(|&axis| affine.strides[axis].clone()).collect();
            let offset = affine.offset.clone();
            Some(Abstract::of_affine(Affine { dims, strides, offset }))
        }
        Abstract::Elements { shape, items } => {
            let to: Vec<usize> = perm.iter().map(|&axis| shape[axis]).collect();
            let item = |i| {
                let mut place = vec![0; shape.len()];
                for (c, &axis) in coordinates(i, &to).into_iter().zip(perm) {
                    place[axis] = c;
                }
                items[position(&place, shape)].clone()
            };
            let items = (0..items.len()).map(item).collect();
            Some(Abstract::Elements { shape: to, items })
        }
    }
}

pub(in crate::import) fn expand(x: &Abstract, result: &TensorType) -> Option<Abstract> {
    if let Some(affine) = x.affine() {
        return Some(Abstract::of_affine(spread(&affine, result)));
    }
    let Abstract::Elements { shape, items } = x else { return None };
    picked(result, |place| {
        let own = &place[place.len() - shape.len()..];
        let own: Vec<usize> =
            own.iter().zip(shape).map(|(&c, &size)| if size == 1 { 0 } else { c }).collect();
        items.get(position(&own, shape)).cloned()
    })
}

pub(in crate::import) fn slice(x: &Abstract, axes: &[SliceAxis]) -> Option<Abstract> {
    if let Abstract::Elements { shape, items } = x
        && axes.iter().all(|axis| axis.start.known().is_some() && axis.len.known().is_some())
    {
        let mut to = shape.clone();
        for axis in axes {
            to[axis.axis] = usize::try_from(axis.len.known()?).ok()?;
        }
        let ty =
            TensorType::new(crate::dtype::DType::I64, to.iter().map(|&n| Dim::from(n)).collect());
        return picked(&ty, |place| {
            let mut place = place.to_vec();
            for axis in axes {
                let step = axis.step.checked_mul(place[axis.axis] as i64)?;
                place[axis.axis] = usize::try_from(axis.start.known()?.checked_add(step)?).ok()?;
            }
            let inside = place.iter().zip(shape).all(|(c, size)| c < size);
            inside.then(|| items[position(&place, shape)].clone())
        });
    }
    let mut affine = x.affine()?;
    for axis in axes {
        let stride = affine.strides[axis.axis].clone();
        affine.offset = affine.offset + &stride * &axis.start;
        affine.dims[axis.axis] = axis.len.clone();
        affine.strides[axis.axis] = stride * Dim::from(axis.step);
    }
    Some(Abstract::of_affine(affine))
}

pub(in crate::import) fn concat(
    parts: &[Abstract],
    axis: usize,
    result: &TensorType,
) -> Option<Abstract> {
    let all_items: Option<Vec<_>> = parts
        .iter()
        .map(|part| match part {
            Abstract::Elements { shape, items } => Some((shape, items)),
            Abstract::Affine(_) => None,
        })
        .collect();
    if let Some(parts) = all_items {
        return picked(result, |place| {
            let mut place = place.to_vec();
            for (shape, items) in &parts {
                if place[axis] < shape[axis] {
                    return items.get(position(&place, shape)).cloned();
                }
                place[axis] -= shape[axis];
            }
            None
        });
    }
    let first = parts.first()?.uniform()?;
    let same = parts.iter().all(|part| part.uniform().as_ref() == Some(&first));
    same.then(|| super::uniform_of(result, first))
}

pub(in crate::import) fn gather(
    x: &Abstract,
    indices: &Abstract,
    axis: usize,
    result: &TensorType,
) -> Option<Abstract> {
    if let (
        Abstract::Elements { shape, items },
        Abstract::Elements { shape: index_shape, items: indices },
    ) = (x, indices)
        && indices.iter().all(|index| index.known().is_some())
    {
        return picked(result, |place| {
            let inner = axis + index_shape.len();
            let index = indices.get(position(&place[axis..inner], index_shape))?.known()?;
            let index = if index < 0 { index + shape[axis] as i64 } else { index };
            let index = usize::try_from(index).ok().filter(|&index| index < shape[axis])?;
            let place = [&place[..axis], &[index], &place[inner..]].concat();
            items.get(position(&place, shape)).cloned()
        });
    }
    let (x, index) = (x.affine()?, from_front(&indices.affine()?, &x.dims()[axis])?);
    let along = &x.strides[axis];
    let scaled: Vec<Dim> = index.strides.iter().map(|stride| stride * along).collect();
    Some(Abstract::of_affine(Affine {
        dims: result.shape.clone(),
        strides: [&x.strides[..axis], &scaled, &x.strides[axis + 1..]].concat(),
        offset: &x.offset + &(along * &index.offset),
    }))
}

/// Indices counted from the front, if all count from the same end of an axis of this size.
pub(in crate::import) fn from_front(indices: &Affine, size: &Dim) -> Option<Affine> {
    let (low, high) = indices.range()?;
    if low.lower_bound().is_some_and(|low| low >= 0) {
        return Some(indices.clone());
    }
    if high.upper_bound().is_some_and(|high| high < 0) {
        let offset = &indices.offset + size;
        return Some(Affine { offset, ..indices.clone() });
    }
    None
}
