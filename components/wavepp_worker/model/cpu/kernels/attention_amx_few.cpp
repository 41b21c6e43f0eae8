// Attention of few rows of queries, such as those of one token, where the CPU multiplies tiles of bfloat16 (amx.h).
//
// To pack keys for few rows takes longer than to multiply them. So the keys are multiplied from where they lie in the
// pool, 16 rows of a block at a time, by the queries, of which each is a column. The sums are those of attention_amx.cpp
// bit by bit: the same products, added in the same order.

#if defined(__x86_64__)

#include "attention_amx.h"

#ifdef WAVEPP_KNOWS_AMX

#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,fma,amx-tile,amx-bf16")

namespace {

constexpr int64_t FEW = ATTENTION_FEW_ROWS;  // which are columns of a tile

// A thread's tiles: 16 keys (0) by `columns` queries (1) are scores (2); `rows` of weights (3) by 16 columns of values (4)
// are parts of what comes out (5 and more).
class Tiles {
 public:
  Tiles(int64_t rows, int64_t columns) {
    TileShapes shapes;
    for (int tile = 0; tile < 8; ++tile) {
      const bool by_query = tile == 1 || tile == 2, by_row = tile == 3 || tile >= 5;
      shapes.row_bytes[tile] = static_cast<uint16_t>(by_query ? columns * sizeof(float) : 64);
      shapes.rows[tile] = static_cast<uint8_t>(by_row ? rows : TILE);
    }
    shapes.load();
  }
  ~Tiles() { _tile_release(); }
  Tiles(const Tiles &) = delete;
};

// Columns that tiles have for so many rows: 1, 4 or 16.
inline int64_t columns_for(int64_t rows) { return rows == 1 ? 1 : rows <= 4 ? 4 : FEW; }

// The queries of a key head's rows, each a column of pairs: [words][columns].
void turn_queries(const Layer &layer, const Task &task, int64_t group, int64_t rows, int64_t columns, uint32_t *turned) {
  const int64_t words = layer.dim / 2;
  std::fill_n(turned, words * columns, 0u);
  for (int64_t row = 0; row < rows; ++row) {
    const uint16_t *query = query_of(layer, of_row(layer, task, group, row));
    for (int64_t w = 0; w < words; ++w) std::memcpy(turned + w * columns + row, query + 2 * w, sizeof(uint32_t));
  }
}

// 16 keys' scores, [16][4], to four rows' scores, KEYS apart.
inline void turn_four(const float *by_key, float *scores) {
  __m512 r[4], half[4];
  for (int i = 0; i < 4; ++i) r[i] = _mm512_load_ps(by_key + i * LANES);
  const __m512i first = _mm512_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28, 1, 5, 9, 13, 17, 21, 25, 29);
  const __m512i second = _mm512_add_epi32(first, _mm512_set1_epi32(2));
  for (int i = 0; i < 2; ++i) {
    half[i] = _mm512_permutex2var_ps(r[2 * i], first, r[2 * i + 1]);
    half[2 + i] = _mm512_permutex2var_ps(r[2 * i], second, r[2 * i + 1]);
  }
  for (int i = 0; i < 2; ++i) {
    _mm512_store_ps(scores + 2 * i * KEYS, _mm512_shuffle_f32x4(half[2 * i], half[2 * i + 1], 0x44));
    _mm512_store_ps(scores + (2 * i + 1) * KEYS, _mm512_shuffle_f32x4(half[2 * i], half[2 * i + 1], 0xee));
  }
}

// The scores of 16 keys, which are rows of one block, from `first` of a tile on.
void score_keys(const Layer &layer, const Rows &rows, int64_t first, const uint32_t *turned, int64_t columns,
                float *scores) {
  const int64_t key_bytes = layer.groups * layer.dim * sizeof(uint16_t), query_bytes = columns * sizeof(float);
  const uint16_t *keys = rows.key(first);
  _tile_zero(2);
  for (int64_t w = 0; w < layer.dim / 2; w += TILE) {
    _tile_loadd(0, keys + 2 * w, key_bytes);
    _tile_loadd(1, turned + w * columns, query_bytes);
    _tile_dpbf16ps(2, 0, 1);
  }
  if (columns == 1) {
    _tile_stored(2, scores + first, sizeof(float));
    return;
  }
  alignas(64) float by_key[TILE * FEW];
  _tile_stored(2, by_key, query_bytes);
  visible_to_tiles(by_key);
  if (columns == 4) {
    turn_four(by_key, scores + first);
  } else {
    __m512i r[TILE];
    for (int i = 0; i < TILE; ++i) r[i] = _mm512_load_si512(by_key + i * FEW);
    transpose(r);
    for (int i = 0; i < TILE; ++i) _mm512_store_si512(scores + i * KEYS + first, r[i]);
  }
}

// 32 values in pairs, as pack_values() has them, but of each 32 columns those of which unpack instructions make one vector:
// 0 to 3, 8 to 11, 16 to 19, 24 to 27, and then the others.
void pair_values(const Rows &rows, int64_t first, int64_t count, int64_t lowest, int64_t dim, uint32_t *packed) {
  const auto seen = [&](int64_t at) { return at < count && at >= lowest ? rows.value(at) : nullptr; };
  for (int64_t at = first; at < first + TILE_NUMBERS; at += 2, packed += dim) {
    const uint16_t *low = seen(at), *high = seen(at + 1);
    for (int64_t c = 0; c < dim; c += 32) {
      const __m512i a = low ? _mm512_loadu_si512(low + c) : _mm512_setzero_si512();
      const __m512i b = high ? _mm512_loadu_si512(high + c) : _mm512_setzero_si512();
      _mm512_store_si512(packed + c, _mm512_unpacklo_epi16(a, b));
      _mm512_store_si512(packed + c + LANES, _mm512_unpackhi_epi16(a, b));
    }
  }
}

// out += weights . 32 values
void add_values(const uint32_t *weights, const uint32_t *values, int64_t dim, float *out) {
  const int64_t row_bytes = dim * sizeof(float);
  _tile_loadd(3, weights, ROW_WEIGHTS);
  for (int64_t c = 0; c < dim; c += 2 * TILE) {
    _tile_loadd(5, out + c, row_bytes);
    _tile_loadd(4, values + c, row_bytes);
    _tile_dpbf16ps(5, 3, 4);
    _tile_stored(5, out + c, row_bytes);
    _tile_loadd(6, out + c + TILE, row_bytes);
    _tile_loadd(4, values + c + TILE, row_bytes);
    _tile_dpbf16ps(6, 3, 4);
    _tile_stored(6, out + c + TILE, row_bytes);
  }
}

}  // namespace

// Whether 16 keys are rows of one block, all of each is multiplied, and each row of `tokens` tokens is a column.
bool attends_few_by_amx(const Layer &layer, int64_t tokens) {
  return tokens * (layer.heads / layer.groups) <= FEW && layer.block % TILE == 0 && layer.dim % 32 == 0 &&
         layer.value_dim % 32 == 0;
}

// All key heads of 16 or 32 tokens, one after the other: they lie side by side, so that what is read is one piece.
void attend_few_by_amx(const Layer &layer, const Task &task) {
  static thread_local Buffers own;
  const int64_t rows = task.tokens * (layer.heads / layer.groups), columns = columns_for(rows), groups = task.groups;
  const int64_t query_size = layer.dim / 2 * columns, out_size = rows * layer.value_dim;
  const Tiles tiles(rows, columns);
  uint32_t *turned = scratch(own.query, groups * query_size), *values = scratch(own.values, TILE * layer.value_dim);
  const RowState all{scratch(own.out, groups * out_size), scratch(own.maxima, groups * FEW),
                     scratch(own.sums, groups * FEW), scratch(own.scores, groups * columns * KEYS),
                     scratch(own.weights, groups * columns * KEYS / 2)};
  const auto state_of = [&](int64_t n) {
    return RowState{all.out + n * out_size, all.maxima + n * FEW, all.sums + n * FEW, all.scores + n * columns * KEYS,
                    all.weights + n * columns * KEYS / 2};
  };
  std::fill_n(all.out, groups * out_size, 0.0f);
  std::fill_n(all.maxima, groups * FEW, NONE);
  std::fill_n(all.sums, groups * FEW, 0.0f);
  for (int64_t n = 0; n < groups; ++n)
    turn_queries(layer, task, task.group + n, rows, columns, turned + n * query_size);
  visible_to_tiles(turned);
  Rows at(layer, task);
  const int64_t lowest = lowest_key(layer, task);
  for (int64_t first_key = lowest / KEYS * KEYS; first_key <= task.last(); first_key += KEYS) {
    const KeyTile tile{first_key, std::min(KEYS, task.last() + 1 - first_key)};
    const int64_t keys = (tile.count + TILE_NUMBERS - 1) / TILE_NUMBERS * TILE_NUMBERS;
    at.find(first_key, task.last());
    for (int64_t key = 0; key < tile.count; key += TILE)
      for (int64_t n = 0; n < groups; ++n) {
        at.group = task.group + n;
        score_keys(layer, at, key, turned + n * query_size, columns, state_of(n).scores);
      }
    for (int64_t n = 0; n < groups; ++n) {
      const RowState state = state_of(n);
      weigh_rows(layer, task, tile, state, 0, rows, keys / LANES, state.scores, state.weights);
    }
    visible_to_tiles(all.weights);
    for (int64_t key = 0; key < keys; key += TILE_NUMBERS)
      for (int64_t n = 0; n < groups; ++n) {
        at.group = task.group + n;
        pair_values(at, key, tile.count, lowest - first_key, layer.value_dim, values);
        visible_to_tiles(values);
        add_values(state_of(n).weights + key / 2, values, layer.value_dim, state_of(n).out);
      }
  }
  for (int64_t n = 0; n < groups; ++n)
    for (int64_t row = 0; row < rows; ++row) {
      float *out = state_of(n).out + row * layer.value_dim;
      order_columns(out, layer.value_dim);
      store_row(layer, of_row(layer, task, task.group + n, row), out, state_of(n).sums[row]);
    }
}

#pragma GCC pop_options

#else

bool attends_few_by_amx(const AttentionLayer<uint16_t> &, int64_t) { return false; }
void attend_few_by_amx(const AttentionLayer<uint16_t> &, const AttentionTask &) {}

#endif

#endif
