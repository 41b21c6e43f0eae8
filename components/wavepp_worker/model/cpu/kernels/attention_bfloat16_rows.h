// What attention of many rows and of few has in common where the CPU has AVX512-BF16 and no AMX.

#pragma once

#include <cmath>

#include "attention_bfloat16.h"

#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,fma")

namespace {

// How rows of queries or weights are multiplied with keys or values: add() has
// sums [M rows, N vectors] += a pair of each row's numbers, rows `row` apart, times N vectors of pairs.
struct PairByPair {
  using Number = uint32_t;  // a pair of bfloat16
  static constexpr int64_t OF_PAIR = 1;

  static const Number *queries(const uint32_t *rows, int64_t) { return rows; }
  static Number *weights(const RowState &state) { return state.weights; }

  template <int M, int N, typename Vectors>
  static void add(const Number *numbers, int64_t row, const Vectors &vectors, __m512 (&sum)[M][N]) {
    __m512bh vector[N];
    for (int n = 0; n < N; ++n) vector[n] = reinterpret_cast<__m512bh>(vectors(n));
    for (int m = 0; m < M; ++m) {
      const auto number = reinterpret_cast<__m512bh>(_mm512_set1_epi32(static_cast<int>(numbers[m * row])));
      for (int n = 0; n < N; ++n) sum[m][n] = _mm512_dpbf16_ps(sum[m][n], number, vector[n]);
    }
  }
};

// The same with each number as a float, where that is faster.
struct OneByOne {
  using Number = float;
  static constexpr int64_t OF_PAIR = 2;

  static const Number *queries(const uint32_t *rows, int64_t pairs) {
    // Not on the stack, which threads may have little of.
    static thread_local std::vector<float> kept;
    float *wide = scratch(kept, 2 * pairs + LANES);
    const auto *numbers = reinterpret_cast<const uint16_t *>(rows);
    for (int64_t at = 0; at < 2 * pairs; at += LANES)
      _mm512_store_ps(wide + at, load(some_of(2 * pairs - at), numbers + at));
    return wide;
  }
  // Each takes the place of its score.
  static Number *weights(const RowState &state) { return state.scores; }

  template <int M, int N, typename Vectors>
  static void add(const Number *numbers, int64_t row, const Vectors &vectors, __m512 (&sum)[M][N]) {
    for (int i = 0; i < 2; ++i) {
      __m512 vector[N];
      for (int n = 0; n < N; ++n) {
        const __m512i both = vectors(n);
        vector[n] = i ? seconds(both) : firsts(both);
      }
      for (int m = 0; m < M; ++m) {
        const __m512 number = _mm512_set1_ps(numbers[m * row + i]);
        for (int n = 0; n < N; ++n) sum[m][n] = _mm512_fmadd_ps(number, vector[n], sum[m][n]);
      }
    }
  }
};

// A row's scores to weights; its maximum and its sum go on. Returns what its output so far is kept by.
template <typename Weight>
inline float weigh_row(float scale, const SeenKeys &seen, int64_t vectors, float *scores, Weight *weights,
                       float &maximum, float &sum) {
  const float now = std::max(maximum, _mm512_reduce_max_ps(most_of(scores, vectors, seen)) * scale);
  const bool none = now == NONE;
  const float keep = none ? 1.0f : std::exp2(maximum - now);
  sum = sum * keep + _mm512_reduce_add_ps(weigh(scores, vectors, scale, none ? 0.0f : now, weights));
  maximum = now;
  return keep;
}

}  // namespace

#pragma GCC pop_options
