// The register that begins with x.
template <class T> __device__ __forceinline__ unsigned &word(T &x) {
  return reinterpret_cast<unsigned &>(x);
}
