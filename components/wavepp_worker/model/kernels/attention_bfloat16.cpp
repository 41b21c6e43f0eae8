// Attention over paged KV (attention_tasks.h) where the CPU has AVX512-BF16: bfloat16 in and out, float32 between.

#if defined(__x86_64__)

#include "attention_bfloat16.h"

#include <cmath>

#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,fma")

namespace {

constexpr int ROWS = ATTENTION_ROWS;  // of a register tile: 6 x 4 sums, 4 keys and 1 query are 29 of 32 registers
constexpr int COLUMNS = 4;            // vectors of a register tile

inline __m512bh pairs(__m512i words) { return reinterpret_cast<__m512bh>(words); }

// scores[M, 16 N] = query[M] . keys
template <int M, int N>
inline void dot_keys(const uint32_t *query, const uint32_t *keys, int64_t words, float *scores) {
  __m512 sum[M][N];
  for (int m = 0; m < M; ++m)
    for (int n = 0; n < N; ++n) sum[m][n] = _mm512_setzero_ps();
  for (int64_t w = 0; w < words; ++w) {
    __m512bh key[N];
    for (int n = 0; n < N; ++n) key[n] = pairs(_mm512_load_si512(keys + (n * words + w) * LANES));
    for (int m = 0; m < M; ++m) {
      const __m512bh q = pairs(_mm512_set1_epi32(static_cast<int>(query[m * words + w])));
      for (int n = 0; n < N; ++n) sum[m][n] = _mm512_dpbf16_ps(sum[m][n], q, key[n]);
    }
  }
  for (int m = 0; m < M; ++m)
    for (int n = 0; n < N; ++n) _mm512_store_ps(scores + m * KEYS + n * LANES, sum[m][n]);
}

// out[M, 16 N] = out * keep + weights[M, keys] . values
template <int M, int N>
inline void add_values(const uint32_t *weights, const uint32_t *values, int64_t count, int64_t dim,
                       const float *keep, float *out) {
  __m512 sum[M][N];
  for (int m = 0; m < M; ++m)
    for (int n = 0; n < N; ++n)
      sum[m][n] = _mm512_mul_ps(_mm512_set1_ps(keep[m]), _mm512_load_ps(out + m * dim + n * LANES));
  for (int64_t p = 0; p < count; ++p) {
    __m512bh value[N];
    for (int n = 0; n < N; ++n) value[n] = pairs(_mm512_load_si512(values + p * dim + n * LANES));
    for (int m = 0; m < M; ++m) {
      const __m512bh w = pairs(_mm512_set1_epi32(static_cast<int>(weights[m * (KEYS / 2) + p])));
      for (int n = 0; n < N; ++n) sum[m][n] = _mm512_dpbf16_ps(sum[m][n], w, value[n]);
    }
  }
  for (int m = 0; m < M; ++m)
    for (int n = 0; n < N; ++n) _mm512_store_ps(out + m * dim + n * LANES, sum[m][n]);
}

template <int M>
void all_scores(const uint32_t *query, const uint32_t *keys, int64_t words, int64_t vectors, float *scores) {
  int64_t n = 0;
  for (; n + COLUMNS <= vectors; n += COLUMNS)
    dot_keys<M, COLUMNS>(query, keys + n * words * LANES, words, scores + n * LANES);
  for (; n < vectors; ++n) dot_keys<M, 1>(query, keys + n * words * LANES, words, scores + n * LANES);
}

template <int M>
void all_values(const uint32_t *weights, const uint32_t *values, int64_t count, int64_t dim, const float *keep,
                float *out) {
  int64_t c = 0;
  for (; c + COLUMNS * LANES <= dim; c += COLUMNS * LANES)
    add_values<M, COLUMNS>(weights, values + c, count, dim, keep, out + c);
  for (; c < dim; c += LANES) add_values<M, 1>(weights, values + c, count, dim, keep, out + c);
}

// A row's scores to weights; its maximum and its sum go on. Returns what its output so far is kept by.
inline float weigh_row(float scale, const SeenKeys &seen, int64_t vectors, float *scores, uint32_t *weights,
                       float &maximum, float &sum) {
  const float now = std::max(maximum, _mm512_reduce_max_ps(most_of(scores, vectors, seen)) * scale);
  const bool none = now == NONE;
  const float keep = none ? 1.0f : std::exp2(maximum - now);
  sum = sum * keep + _mm512_reduce_add_ps(weigh(scores, vectors, scale, none ? 0.0f : now, weights));
  maximum = now;
  return keep;
}

template <int M>
void rows_over_tile(const Layer &layer, const Task &task, const KeyTile &tile, const RowState &state, int64_t row) {
  const int64_t seen = seen_keys(layer, task, tile, row, M);
  if (!seen) return;
  const int64_t vectors = (seen + LANES - 1) / LANES, words = layer.dim / 2;
  all_scores<M>(state.query + row * words, tile.keys, words, vectors, state.scores);
  float keep[M];
  for (int m = 0; m < M; ++m)
    keep[m] = weigh_row(layer.scale, keys_of_row(layer, task, tile, row + m), vectors, state.scores + m * KEYS,
                        state.weights + m * (KEYS / 2), state.maxima[row + m], state.sums[row + m]);
  all_values<M>(state.weights, tile.values, (seen + 1) / 2, layer.value_dim, keep, state.out + row * layer.value_dim);
}

}  // namespace

void attend_bfloat16(const Layer &layer, const Task &task) {
  static thread_local Buffers own;
  const auto over_tile = [&](const KeyTile &tile, const RowState &state, int64_t count) {
    int64_t row = 0;
    for (; row + ROWS <= count; row += ROWS) rows_over_tile<ROWS>(layer, task, tile, state, row);
    static_assert(ROWS == 6, "there is a case for every rest");
    switch (count - row) {
      case 5: rows_over_tile<5>(layer, task, tile, state, row); break;
      case 4: rows_over_tile<4>(layer, task, tile, state, row); break;
      case 3: rows_over_tile<3>(layer, task, tile, state, row); break;
      case 2: rows_over_tile<2>(layer, task, tile, state, row); break;
      case 1: rows_over_tile<1>(layer, task, tile, state, row); break;
    }
  };
  attend_by_key_tiles(layer, task, {ROWS, layer.dim / 2, LANES}, own, over_tile);
}

#pragma GCC pop_options

#endif
