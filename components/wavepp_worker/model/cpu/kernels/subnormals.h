// Numbers below 2^-126, which the products of bfloat16 and AMX count as 0.

#pragma once

#include <xmmintrin.h>

// While it lives, its thread counts them as 0 in all it computes. On Intel's CPUs each multiplication of floats with one
// takes more than a hundred times as long.
class WithoutSubnormals {
 public:
  WithoutSubnormals() : before_(_mm_getcsr()) { _mm_setcsr(before_ | OF_INPUTS | OF_RESULTS); }
  ~WithoutSubnormals() { _mm_setcsr(before_); }
  WithoutSubnormals(const WithoutSubnormals &) = delete;
  WithoutSubnormals &operator=(const WithoutSubnormals &) = delete;

 private:
  static constexpr unsigned OF_INPUTS = 1u << 6, OF_RESULTS = 1u << 15;
  const unsigned before_;
};
