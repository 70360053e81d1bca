__device__ __forceinline__ float to_tf32(float x) {
#if __CUDA_ARCH__ >= 800
  unsigned u;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(u) : "f"(x));
  return __uint_as_float(u);
#else
  return x - x == 0.0f ? __uint_as_float(__float_as_uint(x) + 0x1000 & ~0x1fff) : x;
#endif
}
