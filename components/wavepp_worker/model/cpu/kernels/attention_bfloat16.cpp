// Attention over paged KV (attention_tasks.h) where the CPU has AVX512-BF16: bfloat16 in and out, float32 between.

#if defined(__x86_64__)

#include "attention_bfloat16_rows.h"

#include "instructions.h"
#include "subnormals.h"

#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,fma")

namespace {

constexpr int ROWS = ATTENTION_ROWS;  // of a register tile: 6 x 4 sums, 4 keys, 1 query and a mask are 30 of 32 registers
constexpr int COLUMNS = 4;            // vectors of a register tile

// scores[M, 16 N] = query[M] . keys
template <typename Multiply, int M, int N>
inline void dot_keys(const typename Multiply::Number *query, const uint32_t *keys, int64_t words, float *scores) {
  __m512 sum[M][N];
  for (int m = 0; m < M; ++m)
    for (int n = 0; n < N; ++n) sum[m][n] = _mm512_setzero_ps();
  for (int64_t w = 0; w < words; ++w)
    Multiply::add(query + w * Multiply::OF_PAIR, words * Multiply::OF_PAIR,
                  [&](int n) { return _mm512_load_si512(keys + (w + n * words) * LANES); }, sum);
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
    Multiply::add(weights + p * Multiply::OF_PAIR, ROW,
                  [&](int n) { return _mm512_load_si512(values + p * dim + n * LANES); }, sum);
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
  if (attends_few_by_bfloat16(layer, task.tokens)) return attend_few_by_bfloat16(layer, task);
  multiplies_floats_faster() ? attend<OneByOne>(layer, task) : attend<PairByPair>(layer, task);
}

#pragma GCC pop_options

#endif
