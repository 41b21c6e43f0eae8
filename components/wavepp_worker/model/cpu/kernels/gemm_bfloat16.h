// How the products of gemm.h in bfloat16 turn sums into answers.

#pragma once

#include <immintrin.h>

#include "gemm_blocks.h"
#include "vectors_bfloat16.h"

#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,fma")

namespace {

constexpr int64_t SUMS = PANEL_VECTORS * LANES;  // that a token has in a panel: the stride from token to token

// sums [M tokens, V vectors]
template <int M, int V>
inline void load_sums(const float *sums, __m512 (&sum)[M][V]) {
#pragma GCC unroll 16
  for (int m = 0; m < M; ++m)
#pragma GCC unroll 2
    for (int v = 0; v < V; ++v) sum[m][v] = _mm512_load_ps(sums + m * SUMS + v * LANES);
}

template <int M, int V>
inline void store_sums(const __m512 (&sum)[M][V], float *sums) {
#pragma GCC unroll 16
  for (int m = 0; m < M; ++m)
#pragma GCC unroll 2
    for (int v = 0; v < V; ++v) _mm512_store_ps(sums + m * SUMS + v * LANES, sum[m][v]);
}

// What is fetched at a step of V vectors' weights.
template <int V>
inline void fetch(const Ahead &ahead, int64_t at) {
  const auto step = static_cast<uint64_t>(at);
  const auto next = step % LANES * ahead.row_bytes + step / LANES * ahead.line_bytes;
#pragma GCC unroll 2
  for (int v = 0; v < V; ++v) _mm_prefetch(ahead.vectors[v] + next, _MM_HINT_T1);
}

inline __m512 bias_or_zero(const uint16_t *bias) { return bias ? load(ALL, bias) : _mm512_setzero_ps(); }

// What a Kernel (gemm_blocks.h) says of numbers and answers.
struct Bfloat16Answers {
  using Number = uint16_t;
  static constexpr int64_t OUTPUTS = LANES;

  static void store(const float *sums, int64_t tokens, const uint16_t *bias, uint16_t *y, int64_t stride) {
    const __m512 added = bias_or_zero(bias);
    for (int64_t m = 0; m < tokens; ++m)
      ::store(ALL, y + m * stride, _mm512_add_ps(_mm512_load_ps(sums + m * SUMS), added));
  }

  static void store_gated(const float *sums, int64_t tokens, const uint16_t *gate_bias, const uint16_t *up_bias,
                          uint16_t *y, int64_t stride) {
    const __m512 of_gate = bias_or_zero(gate_bias), of_up = bias_or_zero(up_bias);
    for (int64_t m = 0; m < tokens; ++m) {
      // Rounded where two separate layers would round, so that the pair gives the bits that they give.
      const __m512 value = rounded(_mm512_add_ps(_mm512_load_ps(sums + m * SUMS), of_gate));
      const __m512 times = rounded(_mm512_add_ps(_mm512_load_ps(sums + m * SUMS + LANES), of_up));
      ::store(ALL, y + m * stride, _mm512_mul_ps(rounded(silu(value)), times));
    }
  }
};

// And of weights, as pairs of inputs.
struct Bfloat16Pairs : Bfloat16Answers {
  using Packed = uint32_t;
  static constexpr int64_t STEP = 2;
  static constexpr bool FETCHES_AHEAD = true;

  // Each row is read a cache line at a time: rows of a power of two would push each other out of the cache.
  static void pack_weights(const uint16_t *rows, int64_t in, int64_t steps, uint32_t *to) {
    // Where these are whole rows, the next ones are fetched in the order in which they lie: memory is faster so.
    const bool whole = steps * STEP == in;
    for (int64_t at = 0; at < steps; at += LANES) {
      const int64_t rest = std::min(LANES, steps - at);
      const auto some = static_cast<__mmask16>((1u << rest) - 1);
      __m512i square[LANES];
      for (int n = 0; n < LANES; ++n) {
        const uint16_t *row = rows + n * in + 2 * at;
        // Past the last row a prefetch does no harm.
        const uint16_t *next = LANES * in + (whole ? rows + (at + n) * STEP * LANES : row);
        _mm_prefetch(reinterpret_cast<const char *>(next), _MM_HINT_T1);
        square[n] = _mm512_maskz_loadu_epi32(some, row);
      }
      transpose(square);
      for (int64_t i = 0; i < rest; ++i) _mm512_store_si512(to + (at + i) * LANES, square[i]);
    }
  }
};

}  // namespace

#pragma GCC pop_options
