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
