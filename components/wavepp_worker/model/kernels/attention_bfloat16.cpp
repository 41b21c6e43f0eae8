// Attention over paged KV (attention_tasks.h) where the CPU has AVX512-BF16: bfloat16 in and out, float32 between.
//
// Its dot product takes pairs: keys are packed as [16 keys][dim / 2 pairs][16], values as [keys / 2][value dim] pairs of
// the same column of two keys.

#include "attention_tasks.h"

#if defined(__x86_64__)

#include <immintrin.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "scratch.h"
#include "vectors_bfloat16.h"

#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,fma")

namespace {

constexpr int ROWS = ATTENTION_ROWS;  // of a register tile: 6 x 4 sums, 4 keys and 1 query are 29 of 32 registers
constexpr int COLUMNS = 4;  // vectors of a register tile
constexpr int64_t KEYS = 256;      // of a tile: packed, they stay in the second-level cache
constexpr int64_t AHEAD = 24;        // keys and values that are fetched ahead of their use, into the second-level cache
constexpr float NONE = -std::numeric_limits<float>::infinity();

using Layer = AttentionLayer<uint16_t>;
using Rows = AttentionRows<uint16_t>;
using Task = AttentionTask;

// A request's rows are scattered over the pool, which the CPU cannot foresee.
inline void prefetch(const uint16_t *row, int64_t dim) {
  for (int64_t at = 0; at < dim; at += 32) _mm_prefetch(reinterpret_cast<const char *>(row + at), _MM_HINT_T1);
}

void pack_keys(const Rows &rows, int64_t first, int64_t count, int64_t dim, uint32_t *packed) {
  const int64_t words = dim / 2;
  for (int64_t at = 0; at < count; at += LANES) {
    const uint16_t *from[LANES];
    for (int i = 0; i < LANES; ++i) {
      from[i] = rows.key(first + std::min(at + i, count - 1));
      if (at + i + AHEAD < count) prefetch(rows.key(first + at + i + AHEAD), dim);
    }
    for (int64_t word = 0; word < words; word += LANES) {
      const int64_t rest = std::min<int64_t>(LANES, words - word);
      const __mmask16 some = static_cast<__mmask16>((1u << rest) - 1);
      __m512i r[LANES];
      for (int i = 0; i < LANES; ++i) r[i] = _mm512_maskz_loadu_epi32(some, from[i] + 2 * word);
      transpose(r);
      for (int64_t i = 0; i < rest; ++i) _mm512_store_si512(packed + (at * words + (word + i) * LANES), r[i]);
    }
  }
}

// Values before `lowest` are zeros: nobody sees them, they may be another request's, and no weight makes 0 of a NaN.
void pack_values(const Rows &rows, int64_t first, int64_t count, int64_t lowest, int64_t dim, uint32_t *packed) {
  const auto seen = [&](int64_t at) { return at < count && first + at >= lowest ? rows.value(first + at) : nullptr; };
  for (int64_t at = 0; at < count; at += 2) {
    const uint16_t *low = seen(at), *high = seen(at + 1);
    for (int64_t next = at + AHEAD; next < std::min(at + AHEAD + 2, count); ++next)
      prefetch(rows.value(first + next), dim);
    for (int64_t c = 0; c < dim; c += LANES) {
      const __m256i a =
          low ? _mm256_loadu_si256(reinterpret_cast<const __m256i *>(low + c)) : _mm256_setzero_si256();
      const __m256i b =
          high ? _mm256_loadu_si256(reinterpret_cast<const __m256i *>(high + c)) : _mm256_setzero_si256();
      const __m512i pair =
          _mm512_or_si512(_mm512_cvtepu16_epi32(a), _mm512_slli_epi32(_mm512_cvtepu16_epi32(b), 16));
      _mm512_store_si512(packed + (at / 2) * dim + c, pair);
    }
  }
}

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

// 2^x for x <= 0, relative error below 3e-6.
inline __m512 exp2(__m512 x) {
  x = _mm512_max_ps(x, _mm512_set1_ps(-200.0f));
  const __m512 whole = _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  const __m512 rest = _mm512_sub_ps(x, whole);
  return power_of_two(whole, rest);
}

// Turns one row's scores into bfloat16 weights; maximum and sum go on. Returns what the output so far is kept by.
inline float weigh(float *scores, int64_t vectors, int64_t low, int64_t high, float scale, uint32_t *weights,
                   float &maximum, float &sum) {
  // Keys [low, high) of the tile are seen.
  const __m512i lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  const bool all = low <= 0 && high >= vectors * LANES;
  __m512 most = _mm512_set1_ps(NONE);
  if (all) {
    for (int64_t n = 0; n < vectors; ++n) most = _mm512_max_ps(most, _mm512_load_ps(scores + n * LANES));
  } else {
    const __m512i from = _mm512_set1_epi32(static_cast<int>(std::max<int64_t>(low, 0)));
    const __m512i to = _mm512_set1_epi32(static_cast<int>(std::max<int64_t>(std::min(high, KEYS), 0)));
    for (int64_t n = 0; n < vectors; ++n) {
      const __m512i key = _mm512_add_epi32(lane, _mm512_set1_epi32(static_cast<int>(n * LANES)));
      const __mmask16 seen = _mm512_cmple_epi32_mask(from, key) & _mm512_cmplt_epi32_mask(key, to);
      const __m512 score =
          _mm512_mask_mov_ps(_mm512_set1_ps(NONE), seen, _mm512_load_ps(scores + n * LANES));
      _mm512_store_ps(scores + n * LANES, score);
      most = _mm512_max_ps(most, score);
    }
  }
  const float now = std::max(maximum, _mm512_reduce_max_ps(most) * scale);
  auto *half = reinterpret_cast<uint16_t *>(weights);
  if (now == NONE) {
    std::memset(half, 0, vectors * LANES * sizeof(uint16_t));
    return 1.0f;
  }
  const float keep = std::exp2(maximum - now);
  const __m512 factor = _mm512_set1_ps(scale), less = _mm512_set1_ps(now);
  __m512 added = _mm512_setzero_ps();
  for (int64_t n = 0; n < vectors; ++n) {
    const __m512 weight = exp2(_mm512_fmsub_ps(_mm512_load_ps(scores + n * LANES), factor, less));
    added = _mm512_add_ps(added, weight);
    _mm256_store_si256(reinterpret_cast<__m256i *>(half + n * LANES),
                       reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(weight)));
  }
  maximum = now;
  sum = sum * keep + _mm512_reduce_add_ps(added);
  return keep;
}

struct Buffers {
  std::vector<uint32_t> query, keys, values, weights;
  std::vector<float> out, scores, maxima, sums;
};

template <int M>
void rows_over_tile(const Layer &layer, const Task &task, int64_t row, int64_t first_key, int64_t count,
                    const uint32_t *query, const uint32_t *keys, const uint32_t *values, float *scores,
                    uint32_t *weights, float *maxima, float *sums, float *out) {
  const int64_t each = layer.heads / layer.groups;
  const int64_t lowest = task.start + task.first + row / each;
  const int64_t highest = task.start + task.first + (row + M - 1) / each;
  count = std::min(count, highest + 1 - first_key);
  if (count <= 0 || (layer.window && first_key + count <= lowest - layer.window + 1)) return;
  const int64_t vectors = (count + LANES - 1) / LANES, words = layer.dim / 2;
  all_scores<M>(query + row * words, keys, words, vectors, scores);
  float keep[M];
  for (int m = 0; m < M; ++m) {
    const int64_t token = task.start + task.first + (row + m) / each;
    const int64_t low = layer.window ? token + 1 - layer.window - first_key : 0;
    keep[m] = weigh(scores + m * KEYS, vectors, low, token + 1 - first_key, layer.scale,
                    weights + m * (KEYS / 2), maxima[row + m], sums[row + m]);
  }
  all_values<M>(weights, values, (count + 1) / 2, layer.value_dim, keep, out + row * layer.value_dim);
}

void run(const Layer &layer, const Task &task, Buffers &own) {
  const int64_t each = layer.heads / layer.groups, count = task.tokens * each;
  const int64_t dim = layer.dim, words = dim / 2, value_dim = layer.value_dim;
  uint32_t *query = scratch(own.query, count * words);
  uint32_t *keys = scratch(own.keys, KEYS * words);
  uint32_t *values = scratch(own.values, KEYS / 2 * value_dim);
  uint32_t *weights = scratch(own.weights, ROWS * KEYS / 2);
  float *out = scratch(own.out, count * value_dim), *scores = scratch(own.scores, ROWS * KEYS);
  float *maxima = scratch(own.maxima, count), *sums = scratch(own.sums, count);
  std::fill_n(out, count * value_dim, 0.0f);
  std::fill_n(maxima, count, NONE);
  std::fill_n(sums, count, 0.0f);
  for (int64_t row = 0; row < count; ++row) {
    const int64_t token = task.packed + task.first + row / each, head = task.group * each + row % each;
    std::memcpy(query + row * words, layer.query + token * layer.query_token + head * layer.query_head,
                dim * sizeof(uint16_t));
  }
  const Rows rows{layer, layer.tables + task.table, task.group};
  const int64_t lowest = layer.window ? std::max<int64_t>(0, task.start + task.first + 1 - layer.window) : 0;
  for (int64_t first_key = lowest / KEYS * KEYS; first_key <= task.last(); first_key += KEYS) {
    const int64_t seen = std::min(KEYS, task.last() + 1 - first_key);
    pack_keys(rows, first_key, seen, dim, keys);
    pack_values(rows, first_key, seen, lowest, value_dim, values);
    const auto over_tile = [&](auto rows_over, int64_t row) {
      rows_over(layer, task, row, first_key, seen, query, keys, values, scores, weights, maxima, sums, out);
    };
    int64_t row = 0;
    for (; row + ROWS <= count; row += ROWS) over_tile(rows_over_tile<ROWS>, row);
    static_assert(ROWS == 6, "there is a case for every rest");
    switch (count - row) {
      case 5: over_tile(rows_over_tile<5>, row); break;
      case 4: over_tile(rows_over_tile<4>, row); break;
      case 3: over_tile(rows_over_tile<3>, row); break;
      case 2: over_tile(rows_over_tile<2>, row); break;
      case 1: over_tile(rows_over_tile<1>, row); break;
    }
  }
  for (int64_t row = 0; row < count; ++row) {
    const int64_t token = task.packed + task.first + row / each, head = task.group * each + row % each;
    const __m512 share = _mm512_set1_ps(1.0f / sums[row]);
    uint16_t *to = layer.out + (token * layer.heads + head) * value_dim;
    for (int64_t c = 0; c < value_dim; c += LANES)
      _mm256_storeu_si256(reinterpret_cast<__m256i *>(to + c),
                          reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(
                              _mm512_mul_ps(share, _mm512_load_ps(out + row * value_dim + c)))));
  }
}

}  // namespace

void attend(const Layer &layer, const Task &task) {
  static thread_local Buffers own;
  run(layer, task, own);
}

#pragma GCC pop_options

#endif
