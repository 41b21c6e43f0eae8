// The products of gemm.h where the CPU has AVX512-BF16.
//
// 14 tokens and a panel at a time: 28 sums, 2 vectors of weights and a pair of a token's numbers are 31 of 32 registers.

#include "gemm.h"

#if defined(__x86_64__)

#include <immintrin.h>

#include <array>
#include <utility>

#include "gemm_blocks.h"
#include "transpose.h"
#include "vectors_bfloat16.h"

#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,fma")

namespace {

constexpr int64_t ROWS = 14, OUTPUTS = 16, WIDTH = VECTORS * OUTPUTS;

// sums [M tokens, V vectors] += `count` pairs of x, whose rows are `stride` apart, times the weights [pair][V][16].
template <int M, int V>
void add(const uint16_t *x, int64_t stride, const uint32_t *tile, int64_t count, float *sums) {
  __m512 sum[M][V];
#pragma GCC unroll 16
  for (int m = 0; m < M; ++m)
#pragma GCC unroll 2
    for (int v = 0; v < V; ++v) sum[m][v] = _mm512_load_ps(sums + m * WIDTH + v * OUTPUTS);
  for (int64_t pair = 0; pair < count; ++pair) {
    __m512bh weights[V];
#pragma GCC unroll 2
    for (int v = 0; v < V; ++v)
      weights[v] = reinterpret_cast<__m512bh>(_mm512_load_si512(tile + (pair * V + v) * OUTPUTS));
#pragma GCC unroll 16
    for (int m = 0; m < M; ++m) {
      int numbers;
      std::memcpy(&numbers, x + m * stride + 2 * pair, sizeof numbers);
      const auto row = reinterpret_cast<__m512bh>(_mm512_set1_epi32(numbers));
#pragma GCC unroll 2
      for (int v = 0; v < V; ++v) sum[m][v] = _mm512_dpbf16_ps(sum[m][v], weights[v], row);
    }
  }
#pragma GCC unroll 16
  for (int m = 0; m < M; ++m)
#pragma GCC unroll 2
    for (int v = 0; v < V; ++v) _mm512_store_ps(sums + m * WIDTH + v * OUTPUTS, sum[m][v]);
}

using Add = void (*)(const uint16_t *, int64_t, const uint32_t *, int64_t, float *);

template <int V, int... M>
constexpr std::array<Add, sizeof...(M)> by_rows(std::integer_sequence<int, M...>) {
  return {add<M + 1, V>...};
}

constexpr auto OF_ONE = by_rows<1>(std::make_integer_sequence<int, ROWS>());
constexpr auto OF_TWO = by_rows<2>(std::make_integer_sequence<int, ROWS>());

struct PairsOfBfloat16 {
  using Number = uint16_t;
  using Factor = uint16_t;
  using Word = uint32_t;
  static constexpr int64_t SIDE = OUTPUTS, MOST_ROWS = ROWS, STEP = 2, MOST_STEPS = 512, MOST_OF_SLICE = ALL_TOKENS;

  // Each row is read a cache line at a time: rows of a power of two would push each other out of the cache.
  static void turn(const uint16_t *weight, int64_t in, int64_t count, uint32_t *tile, int64_t step) {
    for (int64_t at = 0; at < count; at += SIDE) {
      const int64_t rest = std::min(SIDE, count - at);
      const auto some = static_cast<__mmask16>((1u << rest) - 1);
      __m512i rows[SIDE];
      for (int n = 0; n < SIDE; ++n) {
        const uint16_t *row = weight + n * in + 2 * at;
        // Past the last row a prefetch does no harm.
        _mm_prefetch(reinterpret_cast<const char *>(row + SIDE * in), _MM_HINT_T1);
        rows[n] = _mm512_maskz_loadu_epi32(some, row);
      }
      transpose(rows);
      for (int64_t i = 0; i < rest; ++i) _mm512_store_si512(tile + (at + i) * step, rows[i]);
    }
  }

  static void add_products(int64_t rows, int vectors, const uint16_t *x, int64_t stride, const uint32_t *tile,
                           int64_t count, float *sums) {
    (vectors == 2 ? OF_TWO : OF_ONE)[rows - 1](x, stride, tile, count, sums);
  }

  static void factors(const uint16_t *x, int64_t in, uint16_t *to) { std::memcpy(to, x, in * sizeof(uint16_t)); }

  static void store(const float *sums, int64_t rows, const uint16_t *bias, uint16_t *y, int64_t apart) {
    const __m512 more = numbers(bias);
    for (int64_t m = 0; m < rows; ++m)
      ::store(ALL, y + m * apart, _mm512_add_ps(_mm512_load_ps(sums + m * WIDTH), more));
  }

  static void store_gated(const float *sums, int64_t rows, const uint16_t *gate_bias, const uint16_t *up_bias,
                          uint16_t *y, int64_t apart) {
    const __m512 of_gate = numbers(gate_bias), of_up = numbers(up_bias);
    for (int64_t m = 0; m < rows; ++m) {
      // Rounded where the layers by themselves would be, so that a token's numbers are the same in every wave.
      const __m512 value = rounded(_mm512_add_ps(_mm512_load_ps(sums + m * WIDTH), of_gate));
      const __m512 times = rounded(_mm512_add_ps(_mm512_load_ps(sums + m * WIDTH + SIDE), of_up));
      ::store(ALL, y + m * apart, _mm512_mul_ps(rounded(silu(value)), times));
    }
  }

 private:
  static __m512 numbers(const uint16_t *bias) { return bias ? load(ALL, bias) : _mm512_setzero_ps(); }
};

}  // namespace

void gemm_bfloat16(const Product<uint16_t> &product, const Weights<uint16_t> &weights, int threads) {
  multiply_all<PairsOfBfloat16>(product, Plain<PairsOfBfloat16>{weights}, threads);
}

void gated_gemm_bfloat16(const Product<uint16_t> &product, const Weights<uint16_t> &gate, const Weights<uint16_t> &up,
                         int threads) {
  multiply_all<PairsOfBfloat16>(product, Gated<PairsOfBfloat16>{gate, up}, threads);
}

#pragma GCC pop_options

#endif
