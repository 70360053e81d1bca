//! Complement and inverses.

use super::{Int, Layout, Leaf, Stride, coalesce};
use crate::{Error, Result};

/// The layout of the repetitions of `layout` that fill `[0,cotarget)`: the ordered layout `R` such
/// that every integer from 0 up to `cotarget`, rounded up to whole repetitions, is the sum of one
/// offset of `layout` and one of `R`, in one way. Modes of stride 0 are left out of account.
///
/// Fails where no such `R` exists: the strides in order must each be a multiple of the extent of the modes before.
pub fn complement<I: Int>(layout: &Layout, cotarget: &I) -> Result<Layout<I>> {
    coalesce(&repetitions(layout, cotarget)?)
}

/// [`complement`], not coalesced: its last mode counts the repetitions of all of `layout`, even if there is one.
pub(super) fn repetitions<I: Int>(layout: &Layout, cotarget: &I) -> Result<Layout<I>> {
    if let Some(cotarget) = cotarget.constant().filter(|cotarget| *cotarget < 1) {
        return Err(Error::Size(cotarget));
    }
    let mut modes = numbers("complement", layout)?;
    modes.retain(|mode| mode.size != 1 && mode.stride != 0);
    if modes.iter().any(|mode| mode.stride < 0) {
        return Err(Error::NegativeStride { op: "complement", layout: layout.clone() });
    }
    modes.sort_by_key(|mode| (mode.stride, mode.size));
    let mut extent = 1_i64;
    let mut gaps = Vec::with_capacity(modes.len() + 1);
    for Mode { size, stride, .. } in modes {
        if stride % extent != 0 {
            let layout = layout.clone();
            return Err(Error::NoTiling { op: "complement", layout, stride, extent });
        }
        gaps.push(leaf(I::from(stride / extent), extent));
        extent = stride.checked_mul(size).ok_or(Error::Overflow)?;
    }
    gaps.push(leaf(cotarget.over_up(extent), extent));
    Layout::flat(gaps)
}

/// A layout `R` with `layout(R(i)) = i` below `size(R)`: the modes that continue one another from stride 1 on, or `1:0`.
pub fn right_inverse(layout: &Layout) -> Result<Layout> {
    let mut extent = 1_i128;
    let mut inverse = Vec::new();
    for Mode { size, stride, below } in by_stride("right_inverse", layout)? {
        if i128::from(stride) == extent {
            inverse.push(leaf(size, below));
            extent *= i128::from(size);
        }
    }
    coalesce(&Layout::flat(inverse)?)
}

/// A layout `L` with `L(layout(i)) = i` for all `i` below `size(layout)`; coordinates in modes of
/// stride 0 count as 0, since no offset tells them apart.
///
/// Fails where strides are negative or, in order, do not divide one another, and where two coordinates share an offset.
pub fn left_inverse(layout: &Layout) -> Result<Layout> {
    let op = "left_inverse";
    let mut modes = by_stride(op, layout)?;
    modes.retain(|mode| mode.stride != 0);
    if modes.iter().any(|mode| mode.stride < 0) {
        return Err(Error::NegativeStride { op, layout: layout.clone() });
    }
    let mut inverse = Vec::with_capacity(modes.len() + 1);
    let (mut step, mut below, mut reach) = (1, 0, 0);
    for &Mode { size, stride, below: own } in &modes {
        if stride % step != 0 {
            return Err(Error::NoTiling { op, layout: layout.clone(), stride, extent: step });
        }
        if reach >= stride {
            return Err(Error::NotInjective { layout: layout.clone(), offset: stride });
        }
        inverse.push(leaf(stride / step, below));
        (step, below, reach) = (stride, own, (size - 1) * stride);
    }
    if let Some(last) = modes.last() {
        inverse.push(leaf(last.size, last.below));
    }
    coalesce(&Layout::flat(inverse)?)
}

fn leaf<I: Int>(size: I, stride: i64) -> Leaf<I> {
    Leaf { size, stride: Stride::from(I::from(stride)) }
}

/// A mode and the product of the sizes of the modes below it.
struct Mode {
    size: i64,
    stride: i64,
    below: i64,
}

/// The modes of a layout whose strides are numbers.
fn numbers(op: &'static str, layout: &Layout) -> Result<Vec<Mode>> {
    let mut extent = 1;
    let mode = |leaf: &Leaf| {
        let below = extent;
        extent *= leaf.size;
        Some(Mode { size: leaf.size, stride: leaf.stride.number()?, below })
    };
    let modes = layout.leaves().into_iter().map(mode).collect::<Option<_>>();
    modes.ok_or_else(|| Error::Coordinates { op, layout: layout.clone() })
}

/// The modes of the coalesced layout in order of stride.
fn by_stride(op: &'static str, layout: &Layout) -> Result<Vec<Mode>> {
    let mut modes = numbers(op, &coalesce(layout)?)?;
    modes.retain(|mode| mode.size != 1);
    modes.sort_by_key(|mode| mode.stride);
    Ok(modes)
}
