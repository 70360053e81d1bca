//! Weighted sums along an axis: resizing by interpolation.

use super::view::{check_size, elements};
use crate::error::Result;
use crate::threads::{self, chunks_mut};
use graphene_frontend::eval::Taps;

/// Multiply-adds that a thread does at least.
const LEAST: usize = 1 << 14;

/// Writes to `dst`, contiguous of `[outer, taps.len(), inner]`, for each place the weighted sum of elements along the middle
/// axis of `src`, contiguous of `[outer, size, inner]`, those past its ends being the ones at its ends; `outside` where
/// there are no weights.
///
/// # Errors
/// [`Error::Mismatch`](crate::Error::Mismatch) if a slice is not as long as its shape.
pub(crate) fn interpolate(
    dst: &mut [f64],
    src: &[f64],
    [outer, size, inner]: [usize; 3],
    taps: &[Taps],
    outside: f64,
) -> Result<()> {
    check_size("length of the operand", elements("it", &[outer, size, inner])?, src.len())?;
    check_size("length of the result", elements("it", &[outer, taps.len(), inner])?, dst.len())?;
    if dst.is_empty() || src.is_empty() {
        return Ok(());
    }
    let last = size as i64 - 1;
    let least = (LEAST / (inner * taps[0].weights.len().max(1))).max(1);
    threads::each(least, chunks_mut(dst, inner), |number, row| {
        let (block, taps) = (number / taps.len() * size, &taps[number % taps.len()]);
        row.fill(if taps.weights.is_empty() { outside } else { 0.0 });
        for (element, &weight) in (taps.first..).zip(&taps.weights) {
            let source = block + element.clamp(0, last) as usize;
            let source = &src[source * inner..][..inner];
            row.iter_mut().zip(source).for_each(|(sum, &x)| *sum += weight * x);
        }
    });
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::interpolate;
    use graphene_frontend::eval::Taps;

    #[test]
    fn places_are_weighted_sums() {
        let taps = [(-1, vec![0.5, 0.5]), (0, vec![0.25, 0.75]), (1, vec![0.5, 0.5]), (0, vec![])];
        let taps = taps.map(|(first, weights)| Taps { first, weights });
        let mut dst = [9.0; 8];
        interpolate(&mut dst, &[1.0, 5.0, -4.0, 0.0], [2, 2, 1], &taps, 7.0).unwrap();
        assert_eq!(dst, [1.0, 4.0, 5.0, 7.0, -4.0, -1.0, 0.0, 7.0]);
        let mut across = [9.0; 8];
        interpolate(&mut across, &[1.0, -4.0, 5.0, 0.0], [1, 2, 2], &taps, 7.0).unwrap();
        assert_eq!(across, [1.0, -4.0, 4.0, -1.0, 5.0, 0.0, 7.0, 7.0]);
        assert!(interpolate(&mut across, &[1.0], [1, 2, 2], &taps, 7.0).is_err());
    }
}
