// Matrix products of tokens with the weights of linear layers, with sums in float32.

#pragma once

#include <cstdint>

#include "product.h"

// From how many tokens on these products take such layers and are faster than those of thin_linear.h; 0: never, on this
// CPU. `narrow`: all numbers are bfloat16, else floats.
int64_t gemm_min_tokens(int64_t in, int64_t out, bool narrow);
// Whether they take so many.
bool gemm_takes(int64_t tokens, int64_t in, int64_t out, bool narrow);

// y = x w^T + b, and y = silu(gate) * up of x with two layers' weights: of packed ones, any number of tokens, a multiple of
// 32 inputs and of 16 outputs; of others many tokens, and where gemm_min_tokens() is not 0.

// AVX512-BF16. `packed`: the weights are.
void gemm_bfloat16(const Product<uint16_t> &product, const Weights<uint16_t> &weights, bool packed, int threads);
void gated_gemm_bfloat16(const Product<uint16_t> &product, const Weights<uint16_t> &gate, const Weights<uint16_t> &up,
                         bool packed, int threads);
// The same with bfloat16 as floats, where that is faster.
void gemm_widened(const Product<uint16_t> &product, const Weights<uint16_t> &weights, bool packed, int threads);
void gated_gemm_widened(const Product<uint16_t> &product, const Weights<uint16_t> &gate, const Weights<uint16_t> &up,
                        bool packed, int threads);
// AMX, of packed weights.
void gemm_amx(const Product<uint16_t> &product, const Weights<uint16_t> &weights, int threads);
void gated_gemm_amx(const Product<uint16_t> &product, const Weights<uint16_t> &gate, const Weights<uint16_t> &up,
                    int threads);
// AVX2.
template <typename T>
void gemm_float(const Product<T> &product, const Weights<T> &weights, int threads);
template <typename T>
void gated_gemm_float(const Product<T> &product, const Weights<T> &gate, const Weights<T> &up, int threads);
