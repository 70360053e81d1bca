// A CUtensorMap, which the host encodes.
struct __align__(64) TensorMap {
  unsigned char opaque[128];
};
