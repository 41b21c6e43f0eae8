// A linear layer for few tokens (thin_linear.h) where the CPU has AVX2 and no products of bfloat16, or all is of float32.
//
// Of 16 bfloat16 numbers of a weight row, those at even places and those at odd ones are eight floats each after one instruction;
// so the tokens' numbers are brought into that order first.

#include "thin_linear.h"

#if defined(__x86_64__)

#include <omp.h>

#include <algorithm>
#include <vector>

#include "subnormals.h"
#include "vectors_float.h"

#pragma GCC push_options
#pragma GCC target("avx2,fma")

namespace {

constexpr int64_t NUMBERS = 2 * WIDE;  // of a weight row at a time
constexpr int OUTPUTS = 2;  // weight rows at a time; with 6 tokens, 12 sums, 2 weights and 1 token are 15 of 16 registers

template <typename T>
struct Layer : Product<T>, Weights<T> {};
using Narrow = Layer<uint16_t>;
using Wide = Layer<float>;

int64_t padded(int64_t in) { return (in + NUMBERS - 1) / NUMBERS * NUMBERS; }

inline __m256i halves(const uint16_t *from, int64_t count) {
  if (count >= NUMBERS) return _mm256_loadu_si256(reinterpret_cast<const __m256i *>(from));
  uint16_t some[NUMBERS] = {};
  std::copy_n(from, count, some);
  return _mm256_loadu_si256(reinterpret_cast<const __m256i *>(some));
}

inline __m256 even(__m256i words) { return _mm256_castsi256_ps(_mm256_slli_epi32(words, 16)); }
inline __m256 odd(__m256i words) {
  return _mm256_castsi256_ps(_mm256_and_si256(words, _mm256_set1_epi32(static_cast<int>(0xffff0000u))));
}

// x [tokens, in] as floats [tokens, padded in]; of each 16 numbers those at even places first.
std::vector<float> in_order(const uint16_t *x, int64_t tokens, int64_t in) {
  const int64_t width = padded(in);
  std::vector<float> ordered(tokens * width);
  for (int64_t token = 0; token < tokens; ++token)
    for (int64_t k = 0; k < in; k += NUMBERS) {
      const __m256i words = halves(x + token * in + k, in - k);
      store(ordered.data() + token * width + k, even(words));
      store(ordered.data() + token * width + k + WIDE, odd(words));
    }
  return ordered;
}

// M tokens from `token` on, two outputs from `output` on.
template <int M>
void block(const Narrow &layer, const float *ordered, int64_t token, int64_t output) {
  const int64_t in = layer.in, width = padded(in);
  const float *x = ordered + token * width;
  const uint16_t *weight = layer.weight + output * in;
  __m256 sum[M][OUTPUTS];
  UNROLL for (int m = 0; m < M; ++m)
    UNROLL for (int n = 0; n < OUTPUTS; ++n) sum[m][n] = _mm256_setzero_ps();
  for (int64_t k = 0; k < in; k += NUMBERS) {
    __m256i words[OUTPUTS];
    UNROLL for (int n = 0; n < OUTPUTS; ++n) {
      words[n] = halves(weight + n * in + k, in - k);
      if (!token) _mm_prefetch(reinterpret_cast<const char *>(weight + (n + ROWS_AHEAD) * in + k), _MM_HINT_T1);
    }
    UNROLL for (int m = 0; m < M; ++m) {
      const __m256 numbers = load(x + m * width + k);
      UNROLL for (int n = 0; n < OUTPUTS; ++n) sum[m][n] = _mm256_fmadd_ps(numbers, even(words[n]), sum[m][n]);
    }
    UNROLL for (int m = 0; m < M; ++m) {
      const __m256 numbers = load(x + m * width + k + WIDE);
      UNROLL for (int n = 0; n < OUTPUTS; ++n) sum[m][n] = _mm256_fmadd_ps(numbers, odd(words[n]), sum[m][n]);
    }
  }
  UNROLL for (int m = 0; m < M; ++m)
    UNROLL for (int n = 0; n < OUTPUTS; ++n) {
      float result = total(sum[m][n]);
      if (layer.bias) result += _mm_cvtss_f32(_mm_castsi128_ps(_mm_cvtsi32_si128(layer.bias[output + n] << 16)));
      const __m256i near = nearest(_mm256_set1_ps(result));
      layer.y[(token + m) * layer.out + output + n] = static_cast<uint16_t>(_mm256_extract_epi16(near, 1));
    }
}

// The same of float32, whose tokens are in order as they are.
template <int M>
void block(const Wide &layer, const float *, int64_t token, int64_t output) {
  const int64_t in = layer.in, whole = in - in % WIDE;
  const float *x = layer.x + token * in, *weight = layer.weight + output * in;
  __m256 sum[M][OUTPUTS];
  UNROLL for (int m = 0; m < M; ++m)
    UNROLL for (int n = 0; n < OUTPUTS; ++n) sum[m][n] = _mm256_setzero_ps();
  for (int64_t k = 0; k < whole; k += WIDE) {
    __m256 numbers[OUTPUTS];
    UNROLL for (int n = 0; n < OUTPUTS; ++n) {
      numbers[n] = load(weight + n * in + k);
      if (!token) _mm_prefetch(reinterpret_cast<const char *>(weight + (n + ROWS_AHEAD) * in + k), _MM_HINT_T1);
    }
    UNROLL for (int m = 0; m < M; ++m) {
      const __m256 row = load(x + m * in + k);
      UNROLL for (int n = 0; n < OUTPUTS; ++n) sum[m][n] = _mm256_fmadd_ps(row, numbers[n], sum[m][n]);
    }
  }
  UNROLL for (int m = 0; m < M; ++m)
    UNROLL for (int n = 0; n < OUTPUTS; ++n) {
      float result = total(sum[m][n]);
      for (int64_t k = whole; k < in; ++k) result += x[m * in + k] * weight[n * in + k];
      layer.y[(token + m) * layer.out + output + n] = result + (layer.bias ? layer.bias[output + n] : 0.0f);
    }
}

template <typename T>
void outputs(const Layer<T> &layer, const float *ordered, int64_t output) {
  const int64_t tokens = layer.tokens;
  int64_t token = 0;
  for (; token + 6 <= tokens; token += 6) block<6>(layer, ordered, token, output);
  if (token + 4 <= tokens) block<4>(layer, ordered, token, output), token += 4;
  if (token + 2 <= tokens) block<2>(layer, ordered, token, output), token += 2;
  if (token < tokens) block<1>(layer, ordered, token, output);
}

struct AsTheyAre {};

template <typename Mode, typename T>
void all_outputs(const Layer<T> &layer, const float *ordered, int threads) {
#pragma omp parallel num_threads(threads) if (threads > 1)
  {
    [[maybe_unused]] const Mode mode{};
#pragma omp for schedule(static)
    for (int64_t output = 0; output < layer.out; output += OUTPUTS) outputs(layer, ordered, output);
  }
}

}  // namespace

void thin_linear_float(const Product<uint16_t> &product, const Weights<uint16_t> &weights, int threads) {
  all_outputs<WithoutSubnormals>(Narrow{product, weights}, in_order(product.x, product.tokens, product.in).data(), threads);
}

void thin_linear_float(const Product<float> &product, const Weights<float> &weights, int threads) {
  all_outputs<AsTheyAre>(Wide{product, weights}, nullptr, threads);
}

#pragma GCC pop_options

#endif
