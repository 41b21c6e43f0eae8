// The products of gemm.h where the CPU has AVX2 and no AVX-512: of floats, and of bfloat16 as floats.
//
// 6 tokens and a panel at a time: 12 sums, 2 vectors of weights and a token's number are 15 of 16 registers.

#include "gemm.h"

#if defined(__x86_64__)

#include <cstring>
#include <type_traits>

#include "gemm_blocks.h"
#include "subnormals.h"
#include "vectors_float.h"

#pragma GCC push_options
#pragma GCC target("avx2,fma")

namespace {

constexpr int64_t SUMS = PANEL_VECTORS * WIDE;  // of a token and a panel
constexpr int64_t AT_ONCE = 4;                  // inputs of one round of the loop, which itself takes a fifth of the time of one

// sums [M tokens, V vectors] += `count` numbers of x, whose tokens are `stride` apart, times weights [V][number][8].
template <int M, int V>
void add(const float *x, int64_t stride, const float *const *packed, int64_t count, float *sums, const Ahead &) {
  __m256 sum[M][V];
  UNROLL for (int m = 0; m < M; ++m)
    UNROLL for (int v = 0; v < V; ++v) sum[m][v] = load(sums + m * SUMS + v * WIDE);
  const auto multiply = [&](int64_t at) {
    __m256 weights[V];
    UNROLL for (int v = 0; v < V; ++v) weights[v] = load(packed[v] + at * WIDE);
    UNROLL for (int m = 0; m < M; ++m) {
      const __m256 number = _mm256_broadcast_ss(x + m * stride + at);
      UNROLL for (int v = 0; v < V; ++v) sum[m][v] = _mm256_fmadd_ps(number, weights[v], sum[m][v]);
    }
  };
  int64_t at = 0;
  for (; at + AT_ONCE <= count; at += AT_ONCE)
    UNROLL for (int i = 0; i < AT_ONCE; ++i) multiply(at + i);
  for (; at < count; ++at) multiply(at);
  UNROLL for (int m = 0; m < M; ++m)
    UNROLL for (int v = 0; v < V; ++v) store(sums + m * SUMS + v * WIDE, sum[m][v]);
}

template <typename T>
struct Floats {
  using Number = T;
  using Input = float;
  using Packed = float;
  struct Nothing {};
  using Mode = std::conditional_t<std::is_same_v<T, float>, Nothing, WithoutSubnormals>;
  static constexpr int64_t OUTPUTS = WIDE, BLOCK_TOKENS = 6, STEP = 1, MOST_STEPS = 256;
  // More tokens and their answers are too far apart for the caches.
  static constexpr int64_t SLICE_TOKENS = 256;
  static constexpr bool FETCHES_AHEAD = false;

  template <int TOKENS, int VECTORS>
  static constexpr Add<Floats> add = ::add<TOKENS, VECTORS>;

  static void pack_weights(const T *rows, int64_t in, int64_t steps, float *to) {
    int64_t at = 0;
    for (; at + WIDE <= steps; at += WIDE) {
      __m256 square[WIDE];
      for (int n = 0; n < WIDE; ++n) {
        const T *row = rows + n * in + at;
        // Past the last row a prefetch does no harm.
        _mm_prefetch(reinterpret_cast<const char *>(row + PANEL_VECTORS * WIDE * in), _MM_HINT_T1);
        square[n] = load(row);
      }
      transpose(square);
      for (int i = 0; i < WIDE; ++i) ::store(to + (at + i) * WIDE, square[i]);
    }
    for (; at < steps; ++at)
      for (int n = 0; n < WIDE; ++n) to[at * WIDE + n] = widened(rows[n * in + at]);
  }

  static void copy_inputs(const T *x, int64_t in, float *to) {
    int64_t at = 0;
    for (; at + WIDE <= in; at += WIDE) ::store(to + at, load(x + at));
    for (; at < in; ++at) to[at] = widened(x[at]);
  }

  static void store(const float *sums, int64_t tokens, const T *bias, T *y, int64_t stride) {
    const __m256 added = bias_or_zero(bias);
    for (int64_t m = 0; m < tokens; ++m) ::store(y + m * stride, _mm256_add_ps(load(sums + m * SUMS), added));
  }

  static void store_gated(const float *sums, int64_t tokens, const T *gate_bias, const T *up_bias, T *y,
                          int64_t stride) {
    const __m256 of_gate = bias_or_zero(gate_bias), of_up = bias_or_zero(up_bias);
    for (int64_t m = 0; m < tokens; ++m) {
      // Rounded where two separate layers would round, so that the pair gives the bits that they give.
      const __m256 value = rounded<T>(_mm256_add_ps(load(sums + m * SUMS), of_gate));
      const __m256 times = rounded<T>(_mm256_add_ps(load(sums + m * SUMS + WIDE), of_up));
      ::store(y + m * stride, _mm256_mul_ps(rounded<T>(silu(value)), times));
    }
  }

 private:
  static __m256 bias_or_zero(const T *bias) { return bias ? load(bias) : _mm256_setzero_ps(); }
  static float widened(float number) { return number; }
  static float widened(uint16_t number) {
    const uint32_t bits = static_cast<uint32_t>(number) << 16;
    float wide;
    std::memcpy(&wide, &bits, sizeof wide);
    return wide;
  }
};

}  // namespace

template <typename T>
void gemm_float(const Product<T> &product, const Weights<T> &weights, int threads) {
  multiply_all<Floats<T>>(product, Plain<Floats<T>>{weights}, threads);
}

template <typename T>
void gated_gemm_float(const Product<T> &product, const Weights<T> &gate, const Weights<T> &up, int threads) {
  multiply_all<Floats<T>>(product, Gated<Floats<T>>{gate, up}, threads);
}

template void gemm_float(const Product<float> &, const Weights<float> &, int);
template void gemm_float(const Product<uint16_t> &, const Weights<uint16_t> &, int);
template void gated_gemm_float(const Product<float> &, const Weights<float> &, const Weights<float> &, int);
template void gated_gemm_float(const Product<uint16_t> &, const Weights<uint16_t> &, const Weights<uint16_t> &, int);

#pragma GCC pop_options

#endif
