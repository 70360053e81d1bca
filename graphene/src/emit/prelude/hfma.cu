__device__ __forceinline__ half __hfma(half a, half b, half c) {
  asm("fma.rn.f16 %0, %1, %2, %0;" : "+h"(c.bits) : "h"(a.bits), "h"(b.bits));
  return c;
}
