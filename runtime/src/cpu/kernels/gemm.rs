//! The only caller of the `gemm` crate, whose entry point takes raw pointers.
//!
//! Everything is checked before a pointer is made: that both inputs and the output stay within their
//! slices, and that the output's elements are apart, so that threads may write them.

#![allow(unsafe_code)]

use super::matmul::{Matrix, MatrixMut, Size, Strides};
use super::view::{Axis, check_disjoint, check_reach, check_size};
use crate::error::Result;
use gemm::Parallelism;
use rayon::iter::{IndexedParallelIterator, IntoParallelIterator, ParallelIterator};

/// A product of fewer multiplications than this runs on one thread.
const PARALLEL: usize = 1 << 18;

/// The element types that the `gemm` crate multiplies and that this crate asks it to.
pub trait Element: sealed::Sealed + Copy + Send + Sync + 'static {
    /// The number 0.
    const ZERO: Self;
}

impl Element for f32 {
    const ZERO: Self = 0.0;
}

impl Element for f64 {
    const ZERO: Self = 0.0;
}

mod sealed {
    pub trait Sealed {}
    impl Sealed for f32 {}
    impl Sealed for f64 {}
}

/// A pointer that threads share.
#[derive(Clone, Copy)]
struct Shared<P>(P);

// SAFETY: the inputs are only read, and the tasks write disjoint elements of the output, as
// `check_disjoint` has found before a `Shared` is made.
unsafe impl<P> Send for Shared<P> {}
// SAFETY: as above.
unsafe impl<P> Sync for Shared<P> {}

impl<P: Copy> Shared<P> {
    /// A method, so that closures capture the whole and not the field.
    fn get(self) -> P {
        self.0
    }
}

fn axes<'a>(
    size: Size<'a>,
    rows: usize,
    columns: usize,
    of: Strides<'a>,
) -> impl Iterator<Item = Axis> + 'a {
    let matrix = [(rows, of.row), (columns, of.column)];
    size.batch.iter().copied().zip(of.batch.iter().copied()).chain(matrix)
}

/// Checks ranks, reach and the output's layout.
pub(super) fn check<A, B, C>(
    size: Size<'_>,
    a: &Matrix<'_, A>,
    b: &Matrix<'_, B>,
    c: &MatrixMut<'_, C>,
) -> Result<()> {
    let Size { batch, m, n, k } = size;
    check_size("rank of the left operand's batch", batch.len(), a.at.batch.len())?;
    check_size("rank of the right operand's batch", batch.len(), b.at.batch.len())?;
    check_size("rank of the product's batch", batch.len(), c.at.batch.len())?;
    check_reach("the product", c.data.len(), c.at.offset, axes(size, m, n, c.at))?;
    check_disjoint("the product", axes(size, m, n, c.at))?;
    // A product without elements reads nothing, whatever its operands say.
    if batch.contains(&0) || m == 0 || n == 0 {
        return Ok(());
    }
    check_reach("the left operand", a.data.len(), a.at.offset, axes(size, m, k, a.at))?;
    check_reach("the right operand", b.data.len(), b.at.offset, axes(size, k, n, b.at))
}

/// The offset of matrix `index` of the batch, in elements from the first matrix.
pub(super) fn batch_offset(mut index: usize, sizes: &[usize], strides: &[isize]) -> isize {
    let mut offset = 0;
    for (&size, &stride) in sizes.iter().zip(strides).rev() {
        offset += (index % size) as isize * stride;
        index /= size;
    }
    offset
}

/// C = α A·B for every matrix of the batch, on the calling thread or spread over all.
///
/// # Errors
/// As [`check`].
pub(super) fn batched<T: Element>(
    size: Size<'_>,
    alpha: T,
    a: Matrix<'_, T>,
    b: Matrix<'_, T>,
    c: MatrixMut<'_, T>,
    spread: bool,
) -> Result<()> {
    check(size, &a, &b, &c)?;
    let Size { batch, m, n, k } = size;
    let count: usize = batch.iter().product();
    if count == 0 || m == 0 || n == 0 {
        return Ok(());
    }
    // SAFETY: `check` found the offset of each view that has elements within its slice; the inputs'
    // views have none where k is 0, and then are not read: `wrapping_add` needs no validity.
    let pointers = (
        Shared(c.data.as_mut_ptr().wrapping_add(c.at.offset)),
        Shared(a.data.as_ptr().wrapping_add(a.at.offset)),
        Shared(b.data.as_ptr().wrapping_add(b.at.offset)),
    );
    let one = |index: usize, parallelism: Parallelism| {
        let c_at = batch_offset(index, batch, c.at.batch);
        // Inputs without elements were not checked, and their strides may be anything.
        let input = |at: Strides<'_>| if k == 0 { 0 } else { batch_offset(index, batch, at.batch) };
        let (a_at, b_at) = (input(a.at), input(b.at));
        let (to, left, right) = pointers;
        // SAFETY: every element that the strides reach lies in the slices (`check_reach`, for the
        // whole batch); the slices are borrowed for the call, `c` mutably, so it aliases neither
        // input; matrices of different index write different elements (`check_disjoint`); with k
        // of 0 the inputs are not read, and with `read_dst` false the output is only written.
        unsafe {
            gemm::gemm(
                m,
                n,
                k,
                to.get().wrapping_offset(c_at),
                c.at.column,
                c.at.row,
                false,
                left.get().wrapping_offset(a_at),
                a.at.column,
                a.at.row,
                right.get().wrapping_offset(b_at),
                b.at.column,
                b.at.row,
                T::ZERO,
                alpha,
                false,
                false,
                false,
                parallelism,
            );
        }
    };
    let work = m.saturating_mul(n).saturating_mul(k.max(1));
    let threads = if spread { rayon::current_num_threads() } else { 1 };
    if threads == 1 || work.saturating_mul(count) < PARALLEL {
        (0..count).for_each(|index| one(index, Parallelism::None));
    } else if count >= 2 * threads || work < PARALLEL {
        let least = (PARALLEL / 4 / work).max(1);
        (0..count).into_par_iter().with_min_len(least).for_each(|index| {
            one(index, Parallelism::None);
        });
    } else {
        (0..count).for_each(|index| one(index, Parallelism::Rayon(threads)));
    }
    Ok(())
}
