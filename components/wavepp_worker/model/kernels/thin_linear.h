// A linear layer for few tokens: y = x w^T + b, bfloat16 in and out, float32 between.
//
// With few rows of x, all that counts is how fast the weights are read. They are read once, as they lie in the
// checkpoint, where general matrix products first bring them into another order.

#pragma once

#include <cstdint>

// x [tokens, in], weight [out, in], bias [out] or null, y [tokens, out]; all without gaps; out is a multiple of 4.
struct ThinLayer {
  const uint16_t *x, *weight, *bias;
  int64_t in, out;
  uint16_t *y;
};

// AVX512-BF16.
void thin_linear_bfloat16(const ThinLayer &layer, int64_t tokens, int threads);
// AVX2.
void thin_linear_float(const ThinLayer &layer, int64_t tokens, int threads);
