// Matrix products of tokens with the weights of linear layers, of bfloat16 with sums in float32.

#pragma once

#include <cstdint>

// Whether these products take so many tokens and such layers, on this CPU. Of few, thin_linear.h is faster.
bool gemm_takes(int64_t tokens, int64_t in, int64_t out);

// x [tokens, in], y [tokens, out].
struct Product {
  const uint16_t *x;
  int64_t tokens, in, out;
  uint16_t *y;
};

// weight [out, in], bias [out] or null.
struct Weights {
  const uint16_t *weight, *bias;
};

// y = x w^T + b; AVX512-BF16.
void gemm_bfloat16(const Product &product, const Weights &weights, int threads);
// y = silu(gate) * up, of x with two layers' weights; AVX512-BF16.
void gated_gemm_bfloat16(const Product &product, const Weights &gate, const Weights &up, int threads);
