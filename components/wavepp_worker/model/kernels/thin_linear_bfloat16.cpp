// A linear layer for few tokens (thin_linear.h) where the CPU has AVX512-BF16.
//
// Of up to 6 tokens each is multiplied with four weight rows by itself; of more, 16 lie side by side in a vector, and
// each pair of a weight row's numbers is multiplied with all of them.

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
    for (int n = 0; n < N; ++n) w[n] = numbers(weight + n * layer.in + k);
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

constexpr int64_t SIDE = 16;  // tokens of a vector, and weight rows at a time

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

// 16 outputs from `output` on of all tokens.
void wide_outputs(const Layer &layer, const uint32_t *packed, int64_t tokens, int64_t output) {
  const int64_t pairs = layer.in / 2;
  const uint16_t *weight = layer.weight + output * layer.in;
  const auto *bytes = reinterpret_cast<const char *>(weight);
  for (int64_t token = 0; token < tokens; token += SIDE, packed += SIDE * pairs) {
    __m512 sum[SIDE];
    for (int n = 0; n < SIDE; ++n) sum[n] = _mm512_setzero_ps();
    for (int64_t pair = 0; pair < pairs; ++pair) {
      // A cache line of the next rows for each pair makes all of them.
      if (!token) _mm_prefetch(bytes + 2 * SIDE * layer.in + 64 * pair, _MM_HINT_T0);
      const auto x = reinterpret_cast<__m512bh>(_mm512_loadu_si512(packed + pair * SIDE));
      for (int n = 0; n < SIDE; ++n) {
        uint32_t word;
        std::memcpy(&word, weight + n * layer.in + 2 * pair, 4);
        sum[n] = _mm512_dpbf16_ps(sum[n], x, reinterpret_cast<__m512bh>(_mm512_set1_epi32(static_cast<int>(word))));
      }
    }
    __m512i rows[SIDE];
    for (int n = 0; n < SIDE; ++n) rows[n] = _mm512_castps_si512(sum[n]);
    transpose(rows);
    __m512 bias = _mm512_setzero_ps();
    if (layer.bias) {
      const auto halves = _mm256_loadu_si256(reinterpret_cast<const __m256i *>(layer.bias + output));
      bias = _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16));
    }
    for (int64_t i = 0; i < std::min(SIDE, tokens - token); ++i) {
      const __m256bh halves = _mm512_cvtneps_pbh(_mm512_add_ps(_mm512_castsi512_ps(rows[i]), bias));
      _mm256_storeu_si256(reinterpret_cast<__m256i *>(layer.y + (token + i) * layer.out + output),
                          reinterpret_cast<__m256i>(halves));
    }
  }
}

}  // namespace

void thin_linear_bfloat16(const Layer &layer, int64_t tokens, int threads) {
  if (tokens > 6 && layer.in % 2 == 0 && layer.out % SIDE == 0) {
    const auto packed = side_by_side(layer.x, tokens, layer.in);
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1)
    for (int64_t output = 0; output < layer.out; output += SIDE) wide_outputs(layer, packed.data(), tokens, output);
    return;
  }
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1)
  for (int64_t output = 0; output < layer.out; output += OUTPUTS) outputs(layer, tokens, output);
}

#pragma GCC pop_options

#endif
