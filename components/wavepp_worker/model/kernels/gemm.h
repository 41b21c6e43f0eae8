// Matrix products of tokens with the weights of linear layers, with sums in float32.

#pragma once

#include <cstdint>

// Whether these products take so many tokens and such layers, on this CPU. Of few, thin_linear.h is faster. `narrow`: all
// numbers are bfloat16, else floats.
bool gemm_takes(int64_t tokens, int64_t in, int64_t out, bool narrow);

// x [tokens, in], y [tokens, out]; T is float, or bfloat16 as its 16 bits.
template <typename T>
struct Product {
  const T *x;
  int64_t tokens, in, out;
  T *y;
};

// weight [out, in], bias [out] or null.
template <typename T>
struct Weights {
  const T *weight, *bias;
};

// y = x w^T + b, and y = silu(gate) * up of x with two layers' weights.

// AVX512-BF16.
void gemm_bfloat16(const Product<uint16_t> &product, const Weights<uint16_t> &weights, int threads);
void gated_gemm_bfloat16(const Product<uint16_t> &product, const Weights<uint16_t> &gate, const Weights<uint16_t> &up,
                         int threads);
// AVX2.
template <typename T>
void gemm_float(const Product<T> &product, const Weights<T> &weights, int threads);
template <typename T>
void gated_gemm_float(const Product<T> &product, const Weights<T> &gate, const Weights<T> &up, int threads);
