// What this CPU can; see instructions.h.

#include "instructions.h"

#if defined(__x86_64__)

#include <unistd.h>

bool has_bfloat16() {
  __builtin_cpu_init();
  return __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}

bool has_avx512() {
  __builtin_cpu_init();
  return __builtin_cpu_supports("avx512f");
}

bool has_large_cache() {
#ifdef _SC_LEVEL1_DCACHE_SIZE
  static const bool large = sysconf(_SC_LEVEL1_DCACHE_SIZE) >= 48 * 1024;
  return large;
#else
  return false;
#endif
}

// AVX2 and FMA (AMD Zen, Intel Haswell, and newer).
static bool has_avx2() {
  __builtin_cpu_init();
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
}

static bool has_tiles() {
  // Older ones, and Clang, which calls itself GCC 4, do not know the name.
#if __GNUC__ >= 11
  __builtin_cpu_init();
  return __builtin_cpu_supports("amx-bf16");
#else
  return false;
#endif
}

#else

bool has_bfloat16() { return false; }
bool has_avx512() { return false; }
bool has_large_cache() { return false; }
static bool has_avx2() { return false; }
static bool has_tiles() { return false; }

#endif

// 0: no kernel runs here; 1: all run; 2: all run, and with products of bfloat16; 3: so they do beside those of tiles.
extern "C" int wavepp_kernels_run_here() {
  if (has_bfloat16()) return has_tiles() ? 3 : 2;
  return has_avx2() ? 1 : 0;
}

// Must be the number in native_library.py, which takes no library with another.
extern "C" void wavepp_kernels_version_5() {}
