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
    /// Runs it on the vectors of `simd`; `FMA` tells whether `a * b + c` is one instruction.
    fn run<S: Simd, const FMA: bool>(self, simd: S) -> Self::Output;
}

struct Adapter<K>(K);

impl<K: Kernel> WithSimd for Adapter<K> {
    type Output = K::Output;

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) -> K::Output {
        // Of x86's units, those with at least 8 lanes have FMA; AArch64 has it always.
        if S::F32_LANES >= 8 || cfg!(target_arch = "aarch64") {
            self.0.run::<S, true>(simd)
        } else {
            self.0.run::<S, false>(simd)
        }
    }
}

/// Runs `kernel` on the best vector unit of the machine.
pub(crate) fn dispatch<K: Kernel>(kernel: K) -> K::Output {
    Arch::new().dispatch(Adapter(kernel))
}

/// Runs `kernel` on a vector unit of which the caller knows that the machine has it, as a function of its own.
#[inline(always)]
pub(crate) fn within<S: Simd, K: Kernel>(simd: S, kernel: K) -> K::Output {
    simd.vectorize(Adapter(kernel))
}

/// `a * b + c`, in one rounding where the machine does that in one instruction.
#[inline(always)]
pub(crate) fn mul_add<const FMA: bool>(a: f32, b: f32, c: f32) -> f32 {
    if FMA { a.mul_add(b, c) } else { a * b + c }
}

/// `c[0] + c[1] x + …` by Horner's rule.
#[inline(always)]
pub(crate) fn polynomial<const FMA: bool, const N: usize>(x: f32, c: [f32; N]) -> f32 {
    let mut sum = c[N - 1];
    for &c in c[..N - 1].iter().rev() {
        sum = mul_add::<FMA>(sum, x, c);
    }
    sum
}

/// A reduction of a slice to one number.
pub(crate) trait Fold: Copy {
    /// What the accumulators begin with.
    const INIT: f32;
    /// An element that changes nothing: it fills the last vector.
    #[inline(always)]
    fn neutral(self) -> f32 {
        Self::INIT
    }
    /// Takes in a vector of elements.
    fn step<S: Simd>(self, simd: S, acc: S::f32s, x: S::f32s) -> S::f32s;
    /// Joins two vectors of accumulators.
    fn join<S: Simd>(self, simd: S, a: S::f32s, b: S::f32s) -> S::f32s;
    /// Joins two accumulators.
    fn merge(a: f32, b: f32) -> f32;
}

/// The most lanes that a vector has.
const MAX_LANES: usize = 16;

/// Folds a slice with four vectors of accumulators, so that additions overlap, then those pairwise.
#[inline(always)]
pub(crate) fn fold<S: Simd, F: Fold>(simd: S, f: F, x: &[f32]) -> f32 {
    const { assert!(S::F32_LANES <= MAX_LANES && S::F32_LANES.is_power_of_two()) }
    let (vectors, tail) = S::as_simd_f32s(x);
    let mut acc = [simd.splat_f32s(F::INIT); 4];
    let (chunks, rest) = vectors.as_chunks::<4>();
    for chunk in chunks {
        for (acc, &x) in acc.iter_mut().zip(chunk) {
            *acc = f.step(simd, *acc, x);
        }
    }
    for (acc, &x) in acc.iter_mut().zip(rest) {
        *acc = f.step(simd, *acc, x);
    }
    if !tail.is_empty() {
        let mut padded = [f.neutral(); MAX_LANES];
        padded[..tail.len()].copy_from_slice(tail);
        let (last, _) = S::as_simd_f32s(&padded[..S::F32_LANES]);
        acc[3] = f.step(simd, acc[3], last[0]);
    }
    let [a, b, c, d] = acc;
    let mut lanes = [F::INIT; MAX_LANES];
    S::as_mut_simd_f32s(&mut lanes[..S::F32_LANES]).0[0] =
        f.join(simd, f.join(simd, a, b), f.join(simd, c, d));
    // The lanes beyond the vector's hold what changes nothing.
    let eight: [f32; 8] = std::array::from_fn(|i| F::merge(lanes[i], lanes[i + 8]));
    let four: [f32; 4] = std::array::from_fn(|i| F::merge(eight[i], eight[i + 4]));
    F::merge(F::merge(four[0], four[2]), F::merge(four[1], four[3]))
}

#[derive(Clone, Copy)]
struct Sum;

impl Fold for Sum {
    const INIT: f32 = 0.0;
    #[inline(always)]
    fn step<S: Simd>(self, simd: S, acc: S::f32s, x: S::f32s) -> S::f32s {
        simd.add_f32s(acc, x)
    }
    #[inline(always)]
    fn join<S: Simd>(self, simd: S, a: S::f32s, b: S::f32s) -> S::f32s {
        simd.add_f32s(a, b)
    }
    #[inline(always)]
    fn merge(a: f32, b: f32) -> f32 {
        a + b
    }
}

#[derive(Clone, Copy)]
struct Max;

impl Fold for Max {
    const INIT: f32 = f32::NEG_INFINITY;
    #[inline(always)]
    fn step<S: Simd>(self, simd: S, acc: S::f32s, x: S::f32s) -> S::f32s {
        simd.select_f32s(simd.less_than_f32s(acc, x), x, acc)
    }
    #[inline(always)]
    fn join<S: Simd>(self, simd: S, a: S::f32s, b: S::f32s) -> S::f32s {
        self.step(simd, a, b)
    }
    #[inline(always)]
    fn merge(a: f32, b: f32) -> f32 {
        if b > a { b } else { a }
    }
}

/// Sum of a slice.
#[inline(always)]
pub(crate) fn sum<S: Simd>(simd: S, x: &[f32]) -> f32 {
    fold(simd, Sum, x)
}

/// The largest element that is not NaN; -∞ if there is none.
#[inline(always)]
pub(crate) fn max<S: Simd>(simd: S, x: &[f32]) -> f32 {
    fold(simd, Max, x)
}
