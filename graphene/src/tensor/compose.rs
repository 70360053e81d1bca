//! Composition of a dimension with modes of integers: what tiling and reshaping are made of.

use super::{Dim, Leaf};
use crate::error::{Error, Result};
use crate::index::Expr;

impl Dim {
    /// The leaves, fastest first.
    pub fn leaves(&self) -> Vec<&Leaf> {
        match self {
            Dim::Leaf(leaf) => vec![leaf],
            Dim::Tuple(dims) => dims.iter().flat_map(Dim::leaves).collect(),
        }
    }

    /// The number of coordinates.
    pub fn size(&self) -> Expr {
        self.leaves().into_iter().fold(Expr::from(1), |size, leaf| size * &leaf.size)
    }

    /// A dimension of leaves: those of size 1 go, those that continue one another join.
    pub(super) fn of(leaves: Vec<Leaf>) -> Dim {
        let mut joined: Vec<Leaf> = Vec::new();
        for leaf in leaves {
            match joined.last_mut() {
                Some(last) if last.continues_in(&leaf) => {
                    last.size = last.size.clone() * &leaf.size
                }
                Some(_) | None if leaf.size.is(1) => {}
                Some(_) | None => joined.push(leaf),
            }
        }
        match joined.len() {
            0 => Dim::Leaf(Leaf { size: Expr::from(1), steps: Vec::new() }),
            1 => Dim::Leaf(joined.remove(0)),
            _ => Dim::Tuple(joined.into_iter().map(Dim::Leaf).collect()),
        }
    }

    /// A dimension of tiles, likewise. A single tile keeps its steps: it may be partial, and those of
    /// other numbers lie beyond it, of which a coordinate must be seen to leave the buffer.
    pub(super) fn of_tiles(leaves: Vec<Leaf>) -> Dim {
        let last = leaves.last().cloned();
        match (Dim::of(leaves), last) {
            (Dim::Leaf(single), Some(last)) if single.size.is(1) => Dim::Leaf(last),
            (dim, _) => dim,
        }
    }
}

impl Leaf {
    fn continues_in(&self, next: &Leaf) -> bool {
        self.steps.len() == next.steps.len()
            && self.steps.iter().zip(&next.steps).all(|((axis, step), (next_axis, next))| {
                axis == next_axis && step.clone() * &self.size == *next
            })
    }

    /// `size` coordinates of this leaf, every `stride`-th.
    pub(super) fn every(&self, size: Expr, stride: &Expr) -> Leaf {
        let steps = self.steps.iter().map(|(axis, step)| (*axis, step.clone() * stride));
        Leaf { size, steps: steps.collect() }
    }
}

/// `leaves`, whose coordinates count colexicographically, after the mode `size:stride`.
///
/// # Errors
/// [`Error::Shape`] where the mode does not divide the leaves, as CuTe's composition would need.
pub(super) fn compose(leaves: &[&Leaf], size: &Expr, stride: i64) -> Result<Vec<Leaf>> {
    let refuse = |leaf: &Leaf| {
        let leaf = &leaf.size;
        Err(Error::Shape(format!("the mode {size}:{stride} does not divide a mode of {leaf}")))
    };
    let (mut size, mut stride) = (size.clone(), stride);
    let mut result = Vec::new();
    let Some((last, leading)) = leaves.split_last() else {
        return Ok(result);
    };
    for leaf in leading {
        let Some(extent) = leaf.size.constant() else { return refuse(leaf) };
        if stride % extent == 0 {
            stride /= extent;
            continue;
        }
        if extent % stride != 0 {
            return refuse(leaf);
        }
        let there = extent / stride;
        let Some(wanted) = size.constant() else { return refuse(leaf) };
        let taken = there.min(wanted);
        if wanted % taken != 0 {
            return refuse(leaf);
        }
        result.push(leaf.every(Expr::from(taken), &Expr::from(stride)));
        size = Expr::from(wanted / taken);
        stride = 1;
        if size.is(1) {
            return Ok(result);
        }
    }
    result.push(last.every(size, &Expr::from(stride)));
    Ok(result)
}

/// The modes that, with `modes`, count through `size` coordinates; the last one is rounded up, so
/// that the last tile may be partial.
///
/// # Errors
/// [`Error::Shape`] where the modes overlap.
pub(super) fn complement(modes: &[(i64, i64)], size: &Expr) -> Result<Vec<(Expr, i64)>> {
    let mut sorted: Vec<(i64, i64)> = modes.iter().copied().filter(|mode| mode.0 > 1).collect();
    sorted.sort_by_key(|mode| mode.1);
    let mut result = Vec::new();
    let mut extent = 1_i64;
    for (count, stride) in sorted {
        if stride < extent || stride % extent != 0 {
            return Err(Error::Shape(format!("the tile's mode {count}:{stride} overlaps another")));
        }
        if stride > extent {
            result.push((Expr::from(stride / extent), extent));
        }
        extent = stride.checked_mul(count).ok_or(Error::Overflow)?;
    }
    result.push((size.ceil_div(&Expr::from(extent)), extent));
    Ok(result)
}
