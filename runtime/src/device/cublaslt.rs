//! cuBLASLt's matrix product, a peer to measure kernels against.

use super::{Buffer, Device, sys};
use crate::error::{Error, Result};
use graphene_ir::tensor::Scalar;

/// Bytes of workspace: what cuBLAS itself takes on Hopper.
const WORKSPACE: usize = 32 << 20;

/// Algorithms that are timed.
const CANDIDATES: usize = 16;

/// Launches of a candidate that are timed together.
const REPEATS: usize = 20;

/// `C[m,n] = op(A)[m,k] · op(B)[k,n]` of row-major matrices without gaps, accumulated in f32.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Product {
    /// Rows of C.
    pub m: usize,
    /// Columns of C.
    pub n: usize,
    /// The depth.
    pub k: usize,
    /// The type of all three: f16 or bf16.
    pub scalar: Scalar,
    /// Whether A is stored as `[k,m]`.
    pub transpose_a: bool,
    /// Whether B is stored as `[n,k]`.
    pub transpose_b: bool,
}

impl Product {
    /// Rows and columns of A, B and C as they are stored.
    pub(super) fn stored(&self) -> [[usize; 2]; 3] {
        let of = |rows, columns, swap| if swap { [columns, rows] } else { [rows, columns] };
        [
            of(self.m, self.k, self.transpose_a),
            of(self.k, self.n, self.transpose_b),
            [self.m, self.n],
        ]
    }
}

/// A product bound to its buffers, by the fastest algorithm found.
pub struct Matmul {
    matmul: sys::Matmul,
    algorithm: sys::Algorithm,
    microseconds: f64,
    operands: [Buffer; 3],
    workspace: Buffer,
}

impl Matmul {
    /// Times the heuristic's first algorithms on the buffers of A, B and C, and keeps the fastest. C is overwritten.
    ///
    /// # Errors
    ///
    /// [`Error::MissingLibrary`] without cuBLASLt; [`Error::Short`] if a buffer does not hold its matrix;
    /// [`Error::Unsupported`] for other types than f16 and bf16, and where no algorithm is found.
    pub fn tune(device: &Device, product: Product, operands: [&Buffer; 3]) -> Result<Matmul> {
        for ((name, shape), buffer) in ["A", "B", "C"].iter().zip(product.stored()).zip(operands) {
            let bytes = shape[0] as i128 * shape[1] as i128 * i128::from(product.scalar.bytes());
            device.check_own(name, buffer)?;
            if bytes > buffer.len() as i128 {
                let tensor = (*name).to_owned();
                return Err(Error::Short { tensor, needed: bytes, bytes: buffer.len() });
            }
        }
        let matmul = sys::Matmul::new(&device.stream, &product)?;
        let workspace = device.alloc(WORKSPACE)?;
        let mut best: Option<(f64, sys::Algorithm)> = None;
        for algorithm in matmul.algorithms(WORKSPACE, CANDIDATES)? {
            let room = (workspace.pointer(), workspace.len());
            let pointers = operands.map(Buffer::pointer);
            let run = || matmul.run(&device.stream, &algorithm, pointers, room);
            // The heuristic may propose what the library then refuses to run.
            if run().is_err() {
                continue;
            }
            let total = device.time(|| (0..REPEATS).try_for_each(|_| run()))?;
            let microseconds = total / REPEATS as f64;
            if best.is_none_or(|(least, _)| microseconds < least) {
                best = Some((microseconds, algorithm));
            }
        }
        let (microseconds, algorithm) = best
            .ok_or(Error::Unsupported { what: "a product that cuBLASLt has no algorithm for" })?;
        Ok(Matmul {
            matmul,
            algorithm,
            microseconds,
            operands: operands.map(Buffer::clone),
            workspace,
        })
    }

    /// What the algorithm took when it was chosen, launched back to back.
    pub fn microseconds(&self) -> f64 {
        self.microseconds
    }

    /// Computes C, behind all work of the device.
    ///
    /// # Errors
    ///
    /// [`Error::Device`].
    pub fn launch(&self) -> Result<()> {
        let pointers = self.operands.each_ref().map(Buffer::pointer);
        let room = (self.workspace.pointer(), self.workspace.len());
        self.matmul.run(self.workspace.memory.stream(), &self.algorithm, pointers, room)
    }
}
