// A linear layer for few tokens, as Python calls it.

#include "thin_linear.h"

#if defined(__x86_64__)

#include "instructions.h"

extern "C" void wavepp_thin_linear(const uint16_t *x, const uint16_t *weight, const uint16_t *bias, int64_t tokens,
                                   int64_t in, int64_t out, uint16_t *y, int64_t threads) {
  const ThinLayer layer{x, weight, bias, in, out, y};
  // A team of threads costs some microseconds.
  const int team = in * out > 64 * 1024 ? static_cast<int>(threads) : 1;
  if (has_bfloat16())
    thin_linear_bfloat16(layer, tokens, team);
  else
    thin_linear_float(layer, tokens, team);
}

#endif
