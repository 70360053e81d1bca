//! Strided copies: permutations, slices, broadcasts, and their writing into strided places.

use super::view::{Axes, Axis, check_disjoint, check_reach, check_size, elements, row_major};
use crate::error::Result;
use crate::threads::{self, chunks, chunks_mut};

/// Copies of fewer elements than this run on the calling thread.
const PARALLEL: usize = 1 << 15;

/// The side of the square that a transposition moves at a time.
const TILE: usize = 16;

/// One axis of both sides: its size, and the strides of destination and source in elements.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Dim {
    size: usize,
    dst: isize,
    src: isize,
}

/// Copies the view (`src_offset`, `src_strides`) of `src` into `dst`, which is contiguous and
/// row-major of `shape`. Strides are in elements; a stride of 0 broadcasts, a negative one reverses.
///
/// # Errors
/// [`Error::Mismatch`](crate::Error::Mismatch) if the strides' number or the length of `dst` do not
/// fit `shape`; [`Error::OutOfBounds`](crate::Error::OutOfBounds) if the view leaves `src`.
pub fn copy_strided<T: Copy + Default + Send + Sync>(
    dst: &mut [T],
    shape: &[usize],
    src: &[T],
    src_offset: usize,
    src_strides: &[isize],
) -> Result<()> {
    check_size("length of the copy's destination", elements("the copy", shape)?, dst.len())?;
    let strides = row_major(shape);
    copy_between(dst, 0, &strides, shape, src, src_offset, src_strides)
}

/// Copies a view of `src` into a view of `dst`, both of `shape`. What lies between the destination's
/// elements stays as it is.
///
/// # Errors
/// As [`copy_strided`], for both sides; [`Error::Overlap`](crate::Error::Overlap) if an element of
/// `dst` would be written twice.
pub fn copy_between<T: Copy + Default + Send + Sync>(
    dst: &mut [T],
    dst_offset: usize,
    dst_strides: &[isize],
    shape: &[usize],
    src: &[T],
    src_offset: usize,
    src_strides: &[isize],
) -> Result<()> {
    check_size("rank of the copy's destination", shape.len(), dst_strides.len())?;
    check_size("rank of the copy's source", shape.len(), src_strides.len())?;
    let axes = |strides: &[isize]| -> Axes<Axis> {
        shape.iter().copied().zip(strides.iter().copied()).collect()
    };
    check_reach("the copy's destination", dst.len(), dst_offset, axes(dst_strides))?;
    check_reach("the copy's source", src.len(), src_offset, axes(src_strides))?;
    check_disjoint("the copy's destination", axes(dst_strides))?;
    if elements("the copy", shape)? == 0 {
        return Ok(());
    }
    let (mut dst_at, mut src_at) = (dst_offset, src_offset);
    let mut dims = Axes::new();
    for ((&size, &d), &s) in shape.iter().zip(dst_strides).zip(src_strides) {
        if size > 1 {
            // A negative step of the destination is walked from its other end.
            if d < 0 {
                dst_at = dst_at.wrapping_add_signed(d * (size as isize - 1));
                src_at = src_at.wrapping_add_signed(s * (size as isize - 1));
                dims.push(Dim { size, dst: -d, src: -s });
            } else {
                dims.push(Dim { size, dst: d, src: s });
            }
        }
    }
    dims.sort_unstable_by_key(|dim| std::cmp::Reverse(dim.dst));
    let dims = coalesce(&dims);
    walk(&mut dst[dst_at..], &dims, src, src_at);
    Ok(())
}

/// Merges neighbours that are one axis on both sides.
fn coalesce(dims: &[Dim]) -> Axes<Dim> {
    let mut out: Axes<Dim> = Axes::new();
    for &inner in dims {
        match out.last_mut() {
            Some(outer)
                if outer.dst == inner.dst * inner.size as isize
                    && outer.src == inner.src * inner.size as isize =>
            {
                *outer = Dim { size: outer.size * inner.size, ..inner };
            }
            _ => out.push(inner),
        }
    }
    out
}

fn at(base: usize, index: usize, stride: isize) -> usize {
    base.wrapping_add_signed(index as isize * stride)
}

/// Copies the axes `dims`, nested by the destination's stride. `dst` begins at the view's first
/// element; `src_at` is the source's.
fn walk<T: Copy + Default + Send + Sync>(dst: &mut [T], dims: &[Dim], src: &[T], src_at: usize) {
    match dims {
        [] => dst[0] = src[src_at],
        [row] => copy_row(dst, *row, src, src_at),
        [outer, rest @ ..] => {
            let total: usize = dims.iter().map(|dim| dim.size).product();
            // The axis whose source is contiguous, if it is not the destination's too.
            let crossed = rest[rest.len() - 1].dst == 1 && rest[rest.len() - 1].src != 1;
            if crossed && outer.src == 1 {
                return transpose(dst, dims, src, src_at);
            }
            let step = outer.dst as usize;
            let end = dst.len().min(step * outer.size);
            let each = |(i, dst): (usize, &mut [T])| walk(dst, rest, src, at(src_at, i, outer.src));
            if total >= PARALLEL {
                let least = (PARALLEL / 2 / (total / outer.size).max(1)).max(1);
                let parts = chunks_mut(&mut dst[..end], step);
                threads::each(least, parts, |i, dst| each((i, dst)));
            } else {
                dst[..end].chunks_mut(step).enumerate().for_each(each);
            }
        }
    }
}

fn copy_row<T: Copy + Send + Sync>(dst: &mut [T], row: Dim, src: &[T], src_at: usize) {
    let Dim { size, dst: step, src: stride } = row;
    match (step, stride) {
        (1, 1) if size >= 2 * PARALLEL => {
            let from = chunks(&src[src_at..src_at + size], PARALLEL);
            let parts = (chunks_mut(&mut dst[..size], PARALLEL), from);
            threads::each(1, parts, |_, (dst, src)| dst.copy_from_slice(src));
        }
        (1, 1) => dst[..size].copy_from_slice(&src[src_at..src_at + size]),
        (1, 0) => dst[..size].fill(src[src_at]),
        (1, 2..) => {
            let from = src[src_at..].iter().step_by(stride as usize);
            dst[..size].iter_mut().zip(from).for_each(|(dst, &src)| *dst = src);
        }
        _ => {
            let to = dst.iter_mut().step_by(step as usize).take(size);
            to.enumerate().for_each(|(i, dst)| *dst = src[at(src_at, i, stride)]);
        }
    }
}

/// Copies where the outermost axis of the destination is the contiguous one of the source and the
/// innermost of the destination is strided in the source: tile by tile, so that both sides move
/// whole cache lines. Bands of the outermost axis are spread over the cores.
fn transpose<T: Copy + Default + Send + Sync>(
    dst: &mut [T],
    dims: &[Dim],
    src: &[T],
    src_at: usize,
) {
    let outer = dims[0];
    let step = outer.dst as usize;
    let band = |(band, dst): (usize, &mut [T])| {
        let rows = TILE.min(outer.size - band * TILE);
        transpose_band(dst, Dim { size: rows, ..outer }, &dims[1..], src, src_at + band * TILE);
    };
    let end = dst.len().min(step * outer.size);
    if dims.iter().map(|dim| dim.size).product::<usize>() >= PARALLEL {
        threads::each(1, chunks_mut(&mut dst[..end], step * TILE), |i, dst| band((i, dst)));
    } else {
        dst[..end].chunks_mut(step * TILE).enumerate().for_each(band);
    }
}

/// At most [`TILE`] indices of the outermost axis, and all of the others.
fn transpose_band<T: Copy + Default>(
    dst: &mut [T],
    band: Dim,
    dims: &[Dim],
    src: &[T],
    src_at: usize,
) {
    let [first, rest @ ..] = dims else { return };
    if !rest.is_empty() {
        for i in 0..first.size {
            let from = i * first.dst as usize;
            transpose_band(&mut dst[from..], band, rest, src, at(src_at, i, first.src));
        }
        return;
    }
    let (rows, step) = (band.size, band.dst as usize);
    let mut tile = [[T::default(); TILE]; TILE];
    for column in (0..first.size).step_by(TILE) {
        let columns = TILE.min(first.size - column);
        for j in 0..columns {
            let from = at(src_at, column + j, first.src);
            for (line, &x) in tile.iter_mut().zip(&src[from..from + rows]) {
                line[j] = x;
            }
        }
        for (i, line) in tile.iter().enumerate().take(rows) {
            let to = i * step + column;
            dst[to..to + columns].copy_from_slice(&line[..columns]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{copy_between, copy_strided};
    use crate::error::Error;

    fn places(shape: &[usize], offset: usize, strides: &[isize]) -> Vec<usize> {
        let mut out = vec![offset as isize];
        for (&size, &stride) in shape.iter().zip(strides) {
            out = out
                .iter()
                .flat_map(|&base| (0..size as isize).map(move |i| base + i * stride))
                .collect();
        }
        out.into_iter().map(|x| x as usize).collect()
    }

    fn check_copy(shape: &[usize], offset: usize, strides: &[isize]) {
        let places = places(shape, offset, strides);
        let len = places.iter().max().map_or(0, |m| m + 1);
        let src: Vec<u32> = (0..len as u32).map(|i| i.wrapping_mul(2_654_435_761)).collect();
        let mut dst = vec![0u32; places.len()];
        copy_strided(&mut dst, shape, &src, offset, strides).unwrap();
        assert!(places.iter().zip(&dst).all(|(&p, &d)| src[p] == d), "{shape:?} {strides:?}");
        // The way back, where it is one.
        if !strides.contains(&0) {
            let mut back = vec![7u32; len];
            let rows = super::row_major(shape);
            copy_between(&mut back, offset, strides, shape, &dst, 0, &rows).unwrap();
            let mut want = vec![7u32; len];
            places.iter().for_each(|&p| want[p] = src[p]);
            assert_eq!(back, want, "{shape:?} {strides:?}");
        }
    }

    #[test]
    fn every_kind_of_view_is_copied() {
        check_copy(&[], 3, &[]);
        check_copy(&[0, 3], 0, &[3, 1]);
        check_copy(&[5], 0, &[1]);
        check_copy(&[5], 8, &[-2]);
        check_copy(&[5, 7], 0, &[1, 5]);
        check_copy(&[33, 65], 0, &[1, 33]);
        check_copy(&[300, 500], 0, &[1, 300]);
        check_copy(&[300, 500], 2, &[1, 301]);
        check_copy(&[3, 4, 5, 6], 0, &[120, 6, 24, 1]);
        check_copy(&[8, 12, 128, 64], 0, &[98_304, 64, 768, 1]);
        check_copy(&[8, 12, 64, 128], 0, &[98_304, 64, 1, 768]);
        check_copy(&[64, 8, 12, 100], 0, &[1, 76_800, 64, 768]);
        check_copy(&[17, 3, 19], 0, &[1, 17, 51]);
        check_copy(&[4, 300, 200], 0, &[0, 200, 1]);
        check_copy(&[300, 4, 200], 0, &[1, 0, 0]);
        check_copy(&[2, 200_000], 0, &[200_000, 1]);
        check_copy(&[3, 50, 70], 3499, &[3500, -70, 1]);
        check_copy(&[40, 50], 1999, &[-50, -1]);
        check_copy(&[1, 50, 1, 3], 0, &[99, 3, 77, 1]);
    }

    #[test]
    fn every_element_size_is_copied() {
        let src: Vec<u8> = (0..60).collect();
        let mut dst = [0u8; 60];
        copy_strided(&mut dst, &[6, 10], &src, 0, &[1, 6]).unwrap();
        assert_eq!(dst[..4], [0, 6, 12, 18]);
        let src: Vec<u128> = (0..60).collect();
        let mut dst = [0u128; 60];
        copy_strided(&mut dst, &[6, 10], &src, 0, &[1, 6]).unwrap();
        assert_eq!(dst[10..13], [1, 7, 13]);
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let src = [0u8; 10];
        let mut dst = [0u8; 6];
        let mut copy = |shape: &[usize], offset, strides: &[isize]| {
            copy_strided(&mut dst, shape, &src, offset, strides)
        };
        assert!(matches!(copy(&[2, 3], 5, &[3, 1]), Err(Error::OutOfBounds { .. })));
        assert!(matches!(copy(&[2, 3], 0, &[-3, 1]), Err(Error::OutOfBounds { .. })));
        assert!(matches!(copy(&[2, 2], 0, &[2, 1]), Err(Error::Mismatch { .. })));
        assert!(matches!(copy(&[2, 3], 0, &[3]), Err(Error::Mismatch { .. })));
        let result = copy_between(&mut dst, 0, &[1, 1], &[2, 3], &src, 0, &[3, 1]);
        assert!(matches!(result, Err(Error::Overlap { .. })));
    }
}
