// What the two forms of attention in bfloat16 share: how keys and values are packed, and how scores become weights.
//
// Both multiply pairs: keys are packed as [16 keys][pairs of dims][16], values as [pairs of keys][value dim].

#pragma once

#include "attention_tasks.h"

#include <immintrin.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <vector>

#include "scratch.h"
#include "vectors_bfloat16.h"

#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,fma")

namespace {

constexpr int64_t KEYS = 256;   // of a tile of keys: packed, they stay in the second-level cache
constexpr int64_t AHEAD = 24;   // keys and values that are fetched ahead of their use, into the second-level cache
constexpr float NONE = -std::numeric_limits<float>::infinity();

using Layer = AttentionLayer<uint16_t>;
using Rows = AttentionRows<uint16_t, KEYS + AHEAD>;
using Task = AttentionTask;

// A request's rows are scattered over the pool, which the CPU cannot foresee.
inline void prefetch(const uint16_t *row, int64_t dim) {
  for (int64_t at = 0; at < dim; at += 32) _mm_prefetch(reinterpret_cast<const char *>(row + at), _MM_HINT_T1);
}

// The first `count` keys, and others up to `room`, which nobody may look at; `words` is half of dim or more, zeros
// beyond.
inline void pack_keys(const Rows &rows, int64_t count, int64_t room, int64_t dim, int64_t words, uint32_t *packed) {
  for (int64_t at = 0; at < room; at += LANES) {
    const uint16_t *from[LANES];
    for (int i = 0; i < LANES; ++i) {
      from[i] = rows.key(std::min(at + i, count - 1));
      if (at + i + AHEAD < rows.count) prefetch(rows.key(at + i + AHEAD), dim);
    }
    for (int64_t word = 0; word < words; word += LANES) {
      const __mmask16 some = some_of(std::max<int64_t>(0, dim / 2 - word));
      __m512i r[LANES];
      for (int i = 0; i < LANES; ++i) r[i] = _mm512_maskz_loadu_epi32(some, from[i] + 2 * word);
      transpose(r);
      const int64_t kept = std::min(LANES, words - word);
      for (int64_t i = 0; i < kept; ++i) _mm512_store_si512(packed + (at * words + (word + i) * LANES), r[i]);
    }
  }
}

// Values before `lowest` are zeros, as are those from `count` to `room`: nobody sees them, they may be another request's,
// and no weight makes 0 of a NaN.
inline void pack_values(const Rows &rows, int64_t count, int64_t room, int64_t lowest, int64_t dim, uint32_t *packed) {
  const auto seen = [&](int64_t at) { return at < count && at >= lowest ? rows.value(at) : nullptr; };
  for (int64_t at = 0; at < room; at += 2) {
    const uint16_t *low = seen(at), *high = seen(at + 1);
    for (int64_t next = at + AHEAD; next < std::min(at + AHEAD + 2, rows.count); ++next)
      prefetch(rows.value(next), dim);
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

// 2^x for x <= 0, relative error below 1.1e-4, a twentieth of what bfloat16 rounds away; 0 from -127 on. What is no
// number stays none.
inline __m512 weight_of(__m512 x) {
  // Added to a number of few digits, it leaves the nearest whole number in the lowest bits.
  const __m512 whole_bits = _mm512_set1_ps(12582912.0f);
  x = _mm512_max_ps(_mm512_set1_ps(-127.0f), x);
  const __m512 shifted = _mm512_add_ps(x, whole_bits);
  const __m512 rest = _mm512_sub_ps(x, _mm512_sub_ps(shifted, whole_bits));
  __m512 sum = _mm512_fmadd_ps(_mm512_set1_ps(5.500893e-2f), rest, _mm512_set1_ps(2.4221097e-1f));
  sum = _mm512_fmadd_ps(sum, rest, _mm512_set1_ps(6.9328293e-1f));
  sum = _mm512_fmadd_ps(sum, rest, _mm512_set1_ps(1.0f));
  const __m512i exponent = _mm512_slli_epi32(_mm512_castps_si512(shifted), 23);
  return _mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(sum), exponent));
}

struct Buffers {
  std::vector<uint32_t> query, keys, values, weights;
  std::vector<float> out, scores, maxima, sums;
};

// The shape of the tiles of keys at which a task's rows look, one after the other.
struct Shape {
  int64_t rows;   // of scores and weights that are at hand at a time
  int64_t words;  // of a query and a key, in pairs of dims
  int64_t keys;   // packed keys are a multiple of this
};

// What a task's rows look at: keys and values from `first_key` on, of which `count` are seen by any of them.
struct KeyTile {
  int64_t first_key, count;
};

// The same, packed, and the queries of all rows.
struct PackedTile : KeyTile {
  const uint32_t *query, *keys, *values;
};

// What goes on from tile to tile of a task's rows, and the scores and weights of those at hand.
struct RowState {
  float *out, *maxima, *sums, *scores;
  uint32_t *weights;
};

// A row of a task is of a token and of a query head of the group.
struct TokenHead {
  int64_t token, head;
};

inline TokenHead of_row(const Layer &layer, const Task &task, int64_t group, int64_t row) {
  const int64_t each = layer.heads / layer.groups;
  return {task.packed + task.first + row / each, group * each + row % each};
}

inline const uint16_t *query_of(const Layer &layer, const TokenHead &row) {
  return layer.query + row.token * layer.query_token + row.head * layer.query_head;
}

inline void store_row(const Layer &layer, const TokenHead &row, const float *out, float sum) {
  const __m512 share = _mm512_set1_ps(1.0f / sum);
  uint16_t *to = layer.out + (row.token * layer.heads + row.head) * layer.value_dim;
  for (int64_t c = 0; c < layer.value_dim; c += LANES)
    store(ALL, to + c, _mm512_mul_ps(share, _mm512_load_ps(out + c)));
}

// Puts columns where they belong: of each 32, unpack instructions make one vector of 0 to 3, 8 to 11, 16 to 19 and 24 to
// 27, and one of the others.
inline void order_columns(float *row, int64_t dim) {
  const __m512i low = _mm512_setr_epi32(0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23);
  const __m512i high = _mm512_add_epi32(low, _mm512_set1_epi32(8));
  for (int64_t c = 0; c < dim; c += 32) {
    const __m512 a = _mm512_load_ps(row + c), b = _mm512_load_ps(row + c + LANES);
    _mm512_store_ps(row + c, _mm512_permutex2var_ps(a, low, b));
    _mm512_store_ps(row + c + LANES, _mm512_permutex2var_ps(a, high, b));
  }
}

inline void scale_row(float *row, int64_t dim, float by) {
  const __m512 factor = _mm512_set1_ps(by);
  for (int64_t c = 0; c < dim; c += LANES)
    _mm512_store_ps(row + c, _mm512_mul_ps(factor, _mm512_load_ps(row + c)));
}

// The first key that any row of a task sees.
inline int64_t lowest_key(const Layer &layer, const Task &task) {
  return layer.window ? std::max<int64_t>(0, task.start + task.first + 1 - layer.window) : 0;
}

// Goes through all tiles of keys of a task, and calls `over_tile(tile, state, rows)` for each.
template <typename OverTile>
inline void attend_by_key_tiles(const Layer &layer, const Task &task, const Shape &shape, Buffers &own,
                                const OverTile &over_tile) {
  const int64_t count = task.tokens * (layer.heads / layer.groups);
  const int64_t dim = layer.dim, words = shape.words, value_dim = layer.value_dim;
  const int64_t room = (count + shape.rows - 1) / shape.rows * shape.rows;
  const auto rounded_up = [&](int64_t keys) { return (keys + shape.keys - 1) / shape.keys * shape.keys; };
  uint32_t *query = scratch(own.query, room * words);
  uint32_t *keys = scratch(own.keys, KEYS * words), *values = scratch(own.values, KEYS / 2 * value_dim);
  const RowState state{scratch(own.out, room * value_dim), scratch(own.maxima, room), scratch(own.sums, room),
                       scratch(own.scores, shape.rows * KEYS), scratch(own.weights, shape.rows * KEYS / 2)};
  std::fill_n(state.out, count * value_dim, 0.0f);
  std::fill_n(state.maxima, count, NONE);
  std::fill_n(state.sums, count, 0.0f);
  for (int64_t row = 0; row < count; ++row) {
    std::memcpy(query + row * words, query_of(layer, of_row(layer, task, task.group, row)), dim * sizeof(uint16_t));
    std::fill(query + row * words + dim / 2, query + (row + 1) * words, 0u);
  }
  Rows rows(layer, task);
  const int64_t lowest = lowest_key(layer, task);
  for (int64_t first_key = lowest / KEYS * KEYS; first_key <= task.last(); first_key += KEYS) {
    const int64_t seen = std::min(KEYS, task.last() + 1 - first_key);
    rows.find(first_key, task.last());
    pack_keys(rows, seen, rounded_up(seen), dim, words, keys);
    pack_values(rows, seen, rounded_up(seen), lowest - first_key, value_dim, values);
    over_tile(PackedTile{{first_key, seen}, query, keys, values}, state, count);
  }
  for (int64_t row = 0; row < count; ++row)
    store_row(layer, of_row(layer, task, task.group, row), state.out + row * value_dim, state.sums[row]);
}

// How many keys of a tile any of `count` rows from `row` on sees; 0: none.
inline int64_t seen_keys(const Layer &layer, const Task &task, const KeyTile &tile, int64_t row, int64_t count) {
  const int64_t each = layer.heads / layer.groups, first = task.start + task.first;
  const int64_t lowest = first + row / each, highest = first + (row + count - 1) / each;
  const int64_t seen = std::min(tile.count, highest + 1 - tile.first_key);
  const bool past = layer.window && tile.first_key + seen <= lowest - layer.window + 1;
  return seen <= 0 || past ? 0 : seen;
}

// Which keys of a tile, from 0 on, a row sees: [low, high).
struct SeenKeys {
  int64_t low, high;
};

inline SeenKeys keys_of_row(const Layer &layer, const Task &task, const KeyTile &tile, int64_t row) {
  const int64_t token = task.start + task.first + row / (layer.heads / layer.groups);
  return {layer.window ? token + 1 - layer.window - tile.first_key : 0, token + 1 - tile.first_key};
}

// The most of a row's `scores` of `vectors` vectors that are seen; the others become NONE.
inline __m512 most_of(float *scores, int64_t vectors, const SeenKeys &seen) {
  const __m512i lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  __m512 most = _mm512_set1_ps(NONE);
  if (seen.low <= 0 && seen.high >= vectors * LANES) {
    for (int64_t n = 0; n < vectors; ++n) most = _mm512_max_ps(most, _mm512_load_ps(scores + n * LANES));
    return most;
  }
  const __m512i from = _mm512_set1_epi32(static_cast<int>(std::max<int64_t>(seen.low, 0)));
  const __m512i to = _mm512_set1_epi32(static_cast<int>(std::max<int64_t>(std::min(seen.high, KEYS), 0)));
  for (int64_t n = 0; n < vectors; ++n) {
    const __m512i key = _mm512_add_epi32(lane, _mm512_set1_epi32(static_cast<int>(n * LANES)));
    const __mmask16 some = _mm512_cmple_epi32_mask(from, key) & _mm512_cmplt_epi32_mask(key, to);
    const __m512 score = _mm512_mask_mov_ps(_mm512_set1_ps(NONE), some, _mm512_load_ps(scores + n * LANES));
    _mm512_store_ps(scores + n * LANES, score);
    most = _mm512_max_ps(most, score);
  }
  return most;
}

inline void store_weights(__m512 weights, uint32_t *pairs, int64_t vector) {
  auto *to = reinterpret_cast<__m256i *>(pairs + vector * LANES / 2);
  _mm256_store_si256(to, reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(weights)));
}

inline void store_weights(__m512 weights, float *numbers, int64_t vector) {
  _mm512_store_ps(numbers + vector * LANES, weights);
}

// Turns a row's scores into weights, 2^(scale * score - less): pairs of bfloat16, or floats, which may be where the scores
// are. Returns their sums.
template <typename Weight>
inline __m512 weigh(const float *scores, int64_t vectors, float scale, float less, Weight *weights) {
  const __m512 factor = _mm512_set1_ps(scale), off = _mm512_set1_ps(less);
  __m512 added = _mm512_setzero_ps();
  for (int64_t n = 0; n < vectors; ++n) {
    const __m512 weight = weight_of(_mm512_fmsub_ps(_mm512_load_ps(scores + n * LANES), factor, off));
    added = _mm512_add_ps(added, weight);
    store_weights(weight, weights, n);
  }
  return added;
}

}  // namespace

#pragma GCC pop_options
