// A linear layer for few tokens, as Python calls it.

#include "thin_linear.h"

#include "calls.h"

#if defined(__x86_64__)

#include "instructions.h"

// `narrow`: all numbers are bfloat16, else floats.
extern "C" void wavepp_thin_linear(const void *x, const void *weight, const void *bias, int64_t tokens, int64_t in,
                                   int64_t out, void *y, int64_t threads, int64_t narrow) {
  // A team of threads costs some microseconds.
  const int team = in * out > 64 * 1024 ? static_cast<int>(threads) : 1;
  const auto layer = [&](auto number) {
    using T = decltype(number);
    return ThinLayer<T>{static_cast<const T *>(x),    static_cast<const T *>(weight), static_cast<const T *>(bias), in, out,
                        static_cast<T *>(y)};
  };
  if (!narrow)
    thin_linear_float(layer(float{}), tokens, team);
  else if (has_bfloat16())
    thin_linear_bfloat16(layer(uint16_t{}), tokens, team);
  else
    thin_linear_float(layer(uint16_t{}), tokens, team);
}

#endif
