// Vectors of sixteen floats (AVX-512), of numbers that lie in memory as bfloat16.

#pragma once

#include <immintrin.h>

#include <cstdint>

#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,fma")

namespace {

constexpr int64_t LANES = 16;
constexpr __mmask16 ALL = 0xffff;

inline __mmask16 some_of(int64_t count) {
  return count >= LANES ? ALL : static_cast<__mmask16>((1u << count) - 1);
}

inline __m512 load(__mmask16 some, const uint16_t *from) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(some, from)), 16));
}

// Of 16 pairs, the numbers that lie first, and those that lie second.
inline __m512 firsts(__m512i pairs) { return _mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16)); }
inline __m512 seconds(__m512i pairs) {
  return _mm512_castsi512_ps(_mm512_and_si512(pairs, _mm512_set1_epi32(static_cast<int>(0xffff0000))));
}

inline void store(__mmask16 some, uint16_t *to, __m512 value) {
  _mm256_mask_storeu_epi16(to, some, reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(value)));
}

// As store(), but numbers below 2^-126 stay, as they do in torch's sums.
inline void store_with_subnormals(__mmask16 some, uint16_t *to, __m512 value) {
  const __m512i bits = _mm512_castps_si512(value), high = _mm512_srli_epi32(bits, 16);
  const __m512i odd = _mm512_and_si512(high, _mm512_set1_epi32(1));
  const __m512i near = _mm512_srli_epi32(_mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff))), 16);
  const __mmask16 none = _mm512_cmp_ps_mask(value, value, _CMP_UNORD_Q);
  const __m512i halves = _mm512_mask_or_epi32(near, none, high, _mm512_set1_epi32(0x40));
  _mm512_mask_cvtepi32_storeu_epi16(to, some, halves);
}

inline __m512 rounded(__m512 value) {
  const auto halves = reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(value));
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16));
}

// Turns 16 rows of 16 words into 16 columns.
inline void transpose(__m512i r[16]) {
  __m512i t[16];
  for (int i = 0; i < 8; ++i) {
    t[2 * i] = _mm512_unpacklo_epi32(r[2 * i], r[2 * i + 1]);
    t[2 * i + 1] = _mm512_unpackhi_epi32(r[2 * i], r[2 * i + 1]);
  }
  for (int i = 0; i < 16; i += 4) {
    r[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
    r[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
    r[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
    r[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
  }
  for (int i = 0; i < 4; ++i) {
    t[i] = _mm512_shuffle_i32x4(r[i], r[i + 4], 0x88);
    t[i + 4] = _mm512_shuffle_i32x4(r[i], r[i + 4], 0xdd);
    t[i + 8] = _mm512_shuffle_i32x4(r[i + 8], r[i + 12], 0x88);
    t[i + 12] = _mm512_shuffle_i32x4(r[i + 8], r[i + 12], 0xdd);
  }
  for (int i = 0; i < 4; ++i) {
    r[i] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0x88);
    r[i + 4] = _mm512_shuffle_i32x4(t[i + 4], t[i + 12], 0x88);
    r[i + 8] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0xdd);
    r[i + 12] = _mm512_shuffle_i32x4(t[i + 4], t[i + 12], 0xdd);
  }
}

// 2^(whole + rest) for rest in [-0.5, 0.5], relative error below 3e-6, saturating.
inline __m512 power_of_two(__m512 whole, __m512 rest) {
  __m512 sum = _mm512_set1_ps(1.3333558e-3f);
  sum = _mm512_fmadd_ps(sum, rest, _mm512_set1_ps(9.6181291e-3f));
  sum = _mm512_fmadd_ps(sum, rest, _mm512_set1_ps(5.5504109e-2f));
  sum = _mm512_fmadd_ps(sum, rest, _mm512_set1_ps(2.4022651e-1f));
  sum = _mm512_fmadd_ps(sum, rest, _mm512_set1_ps(6.9314718e-1f));
  sum = _mm512_fmadd_ps(sum, rest, _mm512_set1_ps(1.0f));
  return _mm512_scalef_ps(sum, whole);
}

// 2^x for x <= 0, relative error below 3e-6; 0 from -200 on, and of what is no number.
inline __m512 power_of_two(__m512 x) {
  x = _mm512_max_ps(x, _mm512_set1_ps(-200.0f));
  const __m512 whole = _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  return power_of_two(whole, _mm512_sub_ps(x, whole));
}

// e^x, relative error below 3e-6, saturating.
inline __m512 exp(__m512 x) {
  const __m512 power = _mm512_mul_ps(x, _mm512_set1_ps(1.44269504f));
  const __m512 whole = _mm512_roundscale_ps(power, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  // An infinite power leaves no number here, which this takes for 0.5.
  const __m512 rest = _mm512_range_ps(_mm512_sub_ps(power, whole), _mm512_set1_ps(0.5f), 0b0010);
  return power_of_two(whole, rest);
}

// x / (1 + e^-x)
inline __m512 silu(__m512 x) {
  const __m512 under = _mm512_add_ps(_mm512_set1_ps(1.0f), exp(_mm512_sub_ps(_mm512_setzero_ps(), x)));
  return _mm512_div_ps(x, under);
}

}  // namespace

#pragma GCC pop_options
