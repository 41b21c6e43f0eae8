// The products of gemm.h where the CPU has AVX2, and neither AVX-512 for floats nor products of bfloat16.
//
// 6 tokens and a panel at a time: 12 sums, 2 vectors of weights and a token's number are 15 of 16 registers.

#include "gemm.h"

#if defined(__x86_64__)

#include <array>
#include <utility>

#include "gemm_blocks.h"
#include "wide.h"

#pragma GCC push_options
#pragma GCC target("avx2,fma")

namespace {

constexpr int64_t ROWS = 6, WIDTH = VECTORS * WIDE, IN_TURN = 4;

// sums [M tokens, V vectors] += `count` numbers of x, whose rows are `stride` apart, times the weights [number][V][8].
template <int M, int V>
void add(const float *x, int64_t stride, const float *tile, int64_t count, float *sums) {
  __m256 sum[M][V];
  UNROLL for (int m = 0; m < M; ++m)
    UNROLL for (int v = 0; v < V; ++v) sum[m][v] = load(sums + m * WIDTH + v * WIDE);
  const auto multiply = [&](int64_t at) {
    __m256 weights[V];
    UNROLL for (int v = 0; v < V; ++v) weights[v] = load(tile + (at * V + v) * WIDE);
    UNROLL for (int m = 0; m < M; ++m) {
      const __m256 number = _mm256_broadcast_ss(x + m * stride + at);
      UNROLL for (int v = 0; v < V; ++v) sum[m][v] = _mm256_fmadd_ps(number, weights[v], sum[m][v]);
    }
  };
  int64_t at = 0;
  // The loop itself takes a fifth of the time of one number.
  for (; at + IN_TURN <= count; at += IN_TURN)
    UNROLL for (int i = 0; i < IN_TURN; ++i) multiply(at + i);
  for (; at < count; ++at) multiply(at);
  UNROLL for (int m = 0; m < M; ++m)
    UNROLL for (int v = 0; v < V; ++v) store(sums + m * WIDTH + v * WIDE, sum[m][v]);
}

using Add = void (*)(const float *, int64_t, const float *, int64_t, float *);

template <int V, int... M>
constexpr std::array<Add, sizeof...(M)> by_rows(std::integer_sequence<int, M...>) {
  return {add<M + 1, V>...};
}

constexpr auto OF_ONE = by_rows<1>(std::make_integer_sequence<int, ROWS>());
constexpr auto OF_TWO = by_rows<2>(std::make_integer_sequence<int, ROWS>());

// Turns 8 rows of 8 floats into 8 columns.
inline void transpose(__m256 r[8]) {
  __m256 t[8];
  UNROLL for (int i = 0; i < 4; ++i) {
    t[2 * i] = _mm256_unpacklo_ps(r[2 * i], r[2 * i + 1]);
    t[2 * i + 1] = _mm256_unpackhi_ps(r[2 * i], r[2 * i + 1]);
  }
  UNROLL for (int i = 0; i < 8; i += 4) {
    r[i] = _mm256_shuffle_ps(t[i], t[i + 2], 0x44);
    r[i + 1] = _mm256_shuffle_ps(t[i], t[i + 2], 0xee);
    r[i + 2] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0x44);
    r[i + 3] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0xee);
  }
  UNROLL for (int i = 0; i < 4; ++i) t[i] = _mm256_permute2f128_ps(r[i], r[i + 4], 0x20);
  UNROLL for (int i = 0; i < 4; ++i) t[i + 4] = _mm256_permute2f128_ps(r[i], r[i + 4], 0x31);
  UNROLL for (int i = 0; i < 8; ++i) r[i] = t[i];
}

template <typename T>
struct Floats {
  using Number = T;
  using Factor = float;
  using Word = float;
  // With more tokens at a time, those and their answers are too far apart for the caches.
  static constexpr int64_t SIDE = WIDE, MOST_ROWS = ROWS, STEP = 1, MOST_STEPS = 256, MOST_OF_SLICE = 256;

  static void turn(const T *weight, int64_t in, int64_t count, float *tile, int64_t step) {
    int64_t at = 0;
    for (; at + WIDE <= count; at += WIDE) {
      __m256 rows[WIDE];
      for (int n = 0; n < WIDE; ++n) {
        const T *row = weight + n * in + at;
        // Past the last row a prefetch does no harm.
        _mm_prefetch(reinterpret_cast<const char *>(row + VECTORS * WIDE * in), _MM_HINT_T1);
        rows[n] = load(row);
      }
      transpose(rows);
      for (int i = 0; i < WIDE; ++i) ::store(tile + (at + i) * step, rows[i]);
    }
    for (; at < count; ++at)
      for (int n = 0; n < WIDE; ++n) tile[at * step + n] = widened(weight[n * in + at]);
  }

  static void add_products(int64_t rows, int vectors, const float *x, int64_t stride, const float *tile, int64_t count,
                           float *sums) {
    (vectors == 2 ? OF_TWO : OF_ONE)[rows - 1](x, stride, tile, count, sums);
  }

  static void factors(const T *x, int64_t in, float *to) {
    int64_t at = 0;
    for (; at + WIDE <= in; at += WIDE) ::store(to + at, load(x + at));
    for (; at < in; ++at) to[at] = widened(x[at]);
  }

  static void store(const float *sums, int64_t rows, const T *bias, T *y, int64_t apart) {
    const __m256 more = numbers(bias);
    for (int64_t m = 0; m < rows; ++m) ::store(y + m * apart, _mm256_add_ps(load(sums + m * WIDTH), more));
  }

  static void store_gated(const float *sums, int64_t rows, const T *gate_bias, const T *up_bias, T *y, int64_t apart) {
    const __m256 of_gate = numbers(gate_bias), of_up = numbers(up_bias);
    for (int64_t m = 0; m < rows; ++m) {
      // Rounded where the layers by themselves would be, so that a token's numbers are the same in every wave.
      const __m256 value = rounded<T>(_mm256_add_ps(load(sums + m * WIDTH), of_gate));
      const __m256 times = rounded<T>(_mm256_add_ps(load(sums + m * WIDTH + SIDE), of_up));
      ::store(y + m * apart, _mm256_mul_ps(rounded<T>(silu(value)), times));
    }
  }

 private:
  static __m256 numbers(const T *bias) { return bias ? load(bias) : _mm256_setzero_ps(); }
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
