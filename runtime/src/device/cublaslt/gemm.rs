//! What a matmul of cuBLASLt's is: sizes, how its matrices lie, and what follows it.

use crate::error::{Error, Result};
use graphene_fusion::library::Activation;
use graphene_ir::tensor::Scalar;

/// `C[m,n] = op(A)[m,k] · op(B)[k,n]` of row-major matrices without gaps, accumulated in f32.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PackedGemm {
    /// Rows of C.
    pub m: usize,
    /// Columns of C.
    pub n: usize,
    /// The depth.
    pub k: usize,
    /// The type of all three: f16, bf16 or f32.
    pub scalar: Scalar,
    /// Whether A is stored as `[k,m]`.
    pub transpose_a: bool,
    /// Whether B is stored as `[n,k]`.
    pub transpose_b: bool,
}

/// `D = activation(scale·A·B + C + bias)` for each of a batch of matmuls, accumulated in f32.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Gemm {
    /// How many matmuls there are.
    pub batch: usize,
    /// Rows of A, C and D.
    pub m: usize,
    /// Columns of B, C and D, and elements of the bias.
    pub n: usize,
    /// Columns of A, and rows of B.
    pub k: usize,
    /// The type of all operands: f16, bf16 or f32.
    pub scalar: Scalar,
    /// `[m,k]`
    pub a: Matrix,
    /// `[k,n]`
    pub b: Matrix,
    /// `[m,n]`, if something is added; row-major.
    pub c: Option<Matrix>,
    /// `[m,n]`, row-major.
    pub d: Matrix,
    /// The bits of the number that matmuls are multiplied by, so that equal matmuls are equal.
    pub scale_bits: u32,
    /// Whether a row is added.
    pub bias: bool,
    /// What is applied last.
    pub activation: Option<Activation>,
    /// Whether f32 is multiplied as TF32, with 10 bits of the fraction.
    pub tf32: bool,
}

/// How the matrices of a batch lie, in elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Matrix {
    /// From row to row, or from column to column where it is transposed; the others lie side by side.
    pub leading: usize,
    /// Whether the elements of a column lie side by side.
    pub transposed: bool,
    /// From one matrix to the next; zero where all are one.
    pub apart: usize,
}

impl From<PackedGemm> for Gemm {
    fn from(matmul: PackedGemm) -> Self {
        let PackedGemm { m, n, k, scalar, transpose_a, transpose_b } = matmul;
        let matrix = |rows, columns, transposed| {
            let leading = if transposed { rows } else { columns };
            Matrix { leading, transposed, apart: 0 }
        };
        Gemm {
            batch: 1,
            m,
            n,
            k,
            scalar,
            a: matrix(m, k, transpose_a),
            b: matrix(k, n, transpose_b),
            c: None,
            d: matrix(m, n, false),
            scale_bits: 1_f32.to_bits(),
            bias: false,
            activation: None,
            tf32: false,
        }
    }
}

impl Gemm {
    /// What matmuls are multiplied by.
    pub fn scale(&self) -> f32 {
        f32::from_bits(self.scale_bits)
    }

    /// Floating-point operations of the matmuls.
    pub fn operations(&self) -> f64 {
        [self.batch, self.m, self.n, self.k].iter().fold(2.0, |all, &size| all * size as f64)
    }

    /// The same matmul of packed operands, without what follows it: what there is to compare it with.
    pub fn bare(&self) -> Gemm {
        let (tall, wide) = (self.a.transposed, self.b.transposed);
        let Gemm { batch, m, n, k, scalar, .. } = *self;
        let packed = PackedGemm { m, n, k, scalar, transpose_a: tall, transpose_b: wide };
        let apart = |matrix: Matrix, own: Matrix, size: usize| Matrix {
            apart: if own.apart == 0 { 0 } else { size },
            ..matrix
        };
        let bare = Gemm::from(packed);
        Gemm {
            batch,
            a: apart(bare.a, self.a, m * k),
            b: apart(bare.b, self.b, k * n),
            d: apart(bare.d, self.d, m * n),
            tf32: self.tf32,
            ..bare
        }
    }

    /// The elements that A, B, C and D span, from their first to their last; `None` if that is no number.
    pub fn spans(&self) -> Option<[usize; 4]> {
        let span = |rows: usize, columns: usize, matrix: &Matrix| {
            let (inner, outer) = if matrix.transposed { (rows, columns) } else { (columns, rows) };
            let last = (self.batch.checked_sub(1)?).checked_mul(matrix.apart)?;
            let last = last.checked_add(outer.checked_sub(1)?.checked_mul(matrix.leading)?)?;
            last.checked_add(inner)
        };
        let c = match &self.c {
            Some(c) => span(self.m, self.n, c)?,
            None => 0,
        };
        Some([
            span(self.m, self.k, &self.a)?,
            span(self.k, self.n, &self.b)?,
            c,
            span(self.m, self.n, &self.d)?,
        ])
    }

    /// Checks what the library would take for granted. What is one row or column has no next one; it counts as packed, so
    /// that the library knows it for the plain matmul that it is.
    pub(super) fn checked(mut self) -> Result<Gemm> {
        if [self.batch, self.m, self.n, self.k].contains(&0) {
            return Err(Error::Unsupported { what: "a matmul of nothing by cuBLASLt" });
        }
        let Gemm { m, n, k, .. } = self;
        let c = self.c.as_mut().map(|c| (m, n, c));
        let sides = [(m, k, &mut self.a), (k, n, &mut self.b), (m, n, &mut self.d)];
        for (rows, columns, matrix) in sides.into_iter().chain(c) {
            let (inner, outer) = if matrix.transposed { (rows, columns) } else { (columns, rows) };
            if outer == 1 {
                matrix.leading = inner;
            }
            if matrix.leading < inner {
                return Err(Error::Unsupported { what: "a matmul of rows that overlap" });
            }
        }
        if self.d.transposed || self.c.is_some_and(|c| c.transposed) {
            return Err(Error::Unsupported { what: "a matmul whose result is column-major" });
        }
        if self.batch > 1 && self.d.apart < (m - 1) * self.d.leading + n {
            return Err(Error::Overlap { what: "a batch of matmuls" });
        }
        Ok(self)
    }
}

#[cfg(test)]
mod tests {
    use super::{Gemm, Matrix, PackedGemm};
    use crate::error::Error;
    use graphene_ir::tensor::Scalar;

    fn matmul() -> Gemm {
        let scalar = Scalar::F16;
        PackedGemm { m: 6, n: 4, k: 8, scalar, transpose_a: false, transpose_b: true }.into()
    }

    #[test]
    fn spans_go_from_the_first_element_to_the_last() {
        let packed = matmul();
        assert_eq!(packed.spans(), Some([48, 32, 0, 24]));
        let gaps = Matrix { leading: 10, transposed: false, apart: 100 };
        let batched = Gemm { batch: 3, a: gaps, c: Some(gaps), d: gaps, ..packed };
        assert_eq!(batched.spans(), Some([258, 32, 254, 254]));
        let bare = batched.bare();
        assert_eq!((bare.a.leading, bare.a.apart, bare.b.apart), (8, 48, 0));
        assert_eq!((bare.d.apart, bare.c), (24, None));
        let endless = Matrix { apart: usize::MAX, ..gaps };
        assert_eq!(Gemm { batch: 3, b: endless, ..packed }.spans(), None);
    }

    #[test]
    fn what_the_library_would_take_for_granted_is_checked() {
        let overlapping = Matrix { leading: 7, transposed: false, apart: 0 };
        let is = |gemm: Gemm, error: &str| {
            let found = gemm.checked().expect_err("it is refused").to_string();
            assert_eq!(found, error);
        };
        is(Gemm { a: overlapping, ..matmul() }, "a matmul of rows that overlap cannot be run");
        is(Gemm { k: 0, ..matmul() }, "a matmul of nothing by cuBLASLt cannot be run");
        let turned = Matrix { leading: 6, transposed: true, apart: 0 };
        is(Gemm { d: turned, ..matmul() }, "a matmul whose result is column-major cannot be run");
        let shared = Gemm { batch: 2, ..matmul() };
        assert!(matches!(shared.checked(), Err(Error::Overlap { .. })));
        // One row may be any distance from the next.
        for leading in [7, 800] {
            let a = Matrix { leading, ..overlapping };
            let row = Gemm { m: 1, a, ..matmul() }.checked().expect("one row");
            assert_eq!(row.a.leading, 8);
        }
    }
}
