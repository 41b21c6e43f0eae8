// A linear layer for few tokens (thin_linear.h) where the CPU has AVX512-BF16.
//
// Of up to 6 tokens each is multiplied with four weight rows by itself; of 7 to 64, 16 weight rows lie side by side in a
// vector, and each pair of a token's numbers is multiplied with all of them, where inputs and outputs are so many pairs
// and sixteens.

#include "thin_linear.h"

#if defined(__x86_64__)

#include <immintrin.h>
#include <omp.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "transpose.h"

#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,fma")

namespace {

constexpr int WIDTH = 32;   // numbers of a vector
constexpr int OUTPUTS = 4;  // weight rows at a time; with 6 tokens, 24 sums, 4 weights and 1 token are 29 of 32 registers

using Layer = ThinLayer<uint16_t>;

inline __m512bh numbers(const uint16_t *from) { return reinterpret_cast<__m512bh>(_mm512_loadu_si512(from)); }

inline __m512bh numbers(__mmask32 some, const uint16_t *from) {
  return reinterpret_cast<__m512bh>(_mm512_maskz_loadu_epi16(some, from));
}

// The sums of each of four vectors.
inline __m128 totals(const __m512 sum[OUTPUTS]) {
  const __m512 a = _mm512_add_ps(_mm512_unpacklo_ps(sum[0], sum[1]), _mm512_unpackhi_ps(sum[0], sum[1]));
  const __m512 b = _mm512_add_ps(_mm512_unpacklo_ps(sum[2], sum[3]), _mm512_unpackhi_ps(sum[2], sum[3]));
  const __m512d low = _mm512_unpacklo_pd(_mm512_castps_pd(a), _mm512_castps_pd(b));
  const __m512d high = _mm512_unpackhi_pd(_mm512_castps_pd(a), _mm512_castps_pd(b));
  const __m512 all = _mm512_add_ps(_mm512_castpd_ps(low), _mm512_castpd_ps(high));
  const __m256 half = _mm256_add_ps(_mm512_castps512_ps256(all), _mm512_extractf32x8_ps(all, 1));
  return _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
}

inline __m128 widened(const uint16_t *halves) {
  const __m128i words = _mm_cvtepu16_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i *>(halves)));
  return _mm_castsi128_ps(_mm_slli_epi32(words, 16));
}

// M tokens from `token` on, four outputs from `output` on.
template <int M>
void block(const Layer &layer, int64_t token, int64_t output) {
  constexpr int N = OUTPUTS;
  const uint16_t *x = layer.x + token * layer.in, *weight = layer.weight + output * layer.in;
  __m512 sum[M][N];
  for (int m = 0; m < M; ++m)
    for (int n = 0; n < N; ++n) sum[m][n] = _mm512_setzero_ps();
  int64_t k = 0;
  for (; k + WIDTH <= layer.in; k += WIDTH) {
    __m512bh w[N];
    for (int n = 0; n < N; ++n) {
      const uint16_t *row = weight + n * layer.in + k;
      _mm_prefetch(reinterpret_cast<const char *>(row + ROWS_AHEAD * layer.in), _MM_HINT_T1);
      w[n] = numbers(row);
    }
    for (int m = 0; m < M; ++m) {
      const __m512bh row = numbers(x + m * layer.in + k);
      for (int n = 0; n < N; ++n) sum[m][n] = _mm512_dpbf16_ps(sum[m][n], row, w[n]);
    }
  }
  if (k < layer.in) {
    const auto some = static_cast<__mmask32>((1u << (layer.in - k)) - 1);
    for (int n = 0; n < N; ++n) {
      const __m512bh w = numbers(some, weight + n * layer.in + k);
      for (int m = 0; m < M; ++m)
        sum[m][n] = _mm512_dpbf16_ps(sum[m][n], numbers(some, x + m * layer.in + k), w);
    }
  }
  const __m128 bias = layer.bias ? widened(layer.bias + output) : _mm_setzero_ps();
  for (int m = 0; m < M; ++m) {
    const __m128bh halves = _mm_cvtneps_pbh(_mm_add_ps(totals(sum[m]), bias));
    _mm_storel_epi64(reinterpret_cast<__m128i *>(layer.y + (token + m) * layer.out + output),
                     reinterpret_cast<__m128i>(halves));
  }
}

void outputs(const Layer &layer, int64_t tokens, int64_t output) {
  int64_t token = 0;
  for (; token + 6 <= tokens; token += 6) block<6>(layer, token, output);
  if (token + 4 <= tokens) block<4>(layer, token, output), token += 4;
  if (token + 2 <= tokens) block<2>(layer, token, output), token += 2;
  if (token < tokens) block<1>(layer, token, output);
}

constexpr int64_t SIDE = 16;    // outputs of a vector, and tokens at a time
constexpr int64_t PAIRS = 128;  // of a tile of weights, which stays in the first-level cache
constexpr int64_t TOKENS = 64;  // at most, which share a tile

// x [tokens, in] as [tokens / 16][in / 2 pairs][16 tokens]; what lacks of the last 16 tokens are zeros.
std::vector<uint32_t> side_by_side(const uint16_t *x, int64_t tokens, int64_t in) {
  const int64_t pairs = in / 2;
  std::vector<uint32_t> packed((tokens + SIDE - 1) / SIDE * SIDE * pairs);
  for (int64_t token = 0; token < tokens; ++token) {
    uint32_t *to = packed.data() + token / SIDE * SIDE * pairs + token % SIDE;
    for (int64_t pair = 0; pair < pairs; ++pair) std::memcpy(to + pair * SIDE, x + token * in + 2 * pair, 4);
  }
  return packed;
}

// `count` pairs of 16 weight rows as [pair][16 rows]. Each row is read a cache line at a time: rows of a power of two
// would push each other out of the cache.
void turn(const uint16_t *weight, int64_t in, int64_t count, uint32_t *tile) {
  for (int64_t at = 0; at < count; at += SIDE) {
    const int64_t rest = std::min(SIDE, count - at);
    const auto some = static_cast<__mmask16>((1u << rest) - 1);
    __m512i rows[SIDE];
    for (int n = 0; n < SIDE; ++n) {
      const uint16_t *row = weight + n * in + 2 * at;
      _mm_prefetch(reinterpret_cast<const char *>(row + SIDE * in), _MM_HINT_T1);
      rows[n] = _mm512_maskz_loadu_epi32(some, row);
    }
    transpose(rows);
    for (int64_t i = 0; i < rest; ++i) _mm512_store_si512(tile + (at + i) * SIDE, rows[i]);
  }
}

// sums [M tokens, 16 outputs] += `count` pairs of x, from [pair][16 tokens], times those of the weights.
template <int M>
void add_products(const uint32_t *x, const uint32_t *tile, int64_t count, float *sums) {
  __m512 sum[M];
  for (int m = 0; m < M; ++m) sum[m] = _mm512_load_ps(sums + m * SIDE);
  for (int64_t pair = 0; pair < count; ++pair) {
    const auto w = reinterpret_cast<__m512bh>(_mm512_load_si512(tile + pair * SIDE));
    for (int m = 0; m < M; ++m)
      sum[m] = _mm512_dpbf16_ps(
          sum[m], w, reinterpret_cast<__m512bh>(_mm512_set1_epi32(static_cast<int>(x[pair * SIDE + m]))));
  }
  for (int m = 0; m < M; ++m) _mm512_store_ps(sums + m * SIDE, sum[m]);
}

// 16 outputs from `output` on.
void outputs_side_by_side(const Layer &layer, const uint32_t *packed, int64_t tokens, int64_t output) {
  const int64_t pairs = layer.in / 2;
  alignas(64) float sums[TOKENS * SIDE] = {};
  alignas(64) uint32_t tile[PAIRS * SIDE];
  for (int64_t first = 0; first < pairs; first += PAIRS) {
    const int64_t count = std::min(PAIRS, pairs - first);
    turn(layer.weight + output * layer.in + 2 * first, layer.in, count, tile);
    for (int64_t at = 0; at < tokens; at += SIDE) {
      const uint32_t *x = packed + at * pairs + first * SIDE;
      if (tokens - at > SIDE / 2)
        add_products<SIDE>(x, tile, count, sums + at * SIDE);
      else
        add_products<SIDE / 2>(x, tile, count, sums + at * SIDE);
    }
  }
  __m512 bias = _mm512_setzero_ps();
  if (layer.bias) {
    const auto halves = _mm256_loadu_si256(reinterpret_cast<const __m256i *>(layer.bias + output));
    bias = _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16));
  }
  for (int64_t i = 0; i < tokens; ++i) {
    const __m256bh halves = _mm512_cvtneps_pbh(_mm512_add_ps(_mm512_load_ps(sums + i * SIDE), bias));
    _mm256_storeu_si256(reinterpret_cast<__m256i *>(layer.y + i * layer.out + output),
                        reinterpret_cast<__m256i>(halves));
  }
}

}  // namespace

void thin_linear_bfloat16(const Layer &layer, int64_t tokens, int threads) {
  if (tokens > 6 && tokens <= TOKENS && layer.in % 2 == 0 && layer.out % SIDE == 0) {
    const auto packed = side_by_side(layer.x, tokens, layer.in);
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1)
    for (int64_t output = 0; output < layer.out; output += SIDE)
      outputs_side_by_side(layer, packed.data(), tokens, output);
    return;
  }
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1)
  for (int64_t output = 0; output < layer.out; output += OUTPUTS) outputs(layer, tokens, output);
}

#pragma GCC pop_options

#endif
