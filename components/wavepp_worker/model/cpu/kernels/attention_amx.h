// What attention of many rows and of few has in common where the CPU multiplies tiles of bfloat16 (amx.h).

#pragma once

#include "amx.h"

#ifdef WAVEPP_KNOWS_AMX

#include "attention_bfloat16.h"

#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,fma,amx-tile,amx-bf16")

namespace {

constexpr int64_t ROW_KEYS = KEYS * sizeof(float), ROW_WEIGHTS = KEYS * sizeof(uint16_t);  // bytes from row to row

struct Most {
  static __m512 of(__m512 a, __m512 b) { return _mm512_max_ps(a, b); }
};
struct Sum {
  static __m512 of(__m512 a, __m512 b) { return _mm512_add_ps(a, b); }
};

// Each of 16 rows' most, or sum.
template <typename Join>
inline __m512 joined(const __m512 rows[TILE]) {
  __m512d pairs[TILE / 2];
  for (int i = 0; i < TILE / 2; ++i)
    pairs[i] = _mm512_castps_pd(
        Join::of(_mm512_unpacklo_ps(rows[2 * i], rows[2 * i + 1]), _mm512_unpackhi_ps(rows[2 * i], rows[2 * i + 1])));
  __m512 fours[TILE / 4];
  for (int i = 0; i < TILE / 4; ++i)
    fours[i] = Join::of(_mm512_castpd_ps(_mm512_unpacklo_pd(pairs[2 * i], pairs[2 * i + 1])),
                    _mm512_castpd_ps(_mm512_unpackhi_pd(pairs[2 * i], pairs[2 * i + 1])));
  __m512 halves[2];
  for (int i = 0; i < 2; ++i)
    halves[i] = Join::of(_mm512_shuffle_f32x4(fours[2 * i], fours[2 * i + 1], 0x88),
                         _mm512_shuffle_f32x4(fours[2 * i], fours[2 * i + 1], 0xdd));
  return Join::of(_mm512_shuffle_f32x4(halves[0], halves[1], 0x88), _mm512_shuffle_f32x4(halves[0], halves[1], 0xdd));
}

// Scores to weights of `count` rows from `row` on, at most 16; their maxima, sums and outputs go on.
void weigh_rows(const Layer &layer, const Task &task, const KeyTile &tile, const RowState &state, int64_t row,
                int64_t count, int64_t vectors, float *scores, uint32_t *weights) {
  __m512 most[TILE], added[TILE];
  alignas(64) float less[TILE], keep[TILE];
  const __m512 none = _mm512_set1_ps(NONE);
  for (int64_t m = 0; m < TILE; ++m)
    most[m] = m < count ? most_of(scores + m * KEYS, vectors, keys_of_row(layer, task, tile, row + m)) : none;
  const __m512 before = _mm512_load_ps(state.maxima + row);
  const __m512 seen = joined<Most>(most);
  const __m512 now = _mm512_max_ps(before, _mm512_mul_ps(seen, _mm512_set1_ps(layer.scale)));
  const __mmask16 some = _mm512_cmp_ps_mask(now, none, _CMP_NEQ_OQ);
  _mm512_store_ps(less, _mm512_maskz_mov_ps(some, now));
  // No maximum before is an infinite power, which is taken for a small one: nothing is kept.
  const __m512 kept = _mm512_mask_mov_ps(_mm512_set1_ps(1.0f), some, power_of_two(_mm512_sub_ps(before, now)));
  _mm512_store_ps(keep, kept);
  _mm512_store_ps(state.maxima + row, now);
  for (int64_t m = 0; m < TILE; ++m)
    added[m] = m < count ? weigh(scores + m * KEYS, vectors, layer.scale, less[m], weights + m * (KEYS / 2))
                         : _mm512_setzero_ps();
  const __m512 sums = joined<Sum>(added);
  _mm512_store_ps(state.sums + row, _mm512_fmadd_ps(_mm512_load_ps(state.sums + row), kept, sums));
  for (int64_t m = 0; m < count; ++m)
    if (keep[m] != 1.0f) scale_row(state.out + (row + m) * layer.value_dim, layer.value_dim, keep[m]);
}

}  // namespace

#pragma GCC pop_options

#endif
