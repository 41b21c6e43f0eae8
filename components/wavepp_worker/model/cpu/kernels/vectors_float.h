// Vectors of eight floats (AVX2), of numbers that lie in memory as floats or as bfloat16.

#pragma once

#include <immintrin.h>

#include <algorithm>
#include <cstdint>

// Before loops over a register tile: else GCC keeps the tile in memory.
#define UNROLL _Pragma("GCC unroll 16")

#pragma GCC push_options
#pragma GCC target("avx2,fma")

namespace {

constexpr int64_t WIDE = 8;

inline __m256 load(const float *from) { return _mm256_loadu_ps(from); }

inline __m256 load(const uint16_t *from) {
  const __m256i words = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i *>(from)));
  return _mm256_castsi256_ps(_mm256_slli_epi32(words, 16));
}

// The nearest bfloat16 of each, the even one of two, in the upper halves of the words; no number stays none.
inline __m256i nearest(__m256 value) {
  const __m256i bits = _mm256_castps_si256(value);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  const __m256i round = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
  const __m256 none = _mm256_cmp_ps(value, value, _CMP_UNORD_Q);
  return _mm256_blendv_epi8(round, _mm256_set1_epi32(0x7fc00000), _mm256_castps_si256(none));
}

inline void store(float *to, __m256 value) { _mm256_storeu_ps(to, value); }

inline void store(uint16_t *to, __m256 value) {
  const __m256i words = _mm256_srli_epi32(nearest(value), 16);
  const __m128i halves = _mm_packus_epi32(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
  _mm_storeu_si128(reinterpret_cast<__m128i *>(to), halves);
}

// As a number that was stored as T and read again.
template <typename T>
inline __m256 rounded(__m256 value) {
  if constexpr (sizeof(T) == sizeof(float)) return value;
  return _mm256_castsi256_ps(_mm256_and_si256(nearest(value), _mm256_set1_epi32(static_cast<int>(0xffff0000u))));
}

// Turns 8 rows of 8 floats into 8 columns.
inline void transpose(__m256 r[WIDE]) {
  __m256 t[8];
  UNROLL for (int i = 0; i < 4; ++i) {
    t[2 * i] = _mm256_unpacklo_ps(r[2 * i], r[2 * i + 1]);
    t[2 * i + 1] = _mm256_unpackhi_ps(r[2 * i], r[2 * i + 1]);
  }
  UNROLL for (int i = 0; i < 8; i += 4) {
    r[i] = _mm256_shuffle_ps(t[i], t[i + 2], 0x44);
    r[i + 1] = _mm256_shuffle_ps(t[i], t[i + 2], 0xee);
    r[i + 2] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0x44);
    r[i + 3] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0xee);
  }
  UNROLL for (int i = 0; i < 4; ++i) t[i] = _mm256_permute2f128_ps(r[i], r[i + 4], 0x20);
  UNROLL for (int i = 0; i < 4; ++i) t[i + 4] = _mm256_permute2f128_ps(r[i], r[i + 4], 0x31);
  UNROLL for (int i = 0; i < 8; ++i) r[i] = t[i];
}

inline float total(__m256 v) {
  __m128 sum = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
  sum = _mm_add_ps(sum, _mm_movehl_ps(sum, sum));
  return _mm_cvtss_f32(_mm_add_ss(sum, _mm_movehdup_ps(sum)));
}

inline float largest(__m256 v) {
  __m128 most = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
  most = _mm_max_ps(most, _mm_movehl_ps(most, most));
  return _mm_cvtss_f32(_mm_max_ss(most, _mm_movehdup_ps(most)));
}

// 2^x, relative error below 3e-6; 0 where that is below 2^-126, infinite from 2^128 on and where x is no number.
inline __m256 power_of_two(__m256 x) {
  x = _mm256_min_ps(x, _mm256_set1_ps(128.0f));
  const __m256 there = _mm256_cmp_ps(x, _mm256_set1_ps(-126.0f), _CMP_GE_OQ);
  const __m256 whole = _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  const __m256 rest = _mm256_sub_ps(x, whole);
  __m256 sum = _mm256_set1_ps(1.3333558e-3f);
  sum = _mm256_fmadd_ps(sum, rest, _mm256_set1_ps(9.6181291e-3f));
  sum = _mm256_fmadd_ps(sum, rest, _mm256_set1_ps(5.5504109e-2f));
  sum = _mm256_fmadd_ps(sum, rest, _mm256_set1_ps(2.4022651e-1f));
  sum = _mm256_fmadd_ps(sum, rest, _mm256_set1_ps(6.9314718e-1f));
  sum = _mm256_fmadd_ps(sum, rest, _mm256_set1_ps(1.0f));
  const __m256i exponent = _mm256_slli_epi32(_mm256_cvtps_epi32(whole), 23);
  const __m256 power = _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(sum), exponent));
  return _mm256_and_ps(power, there);
}

// x / (1 + e^-x)
inline __m256 silu(__m256 x) {
  const __m256 power = power_of_two(_mm256_mul_ps(x, _mm256_set1_ps(-1.44269504f)));
  return _mm256_div_ps(x, _mm256_add_ps(_mm256_set1_ps(1.0f), power));
}

}  // namespace

#pragma GCC pop_options
