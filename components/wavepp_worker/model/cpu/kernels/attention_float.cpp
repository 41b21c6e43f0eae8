// Attention over paged KV (attention_tasks.h) where the CPU has AVX2 and no products of bfloat16, and of floats on any:
// the numbers in memory are floats or bfloat16, and all is computed in float32.
//
// Keys are packed as [8 keys][dim][8], values as [keys][value dim].

#include "attention_tasks.h"

#if defined(__x86_64__)

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "scratch.h"
#include "subnormals.h"
#include "vectors_float.h"

#pragma GCC push_options
#pragma GCC target("avx2,fma")

namespace {

constexpr int ROWS = ATTENTION_ROWS;  // of a register tile: 6 x 2 sums, 2 keys and 1 query are 15 of 16 registers
constexpr int COLUMNS = 2;            // vectors of a register tile
constexpr int64_t KEYS = 128;         // of a tile: packed, they stay in the second-level cache
constexpr int64_t AHEAD = 16;         // keys and values that are fetched ahead of their use, into the second-level cache
constexpr float NONE = -std::numeric_limits<float>::infinity();

// A request's rows are scattered over the pool, which the CPU cannot foresee.
template <typename T>
inline void prefetch(const T *row, int64_t dim) {
  for (int64_t at = 0; at < dim; at += 64 / sizeof(T))
    _mm_prefetch(reinterpret_cast<const char *>(row + at), _MM_HINT_T1);
}

template <typename T>
using Rows = AttentionRows<T, KEYS + AHEAD>;

template <typename T>
void pack_keys(const Rows<T> &rows, int64_t count, int64_t dim, float *packed) {
  for (int64_t at = 0; at < count; at += WIDE) {
    const T *from[WIDE];
    for (int64_t i = 0; i < WIDE; ++i) {
      from[i] = rows.key(std::min(at + i, count - 1));
      if (at + i + AHEAD < rows.count) prefetch(rows.key(at + i + AHEAD), dim);
    }
    for (int64_t d = 0; d < dim; d += WIDE) {
      __m256 r[WIDE];
      for (int64_t i = 0; i < WIDE; ++i) r[i] = load(from[i] + d);
      transpose(r);
      for (int64_t i = 0; i < WIDE; ++i) _mm256_store_ps(packed + at * dim + (d + i) * WIDE, r[i]);
    }
  }
}

// Values before `lowest` are zeros: nobody sees them, they may be another request's, and no weight makes 0 of a NaN.
template <typename T>
void pack_values(const Rows<T> &rows, int64_t count, int64_t lowest, int64_t dim, float *packed) {
  for (int64_t at = 0; at < count; ++at) {
    float *to = packed + at * dim;
    if (at + AHEAD < rows.count) prefetch(rows.value(at + AHEAD), dim);
    if (at < lowest) {
      std::fill_n(to, dim, 0.0f);
      continue;
    }
    const T *from = rows.value(at);
    for (int64_t c = 0; c < dim; c += WIDE) _mm256_store_ps(to + c, load(from + c));
  }
}

// scores[M, 8 N] = query[M] . keys
template <int M, int N>
inline void dot_keys(const float *query, const float *keys, int64_t dim, float *scores) {
  __m256 sum[M][N];
  UNROLL for (int m = 0; m < M; ++m)
    UNROLL for (int n = 0; n < N; ++n) sum[m][n] = _mm256_setzero_ps();
  for (int64_t d = 0; d < dim; ++d) {
    __m256 key[N];
    UNROLL for (int n = 0; n < N; ++n) key[n] = _mm256_load_ps(keys + (n * dim + d) * WIDE);
    UNROLL for (int m = 0; m < M; ++m) {
      const __m256 q = _mm256_broadcast_ss(query + m * dim + d);
      UNROLL for (int n = 0; n < N; ++n) sum[m][n] = _mm256_fmadd_ps(q, key[n], sum[m][n]);
    }
  }
  UNROLL for (int m = 0; m < M; ++m)
    UNROLL for (int n = 0; n < N; ++n) _mm256_store_ps(scores + m * KEYS + n * WIDE, sum[m][n]);
}

// out[M, 8 N] = out * keep + weights[M, keys] . values
template <int M, int N>
inline void add_values(const float *weights, const float *values, int64_t count, int64_t dim, const float *keep,
                       float *out) {
  __m256 sum[M][N];
  UNROLL for (int m = 0; m < M; ++m)
    UNROLL for (int n = 0; n < N; ++n)
      sum[m][n] = _mm256_mul_ps(_mm256_broadcast_ss(keep + m), _mm256_load_ps(out + m * dim + n * WIDE));
  for (int64_t k = 0; k < count; ++k) {
    __m256 value[N];
    UNROLL for (int n = 0; n < N; ++n) value[n] = _mm256_load_ps(values + k * dim + n * WIDE);
    UNROLL for (int m = 0; m < M; ++m) {
      const __m256 w = _mm256_broadcast_ss(weights + m * KEYS + k);
      UNROLL for (int n = 0; n < N; ++n) sum[m][n] = _mm256_fmadd_ps(w, value[n], sum[m][n]);
    }
  }
  UNROLL for (int m = 0; m < M; ++m)
    UNROLL for (int n = 0; n < N; ++n) _mm256_store_ps(out + m * dim + n * WIDE, sum[m][n]);
}

template <int M>
void all_scores(const float *query, const float *keys, int64_t dim, int64_t vectors, float *scores) {
  int64_t n = 0;
  for (; n + COLUMNS <= vectors; n += COLUMNS)
    dot_keys<M, COLUMNS>(query, keys + n * dim * WIDE, dim, scores + n * WIDE);
  if (n < vectors) dot_keys<M, 1>(query, keys + n * dim * WIDE, dim, scores + n * WIDE);
}

template <int M>
void all_values(const float *weights, const float *values, int64_t count, int64_t dim, const float *keep, float *out) {
  int64_t c = 0;
  for (; c + COLUMNS * WIDE <= dim; c += COLUMNS * WIDE)
    add_values<M, COLUMNS>(weights, values + c, count, dim, keep, out + c);
  if (c < dim) add_values<M, 1>(weights, values + c, count, dim, keep, out + c);
}

// Turns one row's scores into weights; maximum and sum go on. Returns what the output so far is kept by.
inline float weigh(float *scores, int64_t vectors, int64_t low, int64_t high, float scale, float &maximum, float &sum) {
  // Keys [low, high) of the tile are seen.
  __m256 most = _mm256_set1_ps(NONE);
  if (low <= 0 && high >= vectors * WIDE) {
    for (int64_t n = 0; n < vectors; ++n) most = _mm256_max_ps(most, _mm256_load_ps(scores + n * WIDE));
  } else {
    const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    const __m256i before = _mm256_set1_epi32(static_cast<int>(std::max<int64_t>(low, 0) - 1));
    const __m256i end = _mm256_set1_epi32(static_cast<int>(std::max<int64_t>(std::min(high, KEYS), 0)));
    for (int64_t n = 0; n < vectors; ++n) {
      const __m256i key = _mm256_add_epi32(lane, _mm256_set1_epi32(static_cast<int>(n * WIDE)));
      const __m256i seen = _mm256_and_si256(_mm256_cmpgt_epi32(key, before), _mm256_cmpgt_epi32(end, key));
      const __m256 score =
          _mm256_blendv_ps(_mm256_set1_ps(NONE), _mm256_load_ps(scores + n * WIDE), _mm256_castsi256_ps(seen));
      _mm256_store_ps(scores + n * WIDE, score);
      most = _mm256_max_ps(most, score);
    }
  }
  const float now = std::max(maximum, largest(most) * scale);
  if (now == NONE) {
    std::fill_n(scores, vectors * WIDE, 0.0f);
    return 1.0f;
  }
  const float keep = std::exp2(maximum - now);
  const __m256 factor = _mm256_set1_ps(scale), less = _mm256_set1_ps(now);
  __m256 added = _mm256_setzero_ps();
  for (int64_t n = 0; n < vectors; ++n) {
    const __m256 weight = power_of_two(_mm256_fmsub_ps(_mm256_load_ps(scores + n * WIDE), factor, less));
    added = _mm256_add_ps(added, weight);
    _mm256_store_ps(scores + n * WIDE, weight);
  }
  maximum = now;
  sum = sum * keep + total(added);
  return keep;
}

struct Buffers {
  std::vector<float> query, keys, values, out, scores, maxima, sums;
};

template <typename T, int M>
void rows_over_tile(const AttentionLayer<T> &layer, const AttentionTask &task, int64_t row, int64_t first_key,
                    int64_t count, const float *query, const float *keys, const float *values, float *scores,
                    float *maxima, float *sums, float *out) {
  const int64_t each = layer.heads / layer.groups;
  const int64_t lowest = task.start + task.first + row / each;
  const int64_t highest = task.start + task.first + (row + M - 1) / each;
  count = std::min(count, highest + 1 - first_key);
  if (count <= 0 || (layer.window && first_key + count <= lowest - layer.window + 1)) return;
  const int64_t vectors = (count + WIDE - 1) / WIDE;
  all_scores<M>(query + row * layer.dim, keys, layer.dim, vectors, scores);
  float keep[M];
  UNROLL for (int m = 0; m < M; ++m) {
    const int64_t token = task.start + task.first + (row + m) / each;
    const int64_t low = layer.window ? token + 1 - layer.window - first_key : 0;
    keep[m] = weigh(scores + m * KEYS, vectors, low, token + 1 - first_key, layer.scale, maxima[row + m],
                    sums[row + m]);
  }
  all_values<M>(scores, values, count, layer.value_dim, keep, out + row * layer.value_dim);
}

template <typename T>
void run(const AttentionLayer<T> &layer, const AttentionTask &task, Buffers &own) {
  const int64_t each = layer.heads / layer.groups, count = task.tokens * each;
  const int64_t dim = layer.dim, value_dim = layer.value_dim;
  float *query = scratch(own.query, count * dim), *keys = scratch(own.keys, KEYS * dim);
  float *values = scratch(own.values, KEYS * value_dim), *out = scratch(own.out, count * value_dim);
  float *scores = scratch(own.scores, ROWS * KEYS);
  float *maxima = scratch(own.maxima, count), *sums = scratch(own.sums, count);
  std::fill_n(out, count * value_dim, 0.0f);
  std::fill_n(maxima, count, NONE);
  std::fill_n(sums, count, 0.0f);
  for (int64_t row = 0; row < count; ++row) {
    const int64_t token = task.packed + task.first + row / each, head = task.group * each + row % each;
    const T *from = layer.query + token * layer.query_token + head * layer.query_head;
    for (int64_t d = 0; d < dim; d += WIDE) _mm256_store_ps(query + row * dim + d, load(from + d));
  }
  Rows<T> rows(layer, task);
  const int64_t lowest = layer.window ? std::max<int64_t>(0, task.start + task.first + 1 - layer.window) : 0;
  for (int64_t first_key = lowest / KEYS * KEYS; first_key <= task.last(); first_key += KEYS) {
    const int64_t seen = std::min(KEYS, task.last() + 1 - first_key);
    rows.find(first_key, task.last());
    pack_keys(rows, seen, dim, keys);
    pack_values(rows, seen, lowest - first_key, value_dim, values);
    const auto over_tile = [&](auto rows_over, int64_t row) {
      rows_over(layer, task, row, first_key, seen, query, keys, values, scores, maxima, sums, out);
    };
    int64_t row = 0;
    for (; row + ROWS <= count; row += ROWS) over_tile(rows_over_tile<T, ROWS>, row);
    static_assert(ROWS == 6, "there is a case for every rest");
    switch (count - row) {
      case 5: over_tile(rows_over_tile<T, 5>, row); break;
      case 4: over_tile(rows_over_tile<T, 4>, row); break;
      case 3: over_tile(rows_over_tile<T, 3>, row); break;
      case 2: over_tile(rows_over_tile<T, 2>, row); break;
      case 1: over_tile(rows_over_tile<T, 1>, row); break;
    }
  }
  for (int64_t row = 0; row < count; ++row) {
    const int64_t token = task.packed + task.first + row / each, head = task.group * each + row % each;
    const __m256 share = _mm256_set1_ps(1.0f / sums[row]);
    T *to = layer.out + (token * layer.heads + head) * value_dim;
    for (int64_t c = 0; c < value_dim; c += WIDE)
      store(to + c, _mm256_mul_ps(share, _mm256_load_ps(out + row * value_dim + c)));
  }
}

}  // namespace

template <typename T>
void attend_in_float(const AttentionLayer<T> &layer, const AttentionTask &task) {
  static thread_local Buffers own;
  const WithoutSubnormals mode;  // weights of keys that matter least are such numbers, in float32 as well
  run(layer, task, own);
}

template void attend_in_float(const AttentionLayer<uint16_t> &, const AttentionTask &);
template void attend_in_float(const AttentionLayer<float> &, const AttentionTask &);

#pragma GCC pop_options

#endif
