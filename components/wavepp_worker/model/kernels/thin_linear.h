// A linear layer for few tokens: y = x w^T + b, bfloat16 in and out and float32 between, or all of float32.
//
// With few rows of x, all that counts is how fast the weights are read. They are read once, as they lie in the
// checkpoint, where general matrix products first bring them into another order.

#pragma once

#include <cstdint>

// x [tokens, in], weight [out, in], bias [out] or null, y [tokens, out]; all without gaps; out is a multiple of 4.
template <typename T>
struct ThinLayer {
  const T *x, *weight, *bias;
  int64_t in, out;
  T *y;
};

// Weight rows that are fetched ahead of their use, into the second-level cache: what waits for a place in the first keeps
// other reads waiting. Past the last row a prefetch does no harm.
constexpr int64_t ROWS_AHEAD = 8;

// AVX512-BF16.
void thin_linear_bfloat16(const ThinLayer<uint16_t> &layer, int64_t tokens, int threads);
// AVX2.
void thin_linear_float(const ThinLayer<uint16_t> &layer, int64_t tokens, int threads);
void thin_linear_float(const ThinLayer<float> &layer, int64_t tokens, int threads);
