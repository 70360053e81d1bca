//! Complement and inverses.

use super::{Layout, coalesce};
use crate::error::{Error, Result};

/// The layout of the repetitions of `layout` that fill `[0,cotarget)`: the ordered layout `R` such
/// that every integer from 0 up to `cotarget`, rounded up to whole repetitions, is the sum of one
/// offset of `layout` and one of `R`, in one way. Modes of stride 0 are left out of account.
///
/// Fails where no such `R` exists: the strides in order must each be a multiple of the extent of
/// the modes before.
pub fn complement(layout: &Layout, cotarget: i64) -> Result<Layout> {
    if cotarget < 1 {
        return Err(Error::Size(cotarget));
    }
    let mut modes: Vec<(i64, i64)> =
        layout.leaves().into_iter().filter(|&(size, stride)| size != 1 && stride != 0).collect();
    if modes.iter().any(|mode| mode.1 < 0) {
        return Err(Error::NegativeStride { op: "complement", layout: Box::new(layout.clone()) });
    }
    modes.sort_by_key(|&(size, stride)| (stride, size));
    let mut extent = 1_i64;
    let mut gaps = Vec::with_capacity(modes.len() + 1);
    for (size, stride) in modes {
        if stride % extent != 0 {
            let layout = Box::new(layout.clone());
            return Err(Error::NoTiling { op: "complement", layout, stride, extent });
        }
        gaps.push((stride / extent, extent));
        extent = stride.checked_mul(size).ok_or(Error::Overflow)?;
    }
    gaps.push(((cotarget - 1) / extent + 1, extent));
    coalesce(&Layout::flat(&gaps)?)
}

/// A layout `R` with `layout(R(i)) = i` for all `i` below `size(R)`: the modes of `layout` that
/// continue one another from stride 1 on. At least `1:0`.
pub fn right_inverse(layout: &Layout) -> Result<Layout> {
    let mut extent = 1_i128;
    let mut inverse = Vec::new();
    for Ranked { size, stride, below } in by_stride(layout)? {
        if i128::from(stride) == extent {
            inverse.push((size, below));
            extent *= i128::from(size);
        }
    }
    coalesce(&Layout::flat(&inverse)?)
}

/// A layout `L` with `L(layout(i)) = i` for all `i` below `size(layout)`; coordinates in modes of
/// stride 0 count as 0, since no offset tells them apart.
///
/// Fails where strides are negative, where two coordinates share an offset, and where the strides,
/// in order, do not divide one another.
pub fn left_inverse(layout: &Layout) -> Result<Layout> {
    let modes: Vec<Ranked> =
        by_stride(layout)?.into_iter().filter(|mode| mode.stride != 0).collect();
    if modes.iter().any(|mode| mode.stride < 0) {
        return Err(Error::NegativeStride { op: "left_inverse", layout: Box::new(layout.clone()) });
    }
    let mut inverse = Vec::with_capacity(modes.len() + 1);
    let (mut step, mut below) = (1_i64, 0_i64);
    for (i, mode) in modes.iter().enumerate() {
        let (stride, boxed) = (mode.stride, || Box::new(layout.clone()));
        if stride % step != 0 {
            let op = "left_inverse";
            return Err(Error::NoTiling { op, layout: boxed(), stride, extent: step });
        }
        let previous = i.checked_sub(1).and_then(|i| modes.get(i));
        if previous.is_some_and(|previous| (previous.size - 1) * previous.stride >= stride) {
            return Err(Error::NotInjective { layout: boxed(), offset: stride });
        }
        inverse.push((stride / step, below));
        (step, below) = (stride, mode.below);
    }
    if let Some(last) = modes.last() {
        inverse.push((last.size, last.below));
    }
    coalesce(&Layout::flat(&inverse)?)
}

/// A mode and the product of the sizes of the modes below it.
struct Ranked {
    size: i64,
    stride: i64,
    below: i64,
}

/// The modes of the coalesced layout in order of stride.
fn by_stride(layout: &Layout) -> Result<Vec<Ranked>> {
    let mut below = 1_i64;
    let mut modes = Vec::new();
    for (size, stride) in coalesce(layout)?.leaves().into_iter().filter(|mode| mode.0 != 1) {
        modes.push(Ranked { size, stride, below });
        below *= size;
    }
    modes.sort_by_key(|mode| mode.stride);
    Ok(modes)
}
