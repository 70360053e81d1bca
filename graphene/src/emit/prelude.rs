//! What CUDA's headers would define, in parts; a source has those that it uses.

use std::collections::BTreeSet;

use crate::kernel::Unary;
use crate::named::named;
use crate::tensor::Scalar;

named! {
    /// A part of the prelude, by its name in C.
    #[derive(PartialOrd, Ord)]
    pub enum Prelude {
        /// fp16.
        Half = "half",
        /// bf16.
        Bfloat16 = "bfloat16",
        /// Multiply-adds of fp16.
        Hfma = "__hfma",
        /// Fast powers of 2.
        Exp2 = "exp2_approx",
        /// GELU in fp32.
        Gelu = "gelu",
        /// GELU as exact as fp16 is.
        GeluHalf = "gelu_half",
        /// Numbers rounded to TF32.
        Tf32 = "to_tf32",
        /// Tensor maps.
        TensorMap = "TensorMap",
        /// 32-bit registers.
        Word = "word",
        /// Addresses in shared memory.
        SharedAddress = "shared_address",
        /// Swizzles.
        Swizzle = "swizzle",
    }
}

/// The parts' definitions.
const PARTS: [&str; Prelude::ALL.len()] = [
    r#"
struct __align__(2) half {
  unsigned short bits;
  half() = default;
  __device__ half(float x) { asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(x)); }
  __device__ operator float() const {
    float x;
    asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(bits));
    return x;
  }
};
"#,
    r#"
struct __align__(2) bfloat16 {
  unsigned short bits;
  bfloat16() = default;
  __device__ bfloat16(float x) {
#if __CUDA_ARCH__ >= 800
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(x));
#else
    unsigned u = __float_as_uint(x);
    bits = x != x ? 0x7fff : (u + 0x7fff + (u >> 16 & 1)) >> 16;
#endif
  }
  __device__ operator float() const { return __uint_as_float((unsigned)bits << 16); }
};
"#,
    r#"
__device__ __forceinline__ half __hfma(half a, half b, half c) {
  asm("fma.rn.f16 %0, %1, %2, %0;" : "+h"(c.bits) : "h"(a.bits), "h"(b.bits));
  return c;
}
"#,
    r#"
// Within 2^-22 of 2^x, relative to it; below 2^-126 it is 0.
__device__ __forceinline__ float exp2_approx(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
"#,
    r#"
// max(x, 0) - |x| e^(-x²/2) P(t) with t = 1/(1 + 0.305|x|): e^(x²/2) times the normal distribution's tail, within
// 1.1e-7 of it, relative to it, so that nothing cancels where x is negative.
__device__ __forceinline__ float gelu(float x) {
  float a = fminf(fabsf(x), 15.0f), t, e;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(t) : "f"(__fmaf_rn(0.305f, a, 1.0f)));
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(e) : "f"(a * a * -0.72134752f));
  float p = __fmaf_rn(0.036427617f, t, -0.15189767f);
  p = __fmaf_rn(p, t, 0.18390754f);
  p = __fmaf_rn(p, t, -0.036375254f);
  p = __fmaf_rn(p, t, 0.12020782f);
  p = __fmaf_rn(p, t, 0.10365743f);
  p = __fmaf_rn(p, t, 0.12243051f);
  p = __fmaf_rn(p, t, 0.12164199f);
  return __fmaf_rn(-a, e * (p * t), x < 0.0f ? 0.0f : x);
}
"#,
    r#"
// max(x, 0) - |x| 2^P(|x|), where P is the binary logarithm of the normal distribution's tail: within 2^-13.7 of it,
// relative to it, down to 2^-25, which is half of the smallest half.
__device__ __forceinline__ float gelu_half(float x) {
  float a = fminf(fabsf(x), 15.0f), e;
  float p = __fmaf_rn(-0.000332927928f, a, 0.00594705803f);
  p = __fmaf_rn(p, a, -0.0486349041f);
  p = __fmaf_rn(p, a, -0.463594897f);
  p = __fmaf_rn(p, a, -1.14940886f);
  p = __fmaf_rn(p, a, -1.00010745f);
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(e) : "f"(p));
#if __CUDA_ARCH__ >= 800
  float y;
  asm("max.NaN.f32 %0, %1, 0f00000000;" : "=f"(y) : "f"(x));
#else
  float y = x < 0.0f ? 0.0f : x;
#endif
  return __fmaf_rn(-a, e, y);
}
"#,
    r#"
__device__ __forceinline__ float to_tf32(float x) {
#if __CUDA_ARCH__ >= 800
  unsigned u;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(u) : "f"(x));
  return __uint_as_float(u);
#else
  return x - x == 0.0f ? __uint_as_float(__float_as_uint(x) + 0x1000 & ~0x1fff) : x;
#endif
}
"#,
    r#"
// A CUtensorMap, which the host encodes.
struct __align__(64) TensorMap {
  unsigned char opaque[128];
};
"#,
    r#"
// The register that begins with x.
template <class T> __device__ __forceinline__ unsigned &word(T &x) {
  return reinterpret_cast<unsigned &>(x);
}
"#,
    r#"
__device__ __forceinline__ unsigned shared_address(const void *p) {
  return (unsigned)__cvta_generic_to_shared(p);
}
"#,
    r#"
// CuTe's S<bits, base, shift>.
template <int bits, int base, int shift>
__device__ __forceinline__ unsigned swizzle(unsigned x) {
  constexpr unsigned field = ((1u << bits) - 1) << base;
  return shift >= 0 ? x ^ (x >> (shift >= 0 ? shift : 0) & field)
                    : x ^ (x & field) << (shift < 0 ? -shift : 0);
}
"#,
];

const FUNCTIONS: [(Unary, Prelude); 4] = [
    (Unary::Exp2, Prelude::Exp2),
    (Unary::Gelu, Prelude::Gelu),
    (Unary::GeluHalf, Prelude::GeluHalf),
    (Unary::Tf32, Prelude::Tf32),
];

impl Prelude {
    /// What a type of elements needs.
    pub(super) fn of(scalar: Scalar) -> Option<Prelude> {
        match scalar {
            Scalar::F16 => Some(Prelude::Half),
            Scalar::Bf16 => Some(Prelude::Bfloat16),
            Scalar::F32 | Scalar::I32 | Scalar::I64 | Scalar::U32 | Scalar::U8 | Scalar::Mbar => {
                None
            }
        }
    }

    /// What a function's text calls.
    pub(super) fn called(op: Unary) -> Option<Prelude> {
        FUNCTIONS.iter().find(|row| row.0 == op).map(|row| row.1)
    }

    /// The definitions of parts. A multiply-add of fp16 needs fp16.
    pub(super) fn text(parts: &BTreeSet<Prelude>) -> String {
        let half = parts.contains(&Prelude::Hfma).then_some(Prelude::Half);
        let all: BTreeSet<Prelude> = parts.iter().copied().chain(half).collect();
        all.into_iter().map(|part| PARTS[part as usize]).collect()
    }
}
