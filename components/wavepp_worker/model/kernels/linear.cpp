// Linear layers as Python calls them: the kernels for few tokens, and for more.

#include "calls.h"
#include "gemm.h"
#include "thin_linear.h"

#if defined(__x86_64__)

#include "instructions.h"

// As many as pay for so many products of two numbers: a team of threads costs some microseconds.
static int team(int64_t products, int64_t threads) {
  return products > 1024 * 1024 ? static_cast<int>(threads) : 1;
}

// y [tokens, out] = x [tokens, in] weight^T + bias; bias [out] or null. `narrow`: all numbers are bfloat16, else floats.
extern "C" void wavepp_linear(const void *x, const void *weight, const void *bias, int64_t tokens, int64_t in, int64_t out,
                              void *y, int64_t threads, int64_t narrow) {
  const bool more = narrow && gemm_takes(tokens, in, out);
  // Of few tokens the weights count, which have to be read.
  const int own = team((more ? tokens : 16) * in * out, threads);
  const auto layer = [&](auto number) {
    using T = decltype(number);
    return ThinLayer<T>{static_cast<const T *>(x),    static_cast<const T *>(weight), static_cast<const T *>(bias), in, out,
                        static_cast<T *>(y)};
  };
  if (!narrow)
    thin_linear_float(layer(float{}), tokens, own);
  else if (!has_bfloat16())
    thin_linear_float(layer(uint16_t{}), tokens, own);
  else if (!more)
    thin_linear_bfloat16(layer(uint16_t{}), tokens, own);
  else
    gemm_bfloat16({static_cast<const uint16_t *>(x), tokens, in, out, static_cast<uint16_t *>(y)},
                  {static_cast<const uint16_t *>(weight), static_cast<const uint16_t *>(bias)}, own);
}

// y [tokens, out] = silu(x gate^T + gate_bias) * (x up^T + up_bias), of bfloat16; only where gemm_takes() such layers.
extern "C" void wavepp_gated_linear(const void *x, const void *gate, const void *gate_bias, const void *up,
                                    const void *up_bias, int64_t tokens, int64_t in, int64_t out, void *y,
                                    int64_t threads) {
  gated_gemm_bfloat16({static_cast<const uint16_t *>(x), tokens, in, out, static_cast<uint16_t *>(y)},
                      {static_cast<const uint16_t *>(gate), static_cast<const uint16_t *>(gate_bias)},
                      {static_cast<const uint16_t *>(up), static_cast<const uint16_t *>(up_bias)},
                      team(2 * tokens * in * out, threads));
}

#endif
