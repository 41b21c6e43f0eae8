// The passes of elementwise.h where the CPU has AVX512-BF16.

#include "elementwise.h"

#if defined(__x86_64__)

#include <immintrin.h>
#include <algorithm>
#include <cmath>
#include <cstring>

#include "vectors_bfloat16.h"

#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,fma")

namespace {

void norm_row(const uint16_t *x, const uint16_t *weight, int64_t width, float eps, uint16_t *y) {
  __m512 sums = _mm512_setzero_ps();
  for (int64_t i = 0; i < width; i += LANES) {
    const __m512 value = load(some_of(width - i), x + i);
    sums = _mm512_fmadd_ps(value, value, sums);
  }
  const float mean = _mm512_reduce_add_ps(sums) / static_cast<float>(width);
  const __m512 scale = _mm512_set1_ps(1.0f / std::sqrt(mean + eps));
  for (int64_t i = 0; i < width; i += LANES) {
    const __mmask16 some = some_of(width - i);
    store(some, y + i, _mm512_mul_ps(load(some, weight + i), rounded(_mm512_mul_ps(load(some, x + i), scale))));
  }
}

void silu_numbers(const uint16_t *gate, const uint16_t *up, int64_t count, uint16_t *y) {
  for (int64_t i = 0; i < count; i += LANES) {
    const __mmask16 some = some_of(count - i);
    store(some, y + i, _mm512_mul_ps(rounded(silu(load(some, gate + i))), load(some, up + i)));
  }
}

void add_numbers(const uint16_t *x, const uint16_t *y, int64_t count, uint16_t *sum) {
  for (int64_t i = 0; i < count; i += LANES) {
    const __mmask16 some = some_of(count - i);
    store_with_subnormals(some, sum + i, _mm512_add_ps(load(some, x + i), load(some, y + i)));
  }
}

// One head, whose second half turns with its first; `to` may be `from`.
void rotate(const uint16_t *from, const uint16_t *cos, const uint16_t *sin, int64_t dim, uint16_t *to) {
  const int64_t half = dim / 2;
  for (int64_t i = 0; i < half; i += LANES) {
    const __mmask16 some = some_of(half - i);
    const __m512 a = load(some, from + i), b = load(some, from + half + i);
    const __m512 a_cos = rounded(_mm512_mul_ps(a, load(some, cos + i)));
    const __m512 b_cos = rounded(_mm512_mul_ps(b, load(some, cos + half + i)));
    const __m512 b_sin = rounded(_mm512_mul_ps(b, load(some, sin + i)));
    const __m512 a_sin = rounded(_mm512_mul_ps(a, load(some, sin + half + i)));
    store(some, to + i, _mm512_sub_ps(a_cos, b_sin));
    store(some, to + half + i, _mm512_add_ps(b_cos, a_sin));
  }
}

}  // namespace

Passes<uint16_t> passes_bfloat16() {
  return {norm_row, silu_numbers, add_numbers, rotate};
}

#pragma GCC pop_options

#endif
