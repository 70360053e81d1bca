//! Batches of matrices over slices, whose elements lie anywhere in them.

/// The sizes of a batched matmul: `C[batch, m, n] = A[batch, m, k] · B[batch, k, n]`.
#[derive(Debug, Clone, Copy)]
pub struct Size<'a> {
    /// The batch axes, outermost first; none is one matrix.
    pub batch: &'a [usize],
    /// Rows of A and C.
    pub m: usize,
    /// Columns of B and C.
    pub n: usize,
    /// Columns of A, rows of B.
    pub k: usize,
}

/// Where the elements of a batch of matrices lie, in elements of their slice.
#[derive(Debug, Clone, Copy)]
pub struct Strides<'a> {
    /// The place of the first element.
    pub offset: usize,
    /// One stride for each batch axis; 0 broadcasts.
    pub batch: &'a [isize],
    /// From one row to the next.
    pub row: isize,
    /// From one column to the next.
    pub column: isize,
}

/// An operand.
#[derive(Debug, Clone, Copy)]
pub struct Matrix<'a, T> {
    /// The elements.
    pub data: &'a [T],
    /// Their places.
    pub at: Strides<'a>,
}

/// A matmul.
#[derive(Debug)]
pub struct MatrixMut<'a, T> {
    /// The elements.
    pub data: &'a mut [T],
    /// Their places, no two the same.
    pub at: Strides<'a>,
}
