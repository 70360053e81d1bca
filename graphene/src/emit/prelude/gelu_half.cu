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
