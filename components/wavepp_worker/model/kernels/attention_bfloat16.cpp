// Attention over paged KV (attention_tasks.h) where the CPU has AVX512-BF16: bfloat16 in and out, float32 between.

#if defined(__x86_64__)

#include "attention_bfloat16.h"

#include <cmath>

#include "instructions.h"
#include "subnormals.h"

#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,fma")

namespace {

constexpr int ROWS = ATTENTION_ROWS;  // of a register tile: 6 x 4 sums, 4 keys, 1 query and a mask are 30 of 32 registers
constexpr int COLUMNS = 4;            // vectors of a register tile

// How rows of queries or weights are multiplied with keys or values: add() has
// sums [M rows, N vectors] += a pair of each row's numbers, rows `row` apart, times N vectors of pairs, `stride` apart.
struct PairByPair {
  using Number = uint32_t;  // a pair of bfloat16
  static constexpr int64_t OF_PAIR = 1;

  static const Number *queries(const uint32_t *rows, int64_t) { return rows; }
  static Number *weights(const RowState &state) { return state.weights; }

  template <int M, int N>
  static void add(const Number *numbers, int64_t row, const uint32_t *vectors, int64_t stride, __m512 (&sum)[M][N]) {
    __m512bh vector[N];
    for (int n = 0; n < N; ++n) vector[n] = reinterpret_cast<__m512bh>(_mm512_load_si512(vectors + n * stride));
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

  template <int M, int N>
  static void add(const Number *numbers, int64_t row, const uint32_t *vectors, int64_t stride, __m512 (&sum)[M][N]) {
    for (int i = 0; i < 2; ++i) {
      __m512 vector[N];
      for (int n = 0; n < N; ++n) {
        const __m512i both = _mm512_load_si512(vectors + n * stride);
        vector[n] = i ? seconds(both) : firsts(both);
      }
      for (int m = 0; m < M; ++m) {
        const __m512 number = _mm512_set1_ps(numbers[m * row + i]);
        for (int n = 0; n < N; ++n) sum[m][n] = _mm512_fmadd_ps(number, vector[n], sum[m][n]);
      }
    }
  }
};

// scores[M, 16 N] = query[M] . keys
template <typename Multiply, int M, int N>
inline void dot_keys(const typename Multiply::Number *query, const uint32_t *keys, int64_t words, float *scores) {
  __m512 sum[M][N];
  for (int m = 0; m < M; ++m)
    for (int n = 0; n < N; ++n) sum[m][n] = _mm512_setzero_ps();
  for (int64_t w = 0; w < words; ++w)
    Multiply::add(query + w * Multiply::OF_PAIR, words * Multiply::OF_PAIR, keys + w * LANES, words * LANES, sum);
  for (int m = 0; m < M; ++m)
    for (int n = 0; n < N; ++n) _mm512_store_ps(scores + m * KEYS + n * LANES, sum[m][n]);
}

// out[M, 16 N] = out * keep + weights[M, keys] . values
template <typename Multiply, int M, int N>
inline void add_values(const typename Multiply::Number *weights, const uint32_t *values, int64_t count, int64_t dim,
                       const float *keep, float *out) {
  constexpr int64_t ROW = KEYS / 2 * Multiply::OF_PAIR;
  __m512 sum[M][N];
  for (int m = 0; m < M; ++m)
    for (int n = 0; n < N; ++n)
      sum[m][n] = _mm512_mul_ps(_mm512_set1_ps(keep[m]), _mm512_load_ps(out + m * dim + n * LANES));
  for (int64_t p = 0; p < count; ++p)
    Multiply::add(weights + p * Multiply::OF_PAIR, ROW, values + p * dim, LANES, sum);
  for (int m = 0; m < M; ++m)
    for (int n = 0; n < N; ++n) _mm512_store_ps(out + m * dim + n * LANES, sum[m][n]);
}

template <typename Multiply, int M>
void all_scores(const typename Multiply::Number *query, const uint32_t *keys, int64_t words, int64_t vectors,
                float *scores) {
  int64_t n = 0;
  for (; n + COLUMNS <= vectors; n += COLUMNS)
    dot_keys<Multiply, M, COLUMNS>(query, keys + n * words * LANES, words, scores + n * LANES);
  for (; n < vectors; ++n) dot_keys<Multiply, M, 1>(query, keys + n * words * LANES, words, scores + n * LANES);
}

template <typename Multiply, int M>
void all_values(const typename Multiply::Number *weights, const uint32_t *values, int64_t count, int64_t dim,
                const float *keep, float *out) {
  int64_t c = 0;
  for (; c + COLUMNS * LANES <= dim; c += COLUMNS * LANES)
    add_values<Multiply, M, COLUMNS>(weights, values + c, count, dim, keep, out + c);
  for (; c < dim; c += LANES) add_values<Multiply, M, 1>(weights, values + c, count, dim, keep, out + c);
}

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

template <typename Multiply, int M>
void rows_over_tile(const Layer &layer, const Task &task, const PackedTile &tile, const RowState &state, int64_t row) {
  const int64_t seen = seen_keys(layer, task, tile, row, M);
  if (!seen) return;
  const int64_t vectors = (seen + LANES - 1) / LANES, words = layer.dim / 2;
  const auto *queries = Multiply::queries(tile.query + row * words, M * words);
  all_scores<Multiply, M>(queries, tile.keys, words, vectors, state.scores);
  auto *weights = Multiply::weights(state);
  float keep[M];
  for (int m = 0; m < M; ++m)
    keep[m] = weigh_row(layer.scale, keys_of_row(layer, task, tile, row + m), vectors, state.scores + m * KEYS,
                        weights + m * (KEYS / 2) * Multiply::OF_PAIR, state.maxima[row + m], state.sums[row + m]);
  all_values<Multiply, M>(weights, tile.values, (seen + 1) / 2, layer.value_dim, keep,
                          state.out + row * layer.value_dim);
}

template <typename Multiply>
void attend(const Layer &layer, const Task &task) {
  static thread_local Buffers own;
  const auto over_tile = [&](const PackedTile &tile, const RowState &state, int64_t count) {
    int64_t row = 0;
    for (; row + ROWS <= count; row += ROWS) rows_over_tile<Multiply, ROWS>(layer, task, tile, state, row);
    static_assert(ROWS == 6, "there is a case for every rest");
    switch (count - row) {
      case 5: rows_over_tile<Multiply, 5>(layer, task, tile, state, row); break;
      case 4: rows_over_tile<Multiply, 4>(layer, task, tile, state, row); break;
      case 3: rows_over_tile<Multiply, 3>(layer, task, tile, state, row); break;
      case 2: rows_over_tile<Multiply, 2>(layer, task, tile, state, row); break;
      case 1: rows_over_tile<Multiply, 1>(layer, task, tile, state, row); break;
    }
  };
  attend_by_key_tiles(layer, task, {ROWS, layer.dim / 2, LANES}, own, over_tile);
}

}  // namespace

void attend_bfloat16(const Layer &layer, const Task &task) {
  const WithoutSubnormals mode;
  multiplies_floats_faster() ? attend<OneByOne>(layer, task) : attend<PairByPair>(layer, task);
}

#pragma GCC pop_options

#endif
