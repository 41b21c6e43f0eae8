// Linear layers as Python calls them: the kernels for few tokens, and for more.

#include "calls.h"
#include "gemm.h"
#include "thin_linear.h"

#if defined(__x86_64__)

#include <algorithm>

#include "instructions.h"

// As many as pay for so many multiplications: a team of threads costs some microseconds.
static int threads_for(int64_t multiplications, int64_t threads) {
  return multiplications > 1024 * 1024 ? static_cast<int>(threads) : 1;
}

// The same of `layers` layers of a size that are packed: some microseconds are the time of 4 million multiplications, or
// of reading as many weights as 128 tokens take that long with.
static int threads_for_packed(const Product<uint16_t> &product, int64_t layers, int64_t threads) {
  const int64_t tokens = std::max<int64_t>(128, product.tokens);
  return layers * tokens * product.in * product.out > 4 * 1024 * 1024 ? static_cast<int>(threads) : 1;
}

template <typename T>
static void linear(const Product<T> &product, const Weights<T> &weights, int64_t threads) {
  constexpr bool NARROW = sizeof(T) == sizeof(uint16_t);
  const auto [x, tokens, in, out, y] = product;
  const bool many = gemm_takes(tokens, in, out, NARROW);
  // The time of few tokens is that of reading the weights.
  const int team = threads_for((many ? tokens : 16) * in * out, threads);
  if constexpr (NARROW)
    if (has_bfloat16())
      return many ? gemm_bfloat16(product, weights, false, team) : thin_linear_bfloat16(product, weights, team);
  many ? gemm_float(product, weights, team) : thin_linear_float(product, weights, team);
}

template <typename T>
static void gated_linear(const Product<T> &product, const Weights<T> &gate, const Weights<T> &up, int64_t threads) {
  const int team = threads_for(2 * product.tokens * product.in * product.out, threads);
  if constexpr (sizeof(T) == sizeof(uint16_t))
    if (has_bfloat16()) return gated_gemm_bfloat16(product, gate, up, false, team);
  gated_gemm_float(product, gate, up, team);
}

template <typename T>
static Weights<T> weights_of(const void *weight, const void *bias) {
  return {static_cast<const T *>(weight), static_cast<const T *>(bias)};
}

template <typename T>
static Product<T> product_of(const void *x, int64_t tokens, int64_t in, int64_t out, void *y) {
  return {static_cast<const T *>(x), tokens, in, out, static_cast<T *>(y)};
}

// y [tokens, out] = x [tokens, in] weight^T + bias; bias [out] or null. `narrow`: all numbers are bfloat16, else floats.
// `packed`: the weights are (product.h); only where the CPU multiplies bfloat16.
extern "C" void wavepp_linear(const void *x, const void *weight, const void *bias, int64_t packed, int64_t tokens, int64_t in,
                              int64_t out, void *y, int64_t threads, int64_t narrow) {
  if (packed) {
    const auto product = product_of<uint16_t>(x, tokens, in, out, y);
    const auto weights = weights_of<uint16_t>(weight, bias);
    const int team = threads_for_packed(product, 1, threads);
    return has_amx() ? gemm_amx(product, weights, team) : gemm_bfloat16(product, weights, true, team);
  }
  const auto with = [&](auto number) {
    using T = decltype(number);
    linear<T>(product_of<T>(x, tokens, in, out, y), weights_of<T>(weight, bias), threads);
  };
  narrow ? with(uint16_t{}) : with(float{});
}

// y [tokens, out] = silu(x gate^T + gate_bias) * (x up^T + up_bias); only where gemm_takes() such layers, or both are packed.
extern "C" void wavepp_gated_linear(const void *x, const void *gate, const void *gate_bias, const void *up,
                                    const void *up_bias, int64_t packed, int64_t tokens, int64_t in, int64_t out, void *y,
                                    int64_t threads, int64_t narrow) {
  if (packed) {
    const auto product = product_of<uint16_t>(x, tokens, in, out, y);
    const auto gates = weights_of<uint16_t>(gate, gate_bias), ups = weights_of<uint16_t>(up, up_bias);
    const int team = threads_for_packed(product, 2, threads);
    return has_amx() ? gated_gemm_amx(product, gates, ups, team) : gated_gemm_bfloat16(product, gates, ups, true, team);
  }
  const auto with = [&](auto number) {
    using T = decltype(number);
    gated_linear<T>(product_of<T>(x, tokens, in, out, y), weights_of<T>(gate, gate_bias), weights_of<T>(up, up_bias),
                    threads);
  };
  narrow ? with(uint16_t{}) : with(float{});
}

#endif
