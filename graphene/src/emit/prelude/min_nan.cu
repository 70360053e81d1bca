// The smaller one; NaN if either is.
__device__ __forceinline__ float min_nan(float x, float y) {
#if __CUDA_ARCH__ >= 800
  float z;
  asm("min.NaN.f32 %0, %1, %2;" : "=f"(z) : "f"(x), "f"(y));
  return z;
#else
  return x < y || x != x ? x : y;
#endif
}
