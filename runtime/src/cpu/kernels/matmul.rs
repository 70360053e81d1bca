//! Batched matrix products over strided views: transposed, permuted and broadcast operands are read
//! in place, and the result may be written through strides too.

use super::copy::copy_between;
use super::gemm::{batch_offset, batched, check};
use super::tile::{Cut, Grid, TileMut};
use super::view::{Axes, check_size, elements, row_major};
use crate::cpu::scratch::{self, Buffer};
use crate::error::Result;
use crate::threads::{self, chunks, chunks_mut};
use half::{bf16, f16};

pub use super::gemm::Element;
pub use super::matrix::{Matrix, MatrixMut, Size, Strides};

/// `C = α A·B`. Many matrices are spread over the cores one by one, few large ones from within. A
/// batch axis that only broadcasts B becomes rows of A, where the strides allow it.
///
/// # Errors
/// [`Error::Mismatch`](crate::Error::Mismatch) if a view's batch rank is not the size's;
/// [`Error::OutOfBounds`](crate::Error::OutOfBounds) if a view leaves its slice;
/// [`Error::Overlap`](crate::Error::Overlap) if two elements of C are at one place.
pub fn matmul<T: Element>(
    size: Size<'_>,
    alpha: T,
    a: Matrix<'_, T>,
    b: Matrix<'_, T>,
    c: MatrixMut<'_, T>,
) -> Result<()> {
    check(size, &a, &b, &c)?;
    let folded = Folded::of(size, a.at, b.at, c.at);
    let (size, [a_at, b_at, c_at]) = folded.parts(a.at, b.at, c.at);
    batched(
        size,
        alpha,
        Matrix { at: a_at, ..a },
        Matrix { at: b_at, ..b },
        MatrixMut { data: c.data, at: c_at },
        true,
    )
}

/// A batch without the axes of size 1 and those that fold into `m`.
struct Folded {
    m: usize,
    n: usize,
    k: usize,
    batch: Axes<usize>,
    strides: [Axes<isize>; 3],
    /// From one row of A, and of C, to the next.
    rows: [isize; 2],
}

impl Folded {
    fn of(size: Size<'_>, a: Strides<'_>, b: Strides<'_>, c: Strides<'_>) -> Self {
        let mut folded = Self {
            m: size.m,
            n: size.n,
            k: size.k,
            batch: Axes::new(),
            strides: std::array::from_fn(|_| Axes::new()),
            rows: [a.row, c.row],
        };
        for i in (0..size.batch.len()).rev() {
            let count = size.batch[i];
            if count == 1 {
                continue;
            }
            let next = [a.batch[i], c.batch[i]];
            let follows =
                |(next, row): (isize, isize)| next as i128 == folded.m as i128 * row as i128;
            if b.batch[i] == 0 && folded.m == 1 {
                (folded.m, folded.rows) = (count, next);
            } else if b.batch[i] == 0 && next.into_iter().zip(folded.rows).all(follows) {
                folded.m *= count;
            } else {
                folded.batch.insert(0, count);
                for (strides, at) in folded.strides.iter_mut().zip([a, b, c]) {
                    strides.insert(0, at.batch[i]);
                }
            }
        }
        folded
    }

    fn parts<'a>(
        &'a self,
        a: Strides<'a>,
        b: Strides<'a>,
        c: Strides<'a>,
    ) -> (Size<'a>, [Strides<'a>; 3]) {
        let size = Size { batch: &self.batch, m: self.m, n: self.n, k: self.k };
        let [of_a, of_b, of_c] = &self.strides;
        let strides = [
            Strides { batch: of_a, row: self.rows[0], ..a },
            Strides { batch: of_b, ..b },
            Strides { batch: of_c, row: self.rows[1], ..c },
        ];
        (size, strides)
    }
}

/// A 16-bit float that is multiplied in f32.
pub trait Half: Copy + Default + Send + Sync + bytemuck::Pod {
    /// `dst[i] = src[i]`, exactly.
    fn widen(dst: &mut [f32], src: &[Self]);
    /// `dst[i] = src[i]`, rounded to the nearest, ties to even.
    fn narrow(dst: &mut [Self], src: &[f32]);
}

macro_rules! half {
    ($($type:ident),*) => {$(
        impl Half for $type {
            fn widen(dst: &mut [f32], src: &[Self]) {
                use half::slice::HalfFloatSliceExt;
                let n = dst.len().min(src.len());
                src[..n].convert_to_f32_slice(&mut dst[..n]);
            }

            fn narrow(dst: &mut [Self], src: &[f32]) {
                use half::slice::HalfFloatSliceExt;
                let n = dst.len().min(src.len());
                dst[..n].convert_from_f32_slice(&src[..n]);
            }
        }
    )*};
}

half!(f16, bf16);

/// `C = α A·B` for 16-bit floats, accumulated in f32 and rounded once.
///
/// # Errors
/// As [`matmul`].
pub fn matmul_half<T: Half>(
    size: Size<'_>,
    alpha: f32,
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
    let (a_wide, a_at) = widen_view(a, size, [m, k])?;
    let (b_wide, b_at) = widen_view(b, size, [k, n])?;
    let strides = row_major(&shape);
    let at =
        Strides { offset: 0, batch: &strides[..batch.len()], row: strides[batch.len()], column: 1 };
    let mut wide = scratch::take::<f32>(len)?;
    let a = Matrix { data: &a_wide, at: Strides { offset: a_at, ..a.at } };
    let b = Matrix { data: &b_wide, at: Strides { offset: b_at, ..b.at } };
    matmul(size, alpha, a, b, MatrixMut { data: &mut wide, at })?;
    let mut narrow = scratch::take::<T>(len)?;
    narrowed(&mut narrow, &wide);
    let to: Axes<isize> = c.at.batch.iter().copied().chain([c.at.row, c.at.column]).collect();
    copy_between(c.data, c.at.offset, &to, &shape, &narrow, 0, &strides)
}

/// The elements in f32, exactly.
///
/// # Errors
/// [`Error::Memory`] if the system does not give them.
pub(crate) fn widened<T: Half>(source: &[T]) -> Result<Buffer<f32>> {
    let mut wide = scratch::take(source.len())?;
    let parts = (chunks_mut(&mut wide, BLOCK), chunks(source, BLOCK));
    threads::each(1, parts, |_, (to, from)| T::widen(to, from));
    Ok(wide)
}

/// The elements rounded to 16 bits.
pub(crate) fn narrowed<T: Half>(to: &mut [T], wide: &[f32]) {
    let parts = (chunks_mut(to, BLOCK), chunks(wide, BLOCK));
    threads::each(1, parts, |_, (to, from)| T::narrow(to, from));
}

/// The elements converted at a time.
const BLOCK: usize = 1 << 14;

/// The part of the slice that a view reaches, in f32, and the view's offset in it.
fn widen_view<T: Half>(
    x: Matrix<'_, T>,
    size: Size<'_>,
    [rows, columns]: [usize; 2],
) -> Result<(Buffer<f32>, usize)> {
    let (mut low, mut high) = (x.at.offset, x.at.offset);
    let axes = size.batch.iter().copied().zip(x.at.batch.iter().copied());
    if rows == 0 || columns == 0 {
        return Ok((scratch::take(0)?, 0));
    }
    for (size, stride) in axes.chain([(rows, x.at.row), (columns, x.at.column)]) {
        let reach = (size - 1) * stride.unsigned_abs();
        if stride < 0 { low -= reach } else { high += reach }
    }
    let src = &x.data[low..=high];
    Ok((widened(src)?, x.at.offset - low))
}

/// `C = α A·B` in f32 with C contiguous and row-major of `[batch…, m, n]`, a block of rows at a time:
/// `epilogue(first, rows)` runs on each block right after its matmul, while it is in cache. `first`
/// counts rows over the whole batch; `rows` holds whole rows of `n`. Blocks are disjoint, cover all
/// rows, never span two matrices of the batch, and are visited by several threads in any order.
///
/// # Errors
/// As [`matmul`], and [`Error::Mismatch`](crate::Error::Mismatch) if `c` is not as long as the
/// matmul.
pub fn matmul_with(
    size: Size<'_>,
    alpha: f32,
    a: Matrix<'_, f32>,
    b: Matrix<'_, f32>,
    c: &mut [f32],
    epilogue: impl Fn(usize, &mut [f32]) + Sync,
) -> Result<()> {
    let Size { batch, m, n, k } = size;
    let shape: Axes<usize> = batch.iter().copied().chain([m, n]).collect();
    check_size("length of the result", elements("the matmul", &shape)?, c.len())?;
    let strides = row_major(&shape);
    let at = Strides { offset: 0, batch: &strides[..batch.len()], row: n as isize, column: 1 };
    check(size, &a, &b, &MatrixMut { data: &mut *c, at })?;
    if c.is_empty() {
        return Ok(());
    }
    let folded = Folded::of(size, a.at, b.at, at);
    let (size, [a_at, b_at, _]) = folded.parts(a.at, b.at, at);
    let height = block_rows(size.m);
    // Blocks do not span matrices: those of all matrices are shared out together.
    let down = size.m.div_ceil(height);
    let grid = Grid { matrices: c.len() / (size.m * n), rows: size.m, tall: height, wide: None };
    let cut = Cut::new(grid, [(TileMut::new(c, n), 1)]).expect("the grid has the sizes of C");
    threads::try_each(1, cut, |number, (block, mut tiles)| {
        let (matrix, first) = (number / down, block.row);
        let c = tiles[0].dense();
        if c.is_empty() {
            return Ok(());
        }
        // Inputs without elements were not checked, and their places may be anywhere.
        let origin = |at: Strides<'_>, row: usize| {
            if k == 0 {
                return 0;
            }
            let matrix = batch_offset(matrix, size.batch, at.batch);
            (at.offset as isize + matrix + row as isize * at.row) as usize
        };
        let b_at = Strides { offset: origin(b_at, 0), batch: &[], ..b_at };
        let a_at = Strides { offset: origin(a_at, first), batch: &[], ..a_at };
        let size_of = Size { batch: &[], m: c.len() / n, n, k };
        let at = Strides { offset: 0, batch: &[], row: n as isize, column: 1 };
        let to = MatrixMut { data: &mut *c, at };
        let (a, b) = (Matrix { at: a_at, ..a }, Matrix { at: b_at, ..b });
        batched(size_of, alpha, a, b, to, false)?;
        epilogue(matrix * size.m + first, c);
        Ok(())
    })
}

/// The rows of a block: enough that packing B for each block costs little, few enough that a block's
/// rows stay in cache and every core has some.
fn block_rows(m: usize) -> usize {
    let threads = threads::count();
    let blocks = m.div_ceil(256).max(threads).next_multiple_of(threads);
    m.div_ceil(blocks).next_multiple_of(16)
}

#[cfg(test)]
mod tests {
    use super::{Folded, Matrix, MatrixMut, Size, Strides, matmul, matmul_half, matmul_with};
    use crate::error::Error;
    use half::{bf16, f16};

    fn numbers(len: usize, seed: usize) -> Vec<f32> {
        (0..len).map(|i| (((i + seed) * 7919) % 1013) as f32 * 2e-3 - 1.0).collect()
    }

    fn index(mut i: usize, sizes: &[usize], strides: &[isize]) -> isize {
        let mut at = 0;
        for (&size, &stride) in sizes.iter().zip(strides).rev() {
            (at, i) = (at + (i % size) as isize * stride, i / size);
        }
        at
    }

    /// The place of element (row, column) of matrix `batch`.
    fn place(size: Size<'_>, at: Strides<'_>, batch: usize, row: usize, column: usize) -> usize {
        let base = at.offset as isize + index(batch, size.batch, at.batch);
        (base + row as isize * at.row + column as isize * at.column) as usize
    }

    /// The least length of a slice for a view.
    fn length(size: Size<'_>, at: Strides<'_>, rows: usize, columns: usize) -> usize {
        let axes = size.batch.iter().copied().zip(at.batch.iter().copied());
        let axes = axes.chain([(rows, at.row), (columns, at.column)]);
        axes.fold(at.offset + 1, |len, (size, stride)| {
            len + size.saturating_sub(1) * stride.max(0) as usize
        })
    }

    fn check_matmul(size: Size<'_>, a_at: Strides<'_>, b_at: Strides<'_>, c_at: Strides<'_>) {
        let Size { m, n, k, batch } = size;
        let a = numbers(length(size, a_at, m, k), 1);
        let b = numbers(length(size, b_at, k, n), 77);
        let mut c = vec![5.0f32; length(size, c_at, m, n)];
        let mut want = c.clone();
        for matrix in 0..batch.iter().product() {
            for i in 0..m {
                for j in 0..n {
                    let terms = (0..k).map(|p| {
                        let x = a[place(size, a_at, matrix, i, p)];
                        f64::from(x) * f64::from(b[place(size, b_at, matrix, p, j)])
                    });
                    want[place(size, c_at, matrix, i, j)] = 0.5 * terms.sum::<f64>() as f32;
                }
            }
        }
        let near = |got: &[f32], what: &str, bound: f32| {
            for (i, (got, want)) in got.iter().zip(&want).enumerate() {
                assert!((got - want).abs() <= bound, "{what} {size:?} at {i}: {got} {want}");
            }
        };
        let bound = 1e-6 * (k as f32 + 1.0);
        let (left, right) = (Matrix { data: &a[..], at: a_at }, Matrix { data: &b[..], at: b_at });
        matmul(size, 0.5, left, right, MatrixMut { data: &mut c, at: c_at }).unwrap();
        near(&c, "f32", bound);

        let wide = |x: &[f32]| -> Vec<f64> { x.iter().map(|&x| x.into()).collect() };
        let (a64, b64, mut c64) = (wide(&a), wide(&b), vec![5.0f64; c.len()]);
        let (left, right) =
            (Matrix { data: &a64[..], at: a_at }, Matrix { data: &b64[..], at: b_at });
        matmul(size, 0.5, left, right, MatrixMut { data: &mut c64, at: c_at }).unwrap();
        let c64: Vec<f32> = c64.iter().map(|&x| x as f32).collect();
        near(&c64, "f64", bound);

        let half = |x: &[f32]| -> Vec<bf16> { x.iter().map(|&x| bf16::from_f32(x)).collect() };
        let (a16, b16, mut c16) = (half(&a), half(&b), vec![bf16::from_f32(5.0); c.len()]);
        let (left, right) =
            (Matrix { data: &a16[..], at: a_at }, Matrix { data: &b16[..], at: b_at });
        matmul_half(size, 0.5, left, right, MatrixMut { data: &mut c16, at: c_at }).unwrap();
        let c16: Vec<f32> = c16.iter().map(|x| x.to_f32()).collect();
        near(&c16, "bf16", 2f32.powi(-8) * (k as f32 + 1.0));

        let half = |x: &[f32]| -> Vec<f16> { x.iter().map(|&x| f16::from_f32(x)).collect() };
        let (a16, b16, mut c16) = (half(&a), half(&b), vec![f16::from_f32(5.0); c.len()]);
        let (left, right) =
            (Matrix { data: &a16[..], at: a_at }, Matrix { data: &b16[..], at: b_at });
        matmul_half(size, 0.5, left, right, MatrixMut { data: &mut c16, at: c_at }).unwrap();
        let c16: Vec<f32> = c16.iter().map(|x| x.to_f32()).collect();
        near(&c16, "f16", 2f32.powi(-11) * (k as f32 + 1.0));
    }

    fn rows<'a>(offset: usize, batch: &'a [isize], row: isize) -> Strides<'a> {
        Strides { offset, batch, row, column: 1 }
    }

    fn columns<'a>(offset: usize, batch: &'a [isize], column: isize) -> Strides<'a> {
        Strides { offset, batch, row: 1, column }
    }

    #[test]
    fn single_matrices_of_odd_sizes() {
        for (m, k, n) in
            [(1, 1, 1), (1, 300, 7), (5, 3, 1), (33, 65, 17), (130, 64, 48), (7, 0, 5), (0, 3, 4)]
        {
            let size = Size { batch: &[], m, n, k };
            let (m, n, k) = (m as isize, n as isize, k as isize);
            check_matmul(size, rows(0, &[], k), rows(0, &[], n), rows(0, &[], n));
            check_matmul(size, columns(2, &[], m), rows(1, &[], n + 3), rows(4, &[], n + 1));
            check_matmul(size, rows(0, &[], k), columns(0, &[], k), columns(0, &[], m));
        }
    }

    #[test]
    fn batches_of_views() {
        // Heads of a packed [batch, sequence, 3, heads, 8], as attention reads and writes them.
        let (b, s, h, d) = (3usize, 21usize, 4usize, 8usize);
        let token = (3 * h * d) as isize;
        let packed = [s as isize * token, d as isize];
        let size = Size { batch: &[b, h], m: s, n: s, k: d };
        let scores = [(h * s * s) as isize, (s * s) as isize];
        let key = Strides { offset: h * d, batch: &packed, row: 1, column: token };
        check_matmul(size, rows(0, &packed, token), key, rows(0, &scores, s as isize));
        let size = Size { batch: &[b, h], m: s, n: d, k: s };
        let merged = [(s * h * d) as isize, d as isize];
        let value = rows(2 * h * d, &packed, token);
        check_matmul(size, rows(0, &scores, s as isize), value, rows(0, &merged, (h * d) as isize));
        // Broadcast operands, folded where the strides allow it and not.
        let size = Size { batch: &[2, 1, 5], m: 3, n: 6, k: 4 };
        check_matmul(
            size,
            rows(0, &[60, 9, 12], 4),
            rows(0, &[0, 7, 0], 6),
            rows(0, &[90, 1, 18], 6),
        );
        check_matmul(
            size,
            rows(0, &[0, 0, 12], 4),
            rows(0, &[24, 0, 0], 6),
            rows(0, &[90, 1, 18], 6),
        );
        let reversed = Strides { offset: 71, batch: &[-12], row: -4, column: -1 };
        let size = Size { batch: &[6], m: 3, n: 6, k: 4 };
        check_matmul(size, reversed, rows(0, &[0], 6), rows(0, &[18], 6));
        check_matmul(Size { batch: &[0], ..size }, reversed, rows(0, &[0], 6), rows(0, &[18], 6));
    }

    #[test]
    fn an_epilogue_sees_every_row_once() {
        for (batch, m, k, n, shared) in [
            (1, 1000, 20, 30, true),
            (3, 5, 7, 2, true),
            (4, 70, 9, 11, false),
            (2, 3, 0, 4, false),
        ] {
            let b_stride = if shared { 0 } else { (k * n) as isize };
            let batches = [batch];
            let size = Size { batch: &batches, m, n, k };
            let a_batch = [(m * k) as isize];
            let b_batch = [b_stride];
            let c_batch = [(m * n) as isize];
            let (a, b) = (numbers(batch * m * k, 3), numbers(batch * k * n, 4));
            let a = Matrix { data: &a, at: rows(0, &a_batch, k as isize) };
            let b = Matrix { data: &b, at: rows(0, &b_batch, n as isize) };
            let mut want = vec![0.0; batch * m * n];
            let at = rows(0, &c_batch, n as isize);
            matmul(size, 1.0, a, b, MatrixMut { data: &mut want, at }).unwrap();
            let mut got = vec![0.0; batch * m * n];
            matmul_with(size, 1.0, a, b, &mut got, |first, rows| {
                for (i, row) in rows.chunks_exact_mut(n).enumerate() {
                    row.iter_mut().for_each(|x| *x += 100.0 * (first + i) as f32);
                }
            })
            .unwrap();
            for (i, (got, want)) in got.iter().zip(&want).enumerate() {
                let want = want + 100.0 * (i / n) as f32;
                assert!((got - want).abs() <= 2e-7 * want.abs() + 2e-5, "{i}: {got} {want}");
            }
        }
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let data = [1.0f32; 12];
        let size = Size { batch: &[], m: 3, n: 3, k: 4 };
        let good = Matrix { data: &data, at: rows(0, &[], 4) };
        let run = |a: Strides<'_>, c: Strides<'_>, len: usize| {
            let mut out = vec![0.0; len];
            let b = Matrix { data: &data, at: rows(0, &[], 3) };
            matmul(size, 1.0, Matrix { data: &data, at: a }, b, MatrixMut { data: &mut out, at: c })
        };
        assert_eq!(run(good.at, rows(0, &[], 3), 9), Ok(()));
        assert!(matches!(run(good.at, rows(0, &[], 3), 8), Err(Error::OutOfBounds { .. })));
        assert!(matches!(run(good.at, rows(0, &[], 2), 9), Err(Error::Overlap { .. })));
        assert!(matches!(run(rows(1, &[], 4), rows(0, &[], 3), 9), Err(Error::OutOfBounds { .. })));
        assert!(matches!(
            run(rows(0, &[], -4), rows(0, &[], 3), 9),
            Err(Error::OutOfBounds { .. })
        ));
        assert!(matches!(run(rows(0, &[1], 4), rows(0, &[], 3), 9), Err(Error::Mismatch { .. })));
    }

    /// Matrices of one row each that lie apart are the rows of one, wherever the next row is.
    #[test]
    fn single_rows_are_one_matrix() {
        let size = Size { batch: &[9, 1], m: 1, n: 4, k: 5 };
        let a = Strides { offset: 0, batch: &[7, 1000], row: 1, column: 1 };
        let b = Strides { offset: 0, batch: &[0, 0], row: 4, column: 1 };
        let c = Strides { offset: 0, batch: &[4, 1000], row: 1, column: 1 };
        let folded = Folded::of(size, a, b, c);
        assert_eq!((folded.m, folded.rows, folded.batch.len()), (9, [7, 4], 0));
        check_matmul(size, a, b, c);
    }
}
