//! Run-time choice of the vector unit.
//!
//! Kernels are plain loops that the compiler vectorises. [`dispatch`] compiles each one for every
//! vector unit that `pulp` knows (AVX-512, AVX2 with FMA, the baseline) and picks one by what the
//! machine has.

use pulp::{Arch, Simd, WithSimd};

/// A loop nest to compile per vector unit. `run` must be `#[inline(always)]`, and so must all it
/// calls in its inner loops.
pub(crate) trait Kernel {
    /// What the loop returns.
    type Output;
    /// Runs it; `FMA` tells whether `a * b + c` is one instruction.
    fn run<const FMA: bool>(self) -> Self::Output;
}

struct Adapter<K>(K);

impl<K: Kernel> WithSimd for Adapter<K> {
    type Output = K::Output;

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) -> K::Output {
        // Of x86's units, those with at least 8 lanes have FMA; AArch64 has it always.
        if S::F32_LANES >= 8 || cfg!(target_arch = "aarch64") {
            self.0.run::<true>()
        } else {
            self.0.run::<false>()
        }
    }
}

/// Runs `kernel` on the best vector unit of the machine.
pub(crate) fn dispatch<K: Kernel>(kernel: K) -> K::Output {
    Arch::new().dispatch(Adapter(kernel))
}

/// `a * b + c`, in one rounding where the machine does that in one instruction.
#[inline(always)]
pub(crate) fn mul_add<const FMA: bool>(a: f32, b: f32, c: f32) -> f32 {
    if FMA { a.mul_add(b, c) } else { a * b + c }
}

/// `c[0] + c[1] x + …` by Horner's rule.
#[inline(always)]
pub(crate) fn polynomial<const FMA: bool, const N: usize>(x: f32, c: [f32; N]) -> f32 {
    let mut sum = 0.0;
    for &c in c.iter().rev() {
        sum = mul_add::<FMA>(sum, x, c);
    }
    sum
}

/// The lanes that reductions keep apart: several vectors of any unit, so that additions overlap.
pub(crate) const LANES: usize = 64;

/// Folds a slice with [`LANES`] independent accumulators.
#[inline(always)]
pub(crate) fn fold(
    x: &[f32],
    init: f32,
    step: impl Fn(f32, f32) -> f32,
    merge: impl Fn(f32, f32) -> f32,
) -> f32 {
    let mut lanes = [init; LANES];
    let mut chunks = x.chunks_exact(LANES);
    for chunk in &mut chunks {
        for (lane, &x) in lanes.iter_mut().zip(chunk) {
            *lane = step(*lane, x);
        }
    }
    let mut tail = chunks.remainder().chunks_exact(16);
    for chunk in &mut tail {
        for (lane, &x) in lanes.iter_mut().zip(chunk) {
            *lane = step(*lane, x);
        }
    }
    for (lane, &x) in lanes.iter_mut().zip(tail.remainder()) {
        *lane = step(*lane, x);
    }
    let mut width = LANES / 2;
    while width > 0 {
        let (low, high) = lanes.split_at_mut(width);
        for (low, &high) in low.iter_mut().zip(high.iter()) {
            *low = merge(*low, high);
        }
        width /= 2;
    }
    lanes[0]
}

/// Sum of a slice.
#[inline(always)]
pub(crate) fn sum(x: &[f32]) -> f32 {
    fold(x, 0.0, |a, x| a + x, |a, b| a + b)
}

/// The largest element that is not NaN; -∞ if there is none.
#[inline(always)]
pub(crate) fn max(x: &[f32]) -> f32 {
    let larger = |a: f32, b: f32| if b > a { b } else { a };
    fold(x, f32::NEG_INFINITY, larger, larger)
}
