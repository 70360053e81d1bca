//! The only caller of the `gemm` crate, whose entry point takes raw pointers.
//!
//! Everything is checked before a pointer is made: that both inputs and the output stay within their
//! slices, and that the output's elements are apart, so that threads may write them. A [`TileMut`] is
//! apart from others by construction.

#![allow(unsafe_code)]

use super::matmul::{Matrix, MatrixMut, Size, Strides};
use super::view::{Axis, check_disjoint, check_reach, check_size};
use crate::error::Result;
use bytemuck::Pod;
use gemm::Parallelism;
use rayon::iter::{IndexedParallelIterator, IntoParallelIterator, ParallelIterator};
use std::marker::PhantomData;

/// A product of fewer multiplications than this runs on one thread.
const PARALLEL: usize = 1 << 18;

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

/// Rows and columns of a row-major matrix that nobody else reads or writes, as a mutable slice in two
/// dimensions.
pub(crate) struct TileMut<'a, T> {
    start: *mut T,
    rows: usize,
    columns: usize,
    /// From one row to the next; at least `columns`.
    stride: usize,
    life: PhantomData<&'a mut [T]>,
}

// SAFETY: a tile is a mutable borrow of its elements, as a slice is.
unsafe impl<T: Send> Send for TileMut<'_, T> {}

impl<'a, T> TileMut<'a, T> {
    /// The matrix of this many columns that the slice holds; what makes no whole row is left out.
    pub(crate) fn new(data: &'a mut [T], columns: usize) -> Self {
        let rows = data.len().checked_div(columns).unwrap_or(0);
        Self { start: data.as_mut_ptr(), rows, columns, stride: columns, life: PhantomData }
    }

    /// Rows and columns.
    pub(crate) fn sizes(&self) -> (usize, usize) {
        (self.rows, self.columns)
    }

    /// The rows before `row` and those from it on; all before where there are not so many.
    pub(crate) fn split_rows(self, row: usize) -> [Self; 2] {
        let row = row.min(self.rows);
        // Of no rows the place is not looked at, so it may lie behind the matrix.
        let start = self.start.wrapping_add(row * self.stride);
        [Self { rows: row, ..self }, Self { start, rows: self.rows - row, ..self }]
    }

    /// The columns before `column` and those from it on; all before where there are not so many.
    pub(crate) fn split_columns(self, column: usize) -> [Self; 2] {
        let column = column.min(self.columns);
        let start = self.start.wrapping_add(column);
        [Self { columns: column, ..self }, Self { start, columns: self.columns - column, ..self }]
    }

    /// The rows, one slice each.
    pub(crate) fn each_row(&mut self) -> impl Iterator<Item = &mut [T]> {
        let (start, columns, stride) = (self.start, self.columns, self.stride);
        // SAFETY: a row lies within the slice that the tile was cut from, and rows are apart because
        // the stride is not below their length; the tile is borrowed mutably for as long.
        (0..self.rows).map(move |row| unsafe {
            std::slice::from_raw_parts_mut(start.wrapping_add(row * stride), columns)
        })
    }

    /// Whether no other elements lie between these.
    pub(crate) fn is_dense(&self) -> bool {
        self.stride == self.columns || self.rows <= 1
    }

    /// All elements of a dense tile; none of others.
    pub(crate) fn dense(&mut self) -> &mut [T] {
        let len = if self.is_dense() { self.rows * self.columns } else { 0 };
        // SAFETY: rows without others between them are one slice, borrowed as for `each_row`.
        unsafe { std::slice::from_raw_parts_mut(self.start, len) }
    }
}

impl TileMut<'_, u8> {
    /// The bytes as elements; `None` if they do not stand as elements must.
    pub(crate) fn typed<T: Pod>(&mut self) -> Option<TileMut<'_, T>> {
        let size = size_of::<T>();
        let whole = self.columns.is_multiple_of(size) && self.stride.is_multiple_of(size);
        let start = self.start.cast::<T>();
        (whole && start.is_aligned()).then_some(TileMut {
            start,
            rows: self.rows,
            columns: self.columns / size,
            stride: self.stride / size,
            life: PhantomData,
        })
    }
}

/// C = A·B on the calling thread, with `k` columns in A. Neither input has a batch.
///
/// # Errors
/// As [`check`].
pub(crate) fn product<T: Element>(
    k: usize,
    a: Matrix<'_, T>,
    b: Matrix<'_, T>,
    c: &mut TileMut<'_, T>,
) -> Result<()> {
    let (m, n) = (c.rows, c.columns);
    if m == 0 || n == 0 {
        return Ok(());
    }
    check_size("rank of the left operand's batch", 0, a.at.batch.len())?;
    check_size("rank of the right operand's batch", 0, b.at.batch.len())?;
    check_reach("the left operand", a.data.len(), a.at.offset, [(m, a.at.row), (k, a.at.column)])?;
    check_reach("the right operand", b.data.len(), b.at.offset, [(k, b.at.row), (n, b.at.column)])?;
    // SAFETY: every element that the strides of A and B reach lies in their slices (`check_reach`),
    // which are borrowed for the call; C is a tile, borrowed mutably, so it aliases neither; with k of
    // 0 the inputs are not read, and with `read_dst` false the output is only written.
    unsafe {
        gemm::gemm(
            m,
            n,
            k,
            c.start,
            1,
            c.stride as isize,
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
