// A linear layer's product with the tokens of a wave.

#pragma once

#include <cstdint>

// x [tokens, in], y [tokens, out], without gaps; T is float, or bfloat16 as its 16 bits.
template <typename T>
struct Product {
  const T *x;
  int64_t tokens, in, out;
  T *y;
};

// weight [out, in] without gaps, or packed as [out / 16][in / 2][16 outputs][2 inputs]; bias [out] or null.
template <typename T>
struct Weights {
  const T *weight, *bias;
};
