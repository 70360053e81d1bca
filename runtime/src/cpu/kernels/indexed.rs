//! Elements at places that indices name: gathered from there, and combined with what is there.
//!
//! Indices become places first, whatever the type of the elements is; then elements are moved.

use super::gather::row_of;
use super::view::{Axes, check_size, elements, row_major};
use crate::error::{Error, Result};
use crate::threads::{self, chunks, chunks_mut, items_mut};

/// Places that a thread finds at least, and elements that it moves.
const LEAST: usize = 1 << 14;

/// Places in a row-major tensor of shape `from`: for each element of row-major indices of `shape` its own place, but for
/// the axis, along which the index says it. Negative indices count from the end.
///
/// # Errors
/// [`Error::Mismatch`] if the shapes do not fit each other or the slices; [`Error::Index`] for the first index outside of
/// the axis.
pub(crate) fn element_places(
    places: &mut [usize],
    indices: &[i64],
    shape: &[usize],
    from: &[usize],
    axis: usize,
) -> Result<()> {
    check_size("rank of the indices", from.len(), shape.len())?;
    check_size("number of indices", elements("the indices", shape)?, indices.len())?;
    check_size("number of places", indices.len(), places.len())?;
    let Some((&width, outer)) = shape.split_last().filter(|_| axis < shape.len()) else {
        return Err(Error::Unsupported { what: "indices along no axis" });
    };
    for (number, (&found, &expected)) in shape.iter().zip(from).enumerate() {
        if number != axis && found > expected {
            return Err(Error::Mismatch { what: "indices along another axis", expected, found });
        }
    }
    let mut strides = row_major(from);
    let along = std::mem::take(&mut strides[axis]).unsigned_abs();
    let line = |number: usize, places: &mut [usize], indices: &[i64]| {
        let (mut rest, mut place) = (number, 0);
        for (&size, stride) in outer.iter().zip(&strides).rev() {
            place += rest % size * stride.unsigned_abs();
            rest /= size;
        }
        for (to, &index) in places.iter_mut().zip(indices) {
            *to = place + row_of(index, from[axis])? * along;
            place += strides[outer.len()].unsigned_abs();
        }
        Ok(())
    };
    let lines = (chunks_mut(places, width), chunks(indices, width));
    let least = (LEAST / width.max(1)).max(1);
    threads::try_each(least, lines, |number, (places, indices)| line(number, places, indices))
}

/// Where slices of a row-major tensor of shape `from` begin, and how many elements a slice has: one for each row of
/// `depth` indices, which name it along the axes behind the first `batch`. Along those, rows and tensor are alike.
///
/// # Errors
/// [`Error::Mismatch`] if the sizes do not fit each other; [`Error::Index`] for the first index outside of its axis.
pub(crate) fn slice_places(
    places: &mut [usize],
    indices: &[i64],
    depth: usize,
    from: &[usize],
    batch: usize,
) -> Result<usize> {
    let named = from.get(batch..batch + depth).ok_or(Error::Mismatch {
        what: "axes that indices name",
        expected: from.len(),
        found: batch + depth,
    })?;
    check_size("number of indices", places.len() * depth, indices.len())?;
    let strides: Axes<usize> = row_major(from).iter().map(|stride| stride.unsigned_abs()).collect();
    let count = elements("the batch", &from[..batch])?;
    let rows = places.len().checked_div(count).unwrap_or(0).max(1);
    let apart = elements("a slice", &from[batch..])?;
    threads::try_each((LEAST / depth.max(1)).max(1), items_mut(places), |number, place| {
        let own = indices[number * depth..][..depth].iter().zip(named).zip(&strides[batch..]);
        *place = number / rows * apart;
        for ((&index, &size), stride) in own {
            *place += row_of(index, size)? * stride;
        }
        Ok(())
    })?;
    elements("a slice", &from[batch + depth..])
}

/// `dst[i · inner..][..inner] = src[places[i]..][..inner]`.
///
/// # Errors
/// [`Error::Mismatch`] if the destination is not as long as that.
pub(crate) fn gather_at<T: Copy + Send + Sync>(
    dst: &mut [T],
    src: &[T],
    places: &[usize],
    inner: usize,
) -> Result<()> {
    check_size("length of the result", places.len().saturating_mul(inner), dst.len())?;
    if inner == 1 {
        let parts = (chunks_mut(dst, LEAST), chunks(places, LEAST));
        threads::each(1, parts, |_, (dst, places)| {
            dst.iter_mut().zip(places).for_each(|(to, &place)| *to = src[place]);
        });
        return Ok(());
    }
    let least = (LEAST / inner.max(1)).max(1);
    threads::each(least, chunks_mut(dst, inner), |number, dst| {
        dst.copy_from_slice(&src[places[number]..][..inner]);
    });
    Ok(())
}

/// `dst = x`, and then, one after the other, `dst[places[i] + j]` becomes what it and `updates[i · inner + j]` meet in.
/// Each thread has a part of the destination: places that are named several times see their updates in order.
///
/// # Errors
/// [`Error::Mismatch`] if the slices are not as long as each other, or the updates as all places.
pub(crate) fn scatter_at<T: Copy + Send + Sync>(
    dst: &mut [T],
    x: &[T],
    updates: &[T],
    (places, inner): (&[usize], usize),
    meet: impl Fn(T, T) -> T + Sync,
) -> Result<()> {
    check_size("length of the result", x.len(), dst.len())?;
    check_size("number of updates", places.len().saturating_mul(inner), updates.len())?;
    let parts = threads::count().min(dst.len().max(updates.len()) / LEAST).max(1);
    let part = dst.len().div_ceil(parts);
    threads::each(1, chunks_mut(dst, part), |number, dst| {
        let start = number * part;
        let end = start + dst.len();
        dst.copy_from_slice(&x[start..end]);
        for (i, &place) in places.iter().enumerate() {
            let (first, last) = (place.max(start), (place + inner).min(end));
            if first < last {
                let updates = &updates[i * inner + first - place..];
                let own = dst[first - start..last - start].iter_mut().zip(updates);
                own.for_each(|(to, &update)| *to = meet(*to, update));
            }
        }
    });
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::{element_places, gather_at, scatter_at, slice_places};
    use crate::error::Error;

    #[test]
    fn places_are_what_indices_name() {
        let mut places = [0; 4];
        element_places(&mut places, &[1, 0, -1, 2], &[2, 2], &[3, 3], 0).unwrap();
        assert_eq!(places, [3, 1, 6, 7]);
        element_places(&mut places, &[1, 0, -1, 2], &[2, 2], &[3, 3], 1).unwrap();
        assert_eq!(places, [1, 0, 5, 5]);
        assert_eq!(slice_places(&mut places, &[0, 1, -1, 0], 1, &[2, 2, 5], 1), Ok(5));
        assert_eq!(places, [0, 5, 15, 10]);
        assert_eq!(slice_places(&mut places[..2], &[0, 1, -1, 0], 2, &[2, 2, 5], 0), Ok(5));
        assert_eq!(places[..2], [5, 10]);
        assert_eq!(slice_places(&mut places, &[], 0, &[7], 0), Ok(7));
        assert_eq!(places, [0; 4]);
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let mut places = [0; 2];
        let beyond = Err(Error::Index { index: 3, size: 3 });
        assert_eq!(element_places(&mut places, &[3, 9], &[2], &[3], 0), beyond);
        assert_eq!(slice_places(&mut places, &[0, 3], 1, &[3, 4], 0).map(drop), beyond);
        assert!(element_places(&mut places, &[0, 0], &[2, 1], &[1, 1], 1).is_err());
        assert!(element_places(&mut places, &[0, 0], &[2], &[1, 1], 1).is_err());
        assert!(slice_places(&mut places, &[0; 4], 2, &[3], 0).is_err());
        assert!(gather_at(&mut [0; 3], &[1], &[0], 2).is_err());
        assert!(scatter_at(&mut [0; 3], &[1; 3], &[1], (&[0], 2), |_, new| new).is_err());
    }

    #[test]
    fn updates_meet_in_order() {
        let mut dst = [0; 5];
        let updates = [1, 2, 3, 4];
        scatter_at(&mut dst, &[9; 5], &updates, (&[0, 1], 2), |_, new| new).unwrap();
        assert_eq!(dst, [1, 3, 4, 9, 9]);
        scatter_at(&mut dst, &[9; 5], &updates, (&[3, 3, 3, 0], 1), |old, new| old - new).unwrap();
        assert_eq!(dst, [5, 9, 9, 3, 9]);
        let mut slices = [0; 4];
        gather_at(&mut slices, &dst, &[3, 0], 2).unwrap();
        assert_eq!(slices, [3, 9, 5, 9]);
    }
}
