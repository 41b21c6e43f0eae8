// Attention over paged KV (attention_tasks.h) where the CPU multiplies tiles of bfloat16 (amx.h): bfloat16 in and out,
// float32 between.

#if defined(__x86_64__)

#include "attention_amx.h"

#ifdef WAVEPP_KNOWS_AMX

#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,fma,amx-tile,amx-bf16")

namespace {

constexpr int64_t ROWS = ATTENTION_AMX_ROWS;

// The scores of `vectors` vectors of keys, an even number, for 16 rows or BOTH halves of 32; a query has `words` words.
template <bool BOTH>
void dot_keys(const uint32_t *query, const uint32_t *keys, int64_t words, int64_t vectors, float *scores) {
  const int64_t query_bytes = words * sizeof(uint32_t);
  visible_to_tiles(query);
  for (int64_t n = 0; n < vectors; n += 2) {
    const uint32_t *low = keys + n * words * TILE, *high = low + words * TILE;
    _tile_zero(0);
    _tile_zero(1);
    if (BOTH) {
      _tile_zero(2);
      _tile_zero(3);
    }
    for (int64_t w = 0; w < words; w += TILE) {
      _tile_loadd(6, low + w * TILE, 64);
      _tile_loadd(4, query + w, query_bytes);
      _tile_dpbf16ps(0, 4, 6);
      _tile_loadd(7, high + w * TILE, 64);
      _tile_dpbf16ps(1, 4, 7);
      if (BOTH) {
        _tile_loadd(5, query + TILE * words + w, query_bytes);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
      }
    }
    float *to = scores + n * TILE;
    _tile_stored(0, to, ROW_KEYS);
    _tile_stored(1, to + TILE, ROW_KEYS);
    if (BOTH) {
      _tile_stored(2, to + TILE * KEYS, ROW_KEYS);
      _tile_stored(3, to + TILE * KEYS + TILE, ROW_KEYS);
    }
  }
}

// out += weights . values of `count` keys, a multiple of 32; for 16 rows or BOTH halves of 32, and 16 columns or WIDE, 32.
template <bool BOTH, bool WIDE>
void add_values(const uint32_t *weights, const uint32_t *values, int64_t count, int64_t dim, float *out) {
  const int64_t row_bytes = dim * sizeof(float);
  float *below = out + TILE * dim;
  _tile_loadd(0, out, row_bytes);
  if (WIDE) _tile_loadd(1, out + TILE, row_bytes);
  if (BOTH) _tile_loadd(2, below, row_bytes);
  if (BOTH && WIDE) _tile_loadd(3, below + TILE, row_bytes);
  for (int64_t p = 0; p < count / 2; p += TILE) {
    _tile_loadd(4, weights + p, ROW_WEIGHTS);
    _tile_loadd(6, values + p * dim, row_bytes);
    _tile_dpbf16ps(0, 4, 6);
    if (WIDE) {
      _tile_loadd(7, values + p * dim + TILE, row_bytes);
      _tile_dpbf16ps(1, 4, 7);
    }
    if (BOTH) {
      _tile_loadd(5, weights + TILE * (KEYS / 2) + p, ROW_WEIGHTS);
      _tile_dpbf16ps(2, 5, 6);
    }
    if (BOTH && WIDE) _tile_dpbf16ps(3, 5, 7);
  }
  _tile_stored(0, out, row_bytes);
  if (WIDE) _tile_stored(1, out + TILE, row_bytes);
  if (BOTH) _tile_stored(2, below, row_bytes);
  if (BOTH && WIDE) _tile_stored(3, below + TILE, row_bytes);
}

// `count` rows from `row` on, more than 16 with BOTH. What tiles hold of rows beyond is what was there before: nobody reads
// what becomes of it.
template <bool BOTH>
void rows_over_tile(const Layer &layer, const Task &task, const PackedTile &tile, const RowState &state, int64_t words,
                    int64_t row, int64_t count) {
  const int64_t seen = seen_keys(layer, task, tile, row, count);
  if (!seen) return;
  const int64_t dim = layer.value_dim, keys = (seen + TILE_NUMBERS - 1) / TILE_NUMBERS * TILE_NUMBERS;
  float *out = state.out + row * dim;
  dot_keys<BOTH>(tile.query + row * words, tile.keys, words, keys / LANES, state.scores);
  for (int64_t m = 0; m < count; m += TILE)
    weigh_rows(layer, task, tile, state, row + m, std::min(TILE, count - m), keys / LANES, state.scores + m * KEYS,
               state.weights + m * (KEYS / 2));
  visible_to_tiles(state.weights);
  int64_t c = 0;
  for (; c + 2 * TILE <= dim; c += 2 * TILE)
    add_values<BOTH, true>(state.weights, tile.values + c, keys, dim, out + c);
  if (c < dim) add_values<BOTH, false>(state.weights, tile.values + c, keys, dim, out + c);
}

}  // namespace

void attend_amx(const Layer &layer, const Task &task) {
  if (attends_few_by_amx(layer, task.tokens)) return attend_few_by_amx(layer, task);
  static thread_local Buffers own;
  const TileConfiguration tiles(TILE, TILE);
  const int64_t words = (layer.dim + TILE_NUMBERS - 1) / TILE_NUMBERS * TILE;
  const auto over_tile = [&](const PackedTile &tile, const RowState &state, int64_t count) {
    for (int64_t row = 0; row < count; row += ROWS) {
      const int64_t rows = std::min(ROWS, count - row);
      if (rows > TILE)
        rows_over_tile<true>(layer, task, tile, state, words, row, rows);
      else
        rows_over_tile<false>(layer, task, tile, state, words, row, rows);
    }
  };
  attend_by_key_tiles(layer, task, {ROWS, words, TILE_NUMBERS}, own, over_tile);
}

#pragma GCC pop_options

#else

#include <cstdlib>

void attend_amx(const AttentionLayer<uint16_t> &, const AttentionTask &) { std::abort(); }

#endif

#endif
