// CuTe's S<bits, base, shift>.
template <int bits, int base, int shift>
__device__ __forceinline__ unsigned swizzle(unsigned x) {
  constexpr unsigned field = ((1u << bits) - 1) << base;
  return shift >= 0 ? x ^ (x >> (shift >= 0 ? shift : 0) & field)
                    : x ^ (x & field) << (shift < 0 ? -shift : 0);
}
