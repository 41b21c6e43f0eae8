#include "gemm.h"

#if defined(__x86_64__)

#include "instructions.h"

int64_t gemm_min_tokens(int64_t in, int64_t out, bool narrow) {
  // The kernels multiply inputs in pairs, of bfloat16, and store whole vectors of 8 or 16 outputs. One rule for all of
  // them, so that a layer goes the same way whatever its dtype.
  if (in % 2 || out % 16) return 0;
  // Of layers that are not packed, torch's products are the faster ones.
  if (narrow && cpu_has_amx()) return 0;
  // Below, packing the weights takes longer than it saves. Where a first-level cache is small, as of 32 KiB, the kernel
  // for few tokens is slow with more than 6: rows of a power of two push each other out.
  if (narrow && has_bfloat16()) return has_large_cache() ? 17 : 7;
  // With vectors of 16 floats torch's products are the faster ones.
  return has_avx512() ? 0 : 17;
}

bool gemm_takes(int64_t tokens, int64_t in, int64_t out, bool narrow) {
  const int64_t fewest = gemm_min_tokens(in, out, narrow);
  return fewest && tokens >= fewest;
}

extern "C" int64_t wavepp_gemm_min_tokens(int64_t in, int64_t out, int64_t narrow) {
  return gemm_min_tokens(in, out, narrow);
}

#endif
