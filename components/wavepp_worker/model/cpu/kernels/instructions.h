// What this CPU can, and WAVEPP_MAX_CPU_ISA allows (native_library.py), for kernels that come in several forms. Without AVX2 none of them is called.

#pragma once

// AVX512-BF16 and what the kernels in bfloat16 need beside it (AMD Zen 4, Intel Sapphire Rapids, and newer).
bool has_bfloat16();
// AMX with bfloat16 beside it (Intel Sapphire Rapids and newer), and that the system lets this process use it.
bool cpu_has_amx();
// The same, and that this library's compiler knew it.
bool has_amx();
// Whether it multiplies vectors of 16 floats faster than of 32 bfloat16 (Intel, whose fast way for these is AMX).
bool multiplies_floats_faster();
// Vectors of 16 floats.
bool has_avx512();
// A first-level data cache of 48 KiB or more (AMD Zen 5, Intel Sunny Cove, and newer), as far as it says.
bool has_large_cache();
