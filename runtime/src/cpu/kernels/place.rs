//! Elements from where tables say, an axis each: padding, resizing to nearest elements.

use super::view::{Axes, check_reach, check_size, elements};
use crate::error::Result;
use crate::threads::{self, chunks_mut};

/// `dst[i, j, …] = src[offset + a[i] + b[j] + …]` for tables `a`, `b`, … of distances in elements, one for each axis of the
/// contiguous `dst`; `fill` where a table has none.
///
/// # Errors
/// [`Error::Mismatch`](crate::Error::Mismatch) if `dst` is not as long as the tables say;
/// [`Error::OutOfBounds`](crate::Error::OutOfBounds) if they reach beyond `src`. Nothing is written then.
pub fn place<T: Copy + Send + Sync>(
    dst: &mut [T],
    src: &[T],
    offset: usize,
    tables: &[Vec<Option<isize>>],
    fill: T,
) -> Result<()> {
    let shape: Axes<usize> = tables.iter().map(Vec::len).collect();
    check_size("length of the result", elements("the result", &shape)?, dst.len())?;
    let Some((row, outer)) = tables.split_last() else {
        check_reach("the operand", src.len(), offset, [])?;
        dst[0] = src[offset];
        return Ok(());
    };
    // An axis without a source leaves nothing to be read.
    let ends = |table: &Vec<Option<isize>>| {
        let known = || table.iter().flatten().copied();
        known().min().zip(known().max())
    };
    if let Some(ends) = tables.iter().map(ends).collect::<Option<Axes<_>>>() {
        let lowest = ends.iter().map(|&(low, _)| (2, low.min(0)));
        let highest = ends.iter().map(|&(_, high)| (2, high.max(0)));
        check_reach("the operand", src.len(), offset, lowest.chain(highest))?;
    }
    if dst.is_empty() {
        return Ok(());
    }
    let each = |(number, dst): (usize, &mut [T])| {
        let (mut rest, mut first) = (number, Some(offset as isize));
        for table in outer.iter().rev() {
            let own = table[rest % table.len()];
            first = first.zip(own).map(|(first, own)| first + own);
            rest /= table.len();
        }
        match first {
            None => dst.fill(fill),
            Some(first) => {
                for (dst, own) in dst.iter_mut().zip(row) {
                    *dst = own.map_or(fill, |own| src[(first + own) as usize]);
                }
            }
        }
    };
    let least = ((1 << 14) / row.len()).max(1);
    threads::each(least, chunks_mut(dst, row.len()), |number, dst| each((number, dst)));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::place;
    use crate::error::Error;

    #[test]
    fn elements_come_from_where_tables_say() {
        let src: Vec<u8> = (0..12).collect();
        let mut dst = [0; 12];
        // Rows of 4: none, the last, the first, backwards from the second on, and one more.
        let rows = vec![None, Some(8), Some(0)];
        let columns = vec![Some(2), Some(1), Some(0), None];
        place(&mut dst, &src, 1, &[rows, columns], 99).unwrap();
        assert_eq!(dst, [99, 99, 99, 99, 11, 10, 9, 99, 3, 2, 1, 99]);
        let mut one = [0];
        place(&mut one, &src, 7, &[], 99).unwrap();
        assert_eq!(one, [7]);
        place(&mut [], &src, 7, &[vec![], vec![Some(1)]], 99).unwrap();
        let mut filled = [0; 2];
        place(&mut filled, &[], 0, &[vec![None; 2]], 5).unwrap();
        assert_eq!(filled, [5, 5]);
    }

    #[test]
    fn what_lies_beyond_is_refused() {
        let mut dst = [0; 2];
        let mut refused = |offset, table: [isize; 2]| {
            let table = table.map(Some).to_vec();
            matches!(
                place(&mut dst, &[1, 2, 3], offset, &[table], 0),
                Err(Error::OutOfBounds { .. })
            )
        };
        assert!(refused(2, [0, 1]));
        assert!(refused(1, [-2, 0]));
        assert!(!refused(1, [-1, 1]));
        assert!(place(&mut [0; 3], &[1], 0, &[vec![Some(0); 2]], 0).is_err());
    }
}
