// The passes of elementwise.h where the CPU has AVX2 and no AVX512-BF16, and of floats on any.

#include "elementwise.h"

#if defined(__x86_64__)

#include <algorithm>
#include <cmath>

#include "vectors_float.h"

#pragma GCC push_options
#pragma GCC target("avx2,fma")

namespace {

// Of less than a vector, what lacks is 0.
template <typename T>
inline __m256 load(const T *from, int64_t count) {
  if (count >= WIDE) return load(from);
  T some[WIDE] = {};
  std::copy_n(from, count, some);
  return load(some);
}

template <typename T>
inline void store(T *to, int64_t count, __m256 value) {
  if (count >= WIDE) return store(to, value);
  T some[WIDE];
  store(some, value);
  std::copy_n(some, count, to);
}

template <typename T>
void norm_row(const T *x, const T *weight, int64_t width, float eps, T *y) {
  __m256 sums = _mm256_setzero_ps();
  for (int64_t i = 0; i < width; i += WIDE) {
    const __m256 value = load(x + i, width - i);
    sums = _mm256_fmadd_ps(value, value, sums);
  }
  const __m256 scale = _mm256_set1_ps(1.0f / std::sqrt(total(sums) / static_cast<float>(width) + eps));
  for (int64_t i = 0; i < width; i += WIDE) {
    const __m256 normed = rounded<T>(_mm256_mul_ps(load(x + i, width - i), scale));
    store(y + i, width - i, _mm256_mul_ps(load(weight + i, width - i), normed));
  }
}

template <typename T>
void silu_numbers(const T *gate, const T *up, int64_t count, T *y) {
  for (int64_t i = 0; i < count; i += WIDE) {
    const __m256 active = rounded<T>(silu(load(gate + i, count - i)));
    store(y + i, count - i, _mm256_mul_ps(active, load(up + i, count - i)));
  }
}

template <typename T>
void add_numbers(const T *x, const T *y, int64_t count, T *sum) {
  for (int64_t i = 0; i < count; i += WIDE)
    store(sum + i, count - i, _mm256_add_ps(load(x + i, count - i), load(y + i, count - i)));
}

template <typename T>
void rotate(const T *from, const T *cos, const T *sin, int64_t dim, T *to) {
  const int64_t half = dim / 2;
  for (int64_t i = 0; i < half; i += WIDE) {
    const int64_t some = half - i;
    const __m256 a = load(from + i, some), b = load(from + half + i, some);
    const __m256 a_cos = rounded<T>(_mm256_mul_ps(a, load(cos + i, some)));
    const __m256 b_cos = rounded<T>(_mm256_mul_ps(b, load(cos + half + i, some)));
    const __m256 b_sin = rounded<T>(_mm256_mul_ps(b, load(sin + i, some)));
    const __m256 a_sin = rounded<T>(_mm256_mul_ps(a, load(sin + half + i, some)));
    store(to + i, some, _mm256_sub_ps(a_cos, b_sin));
    store(to + half + i, some, _mm256_add_ps(b_cos, a_sin));
  }
}

}  // namespace

template <typename T>
Passes<T> passes_float() {
  return {norm_row<T>, silu_numbers<T>, add_numbers<T>, rotate<T>};
}

template Passes<uint16_t> passes_float();
template Passes<float> passes_float();

#pragma GCC pop_options

#endif
