//! Matmuls of integer matrices, modulo the width of the integers.

use super::copy::copy_between;
use super::gemm::{batch_offset, check};
use super::matrix::{Matrix, MatrixMut, Size};
use super::simd::{Kernel, dispatch};
use super::view::{Axes, elements, row_major};
use crate::cpu::scratch;
use crate::error::Result;
use crate::threads::{self, chunks_mut};
use pulp::Simd;

/// Rows that a thread takes at least.
const ROWS: usize = 8;

/// An integer that is multiplied modulo its width.
pub trait Integer: Copy + Default + Send + Sync + bytemuck::Pod {
    /// `self + a · b`.
    fn multiply_add(self, a: Self, b: Self) -> Self;
}

macro_rules! integers {
    ($($type:ident),*) => {$(
        impl Integer for $type {
            #[inline(always)]
            fn multiply_add(self, a: Self, b: Self) -> Self {
                self.wrapping_add(a.wrapping_mul(b))
            }
        }
    )*};
}

integers!(i32, i64, u32, u64);

/// `C = A·B` over strided views.
///
/// # Errors
/// As [`matmul`](super::matmul::matmul).
pub fn matmul_integers<T: Integer>(
    size: Size<'_>,
    a: Matrix<'_, T>,
    b: Matrix<'_, T>,
    c: MatrixMut<'_, T>,
) -> Result<()> {
    check(size, &a, &b, &c)?;
    let Size { batch, m, n, k } = size;
    let shape: Axes<usize> = batch.iter().copied().chain([m, n]).collect();
    let len = elements("the matmul", &shape)?;
    if len == 0 {
        return Ok(());
    }
    let mut result = scratch::zeros::<T>(len)?;
    // Inputs without elements were not checked, and their places may be anywhere.
    if k > 0 {
        threads::each(ROWS, chunks_mut(&mut result, n), |row, sums| {
            let (matrix, row) = (row / m, row % m);
            let a_at = batch_offset(matrix, batch, a.at.batch) + row as isize * a.at.row;
            let b_at = batch_offset(matrix, batch, b.at.batch);
            let origins =
                [a.at.offset.wrapping_add_signed(a_at), b.at.offset.wrapping_add_signed(b_at)];
            dispatch(Row { sums, k, a, b, origins });
        });
    }
    let strides = row_major(&shape);
    let to: Axes<isize> = c.at.batch.iter().copied().chain([c.at.row, c.at.column]).collect();
    copy_between(c.data, c.at.offset, &to, &shape, &result, 0, &strides)
}

/// One row of a matmul; the origins are those of A's row and of B.
struct Row<'a, T> {
    sums: &'a mut [T],
    k: usize,
    a: Matrix<'a, T>,
    b: Matrix<'a, T>,
    origins: [usize; 2],
}

impl<T: Integer> Kernel for Row<'_, T> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd, const FMA: bool>(self, _: S) {
        let Row { sums, k, a, b, origins: [a_at, b_at] } = self;
        for p in 0..k {
            let factor = a.data[a_at.wrapping_add_signed(p as isize * a.at.column)];
            let line = b_at.wrapping_add_signed(p as isize * b.at.row);
            if b.at.column == 1 {
                let line = &b.data[line..line + sums.len()];
                sums.iter_mut().zip(line).for_each(|(sum, &x)| *sum = sum.multiply_add(factor, x));
            } else {
                for (j, sum) in sums.iter_mut().enumerate() {
                    let x = b.data[line.wrapping_add_signed(j as isize * b.at.column)];
                    *sum = sum.multiply_add(factor, x);
                }
            }
        }
    }
}
