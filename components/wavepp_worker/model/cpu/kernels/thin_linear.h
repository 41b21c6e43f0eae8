// A linear layer for few tokens: y = x w^T + b, bfloat16 in and out and float32 between, or all of float32.
//
// With few rows of x, all that counts is how fast the weights are read. They are read once, as they lie in the
// checkpoint, where general matrix products first bring them into another order.

#pragma once

#include <cstdint>

#include "product.h"

// Weight rows that are fetched ahead of their use, into the second-level cache: what waits for a place in the first keeps
// other reads waiting. Past the last row a prefetch does no harm.
constexpr int64_t ROWS_AHEAD = 8;

// Outputs are a multiple of 4.

// AVX512-BF16.
void thin_linear_bfloat16(const Product<uint16_t> &product, const Weights<uint16_t> &weights, int threads);
// AVX2.
void thin_linear_float(const Product<uint16_t> &product, const Weights<uint16_t> &weights, int threads);
void thin_linear_float(const Product<float> &product, const Weights<float> &weights, int threads);
