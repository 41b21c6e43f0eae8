// What this CPU can; see instructions.h.

#include "instructions.h"

#if defined(__x86_64__)

#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <iterator>

#include "amx.h"

// What the user lets the kernels use at most, as their own names for it (native_library.py); all where they say nothing.
static bool may_use(const char *instructions) {
  static const char *const KNOWN[] = {"AVX2", "AVX512", "AVX512_BF16", "AMX"};
  const auto place = [](const char *name) {
    return std::find_if(std::begin(KNOWN), std::end(KNOWN), [&](const char *known) { return !std::strcmp(known, name); });
  };
  const char *most = std::getenv("WAVEPP_MAX_CPU_ISA");
  return !most || !*most || place(instructions) <= place(most);
}

static bool cpu_has_bfloat16() {
  __builtin_cpu_init();
  return __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}

bool has_bfloat16() {
  static const bool usable = cpu_has_bfloat16() && may_use("AVX512_BF16");
  return usable;
}

bool multiplies_floats_faster() {
  __builtin_cpu_init();
  static const bool faster = __builtin_cpu_is("intel");
  return faster;
}

bool has_avx512() {
  __builtin_cpu_init();
  static const bool usable = __builtin_cpu_supports("avx512f") && may_use("AVX512");
  return usable;
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

// A process has to ask Linux for the room that its threads' tiles take.
static bool system_lets_use_tiles() {
  constexpr int REQUEST_PERMISSION = 0x1023, TILE_DATA = 18;
  return !syscall(SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA);
}

bool cpu_has_amx() {
  unsigned a, b, c, d;
  constexpr unsigned AMX_BF16 = 1u << 22, AMX_TILE = 1u << 24;
  static const bool usable = has_bfloat16() && may_use("AMX") && __get_cpuid_count(7, 0, &a, &b, &c, &d) &&
                             (d & AMX_BF16) && (d & AMX_TILE) && system_lets_use_tiles();
  return usable;
}

bool has_amx() {
#ifdef WAVEPP_KNOWS_AMX
  return cpu_has_amx();
#else
  return false;
#endif
}

#else

bool has_bfloat16() { return false; }
bool cpu_has_amx() { return false; }
bool multiplies_floats_faster() { return false; }
bool has_avx512() { return false; }
bool has_large_cache() { return false; }
static bool has_avx2() { return false; }
bool has_amx() { return false; }

#endif

// 0: no kernel runs here; 1: all run; 2: all run, and with products of bfloat16; 3: so they do, and torch has AMX; 4: kernels
// have it as well.
extern "C" int wavepp_kernels_run_here() {
  if (has_amx()) return 4;
  if (has_bfloat16()) return cpu_has_amx() ? 3 : 2;
  return has_avx2() ? 1 : 0;
}

// Must be the number in native_library.py, which takes no library with another.
extern "C" void wavepp_kernels_version_7() {}
