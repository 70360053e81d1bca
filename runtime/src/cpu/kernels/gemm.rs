//! The only caller of the `gemm` crate, whose entry point takes raw pointers.
//!
//! Everything is checked before a pointer is made: that both inputs and the output stay within their
//! slices, and that the output's elements are apart, so that threads may write them. A [`TileMut`] is
//! apart from others by construction. Each call runs on its thread: matrices are cut into tiles here.

#![allow(unsafe_code)]

use super::matrix::{Matrix, MatrixMut, Size, Strides};
use super::tile::TileMut;
use super::view::{Axis, check_disjoint, check_reach, check_size};
use crate::error::Result;
use crate::threads;
use gemm::Parallelism;
use std::ops::Range;

/// A matmul of fewer multiplications than this runs on one thread.
const PARALLEL: usize = 1 << 18;

/// Columns below which a matmul is not divided for the threads' sake.
const NARROW: usize = 192;

/// The `gemm` crate computes this many columns at a time (on AVX-512; half of them on AVX2).
const COLUMNS: usize = 48;

/// The element types that the `gemm` crate multiplies and that this crate asks it to.
pub trait Element: sealed::Sealed + Copy + Send + Sync + 'static {
    /// The number 0.
    const ZERO: Self;
    /// The number 1.
    const ONE: Self;
}

impl Element for f32 {
    const ZERO: Self = 0.0;
    const ONE: Self = 1.0;
}

impl Element for f64 {
    const ZERO: Self = 0.0;
    const ONE: Self = 1.0;
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
    check_size("rank of the matmul's batch", batch.len(), c.at.batch.len())?;
    check_reach("the matmul", c.data.len(), c.at.offset, axes(size, m, n, c.at))?;
    check_disjoint("the matmul", axes(size, m, n, c.at))?;
    // A matmul without elements reads nothing, whatever its operands say.
    if batch.contains(&0) || m == 0 || n == 0 {
        return Ok(());
    }
    check_reach("the left operand", a.data.len(), a.at.offset, axes(size, m, k, a.at))?;
    check_reach("the right operand", b.data.len(), b.at.offset, axes(size, k, n, b.at))
}

/// The offset of matrix `index` of the batch, in elements from the first matrix.
pub(crate) fn batch_offset(mut index: usize, sizes: &[usize], strides: &[isize]) -> isize {
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
    let one = |index: usize, rows: Range<usize>, columns: Range<usize>| {
        let c_at = batch_offset(index, batch, c.at.batch)
            + rows.start as isize * c.at.row
            + columns.start as isize * c.at.column;
        // Inputs without elements were not checked, and their strides may be anything.
        let input = |at: Strides<'_>, first: isize| {
            if k == 0 { 0 } else { batch_offset(index, batch, at.batch) + first }
        };
        let a_at = input(a.at, rows.start as isize * a.at.row);
        let b_at = input(b.at, columns.start as isize * b.at.column);
        let (to, left, right) = pointers;
        // SAFETY: every element that the strides reach lies in the slices (`check_reach`, for the
        // whole batch, of which this is a part); the slices are borrowed for the call, `c` mutably, so it aliases
        // neither input; tiles of different matrices, rows or columns write different elements
        // (`check_disjoint`); with k of 0 the inputs are not read, and with `read_dst` false the output is only
        // written.
        unsafe {
            gemm::gemm(
                rows.len(),
                columns.len(),
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
                Parallelism::None,
            );
        }
    };
    let work = m.saturating_mul(n).saturating_mul(k.max(1));
    let threads = if spread { threads::count() } else { 1 };
    if threads == 1 || work.saturating_mul(count) < PARALLEL {
        (0..count).for_each(|index| one(index, 0..m, 0..n));
        return Ok(());
    }
    // The parts of each matrix: as many as it takes for each thread to have some, none of too little work.
    let wanted = if count >= 2 * threads { 1 } else { (2 * threads).div_ceil(count) };
    let (tall, wide) = tile([m, n], wanted.min(work / PARALLEL).max(1));
    let (down, across) = (m.div_ceil(tall), n.div_ceil(wide));
    let parts = count * down * across;
    let least = (PARALLEL / 4 / work).max(1);
    threads::for_each(parts.div_ceil(least), |group| {
        for part in group * least..parts.min((group + 1) * least) {
            let (row, column) = (part / across % down * tall, part % across * wide);
            one(part / across / down, row..m.min(row + tall), column..n.min(column + wide));
        }
    });
    Ok(())
}

/// Rows and columns of about so many tiles of a matrix. The columns are divided first: B is packed anew for each tile
/// of the same columns, while A is read as it lies.
fn tile([m, n]: [usize; 2], wanted: usize) -> (usize, usize) {
    let across = wanted.min(n / NARROW).max(1);
    let wide = n.div_ceil(across).next_multiple_of(COLUMNS).min(n);
    let down = wanted.div_ceil(n.div_ceil(wide)).min(m.div_ceil(8)).max(1);
    (m.div_ceil(down).next_multiple_of(8).min(m), wide)
}

/// C = A·B on the calling thread, with `k` columns in A. Neither input has a batch.
///
/// # Errors
/// As [`check`].
pub(crate) fn matmul<T: Element>(
    k: usize,
    a: Matrix<'_, T>,
    b: Matrix<'_, T>,
    c: &mut TileMut<'_, T>,
) -> Result<()> {
    let (m, n) = c.sizes();
    if m == 0 || n == 0 {
        return Ok(());
    }
    check_size("rank of the left operand's batch", 0, a.at.batch.len())?;
    check_size("rank of the right operand's batch", 0, b.at.batch.len())?;
    check_reach("the left operand", a.data.len(), a.at.offset, [(m, a.at.row), (k, a.at.column)])?;
    check_reach("the right operand", b.data.len(), b.at.offset, [(k, b.at.row), (n, b.at.column)])?;
    let (to, stride) = c.raw();
    // SAFETY: every element that the strides of A and B reach lies in their slices (`check_reach`),
    // which are borrowed for the call; C is a tile, borrowed mutably, so it aliases neither; with k of
    // 0 the inputs are not read, and with `read_dst` false the output is only written.
    unsafe {
        gemm::gemm(
            m,
            n,
            k,
            to,
            1,
            stride as isize,
            false,
            a.data.as_ptr().wrapping_add(a.at.offset),
            a.at.column,
            a.at.row,
            b.data.as_ptr().wrapping_add(b.at.offset),
            b.at.column,
            b.at.row,
            T::ZERO,
            T::ONE,
            false,
            false,
            false,
            Parallelism::None,
        );
    }
    Ok(())
}
