// Powers of 2, for kernels that need an exponential.

#pragma once

#include <immintrin.h>

#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,fma")

namespace {

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

}  // namespace

#pragma GCC pop_options
