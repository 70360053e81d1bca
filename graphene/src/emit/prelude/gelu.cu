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
