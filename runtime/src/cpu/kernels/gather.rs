//! Gathering slices along an axis: embeddings.

use super::view::{check_size, elements};
use crate::cpu::scratch;
use crate::error::{Error, Result};
use crate::threads::{self, chunks_mut};

/// `dst[o, j, i] = src[o, indices[j], i]` for `src` of `[outer, axis, inner]` and `dst` of
/// `[outer, indices.len(), inner]`, both contiguous. A negative index counts from the end.
///
/// # Errors
/// [`Error::Mismatch`] if a slice is not as long as its shape; [`Error::Index`] for the first index
/// outside `-axis..axis`; nothing is written then.
pub fn gather<T: Copy + Send + Sync>(
    dst: &mut [T],
    src: &[T],
    [outer, axis, inner]: [usize; 3],
    indices: &[i64],
) -> Result<()> {
    let what = "the gather";
    check_size("length of the gather's source", elements(what, &[outer, axis, inner])?, src.len())?;
    let len = elements(what, &[outer, indices.len(), inner])?;
    check_size("length of the gather's destination", len, dst.len())?;
    let mut rows = scratch::take::<usize>(indices.len())?;
    for (row, &index) in rows.iter_mut().zip(indices) {
        *row = row_of(index, axis)?;
    }
    let rows = &*rows;
    if len == 0 {
        return Ok(());
    }
    let each = |(at, dst): (usize, &mut [T])| {
        let from = (at / rows.len() * axis + rows[at % rows.len()]) * inner;
        dst.copy_from_slice(&src[from..from + inner]);
    };
    if len >= 1 << 15 {
        let least = ((1 << 14) / inner).max(1);
        threads::each(least, chunks_mut(dst, inner), |at, dst| each((at, dst)));
    } else {
        dst.chunks_mut(inner).enumerate().for_each(each);
    }
    Ok(())
}

/// The row that an index names.
pub(super) fn row_of(index: i64, axis: usize) -> Result<usize> {
    let size = i64::try_from(axis).unwrap_or(i64::MAX);
    let row = if index < 0 { index.checked_add(size) } else { Some(index) };
    let row = row.filter(|row| (0..size).contains(row));
    row.map(|row| row as usize).ok_or(Error::Index { index, size: axis })
}

#[cfg(test)]
mod tests {
    use super::gather;
    use crate::error::Error;

    #[test]
    fn rows_are_gathered() {
        for [outer, axis, inner] in [[1, 5, 3], [4, 7, 1], [3, 50, 768], [2, 3, 0]] {
            let src: Vec<u32> = (0..(outer * axis * inner) as u32).collect();
            let indices: Vec<i64> = (0..40).map(|i| (i * 7) % axis as i64).collect();
            let indices: Vec<i64> =
                indices.iter().map(|&i| if i % 2 == 1 { i - axis as i64 } else { i }).collect();
            let mut dst = vec![0; outer * 40 * inner];
            gather(&mut dst, &src, [outer, axis, inner], &indices).unwrap();
            for (at, &got) in dst.iter().enumerate() {
                let (o, j, i) = (at / inner / 40, at / inner % 40, at % inner);
                let row = indices[j].rem_euclid(axis as i64) as usize;
                assert_eq!(got, src[(o * axis + row) * inner + i]);
            }
        }
    }

    #[test]
    fn bad_indices_are_refused() {
        let mut dst = [0u8; 2];
        let mut check = |index, src: &[u8]| gather(&mut dst, src, [1, src.len() / 2, 2], &[index]);
        assert_eq!(check(2, &[1, 2, 3, 4]), Err(Error::Index { index: 2, size: 2 }));
        assert_eq!(check(-3, &[1, 2, 3, 4]), Err(Error::Index { index: -3, size: 2 }));
        assert_eq!(check(i64::MIN, &[1, 2]), Err(Error::Index { index: i64::MIN, size: 1 }));
        assert_eq!(check(0, &[]), Err(Error::Index { index: 0, size: 0 }));
        assert!(gather(&mut [0u8; 3], &[1, 2], [1, 1, 2], &[0]).is_err());
    }
}
