// What this CPU can; see instructions.h.

#include "instructions.h"

#if defined(__x86_64__)

#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "tiles.h"

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

bool cpu_has_tiles() {
  unsigned a, b, c, d;
  constexpr unsigned AMX_BF16 = 1u << 22, AMX_TILE = 1u << 24;
  static const bool there = __get_cpuid_count(7, 0, &a, &b, &c, &d) && (d & AMX_BF16) && (d & AMX_TILE);
  return there && has_bfloat16();
}

// A process has to ask Linux for the room that its threads' tiles take.
static bool may_use_tiles() {
  constexpr int REQUEST_PERMISSION = 0x1023, TILE_DATA = 18;
  return !syscall(SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA);
}

bool has_tiles() {
#ifdef WAVEPP_HAS_TILES
  static const bool usable = cpu_has_tiles() && may_use_tiles();
  return usable;
#else
  return false;
#endif
}

#else

bool has_bfloat16() { return false; }
bool cpu_has_tiles() { return false; }
bool has_avx512() { return false; }
bool has_large_cache() { return false; }
static bool has_avx2() { return false; }
bool has_tiles() { return false; }

#endif

// 0: no kernel runs here; 1: all run; 2: all run, and with products of bfloat16; 3: so they do, and the CPU has tiles of
// bfloat16, for which torch has products; 4: for these, too, kernels run here.
extern "C" int wavepp_kernels_run_here() {
  if (has_tiles()) return 4;
  if (has_bfloat16()) return cpu_has_tiles() ? 3 : 2;
  return has_avx2() ? 1 : 0;
}

// Must be the number in native_library.py, which takes no library with another.
extern "C" void wavepp_kernels_version_6() {}
