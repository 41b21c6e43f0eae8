// A linear layer for few tokens (thin_linear.h) where the CPU has AVX512-BF16: each token is multiplied with four weight
// rows at a time.

#include "thin_linear.h"

#if defined(__x86_64__)

#include <immintrin.h>
#include <omp.h>

#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,fma")

namespace {

constexpr int WIDTH = 32;   // numbers of a vector
constexpr int OUTPUTS = 4;  // weight rows at a time; with 6 tokens, 24 sums, 4 weights and 1 token are 29 of 32 registers

struct Layer : Product<uint16_t>, Weights<uint16_t> {};

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

void outputs(const Layer &layer, int64_t output) {
  const int64_t tokens = layer.tokens;
  int64_t token = 0;
  for (; token + 6 <= tokens; token += 6) block<6>(layer, token, output);
  if (token + 4 <= tokens) block<4>(layer, token, output), token += 4;
  if (token + 2 <= tokens) block<2>(layer, token, output), token += 2;
  if (token < tokens) block<1>(layer, token, output);
}

}  // namespace

void thin_linear_bfloat16(const Product<uint16_t> &product, const Weights<uint16_t> &weights, int threads) {
  const Layer layer{product, weights};
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1)
  for (int64_t output = 0; output < layer.out; output += OUTPUTS) outputs(layer, output);
}

#pragma GCC pop_options

#endif
