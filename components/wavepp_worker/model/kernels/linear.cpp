// Linear layers as Python calls them: the kernels for few tokens, and for more.

#include "calls.h"
#include "gemm.h"
#include "thin_linear.h"

#if defined(__x86_64__)

#include "instructions.h"

// Tokens from which it is worth it to turn weights for gemm.h; 0: never, on this CPU.
static int64_t fewest_of_many(bool narrow) {
  if (narrow && has_bfloat16()) return 7;
  return has_avx2() && !has_avx512() ? 17 : 0;
}

bool gemm_takes(int64_t tokens, int64_t in, int64_t out, bool narrow) {
  const int64_t fewest = fewest_of_many(narrow);
  return fewest && tokens >= fewest && in % 2 == 0 && out % 16 == 0;
}

// As many as pay for so many products of two numbers: a team of threads costs some microseconds.
static int team(int64_t products, int64_t threads) {
  return products > 1024 * 1024 ? static_cast<int>(threads) : 1;
}

template <typename T>
static void linear(const Product<T> &product, const Weights<T> &weights, int64_t threads) {
  constexpr bool NARROW = sizeof(T) == sizeof(uint16_t);
  const auto [x, tokens, in, out, y] = product;
  const bool more = gemm_takes(tokens, in, out, NARROW);
  // Of few tokens the weights count, which have to be read.
  const int own = team((more ? tokens : 16) * in * out, threads);
  const ThinLayer<T> thin{x, weights.weight, weights.bias, in, out, y};
  if constexpr (NARROW)
    if (has_bfloat16()) return more ? gemm_bfloat16(product, weights, own) : thin_linear_bfloat16(thin, tokens, own);
  more ? gemm_float(product, weights, own) : thin_linear_float(thin, tokens, own);
}

template <typename T>
static void gated_linear(const Product<T> &product, const Weights<T> &gate, const Weights<T> &up, int64_t threads) {
  const int own = team(2 * product.tokens * product.in * product.out, threads);
  if constexpr (sizeof(T) == sizeof(uint16_t))
    if (has_bfloat16()) return gated_gemm_bfloat16(product, gate, up, own);
  gated_gemm_float(product, gate, up, own);
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
extern "C" void wavepp_linear(const void *x, const void *weight, const void *bias, int64_t tokens, int64_t in, int64_t out,
                              void *y, int64_t threads, int64_t narrow) {
  const auto all = [&](auto number) {
    using T = decltype(number);
    linear<T>(product_of<T>(x, tokens, in, out, y), weights_of<T>(weight, bias), threads);
  };
  narrow ? all(uint16_t{}) : all(float{});
}

// y [tokens, out] = silu(x gate^T + gate_bias) * (x up^T + up_bias); only where gemm_takes() such layers.
extern "C" void wavepp_gated_linear(const void *x, const void *gate, const void *gate_bias, const void *up,
                                    const void *up_bias, int64_t tokens, int64_t in, int64_t out, void *y,
                                    int64_t threads, int64_t narrow) {
  const auto all = [&](auto number) {
    using T = decltype(number);
    gated_linear<T>(product_of<T>(x, tokens, in, out, y), weights_of<T>(gate, gate_bias), weights_of<T>(up, up_bias),
                    threads);
  };
  narrow ? all(uint16_t{}) : all(float{});
}

// From how many tokens on gemm.h takes layers of inputs in pairs and outputs in sixteens; 0: never, on this CPU.
extern "C" int64_t wavepp_fewest_of_many(int64_t narrow) { return fewest_of_many(narrow); }

#endif
