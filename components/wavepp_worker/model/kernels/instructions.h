// What this CPU can, for kernels that come in several forms. Without AVX2 none of them is called.

#pragma once

// AVX512-BF16 and what the kernels in bfloat16 need beside it (AMD Zen 4, Intel Sapphire Rapids, and newer).
bool has_bfloat16();
// Tiles of bfloat16 (AMX; Intel Sapphire Rapids and newer) beside it.
bool cpu_has_tiles();
// ... and the kernels for them, as this library's compiler knew them, and the system lets this process use them.
bool has_tiles();
// Vectors of 16 floats.
bool has_avx512();
// A first-level data cache of 48 KiB or more (AMD Zen 5, Intel Sunny Cove, and newer), as far as it says.
bool has_large_cache();
