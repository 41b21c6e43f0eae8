// Attention of few rows of queries, such as those of one token, where the CPU has AVX512-BF16 and no AMX.
//
// To pack keys and values for few rows takes longer than to multiply them. So they are paired in registers on their way
// from the pool. The sums are those of attention_bfloat16.cpp bit by bit: the same products, added in the same order.

#if defined(__x86_64__)

#include "attention_bfloat16_rows.h"

#include "instructions.h"
#include "subnormals.h"

#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,fma")

namespace {

constexpr int64_t MOST = 8;  // rows

// Of more rows, fewer words of keys and fewer columns of values are at hand at a time, as there are 32 registers.
constexpr int quads_for(int rows) { return rows > 6 ? 2 : 4; }
constexpr int columns_for(int rows) { return rows > 6 ? 2 : 4; }

// Four words of each of keys i, 4 + i, 8 + i and 12 + i of 16. To put vectors together of quarters takes none of the few
// ports that move numbers across a vector.
inline __m512i four_keys(const uint16_t *const keys[LANES], int i, int64_t word) {
  const auto quarter = [&](int key) {
    return _mm_loadu_si128(reinterpret_cast<const __m128i *>(keys[key] + 2 * word));
  };
  __m512i four = _mm512_castsi128_si512(quarter(i));
  four = _mm512_mask_broadcast_i32x4(four, 0x00f0, quarter(4 + i));
  four = _mm512_mask_broadcast_i32x4(four, 0x0f00, quarter(8 + i));
  return _mm512_mask_broadcast_i32x4(four, 0xf000, quarter(12 + i));
}

// sum[M] += 4 Q words of each query, from `word` on, times those of each of 16 keys. Keys may lie as far apart as lines that
// push each other out of the first-level cache, so a line is read at once.
template <typename Multiply, int M, int Q>
inline void add_words(const uint16_t *const keys[LANES], int64_t words, int64_t word,
                      const typename Multiply::Number *query, __m512 (&sum)[M][1]) {
  __m512i four[Q][4];
  for (int i = 0; i < 4; ++i)
    for (int q = 0; q < Q; ++q) four[q][i] = four_keys(keys, i, word + 4 * q);
  for (int q = 0; q < Q; ++q) {
    // Transposes each quarter's four keys: by_word[i] has word 4 q + i of all 16 keys, in their order.
    __m512i half[4], by_word[4];
    for (int i = 0; i < 2; ++i) {
      half[2 * i] = _mm512_unpacklo_epi32(four[q][2 * i], four[q][2 * i + 1]);
      half[2 * i + 1] = _mm512_unpackhi_epi32(four[q][2 * i], four[q][2 * i + 1]);
    }
    for (int i = 0; i < 2; ++i) {
      by_word[2 * i] = _mm512_unpacklo_epi64(half[i], half[2 + i]);
      by_word[2 * i + 1] = _mm512_unpackhi_epi64(half[i], half[2 + i]);
    }
    for (int i = 0; i < 4; ++i)
      Multiply::add(query + (word + 4 * q + i) * Multiply::OF_PAIR, words * Multiply::OF_PAIR,
                    [&](int) { return by_word[i]; }, sum);
  }
}

// scores[M, 16] of the keys from `first` on, of which `count` are of the tile.
template <typename Multiply, int M>
void score_keys(const Rows &rows, int64_t first, int64_t count, int64_t words, const typename Multiply::Number *query,
                float *scores) {
  const uint16_t *keys[LANES];
  for (int i = 0; i < LANES; ++i) {
    keys[i] = rows.key(std::min(first + i, count - 1));
    if (first + i + AHEAD < rows.count) prefetch(rows.key(first + i + AHEAD), 2 * words);
  }
  __m512 sum[M][1];
  for (int m = 0; m < M; ++m) sum[m][0] = _mm512_setzero_ps();
  int64_t w = 0;
  constexpr int Q = quads_for(M);
  for (; w + 4 * Q <= words; w += 4 * Q) add_words<Multiply, M, Q>(keys, words, w, query, sum);
  for (; w < words; w += 4) add_words<Multiply, M, 1>(keys, words, w, query, sum);
  for (int m = 0; m < M; ++m) _mm512_store_ps(scores + m * KEYS + first, sum[m][0]);
}

// out[M, 16 N] += weights[M, keys] . values of keys [first, last), from `column` on, in the order that order_columns() mends.
template <typename Multiply, int M, int N>
void add_values(const Rows &rows, int64_t first, int64_t last, int64_t count, int64_t lowest, int64_t dim,
                int64_t column, const typename Multiply::Number *weights, float *out) {
  const auto seen = [&](int64_t at) { return at < count && at >= lowest ? rows.value(at) + column : nullptr; };
  __m512 sum[M][N];
  for (int m = 0; m < M; ++m)
    for (int n = 0; n < N; ++n) sum[m][n] = _mm512_load_ps(out + m * dim + column + n * LANES);
  for (int64_t at = first; at < last; at += 2) {
    const uint16_t *low = seen(at), *high = seen(at + 1);
    for (int64_t next = at + AHEAD; next < std::min(at + AHEAD + 2, rows.count); ++next)
      prefetch(rows.value(next) + column, N * LANES);
    __m512i pairs[N];
    if constexpr (N == 1) {
      const __m256i a = low ? _mm256_loadu_si256(reinterpret_cast<const __m256i *>(low)) : _mm256_setzero_si256();
      const __m256i b = high ? _mm256_loadu_si256(reinterpret_cast<const __m256i *>(high)) : _mm256_setzero_si256();
      pairs[0] = _mm512_or_si512(_mm512_cvtepu16_epi32(a), _mm512_slli_epi32(_mm512_cvtepu16_epi32(b), 16));
    } else {
      for (int n = 0; n < N; n += 2) {
        const __m512i a = low ? _mm512_loadu_si512(low + n * LANES) : _mm512_setzero_si512();
        const __m512i b = high ? _mm512_loadu_si512(high + n * LANES) : _mm512_setzero_si512();
        pairs[n] = _mm512_unpacklo_epi16(a, b);
        pairs[n + 1] = _mm512_unpackhi_epi16(a, b);
      }
    }
    Multiply::add(weights + at / 2 * Multiply::OF_PAIR, KEYS / 2 * Multiply::OF_PAIR, [&](int n) { return pairs[n]; },
                  sum);
  }
  for (int m = 0; m < M; ++m)
    for (int n = 0; n < N; ++n) _mm512_store_ps(out + m * dim + column + n * LANES, sum[m][n]);
}

template <typename Multiply, int M>
void add_all_values(const Rows &rows, int64_t first, int64_t last, int64_t count, int64_t lowest, int64_t dim,
                    const typename Multiply::Number *weights, float *out) {
  int64_t c = 0;
  constexpr int N = columns_for(M);
  for (; c + N * LANES <= dim; c += N * LANES)
    add_values<Multiply, M, N>(rows, first, last, count, lowest, dim, c, weights, out);
  for (; c + 2 * LANES <= dim; c += 2 * LANES)
    add_values<Multiply, M, 2>(rows, first, last, count, lowest, dim, c, weights, out);
  if (c < dim) add_values<Multiply, M, 1>(rows, first, last, count, lowest, dim, c, weights, out);
}

template <typename Multiply, int M>
void attend(const Layer &layer, const Task &task) {
  using Number = typename Multiply::Number;
  static thread_local Buffers own;
  const int64_t words = layer.dim / 2, groups = task.groups, out_size = M * layer.value_dim;
  uint32_t *query = scratch(own.query, groups * M * words);
  const RowState all{scratch(own.out, groups * out_size), scratch(own.maxima, groups * M),
                     scratch(own.sums, groups * M), scratch(own.scores, groups * M * KEYS),
                     scratch(own.weights, groups * M * KEYS / 2)};
  const auto state_of = [&](int64_t n) {
    return RowState{all.out + n * out_size, all.maxima + n * M, all.sums + n * M, all.scores + n * M * KEYS,
                    all.weights + n * M * KEYS / 2};
  };
  std::fill_n(all.out, groups * out_size, 0.0f);
  std::fill_n(all.maxima, groups * M, NONE);
  std::fill_n(all.sums, groups * M, 0.0f);
  for (int64_t row = 0; row < groups * M; ++row)
    std::memcpy(query + row * words, query_of(layer, of_row(layer, task, task.group + row / M, row % M)),
                layer.dim * sizeof(uint16_t));
  const Number *queries = Multiply::queries(query, groups * M * words);
  Rows at(layer, task);
  const int64_t lowest = lowest_key(layer, task);
  for (int64_t first_key = lowest / KEYS * KEYS; first_key <= task.last(); first_key += KEYS) {
    const KeyTile tile{first_key, std::min(KEYS, task.last() + 1 - first_key)};
    const int64_t vectors = (tile.count + LANES - 1) / LANES;
    at.find(first_key, task.last());
    for (int64_t key = 0; key < tile.count; key += LANES)
      for (int64_t n = 0; n < groups; ++n) {
        at.group = task.group + n;
        score_keys<Multiply, M>(at, key, tile.count, words, queries + n * M * words * Multiply::OF_PAIR,
                                state_of(n).scores);
      }
    for (int64_t n = 0; n < groups; ++n) {
      const RowState state = state_of(n);
      for (int m = 0; m < M; ++m) {
        const float keep = weigh_row(layer.scale, keys_of_row(layer, task, tile, m), vectors, state.scores + m * KEYS,
                                     Multiply::weights(state) + m * (KEYS / 2) * Multiply::OF_PAIR, state.maxima[m],
                                     state.sums[m]);
        scale_row(state.out + m * layer.value_dim, layer.value_dim, keep);
      }
    }
    for (int64_t key = 0; key < tile.count; key += LANES)
      for (int64_t n = 0; n < groups; ++n) {
        at.group = task.group + n;
        const RowState state = state_of(n);
        add_all_values<Multiply, M>(at, key, std::min(key + LANES, tile.count), tile.count, lowest - first_key,
                                    layer.value_dim, Multiply::weights(state), state.out);
      }
  }
  for (int64_t row = 0; row < groups * M; ++row) {
    float *out = all.out + row * layer.value_dim;
    order_columns(out, layer.value_dim / 32 * 32);
    store_row(layer, of_row(layer, task, task.group + row / M, row % M), out, all.sums[row]);
  }
}

template <typename Multiply>
void attend_rows(const Layer &layer, const Task &task) {
  static_assert(MOST == 8, "there is a case for every number of rows");
  switch (task.tokens * (layer.heads / layer.groups)) {
    case 1: return attend<Multiply, 1>(layer, task);
    case 2: return attend<Multiply, 2>(layer, task);
    case 3: return attend<Multiply, 3>(layer, task);
    case 4: return attend<Multiply, 4>(layer, task);
    case 5: return attend<Multiply, 5>(layer, task);
    case 6: return attend<Multiply, 6>(layer, task);
    case 7: return attend<Multiply, 7>(layer, task);
    case 8: return attend<Multiply, 8>(layer, task);
  }
}

}  // namespace

// Whether keys and values are multiplied once, by all rows of `tokens` tokens.
bool attends_few_by_bfloat16(const Layer &layer, int64_t tokens) {
  return tokens * (layer.heads / layer.groups) <= MOST;
}

// All key heads of 16 tokens, one after the other: they lie side by side, so that what is read is one piece.
void attend_few_by_bfloat16(const Layer &layer, const Task &task) {
  multiplies_floats_faster() ? attend_rows<OneByOne>(layer, task) : attend_rows<PairByPair>(layer, task);
}

#pragma GCC pop_options

#endif
